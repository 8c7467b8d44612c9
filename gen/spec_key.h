/* spec_key: the rows of spec.def with their readers and printers. Private to gen/spec*.c. */
#ifndef FAGEN_GEN_SPEC_KEY_H
#define FAGEN_GEN_SPEC_KEY_H

#include "gen/gen.h"
#include "gen/spec_shape.h"
#include "gen/words.h"

struct reading { /* one file on its way to a spec */
	struct spec *spec;
	const struct yaml_tree *tree[KEY_COUNT]; /* where the value lies: the file's tree, or that of the defaults */
	const struct yaml_node *node[KEY_COUNT]; /* NULL: worked out from the other keys */
	bool good[KEY_COUNT];                    /* the value has its shape and was read */
	const char *file;
	struct diag *diag;
};

struct key {
	const char *name;
	const struct shape *shape;
	const char *fallback, *doc;
	int (*read)(struct reading *); /* the node has its shape */
	void (*print)(struct text *, const struct spec *);
};

extern const struct key key_table[KEY_COUNT];

enum { HEADS_MAX = 1 << 16 }; /* query heads, written or worked out */

#define SPEC_KEY(id, name, shape, fallback, doc) \
	int read_##id(struct reading *);         \
	void print_##id(struct text *, const struct spec *);
#include "gen/spec.def"
#undef SPEC_KEY

extern const struct shape shape_version, shape_name, shape_head_dim, shape_dtype, shape_batch_layout, shape_mask, shape_score, shape_truth,
	shape_blocks, shape_inputs, shape_dropout, shape_softmax_scale, shape_kv_group, shape_passes, shape_outputs,
	shape_assume, shape_tile, shape_targets;

extern const struct shape shape_mask_member, shape_score_member, shape_layout; /* of which terms are made */

extern const char *const block_source_words[]; /* NULL after the last */

int64_t whole_of(const struct yaml_tree *, const struct yaml_node *); /* a scalar that is a whole number */
void real_print(struct text *, double); /* the shortest decimal that reads back as the same double */

#endif
