/* emit_merge: the kernels that join two partial results. One source for every type and shape. */
#ifndef FAGEN_GEN_EMIT_MERGE_H
#define FAGEN_GEN_EMIT_MERGE_H

#include "gen/gen.h"

/* The source, as source_emit makes one, and its kernels: forward, backward. */
int MUST_USE merge_emit(struct text *, const char *templates_dir, struct diag *);
void merge_recipe(struct recipe *);

#endif
