/* The kernels of the GPU suite that try instructions one by one, without a GPU: each shape's source compiles for Hopper, without
 * spills, and its products are not serialised. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/runtime.h"
#include "tests/gpu/ptx.h"

Suite *suite(void);

START_TEST(every_shape_compiles)
{
	struct diag diag = {0};
	struct text source = {0};
	struct cubin cubin = {0};
	struct compiler *compiler = compiler_open(NULL, false);
	ck_assert_msg(!ptx_source(&source, &ptx_shapes[_i], &diag) &&
	                      !compiler_run(&cubin, compiler, &source, target_find("sm_90a"), &diag),
	              "%s", text_str(&diag.text));
	ck_assert_int_eq(cubin.spill_bytes, 0);
	ck_assert(!cubin.serialized);
	cubin_free(&cubin);
	compiler_close(compiler);
	text_free(&source);
	diag_free(&diag);
}
END_TEST

static bool called(const char *text, const char *name)
{
	const size_t len = strlen(name);
	while ((text = strstr(text, name)) && text[len] != '(' && text[len] != '<')
		text += len;
	return text != NULL;
}

/* Of each wrapper in templates/sm90/ptx.h. */
START_TEST(every_instruction_is_tried)
{
	static const char *const names[] = {"mbarrier_init", "fence_mbarrier_init", "mbarrier_arrive", "mbarrier_arrive_expect_tx",
	                                    "mbarrier_wait", "barrier_arrive", "barrier_red_or",
	                                    "cp_async_bulk_tensor_4d", "cp_async_bulk_prefetch_tensor_4d", "fence_proxy_async", "elect_sync", "setmaxnreg_dec",
	                                    "setmaxnreg_inc", "wgmma_fence", "wgmma_commit_group", "wgmma_wait_group", "registers_pin",
	                                    "wgmma_desc", "cp_async_bulk", "cp_reduce_async_bulk_add", "cp_async_bulk_store", "cp_async_bulk_commit_group",
	                                    "cp_async_bulk_wait_read", "cp_async_bulk_wait", "fence_proxy_async_global", "word_wait", "st_release",
	                                    "atom_cas_acquire", "stmatrix_x4_trans", "stmatrix_x4", "known_here",
	                                    "wgmma_ss", "wgmma_ms", "wgmma_rs"};
	static const char *const pair_names[] = {"cluster_ctarank", "mapa", "mbarrier_arrive_cluster", "barrier_cluster_arrive",
	                                         "barrier_cluster_wait", "cp_async_bulk_tensor_4d_multicast",
	                                         "cp_async_bulk_cluster", "wgmma_mm", "wgmma_sm"};
	struct diag diag = {0};
	struct text source = {0}, pair = {0};
	ck_assert(!ptx_source(&source, &ptx_shapes[0], &diag));
	ck_assert(!ptx_source(&pair, &ptx_shapes[ptx_shape_count - 1], &diag));
	const char *const templ = strstr(text_str(&source), "#line 1 \"templates/sm90/ptx.h\""),
			  *const tests = strstr(text_str(&source), "#line 1 \"tests/gpu/ptx.cu\"");
	int defined = 0;
	for (const char *at = templ; (at = strstr(at, "DEVICE ")) && at < tests; at++)
		defined++;
	const int all = (int)(sizeof names / sizeof *names + sizeof pair_names / sizeof *pair_names);
	ck_assert_int_eq(defined, all - 5 + 2); /* five are emitted; registers_pin and known_here are for two types each */
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		ck_assert_msg(called(tests, names[i]), "%s", names[i]);
	const char *const pair_tests = strstr(text_str(&pair), "#line 1 \"tests/gpu/pair.cu\"");
	ck_assert_ptr_nonnull(pair_tests);
	for (size_t i = 0; i < sizeof pair_names / sizeof *pair_names; i++)
		ck_assert_msg(called(pair_tests, pair_names[i]), "%s", pair_names[i]);
	text_free(&source);
	text_free(&pair);
	diag_free(&diag);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("ptx");
	TCase *t = tcase_create("ptx");
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, every_shape_compiles, 0, ptx_shape_count);
	tcase_add_test(t, every_instruction_is_tried);
	suite_add_tcase(s, t);
	return s;
}
