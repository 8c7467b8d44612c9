/* Keys of a query tile, or queries of a key tile, in parts: everything that a part must know of its place among the others. Where native kernels
 * do not run the planner's choice takes the case. */
#include "tests/gpu/suite.h"

#define PARTS(n, splits) ", outputs: [out, lse], tile: {forward: {m: 128, n: " #n ", splits: " #splits "}}}"
#define PLANNED ", outputs: [out, lse]}"
#define BACKWARD ", passes: [forward, backward]"
#define BACK(m, splits) BACKWARD ", tile: {backward: {m: " #m ", n: 128, splits: " #splits "}}}"

static const struct tile_row rows[] = {
	/* SMALL of them. */
	{"{head_dim: 64, sink: true, mask: causal" PARTS(64, 4), "b1,h2,q200,k600"},
	{"{head_dim: 64, score: alibi, mask: causal" PARTS(64, 4), "b1,h2,q130,k1500"},
	{"{head_dim: 64, mask: {any: [{window: {left: 100, right: 0}}, \"k < 200\"]}" PARTS(64, 3), "b1,h2,q300,k1000"},
	{"{head_dim: 64, layout: padded, sink: true" PARTS(64, 3), "b3,h2,lq0-130-70,lk300-0-600"},
	{"{head_dim: 64, layout: packed, kv_group: 2, dropout: 0.2" PARTS(64, 3), "b3,h4/2,lq40-0-130,lk600-9-300"},
	{"{head_dim: 64, kv_group: 4, mask: causal, sink: true" BACK(64, 3), "b1,h8/2,q300,k300"},
	{"{head_dim: 64, kv_group: 2, layout: packed, dropout: 0.2" BACK(64, 5), "b5,h4/2,lq130-0-7-200-1,lk90-9-0-300-1"},
	{"{head_dim: {qk: 72, v: 40}, layout: padded, mask: {window: {left: 70, right: 9}}" BACK(32, 3), "b4,h2,lq130-0-7-200,lk90-9-0-300"},
	{"{head_dim: 64, kv_group: 3, mask: document, score: \"s + r[b, h, k]\", inputs: {r: {dtype: f32, shape: [batch, heads, seq_k]}}" BACK(64, 4),
	 "b1,h6/2,q300,k300"},
	/* Decoding and the like, as asked and as planned. */
	{"{head_dim: 128" PARTS(128, 4), "b1,h2,q1,k333"},
	{"{head_dim: 128" PARTS(128, 8), "b2,h2,q16,k4096,seed2"},
	{"{head_dim: 128" PARTS(128, 16), "b1,h2,q128,k20000,seed3"},
	{"{head_dim: 128" PLANNED, "b1,h2,q1,k20000,planned,seed4"},
	{"{head_dim: 128, mask: causal" PLANNED, "b1,h4,q128,k4096,planned,seed5"},
	{"{head_dim: 64, kv_group: 8" PLANNED, "b1,h16/2,q16,k4096,planned,bshd,seed6"},
	/* Head dims and dtypes. */
	{"{head_dim: 64, dtype: fp16" PARTS(128, 3), "b1,h3,q300,k1000,seed7"},
	{"{head_dim: 96, mask: causal" PARTS(96, 5), "b1,h2,q200,k1500,seed8"},
	{"{head_dim: 256" PARTS(64, 4), "b1,h2,q128,k4096,seed9"},
	{"{head_dim: {qk: 192, v: 128}, dtype: fp16, mask: causal" PARTS(96, 4), "b2,h2,q130,k900,fat,seed10"},
	{"{head_dim: {qk: 72, v: 40}, kv_group: any" PARTS(64, 2), "b1,h6/2,q67,k600,mixed,seed11"},
	/* Masks: part of the rows see nothing, all of a row's keys in one part, more parts than tiles, two runs, a layout. */
	{"{head_dim: 64, mask: causal" PARTS(64, 4), "b1,h2,q400,k150,seed12"},
	{"{head_dim: 128, mask: \"q % 3 != 0 && (k / 512) % 8 == q % 8\"" PARTS(128, 8), "b1,h2,q128,k4096,seed13"},
	{"{head_dim: 64, mask: causal" PARTS(32, 64), "b2,h2,q200,k700,seed14"},
	{"{head_dim: 128, mask: {window: {left: 700, right: 50}}" PARTS(64, 3), "b1,h2,q600,k2000,seed15"},
	{"{head_dim: 64, mask: {any: [{window: {left: 300, right: 0}}, \"k < 200\"]}" PARTS(64, 4), "b1,h2,q700,k2500,seed16"},
	{"{head_dim: 64, mask: document" PARTS(64, 3), "b1,h2,q500,k500,seed17"},
	{"{head_dim: 64, mask: causal, blocks: {size: 48, from: bitmap}" PARTS(64, 3), "b1,h2,q300,k900,seed18"},
	/* Scores, a sink, dropout. */
	{"{head_dim: 128, score: alibi, mask: causal" PARTS(64, 8), "b1,h4,q128,k4096,seed19"},
	{"{head_dim: 64, score: {softcap: {cap: 30}}" PARTS(128, 4), "b1,h2,q100,k3000,seed20"},
	{"{head_dim: 64, score: bias" PARTS(64, 3), "b1,h2,q150,k800,seed21"},
	{"{head_dim: 64, sink: true, mask: causal" PARTS(64, 4), "b1,h2,q400,k150,seed22"},
	{"{head_dim: 128, sink: true" PARTS(128, 8), "b1,h8,q16,k4096,seed23"},
	{"{head_dim: 128, dropout: 0.2, mask: causal" PARTS(64, 5), "b1,h2,q130,k1500,seed24"},
	{"{head_dim: 64, dropout: 0.5, sink: true, score: alibi" PARTS(128, 2), "b2,h2,q64,k900,seed25"},
	/* Lengths. */
	{"{head_dim: 64, layout: padded" PARTS(64, 3), "b4,h2,lq0-130-200-7,lk900-0-130-1,seed26"},
	{"{head_dim: 64, layout: padded, sink: true, mask: causal" PARTS(64, 4), "b4,h2,lq64-130-200-7,lk900-40-0-1000,seed27"},
	{"{head_dim: 128, layout: packed, kv_group: 2, mask: causal" PARTS(128, 4), "b5,h4/2,lq1-0-130-16-1,lk900-9-0-2000-1,seed28"},
	{"{head_dim: 64, layout: packed, score: alibi, dropout: 0.2" PARTS(64, 2), "b6,h2,q150,k700,seed29"},
	/* Data that the speculating softmax must notice, in one part or in each; infinite and large values. */
	{"{head_dim: 128" PARTS(128, 4), "b1,h2,q130,k4096,rising,seed30"},
	{"{head_dim: 128" PARTS(128, 4), "b1,h2,q130,k4096,turns,seed31"},
	{"{head_dim: 64" PARTS(64, 8), "b1,h2,q130,k4096,row,seed32"},
	{"{head_dim: 64" PARTS(64, 8), "b1,h2,q130,k4096,huge,seed33"},
	{"{head_dim: 64" PARTS(64, 4), "b1,h2,q130,k2000,largest,seed34"},
	{"{head_dim: 64, dtype: fp16" PARTS(64, 4), "b1,h2,q130,k2000,inf,seed35"},
	{"{head_dim: 64, score: {softcap: {cap: 30}}" PARTS(64, 4), "b1,h2,q130,k2000,low,seed36"},
	/* Backward: grouped heads, a head's tiles in two parts and several heads in one, more parts than visits, as planned. */
	{"{head_dim: 128, kv_group: 4, mask: causal" BACK(64, 2), "b1,h32/8,q1024,k1024,seed40"},
	{"{head_dim: 64, kv_group: 4" BACK(128, 16), "b1,h8/2,q1024,k1024,fat,seed41"},
	{"{head_dim: 128, kv_group: 8, dtype: fp16" BACK(80, 7), "b1,h8/1,q500,k260,bshd,seed42"},
	{"{head_dim: 64, kv_group: any" BACK(32, 64), "b2,h6/2,q200,k129,seed43"},
	{"{head_dim: 128, kv_group: 4, mask: causal" BACKWARD "}", "b1,h32/8,q1024,k1024,planned,seed44"},
	{"{head_dim: 64, kv_group: 8" BACKWARD "}", "b1,h8/1,q1024,k1024,planned,mixed,seed45"},
	{"{head_dim: 96, kv_group: 2, mask: causal, layout: packed" BACKWARD "}", "b3,h4/2,lq300-0-700,lk300-40-700,planned,seed46"},
	/* Key tiles that nothing sees, two runs, a residual, a layout. */
	{"{head_dim: 64, mask: \"k + 200 <= q\"" BACK(64, 3), "b1,h2,q500,k500,seed47"},
	{"{head_dim: 128, mask: {any: [{window: {left: 300, right: 0}}, \"k < 200\"]}" BACK(48, 5), "b1,h2,q700,k900,seed48"},
	{"{head_dim: 64, kv_group: 2, mask: \"q % 3 != 0 && (k / 128) % 8 == (q / 64 + h) % 8\"" BACK(32, 6), "b1,h4/2,q600,k1000,seed49"},
	{"{head_dim: 64, mask: causal, blocks: {size: 48, from: bitmap}" BACK(64, 3), "b1,h2,q600,k500,seed50"},
	/* Scores, sinks, dropout, lengths, and dQ by its own kernel. */
	{"{head_dim: 128, score: alibi, mask: causal" BACK(32, 4), "b1,h4,q400,k400,seed51"},
	{"{head_dim: 64, kv_group: 4, score: {softcap: {cap: 5}}, dropout: 0.5" BACK(48, 3), "b1,h8/2,q300,k300,seed52"},
	{"{head_dim: 128, sink: true, layout: padded, mask: causal" BACK(48, 2), "b4,h2,lq64-130-200-7,lk90-40-0-300,seed53"},
	{"{head_dim: 128, kv_group: 2, layout: packed, dropout: 0.2" BACK(48, 4), "b6,h4/2,q300,k300,seed54"},
	{"{head_dim: 64, kv_group: 4, deterministic: true, mask: causal" BACK(64, 3), "b1,h8/2,q500,k500,seed55"},
	{"{head_dim: 128, deterministic: true, layout: packed" BACK(64, 4), "b4,h2,lq130-0-7-200,lk90-9-0-300,seed56"},
	/* Infinite and large values. */
	{"{head_dim: 64, dtype: fp16, kv_group: 2" BACK(64, 4), "b1,h4/2,q300,k300,inf,seed57"},
	{"{head_dim: 64, kv_group: 2" BACK(64, 4), "b1,h4/2,q300,k300,largest,seed58"},
};

enum { SMALL = 9 }; /* rows for compute-sanitizer and mutations too */

void suite_split(struct suite *s) { suite_tiles(s, CLASS_SPLIT, rows, s->small ? SMALL : sizeof rows / sizeof *rows); }
