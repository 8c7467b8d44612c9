/* lower_mask: a mask becomes runs and a residual, in canonical form.
 *
 * Every conjunct that is a union of runs joins them while there is room; what remains is tested by cell, and narrows the
 * runs by what it implies. Affine comparisons get one form: coprime coefficients, terms on the side where they are
 * positive, strict ones turned into <= by the integers. The program is built anew from the result, so masks that say the
 * same in other words give the same bytes. */
#include "gen/access.h"
#include "gen/lower.h"

#include <stdlib.h>
#include <string.h>

/* ---- conditions in canonical form ---- */

struct copying {
	struct expr_pool *to;
	const struct expr_pool *from;
	const struct affine_table *affine;
	int map[EXPR_NODES_MAX]; /* -1: not copied yet */
};

/* EQ and NE of affine sides, a == 0; -1: it does not fit, or the pool is full. */
static int equation_copy(struct expr_pool *to, struct affine a, enum expr_op op)
{
	struct affine opposite = a, divided = a;
	if (!affine_scale(&opposite, -1) || !affine_is_safe(&a))
		return -1;
	affine_reduce(&divided);
	const int at_least = affine_decide(&a), at_most = affine_decide(&opposite);
	if (at_least == 1 && at_most == 1)
		return expr_const_bool(to, op == EXPR_EQ);
	affine_reduce(&opposite);
	/* Both are exact only when the factors' common divisor divides the constant. */
	if (at_least == 0 || at_most == 0 || divided.constant != -opposite.constant)
		return expr_const_bool(to, op == EXPR_NE);
	return affine_expr(to, &divided, op);
}

/* A comparison of affine sides; -1: it is none, or has no canonical form. */
static int comparison_copy(struct copying *c, const struct expr_node *n)
{
	const struct affine_table *t = c->affine;
	const int x = n->arg[0], y = n->arg[1];
	struct affine a;
	if (n->op != EXPR_LE && n->op != EXPR_LT && n->op != EXPR_EQ && n->op != EXPR_NE)
		return -1;
	if (!t->is[x] || !t->is[y] || !affine_add(&a, &t->form[y], &t->form[x], -1))
		return -1;
	if (n->op == EXPR_EQ || n->op == EXPR_NE)
		return equation_copy(c->to, a, n->op);
	if (n->op == EXPR_LT && !affine_shift(&a, -1))
		return -1;
	affine_reduce(&a);
	const int decided = affine_decide(&a);
	if (decided >= 0)
		return expr_const_bool(c->to, decided);
	return affine_is_safe(&a) ? affine_expr(c->to, &a, EXPR_LE) : -1;
}

static int condition_copy(struct copying *c, int node)
{
	const struct expr_node *n = &c->from->node[node];
	int *made = &c->map[node];
	if (*made >= 0)
		return *made;
	if (n->type != TYPE_BOOL)
		return *made = expr_copy(c->to, c->from, node);
	*made = comparison_copy(c, n);
	if (*made >= 0)
		return *made;
	const bool joins = n->op == EXPR_AND || n->op == EXPR_OR || n->op == EXPR_NOT || n->op == EXPR_SELECT ||
	                   ((n->op == EXPR_EQ || n->op == EXPR_NE) && c->from->node[n->arg[0]].type == TYPE_BOOL);
	int arg[3] = {-1, -1, -1};
	if (!joins)
		return *made = expr_copy(c->to, c->from, node);
	for (int j = 0; j < expr_args(n); j++)
		if ((arg[j] = condition_copy(c, n->arg[j])) < 0)
			return -1;
	return *made = expr_make(c->to, n->op, arg[0], arg[1], arg[2]);
}

int condition_lower(struct expr_pool *to, const struct expr_pool *from, int root)
{
	struct affine_table affine;
	struct copying c = {.to = to, .from = from, .affine = &affine};
	affine_find(&affine, from, root);
	memset(c.map, -1, sizeof c.map);
	return condition_copy(&c, root);
}

/* ---- conjuncts ---- */

struct conjuncts {
	int count;
	int node[EXPR_NODES_MAX];
};

/* The members of a chain of AND, in the order of the pool. */
static void conjuncts_find(struct conjuncts *list, const struct expr_pool *pool, int root)
{
	bool open[EXPR_NODES_MAX] = {false};
	list->count = 0;
	open[root] = true;
	for (int i = root; i >= 0; i--) {
		if (!open[i])
			continue;
		if (pool->node[i].op == EXPR_AND)
			open[pool->node[i].arg[0]] = open[pool->node[i].arg[1]] = true;
		else
			list->node[list->count++] = i;
	}
}

struct lowering {
	const struct expr_pool *from;
	struct runs_source source;
	struct runs runs;
	struct conjuncts residual; /* of `from` */
};

static bool runs_fit(struct lowering *l, const struct runs *more)
{
	struct runs both;
	if (!runs_and(&both, &l->runs, more) || both.count > RUNS_MAX)
		return false;
	l->runs = both;
	return true;
}

/* Exact unions that are one run first: they never need room for runs, so the order of a mask does not matter to them. */
static void conjuncts_lower(struct lowering *l, const struct conjuncts *list)
{
	int kind[EXPR_NODES_MAX] = {0};
	for (int pass = 0; pass < 3; pass++)
		for (int i = 0; i < list->count; i++) {
			struct runs own;
			if (kind[i] != pass)
				continue;
			runs_find(&own, &l->source, list->node[i]);
			kind[i] = !own.exact ? 2 : own.count > 1;
			if (kind[i] <= pass && (!runs_fit(l, &own) || !own.exact))
				l->residual.node[l->residual.count++] = list->node[i];
		}
}

struct spelled {
	int node;
	struct text text;
};

static int spelled_order(const void *x, const void *y)
{
	const struct spelled *a = x, *b = y;
	return strcmp(text_str(&a->text), text_str(&b->text));
}

/* The residual in one order whatever the mask's was: that of its conjuncts' canonical texts. */
static int residual_build(struct expr_pool *to, const struct expr_pool *from, int root, const struct input *input)
{
	struct conjuncts list;
	conjuncts_find(&list, from, root);
	struct spelled *spelled = calloc((size_t)list.count, sizeof *spelled);
	int made = spelled ? expr_const_bool(to, true) : -1;
	for (int i = 0; spelled && i < list.count; i++) {
		spelled[i].node = list.node[i];
		expr_print(&spelled[i].text, from, list.node[i], input);
	}
	if (spelled)
		qsort(spelled, (size_t)list.count, sizeof *spelled, spelled_order);
	for (int i = 0; spelled && i < list.count; i++) {
		made = expr_make(to, EXPR_AND, made, expr_copy(to, from, spelled[i].node), -1);
		text_free(&spelled[i].text);
	}
	free(spelled);
	return made;
}

static int run_expr(struct expr_pool *pool, const struct run *run)
{
	int all = expr_const_bool(pool, true);
	for (int i = 0; i < run->count; i++)
		all = expr_make(pool, EXPR_AND, all, bound_expr(pool, &run->bound[i]), -1);
	return all;
}

static int runs_expr(struct expr_pool *pool, const struct run *run, int count)
{
	int any = expr_const_bool(pool, false);
	for (int i = 0; i < count; i++)
		any = expr_make(pool, EXPR_OR, any, run_expr(pool, &run[i]), -1);
	return any;
}

/* ---- how a conjunct is decided for a tile ---- */

/* Can the node's interval be anything but everything it may be at all? For inputs: is their element bounded for a tile,
 * by a value of the head, or minima and maxima over rows or keys? */
static bool opaque(const struct expr_pool *pool, int node)
{
	const struct expr_node *n = &pool->node[node];
	if (n->op != EXPR_INPUT)
		return n->op == EXPR_RANDOM;
	bool used[NAME_COUNT];
	node_names(used, pool, node);
	return (used[NAME_Q] && used[NAME_K]) || (n->type == TYPE_FLOAT && (used[NAME_Q] || used[NAME_K]));
}

/* The node that stands in the way of deciding a condition for a whole tile; -1: none. One member of an AND or OR that can
 * be decided is enough. */
static int obstacle(const struct expr_pool *pool, int node)
{
	const struct expr_node *n = &pool->node[node];
	if (n->type == TYPE_BOOL && (n->op == EXPR_AND || n->op == EXPR_OR)) {
		const int a = obstacle(pool, n->arg[0]), b = obstacle(pool, n->arg[1]);
		return a < 0 || b < 0 ? -1 : a;
	}
	bool used[EXPR_NODES_MAX] = {false};
	expr_used(used, pool, node);
	for (int i = 0; i <= node; i++)
		if (used[i] && opaque(pool, i))
			return i;
	return -1;
}

static void conjunct_note(struct program *p, int node, enum decided how, int because)
{
	if (p->conjunct_count < CONJUNCTS_MAX)
		p->conjunct[p->conjunct_count++] = (struct conjunct){node, how, because};
}

static void conjuncts_note(struct program *p)
{
	struct conjuncts list;
	if (p->run_count == 1) {
		for (int i = 0; i < p->run[0].count; i++)
			conjunct_note(p, bound_expr(&p->pool, &p->run[0].bound[i]), DECIDED_CLOSED, -1);
	} else {
		conjunct_note(p, runs_expr(&p->pool, p->run, p->run_count), DECIDED_CLOSED, -1);
	}
	if (p->pool.node[p->residual].op == EXPR_CONST)
		return;
	conjuncts_find(&list, &p->pool, p->residual);
	for (int i = list.count - 1; i >= 0; i--) {
		const int because = obstacle(&p->pool, list.node[i]);
		conjunct_note(p, list.node[i], because < 0 ? DECIDED_SCAN : DECIDED_NEVER, because);
	}
}

/* ---- the program ---- */

static void hidden_build(struct program *to)
{
	to->residual = to->mask = expr_const_bool(&to->pool, false);
	to->run_count = 1;
	memset(to->run, 0, sizeof to->run);
}

int mask_lower(struct program *to, const struct expr_pool *from, int mask, bool visible, const struct input *input)
{
	struct lowering l = {.from = from};
	struct conjuncts list;
	struct expr_pool draft = {0};
	struct copying copying = {.to = &draft, .from = from, .affine = &l.source.affine};
	runs_begin(&l.source, from, mask);
	l.runs = (struct runs){.count = 1, .exact = true};
	conjuncts_find(&list, from, mask);
	conjuncts_lower(&l, &list);
	memset(copying.map, -1, sizeof copying.map);
	int residual = expr_const_bool(&draft, visible && l.runs.count > 0);
	for (int i = 0; i < l.residual.count; i++)
		residual = expr_make(&draft, EXPR_AND, residual, condition_copy(&copying, l.residual.node[i]), -1);
	if (residual < 0)
		return -1;
	if (expr_is_const(&draft, residual, false)) {
		hidden_build(to);
		return 0;
	}
	runs_sort(&l.runs);
	to->run_count = l.runs.count;
	memcpy(to->run, l.runs.run, sizeof to->run);
	to->mask = runs_expr(&to->pool, to->run, to->run_count);
	to->residual = residual_build(&to->pool, &draft, residual, input);
	to->mask = expr_make(&to->pool, EXPR_AND, to->mask, to->residual, -1);
	if (to->mask < 0)
		return -1;
	conjuncts_note(to);
	return 0;
}
