/* deterministic: true. Cases of every kind, whose two runs the harness compares bit by bit beside the reference; the same
 * launch many times; and batch entries alone, which must get the bits that they get among others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/suite.h"

#define DET "deterministic: true, passes: [forward, backward]}"
#define D64 "{head_dim: 64, kv_group: any, "
#define HALF "{head_dim: 64, dtype: fp16, "
#define TILE(m, n, w, s) "tile: {backward: {m: " #m ", n: " #n ", warps: " #w ", stages: " #s "}}, "
#define WIDE TILE(64, 128, 12, 2)
#define REL \
	"score: \"s + rel[h, min(max(q - k, -32), 32) + 32]\", inputs: {rel: {dtype: f32, shape: [heads, 65], grad: true}}, "

static const struct {
	const char *spec, *parts;
} rows[] = {
	{D64 DET, "b2,h4/2,q333,k444"},
	{D64 "mask: causal, " DET, "b2,h4/2,q333,k333"},
	{D64 "mask: causal, " DET, "b1,h2/1,q500,k130,fat,seed2"},
	{D64 "mask: causal, " DET, "b2,h2/1,q70,k300,odd,seed3"},
	{D64 "mask: causal, " DET, "b1,h2/1,q1,k1"},
	{D64 "mask: causal, " DET, "b1,h2/1,q64,k0"},
	{D64 "mask: causal, " DET, "b1,h2/1,q0,k64"},
	{HALF "mask: {window: {left: 70, right: 9}}, " DET, "b2,h2,q333,k450"},
	{HALF "mask: {prefix: {n: 70}}, dropout: 0.3, " DET, "b1,h2,q333,k333,seed2"},
	{D64 "mask: \"k <= q && q - k < 100 || k < 16\", " DET, "b1,h4/2,q400,k400"},
	{D64 "mask: {all: [causal, document]}, " DET, "b2,h4/2,q333,k333,seed2"},
	{D64 "mask: {all: [padding, causal]}, " DET, "b3,h4/2,q200,k333"},
	{D64 "mask: \"random(h, q, k) < 20000 || q == k\", " DET, "b1,h2/1,q222,k222"},
	{D64 "mask: {dilated: {step: 3}}, dropout: 0.1, " DET, "b1,h4/2,q222,k300,seed2"},
	{D64 "mask: causal, score: [alibi, {softcap: {cap: 5}}], sink: true, " DET, "b2,h4/2,q222,k222,seed2"},
	{D64
         "mask: causal, score: bias, inputs: {bias: {dtype: f32, shape: [batch, heads, seq_q, seq_k], grad: true}}, " DET,
         "b2,h4/2,q200,k200"},
	{D64 REL DET, "b2,h4/2,q222,k333"},
	{HALF
         "score: \"s * sigmoid(g[b, h, k]) + r[b, h, q]\", inputs: {g: {dtype: f32, shape: [batch, heads, seq_k], grad: true}, "
         "r: {dtype: fp16, shape: [batch, heads, seq_q], grad: true}}, " DET,
         "b1,h2,q222,k222"},
	{D64 "mask: causal, blocks: {size: 32, keep: {random: {seed: 2, chance: 0.4}}}, " DET, "b1,h4/2,q333,k333"},
	{D64 "blocks: {size: 64, from: bitmap}, " DET, "b2,h4/2,q333,k400"},
	{D64 "blocks: {size: {q: 128, k: 48}, from: lists}, dropout: 0.2, " DET, "b1,h4/2,q333,k400,seed3"},
	{D64 "layout: padded, mask: causal, " DET, "b3,h4/2,q150,k180"},
	{D64 "layout: packed, mask: document, score: alibi, dropout: 0.1, sink: true, " DET, "b3,h4/2,q150,k180,seed2"},
	{"{head_dim: 16, mask: causal, " DET, "b1,h2,q200,k200"},
	{"{head_dim: {qk: 72, v: 40}, kv_group: any, " DET, "b1,h3/1,q167,k199,mixed,seed5"},
	{"{head_dim: 96, mask: causal, dropout: 0.1, " DET, "b1,h2,q200,k200,seed2"},
	{"{head_dim: 128, dtype: fp16, mask: causal, " DET, "b1,h2,q333,k333,outlier"},
	{"{head_dim: {qk: 192, v: 128}, mask: causal, " DET, "b1,h2,q200,k260"},
	{"{head_dim: 256, mask: causal, " DET, "b1,h2,q200,k200"},
	{"{head_dim: {qk: 256, v: 16}, " TILE(64, 32, 8, 1) DET, "b1,h1,q130,k200"},
	/* the native kernels: tiles of both sizes, one query tile that sees what the other does not, one that lies past the end */
	{D64 TILE(128, 128, 12, 2) "mask: {window: {left: 70, right: 9}}, " DET, "b2,h4/2,q333,k450"},
	{D64 TILE(64, 128, 12, 2) "mask: {window: {left: 70, right: 9}}, dropout: 0.2, " DET, "b2,h4/2,q333,k450,seed2"},
	{D64 TILE(64, 128, 12, 2) "mask: causal, blocks: {size: 64, from: bitmap}, " DET, "b2,h4/2,q333,k444"},
	{"{head_dim: {qk: 64, v: 128}, " TILE(64, 128, 12, 2) "layout: packed, mask: causal, score: {softcap: {cap: 5}}, " DET,
         "b4,h2,lq130-0-70-200,lk90-9-0-300,q210,k310,seed2"},
	{"{head_dim: 64, kv_group: 2, " TILE(128, 128, 12, 2) "mask: {window: {left: 70, right: 9}}, " DET, "b2,h4/2,q333,k450"},
	{"{head_dim: 64, kv_group: 2, " TILE(64, 128, 12, 2) "mask: {window: {left: 70, right: 9}}, dropout: 0.2, " DET, "b2,h4/2,q333,k450,seed2"},
	{"{head_dim: 128, kv_group: 2, " TILE(64, 128, 12, 2) "score: bias, " DET, "b2,h4/2,q200,k333"},
	{HALF TILE(64, 128, 12, 2) "layout: padded, mask: \"k <= q && q - k < 100 || k < 16\", " DET, "b4,h2,lq130-0-70-200,lk90-9-0-300,q210,k310"},
	{"{head_dim: 96, kv_group: any, " TILE(64, 128, 12, 2) "mask: {all: [causal, document]}, score: alibi, sink: true, " DET,
         "b2,h4/2,q513,k513,seed3"},
	/* sums in the order of key tiles: many of them, more than see a query tile; warps without columns; entries of all lengths; one summing warp for both;
	 * parts; the group known at launch only */
	{"{head_dim: 128, mask: causal, " DET, "b2,h3,q1500,k1700"},
	{"{head_dim: 64, " DET, "b1,h5,q700,k2100"},
	{"{head_dim: 96, mask: {window: {left: 300, right: 40}}, dropout: 0.2, " DET, "b1,h3,q1300,k1200,seed2"},
	{"{head_dim: 80, layout: packed, kv_group: any, mask: causal, " DET, "b5,h4/2,lq430-0-7-900-1,lk390-9-0-1300-1,q900,k1300,seed2"},
	{"{head_dim: 40, dtype: fp16, layout: padded, mask: \"k + 200 <= q\", sink: true, " DET, "b4,h2,lq630-0-70-900,lk390-9-0-700,q900,k700,seed4"},
	{"{head_dim: 128, " TILE(48, 128, 12, 2) "score: bias, " DET, "b2,h2,q500,k633"},
	{"{head_dim: 64, tile: {backward: {m: 64, n: 128, warps: 12, stages: 2, splits: 3}}, " DET, "b1,h2,q500,k500"},
	/* above head dim 128: a step of 64 keys that only one of two query tiles sees, or none; lengths inside either step; an entry without
	 * keys; one buffer of V and two; other columns of V than of Q; the first visit is the last */
	{"{head_dim: 160, kv_group: any, " WIDE "mask: {window: {left: 70, right: 9}}, " DET, "b2,h4/2,q333,k450"},
	{"{head_dim: 192, " WIDE "mask: causal, dropout: 0.2, " DET, "b2,h2,q333,k444,seed2"},
	{"{head_dim: 192, dtype: fp16, " WIDE "mask: causal, blocks: {size: 64, from: bitmap}, " DET, "b2,h2,q333,k444"},
	{"{head_dim: {qk: 192, v: 128}, kv_group: any, " WIDE "layout: packed, mask: causal, score: {softcap: {cap: 5}}, " DET,
         "b4,h4/2,lq130-0-70-200,lk90-9-0-300,q210,k310,seed2"},
	{"{head_dim: {qk: 80, v: 192}, " WIDE "score: bias, " DET, "b2,h2,q200,k333"},
	{"{head_dim: 144, kv_group: any, " WIDE "mask: {all: [causal, document]}, score: alibi, sink: true, " DET, "b2,h4/2,q513,k513,seed3"},
	{"{head_dim: 256, kv_group: any, " WIDE DET, "b2,h4/2,q333,k444"},
	{"{head_dim: 256, " WIDE "layout: padded, mask: \"k <= q && q - k < 100 || k < 16\", dropout: 0.1, " DET,
         "b4,h2,lq130-0-70-200,lk90-9-0-300,q210,k310,seed3"},
	{"{head_dim: 256, dtype: fp16, " WIDE "mask: \"random(h, q, k) < 20000 || q == k\", blocks: {size: 32, from: bitmap}, " DET, "b1,h2,q222,k300"},
	{"{head_dim: 256, " WIDE "mask: \"q == k\", " DET, "b1,h2,q200,k200"},
	{"{head_dim: 248, " WIDE "mask: causal, " DET, "b1,h2,q1,k1"},
	{"{head_dim: {qk: 128, v: 256}, " WIDE "mask: \"k + 100 <= q\", " DET, "b1,h2,q400,k300"},
	{"{head_dim: {qk: 256, v: 16}, " WIDE DET, "b1,h2,q130,k70,mixed,seed5"},
	/* how warps share a tile: rows alone, rows and keys, keys alone; one and two buffers */
	{HALF TILE(128, 64, 4, 2) DET, "b1,h2,q300,k300,seed2"},
	{HALF TILE(64, 128, 8, 1) "dropout: 0.3, " DET, "b1,h2,q300,k300,seed3"},
	{HALF TILE(128, 128, 8, 2) DET, "b1,h2,q300,k300"},
	{HALF TILE(32, 64, 8, 2) "mask: causal, dropout: 0.3, " DET, "b1,h2,q200,k200,seed2"},
	{HALF TILE(32, 32, 4, 1) "mask: causal, " DET, "b1,h2,q200,k200"},
	{HALF TILE(32, 32, 2, 2) "mask: causal, dropout: 0.5, " DET, "b1,h2,q200,k200,seed7"},
};

/* ---- launches on buffers of their own ---- */

enum { QUERY, KEY, VALUE, DOUT, OUT, LSE, DQUERY, DKEY, DVALUE, REL_DATA, REL_GRAD, BUFFERS };
enum { ENTRIES = 3, HEADS = 4, HEADS_KV = 2, DIM = 64, REL_SIZE = 65, RUNS = 1000 };

struct launch {
	struct suite *s;
	fagen_kernel *kernel;
	bool rel; /* the spec has the input of REL */
	int64_t sq, sk;
	struct gpu_buffer buffer[BUFFERS], workspace;
	size_t bytes[BUFFERS]; /* of one batch entry */
	struct diag diag;
	char text[2200];
};

static bool per_entry(int buffer) { return buffer < REL_DATA; }

/* Forward and backward of `entries` batch entries from `first` on. */
static bool launch_run(struct launch *l, int first, int entries)
{
	static const int64_t heads[] = {HEADS, HEADS_KV, HEADS_KV, HEADS, HEADS, HEADS, HEADS, HEADS_KV, HEADS_KV};
	fagen_error error = {.struct_size = sizeof error};
	fagen_input rel = {.name = "rel",
	                   .data = (void *)(uintptr_t)l->buffer[REL_DATA].data,
	                   .stride = {REL_SIZE, 1},
	                   .grad = (void *)(uintptr_t)l->buffer[REL_GRAD].data,
	                   .grad_stride = {REL_SIZE, 1}};
	fagen_args a = {.struct_size = sizeof a,
	                .batch = entries,
	                .heads_q = HEADS,
	                .heads_kv = HEADS_KV,
	                .seqlen_q = l->sq,
	                .seqlen_k = l->sk,
	                .workspace = (void *)(uintptr_t)l->workspace.data,
	                .workspace_size = l->workspace.bytes,
	                .inputs = l->rel ? &rel : NULL,
	                .input_count = l->rel};
	fagen_tensor *const tensor[] = {&a.query, &a.key,    &a.value, &a.dout,  &a.out,
	                                &a.lse,   &a.dquery, &a.dkey,  &a.dvalue};
	for (int i = 0; i < REL_DATA; i++) {
		const int64_t length = heads[i] == HEADS ? l->sq : l->sk, dim = i == LSE ? 1 : DIM;
		*tensor[i] =
			(fagen_tensor){.data = (void *)(uintptr_t)(l->buffer[i].data + (uint64_t)first * l->bytes[i]),
		                       .stride_batch = heads[i] * length * dim,
		                       .stride_head = length * dim,
		                       .stride_seq = dim};
	}
	if (!l->workspace.data) {
		size_t bytes = 0;
		if (fagen_workspace_size(&bytes, l->kernel, &a, &error) ||
		    gpu_alloc(&l->workspace, l->s->rt, l->s->options.device, bytes, &l->diag)) {
			snprintf(l->text, sizeof l->text, "%s", error.message);
			return false;
		}
		a.workspace = (void *)(uintptr_t)l->workspace.data;
		a.workspace_size = l->workspace.bytes;
	}
	if (fagen_forward(l->kernel, &a, NULL, &error) || fagen_backward(l->kernel, &a, NULL, &error)) {
		snprintf(l->text, sizeof l->text, "%s", error.message);
		return false;
	}
	return true;
}

static bool launch_make(struct launch *l, struct suite *s, const char *spec, int64_t sq, int64_t sk)
{
	const int device = s->options.device;
	const fagen_spec *loaded = suite_spec(s, CLASS_DET, spec);
	fagen_error error = {.struct_size = sizeof error};
	*l = (struct launch){.s = s, .sq = sq, .sk = sk, .rel = strstr(spec, "rel") != NULL};
	if (!loaded ||
	    fagen_kernel_get(&l->kernel, s->rt, loaded,
	                     &(fagen_problem){.struct_size = sizeof(fagen_problem), .align = 16}, device, &error)) {
		snprintf(l->text, sizeof l->text, "%s", error.message);
		return false;
	}
	for (int i = 0; i < BUFFERS; i++) {
		const bool key_side = i == KEY || i == VALUE || i == DKEY || i == DVALUE;
		const size_t count = !per_entry(i) ? HEADS * REL_SIZE
		                     : key_side    ? (size_t)(HEADS_KV * sk * DIM)
		                                   : (size_t)(HEADS * sq * (i == LSE ? 1 : DIM));
		const bool is_float = i == LSE || !per_entry(i);
		l->bytes[i] = count * (is_float ? 4 : 2);
		const size_t all = l->bytes[i] * (per_entry(i) ? ENTRIES : 1);
		if (gpu_alloc(&l->buffer[i], s->rt, device, all, &l->diag))
			return false;
		if (i != REL_DATA && i > DOUT)
			continue;
		unsigned char *host = malloc(all);
		struct random random;
		if (!host)
			abort();
		random_begin(&random, 11, (uint64_t)i);
		for (size_t e = 0; e < all / (is_float ? 4 : 2); e++) {
			const float x = (float)random_normal(&random);
			const uint16_t half = number_encode(x, true);
			memcpy(host + e * (is_float ? 4 : 2), is_float ? (const void *)&x : &half, is_float ? 4 : 2);
		}
		const int rc = gpu_upload(&l->buffer[i], 0, host, all, s->rt, device, &l->diag);
		free(host);
		if (rc)
			return false;
	}
	return true;
}

static void launch_free(struct launch *l)
{
	for (int i = 0; i < BUFFERS; i++)
		gpu_free(&l->buffer[i], l->s->rt, l->s->options.device);
	gpu_free(&l->workspace, l->s->rt, l->s->options.device);
	diag_free(&l->diag);
}

/* The results from batch entry `first` on, or all of them into `to` when there is nothing to compare. */
static bool results_compare(struct launch *l, unsigned char *const to[BUFFERS], bool keep, int first, int entries,
                            bool inputs, const char *what)
{
	static const char *const names[BUFFERS] = {[OUT] = "out",   [LSE] = "lse",       [DQUERY] = "dquery",
	                                           [DKEY] = "dkey", [DVALUE] = "dvalue", [REL_GRAD] = "drel"};
	const int device = l->s->options.device;
	if (gpu_synchronize(l->s->rt, device, &l->diag))
		return false;
	for (int i = 0; i < BUFFERS; i++) {
		if (!names[i] || (i == REL_GRAD && !(l->rel && inputs)))
			continue;
		const size_t at = per_entry(i) ? (size_t)first * l->bytes[i] : 0,
			     bytes = per_entry(i) ? (size_t)entries * l->bytes[i] : l->bytes[i];
		unsigned char *got = keep ? to[i] : malloc(bytes);
		if (!got)
			abort();
		const int rc = gpu_download(got, &l->buffer[i], at, bytes, l->s->rt, device, &l->diag);
		const bool same = keep || (!rc && !memcmp(got, to[i] + at, bytes));
		if (!keep)
			free(got);
		if (rc || !same) {
			if (!rc)
				snprintf(l->text, sizeof l->text, "%s: other bits in %s.", what, names[i]);
			return false;
		}
	}
	return true;
}

/* `runs` launches with the same bits, then every batch entry alone. */
static void same_bits(struct suite *s, const char *spec, int64_t sq, int64_t sk, int runs, bool alone)
{
	struct launch l;
	unsigned char *bits[BUFFERS] = {NULL};
	if (!suite_mine(s))
		return;
	bool ok = launch_make(&l, s, spec, sq, sk);
	for (int i = 0; ok && i < BUFFERS; i++)
		if (!(bits[i] = malloc(l.bytes[i] * ENTRIES + 1)))
			abort();
	ok = ok && launch_run(&l, 0, ENTRIES) && results_compare(&l, bits, true, 0, ENTRIES, true, "");
	for (int run = 1; ok && run < runs; run++) {
		for (int i = OUT; ok && i < BUFFERS; i++)
			ok = i == REL_DATA || !gpu_poison(&l.buffer[i], s->rt, s->options.device, &l.diag);
		ok = ok && !gpu_poison(&l.workspace, s->rt, s->options.device, &l.diag) && launch_run(&l, 0, ENTRIES) &&
		     results_compare(&l, bits, false, 0, ENTRIES, true, "A later run");
	}
	for (int entry = 0; ok && alone && entry < ENTRIES; entry++)
		ok = launch_run(&l, entry, 1) &&
		     results_compare(&l, bits, false, entry, 1, false, "A batch entry alone");
	if (l.diag.errors)
		snprintf(l.text, sizeof l.text, "%s", text_str(&l.diag.text));
	suite_result(s, CLASS_DET, ok, spec, l.text);
	for (int i = 0; i < BUFFERS; i++)
		free(bits[i]);
	launch_free(&l);
}

void suite_deterministic(struct suite *s)
{
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		suite_case(s, CLASS_DET, rows[i].spec, "%s", rows[i].parts);
	if (s->warming || (s->only_class && strcmp(s->only_class, class_names[CLASS_DET])))
		return;
	const char *const asked = getenv("FAGEN_DET_RUNS"); /* fewer, for a slow machine */
	const int runs = asked ? atoi(asked) : RUNS;
	const int64_t length = asked ? 200 : 1500;
	same_bits(s, D64 "mask: causal, " DET, length, length + 77, runs, true);
	same_bits(s, D64 "mask: {window: {left: 200, right: 0}}, " REL DET, length, length, runs, true);
	same_bits(s,
	          D64
	          "mask: \"random(1, q, k) < 30000\", blocks: {size: 64, keep: {random: {seed: 4, chance: 0.5}}}, " DET,
	          length, length, runs, true);
	same_bits(s, D64 "mask: causal, dropout: 0.1, " DET, length, length, runs,
	          false); /* bits depend on the entry's number */
}
