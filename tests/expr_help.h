/* What the suites of expressions share: parsing in a scope with the inputs of random_expr.h. */
#ifndef FAGEN_TESTS_EXPR_HELP_H
#define FAGEN_TESTS_EXPR_HELP_H

#include <check.h>

#include "gen/expr.h"
#include "tests/random_expr.h"

static inline struct expr_scope scope_of(enum preset_kind kind)
{
	return (struct expr_scope){.kind = kind, .input = tree_inputs, .inputs = TREE_INPUTS, .s = -1};
}

static inline int parse_in(struct expr_pool *pool, const char *text, const struct expr_scope *scope)
{
	struct diag diag = {.file = "test"};
	const int root = expr_parse(pool, text, scope, (struct place){1, 1}, &diag);
	ck_assert_msg(root >= 0, "%s: %s", text, text_str(&diag.text));
	ck_assert_int_eq(diag.errors, 0);
	diag_free(&diag);
	return root;
}

static inline int parse_score(struct expr_pool *pool, const char *text)
{
	const struct expr_scope scope = scope_of(PRESET_SCORE);
	return parse_in(pool, text, &scope);
}

static inline int parse_mask(struct expr_pool *pool, const char *text)
{
	const struct expr_scope scope = scope_of(PRESET_MASK);
	return parse_in(pool, text, &scope);
}

/* Elements of the inputs at a point, for expr_eval. */
static inline struct expr_value read_element(void *context, int input, const int64_t *index)
{
	int64_t inside[INPUT_DIMS_MAX] = {0};
	for (int j = 0; j < tree_inputs[input].dims; j++) {
		const int64_t last = tree_dim(context, &tree_inputs[input], j) - 1;
		inside[j] = index[j] < 0 ? 0 : index[j] > last ? last : index[j];
	}
	const double value = tree_input_value(input, inside);
	return (struct expr_value){(int64_t)value, value};
}

static inline struct expr_value eval_at(const struct expr_pool *pool, int root, struct tree_point *p)
{
	const int64_t name[NAME_COUNT] = {p->name[0], p->name[1], p->name[2], p->name[3], p->name[4], p->name[5], p->heads, p->heads};
	return expr_eval(pool, root, name, p->s, read_element, p);
}

/* A random point: positions mostly inside their lengths. */
static inline struct tree_point random_point(struct grove *g, uint64_t far)
{
	struct tree_point p = {.batch = 1 + (int64_t)grove_random(g, 3), .heads = 1 + (int64_t)grove_random(g, 5)};
	p.name[4] = 1 + (int64_t)grove_random(g, far);
	p.name[5] = 1 + (int64_t)grove_random(g, far);
	p.name[0] = (int64_t)grove_random(g, (uint64_t)p.batch);
	p.name[1] = (int64_t)grove_random(g, (uint64_t)p.heads);
	p.name[2] = (int64_t)grove_random(g, (uint64_t)p.name[4]);
	p.name[3] = (int64_t)grove_random(g, (uint64_t)p.name[5]);
	p.s = (double)grove_random(g, 8000) / 1000 - 4;
	return p;
}

#endif
