/* tune: which tile is the fastest, measured. */
#ifndef FAGEN_CLI_TUNE_H
#define FAGEN_CLI_TUNE_H

#include "cli/bench.h"

enum { TUNE_ROUNDS_MAX = 99, TUNE_TILES_MAX = (OTHERS_MAX + 1) * CANDIDATES_MAX };

/* ---- tune_shapes.c ---- */

/* The problems of a list like "b4,s4096 b1,h32/8,q1,k8192": bN batch, hN or hN/M heads of queries and of keys, sN lengths, qN and
 * kN one of them; what is left out is as the spec assumes. Appends to `to`, of which *count are used. */
enum { SHAPES_MAX = 64 };
int MUST_USE shapes_parse(struct problem_flags to[SHAPES_MAX], int *count, const char *text, struct diag *);

/* ---- tune_tiles.c: the tiles that are worth a measurement, compiled ---- */

struct tune_tile {
	struct tile_choice choice;
	struct text yaml;
	fagen_spec *spec;
	fagen_kernel *kernel;  /* NULL: given up */
	fagen_error error;
	enum { UNJUDGED, RIGHT, WRONG } verdict;
	double us[TUNE_ROUNDS_MAX];
	int rounds;
};

struct tune_job { /* one pass of one problem */
	const char *path;
	enum pass pass;
	int count, planner;    /* tiles, and which of them is the planner's */
	struct tune_tile tile[TUNE_TILES_MAX];
};

/* Of b->spec and b->problem. Every template's tiles, but those predicted to be far slower than the choice. */
int MUST_USE tiles_collect(struct tune_job *, const struct bench *, const struct target *, const struct device *, struct diag *);
/* Compiles and loads them, in as many workers as there are CPUs. One that cannot be is given up, with a warning. -1: the planner's
 * cannot. */
int MUST_USE tiles_compile(struct tune_job *, struct bench *, struct diag *, int *status);
void tiles_free(struct tune_job *);
/* Runs a tile and compares with the reference, once. -1: nothing can be judged here. */
int MUST_USE tile_judge(struct tune_tile *, const struct bench *, struct diag *, int *status);

/* ---- tune_rounds.c: pure ---- */

/* One round more for all tiles that are still timed. The fastest by the median of its rounds: the planner's, if that one is less
 * than a hundredth slower. -1: there is none left. */
int tiles_fastest(const struct tune_job *);
/* Whether another round of this tile is worth its time. */
bool tile_alive(const struct tune_job *, int tile);
void tuned_make(struct tuned *, const struct tune_job *, int fastest);

/* ---- wisdom_file.c ---- */

/* Merges with what the file has by then and writes it aside, so that a file is whole whoever is killed, and of many who save at
 * once nobody's lines are lost. */
int MUST_USE wisdom_save(const char *path, struct wisdom *, struct diag *);
/* As wisdom_load; a file that does not exist has no lines. */
int MUST_USE wisdom_open(struct wisdom *, const char *path, struct diag *);

#endif
