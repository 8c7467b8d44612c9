/* lower_class: classes of tiles, on the host: by the runs, by interval analysis of the residual, and by the block
 * layout. */
#include "gen/lower.h"
#include "gen/range.h"

#include <string.h>

/* Layout blocks looked at one by one in a tile; a tile of more is undecided when they are not all alike. */
enum { BLOCKS_SEEN_MAX = 1024 };
/* Nodes worked out for a map: about 1 ms. */
enum { MAP_NODES = 120000 };

static int alone(struct expr_pool *to, const struct expr_pool *from, int root)
{
	to->count = 0;
	return from->node[root].op == EXPR_CONST ? -1 : expr_copy(to, from, root);
}

void classifier_begin(struct classifier *c, const struct program *p, const struct spec *spec, int64_t sq, int64_t sk)
{
	c->program = p;
	c->spec = spec;
	c->sq = sq;
	c->sk = sk;
	c->heads = expr_everywhere[NAME_H];
	c->map_rows = c->map_columns = 0;
	c->residual_root = alone(&c->residual, &p->pool, p->residual);
	c->keep_root = p->blocks == BLOCKS_KEEP ? alone(&c->keep, &p->pool, p->block_keep) : -1;
	for (int i = 0; i < p->run_count; i++)
		reach_keys(&c->reach[i], &p->run[i]);
}

static enum tile_class combine(enum tile_class a, enum tile_class b)
{
	if (a == TILE_EMPTY || b == TILE_EMPTY)
		return TILE_EMPTY;
	return a == TILE_FULL ? b : TILE_PARTIAL;
}

static enum tile_class class_of(struct interval visible)
{
	return visible.lo ? TILE_FULL : visible.hi ? TILE_PARTIAL : TILE_EMPTY;
}

/* Cells [q0, q1] x [k0, k1] of a grid of sq x sk. */
static enum tile_class expression_class(const struct classifier *c, const struct expr_pool *pool, int root, int64_t sq,
                                        int64_t sk, int64_t q0, int64_t q1, int64_t k0, int64_t k1)
{
	struct interval name[NAME_COUNT];
	memcpy(name, expr_everywhere, sizeof name);
	name[NAME_SQ] = (struct interval){sq, sq};
	name[NAME_SK] = (struct interval){sk, sk};
	name[NAME_Q] = (struct interval){q0, q1};
	name[NAME_K] = (struct interval){k0, k1};
	name[NAME_H] = c->heads;
	return class_of(expr_interval_all(pool, root, name, c->spec ? c->spec->input : NULL));
}

static bool row_kept(const struct spec *spec, int64_t q, int64_t k)
{
	return q < spec->blocks.rows && k < spec->blocks.columns && spec->block_rows[q][k / 64] >> (k % 64) & 1;
}

static enum tile_class block_class(const struct classifier *c, int64_t rows, int64_t columns, int64_t q, int64_t k)
{
	if (c->map_rows)
		return c->map[q * c->map_columns + k] ? TILE_FULL : TILE_EMPTY;
	if (c->program->blocks == BLOCKS_KEEP)
		return expression_class(c, &c->keep, c->keep_root, rows, columns, q, q, k, k);
	return row_kept(c->spec, q, k) ? TILE_FULL : TILE_EMPTY;
}

void classifier_map(struct classifier *c, int64_t head)
{
	const struct program *p = c->program;
	if ((p->blocks != BLOCKS_KEEP && p->blocks != BLOCKS_ROWS) || c->sq < 1 || c->sk < 1)
		return;
	const int64_t rows = (c->sq - 1) / p->block_q + 1, columns = (c->sk - 1) / p->block_k + 1;
	const int nodes = p->blocks == BLOCKS_KEEP ? c->keep.count : 0;
	if (rows > BLOCK_MAP_MAX / columns || rows * columns * nodes > MAP_NODES)
		return;
	for (int64_t q = 0; q < rows; q++)
		for (int64_t k = 0; k < columns; k++) {
			const int64_t name[NAME_COUNT] = {
				[NAME_H] = head,     [NAME_Q] = q,         [NAME_K] = k, [NAME_SQ] = rows,
				[NAME_SK] = columns, [NAME_HQ] = head + 1, [NAME_HK] = 1};
			c->map[q * columns + k] = nodes ? expr_eval_all(&c->keep, c->keep_root, name).i != 0
			                                : row_kept(c->spec, q, k);
		}
	c->map_rows = rows;
	c->map_columns = columns;
}

static enum tile_class blocks_class(const struct classifier *c, int64_t q0, int64_t q1, int64_t k0, int64_t k1)
{
	const struct program *p = c->program;
	if (p->blocks == BLOCKS_NONE)
		return TILE_FULL;
	if (p->blocks == BLOCKS_BITMAP || p->blocks == BLOCKS_LISTS)
		return TILE_PARTIAL;
	const int64_t rows = (c->sq - 1) / p->block_q + 1, columns = (c->sk - 1) / p->block_k + 1;
	const int64_t q_first = q0 / p->block_q, q_last = (q1 - 1) / p->block_q;
	const int64_t k_first = k0 / p->block_k, k_last = (k1 - 1) / p->block_k;
	if (p->blocks == BLOCKS_KEEP && !c->map_rows) {
		const enum tile_class all =
			expression_class(c, &c->keep, c->keep_root, rows, columns, q_first, q_last, k_first, k_last);
		if (all != TILE_PARTIAL)
			return all;
	}
	if ((q_last - q_first + 1) > BLOCKS_SEEN_MAX / (k_last - k_first + 1))
		return TILE_PARTIAL;
	bool any = false, all = true;
	for (int64_t q = q_first; q <= q_last; q++)
		for (int64_t k = k_first; k <= k_last; k++) {
			const enum tile_class block = block_class(c, rows, columns, q, k);
			any = any || block != TILE_EMPTY;
			all = all && block == TILE_FULL;
		}
	return all ? TILE_FULL : any ? TILE_PARTIAL : TILE_EMPTY;
}

enum tile_class classifier_rest(const struct classifier *c, int64_t q0, int64_t q1, int64_t k0, int64_t k1)
{
	enum tile_class rest = TILE_FULL;
	if (c->residual_root >= 0)
		rest = expression_class(c, &c->residual, c->residual_root, c->sq, c->sk, q0, q1 - 1, k0, k1 - 1);
	else if (expr_is_const(&c->program->pool, c->program->residual, false))
		rest = TILE_EMPTY;
	return rest == TILE_EMPTY ? rest : combine(rest, blocks_class(c, q0, q1, k0, k1));
}

static enum tile_class runs_class(const struct classifier *c, int64_t q0, int64_t q1, int64_t k0, int64_t k1)
{
	enum tile_class class = TILE_EMPTY;
	for (int i = 0; i < c->program->run_count; i++) {
		const struct range keys = reach_range(&c->reach[i], c->sq, c->sk, q0, q1 - 1, c->sk);
		if (keys.full_begin <= k0 && k1 <= keys.full_end)
			return TILE_FULL;
		if (k0 < keys.end && keys.begin < k1)
			class = TILE_PARTIAL;
	}
	return class;
}

enum tile_class classifier_tile(const struct classifier *c, int64_t q0, int64_t q1, int64_t k0, int64_t k1)
{
	const bool inside = q0 >= 0 && k0 >= 0 && q1 <= c->sq && k1 <= c->sk;
	q0 = q0 < 0 ? 0 : q0;
	k0 = k0 < 0 ? 0 : k0;
	q1 = q1 < c->sq ? q1 : c->sq;
	k1 = k1 < c->sk ? k1 : c->sk;
	if (q0 >= q1 || k0 >= k1)
		return TILE_EMPTY;
	const enum tile_class runs = runs_class(c, q0, q1, k0, k1);
	if (runs == TILE_EMPTY)
		return TILE_EMPTY;
	return combine(combine(runs, classifier_rest(c, q0, q1, k0, k1)), inside ? TILE_FULL : TILE_PARTIAL);
}

enum tile_class program_tile_class(const struct program *p, const struct spec *spec, int64_t sq, int64_t sk, int64_t q0,
                                   int64_t q1, int64_t k0, int64_t k1)
{
	struct classifier c;
	classifier_begin(&c, p, spec, sq, sk);
	return classifier_tile(&c, q0, q1, k0, k1);
}
