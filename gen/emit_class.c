/* emit_class: the class of a tile by the mask's residual, in interval arithmetic at run time, and the block layout. */
#include "gen/emit.h"

#include <inttypes.h>
#include <string.h>

#define LAUNCH "const struct fagen_abi *p, int b, int h"

/* ---- tile_class ---- */

static const struct {
	enum helper helper;
	const char *name;
} functions[EXPR_OP_COUNT] = {
	[EXPR_NEG] = {HELPER_NEG, "interval_neg"},
	[EXPR_ABS] = {HELPER_ABS, "interval_abs"},
	[EXPR_NOT] = {HELPER_NOT, "interval_not"},
	[EXPR_ADD] = {HELPER_ADD, "interval_add"},
	[EXPR_SUB] = {HELPER_SUB, "interval_sub"},
	[EXPR_MUL] = {HELPER_MUL, "interval_mul"},
	[EXPR_DIV] = {HELPER_DIV, "interval_div"},
	[EXPR_MOD] = {HELPER_MOD, "interval_mod"},
	[EXPR_MIN] = {HELPER_MIN, "interval_min"},
	[EXPR_MAX] = {HELPER_MAX, "interval_max"},
	[EXPR_LT] = {HELPER_LT, "interval_lt"},
	[EXPR_LE] = {HELPER_LE, "interval_le"},
	[EXPR_EQ] = {HELPER_EQ, "interval_eq"},
	[EXPR_NE] = {HELPER_NE, "interval_ne"},
	[EXPR_AND] = {HELPER_AND, "interval_and"},
	[EXPR_OR] = {HELPER_OR, "interval_or"},
	[EXPR_SELECT] = {HELPER_SELECT, "interval_select"},
	[EXPR_RANDOM] = {HELPER_INTERVAL_RANDOM, "interval_random"},
};

static const char *const name_intervals[NAME_COUNT] = {
	[NAME_B] = "interval(b, b)",
	[NAME_H] = "interval(h, h)",
	[NAME_Q] = "interval(q0, int_min(q1, sequence_q(p, b)) - 1)",
	[NAME_K] = "interval(k0, int_min(k1, sequence_k(p, b)) - 1)",
	[NAME_SQ] = "interval(sequence_q(p, b), sequence_q(p, b))",
	[NAME_SK] = "interval(sequence_k(p, b), sequence_k(p, b))",
	[NAME_HQ] = "interval(p->heads_q, p->heads_q)",
	[NAME_HK] = "interval(p->heads_kv, p->heads_kv)",
};

/* Whatever the node is at any position. */
static void range_print(struct text *out, const struct emit *e, int node)
{
	const struct interval v = e->range[node].i;
	const int64_t ends[2] = {v.lo, v.hi};
	text_puts(out, "interval(");
	for (int i = 0; i < 2; i++) {
		text_puts(out, i ? ", " : "");
		if (ends[i] == INT64_MIN)
			text_puts(out, "-9223372036854775807LL - 1");
		else
			text_addf(out, "%" PRId64 "LL", ends[i]);
	}
	text_puts(out, ")");
}

/* What an input's element can be over the tile: bounded by the workspace, the one element of a head, or unknown. */
static bool element_interval_print(struct text *out, struct emit *e, int node)
{
	const struct access *a = e->access[node] < 0 ? NULL : &e->program->access[e->access[node]];
	if (a && a->bounds >= 0) {
		const char *axis = a->place == AT_ROW ? "rows" : "cols";
		text_addf(out, "%s(p->bounds_%s, bounds_%s_at(p, %d, b, h, %c0 / TILE_%c))",
		          emit_helper(e, HELPER_BOUNDS, "interval_bounds"), axis, axis, a->bounds,
		          a->place == AT_ROW ? 'q' : 'k', a->place == AT_ROW ? 'M' : 'N');
		return true;
	}
	if ((e->depends[node] & (DEPENDS_ROW | DEPENDS_COL)) == 0) {
		text_addf(out, "interval(element_%d(p, b, h, 0, 0), element_%d(p, b, h, 0, 0))", e->number[node],
		          e->number[node]);
		return true;
	}
	return false;
}

static bool has_interval(const struct emit *e, int node) { return e->pool->node[node].type != TYPE_FLOAT; }

/* Do all its arguments have intervals, so that the operation can be done on them? */
static bool is_computed(const struct emit *e, int node)
{
	const struct expr_node *n = &e->pool->node[node];
	for (int j = 0; j < expr_args(n); j++)
		if (!has_interval(e, n->arg[j]))
			return false;
	return functions[n->op].name != NULL;
}

/* Marks what the class needs: elements are looked up, not computed from their indexes. */
static void needed_find(bool *needed, const struct emit *e, int root)
{
	needed[root] = true;
	for (int i = root; i >= 0; i--)
		if (needed[i] && is_computed(e, i))
			for (int j = 0; j < expr_args(&e->pool->node[i]); j++)
				needed[e->pool->node[i].arg[j]] = true;
}

static void interval_print(struct text *out, struct emit *e, int node)
{
	const struct expr_node *n = &e->pool->node[node];
	if (n->op == EXPR_NAME) {
		text_puts(out, name_intervals[n->i]);
	} else if (n->op == EXPR_INPUT && element_interval_print(out, e, node)) {
		return;
	} else if (is_computed(e, node)) {
		text_addf(out, "%s(", emit_helper(e, functions[n->op].helper, functions[n->op].name));
		for (int j = 0; j < expr_args(n); j++)
			text_addf(out, "%si%d", j ? ", " : "", n->arg[j]);
		text_puts(out, ")");
	} else {
		range_print(out, e, node);
	}
}

void class_print(struct text *out, struct emit *e)
{
	const int root = e->program->residual;
	bool needed[EXPR_NODES_MAX] = {false};
	text_puts(out, "DEVICE int tile_class(" LAUNCH ", int q0, int q1, int k0, int k1)\n{\n");
	if (expr_is_const(e->pool, root, true) || expr_is_const(e->pool, root, false)) {
		text_addf(out, "\treturn %s;\n}\n\n", e->pool->node[root].i ? "TILE_FULL" : "TILE_EMPTY");
		return;
	}
	(void)emit_helper(e, HELPER_INTERVAL, "");
	needed_find(needed, e, root);
	for (int i = 0; i <= root; i++) {
		if (!needed[i])
			continue;
		text_addf(out, "\tconst struct Interval i%d = ", i);
		interval_print(out, e, i);
		text_puts(out, "; // ");
		expr_print(out, e->pool, i, e->spec->input);
		text_puts(out, "\n");
	}
	text_addf(out, "\treturn i%d.lo ? TILE_FULL : i%d.hi ? TILE_PARTIAL : TILE_EMPTY;\n}\n\n", root, root);
}

/* ---- the block layout ---- */

static void keep_print(struct text *out, struct emit *e)
{
	struct scope x;
	struct text body = {0};
	const struct value keep = {e->program->block_keep, false};
	scope_begin(&x, e, IN_BLOCKS);
	scope_use(&x, keep);
	scope_locals(&body, &x);
	text_puts(&body, "\treturn ");
	scope_print(&body, &x, keep);
	scope_names(out, &x);
	text_addf(out, "%s;\n", text_str(&body));
	text_free(&body);
}

static void rows_print(struct text *out, const struct blocks *blocks, const uint64_t (*rows)[BLOCK_ROWS_MAX / 64])
{
	const int words = (blocks->columns + 31) / 32;
	text_addf(out, "\tstatic const unsigned kept[%d][%d] = {\n", blocks->rows, words);
	for (int q = 0; q < blocks->rows; q++) {
		text_puts(out, "\t\t{");
		for (int w = 0; w < words; w++)
			text_addf(out, "%s0x%08xu", w ? ", " : "", (unsigned)(rows[q][w / 2] >> (w % 2 * 32)));
		text_puts(out, "},\n");
	}
	text_addf(
		out,
		"\t};\n\treturn block_q < %d && block_k < %d && (kept[block_q][block_k / 32] >> block_k %% 32 & 1) != 0;\n",
		blocks->rows, blocks->columns);
}

/* An element of one of the layout's own inputs. */
static void own_element_print(struct text *out, const struct emit *e, const char *name, const char *type,
                              const char *const *index, int dims)
{
	const int input = spec_input_find(e->spec, name);
	text_addf(out, "\tconst struct fagen_abi_input *t = &p->input[%d];\n\treturn ((const %s *)t->data)[", input,
	          type);
	for (int d = 0; d < dims; d++)
		text_addf(out, "%s%s * t->stride[%d]", d ? " + " : "", index[d], d);
	text_puts(out, "]");
}

static void lists_print(struct text *out, const struct emit *e)
{
	static const char *const index[] = {"b", "h", "block_q", "i"};
	text_puts(out, "// What the lists say of a block row: how many key blocks it keeps, and their ids.\n"
	               "DEVICE int block_list_count(" LAUNCH ", int block_q)\n{\n");
	own_element_print(out, e, "block_count", "int", index, 3);
	text_puts(out, ";\n}\nDEVICE int block_list_id(" LAUNCH ", int block_q, int i)\n{\n");
	own_element_print(out, e, "block_index", "int", index, 4);
	text_puts(out, ";\n}\n\n");
}

void blocks_print(struct text *out, struct emit *e)
{
	static const char *const index[] = {"b", "h", "block_q", "block_k"};
	if (e->program->blocks == BLOCKS_LISTS)
		lists_print(out, e);
	text_puts(out, "DEVICE bool block_keep(" LAUNCH ", int block_q, int block_k)\n{\n");
	switch (e->program->blocks) {
	case BLOCKS_KEEP: keep_print(out, e); break;
	case BLOCKS_ROWS: rows_print(out, &e->spec->blocks, e->spec->block_rows); break;
	case BLOCKS_BITMAP:
		own_element_print(out, e, "blocks", "unsigned char", index, 4);
		text_puts(out, " != 0;\n");
		break;
	case BLOCKS_LISTS:
		text_puts(
			out,
			"\tconst int blocks_q = ceil_div(p->seqlen_q, BLOCK_Q), blocks_k = ceil_div(p->seqlen_k, BLOCK_K);\n"
			"\tconst long long row = ((long long)b * p->heads_q + h) * blocks_q + block_q;\n"
			"\treturn ((const unsigned char *)p->blocks)[row * blocks_k + block_k] != 0;\n");
		break;
	default: text_puts(out, "\treturn true;\n");
	}
	text_puts(out, "}\n\n");
}
