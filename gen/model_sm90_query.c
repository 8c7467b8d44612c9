/* What the planner must know of templates/sm90/bwd_query.cu. Names and formulas mirror its constants. */
#include "gen/model_sm90.h"

enum { GROUP_ROWS = 64, QUERY_ROWS = 2 * GROUP_ROWS, NARROW_MOST = 128, WIDE_KEYS = 64 };

/* What a CTA costs beside its visits, clocks of an SM. A guess between those of the other native kernels, not fitted. */
static const double item_clocks = 4500;

static bool is_wide(const struct spec *spec) { return spec->head_dim_qk > NARROW_MOST || spec->head_dim_v > NARROW_MOST; }

/* Dynamic shared memory: two buffers of K and V where they fit. */
static int query_smem(const struct candidate *c, const struct spec *spec, const struct program *program, const struct target *target)
{
	const bool wide = is_wide(spec);
	const int keys = wide ? WIDE_KEYS : c->tile_n, tiles = QUERY_ROWS / c->tile_m;
	const int row_qk = row_bytes(spec->head_dim_qk), row_v = row_bytes(spec->head_dim_v);
	const struct staging s = program_staging(program, spec, c->tile_m, c->tile_n);
	int bytes = 0;
	for (int stages = 2; stages >= 1; stages--) {
		const int key_stages = wide ? 2 : stages, notes = 2 * key_stages, inputs = key_stages * keys / c->tile_n;
		const int barriers = 8 * (2 + 2 * key_stages + 2 * stages + 2 * inputs + notes);
		const int walk = barriers + notes * visit_bytes(program, c, tiles) + 20 + head_key_bytes(spec) + tiles * (12 + walk_bytes(spec, program, c->walk_warps));
		bytes = (wide ? 8 * QUERY_ROWS : 0) + (QUERY_ROWS + key_stages * keys) * row_qk + (QUERY_ROWS + stages * keys) * row_v + (walk + 15) / 16 * 16 + s.head +
		        tiles * s.row + inputs * (s.col + tiles * s.cell);
		if (bytes <= target->smem_block)
			break;
	}
	return bytes;
}

void native_query_add(struct recipe *recipe, const struct candidate *c, const struct spec *spec, const struct program *program,
                      const struct target *target)
{
	recipe_kernel_add(recipe, "fagen_backward_query", GRID_QUERY_TILES, QUERY_ROWS, 32 * c->warps,
	                  query_smem(c, spec, program, target));
}

/* It visits the same tiles once more: S, dP and dQ. A warpgroup reads its rows of Q and dO for each step of keys, and K twice and V once for them;
 * what arrives is for 128 rows. */
void native_query_cost(struct candidate *c, const struct spec *spec)
{
	const int m = c->tile_m, n = c->tile_n, query_steps = is_wide(spec) ? n / WIDE_KEYS : 1;
	const int row_qk = row_bytes(spec->head_dim_qk), row_v = row_bytes(spec->head_dim_v);
	const int columns_qk = 16 * steps(spec->head_dim_qk), columns_v = 16 * steps(spec->head_dim_v);
	c->item_clocks += item_clocks;
	for (int i = COST_EXP; i <= COST_ALU; i++)
		c->cost_us[i] *= 2;
	const double operands = 2.0 * (query_steps * m * (columns_qk + columns_v) +
	                               m / GROUP_ROWS * n * (columns_qk + columns_v + spec->head_dim_qk));
	c->cost_us[COST_MMA] += 2.0 * m * n * (columns_qk + columns_v + spec->head_dim_qk) / wgmma_flop_clk;
	c->cost_us[COST_SMEM] += (operands + (double)n * (row_qk + row_v) * m / QUERY_ROWS) / 128;
}
