/* emit_print: expressions as C and CUDA at once. */
#include "gen/emit.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What may stand where without parentheses, as gen/expr.h has precedences: larger binds tighter. */
enum { LEVEL_SELECT = 1, LEVEL_OR, LEVEL_AND, LEVEL_EQ, LEVEL_LT, LEVEL_ADD, LEVEL_MUL, LEVEL_UNARY, LEVEL_ATOM };

static bool is_const(const struct expr_pool *pool, int node) { return pool->node[node].op == EXPR_CONST; }

void float_print(struct text *out, double value)
{
	char digits[32];
	const float f = (float)(value > FLT_MAX ? FLT_MAX : value < -FLT_MAX ? -FLT_MAX : value);
	for (int precision = 1; precision <= 9; precision++) {
		snprintf(digits, sizeof digits, "%.*g", precision, (double)f);
		if (strtof(digits, NULL) == f)
			break;
	}
	text_addf(out, "%s%sf", digits, strpbrk(digits, ".e") ? "" : ".0");
}

static void int_print(struct text *out, int64_t i, bool wide)
{
	if (i == INT64_MIN)
		text_puts(out, "(-9223372036854775807LL - 1)");
	else if (i == INT32_MIN)
		text_puts(out, wide ? "(-2147483648LL)" : "(-2147483647 - 1)");
	else
		text_addf(out, i < 0 ? "(%" PRId64 "%s)" : "%" PRId64 "%s", i, wide || i != (int32_t)i ? "LL" : "");
}

static void print(struct text *out, struct scope *x, struct value v, int least);

static void print_node(struct text *out, struct scope *x, int node, int least)
{
	print(out, x, (struct value){node, false}, least);
}

/* "open" and "close" when an expression of this level may not stand where `least` is the weakest. */
static const char *wrap(int level, int least, const char *bracket) { return level < least ? bracket : ""; }

static const char *name_text(const struct scope *x, enum expr_name name)
{
	if (name == NAME_K && x->place == IN_ROW)
		return "k_lane";
	if (x->place == IN_BLOCKS && (name == NAME_Q || name == NAME_K))
		return name == NAME_Q ? "block_q" : "block_k";
	return expr_names[name];
}

void scope_names(struct text *out, const struct scope *x)
{
	static const char *const launch[NAME_COUNT] = {[NAME_SQ] = "sequence_q(p, b)",
	                                               [NAME_SK] = "sequence_k(p, b)",
	                                               [NAME_HQ] = "p->heads_q",
	                                               [NAME_HK] = "p->heads_kv"};
	for (int i = 0; i < NAME_COUNT; i++) {
		if (!x->name[i] || !launch[i] || (x->place == IN_ROW && (i == NAME_SQ || i == NAME_SK)))
			continue; /* row_state has the lengths already */
		if (x->place == IN_BLOCKS && (i == NAME_SQ || i == NAME_SK))
			text_addf(out, "\tconst int %s = ceil_div(%s, BLOCK_%c);\n", expr_names[i], launch[i],
			          i == NAME_SQ ? 'Q' : 'K');
		else
			text_addf(out, "\tconst int %s = %s;\n", expr_names[i], launch[i]);
	}
	if (x->place == IN_COL && x->name[NAME_K])
		text_puts(out, "\tconst int k = k_lane + offset;\n");
}

/* "+ 3 * col.offset": what a lane's value grows by. As a comparison's other side it changes sign. */
static void offset_print(struct text *out, int coef, bool floated, const char *offset)
{
	char factor[32] = "";
	const int size = abs(coef);
	if (coef == 0)
		return;
	if (size != 1)
		snprintf(factor, sizeof factor, floated ? "%d.0f * " : "%d * ", size);
	text_addf(out, " %c %s%s%s", coef < 0 ? '-' : '+', factor, floated ? "(float)" : "", offset);
}

static void field_print(struct text *out, struct scope *x, struct value v, int least)
{
	static const char *const sign[] = {[EXPR_LT] = ">", [EXPR_LE] = ">=", [EXPR_EQ] = "==", [EXPR_NE] = "!="};
	const struct emit *e = x->e;
	const struct expr_node *n = &e->pool->node[v.node];
	const int field = e->field[v.floated][v.node];
	switch (value_hoist(e, v)) {
	case HOIST_LANE:
		text_addf(out, "%srow.r%d", wrap(LEVEL_ADD, least, "("), field);
		offset_print(out, e->coef[v.node], v.floated, "col.offset");
		text_puts(out, wrap(LEVEL_ADD, least, ")"));
		break;
	case HOIST_DIFFERENCE: {
		const int coef = -difference_coef(e, v.node);
		text_addf(out, "%srow.r%d %s ", wrap(LEVEL_EQ, least, "("), field, sign[n->op]);
		if (coef == 0)
			text_puts(out, "0");
		else if (abs(coef) == 1)
			text_addf(out, "%scol.offset", coef < 0 ? "-" : "");
		else
			text_addf(out, "%d * col.offset", coef);
		text_puts(out, wrap(LEVEL_EQ, least, ")"));
		break;
	}
	default: text_addf(out, "%s%d", value_hoist(e, v) == HOIST_ROW ? "row.r" : "col.c", field);
	}
}

/* An int node at k_lane, in a state's function. */
static void lane_print(struct text *out, struct scope *x, int node, int least)
{
	struct scope at;
	scope_begin(&at, x->e, IN_ROW);
	print_node(out, &at, node, least);
	for (int i = 0; i < NAME_COUNT; i++)
		x->name[i] = x->name[i] || (at.name[i] && i != NAME_K);
}

/* ---- products: constants of a chain of factors are one constant ---- */

static double factor_next(int *node, const struct expr_pool *pool)
{
	const struct expr_node *n = &pool->node[*node];
	if (n->type != TYPE_FLOAT)
		return 0;
	double factor = 0;
	if (n->op == EXPR_NEG)
		factor = -1;
	else if (n->op == EXPR_MUL && is_const(pool, n->arg[1]))
		factor = pool->node[n->arg[1]].f;
	else if (n->op == EXPR_DIV && is_const(pool, n->arg[1]))
		factor = 1 / pool->node[n->arg[1]].f;
	if (factor != 0 && fabs(factor) <= FLT_MAX)
		*node = n->arg[0];
	else
		factor = 0;
	return factor;
}

double factor_split(int *rest, const struct expr_pool *pool, int node)
{
	double factor = 1, next;
	*rest = node;
	while ((next = factor_next(rest, pool)) != 0)
		factor *= next;
	return factor;
}

/* The same as far as the scope keeps nothing of the chain. */
static double scope_factor(int *rest, const struct scope *x, int node)
{
	double factor = 1;
	*rest = node;
	while (x->local[0][*rest] < 0 && !scope_is_leaf(x, (struct value){*rest, false})) {
		const double next = factor_next(rest, x->e->pool);
		if (next == 0)
			break;
		factor *= next;
	}
	return factor;
}

/* factor * node, factor not 1 or node the variable s, which stands for the raw dot product here. */
static void scaled_print(struct text *out, struct scope *x, double factor, int node, int least)
{
	const struct expr_node *n = &x->e->pool->node[node];
	const bool is_s = n->op == EXPR_NAME && n->i == NAME_S;
	const double scale = x->e->spec->softmax_scale, all = is_s ? factor * scale : factor;
	if (all == 1) {
		if (is_s)
			text_puts(out, "s");
		else
			print_node(out, x, node, least);
		return;
	}
	const int level = all == -1 ? LEVEL_UNARY : LEVEL_MUL;
	text_puts(out, wrap(level, least, "("));
	if (all == -1) {
		text_puts(out, "-");
	} else {
		if (is_s && factor == 1)
			text_puts(out, "SOFTMAX_SCALE");
		else
			float_print(out, all);
		text_puts(out, " * ");
	}
	if (is_s)
		text_puts(out, "s");
	else
		print_node(out, x, node, LEVEL_UNARY);
	text_puts(out, wrap(level, least, ")"));
}

/* ---- operations ---- */

static void call_print(struct text *out, struct scope *x, const char *name, const struct value *of, int count)
{
	text_addf(out, "%s(", name);
	for (int j = 0; j < count; j++) {
		text_puts(out, j ? ", " : "");
		print(out, x, of[j], LEVEL_SELECT);
	}
	text_puts(out, ")");
}

static const char *float_function(struct emit *e, enum expr_op op)
{
	switch (op) {
	case EXPR_ABS: return "fabsf";
	case EXPR_MIN: return "fminf";
	case EXPR_MAX: return "fmaxf";
	case EXPR_DIV: return emit_helper(e, HELPER_FLOAT_DIV, "float_div");
	case EXPR_EXP: return emit_helper(e, HELPER_EXP, "float_exp");
	case EXPR_LOG: return emit_helper(e, HELPER_LOG, "float_log");
	case EXPR_TANH: return emit_helper(e, HELPER_TANH, "float_tanh");
	case EXPR_SQRT: return emit_helper(e, HELPER_SQRT, "float_sqrt");
	case EXPR_SIGMOID: return emit_helper(e, HELPER_SIGMOID, "float_sigmoid");
	case EXPR_FLOOR: return emit_helper(e, HELPER_FLOOR, "float_floor");
	default: return NULL;
	}
}

static const char *int_function(struct emit *e, enum expr_op op, bool wide)
{
	switch (op) {
	case EXPR_ABS:
		return wide ? emit_helper(e, HELPER_WIDE_ABS, "wide_abs") : emit_helper(e, HELPER_INT_ABS, "int_abs");
	case EXPR_MIN: return wide ? emit_helper(e, HELPER_WIDE_MIN, "wide_min") : "int_min";
	case EXPR_MAX: return wide ? emit_helper(e, HELPER_WIDE_MAX, "wide_max") : "int_max";
	case EXPR_DIV:
		return wide ? emit_helper(e, HELPER_WIDE_DIV, "wide_div") : emit_helper(e, HELPER_INT_DIV, "int_div");
	case EXPR_MOD:
		return wide ? emit_helper(e, HELPER_WIDE_MOD, "wide_mod") : emit_helper(e, HELPER_INT_MOD, "int_mod");
	case EXPR_RANDOM: return emit_helper(e, HELPER_RANDOM, "random_bits");
	default: return NULL;
	}
}

/* Division and remainder by a power of two, rounding toward minus infinity, are a shift and a mask; of what is never
 * negative they are C's own. */
static bool divide_print(struct text *out, struct scope *x, int node)
{
	const struct expr_node *n = &x->e->pool->node[node], *d = &x->e->pool->node[n->arg[1]];
	if (d->op == EXPR_CONST && d->i > 0 && (d->i & (d->i - 1)) == 0) {
		text_puts(out, "(");
		print_node(out, x, n->arg[0], LEVEL_UNARY);
		if (n->op == EXPR_DIV)
			text_addf(out, " >> %d)", __builtin_ctzll((unsigned long long)d->i));
		else
			text_addf(out, " & %" PRId64 "%s)", d->i - 1, d->i - 1 > INT32_MAX ? "LL" : "");
		return true;
	}
	if (x->e->range[n->arg[0]].i.lo < 0)
		return false;
	text_puts(out, "(");
	print_node(out, x, n->arg[0], LEVEL_MUL);
	text_puts(out, n->op == EXPR_DIV ? " / " : " % ");
	print_node(out, x, n->arg[1], LEVEL_UNARY);
	text_puts(out, ")");
	return true;
}

static void infix_print(struct text *out, struct scope *x, const struct expr_node *n, const char *cast, int least)
{
	const struct expr_op_row *row = &expr_ops[n->op];
	const struct expr_node *first = &x->e->pool->node[n->arg[0]], *second = &x->e->pool->node[n->arg[1]];
	const char *spelling = row->spelling;
	int left = row->precedence, right = row->precedence + 1;
	if (n->op == EXPR_AND || n->op == EXPR_OR) {
		/* A cell's are both worked out: compilers make a branch for each cell of what && may leave out. */
		const bool both = x->place == IN_CELL;
		spelling = !both ? row->spelling : n->op == EXPR_AND ? "&" : "|";
		left = first->op == n->op ? row->precedence : both ? LEVEL_ATOM : LEVEL_EQ;
		right = second->op == n->op ? row->precedence : both ? LEVEL_ATOM : LEVEL_EQ;
	} else if (op_is_compare(n->op)) {
		left = right = first->type == TYPE_BOOL ? LEVEL_ATOM : LEVEL_ADD;
	}
	const int level = row->precedence;
	text_puts(out, wrap(level, least, "("));
	text_puts(out, cast);
	print_node(out, x, n->arg[0], *cast ? LEVEL_UNARY : left);
	text_addf(out, " %s ", spelling);
	print_node(out, x, n->arg[1], right);
	text_puts(out, wrap(level, least, ")"));
}

static void select_print(struct text *out, struct scope *x, const struct value of[3], int least)
{
	text_puts(out, wrap(LEVEL_SELECT, least, "("));
	print(out, x, of[0], LEVEL_EQ);
	text_puts(out, " ? ");
	print(out, x, of[1], LEVEL_OR);
	text_puts(out, " : ");
	print(out, x, of[2], LEVEL_SELECT);
	text_puts(out, wrap(LEVEL_SELECT, least, ")"));
}

/* May a value be worked out where nobody wants it? Elements are loads, and a divisor may be what the condition asks. */
static bool is_light(const struct expr_pool *pool, int node)
{
	const struct expr_node *n = &pool->node[node];
	bool light = n->op != EXPR_INPUT && n->op != EXPR_DIV && n->op != EXPR_MOD && n->op != EXPR_RANDOM;
	for (int j = 0; j < expr_args(n); j++)
		light = light && is_light(pool, n->arg[j]);
	return light;
}

/* An int operation: computed as wide as its widest operand or its result, then as wide as its result. */
static void int_op_print(struct text *out, struct scope *x, int node, int least)
{
	const struct expr_node *n = &x->e->pool->node[node];
	const bool wide = node_is_wide(x->e, node);
	bool operand = false;
	struct value of[EXPR_ARGS_MAX];
	const int count = scope_values(of, x, (struct value){node, false});
	for (int j = n->op == EXPR_SELECT; j < count; j++)
		operand = operand || node_is_wide(x->e, of[j].node);
	const char *narrow = operand && !wide && n->op != EXPR_RANDOM ? "(int)" : "",
		   *widen = wide && !operand ? "(long long)" : "";
	const char *const function =
		n->op == EXPR_DIV || n->op == EXPR_MOD ? NULL : int_function(x->e, n->op, wide || operand);
	const int inner = *narrow ? LEVEL_ATOM : least;
	if (*narrow)
		text_addf(out, "%s%s", wrap(LEVEL_UNARY, least, "("), narrow);
	if (n->op == EXPR_DIV || n->op == EXPR_MOD) {
		if (!divide_print(out, x, node))
			call_print(out, x, int_function(x->e, n->op, operand), of, count);
	} else if (function) {
		call_print(out, x, function, of, count);
	} else if (n->op == EXPR_SELECT && !wide && !operand && is_light(x->e->pool, of[1].node) && is_light(x->e->pool, of[2].node)) {
		call_print(out, x, emit_helper(x->e, HELPER_INT_SELECT, "int_select"), of, count);
	} else if (n->op == EXPR_SELECT) {
		select_print(out, x, of, inner);
	} else if (n->op == EXPR_NEG) {
		text_addf(out, "%s-%s", wrap(LEVEL_UNARY, inner, "("), widen);
		print(out, x, of[0], LEVEL_ATOM);
		text_puts(out, wrap(LEVEL_UNARY, inner, ")"));
	} else {
		infix_print(out, x, n, widen, inner);
	}
	if (*narrow)
		text_puts(out, wrap(LEVEL_UNARY, least, ")"));
}

static void floated_print(struct text *out, struct scope *x, struct value v, int least)
{
	const struct expr_node *n = &x->e->pool->node[v.node];
	struct value of[EXPR_ARGS_MAX];
	if (n->op == EXPR_CONST) {
		float_print(out, (double)n->i);
		return;
	}
	if (scope_is_leaf(x, v) && x->place == IN_COL && n->op != EXPR_NAME) {
		text_puts(out, "((float)");
		lane_print(out, x, v.node, LEVEL_ATOM);
		offset_print(out, x->e->coef[v.node], true, "offset");
		text_puts(out, ")");
		return;
	}
	const int count = scope_values(of, x, v);
	if (count == 0 || (count == 1 && of[0].node == v.node)) {
		text_addf(out, "%s(float)", wrap(LEVEL_UNARY, least, "("));
		print_node(out, x, v.node, LEVEL_ATOM);
		text_puts(out, wrap(LEVEL_UNARY, least, ")"));
	} else if (n->op == EXPR_SELECT) {
		select_print(out, x, of, least);
	} else if (n->op == EXPR_NEG) {
		text_puts(out, wrap(LEVEL_UNARY, least, "("));
		text_puts(out, "-");
		print(out, x, of[0], LEVEL_ATOM);
		text_puts(out, wrap(LEVEL_UNARY, least, ")"));
	} else {
		call_print(out, x, float_function(x->e, n->op), of, count);
	}
}

static void float_op_print(struct text *out, struct scope *x, int node, int least)
{
	const struct expr_node *n = &x->e->pool->node[node];
	struct value of[EXPR_ARGS_MAX];
	const int count = scope_values(of, x, (struct value){node, false});
	const char *const function = float_function(x->e, n->op);
	if (n->op == EXPR_FLOAT)
		print(out, x, of[0], least);
	else if (n->op == EXPR_SELECT)
		select_print(out, x, of, least);
	else if (function)
		call_print(out, x, function, of, count);
	else
		infix_print(out, x, n, "", least);
}

/* Without looking for a local constant of the value itself. */
static void print_raw(struct text *out, struct scope *x, struct value v, int least)
{
	const struct expr_node *n = &x->e->pool->node[v.node];
	int rest;
	if (x->place == IN_CELL && value_hoist(x->e, v) != HOIST_NONE) {
		field_print(out, x, v, least);
	} else if (v.floated) {
		floated_print(out, x, v, least);
	} else if (n->op == EXPR_CONST) {
		if (n->type == TYPE_FLOAT)
			float_print(out, n->f);
		else if (n->type == TYPE_BOOL)
			text_puts(out, n->i ? "true" : "false");
		else
			int_print(out, n->i, false);
	} else if (n->op == EXPR_NAME && n->i != NAME_S) {
		x->name[n->i] = true;
		text_puts(out, name_text(x, (enum expr_name)n->i));
	} else if (n->op == EXPR_INPUT) {
		element_print(out, x, v.node);
	} else if (n->type == TYPE_FLOAT) {
		const double factor = scope_factor(&rest, x, v.node);
		if (factor != 1 || rest != v.node || n->op == EXPR_NAME)
			scaled_print(out, x, factor, rest, least);
		else
			float_op_print(out, x, v.node, least);
	} else if (n->op == EXPR_FLOOR) {
		call_print(out, x, float_function(x->e, n->op), &(struct value){n->arg[0], false}, 1);
	} else if (n->type == TYPE_INT) {
		int_op_print(out, x, v.node, least);
	} else if (n->op == EXPR_NOT) {
		text_addf(out, "%s!", wrap(LEVEL_UNARY, least, "("));
		print_node(out, x, n->arg[0], LEVEL_ATOM);
		text_puts(out, wrap(LEVEL_UNARY, least, ")"));
	} else if (n->op == EXPR_SELECT) {
		select_print(out, x, (struct value[3]){{n->arg[0], false}, {n->arg[1], false}, {n->arg[2], false}},
		             least);
	} else {
		infix_print(out, x, n, "", least);
	}
}

static void print(struct text *out, struct scope *x, struct value v, int least)
{
	if (x->local[v.floated][v.node] >= 0)
		text_addf(out, "t%d", x->local[v.floated][v.node]);
	else
		print_raw(out, x, v, least);
}

void scope_locals(struct text *out, struct scope *x)
{
	for (int i = 0; i < x->e->pool->count; i++)
		for (int f = 0; f < 2; f++) {
			const struct value v = {i, f};
			if (x->uses[f][i] < 2 || scope_is_leaf(x, v))
				continue;
			text_addf(out, "\tconst %s t%d = ", emit_type(x->e, v), x->locals);
			print_raw(out, x, v, LEVEL_SELECT);
			text_puts(out, ";\n");
			x->local[f][i] = x->locals++;
		}
}

void scope_print(struct text *out, struct scope *x, struct value v) { print(out, x, v, LEVEL_SELECT); }
void scope_print_factor(struct text *out, struct scope *x, struct value v) { print(out, x, v, LEVEL_UNARY); }

/* ---- fields of RowState and ColState ---- */

/* The value of a row's field for a comparison: right minus left at k_lane. What is far from zero may as well be nearer. */
static void difference_print(struct text *out, struct scope *x, int node)
{
	struct emit *e = x->e;
	const struct expr_node *n = &e->pool->node[node];
	const struct interval left = e->range[n->arg[0]].i, right = e->range[n->arg[1]].i;
	const struct interval all = {right.lo - left.hi, right.hi - left.lo};
	const bool wide = !interval_fits_int(all),
		   cast = wide && !node_is_wide(e, n->arg[0]) && !node_is_wide(e, n->arg[1]);
	if (wide)
		text_addf(out, "%s(", emit_helper(e, HELPER_SATURATE, "saturate"));
	else if (node_is_wide(e, n->arg[0]) || node_is_wide(e, n->arg[1]))
		text_puts(out, "(int)(");
	text_puts(out, cast ? "(long long)" : "");
	print_node(out, x, n->arg[1], cast ? LEVEL_ATOM : LEVEL_ADD);
	if (!expr_is_const(e->pool, n->arg[0], 0)) {
		text_puts(out, " - ");
		print_node(out, x, n->arg[0], LEVEL_MUL);
	}
	if (wide || node_is_wide(e, n->arg[0]) || node_is_wide(e, n->arg[1]))
		text_puts(out, ")");
}

void fields_print(struct text *structure, struct text *code, struct emit *e, bool rows)
{
	struct scope x;
	struct text body = {0};
	scope_begin(&x, e, rows ? IN_ROW : IN_COL);
	for (int pass = 0; pass < 2; pass++) {
		for (int i = 0; i < e->pool->count; i++)
			for (int f = 0; f < 2; f++) {
				const struct value v = {i, f};
				const struct expr_node *n = &e->pool->node[i];
				const enum hoist hoist = e->field[f][i] < 0 ? HOIST_NONE : value_hoist(e, v);
				if (hoist == HOIST_NONE || (hoist != HOIST_COL) != rows)
					continue;
				if (pass == 0) {
					if (hoist == HOIST_DIFFERENCE) {
						scope_use(&x, (struct value){n->arg[0], false});
						scope_use(&x, (struct value){n->arg[1], false});
					} else {
						scope_use(&x, v);
					}
					continue;
				}
				text_addf(structure, "\t%s %c%d; // ",
				          hoist == HOIST_DIFFERENCE ? "int" : emit_type(e, v), rows ? 'r' : 'c',
				          e->field[f][i]);
				expr_print(structure, e->pool, i, e->spec->input);
				text_puts(structure, hoist == HOIST_DIFFERENCE ? ": right minus left at k_lane\n"
				                     : hoist == HOIST_LANE     ? ", at k_lane\n"
				                                               : "\n");
				text_addf(&body, "\t%s.%c%d = ", rows ? "row" : "col", rows ? 'r' : 'c',
				          e->field[f][i]);
				if (hoist == HOIST_DIFFERENCE)
					difference_print(&body, &x, i);
				else
					scope_print(&body, &x, v);
				text_puts(&body, ";\n");
			}
		if (pass == 0)
			scope_locals(&body, &x);
	}
	scope_names(code, &x);
	text_puts(code, text_str(&body));
	text_free(&body);
}
