/* grad: gradients of inputs: which elements a backward pass sums, where, and in how much shared memory. What
 * templates/sm80/input_grad.cu is told. */
#ifndef FAGEN_GEN_GRAD_H
#define FAGEN_GEN_GRAD_H

#include "gen/gen.h"

/* How the elements of an input lie to tiles. */
enum grad_kind {
	GRAD_NONE,
	GRAD_TABLE, /* a table of a head: `entries` elements, of the constant dimensions */
	GRAD_ROW,   /* `entries` for each query row */
	GRAD_COL,   /* one for each key */
	GRAD_CELL   /* one for each cell */
};
/* Over which cells of a tile an access reads one entry. */
enum grad_spread { SPREAD_HEAD, SPREAD_DIAG, SPREAD_CELL };

struct grad_slot {
	int input;           /* of the spec */
	enum grad_kind kind;
	int entries;
	int base;            /* tables: its first float of GRAD_TABLE_FLOATS; rows: of GRAD_ROW_FLOATS; keys: of GRAD_COLS */
};
struct grad_access { int access, slot; enum grad_spread spread; };
struct grad_plan {
	int slots, accesses;
	struct grad_slot slot[SPEC_INPUTS_MAX];
	struct grad_access access[ACCESSES_MAX]; /* those of the program that have a gradient, in its order */
	int table_floats, row_floats, cols;
	int sink;                                /* slot of the sink; -1 */
	bool cell_spread, diag_spread;           /* some table or row access is spread so */
};
void grad_plan_make(struct grad_plan *, const struct program *, const struct spec *);

/* Can the gradient of an access be written? Else says why not: a phrase that follows "because". */
bool grad_supported(const struct program *, const struct spec *, int access, const char **why);

/* model_sm80_grad.c: shared memory of fagen_input_grad and fagen_input_grad_cols, and floats of partial sums of a query tile
 * and of a key tile. */
struct grad_sizes { int smem, smem_cols, partial, partial_cols; };
struct grad_sizes grad_sizes_of(const struct grad_plan *, const struct spec *, const struct program *,
                                const struct candidate *);
/* For `shape`: what a visit of fagen_input_grad costs beside its products. */
void grad_visit_add(struct candidate *, const struct spec *, const struct program *);

#endif
