#include "tests/gpu/spread.h"

#include <string.h>

#include "runtime/driver.h"

enum { CTAS_SM = 8, THREADS = 256 };

/* Offsets are 64 bits wide throughout: this is what the kernels under test are measured by. */
const char spread_source[] =
	"typedef long long i64;\n"
	"typedef unsigned long long u64;\n"
	"struct spread { i64 batch, heads, seq, dim; int bytes; i64 period_batch, period_seq, stride_batch, stride_head, stride_seq, elements; };\n"
	"#define EACH(i, n) for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < (n); i += gridDim.x * (i64)blockDim.x)\n"
	"__device__ void place(i64 &wide, i64 &small, i64 i, const spread &p)\n"
	"{\n"
	"\ti64 d = i % p.dim, s = i / p.dim % p.seq, h = i / p.dim / p.seq % p.heads, b = i / p.dim / p.seq / p.heads;\n"
	"\twide = b * p.stride_batch + h * p.stride_head + s * p.stride_seq + d;\n"
	"\tsmall = ((b % p.period_batch * p.heads + h) * p.period_seq + s % p.period_seq) * p.dim + d;\n"
	"}\n"
	"extern \"C\" __global__ void scatter(void *wide, void *small, spread p)\n"
	"{\n"
	"\tEACH(i, p.batch * p.heads * p.seq * p.dim) {\n"
	"\t\ti64 to, from;\n"
	"\t\tplace(to, from, i, p);\n"
	"\t\tif (p.bytes == 4)\n"
	"\t\t\t((unsigned *)wide)[to] = ((unsigned *)small)[from];\n"
	"\t\telse\n"
	"\t\t\t((unsigned short *)wide)[to] = ((unsigned short *)small)[from];\n"
	"\t}\n"
	"}\n"
	"__device__ bool close(unsigned x, unsigned y, int bytes, float tolerance)\n"
	"{\n"
	"\tif (x == y || bytes == 4 || tolerance == 0)\n"
	"\t\treturn x == y;\n"
	"\tfloat a = __uint_as_float(x << 16), b = __uint_as_float(y << 16);\n"
	"\treturn fabsf(a - b) <= tolerance * fmaxf(fabsf(a), fabsf(b)) + 1e-5f;\n"
	"}\n"
	"extern \"C\" __global__ void compare(void *wide, void *small, spread p, float tolerance, u64 *result)\n"
	"{\n"
	"\tEACH(i, p.batch * p.heads * p.seq * p.dim) {\n"
	"\t\ti64 at, from;\n"
	"\t\tplace(at, from, i, p);\n"
	"\t\tunsigned x = p.bytes == 4 ? ((unsigned *)wide)[at] : ((unsigned short *)wide)[at];\n"
	"\t\tunsigned y = p.bytes == 4 ? ((unsigned *)small)[from] : ((unsigned short *)small)[from];\n"
	"\t\tif (!close(x, y, p.bytes, tolerance)) {\n"
	"\t\t\tatomicAdd(result, 1ull);\n"
	"\t\t\tatomicMin(result + 1, (u64)i);\n"
	"\t\t}\n"
	"\t}\n"
	"}\n"
	"extern \"C\" __global__ void count(void *wide, spread p, u64 *result)\n"
	"{\n"
	"\tu64 written = 0;\n"
	"\tEACH(i, p.elements)\n"
	"\t\twritten += p.bytes == 4 ? ((unsigned *)wide)[i] != 0xffffffffu : ((unsigned short *)wide)[i] != 0xffffu;\n"
	"\tif (written)\n"
	"\t\tatomicAdd(result, written);\n"
	"}\n";

int spreader_open(struct spreader *s, fagen_runtime *rt, int device, struct diag *diag)
{
	struct gpu gpu;
	struct text source = {0};
	struct cubin cubin = {0};
	struct fault fault = {.diag = diag};
	struct driver *driver = runtime_driver(rt);
	*s = (struct spreader){.rt = rt, .device = device};
	if (gpu_open(&gpu, rt, device, diag))
		return -1;
	const struct target *target = target_for_cc(gpu.cc);
	if (!target)
		return diag_fail(diag, "No target of fagen runs on compute capability %d.%d.", gpu.cc / 10,
		                 gpu.cc % 10);
	text_puts(&source, spread_source);
	int rc = compiler_run(&cubin, runtime_compiler(rt), &source, target, diag);
	text_free(&source);
	if (!rc && !(rc = driver_push(driver, device, &fault))) {
		const struct cuda_calls *cu = driver_calls(driver);
		cu_result r = cu->cuLibraryLoadData(&s->library, cubin.code, NULL, NULL, 0, NULL, NULL, 0);
		if (!r)
			r = cu->cuLibraryGetKernel(&s->scatter, s->library, "scatter");
		if (!r)
			r = cu->cuLibraryGetKernel(&s->compare, s->library, "compare");
		if (!r)
			r = cu->cuLibraryGetKernel(&s->count, s->library, "count");
		rc = r ? driver_fail(driver, &fault, r, "Loading the kernels that compare") : 0;
		rc = driver_pop(driver, &fault) || rc ? -1 : 0;
	}
	cubin_free(&cubin);
	return rc || gpu_alloc(&s->result, rt, device, 3 * sizeof(uint64_t), diag) ? -1 : 0;
}

void spreader_close(struct spreader *s)
{
	struct diag ignored = {0};
	struct fault fault = {.diag = &ignored};
	gpu_free(&s->result, s->rt, s->device);
	if (s->library && !driver_push(runtime_driver(s->rt), s->device, &fault)) {
		driver_calls(runtime_driver(s->rt))->cuLibraryUnload(s->library);
		(void)driver_pop(runtime_driver(s->rt), &fault);
	}
	diag_free(&ignored);
	memset(s, 0, sizeof *s);
}

static int launch(struct spreader *s, cu_kernel kernel, void **params, struct diag *diag)
{
	struct fault fault = {.diag = diag};
	struct driver *driver = runtime_driver(s->rt);
	struct gpu gpu;
	if (driver_device(&gpu, driver, s->device, diag) || driver_push(driver, s->device, &fault))
		return -1;
	const struct cuda_calls *cu = driver_calls(driver);
	cu_result r = cu->cuLaunchKernel((cu_function)(void *)kernel, (unsigned int)gpu.sms * CTAS_SM, 1, 1, THREADS, 1,
	                                 1, 0, NULL, params, NULL);
	if (!r)
		r = cu->cuCtxSynchronize();
	const int rc = r ? driver_fail(driver, &fault, r, "Comparing on the device") : 0;
	return driver_pop(driver, &fault) || rc ? -1 : 0;
}

int spread_scatter(const struct gpu_buffer *wide, const struct gpu_buffer *small, const struct spread *p,
                   struct spreader *s, struct diag *diag)
{
	uint64_t to = wide->data, from = small->data;
	struct spread copy = *p;
	return launch(s, s->scatter, (void *[]){&to, &from, &copy}, diag);
}

int spread_compare(struct spread_difference *d, const struct gpu_buffer *wide, const struct gpu_buffer *small,
                   const struct spread *p, float tolerance, struct spreader *s, struct diag *diag)
{
	uint64_t at = wide->data, from = small->data, counts = s->result.data, written = counts + 2 * sizeof(uint64_t);
	struct spread copy = *p;
	*d = (struct spread_difference){.first = UINT64_MAX};
	return gpu_upload(&s->result, 0, d, sizeof *d, s->rt, s->device, diag) ||
	                       launch(s, s->compare, (void *[]){&at, &from, &copy, &tolerance, &counts}, diag) ||
	                       launch(s, s->count, (void *[]){&at, &copy, &written}, diag) ||
	                       gpu_download(d, &s->result, 0, sizeof *d, s->rt, s->device, diag)
	               ? -1
	               : 0;
}
