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
	/* Writes at most `max` tiles to try for this spec; returns how many. */
	int (*tiles)(struct tile_request *, int max, const struct spec *, const struct target *);
	/* Is this tile one the skeleton can be compiled with? Else appends the rule it breaks to `reason`. */
	bool (*legal)(char reason[REASON_MAX], const struct tile_request *, const struct spec *);
	/* Given tile_m, tile_n, warps, stages: fills smem terms and smem_bytes exactly as the skeleton's struct Smem lays
	 * them out, the registers per thread, and in cost_us the cost of ONE visited tile in clocks of one SM by resource
	 * (COST_HBM and COST_L2 are left to the planner). */
	void (*shape)(struct candidate *, const struct spec *, const struct target *, const struct device *);
	/* Kernels, grids and workspace. */
	void (*recipe)(struct recipe *, const struct spec *, const struct candidate *, const struct target *);
};

extern const struct template_model template_table[];
extern const int template_count;

#endif
