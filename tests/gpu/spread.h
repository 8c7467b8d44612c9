/* spread: a small dense tensor on the device copied out over a huge one, and compared with it there, element by element:
 * what the CPU could not hold or read in time. */
#ifndef FAGEN_TESTS_GPU_SPREAD_H
#define FAGEN_TESTS_GPU_SPREAD_H

#include "check/gpu.h"
#include "runtime/dl.h"

/* A tensor [batch][heads][seq][dim] with strides. Entry b and row s hold what entry b % period_batch, row s % period_seq of
 * the small one do, which is dense [period_batch][heads][period_seq][dim]. */
struct spread {
	int64_t batch, heads, seq, dim;
	int bytes; /* of an element: 2 (bf16) or 4 (float32) */
	int64_t period_batch, period_seq;
	int64_t stride_batch, stride_head, stride_seq;
	int64_t elements; /* of the buffer, gaps included */
};

struct spread_difference {
	uint64_t different,
		first;    /* elements that are not what the small tensor says, and the first of them, counted densely */
	uint64_t written; /* elements of the whole buffer, gaps included, that are not poison */
};

struct spreader {
	fagen_runtime *rt;
	int device;
	cu_library library;
	cu_kernel scatter, compare, count;
	struct gpu_buffer result;
};

extern const char spread_source[];
int spreader_open(struct spreader *, fagen_runtime *, int device, struct diag *);
void spreader_close(struct spreader *);
int spread_scatter(const struct gpu_buffer *wide, const struct gpu_buffer *small, const struct spread *,
                   struct spreader *, struct diag *);
/* tolerance 0: the same bits; else bf16 values at most that far apart, relative to the larger. */
int spread_compare(struct spread_difference *, const struct gpu_buffer *wide, const struct gpu_buffer *small,
                   const struct spread *, float tolerance, struct spreader *, struct diag *);

#endif
