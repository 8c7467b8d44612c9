/* fagen bench: the time of a spec's kernels on this machine's GPU, beside what the planner predicted. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/bench.h"
#include "cli/cli.h"

static const double pass_seconds = 0.15; /* of measurement */

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
	      "  --sweep           time every tile that the model admits (but those predicted 2.5 times slower than its choice), and\n"
	      "                    sum up: predicted over measured, and regret, the time of the choice over that of the fastest\n"
	      "  --overhead        what calls cost the CPU: a warm start, finding a kernel, launching it, beside the driver's own part\n"
	      "  --wisdom FILE     measured tiles, as fagen tune writes them, before the planner's choice\n"
	      "  --json            for programs\n"
	      "  -h, --help\n",
	      out);
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
	if (workspace_make(b, kernel, diag, status))
		return -1;
	for (int pass = 0; pass < PASS_COUNT; pass++) {
		const struct plan *made = runtime_plan(kernel, pass);
		if (!made)
			continue;
		/* The kernel may have been planned for another problem of its class. */
		if (naive ? plan_naive(plan, b->spec, b->program, made->target, made->device, &b->problem, pass, diag)
		          : plan_tuned(plan, runtime_wisdom(b->rt), b->spec, b->program, made->target, made->device,
		                       &b->problem, pass, diag))
			return -1;
		const struct candidate *c = &plan->candidate[plan->chosen];
		struct row row = {.kernel = naive ? "standard" : "fagen",
		                  .pass = pass,
		                  .predicted_us = c->time_us,
		                  .useful_flop = plan->useful_flop,
		                  .hbm_bytes = c->hbm_bytes};
		tile_name(row.tile, c);
		if (pass_time(&row.us, b, kernel, pass, pass_seconds, diag, status))
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
	if (spec_open(&spec, b, path, program, diag, status))
		return -1;
	const fagen_problem wish = problem_wish(&b->problem);
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

static int bench_run(const struct bench_options *options, char **paths, int count)
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
	const fagen_config config = {.struct_size = sizeof config, .wisdom_path = options->wisdom};
	if (fagen_open(&b->rt, &config, &error) != FAGEN_OK) {
		error_give(&diag, &error, &status);
		goto out;
	}
	if (gpu_open(&b->gpu, b->rt, options->device, &diag))
		goto out;
	if (options->sweep) {
		status = sweep_run(b, paths, count, &diag);
		goto out;
	}
	if (!options->json)
		printf("%s\n", b->gpu.name);
	if (!options->json && !options->overhead)
		printf("%-20s  %-8s  %-8s  %-14s  %10s  %8s  %12s  %9s  %10s\n", "spec", "kernel", "pass", "tile", "ms",
		       "TFLOP/s", "predicted ms", "pred/meas", "HBM MB");
	status = 0;
	for (int i = 0; i < count; i++) {
		int s = 0;
		if (options->overhead ? overhead_print(b, paths[i], program, &diag, &s) : spec_bench(b, paths[i], plan, program, &diag, &s))
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
	enum { DEVICE = 256, NAIVE, JSON, SWEEP, OVERHEAD, WISDOM };
	static const struct option longs[] = {
		PROBLEM_FLAGS,
		{"device", required_argument, NULL, DEVICE},
		{"naive", no_argument, NULL, NAIVE},
		{"json", no_argument, NULL, JSON},
		{"sweep", no_argument, NULL, SWEEP},
		{"overhead", no_argument, NULL, OVERHEAD},
		{"wisdom", required_argument, NULL, WISDOM},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	struct bench_options o = {.device = 0};
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
		case WISDOM: o.wisdom = optarg; break;
		case SWEEP: o.sweep = true; break;
		case OVERHEAD: o.overhead = true; break;
		case 'h': usage(stdout); return EXIT_SUCCESS;
		default: bad = -1;
		}
	}
	if (!bad && o.sweep && o.naive) {
		fputs("fagen bench: --sweep is about tiles, and standard attention has one: leave --naive out.\n",
		      stderr);
		bad = -1;
	}
	if (!bad && o.sweep && o.wisdom) {
		fputs("fagen bench: --sweep is about the planner's own choice: leave --wisdom out.\n", stderr);
		bad = -1;
	}
	if (!bad && o.overhead && (o.sweep || o.naive || o.json || o.wisdom)) {
		fputs("fagen bench: --overhead is about calls: leave --sweep, --naive, --json and --wisdom out.\n", stderr);
		bad = -1;
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
