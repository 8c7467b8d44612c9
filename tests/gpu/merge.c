/* fagen_merge and its derivative against the same in double. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/suite.h"

enum { OUT, OUT_A, OUT_B, LSE, LSE_A, LSE_B, DOUT, DOUT_A, DOUT_B, DLSE, DLSE_A, DLSE_B, TENSORS };
static const char *const tensor_names_[TENSORS] = {"out",  "out_a",  "out_b",  "lse",  "lse_a",  "lse_b",
                                                   "dout", "dout_a", "dout_b", "dlse", "dlse_a", "dlse_b"};

struct merge_case {
	int type, type_a, type_b;
	int64_t batch, heads, seqlen, dim;
	int64_t gap;   /* elements between rows: odd ones forbid vectors */
	bool in_place; /* out is out_a, lse is lse_a */
	bool no_dlse;
	double level; /* of LSE */
};

static const struct merge_case cases[] = {
	{FAGEN_BF16, FAGEN_BF16, FAGEN_BF16, 2, 3, 77, 64, 0, false, false, 0},
	{FAGEN_FP16, FAGEN_FP16, FAGEN_FP16, 1, 2, 33, 128, 8, false, true, 5},
	{FAGEN_FLOAT32, FAGEN_FLOAT32, FAGEN_FLOAT32, 2, 1, 50, 96, 0, false, false, -3},
	{FAGEN_FLOAT32, FAGEN_FLOAT32, FAGEN_BF16, 1, 4, 100, 256, 0, true, false, 20},
	{FAGEN_BF16, FAGEN_FLOAT32, FAGEN_FP16, 1, 2, 9, 72, 4, false, false, 300},
	{FAGEN_BF16, FAGEN_BF16, FAGEN_BF16, 1, 2, 40, 80, 1, true, false, 0},
	{FAGEN_FLOAT32, FAGEN_BF16, FAGEN_FP16, 3, 1, 17, 33, 2, false, true, 1},
	{FAGEN_FP16, FAGEN_FLOAT32, FAGEN_FLOAT32, 1, 1, 1, 1, 0, false, false, 0},
	{FAGEN_BF16, FAGEN_BF16, FAGEN_BF16, 2, 2, 0, 64, 0, false, false, 0},
};

struct merge_run {
	struct suite *s;
	const struct merge_case *c;
	struct gpu_buffer buffer[TENSORS];
	double *want[TENSORS]; /* dense; what inputs hold, and what results should be */
	struct diag diag;
	char text[2200];
};

static bool is_out(int t) { return t <= OUT_B || (t >= DOUT && t <= DOUT_B); }
static int64_t rows_of(const struct merge_case *c) { return c->batch * c->heads * c->seqlen; }
static int64_t columns_of(const struct merge_case *c, int t) { return is_out(t) ? c->dim : 1; }
static int64_t stride_of(const struct merge_case *c, int t) { return is_out(t) ? c->dim + c->gap : 1; }
static int type_of(const struct merge_case *c, int t)
{
	return !is_out(t) ? FAGEN_FLOAT32 : t % 3 == 0 ? c->type : t % 3 == 1 ? c->type_a : c->type_b;
}
static size_t element_bytes(int type) { return type == FAGEN_FLOAT32 ? 4 : 2; }

static double rounded(double x, int type)
{
	return type == FAGEN_FLOAT32 ? (double)(float)x : number_round(x, type == FAGEN_BF16);
}

static void put(unsigned char *to, double x, int type)
{
	const float f = (float)x;
	const uint16_t half = type == FAGEN_FLOAT32 ? 0 : number_encode(x, type == FAGEN_BF16);
	memcpy(to, type == FAGEN_FLOAT32 ? (const void *)&f : &half, element_bytes(type));
}

static double get(const unsigned char *from, int type)
{
	float f;
	uint16_t half;
	if (type == FAGEN_FLOAT32)
		return memcpy(&f, from, 4), f;
	return memcpy(&half, from, 2), number_decode(half, type == FAGEN_BF16);
}

/* Inputs; every seventh row of a part has no key, and then its O may be anything. */
static void values_make(struct merge_run *r)
{
	const struct merge_case *c = r->c;
	struct random random;
	random_begin(&random, 5, (uint64_t)(c - cases));
	for (int t = 0; t < TENSORS; t++) {
		const int64_t count = rows_of(c) * columns_of(c, t);
		if (!(r->want[t] = malloc((size_t)(count + 1) * sizeof(double))))
			abort();
		for (int64_t i = 0; i < count; i++)
			r->want[t][i] = rounded(random_normal(&random) + (is_out(t) || t > LSE_B ? 0 : c->level),
			                        type_of(c, t));
	}
	for (int64_t row = 0; row < rows_of(c); row++) {
		for (int part = 0; part < 2; part++)
			if (row % 7 == 3 + part || row % 7 == 5) {
				r->want[LSE_A + part][row] = -INFINITY;
				for (int64_t d = 0; d < c->dim; d++)
					r->want[OUT_A + part][row * c->dim + d] = NAN;
			}
		if (row % 7 == 6)
			r->want[LSE_A][row] += 50;
	}
}

static void reference_make(struct merge_run *r)
{
	const struct merge_case *c = r->c;
	double **x = r->want;
	for (int64_t row = 0; row < rows_of(c); row++) {
		const double a = x[LSE_A][row], b = x[LSE_B][row], high = fmax(a, b);
		const double lse = high == -INFINITY ? -INFINITY : high + log(exp(a - high) + exp(b - high));
		const double w[] = {a == -INFINITY ? 0 : exp(a - lse), b == -INFINITY ? 0 : exp(b - lse)};
		double cross = 0;
		x[LSE][row] = lse;
		for (int64_t d = 0; d < c->dim; d++) {
			const int64_t i = row * c->dim + d;
			const double oa = w[0] > 0 ? x[OUT_A][i] : 0, ob = w[1] > 0 ? x[OUT_B][i] : 0, g = x[DOUT][i];
			x[OUT][i] = w[0] * oa + w[1] * ob;
			x[DOUT_A][i] = w[0] * g;
			x[DOUT_B][i] = w[1] * g;
			cross += w[0] * w[1] * g * (oa - ob);
		}
		const double dlse = c->no_dlse ? 0 : x[DLSE][row];
		x[DLSE_A][row] = w[0] * dlse + cross;
		x[DLSE_B][row] = w[1] * dlse - cross;
	}
}

static fagen_tensor tensor_at(const struct merge_run *r, int t)
{
	const struct merge_case *c = r->c;
	const int64_t stride = stride_of(c, t);
	return (fagen_tensor){.data = (void *)(uintptr_t)r->buffer[t].data,
	                      .stride_batch = c->heads * c->seqlen * stride,
	                      .stride_head = c->seqlen * stride,
	                      .stride_seq = stride};
}

static bool upload(struct merge_run *r, int t)
{
	const struct merge_case *c = r->c;
	const int type = type_of(c, t);
	const size_t bytes = (size_t)(rows_of(c) * stride_of(c, t)) * element_bytes(type);
	unsigned char *host = malloc(bytes + 1);
	if (!host)
		abort();
	memset(host, GPU_POISON, bytes);
	for (int64_t row = 0; row < rows_of(c); row++)
		for (int64_t d = 0; d < columns_of(c, t); d++)
			put(host + (size_t)(row * stride_of(c, t) + d) * element_bytes(type),
			    r->want[t][row * columns_of(c, t) + d], type);
	const int rc = gpu_upload(&r->buffer[t], 0, host, bytes, r->s->rt, r->s->options.device, &r->diag);
	free(host);
	return !rc;
}

/* Is a result what it should be, to the rounding of its type, and nothing between its rows touched? */
static bool compare(struct merge_run *r, int t, int at)
{
	const struct merge_case *c = r->c;
	const int type = type_of(c, t);
	const size_t size = element_bytes(type), bytes = (size_t)(rows_of(c) * stride_of(c, t)) * size;
	unsigned char *host = malloc(bytes + 1);
	bool ok = host && !gpu_download(host, &r->buffer[at], 0, bytes, r->s->rt, r->s->options.device, &r->diag);
	for (int64_t row = 0; ok && row < rows_of(c); row++) {
		double largest = 0; /* of the row: dO . (O_a - O_b) cancels */
		for (int64_t d = 0; d < c->dim; d++)
			largest = fmax(largest, fabs(r->want[DOUT][row * c->dim + d]));
		for (int64_t d = 0; ok && d < stride_of(c, t); d++) {
			const unsigned char *from = host + (size_t)(row * stride_of(c, t) + d) * size;
			if (d >= columns_of(c, t)) {
				for (size_t i = 0; i < size; i++)
					ok = ok && from[i] == GPU_POISON;
				continue;
			}
			const double want = r->want[t][row * columns_of(c, t) + d], got = get(from, type);
			const double unit = type == FAGEN_FLOAT32 ? ldexp(1, -20) * fmax(1, fabs(want))
			                                          : number_ulp(fabs(want), type == FAGEN_BF16);
			const double slack = t == LSE || is_out(t) ? 0 : ldexp(1, -18) * largest * (double)c->dim;
			const double level =
				ldexp(1, -20) * (1 + fabs(c->level)); /* what float32 LSE knows of a weight */
			ok = want == got || fabs(want - got) <= unit + slack + level * 4;
			if (!ok)
				snprintf(r->text, sizeof r->text, "%s[%lld, %lld] is %.9g; want %.9g", tensor_names_[t],
				         (long long)row, (long long)d, got, want);
		}
	}
	free(host);
	return ok;
}

static bool merge_run(struct merge_run *r)
{
	const struct merge_case *c = r->c;
	const int device = r->s->options.device;
	fagen_error error = {.struct_size = sizeof error};
	fagen_merger *merger;
	values_make(r);
	for (int t = 0; t < TENSORS; t++) {
		const size_t bytes = (size_t)(rows_of(c) * stride_of(c, t)) * element_bytes(type_of(c, t));
		const bool given = t == OUT_A || t == OUT_B || t == LSE_A || t == LSE_B || t == DOUT || t == DLSE;
		if (gpu_alloc(&r->buffer[t], r->s->rt, device, bytes, &r->diag) ||
		    gpu_poison(&r->buffer[t], r->s->rt, device, &r->diag) || (given && !upload(r, t)))
			return false;
	}
	reference_make(r);
	fagen_merge_args a = {.struct_size = sizeof a,
	                      .dtype = c->type,
	                      .dtype_a = c->type_a,
	                      .dtype_b = c->type_b,
	                      .batch = c->batch,
	                      .heads = c->heads,
	                      .seqlen = c->seqlen,
	                      .head_dim = c->dim};
	fagen_tensor *const tensor[TENSORS] = {&a.out,  &a.out_a,  &a.out_b,  &a.lse,  &a.lse_a,  &a.lse_b,
	                                       &a.dout, &a.dout_a, &a.dout_b, &a.dlse, &a.dlse_a, &a.dlse_b};
	for (int t = 0; t < TENSORS; t++)
		*tensor[t] = tensor_at(r, t);
	if (c->no_dlse)
		a.dlse = (fagen_tensor){0};
	if (fagen_merger_get(&merger, r->s->rt, device, &error) || fagen_merge_backward(merger, &a, NULL, &error))
		goto called;
	if (c->in_place) /* after backward, which wants the parts */
		a.out = a.out_a, a.lse = a.lse_a;
	if (fagen_merge(merger, &a, NULL, &error))
		goto called;
	if (gpu_synchronize(r->s->rt, device, &r->diag))
		return false;
	return compare(r, OUT, c->in_place ? OUT_A : OUT) && compare(r, LSE, c->in_place ? LSE_A : LSE) &&
	       compare(r, DOUT_A, DOUT_A) && compare(r, DOUT_B, DOUT_B) && compare(r, DLSE_A, DLSE_A) &&
	       compare(r, DLSE_B, DLSE_B);
called:
	snprintf(r->text, sizeof r->text, "%s", error.message);
	return false;
}

void suite_merge(struct suite *s)
{
	if (s->warming || s->only_spec || (s->only_class && strcmp(s->only_class, class_names[CLASS_MERGE])))
		return;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct merge_run r = {.s = s, .c = &cases[i]};
		char name[96];
		if (!suite_mine(s))
			continue;
		snprintf(name, sizeof name, "merge types %d %d %d, %lld x %lld x %lld x %lld", r.c->type, r.c->type_a,
		         r.c->type_b, (long long)r.c->batch, (long long)r.c->heads, (long long)r.c->seqlen,
		         (long long)r.c->dim);
		const bool ok = merge_run(&r);
		if (r.diag.errors)
			snprintf(r.text, sizeof r.text, "%s", text_str(&r.diag.text));
		suite_result(s, CLASS_MERGE, ok, name, r.text);
		for (int t = 0; t < TENSORS; t++) {
			free(r.want[t]);
			gpu_free(&r.buffer[t], s->rt, s->options.device);
		}
		diag_free(&r.diag);
	}
}
