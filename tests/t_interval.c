/* The interval arithmetic that emitted classes of tiles are made of, compiled for the host: every operation on every pair
 * of small intervals. Run from the root of the repository. */
#include "gen/emit.h"
#include "tests/emitted.h"

Suite *suite(void);

static const struct {
	const char *call; /* of a, b, and c, a condition */
	enum expr_op op;
	bool positive; /* b */
	bool exact;    /* as narrow as can be */
} operations[] = {
	{"interval_neg(a)", EXPR_NEG, false, true},
	{"interval_abs(a)", EXPR_ABS, false, true},
	{"interval_add(a, b)", EXPR_ADD, false, true},
	{"interval_sub(a, b)", EXPR_SUB, false, true},
	{"interval_mul(a, b)", EXPR_MUL, false, true},
	{"interval_div(a, b)", EXPR_DIV, true, true},
	{"interval_mod(a, b)", EXPR_MOD, true, false},
	{"interval_min(a, b)", EXPR_MIN, false, true},
	{"interval_max(a, b)", EXPR_MAX, false, true},
	{"interval_lt(a, b)", EXPR_LT, false, true},
	{"interval_le(a, b)", EXPR_LE, false, true},
	{"interval_eq(a, b)", EXPR_EQ, false, true},
	{"interval_ne(a, b)", EXPR_NE, false, true},
	{"interval_not(interval_lt(a, b))", EXPR_LE, false, true}, /* b <= a */
	{"interval_select(interval_lt(a, b), a, b)", EXPR_MIN, false, false},
	{"interval_and(interval_le(a, b), interval_le(b, a))", EXPR_EQ, false, false},
	{"interval_or(interval_lt(a, b), interval_lt(b, a))", EXPR_NE, false, false},
};
enum { OPERATIONS = sizeof operations / sizeof *operations, REACH = 5 };

static int64_t operation_value(int i, int64_t a, int64_t b)
{
	struct expr_pool pool = {0};
	const struct expr_node n = {.op = operations[i].op, .type = TYPE_INT};
	const bool turned = strstr(operations[i].call, "not(") != NULL;
	const struct expr_value arg[EXPR_ARGS_MAX] = {{turned ? b : a, 0}, {turned ? a : b, 0}};
	struct expr_value r;
	ck_assert(expr_apply(&r, &pool, &n, arg));
	return r.i;
}

START_TEST(intervals)
{
	struct text source = {0};
	struct emitted_build build;
	bool used[HELPER_COUNT];
	for (int i = 0; i < HELPER_COUNT; i++)
		used[i] = i >= HELPER_RANDOM;
	text_puts(&source,
	          "#include <stdbool.h>\n#define DEVICE static inline\nstruct Interval { long long lo, hi; };\n");
	helpers_print(&source, used);
	text_puts(&source, "struct Interval apply(int i, struct Interval a, struct Interval b)\n{\n\tswitch (i) {\n");
	for (int i = 0; i < OPERATIONS; i++)
		text_addf(&source, "\tcase %d: return %s;\n", i, operations[i].call);
	text_puts(&source, "\tdefault: return a;\n\t}\n}\n");
	emitted_start(&build, &source);
	void *so = emitted_wait(&build), *symbol = dlsym(so, "apply");
	struct interval (*apply)(int, struct interval, struct interval);
	ck_assert_ptr_nonnull(symbol);
	memcpy(&apply, &symbol, sizeof apply);
	for (int i = 0; i < OPERATIONS; i++)
		for (int64_t lo = -REACH; lo <= REACH; lo++)
			for (int64_t hi = lo; hi <= REACH; hi++)
				for (int64_t least = operations[i].positive ? 1 : -REACH; least <= REACH; least++)
					for (int64_t most = least; most <= REACH; most++) {
						struct interval want = {INT64_MAX, INT64_MIN};
						const struct interval got = apply(i, (struct interval){lo, hi},
						                                  (struct interval){least, most});
						for (int64_t a = lo; a <= hi; a++)
							for (int64_t b = least; b <= most; b++) {
								const int64_t v = operation_value(i, a, b);
								want.lo = v < want.lo ? v : want.lo;
								want.hi = v > want.hi ? v : want.hi;
							}
						const bool good = operations[i].exact
						                          ? got.lo == want.lo && got.hi == want.hi
						                          : got.lo <= want.lo && got.hi >= want.hi;
						ck_assert_msg(good, "%s of %d..%d and %d..%d is %d..%d, not %d..%d",
						              operations[i].call, (int)lo, (int)hi, (int)least,
						              (int)most, (int)got.lo, (int)got.hi, (int)want.lo,
						              (int)want.hi);
					}
	dlclose(so);
	text_free(&source);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("interval");
	TCase *t = tcase_create("emitted");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, intervals);
	suite_add_tcase(s, t);
	return s;
}
