/* Expressions: values against an independent evaluator, canonical text, folding, and errors with their caret. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/random_expr.h"

static const struct expr_binding bound[] = {{"left", 7}, {"inf", SPEC_UNBOUNDED}};

static int parse(struct expr_pool *pool, const char *text, struct diag *diag)
{
	return expr_parse(pool, text, bound, 2, (struct place){1, 1}, diag);
}

static int parse_ok(struct expr_pool *pool, const char *text)
{
	struct diag diag = {.file = "test", .source = text, .source_len = strlen(text)};
	const int root = parse(pool, text, &diag);
	ck_assert_msg(root >= 0, "%s: %s", text, text_str(&diag.text));
	ck_assert_int_eq(diag.errors, 0);
	diag_free(&diag);
	return root;
}

/* Value, canonical text and idempotence of one random tree. */
static void one_tree(uint64_t seed)
{
	struct grove g = {.state = seed};
	struct text source = {0}, printed = {0}, again = {0};
	struct expr_pool pool = {0}, fresh = {0};
	const struct tree *tree = seed % 2 ? tree_bool(&g, 5) : tree_int(&g, 5);
	tree_text(&source, tree);
	const int root = parse_ok(&pool, text_str(&source));
	for (int i = 0; i < 40; i++) {
		int64_t name[NAME_COUNT] = {0};
		for (int j = 0; j < 6; j++)
			name[j] = (int64_t)grove_random(&g, i < 20 ? 6 : 100) - (i % 4 == 3 ? 40 : 0);
		if (expr_eval_int(&pool, root, name) != (int64_t)tree_value(tree, name))
			ck_abort_msg("%s", text_str(&source));
	}
	expr_print(&printed, &pool, root);
	ck_assert_msg(parse_ok(&pool, text_str(&printed)) == root, "%s is another node than %s", text_str(&printed),
	              text_str(&source));
	const int root2 = parse_ok(&fresh, text_str(&printed));
	expr_print(&again, &fresh, root2);
	ck_assert_str_eq(text_str(&printed), text_str(&again));
	text_free(&source);
	text_free(&printed);
	text_free(&again);
}

START_TEST(random_trees)
{
	for (uint64_t seed = 1; seed <= 5000; seed++)
		one_tree(seed);
}
END_TEST

static const struct {
	const char *text, *canonical;
} folds[] = {
	{"1 + 2 * 3", "7"},
	{"-7 / 2", "-4"},
	{"-7 % 2", "1"},
	{"k + q", "q + k"},
	{"5 + q", "q + 5"},
	{"q * 1 + 0", "q"},
	{"q - q", "0"},
	{"0 - q", "-q"},
	{"--q", "q"},
	{"q * 0", "0"},
	{"abs(-(q - k))", "abs(q - k)"},
	{"abs(abs(q))", "abs(q)"},
	{"min(k, k)", "k"},
	{"q >= k", "k <= q"},
	{"q > k", "k < q"},
	{"!(q < k)", "k <= q"},
	{"!(q == k)", "q != k"},
	{"!!(q == k)", "q == k"},
	{"!(q < k && q < 3)", "k <= q || 3 <= q"},
	{"k <= q && true", "k <= q"},
	{"k <= q || true", "true"},
	{"k <= q && k <= q", "k <= q"},
	{"k <= k", "true"},
	{"k < k", "false"},
	{"q <= inf", "true"},
	{"inf < q", "false"},
	{"left <= inf", "true"},
	{"left", "7"},
	{"true ? q : k", "q"},
	{"q < k ? q : q", "q"},
	{"(q < 1 ? q : k) + 1", "(q < 1 ? q : k) + 1"},
	{"q < 1 ? q : k < 1 ? 1 : 2", "q < 1 ? q : k < 1 ? 1 : 2"},
	{"(q + k) * 2", "(q + k) * 2"},
	{"q - (k - sq)", "q - (k - sq)"},
	{"q - k - sq", "q - k - sq"},
	{"q - -5", "q - -5"},
	{"-9223372036854775808", "-9223372036854775808"},
	{"- -9223372036854775808", "--9223372036854775808"},
	{"9223372036854775807 + 1", "1 + 9223372036854775807"},
	{"s * s + s", "s + s * s"},
};

START_TEST(folding)
{
	struct expr_pool pool = {0};
	struct text out = {0};
	const int root = parse_ok(&pool, folds[_i].text);
	expr_print(&out, &pool, root);
	ck_assert_str_eq(text_str(&out), folds[_i].canonical);
	ck_assert_int_eq(parse_ok(&pool, text_str(&out)), root);
	text_free(&out);
}
END_TEST

static const struct {
	const char *text;
	int column;
	const char *message;
} bad[] = {
	{"", 1, "the expression ends here, but a value is missing"},
	{"q +", 4, "the expression ends here, but a value is missing"},
	{"(q", 3, "the expression ends here, but ')' is missing"},
	{"q k", 3, "'k' where an operator should stand"},
	{"q <= ) k", 6, "')' where a value should stand"},
	{"q @ k", 3, "'@' has no meaning in an expression"},
	{"q \xc3\xa9", 3, "byte 0xc3 has no meaning in an expression"},
	{"leff + q", 1, "unknown name 'leff': did you mean 'left'?"},
	{"qqqqqqqqqq", 1, "unknown name 'qqqqqqqqqq': an expression may use b h q k sq sk hq hk s"},
	{"0128 < q", 1, "'0128' is not a number here: write decimal digits without a leading zero"},
	{"q < 0x10", 5, "'0x10' is not a number here: write decimal digits without a leading zero"},
	{"9223372036854775808", 1, "9223372036854775808 does not fit: numbers go up to 9223372036854775807"},
	{"q < 99999999999999999999999", 5,
         "99999999999999999999999 does not fit: numbers go up to 9223372036854775807"},
	{"q / k", 3, "the right side of '/' must be a constant above zero"},
	{"q % 0", 3, "the right side of '%' must be a constant above zero"},
	{"q < k < 3", 7, "'<' works on whole numbers, but got a condition and a whole number"},
	{"q && k", 3, "'&&' works on conditions, but got a whole number and a whole number"},
	{"!q", 1, "'!' works on conditions, but got a whole number"},
	{"-(q < k)", 1, "'-' works on numbers of one kind, but got a condition"},
	{"s < 3", 3, "'<' works on whole numbers, but got a score and a whole number"},
	{"q ? 1 : 2", 3,
         "'?' chooses by a condition between two values of one kind, but got a whole number ? a whole number : a whole number"},
	{"min(q)", 6, "')' where ',' should stand"},
	{"q < 1 ? 2", 10, "the expression ends here, but ':' is missing"},
};

START_TEST(errors)
{
	struct expr_pool pool = {0};
	struct diag diag = {.file = "test", .source = bad[_i].text, .source_len = strlen(bad[_i].text)};
	char start[256];
	ck_assert_int_eq(parse(&pool, bad[_i].text, &diag), -1);
	snprintf(start, sizeof start, "test:1:%d: error: %s\n", bad[_i].column, bad[_i].message);
	ck_assert_msg(strncmp(text_str(&diag.text), start, strlen(start)) == 0, "got %s\nwant %s", text_str(&diag.text),
	              start);
	ck_assert_int_eq(diag.errors, 1);
	diag_free(&diag);
}
END_TEST

/* What is too deep or too large is refused, whatever its size. */
static void refused(const char *open, int times, const char *rest, const char *message)
{
	struct expr_pool pool = {0};
	struct diag diag = {.file = "test"};
	struct text text = {0};
	for (int i = 0; i < times; i++)
		text_addf(&text, open, i);
	text_puts(&text, rest);
	ck_assert_int_eq(parse(&pool, text_str(&text), &diag), -1);
	ck_assert_ptr_nonnull(strstr(text_str(&diag.text), message));
	text_free(&text);
	diag_free(&diag);
}

START_TEST(limits)
{
	refused("(", 100000, "q", "nested deeper than 64 levels");
	refused("-", 100000, "q", "nested deeper than 64 levels");
	refused("!", 100000, "q", "nested deeper than 64 levels");
	refused("min(q,", 100000, "q", "nested deeper than 64 levels");
	refused("q < %d ? 1 : ", 100000, "q", "nested deeper than 64 levels");
	refused("q * %d + ", 1000, "q", "more than 256 parts");
	struct expr_pool pool = {0};
	struct text text = {0};
	for (int i = 0; i < 100000; i++)
		text_puts(&text, "q + k * 0 + ");
	text_puts(&text, "1 == 2");
	(void)parse_ok(&pool, "1 == 2");
	refused(text_str(&text), 0, ") ", "where a value should stand");
	text_free(&text);
}
END_TEST

START_TEST(types_and_pool)
{
	struct expr_pool pool = {0};
	const int q = expr_variable(&pool, NAME_Q), s = expr_variable(&pool, NAME_S),
		  yes = expr_const_bool(&pool, true);
	ck_assert_int_eq(expr_variable(&pool, NAME_Q), q);
	ck_assert_int_eq(expr_make(&pool, EXPR_ADD, q, s, -1), -1);
	ck_assert_int_eq(expr_make(&pool, EXPR_ADD, q, yes, -1), -1);
	ck_assert_int_eq(expr_make(&pool, EXPR_ADD, q, -1, -1), -1);
	ck_assert_int_eq(expr_make(&pool, EXPR_ADD, q, 250, -1), -1);
	ck_assert_int_eq(expr_make(&pool, EXPR_AND, q, yes, -1), -1);
	ck_assert_int_eq(expr_make(&pool, EXPR_SELECT, yes, q, s), -1);
	ck_assert_int_eq(expr_make(&pool, EXPR_CONST, q, q, q), -1);
	ck_assert_int_eq(expr_make(&pool, EXPR_DIV, q, expr_const_int(&pool, -2), -1), -1);
	ck_assert_int_ge(expr_make(&pool, EXPR_MUL, s, s, -1), 0);
	for (int64_t i = 0; pool.count < EXPR_NODES_MAX; i++)
		ck_assert_int_ge(expr_const_int(&pool, 1000 + i), 0);
	ck_assert_int_eq(expr_const_int(&pool, 1), -1);
	ck_assert_int_eq(expr_variable(&pool, NAME_Q), q);
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("expr");
	TCase *t = tcase_create("expr");
	tcase_set_timeout(t, 60);
	tcase_add_test(t, random_trees);
	tcase_add_loop_test(t, folding, 0, sizeof folds / sizeof *folds);
	tcase_add_loop_test(t, errors, 0, sizeof bad / sizeof *bad);
	tcase_add_test(t, limits);
	tcase_add_test(t, types_and_pool);
	suite_add_tcase(s, t);
	return s;
}
