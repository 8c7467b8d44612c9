/* ptx: the instructions that templates/sm90 uses, each against plain arithmetic. */
#ifndef FAGEN_TESTS_GPU_PTX_H
#define FAGEN_TESTS_GPU_PTX_H

#include "gen/gen.h"

struct ptx_shape {
	enum dtype dtype;
	int keys, dim_qk, dim_v; /* S 64 x keys, O 64 x dim_v */
	bool pair;               /* products of sm90/bwd_pair: 64 keys and 64 rows; tests/gpu/pair.cu and not ptx.cu */
};
extern const struct ptx_shape ptx_shapes[];
extern const int ptx_shape_count;

/* The source of a shape's kernels: wrappers as the emitter writes them, templates, tests/gpu/ptx.cu. */
int ptx_source(struct text *, const struct ptx_shape *, struct diag *);

#endif
