/* The language told to people (`fagen -h spec`) and to editors (docs/spec.schema.json), from the tables that define it. */
#include "gen/spec_input.h"
#include "gen/spec_term.h"

#include <string.h>

void lines_add(struct text *t, const char *indent, const char *text)
{
	enum { WIDTH = 112 };
	size_t column = 0;
	while (*text) {
		const size_t word = strcspn(text, " ");
		if (column && column + 1 + word > WIDTH) {
			text_puts(t, "\n");
			column = 0;
		}
		text_puts(t, column ? " " : indent);
		column += column ? 1 + word : strlen(indent) + word;
		text_add(t, text, word);
		text += word + (text[word] == ' ');
	}
	text_puts(t, "\n");
}

static void words_describe(struct text *t, const struct shape *s)
{
	for (int i = 0; s->word(i); i++)
		text_addf(t, "%s%s", i == 0 ? "" : s->word(i + 1) ? ", " : " or ", s->word(i));
}

static void term_describe(struct text *t, const struct shape *s)
{
	const char *names[NAMES_MAX];
	const int words = names_of(names, 0, s, YAML_SCALAR);
	const bool score = s->terms == PRESET_SCORE;
	const char *comma = words ? ", or " : "";
	for (int i = 0; i < words; i++)
		text_addf(t, "%s%s", i == 0 ? "" : i + 1 == words ? " or " : ", ", names[i]);
	for (int i = 0; i < preset_count; i++) {
		const struct preset *preset = &preset_table[i];
		if (preset->kind != s->terms || !preset->param[0].name)
			continue;
		text_addf(t, "%s{%s: {", comma, preset->name);
		comma = ", ";
		for (int p = 0; p < preset_params(preset); p++)
			text_addf(t, "%s%s: ...", p ? ", " : "", preset->param[p].name);
		text_puts(t, "}}");
	}
	text_puts(t, score ? "" : ", {all: [...]}, {any: [...]}");
	text_puts(t, score && s->root ? ", or a list [...] of them, or an expression" : ", or an expression");
}

void shape_describe(struct text *t, const struct shape *s)
{
	switch (s->kind) {
	case SHAPE_WHOLE:
		if (s->min == s->max)
			text_addf(t, "%lld", (long long)s->min);
		else if (s->step > 1)
			text_addf(t, "a multiple of %lld from %lld to %lld", (long long)s->step, (long long)s->min,
			          (long long)s->max);
		else
			text_addf(t, "an integer from %lld to %lld", (long long)s->min, (long long)s->max);
		return;
	case SHAPE_REAL:
		text_addf(t, "a number from %g to %s%g", s->low, s->below_high ? "below " : "", s->high);
		return;
	case SHAPE_WORD: words_describe(t, s); return;
	case SHAPE_NAME:
		text_addf(t, "at most %d letters, digits, _ or -, not beginning with -", SPEC_NAME_MAX - 1);
		return;
	case SHAPE_LIST:
		text_puts(t, "a list [...] of ");
		shape_describe(t, s->of);
		if (s->must)
			text_addf(t, ", always with %s", s->must);
		return;
	case SHAPE_MAP:
		for (int i = 0; i < s->field_count; i++)
			text_addf(t, "%s%s: ...", i ? ", " : "{", s->field[i].name);
		text_puts(t, "}");
		return;
	case SHAPE_TEXT:
		if (s->only)
			text_addf(t, "a text of at most %lld of the characters %s", (long long)s->max, s->only);
		else
			text_puts(t, "a path");
		return;
	case SHAPE_INPUTS:
		text_puts(t, "{name: ");
		shape_describe(t, s->of);
		text_puts(t, ", ...}");
		return;
	case SHAPE_TERM: term_describe(t, s); return;
	case SHAPE_EXPRESSION: text_puts(t, "an expression in quotes"); return;
	case SHAPE_EITHER:
		shape_describe(t, s->first);
		text_puts(t, ", or ");
		shape_describe(t, s->second);
		return;
	}
}

/* A field, what it may be, and what it is. */
static void field_reference(struct text *t, const char *name, const struct shape *s, const char *rule, const char *doc)
{
	struct text want = {0};
	text_addf(t, "      %s\n", name);
	shape_describe(&want, s);
	text_puts(&want, rule);
	lines_add(t, "          ", text_str(&want));
	lines_add(t, "          ", doc);
	text_free(&want);
}

static void fields_reference(struct text *t, const struct shape *s)
{
	if (s->kind == SHAPE_INPUTS)
		fields_reference(t, s->of);
	if (s->kind == SHAPE_EITHER) {
		fields_reference(t, s->first);
		fields_reference(t, s->second);
	}
	for (int i = 0; s->kind == SHAPE_MAP && i < s->field_count; i++) {
		field_reference(t, s->field[i].name, s->field[i].shape, s->field[i].required ? "; required" : "",
		                s->field[i].doc);
	}
}

static const char yaml_rules[] =
	"YAML\n"
	"  A spec is one YAML document: UTF-8 (a byte order mark at the very start is skipped), line breaks LF,\n"
	"  CRLF or CR, at most 1 MiB, 4096 values and 32 levels. JSON is YAML. Not part of the language: anchors,\n"
	"  aliases, tags, merge keys, keys that are not words, tabs as indentation, control characters.\n"
	"  The key decides how a value reads, never the look of the value. There are no booleans and no null: yes,\n"
	"  no, on, off, y, true and ~ are words like others; sink, grad, deterministic and such want true or\n"
	"  false. Words may be quoted; numbers may not, a quoted number is text.\n"
	"  integer  0 or digits without leading zero, with - if negative. Refused because readers disagree about\n"
	"           them: 0128, 010, 0o10, 0x10, 1_000, 128:32, +5. Refused because they are no integers: 64.0, 1e3.\n"
	"  number   an integer, or with a decimal point and an exponent: 0.1, .5, 5., 1e-3, 1E-3. Never .inf or .nan.\n"
	"  An unknown or repeated key is an error. All errors of a file are reported at once, the first 50 of them\n"
	"  written out.\n";

static const char expression_rules[] =
	"EXPRESSIONS\n"
	"  A mask is a bool expression, a score a float expression. Quotes are optional where YAML reads the text as one\n"
	"  plain scalar: not inside {...} or [...] with a comma or brackets, not with ! or & in front, not with ': '.\n"
	"  names      q k position of query and key, sq sk the lengths, b batch entry, h query head, hq hk number of\n"
	"             query and key/value heads: ints; s scaled dot product: float, in scores only\n"
	"  inputs     name[i, j] with one int index for each dimension; an index outside reads the nearest element\n"
	"  presets    by name, with their arguments in order: causal || k < 4, window(4095, 0) && document\n"
	"  operators  as in C, with C's precedence: ?: || && == != < <= > >= + - * / % ! and - in front\n"
	"  functions  min max abs; floor to int; exp log tanh sqrt sigmoid of floats; random(seed, x, y) 0..65535\n"
	"  types      bool, int, float; an int that meets a float becomes one. / and % of ints round toward minus\n"
	"             infinity, and their divisor must be provably above 0.\n"
	"  docs/language.md has the grammar, the meaning of every operation and a cookbook.\n";

static void presets_reference(struct text *t, enum preset_kind kind, const char *title)
{
	text_addf(t, "\n%s\n", title);
	for (int i = 0; i < preset_count; i++) {
		const struct preset *preset = &preset_table[i];
		if (preset->kind != kind)
			continue;
		text_addf(t, "  %s\n", preset->name);
		lines_add(t, "      ", preset->doc);
		lines_add(t, "      ", preset->definition);
		for (int p = 0; p < preset_params(preset); p++) {
			const struct preset_param *param = &preset->param[p];
			struct param_shape shape;
			struct text rule = {0};
			text_puts(&rule, param->fallback ? "; default: " : "; required");
			text_puts(&rule, param->fallback ? param->fallback : "");
			field_reference(t, param->name, param_shape(&shape, param), text_str(&rule), param->doc);
			text_free(&rule);
		}
		if (preset->input.name[0]) {
			text_addf(t, "      input %s: ", preset->input.name);
			input_describe(t, &preset->input);
			text_puts(t, "\n");
		}
	}
}

void spec_reference(struct text *t)
{
	text_puts(t, "A spec says what the attention is. Only head_dim must be written.\n\n"
	             "  head_dim: 64\n  mask: causal\n\nKEYS\n");
	for (int k = 0; k < KEY_COUNT; k++) {
		const struct key *key = &key_table[k];
		struct text want = {0};
		text_addf(t, "  %s\n", key->name);
		shape_describe(&want, key->shape);
		lines_add(t, "      ", text_str(&want));
		lines_add(t, "      ", key->doc);
		text_free(&want);
		if (!key->fallback)
			text_puts(t, "      required\n");
		else
			text_addf(t, "      default: %s\n", key->fallback);
		fields_reference(t, key->shape);
	}
	presets_reference(t, PRESET_MASK, "MASKS, true for the keys that a query sees");
	presets_reference(t, PRESET_SCORE, "SCORES, of the scaled dot product s");
	presets_reference(t, PRESET_BLOCKS,
	                  "LAYOUTS, over blocks: q and k count blocks, sq and sk are the numbers of blocks");
	text_puts(t, "\n");
	text_puts(t, expression_rules);
	text_puts(t, "\n");
	text_puts(t, yaml_rules);
}

/* ---- JSON schema ---- */

static void words_schema(struct text *t, const struct shape *s)
{
	text_puts(t, "\"enum\": [");
	for (int i = 0; s->word(i); i++) {
		const bool number = strspn(s->word(i), "0123456789") == strlen(s->word(i));
		const bool truth = !strcmp(s->word(i), "true") || !strcmp(s->word(i), "false");
		text_puts(t, i ? ", " : "");
		if (number || truth)
			text_puts(t, s->word(i));
		else
			text_json(t, s->word(i));
	}
	text_puts(t, "]");
}

static void map_schema(struct text *t, const struct shape *s)
{
	const char *comma = "";
	text_puts(t, "\"type\": \"object\", \"additionalProperties\": false, \"minProperties\": 1, \"properties\": {");
	for (int i = 0; i < s->field_count; i++) {
		text_puts(t, i ? ", " : "");
		text_json(t, s->field[i].name);
		text_puts(t, ": ");
		shape_schema(t, s->field[i].shape, s->field[i].doc);
	}
	text_puts(t, "}, \"required\": [");
	for (int i = 0; i < s->field_count; i++) {
		if (s->field[i].required) {
			text_puts(t, comma);
			text_json(t, s->field[i].name);
			comma = ", ";
		}
	}
	text_puts(t, "]");
}

static void preset_schema(struct text *t, const struct preset *preset)
{
	const char *comma = "";
	text_json(t, preset->name);
	text_puts(t, ": {\"description\": ");
	text_json(t, preset->doc);
	text_puts(t, ", \"type\": \"object\", \"additionalProperties\": false, \"properties\": {");
	for (int p = 0; p < preset_params(preset); p++) {
		struct param_shape shape;
		text_puts(t, p ? ", " : "");
		text_json(t, preset->param[p].name);
		text_puts(t, ": ");
		shape_schema(t, param_shape(&shape, &preset->param[p]), preset->param[p].doc);
	}
	text_puts(t, "}, \"required\": [");
	for (int p = 0; p < preset_params(preset); p++) {
		if (preset->param[p].fallback)
			continue;
		text_puts(t, comma);
		comma = ", ";
		text_json(t, preset->param[p].name);
	}
	text_puts(t, "]}");
}

/* What stands once under "$defs": the member of a list, which may hold lists. */
static void term_definition(struct text *t, const struct shape *s)
{
	const char *names[NAMES_MAX], *comma = "";
	const int words = names_of(names, 0, s, YAML_SCALAR);
	text_puts(t, "{\"anyOf\": [");
	for (int i = 0; i < words; i++) {
		text_puts(t, i ? ", " : "{\"enum\": [");
		text_json(t, names[i]);
	}
	text_puts(t, words ? "]}, " : "");
	text_puts(t, "{\"description\": \"an expression\", \"type\": \"string\"}, {\"type\": \"object\", "
	             "\"additionalProperties\": false, \"minProperties\": 1, \"maxProperties\": 1, \"properties\": {");
	for (int i = 0; i < preset_count; i++) {
		if (preset_table[i].kind != s->terms || !preset_table[i].param[0].name)
			continue;
		text_puts(t, comma);
		comma = ", ";
		preset_schema(t, &preset_table[i]);
	}
	for (int i = 0; s->terms != PRESET_SCORE && i < 2; i++) {
		text_addf(t,
		          "%s\"%s\": {\"description\": \"%s\", \"type\": \"array\", \"minItems\": 1, \"items\": "
		          "{\"$ref\": \"#/$defs/%s\"}}",
		          comma, i ? "any" : "all", i ? "one of them must hold" : "all of them must hold",
		          preset_kind_names[s->terms]);
		comma = ", ";
	}
	text_puts(t, "}}]}");
}

static void definitions_schema(struct text *t)
{
	const struct shape *const members[] = {&shape_mask_member, &shape_score_member, &shape_layout};
	for (int i = 0; i < 3; i++) {
		text_addf(t, "%s\n\"%s\": ", i ? "," : "", preset_kind_names[members[i]->terms]);
		term_definition(t, members[i]);
	}
}

static void term_schema(struct text *t, const struct shape *s)
{
	const char *name = preset_kind_names[s->terms];
	if (!s->root) {
		text_addf(t, "\"$ref\": \"#/$defs/%s\"", name);
		return;
	}
	text_addf(t, "\"anyOf\": [{\"enum\": [\"none\"]}, {\"$ref\": \"#/$defs/%s\"}", name);
	if (s->terms == PRESET_SCORE)
		text_addf(t, ", {\"type\": \"array\", \"minItems\": 1, \"items\": {\"$ref\": \"#/$defs/%s\"}}", name);
	text_puts(t, "]");
}

/* The alternatives of nested choices, as one flat list. */
static void either_schema(struct text *t, const struct shape *s, const char **comma)
{
	if (s->kind == SHAPE_EITHER) {
		either_schema(t, s->first, comma);
		either_schema(t, s->second, comma);
		return;
	}
	text_puts(t, *comma);
	*comma = ", ";
	shape_schema(t, s, NULL);
}

void shape_schema(struct text *t, const struct shape *s, const char *doc)
{
	const char *comma = "";
	text_puts(t, "{");
	if (doc) {
		text_puts(t, "\"description\": ");
		text_json(t, doc);
		text_puts(t, ", ");
	}
	switch (s->kind) {
	case SHAPE_WHOLE:
		text_addf(t, "\"type\": \"integer\", \"minimum\": %lld, \"maximum\": %lld", (long long)s->min,
		          (long long)s->max);
		if (s->step > 1)
			text_addf(t, ", \"multipleOf\": %lld", (long long)s->step);
		break;
	case SHAPE_REAL:
		text_addf(t, "\"type\": \"number\", \"minimum\": %g, \"%s\": %g", s->low,
		          s->below_high ? "exclusiveMaximum" : "maximum", s->high);
		break;
	case SHAPE_WORD: words_schema(t, s); break;
	case SHAPE_NAME:
		text_addf(t, "\"type\": \"string\", \"pattern\": \"^[A-Za-z0-9_][A-Za-z0-9_-]*$\", \"maxLength\": %d",
		          SPEC_NAME_MAX - 1);
		break;
	case SHAPE_TEXT:
		text_addf(t, "\"type\": \"string\", \"minLength\": %lld, \"maxLength\": %lld", (long long)s->min,
		          (long long)s->max);
		if (s->only)
			text_addf(t, ", \"pattern\": \"^[%s]*$\"", s->only);
		break;
	case SHAPE_INPUTS:
		text_addf(t,
		          "\"type\": \"object\", \"minProperties\": 1, \"maxProperties\": %d, \"propertyNames\": "
		          "{\"pattern\": \"^[A-Za-z_][A-Za-z0-9_]*$\", \"maxLength\": %d}, \"additionalProperties\": ",
		          SPEC_INPUTS_MAX, INPUT_NAME_MAX - 1);
		shape_schema(t, s->of, NULL);
		break;
	case SHAPE_EXPRESSION: text_puts(t, "\"description\": \"an expression\", \"type\": \"string\""); break;
	case SHAPE_TERM: term_schema(t, s); break;
	case SHAPE_LIST:
		text_addf(t, "\"type\": \"array\", \"minItems\": %d, ", s->empty ? 0 : 1);
		if (s->items_max)
			text_addf(t, "\"maxItems\": %d, ", s->items_max);
		text_addf(t, "\"uniqueItems\": %s, \"items\": ", s->of->kind == SHAPE_WORD ? "true" : "false");
		shape_schema(t, s->of, NULL);
		if (s->must) {
			text_puts(t, ", \"contains\": {\"const\": ");
			text_json(t, s->must);
			text_puts(t, "}");
		}
		break;
	case SHAPE_MAP: map_schema(t, s); break;
	case SHAPE_EITHER:
		text_puts(t, "\"anyOf\": [");
		either_schema(t, s, &comma);
		text_puts(t, "]");
		break;
	}
	text_puts(t, "}");
}

void spec_schema(struct text *t)
{
	const char *comma = "";
	text_puts(t, "{\n\"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n\"title\": \"fagen spec\",\n"
	             "\"description\": \"What an attention is, for fagen to compile. Written by the program from its "
	             "table; do not edit.\",\n"
	             "\"type\": \"object\",\n\"additionalProperties\": false,\n\"properties\": {");
	for (int k = 0; k < KEY_COUNT; k++) {
		const struct key *key = &key_table[k];
		struct text doc = {0};
		text_addf(&doc, key->fallback ? "%s. Default: %s" : "%s. Required%s", key->doc,
		          key->fallback ? key->fallback : "");
		text_puts(t, k ? ",\n" : "\n");
		text_json(t, key->name);
		text_puts(t, ": ");
		shape_schema(t, key->shape, text_str(&doc));
		text_free(&doc);
	}
	text_puts(t, "\n},\n\"required\": [");
	for (int k = 0; k < KEY_COUNT; k++) {
		if (!key_table[k].fallback) {
			text_puts(t, comma);
			text_json(t, key_table[k].name);
			comma = ", ";
		}
	}
	text_puts(t, "],\n\"$defs\": {");
	definitions_schema(t);
	text_puts(t, "\n}\n}\n");
}
