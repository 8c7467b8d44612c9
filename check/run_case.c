#include "check/case.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/gpu.h"

#define CPU_BUDGET 4e9
#define CPU_BUDGET_MOST 20 /* of one head pair, times the budget */

struct tensor {
	bool used;
	struct layout layout;
	struct gpu_buffer device;
	unsigned char *host; /* image of the whole buffer */
};

/* Which heads are compared: all, or some (batch entry, key/value head) pairs that are laid out as batch entries. */
struct sample {
	bool all;
	int64_t pairs;
	int64_t *b, *h_kv, *first_head;
};

struct run {
	const struct check_case *c;
	const struct check_options *options;
	const struct spec *spec;
	fagen_runtime *rt;
	const fagen_kernel *kernel, *naive;
	struct tensor t[TENSOR_COUNT];
	struct gpu_buffer workspace, rng;
	fagen_args args;
	bool has_lse, backward;
	struct ref_case ref; /* of the sample */
	struct sample sample;
	struct check_outcome *out;
	struct diag diag;
};

static int fail(struct run *r, enum check_status status, const char *text)
{
	r->out->status = status;
	snprintf(r->out->text, sizeof r->out->text, "%s", text);
	return -1;
}

static int machine(struct run *r) { return fail(r, CHECK_MACHINE, text_str(&r->diag.text)); }

static int called(struct run *r, int code, const fagen_error *error)
{
	if (code == FAGEN_OK)
		return 0;
	if (code == FAGEN_ERROR_SPEC || code == FAGEN_ERROR_INVALID)
		return fail(r, CHECK_REFUSED, error->message);
	/* 700 to 719: a kernel of this process faulted. */
	return fail(r, error->cuda_result >= 700 && error->cuda_result < 720 ? CHECK_WRONG : CHECK_MACHINE,
	            error->message);
}

int check_spec(fagen_spec **spec, fagen_runtime *rt, const char *name, fagen_error *error)
{
	char path[CASE_NAME_MAX + 16];
	if (*name == '{')
		return fagen_spec_parse(spec, rt, name, strlen(name), "inline", error);
	snprintf(path, sizeof path, strpbrk(name, "/.") ? "%s" : "specs/%s.yaml", name);
	return fagen_spec_load(spec, rt, path, error);
}

void case_reference(struct ref_case *ref, const struct check_case *c, const struct spec *spec)
{
	*ref = (struct ref_case){.batch = c->batch,
	                         .heads_q = c->heads_q,
	                         .heads_kv = c->heads_kv,
	                         .seqlen_q = c->seqlen_q,
	                         .seqlen_k = c->seqlen_k,
	                         .head_dim_qk = spec->head_dim_qk,
	                         .head_dim_v = spec->head_dim_v,
	                         .softmax_scale = spec->softmax_scale,
	                         .mask_count = spec->mask_count,
	                         .keep_256 = spec->keep_256,
	                         .seed = c->seed * 0x9E3779B97F4A7C15u,
	                         .offset = c->seed + 17,
	                         .bf16 = spec->dtype == DTYPE_BF16};
	for (int i = 0; i < spec->mask_count; i++) {
		const char *name = preset_table[spec->mask[i].preset].name;
		ref->mask[i].causal = !strcmp(name, "causal");
		ref->mask[i].causal_top_left = !strcmp(name, "causal_top_left");
		ref->mask[i].window = !strcmp(name, "window");
		ref->mask[i].left = spec->mask[i].arg[0];
		ref->mask[i].right = spec->mask[i].arg[1];
	}
}

/* ---- tensors on both sides ----------------------------------------------------------------------------------------- */

static bool is_input(int t)
{
	return t == TENSOR_QUERY || t == TENSOR_KEY || t == TENSOR_VALUE || t == TENSOR_DOUT || t == TENSOR_DLSE;
}
static bool is_float(int t) { return t == TENSOR_LSE || t == TENSOR_DLSE; }
static bool is_key_side(int t)
{
	return t == TENSOR_KEY || t == TENSOR_VALUE || t == TENSOR_DKEY || t == TENSOR_DVALUE;
}

static int tensor_dim(const struct spec *spec, int t)
{
	if (is_float(t))
		return 1;
	return t == TENSOR_QUERY || t == TENSOR_KEY || t == TENSOR_DQUERY || t == TENSOR_DKEY ? spec->head_dim_qk
	                                                                                      : spec->head_dim_v;
}

static void element_put(struct tensor *t, int64_t at, double x, bool bf16)
{
	if (t->layout.bytes == 4) {
		const float f = (float)x;
		memcpy(t->host + 4 * at, &f, 4);
	} else {
		const uint16_t bits = number_encode(x, bf16);
		memcpy(t->host + 2 * at, &bits, 2);
	}
}

static double element_get(const struct tensor *t, int64_t at, bool bf16)
{
	if (t->layout.bytes == 4) {
		float f;
		memcpy(&f, t->host + 4 * at, 4);
		return f;
	}
	uint16_t bits;
	memcpy(&bits, t->host + 2 * at, 2);
	return number_decode(bits, bf16);
}

static size_t tensor_bytes(const struct tensor *t) { return (size_t)t->layout.elements * (size_t)t->layout.bytes; }

struct fill_job {
	struct run *r;
	int id;
};

static void fill_head(void *context, int64_t item)
{
	const struct fill_job *j = context;
	struct run *r = j->r;
	struct tensor *t = &r->t[j->id];
	const struct layout *l = &t->layout;
	static const enum input_role roles[TENSOR_COUNT] = {[TENSOR_QUERY] = ROLE_QUERY,
	                                                    [TENSOR_KEY] = ROLE_KEY,
	                                                    [TENSOR_VALUE] = ROLE_VALUE,
	                                                    [TENSOR_DOUT] = ROLE_DOUT,
	                                                    [TENSOR_DLSE] = ROLE_DLSE};
	const int64_t b = item / l->heads, h = item % l->heads;
	if (b > 0 && l->stride_batch == 0)
		return;
	double *values = malloc((size_t)(l->seq > 0 ? l->seq : 1) * (size_t)l->dim * sizeof *values);
	if (!values)
		abort();
	input_fill(values, l->seq, l->dim, r->c->input, roles[j->id], r->spec->softmax_scale, r->ref.bf16, r->c->seed,
	           (uint64_t)item);
	for (int64_t s = 0; s < l->seq; s++)
		for (int d = 0; d < l->dim; d++)
			element_put(t, layout_index(l, b, h, s) + d, values[s * l->dim + d], r->ref.bf16);
	free(values);
}

static int tensor_make(struct run *r, int id)
{
	struct tensor *t = &r->t[id];
	const struct check_case *c = r->c;
	t->used = true;
	t->layout = (struct layout){.batch = c->batch,
	                            .heads = is_key_side(id) ? c->heads_kv : c->heads_q,
	                            .seq = is_key_side(id) ? c->seqlen_k : c->seqlen_q,
	                            .dim = tensor_dim(r->spec, id),
	                            .bytes = is_float(id) ? 4 : 2};
	layout_make(&t->layout, c->layout, (enum tensor_id)id);
	const size_t bytes = tensor_bytes(t);
	t->host = malloc(bytes ? bytes : 1);
	if (!t->host) {
		diag_fail(&r->diag, "Out of host memory: tensor %s has %zu bytes.", tensor_names[id], bytes);
		return machine(r);
	}
	memset(t->host, GPU_POISON, bytes);
	if (gpu_alloc(&t->device, r->rt, r->options->device, bytes, &r->diag))
		return machine(r);
	if (!is_input(id))
		return 0;
	struct fill_job j = {r, id};
	parallel_for(t->layout.batch * t->layout.heads, fill_head, &j);
	return gpu_upload(&t->device, 0, t->host, bytes, r->rt, r->options->device, &r->diag) ? machine(r) : 0;
}

static int tensor_fetch(struct run *r, int id)
{
	struct tensor *t = &r->t[id];
	if (gpu_download(t->host, &t->device, 0, tensor_bytes(t), r->rt, r->options->device, &r->diag))
		return machine(r);
	return 0;
}

/* The sampled heads as a dense tensor. */
static double *gather(const struct run *r, int id)
{
	const struct tensor *t = &r->t[id];
	const struct layout *l = &t->layout;
	const int64_t heads = is_key_side(id) ? r->ref.heads_kv : r->ref.heads_q, rows = l->seq;
	double *to = malloc((size_t)(r->ref.batch * heads * rows * l->dim + 1) * sizeof *to), *at = to;
	if (!to)
		abort();
	for (int64_t b = 0; b < r->ref.batch; b++)
		for (int64_t h = 0; h < heads; h++)
			for (int64_t s = 0; s < rows; s++) {
				const int64_t from_b = r->sample.all ? b : r->sample.b[b];
				const int64_t from_h = r->sample.all ? h : r->sample.h_kv[b] * heads + h;
				const int64_t index = layout_index(l, from_b, from_h, s);
				for (int d = 0; d < l->dim; d++)
					*at++ = element_get(t, index + d, r->ref.bf16);
			}
	return to;
}

/* Nothing but the tensor's elements may have been written: gaps of the layout are still poison. Destroys the image. */
static int gaps_check(struct run *r, int id)
{
	struct tensor *t = &r->t[id];
	const struct layout *l = &t->layout;
	for (int64_t b = 0; b < l->batch; b++)
		for (int64_t h = 0; h < l->heads; h++)
			for (int64_t s = 0; s < l->seq; s++)
				memset(t->host + layout_index(l, b, h, s) * l->bytes, GPU_POISON,
				       (size_t)(l->dim * l->bytes));
	const size_t bytes = tensor_bytes(t);
	for (size_t i = 0; i < bytes; i++)
		if (t->host[i] != GPU_POISON) {
			diag_fail(&r->diag,
			          "%s: byte %zu of the buffer lies between the tensor's rows and was written.",
			          tensor_names[id], i);
			return fail(r, CHECK_WRONG, text_str(&r->diag.text));
		}
	return gpu_guards(&t->device, tensor_names[id], r->rt, r->options->device, &r->diag)
	               ? fail(r, CHECK_WRONG, text_str(&r->diag.text))
	               : 0;
}

/* ---- running ---------------------------------------------------------------------------------------------------------- */

static fagen_tensor public_tensor(const struct tensor *t)
{
	const struct layout *l = &t->layout;
	if (!t->used)
		return (fagen_tensor){0};
	return (fagen_tensor){.data = (void *)(uintptr_t)(t->device.data + (uint64_t)(l->offset * l->bytes)),
	                      .stride_batch = l->stride_batch,
	                      .stride_head = l->stride_head,
	                      .stride_seq = l->stride_seq};
}

static int args_make(struct run *r)
{
	const struct check_case *c = r->c;
	fagen_args *a = &r->args;
	*a = (fagen_args){.struct_size = sizeof *a,
	                  .batch = c->batch,
	                  .heads_q = c->heads_q,
	                  .heads_kv = c->heads_kv,
	                  .seqlen_q = c->seqlen_q,
	                  .seqlen_k = c->seqlen_k,
	                  .seed = r->ref.seed,
	                  .offset = r->ref.offset};
	a->query = public_tensor(&r->t[TENSOR_QUERY]);
	a->key = public_tensor(&r->t[TENSOR_KEY]);
	a->value = public_tensor(&r->t[TENSOR_VALUE]);
	a->out = public_tensor(&r->t[TENSOR_OUT]);
	a->lse = public_tensor(&r->t[TENSOR_LSE]);
	a->dout = public_tensor(&r->t[TENSOR_DOUT]);
	a->dlse = public_tensor(&r->t[TENSOR_DLSE]);
	a->dquery = public_tensor(&r->t[TENSOR_DQUERY]);
	a->dkey = public_tensor(&r->t[TENSOR_DKEY]);
	a->dvalue = public_tensor(&r->t[TENSOR_DVALUE]);
	fagen_error error = {.struct_size = sizeof error};
	size_t bytes = 0;
	if (called(r, fagen_workspace_size(&bytes, r->kernel, a, &error), &error))
		return -1;
	if (gpu_alloc(&r->workspace, r->rt, r->options->device, bytes, &r->diag))
		return machine(r);
	a->workspace = (void *)(uintptr_t)r->workspace.data;
	a->workspace_size = bytes;
	if (r->ref.keep_256 < 256 &&
	    c->seed % 4 >= 2) { /* the state from device memory; the values must then be ignored */
		const uint64_t state[2] = {r->ref.seed, r->ref.offset};
		if (gpu_alloc(&r->rng, r->rt, r->options->device, sizeof state, &r->diag) ||
		    gpu_upload(&r->rng, 0, state, sizeof state, r->rt, r->options->device, &r->diag))
			return machine(r);
		a->rng_state = (const uint64_t *)(uintptr_t)r->rng.data;
		a->seed = 0xdeadbeef;
		a->offset = 99;
	}
	return 0;
}

static int outputs_poison(struct run *r)
{
	if (r->options->no_poison)
		return 0;
	for (int id = 0; id < TENSOR_COUNT; id++)
		if (r->t[id].used && !is_input(id) && gpu_poison(&r->t[id].device, r->rt, r->options->device, &r->diag))
			return machine(r);
	return gpu_poison(&r->workspace, r->rt, r->options->device, &r->diag) ? machine(r) : 0;
}

static int pass_run(struct run *r, enum pass pass)
{
	fagen_error error = {.struct_size = sizeof error};
	if (r->options->poison_shared && gpu_poison_shared(r->rt, r->options->device, &r->diag))
		return machine(r);
	const int code = pass == PASS_FORWARD ? fagen_forward(r->kernel, &r->args, NULL, &error)
	                                      : fagen_backward(r->kernel, &r->args, NULL, &error);
	if (called(r, code, &error))
		return -1;
	if (gpu_synchronize(r->rt, r->options->device, &r->diag))
		return fail(r, CHECK_WRONG, text_str(&r->diag.text));
	return 0;
}

/* Forward, twice, to the same bits. */
static int forward_run(struct run *r)
{
	unsigned char *first[TENSOR_COUNT] = {NULL};
	static const int results[] = {TENSOR_OUT, TENSOR_LSE};
	int rc = -1;
	for (int turn = 0; turn < 2; turn++) {
		if (outputs_poison(r) || pass_run(r, PASS_FORWARD))
			goto out;
		for (int i = 0; i < 2; i++) {
			const int id = results[i];
			struct tensor *t = &r->t[id];
			if (!t->used)
				continue;
			if (tensor_fetch(r, id))
				goto out;
			if (turn == 0) {
				first[id] = malloc(tensor_bytes(t) + 1);
				if (!first[id])
					abort();
				memcpy(first[id], t->host, tensor_bytes(t));
			} else if (memcmp(first[id], t->host, tensor_bytes(t))) {
				diag_fail(&r->diag, "Two runs of the forward pass gave different bits in %s.",
				          tensor_names[id]);
				fail(r, CHECK_WRONG, text_str(&r->diag.text));
				goto out;
			}
		}
	}
	rc = 0;
out:
	free(first[TENSOR_OUT]);
	free(first[TENSOR_LSE]);
	return rc;
}

static int backward_run(struct run *r)
{
	if (!r->options->no_poison && gpu_poison(&r->workspace, r->rt, r->options->device, &r->diag))
		return machine(r);
	if (pass_run(r, PASS_BACKWARD))
		return -1;
	for (int id = TENSOR_DQUERY; id <= TENSOR_DVALUE; id++)
		if (tensor_fetch(r, id))
			return -1;
	return 0;
}

/* ---- judging ---------------------------------------------------------------------------------------------------------- */

static double largest(const double *x, int64_t n)
{
	double max = 0;
	for (int64_t i = 0; i < n; i++)
		if (isfinite(x[i]) && fabs(x[i]) > max)
			max = fabs(x[i]);
	return max;
}

static double largest_row_sum(const double *x, int64_t rows, int dim)
{
	double max = 0;
	for (int64_t i = 0; i < rows; i++) {
		double sum = 0;
		for (int d = 0; d < dim; d++)
			sum += fabs(x[i * dim + d]);
		if (isfinite(sum) && sum > max)
			max = sum;
	}
	return max;
}

static double *doubles(int64_t count)
{
	double *p = malloc((size_t)(count > 0 ? count : 1) * sizeof *p);
	if (!p)
		abort();
	return p;
}

static struct compare compare_of(const struct run *r, int id, double floor)
{
	const struct ref_case *c = &r->ref;
	return (struct compare){.name = tensor_names[id],
	                        .dim = {c->batch, is_key_side(id) ? c->heads_kv : c->heads_q,
	                                is_key_side(id) ? c->seqlen_k : c->seqlen_q, r->t[id].layout.dim},
	                        .bf16 = c->bf16,
	                        .floor = floor};
}

static int judged(struct run *r, int id, const struct compare_result *result)
{
	struct check_tensor *t = &r->out->tensor[r->out->tensor_count++];
	snprintf(t->name, sizeof t->name, "%s", tensor_names[id]);
	t->worst = result->worst;
	t->bound = result->bound;
	if (result->ok)
		return 0;
	snprintf(r->out->text, sizeof r->out->text, "%s%s", result->text,
	         r->sample.all ? "" : " [of a sample of heads: b counts the sample]");
	r->out->status = CHECK_WRONG;
	return -1;
}

/* float32 rounding that the yardstick has too, but with other signs and orders of addition. */
struct floors {
	double out, lse, dquery, dkey, dvalue;
};

static void floors_make(struct floors *f, const struct ref_case *c, const double *q, const double *k, const double *v,
                        const double *dout, const double *dlse)
{
	const int64_t rows = c->batch * c->heads_q * c->seqlen_q, cols = c->batch * c->heads_kv * c->seqlen_k;
	const double score = fmin(ref_score_max(c, q, k), 8192), eps = ldexp(1 + 4 * score, -22),
		     up = 256.0 / c->keep_256;
	const double many = sqrt((double)(c->seqlen_q > 0 ? c->seqlen_q : 1) *
	                         (double)(c->heads_kv ? c->heads_q / c->heads_kv : 1));
	const double max_v = largest(v, cols * c->head_dim_v);
	*f = (struct floors){.out = eps * max_v * up, .lse = ldexp(4 + score, -19)};
	if (!dout)
		return;
	const double dp = largest_row_sum(dout, rows, c->head_dim_v) * max_v * up + (dlse ? largest(dlse, rows) : 0);
	f->dquery = eps * c->softmax_scale * dp * largest(k, cols * c->head_dim_qk);
	f->dkey = eps * c->softmax_scale * dp * largest(q, rows * c->head_dim_qk) * many;
	f->dvalue = eps * largest(dout, rows * c->head_dim_v) * many * up;
}

static int judge_cpu(struct run *r)
{
	const struct ref_case *c = &r->ref;
	const int64_t rows = c->batch * c->heads_q * c->seqlen_q, cols = c->batch * c->heads_kv * c->seqlen_k;
	double *q = gather(r, TENSOR_QUERY), *k = gather(r, TENSOR_KEY), *v = gather(r, TENSOR_VALUE);
	double *dout = r->backward ? gather(r, TENSOR_DOUT) : NULL,
	       *dlse = r->t[TENSOR_DLSE].used ? gather(r, TENSOR_DLSE) : NULL;
	struct ref_forward want = {doubles(rows * c->head_dim_v), doubles(rows)},
			   plain = {doubles(rows * c->head_dim_v), doubles(rows)};
	struct floors floor;
	struct compare_result result;
	double *got = gather(r, TENSOR_OUT);
	int rc = -1;
	floors_make(&floor, c, q, k, v, dout, dlse);
	ref_attention_forward(&want, c, q, k, v);
	ref_plain_forward(&plain, c, q, k, v);
	struct compare compare = compare_of(r, TENSOR_OUT, floor.out);
	compare_tensor(&result, &compare, got, want.out, plain.out);
	free(got);
	if (judged(r, TENSOR_OUT, &result))
		goto out;
	if (r->has_lse) {
		got = gather(r, TENSOR_LSE);
		compare = compare_of(r, TENSOR_LSE, 0);
		compare_close(&result, &compare, got, want.lse, floor.lse, ldexp(1, -21));
		free(got);
		if (judged(r, TENSOR_LSE, &result))
			goto out;
	}
	rc = 0;
	if (r->backward) {
		struct ref_backward g = {doubles(rows * c->head_dim_qk), doubles(cols * c->head_dim_qk),
		                         doubles(cols * c->head_dim_v)};
		struct ref_backward p = {doubles(rows * c->head_dim_qk), doubles(cols * c->head_dim_qk),
		                         doubles(cols * c->head_dim_v)};
		ref_attention_backward(&g, c, q, k, v, dout, dlse);
		ref_plain_backward(&p, c, q, k, v, dout, dlse);
		const struct {
			int id;
			const double *want, *plain;
			double floor;
		} row[] = {
			{TENSOR_DQUERY, g.dquery, p.dquery, floor.dquery},
			{TENSOR_DKEY, g.dkey, p.dkey, floor.dkey},
			{TENSOR_DVALUE, g.dvalue, p.dvalue, floor.dvalue},
		};
		for (int i = 0; i < 3 && !rc; i++) {
			got = gather(r, row[i].id);
			compare = compare_of(r, row[i].id, row[i].floor);
			compare_tensor(&result, &compare, got, row[i].want, row[i].plain);
			free(got);
			rc = judged(r, row[i].id, &result);
		}
		free(g.dquery), free(g.dkey), free(g.dvalue);
		free(p.dquery), free(p.dkey), free(p.dvalue);
	}
out:
	free(q), free(k), free(v), free(dout), free(dlse);
	free(want.out), free(want.lse), free(plain.out), free(plain.lse);
	return rc;
}

/* The results against those of the naive kernels: coarse, but of every element. */
static int judge_naive(struct run *r)
{
	struct gpu_buffer workspace = {0};
	fagen_args args = r->args;
	fagen_error error = {.struct_size = sizeof error};
	size_t bytes = 0;
	double *got[TENSOR_COUNT] = {NULL};
	int rc = -1;
	r->out->by_naive = true;
	for (int id = 0; id < TENSOR_COUNT; id++)
		if (r->t[id].used && !is_input(id))
			got[id] = gather(r, id);
	if (called(r, fagen_workspace_size(&bytes, r->naive, &args, &error), &error))
		goto out;
	if (gpu_alloc(&workspace, r->rt, r->options->device, bytes, &r->diag)) {
		machine(r);
		goto out;
	}
	args.workspace = (void *)(uintptr_t)workspace.data;
	args.workspace_size = bytes;
	if (called(r, fagen_forward(r->naive, &args, NULL, &error), &error) ||
	    (r->backward && called(r, fagen_backward(r->naive, &args, NULL, &error), &error)))
		goto out;
	if (gpu_synchronize(r->rt, r->options->device, &r->diag)) {
		fail(r, CHECK_WRONG, text_str(&r->diag.text));
		goto out;
	}
	const double ulp = number_ulp(1, r->ref.bf16); /* 2^-7 or 2^-10 */
	for (int id = 0; id < TENSOR_COUNT; id++) {
		struct compare_result result;
		if (!got[id])
			continue;
		if (tensor_fetch(r, id))
			goto out;
		double *want = gather(r, id);
		const struct compare compare = compare_of(r, id, 0);
		const int64_t n = compare.dim[0] * compare.dim[1] * compare.dim[2] * compare.dim[3];
		compare_close(&result, &compare, got[id], want, is_float(id) ? 1e-3 : 2 * ulp * largest(want, n),
		              is_float(id) ? 1e-5 : 2 * ulp);
		free(want);
		if (judged(r, id, &result))
			goto out;
	}
	rc = 0;
out:
	gpu_free(&workspace, r->rt, r->options->device);
	for (int id = 0; id < TENSOR_COUNT; id++)
		free(got[id]);
	return rc;
}

/* ---- the whole case ----------------------------------------------------------------------------------------------------- */

static double pair_work(const struct check_case *c, const struct spec *spec, bool backward)
{
	const double group = c->heads_kv ? (double)c->heads_q / (double)c->heads_kv : 0;
	return group * (double)c->seqlen_q * (double)c->seqlen_k * (spec->head_dim_qk + spec->head_dim_v) *
	       (backward ? 10 : 3);
}

static void sample_make(struct run *r)
{
	const struct check_case *c = r->c;
	struct sample *s = &r->sample;
	const int64_t pairs = c->batch * c->heads_kv;
	const double budget = r->options->cpu_budget > 0 ? r->options->cpu_budget : CPU_BUDGET;
	const double work = pair_work(c, r->spec, r->backward);
	case_reference(&r->ref, c, r->spec);
	s->all = work * (double)pairs <= budget;
	if (s->all)
		return;
	s->pairs = work > budget * CPU_BUDGET_MOST ? 0 : (int64_t)fmax(1, budget / work);
	s->b = malloc((size_t)(s->pairs + 1) * sizeof *s->b);
	s->h_kv = malloc((size_t)(s->pairs + 1) * sizeof *s->h_kv);
	s->first_head = malloc((size_t)(s->pairs + 1) * sizeof *s->first_head);
	if (!s->b || !s->h_kv || !s->first_head)
		abort();
	struct random random;
	random_begin(&random, c->seed, 1000);
	for (int64_t i = 0; i < s->pairs; i++) { /* the last pair always: where offsets are largest */
		const int64_t pair = i == 0 ? pairs - 1 : (int64_t)(random_next(&random) % (uint64_t)pairs);
		s->b[i] = pair / c->heads_kv;
		s->h_kv[i] = pair % c->heads_kv;
		s->first_head[i] = s->b[i] * c->heads_q + s->h_kv[i] * (c->heads_q / c->heads_kv);
	}
	r->ref.batch = s->pairs;
	r->ref.heads_q = c->heads_q / c->heads_kv;
	r->ref.heads_kv = 1;
	r->ref.first_head = s->first_head;
	r->out->sampled = true;
}

/* Makes the comparison cover every head. */
static void sample_widen(struct run *r)
{
	r->sample.all = true;
	case_reference(&r->ref, r->c, r->spec);
}

static int kernels_get(struct run *r, const fagen_spec *spec)
{
	fagen_error error = {.struct_size = sizeof error};
	fagen_problem problem = {.struct_size = sizeof problem, .align = layout_align(r->c->layout)};
	if (r->c->planned) {
		problem.batch = r->c->batch;
		problem.heads_q = r->c->heads_q;
		problem.heads_kv = r->c->heads_kv;
		problem.seqlen_q = r->c->seqlen_q;
		problem.seqlen_k = r->c->seqlen_k;
	}
	const int device = r->options->device;
	if (called(r,
	           (r->options->naive ? fagen_kernel_get_naive : fagen_kernel_get)((fagen_kernel **)&r->kernel, r->rt,
	                                                                           spec, &problem, device, &error),
	           &error))
		return -1;
	if (r->sample.all || r->sample.pairs || r->options->naive)
		return 0;
	return called(r, fagen_kernel_get_naive((fagen_kernel **)&r->naive, r->rt, spec, &problem, device, &error),
	              &error);
}

static int run_all(struct run *r, const fagen_spec *spec)
{
	const struct check_case *c = r->c;
	r->has_lse = (r->spec->outputs & OUTPUT_LSE) != 0;
	r->backward = r->spec->passes[PASS_BACKWARD] && c->input != INPUT_INF;
	r->out->backward = r->backward;
	if (c->heads_kv <= 0 || c->heads_q % c->heads_kv) {
		diag_fail(&r->diag,
		          "%" PRId64 " query heads over %" PRId64
		          " key heads: the first must be a multiple of the second.",
		          c->heads_q, c->heads_kv);
		return fail(r, CHECK_REFUSED, text_str(&r->diag.text));
	}
	sample_make(r);
	if (kernels_get(r, spec))
		return -1;
	for (int id = 0; id < TENSOR_COUNT; id++) {
		if (id == TENSOR_LSE && !r->has_lse)
			continue;
		if (id >= TENSOR_DOUT && !r->backward)
			continue;
		if (id == TENSOR_DLSE && c->seed % 2 == 0)
			continue;
		if (tensor_make(r, id))
			return -1;
	}
	if (args_make(r) || forward_run(r) || (r->backward && backward_run(r)))
		return -1;
	if (r->sample.all || r->sample.pairs) {
		if (judge_cpu(r))
			return -1;
	} else {
		sample_widen(r);
		if (judge_naive(r))
			return -1;
	}
	for (int id = 0; id < TENSOR_COUNT; id++) {
		struct tensor *t = &r->t[id];
		if (!t->used)
			continue;
		if (!is_input(id)) {
			if (tensor_fetch(r, id) || (!r->options->no_poison && gaps_check(r, id)))
				return -1;
			continue;
		}
		unsigned char *before = t->host;
		t->host = malloc(tensor_bytes(t) + 1);
		if (!t->host)
			abort();
		const int fetched = tensor_fetch(r, id), changed = !fetched && memcmp(before, t->host, tensor_bytes(t));
		free(before);
		if (fetched)
			return -1;
		if (changed) {
			diag_fail(&r->diag, "%s is an input, and a kernel changed it.", tensor_names[id]);
			return fail(r, CHECK_WRONG, text_str(&r->diag.text));
		}
	}
	if (gpu_guards(&r->workspace, "workspace", r->rt, r->options->device, &r->diag))
		return fail(r, CHECK_WRONG, text_str(&r->diag.text));
	return 0;
}

void check_run(struct check_outcome *out, const struct check_case *c, fagen_runtime *rt, const fagen_spec *spec,
               const struct check_options *options)
{
	struct run r = {.c = c, .options = options, .spec = runtime_spec(spec), .rt = rt, .out = out};
	memset(out, 0, sizeof *out);
	run_all(&r, spec);
	for (int id = 0; id < TENSOR_COUNT; id++) {
		gpu_free(&r.t[id].device, rt, options->device);
		free(r.t[id].host);
	}
	gpu_free(&r.workspace, rt, options->device);
	gpu_free(&r.rng, rt, options->device);
	free(r.sample.b);
	free(r.sample.h_kv);
	free(r.sample.first_head);
	diag_free(&r.diag);
}
