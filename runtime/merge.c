/* merge: the launch of templates/merge.cu. A merger is a kernel without a spec: one library with both of its kernels,
 * found by its source. */
#include "gen/emit_merge.h"
#include "runtime/kernel.h"
#include "templates/merge_abi.h"

#include <stdlib.h>
#include <string.h>

struct fagen_merger {
	struct fagen_kernel kernel; /* first: it is freed as one; pass 0 has both kernels */
};

/* ---- getting one ---- */

static int merger_request(fagen_merger **out, fagen_runtime *rt, int ordinal, struct fault *f)
{
	struct runtime_device *device;
	if (driver_start(rt->driver, f) || device_of(&device, rt, ordinal, f))
		return -1;
	if (!device->target)
		return fault_fail(f, FAGEN_ERROR_SPEC, "targets",
		                  "Device %d, %s, has compute capability %d.%d, which no target of fagen runs on.",
		                  ordinal, device->gpu.name, device->gpu.cc / 10, device->gpu.cc % 10);
	struct fagen_merger *m = calloc(1, sizeof *m);
	struct text source[PASS_COUNT] = {{0}};
	if (!m)
		return fault_fail(f, FAGEN_ERROR_MEMORY, NULL, "Out of memory.");
	struct fagen_kernel *k = &m->kernel, *made;
	k->runtime = rt;
	k->ordinal = ordinal;
	k->target = device->target;
	k->sms = device->gpu.sms;
	merge_recipe(&k->pass[0].recipe);
	if (merge_emit(&source[0], rt->templates_dir, f->diag)) {
		free(m);
		return fault_stage(f, FAGEN_ERROR_SPEC);
	}
	struct key_builder *key = key_begin();
	key_record(key, 'm', &k->ordinal, sizeof k->ordinal);
	key_record(key, 's', text_str(&source[0]), source[0].len);
	key_finish(&k->identity, key);
	const int rc = kernel_settle(&made, k, kernel_compile, source, f);
	text_free(&source[0]);
	if (!rc)
		*out = (fagen_merger *)made;
	return rc;
}

int fagen_merger_get(fagen_merger **out, fagen_runtime *rt, int device, fagen_error *error)
{
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	fault_clear(error);
	if (merger_request(out, rt, device, &f))
		return fault_report(error, &f);
	diag_free(&diag);
	return FAGEN_OK;
}

/* ---- arguments ---- */

struct part {
	const char *name;
	const fagen_tensor *tensor;
	struct fagen_abi_tensor *to;
	int bytes;   /* of an element */
	bool is_out; /* has rows of head_dim elements; else one float */
	bool written, optional;
};

/* *vector stays true while groups of four elements are aligned. */
static int part_fill(bool *vector, const struct part *p, const fagen_merge_args *a, struct fault *f)
{
	const uintptr_t address = (uintptr_t)p->tensor->data;
	const int64_t columns = p->is_out ? a->head_dim : 1;
	if (!address)
		return p->optional ? 0
		                   : fault_member(f, p->name, "data", "is NULL, but it has %lld x %lld x %lld rows.",
		                                  (long long)a->batch, (long long)a->heads, (long long)a->seqlen);
	if (address % (uintptr_t)p->bytes)
		return fault_member(f, p->name, "data", "is %p, not a multiple of its element's %d bytes.", p->tensor->data,
		                    p->bytes);
	const struct {
		const char *name;
		int64_t stride, size;
		long long *to;
	} dim[] = {{"stride_batch", p->tensor->stride_batch, a->batch, &p->to->stride_batch},
	           {"stride_head", p->tensor->stride_head, a->heads, &p->to->stride_head},
	           {"stride_seq", p->tensor->stride_seq, a->seqlen, &p->to->stride_seq}};
	int64_t reach = 0, span;
	*vector = *vector && (!p->is_out || address % (uintptr_t)(4 * p->bytes) == 0);
	for (int i = 0; i < 3; i++) {
		const int64_t stride =
			dim[i].size > 1 ? dim[i].stride : 0; /* else never used, so it may hold anything */
		if (p->written && dim[i].size > 1 && stride < columns && stride > -columns)
			return fault_member(f, p->name, dim[i].name,
			                    "is %lld over %lld entries of %lld elements: entries of an output may not overlap.",
			                    (long long)stride, (long long)dim[i].size, (long long)columns);
		if (stride < -(INT64_MAX / 16) || stride > INT64_MAX / 16 ||
		    __builtin_mul_overflow((stride < 0 ? -stride : stride) * p->bytes, dim[i].size, &span) ||
		    __builtin_add_overflow(reach, span, &reach))
			return fault_member(f, p->name, dim[i].name, "is %lld: the tensor would reach over more than 2^63 bytes.",
			                    (long long)stride);
		*dim[i].to = stride;
		*vector = *vector && (!p->is_out || stride % 4 == 0);
	}
	p->to->data = address;
	return 0;
}

static int type_bytes(int *bytes, int32_t type, const char *name, struct fault *f)
{
	if (type < FAGEN_BF16 || type > FAGEN_FLOAT32)
		return fault_fail(f, FAGEN_ERROR_INVALID, name,
		                  "%s is %d; it must be FAGEN_BF16 (0), FAGEN_FP16 (1) or FAGEN_FLOAT32 (2).", name,
		                  (int)type);
	*bytes = type == FAGEN_FLOAT32 ? 4 : 2;
	return 0;
}

static int args_fill(struct fagen_merge_abi *abi, const fagen_merge_args *a, bool backward, struct fault *f)
{
	int bytes = 2, bytes_a = 2, bytes_b = 2;
	if (count_check("batch", a->batch, f) || count_check("heads", a->heads, f) ||
	    count_check("seqlen", a->seqlen, f) || count_check("head_dim", a->head_dim, f) ||
	    type_bytes(&bytes, a->dtype, "dtype", f) || type_bytes(&bytes_a, a->dtype_a, "dtype_a", f) ||
	    type_bytes(&bytes_b, a->dtype_b, "dtype_b", f))
		return -1;
	if (a->batch == 0 || a->heads == 0 || a->seqlen == 0)
		return 0;
	const struct part parts[] = {
		{"out_a", &a->out_a, &abi->out_a, bytes_a, true, false, a->head_dim == 0},
		{"out_b", &a->out_b, &abi->out_b, bytes_b, true, false, a->head_dim == 0},
		{"lse_a", &a->lse_a, &abi->lse_a, 4, false, false, false},
		{"lse_b", &a->lse_b, &abi->lse_b, 4, false, false, false},
		{"out", &a->out, &abi->out, bytes, true, true, a->head_dim == 0},
		{"lse", &a->lse, &abi->lse, 4, false, true, true},
	};
	const struct part gradients[] = {
		{"dout", &a->dout, &abi->dout, bytes, true, false, a->head_dim == 0},
		{"dlse", &a->dlse, &abi->dlse, 4, false, false, true},
		{"dout_a", &a->dout_a, &abi->dout_a, bytes_a, true, true, a->head_dim == 0},
		{"dout_b", &a->dout_b, &abi->dout_b, bytes_b, true, true, a->head_dim == 0},
		{"dlse_a", &a->dlse_a, &abi->dlse_a, 4, false, true, false},
		{"dlse_b", &a->dlse_b, &abi->dlse_b, 4, false, true, false},
	};
	bool vector = a->head_dim % 4 == 0;
	for (int i = 0; i < (backward ? 4 : 6); i++) /* backward does not need the merged result */
		if (part_fill(&vector, &parts[i], a, f))
			return -1;
	for (int i = 0; i < (backward ? 6 : 0); i++)
		if (part_fill(&vector, &gradients[i], a, f))
			return -1;
	abi->type = a->dtype;
	abi->type_a = a->dtype_a;
	abi->type_b = a->dtype_b;
	abi->heads = (int)a->heads;
	abi->seqlen = (int)a->seqlen;
	abi->head_dim = (int)a->head_dim;
	abi->vector = vector;
	return 0;
}

/* ---- launching ---- */

static int merge_launch(const fagen_merger *m, int which, const fagen_merge_args *given, cu_stream stream,
                        struct fault *f)
{
	const struct fagen_kernel *k = &m->kernel;
	const struct recipe_kernel *rk = &k->pass[0].recipe.kernel[which];
	fagen_merge_args args;
	struct fagen_merge_abi abi = {0};
	bool pushed;
	if (struct_take(&args, sizeof args, given))
		return fault_fail(
			f, FAGEN_ERROR_INVALID, "struct_size",
			"args.struct_size is not set: it says which version of struct fagen_merge_args the caller has.");
	if (args_fill(&abi, &args, which == PASS_BACKWARD, f) || driver_check_fork(k->runtime->driver, f))
		return -1;
	const struct recipe_shape shape = {.batch = args.batch,
	                                   .heads_q = args.heads,
	                                   .heads_kv = args.heads,
	                                   .seqlen_q = args.seqlen,
	                                   .seqlen_k = args.seqlen,
	                                   .sms = k->sms};
	const int64_t grid = recipe_grid_size(rk, &shape);
	if (grid < 0)
		return fault_fail(
			f, FAGEN_ERROR_INVALID, "batch",
			"batch %lld, heads %lld, seqlen %lld need more than 2147483647 blocks: split the batch.",
			(long long)args.batch, (long long)args.heads, (long long)args.seqlen);
	if (grid == 0)
		return 0;
	if (context_enter(&pushed, k, stream, false, f))
		return -1;
	void *params[] = {&abi};
	const cu_result r = driver_calls(k->runtime->driver)
	                            ->cuLaunchKernel((cu_function)(void *)k->pass[0].entry[which], (unsigned int)grid,
	                                             1, 1, (unsigned int)rk->threads, 1, 1, 0, stream, params, NULL);
	int rc = r ? driver_fail(k->runtime->driver, f, r, "Launching a kernel (cuLaunchKernel)") : 0;
	if (pushed && driver_pop(k->runtime->driver, f))
		rc = -1;
	return rc;
}

static int merge_call(const fagen_merger *m, int which, const fagen_merge_args *args, fagen_stream stream,
                      fagen_error *error)
{
	struct diag diag;
	struct fault f = {.diag = &diag};
	diag_begin(&diag);
	fault_clear(error);
	return merge_launch(m, which, args, stream, &f) ? fault_report(error, &f) : FAGEN_OK;
}

int fagen_merge(const fagen_merger *m, const fagen_merge_args *args, fagen_stream stream, fagen_error *error)
{
	return merge_call(m, PASS_FORWARD, args, stream, error);
}

int fagen_merge_backward(const fagen_merger *m, const fagen_merge_args *args, fagen_stream stream, fagen_error *error)
{
	return merge_call(m, PASS_BACKWARD, args, stream, error);
}
