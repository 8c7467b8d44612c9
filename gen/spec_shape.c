#include "gen/spec_shape.h"

#include <stdio.h>
#include <string.h>

#include "gen/spec_input.h"
#include "gen/spec_term.h"

int names_of(const char *names[NAMES_MAX], int count, const struct shape *s, enum yaml_kind as)
{
	switch (s->kind) {
	case SHAPE_WORD:
		if (as == YAML_SCALAR)
			for (int i = 0; s->word(i) && count < NAMES_MAX; i++)
				names[count++] = s->word(i);
		break;
	case SHAPE_MAP:
		if (as == YAML_MAP)
			for (int i = 0; i < s->field_count && count < NAMES_MAX; i++)
				names[count++] = s->field[i].name;
		break;
	case SHAPE_TERM: count = term_names(names, count, s, as); break;
	case SHAPE_LIST:
		if (as == YAML_SCALAR)
			count = names_of(names, count, s->of, as);
		break;
	case SHAPE_EITHER:
		count = names_of(names, count, s->first, as);
		count = names_of(names, count, s->second, as);
		break;
	case SHAPE_WHOLE:
	case SHAPE_REAL:
	case SHAPE_NAME:
	case SHAPE_TEXT:
	case SHAPE_INPUTS:
	case SHAPE_EXPRESSION: break;
	}
	return count;
}

static void suggest(struct text *t, const char *word, const char *const *names, int count)
{
	const char *nearest = diag_nearest(word, names, count);
	if (nearest)
		text_addf(t, "; did you mean '%s'?", nearest);
}

/* "a, b or c" */
static void list_words(struct text *t, const char *const *words, int count)
{
	for (int i = 0; i < count; i++)
		text_addf(t, "%s%s", i == 0 ? "" : i + 1 == count ? " or " : ", ", words[i]);
}

bool shape_has_field(const struct shape *s, const char *name)
{
	if (s->kind == SHAPE_EITHER)
		return shape_has_field(s->first, name) || shape_has_field(s->second, name);
	for (int i = 0; s->kind == SHAPE_MAP && i < s->field_count; i++)
		if (!strcmp(s->field[i].name, name))
			return true;
	return false;
}

bool refuse(const struct check *c, const struct yaml_node *n, const char *found, const char *hint)
{
	struct text want = {0};
	shape_describe(&want, c->whole);
	diag_at(c->diag, n->place, "%s: %s; want %s%s", c->path, found, text_str(&want), hint);
	text_free(&want);
	return false;
}

bool refuse_kind(const struct check *c, const struct yaml_node *n)
{
	struct text found = {0};
	if (n->kind == YAML_LIST)
		text_puts(&found, "found a list");
	else if (n->kind == YAML_MAP)
		text_puts(&found, "found a map of keys");
	else if (!n->len && !n->quoted)
		text_puts(&found, "no value was given");
	else {
		text_puts(&found, "found ");
		text_quote(&found, yaml_text(c->tree, n), n->len);
	}
	refuse(c, n, text_str(&found), "");
	text_free(&found);
	return false;
}

/* A word that is a key: it was written without its value. */
static bool refuse_bare(const struct check *c, const struct yaml_node *n)
{
	char found[80];
	snprintf(found, sizeof found, "'%s' needs a value", yaml_text(c->tree, n));
	return refuse(c, n, found, "");
}

bool refuse_word(const struct check *c, const struct yaml_node *n)
{
	const char *names[NAMES_MAX];
	const int count = names_of(names, 0, c->whole, YAML_SCALAR);
	struct text found = {0}, hint = {0};
	if (!n->len)
		return refuse_kind(c, n);
	const char *keys[NAMES_MAX];
	const int key_count = names_of(keys, 0, c->whole, YAML_MAP);
	for (int i = 0; i < key_count; i++)
		if (yaml_is(c->tree, n, keys[i]))
			return refuse_bare(c, n);
	text_puts(&found, "found ");
	text_quote(&found, yaml_text(c->tree, n), n->len);
	suggest(&hint, yaml_text(c->tree, n), names, count);
	refuse(c, n, text_str(&found), text_str(&hint));
	text_free(&found);
	text_free(&hint);
	return false;
}

/* A scalar where a number, and perhaps a word, is accepted. */
static bool refuse_number(const struct check *c, const struct shape *s, const struct yaml_node *n)
{
	const char *names[NAMES_MAX];
	const int count = names_of(names, 0, c->whole, YAML_SCALAR);
	struct number number = {0};
	struct text found = {0}, hint = {0};
	const char *text = yaml_text(c->tree, n);
	if (!n->len && !n->quoted)
		return refuse_kind(c, n);
	if (strlen(text) == n->len)
		number_read(&number, text);
	text_quote(&found, text, n->len);
	if (n->quoted && number.kind != NUMBER_NONE)
		text_puts(&found, " is quoted, which makes it text");
	else if (number.kind == NUMBER_REAL && s->kind == SHAPE_WHOLE)
		text_puts(&found, " is not a whole number");
	else if (number.kind != NUMBER_NONE)
		text_puts(&found, " is out of range");
	else
		text_addf(&found, " %s", number.fault && *number.fault ? number.fault : "is not a number");
	if (n->quoted && number.kind != NUMBER_NONE)
		text_puts(&hint, "; remove the quotes");
	else if (number.plain[0])
		text_addf(&hint, "; write %s", number.plain);
	else if (number.kind == NUMBER_WHOLE && s->kind == SHAPE_WHOLE && number.whole < s->min && count == 1)
		text_addf(&hint, "; a number below %lld does not mean '%s': write the word", (long long)s->min,
		          names[0]);
	else if (number.kind == NUMBER_WHOLE && s->kind == SHAPE_WHOLE && s->min != s->max)
		text_addf(&hint, "; the nearest is %lld", (long long)(number.whole < s->min ? s->min : s->max));
	else if (number.kind == NUMBER_NONE)
		suggest(&hint, text, names, count);
	refuse(c, n, text_str(&found), text_str(&hint));
	text_free(&found);
	text_free(&hint);
	return false;
}

static bool check_whole(const struct check *c, const struct shape *s, const struct yaml_node *n)
{
	struct number number = {0};
	if (n->kind != YAML_SCALAR)
		return refuse_kind(c, n);
	if (strlen(yaml_text(c->tree, n)) == n->len)
		number_read(&number, yaml_text(c->tree, n));
	if (n->quoted || number.kind != NUMBER_WHOLE || number.whole < s->min || number.whole > s->max)
		return refuse_number(c, s, n);
	const int64_t rest = s->step > 1 ? number.whole % s->step : 0;
	if (!rest)
		return true;
	char hint[80], found[48];
	snprintf(found, sizeof found, "found %lld", (long long)number.whole);
	snprintf(hint, sizeof hint, "; the nearest are %lld and %lld", (long long)(number.whole - rest),
	         (long long)(number.whole - rest + s->step));
	return refuse(c, n, found, hint);
}

static bool check_real(const struct check *c, const struct shape *s, const struct yaml_node *n)
{
	struct number number = {0};
	if (n->kind != YAML_SCALAR)
		return refuse_kind(c, n);
	if (strlen(yaml_text(c->tree, n)) == n->len)
		number_read(&number, yaml_text(c->tree, n));
	if (n->quoted || number.kind == NUMBER_NONE || !(number.real >= s->low) || number.real > s->high ||
	    (s->below_high && number.real >= s->high))
		return refuse_number(c, s, n);
	return true;
}

static bool word_known(const struct shape *s, const struct yaml_tree *t, const struct yaml_node *n)
{
	for (int i = 0; s->word(i); i++)
		if (yaml_is(t, n, s->word(i)))
			return true;
	return false;
}

static bool check_word(const struct check *c, const struct shape *s, const struct yaml_node *n)
{
	if (n->kind != YAML_SCALAR)
		return refuse_kind(c, n);
	return word_known(s, c->tree, n) || refuse_word(c, n);
}

static bool name_character(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

static bool check_name(const struct check *c, const struct yaml_node *n)
{
	if (n->kind != YAML_SCALAR || !n->len)
		return refuse_kind(c, n);
	const char *text = yaml_text(c->tree, n);
	bool good = n->len < SPEC_NAME_MAX && text[0] != '-';
	for (size_t i = 0; i < n->len; i++)
		good = good && name_character(text[i]);
	return good || refuse_kind(c, n);
}

static bool check_list(const struct check *c, const struct shape *s, const struct yaml_node *n)
{
	if (n->kind == YAML_SCALAR && n->len && s->of->kind == SHAPE_WORD && word_known(s->of, c->tree, n)) {
		const bool must_too = s->must && !yaml_is(c->tree, n, s->must);
		char hint[80];
		snprintf(hint, sizeof hint, "; write [%s%s%s]", must_too ? s->must : "", must_too ? ", " : "",
		         yaml_text(c->tree, n));
		return refuse(c, n, "found one word", hint);
	}
	if (n->kind != YAML_LIST)
		return refuse_kind(c, n);
	if (n->child < 0)
		return s->empty || refuse(c, n, "the list is empty", "");
	struct check item_check = *c;
	item_check.whole = s->of;
	bool good = true, complete = !s->must;
	int count = 0;
	for (const struct yaml_node *item = yaml_child(c->tree, n); item; item = yaml_next(c->tree, item), count++) {
		if (s->items_max && count == s->items_max) {
			diag_at(c->diag, item->place, "%s: more than %d in one list", c->path, s->items_max);
			return false;
		}
		if (!check_node(&item_check, s->of, item)) {
			good = false;
			continue;
		}
		complete = complete || yaml_is(c->tree, item, s->must);
		for (const struct yaml_node *prior = yaml_child(c->tree, n); s->of->kind == SHAPE_WORD && prior != item;
		     prior = yaml_next(c->tree, prior)) {
			if (yaml_is(c->tree, prior, yaml_text(c->tree, item))) {
				diag_at(c->diag, item->place, "%s: '%s' is listed twice", c->path,
				        yaml_text(c->tree, item));
				good = false;
				break;
			}
		}
	}
	if (good && !complete) {
		char found[48];
		snprintf(found, sizeof found, "'%s' is missing", s->must);
		return refuse(c, n, found, "");
	}
	return good;
}

static bool refuse_name(const struct check *c, const struct yaml_node *key, const char *const *names, int count)
{
	struct text quoted = {0}, hint = {0};
	text_quote(&quoted, yaml_text(c->tree, key), key->len);
	text_puts(&hint, count ? "; want " : "; it takes none");
	list_words(&hint, names, count);
	suggest(&hint, yaml_text(c->tree, key), names, count);
	diag_at(c->diag, key->place, "%s: unknown key %s%s", c->path, text_str(&quoted), text_str(&hint));
	text_free(&quoted);
	text_free(&hint);
	return false;
}

bool refuse_key(const struct check *c, const struct yaml_node *key)
{
	const char *names[NAMES_MAX];
	return refuse_name(c, key, names, names_of(names, 0, c->whole, YAML_MAP));
}

bool check_pairs(const struct check *c, const struct shape_field *field, int fields, const struct yaml_node *n)
{
	const char *names[NAMES_MAX];
	const struct yaml_node *seen[NAMES_MAX] = {0};
	bool good = true;
	for (int i = 0; i < fields; i++)
		names[i] = field[i].name;
	for (const struct yaml_node *key = yaml_child(c->tree, n), *value; key; key = yaml_next(c->tree, value)) {
		value = yaml_next(c->tree, key);
		int i = 0;
		if (key->kind != YAML_SCALAR) {
			good = false;
			continue;
		}
		while (i < fields && !yaml_is(c->tree, key, names[i]))
			i++;
		if (i == fields) {
			good = refuse_name(c, key, names, fields);
			continue;
		}
		char path[PATH_MAX_BYTES];
		snprintf(path, sizeof path, "%s.%s", c->path, names[i]);
		if (seen[i]) {
			diag_at(c->diag, key->place, "%s: written twice; it is at %d:%d already", path,
			        seen[i]->place.line, seen[i]->place.column);
			good = false;
			continue;
		}
		seen[i] = key;
		const struct check value_check = {c->tree, c->diag, path, field[i].shape, 0};
		good = check_node(&value_check, field[i].shape, value) && good;
	}
	for (int i = 0; i < fields; i++) {
		if (field[i].required && !seen[i]) {
			diag_at(c->diag, n->place, "%s: '%s' is missing", c->path, names[i]);
			good = false;
		}
	}
	return good;
}

static bool check_map(const struct check *c, const struct shape *s, const struct yaml_node *n)
{
	if (n->kind != YAML_MAP)
		return refuse_kind(c, n);
	if (n->child < 0)
		return refuse(c, n, "the map is empty", "");
	return check_pairs(c, s->field, s->field_count, n);
}

static bool check_inputs(const struct check *c, const struct shape *s, const struct yaml_node *n)
{
	if (n->kind != YAML_MAP)
		return refuse_kind(c, n);
	if (n->child < 0)
		return refuse(c, n, "the map is empty", "");
	bool good = true;
	for (const struct yaml_node *key = yaml_child(c->tree, n), *value; key; key = yaml_next(c->tree, value)) {
		value = yaml_next(c->tree, key);
		if (key->kind != YAML_SCALAR || !check_input_name(c, key)) {
			good = false;
			continue;
		}
		char path[PATH_MAX_BYTES];
		snprintf(path, sizeof path, "%s.%s", c->path, yaml_text(c->tree, key));
		const struct yaml_node *first = yaml_child(c->tree, n);
		while (!yaml_is(c->tree, first, yaml_text(c->tree, key)))
			first = yaml_next(c->tree, yaml_next(c->tree, first));
		if (first != key) {
			diag_at(c->diag, key->place, "%s: written twice; it is at %d:%d already", path,
			        first->place.line, first->place.column);
			good = false;
			continue;
		}
		const struct check one = {c->tree, c->diag, path, s->of, 0};
		good = check_node(&one, s->of, value) && good;
	}
	return good;
}

static bool check_text(const struct check *c, const struct shape *s, const struct yaml_node *n)
{
	if (n->kind != YAML_SCALAR || (!n->len && !n->quoted))
		return refuse_kind(c, n);
	bool good = (int64_t)n->len <= s->max && (int64_t)n->len >= s->min;
	for (size_t i = 0; i < n->len; i++) {
		const unsigned char byte = (unsigned char)yaml_text(c->tree, n)[i];
		good = good && byte >= 0x20 && byte != 0x7F && (!s->only || strchr(s->only, byte));
	}
	return good || refuse_kind(c, n);
}

/* Could the node be meant as one of this shape? Decides which alternative reports the faults. */
static bool shape_fits(const struct shape *s, const struct yaml_tree *t, const struct yaml_node *n)
{
	switch (s->kind) {
	case SHAPE_WHOLE:
	case SHAPE_REAL: return n->kind == YAML_SCALAR;
	case SHAPE_WORD: return n->kind == YAML_SCALAR && word_known(s, t, n);
	case SHAPE_NAME: return n->kind == YAML_SCALAR;
	case SHAPE_LIST:
		return n->kind == YAML_LIST ||
		       (n->kind == YAML_SCALAR && s->of->kind == SHAPE_WORD && word_known(s->of, t, n));
	case SHAPE_MAP:
		for (int i = 0; i < s->field_count; i++)
			if (yaml_get(t, n, s->field[i].name))
				return true;
		return false;
	case SHAPE_TEXT: return n->kind == YAML_SCALAR;
	case SHAPE_INPUTS: return n->kind == YAML_MAP;
	case SHAPE_TERM: return true;
	case SHAPE_EXPRESSION: return n->kind == YAML_SCALAR && argument_is_expression(t, n);
	case SHAPE_EITHER: return shape_fits(s->first, t, n) || shape_fits(s->second, t, n);
	}
	return false;
}

static bool has_number(const struct shape *s)
{
	return s->kind == SHAPE_WHOLE || s->kind == SHAPE_REAL ||
	       (s->kind == SHAPE_EITHER && (has_number(s->first) || has_number(s->second)));
}

static bool check_either(const struct check *c, const struct shape *s, const struct yaml_node *n)
{
	/* A number fits any scalar, an expression only what is no number. */
	if (s->second->kind == SHAPE_EXPRESSION && shape_fits(s->second, c->tree, n))
		return check_node(c, s->second, n);
	if (shape_fits(s->first, c->tree, n))
		return check_node(c, s->first, n);
	if (shape_fits(s->second, c->tree, n))
		return check_node(c, s->second, n);
	if (n->kind == YAML_SCALAR && !has_number(c->whole))
		return refuse_word(c, n);
	const char *names[NAMES_MAX];
	if (n->kind == YAML_MAP && n->child >= 0 && yaml_child(c->tree, n)->kind == YAML_SCALAR &&
	    names_of(names, 0, c->whole, YAML_MAP))
		return refuse_key(c, yaml_child(c->tree, n));
	return refuse_kind(c, n);
}

bool check_node(const struct check *c, const struct shape *s, const struct yaml_node *n)
{
	if (n->kind == YAML_REFUSED)
		return false;
	switch (s->kind) {
	case SHAPE_WHOLE: return check_whole(c, s, n);
	case SHAPE_REAL: return check_real(c, s, n);
	case SHAPE_WORD: return check_word(c, s, n);
	case SHAPE_NAME: return check_name(c, n);
	case SHAPE_LIST: return check_list(c, s, n);
	case SHAPE_MAP: return check_map(c, s, n);
	case SHAPE_TEXT: return check_text(c, s, n);
	case SHAPE_INPUTS: return check_inputs(c, s, n);
	case SHAPE_TERM: return check_term(c, s, n);
	case SHAPE_EXPRESSION: return check_expression(c, n);
	case SHAPE_EITHER: return check_either(c, s, n);
	}
	return false;
}

bool shape_check(const struct shape *s, const struct yaml_tree *t, const struct yaml_node *n, const char *path,
                 struct diag *d)
{
	const struct check c = {t, d, path, s, 0};
	return check_node(&c, s, n);
}
