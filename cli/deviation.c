/* fagen check --deviation: how far results are from exact ones, by dtype, data, length and tile, beside a plain
 * computation: a study, not a verdict. */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/deviation.h"
#include "check/gpu.h"
#include "cli/cli.h"

enum { SPECS_MAX = 16, TILES_MAX = 3, SHORTEST = 128, LONGEST = 4096, LONGEST_SHORTER = 2048, LENGTH_MOST = 16384 };
enum { STUDIED = 6 };

/* Every kind of data but INPUT_INF. The reference in double is quadratic in the length: without a spec given, the four
 * built-in ones go to LONGEST only for INPUT_GAUSS. */
static const enum input_kind kinds[STUDIED] = {INPUT_GAUSS, INPUT_OUTLIER, INPUT_LOWRANK,
                                               INPUT_HUGE,  INPUT_CONST,   INPUT_ZERO};

static const struct {
	const char *label, *yaml;
} built_in[] = {
	{"d64 causal", "{head_dim: 64, mask: causal, passes: [forward, backward], kv_group: 1}"},
	{"d64 full", "{head_dim: 64, passes: [forward, backward], kv_group: 1}"},
	{"d128 causal", "{head_dim: 128, mask: causal, passes: [forward, backward], kv_group: 1}"},
	{"d128 full", "{head_dim: 128, passes: [forward, backward], kv_group: 1}"},
};
enum { BUILT_IN = sizeof built_in / sizeof *built_in };

static const char *const dtype_names[] = {[DTYPE_FP16] = "fp16", [DTYPE_BF16] = "bf16"};
enum { DTYPES = 2 };

/* One spec in one dtype, compiled with several tiles; the first is the planner's. */
struct line {
	const char *label;
	enum dtype dtype;
	int tiles;
	fagen_spec *spec[TILES_MAX];
	const fagen_kernel *kernel[TILES_MAX];
	char tile[TILES_MAX][48]; /* "128x128 64x128": rows x keys, forward and backward */
};

struct worst { double rms, ratio; char where[96]; };

struct study {
	fagen_runtime *rt;
	int device;
	int64_t up_to; /* 0: not asked for */
	const char *json_path;
	struct gpu gpu;
	int line_count;
	struct line line[SPECS_MAX * DTYPES];
	struct text json;
	bool not_finite;
	struct worst worst[SPECS_MAX * DTYPES][TENSOR_COUNT];
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
	      "exit status: 0 done, 1 the spec is wrong, 2 usage, 3 no GPU, driver or compiler, 4 a result is not finite\n",
	      f);
}

static int machine_fail(const char *message)
{
	fprintf(stderr, "%s\n", message);
	return EXIT_MACHINE;
}

static int code_exit(int code) { return code == FAGEN_ERROR_SPEC || code == FAGEN_ERROR_INVALID ? EXIT_REQUEST : EXIT_MACHINE; }

/* ---- kernels ---- */

/* The spec of a line with one tile for each pass. */
static int variant_load(struct study *s, struct line *l, const struct spec *of, const struct tile_request tile[PASS_COUNT])
{
	struct spec spec = *of;
	struct text yaml = {0};
	fagen_error error = {.struct_size = sizeof error};
	spec.dtype = l->dtype;
	memcpy(spec.tile, tile, sizeof spec.tile);
	spec_print(&yaml, &spec);
	const int code = fagen_spec_parse(&l->spec[l->tiles], s->rt, text_str(&yaml), yaml.len, l->label, &error);
	text_free(&yaml);
	if (code) {
		fprintf(stderr, "%s\n", error.message);
		return code_exit(code);
	}
	l->tiles++;
	return 0;
}

struct compile {
	struct study *s;
	int first; /* tile */
	int code[SPECS_MAX * DTYPES * TILES_MAX];
	fagen_error error[SPECS_MAX * DTYPES * TILES_MAX];
};

static void kernel_compile(void *context, int64_t item)
{
	struct compile *c = context;
	struct line *l = &c->s->line[item / TILES_MAX];
	const int tile = (int)(item % TILES_MAX);
	const fagen_problem problem = {.struct_size = sizeof problem, .align = 16};
	if (tile < c->first || tile >= l->tiles)
		return;
	c->error[item].struct_size = sizeof *c->error;
	c->code[item] = fagen_kernel_get((fagen_kernel **)&l->kernel[tile], c->s->rt, l->spec[tile], &problem,
	                                 c->s->device, &c->error[item]);
}

/* The kernels of all lines from a tile on, on all cores. */
static int kernels_compile(struct study *s, int first)
{
	struct compile *c = calloc(1, sizeof *c);
	if (!c)
		return machine_fail("Out of memory.");
	c->s = s;
	c->first = first;
	parallel_for((int64_t)s->line_count * TILES_MAX, kernel_compile, c);
	int status = 0;
	for (int i = 0; i < s->line_count * TILES_MAX && !status; i++)
		if (c->code[i]) {
			fprintf(stderr, "%s\n", c->error[i].message);
			status = code_exit(c->code[i]);
		}
	free(c);
	return status;
}

static int64_t tile_area(const struct candidate *c) { return (int64_t)c->tile_m * c->tile_n; }

/* The smallest or the largest admissible tile of another shape than those in `taken`; of equal shapes the one predicted to
 * be faster. NULL: there is none. */
static const struct candidate *tile_pick(const struct plan *p, bool large, const struct candidate *const taken[2])
{
	const struct candidate *best = NULL;
	for (int i = 0; i < p->candidate_count; i++) {
		const struct candidate *c = &p->candidate[i];
		bool other = !*c->reason;
		for (int t = 0; t < 2; t++)
			other = other && !(taken[t] && taken[t]->tile_m == c->tile_m && taken[t]->tile_n == c->tile_n);
		if (!other)
			continue;
		const int64_t more = best ? (tile_area(c) - tile_area(best)) * (large ? 1 : -1) : 1;
		const bool faster = best && c->tile_m == best->tile_m && c->tile_n == best->tile_n && c->time_us < best->time_us;
		if (more > 0 || faster)
			best = c;
	}
	return best;
}

/* Two more kernels of a line: its smallest tiles, and its largest; passes with fewer shapes keep the planner's. */
static int tiles_add(struct study *s, struct line *l, const struct spec *of)
{
	struct tile_request tile[2][PASS_COUNT] = {{{0}}};
	bool found[2] = {false};
	for (int pass = 0; pass < PASS_COUNT; pass++) {
		const struct plan *p = of->passes[pass] ? runtime_plan(l->kernel[0], (enum pass)pass) : NULL;
		if (!p)
			continue;
		const struct candidate *taken[2] = {&p->candidate[p->chosen], NULL};
		for (int large = 0; large < 2; large++) {
			const struct candidate *c = tile_pick(p, large, taken);
			if (!c)
				break;
			taken[1] = c;
			found[large] = true;
			tile[large][pass] = (struct tile_request){c->tile_m, c->tile_n, c->warps, c->stages};
		}
	}
	for (int large = 0; large < 2; large++) {
		const int status = found[large] ? variant_load(s, l, of, tile[large]) : 0;
		if (status)
			return status;
	}
	return 0;
}

static void tile_print(char to[48], const fagen_kernel *kernel)
{
	*to = '\0';
	for (int pass = 0; pass < PASS_COUNT; pass++) {
		const struct plan *p = runtime_plan(kernel, (enum pass)pass);
		const size_t len = strlen(to);
		if (p)
			snprintf(to + len, 48 - len, "%s%dx%d", len ? " " : "", p->candidate[p->chosen].tile_m,
			         p->candidate[p->chosen].tile_n);
	}
}

static int line_add(struct study *s, const char *label, const char *name)
{
	fagen_error error = {.struct_size = sizeof error};
	fagen_spec *spec;
	const int code = check_spec(&spec, s->rt, name, &error);
	if (code) {
		fprintf(stderr, "%s\n", error.message);
		return code_exit(code);
	}
	static const struct tile_request any[PASS_COUNT];
	for (int dtype = 0; dtype < DTYPES; dtype++) {
		struct line *l = &s->line[s->line_count++];
		*l = (struct line){.label = label, .dtype = (enum dtype)dtype};
		const int status = variant_load(s, l, runtime_spec(spec), any);
		if (status)
			return status;
	}
	return 0;
}

static int lines_make(struct study *s, char *const *specs, int count)
{
	int status = 0;
	for (int i = 0; i < (count ? count : BUILT_IN) && !status; i++)
		status = count ? line_add(s, specs[i], specs[i]) : line_add(s, built_in[i].label, built_in[i].yaml);
	if (!status)
		status = kernels_compile(s, 0);
	for (int i = 0; i < s->line_count && !status; i++)
		status = tiles_add(s, &s->line[i], runtime_spec(s->line[i].spec[0]));
	if (!status)
		status = kernels_compile(s, 1);
	for (int i = 0; i < s->line_count && !status; i++)
		for (int t = 0; t < s->line[i].tiles; t++)
			tile_print(s->line[i].tile[t], s->line[i].kernel[t]);
	return status;
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

static void row_json(struct text *t, const struct line *l, const struct check_case *c, const struct deviations *d, int row)
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
	int status = lines_make(s, specs, count);
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
	fprintf(stderr, "error: %s %s: expected a whole number from %" PRId64 " to %" PRId64 ".\n", name, text, low, high);
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
		case 'h': usage(stdout); free(s); return 0;
		default: usage(stderr); status = EXIT_USAGE;
		}
	if (!status && argc - optind > SPECS_MAX) {
		fprintf(stderr, "error: %d specs; a study takes at most %d.\n", argc - optind, SPECS_MAX);
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
