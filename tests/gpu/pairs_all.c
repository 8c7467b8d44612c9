#include "tests/gpu/pairs.h"

#include <stdio.h>
#include <string.h>

static const struct pair_axis axes[AXIS_COUNT] = {
	[AXIS_DTYPE] = {"dtype", {{"bf16", ""}, {"fp16", "dtype: fp16, "}}},
	[AXIS_HEAD_DIM] = {"head_dim", {{"64", ""}, {"72", ""}, {"128", ""}, {"256", ""}}},
	[AXIS_HEAD_DIM_V] = {"head_dim v", {{"same", ""}, {"smaller", ""}, {"larger", ""}}},
	[AXIS_MASK] = {"mask", {{"none", ""},
                       {"causal", "mask: causal, "},
                       {"window", "mask: {window: {left: 90, right: 20}}, "},
                       {"causal document", "mask: {all: [causal, document]}, "},
                       {"padding", "mask: padding, "},
                       {"two runs", "mask: \"abs(q - k) < 60 || k < 9\", "},
                       {"residual", "mask: \"(q + k) % 3 != 0\", "}}},
	[AXIS_SCORE] = {"score", {{"none", ""},
                 {"softcap", "score: {softcap: {cap: 8}}, "},
                 {"alibi", "score: alibi, inputs: {slope: {dtype: f32, shape: [heads], grad: true}}, "},
                 {"bias",
                  "score: bias, inputs: {bias: {dtype: f32, shape: [batch, heads, seq_q, seq_k], grad: true}}, "},
                 {"diagonals",
                  "score: \"s + t[h, q - k + 40]\", inputs: {t: {dtype: f32, shape: [heads, 81], grad: true}}, "}}},
	[AXIS_SINK] = {"sink", {{"none", ""}, {"sink", "sink: true, "}}},
	[AXIS_DROPOUT] = {"dropout", {{"none", ""}, {"0.2", "dropout: 0.2, "}}},
	[AXIS_GROUP] = {"group", {{"1", "kv_group: 1, "}, {"3", "kv_group: 3, "}, {"any", "kv_group: any, "}}},
	[AXIS_LAYOUT] = {"layout", {{"dense", ""}, {"padded", "layout: padded, "}, {"packed", "layout: packed, "}}},
	[AXIS_SPARSITY] = {"sparsity", {{"none", ""},
                 {"rule",
                  "blocks: {size: 64, keep: {any: [{local: {left: 1, right: 1}}, {random: {seed: 3, chance: 0.3}}]}}, "},
                 {"bitmap", "blocks: {size: 32, from: bitmap}, "},
                 {"lists", "blocks: {size: 128, from: lists}, "}}},
	[AXIS_DETERMINISTIC] = {"deterministic", {{"no", ""}, {"yes", "deterministic: true, "}}},
	[AXIS_STRIDES] = {"strides", {{"bhsd", ""},
                          {"bshd", ""},
                          {"fat", ""},
                          {"odd", ""},
                          {"mixed", ""},
                          {"size1", ""},
                          {"flip", ""},
                          {"shared", ""}}},
	[AXIS_ALIGNMENT] = {"alignment", {{"16 bytes", ""}, {"an element", ""}}},
};

static const struct pair_excluded excluded[] = {
	{AXIS_HEAD_DIM, "256", AXIS_HEAD_DIM_V, "larger", "256 is the largest head dim"},
	{AXIS_STRIDES, "odd", AXIS_ALIGNMENT, "16 bytes", "odd strides are multiples of one element alone"},
	{AXIS_STRIDES, "flip", AXIS_ALIGNMENT, "16 bytes", "tensor maps take no negative stride"},
};

static void all_spec(char to[CASE_NAME_MAX], const struct pair_case *c)
{
	static const int dims[LEVELS_MAX][3] = {
		{64, 40, 128}, {72, 40, 104}, {128, 96, 192}, {256, 128, 0}}; /* same: the first */
	const int *dim = dims[c->level[AXIS_HEAD_DIM]];
	int len = snprintf(to, CASE_NAME_MAX, "{head_dim: {qk: %d, v: %d}, ", dim[0], dim[c->level[AXIS_HEAD_DIM_V]]);
	for (int f = 0; f < AXIS_COUNT; f++)
		len += snprintf(to + len, CASE_NAME_MAX - (size_t)len, "%s", axes[f].level[c->level[f]].yaml);
	snprintf(to + len, CASE_NAME_MAX - (size_t)len, "passes: [forward, backward]}");
}

static void all_parts(char to[CASE_NAME_MAX], const struct pair_case *c, int index)
{
	static const int groups[LEVELS_MAX] = {1, 3, 4};
	const char *strides = level_name(&pairs_all, c, AXIS_STRIDES);
	const bool single = !strcmp(strides, "size1"); /* one entry, one key head: their strides are senseless */
	const int entries = single ? 1 : c->level[AXIS_LAYOUT] ? 4 : 2, heads_kv = single ? 1 : 2;
	snprintf(to, CASE_NAME_MAX, "b%d,h%d/%d,q%d,k%d,%s,seed%d%s", entries, groups[c->level[AXIS_GROUP]] * heads_kv,
	         heads_kv, 70 + index * 37 % 150, 80 + index * 53 % 170, strides, index + 1,
	         c->level[AXIS_ALIGNMENT] ? ",shifted" : "");
}

const struct pair_table pairs_all = {.axes = AXIS_COUNT,
                                     .axis = axes,
                                     .excluded_count = sizeof excluded / sizeof *excluded,
                                     .excluded = excluded,
                                     .spec = all_spec,
                                     .parts = all_parts};
