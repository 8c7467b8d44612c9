/* What a spec says in expressions: masks, scores, inputs and layouts mean what they say, and random specs print
 * themselves. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/spec_help.h"

Suite *suite(void);

/* ---- masks, scores, inputs, layouts ---- */

/* What a mask is read as: the term's text, or a preset's name; NULL: refused. */
static const struct {
	const char *yaml, *text, *preset;
	int line, column;
} term_cases[] = {
	{"mask: k <= q", "k <= q", NULL, 1, 7},
	{"mask: \"k <= q\"", "k <= q", NULL, 1, 8},
	{"mask: '  k <= q '", "k <= q", NULL, 1, 10},
	{"mask:\n  k <= q", "k <= q", NULL, 2, 3},
	{"mask: |\n  k <= q\n  || k < 4\n", "k <= q || k < 4", NULL, 2, 3},
	{"mask: >-\n\n   k <= q\n   || k < 4\n", "k <= q || k < 4", NULL, 3, 4},
	{"mask: |2\n    k <= q\n", "k <= q", NULL, 2, 5},
	{"mask: k <= q\n  || k < 4\n", "k <= q || k < 4", NULL, 1, 7},
	{"mask: {all: [k <= q]}", "k <= q", NULL, 1, 14},
	{"mask: {any: [k <= q && h == 0]}", "k <= q && h == 0", NULL, 1, 14},
	{"mask: causal && document", "causal && document", NULL, 1, 7},
	{"mask: padding", NULL, "padding", 1, 7},
	{"mask: 'causal'", NULL, "causal", 1, 8},
	{"mask: {prefix: {n: 3}}", NULL, "prefix", 1, 8},
	{"mask: \"!causal\"", "!causal", NULL, 1, 8},
	{"mask: keep[q, k] != 0\ninputs: {keep: {dtype: u8, shape: [seq_q, seq_k]}}", "keep[q, k] != 0", NULL, 1, 7},
	{"mask: q-k", "q-k", NULL, 1, 7},
	{"mask: q", "q", NULL, 1, 7},
	{"mask: a - b", "a - b", NULL, 1, 7},
	{"mask: a-b", NULL, NULL, 0, 0},
	{"mask: all", NULL, NULL, 0, 0},
	{"mask: \"true\"", NULL, NULL, 0, 0},
	{"mask: \"\"", NULL, NULL, 0, 0},
	{"mask: -1", NULL, NULL, 0, 0},
	{"mask: 1.5", NULL, NULL, 0, 0},
	{"mask: softcap", NULL, NULL, 0, 0},
	{"mask: k \xC3\xBC q", NULL, NULL, 0, 0},
};
START_TEST(term_meaning)
{
	struct text yaml = {0};
	struct spec s;
	struct diag d = {0};
	text_addf(&yaml, "%s\nhead_dim: 64\n", term_cases[_i].yaml);
	const int result = spec_parse(&s, text_str(&yaml), yaml.len, "t.yaml", &d);
	ck_assert_msg(!result == (term_cases[_i].line > 0), "%s%s", term_cases[_i].yaml, text_str(&d.text));
	if (!result) {
		const struct term *term = &s.term[s.mask];
		ck_assert_int_eq(term->kind, term_cases[_i].text ? TERM_TEXT : TERM_PRESET);
		ck_assert_str_eq(term_cases[_i].text ? s.text + term->text : preset_table[term->preset].name,
		                 term_cases[_i].text ? term_cases[_i].text : term_cases[_i].preset);
		ck_assert_int_eq(term->place.line, term_cases[_i].line);
		ck_assert_int_eq(term->place.column, term_cases[_i].column);
		round_trip(&s);
	}
	text_free(&yaml);
	diag_free(&d);
}
END_TEST

/* The inputs of a spec, as spec_print writes them. */
static const struct {
	const char *yaml, *inputs;
} input_cases[] = {
	{"mask: causal", "none"},
	{"mask: document", "{doc: {dtype: i32, shape: [batch, seq_k], grad: false}}"},
	{"mask: {any: [document, causal && (padding || document)]}",
         "{doc: {dtype: i32, shape: [batch, seq_k], grad: false}, kv_len: {dtype: i32, shape: [batch], grad: false}}"},
	{"mask: {window: {left: \"w\", right: \"padding ? 1 : 2\"}}\ninputs: {w: {dtype: u8, shape: []}}",
         "{w: {dtype: u8, shape: [], grad: false}, kv_len: {dtype: i32, shape: [batch], grad: false}}"},
	{"mask: document\ninputs: {doc: {dtype: u8, shape: [4, seq_q]}}",
         "{doc: {dtype: u8, shape: [4, seq_q], grad: false}}"},
	{"score: bias", "{bias: {dtype: f32, shape: [batch, heads, seq_q, seq_k], grad: false}}"},
	{"score: \"bias * 2\"", "{bias: {dtype: f32, shape: [batch, heads, seq_q, seq_k], grad: false}}"},
	{"score: s + bias[h, q - k]\ninputs: {bias: {dtype: f32, shape: [heads, 257], grad: true}}\npasses: [forward, backward]",
         "{bias: {dtype: f32, shape: [heads, 257], grad: true}}"},
	{"score: [t5, t5_causal]", "{rel: {dtype: f32, shape: [heads, 32], grad: false}}"},
	{"sink: true", "{sink: {dtype: f32, shape: [heads], grad: false}}"},
	{"sink: true\npasses: [forward, backward]", "{sink: {dtype: f32, shape: [heads], grad: true}}"},
	{"sink: true\npasses: [forward, backward]\ninputs: {sink: {dtype: bf16, shape: [heads]}}",
         "{sink: {dtype: bf16, shape: [heads], grad: false}}"},
	{"score: alibi\nsink: true\nblocks: {size: 16, from: bitmap}",
         "{slope: {dtype: f32, shape: [heads], grad: false}, sink: {dtype: f32, shape: [heads], grad: false}, "
         "blocks: {dtype: u8, shape: [batch, heads, blocks_q, blocks_k], grad: false}}"},
	{"blocks: {size: 16, from: lists}",
         "{block_count: {dtype: i32, shape: [batch, heads, blocks_q], grad: false}, "
         "block_index: {dtype: i32, shape: [batch, heads, blocks_q, blocks_k], grad: false}}"},
};
START_TEST(inputs_declared)
{
	struct text yaml = {0}, printed = {0}, line = {0};
	text_addf(&yaml, "head_dim: 64\n%s\n", input_cases[_i].yaml);
	const struct spec s = parse(text_str(&yaml));
	spec_print(&printed, &s);
	text_addf(&line, "\ninputs: %s\n", input_cases[_i].inputs);
	ck_assert_msg(strstr(text_str(&printed), text_str(&line)), "%s\n%s", text_str(&yaml), text_str(&printed));
	for (int i = 0; i < s.input_count; i++)
		ck_assert_int_gt(s.input[i].place.line, 1);
	round_trip(&s);
	text_free(&yaml);
	text_free(&printed);
	text_free(&line);
}
END_TEST

/* A layout as numbers, as a picture, and in a file beside the spec. */
START_TEST(layouts_alike)
{
	static const char *const forms[] = {
		"{head_dim: 64, name: n, blocks: {size: 32, rows: [[1, 0], [], [0, 3, 3]]}}",
		"{head_dim: 64, name: n, blocks: {size: {q: 32, k: 32}, rows: ['##......', '', 1001]}}",
		"{head_dim: 64, name: n, blocks: {size: 32, file: layout.txt}}",
	};
	struct spec s[3];
	for (int i = 0; i < 3; i++) {
		struct diag d = {0};
		const int result = spec_parse(&s[i], forms[i], strlen(forms[i]), "tests/fuzz_spec/t.yaml", &d);
		ck_assert_msg(!result, "%s", text_str(&d.text));
		ck_assert(specs_equal(&s[0], &s[i]));
		round_trip(&s[i]);
		diag_free(&d);
	}
	ck_assert_int_eq(s[0].blocks.source, BLOCKS_ROWS);
	ck_assert(s[0].blocks.rows == 3 && s[0].blocks.columns == 4);
	ck_assert(s[0].block_rows[0][0] == 3 && s[0].block_rows[1][0] == 0 && s[0].block_rows[2][0] == 9);
}
END_TEST

/* The largest layout prints within the parser's limits. */
START_TEST(layout_largest)
{
	struct spec s = parse("{head_dim: 64, blocks: {size: 16, rows: ['#']}}");
	s.blocks.rows = s.blocks.columns = BLOCK_ROWS_MAX;
	memset(s.block_rows, 0xFF, sizeof s.block_rows);
	round_trip(&s);
}
END_TEST

/* ---- random specs ---- */

static uint64_t random_state = 1;
static int64_t random_below(int64_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (int64_t)(random_state % (uint64_t)n);
}

static struct tile_request random_tile(void)
{
	struct tile_request t = {16 * (1 + (int)random_below(16)), 16 * (1 + (int)random_below(16)), 0, 0, 0, 0};
	if (random_below(2))
		t.warps = 1 + (int)random_below(32);
	if (random_below(2))
		t.stages = 1 + (int)random_below(8);
	if (random_below(2))
		t.splits = 1 + (int)random_below(RECIPE_PARTS_MAX);
	if (random_below(2))
		t.heads = 1 + (int)random_below(RECIPE_HEADS_MAX);
	return t;
}

static int random_text(struct spec *s, const char *text)
{
	const int at = s->text_len;
	strcpy(s->text + at, text);
	s->text_len += (int)strlen(text) + 1;
	return at;
}

static int random_term_add(struct spec *s, enum term_kind kind)
{
	struct term *term = &s->term[s->term_count];
	term->kind = kind;
	term->preset = term->text = term->child = term->next = -1;
	return s->term_count++;
}

static const char *const random_texts[][3] = {
	[PRESET_MASK] = {"k <= q", "k <= q && q - k < 300 || k < 16", "k - q"},
	[PRESET_SCORE] = {"s", "s < 0 ? s : s * 0.5", "20 * tanh(s / 20) + h"},
	[PRESET_BLOCKS] = {"(q + k) % 2 == 0", "q*k<7", "k == random(1, q, h) % sk"},
};

static int random_leaf(struct spec *s, enum preset_kind kind)
{
	int preset = (int)random_below(preset_count);
	while (preset_table[preset].kind != kind)
		preset = (preset + 1) % preset_count;
	if (random_below(2)) {
		const int self = random_term_add(s, TERM_TEXT);
		s->term[self].text = random_text(s, random_texts[kind][random_below(3)]);
		return self;
	}
	const int self = random_term_add(s, TERM_PRESET);
	s->term[self].preset = preset;
	for (int p = 0; p < SPEC_ARGS_MAX && preset_table[preset].param[p].name; p++) {
		const struct preset_param *param = &preset_table[preset].param[p];
		struct term_arg *arg = &s->term[self].arg[p];
		if (!random_below(4)) {
			arg->kind = ARG_TEXT;
			arg->text = random_text(s, random_below(2) ? "h" : "max(4 * h, w) + 1");
		} else if (param->fallback && !strcmp(param->fallback, "unbounded") && random_below(2)) {
			arg->kind = ARG_UNBOUNDED;
		} else if (param->real) {
			arg->kind = ARG_REAL;
			arg->f = fmin(exp((double)random_below(100000) / 1000 - 50), param->high);
		} else {
			arg->kind = ARG_INT;
			arg->i = (int64_t)fmax((double)random_below(random_below(2) ? 8 : 2147483648), param->low);
		}
	}
	return self;
}

static int random_term(struct spec *s, enum preset_kind kind, int depth)
{
	if (!depth || s->term_count > 8 || !random_below(3))
		return random_leaf(s, kind);
	const int self = random_term_add(s, kind == PRESET_SCORE ? TERM_CHAIN : random_below(2) ? TERM_ALL : TERM_ANY);
	int last = -1;
	for (int left = 2 + (int)random_below(2); left; left--) {
		const int member = random_term(s, kind, kind == PRESET_SCORE ? 0 : depth - 1);
		if (last < 0)
			s->term[self].child = member;
		else
			s->term[last].next = member;
		last = member;
	}
	return self;
}

static void random_input(struct spec *s, const struct input *like, bool only)
{
	if (spec_input_find(s, like->name) >= 0)
		return;
	struct input *in = &s->input[s->input_count++];
	strcpy(in->name, like->name);
	in->dtype = only                        ? like->dtype
	            : like->dtype <= INPUT_BF16 ? (enum input_dtype)random_below(3)
	                                        : (enum input_dtype)(INPUT_I32 + random_below(2));
	in->dims = like->dims;
	for (int d = 0; d < in->dims; d++)
		in->dim[d] = like->dim[d];
	in->grad = !only && in->dtype <= INPUT_BF16 && s->passes[PASS_BACKWARD] && random_below(2);
}

/* Terms in the order of the file, and all inputs that they read. */
static void random_terms(struct spec *s)
{
	static const struct input sink = {.name = "sink", .dims = 1, .dim = {{DIM_HEADS, 0}}};
	static const struct input w = {.name = "w", .dtype = INPUT_I32};
	static const struct input bitmap = {
		.name = "blocks",
		.dtype = INPUT_U8,
		.dims = 4,
		.dim = {{DIM_BATCH, 0}, {DIM_HEADS, 0}, {DIM_BLOCKS_Q, 0}, {DIM_BLOCKS_K, 0}}};
	s->mask = random_below(2) ? random_term(s, PRESET_MASK, 3) : -1;
	s->score = random_below(2) ? random_term(s, PRESET_SCORE, 1) : -1;
	s->sink = random_below(2);
	s->blocks.keep = -1;
	s->blocks.source = random_below(2) ? (enum blocks_source)random_below(4) : BLOCKS_NONE;
	if (s->blocks.source != BLOCKS_NONE) {
		s->blocks.size_q = 16 * (1 + (int)random_below(100));
		s->blocks.size_k = random_below(2) ? s->blocks.size_q : 16 * (1 + (int)random_below(100));
	}
	if (s->blocks.source == BLOCKS_KEEP)
		s->blocks.keep = random_term(s, PRESET_BLOCKS, 2);
	if (s->blocks.source == BLOCKS_ROWS) {
		s->blocks.rows = 1 + (int)random_below(random_below(2) ? 4 : BLOCK_ROWS_MAX);
		for (int i = 0; i < s->blocks.rows; i++) {
			const int k = (int)random_below(random_below(2) ? 4 : BLOCK_ROWS_MAX);
			s->block_rows[i][k / 64] |= (uint64_t)1 << k % 64;
			s->blocks.columns = k >= s->blocks.columns ? k + 1 : s->blocks.columns;
		}
	}
	for (int at = 0; at < s->text_len; at += (int)strlen(s->text + at) + 1)
		if (strstr(s->text + at, "w)"))
			random_input(s, &w, false);
	for (int i = 0; i < s->term_count; i++)
		if (s->term[i].kind == TERM_PRESET && preset_table[s->term[i].preset].input.name[0])
			random_input(s, &preset_table[s->term[i].preset].input, false);
	if (s->sink)
		random_input(s, &sink, false);
	if (s->blocks.source == BLOCKS_BITMAP)
		random_input(s, &bitmap, true);
}

static void random_spec(struct spec *s)
{
	memset(s, 0, sizeof *s);
	const int letters = 1 + (int)random_below(63);
	for (int i = 0; i < letters; i++)
		s->name[i] = "abcXYZ0189_-"[random_below(i ? 12 : 11)];
	s->head_dim_qk = 16 + 8 * (int)random_below(31);
	s->head_dim_v = random_below(2) ? s->head_dim_qk : 16 + 8 * (int)random_below(31);
	s->dtype = random_below(2) ? DTYPE_FP16 : DTYPE_BF16;
	do {
		s->dropout = random_below(3) ? (double)random_below(1 << 30) / (1 << 30) : 0;
		s->keep_256 = (int)floor(256 * (1 - s->dropout) + 0.5);
	} while (s->dropout > 0 && (s->keep_256 < 1 || s->keep_256 > 255));
	s->softmax_scale = random_below(2) ? 1 / sqrt(s->head_dim_qk) : exp((double)random_below(100000) / 1000 - 50);
	s->kv_group = (int)random_below(20);
	s->passes[PASS_FORWARD] = true;
	s->passes[PASS_BACKWARD] = random_below(2);
	s->outputs = s->passes[PASS_BACKWARD] || random_below(2) ? OUTPUT_OUT | OUTPUT_LSE : OUTPUT_OUT;
	s->deterministic = random_below(2);
	s->assume.heads_kv = 1 + random_below(40);
	s->assume.heads_q = s->assume.heads_kv * (s->kv_group ? s->kv_group : 1 + random_below(9));
	s->assume.batch = 1 + random_below(1000);
	s->assume.seqlen_q = 1 + random_below(100000);
	s->assume.seqlen_k = random_below(2) ? s->assume.seqlen_q : 1 + random_below(100000);
	s->assume.align = random_below(2) ? 16 : 2;
	if (random_below(2))
		s->tile[PASS_FORWARD] = random_tile();
	if (s->passes[PASS_BACKWARD] && random_below(2))
		s->tile[PASS_BACKWARD] = random_tile();
	for (int i = 0; i < TARGET_COUNT; i++)
		s->targets[i] = random_below(2);
	s->targets[random_below(TARGET_COUNT)] = true;
	random_terms(s);
}

START_TEST(random_round_trip)
{
	for (int i = 0; i < 3000; i++) {
		struct spec s;
		random_spec(&s);
		round_trip(&s);
	}
}
END_TEST

#define ROWS(table) (int)(sizeof(table) / sizeof *(table))

Suite *suite(void)
{
	Suite *s = suite_create("spec_terms");
	TCase *t = tcase_create("terms");
	tcase_set_timeout(t, 60);
	suite_add_tcase(s, t);
	tcase_add_loop_test(t, term_meaning, 0, ROWS(term_cases));
	tcase_add_loop_test(t, inputs_declared, 0, ROWS(input_cases));
	tcase_add_test(t, layouts_alike);
	tcase_add_test(t, layout_largest);
	tcase_add_test(t, random_round_trip);
	return s;
}
