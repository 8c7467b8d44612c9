#include "runtime/kernel.h"

#include <stdio.h>
#include <string.h>

struct launch {
	const struct fagen_kernel *kernel;
	const struct kernel_pass *pass;
	const fagen_args *args;
	struct recipe_shape shape;
	struct fagen_abi abi;
	struct fagen_abi_maps maps;
	int64_t grid[RECIPE_KERNELS_MAX];  /* of each kernel */
	int64_t piece[RECIPE_PIECES_MAX];  /* bytes of each workspace piece */
	int64_t workspace;                 /* of all of them */
};

/* ---- shapes ---- */

int count_check(const char *name, int64_t value, struct fault *f)
{
	if (value >= 0 && value <= LENGTH_MAX)
		return 0;
	return fault_fail(f, FAGEN_ERROR_INVALID, name, "%s is %lld; it must be 0 to %d (2^30).", name,
	                  (long long)value, LENGTH_MAX);
}

static int shape_check(struct recipe_shape *shape, const struct fagen_kernel *k, const fagen_args *a, struct fault *f)
{
	if (count_check("batch", a->batch, f) || count_check("heads_q", a->heads_q, f) ||
	    count_check("heads_kv", a->heads_kv, f) || count_check("seqlen_q", a->seqlen_q, f) ||
	    count_check("seqlen_k", a->seqlen_k, f))
		return -1;
	const long long hq = a->heads_q, hk = a->heads_kv;
	const int group = k->pass[kernel_has(k, PASS_FORWARD) ? PASS_FORWARD : PASS_BACKWARD].recipe.kv_group;
	if ((hq == 0) != (hk == 0))
		return fault_fail(f, FAGEN_ERROR_INVALID, hq ? "heads_kv" : "heads_q",
		                  "heads_q is %lld and heads_kv is %lld: both or neither may be 0.", hq, hk);
	if (group && hq != hk * group)
		return fault_fail(
			f, FAGEN_ERROR_INVALID, "heads_q",
			"heads_q is %lld and heads_kv is %lld, but the kernel is compiled for %d query head%s per key head "
			"(kv_group of the spec): pass heads_q = %lld, or set kv_group: any in the spec.",
			hq, hk, group, group == 1 ? "" : "s", hk * group);
	if (hk && hq % hk)
		return fault_fail(f, FAGEN_ERROR_INVALID, "heads_q",
		                  "heads_q is %lld and heads_kv is %lld: heads_q must be a multiple of heads_kv.", hq,
		                  hk);
	if (a->batch * hq > INT32_MAX)
		return fault_fail(f, FAGEN_ERROR_INVALID, "batch",
		                  "batch %lld times heads_q %lld is more than 2147483647: split the batch.",
		                  (long long)a->batch, hq);
	const bool packed = k->signature.layout == LAYOUT_PACKED;
	if (packed && (count_check("total_q", a->total_q, f) || count_check("total_k", a->total_k, f)))
		return -1;
	*shape = (struct recipe_shape){
		.batch = a->batch,
		.heads_q = hq,
		.heads_kv = hk,
		.seqlen_q = a->seqlen_q,
		.seqlen_k = a->seqlen_k,
		.total_q = packed ? a->total_q : 0,
		.total_k = packed ? a->total_k : 0,
		.packed = packed,
		.sms = k->sms,
	};
	return 0;
}

/* Lengths and places of the entries, as the spec's layout has them. */
static int sequences_fill(struct fagen_abi *abi, const struct fagen_kernel *k, const fagen_args *a, struct fault *f)
{
	const enum batch_layout layout = k->signature.layout;
	const struct {
		const char *name;
		const int32_t *given;
		unsigned long long *to;
		bool cu;
	} row[] = {{"seqlens_q", a->seqlens_q, &abi->seqlens_q, false},
	           {"seqlens_k", a->seqlens_k, &abi->seqlens_k, false},
	           {"cu_seqlens_q", a->cu_seqlens_q, &abi->cu_seqlens_q, true},
	           {"cu_seqlens_k", a->cu_seqlens_k, &abi->cu_seqlens_k, true}};
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		const char *const name = row[i].name;
		const bool taken = layout == LAYOUT_PACKED || (layout == LAYOUT_PADDED && !row[i].cu);
		if (row[i].given && !taken)
			return fault_fail(
				f, FAGEN_ERROR_INVALID, name,
				"%s is given, but the spec's layout is %s: write layout: %s in the spec, or pass NULL.",
				name, layout == LAYOUT_DENSE ? "dense" : "padded", row[i].cu ? "packed" : "padded");
		if (taken && row[i].cu && !row[i].given && a->batch)
			return fault_fail(
				f, FAGEN_ERROR_INVALID, name,
				"%s is NULL, but the spec's layout is packed: pass %lld + 1 ascending rows in device memory.",
				name, (long long)a->batch);
		if ((uintptr_t)row[i].given % 4)
			return fault_fail(f, FAGEN_ERROR_INVALID, name, "%s is %p, not a multiple of 4 bytes.", name,
			                  (const void *)row[i].given);
		*row[i].to = (uintptr_t)row[i].given;
	}
	if (layout != LAYOUT_PACKED && (a->total_q || a->total_k))
		return fault_fail(f, FAGEN_ERROR_INVALID, a->total_q ? "total_q" : "total_k",
		                  "%s is given, but the spec's layout is not packed: leave it 0.",
		                  a->total_q ? "total_q" : "total_k");
	abi->total_q = (int)a->total_q;
	abi->total_k = (int)a->total_k;
	return 0;
}

/* Bytes of workspace of one pass, and of each piece; -1 with a message when no machine has them. */
static int workspace_bytes(int64_t *bytes, int64_t piece[RECIPE_PIECES_MAX], const struct recipe *recipe,
                           const struct recipe_shape *shape, struct fault *f)
{
	int64_t sum = 0;
	for (int i = 0; i < recipe->piece_count; i++) {
		piece[i] = recipe_piece_bytes(&recipe->piece[i], shape);
		if (piece[i] < 0 || __builtin_add_overflow(sum, piece[i], &sum))
			return fault_fail(f, FAGEN_ERROR_INVALID, "workspace_size",
			                  "Workspace piece \"%s\" of these shapes has more than 2^63 bytes.",
			                  recipe->piece[i].name);
	}
	*bytes = sum;
	return 0;
}

/* ---- tensors ---- */

enum { TENSOR_WRITTEN = 1, TENSOR_OPTIONAL = 2 };

struct operand {
	const char *name;
	const fagen_tensor *tensor;
	int64_t heads, rows, columns; /* columns 1: float32 without a last dimension */
	int flags;
};

static inline int stride_check(int64_t *out, int64_t *reach, const struct launch *l, const struct operand *o,
                               const char *member, int64_t stride, int64_t size, int bytes, struct fault *f)
{
	if (size <= 1) { /* never used, so it may hold anything */
		*out = 0;
		return 0;
	}
	const int align = l->pass->recipe.load_bytes;
	if (bytes == 2 && align > 2 &&
	    (stride & (align / bytes - 1))) /* powers of two; a division costs more than a check */
		return fault_member(f, o->name, member,
		                    "is %lld elements; this kernel loads %d bytes at a time and needs a multiple of %d: get a "
		                    "kernel with problem.align = 2.",
		                    (long long)stride, align, align / bytes);
	if ((o->flags & TENSOR_WRITTEN) && stride < o->columns && stride > -o->columns)
		return fault_member(f, o->name, member,
		                    "is %lld over %lld entries of %lld elements: entries of an output may not overlap.",
		                    (long long)stride, (long long)size, (long long)o->columns);
	int64_t span;
	if (stride < -(INT64_MAX / 16) || stride > INT64_MAX / 16 ||
	    __builtin_mul_overflow((stride < 0 ? -stride : stride) * bytes, size - 1, &span) ||
	    __builtin_add_overflow(*reach, span, reach))
		return fault_member(f, o->name, member, "is %lld: the tensor would reach over more than 2^63 bytes.",
		                    (long long)stride);
	*out = stride;
	return 0;
}

static int tensor_fill(struct fagen_abi_tensor *out, const struct launch *l, const struct operand *o, struct fault *f)
{
	const fagen_tensor *t = o->tensor;
	const int bytes = o->columns == 1 ? 4 : 2;
	const int64_t batch = l->shape.packed ? 1 : l->shape.batch;
	const bool empty = l->shape.batch == 0 || o->heads == 0 || o->rows == 0;
	if (!t->data) {
		if (empty || (o->flags & TENSOR_OPTIONAL))
			return 0;
		return fault_member(f, o->name, "data", "is NULL, but it has %lld x %lld x %lld rows.", (long long)batch,
		                    (long long)o->heads, (long long)o->rows);
	}
	const int align = bytes == 2 && l->pass->recipe.load_bytes > 2 ? l->pass->recipe.load_bytes : bytes;
	const uintptr_t address = (uintptr_t)t->data;
	if ((address & (uintptr_t)(align - 1)) && !empty) {
		if (align > bytes)
			return fault_member(f, o->name, "data",
			                    "is %p; this kernel loads %d bytes at a time and needs a multiple of %d: get a kernel "
			                    "with problem.align = 2.",
			                    t->data, align, align);
		return fault_member(f, o->name, "data", "is %p, not a multiple of its element's %d bytes.", t->data, bytes);
	}
	int64_t reach = 0;
	out->data = address;
	int64_t stride[3] = {0};
	if (!empty) {
		if (stride_check(&stride[0], &reach, l, o, "stride_batch", t->stride_batch, batch, bytes, f) ||
		    stride_check(&stride[1], &reach, l, o, "stride_head", t->stride_head, o->heads, bytes, f) ||
		    stride_check(&stride[2], &reach, l, o, "stride_seq", t->stride_seq, o->rows, bytes, f))
			return -1;
		out->stride_batch = stride[0];
		out->stride_head = stride[1];
		out->stride_seq = stride[2];
	}
	return 0;
}

static int tensors_fill(struct launch *l, enum pass pass, struct fault *f)
{
	const struct signature *signature = &l->kernel->signature;
	const fagen_args *a = l->args;
	struct fagen_abi *abi = &l->abi;
	const bool packed = l->shape.packed;
	const int64_t hq = a->heads_q, hk = a->heads_kv;
	const int64_t sq = packed ? a->total_q : a->seqlen_q, sk = packed ? a->total_k : a->seqlen_k; /* rows */
	const int64_t dqk = signature->head_dim_qk, dv = signature->head_dim_v;
	const bool back = pass == PASS_BACKWARD, lse = back || (signature->outputs & OUTPUT_LSE);
	const struct {
		struct fagen_abi_tensor *to;
		struct operand operand;
		bool used;
	} row[] = {
		{&abi->query, {"query", &a->query, hq, sq, dqk, 0}, true},
		{&abi->key, {"key", &a->key, hk, sk, dqk, 0}, true},
		{&abi->value, {"value", &a->value, hk, sk, dv, 0}, true},
		{&abi->out, {"out", &a->out, hq, sq, dv, back ? 0 : TENSOR_WRITTEN}, true},
		{&abi->lse, {"lse", &a->lse, hq, sq, 1, back ? 0 : TENSOR_WRITTEN}, lse},
		{&abi->dout, {"dout", &a->dout, hq, sq, dv, 0}, back},
		{&abi->dlse, {"dlse", &a->dlse, hq, sq, 1, TENSOR_OPTIONAL}, back},
		{&abi->dquery, {"dquery", &a->dquery, hq, sq, dqk, TENSOR_WRITTEN}, back},
		{&abi->dkey, {"dkey", &a->dkey, hk, sk, dqk, TENSOR_WRITTEN}, back},
		{&abi->dvalue, {"dvalue", &a->dvalue, hk, sk, dv, TENSOR_WRITTEN}, back},
	};
	for (size_t i = 0; i < sizeof row / sizeof *row; i++)
		if (row[i].used && tensor_fill(row[i].to, l, &row[i].operand, f))
			return -1;
	if (!lse && a->lse.data)
		return fault_fail(
			f, FAGEN_ERROR_INVALID, "lse.data",
			"lse.data is given, but this kernel does not write it: ask for outputs: [out, lse] in the spec, or "
			"pass NULL.");
	return 0;
}

/* ---- the rest of the arguments ---- */

static int dropout_fill(struct launch *l, struct fault *f)
{
	const fagen_args *a = l->args;
	if (l->kernel->signature.keep_256 == DROPOUT_LEVELS)
		return 0;
	if ((uintptr_t)a->rng_state % 8)
		return fault_fail(f, FAGEN_ERROR_INVALID, "rng_state", "rng_state is %p, not a multiple of 8 bytes.",
		                  (const void *)a->rng_state);
	if (!a->rng_state && a->offset > UINT32_MAX)
		return fault_fail(
			f, FAGEN_ERROR_INVALID, "offset",
			"offset is %llu; it must be below 2^32, or dropout would repeat: change the seed instead.",
			(unsigned long long)a->offset);
	l->abi.rng_state = (uintptr_t)a->rng_state;
	l->abi.seed = a->seed;
	l->abi.offset = a->offset;
	return 0;
}

static int workspace_fill(struct launch *l, struct fault *f)
{
	const struct recipe *recipe = &l->pass->recipe;
	const fagen_args *a = l->args;
	if (workspace_bytes(&l->workspace, l->piece, recipe, &l->shape, f))
		return -1;
	if (!l->workspace)
		return 0;
	if (!a->workspace)
		return fault_fail(f, FAGEN_ERROR_INVALID, "workspace",
		                  "workspace is NULL; these shapes need %lld bytes "
		                  "(fagen_workspace_size).",
		                  (long long)l->workspace);
	if ((uintptr_t)a->workspace % 256)
		return fault_fail(f, FAGEN_ERROR_INVALID, "workspace", "workspace is %p, not a multiple of 256 bytes.",
		                  a->workspace);
	if (a->workspace_size < (uint64_t)l->workspace)
		return fault_fail(f, FAGEN_ERROR_INVALID, "workspace_size",
		                  "workspace_size is %zu bytes; these shapes need %lld (fagen_workspace_size).",
		                  a->workspace_size, (long long)l->workspace);
	unsigned long long at = (uintptr_t)a->workspace;
	for (int i = 0; i < recipe->piece_count; i++) {
		memcpy((char *)&l->abi + l->pass->piece_field[i], &at, sizeof at);
		at += (unsigned long long)l->piece[i];
	}
	return 0;
}

/* *some: is there anything to launch? */
static int grids_fill(bool *some, struct launch *l, struct fault *f)
{
	*some = false;
	for (int i = 0; i < l->pass->recipe.kernel_count; i++) {
		const int64_t grid = l->grid[i] = recipe_grid_size(&l->pass->recipe.kernel[i], &l->shape);
		*some = *some || grid > 0;
		if (grid < 0 && l->shape.packed)
			return fault_fail(
				f, FAGEN_ERROR_INVALID, "batch",
				"batch %lld, heads_q %lld, heads_kv %lld, total_q %lld, total_k %lld, seqlen_q %lld, "
				"seqlen_k %lld need more than 2147483647 blocks of kernel %s: split the batch.",
				(long long)l->shape.batch, (long long)l->shape.heads_q, (long long)l->shape.heads_kv,
				(long long)l->shape.total_q, (long long)l->shape.total_k, (long long)l->shape.seqlen_q,
				(long long)l->shape.seqlen_k, l->pass->recipe.kernel[i].entry);
		if (grid < 0)
			return fault_fail(f, FAGEN_ERROR_INVALID, "batch",
			                  "batch %lld, heads_q %lld, heads_kv %lld, seqlen_q %lld, seqlen_k %lld need "
			                  "more than 2147483647 "
			                  "blocks of kernel %s: split the batch.",
			                  (long long)l->shape.batch, (long long)l->shape.heads_q,
			                  (long long)l->shape.heads_kv, (long long)l->shape.seqlen_q,
			                  (long long)l->shape.seqlen_k, l->pass->recipe.kernel[i].entry);
	}
	return 0;
}

static int args_take(fagen_args *args, const fagen_args *given, struct fault *f)
{
	if (!struct_take(args, sizeof *args, given))
		return 0;
	return fault_fail(f, FAGEN_ERROR_INVALID, "struct_size",
	                  "args.struct_size is not set: it says which version of struct fagen_args the caller has.");
}

/* ---- launching ---- */

int context_enter(bool *pushed, const struct fagen_kernel *k, cu_stream stream, bool current, struct fault *f)
{
	const struct driver *d = k->runtime->driver;
	const struct cuda_calls *cu = driver_calls(d);
	*pushed = false;
	if (!CU_STREAM_IS_NAME(stream) && !current)
		return 0;
	cu_context context = NULL;
	cu_device device;
	cu_result r = cu->cuCtxGetCurrent(&context);
	if (r)
		return driver_fail(d, f, r, "Asking for the current context (cuCtxGetCurrent)");
	if (context && !cu->cuCtxGetDevice(&device) && device == k->device)
		return 0;
	context = k->primary;
	if (!CU_STREAM_IS_NAME(stream) && (r = cu->cuStreamGetCtx(stream, &context)))
		return driver_fail(d, f, r, "Asking for the stream's context (cuStreamGetCtx)");
	if ((r = cu->cuCtxPushCurrent_v2(context)))
		return driver_fail(d, f, r, "Entering the GPU's context (cuCtxPushCurrent)");
	*pushed = true;
	return 0;
}

static int kernels_launch(struct launch *l, cu_stream stream, struct fault *f)
{
	const struct driver *d = l->kernel->runtime->driver;
	const struct cuda_calls *cu = driver_calls(d);
	const struct recipe *recipe = &l->pass->recipe;
	for (int i = 0; i < recipe->piece_count; i++) {
		const int64_t bytes = l->piece[i];
		if (!recipe->piece[i].zeroed || !bytes)
			continue;
		unsigned long long at;
		memcpy(&at, (const char *)&l->abi + l->pass->piece_field[i], sizeof at);
		const cu_result r = cu->cuMemsetD32Async(at, 0, (size_t)bytes / 4, stream);
		if (r)
			return driver_fail(d, f, r, "Clearing the workspace (cuMemsetD32Async)");
	}
	for (int i = 0; i < recipe->kernel_count; i++) {
		const struct recipe_kernel *rk = &recipe->kernel[i];
		const int64_t grid = l->grid[i];
		void *params[] = {&l->abi, &l->maps}; /* kernels without maps do not have the second */
		if (!grid)
			continue;
		/* The driver takes a context-independent kernel handle where it takes a function. */
		const cu_result r = cu->cuLaunchKernel((cu_function)(void *)l->pass->entry[i], (unsigned int)grid, 1, 1,
		                                       (unsigned int)rk->threads, 1, 1, (unsigned int)rk->smem_bytes,
		                                       stream, params, NULL);
		if (r) {
			driver_fail(d, f, r, "Launching a kernel (cuLaunchKernel)");
			return fault_fail(f, FAGEN_ERROR_DRIVER, NULL,
			                  "It was kernel %s with %lld blocks of %d threads and %d bytes of "
			                  "shared memory.",
			                  rk->entry, (long long)grid, rk->threads, rk->smem_bytes);
		}
	}
	return 0;
}

static int pass_launch(const struct fagen_kernel *k, enum pass pass, const fagen_args *given, cu_stream stream,
                       struct fault *f)
{
	fagen_args args;
	struct launch l = {.kernel = k, .pass = &k->pass[pass], .args = &args};
	struct mapped mapped[RECIPE_MAPS_MAX];
	bool some, current = l.pass->recipe.map_count > 0, pushed;
	if (!kernel_has(k, pass))
		return fault_fail(f, FAGEN_ERROR_INVALID, "kernel",
		                  "This kernel has no %s pass: add %s to passes in the spec.", pass_names[pass],
		                  pass_names[pass]);
	if (args_take(&args, given, f) || shape_check(&l.shape, k, &args, f) || sequences_fill(&l.abi, k, &args, f) ||
	    tensors_fill(&l, pass, f) || inputs_fill(&l.abi, k, pass, &args, f) || dropout_fill(&l, f) ||
	    grids_fill(&some, &l, f) || driver_check_fork(k->runtime->driver, f))
		return -1;
	if (!some)
		return 0;
	if (maps_fill(mapped, &l.pass->recipe, &l.abi, &l.shape, k, f) || workspace_fill(&l, f))
		return -1;
	l.abi.batch = (int)args.batch;
	l.abi.heads_q = (int)args.heads_q;
	l.abi.heads_kv = (int)args.heads_kv;
	l.abi.kv_group = args.heads_kv ? (int)(args.heads_q / args.heads_kv) : 0;
	l.abi.seqlen_q = (int)args.seqlen_q;
	l.abi.seqlen_k = (int)args.seqlen_k;
	for (int i = 0; i < l.pass->recipe.piece_count; i++)
		current = current || l.pass->recipe.piece[i].zeroed;
	if (context_enter(&pushed, k, stream, current, f))
		return -1;
	int rc = maps_encode(&l.maps, mapped, l.pass, k, f);
	if (rc == 0)
		rc = kernels_launch(&l, stream, f);
	if (pushed && driver_pop(k->runtime->driver, f))
		rc = -1;
	return rc;
}

static int launch_call(const fagen_kernel *k, enum pass pass, const fagen_args *args, fagen_stream stream,
                       fagen_error *error)
{
	struct diag diag;
	struct fault f = {.diag = &diag};
	diag_begin(&diag);
	fault_clear(error);
	return pass_launch(k, pass, args, stream, &f) ? fault_report(error, &f) : FAGEN_OK;
}

int fagen_forward(const fagen_kernel *k, const fagen_args *args, fagen_stream stream, fagen_error *error)
{
	return launch_call(k, PASS_FORWARD, args, stream, error);
}

int fagen_backward(const fagen_kernel *k, const fagen_args *args, fagen_stream stream, fagen_error *error)
{
	return launch_call(k, PASS_BACKWARD, args, stream, error);
}

int fagen_workspace_size(size_t *out, const fagen_kernel *k, const fagen_args *given, fagen_error *error)
{
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	fagen_args args;
	struct recipe_shape shape;
	int64_t most = 0;
	fault_clear(error);
	if (args_take(&args, given, &f) || shape_check(&shape, k, &args, &f))
		return fault_report(error, &f);
	for (int i = 0; i < PASS_COUNT; i++) {
		int64_t bytes = 0, piece[RECIPE_PIECES_MAX];
		if (!kernel_has(k, (enum pass)i))
			continue;
		if (workspace_bytes(&bytes, piece, &k->pass[i].recipe, &shape, &f))
			return fault_report(error, &f);
		most = bytes > most ? bytes : most;
	}
	*out = (size_t)most;
	return FAGEN_OK;
}
