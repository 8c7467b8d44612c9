/* model_sm80_query: the kernel that computes dQ when `deterministic` is asked for, templates/sm80/bwd_query.cu. */
#ifndef FAGEN_GEN_MODEL_SM80_QUERY_H
#define FAGEN_GEN_MODEL_SM80_QUERY_H

#include "gen/model.h"

struct query_kernel {
	int smem_bytes;
	int regs;                       /* estimated registers per thread */
	double mma_flop, smem_traffic;  /* of one visited tile; its cells cost what they cost in the main kernel */
};

/* For the main kernel's tile and warps. Two buffers of K and V where that costs no resident CTA. */
struct query_kernel query_kernel_make(const struct candidate *, const struct spec *, const struct program *,
                                      const struct target *);

#endif
