#include "gen/signature.h"

#include <string.h>

#include "gen/line.h"
#include "gen/words.h"

enum { KEEP_MIN = 1, OUTPUTS_ALL = OUTPUT_OUT | OUTPUT_LSE };

void signature_make(struct signature *signature, const struct spec *spec)
{
	*signature = (struct signature){
		.dtype = spec->dtype,
		.layout = spec->layout,
		.head_dim_qk = spec->head_dim_qk,
		.head_dim_v = spec->head_dim_v,
		.outputs = spec->outputs,
		.keep_256 = spec->keep_256,
		.block_q = spec->blocks.size_q,
		.block_k = spec->blocks.size_k,
		.input_count = spec->input_count,
	};
	for (int i = 0; i < spec->input_count; i++) {
		signature->input[i] = spec->input[i];
		signature->input[i].place = (struct place){0};
	}
}

int signature_input(const struct signature *signature, const char *name)
{
	for (int i = 0; i < signature->input_count; i++)
		if (!strcmp(signature->input[i].name, name))
			return i;
	return -1;
}

static const char *dim_word(const struct input_dim *dim) { return dim->kind == DIM_CONST ? "const" : dim_names[dim->kind]; }

void signature_print(struct text *text, const struct signature *s)
{
	text_addf(text, "signature dtype %s layout %s head_dim %d value_dim %d outputs %u keep %d block_q %d block_k %d\n",
	          dtype_words[s->dtype], layout_words[s->layout], s->head_dim_qk, s->head_dim_v, s->outputs, s->keep_256,
	          s->block_q, s->block_k);
	for (int i = 0; i < s->input_count; i++) {
		const struct input *in = &s->input[i];
		text_addf(text, "input %s dtype %s grad %d dims %d", in->name, input_dtype_names[in->dtype], in->grad, in->dims);
		for (int d = 0; d < in->dims; d++)
			text_addf(text, " dim %s size %d", dim_word(&in->dim[d]),
			          in->dim[d].kind == DIM_CONST ? (int)in->dim[d].size : 0);
		text_puts(text, "\n");
	}
}

static void head_parse(struct signature *s, struct line *line)
{
	line_expect(line, "signature");
	s->dtype = (enum dtype)line_rule(line, "dtype", dtype_words, DTYPE_BF16 + 1);
	s->layout = (enum batch_layout)line_rule(line, "layout", layout_words, LAYOUT_PACKED + 1);
	s->head_dim_qk = line_number(line, "head_dim", HEAD_DIM_MIN, HEAD_DIM_MAX);
	s->head_dim_v = line_number(line, "value_dim", HEAD_DIM_MIN, HEAD_DIM_MAX);
	s->outputs = (unsigned)line_number(line, "outputs", 1, OUTPUTS_ALL);
	s->keep_256 = line_number(line, "keep", KEEP_MIN, DROPOUT_LEVELS);
	s->block_q = line_number(line, "block_q", 0, LENGTH_MAX);
	s->block_k = line_number(line, "block_k", 0, LENGTH_MAX);
}

static void input_parse(struct signature *s, struct line *line)
{
	const char *words[DIM_KIND_COUNT];
	struct input in = {0};
	for (int i = 0; i < DIM_KIND_COUNT; i++)
		words[i] = dim_word(&(struct input_dim){.kind = (enum dim_kind)i});
	line_name(line, in.name, sizeof in.name);
	in.dtype = (enum input_dtype)line_rule(line, "dtype", input_dtype_names, INPUT_DTYPE_COUNT);
	in.grad = line_number(line, "grad", 0, 1);
	in.dims = line_number(line, "dims", 0, INPUT_DIMS_MAX);
	for (int d = 0; d < in.dims; d++) {
		struct input_dim *dim = &in.dim[d];
		dim->kind = (enum dim_kind)line_rule(line, "dim", words, DIM_KIND_COUNT);
		const bool fixed = dim->kind == DIM_CONST;
		dim->size = line_number(line, "size", fixed, fixed ? INT32_MAX : 0);
		if (!line->wrong && ((dim->kind == DIM_BLOCKS_Q && !s->block_q) || (dim->kind == DIM_BLOCKS_K && !s->block_k)))
			line->wrong = "blocks only where there is a block layout";
	}
	if (!line->wrong && signature_input(s, in.name) >= 0)
		line->wrong = "one input of each name";
	if (s->input_count == SPEC_INPUTS_MAX)
		line->wrong = "at most 12 inputs";
	else
		s->input[s->input_count++] = in;
}

static void line_parse(void *into, struct line *line, int number)
{
	struct signature *s = into;
	if (number == 1)
		head_parse(s, line);
	else if (line_take(line, "input"))
		input_parse(s, line);
	else
		line->wrong = "input";
}

int signature_parse(struct signature *signature, const char *text, struct diag *diag)
{
	struct signature made = {0};
	if (!*text)
		return diag_fail(diag, "The signature is empty; its first line begins with 'signature dtype'.");
	if (lines_read("signature", text, line_parse, &made, diag))
		return -1;
	*signature = made;
	return 0;
}
