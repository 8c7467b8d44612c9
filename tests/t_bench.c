/* fagen bench --sweep, its sums, and --overhead: the command over a driver that is not one. The command is $FAGEN. */
#include <check.h>
#include <math.h>
#include <sys/wait.h>

#include "cli/bench.h"
#include "tests/fake_use.h"

Suite *suite(void);

START_TEST(sums_of_a_sweep)
{
	static const struct sweep_row row[] = {
		{.us = 100, .predicted_us = 110, .best_us = 100}, /* 1.1, 1.0 */
		{.us = 200, .predicted_us = 160, .best_us = 160}, /* 0.8, 1.25 */
		{.us = 50, .predicted_us = 50, .best_us = 48},    /* 1.0, 1.0417 */
		{.us = 10, .predicted_us = 30, .best_us = 10},    /* 3.0, 1.0 */
		{.us = 10, .predicted_us = 10.5, .best_us = 9.9}, /* 1.05, 1.0101 */
	};
	struct sweep_summary sum;
	sweep_sum(&sum, row, 5);
	ck_assert_double_eq_tol(sum.ratio_median, 1.05, 1e-12);
	ck_assert_double_eq_tol(sum.ratio_least, 0.8, 1e-12);
	ck_assert_double_eq_tol(sum.ratio_most, 3, 1e-12);
	ck_assert_double_eq_tol(sum.error_median, 0.1, 1e-12);
	ck_assert_double_eq_tol(sum.regret_median, 10 / 9.9, 1e-12);
	ck_assert_double_eq_tol(sum.regret_worst, 1.25, 1e-12);
	ck_assert_int_eq(sum.worst, 1);
	sweep_sum(&sum, row, 2); /* an even count: the mean of the middle two */
	ck_assert_double_eq_tol(sum.ratio_median, 0.95, 1e-12);
	ck_assert_double_eq_tol(sum.error_median, 0.15, 1e-12);
	sweep_sum(&sum, row, 0);
	ck_assert_int_eq(sum.worst, -1);
}
END_TEST

/* What a script prints over the fake driver, and 0 if it succeeds: $FAGEN, $FAKES and a cache folder of its own, which is removed. */
static int script_run(char *output, size_t room, const char *script)
{
	char folder[512], command[2048], place[] = "/tmp/fagen-t_bench-XXXXXX";
	const char *fagen = getenv("FAGEN");
	ck_assert_ptr_nonnull(mkdtemp(place));
	test_folder(folder);
	snprintf(command, sizeof command,
	         "export ASAN_OPTIONS=detect_leaks=0 FAKES='%s' FAGEN_CACHE_DIR=%s FAGEN=%s\n"
	         "export LD_LIBRARY_PATH=\"$FAKES/fake\"\n%s\nstatus=$?; rm -r %s; exit $status",
	         folder, place, fagen ? fagen : "build/release/fagen", script, place);
	FILE *pipe = popen(command, "r");
	ck_assert_ptr_nonnull(pipe);
	output[fread(output, 1, room - 1, pipe)] = '\0';
	return pclose(pipe);
}

/* Over the fake driver a launch takes as many microseconds as a CTA has threads: what is timed and chosen is known. */
START_TEST(sweep_over_the_fake_driver)
{
	static char output[1 << 16];
	const int status = script_run(output, sizeof output,
	                              "cat > $FAGEN_CACHE_DIR/tiles.yaml <<END\n"
	                              "head_dim: 128\npasses: [forward, backward]\ntargets: [sm_90a]\nassume: {batch: 1, heads: 4, seqlen: 4096}\n"
	                              "tile: {forward: {m: 128, n: 64, stages: 1}, backward: {m: 64, n: 64, stages: 1}}\nEND\n"
	                              "$FAGEN bench --sweep --json --seq 256 $FAGEN_CACHE_DIR/tiles.yaml 2>&1");
	ck_assert_msg(status == 0, "%s", output);
	static const char *const said[] = {
		"\"problem\": \"b1 hq4 hkv4 sq256 sk256 align16\"",
		"\"pass\": \"forward\", ",
		"\"legal\": 2, \"tiles\": [{\"tile\": \"128x64 w4 s1\", \"us\": 128.000, ",
		"{\"tile\": \"128x64 w8 s1\", \"us\": 256.000, ",
		/* delta, main, dQ */
		"{\"tile\": \"64x64 w8 s1\", \"us\": 768.000, ",
		"{\"tile\": \"64x64 w4 s1\", \"us\": 384.000, ",
		"\"best\": \"128x64 w4 s1\"",
		"\"best\": \"64x64 w4 s1\"",
		"\"gpu\": \"NVIDIA H200\"",
	};
	for (size_t i = 0; i < sizeof said / sizeof *said; i++)
		ck_assert_msg(strstr(output, said[i]) != NULL, "no '%s' in\n%s", said[i], output);
	/* What it sums up follows from the tiles it chose. */
	const bool forward_best = strstr(output, "\"tile\": \"128x64 w4 s1\", \"best\"") != NULL,
		   backward_best = strstr(output, "\"tile\": \"64x64 w4 s1\", \"best\"") != NULL;
	char worst[64];
	snprintf(worst, sizeof worst, "\"regret_worst\": %s}", forward_best && backward_best ? "1.0000" : "2.0000");
	ck_assert_msg(strstr(output, worst) != NULL, "no '%s' in\n%s", worst, output);
}
END_TEST

/* The entry of a checked kernel says on which GPU: over the fake driver no result is right. */
START_TEST(a_check_is_remembered)
{
	static char output[1 << 14];
	script_run(output, sizeof output, "$FAGEN check '{head_dim: 64}:b1,h1,q9,k9' > /dev/null; echo status $?; $FAGEN cache show");
	ck_assert_msg(strstr(output, "status 4\n") && strstr(output, "  sm_90a ") && strstr(output, "  wrong NVIDIA H200\n"), "%s", output);
}
END_TEST

/* The number behind `name`; negative if there is none. */
static double figure(const char *text, const char *name)
{
	const char *at = strstr(text, name);
	return at ? strtod(at + strlen(name), NULL) : -1;
}

/* The aims are a warm start in 3 ms, 0.2 us for a kernel that was got before and 300 ns a kernel; sanitizers and busy machines take more. */
START_TEST(overheads_over_the_fake_driver)
{
	static char output[1 << 14];
	const int status = script_run(output, sizeof output, "FAGEN_NVRTC=\"$FAKES/fake_nvrtc\" $FAGEN bench --overhead specs/causal_d64.yaml 2>&1");
	ck_assert_msg(status == 0, "%s", output);
	const char *forward = strstr(output, "fagen_forward"), *backward = strstr(output, "fagen_backward");
	ck_assert_msg(forward && backward, "%s", output);
	ck_assert_msg(strstr(forward, " for 1 kernel, ") && strstr(forward, " for 1 clearing, ") &&
	                      strstr(forward, " for 3 tensor maps (not in it: they were kept)") &&
	                      strstr(backward, " for 3 kernels, ") && strstr(backward, " for 4 tensor maps (not in it: they were kept)"),
	              "%s", output);
	const double start = figure(output, "warm start"), lookup = figure(output, "fagen_kernel_get"),
		     own[] = {figure(forward, "fagen's own: "), figure(backward, "fagen's own: ")};
	ck_assert_msg(start > 0 && start < 60, "%s", output);
	ck_assert_msg(lookup > 0 && lookup < 5, "%s", output);
	ck_assert_msg(own[0] > 0 && own[0] < 10000 && own[1] > 0 && own[1] < 10000, "%s", output);
	fputs(output, stdout);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("bench");
	TCase *c = tcase_create("bench");
	tcase_set_timeout(c, 120);
	tcase_add_test(c, sums_of_a_sweep);
	tcase_add_test(c, sweep_over_the_fake_driver);
	tcase_add_test(c, a_check_is_remembered);
	tcase_add_test(c, overheads_over_the_fake_driver);
	suite_add_tcase(s, c);
	return s;
}
