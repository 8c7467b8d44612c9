/* What the planner must know of templates/sm80/input_grad.cu. Names and formulas mirror its constants. */
#include "gen/grad.h"
#include "gen/model.h"

static int row_bytes(int head_dim) { return (head_dim + 15) / 16 * 32; }
static int round_16(int bytes) { return (bytes + 15) / 16 * 16; }

/* grad_tables() of the skeleton. */
static int tables_of(const struct grad_plan *g, const struct candidate *c)
{
	int tables = g->cell_spread || g->diag_spread ? c->warps : 1;
	while (tables > 1 && tables * g->table_floats * 4 > 16384)
		tables /= 2;
	return tables;
}

struct grad_sizes grad_sizes_of(const struct grad_plan *g, const struct spec *spec, const struct program *p,
                                const struct candidate *c)
{
	const int m = c->tile_m, n = c->tile_n;
	const struct staging s = program_staging(p, spec, m, n);
	const int smem = round_16((m + n) * (row_bytes(spec->head_dim_qk) + row_bytes(spec->head_dim_v)) + 16 * m +
	                          walk_bytes(spec, p, c->warps));
	const int cells = g->cell_spread || g->diag_spread ? 4 * m * (n + 8) : 0;
	const int tables = 4 * tables_of(g, c) * g->table_floats, rows = 4 * m * g->row_floats;
	return (struct grad_sizes){
		.smem = round_16(smem + s.head + s.row + 2 * s.col + 2 * s.cell + cells + tables + rows),
		.smem_cols = smem + s.head + 2 * s.row + s.col + 2 * s.cell,
		.partial = g->table_floats + m * g->row_floats,
		.partial_cols = n * g->cols,
	};
}
