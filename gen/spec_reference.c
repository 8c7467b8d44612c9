/* The language told to people (`fagen -h spec`) and to editors (docs/spec.schema.json), from the tables that define it. */
#include "gen/spec_key.h"

#include <string.h>

static void words_describe(struct text *t, const struct shape *s)
{
	for (int i = 0; s->word(i); i++)
		text_addf(t, "%s%s", i == 0 ? "" : s->word(i + 1) ? ", " : " or ", s->word(i));
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
	case SHAPE_PRESET:
		for (int i = 0, shown = 0; i < preset_count; i++) {
			const struct preset *preset = &preset_table[i];
			if (!preset->params[0])
				continue;
			text_addf(t, "%s{%s: {", shown++ ? ", " : "", preset->name);
			for (int p = 0; p < SPEC_ARGS_MAX && preset->params[p]; p++)
				text_addf(t, "%s%s: ...", p ? ", " : "", preset->params[p]);
			text_puts(t, "}}");
		}
		return;
	case SHAPE_EITHER:
		shape_describe(t, s->first);
		text_puts(t, ", or ");
		shape_describe(t, s->second);
		return;
	}
}

static void fields_reference(struct text *t, const struct shape *s)
{
	if (s->kind == SHAPE_EITHER) {
		fields_reference(t, s->first);
		fields_reference(t, s->second);
	}
	for (int i = 0; s->kind == SHAPE_MAP && i < s->field_count; i++) {
		text_addf(t, "      %-10s ", s->field[i].name);
		shape_describe(t, s->field[i].shape);
		text_addf(t, "%s\n                 %s\n", s->field[i].required ? "; required" : "", s->field[i].doc);
	}
}

static const char yaml_rules[] =
	"YAML\n"
	"  A spec is one YAML document: UTF-8 (a byte order mark at the very start is skipped), line breaks LF,\n"
	"  CRLF or CR, at most 1 MiB, 4096 values and 16 levels. JSON is YAML. Not part of the language: anchors,\n"
	"  aliases, tags, merge keys, keys that are not words, tabs as indentation, control characters.\n"
	"  The key decides how a value reads, never the look of the value. There are no booleans and no null: yes,\n"
	"  no, on, off, y, true and ~ are words like others. Words may be quoted; numbers may not, a quoted number\n"
	"  is text.\n"
	"  integer  0 or digits without leading zero, with - if negative. Refused because readers disagree about\n"
	"           them: 0128, 010, 0o10, 0x10, 1_000, 128:32, +5. Refused because they are no integers: 64.0, 1e3.\n"
	"  number   an integer, or with a decimal point and an exponent: 0.1, .5, 5., 1e-3, 1E-3. Never .inf or .nan.\n"
	"  An unknown or repeated key is an error. All errors of a file are reported at once, the first 50 of them\n"
	"  written out.\n";

void spec_reference(struct text *t)
{
	text_puts(t, "A spec says what the attention is. Only head_dim must be written.\n\n"
	             "  head_dim: 64\n  mask: causal\n\nKEYS\n");
	for (int k = 0; k < KEY_COUNT; k++) {
		const struct key *key = &key_table[k];
		text_addf(t, "  %s\n      ", key->name);
		shape_describe(t, key->shape);
		text_addf(t, "\n      %s\n", key->doc);
		if (!key->fallback)
			text_puts(t, "      required\n");
		else
			text_addf(t, "      default: %s\n", key->fallback);
		fields_reference(t, key->shape);
	}
	text_puts(t, "\nMASKS over query position q, key position k and the lengths sq, sk; a parameter left out is "
	             "unbounded\n");
	text_puts(t, "  none\n      every key\n");
	for (int i = 0; i < preset_count; i++)
		text_addf(t, "  %s\n      %s\n      %s\n", preset_table[i].name, preset_table[i].doc,
		          preset_table[i].definition);
	text_puts(t, "\n");
	text_puts(t, yaml_rules);
}

/* ---- JSON schema ---- */

static void words_schema(struct text *t, const struct shape *s)
{
	text_puts(t, "\"enum\": [");
	for (int i = 0; s->word(i); i++) {
		const bool number = strspn(s->word(i), "0123456789") == strlen(s->word(i));
		text_puts(t, i ? ", " : "");
		if (number)
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

static void preset_schema(struct text *t, const struct shape *s)
{
	const char *comma = "";
	text_puts(t, "\"type\": \"object\", \"additionalProperties\": false, \"minProperties\": 1, \"maxProperties\": "
	             "1, \"properties\": {");
	for (int i = 0; i < preset_count; i++) {
		if (!preset_table[i].params[0])
			continue;
		text_puts(t, comma);
		comma = ", ";
		text_json(t, preset_table[i].name);
		text_puts(t, ": {\"description\": ");
		text_json(t, preset_table[i].doc);
		text_puts(
			t,
			", \"type\": \"object\", \"additionalProperties\": false, \"minProperties\": 1, \"properties\": {");
		for (int p = 0; p < SPEC_ARGS_MAX && preset_table[i].params[p]; p++) {
			text_puts(t, p ? ", " : "");
			text_json(t, preset_table[i].params[p]);
			text_puts(t, ": ");
			shape_schema(t, s->of, NULL);
		}
		text_puts(t, "}}");
	}
	text_puts(t, "}");
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
	case SHAPE_LIST:
		text_puts(t, "\"type\": \"array\", \"minItems\": 1, ");
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
	case SHAPE_PRESET: preset_schema(t, s); break;
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
	text_puts(t, "]\n}\n");
}
