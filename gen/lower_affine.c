/* lower_affine: affine forms of integer expressions. */
#include "gen/lower_affine.h"

#include "gen/expr.h"
#include "gen/range.h"

__extension__ typedef __int128 wide;

enum { COEFFICIENT_MAX = 1 << 20 };

bool affine_add(struct affine *r, const struct affine *a, const struct affine *b, int64_t scale)
{
	struct affine sum = *a;
	int64_t t;
	for (int i = 0; i < NAME_COUNT; i++)
		if (__builtin_mul_overflow(b->coef[i], scale, &t) ||
		    __builtin_add_overflow(a->coef[i], t, &sum.coef[i]))
			return false;
	if (__builtin_mul_overflow(b->constant, scale, &t) || __builtin_add_overflow(a->constant, t, &sum.constant))
		return false;
	*r = sum;
	return true;
}

bool affine_scale(struct affine *a, int64_t scale)
{
	static const struct affine zero;
	return affine_add(a, &zero, a, scale);
}

bool affine_shift(struct affine *a, int64_t constant)
{
	return !__builtin_add_overflow(a->constant, constant, &a->constant);
}

static bool node_affine(struct affine *r, const struct affine_table *t, const struct expr_pool *pool,
                        const struct expr_node *n)
{
	static const struct affine zero;
	const int a = n->arg[0], b = n->arg[1];
	*r = zero;
	if (n->type != TYPE_INT)
		return false;
	for (int j = 0; j < EXPR_ARGS_MAX && n->arg[j] >= 0; j++)
		if (!t->is[n->arg[j]])
			return false;
	switch (n->op) {
	case EXPR_CONST: r->constant = n->i; return true;
	case EXPR_NAME: r->coef[n->i] = 1; return true;
	case EXPR_NEG: return affine_add(r, r, &t->form[a], -1);
	case EXPR_ADD: return affine_add(r, &t->form[a], &t->form[b], 1);
	case EXPR_SUB: return affine_add(r, &t->form[a], &t->form[b], -1);
	case EXPR_MUL: /* a constant stands on the right */
		return pool->node[b].op == EXPR_CONST && affine_add(r, r, &t->form[a], pool->node[b].i);
	default: return false;
	}
}

void affine_find(struct affine_table *t, const struct expr_pool *pool, int root)
{
	for (int i = 0; i <= root; i++)
		t->is[i] = node_affine(&t->form[i], t, pool, &pool->node[i]);
}

/* ---- one inequality ---- */

static int64_t gcd(int64_t a, int64_t b)
{
	while (b) {
		const int64_t t = a % b;
		a = b;
		b = t;
	}
	return a < 0 ? -a : a;
}

void affine_reduce(struct affine *a)
{
	int64_t g = 0;
	for (int i = 0; i < NAME_COUNT; i++)
		g = gcd(g, a->coef[i]);
	if (g < 2)
		return;
	for (int i = 0; i < NAME_COUNT; i++)
		a->coef[i] /= g;
	a->constant = floor_div(a->constant, g);
}

/* Least and greatest value of p*position + n*length over 0 <= position < length <= LENGTH_MAX: at a corner. */
static void corner_range(wide *least, wide *most, int64_t p, int64_t n)
{
	const wide corner[3] = {n, (wide)n * LENGTH_MAX, (wide)p * (LENGTH_MAX - 1) + (wide)n * LENGTH_MAX};
	wide lo = corner[0], hi = corner[0];
	for (int i = 1; i < 3; i++) {
		lo = corner[i] < lo ? corner[i] : lo;
		hi = corner[i] > hi ? corner[i] : hi;
	}
	*least += lo;
	*most += hi;
}

int affine_decide(const struct affine *a)
{
	wide least = a->constant, most = a->constant;
	corner_range(&least, &most, a->coef[NAME_Q], a->coef[NAME_SQ]);
	corner_range(&least, &most, a->coef[NAME_K], a->coef[NAME_SK]);
	corner_range(&least, &most, a->coef[NAME_H], a->coef[NAME_HQ]);
	corner_range(&least, &most, 0, a->coef[NAME_HK]);
	const wide far = (wide)a->coef[NAME_B] * (LENGTH_MAX - 1);
	least += far < 0 ? far : 0;
	most += far > 0 ? far : 0;
	return least >= 0 ? 1 : most < 0 ? 0 : -1;
}

static bool small(int64_t value, int64_t limit) { return -limit <= value && value <= limit; }

bool affine_is_bound(const struct affine *a)
{
	return !a->coef[NAME_B] && !a->coef[NAME_H] && !a->coef[NAME_HQ] && !a->coef[NAME_HK] &&
	       small(a->coef[NAME_Q], 1) && small(a->coef[NAME_K], 1) && small(a->coef[NAME_SQ], COEFFICIENT_MAX) &&
	       small(a->coef[NAME_SK], COEFFICIENT_MAX);
}

bool affine_is_safe(const struct affine *a)
{
	wide sum = a->constant < 0 ? -(wide)a->constant : a->constant;
	for (int i = 0; i < NAME_COUNT; i++)
		sum += (a->coef[i] < 0 ? -(wide)a->coef[i] : a->coef[i]) * LENGTH_MAX;
	return sum <= INT64_MAX;
}

struct bound affine_bound(const struct affine *a)
{
	return (struct bound){(int)a->coef[NAME_Q], (int)a->coef[NAME_K], (int)a->coef[NAME_SQ], (int)a->coef[NAME_SK],
	                      a->constant};
}

int affine_expr(struct expr_pool *pool, const struct affine *a, enum expr_op op)
{
	int side[2] = {-1, -1}; /* small, large */
	for (int i = 0; i < NAME_COUNT; i++) {
		const int64_t c = a->coef[i];
		if (!c)
			continue;
		const int name = expr_variable(pool, (enum expr_name)i);
		const int term = expr_make(pool, EXPR_MUL, name, expr_const_int(pool, c < 0 ? -c : c), -1);
		side[c > 0] = side[c > 0] < 0 ? term : expr_make(pool, EXPR_ADD, side[c > 0], term, -1);
		if (side[c > 0] < 0)
			return -1;
	}
	const int64_t c = a->constant;
	const int large = c > 0;
	if (side[large] < 0)
		side[large] = expr_const_int(pool, large ? c : -c);
	else
		side[large] = expr_make(pool, EXPR_ADD, side[large], expr_const_int(pool, large ? c : -c), -1);
	if (side[!large] < 0)
		side[!large] = expr_const_int(pool, 0);
	return expr_make(pool, op, side[0], side[1], -1);
}

int bound_expr(struct expr_pool *pool, const struct bound *b)
{
	struct affine a = {{0}, b->constant};
	a.coef[NAME_Q] = b->q;
	a.coef[NAME_K] = b->k;
	a.coef[NAME_SQ] = b->sq;
	a.coef[NAME_SK] = b->sk;
	return affine_expr(pool, &a, EXPR_LE);
}
