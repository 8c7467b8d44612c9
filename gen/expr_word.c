/* expr_word: what the words of expressions mean. */
#include "gen/expr_token.h"

#include <string.h>

int expr_function(const char *word, size_t len)
{
	for (int i = 0; i < EXPR_OP_COUNT; i++)
		if (expr_ops[i].form == FORM_CALL && strlen(expr_ops[i].spelling) == len &&
		    !memcmp(expr_ops[i].spelling, word, len))
			return i;
	return -1;
}

void expr_presets(bool *used, const char *text)
{
	while (*text) {
		const int len = token_word_len(text);
		const bool indexed = text[len + (int)strspn(text + len, " \t\n")] == '[';
		for (int i = 0; i < preset_count && !indexed; i++) {
			const struct preset *preset = &preset_table[i];
			if (strlen(preset->name) != (size_t)len || memcmp(preset->name, text, (size_t)len) || used[i] ||
			    expr_function(text, (size_t)len) >= 0)
				continue;
			used[i] = true;
			expr_presets(used, preset->definition);
		}
		text += len ? len : 1;
	}
}

const char *expr_reserved(const char *name)
{
	static const char *const words[] = {"true", "false", "unbounded", "and", "or", "not"};
	for (int i = 0; i < NAME_COUNT; i++)
		if (!strcmp(name, expr_names[i]))
			return "a built-in name";
	if (expr_function(name, strlen(name)) >= 0)
		return "a function";
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (!strcmp(name, words[i]))
			return "a word of the language";
	const int preset = preset_find(name);
	return preset >= 0 && strcmp(preset_table[preset].input.name, name) ? "a preset" : NULL;
}
