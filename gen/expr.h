/* expr: what the files that work on expressions share beyond gen.h. */
#ifndef FAGEN_GEN_EXPR_H
#define FAGEN_GEN_EXPR_H

#include "gen/gen.h"

enum { EXPR_OP_COUNT = EXPR_SELECT + 1 };
enum expr_form { FORM_ATOM, FORM_PREFIX, FORM_INFIX, FORM_CALL, FORM_SELECT };

struct expr_op_row {
	const char *spelling;
	int args;
	int precedence;     /* C's order; larger binds tighter */
	enum expr_form form;
	bool commutative;
};
extern const struct expr_op_row expr_ops[EXPR_OP_COUNT];

/* Division and remainder toward minus infinity; b > 0. */
int64_t floor_div(int64_t a, int64_t b);
int64_t floor_mod(int64_t a, int64_t b);

/* Is the node this int or bool constant? */
bool expr_is_const(const struct expr_pool *, int node, int64_t value);
/* The same expression in another pool, without nodes that it does not use; -1 when that pool is full. Into an empty
 * pool equal expressions give equal pools. */
int expr_copy(struct expr_pool *to, const struct expr_pool *from, int root);

/* All values from lo to hi, both included. */
struct interval { int64_t lo, hi; };
/* Values that an int or bool expression can take while every name stays in its interval. Where an operation may leave
 * 64 bits its result is everything, and *overflow becomes true. */
struct interval expr_interval(const struct expr_pool *, int root, const struct interval name[NAME_COUNT], bool *overflow);

#endif
