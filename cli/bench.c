/* fagen bench: the time of a spec's kernels on this machine's GPU, beside what the planner predicted. */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/gpu.h"
#include "check/named.h"
#include "cli/cli.h"
#include "cli/problem_flags.h"
#include "runtime/driver.h"
#include "runtime/runtime.h"

enum { SETS_MAX = 16, WARM_UP = 3, TIMES_MIN = 7, TIMES_MAX = 101, BLOCK = 1 << 20 };
static const double pass_seconds = 0.15; /* of measurement */

struct options {
	struct problem_flags problem;
	int device;
	bool naive, json;
};

/* Inputs and outputs of one problem, several times over: launches take turns, so that none finds its data in L2. */
enum tensor { QUERY, KEY, VALUE, OUT, LSE, DOUT, DQUERY, DKEY, DVALUE, TENSORS };
struct data {
	int sets;
	struct gpu_buffer tensor[SETS_MAX][TENSORS];
	struct gpu_buffer workspace;
	struct gpu_buffer first[2]; /* packed: first rows of the sequences of queries, of keys */
	struct gpu_buffer input[SPEC_INPUTS_MAX], grad[SPEC_INPUTS_MAX]; /* one set of them */
	fagen_input inputs[SPEC_INPUTS_MAX];
};

struct bench {
	fagen_runtime *rt;
	const struct options *options;
	struct gpu gpu;
	struct problem problem;
	const struct spec *spec;
	const struct program *program;
	struct data data;
	struct text json;
};

struct row {
	const char *kernel;
	enum pass pass;
	double us, predicted_us, useful_flop, hbm_bytes;
	char tile[32];
};

static void usage(FILE *out)
{
	fputs("usage: fagen bench SPEC... [options]\n"
	      "Times the kernels of each spec on the GPU: median of single launches, inputs rotated out of L2, and the prediction\n"
	      "beside it. TFLOP/s count the visible cells only. Inputs of the spec are made up as fagen check does.\n" PROBLEM_FLAGS_USAGE
	      "  --device N        which GPU (default 0)\n"
	      "  --naive           standard attention too: scores in memory\n"
	      "  --json            for programs\n"
	      "  -h, --help\n",
	      out);
}

/* ---- device memory ---- */

static int64_t tensor_elements(const struct bench *b, enum tensor t)
{
	const struct problem *p = &b->problem;
	const int64_t q = p->batch * p->heads_q * p->seqlen_q, k = p->batch * p->heads_kv * p->seqlen_k;
	switch (t) {
	case QUERY:
	case DQUERY: return q * b->spec->head_dim_qk;
	case KEY:
	case DKEY: return k * b->spec->head_dim_qk;
	case VALUE:
	case DVALUE: return k * b->spec->head_dim_v;
	case OUT:
	case DOUT: return q * b->spec->head_dim_v;
	default: return q;
	}
}

static int64_t tensor_bytes(const struct bench *b, enum tensor t) { return tensor_elements(b, t) * (t == LSE ? 4 : 2); }

/* Random bits of values in [-2, 2] of both 16-bit types: sign, a few exponents near 1, mantissa. */
static void random_fill(uint16_t *block, enum dtype dtype)
{
	uint64_t x = UINT64_C(0x9E3779B97F4A7C15);
	const int mantissa = dtype == DTYPE_BF16 ? 7 : 10, bias = dtype == DTYPE_BF16 ? 127 : 15;
	for (int i = 0; i < BLOCK; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		const unsigned exponent = (unsigned)bias - (x >> 32 & 3);
		block[i] = (uint16_t)((x >> 40 & 1) << 15 | exponent << mantissa | (x >> 48 & ((1u << mantissa) - 1)));
	}
}

static int tensor_fill(const struct bench *b, const struct gpu_buffer *buffer, const void *block, int64_t bytes,
                       struct diag *diag)
{
	for (int64_t at = 0; at < bytes; at += 2 * BLOCK) {
		const int64_t n = bytes - at < 2 * BLOCK ? bytes - at : 2 * BLOCK;
		if (gpu_upload(buffer, (size_t)at, block, (size_t)n, b->rt, b->options->device, diag))
			return -1;
	}
	return 0;
}

/* What the mask and the score read: dense, made up as for a check. */
static int inputs_make(struct bench *b, struct diag *diag)
{
	const struct problem *p = &b->problem;
	const struct check_case shape = {.batch = p->batch,
	                                 .heads_q = p->heads_q,
	                                 .heads_kv = p->heads_kv,
	                                 .seqlen_q = p->seqlen_q,
	                                 .seqlen_k = p->seqlen_k,
	                                 .seed = 2,
	                                 .whole = true};
	struct named named[SPEC_INPUTS_MAX];
	struct data *d = &b->data;
	int rc = named_make(named, &shape, b->spec) ? diag_fail(diag, "Out of memory for the inputs of the spec.") : 0;
	for (int i = 0; i < b->spec->input_count && !rc; i++) {
		const struct named *n = &named[i];
		const size_t bytes = (size_t)(n->at.elements * n->bytes), grad_bytes = (size_t)n->grad_at.elements * 4;
		if (gpu_alloc(&d->input[i], b->rt, b->options->device, bytes, diag) ||
		    gpu_upload(&d->input[i], 0, n->image, bytes, b->rt, b->options->device, diag) ||
		    (n->input->grad && gpu_alloc(&d->grad[i], b->rt, b->options->device, grad_bytes, diag)))
			rc = -1;
		d->inputs[i] = (fagen_input){.name = n->input->name,
		                             .data = (void *)(uintptr_t)d->input[i].data,
		                             .grad = (void *)(uintptr_t)d->grad[i].data};
		memcpy(d->inputs[i].stride, n->at.stride, sizeof n->at.stride);
		memcpy(d->inputs[i].grad_stride, n->grad_at.stride, sizeof n->grad_at.stride);
	}
	named_free(named);
	return rc;
}

/* Packed: where sequences of equal lengths begin. */
static int sequences_make(struct bench *b, struct diag *diag)
{
	const struct problem *p = &b->problem;
	const size_t bytes = (size_t)(p->batch + 1) * sizeof(int32_t);
	int rc = 0;
	if (b->spec->layout != LAYOUT_PACKED)
		return 0;
	if (p->batch * p->seqlen_q > LENGTH_MAX || p->batch * p->seqlen_k > LENGTH_MAX)
		return diag_fail(diag, "A packed batch has at most %d rows: take a smaller --batch or --seq.",
		                 LENGTH_MAX);
	int32_t *first = malloc(bytes);
	if (!first)
		return diag_fail(diag, "Out of memory.");
	for (int keys = 0; keys < 2 && !rc; keys++) {
		for (int64_t i = 0; i <= p->batch; i++)
			first[i] = (int32_t)(i * (keys ? p->seqlen_k : p->seqlen_q));
		rc = gpu_alloc(&b->data.first[keys], b->rt, b->options->device, bytes, diag) ||
		     gpu_upload(&b->data.first[keys], 0, first, bytes, b->rt, b->options->device, diag);
	}
	free(first);
	return rc ? -1 : 0;
}

static int data_make(struct bench *b, struct diag *diag)
{
	struct data *d = &b->data;
	int64_t set = 0;
	for (int t = 0; t < TENSORS; t++)
		set += tensor_bytes(b, t);
	const int64_t rotate = 3 * (int64_t)b->gpu.l2_bytes,
		      room = (int64_t)gpu_memory_free(b->rt, b->options->device) / 2;
	int64_t sets = set > 0 ? rotate / set + 1 : 1;
	sets = sets > SETS_MAX ? SETS_MAX : sets;
	sets = sets * set > room ? room / set : sets;
	if (sets < 1)
		return diag_fail(diag,
		                 "The problem's tensors take %" PRId64 " bytes; of the GPU's free memory %" PRId64
		                 " may be used. "
		                 "Take a smaller --batch or --seq.",
		                 set, room);
	uint16_t *random = malloc(2 * BLOCK);
	float *lse = malloc(2 * BLOCK);
	int rc = -1;
	if (!random || !lse) {
		diag_fail(diag, "Out of memory.");
		goto out;
	}
	random_fill(random, b->spec->dtype);
	for (int i = 0; i < 2 * BLOCK / 4; i++) /* until forward writes it: that of equal scores */
		lse[i] = logf((float)(b->problem.seqlen_k > 1 ? b->problem.seqlen_k : 1));
	d->sets = (int)sets;
	for (int s = 0; s < d->sets; s++)
		for (int t = 0; t < TENSORS; t++)
			if (gpu_alloc(&d->tensor[s][t], b->rt, b->options->device, (size_t)tensor_bytes(b, t), diag) ||
			    tensor_fill(b, &d->tensor[s][t], t == LSE ? (void *)lse : (void *)random,
			                tensor_bytes(b, t), diag))
				goto out;
	rc = inputs_make(b, diag) || sequences_make(b, diag) ? -1 : 0;
out:
	free(random);
	free(lse);
	return rc;
}

static void data_free(struct bench *b)
{
	for (int s = 0; s < SETS_MAX; s++)
		for (int t = 0; t < TENSORS; t++)
			gpu_free(&b->data.tensor[s][t], b->rt, b->options->device);
	for (int i = 0; i < SPEC_INPUTS_MAX; i++) {
		gpu_free(&b->data.input[i], b->rt, b->options->device);
		gpu_free(&b->data.grad[i], b->rt, b->options->device);
	}
	gpu_free(&b->data.workspace, b->rt, b->options->device);
	for (int keys = 0; keys < 2; keys++)
		gpu_free(&b->data.first[keys], b->rt, b->options->device);
	b->data.sets = 0;
}

static fagen_tensor tensor_dense(const struct bench *b, int set, enum tensor t)
{
	const struct problem *p = &b->problem;
	const bool keys = t == KEY || t == VALUE || t == DKEY || t == DVALUE;
	const bool v = t == VALUE || t == DVALUE || t == OUT || t == DOUT;
	const int64_t row = t == LSE ? 1 : v ? b->spec->head_dim_v : b->spec->head_dim_qk;
	const int64_t rows = (keys ? p->seqlen_k : p->seqlen_q) * (b->spec->layout == LAYOUT_PACKED ? p->batch : 1);
	const int64_t head = row * rows;
	return (fagen_tensor){(void *)(uintptr_t)b->data.tensor[set][t].data, head * (keys ? p->heads_kv : p->heads_q),
	                      head, row};
}

static fagen_args args_make(const struct bench *b, int set, enum pass pass)
{
	const struct problem *p = &b->problem;
	fagen_args a = {.struct_size = sizeof a,
	                .batch = p->batch,
	                .heads_q = p->heads_q,
	                .heads_kv = p->heads_kv,
	                .seqlen_q = p->seqlen_q,
	                .seqlen_k = p->seqlen_k,
	                .seed = 1,
	                .inputs = b->data.inputs,
	                .input_count = (size_t)b->spec->input_count};
	fagen_tensor *to[TENSORS] = {&a.query, &a.key,    &a.value, &a.out,   &a.lse,
	                             &a.dout,  &a.dquery, &a.dkey,  &a.dvalue};
	for (int t = 0; t < TENSORS; t++)
		if (t <= OUT || pass == PASS_BACKWARD || (t == LSE && (b->spec->outputs & OUTPUT_LSE)))
			*to[t] = tensor_dense(b, set, t);
	if (b->spec->layout == LAYOUT_PACKED) {
		a.cu_seqlens_q = (const int32_t *)(uintptr_t)b->data.first[0].data;
		a.cu_seqlens_k = (const int32_t *)(uintptr_t)b->data.first[1].data;
		a.total_q = p->batch * p->seqlen_q;
		a.total_k = p->batch * p->seqlen_k;
	}
	a.workspace = (void *)(uintptr_t)b->data.workspace.data;
	a.workspace_size = b->data.workspace.bytes;
	return a;
}

/* ---- time ---- */

static int error_give(struct diag *diag, const fagen_error *error, int *status)
{
	*status = error->code == FAGEN_ERROR_SPEC || error->code == FAGEN_ERROR_INVALID ? EXIT_REQUEST : EXIT_MACHINE;
	return diag_fail(diag, "%s", error->message);
}

static int by_size(const void *a, const void *b)
{
	const float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

/* Median of single launches in microseconds. The stream is never empty between two: launches are queued ahead. */
static int pass_time(double *us, const struct bench *b, const fagen_kernel *kernel, enum pass pass, struct diag *diag,
                     int *status)
{
	struct driver *driver = runtime_driver(b->rt);
	struct fault fault = {.diag = diag};
	fagen_error error = {.struct_size = sizeof error};
	cu_event begin[TIMES_MAX] = {NULL}, end[TIMES_MAX] = {NULL};
	float ms[TIMES_MAX];
	int runs = WARM_UP, rc = -1;
	cu_result r = CU_OK;
	*status = EXIT_MACHINE;
	if (driver_push(driver, b->options->device, &fault))
		return -1;
	const struct cuda_calls *cu = driver_calls(driver);
	if (!cu->cuEventCreate || !cu->cuEventRecord || !cu->cuEventSynchronize || !cu->cuEventElapsedTime ||
	    !cu->cuEventDestroy_v2) {
		diag_fail(diag,
		          "The NVIDIA driver lacks the event calls that timing needs (cuEventCreate and its kin).");
		goto out;
	}
	for (int i = 0; i < TIMES_MAX && !r; i++)
		if (!(r = cu->cuEventCreate(&begin[i], 0)))
			r = cu->cuEventCreate(&end[i], 0);
	for (int round = 0; round < 2 && !r; round++) { /* the first warms up and tells how many are worth it */
		for (int i = 0; i < runs && !r; i++) {
			const fagen_args args = args_make(b, i % b->data.sets, pass);
			if ((r = cu->cuEventRecord(begin[i], NULL)))
				break;
			if ((pass == PASS_FORWARD ? fagen_forward : fagen_backward)(kernel, &args, NULL, &error) !=
			    FAGEN_OK) {
				error_give(diag, &error, status);
				goto out;
			}
			r = cu->cuEventRecord(end[i], NULL);
		}
		if (!r)
			r = cu->cuEventSynchronize(end[runs - 1]);
		for (int i = 0; i < runs && !r; i++)
			r = cu->cuEventElapsedTime(&ms[i], begin[i], end[i]);
		if (round == 0 && !r) {
			const double wanted = pass_seconds * 1e3 / (ms[runs - 1] > 1e-3f ? (double)ms[runs - 1] : 1e-3);
			runs = wanted < TIMES_MIN ? TIMES_MIN : wanted > TIMES_MAX ? TIMES_MAX : (int)wanted;
		}
	}
	if (r) {
		driver_fail(driver, &fault, r, "Timing a kernel");
		goto out;
	}
	qsort(ms, (size_t)runs, sizeof *ms, by_size);
	*us = (double)ms[runs / 2] * 1e3;
	rc = 0;
out:
	for (int i = 0; i < TIMES_MAX; i++) {
		if (begin[i])
			cu->cuEventDestroy_v2(begin[i]);
		if (end[i])
			cu->cuEventDestroy_v2(end[i]);
	}
	return driver_pop(driver, &fault) ? -1 : rc;
}

/* ---- rows ---- */

static void row_print(struct bench *b, const struct row *row)
{
	struct text problem = {0};
	const double tflops = row->useful_flop / row->us * 1e-6;
	problem_print(&problem, &b->problem);
	if (b->options->json) {
		text_puts(&b->json, b->json.len ? ",\n  {\"spec\": " : "[\n  {\"spec\": ");
		text_json(&b->json, b->spec->name);
		text_addf(&b->json, ", \"gpu\": ");
		text_json(&b->json, b->gpu.name);
		text_addf(&b->json,
		          ", \"problem\": \"%s\", \"kernel\": \"%s\", \"pass\": \"%s\", \"tile\": \"%s\", \"us\": %.3f",
		          text_str(&problem), row->kernel, pass_names[row->pass], row->tile, row->us);
		text_addf(
			&b->json,
			", \"tflops\": %.2f, \"predicted_us\": %.3f, \"predicted_over_measured\": %.3f, \"hbm_bytes\": %.0f}",
			tflops, row->predicted_us, row->predicted_us / row->us, row->hbm_bytes);
	} else {
		printf("%-20s  %-8s  %-8s  %-14s  %10.3f  %8.1f  %12.3f  %9.2f  %10.1f\n", b->spec->name, row->kernel,
		       pass_names[row->pass], row->tile, row->us * 1e-3, tflops, row->predicted_us * 1e-3,
		       row->predicted_us / row->us, row->hbm_bytes * 1e-6);
	}
	text_free(&problem);
}

/* Both passes of one kernel. */
static int kernel_bench(struct bench *b, const fagen_kernel *kernel, bool naive, struct plan *plan, struct diag *diag,
                        int *status)
{
	fagen_error error = {.struct_size = sizeof error};
	fagen_args args = args_make(b, 0, PASS_FORWARD);
	size_t bytes = 0;
	if (fagen_workspace_size(&bytes, kernel, &args, &error) != FAGEN_OK)
		return error_give(diag, &error, status);
	gpu_free(&b->data.workspace, b->rt, b->options->device);
	if (bytes && gpu_alloc(&b->data.workspace, b->rt, b->options->device, bytes, diag))
		return -1;
	for (int pass = 0; pass < PASS_COUNT; pass++) {
		const struct plan *made = runtime_plan(kernel, pass);
		if (!made)
			continue;
		/* The kernel may have been planned for another problem of its class. */
		if ((naive ? plan_naive : plan_make)(plan, b->spec, b->program, made->target, made->device, &b->problem,
		                                     pass, diag))
			return -1;
		const struct candidate *c = &plan->candidate[plan->chosen];
		struct row row = {.kernel = naive ? "standard" : "fagen",
		                  .pass = pass,
		                  .predicted_us = c->time_us,
		                  .useful_flop = plan->useful_flop,
		                  .hbm_bytes = c->hbm_bytes};
		snprintf(row.tile, sizeof row.tile, "%dx%d w%d s%d", c->tile_m, c->tile_n, c->warps, c->stages);
		if (pass_time(&row.us, b, kernel, pass, diag, status))
			return -1;
		row_print(b, &row);
	}
	return 0;
}

static int spec_bench(struct bench *b, const char *path, struct plan *plan, struct program *program, struct diag *diag,
                      int *status)
{
	fagen_error error = {.struct_size = sizeof error};
	fagen_spec *spec = NULL;
	int rc = -1;
	*status = EXIT_REQUEST;
	if (fagen_spec_load(&spec, b->rt, path, &error) != FAGEN_OK)
		return error_give(diag, &error, status);
	b->spec = runtime_spec(spec);
	b->program = program;
	problem_flags_apply(&b->problem, &b->options->problem, b->spec);
	b->problem.align = 16;
	if (program_lower(program, b->spec, diag) || problem_check(&b->problem, b->spec->kv_group, diag))
		return -1;
	const struct problem *p = &b->problem;
	if (!p->batch || !p->seqlen_q || !p->seqlen_k)
		return diag_fail(diag, "There is nothing to time: batch and lengths must be at least 1.");
	const fagen_problem wish = {.struct_size = sizeof wish,
	                            .align = p->align,
	                            .batch = p->batch,
	                            .heads_q = p->heads_q,
	                            .heads_kv = p->heads_kv,
	                            .seqlen_q = p->seqlen_q,
	                            .seqlen_k = p->seqlen_k};
	*status = EXIT_MACHINE;
	for (int naive = 0; naive <= (b->options->naive ? 1 : 0); naive++) {
		fagen_kernel *kernel = NULL;
		if ((naive ? fagen_kernel_get_naive : fagen_kernel_get)(&kernel, b->rt, spec, &wish, b->options->device,
		                                                        &error) != FAGEN_OK) {
			error_give(diag, &error, status);
			goto out;
		}
		for (int i = 0; naive && i < b->spec->input_count; i++)
			b->data.inputs[i].grad = NULL; /* the naive kernels compute none */
		if ((!naive && data_make(b, diag)) || kernel_bench(b, kernel, naive, plan, diag, status))
			goto out;
	}
	rc = 0;
out:
	data_free(b);
	return rc;
}

static int bench_run(const struct options *options, char **paths, int count)
{
	struct bench *b = calloc(1, sizeof *b);
	struct plan *plan = malloc(sizeof *plan);
	struct program *program = malloc(sizeof *program);
	struct diag diag = {0};
	fagen_error error = {.struct_size = sizeof error};
	int status = EXIT_MACHINE;
	if (!b || !plan || !program) {
		diag_fail(&diag, "Out of memory.");
		goto out;
	}
	b->options = options;
	if (fagen_open(&b->rt, NULL, &error) != FAGEN_OK) {
		error_give(&diag, &error, &status);
		goto out;
	}
	if (gpu_open(&b->gpu, b->rt, options->device, &diag))
		goto out;
	if (!options->json) {
		printf("%s\n", b->gpu.name);
		printf("%-20s  %-8s  %-8s  %-14s  %10s  %8s  %12s  %9s  %10s\n", "spec", "kernel", "pass", "tile", "ms",
		       "TFLOP/s", "predicted ms", "pred/meas", "HBM MB");
	}
	status = 0;
	for (int i = 0; i < count; i++) {
		int s = 0;
		if (spec_bench(b, paths[i], plan, program, &diag, &s))
			status = s ? s : EXIT_MACHINE;
	}
	if (options->json)
		printf("%s\n]\n", b->json.len ? text_str(&b->json) : "[");
out:
	fputs(text_str(&diag.text), stderr);
	diag_free(&diag);
	if (b) {
		text_free(&b->json);
		fagen_close(b->rt);
	}
	free(b);
	free(plan);
	free(program);
	return status;
}

int cmd_bench(int argc, char **argv)
{
	enum { DEVICE = 256, NAIVE, JSON };
	static const struct option longs[] = {
		PROBLEM_FLAGS,
		{"device", required_argument, NULL, DEVICE},
		{"naive", no_argument, NULL, NAIVE},
		{"json", no_argument, NULL, JSON},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	struct options o = {.device = 0};
	problem_flags_clear(&o.problem);
	int64_t device = 0;
	int bad = 0;
	optind = 0; /* starts getopt anew, whoever used it before */
	for (int c; (c = getopt_long(argc, argv, "h", longs, NULL)) != -1;) {
		const int taken = problem_flags_read(&o.problem, "bench", c, optarg);
		bad |= taken < 0;
		if (taken)
			continue;
		switch (c) {
		case DEVICE:
			bad |= number_flag_read(&device, "bench", "device", optarg, 0);
			o.device = (int)device;
			break;
		case NAIVE: o.naive = true; break;
		case JSON: o.json = true; break;
		case 'h': usage(stdout); return EXIT_SUCCESS;
		default: bad = -1;
		}
	}
	if (!bad && optind == argc) {
		fputs("fagen bench: which spec? At least one YAML file is needed.\n", stderr);
		bad = -1;
	}
	if (bad) {
		fputs("`fagen bench --help` lists the options.\n", stderr);
		return EXIT_USAGE;
	}
	return bench_run(&o, argv + optind, argc - optind);
}
