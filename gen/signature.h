/* signature: what a launch knows of the spec that a kernel was made from: what its operands look like. With the recipe it
 * is all that launching needs of gen/. A flat value; its text form is a line, and one more for each named input. */
#ifndef FAGEN_GEN_SIGNATURE_H
#define FAGEN_GEN_SIGNATURE_H

#include "gen/gen.h"

struct signature {
	enum dtype dtype;
	enum batch_layout layout;
	int head_dim_qk, head_dim_v;
	unsigned outputs;              /* set of enum output */
	int keep_256;                  /* DROPOUT_LEVELS: no dropout */
	int block_q, block_k;          /* positions of a block; 0: the spec has no block layout */
	int input_count;
	struct input input[SPEC_INPUTS_MAX]; /* in the order of the launch ABI */
};

void signature_make(struct signature *, const struct spec *);
void signature_print(struct text *, const struct signature *);
int MUST_USE signature_parse(struct signature *, const char *text, struct diag *);
int signature_input(const struct signature *, const char *name); /* -1: none */

#endif
