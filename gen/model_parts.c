/* model_parts: what the rows of the template table share: staged inputs, the walk, kernels that come before, and what
 * expressions cost in a cell. */
#include "gen/model.h"

#include "gen/access.h"
#include "gen/expr.h"
#include "gen/lower_affine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- shared memory ---- */

void smem_term_add(struct candidate *c, const char *name, int bytes)
{
	struct smem_term *term = &c->smem_term[c->smem_term_count++];
	snprintf(term->name, sizeof term->name, "%s", name);
	term->bytes = bytes;
	c->smem_bytes += bytes;
}

void smem_inputs_add(struct candidate *c, const struct program *p, const struct spec *spec, int heads, int rows,
                     int cols, int cells)
{
	const struct staging s = program_staging(p, spec, c->tile_m, c->tile_n);
	const struct {
		const char *name;
		int bytes;
	} terms[] = {
		{"head inputs", heads * s.head},
		{"row inputs", rows * s.row},
		{"column inputs", cols * s.col},
		{"cell inputs", cells * s.cell},
	};
	for (size_t i = 0; i < sizeof terms / sizeof *terms; i++)
		if (terms[i].bytes)
			smem_term_add(c, terms[i].name, terms[i].bytes);
}

int walk_bytes(const struct spec *spec, const struct program *p, int warps)
{
	return 4 + p->run_count * 16 + (p->scan ? 8 + 8 * warps : 0) + (spec->layout != LAYOUT_DENSE ? 8 : 0);
}

/* BLOCKS_DOWN and BLOCKS_ACROSS of templates/contract.h. */
static int blocks_touched(int tile, int block)
{
	return block == 0 ? 1 : tile % block == 0 ? tile / block : block % tile == 0 ? 1 : (tile - 2) / block + 2;
}

bool blocks_split(const struct program *p, const struct candidate *c)
{
	return blocks_touched(c->tile_m, p->block_q) * blocks_touched(c->tile_n, p->block_k) > 1;
}

int visit_bytes(const struct program *p, const struct candidate *c, int count) { return count * (blocks_split(p, c) ? 16 : 8); }

int head_key_bytes(const struct spec *spec) { return spec->keep_256 < DROPOUT_LEVELS ? 16 : 0; }

bool blocks_fit(char reason[REASON_MAX], const struct tile_request *t, const struct program *p)
{
	const int down = blocks_touched(t->m, p->block_q), across = blocks_touched(t->n, p->block_k);
	if (down * across <= 64)
		return true;
	snprintf(reason, REASON_MAX, "the tile touches %d x %d blocks of %d x %d; want at most 64", down, across,
	         p->block_q, p->block_k);
	return false;
}

bool forward_keys_fit(char reason[REASON_MAX], const struct tile_request *t, const struct spec *spec)
{
	if (t->n % 16 != 0 || t->n < 16 || t->n > 256) {
		snprintf(reason, REASON_MAX, "n %d; want a multiple of 16 from 16 to 256", t->n);
		return false;
	}
	if (spec->keep_256 < DROPOUT_LEVELS && t->n % 64 != 0 && 64 % t->n != 0) {
		snprintf(reason, REASON_MAX, "n %d with dropout; want a divisor or a multiple of 64", t->n);
		return false;
	}
	return true;
}

/* ---- recipes ---- */

void recipe_kernel_add(struct recipe *r, const char *entry, enum recipe_grid grid, int tile, int threads,
                       int smem_bytes)
{
	struct recipe_kernel *k = &r->kernel[r->kernel_count++];
	*k = (struct recipe_kernel){.grid = grid, .tile = tile, .threads = threads, .smem_bytes = smem_bytes};
	snprintf(k->entry, sizeof k->entry, "%s", entry);
}

void recipe_piece_add(struct recipe *r, const char *name, enum recipe_size size, int tile, int unit)
{
	struct recipe_piece *piece = &r->piece[r->piece_count++];
	*piece = (struct recipe_piece){.size = size, .tile = tile, .unit = unit};
	snprintf(piece->name, sizeof piece->name, "%s", name);
}

void recipe_tail_add(struct recipe *r, const char *entry, const struct recipe_tail *tail, const char *join, int parts, int threads, int unit)
{
	int i = 0;
	while (strcmp(r->kernel[i].entry, entry) != 0)
		i++;
	struct recipe_kernel *const cut = &r->kernel[i];
	const bool queries = cut->grid == GRID_PERSISTENT_TAILS;
	cut->tail = *tail;
	recipe_kernel_add(r, join, queries ? GRID_TAILS_JOIN : GRID_KEY_TAILS_JOIN, cut->tile, threads, 0);
	r->kernel[r->kernel_count - 1].parts = parts;
	r->kernel[r->kernel_count - 1].tail = *tail;
	recipe_piece_add(r, "parts", queries ? SIZE_TAILS_Q : SIZE_TAILS_KV, cut->tile, unit);
	r->piece[r->piece_count - 1].tail = *tail;
}

void recipe_map_add(struct recipe *r, const char *name, int rows)
{
	struct recipe_map *map = &r->map[r->map_count++];
	*map = (struct recipe_map){.rows = rows};
	snprintf(map->name, sizeof map->name, "%s", name);
}

enum { BEFORE_THREADS = 128 };

void recipe_blocks_add(struct recipe *r, const struct program *p)
{
	if (p->blocks != BLOCKS_LISTS)
		return;
	recipe_kernel_add(r, "fagen_blocks", GRID_QUERY_TILES, p->block_q, BEFORE_THREADS, 0);
	recipe_piece_add(r, "blocks", SIZE_BLOCKS, p->block_q, p->block_k);
}

void recipe_bounds_add(struct recipe *r, const struct program *p, const struct candidate *c)
{
	if (p->bounds_rows + p->bounds_cols == 0)
		return;
	recipe_kernel_add(r, "fagen_bounds", GRID_BOUNDS, c->tile_m, BEFORE_THREADS, 0);
	r->kernel[r->kernel_count - 1].keys = c->tile_n;
	if (p->bounds_rows > 0)
		recipe_piece_add(r, "bounds_rows", SIZE_TILES_Q, c->tile_m, 2 * p->bounds_rows);
	if (p->bounds_cols > 0)
		recipe_piece_add(r, "bounds_cols", SIZE_TILES_K, c->tile_n, 2 * p->bounds_cols);
}

bool one_reference_does(const struct spec *spec, const struct program *program)
{
	bool used[NAME_COUNT];
	if (spec->running_maximum)
		return false;
	node_names(used, &program->pool, program->score);
	if (!used[NAME_Q] && !used[NAME_K])
		return true;
	const enum lift lift = program_lift(spec, program);
	return spec->dtype == DTYPE_BF16 && (lift == LIFT_NONE || (lift == LIFT_KNOWN && !program->scan));
}

/* How many ends of a run move with what the pass owns, the most of any run. */
static int ends_moving(const struct program *p, enum pass pass)
{
	int most = 0;
	for (int i = 0; i < p->run_count; i++) {
		int moving = 0;
		for (int k = 0; k < p->run[i].count; k++)
			moving += (pass == PASS_FORWARD ? p->run[i].bound[k].q : p->run[i].bound[k].k) != 0;
		most = moving > most ? moving : most;
	}
	return most;
}

bool runs_alike(const struct program *p, enum pass pass) { return ends_moving(p, pass) == 0; }
bool runs_long(const struct program *p, enum pass pass) { return ends_moving(p, pass) <= 1; }

bool items_alike(const struct spec *spec, const struct program *p, enum pass pass)
{
	return !p->scan && spec->layout == LAYOUT_DENSE && runs_alike(p, pass);
}

bool order_wanted(const struct candidate *c, const struct spec *spec, const struct program *p)
{
	return (p->scan || spec->layout != LAYOUT_DENSE) && c->splits == 1 && c->sums != DQUERY_ORDERED;
}

enum { ORDER_WARPS = 16 }; /* of templates/order.cu */

/* A pair of CTAs has one item, so half as many items run at a time as `beyond` says: few of those that wait are left as they are. */
void recipe_order_add(struct recipe *r, const struct candidate *c, enum pass pass)
{
	if (!c->order)
		return;
	recipe_kernel_add(r, "fagen_order", pass == PASS_FORWARD ? GRID_ORDER_QUERIES : GRID_ORDER_KEYS,
	                  pass == PASS_FORWARD ? c->positions : c->tile_n, 32 * ORDER_WARPS, 0);
	struct recipe_kernel *const kernel = &r->kernel[r->kernel_count - 1];
	kernel->beyond = c->ctas_sm;
	kernel->heads = c->heads > 1 ? c->heads : 0;
}

void recipe_order_piece_add(struct recipe *r, const struct candidate *c, enum pass pass)
{
	if (!c->order)
		return;
	if (pass == PASS_FORWARD)
		recipe_piece_add(r, "order", SIZE_TILES_Q, c->positions, 2);
	else
		recipe_piece_add(r, "order", SIZE_TILES_KV, c->tile_n, 2);
	r->piece[r->piece_count - 1].zeroed = 1;
}

/* ---- what staging costs ---- */

/* Clocks that a warp waits. A matrix's rows by 16 bytes: once for addresses, then for each such copy of its lanes. Other cells one by one: for a row,
 * and for 32 of its elements; and where nothing else runs meanwhile for the first to arrive. Diagonals, 32 at a time.
 *
 * NOT MEASURED but for the last: instructions counted in the code for sm_90a (45 and 5.5; 16 and 8; of T5's diagonals 57) times the clocks that each
 * took before cells were copied in rows: 3.5 of addresses and 2.4 of copies. Then the code had 43 and 19, and 150 and 45 clocks were fitted to 24
 * timings of the portable forward with a dense bias, d 32, and seven of the native one with SAM's two terms, d 64, on an H200: 12% and 3% root mean
 * square. T5's diagonals, with a branch for each bucket, took 400, d 64, forward, 24 and 26 timings: 9% and 4%. */
static const double matrix_clocks = 160, copy_clocks = 13, cell_row_clocks = 55, cells_clocks = 20, diagonals_clocks = 140, arrival_clocks = 400;

double staging_clocks(const struct candidate *c, const struct spec *spec, const struct program *p, int warps)
{
	int cells = 0;
	double sum = 0;
	for (int i = 0; i < p->access_count; i++) {
		const struct access *a = &p->access[i];
		int dim_q, dim_k;
		if (a->place == AT_DIAG)
			sum += ceil((c->tile_m + c->tile_n) / (32.0 * warps)) * diagonals_clocks;
		if (a->place != AT_CELL)
			continue;
		if (access_matrix(&dim_q, &dim_k, &p->pool, a->node, spec->input))
			sum += matrix_clocks + ceil(c->tile_m * c->tile_n * input_bytes[spec->input[a->input].dtype] / (16.0 * 32 * warps)) * copy_clocks;
		else
			cells++;
	}
	if (cells > 0)
		sum += ceil((double)c->tile_m / warps) * (cell_row_clocks + cells * ceil(c->tile_n / 32.0) * cells_clocks) +
		       (c->stages == 1 ? arrival_clocks : 0);
	return sum;
}

/* ---- what expressions cost ---- */

enum { DEPENDS_ROW = 1, DEPENDS_COL = 2, DEPENDS_CELL = 4 };

static int depends_on(const int *depends, const struct expr_node *n)
{
	int all = 0;
	if (n->op == EXPR_NAME)
		return n->i == NAME_Q ? DEPENDS_ROW : n->i == NAME_K ? DEPENDS_COL : n->i == NAME_S ? DEPENDS_CELL : 0;
	for (int j = 0; j < expr_args(n); j++)
		all |= depends[n->arg[j]];
	return all;
}

static bool in_cell(int depends) { return depends == (DEPENDS_ROW | DEPENDS_COL) || (depends & DEPENDS_CELL); }

/* Lane operations that one of integers takes the time of: most GPUs have half as many lanes for them. */
static const double integer_ops = 2;

static bool is_power_of_2(const struct expr_node *n) { return n->op == EXPR_CONST && n->i > 0 && (n->i & (n->i - 1)) == 0; }

/* Rough: lane operations of sm_80 to sm_120 that one operation becomes. */
static struct cell_cost operation_cost(const struct expr_pool *pool, const struct expr_node *n)
{
	const bool real = n->type == TYPE_FLOAT || (n->type == TYPE_BOOL && expr_args(n) > 0 && pool->node[n->arg[0]].type == TYPE_FLOAT);
	switch (n->op) {
	case EXPR_CONST:
	case EXPR_NAME: return (struct cell_cost){0, 0, 0};
	case EXPR_INPUT: return (struct cell_cost){1, 0, 4}; /* staged, one load */
	case EXPR_NOT:
	case EXPR_AND:
	case EXPR_OR: return (struct cell_cost){0.5, 0, 0};
	case EXPR_DIV:
	case EXPR_MOD:
		if (real)
			return (struct cell_cost){1, 2, 0};
		return (struct cell_cost){integer_ops * (is_power_of_2(&pool->node[n->arg[1]])          ? 1
		                                         : pool->node[n->arg[1]].op == EXPR_CONST ? 3
		                                                                                  : 12),
		                          0, 0};
	case EXPR_FLOAT:
	case EXPR_FLOOR: return (struct cell_cost){4, 0, 0}; /* conversions run at a quarter of the rate */
	case EXPR_EXP:
	case EXPR_LOG:
	case EXPR_SQRT: return (struct cell_cost){1, 1, 0};
	case EXPR_TANH:
	case EXPR_SIGMOID: return (struct cell_cost){3, 2, 0};
	case EXPR_RANDOM: return (struct cell_cost){14, 0, 0};
	default: return (struct cell_cost){real ? 1 : integer_ops, 0, 0};
	}
}

/* Of all nodes of the roots that are worked out in the cell: what depends on its row or its column alone is not, and affine
 * forms are one addition, as floats too. */
static struct cell_cost expressions_cost(const struct program *p, const int *root, int roots)
{
	const struct expr_pool *pool = &p->pool;
	struct affine_table affine;
	struct cell_cost sum = {0, 0, 0};
	bool open[EXPR_NODES_MAX] = {false};
	int depends[EXPR_NODES_MAX];
	affine_find(&affine, pool, pool->count - 1);
	for (int i = 0; i < pool->count; i++)
		depends[i] = depends_on(depends, &pool->node[i]);
	for (int i = 0; i < roots; i++)
		open[root[i]] = true;
	for (int i = pool->count - 1; i >= 0; i--) {
		const struct expr_node *n = &pool->node[i];
		if (!open[i] || !in_cell(depends[i]))
			continue;
		const bool sum_of_two = affine.is[i] || (n->op == EXPR_FLOAT && affine.is[n->arg[0]]);
		const struct cell_cost cost = sum_of_two ? (struct cell_cost){n->type == TYPE_FLOAT ? 1 : integer_ops, 0, 0} : operation_cost(pool, n);
		sum.alu += cost.alu;
		sum.exp += cost.exp;
		sum.smem += cost.smem;
		if (sum_of_two || n->op == EXPR_INPUT)
			continue;
		for (int j = 0; j < expr_args(n); j++)
			open[n->arg[j]] = true;
	}
	return sum;
}

struct cell_cost score_cost(const struct program *p, enum pass pass)
{
	const int roots[] = {p->score, p->score_ds};
	return expressions_cost(p, roots, pass == PASS_BACKWARD ? 2 : 1);
}

struct cell_cost residual_cost(const struct program *p) { return expressions_cost(p, &p->residual, 1); }

void score_cost_add(struct candidate *c, const struct program *p, const struct device *device, enum pass pass)
{
	const struct cell_cost cost = score_cost(p, pass);
	const double cells = (double)c->tile_m * c->tile_n;
	c->cost_us[COST_ALU] += cells * cost.alu / device->alu_clk;
	c->cost_us[COST_EXP] += cells * cost.exp / device->exp_clk;
	c->cost_us[COST_SMEM] += cells * cost.smem / 128;
}
