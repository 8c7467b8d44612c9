/* emit_program: the functions of templates/contract.h, written for one program. The text is C11 and CUDA at once, given
 * DEVICE: the tests compile it for the host and compare it with the expressions cell by cell.
 *
 * The bounds of a run are added up and brought into [0, length] once per row; what remains of them per cell is one integer
 * comparison. */
#include "gen/access.h"
#include "gen/emit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAUNCH "const struct fagen_abi *p, int b, int h"
#define CELL "struct RowState row, struct ColState col, const struct Inputs *in"

/* ---- row and column state ---- */

static bool run_limits(const struct run *run, int sign)
{
	for (int i = 0; i < run->count; i++)
		if (run->bound[i].k == sign)
			return true;
	return false;
}

/* "_1" behind the names of a run's fields when there are several. */
static const char *run_suffix(char suffix[16], const struct program *p, int run)
{
	suffix[0] = '\0';
	if (p->run_count > 1)
		snprintf(suffix, 16, "_%d", run);
	return suffix;
}

enum { NARROW_SLACK = 1 << 28 }; /* for a constant, and for rows of a tile that lie past the end */

/* Can what a row adds to a bound, sign * (q*Q + sq*SQ + sk*SK + constant), be added up in 32 bits from left to right? */
static bool bound_is_narrow(const struct bound *n, int sign)
{
	const int64_t far = LENGTH_MAX, least = INT32_MIN + (int64_t)NARROW_SLACK,
		      most = INT32_MAX - (int64_t)NARROW_SLACK;
	const int q = sign * n->q, sq = sign * n->sq, sk = sign * n->sk;
	if (abs(sq) > 1 || abs(sk) > 1 || n->constant >= NARROW_SLACK || n->constant <= -NARROW_SLACK || q * sq > 0)
		return false;
	struct interval sum = {0, q || sq ? far : 0};
	if (q && sq) /* a row lies before the end */
		sum = (struct interval){-far, NARROW_SLACK};
	if (q < 0 || (!q && sq < 0))
		sum = (struct interval){-sum.hi, -sum.lo};
	sum.lo -= sk < 0 ? far : 0;
	sum.hi += sk > 0 ? far : 0;
	return sum.lo >= least && sum.hi <= most;
}

static bool run_is_narrow(const struct run *run)
{
	for (int i = 0; i < run->count; i++)
		if (!bound_is_narrow(&run->bound[i], run->bound[i].k > 0 ? -1 : 1))
			return false;
	return true;
}

/* "q - sq + 7", in ints. */
static void print_narrow(struct text *out, const struct bound *n, int sign, int64_t more)
{
	static const char *const names[] = {"q", "sq", "sk"};
	const int factor[] = {sign * n->q, sign * n->sq, sign * n->sk};
	const int64_t constant = sign * n->constant + more;
	bool first = true;
	for (int i = 0; i < 3; i++) {
		if (factor[i])
			text_addf(out, "%s%s",
			          first           ? (factor[i] < 0 ? "-" : "")
			          : factor[i] < 0 ? " - "
			                          : " + ",
			          names[i]);
		first = first && !factor[i];
	}
	if (first)
		text_addf(out, "%" PRId64, constant);
	else if (constant)
		text_addf(out, constant < 0 ? " - %" PRId64 : " + %" PRId64, constant < 0 ? -constant : constant);
}

/* "q - sq - (k_lane - sk) + 7", in ints: counted from k_lane, of a bound that has +sk. */
static void print_near(struct text *out, const struct bound *n, int sign, int64_t more)
{
	struct bound rest = *n;
	rest.sk = 0;
	rest.constant = 0;
	print_narrow(out, &rest, sign, 0);
	text_puts(out, " - (k_lane - sk)");
	const int64_t constant = sign * n->constant + more;
	if (constant)
		text_addf(out, constant < 0 ? " - %" PRId64 : " + %" PRId64, constant < 0 ? -constant : constant);
}

static void print_wide(struct text *out, const struct bound *n, int sign, int64_t more)
{
	const struct summand term[] = {
		{sign * n->q, "q", false}, {sign * n->sq, "sq", false}, {sign * n->sk, "sk", false}};
	sum_print(out, term, 3, sign * n->constant + more);
}

/* Are limits of keys never far from sk, which k_lane hardly passes? Then they may be counted from k_lane in 32 bits at once. */
static bool run_is_near(const struct run *r)
{
	enum { NEAR = 1 << 29 };
	for (int i = 0; i < r->count; i++) {
		const struct bound *n = &r->bound[i];
		if (n->k && (n->sk != -n->k || n->constant < -NEAR || n->constant > NEAR))
			return false;
	}
	return run_is_narrow(r);
}

/* Keys that a run lets the row see, counted from k_lane: those before key_end, or key_count of them from key_begin on. */
static void print_run_state(struct text *structure, struct text *code, struct emit *e, int run)
{
	const struct run *r = &e->program->run[run];
	const bool from = run_limits(r, 1), narrow = run_is_narrow(r);
	const char *const kind = narrow ? "int" : "wide";
	char suffix[16];
	run_suffix(suffix, e->program, run);
	text_addf(structure, from ? "\tint key_begin%s;\n\tunsigned key_count%s;\n" : "\tint key_end%s;\n", suffix,
	          suffix);
	text_puts(code, e->program->run_count > 1 ? "\t{\n" : "");
	const bool near = run_is_near(r); /* begin and end are counted from k_lane; else from 0 */
	text_addf(code, "\t%s %send = q < sq ? %s;\n", narrow ? "int" : "long long",
	          !from  ? ""
	          : near ? "begin = -k_lane, "
	                 : "begin = 0, ",
	          near ? "sk - k_lane : -k_lane" : "sk : 0");
	for (int i = 0; i < r->count; i++) {
		const struct bound *n = &r->bound[i];
		if (n->k && !narrow)
			(void)emit_helper(e, n->k > 0 ? HELPER_WIDE_MAX : HELPER_WIDE_MIN, "");
		if (n->k)
			text_addf(code, n->k > 0 ? "\tbegin = %s_max(begin, " : "\tend = %s_min(end, ", kind);
		else
			text_puts(code, "\tif (");
		const int sign = n->k > 0 ? -1 : 1;
		if (n->k && near)
			print_near(code, n, sign, n->k < 0);
		else
			(narrow ? print_narrow : print_wide)(code, n, sign, n->k < 0);
		text_puts(code, n->k ? ");\n" : near ? " < 0)\n\t\tend = -k_lane;\n" : " < 0)\n\t\tend = 0;\n");
	}
	if (!narrow && from)
		text_puts(code, "\tbegin = clamp_position(begin, sk);\n");
	if (!narrow)
		text_puts(code, "\tend = clamp_position(end, sk);\n");
	else if (!near)
		text_puts(code, "\tend = int_max(end, 0);\n");
	const char *const cast = narrow ? "" : "(int)";
	if (from)
		text_addf(code,
		          "\trow.key_begin%s = %sbegin%s;\n"
		          "\trow.key_count%s = (unsigned)int_max(%s(end - begin), 0);\n",
		          suffix, cast, near ? "" : " - k_lane", suffix, cast);
	else
		text_addf(code, "\trow.key_end%s = %send%s;\n", suffix, cast, near ? "" : " - k_lane");
	text_puts(code, e->program->run_count > 1 ? "\t}\n" : "");
}

static bool is_split(const struct program *p) { return p->blocks != BLOCKS_NONE; }

static void print_row_state(struct text *out, struct emit *e)
{
	const struct program *p = e->program;
	struct text structure = {0}, code = {0}, parts = {0};
	for (int run = 0; run < p->run_count; run++)
		print_run_state(&structure, &code, e, run);
	if (staging_has(p, AT_DIAG, AT_DIAG)) {
		text_puts(&structure, "\tint diagonal; // entry of a staged diagonal at k_lane\n");
		text_puts(&code, "\trow.diagonal = q - in->q0 - (k_lane - in->k0) + TILE_N - 1;\n");
	}
	for (int i = 0; i < ACCESS_CELL_PADS; i++) {
		const int pad = access_cell_pads[i];
		if (!staging_has_cells(e, pad))
			continue;
		text_addf(&structure, "\tint cell_%d; // entry of staged cells at k_lane, rows of TILE_N + %d\n", pad, pad);
		text_addf(&code, "\trow.cell_%d = (q - in->q0) * (TILE_N + %d) + (k_lane - in->k0);\n", pad, pad);
	}
	if (is_split(p)) {
		text_puts(&structure, "\tunsigned bits; // of the blocks that the row crosses\n");
		text_puts(&code,
		          "\trow.bits = (unsigned)(in->bits >> (q / BLOCK_Q - in->q0 / BLOCK_Q) * BLOCKS_ACROSS);\n");
	}
	fields_print(&structure, &parts, e, true);
	text_addf(
		out,
		"struct RowState {\n%s};\n\n"
		"DEVICE struct RowState row_state(const struct fagen_abi *p, const struct Inputs *in, int b, int h, int q, "
		"int k_lane)\n{\n\tstruct RowState row;\n",
		text_str(&structure));
	const char *const names = "\tconst int sq = sequence_q(p, b), sk = sequence_k(p, b);\n";
	text_addf(out, "%s%s%s\treturn row;\n}\n\n", names, text_str(&code), text_str(&parts));
	text_free(&structure);
	text_free(&code);
	text_free(&parts);
}

static void print_col_state(struct text *out, struct emit *e)
{
	struct text structure = {0}, code = {0};
	if (is_split(e->program)) {
		text_puts(&structure, "\tint across; // its block, counted from the tile's first\n");
		text_puts(&code, "\tcol.across = (k_lane + offset) / BLOCK_K - in->k0 / BLOCK_K;\n");
	}
	fields_print(&structure, &code, e, false);
	text_addf(
		out,
		"struct ColState {\n\tint offset; // from k_lane\n%s};\n\n"
		"DEVICE struct ColState col_state(const struct fagen_abi *p, const struct Inputs *in, int b, int h, int "
		"k_lane, int offset)\n{\n\tstruct ColState col;\n\tcol.offset = offset;\n%s\treturn col;\n}\n\n",
		text_str(&structure), text_str(&code));
	text_free(&structure);
	text_free(&code);
}

/* ---- mask ---- */

/* All of it, and no branch for what && and || may leave out: in the cell that costs more. */
static void print_mask_keep(struct text *out, struct emit *e)
{
	const struct program *p = e->program;
	const struct value residual = {p->residual, false};
	struct scope x;
	struct text runs = {0};
	char suffix[16];
	text_puts(out, "DEVICE bool mask_keep(" CELL ")\n{\n");
	if (expr_is_const(&p->pool, p->residual, false)) {
		text_puts(out, "\treturn false;\n}\n\n");
		return;
	}
	for (int run = 0; run < p->run_count; run++) {
		run_suffix(suffix, p, run);
		text_addf(&runs,
		          run_limits(&p->run[run], 1) ? "%s((unsigned)(col.offset - row.key_begin%s) < row.key_count%s)"
		                                      : "%s(col.offset < row.key_end%s)",
		          run ? " | " : "", suffix, suffix);
	}
	scope_begin(&x, e, IN_CELL);
	scope_use(&x, residual);
	scope_locals(out, &x);
	text_addf(out, p->run_count > 1 ? "\treturn (%s)" : "\treturn %s", text_str(&runs));
	if (!expr_is_const(&p->pool, p->residual, true)) {
		text_puts(out, " & (");
		scope_print(out, &x, residual);
		text_puts(out, ")");
	}
	text_puts(out, is_split(p) ? " & (!BLOCKS_SPLIT || (row.bits >> col.across & 1));\n}\n\n" : ";\n}\n\n");
	text_free(&runs);
}

static void print_mask_plain(struct text *out, struct emit *e)
{
	const struct program *p = e->program;
	const struct value residual = {p->residual, false};
	struct scope x;
	struct text body = {0}, names = {0};
	bool any = p->run_count > 0;
	scope_begin(&x, e, IN_PLAIN);
	scope_use(&x, residual);
	scope_locals(&body, &x);
	for (int run = 0; run < p->run_count; run++)
		any = any && p->run[run].count > 0;
	text_puts(&body, "\tbool keep = ");
	scope_print(&body, &x, residual);
	text_puts(&body, ";\n");
	if (any && !expr_is_const(&p->pool, p->residual, false)) {
		text_puts(&body, "\tkeep = keep && (");
		for (int run = 0; run < p->run_count; run++) {
			const struct run *r = &p->run[run];
			text_puts(&body, run ? " ||\n\t                (" : "(");
			for (int i = 0; i < r->count; i++) {
				const struct bound *n = &r->bound[i];
				const struct summand term[] = {{n->q, "q", false},
				                               {n->k, "k", false},
				                               {n->sq, "sq", false},
				                               {n->sk, "sk", false}};
				x.name[NAME_SQ] |= n->sq != 0;
				x.name[NAME_SK] |= n->sk != 0;
				text_puts(&body, i ? " && " : "");
				sum_print(&body, term, 4, n->constant);
				text_puts(&body, " >= 0");
			}
			text_puts(&body, ")");
		}
		text_puts(&body, ");\n");
	}
	text_addf(&body, "\treturn keep%s;\n", is_split(p) ? " && block_keep(p, b, h, q / BLOCK_Q, k / BLOCK_K)" : "");
	scope_names(&names, &x);
	text_addf(out, "DEVICE bool mask_plain(" LAUNCH ", int q, int k)\n{\n%s%s}\n\n", text_str(&names),
	          text_str(&body));
	text_free(&body);
	text_free(&names);
}

/* ---- score ---- */

/* The score's constant factor, if positive, is LOGIT_SCALE's; `rest` is what is computed per cell. */
static double score_factor(int *rest, const struct program *p)
{
	const double factor = factor_split(rest, &p->pool, p->score);
	if (factor > 0)
		return factor;
	*rest = p->score;
	return 1;
}

static bool is_s(const struct program *p, int node)
{
	return p->pool.node[node].op == EXPR_NAME && p->pool.node[node].i == NAME_S;
}

double program_logit_scale(const struct spec *spec, const struct program *p)
{
	const double log2_e = 1.4426950408889634;
	int rest;
	const double factor = score_factor(&rest, p);
	return log2_e * factor * (is_s(p, rest) ? spec->softmax_scale : 1);
}

static void print_rest_of_score(struct text *out, struct scope *x, int rest)
{
	if (is_s(x->e->program, rest))
		text_puts(out, "s");
	else
		scope_print(out, x, (struct value){rest, false});
}

/* The body of score_grad or score_plain. */
static void print_scored(struct text *out, struct emit *e, enum emit_place place)
{
	struct scope x;
	struct text body = {0};
	int rest;
	const struct value grad = {e->program->score_ds, false};
	(void)score_factor(&rest, e->program);
	scope_begin(&x, e, place);
	if (!is_s(e->program, rest))
		scope_use(&x, (struct value){rest, false});
	scope_use(&x, grad);
	scope_locals(&body, &x);
	text_puts(&body, "\tconst struct Scored r = {");
	print_rest_of_score(&body, &x, rest);
	text_puts(&body, ", ");
	scope_print(&body, &x, grad);
	text_puts(&body, "};\n\treturn r;\n");
	if (place != IN_CELL)
		scope_names(out, &x);
	text_addf(out, "%s}\n\n", text_str(&body));
	text_free(&body);
}

static void print_score(struct text *out, struct emit *e)
{
	struct scope x;
	int rest;
	(void)score_factor(&rest, e->program);
	text_puts(out, "DEVICE float score(float s, " CELL ")\n{\n");
	scope_begin(&x, e, IN_CELL);
	if (!is_s(e->program, rest))
		scope_use(&x, (struct value){rest, false});
	scope_locals(out, &x);
	text_puts(out, "\treturn ");
	print_rest_of_score(out, &x, rest);
	text_puts(out, ";\n}\n\nDEVICE struct Scored score_grad(float s, " CELL ")\n{\n");
	print_scored(out, e, IN_CELL);
	text_puts(out, "DEVICE struct Scored score_plain(" LAUNCH ", int q, int k, float s)\n{\n");
	print_scored(out, e, IN_PLAIN);
}

static void print_input_grad(struct text *out, struct emit *e)
{
	int count = 0;
	for (int a = 0; a < e->program->access_count; a++) {
		const struct value grad = {e->program->access[a].grad, false};
		struct scope x;
		if (grad.node < 0)
			continue;
		scope_begin(&x, e, IN_CELL);
		scope_use(&x, grad);
		text_addf(out, "DEVICE float input_grad_%d(float s, " CELL ")\n{\n", count++);
		scope_locals(out, &x);
		text_puts(out, "\treturn ");
		scope_print(out, &x, grad);
		text_puts(out, ";\n}\n\n");
	}
	text_puts(out, "DEVICE float input_grad(int access, float s, " CELL ")\n{\n");
	for (int i = 0; i < count; i++)
		text_addf(out, "\tif (access == %d)\n\t\treturn input_grad_%d(s, row, col, in);\n", i, i);
	text_puts(out, "\treturn 0;\n}\n\n");
}

static void print_sink(struct text *out, struct emit *e)
{
	const struct value sink = {e->program->sink, false};
	struct scope x;
	text_puts(out, "DEVICE float sink_logit(const struct Inputs *in) { return ");
	scope_begin(&x, e, IN_ROW); /* of no row: it depends on the head alone */
	if (sink.node >= 0)
		scope_print(out, &x, sink);
	text_addf(out, "%s; }\n\nDEVICE float sink_plain(" LAUNCH ") { return ", sink.node < 0 ? "0" : "");
	if (sink.node >= 0) {
		const int access = e->access[sink.node];
		if (access >= 0)
			text_addf(out, "element_%d(p, b, h, 0, 0)", e->number[sink.node]);
	}
	text_addf(out, "%s; }\n", sink.node < 0 ? "0" : "");
}

/* Roots whose parts move to the states. */
static int roots_of_cells(int root[ACCESSES_MAX + 3], const struct program *p)
{
	int count = 0, rest;
	root[count++] = p->residual;
	(void)score_factor(&rest, p);
	root[count++] = rest;
	root[count++] = p->score_ds;
	for (int a = 0; a < p->access_count; a++)
		if (p->access[a].grad >= 0)
			root[count++] = p->access[a].grad;
	return count;
}

void source_program(struct text *out, const struct spec *spec, const struct program *p)
{
	struct emit e;
	struct text body = {0};
	int root[ACCESSES_MAX + 3];
	emit_begin(&e, spec, p);
	fields_find(&e, root, roots_of_cells(root, p));
	ranges_print(&body, &e);
	accesses_print(&body, &e);
	class_print(&body, &e);
	blocks_print(&body, &e);
	staging_print(&body, &e);
	print_row_state(&body, &e);
	print_col_state(&body, &e);
	print_mask_keep(&body, &e);
	print_score(&body, &e);
	print_input_grad(&body, &e);
	print_sink(&body, &e);
	short_print(&body, spec, p);
	lift_print(&body, spec, p);
	bounds_print(&body, &e);
	print_mask_plain(&body, &e);
	grads_print(&body, &e);
	helpers_print(out, e.helper);
	text_puts(out, "\n");
	text_add(out, body.data, body.len);
	text_free(&body);
}
