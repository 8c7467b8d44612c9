/* emit_expr: what must be known of expressions to write them: how wide an int is, what a value depends on, and where what
 * a cell needs of its row and column is kept.
 *
 * Ints are 32 bits wide wherever their range for all positions allows it, else 64. In a cell, what depends on the row or
 * on the column alone is a field of its state; an int that is a multiple of k and a part without k is a field of the row
 * too, taken at the lane's first column, plus what the column's offset adds: so no position is turned into a float, and
 * hardly one is computed, per cell. */
#include "gen/emit.h"

#include <stdlib.h>
#include <string.h>

enum { COEF_MAX = 4096 }; /* multiples of an offset inside a tile stay exact as floats */

/* ---- what is known of each node ---- */

static bool is_const(const struct expr_pool *pool, int node) { return pool->node[node].op == EXPR_CONST; }

static int coef_find(const struct emit *e, int node)
{
	const struct expr_node *n = &e->pool->node[node];
	const int a = n->arg[0], b = n->arg[1];
	int64_t c;
	if (n->type != TYPE_INT || (e->depends[node] & DEPENDS_S))
		return NOT_LINEAR;
	if (!(e->depends[node] & DEPENDS_COL))
		return 0;
	switch (n->op) {
	case EXPR_NAME: return 1;
	case EXPR_NEG: c = -(int64_t)e->coef[a]; break;
	case EXPR_ADD: c = (int64_t)e->coef[a] + e->coef[b]; break;
	case EXPR_SUB: c = (int64_t)e->coef[a] - e->coef[b]; break;
	case EXPR_MUL:
		if (!is_const(e->pool, b) || llabs(e->pool->node[b].i) > COEF_MAX)
			return NOT_LINEAR;
		c = e->coef[a] * e->pool->node[b].i;
		break;
	default: return NOT_LINEAR;
	}
	if (e->coef[a] == NOT_LINEAR || (n->op != EXPR_NEG && e->coef[b] == NOT_LINEAR))
		return NOT_LINEAR;
	return llabs(c) <= COEF_MAX ? (int)c : NOT_LINEAR;
}

static void node_learn(struct emit *e, int node)
{
	const struct expr_node *n = &e->pool->node[node];
	e->depends[node] = 0;
	if (n->op == EXPR_NAME)
		e->depends[node] = n->i == NAME_Q   ? DEPENDS_ROW
		                   : n->i == NAME_K ? DEPENDS_COL
		                   : n->i == NAME_S ? DEPENDS_S
		                                    : 0;
	for (int j = 0; j < expr_args(n); j++)
		e->depends[node] |= e->depends[n->arg[j]];
	e->coef[node] = coef_find(e, node);
}

/* Everything that is printed: the roots of the program. */
static int roots_find(int root[ACCESSES_MAX + 5], const struct program *p)
{
	int count = 0;
	root[count++] = p->residual;
	root[count++] = p->score;
	root[count++] = p->score_ds;
	if (p->sink >= 0)
		root[count++] = p->sink;
	if (p->blocks == BLOCKS_KEEP)
		root[count++] = p->block_keep;
	for (int a = 0; a < p->access_count; a++)
		if (p->access[a].grad >= 0)
			root[count++] = p->access[a].grad;
	return count;
}

void emit_begin(struct emit *e, const struct spec *spec, const struct program *program)
{
	int root[ACCESSES_MAX + 5], numbers = 0;
	bool used[EXPR_NODES_MAX] = {false};
	memset(e, 0, sizeof *e);
	e->spec = spec;
	e->program = program;
	e->pool = &program->pool;
	memset(e->field, -1, sizeof e->field);
	memset(e->access, -1, sizeof e->access);
	memset(e->number, -1, sizeof e->number);
	const int roots = roots_find(root, program);
	for (int i = 0; i < roots; i++) {
		expr_used(used, e->pool, root[i]);
		(void)expr_ranges(e->range, e->pool, root[i], expr_everywhere, spec->input, NULL);
	}
	for (int a = 0; a < program->access_count; a++)
		e->access[program->access[a].node] = a;
	for (int i = 0; i < e->pool->count; i++) {
		if (!used[i])
			continue;
		node_learn(e, i);
		if (e->pool->node[i].op == EXPR_INPUT)
			e->number[i] = numbers++;
	}
}

const char *emit_helper(struct emit *e, enum helper helper, const char *name)
{
	e->helper[helper] = true;
	return name;
}

bool interval_fits_int(struct interval v) { return v.lo >= INT32_MIN && v.hi <= INT32_MAX; }

bool node_is_wide(const struct emit *e, int node)
{
	return e->pool->node[node].type == TYPE_INT && !interval_fits_int(e->range[node].i);
}

const char *emit_type(const struct emit *e, struct value v)
{
	const struct expr_node *n = &e->pool->node[v.node];
	return n->type == TYPE_FLOAT || v.floated ? "float"
	       : n->type == TYPE_BOOL             ? "bool"
	       : node_is_wide(e, v.node)          ? "long long"
	                                          : "int";
}

/* ---- what cells keep in their row's and column's state ---- */

bool op_is_compare(enum expr_op op) { return op == EXPR_LT || op == EXPR_LE || op == EXPR_EQ || op == EXPR_NE; }

/* How the difference right - left of a comparison of ints changes with k; NOT_LINEAR: it cannot be kept. */
int difference_coef(const struct emit *e, int node)
{
	const struct expr_node *n = &e->pool->node[node];
	const int64_t far = INT64_C(1) << 61;
	if (!op_is_compare(n->op) || e->pool->node[n->arg[0]].type != TYPE_INT)
		return NOT_LINEAR;
	const int left = e->coef[n->arg[0]], right = e->coef[n->arg[1]];
	if (left == NOT_LINEAR || right == NOT_LINEAR)
		return NOT_LINEAR;
	for (int j = 0; j < 2; j++)
		if (e->range[n->arg[j]].i.lo < -far || e->range[n->arg[j]].i.hi > far)
			return NOT_LINEAR;
	return right - left;
}

enum hoist value_hoist(const struct emit *e, struct value v)
{
	const struct expr_node *n = &e->pool->node[v.node];
	const unsigned depends = e->depends[v.node];
	if (n->op == EXPR_CONST || (depends & DEPENDS_S))
		return HOIST_NONE;
	if (!(depends & DEPENDS_COL))
		return HOIST_ROW;
	if (n->op == EXPR_FLOAT && e->coef[n->arg[0]] != NOT_LINEAR)
		return HOIST_NONE; /* its argument, floated, is kept */
	if (e->coef[v.node] != NOT_LINEAR)
		return HOIST_LANE;
	if (difference_coef(e, v.node) != NOT_LINEAR)
		return HOIST_DIFFERENCE;
	return depends & DEPENDS_ROW ? HOIST_NONE : HOIST_COL;
}

/* ---- the values that one is printed from ---- */

bool scope_is_leaf(const struct scope *x, struct value v)
{
	const enum expr_op op = x->e->pool->node[v.node].op;
	if (op == EXPR_CONST || op == EXPR_NAME)
		return true;
	if (x->place == IN_CELL && value_hoist(x->e, v) != HOIST_NONE)
		return true;
	return x->place == IN_COL && v.floated && x->e->coef[v.node] != NOT_LINEAR;
}

int scope_values(struct value of[EXPR_ARGS_MAX], const struct scope *x, struct value v)
{
	const struct expr_node *n = &x->e->pool->node[v.node];
	int count = 0;
	if (scope_is_leaf(x, v))
		return 0;
	if (n->op == EXPR_INPUT) {
		const unsigned dims = element_dims(x, v.node);
		for (int d = 0; d < expr_args(n); d++)
			if (dims >> d & 1)
				of[count++] = (struct value){n->arg[d], false};
		return count;
	}
	if (n->op == EXPR_FLOAT) {
		of[0] = (struct value){n->arg[0], true};
		return 1;
	}
	const bool inward = n->op == EXPR_ABS || n->op == EXPR_NEG || n->op == EXPR_MIN || n->op == EXPR_MAX ||
	                    n->op == EXPR_SELECT;
	if (v.floated && !inward) {
		of[0] = (struct value){v.node, false};
		return 1;
	}
	for (int j = 0; j < expr_args(n); j++)
		of[count++] = (struct value){n->arg[j], v.floated && !(n->op == EXPR_SELECT && j == 0)};
	return count;
}

static void fields_walk(struct emit *e, struct scope *cell, struct value v, bool (*seen)[EXPR_NODES_MAX])
{
	struct value of[EXPR_ARGS_MAX];
	if (seen[v.floated][v.node])
		return;
	seen[v.floated][v.node] = true;
	const int count = scope_values(of, cell, v);
	for (int i = 0; i < count; i++)
		fields_walk(e, cell, of[i], seen);
}

void fields_find(struct emit *e, const int *root, int roots)
{
	bool seen[2][EXPR_NODES_MAX] = {{false}};
	struct scope cell;
	int fields[2] = {0, 0};
	scope_begin(&cell, e, IN_CELL);
	for (int i = 0; i < roots; i++)
		fields_walk(e, &cell, (struct value){root[i], false}, seen);
	for (int i = 0; i < e->pool->count; i++)
		for (int f = 0; f < 2; f++) {
			const enum hoist hoist = seen[f][i] ? value_hoist(e, (struct value){i, f}) : HOIST_NONE;
			if (hoist != HOIST_NONE)
				e->field[f][i] = fields[hoist == HOIST_COL]++;
		}
}

/* ---- scopes ---- */

void scope_begin(struct scope *x, struct emit *e, enum emit_place place)
{
	memset(x, 0, sizeof *x);
	memset(x->local, -1, sizeof x->local);
	x->e = e;
	x->place = place;
}

void scope_use(struct scope *x, struct value root)
{
	struct value of[EXPR_ARGS_MAX];
	if (x->uses[root.floated][root.node]++)
		return;
	const int count = scope_values(of, x, root);
	for (int i = 0; i < count; i++)
		scope_use(x, of[i]);
}
