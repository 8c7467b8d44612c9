/* Masks under test: random ones with their own tree, lowered through a spec that may read tree_inputs. */
#ifndef FAGEN_TESTS_MASK_HELP_H
#define FAGEN_TESTS_MASK_HELP_H

#include <check.h>
#include <string.h>

#include "gen/expr.h"
#include "tests/random_expr.h"

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
	struct spec spec;
	char text[SPEC_TEXT_MAX];
};

static const int64_t batches = 2, heads = 3;

static inline bool tree_holds(const struct tree *t, int64_t sq, int64_t sk, int64_t q, int64_t k)
{
	struct tree_point p = {.name = {1, 2, q, k, sq, sk}, .batch = batches, .heads = heads};
	return tree_at(t, &p).i != 0;
}

static inline bool truth(const struct mask *m, int64_t sq, int64_t sk, int64_t q, int64_t k)
{
	return q >= 0 && k >= 0 && q < sq && k < sk && tree_holds(m->tree, sq, sk, q, k);
}

struct sizes { int64_t sq, sk; };

static inline struct expr_value input_value(void *context, int input, const int64_t *index)
{
	const struct sizes *sizes = context;
	struct tree_point p = {.name = {1, 2, 0, 0, sizes->sq, sizes->sk}, .batch = batches, .heads = heads};
	int64_t inside[4];
	for (int j = 0; j < tree_inputs[input].dims; j++) {
		const int64_t last = tree_dim(&p, &tree_inputs[input], j) - 1;
		inside[j] = index[j] < 0 ? 0 : index[j] > last ? last : index[j];
	}
	const double value = tree_input_value(input, inside);
	return (struct expr_value){(int64_t)value, value};
}

static inline bool holds(const struct program *p, int node, int64_t sq, int64_t sk, int64_t q, int64_t k)
{
	const int64_t name[NAME_COUNT] = {1, 2, q, k, sq, sk, heads, 1};
	struct sizes sizes = {sq, sk};
	return expr_eval(&p->pool, node, name, 0, input_value, &sizes).i != 0;
}

/* From the meaning of struct bound alone. */
static inline bool bound_holds(const struct bound *b, int64_t sq, int64_t sk, int64_t q, int64_t k)
{
	return (big)b->q * q + (big)b->k * k + (big)b->sq * sq + (big)b->sk * sk + b->constant >= 0;
}

static inline bool run_holds(const struct program *p, int run, int64_t sq, int64_t sk, int64_t q, int64_t k)
{
	for (int i = 0; i < p->run[run].count; i++)
		if (!bound_holds(&p->run[run].bound[i], sq, sk, q, k))
			return false;
	return true;
}

static inline const struct tree *scaled(struct grove *g, int name, int64_t by)
{
	return tree_new(g, '*', tree_name(g, name), tree_number(g, by), NULL);
}

static inline const struct tree *number_near(struct grove *g, int64_t most)
{
	return tree_number(g, (int64_t)(grove_random(g, 1 << 20) * (uint64_t)most >> 19) - most);
}

/* a*q + b*k + c*sq + d*sk + e with unit factors of q and k. */
static inline const struct tree *random_affine(struct grove *g, bool large)
{
	static const int64_t far[] = {12, 12, 12, 60, INT64_C(1) << 31, INT64_C(1) << 60};
	const struct tree *t = number_near(g, far[grove_random(g, large ? 6 : 4)]);
	for (int name = 2; name < 6; name++) {
		const int64_t by = (int64_t)grove_random(g, 3) - 1;
		if (name < 4 || grove_random(g, 3) == 0)
			t = tree_new(g, '+', t, scaled(g, name, by), NULL);
	}
	return t;
}

/* An affine form compared with 0. */
static inline const struct tree *random_bound(struct grove *g, bool large)
{
	static const char compare[] = "<l>gl<g=";
	const struct tree *t = random_affine(g, large);
	if (grove_random(g, 6) == 0)
		t = tree_new(g, '*', t, tree_number(g, 3), NULL);
	return tree_new(g, compare[grove_random(g, 8)], t, tree_number(g, 0), NULL);
}

/* What else comes apart into bounds: abs, min, max, divisions and choices of affine forms. */
static inline const struct tree *random_parts(struct grove *g)
{
	static const char compare[] = "<l>g=#";
	const struct tree *a = random_affine(g, false), *b = random_affine(g, false), *t = a;
	switch (grove_random(g, 5)) {
	case 0: t = tree_new(g, 'a', a, NULL, NULL); break;
	case 1: t = tree_new(g, 'm', a, b, NULL); break;
	case 2: t = tree_new(g, 'M', a, b, NULL); break;
	case 3: t = tree_new(g, '/', a, tree_number(g, 1 + (int64_t)grove_random(g, 7)), NULL); break;
	default: t = tree_new(g, '?', random_bound(g, false), a, b); break;
	}
	if (grove_random(g, 3) == 0)
		t = tree_new(g, '-', t, NULL, NULL);
	return tree_new(g, compare[grove_random(g, 6)], t, number_near(g, 12), NULL);
}

static inline const struct tree *random_union(struct grove *g, int depth)
{
	if (depth == 0 || grove_random(g, 4) == 0)
		return grove_random(g, 3) ? random_bound(g, false) : random_parts(g);
	const struct tree *a = random_union(g, depth - 1), *b = random_union(g, depth - 1);
	switch (grove_random(g, 8)) {
	case 0: return tree_new(g, '!', a, NULL, NULL);
	case 1: return tree_new(g, '?', random_bound(g, false), a, b);
	case 2: return tree_new(g, grove_random(g, 2) ? '=' : '#', a, b, NULL);
	case 3:
	case 4: return tree_new(g, '&', a, b, NULL);
	default: return tree_new(g, '|', a, b, NULL);
	}
}

enum kind { BOUNDS, LARGE_BOUNDS, UNION, MIXED, ANY };

static inline const struct tree *random_mask(struct grove *g, enum kind kind)
{
	if (kind == UNION)
		return random_union(g, 2);
	if (kind == MIXED) /* unions beside what is none, and inside it */
		return tree_new(g, grove_random(g, 3) ? '&' : '|', random_union(g, 1), tree_bool(g, 3), NULL);
	if (kind == ANY)
		return tree_bool(g, 4);
	const struct tree *t = random_bound(g, kind == LARGE_BOUNDS);
	for (uint64_t more = grove_random(g, 4); more; more--)
		t = tree_new(g, '&', t, random_bound(g, kind == LARGE_BOUNDS), NULL);
	return t;
}

static inline void mask_random(struct mask *m, uint64_t seed, enum kind kind)
{
	struct text text = {0};
	do {
		m->grove = (struct grove){.state = seed, .inputs = kind == MIXED || (kind == ANY && seed % 2)};
		seed += 1000003;
		m->tree = random_mask(&m->grove, kind);
		text_free(&text);
		tree_text(&text, m->tree);
	} while (text.len >= sizeof m->text);
	strcpy(m->text, text_str(&text));
	text_free(&text);
}

/* false: refused, because a step might leave 64 bits or it has too many parts. */
static inline bool mask_lower(struct mask *m)
{
	struct spec *spec = &m->spec;
	struct diag diag = {0};
	memset(spec, 0, sizeof *spec);
	spec->score = -1;
	spec->term_count = 1;
	spec->term[0] = (struct term){.kind = TERM_TEXT, .child = -1, .next = -1};
	spec->input_count = TREE_INPUTS;
	memcpy(spec->input, tree_inputs, sizeof tree_inputs);
	strcpy(spec->text, m->text);
	spec->text_len = (int)strlen(m->text) + 1;
	const bool ok = program_lower(&m->program, spec, &diag) == 0;
	must(ok || strstr(text_str(&diag.text), "64 bits") || strstr(text_str(&diag.text), "too large") ||
	             strstr(text_str(&diag.text), "parts"),
	     "%s: %s", m->text, text_str(&diag.text));
	diag_free(&diag);
	return ok;
}

static inline bool residual_is(const struct program *p, bool value)
{
	const struct expr_node *n = &p->pool.node[p->residual];
	return n->op == EXPR_CONST && n->i == value;
}

static const int lengths[][2] = {{1, 1}, {1, 7}, {7, 1}, {2, 5}, {5, 2}, {12, 12}, {6, 19}, {19, 6}, {21, 18}};
enum { LENGTHS = sizeof lengths / sizeof *lengths };
static const int tiles[] = {1, 3, 4, 8};
enum { TILES = sizeof tiles / sizeof *tiles };

#endif
