/* bench_data: inputs and outputs on the GPU, and the arguments of launches. */
#include "cli/bench.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/named.h"

#include "cli/cli.h"

enum { BLOCK = 1 << 20 };

int spec_open(fagen_spec **spec, struct bench *b, const char *path, struct program *program, struct diag *diag,
              int *status)
{
	fagen_error error = {.struct_size = sizeof error};
	struct problem *p = &b->problem;
	*status = EXIT_REQUEST;
	if (fagen_spec_load(spec, b->rt, path, &error) != FAGEN_OK)
		return error_give(diag, &error, status);
	b->spec = runtime_spec(*spec);
	b->program = program;
	problem_flags_apply(p, &b->options->problem, b->spec);
	p->align = 16;
	if (program_lower(program, b->spec, diag) || problem_check(p, b->spec->kv_group, diag))
		return -1;
	if (!p->batch || !p->seqlen_q || !p->seqlen_k)
		return diag_fail(diag, "There is nothing to time: batch and lengths must be at least 1.");
	return 0;
}

fagen_problem problem_wish(const struct problem *p)
{
	return (fagen_problem){.struct_size = sizeof(fagen_problem),
	                       .align = p->align,
	                       .batch = p->batch,
	                       .heads_q = p->heads_q,
	                       .heads_kv = p->heads_kv,
	                       .seqlen_q = p->seqlen_q,
	                       .seqlen_k = p->seqlen_k};
}

static int64_t tensor_elements(const struct bench *b, enum tensor t)
{
	const struct problem *p = &b->problem;
	const int64_t q = p->batch * p->heads_q * p->seqlen_q, k = p->batch * p->heads_kv * p->seqlen_k;
	switch (t) {
	case QUERY:
	case DQUERY: return q * b->spec->head_dim_qk;
	case KEY:
	case DKEY: return k * b->spec->head_dim_qk;
	case VALUE:
	case DVALUE: return k * b->spec->head_dim_v;
	case OUT:
	case DOUT: return q * b->spec->head_dim_v;
	default: return q;
	}
}

static int64_t tensor_bytes(const struct bench *b, enum tensor t) { return tensor_elements(b, t) * (t == LSE ? 4 : 2); }

/* Random bits of values in [-2, 2] of both 16-bit types: sign, a few exponents near 1, mantissa. */
static void random_fill(uint16_t *block, enum dtype dtype)
{
	uint64_t x = UINT64_C(0x9E3779B97F4A7C15);
	const int mantissa = dtype == DTYPE_BF16 ? 7 : 10, bias = dtype == DTYPE_BF16 ? 127 : 15;
	for (int i = 0; i < BLOCK; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		const unsigned exponent = (unsigned)bias - (x >> 32 & 3);
		block[i] = (uint16_t)((x >> 40 & 1) << 15 | exponent << mantissa | (x >> 48 & ((1u << mantissa) - 1)));
	}
}

static int tensor_fill(const struct bench *b, const struct gpu_buffer *buffer, const void *block, int64_t bytes,
                       struct diag *diag)
{
	for (int64_t at = 0; at < bytes; at += 2 * BLOCK) {
		const int64_t n = bytes - at < 2 * BLOCK ? bytes - at : 2 * BLOCK;
		if (gpu_upload(buffer, (size_t)at, block, (size_t)n, b->rt, b->options->device, diag))
			return -1;
	}
	return 0;
}

/* What the mask and the score read: dense, made up as for a check. */
static int inputs_make(struct bench *b, struct diag *diag)
{
	const struct problem *p = &b->problem;
	const struct check_case shape = {.batch = p->batch,
	                                 .heads_q = p->heads_q,
	                                 .heads_kv = p->heads_kv,
	                                 .seqlen_q = p->seqlen_q,
	                                 .seqlen_k = p->seqlen_k,
	                                 .seed = 2,
	                                 .whole = true};
	struct named named[SPEC_INPUTS_MAX];
	struct data *d = &b->data;
	int rc = named_make(named, &shape, b->spec) ? diag_fail(diag, "Out of memory for the inputs of the spec.") : 0;
	for (int i = 0; i < b->spec->input_count && !rc; i++) {
		const struct named *n = &named[i];
		const size_t bytes = (size_t)(n->at.elements * n->bytes), grad_bytes = (size_t)n->grad_at.elements * 4;
		if (gpu_alloc(&d->input[i], b->rt, b->options->device, bytes, diag) ||
		    gpu_upload(&d->input[i], 0, n->image, bytes, b->rt, b->options->device, diag) ||
		    (n->input->grad && gpu_alloc(&d->grad[i], b->rt, b->options->device, grad_bytes, diag)))
			rc = -1;
		d->inputs[i] = (fagen_input){.name = n->input->name,
		                             .data = (void *)(uintptr_t)d->input[i].data,
		                             .grad = (void *)(uintptr_t)d->grad[i].data};
		memcpy(d->inputs[i].stride, n->at.stride, sizeof n->at.stride);
		memcpy(d->inputs[i].grad_stride, n->grad_at.stride, sizeof n->grad_at.stride);
	}
	named_free(named);
	return rc;
}

/* Packed: where sequences of equal lengths begin. */
static int sequences_make(struct bench *b, struct diag *diag)
{
	const struct problem *p = &b->problem;
	const size_t bytes = (size_t)(p->batch + 1) * sizeof(int32_t);
	int rc = 0;
	if (b->spec->layout != LAYOUT_PACKED)
		return 0;
	if (p->batch * p->seqlen_q > LENGTH_MAX || p->batch * p->seqlen_k > LENGTH_MAX)
		return diag_fail(diag, "A packed batch has at most %d rows: take a smaller --batch or --seq.",
		                 LENGTH_MAX);
	int32_t *first = malloc(bytes);
	if (!first)
		return diag_fail(diag, "Out of memory.");
	for (int keys = 0; keys < 2 && !rc; keys++) {
		for (int64_t i = 0; i <= p->batch; i++)
			first[i] = (int32_t)(i * (keys ? p->seqlen_k : p->seqlen_q));
		rc = gpu_alloc(&b->data.first[keys], b->rt, b->options->device, bytes, diag) ||
		     gpu_upload(&b->data.first[keys], 0, first, bytes, b->rt, b->options->device, diag);
	}
	free(first);
	return rc ? -1 : 0;
}

int data_make(struct bench *b, struct diag *diag)
{
	struct data *d = &b->data;
	int64_t set = 0;
	size_t memory;
	for (int t = 0; t < TENSORS; t++)
		set += tensor_bytes(b, t);
	if (gpu_memory_free(&memory, b->rt, b->options->device, diag))
		return -1;
	const int64_t rotate = 3 * (int64_t)b->gpu.l2_bytes, room = (int64_t)memory / 2;
	int64_t sets = set > 0 ? rotate / set + 1 : 1;
	sets = sets > SETS_MAX ? SETS_MAX : sets;
	sets = sets * set > room ? room / set : sets;
	if (sets < 1)
		return diag_fail(diag,
		                 "The problem's tensors take %" PRId64 " bytes; of the GPU's free memory %" PRId64
		                 " may be used. "
		                 "Take a smaller --batch or --seq.",
		                 set, room);
	uint16_t *random = malloc(2 * BLOCK);
	float *lse = malloc(2 * BLOCK);
	int rc = -1;
	if (!random || !lse) {
		diag_fail(diag, "Out of memory.");
		goto out;
	}
	random_fill(random, b->spec->dtype);
	const float flat = logf((float)(b->problem.seqlen_k > 1 ? b->problem.seqlen_k : 1));
	for (int i = 0; i < 2 * BLOCK / 4; i++) /* until forward writes it: that of equal scores */
		lse[i] = flat;
	d->sets = (int)sets;
	for (int s = 0; s < d->sets; s++)
		for (int t = 0; t < TENSORS; t++)
			if (gpu_alloc(&d->tensor[s][t], b->rt, b->options->device, (size_t)tensor_bytes(b, t), diag) ||
			    tensor_fill(b, &d->tensor[s][t], t == LSE ? (void *)lse : (void *)random,
			                tensor_bytes(b, t), diag))
				goto out;
	rc = inputs_make(b, diag) || sequences_make(b, diag) ? -1 : 0;
out:
	free(random);
	free(lse);
	return rc;
}

void data_free(struct bench *b)
{
	for (int s = 0; s < SETS_MAX; s++)
		for (int t = 0; t < TENSORS; t++)
			gpu_free(&b->data.tensor[s][t], b->rt, b->options->device);
	for (int i = 0; i < SPEC_INPUTS_MAX; i++) {
		gpu_free(&b->data.input[i], b->rt, b->options->device);
		gpu_free(&b->data.grad[i], b->rt, b->options->device);
	}
	gpu_free(&b->data.workspace, b->rt, b->options->device);
	for (int keys = 0; keys < 2; keys++)
		gpu_free(&b->data.first[keys], b->rt, b->options->device);
	b->data.sets = 0;
}

static fagen_tensor tensor_dense(const struct bench *b, int set, enum tensor t)
{
	const struct problem *p = &b->problem;
	const bool keys = t == KEY || t == VALUE || t == DKEY || t == DVALUE;
	const bool v = t == VALUE || t == DVALUE || t == OUT || t == DOUT;
	const int64_t row = t == LSE ? 1 : v ? b->spec->head_dim_v : b->spec->head_dim_qk;
	const int64_t rows = (keys ? p->seqlen_k : p->seqlen_q) * (b->spec->layout == LAYOUT_PACKED ? p->batch : 1);
	const int64_t head = row * rows;
	return (fagen_tensor){(void *)(uintptr_t)b->data.tensor[set][t].data, head * (keys ? p->heads_kv : p->heads_q),
	                      head, row};
}

fagen_args args_make(const struct bench *b, int set, enum pass pass)
{
	const struct problem *p = &b->problem;
	fagen_args a = {.struct_size = sizeof a,
	                .batch = p->batch,
	                .heads_q = p->heads_q,
	                .heads_kv = p->heads_kv,
	                .seqlen_q = p->seqlen_q,
	                .seqlen_k = p->seqlen_k,
	                .seed = 1,
	                .inputs = b->data.inputs,
	                .input_count = (size_t)b->spec->input_count};
	fagen_tensor *to[TENSORS] = {&a.query, &a.key,    &a.value, &a.out,   &a.lse,
	                             &a.dout,  &a.dquery, &a.dkey,  &a.dvalue};
	for (int t = 0; t < TENSORS; t++)
		if (t <= OUT || pass == PASS_BACKWARD || (t == LSE && (b->spec->outputs & OUTPUT_LSE)))
			*to[t] = tensor_dense(b, set, t);
	if (b->spec->layout == LAYOUT_PACKED) {
		a.cu_seqlens_q = (const int32_t *)(uintptr_t)b->data.first[0].data;
		a.cu_seqlens_k = (const int32_t *)(uintptr_t)b->data.first[1].data;
		a.total_q = p->batch * p->seqlen_q;
		a.total_k = p->batch * p->seqlen_k;
	}
	a.workspace = (void *)(uintptr_t)b->data.workspace.data;
	a.workspace_size = b->data.workspace.bytes;
	return a;
}

int workspace_make(struct bench *b, const fagen_kernel *kernel, struct diag *diag, int *status)
{
	fagen_error error = {.struct_size = sizeof error};
	fagen_args args = args_make(b, 0, PASS_FORWARD);
	size_t bytes = 0;
	*status = EXIT_MACHINE;
	if (fagen_workspace_size(&bytes, kernel, &args, &error) != FAGEN_OK)
		return error_give(diag, &error, status);
	if (bytes <= b->data.workspace.bytes)
		return 0;
	gpu_free(&b->data.workspace, b->rt, b->options->device);
	return gpu_alloc(&b->data.workspace, b->rt, b->options->device, bytes, diag);
}
