/* Padded and packed batches: the field cases, and every kind of mask, score, input, gradient and block layout over lengths
 * from 0 up. Rows that no entry uses are poison, in and out. */
#include <stdio.h>

#include "tests/gpu/suite.h"

#define BOTH "passes: [forward, backward]"
#define PACKED "{layout: packed, " BOTH ", "
#define PADDED "{layout: padded, " BOTH ", "

static const struct {
	enum class class;
	const char *id, *spec, *parts;
} field_cases[] = {
	{CLASS_MSK, "MSK-04", PACKED "head_dim: 64, mask: causal}", "b2,h2,lq1-2,lk5-7"},
	{CLASS_MSK, "MSK-04", PADDED "head_dim: 64, mask: causal}", "b2,h2,lq1-2,lk5-7"},
	{CLASS_MSK, "MSK-06", PACKED "head_dim: 64, dtype: fp16, mask: causal}", "b3,h2,lq16-80-16,lk80-16-16"},
	{CLASS_MSK, "MSK-07", PADDED "head_dim: 64, mask: causal}", "b2,h2,lq128-40,lk128-96"},
	{CLASS_VAR, "VAR-04", PACKED "head_dim: 64}", "b2,h2,lq0,lk0"},
	{CLASS_VAR, "VAR-04", PACKED "head_dim: 64}", "b2,h2,lq0,lk0,seed2"},
	{CLASS_VAR, "VAR-04", PADDED "head_dim: 64}", "b2,h2,lq0,lk0,q70,k90"},
	{CLASS_VAR, "VAR-05", PACKED "head_dim: 64}", "b3,h2,lq16,lk64-0-33"},
	{CLASS_VAR, "VAR-05", PADDED "head_dim: 64}", "b3,h2,lq16,lk64-0-33"},
	{CLASS_VAR, "VAR-05", PACKED "head_dim: 64, sink: true}", "b3,h2,lq16,lk64-0-33"},
	{CLASS_VAR, "VAR-06", PADDED "head_dim: 64}", "b16,h2,q1,lk0,k64"},
	{CLASS_VAR, "VAR-06", PACKED "head_dim: 64}", "b16,h2,q1,lk0,seed2"},
	{CLASS_VAR, "VAR-07", PACKED "head_dim: 64}", "b64,h2,q150,k150,seed3"},
	{CLASS_VAR, "VAR-07", PADDED "head_dim: 64}", "b64,h2,q150,k150,seed3"},
	{CLASS_VAR, "VAR-07", PACKED "head_dim: 64, mask: causal}", "b64,h2,q300,k300,seed4"},
	/* Odd seeds leave rows behind the last entry. */
	{CLASS_VAR, "VAR-08", PACKED "head_dim: 64, mask: causal}", "b3,h2,lq100-200-87,lk100-200-87,seed1"},
	{CLASS_VAR, "VAR-09", PACKED "head_dim: 64, mask: causal}", "b3,h3,lq100-200-87,lk60-200-187,bhsd,seed3"},
	{CLASS_VAR, "VAR-09", PACKED "head_dim: 64, mask: causal}", "b3,h3,lq100-200-87,lk60-200-187,bshd,seed3"},
	/* Seeds of 2 modulo 3 leave some between entries: places from cu_seqlens, lengths from seqlens. */
	{CLASS_VAR, "VAR-10", PACKED "head_dim: 128}", "b3,h2,lq9-8-8,lk9-8-8,q12,k12,seed2"},
	{CLASS_VAR, "VAR-10", PACKED "head_dim: 128, mask: causal}", "b3,h2,lq9-8-8,lk9-8-8,q12,k12,seed5"},
	{CLASS_VAR, "VAR-11", PACKED "head_dim: 64}", "b6,h2,lq9-8-8-12-8-12,lk9-8-8-12-8-12,q16,k16,seed8"},
	/* More sequences than SMs, and one that is long among short ones. */
	{CLASS_VAR, "many", PACKED "head_dim: 64, mask: causal}", "b500,h2,lq1-2-3-5-0-9,lk1-2-3-5-0-9"},
	{CLASS_VAR, "many", PACKED "head_dim: 64}", "b1500,h1,lq17-0-1,lk3-4-0-5,seed2"},
	{CLASS_VAR, "huge", PACKED "head_dim: 64, mask: causal}", "b16,h2,lq3-1-2-5-2-1-4000-1-2-3-4-5-6-7-8-9,lk3-1-2-5-2-1-4000-1-2-3-4-5-6-7-8-9"},
	{CLASS_VAR, "huge", PADDED "head_dim: 64, mask: causal}", "b4,h1,lq1-2000-3-0,lk9-2000-3-5"},
	/* More items than run at a time, and those of the last entry the longest: they are sorted. */
	{CLASS_VAR, "last", PACKED "head_dim: 64, kv_group: 2, mask: causal}", "b12,h16/8,lq3-1-200-5-2-1-40-1-2-0-9-1300,lk3-1-200-5-2-1-40-1-2-0-9-1300"},
	{CLASS_VAR, "last", PACKED "head_dim: 128, kv_group: 2}", "b12,h16/8,lq3-1-200-5-2-1-40-1-2-0-9-1100,lk3-1-200-5-2-1-40-1-2-0-9-1100,odd,seed2"},
	{CLASS_VAR, "last", PADDED "head_dim: 192, mask: document}", "b8,h16,lq1-9-700-3-0-90-300-700,lk9-9-700-3-5-90-300-700"},
};

/* What a spec says beside its layout. */
static const char *const specs[] = {
	"head_dim: 64",
	"head_dim: 128, mask: causal, kv_group: any, dropout: 0.2",
	"head_dim: {qk: 72, v: 40}, dtype: fp16, mask: {window: {left: 20, right: 3}}",
	"head_dim: 64, mask: {any: [{window: {left: 9, right: 0}}, \"k < 5\"]}",
	"head_dim: 64, mask: document",
	"head_dim: 64, mask: {all: [causal, padding]}",
	"head_dim: 64, mask: {all: [causal, \"(q + k) % 3 != 1\"]}, score: [{softcap: {cap: 20}}, alibi], sink: true",
	"head_dim: 64, score: bias, inputs: {bias: {dtype: f32, shape: [batch, heads, seq_q, seq_k], grad: true}}",
	"head_dim: 64, score: t5_causal, mask: causal, inputs: {rel: {dtype: f32, shape: [heads, 32], grad: true}}",
	"head_dim: 64, score: \"s + r[h, q] * c[k] + m[q, k]\", inputs: {r: {dtype: f32, shape: [heads, seq_q], grad: true}, "
	"c: {dtype: f32, shape: [seq_k], grad: true}, m: {dtype: f32, shape: [seq_q, seq_k], grad: true}}",
	"head_dim: 64, score: \"s + x[b] + y[h, 3] + z[k - q + 7]\", inputs: {x: {dtype: f32, shape: [batch], grad: true}, "
	"y: {dtype: f32, shape: [heads, seq_k]}, z: {dtype: f32, shape: [15], grad: true}}",
	"head_dim: 64, mask: causal, blocks: {size: 32, keep: {local: {left: 1, right: 1}}}",
	"head_dim: 64, blocks: {size: 32, from: lists}",
	"head_dim: 64, blocks: {size: 48, from: bitmap}, mask: causal",
};

void suite_lengths(struct suite *s)
{
	char spec[CASE_NAME_MAX];
	for (size_t i = 0; i < sizeof field_cases / sizeof *field_cases; i++)
		suite_case(s, field_cases[i].class, field_cases[i].spec, "%s", field_cases[i].parts);
	s->options.poison_shared = true; /* MSK-07: rows of dead tiles multiply what was left there */
	suite_case(s, CLASS_MSK, PADDED "head_dim: 64, mask: causal}", "b2,h2,lq128-40,lk128-96,seed2");
	suite_case(s, CLASS_MSK, PADDED "head_dim: 64}", "b3,h2,lq16,lk64-0-33,seed3"); /* VAR-05 */
	suite_case(s, CLASS_MSK, PACKED "head_dim: 64}", "b3,h2,lq16,lk64-0-33,seed3");
	s->options.poison_shared = false;
	for (int i = 0; i < (int)(sizeof specs / sizeof *specs); i++)
		for (int packed = 0; packed < 2; packed++) {
			snprintf(spec, sizeof spec, "%s%s}", packed ? PACKED : PADDED, specs[i]);
			for (int turn = 0; turn < 4; turn++)
				suite_case(s, CLASS_VAR, spec, "b6,h2,q%d,k%d,%s,seed%d", 130 + 70 * turn, 300 - 60 * turn,
				           layout_names[(i + turn) % LAYOUT_COUNT], 4 * i + turn + 1);
			if (s->warming)
				continue;
			s->options.naive = true;
			suite_case(s, CLASS_NAIVE, spec, "b5,h2,q90,k110,seed%d", i + 1);
			s->options.naive = false;
		}
}
