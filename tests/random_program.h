/* Random programs: masks, scores and layouts as trees of their own, and what they lower to. */
#ifndef FAGEN_TESTS_RANDOM_PROGRAM_H
#define FAGEN_TESTS_RANDOM_PROGRAM_H

#include <check.h>

#include "gen/access.h"
#include "tests/emitted.h"
#include "tests/random_expr.h"

struct sample {
	struct grove grove;
	const struct tree *mask, *score, *keep; /* NULL: none */
	struct spec spec;
	struct program program;
	char text[SPEC_TEXT_MAX]; /* for messages */
};

static const struct tree *position_and(struct grove *g, int name, int64_t far)
{
	return tree_new(g, '+', tree_name(g, name), tree_number(g, (int64_t)grove_random(g, (uint64_t)far) - far / 2),
	                NULL);
}

/* What runs are made of: the positions compared with each other, with constants, with the lengths' ends. */
static const struct tree *affine(struct grove *g)
{
	static const char compare[] = "<l>g<l>g=";
	const char op = compare[grove_random(g, 8 + (grove_random(g, 4) == 0))];
	const struct tree *q = tree_name(g, 2), *k = tree_name(g, 3);
	const struct tree *c = tree_number(g, (int64_t)grove_random(g, 24));
	switch (grove_random(g, 6)) {
	case 0: return tree_new(g, op, k, c, NULL);
	case 1: return tree_new(g, op, q, c, NULL);
	case 2: return tree_new(g, 'l', tree_new(g, 'a', tree_new(g, '~', q, k, NULL), NULL, NULL), c, NULL);
	case 3:
		return tree_new(g, op, tree_new(g, '~', k, tree_name(g, 5), NULL),
		                tree_new(g, '~', position_and(g, 2, 20), tree_name(g, 4), NULL), NULL);
	default: return tree_new(g, op, k, position_and(g, 2, 24), NULL);
	}
}

static const struct tree *clauses(struct grove *g)
{
	const struct tree *t = NULL;
	for (int any = 1 + (int)grove_random(g, 3); any > 0; any--) {
		const struct tree *all = NULL;
		for (int n = 1 + (int)grove_random(g, 3); n > 0; n--)
			all = all ? tree_new(g, '&', all, affine(g), NULL) : affine(g);
		t = t ? tree_new(g, '|', t, all, NULL) : all;
	}
	return t;
}

/* What has no run but a class that often is known: a distance, divided, folded or scaled, against a number in its reach. */
static const struct tree *banded(struct grove *g)
{
	static const char compare[] = "<l>g=#";
	const struct tree *q = tree_name(g, 2), *k = tree_name(g, 3), *x;
	switch (grove_random(g, 6)) {
	case 0: x = tree_new(g, '~', q, k, NULL); break;
	case 4: x = q; break;
	case 5: x = k; break;
	case 1: x = tree_new(g, '~', k, tree_new(g, '*', q, tree_number(g, 2), NULL), NULL); break;
	case 2: x = tree_new(g, '~', tree_new(g, '+', q, tree_element(g, true, 0), NULL), k, NULL); break;
	default: x = tree_new(g, grove_random(g, 2) ? '+' : '~', k, tree_element(g, true, 0), NULL);
	}
	const struct tree *n = tree_number(g, 1 + (int64_t)grove_random(g, 40));
	switch (grove_random(g, 7)) {
	case 0: x = tree_new(g, '/', x, n, NULL); break;
	case 1: x = tree_new(g, '%', x, n, NULL); break;
	case 2: x = tree_new(g, 'm', x, n, NULL); break;
	case 3: x = tree_new(g, 'M', x, n, NULL); break;
	case 4: x = tree_new(g, '*', x, tree_new(g, '~', tree_number(g, 3), k, NULL), NULL); break;
	case 5: x = tree_new(g, '/', x, tree_new(g, '+', n, k, NULL), NULL); break;
	default: x = tree_new(g, 'a', x, NULL, NULL);
	}
	return tree_new(g, compare[grove_random(g, 6)], x, tree_number(g, (int64_t)grove_random(g, 30) - 8), NULL);
}

static void text_term(struct spec *s, int *term, const struct tree *t)
{
	struct text text = {0};
	tree_text(&text, t);
	ck_assert_uint_lt(s->text_len + text.len + 1, SPEC_TEXT_MAX);
	memcpy(s->text + s->text_len, text_str(&text), text.len + 1);
	*term = s->term_count++;
	s->term[*term] = (struct term){.kind = TERM_TEXT, .text = s->text_len, .child = -1, .next = -1};
	s->text_len += (int)text.len + 1;
	text_free(&text);
}

/* false: it is refused, which a program may be for its size, for numbers that may be too large, or for its gradients. */
static bool sample_make(struct sample *m, uint64_t seed, const struct emitted_shape *shape)
{
	struct grove *g = &m->grove;
	struct spec *s = &m->spec;
	struct diag diag = {0};
	memset(m, 0, sizeof *m);
	g->state = seed * 77 + 1;
	grove_random(g, 2);
	g->floats = g->inputs = seed % 5 != 0;
	const uint64_t kind = grove_random(g, 5);
	if (kind == 0)
		m->mask = clauses(g);
	else if (kind == 1)
		m->mask = tree_new(g, '&', clauses(g), tree_bool(g, 2), NULL);
	else if (kind == 2)
		m->mask = tree_bool(g, 3);
	else if (kind == 3)
		m->mask = grove_random(g, 2) ? banded(g) : tree_new(g, '&', banded(g), clauses(g), NULL);
	if (grove_random(g, 8) == 0) {
		const bool inputs = g->inputs;
		g->inputs = false;
		m->keep = tree_bool(g, 2);
		g->inputs = inputs;
	}
	g->score = g->floats = true;
	if (grove_random(g, 2) || kind == 4)
		m->score = tree_new(g, '+', tree_new(g, 'S', NULL, NULL, NULL), tree_float(g, 3), NULL);
	if (m->score && grove_random(g, 3) == 0)
		m->score =
			tree_new(g, '*', tree_real(g, 1.5),
		                 tree_new(g, 'h', tree_new(g, '/', m->score, tree_real(g, 3), NULL), NULL, NULL), NULL);

	s->mask = s->score = s->blocks.keep = -1;
	s->softmax_scale = shape->softmax_scale;
	s->layout = shape->layout;
	s->passes[PASS_FORWARD] = s->passes[PASS_BACKWARD] = true;
	s->input_count = TREE_INPUTS;
	memcpy(s->input, tree_inputs, sizeof tree_inputs);
	if (m->mask)
		text_term(s, &s->mask, m->mask);
	if (m->score)
		text_term(s, &s->score, m->score);
	if (m->keep) {
		s->blocks = (struct blocks){.source = BLOCKS_KEEP, .size_q = shape->block_q, .size_k = shape->block_k};
		text_term(s, &s->blocks.keep, m->keep);
	}
	for (int i = 0; i < TREE_INPUTS; i++)
		s->input[i].grad =
			m->score && !tree_is_whole(i) && strstr(s->text + s->term[s->score].text, tree_inputs[i].name);
	snprintf(m->text, sizeof m->text, "seed %llu: mask %s, score %s, keep %s", (unsigned long long)seed,
	         m->mask ? s->text + s->term[s->mask].text : "none",
	         m->score ? s->text + s->term[s->score].text : "none",
	         m->keep ? s->text + s->term[s->blocks.keep].text : "none");
	bool made = program_lower(&m->program, s, &diag) == 0;
	for (int i = 0; !made && i < TREE_INPUTS; i++)
		s->input[i].grad = false;
	if (!made) {
		diag_free(&diag);
		diag = (struct diag){0};
		made = program_lower(&m->program, s, &diag) == 0;
	}
	diag_free(&diag);
	for (int a = 0; made && a < m->program.access_count; a++) {
		bool names[NAME_COUNT];
		node_names(names, &m->program.pool, m->program.access[a].node);
		made = !names[NAME_S];
	}
	return made;
}

#endif
