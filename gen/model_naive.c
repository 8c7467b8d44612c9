/* What the planner must know of templates/naive/attention.cu: one shape, never searched. */
#include "gen/model.h"

#include <stdio.h>

enum { NAIVE_TILE = 64, NAIVE_WARPS = 8, NAIVE_DEPTH = 16, NAIVE_PAD = 4 };

static int naive_tiles(struct tile_request *tile, int max, const struct spec *spec, const struct program *program,
                       const struct target *target)
{
	(void)spec, (void)program, (void)target;
	if (max < 1)
		return 0;
	tile[0] = (struct tile_request){.m = NAIVE_TILE, .n = NAIVE_TILE, .warps = NAIVE_WARPS, .stages = 1};
	return 1;
}

static bool naive_legal(char reason[REASON_MAX], const struct tile_request *t, const struct spec *spec,
                        const struct program *program)
{
	(void)spec, (void)program;
	if (t->m == NAIVE_TILE && t->n == NAIVE_TILE && t->warps == NAIVE_WARPS && t->stages == 1)
		return true;
	snprintf(reason, REASON_MAX, "the naive kernels have one shape: m %d, n %d, warps %d, stages 1", NAIVE_TILE,
	         NAIVE_TILE, NAIVE_WARPS);
	return false;
}

static void naive_shape(struct candidate *c, const struct spec *spec, const struct program *program,
                        const struct device *device, enum pass pass)
{
	const double cells = (double)c->tile_m * c->tile_n, dim = spec->head_dim_qk + spec->head_dim_v;
	const double products = pass == PASS_FORWARD ? 1 : 2.5;
	c->smem_term_count = 2;
	c->smem_term[0] = (struct smem_term){"A steps", NAIVE_DEPTH * (c->tile_m + NAIVE_PAD) * 4};
	c->smem_term[1] = (struct smem_term){"B steps", NAIVE_DEPTH * (c->tile_n + NAIVE_PAD) * 4};
	c->smem_bytes = c->smem_term[0].bytes + c->smem_term[1].bytes;
	c->regs = 128; /* the launch bound; ptxas 13.0 takes 89 to 128 and spills nothing */

	/* Float32 multiply-adds, each fed by half a float from shared memory: 4 x 4 cells of a thread take 4 + 4 floats. */
	c->cost_us[COST_ALU] = products * cells * dim / device->alu_clk;
	c->cost_us[COST_SMEM] = products * cells * dim / 2 * 4 / 128;
	c->cost_us[COST_EXP] = cells / device->exp_clk;
	score_cost_add(c, program, device, pass);
}

static void naive_forward_shape(struct candidate *c, const struct spec *spec, const struct program *program,
                                const struct target *target, const struct device *device)
{
	(void)target;
	naive_shape(c, spec, program, device, PASS_FORWARD);
}

static void naive_backward_shape(struct candidate *c, const struct spec *spec, const struct program *program,
                                 const struct target *target, const struct device *device)
{
	(void)target;
	naive_shape(c, spec, program, device, PASS_BACKWARD);
}

static void naive_forward_recipe(struct recipe *recipe, const struct spec *spec, const struct program *program,
                                 const struct candidate *c, const struct target *target)
{
	const int threads = 32 * c->warps;
	(void)spec, (void)target;
	recipe_blocks_add(recipe, program);
	recipe_kernel_add(recipe, "naive_scores", GRID_SCORES, c->tile_m, threads, c->smem_bytes);
	recipe_kernel_add(recipe, "naive_softmax", GRID_QUERY_TILES, c->warps, threads, 0);
	recipe_kernel_add(recipe, "naive_out", GRID_QUERY_TILES, c->tile_m, threads, c->smem_bytes);
	recipe_piece_add(recipe, "scores", SIZE_SCORES, 1, 1);
}

static void naive_backward_recipe(struct recipe *recipe, const struct spec *spec, const struct program *program,
                                  const struct candidate *c, const struct target *target)
{
	const int threads = 32 * c->warps;
	(void)spec, (void)target;
	recipe_blocks_add(recipe, program);
	recipe_kernel_add(recipe, "naive_probs", GRID_SCORES, c->tile_m, threads, c->smem_bytes);
	recipe_kernel_add(recipe, "naive_delta", GRID_QUERY_TILES, c->warps, threads, 0);
	recipe_kernel_add(recipe, "naive_dscores", GRID_SCORES, c->tile_m, threads, c->smem_bytes);
	recipe_kernel_add(recipe, "naive_dquery", GRID_QUERY_TILES, c->tile_m, threads, c->smem_bytes);
	recipe_kernel_add(recipe, "naive_dkey_dvalue", GRID_KEY_TILES, c->tile_m, threads, c->smem_bytes);
	recipe_piece_add(recipe, "scores", SIZE_SCORES, 1, 1);
	recipe_piece_add(recipe, "dscores", SIZE_SCORES, 1, 1);
	recipe_piece_add(recipe, "delta", SIZE_ROWS, 1, 1);
}

const struct template_model model_naive_fwd = {
	.templ = "naive/attention",
	.pass = PASS_FORWARD,
	.main = "naive_out",
	.naive = true,
	.cc_min = 80,
	.tiles = naive_tiles,
	.legal = naive_legal,
	.shape = naive_forward_shape,
	.recipe = naive_forward_recipe,
};

const struct template_model model_naive_bwd = {
	.templ = "naive/attention",
	.pass = PASS_BACKWARD,
	.main = "naive_dkey_dvalue",
	.naive = true,
	.cc_min = 80,
	.tiles = naive_tiles,
	.legal = naive_legal,
	.shape = naive_backward_shape,
	.recipe = naive_backward_recipe,
};
