/* Masks, scores, inputs and block layouts on the GPU: presets, expressions, gradients of inputs, layouts, all pairs of
 * features, and the field cases about them. */
#include <stdio.h>
#include <string.h>

#include "tests/gpu/pairs.h"
#include "tests/gpu/suite.h"

#define BOTH "passes: [forward, backward]}"
#define D64 "{head_dim: 64, kv_group: any, "
#define HALF "{head_dim: 64, dtype: fp16, "
#define NO_CELLS \
	D64 "sink: true, score: [\"s * t\", t5, \"s + c[k] + r[q]\"], inputs: {t: {dtype: f32, shape: [], grad: true}, rel: {dtype: " \
	    "f32, shape: [heads, 32], grad: true}, c: {dtype: bf16, shape: [seq_k], grad: true}, r: {dtype: f32, shape: [seq_q], " \
	    "grad: true}}, " BOTH

struct row {
	enum class class;
	const char *spec, *parts;
};

static const struct row rows[] = {
	{CLASS_PRESETS, D64 "mask: {prefix: {n: 70}}, " BOTH, "b2,h4/2,q333,k400"},
	{CLASS_PRESETS, HALF "mask: {prefix: {n: 5}}, " BOTH, "b1,h2,q200,k130,seed2"},
	{CLASS_PRESETS, D64 "mask: document, " BOTH, "b2,h4/2,q333,k333,seed2"},
	{CLASS_PRESETS, HALF "mask: {all: [causal, document]}, " BOTH, "b2,h2,q100,k500,seed4"},
	{CLASS_PRESETS, D64 "mask: {all: [causal, document]}, " BOTH, "b2,h2,q400,k140,seed3"},
	{CLASS_PRESETS, D64 "mask: {all: [causal, document]}, " BOTH, "b4,h16/8,q1000,k1000,odd,seed5"}, /* portable and sorted: more items than run at a time */
	{CLASS_PRESETS, D64 "mask: padding, " BOTH, "b3,h4/2,q333,k333"},
	{CLASS_PRESETS, HALF "mask: {all: [padding, causal]}, " BOTH, "b3,h2,q150,k400,seed2"},
	{CLASS_PRESETS, D64 "mask: {dilated: {step: 3}}, " BOTH, "b2,h4/2,q333,k300"},
	{CLASS_PRESETS, HALF "mask: {dilated: {step: 16, left: 200, right: 0}}, " BOTH, "b1,h2,q500,k500"},
	{CLASS_PRESETS, D64 "mask: {window: {left: 70, right: 9}}, " BOTH, "b2,h4/2,q333,k450"},
	{CLASS_PRESETS, D64 "mask: causal, score: {softcap: {cap: 5}}, " BOTH, "b2,h4/2,q333,k333"},
	{CLASS_PRESETS, HALF "score: {softcap: {cap: 30.0}}, " BOTH, "b1,h2,q130,k300,outlier"},
	/* Long rows: the native forward takes tanh's short form where a row's logits allow it; of these inputs some never do. */
	{CLASS_PRESETS, D64 "score: {softcap: {cap: 30}}, " BOTH, "b1,h4/2,q333,k2000"},
	{CLASS_PRESETS, HALF "mask: causal, score: {softcap: {cap: 50}}, " BOTH, "b1,h2,q1500,k1500,seed2"},
	{CLASS_PRESETS, D64 "mask: document, score: {softcap: {cap: 30}}, " BOTH, "b2,h2,q1300,k1300,seed2"},
	{CLASS_PRESETS, D64 "score: {softcap: {cap: 30}}, " BOTH, "b1,h2,q200,k2000,outlier"},
	{CLASS_PRESETS, D64 "score: {softcap: {cap: 30}}, " BOTH, "b1,h2,q200,k2000,row"},
	{CLASS_PRESETS, D64 "score: {softcap: {cap: 30}}, " BOTH, "b1,h2,q200,k2000,low"},
	{CLASS_PRESETS, D64 "mask: causal, score: {softcap: {cap: 50}}, " BOTH, "b1,h2,q1500,k1500,turns"},
	{CLASS_PRESETS, D64 "score: {softcap: {cap: 30}}, " BOTH, "b1,h2,q200,k2000,inf"},
	{CLASS_PRESETS, D64 "score: {softcap: {cap: 30}}, " BOTH, "b1,h2,q200,k2000,odd"},
	{CLASS_PRESETS, D64 "score: {softcap: {cap: 30}}, " BOTH, "b1,h2,q200,k2000,row,odd"},
	{CLASS_PRESETS, D64 "mask: causal, score: {softcap: {cap: 50}}, " BOTH, "b1,h2,q1500,k1500,turns,odd"},
	{CLASS_PRESETS, D64 "score: {softcap: {cap: 30}}, " BOTH, "b1,h2,q200,k2000,inf,odd"},
	{CLASS_PRESETS, D64 "mask: causal, score: alibi, " BOTH, "b2,h4/2,q333,k333"},
	{CLASS_PRESETS, HALF "score: alibi, " BOTH, "b1,h3,q100,k400,seed2"},
	{CLASS_PRESETS, D64 "score: bias, " BOTH, "b2,h4/2,q333,k333"},
	{CLASS_PRESETS, HALF "mask: causal, score: bias, " BOTH, "b2,h2,q130,k201,seed2"},
	{CLASS_PRESETS, D64 "score: t5, " BOTH, "b2,h4/2,q333,k333"},
	{CLASS_PRESETS, HALF "mask: causal, score: t5_causal, " BOTH, "b2,h4,q130,k333,seed2"},
	{CLASS_PRESETS, D64 "mask: causal, sink: true, " BOTH, "b2,h4/2,q333,k333"},
	{CLASS_PRESETS, HALF "mask: {window: {left: 40, right: 0}}, sink: true, " BOTH, "b1,h2,q300,k200,seed3"},
	{CLASS_PRESETS, D64 "score: [alibi, {softcap: {cap: 20}}], sink: true, " BOTH, "b2,h4/2,q201,k222"},

	/* masks: runs, residuals, conditions, random numbers */
	{CLASS_EXPRESSIONS, D64 "mask: \"k <= q && q - k < 300 || k < 16\", " BOTH, "b2,h4/2,q600,k600"},
	{CLASS_EXPRESSIONS, D64 "mask: \"abs(q - k) < 40 || q < 8 || k < 8\", " BOTH, "b2,h2,q400,k400,seed2"},
	{CLASS_EXPRESSIONS, D64 "mask: \"k < 20 || k >= sk - 20 || q == k + 100\", " BOTH, "b2,h2,q333,k500"},
	{CLASS_EXPRESSIONS, HALF "mask: \"causal && q / 64 == k / 64\", " BOTH, "b2,h2,q333,k333"},
	{CLASS_EXPRESSIONS, D64 "mask: \"(q - k) % 3 == 0 && k <= q + 50\", " BOTH, "b1,h2,q333,k300"},
	{CLASS_EXPRESSIONS, D64 "mask: \"(q / 16 + k / 16) % 2 == 0\", " BOTH, "b2,h2,q200,k333"},
	{CLASS_EXPRESSIONS, D64 "mask: \"random(h, q, k) < 20000 || q == k\", " BOTH, "b2,h4,q222,k222"},
	{CLASS_EXPRESSIONS, HALF "mask: \"random(3, q / 32, k / 32) < 30000\", " BOTH, "b2,h2,q300,k300"},
	{CLASS_EXPRESSIONS, D64 "mask: \"h % 2 == 0 ? k <= q : q <= k\", " BOTH, "b2,h4,q333,k333"},
	{CLASS_EXPRESSIONS, D64 "mask: \"(q < 100) == (k < 150)\", " BOTH, "b2,h2,q222,k333"},
	{CLASS_EXPRESSIONS, D64 "mask: \"!(causal || k > 200) || b == 1\", " BOTH, "b2,h2,q333,k333"},
	{CLASS_EXPRESSIONS, D64 "mask: \"min(q, k) < 30 || max(q, k) > 250\", " BOTH, "b1,h2,q300,k300"},
	{CLASS_EXPRESSIONS, HALF "mask: \"2 * k <= q + 100\", " BOTH, "b1,h2,q200,k200"},
	{CLASS_EXPRESSIONS, D64 "mask: \"(k - sk / 2) * (k - sk / 2) < q * 20\", " BOTH, "b1,h2,q333,k333"},
	{CLASS_EXPRESSIONS, D64 "mask: \"q % 7 != 3 && k % 5 != 2\", " BOTH, "b1,h2,q222,k222"},
	{CLASS_EXPRESSIONS, D64 "mask: \"k * 1.0 < 0.5 * q + 20.25\", " BOTH, "b1,h2,q333,k333"},
	{CLASS_EXPRESSIONS, "{head_dim: 32, mask: \"abs(q / 20 - k / 20) <= 2 && abs(q % 20 - k % 20) <= 2\", " BOTH,
         "b2,h2,q400,k400"},
	/* inputs of every place, in masks */
	{CLASS_EXPRESSIONS,
         D64 "mask: \"q < qn[b] && k < kn[b] && k - kn[b] <= q - qn[b]\", inputs: {qn: {dtype: i32, shape: [batch]}, kn: "
             "{dtype: i32, shape: [batch]}}, " BOTH,
         "b4,h2,q128,k128,seed3"},
	{CLASS_EXPRESSIONS, D64 "mask: \"k < reach[b, q]\", inputs: {reach: {dtype: i32, shape: [batch, seq_q]}}, " BOTH,
         "b2,h2,q333,k20,seed3"},
	{CLASS_EXPRESSIONS, D64 "mask: \"keep[b, h, k] != 0\", inputs: {keep: {dtype: u8, shape: [batch, heads, seq_k]}}, " BOTH,
         "b2,h4/2,q222,k333"},
	{CLASS_EXPRESSIONS,
         D64 "mask: \"causal && x[b, h, q] == y[b, h, k]\", inputs: {x: {dtype: i32, shape: [batch, heads, seq_q]}, y: {dtype: "
             "i32, shape: [batch, heads, seq_k]}}, " BOTH,
         "b2,h4/2,q333,k333,seed3"},
	{CLASS_EXPRESSIONS,
         D64 "mask: \"causal && x[b, h, q] == y[b, h, k]\", inputs: {x: {dtype: i32, shape: [batch, heads, seq_q]}, y: {dtype: "
             "i32, shape: [batch, heads, seq_k]}}, " BOTH,
         "b2,h2,q600,k600,seed4"},
	{CLASS_EXPRESSIONS, D64 "mask: \"see[q, k] != 0\", inputs: {see: {dtype: u8, shape: [seq_q, seq_k]}}, " BOTH,
         "b2,h4/2,q222,k201"},
	{CLASS_EXPRESSIONS, HALF "mask: \"near[q - k + 64] == 1\", inputs: {near: {dtype: u8, shape: [129]}}, " BOTH,
         "b1,h2,q222,k222"},
	{CLASS_EXPRESSIONS, D64 "mask: \"limit > 0 && k % 2 == 0\", inputs: {limit: {dtype: i32, shape: []}}, " BOTH,
         "b1,h2,q130,k130"},
	/* scores */
	{CLASS_EXPRESSIONS, D64 "score: \"20 * tanh(s / 20)\", mask: causal, " BOTH, "b2,h4/2,q333,k333"},
	{CLASS_EXPRESSIONS, D64 "score: \"s * sigmoid(s)\", " BOTH, "b2,h2,q222,k222"},
	{CLASS_EXPRESSIONS, HALF "score: \"max(s, 0.1 * s) - 0.01 * abs(q - k)\", " BOTH, "b2,h2,q222,k222"},
	{CLASS_EXPRESSIONS, D64 "score: \"s - log(1.0 + abs(q - k))\", mask: causal, " BOTH, "b2,h4/2,q333,k333"},
	{CLASS_EXPRESSIONS, D64 "score: \"s * sqrt(1.0 + h) / (1.0 + exp(-0.1 * s))\", " BOTH, "b2,h4,q130,k200"},
	{CLASS_EXPRESSIONS, D64 "score: \"k < 10 ? s + 1.5 : (q - k) % 2 == 0 ? s : 0.5 * s\", " BOTH, "b2,h2,q222,k333"},
	{CLASS_EXPRESSIONS, D64 "score: \"s + random(h, q, k) / 65536.0\", " BOTH, "b2,h4,q130,k222"},
	{CLASS_EXPRESSIONS, D64 "score: \"s * s / (1.0 + abs(s))\", " BOTH, "b1,h2,q130,k130,seed2"},
	{CLASS_EXPRESSIONS, HALF "score: [\"s * 0.5\", alibi, \"4 * tanh(s / 4)\", \"s + 1\"], mask: causal, " BOTH,
         "b2,h4,q222,k222"},
	{CLASS_EXPRESSIONS, D64 "score: \"s + rel[h, q - k + 128]\", inputs: {rel: {dtype: f32, shape: [heads, 257]}}, " BOTH,
         "b2,h4/2,q333,k333"},
	{CLASS_EXPRESSIONS,
         D64 "score: \"s + x[b, h, q, k / 20] + y[b, h, q, k % 20]\", inputs: {x: {dtype: fp16, shape: [batch, heads, seq_q, "
             "20]}, y: {dtype: f32, shape: [batch, heads, seq_q, 20]}}, " BOTH,
         "b2,h2,q400,k400"},
	{CLASS_EXPRESSIONS, D64 "score: \"s + pair[h, q, k]\", inputs: {pair: {dtype: bf16, shape: [heads, seq_q, seq_k]}}, " BOTH,
         "b2,h4/2,q130,k201"},
	{CLASS_EXPRESSIONS, D64 "score: \"s * t + u[b] - v[h / 2]\", inputs: {t: {dtype: f32, shape: []}, u: {dtype: bf16, shape: "
                            "[batch]}, v: {dtype: fp16, shape: [2]}}, " BOTH,
         "b2,h4/2,q130,k201,seed3"},
	{CLASS_EXPRESSIONS, D64 "score: \"s + w[kind[b, q], kind[b, k]]\", inputs: {kind: {dtype: i32, shape: [batch, seq_q]}, w: "
                            "{dtype: f32, shape: [5, 5]}}, " BOTH,
         "b2,h2,q222,k222,seed3"},

	/* gradients of inputs */
	{CLASS_GRADS, D64 "mask: causal, score: alibi, inputs: {slope: {dtype: f32, shape: [heads], grad: true}}, " BOTH,
         "b2,h4/2,q333,k333"},
	{CLASS_GRADS, HALF "score: alibi, inputs: {slope: {dtype: fp16, shape: [heads], grad: true}}, " BOTH, "b2,h4,q100,k222,fat"},
	{CLASS_GRADS, D64 "score: t5, inputs: {rel: {dtype: f32, shape: [heads, 32], grad: true}}, " BOTH, "b2,h4/2,q333,k300"},
	{CLASS_GRADS, D64 "mask: causal, score: t5_causal, dropout: 0.2, inputs: {rel: {dtype: f32, shape: [heads, 32], grad: "
                      "true}}, " BOTH,
         "b2,h4/2,q222,k222,seed3"},
	{CLASS_GRADS, D64 "score: bias, inputs: {bias: {dtype: f32, shape: [batch, heads, seq_q, seq_k], grad: true}}, " BOTH,
         "b2,h4/2,q222,k201"},
	{CLASS_GRADS, HALF "mask: causal, score: bias, inputs: {bias: {dtype: fp16, shape: [batch, heads, seq_q, seq_k], grad: "
                       "true}}, " BOTH,
         "b2,h2,q130,k333,seed2"},
	{CLASS_GRADS, D64 "score: \"s + rel[h, q - k + 300]\", inputs: {rel: {dtype: f32, shape: [heads, 601], grad: true}}, " BOTH,
         "b2,h4/2,q222,k333"},
	{CLASS_GRADS, "{head_dim: 32, score: \"s + t[h, (q / 7 - k / 7 + 6) * 13 + q % 7 - k % 7 + 6]\", inputs: {t: {dtype: f32, "
                      "shape: [heads, 169], grad: true}}, " BOTH,
         "b12,h3,q49,k49"},
	{CLASS_GRADS, D64 "score: \"s * sigmoid(g[b, h, k])\", inputs: {g: {dtype: f32, shape: [batch, heads, seq_k], grad: "
                      "true}}, " BOTH,
         "b2,h4/2,q222,k333"},
	{CLASS_GRADS, D64 "mask: causal, score: \"s * exp(g[b, h, q])\", inputs: {g: {dtype: f32, shape: [batch, heads, seq_q], "
                      "grad: true}}, " BOTH,
         "b2,h4/2,q222,k333,seed3"},
	{CLASS_GRADS, D64 "score: \"t * tanh(s / t)\", inputs: {t: {dtype: f32, shape: [], grad: true}}, " BOTH, "b2,h2,q130,k201"},
	{CLASS_GRADS, D64 "sink: true, mask: {window: {left: 50, right: 0}}, " BOTH, "b2,h4/2,q333,k222"},
	{CLASS_GRADS, HALF "sink: true, dropout: 0.3, " BOTH, "b2,h4,q100,k222,seed3"},
	{CLASS_GRADS, D64 "sink: true, score: [alibi, {softcap: {cap: 9}}], inputs: {slope: {dtype: f32, shape: [heads], grad: "
                      "true}}, " BOTH,
         "b2,h4/2,q222,k201"},

	{CLASS_GRADS, D64 "score: \"s + x[b, h, q, k / 20] + y[b, h, q, k % 20]\", inputs: {x: {dtype: f32, shape: [batch, heads, "
                      "seq_q, 20], grad: true}, y: {dtype: f32, shape: [batch, heads, seq_q, 20], grad: true}}, " BOTH,
         "b2,h2,q222,k400"},
	/* without a query, a key or a batch entry gradients are zeros */
	{CLASS_GRADS, NO_CELLS, "b2,h4/2,q0,k201"},
	{CLASS_GRADS, NO_CELLS, "b2,h4/2,q130,k0"},
	{CLASS_GRADS, NO_CELLS, "b0,h4/2,q130,k201"},

	{CLASS_GRADS, D64 "score: \"s + r[h, q] + 2 * c[k]\", inputs: {r: {dtype: f32, shape: [heads, seq_q], grad: true}, c: "
                      "{dtype: bf16, shape: [seq_k], grad: true}}, " BOTH,
         "b2,h4/2,q222,k333"},
	/* so many heads that several lanes read those of an element, and some of them twice */
	{CLASS_GRADS, D64 "score: \"s + r[h, q] * c[k]\", inputs: {r: {dtype: f32, shape: [heads, seq_q], grad: true}, c: "
                      "{dtype: f32, shape: [seq_k], grad: true}}, " BOTH,
         "b40,h8/4,q33,k49"},
	{CLASS_GRADS, D64 "mask: causal, score: \"s + pair[h, q, k]\", inputs: {pair: {dtype: f32, shape: [heads, seq_q, seq_k], "
                      "grad: true}}, " BOTH,
         "b3,h4/2,q222,k201"},
	{CLASS_GRADS, D64 "blocks: {size: 32, from: bitmap}, score: \"s + pair[q, k]\", inputs: {pair: {dtype: f32, shape: "
                      "[seq_q, seq_k], grad: true}}, " BOTH,
         "b2,h4/2,q130,k201"},
	{CLASS_GRADS, D64 "score: \"s + u[b] * abs(q - k) + v[b, h]\", inputs: {u: {dtype: f32, shape: [batch], grad: true}, v: "
                      "{dtype: f32, shape: [batch, heads], grad: true}}, dropout: 0.1, " BOTH,
         "b2,h4/2,q130,k201,seed3"},

	/* field cases */
	{CLASS_MSK, "{head_dim: 16, dtype: fp16, mask: \"q < 4\", " BOTH, "b1,h1,q8,k8"},                        /* MSK-01 */
	{CLASS_MSK, "{head_dim: 128, mask: \"(q - sq) - (k - sk) >= 0\", " BOTH, "b1,h2,q300,k300"},             /* WIN-04 */
	{CLASS_MSK, "{head_dim: 128, mask: {window: {left: unbounded, right: 0}}, " BOTH, "b1,h2,q300,k300"},
	{CLASS_MSK, "{head_dim: 128, mask: {window: {left: 300, right: 0}}, " BOTH, "b1,h2,q300,k300"},
	{CLASS_MSK, D64 "mask: \"(q - sq) - (k - sk) <= -5\", " BOTH, "b1,h2,q64,k64"},                          /* WIN-06 */
	{CLASS_MSK, D64 "mask: \"q - k <= 7 && k - q <= -8\", " BOTH, "b1,h2,q64,k64"},                          /* WIN-07 */
	{CLASS_MSK, "{head_dim: 128, mask: {all: [causal, {window: {left: unbounded, right: 0}}]}, " BOTH,
         "b2,h8,q1024,k1024"},                                                                                   /* WIN-08 */
	{CLASS_MOD, D64 "mask: causal, score: {softcap: {cap: 1.0}}, " BOTH, "b1,h2,q64,k64"},                   /* MOD-02 */
	{CLASS_MOD, D64 "mask: causal, score: alibi, " BOTH, "b1,h8,q7,k13"},                                    /* MOD-04 */
	{CLASS_MOD, D64 "mask: causal, score: alibi, " BOTH, "b1,h8,q1,k13"},
	{CLASS_MOD, D64 "mask: causal, score: alibi, " BOTH, "b1,h8,q1,k17"},                                    /* MOD-05 */
	{CLASS_MOD, D64 "mask: causal, score: alibi, " BOTH, "b1,h12,q100,k100"},                                /* MOD-07 */
	{CLASS_MOD, D64 "mask: causal, score: alibi, " BOTH, "b1,h40,q33,k100"},
	{CLASS_HD, "{head_dim: {qk: 128, v: 72}, mask: causal, score: alibi, sink: true, " BOTH, "b1,h4,q200,k200"},
	{CLASS_HD, "{head_dim: {qk: 64, v: 128}, kv_group: any, score: {softcap: {cap: 9}}, " BOTH, "b1,h12/2,q150,k150"},
	{CLASS_HD, "{head_dim: 256, kv_group: 8, mask: causal, score: {softcap: {cap: 50}}, " BOTH, "b2,h16/2,q300,k300,outlier"},
	{CLASS_HD, "{head_dim: 16, kv_group: any, mask: document, score: bias, " BOTH, "b1,h12/2,q70,k300,seed2"},
	{CLASS_HD, "{head_dim: 160, score: t5, " BOTH, "b1,h2,q150,k150"},
	{CLASS_HD, "{head_dim: 128, kv_group: 7, blocks: {size: 64, keep: {random: {seed: 1, chance: 0.5}}}, " BOTH,
         "b2,h7/1,q164,k300"},
	{CLASS_BSP, D64 "blocks: {size: 64, rows: [[0, 5], [1], [2, 30], [3], [4], [5], [6], [7], [63]]}, " BOTH,
         "b1,h2,q300,k250"},                                                                                     /* BSP-03 */
	{CLASS_BSP, D64 "blocks: {size: 64, rows: [[0, 1], [2], [4, 5], [0, 6], [7], [1, 2]]}, " BOTH, "b1,h2,q384,k512"}, /* BSP-04 */
	{CLASS_BSP, D64 "blocks: {size: 64, keep: \"q != sq - 1\"}, " BOTH, "b1,h2,q1000,k1000"},                /* BSP-05 */
	{CLASS_BSP, D64 "blocks: {size: 64, from: lists}, " BOTH, "b2,h2,q333,k333,huge"},                       /* BSP-06 */
	{CLASS_BSP, D64 "blocks: {size: 64, from: bitmap}, tile: {forward: {m: 128, n: 64}}, " BOTH, "b1,h2,q333,k333"}, /* BSP-09 */
	{CLASS_BSP, D64 "blocks: {size: 64, from: bitmap}, tile: {forward: {m: 64, n: 128}}, " BOTH, "b1,h2,q333,k333"},
	{CLASS_BSP, D64 "blocks: {size: 128, from: bitmap}, " BOTH, "b1,h2,q100,k300"},                          /* BSP-11 */
	{CLASS_BSP, D64 "blocks: {size: 64, keep: \"k >= 0\"}, " BOTH, "b1,h2,q333,k300"}, /* dense */
	{CLASS_BSP, D64 "blocks: {size: 64, keep: \"k < 0\"}, " BOTH, "b1,h2,q130,k130"},
	{CLASS_BSP, D64 "blocks: {size: 32, keep: \"k == (q * 5 + h) % sk\"}, " BOTH, "b2,h4/2,q400,k300"}, /* one a row */
	{CLASS_BSP, D64 "blocks: {size: 64, rows: [[0], [1]]}, " BOTH, "b1,h2,q600,k600"}, /* shorter than the lengths */
	{CLASS_BSP, D64 "mask: causal, blocks: {size: {q: 32, k: 128}, from: bitmap}, " BOTH, "b2,h4/2,q333,k600"},
	{CLASS_BSP, D64 "mask: document, blocks: {size: {q: 256, k: 16}, from: lists}, score: alibi, " BOTH,
         "b2,h4/2,q333,k600,seed2"},
	{CLASS_BSP, HALF "sink: true, blocks: {size: {q: 128, k: 48}, keep: {random: {seed: 5, chance: 0.2}}}, " BOTH,
         "b2,h4,q500,k600"},
};

/* Every size of a block with every source of a layout. */
static void layouts(struct suite *s)
{
	static const int sizes[] = {16, 32, 48, 64, 128, 256};
	static const char *const sources[] = {"keep: {local: {left: 1, right: 1}}",
	                                      "keep: {any: [{global: {n: 1}}, {strided: {step: 3}}]}",
	                                      "keep: {random: {seed: 9, chance: 0.4}}",
	                                      "rows: [[0, 2], [], [1], [0, 1, 2, 3, 4, 5, 6, 7], [3]]",
	                                      "from: bitmap",
	                                      "from: lists"};
	char spec[CASE_NAME_MAX];
	for (int i = 0; i < 6; i++)
		for (int j = 0; j < 6; j++) {
			snprintf(spec, sizeof spec, "{head_dim: 64, kv_group: 2, dtype: %s, mask: %s, blocks: {size: %d, %s}, " BOTH,
			         (i + j) % 2 ? "fp16" : "bf16", (i + j) % 3 ? "none" : "causal", sizes[i], sources[j]);
			suite_case(s, CLASS_BSP, spec, "b2,h4/2,q%d,k%d,seed%d", 300 + 33 * j, 400 - 31 * i, 6 * i + j);
		}
}

static void pairs(struct suite *s, enum class class, const struct pair_table *table)
{
	struct pair_case cases[PAIRS_MAX];
	const int count = pairs_make(cases, table);
	for (int i = 0; i < count; i++) {
		char spec[CASE_NAME_MAX], parts[CASE_NAME_MAX];
		table->spec(spec, &cases[i]);
		table->parts(parts, &cases[i], i);
		char *tile = strstr(spec, ", tile: {");
		if (tile && s->gpu.cc != 90) /* asks for the native template; elsewhere the planner's choice runs the case */
			strcpy(tile, "}");
		suite_case(s, class, spec, "%s", parts);
	}
}

void suite_language(struct suite *s)
{
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		suite_case(s, rows[i].class, rows[i].spec, "%s", rows[i].parts);
	layouts(s);
	pairs(s, CLASS_PAIRS, &pairs_all);
	pairs(s, CLASS_NATIVE, &pairs_native);
}
