/* model: what the planner must know of a template. One row of template_table per skeleton; the planner searches,
 * the row answers for one candidate. Adding a schedule adds a file model_<target>.c and a row, no branch. */
#ifndef FAGEN_GEN_MODEL_H
#define FAGEN_GEN_MODEL_H

#include "gen/gen.h"

struct template_model {
	const char *templ;  /* file under templates/ without suffix, "sm80/fwd" */
	enum pass pass;
	bool naive;         /* never searched: the comparator */
	const char *main;   /* entry of the kernel that `shape` speaks of */
	int cc_min;         /* runs on targets of at least this compute capability */
	int cc_max;         /* and at most this one; 0: no end */
	int align_min;      /* rows must be aligned to as many bytes; 0: any */
	int splits_most;    /* parts that the visits of a tile may be cut into; 0: they are not */
	/* Query heads that may share a tile; 1, and why no more may. NULL: a tile has one. */
	int (*heads_most)(char reason[REASON_MAX], const struct spec *, const struct program *);
	/* Writes at most `max` tiles to try for this spec; returns how many. */
	int (*tiles)(struct tile_request *, int max, const struct spec *, const struct program *, const struct target *);
	/* Is this tile one the skeleton can be compiled with? Else appends the rule it breaks to `reason`. */
	bool (*legal)(char reason[REASON_MAX], const struct tile_request *, const struct spec *, const struct program *);
	/* Given tile_m, tile_n, warps, stages, splits, heads, may_cut: fills smem terms and smem_bytes exactly as the skeleton's struct Smem and
	 * the staged inputs behind it are laid out, the registers per thread, and in cost_us the cost of ONE visited tile
	 * in clocks of one SM by resource (COST_HBM, COST_L2 and the test of every cell of a partial tile are left to the
	 * planner). */
	void (*shape)(struct candidate *, const struct spec *, const struct program *, const struct target *,
	              const struct device *);
	/* Kernels, grids and workspace. load_bytes and kv_group are set by the planner. */
	void (*recipe)(struct recipe *, const struct spec *, const struct program *, const struct candidate *,
	               const struct target *);
};

extern const struct template_model model_sm90_fwd, model_sm90_bwd, model_sm90_bwd_pair, model_sm80_fwd, model_sm80_bwd,
	model_naive_fwd, model_naive_bwd;
extern const struct template_model *const template_table[];
extern const int template_count;

/* Rows that serve a pass on a target, native ones first: at most TEMPLATES_MAX. */
enum { TEMPLATES_MAX = OTHERS_MAX + 1 };
int templates_find(const struct template_model *row[TEMPLATES_MAX], enum pass, const struct target *, bool naive);
/* plan_make and plan_naive with a given row. */
int MUST_USE plan_with(struct plan *, const struct template_model *, const struct spec *, const struct program *,
                       const struct target *, const struct device *, const struct problem *, enum pass, struct diag *);

/* ---- plan_heads.c ---- */

/* Rows of a position in a tile that so many query heads share: a power of two, the last ones to spare. */
int heads_slots(int heads);
/* May as many heads as the candidate has share a tile? Else why not. */
bool heads_fit(struct candidate *, const struct template_model *, const struct spec *, const struct program *);
/* The candidate that serves; -1: none is admissible. */
int candidate_choose(const struct plan *);

/* ---- model_parts.c: what the rows share ---- */

/* For `shape`: one named part of struct Smem, added to smem_bytes. */
void smem_term_add(struct candidate *, const char *name, int bytes);
/* Staged inputs: so many buffers of each kind. */
void smem_inputs_add(struct candidate *, const struct program *, const struct spec *, int heads, int rows, int cols,
                     int cells);
/* Bytes of templates/walk.h: of struct WalkShared, and of `count` structs Visit. */
int walk_bytes(const struct spec *, const struct program *, int warps);
int visit_bytes(const struct program *, const struct candidate *, int count);
/* BLOCKS_SPLIT of templates/contract.h: does a tile touch several blocks of the mask, which a visit then notes bits of? */
bool blocks_split(const struct program *, const struct candidate *);
/* Of templates/sequence.h: struct HeadKey. */
int head_key_bytes(const struct spec *);
/* For `legal`: does a tile touch no more blocks of the layout than it has bits for? */
bool blocks_fit(char reason[REASON_MAX], const struct tile_request *, const struct program *);
/* Does a forward take key tiles of n: products of 16, and with dropout bits in groups of 64? */
bool forward_keys_fit(char reason[REASON_MAX], const struct tile_request *, const struct spec *);
/* For `recipe`: kernels that come before the main ones, and their workspace. */
void recipe_blocks_add(struct recipe *, const struct program *);
void recipe_bounds_add(struct recipe *, const struct program *, const struct candidate *);
/* May one reference do for the logits of a row? Not where the spec wants maxima, nor where a score may grow along it without end: by positions, unless it is known
 * how much they lift it and that no hidden key's lift is counted (templates/lift.h). fp16 has too few exponents for references that are not
 * maxima. */
bool one_reference_does(const struct spec *, const struct program *);
/* Do all query rows see the same keys by the runs of the mask (forward), all keys the same rows (backward)? */
bool runs_alike(const struct program *, enum pass);
/* Does the mask leave some item about all tiles that there are, for its runs have one end at least that does not move with the item? */
bool runs_long(const struct program *, enum pass);
/* Do all items of a pass visit as many tiles? */
bool items_alike(const struct spec *, const struct program *, enum pass);
/* For `shape`, when splits and sums are known: do data rule how long items are, and may they begin in any order? */
bool order_wanted(const struct candidate *, const struct spec *, const struct program *);
/* For `recipe`: the kernel that sorts the items, before the main one; and its workspace, behind the queue, with which it is cleared. */
void recipe_order_add(struct recipe *, const struct candidate *, enum pass);
void recipe_order_piece_add(struct recipe *, const struct candidate *, enum pass);
void recipe_kernel_add(struct recipe *, const char *entry, enum recipe_grid, int tile, int threads, int smem_bytes);
void recipe_piece_add(struct recipe *, const char *name, enum recipe_size, int tile, int unit);
/* The kernel `entry`, which is there already, cuts its last tiles; `join`, of `parts` CTAs a tile, joins their parts, of `unit` words of workspace each. */
void recipe_tail_add(struct recipe *, const char *entry, const struct recipe_tail *, const char *join, int parts, int threads, int unit);
void recipe_map_add(struct recipe *, const char *name, int rows); /* of one head */

/* Clocks in which `warps` warps stage a visit's inputs of cells and diagonals: they do little but wait for addresses. */
double staging_clocks(const struct candidate *, const struct spec *, const struct program *, int warps);

/* What the expressions of one cell cost: lane operations, ex2 results, and bytes of shared memory. */
struct cell_cost { double alu, exp, smem; };
struct cell_cost score_cost(const struct program *, enum pass); /* beside a score that is s itself */
struct cell_cost residual_cost(const struct program *);
/* Adds them for all cells of a tile, in clocks. */
void score_cost_add(struct candidate *, const struct program *, const struct device *, enum pass);

/* ---- plan_visits.c: the tiles of one head that a kernel visits ---- */

struct walk { /* one head: a CTA for each outer tile, past which the inner ones stream */
	int64_t outer_len, inner_len;
	int outer_tile, inner_tile;
	bool keys_inside; /* forward: keys are the inner side */
};
struct walk walk_make(int tile_m, int tile_n, const struct problem *, enum pass);

struct visits {
	int tile_m, tile_n;
	double tiles;   /* visited */
	double partial; /* those of them that need tests */
	double cells;   /* cells of the problem inside visited tiles */
	double most;    /* tiles of the busiest CTA */
	double last;    /* of the one that begins last in each head */
};
/* Fills the counts for tile_m and tile_n: exact where the runs say all, else from a sample of tiles. What depends on inputs
 * counts as visible. */
struct classifier;
void visits_count(struct visits *, struct classifier *, const struct problem *, enum pass);
double visible_cells(struct classifier *, const struct problem *); /* of all heads and batches */

/* ---- plan_cost.c ---- */

/* For `shape`: overlap, visit_clocks and item_clocks as the portable kernels have them. */
void candidate_clocks(struct candidate *, enum pass);
/* Fills everything of an admissible candidate that depends on the problem. `recipe` is the candidate's. */
void candidate_cost(struct candidate *, const struct template_model *, const struct spec *, const struct program *,
                    const struct visits *, const struct plan *, const struct recipe *);
/* What a call launches: kernels, and clearings, one for pieces that lie side by side. */
int launches_count(const struct recipe *, const struct problem *, const struct device *);
void candidate_cost_naive(struct candidate *, const struct spec *, const struct plan *, const struct recipe *);
/* Resident CTAs per SM; 0 and a reason when not even one fits. */
int candidate_occupancy(struct candidate *, const struct target *);
double standard_bytes(const struct spec *, const struct problem *, enum pass);

#endif
