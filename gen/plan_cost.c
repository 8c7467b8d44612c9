/* plan_cost: what one candidate costs on one problem. The IO analysis of FlashAttention (Dao et al., 2022), with tiles
 * counted exactly, and with the on-chip resources that bound a kernel long before memory does.
 *
 * A pass walks `outer` tiles, one CTA each, and streams the visited `inner` tiles past it: query tiles and keys
 * forward, key tiles and queries backward. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gen/access.h"
#include "gen/model_sm90.h"

enum {
	SMEM_RESERVED = 1024, /* shared memory that the system keeps for itself, per CTA */
	REG_UNIT = 8,         /* registers are allocated per thread in multiples of this */
	ELEMENT = 2,          /* bytes of an operand */
	PARTIAL_OPS = 4,      /* lane operations that test one cell of a partial tile by one run of the mask */
	NARROW_OPS = 3        /* lane operations that load one element when rows are not 16-byte aligned */
};
/* Share of the DRAM bandwidth that a copy reaches: 4.30 of 4.8 TB/s on an H200. */
static const double hbm_reached = 0.9;
/* Share of L2 that a working set may fill and stay resident. */
static const double l2_usable = 0.8;
/* Prologue and epilogue of one CTA that nothing overlaps, clocks of its SM: FlashAttention-2 forward on an H200 loses
 * 300 to 2400 of them, d 64 and 128, sequences of 512 and 1024; short causal sequences of the portable forward the most. Half of
 * the forward's go with the rows that it brings and leaves: for 24 tiles each of four problems of 49 to 512 keys, d 32 and 64, all would, but
 * then long sequences of other GPUs, which nobody timed, would get tiles of few rows. */
static const double cta_clocks = 2400, cta_row_clocks = 1200 / 128.0;
/* Before its first load a portable CTA classifies the tiles that its own may see, one for each thread at a time. 190 instructions and two barriers
 * in the case that was looked at; not fitted. */
static const double scan_clocks = 1500;

/* The longest items of a mask may begin when all else is nearly done: rows that see every key. Such an item is alone on its SM, and what a visit
 * then waits for is not hidden. Longformer and BigBird forward, d 64, 4k: the tiles' median of predicted over measured went from 0.48 and 0.45 to 0.9 and
 * 0.7, their root mean square from 0.10 and 0.27 to 0.05 and 0.11. */
static const double alone_visit = 800;

/* Gradients of inputs visit the tiles once more, for two of the five products. A guess, not fitted. */
static const double grad_share = 0.5;

/* What a visited tile costs beside its cells, clocks of one scheduler and warp: loop control, barriers, row
 * statistics. */
static const double tile_warp_clocks = 40;

/* Clocks of one SM for one visited tile while `together` CTAs share it. The on-chip resources share issue slots and wait
 * for each other, so what does not bound the kernel hides only partly behind what does: a soft maximum
 * (sum of t^p)^(1/p), p = 1 when nothing overlaps. More warps hide more; a second CTA, whose warps wait at other barriers,
 * more than as many warps of the same one; a third as much again, forward alone. Forward fitted to 110 timings of 16 problems on an H200, d 64 to 256,
 * sequences of 512 to 8k: 7.4% root mean square, the tile chosen on average 0.4% and at most 5.6% slower than the best one timed. Backward to 71 timings of
 * 11 problems, d 64 to 256, 1k to 8k, of tiles that take up to 1.35 of the time of the fastest: 5.5%, and the tile chosen was the fastest of each. */
static double tile_clocks(const struct candidate *c, const double clocks[COST_COUNT], double together, enum pass pass)
{
	static const struct {
		double share, ctas, ctas_most, warps;
	} hidden[PASS_COUNT] = {[PASS_FORWARD] = {0.6, 1.1, 3, 0.4}, [PASS_BACKWARD] = {1.4, 0.8, 2, 0.2}};
	const double ctas = pow(fmin(together, hidden[pass].ctas_most), hidden[pass].ctas), warps = pow(c->warps / 4.0, hidden[pass].warps);
	const double portable = 1 + hidden[pass].share * ctas * warps + c->hides_more;
	const double power = c->overlap > 0 ? c->overlap : portable;
	double sum = 0;
	for (int i = COST_MMA; i <= COST_SMEM; i++)
		sum += pow(clocks[i], power);
	const double visit = pow(sum, 1 / power) + c->visit_clocks;
	return c->overlap > 0 ? fmax(visit, c->wait_clocks) : visit + c->wait_clocks / together;
}

void candidate_clocks(struct candidate *c, enum pass pass)
{
	c->overlap = c->hides_more = 0;
	c->visit_clocks = tile_warp_clocks * c->warps / 4;
	c->item_clocks = pass == PASS_FORWARD ? cta_clocks / 2 + c->tile_m * cta_row_clocks : cta_clocks;
}

/* Tiles that are owned, or parts of them, or halves by pairs: CTAs, but for a persistent kernel, whose CTAs own many. */
static double items_count(const struct recipe_kernel *main, const struct recipe_shape *shape)
{
	struct recipe_kernel one = *main;
	if (one.grid == GRID_PERSISTENT || one.grid == GRID_PERSISTENT_2 || one.grid == GRID_PERSISTENT_TAILS)
		one.grid = GRID_QUERY_TILES;
	else if (one.grid == GRID_PERSISTENT_KEYS || one.grid == GRID_PERSISTENT_PAIRS || one.grid == GRID_KEY_TAILS || one.grid == GRID_PERSISTENT_KEY_TAILS)
		one.grid = GRID_KEY_TILES;
	const int each = main->grid == GRID_PERSISTENT_PAIRS ? 2 : one.parts > 0 ? one.parts : 1;
	return (double)recipe_grid_size(&one, shape) * each;
}

static int64_t tiles_of(int64_t length, int64_t tile) { return length / tile + (length % tile != 0); }
static double ceil_div(double a, double b) { return ceil(a / b); }

int candidate_occupancy(struct candidate *c, const struct target *target)
{
	const int threads = 32 * c->warps;
	const int regs = (c->regs + REG_UNIT - 1) / REG_UNIT * REG_UNIT;
	c->ctas_sm = 0;
	if (c->smem_bytes > target->smem_block) {
		snprintf(c->reason, sizeof c->reason, "shared memory: needs %d bytes, a CTA of %s may use %d",
		         c->smem_bytes, target->name, target->smem_block);
		return 0;
	}
	if (c->regs > target->regs_thread) {
		snprintf(c->reason, sizeof c->reason, "registers: needs about %d in each thread, %s has %d", c->regs,
		         target->name, target->regs_thread);
		return 0;
	}
	if (regs * threads > target->regs_sm) {
		snprintf(c->reason, sizeof c->reason, "registers: %d threads of %d need %d, an SM of %s has %d",
		         threads, regs, regs * threads, target->name, target->regs_sm);
		return 0;
	}
	const int by_smem = target->smem_sm / (c->smem_bytes + SMEM_RESERVED);
	const int by_regs = target->regs_sm / (regs * threads > 0 ? regs * threads : 1);
	const int by_threads = target->threads_sm / threads;
	int least = by_smem < by_regs ? by_smem : by_regs;
	least = by_threads < least ? by_threads : least;
	c->ctas_sm = least;
	return least;
}

int launches_count(const struct recipe *recipe, const struct problem *problem, const struct device *device)
{
	const struct recipe_shape shape = problem_shape(problem, device->sms);
	int launches = 0; /* one at least: a plan for nothing takes time too */
	for (int i = 0; i < recipe->kernel_count; i++)
		launches += recipe_grid_size(&recipe->kernel[i], &shape) != 0;
	launches = launches > 0 ? launches : 1;
	bool cleared = false; /* the piece before */
	for (int i = 0; i < recipe->piece_count; i++) {
		const bool clear = recipe_piece_cleared(recipe, i, &shape);
		launches += clear && !cleared;
		cleared = clear;
	}
	return launches;
}

struct traffic {
	double outer, inner, side, accum;
};

/* Bytes of one row. outer: what a CTA loads or stores once for each of its rows or keys; inner: what it streams. */
static struct traffic traffic_rows(const struct spec *spec, enum pass pass)
{
	const double both = (double)ELEMENT * (spec->head_dim_qk + spec->head_dim_v), statistic = 4;
	if (pass == PASS_FORWARD)
		return (struct traffic){.outer = both + ((spec->outputs & OUTPUT_LSE) ? statistic : 0), .inner = both};
	return (struct traffic){.outer = 2 * both, .inner = both + 2 * statistic};
}

static double dim_size(const struct input_dim *dim, const struct problem *p, const struct program *program)
{
	switch (dim->kind) {
	case DIM_BATCH: return (double)p->batch;
	case DIM_HEADS: return (double)p->heads_q;
	case DIM_HEADS_KV: return (double)p->heads_kv;
	case DIM_SEQ_Q: return (double)p->seqlen_q;
	case DIM_SEQ_K: return (double)p->seqlen_k;
	case DIM_BLOCKS_Q: return program->block_q ? ceil_div((double)p->seqlen_q, program->block_q) : 1;
	case DIM_BLOCKS_K: return program->block_k ? ceil_div((double)p->seqlen_k, program->block_k) : 1;
	default: return (double)dim->size;
	}
}

/* What inputs with a value for each cell or diagonal move: for each visited tile between L2 and an SM, and from memory in
 * all. The others are small. */
struct input_traffic {
	double tile_bytes, hbm_bytes, grad_bytes;
};

static struct input_traffic input_traffic(const struct candidate *c, const struct spec *spec,
                                          const struct program *program, const struct problem *problem)
{
	struct input_traffic sum = {0, 0, 0};
	for (int i = 0; i < program->access_count; i++) {
		const struct access *a = &program->access[i];
		const struct input *input = &spec->input[a->input];
		double elements = 1;
		if (a->place == AT_DIAG)
			sum.tile_bytes += (double)(c->tile_m + c->tile_n) * input_bytes[input->dtype];
		if (a->place != AT_CELL)
			continue;
		sum.tile_bytes += (double)c->tile_m * c->tile_n * input_bytes[input->dtype];
		for (int d = 0; d < input->dims; d++)
			elements *= dim_size(&input->dim[d], problem, program);
		sum.hbm_bytes += elements * c->visited * input_bytes[input->dtype];
		sum.grad_bytes += a->grad >= 0 ? 2 * 4 * elements : 0; /* cleared, then written */
	}
	return sum;
}

/* -1: the grid of some kernel is too large. */
static int64_t ctas_count(const struct recipe *recipe, const struct recipe_kernel *main,
                          const struct recipe_shape *shape)
{
	for (int i = 0; i < recipe->kernel_count; i++)
		if (recipe_grid_size(&recipe->kernel[i], shape) < 0)
			return -1;
	return recipe_grid_size(main, shape);
}

/* What fagen_input_grad takes beside its products, a CTA for each query tile, as many on an SM as there is shared memory and registers for. */
static double grads_us(const struct candidate *c, const struct plan *plan, const struct recipe *recipe, const struct recipe_shape *shape, double tiles)
{
	const struct recipe_kernel *kernel = recipe_kernel_find(recipe, "fagen_input_grad");
	const double ctas = (double)recipe_grid_size(kernel, shape), sms = fmin(ctas, plan->device->sms);
	struct candidate own = *c;
	own.smem_bytes = kernel->smem_bytes;
	const double together = fmax(fmin(candidate_occupancy(&own, plan->target), ceil(ctas / sms)), 1);
	return tiles * (c->grad_clocks + c->grad_wait / together) / (sms * plan->device->clock_ghz * 1e3);
}

void candidate_cost(struct candidate *c, const struct template_model *model, const struct spec *spec,
                    const struct program *program, const struct visits *visits, const struct plan *plan,
                    const struct recipe *recipe)
{
	const struct recipe_kernel *main = recipe_kernel_find(recipe, model->main);
	const struct problem *problem = &plan->problem;
	const struct device *device = plan->device;
	const struct recipe_shape shape = problem_shape(problem, device->sms);
	const struct walk walk = walk_make(c->positions, c->tile_n, problem, plan->pass);
	const double heads_q = (double)problem->heads_q * (double)problem->batch;
	const double heads_kv = (double)problem->heads_kv * (double)problem->batch;
	const double group = (double)problem->heads_q / (double)problem->heads_kv;
	const double all_cells = (double)problem->seqlen_q * (double)problem->seqlen_k;
	const double tile_cells = (double)c->tile_m * c->tile_n;
	const double clock = device->clock_ghz * 1e3; /* per microsecond */
	double clocks[COST_COUNT];
	memcpy(clocks, c->cost_us, sizeof clocks);

	c->ctas = ctas_count(recipe, main, &shape);
	const double items = items_count(main, &shape);
	c->waves = items / ((double)c->ctas_sm * device->sms);
	c->visited = all_cells > 0 ? visits->cells / all_cells : 0;
	const double tiles = visits->tiles * heads_q / c->heads;
	const double flop_cell = plan->pass == PASS_FORWARD ? 2.0 * (spec->head_dim_qk + spec->head_dim_v)
	                                                    : 6.0 * spec->head_dim_qk + 4.0 * spec->head_dim_v;
	const struct recipe_kernel *const query = recipe_kernel_find(recipe, "fagen_backward_query"); /* makes S and dP once more */
	c->mma_flop = tiles * tile_cells * (flop_cell + (query ? 2.0 * (spec->head_dim_qk + spec->head_dim_v) : 0));
	c->exps = tiles * tile_cells * (query ? 2 : 1);

	/* Traffic between the SMs and L2: every CTA loads its own side once, and streams what it visits. */
	const struct traffic row = traffic_rows(spec, plan->pass);
	const double outer_heads = walk.keys_inside || main->grid == GRID_KEY_TILES_Q ? heads_q : heads_kv;
	const double inner_heads = walk.keys_inside ? heads_kv : heads_q;
	const double outer_bytes = row.outer * (double)walk.outer_len * outer_heads;
	double accum_row = 0, side_bytes = 0, added_bytes = 0, again_bytes = 0; /* of Q, or K and V, which every part loads */
	for (int i = 0; i < recipe->piece_count; i++) {
		const struct recipe_piece *piece = &recipe->piece[i];
		const double bytes = (double)recipe_piece_bytes(piece, &shape);
		if (piece->size == SIZE_ROWS_QK && plan->pass == PASS_FORWARD) { /* parts, of the rows that there are */
			const double rows = heads_q * (double)problem->seqlen_q;
			side_bytes += 2 * 4.0 * piece->unit * rows;
			again_bytes = (c->splits - 1) * (double)ELEMENT * spec->head_dim_qk * rows;
			continue;
		}
		if (piece->size == SIZE_TILES_KV) { /* parts of the backward */
			side_bytes += 2 * bytes;
			again_bytes = (c->splits - 1) * outer_bytes / 2;
			continue;
		}
		/* Sums as wide as a query row are cleared if need be, added to, left in memory by the main kernel and read by
		 * another; it reads them too, to add to them, where L2 has not kept them. Statistics are written by another kernel
		 * and streamed by the main one. */
		const bool sums = piece->size == SIZE_ROWS_QK && piece->unit >= spec->head_dim_qk;
		accum_row += sums ? 4.0 * piece->unit : 0;
		side_bytes += bytes * (sums ? 2 + (c->sums == DQUERY_CLEARED) : 1 + piece->zeroed);
		added_bytes += sums && bytes > l2_usable * device->l2_mib * 1048576 ? bytes : 0;
	}
	if (plan->pass == PASS_BACKWARD) /* D = rowsum(dO * O) reads both, and dQ is written at the end */
		side_bytes +=
			heads_q * (double)problem->seqlen_q * ELEMENT * (2.0 * spec->head_dim_v + spec->head_dim_qk);
	const struct input_traffic inputs = input_traffic(c, spec, program, problem);
	side_bytes += c->input_grads ? inputs.grad_bytes : 0;
	const double both = (double)ELEMENT * (spec->head_dim_qk + spec->head_dim_v);
	if (query) /* Q, K, V and dO; K and V of a tile are streamed for as many rows as a CTA of that kernel owns */
		side_bytes += both * (heads_q * (double)problem->seqlen_q + heads_kv * (double)problem->seqlen_k);
	const double query_share = query ? (double)c->tile_m / query->tile : 0;
	c->l2_bytes = query_share * tiles * c->tile_n * both + outer_bytes +
	              tiles * (walk.inner_tile * (row.inner + accum_row) + inputs.tile_bytes) + side_bytes + again_bytes;

	/* Traffic between L2 and DRAM: the streamed side is read once while the heads in flight fit L2, else once for
	 * every wave of CTAs that passes over it. */
	const double resident = (double)c->ctas_sm * device->sms;
	const double ctas_inner = items > 0 ? items / (inner_heads > 0 ? inner_heads : 1) : 1;
	const double inner_head_bytes = row.inner * (double)walk.inner_len;
	double active = ceil_div(resident, ctas_inner > 1 ? ctas_inner : 1);
	active = active < inner_heads ? active : inner_heads;
	const bool fits = active * inner_head_bytes <= l2_usable * device->l2_mib * 1048576;
	double passes = fits ? 1 : ceil_div(ctas_inner / c->splits, resident) * c->visited;
	passes = passes > 1 ? passes : 1;
	double main_bytes = outer_bytes + inner_heads * inner_head_bytes * passes;
	if ((c->queue || !c->alike) && spec->layout == LAYOUT_DENSE) {
		const double streamed = (double)walk.inner_len * (row.inner + accum_row) * (walk.keys_inside ? 1 : group);
		const double owned = (double)tiles_of(walk.outer_len, walk.outer_tile) * (walk.keys_inside ? group / c->heads : 1);
		main_bytes += section_again_bytes(c, device, plan->pass, heads_kv, streamed, owned);
	}
	c->hbm_bytes = main_bytes + side_bytes + added_bytes + inputs.hbm_bytes;

	/* Time. A CTA that is alone on its SM has fewer warps to hide behind; the last wave leaves SMs idle, fewer where its items are cut. */
	const struct recipe_cut cut = recipe_kernel_cut(main, &shape);
	const double all_cut = cut.parts > 0 && cut.first == 0 ? (double)cut.parts : 1;
	const double per_sm = items * all_cut / device->sms;
	double filled = ceil(per_sm);
	if (cut.parts > 0 && cut.first > 0)
		filled = ((double)cut.first + ceil_div((items - (double)cut.first) * (double)cut.parts, resident) * resident / (double)cut.parts) / device->sms;
	const double together = per_sm < c->ctas_sm ? fmax(ceil(per_sm), 1) : c->ctas_sm;
	const double busy_sms = fmin(items * all_cut, device->sms);
	const struct cell_cost test = residual_cost(program);
	const double partial_cells = tiles > 0 ? visits->partial / visits->tiles * tile_cells : 0;
	clocks[COST_ALU] += partial_cells * (program->run_count * PARTIAL_OPS + test.alu) / device->alu_clk;
	clocks[COST_EXP] += partial_cells * test.exp / device->exp_clk;
	clocks[COST_SMEM] += partial_cells * test.smem / 128;
	const bool narrow = problem->align < 16;
	if (narrow)
		clocks[COST_ALU] +=
			(double)walk.inner_tile * (spec->head_dim_qk + spec->head_dim_v) * NARROW_OPS / device->alu_clk;
	for (int i = COST_MMA; i <= COST_SMEM; i++)
		c->cost_us[i] = tiles * clocks[i] / (device->sms * clock);
	double on_chip = tiles * tile_clocks(c, clocks, together, plan->pass) / (device->sms * clock);
	const double share = main->grid == GRID_PERSISTENT_PAIRS ? 0.5 : 1; /* of a tile, that a CTA computes */
	const double group_visits = outer_heads < heads_q ? group : 1; /* of a tile's visits, backward */
	const double cta_tiles = ceil_div(ceil(visits->most) * group_visits, c->splits * all_cut) * share;
	/* Ordered sums want those with few rows to see first. */
	const double last = c->sums == DQUERY_ORDERED ? visits->most : visits->last;
	const double last_tiles = ceil_div(ceil(last) * group_visits, c->splits * all_cut) * share;
	if (tiles > 0) {
		const double evenness = tiles / (items * all_cut) / cta_tiles; /* 1: all CTAs do the same work */
		const double longest = on_chip * device->sms * cta_tiles / tiles;
		const double last_begins = on_chip * fmax(1 - 1 / c->waves, 0);
		on_chip *= 1 + (filled / per_sm - 1) * (evenness < 1 ? evenness : 1);
		on_chip = on_chip > longest ? on_chip : longest;
		if (last_tiles > ceil(tiles / (items * all_cut)))
			on_chip = fmax(on_chip, last_begins + last_tiles * (tile_clocks(c, clocks, 1, plan->pass) + alone_visit) / clock);
	}
	c->cost_us[COST_L2] = busy_sms > 0 ? c->l2_bytes / (device->l2_gbs * 1e3 * busy_sms / device->sms) : 0;
	c->cost_us[COST_HBM] = c->hbm_bytes / (device->hbm_gbs * 1e3 * hbm_reached);
	const double side_us = side_bytes / (device->hbm_gbs * 1e3 * hbm_reached);
	double main_us = on_chip;
	c->bound_by = COST_MMA;
	for (int i = COST_MMA; i <= COST_SMEM; i++)
		if (c->cost_us[i] > c->cost_us[c->bound_by])
			c->bound_by = i;
	if (c->cost_us[COST_L2] > main_us) {
		main_us = c->cost_us[COST_L2];
		c->bound_by = COST_L2;
	}
	const double scans = c->overlap == 0 && program->scan ? ceil((double)walk.inner_len / walk.inner_tile / (32 * c->walk_warps)) : 0;
	const double ends_us = ceil(per_sm) * (c->item_clocks + scans * scan_clocks / together) / clock;
	const double hidden_us = c->overlap > 0 ? ends_us : 0; /* who never stops loading loads under the ends of items too */
	if (c->cost_us[COST_HBM] - side_us > main_us + hidden_us) {
		main_us = c->cost_us[COST_HBM] - side_us - hidden_us;
		c->bound_by = COST_HBM;
	}
	if (c->input_grads)
		main_us += grad_share * on_chip + grads_us(c, plan, recipe, &shape, tiles);
	c->time_us = main_us + side_us + ends_us + launches_count(recipe, problem, device) * device->launch_us;
}

/* The naive kernels visit every tile, keep the scores in memory and overlap nothing: three kernels forward, one after
 * another. */
void candidate_cost_naive(struct candidate *c, const struct spec *spec, const struct plan *plan,
                          const struct recipe *recipe)
{
	const struct problem *problem = &plan->problem;
	const struct device *device = plan->device;
	const struct recipe_shape shape = problem_shape(problem, device->sms);
	const double heads = (double)problem->heads_q * (double)problem->batch;
	const double tiles =
		heads * (double)tiles_of(problem->seqlen_q, c->tile_m) * (double)tiles_of(problem->seqlen_k, c->tile_n);
	c->ctas = 0;
	for (int i = 0; i < recipe->kernel_count; i++) {
		const int64_t ctas = recipe_grid_size(&recipe->kernel[i], &shape);
		if (ctas < 0 || c->ctas < 0)
			c->ctas = -1;
		else
			c->ctas = ctas > c->ctas ? ctas : c->ctas;
	}
	c->waves = (double)c->ctas / ((double)c->ctas_sm * device->sms);
	c->visited = 1;
	c->exps = heads * (double)problem->seqlen_q * (double)problem->seqlen_k;
	c->mma_flop = tiles * c->tile_m * c->tile_n *
	              (plan->pass == PASS_FORWARD ? 2.0 * (spec->head_dim_qk + spec->head_dim_v)
	                                          : 6.0 * spec->head_dim_qk + 4.0 * spec->head_dim_v);
	c->hbm_bytes = c->l2_bytes = plan->standard_bytes;
	c->time_us = recipe->kernel_count * device->launch_us;
	c->bound_by = COST_MMA;
	for (int i = COST_MMA; i <= COST_SMEM; i++) {
		c->cost_us[i] *= tiles / (device->sms * device->clock_ghz * 1e3);
		c->time_us += c->cost_us[i];
	}
	c->cost_us[COST_L2] = c->l2_bytes / (device->l2_gbs * 1e3);
	c->cost_us[COST_HBM] = c->hbm_bytes / (device->hbm_gbs * 1e3 * hbm_reached);
	c->time_us += c->cost_us[COST_HBM];
	for (int i = 0; i < COST_COUNT; i++)
		if (c->cost_us[i] > c->cost_us[c->bound_by])
			c->bound_by = i;
}

/* Standard attention keeps a float32 score matrix in memory. Forward: written, read and written by the softmax, read
 * again. Backward: P is recomputed and written, read to make dS, which is written; dQ reads dS, dK and dV read both. */
double standard_bytes(const struct spec *spec, const struct problem *problem, enum pass pass)
{
	const double rows_q = (double)problem->batch * (double)problem->heads_q * (double)problem->seqlen_q;
	const double rows_k = (double)problem->batch * (double)problem->heads_kv * (double)problem->seqlen_k;
	const double both = (double)ELEMENT * (spec->head_dim_qk + spec->head_dim_v);
	const double scores = 4 * rows_q * (double)problem->seqlen_k;
	if (pass == PASS_FORWARD)
		return 4 * scores + rows_q * both + rows_k * both;
	return 6 * scores + 2 * rows_q * both + 2 * rows_k * both;
}
