/* emit_range: key_range and query_range, the closed forms of gen/range.h as code. Positions are added in 64 bits and brought
 * into [0, length] once per tile. */
#include "gen/emit.h"
#include "gen/range.h"

#include <inttypes.h>
#include <stdio.h>

/* "q0 - 2LL * sq + 7LL", computed in 64 bits from left to right. */
void sum_print(struct text *out, const struct summand *term, int terms, int64_t constant)
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

/* ---- ranges ---- */

/* A need without its position, times sign, plus `more`. */
static void print_rest(struct text *out, const struct need *n, int sign, int64_t more)
{
	const struct summand term[] = {{sign * n->first, "first", true},
	                               {sign * n->last, "last", true},
	                               {sign * n->sq, "sq", false},
	                               {sign * n->sk, "sk", false}};
	sum_print(out, term, 4, sign * n->constant + more);
}

/* Statements that narrow [begin, end) to what the needs admit. */
static void print_needs(struct text *out, struct emit *e, const struct needs *list, const char *begin, const char *end)
{
	for (int i = 0; i < list->count; i++) {
		const struct need *n = &list->need[i];
		if (n->position > 1 || n->position < -1)
			(void)emit_helper(e, HELPER_WIDE_DIV, "");
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
			text_addf(out, "\t%s = wide_max(%s, -wide_div(", begin, begin);
			print_rest(out, n, 1, 0);
			text_addf(out, ", %d));\n", n->position);
		} else {
			text_addf(out, "\t%s = wide_min(%s, wide_div(", end, end);
			print_rest(out, n, 1, 0);
			text_addf(out, ", %d) + 1);\n", -n->position);
		}
	}
}

struct axis {
	const char *function, *from, *to; /* the tile */
	const char *tile_len, *len;       /* length it lies in, length of the positions it sees */
	bool strict;                      /* a tile that reaches past its length has no full positions */
	void (*reach)(struct reach *, const struct run *);
};
static const struct axis axes[] = {{"key_range", "q0", "q1", "sq", "sk", false, reach_keys},
                                   {"query_range", "k0", "k1", "sk", "sq", true, reach_rows}};

/* Is the class of a tile known from the runs, or from them and tile_class? Else no position is free of tests. */
static bool is_classified(const struct program *p) { return p->scan || expr_is_const(&p->pool, p->residual, true); }

static void print_range(struct text *out, struct emit *e, const struct axis *x, int run)
{
	const struct program *p = e->program;
	struct reach reach;
	char head[64];
	x->reach(&reach, &p->run[run]);
	if (p->run_count > 1)
		snprintf(head, sizeof head, "%s_%d(", x->function, run);
	else
		snprintf(head, sizeof head, "%s(int run, ", x->function);
	text_addf(out, "DEVICE struct Range %slong long %s, long long %s, int sq, int sk)\n{\n", head, x->from, x->to);
	text_puts(out, "\tstruct Range r = {0, 0, 0, 0};\n");
	if (expr_is_const(&p->pool, p->residual, false)) {
		text_puts(out, "\treturn r;\n}\n\n");
		return;
	}
	(void)emit_helper(e, HELPER_WIDE_MAX, ""), (void)emit_helper(e, HELPER_WIDE_MIN, "");
	text_addf(out, "\tconst long long first = wide_max(%s, 0), last = wide_min(%s, %s) - 1;\n", x->from, x->to,
	          x->tile_len);
	text_addf(out, "\tlong long begin = 0, end = %s, full_begin = 0, full_end = %s;\n", x->len, x->len);
	print_needs(out, e, &reach.visible, "begin", "end");
	text_puts(out, "\tif (first > last || begin >= end)\n\t\treturn r;\n");
	text_addf(out, "\tr.begin = clamp_position(begin, %s);\n\tr.end = clamp_position(end, %s);\n", x->len, x->len);
	if (is_classified(p)) {
		print_needs(out, e, &reach.full, "full_begin", "full_end");
		if (x->strict)
			text_addf(out, "\tif (%s > %s)\n\t\tfull_end = 0;\n", x->to, x->tile_len);
	} else {
		text_puts(out, "\tfull_end = 0;\n");
	}
	text_addf(out,
	          "\tif (full_begin >= full_end)\n\t\tfull_begin = full_end = begin;\n"
	          "\tr.full_begin = clamp_position(full_begin, %s);\n\tr.full_end = clamp_position(full_end, %s);\n"
	          "\treturn r;\n}\n\n",
	          x->len, x->len);
}

static void axis_print(struct text *out, struct emit *e, const struct axis *x)
{
	const int runs = e->program->run_count;
	for (int run = 0; run < runs; run++)
		print_range(out, e, x, run);
	if (runs < 2)
		return;
	text_addf(out,
	          "DEVICE struct Range %s(int run, long long %s, long long %s, int sq, int sk)\n{\n\tswitch (run) {\n",
	          x->function, x->from, x->to);
	for (int run = 0; run < runs; run++) {
		if (run < runs - 1)
			text_addf(out, "\tcase %d:", run);
		else
			text_puts(out, "\tdefault:");
		text_addf(out, " return %s_%d(%s, %s, sq, sk);\n", x->function, run, x->from, x->to);
	}
	text_puts(out, "\t}\n}\n\n");
}

void ranges_print(struct text *out, struct emit *e)
{
	axis_print(out, e, &axes[0]);
	axis_print(out, e, &axes[1]);
}
