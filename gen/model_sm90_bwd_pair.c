/* What the planner must know of templates/sm90/bwd_pair.cu. Names and formulas mirror the skeleton's constants. A visited tile is that of
 * both CTAs of a pair, and so is what it costs. */
#include "gen/grad.h"
#include "gen/model.h"

#include <stdio.h>

enum { WARPS = 12, TILE_ROWS = 64, TILE_KEYS = 128, KEYS = TILE_KEYS / 2, HEAD_DIM_SMALL = 128, PANEL = 64, STAGES_MOST = 3 };

/* wgmma with operands in shared memory, dense 16-bit: FLOP per clock of an SM. */
static const double wgmma_flop_clk = 4096;
/* Beside a running wgmma other instructions take longer: clocks of ex2 and of other float operations over those alone. */
static const double exp_beside = 1.35, alu_beside = 1.9;
/* The norm that joins the terms, and what a CTA costs beside its visits, clocks of an SM. Ten timings on an H200, d 256, causal and full,
 * sequences of 512 to 8k: predicted over measured 0.97 to 1.14. */
static const double overlap = 2.1, item_clocks = 5500;

static int panels(int head_dim) { return (head_dim + PANEL - 1) / PANEL; }
static int steps(int columns) { return (columns + 15) / 16; }

static bool pass_legal(char reason[REASON_MAX], const struct spec *spec, const struct program *program)
{
	if (spec->head_dim_qk <= HEAD_DIM_SMALL && spec->head_dim_v <= HEAD_DIM_SMALL) {
		snprintf(reason, REASON_MAX, "head_dim {qk: %d, v: %d}; to %d both have the kernels of sm90/bwd", spec->head_dim_qk,
		         spec->head_dim_v, HEAD_DIM_SMALL);
		return false;
	}
	if (spec->head_dim_qk <= PANEL) {
		snprintf(reason, REASON_MAX, "head_dim {qk: %d, v: %d}; want qk above %d", spec->head_dim_qk, spec->head_dim_v, PANEL);
		return false;
	}
	if (spec->deterministic) {
		snprintf(reason, REASON_MAX, "deterministic: true has the kernels of sm80/bwd");
		return false;
	}
	if (program->grads) {
		struct grad_plan grad;
		grad_plan_make(&grad, program, spec);
		if (grad.accesses > 0) {
			snprintf(reason, REASON_MAX, "gradients of inputs but the sink have the kernels of sm80/bwd");
			return false;
		}
	}
	return true;
}

static bool pair_legal(char reason[REASON_MAX], const struct tile_request *t, const struct spec *spec,
                       const struct program *program)
{
	if (!pass_legal(reason, spec, program))
		return false;
	if (t->m != TILE_ROWS || t->n != TILE_KEYS) {
		snprintf(reason, REASON_MAX, "m %d, n %d; want %d, %d", t->m, t->n, TILE_ROWS, TILE_KEYS);
		return false;
	}
	if (t->warps != WARPS) {
		snprintf(reason, REASON_MAX, "%d warps; want %d", t->warps, WARPS);
		return false;
	}
	if (t->stages < 2 || t->stages > STAGES_MOST) {
		snprintf(reason, REASON_MAX, "%d stages; want 2 to %d", t->stages, STAGES_MOST);
		return false;
	}
	if (t->stages > 2 && spec->keep_256 < DROPOUT_LEVELS && spec->layout != LAYOUT_DENSE) {
		snprintf(reason, REASON_MAX, "%d stages; want 2: with dropout and lengths of entries there are no registers for more", t->stages);
		return false;
	}
	return blocks_fit(reason, t, program);
}

static int pair_tiles(struct tile_request *tile, int max, const struct spec *spec, const struct program *program,
                      const struct target *target)
{
	int count = 0;
	(void)spec, (void)program, (void)target;
	for (int stages = STAGES_MOST; stages >= 2 && count < max; stages--)
		tile[count++] = (struct tile_request){.m = TILE_ROWS, .n = TILE_KEYS, .warps = WARPS, .stages = stages};
	return count;
}

static void pair_shape(struct candidate *c, const struct spec *spec, const struct program *program, const struct target *target,
                       const struct device *device)
{
	const bool dropout = spec->keep_256 < DROPOUT_LEVELS;
	const int m = c->tile_m, n = c->tile_n;
	const int panels_qk = panels(spec->head_dim_qk), panels_v = panels(spec->head_dim_v);
	const int row_qk = panels_qk * 2 * PANEL, row_v = panels_v * 2 * PANEL; /* bytes of a shared row */
	const int columns_qk = 16 * steps(spec->head_dim_qk), columns_v = 16 * steps(spec->head_dim_v);

	c->walk_warps = 1;
	c->overlap = overlap;
	c->item_clocks = item_clocks;
	c->smem_term_count = c->smem_bytes = 0;
	smem_term_add(c, "K", KEYS * row_qk);
	smem_term_add(c, "V", KEYS * row_v);
	smem_term_add(c, "K of the pair", KEYS * 2 * PANEL * ((panels_qk + 1) / 2));
	smem_term_add(c, "Q", c->stages * m * row_qk);
	smem_term_add(c, "dO", c->stages * m * row_v);
	smem_term_add(c, "dS", 2 * m * n);
	smem_term_add(c, "LSE and delta", c->stages * m * 8);
	if (dropout)
		smem_term_add(c, "dropout", 2 * m * 4);
	const int notes = 2 * c->stages, note = visit_bytes(program, c, 1) == 16 ? 32 : 20;
	const int barriers = 8 * (6 + 5 * c->stages + notes);
	smem_term_add(c, "barriers, walk",
	              (barriers + notes * note + 12 + walk_bytes(spec, program, c->walk_warps) + 15) / 16 * 16);
	smem_inputs_add(c, program, spec, c->stages, c->stages, c->stages, c->stages);

	/* What a thread has at launch, before the warpgroups share registers out. */
	c->regs = target->regs_sm / (32 * c->warps) / 8 * 8;

	/* One visited tile, in clocks of one SM. Of dQ whole panels are computed. */
	const double cells = (double)m * n, dquery = PANEL * panels_qk;
	const double flop = 2 * cells * (columns_qk + columns_v + spec->head_dim_v + spec->head_dim_qk + dquery);
	/* Operands: K and V once, Q and dO in each CTA as rows and as columns, half of K's columns in each CTA; dS written, sent, and read by dK
	 * and in both CTAs by dQ; what arrives in both. */
	const double operands = 2.0 * (n * (columns_qk + columns_v) + 2 * m * (columns_qk + columns_v) +
	                               2 * m * (spec->head_dim_qk + spec->head_dim_v) + n * dquery);
	const double dscore = 2.0 * cells * (1 + 2 + 1 + 2);
	const double arriving = 2.0 * m * (row_qk + row_v);
	const double statistics = 8.0 * m * 4 * 2; /* a quad's lanes read them, 8 quads the same words */
	const double dropout_ops = dropout ? 9 : 0; /* two Philox calls and eight LOP3 for 32 cells, two masks, one product */
	const double softmax_ops = 6.5, reduction_bytes_clk = 19; /* as the SM lets float32 sums go */
	c->cost_us[COST_MMA] = flop / wgmma_flop_clk;
	c->cost_us[COST_EXP] = cells * exp_beside / device->exp_clk;
	c->cost_us[COST_ALU] = cells * (softmax_ops + dropout_ops) * alu_beside / device->alu_clk;
	c->cost_us[COST_SMEM] = (operands + dscore + arriving + statistics) / 128 + 4.0 * m * columns_qk / reduction_bytes_clk * 0.25;
	score_cost_add(c, program, device, PASS_BACKWARD);
}

static void pair_recipe(struct recipe *recipe, const struct spec *spec, const struct program *program, const struct candidate *c,
                        const struct target *target)
{
	const int threads = 32 * c->warps, columns = 16 * steps(spec->head_dim_qk);
	(void)target;
	recipe_blocks_add(recipe, program);
	recipe_bounds_add(recipe, program, c);
	recipe_kernel_add(recipe, "fagen_delta", GRID_QUERY_TILES, c->tile_m, threads, 0);
	recipe_kernel_add(recipe, "fagen_backward", GRID_KEY_TILES_2, c->tile_n, threads, c->smem_bytes);
	recipe_kernel_add(recipe, "fagen_dquery", GRID_QUERY_TILES, c->tile_m, threads, 2 * c->tile_m * columns);
	if (program->grads) { /* the sink's */
		struct grad_plan grad;
		grad_plan_make(&grad, program, spec);
		recipe_kernel_add(recipe, "fagen_input_grad_clear", GRID_QUERY_TILES_1, c->tile_m, threads, 0);
		recipe_kernel_add(recipe, "fagen_sink_grad", GRID_QUERY_TILES, c->tile_m, 32, 0);
		recipe_kernel_add(recipe, "fagen_input_grad_sum", GRID_QUERY_TILES, c->tile_m, threads, 0);
		recipe_piece_add(recipe, "grad_partial", SIZE_TILES_Q, c->tile_m, grad.table_floats);
	}
	recipe_piece_add(recipe, "delta", SIZE_ROWS_QK, c->tile_m, 2);
	recipe_piece_add(recipe, "dquery_accum", SIZE_ROWS_QK, c->tile_m, columns);
	recipe_map_add(recipe, "query", c->tile_m);
	recipe_map_add(recipe, "key", KEYS);
	recipe_map_add(recipe, "value", KEYS);
	recipe_map_add(recipe, "dout", c->tile_m);
}

const struct template_model model_sm90_bwd_pair = {
	.templ = "sm90/bwd_pair",
	.pass = PASS_BACKWARD,
	.main = "fagen_backward",
	.cc_min = 90,
	.cc_max = 90,
	.align_min = 16,
	.tiles = pair_tiles,
	.legal = pair_legal,
	.shape = pair_shape,
	.recipe = pair_recipe,
};
