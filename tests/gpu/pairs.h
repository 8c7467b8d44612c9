/* pairs: cases in which every value of every axis of a spec and its launch meets every value of every other axis. Pure: the
 * suite runs them, and tests/t_pairs.c proves without a GPU that no pair is missing. */
#ifndef FAGEN_TESTS_GPU_PAIRS_H
#define FAGEN_TESTS_GPU_PAIRS_H

#include "check/case.h"

enum pair_axis {
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

enum { LEVELS_MAX = 8, PAIRS_MAX = 80 };

struct pair_level {
	const char *name; /* NULL: the axis has no more */
	const char *yaml; /* what it says in the spec */
};
extern const char *const axis_names[AXIS_COUNT];
extern const struct pair_level pair_levels[AXIS_COUNT][LEVELS_MAX];

/* Values that cannot meet. */
struct pair_excluded {
	enum pair_axis axis;
	const char *level;
	enum pair_axis other;
	const char *other_level, *reason;
};
extern const struct pair_excluded pairs_excluded[];
extern const int pairs_excluded_count;

struct pair_case { int level[AXIS_COUNT]; };

int axis_levels(enum pair_axis);
bool pair_legal(enum pair_axis, int level, enum pair_axis other, int other_level);
/* Cases in which every legal pair meets, always the same ones; how many there are, PAIRS_MAX at most. */
int pairs_make(struct pair_case to[PAIRS_MAX]);
void pair_spec(char to[CASE_NAME_MAX], const struct pair_case *);
/* Shapes, layout and seed; `index` is the case's place in the list. */
void pair_parts(char to[CASE_NAME_MAX], const struct pair_case *, int index);

#endif
