/* range: which positions a tile of the other kind sees by the bounds of one run, in closed form. The host's answer
 * (program_key_range) and the emitted functions are two readings of the same list. */
#ifndef FAGEN_GEN_RANGE_H
#define FAGEN_GEN_RANGE_H

#include "gen/gen.h"

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
void reach_keys(struct reach *, const struct run *);  /* tiles of rows, P is a key */
void reach_rows(struct reach *, const struct run *);  /* tiles of keys, P is a row */

/* The same for given positions: the tile is [first, last], not empty and inside its length. */
struct range reach_range(const struct reach *, int64_t sq, int64_t sk, int64_t first, int64_t last, int64_t len);

#endif
