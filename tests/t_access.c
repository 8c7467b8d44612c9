/* Accesses: where the elements that a program reads are kept, against the index expressions evaluated over grids; scores,
 * layouts and shared memory. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "gen/access.h"
#include "gen/expr.h"
#include "gen/grad.h"
#include "tests/random_expr.h"

/* Check notes every assertion that is passed; the loops over grids pass millions. */
#define must(condition, ...)                       \
	do {                                       \
		if (!(condition))                  \
			ck_abort_msg(__VA_ARGS__); \
	} while (0)

static struct spec spec;
static struct program program;
static struct diag diag;

static int text_add_to_spec(const char *text)
{
	const int at = spec.text_len;
	strcpy(spec.text + at, text);
	spec.text_len += (int)strlen(text) + 1;
	return at;
}

static int term_add(const char *text)
{
	spec.term[spec.term_count] =
		(struct term){.kind = TERM_TEXT, .text = text_add_to_spec(text), .child = -1, .next = -1};
	return spec.term_count++;
}

/* A spec of mask and score, NULL: none, that may read tree_inputs. */
static void spec_begin(const char *mask, const char *score)
{
	memset(&spec, 0, sizeof spec);
	memcpy(spec.input, tree_inputs, sizeof tree_inputs);
	spec.input_count = TREE_INPUTS;
	spec.mask = mask ? term_add(mask) : -1;
	spec.score = score ? term_add(score) : -1;
	spec.passes[PASS_FORWARD] = spec.passes[PASS_BACKWARD] = true;
	text_free(&diag.text);
	memset(&diag, 0, sizeof diag);
}

static bool lower(void) { return program_lower(&program, &spec, &diag) == 0; }

static void lower_score(const char *score)
{
	spec_begin(NULL, score);
	must(lower(), "%s: %s", score, text_str(&diag.text));
}

static const struct input *input_of(const struct access *a) { return &spec.input[a->input]; }

/* ---- places ---- */

START_TEST(places)
{
	static const struct {
		const char *element;
		enum access_place place;
		const char *proven; /* a letter for each dimension */
	} table[] = {
		{"one", AT_HEAD, ""},
		{"slope[h]", AT_HEAD, "y"},
		{"slope[0]", AT_HEAD, "y"},
		{"slope[hq - 1 - h]", AT_HEAD, "y"},
		{"slope[h + 1]", AT_HEAD, "n"},
		{"slope[h % hq]", AT_HEAD, "y"},
		{"float(doc[b, k])", AT_COL, "yy"},
		{"float(doc[b, q])", AT_ROW, "yn"},
		{"float(doc[b, min(q, sk - 1)])", AT_ROW, "yy"},
		{"float(doc[b, q - sq + sk])", AT_ROW, "yn"},
		{"float(doc[b, sk - 1 - k])", AT_COL, "yy"},
		{"float(doc[b, k / 2])", AT_COL, "yn"}, /* true, but not found */
		{"float(doc[k, k])", AT_COL, "ny"},
		{"float(flag[h, q])", AT_ROW, "yy"},
		{"table[h, q % 13]", AT_ROW, "yy"},
		{"table[h, q - k + 6]", AT_DIAG, "yn"},
		{"table[h, min(max(q - k + 6, 0), 12)]", AT_DIAG, "yy"},
		{"table[h, abs(q - k) % 13]", AT_DIAG, "yy"},
		{"table[h, k < q ? 3 : 12]", AT_DIAG, "yy"},
		{"table[h, (q - sq) - (k - sk) < 5 && q - k != 3 ? 3 : b]", AT_DIAG, "yn"},
		{"table[h, max(2 * q, q + q - 1) - k - k]", AT_DIAG, "yn"},
		{"table[h, (q * k) % 13]", AT_TABLE, "yy"},
		{"table[h, q / 7 - k / 7 + 6]", AT_TABLE, "yn"},
		{"cell[b, h, q, k]", AT_CELL, "yyyy"},
		{"cell[b, h, q, q - k]", AT_CELL, "yyyn"},
		{"cell[b, h, sq - 1 - q, k]", AT_CELL, "yyyy"},
		{"cell[b, h, q - k, k - q]", AT_DIAG, "yynn"},
		{"cell[b, h, 3, k]", AT_COL, "yyny"},
	};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		lower_score(table[i].element);
		must(program.access_count == 1, "%s: %d accesses", table[i].element, program.access_count);
		const struct access *a = &program.access[0];
		must(a->place == table[i].place, "%s is kept by %s", table[i].element, access_place_names[a->place]);
		ck_assert_uint_eq(strlen(table[i].proven), input_of(a)->dims);
		for (int d = 0; d < input_of(a)->dims; d++)
			must(a->proven[d] == (table[i].proven[d] == 'y'), "%s: dimension %d", table[i].element, d);
		ck_assert(a->in_score && !a->in_mask && !a->in_sink && a->bounds == -1);
	}
}
END_TEST

/* Of which elements are rows of a tile rows in memory, strides willing? */
START_TEST(matrices)
{
	static const struct {
		const char *element;
		int dim_q, dim_k; /* -1: not of this one */
	} table[] = {
		{"cell[b, h, q, k]", 2, 3},
		{"cell[0, h / 2, q, k]", 2, 3},
		{"cell[b, h, q, q - k]", -1, -1},
		{"cell[b, h, sq - 1 - q, k]", -1, -1},
		{"cell[b, h, q, k / 2]", -1, -1},
		{"cell[b, h, k, q]", -1, -1}, /* not inside their dimensions for every shape */
		{"cell[q, h, q, k]", -1, -1},
		{"float(flag[h, q + k])", -1, -1},
	};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		int dim_q, dim_k;
		lower_score(table[i].element);
		const bool is = access_matrix(&dim_q, &dim_k, &program.pool, program.access[0].node, spec.input);
		must(is == (table[i].dim_q >= 0), "%s", table[i].element);
		must(!is || (dim_q == table[i].dim_q && dim_k == table[i].dim_k), "%s: %d, %d", table[i].element, dim_q, dim_k);
	}
}
END_TEST

/* Indexes of a random element over all cells of a problem: do they vary as the place says, and stay inside where they are
 * proven to? */
static void element_holds(const struct tree *t, const struct access *a, const char *text, int sq, int sk)
{
	big seen[64][4];
	bool known[64] = {false};
	for (int q = 0; q < sq; q++)
		for (int k = 0; k < sk; k++) {
			struct tree_point p = {.name = {1, 2, q, k, sq, sk}, .batch = 2, .heads = 3};
			const int key = a->place == AT_HEAD  ? 0
			                : a->place == AT_ROW ? q
			                : a->place == AT_COL ? k
			                                     : q - k + sk;
			for (int d = 0; d < tree_inputs[t->name].dims; d++) {
				const big index = tree_at(t->arg[d], &p).i;
				must(!a->proven[d] || (index >= 0 && index < tree_dim(&p, &tree_inputs[t->name], d)),
				     "%s: dimension %d at q=%d k=%d of %dx%d", text, d, q, k, sq, sk);
				must(a->place >= AT_TABLE || !known[key] || seen[key][d] == index,
				     "%s is not the same by %s", text, access_place_names[a->place]);
				seen[key][d] = index;
			}
			known[key] = true;
		}
}

START_TEST(places_random)
{
	static struct grove g;
	int count[ACCESS_PLACE_COUNT] = {0}, proven = 0;
	for (uint64_t seed = 1; seed <= 12000; seed++) {
		struct text text = {0};
		g.count = 0;
		g.state = seed;
		g.inputs = false;
		const bool whole = seed % 2;
		const struct tree *t = tree_element(&g, whole, 3);
		tree_text(&text, t);
		if (text.len < 500) {
			char score[600];
			snprintf(score, sizeof score, whole ? "float(%s)" : "%s", text_str(&text));
			spec_begin(NULL, score);
			if (lower()) {
				const struct access *a = &program.access[program.access_count - 1];
				ck_assert_int_eq(a->input, t->name);
				count[a->place]++;
				for (int d = 0; d < input_of(a)->dims; d++)
					proven += a->proven[d];
				element_holds(t, a, score, 5, 9);
				element_holds(t, a, score, 9, 4);
				element_holds(t, a, score, 1, 1);
			}
		}
		text_free(&text);
	}
	for (int i = 0; i < ACCESS_PLACE_COUNT; i++)
		must(count[i] > 5, "%d by %s", count[i], access_place_names[i]);
	ck_assert_int_gt(proven, 1000);
}
END_TEST

/* What the index of a staged element reads is loaded where that is; a table's index is worked out in the cell. */
START_TEST(indexes_that_read)
{
	lower_score("float(doc[b, doc[b, k]])");
	ck_assert_int_eq(program.access_count, 1);
	ck_assert_int_eq(program.access[0].place, AT_COL);
	lower_score("table[h, q * doc[b, k] % 13]");
	ck_assert_int_eq(program.access_count, 2);
	ck_assert_int_eq(program.access[0].place, AT_COL);
	ck_assert_int_eq(program.access[1].place, AT_TABLE);
}
END_TEST

/* ---- minima and maxima, and how conjuncts are decided ---- */

START_TEST(bounds_slots)
{
	spec_begin("doc[b, q] == doc[b, k] && flag[h, q] < 3 && k < used[b]", "s + float(doc[b, k + 1])");
	must(lower(), "%s", text_str(&diag.text));
	ck_assert_int_eq(program.bounds_rows, 2);
	ck_assert_int_eq(program.bounds_cols, 1);
	ck_assert(program.scan);
	bool rows[2] = {false}, cols[1] = {false};
	for (int i = 0; i < program.access_count; i++) {
		const struct access *a = &program.access[i];
		if (a->place == AT_ROW) {
			ck_assert(a->bounds >= 0 && a->bounds < 2 && !rows[a->bounds]);
			rows[a->bounds] = true;
		} else if (a->place == AT_COL && a->in_mask) {
			ck_assert_int_eq(a->bounds, 0);
			cols[0] = true;
		} else {
			ck_assert_int_eq(a->bounds, -1);
		}
	}
	ck_assert(rows[0] && rows[1] && cols[0]);
}
END_TEST

START_TEST(conjuncts)
{
	static const struct {
		const char *mask;
		enum decided how;
		const char *because; /* NULL: nothing stands in the way */
	} table[] = {
		{"k <= q || k < 4", DECIDED_CLOSED, NULL},
		{"doc[b, q] == doc[b, k]", DECIDED_SCAN, NULL},
		{"k < used[b]", DECIDED_SCAN, NULL},
		{"q * k % 7 < 3", DECIDED_SCAN, NULL},
		{"random(1, q, k) < 9", DECIDED_NEVER, "random(1, q, k)"},
		{"cell[b, h, q, k] > 0.5", DECIDED_NEVER, "cell[b, h, q, k]"},
		{"table[h, q % 13] < 1.0", DECIDED_NEVER, "table[h, q % 13]"},
		{"slope[h] < float(k)", DECIDED_SCAN, NULL},
		{"random(1, q, k) < 9 || q * k < 100", DECIDED_SCAN, NULL},
	};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		spec_begin(table[i].mask, NULL);
		must(lower(), "%s: %s", table[i].mask, text_str(&diag.text));
		ck_assert_int_eq(program.conjunct_count, 1);
		const struct conjunct *c = &program.conjunct[0];
		must(c->how == table[i].how, "%s: decided %d", table[i].mask, c->how);
		ck_assert_int_eq(c->because >= 0, table[i].because != NULL);
		if (c->because >= 0) {
			struct text text = {0};
			expr_print(&text, &program.pool, c->because, spec.input);
			ck_assert_str_eq(text_str(&text), table[i].because);
			text_free(&text);
		}
	}
}
END_TEST

/* ---- scores ---- */

START_TEST(scores)
{
	spec_begin(NULL, NULL);
	ck_assert(lower());
	ck_assert(program.score_identity && isinf(program.logit_bound));
	lower_score("s");
	ck_assert(program.score_identity);
	lower_score("20 * tanh(s / 20)");
	ck_assert(!program.score_identity);
	ck_assert_double_eq_tol(program.logit_bound, 20, 1e-4);
	lower_score("sigmoid(s)");
	ck_assert_double_eq_tol(program.logit_bound, 1, 1e-4);
	lower_score("q - k"); /* an int is a score too */
	ck_assert_int_eq(program.pool.node[program.score].type, TYPE_FLOAT);
	ck_assert(isfinite(program.logit_bound));
	spec_begin(NULL, "q < k");
	ck_assert(!lower());
	must(strstr(text_str(&diag.text), "want a number"), "%s", text_str(&diag.text));

	/* A chain: s of a member is the result of the one before. */
	spec_begin(NULL, NULL);
	const int first = term_add("2 * s"), second = term_add("s + 1");
	spec.term[first].next = second;
	spec.score = spec.term_count++;
	spec.term[spec.score] = (struct term){.kind = TERM_CHAIN, .child = first, .next = -1};
	ck_assert(lower());
	const int64_t name[NAME_COUNT] = {0};
	ck_assert_double_eq(expr_eval(&program.pool, program.score, name, 5, NULL, NULL).f, 11);
	ck_assert_double_eq(expr_eval(&program.pool, program.score_ds, name, 5, NULL, NULL).f, 2);
}
END_TEST

START_TEST(sink)
{
	spec_begin(NULL, NULL);
	spec.sink = true;
	spec.input[0] = (struct input){
		.name = "sink", .dtype = INPUT_F32, .dims = 1, .dim = {{.kind = DIM_HEADS}}, .grad = true};
	spec.input_count = 1;
	ck_assert(lower());
	ck_assert_int_ge(program.sink, 0);
	ck_assert_int_eq(program.access_count, 1);
	ck_assert(program.access[0].in_sink && program.access[0].place == AT_HEAD && program.access[0].proven[0]);
	ck_assert(program.grads);
	struct grad_plan g;
	grad_plan_make(&g, &program, &spec);
	ck_assert_int_eq(g.slots, 1);
	ck_assert_int_eq(g.sink, 0);
	ck_assert_int_eq(g.accesses, 0);
	ck_assert_int_eq(g.table_floats, 1);
}
END_TEST

START_TEST(gradients)
{
	static const struct {
		const char *score;
		const char *input;
		enum grad_kind kind; /* GRAD_NONE: refused */
		enum grad_spread spread;
		const char *says;
	} table[] = {
		{"s - slope[h] * float(abs(q - k))", "slope", GRAD_TABLE, SPREAD_HEAD, ""},
		{"s + table[h, min(max(q - k + 6, 0), 12)]", "table", GRAD_TABLE, SPREAD_DIAG, ""},
		{"s + table[h, q * k % 13]", "table", GRAD_TABLE, SPREAD_CELL, ""},
		{"s + one", "one", GRAD_TABLE, SPREAD_HEAD, ""},
		{"s + cell[b, h, q, k]", "cell", GRAD_CELL, SPREAD_CELL, ""},
		{"s + cell[b, h, q, k / 2]", "cell", GRAD_NONE, 0, "seq_k index is not k"},
		{"s + slope[hq - 1 - h]", "slope", GRAD_NONE, 0, "heads index is not h"},
		{"s", "slope", GRAD_NONE, 0, "no score reads the input"},
	};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		spec_begin(NULL, table[i].score);
		const int input = spec_input_find(&spec, table[i].input);
		spec.input[input].grad = true;
		must(lower() == (table[i].kind != GRAD_NONE), "%s: %s", table[i].score, text_str(&diag.text));
		if (table[i].kind == GRAD_NONE) {
			must(strstr(text_str(&diag.text), table[i].says), "%s", text_str(&diag.text));
			continue;
		}
		struct grad_plan g;
		grad_plan_make(&g, &program, &spec);
		ck_assert(program.grads);
		ck_assert_int_eq(g.slots, 1);
		ck_assert_int_eq(g.accesses, 1);
		ck_assert_int_eq(g.sink, -1);
		ck_assert_int_eq(g.slot[0].kind, table[i].kind);
		ck_assert_int_eq(g.access[0].spread, table[i].spread);
		ck_assert_int_ge(program.access[g.access[0].access].grad, 0);
	}
}
END_TEST

/* ---- layouts ---- */

enum { SIDE = 48, BLOCK = 16 };

static void layout_holds(const char *mask, const struct tree *keep, const char *text)
{
	for (int sq = SIDE - 8; sq <= SIDE; sq += 8)
		for (int sk = 1; sk <= SIDE; sk += 13)
			for (int q0 = 0; q0 < sq; q0 += 12)
				for (int k0 = 0; k0 < sk; k0 += 10) {
					int visible = 0, cells = 0;
					for (int q = q0; q < q0 + 20; q++)
						for (int k = k0; k < k0 + 24; k++) {
							struct tree_point p = {.name = {0, 0, q / BLOCK, k / BLOCK,
							                                (sq - 1) / BLOCK + 1,
							                                (sk - 1) / BLOCK + 1}};
							cells++;
							visible += q < sq && k < sk && (!mask || k <= q) &&
							           tree_at(keep, &p).i != 0;
						}
					const enum tile_class c =
						program_tile_class(&program, &spec, sq, sk, q0, q0 + 20, k0, k0 + 24);
					must(c != TILE_EMPTY || visible == 0, "%s is not empty", text);
					must(c != TILE_FULL || visible == cells, "%s is not full", text);
					must(visible || mask || c == TILE_EMPTY, "%s is empty", text);
				}
}

START_TEST(layouts)
{
	static struct grove g;
	int lowered = 0;
	for (uint64_t seed = 1; seed <= 300; seed++) {
		struct text text = {0};
		const char *mask = seed % 2 ? "k <= q" : NULL;
		g.count = 0;
		g.state = seed * 7919;
		const struct tree *keep = tree_bool(&g, 3);
		tree_text(&text, keep);
		spec_begin(mask, NULL);
		if (text.len < 2000 && !strpbrk(text_str(&text), "bh")) {
			spec.blocks = (struct blocks){.source = BLOCKS_KEEP,
			                              .size_q = BLOCK,
			                              .size_k = BLOCK,
			                              .keep = term_add(text_str(&text))};
			if (lower()) {
				lowered++;
				layout_holds(mask, keep, text_str(&text));
			}
		}
		text_free(&text);
	}
	ck_assert_int_gt(lowered, 50);
}
END_TEST

START_TEST(layouts_at_the_ends)
{
	spec_begin(NULL, NULL);
	spec.blocks = (struct blocks){.source = BLOCKS_KEEP, .size_q = 16, .size_k = 32, .keep = term_add("q >= 0")};
	ck_assert(lower());
	ck_assert_int_eq(program.blocks, BLOCKS_NONE); /* keeps everything */
	ck_assert_int_eq(program.block_q, 0);
	ck_assert(!program.scan);
	spec.blocks.keep = term_add("q < k && k < q");
	ck_assert(lower());
	ck_assert_int_eq(program_tile_class(&program, &spec, 100, 100, 0, 50, 0, 50), TILE_EMPTY);
	spec.blocks.keep = term_add("doc[b, k] == 1");
	ck_assert(!lower());
	must(strstr(text_str(&diag.text), "cannot read inputs"), "%s", text_str(&diag.text));

	spec_begin(NULL, NULL);
	spec.blocks = (struct blocks){.source = BLOCKS_ROWS, .size_q = 16, .size_k = 16, .rows = 2, .columns = 3};
	spec.block_rows[0][0] = 5; /* blocks 0 and 2 of row 0, none of row 1 */
	ck_assert(lower());
	ck_assert(program.scan);
	ck_assert_int_eq(program_tile_class(&program, &spec, 64, 64, 0, 16, 0, 16), TILE_FULL);
	ck_assert_int_eq(program_tile_class(&program, &spec, 64, 64, 0, 16, 16, 32), TILE_EMPTY);
	ck_assert_int_eq(program_tile_class(&program, &spec, 64, 64, 0, 16, 0, 32), TILE_PARTIAL);
	ck_assert_int_eq(program_tile_class(&program, &spec, 64, 64, 16, 64, 0, 64), TILE_EMPTY);
	ck_assert_int_eq(program_tile_class(&program, &spec, 64, 64, 0, 16, 48, 64), TILE_EMPTY); /* outside: hidden */
	spec.blocks.source = BLOCKS_LISTS;
	ck_assert(lower());
	ck_assert_int_eq(program_tile_class(&program, &spec, 64, 64, 0, 16, 0, 16), TILE_PARTIAL);
}
END_TEST

/* ---- shared memory ---- */

START_TEST(staging)
{
	static const struct {
		const char *mask, *score;
		struct staging bytes; /* of a tile of 64 x 32 */
	} table[] = {
		{NULL, NULL, {0, 0, 0, 0}},
		{NULL, "s * slope[h] + one", {16, 0, 0, 0}},
		{"doc[b, q] == doc[b, k]", NULL, {0, 256, 128, 0}},
		{"flag[h, q] < 2", "s + table[h, q % 13]", {0, 512, 0, 0}},
		{NULL, "s + table[h, q * k % 13]", {64, 0, 0, 0}}, /* 13 floats */
		{NULL, "s + table[h, q - k]", {0, 0, 0, 384}},     /* 64 + 32 */
		{NULL, "s + cell[b, h, q, k]", {0, 0, 0, 5120}},   /* 64 rows of 32 + 8, as the input has them: fp16 */
		{"flag[h, q + k] < 2", NULL, {0, 0, 0, 3072}},     /* 64 rows of 32 + 16, u8 */
	};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		spec_begin(table[i].mask, table[i].score);
		must(lower(), "%s", text_str(&diag.text));
		const struct staging s = program_staging(&program, &spec, 64, 32);
		must(memcmp(&s, &table[i].bytes, sizeof s) == 0, "row %zu: head %d row %d col %d cell %d", i, s.head,
		     s.row, s.col, s.cell);
	}
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("access");
	TCase *t = tcase_create("access");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, places);
	tcase_add_test(t, matrices);
	tcase_add_test(t, places_random);
	tcase_add_test(t, indexes_that_read);
	tcase_add_test(t, bounds_slots);
	tcase_add_test(t, conjuncts);
	tcase_add_test(t, scores);
	tcase_add_test(t, sink);
	tcase_add_test(t, gradients);
	tcase_add_test(t, layouts);
	tcase_add_test(t, layouts_at_the_ends);
	tcase_add_test(t, staging);
	suite_add_tcase(s, t);
	return s;
}
