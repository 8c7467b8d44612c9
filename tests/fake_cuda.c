#include "tests/fake_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef FAKE_OLD /* a driver of before the library interface */

cu_result cuInit(unsigned int flags);
cu_result cuDriverGetVersion(int *version);
cu_result cuInit(unsigned int flags) { return CU_OK; }
cu_result cuDriverGetVersion(int *version)
{
	*version = 11040;
	return CU_OK;
}

#else

enum {
	INVALID_VALUE = 1,
	INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400,
	NOT_FOUND = 500,
	STACK_MAX = 16,
	ENTRIES_MAX = 16
};
enum { CONTEXT = 0x43545831, STREAM, LIBRARY, KERNEL, EVENT };

struct CUctx_st {
	int kind, device, retains;
};
struct CUstream_st {
	int kind;
	cu_context context;
};
struct CUkern_st {
	int kind;
	char entry[64];
	int smem[FAKE_DEVICES_MAX];
};
struct CUevent_st {
	int kind;
	double us;
};
struct CUlib_st {
	int kind, entries;
	struct CUkern_st entry[ENTRIES_MAX];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUctx_st primary[FAKE_DEVICES_MAX] = {{CONTEXT, 0, 0}, {CONTEXT, 1, 0}, {CONTEXT, 2, 0}, {CONTEXT, 3, 0}};
static struct CUctx_st other[FAKE_DEVICES_MAX] = {{CONTEXT, 0, 1}, {CONTEXT, 1, 1}, {CONTEXT, 2, 1}, {CONTEXT, 3, 1}};
static struct CUstream_st streams[256];
static int stream_count;
static enum { FRESH, READY, FORKED } process; /* calls are timed, and getpid would take longer than all else in one */
static _Thread_local cu_context stack[STACK_MAX];
static _Thread_local int depth;
static _Thread_local unsigned int mode;

static struct fake_cuda fake = {
	.device_count = 2,
	.device = {{"NVIDIA H200", 9, 0, 132, 232448},
                   {"NVIDIA A100-SXM4-80GB", 8, 0, 108, 166912},
                   {"NVIDIA H200", 9, 0, 132, 232448},
                   {"NVIDIA Tesla V100", 7, 0, 80, 98304}},
	.version = 13000,
	.memory_free = (size_t)1 << 30,
	.us_of_thread = 1,
	.failed_call = -1,
};

fake_cuda_state fake_state;
fake_cuda_depth fake_depth;
fake_cuda_mode fake_mode;
fake_cuda_context fake_context;
fake_cuda_stream fake_stream;

struct fake_cuda *fake_state(void) { return &fake; }
int fake_depth(void) { return depth; }
unsigned int fake_mode(void) { return mode; }
cu_context fake_context(int ordinal) { return &other[ordinal]; }

cu_stream fake_stream(cu_context context)
{
	pthread_mutex_lock(&lock);
	cu_stream s = &streams[stream_count++];
	pthread_mutex_unlock(&lock);
	s->kind = STREAM;
	s->context = context;
	return s;
}

#define CUDA_CALL(symbol, parameters) cu_result symbol parameters;
CUDA_CALLS(CUDA_CALL)
CUDA_CALLS_OPTIONAL(CUDA_CALL)
#undef CUDA_CALL

/* Counts a call. Nonzero: it fails with that. */
static cu_result enter(enum fake_call call)
{
	pthread_mutex_lock(&lock);
	if (fake.calls < FAKE_LOG_MAX)
		fake.log[fake.calls] = (unsigned char)call;
	const int fails = ++fake.calls == fake.fail_at;
	if (fails)
		fake.failed_call = (int)call;
	pthread_mutex_unlock(&lock);
	if (fails)
		return (cu_result)fake.fail_result;
	if (call == FAKE_cuInit)
		return CU_OK;
	return process == READY ? CU_OK : CU_NOT_INITIALIZED;
}
#define ENTER(call)                                           \
	do {                                                  \
		const cu_result entered = enter(FAKE_##call); \
		if (entered)                                  \
			return entered;                       \
	} while (0)

static cu_result broken(cu_result r)
{
	__atomic_add_fetch(&fake.broken, 1, __ATOMIC_SEQ_CST);
	return r;
}

static cu_context current(void) { return depth ? stack[depth - 1] : NULL; }

static void process_forked(void) { process = FORKED; }

cu_result cuInit(unsigned int flags)
{
	ENTER(cuInit);
	if (fake.init_result)
		return (cu_result)fake.init_result;
	if (process == FORKED)
		return CU_NOT_INITIALIZED;
	if (process == FRESH)
		pthread_atfork(NULL, NULL, process_forked);
	process = READY;
	return CU_OK;
}

cu_result cuDriverGetVersion(int *version)
{
	const cu_result r = enter(FAKE_cuDriverGetVersion);
	if (r && r != CU_NOT_INITIALIZED)
		return r;
	*version = fake.version;
	return CU_OK;
}

cu_result cuGetErrorName(cu_result result, const char **name)
{
	*name = result == CU_STUB_LIBRARY        ? "CUDA_ERROR_STUB_LIBRARY"
	        : result == 2                    ? "CUDA_ERROR_OUT_OF_MEMORY"
	        : result == CU_NO_BINARY_FOR_GPU ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
	                                         : "CUDA_ERROR_OTHER";
	return CU_OK;
}

cu_result cuGetErrorString(cu_result result, const char **words)
{
	*words = "words of the driver";
	return CU_OK;
}

cu_result cuDeviceGetCount(int *count)
{
	ENTER(cuDeviceGetCount);
	*count = fake.device_count;
	return CU_OK;
}

/* Devices are not their ordinals here, so that mixing the two up shows. */
enum { DEVICE_BASE = 100 };

static int ordinal_of(cu_device device) { return device - DEVICE_BASE; }
static int device_ok(cu_device d) { return ordinal_of(d) >= 0 && ordinal_of(d) < fake.device_count; }

cu_result cuDeviceGet(cu_device *device, int ordinal)
{
	ENTER(cuDeviceGet);
	if (ordinal < 0 || ordinal >= fake.device_count)
		return CU_INVALID_DEVICE;
	*device = DEVICE_BASE + ordinal;
	return CU_OK;
}

cu_result cuDeviceGetName(char *name, int len, cu_device device)
{
	ENTER(cuDeviceGetName);
	if (!device_ok(device))
		return broken(CU_INVALID_DEVICE);
	snprintf(name, (size_t)len, "%s", fake.device[ordinal_of(device)].name);
	return CU_OK;
}

cu_result cuDeviceGetAttribute(int *value, unsigned int attribute, cu_device device)
{
	ENTER(cuDeviceGetAttribute);
	if (!device_ok(device))
		return broken(CU_INVALID_DEVICE);
	const struct fake_device *d = &fake.device[ordinal_of(device)];
	switch (attribute) {
	case CU_ATTRIBUTE_CC_MAJOR: *value = d->major; break;
	case CU_ATTRIBUTE_CC_MINOR: *value = d->minor; break;
	case CU_ATTRIBUTE_SM_COUNT: *value = d->sms; break;
	case CU_ATTRIBUTE_SMEM_OPTIN: *value = d->smem_optin; break;
	case CU_ATTRIBUTE_CLOCK_KHZ: *value = 1980000; break;
	case CU_ATTRIBUTE_L2_BYTES: *value = 50 << 20; break;
	default: return INVALID_VALUE;
	}
	return CU_OK;
}

cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device)
{
	ENTER(cuDeviceTotalMem_v2);
	*bytes = (size_t)80 << 30;
	return CU_OK;
}

cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device)
{
	ENTER(cuDevicePrimaryCtxRetain);
	if (!device_ok(device))
		return broken(CU_INVALID_DEVICE);
	pthread_mutex_lock(&lock);
	primary[ordinal_of(device)].retains++;
	fake.retained++;
	pthread_mutex_unlock(&lock);
	*context = &primary[ordinal_of(device)];
	return CU_OK;
}

cu_result cuDevicePrimaryCtxRelease_v2(cu_device device)
{
	ENTER(cuDevicePrimaryCtxRelease_v2);
	if (!device_ok(device) || !primary[ordinal_of(device)].retains)
		return broken(INVALID_CONTEXT);
	pthread_mutex_lock(&lock);
	primary[ordinal_of(device)].retains--;
	fake.retained--;
	pthread_mutex_unlock(&lock);
	return CU_OK;
}

cu_result cuCtxPushCurrent_v2(cu_context context)
{
	ENTER(cuCtxPushCurrent_v2);
	if (!context || context->kind != CONTEXT || !context->retains || depth == STACK_MAX)
		return broken(INVALID_CONTEXT);
	stack[depth++] = context;
	__atomic_add_fetch(&fake.pushes, 1, __ATOMIC_SEQ_CST);
	return CU_OK;
}

/* A pop that is made to fail has popped all the same, as real errors of earlier work are reported by any call. */
cu_result cuCtxPopCurrent_v2(cu_context *context)
{
	const cu_result r = enter(FAKE_cuCtxPopCurrent_v2);
	if (!depth)
		return broken(INVALID_CONTEXT);
	*context = stack[--depth];
	__atomic_add_fetch(&fake.pops, 1, __ATOMIC_SEQ_CST);
	return r;
}

cu_result cuCtxGetCurrent(cu_context *context)
{
	ENTER(cuCtxGetCurrent);
	*context = current();
	return CU_OK;
}

cu_result cuCtxGetDevice(cu_device *device)
{
	ENTER(cuCtxGetDevice);
	if (!depth)
		return INVALID_CONTEXT;
	*device = DEVICE_BASE + current()->device;
	return CU_OK;
}

/* The context that work on a stream runs in; NULL and an error where there is none. */
static cu_result stream_context(cu_context *context, cu_stream stream)
{
	*context = current();
	if (CU_STREAM_IS_NAME(stream))
		return *context ? CU_OK : INVALID_CONTEXT;
	if (stream->kind != STREAM)
		return broken(INVALID_HANDLE);
	*context = stream->context;
	return CU_OK;
}

cu_result cuStreamGetCtx(cu_stream stream, cu_context *context)
{
	ENTER(cuStreamGetCtx);
	return stream_context(context, stream);
}

cu_result cuThreadExchangeStreamCaptureMode(unsigned int *with)
{
	ENTER(cuThreadExchangeStreamCaptureMode);
	const unsigned int was = mode;
	mode = *with;
	*with = was;
	return CU_OK;
}

static cu_result unsafe_in_capture(void)
{
	return fake.capturing && mode != CU_CAPTURE_RELAXED ? CU_CAPTURE_UNSUPPORTED : CU_OK;
}

cu_result cuLibraryLoadData(cu_library *library, const void *code, unsigned int *jit_options, void **jit_values,
                            unsigned int jit_count, unsigned int *options, void **values, unsigned int count)
{
	ENTER(cuLibraryLoadData);
	if (unsafe_in_capture())
		return CU_CAPTURE_UNSUPPORTED;
	if (fake.load_result)
		return (cu_result)fake.load_result;
	cu_library l = calloc(1, sizeof *l);
	if (!l)
		return 2;
	l->kind = LIBRARY;
	*library = l;
	__atomic_add_fetch(&fake.libraries, 1, __ATOMIC_SEQ_CST);
	return CU_OK;
}

cu_result cuLibraryUnload(cu_library library)
{
	ENTER(cuLibraryUnload);
	if (unsafe_in_capture())
		return CU_CAPTURE_UNSUPPORTED;
	if (!library || library->kind != LIBRARY)
		return broken(INVALID_HANDLE);
	library->kind = 0;
	free(library);
	__atomic_sub_fetch(&fake.libraries, 1, __ATOMIC_SEQ_CST);
	return CU_OK;
}

cu_result cuLibraryGetKernel(cu_kernel *kernel, cu_library library, const char *name)
{
	ENTER(cuLibraryGetKernel);
	if (library->kind != LIBRARY || library->entries == ENTRIES_MAX)
		return broken(INVALID_HANDLE);
	cu_kernel k = &library->entry[library->entries++];
	k->kind = KERNEL;
	snprintf(k->entry, sizeof k->entry, "%s", name);
	*kernel = k;
	return CU_OK;
}

cu_result cuKernelSetAttribute(unsigned int attribute, int value, cu_kernel kernel, cu_device device)
{
	ENTER(cuKernelSetAttribute);
	if (kernel->kind != KERNEL || !device_ok(device))
		return broken(INVALID_HANDLE);
	if (attribute != CU_KERNEL_MAX_DYNAMIC_SMEM || value > fake.device[ordinal_of(device)].smem_optin)
		return INVALID_VALUE;
	kernel->smem[ordinal_of(device)] = value;
	return CU_OK;
}

cu_result cuKernelGetFunction(cu_function *function, cu_kernel kernel)
{
	ENTER(cuKernelGetFunction);
	if (kernel->kind != KERNEL)
		return broken(INVALID_HANDLE);
	if (!depth)
		return broken(INVALID_CONTEXT);
	*function = (cu_function)(void *)kernel;
	return CU_OK;
}

cu_result cuFuncLoad(cu_function function)
{
	ENTER(cuFuncLoad);
	return !depth ? broken(INVALID_CONTEXT) : unsafe_in_capture();
}

cu_result cuMemsetD32Async(cu_deviceptr at, unsigned int value, size_t words, cu_stream stream)
{
	ENTER(cuMemsetD32Async);
	if (!depth)
		return broken(INVALID_CONTEXT);
	pthread_mutex_lock(&lock);
	const int i = fake.memsets++ % FAKE_LAUNCHES_MAX;
	fake.memset[i].at = at;
	fake.memset[i].words = words;
	fake.memset[i].stream = stream;
	fake.memset[i].launches_before = fake.launches;
	pthread_mutex_unlock(&lock);
	return CU_OK;
}

cu_result cuLaunchKernel(cu_function function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                         unsigned int by, unsigned int bz, unsigned int smem, cu_stream stream, void **params,
                         void **extra)
{
	ENTER(cuLaunchKernel);
	cu_kernel kernel = (cu_kernel)(void *)function;
	cu_context context;
	if (kernel->kind != KERNEL)
		return broken(INVALID_HANDLE);
	const cu_result r = stream_context(&context, stream);
	if (r)
		return broken(r);
	if (!gx || gx > 0x7fffffffu || gy != 1 || gz != 1 || !bx || bx > 1024 || by != 1 || bz != 1 || extra ||
	    smem > (unsigned int)kernel->smem[context->device])
		return broken(INVALID_VALUE);
	pthread_mutex_lock(&lock);
	struct fake_launch *l = &fake.launch[fake.launches++ % FAKE_LAUNCHES_MAX];
	memcpy(l->entry, kernel->entry, sizeof l->entry);
	l->grid = gx;
	l->threads = bx;
	l->smem = smem;
	l->stream = stream;
	l->device = context->device;
	/* The other launch ABIs, which are smaller and come alone. */
	const int merge = !strncmp(kernel->entry, "fagen_merge", 11), calibrate = !strncmp(kernel->entry, "calibrate", 9);
	memcpy(l->params, params[0],
	       merge       ? sizeof(struct fagen_merge_abi)
	       : calibrate ? sizeof(struct fagen_calibrate)
	                   : sizeof l->params);
	l->maps_before = fake.maps;
	if (!merge && !calibrate)
		memcpy(&l->maps, params[1], sizeof l->maps);
	fake.us += bx * fake.us_of_thread;
	pthread_mutex_unlock(&lock);
	return CU_OK;
}

/* What cuda.h says of the arguments for 16-bit elements and swizzling over 128 bytes. */
static int map_ok(const struct fake_map *m, const void *to)
{
	int ok = m->type == 1 && m->rank == 4 && !((size_t)to % 64) && m->address && !((size_t)m->address % 16);
	for (int i = 0; i < 4; i++)
		ok = ok && m->size[i] && m->size[i] <= (uint64_t)1 << 32 && m->box[i] && m->box[i] <= 256 &&
		     m->step[i] && m->step[i] <= 8 &&
		     (i == 3 || (m->stride[i] % 16 == 0 && m->stride[i] < (uint64_t)1 << 40));
	return ok && m->box[0] * 2 <= 128 && m->interleave == 0 && m->swizzle == 3 && m->l2_promotion <= 3 &&
	       m->fill <= 1;
}

/* Needs a current context, as the real one does, and is safe in a capture. */
cu_result cuTensorMapEncodeTiled(cu_tensor_map *map, unsigned int type, uint32_t rank, void *address,
                                 const uint64_t *size, const uint64_t *stride_bytes, const uint32_t *box,
                                 const uint32_t *element_stride, unsigned int interleave, unsigned int swizzle,
                                 unsigned int l2_promotion, unsigned int fill)
{
	ENTER(cuTensorMapEncodeTiled);
	if (!depth)
		return broken(INVALID_CONTEXT);
	struct fake_map m = {.type = type,
	                     .rank = rank,
	                     .address = address,
	                     .interleave = interleave,
	                     .swizzle = swizzle,
	                     .l2_promotion = l2_promotion,
	                     .fill = fill};
	if (rank != 4)
		return INVALID_VALUE;
	memcpy(m.size, size, sizeof m.size);
	memcpy(m.stride, stride_bytes, sizeof m.stride);
	memcpy(m.box, box, sizeof m.box);
	memcpy(m.step, element_stride, sizeof m.step);
	if (!map_ok(&m, map))
		return INVALID_VALUE;
	pthread_mutex_lock(&lock);
	fake.map[fake.maps++ % FAKE_LAUNCHES_MAX] = m;
	for (int i = 0; i < 16; i++)
		((struct fagen_abi_map *)(void *)map)->opaque[i] = (unsigned long long)fake.maps;
	pthread_mutex_unlock(&lock);
	return CU_OK;
}

/* Time goes by in launches alone: a microsecond for each thread of a CTA. */

cu_result cuEventCreate(cu_event *event, unsigned int flags)
{
	ENTER(cuEventCreate);
	cu_event e = calloc(1, sizeof *e);
	if (!e || !depth) {
		free(e);
		return e ? INVALID_CONTEXT : 2;
	}
	e->kind = EVENT;
	*event = e;
	return CU_OK;
}

cu_result cuEventRecord(cu_event event, cu_stream stream)
{
	ENTER(cuEventRecord);
	if (!event || event->kind != EVENT)
		return broken(INVALID_HANDLE);
	pthread_mutex_lock(&lock);
	event->us = fake.us;
	pthread_mutex_unlock(&lock);
	return CU_OK;
}

cu_result cuEventSynchronize(cu_event event)
{
	ENTER(cuEventSynchronize);
	return event && event->kind == EVENT ? CU_OK : broken(INVALID_HANDLE);
}

cu_result cuEventElapsedTime(float *ms, cu_event begin, cu_event end)
{
	ENTER(cuEventElapsedTime);
	if (begin->kind != EVENT || end->kind != EVENT)
		return broken(INVALID_HANDLE);
	*ms = (float)((end->us - begin->us) * 1e-3);
	return CU_OK;
}

cu_result cuEventDestroy_v2(cu_event event)
{
	ENTER(cuEventDestroy_v2);
	if (!event || event->kind != EVENT)
		return broken(INVALID_HANDLE);
	event->kind = 0;
	free(event);
	return CU_OK;
}

cu_result cuMemGetInfo_v2(size_t *available, size_t *total)
{
	ENTER(cuMemGetInfo_v2);
	*available = fake.memory_free;
	*total = (size_t)80 << 30;
	return CU_OK;
}

/* Device memory is host memory, so that programs that fill and read it run. */

cu_result cuMemAlloc_v2(cu_deviceptr *at, size_t bytes)
{
	ENTER(cuMemAlloc_v2);
	if (!depth)
		return INVALID_CONTEXT;
	void *p;
	if (posix_memalign(&p, 256, bytes ? bytes : 1))
		return 2;
	*at = (cu_deviceptr)(size_t)p;
	return CU_OK;
}

cu_result cuMemFree_v2(cu_deviceptr at)
{
	ENTER(cuMemFree_v2);
	free((void *)(size_t)at);
	return CU_OK;
}

cu_result cuMemcpyHtoD_v2(cu_deviceptr to, const void *from, size_t bytes)
{
	ENTER(cuMemcpyHtoD_v2);
	memcpy((void *)(size_t)to, from, bytes);
	return CU_OK;
}

cu_result cuMemcpyDtoH_v2(void *to, cu_deviceptr from, size_t bytes)
{
	ENTER(cuMemcpyDtoH_v2);
	memcpy(to, (const void *)(size_t)from, bytes);
	return CU_OK;
}

cu_result cuMemsetD8_v2(cu_deviceptr at, unsigned char value, size_t bytes)
{
	ENTER(cuMemsetD8_v2);
	memset((void *)(size_t)at, value, bytes);
	return CU_OK;
}

cu_result cuStreamCreate(cu_stream *stream, unsigned int flags)
{
	ENTER(cuStreamCreate);
	if (!depth)
		return INVALID_CONTEXT;
	*stream = fake_stream(current());
	return CU_OK;
}

cu_result cuStreamSynchronize(cu_stream stream)
{
	ENTER(cuStreamSynchronize);
	return CU_OK;
}

cu_result cuStreamDestroy_v2(cu_stream stream)
{
	ENTER(cuStreamDestroy_v2);
	stream->kind = 0;
	return CU_OK;
}

cu_result cuCtxSynchronize(void)
{
	ENTER(cuCtxSynchronize);
	return depth ? CU_OK : INVALID_CONTEXT;
}

#endif
