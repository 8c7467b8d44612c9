/* expr_print: the canonical text of an expression. It parses back to the same node. */
#include "gen/expr.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct printer {
	struct text *out;
	const struct expr_pool *pool;
	const struct input *input;
};

/* The shortest decimal that reads back as the same number, with a point or an exponent. */
static void print_float(struct text *out, double value)
{
	struct text number = {0};
	int digits = 0, exponent;
	do {
		text_free(&number);
		text_addf(&number, "%.*e", digits++, value);
	} while (digits < 17 && expr_read_float(text_str(&number)) != value);
	exponent = atoi(strchr(text_str(&number), 'e') + 1);
	if (value != 0 && (exponent < -5 || exponent > 15))
		text_puts(out, text_str(&number));
	else
		text_addf(out, "%.*f", digits - 1 > exponent ? digits - 1 - exponent : 1, value);
	text_free(&number);
}

static void print_const(struct text *out, const struct expr_node *n)
{
	if (n->type == TYPE_BOOL)
		text_puts(out, n->i ? "true" : "false");
	else if (n->type == TYPE_INT)
		text_addf(out, "%" PRId64, n->i);
	else
		print_float(out, n->f);
}

/* Would the parser make a float of operand j of its own accord? It does where the operation takes floats alone, and where
 * another operand is written as a float. */
static bool is_implied(const struct expr_pool *pool, const struct expr_node *n, int j)
{
	if (n->op == EXPR_FLOAT || n->op == EXPR_FLOOR || n->op == EXPR_NEG || n->op == EXPR_ABS)
		return false;
	if (expr_ops[n->op].args == 1)
		return true;
	for (int i = n->op == EXPR_SELECT; i < expr_ops[n->op].args; i++)
		if (i != j && (i < j || pool->node[n->arg[i]].op != EXPR_FLOAT))
			return true;
	return false;
}

/* What stands for operand j in the text. */
static int arg_shown(const struct expr_pool *pool, const struct expr_node *n, int j)
{
	const struct expr_node *arg = &pool->node[n->arg[j]];
	return arg->op == EXPR_FLOAT && is_implied(pool, n, j) ? arg->arg[0] : n->arg[j];
}

/* The weakest precedence that operand j may have without parentheses. */
static int arg_least(const struct expr_node *n, int j)
{
	const struct expr_op_row *row = &expr_ops[n->op];
	switch (row->form) {
	case FORM_PREFIX: return row->precedence;
	case FORM_INFIX: return row->precedence + (j > 0);
	case FORM_SELECT: return row->precedence + (j == 0);
	default: return 0;
	}
}

static bool is_wrapped(const struct expr_node *n, int least)
{
	const struct expr_op_row *row = &expr_ops[n->op];
	return row->form != FORM_ATOM && row->form != FORM_INDEX && row->precedence < least;
}

int expr_print_depth(const struct expr_pool *pool, int root)
{
	int depth[EXPR_NODES_MAX];
	for (int i = 0; i <= root; i++) {
		const struct expr_node *n = &pool->node[i];
		const enum expr_form form = expr_ops[n->op].form;
		depth[i] = n->op == EXPR_CONST && (n->i < 0 || n->f < 0) ? 2 : 1;
		for (int j = 0; j < expr_args(n); j++) {
			const int arg = arg_shown(pool, n, j);
			const int deeper = (form != FORM_INFIX && (form != FORM_SELECT || j > 0)) +
			                   is_wrapped(&pool->node[arg], arg_least(n, j));
			depth[i] = depth[arg] + deeper > depth[i] ? depth[arg] + deeper : depth[i];
		}
	}
	return depth[root];
}

static void print_node(const struct printer *p, int root, int least);

static void print_arg(const struct printer *p, const struct expr_node *n, int j)
{
	print_node(p, arg_shown(p->pool, n, j), arg_least(n, j));
}

static void print_list(const struct printer *p, const struct expr_node *n, const char *open, const char *close)
{
	text_puts(p->out, open);
	for (int j = 0; j < expr_args(n); j++) {
		text_puts(p->out, j ? ", " : "");
		print_arg(p, n, j);
	}
	text_puts(p->out, close);
}

/* `least`: the weakest precedence that may stand here without parentheses. */
static void print_node(const struct printer *p, int root, int least)
{
	const struct expr_node *n = &p->pool->node[root];
	const struct expr_op_row *row = &expr_ops[n->op];
	const bool wrap = is_wrapped(n, least);
	text_puts(p->out, wrap ? "(" : "");
	switch (row->form) {
	case FORM_ATOM:
		if (n->op == EXPR_NAME)
			text_puts(p->out, expr_names[n->i]);
		else
			print_const(p->out, n);
		break;
	case FORM_INDEX:
		if (p->input)
			text_puts(p->out, p->input[n->i].name);
		else
			text_addf(p->out, "input%" PRId64, n->i);
		if (expr_args(n))
			print_list(p, n, "[", "]");
		break;
	case FORM_PREFIX:
		text_puts(p->out, row->spelling);
		print_arg(p, n, 0);
		break;
	case FORM_INFIX:
		print_arg(p, n, 0);
		text_addf(p->out, " %s ", row->spelling);
		print_arg(p, n, 1);
		break;
	case FORM_CALL:
		text_puts(p->out, row->spelling);
		print_list(p, n, "(", ")");
		break;
	case FORM_SELECT:
		print_arg(p, n, 0);
		text_puts(p->out, " ? ");
		print_arg(p, n, 1);
		text_puts(p->out, " : ");
		print_arg(p, n, 2);
		break;
	}
	text_puts(p->out, wrap ? ")" : "");
}

void expr_print(struct text *out, const struct expr_pool *pool, int root, const struct input *input)
{
	const struct printer p = {out, pool, input};
	if (expr_tree_size(pool, root) > EXPR_PRINT_MAX)
		text_puts(out, "...");
	else
		print_node(&p, root, 0);
}
