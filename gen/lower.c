/* lower: a spec's terms become a program: typed expressions, and what is derived from them. */
#include "gen/access.h"
#include "gen/lower.h"

#include <math.h>
#include <string.h>

/* The keys that terms stand under. */
static const char *const term_keys[] = {
	[PRESET_MASK] = "mask", [PRESET_SCORE] = "score", [PRESET_BLOCKS] = "blocks.keep"};

/* ---- terms ---- */

struct terms {
	const struct spec *spec;
	struct expr_pool *pool;
	enum preset_kind kind;
	struct diag *diag;
};

static struct expr_scope scope_of(const struct terms *t, int s)
{
	return (struct expr_scope){.kind = t->kind, .input = t->spec->input, .inputs = t->spec->input_count, .s = s};
}

static int argument_lower(const struct terms *t, const struct term_arg *arg, bool real, int s)
{
	const struct expr_scope scope = scope_of(t, s);
	switch (arg->kind) {
	case ARG_INT: return real ? expr_const_float(t->pool, (double)arg->i) : expr_const_int(t->pool, arg->i);
	case ARG_REAL: return expr_const_float(t->pool, arg->f);
	case ARG_UNBOUNDED: return expr_const_int(t->pool, INT64_MAX);
	case ARG_TEXT: return expr_parse(t->pool, t->spec->text + arg->text, &scope, arg->place, t->diag);
	}
	return -1;
}

static int preset_lower(const struct terms *t, const struct term *term, int s)
{
	const struct preset *preset = &preset_table[term->preset];
	const struct expr_scope scope = scope_of(t, s);
	int arg[SPEC_ARGS_MAX], count = 0;
	for (; count < preset_params(preset); count++)
		if ((arg[count] = argument_lower(t, &term->arg[count], preset->param[count].real, s)) < 0)
			return -1;
	return expr_preset(t->pool, term->preset, arg, count, &scope, term->place, t->diag);
}

/* The type that the slot wants, and no step that may leave 64 bits. */
static int term_check(const struct terms *t, const struct term *term, int node)
{
	struct expr_range range[EXPR_NODES_MAX];
	const enum expr_type type = t->pool->node[node].type;
	const bool score = t->kind == PRESET_SCORE;
	if (score != (type != TYPE_BOOL))
		return diag_at(t->diag, term->place, "%s: found %s; want %s", term_keys[t->kind], expr_type_words[type],
		               score ? "a number" : "a condition, true or false");
	if (!expr_ranges(range, t->pool, node, expr_everywhere, t->spec->input, NULL))
		return diag_at(
			t->diag, term->place,
			"%s: computes numbers that may leave 64 bits for lengths up to 2^30; want smaller factors",
			term_keys[t->kind]);
	return type == TYPE_INT ? expr_make(t->pool, EXPR_FLOAT, node, -1, -1) : node;
}

static int too_large(const struct terms *t, struct place place)
{
	return diag_at(t->diag, place, "%s: too large: more than %d parts", term_keys[t->kind], EXPR_NODES_MAX);
}

/* s: what `s` stands for in a score. -1 with messages. */
static int term_lower(const struct terms *t, int index, int s)
{
	const struct term *term = &t->spec->term[index];
	int made;
	if (term->kind == TERM_TEXT || term->kind == TERM_PRESET) {
		const struct expr_scope scope = scope_of(t, s);
		made = term->kind == TERM_PRESET
		               ? preset_lower(t, term, s)
		               : expr_parse(t->pool, t->spec->text + term->text, &scope, term->place, t->diag);
		return made < 0 ? -1 : term_check(t, term, made);
	}
	made = term->kind == TERM_CHAIN ? s : expr_const_bool(t->pool, term->kind == TERM_ALL);
	for (int i = term->child; i >= 0; i = t->spec->term[i].next) {
		const int member = term_lower(t, i, term->kind == TERM_CHAIN ? made : s);
		if (member < 0)
			return -1;
		made = term->kind == TERM_CHAIN
		               ? member
		               : expr_make(t->pool, term->kind == TERM_ALL ? EXPR_AND : EXPR_OR, made, member, -1);
		if (made < 0)
			return too_large(t, term->place);
	}
	return made;
}

/* ---- the parts of a program ---- */

static int layout_lower(struct program *p, const struct terms *t, bool *visible)
{
	const struct blocks *blocks = &t->spec->blocks;
	p->blocks = blocks->source;
	*visible = true;
	if (blocks->source == BLOCKS_KEEP) {
		bool used[EXPR_NODES_MAX] = {false};
		const int root = term_lower(t, blocks->keep, -1);
		if (root < 0)
			return -1;
		expr_used(used, t->pool, root);
		for (int i = 0; i <= root; i++)
			if (used[i] && t->pool->node[i].op == EXPR_INPUT)
				return diag_at(
					t->diag, t->spec->term[blocks->keep].place,
					"blocks.keep: a layout cannot read inputs; one that is given at launch is written "
					"from: bitmap or from: lists");
		if ((p->block_keep = condition_lower(&p->pool, t->pool, root)) < 0)
			return too_large(t, t->spec->term[blocks->keep].place);
		*visible = !expr_is_const(&p->pool, p->block_keep, false);
		if (p->pool.node[p->block_keep].op == EXPR_CONST)
			p->blocks = BLOCKS_NONE;
	}
	p->block_q = p->blocks == BLOCKS_NONE ? 0 : blocks->size_q;
	p->block_k = p->blocks == BLOCKS_NONE ? 0 : blocks->size_k;
	if (p->blocks != BLOCKS_KEEP)
		p->block_keep = -1;
	return 0;
}

static int score_lower(struct program *p, const struct terms *t, int root)
{
	const int s = expr_variable(&p->pool, NAME_S);
	p->score = root < 0 ? s : expr_copy(&p->pool, t->pool, root);
	p->score_ds = p->score < 0 ? -1 : expr_derive(&p->pool, p->score, s);
	if (p->score_ds < 0)
		return too_large(t, t->spec->place[KEY_score]);
	p->score_identity = p->score == s;
	const struct float_interval f = expr_float_interval(&p->pool, p->score, expr_everywhere, t->spec->input, NULL);
	p->logit_bound = fmax(fabs(f.lo), fabs(f.hi)); /* of a score that is a number at all */
	return 0;
}

/* The element of input "sink" that a head reads. */
static int sink_lower(struct program *p, const struct spec *spec)
{
	const int input = spec_input_find(spec, "sink");
	int index[INPUT_DIMS_MAX];
	p->sink = -1;
	if (!spec->sink || input < 0)
		return 0;
	for (int d = 0; d < spec->input[input].dims; d++) {
		const enum dim_kind kind = spec->input[input].dim[d].kind;
		index[d] = kind == DIM_CONST ? expr_const_int(&p->pool, 0)
		                             : expr_variable(&p->pool, kind == DIM_BATCH ? NAME_B : NAME_H);
	}
	p->sink = expr_input(&p->pool, input, TYPE_FLOAT, index, spec->input[input].dims);
	return p->sink < 0 ? -1 : 0;
}

static void program_clear(struct program *p)
{
	memset(p, 0, sizeof *p);
	p->sink = p->block_keep = -1;
}

static bool scan_needed(const struct program *p)
{
	return p->pool.node[p->residual].op != EXPR_CONST || p->blocks != BLOCKS_NONE;
}

int program_lower_mask(struct program *program, const struct expr_pool *pool, int mask, struct diag *diag)
{
	static const struct spec no_spec;
	struct program built;
	struct expr_pool alone = {0};
	if (mask < 0 || mask >= pool->count || pool->node[mask].type != TYPE_BOOL)
		return diag_fail(diag, "mask: want a condition, true or false");
	struct terms t = {&no_spec, &alone, PRESET_MASK, diag};
	const int root = expr_copy(&alone, pool, mask);
	if (root < 0 || term_check(&t, &no_spec.term[0], root) < 0)
		return -1;
	program_clear(&built);
	if (score_lower(&built, &t, -1) || mask_lower(&built, &alone, root, true, NULL))
		return too_large(&t, (struct place){0, 0});
	built.scan = scan_needed(&built);
	*program = built;
	return 0;
}

int program_lower(struct program *program, const struct spec *spec, struct diag *diag)
{
	struct program built;
	struct expr_pool pool = {0};
	struct terms t = {spec, &pool, PRESET_MASK, diag};
	bool visible = true, failed;
	program_clear(&built);
	const int mask = spec->mask < 0 ? expr_const_bool(&pool, true) : term_lower(&t, spec->mask, -1);
	t.kind = PRESET_SCORE;
	const int s = expr_variable(&pool, NAME_S);
	const int score = spec->score < 0 ? s : term_lower(&t, spec->score, s);
	failed = mask < 0 || score < 0 || score_lower(&built, &t, score);
	t.kind = PRESET_BLOCKS;
	if (layout_lower(&built, &t, &visible) || failed)
		return -1;
	t.kind = PRESET_MASK;
	if (mask_lower(&built, &pool, mask, visible, spec->input))
		return too_large(&t, spec->place[KEY_mask]);
	if (sink_lower(&built, spec))
		return diag_at(diag, spec->place[KEY_sink],
		               "sink: mask and score are too large beside it: more than %d parts together",
		               EXPR_NODES_MAX);
	built.scan = scan_needed(&built);
	if (accesses_find(&built, spec, diag))
		return -1;
	*program = built;
	return 0;
}

/* ---- printing ---- */

void program_print(struct text *out, const struct program *p, const struct spec *spec)
{
	const struct input *input = spec ? spec->input : NULL;
	const struct {
		const char *title;
		int root;
	} parts[] = {{"mask      ", p->mask},
	             {"score     ", p->score},
	             {"residual  ", p->residual},
	             {"keep      ", p->block_keep}};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		if (parts[i].root < 0)
			continue;
		text_puts(out, parts[i].title);
		expr_print(out, &p->pool, parts[i].root, input);
		text_puts(out, "\n");
	}
	if (p->blocks != BLOCKS_NONE)
		text_addf(out, "blocks    %d x %d\n", p->block_q, p->block_k);
	if (p->sink >= 0) {
		text_puts(out, "sink      ");
		expr_print(out, &p->pool, p->sink, input);
		text_puts(out, "\n");
	}
	for (int i = 0; i < p->access_count; i++) {
		text_puts(out, "input     ");
		expr_print(out, &p->pool, p->access[i].node, input);
		text_addf(out, " by %s\n", access_place_names[p->access[i].place]);
	}
}
