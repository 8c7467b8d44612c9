/* fagen check --deviation: how far results are from exact ones, by dtype, data, length and tile, beside a plain
 * computation: a study, not a verdict. */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/gpu.h"
#include "cli/cli.h"
#include "cli/deviation.h"

enum { SHORTEST = 128, LONGEST = 4096, LONGEST_SHORTER = 2048, LENGTH_MOST = 16384 };
enum { STUDIED = 6 };

/* Every kind of data but INPUT_INF. The reference in double is quadratic in the length: without a spec given, the four
 * built-in ones go to LONGEST only for INPUT_GAUSS. */
static const enum input_kind kinds[STUDIED] = {INPUT_GAUSS, INPUT_OUTLIER, INPUT_LOWRANK,
                                               INPUT_HUGE,  INPUT_CONST,   INPUT_ZERO};

static const char *const dtype_names[] = {[DTYPE_FP16] = "fp16", [DTYPE_BF16] = "bf16"};

struct worst {
	double rms, ratio;
	char where[96];
};

struct study {
	fagen_runtime *rt;
	int device;
	int64_t up_to; /* 0: not asked for */
	const char *json_path;
	struct gpu gpu;
	int line_count;
	struct line line[STUDY_LINES_MAX];
	struct text json;
	bool not_finite;
	struct worst worst[STUDY_LINES_MAX][TENSOR_COUNT];
};

static void usage(FILE *f)
{
	fputs("usage: fagen check --deviation [SPEC...] [--up-to N] [--json FILE] [--device N]\n\n"
	      "How far results are from exact ones, computed in double on the CPU: in fp16 and bf16, for lengths from 128 on by\n"
	      "factors of two, structured data, and the planner's tile beside two others; a tile in the spec is not looked at. Beside\n"
	      "them what a plain computation of the same dtype deviates by: scores and softmax in float32 at once, P, dS and results\n"
	      "rounded. A ratio of 1 says that tiling loses nothing. One head; the same data at every run.\n\n"
	      "  SPEC          a file, the name of one in specs/, or a spec itself; default: head dims 64 and 128, causal and full\n"
	      "  --up-to N     longest sequence, 128 to 16384 (default 4096; without SPEC 2048 for all data but gauss)\n"
	      "  --json FILE   all rows, for bench/plot.py\n"
	      "  --device N    CUDA device (default 0)\n\n"
	      "Data: gauss, independent normal; outlier, a few channels 20 times larger (8 in queries and keys); lowrank, three\n"
	      "directions and a little noise; huge, scores of some thousands; const, rows that repeat one value; zero, all scores 0.\n\n"
	      "exit status: 0 done, 1 the spec is wrong, 2 usage, 3 no GPU, driver or compiler, 4 a result is not finite\n",
	      f);
}

static int machine_fail(const char *message)
{
	fprintf(stderr, "%s\n", message);
	return EXIT_MACHINE;
}

/* ---- points ---- */

static double largest_of(const struct deviations d[TILES_MAX], int tiles, int row, bool rms)
{
	double most = 0;
	for (int t = 0; t < tiles; t++)
		most = fmax(most, rms ? d[t].row[row].fagen.rms : d[t].row[row].fagen.max);
	return most;
}

/* Of the worst tile over the plain computation; NAN where that is exact. */
static double ratio_of(const struct deviations d[TILES_MAX], int tiles, int row, bool rms)
{
	const double plain = rms ? d->row[row].plain.rms : d->row[row].plain.max;
	return plain > 0 ? largest_of(d, tiles, row, rms) / plain : NAN;
}

static void number_json(struct text *t, const char *name, double x)
{
	text_addf(t, isfinite(x) ? "\"%s\": %.4g" : "\"%s\": null", name, x);
}

static void deviation_json(struct text *t, const struct deviation *d)
{
	number_json(t, "max", d->max);
	text_puts(t, ", ");
	number_json(t, "rms", d->rms);
	text_puts(t, "}");
}

static void row_json(struct text *t, const struct line *l, const struct check_case *c, const struct deviations *d,
                     int row)
{
	const struct deviation_row *r = &d->row[row];
	const struct deviation plain = deviation_relative(&r->plain, r->exact);
	text_puts(t, t->len ? ",\n{\"spec\": " : "{\"spec\": ");
	text_json(t, l->label);
	text_addf(t, ", \"dtype\": \"%s\", \"data\": \"%s\", \"seqlen\": %" PRId64 ", \"tensor\": \"%s\", ",
	          dtype_names[l->dtype], input_names[c->input], c->seqlen_q, tensor_names[r->tensor]);
	number_json(t, "exact_rms", r->exact);
	text_puts(t, ", \"plain\": {");
	deviation_json(t, &plain);
	for (int i = 0; i < l->tiles; i++) {
		const struct deviation fagen = deviation_relative(&d[i].row[row].fagen, r->exact);
		text_addf(t, "%s{\"tile\": \"%s\", ", i ? ", " : ", \"fagen\": [", l->tile[i]);
		deviation_json(t, &fagen);
	}
	text_puts(t, "]}");
}

static void table_head(const struct line *l, enum input_kind kind)
{
	printf("\n%s, %s, %s. Tiles, forward and backward:", l->label, dtype_names[l->dtype], input_names[kind]);
	for (int t = 0; t < l->tiles; t++)
		printf(" %c %s%s", 'A' + t, l->tile[t], t ? t + 1 < l->tiles ? "," : "" : " (the planner's),");
	printf("\n%6s  %-6s %9s", "seqlen", "tensor", "RMS exact");
	for (int rms = 0; rms < 2; rms++) {
		printf("   %s %5s", rms ? "RMS:" : "max:", "plain");
		for (int t = 0; t < l->tiles; t++)
			printf(" %8c", 'A' + t);
		printf("  ratio");
	}
	putchar('\n');
}

static void table_row(const struct line *l, const struct check_case *c, const struct deviations *d, int row)
{
	const struct deviation_row *r = &d->row[row];
	const struct deviation plain = deviation_relative(&r->plain, r->exact);
	printf("%6" PRId64 "  %-6s %9.2e", c->seqlen_q, tensor_names[r->tensor], r->exact);
	for (int rms = 0; rms < 2; rms++) {
		const double ratio = ratio_of(d, l->tiles, row, rms);
		printf("   %10.2e", rms ? plain.rms : plain.max);
		for (int t = 0; t < l->tiles; t++) {
			const struct deviation fagen = deviation_relative(&d[t].row[row].fagen, r->exact);
			printf(" %8.2e", rms ? fagen.rms : fagen.max);
		}
		if (isnan(ratio))
			printf("  %5s", "-");
		else
			printf("  %5.2f", ratio);
	}
	putchar('\n');
}

/* The point where the worst tile loses most against the plain computation. */
static void worst_note(struct study *s, const struct line *l, const struct check_case *c, const struct deviations *d)
{
	for (int row = 0; row < d->count; row++) {
		struct worst *w = &s->worst[l - s->line][d->row[row].tensor];
		const double ratio = ratio_of(d, l->tiles, row, true), most = largest_of(d, l->tiles, row, true);
		s->not_finite = s->not_finite || !isfinite(most);
		if (!isnan(ratio) && ratio > w->ratio) {
			*w = (struct worst){.rms = most / d->row[row].exact, .ratio = ratio};
			snprintf(w->where, sizeof w->where, "%s, %" PRId64, input_names[c->input], c->seqlen_q);
		}
	}
}

static int point_run(struct study *s, const struct line *l, enum input_kind kind, int64_t n)
{
	struct baseline baseline = {.exact = {NULL}};
	struct deviations d[TILES_MAX];
	struct check_case c;
	int status = 0;
	case_default(&c, l->label, runtime_spec(l->spec[0]));
	c.batch = c.heads_kv = 1;
	c.heads_q = runtime_spec(l->spec[0])->kv_group ? runtime_spec(l->spec[0])->kv_group : 1;
	c.seqlen_q = c.seqlen_k = n;
	c.input = kind;
	c.seed = 2; /* even: no gradient of LSE */
	c.whole = true;
	for (int t = 0; t < l->tiles && !status; t++) {
		deviation_run(&d[t], &baseline, &c, s->rt, l->spec[t], s->device);
		if (d[t].outcome.status == CHECK_PASSED)
			continue;
		fprintf(stderr, "%s, %s, tile %s, %s, %" PRId64 ": %s\n", l->label, dtype_names[l->dtype], l->tile[t],
		        input_names[kind], n, d[t].outcome.text);
		status = d[t].outcome.status == CHECK_MACHINE ? EXIT_MACHINE
		         : d[t].outcome.status == CHECK_WRONG ? EXIT_CHECK
		                                              : EXIT_REQUEST;
	}
	baseline_free(&baseline);
	if (status)
		return status;
	for (int row = 0; row < d->count; row++) {
		table_row(l, &c, d, row);
		row_json(&s->json, l, &c, d, row);
	}
	worst_note(s, l, &c, d);
	fflush(stdout);
	return 0;
}

static void summary_print(const struct study *s)
{
	puts("\nWhere the worst tile's RMS deviation is largest beside the plain computation's:");
	for (int i = 0; i < s->line_count; i++)
		for (int id = 0; id < TENSOR_COUNT; id++) {
			const struct worst *w = &s->worst[i][id];
			if (*w->where)
				printf("  %s, %s  %-6s  %5.2f times, %.2e of the exact RMS (%s)\n", s->line[i].label,
				       dtype_names[s->line[i].dtype], tensor_names[id], w->ratio, w->rms, w->where);
		}
}

static int json_write(FILE *f, const struct study *s)
{
	const int driver = driver_version(runtime_driver(s->rt));
	struct text head = {0};
	text_puts(&head, "{\"gpu\": ");
	text_json(&head, s->gpu.name);
	fprintf(f, "%s, \"cuda\": \"%d.%d\", \"fagen\": \"%s\", \"rows\": [\n%s\n]}\n", text_str(&head), driver / 1000,
	        driver % 1000 / 10, FAGEN_VERSION, text_str(&s->json));
	text_free(&head);
	return ferror(f) ? -1 : 0;
}

static int study_run(struct study *s, char *const *specs, int count)
{
	struct diag diag = {0};
	if (gpu_open(&s->gpu, s->rt, s->device, &diag)) {
		const int status = machine_fail(text_str(&diag.text));
		diag_free(&diag);
		return status;
	}
	int status = lines_make(s->line, &s->line_count, specs, count, s->rt, s->device);
	if (!status)
		puts("Deviation from exact results, in units of the exact result's RMS; ratio: the worst tile's over the plain one's.");
	for (int i = 0; i < s->line_count && !status; i++)
		for (int k = 0; k < STUDIED && !status; k++) {
			const bool longest = count || kinds[k] == INPUT_GAUSS;
			const int64_t up_to = s->up_to ? s->up_to : longest ? LONGEST : LONGEST_SHORTER;
			table_head(&s->line[i], kinds[k]);
			for (int64_t n = SHORTEST; n <= up_to && !status; n *= 2)
				status = point_run(s, &s->line[i], kinds[k], n);
		}
	if (status)
		return status;
	summary_print(s);
	return s->not_finite ? EXIT_CHECK : 0;
}

/* With the file of --json open from the start: not to find after the study that it cannot be written. */
static int study_write(struct study *s, char *const *specs, int count)
{
	FILE *f = s->json_path ? fopen(s->json_path, "w") : NULL;
	if (s->json_path && !f) {
		perror(s->json_path);
		return EXIT_REQUEST;
	}
	const int status = study_run(s, specs, count);
	if (!f)
		return status;
	const int failed = json_write(f, s);
	if (fclose(f) || failed) {
		perror(s->json_path);
		return EXIT_MACHINE;
	}
	return status;
}

/* A whole number in [low, high], or -1 after saying what is accepted. */
static int64_t number_option(const char *name, const char *text, int64_t low, int64_t high)
{
	char *end;
	const long long n = strtoll(text, &end, 10);
	if (end != text && !*end && n >= low && n <= high)
		return n;
	fprintf(stderr, "error: %s %s: expected a whole number from %" PRId64 " to %" PRId64 ".\n", name, text, low,
	        high);
	return -1;
}

int cmd_deviation(int argc, char **argv)
{
	static const struct option longs[] = {
		{"deviation", no_argument, NULL, 'd'},  {"up-to", required_argument, NULL, 'u'},
		{"json", required_argument, NULL, 'j'}, {"device", required_argument, NULL, 'D'},
		{"help", no_argument, NULL, 'h'},       {NULL, 0, NULL, 0}};
	struct study *s = calloc(1, sizeof *s);
	fagen_error error = {.struct_size = sizeof error};
	int status = 0;
	int64_t n = 0;
	if (!s)
		return machine_fail("Out of memory.");
	for (int o; !status && (o = getopt_long(argc, argv, "h", longs, NULL)) >= 0;)
		switch (o) {
		case 'd': break;
		case 'u':
			s->up_to = number_option("--up-to", optarg, SHORTEST, LENGTH_MOST);
			status = s->up_to < 0 ? EXIT_USAGE : 0;
			break;
		case 'j': s->json_path = optarg; break;
		case 'D':
			n = number_option("--device", optarg, 0, 1023);
			s->device = (int)n;
			status = n < 0 ? EXIT_USAGE : 0;
			break;
		case 'h':
			usage(stdout);
			free(s);
			return 0;
		default: usage(stderr); status = EXIT_USAGE;
		}
	if (!status && argc - optind > STUDY_SPECS_MAX) {
		fprintf(stderr, "error: %d specs; a study takes at most %d.\n", argc - optind, STUDY_SPECS_MAX);
		status = EXIT_USAGE;
	}
	if (!status && fagen_open(&s->rt, NULL, &error))
		status = machine_fail(error.message);
	if (!status)
		status = study_write(s, argv + optind, argc - optind);
	fagen_close(s->rt);
	text_free(&s->json);
	free(s);
	return status;
}
