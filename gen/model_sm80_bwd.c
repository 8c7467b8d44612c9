/* What the planner must know of templates/sm80/bwd.cu. Names and formulas mirror the skeleton's constants. */
#include "gen/grad.h"
#include "gen/model.h"
#include "gen/model_sm80_query.h"

#include <stdio.h>

static int steps(int columns) { return (columns + 15) / 16; }
static bool is_power_of_2(int x) { return x > 0 && (x & (x - 1)) == 0; }

enum { ACCUMULATORS = 192 }; /* as in the skeleton */

/* How the warps share a product of 16-row blocks and 16-column steps, of which a thread has at_once; see warps_down and struct Share in the skeleton. */
struct share {
	int down, blocks, steps, at_once;
};

static int steps_at_once(int steps, int each, int room)
{
	while (steps % 2 == 0 && steps * each > room)
		steps /= 2;
	return steps;
}

static struct share share_make(int warps, int all_blocks, int all_steps, int wish, int each, int room)
{
	struct share best = {0};
	int best_cost = 0;
	for (int down = 1; down <= warps; down *= 2) {
		const int rows = all_blocks / down, columns = (all_steps * down + warps - 1) / warps;
		const int at_once = steps_at_once(columns, each * rows, room);
		const int cost = rows * columns * 256 + (columns < wish ? 128 : 0) + columns / at_once * rows + columns;
		if (all_blocks % down == 0 && (best.down == 0 || cost < best_cost)) {
			best = (struct share){down, rows, columns, at_once};
			best_cost = cost;
		}
	}
	return best;
}

static bool in_range(int x, int low, int high) { return is_power_of_2(x) && x >= low && x <= high; }

static bool bwd_legal(char reason[REASON_MAX], const struct tile_request *t, const struct spec *spec,
                      const struct program *program)
{
	if (!in_range(t->warps, 2, 16)) {
		snprintf(reason, REASON_MAX, "%d warps; want 2, 4, 8 or 16", t->warps);
		return false;
	}
	if (!in_range(t->m, 32, 256)) {
		snprintf(reason, REASON_MAX, "m %d; want 32, 64, 128 or 256", t->m);
		return false;
	}
	if (!in_range(t->n, 32, 256)) {
		snprintf(reason, REASON_MAX, "n %d; want 32, 64, 128 or 256", t->n);
		return false;
	}
	if ((t->m / 16) * (t->n / 16) < t->warps) {
		snprintf(reason, REASON_MAX,
		         "m %d, n %d makes %d products of 16 x 16 for %d warps; want one each at least", t->m, t->n,
		         (t->m / 16) * (t->n / 16), t->warps);
		return false;
	}
	if (t->stages < 1 || t->stages > 3) {
		snprintf(reason, REASON_MAX, "%d stages; want 1 to 3", t->stages);
		return false;
	}
	return blocks_fit(reason, t, program);
}

static int bwd_tiles(struct tile_request *tile, int max, const struct spec *spec, const struct program *program,
                     const struct target *target)
{
	static const struct {
		int m, n, warps;
	} shapes[] = {
		{64, 128, 8}, {128, 128, 8}, {128, 64, 8}, {64, 64, 8}, {32, 64, 8},
		{64, 128, 4}, {64, 64, 4},   {32, 64, 4},  {32, 32, 4},
	};
	int count = 0;
	(void)target;
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		for (int stages = shapes[i].warps >= 8 ? 3 : 2; stages >= 1; stages--) { /* three want two warps of a scheduler */
			const struct tile_request t = {
				.m = shapes[i].m, .n = shapes[i].n, .warps = shapes[i].warps, .stages = stages};
			char reason[REASON_MAX];
			if (count < max && bwd_legal(reason, &t, spec, program))
				tile[count++] = t;
		}
	return count;
}

/* Accumulator registers of a thread. */
static int accumulators(struct share s) { return s.blocks * s.at_once * 8; }
/* Shared memory read by ldmatrix, bytes. */
static double operands(struct share s, int warps, int depth)
{
	return 512.0 * warps * depth * (s.steps / s.at_once * s.blocks + s.steps);
}
/* Matrix work, FLOP; warps without a last step of their own are counted as if they had it. */
static double product(struct share s, int warps, int depth) { return 8192.0 * warps * depth * s.blocks * s.steps; }
static int int_max(int a, int b) { return a > b ? a : b; }

/* dK and dV: of all warps, or, where they are alike, of half of them each. See HALVES in the skeleton. */
struct key_grads {
	struct share dk, dv;
	int warps, accumulators;
};

static struct key_grads key_grads_make(int warps, int n, int steps_qk, int steps_v)
{
	const struct share dk = share_make(warps, n / 16, steps_qk, 0, 8, ACCUMULATORS), dv = share_make(warps, n / 16, steps_v, 0, 8, ACCUMULATORS);
	const struct share half = share_make(warps / 2, n / 16, steps_qk, 0, 8, ACCUMULATORS);
	if (steps_qk == steps_v && half.blocks * half.steps == 2 * dk.blocks * dk.steps)
		return (struct key_grads){half, half, warps / 2, 8 * half.blocks * half.steps};
	return (struct key_grads){dk, dv, warps, 8 * (dk.blocks * dk.steps + dv.blocks * dv.steps)};
}

static void bwd_shape(struct candidate *c, const struct spec *spec, const struct program *program,
                      const struct target *target, const struct device *device)
{
	const bool dropout = spec->keep_256 < DROPOUT_LEVELS;
	const int steps_qk = steps(spec->head_dim_qk), steps_v = steps(spec->head_dim_v);
	const int row_qk = steps_qk * 32, row_v = steps_v * 32; /* bytes of a shared row */
	const int m = c->tile_m, n = c->tile_n, warps = c->warps;
	const struct key_grads grads = key_grads_make(warps, n, steps_qk, steps_v);
	const int room = ACCUMULATORS - grads.accumulators;
	const struct share s = share_make(warps, m / 16, n / 16, dropout ? (n < 64 ? n : 64) / 16 : 0, 16, room);
	const struct share dq = share_make(warps, m / 16, steps_qk, 0, 8, room < 64 ? room : 64);
	c->sums = spec->deterministic ? DQUERY_APART : DQUERY_CLEARED;
	/* What is deterministic is not cut, for bits may not depend on how many tiles there are; nor where a tile's visits may be few of all that it could have. */
	c->cut = c->sums != DQUERY_APART && !program->scan && runs_long(program, PASS_BACKWARD);
	const double sums = c->sums != DQUERY_APART; /* 0: dQ is the other kernel's */

	c->order = order_wanted(c, spec, program);
	c->smem_term_count = c->smem_bytes = 0;
	smem_term_add(c, "K", n * row_qk);
	smem_term_add(c, "V", n * row_v);
	smem_term_add(c, "Q", c->stages * m * row_qk);
	smem_term_add(c, "dO", c->stages * m * row_v);
	const bool beside = c->stages == 3; /* products of a tile beside scores of the next */
	const int lines_buffers = c->stages == 1 ? 1 : 2, cells_buffers = beside ? 2 : 1, notes_buffers = beside ? 3 : 2;
	const int turns = spec->kv_group == 1 ? 1 : 2;
	smem_term_add(c, "P", cells_buffers * 2 * m * n);
	smem_term_add(c, "dS", cells_buffers * 2 * m * n);
	smem_term_add(c, "LSE and delta", lines_buffers * m * 8);
	/* Of each tile that is noted the visit, the head's key and two indices; two addresses, five indices, the walk. */
	const int notes = visit_bytes(program, c, notes_buffers) + notes_buffers * (head_key_bytes(spec) + 8) + 2 * 8 + 5 * 4;
	smem_term_add(c, "walk", (notes + walk_bytes(spec, program, warps) + 15) / 16 * 16);
	smem_inputs_add(c, program, spec, turns, lines_buffers, turns, cells_buffers);

	/* Accumulators of dK and dV stay; S and dP live together, dQ after them. ptxas 13.0 for sm_90a compiles shapes
	 * with up to 192 accumulators without spills, and spills from 208 on. Two buffers of wide rows need more
	 * addresses, and so do few warps, each of which walks more of a tile: there 192 spill too. */
	const bool wide = c->stages >= 2 && steps_qk + steps_v > (warps < 8 ? 15 : 24);
	/* Without dQ between them ptxas overlaps iterations, and with dropout or wide rows then spills at 192 too. */
	const bool overlapped = c->sums == DQUERY_APART && (dropout || steps_qk + steps_v > 24);
	const bool words = dropout && target->cc < 90 && accumulators(s) >= 64; /* of dropout, beside so many cells: likewise */
	/* Beside the seats of three stages there are none for words of dropout, and not always for lengths of entries and a score; for sm_100 none. */
	const bool seats = beside && (dropout || target->cc >= 100 || (spec->layout != LAYOUT_DENSE && !program->score_identity));
	const bool parts = target->cc >= 100 && c->stages == 1 && s.steps > s.at_once; /* S in parts, with one buffer: likewise */
	const int addresses = wide || overlapped || words || seats || parts ? 64 : 56;
	c->regs = grads.accumulators +
	          int_max(2 * accumulators(s), c->sums == DQUERY_APART ? 0 : accumulators(dq)) + addresses;

	/* One visited tile, in clocks of one SM. */
	const double cells = (double)m * n;
	const double flop = product(s, warps, steps_qk + steps_v) + product(grads.dk, grads.warps, m / 16) +
	                    product(grads.dv, grads.warps, m / 16) + sums * product(dq, warps, n / 16);
	const double smem_bytes = operands(s, warps, steps_qk + steps_v) + operands(grads.dk, grads.warps, m / 16) +
	                          operands(grads.dv, grads.warps, m / 16) + 4 * cells /* P and dS written */ +
	                          (double)m * (row_qk + row_v) /* arriving Q and dO */ +
	                          sums * operands(dq, warps, n / 16);
	const double dropout_ops = dropout ? 6.5 : 0; /* 43 for a word of 32 cells, two masks, one product */
	c->cost_us[COST_MMA] = flop / device->mma_flop_clk;
	c->cost_us[COST_EXP] = cells / device->exp_clk;
	c->cost_us[COST_ALU] = cells * (6.5 + dropout_ops) / device->alu_clk;
	const double reduction_bytes_clk = 32; /* as an SM lets float32 sums go */
	c->cost_us[COST_SMEM] = smem_bytes / 128 + sums * 2.0 * m * row_qk / reduction_bytes_clk;
	const double one_buffer_clocks = 350; /* two barriers more, and loads that are waited for */
	if (c->stages == 1)
		c->visit_clocks += one_buffer_clocks;
	else if (beside) { /* what is beside the cells hides, and some of them: 1.02 to 1.03 of two stages at d 96 and 128 */
		c->visit_clocks = 0;
		c->hides_more = 0.3;
	}
	score_cost_add(c, program, device, PASS_BACKWARD);
	c->wait_clocks = staging_clocks(c, spec, program, warps);
	if (program->grads)
		grad_visit_add(c, spec, program);
	if (c->sums != DQUERY_APART)
		return;

	/* The kernel of dQ visits the same tiles once more. */
	const struct query_kernel query = query_kernel_make(c, spec, program, target);
	c->regs = int_max(c->regs, query.regs);
	for (int i = COST_EXP; i <= COST_ALU; i++)
		c->cost_us[i] *= 2;
	c->cost_us[COST_MMA] += query.mma_flop / device->mma_flop_clk;
	c->cost_us[COST_SMEM] += query.smem_traffic / 128;
}

/* Gradients of inputs, from the statistics that fagen_delta has left. */
static void recipe_grads_add(struct recipe *recipe, const struct spec *spec, const struct program *program,
                             const struct candidate *c)
{
	const int threads = 32 * c->warps;
	struct grad_plan grad;
	grad_plan_make(&grad, program, spec);
	const struct grad_sizes sizes = grad_sizes_of(&grad, spec, program, c);
	recipe_kernel_add(recipe, "fagen_input_grad_clear", GRID_QUERY_TILES_1, c->tile_m, threads, 0);
	recipe_kernel_add(recipe, "fagen_input_grad", GRID_QUERY_TILES, c->tile_m, threads, sizes.smem);
	if (sizes.partial > 0)
		recipe_piece_add(recipe, "grad_partial", SIZE_TILES_Q, c->tile_m, sizes.partial);
	if (sizes.partial_cols > 0) {
		recipe_kernel_add(recipe, "fagen_input_grad_cols", GRID_KEY_TILES_Q, c->tile_n, threads,
		                  sizes.smem_cols);
		recipe_piece_add(recipe, "grad_partial_cols", SIZE_TILES_K, c->tile_n, sizes.partial_cols);
	}
	recipe_kernel_add(recipe, "fagen_input_grad_sum", GRID_QUERY_TILES, c->tile_m, threads, 0);
}

static void bwd_recipe(struct recipe *recipe, const struct spec *spec, const struct program *program,
                       const struct candidate *c, const struct target *target)
{
	const int threads = 32 * c->warps, columns = 16 * steps(spec->head_dim_qk);
	recipe_blocks_add(recipe, program);
	recipe_bounds_add(recipe, program, c);
	recipe_order_add(recipe, c, PASS_BACKWARD);
	recipe_kernel_add(recipe, "fagen_delta", GRID_QUERY_TILES, c->tile_m, threads, 0);
	recipe_kernel_add(recipe, "fagen_backward", c->cut ? GRID_KEY_TAILS : GRID_KEY_TILES, c->tile_n, threads, c->smem_bytes);
	if (c->cut) {
		const struct key_grads grads = key_grads_make(c->warps, c->tile_n, steps(spec->head_dim_qk), steps(spec->head_dim_v));
		const struct recipe_tail tail = {.visit = c->tile_m, .resident = c->ctas_sm, .alike = c->alike, .ends = 2, .join = 8};
		recipe_tail_add(recipe, "fagen_backward", &tail, "fagen_backward_join", 1, threads, threads * grads.accumulators);
	}
	if (c->sums == DQUERY_APART)
		recipe_kernel_add(recipe, "fagen_backward_query", GRID_QUERY_TILES, c->tile_m, threads,
		                  query_kernel_make(c, spec, program, target).smem_bytes);
	else
		recipe_kernel_add(recipe, "fagen_dquery", GRID_QUERY_TILES, c->tile_m, threads,
		                  2 * c->tile_m * columns);
	if (program->grads)
		recipe_grads_add(recipe, spec, program, c);
	recipe_piece_add(recipe, "delta", SIZE_ROWS_QK, c->tile_m, 2);
	if (c->sums != DQUERY_APART)
		recipe_piece_add(recipe, "dquery_accum", SIZE_ROWS_QK, c->tile_m, columns);
	recipe_order_piece_add(recipe, c, PASS_BACKWARD);
}

const struct template_model model_sm80_bwd = {
	.templ = "sm80/bwd",
	.pass = PASS_BACKWARD,
	.main = "fagen_backward",
	.cc_min = 80,
	.tiles = bwd_tiles,
	.legal = bwd_legal,
	.shape = bwd_shape,
	.recipe = bwd_recipe,
};
