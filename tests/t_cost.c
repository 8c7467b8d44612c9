/* A preset costs in the inner loop what hand-written code costs: instructions of the cubins whose states, mask and score
 * were emitted, beside cubins where the same was written by hand. Run from the root of the repository. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/runtime.h"
#include "tests/cubin_text.h"

Suite *suite(void);

#define CELL "struct RowState row, struct ColState col, const struct Inputs *in"
#define ROW \
	"DEVICE struct RowState row_state(const struct fagen_abi *p, const struct Inputs *in, int b, int h, int q, int k_lane)\n"
#define COL                                                                                                               \
	"struct ColState { int offset; };\n"                                                                              \
	"DEVICE struct ColState col_state(const struct fagen_abi *p, const struct Inputs *in, int b, int h, int k_lane, " \
	"int offset)\n{\n\tstruct ColState col = {offset};\n\treturn col;\n}\n"
#define PLAIN_SCORE                                                                                          \
	"DEVICE float score(float s, " CELL ") { return s; }\n"                                              \
	"DEVICE struct Scored score_grad(float s, " CELL ") { struct Scored r = {s, 1}; return r; }\n"       \
	"DEVICE struct Scored score_plain(const struct fagen_abi *p, int b, int h, int q, int k, float s)\n" \
	"{ struct Scored r = {s, 1}; return r; }\n"

/* From struct RowState to score_plain. */
static const struct {
	const char *name, *spec, *by_hand;
} presets[] = {
	{"causal", "mask: causal",
         "struct RowState { int seen; };\n" /* keys from k_lane on */
         ROW "{\n"
         "\tstruct RowState row = {q < p->seqlen_q ? int_min(q - p->seqlen_q + 1, 0) + p->seqlen_k - k_lane : -k_lane};\n"
         "\treturn row;\n}\n" COL "DEVICE bool mask_keep(" CELL ") { return col.offset < row.seen; }\n" PLAIN_SCORE},
	{"window", "mask: {window: {left: 255, right: 0}}",
         "struct RowState { int first; unsigned seen; };\n" ROW "{\n"
         "\tconst int at = q - p->seqlen_q + p->seqlen_k;\n"
         "\tconst int begin = int_max(at - 255, 0), end = q < p->seqlen_q ? int_min(at + 1, p->seqlen_k) : 0;\n"
         "\tstruct RowState row = {begin - k_lane, (unsigned)int_max(end - begin, 0)};\n"
         "\treturn row;\n}\n" COL "DEVICE bool mask_keep(" CELL
         ") { return (unsigned)(col.offset - row.first) < row.seen; }\n" PLAIN_SCORE},
	{"alibi", "mask: causal\nscore: alibi",
         "struct RowState { int seen; float slope, distance; };\n" ROW "{\n"
         "\tconst int distance = q - p->seqlen_q - (k_lane - p->seqlen_k);\n"
         "\tstruct RowState row = {q < p->seqlen_q ? int_min(distance + 1, p->seqlen_k - k_lane) : -k_lane,\n"
         "\t                       in->head->slope_0, (float)distance};\n"
         "\treturn row;\n}\n" COL "DEVICE bool mask_keep(" CELL ") { return col.offset < row.seen; }\n"
         "DEVICE float score(float s, " CELL ")\n"
         "{ return s * SOFTMAX_SCALE - row.slope * fabsf(row.distance - (float)col.offset); }\n"
         "DEVICE struct Scored score_grad(float s, " CELL
         ") { struct Scored r = {score(s, row, col, in), 1}; return r; }\n"
         "DEVICE struct Scored score_plain(const struct fagen_abi *p, int b, int h, int q, int k, float s)\n"
         "{ struct Scored r = {s, 1}; return r; }\n"},
	{"softcap", "mask: causal\nscore: {softcap: {cap: 20}}",
         "struct RowState { int seen; };\n" ROW "{\n"
         "\tstruct RowState row = {q < p->seqlen_q ? int_min(q - p->seqlen_q + 1, 0) + p->seqlen_k - k_lane : -k_lane};\n"
         "\treturn row;\n}\n" COL "DEVICE bool mask_keep(" CELL ") { return col.offset < row.seen; }\n"
         "DEVICE float score(float s, " CELL ") { return float_tanh(s * (SOFTMAX_SCALE / 20)); }\n"
         "DEVICE struct Scored score_grad(float s, " CELL ")\n"
         "{ const float t = float_tanh(s * (SOFTMAX_SCALE / 20)); struct Scored r = {t, 1 - t * t}; return r; }\n"
         "DEVICE struct Scored score_plain(const struct fagen_abi *p, int b, int h, int q, int k, float s)\n"
         "{ struct Scored r = {s, 1}; return r; }\n"},
};

/* Instructions of a kernel, without what pads it. */
static int instructions(const struct cubin *cubin, const char *entry)
{
	enum { NOP = 0x918 };
	const struct cubin_text text = cubin_text(cubin, entry);
	int count = text.count;
	while (count > 0 && (instruction_at(text, count - 1) & OPCODE) == NOP)
		count--;
	return count;
}

static fagen_runtime *rt;

static void open_all(void)
{
	char dir[4096];
	ck_assert_ptr_nonnull(getcwd(dir, sizeof dir - 32));
	strcat(dir, "/build/cache");
	const fagen_config config = {.struct_size = sizeof config, .cache_dir = dir};
	fagen_error error = {.struct_size = sizeof error};
	ck_assert_msg(fagen_open(&rt, &config, &error) == FAGEN_OK, "%s", error.message);
}

static void close_all(void) { fagen_close(rt); }

static int compile_count(const struct text *source, const struct target *target, const struct plan *plan)
{
	struct diag diag = {0};
	struct cubin cubin = {0};
	const int got =
		cubin_get(&cubin, runtime_store(rt), runtime_compiler(rt), source, target, &plan->recipe, &diag);
	ck_assert_msg(got == 0, "%s", text_str(&diag.text));
	ck_assert_int_eq(cubin.spill_bytes, 0);
	const int count = instructions(&cubin, plan->pass == PASS_FORWARD ? "fagen_forward" : "fagen_backward");
	cubin_free(&cubin);
	diag_free(&diag);
	return count;
}

/* The source with the text between two places replaced. */
static void text_splice(struct text *out, const struct text *source, const char *from, const char *to, const char *by)
{
	const char *all = text_str(source), *begin = strstr(all, from), *end = begin ? strstr(begin, to) : NULL;
	ck_assert_ptr_nonnull(end);
	text_add(out, all, (size_t)(begin - all));
	text_puts(out, by);
	text_puts(out, end);
}

START_TEST(as_by_hand)
{
	const int preset = _i / PASS_COUNT, pass = _i % PASS_COUNT;
	const struct target *target = target_find("sm_90a");
	struct diag diag = {0};
	struct spec *spec = malloc(sizeof *spec);
	struct program *program = malloc(sizeof *program);
	struct plan *plan = malloc(sizeof *plan);
	struct text yaml = {0}, emitted = {0}, by_hand = {0};
	text_addf(&yaml, "head_dim: 64\npasses: [forward, backward]\n%s\n", presets[preset].spec);
	ck_assert_msg(spec_parse(spec, text_str(&yaml), yaml.len, "inline", &diag) == 0 &&
	                      program_lower(program, spec, &diag) == 0 &&
	                      plan_make(plan, spec, program, target, device_for_target(target), &spec->assume,
	                                (enum pass)pass, &diag) == 0 &&
	                      source_emit(&emitted, spec, program, plan, NULL, &diag) == 0,
	              "%s", text_str(&diag.text));
	text_splice(&by_hand, &emitted, "struct RowState {", "DEVICE float input_grad(", presets[preset].by_hand);
	const int got = compile_count(&emitted, target, plan), want = compile_count(&by_hand, target, plan);
	ck_assert_msg(100 * got <= 102 * want, "%s %s: %d instructions, by hand %d", presets[preset].name,
	              pass_names[pass], got, want);
	if (getenv("COST_PRINT"))
		fprintf(stderr, "%-8s %-8s %5d by hand %5d\n", presets[preset].name, pass_names[pass], got, want);
	text_free(&yaml);
	text_free(&emitted);
	text_free(&by_hand);
	diag_free(&diag);
	free(plan);
	free(program);
	free(spec);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("cost");
	TCase *t = tcase_create("instructions");
	tcase_add_checked_fixture(t, open_all, close_all);
	tcase_set_timeout(t, 300);
	tcase_add_loop_test(t, as_by_hand, 0, PASS_COUNT * (int)(sizeof presets / sizeof *presets));
	suite_add_tcase(s, t);
	return s;
}
