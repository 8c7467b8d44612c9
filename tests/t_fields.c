/* Field cases that need no GPU, and the table of all: tests/gpu/fields.md names a file for each, which must hold it. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/spec_help.h"

Suite *suite(void);

static struct program program;
static struct plan plan;

static void planned(const char *yaml, const struct problem *problem)
{
	const struct spec s = parse(yaml);
	struct diag diag = {0};
	ck_assert_msg(!program_lower(&program, &s, &diag) &&
	                      !plan_make(&plan, &s, &program, target_find("sm_90a"), device_find("H200"), problem,
	                                 PASS_FORWARD, &diag),
	              "%s", text_str(&diag.text));
	diag_free(&diag);
}

static char *source_of(const char *yaml)
{
	const struct spec s = parse(yaml);
	struct diag diag = {0};
	struct text source = {0};
	planned(yaml, &s.assume);
	ck_assert_msg(!source_emit(&source, &s, &program, &plan, NULL, &diag), "%s", text_str(&diag.text));
	char *copy = strdup(text_str(&source));
	text_free(&source);
	return copy;
}

START_TEST(win_04_spellings_of_causal_are_one_source)
{
	static const char *const spellings[] = {
		"{head_dim: 128, mask: {window: {left: unbounded, right: 0}}}",
		"{head_dim: 128, mask: {all: [causal, {window: {left: unbounded, right: 0}}]}}",
		"{head_dim: 128, mask: {all: [causal, causal]}}", "{head_dim: 128, mask: \"k - sk <= q - sq\"}"};
	char *causal = source_of("{head_dim: 128, mask: causal}");
	for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
		char *other = source_of(spellings[i]);
		ck_assert_msg(!strcmp(causal, other), "%s", spellings[i]);
		free(other);
	}
	char *window = source_of(
		"{head_dim: 128, mask: {window: {left: 300, right: 0}}}"); /* hides keys of longer sequences */
	ck_assert_str_ne(causal, window);
	free(window);
	free(causal);
}
END_TEST

START_TEST(msk_05_alignments_are_two_sources)
{
	char *right = source_of("{head_dim: 64, mask: causal}"),
	     *left = source_of("{head_dim: 64, mask: causal_top_left}");
	ck_assert_str_ne(right, left);
	free(right);
	free(left);
}
END_TEST

/* WIN-10: a right bound of 0 is a bound. Keys 15871 to 16383 are seen: all tiles that hold one, and no other. */
START_TEST(win_10_a_decode_visits_the_tiles_of_its_window)
{
	planned("{head_dim: 64, mask: {window: {left: 512, right: 0}}}", &(struct problem){1, 2, 2, 1, 16384, 16});
	const struct candidate *c = &plan.candidate[plan.chosen];
	const double visited = c->visited * 16384 / c->tile_n;
	const int first = (16384 - 513) / c->tile_n, last = (16384 - 1) / c->tile_n;
	ck_assert_double_ge(visited, (double)(last - first) + 0.01);
	ck_assert_double_le(visited, (double)(last - first + 1));
}
END_TEST

/* RES-01, RES-02: GPUs with 99 KiB of shared memory have tiles of every head dim in both passes. */
START_TEST(res_01_tiles_fit_small_shared_memory)
{
	static const int dims[] = {64, 96, 128, 192};
	for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
		for (int pass = 0; pass < PASS_COUNT; pass++)
			for (int t = 0; t < 2; t++) {
				char yaml[96];
				snprintf(yaml, sizeof yaml, "{head_dim: %d, mask: causal, passes: [forward, backward]}", dims[i]);
				const struct spec s = parse(yaml);
				struct diag diag = {0};
				ck_assert_msg(!program_lower(&program, &s, &diag) &&
				                      !plan_make(&plan, &s, &program, target_find(t ? "sm_89" : "sm_86"), device_find(t ? "L4" : "RTX 3090"),
				                                 &s.assume, (enum pass)pass, &diag),
				              "%s: %s", yaml, text_str(&diag.text));
				for (int k = 0; k < plan.recipe.kernel_count; k++)
					ck_assert_int_le(plan.recipe.kernel[k].smem_bytes, 99 << 10);
				diag_free(&diag);
			}
}
END_TEST

/* RES-03: so have groups of 16 heads, which share tiles where a template knows how: of a tile that is no larger. */
START_TEST(res_03_heads_that_share_fit_too)
{
	static const struct {
		const char *target, *gpu;
		int most, heads;
	} rows[] = {{"sm_89", "L4", 99 << 10, 1}, {"sm_90a", "H200", 227 << 10, 16}};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		const struct spec s = parse("{head_dim: 256, kv_group: 16, mask: causal, assume: {batch: 8, heads: 32, seqlen_q: 1, seqlen_k: 8192}}");
		struct diag diag = {0};
		ck_assert_msg(!program_lower(&program, &s, &diag) &&
		                      !plan_make(&plan, &s, &program, target_find(rows[i].target), device_find(rows[i].gpu), &s.assume, PASS_FORWARD, &diag),
		              "%s", text_str(&diag.text));
		ck_assert_int_eq(plan.candidate[plan.chosen].heads, rows[i].heads);
		for (int k = 0; k < plan.recipe.kernel_count; k++)
			ck_assert_int_le(plan.recipe.kernel[k].smem_bytes, rows[i].most);
		diag_free(&diag);
	}
}
END_TEST

/* CCH-16: the key of a kernel is its source, so that a change of one template leaves kernels of others in the cache. */
START_TEST(cch_16_a_template_changes_those_that_use_it)
{
	static const char *const specs[] = {"{head_dim: 64, passes: [forward, backward]}", "{head_dim: 256, passes: [forward, backward]}"};
	char folder[] = "/tmp/fagen-t_fields-XXXXXX", command[256];
	int changed[2][PASS_COUNT];
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(command, sizeof command, "cp -r templates/. %s && echo '// changed' >> %s/sm90/bwd_pair.cu", folder, folder);
	ck_assert_int_eq(system(command), 0);
	for (int i = 0; i < 2; i++)
		for (int pass = 0; pass < PASS_COUNT; pass++) {
			const struct spec s = parse(specs[i]);
			struct diag diag = {0};
			struct text before = {0}, after = {0};
			ck_assert_msg(!program_lower(&program, &s, &diag) &&
			                      !plan_make(&plan, &s, &program, target_find("sm_90a"), device_find("H200"), &s.assume, (enum pass)pass, &diag) &&
			                      !source_emit(&before, &s, &program, &plan, NULL, &diag) &&
			                      !source_emit(&after, &s, &program, &plan, folder, &diag),
			              "%s", text_str(&diag.text));
			changed[i][pass] = strcmp(text_str(&before), text_str(&after)) != 0;
			text_free(&before);
			text_free(&after);
		}
	snprintf(command, sizeof command, "rm -r %s", folder);
	ck_assert_int_eq(system(command), 0);
	ck_assert(!changed[0][PASS_FORWARD] && !changed[0][PASS_BACKWARD] && !changed[1][PASS_FORWARD]);
	ck_assert(changed[1][PASS_BACKWARD]); /* by a pair of CTAs */
}
END_TEST

/* ---- the table ---- */

static char *file_read(const char *path)
{
	FILE *f = fopen(path, "r");
	char *text = calloc(1, 1 << 20);
	ck_assert_msg(f && text, "%s", path);
	ck_assert_uint_lt(fread(text, 1, (1 << 20) - 1, f), (1 << 20) - 1);
	fclose(f);
	return text;
}

static const char *const rows[] = {
	"MSK-01", "MSK-04", "MSK-05", "MSK-06", "MSK-07", "MSK-08", "MSK-09", "MSK-10", "WIN-04", "WIN-05", "WIN-06",
	"WIN-07", "WIN-08", "WIN-09", "WIN-10", "VAR-04", "VAR-05", "VAR-06", "VAR-07", "VAR-08", "VAR-09", "VAR-10",
	"VAR-11", "I32-01", "I32-02", "I32-03", "I32-04", "I32-05", "I32-08", "I32-09", "I32-10", "I32-15", "I32-16",
	"RNG-01", "RNG-02", "RNG-03", "RNG-04", "RNG-08", "RNG-09", "DET-03", "DET-04", "DET-05", "DET-06",
	"SYN-01", "SYN-02", "SYN-03", "SYN-04", "SYN-05", "SYN-09", "PERF-01", "PERF-02", "PERF-03", "PERF-06", "PERF-07",
	"PERF-09"};

/* Those of no GPU: the suite has the test. */
START_TEST(every_row_has_its_test)
{
	static const char *const all[] = {
		"CCH-01", "CCH-02", "CCH-03", "CCH-04", "CCH-05", "CCH-06", "CCH-07", "CCH-08", "CCH-09", "CCH-16", "CCH-18", "CCH-19", "CCH-20",
		"CCH-22", "CCH-23", "NVR-01", "NVR-02", "NVR-03", "NVR-04", "NVR-05", "NVR-06", "NVR-07", "NVR-08", "NVR-09", "NVR-10", "NVR-12",
		"RT-01",  "RT-02",  "RT-03",  "RT-04",  "RT-06",  "RT-07",  "RT-08",  "RT-11",  "RT-12",  "RT-17",  "RT-18",  "RT-19",  "RT-20",
		"AOT-03", "AOT-04", "AOT-05", "AOT-06", "RES-01", "RES-02", "RES-03", "RES-04", "RES-06", "RES-08", "RES-11", "RES-13", "DET-07",
		"PERF-10"};
	char *table = file_read("tests/fields.md");
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		char begin[16], name[32] = "", test[96] = "", path[64], start[128];
		snprintf(begin, sizeof begin, "\n| %s |", all[i]);
		const char *row = strstr(table, begin);
		ck_assert_msg(row != NULL, "%s is not in the table", all[i]);
		if (sscanf(row + strlen(begin), " %31[a-z_.] | %95[a-z0-9_]", name, test) != 2) { /* no suite: no such feature */
			const char *end = strchr(row + 1, '\n'), *reason = strstr(row, " yet");
			ck_assert_msg(reason && reason < end, "%s names no test and no reason", all[i]);
			continue;
		}
		snprintf(path, sizeof path, "tests/%s", name);
		snprintf(start, sizeof start, "START_TEST(%s)", test);
		char *text = file_read(path);
		ck_assert_msg(strstr(text, start) != NULL, "%s: %s is not in %s", all[i], start, path);
		free(text);
	}
	free(table);
}
END_TEST

START_TEST(every_row_is_held_by_the_file_that_the_table_names)
{
	char *table = file_read("tests/gpu/fields.md");
	int held = 0;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		char begin[16], class[16] = "", name[32] = "", path[64];
		snprintf(begin, sizeof begin, "\n| %s |", rows[i]);
		const char *row = strstr(table, begin);
		ck_assert_msg(row != NULL, "%s is not in the table", rows[i]);
		if (sscanf(row + strlen(begin), " %15[A-Za-z] | %31[a-z.]", class, name) !=
		    2) { /* no file: no such feature */
			const char *end = strchr(row + 1, '\n'), *reason = strstr(row, " yet");
			ck_assert_msg(reason && reason < end, "%s names no file and no reason", rows[i]);
			continue;
		}
		snprintf(path, sizeof path, "tests/gpu/%s", name);
		char *text = file_read(path);
		ck_assert_msg(strstr(text, rows[i]) != NULL, "%s is not in %s", rows[i], path);
		char *suite_h = file_read("tests/gpu/suite.h"), quoted[24];
		snprintf(quoted, sizeof quoted, "\"%s\"", class);
		ck_assert_msg(strstr(suite_h, quoted) != NULL, "%s: there is no class %s", rows[i], class);
		free(suite_h);
		free(text);
		held++;
	}
	ck_assert_int_ge(held, 51);
	free(table);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("fields");
	TCase *t = tcase_create("fields");
	tcase_add_test(t, win_04_spellings_of_causal_are_one_source);
	tcase_add_test(t, msk_05_alignments_are_two_sources);
	tcase_add_test(t, win_10_a_decode_visits_the_tiles_of_its_window);
	tcase_add_test(t, res_01_tiles_fit_small_shared_memory);
	tcase_add_test(t, res_03_heads_that_share_fit_too);
	tcase_add_test(t, cch_16_a_template_changes_those_that_use_it);
	tcase_add_test(t, every_row_has_its_test);
	tcase_add_test(t, every_row_is_held_by_the_file_that_the_table_names);
	suite_add_tcase(all, t);
	return all;
}
