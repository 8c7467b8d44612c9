/* Programs: what is derived from a mask, against the plain expression over whole grids. */
#include <check.h>
#include <string.h>

#include "tests/mask_help.h"

enum { SIDE_MAX = 32 };

/* ---- one tile's ranges ---- */

/* Positions that a run's bounds let a tile see: the first, one past the last, and whether the whole tile sees one. */
struct seen {
	bool any[SIDE_MAX], all[SIDE_MAX];
};

static void seen_from(struct seen *s, const struct program *p, int run, int64_t sq, int64_t sk, bool rows, int64_t t0,
                      int64_t t1)
{
	const int64_t len = rows ? sk : sq, tile_len = rows ? sq : sk;
	memset(s, 0, sizeof *s);
	for (int64_t x = 0; x < len; x++) {
		s->all[x] = t0 < tile_len;
		for (int64_t t = t0; t < t1; t++) {
			const bool inside = t < tile_len;
			const bool v =
				inside && (rows ? run_holds(p, run, sq, sk, t, x) : run_holds(p, run, sq, sk, x, t));
			s->any[x] = s->any[x] || v;
			if (inside || !rows) /* rows past sq do not count, keys past sk are hidden */
				s->all[x] = s->all[x] && v;
		}
	}
}

static void range_holds(const struct mask *m, const struct seen *s, struct range r, int64_t len, const char *what)
{
	must(0 <= r.begin && r.begin <= r.full_begin && r.full_begin <= r.full_end && r.full_end <= r.end &&
	             r.end <= len,
	     "%s of %s: [%ld, %ld) full [%ld, %ld) of %ld", what, m->text, (long)r.begin, (long)r.end,
	     (long)r.full_begin, (long)r.full_end, (long)len);
	for (int64_t x = 0; x < len; x++) {
		const bool in = x >= r.begin && x < r.end, full = x >= r.full_begin && x < r.full_end;
		must(in == s->any[x], "%s of %s is wrong at %ld", what, m->text, (long)x);
		must(full == s->all[x], "%s of %s: is %ld full?", what, m->text, (long)x);
	}
}

static void ranges_hold(const struct mask *m, int64_t sq, int64_t sk)
{
	const struct program *p = &m->program;
	struct seen s;
	if (residual_is(p, false))
		return;
	for (int run = 0; run < p->run_count; run++)
		for (int i = 0; i < TILES; i++) {
			for (int64_t t = 0; t < sq + 3; t += tiles[i]) {
				seen_from(&s, p, run, sq, sk, true, t, t + tiles[i]);
				range_holds(m, &s, program_key_range(p, run, sq, sk, t, t + tiles[i]), sk, "key range");
			}
			for (int64_t t = 0; t < sk + 3; t += tiles[i]) {
				seen_from(&s, p, run, sq, sk, false, t, t + tiles[i]);
				range_holds(m, &s, program_query_range(p, run, sq, sk, t, t + tiles[i]), sq,
				            "query range");
			}
		}
}

static void classes_hold(struct mask *m, int64_t sq, int64_t sk)
{
	for (int i = 0; i < 60; i++) {
		const int64_t q0 = (int64_t)grove_random(&m->grove, (uint64_t)sq + 4) - 2,
			      k0 = (int64_t)grove_random(&m->grove, (uint64_t)sk + 4) - 2;
		const int64_t q1 = q0 + (int64_t)grove_random(&m->grove, 9),
			      k1 = k0 + (int64_t)grove_random(&m->grove, 9);
		int64_t visible = 0, cells = (q1 - q0) * (k1 - k0);
		bool in_one_run = false;
		for (int64_t q = q0; q < q1; q++)
			for (int64_t k = k0; k < k1; k++)
				visible += truth(m, sq, sk, q, k);
		for (int run = 0; run < m->program.run_count; run++) {
			bool all = true;
			for (int64_t q = q0; all && q < q1; q++)
				for (int64_t k = k0; all && k < k1; k++)
					all = run_holds(&m->program, run, sq, sk, q, k);
			in_one_run = in_one_run || all;
		}
		const enum tile_class c = program_tile_class(&m->program, &m->spec, sq, sk, q0, q1, k0, k1);
		must(c != TILE_EMPTY || visible == 0, "%s: [%ld,%ld)x[%ld,%ld) is not empty", m->text, (long)q0,
		     (long)q1, (long)k0, (long)k1);
		must(c != TILE_FULL || visible == cells, "%s: not full", m->text);
		if (residual_is(&m->program, true) && visible == cells && visible && in_one_run)
			must(c == TILE_FULL, "%s: a full tile is not recognised", m->text);
	}
}

/* The canonical mask is the mask, and it is what the runs and the residual say together. */
static void mask_holds(const struct mask *m, int64_t sq, int64_t sk)
{
	for (int64_t q = 0; q < sq; q++) {
		for (int64_t k = 0; k < sk; k++) {
			const bool v = truth(m, sq, sk, q, k);
			bool some = false;
			for (int run = 0; run < m->program.run_count; run++)
				some = some || run_holds(&m->program, run, sq, sk, q, k);
			must(holds(&m->program, m->program.mask, sq, sk, q, k) == v, "%s at q=%ld k=%ld of %ldx%ld",
			     m->text, (long)q, (long)k, (long)sq, (long)sk);
			must((some && holds(&m->program, m->program.residual, sq, sk, q, k)) == v,
			     "%s: runs and residual at q=%ld k=%ld of %ldx%ld", m->text, (long)q, (long)k, (long)sq,
			     (long)sk);
		}
	}
}

START_TEST(host_random)
{
	static const enum kind kinds[] = {BOUNDS, UNION, UNION, MIXED, ANY, UNION, MIXED, ANY};
	static struct mask m;
	int lowered = 0, exact = 0, several = 0;
	for (uint64_t seed = 1; seed <= 2400; seed++) {
		mask_random(&m, seed, kinds[seed % 8]);
		if (!mask_lower(&m))
			continue;
		lowered++;
		exact += residual_is(&m.program, true);
		several += m.program.run_count > 1;
		for (int i = (int)(seed % 3); i < LENGTHS; i += 3) {
			mask_holds(&m, lengths[i][0], lengths[i][1]);
			ranges_hold(&m, lengths[i][0], lengths[i][1]);
			classes_hold(&m, lengths[i][0], lengths[i][1]);
		}
	}
	ck_assert_int_gt(lowered, 2200); /* the rest is refused: products of products */
	ck_assert_int_gt(exact, 700);
	ck_assert_int_gt(several, 350);
}
END_TEST

/* Unions of few bounds leave nothing to the residual. */
START_TEST(unions_are_exact)
{
	static const char *const exact[] = {
		"k <= q || k < 16",
		"k < 4 || k - sk <= q - sq && q - k < 100",
		"abs(q - k) <= 64 || q < 8 || k < 8",
		"min(q, k) < 8 || abs(q - k) <= 3",
		"max(abs(q - k), k) <= 100",
		"k / 64 < 3 || !(k <= q)",
		"k <= q ? q - k < 9 : k - q < 3",
		"(k <= q) == (k < 5)",
		"(k < 8 || q < 8) && (k <= q || k < 3)",
		"k != q",
	};
	static struct mask m;
	for (size_t i = 0; i < sizeof exact / sizeof *exact; i++) {
		strcpy(m.text, exact[i]);
		ck_assert(mask_lower(&m));
		must(residual_is(&m.program, true), "%s has a residual", exact[i]);
		ck_assert_int_ge(m.program.run_count, 1);
		ck_assert(!m.program.scan);
	}
}
END_TEST

/* Single cells at lengths up to 2^30 and constants up to 2^60: nothing overflows (SAN=1 would say so), and what is
 * derived agrees with the cell. */
static void cell_holds(const struct mask *m, int64_t sq, int64_t sk, int64_t q, int64_t k, int64_t tile)
{
	const struct program *p = &m->program;
	const int64_t q0 = q - q % tile, k0 = k - k % tile;
	const bool v = truth(m, sq, sk, q, k);
	bool row_seen = false, key_seen = false;
	const enum tile_class c = program_tile_class(p, &m->spec, sq, sk, q0, q0 + tile, k0, k0 + tile);
	for (int run = 0; run < p->run_count; run++) {
		const struct range keys = program_key_range(p, run, sq, sk, q0, q0 + tile);
		const struct range rows = program_query_range(p, run, sq, sk, k0, k0 + tile);
		key_seen = key_seen || (keys.begin <= k && k < keys.end);
		row_seen = row_seen || (rows.begin <= q && q < rows.end);
		if (residual_is(p, true)) {
			must(v || !(keys.full_begin <= k && k < keys.full_end), "%s: full keys", m->text);
			must(v || !(rows.full_begin <= q && q < rows.full_end), "%s: full rows", m->text);
		}
	}
	must(holds(p, p->mask, sq, sk, q, k) == v, "%s: value", m->text);
	must(c != (v ? TILE_EMPTY : TILE_FULL), "%s: class", m->text);
	must(!v || (row_seen && key_seen), "%s: range", m->text);
}

START_TEST(host_large)
{
	static struct mask m;
	struct grove g = {.state = 3};
	int lowered = 0;
	for (uint64_t seed = 1; seed <= 3000; seed++) {
		mask_random(&m, seed, seed % 4 == 0 ? UNION : seed % 4 == 1 ? ANY : LARGE_BOUNDS);
		if (!mask_lower(&m))
			continue;
		lowered++;
		for (int i = 0; i < 40; i++) {
			const uint64_t far = i % 3 ? 1 << 30 : 100;
			const int64_t sq = 1 + (int64_t)grove_random(&g, far),
				      sk = i % 4 ? 1 + (int64_t)grove_random(&g, far) : sq;
			const int64_t q = (int64_t)grove_random(&g, (uint64_t)sq),
				      near = q - sq + sk + (int64_t)grove_random(&g, 40) - 20;
			const int64_t k =
				i % 2 || near < 0 || near >= sk ? (int64_t)grove_random(&g, (uint64_t)sk) : near;
			cell_holds(&m, sq, sk, q, k, 1 + (int64_t)grove_random(&g, 128));
		}
	}
	ck_assert_int_gt(lowered, 2500);
}
END_TEST

/* ---- where the tables end ---- */

static void mask_of_tree(struct mask *m, const struct tree *t)
{
	struct text text = {0};
	m->tree = t;
	tree_text(&text, t);
	ck_assert_uint_lt(text.len, sizeof m->text);
	strcpy(m->text, text_str(&text));
	text_free(&text);
	ck_assert(mask_lower(m));
	for (int i = 0; i < LENGTHS; i++) {
		mask_holds(m, lengths[i][0], lengths[i][1]);
		ranges_hold(m, lengths[i][0], lengths[i][1]);
		classes_hold(m, lengths[i][0], lengths[i][1]);
	}
}

/* More bounds than the table holds are still all obeyed. */
START_TEST(many_bounds)
{
	static struct mask m;
	struct grove *g = &m.grove;
	const struct tree *all = NULL;
	for (int i = 0; i < 24; i++) { /* k <= q + i*sk - 3i: no two are parallel */
		const struct tree *right = tree_new(g, '~', tree_new(g, '+', tree_name(g, 2), scaled(g, 5, i), NULL),
		                                    tree_number(g, 3 * i), NULL);
		const struct tree *t = tree_new(g, 'l', tree_name(g, 3), right, NULL);
		all = all ? tree_new(g, '&', all, t, NULL) : t;
	}
	mask_of_tree(&m, all);
	ck_assert_int_eq(m.program.run_count, 1);
	ck_assert_int_eq(m.program.run[0].count, BOUNDS_MAX);
	ck_assert(!residual_is(&m.program, true));
}
END_TEST

/* More runs than the table holds: the mask is tested in the cells, and still narrows what is visited. */
START_TEST(many_runs)
{
	static struct mask m;
	struct grove *g = &m.grove;
	for (int runs = 2; runs <= 12; runs++) {
		const struct tree *any = NULL;
		g->count = 0;
		for (int i = 0; i < runs; i++) { /* keys 2i, on rows from i on */
			const struct tree *key = tree_new(g, '=', tree_name(g, 3), tree_number(g, 2 * i), NULL);
			const struct tree *row = tree_new(g, 'g', tree_name(g, 2), tree_number(g, i), NULL);
			const struct tree *t = tree_new(g, '&', key, row, NULL);
			any = any ? tree_new(g, '|', any, t, NULL) : t;
		}
		mask_of_tree(&m, any);
		ck_assert_int_eq(residual_is(&m.program, true), runs <= RUNS_MAX);
		ck_assert_int_eq(m.program.run_count, runs <= RUNS_MAX ? runs : 1);
		ck_assert_int_eq(m.program.scan, runs > RUNS_MAX);
	}
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("program");
	TCase *t = tcase_create("program");
	tcase_set_timeout(t, 180);
	tcase_add_test(t, host_random);
	tcase_add_test(t, unions_are_exact);
	tcase_add_test(t, host_large);
	tcase_add_test(t, many_bounds);
	tcase_add_test(t, many_runs);
	suite_add_tcase(s, t);
	return s;
}
