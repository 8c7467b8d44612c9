/* line: texts that fagen writes for itself, recipes and signatures, read a line at a time and word by word. */
#ifndef FAGEN_GEN_LINE_H
#define FAGEN_GEN_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gen/diag.h"

/* The first thing that does not fit sets `wrong`, what was expected; every later read does nothing and gives 0. */
struct line {
	const char *at, *end;
	const char *wrong;
};

size_t line_word(struct line *, const char **word); /* its length; 0 at the end */
bool line_take(struct line *, const char *word);     /* is it the next one? then it is behind us */
void line_expect(struct line *, const char *expected);
/* `name` and a number of the range, in its only spelling. */
int line_number(struct line *, const char *name, int64_t least, int64_t most);
/* One of the words; which. `expected` is what the message calls them. */
int line_choice(struct line *, const char *const *choices, int count, const char *expected);
/* `name` and one of the words. */
int line_rule(struct line *, const char *name, const char *const *rules, int count);
/* Letters, digits and _, not beginning with a digit, below `size` bytes. */
void line_name(struct line *, char *name, size_t size);

/* Gives each line to `read`, which has to read it to its end; `number` counts from 1. `what` is what the message calls the
 * text. 0, or -1 with a message. Of an empty text nothing is read. */
int lines_read(const char *what, const char *text, void (*read)(void *into, struct line *, int number), void *into,
               struct diag *);

#endif
