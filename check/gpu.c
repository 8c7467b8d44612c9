#include "check/gpu.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/driver.h"

struct session {
	struct driver *driver;
	const struct cuda_calls *calls;
	struct fault fault;
};

static int session_begin(struct session *s, fagen_runtime *rt, int device, struct diag *diag)
{
	*s = (struct session){.driver = runtime_driver(rt), .fault = {.diag = diag}};
	if (driver_push(s->driver, device, &s->fault))
		return -1;
	s->calls = driver_calls(s->driver);
	if (!s->calls->cuMemAlloc_v2 || !s->calls->cuMemFree_v2 || !s->calls->cuMemcpyHtoD_v2 ||
	    !s->calls->cuMemcpyDtoH_v2 || !s->calls->cuMemsetD8_v2 || !s->calls->cuMemGetInfo_v2 ||
	    !s->calls->cuCtxSynchronize) {
		driver_pop(s->driver, &s->fault);
		return diag_fail(
			diag,
			"The NVIDIA driver lacks the memory calls that a check needs (cuMemAlloc_v2 and its kin).");
	}
	return 0;
}

static int session_end(struct session *s, cu_result result, const char *what)
{
	const int rc = result ? driver_fail(s->driver, &s->fault, result, what) : 0;
	return driver_pop(s->driver, &s->fault) ? -1 : rc;
}

int gpu_open(struct gpu *gpu, fagen_runtime *rt, int device, struct diag *diag)
{
	struct session s;
	if (driver_device(gpu, runtime_driver(rt), device, diag) || session_begin(&s, rt, device, diag))
		return -1;
	return session_end(&s, CU_OK, "");
}

int gpu_alloc(struct gpu_buffer *b, fagen_runtime *rt, int device, size_t bytes, struct diag *diag)
{
	struct session s;
	memset(b, 0, sizeof *b);
	if (session_begin(&s, rt, device, diag))
		return -1;
	cu_deviceptr base = 0;
	cu_result r = s.calls->cuMemAlloc_v2(&base, bytes + 2 * GPU_GUARD);
	if (!r) {
		r = s.calls->cuMemsetD8_v2(base, GPU_POISON, GPU_GUARD);
		if (!r)
			r = s.calls->cuMemsetD8_v2(base + GPU_GUARD + bytes, GPU_POISON, GPU_GUARD);
		if (r)
			s.calls->cuMemFree_v2(base);
	}
	if (session_end(&s, r, "Allocating device memory (cuMemAlloc)"))
		return -1;
	*b = (struct gpu_buffer){.base = base, .data = base + GPU_GUARD, .bytes = bytes};
	return 0;
}

void gpu_free(struct gpu_buffer *b, fagen_runtime *rt, int device)
{
	struct session s;
	struct diag ignored = {0};
	if (b->base && !session_begin(&s, rt, device, &ignored))
		session_end(&s, s.calls->cuMemFree_v2(b->base), "Freeing device memory (cuMemFree)");
	diag_free(&ignored);
	memset(b, 0, sizeof *b);
}

int gpu_poison(const struct gpu_buffer *b, fagen_runtime *rt, int device, struct diag *diag)
{
	struct session s;
	if (session_begin(&s, rt, device, diag))
		return -1;
	cu_result r = b->bytes ? s.calls->cuMemsetD8_v2(b->data, GPU_POISON, b->bytes) : CU_OK;
	if (!r)
		r = s.calls->cuCtxSynchronize();
	return session_end(&s, r, "Filling device memory (cuMemsetD8)");
}

int gpu_upload(const struct gpu_buffer *b, size_t offset, const void *from, size_t bytes, fagen_runtime *rt, int device,
               struct diag *diag)
{
	struct session s;
	if (!bytes)
		return 0;
	if (session_begin(&s, rt, device, diag))
		return -1;
	return session_end(&s, s.calls->cuMemcpyHtoD_v2(b->data + offset, from, bytes),
	                   "Copying to the device (cuMemcpyHtoD)");
}

int gpu_download(void *to, const struct gpu_buffer *b, size_t offset, size_t bytes, fagen_runtime *rt, int device,
                 struct diag *diag)
{
	struct session s;
	if (!bytes)
		return 0;
	if (session_begin(&s, rt, device, diag))
		return -1;
	return session_end(&s, s.calls->cuMemcpyDtoH_v2(to, b->data + offset, bytes),
	                   "Copying from the device (cuMemcpyDtoH)");
}

int gpu_guards(const struct gpu_buffer *b, const char *name, fagen_runtime *rt, int device, struct diag *diag)
{
	unsigned char guard[2][GPU_GUARD];
	const struct gpu_buffer whole = {.data = b->base};
	if (gpu_download(guard[0], &whole, 0, GPU_GUARD, rt, device, diag) ||
	    gpu_download(guard[1], &whole, GPU_GUARD + b->bytes, GPU_GUARD, rt, device, diag))
		return -1;
	for (int side = 0; side < 2; side++)
		for (int i = 0; i < GPU_GUARD; i++)
			if (guard[side][i] != GPU_POISON)
				return side ? diag_fail(diag, "%s: a kernel wrote %d bytes past the end of the buffer.",
				                        name, i)
				            : diag_fail(diag, "%s: a kernel wrote %d bytes before the buffer.", name,
				                        GPU_GUARD - i);
	return 0;
}

int gpu_synchronize(fagen_runtime *rt, int device, struct diag *diag)
{
	struct session s;
	if (session_begin(&s, rt, device, diag))
		return -1;
	return session_end(&s, s.calls->cuCtxSynchronize(), "Running the kernels (cuCtxSynchronize)");
}

int gpu_memory_free(size_t *bytes, fagen_runtime *rt, int device, struct diag *diag)
{
	struct session s;
	size_t total;
	if (session_begin(&s, rt, device, diag))
		return -1;
	return session_end(&s, s.calls->cuMemGetInfo_v2(bytes, &total), "Asking for the free memory (cuMemGetInfo)");
}

/* 0x7fff is a NaN of both 16-bit types, and 0x7fff7fff one of float32. */
static const char fill_source[] = "extern \"C\" __global__ void fill(unsigned words)\n"
				  "{\n"
				  "\textern __shared__ unsigned volatile smem[];\n"
				  "\tfor (unsigned i = threadIdx.x; i < words; i += blockDim.x)\n"
				  "\t\tsmem[i] = 0x7fff7fffu;\n"
				  "}\n";

int gpu_poison_shared(fagen_runtime *rt, int device, struct diag *diag)
{
	struct gpu gpu;
	if (gpu_open(&gpu, rt, device, diag))
		return -1;
	const struct target *target = target_for_cc(gpu.cc);
	if (!target)
		return diag_fail(diag, "No target of fagen runs on compute capability %d.%d.", gpu.cc / 10,
		                 gpu.cc % 10);
	struct text source = {0};
	struct cubin cubin = {0};
	struct session s;
	text_puts(&source, fill_source);
	int rc = compiler_run(&cubin, runtime_compiler(rt), &source, target, diag);
	text_free(&source);
	if (rc || session_begin(&s, rt, device, diag)) {
		cubin_free(&cubin);
		return -1;
	}
	cu_library library = NULL;
	cu_kernel kernel = NULL;
	cu_device handle = 0;
	unsigned int words = (unsigned int)gpu.smem_block / 4;
	void *params[] = {&words};
	cu_result r = s.calls->cuDeviceGet(&handle, device);
	if (!r)
		r = s.calls->cuLibraryLoadData(&library, cubin.code, NULL, NULL, 0, NULL, NULL, 0);
	if (!r)
		r = s.calls->cuLibraryGetKernel(&kernel, library, "fill");
	if (!r)
		r = s.calls->cuKernelSetAttribute(CU_KERNEL_MAX_DYNAMIC_SMEM, gpu.smem_block, kernel, handle);
	if (!r) /* one CTA fills an SM; several rounds reach all of them */
		r = s.calls->cuLaunchKernel((cu_function)(void *)kernel, 8u * (unsigned int)gpu.sms, 1, 1, 1024, 1, 1,
		                            (unsigned int)gpu.smem_block, NULL, params, NULL);
	if (!r)
		r = s.calls->cuCtxSynchronize();
	if (library)
		s.calls->cuLibraryUnload(library);
	rc = session_end(&s, r, "Filling shared memory");
	cubin_free(&cubin);
	return rc;
}
