/* emit_program: the functions of templates/contract.h, written for one program. The text is C11 and CUDA at once, given
 * DEVICE: the tests compile it for the host and compare it with the expression cell by cell.
 *
 * Positions are added in 64 bits and brought into [0, length] once per tile or row; what remains per cell is one integer
 * comparison for the bounds, and the residual expression where there is one. */
#include "gen/expr.h"
#include "gen/range.h"

#include <inttypes.h>
#include <string.h>

struct term {
	int64_t factor;
	const char *name;
	bool wide;
}; /* wide: already 64 bits */

/* "q0 - 2LL * sq + 7LL", computed in 64 bits from left to right. */
static void print_sum(struct text *out, const struct term *term, int terms, int64_t constant)
{
	bool first = true;
	for (int i = 0; i < terms; i++) {
		const int64_t f = term[i].factor, size = f < 0 ? -f : f;
		if (!f)
			continue;
		text_puts(out, first ? (f < 0 ? "-" : "") : f < 0 ? " - " : " + ");
		if (size != 1)
			text_addf(out, "%" PRId64 "LL * ", size);
		else if (first && !term[i].wide)
			text_puts(out, "(long long)");
		text_puts(out, term[i].name);
		first = false;
	}
	if (first)
		text_addf(out, "%" PRId64 "LL", constant);
	else if (constant)
		text_addf(out, constant < 0 ? " - %" PRId64 "LL" : " + %" PRId64 "LL",
		          constant < 0 ? -constant : constant);
}

/* A need without its position, times sign, plus `more`. */
static void print_rest(struct text *out, const struct need *n, int sign, int64_t more)
{
	const struct term term[] = {{sign * n->first, "first", true},
	                            {sign * n->last, "last", true},
	                            {sign * n->sq, "sq", false},
	                            {sign * n->sk, "sk", false}};
	print_sum(out, term, 4, sign * n->constant + more);
}

/* Statements that narrow [begin, end) to what the needs admit. */
static void print_needs(struct text *out, const struct needs *list, const char *begin, const char *end)
{
	for (int i = 0; i < list->count; i++) {
		const struct need *n = &list->need[i];
		if (n->position == 0) {
			text_puts(out, "\tif (");
			print_rest(out, n, 1, 0);
			text_addf(out, " < 0)\n\t\t%s = 0;\n", end);
		} else if (n->position == 1) {
			text_addf(out, "\t%s = wide_max(%s, ", begin, begin);
			print_rest(out, n, -1, 0);
			text_puts(out, ");\n");
		} else if (n->position == -1) {
			text_addf(out, "\t%s = wide_min(%s, ", end, end);
			print_rest(out, n, 1, 1);
			text_puts(out, ");\n");
		} else if (n->position > 1) {
			text_addf(out, "\t%s = wide_max(%s, -floor_div(", begin, begin);
			print_rest(out, n, 1, 0);
			text_addf(out, ", %d));\n", n->position);
		} else {
			text_addf(out, "\t%s = wide_min(%s, floor_div(", end, end);
			print_rest(out, n, 1, 0);
			text_addf(out, ", %d) + 1);\n", -n->position);
		}
	}
}

struct axis {
	const char *function, *from, *to; /* the tile */
	const char *tile_len, *len;       /* length it lies in, length of the positions it sees */
	bool strict;                      /* a tile that reaches past its length has no full positions */
};

static void print_range(struct text *out, const struct axis *x, const struct reach *reach, const struct program *p)
{
	const bool nothing = expr_is_const(&p->pool, p->residual, false),
		   exact = expr_is_const(&p->pool, p->residual, true);
	text_addf(out, "DEVICE struct Range %s(long long %s, long long %s, int sq, int sk)\n{\n", x->function, x->from,
	          x->to);
	text_puts(out, "\tstruct Range r = {0, 0, 0, 0};\n");
	if (nothing) {
		text_puts(out, "\treturn r;\n}\n\n");
		return;
	}
	text_addf(out, "\tconst long long first = wide_max(%s, 0), last = wide_min(%s, %s) - 1;\n", x->from, x->to,
	          x->tile_len);
	text_addf(out, "\tlong long begin = 0, end = %s, full_begin = 0, full_end = %s;\n", x->len, x->len);
	print_needs(out, &reach->visible, "begin", "end");
	text_puts(out, "\tif (first > last || begin >= end)\n\t\treturn r;\n");
	text_addf(out, "\tr.begin = clamp_position(begin, %s);\n\tr.end = clamp_position(end, %s);\n", x->len, x->len);
	if (exact) {
		print_needs(out, &reach->full, "full_begin", "full_end");
		if (x->strict)
			text_addf(out, "\tif (%s > %s)\n\t\tfull_end = 0;\n", x->to, x->tile_len);
	} else {
		text_puts(out, "\tfull_end = 0;\n");
	}
	text_addf(
		out,
		"\tif (full_begin >= full_end)\n\t\tfull_begin = full_end = begin;\n"
		"\tr.full_begin = clamp_position(full_begin, %s);\n\tr.full_end = clamp_position(full_end, %s);\n\treturn r;\n}\n\n",
		x->len, x->len);
}

/* ---- row and column state ---- */

static const char *const row_fields[] = {
	[NAME_B] = "b", [NAME_H] = "h", [NAME_Q] = "q", [NAME_SQ] = "sq", [NAME_SK] = "sk"};

static void names_used(bool used[NAME_COUNT], const struct expr_pool *pool, int root)
{
	bool node[EXPR_NODES_MAX] = {false};
	memset(used, 0, NAME_COUNT * sizeof *used);
	node[root] = true;
	for (int i = root; i >= 0; i--) {
		const struct expr_node *n = &pool->node[i];
		if (!node[i])
			continue;
		if (n->op == EXPR_NAME)
			used[n->i] = true;
		for (int j = 0; j < expr_ops[n->op].args; j++)
			node[n->arg[j]] = true;
	}
}

static bool is_row_name(int name) { return name != NAME_K && name <= NAME_SK; }

static void print_row_state(struct text *out, const struct program *p, const bool used[NAME_COUNT])
{
	text_puts(
		out,
		"// The keys a row sees by its bounds, and what the rest of the mask needs of it.\nstruct RowState {\n"
		"\tint key_begin;\n\tunsigned key_count;\n");
	for (int i = 0; i < NAME_COUNT; i++)
		if (used[i] && is_row_name(i))
			text_addf(out, "\tint %s;\n", row_fields[i]);
	text_puts(
		out,
		"};\n\nDEVICE struct RowState row_state(int b, int h, int q, int sq, int sk)\n{\n\tstruct RowState row;\n"
		"\tlong long begin = 0, end = q < sq ? sk : 0;\n");
	for (int i = 0; i < p->bound_count; i++) {
		const struct bound *n = &p->bound[i];
		const int sign = n->k > 0 ? -1 : 1;
		const struct term term[] = {
			{sign * n->q, "q", false}, {sign * n->sq, "sq", false}, {sign * n->sk, "sk", false}};
		text_puts(out, n->k > 0   ? "\tbegin = wide_max(begin, "
		               : n->k < 0 ? "\tend = wide_min(end, "
		                          : "\tif (");
		print_sum(out, term, 3, sign * n->constant + (n->k < 0));
		text_puts(out, n->k ? ");\n" : " < 0)\n\t\tend = 0;\n");
	}
	text_puts(out, "\trow.key_begin = clamp_position(begin, sk);\n"
	               "\trow.key_count = (unsigned)int_max(clamp_position(end, sk) - row.key_begin, 0);\n");
	for (int i = 0; i < NAME_COUNT; i++)
		if (used[i] && is_row_name(i))
			text_addf(out, "\trow.%s = %s;\n", row_fields[i], row_fields[i]);
	text_puts(out, "\treturn row;\n}\n\n");
}

static void print_mask_keep(struct text *out, const struct program *p, const bool used[NAME_COUNT])
{
	text_puts(out, "DEVICE bool mask_keep(struct RowState row, struct ColState col)\n{\n");
	for (int i = 0; i < NAME_COUNT; i++)
		if (used[i])
			text_addf(out, "\tconst long long %s = %s.%s;\n", expr_names[i], i == NAME_K ? "col" : "row",
			          expr_names[i]);
	text_puts(out, "\treturn (unsigned)(col.k - row.key_begin) < row.key_count");
	if (!expr_is_const(&p->pool, p->residual, true)) {
		text_puts(out, " && ");
		expr_print_c(out, &p->pool, p->residual);
	}
	text_puts(out, ";\n}\n\n");
}

void source_program(struct text *out, const struct spec *spec, const struct program *p)
{
	struct reach keys, rows;
	bool used[NAME_COUNT];
	reach_keys(&keys, p);
	reach_rows(&rows, p);
	names_used(used, &p->pool, p->residual);
	text_puts(out,
	          "DEVICE long long wide_min(long long a, long long b) { return a < b ? a : b; }\n"
	          "DEVICE long long wide_max(long long a, long long b) { return a > b ? a : b; }\n"
	          "DEVICE long long wide_abs(long long a) { return a < 0 ? -a : a; }\n"
	          "// Toward minus infinity; b > 0.\n"
	          "DEVICE long long floor_div(long long a, long long b) { return a / b - (a % b < 0); }\n"
	          "DEVICE long long floor_mod(long long a, long long b) { return a % b + (a % b < 0 ? b : 0); }\n\n");
	print_range(out, &(struct axis){"key_range", "q0", "q1", "sq", "sk", false}, &keys, p);
	print_range(out, &(struct axis){"query_range", "k0", "k1", "sk", "sq", true}, &rows, p);
	print_row_state(out, p, used);
	text_puts(
		out,
		"struct ColState { int k; };\n\nDEVICE struct ColState col_state(int b, int h, int k, int sq, int sk)\n{\n"
		"\tstruct ColState col;\n\tcol.k = k;\n\treturn col;\n}\n\n");
	print_mask_keep(out, p, used);
	text_addf(out, "enum { SCORE_IDENTITY = %d };\n", p->score_identity);
	text_puts(out, "DEVICE float score(float s, struct RowState row, struct ColState col) { return ");
	expr_print_c(out, &p->pool, p->score);
	text_puts(out,
	          "; }\nDEVICE float score_grad(float s, struct RowState row, struct ColState col) { return 1.0f; }\n");
}
