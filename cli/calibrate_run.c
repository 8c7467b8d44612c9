/* calibrate_run: the microbenchmarks of templates/calibrate.cu on a GPU. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/calibrate.h"
#include "cli/cli.h"
#include "gen/embed.h"
#include "runtime/driver.h"
#include "templates/calibrate_abi.h"

enum bench_kernel {
	KERNEL_MMA,
	KERNEL_EXP,
	KERNEL_ALU,
	KERNEL_SHARED,
	KERNEL_L2,
	KERNEL_COPY,
	KERNEL_NOTHING,
	KERNEL_COUNT
};
static const char *const entries[KERNEL_COUNT] = {
	"calibrate_mma", "calibrate_exp",  "calibrate_alu",     "calibrate_shared",
	"calibrate_l2",  "calibrate_copy", "calibrate_nothing",
};

enum {
	ROUNDS = 4096,      /* some hundred microseconds to a millisecond */
	LAUNCHES = 1000,    /* of the empty kernel in a repetition */
	LOAD_LAUNCHES = 36, /* of the matrix kernel, for the clock under load; the last ones count */
	CHUNK = 16
};
static const double load_ns = 12e6;      /* of one of them: 36 take 0.4 s, enough for clocks to settle */
static const double l2_bytes_read = 8e9; /* in a repetition */
static const size_t copy_bytes = 1u << 30;

struct rig {
	fagen_runtime *rt;
	const struct cuda_calls *cu;
	const struct gpu *gpu;
	const struct target *target;
	cu_library library;
	cu_kernel kernel[KERNEL_COUNT];
	cu_event begin, end;
	cu_deviceptr times, sink, from, to;
	size_t bytes;                      /* of from, and of to */
	struct fagen_calibrate_time *time; /* one for each SM */
	double *clocks;
	struct fault fault;
};

int calibrate_emit(struct text *out, const char *templates_dir, struct diag *diag)
{
	static const char *const parts[] = {"calibrate_abi.h", "ptx.h", "calibrate.cu"};
	text_addf(out,
	          "// Microbenchmarks. Written by fagen %s.\n\n"
	          "#define DEVICE static __device__ __forceinline__\n"
	          "#pragma nv_diag_suppress 177 // these kernels use little of ptx.h\n\n",
	          FAGEN_VERSION);
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		text_addf(out, "#line 1 \"templates/%s\"\n", parts[i]);
		if (embed_read(out, parts[i], templates_dir, diag))
			return -1;
	}
	return 0;
}

static int fail(struct rig *r, cu_result result, const char *what)
{
	return driver_fail(runtime_driver(r->rt), &r->fault, result, what);
}

/* ---- set-up ---- */

static int calls_check(const struct cuda_calls *cu, struct diag *diag)
{
	if (cu->cuMemAlloc_v2 && cu->cuMemFree_v2 && cu->cuMemGetInfo_v2 && cu->cuMemcpyDtoH_v2 && cu->cuMemsetD8_v2 &&
	    cu->cuEventCreate && cu->cuEventDestroy_v2 && cu->cuEventRecord && cu->cuEventSynchronize &&
	    cu->cuEventElapsedTime)
		return 0;
	return diag_fail(diag,
	                 "The NVIDIA driver lacks the memory and event calls that measuring needs (cuMemAlloc_v2, "
	                 "cuEventCreate and their kin).");
}

static int kernels_load(struct rig *r, int ordinal)
{
	struct diag *diag = r->fault.diag;
	struct text source = {0};
	struct cubin cubin = {0};
	cu_device device;
	int rc = calibrate_emit(&source, runtime_templates(r->rt), diag) ||
	                         compiler_run(&cubin, runtime_compiler(r->rt), &source, r->target, diag)
	                 ? -1
	                 : 0;
	text_free(&source);
	if (!rc) {
		cu_result e = r->cu->cuDeviceGet(&device, ordinal);
		if (!e)
			e = r->cu->cuLibraryLoadData(&r->library, cubin.code, NULL, NULL, 0, NULL, NULL, 0);
		for (int i = 0; i < KERNEL_COUNT && !e; i++)
			e = r->cu->cuLibraryGetKernel(&r->kernel[i], r->library, entries[i]);
		/* All of an SM's shared memory: one CTA for each SM. */
		for (int i = 0; i <= KERNEL_SHARED && !e; i++)
			e = r->cu->cuKernelSetAttribute(CU_KERNEL_MAX_DYNAMIC_SMEM, r->gpu->smem_block, r->kernel[i],
			                                device);
		rc = e ? fail(r, e, "Loading the microbenchmarks") : 0;
	}
	cubin_free(&cubin);
	return rc;
}

static int memory_get(struct rig *r)
{
	const size_t sms = (size_t)r->gpu->sms, ctas = sms * (size_t)(r->target->threads_sm / CALIBRATE_THREADS);
	size_t available = 0, total = 0;
	r->time = calloc(sms, sizeof *r->time);
	r->clocks = calloc(sms, sizeof *r->clocks);
	if (!r->time || !r->clocks)
		return diag_fail(r->fault.diag, "Out of memory.");
	cu_result e = r->cu->cuMemGetInfo_v2(&available, &total);
	r->bytes = available / 4 < copy_bytes ? available / 4 : copy_bytes;
	r->bytes -= r->bytes % CHUNK;
	if (!e && (r->gpu->l2_bytes <= 0 || r->bytes < 4 * (size_t)r->gpu->l2_bytes))
		return diag_fail(
			r->fault.diag,
			"Measuring DRAM bandwidth needs %d MiB of free memory on the GPU, 16 times its L2; %zu MiB "
			"are free.",
			16 * (r->gpu->l2_bytes >> 20), available >> 20);
	const struct {
		cu_deviceptr *to;
		size_t bytes;
	} part[] = {{&r->times, sms * sizeof *r->time},
	            {&r->sink, ctas * CALIBRATE_THREADS * sizeof(float)},
	            {&r->from, r->bytes},
	            {&r->to, r->bytes}};
	for (int i = 0; i < 4 && !e; i++) {
		e = r->cu->cuMemAlloc_v2(part[i].to, part[i].bytes);
		if (!e)
			e = r->cu->cuMemsetD8_v2(*part[i].to, 0, part[i].bytes);
	}
	if (!e)
		e = r->cu->cuEventCreate(&r->begin, 0);
	if (!e)
		e = r->cu->cuEventCreate(&r->end, 0);
	return e ? fail(r, e, "Getting memory on the GPU to measure with") : 0;
}

static void rig_free(struct rig *r)
{
	const cu_deviceptr memory[] = {r->times, r->sink, r->from, r->to};
	for (int i = 0; i < 4; i++)
		if (memory[i])
			r->cu->cuMemFree_v2(memory[i]);
	if (r->begin)
		r->cu->cuEventDestroy_v2(r->begin);
	if (r->end)
		r->cu->cuEventDestroy_v2(r->end);
	if (r->library)
		r->cu->cuLibraryUnload(r->library);
	free(r->time);
	free(r->clocks);
}

/* ---- measuring ---- */

/* Launches a kernel `launches` times; microseconds of all of them. CTAs of the first kernels have an SM to themselves. */
static int launch(double *us, struct rig *r, enum bench_kernel which, int launches, size_t bytes, int rounds)
{
	const bool alone = which <= KERNEL_SHARED;
	const unsigned int sms = (unsigned int)r->gpu->sms,
			   ctas = alone ? sms : sms * (unsigned int)(r->target->threads_sm / CALIBRATE_THREADS);
	struct fagen_calibrate abi = {.times = r->times,
	                              .sink = r->sink,
	                              .from = r->from,
	                              .to = r->to,
	                              .chunks = (unsigned int)(bytes / CHUNK),
	                              .rounds = rounds};
	void *params[] = {&abi};
	float ms = 0;
	cu_result e = r->cu->cuEventRecord(r->begin, NULL);
	for (int i = 0; i < launches && !e; i++)
		e = r->cu->cuLaunchKernel((cu_function)(void *)r->kernel[which], which == KERNEL_NOTHING ? 1 : ctas, 1,
		                          1, CALIBRATE_THREADS, 1, 1, alone ? (unsigned int)r->gpu->smem_block : 0,
		                          NULL, params, NULL);
	if (!e)
		e = r->cu->cuEventRecord(r->end, NULL);
	if (!e)
		e = r->cu->cuEventSynchronize(r->end);
	if (!e)
		e = r->cu->cuEventElapsedTime(&ms, r->begin, r->end);
	*us = (double)ms * 1e3;
	return e ? fail(r, e, entries[which]) : 0;
}

/* What the CTAs of the last launch took, by their own clocks: the median. */
static int times_read(double *clocks, double *ns, struct rig *r)
{
	const int n = r->gpu->sms;
	const cu_result e = r->cu->cuMemcpyDtoH_v2(r->time, r->times, (size_t)n * sizeof *r->time);
	if (e)
		return fail(r, e, "Reading the times of a microbenchmark");
	for (int i = 0; i < n; i++)
		r->clocks[i] = (double)r->time[i].clocks;
	*clocks = median_of(r->clocks, n);
	for (int i = 0; i < n; i++)
		r->clocks[i] = (double)r->time[i].ns;
	*ns = median_of(r->clocks, n);
	return 0;
}

/* The rates per clock and SM. `amount`: of one CTA in one round. */
static int clocks_measure(struct measured *m, struct rig *r, enum bench_kernel which, double amount)
{
	double us, clocks, ns;
	for (int i = -1; i < REPETITIONS; i++) { /* the first warms up */
		if (launch(&us, r, which, 1, 0, ROUNDS) || times_read(&clocks, &ns, r))
			return -1;
		if (i >= 0) {
			m->amount[i] = amount * ROUNDS;
			m->over[i] = clocks;
		}
	}
	return 0;
}

/* The clock that the GPU keeps up while it does nothing but matrix products. */
static int clock_measure(struct measured *m, struct rig *r)
{
	double us, clocks, ns;
	if (launch(&us, r, KERNEL_MMA, 1, 0, ROUNDS) || times_read(&clocks, &ns, r))
		return -1;
	const double rounds = ns > 0 ? ROUNDS * load_ns / ns : ROUNDS;
	for (int i = REPETITIONS - LOAD_LAUNCHES; i < REPETITIONS; i++) {
		if (launch(&us, r, KERNEL_MMA, 1, 0, rounds < 1e8 ? (int)rounds : ROUNDS) ||
		    times_read(&clocks, &ns, r))
			return -1;
		if (i >= 0) {
			m->amount[i] = clocks;
			m->over[i] = ns;
		}
	}
	return 0;
}

static int bandwidth_measure(struct measured *m, struct rig *r, enum bench_kernel which, size_t bytes, int rounds,
                             double amount)
{
	double us;
	for (int i = -1; i < REPETITIONS; i++) {
		if (launch(&us, r, which, 1, bytes, rounds))
			return -1;
		if (i >= 0) {
			m->amount[i] = amount;
			m->over[i] = us * 1e3;
		}
	}
	return 0;
}

static int launches_measure(struct measured *m, struct rig *r)
{
	double us;
	for (int i = -1; i < REPETITIONS; i++) {
		if (launch(&us, r, KERNEL_NOTHING, LAUNCHES, 0, 0))
			return -1;
		if (i >= 0) {
			m->amount[i] = us;
			m->over[i] = LAUNCHES;
		}
	}
	return 0;
}

static int all_measure(struct measured measured[MEASURE_COUNT], struct rig *r)
{
	const double warps = CALIBRATE_THREADS / 32.0;
	const int ctas = r->gpu->sms * (r->target->threads_sm / CALIBRATE_THREADS);
	const double l2_round = (double)ctas * CALIBRATE_THREADS * CALIBRATE_READS * CHUNK;
	const int l2_rounds = (int)ceil(l2_bytes_read / l2_round);
	return launches_measure(&measured[MEASURE_LAUNCH], r) ||
	                       clocks_measure(&measured[MEASURE_MMA], r, KERNEL_MMA,
	                                      warps * CALIBRATE_PRODUCTS * CALIBRATE_PRODUCT_FLOP) ||
	                       clocks_measure(&measured[MEASURE_EXP], r, KERNEL_EXP,
	                                      CALIBRATE_THREADS * CALIBRATE_LANE_OPS) ||
	                       clocks_measure(&measured[MEASURE_ALU], r, KERNEL_ALU,
	                                      CALIBRATE_THREADS * CALIBRATE_LANE_OPS) ||
	                       clocks_measure(&measured[MEASURE_SMEM], r, KERNEL_SHARED, CALIBRATE_SHARED) ||
	                       bandwidth_measure(&measured[MEASURE_L2], r, KERNEL_L2, (size_t)r->gpu->l2_bytes / 4,
	                                         l2_rounds, l2_round * l2_rounds) ||
	                       bandwidth_measure(&measured[MEASURE_HBM], r, KERNEL_COPY, r->bytes, 0,
	                                         2.0 * (double)r->bytes) ||
	                       clock_measure(&measured[MEASURE_CLOCK], r)
	               ? -1
	               : 0;
}

int calibrate_run(struct measured measured[MEASURE_COUNT], struct gpu *gpu, fagen_runtime *rt, int ordinal,
                  struct diag *diag)
{
	struct driver *driver = runtime_driver(rt);
	struct rig r = {.rt = rt, .gpu = gpu, .fault = {.diag = diag}};
	const struct device *ignored;
	if (driver_device(gpu, driver, ordinal, diag) || runtime_machine(&r.target, &ignored, rt, ordinal, diag))
		return -1;
	r.cu = driver_calls(driver);
	if (calls_check(r.cu, diag) || driver_push(driver, ordinal, &r.fault))
		return -1;
	const int rc = kernels_load(&r, ordinal) || memory_get(&r) || all_measure(measured, &r) ? -1 : 0;
	rig_free(&r);
	return driver_pop(driver, &r.fault) ? -1 : rc;
}
