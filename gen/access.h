/* access: the elements of inputs that a program reads: where they are kept, and what is known of their indexes. */
#ifndef FAGEN_GEN_ACCESS_H
#define FAGEN_GEN_ACCESS_H

#include "gen/gen.h"

/* Fills the accesses, bounds slots and gradients of a program whose roots are in place. */
int MUST_USE accesses_find(struct program *, const struct spec *, struct diag *);

/* Which of the names a node's value depends on, through indexes of inputs too. */
void node_names(bool used[NAME_COUNT], const struct expr_pool *, int node);
/* Is index number `dim` of an EXPR_INPUT node inside its dimension for every shape, at cells inside the lengths? */
bool access_proven(const struct expr_pool *, int node, int dim, const struct input *);
/* Elements of AT_TABLE: of the dimensions whose index depends on q or k. */
int64_t access_table_size(const struct program *, const struct access *, const struct input *);

/* An AT_CELL element is staged as the input has it, rows of a tile so many elements wider than it: then they are whole 16 bytes, and lanes that
 * hold an accumulator read pairs of 8 rows at once without conflicts of banks. */
extern const int input_bytes[INPUT_DTYPE_COUNT];
enum { ACCESS_CELL_PADS = 2 };
extern const int access_cell_pads[ACCESS_CELL_PADS]; /* all that there are */
int access_cell_pad(const struct input *);
/* Is the element at (q, k) of an AT_CELL node a matrix's, whose rows and columns are the dimensions *dim_q and *dim_k? */
bool access_matrix(int *dim_q, int *dim_k, const struct expr_pool *, int node, const struct input *);

#endif
