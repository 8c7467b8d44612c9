/* Expressions as mathematics: derivatives against finite differences, intervals against points, presets against their
 * meaning written out in C. */
#include <float.h>
#include <stdlib.h>

#include "tests/expr_help.h"

/* ---- derivatives ---- */

static double tree_real_at(const struct tree *tree, struct tree_point p, double s, bool *close)
{
	p.s = s;
	const double f = tree_at(tree, &p).f;
	*close = *close || p.close;
	return f;
}

/* Two one-sided differences that disagree: a kink or a step is near. */
START_TEST(random_derivatives)
{
	static struct grove g;
	const struct expr_scope scope = scope_of(PRESET_SCORE);
	int compared = 0, skipped = 0;
	for (uint64_t seed = 1; seed <= 4000; seed++) {
		g = (struct grove){.state = seed, .floats = true, .inputs = seed % 2, .score = true};
		const struct tree *tree = tree_float(&g, 4);
		struct text source = {0};
		struct expr_pool pool = {0};
		struct diag diag = {0};
		tree_text(&source, tree);
		const int root = expr_parse(&pool, text_str(&source), &scope, (struct place){0}, &diag);
		const int derived = root < 0 ? -1 : expr_derive(&pool, root, expr_variable(&pool, NAME_S));
		for (int i = 0; derived >= 0 && i < 10; i++) {
			struct tree_point p = random_point(&g, 8);
			const double h = 1e-5;
			bool close = false;
			const double here = tree_real_at(tree, p, p.s, &close),
				     left = tree_real_at(tree, p, p.s - h, &close),
				     right = tree_real_at(tree, p, p.s + h, &close);
			const double slope = (right - left) / (2 * h), bend = fabs(right - 2 * here + left) / h;
			if (close || bend > 1e-2 * (1 + fabs(slope)) || fabs(slope) > 1e4) {
				skipped++;
				continue;
			}
			const double got = eval_at(&pool, derived, &p).f;
			ck_assert_msg(fabs(got - slope) <= 1e-4 * (1 + fabs(slope)) + bend + 1e-9 * fabs(here) / h,
			              "%s at s = %g: %.9g, want %.9g", text_str(&source), p.s, got, slope);
			compared++;
		}
		text_free(&source);
		diag_free(&diag);
	}
	ck_assert_int_gt(compared, 20000);
	ck_assert_int_lt(skipped, compared / 3);
}
END_TEST

static const struct {
	const char *text, *at, *derivative;
} derivatives[] = {
	{"s", "s", "1.0"},
	{"s + q", "s", "1.0"},
	{"q * 2.0", "s", "0.0"},
	{"s * s", "s", "s + s"},
	{"s - slope[h] * abs(q - k)", "s", "1.0"},
	{"s - slope[h] * abs(q - k)", "slope[h]", "-float(abs(q - k))"},
	{"s + table[h, max(q - k, 0)]", "table[h, max(q - k, 0)]", "1.0"},
	{"20 * tanh(s / 20)", "s", "1.0 - tanh(s / 20.0) * tanh(s / 20.0)"},
	{"49 * tanh(s / 49)", "s", "1.0 - tanh(s / 49.0) * tanh(s / 49.0)"},
	{"floor(s) + s", "s", "1.0"},
	{"q < k ? s : 0", "s", "q < k ? 1.0 : 0.0"},
	{"abs(s)", "s", "0.0 < s ? 1.0 : s < 0.0 ? -1.0 : 0.0"},
	{"max(s, 3)", "s", "3.0 <= s ? 1.0 : 0.0"},
	{"exp(s)", "s", "exp(s)"},
	{"log(s)", "s", "1.0 / s"},
	{"sqrt(s)", "s", "0.5 / sqrt(s)"},
	{"sigmoid(s)", "s", "(1.0 - sigmoid(s)) * sigmoid(s)"},
	{"s / one", "one", "-(s / one) / one"},
};

START_TEST(derivative_text)
{
	struct expr_pool pool = {0};
	struct text out = {0};
	const int root = parse_score(&pool, derivatives[_i].text), at = parse_score(&pool, derivatives[_i].at);
	expr_print(&out, &pool, expr_derive(&pool, root, at), tree_inputs);
	ck_assert_msg(expr_derive(&pool, root, at) == parse_score(&pool, derivatives[_i].derivative), "%s",
	              text_str(&out));
	text_free(&out);
}
END_TEST

/* A full pool is said, wherever it happens. */
START_TEST(derivative_full)
{
	for (int room = 0; room < 16; room++) {
		struct expr_pool pool = {0};
		const int root = parse_score(&pool, "abs(tanh(s * slope[h]) / sqrt(s + exp(s)))");
		for (int64_t i = 0; pool.count < EXPR_NODES_MAX - room; i++)
			(void)expr_const_int(&pool, 1000 + i);
		ck_assert(expr_derive(&pool, root, expr_variable(&pool, NAME_S)) == -1);
	}
}
END_TEST

/* ---- intervals ---- */

static bool inside(const struct expr_node *n, const struct expr_range *r, struct expr_value v)
{
	if (n->type != TYPE_FLOAT)
		return r->i.lo <= v.i && v.i <= r->i.hi;
	return v.f != v.f ? r->f.nan : r->f.lo <= v.f && v.f <= r->f.hi;
}

/* As the device computes: every float result rounded to float32 and some last places off. */
static void eval_rounded(struct expr_value *v, const struct expr_pool *pool, int root, struct tree_point *p,
                         struct grove *g)
{
	for (int i = 0; i <= root; i++) {
		const struct expr_node *n = &pool->node[i];
		struct expr_value arg[EXPR_ARGS_MAX] = {{0, 0}};
		int64_t index[INPUT_DIMS_MAX] = {0};
		for (int j = 0; j < expr_args(n); j++) {
			arg[j] = v[n->arg[j]];
			index[j] = arg[j].i;
		}
		if (n->op == EXPR_CONST)
			v[i] = (struct expr_value){n->i, (float)n->f};
		else if (n->op == EXPR_NAME)
			v[i] = n->i == NAME_S ? (struct expr_value){0, (float)p->s}
			                      : (struct expr_value){p->name[n->i], 0};
		else if (n->op == EXPR_INPUT)
			v[i] = read_element(p, (int)n->i, index);
		else
			(void)expr_apply(&v[i], pool, n, arg);
		const bool approximate = n->op == EXPR_DIV || (n->op >= EXPR_EXP && n->op <= EXPR_SIGMOID);
		if (n->type == TYPE_FLOAT)
			v[i].f = (float)(v[i].f *
			                 (1 + (approximate ? (double)grove_random(g, 5) - 2 : 0) * FLT_EPSILON));
		if (n->op == EXPR_TANH || n->op == EXPR_SIGMOID)
			v[i].f = fmin(fmax(v[i].f, -1), 1);
	}
}

/* The values of every node at points of random boxes lie in its range. */
START_TEST(random_intervals)
{
	static struct grove g;
	const struct expr_scope scope = scope_of(PRESET_SCORE);
	int narrow = 0;
	for (uint64_t seed = 1; seed <= 4000; seed++) {
		g = (struct grove){.state = seed, .floats = true, .inputs = seed % 2, .score = seed % 4 > 1};
		const struct tree *tree = seed % 3 ? tree_bool(&g, 4) : tree_float(&g, 4);
		struct text source = {0};
		struct expr_pool pool = {0};
		struct diag diag = {0};
		tree_text(&source, tree);
		const int root = expr_parse(&pool, text_str(&source), &scope, (struct place){0}, &diag);
		for (int box = 0; root >= 0 && box < 4; box++) {
			struct expr_range range[EXPR_NODES_MAX];
			struct interval name[NAME_COUNT];
			bool used[EXPR_NODES_MAX] = {false};
			const uint64_t wide = box < 2 ? 4 : 60;
			memcpy(name, expr_everywhere, sizeof name);
			for (int j = 0; j < 6; j++) {
				name[j].lo = (j > 3) + (int64_t)grove_random(&g, 40);
				name[j].hi = name[j].lo + (int64_t)grove_random(&g, wide);
			}
			(void)expr_ranges(range, &pool, root, name, tree_inputs, NULL);
			expr_used(used, &pool, root);
			narrow += pool.node[root].type == TYPE_BOOL && range[root].i.lo == range[root].i.hi;
			for (int i = 0; i < 8; i++) {
				struct tree_point p = {
					.batch = 3, .heads = 5, .s = (double)grove_random(&g, 900) / 100 - 4};
				struct expr_value v[EXPR_NODES_MAX];
				for (int j = 0; j < 6; j++)
					p.name[j] = name[j].lo +
					            (int64_t)grove_random(&g, (uint64_t)(name[j].hi - name[j].lo + 1));
				eval_rounded(v, &pool, root, &p, &g);
				for (int j = 0; j <= root; j++) {
					struct text part = {0};
					if (used[j] && !inside(&pool.node[j], &range[j], v[j])) {
						expr_print(&part, &pool, j, tree_inputs);
						ck_abort_msg("%s = %lld, %.17g outside %lld..%lld, %.17g..%.17g",
						             text_str(&part), (long long)v[j].i, v[j].f,
						             (long long)range[j].i.lo, (long long)range[j].i.hi,
						             range[j].f.lo, range[j].f.hi);
					}
				}
			}
		}
		text_free(&source);
		diag_free(&diag);
	}
	ck_assert_int_gt(narrow, 1000);
}
END_TEST

static const struct {
	const char *text;
	int64_t lo, hi; /* while q is 10..20, k is 5..6, sq and sk are 100 */
} ranges[] = {
	{"q - k", 4, 15},
	{"k - q", -15, -4},
	{"abs(k - q)", 4, 15},
	{"abs(q - 12)", 0, 8},
	{"q * k", 50, 120},
	{"q * (k - 6)", -20, 0},
	{"q / 4", 2, 5},
	{"(k - q) / 4", -4, -1},
	{"q / max(k, 1)", 1, 4},
	{"(k - q) / max(k, 1)", -3, -1},
	{"q % 32", 10, 20},
	{"k % 4", 1, 2},
	{"q % 16", 0, 15},
	{"k % max(q, 1)", 5, 6},
	{"q % max(k, 1)", 0, 5},
	{"min(q, 15)", 10, 15},
	{"k < q", 1, 1},
	{"q < k", 0, 0},
	{"q <= 15", 0, 1},
	{"q == 30", 0, 0},
	{"q != 30 && k < 7", 1, 1},
	{"k == 1 || q < 12", 0, 1},
	{"k < q ? q : 1000", 10, 20},
	{"q < 12 ? 1 : 3", 1, 3},
	{"flag[h, q]", 0, 255},
	{"used[b]", INT32_MIN, INT32_MAX},
	{"random(1, q, k)", 0, 65535},
	{"random(1, sq, sk) == 0 ? 1 : 2", 2, 2},
	{"hq / hk", 1, 1 << 30},
	{"floor(s)", INT32_MIN, INT32_MAX},
	{"floor(tanh(s) * 3.5)", -4, 3},
	{"floor(q * 0.5)", 4, 10},
	{"floor(sqrt(q))", 3, 4},
	{"floor(exp(k - 6) * 10.5)", 3, 10},
	{"floor(sigmoid(one) + 5.5)", 0, 6},
	{"floor(min(tanh(one), 5.0))", -1, 5},
	{"floor(max(tanh(one), -5.0))", -5, 1},
	{"k % max(k * k - 20, 1)", 0, 6},
	{"q * 0.5 < 11", 1, 1},
	{"q * 0.5 < one", 0, 1},
	{"max(one, 2.0) < 1", 0, 0},
	{"one < 1 && q < 5", 0, 0},
	/* what a condition leaves of a branch */
	{"q < 15 ? q : 3", 3, 14},
	{"q <= 15 ? 3 : q - 10", 3, 10},
	{"15 <= q ? q : 17", 15, 20},
	{"q >= 15 ? 20 : 2 * q", 20, 28},
	{"q < k * 3 ? q : 0", 0, 17},
	{"q < 15 ? abs(q - 16) : 0", 0, 6},
	{"q < 13 ? min(q, 12) : q < 18 ? q : 0", 0, 17},
	{"q < 30 - q ? q : 0", 0, 19},
};

START_TEST(interval_table)
{
	struct expr_pool pool = {0};
	bool overflow = false;
	struct interval name[NAME_COUNT];
	memcpy(name, expr_everywhere, sizeof name);
	name[NAME_Q] = (struct interval){10, 20};
	name[NAME_K] = (struct interval){5, 6};
	name[NAME_SQ] = name[NAME_SK] = (struct interval){100, 100};
	const struct interval got =
		expr_interval(&pool, parse_score(&pool, ranges[_i].text), name, tree_inputs, NULL, &overflow);
	ck_assert_msg(got.lo == ranges[_i].lo && got.hi == ranges[_i].hi && !overflow, "%s: %lld..%lld",
	              ranges[_i].text, (long long)got.lo, (long long)got.hi);
}
END_TEST

START_TEST(interval_limits)
{
	struct expr_pool pool = {0};
	bool overflow = false;
	(void)expr_interval(&pool, parse_mask(&pool, "q * k * 8 < 5"), expr_everywhere, NULL, NULL, &overflow);
	ck_assert(!overflow);
	/* an unused neighbour does not count, a used one does */
	const int large = parse_mask(&pool, "q * k * 16 < 5");
	(void)expr_interval(&pool, parse_mask(&pool, "q < k"), expr_everywhere, NULL, NULL, &overflow);
	ck_assert(!overflow);
	(void)expr_interval(&pool, large, expr_everywhere, NULL, NULL, &overflow);
	ck_assert(overflow);
	/* what is known of an element */
	struct interval element[EXPR_NODES_MAX];
	const int doc = parse_mask(&pool, "doc[b, q]"), mask = parse_mask(&pool, "doc[b, q] == doc[b, k]");
	element[doc] = (struct interval){3, 5};
	element[parse_mask(&pool, "doc[b, k]")] = (struct interval){6, 9};
	overflow = false;
	ck_assert_int_eq(expr_interval(&pool, mask, expr_everywhere, tree_inputs, element, &overflow).hi, 0);
	/* floats */
	const struct float_interval cap =
		expr_float_interval(&pool, parse_score(&pool, "20 * tanh(s / 20)"), expr_everywhere, NULL, NULL);
	ck_assert(cap.lo >= -20.001 && cap.lo <= -20 && cap.hi >= 20 && cap.hi <= 20.001);
	const struct float_interval any =
		expr_float_interval(&pool, parse_score(&pool, "s * 2"), expr_everywhere, NULL, NULL);
	ck_assert(any.lo == -INFINITY && any.hi == INFINITY);
}
END_TEST

/* ---- presets ---- */

static int64_t argument[SPEC_ARGS_MAX];
static bool unbounded[SPEC_ARGS_MAX];

static bool in_window(int64_t before, int left)
{
	return (unbounded[left] || before <= argument[left]) && (unbounded[left + 1] || -before <= argument[left + 1]);
}

static int t5_bucket(int64_t before, bool causal)
{
	const int half = causal ? 32 : 16, exact = half / 2;
	const int64_t n = causal ? (before > 0 ? before : 0) : llabs(before);
	const int offset = !causal && before < 0 ? 16 : 0;
	if (n < exact)
		return offset + (int)n;
	/* a whole number of steps is reached exactly where the distance is a power of two: decided there without rounding */
	int bucket = exact + (int)floor(log((double)n / exact) / log(128.0 / exact) * exact + 1e-9);
	return offset + (bucket < half ? bucket : half - 1);
}

static double meaning(const char *name, const struct tree_point *p, int64_t element_q, int64_t element_k,
                      double element)
{
	const int64_t q = p->name[2], k = p->name[3], before = q - p->name[4] - (k - p->name[5]);
	if (!strcmp(name, "causal"))
		return before >= 0;
	if (!strcmp(name, "causal_top_left"))
		return k <= q;
	if (!strcmp(name, "window") || !strcmp(name, "local"))
		return in_window(before, 0);
	if (!strcmp(name, "prefix"))
		return k < argument[0] || before >= 0;
	if (!strcmp(name, "document"))
		return element_q == element_k;
	if (!strcmp(name, "padding"))
		return k < element_k;
	if (!strcmp(name, "dilated"))
		return before % argument[0] == 0 && in_window(before, 1);
	if (!strcmp(name, "softcap"))
		return (double)argument[0] * tanh(p->s / (double)argument[0]);
	if (!strcmp(name, "alibi"))
		return p->s - element * (double)llabs(before);
	if (!strcmp(name, "bias") || !strcmp(name, "t5") || !strcmp(name, "t5_causal"))
		return p->s + element;
	if (!strcmp(name, "global"))
		return q < argument[0] || k < argument[0];
	if (!strcmp(name, "strided"))
		return (k + 1) % argument[0] == 0;
	if (!strcmp(name, "random"))
		return (double)tree_random(argument[0] * 65537 + p->name[1], q, k) < (double)argument[1] * 65536;
	ck_abort_msg("preset %s has no meaning here", name);
	return 0;
}

struct preset_reader {
	const struct tree_point *p;
	const char *name;
};

static double element_of(const int64_t *index, int dims)
{
	double sum = 0;
	for (int j = 0; j < dims; j++)
		sum = sum * 3 + (double)index[j];
	return sum;
}

/* doc: segments of three keys. kv_len: 4 and a bit. Others: a number that tells the indexes apart. */
static struct expr_value read_preset(void *context, int input, const int64_t *index)
{
	const struct preset_reader *r = context;
	const struct preset *preset = &preset_table[preset_find(r->name)];
	ck_assert_int_eq(input, 0);
	if (!strcmp(r->name, "document"))
		return (struct expr_value){index[1] < 0 ? 0 : index[1] / 3, 0};
	if (!strcmp(r->name, "padding"))
		return (struct expr_value){4 + index[0], 0};
	return (struct expr_value){0, element_of(index, preset->input.dims)};
}

static double element_meant(const char *name, const struct tree_point *p)
{
	const int64_t before = p->name[2] - p->name[4] - (p->name[3] - p->name[5]);
	const int64_t index[4] = {p->name[0], p->name[1], p->name[2], p->name[3]};
	if (!strcmp(name, "alibi"))
		return (double)p->name[1];
	if (!strcmp(name, "bias"))
		return element_of(index, 4);
	if (!strncmp(name, "t5", 2)) {
		const int bucket = t5_bucket(before, name[2]);
		ck_assert(bucket >= 0 && bucket < 32);
		return element_of((const int64_t[]){p->name[1], bucket}, 2);
	}
	return 0;
}

START_TEST(preset_meanings)
{
	static struct grove g = {.state = 11};
	const struct preset *preset = &preset_table[_i];
	/* expr_preset needs no scope of the preset's kind */
	const struct expr_scope scope = {
		.kind = PRESET_MASK, .input = &preset->input, .inputs = *preset->input.name != 0, .s = -1};
	for (int round = 0; round < 40; round++) {
		struct expr_pool pool = {0};
		struct diag diag = {0};
		int arg[SPEC_ARGS_MAX] = {-1, -1, -1}, params = 0;
		for (; params < SPEC_ARGS_MAX && preset->param[params].name; params++) {
			const char *fallback = preset->param[params].fallback;
			argument[params] = (int64_t)grove_random(&g, 2 + 4 * (uint64_t)(round % 3)) + 1;
			if (preset->param[params].real && preset->kind == PRESET_BLOCKS)
				argument[params] = (int64_t)grove_random(&g, 2);
			unbounded[params] = fallback && grove_random(&g, 3) == 0;
			if (!unbounded[params])
				arg[params] = expr_const_int(&pool, argument[params]);
		}
		const int root = expr_preset(&pool, _i, arg, params, &scope, (struct place){0}, &diag);
		ck_assert_msg(root >= 0, "%s: %s", preset->name, text_str(&diag.text));
		ck_assert_int_eq(pool.node[root].type, preset->kind == PRESET_SCORE ? TYPE_FLOAT : TYPE_BOOL);
		for (int i = 0; i < 200; i++) {
			const struct tree_point p = random_point(&g, round % 2 ? 12 : 400);
			const int64_t name[NAME_COUNT] = {p.name[0], p.name[1], p.name[2], p.name[3],
			                                  p.name[4], p.name[5], 8,         8};
			struct preset_reader reader = {&p, preset->name};
			const struct expr_value got = expr_eval(&pool, root, name, p.s, read_preset, &reader);
			const int64_t aligned = p.name[2] - p.name[4] + p.name[5];
			const int64_t doc_q = aligned < 0 ? 0 : aligned / 3;
			const bool padding = !strcmp(preset->name, "padding");
			const double want = meaning(preset->name, &p, doc_q, padding ? 4 + p.name[0] : p.name[3] / 3,
			                            element_meant(preset->name, &p));
			const double value = pool.node[root].type == TYPE_FLOAT ? got.f : (double)got.i;
			ck_assert_msg(fabs(value - want) < 1e-9, "%s at q %lld of %lld, k %lld of %lld: %g, want %g",
			              preset->name, (long long)p.name[2], (long long)p.name[4], (long long)p.name[3],
			              (long long)p.name[5], value, want);
		}
		diag_free(&diag);
	}
}
END_TEST

/* In text a preset is what it is in a spec; fallbacks fill in, arguments may be expressions. */
START_TEST(preset_text)
{
	static const char *const same[][2] = {
		{"causal", "k - sk <= q - sq"},
		{"causal || k < 4", "prefix(4)"},
		{"window", "true"},
		{"window(5)", "(q - sq) - (k - sk) <= 5"},
		{"window(unbounded, 0)", "(k - sk) - (q - sq) <= 0"},
		{"window(4 * 2, 3)", "(q - sq) - (k - sk) <= 8 && (k - sk) - (q - sq) <= 3"},
		{"window(used[b], h)", "(q - sq) - (k - sk) <= used[b] && (k - sk) - (q - sq) <= h"},
		{"!window(5)", "5 < (q - sq) - (k - sk)"},
		{"dilated(3)", "((q - sq) - (k - sk)) % 3 == 0"},
		{"dilated(3, 9, 0)", "dilated(3) && window(9, 0)"},
		{"causal ? q < 3 : window(2)", "k - sk <= q - sq ? q < 3 : (q - sq) - (k - sk) <= 2"},
	};
	for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
		struct expr_pool pool = {0};
		ck_assert_msg(parse_mask(&pool, same[i][0]) == parse_mask(&pool, same[i][1]), "%s", same[i][0]);
	}
	struct expr_pool pool = {0};
	struct expr_scope scope = scope_of(PRESET_SCORE);
	scope.s = parse_score(&pool, "s - slope[h]");
	ck_assert_int_eq(parse_in(&pool, "softcap(5) + s", &scope),
	                 parse_score(&pool, "5 * tanh((s - slope[h]) / 5) + (s - slope[h])"));
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("expr_values");
	TCase *t = tcase_create("expr_values");
	tcase_set_timeout(t, 60);
	tcase_add_test(t, random_derivatives);
	tcase_add_loop_test(t, derivative_text, 0, sizeof derivatives / sizeof *derivatives);
	tcase_add_test(t, derivative_full);
	tcase_add_test(t, random_intervals);
	tcase_add_loop_test(t, interval_table, 0, sizeof ranges / sizeof *ranges);
	tcase_add_test(t, interval_limits);
	tcase_add_loop_test(t, preset_meanings, 0, preset_count);
	tcase_add_test(t, preset_text);
	suite_add_tcase(s, t);
	return s;
}
