/* inputs: the tensors that masks and scores read, matched by name and checked for one launch. */
#include <stdio.h>
#include <string.h>

#include "runtime/kernel.h"

static const int dtype_bytes[INPUT_DTYPE_COUNT] = {
	[INPUT_F32] = 4, [INPUT_FP16] = 2, [INPUT_BF16] = 2, [INPUT_I32] = 4, [INPUT_U8] = 1};

struct named { /* one input of a launch */
	const struct input *input;
	const fagen_input *given;
	int64_t size[INPUT_DIMS_MAX];
	bool empty, naive;
};

static int member_fail(struct fault *f, const struct named *n, const char *member, const char *why)
{
	char field[80];
	snprintf(field, sizeof field, "inputs.%s.%s", n->input->name, member);
	return fault_fail(f, FAGEN_ERROR_INVALID, field, "%s %s", field, why);
}

static int64_t dim_size(const struct input *input, int d, const struct signature *signature, const fagen_args *a)
{
	const struct input_dim *dim = &input->dim[d];
	const bool packed = signature->layout == LAYOUT_PACKED;
	switch (dim->kind) {
	case DIM_BATCH: return dim_is_joined(signature->layout, input, d) && a->batch ? 1 : a->batch;
	case DIM_HEADS: return a->heads_q;
	case DIM_HEADS_KV: return a->heads_kv;
	case DIM_SEQ_Q: return packed ? a->total_q : a->seqlen_q;
	case DIM_SEQ_K: return packed ? a->total_k : a->seqlen_k;
	case DIM_BLOCKS_Q: return (a->seqlen_q + signature->block_q - 1) / signature->block_q;
	case DIM_BLOCKS_K: return (a->seqlen_k + signature->block_k - 1) / signature->block_k;
	default: return dim->size;
	}
}

/* Copies the strides of dimensions that have more than one entry; the bytes reached from entry 0 stay below 2^63. */
static int strides_take(long long out[INPUT_DIMS_MAX], const struct named *n, const char *member, const int64_t *stride,
                        int bytes, struct fault *f)
{
	int64_t reach = 0;
	for (int d = 0; d < n->input->dims; d++) {
		int64_t span;
		if (n->size[d] <= 1)
			continue;
		if (stride[d] < -(INT64_MAX / 16) || stride[d] > INT64_MAX / 16 ||
		    __builtin_mul_overflow((stride[d] < 0 ? -stride[d] : stride[d]) * bytes, n->size[d] - 1, &span) ||
		    __builtin_add_overflow(reach, span, &reach)) {
			char name[32], why[160];
			snprintf(name, sizeof name, "%s[%d]", member, d);
			snprintf(why, sizeof why, "is %lld: the tensor would reach over more than 2^63 bytes.",
			         (long long)stride[d]);
			return member_fail(f, n, name, why);
		}
		out[d] = stride[d];
	}
	return 0;
}

/* From the smallest stride up, each must step over all that the smaller ones reach: then no two entries meet. */
static bool strides_overlap(const struct named *n, const long long stride[INPUT_DIMS_MAX])
{
	bool done[INPUT_DIMS_MAX] = {false};
	long long reach = 0;
	for (int turn = 0; turn < n->input->dims; turn++) {
		int least = -1;
		long long step = 0;
		for (int d = 0; d < n->input->dims; d++) {
			const long long s = stride[d] < 0 ? -stride[d] : stride[d];
			if (!done[d] && (least < 0 || s < step)) {
				least = d;
				step = s;
			}
		}
		done[least] = true;
		if (n->size[least] <= 1)
			continue;
		if (step <= reach)
			return true;
		reach += step * (n->size[least] - 1);
	}
	return false;
}

static int address_check(const struct named *n, const char *member, uintptr_t address, int bytes, struct fault *f)
{
	char why[96];
	if (!(address & (uintptr_t)(bytes - 1)))
		return 0;
	snprintf(why, sizeof why, "is %p, not a multiple of its element's %d bytes.", (void *)address, bytes);
	return member_fail(f, n, member, why);
}

static int grad_fill(struct fagen_abi_input *out, const struct named *n, struct fault *f)
{
	const fagen_input *given = n->given;
	const uintptr_t address = (uintptr_t)given->grad;
	if (!address || n->empty)
		return 0;
	if (!n->input->grad)
		return member_fail(f, n, "grad",
		                   "is given, but the spec does not ask for this gradient: write grad: "
		                   "true at the input, or pass NULL.");
	if (n->naive)
		return member_fail(f, n, "grad",
		                   "is given, but the naive kernels compute no gradients of inputs: pass NULL.");
	if (address_check(n, "grad", address, 4, f) ||
	    strides_take(out->grad_stride, n, "grad_stride", given->grad_stride, 4, f))
		return -1;
	if (strides_overlap(n, out->grad_stride)) {
		char why[256];
		int len = snprintf(why, sizeof why, "is");
		for (int d = 0; d < n->input->dims; d++)
			len += snprintf(why + len, sizeof why - (size_t)len, "%s%lld over %lld", d ? ", " : " ",
			                (long long)given->grad_stride[d], (long long)n->size[d]);
		snprintf(why + len, sizeof why - (size_t)len, " entries: entries of a gradient may not overlap.");
		return member_fail(f, n, "grad_stride", why);
	}
	out->grad = address;
	return 0;
}

static int input_fill(struct fagen_abi_input *out, const struct named *n, enum pass pass, struct fault *f)
{
	const int bytes = dtype_bytes[n->input->dtype];
	const uintptr_t address = (uintptr_t)n->given->data;
	if (n->empty)
		return 0;
	if (!address)
		return member_fail(f, n, "data", "is NULL, but the input has elements.");
	if (address_check(n, "data", address, bytes, f) ||
	    strides_take(out->stride, n, "stride", n->given->stride, bytes, f))
		return -1;
	out->data = address;
	return pass == PASS_BACKWARD ? grad_fill(out, n, f) : 0;
}

static int name_fail(const struct signature *signature, const char *name, struct fault *f)
{
	const char *names[SPEC_INPUTS_MAX];
	struct text all = {0};
	for (int i = 0; i < signature->input_count; i++) {
		names[i] = signature->input[i].name;
		text_addf(&all, "%s%s", i ? ", " : "", names[i]);
	}
	const char *near = diag_nearest(name, names, signature->input_count);
	if (!signature->input_count)
		fault_fail(f, FAGEN_ERROR_INVALID, "inputs", "'%.64s' is given, but the spec has no inputs.", name);
	else if (near)
		fault_fail(f, FAGEN_ERROR_INVALID, "inputs", "The spec has no input '%.64s': did you mean '%s'?", name,
		           near);
	else
		fault_fail(f, FAGEN_ERROR_INVALID, "inputs", "The spec has no input '%.64s'; its inputs are %s.", name,
		           text_str(&all));
	text_free(&all);
	return -1;
}

/* Which of the launch's inputs is each of the spec's. */
static int inputs_match(const fagen_input *given[SPEC_INPUTS_MAX], const struct signature *signature,
                        const fagen_args *a, struct fault *f)
{
	if (a->input_count && !a->inputs)
		return fault_fail(f, FAGEN_ERROR_INVALID, "inputs", "inputs is NULL, but input_count is %zu.",
		                  a->input_count);
	for (size_t i = 0; i < a->input_count; i++) {
		const char *name = a->inputs[i].name;
		if (!name)
			return fault_fail(f, FAGEN_ERROR_INVALID, "inputs", "inputs[%zu].name is NULL.", i);
		const int at = signature_input(signature, name);
		if (at < 0)
			return name_fail(signature, name, f);
		if (given[at])
			return fault_fail(f, FAGEN_ERROR_INVALID, "inputs", "Input '%s' is given twice.", name);
		given[at] = &a->inputs[i];
	}
	for (int i = 0; i < signature->input_count; i++)
		if (!given[i])
			return fault_fail(f, FAGEN_ERROR_INVALID, "inputs",
			                  "The spec reads an input '%s' (%s, %d dimension%s), which args.inputs lacks.",
			                  signature->input[i].name, input_dtype_names[signature->input[i].dtype],
			                  signature->input[i].dims, signature->input[i].dims == 1 ? "" : "s");
	return 0;
}

int inputs_fill(struct fagen_abi *abi, const struct fagen_kernel *k, enum pass pass, const fagen_args *a,
                struct fault *f)
{
	const struct signature *signature = &k->signature;
	const fagen_input *given[SPEC_INPUTS_MAX] = {NULL};
	_Static_assert((int)SPEC_INPUTS_MAX == (int)FAGEN_ABI_INPUTS && INPUT_DIMS_MAX == 4,
	               "the launch ABI and the spec disagree on inputs");
	if (inputs_match(given, signature, a, f))
		return -1;
	/* What an input without elements points at: a kernel that stages a tile's elements brings indexes into range and
	 * loads before it knows that no cell uses them, so something must be there. */
	const unsigned long long some = ((abi->query.data ? abi->query.data : abi->key.data) + 3) & ~3ull;
	for (int i = 0; i < signature->input_count; i++) {
		struct named n = {.input = &signature->input[i], .given = given[i], .naive = k->naive};
		for (int d = 0; d < n.input->dims; d++) {
			n.size[d] = dim_size(n.input, d, signature, a);
			n.empty = n.empty || n.size[d] == 0;
		}
		abi->input[i] = (struct fagen_abi_input){0};
		if (input_fill(&abi->input[i], &n, pass, f))
			return -1;
		if (n.empty)
			abi->input[i].data = some;
	}
	return 0;
}
