/* When query heads of a group share tiles, how many, why not, and what a launch then is. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/plan_help.h"
#include "tests/spec_help.h"

/* A plan of the native forward, whatever else would serve. */
static void native(const struct spec *spec, const struct problem *problem) { must_make_with(&plan, &model_sm90_fwd, spec, "H200", problem); }

static bool recipe_says(const char *line)
{
	struct text text = {0};
	recipe_print(&text, &plan.recipe);
	const bool found = strstr(text_str(&text), line) != NULL;
	text_free(&text);
	return found;
}

static void explained(const char *line)
{
	struct text text = {0};
	plan_print(&text, &plan);
	ck_assert_msg(strstr(text_str(&text), line) != NULL, "%s has no '%s'", text_str(&text), line);
	text_free(&text);
}

/* New tokens over long keys: as many heads as divide the group and fit a warp's 16 rows; and the power of two that has room for them. */
static const struct {
	int group, heads, slots;
} groups[] = {{1, 1, 1},  {2, 2, 2},    {3, 3, 4},    {4, 4, 4},   {5, 5, 8},    {6, 6, 8},    {7, 7, 8},  {8, 8, 8},
              {9, 9, 16}, {12, 12, 16}, {16, 16, 16}, {17, 1, 1}, {24, 12, 16}, {32, 16, 16}, {46, 2, 2}, {71, 1, 1}};

START_TEST(as_many_as_divide)
{
	const int group = groups[_i].group, heads = groups[_i].heads, slots = groups[_i].slots;
	struct spec spec = spec_plain(128, 128);
	char line[160];
	spec.kv_group = group;
	for (int layout = 0; layout < 3; layout++) {
		spec.layout = (enum batch_layout)layout;
		const struct problem problem = {32, 4 * group, 4, 3, 8192, 16};
		native(&spec, &problem);
		check_plan(&plan, &spec);
		const struct candidate *c = best(&plan);
		ck_assert_int_eq(c->heads, heads);
		if (heads == 1) {
			ck_assert(!recipe_says("heads"));
			continue;
		}
		snprintf(line, sizeof line, "map query rows %d heads %d\n", 64 / slots, slots);
		ck_assert(recipe_says(line));
		snprintf(line, sizeof line, "kernel fagen_forward grid persistent tile %d ", c->tile_m / slots);
		ck_assert(recipe_says(line));
		ck_assert_int_eq(plan.recipe.kernel[0].heads, heads);
		snprintf(line, sizeof line, "  heads        %d of a group share a tile, %d positions of each; apart ", heads, c->tile_m / slots);
		explained(line);
	}
}
END_TEST

/* What a candidate costs, by counting tiles and looking at every cell. */
static double tiles_of(const struct spec *spec, const struct candidate *c, const struct problem *p)
{
	int slots = 1;
	while (slots < c->heads)
		slots *= 2;
	const int positions = c->tile_m / slots;
	double count = 0;
	for (int64_t q0 = 0; q0 < p->seqlen_q; q0 += positions)
		for (int64_t k0 = 0; k0 < p->seqlen_k; k0 += c->tile_n) {
			bool seen = false;
			for (int64_t q = q0; q < q0 + positions && q < p->seqlen_q && !seen; q++)
				for (int64_t k = k0; k < k0 + c->tile_n && k < p->seqlen_k && !seen; k++)
					seen = visible(spec, p->seqlen_q, p->seqlen_k, q, k);
			count += seen;
		}
	return count * (double)(p->batch * p->heads_q / c->heads);
}

START_TEST(tiles_are_counted)
{
	for (int i = 0; i < 40; i++) {
		struct spec spec = spec_random();
		const int64_t kv = rng_in(1, 3);
		spec.keep_256 = DROPOUT_LEVELS;
		spec.kv_group = (int)rng_in(2, 16);
		const struct problem problem = {rng_in(1, 3), kv * spec.kv_group, kv, rng_in(1, 300), rng_in(1, 2000), 16};
		native(&spec, &problem);
		check_plan(&plan, &spec);
		int shared = 0;
		for (int k = 0; k < plan.candidate_count; k++) {
			const struct candidate *c = &plan.candidate[k];
			if (c->reason[0] != '\0')
				continue;
			shared += c->heads > 1;
			const double flop = 2.0 * c->tile_m * c->tile_n * (spec.head_dim_qk + spec.head_dim_v);
			ck_assert_double_eq(c->mma_flop, tiles_of(&spec, c, &problem) * flop);
		}
		ck_assert_int_gt(shared, 0);
	}
}
END_TEST

/* Their rows lie in the workspace as they do in tiles: room for all, and none to spare but for whole tiles. */
START_TEST(parts_of_them)
{
	struct spec spec = spec_plain(128, 128);
	const struct problem problem = {2, 16, 2, 20, 8192, 16};
	const struct recipe_shape shape = {2, 16, 2, 20, 8192, 0, 0, false, 132};
	spec.kv_group = 8;
	spec.tile[PASS_FORWARD] = (struct tile_request){.m = 128, .n = 128, .splits = 3, .heads = 8};
	native(&spec, &problem);
	ck_assert(recipe_says(" parts 3 heads 8\nkernel fagen_forward_merge grid query_tiles tile 4 threads 128 smem_bytes 0\n"));
	/* 20 positions are two tiles of 16: of two entries, two groups and three parts, each 128 rows of O and LSE. */
	ck_assert_int_eq(recipe_piece_bytes(&plan.recipe.piece[0], &shape), 2LL * 2 * 2 * 3 * 128 * (128 + 1) * 4);
	ck_assert_int_eq(recipe_grid_size(&plan.recipe.kernel[0], &shape), 2 * 2 * 2 * 3);
	/* Of 7 heads the rows of an eighth are to spare: as much room, but for pieces being whole floats of a row. */
	const struct problem seven = {2, 14, 2, 20, 8192, 16};
	const struct recipe_shape of_seven = {2, 14, 2, 20, 8192, 0, 0, false, 132};
	spec.kv_group = spec.tile[PASS_FORWARD].heads = 7;
	native(&spec, &seven);
	const int64_t want = 2LL * 2 * 2 * 3 * 128 * (128 + 1) * 4, room = recipe_piece_bytes(&plan.recipe.piece[0], &of_seven);
	ck_assert(room >= want && room < want + want / 100);
}
END_TEST

/* Where they do not, the plan says why. */
static const struct {
	const char *yaml, *says;
} apart[] = {
	{"{head_dim: 64, kv_group: any}", "kv_group is known at launch only"},
	{"{head_dim: 64, kv_group: 17}", "kv_group has no divisor from 2 to 16"},
	{"{head_dim: 64, kv_group: 8, score: alibi}", "the score reads h"},
	{"{head_dim: 64, kv_group: 8, mask: \"k <= q + h\"}", "the mask reads h"},
	{"{head_dim: 64, kv_group: 8, score: \"s + m[h, k]\", inputs: {m: {dtype: f32, shape: [heads, seq_k]}}}", "the score reads h"},
	{"{head_dim: 64, kv_group: 8, mask: document}", "tiles are classified for each head"},
	{"{head_dim: 64, kv_group: 8, blocks: {size: 64, from: bitmap}}", "tiles are classified for each head"},
	{"{head_dim: 64, kv_group: 8, dropout: 0.1}", "dropout is drawn for each head"},
};

START_TEST(why_not)
{
	struct spec spec = parse(apart[_i].yaml);
	const struct problem problem = {4, 8 * (spec.kv_group ? spec.kv_group : 7), 8, 1, 4096, 16};
	char line[160];
	native(&spec, &problem);
	ck_assert_int_eq(best(&plan)->heads, 1);
	snprintf(line, sizeof line, "  heads        each has tiles of its own: %s\n", apart[_i].says);
	explained(line);
	/* Asked for, it is refused for the same reason, not for that of the template that knows nothing of it. */
	struct diag diag = {.file = "t.yaml"};
	spec.tile[PASS_FORWARD] = (struct tile_request){.m = 128, .n = 64, .heads = 7};
	spec.place[KEY_tile] = (struct place){3, 1};
	ck_assert_int_eq(make(&plan, &spec, "H200", &problem, PASS_FORWARD, &diag), -1);
	snprintf(line, sizeof line, "heads 7} cannot be used for the forward pass on sm_90a: 7 heads; %s", apart[_i].says);
	ck_assert_msg(strstr(text_str(&diag.text), line) != NULL, "%s", text_str(&diag.text));
	diag_free(&diag);
}
END_TEST

/* What reads no head may do all else: a sink, inputs of keys and rows, a window, a cap. */
static const char *const together[] = {
	"{head_dim: 64, kv_group: 8, sink: true, mask: causal}",
	"{head_dim: 64, kv_group: 8, score: \"s + m[b, k] * n[q]\", inputs: {m: {dtype: f32, shape: [batch, seq_k]}, n: {dtype: f32, shape: [seq_q]}}}",
	"{head_dim: 256, kv_group: 8, mask: {window: {left: 4095, right: 0}}, score: {softcap: {cap: 50}}}",
};

START_TEST(nothing_else_matters)
{
	const struct spec spec = parse(together[_i]);
	const struct problem problem = {16, 32, 4, 1, 8192, 16};
	native(&spec, &problem);
	ck_assert_int_eq(best(&plan)->heads, 8);
}
END_TEST

/* Rows that fill tiles are left apart, and so are those of a person who asks. */
START_TEST(as_asked)
{
	struct spec spec = spec_plain(128, 128);
	spec.kv_group = 8;
	const struct problem few = {32, 64, 8, 1, 8192, 16}, many = {1, 64, 8, 8192, 8192, 16};
	native(&spec, &many);
	ck_assert_int_eq(best(&plan)->heads, 1);
	explained("  heads        each has tiles of its own; 8 together ");
	for (int heads = 1; heads <= 8; heads *= 2) {
		spec.tile[PASS_FORWARD] = (struct tile_request){.m = 128, .n = 128, .heads = heads};
		for (int k = 0; k < 2; k++) {
			native(&spec, k ? &many : &few);
			check_plan(&plan, &spec);
			ck_assert_int_eq(best(&plan)->heads, heads);
		}
	}
	/* They share where that is clearly faster. */
	spec.tile[PASS_FORWARD] = (struct tile_request){0};
	native(&spec, &few);
	spec.tile[PASS_FORWARD] = (struct tile_request){.m = best(&plan)->tile_m, .n = best(&plan)->tile_n, .heads = 1};
	must_make_with(&other, &model_sm90_fwd, &spec, "H200", &few);
	ck_assert_double_lt(best(&plan)->time_us, 0.9 * best(&other)->time_us);
	struct diag diag = {.file = "t.yaml"};
	spec.tile[PASS_FORWARD].heads = 16;
	spec.place[KEY_tile] = (struct place){3, 1};
	ck_assert_int_eq(make(&plan, &spec, "A100", &few, PASS_FORWARD, &diag), -1);
	ck_assert_msg(strstr(text_str(&diag.text), "16 heads; sm80/fwd has those of one in a tile"), "%s", text_str(&diag.text));
	diag_free(&diag);
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("plan_heads");
	TCase *t = tcase_create("plan_heads");
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, as_many_as_divide, 0, sizeof groups / sizeof *groups);
	tcase_add_test(t, tiles_are_counted);
	tcase_add_test(t, parts_of_them);
	tcase_add_loop_test(t, why_not, 0, sizeof apart / sizeof *apart);
	tcase_add_loop_test(t, nothing_else_matters, 0, sizeof together / sizeof *together);
	tcase_add_test(t, as_asked);
	suite_add_tcase(s, t);
	return s;
}
