#include "tests/gpu/pairs.h"

#include <stdio.h>
#include <string.h>

const char *const axis_names[AXIS_COUNT] = {"dtype",         "head_dim", "head_dim v", "mask",   "score",
                                            "sink",          "dropout",  "group",      "layout", "sparsity",
                                            "deterministic", "strides",  "alignment"};

const struct pair_level pair_levels[AXIS_COUNT][LEVELS_MAX] = {
	[AXIS_DTYPE] = {{"bf16", ""}, {"fp16", "dtype: fp16, "}},
	[AXIS_HEAD_DIM] = {{"64", ""}, {"72", ""}, {"128", ""}, {"256", ""}},
	[AXIS_HEAD_DIM_V] = {{"same", ""}, {"smaller", ""}, {"larger", ""}},
	[AXIS_MASK] = {{"none", ""},
                       {"causal", "mask: causal, "},
                       {"window", "mask: {window: {left: 90, right: 20}}, "},
                       {"causal document", "mask: {all: [causal, document]}, "},
                       {"padding", "mask: padding, "},
                       {"two runs", "mask: \"abs(q - k) < 60 || k < 9\", "},
                       {"residual", "mask: \"(q + k) % 3 != 0\", "}},
	[AXIS_SCORE] =
		{{"none", ""},
                 {"softcap", "score: {softcap: {cap: 8}}, "},
                 {"alibi", "score: alibi, inputs: {slope: {dtype: f32, shape: [heads], grad: true}}, "},
                 {"bias",
                  "score: bias, inputs: {bias: {dtype: f32, shape: [batch, heads, seq_q, seq_k], grad: true}}, "},
                 {"diagonals",
                  "score: \"s + t[h, q - k + 40]\", inputs: {t: {dtype: f32, shape: [heads, 81], grad: true}}, "}},
	[AXIS_SINK] = {{"none", ""}, {"sink", "sink: true, "}},
	[AXIS_DROPOUT] = {{"none", ""}, {"0.2", "dropout: 0.2, "}},
	[AXIS_GROUP] = {{"1", "kv_group: 1, "}, {"3", "kv_group: 3, "}, {"any", "kv_group: any, "}},
	[AXIS_LAYOUT] = {{"dense", ""}, {"padded", "layout: padded, "}, {"packed", "layout: packed, "}},
	[AXIS_SPARSITY] =
		{{"none", ""},
                 {"rule",
                  "blocks: {size: 64, keep: {any: [{local: {left: 1, right: 1}}, {random: {seed: 3, chance: 0.3}}]}}, "},
                 {"bitmap", "blocks: {size: 32, from: bitmap}, "},
                 {"lists", "blocks: {size: 128, from: lists}, "}},
	[AXIS_DETERMINISTIC] = {{"no", ""}, {"yes", "deterministic: true, "}},
	[AXIS_STRIDES] = {{"bhsd", ""},
                          {"bshd", ""},
                          {"fat", ""},
                          {"odd", ""},
                          {"mixed", ""},
                          {"size1", ""},
                          {"flip", ""},
                          {"shared", ""}},
	[AXIS_ALIGNMENT] = {{"16 bytes", ""}, {"an element", ""}},
};

const struct pair_excluded pairs_excluded[] = {
	{AXIS_HEAD_DIM, "256", AXIS_HEAD_DIM_V, "larger", "256 is the largest head dim"},
	{AXIS_STRIDES, "odd", AXIS_ALIGNMENT, "16 bytes", "odd strides are multiples of one element alone"},
};
const int pairs_excluded_count = sizeof pairs_excluded / sizeof *pairs_excluded;

int axis_levels(enum pair_axis axis)
{
	int n = 0;
	while (n < LEVELS_MAX && pair_levels[axis][n].name)
		n++;
	return n;
}

static bool level_is(enum pair_axis axis, int level, enum pair_axis other, const char *name)
{
	return axis == other && !strcmp(pair_levels[axis][level].name, name);
}

bool pair_legal(enum pair_axis axis, int level, enum pair_axis other, int other_level)
{
	for (int i = 0; i < pairs_excluded_count; i++) {
		const struct pair_excluded *e = &pairs_excluded[i];
		if ((level_is(axis, level, e->axis, e->level) &&
		     level_is(other, other_level, e->other, e->other_level)) ||
		    (level_is(axis, level, e->other, e->other_level) &&
		     level_is(other, other_level, e->axis, e->level)))
			return false;
	}
	return true;
}

/* ---- the cases ---------------------------------------------------------------------------------------------------------- */

enum { TRIES = 200 }; /* candidates for each case, of which the best is taken */

struct met {
	bool pair[AXIS_COUNT][LEVELS_MAX][AXIS_COUNT][LEVELS_MAX];
};

static bool level_fits(const struct pair_case *c, int axis, int level)
{
	for (int g = 0; g < AXIS_COUNT; g++)
		if (c->level[g] >= 0 && !pair_legal((enum pair_axis)axis, level, (enum pair_axis)g, c->level[g]))
			return false;
	return true;
}

/* Pairs that would meet for the first time. */
static int level_gain(const struct met *met, const struct pair_case *c, int axis, int level)
{
	int gain = 0;
	for (int g = 0; g < AXIS_COUNT; g++)
		gain += g != axis && c->level[g] >= 0 && !met->pair[axis][level][g][c->level[g]];
	return gain;
}

/* The axes in an order of chance, each with the level that gains most; at ties, chance again. */
static int case_grow(struct pair_case *c, const struct met *met, struct random *random)
{
	int order[AXIS_COUNT], gained = 0;
	for (int i = 0; i < AXIS_COUNT; i++) {
		const int at = (int)(random_next(random) % (uint64_t)(i + 1));
		order[i] = order[at];
		order[at] = i;
	}
	for (int i = 0; i < AXIS_COUNT; i++) {
		const int axis = order[i], levels = axis_levels((enum pair_axis)axis),
			  first = (int)(random_next(random) % (uint64_t)levels);
		int best = -1, most = -1;
		for (int turn = 0; c->level[axis] < 0 && turn < levels; turn++) {
			const int level = (first + turn) % levels, gain = level_gain(met, c, axis, level);
			if (gain > most && level_fits(c, axis, level))
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
	} left[AXIS_COUNT * AXIS_COUNT / 2 * LEVELS_MAX * LEVELS_MAX];
	uint64_t count = 0;
	for (int f = 0; f < AXIS_COUNT; f++) {
		c->level[f] = -1;
		for (int g = 0; g < f; g++)
			for (int i = 0; i < axis_levels((enum pair_axis)f); i++)
				for (int j = 0; j < axis_levels((enum pair_axis)g); j++)
					if (!met->pair[f][i][g][j] &&
					    pair_legal((enum pair_axis)f, i, (enum pair_axis)g, j)) {
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

int pairs_make(struct pair_case to[PAIRS_MAX])
{
	static const struct met none;
	struct met met = none;
	struct random random;
	random_begin(&random, 5, 0);
	for (int count = 0; count < PAIRS_MAX; count++) {
		int most = -1;
		for (int turn = 0; turn < TRIES; turn++) {
			struct pair_case c;
			if (!case_begin(&c, &met, random_next(&random)))
				return count;
			const int gain = case_grow(&c, &met, &random);
			if (gain > most)
				most = gain, to[count] = c;
		}
		for (int f = 0; f < AXIS_COUNT; f++)
			for (int g = 0; g < AXIS_COUNT; g++)
				met.pair[f][to[count].level[f]][g][to[count].level[g]] = true;
	}
	return PAIRS_MAX;
}

/* ---- their spelling -------------------------------------------------------------------------------------------------------- */

void pair_spec(char to[CASE_NAME_MAX], const struct pair_case *c)
{
	static const int dims[LEVELS_MAX][3] = {
		{64, 40, 128}, {72, 40, 104}, {128, 96, 192}, {256, 128, 0}}; /* same: the first */
	const int *dim = dims[c->level[AXIS_HEAD_DIM]];
	int len = snprintf(to, CASE_NAME_MAX, "{head_dim: {qk: %d, v: %d}, ", dim[0], dim[c->level[AXIS_HEAD_DIM_V]]);
	for (int f = 0; f < AXIS_COUNT; f++)
		len += snprintf(to + len, CASE_NAME_MAX - (size_t)len, "%s", pair_levels[f][c->level[f]].yaml);
	snprintf(to + len, CASE_NAME_MAX - (size_t)len, "passes: [forward, backward]}");
}

void pair_parts(char to[CASE_NAME_MAX], const struct pair_case *c, int index)
{
	static const int groups[LEVELS_MAX] = {1, 3, 4};
	const char *strides = pair_levels[AXIS_STRIDES][c->level[AXIS_STRIDES]].name;
	const bool single = !strcmp(strides, "size1"); /* one entry, one key head: their strides are senseless */
	const int entries = single ? 1 : c->level[AXIS_LAYOUT] ? 4 : 2, heads_kv = single ? 1 : 2;
	snprintf(to, CASE_NAME_MAX, "b%d,h%d/%d,q%d,k%d,%s,seed%d%s", entries, groups[c->level[AXIS_GROUP]] * heads_kv,
	         heads_kv, 70 + index * 37 % 150, 80 + index * 53 % 170, strides, index + 1,
	         c->level[AXIS_ALIGNMENT] ? ",shifted" : "");
}
