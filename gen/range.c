/* range: the bounds of a run projected on one axis.
 *
 * A bound relates a row and a key. For the keys seen from a tile of rows, the row is eliminated: a bound that grows with
 * the row is taken together with each one that shrinks with it (the tile's own ends, first <= q <= last, are two more
 * bounds) and their sum no longer has a row in it. Since the row's coefficient is 1 or -1 the sums are exact over the
 * integers (Fourier and Motzkin's elimination), so the keys are one interval, no wider than what is seen. */
#include "gen/range.h"

#include "gen/expr.h"

__extension__ typedef __int128 wide;

/* Least value over 0 <= first <= last < tile length, 0 <= P < its length, lengths up to LENGTH_MAX: at a corner of
 * either simplex, which share no variable. */
static wide need_least(const struct need *n, bool tile_is_rows)
{
	const wide far = LENGTH_MAX, tile_len = tile_is_rows ? n->sq : n->sk, len = tile_is_rows ? n->sk : n->sq;
	const wide tile[4] = {tile_len, tile_len * far, tile_len * far + n->last * (far - 1),
	                      tile_len * far + (n->first + n->last) * (far - 1)};
	const wide own[3] = {len, len * far, len * far + n->position * (far - 1)};
	wide a = tile[0], b = own[0];
	for (int i = 1; i < 4; i++)
		a = tile[i] < a ? tile[i] : a;
	for (int i = 1; i < 3; i++)
		b = own[i] < b ? own[i] : b;
	return a + b + n->constant;
}

static void need_add(struct needs *list, const struct need *n, bool tile_is_rows)
{
	if (need_least(n, tile_is_rows) >= 0)
		return;
	for (int i = 0; i < list->count; i++) {
		struct need *old = &list->need[i];
		if (old->position == n->position && old->first == n->first && old->last == n->last &&
		    old->sq == n->sq && old->sk == n->sk) {
			old->constant = n->constant < old->constant ? n->constant : old->constant;
			return;
		}
	}
	list->need[list->count++] = *n;
}

/* A bound with the tile's position split off: `tile` is that coefficient, the rest stands in need. */
struct half {
	int tile;
	struct need rest;
};

static void reach_make(struct reach *r, const struct run *run, bool tile_is_rows)
{
	struct half half[BOUNDS_MAX + 2];
	int count = 0;
	r->visible.count = r->full.count = 0;
	for (int i = 0; i < run->count; i++) {
		const struct bound *b = &run->bound[i];
		const int tile = tile_is_rows ? b->q : b->k, position = tile_is_rows ? b->k : b->q;
		half[count++] = (struct half){tile, {position, 0, 0, b->sq, b->sk, b->constant}};
		struct need worst = half[count - 1].rest;
		worst.first = tile > 0 ? tile : 0;
		worst.last = tile < 0 ? tile : 0;
		need_add(&r->full, &worst, tile_is_rows);
	}
	half[count++] = (struct half){1, {0, -1, 0, 0, 0, 0}};
	half[count++] = (struct half){-1, {0, 0, 1, 0, 0, 0}};
	for (int i = 0; i < count; i++) {
		if (half[i].tile == 0)
			need_add(&r->visible, &half[i].rest, tile_is_rows);
		for (int j = 0; j < count; j++) {
			if (half[i].tile <= 0 || half[j].tile >= 0)
				continue;
			const struct need *a = &half[i].rest, *b = &half[j].rest;
			const struct need sum = {a->position + b->position,
			                         a->first + b->first,
			                         a->last + b->last,
			                         a->sq + b->sq,
			                         a->sk + b->sk,
			                         a->constant + b->constant};
			need_add(&r->visible, &sum, tile_is_rows);
		}
	}
}

void reach_keys(struct reach *r, const struct run *run) { reach_make(r, run, true); }
void reach_rows(struct reach *r, const struct run *run) { reach_make(r, run, false); }

/* Narrows [*begin, *end) to what `list` admits. */
static void needs_apply(int64_t *begin, int64_t *end, const struct needs *list, int64_t first, int64_t last, int64_t sq,
                        int64_t sk)
{
	for (int i = 0; i < list->count; i++) {
		const struct need *n = &list->need[i];
		const int64_t rest = n->first * first + n->last * last + n->sq * sq + n->sk * sk + n->constant;
		int64_t limit;
		if (n->position == 0) {
			if (rest < 0)
				*end = *begin;
		} else if (n->position > 0) {
			limit = -floor_div(rest, n->position);
			*begin = limit > *begin ? limit : *begin;
		} else {
			limit = floor_div(rest, -n->position) + 1;
			*end = limit < *end ? limit : *end;
		}
	}
}

struct range reach_range(const struct reach *r, int64_t sq, int64_t sk, int64_t first, int64_t last, int64_t len)
{
	struct range range = {0, len, 0, len};
	needs_apply(&range.begin, &range.end, &r->visible, first, last, sq, sk);
	if (range.begin >= range.end)
		return (struct range){0, 0, 0, 0};
	needs_apply(&range.full_begin, &range.full_end, &r->full, first, last, sq, sk);
	if (range.full_begin >= range.full_end)
		range.full_begin = range.full_end = range.begin;
	return range;
}

static struct range tile_range(const struct reach *r, const struct program *p, int64_t sq, int64_t sk, int64_t from,
                               int64_t to, int64_t tile_len, int64_t len)
{
	const int64_t first = from < 0 ? 0 : from, last = (to < tile_len ? to : tile_len) - 1;
	if (first > last || expr_is_const(&p->pool, p->residual, false))
		return (struct range){0, 0, 0, 0};
	return reach_range(r, sq, sk, first, last, len);
}

struct range program_key_range(const struct program *p, int run, int64_t sq, int64_t sk, int64_t q0, int64_t q1)
{
	struct reach r;
	reach_keys(&r, &p->run[run]);
	return tile_range(&r, p, sq, sk, q0, q1, sq, sk);
}

struct range program_query_range(const struct program *p, int run, int64_t sq, int64_t sk, int64_t k0, int64_t k1)
{
	struct reach r;
	reach_rows(&r, &p->run[run]);
	struct range range = tile_range(&r, p, sq, sk, k0, k1, sk, sq);
	if (k1 > sk)
		range.full_begin = range.full_end = range.begin;
	return range;
}
