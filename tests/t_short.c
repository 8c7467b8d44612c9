/* The short form of a score: which scores have one, how near tanh it is where it may be trusted, and that whatever lies beyond
 * shows. Of the emitted text, compiled for the host; the truth is the double tanh of libm. */
#include <math.h>

#include "tests/emitted.h"
#include "tests/spec_help.h"

Suite *suite(void);

/* score = factor * tanh(inner * scaled s) */
static const struct {
	const char *score, *scale;
	double factor, inner;
} shorts[] = {
	{"{softcap: {cap: 30}}", "0.08838834764831845", 30, 1 / 30.0},
	{"{softcap: {cap: 50}}", "0.0625", 50, 1 / 50.0},
	{"{softcap: {cap: 21}}", "1", 21, 1 / 21.0},
	{"{softcap: {cap: 1000}}", "0.125", 1000, 1 / 1000.0},
	{"\"softcap(30) * 2\"", "0.1", 60, 1 / 30.0},
	{"\"40 * tanh(3 * s)\"", "0.7", 40, 3},
	{"\"-(tanh(s / 7) * -100)\"", "0.1", 100, 1 / 7.0},
};
enum { SHORTS = sizeof shorts / sizeof *shorts };

static struct spec spec[SHORTS + 1]; /* the last one is for SOFTMAX_SCALE, which something must use */
static struct program program[SHORTS + 1];
static void *so;

static void lower(struct spec *s, struct program *p, const char *score, const char *scale)
{
	char yaml[256];
	struct diag diag = {0};
	snprintf(yaml, sizeof yaml, "{head_dim: 64, softmax_scale: %s, score: %s}", scale, score);
	*s = parse(yaml);
	ck_assert_msg(!program_lower(p, s, &diag), "%s", text_str(&diag.text));
	diag_free(&diag);
}

static void setup(void)
{
	const struct spec *specs[SHORTS + 1];
	const struct program *programs[SHORTS + 1];
	const struct emitted_shape shape = {64, 64, 0, 0, 1, LAYOUT_DENSE};
	struct text source = {0};
	struct emitted_build build;
	for (int i = 0; i <= SHORTS; i++) {
		lower(&spec[i], &program[i], i < SHORTS ? shorts[i].score : "s + 1",
		      i < SHORTS ? shorts[i].scale : "0.5");
		specs[i] = &spec[i];
		programs[i] = &program[i];
	}
	emitted_source(&source, specs, programs, SHORTS + 1, &shape);
	emitted_start(&build, &source);
	so = emitted_wait(&build);
	text_free(&source);
}

static void teardown(void) { dlclose(so); }

static double logit2(int i, double s)
{
	return shorts[i].factor * tanh(shorts[i].inner * strtod(shorts[i].scale, NULL) * s) / log(2);
}

/* Every logit within the limit, on both sides: wrong by at most 2^-19.5 of itself, and rising but for what rounding takes. */
START_TEST(near_tanh_within_reach)
{
	const struct emitted *e = emitted_find(so, _i);
	const double limit = program_short_logit(&spec[_i], &program[_i]),
		     slope = shorts[_i].inner * strtod(shorts[_i].scale, NULL);
	double worst = 0, reach = 0;
	ck_assert(limit >= 20 && limit < shorts[_i].factor / log(2));
	for (int n = 1; n <= 200000; n++) {
		const float s = (float)(n / 200000.0 / slope);
		const double want = logit2(_i, s);
		if (want > limit)
			break;
		reach = slope * s;
		for (int sign = -1; sign <= 1; sign += 2) {
			const double got = e->score_short((float)sign * s, 0);
			worst = fmax(worst, fabs(got - sign * want) / want);
			ck_assert_float_eq(e->score_short((float)sign * s, 8), (float)got - 8);
		}
	}
	ck_assert_msg(worst < exp2(-19.5), "wrong by 2^%g of the logit", log2(worst));
	/* The polynomial's own error shows. */
	ck_assert_msg(worst > exp2(-21), "2^%g: the bound could be better", log2(worst));
	ck_assert_msg(reach > 0.75, "only to %g", reach);
	ck_assert_float_eq(e->score_short(0, 0), 0);
}
END_TEST

/* Beyond the limit tanh is, and so must the short form be: to the largest floats and infinity, so that a sum of powers shows it, or
 * hides it below everything. */
START_TEST(beyond_reach_beyond_limit)
{
	const struct emitted *e = emitted_find(so, _i);
	const float limit = (float)program_short_logit(&spec[_i], &program[_i]);
	const double slope = shorts[_i].inner * strtod(shorts[_i].scale, NULL);
	float before = 0;
	for (double x = 0.5; x < 1e40; x *= 1.0005) {
		const float s = (float)fmin(x / slope, 3.4028234e38), got = e->score_short(s, 0);
		if (logit2(_i, s) > limit * (1 + ldexp(1, -18))) /* nearer, rounding may decide */
			ck_assert_msg(got > limit, "%g at %g", (double)got, (double)s);
		ck_assert_msg(got >= before, "falls at %g", (double)s);
		ck_assert_float_eq(e->score_short(-s, 0), -got);
		before = got;
	}
	ck_assert(isinf(before) || before > 1e30f);
	ck_assert(e->score_short(INFINITY, 3) == INFINITY);
	ck_assert(e->score_short(-INFINITY, 3) == -INFINITY);
	ck_assert(isnan(e->score_short(NAN, 0)));
}
END_TEST

/* Anything else keeps its only form: other functions of s, signs that turn the order round, cells that differ, caps so small that
 * ordinary rows would leave the range, coefficients that floats cannot hold. */
START_TEST(none)
{
	static const struct {
		const char *score, *scale;
	} rows[] = {
		{"none", "1"},
		{"\"2 * s\"", "1"},
		{"{softcap: {cap: 20}}", "0.1"},
		{"\"-30 * tanh(s / 30)\"", "0.1"},
		{"\"30 * tanh(-s)\"", "0.1"},
		{"\"30 * tanh(s / 30) + 1\"", "0.1"},
		{"\"30 * tanh(s / 30 + 1)\"", "0.1"},
		{"\"30 * tanh(s * s)\"", "0.1"},
		{"\"30 * sigmoid(s)\"", "0.1"},
		{"[{softcap: {cap: 30}}, alibi]", "0.1"},
		{"{softcap: {cap: 1000000}}", "0.1"},
		{"\"30 * tanh(s * 1e5)\"", "1e5"},
	};
	struct spec s;
	struct program p;
	struct text out = {0};
	lower(&s, &p, rows[_i].score, rows[_i].scale);
	ck_assert(program_short_logit(&s, &p) == 0);
	source_program(&out, &s, &p);
	ck_assert_ptr_nonnull(
		strstr(text_str(&out), "DEVICE float score_short(float s, float shift)\n{\n\treturn 0;\n}\n"));
	text_free(&out);
}
END_TEST

START_TEST(text)
{
	struct text out = {0};
	source_program(&out, &spec[1], &program[1]);
	ck_assert_ptr_nonnull(strstr(
		text_str(&out),
		"DEVICE float score_short(float s, float shift)\n{\n\tconst float u = s * s;\n"
		"\treturn s * (0.09016835f + u * (-4.6951513e-08f + u * (2.9125475e-14f + u * (-1.6916262e-20f + "
		"6.503168e-27f * u)))) - shift;\n}\n"));
	text_free(&out);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("short");
	TCase *t = tcase_create("short");
	tcase_set_timeout(t, 60);
	tcase_add_unchecked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, near_tanh_within_reach, 0, SHORTS);
	tcase_add_loop_test(t, beyond_reach_beyond_limit, 0, SHORTS);
	tcase_add_loop_test(t, none, 0, 12);
	tcase_add_test(t, text);
	suite_add_tcase(s, t);
	return s;
}
