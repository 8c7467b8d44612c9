/* pairs: cases in which every value of every axis of a spec and its launch meets every value of every other axis. Pure: the
 * suite runs them, and tests/t_pairs.c proves without a GPU that no pair is missing. */
#ifndef FAGEN_TESTS_GPU_PAIRS_H
#define FAGEN_TESTS_GPU_PAIRS_H

#include "check/case.h"

enum { AXES_MAX = 16, LEVELS_MAX = 10, PAIRS_MAX = 96 };

struct pair_level {
	const char *name; /* NULL: the axis has no more */
	const char *yaml; /* what it says in the spec */
};
struct pair_axis {
	const char *name;
	struct pair_level level[LEVELS_MAX];
};

/* Values that cannot meet. */
struct pair_excluded {
	int axis;
	const char *level;
	int other;
	const char *other_level, *reason;
};

struct pair_case { int level[AXES_MAX]; };

struct pair_table {
	int axes;
	const struct pair_axis *axis;
	int excluded_count;
	const struct pair_excluded *excluded;
	void (*spec)(char to[CASE_NAME_MAX], const struct pair_case *);
	/* Shapes, layout and seed; `index` is the case's place in the list. */
	void (*parts)(char to[CASE_NAME_MAX], const struct pair_case *, int index);
};

int axis_levels(const struct pair_table *, int axis);
const char *level_name(const struct pair_table *, const struct pair_case *, int axis);
bool pair_legal(const struct pair_table *, int axis, int level, int other, int other_level);
/* Cases in which every legal pair meets, always the same ones; how many there are, PAIRS_MAX at most. */
int pairs_make(struct pair_case to[PAIRS_MAX], const struct pair_table *);

/* ---- pairs_all.c: both passes by whatever kernel the planner takes ---- */

enum all_axis {
	AXIS_DTYPE,
	AXIS_HEAD_DIM,      /* of queries and keys */
	AXIS_HEAD_DIM_V,    /* of values: the same, smaller, larger */
	AXIS_MASK,
	AXIS_SCORE,
	AXIS_SINK,
	AXIS_DROPOUT,
	AXIS_GROUP,         /* query heads of a key head, compiled in or taken at launch */
	AXIS_LAYOUT,        /* of the batch */
	AXIS_SPARSITY,      /* block layouts */
	AXIS_DETERMINISTIC,
	AXIS_STRIDES,
	AXIS_ALIGNMENT,
	AXIS_COUNT
};
extern const struct pair_table pairs_all;

/* ---- pairs_native.c: forward by the native template of sm_90a, whose tile each spec asks for ---- */

enum native_axis {
	NATIVE_DTYPE,
	NATIVE_HEAD_DIM,
	NATIVE_HEAD_DIM_V,
	NATIVE_MASK,
	NATIVE_SCORE,
	NATIVE_SINK,
	NATIVE_DROPOUT,
	NATIVE_GROUP,
	NATIVE_LAYOUT,
	NATIVE_SPARSITY,
	NATIVE_WARPGROUPS,  /* that compute */
	NATIVE_STAGES,
	NATIVE_QUERIES,     /* against the rows of a tile */
	NATIVE_KEYS,        /* against its keys */
	NATIVE_DATA,
	NATIVE_STRIDES,
	NATIVE_COUNT
};
extern const struct pair_table pairs_native;

#endif
