#include "runtime/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DEVICES_MAX = 64 };

struct driver {
	pthread_mutex_t mutex; /* starting, and the table of primary contexts */
	struct cuda_calls calls;
	int version;
	int devices;
	atomic_int pid;   /* of the process that called cuInit; 0: not yet */
	atomic_int *here; /* 1, on a page that the kernel wipes in a forked child; NULL: ask for the pid */
	cu_context primary[DEVICES_MAX]; /* NULL: not retained */
	cu_device device[DEVICES_MAX];   /* whose they are */
};

struct symbol {
	const char *name;
	size_t offset;
	int optional;
};

static const struct symbol symbols[] = {
#define CUDA_CALL(symbol, parameters) {#symbol, offsetof(struct cuda_calls, symbol), 0},
	CUDA_CALLS(CUDA_CALL)
#undef CUDA_CALL
#define CUDA_CALL(symbol, parameters) {#symbol, offsetof(struct cuda_calls, symbol), 1},
		CUDA_CALLS_OPTIONAL(CUDA_CALL)
#undef CUDA_CALL
};

struct driver *driver_open(void)
{
	struct driver *d = calloc(1, sizeof *d);
	if (!d || pthread_mutex_init(&d->mutex, NULL)) {
		free(d);
		return NULL;
	}
	/* A launch asks which process it is in; this way it needs no system call to know. */
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *here = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (here != MAP_FAILED && !madvise(here, page, MADV_WIPEONFORK))
		d->here = here;
	else if (here != MAP_FAILED)
		munmap(here, page);
	return d;
}

/* Is this the process that started the driver? */
static bool process_is_ours(const struct driver *d)
{
	const int pid = atomic_load_explicit(&d->pid, memory_order_acquire);
	if (!pid)
		return false;
	return d->here ? atomic_load_explicit(d->here, memory_order_relaxed) == 1 : pid == getpid();
}

/* libcuda itself stays mapped: it has threads of its own and cannot be unloaded safely. Contexts that are not of this
 * process, or of a process that is already past its exit handlers, are left alone. */
void driver_close(struct driver *d)
{
	if (!d)
		return;
	if (process_is_ours(d))
		for (int i = 0; i < d->devices; i++)
			if (d->primary[i])
				d->calls.cuDevicePrimaryCtxRelease_v2(d->device[i]);
	if (d->here)
		munmap(d->here, (size_t)sysconf(_SC_PAGESIZE));
	pthread_mutex_destroy(&d->mutex);
	free(d);
}

const struct cuda_calls *driver_calls(const struct driver *d) { return &d->calls; }

int driver_version(const struct driver *d) { return d->version; }

int driver_fail(const struct driver *d, struct fault *f, cu_result result, const char *what)
{
	const char *name = NULL, *words = NULL;
	if (!d->calls.cuGetErrorName || d->calls.cuGetErrorName(result, &name) || !name)
		name = "unknown CUDA error";
	if (!d->calls.cuGetErrorString || d->calls.cuGetErrorString(result, &words) || !words)
		words = "no description";
	f->cuda_result = (int)result;
	return fault_fail(f, FAGEN_ERROR_DRIVER, NULL, "%s failed: %s (%u): %s.", what, name, result, words);
}

int driver_check_fork(const struct driver *d, struct fault *f)
{
	const int pid = atomic_load_explicit(&d->pid, memory_order_acquire);
	if (!pid || process_is_ours(d))
		return 0;
	f->cuda_result = CU_NOT_INITIALIZED;
	return fault_fail(
		f, FAGEN_ERROR_DRIVER, NULL,
		"This process was forked from process %d after that had started CUDA, and a CUDA context does not "
		"survive fork. Fork before the first fagen_kernel_get, or start the child as a new program.",
		pid);
}

static const char *library_path(void *symbol)
{
	Dl_info info;
	return symbol && dladdr(symbol, &info) && info.dli_fname ? info.dli_fname : "libcuda.so.1";
}

/* Opens the library and fills the table. Only the versioned name: `libcuda.so` is the toolkit's linker stub. */
static int calls_load(struct cuda_calls *calls, const char **path, struct fault *f)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		const char *why = dlerror();
		return fault_fail(
			f, FAGEN_ERROR_DRIVER, NULL,
			"There is no NVIDIA driver: %s. libcuda.so.1 comes with the driver, not with the CUDA toolkit; "
			"in a container, pass the GPU through (docker run --gpus all).",
			why ? why : "libcuda.so.1");
	}
	memset(calls, 0, sizeof *calls);
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
		void *address = dlsym(library, symbols[i].name);
		memcpy((char *)calls + symbols[i].offset, &address, sizeof address);
		if (address)
			*path = library_path(address);
	}
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
		void *address;
		memcpy(&address, (char *)calls + symbols[i].offset, sizeof address);
		if (address || symbols[i].optional)
			continue;
		int version = 0;
		if (calls->cuDriverGetVersion)
			calls->cuDriverGetVersion(&version);
		fault_fail(f, FAGEN_ERROR_DRIVER, NULL,
		           "The NVIDIA driver %s is too old: it is of CUDA %d.%d and lacks %s. fagen needs a driver of "
		           "CUDA 12.0 "
		           "or later (r525).",
		           *path, version / 1000, version % 1000 / 10, symbols[i].name);
		memset(calls, 0, sizeof *calls);
		return -1;
	}
	return 0;
}

static int driver_start_locked(struct driver *d, struct fault *f)
{
	const char *path = "libcuda.so.1";
	if (!d->calls.cuInit && calls_load(&d->calls, &path, f))
		return -1;
	const cu_result result = d->calls.cuInit(0);
	if (result == CU_STUB_LIBRARY) {
		void *address;
		memcpy(&address, &d->calls.cuInit, sizeof address);
		f->cuda_result = (int)result;
		fault_fail(f, FAGEN_ERROR_DRIVER, NULL,
		           "%s is the stub that the CUDA toolkit has for linking, not a driver "
		           "(CUDA_ERROR_STUB_LIBRARY, 34). Take "
		           "the stubs folder out of LD_LIBRARY_PATH, or install the NVIDIA driver.",
		           library_path(address));
		memset(&d->calls, 0, sizeof d->calls); /* look again the next time */
		return -1;
	}
	if (result)
		return driver_fail(d, f, result, "Starting CUDA (cuInit)");
	int version = 0, devices = 0;
	cu_result r = d->calls.cuDriverGetVersion(&version);
	if (r)
		return driver_fail(d, f, r, "Asking the driver for its version (cuDriverGetVersion)");
	r = d->calls.cuDeviceGetCount(&devices);
	if (r)
		return driver_fail(d, f, r, "Counting the GPUs (cuDeviceGetCount)");
	d->version = version;
	d->devices = devices < DEVICES_MAX ? devices : DEVICES_MAX;
	if (d->here)
		atomic_store(d->here, 1);
	atomic_store_explicit(&d->pid, getpid(), memory_order_release);
	return 0;
}

int driver_start(struct driver *d, struct fault *f)
{
	if (driver_check_fork(d, f))
		return -1;
	if (atomic_load_explicit(&d->pid, memory_order_acquire))
		return 0;
	pthread_mutex_lock(&d->mutex);
	const int rc = atomic_load(&d->pid) ? 0 : driver_start_locked(d, f);
	pthread_mutex_unlock(&d->mutex);
	return rc;
}

int driver_init(struct driver *d, struct diag *diag)
{
	struct fault f = {.diag = diag};
	return driver_start(d, &f);
}

int driver_device_count(int *count, struct driver *d, struct diag *diag)
{
	if (driver_init(d, diag))
		return -1;
	*count = d->devices;
	return 0;
}

static int device_get(cu_device *device, struct driver *d, int ordinal, struct fault *f)
{
	if (driver_start(d, f))
		return -1;
	if (ordinal < 0 || ordinal >= d->devices) {
		f->cuda_result = CU_INVALID_DEVICE;
		if (!d->devices)
			return fault_fail(
				f, FAGEN_ERROR_DRIVER, "device",
				"Device %d was asked for, but the driver sees no GPU (is CUDA_VISIBLE_DEVICES empty?).",
				ordinal);
		return fault_fail(f, FAGEN_ERROR_DRIVER, "device",
		                  "Device %d was asked for, but the driver sees %d GPU%s: use 0 to %d.", ordinal,
		                  d->devices, d->devices == 1 ? "" : "s", d->devices - 1);
	}
	const cu_result r = d->calls.cuDeviceGet(device, ordinal);
	return r ? driver_fail(d, f, r, "Opening the GPU (cuDeviceGet)") : 0;
}

int driver_gpu(struct gpu *gpu, struct driver *d, int ordinal, struct fault *f)
{
	cu_device device;
	if (device_get(&device, d, ordinal, f))
		return -1;
	struct gpu g = {0};
	cu_result r = d->calls.cuDeviceGetName(g.name, sizeof g.name, device);
	if (r)
		return driver_fail(d, f, r, "Reading the GPU's name (cuDeviceGetName)");
	g.name[sizeof g.name - 1] = '\0';
	int major = 0, minor = 0;
	const struct {
		unsigned int id;
		int *to;
	} attribute[] = {
		{CU_ATTRIBUTE_CC_MAJOR, &major},        {CU_ATTRIBUTE_CC_MINOR, &minor},
		{CU_ATTRIBUTE_SM_COUNT, &g.sms},        {CU_ATTRIBUTE_SMEM_OPTIN, &g.smem_block},
		{CU_ATTRIBUTE_CLOCK_KHZ, &g.clock_khz}, {CU_ATTRIBUTE_L2_BYTES, &g.l2_bytes},
	};
	for (size_t i = 0; i < sizeof attribute / sizeof *attribute; i++)
		if ((r = d->calls.cuDeviceGetAttribute(attribute[i].to, attribute[i].id, device)))
			return driver_fail(d, f, r, "Reading the GPU's attributes (cuDeviceGetAttribute)");
	size_t bytes = 0;
	if ((r = d->calls.cuDeviceTotalMem_v2(&bytes, device)))
		return driver_fail(d, f, r, "Reading the GPU's memory size (cuDeviceTotalMem)");
	g.cc = 10 * major + minor;
	g.memory_bytes = bytes;
	*gpu = g;
	return 0;
}

int driver_device(struct gpu *gpu, struct driver *d, int ordinal, struct diag *diag)
{
	struct fault f = {.diag = diag};
	return driver_gpu(gpu, d, ordinal, &f);
}

int driver_primary(cu_context *context, struct driver *d, int ordinal, struct fault *f)
{
	cu_device device;
	if (device_get(&device, d, ordinal, f))
		return -1;
	pthread_mutex_lock(&d->mutex);
	cu_result r = CU_OK;
	if (!d->primary[ordinal])
		r = d->calls.cuDevicePrimaryCtxRetain(&d->primary[ordinal], device);
	if (r)
		d->primary[ordinal] = NULL;
	d->device[ordinal] = device;
	*context = d->primary[ordinal];
	pthread_mutex_unlock(&d->mutex);
	return r ? driver_fail(d, f, r, "Opening the GPU's primary context (cuDevicePrimaryCtxRetain)") : 0;
}

int driver_push(struct driver *d, int ordinal, struct fault *f)
{
	cu_context context;
	if (driver_primary(&context, d, ordinal, f))
		return -1;
	const cu_result r = d->calls.cuCtxPushCurrent_v2(context);
	return r ? driver_fail(d, f, r, "Entering the GPU's context (cuCtxPushCurrent)") : 0;
}

int driver_pop(struct driver *d, struct fault *f)
{
	cu_context context;
	const cu_result r = d->calls.cuCtxPopCurrent_v2(&context);
	return r ? driver_fail(d, f, r, "Leaving the GPU's context (cuCtxPopCurrent)") : 0;
}
