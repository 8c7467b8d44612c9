/* A recursive descent over the expression language, one function for each level of precedence. Types are settled while
 * parsing; what gen/ refuses for reasons other than grammar and types is not refused here. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/case.h"
#include "check/program.h"

enum scope { IN_MASK, IN_SCORE, IN_BLOCKS };

struct reader {
	struct ref_program *p;
	const struct spec *spec;
	enum scope scope;
	int s; /* node that `s` stands for */
	const char *text, *at;
	struct diag *diag;
	bool failed;
};

static const char *const names[REF_NAME_COUNT] = {"b", "h", "q", "k", "sq", "sk", "hq", "hk"};

static const struct {
	const char *name;
	enum scope scope;
	const char *param[3];
	const char *input;
	int required; /* parameters that must be given; the others are unbounded then */
} presets[REF_PRESET_COUNT] = {
	[REF_CAUSAL] = {"causal", IN_MASK},
	[REF_CAUSAL_TOP_LEFT] = {"causal_top_left", IN_MASK},
	[REF_WINDOW] = {"window", IN_MASK, {"left", "right"}},
	[REF_PREFIX] = {"prefix", IN_MASK, {"n"}, .required = 1},
	[REF_DOCUMENT] = {"document", IN_MASK, .input = "doc"},
	[REF_PADDING] = {"padding", IN_MASK, .input = "kv_len"},
	[REF_DILATED] = {"dilated", IN_MASK, {"step", "left", "right"}, .required = 1},
	[REF_SOFTCAP] = {"softcap", IN_SCORE, {"cap"}, .required = 1},
	[REF_ALIBI] = {"alibi", IN_SCORE, .input = "slope"},
	[REF_BIAS] = {"bias", IN_SCORE, .input = "bias"},
	[REF_T5] = {"t5", IN_SCORE, .input = "rel"},
	[REF_T5_CAUSAL] = {"t5_causal", IN_SCORE, .input = "rel"},
	[REF_LOCAL] = {"local", IN_BLOCKS, {"left", "right"}},
	[REF_GLOBAL] = {"global", IN_BLOCKS, {"n"}, .required = 1},
	[REF_STRIDED] = {"strided", IN_BLOCKS, {"step"}, .required = 1},
	[REF_RANDOM_BLOCKS] = {"random", IN_BLOCKS, {"seed", "chance"}, .required = 2},
};

static int fail(struct reader *r, const char *what)
{
	if (!r->failed)
		diag_fail(r->diag, "The reference cannot read \"%s\" at \"%.20s\": %s.", r->text ? r->text : "the spec",
		          r->at ? r->at : "", what);
	r->failed = true;
	return -1;
}

static int node_add(struct reader *r, struct ref_node n)
{
	if (r->failed)
		return -1;
	if (r->p->count == REF_NODES_MAX)
		return fail(r, "the expression is too long");
	r->p->node[r->p->count] = n;
	return r->p->count++;
}

static enum ref_type type_of(const struct reader *r, int node) { return node < 0 ? REF_INT : r->p->node[node].type; }

static int to_float(struct reader *r, int a)
{
	if (type_of(r, a) == REF_FLOAT)
		return a;
	if (type_of(r, a) == REF_BOOL)
		return fail(r, "a condition is no number");
	return node_add(r, (struct ref_node){.op = REF_TO_FLOAT, .type = REF_FLOAT, .arg = {a, -1, -1, -1}});
}

static int unary(struct reader *r, enum ref_op op, enum ref_type type, int a)
{
	return node_add(r, (struct ref_node){.op = op, .type = type, .arg = {a, -1, -1, -1}});
}

/* Two numbers become of one kind, two conditions stay. */
static int binary(struct reader *r, enum ref_op op, int a, int b)
{
	const bool bools = type_of(r, a) == REF_BOOL || type_of(r, b) == REF_BOOL;
	const bool logic = op == REF_AND || op == REF_OR, equality = op == REF_EQ || op == REF_NE;
	if (logic ? type_of(r, a) != REF_BOOL || type_of(r, b) != REF_BOOL
	          : bools && (!equality || type_of(r, a) != type_of(r, b)))
		return fail(r, "operands of the wrong type");
	if (!bools && (type_of(r, a) == REF_FLOAT || type_of(r, b) == REF_FLOAT))
		a = to_float(r, a), b = to_float(r, b);
	const enum ref_type type = op >= REF_LT && op <= REF_OR ? REF_BOOL : type_of(r, a);
	if (op == REF_MOD && type != REF_INT)
		return fail(r, "% takes integers");
	return node_add(r, (struct ref_node){.op = op, .type = type, .arg = {a, b, -1, -1}});
}

static bool take(struct reader *r, const char *sign)
{
	while (isspace((unsigned char)*r->at))
		r->at++;
	const size_t len = strlen(sign);
	if (strncmp(r->at, sign, len))
		return false;
	r->at += len;
	return true;
}

static int choice(struct reader *);

static int number(struct reader *r)
{
	char *end;
	const size_t digits = strspn(r->at, "0123456789");
	if (strchr(".eE", r->at[digits]) && r->at[digits]) {
		const double f = strtod(r->at, &end);
		r->at = end;
		return node_add(r, (struct ref_node){.op = REF_NUMBER, .type = REF_FLOAT, .f = f});
	}
	const long long i = strtoll(r->at, &end, 10);
	r->at = end;
	return node_add(r, (struct ref_node){.op = REF_NUMBER, .type = REF_INT, .i = i});
}

static int input_find(const struct reader *r, const char *name)
{
	for (int i = 0; i < r->spec->input_count; i++)
		if (!strcmp(r->spec->input[i].name, name))
			return i;
	return -1;
}

static int input_read(struct reader *r, int input)
{
	const struct input *in = &r->spec->input[input];
	const bool is_int = in->dtype == INPUT_I32 || in->dtype == INPUT_U8;
	struct ref_node n = {
		.op = REF_INPUT, .type = is_int ? REF_INT : REF_FLOAT, .arg = {-1, -1, -1, -1}, .input = input};
	for (int d = 0; d < in->dims; d++) {
		if (!take(r, d ? "," : "["))
			return fail(r, "an input takes an index for each dimension");
		n.arg[d] = choice(r);
		if (type_of(r, n.arg[d]) != REF_INT)
			return fail(r, "an index is an integer");
	}
	if (in->dims && !take(r, "]"))
		return fail(r, "] is missing");
	return node_add(r, n);
}

static int arguments(struct reader *r, int *arg, int max)
{
	int count = 0;
	if (!take(r, "("))
		return 0;
	if (take(r, ")"))
		return 0;
	do {
		if (count == max)
			return fail(r, "too many arguments");
		const char *before = r->at;
		if (take(r, "unbounded") && !isalnum((unsigned char)*r->at) && *r->at != '_') {
			arg[count++] = -1;
			continue;
		}
		r->at = before;
		arg[count++] = choice(r);
	} while (take(r, ","));
	if (!take(r, ")"))
		return fail(r, ") is missing");
	return count;
}

static int preset_node(struct reader *r, int preset, const int arg[3])
{
	const bool score = presets[preset].scope == IN_SCORE;
	struct ref_node n = {.op = REF_PRESET,
	                     .type = score ? REF_FLOAT : REF_BOOL,
	                     .arg = {arg[0], arg[1], arg[2], score ? r->s : -1},
	                     .input = -1,
	                     .i = preset};
	if (presets[preset].input && (n.input = input_find(r, presets[preset].input)) < 0)
		return fail(r, "the preset's input is not among the spec's");
	for (int i = 0; i < presets[preset].required; i++)
		if (arg[i] < 0)
			return fail(r, "the preset lacks an argument");
	if (preset == REF_SOFTCAP || preset == REF_RANDOM_BLOCKS) {
		const int real = preset == REF_SOFTCAP ? 0 : 1;
		n.arg[real] = to_float(r, n.arg[real]);
	}
	return node_add(r, n);
}

static int preset_called(struct reader *r, int preset)
{
	int arg[3] = {-1, -1, -1};
	if (presets[preset].scope != r->scope)
		return fail(r, "a preset of another kind");
	if (arguments(r, arg, 3) < 0)
		return -1;
	return preset_node(r, preset, arg);
}

static int function(struct reader *r, const char *word)
{
	static const struct {
		const char *name;
		enum ref_op op;
		int args;
	} table[] = {{"abs", REF_ABS, 1},       {"min", REF_MIN, 2},       {"max", REF_MAX, 2},
	             {"floor", REF_FLOOR, 1},   {"exp", REF_EXP, 1},       {"log", REF_LOG, 1},
	             {"tanh", REF_TANH, 1},     {"sqrt", REF_SQRT, 1},     {"sigmoid", REF_SIGMOID, 1},
	             {"random", REF_RANDOM, 3}, {"float", REF_TO_FLOAT, 1}};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		if (strcmp(table[i].name, word))
			continue;
		int a[3] = {-1, -1, -1};
		const char *before = r->at;
		const int given = arguments(r, a, 3);
		if (given < 0)
			return -1;
		if (given != table[i].args) { /* `random` is a preset of two parameters, too */
			r->at = before;
			break;
		}
		const enum ref_op op = table[i].op;
		for (int k = 0; k < given; k++)
			if (a[k] < 0 || type_of(r, a[k]) == REF_BOOL)
				return fail(r, "an argument is a number");
		if (op == REF_MIN || op == REF_MAX)
			return binary(r, op, a[0], a[1]);
		if (op == REF_ABS)
			return unary(r, op, type_of(r, a[0]), a[0]);
		if (op == REF_FLOOR)
			return type_of(r, a[0]) == REF_INT ? a[0] : unary(r, op, REF_INT, a[0]);
		if (op == REF_RANDOM)
			return node_add(r, (struct ref_node){.op = op, .type = REF_INT, .arg = {a[0], a[1], a[2], -1}});
		return op == REF_TO_FLOAT ? to_float(r, a[0]) : unary(r, op, REF_FLOAT, to_float(r, a[0]));
	}
	for (int i = 0; i < REF_PRESET_COUNT; i++)
		if (!strcmp(presets[i].name, word))
			return preset_called(r, i);
	return fail(r, "an unknown name");
}

static int primary(struct reader *r)
{
	if (take(r, "(")) {
		const int a = choice(r);
		return take(r, ")") ? a : fail(r, ") is missing");
	}
	if (isdigit((unsigned char)*r->at) || *r->at == '.')
		return number(r);
	char word[INPUT_NAME_MAX];
	size_t len = 0;
	while (isalnum((unsigned char)r->at[len]) || r->at[len] == '_')
		len++;
	if (!len || len >= sizeof word)
		return fail(r, "a number or a name is expected");
	memcpy(word, r->at, len);
	word[len] = 0;
	r->at += len;
	if (!strcmp(word, "true") || !strcmp(word, "false"))
		return node_add(r, (struct ref_node){.op = REF_NUMBER, .type = REF_BOOL, .i = *word == 't'});
	for (int i = 0; i < REF_NAME_COUNT; i++)
		if (!strcmp(word, names[i]))
			return node_add(r, (struct ref_node){.op = REF_NAME, .type = REF_INT, .i = i});
	if (!strcmp(word, "s") && r->scope == IN_SCORE)
		return r->s;
	const int input = input_find(r, word);
	const bool indexed = take(r, "[");
	r->at -= indexed;
	if (input >= 0 && (indexed || !r->spec->input[input].dims))
		return input_read(r, input);
	return function(r, word);
}

static int prefix(struct reader *r)
{
	const bool minus = take(r, "-");
	if (!minus && (!take(r, "!") || *r->at == '='))
		return primary(r);
	const int a = prefix(r);
	if ((type_of(r, a) == REF_BOOL) == minus)
		return fail(r, "- takes a number, ! a condition");
	return unary(r, minus ? REF_NEG : REF_NOT, type_of(r, a), a);
}

static int product(struct reader *r)
{
	for (int a = prefix(r);;)
		if (take(r, "*"))
			a = binary(r, REF_MUL, a, prefix(r));
		else if (take(r, "/"))
			a = binary(r, REF_DIV, a, prefix(r));
		else if (take(r, "%"))
			a = binary(r, REF_MOD, a, prefix(r));
		else
			return a;
}

static int sum(struct reader *r)
{
	for (int a = product(r);;)
		if (take(r, "+"))
			a = binary(r, REF_ADD, a, product(r));
		else if (take(r, "-"))
			a = binary(r, REF_SUB, a, product(r));
		else
			return a;
}

static int relation(struct reader *r)
{
	for (int a = sum(r);;) {
		if (take(r, "<=")) {
			a = binary(r, REF_LE, a, sum(r));
		} else if (take(r, ">=")) {
			const int b = sum(r);
			a = binary(r, REF_LE, b, a);
		} else if (take(r, "<")) {
			a = binary(r, REF_LT, a, sum(r));
		} else if (take(r, ">")) {
			const int b = sum(r);
			a = binary(r, REF_LT, b, a);
		} else {
			return a;
		}
	}
}

static int equality(struct reader *r)
{
	for (int a = relation(r);;)
		if (take(r, "=="))
			a = binary(r, REF_EQ, a, relation(r));
		else if (take(r, "!="))
			a = binary(r, REF_NE, a, relation(r));
		else
			return a;
}

static int conjunction(struct reader *r)
{
	int a = equality(r);
	while (take(r, "&&"))
		a = binary(r, REF_AND, a, equality(r));
	return a;
}

static int disjunction(struct reader *r)
{
	int a = conjunction(r);
	while (take(r, "||"))
		a = binary(r, REF_OR, a, conjunction(r));
	return a;
}

static int choice(struct reader *r)
{
	const int c = r->failed ? -1 : disjunction(r);
	if (!take(r, "?"))
		return c;
	int a = choice(r);
	if (!take(r, ":"))
		return fail(r, ": is missing");
	int b = choice(r);
	if (type_of(r, c) != REF_BOOL)
		return fail(r, "? takes a condition");
	if (type_of(r, a) != type_of(r, b))
		a = to_float(r, a), b = to_float(r, b);
	return node_add(r, (struct ref_node){.op = REF_SELECT, .type = type_of(r, a), .arg = {c, a, b, -1}});
}

static int text_read(struct reader *r, const char *text)
{
	r->text = r->at = text;
	const int a = choice(r);
	take(r, ""); /* blanks at the end */
	return r->failed ? -1 : *r->at ? fail(r, "the end is expected") : a;
}

static int argument_read(struct reader *r, const struct term_arg *a)
{
	switch (a->kind) {
	case ARG_INT: return node_add(r, (struct ref_node){.op = REF_NUMBER, .type = REF_INT, .i = a->i});
	case ARG_REAL: return node_add(r, (struct ref_node){.op = REF_NUMBER, .type = REF_FLOAT, .f = a->f});
	case ARG_TEXT: return text_read(r, r->spec->text + a->text);
	default: return -1;
	}
}

static int term_read(struct reader *r, int index)
{
	const struct term *t = &r->spec->term[index];
	if (t->kind == TERM_TEXT)
		return text_read(r, r->spec->text + t->text);
	if (t->kind == TERM_PRESET) {
		const struct preset *row = &preset_table[t->preset];
		int preset = 0, arg[3] = {-1, -1, -1};
		while (preset < REF_PRESET_COUNT && strcmp(presets[preset].name, row->name))
			preset++;
		if (preset == REF_PRESET_COUNT)
			return fail(r, "the reference lacks a preset");
		for (int i = 0; i < SPEC_ARGS_MAX && row->param[i].name; i++) {
			int to = 0;
			while (to < 3 &&
			       (!presets[preset].param[to] || strcmp(presets[preset].param[to], row->param[i].name)))
				to++;
			if (to == 3)
				return fail(r, "the reference lacks a preset's parameter");
			arg[to] = argument_read(r, &t->arg[i]);
		}
		return preset_node(r, preset, arg);
	}
	if (t->kind == TERM_CHAIN) {
		for (int i = t->child; i >= 0; i = r->spec->term[i].next)
			r->s = to_float(r, term_read(r, i));
		return r->s;
	}
	int all = node_add(r, (struct ref_node){.op = REF_NUMBER, .type = REF_BOOL, .i = t->kind == TERM_ALL});
	for (int i = t->child; i >= 0; i = r->spec->term[i].next)
		all = binary(r, t->kind == TERM_ALL ? REF_AND : REF_OR, all, term_read(r, i));
	return all;
}

/* One of the three parts; its result becomes its last node. */
static struct ref_part part_read(struct reader *r, int term, enum scope scope)
{
	struct ref_part part = {r->p->count, r->p->count};
	if (term < 0)
		return part;
	r->scope = scope;
	if (scope == IN_SCORE)
		r->s = node_add(r, (struct ref_node){.op = REF_S, .type = REF_FLOAT});
	int root = term_read(r, term);
	if (scope == IN_SCORE)
		root = to_float(r, root);
	else if (type_of(r, root) != REF_BOOL)
		fail(r, "a condition is expected");
	if (!r->failed && root != r->p->count - 1) { /* `s` alone, or a chain that ends in an earlier node */
		const int zero = node_add(r, (struct ref_node){.op = REF_NUMBER, .type = r->p->node[root].type});
		node_add(r, (struct ref_node){.op = scope == IN_SCORE ? REF_ADD : REF_OR,
		                              .type = r->p->node[root].type,
		                              .arg = {root, zero, -1, -1}});
	}
	part.end = r->p->count;
	return part;
}

static void blocks_read(struct reader *r)
{
	struct ref_program *p = r->p;
	const struct blocks *b = &r->spec->blocks;
	if (b->source == BLOCKS_NONE)
		return;
	p->block_q = b->size_q;
	p->block_k = b->size_k;
	switch (b->source) {
	case BLOCKS_ROWS:
		p->blocks = REF_BLOCKS_ROWS;
		p->rows = b->rows;
		p->columns = b->columns;
		p->row = malloc((size_t)p->rows * (size_t)p->columns + 1);
		if (!p->row)
			abort();
		for (int q = 0; q < p->rows; q++)
			for (int k = 0; k < p->columns; k++)
				p->row[q * p->columns + k] = r->spec->block_rows[q][k / 64] >> (k % 64) & 1;
		return;
	case BLOCKS_BITMAP:
		p->blocks = REF_BLOCKS_BITMAP;
		p->block_input[0] = input_find(r, "blocks");
		break;
	case BLOCKS_LISTS:
		p->blocks = REF_BLOCKS_LISTS;
		p->block_input[0] = input_find(r, "block_count");
		p->block_input[1] = input_find(r, "block_index");
		break;
	default:
		p->blocks = REF_BLOCKS_KEEP;
		p->keep = part_read(r, b->keep, IN_BLOCKS);
		return;
	}
	if (p->block_input[0] < 0 || p->block_input[1] < 0)
		fail(r, "the inputs of the block layout are not among the spec's");
}

int ref_program_make(struct ref_program **made, const struct spec *spec, struct diag *diag)
{
	struct ref_program *p = calloc(1, sizeof *p);
	if (!p)
		abort();
	struct reader r = {.p = p, .spec = spec, .diag = diag, .s = -1};
	p->mask = part_read(&r, spec->mask, IN_MASK);
	p->score = part_read(&r, spec->score, IN_SCORE);
	blocks_read(&r);
	p->sink = spec->sink ? input_find(&r, "sink") : -1;
	if (spec->sink && p->sink < 0)
		fail(&r, "the sink is not among the spec's inputs");
	*made = r.failed ? NULL : p;
	if (r.failed)
		ref_program_free(p);
	return r.failed ? -1 : 0;
}

void ref_program_free(struct ref_program *p)
{
	if (p)
		free(p->row);
	free(p);
}
