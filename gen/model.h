/* model: what the planner must know of a template. One row of template_table per skeleton; the planner searches,
 * the row answers for one candidate. Adding a schedule adds a file model_<target>.c and a row, no branch. */
#ifndef FAGEN_GEN_MODEL_H
#define FAGEN_GEN_MODEL_H

#include "gen/gen.h"

struct template_model {
	const char *templ;  /* file under templates/ without suffix, "sm80/fwd" */
	enum pass pass;
	bool naive;         /* never searched: the comparator */
	int cc_min;         /* runs on targets of at least this compute capability */
	int cc_max;         /* and at most this one; 0: no end. Of the rows that fit, the highest cc_min serves. */
	/* Writes at most `max` tiles to try for this spec; returns how many. */
	int (*tiles)(struct tile_request *, int max, const struct spec *, const struct target *);
	/* Is this tile one the skeleton can be compiled with? Else appends the rule it breaks to `reason`. */
	bool (*legal)(char reason[REASON_MAX], const struct tile_request *, const struct spec *);
	/* Given tile_m, tile_n, warps, stages: fills smem terms and smem_bytes exactly as the skeleton's struct Smem
	 * lays them out, the registers per thread, and in cost_us the cost of ONE visited tile in clocks of one SM by
	 * resource (COST_HBM, COST_L2 and the test of every cell of a partial tile are left to the planner). */
	void (*shape)(struct candidate *, const struct spec *, const struct target *, const struct device *);
	/* Kernels, grids and workspace. The kernel with the most shared memory is the one `shape` speaks of. load_bytes
	 * and kv_group are set by the planner. */
	void (*recipe)(struct recipe *, const struct spec *, const struct candidate *, const struct target *);
};

extern const struct template_model model_sm80_fwd, model_sm80_bwd, model_naive_fwd, model_naive_bwd;
extern const struct template_model *const template_table[];
extern const int template_count;

/* The row that serves a pass on a target; NULL: none. */
const struct template_model *template_find(enum pass, const struct target *, bool naive);
/* plan_make and plan_naive with a given row. */
int MUST_USE plan_with(struct plan *, const struct template_model *, const struct spec *, const struct program *,
                       const struct target *, const struct device *, const struct problem *, enum pass, struct diag *);

/* For `shape`: one named part of struct Smem, added to smem_bytes. */
void smem_term_add(struct candidate *, const char *name, int bytes);

/* plan_cost.c: the tiles of one head that a kernel visits. */
struct visits {
	int tile_m, tile_n;
	double tiles;   /* visited */
	double partial; /* those of them that need tests */
	double cells;   /* cells of the problem inside visited tiles */
	double most;    /* tiles of the busiest CTA */
};
/* Fills the counts for tile_m and tile_n. */
void visits_count(struct visits *, const struct program *, const struct problem *, enum pass);
/* Fills everything of an admissible candidate that depends on the problem. `recipe` is the candidate's. */
void candidate_cost(struct candidate *, const struct spec *, const struct visits *, const struct plan *,
                    const struct recipe *);
void candidate_cost_naive(struct candidate *, const struct spec *, const struct plan *, const struct recipe *);
/* Resident CTAs per SM; 0 and a reason when not even one fits. */
int candidate_occupancy(struct candidate *, const struct target *);
double standard_bytes(const struct spec *, const struct problem *, enum pass);
double visible_cells(const struct program *, const struct problem *); /* of all heads and batches */

#endif
