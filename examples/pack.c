/* A program that carries its kernels in itself: no compiler, no spec, no file at run time.
 *
 *   fagen pack build causal_d64.yaml -o kernels.fgpk
 *   fagen pack export --c-array kernels.fgpk -o kernels.c
 *   cc pack.c kernels.c -o pack $(pkg-config --cflags --libs fagen_rt) -ldl
 *
 * The driver calls are those of examples/embed.c. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/fagen.h" /* <fagen.h> once installed */

extern const unsigned char fagen_kernels[]; /* kernels.c */
extern const size_t fagen_kernels_size;
enum { BATCH = 2, HEADS = 4, SEQ = 1000, DIM = 64 };

static void must(int failed, const char *what)
{
	if (failed) {
		fprintf(stderr, "pack: %s\n", what);
		exit(1);
	}
}

static void find(void *call, const char *name)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *address = cuda ? dlsym(cuda, name) : NULL;
	must(!address, cuda ? name : "there is no NVIDIA driver on this machine (libcuda.so.1)");
	memcpy(call, &address, sizeof address);
}

static void *device_bytes(size_t bytes, unsigned char fill)
{
	int (*cuMemAlloc)(uint64_t *, size_t), (*cuMemsetD8)(uint64_t, unsigned char, size_t);
	uint64_t at = 0;
	find(&cuMemAlloc, "cuMemAlloc_v2"), find(&cuMemsetD8, "cuMemsetD8_v2");
	must(bytes && (cuMemAlloc(&at, bytes) || cuMemsetD8(at, fill, bytes)), "no memory on the device");
	return (void *)(uintptr_t)at;
}

static fagen_tensor tensor(unsigned char fill) /* bfloat16 [batch][seq][heads][64] */
{
	return (fagen_tensor){device_bytes(BATCH * SEQ * HEADS * DIM * 2, fill), SEQ * HEADS * DIM, DIM, HEADS * DIM};
}

int main(void)
{
	int (*cuInit)(unsigned), (*cuDeviceGet)(int *, int), (*cuDevicePrimaryCtxRetain)(void **, int), (*cuCtxPushCurrent)(void *);
	int (*cuMemcpyDtoH)(void *, uint64_t, size_t), device;
	void *context;
	find(&cuInit, "cuInit"), find(&cuDeviceGet, "cuDeviceGet"), find(&cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
	find(&cuCtxPushCurrent, "cuCtxPushCurrent_v2"), find(&cuMemcpyDtoH, "cuMemcpyDtoH_v2");
	must(cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) || cuCtxPushCurrent(context),
	     "the GPU cannot be used");

	fagen_error error = {.struct_size = sizeof error};
	fagen_runtime *runtime;
	fagen_pack *pack;
	fagen_kernel *kernel;
	must(fagen_open(&runtime, NULL, &error), error.message);
	must(fagen_pack_open_memory(&pack, runtime, fagen_kernels, fagen_kernels_size, "of this program", &error), error.message);
	must(fagen_pack_kernel(&kernel, pack, "causal_d64", 0, &error), error.message);

	fagen_args args = {.struct_size = sizeof args, .batch = BATCH, .heads_q = HEADS, .heads_kv = HEADS, .seqlen_q = SEQ,
	                   .seqlen_k = SEQ, .query = tensor(0x3e), .key = tensor(0x3f), .value = tensor(0x40), .out = tensor(0),
	                   .lse = {device_bytes(4 * BATCH * HEADS * SEQ, 0), HEADS * SEQ, SEQ, 1}};
	must(fagen_workspace_size(&args.workspace_size, kernel, &args, &error), error.message);
	args.workspace = device_bytes(args.workspace_size, 0);
	must(fagen_forward(kernel, &args, NULL, &error), error.message); /* on the default stream */

	uint16_t first = 0;
	must(cuMemcpyDtoH(&first, (uintptr_t)args.out.data, 2), "the kernel failed");
	printf("out[0] = 0x%04x; every value is 0x4040, 3.0 in bfloat16, and so is every mean of them\n", first);
	fagen_close(runtime);
	return 0;
}
