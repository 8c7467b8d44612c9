/* expr_derive: the derivative of an expression, as an expression that shares its parts. Forward: each node's derivative
 * from those of its operands. What does not depend on the variable has none, so that nothing is multiplied by zero, which
 * would not be zero for infinities. */
#include "gen/expr.h"

#include <float.h>
#include <math.h>

enum { NONE = -2 }; /* the derivative is zero; -1: the pool is full */

static int make1(struct expr_pool *pool, enum expr_op op, int a)
{
	return a == NONE ? NONE : expr_make(pool, op, a, -1, -1);
}
static int make2(struct expr_pool *pool, enum expr_op op, int a, int b) { return expr_make(pool, op, a, b, -1); }

static int add(struct expr_pool *pool, int a, int b)
{
	return a == NONE ? b : b == NONE ? a : make2(pool, EXPR_ADD, a, b);
}

static int sub(struct expr_pool *pool, int a, int b)
{
	return b == NONE ? a : a == NONE ? make1(pool, EXPR_NEG, b) : make2(pool, EXPR_SUB, a, b);
}

static bool is_float_const(const struct expr_pool *pool, int a)
{
	return a >= 0 && pool->node[a].op == EXPR_CONST && pool->node[a].type == TYPE_FLOAT;
}

/* Constants are gathered: x / 30 * 30 has the derivative 1, whatever the rounding. */
static int mul(struct expr_pool *pool, int a, int b)
{
	if (a == NONE || b == NONE)
		return NONE;
	if (a < 0 || b < 0)
		return -1;
	if (is_float_const(pool, a)) {
		const int constant = a;
		a = b;
		b = constant;
	}
	if (is_float_const(pool, b)) {
		const struct expr_node *n = &pool->node[a];
		const bool product = n->op == EXPR_MUL && is_float_const(pool, n->arg[1]);
		const double c = pool->node[b].f * (product ? pool->node[n->arg[1]].f : n->op == EXPR_CONST ? n->f : 1);
		if (fabs(c - 1) < 4 * DBL_EPSILON)
			return product ? n->arg[0] : n->op == EXPR_CONST ? expr_const_float(pool, 1) : a;
		if (product && fabs(c) <= FLT_MAX)
			return make2(pool, EXPR_MUL, n->arg[0], expr_const_float(pool, c));
	}
	return make2(pool, EXPR_MUL, a, b);
}

static int divide(struct expr_pool *pool, int a, int b)
{
	if (a == NONE)
		return NONE;
	if (is_float_const(pool, b) && fabs(1 / pool->node[b].f) <= FLT_MAX)
		return mul(pool, a, expr_const_float(pool, 1 / pool->node[b].f));
	return make2(pool, EXPR_DIV, a, b);
}

/* condition ? a : b */
static int choose(struct expr_pool *pool, int condition, int a, int b)
{
	if (a == NONE && b == NONE)
		return NONE;
	const int zero = expr_const_float(pool, 0);
	return expr_make(pool, EXPR_SELECT, condition, a == NONE ? zero : a, b == NONE ? zero : b);
}

/* Of node `at` = op(u, v) with derivatives du, dv of its float operands; dw of a choice's second value. */
static int node_derive(struct expr_pool *pool, int at, int du, int dv, int dw)
{
	const struct expr_node n = pool->node[at];
	const int u = n.arg[0], v = n.arg[1];
	const int one = expr_const_float(pool, 1), zero = expr_const_float(pool, 0);
	switch (n.op) {
	case EXPR_NEG: return make1(pool, EXPR_NEG, du);
	case EXPR_ABS:
		if (du == NONE)
			return NONE;
		return choose(pool, make2(pool, EXPR_LT, zero, u), du,
		              choose(pool, make2(pool, EXPR_LT, u, zero), make1(pool, EXPR_NEG, du), NONE));
	case EXPR_ADD: return add(pool, du, dv);
	case EXPR_SUB: return sub(pool, du, dv);
	case EXPR_MUL: return add(pool, mul(pool, du, v), mul(pool, dv, u));
	case EXPR_DIV: return divide(pool, sub(pool, du, mul(pool, dv, at)), v);
	case EXPR_MIN: return choose(pool, make2(pool, EXPR_LE, u, v), du, dv);
	case EXPR_MAX: return choose(pool, make2(pool, EXPR_LE, v, u), du, dv);
	case EXPR_SELECT: return choose(pool, u, dv, dw);
	case EXPR_EXP: return mul(pool, du, at);
	case EXPR_LOG: return divide(pool, du, u);
	case EXPR_TANH: return mul(pool, make2(pool, EXPR_SUB, one, make2(pool, EXPR_MUL, at, at)), du);
	case EXPR_SQRT: return mul(pool, make2(pool, EXPR_DIV, expr_const_float(pool, 0.5), at), du);
	case EXPR_SIGMOID: return mul(pool, make2(pool, EXPR_MUL, at, make2(pool, EXPR_SUB, one, at)), du);
	default: return NONE;
	}
}

int expr_derive(struct expr_pool *pool, int root, int at)
{
	int d[EXPR_NODES_MAX];
	bool used[EXPR_NODES_MAX] = {false};
	expr_used(used, pool, root);
	for (int i = 0; i <= root; i++) {
		const struct expr_node n = pool->node[i];
		int arg[3] = {NONE, NONE, NONE};
		bool depends = false;
		d[i] = NONE;
		if (!used[i] || n.type != TYPE_FLOAT)
			continue;
		for (int j = 0; j < expr_ops[n.op].args; j++) {
			arg[j] = pool->node[n.arg[j]].type == TYPE_FLOAT ? d[n.arg[j]] : NONE;
			depends = depends || arg[j] != NONE;
		}
		if (i == at)
			d[i] = expr_const_float(pool, 1);
		else if (depends)
			d[i] = node_derive(pool, i, arg[0], arg[1], arg[2]);
		if (d[i] == -1)
			return -1;
	}
	return d[root] == NONE ? expr_const_float(pool, 0) : d[root];
}
