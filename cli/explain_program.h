/* explain_program: what a program is and how its mask is decided, for a person and as JSON. */
#ifndef FAGEN_CLI_EXPLAIN_PROGRAM_H
#define FAGEN_CLI_EXPLAIN_PROGRAM_H

#include "gen/gen.h"

void program_explain(struct text *, const struct program *, const struct spec *);
/* The members of an object, without its braces. */
void program_json(struct text *, const struct program *, const struct spec *);

#endif
