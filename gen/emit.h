/* emit: what the files that write the source share.
 *
 * An expression is written in one of several places, and means something else to each: in a cell it is what remains when
 * everything that depends on the row or on the column alone has moved to RowState and ColState; in those it is such a
 * part; elsewhere it reads its inputs straight from memory. */
#ifndef FAGEN_GEN_EMIT_H
#define FAGEN_GEN_EMIT_H

#include "gen/expr.h"

/* ---- emit_helper.c: functions that the text calls, written when something calls them ---- */

enum helper {
	HELPER_INPUT_COPY, HELPER_INPUT_ROWS, HELPER_FP16, HELPER_BF16, HELPER_FLOOR, HELPER_EXP, HELPER_LOG, HELPER_TANH, HELPER_SQRT,
	HELPER_SIGMOID, HELPER_FLOAT_DIV,
	HELPER_INT_ABS, HELPER_INT_SELECT, HELPER_INT_DIV, HELPER_INT_MOD, HELPER_INDEX_CLAMP, HELPER_WIDE_MIN, HELPER_WIDE_MAX,
	HELPER_WIDE_ABS, HELPER_WIDE_DIV, HELPER_WIDE_MOD, HELPER_SATURATE, HELPER_RANDOM,
	HELPER_POINT, HELPER_NEAR, HELPER_INTERVAL, HELPER_BOUNDS, HELPER_NEG, HELPER_ABS, HELPER_NOT, HELPER_ADD,
	HELPER_SUB, HELPER_MUL, HELPER_DIV, HELPER_MOD, HELPER_MIN, HELPER_MAX,
	HELPER_LT, HELPER_LE, HELPER_EQ, HELPER_NE, HELPER_AND, HELPER_OR, HELPER_SELECT, HELPER_INTERVAL_RANDOM,
	HELPER_COUNT
};
void helpers_print(struct text *, const bool used[HELPER_COUNT]);

/* ---- emit_expr.c: what is known of expressions ---- */

enum { NOT_LINEAR = INT32_MIN };
enum { DEPENDS_ROW = 1, DEPENDS_COL = 2, DEPENDS_S = 4 };

/* A node as it stands, or an int node wanted as a float: the two may be kept apart. */
struct value { int node; bool floated; };

struct emit {
	const struct spec *spec;
	const struct program *program;
	const struct expr_pool *pool;
	bool helper[HELPER_COUNT];                  /* called somewhere */
	int access[EXPR_NODES_MAX];                 /* of an EXPR_INPUT node: its row of program->access; -1: none */
	int number[EXPR_NODES_MAX];                 /* of an EXPR_INPUT node, in names; -1: not used */
	unsigned char depends[EXPR_NODES_MAX];
	struct expr_range range[EXPR_NODES_MAX];
	int coef[EXPR_NODES_MAX];                   /* the node is that times k and a part without k; or NOT_LINEAR */
	int field[2][EXPR_NODES_MAX];               /* [floated]: number of its field of RowState or ColState; -1 */
};

enum emit_place {
	IN_CELL,   /* has s, row, col, in */
	IN_ROW,    /* p, in, b, h, q, k_lane: what is wanted of k is its value at k_lane */
	IN_COL,    /* p, in, b, h, k_lane, offset, k */
	IN_PLAIN,  /* p, b, h, q, k */
	IN_BLOCKS  /* p, b, h, block_q, block_k: q and k count blocks */
};

/* Expressions of one function: what they share is computed once, as a local constant. */
struct scope {
	struct emit *e;
	enum emit_place place;
	int uses[2][EXPR_NODES_MAX], local[2][EXPR_NODES_MAX], locals;
	bool name[NAME_COUNT];                      /* printed somewhere */
};

void emit_begin(struct emit *, const struct spec *, const struct program *);
/* Called before a helper's name is printed. */
const char *emit_helper(struct emit *, enum helper, const char *name);
const char *emit_type(const struct emit *, struct value); /* "int", "long long", "float", "bool" */

bool op_is_compare(enum expr_op);
bool interval_fits_int(struct interval);
bool node_is_wide(const struct emit *, int node);         /* an int that may need 64 bits */
/* How the difference right - left of a comparison of ints grows with k; NOT_LINEAR: it cannot be kept. */
int difference_coef(const struct emit *, int node);

void scope_begin(struct scope *, struct emit *, enum emit_place);
/* The values that one is printed from; none of a leaf, which stands for itself. Returns how many. */
int scope_values(struct value of[EXPR_ARGS_MAX], const struct scope *, struct value);
bool scope_is_leaf(const struct scope *, struct value);
void scope_use(struct scope *, struct value root);        /* announces what will be printed */

/* Where an expression of a cell is kept. */
enum hoist {
	HOIST_NONE,
	HOIST_ROW,        /* field of RowState */
	HOIST_COL,        /* of ColState */
	HOIST_LANE,       /* of RowState, its value at k_lane; coef * offset is added */
	HOIST_DIFFERENCE  /* a comparison of ints: RowState has right minus left at k_lane */
};
enum hoist value_hoist(const struct emit *, struct value);
/* Gives fields to all that the cells of these roots need. */
void fields_find(struct emit *, const int *root, int roots);

/* ---- emit_print.c: their text ---- */

void scope_locals(struct text *, struct scope *); /* statements, after the last announcement */
void scope_print(struct text *, struct scope *, struct value); /* an expression that may stand as an argument */
void scope_print_factor(struct text *, struct scope *, struct value); /* one that may be multiplied */
/* Constants for the names that the scope has printed: a function's first lines, known last. */
void scope_names(struct text *, const struct scope *);
/* Fields of RowState or ColState, and the code that fills them. */
void fields_print(struct text *structure, struct text *code, struct emit *, bool rows);

/* The constant that multiplies the whole of a float node: node = factor * rest, rest the node that remains. */
double factor_split(int *rest, const struct expr_pool *, int node);
void float_print(struct text *, double value); /* the shortest decimal that reads back as the same float */

/* ---- emit_range.c ---- */

struct summand { int64_t factor; const char *name; bool wide; }; /* wide: already 64 bits */
/* "q0 - 2LL * sq + 7LL", computed in 64 bits from left to right. */
void sum_print(struct text *, const struct summand *, int count, int64_t constant);
void ranges_print(struct text *, struct emit *);

/* ---- emit_inputs.c: named inputs ---- */

void accesses_print(struct text *, struct emit *);  /* address_N, element_N */
void staging_print(struct text *, struct emit *);   /* HeadInputs .., their loaders, Inputs */
void bounds_print(struct text *, struct emit *);    /* bounds_row, bounds_col */
bool staging_has(const struct program *, enum access_place, enum access_place); /* anything at these places? */
bool staging_has_cells(const struct emit *, int pad); /* cells whose rows are so much wider than a tile? */
/* The element that an EXPR_INPUT node reads, wherever the place has it. */
void element_print(struct text *, struct scope *, int node);
/* Which dimensions' indexes that prints: those of a table that is kept whole; a bit for each. */
unsigned element_dims(const struct scope *, int node);

/* Pieces that emit_grad.c needs too: a dimension's size in the tensor, and an index brought inside it. */
void dim_size_print(struct text *, const struct spec *, const struct input *, int dim);
void index_print(struct text *, struct scope *, int node, int dim);

/* ---- emit_grad.c ---- */

void grads_print(struct text *, struct emit *);     /* where gradients of inputs go; nothing when there are none */

/* ---- emit_class.c: classes of tiles, block layouts ---- */

void class_print(struct text *, struct emit *);
void blocks_print(struct text *, struct emit *);

/* ---- emit_wgmma.c: the warpgroup products that the plan's template calls ---- */

void wgmma_print(struct text *, const struct spec *, const struct plan *);

/* ---- emit_short.c: a score that costs multiply-adds only ---- */

void short_print(struct text *, const struct spec *, const struct program *); /* score_short */

/* ---- emit_lift.c: what positions alone add to a score ---- */

void lift_print(struct text *, const struct spec *, const struct program *); /* score_turn */

/* ---- emit_program.c ---- */

/* LOGIT_SCALE times the emitted score is the logit in base 2. */
double program_logit_scale(const struct spec *, const struct program *);

#endif
