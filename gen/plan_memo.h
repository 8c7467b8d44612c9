/* plan_memo: the tiles that a pass of a spec visits, counted once for all templates. */
#ifndef FAGEN_GEN_PLAN_MEMO_H
#define FAGEN_GEN_PLAN_MEMO_H

#include "gen/lower.h"
#include "gen/model.h"

struct counts { /* of tiles of so many shapes */
	int count;
	struct visits visits[CANDIDATES_MAX];
};
/* What a pass of a spec visits, whatever the template; candidates that differ in warps and stages alone visit the same tiles. */
struct memo {
	struct classifier classifier;
	double visible;   /* cells of all heads */
	bool looks_close; /* set by whoever wants more exact counts from now on */
	struct counts rough, close;
};
void memo_begin(struct memo *, const struct spec *, const struct program *, const struct problem *);
/* As closely as somebody has looked; valid until the next call. */
const struct visits *memo_visits(struct memo *, const struct candidate *, const struct plan *);
/* Has somebody looked closely? */
bool memo_close(const struct memo *, const struct candidate *);

#endif
