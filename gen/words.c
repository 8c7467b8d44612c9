/* The words of the language that a launch speaks of too, and what they mean for it: here, so that who only launches needs
 * no reader of specs. */
#include "gen/words.h"

#include <string.h>

const char *const dtype_words[] = {[DTYPE_FP16] = "fp16", [DTYPE_BF16] = "bf16", NULL};
const char *const layout_words[] = {
	[LAYOUT_DENSE] = "dense", [LAYOUT_PADDED] = "padded", [LAYOUT_PACKED] = "packed", NULL};
const char *const pass_names[PASS_COUNT + 1] = {[PASS_FORWARD] = "forward", [PASS_BACKWARD] = "backward", NULL};
const char *const output_words[] = {"out", "lse", NULL}; /* bit i of the set of enum output */

int pass_find(const char *name)
{
	for (int i = 0; i < PASS_COUNT; i++)
		if (strcmp(name, pass_names[i]) == 0)
			return i;
	return -1;
}

const char *const input_dtype_names[INPUT_DTYPE_COUNT + 1] = {
	[INPUT_F32] = "f32", [INPUT_FP16] = "fp16", [INPUT_BF16] = "bf16", [INPUT_I32] = "i32", [INPUT_U8] = "u8", NULL,
};
const char *const dim_names[DIM_KIND_COUNT] = {
	[DIM_CONST] = "",      [DIM_BATCH] = "batch", [DIM_HEADS] = "heads",       [DIM_HEADS_KV] = "heads_kv",
	[DIM_SEQ_Q] = "seq_q", [DIM_SEQ_K] = "seq_k", [DIM_BLOCKS_Q] = "blocks_q", [DIM_BLOCKS_K] = "blocks_k",
};

bool dim_is_sequence(enum dim_kind kind) { return kind == DIM_SEQ_Q || kind == DIM_SEQ_K; }

bool dim_is_joined(enum batch_layout layout, const struct input *input, int dim)
{
	bool sequence = false;
	for (int d = 0; d < input->dims; d++)
		sequence = sequence || dim_is_sequence(input->dim[d].kind);
	return layout == LAYOUT_PACKED && input->dim[dim].kind == DIM_BATCH && sequence;
}
