/* fagen_merger_get, fagen_merge and fagen_merge_backward over the real compiler and store, with tests/fake_cuda.c for the
 * driver: the kernels compile for every target, arguments are refused by name and passed on. */
#include <check.h>

#include "gen/emit_merge.h"
#include "runtime/runtime.h"
#include "tests/fake_use.h"
#include "tests/folder_help.h"

Suite *suite(void);

static char cache[FOLDER_MAX];
static struct fake fake;
static fagen_runtime *rt;
static fagen_merger *merger;
static fagen_error error;

static void cache_make(void) { folder_make(cache, "t_merge"); }
static void cache_remove(void) { folder_remove(cache); }

static void setup(void)
{
	const fagen_config config = {.struct_size = sizeof config, .cache_dir = cache};
	memset(&error, 0, sizeof error);
	error.struct_size = sizeof error;
	fake = fake_open();
	ck_assert_msg(!fagen_open(&rt, &config, &error), "%s", error.message);
	ck_assert_msg(!fagen_merger_get(&merger, rt, 0, &error), "%s", error.message);
}
static void teardown(void) { fagen_close(rt); }

/* What a caller with head-major dense tensors passes; addresses are never followed. */
static fagen_merge_args plain(void)
{
	fagen_merge_args a = {.struct_size = sizeof a,
	                      .dtype = FAGEN_BF16,
	                      .dtype_a = FAGEN_FLOAT32,
	                      .dtype_b = FAGEN_FP16,
	                      .batch = 2,
	                      .heads = 3,
	                      .seqlen = 17,
	                      .head_dim = 64};
	fagen_tensor *const out[] = {&a.out, &a.out_a, &a.out_b, &a.dout, &a.dout_a, &a.dout_b};
	fagen_tensor *const lse[] = {&a.lse, &a.lse_a, &a.lse_b, &a.dlse, &a.dlse_a, &a.dlse_b};
	for (int i = 0; i < 6; i++) {
		*out[i] = (fagen_tensor){(void *)(uintptr_t)(0x10000 * (i + 1)), 3 * 17 * 64, 17 * 64, 64};
		*lse[i] = (fagen_tensor){(void *)(uintptr_t)(0x1000000 * (i + 1)), 3 * 17, 17, 1};
	}
	return a;
}

static struct fagen_merge_abi launched(int launch)
{
	struct fagen_merge_abi abi;
	memcpy(&abi, fake.state->launch[launch].params, sizeof abi);
	return abi;
}

START_TEST(one_merger_for_a_device)
{
	fagen_merger *again = NULL, *other = NULL;
	ck_assert_int_eq(fagen_merger_get(&again, rt, 0, &error), FAGEN_OK);
	ck_assert_ptr_eq(again, merger);
	ck_assert_int_eq(fagen_merger_get(&other, rt, 99, &error), FAGEN_ERROR_DRIVER);
	ck_assert_ptr_null(other);
}
END_TEST

START_TEST(every_target_compiles)
{
	for (int t = 0; t < TARGET_COUNT; t++) {
		struct diag diag = {0};
		struct text source = {0};
		struct cubin cubin = {0};
		struct recipe recipe;
		merge_recipe(&recipe);
		ck_assert_int_eq(merge_emit(&source, NULL, &diag), 0);
		ck_assert_msg(cubin_get(&cubin, runtime_store(rt), runtime_compiler(rt), &source, &target_table[t],
		                        &recipe, &diag) == 0,
		              "%s", text_str(&diag.text));
		ck_assert_int_eq(cubin.spill_bytes, 0);
		ck_assert_int_eq(cubin.stack_bytes, 0);
		ck_assert_int_le(cubin.registers, 64);
		cubin_free(&cubin);
		text_free(&source);
		diag_free(&diag);
	}
}
END_TEST

START_TEST(forward_passes_every_argument_on)
{
	const fagen_merge_args a = plain();
	const int before = fake.state->launches;
	ck_assert_msg(!fagen_merge(merger, &a, NULL, &error), "%s", error.message);
	ck_assert_int_eq(fake.state->launches, before + 1);
	const struct fake_launch *l = &fake.state->launch[before];
	ck_assert_str_eq(l->entry, "fagen_merge");
	ck_assert_uint_eq(l->grid, 2 * 3 * 3); /* 17 rows: three CTAs a head */
	ck_assert_uint_eq(l->threads, FAGEN_MERGE_THREADS);
	const struct fagen_merge_abi abi = launched(before);
	ck_assert(abi.out.data == 0x10000 && abi.out_a.data == 0x20000 && abi.out_b.data == 0x30000);
	ck_assert(abi.lse.data == 0x1000000 && abi.lse_a.data == 0x2000000 && abi.lse_b.data == 0x3000000);
	ck_assert(abi.dout.data == 0 && abi.dlse_a.data == 0);
	ck_assert(abi.out_b.stride_batch == 3 * 17 * 64 && abi.lse_b.stride_head == 17 && abi.out.stride_seq == 64);
	ck_assert(abi.type == FAGEN_MERGE_BF16 && abi.type_a == FAGEN_MERGE_FLOAT32 && abi.type_b == FAGEN_MERGE_FP16);
	ck_assert(abi.heads == 3 && abi.seqlen == 17 && abi.head_dim == 64 && abi.vector == 1);
}
END_TEST

START_TEST(backward_reads_the_parts_alone)
{
	fagen_merge_args a = plain();
	a.out.data = a.lse.data = a.dlse.data = NULL;
	const int before = fake.state->launches;
	ck_assert_msg(!fagen_merge_backward(merger, &a, NULL, &error), "%s", error.message);
	ck_assert_str_eq(fake.state->launch[before].entry, "fagen_merge_backward");
	const struct fagen_merge_abi abi = launched(before);
	ck_assert(abi.out.data == 0 && abi.lse.data == 0 && abi.dlse.data == 0);
	ck_assert(abi.dout.data == 0x40000 && abi.dout_a.data == 0x50000 && abi.dout_b.data == 0x60000);
	ck_assert(abi.dlse_a.data == 0x5000000 && abi.dlse_b.data == 0x6000000);
}
END_TEST

/* Four elements at a time only where all rows of all tensors allow it. */
START_TEST(vectors_need_alignment)
{
	for (int i = 0; i < 7; i++) {
		fagen_merge_args a = plain();
		switch (i) {
		case 0: a.head_dim = 63; break;
		case 1: a.out.data = (char *)a.out.data + 4; break;
		case 2: a.out_a.data = (char *)a.out_a.data + 8; break;
		case 3: a.out_b.stride_seq = 66; break;
		case 4: a.out_a.stride_batch += 2; break;
		case 5: a.out_b.data = (char *)a.out_b.data + 8; break; /* 16-bit: still aligned */
		default: a.lse.data = (char *)a.lse.data + 4;           /* one float a row: no matter */
		}
		const int before = fake.state->launches;
		ck_assert_msg(!fagen_merge(merger, &a, NULL, &error), "%d: %s", i, error.message);
		ck_assert_int_eq(launched(before).vector, i >= 5);
	}
}
END_TEST

START_TEST(wrong_arguments_are_refused_by_name)
{
	static const char *const field[] = {
		"struct_size", "dtype_a",        "batch",           "head_dim",           "out_b.data", "lse_a.data",
		"out.data",    "out.stride_seq", "lse.stride_head", "out_a.stride_batch", "dout.data",  "dlse_b.data"};
	for (int i = 0; i < 12; i++) {
		fagen_merge_args a = plain();
		switch (i) {
		case 0: a.struct_size = 0; break;
		case 1: a.dtype_a = 3; break;
		case 2: a.batch = -1; break;
		case 3: a.head_dim = (int64_t)1 << 31; break;
		case 4: a.out_b.data = NULL; break;
		case 5: a.lse_a.data = (char *)a.lse_a.data + 2; break;
		case 6: a.out.data = (char *)a.out.data + 1; break;
		case 7: a.out.stride_seq = 60; break;
		case 8: a.lse.stride_head = 0; break;
		case 9: a.out_a.stride_batch = INT64_MAX / 2; break;
		case 10: a.dout.data = NULL; break;
		default: a.dlse_b.data = NULL;
		}
		const int before = fake.state->launches;
		const int code =
			i < 10 ? fagen_merge(merger, &a, NULL, &error) : fagen_merge_backward(merger, &a, NULL, &error);
		ck_assert_msg(code == FAGEN_ERROR_INVALID, "%s: %d", field[i], code);
		ck_assert_str_eq(error.field, field[i]);
		ck_assert_int_eq(fake.state->launches, before);
	}
}
END_TEST

START_TEST(empty_merges_launch_nothing)
{
	for (int i = 0; i < 3; i++) {
		fagen_merge_args a = {.struct_size = sizeof a, .batch = 2, .heads = 2, .seqlen = 2, .head_dim = 64};
		*(i == 0 ? &a.batch : i == 1 ? &a.heads : &a.seqlen) = 0;
		const int before = fake.state->launches;
		ck_assert_int_eq(fagen_merge(merger, &a, NULL, &error), FAGEN_OK);
		ck_assert_int_eq(fagen_merge_backward(merger, &a, NULL, &error), FAGEN_OK);
		ck_assert_int_eq(fake.state->launches, before);
	}
	fagen_merge_args huge = plain(); /* more blocks than a grid may have */
	huge.batch = huge.heads = 1 << 20;
	ck_assert_int_eq(fagen_merge(merger, &huge, NULL, &error), FAGEN_ERROR_INVALID);
}
END_TEST

/* Each driver call of getting a merger and launching it fails once; then it goes. */
START_TEST(every_failing_call_is_told_and_undone)
{
	const fagen_config config = {.struct_size = sizeof config, .cache_dir = cache};
	const fagen_merge_args a = plain();
	int n = 0, got = 0;
	for (bool failed = true; failed;) {
		fagen_runtime *other = NULL;
		fagen_merger *m = NULL;
		ck_assert_int_eq(fagen_open(&other, &config, &error), FAGEN_OK);
		const int libraries = fake.state->libraries;
		fake.state->fail_at = fake.state->calls + ++n;
		fake.state->fail_result = 719;
		fake.state->failed_call = -1;
		const int rc = fagen_merger_get(&m, other, 0, &error), merged = rc ? rc : fagen_merge(m, &a, NULL, &error);
		fake.state->fail_at = 0;
		failed = fake.state->failed_call >= 0;
		ck_assert_int_eq(merged, failed ? FAGEN_ERROR_DRIVER : FAGEN_OK);
		ck_assert_int_eq(error.cuda_result, failed ? 719 : 0);
		ck_assert(!rc == !!m && (!rc || fake.state->libraries == libraries));
		ck_assert_int_eq(fake.depth(), 0);
		unsigned int mode = 0; /* one that could not be given back stays */
		fake.cu.cuThreadExchangeStreamCaptureMode(&mode);
		got += failed && !rc;
		ck_assert_int_eq(fagen_merger_get(&m, other, 0, &error) || fagen_merge(m, &a, NULL, &error), FAGEN_OK);
		fagen_close(other);
		ck_assert_int_eq(fake.state->libraries, libraries);
	}
	ck_assert(n > 12 && got >= 3);
	ck_assert_int_eq(fake.state->broken, 0);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("merge");
	TCase *t = tcase_create("merge");
	tcase_set_timeout(t, 120);
	tcase_add_unchecked_fixture(t, cache_make, cache_remove);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, one_merger_for_a_device);
	tcase_add_test(t, every_target_compiles);
	tcase_add_test(t, forward_passes_every_argument_on);
	tcase_add_test(t, backward_reads_the_parts_alone);
	tcase_add_test(t, vectors_need_alignment);
	tcase_add_test(t, wrong_arguments_are_refused_by_name);
	tcase_add_test(t, empty_merges_launch_nothing);
	tcase_add_test(t, every_failing_call_is_told_and_undone);
	suite_add_tcase(s, t);
	return s;
}
