/* What the planner must know of templates/sm90/bwd.cu. Names and formulas mirror the skeleton's constants. */
#include "gen/model_sm90.h"

#include <stdio.h>

enum { WARPS = 12, TILE_KEYS = 128, MERGE_KEYS = 16, BUFFERS = 2, WARPGROUPS = 2, HEAD_DIM_MOST = 128, GROUP_ROWS = 64, QUERY_ROWS = GROUP_ROWS * WARPGROUPS };

/* The norm that joins the terms, and clocks of an SM that a visit and an item cost beside them. Thirty timings on an H200, single launches, d 64, 96 and 128,
 * causal, full and a window, sequences of 512 to 16k, tiles of 64, 80 and 128 rows: predicted over measured 1.05 in the mean, half of them within 4% of that;
 * where tiles of 64 and of 80 rows were timed the one chosen is at most 1.6% slower than the other. */
static const double overlap = 6, visit_clocks = 700, item_clocks = 4000;

/* Accumulators of S, dP, dK and dV in a thread; with them P packed and values of its m / 4 rows. And how many of these ptxas 13.0 compiles
 * without spills, of 190 kernels tried: scores, entries with lengths of their own and long masks have more values beside. */
static int accumulators(int m, const struct spec *spec) { return m + (spec->head_dim_qk + spec->head_dim_v) / 2; }
static int values(int m, const struct spec *spec) { return accumulators(m, spec) + m / 2; }
struct room {
	int accumulators, values;
};
static struct room room_of(const struct tile_request *t, const struct spec *spec, const struct program *program)
{
	if (t->splits > 1 && spec->keep_256 < DROPOUT_LEVELS && !program->score_identity) /* 3 of 107 kernels of parts spilled where whole tiles did not */
		return (struct room){176, 208};
	const bool more = program->scan || program->run_count > 1 || residual_cost(program).alu > 4;
	if (spec->layout != LAYOUT_DENSE || !program->score_identity)
		return (struct room){192, 224};
	return more ? (struct room){192, 240} : (struct room){208, 256};
}

/* Key tiles add to dQ in their order where it is known who comes before: those that see a query tile are neighbours, as the bounds of one run are
 * affine with coefficients -1, 0, 1, and nothing else decides. Not where query heads share keys: items of few key tiles are long then, and the longest come
 * last (causal, b 1, h 32/8, 8k: 0.70 of the speed of sums in any order; apart 0.86), as far as the spec says so. Nor for parts that begin elsewhere in each tile, which would wait for
 * the ends of others. */
static enum dquery_sums sums_of(int splits, const struct spec *spec, const struct program *program)
{
	if (!spec->deterministic)
		return DQUERY_CLAIMED;
	const bool known = program->run_count == 1 && !program->scan;
	return known && spec->kv_group <= 1 && (splits <= 1 || runs_alike(program, PASS_BACKWARD)) ? DQUERY_ORDERED : DQUERY_APART;
}

static bool bwd_legal(char reason[REASON_MAX], const struct tile_request *t, const struct spec *spec,
                      const struct program *program)
{
	if (!sink_grad_only(reason, spec, program))
		return false;
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
	if (sums_of(t->splits, spec, program) == DQUERY_APART && t->m != GROUP_ROWS && t->m != QUERY_ROWS) {
		snprintf(reason, REASON_MAX, "m %d; deterministic: true wants %d or %d", t->m, GROUP_ROWS, QUERY_ROWS);
		return false;
	}
	const struct room room = room_of(t, spec, program);
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
	const int m = c->tile_m, n = c->tile_n;
	const int panels_qk = panels(spec->head_dim_qk);
	const int row_qk = row_bytes(spec->head_dim_qk), row_v = row_bytes(spec->head_dim_v);
	const int columns_qk = 16 * steps(spec->head_dim_qk), columns_v = 16 * steps(spec->head_dim_v);

	c->walk_warps = 1;
	c->cut = c->may_cut && c->alike && c->splits == 1 && !spec->deterministic && !program->grads;
	c->overlap = overlap;
	c->visit_clocks = visit_clocks;
	c->item_clocks = item_clocks;
	c->sums = sums_of(c->splits, spec, program);
	c->queue = c->sums == DQUERY_ORDERED || !c->alike;
	c->order = native_order_wanted(c, spec, program);
	c->smem_term_count = c->smem_bytes = 0;
	smem_term_add(c, "K", n * row_qk);
	smem_term_add(c, "V", n * row_v);
	smem_term_add(c, "Q", c->stages * m * row_qk);
	smem_term_add(c, "dO", c->stages * m * row_v);
	if (c->sums != DQUERY_APART) {
		smem_term_add(c, "dS", 2 * 2 * m * n);
		smem_term_add(c, "dQ", WARPGROUPS * PANEL * (panels_qk == 2 ? m : m / 2) * 4);
	}
	smem_term_add(c, "LSE and delta", c->stages * m * 8);
	if (spec->keep_256 < DROPOUT_LEVELS)
		smem_term_add(c, "dropout", 2 * WARPGROUPS * 2 * m * 4);
	const int notes = 2 * c->stages;
	const int barriers = 8 * (4 + 4 * c->stages + 2 * notes + 2 * 2 + 2 * 2) + 16; /* and whose dQ is summed */
	smem_term_add(c, "barriers, walk", (barriers + native_backward_notes(c, spec, program, c->splits > 1 || c->cut) + 15) / 16 * 16);
	smem_inputs_add(c, program, spec, 2, notes, 2, c->stages);

	/* What a thread has at launch, before the warpgroups share registers out. */
	c->regs = target->regs_sm / (32 * c->warps) / 8 * 8;

	/* What a visited tile reads and writes of shared memory. Where another kernel has dQ, no dS passes through it. */
	const double sums = c->sums != DQUERY_APART;
	const double cells = (double)m * n;
	/* Operands: K and V once, Q and dO for each warpgroup, as rows and as columns; dS written and read; what arrives. */
	const double operands = 2.0 * (n * (columns_qk + columns_v) + 2 * m * (columns_qk + columns_v) +
	                               2 * m * (spec->head_dim_qk + spec->head_dim_v));
	const double dscore = sums * (2.0 * cells * (panels_qk == 2 ? 3 : 2) + 2.0 * n * PANEL * 2);
	const double arriving = (double)m * (row_qk + row_v);
	native_backward_cost(c, spec, program, device, operands + dscore + arriving);
	if (c->sums == DQUERY_APART)
		native_query_cost(c, spec);
}

static void bwd_recipe(struct recipe *recipe, const struct spec *spec, const struct program *program,
                       const struct candidate *c, const struct target *target)
{
	const int warps = (spec->head_dim_qk + 31) / 32 + (spec->head_dim_v + 31) / 32; /* of a CTA that merges: 32 columns each */
	const int part = c->tile_n * (spec->head_dim_qk + spec->head_dim_v) + 4; /* dK, dV, and whether there are any */
	const struct recipe_tail tail = {.visit = c->tile_m, .resident = 1, .alike = 1, .ends = 4, .join = 8};
	native_backward_recipe(recipe, spec, program, c, c->cut ? GRID_PERSISTENT_KEY_TAILS : GRID_PERSISTENT_KEYS, c->tile_n);
	if (c->sums == DQUERY_APART)
		native_query_add(recipe, c, spec, program, target);
	if (c->cut)
		recipe_tail_add(recipe, "fagen_backward", &tail, "fagen_backward_merge", c->tile_n / MERGE_KEYS, 32 * warps, part);
	if (c->splits == 1)
		return;
	for (int i = 0; i < recipe->kernel_count; i++)
		if (recipe->kernel[i].grid == GRID_PERSISTENT_KEYS)
			recipe->kernel[i].parts = c->splits;
	recipe_kernel_add(recipe, "fagen_backward_merge", GRID_KEY_TILES, MERGE_KEYS, 32 * warps, 0);
	recipe_piece_add(recipe, "parts", SIZE_TILES_KV, c->tile_n, c->splits * part);
}

const struct template_model model_sm90_bwd = {
	.templ = "sm90/bwd",
	.pass = PASS_BACKWARD,
	.main = "fagen_backward",
	.cc_min = 90,
	.cc_max = 90,
	.align_min = 16,
	.splits_most = RECIPE_PARTS_MAX,
	.tiles = bwd_tiles,
	.legal = bwd_legal,
	.shape = bwd_shape,
	.recipe = bwd_recipe,
};
