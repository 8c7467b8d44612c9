/* What the planner must know of templates/sm90/bwd.cu. Names and formulas mirror the skeleton's constants. */
#include "gen/grad.h"
#include "gen/model.h"

#include <stdio.h>

enum { WARPS = 12, TILE_KEYS = 128, BUFFERS = 2, WARPGROUPS = 2, HEAD_DIM_MOST = 128, PANEL = 64 };

/* wgmma with operands in shared memory, dense 16-bit: FLOP per clock of an SM. */
static const double wgmma_flop_clk = 4096;
/* Beside a running wgmma other instructions take longer: clocks of ex2 and of other float operations over those alone. */
static const double exp_beside = 1.35, alu_beside = 1.9;
/* The norm that joins the terms, and what a CTA costs beside its visits, clocks of an SM. Thirty timings on an H200, d 64 to 128, causal and
 * full, sequences of 512 to 8k: predicted over measured 0.98 to 1.17, mean 1.04; the tile chosen at most 1.4% slower than the best one. */
static const double overlap = 2.1, item_clocks = 6000;

static int panels(int head_dim) { return (head_dim + PANEL - 1) / PANEL; }
static int steps(int columns) { return (columns + 15) / 16; }

/* Accumulators of S, dP, dK and dV in a thread; with them P packed and values of its m / 4 rows. And how many of these ptxas 13.0 compiles
 * without spills, of 190 kernels tried: scores, entries with lengths of their own, dropout and long masks have more values beside. */
static int accumulators(int m, const struct spec *spec) { return m + (spec->head_dim_qk + spec->head_dim_v) / 2; }
static int values(int m, const struct spec *spec) { return accumulators(m, spec) + m / 2; }
struct room {
	int accumulators, values;
};
static struct room room_of(const struct spec *spec, const struct program *program)
{
	const bool more = program->scan || program->run_count > 1 || spec->keep_256 < DROPOUT_LEVELS || residual_cost(program).alu > 4;
	if (spec->layout != LAYOUT_DENSE || !program->score_identity)
		return (struct room){192, 224};
	return more ? (struct room){192, 240} : (struct room){208, 256};
}

static bool bwd_legal(char reason[REASON_MAX], const struct tile_request *t, const struct spec *spec,
                      const struct program *program)
{
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
	if (spec->head_dim_qk > HEAD_DIM_MOST || spec->head_dim_v > HEAD_DIM_MOST) {
		snprintf(reason, REASON_MAX, "head_dim {qk: %d, v: %d}; want at most %d", spec->head_dim_qk, spec->head_dim_v,
		         HEAD_DIM_MOST);
		return false;
	}
	if (t->n != TILE_KEYS) {
		snprintf(reason, REASON_MAX, "n %d; want %d", t->n, TILE_KEYS);
		return false;
	}
	if (t->warps != WARPS) {
		snprintf(reason, REASON_MAX, "%d warps; want %d", t->warps, WARPS);
		return false;
	}
	if (t->stages != BUFFERS) {
		snprintf(reason, REASON_MAX, "%d stages; want %d", t->stages, BUFFERS);
		return false;
	}
	if (t->m % 16 != 0 || t->m < 16 || t->m > 128) {
		snprintf(reason, REASON_MAX, "m %d; want a multiple of 16 from 16 to 128", t->m);
		return false;
	}
	const struct room room = room_of(spec, program);
	if (accumulators(t->m, spec) > room.accumulators) {
		snprintf(reason, REASON_MAX, "m %d: %d accumulators in a thread; there is room for %d", t->m,
		         accumulators(t->m, spec), room.accumulators);
		return false;
	}
	if (values(t->m, spec) > room.values) {
		snprintf(reason, REASON_MAX, "m %d: %d accumulators, operands and values of rows in a thread; there is room for %d",
		         t->m, values(t->m, spec), room.values);
		return false;
	}
	return blocks_fit(reason, t, program);
}

static int bwd_tiles(struct tile_request *tile, int max, const struct spec *spec, const struct program *program,
                     const struct target *target)
{
	static const int rows[] = {128, 112, 96, 80, 64, 48, 32};
	int count = 0;
	(void)target;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		const struct tile_request t = {.m = rows[i], .n = TILE_KEYS, .warps = WARPS, .stages = BUFFERS};
		char reason[REASON_MAX];
		/* One refused tile stands for all: it tells why. */
		const bool last = i + 1 == sizeof rows / sizeof *rows;
		if (count < max && (bwd_legal(reason, &t, spec, program) || (last && count == 0)))
			tile[count++] = t;
	}
	return count;
}

static void bwd_shape(struct candidate *c, const struct spec *spec, const struct program *program,
                      const struct target *target, const struct device *device)
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
	smem_term_add(c, "K", n * row_qk);
	smem_term_add(c, "V", n * row_v);
	smem_term_add(c, "Q", c->stages * m * row_qk);
	smem_term_add(c, "dO", c->stages * m * row_v);
	smem_term_add(c, "dS", 2 * 2 * m * n);
	smem_term_add(c, "dQ", WARPGROUPS * PANEL * (panels_qk == 2 ? m : m / 2) * 4);
	smem_term_add(c, "LSE and delta", c->stages * m * 8);
	if (dropout)
		smem_term_add(c, "dropout", 2 * WARPGROUPS * 2 * m * 4);
	const int notes = 2 * c->stages, note = visit_bytes(program, c, 1) == 16 ? 32 : 20;
	const int barriers = 8 * (2 + 5 * c->stages + notes + 2 * 2);
	smem_term_add(c, "barriers, walk",
	              (barriers + notes * note + 12 + walk_bytes(spec, program, c->walk_warps) + 15) / 16 * 16);
	smem_inputs_add(c, program, spec, 2, c->stages, 2, c->stages);

	/* What a thread has at launch, before the warpgroups share registers out. */
	c->regs = target->regs_sm / (32 * c->warps) / 8 * 8;

	/* One visited tile, in clocks of one SM. Of dQ whole panels are computed. */
	const double cells = (double)m * n, dquery = PANEL * panels_qk;
	const double flop = 2 * cells * (columns_qk + columns_v + spec->head_dim_v + spec->head_dim_qk + dquery);
	/* Operands: K and V once, Q and dO for each warpgroup, as rows and as columns; dS written and read; what arrives. */
	const double operands = 2.0 * (n * (columns_qk + columns_v) + 2 * m * (columns_qk + columns_v) +
	                               2 * m * (spec->head_dim_qk + spec->head_dim_v));
	const double dscore = 2.0 * cells * (panels_qk == 2 ? 3 : 2) + 2.0 * n * PANEL * 2;
	const double arriving = (double)m * (row_qk + row_v);
	const double statistics = 8.0 * m * 4 * 2; /* a quad's lanes read them, 8 quads the same words */
	const double dropout_ops = dropout ? 9 : 0; /* two Philox calls and eight LOP3 for 32 cells, two masks, one product */
	const double softmax_ops = 6.5, reduction_bytes_clk = 19; /* as the SM lets float32 sums go */
	c->cost_us[COST_MMA] = flop / wgmma_flop_clk;
	c->cost_us[COST_EXP] = cells * exp_beside / device->exp_clk;
	c->cost_us[COST_ALU] = cells * (softmax_ops + dropout_ops) * alu_beside / device->alu_clk;
	c->cost_us[COST_SMEM] = (operands + dscore + arriving + statistics) / 128 + 4.0 * m * columns_qk / reduction_bytes_clk * 0.25;
	score_cost_add(c, program, device, PASS_BACKWARD);
}

static void bwd_recipe(struct recipe *recipe, const struct spec *spec, const struct program *program,
                       const struct candidate *c, const struct target *target)
{
	const int threads = 32 * c->warps, columns = 16 * steps(spec->head_dim_qk);
	(void)target;
	recipe_blocks_add(recipe, program);
	recipe_bounds_add(recipe, program, c);
	recipe_kernel_add(recipe, "fagen_delta", GRID_QUERY_TILES, c->tile_m, threads, 0);
	recipe_kernel_add(recipe, "fagen_backward", GRID_KEY_TILES, c->tile_n, threads, c->smem_bytes);
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
	recipe_map_add(recipe, "key", c->tile_n);
	recipe_map_add(recipe, "value", c->tile_n);
	recipe_map_add(recipe, "dout", c->tile_m);
}

const struct template_model model_sm90_bwd = {
	.templ = "sm90/bwd",
	.pass = PASS_BACKWARD,
	.main = "fagen_backward",
	.cc_min = 90,
	.cc_max = 90,
	.align_min = 16,
	.tiles = bwd_tiles,
	.legal = bwd_legal,
	.shape = bwd_shape,
	.recipe = bwd_recipe,
};
