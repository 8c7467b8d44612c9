/* What positions add to a score: which scores it is known of, and that the three keys which kernels look at have the most of any interval.
 * Of the emitted text, compiled for the host; the truth is a scan of the interval. */
#include <math.h>

#include "tests/emitted.h"
#include "tests/spec_help.h"

Suite *suite(void);

static const char *const lifted[] = {
	"alibi",
	"\"s + (q - k)\"",
	"\"s + (k - q) * 0.25\"",
	"\"2 * (s - 0.3 * abs(q - k)) + 1\"",
	"\"s - slope[h] * min(abs((q - sq) - (k - sk)), 40)\"",
	"\"s - slope[h] * max(0, q - k)\"",
	"\"s + log(1.0 + abs(q - k + 7))\"",
	"\"-(0.5 * abs(k - 20) - s)\"",
	"\"tanh(s) / 3 + exp(slope[h] * -0.1 * abs(q - k))\"",
	"\"s + floor(slope[h] * k) / 2\"",
	"\"s * (1 + 0.01 * q) + 0.5 * (k / 7)\"",
	"\"s + step[b, h, q] * abs(q - k)\"",
	"\"s + 0.01 * q\"",
};
enum { LIFTED = sizeof lifted / sizeof *lifted };

static struct spec spec[LIFTED];
static struct program program[LIFTED];
static void *so;

static void lower(struct spec *s, struct program *p, const char *score)
{
	struct text yaml = {0};
	struct diag diag = {0};
	text_addf(&yaml, "head_dim: 64\nsoftmax_scale: 0.5\nscore: %s\n", score);
	const char *separator = "inputs: {";
	if (strstr(score, "slope[") && !strstr(score, "alibi"))
		text_addf(&yaml, "%sslope: {dtype: f32, shape: [heads]}", separator), separator = ", ";
	if (strstr(score, "step["))
		text_addf(&yaml, "%sstep: {dtype: f32, shape: [batch, heads, seq_q]}", separator), separator = ", ";
	if (strstr(score, "rel["))
		text_addf(&yaml, "%srel: {dtype: f32, shape: [heads, 32]}", separator), separator = ", ";
	if (strstr(score, "key["))
		text_addf(&yaml, "%skey: {dtype: f32, shape: [batch, seq_k]}", separator), separator = ", ";
	if (*separator == ',')
		text_puts(&yaml, "}\n");
	*s = parse(text_str(&yaml));
	ck_assert_msg(!program_lower(p, s, &diag), "%s", text_str(&diag.text));
	diag_free(&diag);
	text_free(&yaml);
}

static void setup(void)
{
	const struct spec *specs[LIFTED];
	const struct program *programs[LIFTED];
	const struct emitted_shape shape = {64, 32, 0, 0, 0.5, LAYOUT_DENSE};
	struct text source = {0};
	struct emitted_build build;
	for (int i = 0; i < LIFTED; i++) {
		lower(&spec[i], &program[i], lifted[i]);
		specs[i] = &spec[i];
		programs[i] = &program[i];
	}
	emitted_source(&source, specs, programs, LIFTED, &shape);
	emitted_start(&build, &source);
	so = emitted_wait(&build);
	text_free(&source);
}

static void teardown(void) { dlclose(so); }

enum { SQ = 150, SK = 170, HEADS = 3 };
static float elements[HEADS * SQ];

/* The one input is [heads] or [1, heads, seq_q]; its elements rise and fall to below 0. */
static struct fagen_abi launch(int sq, int sk)
{
	struct fagen_abi p = {.batch = 1, .heads_q = HEADS, .heads_kv = HEADS, .kv_group = 1, .seqlen_q = sq, .seqlen_k = sk};
	for (int i = 0; i < HEADS * SQ; i++)
		elements[i] = 0.7f - 0.4f * (float)(i % 4);
	p.input[0].data = (uintptr_t)elements;
	for (int i = 0; i < 4; i++)
		p.input[0].stride[i] = 1; /* rows of heads overlap, which is as good */
	return p;
}

static float plain(const struct emitted *e, const struct fagen_abi *p, int h, int q, int k, float s)
{
	struct emitted_cell cell;
	e->plain(&cell, p, 0, h, q, k, s);
	return cell.score;
}

static void must_hold_most(const struct emitted *e, const struct fagen_abi *p, int h, int q, int begin, int end)
{
	const int turn = e->score_turn(q, p->seqlen_q, p->seqlen_k);
	const int key[3] = {begin, end - 1, turn < begin ? begin : turn > end - 1 ? end - 1 : turn};
	float most = -INFINITY, want = -INFINITY;
	ck_assert(turn >= 0 && turn < p->seqlen_k);
	for (int i = 0; i < 3; i++)
		most = fmaxf(most, plain(e, p, h, q, key[i], 0));
	for (int k = begin; k < end; k++)
		want = fmaxf(want, plain(e, p, h, q, k, 0));
	ck_assert_msg(most == want, "h %d, q %d, keys [%d, %d): %g, want %g", h, q, begin, end, (double)most, (double)want);
}

START_TEST(three_keys_have_the_most)
{
	const struct emitted *e = emitted_find(so, _i);
	static const int lengths[][2] = {{SQ, SK}, {64, 64}, {SQ, 40}, {1, SK}, {7, 1}};
	unsigned random = 1;
	ck_assert_int_eq(program_lift(&spec[_i], &program[_i]), LIFT_KNOWN);
	for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
		const int sq = lengths[l][0], sk = lengths[l][1];
		const struct fagen_abi p = launch(sq, sk);
		for (int n = 0; n < 4000; n++) {
			random = random * 1664525 + 1013904223;
			const int h = (int)(random >> 8) % HEADS, q = (int)(random >> 10) % sq;
			random = random * 1664525 + 1013904223;
			const int begin = (int)(random >> 8) % sk, end = begin + 1 + (int)(random >> 20) % (sk - begin);
			must_hold_most(e, &p, h, q, begin, end);
		}
		for (int q = 0; q < sq; q++)
			must_hold_most(e, &p, q % HEADS, q, 0, sk);
	}
}
END_TEST

/* What s adds is the same at every key: a reference that allows for what positions add allows for all but the data. */
START_TEST(the_rest_is_of_s)
{
	const struct emitted *e = emitted_find(so, _i);
	const struct fagen_abi p = launch(SQ, SK);
	for (int q = 0; q < SQ; q += 13)
		for (int k = 1; k < SK; k++) {
			const float first = plain(e, &p, 1, q, 0, 3) - plain(e, &p, 1, q, 0, 0),
				    here = plain(e, &p, 1, q, k, 3) - plain(e, &p, 1, q, k, 0);
			ck_assert_msg(fabsf(first - here) < 1e-3f, "q %d, k %d: %g, at key 0 %g", q, k, (double)here,
			              (double)first);
		}
}
END_TEST

/* Whatever tile is staged, any key of its rows may be asked for. */
START_TEST(any_key_of_any_tile)
{
	const struct emitted *e = emitted_find(so, _i);
	const struct fagen_abi p = launch(SQ, SK);
	struct emitted_tile tile = {.q0 = 64, .k0 = 128};
	void **buffer[] = {&tile.head, &tile.rows, &tile.cols, &tile.cells};
	for (int i = 0; i < 4; i++)
		ck_assert_ptr_nonnull(*buffer[i] = calloc(1, (size_t)e->bytes[i] + 16));
	for (int h = 0; h < HEADS; h++) {
		e->load(&tile, &p, 0, h);
		for (int q = 64; q < 128; q++)
			for (int k = 0; k < SK; k++) {
				struct emitted_cell cell;
				e->cell(&cell, &tile, &p, 0, h, q, k, 0, 0);
				const float want = plain(e, &p, h, q, k, 0);
				ck_assert_msg(fabsf(cell.score - want) <= 1e-5f * fabsf(want) + 1e-6f, "%g, want %g",
				              (double)cell.score, (double)want);
			}
	}
	for (int i = 0; i < 4; i++)
		free(*buffer[i]);
}
END_TEST

static const struct {
	const char *score;
	enum lift lift;
} others[] = {
	{"none", LIFT_NONE},
	{"{softcap: {cap: 30}}", LIFT_NONE},
	{"\"2 * s + h\"", LIFT_NONE},
	{"t5", LIFT_NONE},
	{"t5_causal", LIFT_NONE},
	{"\"s + rel[h, abs(q - k) % 32] * 3\"", LIFT_NONE},
	{"bias", LIFT_UNKNOWN},
	{"\"s + key[b, k]\"", LIFT_UNKNOWN},         /* may hide keys */
	{"[alibi, {softcap: {cap: 30}}]", LIFT_UNKNOWN}, /* what s adds follows k */
	{"\"s * (q - k)\"", LIFT_UNKNOWN},
	{"\"s / (1 + abs(q - k))\"", LIFT_UNKNOWN},
	{"\"k < 4 ? s : 0.5 * s\"", LIFT_UNKNOWN},
	{"\"s + k % 5\"", LIFT_UNKNOWN},
	{"\"s + random(1, q, k)\"", LIFT_UNKNOWN},
	{"\"s - abs(q - k) - abs(k - 7)\"", LIFT_UNKNOWN},
	{"\"s - abs(abs(q - k) - 20)\"", LIFT_UNKNOWN},
	{"\"s - abs(q - 2 * k)\"", LIFT_UNKNOWN},
	{"\"s + 1.0 / (1 + k)\"", LIFT_UNKNOWN},
	{"\"s + rel[h, abs(q - k) % 32] - abs(q - k)\"", LIFT_UNKNOWN},
	{"\"s * s + s * k\"", LIFT_UNKNOWN},
};

START_TEST(others_have_none)
{
	static struct spec s;
	static struct program p;
	struct text out = {0};
	lower(&s, &p, others[_i].score);
	ck_assert_msg(program_lift(&s, &p) == others[_i].lift, "%s", others[_i].score);
	source_program(&out, &s, &p);
	ck_assert_ptr_nonnull(strstr(text_str(&out), "DEVICE int score_turn(int q, int sq, int sk) { return 0; }\n"));
	text_free(&out);
}
END_TEST

START_TEST(text)
{
	struct text out = {0};
	source_program(&out, &spec[0], &program[0]);
	ck_assert_ptr_nonnull(strstr(text_str(&out), "DEVICE int score_turn(int q, int sq, int sk) { return "
	                                             "clamp_position((long long)q - sq + sk, sk - 1); }\n"));
	text_free(&out);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("lift");
	TCase *t = tcase_create("lift");
	tcase_set_timeout(t, 60);
	tcase_add_unchecked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, three_keys_have_the_most, 0, LIFTED);
	tcase_add_loop_test(t, the_rest_is_of_s, 0, LIFTED);
	tcase_add_loop_test(t, any_key_of_any_tile, 0, LIFTED);
	tcase_add_loop_test(t, others_have_none, 0, sizeof others / sizeof *others);
	tcase_add_test(t, text);
	suite_add_tcase(s, t);
	return s;
}
