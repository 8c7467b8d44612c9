/* emit_grad: what templates/sm80/input_grad.cu must know of the gradients that a backward pass writes: where their elements
 * lie, and which of them a cell's score reads. A slot is an input with a gradient. */
#include "gen/emit.h"
#include "gen/grad.h"

#include <inttypes.h>

#define LAUNCH "const struct fagen_abi *p, int b, int h"

static const char *const kinds[] = {"GRAD_NONE", "GRAD_TABLE", "GRAD_ROW", "GRAD_COL", "GRAD_CELL"};
static const char *const spreads[] = {"SPREAD_HEAD", "SPREAD_DIAG", "SPREAD_CELL"};

static bool has_entries(const struct grad_slot *slot) { return slot->kind == GRAD_TABLE || slot->kind == GRAD_ROW; }

/* The node that reads an element of the slot: an access with a gradient, or the sink. */
static int slot_node(const struct emit *e, const struct grad_plan *g, int slot)
{
	for (int a = 0; a < g->accesses; a++)
		if (g->access[a].slot == slot)
			return e->program->access[g->access[a].access].node;
	return e->program->sink;
}

/* Indexes of the constant dimensions, the last one fastest. */
static void entry_function(struct text *out, struct emit *e, int number, int node)
{
	const struct expr_node *n = &e->pool->node[node];
	const struct input *input = &e->spec->input[n->i];
	const char *join = "";
	struct scope x;
	struct text body = {0};
	int64_t below = 1;
	scope_begin(&x, e, IN_PLAIN);
	for (int d = 0; d < input->dims; d++) {
		if (input->dim[d].kind != DIM_CONST)
			continue;
		below *= input->dim[d].size;
		scope_use(&x, (struct value){n->arg[d], false});
	}
	scope_locals(&body, &x);
	text_puts(&body, "\treturn ");
	for (int d = 0; d < input->dims; d++) {
		if (input->dim[d].kind != DIM_CONST)
			continue;
		below /= input->dim[d].size;
		text_puts(&body, join);
		if (below > 1)
			text_addf(&body, "%" PRId64 " * ", below);
		index_print(&body, &x, node, d);
		join = " + ";
	}
	text_addf(out, "DEVICE int grad_index_%d(" LAUNCH ", int q, int k)\n{\n", number);
	scope_names(out, &x);
	text_addf(out, "%s%s;\n}\n", text_str(&body), *join ? "" : "0");
	text_free(&body);
}

static void address_function(struct text *out, struct emit *e, int slot, int node)
{
	const struct expr_node *n = &e->pool->node[node];
	const struct input *input = &e->spec->input[n->i];
	struct scope x;
	struct text body = {0};
	const bool packed = e->spec->layout == LAYOUT_PACKED;
	int64_t below = 1;
	scope_begin(&x, e, IN_PLAIN);
	for (int d = 0; d < input->dims; d++)
		if (input->dim[d].kind == DIM_CONST)
			below *= input->dim[d].size;
	text_addf(
		&body,
		"\tconst struct fagen_abi_input *t = &p->input[%d];\n\treturn !t->grad ? (float *)0 : (float *)t->grad",
		(int)n->i);
	for (int d = 0; d < input->dims; d++) {
		if (dim_is_joined(e->spec->layout, input, d))
			continue;
		text_addf(&body, " + t->grad_stride[%d] * ", d);
		switch (input->dim[d].kind) {
		case DIM_CONST:
			below /= input->dim[d].size;
			text_addf(&body, "(entry / %" PRId64 " %% %" PRId64 ")", below, input->dim[d].size);
			break;
		case DIM_SEQ_Q: text_puts(&body, packed ? "(first_q(p, b) + q)" : "q"); break;
		case DIM_SEQ_K: text_puts(&body, packed ? "(first_k(p, b) + k)" : "k"); break;
		default: index_print(&body, &x, node, d);
		}
	}
	text_addf(out, "DEVICE float *grad_address_%d(" LAUNCH ", int entry, int q, int k)\n{\n", slot);
	scope_names(out, &x);
	text_addf(out, "%s;\n}\n", text_str(&body));
	text_free(&body);
}

/* All elements, and each of them, row by row. */
static void element_functions(struct text *out, const struct emit *e, int slot, int input_row)
{
	const struct input *input = &e->spec->input[input_row];
	text_addf(
		out,
		"DEVICE long long grad_elements_%d(const struct fagen_abi *p)\n{\n\treturn !p->input[%d].grad ? 0 : 1LL",
		slot, input_row);
	for (int d = 0; d < input->dims; d++) {
		text_puts(out, " * ");
		dim_size_print(out, e->spec, input, d);
	}
	text_addf(out,
	          ";\n}\nDEVICE float *grad_element_%d(const struct fagen_abi *p, long long i)\n{\n"
	          "\tconst struct fagen_abi_input *t = &p->input[%d];\n\tfloat *at = (float *)t->grad;\n",
	          slot, input_row);
	if (input->dims > 0)
		text_puts(out, "\tlong long size = 1;\n\tbool dense = true; // as most are: then there is nothing to divide\n");
	for (int d = input->dims - 1; d >= 0; d--) {
		text_addf(out, "\tdense &= t->grad_stride[%d] == size;\n\tsize *= ", d);
		dim_size_print(out, e->spec, input, d);
		text_puts(out, ";\n");
	}
	if (input->dims > 0)
		text_puts(out, "\tif (dense)\n\t\treturn at + i;\n");
	for (int d = input->dims - 1; d >= 0; d--) {
		text_addf(out, "\tat += t->grad_stride[%d] * (i %% ", d);
		dim_size_print(out, e->spec, input, d);
		text_puts(out, ");\n\ti /= ");
		dim_size_print(out, e->spec, input, d);
		text_puts(out, ";\n");
	}
	text_puts(out, "\treturn at;\n}\n");
}

/* "DEVICE type name(int which, ..) { switch (which) .. }": a number for each, or a call. */
static void switch_begin(struct text *out, const char *head, const char *which)
{
	text_addf(out, "DEVICE %s\n{\n\tswitch (%s) {\n", head, which);
}
static void switch_end(struct text *out, const char *other)
{
	text_addf(out, "\tdefault: return %s;\n\t}\n}\n", other);
}

static void switch_calls(struct text *out, const char *head, const char *which, int count, const char *function,
                         const char *arguments, const char *other)
{
	switch_begin(out, head, which);
	for (int i = 0; i < count; i++)
		text_addf(out, "\tcase %d: return %s_%d(%s);\n", i, function, i, arguments);
	switch_end(out, other);
}

void grads_print(struct text *out, struct emit *e)
{
	struct grad_plan g;
	int cells = 0;
	if (!e->program->grads)
		return;
	grad_plan_make(&g, e->program, e->spec);
	for (int i = 0; i < g.slots; i++)
		cells += g.slot[i].kind == GRAD_CELL;
	text_addf(
		out,
		"\n// Gradients of inputs, for templates/sm80/input_grad.cu. A slot is an input with one, an access what reads it.\n"
		"enum {\n\tGRADS = %d,\n\tGRAD_ACCESSES = %d,\n\tGRAD_TABLE_FLOATS = %d,\n\tGRAD_ROW_FLOATS = %d,\n"
		"\tGRAD_CELL_SPREAD = %d,\n\tGRAD_DIAG_SPREAD = %d,\n\tGRAD_COLS = %d,\n\tGRAD_CELLS = %d,\n"
		"\tGRAD_SINK = %d\n};\n",
		g.slots, g.accesses, g.table_floats, g.row_floats, g.cell_spread, g.diag_spread, g.cols, cells, g.sink);

	switch_begin(out, "int grad_kind(int slot)", "slot");
	for (int i = 0; i < g.slots; i++)
		text_addf(out, "\tcase %d: return %s;\n", i, kinds[g.slot[i].kind]);
	switch_end(out, "GRAD_NONE");
	switch_begin(out, "int grad_entries(int slot)", "slot");
	for (int i = 0; i < g.slots; i++)
		text_addf(out, "\tcase %d: return %d;\n", i, has_entries(&g.slot[i]) ? g.slot[i].entries : 1);
	switch_end(out, "1");
	switch_begin(out, "int grad_base(int slot)", "slot");
	for (int i = 0; i < g.slots; i++)
		text_addf(out, "\tcase %d: return %d;\n", i, g.slot[i].base);
	switch_end(out, "0");
	switch_begin(out, "int grad_slot(int access)", "access");
	for (int a = 0; a < g.accesses; a++)
		text_addf(out, "\tcase %d: return %d;\n", a, g.access[a].slot);
	switch_end(out, "0");
	switch_begin(out, "int grad_spread(int access)", "access");
	for (int a = 0; a < g.accesses; a++)
		text_addf(out, "\tcase %d: return %s;\n", a, spreads[g.access[a].spread]);
	switch_end(out, "SPREAD_CELL");

	for (int a = 0; a < g.accesses; a++)
		if (has_entries(&g.slot[g.access[a].slot]))
			entry_function(out, e, a, e->program->access[g.access[a].access].node);
	switch_begin(out, "int grad_index(int access, " LAUNCH ", int q, int k)", "access");
	for (int a = 0; a < g.accesses; a++)
		if (has_entries(&g.slot[g.access[a].slot]))
			text_addf(out, "\tcase %d: return grad_index_%d(p, b, h, q, k);\n", a, a);
	switch_end(out, "0");

	for (int i = 0; i < g.slots; i++) {
		address_function(out, e, i, slot_node(e, &g, i));
		element_functions(out, e, i, g.slot[i].input);
	}
	switch_calls(out, "float *grad_address(int slot, " LAUNCH ", int entry, int q, int k)", "slot", g.slots,
	             "grad_address", "p, b, h, entry, q, k", "(float *)0");
	switch_calls(out, "long long grad_elements(int slot, const struct fagen_abi *p)", "slot", g.slots,
	             "grad_elements", "p", "0");
	switch_calls(out, "float *grad_element(int slot, const struct fagen_abi *p, long long i)", "slot", g.slots,
	             "grad_element", "p, i", "(float *)0");
}
