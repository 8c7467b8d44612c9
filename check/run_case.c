#include "check/trial.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CPU_BUDGET 4e9
#define CPU_BUDGET_MOST 20 /* of one head pair, times the budget */
#define CPU_CELL 64        /* what mask and score of a cell cost, in multiply-adds */

int trial_fail(struct trial *r, enum check_status status, const char *text)
{
	r->out->status = status;
	snprintf(r->out->text, sizeof r->out->text, "%s", text);
	return -1;
}

int trial_machine(struct trial *r) { return trial_fail(r, CHECK_MACHINE, text_str(&r->diag.text)); }

int trial_called(struct trial *r, int code, const fagen_error *error)
{
	if (code == FAGEN_OK)
		return 0;
	if (code == FAGEN_ERROR_SPEC || code == FAGEN_ERROR_INVALID)
		return trial_fail(r, CHECK_REFUSED, error->message);
	/* 700 to 719: a kernel of this process faulted. */
	return trial_fail(r, error->cuda_result >= 700 && error->cuda_result < 720 ? CHECK_WRONG : CHECK_MACHINE,
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

void case_reference(struct ref_case *ref, const struct check_case *c, const struct spec *spec,
                    const struct ref_program *program)
{
	*ref = (struct ref_case){.batch = c->batch,
	                         .heads_q = c->heads_q,
	                         .heads_kv = c->heads_kv,
	                         .seqlen_q = c->seqlen_q,
	                         .seqlen_k = c->seqlen_k,
	                         .head_dim_qk = spec->head_dim_qk,
	                         .head_dim_v = spec->head_dim_v,
	                         .softmax_scale = spec->softmax_scale,
	                         .program = program,
	                         .keep_256 = spec->keep_256,
	                         .seed = c->seed * 0x9E3779B97F4A7C15u,
	                         .offset = c->seed + 17,
	                         .bf16 = spec->dtype == DTYPE_BF16};
}

/* ---- tensors on both sides ----------------------------------------------------------------------------------------- */

bool tensor_is_input(int t)
{
	return t == TENSOR_QUERY || t == TENSOR_KEY || t == TENSOR_VALUE || t == TENSOR_DOUT || t == TENSOR_DLSE;
}
bool tensor_is_float(int t) { return t == TENSOR_LSE || t == TENSOR_DLSE; }
bool tensor_is_key_side(int t)
{
	return t == TENSOR_KEY || t == TENSOR_VALUE || t == TENSOR_DKEY || t == TENSOR_DVALUE;
}

static int tensor_dim(const struct spec *spec, int t)
{
	if (tensor_is_float(t))
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
	struct trial *r;
	int id;
};

static void fill_head(void *context, int64_t item)
{
	const struct fill_job *j = context;
	struct trial *r = j->r;
	struct tensor *t = &r->t[j->id];
	const struct layout *l = &t->layout;
	static const enum input_role roles[TENSOR_COUNT] = {[TENSOR_QUERY] = ROLE_QUERY,
	                                                    [TENSOR_KEY] = ROLE_KEY,
	                                                    [TENSOR_VALUE] = ROLE_VALUE,
	                                                    [TENSOR_DOUT] = ROLE_DOUT,
	                                                    [TENSOR_DLSE] = ROLE_DLSE};
	const int64_t b = item / l->heads, h = item % l->heads;
	const int axis = tensor_is_key_side(j->id);
	const struct lengths *lengths = &r->lengths;
	if (b > 0 && l->stride_batch == 0)
		return;
	const bool shared = l->batch > 1 && l->stride_batch == 0;
	double *values = malloc((size_t)(l->seq > 0 ? l->seq : 1) * (size_t)l->dim * sizeof *values);
	if (!values)
		abort();
	input_fill(values, l->seq, l->dim, r->c->input, roles[j->id], r->spec->softmax_scale, r->ref.bf16, r->c->seed,
	           (uint64_t)item);
	for (int64_t e = lengths->packed ? 0 : b; e < (lengths->packed ? r->c->batch : b + 1);
	     e++) { /* poison elsewhere */
		const int64_t first = lengths->packed ? lengths->first[axis][e] : 0;
		const int64_t used = lengths->used[axis] && !shared ? lengths->used[axis][e] : l->seq;
		for (int64_t s = first; s < first + used; s++)
			for (int d = 0; d < l->dim; d++)
				element_put(t, layout_index(l, b, h, s) + d, values[s * l->dim + d], r->ref.bf16);
	}
	free(values);
}

/* Rows of an entry in a tensor. */
static int64_t entry_rows(const struct trial *r, int id, int64_t b)
{
	const int axis = tensor_is_key_side(id);
	return r->lengths.packed ? r->lengths.first[axis][b + 1] - r->lengths.first[axis][b] : r->t[id].layout.seq;
}
static int64_t entry_index(const struct trial *r, int id, int64_t b, int64_t h, int64_t s)
{
	const struct layout *l = &r->t[id].layout;
	return r->lengths.packed ? layout_index(l, 0, h, r->lengths.first[tensor_is_key_side(id)][b] + s)
	                         : layout_index(l, b, h, s);
}

static int tensor_make(struct trial *r, int id)
{
	struct tensor *t = &r->t[id];
	const struct check_case *c = r->c;
	t->used = true;
	const int axis = tensor_is_key_side(id);
	t->layout = (struct layout){.batch = r->lengths.packed ? c->batch > 0 : c->batch,
	                            .heads = tensor_is_key_side(id) ? c->heads_kv : c->heads_q,
	                            .seq = r->lengths.packed ? r->lengths.total[axis]
	                                   : axis            ? c->seqlen_k
	                                                     : c->seqlen_q,
	                            .dim = tensor_dim(r->spec, id),
	                            .bytes = tensor_is_float(id) ? 4 : 2};
	layout_make(&t->layout, c->layout, (enum tensor_id)id);
	if (c->shifted)
		layout_shift(&t->layout);
	const size_t bytes = tensor_bytes(t);
	t->host = malloc(bytes ? bytes : 1);
	if (!t->host) {
		diag_fail(&r->diag, "Out of host memory: tensor %s has %zu bytes.", tensor_names[id], bytes);
		return trial_machine(r);
	}
	memset(t->host, GPU_POISON, bytes);
	if (gpu_alloc(&t->device, r->rt, r->options->device, bytes, &r->diag))
		return trial_machine(r);
	if (!tensor_is_input(id))
		return 0;
	struct fill_job j = {r, id};
	parallel_for(t->layout.batch * t->layout.heads, fill_head, &j);
	return gpu_upload(&t->device, 0, t->host, bytes, r->rt, r->options->device, &r->diag) ? trial_machine(r) : 0;
}

int tensor_fetch(struct trial *r, int id)
{
	struct tensor *t = &r->t[id];
	if (gpu_download(t->host, &t->device, 0, tensor_bytes(t), r->rt, r->options->device, &r->diag))
		return trial_machine(r);
	return 0;
}

double *tensor_gather(const struct trial *r, int id)
{
	const struct tensor *t = &r->t[id];
	const struct layout *l = &t->layout;
	const int axis = tensor_is_key_side(id);
	const int64_t heads = axis ? r->ref.heads_kv : r->ref.heads_q, rows = axis ? r->c->seqlen_k : r->c->seqlen_q;
	double *to = malloc((size_t)(r->ref.batch * heads * rows * l->dim + 1) * sizeof *to), *at = to;
	if (!to)
		abort();
	for (int64_t b = 0; b < r->ref.batch; b++)
		for (int64_t h = 0; h < heads; h++)
			for (int64_t s = 0; s < rows; s++) {
				const int64_t from_b = r->sample.all ? b : r->sample.b[b];
				const int64_t from_h = r->sample.all ? h : r->sample.h_kv[b] * heads + h;
				const int64_t *used = tensor_is_input(id) ? r->lengths.used[axis] : NULL;
				const bool there = s < (used ? used[from_b] : entry_rows(r, id, from_b));
				const int64_t index = there ? entry_index(r, id, from_b, from_h, s) : 0;
				for (int d = 0; d < l->dim; d++) /* rows that are not there are as they should be */
					*at++ = there              ? element_get(t, index + d, r->ref.bf16)
					        : id == TENSOR_LSE ? -INFINITY
					                           : 0;
			}
	return to;
}

/* Nothing but the tensor's elements may have been written: gaps of the layout are still poison. Destroys the image. */
static int gaps_check(struct trial *r, int id)
{
	struct tensor *t = &r->t[id];
	const struct layout *l = &t->layout;
	for (int64_t b = 0; b < r->c->batch; b++)
		for (int64_t h = 0; h < l->heads; h++)
			for (int64_t s = 0; s < entry_rows(r, id, b); s++)
				memset(t->host + entry_index(r, id, b, h, s) * l->bytes, GPU_POISON,
				       (size_t)(l->dim * l->bytes));
	const size_t bytes = tensor_bytes(t);
	for (size_t i = 0; i < bytes; i++)
		if (t->host[i] != GPU_POISON) {
			diag_fail(&r->diag,
			          "%s: byte %zu of the buffer lies between the tensor's rows and was written.",
			          tensor_names[id], i);
			return trial_fail(r, CHECK_WRONG, text_str(&r->diag.text));
		}
	return gpu_guards(&t->device, tensor_names[id], r->rt, r->options->device, &r->diag)
	               ? trial_fail(r, CHECK_WRONG, text_str(&r->diag.text))
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

static int lengths_upload(struct trial *r)
{
	const struct lengths *l = &r->lengths;
	const int64_t *const from[4] = {l->used[0], l->first[0], l->used[1], l->first[1]};
	const bool wanted[4] = {l->given[0], l->packed, l->given[1], l->packed};
	const int32_t **const to[4] = {&r->args.seqlens_q, &r->args.cu_seqlens_q, &r->args.seqlens_k,
	                               &r->args.cu_seqlens_k};
	for (int i = 0; i < 4; i++) {
		const int64_t count = r->c->batch + i % 2;
		const size_t bytes = (size_t)count * sizeof(int32_t);
		if (!wanted[i] || !count)
			continue;
		int32_t *narrow = malloc(bytes);
		if (!narrow)
			abort();
		for (int64_t b = 0; b < count; b++)
			narrow[b] = (int32_t)from[i][b];
		const int failed =
			gpu_alloc(&r->lengths_device[i], r->rt, r->options->device, bytes, &r->diag) ||
			gpu_upload(&r->lengths_device[i], 0, narrow, bytes, r->rt, r->options->device, &r->diag);
		free(narrow);
		if (failed)
			return trial_machine(r);
		*to[i] = (const int32_t *)(uintptr_t)r->lengths_device[i].data;
	}
	r->args.total_q = l->total[0];
	r->args.total_k = l->total[1];
	return 0;
}

static int args_make(struct trial *r)
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
	                  .offset = r->ref.offset,
	                  .inputs = r->inputs,
	                  .input_count = (size_t)r->spec->input_count};
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
	if (lengths_upload(r))
		return -1;
	if (trial_called(r, fagen_workspace_size(&bytes, r->kernel, a, &error), &error))
		return -1;
	if (gpu_alloc(&r->workspace, r->rt, r->options->device, bytes, &r->diag))
		return trial_machine(r);
	a->workspace = (void *)(uintptr_t)r->workspace.data;
	a->workspace_size = bytes;
	if (r->ref.keep_256 < 256 &&
	    c->seed % 4 >= 2) { /* the state from device memory; the values must then be ignored */
		const uint64_t state[2] = {r->ref.seed, r->ref.offset};
		if (gpu_alloc(&r->rng, r->rt, r->options->device, sizeof state, &r->diag) ||
		    gpu_upload(&r->rng, 0, state, sizeof state, r->rt, r->options->device, &r->diag))
			return trial_machine(r);
		a->rng_state = (const uint64_t *)(uintptr_t)r->rng.data;
		a->seed = 0xdeadbeef;
		a->offset = 99;
	}
	return 0;
}

static int outputs_poison(struct trial *r)
{
	if (r->options->no_poison)
		return 0;
	for (int id = 0; id < TENSOR_COUNT; id++)
		if (r->t[id].used && !tensor_is_input(id) &&
		    gpu_poison(&r->t[id].device, r->rt, r->options->device, &r->diag))
			return trial_machine(r);
	return gpu_poison(&r->workspace, r->rt, r->options->device, &r->diag) ? trial_machine(r) : 0;
}

static int pass_run(struct trial *r, enum pass pass)
{
	fagen_error error = {.struct_size = sizeof error};
	if (r->options->poison_shared && gpu_poison_shared(r->rt, r->options->device, &r->diag))
		return trial_machine(r);
	const int code = pass == PASS_FORWARD ? fagen_forward(r->kernel, &r->args, NULL, &error)
	                                      : fagen_backward(r->kernel, &r->args, NULL, &error);
	if (trial_called(r, code, &error))
		return -1;
	if (gpu_synchronize(r->rt, r->options->device, &r->diag))
		return trial_fail(r, CHECK_WRONG, text_str(&r->diag.text));
	return 0;
}

/* Forward, twice, to the same bits. */
static int forward_run(struct trial *r)
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
				trial_fail(r, CHECK_WRONG, text_str(&r->diag.text));
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

/* Fetches a gradient; again: what was fetched before must be the same bits. */
static int gradient_fetch(struct trial *r, int id, bool again)
{
	struct tensor *t = &r->t[id];
	unsigned char *const before = t->host;
	if (!again)
		return tensor_fetch(r, id);
	t->host = malloc(tensor_bytes(t) + 1);
	if (!t->host)
		abort();
	int rc = tensor_fetch(r, id);
	if (!rc && memcmp(before, t->host, tensor_bytes(t))) {
		diag_fail(&r->diag,
		          "Two runs of the backward pass gave different bits in %s; the spec says deterministic.",
		          tensor_names[id]);
		rc = trial_fail(r, CHECK_WRONG, text_str(&r->diag.text));
	}
	free(before);
	return rc;
}

/* Backward. Twice where inputs have gradients or the spec says so; gradients of inputs must then be the same bits, and if
 * the spec says deterministic all others too. */
static int backward_run(struct trial *r)
{
	const bool all = r->spec->deterministic;
	const int turns = all || r->grads ? 2 : 1;
	for (int turn = 0; turn < turns; turn++) {
		if (turn > 0 && all && !r->options->no_poison)
			for (int id = TENSOR_DQUERY; id <= TENSOR_DVALUE; id++)
				if (gpu_poison(&r->t[id].device, r->rt, r->options->device, &r->diag))
					return trial_machine(r);
		if (!r->options->no_poison && gpu_poison(&r->workspace, r->rt, r->options->device, &r->diag))
			return trial_machine(r);
		if (grads_poison(r) || pass_run(r, PASS_BACKWARD) || grads_fetch(r, turn > 0))
			return -1;
		for (int id = TENSOR_DQUERY; id <= TENSOR_DVALUE && (all || turn == turns - 1); id++)
			if (gradient_fetch(r, id, all && turn > 0))
				return -1;
	}
	return 0;
}

/* ---- the whole case ----------------------------------------------------------------------------------------------------- */

static double pair_work(const struct check_case *c, const struct spec *spec, bool backward)
{
	const double group = c->heads_kv ? (double)c->heads_q / (double)c->heads_kv : 0;
	return group * (double)c->seqlen_q * (double)c->seqlen_k * (spec->head_dim_qk + spec->head_dim_v + CPU_CELL) *
	       (backward ? 10 : 3);
}

static void reference_make(struct trial *r)
{
	case_reference(&r->ref, r->c, r->spec, r->program);
	r->ref.input = r->ref_input;
	r->ref.inputs = r->spec->input_count;
	r->ref.used_q = r->lengths.used[0];
	r->ref.used_k = r->lengths.used[1];
	r->ref.first_q = r->lengths.first[0];
	r->ref.first_k = r->lengths.first[1];
}

static void sample_make(struct trial *r)
{
	const struct check_case *c = r->c;
	struct sample *s = &r->sample;
	const int64_t pairs = c->batch * c->heads_kv;
	const double budget = r->options->cpu_budget > 0 ? r->options->cpu_budget : CPU_BUDGET;
	const double work = pair_work(c, r->spec, r->backward);
	reference_make(r);
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
	r->ref.all_heads_q = c->heads_q;
	r->ref.all_heads_kv = c->heads_kv;
	r->out->sampled = true;
}

/* Makes the comparison cover every head. */
static void sample_widen(struct trial *r)
{
	r->sample.all = true;
	reference_make(r);
}

static int kernels_get(struct trial *r, const fagen_spec *spec)
{
	fagen_error error = {.struct_size = sizeof error};
	fagen_problem problem = {.struct_size = sizeof problem, .align = case_align(r->c)};
	if (r->c->planned) {
		problem.batch = r->c->batch;
		problem.heads_q = r->c->heads_q;
		problem.heads_kv = r->c->heads_kv;
		problem.seqlen_q = r->c->seqlen_q;
		problem.seqlen_k = r->c->seqlen_k;
	}
	const int device = r->options->device;
	if (trial_called(r,
	                 (r->options->naive ? fagen_kernel_get_naive : fagen_kernel_get)(
				 (fagen_kernel **)&r->kernel, r->rt, spec, &problem, device, &error),
	                 &error))
		return -1;
	if (r->sample.all || r->sample.pairs || r->options->naive)
		return 0;
	return trial_called(
		r, fagen_kernel_get_naive((fagen_kernel **)&r->naive, r->rt, spec, &problem, device, &error), &error);
}

static int tensors_make(struct trial *r)
{
	for (int id = 0; id < TENSOR_COUNT; id++) {
		const bool unused = (id == TENSOR_LSE && !r->has_lse) || (id >= TENSOR_DOUT && !r->backward) ||
		                    (id == TENSOR_DLSE && r->c->seed % 2 == 0);
		if (!unused && tensor_make(r, id))
			return -1;
	}
	return 0;
}

/* Inputs are as they were. */
static int input_unchanged(struct trial *r, int id)
{
	struct tensor *t = &r->t[id];
	unsigned char *before = t->host;
	t->host = malloc(tensor_bytes(t) + 1);
	if (!t->host)
		abort();
	const int fetched = tensor_fetch(r, id), changed = !fetched && memcmp(before, t->host, tensor_bytes(t));
	free(before);
	if (!changed)
		return fetched;
	diag_fail(&r->diag, "%s is an input, and a kernel changed it.", tensor_names[id]);
	return trial_fail(r, CHECK_WRONG, text_str(&r->diag.text));
}

static int tensors_check(struct trial *r)
{
	for (int id = 0; id < TENSOR_COUNT; id++) {
		if (!r->t[id].used)
			continue;
		if (tensor_is_input(id) ? input_unchanged(r, id)
		                        : tensor_fetch(r, id) || (!r->options->no_poison && gaps_check(r, id)))
			return -1;
	}
	return 0;
}

static int run_all(struct trial *r, const fagen_spec *spec)
{
	const struct check_case *c = r->c;
	r->has_lse = (r->spec->outputs & OUTPUT_LSE) != 0;
	r->backward = r->spec->passes[PASS_BACKWARD] && !input_forward_only(c->input);
	r->out->backward = r->backward;
	if (c->heads_kv <= 0 || c->heads_q % c->heads_kv) {
		diag_fail(&r->diag,
		          "%" PRId64 " query heads over %" PRId64
		          " key heads: the first must be a multiple of the second.",
		          c->heads_q, c->heads_kv);
		return trial_fail(r, CHECK_REFUSED, text_str(&r->diag.text));
	}
	if (lengths_make(&r->lengths, c, r->spec->layout)) {
		diag_fail(&r->diag, "Out of host memory for the lengths of %" PRId64 " entries.", c->batch);
		return trial_machine(r);
	}
	if (ref_program_make(&r->program, r->spec, &r->diag))
		return trial_fail(r, CHECK_WRONG, text_str(&r->diag.text));
	sample_make(r);
	if (kernels_get(r, spec) || inputs_make(r) || tensors_make(r) || args_make(r) || forward_run(r) ||
	    (r->backward && backward_run(r)))
		return -1;
	if (r->options->take) {
		if (r->options->take(r, r->options->take_context))
			return -1;
	} else if (r->sample.all || r->sample.pairs) {
		if (judge_cpu(r))
			return -1;
	} else {
		sample_widen(r);
		if (judge_naive(r))
			return -1;
	}
	if (tensors_check(r) || inputs_check(r))
		return -1;
	if (gpu_guards(&r->workspace, "workspace", r->rt, r->options->device, &r->diag))
		return trial_fail(r, CHECK_WRONG, text_str(&r->diag.text));
	return 0;
}

void check_run(struct check_outcome *out, const struct check_case *c, fagen_runtime *rt, const fagen_spec *spec,
               const struct check_options *options)
{
	struct trial r = {.c = c, .options = options, .spec = runtime_spec(spec), .rt = rt, .out = out};
	memset(out, 0, sizeof *out);
	run_all(&r, spec);
	out->kernel = (fagen_kernel *)(uintptr_t)r.kernel;
	for (int id = 0; id < TENSOR_COUNT; id++) {
		gpu_free(&r.t[id].device, rt, options->device);
		free(r.t[id].host);
	}
	inputs_free(&r);
	ref_program_free(r.program);
	gpu_free(&r.workspace, rt, options->device);
	gpu_free(&r.rng, rt, options->device);
	for (int i = 0; i < 4; i++)
		gpu_free(&r.lengths_device[i], rt, options->device);
	lengths_free(&r.lengths);
	free(r.sample.b);
	free(r.sample.h_kv);
	free(r.sample.first_head);
	diag_free(&r.diag);
}
