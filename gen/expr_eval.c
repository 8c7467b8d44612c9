/* expr_eval: exact values of expressions. */
#include "gen/expr.h"

#include <math.h>
#include <string.h>

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
int64_t floor_mod(int64_t a, int64_t b) { return a % b < 0 ? a % b + b : a % b; }

int64_t expr_random(int64_t seed, int64_t x, int64_t y)
{
	uint32_t z = (uint32_t)seed * 0x9E3779B1u;
	z = (z ^ (uint32_t)x) * 0x85EBCA6Bu;
	z ^= z >> 15;
	z = (z ^ (uint32_t)y) * 0xC2B2AE35u;
	z ^= z >> 13;
	z *= 0x27D4EB2Fu;
	z ^= z >> 16;
	return z & 0xFFFF;
}

int64_t expr_floor(double x)
{
	if (!(x == x))
		return 0;
	return x <= INT32_MIN ? INT32_MIN : x >= INT32_MAX ? INT32_MAX : (int64_t)floor(x);
}

/* NaN is no answer when there is another, as fminf and fmaxf have it. */
static double float_min(double a, double b) { return fmin(a, b); }

static double float_apply(enum expr_op op, const struct expr_value *v)
{
	const double a = v[0].f;
	switch (op) {
	case EXPR_NEG: return -a;
	case EXPR_ABS: return fabs(a);
	case EXPR_ADD: return a + v[1].f;
	case EXPR_SUB: return a - v[1].f;
	case EXPR_MUL: return a * v[1].f;
	case EXPR_DIV: return a / v[1].f;
	case EXPR_MIN: return float_min(a, v[1].f);
	case EXPR_MAX: return -float_min(-a, -v[1].f);
	case EXPR_SELECT: return v[0].i ? v[1].f : v[2].f;
	case EXPR_FLOAT: return (double)v[0].i;
	case EXPR_EXP: return exp(a);
	case EXPR_LOG: return log(a);
	case EXPR_TANH: return tanh(a);
	case EXPR_SQRT: return sqrt(a);
	case EXPR_SIGMOID: return 1 / (1 + exp(-a));
	default: return 0;
	}
}

static bool compare_floats(enum expr_op op, double a, double b)
{
	return op == EXPR_LT ? a < b : op == EXPR_LE ? a <= b : op == EXPR_EQ ? a == b : a != b;
}

static bool int_apply(int64_t *r, enum expr_op op, int64_t a, int64_t b, int64_t c)
{
	switch (op) {
	case EXPR_NEG: return !__builtin_sub_overflow((int64_t)0, a, r);
	case EXPR_ABS:
		if (a < 0)
			return !__builtin_sub_overflow((int64_t)0, a, r);
		*r = a;
		return true;
	case EXPR_NOT: *r = !a; return true;
	case EXPR_ADD: return !__builtin_add_overflow(a, b, r);
	case EXPR_SUB: return !__builtin_sub_overflow(a, b, r);
	case EXPR_MUL: return !__builtin_mul_overflow(a, b, r);
	case EXPR_DIV: *r = b < 1 ? 0 : floor_div(a, b); return true; /* below 1 at no position */
	case EXPR_MOD: *r = b < 1 ? 0 : floor_mod(a, b); return true;
	case EXPR_MIN: *r = a < b ? a : b; return true;
	case EXPR_MAX: *r = a > b ? a : b; return true;
	case EXPR_LT: *r = a < b; return true;
	case EXPR_LE: *r = a <= b; return true;
	case EXPR_EQ: *r = a == b; return true;
	case EXPR_NE: *r = a != b; return true;
	case EXPR_AND: *r = a && b; return true;
	case EXPR_OR: *r = a || b; return true;
	case EXPR_SELECT: *r = a ? b : c; return true;
	case EXPR_RANDOM: *r = expr_random(a, b, c); return true;
	default: *r = 0; return true;
	}
}

bool expr_apply(struct expr_value *r, const struct expr_pool *pool, const struct expr_node *n,
                const struct expr_value *v)
{
	int64_t a[3] = {0, 0, 0};
	*r = (struct expr_value){0, 0};
	if (n->type == TYPE_FLOAT) {
		r->f = float_apply(n->op, v);
		return true;
	}
	if (expr_ops[n->op].args && n->op != EXPR_SELECT && pool->node[n->arg[0]].type == TYPE_FLOAT) {
		r->i = n->op == EXPR_FLOOR ? expr_floor(v[0].f) : compare_floats(n->op, v[0].f, v[1].f);
		return true;
	}
	for (int j = 0; j < expr_ops[n->op].args; j++)
		a[j] = v[j].i;
	return int_apply(&r->i, n->op, a[0], a[1], a[2]);
}

/* used: the nodes that the root is made of; NULL: all. */
static struct expr_value nodes_eval(const struct expr_pool *pool, int root, const bool *used, const int64_t value[NAME_COUNT], double s,
                                    expr_input_reader *reader, void *context)
{
	struct expr_value v[EXPR_NODES_MAX];
	for (int i = 0; i <= root; i++) {
		const struct expr_node *n = &pool->node[i];
		if (used && !used[i])
			continue;
		if (n->op == EXPR_CONST) {
			v[i] = (struct expr_value){n->i, n->f};
		} else if (n->op == EXPR_NAME) {
			v[i] = n->i == NAME_S ? (struct expr_value){0, s} : (struct expr_value){value[n->i], 0};
		} else if (n->op == EXPR_INPUT) {
			int64_t index[INPUT_DIMS_MAX] = {0};
			for (int j = 0; j < expr_args(n); j++)
				index[j] = v[n->arg[j]].i;
			v[i] = reader ? reader(context, (int)n->i, index) : (struct expr_value){0, 0};
		} else {
			struct expr_value arg[EXPR_ARGS_MAX];
			for (int j = 0; j < expr_ops[n->op].args; j++)
				arg[j] = v[n->arg[j]];
			(void)expr_apply(&v[i], pool, n, arg);
		}
	}
	return v[root];
}

struct expr_value expr_eval(const struct expr_pool *pool, int root, const int64_t value[NAME_COUNT], double s,
                            expr_input_reader *reader, void *context)
{
	bool used[EXPR_NODES_MAX] = {false};
	expr_used(used, pool, root);
	return nodes_eval(pool, root, used, value, s, reader, context);
}

struct expr_value expr_eval_all(const struct expr_pool *pool, int root, const int64_t value[NAME_COUNT])
{
	return nodes_eval(pool, root, NULL, value, 0, NULL, NULL);
}
