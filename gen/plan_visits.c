/* plan_visits: the tiles of one head that a kernel visits. Where the runs of the mask say all they are counted in closed
 * form, else a sample of them is classified; a program's classifier is the host's reading of what the kernel decides. */
#include <math.h>
#include <stdlib.h>

#include "gen/lower.h"
#include "gen/model.h"

enum {
	SAMPLES = 1024,     /* outer tiles looked at in one head; longer sequences are sampled evenly */
	SCAN_OUTER_MIN = 8, /* the same, at the least, where tiles are classified one by one */
	SCAN_INNER_MIN = 4
};

struct walk walk_make(int tile_m, int tile_n, const struct problem *problem, enum pass pass)
{
	if (pass == PASS_FORWARD)
		return (struct walk){problem->seqlen_q, problem->seqlen_k, tile_m, tile_n, true};
	return (struct walk){problem->seqlen_k, problem->seqlen_q, tile_n, tile_m, false};
}

static int64_t tiles_of(int64_t length, int64_t tile) { return length / tile + (length % tile != 0); }

/* ---- unions of runs ---- */

struct span {
	int64_t begin, end;
};
struct spans {
	int count;
	struct span span[RUNS_MAX];
};

static int span_order(const void *x, const void *y)
{
	const struct span *a = x, *b = y;
	return (a->begin > b->begin) - (a->begin < b->begin);
}

static void spans_add(struct spans *s, int64_t begin, int64_t end)
{
	if (begin < end)
		s->span[s->count++] = (struct span){begin, end};
}

/* Sorted, none touching another. */
static void spans_merge(struct spans *s)
{
	int kept = 0;
	qsort(s->span, (size_t)s->count, sizeof *s->span, span_order);
	for (int i = 0; i < s->count; i++) {
		struct span *last = kept ? &s->span[kept - 1] : NULL;
		if (last && s->span[i].begin <= last->end)
			last->end = s->span[i].end > last->end ? s->span[i].end : last->end;
		else
			s->span[kept++] = s->span[i];
	}
	s->count = kept;
}

static int64_t spans_size(const struct spans *s)
{
	int64_t sum = 0;
	for (int i = 0; i < s->count; i++)
		sum += s->span[i].end - s->span[i].begin;
	return sum;
}

/* Number `i` of the members. */
static int64_t spans_member(const struct spans *s, int64_t i)
{
	for (int j = 0; j < s->count; j++) {
		const int64_t size = s->span[j].end - s->span[j].begin;
		if (i < size)
			return s->span[j].begin + i;
		i -= size;
	}
	return -1;
}

/* ---- one outer tile ---- */

struct stream {
	int64_t first, last;     /* its positions */
	struct spans seen, full; /* inner tiles that some run sees, and that some run leaves whole */
};

static void stream_make(struct stream *s, const struct walk *w, const struct reach *reach, int runs, int64_t tile)
{
	const int64_t sq = w->keys_inside ? w->outer_len : w->inner_len,
		      sk = w->keys_inside ? w->inner_len : w->outer_len;
	s->seen.count = s->full.count = 0;
	s->first = tile * w->outer_tile;
	s->last = (s->first + w->outer_tile < w->outer_len ? s->first + w->outer_tile : w->outer_len) - 1;
	for (int i = 0; i < runs; i++) {
		const struct range r = reach_range(&reach[i], sq, sk, s->first, s->last, w->inner_len);
		if (r.begin >= r.end)
			continue;
		const int64_t first = r.begin / w->inner_tile, end = (r.end - 1) / w->inner_tile + 1;
		const int64_t full_first = tiles_of(r.full_begin, w->inner_tile), full_end = r.full_end / w->inner_tile;
		spans_add(&s->seen, first, end);
		spans_add(&s->full, full_first > first ? full_first : first, full_end < end ? full_end : end);
	}
	spans_merge(&s->seen);
	spans_merge(&s->full);
}

static bool spans_hold(const struct spans *s, int64_t member)
{
	for (int i = 0; i < s->count; i++)
		if (member >= s->span[i].begin && member < s->span[i].end)
			return true;
	return false;
}

/* Cells of inner tiles [first, end) that lie inside the length. */
static double cells_of(const struct walk *w, const struct stream *s, int64_t first, int64_t end)
{
	const int64_t until = end * w->inner_tile < w->inner_len ? end * w->inner_tile : w->inner_len;
	return (double)(until - first * w->inner_tile) * (double)(s->last + 1 - s->first);
}

/* Kernels begin with a head's last query tile, or with its first key tile; of samples the outermost one stands for the end. */
static bool begins_last(const struct walk *w, const struct stream *s) { return !w->keys_inside || s->first == 0; }

static void stream_count(struct visits *sum, const struct walk *w, const struct stream *s)
{
	const double tiles = (double)spans_size(&s->seen);
	sum->tiles += tiles;
	sum->partial += tiles - (double)spans_size(&s->full);
	sum->most = tiles > sum->most ? tiles : sum->most;
	sum->last = begins_last(w, s) ? tiles : sum->last;
	for (int i = 0; i < s->seen.count; i++)
		sum->cells += cells_of(w, s, s->seen.span[i].begin, s->seen.span[i].end);
}

/* A fixed sequence of numbers in [0, 1): samples are spread unevenly so that no period of the mask is met. */
static double spread(int64_t i) { return (double)((uint64_t)i * 2654435769u % 65536) / 65536; }

/* Of a layout that is given at launch this many blocks are taken to be kept. */
static const double kept_at_launch = 0.25;

/* Blocks that a tile lies in, on one side and in the mean. */
static double blocks_met(int tile, int block)
{
	int common = tile;
	while (tile % common != 0 || block % common != 0)
		common--;
	return (double)(tile + block - common) / block;
}

/* How likely a tile is to meet a kept block of such a layout; else 1. */
static double layout_chance(const struct walk *w, const struct program *p)
{
	if (p->blocks != BLOCKS_BITMAP && p->blocks != BLOCKS_LISTS)
		return 1;
	const int tile_q = w->keys_inside ? w->outer_tile : w->inner_tile, tile_k = w->keys_inside ? w->inner_tile : w->outer_tile;
	return 1 - pow(1 - kept_at_launch, blocks_met(tile_q, p->block_q) * blocks_met(tile_k, p->block_k));
}

/* The same where each tile has to be asked: `inner` of them. */
static void stream_sample(struct visits *sum, const struct walk *w, const struct stream *s, const struct classifier *c,
                          int64_t inner, int64_t number)
{
	const int64_t tiles = spans_size(&s->seen), asked = tiles < inner ? tiles : inner;
	const double chance = layout_chance(w, c->program), kept = chance < 1 ? kept_at_launch : 1;
	double seen = 0;
	for (int64_t i = 0; i < asked; i++) {
		const double part = spread(number * 31 + i);
		const int64_t tile = spans_member(
			&s->seen, (int64_t)(((double)i + (asked < tiles ? part : 0)) * (double)tiles / (double)asked));
		const int64_t i0 = tile * w->inner_tile,
			      i1 = i0 + w->inner_tile < w->inner_len ? i0 + w->inner_tile : w->inner_len;
		const enum tile_class class = w->keys_inside ? classifier_rest(c, s->first, s->last + 1, i0, i1)
		                                             : classifier_rest(c, i0, i1, s->first, s->last + 1);
		const double all = (double)tiles / (double)asked, weight = all * chance;
		if (class == TILE_EMPTY)
			continue;
		seen += weight;
		sum->partial += class == TILE_FULL && spans_hold(&s->full, tile) ? 0 : weight;
		sum->cells += all * kept * cells_of(w, s, tile, tile + 1);
	}
	sum->tiles += seen;
	sum->most = seen > sum->most ? seen : sum->most;
	sum->last = begins_last(w, s) ? seen : sum->last;
}

/* ---- one head ---- */

/* What it costs to classify one tile, in nodes of expressions. */
static double class_cost(const struct classifier *c, const struct walk *w)
{
	const struct program *p = c->program;
	const int tile_q = w->keys_inside ? w->outer_tile : w->inner_tile,
		  tile_k = w->keys_inside ? w->inner_tile : w->outer_tile;
	double cost = c->residual_root >= 0 ? 10 + c->residual.count : 1.2;
	if (p->blocks == BLOCKS_KEEP || p->blocks == BLOCKS_ROWS) {
		const double blocks = (tile_q / p->block_q + 1.0) * (tile_k / p->block_k + 1.0);
		cost += blocks * (c->map_rows || p->blocks == BLOCKS_ROWS ? 0.1 : 10 + c->keep.count);
	}
	return cost;
}

/* Tiles to look at: `outer` of all, and `inner` of those that each sees; the same share of both when not all. */
static void samples_choose(int64_t *outer, int64_t *inner, const struct walk *w, const struct classifier *c)
{
	*outer = w->inner_len > 0 ? tiles_of(w->outer_len, w->outer_tile) : 0;
	*inner = tiles_of(w->inner_len, w->inner_tile);
	if (!c->program->scan) {
		*outer = *outer < SAMPLES ? *outer : SAMPLES;
		return;
	}
	const double all = (double)*outer * (double)*inner,
		     share = sqrt(c->cost_most / class_cost(c, w) / (all > 1 ? all : 1));
	if (share >= 1)
		return;
	const int64_t least = *outer < SCAN_OUTER_MIN ? *outer : SCAN_OUTER_MIN;
	*outer = (int64_t)((double)*outer * share);
	*outer = *outer > least ? *outer : least;
	*inner = (int64_t)(all * share * share / (double)(*outer > 0 ? *outer : 1));
	*inner = *inner > SCAN_INNER_MIN ? *inner : SCAN_INNER_MIN;
}

static struct visits walk_count(const struct walk *w, struct classifier *c, int64_t heads)
{
	const struct program *p = c->program;
	struct visits sum = {0};
	struct reach reach[RUNS_MAX];
	const int64_t outer = w->inner_len > 0 ? tiles_of(w->outer_len, w->outer_tile) : 0;
	int64_t samples, inner;
	samples_choose(&samples, &inner, w, c);
	if (expr_is_const(&p->pool, p->residual, false))
		return sum;
	for (int i = 0; i < p->run_count; i++)
		w->keys_inside ? reach_keys(&reach[i], &p->run[i]) : reach_rows(&reach[i], &p->run[i]);
	for (int64_t s = 0; s < samples; s++) {
		const double part = p->scan ? spread(s) : 0.5;
		const int64_t tile =
			samples == outer ? s : (int64_t)(((double)s + part) * ((double)outer / (double)samples));
		struct stream stream;
		stream_make(&stream, w, reach, p->run_count, tile);
		if (!p->scan) {
			stream_count(&sum, w, &stream);
			continue;
		}
		c->heads = (struct interval){s % heads, s % heads};
		stream_sample(&sum, w, &stream, c, inner, s);
	}
	if (samples > 0 && samples != outer) {
		const double scale = (double)outer / (double)samples;
		sum.tiles *= scale;
		sum.partial *= scale;
		sum.cells *= scale;
	}
	return sum;
}

void visits_count(struct visits *visits, struct classifier *classifier, const struct problem *problem, enum pass pass)
{
	const int tile_m = visits->tile_m, tile_n = visits->tile_n;
	const struct walk walk = walk_make(tile_m, tile_n, problem, pass);
	*visits = walk_count(&walk, classifier, problem->heads_q);
	visits->tile_m = tile_m;
	visits->tile_n = tile_n;
}

/* Cells of a row's spans of keys that lie in kept blocks. */
static double cells_kept(const struct classifier *c, const struct spans *seen, int64_t row)
{
	const int64_t size = c->program->block_k;
	const bool *kept = c->map + row / c->program->block_q * c->map_columns;
	int64_t cells = 0;
	for (int i = 0; i < seen->count; i++)
		for (int64_t k = seen->span[i].begin; k < seen->span[i].end;) {
			const int64_t next = (k / size + 1) * size,
				      end = next < seen->span[i].end ? next : seen->span[i].end;
			cells += kept[k / size] ? end - k : 0;
			k = end;
		}
	return (double)cells;
}

double visible_cells(struct classifier *classifier, const struct problem *problem)
{
	/* The visible keys of single rows: tiles of one row and one key. */
	const struct walk walk = {problem->seqlen_q, problem->seqlen_k, 1, 1, true};
	const double heads = (double)problem->heads_q * (double)problem->batch;
	if (!classifier->map_rows || classifier->residual_root >= 0)
		return walk_count(&walk, classifier, problem->heads_q).cells * heads;
	double cells = 0;
	const int64_t samples = walk.outer_len < SAMPLES ? walk.outer_len : SAMPLES;
	for (int64_t s = 0; s < samples; s++) {
		const int64_t row = (int64_t)(((double)s + 0.5) * ((double)walk.outer_len / (double)samples));
		struct stream stream;
		stream_make(&stream, &walk, classifier->reach, classifier->program->run_count, row);
		cells += cells_kept(classifier, &stream.seen, row);
	}
	return samples > 0 ? cells * heads * (double)walk.outer_len / (double)samples : 0;
}
