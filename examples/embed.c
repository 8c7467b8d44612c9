/* From a spec in memory to a launch.
 *
 *   cc embed.c -o embed $(pkg-config --cflags --libs fagen) -ldl
 *
 * Needs no CUDA header and no CUDA library to build: the few driver calls that own device memory are found with dlsym. A
 * program that has the CUDA runtime uses that instead; any device pointer and any stream will do. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/fagen.h" /* <fagen.h> once installed */

/* Packed documents: a query sees the keys before it that have its own document number, which input "doc" gives. */
static const char spec_text[] = "head_dim: 64\nmask: {all: [causal, document]}\nkv_group: 4\noutputs: [out, lse]\n";
enum { BATCH = 2, HEADS_Q = 8, HEADS_KV = 2, SEQ = 1000, DIM = 64 };

static int (*cuInit)(unsigned), (*cuDeviceGet)(int *, int);
static int (*cuDevicePrimaryCtxRetain)(void **, int), (*cuCtxPushCurrent)(void *);
static int (*cuMemAlloc)(uint64_t *, size_t), (*cuMemsetD8)(uint64_t, unsigned char, size_t);
static int (*cuMemcpyDtoH)(void *, uint64_t, size_t);

static void must(int failed, const char *what)
{
	if (failed) {
		fprintf(stderr, "embed: %s\n", what);
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
	uint64_t at = 0;
	must(bytes && (cuMemAlloc(&at, bytes) || cuMemsetD8(at, fill, bytes)), "no memory on the device");
	return (void *)(uintptr_t)at;
}

/* bfloat16 [batch][seq][heads][64], as most frameworks keep it: heads and seq change places by stride alone. */
static fagen_tensor tensor(int64_t heads, unsigned char fill)
{
	return (fagen_tensor){device_bytes((size_t)(BATCH * SEQ * heads * DIM * 2), fill), SEQ * heads * DIM, DIM, heads * DIM};
}

int main(void)
{
	void *context;
	int device;
	find(&cuInit, "cuInit"), find(&cuDeviceGet, "cuDeviceGet");
	find(&cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
	find(&cuCtxPushCurrent, "cuCtxPushCurrent_v2"), find(&cuMemAlloc, "cuMemAlloc_v2");
	find(&cuMemsetD8, "cuMemsetD8_v2"), find(&cuMemcpyDtoH, "cuMemcpyDtoH_v2");
	must(cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) || cuCtxPushCurrent(context),
	     "the GPU cannot be used");

	fagen_error error = {.struct_size = sizeof error};
	fagen_runtime *runtime;
	fagen_spec *spec;
	fagen_kernel *kernel;
	must(fagen_open(&runtime, NULL, &error), error.message);
	must(fagen_spec_parse(&spec, runtime, spec_text, strlen(spec_text), "embed", &error), error.message);
	must(fagen_kernel_get(&kernel, runtime, spec, NULL, 0, &error), error.message); /* compiles once, then cached on disk */
	fagen_kernel_info info = {.struct_size = sizeof info};
	must(fagen_kernel_describe(&info, kernel, &error), error.message);
	printf("%s, tile %d x %d, %d registers, %s\n", info.target, info.tile_m[0], info.tile_n[0], info.registers[0], info.source[0]);

	fagen_args args = {.struct_size = sizeof args, .batch = BATCH, .heads_q = HEADS_Q, .heads_kv = HEADS_KV, .seqlen_q = SEQ,
	                   .seqlen_k = SEQ, .query = tensor(HEADS_Q, 0x3e), .key = tensor(HEADS_KV, 0x3f), .value = tensor(HEADS_KV, 0x40),
	                   .out = tensor(HEADS_Q, 0), .lse = {device_bytes(4 * BATCH * HEADS_Q * SEQ, 0), HEADS_Q * SEQ, SEQ, 1}};
	const fagen_input doc = {.name = "doc", .data = device_bytes(4 * SEQ, 0), .stride = {0, 1}}; /* int32 [batch][seq], one row for all */
	args.inputs = &doc;
	args.input_count = 1;
	must(fagen_workspace_size(&args.workspace_size, kernel, &args, &error), error.message);
	args.workspace = device_bytes(args.workspace_size, 0);
	must(fagen_forward(kernel, &args, NULL, &error), error.message); /* on the default stream */

	uint16_t first = 0;
	must(cuMemcpyDtoH(&first, (uintptr_t)args.out.data, 2), "the kernel failed");
	printf("out[0] = 0x%04x; every value is 0x4040, 3.0 in bfloat16, and so is every mean of them\n", first);
	fagen_close(runtime);
	return 0;
}
