/* expr: typed expressions over positions, in a flat pool.
 *
 * expr_make is the only way to a node: it checks types, folds constants, applies identities that hold for every value,
 * orders the sides of commutative operators and shares equal nodes, so two spellings of one expression that these rules
 * relate are one index. The order of operands is structural, never by index, so that printing and parsing again gives
 * the same tree whatever else the pool holds. */
#include "gen/expr.h"

#include <inttypes.h>
#include <string.h>

const char *const expr_names[NAME_COUNT] = {
	[NAME_B] = "b",   [NAME_H] = "h",   [NAME_Q] = "q",   [NAME_K] = "k", [NAME_SQ] = "sq",
	[NAME_SK] = "sk", [NAME_HQ] = "hq", [NAME_HK] = "hk", [NAME_S] = "s",
};

const struct expr_op_row expr_ops[EXPR_OP_COUNT] = {
	[EXPR_CONST] = {"constant", 0, 0, FORM_ATOM, false}, [EXPR_NAME] = {"name", 0, 0, FORM_ATOM, false},
	[EXPR_NEG] = {"-", 1, 8, FORM_PREFIX, false},        [EXPR_ABS] = {"abs", 1, 9, FORM_CALL, false},
	[EXPR_NOT] = {"!", 1, 8, FORM_PREFIX, false},        [EXPR_ADD] = {"+", 2, 6, FORM_INFIX, true},
	[EXPR_SUB] = {"-", 2, 6, FORM_INFIX, false},         [EXPR_MUL] = {"*", 2, 7, FORM_INFIX, true},
	[EXPR_DIV] = {"/", 2, 7, FORM_INFIX, false},         [EXPR_MOD] = {"%", 2, 7, FORM_INFIX, false},
	[EXPR_MIN] = {"min", 2, 9, FORM_CALL, true},         [EXPR_MAX] = {"max", 2, 9, FORM_CALL, true},
	[EXPR_LT] = {"<", 2, 5, FORM_INFIX, false},          [EXPR_LE] = {"<=", 2, 5, FORM_INFIX, false},
	[EXPR_EQ] = {"==", 2, 4, FORM_INFIX, true},          [EXPR_NE] = {"!=", 2, 4, FORM_INFIX, true},
	[EXPR_AND] = {"&&", 2, 3, FORM_INFIX, true},         [EXPR_OR] = {"||", 2, 2, FORM_INFIX, true},
	[EXPR_SELECT] = {"?", 3, 1, FORM_SELECT, false},
};

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
int64_t floor_mod(int64_t a, int64_t b) { return a % b < 0 ? a % b + b : a % b; }

/* ---- one operation on exact values ---- */

/* The value of an int or bool operation; false: the exact result does not fit 64 bits, *r is what wraps around. */
static bool op_apply(int64_t *r, enum expr_op op, int64_t a, int64_t b, int64_t c)
{
	switch (op) {
	case EXPR_CONST:
	case EXPR_NAME: *r = 0; return true;
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
	case EXPR_DIV: *r = floor_div(a, b); return true;
	case EXPR_MOD: *r = floor_mod(a, b); return true;
	case EXPR_MIN: *r = a < b ? a : b; return true;
	case EXPR_MAX: *r = a > b ? a : b; return true;
	case EXPR_LT: *r = a < b; return true;
	case EXPR_LE: *r = a <= b; return true;
	case EXPR_EQ: *r = a == b; return true;
	case EXPR_NE: *r = a != b; return true;
	case EXPR_AND: *r = a && b; return true;
	case EXPR_OR: *r = a || b; return true;
	case EXPR_SELECT: *r = a ? b : c; return true;
	}
	*r = 0;
	return true;
}

int64_t expr_eval_int(const struct expr_pool *pool, int root, const int64_t value[NAME_COUNT])
{
	int64_t v[EXPR_NODES_MAX] = {0};
	for (int i = 0; i <= root; i++) {
		const struct expr_node *n = &pool->node[i];
		int64_t a[3] = {0, 0, 0};
		for (int j = 0; j < expr_ops[n->op].args; j++)
			a[j] = v[n->arg[j]];
		if (n->type == TYPE_FLOAT)
			v[i] = 0;
		else if (n->op == EXPR_CONST)
			v[i] = n->i;
		else if (n->op == EXPR_NAME)
			v[i] = value[n->i];
		else
			(void)op_apply(&v[i], n->op, a[0], a[1], a[2]);
	}
	return v[root];
}

/* ---- nodes ---- */

static bool node_equal(const struct expr_node *x, const struct expr_node *y)
{
	return x->op == y->op && x->type == y->type && x->i == y->i && x->arg[0] == y->arg[0] &&
	       x->arg[1] == y->arg[1] && x->arg[2] == y->arg[2];
}

static int node_add(struct expr_pool *pool, enum expr_op op, enum expr_type type, int64_t value, int a, int b, int c)
{
	struct expr_node n;
	memset(&n, 0, sizeof n);
	n.op = op;
	n.type = type;
	n.i = value;
	n.arg[0] = a;
	n.arg[1] = b;
	n.arg[2] = c;
	for (int i = 0; i < pool->count; i++)
		if (node_equal(&pool->node[i], &n))
			return i;
	if (pool->count == EXPR_NODES_MAX)
		return -1;
	pool->node[pool->count] = n;
	return pool->count++;
}

int expr_const_int(struct expr_pool *pool, int64_t value)
{
	return node_add(pool, EXPR_CONST, TYPE_INT, value, -1, -1, -1);
}

int expr_const_bool(struct expr_pool *pool, bool value)
{
	return node_add(pool, EXPR_CONST, TYPE_BOOL, value, -1, -1, -1);
}

int expr_variable(struct expr_pool *pool, enum expr_name name)
{
	return node_add(pool, EXPR_NAME, name == NAME_S ? TYPE_FLOAT : TYPE_INT, name, -1, -1, -1);
}

bool expr_is_const(const struct expr_pool *pool, int node, int64_t value)
{
	return pool->node[node].op == EXPR_CONST && pool->node[node].i == value;
}

/* Names first, then operations, constants last. Two nodes of one pool are equal exactly when their indexes are, so the
 * first differing argument decides and the walk is one path down. */
static int node_order(const struct expr_pool *pool, int x, int y)
{
	while (x != y) {
		const struct expr_node *a = &pool->node[x], *b = &pool->node[y];
		const int rank_a = a->op == EXPR_CONST ? EXPR_OP_COUNT : (int)a->op;
		const int rank_b = b->op == EXPR_CONST ? EXPR_OP_COUNT : (int)b->op;
		if (rank_a != rank_b)
			return rank_a < rank_b ? -1 : 1;
		if (a->type != b->type)
			return a->type < b->type ? -1 : 1;
		if (a->i != b->i)
			return a->i < b->i ? -1 : 1;
		int j = 0;
		while (a->arg[j] == b->arg[j])
			j++;
		x = a->arg[j];
		y = b->arg[j];
	}
	return 0;
}

/* Type of an operation's result; false: the operands do not fit it. */
static bool op_type(enum expr_type *type, const struct expr_pool *pool, enum expr_op op, const int arg[3])
{
	enum expr_type t[3] = {TYPE_BOOL, TYPE_BOOL, TYPE_BOOL};
	for (int j = 0; j < expr_ops[op].args; j++)
		t[j] = pool->node[arg[j]].type;
	switch (op) {
	case EXPR_CONST:
	case EXPR_NAME: return false;
	case EXPR_NEG:
	case EXPR_ABS: *type = t[0]; return t[0] != TYPE_BOOL;
	case EXPR_NOT: *type = TYPE_BOOL; return t[0] == TYPE_BOOL;
	case EXPR_ADD:
	case EXPR_SUB:
	case EXPR_MUL:
	case EXPR_MIN:
	case EXPR_MAX: *type = t[0]; return t[0] == t[1] && t[0] != TYPE_BOOL;
	case EXPR_DIV:
	case EXPR_MOD: /* a positive constant divisor: the result is defined everywhere */
		*type = TYPE_INT;
		return t[0] == TYPE_INT && t[1] == TYPE_INT && pool->node[arg[1]].op == EXPR_CONST &&
		       pool->node[arg[1]].i > 0;
	case EXPR_LT:
	case EXPR_LE: *type = TYPE_BOOL; return t[0] == TYPE_INT && t[1] == TYPE_INT;
	case EXPR_EQ:
	case EXPR_NE: *type = TYPE_BOOL; return t[0] == t[1] && t[0] != TYPE_FLOAT;
	case EXPR_AND:
	case EXPR_OR: *type = TYPE_BOOL; return t[0] == TYPE_BOOL && t[1] == TYPE_BOOL;
	case EXPR_SELECT: *type = t[1]; return t[0] == TYPE_BOOL && t[1] == t[2];
	}
	return false;
}

enum { KEEP = -2 }; /* no identity applies */

/* !x pushed inward, so that NOT is left only on choices and comparisons of booleans. */
static int fold_not(struct expr_pool *pool, int x)
{
	const struct expr_node n = pool->node[x];
	switch (n.op) {
	case EXPR_NOT: return n.arg[0];
	case EXPR_LT: return expr_make(pool, EXPR_LE, n.arg[1], n.arg[0], -1);
	case EXPR_LE: return expr_make(pool, EXPR_LT, n.arg[1], n.arg[0], -1);
	case EXPR_EQ: return expr_make(pool, EXPR_NE, n.arg[0], n.arg[1], -1);
	case EXPR_NE: return expr_make(pool, EXPR_EQ, n.arg[0], n.arg[1], -1);
	case EXPR_AND:
	case EXPR_OR: {
		const int a = expr_make(pool, EXPR_NOT, n.arg[0], -1, -1);
		const int b = expr_make(pool, EXPR_NOT, n.arg[1], -1, -1);
		return expr_make(pool, n.op == EXPR_AND ? EXPR_OR : EXPR_AND, a, b, -1);
	}
	default: return KEEP;
	}
}

/* Identities of int and bool operations that hold for every value, wrapped or not. Returns the node, or KEEP.
 * Commutative operands are already in order: a constant is b. */
static int fold_identity(struct expr_pool *pool, enum expr_op op, int a, int b, int c)
{
	switch (op) {
	case EXPR_NEG: return pool->node[a].op == EXPR_NEG ? pool->node[a].arg[0] : KEEP;
	case EXPR_ABS:
		if (pool->node[a].op == EXPR_NEG)
			return expr_make(pool, EXPR_ABS, pool->node[a].arg[0], -1, -1);
		return pool->node[a].op == EXPR_ABS ? a : KEEP;
	case EXPR_NOT: return fold_not(pool, a);
	case EXPR_ADD: return expr_is_const(pool, b, 0) ? a : KEEP;
	case EXPR_SUB:
		if (expr_is_const(pool, a, 0))
			return expr_make(pool, EXPR_NEG, b, -1, -1);
		return expr_is_const(pool, b, 0) ? a : a == b ? expr_const_int(pool, 0) : KEEP;
	case EXPR_MUL: return expr_is_const(pool, b, 1) ? a : expr_is_const(pool, b, 0) ? b : KEEP;
	case EXPR_DIV: return expr_is_const(pool, b, 1) ? a : KEEP;
	case EXPR_MOD: return expr_is_const(pool, b, 1) ? expr_const_int(pool, 0) : KEEP;
	case EXPR_MIN:
	case EXPR_MAX: return a == b ? a : KEEP;
	case EXPR_LT:
		if (a == b || expr_is_const(pool, b, INT64_MIN) || expr_is_const(pool, a, INT64_MAX))
			return expr_const_bool(pool, false);
		return KEEP;
	case EXPR_LE: /* an unbounded argument is the largest integer: nothing exceeds it */
		if (a == b || expr_is_const(pool, b, INT64_MAX) || expr_is_const(pool, a, INT64_MIN))
			return expr_const_bool(pool, true);
		return KEEP;
	case EXPR_EQ: return a == b ? expr_const_bool(pool, true) : KEEP;
	case EXPR_NE: return a == b ? expr_const_bool(pool, false) : KEEP;
	case EXPR_AND: return a == b || expr_is_const(pool, b, true) ? a : expr_is_const(pool, b, false) ? b : KEEP;
	case EXPR_OR: return a == b || expr_is_const(pool, b, false) ? a : expr_is_const(pool, b, true) ? b : KEEP;
	case EXPR_SELECT:
		if (pool->node[a].op == EXPR_CONST)
			return pool->node[a].i ? b : c;
		if (pool->node[a].op == EXPR_NOT)
			return expr_make(pool, EXPR_SELECT, pool->node[a].arg[0], c, b);
		return b == c ? b : KEEP;
	default: return KEEP;
	}
}

int expr_make(struct expr_pool *pool, enum expr_op op, int a, int b, int c)
{
	int arg[3] = {a, b, c};
	const int args = expr_ops[op].args;
	bool constant = true, floating = false;
	for (int j = 0; j < 3; j++) {
		if (j >= args) {
			arg[j] = -1;
			continue;
		}
		if (arg[j] < 0 || arg[j] >= pool->count)
			return -1;
		constant = constant && pool->node[arg[j]].op == EXPR_CONST;
		floating = floating || pool->node[arg[j]].type == TYPE_FLOAT;
	}
	enum expr_type type;
	if (!op_type(&type, pool, op, arg))
		return -1;
	if (expr_ops[op].commutative && node_order(pool, arg[0], arg[1]) > 0) {
		const int first = arg[0];
		arg[0] = arg[1];
		arg[1] = first;
	}
	if (!floating) {
		int64_t v[3] = {0, 0, 0}, folded;
		for (int j = 0; j < args; j++)
			v[j] = pool->node[arg[j]].i;
		if (constant && op_apply(&folded, op, v[0], v[1], v[2]))
			return node_add(pool, EXPR_CONST, type, folded, -1, -1, -1);
		const int same = fold_identity(pool, op, arg[0], arg[1], arg[2]);
		if (same != KEEP)
			return same;
	}
	return node_add(pool, op, type, 0, arg[0], arg[1], arg[2]);
}

/* map[i]: where node i went, -1 not yet. Arguments left to right, so the order depends on the expression alone. */
static int node_copy(struct expr_pool *to, const struct expr_pool *from, int node, int map[EXPR_NODES_MAX])
{
	const struct expr_node *n = &from->node[node];
	int arg[3] = {-1, -1, -1};
	if (map[node] >= 0)
		return map[node];
	for (int j = 0; j < expr_ops[n->op].args; j++) {
		arg[j] = node_copy(to, from, n->arg[j], map);
		if (arg[j] < 0)
			return -1;
	}
	if (expr_ops[n->op].form == FORM_ATOM)
		map[node] = node_add(to, n->op, n->type, n->i, -1, -1, -1);
	else
		map[node] = expr_make(to, n->op, arg[0], arg[1], arg[2]);
	return map[node];
}

int expr_copy(struct expr_pool *to, const struct expr_pool *from, int root)
{
	int map[EXPR_NODES_MAX];
	memset(map, -1, sizeof map);
	return node_copy(to, from, root, map);
}

/* ---- printing ---- */

static void print_const(struct text *out, const struct expr_node *n)
{
	if (n->type == TYPE_BOOL)
		text_puts(out, n->i ? "true" : "false");
	else
		text_addf(out, "%" PRId64, n->i);
}

/* `least`: the weakest precedence that may stand here without parentheses. */
static void print_node(struct text *out, const struct expr_pool *pool, int root, int least)
{
	const struct expr_node *n = &pool->node[root];
	const struct expr_op_row *row = &expr_ops[n->op];
	const bool wrap = row->form != FORM_ATOM && row->precedence < least;
	if (wrap)
		text_puts(out, "(");
	switch (row->form) {
	case FORM_ATOM:
		if (n->op == EXPR_NAME)
			text_puts(out, expr_names[n->i]);
		else
			print_const(out, n);
		break;
	case FORM_PREFIX:
		text_puts(out, row->spelling);
		print_node(out, pool, n->arg[0], row->precedence);
		break;
	case FORM_INFIX:
		print_node(out, pool, n->arg[0], row->precedence);
		text_addf(out, " %s ", row->spelling);
		print_node(out, pool, n->arg[1], row->precedence + 1);
		break;
	case FORM_CALL:
		text_addf(out, "%s(", row->spelling);
		for (int j = 0; j < row->args; j++) {
			text_puts(out, j ? ", " : "");
			print_node(out, pool, n->arg[j], 0);
		}
		text_puts(out, ")");
		break;
	case FORM_SELECT:
		print_node(out, pool, n->arg[0], row->precedence + 1);
		text_puts(out, " ? ");
		print_node(out, pool, n->arg[1], row->precedence);
		text_puts(out, " : ");
		print_node(out, pool, n->arg[2], row->precedence);
		break;
	}
	if (wrap)
		text_puts(out, ")");
}

void expr_print(struct text *out, const struct expr_pool *pool, int root) { print_node(out, pool, root, 0); }

/* The functions that operators without a C spelling become. floor_div and floor_mod differ from / and % only below zero. */
static const char *c_function(enum expr_op op)
{
	switch (op) {
	case EXPR_ABS: return "wide_abs";
	case EXPR_MIN: return "wide_min";
	case EXPR_MAX: return "wide_max";
	case EXPR_DIV: return "floor_div";
	case EXPR_MOD: return "floor_mod";
	default: return NULL;
	}
}

void expr_print_c(struct text *out, const struct expr_pool *pool, int root)
{
	const struct expr_node *n = &pool->node[root];
	const struct expr_op_row *row = &expr_ops[n->op];
	if (n->op == EXPR_NAME) {
		text_puts(out, expr_names[n->i]);
	} else if (n->op == EXPR_CONST) {
		if (n->type == TYPE_INT && n->i == INT64_MIN)
			text_puts(out, "(-9223372036854775807LL - 1)");
		else if (n->type == TYPE_INT)
			text_addf(out, n->i < 0 ? "(%" PRId64 "LL)" : "%" PRId64 "LL", n->i);
		else
			print_const(out, n);
	} else if (c_function(n->op)) {
		text_addf(out, "%s(", c_function(n->op));
		for (int j = 0; j < row->args; j++) {
			text_puts(out, j ? ", " : "");
			expr_print_c(out, pool, n->arg[j]);
		}
		text_puts(out, ")");
	} else {
		text_puts(out, row->form == FORM_PREFIX ? row->spelling : "");
		text_puts(out, "(");
		expr_print_c(out, pool, n->arg[0]);
		if (row->args > 1) {
			text_addf(out, " %s ", row->spelling);
			expr_print_c(out, pool, n->arg[1]);
		}
		if (row->args > 2) {
			text_puts(out, " : ");
			expr_print_c(out, pool, n->arg[2]);
		}
		text_puts(out, ")");
	}
}

/* ---- interval analysis ---- */

__extension__ typedef __int128 wide;

static struct interval interval_wide(wide lo, wide hi, bool *overflow)
{
	if (lo < INT64_MIN || hi > INT64_MAX) {
		*overflow = true;
		return (struct interval){INT64_MIN, INT64_MAX};
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

static struct interval interval_apply(enum expr_op op, struct interval a, struct interval b, struct interval c,
                                      bool *overflow)
{
	const bool apart = a.hi < b.lo || b.hi < a.lo, same = is_point(a) && is_point(b) && a.lo == b.lo;
	switch (op) {
	case EXPR_CONST:
	case EXPR_NAME: break;
	case EXPR_NEG: return interval_wide(-(wide)a.hi, -(wide)a.lo, overflow);
	case EXPR_ABS:
		if (a.lo >= 0)
			return a;
		return interval_wide(a.hi < 0 ? -(wide)a.hi : 0, -(wide)a.lo > a.hi ? -(wide)a.lo : a.hi, overflow);
	case EXPR_NOT: return (struct interval){!a.hi, !a.lo};
	case EXPR_ADD: return interval_wide((wide)a.lo + b.lo, (wide)a.hi + b.hi, overflow);
	case EXPR_SUB: return interval_wide((wide)a.lo - b.hi, (wide)a.hi - b.lo, overflow);
	case EXPR_MUL: return interval_mul(a, b, overflow);
	case EXPR_DIV: return (struct interval){floor_div(a.lo, b.lo), floor_div(a.hi, b.lo)};
	case EXPR_MOD:
		if (floor_div(a.lo, b.lo) == floor_div(a.hi, b.lo))
			return (struct interval){floor_mod(a.lo, b.lo), floor_mod(a.hi, b.lo)};
		return (struct interval){0, b.lo - 1};
	case EXPR_MIN: return (struct interval){min2(a.lo, b.lo), min2(a.hi, b.hi)};
	case EXPR_MAX: return (struct interval){max2(a.lo, b.lo), max2(a.hi, b.hi)};
	case EXPR_LT: return (struct interval){a.hi < b.lo, a.lo < b.hi};
	case EXPR_LE: return (struct interval){a.hi <= b.lo, a.lo <= b.hi};
	case EXPR_EQ: return (struct interval){same, !apart};
	case EXPR_NE: return (struct interval){apart, !same};
	case EXPR_AND: return (struct interval){a.lo && b.lo, a.hi && b.hi};
	case EXPR_OR: return (struct interval){a.lo || b.lo, a.hi || b.hi};
	case EXPR_SELECT: return is_point(a) ? (a.lo ? b : c) : hull(b, c);
	}
	return (struct interval){INT64_MIN, INT64_MAX};
}

struct interval expr_interval(const struct expr_pool *pool, int root, const struct interval name[NAME_COUNT],
                              bool *overflow)
{
	struct interval v[EXPR_NODES_MAX];
	for (int i = 0; i <= root; i++) {
		const struct expr_node *n = &pool->node[i];
		struct interval a[3] = {{0, 0}, {0, 0}, {0, 0}};
		for (int j = 0; j < expr_ops[n->op].args; j++)
			a[j] = v[n->arg[j]];
		if (n->type == TYPE_FLOAT)
			v[i] = (struct interval){INT64_MIN, INT64_MAX};
		else if (n->op == EXPR_CONST)
			v[i] = (struct interval){n->i, n->i};
		else if (n->op == EXPR_NAME)
			v[i] = name[n->i];
		else
			v[i] = interval_apply(n->op, a[0], a[1], a[2], overflow);
	}
	return v[root];
}
