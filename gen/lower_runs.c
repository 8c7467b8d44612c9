/* lower_runs: conditions as unions of runs, each a conjunction of bounds.
 *
 * Comparisons whose sides are affine, but for one abs, min, max, choice or division, come apart into bounds exactly; and,
 * or, not and choices combine them. Of anything else only what it implies is kept: the union may then be too wide, never
 * too narrow. */
#include "gen/lower.h"

#include <stdlib.h>
#include <string.h>

/* ---- one run ---- */

static bool parallel(const struct bound *a, const struct bound *b, int sign)
{
	return a->q == sign * b->q && a->k == sign * b->k && a->sq == sign * b->sq && a->sk == sign * b->sk;
}

enum added { ADDED, EMPTY, NO_ROOM };

/* The tighter of two parallel bounds stays; two that exclude each other leave nothing. */
static enum added run_add(struct run *r, const struct bound *b)
{
	for (int i = 0; i < r->count; i++)
		if (parallel(&r->bound[i], b, -1) && r->bound[i].constant + b->constant < 0)
			return EMPTY;
	for (int i = 0; i < r->count; i++) {
		if (parallel(&r->bound[i], b, 1)) {
			if (b->constant < r->bound[i].constant)
				r->bound[i].constant = b->constant;
			return ADDED;
		}
	}
	if (r->count == BOUNDS_MAX)
		return NO_ROOM;
	r->bound[r->count++] = *b;
	return ADDED;
}

static void run_drop(struct run *r, int i)
{
	r->bound[i] = r->bound[--r->count];
	memset(&r->bound[r->count], 0, sizeof *r->bound);
}

/* Does `a` hold only where `b` does? */
static bool run_inside(const struct run *a, const struct run *b)
{
	for (int i = 0; i < b->count; i++) {
		bool implied = false;
		for (int j = 0; j < a->count && !implied; j++)
			implied =
				parallel(&a->bound[j], &b->bound[i], 1) && a->bound[j].constant <= b->bound[i].constant;
		if (!implied)
			return false;
	}
	return true;
}

/* Removes a bound of `r` if all that it excludes there is in `other`, so that the union stays as it is: then one bound of
 * `other` alone does not hold in all of `r`, and it begins where the removed one ends. */
static bool run_widen(struct run *r, const struct run *other)
{
	struct run rest = *other;
	int left = -1;
	for (int i = 0; i < other->count; i++) {
		const struct run one = {1, {other->bound[i]}};
		if (run_inside(r, &one))
			continue;
		if (left >= 0)
			return false;
		left = i;
	}
	if (left < 0)
		return false;
	run_drop(&rest, left);
	for (int i = 0; i < r->count; i++) {
		const struct bound *y = &r->bound[i], *z = &other->bound[left];
		struct run wide = *r;
		run_drop(&wide, i);
		if (parallel(y, z, -1) && y->constant + z->constant >= -1 && run_inside(&wide, &rest)) {
			*r = wide;
			return true;
		}
	}
	return false;
}

/* ---- unions ---- */

static void runs_drop(struct runs *r, int i)
{
	r->run[i] = r->run[--r->count];
	memset(&r->run[r->count], 0, sizeof *r->run);
}

static bool runs_step(struct runs *r)
{
	for (int i = 0; i < r->count; i++)
		for (int j = 0; j < r->count; j++) {
			if (i == j)
				continue;
			if (run_inside(&r->run[i], &r->run[j])) {
				runs_drop(r, i);
				return true;
			}
			if (run_widen(&r->run[i], &r->run[j]))
				return true;
		}
	return false;
}

static bool runs_add(struct runs *r, const struct run *run)
{
	for (int i = 0; i < r->count; i++)
		if (run_inside(run, &r->run[i]))
			return true;
	if (r->count == RUNS_WORK)
		return false;
	r->run[r->count++] = *run;
	while (runs_step(r))
		;
	return true;
}

static void runs_all(struct runs *r, bool exact)
{
	memset(r, 0, sizeof *r);
	r->count = 1;
	r->exact = exact;
}

static void runs_none(struct runs *r)
{
	memset(r, 0, sizeof *r);
	r->exact = true;
}

bool runs_and(struct runs *r, const struct runs *a, const struct runs *b)
{
	struct runs both;
	runs_none(&both);
	both.exact = a->exact && b->exact;
	for (int i = 0; i < a->count; i++)
		for (int j = 0; j < b->count; j++) {
			struct run run = a->run[i];
			enum added added = ADDED;
			for (int k = 0; k < b->run[j].count && added == ADDED; k++)
				added = run_add(&run, &b->run[j].bound[k]);
			if (added == NO_ROOM || (added == ADDED && !runs_add(&both, &run)))
				return false;
		}
	both.exact = both.exact || both.count == 0;
	*r = both;
	return true;
}

/* Exactly true: a run without bounds. */
static bool runs_always(const struct runs *r) { return r->exact && r->count == 1 && r->run[0].count == 0; }

static bool runs_or(struct runs *r, const struct runs *a, const struct runs *b)
{
	struct runs any = *a;
	any.exact = (a->exact && b->exact) || runs_always(a) || runs_always(b);
	for (int i = 0; i < b->count; i++)
		if (!runs_add(&any, &b->run[i]))
			return false;
	*r = any;
	return true;
}

/* r = a and b, or a or b; where there is no room, something that it implies. */
static void runs_join(struct runs *r, struct runs_source *s, const struct runs *a, const struct runs *b, bool both)
{
	s->budget -= both ? a->count * b->count : b->count;
	if (s->budget > 0 && (both ? runs_and(r, a, b) : runs_or(r, a, b)))
		return;
	if (both) {
		*r = a->count <= b->count ? *a : *b;
		r->exact = false;
	} else {
		runs_all(r, false);
	}
}

static int bound_order(const void *x, const void *y)
{
	const struct bound *a = x, *b = y;
	if (a->k != b->k)
		return a->k < b->k ? -1 : 1;
	if (a->q != b->q)
		return a->q > b->q ? -1 : 1;
	if (a->sq != b->sq)
		return a->sq < b->sq ? -1 : 1;
	if (a->sk != b->sk)
		return a->sk < b->sk ? -1 : 1;
	return (a->constant > b->constant) - (a->constant < b->constant);
}

static int run_order(const void *x, const void *y)
{
	const struct run *a = x, *b = y;
	for (int i = 0; i < a->count && i < b->count; i++) {
		const int order = bound_order(&a->bound[i], &b->bound[i]);
		if (order)
			return order;
	}
	return a->count - b->count;
}

void runs_sort(struct runs *r)
{
	for (int i = 0; i < r->count; i++)
		qsort(r->run[i].bound, (size_t)r->run[i].count, sizeof(struct bound), bound_order);
	qsort(r->run, (size_t)r->count, sizeof *r->run, run_order);
}

/* ---- inequalities ---- */

static void inequality(struct runs *r, struct runs_source *s, const struct affine *rest, int node, int64_t scale);
static void condition(struct runs *r, struct runs_source *s, int node, bool negated);

static void affine_runs(struct runs *r, struct affine a)
{
	affine_reduce(&a);
	const int decided = affine_decide(&a);
	if (decided == 0) {
		runs_none(r);
		return;
	}
	runs_all(r, decided == 1 || affine_is_bound(&a));
	if (decided < 0 && r->exact) {
		const struct bound b = affine_bound(&a);
		run_add(&r->run[0], &b);
	}
}

/* rest + scale x >= 0 and (or) rest + scale' y >= 0. */
static void inequality_pair(struct runs *r, struct runs_source *s, const struct affine *rest, int x, int64_t scale,
                            int y, int64_t scale_y, bool both)
{
	struct runs a, b;
	inequality(&a, s, rest, x, scale);
	inequality(&b, s, rest, y, scale_y);
	runs_join(r, s, &a, &b, both);
}

static void inequality_choice(struct runs *r, struct runs_source *s, const struct affine *rest,
                              const struct expr_node *n, int64_t scale)
{
	struct runs way[2];
	for (int i = 0; i < 2; i++) {
		struct runs chosen, holds;
		condition(&chosen, s, n->arg[0], i == 1);
		inequality(&holds, s, rest, n->arg[1 + i], scale);
		runs_join(&way[i], s, &chosen, &holds, true);
	}
	runs_join(r, s, &way[0], &way[1], false);
}

/* rest + scale floor(x / by) >= 0; *r is left alone when nothing is known of it. */
static void inequality_division(struct runs *r, struct runs_source *s, const struct affine *rest, int x, int64_t by,
                                int64_t scale)
{
	struct affine scaled = *rest;
	if ((scale == 1 || scale == -1) && affine_scale(&scaled, by) && (scale > 0 || affine_shift(&scaled, by - 1)))
		inequality(r, s, &scaled, x, scale);
}

/* rest + scale node >= 0. */
static void inequality(struct runs *r, struct runs_source *s, const struct affine *rest, int node, int64_t scale)
{
	const struct expr_node *n = &s->pool->node[node];
	const struct affine_table *t = &s->affine;
	const int a = n->arg[0], b = n->arg[1];
	struct affine sum;
	int64_t product;
	runs_all(r, false);
	if (s->budget-- <= 0 || scale == INT64_MIN)
		return;
	if (t->is[node]) {
		if (affine_add(&sum, rest, &t->form[node], scale))
			affine_runs(r, sum);
		return;
	}
	switch (n->op) {
	case EXPR_NEG: inequality(r, s, rest, a, -scale); break;
	case EXPR_ABS: inequality_pair(r, s, rest, a, scale, a, -scale, scale < 0); break;
	case EXPR_MIN: inequality_pair(r, s, rest, a, scale, b, scale, scale > 0); break;
	case EXPR_MAX: inequality_pair(r, s, rest, a, scale, b, scale, scale < 0); break;
	case EXPR_SELECT: inequality_choice(r, s, rest, n, scale); break;
	case EXPR_ADD:
	case EXPR_SUB: {
		const int64_t right = n->op == EXPR_ADD ? scale : -scale;
		if (t->is[a] && affine_add(&sum, rest, &t->form[a], scale))
			inequality(r, s, &sum, b, right);
		else if (t->is[b] && affine_add(&sum, rest, &t->form[b], right))
			inequality(r, s, &sum, a, scale);
		break;
	}
	case EXPR_MUL:
		if (s->pool->node[b].op == EXPR_CONST && !__builtin_mul_overflow(scale, s->pool->node[b].i, &product))
			inequality(r, s, rest, a, product);
		break;
	case EXPR_DIV:
		if (s->pool->node[b].op == EXPR_CONST)
			inequality_division(r, s, rest, a, s->pool->node[b].i, scale);
		break;
	default: break;
	}
}

/* larger - smaller - strict >= 0 */
static void order(struct runs *r, struct runs_source *s, int larger, int smaller, int strict)
{
	const struct affine_table *t = &s->affine;
	struct affine rest = {{0}, 0};
	runs_all(r, false);
	if (s->pool->node[larger].type != TYPE_INT || s->pool->node[smaller].type != TYPE_INT)
		return;
	if (t->is[smaller]) {
		if (affine_add(&rest, &rest, &t->form[smaller], -1) && affine_shift(&rest, -strict))
			inequality(r, s, &rest, larger, 1);
	} else if (t->is[larger]) {
		rest = t->form[larger];
		if (affine_shift(&rest, -strict))
			inequality(r, s, &rest, smaller, -1);
	}
}

/* ---- conditions ---- */

/* The two are ints. */
static void equality(struct runs *r, struct runs_source *s, int x, int y, bool equal)
{
	struct runs up, down;
	order(&up, s, x, y, !equal);
	order(&down, s, y, x, !equal);
	runs_join(r, s, &up, &down, equal);
}

/* c ? x : y; and for x == y of bools, x ? y : !y */
static void choice(struct runs *r, struct runs_source *s, int c, int x, bool x_negated, int y, bool y_negated)
{
	struct runs way[2], chosen, holds;
	condition(&chosen, s, c, false);
	condition(&holds, s, x, x_negated);
	runs_join(&way[0], s, &chosen, &holds, true);
	condition(&chosen, s, c, true);
	condition(&holds, s, y, y_negated);
	runs_join(&way[1], s, &chosen, &holds, true);
	runs_join(r, s, &way[0], &way[1], false);
}

static void condition(struct runs *r, struct runs_source *s, int node, bool negated)
{
	const struct expr_node *n = &s->pool->node[node];
	const int a = n->arg[0], b = n->arg[1];
	runs_all(r, false);
	if (s->budget-- <= 0)
		return;
	switch (n->op) {
	case EXPR_CONST:
		if ((n->i != 0) != negated)
			r->exact = true;
		else
			runs_none(r);
		break;
	case EXPR_NOT: condition(r, s, a, !negated); break;
	case EXPR_AND:
	case EXPR_OR: {
		struct runs x, y;
		condition(&x, s, a, negated);
		condition(&y, s, b, negated);
		runs_join(r, s, &x, &y, (n->op == EXPR_AND) != negated);
		break;
	}
	case EXPR_LE: negated ? order(r, s, a, b, 1) : order(r, s, b, a, 0); break;
	case EXPR_LT: negated ? order(r, s, a, b, 0) : order(r, s, b, a, 1); break;
	case EXPR_EQ:
	case EXPR_NE: {
		const bool equal = (n->op == EXPR_EQ) != negated;
		const enum expr_type type = s->pool->node[a].type;
		if (type == TYPE_INT)
			equality(r, s, a, b, equal);
		else if (type == TYPE_BOOL)
			choice(r, s, a, b, !equal, b, equal);
		break;
	}
	case EXPR_SELECT: choice(r, s, a, b, negated, n->arg[2], negated); break;
	default: break;
	}
}

void runs_begin(struct runs_source *s, const struct expr_pool *pool, int root)
{
	s->pool = pool;
	s->budget = 4096;
	affine_find(&s->affine, pool, root);
}

void runs_find(struct runs *r, struct runs_source *s, int node) { condition(r, s, node, false); }
