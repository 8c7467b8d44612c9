/* The planner: what it counts against brute force, what it may choose, and what it says when it may not. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/plan_help.h"

START_TEST(random_plans)
{
	int made = 0;
	for (int i = 0; i < 600; i++) {
		const struct spec spec = spec_random();
		const int64_t kv = rng_in(1, 8);
		const struct problem problem = {rng_in(0, 9),    kv * rng_in(1, 9), kv,
		                                rng_in(0, 3000), rng_in(0, 3000),   rng() & 1 ? 16 : 2};
		const char *gpu = gpus[rng() % GPUS];
		const enum pass pass = (enum pass)(rng() % PASS_COUNT);
		struct diag diag = {0};
		const int result = make(&plan, &spec, gpu, &problem, pass, &diag);
		if (result == 0) {
			made++;
			check_plan(&plan, &spec);
			/* Nothing but its arguments decides. */
			memset(&other, 0xA5, sizeof other);
			must_make(&other, &spec, gpu, &problem, pass);
			struct text a = {0}, b = {0};
			plan_json(&a, &plan);
			plan_json(&b, &other);
			ck_assert_str_eq(text_str(&a), text_str(&b));
			text_free(&a);
			text_free(&b);
		} else {
			ck_assert_int_gt(diag.errors, 0);
			ck_assert_ptr_nonnull(strstr(text_str(&diag.text), device_find(gpu)->target));
		}
		diag_free(&diag);
	}
	ck_assert_int_gt(made, 500);
}
END_TEST

/* Every head dimension on every target, both passes, with and without dropout. RES-01, RES-02, HD-11. */
START_TEST(every_head_dim)
{
	const struct problem problem = {2, 8, 8, 1024, 1024, 16};
	for (int dim = HEAD_DIM_MIN; dim <= HEAD_DIM_MAX; dim += HEAD_DIM_STEP)
		for (int g = 0; g < GPUS; g++)
			for (int dropout = 0; dropout < 2; dropout++)
				for (int pass = 0; pass < PASS_COUNT; pass++) {
					struct spec spec = spec_plain(dim, dim);
					spec.keep_256 = dropout ? 230 : DROPOUT_LEVELS;
					must_make(&plan, &spec, gpus[g], &problem, (enum pass)pass);
					check_plan(&plan, &spec);
				}
}
END_TEST

/* Cells inside tiles that hold a visible cell, counted one by one. The planner's share may not be below it, and for
 * these masks, whose visible keys are intervals, must equal it. */
START_TEST(visited_share)
{
	for (int i = 0; i < 150; i++) {
		const struct spec spec = spec_random();
		const struct problem problem = {1, 2, 1, rng_in(1, 500), rng_in(1, 500), 16};
		const enum pass pass = (enum pass)(rng() % PASS_COUNT);
		struct diag diag = {0};
		if (make(&plan, &spec, "H200", &problem, pass, &diag) != 0) {
			diag_free(&diag);
			continue;
		}
		const struct candidate *c = best(&plan);
		const int64_t sq = problem.seqlen_q, sk = problem.seqlen_k;
		int64_t cells = 0, seen = 0, padded = 0;
		for (int64_t q0 = 0; q0 < sq; q0 += c->tile_m)
			for (int64_t k0 = 0; k0 < sk; k0 += c->tile_n) {
				const int64_t q1 = q0 + c->tile_m < sq ? q0 + c->tile_m : sq,
					      k1 = k0 + c->tile_n < sk ? k0 + c->tile_n : sk;
				int64_t in_tile = 0;
				for (int64_t q = q0; q < q1; q++)
					for (int64_t k = k0; k < k1; k++)
						in_tile += visible(&spec, sq, sk, q, k);
				seen += in_tile;
				cells += in_tile ? (q1 - q0) * (k1 - k0) : 0;
				padded += in_tile ? (int64_t)c->tile_m * c->tile_n : 0;
			}
		ck_assert_double_eq_tol(c->visited, (double)cells / (double)(sq * sk), 1e-12);
		const double d = spec.head_dim_qk + spec.head_dim_v;
		ck_assert_double_eq_tol(plan.useful_flop, 2 * d * 2 * (double)seen * (pass == PASS_FORWARD ? 1 : 2.5),
		                        0.5);
		const bool again = pass == PASS_BACKWARD && spec.deterministic; /* S and dP a second time */
		ck_assert_double_eq_tol(c->exps, 2 * (double)padded * (again ? 2 : 1), 0.5);
		const double per_cell =
			(pass == PASS_FORWARD ? 2 * d : 6.0 * spec.head_dim_qk + 4.0 * spec.head_dim_v) +
			(again ? 2 * d : 0);
		ck_assert_double_eq_tol(c->mma_flop, 2 * (double)padded * per_cell, 0.5);
		diag_free(&diag);
	}
}
END_TEST

START_TEST(long_sequences_are_sampled_well)
{
	struct spec spec = spec_plain(64, 64);
	spec_mask(&spec, "causal", 0, 0);
	const int64_t s = 1 << 20;
	const struct problem problem = {1, 1, 1, s, s, 16};
	must_make(&plan, &spec, "H200", &problem, PASS_FORWARD);
	ck_assert_double_eq_tol(plan.useful_flop / (4.0 * 64 * (double)s * (double)(s + 1) / 2), 1, 1e-3);
	ck_assert_double_eq_tol(best(&plan)->visited, 0.5, 1e-3);
	const struct problem huge = {LENGTH_MAX, 1, 1, LENGTH_MAX, LENGTH_MAX, 2};
	struct diag diag = {0};
	ck_assert_int_eq(make(&plan, &spec, "H200", &huge, PASS_FORWARD, &diag), -1);
	ck_assert_ptr_nonnull(strstr(text_str(&diag.text), "2147483647 CTAs"));
	diag_free(&diag);
}
END_TEST

START_TEST(zero_lengths)
{
	const struct spec spec = spec_plain(64, 64);
	static const struct problem problems[] = {{0, 4, 4, 64, 64, 16},
	                                          {2, 4, 4, 0, 64, 16},
	                                          {2, 4, 4, 64, 0, 16},
	                                          {2, 4, 4, 0, 0, 16},
	                                          {1, 1, 1, 1, 1, 2}};
	for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
		for (int pass = 0; pass < PASS_COUNT; pass++) {
			must_make(&plan, &spec, "A100", &problems[i], (enum pass)pass);
			check_plan(&plan, &spec);
			struct text text = {0};
			plan_print(&text, &plan);
			plan_json(&text, &plan);
			ck_assert_ptr_null(strstr(text_str(&text), "nan"));
			ck_assert_ptr_null(strstr(text_str(&text), "inf "));
			text_free(&text);
		}
}
END_TEST

START_TEST(wrong_problems)
{
	const struct spec spec = spec_plain(64, 64);
	static const struct problem problems[] = {
		{1, 3, 2, 8, 8, 16}, {1, 4, 0, 8, 8, 16}, {1, 4, 4, -1, 8, 16}, {1, 4, 4, 8, 8, 4}};
	for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
		struct diag diag = {0};
		ck_assert_int_eq(make(&plan, &spec, "A100", &problems[i], PASS_FORWARD, &diag), -1);
		ck_assert_int_gt(diag.errors, 0);
		diag_free(&diag);
	}
}
END_TEST

/* Traffic that can be said in one line: with everything in L2, each tensor crosses DRAM once. */
START_TEST(hbm_traffic)
{
	struct spec spec = spec_plain(128, 64);
	const struct problem problem = {2, 8, 2, 2048, 1024, 16};
	must_make(&plan, &spec, "H200", &problem, PASS_FORWARD);
	const double q = 2.0 * 2 * 8 * 2048 * 128, k = 2.0 * 2 * 2 * 1024 * 128, v = k / 2, o = q / 2,
		     lse = 4.0 * 2 * 8 * 2048;
	ck_assert_double_eq_tol(best(&plan)->hbm_bytes, q + k + v + o + lse, 0.5);
	ck_assert_double_eq_tol(plan.standard_bytes, q + k + v + o + 4 * 4.0 * 2 * 8 * 2048 * 1024, 0.5);
	/* Past L2 the streamed side is read again, never more often than there are query tiles. */
	const struct problem far = {1, 1, 1, 1 << 20, 1 << 20, 16};
	must_make(&plan, &spec, "RTX 3090", &far, PASS_FORWARD);
	const double once = (double)(1 << 20) * (2 * 2 * (128 + 64) + 4);
	ck_assert_double_gt(best(&plan)->hbm_bytes, 1.5 * once);
	ck_assert_double_lt(best(&plan)->hbm_bytes, once * (double)(1 << 20) / best(&plan)->tile_m);
	/* The paper's point. */
	ck_assert_double_gt(plan.standard_bytes, 50 * best(&plan)->hbm_bytes);
}
END_TEST

/* FlashAttention-2 as measured on an H200 (PyTorch, bf16, full, 4096 x 4096): kernels of its class, whose rows are planned
 * for alone, are predicted within a quarter. */
START_TEST(measured_anchor)
{
	static const struct {
		int dim, heads;
		double tflops[PASS_COUNT];
	} anchors[] = {{64, 32, {303, 270}}, {128, 16, {355, 294}}, {256, 8, {327, 251}}};
	for (size_t i = 0; i < sizeof anchors / sizeof *anchors; i++)
		for (int pass = 0; pass < PASS_COUNT; pass++) {
			const struct spec spec = spec_plain(anchors[i].dim, anchors[i].dim);
			const struct problem problem = {4, anchors[i].heads, anchors[i].heads, 4096, 4096, 16};
			must_make_with(&plan, pass == PASS_FORWARD ? &model_sm80_fwd : &model_sm80_bwd, &spec, "H200", &problem);
			const double tflops = plan.useful_flop / best(&plan)->time_us * 1e-6;
			ck_assert_msg(fabs(tflops / anchors[i].tflops[pass] - 1) < 0.25,
			              "d %d: predicted %.0f, measured %.0f", anchors[i].dim, tflops,
			              anchors[i].tflops[pass]);
		}
}
END_TEST

START_TEST(more_work_takes_longer)
{
	struct spec spec = spec_plain(64, 64);
	struct problem problem = {1, 8, 8, 256, 256, 16};
	double before = 0;
	for (; problem.seqlen_k <= 1 << 16; problem.seqlen_k *= 2) {
		must_make(&plan, &spec, "A100", &problem, PASS_FORWARD);
		ck_assert_double_gt(best(&plan)->time_us, before);
		before = best(&plan)->time_us;
	}
	problem = (struct problem){4, 16, 16, 8192, 8192, 16};
	must_make(&plan, &spec, "A100", &problem, PASS_FORWARD);
	const double full = best(&plan)->time_us;
	spec_mask(&spec, "causal", 0, 0);
	must_make(&plan, &spec, "A100", &problem, PASS_FORWARD);
	ck_assert_double_lt(best(&plan)->time_us, 0.65 * full);
	spec_mask(&spec, "window", 256, UNBOUNDED);
	must_make(&plan, &spec, "A100", &problem, PASS_FORWARD);
	ck_assert_double_lt(best(&plan)->time_us, 0.15 * full);
}
END_TEST

/* ---- a template of our own: what the planner does with what a row says ---- */

static int fake_tiles(struct tile_request *tile, int max, const struct spec *spec, const struct program *program,
                      const struct target *target)
{
	static const struct tile_request all[] = {{64, 64, 4, 1, 0, 0},  {64, 64, 4, 2, 0, 0}, {128, 64, 16, 1, 0, 0},
	                                          {64, 128, 8, 3, 0, 0}, {96, 64, 4, 1, 0, 0}, {64, 32, 4, 1, 0, 0}};
	memcpy(tile, all, sizeof all);
	return sizeof all / sizeof *all;
}
static bool fake_legal(char reason[REASON_MAX], const struct tile_request *tile, const struct spec *spec,
                       const struct program *program)
{
	if (tile->m % 64 == 0)
		return true;
	snprintf(reason, REASON_MAX, "m is %d; it must be a multiple of 64", tile->m);
	return false;
}
static enum dquery_sums fake_sums;
static void fake_shape(struct candidate *c, const struct spec *spec, const struct program *program,
                       const struct target *target, const struct device *device)
{
	c->smem_bytes = 1000 * c->tile_n * c->stages;
	strcpy(c->smem_term[0].name, "everything");
	c->smem_term[0].bytes = c->smem_bytes;
	c->smem_term_count = 1;
	c->regs = c->warps == 16 ? 162 : c->tile_n == 32 ? 300 : 100;
	c->cost_us[COST_MMA] = (double)c->tile_m * c->tile_n;
	c->sums = fake_sums;
}
static void fake_recipe(struct recipe *recipe, const struct spec *spec, const struct program *program,
                        const struct candidate *c, const struct target *target)
{
	recipe->kernel_count = 1;
	recipe->kernel[0] = (struct recipe_kernel){.entry = "fake", .grid = GRID_QUERY_TILES, .tile = c->tile_m, .threads = 32 * c->warps, .smem_bytes = c->smem_bytes};
}
static const struct template_model fake = {.templ = "fake/fwd",
                                           .pass = PASS_FORWARD,
                                           .main = "fake",
                                           .cc_min = 80,
                                           .tiles = fake_tiles,
                                           .legal = fake_legal,
                                           .shape = fake_shape,
                                           .recipe = fake_recipe};

static int fake_plan(struct spec *spec, const char *gpu, struct diag *diag)
{
	static struct program program;
	const struct problem problem = {2, 4, 4, 1000, 1000, 16};
	lower(&program, spec);
	return plan_with(&plan, &fake, spec, &program, target_find(device_find(gpu)->target), device_find(gpu),
	                 &problem, PASS_FORWARD, diag);
}

static void fake_backward(struct recipe *recipe, const struct spec *spec, const struct program *program,
                          const struct candidate *c, const struct target *target)
{
	recipe->kernel_count = 3;
	recipe->kernel[0] = (struct recipe_kernel){.entry = "before", .grid = GRID_QUERY_TILES, .tile = 64, .threads = 128, .smem_bytes = 0};
	recipe->kernel[1] = (struct recipe_kernel){.entry = "main", .grid = GRID_KEY_TILES, .tile = c->tile_n, .threads = 32 * c->warps, .smem_bytes = c->smem_bytes};
	recipe->kernel[2] = (struct recipe_kernel){.entry = "after", .grid = GRID_QUERY_TILES, .tile = 64, .threads = 128, .smem_bytes = 0};
	recipe->piece_count = 2;
	recipe->piece[0] = (struct recipe_piece){"delta", SIZE_ROWS, 64, 0, 0, {0}};
	recipe->piece[1] = (struct recipe_piece){"dquery_accum", SIZE_ROWS_QK, 64, spec->head_dim_qk, 1, {0}};
}

/* Backward, everything in L2: K, V, dK and dV once; Q, dO, LSE and D once in the main kernel; dO and O once more and D
 * written before it; the float32 sums of dQ cleared, if they are, left in memory and read, and dQ written. */
START_TEST(backward_traffic)
{
	static struct program program;
	struct template_model row = fake;
	row.pass = PASS_BACKWARD;
	row.main = "main";
	row.recipe = fake_backward;
	const struct spec spec = spec_plain(64, 64);
	const struct problem problem = {2, 4, 2, 640, 1280, 16};
	struct diag diag = {0};
	lower(&program, &spec);
	const double rows = 2 * 4 * 640, keys = 2 * 2 * 1280, line = 2 * 64;
	for (fake_sums = DQUERY_CLEARED; fake_sums <= DQUERY_ORDERED; fake_sums++) {
		ck_assert_int_eq(plan_with(&plan, &row, &spec, &program, target_find("sm_90a"), device_find("H200"), &problem,
		                           PASS_BACKWARD, &diag),
		                 0);
		const int times = fake_sums == DQUERY_CLEARED ? 3 : 2;
		ck_assert_double_eq_tol(
			best(&plan)->hbm_bytes,
			keys * 4 * line + rows * (2 * line + 8) + rows * (2 * line + 4) + rows * times * 4 * 64 + rows * line, 0.5);
	}
	fake_sums = DQUERY_APART;
	ck_assert_int_eq(best(&plan)->ctas, 2 * 2 * 1280 / best(&plan)->tile_n);
	const double tiles = 2.0 * 4 * (640.0 / best(&plan)->tile_m) * (1280.0 / best(&plan)->tile_n);
	ck_assert_double_ge(best(&plan)->l2_bytes, tiles * best(&plan)->tile_m * (2 * line + 8 + 4 * 64));
	diag_free(&diag);
}
END_TEST

START_TEST(reasons_name_numbers) /* RES-08: 512 threads of 162 registers */
{
	struct spec spec = spec_plain(64, 64);
	struct diag diag = {0};
	ck_assert_int_eq(fake_plan(&spec, "RTX 3090", &diag), 0);
	ck_assert_int_eq(plan.candidate_count, 6);
	ck_assert_str_eq(plan.candidate[0].reason, "");
	ck_assert_str_eq(plan.candidate[1].reason, "shared memory: needs 128000 bytes, a CTA of sm_86 may use 101376");
	ck_assert_str_eq(plan.candidate[2].reason,
	                 "registers: 512 threads of 168 need 86016, an SM of sm_86 has 65536");
	ck_assert_str_eq(plan.candidate[4].reason, "m is 96; it must be a multiple of 64");
	ck_assert_str_eq(plan.candidate[5].reason, "registers: needs about 300 in each thread, sm_86 has 255");
	ck_assert_int_eq(plan.chosen, 0);
	ck_assert_int_eq(fake_plan(&spec, "H200", &diag), 0);
	ck_assert_str_eq(plan.candidate[1].reason, "");
	struct text text = {0};
	plan_print(&text, &plan);
	ck_assert_ptr_nonnull(strstr(text_str(&text), "everything"));
	ck_assert_ptr_nonnull(strstr(text_str(&text), "it must be a multiple of 64"));
	text_free(&text);
	diag_free(&diag);
}
END_TEST

START_TEST(explicit_tiles)
{
	struct spec spec = spec_plain(64, 64);
	struct diag diag = {0};
	spec.tile[PASS_FORWARD] = (struct tile_request){.m = 64, .n = 64};
	ck_assert_int_eq(fake_plan(&spec, "H200", &diag), 0);
	ck_assert_int_eq(plan.candidate_count, 2);
	spec.tile[PASS_FORWARD] = (struct tile_request){64, 64, 4, 2, 0, 0};
	ck_assert_int_eq(fake_plan(&spec, "H200", &diag), 0);
	ck_assert(plan.candidate_count == 1 && best(&plan)->stages == 2);
	/* Not one of the template's own, but legal: every number of warps and stages is tried. */
	spec.tile[PASS_FORWARD] = (struct tile_request){.m = 192, .n = 16};
	ck_assert_int_eq(fake_plan(&spec, "H200", &diag), 0);
	ck_assert_int_eq(best(&plan)->tile_m, 192);
	ck_assert_int_eq(best(&plan)->tile_n, 16);
	ck_assert_int_eq(diag.errors, 0);

	static const struct {
		struct tile_request tile;
		const char *gpu, *says, *nearest;
	} refused[] = {
		{{64, 64, 4, 2, 0, 0}, "RTX 3090", "128000 bytes", "{m 64, n 64, warps 4, stages 1}"},
		{{100, 64, 0, 0, 0, 0}, "H200", "m is 100; it must be a multiple of 64", "m 64, n 64"},
		{{128, 64, 16, 1, 0, 0}, "H200", "86016", "n 64, warps 4"},
		{{64, 4096, 0, 0, 0, 0}, "H200", "shared memory", "m 64, n 64"},
		{{64, 64, 4, 1, 2, 0}, "H200", "2 splits; fake/fwd leaves the keys of a tile together", "{m 64, n 64, warps 4, stages 1}"},
	};
	spec.place[KEY_tile] = (struct place){7, 3};
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		struct diag wrong = {.file = "t.yaml"};
		spec.tile[PASS_FORWARD] = refused[i].tile;
		ck_assert_int_eq(fake_plan(&spec, refused[i].gpu, &wrong), -1);
		const char *text = text_str(&wrong.text);
		ck_assert_int_eq(wrong.errors, 1);
		ck_assert_int_eq(wrong.first.line, 7);
		ck_assert_msg(strstr(text, "t.yaml:7:3: error:") && strstr(text, refused[i].says) &&
		                      strstr(text, refused[i].nearest),
		              "%s", text);
		diag_free(&wrong);
	}
	diag_free(&diag);
}
END_TEST

START_TEST(equal_times_take_the_first)
{
	struct spec spec = spec_plain(64, 64);
	struct diag diag = {0};
	/* One resource, no wait: 64x64 in one or two stages differ in stages alone, and both run two or more CTAs. */
	ck_assert_int_eq(fake_plan(&spec, "H200", &diag), 0);
	if (plan.candidate[0].time_us == plan.candidate[1].time_us)
		ck_assert_int_ne(plan.chosen, 1);
	diag_free(&diag);
}
END_TEST

/* ---- the real templates ---- */

START_TEST(d256_backward_on_99_kib) /* a plan that fits, or a refusal that says where it would */
{
	const struct problem problem = {2, 16, 2, 512, 512, 16};
	struct spec spec = spec_plain(256, 256);
	spec_mask(&spec, "causal", 0, 0);
	static const char *const small[] = {"RTX 3090", "L40S", "RTX 5090"};
	for (int i = 0; i < 3; i++) {
		struct diag diag = {0};
		if (make(&plan, &spec, small[i], &problem, PASS_BACKWARD, &diag) == 0) {
			check_plan(&plan, &spec);
			ck_assert_int_le(best(&plan)->smem_bytes, 99 * 1024);
		} else {
			ck_assert_ptr_nonnull(strstr(text_str(&diag.text), "It can be compiled for: "));
			ck_assert_ptr_nonnull(strstr(text_str(&diag.text), "sm_80"));
		}
		diag_free(&diag);
	}
	must_make(&plan, &spec, "H200", &problem, PASS_BACKWARD);
}
END_TEST

/* Wherever there is a plan there is a deterministic one: native to head dim 128, with sums of dQ in the order of key tiles; else without float32 sums, with a
 * kernel that owns query rows, which computes S and dP again: two products more than five. Forward does not know of it. */
START_TEST(deterministic)
{
	const struct problem problem = {4, 16, 16, 4096, 4096, 16};
	for (int dim = HEAD_DIM_MIN; dim <= HEAD_DIM_MAX; dim += 24)
		for (int g = 0; g < GPUS; g++)
			for (int dropout = 0; dropout < 2; dropout++) {
				struct spec plain = spec_plain(dim, dim);
				plain.keep_256 = dropout ? 230 : DROPOUT_LEVELS;
				struct spec spec = plain;
				spec.deterministic = true;
				must_make(&plan, &spec, gpus[g], &problem, PASS_BACKWARD);
				const bool native = strncmp(plan.templ, "sm90/", 5) == 0;
				must_make_with(&other, !native ? &model_sm80_bwd : dim <= 128 ? &model_sm90_bwd : &model_sm90_bwd_pair, &plain, gpus[g],
				               &problem);
				check_plan(&plan, &spec);
				ck_assert_str_eq(plan.templ, other.templ);
				ck_assert(!native || strcmp(gpus[g], "H200") == 0);
				ck_assert(native || dim <= 128 || strcmp(gpus[g], "H200") != 0);
				const struct recipe_kernel *query = recipe_kernel_find(&plan.recipe, "fagen_backward_query");
				ck_assert_int_eq(query == NULL, native && dim <= 128);
				ck_assert_int_eq(recipe_kernel_find(&plan.recipe, "fagen_dquery") == NULL, query != NULL);
				ck_assert_ptr_null(recipe_kernel_find(&other.recipe, "fagen_backward_query"));
				if (query) {
					ck_assert(query->grid == GRID_QUERY_TILES && query->tile == (native ? 128 : best(&plan)->tile_m));
					ck_assert_int_eq(query->tile % best(&plan)->tile_m, 0);
					ck_assert_int_le(query->smem_bytes, plan.target->smem_block);
					ck_assert_ptr_null(piece_find(&plan.recipe, "dquery_accum"));
					/* The native one has other tiles without it, and other padding. */
					const double padding = native ? 0.02 : 1e-9;
					ck_assert_double_eq_tol(best(&plan)->mma_flop / best(&other)->mma_flop, 1.4, 1.4 * padding);
					ck_assert_double_eq_tol(best(&plan)->exps / best(&other)->exps, 2, 2 * padding);
					/* Sums of narrow tiles may take all that L2 gives, and without them there are none. */
					if (best(&other)->bound_by != COST_L2)
						ck_assert_double_gt(best(&plan)->time_us, best(&other)->time_us);
					ck_assert_msg(best(&plan)->time_us < 2 * best(&other)->time_us, "%s d %d: %g and %g us", gpus[g], dim, best(&plan)->time_us, best(&other)->time_us);
				}
				must_make(&plan, &spec, gpus[g], &problem, PASS_FORWARD);
				must_make(&other, &plain, gpus[g], &problem, PASS_FORWARD);
				ck_assert(best(&plan)->time_us == best(&other)->time_us || best(&other)->cut);
				ck_assert(!best(&plan)->cut && best(&plan)->time_us >= best(&other)->time_us); /* what is cut depends on the batch */
			}
}
END_TEST

START_TEST(backward_128_is_not_a_cliff) /* PERF-09: at most about 2.2 times d 64 for twice the work */
{
	const struct problem problem = {4, 16, 16, 2048, 2048, 16};
	for (int g = 0; g < GPUS; g++) {
		const struct spec half = spec_plain(64, 64), whole = spec_plain(128, 128);
		must_make(&plan, &half, gpus[g], &problem, PASS_BACKWARD);
		must_make(&other, &whole, gpus[g], &problem, PASS_BACKWARD);
		ck_assert_msg(best(&other)->time_us < 3.0 * best(&plan)->time_us, "%s: %g and %g us", gpus[g],
		              best(&plan)->time_us, best(&other)->time_us);
	}
}
END_TEST

START_TEST(naive_plans)
{
	const struct problem problem = {2, 8, 2, 500, 700, 16};
	struct program *program = malloc(sizeof *program);
	for (int dim = HEAD_DIM_MIN; dim <= HEAD_DIM_MAX; dim += 24)
		for (int g = 0; g < GPUS; g++)
			for (int pass = 0; pass < PASS_COUNT; pass++) {
				struct spec spec = spec_plain(dim, dim);
				spec_mask(&spec, "causal", 0, 0);
				lower(program, &spec);
				struct diag diag = {0};
				const struct device *device = device_find(gpus[g]);
				ck_assert_msg(plan_naive(&plan, &spec, program, target_find(device->target), device,
				                         &problem, (enum pass)pass, &diag) == 0,
				              "%s", text_str(&diag.text));
				ck_assert_int_ge(plan.recipe.kernel_count, 1);
				ck_assert(best(&plan)->hbm_bytes == plan.standard_bytes && best(&plan)->time_us > 0);
				bool scores = false;
				for (int i = 0; i < plan.recipe.piece_count; i++)
					scores |= plan.recipe.piece[i].size == SIZE_SCORES;
				ck_assert(scores);
				diag_free(&diag);
			}
	free(program);
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("plan");
	TCase *t = tcase_create("plan");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, random_plans);
	tcase_add_test(t, every_head_dim);
	tcase_add_test(t, visited_share);
	tcase_add_test(t, long_sequences_are_sampled_well);
	tcase_add_test(t, zero_lengths);
	tcase_add_test(t, wrong_problems);
	tcase_add_test(t, hbm_traffic);
	tcase_add_test(t, measured_anchor);
	tcase_add_test(t, more_work_takes_longer);
	tcase_add_test(t, backward_traffic);
	tcase_add_test(t, reasons_name_numbers);
	tcase_add_test(t, explicit_tiles);
	tcase_add_test(t, equal_times_take_the_first);
	tcase_add_test(t, d256_backward_on_99_kib);
	tcase_add_test(t, deterministic);
	tcase_add_test(t, backward_128_is_not_a_cliff);
	tcase_add_test(t, naive_plans);
	suite_add_tcase(s, t);
	return s;
}
