/* Random expressions with their own tree, text and evaluator: the truth that gen/expr is compared with. Shares nothing
 * with it but the language. */
#ifndef FAGEN_TESTS_RANDOM_EXPR_H
#define FAGEN_TESTS_RANDOM_EXPR_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "gen/gen.h"

__extension__ typedef __int128 big;

/* One letter for each operation: n number, v name, - negate, a abs, ! not, + ~ (minus) * / % m (min) M (max),
 * < l (<=) > g (>=) = # (!=) & | ?, t true, f false. */
struct tree { char op; int64_t number; int name; const struct tree *arg[3]; };

struct grove { struct tree tree[512]; int count; uint64_t state; };

static inline uint64_t grove_random(struct grove *g, uint64_t below)
{
	g->state = g->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (g->state >> 33) % below;
}

static inline const struct tree *tree_new(struct grove *g, char op, const struct tree *a, const struct tree *b, const struct tree *c)
{
	struct tree *t = &g->tree[g->count++];
	*t = (struct tree){.op = op, .arg = {a, b, c}};
	return t;
}

static inline const struct tree *tree_number(struct grove *g, int64_t number)
{
	struct tree *t = &g->tree[g->count++];
	*t = (struct tree){.op = 'n', .number = number};
	return t;
}

static inline const struct tree *tree_name(struct grove *g, int name)
{
	struct tree *t = &g->tree[g->count++];
	*t = (struct tree){.op = 'v', .name = name};
	return t;
}

static const char *const tree_names[] = {"b", "h", "q", "k", "sq", "sk"};

static inline const struct tree *tree_int(struct grove *g, int depth);

static inline const struct tree *tree_bool(struct grove *g, int depth)
{
	static const char compare[] = "<l>g=#<l>g";
	if (depth <= 0 || grove_random(g, 3) == 0) {
		if (grove_random(g, 12) == 0)
			return tree_new(g, grove_random(g, 2) ? 't' : 'f', NULL, NULL, NULL);
		const struct tree *a = tree_int(g, depth - 1);
		return tree_new(g, compare[grove_random(g, 10)], a, tree_int(g, depth - 1), NULL);
	}
	const struct tree *a = tree_bool(g, depth - 1);
	switch (grove_random(g, 6)) {
	case 0:
		return tree_new(g, '!', a, NULL, NULL);
	case 1: {
		const struct tree *b = tree_bool(g, depth - 1);
		return tree_new(g, '?', a, b, tree_bool(g, depth - 1));
	}
	case 2:
		return tree_new(g, grove_random(g, 2) ? '=' : '#', a, tree_bool(g, depth - 1), NULL);
	case 3:
		return tree_new(g, '|', a, tree_bool(g, depth - 1), NULL);
	default:
		return tree_new(g, '&', a, tree_bool(g, depth - 1), NULL);
	}
}

static inline const struct tree *tree_int(struct grove *g, int depth)
{
	if (depth <= 0 || grove_random(g, 4) == 0)
		return grove_random(g, 3) ? tree_name(g, (int)grove_random(g, 6)) : tree_number(g, (int64_t)grove_random(g, 9));
	const struct tree *a = tree_int(g, depth - 1);
	switch (grove_random(g, 10)) {
	case 0:
		return tree_new(g, '-', a, NULL, NULL);
	case 1:
		return tree_new(g, 'a', a, NULL, NULL);
	case 2:
		return tree_new(g, '*', a, tree_int(g, depth - 2), NULL);
	case 3:
		return tree_new(g, '/', a, tree_number(g, 1 + (int64_t)grove_random(g, 9)), NULL);
	case 4:
		return tree_new(g, '%', a, tree_number(g, 1 + (int64_t)grove_random(g, 9)), NULL);
	case 5:
		return tree_new(g, grove_random(g, 2) ? 'm' : 'M', a, tree_int(g, depth - 1), NULL);
	case 6: {
		const struct tree *c = tree_bool(g, depth - 2);
		return tree_new(g, '?', c, a, tree_int(g, depth - 1));
	}
	case 7:
	case 8:
		return tree_new(g, '~', a, tree_int(g, depth - 1), NULL);
	default:
		return tree_new(g, '+', a, tree_int(g, depth - 1), NULL);
	}
}

/* Every operation in parentheses. */
static inline void tree_text(struct text *out, const struct tree *t)
{
	static const struct { char op; const char *sign; } infix[] = {
		{'+', "+"}, {'~', "-"}, {'*', "*"}, {'/', "/"}, {'%', "%"}, {'<', "<"}, {'l', "<="},
		{'>', ">"}, {'g', ">="}, {'=', "=="}, {'#', "!="}, {'&', "&&"}, {'|', "||"},
	};
	switch (t->op) {
	case 'n':
		text_addf(out, "%lld", (long long)t->number);
		return;
	case 'v':
		text_puts(out, tree_names[t->name]);
		return;
	case 't':
		text_puts(out, "true");
		return;
	case 'f':
		text_puts(out, "false");
		return;
	case '-':
	case '!':
		text_addf(out, "(%c", t->op);
		tree_text(out, t->arg[0]);
		text_puts(out, ")");
		return;
	case 'a':
	case 'm':
	case 'M':
		text_puts(out, t->op == 'a' ? "abs(" : t->op == 'm' ? "min(" : "max(");
		tree_text(out, t->arg[0]);
		if (t->op != 'a') {
			text_puts(out, ",");
			tree_text(out, t->arg[1]);
		}
		text_puts(out, ")");
		return;
	case '?':
		text_puts(out, "(");
		tree_text(out, t->arg[0]);
		text_puts(out, "?");
		tree_text(out, t->arg[1]);
		text_puts(out, ":");
		tree_text(out, t->arg[2]);
		text_puts(out, ")");
		return;
	}
	text_puts(out, "(");
	tree_text(out, t->arg[0]);
	for (size_t i = 0; i < sizeof infix / sizeof *infix; i++)
		if (infix[i].op == t->op)
			text_puts(out, infix[i].sign);
	tree_text(out, t->arg[1]);
	text_puts(out, ")");
}

static inline big tree_value(const struct tree *t, const int64_t *name)
{
	big a = 0, b = 0;
	if (t->op == '?')
		return tree_value(t->arg[0], name) ? tree_value(t->arg[1], name) : tree_value(t->arg[2], name);
	if (t->arg[0])
		a = tree_value(t->arg[0], name);
	if (t->arg[1])
		b = tree_value(t->arg[1], name);
	switch (t->op) {
	case 'n':
		return t->number;
	case 'v':
		return name[t->name];
	case 't':
		return 1;
	case 'f':
		return 0;
	case '-':
		return -a;
	case 'a':
		return a < 0 ? -a : a;
	case '!':
		return !a;
	case '+':
		return a + b;
	case '~':
		return a - b;
	case '*':
		return a * b;
	case '/': { /* toward minus infinity */
		big d = a / b;
		while (d * b > a)
			d--;
		return d;
	}
	case '%': {
		big r = a % b;
		return r < 0 ? r + b : r;
	}
	case 'm':
		return a < b ? a : b;
	case 'M':
		return a > b ? a : b;
	case '<':
		return a < b;
	case 'l':
		return a <= b;
	case '>':
		return a > b;
	case 'g':
		return a >= b;
	case '=':
		return a == b;
	case '#':
		return a != b;
	case '&':
		return a && b;
	default:
		return a || b;
	}
}

#endif
