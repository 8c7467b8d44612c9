#include "gen/diag.h"

#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

static bool before(struct place a, struct place b)
{
	return a.line < b.line || (a.line == b.line && a.column < b.column);
}

/* Counts an error. false: so many were shown already that this one is not written out. */
static bool error_begin(struct diag *d, struct place place)
{
	if (d->errors++ == 0 || (place.line > 0 && before(place, d->first)))
		d->first = place;
	if (d->errors == DIAG_SHOWN_MAX + 1)
		text_addf(&d->text, "error: more than %d errors; the rest are not shown\n", DIAG_SHOWN_MAX);
	if (d->errors > DIAG_SHOWN_MAX)
		return false;
	d->shown[d->errors - 1].at = d->text.len;
	d->shown[d->errors - 1].place = place;
	return true;
}

/* Moves the newest message, the end of the text, in front of those about later places. */
static void error_end(struct diag *d)
{
	int to = d->errors - 1;
	const size_t from = d->shown[to].at, len = d->text.len - from;
	const struct place place = d->shown[to].place;
	while (to > 0 && place.line > 0 && before(place, d->shown[to - 1].place))
		to--;
	if (to == d->errors - 1)
		return;
	const size_t at = d->shown[to].at;
	struct text message = {0};
	text_add(&message, d->text.data + from, len);
	memmove(d->text.data + at + len, d->text.data + at, from - at);
	memcpy(d->text.data + at, text_str(&message), len);
	text_free(&message);
	for (int i = d->errors - 1; i > to; i--) {
		d->shown[i] = d->shown[i - 1];
		d->shown[i].at += len;
	}
	d->shown[to].at = at;
	d->shown[to].place = place;
}

/* Length of the line break at s[i]: \n, \r\n, or \r as YAML reads them; 0 if there is none. */
static size_t break_at(const char *s, size_t len, size_t i)
{
	if (i >= len || (s[i] != '\n' && s[i] != '\r'))
		return 0;
	return s[i] == '\r' && i + 1 < len && s[i + 1] == '\n' ? 2 : 1;
}

/* Offset of the line in the source; source.len if it has none such. */
static size_t line_find(const struct text *source, int line)
{
	size_t at = 0;
	for (int i = 1; i < line; i++) {
		while (at < source->len && !break_at(text_str(source), source->len, at))
			at++;
		at += break_at(text_str(source), source->len, at);
	}
	return at;
}

/* The line that the text begins with, and a caret below an offset in it. A long line is cut to the part around it. */
static void caret_print(struct text *out, const char *text, size_t max, size_t caret)
{
	enum { BEFORE_MAX = 80, SHOWN_MAX = 110 };
	size_t len = 0;
	while (len < max && !break_at(text, max, len))
		len++;
	if (!len)
		return;
	caret = caret < len ? caret : len;
	bool cut = false;
	if (caret > BEFORE_MAX) {
		size_t skip = caret - BEFORE_MAX / 2;
		while (skip < caret && ((unsigned char)text[skip] & 0xC0) == 0x80)
			skip++;
		text += skip;
		len -= skip;
		caret -= skip;
		cut = true;
	}
	struct text below = {0};
	text_puts(out, cut ? "    ..." : "    ");
	text_puts(&below, cut ? "       " : "    ");
	size_t i = 0;
	for (int shown = 0; i < len && shown < SHOWN_MAX; shown++) {
		size_t n = text_utf8(text + i, len - i);
		const unsigned char c = (unsigned char)text[i];
		const bool odd =
			!n || (c < 0x20 && c != '\t') || c == 0x7F || (c == 0xC2 && (unsigned char)text[i + 1] < 0xA0);
		n = n ? n : 1;
		text_add(out, odd ? "?" : text + i, odd ? 1 : n);
		if (i < caret)
			text_puts(&below, c == '\t' ? "\t" : " ");
		i += n;
	}
	text_addf(out, "%s\n%s^\n", i < len ? "..." : "", text_str(&below));
	text_free(&below);
}

/* With the first line of `shown` below it, and a caret below an offset in that. */
static void message_add(struct diag *d, struct place place, const char *shown, size_t len, size_t caret,
                        const char *format, va_list args)
{
	if (!error_begin(d, place))
		return;
	if (d->file)
		text_addf(&d->text, "%s:", d->file);
	if (place.line > 0)
		text_addf(&d->text, "%d:%d:", place.line, place.column);
	text_puts(&d->text, d->file || place.line > 0 ? " error: " : "error: ");
	text_vaddf(&d->text, format, args);
	text_puts(&d->text, "\n");
	caret_print(&d->text, shown, len, caret);
	error_end(d);
}

int diag_at(struct diag *d, struct place place, const char *format, ...)
{
	const bool placed = place.line > 0 && place.column > 0;
	const size_t at = placed ? line_find(&d->source, place.line) : d->source.len;
	va_list args;
	va_start(args, format);
	message_add(d, place, text_str(&d->source) + at, d->source.len - at, placed ? (size_t)place.column - 1 : 0,
	            format, args);
	va_end(args);
	return -1;
}

int diag_in(struct diag *d, struct place place, const char *line, int offset, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	message_add(d, place, line, strlen(line), (size_t)offset, format, args);
	va_end(args);
	return -1;
}

bool diag_has(const struct diag *d, struct place place, const char *text)
{
	const size_t len = strlen(text);
	if (place.line < 1 || place.column < 1)
		return false;
	const size_t at = line_find(&d->source, place.line) + (size_t)place.column - 1;
	return at <= d->source.len && len <= d->source.len - at && !memcmp(text_str(&d->source) + at, text, len);
}

int diag_fail(struct diag *d, const char *format, ...)
{
	if (!error_begin(d, (struct place){0}))
		return -1;
	text_puts(&d->text, "error: ");
	va_list args;
	va_start(args, format);
	text_vaddf(&d->text, format, args);
	va_end(args);
	text_puts(&d->text, "\n");
	return -1;
}

void diag_warn(struct diag *d, const char *format, ...)
{
	d->warnings++;
	text_puts(&d->text, "warning: ");
	va_list args;
	va_start(args, format);
	text_vaddf(&d->text, format, args);
	va_end(args);
	text_puts(&d->text, "\n");
}

static int lower(char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : (unsigned char)c; }

static int least(int a, int b) { return a < b ? a : b; }

enum { WORD_MAX = 48 };

/* Edits that turn a into b, letter case aside: insert, delete, change, exchange two neighbours. */
static int edit_distance(const char *a, int na, const char *b, int nb)
{
	int row[3][WORD_MAX + 1]; /* distances of prefixes: row i % 3 for the first i letters of a */
	for (int i = 0; i <= na; i++) {
		for (int j = 0; j <= nb; j++) {
			int best = i && j ? row[(i - 1) % 3][j - 1] + (lower(a[i - 1]) != lower(b[j - 1])) : i + j;
			if (i)
				best = least(best, row[(i - 1) % 3][j] + 1);
			if (j)
				best = least(best, row[i % 3][j - 1] + 1);
			if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]))
				best = least(best, row[(i - 2) % 3][j - 2] + 1);
			row[i % 3][j] = best;
		}
	}
	return row[na % 3][nb];
}

static bool begins_with(const char *name, const char *word)
{
	while (*word && lower(*word) == lower(*name)) {
		word++;
		name++;
	}
	return !*word;
}

const char *diag_nearest(const char *word, const char *const *names, int count)
{
	const int len = strlen(word) > WORD_MAX ? 0 : (int)strlen(word);
	const char *nearest = NULL;
	int nearest_rank = 2 * WORD_MAX + 1;
	for (int i = 0; len && i < count; i++) {
		if (strlen(names[i]) > WORD_MAX)
			continue;
		const int name_len = (int)strlen(names[i]);
		const int longer = len > name_len ? len : name_len;
		const int distance = edit_distance(word, len, names[i], name_len);
		/* Of equally near names, the one that the word begins. */
		const int rank = 2 * distance + !begins_with(names[i], word);
		if (distance <= (longer < 6 ? 1 : longer / 3) && distance < least(len, name_len) &&
		    rank < nearest_rank) {
			nearest = names[i];
			nearest_rank = rank;
		}
	}
	return nearest;
}

void diag_free(struct diag *d)
{
	text_free(&d->text);
	text_free(&d->source);
	diag_begin(d);
}
