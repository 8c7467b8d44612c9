#include "check/lengths.h"

#include <stdlib.h>
#include <string.h>

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

/* None, all, one, a few, or any number: there is no batch without sorts of each for long. */
static int64_t length_any(struct random *r, int64_t most)
{
	const uint64_t kind = random_next(r) % 6, value = random_next(r);
	switch (kind) {
	case 0: return 0;
	case 1: return most;
	case 2: return min64(1, most);
	case 3: return min64((int64_t)(value % 20), most);
	default: return (int64_t)(value % (uint64_t)(most + 1));
	}
}

int lengths_make(struct lengths *to, const struct check_case *c, enum batch_layout layout)
{
	*to = (struct lengths){.packed = layout == LAYOUT_PACKED};
	if (layout == LAYOUT_DENSE)
		return 0;
	for (int axis = 0; axis < 2; axis++) {
		const int64_t most = axis ? c->seqlen_k : c->seqlen_q;
		const bool gaps = to->packed && c->seed % 3 == 2,
			   all = !c->lengths[axis] && (c->whole || (!to->packed && c->seed % 8 == 6u + (unsigned)axis));
		struct random r;
		random_begin(&r, c->seed, 3000 + (uint64_t)axis);
		to->given[axis] = to->packed ? gaps : !all;
		to->used[axis] = calloc((size_t)c->batch + 1, sizeof(int64_t));
		to->first[axis] = calloc((size_t)c->batch + 1, sizeof(int64_t));
		if (!to->used[axis] || !to->first[axis])
			return -1;
		for (int64_t b = 0; b < c->batch; b++) {
			const int64_t any = length_any(&r, most), gap = gaps ? (int64_t)(random_next(&r) % 5) : 0;
			const int64_t used = c->lengths[axis] ? min64(c->length[axis][b % c->lengths[axis]], most)
			                     : all            ? most
			                                      : any;
			to->used[axis][b] = used;
			to->first[axis][b + 1] = to->first[axis][b] + (to->packed ? min64(used + gap, most) : 0);
		}
		to->total[axis] =
			to->packed ? to->first[axis][c->batch] + (c->whole ? 0 : (int64_t)(c->seed % 2) * 37) : 0;
	}
	return 0;
}

void lengths_free(struct lengths *l)
{
	for (int axis = 0; axis < 2; axis++) {
		free(l->used[axis]);
		free(l->first[axis]);
	}
	memset(l, 0, sizeof *l);
}
