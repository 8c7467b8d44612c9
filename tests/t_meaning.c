/* What specs mean to the reference: every construct of the language against pictures and numbers worked out by hand, and
 * every gradient against differences. */
#include "tests/world.h"

#include "check/program.h"
#include "tests/random_expr.h"

/* ---- which cells are visible ------------------------------------------------------------------------------------------- */

/* A picture has a row for each query position (or block of `unit` positions), '#' where the key is visible; b = 1, h = 2
 * of 2 batch entries and 4 query heads over 2. `data` fills the first inputs, `data2` the second, from their last batch
 * entry's and head's elements on: all batch entries and heads hold the same. */
static const struct {
	const char *name, *spec, *picture;
	int unit_q, unit_k, cut;    /* 0: 1; positions that the last blocks lack */
	double data[16], data2[16];
} pictures[] = {
	{.name = "none", "{head_dim: 16}", "###|###"},
	{.name = "causal, MSK-05", "{head_dim: 16, mask: causal}", "####.|#####"},
	{.name = "decode, MSK-04", "{head_dim: 16, mask: causal}", "#####"},
	{.name = "more queries than keys, MSK-01", "{head_dim: 16, mask: causal}", "..|..|#.|##"},
	{.name = "top left, MSK-05", "{head_dim: 16, mask: causal_top_left}", "#....|##..."},
	{.name = "top left, more queries", "{head_dim: 16, mask: causal_top_left}", "#.|##|##|##"},
	{.name = "window", "{head_dim: 16, mask: {window: {left: 1, right: 0}}}", "#...|##..|.##.|..##"},
	{.name = "window, both sides", "{head_dim: 16, mask: {window: {left: 1, right: 1}}}", "##..|###.|.###|..##"},
	{.name = "window, unbounded", "{head_dim: 16, mask: {window: {right: 0}}}", "###..|####.|#####"},
	{.name = "window past the keys", "{head_dim: 16, mask: {window: {left: 0, right: 0}}}", "..|..|#.|.#"},
	{.name = "window behind the query", "{head_dim: 16, mask: '(q - sq) - (k - sk) <= 3 && k - sk <= q - sq - 2'}",
         "....|....|#...|##.."},
	{.name = "all", "{head_dim: 16, mask: {all: [causal, causal_top_left]}}", "#....|##...|###.."},
	{.name = "any", "{head_dim: 16, mask: {any: [causal_top_left, {window: {left: 0, right: 0}}]}}", "#.#..|##.#.|###.#"},
	{.name = "any in all", "{head_dim: 16, mask: {all: [causal, {any: ['k == 0', 'k == q']}]}}", "#..|##.|#.#"},
	{.name = "prefix", "{head_dim: 16, mask: {prefix: {n: 2}}}", "##..|##..|###.|####"},
	{.name = "document", "{head_dim: 16, mask: document}", "##..|##..|..##|..##", .data = {4, 4, 9, 9}},
	{.name = "document, decode", "{head_dim: 16, mask: document}", "..##|..##", .data = {4, 4, 9, 9}},
	{.name = "document, queries before the keys", "{head_dim: 16, mask: document}", "#..|#..|#..|.##|.##", .data = {4, 9, 9}},
	{.name = "packed", "{head_dim: 16, mask: {all: [causal, document]}}", "#...|##..|..#.|..##", .data = {4, 4, 9, 9}},
	{.name = "padding", "{head_dim: 16, mask: padding}", "##..|##..", .data = {7, 2}},
	{.name = "dilated", "{head_dim: 16, mask: {dilated: {step: 2, left: 2, right: 0}}}", "#....|.#...|#.#..|.#.#.|..#.#"},
	{.name = "dilated, open", "{head_dim: 16, mask: {dilated: {step: 3}}}", "#..#.|.#..#|..#..|#..#.|.#..#"},
	{.name = "&& before ||", "{head_dim: 16, mask: 'k == 0 || q > 1 && k < 2'}", "#..|#..|##."},
	{.name = "!", "{head_dim: 16, mask: '!(k <= q)'}", ".##|..#|..."},
	{.name = "< before ==", "{head_dim: 16, mask: 'k < 1 == q < 2'}", "#..|#..|.##"},
	{.name = "!= of conditions", "{head_dim: 16, mask: '(k < 1) != (q < 2)'}", ".##|.##|#.."},
	{.name = "* before +", "{head_dim: 16, mask: 'k == 1 + 1 * 2'}", "...#."},
	{.name = "- to the left", "{head_dim: 16, mask: 'k == 5 - 2 - 1'}", "..#.."},
	{.name = "? to the right", "{head_dim: 16, mask: 'q == 0 ? k == 0 : q == 1 ? k == 1 : k == 2'}", "#..|.#.|..#"},
	{.name = "/ downwards", "{head_dim: 16, mask: '(k - 2) / 2 == -1'}", "##.."},
	{.name = "% of the divisor's sign", "{head_dim: 16, mask: '(k - 3) % 2 == 1'}", "#.#."},
	{.name = "> and >=", "{head_dim: 16, mask: 'k > q && q >= k - 1'}", ".#..|..#."},
	{.name = "floats", "{head_dim: 16, mask: 'k < 1.5 || 1e1 * k >= 3e1'}", "##.#"},
	{.name = "float division", "{head_dim: 16, mask: 'q / 2.0 < 1'}", "###|###|..."},
	{.name = "floor", "{head_dim: 16, mask: 'floor(k / 2.0 - 1) == -1'}", "##.."},
	{.name = "min, max", "{head_dim: 16, mask: 'min(q, k) == 0 && max(q, k) < 2'}", "##.|#..|..."},
	{.name = "abs, unary minus", "{head_dim: 16, mask: 'abs(q - k) <= -(-1)'}", "##.|###|.##"},
	{.name = "exp, log, sqrt", "{head_dim: 16, mask: 'exp(k) < 8 && log(k + 1) > 0.5 && sqrt(k) > 1.2'}", "..#."},
	{.name = "names", "{head_dim: 16, mask: 'k < hq && q < hk && b == 1 && h == 2'}", "####.|####.|....."},
	{.name = "lengths", "{head_dim: 16, mask: 'k == sq || q == sk - 3'}", "..#..|..#.."},
	{.name = "true, false", "{head_dim: 16, mask: 'q == 0 ? true : false'}", "###|..."},
	{.name = "random", "{head_dim: 16, mask: 'random(5, q, k) < 32768'}",
         ".##...###.##|#.#...#.....|.##..#####..|##.#...#..##"},
	{.name = "random, exactly", "{head_dim: 16, mask: 'k == 0 ? random(1, 2, 3) == 53471 : random(-1, 7, -2) == 54669'}",
         "###"},
	{.name = "presets in expressions", "{head_dim: 16, mask: 'causal || k == 2'}", "#.#|###|###"},
	{.name = "with arguments", "{head_dim: 16, mask: 'window(1, 0) && k > 0 || prefix(1)'}", "#...|##..|###.|####"},
	{.name = "argument that is an expression", "{head_dim: 16, mask: {window: {left: 'h - 1', right: 0}}}", "#..|##.|.##"},
	{.name = "input of a row",
         "{head_dim: 16, mask: 'k < limit[q]', inputs: {limit: {dtype: i32, shape: [seq_q]}}}",
         "...|#..|###", .data = {0, 1, 3}},
	{.name = "nearest element, above",
         "{head_dim: 16, mask: 'k < limit[q + 1]', inputs: {limit: {dtype: i32, shape: [seq_q]}}}",
         "#..|###|###", .data = {0, 1, 3}},
	{.name = "nearest element, below",
         "{head_dim: 16, mask: 'k < limit[q - 1]', inputs: {limit: {dtype: i32, shape: [seq_q]}}}",
         "...|...|#..", .data = {0, 1, 3}},
	{.name = "one value", "{head_dim: 16, mask: 'k < n', inputs: {n: {dtype: i32, shape: []}}}", "##.", .data = {2}},
	{.name = "two inputs",
         "{head_dim: 16, mask: 'x[q] == y[k]', inputs: {x: {dtype: i32, shape: [seq_q]}, y: {dtype: u8, shape: [seq_k]}}}",
         "#..#|.##.", .data = {1, 2}, .data2 = {1, 2, 2, 1}},
	{.name = "rows of blocks", "{head_dim: 16, blocks: {size: 16, rows: [[1], [0, 1], []]}}", ".#|##|..", 16, 16},
	{.name = "outside of the rows", "{head_dim: 16, blocks: {size: 16, rows: [[1], [0, 1]]}}", ".#.|##.|...", 16, 16},
	{.name = "local blocks", "{head_dim: 16, blocks: {size: 16, keep: {local: {left: 1, right: 0}}}}", "#..|##.|.##", 16, 16, 5},
	{.name = "local blocks, end to end", "{head_dim: 16, blocks: {size: 16, keep: {local: {left: 1, right: 0}}}}", "##.|.##",
         16, 16, 5},
	{.name = "global blocks", "{head_dim: 16, blocks: {size: 16, keep: {global: {n: 1}}}}", "###|#..|#..", 16, 16},
	{.name = "strided blocks", "{head_dim: 16, blocks: {size: 16, keep: {strided: {step: 2}}}}", ".#.#", 16, 16},
	{.name = "random blocks", "{head_dim: 16, blocks: {size: 16, keep: {random: {seed: 7, chance: 0.3}}}}",
         ".....|.....|....#|.#.##", 16, 16},
	{.name = "blocks by expression", "{head_dim: 16, blocks: {size: {q: 16, k: 32}, keep: 'k == q || k == sk - 1 && q == sq - 1'}}",
         "#..|.#.|..#|..#", 16, 32, 3},
	{.name = "a union", "{head_dim: 16, blocks: {size: 16, keep: {any: [{global: {n: 1}}, {local: {left: 0, right: 0}}]}}}",
         "###|##.|#.#", 16, 16},
	{.name = "a bitmap", "{head_dim: 16, blocks: {size: 16, from: bitmap}}", "#.#|.#.", 16, 16, 1, .data = {1, 0, 7, 0, 1, 0}},
	{.name = "lists", "{head_dim: 16, blocks: {size: 16, from: lists}}", "#.#|...|.#.|###", 16, 16, 1, .data = {2, 0, 9, 3},
         .data2 = {2, 0, 1, 0, 0, 0, 5, 1, -1, 0, 1, 2}},
	{.name = "blocks and a mask", "{head_dim: 16, mask: 'k < 16', blocks: {size: 16, rows: [[1], [0, 1]]}}", "..|#.", 16, 16},
};

/* The last elements of an input are those of the last batch entry and head; they are repeated before. */
static void data_put(struct world *w, int input, const double *data)
{
	const struct ref_input *in = &w->input[input];
	int64_t period = 1;
	for (int d = 0; d < in->dims; d++)
		if (w->spec->input[input].dim[d].kind != DIM_HEADS &&
		    (w->spec->input[input].dim[d].kind != DIM_BATCH || in->dims == 1))
			period *= in->dim[d];
	for (int64_t i = 0; i < w->n_input[input]; i++)
		w->data[input][i] = data[i % period];
}

START_TEST(test_picture)
{
	const char *p = pictures[_i].picture;
	const int unit_q = pictures[_i].unit_q ? pictures[_i].unit_q : 1, unit_k = pictures[_i].unit_k ? pictures[_i].unit_k : 1;
	const int64_t columns = (int64_t)strcspn(p, "|"), rows = (int64_t)(strlen(p) + 1) / (columns + 1);
	const struct ref_case c = shape(2, 4, 2, rows * unit_q - pictures[_i].cut, columns * unit_k - pictures[_i].cut, 1, 1);
	struct world w;
	world_make(&w, &c, INPUT_ZERO, 1);
	world_mean(&w, pictures[_i].spec, 1);
	if (w.c.inputs)
		data_put(&w, 0, pictures[_i].data);
	if (w.c.inputs > 1)
		data_put(&w, 1, pictures[_i].data2);
	for (int64_t q = 0; q < c.seqlen_q; q++)
		for (int64_t k = 0; k < c.seqlen_k; k++) {
			bool want = p[q / unit_q * (columns + 1) + k / unit_k] == '#';
			ck_assert_msg(ref_visible(&w.c, 1, 2, q, k) == want, "%s: row %" PRId64 ", key %" PRId64 ": not %s",
			              pictures[_i].name, q, k, want ? "visible" : "hidden");
		}
	world_free(&w);
}
END_TEST

/* ---- logits ------------------------------------------------------------------------------------------------------------ */

/* At b = 1, h = 2, q = 3 of 5, k = 1 of 7, with inputs that hold 0, 1, 2, ... in order. The query stands at key 5 when ends
 * are aligned, four keys after this one. */
static const struct {
	const char *score, *inputs;
	double s, want, slope;
	int64_t index;      /* of the first input: the element that it reads, -1: none */
	double input_slope;
} logits[] = {
	{"none", "", 1.25, 1.25, 1, -1, 0},
	{"s", "", 1.25, 1.25, 1, -1, 0},
	{"2 * s + q - k", "", 1.25, 4.5, 2, -1, 0},
	{"'s * s - 3 / s'", "", 2, 2.5, 4.75, -1, 0},
	{"{softcap: {cap: 4}}", "", 2, 1.8484686290400391, 0.78644773296592741, -1, 0},
	{"[{softcap: {cap: 4}}, '2 * s']", "", 2, 3.6969372580800782, 1.5728954659318548, -1, 0},
	{"['2 * s', {softcap: {cap: 4}}, 's + 1']", "", 1, 2.8484686290400391, 1.5728954659318548, -1, 0},
	{"'tanh(s) + exp(s) + log(s) + sqrt(s) + sigmoid(s)'", "", 1, 5.2109345630448148,
         0.41997434161402614 + 2.718281828459045 + 1 + 0.5 + 0.19661193324148185, -1, 0},
	{"'-abs(s) + min(s, 0) + max(s, -9.0)'", "", -2, -6, 3, -1, 0},
	{"'s > 1 ? s * 3 : s * 5'", "", 2, 6, 3, -1, 0},
	{"'s > 1 ? s * 3 : s * 5'", "", 1, 5, 5, -1, 0},
	{"'s + floor(s)'", "", 2.5, 4.5, 1, -1, 0},
	{"'s + q / 2 + q / 2.0 + (k - 3) % 5'", "", 0, 1 + 1.5 + 3, 1, -1, 0},
	{"alibi", "inputs: {slope: {dtype: f32, shape: [heads], grad: true}}, ", 1, 1 - 2 * 4, 1, 2, -4},
	{"bias", "inputs: {bias: {dtype: f32, shape: [batch, heads, seq_q, seq_k], grad: true}}, ", 1,
         1 + ((1 * 4 + 2) * 5 + 3) * 7 + 1, 1, ((1 * 4 + 2) * 5 + 3) * 7 + 1, 1},
	{"t5", "inputs: {rel: {dtype: f32, shape: [heads, 32], grad: true}}, ", 1, 1 + 64 + 4, 1, 64 + 4, 1},
	{"t5_causal", "inputs: {rel: {dtype: f32, shape: [heads, 32], grad: true}}, ", 1, 1 + 64 + 4, 1, 64 + 4, 1},
	{"'s * (1 + w[h]) * w[h]'", "inputs: {w: {dtype: f32, shape: [heads], grad: true}}, ", 0.5, 0.5 * 3 * 2, 6, 2,
         0.5 * 2}, /* of the first of its two places alone */
	{"'s + w[q - 9, k + 9] * 2'", "inputs: {w: {dtype: f32, shape: [seq_q, seq_k], grad: true}}, ", 1, 13, 1, 6, 2},
	{"'softcap(4.0) * w'", "inputs: {w: {dtype: f32, shape: [], grad: true}}, ", 2, 0, 0, 0, 1.8484686290400391},
	{"'bias - bias[0, 0, 0, 0]'", "inputs: {bias: {dtype: f32, shape: [batch, heads, seq_q, seq_k]}}, ", 1,
         1 + ((1 * 4 + 2) * 5 + 3) * 7 + 1, 1, -1, 0},
};

START_TEST(test_logit)
{
	char spec[512];
	const struct ref_case c = shape(2, 4, 2, 5, 7, 1, 1);
	const struct ref_cell at = {1, 2, 3, 1};
	struct ref_slopes slopes;
	struct world w;
	world_make(&w, &c, INPUT_ZERO, 1);
	snprintf(spec, sizeof spec, "{head_dim: 16, passes: [forward, backward], %sscore: %s}", logits[_i].inputs, logits[_i].score);
	world_mean(&w, spec, 1);
	for (int64_t e = 0; w.c.inputs && e < w.n_input[0]; e++)
		w.data[0][e] = (double)e;
	const double logit = ref_logit_slopes(&slopes, &w.c, &at, logits[_i].s, false);
	ck_assert_double_eq(logit, ref_logit(&w.c, &at, logits[_i].s, false));
	ck_assert_double_eq_tol(logit, logits[_i].want, 1e-12);
	ck_assert_double_eq_tol(slopes.s, logits[_i].slope, 1e-12);
	ck_assert_double_eq_tol(ref_logit(&w.c, &at, logits[_i].s, true), logits[_i].want, 1e-5);
	ck_assert_int_eq(slopes.reads > 0, logits[_i].index >= 0);
	if (slopes.reads) {
		ck_assert_int_eq(slopes.read[slopes.reads - 1].index, logits[_i].index);
		ck_assert_double_eq_tol(slopes.read[slopes.reads - 1].slope, logits[_i].input_slope, 1e-12);
	}
	world_free(&w);
}
END_TEST

START_TEST(test_single) /* every step in float32: a number that float32 does not hold is lost */
{
	const struct ref_case c = shape(1, 1, 1, 1, 1, 1, 1);
	const struct ref_cell at = {0};
	struct world w;
	world_make(&w, &c, INPUT_ZERO, 1);
	world_mean(&w, "{head_dim: 16, score: '(s + 16777217) - 16777216.0'}", 1);
	ck_assert_double_eq(ref_logit(&w.c, &at, 0, false), 1);
	ck_assert_double_eq(ref_logit(&w.c, &at, 0, true), 0);
	world_free(&w);
}
END_TEST

START_TEST(test_t5_buckets) /* the published formula, in logarithms; the input holds the buckets' numbers */
{
	const struct ref_case c = shape(1, 1, 1, 600, 600, 1, 1);
	struct world w;
	world_make(&w, &c, INPUT_ZERO, 1);
	world_mean(&w, _i ? "{head_dim: 16, score: t5_causal}" : "{head_dim: 16, score: t5}", 1);
	for (int e = 0; e < 32; e++)
		w.data[0][e] = e;
	const int exact = _i ? 16 : 8;
	for (int64_t k = 0; k < 600; k++) {
		const int64_t back = 300 - k;
		const double n = (double)(_i ? back > 0 ? back : 0 : back < 0 ? -back : back);
		double bucket = n;
		if (n >= exact)
			bucket = fmin(exact + floor(log(n / exact) / log(128.0 / exact) * exact + 1e-9), 2 * exact - 1);
		if (!_i && back < 0)
			bucket += 16;
		ck_assert_double_eq(ref_logit(&w.c, &(struct ref_cell){0, 0, 300, k}, 0, false), bucket);
	}
	world_free(&w);
}
END_TEST

/* ---- whole attentions -------------------------------------------------------------------------------------------------- */

START_TEST(test_by_hand) /* two keys with ALiBi, a cap and a sink: weights 1/2, 1/4, and 1/4 for the sink */
{
	const struct ref_case c = shape(1, 1, 1, 1, 2, 1, 1);
	struct world w;
	world_make(&w, &c, INPUT_ZERO, 1);
	world_mean(&w, "{head_dim: 16, mask: causal, score: alibi, sink: true, passes: [forward, backward], "
	               "inputs: {slope: {dtype: f32, shape: [heads], grad: true}}}", 1);
	const int slope = spec_input_find(w.spec, "slope"), sink = spec_input_find(w.spec, "sink");
	w.c.softmax_scale = 1;
	w.q[0] = 1, w.k[0] = 3, w.k[1] = 3 + log(2) - 2, w.data[slope][0] = 2, w.data[sink][0] = 1;
	w.v[0] = 4, w.v[1] = 8, w.dout[0] = 1, w.dlse[0] = 0;
	world_forward(&w);
	world_backward(&w);
	/* logits 3 - 2 * 1 = 1, and 1 + ln 2; the sink's is 1 */
	ck_assert_double_eq_tol(w.f.out[0], 4 * 0.25 + 8 * 0.5, 1e-14);
	ck_assert_double_eq_tol(w.f.lse[0], 1 + log(4), 1e-14);
	/* dS = P (dP - O): 1/4 (4 - 5), 1/2 (8 - 5), and 1/4 (0 - 5) */
	ck_assert_double_eq_tol(w.g.dkey[0], -0.25, 1e-14);
	ck_assert_double_eq_tol(w.g.dkey[1], 1.5, 1e-14);
	ck_assert_double_eq_tol(w.g.dvalue[0], 0.25, 1e-14);
	ck_assert_double_eq_tol(w.grad[slope][0], 0.25, 1e-14);
	ck_assert_double_eq_tol(w.spread[slope][0], 0.25, 1e-14);
	ck_assert_double_eq_tol(w.grad[sink][0], -1.25, 1e-14);
	world_free(&w);
}
END_TEST

START_TEST(test_sink_alone) /* a row without a visible key */
{
	const struct ref_case c = shape(1, 1, 1, 3, 1, 4, 4);
	struct world w;
	world_make(&w, &c, INPUT_GAUSS, 1);
	world_mean(&w, "{head_dim: 16, mask: causal, sink: true, passes: [forward, backward]}", 1);
	w.data[0][0] = -0.75;
	world_forward(&w);
	world_backward(&w);
	ck_assert_double_eq_tol(w.f.lse[0], -0.75, 1e-15);
	ck_assert_double_eq(tensor_max(w.f.out, 8), 0);
	ck_assert_double_eq(tensor_max(w.g.dquery, 8), 0);
	ck_assert_double_lt(-0.75, w.f.lse[2]);
	world_free(&w);
}
END_TEST

#define BOTH ", passes: [forward, backward]}"
static const char *const sloped[] = {
	"{head_dim: 16, mask: causal, score: {softcap: {cap: 2}}" BOTH,
	"{head_dim: 16, mask: causal, score: alibi, inputs: {slope: {dtype: f32, shape: [heads], grad: true}}" BOTH,
	"{head_dim: 16, score: bias, sink: true, inputs: {bias: {dtype: f32, shape: [batch, heads, seq_q, seq_k], grad: true}}" BOTH,
	"{head_dim: 16, score: t5, inputs: {rel: {dtype: f32, shape: [heads, 32], grad: true}}" BOTH,
	"{head_dim: 16, mask: 'k != 2 || h == 1', score: 's * sigmoid(gate[b, h, k]) + row[h, q]', inputs: "
	"{gate: {dtype: f32, shape: [batch, heads, seq_k], grad: true}, row: {dtype: bf16, shape: [heads, seq_q], grad: true}}" BOTH,
	"{head_dim: 16, score: 'max(s, 0.3 * s) + w[h / 2, (q - k + 16) % 5] * w[1, 0]', inputs: "
	"{w: {dtype: f32, shape: [2, 5], grad: true}}" BOTH,
	"{head_dim: 16, score: ['c * tanh(s / c)', 'exp(0.1 * s) / sqrt(1.0 + c * c)'], sink: true, "
	"inputs: {c: {dtype: f32, shape: [], grad: true}}" BOTH,
	"{head_dim: 16, score: {softcap: {cap: '2 + exp(c[h])'}}, inputs: {c: {dtype: f32, shape: [heads], grad: true}}" BOTH,
	"{head_dim: 16, mask: document, blocks: {size: 16, rows: [[0]]}, score: 'min(abs(s), 3.0) * log(2.0 + exp(t[k]))', inputs: "
	"{t: {dtype: f32, shape: [seq_k], grad: true}}" BOTH,
};

START_TEST(test_gradients) /* of everything, with GQA and dropout and a gradient of LSE, against central differences */
{
	struct ref_case c = shape(2, 4, 2, 6, 5, 8, 8);
	c.keep_256 = _i % 2 ? 150 : 256;
	c.softmax_scale = 0.3;
	struct world w;
	world_make(&w, &c, INPUT_GAUSS, 6);
	world_mean(&w, sloped[_i], 3);
	world_backward(&w);
	slope_check(&w, "query", w.q, w.n_q, w.g.dquery);
	slope_check(&w, "key", w.k, w.n_k, w.g.dkey);
	slope_check(&w, "value", w.v, w.n_v, w.g.dvalue);
	for (int i = 0; i < w.c.inputs; i++)
		if (w.grad[i])
			slope_check(&w, w.input[i].name, w.data[i], w.n_input[i], w.grad[i]);
	world_free(&w);
}
END_TEST

START_TEST(test_yardstick) /* float32 sums come near the double ones, and not by being the same */
{
	const struct ref_case c = shape(2, 4, 2, 60, 50, 32, 32);
	struct world w;
	world_make(&w, &c, INPUT_GAUSS, 6);
	world_mean(&w, sloped[_i], 3);
	world_forward(&w);
	world_backward(&w);
	double *plain[SPEC_INPUTS_MAX] = {NULL};
	struct ref_forward f = {doubles(w.n_o), doubles(w.rows)};
	struct ref_backward g = {.dquery = doubles(w.n_q), .dkey = doubles(w.n_k), .dvalue = doubles(w.n_v), .input_grad = plain};
	for (int i = 0; i < w.c.inputs; i++)
		plain[i] = w.grad[i] ? doubles(w.n_input[i]) : NULL;
	ref_plain_forward(&f, &w.c, w.q, w.k, w.v);
	ref_plain_backward(&g, &w.c, w.q, w.k, w.v, w.dout, w.dlse);
	ck_assert_double_lt(difference_max(f.lse, w.f.lse, w.rows), 1e-5);
	ck_assert_double_lt(difference_max(f.out, w.f.out, w.n_o), tensor_max(w.f.out, w.n_o) / 64);
	ck_assert_double_lt(difference_max(g.dquery, w.g.dquery, w.n_q), tensor_max(w.g.dquery, w.n_q) / 64);
	ck_assert_double_lt(difference_max(g.dkey, w.g.dkey, w.n_k), tensor_max(w.g.dkey, w.n_k) / 64);
	for (int i = 0; i < w.c.inputs; i++) {
		if (!plain[i])
			continue;
		double *nothing = doubles(w.n_input[i]);
		struct compare_result r;
		compare_sum(&r, &(struct compare){.name = "dinput", .dim = {1, 1, 1, w.n_input[i]}, .bf16 = true}, plain[i],
		            w.grad[i], w.grad[i], w.spread[i]); /* no help from a yardstick's own error */
		ck_assert_msg(r.ok || r.worst < tensor_max(w.grad[i], w.n_input[i]) / 64, "%s: %s", w.input[i].name, r.text);
		ck_assert(difference_max(plain[i], w.grad[i], w.n_input[i]) > 0);
		compare_sum(&r, &(struct compare){.name = "dinput", .dim = {1, 1, 1, w.n_input[i]}, .bf16 = true}, nothing,
		            w.grad[i], plain[i], w.spread[i]);
		ck_assert(!r.ok);
		free(nothing);
		free(plain[i]);
	}
	free(f.out), free(f.lse), free(g.dquery), free(g.dkey), free(g.dvalue);
	world_free(&w);
}
END_TEST

START_TEST(test_heads_alone) /* some heads of a larger problem see the masks, elements and sinks that they see in it */
{
	const struct ref_case c = shape(2, 6, 3, 20, 33, 16, 16);
	struct world w;
	world_make(&w, &c, INPUT_GAUSS, 7);
	world_mean(&w, "{head_dim: 16, mask: 'k % (h + 2) != 1 && k < 30 + b', score: 's + w[b, h] * q', sink: true, "
	               "inputs: {w: {dtype: f32, shape: [batch, heads]}}}", 2);
	world_forward(&w);
	struct ref_case one = w.c;
	const int64_t first = 1 * 6 + 2 * 2;
	one.batch = 1, one.heads_q = 2, one.heads_kv = 1, one.first_head = &first, one.all_heads_q = 6, one.all_heads_kv = 3;
	struct ref_forward f = {doubles(2 * 20 * 16), doubles(2 * 20)};
	ref_attention_forward(&f, &one, w.q + first * 20 * 16, w.k + 5 * 33 * 16, w.v + 5 * 33 * 16);
	ck_assert_double_eq(difference_max(f.out, w.f.out + first * 20 * 16, 2 * 20 * 16), 0);
	ck_assert_double_eq(difference_max(f.lse, w.f.lse + first * 20, 2 * 20), 0);
	free(f.out), free(f.lse);
	world_free(&w);
}
END_TEST

START_TEST(test_score_max) /* what float32 may get wrong: the largest number on the way, as the logit feels it */
{
	static const struct {
		const char *score;
		double want;
	} rows[] = {{"s", 3}, {"s + 1000", 1003}, {"s + 1000 - 1000.0", 1003}, {"(s + 1000) * 0.01", 10.03},
	            {"50 * tanh(s / 50)", 50}};
	const struct ref_case c = shape(1, 1, 1, 1, 1, 1, 1);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		char spec[128];
		struct world w;
		world_make(&w, &c, INPUT_ZERO, 7);
		snprintf(spec, sizeof spec, "{head_dim: 16, score: '%s'}", rows[i].score);
		world_mean(&w, spec, 2);
		w.q[0] = 3, w.k[0] = 1;
		ck_assert_double_eq_tol(ref_score_max(&w.c, w.q, w.k), rows[i].want, 1e-9);
		world_free(&w);
	}
}
END_TEST

/* The values of an input of random expressions, dense. */
static double *tree_data(int input, const struct ref_input *in)
{
	int64_t n = 1, index[4];
	for (int d = 0; d < in->dims; d++)
		n *= in->dim[d];
	double *data = doubles(n);
	for (int64_t e = 0; e < n; e++) {
		int64_t rest = e;
		for (int d = in->dims - 1; d >= 0; d--)
			index[d] = rest % in->dim[d], rest /= in->dim[d];
		data[e] = tree_input_value(input, index);
	}
	return data;
}

START_TEST(test_random_expressions) /* against the evaluator of tests/random_expr.h */
{
	static struct grove g;
	struct spec *spec = calloc(1, sizeof *spec);
	struct ref_case c = shape(2, 6, 3, 7, 11, 1, 1);
	struct ref_input input[TREE_INPUTS];
	int compared = 0;
	ck_assert_ptr_nonnull(spec);
	c.input = input, c.inputs = spec->input_count = TREE_INPUTS;
	for (int i = 0; i < TREE_INPUTS; i++) {
		spec->input[i] = tree_inputs[i];
		input[i] = (struct ref_input){.name = "", .dims = tree_inputs[i].dims};
		for (int d = 0; d < input[i].dims; d++)
			input[i].dim[d] = dim_size(&c, spec, tree_inputs[i].dim[d]);
		input[i].data = tree_data(i, &input[i]);
	}
	for (uint64_t seed = 1; seed <= 4000; seed++) {
		struct text text = {0};
		struct diag diag = {0};
		struct ref_program *program;
		g = (struct grove){.state = seed, .floats = seed % 4 > 0, .inputs = seed % 8 > 2, .score = seed % 2};
		const struct tree *tree = g.score ? tree_float(&g, 5) : tree_bool(&g, 5);
		tree_text(&text, tree);
		if (text.len < sizeof spec->text - 1 && g.count < 400) {
			snprintf(spec->text, sizeof spec->text, "%s", text_str(&text));
			spec->term[0] = (struct term){.kind = TERM_TEXT, .child = -1, .next = -1};
			spec->mask = g.score ? -1 : 0, spec->score = g.score ? 0 : -1;
			ck_assert_msg(ref_program_make(&program, spec, &diag) == 0, "%s", text_str(&diag.text));
			c.program = program;
			for (int i = 0; i < 20; i++, compared++) {
				const struct ref_cell at = {(int64_t)grove_random(&g, 2), (int64_t)grove_random(&g, 6),
				                            (int64_t)grove_random(&g, 7), (int64_t)grove_random(&g, 11)};
				struct tree_point p = {.name = {at.b, at.h, at.q, at.k, 7, 11}, .s = 0.25 * i - 2, .batch = 2,
				                       .heads = 6};
				const struct tree_result want = tree_at(tree, &p);
				if (g.score)
					ck_assert_msg(fabs(ref_logit(&c, &at, p.s, false) - want.f) <= 1e-9 * (1 + fabs(want.f)),
					              "%s: %g, want %g", spec->text, ref_logit(&c, &at, p.s, false), want.f);
				else
					ck_assert_msg(ref_visible(&c, at.b, at.h, at.q, at.k) == (want.i != 0), "%s", spec->text);
			}
			ref_program_free(program);
		}
		text_free(&text);
		diag_free(&diag);
	}
	ck_assert_int_gt(compared, 40000);
	for (int i = 0; i < TREE_INPUTS; i++)
		free((void *)input[i].data);
	free(spec);
}
END_TEST

START_TEST(test_refused) /* what is no expression, or of the wrong type, is not given a meaning */
{
	static const char *const bad[] = {"k <",     "k + 1",   "k && q",      "1 +",        "(k < 1",        "k < 1)",  "!k",
	                                  "-(k < 1)", "s < 1",   "w[k] < 1",    "foo",        "k < 1 ? 2 : 3", "softcap(3)",
	                                  "k < 1 ?",  "1.5 % 2 < k", "min(k) < 1", "causal < 1", "window(1, 2, 3, 4)",
	                                  "k = 1", "prefix"};
	struct spec *spec = calloc(1, sizeof *spec);
	struct ref_program *program;
	struct diag diag = {0};
	ck_assert_ptr_nonnull(spec);
	spec->score = spec->blocks.keep = -1;
	spec->term[0] = (struct term){.kind = TERM_TEXT, .child = -1, .next = -1};
	snprintf(spec->text, sizeof spec->text, "%s", bad[_i]);
	ck_assert_msg(ref_program_make(&program, spec, &diag) == -1, "%s", bad[_i]);
	ck_assert_int_eq(diag.errors, 1);
	diag_free(&diag);
	free(spec);
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("meaning");
	TCase *t = tcase_create("cells");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, test_picture, 0, (int)(sizeof pictures / sizeof *pictures));
	tcase_add_loop_test(t, test_logit, 0, (int)(sizeof logits / sizeof *logits));
	tcase_add_test(t, test_single);
	tcase_add_loop_test(t, test_t5_buckets, 0, 2);
	tcase_add_loop_test(t, test_refused, 0, 20);
	tcase_add_test(t, test_random_expressions);
	suite_add_tcase(s, t);
	t = tcase_create("attention");
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_by_hand);
	tcase_add_test(t, test_sink_alone);
	tcase_add_loop_test(t, test_gradients, 0, (int)(sizeof sloped / sizeof *sloped));
	tcase_add_loop_test(t, test_yardstick, 0, (int)(sizeof sloped / sizeof *sloped));
	tcase_add_test(t, test_heads_alone);
	tcase_add_test(t, test_score_max);
	suite_add_tcase(s, t);
	return s;
}
