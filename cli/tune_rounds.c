/* tune_rounds: from times by turns to one tile. */
#include <math.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/tune.h"

/* A tile that never came nearer to the fastest than this is timed no more. */
static const double hopeless = 1.10;
/* The planner's choice stays unless another is faster by more: less is noise, and a choice that changes with it helps nobody. */
static const double worth_changing = 0.01;

static double median(const struct tune_tile *t) { return median_of(t->us, t->rounds); }

static bool counts(const struct tune_tile *t) { return t->kernel && t->rounds > 0 && t->verdict != WRONG; }

static double least(const struct tune_tile *t)
{
	double us = t->us[0];
	for (int i = 1; i < t->rounds; i++)
		us = fmin(us, t->us[i]);
	return us;
}

int tiles_fastest(const struct tune_job *job)
{
	int best = -1, rounds = 0;
	for (int i = 0; i < job->count; i++)
		if (counts(&job->tile[i]) && job->tile[i].rounds > rounds)
			rounds = job->tile[i].rounds;
	for (int i = 0; i < job->count; i++) /* only tiles that were timed by turns can be compared */
		if (counts(&job->tile[i]) && job->tile[i].rounds == rounds &&
		    (best < 0 || median(&job->tile[i]) < median(&job->tile[best])))
			best = i;
	const struct tune_tile *planner = &job->tile[job->planner];
	if (best >= 0 && counts(planner) && median(planner) <= median(&job->tile[best]) * (1 + worth_changing))
		best = job->planner;
	return best;
}

bool tile_alive(const struct tune_job *job, int tile)
{
	const struct tune_tile *t = &job->tile[tile];
	const int best = tiles_fastest(job);
	if (!t->kernel || t->verdict == WRONG)
		return false;
	return tile == job->planner || t->rounds < 2 || best < 0 || least(t) <= hopeless * median(&job->tile[best]);
}

void tuned_make(struct tuned *to, const struct tune_job *job, int fastest)
{
	const struct tune_tile *best = &job->tile[fastest], *planner = &job->tile[job->planner];
	const double us = median(best);
	double off[TUNE_ROUNDS_MAX];
	for (int i = 0; i < best->rounds; i++)
		off[i] = fabs(best->us[i] / us - 1);
	*to = (struct tuned){.tile = best->choice,
	                     .planner = planner->choice,
	                     .ns = llround(fmax(us * 1e3, 1)),
	                     .planner_ns = llround(fmax(median(planner) * 1e3, 1)),
	                     .noise = (int)fmin(lround(median_of(off, best->rounds) * 1e3), 1000),
	                     .rounds = best->rounds};
}
