#include "tests/gpu/pairs.h"

#include <stdio.h>
#include <string.h>

int axis_levels(const struct pair_table *t, int axis)
{
	int n = 0;
	while (n < LEVELS_MAX && t->axis[axis].level[n].name)
		n++;
	return n;
}

const char *level_name(const struct pair_table *t, const struct pair_case *c, int axis)
{
	return t->axis[axis].level[c->level[axis]].name;
}

static bool level_is(const struct pair_table *t, int axis, int level, int other, const char *name)
{
	return axis == other && !strcmp(t->axis[axis].level[level].name, name);
}

bool pair_legal(const struct pair_table *t, int axis, int level, int other, int other_level)
{
	for (int i = 0; i < t->excluded_count; i++) {
		const struct pair_excluded *e = &t->excluded[i];
		if ((level_is(t, axis, level, e->axis, e->level) &&
		     level_is(t, other, other_level, e->other, e->other_level)) ||
		    (level_is(t, axis, level, e->other, e->other_level) &&
		     level_is(t, other, other_level, e->axis, e->level)))
			return false;
	}
	return true;
}

/* ---- the cases ---------------------------------------------------------------------------------------------------------- */

enum { TRIES = 200 }; /* candidates for each case, of which the best is taken */

struct met {
	const struct pair_table *table;
	bool pair[AXES_MAX][LEVELS_MAX][AXES_MAX][LEVELS_MAX];
};

static bool level_fits(const struct pair_table *t, const struct pair_case *c, int axis, int level)
{
	for (int g = 0; g < t->axes; g++)
		if (c->level[g] >= 0 && !pair_legal(t, axis, level, g, c->level[g]))
			return false;
	return true;
}

/* Pairs that would meet for the first time. */
static int level_gain(const struct met *met, const struct pair_case *c, int axis, int level)
{
	int gain = 0;
	for (int g = 0; g < met->table->axes; g++)
		gain += g != axis && c->level[g] >= 0 && !met->pair[axis][level][g][c->level[g]];
	return gain;
}

/* The axes in an order of chance, each with the level that gains most; at ties, chance again. */
static int case_grow(struct pair_case *c, const struct met *met, struct random *random)
{
	int order[AXES_MAX], gained = 0;
	for (int i = 0; i < met->table->axes; i++) {
		const int at = (int)(random_next(random) % (uint64_t)(i + 1));
		order[i] = order[at];
		order[at] = i;
	}
	for (int i = 0; i < met->table->axes; i++) {
		const int axis = order[i], levels = axis_levels(met->table, axis),
			  first = (int)(random_next(random) % (uint64_t)levels);
		int best = -1, most = -1;
		for (int turn = 0; c->level[axis] < 0 && turn < levels; turn++) {
			const int level = (first + turn) % levels, gain = level_gain(met, c, axis, level);
			if (gain > most && level_fits(met->table, c, axis, level))
				best = level, most = gain;
		}
		if (best >= 0) {
			c->level[axis] = best;
			gained += most;
		}
	}
	return gained;
}

/* A pair that has not met begins a case: false when there is none left. Which of them, `turn` says. */
static bool case_begin(struct pair_case *c, const struct met *met, uint64_t turn)
{
	struct {
		int f, i, g, j;
	} left[AXES_MAX * AXES_MAX / 2 * LEVELS_MAX * LEVELS_MAX];
	const struct pair_table *const t = met->table;
	uint64_t count = 0;
	for (int f = 0; f < t->axes; f++) {
		c->level[f] = -1;
		for (int g = 0; g < f; g++)
			for (int i = 0; i < axis_levels(t, f); i++)
				for (int j = 0; j < axis_levels(t, g); j++)
					if (!met->pair[f][i][g][j] && pair_legal(t, f, i, g, j)) {
						left[count].f = f, left[count].i = i;
						left[count].g = g, left[count++].j = j;
					}
	}
	if (!count)
		return false;
	turn %= count;
	c->level[left[turn].f] = left[turn].i;
	c->level[left[turn].g] = left[turn].j;
	return true;
}

int pairs_make(struct pair_case to[PAIRS_MAX], const struct pair_table *t)
{
	struct met met = {.table = t};
	struct random random;
	random_begin(&random, 5, 0);
	for (int count = 0; count < PAIRS_MAX; count++) {
		int most = -1;
		for (int turn = 0; turn < TRIES; turn++) {
			struct pair_case c = {{0}};
			if (!case_begin(&c, &met, random_next(&random)))
				return count;
			const int gain = case_grow(&c, &met, &random);
			if (gain > most)
				most = gain, to[count] = c;
		}
		for (int f = 0; f < t->axes; f++)
			for (int g = 0; g < t->axes; g++)
				met.pair[f][to[count].level[f]][g][to[count].level[g]] = true;
	}
	return PAIRS_MAX;
}
