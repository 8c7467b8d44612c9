#include "gen/yaml_tree.h"

#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "gen/text_file.h"

static const char byte_order_mark[] = "\xEF\xBB\xBF";

int yaml_load(struct text *yaml, const char *path, struct diag *d)
{
	return text_file_load(yaml, path, YAML_BYTES_MAX, d);
}

void yaml_skip_mark(const char **yaml, size_t *len)
{
	if (*len >= 3 && !memcmp(*yaml, byte_order_mark, 3)) {
		*yaml += 3;
		*len -= 3;
	}
}

/* What makes the character at s unfit for a spec; NULL: nothing. */
static const char *character_fault(const char *s, size_t n)
{
	const unsigned char c = (unsigned char)s[0];
	if (n == 1 && c == 0)
		return "a NUL byte; a spec is UTF-8 text (UTF-16 is not accepted)";
	if ((n == 1 && ((c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F)) ||
	    (n == 2 && c == 0xC2 && (unsigned char)s[1] < 0xA0 && (unsigned char)s[1] != 0x85))
		return "a control character; only tab and line breaks are accepted";
	if (n == 2 && !memcmp(s, "\xC2\x85", 2))
		return "the line break U+0085, which editors do not show; use an ordinary one";
	if (n == 3 && (!memcmp(s, "\xE2\x80\xA8", 3) || !memcmp(s, "\xE2\x80\xA9", 3)))
		return "a Unicode line or paragraph separator, which editors do not show; use an ordinary line break";
	if (n == 3 && !memcmp(s, byte_order_mark, 3))
		return "a byte order mark; it is accepted at the very start of the file only";
	if (n == 3 && !memcmp(s, "\xEF\xBF\xBE", 3))
		return "the noncharacter U+FFFE";
	if (n == 3 && !memcmp(s, "\xEF\xBF\xBF", 3))
		return "the noncharacter U+FFFF";
	return NULL;
}

/* UTF-8, and no character that would make our lines and libyaml's differ. */
static int text_check(const char *yaml, size_t len, struct diag *d)
{
	struct place place = {1, 1};
	if (len >= 2 && (!memcmp(yaml, "\xFF\xFE", 2) || !memcmp(yaml, "\xFE\xFF", 2)))
		return diag_at(d, place, "the file is UTF-16; save it as UTF-8");
	for (size_t i = 0, n; i < len; i += n) {
		n = text_utf8(yaml + i, len - i);
		if (!n)
			return diag_at(d, place, "byte 0x%02x is not UTF-8 here; save the file as UTF-8",
			               (unsigned char)yaml[i]);
		const char *fault = character_fault(yaml + i, n);
		if (fault)
			return diag_at(d, place, "found %s", fault);
		if (yaml[i] == '\n' || (yaml[i] == '\r' && (i + 1 == len || yaml[i + 1] != '\n')))
			place = (struct place){place.line + 1, 1};
		else
			place.column += (int)n;
	}
	return 0;
}

/* libyaml counts characters in a line, we count bytes. Events come in order, so one cursor walks the text once. */
struct cursor {
	const char *yaml;
	size_t len, line_start;
	int line;
};

static struct place cursor_place(struct cursor *c, const yaml_mark_t *mark)
{
	if ((int)mark->line + 1 < c->line)
		*c = (struct cursor){c->yaml, c->len, 0, 1};
	size_t i = c->line_start;
	for (; i < c->len && c->line < (int)mark->line + 1; i++) {
		if (c->yaml[i] == '\n' || (c->yaml[i] == '\r' && (i + 1 == c->len || c->yaml[i + 1] != '\n'))) {
			c->line++;
			c->line_start = i + 1;
		}
	}
	i = c->line_start;
	for (size_t column = 0; column < mark->column && i < c->len; column++)
		i += text_utf8(c->yaml + i, c->len - i);
	return (struct place){(int)mark->line + 1, (int)(i - c->line_start) + 1};
}

struct level {
	int node, last, children;
}; /* an open list or map */

struct builder {
	struct yaml_tree *tree;
	struct cursor cursor;
	int depth;
	struct level level[YAML_DEPTH_MAX];
	struct diag *diag;
};

static struct yaml_node *node_at(struct yaml_tree *t, int i) { return (struct yaml_node *)(void *)t->nodes.data + i; }

/* Appends a node to the innermost open list or map. */
static int node_add(struct builder *b, struct yaml_node node)
{
	struct yaml_tree *t = b->tree;
	if (t->count == YAML_NODES_MAX)
		return diag_at(b->diag, node.place, "more than %d values; a spec needs a few dozen", YAML_NODES_MAX);
	node.child = node.next = -1;
	text_add(&t->nodes, (const char *)&node, sizeof node);
	const int self = t->count++;
	if (!b->depth) {
		t->root = self;
		return 0;
	}
	struct level *up = &b->level[b->depth - 1];
	if (up->children++)
		node_at(t, up->last)->next = self;
	else
		node_at(t, up->node)->child = self;
	up->last = self;
	return 0;
}

/* Is the next child of the innermost container a key? */
static bool key_expected(const struct builder *b)
{
	if (!b->depth)
		return false;
	const struct level *up = &b->level[b->depth - 1];
	return node_at(b->tree, up->node)->kind != YAML_LIST && up->children % 2 == 0;
}

static int container_open(struct builder *b, struct yaml_node node)
{
	if (b->depth == YAML_DEPTH_MAX)
		return diag_at(b->diag, node.place, "nested deeper than %d levels; no spec needs that", YAML_DEPTH_MAX);
	if (key_expected(b))
		return diag_at(b->diag, node.place, "a list or map cannot be a key; a key is one word");
	if (node_add(b, node))
		return -1;
	b->level[b->depth++] = (struct level){b->tree->count - 1, -1, 0};
	return 0;
}

/* Reports an anchor or a tag. */
static void properties_check(struct builder *b, const struct yaml_node *node, const yaml_char_t *anchor,
                             const yaml_char_t *tag)
{
	struct text name = {0};
	if (anchor) {
		text_quote(&name, (const char *)anchor, strlen((const char *)anchor));
		diag_at(b->diag, node->place,
		        "anchor %s; anchors and aliases are not part of the language: write the value out",
		        text_str(&name));
	} else if (tag) {
		text_quote(&name, (const char *)tag, strlen((const char *)tag));
		const bool local = tag[0] == '!';
		diag_at(b->diag, node->place,
		        "tag %s; tags are not part of the language: the key says what a value is%s", text_str(&name),
		        local ? "; an expression that begins with ! stands in quotes" : "");
	}
	text_free(&name);
}

/* Where the text of a scalar begins. */
static struct place scalar_place(const struct cursor *c, struct place place, yaml_scalar_style_t style)
{
	if (style == YAML_SINGLE_QUOTED_SCALAR_STYLE || style == YAML_DOUBLE_QUOTED_SCALAR_STYLE)
		place.column++;
	if (style != YAML_LITERAL_SCALAR_STYLE && style != YAML_FOLDED_SCALAR_STYLE)
		return place;
	struct place at = place;
	for (size_t i = c->line_start; i < c->len; i++) {
		const bool line_break =
			c->yaml[i] == '\n' || (c->yaml[i] == '\r' && (i + 1 == c->len || c->yaml[i + 1] != '\n'));
		if (line_break)
			at = (struct place){at.line + 1, 1};
		else if (at.line > place.line && c->yaml[i] != ' ' && c->yaml[i] != '\r')
			return at;
		else
			at.column = at.line > place.line ? at.column + 1 : at.column;
	}
	return place;
}

static int event_read(struct builder *b, const yaml_event_t *e)
{
	struct yaml_node node = {.place = cursor_place(&b->cursor, &e->start_mark)};
	switch (e->type) {
	case YAML_DOCUMENT_START_EVENT:
		if (b->tree->root >= 0)
			return diag_at(b->diag, node.place, "a second document; a spec file holds one");
		return 0;
	case YAML_ALIAS_EVENT:
		diag_at(b->diag, node.place,
		        "an alias; anchors and aliases are not part of the language: write the value out");
		node.kind = YAML_REFUSED;
		return node_add(b, node);
	case YAML_SCALAR_EVENT:
		node.kind = YAML_SCALAR;
		node.inner = scalar_place(&b->cursor, node.place, e->data.scalar.style);
		node.quoted = e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
		node.text = b->tree->text.len;
		node.len = e->data.scalar.length;
		text_add(&b->tree->text, (const char *)e->data.scalar.value, node.len + 1);
		if (e->data.scalar.anchor || e->data.scalar.tag) {
			properties_check(b, &node, e->data.scalar.anchor, e->data.scalar.tag);
			node.kind = YAML_REFUSED;
		} else if (key_expected(b) && node.len == 2 && !node.quoted && !memcmp(e->data.scalar.value, "<<", 2)) {
			diag_at(b->diag, node.place,
			        "a merge key; merging is not part of the language: write the keys out");
			node.kind = YAML_REFUSED;
		}
		return node_add(b, node);
	case YAML_SEQUENCE_START_EVENT:
		node.kind = YAML_LIST;
		properties_check(b, &node, e->data.sequence_start.anchor, e->data.sequence_start.tag);
		return container_open(b, node);
	case YAML_MAPPING_START_EVENT:
		node.kind = YAML_MAP;
		properties_check(b, &node, e->data.mapping_start.anchor, e->data.mapping_start.tag);
		return container_open(b, node);
	case YAML_SEQUENCE_END_EVENT:
	case YAML_MAPPING_END_EVENT: b->depth--; return 0;
	case YAML_NO_EVENT:
	case YAML_STREAM_START_EVENT:
	case YAML_STREAM_END_EVENT:
	case YAML_DOCUMENT_END_EVENT: return 0;
	}
	return 0;
}

/* An expression may be why YAML stops at byte `at` of the cursor's line; "" if it does not look like one. */
static const char *expression_hint(const struct cursor *c, size_t at)
{
	const char *line = c->yaml + c->line_start;
	const char byte = at < c->len ? c->yaml[at] : '\0';
	if (byte == '[' && at > c->line_start && strchr("abcdefghijklmnopqrstuvwxyz_0123456789", c->yaml[at - 1]))
		return "; inside {...} or [...] an expression with brackets or commas stands in quotes";
	if (byte == '&')
		return "; an expression that begins with ! or & stands in quotes";
	if (byte == ':' && memchr(line, '?', at - c->line_start))
		return "; an expression with ? and : stands in quotes";
	return "";
}

static int syntax_error(struct builder *b, const yaml_parser_t *parser)
{
	if (parser->error == YAML_MEMORY_ERROR)
		return diag_fail(b->diag, "out of memory while reading YAML");
	const struct place place = cursor_place(&b->cursor, &parser->problem_mark);
	const size_t at = b->cursor.line_start + (size_t)place.column - 1;
	if (at < b->cursor.len && b->cursor.yaml[at] == '\t')
		return diag_at(b->diag, place, "a tab cannot indent or begin a value in YAML; use spaces");
	const char *hint = expression_hint(&b->cursor, at);
	if (!parser->context)
		return diag_at(b->diag, place, "not valid YAML: %s%s", parser->problem ? parser->problem : "unreadable",
		               hint);
	const struct place begin = cursor_place(&b->cursor, &parser->context_mark);
	if (begin.line == place.line)
		return diag_at(b->diag, place, "not valid YAML: %s, %s%s", parser->context, parser->problem, hint);
	return diag_at(b->diag, place, "not valid YAML: %s that begins at %d:%d, %s%s", parser->context, begin.line,
	               begin.column, parser->problem, hint);
}

int yaml_tree_read(struct yaml_tree *tree, const char *yaml, size_t len, struct diag *d)
{
	*tree = (struct yaml_tree){.root = -1};
	if (len > YAML_BYTES_MAX)
		return diag_at(d, (struct place){0}, "the file has more than %d bytes; a spec needs a few hundred",
		               YAML_BYTES_MAX);
	if (text_check(yaml, len, d))
		return -1;
	yaml_parser_t parser;
	if (!yaml_parser_initialize(&parser))
		return diag_fail(d, "out of memory while reading YAML");
	yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(&parser, (const unsigned char *)yaml, len);
	struct builder b = {.tree = tree, .cursor = {yaml, len, 0, 1}, .diag = d};
	int result = 0;
	for (bool end = false; !end && !result;) {
		yaml_event_t event;
		if (!yaml_parser_parse(&parser, &event)) {
			result = syntax_error(&b, &parser);
			break;
		}
		end = event.type == YAML_STREAM_END_EVENT;
		result = event_read(&b, &event);
		yaml_event_delete(&event);
	}
	yaml_parser_delete(&parser);
	return result;
}

void yaml_tree_free(struct yaml_tree *t)
{
	text_free(&t->nodes);
	text_free(&t->text);
	*t = (struct yaml_tree){.root = -1};
}

const struct yaml_node *yaml_at(const struct yaml_tree *t, int node)
{
	return node < 0 ? NULL : (const struct yaml_node *)(const void *)t->nodes.data + node;
}

const struct yaml_node *yaml_child(const struct yaml_tree *t, const struct yaml_node *n)
{
	return yaml_at(t, n->child);
}

const struct yaml_node *yaml_next(const struct yaml_tree *t, const struct yaml_node *n) { return yaml_at(t, n->next); }

const char *yaml_text(const struct yaml_tree *t, const struct yaml_node *n) { return t->text.data + n->text; }

bool yaml_is(const struct yaml_tree *t, const struct yaml_node *n, const char *word)
{
	return n->kind == YAML_SCALAR && n->len == strlen(word) && !memcmp(yaml_text(t, n), word, n->len);
}

const struct yaml_node *yaml_get(const struct yaml_tree *t, const struct yaml_node *map, const char *key)
{
	if (!map || map->kind != YAML_MAP)
		return NULL;
	const struct yaml_node *k = yaml_child(t, map);
	while (k) {
		const struct yaml_node *value = yaml_next(t, k);
		if (yaml_is(t, k, key))
			return value;
		k = value ? yaml_next(t, value) : NULL;
	}
	return NULL;
}
