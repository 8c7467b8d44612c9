/* lower: what the files that make a program share. */
#ifndef FAGEN_GEN_LOWER_H
#define FAGEN_GEN_LOWER_H

#include "gen/expr.h"
#include "gen/lower_affine.h"
#include "gen/range.h"

/* ---- lower_runs.c ---- */

enum { RUNS_WORK = 2 * RUNS_MAX };
/* A union of runs: what some condition is (exact), or what it implies. No runs: it never holds. */
struct runs { int count; bool exact; struct run run[RUNS_WORK]; };

struct runs_source { const struct expr_pool *pool; struct affine_table affine; int budget; };
/* Prepares to ask for conditions of a pool up to `root`. */
void runs_begin(struct runs_source *, const struct expr_pool *, int root);
void runs_find(struct runs *, struct runs_source *, int node);
/* What both imply; false: there is no room for it, *r is untouched. */
bool runs_and(struct runs *r, const struct runs *a, const struct runs *b);
/* Bounds and runs in canonical order. */
void runs_sort(struct runs *);

/* ---- lower_mask.c ---- */

/* Fills mask, runs, residual and conjuncts of a program that is otherwise empty. `visible` false: nothing is, whatever the
 * mask says. -1: the pool is full. */
int mask_lower(struct program *, const struct expr_pool *from, int mask, bool visible, const struct input *);
/* A condition with every affine comparison in canonical form, in another pool. -1: that pool is full. */
int condition_lower(struct expr_pool *to, const struct expr_pool *from, int root);

/* ---- lower_class.c ---- */

/* program_tile_class for many tiles of one problem: what does not depend on the tile is prepared. */
enum { BLOCK_MAP_MAX = 8192 };
struct classifier {
	const struct program *program;
	const struct spec *spec;         /* NULL: there is no block layout and there are no inputs */
	int64_t sq, sk;
	struct expr_pool residual, keep; /* alone: what is walked for each tile */
	int residual_root, keep_root;    /* -1: none */
	struct interval heads;           /* of h; the caller may narrow it */
	double cost_most;                /* for visits_count: what classifying tiles of one shape may cost, in nodes of expressions */
	struct reach reach[RUNS_MAX];
	int64_t map_rows, map_columns;   /* 0: no map */
	bool map[BLOCK_MAP_MAX];         /* of kept blocks */
};
void classifier_begin(struct classifier *, const struct program *, const struct spec *, int64_t sq, int64_t sk);
/* Looks at every block of the layout of one head, if it is static and they are few: what follows is about that head. */
void classifier_map(struct classifier *, int64_t head);
enum tile_class classifier_tile(const struct classifier *, int64_t q0, int64_t q1, int64_t k0, int64_t k1);
/* The same without the runs, of cells inside the lengths. */
enum tile_class classifier_rest(const struct classifier *, int64_t q0, int64_t q1, int64_t k0, int64_t k1);

#endif
