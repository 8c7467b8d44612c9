/* What the planner must know of templates/sm90/fwd.cu. Names and formulas mirror the skeleton's constants. */
#include "gen/model_sm90.h"

#include <math.h>
#include <stdio.h>

#include "gen/access.h"

enum { GROUP_WARPS = 4, GROUP_ROWS = 64 }; /* of a warpgroup */
enum { MERGE_ROWS = 4 };                   /* of a CTA of fwd_merge.cu */

/* Fitted to 260 timings on an H200, d 64 to 256, causal and full, sequences of 512 to 8k, 6% root mean square of the good tiles, the chosen
 * one at most 2.5% slower than the best, 0.2% in the mean: clocks of ex2 and of other float operations beside wgmma over those alone, the norm
 * that joins the terms for two and three warpgroups that take turns, and what a visit and an item cost beside: the first softmax and the
 * epilogue of an item hide behind little. A third stage loads more of the next item meanwhile, and slows long items; O that does not pass
 * through shared memory takes longer to store. Of 46 timings from cold L2, 512 to 4k, and sweeps of 1k to 16k, 7.2% root mean square. What
 * visits and items cost two and three warpgroups, since the next item is placed ahead: by 44 single launches from cold L2, 512 to 16k, 8%, the chosen
 * tile at most 1.6% slower than the best of those. */
static const double exp_beside = 1.05, alu_beside = 0.385;
/* SHARED: two warpgroups of each of two CTAs that share an SM, fitted to 26 timings of d 64, 512 to 16k. A third stage is 1.01 to 1.02 at 512, 0.98 at causal
 * 4k. */
enum { SHARED = 1 };
static const double overlap[] = {[SHARED] = 2.6, [2] = 2.5, [3] = 4.82};
static const double visit_clocks[] = {[SHARED] = 150, [2] = 345, [3] = 430}, item_clocks[] = {[SHARED] = 2900, [2] = 3300, [3] = 5500};
/* And a visit whose class data decide, or whose inputs of keys are staged, these for each column of K and V: the loading warpgroup's latency shows.
 * 128x128 tiles of a layout that keeps a quarter, and of documents, d 128, 8k; specs/key_drop, d 64, whose 128x192 tiles take 208 us with two stages
 * and 196 with three. */
static const double scan_visit = 370, staged_visit_column = 7.8, third_stage_staged = 0.85;
static const double third_stage_visit[] = {[SHARED] = 35, [2] = 100, [3] = 100}, third_stage_item[] = {[SHARED] = -450, [2] = -450, [3] = -850};
/* Three warpgroups, head dims to 64: the sooner the next item is loaded the better, where its head's keys are those of this one above all. 192x128, clocks of
 * an item less with a third stage: full 512 2,280, 1k 1,380, 2k -510, 4k -4,160; causal 512 1,100, 1k 960, 2k 390, 4k -1,970. */
static const double narrow_third_visit = 150, narrow_third_item = -1900, narrow_third_item_alike = -3300;
static const double out_direct_item = 900;
/* What an item costs less for each column of O when other warps store it: 300 clocks at d 64, 430 to 600 at d 128, 700 to 1,000 at d 256. A third
 * stage then hides less of the end. */
static const double out_whole_column = 4, out_whole_third_stage = 400;
/* For each key of a tile above 128, a visit: registers are full. And for each key below 64, an item, where no turns are taken: little of the
 * next item is loaded meanwhile. */
static const double wide_visit_key = 2, narrow_item_key = 30;

/* Multiply-adds of a short score beside the one that scales without it, and the clocks that 128 cells of each take where a warp's scheduler
 * has tensor products, exponentials and sums to issue too: softcap beside none, d 128, on an H200. */
static const double short_operations = 5, short_clocks = 0.85;

/* Dropout, clocks of an SM a cell: its part of a word, 43 instructions for 32 cells, and the selection. Causal 4k on an H200, d 64 and 128: 0.022 to
 * 0.026 over the same tiles without. */
static const double dropout_clocks = 0.028;

static int groups(const struct tile_request *t) { return t->m / GROUP_ROWS; }

/* Accumulators of S and O, and P in a thread; and how many ptxas 13.0 compiles without spills or serialised products: scores keep values
 * of rows, whoever classifies tiles or stages inputs takes registers from those who compute, and words of dropout take some. */
static bool long_load(const struct spec *spec, const struct program *program)
{
	return program->scan || program->run_count > 1 || program->access_count > 0;
}
static int accumulators(int tile_n, const struct spec *spec) { return tile_n / 2 + tile_n / 4 + spec->head_dim_v / 2; }
static int accumulators_most(int warpgroups, const struct spec *spec, const struct program *program)
{
	const int score = program->score_identity ? 0 : warpgroups == 2 && program->access_count > 0 ? 24 : 8;
	const bool fewer = long_load(spec, program) || spec->keep_256 < DROPOUT_LEVELS;
	return (warpgroups == 3 ? 128 : 196) - score - (fewer ? warpgroups == 3 ? 8 : 16 : 0);
}

/* Do two CTAs share an SM? Each has half of its registers: room for S and O of a warpgroup, of which P takes the place of S, and little else.
 * Padded, d 64 by 80 keys spills, and ptxas 13.0 takes no product of S that is wider than 96 keys: it wants n / 2 + 26 of the 80 registers
 * that a thread has at launch. What one CTA waits for, at the ends of items above all, hides behind the other. */
static bool sm_shared(const struct candidate *c, const struct spec *spec, const struct program *program)
{
	return c->tile_m == 2 * GROUP_ROWS && c->splits == 1 && c->heads == 1 && c->tile_n <= 96 && c->tile_n / 2 + spec->head_dim_v / 2 <= 72 &&
	       spec->head_dim_qk <= 64 && spec->layout != LAYOUT_PADDED && program->score_identity && !long_load(spec, program);
}

/* Heads of a group share a tile where nothing but the rows of Q, O and LSE asks which head a row is of. A warp's 16 rows are whole
 * positions. */
static int fwd_heads_most(char reason[REASON_MAX], const struct spec *spec, const struct program *program)
{
	bool used[NAME_COUNT], score_used[NAME_COUNT];
	int heads = spec->kv_group < RECIPE_HEADS_MAX ? spec->kv_group : RECIPE_HEADS_MAX;
	node_names(used, &program->pool, program->mask);
	node_names(score_used, &program->pool, program->score);
	while (heads > 1 && spec->kv_group % heads != 0)
		heads--;
	const char *why = NULL;
	if (spec->kv_group == 0)
		why = "kv_group is known at launch only";
	else if (heads == 1)
		why = "kv_group has no divisor from 2 to 16";
	else if (used[NAME_H])
		why = "the mask reads h";
	else if (score_used[NAME_H])
		why = "the score reads h";
	else if (program->scan)
		why = "tiles are classified for each head";
	else if (spec->keep_256 < DROPOUT_LEVELS)
		why = "dropout is drawn for each head";
	if (why)
		snprintf(reason, REASON_MAX, "%s", why);
	return why ? 1 : heads;
}

static bool fwd_legal(char reason[REASON_MAX], const struct tile_request *t, const struct spec *spec,
                      const struct program *program)
{
	if (t->m != 2 * GROUP_ROWS && t->m != 3 * GROUP_ROWS) {
		snprintf(reason, REASON_MAX, "m %d; want 128 or 192", t->m);
		return false;
	}
	if (t->warps != GROUP_WARPS * (groups(t) + 1)) {
		snprintf(reason, REASON_MAX, "%d warps; m %d wants %d", t->warps, t->m, GROUP_WARPS * (groups(t) + 1));
		return false;
	}
	if (groups(t) == 3 && spec->keep_256 < DROPOUT_LEVELS) { /* slower: causal 4k on an H200, d 64 192x128 0.98, d 128 192x64 0.96 of 128 rows */
		snprintf(reason, REASON_MAX, "m %d; with dropout want 128, which is faster", t->m);
		return false;
	}
	if (!forward_keys_fit(reason, t, spec))
		return false;
	if (t->stages < 2 || t->stages > 4) {
		snprintf(reason, REASON_MAX, "%d stages; want 2 to 4", t->stages);
		return false;
	}
	if (accumulators(t->n, spec) > accumulators_most(groups(t), spec, program)) {
		snprintf(reason, REASON_MAX, "%d accumulators in a thread; %d warpgroups leave room for %d",
		         accumulators(t->n, spec), groups(t), accumulators_most(groups(t), spec, program));
		return false;
	}
	return blocks_fit(reason, t, program);
}

static int fwd_tiles(struct tile_request *tile, int max, const struct spec *spec, const struct program *program,
                     const struct target *target)
{
	static const int keys[] = {192, 176, 160, 128, 112, 96, 80, 64, 48, 32};
	int count = 0;
	(void)target;
	for (int m = 128; m <= 192; m += 64)
		for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
			for (int stages = 2; stages <= 3; stages++) {
				const struct tile_request t = {
					.m = m, .n = keys[k], .warps = GROUP_WARPS * (m / GROUP_ROWS + 1), .stages = stages};
				char reason[REASON_MAX];
				if (count < max && fwd_legal(reason, &t, spec, program))
					tile[count++] = t;
			}
	return count;
}

static void fwd_shape(struct candidate *c, const struct spec *spec, const struct program *program,
                      const struct target *target, const struct device *device)
{
	const int row_qk = row_bytes(spec->head_dim_qk), row_v = row_bytes(spec->head_dim_v);
	const int warpgroups = c->tile_m / GROUP_ROWS;

	c->walk_warps = 1;
	c->ctas_wanted = sm_shared(c, spec, program) ? 2 : 1;
	c->cut = c->may_cut && c->alike && c->splits == 1 && c->heads == 1 && c->ctas_wanted == 1 && !spec->deterministic;
	const int kind = c->ctas_wanted == 2 ? SHARED : warpgroups;
	c->overlap = overlap[kind];
	c->speculate = one_reference_does(spec, program);
	c->queue = !c->alike;
	c->order = native_order_wanted(c, spec, program);
	c->smem_term_count = c->smem_bytes = 0;
	smem_term_add(c, "Q", c->tile_m * row_qk);
	smem_term_add(c, "K", c->stages * c->tile_n * row_qk);
	smem_term_add(c, "V", c->stages * c->tile_n * row_v);
	const int notes = 2 * c->stages;
	const int barriers = 8 * (4 * c->stages + 2 * notes + 2 * warpgroups + 3 * 2), items = 3 * ((c->splits > 1 || c->cut ? 28 : 16) + head_key_bytes(spec)) + 3 * 4 + SECTIONS_BYTES;
	const int walk = barriers + notes * note_bytes(program, c, 1) + items + walk_bytes(spec, program, c->walk_warps);
	smem_term_add(c, "barriers, walk", (walk + 15) / 16 * 16);
	smem_inputs_add(c, program, spec, 2, 2, notes, c->stages);
	/* For each warpgroup rows of O and their padding, two barriers and an item, where warps are free to store them; or for each warp 16 rows of a
	 * panel. */
	const bool warps_free = c->heads == 1 && program->access_count == 0;
	const int whole = warpgroups * (GROUP_ROWS * ((spec->head_dim_v / 8 + 1) | 1) * 16 + 2 * 8 + 16), out = c->tile_m * 2 * PANEL;
	c->out_whole = warps_free && c->splits == 1 && c->ctas_wanted == 1 && c->smem_bytes + whole <= target->smem_block;
	c->out_staged = !c->out_whole && c->splits == 1 && c->smem_bytes + out <= target->smem_block;
	if (c->out_whole || c->out_staged)
		smem_term_add(c, "O", c->out_whole ? whole : out);
	const bool narrow = warpgroups == 3 && spec->head_dim_qk <= PANEL && spec->head_dim_v <= PANEL;
	const double third_visit = narrow ? narrow_third_visit : third_stage_visit[kind];
	const double third_item = !narrow ? third_stage_item[kind] : c->queue ? narrow_third_item : narrow_third_item_alike;
	c->visit_clocks = visit_clocks[kind] + (c->stages > 2 ? third_visit : 0) + fmax(c->tile_n - 128, 0) * wide_visit_key;
	if (program->scan)
		c->visit_clocks += program_staging(program, spec, c->tile_m, c->tile_n).col > 0
		                           ? staged_visit_column * (spec->head_dim_qk + spec->head_dim_v) * (c->stages > 2 ? third_stage_staged : 1)
		                           : scan_visit;
	c->item_clocks = item_clocks[kind] + (c->stages > 2 ? third_item : 0);
	if (c->out_whole)
		c->item_clocks -= out_whole_column * spec->head_dim_v - (c->stages > 2 ? out_whole_third_stage : 0);
	else if (!c->out_staged)
		c->item_clocks += out_direct_item;
	if (spec->head_dim_v > 128)
		c->item_clocks += fmax(64 - c->tile_n, 0) * narrow_item_key;

	c->wait_clocks = staging_clocks(c, spec, program, LOADERS);

	/* What a thread has at launch, before the warpgroups share registers out. */
	c->regs = target->regs_sm / c->ctas_wanted / (32 * c->warps) / 8 * 8;

	/* One visited tile, in clocks of one SM. */
	const double cells = (double)c->tile_m * c->tile_n;
	const double dim = (spec->head_dim_qk + 15) / 16 * 16 + spec->head_dim_v;
	const double softmax_ops = c->speculate ? 2.5 : 4; /* scale, sum, half a conversion; and a maximum, now and then a product */
	const double smem_bytes =
		2.0 * (c->tile_m * (double)row_qk / 2 + warpgroups * (double)c->tile_n * dim); /* operands; arriving K and V */
	c->cost_us[COST_MMA] = 2 * cells * dim / wgmma_flop_clk;
	c->cost_us[COST_EXP] = cells * exp_beside / device->exp_clk;
	c->cost_us[COST_ALU] = cells * softmax_ops * alu_beside / device->alu_clk;
	c->cost_us[COST_SMEM] = smem_bytes / 128;
	if (spec->keep_256 < DROPOUT_LEVELS)
		c->visit_clocks += dropout_clocks * cells;
	if (c->speculate && program_short_logit(spec, program) > 0)
		c->visit_clocks += short_operations * short_clocks * cells / 128;
	else
		score_cost_add(c, program, device, PASS_FORWARD);
}

/* A part's O is float32 and not staged. By nine timings of d 64 to 256, full, 4k to 16k, on an H200. */
static struct recipe_tail fwd_tail(int tile_n, int head_dim_v)
{
	return (struct recipe_tail){.visit = tile_n, .resident = 1, .alike = 1, .ends = 5 + head_dim_v / 64, .join = 12};
}

static void fwd_recipe(struct recipe *recipe, const struct spec *spec, const struct program *program,
                       const struct candidate *c, const struct target *target)
{
	const bool shared = c->heads > 1;
	const int slots = heads_slots(c->heads);
	(void)target;
	recipe_blocks_add(recipe, program);
	recipe_bounds_add(recipe, program, c);
	recipe_order_add(recipe, c, PASS_FORWARD);
	const enum recipe_grid grid = c->ctas_wanted == 2 ? GRID_PERSISTENT_2 : c->cut ? GRID_PERSISTENT_TAILS : GRID_PERSISTENT;
	recipe_kernel_add(recipe, "fagen_forward", grid, c->positions, 32 * c->warps, c->smem_bytes);
	recipe->kernel[recipe->kernel_count - 1].heads = shared ? c->heads : 0;
	if (c->splits > 1) {
		recipe->kernel[recipe->kernel_count - 1].parts = c->splits;
		recipe_kernel_add(recipe, "fagen_forward_merge", GRID_QUERY_TILES, MERGE_ROWS, 32 * MERGE_ROWS, 0);
		const int row = c->splits * (spec->head_dim_v + 1); /* O and LSE; of a head, with its share of rows to spare */
		recipe_piece_add(recipe, "parts", SIZE_ROWS_QK, c->positions, (row * slots + c->heads - 1) / c->heads);
	}
	if (c->cut) {
		const struct recipe_tail tail = fwd_tail(c->tile_n, spec->head_dim_v);
		recipe_tail_add(recipe, "fagen_forward", &tail, "fagen_forward_merge", c->tile_m / MERGE_ROWS, 32 * MERGE_ROWS, c->tile_m * (spec->head_dim_v + 1));
	}
	recipe_queue_add(recipe, c);
	recipe_order_piece_add(recipe, c, PASS_FORWARD);
	recipe_map_add(recipe, "query", GROUP_ROWS / slots);
	recipe->map[recipe->map_count - 1].heads = shared ? slots : 0;
	recipe_map_add(recipe, "key", c->tile_n);
	recipe_map_add(recipe, "value", c->tile_n);
}

const struct template_model model_sm90_fwd = {
	.templ = "sm90/fwd",
	.pass = PASS_FORWARD,
	.main = "fagen_forward",
	.cc_min = 90,
	.cc_max = 90,
	.align_min = 16,
	.splits_most = RECIPE_PARTS_MAX,
	.heads_most = fwd_heads_most,
	.tiles = fwd_tiles,
	.legal = fwd_legal,
	.shape = fwd_shape,
	.recipe = fwd_recipe,
};
