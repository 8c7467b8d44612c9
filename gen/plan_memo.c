#include "gen/plan_memo.h"

/* What classifying tiles of one shape may cost, in nodes of expressions, about 0.1 and 0.6 ms: at first, and for those shapes that then seem the
 * fastest. From the first alone chance chose tiles up to 1.4 times slower. */
static const double scan_cost = 5000, scan_cost_close = 20000;

void memo_begin(struct memo *memo, const struct spec *spec, const struct program *program, const struct problem *problem)
{
	memo->looks_close = false;
	memo->rough.count = memo->close.count = 0;
	classifier_begin(&memo->classifier, program, spec, problem->seqlen_q, problem->seqlen_k);
	memo->classifier.cost_most = scan_cost;
	classifier_map(&memo->classifier, 0);
	memo->visible = visible_cells(&memo->classifier, problem);
}

static const struct visits *counts_find(const struct counts *counts, const struct candidate *c)
{
	for (int i = 0; i < counts->count; i++)
		if (counts->visits[i].tile_m == c->positions && counts->visits[i].tile_n == c->tile_n)
			return &counts->visits[i];
	return NULL;
}

bool memo_close(const struct memo *memo, const struct candidate *c) { return counts_find(&memo->close, c) != NULL; }

const struct visits *memo_visits(struct memo *memo, const struct candidate *c, const struct plan *plan)
{
	const struct visits *found = counts_find(&memo->close, c);
	if (!found && !memo->looks_close)
		found = counts_find(&memo->rough, c);
	if (found)
		return found;
	struct counts *counts = memo->looks_close ? &memo->close : &memo->rough;
	struct visits *visits = &counts->visits[counts->count == CANDIDATES_MAX ? CANDIDATES_MAX - 1 : counts->count++];
	*visits = (struct visits){.tile_m = c->positions, .tile_n = c->tile_n};
	memo->classifier.cost_most = memo->looks_close ? scan_cost_close : scan_cost;
	visits_count(visits, &memo->classifier, &plan->problem, plan->pass);
	return visits;
}
