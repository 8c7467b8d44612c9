/* driver: a libcuda.so.1 whose one GPU is the CPU. Device memory is host memory; a launch has run when it returns. FAGEN_EMULATE_SEED is
 * the order of chance, FAGEN_EMULATE_SMS how many CTAs run together (3 if not said), and
 * FAGEN_EMULATE_STRICT=1 stops at products of unfenced writes, which else are NaN. What went wrong in a kernel is what
 * cuGetErrorString says of the error that the next cuCtxSynchronize returns, and all after it. */
#include "runtime/dl.h"
#include "tests/emulate/engine.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, NOT_FOUND = 500, LAUNCH_FAILED = 719, STACK_DEPTH = 16, ALIGN = 256 };

struct CUctx_st { int unused; };
struct CUlib_st {
	void *handle;
	int fd; /* open as long as the library is loaded, which dlopen knows by its number */
};
struct CUkern_st {
	const struct emulate_kernel *kernel;
	char name[64];
};

static struct CUctx_st context;
static _Thread_local cu_context stack[STACK_DEPTH];
static _Thread_local int depth;
static uint64_t launches;
static const char *broken; /* NULL: all is well */

#define CUDA_CALL(symbol, parameters) cu_result symbol parameters;
CUDA_CALLS(CUDA_CALL)
CUDA_CALLS_OPTIONAL(CUDA_CALL)
#undef CUDA_CALL

static uint64_t variable(const char *name, uint64_t fallback)
{
	const char *text = getenv(name);
	return text && *text ? strtoull(text, NULL, 10) : fallback;
}

/* ---- what there is ---- */

cu_result cuInit(unsigned int flags) { return CU_OK; }

cu_result cuDriverGetVersion(int *version)
{
	*version = 13000;
	return CU_OK;
}

cu_result cuGetErrorName(cu_result result, const char **name)
{
	*name = result == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : "an error of tests/emulate";
	return CU_OK;
}

cu_result cuGetErrorString(cu_result result, const char **words)
{
	*words = result == LAUNCH_FAILED && broken ? broken : "tests/emulate has not got this";
	return CU_OK;
}

cu_result cuDeviceGetCount(int *count)
{
	*count = 1;
	return CU_OK;
}

cu_result cuDeviceGet(cu_device *device, int ordinal)
{
	*device = ordinal;
	return ordinal ? CU_INVALID_DEVICE : CU_OK;
}

cu_result cuDeviceGetName(char *name, int len, cu_device device)
{
	snprintf(name, (size_t)len, "NVIDIA H200");
	return CU_OK;
}

cu_result cuDeviceGetAttribute(int *value, unsigned int attribute, cu_device device)
{
	switch (attribute) {
	case CU_ATTRIBUTE_CC_MAJOR: *value = 9; break;
	case CU_ATTRIBUTE_CC_MINOR: *value = 0; break;
	case CU_ATTRIBUTE_SM_COUNT: *value = (int)variable("FAGEN_EMULATE_SMS", 3); break;
	case CU_ATTRIBUTE_SMEM_OPTIN: *value = SHARED_MAX; break;
	case CU_ATTRIBUTE_CLOCK_KHZ: *value = 1980000; break;
	case CU_ATTRIBUTE_L2_BYTES: *value = 50 << 20; break;
	default: return INVALID_VALUE;
	}
	return CU_OK;
}

cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device)
{
	*bytes = (size_t)8 << 30;
	return CU_OK;
}

cu_result cuMemGetInfo_v2(size_t *available, size_t *total)
{
	*available = *total = (size_t)8 << 30;
	return CU_OK;
}

/* ---- contexts and streams: one, and all alike ---- */

cu_result cuDevicePrimaryCtxRetain(cu_context *to, cu_device device)
{
	*to = &context;
	return CU_OK;
}

cu_result cuDevicePrimaryCtxRelease_v2(cu_device device) { return CU_OK; }

cu_result cuCtxPushCurrent_v2(cu_context c)
{
	if (depth == STACK_DEPTH)
		return INVALID_CONTEXT;
	stack[depth++] = c;
	return CU_OK;
}

cu_result cuCtxPopCurrent_v2(cu_context *to)
{
	if (!depth)
		return INVALID_CONTEXT;
	*to = stack[--depth];
	return CU_OK;
}

cu_result cuCtxGetCurrent(cu_context *to)
{
	*to = depth ? stack[depth - 1] : NULL;
	return CU_OK;
}

cu_result cuCtxGetDevice(cu_device *device)
{
	*device = 0;
	return depth ? CU_OK : INVALID_CONTEXT;
}

cu_result cuStreamGetCtx(cu_stream stream, cu_context *to)
{
	*to = &context;
	return CU_OK;
}

cu_result cuThreadExchangeStreamCaptureMode(unsigned int *mode) { return CU_OK; }
cu_result cuStreamCreate(cu_stream *stream, unsigned int flags)
{
	*stream = (cu_stream)(void *)&context;
	return CU_OK;
}
cu_result cuStreamDestroy_v2(cu_stream stream) { return CU_OK; }
cu_result cuStreamSynchronize(cu_stream stream) { return cuCtxSynchronize(); }
cu_result cuCtxSynchronize(void) { return broken ? LAUNCH_FAILED : CU_OK; }

cu_result cuEventCreate(cu_event *event, unsigned int flags)
{
	*event = (cu_event)(void *)&context;
	return CU_OK;
}
cu_result cuEventDestroy_v2(cu_event event) { return CU_OK; }
cu_result cuEventRecord(cu_event event, cu_stream stream) { return CU_OK; }
cu_result cuEventSynchronize(cu_event event) { return cuCtxSynchronize(); }
cu_result cuEventElapsedTime(float *ms, cu_event begin, cu_event end)
{
	*ms = 1;
	return CU_OK;
}

/* ---- memory ---- */

cu_result cuMemAlloc_v2(cu_deviceptr *at, size_t bytes)
{
	void *p = aligned_alloc(ALIGN, (bytes + ALIGN) / ALIGN * ALIGN);
	*at = (cu_deviceptr)(uintptr_t)p;
	return p ? CU_OK : OUT_OF_MEMORY;
}

cu_result cuMemFree_v2(cu_deviceptr at)
{
	free((void *)(uintptr_t)at);
	return CU_OK;
}

cu_result cuMemcpyHtoD_v2(cu_deviceptr to, const void *from, size_t bytes)
{
	memcpy((void *)(uintptr_t)to, from, bytes);
	return CU_OK;
}

cu_result cuMemcpyDtoH_v2(void *to, cu_deviceptr from, size_t bytes)
{
	memcpy(to, (const void *)(uintptr_t)from, bytes);
	return CU_OK;
}

cu_result cuMemsetD8_v2(cu_deviceptr at, unsigned char value, size_t bytes)
{
	memset((void *)(uintptr_t)at, value, bytes);
	return CU_OK;
}

cu_result cuMemsetD8Async(cu_deviceptr at, unsigned char value, size_t bytes, cu_stream stream) { return cuMemsetD8_v2(at, value, bytes); }

cu_result cuMemsetD32Async(cu_deviceptr at, unsigned int value, size_t words, cu_stream stream)
{
	for (size_t i = 0; i < words; i++)
		((unsigned int *)(uintptr_t)at)[i] = value;
	return CU_OK;
}

/* ---- code: what nvrtc.c has made is a shared library ---- */

cu_result cuLibraryLoadData(cu_library *library, const void *code, unsigned int *jit_options, void **jit_values, unsigned int jit_count,
                            unsigned int *options, void **values, unsigned int count)
{
	const ElfW(Ehdr) *elf = code;
	char path[40];
	if (memcmp(elf->e_ident, ELFMAG, SELFMAG))
		return CU_INVALID_IMAGE;
	const size_t bytes = elf->e_shoff + (size_t)elf->e_shnum * elf->e_shentsize; /* sections come last */
	const int fd = memfd_create("fagen-emulate", MFD_CLOEXEC);
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	void *handle = fd >= 0 && write(fd, code, bytes) == (ssize_t)bytes ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
	*library = handle ? malloc(sizeof **library) : NULL;
	if (!*library) {
		if (fd >= 0)
			close(fd);
		return CU_INVALID_IMAGE;
	}
	**library = (struct CUlib_st){handle, fd};
	return CU_OK;
}

cu_result cuLibraryUnload(cu_library library)
{
	dlclose(library->handle);
	close(library->fd);
	free(library);
	return CU_OK;
}

cu_result cuLibraryGetKernel(cu_kernel *to, cu_library library, const char *name)
{
	char symbol[80];
	snprintf(symbol, sizeof symbol, "emulate_%s", name);
	const struct emulate_kernel *found = dlsym(library->handle, symbol);
	cu_kernel kernel = found ? calloc(1, sizeof *kernel) : NULL; /* lives as long as the process */
	if (!kernel)
		return NOT_FOUND;
	kernel->kernel = found;
	snprintf(kernel->name, sizeof kernel->name, "%s", name);
	*to = kernel;
	return CU_OK;
}

cu_result cuKernelSetAttribute(unsigned int attribute, int value, cu_kernel kernel, cu_device device)
{
	return attribute == CU_KERNEL_MAX_DYNAMIC_SMEM && value <= SHARED_MAX ? CU_OK : INVALID_VALUE;
}

cu_result cuKernelGetFunction(cu_function *function, cu_kernel kernel)
{
	*function = (cu_function)(void *)kernel;
	return CU_OK;
}

cu_result cuFuncLoad(cu_function function) { return CU_OK; }

cu_result cuLaunchKernel(cu_function function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                         unsigned int block_y, unsigned int block_z, unsigned int smem, cu_stream stream, void **params, void **extra)
{
	const struct CUkern_st *kernel = (const struct CUkern_st *)(const void *)function;
	if (!grid_x || grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || extra)
		return INVALID_VALUE;
	const uint64_t seed = variable("FAGEN_EMULATE_SEED", 1);
	if (!broken)
		broken = grid_run(&(struct launch){.name = kernel->name,
		                                   .kernel = kernel->kernel,
		                                   .grid = grid_x,
		                                   .threads = block_x,
		                                   .shared_bytes = smem,
		                                   .params = params,
		                                   .seed = seed,
		                                   .number = launches++,
		                                   .sms = (unsigned)variable("FAGEN_EMULATE_SMS", 3),
		                                   .strict = variable("FAGEN_EMULATE_STRICT", 0) != 0});
	return CU_OK;
}

/* Of what the runtime encodes: 16-bit elements, boxes of 64 columns and some rows, those of one or of two dimensions, 128-byte swizzle, zeros
 * outside. */
cu_result cuTensorMapEncodeTiled(cu_tensor_map *to, unsigned int type, uint32_t rank, void *address, const uint64_t *size,
                                 const uint64_t *stride_bytes, const uint32_t *box, const uint32_t *element_stride, unsigned int interleave,
                                 unsigned int swizzle, unsigned int l2_promotion, unsigned int fill)
{
	struct map map = {.magic = MAP_MAGIC, .address = (uint64_t)(uintptr_t)address};
	if (type != CU_TENSOR_UINT16 || rank != 4 || map.address % 16 || box[0] != 64 || !box[1] || !box[2] || box[1] * box[2] > 256 || box[3] != 1 ||
	    interleave != CU_TENSOR_INTERLEAVE_NONE || swizzle != CU_TENSOR_SWIZZLE_128B || fill != CU_TENSOR_FILL_ZEROS)
		return INVALID_VALUE;
	memcpy(map.size, size, sizeof map.size);
	memcpy(map.stride, stride_bytes, sizeof map.stride);
	memcpy(map.box, box, sizeof map.box);
	memcpy((void *)to, &map, sizeof map);
	return CU_OK;
}
