/* Expressions as text: values against an independent evaluator, canonical text, folding, and errors with their caret. */
#include <float.h>
#include <stdlib.h>

#include "tests/expr_help.h"

/* ---- random trees ---- */

static const struct tree *random_tree(struct grove *g, uint64_t seed)
{
	*g = (struct grove){.state = seed, .floats = seed % 4 > 1, .inputs = seed % 8 > 3, .score = seed % 16 > 7};
	g->score = g->score && g->floats;
	return seed % 3 == 0 ? tree_int(g, 5) : seed % 3 == 1 || !g->floats ? tree_bool(g, 5) : tree_float(g, 5);
}

static void values_agree(const struct expr_pool *pool, int root, const struct tree *tree, struct grove *g)
{
	for (int i = 0; i < 20; i++) {
		struct tree_point p = random_point(g, i < 10 ? 6 : 100);
		const struct tree_result want = tree_at(tree, &p);
		const struct expr_value got = eval_at(pool, root, &p);
		if (tree->type == 'f' ? got.f != want.f : got.i != (int64_t)want.i) {
			struct text source = {0};
			tree_text(&source, tree);
			ck_abort_msg("%s: %lld %g, want %lld %g", text_str(&source), (long long)got.i, got.f,
			             (long long)want.i, want.f);
		}
	}
}

/* The text parses to the same node, and in an empty pool prints the same. */
static void text_agrees(struct expr_pool *pool, int root, const struct expr_scope *scope)
{
	struct text printed = {0}, again = {0};
	struct expr_pool fresh = {0}, copy = {0};
	expr_print(&printed, pool, root, tree_inputs);
	ck_assert_msg(parse_in(pool, text_str(&printed), scope) == root, "%s is another node", text_str(&printed));
	expr_print(&again, &fresh, parse_in(&fresh, text_str(&printed), scope), tree_inputs);
	ck_assert_str_eq(text_str(&printed), text_str(&again));
	text_free(&again);
	expr_print(&again, &copy, expr_copy(&copy, pool, root), tree_inputs);
	ck_assert_str_eq(text_str(&printed), text_str(&again));
	text_free(&printed);
	text_free(&again);
}

START_TEST(random_trees)
{
	static struct grove g;
	const struct expr_scope scope = scope_of(PRESET_SCORE);
	int large = 0;
	for (uint64_t seed = 1; seed <= 10000; seed++) {
		struct text source = {0};
		struct expr_pool pool = {0};
		struct diag diag = {0};
		const struct tree *tree = random_tree(&g, seed);
		tree_text(&source, tree);
		const int root = expr_parse(&pool, text_str(&source), &scope, (struct place){0}, &diag);
		if (root < 0) {
			ck_assert_msg(strstr(text_str(&diag.text), "too large") != NULL, "%s: %s", text_str(&source),
			              text_str(&diag.text));
			large++;
		} else {
			const enum expr_type type = pool.node[root].type;
			ck_assert_int_eq(tree->type, type == TYPE_BOOL ? 'b' : type == TYPE_INT ? 'i' : 'f');
			values_agree(&pool, root, tree, &g);
			text_agrees(&pool, root, &scope);
		}
		text_free(&source);
		diag_free(&diag);
	}
	ck_assert_int_lt(large, 1000);
}
END_TEST

/* ---- canonical text ---- */

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
	{"q % max(1, k)", "q % max(k, 1)"},
	{"h / (hq / hk)", "h / (hq / hk)"},
	{"q / sk", "q / sk"},
	{"random(1, q, k + 0)", "random(1, q, k)"},
	{"random(7, 8, 9) == random(7, 8, 9)", "true"},
	/* floats: what NaN and infinity would break stays */
	{"s * s + s", "s + s * s"},
	{"s * 1", "s"},
	{"1.0 * s + 0", "s"},
	{"s - 0.0", "s"},
	{"0 - s", "-s"},
	{"s / 1", "s"},
	{"s - s", "s - s"},
	{"s * 0", "s * 0.0"},
	{"s == s", "s == s"},
	{"s <= s", "s <= s"},
	{"s < s", "false"},
	{"!(s < 1)", "!(s < 1.0)"},
	{"!(s == 1)", "s != 1.0"},
	{"!(s < 1) ? 2 : 3", "s < 1.0 ? 3 : 2"},
	{"min(s, s)", "s"},
	{"abs(-s)", "abs(s)"},
	{"1 / 4 + 1 / 4.0", "0.25"},
	{"sqrt(16) * 0.1", "0.4"},
	{"sqrt(-1)", "sqrt(-1.0)"},
	{"exp(100)", "exp(100.0)"},
	{"tanh(0) + sigmoid(0)", "0.5"},
	{"-0.0", "0.0"},
	{"floor(2.5) + floor(-2.5)", "-1"},
	{"floor(q)", "q"},
	{"floor(1e30)", "2147483647"},
	{"1e3", "1000.0"},
	{"1e-3", "0.001"},
	{"2.5e+10", "25000000000.0"},
	{"0.1 + 0.2", "0.30000000000000004"},
	{"20 * tanh(s / 20)", "tanh(s / 20.0) * 20.0"},
	/* where an int became a float of itself, and where not */
	{"s + q", "s + q"},
	{"s - (q - k)", "s - (q - k)"},
	{"float(q) * k", "float(q) * k"},
	{"(q + 0.0) * (k + 0.0)", "float(q) * k"},
	{"q * k * 2.0", "q * k * 2.0"},
	{"float(q - k) - s", "q - k - s"},
	{"floor(q + 0.0)", "floor(float(q))"},
	{"-float(q)", "-float(q)"},
	{"abs(float(q)) + s", "s + abs(float(q))"},
	{"exp(float(q))", "exp(q)"},
	{"float(s)", "s"},
	{"float(3)", "3.0"},
	{"q < 1 ? q : s", "q < 1 ? q : s"},
	{"q < 1 ? float(q) : float(k)", "q < 1 ? float(q) : k"},
	{"q < 0.5", "q < 0.5"},
	{"float(q) == float(k)", "float(q) == k"},
	{"max(q, s)", "max(s, q)"},
	/* inputs */
	{"doc[b, k] == doc[b, q - sq + sk]", "doc[b, k] == doc[b, q - sq + sk]"},
	{"slope[h] * 2 + one", "one + slope[h] * 2.0"},
	{"used[b] * 2 + flag[h, q]", "flag[h, q] + used[b] * 2"},
	{"used[b] + slope[h]", "slope[h] + used[b]"},
	/* presets */
	{"softcap(20)", "tanh(s / 20.0) * 20.0"},
	{"softcap(10 * 2.0)", "tanh(s / 20.0) * 20.0"},
};

static const struct expr_scope *scope_bound(struct expr_pool *pool)
{
	static struct expr_binding bound[2];
	static struct expr_scope scope;
	bound[0] = (struct expr_binding){"left", expr_const_int(pool, 7)};
	bound[1] = (struct expr_binding){"inf", expr_const_int(pool, INT64_MAX)};
	scope = scope_of(PRESET_SCORE);
	scope.binding = bound;
	scope.bindings = 2;
	return &scope;
}

START_TEST(folding)
{
	struct expr_pool pool = {0};
	struct text out = {0};
	const struct expr_scope *scope = scope_bound(&pool);
	const int root = parse_in(&pool, folds[_i].text, scope);
	expr_print(&out, &pool, root, tree_inputs);
	ck_assert_str_eq(text_str(&out), folds[_i].canonical);
	text_agrees(&pool, root, scope);
	text_free(&out);
}
END_TEST

/* Every double that float32 has room for prints so that it reads back. */
START_TEST(float_text)
{
	struct grove g = {.state = 5};
	for (int i = 0; i < 20000; i++) {
		const uint64_t bits = grove_random(&g, UINT64_C(1) << 31) << 33 ^ grove_random(&g, UINT64_C(1) << 31)
		                                                                          << 10;
		double value;
		memcpy(&value, &bits, sizeof value);
		if (!(fabs(value) <= FLT_MAX))
			continue;
		struct expr_pool pool = {0};
		const int node = expr_const_float(&pool, value);
		text_agrees(&pool, node, &(struct expr_scope){.kind = PRESET_MASK});
	}
	struct expr_pool pool = {0};
	ck_assert_int_eq(expr_const_float(&pool, INFINITY), -1);
	ck_assert_int_eq(expr_const_float(&pool, NAN), -1);
	ck_assert_int_eq(expr_const_float(&pool, 1e39), -1);
}
END_TEST

/* ---- errors ---- */

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
	{"q = k", 3, "'=' has no meaning in an expression: did you mean '=='?"},
	{"q < k & true", 7, "'&' has no meaning in an expression: did you mean '&&'?"},
	{"q < k and true", 7, "'and' where an operator should stand: did you mean '&&'?"},
	{"q \xc3\xa9", 3, "byte 0xc3 has no meaning in an expression"},
	{"leff + q", 1, "unknown name 'leff': did you mean 'left'?"},
	{"q + slop[h]", 5, "unknown name 'slop': did you mean 'slope'?"},
	{"1 + tan(s)", 5, "unknown name 'tan': did you mean 'tanh'?"},
	{"sofcap(3)", 1, "unknown name 'sofcap': did you mean 'softcap'?"},
	{"qqqqqqqqqq", 1,
         "unknown name 'qqqqqqqqqq': there are b h q k sq sk hq hk s left inf; functions abs min max float floor exp log "
         "tanh sqrt sigmoid random; inputs doc used flag one slope table cell; presets softcap alibi bias t5 t5_causal"},
	{"q + 0128", 5,
         "'0128' is not a number here: write decimal digits without a leading zero, as in 12, 0.5 or 1e-3"},
	{"q < 0x10", 5,
         "'0x10' is not a number here: write decimal digits without a leading zero, as in 12, 0.5 or 1e-3"},
	{"q < .5", 5, "'.5' is not a number here: write decimal digits without a leading zero, as in 12, 0.5 or 1e-3"},
	{"5. < q", 1, "'5.' is not a number here: write decimal digits without a leading zero, as in 12, 0.5 or 1e-3"},
	{"s * 1e", 5, "'1e' is not a number here: write decimal digits without a leading zero, as in 12, 0.5 or 1e-3"},
	{"s * 1.5.2", 5,
         "'1.5.2' is not a number here: write decimal digits without a leading zero, as in 12, 0.5 or 1e-3"},
	{"s * 1e39", 5, "1e39 does not fit: real numbers go up to 3.4e38"},
	{"9223372036854775808", 1, "9223372036854775808 does not fit: whole numbers go up to 9223372036854775807"},
	{"q < 99999999999999999999999", 5,
         "99999999999999999999999 does not fit: whole numbers go up to 9223372036854775807"},
	{"q / k", 3,
         "the right side of '/' must be at least 1 at every position, but may be 0: max(1, ...) makes it so"},
	{"q % 0", 3, "the right side of '%' must be at least 1 at every position, but is 0"},
	{"q / -2", 3, "the right side of '/' must be at least 1 at every position, but is -2"},
	{"q % used[b]", 3,
         "the right side of '%' must be at least 1 at every position, but may be -2147483648: max(1, ...) makes it so"},
	{"q / (sk * sk * sk)", 3, "the right side of '/' must be at least 1 at every position, but may leave 64 bits"},
	{"s / 0", 3, "the right side of '/' is zero"},
	{"s % 2", 3, "'%' works on whole numbers, but got a real number and a whole number"},
	{"q < k < 3", 7,
         "'<' works on numbers, but got a condition and a whole number: a range is written a < b && b < c"},
	{"q && k", 3, "'&&' works on conditions, but got a whole number and a whole number"},
	{"!q", 1, "'!' works on conditions, but got a whole number"},
	{"-(q < k)", 1, "'-' works on numbers, but got a condition"},
	{"exp(q < k)", 1, "'exp' works on numbers, but got a condition"},
	{"q + (k < 1)", 3, "'+' works on numbers, but got a whole number and a condition"},
	{"(s < 3) == q", 9, "'==' works on two numbers or two conditions, but got a condition and a whole number"},
	{"random(s, q, k)", 1,
         "'random' works on whole numbers, but got a real number, a whole number and a whole number"},
	{"q ? 1 : 2", 3,
         "'?' chooses by a condition between two numbers or two conditions, but got a whole number ? a whole number : a "
         "whole number"},
	{"min(q)", 6, "1 of 2 values: write min(x, y)"},
	{"abs()", 5, "0 of 1 values: write abs(x)"},
	{"abs(q, k)", 6, "more than 1 value: write abs(x)"},
	{"random(q, k)", 12, "2 of 3 values: write random(seed, x, y)"},
	{"2 * tanh", 5, "'tanh' is a function: write tanh(x)"},
	{"q < 1 ? 2", 10, "the expression ends here, but ':' is missing"},
	{"doc[b]", 6, "1 of 2 values: write doc[batch, seq_k]"},
	{"table[h, q, k]", 11, "more than 2 values: write table[heads, 0..12]"},
	{"q + slope", 5, "input 'slope' has an index for each dimension: write slope[heads]"},
	{"one[q]", 4, "input 'one' is one value and has no index"},
	{"slope[s]", 1, "index 1 of 'slope' must be a whole number, but is a real number: floor() makes one"},
	{"causal && q < k", 1, "'causal' is a mask and has no meaning in a score"},
	{"s + bias", 5, "in preset 'bias': it reads an input 'bias', which is not declared"},
	{"softcap", 1, "'softcap' needs a value for 'cap': scores stay between -cap and cap"},
	{"1 + softcap(0)", 5, "'cap' of 'softcap' must be from 1e-30 to 1e+30, but is 0"},
	{"softcap(2 - 5)", 1, "'cap' of 'softcap' must be from 1e-30 to 1e+30, but is -3"},
	{"softcap(q < k)", 1, "'cap' of 'softcap' is a real number, but got a condition"},
	{"softcap(1, 2)", 10, "'softcap' has 1 parameter"},
	{"softcap()", 9, "')' where a value should stand"},
	{"q + unbounded", 5, "'unbounded' stands only for an argument of a preset"},
};

static void error_is(struct expr_pool *pool, const char *text, const struct expr_scope *scope, int column,
                     const char *message)
{
	struct diag diag = {.file = "test"};
	char start[512];
	text_puts(&diag.source, text);
	ck_assert_msg(expr_parse(pool, text, scope, (struct place){1, 1}, &diag) == -1, "%s", text);
	snprintf(start, sizeof start, "test:1:%d: error: %s\n", column, message);
	ck_assert_msg(strncmp(text_str(&diag.text), start, strlen(start)) == 0, "got %s\nwant %s", text_str(&diag.text),
	              start);
	ck_assert_int_eq(diag.errors, 1);
	diag_free(&diag);
}

START_TEST(errors)
{
	struct expr_pool pool = {0};
	error_is(&pool, bad[_i].text, scope_bound(&pool), bad[_i].column, bad[_i].message);
}
END_TEST

START_TEST(errors_in_masks)
{
	struct expr_pool pool = {0};
	const struct expr_scope mask = scope_of(PRESET_MASK), blocks = scope_of(PRESET_BLOCKS);
	error_is(&pool, "k <= q && s < 1", &mask, 11, "'s' is known in scores only");
	error_is(&pool, "causal || window(1.5)", &mask, 11,
	         "'left' of 'window' is a whole number, but got a real number");
	error_is(&pool, "causal || causl", &mask, 11, "unknown name 'causl': did you mean 'causal'?");
	error_is(&pool, "causal(3)", &mask, 7, "'causal' has no parameters");
	error_is(&pool, "window(1, 2, 3)", &mask, 12, "'window' has 2 parameters");
	error_is(&pool, "prefix", &mask, 1, "'prefix' needs a value for 'n': keys that every query sees");
	error_is(&pool, "k < 3 || dilated(0)", &mask, 10, "'step' of 'dilated' must be from 1 to 2147483647, but is 0");
	error_is(
		&pool, "dilated(k)", &mask, 1,
		"in preset 'dilated': the right side of '%' must be at least 1 at every position, but may be 0: max(1, ...) "
		"makes it so");
	error_is(&pool, "prefix(unbounded)", &mask, 1,
	         "'n' of 'prefix' must be from 0 to 2147483647, but is unbounded");
	error_is(&pool, "window(-8, 3)", &mask, 1, "'left' of 'window' must be from 0 to 2147483647, but is -8");
	error_is(&pool, "window(unbounded + 1)", &mask, 18, "'+' where ')' should stand");
	error_is(&pool, "softcap(3) < 2", &mask, 1, "'softcap' is a score and has no meaning in a mask");
	error_is(&pool, "padding", &mask, 1, "in preset 'padding': it reads an input 'kv_len', which is not declared");
	error_is(&pool, "causal", &blocks, 1, "'causal' is a mask and has no meaning in a block layout");
	error_is(&pool, "random(7, 0.5)", &blocks, 14, "2 of 3 values: write random(seed, x, y)");
}
END_TEST

/* ---- limits ---- */

/* What is too deep or too large is refused, whatever its size. */
static void refused(const char *open, int times, const char *rest, const char *message)
{
	struct expr_pool pool = {0};
	struct diag diag = {.file = "test"};
	struct text text = {0};
	const struct expr_scope scope = scope_of(PRESET_SCORE);
	for (int i = 0; i < times; i++)
		text_addf(&text, open, i);
	text_puts(&text, rest);
	ck_assert_int_eq(expr_parse(&pool, text_str(&text), &scope, (struct place){1, 1}, &diag), -1);
	ck_assert_msg(strstr(text_str(&diag.text), message) != NULL, "%s: %s", open, text_str(&diag.text));
	text_free(&text);
	diag_free(&diag);
}

START_TEST(limits)
{
	refused("(", 100000, "q", "nested deeper than 64 levels");
	refused("-", 100000, "q", "nested deeper than 64 levels");
	refused("!", 100000, "q", "nested deeper than 64 levels");
	refused("min(q,", 100000, "q", "nested deeper than 64 levels");
	refused("doc[b,", 100000, "q", "nested deeper than 64 levels");
	refused("softcap(", 100000, "q", "nested deeper than 64 levels");
	refused("q < %d ? 1 : ", 100000, "q", "nested deeper than 64 levels");
	refused("q * %d + ", 1000, "q", "more than 256 parts");
	refused("q * %d + ", 100, "q", "more than 256 parts");
	struct expr_pool sums = {0};
	struct text sum = {0};
	text_puts(&sum, "one");
	for (int i = 1; i < 60; i++)
		text_addf(&sum, i % 2 ? " - slope[%d]" : " + slope[%d] * s", i);
	const struct expr_scope scope = scope_of(PRESET_SCORE);
	text_agrees(&sums, parse_score(&sums, text_str(&sum)), &scope);
	text_free(&sum);
	refused("0 * q + ", 10000, ") ", "')' where a value should stand");
	struct text text = {0};
	struct expr_pool pool = {0};
	for (int i = 0; i < 10000; i++)
		text_puts(&text, "0 * q + ");
	text_puts(&text, "k");
	ck_assert_int_eq(parse_score(&pool, text_str(&text)), expr_variable(&pool, NAME_K));
	text_free(&text);
}
END_TEST

/* Scores applied to scores share their parts: the tree grows without the pool growing. */
START_TEST(chains)
{
	struct expr_pool pool = {0};
	struct expr_scope scope = scope_of(PRESET_SCORE);
	struct diag diag = {0};
	int links = 0, node = -1;
	for (; links < 64; links++) {
		scope.s = node;
		const int next = expr_parse(&pool, "s * tanh(s)", &scope, (struct place){0}, &diag);
		if (next < 0)
			break;
		node = next;
	}
	ck_assert_int_eq(links, 11);
	ck_assert_ptr_nonnull(strstr(text_str(&diag.text), "written out it has more than 8192 parts"));
	for (links = 0; links < 60; links++)
		node = expr_make(&pool, EXPR_MUL, node, expr_make(&pool, EXPR_TANH, node, -1, -1), -1);
	ck_assert_int_gt(node, 0);
	struct text out = {0};
	expr_print(&out, &pool, node, NULL);
	ck_assert_str_eq(text_str(&out), "...");
	ck_assert_int_eq(expr_tree_size(&pool, node), INT64_MAX);
	text_free(&out);
	diag_free(&diag);
}
END_TEST

/* ---- nodes ---- */

START_TEST(types_and_pool)
{
	struct expr_pool pool = {0};
	const int q = expr_variable(&pool, NAME_Q), s = expr_variable(&pool, NAME_S),
		  yes = expr_const_bool(&pool, true), zero = expr_const_float(&pool, 0);
	ck_assert_int_eq(expr_variable(&pool, NAME_Q), q);
	ck_assert_int_eq(expr_const_float(&pool, -0.0), zero);
	ck_assert_int_ne(expr_const_int(&pool, 0), zero);
	ck_assert(!expr_is_const(&pool, zero, 0) && expr_is_float(&pool, zero, 0));
	const int sum = expr_make(&pool, EXPR_ADD, q, s, -1);
	ck_assert_int_eq(pool.node[sum].type, TYPE_FLOAT);
	ck_assert_int_eq(sum, expr_make(&pool, EXPR_ADD, s, expr_make(&pool, EXPR_FLOAT, q, -1, -1), -1));
	ck_assert_int_eq(expr_make(&pool, EXPR_ADD, q, yes, -1), -1);
	ck_assert_int_eq(expr_make(&pool, EXPR_ADD, q, -1, -1), -1);
	ck_assert_int_eq(expr_make(&pool, EXPR_ADD, q, 250, -1), -1);
	ck_assert_int_eq(expr_make(&pool, EXPR_AND, q, yes, -1), -1);
	ck_assert_int_eq(expr_make(&pool, EXPR_SELECT, yes, q, yes), -1);
	ck_assert_int_eq(expr_make(&pool, EXPR_CONST, q, q, q), -1);
	ck_assert_int_eq(expr_make(&pool, EXPR_INPUT, q, q, q), -1);
	ck_assert_int_eq(expr_make(&pool, EXPR_DIV, q, expr_const_int(&pool, -2), -1), -1);
	ck_assert_int_eq(expr_make(&pool, EXPR_DIV, s, zero, -1), -1);
	ck_assert_int_eq(expr_input(&pool, 0, TYPE_INT, (const int[]){q, s}, 2), -1);
	ck_assert_int_eq(expr_input(&pool, 0, TYPE_BOOL, &q, 1), -1);
	ck_assert_int_eq(expr_args(&pool.node[expr_input(&pool, 0, TYPE_INT, (const int[]){q, q, q, q}, 4)]), 4);
	ck_assert_int_ge(expr_make(&pool, EXPR_MUL, s, s, -1), 0);
	for (int64_t i = 0; pool.count < EXPR_NODES_MAX; i++)
		ck_assert_int_ge(expr_const_int(&pool, 1000 + i), 0);
	ck_assert_int_eq(expr_const_int(&pool, 1), -1);
	ck_assert_int_eq(expr_make(&pool, EXPR_TANH, s, -1, -1), -1);
	ck_assert_int_eq(expr_variable(&pool, NAME_Q), q);
}
END_TEST

START_TEST(walks)
{
	struct expr_pool pool = {0};
	bool used[EXPR_NODES_MAX] = {false};
	(void)parse_score(&pool, "cell[b, h, q, sk]");
	const int root = parse_score(&pool, "s * slope[h] + slope[h] * abs(q - k)");
	const int slope = parse_score(&pool, "slope[h]"),
		  want = parse_score(&pool, "s * (q + one) + (q + one) * abs(q - k)");
	expr_used(used, &pool, root);
	ck_assert(used[slope] && used[expr_variable(&pool, NAME_H)] && !used[expr_variable(&pool, NAME_SK)]);
	ck_assert_int_eq(expr_substitute(&pool, root, slope, parse_score(&pool, "one + q")), want);
	ck_assert_int_eq(expr_substitute(&pool, root, slope, expr_variable(&pool, NAME_Q)), -1);
	ck_assert_int_eq(expr_substitute(&pool, root, expr_variable(&pool, NAME_SK), expr_variable(&pool, NAME_Q)),
	                 root);
	ck_assert_int_eq(expr_substitute(&pool, parse_score(&pool, "q < k ? q - k : 7"), expr_variable(&pool, NAME_K),
	                                 expr_variable(&pool, NAME_Q)),
	                 expr_const_int(&pool, 7));
	ck_assert_int_eq(expr_tree_size(&pool, root), 13);
}
END_TEST

START_TEST(words)
{
	bool used[64] = {false};
	ck_assert_int_le(preset_count, 64);
	expr_presets(used, "k < 4 || prefix(3) && !causal_top_left(random(1, q, k))");
	for (int i = 0; i < preset_count; i++) {
		const char *name = preset_table[i].name;
		ck_assert_msg(used[i] == (!strcmp(name, "prefix") || !strcmp(name, "causal") ||
		                          !strcmp(name, "causal_top_left")),
		              "%s", name);
		ck_assert_int_eq(preset_find(name), i);
		ck_assert(!strcmp(name, "bias") == !expr_reserved(name));
	}
	ck_assert_int_eq(preset_find("causa"), -1);
	ck_assert_str_eq(expr_reserved("sq"), "a built-in name");
	ck_assert_str_eq(expr_reserved("tanh"), "a function");
	ck_assert_str_eq(expr_reserved("true"), "a word of the language");
	ck_assert_str_eq(expr_reserved("window"), "a preset");
	ck_assert_ptr_null(expr_reserved("windows"));
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
	tcase_add_test(t, float_text);
	tcase_add_loop_test(t, errors, 0, sizeof bad / sizeof *bad);
	tcase_add_test(t, errors_in_masks);
	tcase_add_test(t, limits);
	tcase_add_test(t, chains);
	tcase_add_test(t, types_and_pool);
	tcase_add_test(t, walks);
	tcase_add_test(t, words);
	suite_add_tcase(s, t);
	return s;
}
