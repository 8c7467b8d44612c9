/* Equal masks are equal programs; presets mean what they say. */
#include <check.h>
#include <string.h>

#include "tests/mask_help.h"

/* ---- presets, through a spec ---- */

static void lower_terms(struct program *p, struct spec *spec, int count, const struct term *terms)
{
	struct diag diag = {0};
	memset(spec, 0, sizeof *spec);
	spec->score = -1;
	spec->term_count = count + 1;
	spec->term[0] = (struct term){.kind = TERM_ALL, .child = count ? 1 : -1, .next = -1};
	for (int i = 0; i < count; i++) {
		spec->term[i + 1] = terms[i];
		spec->term[i + 1].next = i + 1 < count ? i + 2 : -1;
	}
	must(program_lower(p, spec, &diag) == 0, "%s", text_str(&diag.text));
	ck_assert_str_eq(text_str(&diag.text), "");
}

/* What docs/language.md says of a preset, in plain arithmetic. */
static bool preset_truth(const struct term *t, big sq, big sk, big q, big k)
{
	const char *name = preset_table[t->preset].name;
	const big back = (q - sq) - (k - sk);
	const bool causal = k - sk <= q - sq;
	if (strcmp(name, "causal") == 0)
		return causal;
	if (strcmp(name, "causal_top_left") == 0)
		return k <= q;
	if (strcmp(name, "prefix") == 0)
		return causal || k < t->arg[0].i;
	const struct term_arg *left = &t->arg[0], *right = &t->arg[1];
	return (left->kind == ARG_UNBOUNDED || back <= left->i) && (right->kind == ARG_UNBOUNDED || -back <= right->i);
}

static const int64_t window_args[] = {0, 1, 5, 17, 100, LENGTH_MAX, INT32_MAX, INT64_MAX};
enum { ARGS = sizeof window_args / sizeof *window_args };

static struct term_arg window_arg(int i)
{
	const int64_t value = window_args[i];
	return (struct term_arg){.kind = value == INT64_MAX ? ARG_UNBOUNDED : ARG_INT, .i = value};
}

/* The two alignments, three prefixes, and all pairs of window arguments. */
static struct term preset_term(int i)
{
	struct term t = {.kind = TERM_PRESET, .child = -1, .next = -1};
	if (i < 2) {
		t.preset = preset_find(i ? "causal_top_left" : "causal");
	} else if (i < 5) {
		t.preset = preset_find("prefix");
		t.arg[0].i = i == 2 ? 0 : i == 3 ? 4 : 40;
	} else {
		t.preset = preset_find("window");
		t.arg[0] = window_arg((i - 5) / ARGS);
		t.arg[1] = window_arg((i - 5) % ARGS);
	}
	return t;
}
enum { TERMS = 5 + ARGS * ARGS };

static bool runs_see(const struct program *p, int64_t sq, int64_t sk, int64_t q, int64_t k)
{
	for (int run = 0; run < p->run_count; run++) {
		const struct range r = program_key_range(p, run, sq, sk, q, q + 1);
		if (k >= r.begin && k < r.end)
			return true;
	}
	return false;
}

START_TEST(host_presets)
{
	static struct program p, both;
	static struct spec spec;
	for (int i = 0; i < TERMS; i++) {
		const struct term term[2] = {preset_term(i), preset_term(i * 7 % TERMS)};
		lower_terms(&p, &spec, 1, term);
		lower_terms(&both, &spec, 2, term);
		must(residual_is(&p, true), "preset %s has a residual", preset_table[term[0].preset].name);
		must(residual_is(&both, true) || residual_is(&both, false), "presets %d and %d", i, i * 7 % TERMS);
		for (int l = 0; l < LENGTHS; l++) {
			const int64_t sq = lengths[l][0], sk = lengths[l][1];
			for (int64_t q = 0; q < sq; q++)
				for (int64_t k = 0; k < sk; k++) {
					const bool v = preset_truth(&term[0], sq, sk, q, k),
						   vv = v && preset_truth(&term[1], sq, sk, q, k);
					must(v == runs_see(&p, sq, sk, q, k), "term %d", i);
					must(vv == runs_see(&both, sq, sk, q, k), "terms %d and %d", i, i * 7 % TERMS);
				}
		}
	}
}
END_TEST

/* ---- equal masks are equal programs ---- */

static void same_mask(const char *a, const char *b, bool same)
{
	static struct mask m[2];
	struct text text[2] = {{0}, {0}};
	const char *spelled[2] = {a, b};
	for (int i = 0; i < 2; i++) {
		strcpy(m[i].text, spelled[i]);
		ck_assert(mask_lower(&m[i]));
		program_print(&text[i], &m[i].program, &m[i].spec);
	}
	must((strcmp(text_str(&text[0]), text_str(&text[1])) == 0) == same, "%s and %s:\n%s\n%s", a, b,
	     text_str(&text[0]), text_str(&text[1]));
	ck_assert_int_eq(memcmp(&m[0].program, &m[1].program, sizeof m[0].program) == 0, same);
	text_free(&text[0]);
	text_free(&text[1]);
}

START_TEST(canonical)
{
	same_mask("k - sk <= q - sq", "q - sq >= k - sk", true);
	same_mask("k - sk <= q - sq", "causal", true);
	same_mask("k - sk <= q - sq", "!(q + sk < k + sq)", true);
	same_mask("k - sk <= q - sq", "k - sk < q - sq + 1 && k - sk <= q - sq + 5", true);
	same_mask("k - sk <= q - sq", "3 * (k - sk) <= 3 * (q - sq) + 2", true);
	same_mask("k - sk <= q - sq", "k <= q", false);
	same_mask("k <= q && q <= k + 5", "k <= q + 0 && k >= q - 5", true);
	same_mask("k == q", "k <= q && q <= k", true);
	same_mask("k <= q && k > q", "false", true);
	same_mask("k < q && q < k + 1", "false", true);
	same_mask("0 <= q", "true", true);
	same_mask("q < sq && k < sk", "true", true);
	same_mask("h < hq && hk >= 1", "true", true);
	same_mask("k < sk + 2147483647", "true", true);
	same_mask("q < k - 2147483647", "false", true);
	same_mask("k <= q && (q < 3 || k < 3)", "(k < 3 || q < 3) && q >= k", true);
	same_mask("2 * k <= 3 * q", "4 * k < 6 * q + 1", true);
	same_mask("k <= q + 4", "k <= q + 5", false);
}
END_TEST

START_TEST(canonical_unions)
{
	same_mask("abs(q - k) <= 5", "q - k <= 5 && k - q <= 5", true);
	same_mask("abs(q - k) <= 5", "window(5, 5)", false); /* that one is aligned at the ends */
	same_mask("k < 4 || k >= 4", "true", true);
	same_mask("k <= q || k == q + 1", "k <= q + 1", true);
	same_mask("k <= q || k < q - 3", "k <= q", true);
	same_mask("k < 3 || k <= q || k < 2", "q >= k || k < 3", true);
	same_mask("max(k, q) < 9", "q < 9 && k < 9", true);
	same_mask("min(q, k) < 3", "k < 3 || q < 3", true);
	same_mask("k != q", "k > q || k < q", true);
	same_mask("k / 64 < 2", "k < 128", true);
	same_mask("k / 64 >= 2", "128 <= k", true);
	same_mask("-(k / 64) <= -2", "128 <= k", true);
	same_mask("k <= q ? k < 9 : false", "k <= q && k < 9", true);
	same_mask("!(k <= q && k < 9)", "k > q || k >= 9", true);
	same_mask("(k <= q) == (k < 5)", "k <= q && k < 5 || q < k && 5 <= k", true);
	same_mask("(k < 8 || q < 8) && k <= q", "k <= q && k < 8 || k <= q && q < 8", true);
	same_mask("random(1, q, k) < 300 && q * k % 5 < 2", "q * k % 5 < 2 && 300 > random(1, q, k)", true);
	same_mask("k < used[b] || k <= q", "q >= k || used[b] > k", true);
	same_mask("doc[b, k] == doc[b, q] && causal", "causal && doc[b, q] == doc[b, k]", true);
	same_mask("2 * k == 2 * q + 1", "false", true);
	same_mask("q * k > 5 || 3 * k == 6", "q * k > 5 || k == 2", true);
}
END_TEST

START_TEST(refusals)
{
	static const char *const texts[][2] = {
		{"k + 1", "want a condition"},
		{"q * k * sk * sq < 5", "may leave 64 bits"},
		{"k + 9223372036854775807 < q", "may leave 64 bits"},
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		struct expr_pool pool = {0};
		static struct program p;
		struct diag diag = {0};
		const struct expr_scope scope = {.kind = PRESET_MASK, .s = -1};
		const int root = expr_parse(&pool, texts[i][0], &scope, (struct place){0, 0}, &diag);
		ck_assert_int_ge(root, 0);
		ck_assert_int_eq(program_lower_mask(&p, &pool, root, &diag), -1);
		must(strstr(text_str(&diag.text), texts[i][1]), "%s", text_str(&diag.text));
		diag_free(&diag);
	}
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("canonical");
	TCase *t = tcase_create("canonical");
	tcase_set_timeout(t, 180);
	tcase_add_test(t, host_presets);
	tcase_add_test(t, canonical);
	tcase_add_test(t, canonical_unions);
	tcase_add_test(t, refusals);
	suite_add_tcase(s, t);
	return s;
}
