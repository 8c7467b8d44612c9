/* lengths: how long the entries of a batch are, in the layouts where they may differ. */
#ifndef FAGEN_CHECK_LENGTHS_H
#define FAGEN_CHECK_LENGTHS_H

#include "check/case.h"

struct lengths { /* [0] of queries, [1] of keys */
	bool packed;
	bool given[2];      /* the launch is told the lengths, for entries have more positions than they use */
	int64_t *used[2];   /* of each entry; NULL in dense layouts */
	int64_t *first[2];  /* packed: first row of each entry, and the end of the last; else 0 */
	int64_t total[2];   /* packed: rows of the tensors, some behind the last entry */
};

/* By the case's seed, or as it says, to be freed also after failure. -1: out of memory. */
int lengths_make(struct lengths *, const struct check_case *, enum batch_layout);
void lengths_free(struct lengths *);

#endif
