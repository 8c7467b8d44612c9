/* Programs: what is derived from a mask, on the host and as emitted code compiled for the host, against the plain
 * expression over whole grids. */
#include <check.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gen/embed.h"
#include "tests/random_expr.h"

enum { PROGRAMS = 40, SIDE_MAX = 32 };

/* Check notes every assertion that is passed; the loops over grids pass millions. */
#define must(condition, ...)                       \
	do {                                       \
		if (!(condition))                  \
			ck_abort_msg(__VA_ARGS__); \
	} while (0)

/* ---- masks under test, each with its own truth ---- */

struct mask {
	struct grove grove;
	const struct tree *tree;
	struct program program;
	char text[4096];
};

static bool truth(const struct mask *m, int64_t sq, int64_t sk, int64_t q, int64_t k)
{
	const int64_t name[6] = {1, 2, q, k, sq, sk};
	return q >= 0 && k >= 0 && q < sq && k < sk && tree_value(m->tree, name);
}

static const struct tree *scaled(struct grove *g, int name, int64_t by)
{
	return tree_new(g, '*', tree_name(g, name), tree_number(g, by), NULL);
}

/* a*q + b*k + c*sq + d*sk + e (<=, <, ==, >, >=) 0 with unit factors of q and k. */
static const struct tree *random_bound(struct grove *g, bool large)
{
	static const char compare[] = "<l>gl<g=";
	static const int64_t far[] = {12, 12, 12, 60, INT64_C(1) << 31, INT64_C(1) << 60};
	const int64_t most = far[grove_random(g, large ? 6 : 4)];
	const struct tree *t = tree_number(g, (int64_t)(grove_random(g, 1 << 20) * (uint64_t)most >> 19) - most);
	for (int name = 2; name < 6; name++) {
		const int64_t by = (int64_t)grove_random(g, 3) - 1;
		if (name < 4 || grove_random(g, 3) == 0)
			t = tree_new(g, '+', t, scaled(g, name, by), NULL);
	}
	if (grove_random(g, 6) == 0)
		t = tree_new(g, '*', t, tree_number(g, 3), NULL);
	return tree_new(g, compare[grove_random(g, 8)], t, tree_number(g, 0), NULL);
}

enum kind { BOUNDS, LARGE_BOUNDS, ANY };

/* A conjunction of one to four bounds, or any expression. */
static void mask_random(struct mask *m, uint64_t seed, enum kind kind)
{
	struct text text = {0};
	do {
		m->grove.count = 0;
		m->grove.state = seed;
		seed += 1000003;
		m->tree = kind == ANY ? tree_bool(&m->grove, 4) : random_bound(&m->grove, kind == LARGE_BOUNDS);
		for (uint64_t more = grove_random(&m->grove, kind == ANY ? 2 : 4); more; more--)
			m->tree =
				tree_new(&m->grove, '&', m->tree, random_bound(&m->grove, kind == LARGE_BOUNDS), NULL);
		text_free(&text);
		tree_text(&text, m->tree);
	} while (text.len >= sizeof m->text);
	strcpy(m->text, text_str(&text));
	text_free(&text);
}

/* false: refused because a step might leave 64 bits. */
static bool mask_lower(struct mask *m)
{
	struct expr_pool pool = {0};
	struct diag diag = {0};
	const int root = expr_parse(&pool, m->text, NULL, 0, (struct place){0, 0}, &diag);
	must(root >= 0, "%s: %s", m->text, text_str(&diag.text));
	const bool ok = program_lower_mask(&m->program, &pool, root, &diag) == 0;
	must(ok || strstr(text_str(&diag.text), "64 bits"), "%s: %s", m->text, text_str(&diag.text));
	diag_free(&diag);
	return ok;
}

static bool residual_is(const struct program *p, bool value)
{
	const struct expr_node *n = &p->pool.node[p->residual];
	return n->op == EXPR_CONST && n->i == value;
}

static const int lengths[][2] = {{0, 0}, {0, 5}, {5, 0},   {1, 1},  {1, 7},  {7, 1},
                                 {2, 5}, {5, 2}, {12, 12}, {6, 19}, {19, 6}, {21, 18}};
enum { LENGTHS = sizeof lengths / sizeof *lengths };
static const int tiles[] = {1, 3, 4, 8};
enum { TILES = sizeof tiles / sizeof *tiles };

/* ---- one tile's ranges ---- */

/* Visible positions across a tile: the first, one past the last, and whether a position is seen from the whole tile. */
struct seen {
	int64_t begin, end;
	bool any[SIDE_MAX], all[SIDE_MAX];
};

static void seen_from(struct seen *s, const struct mask *m, int64_t sq, int64_t sk, bool rows, int64_t t0, int64_t t1)
{
	const int64_t len = rows ? sk : sq, tile_len = rows ? sq : sk;
	memset(s, 0, sizeof *s);
	for (int64_t p = 0; p < len; p++) {
		s->all[p] = t0 < tile_len;
		for (int64_t t = t0; t < t1; t++) {
			const bool v = rows ? truth(m, sq, sk, t, p) : truth(m, sq, sk, p, t);
			s->any[p] = s->any[p] || v;
			if (t < tile_len || !rows) /* rows past sq do not count, keys past sk are hidden */
				s->all[p] = s->all[p] && v;
		}
		if (s->any[p]) {
			s->begin = s->end ? s->begin : p;
			s->end = p + 1;
		}
	}
}

static void range_holds(const struct mask *m, const struct seen *s, struct range r, int64_t len, const char *what)
{
	const bool exact = residual_is(&m->program, true) || residual_is(&m->program, false);
	must(0 <= r.begin && r.begin <= r.full_begin && r.full_begin <= r.full_end && r.full_end <= r.end &&
	             r.end <= len,
	     "%s of %s: [%ld, %ld) full [%ld, %ld) of %ld", what, m->text, (long)r.begin, (long)r.end,
	     (long)r.full_begin, (long)r.full_end, (long)len);
	for (int64_t p = 0; p < len; p++) {
		const bool in = p >= r.begin && p < r.end, full = p >= r.full_begin && p < r.full_end;
		must(in || !s->any[p], "%s of %s misses %ld", what, m->text, (long)p);
		must(!full || s->all[p], "%s of %s calls %ld full", what, m->text, (long)p);
		if (exact) {
			must(in == s->any[p], "%s of %s is wide at %ld", what, m->text, (long)p);
			must(full == s->all[p], "%s of %s is not full at %ld", what, m->text, (long)p);
		}
	}
}

static void ranges_hold(const struct mask *m, int64_t sq, int64_t sk)
{
	struct seen s;
	for (int i = 0; i < TILES; i++) {
		for (int64_t t = 0; t < sq + 3; t += tiles[i]) {
			seen_from(&s, m, sq, sk, true, t, t + tiles[i]);
			range_holds(m, &s, program_key_range(&m->program, sq, sk, t, t + tiles[i]), sk, "key range");
		}
		for (int64_t t = 0; t < sk + 3; t += tiles[i]) {
			seen_from(&s, m, sq, sk, false, t, t + tiles[i]);
			range_holds(m, &s, program_query_range(&m->program, sq, sk, t, t + tiles[i]), sq,
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
		int64_t visible = 0;
		for (int64_t q = q0; q < q1; q++)
			for (int64_t k = k0; k < k1; k++)
				visible += truth(m, sq, sk, q, k);
		const enum tile_class c = program_tile_class(&m->program, sq, sk, q0, q1, k0, k1);
		must(c != TILE_EMPTY || visible == 0, "%s: [%ld,%ld)x[%ld,%ld) is not empty", m->text, (long)q0,
		     (long)q1, (long)k0, (long)k1);
		must(c != TILE_FULL || visible == (q1 - q0) * (k1 - k0), "%s: not full", m->text);
		if (residual_is(&m->program, true) && visible == (q1 - q0) * (k1 - k0) && visible)
			must(c == TILE_FULL, "%s: a full tile is not recognised", m->text);
	}
}

/* The canonical mask is the mask. */
static void mask_holds(const struct mask *m, int64_t sq, int64_t sk)
{
	for (int64_t q = 0; q < sq; q++) {
		for (int64_t k = 0; k < sk; k++) {
			const int64_t name[NAME_COUNT] = {1, 2, q, k, sq, sk};
			const bool kept = expr_eval_int(&m->program.pool, m->program.mask, name);
			must(kept == truth(m, sq, sk, q, k), "%s at q=%ld k=%ld of %ldx%ld", m->text, (long)q, (long)k,
			     (long)sq, (long)sk);
		}
	}
}

START_TEST(host_random)
{
	static struct mask m;
	int lowered = 0, exact = 0;
	for (uint64_t seed = 1; seed <= 200; seed++) {
		mask_random(&m, seed, seed % 4 ? BOUNDS : ANY);
		if (!mask_lower(&m))
			continue;
		lowered++;
		exact += residual_is(&m.program, true);
		for (int i = 0; i < LENGTHS; i++) {
			mask_holds(&m, lengths[i][0], lengths[i][1]);
			ranges_hold(&m, lengths[i][0], lengths[i][1]);
			classes_hold(&m, lengths[i][0], lengths[i][1]);
		}
	}
	ck_assert_int_gt(lowered, 170); /* the rest is refused: products of products */
	ck_assert_int_gt(exact, 75);
}
END_TEST

/* Single cells at lengths up to 2^31 - 1 and constants up to 2^60: nothing overflows (SAN=1 would say so), and what is
 * derived agrees with the cell. */
static void cell_holds(const struct mask *m, int64_t sq, int64_t sk, int64_t q, int64_t k, int64_t tile)
{
	const int64_t name[NAME_COUNT] = {1, 2, q, k, sq, sk};
	const int64_t q0 = q - q % tile, k0 = k - k % tile;
	const bool v = truth(m, sq, sk, q, k);
	const enum tile_class c = program_tile_class(&m->program, sq, sk, q0, q0 + tile, k0, k0 + tile);
	const struct range keys = program_key_range(&m->program, sq, sk, q0, q0 + tile);
	const struct range rows = program_query_range(&m->program, sq, sk, k0, k0 + tile);
	must(expr_eval_int(&m->program.pool, m->program.mask, name) == v, "%s: value", m->text);
	must(c != (v ? TILE_EMPTY : TILE_FULL), "%s: class", m->text);
	must(!v || (keys.begin <= k && k < keys.end && rows.begin <= q && q < rows.end), "%s: range", m->text);
	must(v || !(keys.full_begin <= k && k < keys.full_end), "%s: full keys", m->text);
	must(v || !(rows.full_begin <= q && q < rows.full_end), "%s: full rows", m->text);
}

START_TEST(host_large)
{
	static struct mask m;
	struct grove g = {.state = 3};
	int lowered = 0;
	for (uint64_t seed = 1; seed <= 3000; seed++) {
		mask_random(&m, seed, seed % 4 ? LARGE_BOUNDS : ANY);
		if (!mask_lower(&m))
			continue;
		lowered++;
		for (int i = 0; i < 40; i++) {
			const uint64_t far = i % 3 ? INT32_MAX : 100;
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

/* ---- presets, through a spec ---- */

static int preset_row(const char *name)
{
	for (int i = 0; i < preset_count; i++)
		if (strcmp(preset_table[i].name, name) == 0)
			return i;
	ck_abort_msg("no preset %s", name);
	return -1;
}

static void lower_spec(struct program *p, int count, const struct mask_term *terms)
{
	struct spec spec;
	struct diag diag = {0};
	memset(&spec, 0, sizeof spec);
	spec.mask_count = count;
	for (int i = 0; i < count; i++)
		spec.mask[i] = terms[i];
	must(program_lower(p, &spec, &diag) == 0, "%s", text_str(&diag.text));
	ck_assert_str_eq(text_str(&diag.text), "");
}

/* What the README says of a preset, in plain arithmetic. */
static bool preset_truth(const struct mask_term *t, big sq, big sk, big q, big k)
{
	const char *name = preset_table[t->preset].name;
	if (strcmp(name, "causal") == 0)
		return k - sk <= q - sq;
	if (strcmp(name, "causal_top_left") == 0)
		return k <= q;
	const big back = (q - sq) - (k - sk);
	return (t->arg[0] == SPEC_UNBOUNDED || back <= t->arg[0]) &&
	       (t->arg[1] == SPEC_UNBOUNDED || -back <= t->arg[1]);
}

static const int64_t window_args[] = {0,
                                      1,
                                      5,
                                      17,
                                      -1,
                                      -3,
                                      100,
                                      INT64_C(1) << 31,
                                      INT64_C(1) << 62,
                                      INT64_MAX - 1,
                                      SPEC_UNBOUNDED,
                                      -(INT64_C(1) << 31),
                                      -(INT64_C(1) << 62),
                                      INT64_MIN};
enum { ARGS = sizeof window_args / sizeof *window_args };

/* All pairs of window arguments, and the two alignments; row 0 and 1 are the alignments. */
static struct mask_term preset_term(int i)
{
	if (i < 2)
		return (struct mask_term){preset_row(i ? "causal_top_left" : "causal"), {0, 0}};
	return (struct mask_term){preset_row("window"), {window_args[(i - 2) / ARGS], window_args[(i - 2) % ARGS]}};
}
enum { TERMS = 2 + ARGS * ARGS };

START_TEST(host_presets)
{
	for (int i = 0; i < TERMS; i++) {
		const struct mask_term term[2] = {preset_term(i), preset_term(i * 7 % TERMS)};
		struct program p, both;
		lower_spec(&p, 1, term);
		lower_spec(&both, 2, term);
		must(residual_is(&p, true) || residual_is(&p, false), "a preset has a residual");
		for (int l = 0; l < LENGTHS; l++) {
			const int64_t sq = lengths[l][0], sk = lengths[l][1];
			for (int64_t q = 0; q < sq; q++) {
				const struct range r = program_key_range(&p, sq, sk, q, q + 1),
						   rr = program_key_range(&both, sq, sk, q, q + 1);
				for (int64_t k = 0; k < sk; k++) {
					const bool v = preset_truth(&term[0], sq, sk, q, k),
						   vv = v && preset_truth(&term[1], sq, sk, q, k);
					must(v == (k >= r.begin && k < r.end), "term %d", i);
					must(vv == (k >= rr.begin && k < rr.end), "terms %d and %d", i, i * 7 % TERMS);
				}
			}
		}
	}
}
END_TEST

/* ---- equal masks are equal programs ---- */

static void program_texts(struct text *out, const struct program *p)
{
	program_print(out, p);
	source_program(out, NULL, p);
}

static void same_mask(const char *a, const char *b, bool same)
{
	static struct mask m[2];
	struct text text[2] = {{0}, {0}};
	const char *spelled[2] = {a, b};
	for (int i = 0; i < 2; i++) {
		strcpy(m[i].text, spelled[i]);
		ck_assert(mask_lower(&m[i]));
		program_texts(&text[i], &m[i].program);
	}
	must((strcmp(text_str(&text[0]), text_str(&text[1])) == 0) == same, "%s and %s:\n%s\n%s", a, b,
	     text_str(&text[0]), text_str(&text[1]));
	ck_assert_int_eq(memcmp(&m[0].program, &m[1].program, sizeof m[0].program) == 0, same);
	text_free(&text[0]);
	text_free(&text[1]);
}

START_TEST(canonical)
{
	same_mask("k - sk <= q - sq", "q - sq >= k - sk", true);
	same_mask("k - sk <= q - sq", "!(q + sk < k + sq)", true);
	same_mask("k - sk <= q - sq", "k - sk < q - sq + 1 && k - sk <= q - sq + 5", true);
	same_mask("k - sk <= q - sq", "3 * (k - sk) <= 3 * (q - sq) + 2", true);
	same_mask("k - sk <= q - sq", "k <= q", false);
	same_mask("k <= q && q <= k + 5", "k <= q + 0 && k >= q - 5", true);
	same_mask("k == q", "k <= q && q <= k", true);
	same_mask("k <= q && k > q", "false", true);
	same_mask("k < q && q < k + 1", "false", true);
	same_mask("0 <= q", "true", true);
	same_mask("q < sq && k < sk", "true", true);
	same_mask("k < sk + 2147483647", "true", true);
	same_mask("q < k - 2147483647", "false", true);
	same_mask("k <= q && (q < 3 || k < 3)", "(k < 3 || q < 3) && q >= k", true);
	same_mask("2 * k <= 3 * q", "4 * k < 6 * q + 1", true);
	same_mask("k <= q + 4", "k <= q + 5", false);
}
END_TEST

START_TEST(refusals)
{
	static const char *const texts[][2] = {
		{"k < hq", "a mask cannot use 'hq'"},
		{"k + 1", "a mask must be a condition"},
		{"q * k * sk < 5", "may leave 64 bits"},
		{"k + 9223372036854775807 < q", "may leave 64 bits"},
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		struct expr_pool pool = {0};
		struct program p;
		struct diag diag = {0};
		const int root = expr_parse(&pool, texts[i][0], NULL, 0, (struct place){0, 0}, &diag);
		ck_assert_int_ge(root, 0);
		ck_assert_int_eq(program_lower_mask(&p, &pool, root, &diag), -1);
		must(strstr(text_str(&diag.text), texts[i][1]), "%s", text_str(&diag.text));
		diag_free(&diag);
	}
}
END_TEST

/* More bounds than the table holds are still all obeyed. */
START_TEST(many_bounds)
{
	static struct mask m;
	struct grove *g = &m.grove;
	struct text text = {0};
	m.tree = NULL;
	for (int i = 0; i < 24; i++) { /* k <= q + i*sk - 3i: no two are parallel */
		const struct tree *right = tree_new(g, '~', tree_new(g, '+', tree_name(g, 2), scaled(g, 5, i), NULL),
		                                    tree_number(g, 3 * i), NULL);
		const struct tree *t = tree_new(g, 'l', tree_name(g, 3), right, NULL);
		m.tree = m.tree ? tree_new(g, '&', m.tree, t, NULL) : t;
	}
	tree_text(&text, m.tree);
	strcpy(m.text, text_str(&text));
	text_free(&text);
	ck_assert(mask_lower(&m));
	ck_assert_int_eq(m.program.bound_count, BOUNDS_MAX);
	for (int i = 0; i < LENGTHS; i++) {
		mask_holds(&m, lengths[i][0], lengths[i][1]);
		ranges_hold(&m, lengths[i][0], lengths[i][1]);
	}
}
END_TEST

/* ---- emitted functions, compiled for the host ---- */

struct emitted_range {
	int begin, end, full_begin, full_end;
};
struct emitted {
	struct emitted_range (*key_range)(long long, long long, int, int),
		(*query_range)(long long, long long, int, int);
	int (*mask_keep)(int b, int h, int q, int k, int sq, int sk);
	/* Walks a stream; writes tile and class of each step, returns how many there were, -1 if stream_count disagrees. */
	int (*stream)(int keys, int t0, int t1, int size, int sq, int sk, int *tile, int *class);
};

static void add_template(struct text *out, const char *name)
{
	size_t len;
	const char *bytes = embed_find(&len, name);
	ck_assert_ptr_nonnull(bytes);
	text_add(out, bytes, len);
}

static const char wrappers[] =
	"struct Range t%d_key_range(long long a, long long b, int sq, int sk) { return key_range(a, b, sq, sk); }\n"
	"struct Range t%d_query_range(long long a, long long b, int sq, int sk) { return query_range(a, b, sq, sk); }\n"
	"int t%d_mask_keep(int b, int h, int q, int k, int sq, int sk)\n"
	"{ return mask_keep(row_state(b, h, q, sq, sk), col_state(b, h, k, sq, sk)); }\n"
	"int t%d_stream(int keys, int t0, int t1, int size, int sq, int sk, int *tile, int *class)\n"
	"{\n"
	"	struct Stream s = stream_begin(keys ? key_range(t0, t1, sq, sk) : query_range(t0, t1, sq, sk), size);\n"
	"	const int count = stream_count(&s);\n"
	"	int n = 0;\n"
	"	while (stream_next(&s, &tile[n], &class[n]))\n"
	"		n++;\n"
	"	return n == count ? n : -1;\n"
	"}\n";

static const char *const program_symbols[] = {"wide_min",  "wide_max",    "wide_abs", "floor_div",  "floor_mod",
                                              "key_range", "query_range", "RowState", "row_state",  "ColState",
                                              "col_state", "mask_keep",   "score",    "score_grad", "SCORE_IDENTITY"};

/* The programs in one translation unit, each with its own names. */
static void emitted_source(struct text *out, const struct program *const *program, int count)
{
	text_puts(out, "#include <stdbool.h>\n");
	add_template(out, "contract.h");
	for (int i = 0; i < count; i++) {
		for (size_t j = 0; j < sizeof program_symbols / sizeof *program_symbols; j++)
			text_addf(out, "#undef %s\n#define %s %s_%d\n", program_symbols[j], program_symbols[j],
			          program_symbols[j], i);
		source_program(out, NULL, program[i]);
		for (const char *w = wrappers; *w; w++) {
			if (w[0] == '%' && w[1] == 'd') {
				text_addf(out, "%d", i);
				w++;
			} else {
				text_add(out, w, 1);
			}
		}
	}
}

/* Compiles C text with the host's compiler so that signed overflow traps, and loads it. */
static void *host_load(const struct text *source)
{
	const char *tmp = getenv("TMPDIR"), *cc = getenv("CC");
	char dir[512], path[600], command[2048];
	snprintf(dir, sizeof dir, "%s/fagen-test-XXXXXX", tmp ? tmp : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/p.c", dir);
	FILE *file = fopen(path, "w");
	ck_assert_ptr_nonnull(file);
	ck_assert_uint_eq(fwrite(source->data, 1, source->len, file), source->len);
	ck_assert_int_eq(fclose(file), 0);
	snprintf(
		command, sizeof command,
		"%s -std=c11 -O1 -Wall -Wextra -Werror -Wfatal-errors -Wno-unused-parameter -Wno-unknown-pragmas -DDEVICE='static inline' "
		"-fsanitize=undefined -fsanitize-undefined-trap-on-error -fno-sanitize=vptr -fPIC -shared -o %s/p.so -x c %s",
		cc ? cc : "cc", dir, path);
	const int rc = system(command);
	unlink(path);
	snprintf(path, sizeof path, "%s/p.so", dir);
	void *so = rc == 0 ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
	unlink(path);
	rmdir(dir);
	ck_assert_int_eq(rc, 0);
	ck_assert_ptr_nonnull(so);
	return so;
}

static void find(void *function, void *so, const char *format, int i)
{
	char name[64];
	snprintf(name, sizeof name, "t%d_%s", i, format);
	void *symbol = dlsym(so, name);
	ck_assert_ptr_nonnull(symbol);
	memcpy(function, &symbol, sizeof symbol);
}

static void emitted_find(struct emitted *d, void *so, int i)
{
	find(&d->key_range, so, "key_range", i);
	find(&d->query_range, so, "query_range", i);
	find(&d->mask_keep, so, "mask_keep", i);
	find(&d->stream, so, "stream", i);
}

static struct range host_range(struct emitted_range r)
{
	return (struct range){r.begin, r.end, r.full_begin, r.full_end};
}

static void cells_hold(const struct emitted *d, const struct mask *m, int sq, int sk)
{
	for (int q = 0; q < sq + 3; q++)
		for (int k = 0; k < sk + 3; k++)
			must(d->mask_keep(1, 2, q, k, sq, sk) == truth(m, sq, sk, q, k), "%s at q=%d k=%d of %dx%d",
			     m->text, q, k, sq, sk);
}

/* A stream visits, from last to first and once each, every tile with a visible cell; none besides when the program has
 * no residual; and a full tile has no hidden cell. */
static void stream_holds(const struct emitted *d, const struct mask *m, int sq, int sk, bool keys, int t0, int t1,
                         int size)
{
	int tile[SIDE_MAX + 2], class[SIDE_MAX + 2];
	struct seen s;
	const int len = keys ? sk : sq;
	const bool exact = residual_is(&m->program, true) || residual_is(&m->program, false);
	seen_from(&s, m, sq, sk, keys, t0, t1);
	const int n = d->stream(keys, t0, t1, size, sq, sk, tile, class);
	must(n >= 0, "%s: stream_count is wrong", m->text);
	bool visited[SIDE_MAX + 2] = {false};
	for (int i = 0; i < n; i++) {
		bool all = (tile[i] + 1) * size <= len;
		must(tile[i] >= 0 && tile[i] * size < len && (i == 0 || tile[i] < tile[i - 1]), "%s: step %d", m->text,
		     i);
		must(class[i] == TILE_FULL || class[i] == TILE_PARTIAL, "%s: class %d", m->text, class[i]);
		visited[tile[i]] = true;
		for (int p = tile[i] * size; all && p < (tile[i] + 1) * size; p++)
			all = s.all[p];
		must(class[i] != TILE_FULL || all, "%s: tile %d of %d is not full", m->text, tile[i], size);
		if (exact)
			must(class[i] == TILE_FULL || !all, "%s: tile %d of %d is full", m->text, tile[i], size);
	}
	for (int t = 0; t * size < len; t++) {
		bool any = false;
		for (int p = t * size; p < len && p < (t + 1) * size; p++)
			any = any || s.any[p];
		must(visited[t] || !any, "%s: tile %d of %d is missed", m->text, t, size);
		if (exact)
			must(any || !visited[t], "%s: tile %d of %d is empty", m->text, t, size);
	}
}

static void emitted_holds(const struct emitted *d, const struct mask *m, int sq, int sk)
{
	cells_hold(d, m, sq, sk);
	for (int i = 0; i < TILES; i++) {
		for (int t = 0; t < sq + 3; t += tiles[i]) {
			const struct range want = program_key_range(&m->program, sq, sk, t, t + tiles[i]);
			const struct range got = host_range(d->key_range(t, t + tiles[i], sq, sk));
			must(memcmp(&want, &got, sizeof want) == 0, "%s: key_range of rows from %d, %dx%d", m->text, t,
			     sq, sk);
			stream_holds(d, m, sq, sk, true, t, t + tiles[i], tiles[(i * 3 + 2) % TILES]);
		}
		for (int t = 0; t < sk + 3; t += tiles[i]) {
			const struct range want = program_query_range(&m->program, sq, sk, t, t + tiles[i]);
			const struct range got = host_range(d->query_range(t, t + tiles[i], sq, sk));
			must(memcmp(&want, &got, sizeof want) == 0, "%s: query_range of keys from %d, %dx%d", m->text,
			     t, sq, sk);
			stream_holds(d, m, sq, sk, false, t, t + tiles[i], tiles[(i * 3 + 2) % TILES]);
		}
	}
}

START_TEST(emitted_random)
{
	static struct mask m[PROGRAMS];
	const struct program *program[PROGRAMS];
	struct text source = {0};
	int count = 0;
	for (uint64_t seed = 7000; count < PROGRAMS; seed++) {
		mask_random(&m[count], seed, seed % 3 ? BOUNDS : ANY);
		if (mask_lower(&m[count])) {
			program[count] = &m[count].program;
			count++;
		}
	}
	emitted_source(&source, program, count);
	void *so = host_load(&source);
	text_free(&source);
	for (int i = 0; i < count; i++) {
		struct emitted d;
		emitted_find(&d, so, i);
		for (int l = 0; l < LENGTHS; l++)
			emitted_holds(&d, &m[i], lengths[l][0], lengths[l][1]);
	}
	dlclose(so);
}
END_TEST

/* A term of a spec as a mask with its own tree, to use the checks above. */
static void mask_of_term(struct mask *m, const struct mask_term *t)
{
	struct grove *g = &m->grove;
	memset(m, 0, sizeof *m);
	const struct tree *q = tree_name(g, 2), *k = tree_name(g, 3), *sq = tree_name(g, 4), *sk = tree_name(g, 5);
	const struct tree *back = tree_new(g, '~', tree_new(g, '~', q, sq, NULL), tree_new(g, '~', k, sk, NULL), NULL);
	const char *name = preset_table[t->preset].name;
	if (strcmp(name, "causal_top_left") == 0)
		m->tree = tree_new(g, 'l', k, q, NULL);
	else if (strcmp(name, "causal") == 0)
		m->tree = tree_new(g, 'g', back, tree_number(g, 0), NULL);
	else
		m->tree = tree_new(
			g, '&', tree_new(g, 'l', back, tree_number(g, t->arg[0]), NULL),
			tree_new(g, 'l', tree_new(g, '-', back, NULL, NULL), tree_number(g, t->arg[1]), NULL), NULL);
	snprintf(m->text, sizeof m->text, "%s {%lld, %lld}", name, (long long)t->arg[0], (long long)t->arg[1]);
	lower_spec(&m->program, 1, t);
}

/* Presets, on small grids and at lengths near 2^31, where any 32-bit sum would overflow and trap. */
static void large_holds(const struct emitted *d, const struct mask_term *t, const struct program *p, int sq, int sk)
{
	const int64_t near_q[] = {0, 1, 127, sq / 2, sq - 129, sq - 2, sq - 1},
		      near_k[] = {0, 1, 5, sk / 2, sk - 6, sk - 2, sk - 1};
	for (int i = 0; i < 7; i++) {
		for (int j = 0; j < 7; j++) {
			const int64_t q = near_q[i], k = near_k[j];
			if (q < 0 || k < 0 || q >= sq || k >= sk)
				continue;
			ck_assert_int_eq(d->mask_keep(0, 0, (int)q, (int)k, sq, sk), preset_truth(t, sq, sk, q, k));
			const struct range r = host_range(d->key_range(q, q + 128, sq, sk)),
					   c = host_range(d->query_range(k, k + 128, sq, sk));
			const struct range rp = program_key_range(p, sq, sk, q, q + 128),
					   cp = program_query_range(p, sq, sk, k, k + 128);
			ck_assert_int_eq(memcmp(&r, &rp, sizeof r), 0);
			ck_assert_int_eq(memcmp(&c, &cp, sizeof c), 0);
			if (preset_truth(t, sq, sk, q, k)) {
				ck_assert(r.begin <= k && k < r.end);
				ck_assert(c.begin <= q && q < c.end);
			}
			if (k >= r.full_begin && k < r.full_end)
				ck_assert(preset_truth(t, sq, sk, q, k));
		}
	}
}

START_TEST(emitted_presets)
{
	static struct mask m[TERMS];
	const struct program *program[TERMS];
	static const int large[][2] = {
		{INT32_MAX, INT32_MAX}, {1, INT32_MAX}, {INT32_MAX, 1}, {INT32_MAX, 1 << 30}, {1 << 20, INT32_MAX - 7}};
	struct text source = {0};
	for (int i = 0; i < TERMS; i++) {
		const struct mask_term t = preset_term(i);
		mask_of_term(&m[i], &t);
		program[i] = &m[i].program;
	}
	emitted_source(&source, program, TERMS);
	void *so = host_load(&source);
	text_free(&source);
	for (int i = 0; i < TERMS; i++) {
		const struct mask_term t = preset_term(i);
		struct emitted d;
		emitted_find(&d, so, i);
		for (int l = 0; l<LENGTHS; l += i> 1 ? 3 : 1)
			emitted_holds(&d, &m[i], lengths[l][0], lengths[l][1]);
		for (size_t l = 0; l < sizeof large / sizeof *large; l++)
			large_holds(&d, &t, program[i], large[l][0], large[l][1]);
	}
	dlclose(so);
}
END_TEST

/* ---- dropout ---- */

/* Philox 4x32, from its paper: two 32x32 products, halves exchanged, the key bumped between rounds. */
static void philox_plain(uint32_t out[4], const uint32_t in[4], uint64_t seed, int rounds)
{
	uint32_t c[4] = {in[0], in[1], in[2], in[3]}, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
	for (int i = 0; i < rounds; i++) {
		const uint64_t a = (uint64_t)c[0] * 3528531795u, b = (uint64_t)c[2] * 3449720151u;
		const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1,
		                          (uint32_t)a};
		memcpy(c, next, sizeof c);
		k0 += 2654435769u;
		k1 += 3144134277u;
	}
	memcpy(out, c, sizeof c);
}

/* The eight bits of a cell, one from each word, are a number X; the cell is kept when X + T carries out of eight bits. */
static bool keep_plain(int keep_256, uint64_t seed, uint32_t offset, uint32_t head, int q, int k)
{
	unsigned x = 0;
	const int bit = 8 * (q % 16 / 8 * 2 + k % 2) + 7 - k / 8 % 8;
	for (int call = 0; call < 2; call++) {
		const uint32_t counter[4] = {(uint32_t)(2 * (k / 64 * 4 + k / 2 % 4) + call),
		                             (uint32_t)(q / 16 * 8 + q % 8), head, offset};
		uint32_t word[4];
		philox_plain(word, counter, seed, 7);
		for (int i = 0; i < 4; i++)
			x |= (word[i] >> bit & 1) << (4 * call + i);
	}
	return keep_256 == 256 || x + (unsigned)keep_256 >= 256;
}

struct dropout {
	int *keep_256;
	unsigned (*bits)(unsigned key0, unsigned key1, unsigned head, unsigned offset, int q, int k);
	int (*keep)(unsigned key0, unsigned key1, unsigned head, unsigned offset, int q, int k);
};

static void *dropout_load(struct dropout *d)
{
	struct text source = {0};
	text_puts(&source, "#include <stdbool.h>\nint t0_keep_256;\n#define KEEP_256 t0_keep_256\n");
	add_template(&source, "dropout.h");
	text_puts(&source, "unsigned t0_bits(unsigned a, unsigned b, unsigned h, unsigned o, int q, int k)\n"
	                   "{ struct DropoutKey d = {a, b, h, o}; return dropout_bits(d, q, k); }\n"
	                   "int t0_keep(unsigned a, unsigned b, unsigned h, unsigned o, int q, int k)\n"
	                   "{ struct DropoutKey d = {a, b, h, o}; return dropout_keep(d, q, k); }\n");
	void *so = host_load(&source);
	text_free(&source);
	find(&d->keep_256, so, "keep_256", 0);
	find(&d->bits, so, "bits", 0);
	find(&d->keep, so, "keep", 0);
	return so;
}

START_TEST(philox_known_answers) /* of the generator's authors, 7 rounds */
{
	static const struct {
		uint32_t in[4];
		uint64_t seed;
		uint32_t out[4];
	} known[] = {
		{{0, 0, 0, 0}, 0, {0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}},
		{{~0u, ~0u, ~0u, ~0u}, ~UINT64_C(0), {0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}},
	};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		uint32_t out[4];
		philox_plain(out, known[i].in, known[i].seed, 7);
		ck_assert_mem_eq(out, known[i].out, sizeof out);
	}
}
END_TEST

START_TEST(dropout_definition)
{
	static const int keeps[] = {1, 2, 77, 128, 230, 255, 256};
	struct dropout d;
	struct grove g = {.state = 5};
	void *so = dropout_load(&d);
	for (size_t i = 0; i < sizeof keeps / sizeof *keeps; i++) {
		long kept = 0;
		*d.keep_256 = keeps[i];
		for (int n = 0; n < 20000; n++) {
			const uint64_t seed =
				grove_random(&g, UINT64_C(1) << 31) << 33 | grove_random(&g, UINT64_C(1) << 31);
			const uint32_t offset = (uint32_t)grove_random(&g, UINT64_C(1) << 31) * 2,
				       head = (uint32_t)grove_random(&g, 1000);
			const int shift = (int)grove_random(&g, 24);
			const int q = (int)(grove_random(&g, UINT64_C(1) << 31) >> shift),
				  k = (int)(grove_random(&g, UINT64_C(1) << 31) >> shift);
			const bool want = keep_plain(keeps[i], seed, offset, head, q, k);
			must(d.keep((unsigned)seed, (unsigned)(seed >> 32), head, offset, q, k) == want,
			     "keep %d, cell %d %d", keeps[i], q, k);
			kept += want;
		}
		ck_assert_int_lt(labs(kept - 20000L * keeps[i] / 256), 400); /* more than five standard deviations */
	}
	dlclose(so);
}
END_TEST

/* Frozen: these words are part of the language. */
static const struct {
	int keep_256;
	uint64_t seed;
	uint32_t offset, head;
	int q, k;
	uint32_t bits;
} golden[] = {
#include "tests/dropout_golden.def"
};

START_TEST(dropout_golden)
{
	struct dropout d;
	void *so = dropout_load(&d);
	for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
		*d.keep_256 = golden[i].keep_256;
		const uint32_t bits = d.bits((unsigned)golden[i].seed, (unsigned)(golden[i].seed >> 32), golden[i].head,
		                             golden[i].offset, golden[i].q, golden[i].k);
		must(bits == golden[i].bits, "row %zu: got 0x%08x", i, bits);
		const int q0 = golden[i].q / 16 * 16 + golden[i].q % 8,
			  k0 = golden[i].k / 64 * 64 + golden[i].k % 8 / 2 * 2;
		for (int n = 0; n < 32; n++) { /* each bit belongs to the cell that the definition says */
			const int q = q0 + 8 * (n / 16), k = k0 + n % 2 + 8 * (n / 2 % 8);
			const int bit = 8 * (2 * (n / 16) + n % 2) + 7 - n / 2 % 8;
			ck_assert_int_eq(golden[i].bits >> bit & 1, keep_plain(golden[i].keep_256, golden[i].seed,
			                                                       golden[i].offset, golden[i].head, q, k));
		}
	}
	dlclose(so);
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("program");
	TCase *t = tcase_create("program");
	tcase_set_timeout(t, 180);
	tcase_add_test(t, host_random);
	tcase_add_test(t, host_large);
	tcase_add_test(t, host_presets);
	tcase_add_test(t, canonical);
	tcase_add_test(t, refusals);
	tcase_add_test(t, many_bounds);
	tcase_add_test(t, emitted_random);
	tcase_add_test(t, emitted_presets);
	tcase_add_test(t, philox_known_answers);
	tcase_add_test(t, dropout_definition);
	tcase_add_test(t, dropout_golden);
	suite_add_tcase(s, t);
	return s;
}
