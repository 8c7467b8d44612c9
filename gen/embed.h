/* embed: the files of templates/, assembled into the library at build time. */
#ifndef FAGEN_GEN_EMBED_H
#define FAGEN_GEN_EMBED_H

#include "gen/gen.h"

/* The bytes of a template as it was at build time, NUL-terminated; `name` is its path under templates/. NULL: none. */
const char *embed_find(size_t *len, const char *name);
/* Appends a template: the embedded one when `dir` is NULL, else the file of that folder. */
int MUST_USE embed_read(struct text *, const char *name, const char *dir, struct diag *);

#endif
