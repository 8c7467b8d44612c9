/* The planner on masks whose tiles have no closed form, layouts, inputs and scores. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gen/expr.h"
#include "tests/plan_help.h"

static void spec_text(struct spec *spec, int *slot, const char *text)
{
	*slot = spec->term_count++;
	spec->term[*slot] = (struct term){.kind = TERM_TEXT, .text = spec->text_len, .child = -1, .next = -1};
	strcpy(spec->text + spec->text_len, text);
	spec->text_len += (int)strlen(text) + 1;
}

static struct spec spec_of(const char *mask, const char *score, const struct input *input)
{
	struct spec spec = spec_plain(64, 64);
	if (mask)
		spec_text(&spec, &spec.mask, mask);
	if (score)
		spec_text(&spec, &spec.score, score);
	if (input)
		spec.input[spec.input_count++] = *input;
	return spec;
}

/* The sample of tiles comes near the count of all, for masks whose tiles have no closed form. */
START_TEST(sampled_share)
{
	static const char *const masks[] = {"q / 1000 == k / 1000", "k * 2 <= q",
	                                    "abs(q / 64 - k / 64) <= 3 && abs(q % 64 - k % 64) <= 3"};
	const struct problem problem = {1, 2, 2, 4096, 4096, 16};
	for (size_t i = 0; i < sizeof masks / sizeof *masks; i++)
		for (int pass = 0; pass < PASS_COUNT; pass++) {
			const struct spec spec = spec_of(masks[i], NULL, NULL);
			must_make(&plan, &spec, "H200", &problem, (enum pass)pass);
			check_plan(&plan, &spec);
			const int m = best(&plan)->tile_m, n = best(&plan)->tile_n;
			int64_t seen = 0;
			for (int q0 = 0; q0 < 4096; q0 += m)
				for (int k0 = 0; k0 < 4096; k0 += n) {
					bool any = false;
					for (int q = q0; q < q0 + m && !any; q++)
						for (int k = k0; k < k0 + n && !any; k++)
							any = i == 0   ? q / 1000 == k / 1000
							      : i == 1 ? k * 2 <= q
							               : abs(q / 64 - k / 64) <= 3 &&
							                         abs(q % 64 - k % 64) <= 3;
					seen += any;
				}
			const double share = (double)seen * m * n / (4096.0 * 4096.0);
			ck_assert_msg(fabs(best(&plan)->visited - share) < 0.06 * share, "%s: %g, is %g",
			              masks[i], best(&plan)->visited, share);
		}
}
END_TEST

/* A static layout without more mask is counted tile by tile where blocks are few. */
START_TEST(layout_share)
{
	struct spec spec = spec_plain(128, 128);
	spec.blocks = (struct blocks){.source = BLOCKS_KEEP, .size_q = 128, .size_k = 128};
	spec_text(&spec, &spec.blocks.keep, "random(3, q, k) < 16384");
	const struct problem problem = {1, 4, 4, 4096, 4096, 16};
	static struct program program;
	lower(&program, &spec);
	int64_t kept = 0;
	for (int q = 0; q < 32; q++)
		for (int k = 0; k < 32; k++) {
			const int64_t name[NAME_COUNT] = {[NAME_Q] = q, [NAME_K] = k, [NAME_SQ] = 32, [NAME_SK] = 32};
			kept += expr_eval(&program.pool, program.block_keep, name, 0, NULL, NULL).i;
		}
	ck_assert(kept > 200 && kept < 312);
	for (int pass = 0; pass < PASS_COUNT; pass++) {
		must_make(&plan, &spec, "H200", &problem, (enum pass)pass);
		check_plan(&plan, &spec);
		ck_assert_double_eq_tol(best(&plan)->visited, (double)kept / 1024, 0.02);
	}
	ck_assert_double_eq_tol(plan.useful_flop / (4096.0 * 4096 * 4 * 512 * 2.5), (double)kept / 1024, 0.03);
}
END_TEST

/* Blocks smaller than tiles have a bit each: no more than 64. */
START_TEST(small_blocks)
{
	struct spec spec = spec_plain(64, 64);
	const struct problem problem = {1, 4, 4, 1024, 1024, 16};
	spec.blocks = (struct blocks){.source = BLOCKS_BITMAP, .size_q = 16, .size_k = 16};
	for (int pass = 0; pass < PASS_COUNT; pass++) {
		must_make(&plan, &spec, "H200", &problem, (enum pass)pass);
		for (int i = 0; i < plan.candidate_count; i++) {
			const struct candidate *c = &plan.candidate[i];
			const bool many = (c->tile_m / 16) * (c->tile_n / 16) > 64;
			ck_assert_int_eq(strstr(c->reason, "want at most 64") != NULL, many);
		}
	}
}
END_TEST

START_TEST(kernels_before)
{
	const struct input doc = {
		.name = "doc", .dtype = INPUT_I32, .dims = 2, .dim = {{.kind = DIM_BATCH}, {.kind = DIM_SEQ_K}}};
	const struct problem problem = {2, 6, 3, 1000, 700, 16};
	struct spec spec = spec_of("doc[b, q] == doc[b, k]", NULL, &doc);
	for (int pass = 0; pass < PASS_COUNT; pass++) {
		must_make(&plan, &spec, "H200", &problem, (enum pass)pass);
		const int m = best(&plan)->tile_m, n = best(&plan)->tile_n;
		const struct recipe_kernel *bounds = recipe_kernel_find(&plan.recipe, "fagen_bounds");
		const struct recipe_shape shape = {2, 6, 3, 1000, 700, 0, 0, false, 132};
		const int64_t tiles_q = 2 * 6 * ((1000 + m - 1) / m), tiles_k = 2 * 6 * ((700 + n - 1) / n);
		ck_assert(bounds && bounds->threads == 128);
		ck_assert_int_eq(recipe_grid_size(bounds, &shape), (tiles_q + tiles_k + 3) / 4);
		/* least and greatest, two ints, for each tile of each head */
		const int64_t bytes = 8 * tiles_q;
		ck_assert_int_eq(recipe_piece_bytes(piece_find(&plan.recipe, "bounds_rows"), &shape),
		                 (bytes + 255) / 256 * 256);
		ck_assert_ptr_nonnull(piece_find(&plan.recipe, "bounds_cols"));
		ck_assert_ptr_null(recipe_kernel_find(&plan.recipe, "fagen_blocks"));
	}
	spec = spec_plain(64, 64);
	spec.blocks = (struct blocks){.source = BLOCKS_LISTS, .size_q = 64, .size_k = 128};
	must_make(&plan, &spec, "H200", &problem, PASS_FORWARD);
	const struct recipe_shape shape = {2, 6, 3, 1000, 700, 0, 0, false, 132};
	ck_assert_int_eq(recipe_grid_size(recipe_kernel_find(&plan.recipe, "fagen_blocks"), &shape), 2 * 6 * 16);
	ck_assert_int_eq(recipe_piece_bytes(piece_find(&plan.recipe, "blocks"), &shape), (2 * 6 * 16 * 6 + 255) / 256 * 256);
	for (int pass = 0; pass < PASS_COUNT; pass++) { /* the naive kernels read the same bitmap */
		struct program program;
		struct diag diag = {0};
		lower(&program, &spec);
		const struct device *device = device_find("H200");
		ck_assert_int_eq(plan_naive(&other, &spec, &program, target_find(device->target), device, &problem,
		                            (enum pass)pass, &diag),
		                 0);
		ck_assert_str_eq(other.recipe.kernel[0].entry, "fagen_blocks");
		ck_assert_int_eq(recipe_grid_size(&other.recipe.kernel[0], &shape), 2 * 6 * 16);
		ck_assert_ptr_nonnull(piece_find(&other.recipe, "blocks"));
	}
}
END_TEST

START_TEST(gradients_of_inputs)
{
	const struct input table = {.name = "table",
	                            .dtype = INPUT_F32,
	                            .dims = 2,
	                            .dim = {{.kind = DIM_HEADS}, {DIM_CONST, 32}},
	                            .grad = true};
	const struct problem problem = {2, 6, 6, 1024, 1024, 16};
	const struct spec spec = spec_of(NULL, "s + table[h, min(max(q - k + 16, 0), 31)]", &table);
	must_make(&plan, &spec, "H200", &problem, PASS_BACKWARD);
	check_plan(&plan, &spec);
	ck_assert(recipe_kernel_find(&plan.recipe, "fagen_input_grad") && recipe_kernel_find(&plan.recipe, "fagen_input_grad_sum"));
	ck_assert_ptr_null(recipe_kernel_find(&plan.recipe, "fagen_input_grad_cols"));
	ck_assert_int_eq(piece_find(&plan.recipe, "grad_partial")->unit, 32);
	/* Gradients without a query are cleared by a kernel, and by it alone. */
	const struct recipe_shape no_queries = {2, 6, 6, 0, 1024, 0, 0, false, 132},
				  no_batch = {0, 6, 6, 1024, 1024, 0, 0, false, 132};
	for (int i = 0; i < plan.recipe.kernel_count; i++) {
		const struct recipe_kernel *k = &plan.recipe.kernel[i];
		const bool clears = strcmp(k->entry, "fagen_input_grad_clear") == 0;
		ck_assert_int_eq(recipe_grid_size(k, &no_batch), clears);
		if (k->grid != GRID_KEY_TAILS)
			ck_assert_int_eq(recipe_grid_size(k, &no_queries), clears);
	}
	must_make(&plan, &spec, "H200", &problem, PASS_FORWARD);
	ck_assert_ptr_null(recipe_kernel_find(&plan.recipe, "fagen_input_grad"));
}
END_TEST

/* Of masks that are each other's mirror images the one takes longer whose longest items begin when all else is nearly done: a head's first rows, and
 * its last keys. */
START_TEST(long_items_begin_last)
{
	static const struct {
		enum pass pass;
		const char *late, *early;
	} rows[] = {{PASS_FORWARD, "abs(q - k) < 128 || q < 128", "abs(q - k) < 128 || q >= 8064"},
	            {PASS_BACKWARD, "abs(q - k) < 128 || k >= 8064", "abs(q - k) < 128 || k < 128"}};
	const struct problem problem = {2, 12, 12, 8192, 8192, 16};
	for (int i = 0; i < 2; i++) {
		struct spec late = spec_of(rows[i].late, NULL, NULL), early = spec_of(rows[i].early, NULL, NULL);
		late.tile[rows[i].pass] = early.tile[rows[i].pass] = (struct tile_request){.m = 128, .n = 128};
		must_make(&plan, &late, "H200", &problem, rows[i].pass);
		must_make(&other, &early, "H200", &problem, rows[i].pass);
		ck_assert_double_eq_tol(best(&plan)->visited, best(&other)->visited, 0.02 * best(&plan)->visited);
		/* 64 visits of 128 x 128 cells take no less than their matrix products, 4096 FLOP a clock. */
		const double flop = 64.0 * 128 * 128 * 64 * (rows[i].pass == PASS_FORWARD ? 4 : 10);
		ck_assert_double_gt(best(&plan)->time_us - best(&other)->time_us, 0.8 * flop / 4096 / 1755);
	}
}
END_TEST

/* The kernel of gradients waits for one addition after the other: the same tile takes less where more warps of an SM do. */
START_TEST(gradients_wait)
{
	const struct input rel = {.name = "rel",
	                          .dtype = INPUT_F32,
	                          .dims = 4,
	                          .dim = {{.kind = DIM_BATCH}, {.kind = DIM_HEADS}, {.kind = DIM_SEQ_Q}, {DIM_CONST, 64}},
	                          .grad = true};
	const struct problem problem = {1, 12, 12, 4096, 4096, 16};
	struct spec spec = spec_of(NULL, "s + rel[b, h, q, k / 64]", &rel);
	double us[2];
	for (int i = 0; i < 2; i++) {
		spec.tile[PASS_BACKWARD] = (struct tile_request){.m = 64, .n = 64, .warps = 4 << i, .stages = 2};
		must_make(&plan, &spec, "H200", &problem, PASS_BACKWARD);
		us[i] = best(&plan)->time_us;
	}
	ck_assert_double_gt(us[0], 1.2 * us[1]);
	spec.input[0].grad = false; /* and nothing comes near it */
	must_make(&plan, &spec, "H200", &problem, PASS_BACKWARD);
	ck_assert_double_gt(us[1], 2 * best(&plan)->time_us);
}
END_TEST

/* What costs more in a cell is predicted to take longer, and staged inputs are part of shared memory. */
START_TEST(expressions_cost)
{
	const struct problem problem = {4, 16, 16, 4096, 4096, 16};
	const struct input bias = {
		.name = "bias",
		.dtype = INPUT_F32,
		.dims = 4,
		.dim = {{.kind = DIM_BATCH}, {.kind = DIM_HEADS}, {.kind = DIM_SEQ_Q}, {.kind = DIM_SEQ_K}}};
	static const char *const scores[] = {"s", "20 * tanh(s / 20)", "log(1 + exp(20 * tanh(s / 20))) * sigmoid(s)"};
	double before = 0;
	for (int i = 0; i < 3; i++) {
		const struct spec spec = spec_of(NULL, scores[i], NULL);
		must_make(&plan, &spec, "H200", &problem, PASS_FORWARD);
		ck_assert_double_gt(best(&plan)->cost_us[COST_EXP], before * 1.5);
		before = best(&plan)->cost_us[COST_EXP];
	}
	const struct spec plain = spec_plain(64, 64), biased = spec_of(NULL, "s + bias[b, h, q, k]", &bias);
	must_make(&plan, &plain, "H200", &problem, PASS_FORWARD);
	must_make(&other, &biased, "H200", &problem, PASS_FORWARD);
	ck_assert_double_ge(best(&other)->hbm_bytes - best(&plan)->hbm_bytes, 4.0 * 4 * 16 * 4096 * 4096);
	ck_assert_double_gt(best(&other)->time_us, best(&plan)->time_us);
	bool staged = false;
	for (int i = 0; i < best(&other)->smem_term_count; i++) {
		const struct smem_term *t = &best(&other)->smem_term[i];
		if (strcmp(t->name, "cell inputs") == 0)
			staged = t->bytes ==
			         best(&other)->stages * best(&other)->tile_m * (best(&other)->tile_n + 8) * 4;
	}
	ck_assert(staged);
}
END_TEST

/* Analysis takes milliseconds whatever the spec: 50 leave room for slow machines and sanitizers, not for an explosion. */
START_TEST(analysis_is_quick)
{
	struct text mask = {0};
	const struct problem problem = {1, 8, 8, 1 << 17, 1 << 17, 16};
	for (int shape = 0; shape < 3; shape++) {
		text_free(&mask);
		for (int i = 0; i < 25; i++) {
			text_puts(&mask, i == 0 ? "" : shape == 1 ? " || " : " && ");
			text_addf(&mask, "(q * %d <= k + %d %s q %% %d < %d)", shape == 2 ? 2 : 1, 7 * i,
			          shape == 1 ? "&&" : "||", shape == 2 ? i + 5 : 1000000, shape == 2 ? 3 : 9 * i);
		}
		const struct spec spec = spec_of(text_str(&mask), NULL, NULL);
		const clock_t before = clock();
		must_make(&plan, &spec, "H200", &problem, PASS_FORWARD);
		ck_assert_msg((double)(clock() - before) / CLOCKS_PER_SEC < 0.05, "%s", text_str(&mask));
	}
	text_free(&mask);
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("plan_language");
	TCase *t = tcase_create("plan_language");
	tcase_set_timeout(t, 180);
	tcase_add_test(t, sampled_share);
	tcase_add_test(t, layout_share);
	tcase_add_test(t, small_blocks);
	tcase_add_test(t, kernels_before);
	tcase_add_test(t, gradients_of_inputs);
	tcase_add_test(t, long_items_begin_last);
	tcase_add_test(t, gradients_wait);
	tcase_add_test(t, expressions_cost);
	tcase_add_test(t, analysis_is_quick);
	suite_add_tcase(s, t);
	return s;
}
