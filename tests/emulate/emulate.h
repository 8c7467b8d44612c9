/* emulate: kernels on the CPU. tests/emulate/ is a libcuda.so.1 and a libnvrtc.so.13: the second turns emitted source into C++ and has
 * g++ compile it, the first runs what comes of it, every thread of a CTA on a stack of its own and in an order of chance. fagen, its
 * runtime and its judge do not know the difference. This header is what compiled kernels (cuda.hpp) call.
 *
 * Whatever the hardware may do late or early is done at a random time that its rules allow: copies of all kinds, products of warpgroups,
 * reductions. What they forbid ends the launch with an error that says where: unfenced writes that the async proxy meets, arrivals
 * that no barrier expects, lanes of a warp in different instructions, shared memory that is still read when its CTA ends, and threads that
 * wait for what never comes. */
#ifndef FAGEN_TESTS_EMULATE_H
#define FAGEN_TESTS_EMULATE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The thread that runs, as it sees itself, and the line of the template that it is at: wrappers that may fail or wait write it. */
struct emulate_view {
	unsigned thread, threads, cta, ctas, rank; /* rank: of the CTA in its cluster */
	unsigned char *shared;
	const char *file;
	int line;
};
extern struct emulate_view *emulate_now;

/* A kernel of a compiled source: symbol emulate_NAME. */
struct emulate_kernel {
	void (*run)(void **params);
	int cluster; /* CTAs of a cluster */
};

void emulate_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* ---- shared memory. Addresses: an offset, and for another CTA of the cluster its rank + 1 above PEER_SHIFT ---- */

enum { EMULATE_PEER_SHIFT = 24 };
unsigned emulate_address(const void *);                       /* of a pointer into the CTA's own shared memory */
void *emulate_static(size_t bytes);                           /* a kernel's one static variable */
void emulate_store(unsigned to, const void *from, unsigned bytes); /* by the generic proxy, which the async one may not see yet */
void emulate_load(void *to, unsigned from, unsigned bytes);
void emulate_fence(void);                                     /* this thread's stores are seen by the async proxy */
void emulate_copy(unsigned to, const void *from, unsigned bytes, unsigned inside); /* cp.async, zeros behind those inside */
void emulate_copy_commit(void);
void emulate_copy_wait(int pending);

/* ---- barriers ---- */

void emulate_mbarrier_init(unsigned at, unsigned arrivals);
void emulate_mbarrier_arrive(unsigned at, unsigned bytes);    /* and expect so many bytes */
void emulate_mbarrier_wait(unsigned at, unsigned parity);
enum emulate_barrier { EMULATE_SYNC, EMULATE_ARRIVE };
int emulate_barrier(int id, int threads, enum emulate_barrier, int yes); /* whether any of them says yes */
void emulate_cluster_arrive(void);
void emulate_cluster_wait(void);

void emulate_word_wait(const unsigned *at, unsigned bits, unsigned value); /* of global memory, until those bits of it are that */

/* ---- instructions of a whole warp: returns what each lane gave ---- */

enum emulate_warp { EMULATE_SYNCWARP, EMULATE_SHUFFLE, EMULATE_VOTE, EMULATE_REDUCE, EMULATE_MATRIX, EMULATE_MMA };
const uint64_t *emulate_warp(enum emulate_warp, unsigned mask, uint64_t value);
void emulate_mma(float *d, const unsigned *a, const unsigned *b, int bf16);

/* ---- bulk copies. map: a tensor map of this driver; at: column, row, head, batch ---- */

void emulate_box_load(unsigned to, const void *map, unsigned barrier, const int at[4], unsigned ctas /* mask; 0: this one */);
void emulate_box_store(const void *map, unsigned from, const int at[4]);
void emulate_bulk_load(unsigned to, const void *from, unsigned bytes, unsigned barrier);
void emulate_bulk_send(unsigned to, unsigned from, unsigned bytes, unsigned barrier); /* to another CTA of the cluster */
void emulate_bulk_store(void *to, unsigned from, unsigned bytes, int add /* float32 */);
void emulate_bulk_commit(void);
void emulate_bulk_wait(int pending, int read);                /* all groups but the newest; read: their sources have been read */

/* ---- products of a warpgroup ---- */

enum emulate_form { EMULATE_SS, EMULATE_MS, EMULATE_SM, EMULATE_MM, EMULATE_RS }; /* as gen/emit_wgmma.c */
struct emulate_product {
	enum emulate_form form;
	int n, accumulate, bf16;
	uint64_t left, right; /* descriptors */
};
void emulate_wgmma(const struct emulate_product *, float *d, const unsigned *a /* RS: 4 words */);
void emulate_wgmma_fence(void);
void emulate_wgmma_commit(void);
void emulate_wgmma_wait(int pending);

#ifdef __cplusplus
}
#endif
#endif
