/* emit_inputs: named inputs in the emitted program: where an element lies in memory, the structs that stage elements in
 * shared memory with their loaders, and what of them tiles are classified by. */
#include "gen/emit.h"

#include "gen/access.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LAUNCH "const struct fagen_abi *p, int b, int h"

static const struct input *input_of(const struct emit *e, int node) { return &e->spec->input[e->pool->node[node].i]; }

static const char *element_type(const struct input *input)
{
	return input->dtype == INPUT_I32 || input->dtype == INPUT_U8 ? "int" : "float";
}

/* As memory has it. */
static const char *stored_type(const struct input *input)
{
	static const char *const types[INPUT_DTYPE_COUNT] = {[INPUT_F32] = "float",
	                                                     [INPUT_FP16] = "unsigned short",
	                                                     [INPUT_BF16] = "unsigned short",
	                                                     [INPUT_I32] = "int",
	                                                     [INPUT_U8] = "unsigned char"};
	return types[input->dtype];
}

static bool is_copied(const struct input *input) { return input->dtype == INPUT_F32 || input->dtype == INPUT_I32; }

/* "doc_1": of the node in a staged struct. */
static const char *field_name(char name[INPUT_NAME_MAX + 16], const struct emit *e, int node)
{
	snprintf(name, INPUT_NAME_MAX + 16, "%s_%d", input_of(e, node)->name, e->number[node]);
	return name;
}

/* Indexes of a dimension are below this; those of positions inside the entry. */
static void dim_print(struct text *out, const struct input_dim *dim)
{
	static const char *const sizes[DIM_KIND_COUNT] = {[DIM_BATCH] = "p->batch",
	                                                  [DIM_HEADS] = "p->heads_q",
	                                                  [DIM_HEADS_KV] = "p->heads_kv",
	                                                  [DIM_SEQ_Q] = "sequence_q(p, b)",
	                                                  [DIM_SEQ_K] = "sequence_k(p, b)",
	                                                  [DIM_BLOCKS_Q] = "ceil_div(sequence_q(p, b), BLOCK_Q)",
	                                                  [DIM_BLOCKS_K] = "ceil_div(sequence_k(p, b), BLOCK_K)"};
	if (dim->kind == DIM_CONST)
		text_addf(out, "%" PRId64, dim->size);
	else
		text_puts(out, sizes[dim->kind]);
}

/* The index of one dimension, brought inside where it is not known to be. An entry may have no positions. */
static void index_inside_print(struct text *out, struct scope *x, int node, int dim)
{
	struct emit *e = x->e;
	const int index = e->pool->node[node].arg[dim];
	const struct input *input = input_of(e, node);
	if (access_proven(e->pool, node, dim, e->spec->input)) {
		scope_print_factor(out, x, (struct value){index, false});
		return;
	}
	const bool wide = strcmp(emit_type(e, (struct value){index, false}), "int") != 0;
	const bool empty = e->spec->layout != LAYOUT_DENSE && dim_is_sequence(input->dim[dim].kind);
	text_puts(out, wide ? "clamp_position(" : emit_helper(e, HELPER_INDEX_CLAMP, "index_clamp("));
	scope_print(out, x, (struct value){index, false});
	text_puts(out, empty ? ", int_max(" : ", ");
	dim_print(out, &input->dim[dim]);
	text_puts(out, empty ? ", 1)" : "");
	text_puts(out, wide ? " - 1)" : ")");
}

void index_print(struct text *out, struct scope *x, int node, int dim)
{
	const enum dim_kind kind = input_of(x->e, node)->dim[dim].kind;
	const char axis = kind == DIM_SEQ_Q ? 'q' : 'k';
	if (x->e->spec->layout != LAYOUT_PACKED || !dim_is_sequence(kind)) {
		index_inside_print(out, x, node, dim);
		return;
	}
	text_addf(out, "packed_row(first_%c(p, b), ", axis);
	index_inside_print(out, x, node, dim);
	text_addf(out, ", p->total_%c)", axis);
}

void dim_size_print(struct text *out, const struct spec *spec, const struct input *input, int dim)
{
	static const char *const sizes[DIM_KIND_COUNT] = {[DIM_BATCH] = "p->batch",
	                                                  [DIM_HEADS] = "p->heads_q",
	                                                  [DIM_HEADS_KV] = "p->heads_kv",
	                                                  [DIM_SEQ_Q] = "p->seqlen_q",
	                                                  [DIM_SEQ_K] = "p->seqlen_k",
	                                                  [DIM_BLOCKS_Q] = "ceil_div(p->seqlen_q, BLOCK_Q)",
	                                                  [DIM_BLOCKS_K] = "ceil_div(p->seqlen_k, BLOCK_K)"};
	const struct input_dim *d = &input->dim[dim];
	if (d->kind == DIM_CONST)
		text_addf(out, "%" PRId64, d->size);
	else if (dim_is_joined(spec->layout, input, dim))
		text_puts(out, "1");
	else if (spec->layout == LAYOUT_PACKED && dim_is_sequence(d->kind))
		text_puts(out, d->kind == DIM_SEQ_Q ? "p->total_q" : "p->total_k");
	else
		text_puts(out, sizes[d->kind]);
}

/* ---- straight from memory ---- */

static unsigned table_dims(const struct emit *e, int node)
{
	unsigned dims = 0;
	for (int d = 0; d < input_of(e, node)->dims; d++)
		if (e->depends[e->pool->node[node].arg[d]] & (DEPENDS_ROW | DEPENDS_COL))
			dims |= 1u << d;
	return dims;
}

/* A function that gives the address of an element: of the cell (q, k), or with `entry` of an entry of what varies with the
 * cell, the last dimension fastest. */
static void address_print(struct text *out, struct emit *e, int node, const char *name, bool entry)
{
	const struct expr_node *n = &e->pool->node[node];
	const struct input *input = input_of(e, node);
	const char *const type = stored_type(input);
	const unsigned varying = entry ? table_dims(e, node) : 0;
	int64_t below = 1; /* entries that share an index of the dimension */
	struct scope x;
	struct text body = {0};
	scope_begin(&x, e, IN_PLAIN);
	for (int d = 0; d < input->dims; d++)
		if (varying >> d & 1)
			below *= input->dim[d].size;
		else
			scope_use(&x, (struct value){n->arg[d], false});
	scope_locals(&body, &x);
	text_addf(&body, "\tconst struct fagen_abi_input *t = &p->input[%d];\n\treturn (const %s *)t->data", (int)n->i,
	          type);
	for (int d = 0; d < input->dims; d++) {
		if (varying >> d & 1) {
			below /= input->dim[d].size;
			text_addf(&body, " + t->stride[%d] * (entry / %" PRId64 " %% %" PRId64 ")", d, below,
			          input->dim[d].size);
		} else if (dim_is_joined(e->spec->layout, input, d)) {
			continue;
		} else if (!expr_is_const(e->pool, n->arg[d], 0) ||
		           (e->spec->layout == LAYOUT_PACKED && dim_is_sequence(input->dim[d].kind))) {
			text_addf(&body, " + t->stride[%d] * ", d);
			index_print(&body, &x, node, d);
		}
	}
	text_addf(out, "DEVICE const %s *%s_%d(" LAUNCH "%s)\n{\n", type, name, e->number[node],
	          entry ? ", int entry" : ", int q, int k");
	scope_names(out, &x);
	text_addf(out, "%s;\n}\n", text_str(&body));
	text_free(&body);
}

/* What makes of a stored element the number that it is; "": nothing. */
static const char *conversion(struct emit *e, const struct input *input)
{
	return input->dtype == INPUT_FP16   ? emit_helper(e, HELPER_FP16, "float_fp16")
	       : input->dtype == INPUT_BF16 ? emit_helper(e, HELPER_BF16, "float_bf16")
	                                    : "";
}

/* "float_fp16(*at(p, b, h, q, k))" */
static void element_at_print(struct text *out, struct emit *e, int node, const char *at, const char *where)
{
	const char *const convert = conversion(e, input_of(e, node));
	text_addf(out, *convert ? "%s(*%s_%d(p, b, h, %s))" : "%s*%s_%d(p, b, h, %s)", convert, at, e->number[node],
	          where);
}

void accesses_print(struct text *out, struct emit *e)
{
	for (int i = 0; i < e->pool->count; i++) {
		if (e->number[i] < 0)
			continue;
		text_puts(out, "// ");
		expr_print(out, e->pool, i, e->spec->input);
		text_puts(out, "\n");
		address_print(out, e, i, "address", false);
		text_addf(out, "DEVICE %s element_%d(" LAUNCH ", int q, int k)\n{\n\treturn ",
		          element_type(input_of(e, i)), e->number[i]);
		element_at_print(out, e, i, "address", "q, k");
		text_puts(out, ";\n}\n\n");
	}
}

/* ---- what a scope reads ---- */

static bool is_staged(const struct scope *x, int node)
{
	return x->e->access[node] >= 0 && x->place != IN_PLAIN && x->place != IN_BLOCKS;
}

unsigned element_dims(const struct scope *x, int node)
{
	const bool table = is_staged(x, node) && x->e->program->access[x->e->access[node]].place == AT_TABLE;
	return table ? table_dims(x->e, node) : 0;
}

/* Entry of a table: the indexes of its dimensions, the last one fastest. */
static void entry_print(struct text *out, struct scope *x, int node)
{
	const struct input *input = input_of(x->e, node);
	const unsigned dims = table_dims(x->e, node);
	int64_t below = 1;
	for (int d = 0; d < input->dims; d++)
		below *= dims >> d & 1 ? input->dim[d].size : 1;
	const char *join = "";
	for (int d = 0; d < input->dims; d++) {
		if (!(dims >> d & 1))
			continue;
		below /= input->dim[d].size;
		text_puts(out, join);
		if (below > 1)
			text_addf(out, "%" PRId64 " * ", below);
		index_print(out, x, node, d);
		join = " + ";
	}
	text_puts(out, *join ? "" : "0");
}

void element_print(struct text *out, struct scope *x, int node)
{
	char name[INPUT_NAME_MAX + 16];
	struct emit *e = x->e;
	if (!is_staged(x, node)) {
		text_addf(out, "element_%d(p, b, h, %s, %s)", e->number[node],
		          e->depends[node] & DEPENDS_ROW ? "q" : "0", e->depends[node] & DEPENDS_COL ? "k" : "0");
		return;
	}
	field_name(name, e, node);
	switch (e->program->access[e->access[node]].place) {
	case AT_HEAD: text_addf(out, "in->head->%s", name); break;
	case AT_ROW: text_addf(out, "in->rows->%s[q - in->q0]", name); break;
	case AT_COL:
		x->name[NAME_K] = true;
		text_addf(out, "in->cols->%s[k - in->k0]", name);
		break;
	case AT_DIAG: text_addf(out, "in->cells->%s[row.diagonal - col.offset]", name); break;
	case AT_CELL: {
		const char *const convert = conversion(e, input_of(e, node));
		text_addf(out, *convert ? "%s(in->cells->%s[row.cell_%d + col.offset])" : "%sin->cells->%s[row.cell_%d + col.offset]", convert, name,
		          access_cell_pad(input_of(e, node)));
		break;
	}
	default:
		text_addf(out, "in->head->%s[", name);
		entry_print(out, x, node);
		text_puts(out, "]");
	}
}

/* ---- staging ---- */

bool staging_has(const struct program *p, enum access_place first, enum access_place second)
{
	for (int a = 0; a < p->access_count; a++)
		if (p->access[a].place == first || p->access[a].place == second)
			return true;
	return false;
}

bool staging_has_cells(const struct emit *e, int pad)
{
	for (int a = 0; a < e->program->access_count; a++)
		if (e->program->access[a].place == AT_CELL && access_cell_pad(&e->spec->input[e->program->access[a].input]) == pad)
			return true;
	return false;
}

static int table_size(const struct emit *e, const struct access *a)
{
	return (int)access_table_size(e->program, a, &e->spec->input[a->input]);
}

/* The statement that brings an element to its place: by its 4 bytes under way, or loaded, and converted but for cells. */
static void copy_print(struct text *out, struct emit *e, const struct access *a, const char *to, const char *at,
                       const char *where)
{
	char name[INPUT_NAME_MAX + 16];
	const int number = e->number[a->node];
	field_name(name, e, a->node);
	if (is_copied(&e->spec->input[a->input])) {
		text_addf(out, "%s(&to->%s%s, %s_%d(p, b, h, %s));\n", emit_helper(e, HELPER_INPUT_COPY, "input_copy"),
		          name, to, at, number, where);
		return;
	}
	text_addf(out, "to->%s%s = ", name, to);
	if (a->place == AT_CELL)
		text_addf(out, "*%s_%d(p, b, h, %s)", at, number, where);
	else
		element_at_print(out, e, a->node, at, where);
	text_puts(out, ";\n");
}

static void struct_print(struct text *out, struct emit *e, const char *name, enum access_place first,
                         enum access_place second)
{
	static const char *const sizes[ACCESS_PLACE_COUNT] = {[AT_HEAD] = "",
	                                                      [AT_ROW] = "[TILE_M]",
	                                                      [AT_COL] = "[TILE_N]",
	                                                      [AT_DIAG] = "[TILE_M + TILE_N]"};
	char field[INPUT_NAME_MAX + 16];
	int words = 0;
	text_addf(out, "struct %sInputs {\n", name);
	for (int a = 0; a < e->program->access_count; a++) {
		const struct access *access = &e->program->access[a];
		if (access->place != first && access->place != second)
			continue;
		const struct input *input = &e->spec->input[access->input];
		text_addf(out, "\t%s %s", access->place == AT_CELL ? stored_type(input) : element_type(input), field_name(field, e, access->node));
		if (access->place == AT_TABLE)
			text_addf(out, "[%d]", table_size(e, access));
		else if (access->place == AT_CELL)
			text_addf(out, "[TILE_M * (TILE_N + %d)]", access_cell_pad(input));
		else
			text_puts(out, sizes[access->place]);
		words += access->place == AT_TABLE ? table_size(e, access) : access->place == AT_HEAD ? 1 : 4;
		text_puts(out, "; // ");
		expr_print(out, e->pool, access->node, e->spec->input);
		text_puts(out, access->place == AT_DIAG ? ", at row - column + TILE_N - 1\n" : "\n");
	}
	if (words % 4 || words == 0)
		text_addf(out, "\tint pad[%d];\n", 4 - words % 4);
	text_puts(out, "};\n");
}

static void head_load_print(struct text *out, struct emit *e)
{
	for (int a = 0; a < e->program->access_count; a++)
		if (e->program->access[a].place == AT_TABLE)
			address_print(out, e, e->program->access[a].node, "entry", true);
	text_puts(out, "DEVICE void head_load(struct HeadInputs *to, " LAUNCH ", int thread, int threads)\n{\n");
	for (int a = 0; a < e->program->access_count; a++) {
		const struct access *access = &e->program->access[a];
		if (access->place == AT_HEAD) {
			text_puts(out, "\tif (thread == 0)\n\t\t");
			copy_print(out, e, access, "", "address", "0, 0");
		} else if (access->place == AT_TABLE) {
			text_addf(out, "\tfor (int i = thread; i < %d; i += threads)\n\t\t", table_size(e, access));
			copy_print(out, e, access, "[i]", "entry", "i");
		}
	}
	text_puts(out, "}\n\n");
}

/* The elements at one place, in one loop over the tile. */
static void copies_print(struct text *out, struct emit *e, enum access_place place, const char *loop,
                         const char *indent, const char *to, const char *where, const char *end)
{
	if (!staging_has(e->program, place, place))
		return;
	text_puts(out, loop);
	for (int a = 0; a < e->program->access_count; a++) {
		if (e->program->access[a].place != place)
			continue;
		text_puts(out, indent);
		copy_print(out, e, &e->program->access[a], to, "address", where);
	}
	text_puts(out, end);
}

/* The elements of cells one by one, in a loop over the tile: those of an access, or of all that are no matrix (only -1). */
static void cells_print(struct text *out, struct emit *e, int only, const char *indent)
{
	struct text copies = {0};
	char at[64];
	int dim_q, dim_k;
	for (int a = 0; a < e->program->access_count; a++) {
		const struct access *access = &e->program->access[a];
		if (access->place != AT_CELL || (only < 0 ? access_matrix(&dim_q, &dim_k, e->pool, access->node, e->spec->input) : a != only))
			continue;
		snprintf(at, sizeof at, "[row * (TILE_N + %d) + col]", access_cell_pad(&e->spec->input[access->input]));
		text_addf(&copies, "%s\t\t", indent);
		copy_print(&copies, e, access, at, "address", "q, k");
	}
	/* Bounds are constants, and what cannot be is not asked: so the inner loop is unrolled. Rows at once would take many registers. */
	static const char *const lines[] = {"#pragma unroll 1",
	                                    "for (int i = 0; i < TILE_M; i += threads / 32) {",
	                                    "\tconst int row = i + thread / 32, q = int_min(q0 + row, sequence_q(p, b) - 1);",
	                                    "\tif (TILE_M % (threads / 32) != 0 && row >= TILE_M)",
	                                    "\t\tbreak;",
	                                    "\tfor (int j = 0; j < TILE_N; j += 32) {",
	                                    "\t\tconst int col = j + thread % 32, k = int_min(k0 + col, sequence_k(p, b) - 1);",
	                                    "\t\tif (TILE_N % 32 != 0 && col >= TILE_N)",
	                                    "\t\t\tbreak;"};
	for (size_t i = 0; copies.len && i < sizeof lines / sizeof *lines; i++)
		text_addf(out, "%s%s\n", indent, lines[i]);
	if (copies.len)
		text_addf(out, "%s%s\t}\n%s}\n", text_str(&copies), indent, indent);
	text_free(&copies);
}

/* Of an access whose elements are a matrix's: rows of the tile by 16 bytes, or by 4, where address and strides allow it; else one by one. */
static void matrix_print(struct text *out, struct emit *e, int a)
{
	const struct access *access = &e->program->access[a];
	const struct input *input = &e->spec->input[access->input];
	const int n = e->number[access->node], bytes = input_bytes[input->dtype];
	char name[INPUT_NAME_MAX + 16];
	int dim_q, dim_k;
	if (access->place != AT_CELL || !access_matrix(&dim_q, &dim_k, e->pool, access->node, e->spec->input))
		return;
	/* TILE_N is a multiple of 16: where a tile begins, its keys add nothing. */
	text_addf(out,
	          "\tconst struct fagen_abi_input *t%d = &p->input[%d];\n"
	          "\tconst int off%d = t%d->stride[%d] != 1 ? 1 : (int)(t%d->data",
	          n, access->input, n, n, dim_k, n);
	for (int d = 0; d < input->dims; d++)
		if (d != dim_k && !dim_is_joined(e->spec->layout, input, d) && !expr_is_const(e->pool, e->pool->node[access->node].arg[d], 0))
			text_addf(out, " | (unsigned long long)t%d->stride[%d] * %d", n, d, bytes);
	if (e->spec->layout == LAYOUT_PACKED && dim_is_sequence(input->dim[dim_k].kind))
		text_addf(out, " | (unsigned long long)first_k(p, b) * %d", bytes);
	text_puts(out, ") & 15; // of rows: bytes past a multiple of 16\n");
	for (int unit = 16; unit > bytes; unit /= 4)
		text_addf(out,
		          "\t%sif (off%d %% %d == 0)\n"
		          "\t\t%s(to->%s, %d * (TILE_N + %d), %d * TILE_N, %d, address_%d(p, b, h, q0, k0),\n"
		          "\t\t           %d * t%d->stride[%d], sequence_q(p, b) - 1 - q0, %d * (sequence_k(p, b) - k0), thread, threads);\n",
		          unit == 16 ? "" : "else ", n, unit, emit_helper(e, HELPER_INPUT_ROWS, "input_rows"), field_name(name, e, access->node),
		          bytes, access_cell_pad(input), bytes, unit, n, bytes, n, dim_q, bytes);
	text_puts(out, "\telse\n");
	cells_print(out, e, a, "\t\t");
}

void staging_print(struct text *out, struct emit *e)
{
	struct_print(out, e, "Head", AT_HEAD, AT_TABLE);
	struct_print(out, e, "Row", AT_ROW, AT_ROW);
	struct_print(out, e, "Col", AT_COL, AT_COL);
	struct_print(out, e, "Cell", AT_DIAG, AT_CELL);
	text_puts(out, "\n// What is staged, as a tile sees it: its first row and key, and the bits of its blocks.\n"
	               "struct Inputs {\n"
	               "\tconst struct HeadInputs *head;\n"
	               "\tconst struct RowInputs *rows;\n"
	               "\tconst struct ColInputs *cols;\n"
	               "\tconst struct CellInputs *cells;\n"
	               "\tint q0, k0;\n"
	               "\tunsigned long long bits;\n"
	               "};\n\n");
	head_load_print(out, e);
	text_puts(out, "DEVICE void rows_load(struct RowInputs *to, " LAUNCH ", int q0, int thread, int threads)\n{\n");
	copies_print(out, e, AT_ROW,
	             "\tfor (int i = thread; i < TILE_M; i += threads) {\n"
	             "\t\tconst int q = int_min(q0 + i, sequence_q(p, b) - 1);\n",
	             "\t\t", "[i]", "q, 0", "\t}\n");
	text_puts(out,
	          "}\n\nDEVICE void cols_load(struct ColInputs *to, " LAUNCH ", int k0, int thread, int threads)\n{\n");
	copies_print(out, e, AT_COL,
	             "\tfor (int i = thread; i < TILE_N; i += threads) {\n"
	             "\t\tconst int k = int_min(k0 + i, sequence_k(p, b) - 1);\n",
	             "\t\t", "[i]", "0, k", "\t}\n");
	text_puts(out, "}\n\nDEVICE void cells_load(struct CellInputs *to, " LAUNCH
	               ", int q0, int k0, int thread, int threads)\n{\n");
	/* Whether the loop turns at all is known to nvcc where its bounds are constants: from `thread` on it would be unrolled four times, with a rest. */
	copies_print(out, e, AT_DIAG,
	             "#pragma unroll 1\n"
	             "\tfor (int first = 0; first < TILE_M + TILE_N; first += threads) {\n"
	             "\t\tconst int i = first + thread;\n"
	             "\t\tif (i >= TILE_M + TILE_N)\n"
	             "\t\t\tbreak;\n"
	             "\t\tconst int diagonal =\n"
	             "\t\t\tint_min(int_max(q0 - k0 + i - (TILE_N - 1), 1 - sequence_k(p, b)), sequence_q(p, b) - 1);\n"
	             "\t\tconst int q = int_max(diagonal, 0), k = q - diagonal;\n",
	             "\t\t", "[i]", "q, k", "\t}\n");
	for (int a = 0; a < e->program->access_count; a++)
		matrix_print(out, e, a);
	cells_print(out, e, -1, "\t");
	text_puts(out, "}\n\n");
}

/* ---- minima and maxima over tiles ---- */

void bounds_print(struct text *out, struct emit *e)
{
	for (int cols = 0; cols < 2; cols++) {
		text_addf(out, "DEVICE int bounds_%s(int slot, " LAUNCH ", int %s)\n{\n", cols ? "col" : "row",
		          cols ? "k" : "q");
		for (int a = 0; a < e->program->access_count; a++) {
			const struct access *access = &e->program->access[a];
			if (access->bounds < 0 || (access->place == AT_COL) != cols)
				continue;
			text_addf(out, "\tif (slot == %d)\n\t\treturn element_%d(p, b, h, %s);\n", access->bounds,
			          e->number[access->node], cols ? "0, k" : "q, 0");
		}
		text_puts(out, "\treturn 0;\n}\n\n");
	}
}
