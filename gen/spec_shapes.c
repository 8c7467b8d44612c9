/* The shapes of the language's values. Ranges are written here and nowhere else. */
#include <stddef.h>
#include <string.h>

#include "gen/spec_key.h"

enum {
	POSITION_MAX = 2147483647, /* positions are 32-bit on the device */
	BATCH_MAX = 1 << 20
};

const char *const dtype_words[] = {[DTYPE_FP16] = "fp16", [DTYPE_BF16] = "bf16", NULL};
const char *const pass_names[PASS_COUNT + 1] = {[PASS_FORWARD] = "forward", [PASS_BACKWARD] = "backward", NULL};
const char *const output_words[] = {"out", "lse", NULL}; /* bit i of the set of enum output */

int pass_find(const char *name)
{
	for (int i = 0; i < PASS_COUNT; i++)
		if (strcmp(name, pass_names[i]) == 0)
			return i;
	return -1;
}

static const char *dtype_word(int i) { return dtype_words[i]; }
static const char *pass_word(int i) { return pass_names[i]; }
static const char *output_word(int i) { return output_words[i]; }
static const char *target_word(int i) { return i < TARGET_COUNT ? target_table[i].name : NULL; }

/* The i-th mask that is written as a word. */
static const char *preset_word(int i)
{
	for (int row = 0; row < preset_count; row++)
		if (!preset_table[row].params[0] && i-- == 0)
			return preset_table[row].name;
	return NULL;
}

static const char *mask_word(int i) { return i == 0 ? "none" : preset_word(i - 1); }
static const char *auto_word(int i) { return i == 0 ? "auto" : NULL; }
static const char *all_word(int i) { return i == 0 ? "all" : NULL; }
static const char *any_word(int i) { return i == 0 ? "any" : NULL; }
static const char *unbounded_word(int i) { return i == 0 ? "unbounded" : NULL; }

#define WHOLE(lowest, highest, multiple)                                                   \
	{                                                                                  \
		.kind = SHAPE_WHOLE, .min = (lowest), .max = (highest), .step = (multiple) \
	}
#define WORD(words)                                 \
	{                                           \
		.kind = SHAPE_WORD, .word = (words) \
	}
#define MAP(fields)                                                                                    \
	{                                                                                              \
		.kind = SHAPE_MAP, .field = (fields), .field_count = sizeof(fields) / sizeof *(fields) \
	}
#define EITHER(one, other)                                              \
	{                                                               \
		.kind = SHAPE_EITHER, .first = (one), .second = (other) \
	}
#define LIST(item, most)                                              \
	{                                                             \
		.kind = SHAPE_LIST, .of = (item), .items_max = (most) \
	}

static const struct shape word_auto = WORD(auto_word);
static const struct shape word_all = WORD(all_word);
static const struct shape word_any = WORD(any_word);

const struct shape shape_version = WHOLE(1, 1, 1);
const struct shape shape_name = {.kind = SHAPE_NAME};

static const struct shape width = WHOLE(HEAD_DIM_MIN, HEAD_DIM_MAX, HEAD_DIM_STEP);
static const struct shape_field widths_fields[] = {
	{"qk", &width, true, "columns of Q and K"},
	{"v", &width, true, "columns of V and the output"},
};
static const struct shape widths = MAP(widths_fields);
const struct shape shape_head_dim = EITHER(&width, &widths);

const struct shape shape_dtype = WORD(dtype_word);

static const struct shape word_unbounded = WORD(unbounded_word);
static const struct shape distance = WHOLE(0, POSITION_MAX, 1);
static const struct shape argument = EITHER(&word_unbounded, &distance);
static const struct shape preset_bare = WORD(preset_word);
static const struct shape preset_call = {.kind = SHAPE_PRESET, .of = &argument};
static const struct shape mask_term = EITHER(&preset_bare, &preset_call);
static const struct shape mask_terms = LIST(&mask_term, SPEC_MASKS_MAX);
static const struct shape_field mask_fields[] = {{"all", &mask_terms, true, "masks that must all allow a key"}};
static const struct shape mask_bare = WORD(mask_word);
static const struct shape mask_all = MAP(mask_fields);
static const struct shape mask_map = EITHER(&mask_all, &preset_call);
const struct shape shape_mask = EITHER(&mask_bare, &mask_map);

const struct shape shape_dropout = {.kind = SHAPE_REAL, .low = 0, .high = 1, .below_high = true};

/* Within what float32 holds with room for the logits. */
static const struct shape scale = {.kind = SHAPE_REAL, .low = 1e-30, .high = 1e30};
const struct shape shape_softmax_scale = EITHER(&word_auto, &scale);

static const struct shape group = WHOLE(1, 1024, 1);
const struct shape shape_kv_group = EITHER(&word_any, &group);

static const struct shape pass_name = WORD(pass_word);
/* Backward reads what forward wrote. */
const struct shape shape_passes = {.kind = SHAPE_LIST, .of = &pass_name, .must = "forward"};

static const struct shape output_name = WORD(output_word);
const struct shape shape_outputs = {.kind = SHAPE_LIST, .of = &output_name, .must = "out"};

static const char *align_word(int i) { return i == 0 ? "16" : i == 1 ? "2" : NULL; }
static const struct shape batch = WHOLE(1, BATCH_MAX, 1);
static const struct shape heads = WHOLE(1, HEADS_MAX, 1);
static const struct shape length = WHOLE(1, POSITION_MAX, 1);
static const struct shape align = WORD(align_word);
static const struct shape_field assume_fields[] = {
	{"batch", &batch, false, "sequences"},
	{"heads", &heads, false, "query heads"},
	{"heads_kv", &heads, false, "key/value heads; heads / kv_group when left out"},
	{"seqlen", &length, false, "seqlen_q and seqlen_k at once"},
	{"seqlen_q", &length, false, "queries of a sequence"},
	{"seqlen_k", &length, false, "keys of a sequence"},
	{"align", &align, false, "bytes that all pointers and strides are multiples of: 16, or 2 for any"},
};
const struct shape shape_assume = MAP(assume_fields);

static const struct shape tile_m = WHOLE(16, 256, 16);
static const struct shape tile_n = WHOLE(16, 256, 16);
static const struct shape tile_warps = WHOLE(1, 32, 1);
static const struct shape tile_stages = WHOLE(1, 8, 1);
static const struct shape_field tile_fields[] = {
	{"m", &tile_m, true, "query rows"},
	{"n", &tile_n, true, "keys"},
	{"warps", &tile_warps, false, "warps of a block; the planner's choice when left out"},
	{"stages", &tile_stages, false, "buffers of streamed tiles; the planner's choice when left out"},
};
static const struct shape tile_explicit = MAP(tile_fields);
static const struct shape tile_of_pass = EITHER(&word_auto, &tile_explicit);
static const struct shape_field tile_pass_fields[] = {
	{"forward", &tile_of_pass, false, "tile of the forward pass"},
	{"backward", &tile_of_pass, false, "tile of the backward pass"},
};
static const struct shape tile_passes = MAP(tile_pass_fields);
static const struct shape tile_map = EITHER(&tile_explicit, &tile_passes);
const struct shape shape_tile = EITHER(&word_auto, &tile_map);

static const struct shape target_name = WORD(target_word);
static const struct shape target_names = LIST(&target_name, 0);
const struct shape shape_targets = EITHER(&word_all, &target_names);
