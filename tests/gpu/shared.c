/* Query heads of a group that share tiles: which row is of which head and position, with everything that a row may ask for. Where the native
 * forward does not run the planner's choice takes the case. */
#include "tests/gpu/suite.h"

#define SHARED(n, heads) ", outputs: [out, lse], tile: {forward: {m: 128, n: " #n ", heads: " #heads "}}}"
#define WIDE(n, heads) ", outputs: [out, lse], tile: {forward: {m: 192, n: " #n ", heads: " #heads "}}}"
#define PARTS(n, splits, heads) ", outputs: [out, lse], tile: {forward: {m: 128, n: " #n ", splits: " #splits ", heads: " #heads "}}}"
#define PLANNED ", outputs: [out, lse]}"

static const struct tile_row rows[] = {
	/* SMALL of them. */
	{"{head_dim: 64, kv_group: 4, mask: causal" SHARED(64, 4), "b2,h8/2,q70,k300"},
	{"{head_dim: 128, kv_group: 8, layout: padded, mask: causal" PARTS(64, 3, 8), "b3,h16/2,lq1-5-0,lk500-64-300,seed4"},
	{"{head_dim: 64, kv_group: 16, sink: true" SHARED(64, 16), "b1,h32/2,q11,k200,bshd"},
	{"{head_dim: 96, kv_group: 6, dtype: fp16, layout: packed, mask: {window: {left: 60, right: 0}}" WIDE(48, 2),
	 "b5,h12/2,lq130-0-7-200-1,lk90-9-0-300-1,q210,k310,seed2"},
	{"{head_dim: 64, kv_group: 7, layout: padded, sink: true, mask: causal" SHARED(64, 7), "b3,h14/2,lq1-37-0,lk500-64-300,bshd,seed36"},
	/* Decoding, as planned. */
	{"{head_dim: 128, kv_group: 4" PLANNED, "b1,h32/8,q1,k20000,planned,seed5"},
	{"{head_dim: 128, kv_group: 8, mask: causal" PLANNED, "b4,h64/8,q4,k4096,planned,bshd,seed6"},
	{"{head_dim: 128, kv_group: 4, layout: padded, mask: causal" PLANNED, "b6,h32/8,lq1-1-1-1-1-1,lk1-100-4096-777-0-2048,planned,seed7"},
	{"{head_dim: 64, kv_group: 8, layout: packed, mask: causal" PLANNED, "b5,h16/2,lq1-7-1-16-2,lk900-9-1-2000-100,planned,seed8"},
	{"{head_dim: 64, kv_group: 8, sink: true, mask: {window: {left: 127, right: 0}}" PLANNED, "b8,h64/8,q16,k4096,planned,seed9"},
	{"{head_dim: 256, kv_group: 2, score: {softcap: {cap: 50}}, mask: causal" PLANNED, "b2,h16/8,q3,k4096,planned,seed10"},
	{"{head_dim: 128, kv_group: 32" PLANNED, "b4,h32/1,q1,k8192,planned,seed11"},
	{"{head_dim: 128, kv_group: 4, mask: causal" PLANNED, "b16,h32/8,q512,k512,planned,seed12"},
	/* Every number of heads and both widths of tiles, positions that fill tiles or do not. */
	{"{head_dim: 64, kv_group: 2" SHARED(96, 2), "b1,h4/2,q64,k333,seed13"},
	{"{head_dim: 64, kv_group: 4" WIDE(80, 4), "b1,h8/2,q48,k333,seed14"},
	{"{head_dim: 64, kv_group: 8" WIDE(80, 8), "b1,h16/2,q49,k333,mixed,seed15"},
	{"{head_dim: 64, kv_group: 16" WIDE(80, 16), "b1,h16/1,q25,k333,fat,seed16"},
	{"{head_dim: {qk: 192, v: 128}, kv_group: 12, mask: causal" SHARED(96, 4), "b2,h12/1,q100,k300,seed17"},
	{"{head_dim: {qk: 72, v: 40}, kv_group: 8, dtype: fp16" SHARED(64, 8), "b1,h8/1,q67,k600,mixed,seed18"},
	{"{head_dim: 64, kv_group: 3" SHARED(96, 3), "b1,h6/2,q64,k333,seed37"},
	{"{head_dim: 128, kv_group: 5, layout: packed, mask: causal" PARTS(64, 2, 5), "b4,h10/2,lq1-30-0-5,lk400-64-9-300,seed38"},
	{"{head_dim: 128, kv_group: 6, mask: causal" SHARED(128, 6), "b1,h12/2,q33,k1000,rising,seed39"},
	{"{head_dim: 256, kv_group: 12, sink: true, mask: causal" SHARED(64, 12), "b1,h12/1,q33,k300,seed40"},
	{"{head_dim: 128, kv_group: 7, layout: padded, mask: causal" PLANNED, "b8,h28/4,lq1-1-1-1-1-1-1-1,lk1-100-4096-777-0-2048-3000-64,planned,seed41"},
	/* Heads of a group that share, as some of it and as all. */
	{"{head_dim: 128, kv_group: 8, mask: causal" SHARED(64, 2), "b1,h16/2,q200,k300,seed19"},
	{"{head_dim: 128, kv_group: 8, mask: causal" SHARED(64, 4), "b1,h16/2,q200,k300,seed20"},
	/* Masks of which part of the rows see nothing, two runs, scores of positions, inputs of rows, keys and cells. */
	{"{head_dim: 64, kv_group: 4, mask: causal" SHARED(64, 4), "b1,h8/2,q400,k150,seed21"},
	{"{head_dim: 64, kv_group: 4, sink: true, mask: causal" SHARED(64, 4), "b1,h8/2,q400,k150,seed22"},
	{"{head_dim: 64, kv_group: 4, mask: {any: [{window: {left: 100, right: 0}}, \"k < 200\"]}" PARTS(64, 3, 4), "b1,h8/2,q300,k1000,seed23"},
	{"{head_dim: 64, kv_group: 4, mask: causal, score: \"s + 0.1 * (q - k)\"" SHARED(64, 4), "b1,h8/2,q130,k1500,seed24"},
	{"{head_dim: 64, kv_group: 4, score: \"s + m[b, k] * n[q]\", inputs: {m: {dtype: f32, shape: [batch, seq_k]}, "
	 "n: {dtype: f32, shape: [seq_q]}}" SHARED(64, 4),
	 "b2,h8/2,q150,k600,seed25"},
	{"{head_dim: 64, kv_group: 4, score: \"s + m[q, k]\", inputs: {m: {dtype: f32, shape: [seq_q, seq_k]}}" SHARED(64, 4), "b2,h8/2,q75,k400,seed26"},
	{"{head_dim: 64, kv_group: 4, score: \"s + m[q - k + sk]\", inputs: {m: {dtype: f32, shape: [4096]}}" SHARED(64, 4), "b1,h8/2,q75,k400,seed27"},
	/* Lengths. */
	{"{head_dim: 64, kv_group: 4, layout: padded" SHARED(64, 4), "b4,h8/2,lq0-130-200-7,lk900-0-130-1,seed28"},
	{"{head_dim: 64, kv_group: 8, layout: padded, sink: true, mask: causal" PARTS(64, 4, 8), "b4,h16/2,lq64-130-20-7,lk900-40-0-1000,seed29"},
	{"{head_dim: 128, kv_group: 8, layout: packed, mask: causal" PARTS(128, 4, 8), "b5,h16/2,lq1-0-130-16-1,lk900-9-0-2000-1,seed30"},
	/* Data that the speculating softmax must notice in one row, and infinite and large values. */
	{"{head_dim: 128, kv_group: 8" SHARED(128, 8), "b1,h8/1,q20,k4096,rising,seed31"},
	{"{head_dim: 64, kv_group: 8" PARTS(64, 8, 8), "b1,h8/1,q20,k4096,row,seed32"},
	{"{head_dim: 64, kv_group: 8" SHARED(64, 8), "b1,h8/1,q20,k2000,huge,seed33"},
	{"{head_dim: 64, kv_group: 8, dtype: fp16" SHARED(64, 8), "b1,h8/1,q20,k2000,inf,seed34"},
	{"{head_dim: 64, kv_group: 8, score: {softcap: {cap: 30}}" SHARED(64, 8), "b1,h8/1,q20,k2000,low,seed35"},
};

enum { SMALL = 5 }; /* rows for compute-sanitizer and mutations too */

void suite_shared(struct suite *s) { suite_tiles(s, CLASS_HEADS, rows, s->small ? SMALL : sizeof rows / sizeof *rows); }
