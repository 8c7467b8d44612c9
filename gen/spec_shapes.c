/* The shapes of the language's values. Ranges are written here and nowhere else. */
#include <stddef.h>
#include <string.h>

#include "gen/spec_key.h"
#include "gen/spec_term.h"

enum { BATCH_MAX = 1 << 20 };

static const char *layout_word(int i) { return layout_words[i]; }
static const char *dtype_word(int i) { return dtype_words[i]; }
static const char *pass_word(int i) { return pass_names[i]; }
static const char *output_word(int i) { return output_words[i]; }
static const char *target_word(int i) { return i < TARGET_COUNT ? target_table[i].name : NULL; }

const char *const block_source_words[] = {"bitmap", "lists", NULL};

static const char *input_dtype_word(int i) { return input_dtype_names[i]; }
static const char *dim_word(int i) { return i + 1 < DIM_KIND_COUNT ? dim_names[i + 1] : NULL; }
static const char *block_source_word(int i) { return block_source_words[i]; }
static const char *none_word(int i) { return i == 0 ? "none" : NULL; }
static const char *truth_word(int i) { return i == 0 ? "true" : i == 1 ? "false" : NULL; }
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
const struct shape shape_batch_layout = WORD(layout_word);

/* Within what float32 holds with room for the logits. */
static const struct shape scale = {.kind = SHAPE_REAL, .low = 1e-30, .high = 1e30};

static const struct shape word_unbounded = WORD(unbounded_word);
static const struct shape expression = {.kind = SHAPE_EXPRESSION};

const struct shape *param_shape(struct param_shape *made, const struct preset_param *p)
{
	made->number = p->real ? (struct shape){.kind = SHAPE_REAL, .low = p->low, .high = p->high}
	                       : (struct shape)WHOLE((int64_t)p->low, (int64_t)p->high, 1);
	made->written = (struct shape)EITHER(&made->number, &expression);
	made->unbounded = (struct shape)EITHER(&word_unbounded, &made->written);
	return param_unbounded(p) ? &made->unbounded : &made->written;
}

#define TERM(preset_kind, top, member)                                                    \
	{                                                                                 \
		.kind = SHAPE_TERM, .terms = (preset_kind), .root = (top), .of = (member) \
	}
const struct shape shape_mask_member = TERM(PRESET_MASK, false, &shape_mask_member);
const struct shape shape_score_member = TERM(PRESET_SCORE, false, &shape_score_member);
const struct shape shape_layout = TERM(PRESET_BLOCKS, false, &shape_layout);
const struct shape shape_mask = TERM(PRESET_MASK, true, &shape_mask_member);
const struct shape shape_score = TERM(PRESET_SCORE, true, &shape_score_member);

const struct shape shape_truth = WORD(truth_word);

static const struct shape word_none = WORD(none_word);
static const struct shape block_size = WHOLE(16, 65536, 16);
static const struct shape_field block_size_fields[] = {
	{"q", &block_size, true, "queries of a block"},
	{"k", &block_size, true, "keys of a block"},
};
static const struct shape block_sizes = MAP(block_size_fields);
static const struct shape block_size_any = EITHER(&block_size, &block_sizes);
static const struct shape block_id = WHOLE(0, BLOCK_ROWS_MAX - 1, 1);
static const struct shape block_ids = {.kind = SHAPE_LIST, .of = &block_id, .items_max = BLOCK_ROWS_MAX, .empty = true};
static const struct shape block_picture = {.kind = SHAPE_TEXT, .max = BLOCK_ROWS_MAX, .only = "#1.0"};
static const struct shape block_row = EITHER(&block_ids, &block_picture);
static const struct shape block_rows = LIST(&block_row, BLOCK_ROWS_MAX);
static const struct shape file_name = {.kind = SHAPE_TEXT, .min = 1, .max = 1000};
static const struct shape block_source = WORD(block_source_word);
static const struct shape_field blocks_fields[] = {
	{"size", &block_size_any, true, "positions of a block"},
	{"keep", &shape_layout, false, "which blocks are kept; q, k count blocks, sq and sk are the numbers of blocks"},
	{"rows", &block_rows, false, "for each row of blocks the kept ones: numbers, or a picture with # and ."},
	{"file", &file_name, false,
         "a picture, one line a row: # or 1 kept, . or 0 not; the path is relative to the spec"},
	{"from", &block_source, false,
         "given at launch: input blocks, u8 [batch, heads, blocks_q, blocks_k], or inputs block_count, "
         "i32 [batch, heads, blocks_q], and block_index, i32 [batch, heads, blocks_q, blocks_k]"},
};
static const struct shape blocks_map = MAP(blocks_fields);
const struct shape shape_blocks = EITHER(&word_none, &blocks_map);

static const struct shape input_dtype = WORD(input_dtype_word);
static const struct shape dim_word_shape = WORD(dim_word);
static const struct shape dim_const = WHOLE(1, LENGTH_MAX, 1);
static const struct shape dim = EITHER(&dim_word_shape, &dim_const);
static const struct shape dims = {.kind = SHAPE_LIST, .of = &dim, .items_max = INPUT_DIMS_MAX, .empty = true};
static const struct shape_field input_fields[] = {
	{"dtype", &input_dtype, true, "f32, fp16 and bf16 read as float, i32 and u8 as int"},
	{"shape", &dims, true, "its dimensions, one index each; [] for one value"},
	{"grad", &shape_truth, false, "the backward pass writes its gradient, f32; false when left out"},
};
static const struct shape input_one = MAP(input_fields);
static const struct shape input_named = {.kind = SHAPE_INPUTS, .of = &input_one};
const struct shape shape_inputs = EITHER(&word_none, &input_named);

const struct shape shape_dropout = {.kind = SHAPE_REAL, .low = 0, .high = 1, .below_high = true};

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
static const struct shape length = WHOLE(1, LENGTH_MAX, 1);
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
static const struct shape tile_splits = WHOLE(1, RECIPE_PARTS_MAX, 1);
static const struct shape tile_heads = WHOLE(1, RECIPE_HEADS_MAX, 1);
static const struct shape_field tile_fields[] = {
	{"m", &tile_m, true, "query rows"},
	{"n", &tile_n, true, "keys"},
	{"warps", &tile_warps, false, "warps of a block; the planner's choice when left out"},
	{"stages", &tile_stages, false, "buffers of streamed tiles; the planner's choice when left out"},
	{"splits", &tile_splits, false, "parts of a query tile's keys, backward of a key tile's queries, computed apart and joined; the planner's choice when left out"},
	{"heads", &tile_heads, false, "query heads of a group that share a tile; the planner's choice when left out"},
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
