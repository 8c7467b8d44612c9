/* plan_print: a plan as a person reads it, and as a program does. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gen/model.h"

static double tflops(const struct plan *plan, const struct candidate *c)
{
	return c->time_us > 0 ? plan->useful_flop / c->time_us * 1e-6 : 0;
}

/* Four figures and a unit, so that a column stays narrow. */
static void scaled_print(struct text *text, double value, const char *unit)
{
	static const char prefix[] = " kMGTPE";
	int i = 0;
	while (value >= 999.95 && prefix[i + 1] != '\0') {
		value /= 1000;
		i++;
	}
	text_addf(text, i == 0 ? "%.0f " : value < 10 ? "%.2f " : "%.1f ", value);
	if (i > 0)
		text_add(text, &prefix[i], 1);
	text_puts(text, unit);
}

static void time_print(struct text *text, double us)
{
	text_addf(text, us < 1000 ? "%.1f us" : "%.2f ms", us < 1000 ? us : us / 1000);
}

static const char *plural(int64_t n) { return n == 1 ? "" : "s"; }

static void tuning_print(struct text *text, const struct plan *plan)
{
	const struct tuned *t = &plan->tuned;
	char tile[WISDOM_TILE_MAX], planner[WISDOM_TILE_MAX];
	tile_choice_print(tile, &t->tile);
	tile_choice_print(planner, &t->planner);
	switch (plan->tuning) {
	case TUNING_OFF: return;
	case TUNING_MISSING:
		text_puts(text, "  tuning       the wisdom has no line for this spec, GPU and class of problem: the planner chose\n");
		return;
	case TUNING_STALE:
		text_addf(text, "  tuning       the measured tile %s is none of the candidates below: the planner chose\n", tile);
		return;
	case TUNING_USED:
		text_puts(text, "  tuning       the tile is from tuning: ");
		time_print(text, (double)t->ns / 1e3);
		text_addf(text, " measured, noise %d.%d%%, %d round%s; ", t->noise / 10, t->noise % 10, t->rounds,
		          plural(t->rounds));
		if (strcmp(tile, planner) == 0) {
			text_puts(text, "the planner's own choice\n");
			return;
		}
		text_addf(text, "the planner's %s took ", planner);
		time_print(text, (double)t->planner_ns / 1e3);
		text_puts(text, "\n");
	}
}

static void tuning_json(struct text *text, const struct plan *plan)
{
	static const char *const words[] = {"off", "missing", "stale", "used"};
	const struct tuned *t = &plan->tuned;
	char tile[WISDOM_TILE_MAX], planner[WISDOM_TILE_MAX];
	if (plan->tuning == TUNING_OFF)
		return;
	text_addf(text, ", \"tuning\": {\"state\": \"%s\"", words[plan->tuning]);
	if (plan->tuning != TUNING_MISSING) {
		tile_choice_print(tile, &t->tile);
		tile_choice_print(planner, &t->planner);
		text_addf(text, ", \"tile\": \"%s\", \"us\": %.3f, \"noise\": %.3f, \"rounds\": %d", tile, (double)t->ns / 1e3,
		          t->noise / 1e3, t->rounds);
		text_addf(text, ", \"planner\": \"%s\", \"planner_us\": %.3f", planner, (double)t->planner_ns / 1e3);
	}
	text_puts(text, "}");
}

/* Whether query heads of a group share tiles, and why: where there are groups, and a template for which it is a question. */
static void heads_print(struct text *text, const struct plan *plan, const struct candidate *c)
{
	if (plan->heads_most == 0 || plan->problem.heads_q == plan->problem.heads_kv)
		return;
	if (c->heads > 1)
		text_addf(text, "  heads        %d of a group share a tile, %d positions of each", c->heads, c->positions);
	else
		text_puts(text, "  heads        each has tiles of its own");
	if (plan->heads_apart[0] != '\0')
		text_addf(text, ": %s", plan->heads_apart);
	const int other = candidate_fastest(plan, c->heads == 1);
	if (other >= 0) {
		if (c->heads > 1)
			text_puts(text, "; apart ");
		else
			text_addf(text, "; %d together ", plan->heads_most);
		time_print(text, plan->candidate[other].time_us);
		text_puts(text, " predicted");
	}
	text_puts(text, "\n");
}

/* What becomes of the last tiles. */
static void cut_print(struct text *text, const struct plan *plan)
{
	const struct recipe_shape shape = problem_shape(&plan->problem, plan->device->sms);
	for (int i = 0; i < plan->recipe.kernel_count; i++) {
		const struct recipe_kernel *const join = &plan->recipe.kernel[i];
		const struct recipe_cut cut = recipe_kernel_cut(join, &shape);
		if (cut.parts > 0 && (join->grid == GRID_TAILS_JOIN || join->grid == GRID_KEY_TAILS_JOIN))
			text_addf(text, "; the last %" PRId64 " tiles in %" PRId64 " parts, which %s joins", cut.tiles, cut.parts, join->entry);
	}
}

static void chosen_print(struct text *text, const struct plan *plan, const struct candidate *c)
{
	text_addf(text, "  tile         %d query rows x %d keys, %d warps, %d stage%s", c->tile_m, c->tile_n,
	          c->warps, c->stages, plural(c->stages));
	if (c->splits > 1)
		text_addf(text, "; %s in %d parts, which %s joins", plan->pass == PASS_FORWARD ? "keys" : "queries", c->splits,
		          plan->recipe.kernel[plan->recipe.kernel_count - 1].entry);
	cut_print(text, plan);
	text_puts(text, "\n");
	heads_print(text, plan, c);
	tuning_print(text, plan);
	text_puts(text, "  time         ");
	time_print(text, c->time_us);
	text_addf(text, " predicted, %.0f TFLOP/s of visible work, bound by %s; ", tflops(plan, c),
	          cost_names[c->bound_by]);
	const int launches = launches_count(&plan->recipe, &plan->problem, plan->device);
	text_addf(text, "%.1f us of it are %d launch%s\n", launches * plan->device->launch_us, launches,
	          launches == 1 ? "" : "es");
	text_puts(text, "  costs       ");
	for (int i = 0; i < COST_COUNT; i++) {
		text_addf(text, "%s %s ", i ? "," : "", cost_names[i]);
		time_print(text, c->cost_us[i]);
	}
	text_puts(text, "\n  memory       ");
	scaled_print(text, c->hbm_bytes, "B of HBM traffic; standard attention ");
	scaled_print(text, plan->standard_bytes, "B");
	if (c->hbm_bytes > 0)
		text_addf(text, ", %.1f times as much", plan->standard_bytes / c->hbm_bytes);
	text_puts(text, "; L2 ");
	scaled_print(text, c->l2_bytes, "B\n");
	text_puts(text, "  work         ");
	scaled_print(text, c->mma_flop, "FLOP in matrix products, ");
	scaled_print(text, plan->useful_flop, "FLOP of them useful; ");
	text_addf(text, "%.3g exponentials; %.1f%% of all cells visited\n", c->exps, 100 * c->visited);
	text_addf(text, "  shared       %d of %d bytes:", c->smem_bytes, plan->target->smem_block);
	for (int i = 0; i < c->smem_term_count; i++)
		text_addf(text, "%s %s %d", i ? " +" : "", c->smem_term[i].name, c->smem_term[i].bytes);
	text_addf(text, "\n  registers    about %d of %d in a thread, %d threads in a CTA\n", c->regs,
	          plan->target->regs_thread, 32 * c->warps);
	text_addf(text, "  occupancy    %" PRId64 " CTA%s, %d on each of %d SMs at once: %.2f waves\n", c->ctas,
	          plural(c->ctas), c->ctas_sm, plan->device->sms, c->waves);
}

static void recipe_table(struct text *text, const struct plan *plan)
{
	const struct recipe_shape shape = problem_shape(&plan->problem, plan->device->sms);
	for (int i = 0; i < plan->recipe.kernel_count; i++) {
		const struct recipe_kernel *k = &plan->recipe.kernel[i];
		const int64_t ctas = recipe_grid_size(k, &shape);
		text_addf(text, "  %-12s %s: ", i ? "" : "kernels", k->entry);
		if (ctas == 0)
			text_puts(text, "not launched\n");
		else
			text_addf(text, "%" PRId64 " CTAs of %d threads, %d bytes of shared memory\n", ctas, k->threads, k->smem_bytes);
	}
	int64_t total = 0;
	for (int i = 0; i < plan->recipe.piece_count; i++) {
		const struct recipe_piece *p = &plan->recipe.piece[i];
		const int64_t bytes = recipe_piece_bytes(p, &shape);
		text_addf(text, "  %-12s %s: %" PRId64 " bytes%s\n", i ? "" : "workspace", p->name, bytes,
		          recipe_piece_cleared(&plan->recipe, i, &shape) ? ", cleared first" : "");
		total += bytes;
	}
	if (plan->recipe.piece_count == 0)
		text_puts(text, "  workspace    none\n");
	else if (plan->recipe.piece_count > 1)
		text_addf(text, "  %-12s in all: %" PRId64 " bytes\n", "", total);
	for (int i = 0; i < plan->recipe.map_count; i++) {
		text_addf(text, "%s%s in boxes of %d rows", i ? ", " : "  tensor maps  ", plan->recipe.map[i].name,
		          plan->recipe.map[i].rows);
		if (plan->recipe.map[i].heads)
			text_addf(text, " of %d heads", plan->recipe.map[i].heads);
	}
	if (plan->recipe.map_count > 0)
		text_puts(text, "\n");
}

/* Templates that the chosen one was preferred to, or that cannot serve. */
static void others_table(struct text *text, const struct plan *plan)
{
	for (int i = 0; i < plan->other_count; i++) {
		const struct other_template *other = &plan->other[i];
		text_addf(text, "  %-12s %s: ", i ? "" : "other", other->templ);
		if (other->reason[0] != '\0') {
			text_addf(text, "%s\n", other->reason);
			continue;
		}
		time_print(text, other->time_us);
		text_puts(text, " predicted\n");
	}
}

static void candidates_table(struct text *text, const struct plan *plan)
{
	text_puts(text, "  candidates, times in us (* is chosen)\n"
	                "      m    n warps stages    shared regs CTAs/SM visited");
	for (int i = 0; i < COST_COUNT; i++)
		text_addf(text, " %8s", cost_names[i]);
	text_puts(text, "  predicted bound\n");
	for (int i = 0; i < plan->candidate_count; i++) {
		const struct candidate *c = &plan->candidate[i];
		if (c->reason[0] != '\0')
			continue;
		text_addf(text, "  %c %3d  %3d %5d %6d %9d %4d %7d %6.1f%%", i == plan->chosen ? '*' : ' ', c->tile_m,
		          c->tile_n, c->warps, c->stages, c->smem_bytes, c->regs, c->ctas_sm, 100 * c->visited);
		for (int k = 0; k < COST_COUNT; k++)
			text_addf(text, " %8.1f", c->cost_us[k]);
		text_addf(text, " %10.1f %s", c->time_us, cost_names[c->bound_by]);
		if (c->splits > 1)
			text_addf(text, ", %d splits", c->splits);
		if (c->heads > 1)
			text_addf(text, ", %d heads", c->heads);
		text_puts(text, "\n");
	}
	bool any = false;
	for (int i = 0; i < plan->candidate_count; i++) {
		const struct candidate *c = &plan->candidate[i];
		if (c->reason[0] == '\0')
			continue;
		if (!any)
			text_puts(text, "  rejected\n");
		any = true;
		text_addf(text, "    %3d  %3d %5d %6d  %s\n", c->tile_m, c->tile_n, c->warps, c->stages, c->reason);
	}
}

void plan_print(struct text *text, const struct plan *plan)
{
	text_addf(text, "%s: %s for %s on %s, ", pass_names[plan->pass], plan->templ, plan->target->name,
	          plan->device->name);
	problem_print(text, &plan->problem);
	text_puts(text, "\n");
	if (plan->chosen >= 0 && plan->chosen < plan->candidate_count)
		chosen_print(text, plan, &plan->candidate[plan->chosen]);
	recipe_table(text, plan);
	others_table(text, plan);
	candidates_table(text, plan);
}

static void number_json(struct text *text, double value)
{
	if (isfinite(value))
		text_addf(text, "%.10g", value);
	else
		text_puts(text, "null");
}

static void candidate_json(struct text *text, const struct plan *plan, const struct candidate *c)
{
	text_addf(text, "{\"tile_m\": %d, \"tile_n\": %d, \"warps\": %d, \"stages\": %d, \"splits\": %d, \"heads\": %d", c->tile_m,
	          c->tile_n, c->warps, c->stages, c->splits, c->heads);
	if (c->reason[0] != '\0') {
		text_puts(text, ", \"rejected\": ");
		text_json(text, c->reason);
		text_puts(text, "}");
		return;
	}
	text_addf(text, ", \"smem_bytes\": %d, \"smem\": {", c->smem_bytes);
	for (int i = 0; i < c->smem_term_count; i++) {
		text_puts(text, i ? ", " : "");
		text_json(text, c->smem_term[i].name);
		text_addf(text, ": %d", c->smem_term[i].bytes);
	}
	text_addf(text, "}, \"registers\": %d, \"ctas_sm\": %d, \"ctas\": %" PRId64, c->regs, c->ctas_sm, c->ctas);
	const struct {
		const char *name;
		double value;
	} numbers[] = {
		{"waves", c->waves},       {"visited", c->visited},     {"hbm_bytes", c->hbm_bytes},
		{"l2_bytes", c->l2_bytes}, {"mma_flop", c->mma_flop},   {"exps", c->exps},
		{"time_us", c->time_us},   {"tflops", tflops(plan, c)},
	};
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
		text_addf(text, ", \"%s\": ", numbers[i].name);
		number_json(text, numbers[i].value);
	}
	text_puts(text, ", \"cost_us\": {");
	for (int i = 0; i < COST_COUNT; i++) {
		text_addf(text, "%s\"%s\": ", i ? ", " : "", cost_names[i]);
		number_json(text, c->cost_us[i]);
	}
	text_addf(text, "}, \"bound_by\": \"%s\"}", cost_names[c->bound_by]);
}

static void recipe_json(struct text *text, const struct plan *plan)
{
	const struct recipe_shape shape = problem_shape(&plan->problem, plan->device->sms);
	text_puts(text, ", \"kernels\": [");
	for (int i = 0; i < plan->recipe.kernel_count; i++) {
		const struct recipe_kernel *k = &plan->recipe.kernel[i];
		text_addf(text, "%s{\"entry\": \"%s\", \"ctas\": %" PRId64 ", \"threads\": %d, \"smem_bytes\": %d}",
		          i ? ", " : "", k->entry, recipe_grid_size(k, &shape), k->threads, k->smem_bytes);
	}
	text_puts(text, "], \"workspace\": [");
	for (int i = 0; i < plan->recipe.piece_count; i++) {
		const struct recipe_piece *piece = &plan->recipe.piece[i];
		text_addf(text, "%s{\"name\": \"%s\", \"bytes\": %" PRId64 ", \"zeroed\": %s}", i ? ", " : "",
		          piece->name, recipe_piece_bytes(piece, &shape), recipe_piece_cleared(&plan->recipe, i, &shape) ? "true" : "false");
	}
	text_puts(text, "], \"maps\": [");
	for (int i = 0; i < plan->recipe.map_count; i++) {
		text_addf(text, "%s{\"name\": \"%s\", \"rows\": %d", i ? ", " : "", plan->recipe.map[i].name, plan->recipe.map[i].rows);
		if (plan->recipe.map[i].heads)
			text_addf(text, ", \"heads\": %d", plan->recipe.map[i].heads);
		text_puts(text, "}");
	}
	text_puts(text, "]");
}

static void others_json(struct text *text, const struct plan *plan)
{
	text_puts(text, ", \"others\": [");
	for (int i = 0; i < plan->other_count; i++) {
		const struct other_template *other = &plan->other[i];
		text_puts(text, i ? ", {\"template\": " : "{\"template\": ");
		text_json(text, other->templ);
		if (other->reason[0] != '\0') {
			text_puts(text, ", \"rejected\": ");
			text_json(text, other->reason);
		} else {
			text_puts(text, ", \"time_us\": ");
			number_json(text, other->time_us);
		}
		text_puts(text, "}");
	}
	text_puts(text, "]");
}

void plan_json(struct text *text, const struct plan *plan)
{
	const struct problem *p = &plan->problem;
	text_addf(text, "{\"pass\": \"%s\", \"template\": ", pass_names[plan->pass]);
	text_json(text, plan->templ);
	text_puts(text, ", \"target\": ");
	text_json(text, plan->target->name);
	text_puts(text, ", \"device\": ");
	text_json(text, plan->device->name);
	text_addf(text,
	          ", \"problem\": {\"batch\": %" PRId64 ", \"heads_q\": %" PRId64 ", \"heads_kv\": %" PRId64
	          ", \"seqlen_q\": %" PRId64 ", \"seqlen_k\": %" PRId64 ", \"align\": %d}",
	          p->batch, p->heads_q, p->heads_kv, p->seqlen_q, p->seqlen_k, p->align);
	text_puts(text, ", \"standard_bytes\": ");
	number_json(text, plan->standard_bytes);
	text_puts(text, ", \"useful_flop\": ");
	number_json(text, plan->useful_flop);
	tuning_json(text, plan);
	recipe_json(text, plan);
	others_json(text, plan);
	text_addf(text, ", \"chosen\": %d, \"candidates\": [", plan->chosen);
	for (int i = 0; i < plan->candidate_count; i++) {
		text_puts(text, i ? ",\n " : "\n ");
		candidate_json(text, plan, &plan->candidate[i]);
	}
	text_puts(text, "]}");
}
