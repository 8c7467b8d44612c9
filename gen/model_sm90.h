/* model_sm90: what the models of the sm90 templates share. */
#ifndef FAGEN_GEN_MODEL_SM90_H
#define FAGEN_GEN_MODEL_SM90_H

#include "gen/model.h"

enum { PANEL = 64 };  /* columns of a swizzled shared row of 128 bytes */
enum { LOADERS = 3 }; /* warps of a warpgroup that stage inputs beside those that compute */
enum { SECTIONS_BYTES = 4 * 4 }; /* of a struct Sections, which a persistent CTA keeps */

static inline int panels(int head_dim) { return (head_dim + PANEL - 1) / PANEL; }
/* Of a shared row. */
static inline int row_bytes(int head_dim) { return panels(head_dim) * 2 * PANEL; }
static inline int steps(int columns) { return (columns + 15) / 16; } /* of products, 16 columns each */

/* wgmma with operands in shared memory, dense 16-bit: FLOP per clock of an SM. */
static const double wgmma_flop_clk = 4096;

/* Are sums of dQ begun by whoever has some first, as a word for each says (TURN_FRESH in templates/delta.cu)? */
static inline bool has_turns(const struct candidate *c) { return c->sums == DQUERY_CLAIMED || c->sums == DQUERY_ORDERED; }

/* Bytes of a struct Note: a visit and so many words, aligned as the visit is. */
int note_bytes(const struct program *, const struct candidate *, int words);

/* order_wanted, of these kernels: not where classes of tiles alone rule lengths. Their tail is short, and what it takes to measure and sort the items is more.
 * Against none on an H200, d 128, 2x8k: causal documents 0.95 forward and backward, a layout that keeps a quarter 0.96. */
bool native_order_wanted(const struct candidate *, const struct spec *, const struct program *);

/* The queue of the candidate's persistent CTAs, if it has one. */
void recipe_queue_add(struct recipe *, const struct candidate *);

/* Bytes that come from memory again because more heads are worked on together than L2 keeps: `heads` key/value heads, of each of which tiles
 * owned by CTAs share `head_bytes`. */
double section_again_bytes(const struct candidate *, const struct device *, enum pass, double heads, double head_bytes, double tiles);

/* For `legal` of the backward: of gradients of inputs there are those of the sink. */
bool sink_grad_only(char reason[REASON_MAX], const struct spec *, const struct program *);
/* For `shape` of the backward: cost_us of a visited tile. `moved`: bytes of shared memory that operands, dS and what arrives read and write. */
void native_backward_cost(struct candidate *, const struct spec *, const struct program *, const struct device *, double moved);
/* Bytes of what the backward notes of its visits, the loading warp keeps of its item, and the walk takes; `parts`: an item is a part of a tile. */
int native_backward_notes(const struct candidate *, const struct spec *, const struct program *, bool parts);
/* For `recipe` of the backward: the grid of fagen_backward, and rows of K and V that one load brings. */
void native_backward_recipe(struct recipe *, const struct spec *, const struct program *, const struct candidate *, enum recipe_grid,
                            int load_keys);

/* ---- model_sm90_query.c: the kernel that computes dQ when `deterministic` is asked for and sums in order are not to be had ---- */

/* For `recipe`. */
void native_query_add(struct recipe *, const struct candidate *, const struct spec *, const struct program *, const struct target *);
/* For `shape`: adds what a visited tile costs there to cost_us, and what its CTAs cost beside to item_clocks, which have those of fagen_backward. */
void native_query_cost(struct candidate *, const struct spec *);

#endif
