/* What the planner must know of templates/sm80/fwd.cu. Names and formulas mirror the skeleton's constants. */
#include "gen/model.h"

#include <stdio.h>

/* ACROSS of the skeleton. */
static int warps_across(const struct spec *spec, int n, int warps)
{
	return spec->head_dim_v > 128 && warps % 2 == 0 && n % 32 == 0 ? 2 : 1;
}

static int chunks(int head_dim) { return (head_dim + 15) / 16 * 2; }

static bool fwd_legal(char reason[REASON_MAX], const struct tile_request *t, const struct spec *spec,
                      const struct program *program)
{
	if (t->warps < 2 || t->warps > 16) {
		snprintf(reason, REASON_MAX, "%d warps; want 2 to 16", t->warps);
		return false;
	}
	if (t->m % (16 * t->warps) != 0 || t->m / (16 * t->warps) > 2) {
		snprintf(reason, REASON_MAX, "m %d with %d warps; a warp owns 16 or 32 rows: want m %d or %d", t->m,
		         t->warps, 16 * t->warps, 32 * t->warps);
		return false;
	}
	if (!forward_keys_fit(reason, t, spec))
		return false;
	if (t->stages < 1 || t->stages > 4) {
		snprintf(reason, REASON_MAX, "%d stages; want 1 to 4", t->stages);
		return false;
	}
	return blocks_fit(reason, t, program);
}

static int fwd_tiles(struct tile_request *tile, int max, const struct spec *spec, const struct program *program,
                     const struct target *target)
{
	static const struct {
		int m, warps;
	} rows[] = {{128, 4}, {128, 8}, {64, 4}};
	static const int keys[] = {128, 96, 64, 32};
	int count = 0;
	(void)target;
	for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
		for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
			for (int stages = 1; stages <= 2; stages++) {
				const struct tile_request t = {
					.m = rows[r].m, .n = keys[k], .warps = rows[r].warps, .stages = stages};
				char reason[REASON_MAX];
				if (count < max && fwd_legal(reason, &t, spec, program))
					tile[count++] = t;
			}
	return count;
}

static void fwd_shape(struct candidate *c, const struct spec *spec, const struct program *program,
                      const struct target *target, const struct device *device)
{
	const int row_qk = chunks(spec->head_dim_qk) * 16,
		  row_v = chunks(spec->head_dim_v) * 16; /* bytes of a shared row */
	const int across = warps_across(spec, c->tile_n, c->warps), blocks_m = c->tile_m / (16 * c->warps) * across;

	c->order = order_wanted(c, spec, program);
	c->ctas_wanted = target->cc < 120 ? 0 : 1; /* what ptxas 13.0 saves for sm_120 it spills */
	/* For sm_100 and later ptxas 13.0 spills some shapes, and nobody has timed it. */
	c->speculate = target->cc < 100 && one_reference_does(spec, program);
	c->smem_term_count = c->smem_bytes = 0;
	smem_term_add(c, "Q", c->tile_m * row_qk);
	smem_term_add(c, "K", c->stages * c->tile_n * row_qk);
	smem_term_add(c, "V", c->stages * c->tile_n * row_v);
	const int shown = c->tile_n / across >= 64 ? c->tile_n / 2 : c->tile_n; /* keys of P that warps show each other at a time */
	if (across > 1)
		smem_term_add(c, "P, maxima", 2 * c->tile_m * shown + 2 * blocks_m * 32 * c->warps * 4);
	smem_term_add(c, "row statistics", (2 * 2 * blocks_m * 4 + 1) * 32 * c->warps);
	const int head = 2 * 8 + 16 + 4 * 4; /* addresses, dropout key, indices, how the softmax goes */
	const int walk = visit_bytes(program, c, c->stages + 1) + walk_bytes(spec, program, c->warps);
	smem_term_add(c, "head", head);
	smem_term_add(c, "walk", (head + walk + 15) / 16 * 16 - head);
	smem_inputs_add(c, program, spec, 1, 1, c->stages, c->stages);

	/* Accumulators of S and O, and about 60 more: row statistics, operands in flight, addresses; or 40, where ptxas has no room to fill: it
	 * decides whether a third CTA fits. ptxas 13.0 compiles every shape with at most 192 accumulators without spills, but for sm_100 when 128 of
	 * them are of S. */
	const int keys = c->tile_n / across, steps_v = ((spec->head_dim_v + 15) / 16 + across - 1) / across;
	const int scores = blocks_m * keys / 2, outs = across == 1 ? blocks_m * ((spec->head_dim_v + 7) / 8 * 4) : blocks_m * steps_v * 8;
	const bool sparing = target->cc < 100 && across == 1 && scores + outs <= (c->stages == 1 ? 128 : 96);
	c->regs = scores + outs + (target->cc == 100 && scores >= 128 ? 64 : sparing ? 40 : 60);
	if (across > 1 && scores + outs >= 192 && blocks_split(program, c))
		c->regs += 8; /* bits of blocks */

	/* One visited tile, in clocks of one SM. */
	const double cells = (double)c->tile_m * c->tile_n;
	const double dim = (row_qk + row_v) / 2.0; /* columns of both products */
	const double dropout_ops = 5; /* 43 for a word of 32 cells, select; beside which, on an H200, nothing runs */
	const double smem_bytes =
		c->warps * ((double)blocks_m * 16 * row_qk + (double)keys * row_qk + (double)c->tile_n * row_v / across) /* ldmatrix */
		+ (double)c->tile_n * (row_qk + row_v) /* arriving K and V */
		+ (across > 1 ? 4 * cells : 0); /* P to the other warp and back */
	c->cost_us[COST_MMA] = 2 * cells * dim / device->mma_flop_clk;
	c->cost_us[COST_EXP] = cells / device->exp_clk;
	const double softmax_ops = c->speculate ? 3.3 : 4.5; /* scale, sum, half a conversion; and a maximum */
	c->cost_us[COST_ALU] = cells * softmax_ops / device->alu_clk;
	if (spec->keep_256 < DROPOUT_LEVELS)
		c->visit_clocks += cells * dropout_ops / device->alu_clk;
	c->cost_us[COST_SMEM] = smem_bytes / 128;
	const double short_ops = 8; /* the short score and the search for the largest s of a tile, which is taken to allow it */
	if (program_short_logit(spec, program) > 0)
		c->cost_us[COST_ALU] += cells * short_ops / device->alu_clk;
	else
		score_cost_add(c, program, device, PASS_FORWARD);
	c->wait_clocks = staging_clocks(c, spec, program, c->warps);
}

static void fwd_recipe(struct recipe *recipe, const struct spec *spec, const struct program *program,
                       const struct candidate *c, const struct target *target)
{
	(void)spec, (void)target;
	recipe_blocks_add(recipe, program);
	recipe_bounds_add(recipe, program, c);
	recipe_order_add(recipe, c, PASS_FORWARD);
	recipe_kernel_add(recipe, "fagen_forward", GRID_QUERY_TILES, c->tile_m, 32 * c->warps, c->smem_bytes);
	recipe_order_piece_add(recipe, c, PASS_FORWARD);
}

const struct template_model model_sm80_fwd = {
	.templ = "sm80/fwd",
	.pass = PASS_FORWARD,
	.main = "fagen_forward",
	.cc_min = 80,
	.tiles = fwd_tiles,
	.legal = fwd_legal,
	.shape = fwd_shape,
	.recipe = fwd_recipe,
};
