/* The GPU suite's classes `pairs` and `native`, without a GPU: every two values of two axes meet in some case or are excluded
 * for a reason, each value is what it is called, and every case is a spec with kernels, native ones where it says so. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/pairs.h"
#include "tests/spec_help.h"

Suite *suite(void);

static struct pair_case cases[PAIRS_MAX];
static int count;

static void setup(void) { count = pairs_make(cases, &pairs_all); }

static const struct pair_table *const tables[] = {&pairs_all, &pairs_native};
static const int most[] = {70, 90}; /* cases: kernels, some seconds of compilation each, that the GPU suite has time for */

START_TEST(every_legal_pair_meets_and_no_other)
{
	const struct pair_table *const t = tables[_i];
	int pairs = 0, excluded = 0;
	count = pairs_make(cases, t);
	for (int f = 0; f < t->axes; f++)
		for (int g = 0; g < f; g++)
			for (int i = 0; i < axis_levels(t, f); i++)
				for (int j = 0; j < axis_levels(t, g); j++) {
					int met = 0;
					for (int c = 0; c < count; c++)
						met += cases[c].level[f] == i && cases[c].level[g] == j;
					const bool legal = pair_legal(t, f, i, g, j);
					ck_assert_msg(legal == (met > 0), "%s %s, %s %s: %d cases, %s", t->axis[f].name,
					              t->axis[f].level[i].name, t->axis[g].name, t->axis[g].level[j].name, met,
					              legal ? "legal" : "excluded");
					pairs++;
					excluded += !legal;
				}
	ck_assert_int_gt(pairs, 700);
	ck_assert_int_eq(excluded, t->excluded_count); /* a name that is no level's would exclude nothing */
}
END_TEST

START_TEST(the_cases_are_few_and_always_the_same)
{
	struct pair_case again[PAIRS_MAX];
	count = pairs_make(cases, tables[_i]);
	ck_assert_int_le(count, most[_i]);
	ck_assert_int_eq(pairs_make(again, tables[_i]), count);
	for (int c = 0; c < count; c++)
		for (int f = 0; f < tables[_i]->axes; f++)
			ck_assert_int_eq(again[c].level[f], cases[c].level[f]);
}
END_TEST

static struct check_case case_of(const struct pair_table *t, int c, struct spec *spec)
{
	char text[CASE_NAME_MAX], parts[CASE_NAME_MAX];
	struct check_case made;
	struct diag diag = {0};
	t->spec(text, &cases[c]);
	ck_assert_msg(strlen(text) < CASE_NAME_MAX - 1, "%s", text);
	*spec = parse(text);
	t->parts(parts, &cases[c], c);
	case_default(&made, text, spec);
	ck_assert_msg(!case_parse(&made, parts, &diag), "%s: %s", parts, text_str(&diag.text));
	return made;
}

/* Read back from the spec and the case: each axis has its own witness. */
START_TEST(values_are_what_they_are_called)
{
	for (int c = 0; c < count; c++) {
		struct spec s;
		const struct check_case made = case_of(&pairs_all, c, &s);
		const int64_t group = made.heads_q / made.heads_kv;
		ck_assert_str_eq(level_name(&pairs_all, &cases[c], AXIS_DTYPE), s.dtype == DTYPE_BF16 ? "bf16" : "fp16");
		ck_assert_int_eq(atoi(level_name(&pairs_all, &cases[c], AXIS_HEAD_DIM)), s.head_dim_qk);
		ck_assert_str_eq(level_name(&pairs_all, &cases[c], AXIS_HEAD_DIM_V), s.head_dim_v == s.head_dim_qk  ? "same"
		                                                 : s.head_dim_v < s.head_dim_qk ? "smaller"
		                                                                                : "larger");
		ck_assert_int_eq(cases[c].level[AXIS_DROPOUT] > 0, s.keep_256 < 256);
		ck_assert_int_eq(cases[c].level[AXIS_SINK] > 0, s.sink);
		ck_assert_int_eq(atoi(level_name(&pairs_all, &cases[c], AXIS_GROUP)), s.kv_group);
		ck_assert_int_eq(group, s.kv_group ? s.kv_group : 4);
		ck_assert_str_eq(level_name(&pairs_all, &cases[c], AXIS_LAYOUT), s.layout == LAYOUT_DENSE    ? "dense"
		                                             : s.layout == LAYOUT_PADDED ? "padded"
		                                                                         : "packed");
		ck_assert_str_eq(level_name(&pairs_all, &cases[c], AXIS_SPARSITY), s.blocks.source == BLOCKS_NONE     ? "none"
		                                               : s.blocks.source == BLOCKS_BITMAP ? "bitmap"
		                                               : s.blocks.source == BLOCKS_LISTS  ? "lists"
		                                                                                  : "rule");
		ck_assert_int_eq(cases[c].level[AXIS_DETERMINISTIC] > 0, s.deterministic);
		ck_assert_str_eq(level_name(&pairs_all, &cases[c], AXIS_STRIDES), layout_names[made.layout]);
		ck_assert_int_eq(cases[c].level[AXIS_ALIGNMENT] ? 2 : 16, case_align(&made));
		ck_assert(s.passes[PASS_FORWARD] && s.passes[PASS_BACKWARD]);
	}
}
END_TEST

/* Each case is planned for the GPU that runs it: no pair waits there to be refused. */
START_TEST(every_case_has_kernels)
{
	static struct plan plan;
	static struct program program;
	for (int c = 0; c < count; c++) {
		struct spec s;
		struct diag diag = {0};
		const struct check_case made = case_of(&pairs_all, c, &s);
		const struct problem problem = {made.batch,    made.heads_q,  made.heads_kv,
		                                made.seqlen_q, made.seqlen_k, case_align(&made)};
		int rc = program_lower(&program, &s, &diag);
		for (int pass = 0; pass < PASS_COUNT && !rc; pass++)
			rc = plan_make(&plan, &s, &program, target_find("sm_90a"), device_find("H200"), &problem,
			               (enum pass)pass, &diag);
		ck_assert_msg(!rc, "%s: %s", made.spec, text_str(&diag.text));
		diag_free(&diag);
	}
}
END_TEST

/* Every case of the native forward is planned for it, with the tile that the axes say, and its lengths stand against that. */
START_TEST(every_native_case_is_native)
{
	static struct plan plan;
	static struct program program;
	count = pairs_make(cases, &pairs_native);
	for (int c = 0; c < count; c++) {
		struct spec s;
		struct diag diag = {0};
		const struct check_case made = case_of(&pairs_native, c, &s);
		const char *const queries = level_name(&pairs_native, &cases[c], NATIVE_QUERIES),
				  *const keys = level_name(&pairs_native, &cases[c], NATIVE_KEYS);
		const int rc = program_lower(&program, &s, &diag) ||
		               plan_make(&plan, &s, &program, target_find("sm_90a"), device_find("H200"), &s.assume, PASS_FORWARD, &diag);
		ck_assert_msg(!rc, "%s: %s", made.spec, text_str(&diag.text));
		ck_assert_str_eq(plan.templ, "sm90/fwd");
		ck_assert_int_eq(case_align(&made), 16);
		const struct candidate *const tile = &plan.candidate[plan.chosen];
		ck_assert_int_eq(tile->tile_m, 64 * atoi(level_name(&pairs_native, &cases[c], NATIVE_WARPGROUPS)));
		ck_assert_int_eq(tile->stages, atoi(level_name(&pairs_native, &cases[c], NATIVE_STAGES)));
		ck_assert(strcmp(queries, "tile + 1") || made.seqlen_q == tile->tile_m + 1);
		ck_assert(strcmp(queries, "many") || made.seqlen_q > 3 * tile->tile_m);
		ck_assert(strcmp(keys, "tile - 1") || made.seqlen_k == tile->tile_n - 1);
		ck_assert(strcmp(keys, "tile") || made.seqlen_k == tile->tile_n);
		ck_assert(strcmp(keys, "0") || made.seqlen_k == 0);
		ck_assert_str_eq(input_names[made.input], level_name(&pairs_native, &cases[c], NATIVE_DATA));
		ck_assert_str_eq(layout_names[made.layout], level_name(&pairs_native, &cases[c], NATIVE_STRIDES));
		ck_assert(s.passes[PASS_FORWARD] && !s.passes[PASS_BACKWARD]);
		diag_free(&diag);
	}
}
END_TEST

/* Excluded is what cannot be had, as the reason says. */
START_TEST(what_is_excluded_is_refused)
{
	struct spec s;
	struct diag diag = {0};
	static const char larger[] = "{head_dim: {qk: 256, v: 264}}";
	ck_assert(spec_parse(&s, larger, strlen(larger), "t", &diag));
	ck_assert(strstr(text_str(&diag.text), "256"));
	diag_free(&diag);
	ck_assert_int_eq(layout_align(LAYOUT_ODD), 2);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("pairs");
	TCase *t = tcase_create("pairs");
	tcase_add_checked_fixture(t, setup, NULL);
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, every_legal_pair_meets_and_no_other, 0, 2);
	tcase_add_loop_test(t, the_cases_are_few_and_always_the_same, 0, 2);
	tcase_add_test(t, values_are_what_they_are_called);
	tcase_add_test(t, every_case_has_kernels);
	tcase_add_test(t, every_native_case_is_native);
	tcase_add_test(t, what_is_excluded_is_refused);
	suite_add_tcase(all, t);
	return all;
}
