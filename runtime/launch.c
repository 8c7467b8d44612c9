#include "runtime/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kernel_launch { /* of one kernel; grid 0: none */
	cu_function function;
	unsigned int grid, threads, smem;
};
struct clearing { /* of a workspace piece */
	size_t field; /* offset in struct fagen_abi of its address */
	size_t bytes;
};
struct launch {
	const struct fagen_kernel *kernel;
	const struct kernel_pass *pass;
	const fagen_args *args;            /* the caller's: nothing when the call is over */
	struct recipe_shape shape;
	int64_t piece[RECIPE_PIECES_MAX];  /* bytes of each workspace piece */
	int64_t workspace;                 /* of all of them */
	bool unordered;                    /* nobody writes the piece "order": to sort the items would not pay */
	bool some;                         /* is there anything to launch? */
	unsigned wanted;                   /* tensor maps that `maps` does not have yet: a set of kernel.h */
	int clear_count;
	struct clearing clear[RECIPE_PIECES_MAX];
	struct kernel_launch each[RECIPE_KERNELS_MAX]; /* in the order of the recipe */
	struct mapped mapped[RECIPE_MAPS_MAX];
	struct fagen_abi abi;
	struct fagen_abi_maps maps;
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

enum { QUERY, KEY, VALUE, OUT, LSE, DOUT, DLSE, DQUERY, DKEY, DVALUE, OPERANDS };

static const struct {
	const char *name;
	size_t given, abi; /* offsets in fagen_args and in struct fagen_abi */
} operand_place[OPERANDS] = {
#define PLACE(name) {#name, offsetof(fagen_args, name), offsetof(struct fagen_abi, name)}
	PLACE(query), PLACE(key),  PLACE(value),  PLACE(out),  PLACE(lse),
	PLACE(dout),  PLACE(dlse), PLACE(dquery), PLACE(dkey), PLACE(dvalue),
#undef PLACE
};

/* The forward pass looks at the first of them alone. */
static int operands_of(enum pass pass) { return pass == PASS_FORWARD ? DOUT : OPERANDS; }

static const fagen_tensor *tensor_given(const fagen_args *a, int i)
{
	return (const fagen_tensor *)(const void *)((const char *)a + operand_place[i].given);
}

static struct fagen_abi_tensor *tensor_of(struct fagen_abi *abi, int i)
{
	return (struct fagen_abi_tensor *)(void *)((char *)abi + operand_place[i].abi);
}

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
		int64_t heads, rows, columns;
		int flags;
	} row[OPERANDS] = {
		[QUERY] = {hq, sq, dqk, 0},
		[KEY] = {hk, sk, dqk, 0},
		[VALUE] = {hk, sk, dv, 0},
		[OUT] = {hq, sq, dv, back ? 0 : TENSOR_WRITTEN},
		[LSE] = {hq, sq, 1, back ? 0 : TENSOR_WRITTEN},
		[DOUT] = {hq, sq, dv, 0},
		[DLSE] = {hq, sq, 1, TENSOR_OPTIONAL},
		[DQUERY] = {hq, sq, dqk, TENSOR_WRITTEN},
		[DKEY] = {hk, sk, dqk, TENSOR_WRITTEN},
		[DVALUE] = {hk, sk, dv, TENSOR_WRITTEN},
	};
	for (int i = 0; i < operands_of(pass); i++) {
		const struct operand o = {operand_place[i].name, tensor_given(a, i), row[i].heads,
		                          row[i].rows,           row[i].columns,     row[i].flags};
		if ((i != LSE || lse) && tensor_fill(tensor_of(abi, i), l, &o, f))
			return -1;
	}
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
	l->abi.rng_state = (uintptr_t)a->rng_state;
	l->abi.seed = a->seed;
	l->abi.offset = a->offset;
	return 0;
}

static bool piece_unused(const struct launch *l, int i)
{
	return l->unordered && l->pass->piece_field[i] == offsetof(struct fagen_abi, order);
}

static int pieces_fill(struct launch *l, struct fault *f)
{
	const struct recipe *recipe = &l->pass->recipe;
	if (workspace_bytes(&l->workspace, l->piece, recipe, &l->shape, f))
		return -1;
	int before = -1; /* the piece that was cleared last */
	for (int i = 0; i < recipe->piece_count; i++) {
		if (!recipe->piece[i].zeroed || !l->piece[i] || piece_unused(l, i))
			continue;
		if (before >= 0 && before == i - 1) /* they lie side by side */
			l->clear[l->clear_count - 1].bytes += (size_t)l->piece[i];
		else
			l->clear[l->clear_count++] = (struct clearing){l->pass->piece_field[i], (size_t)l->piece[i]};
		before = i;
	}
	return 0;
}

static int workspace_fill(struct launch *l, struct fault *f)
{
	const fagen_args *a = l->args;
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
	for (int i = 0; i < l->pass->recipe.piece_count; i++) {
		if (!piece_unused(l, i))
			memcpy((char *)&l->abi + l->pass->piece_field[i], &at, sizeof at);
		at += (unsigned long long)l->piece[i];
	}
	return 0;
}

static int grids_fill(struct launch *l, struct fault *f)
{
	for (int i = 0; i < l->pass->recipe.kernel_count; i++) {
		const struct recipe_kernel *rk = &l->pass->recipe.kernel[i];
		const int64_t grid = recipe_grid_size(rk, &l->shape);
		l->some = l->some || grid > 0;
		l->unordered = l->unordered || (grid == 0 && grid_is_order(rk->grid));
		if (grid < 0 && l->shape.packed)
			return fault_fail(
				f, FAGEN_ERROR_INVALID, "batch",
				"batch %lld, heads_q %lld, heads_kv %lld, total_q %lld, total_k %lld, seqlen_q %lld, "
				"seqlen_k %lld need more than 2147483647 blocks of kernel %s: split the batch.",
				(long long)l->shape.batch, (long long)l->shape.heads_q, (long long)l->shape.heads_kv,
				(long long)l->shape.total_q, (long long)l->shape.total_k, (long long)l->shape.seqlen_q,
				(long long)l->shape.seqlen_k, rk->entry);
		if (grid < 0)
			return fault_fail(f, FAGEN_ERROR_INVALID, "batch",
			                  "batch %lld, heads_q %lld, heads_kv %lld, seqlen_q %lld, seqlen_k %lld need "
			                  "more than 2147483647 "
			                  "blocks of kernel %s: split the batch.",
			                  (long long)l->shape.batch, (long long)l->shape.heads_q,
			                  (long long)l->shape.heads_kv, (long long)l->shape.seqlen_q,
			                  (long long)l->shape.seqlen_k, rk->entry);
		if (rk->tail.visit > 0) { /* who joins the parts has the same as who makes them */
			const struct recipe_cut cut = recipe_kernel_cut(rk, &l->shape);
			l->abi.cut_first = (unsigned)cut.first;
			l->abi.cut_parts = (unsigned)cut.parts;
		}
		/* The driver takes a context-independent kernel handle where it takes a function. */
		l->each[i] = (struct kernel_launch){(cu_function)(void *)l->pass->entry[i], (unsigned int)grid,
		                                    (unsigned int)rk->threads, (unsigned int)rk->smem_bytes};
	}
	return 0;
}

/* Leaves `args` at the caller's struct, or fills `older` from one of a version with fewer fields. */
static int args_take(const fagen_args **args, fagen_args *older, struct fault *f)
{
	if ((*args)->struct_size >= sizeof *older)
		return 0;
	if (struct_take(older, sizeof *older, *args))
		return fault_fail(
			f, FAGEN_ERROR_INVALID, "struct_size",
			"args.struct_size is not set: it says which version of struct fagen_args the caller has.");
	*args = older;
	return 0;
}

/* ---- filling in ---- */

static int launch_fill(struct launch *l, const struct fagen_kernel *k, enum pass pass, const fagen_args *a,
                       struct fault *f)
{
	memset(l, 0, sizeof *l);
	l->kernel = k;
	l->pass = &k->pass[pass];
	l->args = a;
	if (shape_check(&l->shape, k, a, f) || sequences_fill(&l->abi, k, a, f) || tensors_fill(l, pass, f) ||
	    inputs_fill(&l->abi, k, pass, a, f) || dropout_fill(l, f) || grids_fill(l, f) ||
	    driver_check_fork(k->runtime->driver, f))
		return -1;
	if (!l->some)
		return 0;
	if (maps_fill(l->mapped, &l->pass->recipe, &l->abi, &l->shape, k, f) || pieces_fill(l, f) ||
	    workspace_fill(l, f))
		return -1;
	l->wanted = (1u << l->pass->recipe.map_count) - 1;
	l->abi.batch = (int)a->batch;
	l->abi.heads_q = (int)a->heads_q;
	l->abi.heads_kv = (int)a->heads_kv;
	l->abi.kv_group = a->heads_kv ? (int)(a->heads_q / a->heads_kv) : 0;
	l->abi.seqlen_q = (int)a->seqlen_q;
	l->abi.seqlen_k = (int)a->seqlen_k;
	return 0;
}

/* For a launch that went well, and arguments of the same form, which is all that is not looked at again: shape and strides, and of
 * addresses whether they are NULL and how they are aligned. */
static int launch_refill(struct launch *l, enum pass pass, const fagen_args *a, struct fault *f)
{
	l->args = a;
	for (int i = 0; i < operands_of(pass); i++)
		tensor_of(&l->abi, i)->data = (uintptr_t)tensor_given(a, i)->data;
	l->abi.seqlens_q = (uintptr_t)a->seqlens_q;
	l->abi.seqlens_k = (uintptr_t)a->seqlens_k;
	l->abi.cu_seqlens_q = (uintptr_t)a->cu_seqlens_q;
	l->abi.cu_seqlens_k = (uintptr_t)a->cu_seqlens_k;
	if (inputs_fill(&l->abi, l->kernel, pass, a, f) || dropout_fill(l, f) ||
	    driver_check_fork(l->kernel->runtime->driver, f) || workspace_fill(l, f))
		return -1;
	l->wanted = maps_move(l->mapped, &l->pass->recipe, &l->abi);
	return 0;
}

enum { ALIGN_MOST = 16 }; /* no kernel relies on more of a tensor */

static uint64_t address_differs(const void *a, const void *b)
{
	return (((uintptr_t)a ^ (uintptr_t)b) & (ALIGN_MOST - 1)) | (uint64_t)(!a != !b);
}

static bool same_form(const fagen_args *a, const fagen_args *b, enum pass pass)
{
	int64_t differs = (a->batch ^ b->batch) | (a->heads_q ^ b->heads_q) | (a->heads_kv ^ b->heads_kv) |
	                  (a->seqlen_q ^ b->seqlen_q) | (a->seqlen_k ^ b->seqlen_k) | (a->total_q ^ b->total_q) |
	                  (a->total_k ^ b->total_k);
	uint64_t moved = address_differs(a->seqlens_q, b->seqlens_q) | address_differs(a->seqlens_k, b->seqlens_k) |
	                 address_differs(a->cu_seqlens_q, b->cu_seqlens_q) |
	                 address_differs(a->cu_seqlens_k, b->cu_seqlens_k);
	for (int i = 0; i < operands_of(pass); i++) {
		const fagen_tensor *t = tensor_given(a, i), *u = tensor_given(b, i);
		moved |= address_differs(t->data, u->data);
		differs |= (t->stride_batch ^ u->stride_batch) | (t->stride_head ^ u->stride_head) |
		           (t->stride_seq ^ u->stride_seq);
	}
	return !differs && !moved;
}

/* ---- launches that are kept ---- */

/* A place is one thread's at a time: who finds `busy` false and sets it, with acquire, has all of it until he clears it, with
 * release. Nobody waits: who finds every place busy fills in a launch of his own. `form` and `next` are for choosing a place: any
 * choice is right. */
enum { LAUNCH_PLACES = 4 };
struct kept_launch {
	atomic_bool busy;
	bool whole;      /* `launch` was filled in, and nothing failed */
	fagen_args args; /* for these: the form counts, addresses may be an earlier launch's */
	struct launch launch;
};
struct kept_launches {
	_Atomic uint64_t form[LAUNCH_PLACES]; /* form_hash of the last launch; 0: none yet */
	_Atomic uint32_t next;                /* the place to give up for a new form */
	struct kept_launch place[LAUNCH_PLACES];
};

struct kept_launches *launches_keep(void)
{
	struct kept_launches *kept = aligned_alloc(_Alignof(struct kept_launches), sizeof *kept);
	return kept ? memset(kept, 0, sizeof *kept) : NULL;
}

/* Of what tells forms apart as a rule. */
static uint64_t form_hash(const fagen_args *a)
{
	const int64_t part[] = {a->batch,          a->heads_q,          a->heads_kv,      a->seqlen_q,
	                        a->seqlen_k,       a->total_q,          a->total_k,       a->query.stride_seq,
	                        a->key.stride_seq, a->value.stride_seq, a->out.stride_seq};
	uint64_t hash = 0;
	for (size_t i = 0; i < sizeof part / sizeof *part; i++)
		hash = (hash << 7 | hash >> 57) ^ (uint64_t)part[i];
	return hash ? hash : 1;
}

static bool place_take(struct kept_launch *place)
{
	return !atomic_exchange_explicit(&place->busy, true, memory_order_acquire);
}

/* A place that is the caller's until kept_leave: with a launch of the same form, if there is one. NULL: none is free. */
static struct kept_launch *kept_enter(struct kept_launches *kept, const fagen_args *a)
{
	if (!kept)
		return NULL;
	const uint64_t form = form_hash(a);
	for (int i = 0; i < LAUNCH_PLACES; i++)
		if (atomic_load_explicit(&kept->form[i], memory_order_relaxed) == form && place_take(&kept->place[i]))
			return &kept->place[i];
	for (int turn = 0; turn < LAUNCH_PLACES; turn++) {
		const uint32_t i = atomic_fetch_add_explicit(&kept->next, 1, memory_order_relaxed) % LAUNCH_PLACES;
		if (!place_take(&kept->place[i]))
			continue;
		atomic_store_explicit(&kept->form[i], form, memory_order_relaxed);
		return &kept->place[i];
	}
	return NULL;
}

static void kept_leave(struct kept_launch *place) { atomic_store_explicit(&place->busy, false, memory_order_release); }

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
	if (context && (context == k->primary || (!cu->cuCtxGetDevice(&device) && device == k->device)))
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
	for (int i = 0; i < l->clear_count; i++) {
		unsigned long long at;
		memcpy(&at, (const char *)&l->abi + l->clear[i].field, sizeof at);
		const cu_result r = cu->cuMemsetD32Async(at, 0, l->clear[i].bytes / 4, stream);
		if (r)
			return driver_fail(d, f, r, "Clearing the workspace (cuMemsetD32Async)");
	}
	void *params[] = {&l->abi, &l->maps}; /* kernels without maps do not have the second */
	for (int i = 0; i < l->pass->recipe.kernel_count; i++) {
		const struct kernel_launch *each = &l->each[i];
		if (!each->grid)
			continue;
		const cu_result r = cu->cuLaunchKernel(each->function, each->grid, 1, 1, each->threads, 1, 1,
		                                       each->smem, stream, params, NULL);
		if (r) {
			driver_fail(d, f, r, "Launching a kernel (cuLaunchKernel)");
			return fault_fail(f, FAGEN_ERROR_DRIVER, NULL,
			                  "It was kernel %s with %u blocks of %u threads and %u bytes of "
			                  "shared memory.",
			                  l->pass->recipe.kernel[i].entry, each->grid, each->threads, each->smem);
		}
	}
	return 0;
}

static int launch_run(struct launch *l, cu_stream stream, struct fault *f)
{
	const struct fagen_kernel *k = l->kernel;
	const unsigned lacking = l->wanted ? maps_take(&l->maps, l->mapped, l->wanted, l->pass) : 0;
	bool pushed;
	if (context_enter(&pushed, k, stream, lacking || l->clear_count, f))
		return -1;
	int rc = lacking ? maps_encode(&l->maps, l->mapped, lacking, l->pass, k, f) : 0;
	if (rc == 0)
		rc = kernels_launch(l, stream, f);
	if (pushed && driver_pop(k->runtime->driver, f))
		rc = -1;
	return rc;
}

static int pass_launch(const struct fagen_kernel *k, enum pass pass, const fagen_args *args, cu_stream stream,
                       struct fault *f)
{
	fagen_args older;
	struct launch own;
	if (!kernel_has(k, pass))
		return fault_fail(f, FAGEN_ERROR_INVALID, "kernel",
		                  "This kernel has no %s pass: add %s to passes in the spec.", pass_names[pass],
		                  pass_names[pass]);
	if (args_take(&args, &older, f))
		return -1;
	struct kept_launch *kept = kept_enter(k->pass[pass].launches, args);
	struct launch *l = kept ? &kept->launch : &own;
	const bool again = kept && kept->whole && same_form(args, &kept->args, pass);
	int rc = again ? launch_refill(l, pass, args, f) : launch_fill(l, k, pass, args, f);
	if (rc == 0 && l->some)
		rc = launch_run(l, stream, f);
	if (kept) {
		if (!again)
			kept->args = *args;
		kept->whole = rc == 0;
		kept_leave(kept);
	}
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

int fagen_workspace_size(size_t *out, const fagen_kernel *k, const fagen_args *args, fagen_error *error)
{
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	fagen_args older;
	struct recipe_shape shape;
	int64_t most = 0;
	fault_clear(error);
	if (args_take(&args, &older, &f) || shape_check(&shape, k, args, &f))
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
