/* From a spec in memory to a launch on a stream.
 *
 *   cc embed.c -o embed $(pkg-config --cflags --libs fagen) -ldl
 *
 * Needs no CUDA header and no CUDA library to build: the driver calls that own memory and stream are found with dlsym.
 * A program that has cuda.h or the CUDA runtime uses those instead; a CUstream and a cudaStream_t are both a
 * fagen_stream, and any device pointer will do. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/fagen.h" /* <fagen.h> once installed */

static const char spec_text[] = "fagen: 1\nhead_dim: 64\ndtype: bf16\nmask: causal\nkv_group: 4\noutputs: [out, lse]\n";
enum { BATCH = 2, HEADS_Q = 8, HEADS_KV = 2, SEQ = 1000, DIM = 64 };

/* The driver API, as far as this program needs it. A device pointer is a 64-bit integer there. */
static int (*cuInit)(unsigned), (*cuDevicePrimaryCtxRetain)(void **, int), (*cuCtxPushCurrent)(void *);
static int (*cuMemAlloc)(uint64_t *, size_t), (*cuMemcpyHtoD)(uint64_t, const void *, size_t);
static int (*cuMemcpyDtoH)(void *, uint64_t, size_t), (*cuStreamCreate)(void **, unsigned),
    (*cuStreamSynchronize)(void *);
static int (*cuDeviceGet)(int *, int);

static void must(int failed, const char *what)
{
	if (failed) {
		fprintf(stderr, "embed: %s\n", what);
		exit(1);
	}
}

static void find(void *to, void *library, const char *name)
{
	void *address = library ? dlsym(library, name) : NULL;
	must(!address, library ? name : "there is no NVIDIA driver on this machine (libcuda.so.1)");
	memcpy(to, &address, sizeof address);
}

/* A bfloat16 tensor [batch][seq][heads][64], as most frameworks keep it: heads and seq change places by stride alone.
 */
static fagen_tensor tensor(int heads, float value)
{
	const size_t count = (size_t)BATCH * SEQ * heads * DIM;
	uint16_t *host = malloc(count * 2), bits;
	uint64_t device = 0;
	memcpy(&bits, (char *)&value + 2, 2); /* the upper half of a float, on a little-endian machine */
	for (size_t i = 0; host && i < count; i++)
		host[i] = bits;
	must(!host || cuMemAlloc(&device, count * 2) || cuMemcpyHtoD(device, host, count * 2),
	     "no memory on the device");
	free(host);
	return (fagen_tensor){.data = (void *)(uintptr_t)device,
	                      .stride_batch = (int64_t)SEQ * heads * DIM,
	                      .stride_head = DIM,
	                      .stride_seq = (int64_t)heads * DIM};
}

int main(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL, *stream = NULL;
	find(&cuInit, cuda, "cuInit"), find(&cuDeviceGet, cuda, "cuDeviceGet"),
	    find(&cuMemAlloc, cuda, "cuMemAlloc_v2");
	find(&cuDevicePrimaryCtxRetain, cuda, "cuDevicePrimaryCtxRetain"),
	    find(&cuCtxPushCurrent, cuda, "cuCtxPushCurrent_v2");
	find(&cuMemcpyHtoD, cuda, "cuMemcpyHtoD_v2"), find(&cuMemcpyDtoH, cuda, "cuMemcpyDtoH_v2");
	find(&cuStreamCreate, cuda, "cuStreamCreate"), find(&cuStreamSynchronize, cuda, "cuStreamSynchronize");
	int device = 0;
	must(cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
	         cuCtxPushCurrent(context) || cuStreamCreate(&stream, 1),
	     "the GPU cannot be used");

	fagen_error error = {.struct_size = sizeof error};
	fagen_runtime *runtime;
	fagen_spec *spec;
	fagen_kernel *kernel;
	must(fagen_open(&runtime, NULL, &error), error.message);
	must(fagen_spec_parse(&spec, runtime, spec_text, strlen(spec_text), "embed", &error), error.message);
	must(fagen_kernel_get(&kernel, runtime, spec, NULL, 0, &error),
	     error.message); /* compiles once, then cached on disk */
	fagen_kernel_info info = {.struct_size = sizeof info};
	must(fagen_kernel_describe(&info, kernel, &error), error.message);
	printf("%s, tile %d x %d, %d registers, %s\n", info.target, info.tile_m[0], info.tile_n[0], info.registers[0],
	       info.source[0]);

	fagen_args args = {.struct_size = sizeof args,
	                   .batch = BATCH,
	                   .heads_q = HEADS_Q,
	                   .heads_kv = HEADS_KV,
	                   .seqlen_q = SEQ,
	                   .seqlen_k = SEQ,
	                   .query = tensor(HEADS_Q, 0.5f),
	                   .key = tensor(HEADS_KV, 0.25f),
	                   .value = tensor(HEADS_KV, 3.0f),
	                   .out = tensor(HEADS_Q, 0.0f)};
	uint64_t lse = 0, workspace = 0;
	must(cuMemAlloc(&lse, sizeof(float) * BATCH * HEADS_Q * SEQ), "no memory for lse");
	args.lse = (fagen_tensor){(void *)(uintptr_t)lse, HEADS_Q * SEQ, SEQ, 1};
	must(fagen_workspace_size(&args.workspace_size, kernel, &args, &error), error.message);
	must(args.workspace_size && cuMemAlloc(&workspace, args.workspace_size), "no memory for the workspace");
	args.workspace = (void *)(uintptr_t)workspace;
	must(fagen_forward(kernel, &args, stream, &error), error.message);

	uint16_t first = 0;
	must(cuStreamSynchronize(stream) || cuMemcpyDtoH(&first, (uintptr_t)args.out.data, 2), "the kernel failed");
	printf("out[0] = 0x%04x (3.0 is 0x4040 in bfloat16)\n", first);
	fagen_close(runtime);
	return 0;
}
