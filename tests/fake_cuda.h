/* A libcuda.so.1 for tests: keeps the driver's rules (contexts, handles, capture, fork) strictly, remembers what was
 * called, and fails any call on request. */
#ifndef FAGEN_FAKE_CUDA_H
#define FAGEN_FAKE_CUDA_H

#include "runtime/dl.h"
#include "templates/abi.h"
#include "templates/calibrate_abi.h"
#include "templates/merge_abi.h"

enum fake_call {
#define CUDA_CALL(symbol, parameters) FAKE_##symbol,
	CUDA_CALLS(CUDA_CALL)
	CUDA_CALLS_OPTIONAL(CUDA_CALL)
#undef CUDA_CALL
	FAKE_CALLS
};

struct fake_device { char name[64]; int major, minor, sms, smem_optin; };

struct fake_launch {
	char entry[64];
	unsigned int grid, threads, smem;
	cu_stream stream;
	int device;                   /* whose context it ran in */
	unsigned char params[sizeof(struct fagen_abi)]; /* the first parameter */
	struct fagen_abi_maps maps;   /* the second, but for the merger's kernels, which have none */
	int maps_before;              /* tensor maps encoded by then */
};

struct fake_map { /* arguments of cuTensorMapEncodeTiled */
	unsigned int type;
	uint32_t rank;
	void *address;
	uint64_t size[4], stride[3];
	uint32_t box[4], step[4];
	unsigned int interleave, swizzle, l2_promotion, fill;
};

enum { FAKE_DEVICES_MAX = 4, FAKE_LOG_MAX = 1 << 16, FAKE_LAUNCHES_MAX = 64 };

struct fake_cuda {
	/* settings */
	int device_count;
	struct fake_device device[FAKE_DEVICES_MAX];
	int version;
	int init_result;
	int load_result;              /* what cuLibraryLoadData says of any code */
	size_t memory_free;           /* what cuMemGetInfo_v2 says */
	double us_of_thread;          /* that a launch takes for each thread of a CTA */
	int capturing;                /* a stream is being captured in global mode */
	int fail_at;                  /* the call of this number (from 1, counted in `calls`) fails with fail_result */
	int fail_result;
	/* what happened */
	int calls;
	unsigned char log[FAKE_LOG_MAX]; /* enum fake_call of each */
	int failed_call;              /* which call fail_at hit, -1: none yet */
	int pushes, pops;
	int libraries;                /* loaded and not unloaded */
	int retained;                 /* primary contexts retained and not released */
	int broken;                   /* calls with a handle that is not alive: must stay 0 */
	int launches, memsets, maps;
	double us;                    /* what the launches took: events record it */
	struct fake_launch launch[FAKE_LAUNCHES_MAX];
	struct fake_map map[FAKE_LAUNCHES_MAX]; /* the n-th, counted from 1, is a struct fagen_abi_map of words n */
	struct { cu_deviceptr at; size_t words; cu_stream stream; int launches_before; } memset[FAKE_LAUNCHES_MAX];
};

/* Exported by the library, found with dlsym. */
typedef struct fake_cuda *fake_cuda_state(void);
typedef int fake_cuda_depth(void);                      /* contexts on this thread's stack */
typedef unsigned int fake_cuda_mode(void);              /* capture mode of this thread */
typedef cu_context fake_cuda_context(int ordinal);      /* a context that is not primary */
typedef cu_stream fake_cuda_stream(cu_context);

#endif
