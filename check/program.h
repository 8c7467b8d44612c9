/* program: what masks, scores and block layouts mean, one cell at a time. Between program_parse.c, which reads the
 * expressions, program.c, which evaluates them, and the two files that sum over cells. */
#ifndef FAGEN_CHECK_PROGRAM_H
#define FAGEN_CHECK_PROGRAM_H

#include "check/check.h"

/* ---- the parsed form ------------------------------------------------------------------------------------------------- */

enum ref_type { REF_BOOL, REF_INT, REF_FLOAT };

enum ref_op {
	REF_NUMBER, REF_NAME, REF_INPUT, REF_S,
	REF_NEG, REF_ABS, REF_NOT, REF_ADD, REF_SUB, REF_MUL, REF_DIV, REF_MOD, REF_MIN, REF_MAX,
	REF_LT, REF_LE, REF_EQ, REF_NE, REF_AND, REF_OR, REF_SELECT, REF_TO_FLOAT, REF_FLOOR,
	REF_EXP, REF_LOG, REF_TANH, REF_SQRT, REF_SIGMOID, REF_RANDOM,
	REF_PRESET             /* i: enum ref_preset; its parameters in arg, -1: unbounded; arg[3]: the score it changes */
};

enum ref_preset {
	REF_CAUSAL, REF_CAUSAL_TOP_LEFT, REF_WINDOW, REF_PREFIX, REF_DOCUMENT, REF_PADDING, REF_DILATED,
	REF_SOFTCAP, REF_ALIBI, REF_BIAS, REF_T5, REF_T5_CAUSAL,
	REF_LOCAL, REF_GLOBAL, REF_STRIDED, REF_RANDOM_BLOCKS, REF_PRESET_COUNT
};

enum ref_name { REF_B, REF_H, REF_Q, REF_K, REF_SQ, REF_SK, REF_HQ, REF_HK, REF_NAME_COUNT };

struct ref_node {
	enum ref_op op;
	enum ref_type type;
	int arg[4];            /* nodes before this one */
	int input;             /* REF_INPUT, and presets that read one: number in the spec */
	int64_t i;
	double f;
};

enum { REF_NODES_MAX = 1024, PROGRAM_READS_MAX = 64 };

/* Nodes [begin, end) in the order of evaluation, the last one the result. Empty: there is none. */
struct ref_part { int begin, end; };

enum ref_blocks { REF_BLOCKS_NONE, REF_BLOCKS_KEEP, REF_BLOCKS_ROWS, REF_BLOCKS_BITMAP, REF_BLOCKS_LISTS };

struct ref_program {
	int count;
	struct ref_node node[REF_NODES_MAX];
	struct ref_part mask, score, keep;
	enum ref_blocks blocks;
	int block_q, block_k, block_input[2]; /* bitmap; or counts and indexes */
	int rows, columns;
	unsigned char *row;    /* of rows x columns blocks: kept? */
	int sink;              /* input; -1: none */
};

/* ---- one cell ---------------------------------------------------------------------------------------------------------- */

/* A cell of the case; b, h, q, k count inside the case, also when its heads are some of a larger problem. */
struct ref_cell { int64_t b, h, q, k; };
/* Positions of a batch entry. */
int64_t ref_used_q(const struct ref_case *, int64_t b);
int64_t ref_used_k(const struct ref_case *, int64_t b);
/* The first cell of a row of Q, numbered over batch and heads; the row of K and V that a query head's key stands in. */
struct ref_cell ref_row_cell(const struct ref_case *, int64_t row);
int64_t ref_key_row(const struct ref_case *, int64_t b, int64_t h, int64_t k);

/* d logit / d element of an input, for one place of the expression that reads it. */
struct ref_read { int input; int64_t index; double slope; };

struct ref_slopes {
	double s;              /* d logit / d s */
	double largest;        /* |x * d logit / d x| over every number x on the way */
	int reads;             /* of inputs with a gradient */
	struct ref_read read[PROGRAM_READS_MAX];
};

/* The natural logit of a cell whose scaled dot product is s. `single`: every step is rounded to float32. */
double ref_logit(const struct ref_case *, const struct ref_cell *, double s, bool single);
/* The same, and its slopes. */
double ref_logit_slopes(struct ref_slopes *, const struct ref_case *, const struct ref_cell *, double s, bool single);
/* The logit that joins the softmax of the cell's row; -INFINITY: none. *read gets where it stands. */
double ref_sink(struct ref_read *read, const struct ref_case *, const struct ref_cell *);

#endif
