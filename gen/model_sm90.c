/* What the models of the sm90 templates share. Names and formulas mirror those of templates/sm90/. */
#include "gen/model_sm90.h"

#include <math.h>
#include <stdio.h>

#include "gen/grad.h"

/* Beside a running wgmma of the backward other instructions take longer: clocks of ex2 and of other float operations over those alone. */
static const double exp_beside = 1.35, alu_beside = 1.9;

int note_bytes(const struct program *p, const struct candidate *c, int words)
{
	const int visit = visit_bytes(p, c, 1), bytes = visit + 4 * words;
	return visit == 16 ? (bytes + 7) / 8 * 8 : bytes;
}

bool native_order_wanted(const struct candidate *c, const struct spec *spec, const struct program *program)
{
	return spec->layout != LAYOUT_DENSE && order_wanted(c, spec, program);
}

void recipe_queue_add(struct recipe *recipe, const struct candidate *c)
{
	if (!c->queue)
		return;
	recipe_piece_add(recipe, "queue", SIZE_LAUNCH, 0, 1);
	recipe->piece[recipe->piece_count - 1].zeroed = 1;
}

/* As section_placed of templates/section.h: the last section is one and what is left, and has tiles for two rounds of a large GPU. Of what
 * it shares, what L2 does not keep comes in again for each round of CTAs, as far as rounds meet: with the square of what they visit; but at most
 * once for each tile beside the first. Where two sections meet both are under way, and what L2 does not keep of them comes in again too. Fitted
 * to the counters of causal problems on an H200, d 64 and 128, 4k and 8k (bench/results/iocheck.md). */
double section_again_bytes(const struct candidate *c, const struct device *device, enum pass pass, double heads, double head_bytes,
                           double tiles)
{
	static const double section_bytes[PASS_COUNT] = {[PASS_FORWARD] = 24 << 20, [PASS_BACKWARD] = 8 << 20};
	static const double tiles_last = 2 * 132, kept = 0.45; /* of L2, whose halves both hold what all SMs read */
	static const double again[PASS_COUNT] = {[PASS_FORWARD] = 1.7, [PASS_BACKWARD] = 5}, meeting[PASS_COUNT] = {[PASS_FORWARD] = 1.05};
	const double section = fmin(fmax(floor(section_bytes[pass] / (head_bytes + 1)), 1), heads);
	const double before = fmax(fmin(floor(heads / section) - 1, floor((heads - ceil(tiles_last / tiles)) / section)), 0);
	const double last = heads - before * section;
	const double here = kept * device->l2_mib * 1048576, over = last * head_bytes - here, over_two = 2 * section * head_bytes - here;
	const double rounds = last * tiles / ((double)device->sms * c->ctas_sm), met = c->visited * c->visited;
	double bytes = before * fmin(meeting[pass] * met * fmax(over_two, 0), (tiles - 1) * section * head_bytes);
	if (over > 0 && rounds > 1)
		bytes += fmin(again[pass] * met * rounds * over, (tiles - 1) * last * head_bytes);
	return bytes;
}

bool sink_grad_only(char reason[REASON_MAX], const struct spec *spec, const struct program *program)
{
	if (!program->grads)
		return true;
	struct grad_plan grad;
	grad_plan_make(&grad, program, spec);
	if (grad.accesses == 0)
		return true;
	snprintf(reason, REASON_MAX, "gradients of inputs but the sink have the kernels of sm80/bwd");
	return false;
}

void native_backward_cost(struct candidate *c, const struct spec *spec, const struct program *program, const struct device *device, double moved)
{
	const int m = c->tile_m;
	const int columns_qk = 16 * steps(spec->head_dim_qk), columns_v = 16 * steps(spec->head_dim_v);
	/* Of dQ whole panels are computed, if not by another kernel. */
	const double sums = c->sums != DQUERY_APART;
	const double cells = (double)m * c->tile_n, dquery = sums * PANEL * panels(spec->head_dim_qk);
	const double flop = 2 * cells * (columns_qk + columns_v + spec->head_dim_v + spec->head_dim_qk + dquery);
	const double statistics = 8.0 * m * 4 * 2; /* a quad's lanes read them, 8 quads the same words */
	const double softmax_ops = 6.5, reduction_bytes_clk = 19; /* as the SM lets float32 sums go */
	const double dropout_clocks = 0.065; /* of an SM a cell, beside which nothing runs: causal 4k on an H200, d 64 and 128 */
	c->cost_us[COST_MMA] = flop / wgmma_flop_clk;
	c->cost_us[COST_EXP] = cells * exp_beside / device->exp_clk;
	c->cost_us[COST_ALU] = cells * softmax_ops * alu_beside / device->alu_clk;
	c->cost_us[COST_SMEM] = (moved + statistics) / 128 + sums * 4.0 * m * columns_qk / reduction_bytes_clk * 0.25;
	if (spec->keep_256 < DROPOUT_LEVELS)
		c->visit_clocks += dropout_clocks * cells;
	score_cost_add(c, program, device, PASS_BACKWARD);
	c->wait_clocks = staging_clocks(c, spec, program, has_turns(c) ? LOADERS - 1 : LOADERS); /* one or two of them add dQ to its sums */
}

int native_backward_notes(const struct candidate *c, const struct spec *spec, const struct program *program, bool parts)
{
	const int words = (spec->layout == LAYOUT_DENSE ? 9 : 11) + parts, taken = (parts ? 44 : 24) + SECTIONS_BYTES;
	return 2 * c->stages * (note_bytes(program, c, words) + head_key_bytes(spec)) + taken + walk_bytes(spec, program, c->walk_warps);
}

void native_backward_recipe(struct recipe *recipe, const struct spec *spec, const struct program *program, const struct candidate *c,
                            enum recipe_grid grid, int load_keys)
{
	const int threads = 32 * c->warps, columns = 16 * steps(spec->head_dim_qk);
	recipe_blocks_add(recipe, program);
	recipe_bounds_add(recipe, program, c);
	recipe_order_add(recipe, c, PASS_BACKWARD);
	recipe_kernel_add(recipe, "fagen_delta", GRID_QUERY_TILES, c->tile_m, threads, 0);
	recipe_kernel_add(recipe, "fagen_backward", grid, c->tile_n, threads, c->smem_bytes);
	if (c->sums != DQUERY_APART)
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
	if (c->sums != DQUERY_APART)
		recipe_piece_add(recipe, "dquery_accum", SIZE_ROWS_QK, c->tile_m, columns);
	if (has_turns(c))
		recipe_piece_add(recipe, "turns", SIZE_TILES_Q, c->tile_m, 2);
	recipe_queue_add(recipe, c);
	recipe_order_piece_add(recipe, c, PASS_BACKWARD);
	recipe_map_add(recipe, "query", c->tile_m);
	recipe_map_add(recipe, "key", load_keys);
	recipe_map_add(recipe, "value", load_keys);
	recipe_map_add(recipe, "dout", c->tile_m);
}
