/* fagen_forward, fagen_backward and fagen_workspace_size over kernels with hand-written recipes: what they refuse, what
 * they pass on, and which driver calls they make. The driver is tests/fake_cuda.c. */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "runtime/kernel.h"
#include "templates/abi.h"
#include "tests/count_help.h"
#include "tests/fake_use.h"

Suite *suite(void);

/* As tests/count_help.h counts. */
void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
static bool spare_growth; /* of text, which gives up: gen/text.h says so */
void *__wrap_realloc(void *p, size_t n)
{
	return !spare_growth && allocation_turn() == fail_allocation ? NULL : __real_realloc(p, n);
}

void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n)
{
	return allocation_turn() == fail_allocation ? NULL : __real_aligned_alloc(align, n);
}

enum { D_QK = 64, D_V = 96, SMS = 132 };

static struct fake fake;
static fagen_runtime runtime;
static struct fagen_kernel kernel;
static fagen_error error;

static struct recipe_kernel entry(const char *name, enum recipe_grid grid, int tile, int threads, int smem)
{
	struct recipe_kernel k = {.grid = grid, .tile = tile, .threads = threads, .smem_bytes = smem};
	snprintf(k.entry, sizeof k.entry, "%s", name);
	return k;
}

static struct recipe_piece piece(const char *name, enum recipe_size size, int tile, int unit, int zeroed)
{
	struct recipe_piece p = {.size = size, .tile = tile, .unit = unit, .zeroed = zeroed};
	snprintf(p.name, sizeof p.name, "%s", name);
	return p;
}

static void pass_open(enum pass i, const struct recipe *recipe)
{
	struct kernel_pass *pass = &kernel.pass[i];
	pass->recipe = *recipe;
	pass->launches = launches_keep();
	ck_assert_ptr_nonnull(pass->launches);
	ck_assert_int_eq(fake.cu.cuLibraryLoadData(&pass->library, "", NULL, NULL, 0, NULL, NULL, 0), 0);
	for (int k = 0; k < recipe->kernel_count; k++) {
		ck_assert_int_eq(fake.cu.cuLibraryGetKernel(&pass->entry[k], pass->library, recipe->kernel[k].entry),
		                 0);
		ck_assert_int_eq(fake.cu.cuKernelSetAttribute(CU_KERNEL_MAX_DYNAMIC_SMEM, recipe->kernel[k].smem_bytes,
		                                              pass->entry[k], kernel.device),
		                 0);
	}
	for (int p = 0; p < recipe->piece_count; p++)
		pass->piece_field[p] = !strcmp(recipe->piece[p].name, "delta") ? offsetof(struct fagen_abi, delta)
		                       : !strcmp(recipe->piece[p].name, "queue")
		                               ? offsetof(struct fagen_abi, queue)
		                       : !strcmp(recipe->piece[p].name, "parts")
		                               ? offsetof(struct fagen_abi, parts)
		                       : !strcmp(recipe->piece[p].name, "order")
		                               ? offsetof(struct fagen_abi, order)
		                               : offsetof(struct fagen_abi, dquery_accum);
}

static void kernel_close(void)
{
	for (int i = 0; i < PASS_COUNT; i++) {
		if (kernel.pass[i].library)
			ck_assert_int_eq(fake.cu.cuLibraryUnload(kernel.pass[i].library), 0);
		kernel.pass[i].library = NULL;
		free(kernel.pass[i].launches);
		kernel.pass[i].launches = NULL;
	}
}

/* A kernel on device 0 with a one-kernel forward and a three-kernel backward pass. */
static void kernel_open(int load_bytes, int kv_group)
{
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	kernel_close();
	memset(&kernel, 0, sizeof kernel);
	kernel.signature.head_dim_qk = D_QK;
	kernel.signature.head_dim_v = D_V;
	kernel.signature.outputs = OUTPUT_OUT | OUTPUT_LSE;
	kernel.signature.keep_256 = 230;
	kernel.signature.input_count = 0;
	kernel.signature.layout = LAYOUT_DENSE;
	kernel.runtime = &runtime;
	kernel.sms = SMS;
	ck_assert_int_eq(driver_primary(&kernel.primary, runtime.driver, 0, &f), 0);
	ck_assert_int_eq(fake.cu.cuDeviceGet(&kernel.device, 0), 0);
	struct recipe forward = {.kernel_count = 1, .load_bytes = load_bytes, .kv_group = kv_group};
	forward.kernel[0] = entry("fwd", GRID_QUERY_TILES, 128, 256, 70000);
	struct recipe backward = {.kernel_count = 3, .piece_count = 2, .load_bytes = load_bytes, .kv_group = kv_group};
	backward.kernel[0] = entry("bwd_delta", GRID_QUERY_TILES, 64, 128, 0);
	backward.kernel[1] = entry("bwd_main", GRID_KEY_TILES, 64, 256, 100000);
	backward.kernel[2] = entry("bwd_dq", GRID_QUERY_TILES, 128, 128, 4096);
	backward.piece[0] = piece("delta", SIZE_ROWS, 64, 0, 0);
	backward.piece[1] = piece("dquery_accum", SIZE_ROWS_QK, 64, D_QK, 1);
	pass_open(PASS_FORWARD, &forward);
	pass_open(PASS_BACKWARD, &backward);
}

static void setup(void)
{
	struct diag diag = {0};
	fake = fake_open();
	memset(&error, 0, sizeof error);
	error.struct_size = sizeof error;
	runtime.driver = driver_open();
	ck_assert_int_eq(driver_init(runtime.driver, &diag), 0);
	kernel_open(16, 0);
}

static void teardown(void)
{
	kernel_close();
	driver_close(runtime.driver);
	ck_assert_int_eq(fake.state->retained, 0);
	ck_assert_int_eq(fake.state->broken, 0);
}

/* A dense tensor [batch][head][seq][dim] at an address of its own. */
static fagen_tensor dense(int number, int64_t heads, int64_t rows, int64_t columns)
{
	return (fagen_tensor){(void *)(uintptr_t)(0x100000000u + (uintptr_t)number * 0x10000000u),
	                      heads * rows * columns, rows * columns, columns};
}

static fagen_args args_of(int64_t b, int64_t hq, int64_t hk, int64_t sq, int64_t sk)
{
	fagen_args a = {
		.struct_size = sizeof a, .batch = b, .heads_q = hq, .heads_kv = hk, .seqlen_q = sq, .seqlen_k = sk};
	a.query = dense(1, hq, sq, D_QK);
	a.key = dense(2, hk, sk, D_QK);
	a.value = dense(3, hk, sk, D_V);
	a.out = dense(4, hq, sq, D_V);
	a.dout = dense(5, hq, sq, D_V);
	a.dquery = dense(6, hq, sq, D_QK);
	a.dkey = dense(7, hk, sk, D_QK);
	a.dvalue = dense(8, hk, sk, D_V);
	a.lse = dense(9, hq, sq, 1);
	a.dlse = dense(10, hq, sq, 1);
	a.workspace = (void *)(uintptr_t)0x700000000;
	a.workspace_size = (size_t)1 << 40;
	a.seed = 42;
	a.offset = 7;
	return a;
}

static int launch(enum pass pass, const fagen_args *a, void *stream)
{
	return (pass == PASS_FORWARD ? fagen_forward : fagen_backward)(&kernel, a, stream, &error);
}

/* Three sequences in 200 rows of queries and 300 of keys. */
static fagen_args packed_args(void)
{
	fagen_args a = args_of(3, 8, 4, 200, 300);
	a.seqlen_q = 128, a.seqlen_k = 150;
	a.total_q = 200, a.total_k = 300;
	a.cu_seqlens_q = (const int32_t *)(uintptr_t)0x30000000;
	a.cu_seqlens_k = (const int32_t *)(uintptr_t)0x30000100;
	return a;
}

/* ---- refusals ---- */

/* One field of good arguments (2 x 8 x 4 heads, 200 queries, 300 keys, aligned loads) is set to a value. */
struct row {
	enum pass pass;
	int load_bytes, kv_group;
	size_t at;
	int64_t value;
	const char *field, *says;
};
#define AT(member) offsetof(fagen_args, member)
#define F PASS_FORWARD
#define B PASS_BACKWARD

static const struct row refused[] = {
	{F, 16, 0, AT(batch), -1, "batch", "0 to 1073741824 (2^30)"},
	{F, 16, 0, AT(batch), LENGTH_MAX + 1LL, "batch", "0 to 1073741824 (2^30)"},
	{F, 16, 0, AT(batch), INT64_C(1) << 29, "batch", "split the batch"},
	{F, 16, 0, AT(batch), INT32_MAX / 8, "batch", "blocks of kernel fwd"},
	{F, 16, 0, AT(heads_q), -8, "heads_q", "0 to"},
	{F, 16, 0, AT(heads_kv), -4, "heads_kv", "0 to"},
	{F, 16, 0, AT(seqlen_q), -1, "seqlen_q", "0 to 1073741824"},
	{F, 16, 0, AT(seqlen_q), LENGTH_MAX + 1LL, "seqlen_q", "0 to 1073741824"},
	{F, 16, 0, AT(seqlen_k), INT64_MIN, "seqlen_k", "0 to 1073741824"},
	{F, 16, 0, AT(heads_q), 9, "heads_q", "multiple of heads_kv"},
	{F, 16, 0, AT(heads_q), 2, "heads_q", "multiple of heads_kv"},
	{F, 16, 0, AT(heads_kv), 3, "heads_q", "multiple of heads_kv"},
	{F, 16, 0, AT(heads_kv), 0, "heads_kv", "both or neither"},
	{F, 16, 0, AT(heads_q), 0, "heads_q", "both or neither"},
	{F, 16, 2, AT(heads_kv), 8, "heads_q", "heads_q = 16"},
	{F, 16, 2, AT(heads_kv), 2, "heads_q", "kv_group: any"},
	{F, 16, 0, AT(query.data), 0, "query.data", "NULL"},
	{F, 16, 0, AT(key.data), 0, "key.data", "NULL"},
	{F, 16, 0, AT(value.data), 0, "value.data", "NULL"},
	{F, 16, 0, AT(out.data), 0, "out.data", "NULL"},
	{F, 16, 0, AT(lse.data), 0, "lse.data", "NULL"},
	{B, 16, 0, AT(lse.data), 0, "lse.data", "NULL"},
	{B, 16, 0, AT(out.data), 0, "out.data", "NULL"},
	{B, 16, 0, AT(dout.data), 0, "dout.data", "NULL"},
	{B, 16, 0, AT(dquery.data), 0, "dquery.data", "NULL"},
	{B, 16, 0, AT(dkey.data), 0, "dkey.data", "NULL"},
	{B, 16, 0, AT(dvalue.data), 0, "dvalue.data", "NULL"},
	{F, 16, 0, AT(query.data), 0x10000008, "query.data", "problem.align = 2"},
	{F, 16, 0, AT(key.data), 0x10000002, "key.data", "problem.align = 2"},
	{F, 2, 0, AT(value.data), 0x10000001, "value.data", "element's 2 bytes"},
	{F, 2, 0, AT(lse.data), 0x10000002, "lse.data", "element's 4 bytes"},
	{B, 16, 0, AT(dlse.data), 0x10000001, "dlse.data", "element's 4 bytes"},
	{B, 16, 0, AT(dvalue.data), 0x10000004, "dvalue.data", "problem.align = 2"},
	{F, 16, 0, AT(query.stride_seq), 65, "query.stride_seq", "multiple of 8: get a kernel with problem.align = 2"},
	{F, 16, 0, AT(key.stride_head), 4, "key.stride_head", "problem.align = 2"},
	{F, 16, 0, AT(value.stride_batch), -12, "value.stride_batch", "problem.align = 2"},
	{B, 16, 0, AT(dout.stride_seq), 97, "dout.stride_seq", "problem.align = 2"},
	{B, 16, 0, AT(dkey.stride_seq), 68, "dkey.stride_seq", "problem.align = 2"},
	{F, 16, 0, AT(out.stride_seq), 0, "out.stride_seq", "may not overlap"},
	{F, 16, 0, AT(out.stride_head), 88, "out.stride_head", "may not overlap"},
	{F, 16, 0, AT(lse.stride_seq), 0, "lse.stride_seq", "may not overlap"},
	{B, 16, 0, AT(dquery.stride_batch), 0, "dquery.stride_batch", "may not overlap"},
	{B, 2, 0, AT(dkey.stride_seq), -63, "dkey.stride_seq", "may not overlap"},
	{F, 2, 0, AT(query.stride_batch), INT64_MAX, "query.stride_batch", "2^63"},
	{F, 2, 0, AT(query.stride_batch), INT64_MIN, "query.stride_batch", "2^63"},
	{F, 2, 0, AT(query.stride_seq), INT64_MAX / 128, "query.stride_seq", "2^63"},
	{F, 16, 0, AT(rng_state), 0x10000004, "rng_state", "multiple of 8"},
	{B, 16, 0, AT(workspace), 0, "workspace", "fagen_workspace_size"},
	{B, 16, 0, AT(workspace), 0x10000080, "workspace", "256"},
	{B, 16, 0, AT(workspace_size), 1000, "workspace_size", "fagen_workspace_size"},
};

static void row_apply(fagen_args *a, const struct row *r)
{
	*a = args_of(2, 8, 4, 200, 300);
	memcpy((char *)a + r->at, &r->value, sizeof r->value);
}

START_TEST(wrong_arguments_are_refused_by_name)
{
	const struct row *r = &refused[_i];
	fagen_args a;
	kernel_open(r->load_bytes, r->kv_group);
	row_apply(&a, r);
	const int calls = fake.state->calls;
	ck_assert_int_eq(launch(r->pass, &a, fake.stream(kernel.primary)), FAGEN_ERROR_INVALID);
	ck_assert_int_eq(error.code, FAGEN_ERROR_INVALID);
	ck_assert_str_eq(error.field, r->field);
	ck_assert_msg(strstr(error.message, r->says) != NULL, "\"%s\" is not in: %s", r->says, error.message);
	ck_assert_msg(strncmp(error.message, "error", 5) && error.message[strlen(error.message) - 1] != '\n', "%s",
	              error.message);
	ck_assert_int_eq(fake.state->calls, calls); /* refused before the driver is touched */
}
END_TEST

static const struct row accepted[] = {
	{F, 16, 0, AT(query.stride_seq), 0, NULL, NULL}, /* inputs may be broadcast */
	{F, 16, 0, AT(key.stride_head), 0, NULL, NULL},
	{F, 16, 0, AT(value.stride_batch), -9600, NULL, NULL}, /* and walk backwards */
	{B, 16, 0, AT(dout.stride_seq), 0, NULL, NULL},
	{F, 2, 0, AT(query.data), 0x10000002, NULL, NULL},
	{F, 2, 0, AT(key.stride_seq), 65, NULL, NULL},
	{F, 2, 0, AT(out.stride_seq), -97, NULL, NULL},
	{B, 16, 0, AT(dlse.data), 0, NULL, NULL},
	{F, 16, 2, AT(batch), 1, NULL, NULL},
	{F, 16, 0, AT(heads_q), 12, NULL, NULL},
	{F, 16, 0, AT(heads_kv), 1, NULL, NULL},
	{F, 16, 0, AT(heads_kv), 8, NULL, NULL},
	{F, 16, 0, AT(workspace), 0, NULL, NULL}, /* the forward pass needs none */
	{F, 16, 0, AT(offset), UINT32_MAX, NULL, NULL},
	{F, 16, 0, AT(rng_state), 0x10000008, NULL, NULL},
	{F, 16, 0, AT(dout.data), 0, NULL, NULL}, /* what a pass does not use is not looked at */
	{F, 16, 0, AT(dquery.stride_seq), 3, NULL, NULL},
	{F, 16, 0, AT(seqlen_q), INT64_C(1) << 30, NULL, NULL},
};

START_TEST(unusual_but_legal_arguments_are_accepted)
{
	const struct row *r = &accepted[_i];
	fagen_args a;
	kernel_open(r->load_bytes, r->kv_group);
	row_apply(&a, r);
	ck_assert_msg(!launch(r->pass, &a, fake.stream(kernel.primary)), "%s: %s", error.field, error.message);
	ck_assert_int_eq(error.code, FAGEN_OK);
	ck_assert_int_gt(fake.state->launches, 0);
}
END_TEST

START_TEST(lse_is_refused_where_the_kernel_does_not_write_it)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	kernel.signature.outputs = OUTPUT_OUT;
	ck_assert_int_eq(launch(F, &a, fake.stream(kernel.primary)), FAGEN_ERROR_INVALID);
	ck_assert_str_eq(error.field, "lse.data");
	a.lse.data = NULL;
	ck_assert_int_eq(launch(F, &a, fake.stream(kernel.primary)), FAGEN_OK);
}
END_TEST

START_TEST(dropout_arguments_are_ignored_without_dropout)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	kernel.signature.keep_256 = 256;
	a.offset = UINT64_MAX;
	a.rng_state = (const uint64_t *)(uintptr_t)3;
	ck_assert_int_eq(launch(F, &a, fake.stream(kernel.primary)), FAGEN_OK);
	struct fagen_abi abi;
	memcpy(&abi, fake.state->launch[0].params, sizeof abi);
	ck_assert(abi.seed == 0 && abi.offset == 0 && abi.rng_state == 0);
}
END_TEST

START_TEST(a_missing_pass_is_named)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	kernel.pass[B].recipe.kernel_count = 0;
	ck_assert_int_eq(launch(B, &a, NULL), FAGEN_ERROR_INVALID);
	ck_assert_str_eq(error.field, "kernel");
	ck_assert_ptr_nonnull(strstr(error.message, "no backward pass"));
}
END_TEST

/* ---- what reaches the device ---- */

START_TEST(forward_passes_every_argument_on)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	cu_stream stream = fake.stream(kernel.primary);
	ck_assert_int_eq(launch(F, &a, stream), FAGEN_OK);
	ck_assert_int_eq(fake.state->launches, 1);
	const struct fake_launch *l = &fake.state->launch[0];
	ck_assert_str_eq(l->entry, "fwd");
	ck_assert_uint_eq(l->grid, 2 * 8 * 2);
	ck_assert_uint_eq(l->threads, 256);
	ck_assert_uint_eq(l->smem, 70000);
	ck_assert_ptr_eq(l->stream, stream);
	struct fagen_abi abi, want = {
				      .query = {(uintptr_t)a.query.data, 8 * 200 * 64, 200 * 64, 64},
				      .key = {(uintptr_t)a.key.data, 4 * 300 * 64, 300 * 64, 64},
				      .value = {(uintptr_t)a.value.data, 4 * 300 * 96, 300 * 96, 96},
				      .out = {(uintptr_t)a.out.data, 8 * 200 * 96, 200 * 96, 96},
				      .lse = {(uintptr_t)a.lse.data, 8 * 200, 200, 1},
				      .seed = 42,
				      .offset = 7,
				      .batch = 2,
				      .heads_q = 8,
				      .heads_kv = 4,
				      .seqlen_q = 200,
				      .seqlen_k = 300,
				      .kv_group = 2,
			      };
	memcpy(&abi, l->params, sizeof abi);
	ck_assert_mem_eq(&abi, &want, sizeof abi);
}
END_TEST

START_TEST(lengths_reach_the_kernel)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	struct fagen_abi abi;
	kernel.signature.layout = LAYOUT_PADDED;
	ck_assert_int_eq(launch(F, &a, fake.stream(kernel.primary)), FAGEN_OK);
	memcpy(&abi, fake.state->launch[0].params, sizeof abi);
	ck_assert(!abi.seqlens_q && !abi.seqlens_k && !abi.cu_seqlens_q && !abi.cu_seqlens_k);
	a.seqlens_q = (const int32_t *)(uintptr_t)0x30000004;
	a.seqlens_k = (const int32_t *)(uintptr_t)0x30000008;
	ck_assert_int_eq(launch(F, &a, fake.stream(kernel.primary)), FAGEN_OK);
	memcpy(&abi, fake.state->launch[1].params, sizeof abi);
	ck_assert(abi.seqlens_q == 0x30000004 && abi.seqlens_k == 0x30000008 && abi.seqlen_q == 200);
	ck_assert_uint_eq(fake.state->launch[1].grid, 2 * 8 * 2);
}
END_TEST

START_TEST(packed_tensors_have_no_batch)
{
	fagen_args a = packed_args();
	struct fagen_abi abi;
	kernel.signature.layout = LAYOUT_PACKED;
	a.query.stride_batch = a.out.stride_batch = 3; /* neither aligned nor apart: ignored */
	ck_assert_msg(!launch(F, &a, fake.stream(kernel.primary)), "%s", error.message);
	const struct fake_launch *l = &fake.state->launch[0];
	memcpy(&abi, l->params, sizeof abi);
	ck_assert_uint_eq(l->grid, 8 * (200 / 128 + 3));
	ck_assert(abi.query.stride_batch == 0 && abi.query.stride_head == 200 * 64 && abi.query.stride_seq == 64);
	ck_assert(abi.lse.stride_batch == 0 && abi.lse.stride_head == 200 && abi.lse.stride_seq == 1);
	ck_assert(abi.cu_seqlens_q == 0x30000000 && abi.cu_seqlens_k == 0x30000100 && !abi.seqlens_q);
	ck_assert(abi.total_q == 200 && abi.total_k == 300 && abi.seqlen_q == 128 && abi.seqlen_k == 150);
	ck_assert_msg(!launch(B, &a, fake.stream(kernel.primary)), "%s", error.message);
	ck_assert_uint_eq(fake.state->launch[2].grid, 4 * (300 / 64 + 3));
	/* VAR-04: of nothing, nothing is launched, and nothing need be there. */
	a = packed_args();
	a.total_q = a.total_k = 0;
	a.query.data = a.key.data = a.value.data = a.out.data = a.lse.data = a.dout.data = a.dlse.data = NULL;
	a.dquery.data = a.dkey.data = a.dvalue.data = NULL;
	const int launches = fake.state->launches;
	ck_assert_msg(!launch(F, &a, fake.stream(kernel.primary)), "%s", error.message);
	ck_assert_msg(!launch(B, &a, fake.stream(kernel.primary)), "%s", error.message);
	ck_assert_int_eq(fake.state->launches, launches);
}
END_TEST

START_TEST(lengths_are_checked_by_name)
{
	static const struct {
		enum batch_layout layout;
		size_t at;
		int64_t value;
		const char *field, *says;
	} row[] = {
		{LAYOUT_DENSE, AT(seqlens_q), 0x1000, "seqlens_q", "layout: padded"},
		{LAYOUT_DENSE, AT(seqlens_k), 0x1000, "seqlens_k", "layout: padded"},
		{LAYOUT_DENSE, AT(cu_seqlens_q), 0x1000, "cu_seqlens_q", "layout: packed"},
		{LAYOUT_PADDED, AT(cu_seqlens_k), 0x1000, "cu_seqlens_k", "the spec's layout is padded"},
		{LAYOUT_PADDED, AT(total_q), 5, "total_q", "not packed"},
		{LAYOUT_PADDED, AT(seqlens_q), 0x1002, "seqlens_q", "4 bytes"},
		{LAYOUT_PACKED, AT(cu_seqlens_q), 0, "cu_seqlens_q", "3 + 1"},
		{LAYOUT_PACKED, AT(cu_seqlens_k), 0, "cu_seqlens_k", "NULL"},
		{LAYOUT_PACKED, AT(cu_seqlens_k), 0x1001, "cu_seqlens_k", "4 bytes"},
		{LAYOUT_PACKED, AT(total_q), -1, "total_q", "0 to 1073741824"},
		{LAYOUT_PACKED, AT(total_k), LENGTH_MAX + 1LL, "total_k", "0 to 1073741824"},
		{LAYOUT_PACKED, AT(batch), INT32_MAX / 8, "batch", "blocks of kernel fwd"},
	};
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		fagen_args a = row[i].layout == LAYOUT_PACKED ? packed_args() : args_of(2, 8, 4, 200, 300);
		memcpy((char *)&a + row[i].at, &row[i].value, sizeof row[i].value);
		kernel.signature.layout = row[i].layout;
		ck_assert_int_eq(launch(F, &a, fake.stream(kernel.primary)), FAGEN_ERROR_INVALID);
		ck_assert_str_eq(error.field, row[i].field);
		ck_assert_msg(strstr(error.message, row[i].says) != NULL, "\"%s\" is not in: %s", row[i].says,
		              error.message);
	}
	ck_assert_int_eq(fake.state->launches, 0);
}
END_TEST

START_TEST(backward_clears_then_launches_in_order)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	cu_stream stream = fake.stream(kernel.primary);
	a.rng_state = (const uint64_t *)(uintptr_t)0x20000000;
	ck_assert_int_eq(launch(B, &a, stream), FAGEN_OK);
	const struct fake_cuda *s = fake.state;
	const uintptr_t workspace = (uintptr_t)a.workspace,
			delta = 4 * 2 * 8 * 256; /* 200 rows rounded up to tiles of 64 */
	ck_assert_int_eq(s->memsets, 1);
	ck_assert_int_eq(s->memset[0].launches_before, 0);
	ck_assert_uint_eq(s->memset[0].at, workspace + delta);
	ck_assert_uint_eq(s->memset[0].words, 2 * 8 * 256 * 64);
	ck_assert_ptr_eq(s->memset[0].stream, stream);
	ck_assert_int_eq(s->launches, 3);
	static const struct {
		const char *entry;
		unsigned int grid, smem;
	} want[] = {
		{"bwd_delta", 2 * 8 * 4, 0},
		{"bwd_main", 2 * 4 * 5, 100000},
		{"bwd_dq", 2 * 8 * 2, 4096},
	};
	for (int i = 0; i < 3; i++) {
		struct fagen_abi abi;
		memcpy(&abi, s->launch[i].params, sizeof abi);
		ck_assert_str_eq(s->launch[i].entry, want[i].entry);
		ck_assert_uint_eq(s->launch[i].grid, want[i].grid);
		ck_assert_uint_eq(s->launch[i].smem, want[i].smem);
		ck_assert_ptr_eq(s->launch[i].stream, stream);
		ck_assert_uint_eq(abi.delta, workspace);
		ck_assert_uint_eq(abi.dquery_accum, workspace + delta);
		ck_assert_uint_eq(abi.dlse.data, (uintptr_t)a.dlse.data);
		ck_assert_uint_eq(abi.dkey.data, (uintptr_t)a.dkey.data);
		ck_assert_int_eq(abi.dvalue.stride_seq, 96);
		ck_assert_uint_eq(abi.rng_state, 0x20000000);
	}
}
END_TEST

/* LAY-03 */
START_TEST(strides_of_single_entries_are_dropped)
{
	fagen_args a = args_of(1, 1, 1, 1, 1);
	fagen_tensor *tensors[] = {&a.query, &a.key, &a.value, &a.out, &a.lse};
	for (int i = 0; i < 5; i++) {
		tensors[i]->stride_batch = 3;
		tensors[i]->stride_head = INT64_MIN;
		tensors[i]->stride_seq = 0;
	}
	ck_assert_msg(!launch(F, &a, fake.stream(kernel.primary)), "%s", error.message);
	struct fagen_abi abi;
	memcpy(&abi, fake.state->launch[0].params, sizeof abi);
	const struct fagen_abi_tensor *given[] = {&abi.query, &abi.key, &abi.value, &abi.out, &abi.lse};
	for (int i = 0; i < 5; i++)
		ck_assert(given[i]->stride_batch == 0 && given[i]->stride_head == 0 && given[i]->stride_seq == 0);
}
END_TEST

/* Shapes with a zero: which kernels run, and that nothing asks for the address of an empty tensor. */
START_TEST(empty_problems)
{
	static const struct {
		enum pass pass;
		int64_t b, hq, hk, sq, sk;
		int launches, memsets;
		const char *first;
	} row[] = {
		{F, 2, 8, 4, 200, 0, 1, 0, "fwd"}, /* writes out = 0, lse = -inf */
		{F, 2, 8, 4, 0, 300, 0, 0, NULL},        {F, 2, 8, 4, 0, 0, 0, 0, NULL},
		{F, 0, 8, 4, 200, 300, 0, 0, NULL},      {F, 2, 0, 0, 200, 300, 0, 0, NULL},
		{B, 2, 8, 4, 0, 300, 1, 0, "bwd_main"},  /* writes dkey = dvalue = 0 */
		{B, 2, 8, 4, 200, 0, 2, 1, "bwd_delta"}, /* writes dquery = 0 */
		{B, 0, 8, 4, 200, 300, 0, 0, NULL},      {B, 2, 0, 0, 200, 300, 0, 0, NULL},
	};
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		fagen_args a = args_of(row[i].b, row[i].hq, row[i].hk, row[i].sq, row[i].sk);
		const bool no_q = !a.batch || !a.heads_q || !a.seqlen_q, no_k = !a.batch || !a.heads_kv || !a.seqlen_k;
		if (no_q)
			a.query.data = a.out.data = a.lse.data = a.dout.data = a.dlse.data = a.dquery.data = NULL;
		if (no_k)
			a.key.data = a.value.data = a.dkey.data = a.dvalue.data = NULL;
		if (no_q || !row[i].launches)
			a.workspace = NULL, a.workspace_size = 0;
		const int launches = fake.state->launches, memsets = fake.state->memsets;
		ck_assert_msg(!launch(row[i].pass, &a, fake.stream(kernel.primary)), "row %zu: %s", i, error.message);
		ck_assert_int_eq(fake.state->launches - launches, row[i].launches);
		ck_assert_int_eq(fake.state->memsets - memsets, row[i].memsets);
		if (row[i].first)
			ck_assert_str_eq(fake.state->launch[launches].entry, row[i].first);
	}
}
END_TEST

/* What there is to do without a query, such as to clear the gradient of an input, is done. */
START_TEST(one_block_without_queries)
{
	static const int64_t shape[][5] = {{2, 8, 4, 0, 300}, {0, 8, 4, 200, 300}, {2, 0, 0, 200, 300}};
	kernel.pass[PASS_BACKWARD].recipe.kernel[2].grid = GRID_QUERY_TILES_1;
	for (int i = 0; i < 3; i++) {
		const int before = fake.state->launches, memsets = fake.state->memsets;
		const fagen_args a = args_of(shape[i][0], shape[i][1], shape[i][2], shape[i][3], shape[i][4]);
		ck_assert_msg(!launch(B, &a, fake.stream(kernel.primary)), "%s", error.message);
		ck_assert_int_eq(fake.state->launches - before, i == 0 ? 2 : 1); /* dkey and dvalue are cleared, too */
		ck_assert_int_eq(fake.state->memsets, memsets);
		const struct fake_launch *last = &fake.state->launch[fake.state->launches - 1];
		struct fagen_abi abi;
		memcpy(&abi, last->params, sizeof abi);
		ck_assert_str_eq(last->entry, "bwd_dq");
		ck_assert_int_eq(last->grid, 1);
		ck_assert_int_eq(abi.kv_group, shape[i][2] ? 2 : 0);
	}
}
END_TEST

START_TEST(workspace_size_is_pure_and_enough)
{
	static const struct {
		int64_t b, hq, hk, sq, sk;
		size_t bytes;
	} row[] = {
		{2, 8, 4, 200, 300, (size_t)2 * 8 * 256 * 4 * 65},
		{1, 1, 1, 1, 1, (size_t)64 * 4 * 65},
		{1, 3, 1, 64, 9, (size_t)3 * 64 * 4 * 65},
		{1, 16, 16, 1 << 20, 1 << 20, (size_t)16 * (1 << 20) * 4 * 65},
		{2, 8, 4, 0, 300, 0},
	};
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		fagen_args a = {.struct_size = sizeof a,
		                .batch = row[i].b,
		                .heads_q = row[i].hq,
		                .heads_kv = row[i].hk,
		                .seqlen_q = row[i].sq,
		                .seqlen_k = row[i].sk};
		const int calls = fake.state->calls;
		size_t bytes = 1;
		ck_assert_int_eq(fagen_workspace_size(&bytes, &kernel, &a, &error), FAGEN_OK);
		ck_assert_uint_eq(bytes, row[i].bytes);
		ck_assert_int_eq(fake.state->calls, calls);
		a = args_of(row[i].b, row[i].hq, row[i].hk, row[i].sq, row[i].sk);
		a.workspace_size = bytes;
		ck_assert_msg(!launch(B, &a, fake.stream(kernel.primary)), "%s", error.message);
		if (bytes) {
			a.workspace_size = bytes - 1;
			ck_assert_int_eq(launch(B, &a, fake.stream(kernel.primary)), FAGEN_ERROR_INVALID);
		}
	}
	fagen_args a = {.struct_size = sizeof a,
	                .batch = LENGTH_MAX,
	                .heads_q = 1,
	                .heads_kv = 1,
	                .seqlen_q = 1 << 30,
	                .seqlen_k = 1};
	size_t bytes = 77;
	ck_assert_int_eq(fagen_workspace_size(&bytes, &kernel, &a, &error), FAGEN_ERROR_INVALID);
	ck_assert_str_eq(error.field, "workspace_size");
	ck_assert_uint_eq(bytes, 77);
	a.seqlen_q = -1;
	ck_assert_int_eq(fagen_workspace_size(&bytes, &kernel, &a, &error), FAGEN_ERROR_INVALID);
	ck_assert_str_eq(error.field, "seqlen_q");
}
END_TEST

/* ---- named inputs ---- */

enum { BIAS, DOC, KEEP, TEMPERATURE, LENGTHS, INPUTS };

static void input_set(int i, const char *name, enum input_dtype dtype, bool grad, int dims, const struct input_dim *dim)
{
	struct input *in = &kernel.signature.input[i];
	*in = (struct input){.dtype = dtype, .dims = dims, .grad = grad};
	snprintf(in->name, sizeof in->name, "%s", name);
	for (int d = 0; d < dims; d++)
		in->dim[d] = dim[d];
}

/* bias f32 [heads, 257, 3] with a gradient, doc i32 [batch, seq_k], keep u8 [batch, heads, blocks_q, blocks_k] of 64 x 128
 * blocks, temperature bf16 [] with a gradient, lengths i32 [heads_kv, seq_q]. */
static void spec_inputs(void)
{
	const struct input_dim batch = {DIM_BATCH, 0}, heads = {DIM_HEADS, 0}, heads_kv = {DIM_HEADS_KV, 0},
			       q = {DIM_SEQ_Q, 0}, k = {DIM_SEQ_K, 0}, blocks_q = {DIM_BLOCKS_Q, 0},
			       blocks_k = {DIM_BLOCKS_K, 0};
	input_set(BIAS, "bias", INPUT_F32, true, 3, (struct input_dim[]){heads, {DIM_CONST, 257}, {DIM_CONST, 3}});
	input_set(DOC, "doc", INPUT_I32, false, 2, (struct input_dim[]){batch, k});
	input_set(KEEP, "keep", INPUT_U8, false, 4, (struct input_dim[]){batch, heads, blocks_q, blocks_k});
	input_set(TEMPERATURE, "temperature", INPUT_BF16, true, 0, NULL);
	input_set(LENGTHS, "lengths", INPUT_I32, false, 2, (struct input_dim[]){heads_kv, q});
	kernel.signature.input_count = INPUTS;
	kernel.signature.block_q = 64;
	kernel.signature.block_k = 128;
}

static void inputs_of(fagen_input in[INPUTS])
{
	memset(in, 0, INPUTS * sizeof *in);
	in[BIAS] = (fagen_input){.name = "bias",
	                         .data = (void *)(uintptr_t)0x20000004,
	                         .stride = {-771, 3, 1, 5},
	                         .grad = (void *)(uintptr_t)0x28000000,
	                         .grad_stride = {1, 24, 8}};
	in[DOC] = (fagen_input){.name = "doc", .data = (void *)(uintptr_t)0x30000008, .stride = {0, 1}};
	in[KEEP] = (fagen_input){.name = "keep", .data = (void *)(uintptr_t)0x40000001, .stride = {96, 12, 3, 1}};
	in[TEMPERATURE] = (fagen_input){
		.name = "temperature", .data = (void *)(uintptr_t)0x50000002, .grad = (void *)(uintptr_t)0x58000004};
	in[LENGTHS] = (fagen_input){.name = "lengths", .data = (void *)(uintptr_t)0x60000000, .stride = {200, 1}};
}

static struct fagen_abi launched(int i)
{
	struct fagen_abi abi;
	memcpy(&abi, fake.state->launch[i].params, sizeof abi);
	return abi;
}

START_TEST(inputs_reach_the_kernel_in_the_order_of_the_spec)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	fagen_input in[INPUTS], mixed[INPUTS];
	spec_inputs();
	inputs_of(in);
	for (int i = 0; i < INPUTS; i++)
		mixed[i] = in[(i * 2 + 3) % INPUTS];
	a.inputs = mixed;
	a.input_count = INPUTS;
	struct fagen_abi_input want[FAGEN_ABI_INPUTS] = {
		[BIAS] = {.data = 0x20000004, .stride = {-771, 3, 1}},   [DOC] = {.data = 0x30000008, .stride = {0, 1}},
		[KEEP] = {.data = 0x40000001, .stride = {96, 12, 3, 1}}, [TEMPERATURE] = {.data = 0x50000002},
		[LENGTHS] = {.data = 0x60000000, .stride = {200, 1}},
	};
	ck_assert_msg(!launch(F, &a, fake.stream(kernel.primary)), "%s", error.message);
	struct fagen_abi abi = launched(0);
	ck_assert_mem_eq(abi.input, want, sizeof want);
	ck_assert_msg(!launch(B, &a, fake.stream(kernel.primary)), "%s", error.message);
	want[BIAS].grad = 0x28000000;
	want[BIAS].grad_stride[0] = 1, want[BIAS].grad_stride[1] = 24, want[BIAS].grad_stride[2] = 8;
	want[TEMPERATURE].grad = 0x58000004;
	for (int i = 1; i < 4; i++) {
		abi = launched(i);
		ck_assert_mem_eq(abi.input, want, sizeof want);
	}
	kernel.naive = true;
	ck_assert_int_eq(launch(B, &a, fake.stream(kernel.primary)), FAGEN_ERROR_INVALID);
	ck_assert_str_eq(error.field, "inputs.bias.grad");
	kernel.naive = false;
	/* Not wanted: not computed. */
	mixed[1].grad = NULL;
	ck_assert_str_eq(mixed[1].name, "bias");
	ck_assert_msg(!launch(B, &a, fake.stream(kernel.primary)), "%s", error.message);
	ck_assert(launched(4).input[BIAS].grad == 0 && launched(4).input[TEMPERATURE].grad == 0x58000004);
}
END_TEST

#define IN(member) offsetof(fagen_input, member)
#define STRIDE(i) (IN(stride) + (i) * sizeof(int64_t))
#define GRAD_STRIDE(i) (IN(grad_stride) + (i) * sizeof(int64_t))

/* One member of good inputs is set to a value. */
static const struct input_row {
	enum pass pass;
	int input;
	size_t at;
	int64_t value;
	const char *field, *says; /* NULL: accepted */
} input_rows[] = {
	{F, BIAS, IN(name), 0, "inputs", "name is NULL"},
	{F, BIAS, IN(data), 0, "inputs.bias.data", "NULL"},
	{F, BIAS, IN(data), 0x20000002, "inputs.bias.data", "element's 4 bytes"},
	{F, TEMPERATURE, IN(data), 0x20000001, "inputs.temperature.data", "element's 2 bytes"},
	{F, DOC, IN(data), 0x20000001, "inputs.doc.data", "element's 4 bytes"},
	{F, BIAS, STRIDE(0), INT64_MIN, "inputs.bias.stride[0]", "2^63"},
	{F, BIAS, STRIDE(1), INT64_MAX / 32, "inputs.bias.stride[1]", "2^63"},
	{F, KEEP, STRIDE(3), INT64_MAX / 2, "inputs.keep.stride[3]", "2^63"},
	{B, BIAS, IN(grad), 0x20000002, "inputs.bias.grad", "element's 4 bytes"},
	{B, TEMPERATURE, IN(grad), 0x20000001, "inputs.temperature.grad", "element's 4 bytes"},
	{B, DOC, IN(grad), 0x20000000, "inputs.doc.grad", "grad: true"},
	{B, BIAS, GRAD_STRIDE(0), 0, "inputs.bias.grad_stride", "may not overlap"},
	{B, BIAS, GRAD_STRIDE(1), 23, "inputs.bias.grad_stride", "23 over 257"},
	{B, BIAS, GRAD_STRIDE(2), 7, "inputs.bias.grad_stride", "may not overlap"},
	{B, BIAS, GRAD_STRIDE(2), INT64_MAX, "inputs.bias.grad_stride[2]", "2^63"},
	{F, BIAS, STRIDE(1), 0, NULL, NULL},
	{F, KEEP, IN(data), 0x40000007, NULL, NULL},
	{F, DOC, STRIDE(1), -1, NULL, NULL},
	{F, DOC, STRIDE(2), INT64_MIN, NULL, NULL}, /* a dimension that it does not have */
	{F, BIAS, GRAD_STRIDE(0), 0, NULL, NULL},   /* forward writes no gradient */
	{F, DOC, IN(grad), 0x20000001, NULL, NULL},
	{B, BIAS, IN(grad), 0, NULL, NULL},
	{B, BIAS, GRAD_STRIDE(1), -24, NULL, NULL},
	{B, BIAS, GRAD_STRIDE(0), 24 * 257, NULL, NULL},
};

START_TEST(inputs_are_checked_by_name)
{
	const struct input_row *r = &input_rows[_i];
	fagen_args a = args_of(2, 8, 4, 200, 300);
	fagen_input in[INPUTS];
	spec_inputs();
	inputs_of(in);
	a.inputs = in;
	a.input_count = INPUTS;
	memcpy((char *)&in[r->input] + r->at, &r->value, sizeof r->value);
	const int calls = fake.state->calls, rc = launch(r->pass, &a, fake.stream(kernel.primary));
	if (!r->field) {
		ck_assert_msg(!rc, "%s: %s", error.field, error.message);
		return;
	}
	ck_assert_int_eq(rc, FAGEN_ERROR_INVALID);
	ck_assert_str_eq(error.field, r->field);
	ck_assert_msg(strstr(error.message, r->says) != NULL, "\"%s\" is not in: %s", r->says, error.message);
	ck_assert_int_eq(fake.state->calls, calls);
}
END_TEST

static void refuses_inputs(const fagen_args *a, const char *says)
{
	ck_assert_int_eq(launch(F, a, NULL), FAGEN_ERROR_INVALID);
	ck_assert_str_eq(error.field, "inputs");
	ck_assert_msg(strstr(error.message, says) != NULL, "\"%s\" is not in: %s", says, error.message);
}

START_TEST(inputs_are_given_once_each)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	fagen_input in[INPUTS];
	spec_inputs();
	inputs_of(in);
	a.inputs = in;
	a.input_count = INPUTS - 1;
	refuses_inputs(&a, "'lengths' (i32, 2 dimensions)");
	a.input_count = INPUTS;
	a.inputs = NULL;
	refuses_inputs(&a, "input_count is 5");
	a.inputs = in;
	in[DOC].name = "bais";
	refuses_inputs(&a, "did you mean 'bias'");
	in[DOC].name = "something_else";
	refuses_inputs(&a, "its inputs are bias, doc, keep, temperature, lengths");
	in[DOC].name = "keep";
	refuses_inputs(&a, "'keep' is given twice");
	/* A caller of the version before inputs. */
	inputs_of(in);
	a.struct_size = offsetof(fagen_args, inputs);
	refuses_inputs(&a, "'bias'");
	a.struct_size = sizeof a;
	ck_assert_int_eq(launch(F, &a, NULL), FAGEN_OK);
	kernel.signature.input_count = 0;
	refuses_inputs(&a, "has no inputs");
	a.struct_size = offsetof(fagen_args, inputs);
	ck_assert_int_eq(launch(F, &a, NULL), FAGEN_OK);
	ck_assert(launched(1).input[0].data == 0);
}
END_TEST

/* Nothing asks for the address of an input without elements; what a kernel gets is memory that exists. */
START_TEST(empty_inputs_may_be_null)
{
	fagen_args a = args_of(2, 8, 4, 200, 0);
	fagen_input in[INPUTS];
	spec_inputs();
	inputs_of(in);
	a.inputs = in;
	a.input_count = INPUTS;
	a.query.data = (void *)(uintptr_t)0x100000000;
	in[DOC].data = in[KEEP].data = NULL;
	in[DOC].stride[0] = 7;
	ck_assert_msg(!launch(F, &a, NULL), "%s", error.message);
	const struct fagen_abi_input want = {.data = 0x100000000};
	struct fagen_abi abi = launched(0);
	ck_assert_mem_eq(&abi.input[DOC], &want, sizeof want);
	ck_assert_mem_eq(&abi.input[KEEP], &want, sizeof want);
	ck_assert_uint_eq(abi.input[LENGTHS].data, 0x60000000);
	a = args_of(2, 8, 4, 0, 300);
	a.query.data = NULL;
	a.inputs = in;
	a.input_count = INPUTS;
	inputs_of(in);
	in[LENGTHS].data = NULL;
	ck_assert_msg(!launch(B, &a, NULL), "%s", error.message);
	ck_assert_uint_eq(launched(1).input[LENGTHS].data, (uintptr_t)a.key.data);
}
END_TEST

/* Gradients that are accepted have an address of their own for every entry, and every permuted dense layout is accepted. */
START_TEST(gradients_never_overlap)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	fagen_input in = {.name = "x", .data = (void *)(uintptr_t)0x1000, .grad = (void *)(uintptr_t)0x2000};
	cu_stream stream = fake.stream(kernel.primary);
	unsigned state = 1;
	int accepted_count = 0;
	a.inputs = &in;
	a.input_count = 1;
	kernel.signature.input_count = 1;
	for (int turn = 0; turn < 3000; turn++) {
		enum { N = 4, REACH = 4000 };
		struct input_dim dim[N];
		bool dense_layout = turn % 3 == 0, meets = false;
		static unsigned char seen[2 * REACH];
		int64_t size[N], step = 1;
		memset(seen, 0, sizeof seen);
		for (int d = 0; d < N; d++) {
			state = state * 1664525u + 1013904223u;
			size[d] = 1 + (state >> 20) % 4;
			dim[d] = (struct input_dim){DIM_CONST, size[d]};
			in.grad_stride[d] = (int64_t)((state >> 10) % 60) - 30;
		}
		for (int i = 0; dense_layout && i < N; i++) {
			const int d = (i * (turn % 2 ? 1 : 3) + turn) % N;
			in.grad_stride[d] = turn % 5 ? step : -step;
			step *= size[d];
		}
		input_set(0, "x", INPUT_F32, true, N, dim);
		for (int64_t e = 0; e < size[0] * size[1] * size[2] * size[3]; e++) {
			int64_t at = REACH, rest = e;
			for (int d = 0; d < N; d++) {
				at += rest % size[d] * in.grad_stride[d];
				rest /= size[d];
			}
			meets = meets || seen[at]++;
		}
		const bool taken = !launch(B, &a, stream);
		ck_assert(!taken || !meets);
		ck_assert(!dense_layout || taken);
		accepted_count += taken;
	}
	ck_assert_int_gt(accepted_count, 1100); /* not the dense ones alone */
}
END_TEST

/* ---- tensor maps ---- */

/* A persistent forward and a persistent backward kernel with a map of every operand they read. */
static void mapped_open(void)
{
	kernel_open(16, 0);
	kernel_close();
	struct recipe forward = {.kernel_count = 1, .piece_count = 1, .map_count = 3, .load_bytes = 16};
	forward.kernel[0] = entry("fwd", GRID_PERSISTENT, 128, 384, 200000);
	forward.piece[0] = piece("queue", SIZE_LAUNCH, 0, 1, 1);
	forward.map[0] = (struct recipe_map){"query", 128, 0};
	forward.map[1] = (struct recipe_map){"key", 176, 0};
	forward.map[2] = (struct recipe_map){"value", 256, 0};
	struct recipe backward = forward;
	backward.kernel[0] = entry("bwd", GRID_PERSISTENT, 64, 384, 100);
	backward.map_count = 4;
	backward.map[3] = backward.map[0];
	backward.map[0] = (struct recipe_map){"dout", 1, 0};
	pass_open(PASS_FORWARD, &forward);
	pass_open(PASS_BACKWARD, &backward);
}

struct map_want {
	const char *name;
	uint64_t size[4], stride[3]; /* columns, rows, heads, batch, with boxes of several heads columns, heads, rows, batch; bytes */
	uint32_t rows, heads;        /* of a box; heads 0: those of one */
};

/* Is the n-th map that was encoded, from 0, as wanted, and of the operand at that address? */
static void map_check(int n, const struct map_want *want, const void *address)
{
	const struct fake_map *m = &fake.state->map[n];
	const uint32_t box[4] = {64, want->heads ? want->heads : want->rows, want->heads ? want->rows : 1, 1}, step[4] = {1, 1, 1, 1};
	ck_assert_uint_eq(m->type, 1); /* CU_TENSOR_MAP_DATA_TYPE_UINT16 */
	ck_assert_uint_eq(m->rank, 4);
	ck_assert_ptr_eq(m->address, address);
	for (int i = 0; i < 4; i++)
		ck_assert_msg(m->size[i] == want->size[i], "%s: size[%d] is %llu", want->name, i,
		              (unsigned long long)m->size[i]);
	for (int i = 0; i < 3; i++)
		ck_assert_msg(m->stride[i] == want->stride[i], "%s: stride[%d] is %llu", want->name, i,
		              (unsigned long long)m->stride[i]);
	ck_assert_mem_eq(m->box, box, sizeof box);
	ck_assert_mem_eq(m->step, step, sizeof step);
	ck_assert(m->interleave == 0 && m->swizzle == 3 && m->l2_promotion == 3 && m->fill == 0);
}

/* Is it the n-th map that was encoded, from 0? -1: none. */
static bool map_is(const struct fagen_abi_map *map, int n)
{
	for (int i = 0; i < 16; i++)
		if (map->opaque[i] != (unsigned long long)(n + 1))
			return false;
	return true;
}

static const struct map_want dense_maps[] = {
	{"query", {64, 200, 8, 2}, {128, 200 * 128, 8 * 200 * 128}, 128, 0},
	{"key", {64, 300, 4, 2}, {128, 300 * 128, 4 * 300 * 128}, 176, 0},
	{"value", {96, 300, 4, 2}, {192, 300 * 192, 4 * 300 * 192}, 256, 0},
	{"dout", {96, 200, 8, 2}, {192, 200 * 192, 8 * 200 * 192}, 1, 0},
};

START_TEST(maps_are_the_second_parameter)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	const struct fake_cuda *s = fake.state;
	mapped_open();
	for (int padded = 0; padded < 2; padded++) {
		kernel.signature.layout = padded ? LAYOUT_PADDED : LAYOUT_DENSE;
		a.seqlens_k = padded ? (const int32_t *)(uintptr_t)0x30000000 : NULL;
		const int maps = s->maps;
		ck_assert_msg(!launch(F, &a, fake.stream(kernel.primary)), "%s", error.message);
		const struct fake_launch *l = &s->launch[s->launches - 1];
		ck_assert_int_eq(l->maps_before - maps, 3);
		map_check(maps, &dense_maps[0], a.query.data);
		map_check(maps + 1, &dense_maps[1], a.key.data);
		map_check(maps + 2, &dense_maps[2], a.value.data);
		ck_assert(map_is(&l->maps.query, maps) && map_is(&l->maps.key, maps + 1) &&
		          map_is(&l->maps.value, maps + 2) && map_is(&l->maps.dout, -1));
	}
	const int maps = s->maps;
	ck_assert_msg(!launch(B, &a, fake.stream(kernel.primary)), "%s", error.message);
	const struct fake_launch *l = &s->launch[s->launches - 1];
	ck_assert_int_eq(l->maps_before - maps, 4);
	map_check(maps, &dense_maps[3], a.dout.data); /* in the order of the recipe */
	map_check(maps + 3, &dense_maps[0], a.query.data);
	ck_assert(map_is(&l->maps.dout, maps) && map_is(&l->maps.key, maps + 1) && map_is(&l->maps.value, maps + 2) &&
	          map_is(&l->maps.query, maps + 3));
}
END_TEST

START_TEST(kernels_without_maps_get_zeros)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	const struct fagen_abi_maps none = {0};
	ck_assert_int_eq(launch(F, &a, fake.stream(kernel.primary)), FAGEN_OK);
	ck_assert_int_eq(fake.state->maps, 0);
	ck_assert_mem_eq(&fake.state->launch[0].maps, &none, sizeof none);
}
END_TEST

/* [b][s][h][d] of one tensor with everything in it, a broadcast, single entries with strides that no map takes, and head
 * dims that are no multiple of anything. */
START_TEST(maps_of_unusual_layouts)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	const struct fake_cuda *s = fake.state;
	const int64_t row = 8 * 64 + 4 * 64 + 4 * 96;
	mapped_open();
	a.query.stride_seq = a.key.stride_seq = a.value.stride_seq = row;
	a.query.stride_head = a.key.stride_head = 64, a.value.stride_head = 96;
	a.query.stride_batch = 200 * row, a.key.stride_batch = a.value.stride_batch = 0;
	ck_assert_msg(!launch(F, &a, fake.stream(kernel.primary)), "%s", error.message);
	map_check(0, &(struct map_want){"query", {64, 200, 8, 2}, {2 * row, 128, 400 * row}, 128, 0}, a.query.data);
	map_check(1, &(struct map_want){"key", {64, 300, 4, 2}, {2 * row, 128, 0}, 176, 0}, a.key.data);
	map_check(2, &(struct map_want){"value", {96, 300, 4, 2}, {2 * row, 192, 0}, 256, 0}, a.value.data);
	/* The largest stride that a map takes. */
	a.key.stride_batch = (INT64_C(1) << 39) - 8;
	ck_assert_msg(!launch(F, &a, fake.stream(kernel.primary)), "%s", error.message);
	ck_assert_uint_eq(s->map[4].stride[2], (UINT64_C(1) << 40) - 16);

	a = args_of(1, 1, 1, 1, 1);
	kernel.signature.head_dim_qk = 20;
	kernel.signature.head_dim_v = 8;
	fagen_tensor *const tensors[] = {&a.query, &a.key, &a.value};
	for (int i = 0; i < 3; i++)
		*tensors[i] = (fagen_tensor){tensors[i]->data, -3, INT64_MIN, INT64_MAX};
	const int maps = s->maps;
	ck_assert_msg(!launch(F, &a, fake.stream(kernel.primary)), "%s", error.message);
	map_check(maps, &(struct map_want){"query", {20, 1, 1, 1}, {48, 48, 48}, 128, 0}, a.query.data);
	map_check(maps + 1, &(struct map_want){"key", {20, 1, 1, 1}, {48, 48, 48}, 176, 0}, a.key.data);
	map_check(maps + 2, &(struct map_want){"value", {8, 1, 1, 1}, {16, 16, 16}, 256, 0}, a.value.data);
}
END_TEST

START_TEST(maps_of_packed_tensors)
{
	fagen_args a = packed_args();
	mapped_open();
	kernel.signature.layout = LAYOUT_PACKED;
	a.query.stride_batch = -1; /* ignored */
	ck_assert_msg(!launch(F, &a, fake.stream(kernel.primary)), "%s", error.message);
	map_check(0, &(struct map_want){"query", {64, 200, 8, 1}, {128, 200 * 128, 128}, 128, 0}, a.query.data);
	map_check(1, &(struct map_want){"key", {64, 300, 4, 1}, {128, 300 * 128, 128}, 176, 0}, a.key.data);
	map_check(2, &(struct map_want){"value", {96, 300, 4, 1}, {192, 300 * 192, 192}, 256, 0}, a.value.data);
	ck_assert_uint_eq(fake.state->launch[0].grid, 8 * (200 / 128 + 3));
}
END_TEST

/* Boxes of several heads: those of a position lie together, whatever the tensor's layout, in a packed batch too. */
START_TEST(maps_of_heads_that_share_tiles)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	mapped_open();
	struct recipe *const forward = &kernel.pass[PASS_FORWARD].recipe;
	forward->kv_group = 2;
	forward->kernel[0].heads = forward->map[0].heads = 2;
	forward->map[0].rows = forward->kernel[0].tile = 32;
	ck_assert_msg(!launch(F, &a, fake.stream(kernel.primary)), "%s", error.message);
	map_check(0, &(struct map_want){"query", {64, 8, 200, 2}, {200 * 128, 128, 8 * 200 * 128}, 32, 2}, a.query.data);
	map_check(1, &dense_maps[1], a.key.data);
	ck_assert_uint_eq(fake.state->launch[0].grid, 7 * 4 * 2);
	a.query.stride_seq = 8 * 64, a.query.stride_head = 64;
	ck_assert_msg(!launch(F, &a, fake.stream(kernel.primary)), "%s", error.message);
	map_check(3, &(struct map_want){"query", {64, 8, 200, 2}, {128, 8 * 128, 8 * 200 * 128}, 32, 2}, a.query.data);
	a = packed_args();
	kernel.signature.layout = LAYOUT_PACKED;
	ck_assert_msg(!launch(F, &a, fake.stream(kernel.primary)), "%s", error.message);
	map_check(6, &(struct map_want){"query", {64, 8, 200, 1}, {200 * 128, 128, 128}, 32, 2}, a.query.data);
	ck_assert_uint_eq(fake.state->launch[2].grid, (200 / 32 + 3) * 4);
}
END_TEST

START_TEST(empty_operands_have_no_map)
{
	fagen_args a = args_of(2, 8, 4, 200, 0);
	mapped_open();
	a.key.data = a.value.data = NULL;
	ck_assert_msg(!launch(F, &a, fake.stream(kernel.primary)), "%s", error.message);
	ck_assert_int_eq(fake.state->maps, 1);
	const struct fake_launch *l = &fake.state->launch[0];
	ck_assert(map_is(&l->maps.query, 0) && map_is(&l->maps.key, -1) && map_is(&l->maps.value, -1));
	/* Nothing to do: nothing is encoded or cleared. */
	static const int64_t shape[][3] = {{2, 8, 0}, {0, 8, 200}, {2, 0, 200}};
	for (int i = 0; i < 3; i++) {
		const int calls = fake.state->calls;
		a = args_of(shape[i][0], shape[i][1], shape[i][1] / 2, shape[i][2], 300);
		ck_assert_msg(!launch(F, &a, fake.stream(kernel.primary)), "%s", error.message);
		ck_assert_int_eq(fake.state->calls, calls);
	}
}
END_TEST

START_TEST(a_persistent_launch_clears_its_queue)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	cu_stream stream = fake.stream(kernel.primary);
	const struct fake_cuda *s = fake.state;
	struct fagen_abi abi;
	size_t bytes = 0;
	mapped_open();
	ck_assert_int_eq(fagen_workspace_size(&bytes, &kernel, &a, &error), FAGEN_OK);
	ck_assert_uint_eq(bytes, 256);
	static const struct {
		int64_t rows;
		unsigned int grid;
	} want[] = {{200, 2 * 8 * 2}, {1024, 2 * 8 * 8}, {1025, SMS}, {1 << 20, SMS}};
	for (int i = 0; i < 4; i++) {
		a = args_of(2, 8, 4, want[i].rows, 300);
		ck_assert_msg(!launch(F, &a, stream), "%s", error.message);
		memcpy(&abi, s->launch[i].params, sizeof abi);
		ck_assert_uint_eq(s->launch[i].grid, want[i].grid);
		ck_assert_uint_eq(s->launch[i].threads, 384);
		ck_assert_uint_eq(s->launch[i].smem, 200000);
		ck_assert_int_eq(s->memsets, i + 1);
		ck_assert_int_eq(s->memset[i].launches_before, i);
		ck_assert_uint_eq(s->memset[i].at, (uintptr_t)a.workspace);
		ck_assert_uint_ge(s->memset[i].words, 1);
		ck_assert_ptr_eq(s->memset[i].stream, stream);
		ck_assert_uint_eq(abi.queue, (uintptr_t)a.workspace);
	}
	mapped_open();
	kernel.sms = 7;
	ck_assert_msg(!launch(F, &a, stream), "%s", error.message);
	ck_assert_uint_eq(s->launch[4].grid, 7);
}
END_TEST

/* Items are sorted where more are there than run at once, in a workspace that is cleared with the queue; else nobody touches it, nor reads it. */
START_TEST(items_are_sorted_where_some_must_wait)
{
	fagen_args a = args_of(2, 8, 4, 200, 1300);
	cu_stream stream = fake.stream(kernel.primary);
	const struct fake_cuda *s = fake.state;
	struct fagen_abi abi;
	size_t bytes = 0;
	kernel_open(16, 0);
	kernel_close();
	struct recipe forward = {.kernel_count = 2, .piece_count = 3, .load_bytes = 16};
	forward.kernel[0] = entry("order", GRID_ORDER_QUERIES, 128, 512, 0);
	forward.kernel[0].beyond = 2;
	forward.kernel[1] = entry("fwd", GRID_PERSISTENT, 128, 384, 200000);
	forward.piece[0] = piece("delta", SIZE_TILES_Q, 128, 1, 0);
	forward.piece[1] = piece("queue", SIZE_LAUNCH, 0, 1, 1);
	forward.piece[2] = piece("order", SIZE_TILES_Q, 128, 2, 1);
	pass_open(PASS_FORWARD, &forward);
	pass_open(PASS_BACKWARD, &forward);
	static const int64_t tiles[] = {1, 16, 17, 17, 16, 100}; /* of each of 16 heads; 264 items run at once */
	for (int i = 0; i < 6; i++) {
		const int before = s->launches, cleared = s->memsets;
		const unsigned items = 16 * (unsigned)tiles[i], delta = (4 * items + 255) / 256 * 256, order = (8 * items + 255) / 256 * 256;
		const bool sorted = items > 2 * SMS;
		a.seqlen_q = 128 * tiles[i];
		ck_assert_int_eq(fagen_workspace_size(&bytes, &kernel, &a, &error), FAGEN_OK);
		ck_assert_uint_eq(bytes, delta + 256 + order);
		ck_assert_msg(!launch(F, &a, stream), "%s", error.message);
		ck_assert_int_eq(s->launches - before, 1 + sorted);
		ck_assert_int_eq(s->memsets - cleared, 1);
		ck_assert_uint_eq(s->memset[cleared].at, (uintptr_t)a.workspace + delta);
		ck_assert_uint_eq(4 * s->memset[cleared].words, 256 + (sorted ? order : 0));
		for (int k = before; k < s->launches; k++) {
			memcpy(&abi, s->launch[k].params, sizeof abi);
			ck_assert_uint_eq(abi.queue, (uintptr_t)a.workspace + delta);
			ck_assert_uint_eq(abi.order, sorted ? (uintptr_t)a.workspace + delta + 256 : 0);
			ck_assert_str_eq(s->launch[k].entry, k < s->launches - 1 ? "order" : "fwd");
			ck_assert_uint_eq(s->launch[k].grid, k < s->launches - 1 ? items / 16 : items < SMS ? items : SMS);
		}
	}
}
END_TEST

/* Keys in parts: as many items of each tile, O and LSE of all of them in the workspace, and a second kernel that finds them there. */
START_TEST(parts_are_joined)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	cu_stream stream = fake.stream(kernel.primary);
	const struct fake_cuda *s = fake.state;
	struct fagen_abi abi[2];
	size_t bytes = 0;
	kernel_open(16, 0);
	kernel_close();
	struct recipe forward = {.kernel_count = 2, .piece_count = 2, .map_count = 3, .load_bytes = 16};
	forward.kernel[0] = entry("fwd", GRID_PERSISTENT, 128, 384, 200000);
	forward.kernel[0].parts = 3;
	forward.kernel[1] = entry("join", GRID_QUERY_TILES, 4, 128, 0);
	forward.piece[0] = piece("queue", SIZE_LAUNCH, 0, 1, 1);
	forward.piece[1] = piece("parts", SIZE_ROWS_QK, 128, 3 * (D_V + 1), 0);
	forward.map[0] = (struct recipe_map){"query", 64, 0};
	forward.map[1] = (struct recipe_map){"key", 176, 0};
	forward.map[2] = (struct recipe_map){"value", 176, 0};
	pass_open(PASS_FORWARD, &forward);
	pass_open(PASS_BACKWARD, &forward);
	static const struct {
		int64_t rows;
		unsigned int parts, join;
	} want[] = {{1, 2 * 8 * 3, 2 * 8}, {200, 2 * 8 * 2 * 3, 2 * 8 * 50}, {300, SMS, 2 * 8 * 75}, {0, 0, 0}};
	for (int i = 0; i < 4; i++) {
		a.seqlen_q = want[i].rows;
		const int before = s->launches;
		ck_assert_int_eq(fagen_workspace_size(&bytes, &kernel, &a, &error), FAGEN_OK);
		ck_assert_uint_eq(bytes, 256 + 4u * 2 * 8 * (unsigned)((want[i].rows + 127) / 128) * 128 * 3 * (D_V + 1));
		ck_assert_msg(!launch(F, &a, stream), "%s", error.message);
		ck_assert_int_eq(s->launches - before, want[i].parts ? 2 : 0);
		if (!want[i].parts)
			continue;
		ck_assert_str_eq(s->launch[before].entry, "fwd");
		ck_assert_str_eq(s->launch[before + 1].entry, "join");
		ck_assert_uint_eq(s->launch[before].grid, want[i].parts);
		ck_assert_uint_eq(s->launch[before + 1].grid, want[i].join);
		ck_assert(s->launch[before].stream == stream && s->launch[before + 1].stream == stream);
		for (int k = 0; k < 2; k++) {
			memcpy(&abi[k], s->launch[before + k].params, sizeof abi[k]);
			ck_assert_uint_eq(abi[k].parts, (uintptr_t)a.workspace + 256);
		}
	}
	a = args_of(2, 8, 4, 1, 300);
	a.workspace_size = 256;
	ck_assert_int_eq(launch(F, &a, stream), FAGEN_ERROR_INVALID);
	ck_assert_str_eq(error.field, "workspace_size");
}
END_TEST

/* Visits of key tiles in parts: as many items of each tile of each key/value head, dK and dV of all of them in the workspace, and a kernel that
 * finds them there. */
START_TEST(backward_parts_are_joined)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	cu_stream stream = fake.stream(kernel.primary);
	const struct fake_cuda *s = fake.state;
	struct fagen_abi abi[2];
	size_t bytes = 0;
	kernel_open(16, 0);
	kernel_close();
	struct recipe backward = {.kernel_count = 2, .piece_count = 2, .load_bytes = 16};
	backward.kernel[0] = entry("bwd", GRID_PERSISTENT_KEYS, 128, 384, 200000);
	backward.kernel[0].parts = 3;
	backward.kernel[1] = entry("join", GRID_KEY_TILES, 16, 128, 0);
	backward.piece[0] = piece("queue", SIZE_LAUNCH, 0, 1, 1);
	backward.piece[1] = piece("parts", SIZE_TILES_KV, 128, 3 * 1000, 0);
	pass_open(PASS_FORWARD, &backward);
	pass_open(PASS_BACKWARD, &backward);
	static const struct {
		int64_t keys;
		unsigned int parts, join;
	} want[] = {{1, 2 * 4 * 3, 2 * 4}, {300, 2 * 4 * 3 * 3, 2 * 4 * 19}, {3000, SMS, 2 * 4 * 188}, {0, 0, 0}};
	for (int i = 0; i < 4; i++) {
		a.seqlen_k = want[i].keys;
		const int before = s->launches;
		a.workspace_size = (size_t)1 << 40;
		ck_assert_int_eq(fagen_workspace_size(&bytes, &kernel, &a, &error), FAGEN_OK);
		ck_assert_uint_eq(bytes, 256 + (4u * 2 * 4 * (unsigned)((want[i].keys + 127) / 128) * 3 * 1000 + 255) / 256 * 256);
		ck_assert_msg(!launch(B, &a, stream), "%s", error.message);
		ck_assert_int_eq(s->launches - before, want[i].parts ? 2 : 0);
		if (!want[i].parts)
			continue;
		ck_assert_str_eq(s->launch[before].entry, "bwd");
		ck_assert_str_eq(s->launch[before + 1].entry, "join");
		ck_assert_uint_eq(s->launch[before].grid, want[i].parts);
		ck_assert_uint_eq(s->launch[before + 1].grid, want[i].join);
		for (int k = 0; k < 2; k++) {
			memcpy(&abi[k], s->launch[before + k].params, sizeof abi[k]);
			ck_assert_uint_eq(abi[k].parts, (uintptr_t)a.workspace + 256);
		}
	}
}
END_TEST

static const struct row unmapped[] = {
	{F, 16, 0, AT(value.stride_batch), -9600, "value.stride_batch", "get a kernel with problem.align = 2"},
	{F, 16, 0, AT(query.stride_seq), -64, "query.stride_seq", "is -64 elements"},
	{F, 16, 0, AT(key.stride_head), INT64_C(1) << 39, "key.stride_head", "0 to below 2^39"},
	{B, 16, 0, AT(dout.stride_head), -19200, "dout.stride_head", "tensor map"},
};

START_TEST(strides_that_no_map_takes)
{
	const struct row *r = &unmapped[_i];
	fagen_args a;
	row_apply(&a, r);
	mapped_open();
	const int calls = fake.state->calls;
	ck_assert_int_eq(launch(r->pass, &a, fake.stream(kernel.primary)), FAGEN_ERROR_INVALID);
	ck_assert_str_eq(error.field, r->field);
	ck_assert_msg(strstr(error.message, r->says) != NULL, "\"%s\" is not in: %s", r->says, error.message);
	ck_assert_int_eq(fake.state->calls, calls);
	kernel_open(16, 0); /* other kernels take them */
	ck_assert_msg(!launch(r->pass, &a, fake.stream(kernel.primary)), "%s", error.message);
}
END_TEST

START_TEST(drivers_without_tensor_maps)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	((struct cuda_calls *)driver_calls(runtime.driver))->cuTensorMapEncodeTiled = NULL;
	ck_assert_int_eq(launch(F, &a, fake.stream(kernel.primary)), FAGEN_OK); /* who needs none runs */
	mapped_open();
	const int calls = fake.state->calls;
	ck_assert_int_eq(launch(F, &a, fake.stream(kernel.primary)), FAGEN_ERROR_DRIVER);
	ck_assert_ptr_nonnull(strstr(error.message, "CUDA 12.0 or later"));
	ck_assert_ptr_nonnull(strstr(error.message, "kernel fwd"));
	ck_assert_ptr_nonnull(strstr(error.message, "problem.align = 2"));
	ck_assert_int_eq(fake.state->calls, calls);
}
END_TEST

START_TEST(a_map_that_the_driver_refuses)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	mapped_open();
	fake.state->fail_at = fake.state->calls + 4; /* after the context is asked for and pushed, and that of query encoded */
	fake.state->fail_result = 1;
	ck_assert_int_eq(launch(F, &a, NULL), FAGEN_ERROR_DRIVER);
	ck_assert_int_eq(fake.state->failed_call, FAKE_cuTensorMapEncodeTiled);
	ck_assert_int_eq(error.cuda_result, 1);
	ck_assert_str_eq(error.field, "key");
	ck_assert_ptr_nonnull(strstr(error.message, "that of key: 64 columns, 300 rows, 4 heads, batch 2"));
	ck_assert_int_eq(fake.state->launches + fake.state->memsets, 0);
	ck_assert_int_eq(fake.state->pushes, 1);
	ck_assert_int_eq(fake.state->pops, 1);
	ck_assert_int_eq(fake.depth(), 0);
}
END_TEST

/* The driver wants a current context for maps, which a stream does not bring. */
START_TEST(maps_are_encoded_in_a_context)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	mapped_open();
	for (int current = 0; current < 2; current++) {
		if (current)
			ck_assert_int_eq(fake.cu.cuCtxPushCurrent_v2(kernel.primary), 0);
		const int pushes = fake.state->pushes, pops = fake.state->pops;
		ck_assert_msg(!launch(F, &a, fake.stream(kernel.primary)), "%s", error.message);
		ck_assert_int_eq(fake.state->pushes - pushes, !current);
		ck_assert_int_eq(fake.state->pops - pops, !current);
		ck_assert_int_eq(fake.depth(), current);
	}
	ck_assert_int_eq(fake.state->maps, 3); /* the second launch has those of the first */
	a.query.data = (char *)a.query.data + 4096;
	ck_assert_msg(!launch(F, &a, fake.stream(kernel.primary)), "%s", error.message);
	ck_assert_int_eq(fake.state->maps, 4);
	ck_assert_int_eq(fake.state->broken, 0);
}
END_TEST

/* A launch that repeats all addresses asks for no context, if it clears nothing. */
START_TEST(kept_maps_need_no_context)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	cu_stream stream = fake.stream(fake.context(0));
	mapped_open();
	kernel.pass[F].recipe.piece_count = 0;
	ck_assert_msg(!launch(F, &a, stream), "%s", error.message);
	ck_assert_int_eq(fake.state->pushes, 1);
	const int calls = fake.state->calls;
	ck_assert_msg(!launch(F, &a, stream), "%s", error.message);
	ck_assert_int_eq(fake.state->calls, calls + 1);
	ck_assert_int_eq(fake.state->log[calls], FAKE_cuLaunchKernel);
	ck_assert_int_eq(fake.state->pops, 1);
}
END_TEST

/* A launch with the same addresses, shapes and strides encodes nothing, one that differs in any of them what differs. */
START_TEST(maps_are_kept)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	const fagen_args first = a;
	const struct fake_cuda *s = fake.state;
	cu_stream stream = fake.stream(kernel.primary);
	mapped_open();
	struct kept_maps *kept = kernel.pass[F].kept = maps_keep(&kernel.pass[F].recipe);
	ck_assert_ptr_nonnull(kept);
	fake.state->fail_at = fake.state->calls + 5; /* the map of key: what failed is not kept */
	fake.state->fail_result = 1;
	ck_assert_int_eq(launch(F, &a, stream), FAGEN_ERROR_DRIVER);
	ck_assert_int_eq(s->maps, 1);
	for (int i = 0; i < 2; i++) {
		ck_assert_msg(!launch(F, &a, stream), "%s", error.message);
		ck_assert_int_eq(s->maps, 3);
		const struct fagen_abi_maps *m = &s->launch[i].maps;
		ck_assert(map_is(&m->query, 0) && map_is(&m->key, 1) && map_is(&m->value, 2) && map_is(&m->dout, -1));
	}
	map_check(1, &dense_maps[1], a.key.data);
	a.key.data = (char *)a.key.data + 4096;
	ck_assert_msg(!launch(F, &a, stream), "%s", error.message);
	ck_assert_int_eq(s->maps, 4);
	map_check(3, &dense_maps[1], a.key.data);
	ck_assert(map_is(&s->launch[2].maps.query, 0) && map_is(&s->launch[2].maps.key, 3) && map_is(&s->launch[2].maps.value, 2));
	a.value.stride_batch = 0;
	ck_assert_msg(!launch(F, &a, stream), "%s", error.message);
	ck_assert_int_eq(s->maps, 5);
	ck_assert(map_is(&s->launch[3].maps.value, 4));
	a = first;
	a.seqlen_k = 299;
	ck_assert_msg(!launch(F, &a, stream), "%s", error.message);
	ck_assert_int_eq(s->maps, 7);
	ck_assert(map_is(&s->launch[4].maps.query, 0) && map_is(&s->launch[4].maps.key, 5) && map_is(&s->launch[4].maps.value, 6));
	kernel.pass[F].kept = NULL;
	free(kept);
}
END_TEST

/* Each layer of a model has addresses of its own, and all come by again. */
START_TEST(maps_of_a_models_layers_are_kept)
{
	enum { LAYERS = 24, BYTES = 8 * 200 * D_QK * 2 };
	fagen_args a = args_of(2, 8, 4, 200, 300);
	mapped_open();
	struct kept_maps *kept = kernel.pass[F].kept = maps_keep(&kernel.pass[F].recipe);
	for (int round = 0; round < 3; round++) {
		fake.state->maps = 0;
		for (int layer = 0; layer < LAYERS; layer++) {
			a.query.data = (void *)(uintptr_t)(0x100000000u + (uintptr_t)layer * 3 * BYTES);
			a.key.data = (char *)a.query.data + BYTES;
			a.value.data = (char *)a.key.data + BYTES;
			ck_assert_msg(!launch(F, &a, NULL), "%s", error.message);
		}
		if (round == 0)
			ck_assert_int_eq(fake.state->maps, 3 * LAYERS);
	}
	ck_assert_int_lt(fake.state->maps, 3 * LAYERS / 10);
	kernel.pass[F].kept = NULL;
	free(kept);
}
END_TEST

#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
enum { MAPS_TIMES = 30000 };
#else
enum { MAPS_TIMES = 300000 }; /* as many as it takes to meet a map that is half written, if nobody looks at its turn */
#endif

/* A map that tells of what it was made. */
static cu_result telling_map(cu_tensor_map *map, unsigned int type, uint32_t rank, void *address, const uint64_t *size,
                             const uint64_t *stride, const uint32_t *box, const uint32_t *step, unsigned int interleave,
                             unsigned int swizzle, unsigned int l2_promotion, unsigned int fill)
{
	for (unsigned long long i = 0; i < 16; i++)
		((struct fagen_abi_map *)(void *)map)->opaque[i] = ((uintptr_t)address ^ size[1] << 40) + i;
	return CU_OK;
}

static void *many_maps(void *seed)
{
	enum { ADDRESSES = 512 }; /* more than there are places */
	uint32_t x = (uint32_t)(uintptr_t)seed;
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	intptr_t wrong = 0;
	for (int t = 0; t < MAPS_TIMES; t++) {
		struct mapped m[RECIPE_MAPS_MAX];
		struct fagen_abi_maps maps = {0};
		for (int i = 0; i < 3; i++) {
			x = x * 1664525 + 1013904223;
			m[i] = (struct mapped){UINT64_C(0x10000000) + (x >> 8) % ADDRESSES * 4096, {64, 1 + (x >> 30), 8, 2}, {128, 1280, 12800}};
		}
		wrong += maps_encode(&maps, m, maps_take(&maps, m, 7, &kernel.pass[F]), &kernel.pass[F], &kernel, &f) != 0;
		const struct fagen_abi_map *got[] = {&maps.query, &maps.key, &maps.value};
		for (int i = 0; i < 3; i++)
			for (unsigned long long w = 0; w < 16; w++)
				wrong += got[i]->opaque[w] != (m[i].address ^ m[i].size[1] << 40) + w;
	}
	return (void *)wrong;
}

/* Runs it in `count` threads at once, each with a number of its own from 1 on: it returns how often something was wrong. */
static void threads_find_no_wrong(void *(*run)(void *), int count)
{
	pthread_t thread[8];
	ck_assert_int_le(count, (int)(sizeof thread / sizeof *thread));
	for (intptr_t i = 0; i < count; i++)
		ck_assert_int_eq(pthread_create(&thread[i], NULL, run, (void *)(i + 1)), 0);
	for (int i = 0; i < count; i++) {
		void *wrong;
		ck_assert_int_eq(pthread_join(thread[i], &wrong), 0);
		ck_assert_ptr_null(wrong);
	}
}

START_TEST(threads_share_kept_maps)
{
	mapped_open();
	struct kept_maps *kept = kernel.pass[F].kept = maps_keep(&kernel.pass[F].recipe);
	((struct cuda_calls *)driver_calls(runtime.driver))->cuTensorMapEncodeTiled = telling_map;
	threads_find_no_wrong(many_maps, 4);
	kernel.pass[F].kept = NULL;
	free(kept);
}
END_TEST

/* ---- launches that are kept ---- */

/* A map that tells of all that it was made of. */
static cu_result digest_map(cu_tensor_map *map, unsigned int type, uint32_t rank, void *address, const uint64_t *size,
                            const uint64_t *stride, const uint32_t *box, const uint32_t *step, unsigned int interleave,
                            unsigned int swizzle, unsigned int l2_promotion, unsigned int fill)
{
	const uint64_t words[] = {(uintptr_t)address, size[0], size[1], size[2], size[3], stride[0], stride[1], stride[2],
	                          box[0], box[1], box[2], box[3], 1, 2, 3, 4};
	memcpy(map, words, sizeof words);
	return CU_OK;
}

struct outcome { /* of one launch */
	int code, launches, memsets;
	fagen_error error;
	struct fake_launch launch[4];
	cu_deviceptr clear_at[4];
	size_t clear_words[4];
};

static void outcome_of(struct outcome *o, enum pass pass, const fagen_args *a, void *stream)
{
	struct fake_cuda *s = fake.state;
	memset(o, 0, sizeof *o);
	memset(s->launch, 0, sizeof o->launch);
	s->launches = s->memsets = 0;
	o->code = launch(pass, a, stream);
	o->launches = s->launches;
	o->memsets = s->memsets;
	o->error = error;
	ck_assert(s->launches <= 4 && s->memsets <= 4);
	memcpy(o->launch, s->launch, sizeof o->launch);
	for (int i = 0; i < 4; i++)
		o->launch[i].maps_before = 0;
	for (int i = 0; i < s->memsets; i++) {
		o->clear_at[i] = s->memset[i].at;
		o->clear_words[i] = s->memset[i].words;
	}
}

/* The launch, and the same by a kernel that keeps nothing, which must differ in nothing. */
static int launch_twice(enum pass pass, const fagen_args *a, void *stream)
{
	static struct outcome kept, plain;
	struct kernel_pass *p = &kernel.pass[pass];
	struct kept_launches *const launches = p->launches;
	struct kept_maps *const maps = p->kept;
	outcome_of(&kept, pass, a, stream);
	p->launches = NULL, p->kept = NULL;
	outcome_of(&plain, pass, a, stream);
	p->launches = launches, p->kept = maps;
	ck_assert_msg(kept.code == plain.code, "%d (%s), but %d (%s)", kept.code, kept.error.message, plain.code, plain.error.message);
	ck_assert_str_eq(kept.error.message, plain.error.message);
	ck_assert_str_eq(kept.error.field, plain.error.field);
	ck_assert_mem_eq(&kept, &plain, sizeof kept);
	return kept.code;
}

static uint32_t chance_state;
static uint32_t chance(uint32_t n)
{
	chance_state = chance_state * 1664525 + 1013904223;
	return (uint32_t)((uint64_t)chance_state * n >> 32);
}

/* Another value for one field of the arguments, right or wrong. */
static void args_change(fagen_args *a, enum batch_layout layout)
{
	static const uintptr_t move[] = {0, 16, 4096, 2, 4, 8, 256, 0x10000000};
	static const int64_t stride[] = {0, 64, 8, 1, -64, INT64_C(1) << 39, 19200, 12800};
	static const size_t shape[] = {AT(batch), AT(heads_q), AT(heads_kv), AT(seqlen_q), AT(seqlen_k), AT(total_q), AT(total_k)};
	static const size_t tensor[] = {AT(query), AT(key), AT(value), AT(out), AT(lse), AT(dout), AT(dlse), AT(dquery), AT(dkey), AT(dvalue)};
	static const size_t address[] = {AT(seqlens_q), AT(seqlens_k), AT(cu_seqlens_q), AT(cu_seqlens_k), AT(rng_state), AT(workspace)};
	static const size_t number[] = {AT(seed), AT(offset), AT(workspace_size)};
	char *at = (char *)a;
	fagen_tensor *t = (fagen_tensor *)(void *)(at + tensor[chance(10)]);
	const uintptr_t to = chance(4) ? 0x900000000 + move[chance(8)] : 0;
	int64_t value;
	switch (chance(8)) {
	case 0:
	case 1:
	case 2: t->data = (void *)to; break;
	case 3: *(chance(2) ? &t->stride_seq : chance(2) ? &t->stride_head : &t->stride_batch) = stride[chance(8)]; break;
	case 4:
		value = (int64_t[]){0, 1, 2, 4, 8, 200, 300, 128, -1}[chance(9)];
		memcpy(at + shape[chance(layout == LAYOUT_PACKED ? 7 : chance(8) ? 5 : 7)], &value, sizeof value);
		break;
	case 5: memcpy(at + address[chance(layout == LAYOUT_DENSE && chance(4) ? 2 : 6)], &to, sizeof to); break;
	case 6:
		value = (int64_t[]){0, 1, 100, INT64_C(1) << 33, INT64_C(1) << 40}[chance(5)];
		memcpy(at + number[chance(3)], &value, sizeof value);
		break;
	default: a->struct_size = (uint32_t[]){0, AT(seed), AT(inputs), sizeof *a, sizeof *a, sizeof *a}[chance(6)];
	}
}

/* Launches by turns of a few forms, changed bit by bit and mended again: what is kept of them shows in nothing. */
START_TEST(a_kept_launch_is_as_a_new_one)
{
	enum { TIMES = 4000, FORMS = 3 };
	const enum batch_layout layout = (enum batch_layout)(_i % 3);
	int good = 0, bad = 0;
	if (_i >= 3)
		mapped_open();
	kernel.signature.layout = layout;
	kernel.pass[F].kept = maps_keep(&kernel.pass[F].recipe);
	kernel.pass[B].kept = maps_keep(&kernel.pass[B].recipe);
	((struct cuda_calls *)driver_calls(runtime.driver))->cuTensorMapEncodeTiled = digest_map;
	cu_stream stream = fake.stream(kernel.primary);
	fagen_args right[FORMS], a[FORMS];
	for (int i = 0; i < FORMS; i++) {
		right[i] = layout == LAYOUT_PACKED ? packed_args() : args_of(2, 8, 4, 200, 300);
		right[i].seqlen_q -= i * 8;
		if (layout != LAYOUT_DENSE) {
			right[i].seqlens_q = (const int32_t *)(uintptr_t)0x30001000;
			right[i].seqlens_k = (const int32_t *)(uintptr_t)0x30002000;
		}
		a[i] = right[i];
	}
	chance_state = (uint32_t)_i;
	for (int t = 0; t < TIMES; t++) {
		const int i = (int)chance(FORMS);
		if (chance(4) == 0)
			a[i] = right[i];
		for (uint32_t n = chance(3); n; n--)
			args_change(&a[i], layout);
		const bool fine = launch_twice((enum pass)chance(2), &a[i], chance(2) ? stream : NULL) == FAGEN_OK;
		good += fine, bad += !fine;
		if (!fine && chance(2))
			a[i] = right[i];
	}
	ck_assert_msg(good > TIMES / 4 && bad > TIMES / 10, "%d went well, %d did not", good, bad);
	free(kernel.pass[F].kept);
	free(kernel.pass[B].kept);
	kernel.pass[F].kept = kernel.pass[B].kept = NULL;
}
END_TEST

/* Shapes that come by turns, as of layers of two kinds: a launch that is kept has its tensor maps. */
START_TEST(launches_of_several_shapes_are_kept)
{
	mapped_open();
	for (int round = 0; round < 3; round++)
		for (int64_t i = 0; i < 4; i++) {
			fagen_args a = args_of(2, 8, i % 2 ? 4 : 8, 200, 300 - i / 2);
			ck_assert_msg(!launch(F, &a, NULL), "%s", error.message);
		}
	ck_assert_int_eq(fake.state->maps, 4 * 3);
}
END_TEST

START_TEST(a_kept_launch_has_the_inputs_of_each)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	fagen_input in[INPUTS];
	char name[] = "doc";
	spec_inputs();
	inputs_of(in);
	a.inputs = in;
	a.input_count = INPUTS;
	for (int pass = F; pass <= B; pass++) {
		inputs_of(in);
		in[DOC].name = name;
		for (int i = 0; i < 2; i++)
			ck_assert_int_eq(launch_twice((enum pass)pass, &a, NULL), FAGEN_OK);
		in[BIAS].data = (void *)(uintptr_t)0x21000000;
		in[BIAS].stride[0] = 0;
		in[BIAS].grad = NULL;
		in[DOC].stride[0] = 300;
		ck_assert_int_eq(launch_twice((enum pass)pass, &a, NULL), FAGEN_OK);
		name[0] = 't'; /* at the same address another name */
		ck_assert_int_eq(launch_twice((enum pass)pass, &a, NULL), FAGEN_ERROR_INVALID);
		ck_assert_ptr_nonnull(strstr(error.message, "no input 'toc'"));
		name[0] = 'd';
		in[KEEP].data = NULL;
		ck_assert_int_eq(launch_twice((enum pass)pass, &a, NULL), FAGEN_ERROR_INVALID);
		in[KEEP].data = (void *)(uintptr_t)0x22000000;
		ck_assert_int_eq(launch_twice((enum pass)pass, &a, NULL), FAGEN_OK);
		a.input_count--;
		ck_assert_int_eq(launch_twice((enum pass)pass, &a, NULL), FAGEN_ERROR_INVALID);
		a.input_count++;
	}
}
END_TEST

/* Each driver call of a launch that moves two operands fails once between two launches that go well. */
START_TEST(a_failed_launch_leaves_nothing)
{
	struct cuda_calls *calls = (struct cuda_calls *)driver_calls(runtime.driver);
	int n = 0, rc = FAGEN_ERROR_DRIVER;
	mapped_open();
	while (rc != FAGEN_OK) {
		fagen_args a = args_of(2, 8, 4, 200, 300);
		calls->cuTensorMapEncodeTiled = digest_map;
		ck_assert_int_eq(launch_twice(F, &a, NULL), FAGEN_OK);
		a.key.data = (char *)a.key.data + 4096;
		a.value.data = (char *)a.value.data + 4096;
		calls->cuTensorMapEncodeTiled = fake.cu.cuTensorMapEncodeTiled;
		fake.state->failed_call = -1;
		fake.state->fail_at = fake.state->calls + ++n;
		fake.state->fail_result = 2;
		rc = launch(F, &a, NULL);
		fake.state->fail_at = 0;
		ck_assert_int_eq(rc, fake.state->failed_call < 0 ? FAGEN_OK : FAGEN_ERROR_DRIVER);
		calls->cuTensorMapEncodeTiled = digest_map;
		if (rc != FAGEN_OK)
			ck_assert_int_eq(launch_twice(F, &a, NULL), FAGEN_OK);
	}
	ck_assert_int_eq(n, 8); /* past: context asked for and pushed, two maps, cleared, launched, popped */
}
END_TEST

/* Another kernel where the first one was. */
START_TEST(kept_launches_end_with_their_kernel)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	ck_assert_int_eq(launch_twice(F, &a, NULL), FAGEN_OK);
	ck_assert_str_eq(fake.state->launch[0].entry, "fwd");
	kernel_close();
	struct recipe other = {.kernel_count = 1, .load_bytes = 2};
	other.kernel[0] = entry("other", GRID_QUERY_TILES, 64, 128, 0);
	pass_open(F, &other);
	ck_assert_int_eq(launch_twice(F, &a, NULL), FAGEN_OK);
	ck_assert_str_eq(fake.state->launch[0].entry, "other");
	ck_assert_uint_eq(fake.state->launch[0].grid, 4 * 8 * 2);
}
END_TEST

START_TEST(kept_launches_do_not_survive_fork)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	ck_assert_int_eq(launch(F, &a, NULL), FAGEN_OK);
	const pid_t child = fork();
	const int calls = fake.state->calls;
	if (child == 0)
		_exit(launch(F, &a, NULL) != FAGEN_ERROR_DRIVER || fake.state->calls > calls);
	int status;
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	ck_assert_int_eq(launch(F, &a, NULL), FAGEN_OK);
}
END_TEST

/* A launch in a launch, as of a tool that is called back: more of them than there are places. */
enum { DEEP = 7 };
static int deep, deep_wrong;
static cu_result nested_launch(cu_function function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                               unsigned int by, unsigned int bz, unsigned int smem, cu_stream stream, void **params, void **extra)
{
	const struct fagen_abi *abi = params[0];
	const int level = deep++;
	fagen_args a = args_of(2, 8, 4, 200, 300);
	a.query.data = (char *)a.query.data + (level + 1) * 4096;
	fagen_error mine = {.struct_size = sizeof mine};
	if (deep < DEEP)
		deep_wrong += fagen_forward(&kernel, &a, stream, &mine) != FAGEN_OK;
	deep_wrong += abi->query.data != (uintptr_t)a.query.data - 4096 || abi->seqlen_k != 300;
	return CU_OK;
}

START_TEST(launches_within_launches)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	((struct cuda_calls *)driver_calls(runtime.driver))->cuLaunchKernel = nested_launch;
	for (int i = 0; i < 3; i++) {
		deep = deep_wrong = 0;
		ck_assert_int_eq(launch(F, &a, fake.stream(kernel.primary)), FAGEN_OK);
		ck_assert_int_eq(deep, DEEP);
		ck_assert_int_eq(deep_wrong, 0);
	}
}
END_TEST

/* Threads launch one kernel, each with addresses and lengths that follow from each other. */
static _Thread_local const fagen_args *launched_args;
static _Thread_local intptr_t launched_wrong;
static cu_result checking_launch(cu_function function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                                 unsigned int by, unsigned int bz, unsigned int smem, cu_stream stream, void **params, void **extra)
{
	const struct fagen_abi *abi = params[0];
	const struct fagen_abi_maps *maps = params[1];
	const fagen_args *a = launched_args;
	launched_wrong += abi->query.data != (uintptr_t)a->query.data || abi->key.data != (uintptr_t)a->key.data ||
	                  abi->value.data != (uintptr_t)a->value.data || abi->out.data != (uintptr_t)a->out.data ||
	                  abi->seqlen_q != a->seqlen_q || abi->seqlen_k != a->seqlen_k || abi->seed != a->seed ||
	                  abi->key.stride_head != a->key.stride_head || abi->queue != (uintptr_t)a->workspace ||
	                  maps->query.opaque[0] != (uintptr_t)a->query.data || maps->query.opaque[2] != (uint64_t)a->seqlen_q ||
	                  maps->key.opaque[0] != (uintptr_t)a->key.data || maps->key.opaque[2] != (uint64_t)a->seqlen_k ||
	                  maps->value.opaque[0] != (uintptr_t)a->value.data;
	return CU_OK;
}

static cu_result no_clearing(cu_deviceptr at, unsigned int value, size_t words, cu_stream stream) { return CU_OK; }

static void *many_launches(void *seed)
{
	uint32_t x = (uint32_t)(uintptr_t)seed;
	fagen_error mine = {.struct_size = sizeof mine};
	if (fake.cu.cuCtxPushCurrent_v2(kernel.primary))
		return (void *)1;
	for (int t = 0; t < MAPS_TIMES / 10; t++) {
		x = x * 1664525 + 1013904223;
		fagen_args a = args_of(2, 8, 4, 200 + (x >> 30), 300);
		a.query.data = (char *)a.query.data + (x >> 8) % 64 * 4096;
		a.key.data = (char *)a.key.data + (x >> 14) % 64 * 4096;
		a.out.data = (char *)a.out.data + (uintptr_t)seed * 256;
		a.workspace = (char *)a.workspace + (x >> 20) % 64 * 256;
		a.seed = x;
		launched_args = &a;
		const bool wrong = x % 64 == 0;
		if (wrong)
			a.value.data = NULL;
		launched_wrong += (fagen_forward(&kernel, &a, NULL, &mine) != FAGEN_OK) != wrong;
	}
	cu_context context;
	launched_wrong += fake.cu.cuCtxPopCurrent_v2(&context) != CU_OK;
	return (void *)launched_wrong;
}

START_TEST(threads_share_kept_launches)
{
	mapped_open();
	struct kept_maps *kept = kernel.pass[F].kept = maps_keep(&kernel.pass[F].recipe);
	struct cuda_calls *calls = (struct cuda_calls *)driver_calls(runtime.driver);
	calls->cuTensorMapEncodeTiled = digest_map;
	calls->cuLaunchKernel = checking_launch;
	calls->cuMemsetD32Async = no_clearing;
	threads_find_no_wrong(many_launches, 6); /* more than there are places */
	kernel.pass[F].kept = NULL;
	free(kept);
}
END_TEST

/* ---- contexts ---- */

START_TEST(a_real_stream_needs_no_context_call)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	cu_stream stream = fake.stream(fake.context(0)); /* of a context that is not even the primary one */
	const int calls = fake.state->calls;
	ck_assert_int_eq(launch(F, &a, stream), FAGEN_OK);
	ck_assert_int_eq(fake.state->calls, calls + 1);
	ck_assert_int_eq(fake.state->log[calls], FAKE_cuLaunchKernel);
}
END_TEST

/* Which device the work ran on, and that the stack of contexts is as before, for each way of naming a stream. */
START_TEST(the_current_context_is_kept)
{
	/* current: -1 none, 0 or 1 the primary context of that device, 2 another context of device 0 */
	for (int current = -1; current <= 2; current++)
		for (uintptr_t name = 0; name <= 3; name++)
			for (int pass = F; pass <= B; pass++) {
				struct diag diag = {0};
				struct fault f = {.diag = &diag};
				cu_context context = NULL, after = NULL;
				if (current == 2)
					context = fake.context(0);
				else if (current >= 0)
					ck_assert_int_eq(driver_primary(&context, runtime.driver, current, &f), 0);
				if (context)
					ck_assert_int_eq(fake.cu.cuCtxPushCurrent_v2(context), 0);
				fagen_args a = args_of(2, 8, 4, 200, 300);
				const int pushes = fake.state->pushes, pops = fake.state->pops,
					  launches = fake.state->launches;
				void *stream = name == 3 ? (void *)fake.stream(kernel.primary) : (void *)name;
				ck_assert_msg(!launch((enum pass)pass, &a, stream), "%s", error.message);
				ck_assert_int_eq(fake.state->launch[launches % FAKE_LAUNCHES_MAX].device, 0);
				const int fits = current == 0 || current == 2;
				ck_assert_int_eq(fake.state->pushes - pushes, !fits && (name < 3 || pass == B));
				ck_assert_int_eq(fake.state->pushes - pushes, fake.state->pops - pops);
				ck_assert_int_eq(fake.depth(), context != NULL);
				ck_assert_int_eq(fake.cu.cuCtxGetCurrent(&after), 0);
				ck_assert_ptr_eq(after, context);
				if (context)
					ck_assert_int_eq(fake.cu.cuCtxPopCurrent_v2(&after), 0);
			}
	ck_assert_int_eq(fake.state->broken, 0);
}
END_TEST

START_TEST(every_failing_call_is_reported_and_undone)
{
	if (_i)
		mapped_open();
	for (int n = 1;; n++) {
		fagen_args a = args_of(2, 8, 4, 200, 300);
		fake.state->fail_at = fake.state->calls + n;
		fake.state->fail_result = 2;
		fake.state->failed_call = -1;
		const int rc = launch(B, &a, NULL);
		fake.state->fail_at = 0;
		ck_assert_int_eq(fake.depth(), 0);
		ck_assert_int_eq(fake.state->pushes, fake.state->pops);
		if (fake.state->failed_call < 0) {
			ck_assert_int_eq(rc, FAGEN_OK);
			ck_assert_int_gt(n, 6);
			break;
		}
		ck_assert_int_eq(rc, FAGEN_ERROR_DRIVER);
		ck_assert_int_eq(error.cuda_result, 2);
		ck_assert_ptr_nonnull(strstr(error.message, "CUDA_ERROR_OUT_OF_MEMORY (2)"));
	}
	ck_assert_int_eq(fake.state->broken, 0);
}
END_TEST

START_TEST(a_launch_takes_no_lock_and_allocates_nothing)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	fagen_input in[INPUTS];
	cu_stream stream = fake.stream(kernel.primary);
	if (_i)
		mapped_open();
	spec_inputs();
	inputs_of(in);
	a.inputs = in;
	a.input_count = INPUTS;
	allocations = locks = 0;
	const int calls = fake.state->calls;
	int failed = 0;
	for (int i = 0; i < 100; i++)
		failed += launch(F, &a, stream) + launch(B, &a, stream) + launch(B, &a, NULL);
	const int seen = allocations, locked = locks; /* Check allocates too */
	ck_assert_int_eq(failed, 0);
	ck_assert_int_eq(seen, 0);
	ck_assert_int_eq(locked, 0);
	/* Nor is anything loaded or set, which a capture or another thread would notice. */
	ck_assert_int_eq(fake_count(&fake, FAKE_cuLibraryLoadData, calls) + fake_count(&fake, FAKE_cuKernelSetAttribute, calls), 0);
	kernel.pass[B].recipe.kernel_count = 0;
	ck_assert_int_ne(launch(B, &a, NULL), FAGEN_OK);
	ck_assert_int_gt(allocations, 0); /* the counter counts: an error message is allocated */
}
END_TEST

START_TEST(opening_without_memory)
{
	int n = 0;
	for (;;) {
		fagen_runtime *opened = NULL;
		const fagen_config config = {
			.struct_size = sizeof config, .cache_dir = "/nonexistent", .templates_dir = "/nonexistent"};
		allocations = 0;
		fail_allocation = ++n;
		const int rc = fagen_open(&opened, &config, &error);
		const int made = allocations;
		fail_allocation = 0;
		if (made < n) {
			ck_assert_int_eq(rc, FAGEN_OK);
			fagen_close(opened);
			break;
		}
		ck_assert_int_eq(rc, FAGEN_ERROR_MEMORY);
		ck_assert_ptr_null(opened);
		ck_assert_ptr_nonnull(strstr(error.message, "memory"));
	}
	ck_assert_int_gt(n, 4);
}
END_TEST

/* ---- structs across versions ---- */

/* Each allocation of reading a spec and getting its kernel fails once, in a process of its own. Keys give up (cache/key.c); all else is
 * an error, or a store that does not keep, and the next attempt works. */
START_TEST(getting_a_kernel_without_memory)
{
	static const char yaml[] = "{head_dim: 64, mask: causal, passes: [forward, backward]}";
	char folder[512], compiler[640], place[] = "/tmp/fagen-t_launch-XXXXXX";
	int gave_up = 0, told = 0, n = 0;
	test_folder(folder);
	snprintf(compiler, sizeof compiler, "%s/fake_nvrtc/libnvrtc.so.13", folder);
	ck_assert_ptr_nonnull(mkdtemp(place));
	for (bool through = false; !through;) {
		fflush(NULL);
		const pid_t child = fork();
		n++;
		if (child == 0) {
			const fagen_config config = {.struct_size = sizeof config, .ignore_env = 1, .cache_dir = place, .nvrtc_path = compiler};
			fagen_runtime *rt = NULL;
			fagen_spec *s = NULL;
			fagen_kernel *k = NULL;
			signal(SIGABRT, SIG_DFL);
			fake = fake_open();
			error.struct_size = sizeof error;
			if (fagen_open(&rt, &config, &error))
				_exit(3);
			spare_growth = true;
			allocations = 0;
			fail_allocation = n;
			int rc = fagen_spec_parse(&s, rt, yaml, strlen(yaml), "y", &error);
			rc = rc ? rc : fagen_kernel_get(&k, rt, s, NULL, 0, &error);
			const bool reached = allocations >= n;
			fail_allocation = 0;
			if (rc && (!error.message[0] || k))
				_exit(4);
			if (fagen_spec_parse(&s, rt, yaml, strlen(yaml), "y", &error) || fagen_kernel_get(&k, rt, s, NULL, 0, &error))
				_exit(5);
			fagen_close(rt);
			_exit(fake.depth() || fake.state->libraries || fake.state->broken ? 6 : !reached ? 1 : rc ? 2 : 0);
		}
		int status;
		ck_assert_int_eq(waitpid(child, &status, 0), child);
		if (WIFSIGNALED(status)) {
			ck_assert_msg(WTERMSIG(status) == SIGABRT, "allocation %d: signal %d", n, WTERMSIG(status));
			gave_up++;
			continue;
		}
		ck_assert_msg(WEXITSTATUS(status) <= 2, "allocation %d: %d", n, WEXITSTATUS(status));
		through = WEXITSTATUS(status) == 1;
		told += WEXITSTATUS(status) == 2;
	}
	char command[128];
	snprintf(command, sizeof command, "rm -r %s", place);
	ck_assert_int_eq(system(command), 0);
	ck_assert_int_gt(told, 5);
	ck_assert_msg(gave_up <= 6, "%d of %d gave up", gave_up, n);
}
END_TEST

START_TEST(struct_size_rules)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	cu_stream stream = fake.stream(kernel.primary);
	a.struct_size = 0;
	ck_assert_int_eq(launch(F, &a, stream), FAGEN_ERROR_INVALID);
	ck_assert_str_eq(error.field, "struct_size");
	/* A caller of a version that ends before dropout and workspace: both are zero, whatever lies behind. */
	a.struct_size = offsetof(fagen_args, seed);
	ck_assert_int_eq(launch(F, &a, stream), FAGEN_OK);
	struct fagen_abi abi;
	memcpy(&abi, fake.state->launch[0].params, sizeof abi);
	ck_assert(abi.seed == 0 && abi.offset == 0);
	ck_assert_int_eq(launch(B, &a, stream), FAGEN_ERROR_INVALID);
	ck_assert_str_eq(error.field, "workspace");
	/* A caller of a later version. */
	struct {
		fagen_args args;
		char more[64];
	} later = {.args = args_of(2, 8, 4, 200, 300)};
	later.args.struct_size = sizeof later;
	ck_assert_int_eq(launch(F, &later.args, stream), FAGEN_OK);
}
END_TEST

START_TEST(the_error_object_is_optional_and_never_overrun)
{
	fagen_args a = args_of(2, 8, 4, 200, 300);
	a.query.data = NULL;
	ck_assert_int_eq(fagen_forward(&kernel, &a, NULL, NULL), FAGEN_ERROR_INVALID);
	struct {
		fagen_error error;
		unsigned char guard[64];
	} small;
	for (uint32_t size = 0; size < sizeof(fagen_error); size += size < 128 ? 1 : 100) {
		memset(&small, 0xAB, sizeof small);
		small.error.struct_size = size;
		ck_assert_int_eq(fagen_forward(&kernel, &a, NULL, &small.error), FAGEN_ERROR_INVALID);
		for (size_t i = size > 4 ? size : 4; i < sizeof small; i++)
			ck_assert_msg(((unsigned char *)&small)[i] == 0xAB, "size %u: byte %zu was written", size, i);
		if (size > offsetof(fagen_error, message))
			ck_assert_uint_lt(strnlen(small.error.message, size - offsetof(fagen_error, message)),
			                  size - offsetof(fagen_error, message));
		if (size > offsetof(fagen_error, code) + 4)
			ck_assert_int_eq(small.error.code, FAGEN_ERROR_INVALID);
	}
	/* Success leaves no old message behind. */
	ck_assert_int_eq(launch(F, &a, NULL), FAGEN_ERROR_INVALID);
	a = args_of(2, 8, 4, 200, 300);
	ck_assert_int_eq(launch(F, &a, NULL), FAGEN_OK);
	ck_assert(error.code == FAGEN_OK && !error.message[0] && !error.field[0]);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("launch");
	TCase *t = tcase_create("launch");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 30);
	tcase_add_loop_test(t, wrong_arguments_are_refused_by_name, 0, sizeof refused / sizeof *refused);
	tcase_add_loop_test(t, unusual_but_legal_arguments_are_accepted, 0, sizeof accepted / sizeof *accepted);
	tcase_add_test(t, lse_is_refused_where_the_kernel_does_not_write_it);
	tcase_add_test(t, dropout_arguments_are_ignored_without_dropout);
	tcase_add_test(t, a_missing_pass_is_named);
	tcase_add_test(t, forward_passes_every_argument_on);
	tcase_add_test(t, lengths_reach_the_kernel);
	tcase_add_test(t, packed_tensors_have_no_batch);
	tcase_add_test(t, lengths_are_checked_by_name);
	tcase_add_test(t, backward_clears_then_launches_in_order);
	tcase_add_test(t, strides_of_single_entries_are_dropped);
	tcase_add_test(t, empty_problems);
	tcase_add_test(t, one_block_without_queries);
	tcase_add_test(t, workspace_size_is_pure_and_enough);
	tcase_add_test(t, inputs_reach_the_kernel_in_the_order_of_the_spec);
	tcase_add_loop_test(t, inputs_are_checked_by_name, 0, sizeof input_rows / sizeof *input_rows);
	tcase_add_test(t, inputs_are_given_once_each);
	tcase_add_test(t, empty_inputs_may_be_null);
	tcase_add_test(t, gradients_never_overlap);
	tcase_add_test(t, maps_are_the_second_parameter);
	tcase_add_test(t, kernels_without_maps_get_zeros);
	tcase_add_test(t, maps_of_unusual_layouts);
	tcase_add_test(t, maps_of_packed_tensors);
	tcase_add_test(t, maps_of_heads_that_share_tiles);
	tcase_add_test(t, empty_operands_have_no_map);
	tcase_add_test(t, a_persistent_launch_clears_its_queue);
	tcase_add_test(t, items_are_sorted_where_some_must_wait);
	tcase_add_test(t, parts_are_joined);
	tcase_add_test(t, backward_parts_are_joined);
	tcase_add_loop_test(t, strides_that_no_map_takes, 0, sizeof unmapped / sizeof *unmapped);
	tcase_add_test(t, drivers_without_tensor_maps);
	tcase_add_test(t, a_map_that_the_driver_refuses);
	tcase_add_test(t, maps_are_encoded_in_a_context);
	tcase_add_test(t, kept_maps_need_no_context);
	tcase_add_test(t, maps_are_kept);
	tcase_add_test(t, maps_of_a_models_layers_are_kept);
	tcase_add_test(t, threads_share_kept_maps);
	tcase_add_loop_test(t, a_kept_launch_is_as_a_new_one, 0, 6); /* each layout, without and with tensor maps */
	tcase_add_test(t, launches_of_several_shapes_are_kept);
	tcase_add_test(t, a_kept_launch_has_the_inputs_of_each);
	tcase_add_test(t, a_failed_launch_leaves_nothing);
	tcase_add_test(t, kept_launches_end_with_their_kernel);
	tcase_add_test(t, kept_launches_do_not_survive_fork);
	tcase_add_test(t, launches_within_launches);
	tcase_add_test(t, threads_share_kept_launches);
	tcase_add_test(t, a_real_stream_needs_no_context_call);
	tcase_add_test(t, the_current_context_is_kept);
	tcase_add_loop_test(t, every_failing_call_is_reported_and_undone, 0, 2); /* without and with tensor maps */
	tcase_add_loop_test(t, a_launch_takes_no_lock_and_allocates_nothing, 0, 2); /* without and with tensor maps */
	tcase_add_test(t, opening_without_memory);
	tcase_add_test(t, struct_size_rules);
	tcase_add_test(t, the_error_object_is_optional_and_never_overrun);
	suite_add_tcase(s, t);
	t = tcase_create("memory"); /* no driver is started before the fork */
	tcase_set_timeout(t, 60);
	tcase_add_test(t, getting_a_kernel_without_memory);
	suite_add_tcase(s, t);
	return s;
}
