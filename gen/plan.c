/* plan: tries every tile a template offers, and keeps the one predicted to be the fastest. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/plan_memo.h"

const char *const cost_names[COST_COUNT] = {"mma", "exp", "alu", "smem", "l2", "hbm"};

/* A zero in `wish` stands for the planner's choice. */
static bool tile_matches(const struct tile_request *tile, const struct tile_request *wish)
{
	return (wish->m == 0 || wish->m == tile->m) && (wish->n == 0 || wish->n == tile->n) &&
	       (wish->warps == 0 || wish->warps == tile->warps) && (wish->stages == 0 || wish->stages == tile->stages);
}

static bool is_auto(const struct tile_request *wish)
{
	return !wish->m && !wish->n && !wish->warps && !wish->stages && !wish->splits && !wish->heads;
}

/* The template's own tiles that match the wish but for its splits and heads; a wish outside that list is tried with every number of
 * warps and stages it leaves open. */
static int tiles_list(struct tile_request tile[CANDIDATES_MAX], const struct template_model *model,
                         const struct spec *spec, const struct program *program, const struct target *target,
                         const struct tile_request *wish)
{
	static const int warps[] = {4, 8, 2, 1, 16}, stages[] = {1, 2, 3, 4};
	const int offered = model->tiles(tile, CANDIDATES_MAX, spec, program, target);
	int count = 0;
	for (int i = 0; i < offered; i++)
		if (tile_matches(&tile[i], wish))
			tile[count++] = tile[i];
	if (count > 0 || wish->m == 0 || wish->n == 0)
		return count;
	for (int w = 0; w < (wish->warps ? 1 : 5); w++)
		for (int s = 0; s < (wish->stages ? 1 : 4); s++)
			tile[count++] = (struct tile_request){.m = wish->m,
			                                      .n = wish->n,
			                                      .warps = wish->warps ? wish->warps : warps[w],
			                                      .stages = wish->stages ? wish->stages : stages[s]};
	return count;
}

static int tiles_collect(struct tile_request tile[CANDIDATES_MAX], const struct template_model *model,
                         const struct spec *spec, const struct program *program, const struct target *target,
                         const struct tile_request *wish)
{
	const int count = tiles_list(tile, model, spec, program, target, wish);
	for (int i = 0; i < count; i++)
		tile[i].splits = wish->splits, tile[i].heads = wish->heads;
	return count;
}

/* The kernels beside the main one have their own shared memory. */
static bool kernels_fit(struct candidate *c, const struct template_model *model, const struct spec *spec,
                        const struct program *program, const struct target *target)
{
	struct recipe recipe = {0};
	model->recipe(&recipe, spec, program, c, target);
	for (int i = 0; i < recipe.kernel_count; i++) {
		const struct recipe_kernel *k = &recipe.kernel[i];
		if (k->smem_bytes <= target->smem_block)
			continue;
		snprintf(c->reason, sizeof c->reason, "shared memory: %s needs %d bytes, a CTA of %s may use %d",
		         k->entry, k->smem_bytes, target->name, target->smem_block);
		return false;
	}
	return true;
}

/* Fills what does not depend on the problem; false and a reason when the candidate cannot run on the target. */
static bool candidate_shape(struct candidate *c, const struct template_model *model, const struct spec *spec,
                            const struct program *program, const struct target *target, const struct device *device,
                            const struct tile_request *tile, bool may_cut)
{
	*c = (struct candidate){.tile_m = tile->m, .tile_n = tile->n, .warps = tile->warps, .stages = tile->stages};
	c->splits = tile->splits ? tile->splits : 1;
	c->may_cut = may_cut;
	c->heads = tile->heads ? tile->heads : 1;
	c->positions = c->tile_m / heads_slots(c->heads);
	c->walk_warps = c->warps;
	c->ctas_wanted = 1;
	c->alike = items_alike(spec, program, model->pass);
	candidate_clocks(c, model->pass);
	if (c->splits > 1 && c->splits > model->splits_most) {
		snprintf(c->reason, sizeof c->reason, "%d splits; %s leaves the %s of a tile together", c->splits, model->templ,
		         model->pass == PASS_FORWARD ? "keys" : "queries");
		return false;
	}
	if (!heads_fit(c, model, spec, program))
		return false;
	if (!model->legal(c->reason, tile, spec, program)) {
		if (c->reason[0] == '\0')
			snprintf(c->reason, sizeof c->reason, "%s cannot be built with this tile", model->templ);
		return false;
	}
	model->shape(c, spec, program, target, device);
	return candidate_occupancy(c, target) > 0 && kernels_fit(c, model, spec, program, target);
}

static void recipe_fill(struct recipe *recipe, const struct template_model *model, const struct spec *spec,
                        const struct program *program, const struct candidate *c, const struct target *target,
                        const struct problem *problem)
{
	memset(recipe, 0, sizeof *recipe);
	model->recipe(recipe, spec, program, c, target);
	recipe->load_bytes = problem->align;
	recipe->kv_group = spec->kv_group;
}

struct tile_request candidate_request(const struct candidate *c)
{
	return (struct tile_request){c->tile_m, c->tile_n, c->warps, c->stages, c->splits, c->heads};
}

/* Are the last tiles cut for the plan's problem, behind whole ones? */
static bool cuts_some(const struct recipe *recipe, const struct plan *plan)
{
	const struct recipe_shape shape = problem_shape(&plan->problem, plan->device->sms);
	for (int i = 0; i < recipe->kernel_count; i++) {
		const struct recipe_cut cut = recipe_kernel_cut(&recipe->kernel[i], &shape);
		if (cut.parts > 0 && cut.first > 0)
			return true;
	}
	return false;
}

static void candidate_fill(struct candidate *c, struct plan *plan, struct memo *memo, const struct template_model *model,
                           const struct spec *spec, const struct program *program, const struct tile_request *tile)
{
	struct recipe recipe;
	bool fits = candidate_shape(c, model, spec, program, plan->target, plan->device, tile, true);
	if (fits)
		recipe_fill(&recipe, model, spec, program, c, plan->target, &plan->problem);
	if (c->cut && !(fits && cuts_some(&recipe, plan))) {
		fits = candidate_shape(c, model, spec, program, plan->target, plan->device, tile, false);
		if (fits)
			recipe_fill(&recipe, model, spec, program, c, plan->target, &plan->problem);
	}
	if (!fits)
		return;
	if (model->naive)
		candidate_cost_naive(c, spec, plan, &recipe);
	else
		candidate_cost(c, model, spec, program, memo_visits(memo, c, plan), plan, &recipe);
	if (c->ctas < 0)
		snprintf(c->reason, sizeof c->reason,
		         "grid: more than 2147483647 CTAs; split the batch or take a larger tile");
}

/* Where owned tiles do not fill the GPU, parts of them may: as many as fill it once, or a few times with shorter ones, and no
 * more than the longest part needs; of at least PART_VISITS visits, or they are nothing but beginnings and ends. The fastest
 * remain in *c. */
static void candidate_split(struct candidate *c, struct plan *plan, struct memo *memo, const struct template_model *model,
                            const struct spec *spec, const struct program *program, const struct tile_request *tile)
{
	enum { ROUNDS_MOST = 4, PART_VISITS = 4 };
	if (c->reason[0] != '\0' || model->splits_most == 0 || tile->splits != 0 || c->waves <= 0 || c->waves >= 1)
		return;
	const double group = plan->pass == PASS_FORWARD ? 1 : (double)(plan->problem.heads_q / plan->problem.heads_kv); /* who sees a key tile */
	const double visits = ceil(memo_visits(memo, c, plan)->most) * group, waves = c->waves;
	for (int rounds = 1; rounds <= ROUNDS_MOST; rounds++) {
		const double most = fmin(floor(visits / PART_VISITS), model->splits_most);
		const double parts = fmin(floor(rounds / waves + 1e-9), most);
		if (parts < 2)
			continue;
		struct tile_request cut = *tile;
		cut.splits = (int)ceil(visits / ceil(visits / parts));
		struct candidate tried;
		candidate_fill(&tried, plan, memo, model, spec, program, &cut);
		if (tried.reason[0] == '\0' && tried.time_us < c->time_us * (1 - 1e-9))
			*c = tried;
	}
}

static void candidate_add(struct plan *plan, struct memo *memo, const struct template_model *model,
                          const struct spec *spec, const struct program *program, const struct tile_request *tile)
{
	if (plan->candidate_count == CANDIDATES_MAX)
		return;
	struct candidate *c = &plan->candidate[plan->candidate_count++];
	candidate_fill(c, plan, memo, model, spec, program, tile);
	candidate_split(c, plan, memo, model, spec, program, tile);
}

/* Looks closer at the shape that seems the fastest, until it is one that was looked at. */
static void candidates_again(struct plan *plan, struct memo *memo, const struct template_model *model, const struct spec *spec,
                             const struct program *program, const struct tile_request *tile)
{
	enum { LOOKS_MOST = 3 };
	const int count = plan->candidate_count;
	memo->looks_close = true;
	for (int looks = 0; looks < LOOKS_MOST && !memo_close(memo, &plan->candidate[plan->chosen]); looks++) {
		const struct candidate seems = plan->candidate[plan->chosen];
		for (int i = 0; i < count; i++) {
			plan->candidate_count = i;
			if (tile[i].m == seems.tile_m && tile[i].n == seems.tile_n)
				candidate_add(plan, memo, model, spec, program, &tile[i]);
		}
		plan->candidate_count = count;
		plan->chosen = candidate_choose(plan);
	}
	memo->looks_close = false;
}

/* How far a tile is from a wish, a step being a factor of two in one number. */
static double tile_distance(const struct tile_request *tile, const struct tile_request *wish)
{
	const int have[] = {tile->m, tile->n, tile->warps, tile->stages},
		  want[] = {wish->m, wish->n, wish->warps, wish->stages};
	double sum = 0;
	for (int i = 0; i < 4; i++) {
		if (want[i] <= 0 || have[i] <= 0)
			continue;
		const double ratio = have[i] > want[i] ? (double)have[i] / want[i] : (double)want[i] / have[i];
		sum += ratio - 1;
	}
	return sum;
}

/* The admissible tile of the template's own list that is nearest to the wish; false: there is none. */
static bool tile_nearest(struct tile_request *nearest, const struct template_model *model, const struct spec *spec,
                         const struct program *program, const struct target *target, const struct device *device,
                         const struct tile_request *wish)
{
	struct tile_request tile[CANDIDATES_MAX];
	const int count = model->tiles(tile, CANDIDATES_MAX, spec, program, target);
	bool found = false;
	for (int i = 0; i < count; i++) {
		struct candidate c;
		if (!candidate_shape(&c, model, spec, program, target, device, &tile[i], false))
			continue;
		if (!found || tile_distance(&tile[i], wish) < tile_distance(nearest, wish))
			*nearest = tile[i];
		found = true;
	}
	return found;
}

static void tile_print(struct text *text, const struct tile_request *tile)
{
	text_addf(text, "m %d, n %d", tile->m, tile->n);
	if (tile->warps)
		text_addf(text, ", warps %d", tile->warps);
	if (tile->stages)
		text_addf(text, ", stages %d", tile->stages);
	if (tile->splits)
		text_addf(text, ", splits %d", tile->splits);
	if (tile->heads)
		text_addf(text, ", heads %d", tile->heads);
}

/* The targets on which some tile of the pass is admissible: what a person can do when this one has none. */
static void targets_list(struct text *text, const struct spec *spec, const struct program *program, enum pass pass,
                         bool naive)
{
	const struct tile_request any = {0};
	for (int i = 0; i < TARGET_COUNT; i++) {
		const struct target *target = &target_table[i];
		const struct device *device = device_for_target(target);
		const struct template_model *row[TEMPLATES_MAX];
		const int rows = templates_find(row, pass, target, naive);
		struct tile_request nearest;
		if (rows && device && tile_nearest(&nearest, row[rows - 1], spec, program, target, device, &any))
			text_addf(text, "%s%s", text->len ? ", " : "", target->name);
	}
}

/* Of all refusals, the one to tell: that of the candidate which came nearest, the least shared memory. */
static const struct candidate *candidate_telling(const struct plan *plan)
{
	const struct candidate *best = NULL;
	for (int i = 0; i < plan->candidate_count; i++) {
		const struct candidate *c = &plan->candidate[i];
		const bool shaped = c->smem_bytes > 0;
		if (best == NULL || (shaped && (best->smem_bytes == 0 || c->smem_bytes < best->smem_bytes)))
			best = c;
	}
	return best;
}

static int request_refuse(const struct plan *plan, const struct template_model *model, const struct spec *spec,
                          const struct program *program, struct diag *diag)
{
	const struct tile_request *wish = &spec->tile[plan->pass];
	const struct candidate *telling = candidate_telling(plan);
	struct text text = {0};
	struct tile_request nearest;
	text_puts(&text, "The tile {");
	tile_print(&text, wish);
	text_addf(&text, "} cannot be used for the %s pass on %s: %s.", pass_names[plan->pass], plan->target->name,
	          telling ? telling->reason : "no tile of that kind exists");
	if (tile_nearest(&nearest, model, spec, program, plan->target, plan->device, wish)) {
		text_puts(&text, " The nearest legal choice is {");
		tile_print(&text, &nearest);
		text_puts(&text, "}; `auto` lets the planner choose.");
	}
	const int result = diag_at(diag, spec->place[KEY_tile], "%s", text_str(&text));
	text_free(&text);
	return result;
}

static int auto_refuse(const struct plan *plan, const struct template_model *model, const struct spec *spec,
                       const struct program *program, struct diag *diag)
{
	const struct tile_request any = {0};
	const struct candidate *telling = candidate_telling(plan);
	struct text text = {0}, targets = {0};
	text_addf(&text, "The %s pass with head_dim {qk: %d, v: %d} has no tile that fits %s.", pass_names[plan->pass],
	          spec->head_dim_qk, spec->head_dim_v, plan->target->name);
	if (telling)
		text_addf(&text, " The nearest, m %d, n %d with %d warps: %s.", telling->tile_m, telling->tile_n,
		          telling->warps, telling->reason);
	targets_list(&targets, spec, program, plan->pass, model->naive);
	if (targets.len)
		text_addf(&text, " It can be compiled for: %s.", text_str(&targets));
	else
		text_puts(&text, " No target can run it.");
	struct spec kept = *spec;
	kept.keep_256 = DROPOUT_LEVELS;
	struct tile_request nearest;
	if (spec->keep_256 < DROPOUT_LEVELS &&
	    tile_nearest(&nearest, model, &kept, program, plan->target, plan->device, &any))
		text_puts(&text, " Without dropout it fits.");
	const int result = diag_fail(diag, "%s", text_str(&text));
	text_free(&text);
	text_free(&targets);
	return result;
}

/* A problem that was checked. false: no tile is admissible, and nobody was told. */
static bool plan_try(struct plan *plan, struct memo *memo, const struct template_model *model, const struct spec *spec,
                     const struct program *program, const struct target *target, const struct device *device,
                     const struct problem *problem, enum pass pass)
{
	memset(plan, 0, sizeof *plan);
	plan->pass = pass;
	plan->target = target;
	plan->device = device;
	plan->problem = *problem;
	snprintf(plan->templ, sizeof plan->templ, "%s", model->templ);
	plan->standard_bytes = standard_bytes(spec, problem, pass);
	if (model->heads_most)
		plan->heads_most = model->heads_most(plan->heads_apart, spec, program);
	const double flop_cell = 2.0 * (spec->head_dim_qk + spec->head_dim_v) * (pass == PASS_FORWARD ? 1 : 2.5);
	plan->useful_flop = memo->visible * flop_cell;

	/* The naive kernels have one shape; a tile in the spec is not about them. */
	const struct tile_request any = {0}, *wish = model->naive ? &any : &spec->tile[pass];
	struct tile_request tile[CANDIDATES_MAX];
	const int count = tiles_collect(tile, model, spec, program, target, wish);
	for (int i = 0; i < count; i++)
		candidate_add(plan, memo, model, spec, program, &tile[i]);
	for (int i = 0; i < count && wish->heads == 0 && plan->heads_most > 1; i++) {
		tile[i].heads = plan->heads_most;
		if (plan->candidate[i].reason[0] == '\0') /* what does not fit does not fit then either */
			candidate_add(plan, memo, model, spec, program, &tile[i]);
	}
	plan->chosen = candidate_choose(plan);
	if (plan->chosen < 0)
		return false;
	if (program->scan)
		candidates_again(plan, memo, model, spec, program, tile);
	recipe_fill(&plan->recipe, model, spec, program, &plan->candidate[plan->chosen], target, problem);
	return true;
}

int plan_with(struct plan *plan, const struct template_model *model, const struct spec *spec,
              const struct program *program, const struct target *target, const struct device *device,
              const struct problem *problem, enum pass pass, struct diag *diag)
{
	if (problem_check(problem, spec->kv_group, diag) != 0)
		return -1;
	struct memo memo;
	memo_begin(&memo, spec, program, problem);
	if (plan_try(plan, &memo, model, spec, program, target, device, problem, pass))
		return 0;
	return model->naive || is_auto(&spec->tile[pass]) ? auto_refuse(plan, model, spec, program, diag)
	                                                  : request_refuse(plan, model, spec, program, diag);
}

/* What is told of a template that was tried beside the one that serves. */
static void other_add(struct plan *plan, const struct template_model *model, const struct plan *tried, bool serves)
{
	struct other_template *other = &plan->other[plan->other_count++];
	const struct candidate *telling = candidate_telling(tried);
	*other = (struct other_template){.time_us = serves ? tried->candidate[tried->chosen].time_us : 0};
	snprintf(other->templ, sizeof other->templ, "%s", model->templ);
	if (!serves)
		snprintf(other->reason, sizeof other->reason, "%s",
		         tried->problem.align < model->align_min ? "rows are not 16-byte aligned"
		         : telling                                ? telling->reason
		                                                  : "the tile asked for is none of its own");
}

/* Takes the measured tile, if it is an admissible candidate of this plan. */
static bool tuned_take(struct plan *plan, const struct template_model *model, const struct tile_choice *choice,
                       const struct spec *spec, const struct program *program)
{
	const struct tile_request *want = &choice->tile;
	for (int i = 0; i < plan->candidate_count && strcmp(plan->templ, choice->templ) == 0; i++) {
		const struct candidate *c = &plan->candidate[i];
		if (c->reason[0] != '\0' || c->tile_m != want->m || c->tile_n != want->n || c->warps != want->warps ||
		    c->stages != want->stages || (c->heads > 1 ? c->heads : 0) != want->heads)
			continue;
		plan->chosen = i;
		recipe_fill(&plan->recipe, model, spec, program, c, plan->target, &plan->problem);
		return true;
	}
	return false;
}

/* Every template that runs on the target is planned for; the fastest serves, or that of the measured tile. */
static int plan_of(struct plan *plan, bool naive, const struct tuned *tuned, const struct spec *spec,
                   const struct program *program, const struct target *target, const struct device *device,
                   const struct problem *problem, enum pass pass, struct diag *diag)
{
	const struct template_model *row[TEMPLATES_MAX];
	const int rows = templates_find(row, pass, target, naive);
	if (rows == 0)
		return diag_fail(diag, "There is no %s template for the %s pass on %s.", naive ? "naive" : "fast",
		                 pass_names[pass], target->name);
	if (rows == 1) {
		const int rc = plan_with(plan, row[0], spec, program, target, device, problem, pass, diag);
		if (rc == 0 && tuned && tuned_take(plan, row[0], &tuned->tile, spec, program))
			plan->tuning = TUNING_USED;
		return rc;
	}
	if (problem_check(problem, spec->kv_group, diag) != 0)
		return -1;
	struct plan *tried = calloc((size_t)rows, sizeof *tried);
	if (tried == NULL)
		return diag_fail(diag, "out of memory");
	bool serves[TEMPLATES_MAX];
	int best = -1, measured = -1;
	struct memo memo;
	memo_begin(&memo, spec, program, problem);
	for (int i = 0; i < rows; i++) {
		tried[i].problem = *problem;
		serves[i] = problem->align >= row[i]->align_min &&
		            plan_try(&tried[i], &memo, row[i], spec, program, target, device, problem, pass);
		if (serves[i] && (best < 0 || tried[i].candidate[tried[i].chosen].time_us <
		                                      tried[best].candidate[tried[best].chosen].time_us))
			best = i;
		if (serves[i] && tuned && tuned_take(&tried[i], row[i], &tuned->tile, spec, program))
			measured = i;
	}
	best = measured >= 0 ? measured : best;
	if (best >= 0) {
		tried[best].tuning = measured >= 0 ? TUNING_USED : TUNING_OFF;
		*plan = tried[best];
		for (int i = 0; i < rows; i++)
			if (i != best)
				other_add(plan, row[i], &tried[i], serves[i]);
	}
	free(tried);
	/* The last row is the portable one: it tells why nothing serves; but of parts, and of heads that share tiles, one that has them. */
	int teller = rows - 1;
	for (int i = 0; i < rows; i++) {
		const bool parts = spec->tile[pass].splits > 1 && row[i]->splits_most > 0, heads = spec->tile[pass].heads > 1 && row[i]->heads_most;
		if ((parts || heads) && problem->align >= row[i]->align_min)
			teller = i;
	}
	return best >= 0 ? 0 : plan_with(plan, row[teller], spec, program, target, device, problem, pass, diag);
}

int plan_make(struct plan *plan, const struct spec *spec, const struct program *program, const struct target *target,
              const struct device *device, const struct problem *problem, enum pass pass, struct diag *diag)
{
	return plan_tuned(plan, NULL, spec, program, target, device, problem, pass, diag);
}

int plan_tuned(struct plan *plan, const struct wisdom *wisdom, const struct spec *spec, const struct program *program,
               const struct target *target, const struct device *device, const struct problem *problem, enum pass pass,
               struct diag *diag)
{
	const bool asked = wisdom && is_auto(&spec->tile[pass]);
	const struct wisdom_entry *line = NULL;
	if (asked) {
		struct wisdom_entry key;
		wisdom_key(&key, spec, device, problem, pass);
		line = wisdom_find(wisdom, &key);
		free(key.spec);
	}
	if (plan_of(plan, false, line ? &line->tuned : NULL, spec, program, target, device, problem, pass, diag))
		return -1;
	if (plan->tuning != TUNING_USED)
		plan->tuning = line ? TUNING_STALE : asked ? TUNING_MISSING : TUNING_OFF;
	if (line)
		plan->tuned = line->tuned;
	return 0;
}

int plan_naive(struct plan *plan, const struct spec *spec, const struct program *program, const struct target *target,
               const struct device *device, const struct problem *problem, enum pass pass, struct diag *diag)
{
	return plan_of(plan, true, NULL, spec, program, target, device, problem, pass, diag);
}
