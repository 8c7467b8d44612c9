/* What the planner must know of templates/sm90/bwd_pair.cu. Names and formulas mirror the skeleton's constants. A visited tile is that of
 * both CTAs of a pair, and so is what it costs. */
#include "gen/model_sm90.h"

#include <stdio.h>

enum { WARPS = 12, TILE_ROWS = 64, TILE_KEYS = 128, KEYS = TILE_KEYS / 2, HEAD_DIM_SMALL = 128, STAGES_MOST = 3 };

/* The norm that joins the terms, and what an item costs beside its visits, clocks of an SM. Fourteen timings on an H200, d 192 and 256, causal and
 * full, sequences of 512 to 16k: predicted over measured 0.99 to 1.11. */
static const double overlap = 2.5, item_clocks = 3500;

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
	return sink_grad_only(reason, spec, program);
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
	for (int stages = 2; stages <= STAGES_MOST && count < max; stages++) /* three are 0.98 of two at d 192, which the model does not know */
		tile[count++] = (struct tile_request){.m = TILE_ROWS, .n = TILE_KEYS, .warps = WARPS, .stages = stages};
	return count;
}

static void pair_shape(struct candidate *c, const struct spec *spec, const struct program *program, const struct target *target,
                       const struct device *device)
{
	const int m = c->tile_m, n = c->tile_n;
	const int panels_qk = panels(spec->head_dim_qk);
	const int row_qk = row_bytes(spec->head_dim_qk), row_v = row_bytes(spec->head_dim_v);
	const int columns_qk = 16 * steps(spec->head_dim_qk), columns_v = 16 * steps(spec->head_dim_v);

	c->walk_warps = 1;
	c->overlap = overlap;
	c->sums = spec->deterministic ? DQUERY_APART : DQUERY_CLEARED;
	c->queue = !c->alike;
	c->order = native_order_wanted(c, spec, program);
	c->item_clocks = item_clocks;
	c->smem_term_count = c->smem_bytes = 0;
	smem_term_add(c, "K", KEYS * row_qk);
	smem_term_add(c, "V", KEYS * row_v);
	if (c->sums != DQUERY_APART)
		smem_term_add(c, "K of the pair", KEYS * 2 * PANEL * ((panels_qk + 1) / 2));
	smem_term_add(c, "Q", c->stages * m * row_qk);
	smem_term_add(c, "dO", c->stages * m * row_v);
	smem_term_add(c, "dS", 2 * m * (c->sums == DQUERY_APART ? KEYS : n));
	smem_term_add(c, "LSE and delta", c->stages * m * 8);
	if (spec->keep_256 < DROPOUT_LEVELS)
		smem_term_add(c, "dropout", 2 * m * 4);
	const int notes = 2 * c->stages;
	const int barriers = 8 * (10 + 4 * c->stages + 2 * notes) + 16; /* and what the queue gave */
	smem_term_add(c, "barriers, walk", (barriers + native_backward_notes(c, spec, program, false) + 15) / 16 * 16);
	smem_inputs_add(c, program, spec, c->stages, notes, c->stages, c->stages);

	/* What a thread has at launch, before the warpgroups share registers out. */
	c->regs = target->regs_sm / (32 * c->warps) / 8 * 8;

	/* What a visited tile reads and writes of shared memory. */
	const double sums = c->sums != DQUERY_APART;
	const double cells = (double)m * n, dquery = sums * PANEL * panels_qk;
	/* Operands: K and V once, Q and dO in each CTA as rows and as columns, half of K's columns in each CTA; dS written, sent, and read by dK
	 * and in both CTAs by dQ; what arrives in both. Deterministic, dS stays and nobody reads K's columns. */
	const double operands = 2.0 * (n * (columns_qk + columns_v) + 2 * m * (columns_qk + columns_v) +
	                               2 * m * (spec->head_dim_qk + spec->head_dim_v) + n * dquery);
	const double dscore = 2.0 * cells * (1 + sums * 2 + 1 + sums * 2);
	const double arriving = 2.0 * m * (row_qk + row_v);
	native_backward_cost(c, spec, program, device, operands + dscore + arriving);
	if (c->sums == DQUERY_APART)
		native_query_cost(c, spec);
}

static void pair_recipe(struct recipe *recipe, const struct spec *spec, const struct program *program, const struct candidate *c,
                        const struct target *target)
{
	native_backward_recipe(recipe, spec, program, c, GRID_PERSISTENT_PAIRS, KEYS);
	if (c->sums == DQUERY_APART)
		native_query_add(recipe, c, spec, program, target);
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
