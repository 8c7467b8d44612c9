/* lower: a spec's mask becomes a program.
 *
 * Every conjunct that is affine in the positions is brought to one form, c.x + constant >= 0 with coprime coefficients,
 * strict comparisons turned into <= by the integers; what always holds is dropped, the tighter of two parallel bounds
 * stays, two bounds that exclude each other hide everything. The program is then built anew from the result, so masks
 * that say the same in other words give the same bytes. */
#include "gen/expr.h"
#include "gen/range.h"

#include <stdlib.h>
#include <string.h>

__extension__ typedef __int128 wide;

enum { POSITION_MAX = LENGTH_MAX - 1, COEFFICIENT_MAX = 1 << 20 };

struct affine {
	int64_t coef[NAME_COUNT], constant;
};

/* ---- affine forms ---- */

static bool affine_add(struct affine *r, const struct affine *a, const struct affine *b, int64_t scale)
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

/* Nodes of one pool that are affine, with their form. */
struct forms {
	bool is[EXPR_NODES_MAX];
	struct affine form[EXPR_NODES_MAX];
};

static bool node_affine(struct affine *r, const struct forms *f, const struct expr_pool *pool,
                        const struct expr_node *n)
{
	static const struct affine zero;
	const int a = n->arg[0], b = n->arg[1];
	*r = zero;
	if (n->type != TYPE_INT)
		return false;
	for (int j = 0; j < expr_ops[n->op].args; j++)
		if (!f->is[n->arg[j]])
			return false;
	switch (n->op) {
	case EXPR_CONST: r->constant = n->i; return true;
	case EXPR_NAME: r->coef[n->i] = 1; return true;
	case EXPR_NEG: return affine_add(r, r, &f->form[a], -1);
	case EXPR_ADD: return affine_add(r, &f->form[a], &f->form[b], 1);
	case EXPR_SUB: return affine_add(r, &f->form[a], &f->form[b], -1);
	case EXPR_MUL: /* a constant stands on the right */
		return pool->node[b].op == EXPR_CONST && affine_add(r, r, &f->form[a], pool->node[b].i);
	default: return false;
	}
}

static void forms_find(struct forms *f, const struct expr_pool *pool, int root)
{
	for (int i = 0; i <= root; i++)
		f->is[i] = node_affine(&f->form[i], f, pool, &pool->node[i]);
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

static void affine_reduce(struct affine *a)
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
	const wide corner[3] = {n, (wide)n * LENGTH_MAX, (wide)p * POSITION_MAX + (wide)n * LENGTH_MAX};
	wide lo = corner[0], hi = corner[0];
	for (int i = 1; i < 3; i++) {
		lo = corner[i] < lo ? corner[i] : lo;
		hi = corner[i] > hi ? corner[i] : hi;
	}
	*least += lo;
	*most += hi;
}

/* Does affine >= 0 hold at every position (1), at none (0), or does it depend (-1)? */
static int affine_decide(const struct affine *a)
{
	wide least = a->constant, most = a->constant;
	corner_range(&least, &most, a->coef[NAME_Q], a->coef[NAME_SQ]);
	corner_range(&least, &most, a->coef[NAME_K], a->coef[NAME_SK]);
	for (int i = NAME_B; i <= NAME_H; i++) {
		const wide far = (wide)a->coef[i] * POSITION_MAX;
		least += far < 0 ? far : 0;
		most += far > 0 ? far : 0;
	}
	return least >= 0 ? 1 : most < 0 ? 0 : -1;
}

static bool small(int64_t value, int64_t limit) { return -limit <= value && value <= limit; }

static bool affine_is_bound(const struct affine *a)
{
	return a->coef[NAME_B] == 0 && a->coef[NAME_H] == 0 && small(a->coef[NAME_Q], 1) && small(a->coef[NAME_K], 1) &&
	       small(a->coef[NAME_SQ], COEFFICIENT_MAX) && small(a->coef[NAME_SK], COEFFICIENT_MAX);
}

/* Does every partial sum stay inside 64 bits, in whatever order? */
static bool affine_is_safe(const struct affine *a)
{
	wide sum = a->constant < 0 ? -(wide)a->constant : a->constant;
	for (int i = 0; i < NAME_COUNT; i++)
		sum += (a->coef[i] < 0 ? -(wide)a->coef[i] : a->coef[i]) * LENGTH_MAX;
	return sum <= INT64_MAX;
}

/* The expression affine >= 0, every term on the side where it is positive; -1 when the pool is full. */
static int affine_expr(struct expr_pool *pool, const struct affine *a)
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
	return expr_make(pool, EXPR_LE, side[0], side[1], -1);
}

/* ---- the conjunction ---- */

struct lowering {
	const struct expr_pool *from;
	struct forms forms;
	struct program *to;
	bool hidden; /* some conjunct never holds */
	bool full;   /* the pool of the program is full */
};

static void residual_add(struct lowering *l, int node)
{
	struct program *p = l->to;
	p->residual = expr_make(&p->pool, EXPR_AND, p->residual, node, -1);
	l->full = l->full || p->residual < 0;
}

static bool parallel(const struct bound *a, const struct bound *b, int sign)
{
	return a->q == sign * b->q && a->k == sign * b->k && a->sq == sign * b->sq && a->sk == sign * b->sk;
}

static void bound_add(struct lowering *l, const struct affine *a)
{
	struct program *p = l->to;
	const struct bound b = {(int)a->coef[NAME_Q], (int)a->coef[NAME_K], (int)a->coef[NAME_SQ],
	                        (int)a->coef[NAME_SK], a->constant};
	for (int i = 0; i < p->bound_count; i++)
		if (parallel(&p->bound[i], &b, -1) && p->bound[i].constant + b.constant < 0)
			l->hidden = true;
	for (int i = 0; i < p->bound_count; i++) {
		if (parallel(&p->bound[i], &b, 1)) {
			if (b.constant < p->bound[i].constant)
				p->bound[i].constant = b.constant;
			return;
		}
	}
	if (p->bound_count == BOUNDS_MAX)
		residual_add(l, affine_expr(&p->pool, a));
	else
		p->bound[p->bound_count++] = b;
}

/* larger - smaller - strict >= 0; false: not affine, or too large to be moved around: nothing was added. */
static bool inequality_add(struct lowering *l, int larger, int smaller, int strict)
{
	struct affine a;
	if (!l->forms.is[larger] || !l->forms.is[smaller] ||
	    !affine_add(&a, &l->forms.form[larger], &l->forms.form[smaller], -1) ||
	    __builtin_sub_overflow(a.constant, (int64_t)strict, &a.constant))
		return false;
	affine_reduce(&a);
	const int decided = affine_decide(&a);
	if (decided == 0)
		l->hidden = true;
	else if (decided < 0 && affine_is_bound(&a))
		bound_add(l, &a);
	else if (decided < 0 && affine_is_safe(&a))
		residual_add(l, affine_expr(&l->to->pool, &a));
	else if (decided < 0)
		return false;
	return true;
}

static void conjunct_add(struct lowering *l, int node)
{
	const struct expr_node *n = &l->from->node[node];
	if (n->op == EXPR_LE && inequality_add(l, n->arg[1], n->arg[0], 0))
		return;
	if (n->op == EXPR_LT && inequality_add(l, n->arg[1], n->arg[0], 1))
		return;
	if (n->op == EXPR_EQ && inequality_add(l, n->arg[0], n->arg[1], 0) &&
	    inequality_add(l, n->arg[1], n->arg[0], 0))
		return;
	residual_add(l, expr_copy(&l->to->pool, l->from, node));
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
	return (a->sk > b->sk) - (a->sk < b->sk);
}

static int bound_expr(struct expr_pool *pool, const struct bound *b)
{
	struct affine a = {{0}, b->constant};
	a.coef[NAME_Q] = b->q;
	a.coef[NAME_K] = b->k;
	a.coef[NAME_SQ] = b->sq;
	a.coef[NAME_SK] = b->sk;
	return affine_expr(pool, &a);
}

/* The program again, in a pool that holds nothing else, in canonical order. -1: the pool is full. */
static int program_build(struct program *to, const struct program *from, bool hidden)
{
	memset(to, 0, sizeof *to);
	to->score = expr_variable(&to->pool, NAME_S);
	to->score_identity = true;
	if (hidden) {
		to->residual = to->mask = expr_const_bool(&to->pool, false);
		return 0;
	}
	to->mask = expr_const_bool(&to->pool, true);
	to->bound_count = from->bound_count;
	memcpy(to->bound, from->bound, sizeof to->bound);
	qsort(to->bound, (size_t)to->bound_count, sizeof *to->bound, bound_order);
	for (int i = 0; i < to->bound_count; i++)
		to->mask = expr_make(&to->pool, EXPR_AND, to->mask, bound_expr(&to->pool, &to->bound[i]), -1);
	to->residual = expr_copy(&to->pool, &from->pool, from->residual);
	to->mask = expr_make(&to->pool, EXPR_AND, to->mask, to->residual, -1);
	return to->mask < 0 ? -1 : 0;
}

static const struct interval everywhere[NAME_COUNT] = {
	[NAME_B] = {0, POSITION_MAX}, [NAME_H] = {0, POSITION_MAX}, [NAME_Q] = {0, POSITION_MAX},
	[NAME_K] = {0, POSITION_MAX}, [NAME_SQ] = {0, LENGTH_MAX},  [NAME_SK] = {0, LENGTH_MAX},
};

static int mask_check(const struct expr_pool *pool, int mask, struct diag *diag)
{
	bool overflow = false, used[EXPR_NODES_MAX] = {false};
	used[mask] = true;
	for (int i = mask; i >= 0; i--) {
		const struct expr_node *n = &pool->node[i];
		if (!used[i])
			continue;
		if (n->op == EXPR_NAME && n->i > NAME_SK)
			return diag_fail(diag, "a mask cannot use '%s': it may use b h q k sq sk", expr_names[n->i]);
		for (int j = 0; j < expr_ops[n->op].args; j++)
			used[n->arg[j]] = true;
	}
	struct expr_pool alone = {0};
	const int root = expr_copy(&alone, pool, mask);
	(void)expr_interval(&alone, root, everywhere, &overflow);
	if (overflow)
		return diag_fail(
			diag,
			"the mask computes numbers that may leave 64 bits for lengths up to 2^31: use smaller factors");
	return 0;
}

int program_lower_mask(struct program *program, const struct expr_pool *pool, int mask, struct diag *diag)
{
	if (mask < 0 || mask >= pool->count || pool->node[mask].type != TYPE_BOOL)
		return diag_fail(diag, "a mask must be a condition");
	if (mask_check(pool, mask, diag))
		return -1;
	struct program draft = {0};
	struct lowering l = {.from = pool, .to = &draft};
	bool open[EXPR_NODES_MAX] = {false};
	draft.residual = expr_const_bool(&draft.pool, true);
	forms_find(&l.forms, pool, mask);
	open[mask] = true;
	for (int i = mask; i >= 0; i--) {
		if (!open[i])
			continue;
		if (pool->node[i].op == EXPR_AND)
			open[pool->node[i].arg[0]] = open[pool->node[i].arg[1]] = true;
		else
			conjunct_add(&l, i);
	}
	const bool hidden = l.hidden || (!l.full && expr_is_const(&draft.pool, draft.residual, false));
	struct program built;
	if ((l.full && !hidden) || program_build(&built, &draft, hidden))
		return diag_fail(diag, "the mask is too large: its canonical form has more than %d parts",
		                 EXPR_NODES_MAX);
	memcpy(program, &built, sizeof built);
	return 0;
}

int program_lower(struct program *program, const struct spec *spec, struct diag *diag)
{
	struct expr_pool pool = {0};
	int mask = expr_const_bool(&pool, true);
	for (int i = 0; i < spec->mask_count; i++) {
		const struct mask_term *term = &spec->mask[i];
		const struct preset *preset = &preset_table[term->preset];
		struct expr_binding binding[SPEC_ARGS_MAX];
		int bindings = 0;
		for (; bindings < SPEC_ARGS_MAX && preset->params[bindings]; bindings++)
			binding[bindings] = (struct expr_binding){preset->params[bindings], term->arg[bindings]};
		const int root = expr_parse(&pool, preset->definition, binding, bindings, (struct place){0, 0}, diag);
		if (root < 0)
			return -1;
		mask = expr_make(&pool, EXPR_AND, mask, root, -1);
		if (mask < 0)
			return diag_fail(diag, "the mask is too large: it has more than %d parts", EXPR_NODES_MAX);
	}
	return program_lower_mask(program, &pool, mask, diag);
}

void program_print(struct text *out, const struct program *p)
{
	text_puts(out, "mask      ");
	expr_print(out, &p->pool, p->mask);
	text_puts(out, "\nscore     ");
	expr_print(out, &p->pool, p->score);
	text_puts(out, "\nresidual  ");
	expr_print(out, &p->pool, p->residual);
	text_puts(out, "\n");
}

enum tile_class program_tile_class(const struct program *p, int64_t sq, int64_t sk, int64_t q0, int64_t q1, int64_t k0,
                                   int64_t k1)
{
	if (q0 >= q1 || k0 >= k1 || q0 >= sq || k0 >= sk || q1 <= 0 || k1 <= 0)
		return TILE_EMPTY;
	const bool inside = q0 >= 0 && k0 >= 0 && q1 <= sq && k1 <= sk;
	struct interval name[NAME_COUNT];
	bool overflow = false;
	memcpy(name, everywhere, sizeof name);
	name[NAME_SQ] = (struct interval){sq, sq};
	name[NAME_SK] = (struct interval){sk, sk};
	name[NAME_Q] = (struct interval){q0 < 0 ? 0 : q0, (q1 < sq ? q1 : sq) - 1};
	name[NAME_K] = (struct interval){k0 < 0 ? 0 : k0, (k1 < sk ? k1 : sk) - 1};
	const struct interval visible = expr_interval(&p->pool, p->mask, name, &overflow);
	if (!visible.hi)
		return TILE_EMPTY;
	if (visible.lo)
		return inside ? TILE_FULL : TILE_PARTIAL;
	const struct range keys = program_key_range(p, sq, sk, q0, q1);
	return k1 <= keys.begin || k0 >= keys.end ? TILE_EMPTY : TILE_PARTIAL;
}
