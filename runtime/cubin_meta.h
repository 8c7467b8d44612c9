/* cubin_meta: the text that is kept beside a cubin. */
#ifndef FAGEN_CUBIN_META_H
#define FAGEN_CUBIN_META_H

#include "gen/signature.h"
#include "runtime/runtime.h"

/* signature NULL: none is written. */
void cubin_meta_print(struct text *, const struct cubin *, const struct signature *, const struct target *);
/* Fills all of the cubin but code, and where it comes from. signature NULL: whatever is behind the log
 * is not read. -1: it is no such text, or one of another target; report may be set then too. */
int MUST_USE cubin_meta_parse(struct cubin *, struct signature *, const char *meta, size_t len, const struct target *);

#endif
