/* Offsets past 2^31 elements and 2^32 bytes. Each case runs twice on the same data: once on small dense tensors, in a shape
 * that the reference judges beside it, and once with strides or sizes that take every tensor past 2^31 elements. The results
 * must be the same bits (dQ of specs that are not deterministic: the same but for rounding), and nothing may be written
 * between the rows. All memory is really there; what does not fit is reported as not run, and that is no pass. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/spread.h"
#include "tests/gpu/suite.h"

#define BOTH "passes: [forward, backward]}"
#define DET "deterministic: true, " BOTH
#define BIAS "score: bias, inputs: {bias: {dtype: f32, shape: [batch, heads, seq_q, seq_k], grad: true}}, "
enum { EDGE = 1 << 27 }; /* elements past 2^31 that a wide dimension ends */

enum spacing {
	DENSE,      /* [batch][head][seq] */
	ROWS,       /* [batch][seq][head] */
	ROWS_WIDE,  /* [seq] rows of 9728 elements, whatever the heads */
	SEQ_MAJOR,  /* keys and values [seq][batch][head]; the others dense */
	ENTRY_2_30, /* keys and values with 2^30 elements between entries; the others dense */
	WIDE_BATCH,
	WIDE_HEAD,
	WIDE_SEQ, /* that dimension spans more than 2^31 elements of every tensor */
};

static const struct big {
	const char *id, *spec;
	enum spacing place;
	int64_t batch, heads_q, heads_kv, seqlen_q, seqlen_k;
	int64_t period;        /* entries that differ */
	const char *reference; /* the shape that the reference judges */
	bool naive;
} cases[] = {
	{"I32-01", "{head_dim: 128, mask: causal, " BOTH, DENSE, 15000, 10, 10, 128, 128, 7, "b2,h10,q128,k128", false},
	{"I32-03", "{head_dim: 96, mask: causal, layout: packed, " BOTH, ROWS_WIDE, 160, 16, 16, 1380, 1380, 3,
         "b2,h2,lq300,lk300,bshd", false},
	{"I32-04", "{head_dim: 128, " BOTH, SEQ_MAJOR, 700, 1, 1, 256, 24000, 7, "b1,h1,q20,k24000,bshd", false},
	{"I32-05", "{head_dim: 64, mask: causal, kv_group: any, " BOTH, ENTRY_2_30, 5, 2, 1, 70, 130, 5,
         "b2,h2/1,q70,k130", false},
	{"I32-15", "{head_dim: 64, " BIAS BOTH, WIDE_SEQ, 2, 2, 2, 130, 150, 2, "b2,h2,q130,k150", false},
	{"batch", "{head_dim: 64, mask: causal, kv_group: any, " BOTH, WIDE_BATCH, 3, 4, 2, 150, 170, 3,
         "b3,h4/2,q150,k170", false},
	{"head", "{head_dim: 128, mask: {window: {left: 90, right: 20}}, " DET, WIDE_HEAD, 2, 3, 3, 200, 180, 2,
         "b2,h3,q200,k180", false},
	{"row", "{head_dim: 64, dtype: bf16, mask: causal, dropout: 0.2, kv_group: 2, " DET, WIDE_SEQ, 2, 4, 2, 190,
         230, 2, "b2,h4/2,q190,k230", false},
	{"row", "{head_dim: 256, mask: causal, " BOTH, WIDE_SEQ, 1, 2, 2, 130, 140, 1, "b1,h2,q130,k140", false},
	{"row, an element's alignment", "{head_dim: {qk: 72, v: 40}, mask: causal, " BOTH, WIDE_SEQ, 2, 2, 2, 150, 140,
         2, "b2,h2,q150,k140,odd", false},
	{"padded, batch", "{head_dim: 64, mask: causal, layout: padded, " DET, WIDE_BATCH, 3, 2, 2, 150, 170, 3,
         "b3,h2,lq150-0-77,lk170-90-30", false},
	{"packed, head", "{head_dim: 64, mask: causal, layout: packed, " BOTH, WIDE_HEAD, 6, 3, 3, 90, 90, 3,
         "b6,h3,lq90,lk90", false},
	{"packed, row", "{head_dim: 128, layout: packed, mask: \"abs(q - k) < 40 || k < 9\", " DET, WIDE_SEQ, 6, 2, 2,
         90, 70, 3, "b6,h2,lq90,lk70", false},
	{"naive, row", "{head_dim: 64, mask: causal, " BOTH, WIDE_SEQ, 2, 2, 2, 130, 140, 2, "b2,h2,q130,k140", true},
};

/* Through the reference or the naive kernels alone: lengths, and grids of more than 65535 of everything. */
static const struct {
	const char *id, *spec, *parts;
} plain[] = {
	{"I32-02", "{head_dim: 128, " BOTH, "b8300,h16,q1,k1"},
	{"I32-10", "{head_dim: 64}", "b1,h1,q33728,k33728,zero"},
	{"I32-16", "{head_dim: 128}", "b1,h2,q1,k100000"},
	{"I32-16", "{head_dim: 128}", "b1,h2,q1,k163840"},
	{"I32-16", "{head_dim: 128}", "b1,h2,q256,k163840"},
	{"I32-16", "{head_dim: 128}", "b1,h2,q256,k200000"},
	{"grid", "{head_dim: 64, mask: causal, " BOTH, "b1,h1,q66000,k40"},
	{"grid", "{head_dim: 64, mask: causal, " BOTH, "b1,h1,q40,k66000"},
	{"grid", "{head_dim: 64, mask: causal, " BOTH, "b70000,h1,q3,k5"},
	{"grid", "{head_dim: 64, mask: causal, " BOTH, "b1,h70000,q3,k5"},
	{"grid", "{head_dim: 64, mask: causal, layout: packed, " BOTH, "b70000,h1,lq3-0-1,lk5-2"},
};

/* ---- tensors of both runs --------------------------------------------------------------------------------------------------- */

enum { TENSOR_INPUT = TENSOR_COUNT, TENSOR_INPUT_GRAD, TENSORS };
enum { SMALL, WIDE, RUNS };

struct side {
	struct spread at[TENSORS];
	struct gpu_buffer buffer[TENSORS], workspace, first[2], used[2];
	fagen_args args;
	fagen_input input;
};

struct pair {
	struct suite *s;
	const struct big *c;
	const struct spec *spec;
	const fagen_kernel *kernel;
	struct spreader *spreader;
	struct side run[RUNS];
	struct diag diag;
	char text[2200]; /* what is wrong */
};

static bool is_input(int t)
{
	return t == TENSOR_QUERY || t == TENSOR_KEY || t == TENSOR_VALUE || t == TENSOR_DOUT || t == TENSOR_DLSE ||
	       t == TENSOR_INPUT;
}
static bool is_key_side(int t)
{
	return t == TENSOR_KEY || t == TENSOR_VALUE || t == TENSOR_DKEY || t == TENSOR_DVALUE;
}
static bool is_used(const struct pair *p, int t)
{
	return t < TENSOR_COUNT ||
	       (p->spec->input_count && p->spec->input[0].grad && (!p->c->naive || t == TENSOR_INPUT));
}

/* The step of a dimension of n that spans 2^31 elements and some, or of the next that keeps rows aligned as asked. */
static int64_t wide_step(int64_t n, bool odd)
{
	const int64_t step = n > 1 ? ((INT64_C(1) << 31) + EDGE) / (n - 1) : 1;
	return odd ? step | 1 : (step + 15) / 16 * 16;
}

static void strides_make(struct spread *a, enum spacing place, bool key_side, bool odd)
{
	const int64_t row = a->dim, entry = a->heads * a->seq * row;
	a->stride_seq = row, a->stride_head = a->seq * row, a->stride_batch = entry;
	switch (place) {
	case ROWS:
	case ROWS_WIDE:
		a->stride_head = row;
		a->stride_seq = place == ROWS_WIDE && a->bytes == 2 ? 9728 : a->heads * row;
		a->stride_batch = a->seq * a->stride_seq;
		break;
	case SEQ_MAJOR:
		if (key_side)
			a->stride_head = row, a->stride_batch = a->heads * row,
			a->stride_seq = a->batch * a->heads * row;
		break;
	case ENTRY_2_30:
		if (key_side)
			a->stride_batch = INT64_C(1) << 30;
		break;
	case WIDE_BATCH: a->stride_batch = wide_step(a->batch, odd); break;
	case WIDE_HEAD:
		a->stride_batch = a->seq * row;
		a->stride_head = wide_step(a->heads, odd);
		break;
	case WIDE_SEQ:
		a->stride_head = row;
		a->stride_batch = a->heads * row;
		a->stride_seq = wide_step(a->seq, odd);
		break;
	default: break;
	}
	a->elements =
		(a->batch - 1) * a->stride_batch + (a->heads - 1) * a->stride_head + (a->seq - 1) * a->stride_seq + row;
}

static void places_make(struct pair *p, int run)
{
	const struct big *c = p->c;
	const bool packed = p->spec->layout == LAYOUT_PACKED, odd = strstr(c->reference, "odd") != NULL;
	for (int t = 0; t < TENSORS; t++) {
		struct spread *a = &p->run[run].at[t];
		const bool key_side = is_key_side(t), bias = t >= TENSOR_COUNT,
			   v = t == TENSOR_VALUE || t == TENSOR_OUT || t == TENSOR_DOUT || t == TENSOR_DVALUE;
		const bool statistic = t == TENSOR_LSE || t == TENSOR_DLSE;
		const int64_t length = key_side ? c->seqlen_k : c->seqlen_q,
			      entries = run == WIDE ? c->batch : c->period;
		*a = (struct spread){.batch = packed ? 1 : entries,
		                     .heads = key_side ? c->heads_kv : c->heads_q,
		                     .seq = packed ? entries * length : length,
		                     .dim = bias        ? c->seqlen_k
		                            : statistic ? 1
		                            : v         ? p->spec->head_dim_v
		                                        : p->spec->head_dim_qk,
		                     .bytes = bias || statistic ? 4 : 2,
		                     .period_batch = packed ? 1 : c->period,
		                     .period_seq = packed ? c->period * length : length};
		strides_make(a, run == WIDE ? c->place : DENSE, key_side, odd);
	}
}

static bool fill(struct pair *p, int t)
{
	const struct spread *a = &p->run[SMALL].at[t];
	unsigned char *host = malloc((size_t)(a->elements * a->bytes));
	struct random random;
	if (!host)
		abort();
	random_begin(&random, 31, (uint64_t)t);
	for (int64_t i = 0; i < a->elements; i++) {
		const uint64_t bits = random_next(&random); /* four uniform numbers: near enough to a normal one */
		const double sum = (double)(bits >> 48) + (double)(bits >> 32 & 0xffff) +
		                   (double)(bits >> 16 & 0xffff) + (double)(bits & 0xffff);
		const float x = (float)((sum - 131070) / 37837);
		const uint16_t half = number_encode(x, true);
		memcpy(host + i * a->bytes, a->bytes == 4 ? (const void *)&x : &half, (size_t)a->bytes);
	}
	const int rc = gpu_upload(&p->run[SMALL].buffer[t], 0, host, (size_t)(a->elements * a->bytes), p->s->rt,
	                          p->s->options.device, &p->diag);
	free(host);
	return !rc;
}

/* Lengths of the entries: full ones when packed; padded, some shorter. */
static bool lengths_make(struct pair *p, int run)
{
	struct side *r = &p->run[run];
	const int64_t entries = run == WIDE ? p->c->batch : p->c->period;
	const size_t bytes = (size_t)(entries + 1) * sizeof(int32_t);
	int32_t *host = malloc(bytes);
	bool ok = host != NULL;
	for (int axis = 0; axis < 2 && ok && p->spec->layout != LAYOUT_DENSE; axis++) {
		const bool packed = p->spec->layout == LAYOUT_PACKED;
		const int64_t length = axis ? p->c->seqlen_k : p->c->seqlen_q;
		struct gpu_buffer *to = packed ? &r->first[axis] : &r->used[axis];
		for (int64_t i = 0; i <= entries; i++)
			host[i] = (int32_t)(packed ? i * length : length - i % p->c->period * 33);
		ok = !gpu_alloc(to, p->s->rt, p->s->options.device, bytes, &p->diag) &&
		     !gpu_upload(to, 0, host, bytes, p->s->rt, p->s->options.device, &p->diag);
	}
	free(host);
	return ok;
}

static void args_make(struct pair *p, int run)
{
	struct side *r = &p->run[run];
	const struct big *c = p->c;
	fagen_args *a = &r->args;
	*a = (fagen_args){.struct_size = sizeof *a,
	                  .batch = run == WIDE ? c->batch : c->period,
	                  .heads_q = c->heads_q,
	                  .heads_kv = c->heads_kv,
	                  .seqlen_q = c->seqlen_q,
	                  .seqlen_k = c->seqlen_k,
	                  .seed = 5,
	                  .offset = 6};
	fagen_tensor *const to[TENSOR_COUNT] = {&a->query, &a->key,  &a->value,  &a->out,  &a->lse,
	                                        &a->dout,  &a->dlse, &a->dquery, &a->dkey, &a->dvalue};
	for (int t = 0; t < TENSOR_COUNT; t++)
		*to[t] = (fagen_tensor){(void *)(uintptr_t)r->buffer[t].data, r->at[t].stride_batch,
		                        r->at[t].stride_head, r->at[t].stride_seq};
	if (p->spec->layout == LAYOUT_PACKED) {
		a->cu_seqlens_q = (const int32_t *)(uintptr_t)r->first[0].data;
		a->cu_seqlens_k = (const int32_t *)(uintptr_t)r->first[1].data;
		a->total_q = r->at[TENSOR_QUERY].seq;
		a->total_k = r->at[TENSOR_KEY].seq;
	} else if (p->spec->layout == LAYOUT_PADDED) {
		a->seqlens_q = (const int32_t *)(uintptr_t)r->used[0].data;
		a->seqlens_k = (const int32_t *)(uintptr_t)r->used[1].data;
	}
	if (!p->spec->input_count)
		return;
	const struct spread *in = &r->at[TENSOR_INPUT], *grad = &r->at[TENSOR_INPUT_GRAD];
	r->input = (fagen_input){.name = p->spec->input[0].name,
	                         .data = (const void *)(uintptr_t)r->buffer[TENSOR_INPUT].data,
	                         .stride = {in->stride_batch, in->stride_head, in->stride_seq, 1},
	                         .grad = (void *)(uintptr_t)r->buffer[TENSOR_INPUT_GRAD].data,
	                         .grad_stride = {grad->stride_batch, grad->stride_head, grad->stride_seq, 1}};
	a->inputs = &r->input;
	a->input_count = 1;
}

/* ---- running ---------------------------------------------------------------------------------------------------------------- */

/* 1: there is not enough memory, said in p->text. */
static int buffers_make(struct pair *p, int run)
{
	struct side *r = &p->run[run];
	fagen_error error = {.struct_size = sizeof error};
	const int device = p->s->options.device;
	size_t workspace = 0, need = 0, room;
	args_make(p, run);
	if (fagen_workspace_size(&workspace, p->kernel, &r->args, &error))
		return snprintf(p->text, sizeof p->text, "%s", error.message), -1;
	for (int t = 0; t < TENSORS; t++)
		need += is_used(p, t) ? (size_t)(r->at[t].elements * r->at[t].bytes) + 2 * GPU_GUARD : 0;
	if (gpu_memory_free(&room, p->s->rt, device, &p->diag))
		return -1;
	if (need + workspace + (UINT64_C(1) << 28) > room) {
		snprintf(p->text, sizeof p->text, "NOT RUN: it takes %.1f GiB of device memory, and %.1f GiB are free",
		         (double)(need + workspace) / 1073741824.0, (double)room / 1073741824.0);
		return 1;
	}
	for (int t = 0; t < TENSORS; t++)
		if (is_used(p, t) && (gpu_alloc(&r->buffer[t], p->s->rt, device,
		                                (size_t)(r->at[t].elements * r->at[t].bytes), &p->diag) ||
		                      gpu_poison(&r->buffer[t], p->s->rt, device, &p->diag)))
			return -1;
	if (gpu_alloc(&r->workspace, p->s->rt, device, workspace, &p->diag) ||
	    gpu_poison(&r->workspace, p->s->rt, device, &p->diag))
		return -1;
	args_make(p, run);
	r->args.workspace = (void *)(uintptr_t)r->workspace.data;
	r->args.workspace_size = workspace;
	return 0;
}

static bool both_passes(struct pair *p, int run)
{
	fagen_error error = {.struct_size = sizeof error};
	if (fagen_forward(p->kernel, &p->run[run].args, NULL, &error) ||
	    fagen_backward(p->kernel, &p->run[run].args, NULL, &error)) {
		snprintf(p->text, sizeof p->text, "%s", error.message);
		return false;
	}
	if (!gpu_synchronize(p->s->rt, p->s->options.device, &p->diag))
		return true;
	p->s->lost = true;
	return false;
}

static bool tensor_same(struct pair *p, int t)
{
	const struct spread *a = &p->run[WIDE].at[t];
	const char *name = t < TENSOR_COUNT    ? tensor_names[t]
	                   : t == TENSOR_INPUT ? "the input"
	                                       : "the input's gradient";
	const bool chance = t == TENSOR_DQUERY && !p->spec->deterministic && !p->c->naive;
	struct spread_difference d;
	if (spread_compare(&d, &p->run[WIDE].buffer[t], &p->run[SMALL].buffer[t], a, chance ? 1.0f / 64 : 0,
	                   p->spreader, &p->diag))
		return false;
	const int64_t rows = a->batch * a->heads * a->seq, i = (int64_t)(d.first / (uint64_t)a->dim);
	if (d.different)
		snprintf(p->text, sizeof p->text,
		         "%s: %" PRIu64 " of %" PRId64
		         " elements are not those of small tensors, the first at b %" PRId64 ", h %" PRId64
		         ", row %" PRId64,
		         name, d.different, rows * a->dim, i / a->seq / a->heads, i / a->seq % a->heads, i % a->seq);
	else if (d.written != (uint64_t)(rows * a->dim))
		snprintf(p->text, sizeof p->text,
		         "%s: %" PRIu64 " elements of the buffer were written; the tensor has %" PRId64, name,
		         d.written, rows * a->dim);
	else if (!gpu_guards(&p->run[WIDE].buffer[t], name, p->s->rt, p->s->options.device, &p->diag))
		return true;
	return false;
}

/* The comparison itself: one element changed is one difference. */
static bool change_noticed(struct pair *p)
{
	const struct spread *a = &p->run[WIDE].at[TENSOR_OUT];
	const struct gpu_buffer *wide = &p->run[WIDE].buffer[TENSOR_OUT];
	const size_t last = (size_t)(a->elements - 1) * 2;
	uint16_t bits, other;
	struct spread_difference d;
	if (gpu_download(&bits, wide, last, 2, p->s->rt, p->s->options.device, &p->diag))
		return false;
	other = bits ^ 0x0100;
	if (gpu_upload(wide, last, &other, 2, p->s->rt, p->s->options.device, &p->diag) ||
	    spread_compare(&d, wide, &p->run[SMALL].buffer[TENSOR_OUT], a, 0, p->spreader, &p->diag) ||
	    gpu_upload(wide, last, &bits, 2, p->s->rt, p->s->options.device, &p->diag))
		return false;
	if (d.different == 1 && d.first == (uint64_t)(a->batch * a->heads * a->seq * a->dim - 1))
		return true;
	snprintf(p->text, sizeof p->text, "a changed element of out was counted as %" PRIu64 " differences",
	         d.different);
	return false;
}

/* 0 the same, 1 not run, -1 wrong. */
static int pair_run(struct pair *p)
{
	int64_t most = 0;
	for (int run = 0; run < RUNS; run++) {
		places_make(p, run);
		const int rc = lengths_make(p, run) ? buffers_make(p, run) : -1;
		if (rc)
			return rc;
		for (int t = 0; t < TENSORS; t++) {
			if (!is_input(t) || !is_used(p, t))
				continue;
			if (run == SMALL ? !fill(p, t)
			                 : spread_scatter(&p->run[WIDE].buffer[t], &p->run[SMALL].buffer[t],
			                                  &p->run[WIDE].at[t], p->spreader, &p->diag))
				return -1;
		}
		if (!both_passes(p, run))
			return -1;
	}
	for (int t = 0; t < TENSORS; t++) {
		if (is_used(p, t) && !tensor_same(p, t))
			return -1;
		most = p->run[WIDE].at[t].elements > most ? p->run[WIDE].at[t].elements : most;
	}
	const uint64_t reach =
		(uint64_t)most > p->run[WIDE].workspace.bytes / 4 ? (uint64_t)most : p->run[WIDE].workspace.bytes / 4;
	if (reach <= UINT64_C(1) << 31) {
		snprintf(p->text, sizeof p->text,
		         "no tensor and no workspace has more than 2^31 elements, only %" PRIu64, reach);
		return -1;
	}
	return change_noticed(p) ? 0 : -1;
}

static void pair_free(struct pair *p)
{
	for (int run = 0; run < RUNS; run++) {
		struct side *r = &p->run[run];
		for (int t = 0; t < TENSORS; t++)
			gpu_free(&r->buffer[t], p->s->rt, p->s->options.device);
		gpu_free(&r->workspace, p->s->rt, p->s->options.device);
		for (int axis = 0; axis < 2; axis++) {
			gpu_free(&r->first[axis], p->s->rt, p->s->options.device);
			gpu_free(&r->used[axis], p->s->rt, p->s->options.device);
		}
	}
	diag_free(&p->diag);
}

static void big_case(struct suite *s, const struct big *c, struct spreader *spreader)
{
	struct pair *p = calloc(1, sizeof *p);
	fagen_error error = {.struct_size = sizeof error};
	char name[CASE_TEXT_MAX];
	const fagen_spec *spec = p ? suite_spec(s, CLASS_BIG, c->spec) : NULL;
	if (spec) {
		const fagen_problem wish = {.struct_size = sizeof wish, .align = strstr(c->reference, "odd") ? 2 : 16};
		*p = (struct pair){.s = s, .c = c, .spec = runtime_spec(spec), .spreader = spreader};
		int rc = (c->naive ? fagen_kernel_get_naive : fagen_kernel_get)((fagen_kernel **)&p->kernel, s->rt,
		                                                                spec, &wish, s->options.device, &error);
		if (rc)
			snprintf(p->text, sizeof p->text, "%s", error.message);
		rc = rc ? 1 : pair_run(p);
		s->not_run += rc > 0;
		snprintf(name, sizeof name, "%s %s b%" PRId64 ",h%" PRId64 "/%" PRId64 ",q%" PRId64 ",k%" PRId64, c->id,
		         c->spec, c->batch, c->heads_q, c->heads_kv, c->seqlen_q, c->seqlen_k);
		suite_result(s, CLASS_BIG, !rc, name, p->diag.errors ? text_str(&p->diag.text) : p->text);
		pair_free(p);
	}
	free(p);
}

void suite_big(struct suite *s)
{
	struct spreader spreader;
	struct diag diag = {0};
	for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
		suite_case(s, CLASS_BIG, plain[i].spec, "%s", plain[i].parts);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		s->options.naive = cases[i].naive;
		suite_case(s, CLASS_BIG, cases[i].spec, "%s", cases[i].reference);
		s->options.naive = false;
	}
	if (s->warming)
		return;
	if (spreader_open(&spreader, s->rt, s->options.device, &diag))
		suite_result(s, CLASS_BIG, false, "the kernels that compare", text_str(&diag.text));
	else
		for (size_t i = 0; i < sizeof cases / sizeof *cases && !s->lost; i++)
			big_case(s, &cases[i], &spreader);
	spreader_close(&spreader);
	diag_free(&diag);
}
