#include "gen/spec_term.h"

#include "gen/expr_token.h"

#include <stdio.h>
#include <string.h>

bool param_unbounded(const struct preset_param *p) { return p->fallback && !strcmp(p->fallback, "unbounded"); }

bool preset_is_word(const struct preset *p)
{
	bool bounded = false;
	for (int i = 0; i < preset_params(p); i++) {
		if (!p->param[i].fallback)
			return false;
		bounded = bounded || !param_unbounded(&p->param[i]);
	}
	return bounded || !preset_params(p); /* with all unbounded it would hide nothing */
}

static const struct preset *preset_named(const struct yaml_tree *t, const struct yaml_node *name)
{
	for (int i = 0; i < preset_count; i++)
		if (yaml_is(t, name, preset_table[i].name))
			return &preset_table[i];
	return NULL;
}

int term_names(const char *names[NAMES_MAX], int count, const struct shape *s, enum yaml_kind as)
{
	if (as == YAML_SCALAR && s->root)
		names[count++] = "none";
	for (int i = 0; i < preset_count && count < NAMES_MAX - 2; i++) {
		const struct preset *p = &preset_table[i];
		if (p->kind == s->terms && (as == YAML_SCALAR ? preset_is_word(p) : preset_params(p) > 0))
			names[count++] = p->name;
	}
	if (as == YAML_MAP && s->terms != PRESET_SCORE) {
		names[count++] = "all";
		names[count++] = "any";
	}
	return count;
}

/* ---- what a scalar is meant as ---- */

/* Length of the identifier that the text begins with. */
static size_t identifier_length(const char *text)
{
	return *text >= '0' && *text <= '9' ? 0 : (size_t)token_word_len(text);
}

static bool is_builtin(const char *text, size_t len)
{
	for (int i = 0; i < NAME_COUNT; i++)
		if (strlen(expr_names[i]) == len && !memcmp(text, expr_names[i], len))
			return true;
	return false;
}

/* The expression without what is blank around it; line breaks are blanks. */
static void expression_trim(const char **text, size_t *len)
{
	while (*len && strchr(" \t\r\n", **text)) {
		++*text;
		--*len;
	}
	while (*len && strchr(" \t\r\n", (*text)[*len - 1]))
		--*len;
}

static bool is_number(const char *text, size_t len)
{
	char copy[64];
	struct number number = {0};
	if (len < sizeof copy) {
		memcpy(copy, text, len);
		copy[len] = '\0';
		number_read(&number, copy);
	}
	return number.kind != NUMBER_NONE;
}

/* + and - also stand inside numbers, - inside misspelt words: alone they count with space around, in quotes, or behind
 * a name of the language. */
bool scalar_is_expression(const struct yaml_tree *t, const struct yaml_node *n)
{
	const char *text = yaml_text(t, n);
	size_t len = n->len;
	expression_trim(&text, &len);
	if (!len || is_number(text, len) || strspn(text, "0123456789.%") >= len)
		return false;
	const size_t first = identifier_length(text);
	if (strpbrk(text, "()[]<>=!&|*/%?") || is_builtin(text, first))
		return true;
	return strpbrk(text, "+-") &&
	       (n->quoted || strstr(text, " + ") || strstr(text, " - ") || (first && text[first] == '+'));
}

bool argument_is_expression(const struct yaml_tree *t, const struct yaml_node *n)
{
	const char *text = yaml_text(t, n);
	size_t len = n->len;
	if (scalar_is_expression(t, n))
		return true;
	expression_trim(&text, &len);
	return n->quoted && len && identifier_length(text) == len &&
	       !(len == strlen("unbounded") && !memcmp(text, "unbounded", len));
}

bool check_expression(const struct check *c, const struct yaml_node *n)
{
	const char *text = yaml_text(c->tree, n);
	int round = 0;
	for (size_t i = 0; i < n->len; i++) {
		const unsigned char byte = (unsigned char)text[i];
		round += (byte == '(') - (byte == ')');
		if ((byte < 0x20 && !(byte && strchr("\t\r\n", byte))) || byte >= 0x7F) {
			struct text quoted = {0};
			const size_t length = text_utf8(text + i, n->len - i);
			text_quote(&quoted, text + i, length ? length : 1);
			diag_at(c->diag, n->place, "%s: %s is no character of an expression; those are ASCII", c->path,
			        text_str(&quoted));
			text_free(&quoted);
			return false;
		}
	}
	if (round && !n->quoted) {
		diag_at(c->diag, n->place,
		        "%s: the parentheses do not match; inside {...} or [...] write an expression with a comma in quotes",
		        c->path);
		return false;
	}
	return true;
}

/* ---- is it a term? ---- */

static bool refuse_preset(const struct check *c, const struct shape *s, const struct yaml_node *n,
                          const struct preset *p)
{
	char found[96];
	if (p->kind == s->terms)
		snprintf(found, sizeof found, "'%s' needs a value", p->name);
	else
		snprintf(found, sizeof found, "'%s' is a %s", p->name, preset_kind_names[p->kind]);
	return refuse(c, n, found, "");
}

static bool check_scalar(const struct check *c, const struct shape *s, const struct yaml_node *n)
{
	const struct preset *preset = preset_named(c->tree, n);
	if (s->root && yaml_is(c->tree, n, "none"))
		return true;
	if (preset)
		return (preset->kind == s->terms && preset_is_word(preset)) || refuse_preset(c, s, n, preset);
	return scalar_is_expression(c->tree, n) ? check_expression(c, n) : refuse_word(c, n);
}

static bool check_members(const struct check *c, const struct shape *s, const struct yaml_node *n, const char *name)
{
	char path[PATH_MAX_BYTES];
	snprintf(path, sizeof path, "%s%s", c->path, name);
	const struct check inner = {c->tree, c->diag, path, s->of, c->depth + 1};
	struct shape list = {.kind = SHAPE_LIST, .of = s->of, .items_max = SPEC_TERMS_MAX};
	const struct check whole = {c->tree, c->diag, path, &list, 0};
	int count = 0;
	bool good = true;
	if (n->kind != YAML_LIST)
		return refuse_kind(&whole, n);
	if (n->child < 0)
		return refuse(&whole, n, "the list is empty", "");
	if (c->depth == TERM_DEPTH_MAX) {
		diag_at(c->diag, n->place, "%s: all and any inside each other deeper than %d", c->path, TERM_DEPTH_MAX);
		return false;
	}
	for (const struct yaml_node *item = yaml_child(c->tree, n); item; item = yaml_next(c->tree, item)) {
		if (count++ == SPEC_TERMS_MAX) {
			diag_at(c->diag, item->place, "%s: more than %d in one list", path, SPEC_TERMS_MAX);
			return false;
		}
		good = check_node(&inner, s->of, item) && good;
	}
	return good;
}

static bool check_arguments(const struct check *c, const struct preset *preset, const struct yaml_node *key,
                            const struct yaml_node *value)
{
	char path[PATH_MAX_BYTES];
	struct shape_field field[SPEC_ARGS_MAX];
	struct param_shape shape[SPEC_ARGS_MAX];
	const int fields = preset_params(preset);
	bool unbounded = true;
	snprintf(path, sizeof path, "%s.%s", c->path, preset->name);
	const struct check args = {c->tree, c->diag, path, c->whole, 0};
	for (int i = 0; i < fields; i++) {
		const struct preset_param *p = &preset->param[i];
		field[i] = (struct shape_field){p->name, param_shape(&shape[i], p), !p->fallback, p->doc};
		unbounded = unbounded && param_unbounded(p);
	}
	if (!fields) {
		diag_at(c->diag, key->place, "%s: %s takes no arguments; write the word alone", c->path, preset->name);
		return false;
	}
	if (value->kind == YAML_REFUSED)
		return false;
	if (value->kind != YAML_MAP)
		return refuse_kind(&args, value);
	if (value->child < 0 && unbounded) {
		diag_at(c->diag, value->place, "%s: without %s%s%s it hides nothing; give a bound, or leave the %s out",
		        path, preset->param[0].name, fields > 1 ? " and " : "", fields > 1 ? preset->param[1].name : "",
		        preset_kind_names[preset->kind]);
		return false;
	}
	return check_pairs(&args, field, fields, value);
}

static bool check_map(const struct check *c, const struct shape *s, const struct yaml_node *n)
{
	const struct yaml_node *key = yaml_child(c->tree, n);
	if (!key)
		return refuse(c, n, "the map is empty", "");
	if (key->kind != YAML_SCALAR)
		return false;
	const struct yaml_node *value = yaml_next(c->tree, key), *second = yaml_next(c->tree, value);
	const struct preset *preset = preset_named(c->tree, key);
	const bool members = s->terms != PRESET_SCORE && (yaml_is(c->tree, key, "all") || yaml_is(c->tree, key, "any"));
	if (!members && !preset)
		return refuse_key(c, key);
	if (preset && preset->kind != s->terms)
		return refuse_preset(c, s, key, preset);
	if (second) {
		diag_at(c->diag, second->place, "%s: two %ss in one map; write %s with both in the list", c->path,
		        preset_kind_names[s->terms], s->terms == PRESET_SCORE ? "[...]" : "{all: [...]}");
		return false;
	}
	if (members)
		return value->kind != YAML_REFUSED &&
		       check_members(c, s, value, yaml_is(c->tree, key, "all") ? ".all" : ".any");
	return check_arguments(c, preset, key, value);
}

bool check_term(const struct check *c, const struct shape *s, const struct yaml_node *n)
{
	switch (n->kind) {
	case YAML_SCALAR: return check_scalar(c, s, n);
	case YAML_MAP: return check_map(c, s, n);
	case YAML_LIST: return s->root && s->terms == PRESET_SCORE ? check_members(c, s, n, "") : refuse_kind(c, n);
	case YAML_REFUSED: return false;
	}
	return false;
}

/* ---- from node to term ---- */

/* Where the expression of the scalar begins: behind blanks, which `inner` of a text on lines of its own is already. */
static struct place expression_place(const struct yaml_tree *t, const struct yaml_node *n)
{
	const char *text = yaml_text(t, n), *begin = text;
	size_t len = n->len;
	if (n->inner.line > n->place.line)
		return n->inner;
	expression_trim(&begin, &len);
	return (struct place){n->inner.line, n->inner.column + (int)(begin - text)};
}

/* Appends an expression to the spec; returns its offset, or -1. */
static int expression_add(struct reading *r, const char *text, size_t len, struct place place)
{
	struct spec *s = r->spec;
	expression_trim(&text, &len);
	if (len + 1 > (size_t)(SPEC_TEXT_MAX - s->text_len))
		return diag_at(r->diag, place, "the expressions of the spec are longer than %d bytes together",
		               SPEC_TEXT_MAX);
	const int offset = s->text_len;
	for (size_t i = 0; i < len; i++)
		s->text[offset + (int)i] = strchr("\t\r\n", text[i]) ? ' ' : text[i];
	s->text[offset + (int)len] = '\0';
	s->text_len += (int)len + 1;
	return offset;
}

static int term_add(struct reading *r, enum term_kind kind, struct place place)
{
	struct spec *s = r->spec;
	if (s->term_count == SPEC_TERMS_MAX)
		return diag_at(r->diag, place, "more than %d masks, scores and layouts in one spec", SPEC_TERMS_MAX);
	struct term *term = &s->term[s->term_count];
	term->kind = kind;
	term->preset = term->text = term->child = term->next = -1;
	term->place = place;
	return s->term_count++;
}

/* An argument from its text: what was written, or the parameter's default. */
static int argument_read(struct term_arg *arg, struct reading *r, const struct preset_param *p, const char *text,
                         size_t len, bool expression, struct place place)
{
	struct number number = {0};
	arg->place = place;
	if (!expression)
		number_read(&number, text);
	if (!strcmp(text, "unbounded")) {
		arg->kind = ARG_UNBOUNDED;
	} else if (number.kind == NUMBER_NONE) {
		arg->kind = ARG_TEXT;
		arg->text = expression_add(r, text, len, place);
		return arg->text < 0 ? -1 : 0;
	} else if (p->real) {
		arg->kind = ARG_REAL;
		arg->f = number.real;
	} else {
		arg->kind = ARG_INT;
		arg->i = number.whole;
	}
	return 0;
}

static int preset_read(struct reading *r, const struct yaml_tree *t, const struct yaml_node *name,
                       const struct yaml_node *args)
{
	const struct preset *preset = preset_named(t, name);
	const int self = term_add(r, TERM_PRESET, name->inner);
	if (self < 0)
		return -1;
	r->spec->term[self].preset = (int)(preset - preset_table);
	for (int i = 0; i < preset_params(preset); i++) {
		const struct preset_param *p = &preset->param[i];
		const struct yaml_node *value = yaml_get(t, args, p->name);
		const char *text = value ? yaml_text(t, value) : p->fallback;
		const bool expression = value && argument_is_expression(t, value);
		const struct place place = !value       ? name->inner
		                           : expression ? expression_place(t, value)
		                                        : value->place;
		if (argument_read(&r->spec->term[self].arg[i], r, p, text, value ? value->len : strlen(text),
		                  expression, place))
			return -1;
	}
	return self;
}

static int members_read(struct reading *r, const struct yaml_tree *t, enum term_kind kind, const struct yaml_node *list)
{
	const struct yaml_node *item = yaml_child(t, list);
	if (!yaml_next(t, item))
		return term_read(r, t, item); /* one alone is itself */
	const int self = term_add(r, kind, list->place);
	int last = -1;
	for (; self >= 0 && item; item = yaml_next(t, item)) {
		const int member = term_read(r, t, item);
		if (member < 0)
			return -1;
		if (last < 0)
			r->spec->term[self].child = member;
		else
			r->spec->term[last].next = member;
		last = member;
	}
	return self;
}

int term_read(struct reading *r, const struct yaml_tree *t, const struct yaml_node *n)
{
	if (n->kind == YAML_LIST)
		return members_read(r, t, TERM_CHAIN, n);
	if (n->kind == YAML_MAP) {
		const struct yaml_node *key = yaml_child(t, n), *value = yaml_next(t, key);
		if (yaml_is(t, key, "all") || yaml_is(t, key, "any"))
			return members_read(r, t, yaml_is(t, key, "all") ? TERM_ALL : TERM_ANY, value);
		return preset_read(r, t, key, value);
	}
	if (preset_named(t, n))
		return preset_read(r, t, n, NULL);
	const struct place place = expression_place(t, n);
	const int self = term_add(r, TERM_TEXT, place);
	const int text = self < 0 ? -1 : expression_add(r, yaml_text(t, n), n->len, place);
	if (text < 0)
		return -1;
	r->spec->term[self].text = text;
	return self;
}

/* ---- from term to YAML ---- */

static void expression_print(struct text *t, const char *text)
{
	text_puts(t, "\"");
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			text_puts(t, "\\");
		text_add(t, text, 1);
	}
	text_puts(t, "\"");
}

static void preset_print(struct text *t, const struct spec *s, const struct term *term)
{
	const struct preset *preset = &preset_table[term->preset];
	if (!preset_params(preset)) {
		text_puts(t, preset->name);
		return;
	}
	text_addf(t, "{%s: {", preset->name);
	for (int i = 0; i < preset_params(preset); i++) {
		const struct term_arg *arg = &term->arg[i];
		text_addf(t, "%s%s: ", i ? ", " : "", preset->param[i].name);
		switch (arg->kind) {
		case ARG_INT: text_addf(t, "%lld", (long long)arg->i); break;
		case ARG_REAL: real_print(t, arg->f); break;
		case ARG_UNBOUNDED: text_puts(t, "unbounded"); break;
		case ARG_TEXT: expression_print(t, s->text + arg->text); break;
		}
	}
	text_puts(t, "}}");
}

void term_print(struct text *t, const struct spec *s, int index)
{
	const struct term *term = &s->term[index];
	if (term->kind == TERM_PRESET) {
		preset_print(t, s, term);
		return;
	}
	if (term->kind == TERM_TEXT) {
		expression_print(t, s->text + term->text);
		return;
	}
	text_puts(t, term->kind == TERM_ALL ? "{all: [" : term->kind == TERM_ANY ? "{any: [" : "[");
	for (int i = term->child; i >= 0; i = s->term[i].next) {
		text_puts(t, i == term->child ? "" : ", ");
		term_print(t, s, i);
	}
	text_puts(t, term->kind == TERM_CHAIN ? "]" : "]}");
}
