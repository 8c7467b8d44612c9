/* When the planner cuts the keys of query tiles, or the queries of key tiles, into parts, into how many, and what a launch then is. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/plan_help.h"

static const struct tile_request whole = {.m = 128, .n = 128, .splits = 1};

/* Tiles that have something to do at once. */
static int64_t items_of(const struct candidate *c, const struct problem *p, enum pass pass)
{
	return pass == PASS_BACKWARD ? (p->seqlen_k + c->tile_n - 1) / c->tile_n * p->heads_kv * p->batch : (p->seqlen_q + c->tile_m - 1) / c->tile_m * p->heads_q * p->batch;
}

/* Is a cell of the tile at (q0, k0) visible? */
static bool tile_seen(const struct spec *spec, const struct candidate *c, const struct problem *p, int64_t q0, int64_t k0)
{
	for (int64_t q = q0; q < q0 + c->tile_m && q < p->seqlen_q; q++)
		for (int64_t k = k0; k < k0 + c->tile_n && k < p->seqlen_k; k++)
			if (visible(spec, p->seqlen_q, p->seqlen_k, q, k))
				return true;
	return false;
}

/* Key tiles that the busiest query tile of a head visits, by looking at every cell; backward query tiles that the busiest key tile does, of all
 * heads of its group. */
static int64_t visits_of(const struct spec *spec, const struct candidate *c, const struct problem *p, enum pass pass)
{
	const bool forward = pass == PASS_FORWARD;
	const int64_t outer = forward ? p->seqlen_q : p->seqlen_k, inner = forward ? p->seqlen_k : p->seqlen_q;
	int64_t most = 0;
	for (int64_t o = 0; o < outer; o += forward ? c->tile_m : c->tile_n) {
		int64_t count = 0;
		for (int64_t i = 0; i < inner; i += forward ? c->tile_n : c->tile_m)
			count += tile_seen(spec, c, p, forward ? o : i, forward ? i : o);
		most = count > most ? count : most;
	}
	return forward ? most : most * (p->heads_q / p->heads_kv);
}

/* Problems that fill the GPU are not split, and no part has less than about four visits. */
START_TEST(parts_are_worth_it)
{
	int split = 0;
	for (int i = 0; i < 300; i++) {
		const struct spec spec = spec_random();
		const int64_t kv = rng_in(1, 4);
		const struct problem problem = {rng_in(1, 4), kv * rng_in(1, 4), kv, rng_in(1, 300), rng_in(1, 6000), 16};
		must_make(&plan, &spec, "H200", &problem, PASS_FORWARD);
		check_plan(&plan, &spec);
		for (int k = 0; k < plan.candidate_count; k++) {
			const struct candidate *c = &plan.candidate[k];
			if (c->reason[0] == '\0' && items_of(c, &problem, PASS_FORWARD) >= 132)
				ck_assert_int_eq(c->splits, 1);
		}
		const struct candidate *c = best(&plan);
		ck_assert_int_ge(c->splits, 1);
		if (c->splits > 1) {
			ck_assert_str_eq(plan.templ, "sm90/fwd");
			ck_assert_int_ge(visits_of(&spec, c, &problem, PASS_FORWARD), 4 * c->splits);
			split++;
		}
	}
	ck_assert(split > 20 && split < 280); /* both happen */
}
END_TEST

/* The same backward; and a plan with parts is predicted to be faster than one without. */
START_TEST(backward_parts_are_worth_it)
{
	int split = 0;
	for (int i = 0; i < 200; i++) {
		struct spec spec = spec_random();
		const int64_t kv = rng_in(1, 4);
		const struct problem problem = {rng_in(1, 4), kv * rng_in(1, 8), kv, rng_in(1, 3000), rng_in(1, 3000), 16};
		must_make(&plan, &spec, "H200", &problem, PASS_BACKWARD);
		check_plan(&plan, &spec);
		for (int k = 0; k < plan.candidate_count; k++) {
			const struct candidate *c = &plan.candidate[k];
			if (c->reason[0] == '\0' && items_of(c, &problem, PASS_BACKWARD) >= 132)
				ck_assert_int_eq(c->splits, 1);
		}
		const struct candidate *c = best(&plan);
		if (c->splits == 1)
			continue;
		ck_assert_str_eq(plan.templ, "sm90/bwd");
		ck_assert_int_ge(visits_of(&spec, c, &problem, PASS_BACKWARD), 4 * c->splits);
		spec.tile[PASS_BACKWARD] = (struct tile_request){.m = c->tile_m, .n = c->tile_n, .splits = 1};
		must_make_with(&other, &model_sm90_bwd, &spec, "H200", &problem);
		ck_assert_double_lt(c->time_us, best(&other)->time_us);
		split++;
	}
	ck_assert(split > 20 && split < 180); /* both happen */
}
END_TEST

static const struct {
	struct problem problem;
	int parts; /* of head dim 128, tiles of 64 queries x 128 keys, all keys visible */
} backward_rows[] = {
	{{1, 32, 8, 1024, 1024, 16}, 2},  {{1, 32, 4, 1024, 1024, 16}, 4},  {{1, 8, 1, 1024, 1024, 16}, 16}, {{1, 1, 1, 65536, 128, 16}, 64},
	{{1, 1, 1, 256, 128, 16}, 1}, /* 4 visits in all */
	{{1, 32, 32, 4096, 4096, 16}, 1}, {{1, 32, 8, 2048, 4096, 16}, 1}, {{2, 33, 33, 512, 256, 16}, 1}, /* as many tiles as SMs */
};

START_TEST(backward_as_many_as_fit)
{
	struct spec spec = spec_plain(128, 128);
	const struct problem *problem = &backward_rows[_i].problem;
	spec.tile[PASS_BACKWARD] = (struct tile_request){.m = 64, .n = 128};
	must_make_with(&plan, &model_sm90_bwd, &spec, "H200", problem);
	check_plan(&plan, &spec);
	ck_assert_int_eq(best(&plan)->splits, backward_rows[_i].parts);
	spec.tile[PASS_BACKWARD].splits = 1;
	must_make_with(&other, &model_sm90_bwd, &spec, "H200", problem);
	ck_assert_int_eq(best(&other)->splits, 1);
	if (backward_rows[_i].parts > 1)
		ck_assert_double_lt(best(&plan)->time_us, best(&other)->time_us);
	else
		ck_assert_double_eq(best(&plan)->time_us, best(&other)->time_us);
}
END_TEST

static const struct {
	struct problem problem;
	int parts; /* of head dim 128, all keys visible, in tiles of 128 x 128: as many as the SMs have room for */
} rows[] = {
	{{1, 16, 16, 1, 8192, 16}, 8},   {{1, 16, 4, 128, 65536, 16}, 8},   {{1, 8, 8, 512, 8192, 16}, 4},
	{{2, 32, 8, 16, 20000, 16}, 2},  {{1, 1, 1, 1, 65536, 16}, 64},     {{1, 2, 2, 1, 4096, 16}, 8}, /* of 4 visits */
	{{1, 16, 16, 1, 333, 16}, 1},    {{1, 132, 132, 1, 65536, 16}, 1},  {{4, 32, 32, 4096, 4096, 16}, 1},
	{{1, 16, 16, 2048, 2048, 16}, 1}, {{8, 1, 1, 2112, 65536, 16}, 1},
};

START_TEST(as_many_as_fit)
{
	struct spec spec = spec_plain(128, 128);
	const struct problem *problem = &rows[_i].problem;
	spec.tile[PASS_FORWARD] = (struct tile_request){.m = 128, .n = 128};
	must_make_with(&plan, &model_sm90_fwd, &spec, "H200", problem);
	check_plan(&plan, &spec);
	ck_assert_int_eq(best(&plan)->splits, rows[_i].parts);
	spec.tile[PASS_FORWARD] = whole;
	must_make_with(&other, &model_sm90_fwd, &spec, "H200", problem);
	ck_assert_int_eq(best(&other)->splits, 1);
	if (rows[_i].parts > 1)
		ck_assert_double_lt(best(&plan)->time_us, best(&other)->time_us);
	else
		ck_assert_double_eq(best(&plan)->time_us, best(&other)->time_us);
}
END_TEST

/* Does the recipe of the plan have this line? */
static bool recipe_says(const struct plan *p, const char *line)
{
	struct text text = {0};
	recipe_print(&text, &p->recipe);
	const bool found = strstr(text_str(&text), line) != NULL;
	text_free(&text);
	return found;
}

/* A number that is asked for is kept, whatever the problem and the layout. */
START_TEST(as_asked)
{
	static const struct problem problems[] = {{1, 1, 1, 1, 1, 16}, {4, 32, 8, 4096, 4096, 16}};
	for (int i = 0; i < 6; i++) {
		struct spec spec = spec_plain(64, 96);
		char line[160];
		spec.tile[PASS_FORWARD] = (struct tile_request){.m = 128, .n = 128, .splits = 3};
		spec.layout = (enum batch_layout)(i / 2);
		must_make(&plan, &spec, "H200", &problems[i % 2], PASS_FORWARD);
		check_plan(&plan, &spec);
		const struct candidate *c = best(&plan);
		ck_assert_int_eq(c->splits, 3);
		ck_assert(!c->out_staged);
		for (int k = 0; k < c->smem_term_count; k++)
			ck_assert_str_ne(c->smem_term[k].name, "O");
		snprintf(line, sizeof line,
		         "\nkernel fagen_forward grid persistent tile 128 threads 384 smem_bytes %d parts 3\n"
		         "kernel fagen_forward_merge grid query_tiles tile 4 threads 128 smem_bytes 0\n",
		         c->smem_bytes);
		ck_assert(recipe_says(&plan, line));
		ck_assert(recipe_says(&plan, "\npiece parts size rows_qk tile 128 unit 291 zeroed 0\n")); /* 3 x (96 + 1) */
		struct text text = {0}, json = {0};
		plan_print(&text, &plan);
		ck_assert_ptr_nonnull(strstr(text_str(&text), "; keys in 3 parts, which fagen_forward_merge joins\n"));
		plan_json(&json, &plan);
		ck_assert_ptr_nonnull(strstr(text_str(&json), "\"splits\": 3"));
		text_free(&text);
		text_free(&json);
	}
}
END_TEST

START_TEST(backward_as_asked)
{
	static const struct problem problems[] = {{1, 1, 1, 1, 1, 16}, {4, 32, 8, 4096, 4096, 16}};
	for (int i = 0; i < 12; i++) {
		struct spec spec = spec_plain(64, 96);
		char line[200];
		spec.tile[PASS_BACKWARD] = (struct tile_request){.m = 64, .n = 128, .splits = 3};
		spec.layout = (enum batch_layout)(i / 2 % 3);
		spec.deterministic = i >= 6;
		must_make(&plan, &spec, "H200", &problems[i % 2], PASS_BACKWARD);
		check_plan(&plan, &spec);
		ck_assert_int_eq(best(&plan)->splits, 3);
		snprintf(line, sizeof line, "\nkernel fagen_backward grid persistent_keys tile 128 threads 384 smem_bytes %d parts 3\n",
		         best(&plan)->smem_bytes);
		ck_assert(recipe_says(&plan, line));
		ck_assert(recipe_says(&plan, "\nkernel fagen_backward_merge grid key_tiles tile 16 threads 160 smem_bytes 0\n")); /* 2 + 3 warps */
		ck_assert(recipe_says(&plan, "\npiece parts size tiles_kv tile 128 unit 61452 zeroed 0\n")); /* 3 x (128 x (64 + 96) + 4) */
		struct text text = {0};
		plan_print(&text, &plan);
		ck_assert_ptr_nonnull(strstr(text_str(&text), "; queries in 3 parts, which fagen_backward_merge joins\n"));
		text_free(&text);
	}
}
END_TEST

/* One part is a tile: nothing of a launch differs from what it is without. */
START_TEST(whole_tiles_are_as_ever)
{
	struct spec spec = spec_plain(128, 128);
	spec.tile[PASS_FORWARD] = whole;
	must_make(&plan, &spec, "H200", &rows[0].problem, PASS_FORWARD);
	ck_assert_int_eq(plan.recipe.kernel_count, 1);
	ck_assert_int_eq(plan.recipe.piece_count, 0);
	ck_assert(!recipe_says(&plan, "parts"));
	spec.tile[PASS_BACKWARD] = (struct tile_request){.m = 64, .n = 128, .warps = 12, .splits = 1};
	must_make(&plan, &spec, "H200", &backward_rows[0].problem, PASS_BACKWARD);
	ck_assert_str_eq(plan.templ, "sm90/bwd");
	ck_assert(!recipe_says(&plan, "parts") && !recipe_says(&plan, "merge"));
}
END_TEST

/* Kernels that cannot, and passes. */
START_TEST(others_do_not)
{
	for (int g = 0; g < GPUS; g++)
		for (int pass = 0; pass < PASS_COUNT; pass++) {
			struct spec spec = spec_plain(64, 64);
			const bool can = strcmp(gpus[g], "H200") == 0;
			const struct problem *problem = pass == PASS_FORWARD ? &rows[1].problem : &backward_rows[1].problem;
			must_make(&plan, &spec, gpus[g], problem, (enum pass)pass);
			ck_assert_int_eq(best(&plan)->splits > 1, can);
			spec.tile[pass] = (struct tile_request){.m = 128, .n = pass == PASS_FORWARD ? 64 : 128, .splits = 2};
			spec.place[KEY_tile] = (struct place){3, 1};
			struct diag diag = {.file = "t.yaml"};
			ck_assert_int_eq(make(&plan, &spec, gpus[g], problem, (enum pass)pass, &diag), can ? 0 : -1);
			ck_assert(can || strstr(text_str(&diag.text), "splits 2} cannot be used"));
			ck_assert(can || strstr(text_str(&diag.text), "2 splits; sm80/"));
			ck_assert(can || strstr(text_str(&diag.text), pass == PASS_FORWARD ? "leaves the keys of" : "leaves the queries of"));
			diag_free(&diag);
		}
}
END_TEST

/* Above head dim 128 the kernel with parts says that it is not for such; rows of any alignment it is not asked about. */
START_TEST(backward_refusals)
{
	static const struct {
		int dim, align;
		const char *says;
	} refused[] = {{256, 16, "want at most 128"}, {128, 2, "3 splits; sm80/bwd leaves the queries of a tile together"}};
	for (int i = 0; i < 2; i++) {
		struct spec spec = spec_plain(refused[i].dim, refused[i].dim);
		struct problem problem = backward_rows[0].problem;
		struct diag diag = {.file = "t.yaml"};
		problem.align = refused[i].align;
		spec.tile[PASS_BACKWARD] = (struct tile_request){.m = 64, .n = 128, .splits = 3};
		spec.place[KEY_tile] = (struct place){3, 1};
		ck_assert_int_eq(make(&plan, &spec, "H200", &problem, PASS_BACKWARD, &diag), -1);
		ck_assert_msg(strstr(text_str(&diag.text), refused[i].says), "%s", text_str(&diag.text));
		diag_free(&diag);
	}
}
END_TEST

/* Where nothing serves, it is the kernel that has parts which says why, unless it is not asked. */
START_TEST(refusals_are_of_those_who_can)
{
	static const struct {
		int align, n;
		const char *says;
	} refused[] = {{16, 256, "{m 128, n 176, warps 12, stages 2}"}, {2, 256, "3 splits; sm80/fwd"}, {2, 128, "3 splits; sm80/fwd"}};
	for (int i = 0; i < 3; i++) {
		struct spec spec = spec_plain(128, 128);
		struct problem problem = rows[0].problem;
		struct diag diag = {.file = "t.yaml"};
		problem.align = refused[i].align;
		spec.tile[PASS_FORWARD] = (struct tile_request){.m = 128, .n = refused[i].n, .splits = 3};
		spec.place[KEY_tile] = (struct place){3, 1};
		ck_assert_int_eq(make(&plan, &spec, "H200", &problem, PASS_FORWARD, &diag), -1);
		ck_assert_msg(strstr(text_str(&diag.text), refused[i].says), "%s", text_str(&diag.text));
		diag_free(&diag);
	}
}
END_TEST

/* Hopper's forward cuts the last tiles where whole ones end unevenly, and then alone: the kernel of everything else is as it was. */
START_TEST(last_tiles)
{
	static const struct {
		int dim;
		struct problem problem;
		const char *mask;
		bool deterministic, cut;
	} row[] = {
		{128, {1, 16, 16, 16384, 16384, 16}, NULL, false, true},  /* 1,376 tiles: 10.4 rounds */
		{128, {1, 16, 4, 16384, 16384, 16}, NULL, false, true},
		{128, {1, 16, 16, 16384, 16384, 16}, NULL, true, false},  /* bits would depend on the batch */
		{128, {1, 16, 16, 16384, 16384, 16}, "causal", false, false},
		{128, {16, 16, 16, 1024, 1024, 16}, NULL, false, false},  /* parts would be too short */
		{128, {1, 2, 2, 4096, 4096, 16}, NULL, false, false},     /* less than a round: all tiles, or none */
		{96, {2, 20, 20, 8192, 8192, 16}, NULL, false, true},     /* 1,720: 13 rounds and four tiles */
		{96, {1, 132, 132, 8064, 8064, 16}, NULL, false, false},  /* rounds are whole: 42 tiles of 192 rows, 63 of 128 */
	};
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		struct spec spec = spec_plain(row[i].dim, row[i].dim);
		if (row[i].mask)
			spec_mask(&spec, row[i].mask, 0, 0);
		spec.kv_group = (int)(row[i].problem.heads_q / row[i].problem.heads_kv);
		spec.deterministic = row[i].deterministic;
		must_make(&plan, &spec, "H200", &row[i].problem, PASS_FORWARD);
		check_plan(&plan, &spec);
		const struct candidate *c = best(&plan);
		const struct recipe_kernel *main = recipe_kernel_find(&plan.recipe, "fagen_forward"), *join = recipe_kernel_find(&plan.recipe, "fagen_forward_merge");
		ck_assert_msg(c->cut == row[i].cut, "row %zu: %d", i, c->cut);
		if (!c->cut) {
			ck_assert(main->grid != GRID_PERSISTENT_TAILS && (join != NULL) == (c->splits > 1));
			continue;
		}
		ck_assert_int_eq(c->splits, 1);
		ck_assert(main->grid == GRID_PERSISTENT_TAILS && join && join->grid == GRID_TAILS_JOIN);
		const struct recipe_shape shape = problem_shape(&row[i].problem, 132);
		const int64_t rest = items_of(c, &row[i].problem, PASS_FORWARD) % 132;
		ck_assert_int_eq(recipe_grid_size(main, &shape), 132);
		ck_assert_int_eq(recipe_grid_size(join, &shape), rest * c->tile_m / 4); /* four rows a CTA */
		const struct recipe_cut cut = recipe_kernel_cut(main, &shape);
		ck_assert_int_eq(cut.tiles, rest);
		for (int k = 0; k < plan.recipe.piece_count; k++)
			if (strcmp(plan.recipe.piece[k].name, "parts") == 0)
				ck_assert_int_ge(recipe_piece_bytes(&plan.recipe.piece[k], &shape), rest * cut.parts * c->tile_m * (row[i].dim + 1) * 4);
	}
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("plan_splits");
	TCase *t = tcase_create("plan_splits");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, parts_are_worth_it);
	tcase_add_test(t, last_tiles);
	tcase_add_loop_test(t, as_many_as_fit, 0, sizeof rows / sizeof *rows);
	tcase_add_test(t, backward_parts_are_worth_it);
	tcase_add_loop_test(t, backward_as_many_as_fit, 0, sizeof backward_rows / sizeof *backward_rows);
	tcase_add_test(t, as_asked);
	tcase_add_test(t, backward_as_asked);
	tcase_add_test(t, whole_tiles_are_as_ever);
	tcase_add_test(t, others_do_not);
	tcase_add_test(t, refusals_are_of_those_who_can);
	tcase_add_test(t, backward_refusals);
	suite_add_tcase(s, t);
	return s;
}
