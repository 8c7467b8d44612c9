/* tune_tiles: the tiles that are worth a measurement, from the plans of all templates to kernels that were found right. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/case.h"
#include "cli/cli.h"
#include "cli/tune.h"
#include "gen/model.h"

/* Predictions are off by far less. */
static const double worth_timing = 2.5;

static struct tile_choice choice_of(const struct plan *plan, const struct candidate *c)
{
	struct tile_choice choice = {.tile = {c->tile_m, c->tile_n, c->warps, c->stages, .heads = c->heads > 1 ? c->heads : 0}};
	memcpy(choice.templ, plan->templ, sizeof choice.templ);
	return choice;
}

static bool choice_equal(const struct tile_choice *a, const struct tile_choice *b)
{
	return strcmp(a->templ, b->templ) == 0 && a->tile.m == b->tile.m && a->tile.n == b->tile.n &&
	       a->tile.warps == b->tile.warps && a->tile.stages == b->tile.stages && a->tile.heads == b->tile.heads;
}

static void plan_add(struct tune_job *job, const struct plan *plan, const struct spec *spec, double limit,
                     const struct tile_choice *planner)
{
	for (int i = 0; i < plan->candidate_count; i++) {
		const struct candidate *c = &plan->candidate[i];
		if (c->reason[0] != '\0' || c->time_us > limit || job->count == TUNE_TILES_MAX)
			continue;
		struct tune_tile *tile = &job->tile[job->count];
		tile->choice = choice_of(plan, c);
		if (choice_equal(&tile->choice, planner))
			job->planner = job->count;
		tile_spec(&tile->yaml, spec, job->pass, c);
		job->count++;
	}
}

int tiles_collect(struct tune_job *job, const struct bench *b, const struct target *target, const struct device *device,
                  struct diag *diag)
{
	const struct template_model *row[TEMPLATES_MAX];
	struct plan *plan = malloc(sizeof *plan);
	struct spec *spec = malloc(sizeof *spec);
	int rc = -1;
	if (!plan || !spec) {
		diag_fail(diag, "Out of memory.");
		goto out;
	}
	*spec = *b->spec;
	spec->assume = b->problem; /* kernels are planned, and judged, for what is timed */
	memset(spec->tile, 0, sizeof spec->tile);
	if (plan_make(plan, spec, b->program, target, device, &b->problem, job->pass, diag))
		goto out;
	const struct tile_choice planner = choice_of(plan, &plan->candidate[plan->chosen]);
	const double limit = worth_timing * plan->candidate[plan->chosen].time_us;
	const int rows = templates_find(row, job->pass, target, false);
	for (int i = 0; i < rows; i++) {
		struct diag ignored = {0};
		if (b->problem.align >= row[i]->align_min && plan_with(plan, row[i], spec, b->program, target, device,
		                                                       &b->problem, job->pass, &ignored) == 0)
			plan_add(job, plan, spec, limit, &planner);
		diag_free(&ignored);
	}
	rc = 0;
out:
	free(plan);
	free(spec);
	return rc;
}

/* ---- compiling ---- */

struct compiling {
	struct tune_job *job;
	struct bench *bench;
};

static void tile_compile(void *context, int64_t item)
{
	struct compiling *c = context;
	struct tune_tile *tile = &c->job->tile[item];
	const fagen_problem wish = problem_wish(&c->bench->problem);
	tile->error.struct_size = sizeof tile->error;
	if (fagen_spec_parse(&tile->spec, c->bench->rt, tile->yaml.data, tile->yaml.len, c->job->path, &tile->error) !=
	            FAGEN_OK ||
	    fagen_kernel_get(&tile->kernel, c->bench->rt, tile->spec, &wish, c->bench->options->device, &tile->error) !=
	            FAGEN_OK)
		tile->kernel = NULL;
}

int tiles_compile(struct tune_job *job, struct bench *b, struct diag *diag, int *status)
{
	struct compiling c = {job, b};
	parallel_for(job->count, tile_compile, &c);
	for (int i = 0; i < job->count; i++) {
		struct tune_tile *tile = &job->tile[i];
		char name[WISDOM_TILE_MAX];
		tile_choice_print(name, &tile->choice);
		if (!tile->kernel) {
			diag_warn(diag, "%s: the %s pass has no kernel with the tile %s, which is left out: %s", b->spec->name,
			          pass_names[job->pass], name, tile->error.message);
			if (i == job->planner) {
				diag_fail(diag, "%s: that tile is the planner's choice.", b->spec->name);
				return error_give(diag, &tile->error, status);
			}
		} else if (strcmp(runtime_plan(tile->kernel, job->pass)->templ, tile->choice.templ) != 0) {
			tile->kernel = NULL; /* a spec names no template: another one has the same tile, and is predicted to be faster */
		}
	}
	return 0;
}

void tiles_free(struct tune_job *job)
{
	for (int i = 0; i < job->count; i++)
		text_free(&job->tile[i].yaml);
	job->count = 0;
}

/* ---- judging ---- */

/* Small lengths that are no multiple of any tile, then some of the problem's own, as far as the reference is quick. */
int tile_judge(struct tune_tile *tile, const struct bench *b, struct diag *diag, int *status)
{
	enum { LENGTH_JUDGED = 1000 };
	const struct spec *spec = runtime_spec(tile->spec);
	struct check_case c;
	tile->verdict = RIGHT;
	for (int turn = 0; turn < 2; turn++) {
		char name[WISDOM_TILE_MAX], spelled[CASE_TEXT_MAX];
		struct check_outcome outcome;
		case_default(&c, b->spec->name, spec);
		if (turn) {
			c.seqlen_q = b->problem.seqlen_q < LENGTH_JUDGED ? b->problem.seqlen_q : LENGTH_JUDGED;
			c.seqlen_k = b->problem.seqlen_k < LENGTH_JUDGED ? b->problem.seqlen_k : LENGTH_JUDGED;
			c.input = INPUT_OUTLIER;
		}
		check_run(&outcome, &c, b->rt, tile->spec, &(struct check_options){.device = b->options->device});
		if (outcome.status == CHECK_PASSED)
			continue;
		tile_choice_print(name, &tile->choice);
		case_print(spelled, &c);
		*status = outcome.status == CHECK_MACHINE ? EXIT_MACHINE : outcome.status == CHECK_WRONG ? EXIT_CHECK : EXIT_REQUEST;
		diag_fail(diag, "The tile %s is %s for %s: %s", name, outcome.status == CHECK_WRONG ? "WRONG" : "not judged", spelled,
		          outcome.text);
		tile->verdict = WRONG;
		return outcome.status == CHECK_WRONG ? 0 : -1;
	}
	return 0;
}
