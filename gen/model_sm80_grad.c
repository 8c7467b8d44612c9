/* What the planner must know of templates/sm80/input_grad.cu. Names and formulas mirror its constants. */
#include <math.h>

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

/* table_add, by which a warp adds 32 cells to a table: clocks until it is done, and those that it holds the SM up, for each cell; clocks of one
 * of a diagonal's rows; of 32 cells whose gradients are written one by one, a guess. Fitted to ten timings of SAM's backward, d 64, two accesses, on an
 * H200: 4% root mean square, where tiles differ by 1.8. */
static const double add_wait = 440, add_clocks = 2, diagonal_row_wait = 5, cells_write_wait = 150;

void grad_visit_add(struct candidate *c, const struct spec *spec, const struct program *program)
{
	struct grad_plan grad;
	grad_plan_make(&grad, program, spec);
	c->input_grads = grad.accesses > 0;
	c->grad_wait = c->input_grads ? staging_clocks(c, spec, program, c->warps) : 0;
	for (int i = 0; i < grad.accesses; i++) {
		const struct grad_slot *slot = &grad.slot[grad.access[i].slot];
		const enum grad_spread spread = grad.access[i].spread;
		const int adders = slot->kind == GRAD_ROW ? c->warps : tables_of(&grad, c);
		const double turns = ceil((double)c->tile_m / adders) * ceil(c->tile_n / 32.0); /* 32 cells of a warp each */
		if (slot->kind == GRAD_CELL) {
			c->grad_wait += c->tile_m * c->tile_n / (32.0 * c->warps) * cells_write_wait;
		} else if (slot->kind == GRAD_TABLE && spread == SPREAD_DIAG) {
			c->grad_wait += ceil((c->tile_m + c->tile_n) / (32.0 * adders)) * (add_wait + c->tile_m * diagonal_row_wait);
			c->grad_clocks += (c->tile_m + c->tile_n) * add_clocks;
		} else if ((slot->kind == GRAD_TABLE && spread == SPREAD_CELL) || (slot->kind == GRAD_ROW && slot->entries > 1)) {
			c->grad_wait += turns * add_wait;
			c->grad_clocks += (double)c->tile_m * c->tile_n * add_clocks;
		}
	}
}
