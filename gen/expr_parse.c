/* expr_parse: text to expression. Precedence climbing over C's operators; nodes are made bottom-up by expr_make, so
 * what comes out is typed, folded and shared. The definition of a preset is read where its name stands, with its
 * parameters bound to nodes. */
#include "gen/expr_token.h"

#include <string.h>

struct parser {
	struct lexer lexer;
	struct expr_pool *pool;
	const struct expr_scope *scope;
	int first; /* nodes of the pool before this expression */
	int depth;
};

/* ---- nodes ---- */

static const char *type_of(const struct parser *p, int node) { return expr_type_words[p->pool->node[node].type]; }

static bool is_number(const struct parser *p, int node) { return p->pool->node[node].type != TYPE_BOOL; }

static int too_large(struct parser *p, int at)
{
	if (p->pool->count - p->first > EXPR_PARSED_MAX)
		return token_fail(&p->lexer, at, "the expression is too large: it has more than %d parts",
		                  EXPR_PARSED_MAX);
	return token_fail(&p->lexer, at, "the expressions are too large: together they have more than %d parts",
	                  EXPR_NODES_MAX);
}

static int bad_divisor(struct parser *p, enum expr_op op, int at, int node)
{
	bool overflow = false;
	const char *sign = expr_ops[op].spelling;
	const struct interval v = expr_interval(p->pool, node, expr_everywhere, NULL, NULL, &overflow);
	if (overflow)
		return token_fail(&p->lexer, at,
		                  "the right side of '%s' must be at least 1 at every position, but may leave 64 bits",
		                  sign);
	return token_fail(&p->lexer, at, "the right side of '%s' must be at least 1 at every position, but %s %lld%s",
	                  sign, v.lo == v.hi ? "is" : "may be", (long long)v.lo,
	                  v.lo == v.hi ? "" : ": max(1, ...) makes it so");
}

/* Why expr_make refused. */
static int refuse(struct parser *p, enum expr_op op, int at, const int arg[3])
{
	const char *sign = expr_ops[op].spelling, *found[3] = {"", "", ""};
	if (p->pool->count == EXPR_NODES_MAX)
		return too_large(p, at);
	for (int j = 0; j < expr_ops[op].args; j++)
		found[j] = type_of(p, arg[j]);
	if (op == EXPR_SELECT)
		return token_fail(&p->lexer, at,
		                  "'?' chooses by a condition between two numbers or two conditions, but got %s ? %s : "
		                  "%s",
		                  found[0], found[1], found[2]);
	if (op == EXPR_DIV || op == EXPR_MOD) {
		const enum expr_type left = p->pool->node[arg[0]].type, right = p->pool->node[arg[1]].type;
		if (left == TYPE_INT && right == TYPE_INT)
			return bad_divisor(p, op, at, arg[1]);
		if (op == EXPR_DIV && left != TYPE_BOOL && right != TYPE_BOOL)
			return token_fail(&p->lexer, at, "the right side of '/' is zero");
	}
	const char *wants = op == EXPR_AND || op == EXPR_OR || op == EXPR_NOT ? "conditions"
	                    : op == EXPR_EQ || op == EXPR_NE                  ? "two numbers or two conditions"
	                    : op == EXPR_MOD || op == EXPR_RANDOM             ? "whole numbers"
	                                                                      : "numbers";
	if (expr_ops[op].args == 1)
		return token_fail(&p->lexer, at, "'%s' works on %s, but got %s", sign, wants, found[0]);
	if (expr_ops[op].args == 3)
		return token_fail(&p->lexer, at, "'%s' works on %s, but got %s, %s and %s", sign, wants, found[0],
		                  found[1], found[2]);
	const bool chained = expr_ops[op].precedence == expr_ops[EXPR_LT].precedence && !is_number(p, arg[0]);
	return token_fail(&p->lexer, at, "'%s' works on %s, but got %s and %s%s", sign, wants, found[0], found[1],
	                  chained ? ": a range is written a < b && b < c" : "");
}

static int made(struct parser *p, int at, int node)
{
	return node >= 0 && p->pool->count - p->first <= EXPR_PARSED_MAX ? node : too_large(p, at);
}

static int make(struct parser *p, enum expr_op op, int at, int a, int b, int c)
{
	const int arg[3] = {a, b, c};
	for (int j = 0; j < expr_ops[op].args; j++)
		if (arg[j] < 0)
			return -1; /* already reported */
	const int node = expr_make(p->pool, op, a, b, c);
	return node >= 0 ? made(p, at, node) : refuse(p, op, at, arg);
}

static int deeper(struct parser *p)
{
	if (p->depth == EXPR_DEPTH_MAX)
		return token_fail(&p->lexer, p->lexer.token.at, "the expression is nested deeper than %d levels",
		                  EXPR_DEPTH_MAX);
	p->depth++;
	return 0;
}

/* ---- calls, elements, presets ---- */

static int parse_select(struct parser *p);
static int parse_unary(struct parser *p);

/* Reads `wanted` expressions, at least one, and the closing sign; `signature` is what to write. */
static int parse_list(struct parser *p, int *arg, int wanted, const char *close, const char *signature)
{
	for (int count = 0; count < wanted; count++) {
		if (token_is(&p->lexer, close))
			return token_fail(&p->lexer, p->lexer.token.at, "%d of %d values: write %s", count, wanted,
			                  signature);
		if (count && token_expect(&p->lexer, ","))
			return -1;
		arg[count] = parse_select(p);
		if (arg[count] < 0)
			return -1;
	}
	if (token_is(&p->lexer, ","))
		return token_fail(&p->lexer, p->lexer.token.at, "more than %d value%s: write %s", wanted,
		                  wanted == 1 ? "" : "s", signature);
	return token_expect(&p->lexer, close);
}

static int parse_call(struct parser *p, enum expr_op op)
{
	static const char *const lists[] = {"", "x", "x, y", "x, y, z"};
	struct text signature = {0};
	int arg[3] = {-1, -1, -1};
	const int at = p->lexer.token.at, args = expr_ops[op].args;
	text_addf(&signature, "%s(%s)", expr_ops[op].spelling, op == EXPR_RANDOM ? "seed, x, y" : lists[args]);
	int result = token_next(&p->lexer);
	if (!result && !token_is(&p->lexer, "("))
		result = token_fail(&p->lexer, at, "'%s' is a function: write %s", expr_ops[op].spelling,
		                    text_str(&signature));
	if (!result && !token_next(&p->lexer))
		result = parse_list(p, arg, args, ")", text_str(&signature));
	else
		result = -1;
	text_free(&signature);
	return result < 0 ? -1 : make(p, op, at, arg[0], arg[1], arg[2]);
}

static void input_signature(struct text *out, const struct input *input)
{
	text_puts(out, input->name);
	for (int j = 0; j < input->dims; j++) {
		text_puts(out, j ? ", " : "[");
		if (input->dim[j].kind == DIM_CONST)
			text_addf(out, "0..%lld", (long long)input->dim[j].size - 1);
		else
			text_puts(out, dim_names[input->dim[j].kind]);
	}
	text_puts(out, input->dims ? "]" : "");
}

/* The element's indexes; the input's name is consumed. */
static int parse_index(struct parser *p, const struct input *input, int at, int *index)
{
	struct text signature = {0};
	input_signature(&signature, input);
	int result = 0;
	if (!input->dims && token_is(&p->lexer, "["))
		result = token_fail(&p->lexer, p->lexer.token.at, "input '%s' is one value and has no index",
		                    input->name);
	else if (input->dims && !token_is(&p->lexer, "["))
		result = token_fail(&p->lexer, at, "input '%s' has an index for each dimension: write %s", input->name,
		                    text_str(&signature));
	else if (input->dims)
		result = token_next(&p->lexer) ? -1 : parse_list(p, index, input->dims, "]", text_str(&signature));
	text_free(&signature);
	for (int j = 0; result >= 0 && j < input->dims; j++)
		if (p->pool->node[index[j]].type != TYPE_INT)
			result = token_fail(&p->lexer, at, "index %d of '%s' must be a whole number, but is %s%s",
			                    j + 1, input->name, type_of(p, index[j]),
			                    is_number(p, index[j]) ? ": floor() makes one" : "");
	return result;
}

static int parse_input(struct parser *p, int input)
{
	const struct input *row = &p->scope->input[input];
	const bool whole = row->dtype == INPUT_I32 || row->dtype == INPUT_U8;
	const int at = p->lexer.token.at;
	int index[INPUT_DIMS_MAX] = {-1, -1, -1, -1};
	if (token_next(&p->lexer) || parse_index(p, row, at, index) < 0)
		return -1;
	return made(p, at, expr_input(p->pool, input, whole ? TYPE_INT : TYPE_FLOAT, index, row->dims));
}

/* A number that the preset takes for the parameter? Else says which it does. */
static int param_check(struct parser *p, const struct preset *preset, const struct preset_param *param, int node,
                       int at)
{
	const struct expr_node *n = &p->pool->node[node];
	const double value = n->type == TYPE_FLOAT ? n->f : (double)n->i;
	const bool unbounded = expr_is_const(p->pool, node, INT64_MAX);
	if (n->op != EXPR_CONST || (value >= param->low && value <= param->high) ||
	    (unbounded && param->fallback && !strcmp(param->fallback, "unbounded")))
		return 0;
	if (unbounded)
		return token_fail(&p->lexer, at, "'%s' of '%s' must be from %.10g to %.10g, but is unbounded",
		                  param->name, preset->name, param->low, param->high);
	return token_fail(&p->lexer, at, "'%s' of '%s' must be from %.10g to %.10g, but is %.10g", param->name,
	                  preset->name, param->low, param->high, value);
}

/* The node of a parameter: the argument in the parameter's type, or the fallback. */
static int param_node(struct parser *p, const struct preset *preset, int j, int arg, int at)
{
	const struct preset_param *param = &preset->param[j];
	if (arg < 0) {
		if (!param->fallback)
			return token_fail(&p->lexer, at, "'%s' needs a value for '%s': %s", preset->name, param->name,
			                  param->doc);
		if (!strcmp(param->fallback, "unbounded"))
			return made(p, at, expr_const_int(p->pool, INT64_MAX));
		struct parser fallback = *p;
		fallback.lexer = (struct lexer){
			.text = param->fallback, .at = p->lexer.at, .preset = preset->name, .diag = p->lexer.diag};
		arg = token_next(&fallback.lexer) ? -1 : parse_select(&fallback);
		if (arg < 0)
			return -1;
	}
	if (p->pool->node[arg].type == TYPE_BOOL || (!param->real && p->pool->node[arg].type == TYPE_FLOAT))
		return token_fail(&p->lexer, at, "'%s' of '%s' is %s, but got %s", param->name, preset->name,
		                  expr_type_words[param->real ? TYPE_FLOAT : TYPE_INT], type_of(p, arg));
	const int node = param->real ? make(p, EXPR_FLOAT, at, arg, -1, -1) : arg;
	return node < 0 || param_check(p, preset, param, node, at) ? -1 : node;
}

static int preset_expand(struct parser *p, int row, const int *arg, int count, int at)
{
	const struct preset *preset = &preset_table[row];
	struct expr_binding binding[SPEC_ARGS_MAX];
	struct expr_scope scope = *p->scope;
	scope.kind = preset->kind;
	scope.binding = binding;
	scope.bindings = preset_params(preset);
	for (int j = 0; j < scope.bindings; j++) {
		binding[j].name = preset->param[j].name;
		binding[j].node = param_node(p, preset, j, j < count ? arg[j] : -1, at);
		if (binding[j].node < 0)
			return -1;
	}
	if (deeper(p))
		return -1;
	struct parser inner = *p;
	inner.scope = &scope;
	inner.lexer = (struct lexer){
		.text = preset->definition, .at = p->lexer.at, .preset = preset->name, .diag = p->lexer.diag};
	if (!p->lexer.preset && inner.lexer.at.line > 0)
		inner.lexer.at.column += at;
	p->depth--;
	return token_next(&inner.lexer) ? -1 : parse_select(&inner);
}

/* `unbounded` stands for an argument as a whole. */
static int parse_argument(struct parser *p)
{
	const int at = p->lexer.token.at;
	if (token_is(&p->lexer, "unbounded"))
		return token_next(&p->lexer) ? -1 : made(p, at, expr_const_int(p->pool, INT64_MAX));
	return parse_select(p);
}

static int parse_preset(struct parser *p, int row)
{
	static const char *const kinds[] = {
		[PRESET_MASK] = "a mask", [PRESET_SCORE] = "a score", [PRESET_BLOCKS] = "a block layout"};
	const struct preset *preset = &preset_table[row];
	const int at = p->lexer.token.at, params = preset_params(preset);
	int arg[SPEC_ARGS_MAX], count = 0;
	if (preset->kind != p->scope->kind)
		return token_fail(&p->lexer, at, "'%s' is %s and has no meaning in %s", preset->name,
		                  kinds[preset->kind], kinds[p->scope->kind]);
	if (token_next(&p->lexer))
		return -1;
	if (token_is(&p->lexer, "(")) {
		if (!params)
			return token_fail(&p->lexer, p->lexer.token.at, "'%s' has no parameters", preset->name);
		do {
			if (count == params)
				return token_fail(&p->lexer, p->lexer.token.at, "'%s' has %d parameter%s", preset->name,
				                  params, params == 1 ? "" : "s");
			if (token_next(&p->lexer))
				return -1;
			arg[count] = parse_argument(p);
			if (arg[count++] < 0)
				return -1;
		} while (token_is(&p->lexer, ","));
		if (token_expect(&p->lexer, ")"))
			return -1;
	}
	return preset_expand(p, row, arg, count, at);
}

/* ---- names ---- */

enum { WORDS_MAX = NAME_COUNT + EXPR_OP_COUNT + SPEC_ARGS_MAX + SPEC_INPUTS_MAX + 64 };

/* Names that mean something here; `from`, if not NULL: where the functions, inputs and presets begin. */
static int words_find(const struct parser *p, const char *words[WORDS_MAX], int from[3])
{
	const struct expr_scope *scope = p->scope;
	int count = 0;
	for (int i = 0; i < NAME_COUNT; i++)
		if (i != NAME_S || scope->kind == PRESET_SCORE)
			words[count++] = expr_names[i];
	for (int i = 0; i < scope->bindings && i < SPEC_ARGS_MAX; i++)
		words[count++] = scope->binding[i].name;
	from[0] = count;
	for (int i = 0; i < EXPR_OP_COUNT; i++)
		if (expr_ops[i].form == FORM_CALL)
			words[count++] = expr_ops[i].spelling;
	from[1] = count;
	for (int i = 0; i < scope->inputs && i < SPEC_INPUTS_MAX; i++)
		words[count++] = scope->input[i].name;
	from[2] = count;
	for (int i = 0; i < preset_count && count < WORDS_MAX; i++)
		if (preset_table[i].kind == scope->kind &&
		    expr_function(preset_table[i].name, strlen(preset_table[i].name)) < 0)
			words[count++] = preset_table[i].name;
	return count;
}

static int unknown_name(struct parser *p, const char *word)
{
	static const char *const heads[] = {"; functions", "; inputs", "; presets"};
	const char *words[WORDS_MAX];
	int from[3];
	const int count = words_find(p, words, from), at = p->lexer.token.at;
	const char *near = diag_nearest(word, words, count);
	if (!strcmp(word, "s"))
		return token_fail(&p->lexer, at, "'s' is known in scores only");
	if (!strcmp(word, "unbounded"))
		return token_fail(&p->lexer, at, "'unbounded' stands only for an argument of a preset");
	if (p->lexer.preset)
		return token_fail(&p->lexer, at, "it reads an input '%s', which is not declared", word);
	if (near)
		return token_fail(&p->lexer, at, "unknown name '%s': did you mean '%s'?", word, near);
	struct text list = {0};
	for (int i = 0; i < count; i++) {
		for (int j = 0; j < 3; j++)
			text_puts(&list, i == from[j] && (j == 2 || from[j] != from[j + 1]) ? heads[j] : "");
		text_addf(&list, " %s", words[i]);
	}
	token_fail(&p->lexer, at, "unknown name '%s': there are%s", word, text_str(&list));
	text_free(&list);
	return -1;
}

/* A binding, a built-in name, an input or a preset. */
static int parse_name(struct parser *p)
{
	const struct expr_scope *scope = p->scope;
	const int at = p->lexer.token.at;
	for (int i = 0; i < scope->bindings; i++)
		if (token_is(&p->lexer, scope->binding[i].name))
			return token_next(&p->lexer) ? -1 : scope->binding[i].node;
	for (int i = 0; i < NAME_COUNT; i++) {
		if (!token_is(&p->lexer, expr_names[i]) || (i == NAME_S && scope->kind != PRESET_SCORE))
			continue;
		if (token_next(&p->lexer))
			return -1;
		return i == NAME_S && scope->s >= 0 ? scope->s : made(p, at, expr_variable(p->pool, (enum expr_name)i));
	}
	/* Where an input and a preset have one name (bias), brackets make it the input. */
	const char *behind = p->lexer.text + at + p->lexer.token.len;
	const bool indexed = behind[strspn(behind, " \t\n")] == '[';
	for (int i = 0; i < scope->inputs; i++)
		if (token_is(&p->lexer, scope->input[i].name) && (indexed || preset_find(scope->input[i].name) < 0))
			return parse_input(p, i);
	for (int i = 0; i < preset_count && !(p->lexer.preset && indexed); i++)
		if (token_is(&p->lexer, preset_table[i].name))
			return indexed ? token_fail(&p->lexer, at, "'%s' is a preset and has no index",
			                            preset_table[i].name)
			               : parse_preset(p, i);
	char word[64];
	const size_t len = (size_t)p->lexer.token.len < sizeof word ? (size_t)p->lexer.token.len : sizeof word - 1;
	memcpy(word, p->lexer.text + at, len);
	word[len] = 0;
	return unknown_name(p, word);
}

static int parse_word(struct parser *p)
{
	const int at = p->lexer.token.at, function = expr_function(p->lexer.text + at, (size_t)p->lexer.token.len);
	if (function >= 0)
		return parse_call(p, (enum expr_op)function);
	if (token_is(&p->lexer, "true") || token_is(&p->lexer, "false")) {
		const bool value = token_is(&p->lexer, "true");
		return token_next(&p->lexer) ? -1 : made(p, at, expr_const_bool(p->pool, value));
	}
	return parse_name(p);
}

/* ---- grammar ---- */

static int parse_primary(struct parser *p)
{
	const struct token t = p->lexer.token;
	if (t.kind == TOKEN_WORD)
		return parse_word(p);
	if (t.kind == TOKEN_FLOAT)
		return token_next(&p->lexer) ? -1 : made(p, t.at, expr_const_float(p->pool, t.real));
	if (t.kind == TOKEN_INT) {
		if (t.number > INT64_MAX)
			return token_fail(&p->lexer, t.at,
			                  "%.*s does not fit: whole numbers go up to 9223372036854775807", t.len,
			                  p->lexer.text + t.at);
		return token_next(&p->lexer) ? -1 : made(p, t.at, expr_const_int(p->pool, (int64_t)t.number));
	}
	if (token_is(&p->lexer, "(")) {
		if (token_next(&p->lexer))
			return -1;
		const int node = parse_select(p);
		return node < 0 || token_expect(&p->lexer, ")") ? -1 : node;
	}
	return token_unexpected(&p->lexer, "a value");
}

/* Every way down passes here, so the depth is counted once. */
static int parse_unary(struct parser *p)
{
	const int at = p->lexer.token.at;
	int node;
	if (deeper(p))
		return -1;
	if (token_is(&p->lexer, "-")) {
		node = token_next(&p->lexer);
		if (!node && p->lexer.token.kind == TOKEN_INT && p->lexer.token.number == UINT64_C(1) << 63)
			node = token_next(&p->lexer) ? -1 : made(p, at, expr_const_int(p->pool, INT64_MIN));
		else if (!node)
			node = make(p, EXPR_NEG, at, parse_unary(p), -1, -1);
	} else if (token_is(&p->lexer, "!")) {
		node = token_next(&p->lexer) ? -1 : make(p, EXPR_NOT, at, parse_unary(p), -1, -1);
	} else {
		node = parse_primary(p);
	}
	p->depth--;
	return node;
}

/* The infix operator at the token; `flip`: it is written with its sides exchanged. false: none. */
static bool infix_operator(const struct parser *p, enum expr_op *op, bool *flip)
{
	*flip = token_is(&p->lexer, ">") || token_is(&p->lexer, ">=");
	if (*flip) {
		*op = token_is(&p->lexer, ">") ? EXPR_LT : EXPR_LE;
		return true;
	}
	for (int i = 0; i < EXPR_OP_COUNT; i++) {
		if (expr_ops[i].form == FORM_INFIX && p->lexer.token.kind == TOKEN_SIGN &&
		    token_is(&p->lexer, expr_ops[i].spelling)) {
			*op = (enum expr_op)i;
			return true;
		}
	}
	return false;
}

static int parse_infix(struct parser *p, int least)
{
	int left = parse_unary(p);
	enum expr_op op;
	bool flip;
	while (left >= 0 && infix_operator(p, &op, &flip) && expr_ops[op].precedence >= least) {
		const int at = p->lexer.token.at;
		if (token_next(&p->lexer))
			return -1;
		const int right = parse_infix(p, expr_ops[op].precedence + 1);
		left = flip ? make(p, op, at, right, left, -1) : make(p, op, at, left, right, -1);
	}
	return left;
}

static int parse_select(struct parser *p)
{
	const int condition = parse_infix(p, expr_ops[EXPR_SELECT].precedence + 1);
	if (condition < 0 || !token_is(&p->lexer, "?"))
		return condition;
	const int at = p->lexer.token.at;
	if (deeper(p))
		return -1;
	const int yes = token_next(&p->lexer) ? -1 : parse_select(p);
	const int no = yes < 0 || token_expect(&p->lexer, ":") ? -1 : parse_select(p);
	p->depth--;
	return no < 0 ? -1 : make(p, EXPR_SELECT, at, condition, yes, no);
}

/* ---- whole expressions ---- */

static int whole(struct parser *p, int root)
{
	if (root >= 0 && expr_tree_size(p->pool, root) > EXPR_TREE_MAX)
		return token_fail(&p->lexer, 0, "the expression is too large: written out it has more than %d parts",
		                  EXPR_TREE_MAX);
	if (root >= 0 && expr_print_depth(p->pool, root) > EXPR_DEPTH_MAX)
		return token_fail(&p->lexer, 0, "the expression is nested deeper than %d levels when written out",
		                  EXPR_DEPTH_MAX);
	return root;
}

int expr_parse(struct expr_pool *pool, const char *text, const struct expr_scope *scope, struct place at,
               struct diag *diag)
{
	struct parser p = {{.text = text, .at = at, .diag = diag}, pool, scope, pool->count, 0};
	if (token_next(&p.lexer))
		return -1;
	const int root = parse_select(&p);
	if (root >= 0 && p.lexer.token.kind != TOKEN_END)
		return token_unexpected(&p.lexer, "an operator");
	return whole(&p, root);
}

int expr_preset(struct expr_pool *pool, int preset, const int *arg, int count, const struct expr_scope *scope,
                struct place at, struct diag *diag)
{
	struct parser p = {{.text = "", .at = at, .diag = diag}, pool, scope, pool->count, 0};
	return whole(&p, preset_expand(&p, preset, arg, count, 0));
}
