/* expr_parse: text to expression. Precedence climbing over C's operators; nodes are made bottom-up by expr_make, so
 * what comes out is typed, folded and shared. */
#include "gen/expr.h"

#include <ctype.h>
#include <string.h>

enum token_kind { TOKEN_END, TOKEN_NUMBER, TOKEN_WORD, TOKEN_SIGN, TOKEN_BAD };

struct token {
	enum token_kind kind;
	int at, len;     /* bytes of the text */
	uint64_t number; /* of TOKEN_NUMBER, at most 2^63 */
};

struct parser {
	struct expr_pool *pool;
	const char *text;
	const struct expr_binding *binding;
	int bindings;
	struct place at;
	struct diag *diag;
	struct token token; /* the one not yet consumed */
	int depth;
};

static struct place place_of(const struct parser *p, int offset)
{
	struct place place = p->at;
	if (place.line > 0)
		place.column += offset;
	return place;
}

/* ---- tokens ---- */

static const char *const signs[] = {"<=", ">=", "==", "!=", "&&", "||", "<", ">", "+", "-",
                                    "*",  "/",  "%",  "!",  "(",  ")",  ",", "?", ":"};

static int word_len(const char *s)
{
	int n = 0;
	while (isalnum((unsigned char)s[n]) || s[n] == '_')
		n++;
	return n;
}

/* 0, or -1 with a message. */
static int read_number(struct parser *p, struct token *t)
{
	const char *s = p->text + t->at;
	t->kind = TOKEN_NUMBER;
	t->len = word_len(s);
	t->number = 0;
	for (int i = 0; i < t->len; i++) {
		if (!isdigit((unsigned char)s[i]) || (t->len > 1 && s[0] == '0'))
			return diag_at(p->diag, place_of(p, t->at),
			               "'%.*s' is not a number here: write decimal digits without a leading zero",
			               t->len, s);
		const unsigned digit = (unsigned)(s[i] - '0');
		if (t->number > ((UINT64_C(1) << 63) - digit) / 10)
			return diag_at(p->diag, place_of(p, t->at),
			               "%.*s does not fit: numbers go up to 9223372036854775807", t->len, s);
		t->number = 10 * t->number + digit;
	}
	return 0;
}

static int advance(struct parser *p)
{
	struct token *t = &p->token;
	t->at += t->len;
	while (isspace((unsigned char)p->text[t->at]))
		t->at++;
	const char *s = p->text + t->at;
	t->len = 0;
	t->kind = TOKEN_END;
	if (!*s)
		return 0;
	if (isdigit((unsigned char)*s))
		return read_number(p, t);
	if (isalpha((unsigned char)*s) || *s == '_') {
		t->kind = TOKEN_WORD;
		t->len = word_len(s);
		return 0;
	}
	for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
		if (strncmp(s, signs[i], strlen(signs[i])) == 0) {
			t->kind = TOKEN_SIGN;
			t->len = (int)strlen(signs[i]);
			return 0;
		}
	}
	t->kind = TOKEN_BAD;
	if (*s > ' ' && *s <= '~')
		return diag_at(p->diag, place_of(p, t->at), "'%c' has no meaning in an expression", *s);
	return diag_at(p->diag, place_of(p, t->at), "byte 0x%02x has no meaning in an expression", (unsigned char)*s);
}

static bool token_is(const struct parser *p, const char *spelling)
{
	const struct token *t = &p->token;
	return (t->kind == TOKEN_SIGN || t->kind == TOKEN_WORD) && (size_t)t->len == strlen(spelling) &&
	       memcmp(p->text + t->at, spelling, strlen(spelling)) == 0;
}

static int unexpected(struct parser *p, const char *wanted)
{
	if (p->token.kind == TOKEN_END)
		return diag_at(p->diag, place_of(p, p->token.at), "the expression ends here, but %s is missing",
		               wanted);
	return diag_at(p->diag, place_of(p, p->token.at), "'%.*s' where %s should stand", p->token.len,
	               p->text + p->token.at, wanted);
}

static int expect(struct parser *p, const char *spelling)
{
	char wanted[16] = "'";
	if (token_is(p, spelling))
		return advance(p);
	strcat(strcat(wanted, spelling), "'");
	return unexpected(p, wanted);
}

/* ---- nodes ---- */

static const char *const type_words[] = {
	[TYPE_BOOL] = "a condition", [TYPE_INT] = "a whole number", [TYPE_FLOAT] = "a score"};

/* Why expr_make refused. */
static int refuse(struct parser *p, enum expr_op op, int at, const int arg[3])
{
	const struct place place = place_of(p, at);
	if (p->pool->count == EXPR_NODES_MAX)
		return diag_at(p->diag, place, "the expression is too large: it has more than %d parts",
		               EXPR_NODES_MAX);
	if ((op == EXPR_DIV || op == EXPR_MOD) && p->pool->node[arg[0]].type == TYPE_INT &&
	    p->pool->node[arg[1]].type == TYPE_INT)
		return diag_at(p->diag, place, "the right side of '%s' must be a constant above zero",
		               expr_ops[op].spelling);
	const char *found[3] = {"", "", ""};
	for (int j = 0; j < expr_ops[op].args; j++)
		found[j] = type_words[p->pool->node[arg[j]].type];
	if (op == EXPR_SELECT)
		return diag_at(p->diag, place,
		               "'?' chooses by a condition between two values of one kind, but got %s ? %s : %s",
		               found[0], found[1], found[2]);
	const char *wants = op == EXPR_AND || op == EXPR_OR || op == EXPR_NOT ? "conditions"
	                    : op == EXPR_LT || op == EXPR_LE                  ? "whole numbers"
	                    : op == EXPR_EQ || op == EXPR_NE                  ? "whole numbers or conditions"
	                                                                      : "numbers of one kind";
	if (expr_ops[op].args == 1)
		return diag_at(p->diag, place, "'%s' works on %s, but got %s", expr_ops[op].spelling, wants, found[0]);
	return diag_at(p->diag, place, "'%s' works on %s, but got %s and %s", expr_ops[op].spelling, wants, found[0],
	               found[1]);
}

static int make(struct parser *p, enum expr_op op, int at, int a, int b, int c)
{
	const int arg[3] = {a, b, c};
	for (int j = 0; j < expr_ops[op].args; j++)
		if (arg[j] < 0)
			return -1; /* already reported */
	const int node = expr_make(p->pool, op, a, b, c);
	return node >= 0 ? node : refuse(p, op, at, arg);
}

static int made(struct parser *p, int at, int node)
{
	if (node >= 0)
		return node;
	return diag_at(p->diag, place_of(p, at), "the expression is too large: it has more than %d parts",
	               EXPR_NODES_MAX);
}

/* ---- grammar ---- */

static int parse_select(struct parser *p);
static int parse_unary(struct parser *p);

static int parse_call(struct parser *p, enum expr_op op)
{
	int arg[3] = {-1, -1, -1};
	const int at = p->token.at;
	if (advance(p) || expect(p, "("))
		return -1;
	for (int j = 0; j < expr_ops[op].args; j++) {
		if (j && expect(p, ","))
			return -1;
		arg[j] = parse_select(p);
		if (arg[j] < 0)
			return -1;
	}
	return expect(p, ")") ? -1 : make(p, op, at, arg[0], arg[1], arg[2]);
}

static int unknown_name(struct parser *p, const char *word)
{
	const char *names[NAME_COUNT + 16];
	int count = 0;
	for (int i = 0; i < NAME_COUNT; i++)
		names[count++] = expr_names[i];
	for (int i = 0; i < p->bindings && i < 16; i++)
		names[count++] = p->binding[i].name;
	const char *near = diag_nearest(word, names, count);
	const struct place place = place_of(p, p->token.at);
	if (near)
		return diag_at(p->diag, place, "unknown name '%s': did you mean '%s'?", word, near);
	return diag_at(p->diag, place, "unknown name '%s': an expression may use b h q k sq sk hq hk s", word);
}

static int parse_word(struct parser *p)
{
	static const enum expr_op calls[] = {EXPR_ABS, EXPR_MIN, EXPR_MAX};
	char word[64];
	const int at = p->token.at;
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
		if (token_is(p, expr_ops[calls[i]].spelling))
			return parse_call(p, calls[i]);
	if (token_is(p, "true") || token_is(p, "false")) {
		const bool value = token_is(p, "true");
		return advance(p) ? -1 : made(p, at, expr_const_bool(p->pool, value));
	}
	for (int i = 0; i < p->bindings; i++)
		if (token_is(p, p->binding[i].name))
			return advance(p) ? -1 : made(p, at, expr_const_int(p->pool, p->binding[i].value));
	for (int i = 0; i < NAME_COUNT; i++)
		if (token_is(p, expr_names[i]))
			return advance(p) ? -1 : made(p, at, expr_variable(p->pool, (enum expr_name)i));
	const size_t len = (size_t)p->token.len < sizeof word ? (size_t)p->token.len : sizeof word - 1;
	memcpy(word, p->text + at, len);
	word[len] = 0;
	return unknown_name(p, word);
}

static int parse_primary(struct parser *p)
{
	const int at = p->token.at;
	const uint64_t number = p->token.number;
	if (p->token.kind == TOKEN_WORD)
		return parse_word(p);
	if (p->token.kind == TOKEN_NUMBER) {
		if (number > INT64_MAX)
			return diag_at(p->diag, place_of(p, at),
			               "%.*s does not fit: numbers go up to 9223372036854775807", p->token.len,
			               p->text + at);
		return advance(p) ? -1 : made(p, at, expr_const_int(p->pool, (int64_t)number));
	}
	if (token_is(p, "(")) {
		if (advance(p))
			return -1;
		const int node = parse_select(p);
		return node < 0 || expect(p, ")") ? -1 : node;
	}
	return unexpected(p, "a value");
}

/* Every way down passes here, so the depth is counted once. */
static int parse_unary(struct parser *p)
{
	const int at = p->token.at;
	int node;
	if (p->depth == EXPR_DEPTH_MAX)
		return diag_at(p->diag, place_of(p, at), "the expression is nested deeper than %d levels",
		               EXPR_DEPTH_MAX);
	p->depth++;
	if (token_is(p, "-")) {
		node = advance(p);
		if (!node && p->token.kind == TOKEN_NUMBER && p->token.number == UINT64_C(1) << 63)
			node = advance(p) ? -1 : made(p, at, expr_const_int(p->pool, INT64_MIN));
		else if (!node)
			node = make(p, EXPR_NEG, at, parse_unary(p), -1, -1);
	} else if (token_is(p, "!")) {
		node = advance(p) ? -1 : make(p, EXPR_NOT, at, parse_unary(p), -1, -1);
	} else {
		node = parse_primary(p);
	}
	p->depth--;
	return node;
}

/* The infix operator at the token; `flip`: it is written with its sides exchanged. false: none. */
static bool infix_operator(const struct parser *p, enum expr_op *op, bool *flip)
{
	*flip = token_is(p, ">") || token_is(p, ">=");
	if (*flip) {
		*op = token_is(p, ">") ? EXPR_LT : EXPR_LE;
		return true;
	}
	for (int i = 0; i < EXPR_OP_COUNT; i++) {
		if (expr_ops[i].form == FORM_INFIX && p->token.kind == TOKEN_SIGN &&
		    token_is(p, expr_ops[i].spelling)) {
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
		const int at = p->token.at;
		if (advance(p))
			return -1;
		const int right = parse_infix(p, expr_ops[op].precedence + 1);
		left = flip ? make(p, op, at, right, left, -1) : make(p, op, at, left, right, -1);
	}
	return left;
}

static int parse_select(struct parser *p)
{
	const int condition = parse_infix(p, expr_ops[EXPR_SELECT].precedence + 1);
	if (condition < 0 || !token_is(p, "?"))
		return condition;
	const int at = p->token.at;
	if (p->depth == EXPR_DEPTH_MAX)
		return diag_at(p->diag, place_of(p, at), "the expression is nested deeper than %d levels",
		               EXPR_DEPTH_MAX);
	p->depth++;
	const int yes = advance(p) ? -1 : parse_select(p);
	const int no = yes < 0 || expect(p, ":") ? -1 : parse_select(p);
	p->depth--;
	return no < 0 ? -1 : make(p, EXPR_SELECT, at, condition, yes, no);
}

int expr_parse(struct expr_pool *pool, const char *text, const struct expr_binding *binding, int bindings,
               struct place at, struct diag *diag)
{
	struct parser p = {
		.pool = pool, .text = text, .binding = binding, .bindings = bindings, .at = at, .diag = diag};
	if (advance(&p))
		return -1;
	const int root = parse_select(&p);
	if (root >= 0 && p.token.kind != TOKEN_END)
		return unexpected(&p, "an operator");
	return root;
}
