/* named: the tensors that a spec's mask and score read, made up for one case. */
#ifndef FAGEN_CHECK_NAMED_H
#define FAGEN_CHECK_NAMED_H

#include "check/case.h"

/* Elements in a buffer, placed by strides. */
struct placed {
	int64_t offset, elements;  /* of the first element; of the buffer, gaps included */
	int64_t stride[INPUT_DIMS_MAX];
};

struct named {
	const struct input *input;
	int64_t size[INPUT_DIMS_MAX];
	int64_t elements;          /* all sizes multiplied */
	double *values;            /* dense, as the type holds them */
	struct placed at, grad_at;
	int bytes;                 /* of an element */
	unsigned char *image;      /* of the buffer */
};

/* Values, layout and image of every input of a spec, to be freed also after failure. Values depend on dtype, dimensions and
 * seed: floats are normal, u8 is 0 or 1, ints along a sequence are segment numbers in order (even seeds) or random (odd
 * seeds), other ints are lengths; a block layout has some empty and some full rows. -1: out of memory. */
int named_make(struct named to[SPEC_INPUTS_MAX], const struct check_case *, const struct spec *);
void named_free(struct named[SPEC_INPUTS_MAX]);
/* Where the element of a dense index stands. */
int64_t placed_index(const struct placed *, const struct named *, int64_t dense);

#endif
