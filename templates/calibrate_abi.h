/* What the microbenchmarks of templates/calibrate.cu and the command that times them agree on: compiled as C by cli/ and
 * as CUDA by NVRTC. */
#ifndef FAGEN_CALIBRATE_ABI_H
#define FAGEN_CALIBRATE_ABI_H

enum { CALIBRATE_THREADS = 512 };        /* of every CTA */
/* What one round of a thread, or of its warp, is. */
enum {
	CALIBRATE_PRODUCTS = 8,          /* of a warp: independent mma.sync m16n8k16 */
	CALIBRATE_PRODUCT_FLOP = 4096,
	CALIBRATE_LANE_OPS = 8,          /* of a thread: independent ex2, or multiply-adds */
	CALIBRATE_READS = 8,             /* of a warp: ldmatrix.x4 of 512 bytes; of a thread: loads of 16 bytes */
	CALIBRATE_SHARED = CALIBRATE_THREADS / 32 * CALIBRATE_READS * 512 /* bytes of shared memory that are read */
};

struct fagen_calibrate_time { long long clocks, ns; }; /* of one CTA */

struct fagen_calibrate {
	unsigned long long times;        /* struct fagen_calibrate_time for each CTA */
	unsigned long long sink;         /* a float for each thread of each CTA: results, so that nothing is left out */
	unsigned long long from, to;     /* memory to read, to copy to */
	unsigned int chunks;             /* of 16 bytes of it */
	int rounds;
};

#ifdef __cplusplus
static_assert(sizeof(struct fagen_calibrate) == 40, "host and device disagree on struct fagen_calibrate");
#else
_Static_assert(sizeof(struct fagen_calibrate) == 40, "host and device disagree on struct fagen_calibrate");
#endif

#endif
