/* expr: what the files that work on expressions share beyond gen.h. */
#ifndef FAGEN_GEN_EXPR_H
#define FAGEN_GEN_EXPR_H

#include "gen/gen.h"

enum { EXPR_OP_COUNT = EXPR_RANDOM + 1 };
enum expr_form { FORM_ATOM, FORM_INDEX, FORM_PREFIX, FORM_INFIX, FORM_CALL, FORM_SELECT };

struct expr_op_row {
	const char *spelling;
	int args;           /* of EXPR_INPUT 0: expr_args counts them */
	int precedence;     /* C's order; larger binds tighter */
	enum expr_form form;
	bool commutative;
};
extern const struct expr_op_row expr_ops[EXPR_OP_COUNT];

/* ---- expr.c: nodes ---- */

extern const char *const expr_type_words[]; /* "a condition", "a whole number", "a real number" */

/* Arguments of a node, the indexes of an input's element included. What is behind them is -1. */
int expr_args(const struct expr_node *);
/* Is the node this int or bool constant? This float constant? */
bool expr_is_const(const struct expr_pool *, int node, int64_t value);
bool expr_is_float(const struct expr_pool *, int node, double value);
/* Is the node this built-in name? Is it h / (hq / hk), the key/value head? */
bool expr_is_name(const struct expr_pool *, int node, enum expr_name);
bool expr_is_head_kv(const struct expr_pool *, int node);
/* Marks the nodes that root is made of, itself included; used[] has EXPR_NODES_MAX entries, those marked before stay. */
void expr_used(bool *used, const struct expr_pool *, int root);
/* Nodes of the expression written out as a tree, shared ones as often as they stand there. Saturates at INT64_MAX. */
int64_t expr_tree_size(const struct expr_pool *, int root);
/* The same expression in another pool, without nodes that it does not use; -1 when that pool is full. Into an empty
 * pool equal expressions give equal pools. */
int expr_copy(struct expr_pool *to, const struct expr_pool *from, int root);
/* The same expression with every use of node `from` replaced by node `to` of the same type, folded anew. -1: the pool is
 * full, or a divisor is no longer known to be positive. */
int expr_substitute(struct expr_pool *, int root, int from, int to);

/* ---- expr_eval.c: exact values ---- */

/* Division and remainder toward minus infinity; b > 0. */
int64_t floor_div(int64_t a, int64_t b);
int64_t floor_mod(int64_t a, int64_t b);
/* The hash `random`: 0..65535. The low 32 bits of each argument count. */
int64_t expr_random(int64_t seed, int64_t x, int64_t y);
/* floor(x) in 32 bits: what lies outside becomes the nearest, what is no number 0. */
int64_t expr_floor(double x);
/* One operation on values. false: an exact int does not fit 64 bits, *r is what wraps around. Atoms give 0. */
bool expr_apply(struct expr_value *r, const struct expr_pool *, const struct expr_node *, const struct expr_value *arg);

/* ---- expr_interval.c ---- */

/* All values from lo to hi, both included. */
struct interval { int64_t lo, hi; };
/* The same of floats, infinities included; nan: it may be no number. The rounding of float32 arithmetic, and of a result
 * of few ulp, is inside. */
struct float_interval { double lo, hi; bool nan; };
struct expr_range { struct interval i; struct float_interval f; }; /* by the node's type; a bool is 0..1 in i */

/* What every name can be: positions from 0, lengths and head counts from 1, up to LENGTH_MAX. */
extern const struct interval expr_everywhere[NAME_COUNT];

/* Values of each node that root uses, in range[node], while every name stays in its interval (taken from
 * expr_everywhere or narrower). input_node[node]: values of the element that this EXPR_INPUT node reads; NULL: whatever
 * the dtype of its row of `input` holds; that NULL too: 32 bits. Comparisons of floats are undecided, but for what their
 * sides' ranges decide where no side may be NaN. false: some int may leave 64 bits; its range is everything then. */
bool expr_ranges(struct expr_range *range, const struct expr_pool *, int root, const struct interval name[NAME_COUNT],
                 const struct input *input, const struct interval *input_node);
/* The int or bool root alone; *overflow becomes true where expr_ranges gives false, and is left alone otherwise. */
struct interval expr_interval(const struct expr_pool *, int root, const struct interval name[NAME_COUNT],
                              const struct input *input, const struct interval *input_node, bool *overflow);
/* The same of a pool that expr_copy filled with this expression alone; everything where some int may leave 64 bits. */
struct interval expr_interval_all(const struct expr_pool *, int root, const struct interval name[NAME_COUNT], const struct input *input);
/* The float root alone; unknown: from -INFINITY to INFINITY. */
struct float_interval expr_float_interval(const struct expr_pool *, int root, const struct interval name[NAME_COUNT],
                                          const struct input *input, const struct interval *input_node);

/* ---- expr_print.c ---- */

/* How deep the parser goes in the text of root, in the levels that EXPR_DEPTH_MAX counts. */
int expr_print_depth(const struct expr_pool *, int root);

/* ---- expr_parse.c ---- */

/* Parts of a parsed expression written out, presets and `s` included; and of what expr_print writes out, derivatives and
 * whole programs among it: the text of a larger one is "...". */
enum { EXPR_TREE_MAX = 8192, EXPR_PRINT_MAX = 1 << 16 };

double expr_read_float(const char *text); /* of digits with a point or an exponent, as in the C locale */

/* The operation that a function's name stands for; -1: none. */
int expr_function(const char *word, size_t len);
/* What the language itself means by a name: "a built-in name", "a function", "a preset", "a word of the language"; NULL:
 * nothing, so that an input may have it (that of a preset may have the preset's). */
const char *expr_reserved(const char *name);

/* The definition of a preset over `count` argument nodes in its parameter order; -1 or missing: its fallback. Reads the
 * preset's input and `s` by the scope, whose bindings do not reach inside. Returns its root, or -1 with messages at `at`. */
int expr_preset(struct expr_pool *, int preset, const int *arg, int count, const struct expr_scope *, struct place at,
                struct diag *);

#endif
