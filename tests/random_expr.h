/* Random expressions with their own tree, text and evaluator: the truth that gen/expr is compared with. Shares nothing
 * with it but the language. Ints alone, unless a grove asks for more. All values stay moderate: floats finite and far
 * below 2^24 in size, ints far from 64 bits. */
#ifndef FAGEN_TESTS_RANDOM_EXPR_H
#define FAGEN_TESTS_RANDOM_EXPR_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "gen/gen.h"

__extension__ typedef __int128 big;

/* One letter for each operation. Atoms: n int, x float, v name, S the score s, I element of an input, t true, f false.
 * - negate, a abs, ! not, + ~ (minus) * / % m (min) M (max), < l (<=) > g (>=) = # (!=) & | ?.
 * F floor, c float, e exp, L log, h tanh, r sqrt, i sigmoid, R random. */
struct tree {
	char op, type; /* type: b, i or f */
	int64_t number;
	double real;
	int name; /* of v: of tree_names; of I: of tree_inputs */
	const struct tree *arg[4];
};

struct grove {
	struct tree tree[2048];
	int count;
	uint64_t state;
	bool floats, inputs, score; /* may it hold floats, elements of tree_inputs, s? */
};

static const char *const tree_names[] = {"b", "h", "q", "k", "sq", "sk"};

enum { TREE_INPUTS = 7 };
static const struct input tree_inputs[TREE_INPUTS] = {
	{.name = "doc", .dtype = INPUT_I32, .dims = 2, .dim = {{.kind = DIM_BATCH}, {.kind = DIM_SEQ_K}}},
	{.name = "used", .dtype = INPUT_I32, .dims = 1, .dim = {{.kind = DIM_BATCH}}},
	{.name = "flag", .dtype = INPUT_U8, .dims = 2, .dim = {{.kind = DIM_HEADS}, {.kind = DIM_SEQ_Q}}},
	{.name = "one", .dtype = INPUT_F32, .dims = 0},
	{.name = "slope", .dtype = INPUT_F32, .dims = 1, .dim = {{.kind = DIM_HEADS}}},
	{.name = "table", .dtype = INPUT_BF16, .dims = 2, .dim = {{.kind = DIM_HEADS}, {DIM_CONST, 13}}},
	{.name = "cell", .dtype = INPUT_FP16, .dims = 4,
	 .dim = {{.kind = DIM_BATCH}, {.kind = DIM_HEADS}, {.kind = DIM_SEQ_Q}, {.kind = DIM_SEQ_K}}},
};

static inline uint64_t grove_random(struct grove *g, uint64_t below)
{
	g->state = g->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (g->state >> 33) % below;
}

/* No deeper once the grove is half full. */
static inline int grove_depth(const struct grove *g, int depth) { return g->count > 1000 ? 0 : depth; }

static inline bool tree_is_whole(int input) { return tree_inputs[input].dtype == INPUT_I32 || tree_inputs[input].dtype == INPUT_U8; }

static inline const struct tree *tree_new(struct grove *g, char op, const struct tree *a, const struct tree *b, const struct tree *c)
{
	struct tree *t = &g->tree[g->count++];
	const bool some = (a && a->type == 'f') || (b && b->type == 'f') || (c && c->type == 'f');
	*t = (struct tree){.op = op, .arg = {a, b, c}};
	t->type = strchr("tf!<l>g=#&|", op) ? 'b' : strchr("%FR", op) ? 'i' : strchr("SxceirhL", op) ? 'f' : some ? 'f' : 'i';
	if (op == '?' && b->type == 'b')
		t->type = 'b';
	return t;
}

static inline const struct tree *tree_number(struct grove *g, int64_t number)
{
	struct tree *t = &g->tree[g->count++];
	*t = (struct tree){.op = 'n', .type = 'i', .number = number};
	return t;
}

static inline const struct tree *tree_real(struct grove *g, double real)
{
	struct tree *t = &g->tree[g->count++];
	*t = (struct tree){.op = 'x', .type = 'f', .real = real};
	return t;
}

static inline const struct tree *tree_name(struct grove *g, int name)
{
	struct tree *t = &g->tree[g->count++];
	*t = (struct tree){.op = 'v', .type = 'i', .name = name};
	return t;
}

static inline const struct tree *tree_int(struct grove *g, int depth);
static inline const struct tree *tree_float(struct grove *g, int depth);

static inline const struct tree *tree_number_any(struct grove *g, int depth)
{
	return g->floats && grove_random(g, 3) == 0 ? tree_float(g, depth) : tree_int(g, depth);
}

/* An element of an input that holds ints, or of one that holds floats. Its indexes are mostly the positions that its
 * dimensions count, sometimes other ints, often outside. */
static inline const struct tree *tree_element(struct grove *g, bool whole, int depth)
{
	int input;
	do
		input = (int)grove_random(g, TREE_INPUTS);
	while (tree_is_whole(input) != whole);
	const struct tree *arg[4] = {NULL, NULL, NULL, NULL};
	for (int j = 0; j < tree_inputs[input].dims; j++) {
		const enum dim_kind kind = tree_inputs[input].dim[j].kind;
		const int position = kind == DIM_BATCH ? 0 : kind == DIM_HEADS ? 1 : kind == DIM_SEQ_Q ? 2 : 3;
		if (grove_random(g, 3) == 0 && depth > 0)
			arg[j] = tree_int(g, depth - 1);
		else if (kind == DIM_CONST || (kind >= DIM_SEQ_Q && grove_random(g, 4) == 0))
			arg[j] = tree_new(g, '+', tree_new(g, '~', tree_name(g, 2), tree_name(g, 3), NULL),
			                  tree_number(g, (int64_t)grove_random(g, 9)), NULL);
		else
			arg[j] = tree_name(g, position);
	}
	struct tree *t = &g->tree[g->count++];
	*t = (struct tree){.op = 'I', .type = whole ? 'i' : 'f', .name = input, .arg = {arg[0], arg[1], arg[2], arg[3]}};
	return t;
}

static inline const struct tree *tree_bool(struct grove *g, int depth)
{
	depth = grove_depth(g, depth);
	static const char compare[] = "<l>g=#<l>g";
	if (depth <= 0 || grove_random(g, 3) == 0) {
		if (grove_random(g, 12) == 0)
			return tree_new(g, grove_random(g, 2) ? 't' : 'f', NULL, NULL, NULL);
		const struct tree *a = tree_number_any(g, depth - 1);
		return tree_new(g, compare[grove_random(g, 10)], a, tree_number_any(g, depth - 1), NULL);
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
	depth = grove_depth(g, depth);
	if (g->inputs && grove_random(g, 6) == 0)
		return tree_element(g, true, depth);
	if (depth <= 0 || grove_random(g, 4) == 0)
		return grove_random(g, 3) ? tree_name(g, (int)grove_random(g, 6)) : tree_number(g, (int64_t)grove_random(g, 9));
	if (g->floats && grove_random(g, 8) == 0)
		return tree_new(g, 'F', tree_new(g, 'm', tree_new(g, 'M', tree_float(g, depth - 1), tree_real(g, -99), NULL), tree_real(g, 99), NULL), NULL, NULL);
	const struct tree *a = tree_int(g, depth - 1);
	if (g->floats && grove_random(g, 8) == 0) {
		const struct tree *x = tree_new(g, 'R', tree_number(g, (int64_t)grove_random(g, 1000)), a, tree_int(g, depth - 1));
		return tree_new(g, '%', x, tree_number(g, 50), NULL);
	}
	switch (grove_random(g, 10)) {
	case 0:
		return tree_new(g, '-', a, NULL, NULL);
	case 1:
		return tree_new(g, 'a', a, NULL, NULL);
	case 2:
		return tree_new(g, '*', a, tree_int(g, depth - 2), NULL);
	case 3:
	case 4: {
		const struct tree *d = tree_number(g, 1 + (int64_t)grove_random(g, 9));
		if (g->floats && grove_random(g, 3) == 0)
			d = tree_new(g, 'M', d, tree_int(g, depth - 2), NULL);
		return tree_new(g, grove_random(g, 2) ? '/' : '%', a, d, NULL);
	}
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

/* Of two operands at least one float; divisors stay away from zero, logarithms and roots above it. */
static inline const struct tree *tree_float(struct grove *g, int depth)
{
	depth = grove_depth(g, depth);
	if (g->inputs && grove_random(g, 6) == 0)
		return tree_element(g, false, depth);
	if (g->score && grove_random(g, 4) == 0)
		return tree_new(g, 'S', NULL, NULL, NULL);
	if (depth <= 0 || grove_random(g, 6) == 0)
		return tree_real(g, (double)(1 + (int64_t)grove_random(g, 40)) / 8);
	const struct tree *a = tree_float(g, depth - 1);
	switch (grove_random(g, 15)) {
	case 0:
		return tree_new(g, '-', a, NULL, NULL);
	case 1:
		return tree_new(g, 'a', a, NULL, NULL);
	case 2:
	case 3:
		return tree_new(g, '*', tree_new(g, 'h', a, NULL, NULL), tree_number_any(g, depth - 2), NULL);
	case 4:
		return tree_new(g, '/', a, tree_new(g, '+', tree_new(g, 'a', tree_number_any(g, depth - 2), NULL, NULL), tree_real(g, 0.5), NULL), NULL);
	case 5:
		return tree_new(g, grove_random(g, 2) ? 'm' : 'M', a, tree_number_any(g, depth - 1), NULL);
	case 6: {
		const struct tree *c = tree_bool(g, depth - 2);
		return grove_random(g, 2) ? tree_new(g, '?', c, a, tree_number_any(g, depth - 1)) : tree_new(g, '?', c, tree_number_any(g, depth - 1), a);
	}
	case 7:
		return tree_new(g, 'e', tree_new(g, 'm', a, tree_real(g, 2), NULL), NULL, NULL);
	case 8:
		return tree_new(g, 'L', tree_new(g, '+', tree_new(g, 'a', a, NULL, NULL), tree_real(g, 0.25), NULL), NULL, NULL);
	case 9:
		return tree_new(g, 'r', tree_new(g, '+', tree_new(g, 'a', a, NULL, NULL), tree_real(g, 0.5), NULL), NULL, NULL);
	case 10:
		return tree_new(g, grove_random(g, 2) ? 'h' : 'i', tree_number_any(g, depth - 1), NULL, NULL);
	case 11:
		return tree_new(g, 'c', tree_int(g, depth - 1), NULL, NULL);
	case 12:
		return tree_new(g, '~', tree_number_any(g, depth - 1), a, NULL);
	case 13:
		return tree_new(g, '~', a, tree_number_any(g, depth - 1), NULL);
	default:
		return tree_new(g, '+', a, tree_number_any(g, depth - 1), NULL);
	}
}

/* Every operation in parentheses. */
static inline void tree_text(struct text *out, const struct tree *t)
{
	static const struct { char op; const char *sign; } infix[] = {
		{'+', "+"}, {'~', "-"}, {'*', "*"}, {'/', "/"}, {'%', "%"}, {'<', "<"}, {'l', "<="},
		{'>', ">"}, {'g', ">="}, {'=', "=="}, {'#', "!="}, {'&', "&&"}, {'|', "||"},
	}, call[] = {
		{'a', "abs"}, {'m', "min"}, {'M', "max"}, {'F', "floor"}, {'c', "float"}, {'e', "exp"}, {'L', "log"},
		{'h', "tanh"}, {'r', "sqrt"}, {'i', "sigmoid"}, {'R', "random"},
	};
	const char *sign = NULL;
	for (size_t i = 0; i < sizeof call / sizeof *call; i++)
		sign = call[i].op == t->op ? call[i].sign : sign;
	if (sign || t->op == 'I') {
		text_puts(out, sign ? sign : tree_inputs[t->name].name);
		for (int j = 0; j < 4 && t->arg[j]; j++) {
			text_puts(out, j ? "," : sign ? "(" : "[");
			tree_text(out, t->arg[j]);
		}
		text_puts(out, sign ? ")" : t->arg[0] ? "]" : "");
		return;
	}
	switch (t->op) {
	case 'n':
		text_addf(out, "%lld", (long long)t->number);
		return;
	case 'x':
		text_addf(out, t->real < 0 ? "(%.3f)" : "%.3f", t->real);
		return;
	case 'v':
		text_puts(out, tree_names[t->name]);
		return;
	case 'S':
		text_puts(out, "s");
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

/* ---- values ---- */

/* Where an expression is evaluated. */
struct tree_point {
	int64_t name[6];  /* of tree_names */
	double s;
	int64_t batch, heads; /* with sq and sk: the sizes of the inputs' dimensions */
	bool packed;      /* a batch dimension beside positions has one entry */
	bool close;       /* comes out true: a comparison or floor of floats was so near that float32 may decide otherwise */
};

struct tree_result { big i; double f; };

static inline int64_t tree_dim(const struct tree_point *p, const struct input *input, int j)
{
	bool positions = false;
	for (int d = 0; d < input->dims; d++)
		positions = positions || input->dim[d].kind >= DIM_SEQ_Q;
	switch (input->dim[j].kind) {
	case DIM_BATCH:
		return p->packed && positions ? 1 : p->batch;
	case DIM_HEADS:
		return p->heads;
	case DIM_SEQ_Q:
		return p->name[4];
	case DIM_SEQ_K:
		return p->name[5];
	default:
		return input->dim[j].size;
	}
}

/* What element [index] of an input holds: ints from -4 to 27, u8 from 0 to 7, floats multiples of 1/8 from -2 to 2. */
static inline double tree_input_value(int input, const int64_t *index)
{
	uint64_t z = (uint64_t)input * 77 + 5;
	for (int j = 0; j < tree_inputs[input].dims; j++)
		z = (z ^ (uint64_t)index[j]) * UINT64_C(0x9E3779B97F4A7C15), z ^= z >> 29;
	if (!tree_is_whole(input))
		return (double)(z % 33) / 8 - 2;
	return tree_inputs[input].dtype == INPUT_U8 ? (double)(z % 8) : (double)(z % 32) - 4;
}

static inline int64_t tree_random(int64_t seed, int64_t x, int64_t y)
{
	const uint64_t mask = 0xFFFFFFFF;
	uint64_t z = ((uint64_t)seed & mask) * 0x9E3779B1 & mask;
	z = (z ^ ((uint64_t)x & mask)) * 0x85EBCA6B & mask;
	z ^= z >> 15;
	z = (z ^ ((uint64_t)y & mask)) * 0xC2B2AE35 & mask;
	z ^= z >> 13;
	z = z * 0x27D4EB2F & mask;
	return (int64_t)((z ^ z >> 16) & 0xFFFF);
}

static inline bool tree_near(double a, double b) { return fabs(a - b) <= 1e-4 * (1 + fabs(a) + fabs(b)); }

static inline bool tree_compare(char op, big a, big b)
{
	return op == '<' ? a < b : op == 'l' ? a <= b : op == '>' ? a > b : op == 'g' ? a >= b : op == '=' ? a == b : a != b;
}

static inline bool tree_compare_real(char op, double a, double b)
{
	return op == '<' ? a < b : op == 'l' ? a <= b : op == '>' ? a > b : op == 'g' ? a >= b : op == '=' ? a == b : a != b;
}

static inline double tree_real_apply(char op, double a, double b)
{
	switch (op) {
	case '-':
		return -a;
	case 'a':
		return fabs(a);
	case '+':
		return a + b;
	case '~':
		return a - b;
	case '*':
		return a * b;
	case '/':
		return a / b;
	case 'm':
		return fmin(a, b);
	case 'M':
		return fmax(a, b);
	case 'c':
		return a;
	case 'e':
		return exp(a);
	case 'L':
		return log(a);
	case 'h':
		return tanh(a);
	case 'r':
		return sqrt(a);
	default:
		return 1 / (1 + exp(-a));
	}
}

static inline big tree_int_apply(char op, big a, big b)
{
	switch (op) {
	case '-':
		return -a;
	case 'a':
		return a < 0 ? -a : a;
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
	default:
		return a > b ? a : b;
	}
}

static inline struct tree_result tree_at(const struct tree *t, struct tree_point *p)
{
	struct tree_result v[4] = {{0, 0}}, r = {0, 0};
	bool real = false;
	if (t->op == '?') {
		const bool first = tree_at(t->arg[0], p).i != 0;
		const struct tree *chosen = t->arg[first ? 1 : 2];
		r = tree_at(chosen, p);
		if (t->type == 'f' && chosen->type == 'i')
			r = (struct tree_result){0, (double)r.i};
		return r;
	}
	for (int j = 0; j < 4 && t->arg[j]; j++) {
		v[j] = tree_at(t->arg[j], p);
		real = real || t->arg[j]->type == 'f';
	}
	real = real || t->type == 'f';
	if (t->op == 'I') {
		int64_t index[4] = {0, 0, 0, 0};
		for (int j = 0; j < tree_inputs[t->name].dims; j++) {
			const int64_t last = tree_dim(p, &tree_inputs[t->name], j) - 1;
			index[j] = v[j].i < 0 ? 0 : v[j].i > last ? last : (int64_t)v[j].i;
		}
		r.f = tree_input_value(t->name, index);
		r.i = (big)r.f;
		return r;
	}
	for (int j = 0; j < 4 && t->arg[j]; j++)
		if (real && t->arg[j]->type == 'i')
			v[j].f = (double)v[j].i;
	if (strchr("<l>g=#", t->op)) {
		r.i = real ? tree_compare_real(t->op, v[0].f, v[1].f) : tree_compare(t->op, v[0].i, v[1].i);
		p->close = p->close || (real && tree_near(v[0].f, v[1].f));
		return r;
	}
	switch (t->op) {
	case 'n':
		r.i = t->number;
		return r;
	case 'x':
		r.f = t->real;
		return r;
	case 'v':
		r.i = p->name[t->name];
		return r;
	case 'S':
		r.f = p->s;
		return r;
	case 't':
	case 'f':
		r.i = t->op == 't';
		return r;
	case '!':
		r.i = !v[0].i;
		return r;
	case '&':
		r.i = v[0].i && v[1].i;
		return r;
	case '|':
		r.i = v[0].i || v[1].i;
		return r;
	case 'R':
		r.i = tree_random((int64_t)v[0].i, (int64_t)v[1].i, (int64_t)v[2].i);
		return r;
	case 'F':
		p->close = p->close || tree_near(v[0].f, nearbyint(v[0].f));
		r.i = (big)floor(v[0].f);
		return r;
	}
	if (real)
		r.f = tree_real_apply(t->op, v[0].f, v[1].f);
	else
		r.i = tree_int_apply(t->op, v[0].i, v[1].i);
	return r;
}

/* Of a tree of ints and bools without inputs. */
static inline big tree_value(const struct tree *t, const int64_t *name)
{
	struct tree_point p = {.close = false};
	memcpy(p.name, name, sizeof p.name);
	return tree_at(t, &p).i;
}

#endif
