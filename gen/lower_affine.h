/* lower_affine: integer expressions that are sums of names with constant factors, and inequalities between them. */
#ifndef FAGEN_GEN_LOWER_AFFINE_H
#define FAGEN_GEN_LOWER_AFFINE_H

#include "gen/gen.h"

struct affine { int64_t coef[NAME_COUNT], constant; };

/* Which nodes of a pool, up to a root, are affine, and their forms. */
struct affine_table { bool is[EXPR_NODES_MAX]; struct affine form[EXPR_NODES_MAX]; };
void affine_find(struct affine_table *, const struct expr_pool *, int root);

/* a + scale * b; false: it does not fit 64 bits. */
bool affine_add(struct affine *, const struct affine *a, const struct affine *b, int64_t scale);
/* a * scale, and a plus a constant, the same way. */
bool affine_scale(struct affine *, int64_t scale);
bool affine_shift(struct affine *, int64_t constant);

/* Of the inequality a >= 0: coprime coefficients, the constant rounded, which the integers allow. */
void affine_reduce(struct affine *);
/* Does it hold at every cell (1), at none (0), or does that depend (-1)? For cells inside their lengths, 0 <= h < hq and
 * hk >= 1, all up to LENGTH_MAX. */
int affine_decide(const struct affine *);
/* Does it have the form of struct bound? */
bool affine_is_bound(const struct affine *);
/* Does every partial sum stay inside 64 bits, in whatever order? */
bool affine_is_safe(const struct affine *);
struct bound affine_bound(const struct affine *);

/* The expression a `op` 0, op one of LE (read: a >= 0), EQ, NE, every term on the side where it is positive. -1: the pool
 * is full. */
int affine_expr(struct expr_pool *, const struct affine *, enum expr_op);
int bound_expr(struct expr_pool *, const struct bound *);

#endif
