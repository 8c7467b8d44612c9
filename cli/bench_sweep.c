/* bench_sweep: is the planner's choice the fastest tile? Compiles every tile that the model admits for a pass, all of
 * all specs at once, and times them one after the other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/check.h"
#include "cli/bench.h"
#include "cli/cli.h"

static const double tile_seconds = 0.02; /* of measurement */
/* A tile that is predicted to take this much longer than the choice is not worth its time: the model is off by far less. */
static const double worth_timing = 2.5;

struct tile { /* one candidate, compiled and timed */
	struct text yaml;
	fagen_kernel *kernel; /* NULL: not compiled */
	fagen_error error;
	char name[32];
	double us, predicted_us; /* us 0: not timed */
};

struct subject { /* one pass of one problem */
	const char *path;
	const struct spec *spec;
	struct problem problem;
	enum pass pass;
	int legal, count, chosen; /* tiles that could be built, that are timed, the planner's of them */
	struct tile tile[CANDIDATES_MAX];
};

struct sweep {
	struct bench *bench;
	struct subject **subject;
	int count;
	struct {
		struct subject *subject;
		struct tile *tile;
	} * work;
	int works;
	const struct target *target;
	const struct device *device;
	struct diag *diag;
	int status;
};

static int fail(struct sweep *s, int status)
{
	s->status = s->status ? s->status : status;
	return -1;
}

/* ---- what there is to time ---- */

void tile_spec(struct text *yaml, const struct spec *spec, enum pass pass, const struct candidate *c)
{
	struct spec *one = malloc(sizeof *one);
	if (!one)
		return;
	*one = *spec;
	memset(one->tile, 0, sizeof one->tile);
	one->tile[pass] = candidate_request(c);
	one->passes[PASS_BACKWARD] = pass == PASS_BACKWARD;
	for (int i = 0; i < one->input_count; i++)
		one->input[i].grad &= pass == PASS_BACKWARD;
	spec_print(yaml, one);
	free(one);
}

static void tiles_add(struct subject *subject, const struct plan *plan)
{
	const double limit = plan->candidate[plan->chosen].time_us * worth_timing;
	for (int i = 0; i < plan->candidate_count; i++) {
		const struct candidate *c = &plan->candidate[i];
		if (*c->reason)
			continue;
		subject->legal++;
		if (c->time_us > limit)
			continue;
		struct tile *tile = &subject->tile[subject->count];
		if (i == plan->chosen)
			subject->chosen = subject->count;
		subject->count++;
		tile->predicted_us = c->time_us;
		tile_name(tile->name, c);
		tile_spec(&tile->yaml, subject->spec, subject->pass, c);
	}
}

static int subjects_add(struct sweep *s, const char *path, struct plan *plan, struct program *program)
{
	struct bench *b = s->bench;
	fagen_spec *spec;
	int status;
	if (spec_open(&spec, b, path, program, s->diag, &status))
		return fail(s, status);
	for (int pass = 0; pass < PASS_COUNT; pass++) {
		if (!b->spec->passes[pass])
			continue;
		struct subject *subject = calloc(1, sizeof *subject);
		if (!subject) {
			diag_fail(s->diag, "Out of memory.");
			return fail(s, EXIT_MACHINE);
		}
		*subject = (struct subject){.path = path, .spec = b->spec, .problem = b->problem, .pass = pass};
		s->subject[s->count++] = subject;
		if (plan_make(plan, b->spec, program, s->target, s->device, &b->problem, pass, s->diag))
			return fail(s, EXIT_REQUEST);
		tiles_add(subject, plan);
		s->works += subject->count;
	}
	return 0;
}

/* ---- compiling ---- */

static void tile_compile(void *context, int64_t item)
{
	struct sweep *s = context;
	const struct subject *subject = s->work[item].subject;
	struct tile *tile = s->work[item].tile;
	const fagen_problem wish = problem_wish(&subject->problem);
	fagen_spec *spec;
	fagen_kernel *kernel;
	tile->error.struct_size = sizeof tile->error;
	if (fagen_spec_parse(&spec, s->bench->rt, tile->yaml.data, tile->yaml.len, subject->path, &tile->error) ==
	            FAGEN_OK &&
	    fagen_kernel_get(&kernel, s->bench->rt, spec, &wish, s->bench->options->device, &tile->error) == FAGEN_OK)
		tile->kernel = kernel;
}

static int tiles_compile(struct sweep *s)
{
	s->work = calloc((size_t)s->works + 1, sizeof *s->work);
	if (!s->work) {
		diag_fail(s->diag, "Out of memory.");
		return fail(s, EXIT_MACHINE);
	}
	s->works = 0;
	for (int i = 0; i < s->count; i++)
		for (int t = 0; t < s->subject[i]->count; t++) {
			s->work[s->works].subject = s->subject[i];
			s->work[s->works++].tile = &s->subject[i]->tile[t];
		}
	parallel_for(s->works, tile_compile, s);
	for (int i = 0; i < s->works; i++) {
		const struct tile *tile = s->work[i].tile;
		int status;
		if (!tile->kernel) {
			diag_fail(s->diag, "%s: there is no kernel for the %s pass with the tile %s.",
			          s->work[i].subject->spec->name, pass_names[s->work[i].subject->pass], tile->name);
			error_give(s->diag, &tile->error, &status);
			fail(s, status);
		}
	}
	return 0;
}

/* ---- timing ---- */

static void subject_time(struct sweep *s, struct subject *subject)
{
	int status;
	for (int i = 0; i < subject->count; i++) {
		struct tile *tile = &subject->tile[i];
		if (tile->kernel &&
		    (workspace_make(s->bench, tile->kernel, s->diag, &status) ||
		     pass_time(&tile->us, s->bench, tile->kernel, subject->pass, tile_seconds, s->diag, &status))) {
			tile->us = 0;
			fail(s, status);
		}
	}
}

/* Subjects of one spec share their data; the forward pass, which comes first, leaves what the backward pass reads. */
static void subjects_time(struct sweep *s)
{
	struct bench *b = s->bench;
	for (int i = 0; i < s->count; i++) {
		struct subject *subject = s->subject[i];
		if (i == 0 || s->subject[i - 1]->spec != subject->spec) {
			data_free(b);
			b->spec = subject->spec;
			b->problem = subject->problem;
			if (data_make(b, s->diag)) {
				fail(s, EXIT_MACHINE);
				data_free(b);
				while (i + 1 < s->count && s->subject[i + 1]->spec == subject->spec)
					i++;
				continue;
			}
		}
		subject_time(s, subject);
	}
	data_free(b);
}

/* ---- what came of it ---- */

static const struct tile *tile_best(const struct subject *subject)
{
	const struct tile *best = NULL;
	for (int i = 0; i < subject->count; i++)
		if (subject->tile[i].us > 0 && (!best || subject->tile[i].us < best->us))
			best = &subject->tile[i];
	return best;
}

static void row_print(struct text *json, const struct subject *subject, const struct tile *best)
{
	const struct tile *chosen = &subject->tile[subject->chosen];
	struct text problem = {0};
	problem_print(&problem, &subject->problem);
	if (!json) {
		printf("%-20s  %-8s  %-38s  %3d/%-3d  %-14s  %9.3f  %9.2f  %-14s  %9.3f  %6.3f\n", subject->spec->name,
		       pass_names[subject->pass], text_str(&problem), subject->count, subject->legal, chosen->name,
		       chosen->us * 1e-3, chosen->predicted_us / chosen->us, best->name, best->us * 1e-3,
		       chosen->us / best->us);
	} else {
		text_puts(json, json->len ? ",\n  {\"spec\": " : "{\"passes\": [\n  {\"spec\": ");
		text_json(json, subject->spec->name);
		text_addf(json,
		          ", \"pass\": \"%s\", \"problem\": \"%s\", \"tile\": \"%s\", \"best\": \"%s\", \"legal\": %d",
		          pass_names[subject->pass], text_str(&problem), chosen->name, best->name, subject->legal);
		text_puts(json, ", \"tiles\": [");
		for (int i = 0, first = 1; i < subject->count; i++) {
			const struct tile *tile = &subject->tile[i];
			if (tile->us > 0)
				text_addf(json, "%s{\"tile\": \"%s\", \"us\": %.3f, \"predicted_us\": %.3f}",
				          first ? "" : ", ", tile->name, tile->us, tile->predicted_us);
			first = first && !(tile->us > 0);
		}
		text_puts(json, "]}");
	}
	text_free(&problem);
}

static void summary_print(struct text *json, const char *gpu, const struct sweep_summary *sum,
                          const struct subject *worst, int count)
{
	if (!json) {
		if (count)
			printf("predicted over measured: median %.2f, %.2f to %.2f; half within %.0f%%; %d passes\n"
			       "regret of the choice: median %.3f, worst %.3f (%s %s)\n",
			       sum->ratio_median, sum->ratio_least, sum->ratio_most, sum->error_median * 100, count,
			       sum->regret_median, sum->regret_worst, worst->spec->name, pass_names[worst->pass]);
		return;
	}
	text_puts(json, json->len ? "\n ],\n \"gpu\": " : "{\"passes\": [],\n \"gpu\": ");
	text_json(json, gpu);
	if (count)
		text_addf(json,
		          ",\n \"summary\": {\"ratio_median\": %.4f, \"ratio_least\": %.4f, \"ratio_most\": %.4f, "
		          "\"error_median\": %.4f, \"regret_median\": %.4f, \"regret_worst\": %.4f}",
		          sum->ratio_median, sum->ratio_least, sum->ratio_most, sum->error_median, sum->regret_median,
		          sum->regret_worst);
	text_puts(json, "}\n");
	fputs(text_str(json), stdout);
}

static void sweep_print(struct sweep *s)
{
	struct sweep_row *row = calloc((size_t)s->count + 1, sizeof *row);
	const struct subject **of = calloc((size_t)s->count + 1, sizeof *of);
	struct text json = {0}, *out = s->bench->options->json ? &json : NULL;
	struct sweep_summary sum;
	int rows = 0;
	if (!out)
		printf("%s\n%-20s  %-8s  %-38s  %-7s  %-14s  %9s  %9s  %-14s  %9s  %6s\n", s->bench->gpu.name, "spec",
		       "pass", "problem", "tiles", "chosen", "ms", "pred/meas", "fastest", "ms", "regret");
	for (int i = 0; row && of && i < s->count; i++) {
		const struct subject *subject = s->subject[i];
		const struct tile *best = tile_best(subject), *chosen = &subject->tile[subject->chosen];
		if (!best || !(chosen->us > 0))
			continue;
		row[rows] = (struct sweep_row){chosen->us, chosen->predicted_us, best->us};
		of[rows++] = subject;
		row_print(out, subject, best);
	}
	sweep_sum(&sum, row, rows);
	summary_print(out, s->bench->gpu.name, &sum, rows ? of[sum.worst] : NULL, rows);
	text_free(&json);
	free(row);
	free(of);
}

int sweep_run(struct bench *b, char **paths, int count, struct diag *diag)
{
	struct sweep s = {.bench = b, .diag = diag};
	struct plan *plan = malloc(sizeof *plan);
	struct program *program = malloc(sizeof *program);
	s.subject = calloc((size_t)count * PASS_COUNT, sizeof *s.subject);
	if (!plan || !program || !s.subject) {
		diag_fail(diag, "Out of memory.");
		fail(&s, EXIT_MACHINE);
	} else if (runtime_machine(&s.target, &s.device, b->rt, b->options->device, diag)) {
		fail(&s, EXIT_MACHINE);
	} else {
		for (int i = 0; i < count; i++)
			if (subjects_add(&s, paths[i], plan, program))
				break;
		if (!s.status && !tiles_compile(&s)) {
			subjects_time(&s);
			sweep_print(&s);
		}
	}
	for (int i = 0; i < s.count; i++) {
		for (int t = 0; t < s.subject[i]->count; t++)
			text_free(&s.subject[i]->tile[t].yaml);
		free(s.subject[i]);
	}
	free(s.subject);
	free(s.work);
	free(plan);
	free(program);
	return s.status;
}
