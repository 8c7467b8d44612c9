/* text_file: a file as text. */
#ifndef FAGEN_GEN_TEXT_FILE_H
#define FAGEN_GEN_TEXT_FILE_H

#include "gen/diag.h"
#include "gen/text.h"

/* Appends. Of a file with more than `most` bytes it stops a little behind that: the caller looks at the length. */
int text_file_load(struct text *, const char *path, size_t most, struct diag *);

#endif
