#include "cli/deviation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static const struct {
	const char *label, *yaml;
} built_in[] = {
	{"d64 causal", "{head_dim: 64, mask: causal, passes: [forward, backward], kv_group: 1}"},
	{"d64 full", "{head_dim: 64, passes: [forward, backward], kv_group: 1}"},
	{"d128 causal", "{head_dim: 128, mask: causal, passes: [forward, backward], kv_group: 1}"},
	{"d128 full", "{head_dim: 128, passes: [forward, backward], kv_group: 1}"},
};
enum { BUILT_IN = sizeof built_in / sizeof *built_in };

struct lines {
	fagen_runtime *rt;
	int device, count;
	struct line *line;
};

static int code_exit(int code)
{
	return code == FAGEN_ERROR_SPEC || code == FAGEN_ERROR_INVALID ? EXIT_REQUEST : EXIT_MACHINE;
}

/* The spec of a line with one tile for each pass. */
static int variant_load(struct lines *s, struct line *l, const struct spec *of,
                        const struct tile_request tile[PASS_COUNT])
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
	struct lines *s;
	int first; /* tile */
	int code[STUDY_LINES_MAX * TILES_MAX];
	fagen_error error[STUDY_LINES_MAX * TILES_MAX];
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
static int kernels_compile(struct lines *s, int first)
{
	struct compile *c = calloc(1, sizeof *c);
	if (!c)
		abort();
	c->s = s;
	c->first = first;
	parallel_for((int64_t)s->count * TILES_MAX, kernel_compile, c);
	int status = 0;
	for (int i = 0; i < s->count * TILES_MAX && !status; i++)
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
		const bool faster =
			best && c->tile_m == best->tile_m && c->tile_n == best->tile_n && c->time_us < best->time_us;
		if (more > 0 || faster)
			best = c;
	}
	return best;
}

/* Two more kernels of a line: its smallest tiles, and its largest; passes with fewer shapes keep the planner's. */
static int tiles_add(struct lines *s, struct line *l, const struct spec *of)
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
			tile[large][pass] = candidate_request(c);
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

static int line_add(struct lines *s, const char *label, const char *name)
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
		struct line *l = &s->line[s->count++];
		*l = (struct line){.label = label, .dtype = (enum dtype)dtype};
		const int status = variant_load(s, l, runtime_spec(spec), any);
		if (status)
			return status;
	}
	return 0;
}

int lines_make(struct line line[STUDY_LINES_MAX], int *lines, char *const *specs, int count, fagen_runtime *rt,
               int device)
{
	struct lines made = {rt, device, 0, line}, *s = &made;
	int status = 0;
	for (int i = 0; i < (count ? count : BUILT_IN) && !status; i++)
		status = count ? line_add(s, specs[i], specs[i]) : line_add(s, built_in[i].label, built_in[i].yaml);
	if (!status)
		status = kernels_compile(s, 0);
	for (int i = 0; i < s->count && !status; i++)
		status = tiles_add(s, &s->line[i], runtime_spec(s->line[i].spec[0]));
	if (!status)
		status = kernels_compile(s, 1);
	for (int i = 0; i < s->count && !status; i++)
		for (int t = 0; t < s->line[i].tiles; t++)
			tile_print(s->line[i].tile[t], s->line[i].kernel[t]);
	*lines = s->count;
	return status;
}
