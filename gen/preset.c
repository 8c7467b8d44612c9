/* preset: the named masks, scores and layouts. A row is all there is to one: parser, lowering, planning and code follow
 * from the definition. Positions are compared from the ends, (q - sq) with (k - sk), so that the last query stands at the
 * last key whatever the lengths; causal_top_left says otherwise. In the text of an expression `random` is the function. */
#include "gen/gen.h"

#include <string.h>

#define POSITIONS 0, INT32_MAX
#define STEPS 1, INT32_MAX
#define DISTANCE "((q - sq) - (k - sk))" /* how far the key is before the query */

/* Buckets of T5 for 32 buckets and distance 128, as first distances of each: exact, where the published formula takes
 * logarithms: 8 + floor(8 log(d/8) / log(128/8)) in each direction, and 16 + floor(16 log(d/16) / log(128/16)) in one. */
#define T5_STEP(first, below) "abs(" DISTANCE ") < " #first " ? " #below " : "
#define T5_CAUSAL_STEP(first, below) DISTANCE " < " #first " ? " #below " : "

const struct preset preset_table[] = {
	{
		.name = "causal",
		.kind = PRESET_MASK,
		.definition = "k - sk <= q - sq",
		.doc = "keys up to the query's position, the last query aligned with the last key",
	},
	{
		.name = "causal_top_left",
		.kind = PRESET_MASK,
		.definition = "k <= q",
		.doc = "keys up to the query's position, the first query aligned with the first key",
	},
	{
		.name = "window",
		.kind = PRESET_MASK,
		.param = {{"left", false, POSITIONS, "unbounded", "keys visible before the query's position"},
                          {"right", false, POSITIONS, "unbounded", "keys visible after it"}},
		.definition = "(q - sq) - (k - sk) <= left && (k - sk) - (q - sq) <= right",
		.doc = "keys at most left before and right after the query, the last query aligned with the last key",
	},
	{
		.name = "prefix",
		.kind = PRESET_MASK,
		.param = {{"n", false, POSITIONS, NULL, "keys that every query sees"}},
		.definition = "k < n || causal",
		.doc = "causal, but the first n keys are visible to all (prefix LM)",
	},
	{
		.name = "document",
		.kind = PRESET_MASK,
		.definition = "doc[b, q - sq + sk] == doc[b, k]",
		.input = {.name = "doc",
                          .dtype = INPUT_I32,
                          .dims = 2,
                          .dim = {{.kind = DIM_BATCH}, {.kind = DIM_SEQ_K}}},
		.doc = "keys of the query's own document; doc holds a number for each key, and a query has that of the "
		       "key it is aligned with, the last query with the last key",
	},
	{
		.name = "padding",
		.kind = PRESET_MASK,
		.definition = "k < kv_len[b]",
		.input = {.name = "kv_len", .dtype = INPUT_I32, .dims = 1, .dim = {{.kind = DIM_BATCH}}},
		.doc = "the first kv_len keys of each batch entry",
	},
	{
		.name = "dilated",
		.kind = PRESET_MASK,
		.param = {{"step", false, STEPS, NULL, "distance between visible keys"},
                          {"left", false, POSITIONS, "unbounded", "positions visible before the query's position"},
                          {"right", false, POSITIONS, "unbounded", "positions visible after it"}},
		.definition = DISTANCE " % step == 0 && window(left, right)",
		.doc = "every step-th key counted from the query's position, inside a window",
	},
	{
		.name = "softcap",
		.kind = PRESET_SCORE,
		.param = {{"cap", true, 1e-30, 1e30, NULL, "scores stay between -cap and cap"}},
		.definition = "cap * tanh(s / cap)",
		.doc = "scores bent smoothly into -cap..cap (Gemma 2)",
	},
	{
		.name = "alibi",
		.kind = PRESET_SCORE,
		.definition = "s - slope[h] * abs(" DISTANCE ")",
		.input = {.name = "slope", .dtype = INPUT_F32, .dims = 1, .dim = {{.kind = DIM_HEADS}}},
		.doc = "a penalty that grows with the distance, its slope given for each head (ALiBi)",
	},
	{
		.name = "bias",
		.kind = PRESET_SCORE,
		.definition = "s + bias[b, h, q, k]",
		.input = {.name = "bias",
                          .dtype = INPUT_F32,
                          .dims = 4,
                          .dim = {{.kind = DIM_BATCH}, {.kind = DIM_HEADS}, {.kind = DIM_SEQ_Q}, {.kind = DIM_SEQ_K}}},
		.doc = "a number for every cell is added; stride 0 shares it between batch entries or heads",
	},
	{
		.name = "t5",
		.kind = PRESET_SCORE,
		.definition = "s + rel[h, (" DISTANCE " < 0 ? 16 : 0) + (abs(" DISTANCE ") < 8 ? abs(" DISTANCE
			      ") : " T5_STEP(12, 8) T5_STEP(16, 9) T5_STEP(23, 10) T5_STEP(32, 11) T5_STEP(46, 12)
				      T5_STEP(64, 13) T5_STEP(91, 14) "15)]",
		.input = {.name = "rel", .dtype = INPUT_F32, .dims = 2, .dim = {{.kind = DIM_HEADS}, {DIM_CONST, 32}}},
		.doc = "a learned number for each of 32 buckets of the distance is added, 16 in each direction, up to "
		       "distance 128 (T5 encoder)",
	},
	{
		.name = "t5_causal",
		.kind = PRESET_SCORE,
		.definition = "s + rel[h, " DISTANCE " < 16 ? max(0, " DISTANCE ") : " T5_CAUSAL_STEP(19, 16)
			T5_CAUSAL_STEP(21, 17) T5_CAUSAL_STEP(24, 18) T5_CAUSAL_STEP(27, 19) T5_CAUSAL_STEP(31, 20)
				T5_CAUSAL_STEP(35, 21) T5_CAUSAL_STEP(40, 22) T5_CAUSAL_STEP(46, 23) T5_CAUSAL_STEP(
					52, 24) T5_CAUSAL_STEP(59, 25) T5_CAUSAL_STEP(67, 26) T5_CAUSAL_STEP(77, 27)
					T5_CAUSAL_STEP(87, 28) T5_CAUSAL_STEP(99, 29) T5_CAUSAL_STEP(113, 30) "31]",
		.input = {.name = "rel", .dtype = INPUT_F32, .dims = 2, .dim = {{.kind = DIM_HEADS}, {DIM_CONST, 32}}},
		.doc = "the same with all 32 buckets before the query (T5 decoder); keys after it count as distance 0",
	},
	{
		.name = "local",
		.kind = PRESET_BLOCKS,
		.param = {{"left", false, POSITIONS, "unbounded", "blocks kept before the query's block"},
                          {"right", false, POSITIONS, "unbounded", "blocks kept after it"}},
		.definition = "(q - sq) - (k - sk) <= left && (k - sk) - (q - sq) <= right",
		.doc = "blocks near the diagonal, the last block of queries aligned with the last of keys",
	},
	{
		.name = "global",
		.kind = PRESET_BLOCKS,
		.param = {{"n", false, POSITIONS, NULL, "blocks that see everything and that everything sees"}},
		.definition = "q < n || k < n",
		.doc = "the first n block rows and block columns",
	},
	{
		.name = "strided",
		.kind = PRESET_BLOCKS,
		.param = {{"step", false, STEPS, NULL, "distance between kept block columns"}},
		.definition = "k % step == step - 1",
		.doc = "every step-th block column (Sparse Transformer, with local)",
	},
	{
		.name = "random",
		.kind = PRESET_BLOCKS,
		.param = {{"seed", false, POSITIONS, NULL, "another seed, another choice"},
                          {"chance", true, 0, 1, NULL, "share of the blocks that are kept"}},
		.definition = "random(seed * 65537 + h, q, k) < chance * 65536.0",
		.doc = "a random choice of blocks, another for each head, the same in every launch (BigBird, with local "
		       "and global)",
	},
};
const int preset_count = sizeof preset_table / sizeof *preset_table;

const char *const preset_kind_names[] = {[PRESET_MASK] = "mask", [PRESET_SCORE] = "score", [PRESET_BLOCKS] = "layout"};

int preset_find(const char *name)
{
	for (int i = 0; i < preset_count; i++)
		if (!strcmp(preset_table[i].name, name))
			return i;
	return -1;
}

int preset_params(const struct preset *preset)
{
	int count = 0;
	while (count < SPEC_ARGS_MAX && preset->param[count].name)
		count++;
	return count;
}
