/* bench_overhead: what calls cost the CPU, and how much of it is the driver's own: the driver's calls that a launch makes are
 * recorded once, and made again alone. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/bench.h"
#include "cli/cli.h"
#include "runtime/driver.h"
#include "templates/abi.h"

enum { STARTS = 15, ROUNDS = 25, CALLS = 64, LOOKUPS = 20000, LENGTH = 64 };

static double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ---- the driver's part of a launch ---- */

static struct recording { /* of one launch of one pass; the calls have no place for a context of ours */
	struct cuda_calls real;
	int kernels, maps, clears;
	struct {
		cu_function function;
		unsigned int grid, threads, smem;
		struct fagen_abi abi;
		struct fagen_abi_maps maps;
	} kernel[RECIPE_KERNELS_MAX];
	struct {
		void *address;
		uint64_t size[4], stride[3];
		uint32_t box[4], step[4];
	} map[RECIPE_MAPS_MAX];
	struct {
		cu_deviceptr at;
		size_t words;
	} clear[RECIPE_PIECES_MAX];
} recording;

static cu_result launch_record(cu_function function, unsigned int grid, unsigned int grid_y, unsigned int grid_z, unsigned int threads,
                               unsigned int threads_y, unsigned int threads_z, unsigned int smem, cu_stream stream, void **params,
                               void **extra)
{
	const int i = recording.kernels++;
	recording.kernel[i].function = function;
	recording.kernel[i].grid = grid;
	recording.kernel[i].threads = threads;
	recording.kernel[i].smem = smem;
	memcpy(&recording.kernel[i].abi, params[0], sizeof recording.kernel[i].abi);
	memcpy(&recording.kernel[i].maps, params[1], sizeof recording.kernel[i].maps);
	return recording.real.cuLaunchKernel(function, grid, grid_y, grid_z, threads, threads_y, threads_z, smem, stream, params, extra);
}

static cu_result launch_again(int i)
{
	void *params[] = {&recording.kernel[i].abi, &recording.kernel[i].maps};
	return recording.real.cuLaunchKernel(recording.kernel[i].function, recording.kernel[i].grid, 1, 1, recording.kernel[i].threads, 1, 1,
	                                     recording.kernel[i].smem, NULL, params, NULL);
}

static cu_result map_again(struct fagen_abi_map *map, int i)
{
	return recording.real.cuTensorMapEncodeTiled((cu_tensor_map *)map, CU_TENSOR_UINT16, 4, recording.map[i].address, recording.map[i].size,
	                                             recording.map[i].stride, recording.map[i].box, recording.map[i].step,
	                                             CU_TENSOR_INTERLEAVE_NONE, CU_TENSOR_SWIZZLE_128B, CU_TENSOR_L2_256B, CU_TENSOR_FILL_ZEROS);
}

static cu_result map_record(cu_tensor_map *map, unsigned int type, uint32_t rank, void *address, const uint64_t *size,
                            const uint64_t *stride, const uint32_t *box, const uint32_t *step, unsigned int interleave,
                            unsigned int swizzle, unsigned int l2_promotion, unsigned int fill)
{
	const int i = recording.maps++;
	recording.map[i].address = address;
	memcpy(recording.map[i].size, size, sizeof recording.map[i].size);
	memcpy(recording.map[i].stride, stride, sizeof recording.map[i].stride);
	memcpy(recording.map[i].box, box, sizeof recording.map[i].box);
	memcpy(recording.map[i].step, step, sizeof recording.map[i].step);
	return map_again((struct fagen_abi_map *)map, i);
}

static cu_result clear_record(cu_deviceptr at, unsigned int value, size_t words, cu_stream stream)
{
	recording.clear[recording.clears].at = at;
	recording.clear[recording.clears++].words = words;
	return recording.real.cuMemsetD32Async(at, value, words, stream);
}

/* The launch, with its calls recorded. The table of calls is the driver object's, which is not const. */
static int record(enum pass pass, const fagen_kernel *kernel, const fagen_args *args, struct driver *driver, fagen_error *error)
{
	struct cuda_calls *calls = (struct cuda_calls *)(uintptr_t)driver_calls(driver);
	recording = (struct recording){.real = *calls};
	calls->cuLaunchKernel = launch_record;
	calls->cuMemsetD32Async = clear_record;
	if (calls->cuTensorMapEncodeTiled)
		calls->cuTensorMapEncodeTiled = map_record;
	const int code = launch_of(pass)(kernel, args, NULL, error);
	*calls = recording.real;
	return code;
}

/* ---- times ---- */

/* TOGETHER: clearings and kernels as a launch has them, one after the other; which may take longer than each alone. */
enum part { WHOLE, KERNELS, MAPS, CLEARS, TOGETHER, PARTS };

static cu_result part_run(enum part part)
{
	cu_result r = CU_OK;
	struct fagen_abi_map map;
	for (int i = 0; part == MAPS && i < recording.maps && !r; i++)
		r = map_again(&map, i);
	for (int i = 0; (part == CLEARS || part == TOGETHER) && i < recording.clears && !r; i++)
		r = recording.real.cuMemsetD32Async(recording.clear[i].at, 0, recording.clear[i].words, NULL);
	for (int i = 0; (part == KERNELS || part == TOGETHER) && i < recording.kernels && !r; i++)
		r = launch_again(i);
	return r;
}

/* Medians of rounds, by turns; between rounds the GPU comes to rest, so that no call waits for room in its queue. */
static int launch_times(double us[PARTS], const struct bench *b, const fagen_kernel *kernel, enum pass pass, struct diag *diag,
                        int *status)
{
	struct driver *driver = runtime_driver(b->rt);
	struct fault fault = {.diag = diag};
	fagen_error error = {.struct_size = sizeof error};
	const fagen_args args = args_make(b, 0, pass);
	launch_call *const launch = launch_of(pass);
	double each[PARTS][ROUNDS];
	cu_result r = CU_OK;
	if (record(pass, kernel, &args, driver, &error))
		return error_give(diag, &error, status);
	for (int round = 0; round < ROUNDS && !r; round++)
		for (int part = 0; part < PARTS && !r; part++) {
			const double begin = now_us();
			for (int i = 0; i < CALLS && !r; i++)
				if (part)
					r = part_run((enum part)part);
				else if (launch(kernel, &args, NULL, &error))
					return error_give(diag, &error, status);
			each[part][round] = (now_us() - begin) / CALLS;
			if (!r)
				r = recording.real.cuCtxSynchronize();
		}
	*status = EXIT_MACHINE;
	if (r)
		return driver_fail(driver, &fault, r, "Timing launches");
	for (int part = 0; part < PARTS; part++)
		us[part] = median_of(each[part], ROUNDS);
	return 0;
}

static int launches_print(struct bench *b, const fagen_kernel *kernel, struct diag *diag, int *status)
{
	fagen_error error = {.struct_size = sizeof error};
	for (int pass = 0; pass < PASS_COUNT; pass++) {
		double us[PARTS];
		if (!runtime_plan(kernel, pass))
			continue;
		if (launch_times(us, b, kernel, pass, diag, status))
			return -1;
		const int kernels = recording.kernels, maps = recording.maps, clears = recording.clears;
		const fagen_args args = args_make(b, 0, pass);
		if (record(pass, kernel, &args, runtime_driver(b->rt), &error))
			return error_give(diag, &error, status);
		const bool kept = maps && !recording.maps;
		const double own = us[WHOLE] - us[TOGETHER] - (kept ? 0 : us[MAPS]);
		printf("%-20s %9.3f us   the driver: %.3f for %d kernel%s", pass == PASS_FORWARD ? "fagen_forward" : "fagen_backward", us[WHOLE],
		       us[KERNELS], kernels, kernels == 1 ? "" : "s");
		if (clears)
			printf(", %.3f for %d clearing%s, %.3f for both by turns", us[CLEARS], clears, clears == 1 ? "" : "s", us[TOGETHER]);
		if (maps)
			printf(", %.3f for %d tensor maps%s", us[MAPS], maps, kept ? " (not in it: they were kept)" : "");
		printf("; fagen's own: %.0f ns a kernel\n", own * 1e3 / kernels);
	}
	return 0;
}

/* ---- a warm start ---- */

static double driver_us; /* in the calls below, which take nearly all the time that a start spends in the driver */

#define TIMED(call, parameters, arguments) \
	static cu_result timed_##call parameters \
	{ \
		const double begin = now_us(); \
		const cu_result r = recording.real.call arguments; \
		driver_us += now_us() - begin; \
		return r; \
	}
TIMED(cuDevicePrimaryCtxRetain, (cu_context * context, cu_device device), (context, device))
TIMED(cuLibraryLoadData,
      (cu_library * library, const void *code, unsigned int *jit, void **jit_values, unsigned int jit_count, unsigned int *options,
       void **values, unsigned int count),
      (library, code, jit, jit_values, jit_count, options, values, count))
TIMED(cuLibraryGetKernel, (cu_kernel * kernel, cu_library library, const char *name), (kernel, library, name))
TIMED(cuKernelSetAttribute, (unsigned int attribute, int value, cu_kernel kernel, cu_device device), (attribute, value, kernel, device))
TIMED(cuKernelGetFunction, (cu_function * function, cu_kernel kernel), (function, kernel))
TIMED(cuFuncLoad, (cu_function function), (function))
TIMED(cuLaunchKernel,
      (cu_function function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz,
       unsigned int smem, cu_stream stream, void **params, void **extra),
      (function, gx, gy, gz, bx, by, bz, smem, stream, params, extra))

/* Starts the driver of a new runtime, and has its calls timed. */
static int driver_time(struct driver *driver, struct diag *diag)
{
	const double begin = now_us();
	if (driver_init(driver, diag))
		return -1;
	struct cuda_calls *calls = (struct cuda_calls *)(uintptr_t)driver_calls(driver);
	recording.real = *calls;
	calls->cuDevicePrimaryCtxRetain = timed_cuDevicePrimaryCtxRetain;
	calls->cuLibraryLoadData = timed_cuLibraryLoadData;
	calls->cuLibraryGetKernel = timed_cuLibraryGetKernel;
	calls->cuKernelSetAttribute = timed_cuKernelSetAttribute;
	calls->cuKernelGetFunction = timed_cuKernelGetFunction;
	if (calls->cuFuncLoad)
		calls->cuFuncLoad = timed_cuFuncLoad;
	calls->cuLaunchKernel = timed_cuLaunchKernel;
	driver_us = now_us() - begin;
	return 0;
}

/* A new runtime that finds its kernels in the cache, to the first launch; CUDA is up. */
static int start_print(struct bench *b, const char *path, const fagen_problem *wish, struct diag *diag, int *status)
{
	const fagen_args args = args_make(b, 0, PASS_FORWARD);
	fagen_error error = {.struct_size = sizeof error};
	double each[STARTS], of_driver[STARTS];
	for (int i = 0; i < STARTS; i++) {
		fagen_runtime *rt = NULL;
		fagen_spec *spec;
		fagen_kernel *kernel;
		const double begin = now_us();
		if (fagen_open(&rt, NULL, &error))
			return error_give(diag, &error, status);
		if (driver_time(runtime_driver(rt), diag)) {
			fagen_close(rt);
			return -1;
		}
		const bool bad = fagen_spec_load(&spec, rt, path, &error) ||
		                 fagen_kernel_get(&kernel, rt, spec, wish, b->options->device, &error) ||
		                 fagen_forward(kernel, &args, NULL, &error);
		each[i] = now_us() - begin;
		of_driver[i] = driver_us;
		const int unfinished = bad ? 0 : gpu_synchronize(rt, b->options->device, diag);
		fagen_close(rt);
		if (bad)
			return error_give(diag, &error, status);
		if (unfinished)
			return -1;
	}
	printf("%-20s %9.3f ms   the driver: %.3f; fagen_open to the first launch, all passes loaded, code in the cache, CUDA up\n",
	       "warm start", median_of(each, STARTS) * 1e-3, median_of(of_driver, STARTS) * 1e-3);
	return 0;
}

static int lookup_print(struct bench *b, fagen_spec *spec, const fagen_problem *wish, struct diag *diag, int *status)
{
	fagen_error error = {.struct_size = sizeof error};
	fagen_kernel *kernel;
	double each[ROUNDS];
	for (int round = 0; round < ROUNDS; round++) {
		const double begin = now_us();
		for (int i = 0; i < LOOKUPS; i++)
			if (fagen_kernel_get(&kernel, b->rt, spec, wish, b->options->device, &error))
				return error_give(diag, &error, status);
		each[round] = (now_us() - begin) / LOOKUPS;
	}
	printf("%-20s %9.3f us   of a kernel got before\n", "fagen_kernel_get", median_of(each, ROUNDS));
	return 0;
}

int overhead_print(struct bench *b, const char *path, struct program *program, struct diag *diag, int *status)
{
	fagen_error error = {.struct_size = sizeof error};
	fagen_spec *spec = NULL;
	fagen_kernel *kernel = NULL;
	struct fault fault = {.diag = diag};
	if (spec_open(&spec, b, path, program, diag, status))
		return -1;
	const fagen_problem wish = problem_wish(&b->problem);
	b->problem.batch = 1; /* what is launched is small: it is not the GPU's time that counts */
	b->problem.seqlen_q = b->problem.seqlen_k = LENGTH;
	*status = EXIT_MACHINE;
	if (fagen_kernel_get(&kernel, b->rt, spec, &wish, b->options->device, &error))
		return error_give(diag, &error, status);
	int rc = -1;
	if (!data_make(b, diag) && !workspace_make(b, kernel, diag, status) &&
	    !driver_push(runtime_driver(b->rt), b->options->device, &fault)) {
		printf("%s\n", b->spec->name);
		rc = start_print(b, path, &wish, diag, status) || lookup_print(b, spec, &wish, diag, status) ||
		     launches_print(b, kernel, diag, status);
		if (driver_pop(runtime_driver(b->rt), &fault))
			rc = -1;
	}
	data_free(b);
	return rc ? -1 : 0;
}
