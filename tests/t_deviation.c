/* check/deviation.c against numbers by hand; `fagen check --deviation` as its user meets it, over tests/fake_cuda.c, whose
 * kernels write nothing. The command is $FAGEN. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "check/deviation.h"

Suite *suite(void);

static char folder[] = "/tmp/fagen_t_deviation_XXXXXX";
static char output[1 << 18];

static void near(double got, double want) { ck_assert_double_eq_tol(got, want, 1e-15 * fabs(want)); }

START_TEST(measures)
{
	struct deviation d;
	const double want[] = {1, -2, 0, 4}, got[] = {1.5, -2, -0.5, 3};
	deviation_measure(&d, got, want, 4);
	near(d.max, 1);
	near(d.rms, sqrt((0.25 + 0.25 + 1) / 4));
	near(root_mean_square(want, 4), sqrt(21.0 / 4));
	const struct deviation relative = deviation_relative(&d, 2);
	near(relative.max, 0.5);
	near(relative.rms, sqrt(1.5 / 4) / 2);
	deviation_measure(&d, want, want, 4);
	ck_assert(d.max == 0 && d.rms == 0);
}
END_TEST

START_TEST(what_is_not_finite)
{
	struct deviation d;
	const double want[] = {1, -INFINITY, NAN, 3}, right[] = {1, -INFINITY, 7, 5};
	deviation_measure(&d, right, want, 4); /* two elements count */
	near(d.max, 2);
	near(d.rms, sqrt(2));
	near(root_mean_square(want, 4), sqrt(5));
	const double bad[] = {NAN, INFINITY, -INFINITY};
	for (int i = 0; i < 3; i++) {
		const double got[] = {1, 0, 0, bad[i]};
		deviation_measure(&d, got, want, 4);
		ck_assert(isinf(d.max) && isinf(d.rms));
	}
	deviation_measure(&d, right, want + 1, 2);
	ck_assert(d.max == 0 && d.rms == 0);
	ck_assert(root_mean_square(want + 1, 2) == 0);
}
END_TEST

START_TEST(over_nothing)
{
	const struct deviation none = {0, 0}, some = {0.5, 0.25};
	struct deviation d = deviation_relative(&none, 0);
	ck_assert(d.max == 0 && d.rms == 0);
	d = deviation_relative(&some, 0);
	ck_assert(isinf(d.max) && isinf(d.rms));
}
END_TEST

/* The forward results that the backward pass hands out are those of the forward pass. */
START_TEST(backward_hands_out_forward)
{
	enum { HEADS = 4, ROWS = 20, D = 16, N = HEADS * ROWS * D };
	const struct ref_case c = {.batch = 1,
	                           .heads_q = HEADS,
	                           .heads_kv = HEADS,
	                           .seqlen_q = ROWS,
	                           .seqlen_k = ROWS,
	                           .head_dim_qk = D,
	                           .head_dim_v = D,
	                           .softmax_scale = 0.25,
	                           .keep_256 = 256};
	static double x[4][N], got[2][N], want[2][N], grad[3][N];
	for (int i = 0; i < 4; i++)
		input_fill(x[i], N / D, D, INPUT_GAUSS, (enum input_role)i, 0.25, false, 3, 0);
	for (int plain = 0; plain < 2; plain++) {
		struct ref_forward f = {want[0], want[1]};
		struct ref_backward b = {
			.dquery = grad[0], .dkey = grad[1], .dvalue = grad[2], .out = got[0], .lse = got[1]};
		(plain ? ref_plain_forward : ref_attention_forward)(&f, &c, x[0], x[1], x[2]);
		(plain ? ref_plain_backward : ref_attention_backward)(&b, &c, x[0], x[1], x[2], x[3], NULL);
		ck_assert_mem_eq(got[0], want[0], N * sizeof(double));
		ck_assert_mem_eq(got[1], want[1], HEADS * ROWS * sizeof(double));
		ck_assert(want[0][7] != 0 && want[1][7] != 0);
	}
}
END_TEST

/* ---- the command ---- */

/* Runs `fagen check --deviation ARGUMENTS` with the fake driver, or with none, both streams into output. */
static int deviation(const char *arguments, bool driver)
{
	const char *fagen = getenv("FAGEN");
	char command[2048];
	fagen = fagen ? fagen : "build/release/fagen";
	snprintf(command, sizeof command,
	         "ASAN_OPTIONS=detect_leaks=0 FAGEN_CACHE_DIR=%s LD_LIBRARY_PATH=\"%s\" %s check --deviation %s 2>&1",
	         folder, driver ? "$(dirname $(realpath ${FAGEN:-build/release/fagen}))/tests/fake" : "", fagen,
	         arguments);
	FILE *pipe = popen(command, "r");
	ck_assert_ptr_nonnull(pipe);
	const size_t len = fread(output, 1, sizeof output - 1, pipe);
	output[len] = '\0';
	const int status = pclose(pipe);
	ck_assert_msg(WIFEXITED(status), "'%s' died: %s", arguments, output);
	return WEXITSTATUS(status);
}

static const struct {
	const char *arguments;
	int status;
	const char *words;
} refused[] = {
	{"--up-to 64", 2, "--up-to 64: expected a whole number from 128 to 16384"},
	{"--up-to 4k", 2, "--up-to 4k: expected"},
	{"--device -1", 2, "--device -1: expected a whole number from 0"},
	{"--json", 2, "usage: fagen check --deviation"},
	{"--naive", 2, "usage: fagen check --deviation"},
	{"a a a a a a a a a a a a a a a a a", 2, "17 specs; a study takes at most 16"},
	{"'{head_dim: 17}' --up-to 128", 1, "head_dim"},
	{"nothing --up-to 128", 1, "specs/nothing.yaml"},
	{"--json /nowhere/rows.json --up-to 128", 1, "/nowhere/rows.json"},
};

START_TEST(refuses)
{
	const int status = deviation(refused[_i].arguments, true);
	ck_assert_msg(status == refused[_i].status, "'%s' exits with %d:\n%s", refused[_i].arguments, status, output);
	ck_assert_msg(strstr(output, refused[_i].words) != NULL, "'%s' says:\n%s", refused[_i].arguments, output);
}
END_TEST

START_TEST(helps)
{
	ck_assert_int_eq(deviation("--help", false), 0);
	ck_assert_ptr_nonnull(strstr(output, "--up-to N"));
}
END_TEST

static double number_after(const char *text, const char *word)
{
	const char *at = strstr(text, word);
	ck_assert_msg(at != NULL, "no %s in %.400s", word, text);
	return strtod(at + strlen(word), NULL);
}

/* Kernels that write nothing leave NaN: the study says so. What it says of the plain computation is right: rounding an
 * exact result to 11 bits costs between 2^-13 and 2^-11 of it, and bf16 has three bits less. */
START_TEST(studies)
{
	char arguments[256], path[128];
	static char json[1 << 18];
	snprintf(path, sizeof path, "%s/rows.json", folder);
	snprintf(arguments, sizeof arguments,
	         "'{head_dim: 16, outputs: [out, lse], passes: [forward]}' --up-to 128 --json %s", path);
	const int status = deviation(arguments, true);
	ck_assert_msg(status == 4, "exits with %d:\n%.2000s", status, output);
	ck_assert_ptr_nonnull(strstr(output, "(the planner's)"));
	ck_assert_ptr_nonnull(strstr(output, "   128  out "));
	ck_assert_ptr_nonnull(strstr(output, "   128  lse "));
	FILE *f = fopen(path, "r");
	ck_assert_ptr_nonnull(f);
	json[fread(json, 1, sizeof json - 1, f)] = '\0';
	fclose(f);
	const char *row[2];
	for (int i = 0; i < 2; i++) {
		const char *const start[2] = {
			"\"dtype\": \"fp16\", \"data\": \"gauss\", \"seqlen\": 128, \"tensor\": \"out\"",
			"\"dtype\": \"bf16\", \"data\": \"gauss\", \"seqlen\": 128, \"tensor\": \"out\""};
		row[i] = strstr(json, start[i]);
		ck_assert_msg(row[i] != NULL, "%.400s", json);
		const char *tiles = strstr(row[i], "\"fagen\": [");
		ck_assert_ptr_nonnull(tiles);
		int count = 0;
		for (const char *at = tiles, *end = strchr(tiles, ']'); (at = strstr(at, "\"rms\": null")) && at < end;
		     at++)
			count++;
		ck_assert_int_eq(count, 3);
	}
	const double fp16 = number_after(row[0], "\"rms\": "), bf16 = number_after(row[1], "\"rms\": ");
	ck_assert_msg(fp16 > ldexp(1, -13) && fp16 < ldexp(1, -11), "%g", fp16);
	ck_assert_msg(bf16 > 6 * fp16 && bf16 < 10 * fp16, "%g %g", bf16, fp16);
}
END_TEST

static void folder_make(void) { ck_assert_ptr_nonnull(mkdtemp(folder)); }

static void folder_remove(void)
{
	char command[128];
	snprintf(command, sizeof command, "rm -rf %s", folder);
	ck_assert_int_eq(system(command), 0);
}

Suite *suite(void)
{
	Suite *s = suite_create("deviation");
	TCase *numbers = tcase_create("numbers"), *t = tcase_create("command");
	tcase_add_test(numbers, measures);
	tcase_add_test(numbers, what_is_not_finite);
	tcase_add_test(numbers, over_nothing);
	tcase_add_test(numbers, backward_hands_out_forward);
	suite_add_tcase(s, numbers);
	tcase_add_unchecked_fixture(t, folder_make, folder_remove);
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, refuses, 0, sizeof refused / sizeof *refused);
	tcase_add_test(t, helps);
	tcase_add_test(t, studies);
	suite_add_tcase(s, t);
	return s;
}
