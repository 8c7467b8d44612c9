/* diag: what went wrong, in complete sentences, for a person.
 *
 * A function that fails appends at least one message to its caller's diag and returns -1; on success there is none. A
 * message says what was found, what is accepted and, where there is one, the nearest legal choice.
 * Nothing below cli/ prints. */
#ifndef FAGEN_GEN_DIAG_H
#define FAGEN_GEN_DIAG_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "gen/text.h"

struct place { /* a position in the spec file */
	int line;   /* from 1; 0: not written in the file, a default */
	int column; /* from 1, in bytes */
};

enum { DIAG_SHOWN_MAX = 50 }; /* errors after these are counted but not written out */

struct diag {
	struct text text;    /* all messages, one or more lines each; those about places in the order of the file */
	int errors;          /* messages of kind error */
	int warnings;        /* messages of kind warning */
	const char *file;    /* name to print before line:column; borrowed */
	struct text source;  /* the file's bytes, for the caret */
	struct place first;  /* place of the first error in the file, for embedders */
	struct { size_t at; struct place place; } shown[DIAG_SHOWN_MAX]; /* where each error begins in `text` */
};

/* Empty as {0} is, but for what nobody reads before there are errors: for calls that take a fraction of a microsecond. */
static inline void diag_begin(struct diag *d) { memset(d, 0, offsetof(struct diag, shown)); }
/* Appends "file:line:column: error: message", the source line and a caret below the column. Returns -1. */
int diag_at(struct diag *, struct place, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The same with `line` and a caret below its byte `offset` in place of the source line. */
int diag_in(struct diag *, struct place, const char *line, int offset, const char *format, ...)
	__attribute__((format(printf, 5, 6)));
/* Does the source have this text at this place? */
bool diag_has(const struct diag *, struct place, const char *text);
/* Appends "error: message" without a place. Returns -1. */
int diag_fail(struct diag *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Appends "warning: message". */
void diag_warn(struct diag *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The nearest of `count` names to `word` by edit distance, or NULL if none is near enough to suggest. */
const char *diag_nearest(const char *word, const char *const *names, int count);
void diag_free(struct diag *);

#endif
