/* dl: the part of libcuda.so.1 that fagen uses, as types and a table of pointers filled by dlsym. No CUDA header is
 * needed to build; tests/t_runtime.c compares everything here with the toolkit's cuda.h where there is one. */
#ifndef FAGEN_DL_H
#define FAGEN_DL_H

#include <stddef.h>
#include <stdint.h>

/* The driver's enums have no negative value, so their type is unsigned int. */
typedef unsigned int cu_result;
typedef int cu_device;
typedef unsigned long long cu_deviceptr;
typedef struct CUctx_st *cu_context;
typedef struct CUstream_st *cu_stream;
typedef struct CUfunc_st *cu_function;
typedef struct CUkern_st *cu_kernel;
typedef struct CUlib_st *cu_library;
typedef struct CUevent_st *cu_event;
typedef struct CUtensorMap_st cu_tensor_map; /* 128 bytes, at a multiple of 64 */

enum {
	CU_OK = 0,
	CU_NOT_INITIALIZED = 3,
	CU_DEINITIALIZED = 4,
	CU_STUB_LIBRARY = 34,
	CU_NO_DEVICE = 100,
	CU_INVALID_DEVICE = 101,
	CU_INVALID_IMAGE = 200,
	CU_NO_BINARY_FOR_GPU = 209,
	CU_INVALID_PTX = 218,
	CU_UNSUPPORTED_PTX_VERSION = 222,
	CU_INVALID_SOURCE = 300,
	CU_CAPTURE_UNSUPPORTED = 900,  /* the calls a capture forbids: 900 to 908 */
	CU_CAPTURE_WRONG_THREAD = 908
};

enum {
	CU_ATTRIBUTE_CLOCK_KHZ = 13,
	CU_ATTRIBUTE_SM_COUNT = 16,
	CU_ATTRIBUTE_L2_BYTES = 38,
	CU_ATTRIBUTE_CC_MAJOR = 75,
	CU_ATTRIBUTE_CC_MINOR = 76,
	CU_ATTRIBUTE_SMEM_OPTIN = 97
};

enum { CU_KERNEL_MAX_DYNAMIC_SMEM = 8 };
enum { CU_CAPTURE_RELAXED = 2 };
enum {
	CU_TENSOR_UINT16 = 1,
	CU_TENSOR_INTERLEAVE_NONE = 0,
	CU_TENSOR_SWIZZLE_128B = 3,
	CU_TENSOR_L2_256B = 3,
	CU_TENSOR_FILL_ZEROS = 0
};

/* Streams that are names and not objects: they belong to whatever context is current. */
#define CU_STREAM_IS_NAME(s) ((size_t)(s) <= 2)

/* call(symbol, parameters): symbols carry the version suffix that cuda.h gives them. */
#define CUDA_CALLS(call) \
	call(cuInit, (unsigned int flags)) \
	call(cuDriverGetVersion, (int *version)) \
	call(cuGetErrorName, (cu_result, const char **)) \
	call(cuGetErrorString, (cu_result, const char **)) \
	call(cuDeviceGetCount, (int *)) \
	call(cuDeviceGet, (cu_device *, int ordinal)) \
	call(cuDeviceGetName, (char *, int len, cu_device)) \
	call(cuDeviceGetAttribute, (int *, unsigned int attribute, cu_device)) \
	call(cuDeviceTotalMem_v2, (size_t *, cu_device)) \
	call(cuDevicePrimaryCtxRetain, (cu_context *, cu_device)) \
	call(cuDevicePrimaryCtxRelease_v2, (cu_device)) \
	call(cuCtxPushCurrent_v2, (cu_context)) \
	call(cuCtxPopCurrent_v2, (cu_context *)) \
	call(cuCtxGetCurrent, (cu_context *)) \
	call(cuCtxGetDevice, (cu_device *)) \
	call(cuStreamGetCtx, (cu_stream, cu_context *)) \
	call(cuThreadExchangeStreamCaptureMode, (unsigned int *mode)) \
	call(cuLibraryLoadData, (cu_library *, const void *code, unsigned int *jit_options, void **jit_values, \
	                         unsigned int jit_count, unsigned int *options, void **values, unsigned int count)) \
	call(cuLibraryUnload, (cu_library)) \
	call(cuLibraryGetKernel, (cu_kernel *, cu_library, const char *name)) \
	call(cuKernelSetAttribute, (unsigned int attribute, int value, cu_kernel, cu_device)) \
	call(cuKernelGetFunction, (cu_function *, cu_kernel)) \
	call(cuMemsetD32Async, (cu_deviceptr, unsigned int value, size_t words, cu_stream)) \
	call(cuLaunchKernel, (cu_function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, \
	                      unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int smem, \
	                      cu_stream, void **params, void **extra))

/* Not needed to get and launch kernels; NULL where the driver lacks them. cuFuncLoad is of CUDA 12.4;
 * cuTensorMapEncodeTiled, of CUDA 12.0, is for kernels that take tensor maps; the others are for who prepares data and
 * measures: check/, cli/, tests/. */
#define CUDA_CALLS_OPTIONAL(call) \
	call(cuFuncLoad, (cu_function)) \
	call(cuTensorMapEncodeTiled, (cu_tensor_map *, unsigned int type, uint32_t rank, void *address, \
	                              const uint64_t *size, const uint64_t *stride_bytes, const uint32_t *box, \
	                              const uint32_t *element_stride, unsigned int interleave, unsigned int swizzle, \
	                              unsigned int l2_promotion, unsigned int fill)) \
	call(cuCtxSynchronize, (void)) \
	call(cuMemAlloc_v2, (cu_deviceptr *, size_t)) \
	call(cuMemFree_v2, (cu_deviceptr)) \
	call(cuMemGetInfo_v2, (size_t *free, size_t *total)) \
	call(cuMemcpyHtoD_v2, (cu_deviceptr, const void *, size_t)) \
	call(cuMemcpyDtoH_v2, (void *, cu_deviceptr, size_t)) \
	call(cuMemsetD8_v2, (cu_deviceptr, unsigned char, size_t)) \
	call(cuMemsetD8Async, (cu_deviceptr, unsigned char, size_t, cu_stream)) \
	call(cuStreamCreate, (cu_stream *, unsigned int flags)) \
	call(cuStreamDestroy_v2, (cu_stream)) \
	call(cuStreamSynchronize, (cu_stream)) \
	call(cuEventCreate, (cu_event *, unsigned int flags)) \
	call(cuEventDestroy_v2, (cu_event)) \
	call(cuEventRecord, (cu_event, cu_stream)) \
	call(cuEventSynchronize, (cu_event)) \
	call(cuEventElapsedTime, (float *ms, cu_event begin, cu_event end))

struct cuda_calls {
#define CUDA_CALL(symbol, parameters) cu_result (*symbol) parameters;
	CUDA_CALLS(CUDA_CALL)
	CUDA_CALLS_OPTIONAL(CUDA_CALL)
#undef CUDA_CALL
};

#endif
