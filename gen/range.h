/* range: which positions a tile of the other kind sees, in closed form. The host's answer (program_key_range) and the
 * emitted functions are two readings of the same list. */
#ifndef FAGEN_GEN_RANGE_H
#define FAGEN_GEN_RANGE_H

#include "gen/gen.h"

enum { LENGTH_MAX = INT32_MAX }; /* of sq and sk: what is decided for all lengths is decided up to here */

/* position*P + first*F + last*L + sq*SQ + sk*SK + constant >= 0, where F and L are the first and last position of the
 * tile; position is in -2..2. With position 0 it is a condition on the tile alone. */
struct need { int position, first, last, sq, sk; int64_t constant; };

enum { NEEDS_MAX = BOUNDS_MAX + (BOUNDS_MAX / 2 + 1) * (BOUNDS_MAX / 2 + 1) };

struct needs { int count; struct need need[NEEDS_MAX]; };

struct reach {
	struct needs visible; /* P is seen from some position of the tile exactly when all hold */
	struct needs full;    /* P is seen from every position of the tile exactly when all hold */
};

/* Of the bounds alone, for tiles that are not empty and lie inside their length; P lies inside its own. */
void reach_keys(struct reach *, const struct program *);  /* tiles of rows, P is a key */
void reach_rows(struct reach *, const struct program *);  /* tiles of keys, P is a row */

#endif
