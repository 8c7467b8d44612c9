/* explain_program: the terms of a spec as they were written, and what was derived from them. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "cli/explain_program.h"

static const char *const decided_names[] = {
	[DECIDED_CLOSED] = "closed form", [DECIDED_SCAN] = "each tile", [DECIDED_NEVER] = "each cell"};

/* A line begins with a label, or under the one before. */
static void label_print(struct text *out, const char *label) { text_addf(out, "  %-12s ", label); }

static void node_line(struct text *out, const char *label, const struct program *p, int node, const struct spec *spec)
{
	label_print(out, label);
	expr_print(out, &p->pool, node, spec->input);
	text_puts(out, "\n");
}

/* ---- terms, as they were written ---- */

static void argument_print(struct text *out, const struct term_arg *arg, const struct spec *spec)
{
	switch (arg->kind) {
	case ARG_INT: text_addf(out, "%" PRId64, arg->i); break;
	case ARG_REAL: text_addf(out, "%.9g", arg->f); break;
	case ARG_UNBOUNDED: text_puts(out, "unbounded"); break;
	case ARG_TEXT: text_puts(out, spec->text + arg->text); break;
	}
}

static void term_line(struct text *out, const struct spec *spec, int index, int depth)
{
	static const char *const joins[] = {
		[TERM_ALL] = "all of", [TERM_ANY] = "any of", [TERM_CHAIN] = "one after the other"};
	const struct term *term = &spec->term[index];
	text_addf(out, "%*s", 2 * depth, "");
	if (term->kind == TERM_PRESET) {
		const struct preset *preset = &preset_table[term->preset];
		text_addf(out, "%s: %s", preset->name, preset->definition);
		for (int i = 0; i < preset_params(preset); i++) {
			text_addf(out, "%s %s = ", i ? "," : "  with", preset->param[i].name);
			argument_print(out, &term->arg[i], spec);
		}
	} else if (term->kind == TERM_TEXT) {
		text_puts(out, spec->text + term->text);
	} else {
		text_puts(out, joins[term->kind]);
	}
	text_puts(out, "\n");
	if (term->kind == TERM_PRESET || term->kind == TERM_TEXT)
		return;
	for (int i = term->child; i >= 0; i = spec->term[i].next) {
		label_print(out, "");
		term_line(out, spec, i, depth + 1);
	}
}

static void terms_print(struct text *out, const char *label, const struct spec *spec, int term, const char *none)
{
	label_print(out, label);
	if (term < 0)
		text_addf(out, "%s\n", none);
	else
		term_line(out, spec, term, 0);
}

/* ---- how the mask is decided ---- */

static const char *runs_phrase(const struct program *p, bool first)
{
	return !first ? "" : p->run_count > 1 ? ", several runs of tiles" : "";
}

static void conjunct_line(struct text *out, const struct program *p, const struct spec *spec, int index)
{
	const struct conjunct *c = &p->conjunct[index];
	label_print(out, index ? "" : "decided");
	text_addf(out, "by %s%s: ", decided_names[c->how], runs_phrase(p, c->how == DECIDED_CLOSED));
	expr_print(out, &p->pool, c->node, spec->input);
	if (c->because >= 0) {
		text_puts(out, ", because ");
		expr_print(out, &p->pool, c->because, spec->input);
		text_puts(out, " may be anything in a tile");
	}
	text_puts(out, "\n");
}

static bool hides_all(const struct program *p)
{
	return p->pool.node[p->mask].op == EXPR_CONST && p->pool.node[p->mask].i == 0;
}

static void layout_line(struct text *out, const struct program *p, const struct spec *spec)
{
	if (p->blocks == BLOCKS_NONE)
		return;
	label_print(out, "blocks");
	text_addf(out, "%d queries x %d keys, ", p->block_q, p->block_k);
	switch (p->blocks) {
	case BLOCKS_KEEP:
		text_puts(out, "kept where ");
		expr_print(out, &p->pool, p->block_keep, spec->input);
		break;
	case BLOCKS_ROWS: text_addf(out, "%d x %d of them written out", spec->blocks.rows, spec->blocks.columns); break;
	case BLOCKS_BITMAP: text_puts(out, "input blocks says at launch which are kept"); break;
	default: text_puts(out, "inputs block_count and block_index list at launch those that are kept"); break;
	}
	text_puts(out, "\n");
}

/* ---- inputs ---- */

static void shape_print(struct text *out, const struct input *input)
{
	text_addf(out, "%s [", input_dtype_names[input->dtype]);
	for (int d = 0; d < input->dims; d++) {
		text_puts(out, d ? ", " : "");
		if (input->dim[d].kind == DIM_CONST)
			text_addf(out, "%" PRId64, input->dim[d].size);
		else
			text_puts(out, dim_names[input->dim[d].kind]);
	}
	text_puts(out, "]");
}

static bool access_clamped(const struct access *a, const struct spec *spec)
{
	for (int d = 0; d < spec->input[a->input].dims; d++)
		if (!a->proven[d])
			return true;
	return false;
}

static void accesses_print(struct text *out, const struct program *p, const struct spec *spec)
{
	static const char *const kept[ACCESS_PLACE_COUNT] = {
		[AT_HEAD] = "one value for a head",      [AT_ROW] = "one for each query row of a tile",
		[AT_COL] = "one for each key of a tile", [AT_DIAG] = "one for each diagonal of a tile",
		[AT_TABLE] = "the table of a head",      [AT_CELL] = "one for each cell of a tile"};
	for (int i = 0; i < p->access_count; i++) {
		const struct access *a = &p->access[i];
		label_print(out, i ? "" : "inputs");
		shape_print(out, &spec->input[a->input]);
		text_puts(out, " ");
		expr_print(out, &p->pool, a->node, spec->input);
		text_addf(out, ": %s", kept[a->place]);
		if (a->bounds >= 0)
			text_puts(out, ", and the least and greatest of each tile");
		if (access_clamped(a, spec))
			text_puts(out, "; the index is clamped");
		if (a->grad >= 0) {
			text_puts(out, "; gradient ");
			expr_print(out, &p->pool, a->grad, spec->input);
		}
		text_puts(out, "\n");
	}
}

void program_explain(struct text *out, const struct program *p, const struct spec *spec)
{
	terms_print(out, "mask", spec, spec->mask, "none: every query sees every key");
	if (hides_all(p)) {
		label_print(out, "decided");
		text_puts(out, "no query sees any key\n");
	}
	for (int i = 0; i < p->conjunct_count; i++)
		conjunct_line(out, p, spec, i);
	layout_line(out, p, spec);
	if (!p->score_identity) {
		terms_print(out, "score", spec, spec->score, "");
		node_line(out, "is", p, p->score, spec);
		node_line(out, "d score/d s", p, p->score_ds, spec);
		if (isfinite(p->logit_bound)) {
			label_print(out, "");
			text_addf(out, "never beyond %.6g\n", p->logit_bound);
		}
	}
	if (p->sink >= 0)
		node_line(out, "sink", p, p->sink, spec);
	accesses_print(out, p, spec);
}

/* ---- JSON ---- */

static void node_json(struct text *out, const char *key, const struct program *p, int node, const struct spec *spec)
{
	struct text text = {0};
	expr_print(&text, &p->pool, node, spec->input);
	text_addf(out, "\"%s\": ", key);
	text_json(out, text_str(&text));
	text_free(&text);
}

void program_json(struct text *out, const struct program *p, const struct spec *spec)
{
	node_json(out, "mask", p, p->mask, spec);
	text_addf(out, ", \"runs\": %d, ", p->run_count);
	node_json(out, "residual", p, p->residual, spec);
	text_puts(out, ", \"conjuncts\": [");
	for (int i = 0; i < p->conjunct_count; i++) {
		const struct conjunct *c = &p->conjunct[i];
		text_puts(out, i ? ", {" : "{");
		node_json(out, "text", p, c->node, spec);
		text_addf(out, ", \"decided\": \"%s\"", decided_names[c->how]);
		if (c->because >= 0) {
			text_puts(out, ", ");
			node_json(out, "because", p, c->because, spec);
		}
		text_puts(out, "}");
	}
	text_puts(out, "], ");
	node_json(out, "score", p, p->score, spec);
	text_puts(out, ", ");
	node_json(out, "score_ds", p, p->score_ds, spec);
	text_puts(out, ", \"inputs\": [");
	for (int i = 0; i < p->access_count; i++) {
		const struct access *a = &p->access[i];
		text_puts(out, i ? ", {" : "{");
		node_json(out, "element", p, a->node, spec);
		text_addf(out, ", \"place\": \"%s\", \"clamped\": %s}", access_place_names[a->place],
		          access_clamped(a, spec) ? "true" : "false");
	}
	text_puts(out, "]");
}
