/* The key `inputs`, and the inputs that presets, the sink and block layouts bring. */
#include "gen/spec_input.h"

#include <stdio.h>
#include <string.h>

#include "gen/expr_token.h"
#include "gen/spec_term.h"

enum { PRESETS_MAX = 64 };

int spec_input_find(const struct spec *s, const char *name)
{
	for (int i = 0; i < s->input_count; i++)
		if (!strcmp(s->input[i].name, name))
			return i;
	return -1;
}

/* What the name stands for in expressions already; NULL: nothing. The input of a preset may have its name, as bias
 * does: brackets tell them apart. */
static const char *name_taken(const char *name)
{
	const int preset = preset_find(name);
	if (preset >= 0 && !strcmp(preset_table[preset].input.name, name))
		return NULL;
	return strcmp(name, "none") ? expr_reserved(name) : "a word of the language";
}

bool check_input_name(const struct check *c, const struct yaml_node *key)
{
	const char *name = yaml_text(c->tree, key);
	const bool good = key->len > 0 && key->len < INPUT_NAME_MAX && !(name[0] >= '0' && name[0] <= '9') &&
	                  (size_t)token_word_len(name) == key->len;
	const char *taken = good ? name_taken(name) : NULL;
	if (good && !taken)
		return true;
	struct text quoted = {0};
	text_quote(&quoted, name, key->len);
	if (taken)
		diag_at(c->diag, key->place, "%s: %s is %s; choose another name", c->path, text_str(&quoted), taken);
	else
		diag_at(c->diag, key->place,
		        "%s: %s cannot be read in an expression; want at most %d letters, digits or _, not beginning with a digit",
		        c->path, text_str(&quoted), INPUT_NAME_MAX - 1);
	text_free(&quoted);
	return false;
}

/* ---- as written ---- */

static void dim_read(struct input_dim *dim, const struct yaml_tree *t, const struct yaml_node *n)
{
	for (int kind = DIM_CONST + 1; kind < DIM_KIND_COUNT; kind++)
		if (yaml_is(t, n, dim_names[kind]))
			dim->kind = (enum dim_kind)kind;
	if (dim->kind == DIM_CONST)
		dim->size = whole_of(t, n);
}

int read_inputs(struct reading *r)
{
	const struct yaml_tree *t = r->tree[KEY_inputs];
	const struct yaml_node *n = r->node[KEY_inputs];
	struct spec *s = r->spec;
	int result = 0;
	if (n->kind != YAML_MAP)
		return 0;
	for (const struct yaml_node *key = yaml_child(t, n), *value; key; key = yaml_next(t, value)) {
		value = yaml_next(t, key);
		if (s->input_count == SPEC_INPUTS_MAX)
			return diag_at(r->diag, key->place, "inputs: more than %d", SPEC_INPUTS_MAX);
		struct input *in = &s->input[s->input_count++];
		const struct yaml_node *grad = yaml_get(t, value, "grad");
		memcpy(in->name, yaml_text(t, key), key->len);
		in->place = key->place;
		while (!yaml_is(t, yaml_get(t, value, "dtype"), input_dtype_names[in->dtype]))
			in->dtype = (enum input_dtype)(in->dtype + 1);
		for (const struct yaml_node *d = yaml_child(t, yaml_get(t, value, "shape")); d; d = yaml_next(t, d))
			dim_read(&in->dim[in->dims++], t, d);
		in->grad = grad && yaml_is(t, grad, "true");
		if (in->grad && (in->dtype == INPUT_I32 || in->dtype == INPUT_U8))
			result = diag_at(
				r->diag, grad->place,
				"inputs.%s.grad: an %s has no gradient; want dtype f32, fp16 or bf16, or grad: false",
				in->name, input_dtype_names[in->dtype]);
	}
	return result;
}

static void dims_print(struct text *t, const struct input *in)
{
	text_puts(t, "[");
	for (int d = 0; d < in->dims; d++) {
		text_puts(t, d ? ", " : "");
		if (in->dim[d].kind == DIM_CONST)
			text_addf(t, "%lld", (long long)in->dim[d].size);
		else
			text_puts(t, dim_names[in->dim[d].kind]);
	}
	text_puts(t, "]");
}

void input_describe(struct text *t, const struct input *in)
{
	text_addf(t, "%s ", input_dtype_names[in->dtype]);
	dims_print(t, in);
}

void print_inputs(struct text *t, const struct spec *s)
{
	text_puts(t, s->input_count ? "{" : "none");
	for (int i = 0; i < s->input_count; i++) {
		const struct input *in = &s->input[i];
		text_addf(t, "%s%s: {dtype: %s, shape: ", i ? ", " : "", in->name, input_dtype_names[in->dtype]);
		dims_print(t, in);
		text_addf(t, ", grad: %s}", in->grad ? "true" : "false");
	}
	text_puts(t, s->input_count ? "}" : "");
}

/* ---- as read ---- */

/* Does the expression use the name as a word? */
static bool text_names(const char *text, const char *name)
{
	const int len = (int)strlen(name);
	while (*text) {
		const int word = token_word_len(text);
		if (word == len && !memcmp(text, name, (size_t)len))
			return true;
		text += word ? word : 1;
	}
	return false;
}

static bool spec_names(const struct spec *s, const char *name)
{
	for (int at = 0; at < s->text_len; at += (int)strlen(s->text + at) + 1)
		if (text_names(s->text + at, name))
			return true;
	return false;
}

/* Marks the presets that a term uses, and those that their definitions name. */
static void presets_used(bool used[PRESETS_MAX], const struct spec *s, const struct term *term)
{
	memset(used, 0, PRESETS_MAX * sizeof *used);
	if (term->kind == TERM_TEXT)
		expr_presets(used, s->text + term->text);
	if (term->kind != TERM_PRESET)
		return;
	used[term->preset] = true;
	expr_presets(used, preset_table[term->preset].definition);
	for (int i = 0; i < preset_params(&preset_table[term->preset]); i++)
		if (term->arg[i].kind == ARG_TEXT)
			expr_presets(used, s->text + term->arg[i].text);
}

static bool is_int(const struct input *in) { return in->dtype == INPUT_I32 || in->dtype == INPUT_U8; }

static bool inputs_alike(const struct input *a, const struct input *b)
{
	bool same = a->dtype == b->dtype && a->dims == b->dims;
	for (int d = 0; same && d < a->dims; d++)
		same = a->dim[d].kind == b->dim[d].kind && a->dim[d].size == b->dim[d].size;
	return same;
}

/* Can an expression written for `want` read `in`? Sizes that are numbers it knows. */
static bool inputs_fit(const struct input *in, const struct input *want)
{
	bool fit = in->dims == want->dims && is_int(in) == is_int(want);
	for (int d = 0; fit && d < want->dims; d++)
		fit = want->dim[d].kind != DIM_CONST ||
		      (in->dim[d].kind == DIM_CONST && in->dim[d].size == want->dim[d].size);
	return fit;
}

/* `reader` reads the input: adds it, or checks the one that the spec declares, and marks it as read. */
static void input_need(struct reading *r, bool *read, const struct input *want, bool grad, bool exact,
                       const char *reader, struct place place)
{
	struct spec *s = r->spec;
	const int declared = spec_input_find(s, want->name);
	if (declared < 0) {
		if (s->input_count == SPEC_INPUTS_MAX) {
			diag_at(r->diag, place, "inputs: more than %d with input %s of %s", SPEC_INPUTS_MAX, want->name,
			        reader);
			return;
		}
		struct input *in = &s->input[s->input_count++];
		memcpy(in->name, want->name, sizeof in->name);
		in->dtype = want->dtype;
		in->dims = want->dims;
		for (int d = 0; d < want->dims; d++) {
			in->dim[d].kind = want->dim[d].kind;
			in->dim[d].size = want->dim[d].size;
		}
		in->grad = grad;
		in->place = place;
		read[s->input_count - 1] = true;
		return;
	}
	const struct input *in = &s->input[declared];
	read[declared] = true;
	if (exact ? inputs_alike(in, want) : inputs_fit(in, want))
		return;
	struct text found = {0}, reads = {0};
	input_describe(&found, in);
	input_describe(&reads, want);
	if (exact)
		diag_at(r->diag, in->place, "inputs.%s: found %s; %s reads %s and nothing else", in->name,
		        text_str(&found), reader, text_str(&reads));
	else if (in->dims != want->dims)
		diag_at(r->diag, in->place, "inputs.%s: found %s; %s reads it with %d index%s, as %s", in->name,
		        text_str(&found), reader, want->dims, want->dims == 1 ? "" : "es", text_str(&reads));
	else if (is_int(in) != is_int(want))
		diag_at(r->diag, in->place, "inputs.%s: found %s; %s reads %s; want dtype %s", in->name,
		        text_str(&found), reader, text_str(&reads), is_int(want) ? "i32 or u8" : "f32, fp16 or bf16");
	else
		diag_at(r->diag, in->place, "inputs.%s: found %s; %s reads %s; want the same number", in->name,
		        text_str(&found), reader, text_str(&reads));
	text_free(&found);
	text_free(&reads);
}

static const struct input sink_input = {.name = "sink", .dtype = INPUT_F32, .dims = 1, .dim = {{DIM_HEADS, 0}}};
static const struct input bitmap_input = {
	.name = "blocks",
	.dtype = INPUT_U8,
	.dims = 4,
	.dim = {{DIM_BATCH, 0}, {DIM_HEADS, 0}, {DIM_BLOCKS_Q, 0}, {DIM_BLOCKS_K, 0}},
};
static const struct input count_input = {
	.name = "block_count",
	.dtype = INPUT_I32,
	.dims = 3,
	.dim = {{DIM_BATCH, 0}, {DIM_HEADS, 0}, {DIM_BLOCKS_Q, 0}},
};
static const struct input index_input = {
	.name = "block_index",
	.dtype = INPUT_I32,
	.dims = 4,
	.dim = {{DIM_BATCH, 0}, {DIM_HEADS, 0}, {DIM_BLOCKS_Q, 0}, {DIM_BLOCKS_K, 0}},
};

/* The place of an input's gradient in the file. */
static struct place grad_place(const struct reading *r, const struct input *in)
{
	const struct yaml_tree *t = r->tree[KEY_inputs];
	const struct yaml_node *one = yaml_get(t, r->node[KEY_inputs], in->name);
	const struct yaml_node *grad = one ? yaml_get(t, one, "grad") : NULL;
	return grad ? grad->place : in->place;
}

static void input_unread(struct reading *r, const struct input *in)
{
	struct text index = {0};
	for (int d = 0; d < in->dims; d++) {
		static const char *const names[DIM_KIND_COUNT] = {
			[DIM_CONST] = "...", [DIM_BATCH] = "b", [DIM_HEADS] = "h",      [DIM_HEADS_KV] = "...",
			[DIM_SEQ_Q] = "q",   [DIM_SEQ_K] = "k", [DIM_BLOCKS_Q] = "...", [DIM_BLOCKS_K] = "...",
		};
		text_addf(&index, "%s%s", d ? ", " : "[", names[in->dim[d].kind]);
	}
	diag_at(r->diag, in->place, "inputs.%s: nothing reads it; an expression reads it as %s%s%s%s", in->name,
	        in->name, text_str(&index), in->dims ? "]" : "",
	        strcmp(in->name, sink_input.name) ? "" : ", and 'sink: true' as a sink");
	text_free(&index);
}

/* The inputs of presets, in the order of the terms that use them. */
static void presets_need(struct reading *r, bool *read)
{
	const struct spec *s = r->spec;
	bool used[PRESETS_MAX], seen[PRESETS_MAX] = {0};
	for (int i = 0; i < s->term_count; i++) {
		presets_used(used, s, &s->term[i]);
		for (int p = 0; p < preset_count; p++) {
			const struct input *in = &preset_table[p].input;
			if (used[p] && !seen[p] && in->name[0])
				input_need(r, read, in, false, false, preset_table[p].name, s->term[i].place);
			seen[p] = seen[p] || used[p];
		}
	}
}

static void input_check(struct reading *r, const struct input *in)
{
	const struct spec *s = r->spec;
	for (int d = 0; s->blocks.source == BLOCKS_NONE && d < in->dims; d++) {
		if (in->dim[d].kind == DIM_BLOCKS_Q || in->dim[d].kind == DIM_BLOCKS_K) {
			diag_at(r->diag, in->place, "inputs.%s.shape: %s needs a block layout; the spec has no blocks",
			        in->name, dim_names[in->dim[d].kind]);
			break;
		}
	}
	if (in->grad && r->good[KEY_passes] && !s->passes[PASS_BACKWARD])
		diag_at(r->diag, grad_place(r, in),
		        "inputs.%s.grad: the spec has no backward pass; add it to passes, or leave grad out", in->name);
}

void inputs_finish(struct reading *r)
{
	struct spec *s = r->spec;
	const int written = s->input_count;
	bool read[SPEC_INPUTS_MAX] = {0};
	if (!r->good[KEY_mask] || !r->good[KEY_score] || !r->good[KEY_sink] || !r->good[KEY_blocks] ||
	    !r->good[KEY_inputs])
		return;
	presets_need(r, read);
	if (s->sink)
		input_need(r, read, &sink_input, s->passes[PASS_BACKWARD], false, "sink", s->place[KEY_sink]);
	if (s->blocks.source == BLOCKS_BITMAP)
		input_need(r, read, &bitmap_input, false, true, "'from: bitmap'", s->place[KEY_blocks]);
	if (s->blocks.source == BLOCKS_LISTS) {
		input_need(r, read, &count_input, false, true, "'from: lists'", s->place[KEY_blocks]);
		input_need(r, read, &index_input, false, true, "'from: lists'", s->place[KEY_blocks]);
	}
	for (int i = 0; i < written; i++) {
		if (!read[i] && !spec_names(s, s->input[i].name))
			input_unread(r, &s->input[i]);
		input_check(r, &s->input[i]);
	}
}
