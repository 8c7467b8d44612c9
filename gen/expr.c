/* expr: typed expressions over positions, in a flat pool.
 *
 * expr_make is the only way to an operation: it checks types, turns ints into floats where the two kinds meet, folds
 * constants, applies identities, orders the sides of commutative operators and shares equal nodes, so two spellings of
 * one expression that these rules relate are one index. The order of operands is structural, never by index, so that
 * printing and parsing again gives the same tree whatever else the pool holds.
 *
 * Identities of ints hold for every value. Those of floats hold for infinities and NaN too, so x - x, x * 0 and x <= x
 * stay as they are; only the sign of a zero is not kept (x + 0 is x). Float constants are folded in double, and only to
 * what float32 can hold: the rest is left to be computed. */
#include "gen/expr.h"

#include <float.h>
#include <math.h>
#include <string.h>

const char *const expr_names[NAME_COUNT] = {
	[NAME_B] = "b",   [NAME_H] = "h",   [NAME_Q] = "q",   [NAME_K] = "k", [NAME_SQ] = "sq",
	[NAME_SK] = "sk", [NAME_HQ] = "hq", [NAME_HK] = "hk", [NAME_S] = "s",
};

const char *const expr_type_words[] = {
	[TYPE_BOOL] = "a condition", [TYPE_INT] = "a whole number", [TYPE_FLOAT] = "a real number"};

const struct expr_op_row expr_ops[EXPR_OP_COUNT] = {
	[EXPR_CONST] = {"constant", 0, 0, FORM_ATOM, false},  [EXPR_NAME] = {"name", 0, 0, FORM_ATOM, false},
	[EXPR_INPUT] = {"input", 0, 0, FORM_INDEX, false},    [EXPR_NEG] = {"-", 1, 8, FORM_PREFIX, false},
	[EXPR_ABS] = {"abs", 1, 9, FORM_CALL, false},         [EXPR_NOT] = {"!", 1, 8, FORM_PREFIX, false},
	[EXPR_ADD] = {"+", 2, 6, FORM_INFIX, true},           [EXPR_SUB] = {"-", 2, 6, FORM_INFIX, false},
	[EXPR_MUL] = {"*", 2, 7, FORM_INFIX, true},           [EXPR_DIV] = {"/", 2, 7, FORM_INFIX, false},
	[EXPR_MOD] = {"%", 2, 7, FORM_INFIX, false},          [EXPR_MIN] = {"min", 2, 9, FORM_CALL, true},
	[EXPR_MAX] = {"max", 2, 9, FORM_CALL, true},          [EXPR_LT] = {"<", 2, 5, FORM_INFIX, false},
	[EXPR_LE] = {"<=", 2, 5, FORM_INFIX, false},          [EXPR_EQ] = {"==", 2, 4, FORM_INFIX, true},
	[EXPR_NE] = {"!=", 2, 4, FORM_INFIX, true},           [EXPR_AND] = {"&&", 2, 3, FORM_INFIX, true},
	[EXPR_OR] = {"||", 2, 2, FORM_INFIX, true},           [EXPR_SELECT] = {"?", 3, 1, FORM_SELECT, false},
	[EXPR_FLOAT] = {"float", 1, 9, FORM_CALL, false},     [EXPR_FLOOR] = {"floor", 1, 9, FORM_CALL, false},
	[EXPR_EXP] = {"exp", 1, 9, FORM_CALL, false},         [EXPR_LOG] = {"log", 1, 9, FORM_CALL, false},
	[EXPR_TANH] = {"tanh", 1, 9, FORM_CALL, false},       [EXPR_SQRT] = {"sqrt", 1, 9, FORM_CALL, false},
	[EXPR_SIGMOID] = {"sigmoid", 1, 9, FORM_CALL, false}, [EXPR_RANDOM] = {"random", 3, 9, FORM_CALL, false},
};

int expr_args(const struct expr_node *n)
{
	int count = 0;
	while (count < EXPR_ARGS_MAX && n->arg[count] >= 0)
		count++;
	return count;
}

/* ---- nodes ---- */

static bool node_equal(const struct expr_node *x, const struct expr_node *y)
{
	return x->op == y->op && x->type == y->type && x->i == y->i && !memcmp(&x->f, &y->f, sizeof x->f) &&
	       !memcmp(x->arg, y->arg, sizeof x->arg);
}

static int node_add(struct expr_pool *pool, const struct expr_node *n)
{
	for (int i = 0; i < pool->count; i++)
		if (node_equal(&pool->node[i], n))
			return i;
	if (pool->count == EXPR_NODES_MAX)
		return -1;
	pool->node[pool->count] = *n;
	return pool->count++;
}

static int atom_add(struct expr_pool *pool, enum expr_op op, enum expr_type type, int64_t i, double f)
{
	const struct expr_node n = {.op = op, .type = type, .arg = {-1, -1, -1, -1}, .i = i, .f = f};
	return node_add(pool, &n);
}

int expr_const_int(struct expr_pool *pool, int64_t value) { return atom_add(pool, EXPR_CONST, TYPE_INT, value, 0); }
int expr_const_bool(struct expr_pool *pool, bool value) { return atom_add(pool, EXPR_CONST, TYPE_BOOL, value, 0); }

int expr_const_float(struct expr_pool *pool, double value)
{
	if (!(fabs(value) <= FLT_MAX))
		return -1;
	return atom_add(pool, EXPR_CONST, TYPE_FLOAT, 0, value == 0 ? 0 : value);
}

int expr_variable(struct expr_pool *pool, enum expr_name name)
{
	return atom_add(pool, EXPR_NAME, name == NAME_S ? TYPE_FLOAT : TYPE_INT, name, 0);
}

static bool is_node(const struct expr_pool *pool, int node) { return node >= 0 && node < pool->count; }

int expr_input(struct expr_pool *pool, int input, enum expr_type type, const int *index, int dims)
{
	struct expr_node n = {.op = EXPR_INPUT, .type = type, .arg = {-1, -1, -1, -1}, .i = input};
	if (type == TYPE_BOOL || dims < 0 || dims > INPUT_DIMS_MAX)
		return -1;
	for (int j = 0; j < dims; j++) {
		if (!is_node(pool, index[j]) || pool->node[index[j]].type != TYPE_INT)
			return -1;
		n.arg[j] = index[j];
	}
	return node_add(pool, &n);
}

bool expr_is_const(const struct expr_pool *pool, int node, int64_t value)
{
	const struct expr_node *n = &pool->node[node];
	return n->op == EXPR_CONST && n->type != TYPE_FLOAT && n->i == value;
}

bool expr_is_float(const struct expr_pool *pool, int node, double value)
{
	const struct expr_node *n = &pool->node[node];
	return n->op == EXPR_CONST && n->type == TYPE_FLOAT && n->f == value;
}

bool expr_is_name(const struct expr_pool *pool, int node, enum expr_name name)
{
	return pool->node[node].op == EXPR_NAME && pool->node[node].i == name;
}

bool expr_is_head_kv(const struct expr_pool *pool, int node)
{
	const struct expr_node *n = &pool->node[node];
	if (n->op != EXPR_DIV || !expr_is_name(pool, n->arg[0], NAME_H))
		return false;
	const struct expr_node *by = &pool->node[n->arg[1]];
	return by->op == EXPR_DIV && expr_is_name(pool, by->arg[0], NAME_HQ) && expr_is_name(pool, by->arg[1], NAME_HK);
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
		if (a->f != b->f)
			return a->f < b->f ? -1 : 1;
		int j = 0;
		while (a->arg[j] == b->arg[j])
			j++;
		x = a->arg[j];
		y = b->arg[j];
	}
	return 0;
}

/* Which operand of a commutative operation comes first. One of the same precedence does, so that a sum of sums is written
 * without parentheses. */
static int operand_order(const struct expr_pool *pool, enum expr_op op, int x, int y)
{
	const struct expr_op_row *a = &expr_ops[pool->node[x].op], *b = &expr_ops[pool->node[y].op];
	const bool same_a = a->precedence == expr_ops[op].precedence && a->form == FORM_INFIX;
	const bool same_b = b->precedence == expr_ops[op].precedence && b->form == FORM_INFIX;
	return same_a != same_b ? same_b - same_a : node_order(pool, x, y);
}

/* ---- types ---- */

/* Is the divisor at least 1 at every position? */
static bool is_divisor(const struct expr_pool *pool, int node)
{
	bool overflow = false;
	return expr_interval(pool, node, expr_everywhere, NULL, NULL, &overflow).lo >= 1 && !overflow;
}

/* Makes a float of an int operand where the operation has another that is float, or takes floats alone. */
static void operands_join(struct expr_pool *pool, enum expr_op op, int arg[3])
{
	const int first = op == EXPR_SELECT;
	bool some = false;
	switch (op) {
	case EXPR_EXP:
	case EXPR_LOG:
	case EXPR_TANH:
	case EXPR_SQRT:
	case EXPR_SIGMOID: some = true; break;
	case EXPR_ADD:
	case EXPR_SUB:
	case EXPR_MUL:
	case EXPR_DIV:
	case EXPR_MIN:
	case EXPR_MAX:
	case EXPR_LT:
	case EXPR_LE:
	case EXPR_EQ:
	case EXPR_NE:
	case EXPR_SELECT:
		for (int j = first; j < expr_ops[op].args; j++)
			some = some || pool->node[arg[j]].type == TYPE_FLOAT;
		break;
	default: break;
	}
	for (int j = first; some && j < expr_ops[op].args; j++)
		if (pool->node[arg[j]].type == TYPE_INT)
			arg[j] = expr_make(pool, EXPR_FLOAT, arg[j], -1, -1);
}

/* Type of an operation's result; false: the operands do not fit it. */
static bool op_type(enum expr_type *type, const struct expr_pool *pool, enum expr_op op, const int arg[3])
{
	enum expr_type t[3] = {TYPE_BOOL, TYPE_BOOL, TYPE_BOOL};
	for (int j = 0; j < expr_ops[op].args; j++)
		t[j] = pool->node[arg[j]].type;
	const bool numbers = t[0] == t[1] && t[0] != TYPE_BOOL;
	switch (op) {
	case EXPR_CONST:
	case EXPR_NAME:
	case EXPR_INPUT: return false;
	case EXPR_NEG:
	case EXPR_ABS: *type = t[0]; return t[0] != TYPE_BOOL;
	case EXPR_NOT: *type = TYPE_BOOL; return t[0] == TYPE_BOOL;
	case EXPR_ADD:
	case EXPR_SUB:
	case EXPR_MUL:
	case EXPR_MIN:
	case EXPR_MAX: *type = t[0]; return numbers;
	case EXPR_DIV:
		*type = t[0];
		return numbers && (t[0] == TYPE_INT ? is_divisor(pool, arg[1]) : !expr_is_float(pool, arg[1], 0));
	case EXPR_MOD: *type = TYPE_INT; return numbers && t[0] == TYPE_INT && is_divisor(pool, arg[1]);
	case EXPR_LT:
	case EXPR_LE: *type = TYPE_BOOL; return numbers;
	case EXPR_EQ:
	case EXPR_NE: *type = TYPE_BOOL; return t[0] == t[1];
	case EXPR_AND:
	case EXPR_OR: *type = TYPE_BOOL; return t[0] == TYPE_BOOL && t[1] == TYPE_BOOL;
	case EXPR_SELECT: *type = t[1]; return t[0] == TYPE_BOOL && t[1] == t[2];
	case EXPR_FLOAT: *type = TYPE_FLOAT; return t[0] != TYPE_BOOL;
	case EXPR_FLOOR: *type = TYPE_INT; return t[0] != TYPE_BOOL;
	case EXPR_EXP:
	case EXPR_LOG:
	case EXPR_TANH:
	case EXPR_SQRT:
	case EXPR_SIGMOID: *type = TYPE_FLOAT; return t[0] == TYPE_FLOAT;
	case EXPR_RANDOM: *type = TYPE_INT; return t[0] == TYPE_INT && t[1] == TYPE_INT && t[2] == TYPE_INT;
	}
	return false;
}

/* ---- folding ---- */

enum { KEEP = -2 }; /* no identity applies */

/* !x pushed inward, so that NOT is left only on choices, comparisons of booleans, and the order of floats, where NaN
 * makes both a < b and b <= a false. */
static int fold_not(struct expr_pool *pool, int x)
{
	const struct expr_node n = pool->node[x];
	switch (n.op) {
	case EXPR_NOT: return n.arg[0];
	case EXPR_LT:
	case EXPR_LE:
		if (pool->node[n.arg[0]].type == TYPE_FLOAT)
			return KEEP;
		return expr_make(pool, n.op == EXPR_LT ? EXPR_LE : EXPR_LT, n.arg[1], n.arg[0], -1);
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

static bool is_zero(const struct expr_pool *pool, int x)
{
	return expr_is_const(pool, x, 0) || expr_is_float(pool, x, 0);
}
static bool is_one(const struct expr_pool *pool, int x)
{
	return expr_is_const(pool, x, 1) || expr_is_float(pool, x, 1);
}

/* Returns the node, or KEEP. Commutative operands are already in order: a constant is b. */
static int fold_identity(struct expr_pool *pool, enum expr_op op, int a, int b, int c)
{
	const bool ints = pool->node[a].type != TYPE_FLOAT; /* or bools */
	switch (op) {
	case EXPR_NEG: return pool->node[a].op == EXPR_NEG ? pool->node[a].arg[0] : KEEP;
	case EXPR_ABS:
		if (pool->node[a].op == EXPR_NEG)
			return expr_make(pool, EXPR_ABS, pool->node[a].arg[0], -1, -1);
		return pool->node[a].op == EXPR_ABS ? a : KEEP;
	case EXPR_NOT: return fold_not(pool, a);
	case EXPR_ADD: return is_zero(pool, b) ? a : KEEP;
	case EXPR_SUB:
		if (is_zero(pool, a))
			return expr_make(pool, EXPR_NEG, b, -1, -1);
		return is_zero(pool, b) ? a : a == b && ints ? expr_const_int(pool, 0) : KEEP;
	case EXPR_MUL: return is_one(pool, b) ? a : expr_is_const(pool, b, 0) ? b : KEEP;
	case EXPR_DIV: return is_one(pool, b) ? a : KEEP;
	case EXPR_MOD: return is_one(pool, b) ? expr_const_int(pool, 0) : KEEP;
	case EXPR_MIN:
	case EXPR_MAX: return a == b ? a : KEEP;
	case EXPR_LT:
		if (a == b || expr_is_const(pool, b, INT64_MIN) || expr_is_const(pool, a, INT64_MAX))
			return expr_const_bool(pool, false);
		return KEEP;
	case EXPR_LE: /* an unbounded argument is the largest integer: nothing exceeds it */
		if ((a == b && ints) || expr_is_const(pool, b, INT64_MAX) || expr_is_const(pool, a, INT64_MIN))
			return expr_const_bool(pool, true);
		return KEEP;
	case EXPR_EQ: return a == b && ints ? expr_const_bool(pool, true) : KEEP;
	case EXPR_NE: return a == b && ints ? expr_const_bool(pool, false) : KEEP;
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
	for (int j = 0; j < args; j++)
		if (!is_node(pool, arg[j]))
			return -1;
	if (op == EXPR_FLOAT && pool->node[a].type == TYPE_FLOAT)
		return a;
	if (op == EXPR_FLOOR && pool->node[a].type == TYPE_INT)
		return a;
	operands_join(pool, op, arg);
	for (int j = 0; j < args; j++)
		if (arg[j] < 0)
			return -1;
	struct expr_node n = {.op = op, .arg = {-1, -1, -1, -1}};
	if (!op_type(&n.type, pool, op, arg))
		return -1;
	if (expr_ops[op].commutative && operand_order(pool, op, arg[0], arg[1]) > 0) {
		const int first = arg[0];
		arg[0] = arg[1];
		arg[1] = first;
	}
	struct expr_value value[3], folded;
	bool constant = true;
	for (int j = 0; j < args; j++) {
		n.arg[j] = arg[j];
		constant = constant && pool->node[arg[j]].op == EXPR_CONST;
		value[j] = (struct expr_value){pool->node[arg[j]].i, pool->node[arg[j]].f};
	}
	if (constant && expr_apply(&folded, pool, &n, value)) {
		if (n.type != TYPE_FLOAT)
			return atom_add(pool, EXPR_CONST, n.type, folded.i, 0);
		if (fabs(folded.f) <= FLT_MAX)
			return expr_const_float(pool, folded.f);
	}
	const int same = fold_identity(pool, op, arg[0], arg[1], arg[2]);
	return same != KEEP ? same : node_add(pool, &n);
}

/* ---- walks ---- */

void expr_used(bool *used, const struct expr_pool *pool, int root)
{
	bool here[EXPR_NODES_MAX] = {false};
	here[root] = true;
	for (int i = root; i >= 0; i--) {
		const struct expr_node *n = &pool->node[i];
		for (int j = 0; here[i] && j < expr_args(n); j++)
			here[n->arg[j]] = true;
		used[i] = used[i] || here[i];
	}
}

int64_t expr_tree_size(const struct expr_pool *pool, int root)
{
	int64_t size[EXPR_NODES_MAX];
	for (int i = 0; i <= root; i++) {
		const struct expr_node *n = &pool->node[i];
		size[i] = 1;
		for (int j = 0; j < expr_args(n); j++)
			if (__builtin_add_overflow(size[i], size[n->arg[j]], &size[i]))
				size[i] = INT64_MAX;
	}
	return size[root];
}

/* The node again with other arguments. */
static int node_again(struct expr_pool *pool, const struct expr_node *n, const int arg[EXPR_ARGS_MAX])
{
	if (n->op == EXPR_INPUT)
		return expr_input(pool, (int)n->i, n->type, arg, expr_args(n));
	if (expr_ops[n->op].form == FORM_ATOM)
		return atom_add(pool, n->op, n->type, n->i, n->f);
	return expr_make(pool, n->op, arg[0], arg[1], arg[2]);
}

/* map[i]: where node i went, -1 not yet. Arguments left to right, so the order depends on the expression alone. */
static int node_copy(struct expr_pool *to, const struct expr_pool *from, int node, int map[EXPR_NODES_MAX])
{
	const struct expr_node *n = &from->node[node];
	int arg[EXPR_ARGS_MAX] = {-1, -1, -1, -1};
	if (map[node] >= 0)
		return map[node];
	for (int j = 0; j < expr_args(n); j++) {
		arg[j] = node_copy(to, from, n->arg[j], map);
		if (arg[j] < 0)
			return -1;
	}
	return map[node] = node_again(to, n, arg);
}

int expr_copy(struct expr_pool *to, const struct expr_pool *from, int root)
{
	int map[EXPR_NODES_MAX];
	memset(map, -1, sizeof map);
	return node_copy(to, from, root, map);
}

int expr_substitute(struct expr_pool *pool, int root, int from, int to)
{
	int map[EXPR_NODES_MAX];
	bool used[EXPR_NODES_MAX] = {false};
	if (!is_node(pool, from) || !is_node(pool, to) || pool->node[from].type != pool->node[to].type)
		return -1;
	expr_used(used, pool, root);
	for (int i = 0; i <= root; i++) {
		const struct expr_node n = pool->node[i];
		int arg[EXPR_ARGS_MAX] = {-1, -1, -1, -1};
		bool changed = false;
		map[i] = i == from ? to : i;
		if (!used[i] || i == from)
			continue;
		for (int j = 0; j < expr_args(&n); j++) {
			arg[j] = map[n.arg[j]];
			changed = changed || arg[j] != n.arg[j];
		}
		if (changed)
			map[i] = node_again(pool, &n, arg);
		if (map[i] < 0)
			return -1;
	}
	return map[root];
}
