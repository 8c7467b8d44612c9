#include "gen/text.h"

#include <locale.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for `more` bytes and the NUL. The only place of gen/ that gives up when memory is out. */
static void text_reserve(struct text *t, size_t more)
{
	if (more >= SIZE_MAX / 2 - t->len)
		abort();
	const size_t need = t->len + more + 1;
	if (need <= t->cap)
		return;
	size_t cap = t->cap ? t->cap : 64;
	while (cap < need)
		cap *= 2;
	char *data = realloc(t->data, cap);
	if (!data)
		abort();
	t->data = data;
	t->cap = cap;
}

void text_add(struct text *t, const char *bytes, size_t len)
{
	text_reserve(t, len);
	if (len)
		memcpy(t->data + t->len, bytes, len);
	t->len += len;
	t->data[t->len] = '\0';
}

void text_puts(struct text *t, const char *string) { text_add(t, string, strlen(string)); }

void text_vaddf(struct text *t, const char *format, va_list args)
{
	/* Emitted sources and messages must not depend on the decimal point of the program we are linked into. The C
	 * locale is a constant of libc: this allocates nothing. */
	const locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
	const locale_t old = c ? uselocale(c) : (locale_t)0;
	va_list again;
	va_copy(again, args);
	const int len = vsnprintf(NULL, 0, format, args);
	if (len > 0) {
		text_reserve(t, (size_t)len);
		vsnprintf(t->data + t->len, (size_t)len + 1, format, again);
		t->len += (size_t)len;
	}
	va_end(again);
	if (c) {
		uselocale(old);
		freelocale(c);
	}
}

void text_addf(struct text *t, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	text_vaddf(t, format, args);
	va_end(args);
}

size_t text_utf8(const char *bytes, size_t len)
{
	const unsigned char *b = (const unsigned char *)bytes;
	if (!len)
		return 0;
	if (b[0] < 0x80)
		return 1;
	const size_t n = b[0] >= 0xF0 ? 4 : b[0] >= 0xE0 ? 3 : 2;
	if (b[0] < 0xC2 || b[0] > 0xF4 || len < n)
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((b[i] & 0xC0) != 0x80)
			return 0;
	/* Overlong forms, surrogates, and what lies above U+10FFFF. */
	if ((b[0] == 0xE0 && b[1] < 0xA0) || (b[0] == 0xED && b[1] > 0x9F) || (b[0] == 0xF0 && b[1] < 0x90) ||
	    (b[0] == 0xF4 && b[1] > 0x8F))
		return 0;
	return n;
}

/* U+0080 to U+009F: a terminal may obey them. */
static int is_c1(const char *bytes, size_t n)
{
	return n == 2 && (unsigned char)bytes[0] == 0xC2 && (unsigned char)bytes[1] < 0xA0;
}

void text_json(struct text *t, const char *string)
{
	size_t left = strlen(string);
	text_add(t, "\"", 1);
	while (left) {
		const unsigned char c = (unsigned char)*string;
		const size_t n = text_utf8(string, left);
		if (!n)
			text_puts(t, "\\ufffd");
		else if (c == '"' || c == '\\')
			text_addf(t, "\\%c", c);
		else if (c == '\n')
			text_puts(t, "\\n");
		else if (c < 0x20 || c == 0x7F)
			text_addf(t, "\\u%04x", c);
		else
			text_add(t, string, n);
		string += n ? n : 1;
		left -= n ? n : 1;
	}
	text_add(t, "\"", 1);
}

void text_quote(struct text *t, const char *bytes, size_t len)
{
	enum { CHARACTERS_MAX = 40 };
	text_add(t, "'", 1);
	for (int shown = 0; len; shown++) {
		if (shown == CHARACTERS_MAX) {
			text_puts(t, "...");
			break;
		}
		const unsigned char c = (unsigned char)*bytes;
		size_t n = text_utf8(bytes, len);
		if (c == '\n')
			text_puts(t, "\\n");
		else if (!n || c < 0x20 || c == 0x7F || is_c1(bytes, n)) {
			n = n ? n : 1;
			for (size_t i = 0; i < n; i++)
				text_addf(t, "\\x%02x", (unsigned char)bytes[i]);
		} else
			text_add(t, bytes, n);
		bytes += n;
		len -= n;
	}
	text_add(t, "'", 1);
}

const char *text_str(const struct text *t) { return t->data ? t->data : ""; }

void text_free(struct text *t)
{
	free(t->data);
	*t = (struct text){0};
}
