/* text: a growing byte buffer, always NUL-terminated, owned by whoever declared it. Formats print as in the C locale.
 * Out of memory aborts here and nowhere else in gen/: the generator needs a few hundred kilobytes. */
#ifndef FAGEN_GEN_TEXT_H
#define FAGEN_GEN_TEXT_H

#include <stdarg.h>
#include <stddef.h>

struct text {
	char *data; /* NULL until the first append; read through text_str */
	size_t len; /* bytes before the NUL */
	size_t cap;
};

void text_add(struct text *, const char *bytes, size_t len);
void text_puts(struct text *, const char *string);
void text_addf(struct text *, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_vaddf(struct text *, const char *format, va_list) __attribute__((format(printf, 2, 0)));
void text_json(struct text *, const char *string); /* appends a quoted, escaped JSON string */
void text_quote(struct text *, const char *bytes, size_t len); /* for messages: in ' ', cut when long, controls escaped */
size_t text_utf8(const char *bytes, size_t len); /* length of the UTF-8 character there, 1..4; 0: not valid or none */
const char *text_str(const struct text *);         /* "" when empty; valid until the next append */
void text_free(struct text *);                     /* leaves an empty text */

#endif
