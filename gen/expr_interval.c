/* expr_interval: all values that an expression can take while its names and the elements it reads stay in intervals. */
#include "gen/expr.h"

#include <float.h>
#include <math.h>
#include <string.h>

__extension__ typedef __int128 wide;

#define POSITION                       \
	{                              \
		0, LENGTH_MAX - 1 \
	}
#define LENGTH                     \
	{                          \
		1, LENGTH_MAX \
	}
const struct interval expr_everywhere[NAME_COUNT] = {
	[NAME_B] = POSITION, [NAME_H] = POSITION, [NAME_Q] = POSITION, [NAME_K] = POSITION,
	[NAME_SQ] = LENGTH,  [NAME_SK] = LENGTH,  [NAME_HQ] = LENGTH,  [NAME_HK] = LENGTH,
};

static const struct interval everything = {INT64_MIN, INT64_MAX}, undecided = {0, 1};
static const struct float_interval any_float = {-INFINITY, INFINITY, true};

/* ---- ints and bools ---- */

static struct interval interval_wide(wide lo, wide hi, bool *overflow)
{
	if (lo < INT64_MIN || hi > INT64_MAX) {
		*overflow = true;
		return everything;
	}
	return (struct interval){(int64_t)lo, (int64_t)hi};
}

static int64_t min2(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max2(int64_t a, int64_t b) { return a > b ? a : b; }
static struct interval hull(struct interval a, struct interval b)
{
	return (struct interval){min2(a.lo, b.lo), max2(a.hi, b.hi)};
}
static bool is_point(struct interval a) { return a.lo == a.hi; }

static struct interval interval_mul(struct interval a, struct interval b, bool *overflow)
{
	const wide p[4] = {(wide)a.lo * b.lo, (wide)a.lo * b.hi, (wide)a.hi * b.lo, (wide)a.hi * b.hi};
	wide lo = p[0], hi = p[0];
	for (int i = 1; i < 4; i++) {
		lo = p[i] < lo ? p[i] : lo;
		hi = p[i] > hi ? p[i] : hi;
	}
	return interval_wide(lo, hi, overflow);
}

/* A divisor is at least 1 everywhere, so what lies below is no value of it. */
static struct interval divisor(struct interval b) { return (struct interval){max2(b.lo, 1), max2(b.hi, 1)}; }

static struct interval interval_div(struct interval a, struct interval b)
{
	return (struct interval){floor_div(a.lo, a.lo < 0 ? b.lo : b.hi), floor_div(a.hi, a.hi < 0 ? b.hi : b.lo)};
}

static struct interval interval_mod(struct interval a, struct interval b)
{
	if (is_point(b) && floor_div(a.lo, b.lo) == floor_div(a.hi, b.lo))
		return (struct interval){floor_mod(a.lo, b.lo), floor_mod(a.hi, b.lo)};
	if (a.lo >= 0 && a.hi < b.lo)
		return a;
	return (struct interval){0, a.lo >= 0 ? min2(a.hi, b.hi - 1) : b.hi - 1};
}

static struct interval interval_apply(enum expr_op op, struct interval a, struct interval b, struct interval c,
                                      bool *overflow)
{
	const bool apart = a.hi < b.lo || b.hi < a.lo, same = is_point(a) && is_point(b) && a.lo == b.lo;
	switch (op) {
	case EXPR_NEG: return interval_wide(-(wide)a.hi, -(wide)a.lo, overflow);
	case EXPR_ABS:
		if (a.lo >= 0)
			return a;
		return interval_wide(a.hi < 0 ? -(wide)a.hi : 0, -(wide)a.lo > a.hi ? -(wide)a.lo : a.hi, overflow);
	case EXPR_NOT: return (struct interval){!a.hi, !a.lo};
	case EXPR_ADD: return interval_wide((wide)a.lo + b.lo, (wide)a.hi + b.hi, overflow);
	case EXPR_SUB: return interval_wide((wide)a.lo - b.hi, (wide)a.hi - b.lo, overflow);
	case EXPR_MUL: return interval_mul(a, b, overflow);
	case EXPR_DIV: return interval_div(a, divisor(b));
	case EXPR_MOD: return interval_mod(a, divisor(b));
	case EXPR_MIN: return (struct interval){min2(a.lo, b.lo), min2(a.hi, b.hi)};
	case EXPR_MAX: return (struct interval){max2(a.lo, b.lo), max2(a.hi, b.hi)};
	case EXPR_LT: return (struct interval){a.hi < b.lo, a.lo < b.hi};
	case EXPR_LE: return (struct interval){a.hi <= b.lo, a.lo <= b.hi};
	case EXPR_EQ: return (struct interval){same, !apart};
	case EXPR_NE: return (struct interval){apart, !same};
	case EXPR_AND: return (struct interval){a.lo && b.lo, a.hi && b.hi};
	case EXPR_OR: return (struct interval){a.lo || b.lo, a.hi || b.hi};
	case EXPR_SELECT: return is_point(a) ? (a.lo ? b : c) : hull(b, c);
	case EXPR_RANDOM:
		if (is_point(a) && is_point(b) && is_point(c)) {
			const int64_t value = expr_random(a.lo, b.lo, c.lo);
			return (struct interval){value, value};
		}
		return (struct interval){0, 0xFFFF};
	default: return everything;
	}
}

/* ---- floats ---- */

/* Ends moved outward by far more than the error of one operation on the device, and to infinity where float32 ends. */
static struct float_interval widen(double lo, double hi, bool nan)
{
	const double part = 0x1p-20, least = 0x1p-120;
	if (lo != lo || hi != hi)
		return any_float;
	lo -= fabs(lo) * part + (lo != 0) * least;
	hi += fabs(hi) * part + (hi != 0) * least;
	return (struct float_interval){lo < -FLT_MAX ? -INFINITY : lo, hi > FLT_MAX ? INFINITY : hi, nan};
}

static bool is_bounded(struct float_interval a) { return a.lo >= -FLT_MAX && a.hi <= FLT_MAX; }

static struct float_interval corners(double p0, double p1, double p2, double p3, bool nan)
{
	if (p0 != p0 || p1 != p1 || p2 != p2 || p3 != p3)
		return any_float;
	return widen(fmin(fmin(p0, p1), fmin(p2, p3)), fmax(fmax(p0, p1), fmax(p2, p3)), nan);
}

static struct float_interval float_hull(struct float_interval a, struct float_interval b)
{
	return (struct float_interval){fmin(a.lo, b.lo), fmax(a.hi, b.hi), a.nan || b.nan};
}

static struct float_interval float_abs(struct float_interval a)
{
	const double far = fmax(fabs(a.lo), fabs(a.hi));
	return (struct float_interval){a.lo > 0 ? a.lo : a.hi < 0 ? -a.hi : 0, far, a.nan};
}

/* NaN loses against a number. */
static struct float_interval float_least(struct float_interval a, struct float_interval b)
{
	struct float_interval r = {fmin(a.lo, b.lo), fmin(a.hi, b.hi), a.nan && b.nan};
	if (a.nan)
		r.hi = fmax(r.hi, b.hi);
	if (b.nan)
		r.hi = fmax(r.hi, a.hi);
	return r;
}

static struct float_interval float_neg(struct float_interval a) { return (struct float_interval){-a.hi, -a.lo, a.nan}; }

static struct float_interval float_apply(enum expr_op op, struct float_interval a, struct float_interval b)
{
	const bool nan = a.nan || b.nan, open = !is_bounded(a) || !is_bounded(b);
	switch (op) {
	case EXPR_NEG: return float_neg(a);
	case EXPR_ABS: return float_abs(a);
	case EXPR_ADD: return widen(a.lo + b.lo, a.hi + b.hi, nan || open);
	case EXPR_SUB: return widen(a.lo - b.hi, a.hi - b.lo, nan || open);
	case EXPR_MUL: return corners(a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi, nan || open);
	case EXPR_DIV:
		if (open || (b.lo <= FLT_MIN && b.hi >= -FLT_MIN))
			return any_float;
		return corners(a.lo / b.lo, a.lo / b.hi, a.hi / b.lo, a.hi / b.hi, nan);
	case EXPR_MIN: return float_least(a, b);
	case EXPR_MAX: return float_neg(float_least(float_neg(a), float_neg(b)));
	case EXPR_EXP: { /* the error grows with the argument; zero where float32 ends */
		const struct float_interval e =
			widen(exp(a.lo - fabs(a.lo) * 0x1p-20), exp(a.hi + fabs(a.hi) * 0x1p-20), nan);
		return (struct float_interval){e.lo < FLT_MIN ? 0 : e.lo, e.hi, e.nan};
	}
	case EXPR_LOG: /* an absolute error near 1; a number too small for float32 is zero */
		if (a.lo < FLT_MIN)
			return (struct float_interval){
				-INFINITY, a.hi < FLT_MIN ? 0 : widen(log(a.hi) + 0x1p-20, log(a.hi) + 0x1p-20, nan).hi,
				nan || a.lo < 0};
		return widen(log(a.lo) - 0x1p-20, log(a.hi) + 0x1p-20, nan);
	case EXPR_TANH:
		return (struct float_interval){fmax(tanh(a.lo) - 0x1p-18, -1), fmin(tanh(a.hi) + 0x1p-18, 1), nan};
	case EXPR_SIGMOID:
		return (struct float_interval){fmax(1 / (1 + exp(-a.lo)) - 0x1p-18, 0),
		                               fmin(1 / (1 + exp(-a.hi)) + 0x1p-18, 1), nan};
	case EXPR_SQRT: {
		const struct float_interval r = widen(sqrt(fmax(a.lo, 0)), sqrt(fmax(a.hi, 0)), nan || a.lo < 0);
		return (struct float_interval){a.lo < FLT_MIN ? 0 : r.lo, r.hi, r.nan};
	}
	default: return any_float;
	}
}

static struct float_interval int_float(struct interval a)
{
	const double lo = (double)a.lo, hi = (double)a.hi;
	if (lo >= -0x1p24 && hi <= 0x1p24)
		return (struct float_interval){lo, hi, false};
	return widen(lo, hi, false);
}

static struct interval float_floor(struct float_interval a)
{
	struct interval r = {expr_floor(a.lo), expr_floor(a.hi)};
	return a.nan ? hull(r, (struct interval){0, 0}) : r;
}

static struct interval float_compare(enum expr_op op, struct float_interval a, struct float_interval b)
{
	if (a.nan || b.nan)
		return undecided;
	switch (op) {
	case EXPR_LT: return (struct interval){a.hi < b.lo, a.lo < b.hi};
	case EXPR_LE: return (struct interval){a.hi <= b.lo, a.lo <= b.hi};
	case EXPR_EQ: return (struct interval){0, a.lo <= b.hi && b.lo <= a.hi};
	default: return (struct interval){a.hi < b.lo || b.hi < a.lo, 1};
	}
}

/* ---- expressions ---- */

static struct interval dtype_range(const struct input *input, int i)
{
	if (input && input[i].dtype == INPUT_U8)
		return (struct interval){0, 255};
	return (struct interval){INT32_MIN, INT32_MAX};
}

static struct expr_range node_range(const struct expr_pool *pool, const struct expr_node *n,
                                    const struct expr_range *range, bool *overflow)
{
	const struct expr_range none = {everything, any_float}, *a[3] = {&none, &none, &none};
	struct expr_range r = none;
	for (int j = 0; j < expr_ops[n->op].args; j++)
		a[j] = &range[n->arg[j]];
	const bool floats = pool->node[n->arg[0]].type == TYPE_FLOAT;
	if (n->op == EXPR_SELECT && n->type == TYPE_FLOAT)
		r.f = is_point(a[0]->i) ? a[a[0]->i.lo ? 1 : 2]->f : float_hull(a[1]->f, a[2]->f);
	else if (n->op == EXPR_FLOAT)
		r.f = int_float(a[0]->i);
	else if (n->type == TYPE_FLOAT)
		r.f = float_apply(n->op, a[0]->f, expr_ops[n->op].args > 1 ? a[1]->f : a[0]->f);
	else if (n->op == EXPR_FLOOR)
		r.i = float_floor(a[0]->f);
	else if (floats)
		r.i = float_compare(n->op, a[0]->f, a[1]->f);
	else if (n->op == EXPR_DIV && expr_is_name(pool, n->arg[0], NAME_HQ) && expr_is_name(pool, n->arg[1], NAME_HK)) {
		/* every key/value head has at least one query head */
		r.i = interval_div(a[0]->i, divisor(a[1]->i));
		r.i = (struct interval){max2(r.i.lo, 1), max2(r.i.hi, 1)};
	} else
		r.i = interval_apply(n->op, a[0]->i, a[1]->i, a[2]->i, overflow);
	return r;
}

/* What is left of an interval where another holds too; the whole of it, where nothing is: then nobody gets there. */
static struct interval common(struct interval a, struct interval b)
{
	const struct interval both = {max2(a.lo, b.lo), min2(a.hi, b.hi)};
	return both.lo <= both.hi ? both : a;
}

/* A branch, where one node is known to stay in an interval. */
static struct interval branch_range(const struct expr_pool *pool, const struct expr_range *range, int branch, int node, struct interval known)
{
	struct expr_range here[EXPR_NODES_MAX];
	bool overflow = false;
	if (branch < node)
		return range[branch].i;
	memcpy(here, range, (size_t)(branch + 1) * sizeof *here);
	here[node].i = common(range[node].i, known);
	for (int i = node + 1; i <= branch; i++) {
		const struct expr_node *n = &pool->node[i];
		if (n->type != TYPE_FLOAT && n->op != EXPR_INPUT && expr_ops[n->op].args)
			here[i].i = common(range[i].i, node_range(pool, n, here, &overflow).i);
	}
	return here[branch].i;
}

static int64_t clipped(wide x) { return x < INT64_MIN ? INT64_MIN : x > INT64_MAX ? INT64_MAX : (int64_t)x; }

/* x < y ? yes : no, and with <= for <, of ints: each branch where x, or y if x is a constant, is what the condition leaves of it. Choices inside of a branch are
 * not looked into again. */
static struct interval select_range(const struct expr_pool *pool, const struct expr_node *n, const struct expr_range *range)
{
	const struct expr_node *condition = &pool->node[n->arg[0]];
	const int x = condition->arg[0], y = condition->arg[1];
	if ((condition->op != EXPR_LT && condition->op != EXPR_LE) || pool->node[x].type != TYPE_INT)
		return hull(range[n->arg[1]].i, range[n->arg[2]].i);
	const bool second = pool->node[x].op == EXPR_CONST; /* y is known to be above where the condition holds, else x below */
	const int node = second ? y : x, gap = (condition->op == EXPR_LT) != second;
	const struct interval other = range[second ? x : y].i;
	const struct interval below = {INT64_MIN, clipped((wide)other.hi - gap)}, above = {clipped((wide)other.lo + !gap), INT64_MAX};
	return hull(branch_range(pool, range, n->arg[1], node, second ? above : below), branch_range(pool, range, n->arg[2], node, second ? below : above));
}

/* used: the nodes that the root is made of; NULL: all. */
static bool nodes_range(struct expr_range *range, const struct expr_pool *pool, int root, const bool *used,
                        const struct interval name[NAME_COUNT], const struct input *input, const struct interval *input_node)
{
	bool overflow = false;
	for (int i = 0; i <= root; i++) {
		const struct expr_node *n = &pool->node[i];
		struct expr_range r = {everything, any_float};
		if (used && !used[i])
			continue;
		if (n->op == EXPR_CONST) {
			r.i = (struct interval){n->i, n->i};
			r.f = (struct float_interval){n->f, n->f, false};
			if (n->type == TYPE_FLOAT && (double)(float)n->f != n->f)
				r.f = widen(n->f, n->f, false);
		} else if (n->op == EXPR_NAME && n->type == TYPE_INT)
			r.i = name[n->i];
		else if (n->op == EXPR_INPUT && n->type == TYPE_INT)
			r.i = input_node ? input_node[i] : dtype_range(input, (int)n->i);
		else if (expr_ops[n->op].args)
			r = node_range(pool, n, range, &overflow);
		if (n->op == EXPR_SELECT && n->type != TYPE_FLOAT && !is_point(range[n->arg[0]].i))
			r.i = select_range(pool, n, range);
		range[i] = r;
	}
	return !overflow;
}

bool expr_ranges(struct expr_range *range, const struct expr_pool *pool, int root,
                 const struct interval name[NAME_COUNT], const struct input *input, const struct interval *input_node)
{
	bool used[EXPR_NODES_MAX] = {false};
	expr_used(used, pool, root);
	return nodes_range(range, pool, root, used, name, input, input_node);
}

struct interval expr_interval_all(const struct expr_pool *pool, int root, const struct interval name[NAME_COUNT],
                                  const struct input *input)
{
	struct expr_range range[EXPR_NODES_MAX];
	(void)nodes_range(range, pool, root, NULL, name, input, NULL);
	return range[root].i;
}

struct interval expr_interval(const struct expr_pool *pool, int root, const struct interval name[NAME_COUNT],
                              const struct input *input, const struct interval *input_node, bool *overflow)
{
	struct expr_range range[EXPR_NODES_MAX];
	*overflow = !expr_ranges(range, pool, root, name, input, input_node) || *overflow;
	return range[root].i;
}

struct float_interval expr_float_interval(const struct expr_pool *pool, int root,
                                          const struct interval name[NAME_COUNT], const struct input *input,
                                          const struct interval *input_node)
{
	struct expr_range range[EXPR_NODES_MAX];
	(void)expr_ranges(range, pool, root, name, input, input_node);
	return range[root].f;
}
