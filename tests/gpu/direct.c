/* Field cases with data of their own, judged by hand-computed results: exact dropout masks, huge and low scores, refusals. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/gpu/suite.h"

#define BOTH "passes: [forward, backward]"

/* One call on dense tensors of doubles. */
struct direct {
	struct suite *s;
	const char *spec_text;
	int64_t b, hq, hk, sq, sk;
	uint64_t seed, offset;
	const struct spec *spec;
	double *in[4];   /* query, key, value, dout */
	double *out[5];  /* out, lse, dquery, dkey, dvalue */
	char text[2200]; /* why it did not run */
};
enum { IN_QUERY, IN_KEY, IN_VALUE, IN_DOUT };
enum { GOT_OUT, GOT_LSE, GOT_DQUERY, GOT_DKEY, GOT_DVALUE };

static int64_t direct_count(const struct direct *d, int tensor) /* query key value dout | out lse dquery dkey dvalue */
{
	const int64_t rows = d->b * d->hq * d->sq, cols = d->b * d->hk * d->sk;
	const int64_t count[] = {rows * d->spec->head_dim_qk, cols * d->spec->head_dim_qk, cols * d->spec->head_dim_v,
	                         rows * d->spec->head_dim_v,  rows * d->spec->head_dim_v,  rows,
	                         rows * d->spec->head_dim_qk, cols * d->spec->head_dim_qk, cols * d->spec->head_dim_v};
	return count[tensor];
}

/* All inputs zero. false: the spec cannot be had (counted). */
static bool direct_make(struct direct *d, struct suite *s, enum class class, const char *spec, int64_t b, int64_t h,
                        int64_t sq, int64_t sk)
{
	*d = (struct direct){
		.s = s, .spec_text = spec, .b = b, .hq = h, .hk = h, .sq = sq, .sk = sk, .seed = 77, .offset = 3};
	const fagen_spec *loaded = suite_spec(s, class, spec);
	if (!loaded)
		return false;
	d->spec = runtime_spec(loaded);
	for (int i = 0; i < 9; i++) {
		double *p = calloc((size_t)direct_count(d, i) + 1, sizeof *p);
		if (!p)
			abort();
		*(i < 4 ? &d->in[i] : &d->out[i - 4]) = p;
	}
	return true;
}

static void direct_free(struct direct *d)
{
	for (int i = 0; i < 9; i++)
		free(i < 4 ? d->in[i] : d->out[i - 4]);
}

static fagen_tensor dense(const struct gpu_buffer *b, int64_t heads, int64_t rows, int dim)
{
	return (fagen_tensor){.data = (void *)(uintptr_t)b->data,
	                      .stride_batch = heads * rows * dim,
	                      .stride_head = rows * dim,
	                      .stride_seq = dim};
}

static bool direct_run(struct direct *d, enum class class)
{
	struct suite *s = d->s;
	const fagen_spec *spec = suite_spec(s, class, d->spec_text);
	const int device = s->options.device, dqk = d->spec->head_dim_qk, dv = d->spec->head_dim_v;
	const bool bf16 = d->spec->dtype == DTYPE_BF16, backward = d->spec->passes[PASS_BACKWARD];
	struct gpu_buffer buffer[9] = {{0}}, workspace = {0};
	struct diag diag = {0};
	fagen_error error = {.struct_size = sizeof error};
	fagen_kernel *kernel;
	size_t bytes = 0;
	bool ok = false;
	uint16_t *half = NULL;
	if (fagen_kernel_get(&kernel, s->rt, spec, &(fagen_problem){.struct_size = sizeof(fagen_problem), .align = 16},
	                     device, &error))
		goto called;
	for (int i = 0; i < 9; i++) {
		const int64_t n = direct_count(d, i);
		if (gpu_alloc(&buffer[i], s->rt, device, (size_t)n * (i == 5 ? 4 : 2), &diag) ||
		    gpu_poison(&buffer[i], s->rt, device, &diag))
			goto out;
		if (i >= 4)
			continue;
		half = malloc((size_t)n * 2 + 2);
		for (int64_t k = 0; k < n; k++)
			half[k] = number_encode(d->in[i][k], bf16);
		if (gpu_upload(&buffer[i], 0, half, (size_t)n * 2, s->rt, device, &diag))
			goto out;
		free(half);
		half = NULL;
	}
	fagen_args a = {.struct_size = sizeof a,
	                .batch = d->b,
	                .heads_q = d->hq,
	                .heads_kv = d->hk,
	                .seqlen_q = d->sq,
	                .seqlen_k = d->sk,
	                .query = dense(&buffer[0], d->hq, d->sq, dqk),
	                .key = dense(&buffer[1], d->hk, d->sk, dqk),
	                .value = dense(&buffer[2], d->hk, d->sk, dv),
	                .dout = dense(&buffer[3], d->hq, d->sq, dv),
	                .out = dense(&buffer[4], d->hq, d->sq, dv),
	                .dquery = dense(&buffer[6], d->hq, d->sq, dqk),
	                .dkey = dense(&buffer[7], d->hk, d->sk, dqk),
	                .dvalue = dense(&buffer[8], d->hk, d->sk, dv),
	                .seed = d->seed,
	                .offset = d->offset};
	if (d->spec->outputs & OUTPUT_LSE)
		a.lse = dense(&buffer[5], d->hq, d->sq, 1);
	if (fagen_workspace_size(&bytes, kernel, &a, &error))
		goto called;
	if (gpu_alloc(&workspace, s->rt, device, bytes, &diag) || gpu_poison(&workspace, s->rt, device, &diag))
		goto out;
	a.workspace = (void *)(uintptr_t)workspace.data;
	a.workspace_size = bytes;
	if (fagen_forward(kernel, &a, NULL, &error) || (backward && fagen_backward(kernel, &a, NULL, &error)))
		goto called;
	if (gpu_synchronize(s->rt, device, &diag)) {
		s->lost = true;
		goto out;
	}
	for (int i = 4; i < 9; i++) {
		const int64_t n = direct_count(d, i);
		half = malloc((size_t)n * 4 + 4);
		if (gpu_download(half, &buffer[i], 0, buffer[i].bytes, s->rt, device, &diag))
			goto out;
		for (int64_t k = 0; k < n; k++)
			d->out[i - 4][k] =
				i == 5 ? ((const float *)(const void *)half)[k] : number_decode(half[k], bf16);
		free(half);
		half = NULL;
	}
	ok = true;
	goto out;
called:
	snprintf(d->text, sizeof d->text, "%s", error.message);
out:
	if (diag.errors)
		snprintf(d->text, sizeof d->text, "%s", text_str(&diag.text));
	free(half);
	for (int i = 0; i < 9; i++)
		gpu_free(&buffer[i], s->rt, device);
	gpu_free(&workspace, s->rt, device);
	diag_free(&diag);
	return ok;
}

static void fill(double *x, int64_t n, double value)
{
	for (int64_t i = 0; i < n; i++)
		x[i] = value;
}

static void randomize(struct direct *d, int input, double deviation)
{
	struct random r;
	random_begin(&r, d->seed, (uint64_t)input);
	for (int64_t i = 0; i < direct_count(d, input); i++)
		d->in[input][i] = number_round(deviation * random_normal(&r), d->spec->dtype == DTYPE_BF16);
}

/* ---- NUM ---------------------------------------------------------------------------------------------------------------- */

static void huge_value(struct suite *s) /* NUM-01 */
{
	struct direct d;
	if (!suite_mine(s) || !direct_make(&d, s, CLASS_NUM, "{head_dim: 64, outputs: [out, lse]}", 1, 1, 1, 1))
		return;
	for (int i = 0; i < 3; i++)
		fill(d.in[i], 64, 133120);
	bool ok = direct_run(&d, CLASS_NUM);
	for (int i = 0; i < 64 && ok; i++)
		if (d.out[GOT_OUT][i] != 133120) {
			snprintf(d.text, sizeof d.text, "out[%d] is %g, not 133120", i, d.out[GOT_OUT][i]);
			ok = false;
		}
	suite_result(s, CLASS_NUM, ok, "NUM-01 q=k=v=133120", d.text);
	direct_free(&d);
}

/* All scores equal: O is the mean of V, LSE the score plus ln n. */
static void equal_scores(struct suite *s, enum class class, const char *name, const char *spec, int64_t sk, double q,
                         double k)
{
	struct direct d;
	if (!suite_mine(s) || !direct_make(&d, s, class, spec, 1, 1, 1, sk))
		return;
	const int dim = d.spec->head_dim_qk;
	fill(d.in[IN_QUERY], dim, q);
	fill(d.in[IN_KEY], sk * dim, k);
	randomize(&d, IN_VALUE, 1);
	bool ok = direct_run(&d, class);
	const double score = q * k * dim * d.spec->softmax_scale, lse = score + log((double)sk);
	if (ok && !(fabs(d.out[GOT_LSE][0] - lse) <= 2e-6 * (1 + fabs(lse)))) {
		snprintf(d.text, sizeof d.text, "LSE is %.9g, not %.9g", d.out[GOT_LSE][0], lse);
		ok = false;
	}
	for (int i = 0; i < dim && ok; i++) {
		double mean = 0;
		for (int64_t n = 0; n < sk; n++)
			mean += d.in[IN_VALUE][n * dim + i] / (double)sk;
		if (!(fabs(d.out[GOT_OUT][i] - mean) <= 0.005)) {
			snprintf(d.text, sizeof d.text, "out[%d] is %g, not the mean %g", i, d.out[GOT_OUT][i], mean);
			ok = false;
		}
	}
	suite_result(s, class, ok, name, d.text);
	direct_free(&d);
}

/* ---- TAIL ----------------------------------------------------------------------------------------------------------------- */

static void one_cell(struct suite *s) /* TAIL-01: dV = dO to the bit, dQ and dK nothing but rounding */
{
	struct direct d;
	if (!suite_mine(s) || !direct_make(&d, s, CLASS_TAIL, "{head_dim: 16, dtype: fp16, " BOTH "}", 1, 1, 1, 1))
		return;
	for (int i = 0; i < 4; i++)
		randomize(&d, i, 3);
	bool ok = direct_run(&d, CLASS_TAIL);
	for (int i = 0; i < 16 && ok; i++)
		if (d.out[GOT_DVALUE][i] != d.in[IN_DOUT][i] || !(fabs(d.out[GOT_DQUERY][i]) < 1e-3) ||
		    !(fabs(d.out[GOT_DKEY][i]) < 1e-3) || d.out[GOT_OUT][i] != d.in[IN_VALUE][i]) {
			snprintf(d.text, sizeof d.text,
			         "[%d]: out %g of value %g, dvalue %g of dout %g, dquery %g, dkey %g", i,
			         d.out[GOT_OUT][i], d.in[IN_VALUE][i], d.out[GOT_DVALUE][i], d.in[IN_DOUT][i],
			         d.out[GOT_DQUERY][i], d.out[GOT_DKEY][i]);
			ok = false;
		}
	suite_result(s, CLASS_TAIL, ok, "TAIL-01 one query, one key", d.text);
	direct_free(&d);
}

/* ---- MSK, RNG: V = I shows P in the forward pass, dO = I shows it in the backward pass ------------------------------------- */

static void identity(double *x, int64_t blocks, int64_t rows, int dim)
{
	for (int64_t b = 0; b < blocks; b++)
		for (int64_t i = 0; i < rows && i < dim; i++)
			x[(b * rows + i) * dim + i] = 1;
}

/* The cells that are not zero, in both passes, are the visible and kept ones: exactly. */
static void exact_mask(struct suite *s, enum class class, const char *name, const char *spec, int64_t sq, int64_t sk,
                       uint64_t seed, uint64_t offset)
{
	struct direct d;
	if (!suite_mine(s) || !direct_make(&d, s, class, spec, 2, 2, sq, sk))
		return;
	struct ref_case ref;
	const struct check_case shape = {.batch = 2, .heads_q = 2, .heads_kv = 2, .seqlen_q = sq, .seqlen_k = sk};
	struct ref_program *program;
	struct diag diag = {0};
	if (ref_program_make(&program, d.spec, &diag)) {
		suite_result(s, class, false, name, text_str(&diag.text));
		diag_free(&diag);
		direct_free(&d);
		return;
	}
	case_reference(&ref, &shape, d.spec, program);
	ref.seed = d.seed = seed;
	ref.offset = d.offset = offset;
	const int dim = d.spec->head_dim_v;
	identity(d.in[IN_VALUE], 4, sk, dim);
	identity(d.in[IN_DOUT], 4, sq, dim);
	bool ok = direct_run(&d, class);
	for (int64_t h = 0; h < 4 && ok; h++)
		for (int64_t q = 0; q < sq && ok; q++)
			for (int64_t k = 0; k < sk && ok; k++) {
				const bool want = ref_visible(&ref, h / 2, h % 2, q, k) && ref_dropout_keep(&ref, h / 2, h % 2, q, k);
				const bool forward = k >= dim || (d.out[GOT_OUT][(h * sq + q) * dim + k] != 0) == want;
				const bool backward =
					q >= dim || (d.out[GOT_DVALUE][(h * sk + k) * dim + q] != 0) == want;
				if (!forward || !backward) {
					snprintf(d.text, sizeof d.text,
					         "head %d, q %d, k %d: should be %s, wrong in the %s pass", (int)h,
					         (int)q, (int)k, want ? "kept" : "dropped",
					         forward ? "backward" : "forward");
					ok = false;
				}
			}
	suite_result(s, class, ok, name, d.text);
	ref_program_free(program);
	direct_free(&d);
}

static void new_offset(struct suite *s) /* RNG-03 */
{
	const char *spec = "{head_dim: 64, dropout: 0.5, " BOTH "}";
	double *first = NULL;
	for (int turn = 0; turn < 2; turn++) {
		struct direct d;
		if ((turn == 0 && !suite_mine(s)) || !direct_make(&d, s, CLASS_RNG, spec, 1, 1, 64, 64))
			return;
		d.offset = (uint64_t)turn;
		identity(d.in[IN_VALUE], 1, 64, 64);
		bool ok = direct_run(&d, CLASS_RNG);
		int differ = 0;
		for (int i = 0; turn && ok && i < 4096; i++)
			differ += (d.out[GOT_OUT][i] != 0) != (first[i] != 0);
		if (turn && ok && (differ < 1700 || differ > 2400)) {
			snprintf(d.text, sizeof d.text, "the masks of offsets 0 and 1 differ in %d of 4096 cells",
			         differ);
			ok = false;
		}
		if (turn || !ok)
			suite_result(s, CLASS_RNG, ok, "RNG-03 another offset, another mask", d.text);
		if (!turn && ok) {
			first = malloc(4096 * sizeof *first);
			memcpy(first, d.out[GOT_OUT], 4096 * sizeof *first);
		}
		direct_free(&d);
		if (!ok)
			break;
	}
	free(first);
}

/* ---- refusals -------------------------------------------------------------------------------------------------------------- */

static void spec_refused(struct suite *s, enum class class, const char *name, const char *yaml, const char *field)
{
	fagen_spec *spec;
	fagen_error error = {.struct_size = sizeof error};
	if (!suite_mine(s))
		return;
	const int code = fagen_spec_parse(&spec, s->rt, yaml, strlen(yaml), name, &error);
	suite_result(s, class, code == FAGEN_ERROR_SPEC && strstr(error.message, field), name,
	             code ? error.message : "was accepted");
}

static void heads_refused(struct suite *s, const char *name, int64_t hq, int64_t hk)
{
	fagen_error error = {.struct_size = sizeof error};
	fagen_kernel *kernel;
	char text[256] = "";
	if (!suite_mine(s))
		return;
	const fagen_spec *spec = suite_spec(s, CLASS_HD, "{head_dim: 64, kv_group: any}");
	if (!spec)
		return;
	if (fagen_kernel_get(&kernel, s->rt, spec, &(fagen_problem){.struct_size = sizeof(fagen_problem), .align = 16},
	                     s->options.device, &error)) {
		suite_result(s, CLASS_HD, false, name, error.message);
		return;
	}
	size_t bytes;
	const fagen_args a = {
		.struct_size = sizeof a, .batch = 1, .heads_q = hq, .heads_kv = hk, .seqlen_q = 8, .seqlen_k = 8};
	const int size_code = fagen_workspace_size(&bytes, kernel, &a, &error),
		  code = fagen_forward(kernel, &a, NULL, &error);
	const bool ok =
		size_code == FAGEN_ERROR_INVALID && code == FAGEN_ERROR_INVALID && !strncmp(error.field, "heads", 5);
	snprintf(text, sizeof text, "code %d, field %s", code, error.field);
	suite_result(s, CLASS_HD, ok, name, text);
}

static double milliseconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* A new runtime that finds its kernels in the cache, to the first launch on the stream, CUDA itself being up: under 5 ms. */
void suite_start(struct suite *s)
{
	static const char text[] = "{head_dim: 64, mask: causal, outputs: [out, lse], " BOTH "}";
	const fagen_problem wish = {.struct_size = sizeof wish, .align = 16};
	const int device = s->options.device;
	struct gpu_buffer buffer = {0};
	struct diag diag = {0};
	fagen_error error = {.struct_size = sizeof error};
	fagen_kernel *kernel;
	char why[2200] = "";
	double best = 1e9;
	const fagen_spec *compiled = suite_mine(s) ? suite_spec(s, CLASS_START, text) : NULL;
	if (!compiled)
		return;
	const int64_t length = 64;
	bool ok = !fagen_kernel_get(&kernel, s->rt, compiled, &wish, device, &error) &&
	          !gpu_alloc(&buffer, s->rt, device, 8 << 20, &diag);
	for (int turn = 0; ok && turn < 20; turn++) { /* the best says what the work takes; others were interrupted */
		fagen_runtime *rt = NULL;
		fagen_spec *spec;
		fagen_kernel_info info = {.struct_size = sizeof info};
		char *at = (char *)(uintptr_t)buffer.data;
		fagen_args a = {.struct_size = sizeof a,
		                .batch = 1,
		                .heads_q = 1,
		                .heads_kv = 1,
		                .seqlen_q = length,
		                .seqlen_k = length,
		                .workspace = at + (5 << 20),
		                .workspace_size = 1 << 20};
		fagen_tensor *const tensors[] = {&a.query, &a.key, &a.value, &a.out, &a.lse};
		for (int i = 0; i < 5; i++)
			*tensors[i] = (fagen_tensor){.data = at + (i << 20),
			                             .stride_batch = length * 64,
			                             .stride_head = length * 64,
			                             .stride_seq = i == 4 ? 1 : 64};
		const double start = milliseconds();
		ok = !fagen_open(&rt, NULL, &error) &&
		     !fagen_spec_parse(&spec, rt, text, strlen(text), "start", &error) &&
		     !fagen_kernel_get(&kernel, rt, spec, &wish, device, &error) &&
		     !fagen_forward(kernel, &a, NULL, &error);
		const double took = milliseconds() - start;
		ok = ok && !gpu_synchronize(s->rt, device, &diag) && !fagen_kernel_describe(&info, kernel, &error);
		if (ok && strcmp(info.source[0], "cache") != 0)
			ok = false, snprintf(why, sizeof why, "the kernel was not in the cache");
		best = took < best ? took : best;
		fagen_close(rt);
	}
	if (ok && best >= 5)
		ok = false;
	if (!*why)
		snprintf(why, sizeof why, "%.2f ms to the first launch; want under 5. %s%s", best, error.message,
		         text_str(&diag.text));
	suite_result(s, CLASS_START, ok, "warm start, both passes", why);
	if (ok)
		printf("warm start: %.2f ms from fagen_open to the first launch, kernels of both passes loaded\n",
		       best);
	gpu_free(&buffer, s->rt, device);
	diag_free(&diag);
}

void suite_direct(struct suite *s)
{
	huge_value(s);
	equal_scores(s, CLASS_NUM, "NUM-03 all scores far below zero", "{head_dim: 128, outputs: [out, lse]}", 64, 30,
	             -26);
	equal_scores(s, CLASS_NUM, "NUM-04 all scores near 2000", "{head_dim: 64, outputs: [out, lse]}", 100, 16,
	             15.625);
	equal_scores(s, CLASS_NUM, "NUM-08 zero scores: ln 8", "{head_dim: 64, outputs: [out, lse]}", 8, 0, 0);
	equal_scores(s, CLASS_TAIL, "TAIL-12 65 keys", "{head_dim: 64, outputs: [out, lse]}", 65, 2, -1.25);
	equal_scores(s, CLASS_TAIL, "TAIL-12 100 keys", "{head_dim: 64, outputs: [out, lse]}", 100, 2, -1.25);
	equal_scores(s, CLASS_TAIL, "TAIL-12 127 keys", "{head_dim: 64, outputs: [out, lse]}", 127, 2, -1.25);
	one_cell(s);
	exact_mask(s, CLASS_MSK, "MSK-05 bottom right", "{head_dim: 64, mask: causal, " BOTH "}", 2, 5, 1, 1);
	exact_mask(s, CLASS_MSK, "MSK-05 top left", "{head_dim: 64, mask: causal_top_left, " BOTH "}", 2, 5, 1, 1);
	exact_mask(s, CLASS_MSK, "causal, cell by cell", "{head_dim: 256, mask: causal, " BOTH "}", 200, 250, 1, 1);
	exact_mask(s, CLASS_MSK, "window, cell by cell",
	           "{head_dim: 256, mask: {window: {left: 37, right: 11}}, " BOTH "}", 250, 200, 1, 1);
	exact_mask(s, CLASS_RNG, "RNG-04 mask of both passes", "{head_dim: 256, dropout: 0.17, " BOTH "}", 256, 256, 5,
	           9);
	exact_mask(s, CLASS_RNG, "RNG-08 p = 0.5", "{head_dim: 128, dropout: 0.5, mask: causal, " BOTH "}", 128, 128,
	           0xfedcba9876543210u, 0xffffffffu);
	exact_mask(s, CLASS_RNG, "RNG-09 p = 0.9", "{head_dim: 64, mask: causal, dropout: 0.9, " BOTH "}", 64, 64, 8,
	           0);
	exact_mask(s, CLASS_MOD, "MOD-02 a cap after which hidden cells stay hidden",
	           "{head_dim: 64, mask: causal, score: {softcap: {cap: 1.0}}, " BOTH "}", 64, 64, 1, 1);
	static const char *const masks[] = {"mask: \"k <= q && q - k < 30 || k < 8\"",
	                                    "mask: \"(q - k) % 3 == 0 || abs(q - k) > 200\"",
	                                    "mask: \"k < 20 || k >= sk - 20 || q == k + 100\"",
	                                    "mask: \"random(h + 2 * b, q, k) < 9000\"",
	                                    "mask: \"q / 16 % 2 == k / 32 % 2 && (b == 0 || k < q)\"",
	                                    "mask: causal, blocks: {size: 48, keep: {random: {seed: 2, chance: 0.5}}}",
	                                    "blocks: {size: {q: 16, k: 64}, rows: [[0, 3], [], [1], [2], [0, 1, 2, 3, 9]]}"};
	for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
		char text[CASE_NAME_MAX];
		snprintf(text, sizeof text, "{head_dim: 256, %s, " BOTH "}", masks[i]);
		exact_mask(s, CLASS_EXPRESSIONS, masks[i], text, 250, 230, 1, 1);
	}
	static const int tiles[][2] = {{64, 32}, {64, 64}, {128, 64}, {128, 128}, {64, 128}};
	char spec[CASE_NAME_MAX], name[64];
	for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
		snprintf(spec, sizeof spec, "{head_dim: 64, dropout: 0.17, tile: {forward: {m: %d, n: %d}}, " BOTH "}",
		         tiles[i][0], tiles[i][1]);
		snprintf(name, sizeof name, "RNG-04 forward tile %dx%d", tiles[i][0], tiles[i][1]);
		exact_mask(s, CLASS_RNG, name, spec, 300, 290, 12, 34);
	}
	static const int backward[][2] = {{64, 64}, {128, 64}, {64, 128}, {32, 64}};
	for (size_t i = 0; i < 2 * sizeof backward / sizeof *backward; i++) {
		const int *tile = backward[i / 2];
		snprintf(spec, sizeof spec,
		         "{head_dim: 64, dropout: 0.17, deterministic: %s, tile: {backward: {m: %d, n: %d}}, " BOTH "}",
		         i % 2 ? "true" : "false", tile[0], tile[1]);
		snprintf(name, sizeof name, "RNG-04 backward tile %dx%d%s", tile[0], tile[1], i % 2 ? ", deterministic" : "");
		exact_mask(s, CLASS_RNG, name, spec, 300, 290, 12, 34);
	}
	new_offset(s);
	spec_refused(s, CLASS_HD, "HD-04 head_dim 1", "{head_dim: 1}", "head_dim");
	spec_refused(s, CLASS_HD, "HD-04 head_dim 33", "{head_dim: 33}", "head_dim");
	spec_refused(s, CLASS_HD, "HD-04 head_dim 60", "{head_dim: 60}", "head_dim");
	spec_refused(s, CLASS_HD, "HD-04 head_dim 100", "{head_dim: 100}", "head_dim");
	spec_refused(s, CLASS_HD, "HD-16 head_dim 512", "{head_dim: 512}", "head_dim");
	spec_refused(s, CLASS_MSK, "WIN-06 negative window", "{head_dim: 64, mask: {window: {left: -5, right: 0}}}",
	             "left");
	spec_refused(s, CLASS_MSK, "WIN-06 a window that ends before the diagonal",
	             "{head_dim: 64, mask: {window: {left: unbounded, right: -3}}}", "right");
	spec_refused(s, CLASS_MSK, "WIN-07 an empty window", "{head_dim: 64, mask: {window: {left: 7, right: -8}}}", "right");
	spec_refused(s, CLASS_MSK, "WIN-08 -1 for unbounded", "{head_dim: 64, mask: {window: {left: -1, right: 0}}}", "left");
	heads_refused(s, "HD-17 33/2", 33, 2);
	heads_refused(s, "HD-17 3/2", 3, 2);
	heads_refused(s, "HD-17 4/0", 4, 0);
}
