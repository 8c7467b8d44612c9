#include "tests/gpu/pairs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct pair_axis axes[NATIVE_COUNT] = {
	[NATIVE_DTYPE] = {"dtype", {{"bf16", ""}, {"fp16", "dtype: fp16, "}}},
	[NATIVE_HEAD_DIM] = {"head_dim", {{"16", ""}, {"64", ""}, {"72", ""}, {"128", ""}, {"192", ""}, {"256", ""}}},
	[NATIVE_HEAD_DIM_V] = {"head_dim v", {{"same", ""}, {"smaller", ""}, {"larger", ""}}},
	[NATIVE_MASK] = {"mask",
                         {{"none", ""},
                          {"causal", "mask: causal, "},
                          {"window", "mask: {window: {left: 90, right: 20}}, "},
                          {"two runs", "mask: \"abs(q - k) < 60 || k < 9\", "},
                          {"residual", "mask: \"(q + k) % 3 != 0\", "},
                          {"causal document", "mask: {all: [causal, document]}, "},
                          {"padding", "mask: padding, "},
                          {"empty rows", "mask: \"k + 40 <= q\", "}}},
	[NATIVE_SCORE] = {"score",
                          {{"none", ""},
                           {"softcap", "score: {softcap: {cap: 8}}, "},
                           {"alibi", "score: alibi, "},
                           {"bias", "score: bias, "},
                           {"diagonals", "score: \"s + t[h, q - k + 40]\", inputs: {t: {dtype: f32, shape: [heads, 81]}}, "},
                           {"rows, keys",
                            "score: \"s * g[h, k] + r[b, h, q]\", inputs: {g: {dtype: f32, shape: [heads, seq_k]}, "
                            "r: {dtype: fp16, shape: [batch, heads, seq_q]}}, "}}},
	[NATIVE_SINK] = {"sink", {{"none", ""}, {"sink", "sink: true, "}}},
	[NATIVE_DROPOUT] = {"dropout", {{"none", ""}, {"0.2", "dropout: 0.2, "}}},
	[NATIVE_GROUP] = {"group", {{"1", "kv_group: 1, "}, {"3", "kv_group: 3, "}, {"any", "kv_group: any, "}}},
	[NATIVE_LAYOUT] = {"layout", {{"dense", ""}, {"padded", "layout: padded, "}, {"packed", "layout: packed, "}}},
	[NATIVE_SPARSITY] = {"sparsity",
                             {{"none", ""},
                              {"rule", "blocks: {size: 64, keep: {random: {seed: 3, chance: 0.5}}}, "},
                              {"bitmap", "blocks: {size: 32, from: bitmap}, "},
                              {"lists", "blocks: {size: 128, from: lists}, "}}},
	[NATIVE_WARPGROUPS] = {"warpgroups", {{"2", "m: 128, warps: 12"}, {"3", "m: 192, warps: 16"}}},
	[NATIVE_STAGES] = {"stages", {{"2", ", stages: 2"}, {"3", ", stages: 3"}}},
	[NATIVE_QUERIES] = {"queries", {{"many", ""}, {"1", ""}, {"tile - 1", ""}, {"tile", ""}, {"tile + 1", ""}, {"0", ""}}},
	[NATIVE_KEYS] = {"keys", {{"many", ""}, {"1", ""}, {"tile - 1", ""}, {"tile", ""}, {"tile + 1", ""}, {"0", ""}}},
	[NATIVE_DATA] = {"data",
                         {{"gauss", ""},
                          {"huge", ""},
                          {"row", ""},
                          {"rising", ""},
                          {"falling", ""},
                          {"turns", ""},
                          {"low", ""},
                          {"opposed", ""},
                          {"largest", ""}}},
	[NATIVE_STRIDES] = {"strides", {{"bhsd", ""}, {"bshd", ""}, {"fat", ""}, {"mixed", ""}, {"size1", ""}, {"shared", ""}}},
};

static const struct pair_excluded excluded[] = {
	{NATIVE_HEAD_DIM, "16", NATIVE_HEAD_DIM_V, "smaller", "16 is the smallest head dim"},
	{NATIVE_HEAD_DIM, "256", NATIVE_HEAD_DIM_V, "larger", "256 is the largest head dim"},
	{NATIVE_HEAD_DIM, "192", NATIVE_WARPGROUPS, "3", "accumulators of 64 rows do not fit the registers"},
	{NATIVE_HEAD_DIM, "256", NATIVE_WARPGROUPS, "3", "likewise"},
	{NATIVE_WARPGROUPS, "3", NATIVE_DROPOUT, "0.2", "words are made by two warpgroups' helpers alone"},
	{NATIVE_DATA, "largest", NATIVE_DROPOUT, "0.2", "what is kept is scaled past the largest number"},
};

/* Can the native template be built with the tile that the spec asks for? */
static bool native_has(const char *yaml)
{
	struct spec *spec = malloc(sizeof *spec);
	struct program *program = malloc(sizeof *program);
	struct plan *plan = malloc(sizeof *plan);
	struct diag diag = {0};
	if (!spec || !program || !plan)
		abort();
	const bool has = !spec_parse(spec, yaml, strlen(yaml), "pair", &diag) && !program_lower(program, spec, &diag) &&
	                 !plan_make(plan, spec, program, target_find("sm_90a"), device_find("H200"), &spec->assume,
	                            PASS_FORWARD, &diag);
	diag_free(&diag);
	free(spec);
	free(program);
	free(plan);
	return has;
}

/* The number of keys of a tile is no axis, for what fits depends on all the others: the largest, from some size down that
 * differs from case to case. */
static void native_spec(char to[CASE_NAME_MAX], const struct pair_case *c)
{
	static const int dims[LEVELS_MAX][3] = {{16, 0, 80},     {64, 40, 128},   {72, 16, 96},
	                                        {128, 64, 176},  {192, 128, 256}, {256, 64, 0}}; /* same: the first */
	static const int keys[] = {176, 128, 112, 96, 80, 64, 48, 32};
	const int *dim = dims[c->level[NATIVE_HEAD_DIM]];
	char text[CASE_NAME_MAX - 96];
	int len = snprintf(text, sizeof text, "{head_dim: {qk: %d, v: %d}, ", dim[0], dim[c->level[NATIVE_HEAD_DIM_V]]), sum = 0;
	for (int f = 0; f < NATIVE_WARPGROUPS; f++) {
		len += snprintf(text + len, sizeof text - (size_t)len, "%s", axes[f].level[c->level[f]].yaml);
		sum += c->level[f];
	}
	for (size_t i = (size_t)sum % 4; i < sizeof keys / sizeof *keys; i++) {
		snprintf(to, CASE_NAME_MAX, "%soutputs: [out, lse], tile: {forward: {%s%s, n: %d}}}", text,
		         axes[NATIVE_WARPGROUPS].level[c->level[NATIVE_WARPGROUPS]].yaml,
		         axes[NATIVE_STAGES].level[c->level[NATIVE_STAGES]].yaml, keys[i]);
		if (native_has(to))
			return;
	}
}

static int length_of(const char *level, int tile, int many)
{
	return !strcmp(level, "many")       ? many
	       : !strcmp(level, "tile - 1") ? tile - 1
	       : !strcmp(level, "tile")     ? tile
	       : !strcmp(level, "tile + 1") ? tile + 1
	                                    : atoi(level);
}

static void native_parts(char to[CASE_NAME_MAX], const struct pair_case *c, int index)
{
	static const int groups[LEVELS_MAX] = {1, 3, 4};
	char spec[CASE_NAME_MAX];
	native_spec(spec, c);
	const int m = 64 * atoi(level_name(&pairs_native, c, NATIVE_WARPGROUPS)), n = atoi(strstr(spec, ", n: ") + 5);
	const char *strides = level_name(&pairs_native, c, NATIVE_STRIDES);
	const bool single = !strcmp(strides, "size1"); /* one entry, one key head: their strides are senseless */
	const int entries = single ? 1 : c->level[NATIVE_LAYOUT] ? 4 : 2, heads_kv = single ? 1 : 2;
	snprintf(to, CASE_NAME_MAX, "b%d,h%d/%d,q%d,k%d,%s,%s,seed%d%s", entries, groups[c->level[NATIVE_GROUP]] * heads_kv, heads_kv,
	         length_of(level_name(&pairs_native, c, NATIVE_QUERIES), m, 3 * m + 20 + index % 60),
	         length_of(level_name(&pairs_native, c, NATIVE_KEYS), n, 6 * n + index % 90), level_name(&pairs_native, c, NATIVE_DATA),
	         strides, index + 1, index % 2 ? ",whole" : "");
}

const struct pair_table pairs_native = {.axes = NATIVE_COUNT,
                                        .axis = axes,
                                        .excluded_count = sizeof excluded / sizeof *excluded,
                                        .excluded = excluded,
                                        .spec = native_spec,
                                        .parts = native_parts};
