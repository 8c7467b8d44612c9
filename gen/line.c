#include "gen/line.h"

#include <string.h>

size_t line_word(struct line *line, const char **word)
{
	if (line->at < line->end && *line->at == ' ')
		line->at++;
	*word = line->at;
	while (line->at < line->end && *line->at != ' ')
		line->at++;
	return line->at - *word;
}

bool line_take(struct line *line, const char *word)
{
	struct line after = *line;
	const char *found;
	const size_t len = line_word(&after, &found);
	if (len != strlen(word) || memcmp(found, word, len) != 0)
		return false;
	*line = after;
	return true;
}

void line_expect(struct line *line, const char *expected)
{
	const char *word;
	if (line->wrong)
		return;
	const size_t len = line_word(line, &word);
	if (len != strlen(expected) || memcmp(word, expected, len) != 0)
		line->wrong = expected;
}

int line_number(struct line *line, const char *name, int64_t least, int64_t most)
{
	const char *word;
	int64_t value = 0;
	line_expect(line, name);
	if (line->wrong)
		return 0;
	const size_t len = line_word(line, &word);
	bool good = len > 0 && len <= 10 && (word[0] != '0' || len == 1);
	for (size_t i = 0; good && i < len; i++) {
		good = word[i] >= '0' && word[i] <= '9';
		value = 10 * value + (word[i] - '0');
	}
	if (!good || value < least || value > most) {
		line->wrong = "a number in range";
		return 0;
	}
	return (int)value;
}

int line_choice(struct line *line, const char *const *choices, int count, const char *expected)
{
	const char *word;
	if (line->wrong)
		return 0;
	const size_t len = line_word(line, &word);
	for (int i = 0; i < count; i++)
		if (len == strlen(choices[i]) && memcmp(word, choices[i], len) == 0)
			return i;
	line->wrong = expected;
	return 0;
}

int line_rule(struct line *line, const char *name, const char *const *rules, int count)
{
	line_expect(line, name);
	return line_choice(line, rules, count, "a known rule");
}

void line_name(struct line *line, char *name, size_t size)
{
	const char *word;
	if (line->wrong)
		return;
	const size_t len = line_word(line, &word);
	bool good = len > 0 && len < size;
	for (size_t i = 0; good && i < len; i++)
		good = (word[i] >= 'a' && word[i] <= 'z') || (word[i] >= 'A' && word[i] <= 'Z') || word[i] == '_' ||
		       (i > 0 && word[i] >= '0' && word[i] <= '9');
	if (!good) {
		line->wrong = "a name";
		return;
	}
	memcpy(name, word, len);
	name[len] = '\0';
}

int lines_read(const char *what, const char *text, void (*read)(void *into, struct line *, int number), void *into,
               struct diag *diag)
{
	int number = 0;
	for (const char *at = text; *at != '\0';) {
		const char *newline = strchr(at, '\n');
		struct line line = {.at = at, .end = newline ? newline : at + strlen(at)};
		read(into, &line, ++number);
		if (!line.wrong && line.at != line.end)
			line.wrong = "the end of the line";
		if (!line.wrong && !newline)
			line.wrong = "a newline at the end of the line";
		if (line.wrong)
			return diag_fail(diag, "%s, line %d: expected %s in '%.*s'.", what, number, line.wrong,
			                 (int)(line.end - at > 80 ? 80 : line.end - at), at);
		at = newline + 1;
	}
	return 0;
}
