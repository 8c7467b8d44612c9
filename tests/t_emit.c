/* The emitted source: deterministic, canonical, complete, and free of what must not be a cache key. Run from the root of
 * the repository. */
#include <check.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gen/embed.h"

Suite *suite(void);

/* The spec of a YAML text, read before those of `more`. */
static void spec_of(struct spec *s, const char *yaml)
{
	struct diag diag = {0};
	ck_assert_msg(spec_parse(s, yaml, strlen(yaml), "inline", &diag) == 0, "%s: %s", yaml, text_str(&diag.text));
	diag_free(&diag);
}

static void spec_fill(struct spec *s, const char *name)
{
	spec_of(s, "{head_dim: 64, dtype: bf16, softmax_scale: 0.125, kv_group: 1, outputs: [out, lse], mask: none}");
	snprintf(s->name, sizeof s->name, "%s", name);
}

static void spec_mask(struct spec *s, const char *mask)
{
	char yaml[1024];
	snprintf(yaml, sizeof yaml,
	         "{head_dim: 64, dtype: bf16, softmax_scale: 0.125, kv_group: 1, outputs: [out, lse], mask: %s}", mask);
	spec_of(s, yaml);
}

/* A plan as the planner leaves it, with a chosen tile that is not the first. */
static struct plan *plan_fill(void)
{
	struct plan *p = calloc(1, sizeof *p);
	p->pass = PASS_FORWARD;
	p->target = target_find("sm_90a");
	p->device = device_for_target(p->target);
	p->problem = (struct problem){4, 16, 16, 4096, 4096, 16};
	strcpy(p->templ, "sm80/fwd");
	p->candidate_count = 2;
	p->chosen = 1;
	p->candidate[1] = (struct candidate){.tile_m = 128, .tile_n = 64, .warps = 4, .stages = 2, .splits = 5, .heads = 3, .ctas_wanted = 1, .walk_warps = 4,
	                                      .smem_bytes = 49152};
	p->recipe.kernel_count = 1;
	p->recipe.kernel[0] = (struct recipe_kernel){.entry = "fagen_forward", .grid = GRID_QUERY_TILES, .tile = 128, .threads = 128, .smem_bytes = 49152};
	p->recipe.load_bytes = 16;
	p->recipe.kv_group = 1;
	return p;
}

/* The source of a spec; the caller frees it. */
static struct text emit_plan(const struct spec *s, const struct plan *plan)
{
	struct program program;
	struct text out = {0};
	struct diag diag = {0};
	ck_assert_int_eq(program_lower(&program, s, &diag), 0);
	ck_assert_msg(source_emit(&out, s, &program, plan, NULL, &diag) == 0, "%s", text_str(&diag.text));
	ck_assert_str_eq(text_str(&diag.text), "");
	return out;
}

static struct text emit(const struct spec *s)
{
	struct plan *plan = plan_fill();
	struct text out = emit_plan(s, plan);
	free(plan);
	return out;
}

static bool same_source(const struct spec *a, const struct spec *b)
{
	struct text x = emit(a), y = emit(b);
	const bool same = x.len == y.len && memcmp(x.data, y.data, x.len) == 0;
	text_free(&x);
	text_free(&y);
	return same;
}

/* Masks that say the same, spelled differently: one source, so one cubin. Then some that do not. */
static const struct {
	const char *a, *b;
	bool same;
} spellings[] = {
	{"causal", "{window: {right: 0}}", true},
	{"causal", "\"window(1073741824, 0)\"", true},
	{"causal", "\"q - sq >= k - sk\"", true},
	{"causal", "{any: [causal, \"k < 0\"]}", true},
	{"none", "\"window(1073741824, 1073741824)\"", true},
	{"none", "\"k >= 0 || q > 7\"", true},
	{"{all: [causal, {window: {left: 100}}]}", "{window: {left: 100, right: 0}}", true},
	{"{all: [{window: {left: 100, right: 0}}, {window: {left: 4000, right: 17}}, causal]}",
         "{window: {left: 100, right: 0}}", true},
	{"\"k <= q && q - k < 300 || k < 16\"", "\"16 > k || q - k <= 299 && q >= k\"", true},
	{"\"abs(q - k) <= 4\"", "\"q - k <= 4 && k - q <= 4\"", true},
	{"\"doc[b, k] == doc[b, q - sq + sk]\"", "document", true},
	{"\"k < q && k > q\"", "\"k < -1\"", true}, /* both hide everything */
	{"causal", "causal_top_left", false},
	{"causal", "{window: {left: 4096, right: 0}}", false},
	{"causal", "{window: {right: 1}}", false},
	{"{window: {left: 5, right: 3}}", "{window: {left: 3, right: 5}}", false},
	{"none", "causal", false},
	{"\"k <= q || k < 16\"", "\"k <= q || k < 17\"", false},
};

START_TEST(canonical_masks)
{
	struct spec a, b;
	const char *const doc = "doc: {dtype: i32, shape: [batch, seq_k]}";
	char x[512], y[512];
	snprintf(x, sizeof x, "%s%s%s%s", spellings[_i].a, strstr(spellings[_i].a, "doc[") ? ", inputs: {" : "",
	         strstr(spellings[_i].a, "doc[") ? doc : "", strstr(spellings[_i].a, "doc[") ? "}" : "");
	snprintf(y, sizeof y, "%s", spellings[_i].b);
	spec_mask(&a, x);
	spec_mask(&b, y);
	ck_assert_int_eq(same_source(&a, &b), spellings[_i].same);
}
END_TEST

/* Two runs, two buffers with different pasts: the same bytes. */
START_TEST(deterministic)
{
	struct spec *a = malloc(sizeof *a);
	memset(a, 0xa5, sizeof *a);
	spec_fill(a, "x");
	spec_mask(a, "{window: {left: 31, right: 2}}");
	struct text first = emit(a);
	for (int i = 0; i < 3; i++) {
		struct text again = emit(a);
		ck_assert_str_eq(text_str(&first), text_str(&again));
		text_free(&again);
	}
	text_free(&first);
	free(a);
}
END_TEST

/* What a kernel does not depend on is not in its source: else equal kernels are compiled twice. */
START_TEST(not_in_the_source)
{
	struct spec a, b;
	char root[4096];
	spec_fill(&a, "a_name_of_its_own");
	spec_fill(&b, "another");
	b.assume = (struct problem){1, 2, 3, 4, 5, 2};
	b.dropout = 1e-9;
	b.targets[0] = true;
	b.place[0] = (struct place){7, 7};
	ck_assert(same_source(&a, &b));
	struct plan *plan = plan_fill();
	struct text x = emit_plan(&a, plan);
	plan->problem.seqlen_q = 77;
	plan->device = NULL;
	plan->candidate[0].tile_m = 999;
	plan->candidate[1].time_us = 3.5;
	struct text y = emit_plan(&a, plan);
	ck_assert_str_eq(text_str(&x), text_str(&y));
	ck_assert_ptr_null(strstr(text_str(&x), "a_name_of_its_own"));
	ck_assert_ptr_nonnull(getcwd(root, sizeof root));
	ck_assert_ptr_null(strstr(text_str(&x), root));
	const char *year = strstr(text_str(&x), "202"), *templates = strstr(text_str(&x), "#line");
	ck_assert_msg(!year || year > templates, "there is a date in the source");
	text_free(&x);
	text_free(&y);
	free(plan);
}
END_TEST

/* Every choice that changes a kernel changes its source. */
START_TEST(in_the_source)
{
	struct spec base, s;
	spec_fill(&base, "base");
	spec_fill(&s, "base");
	s.dtype = DTYPE_FP16;
	ck_assert(!same_source(&base, &s));
	spec_fill(&s, "base");
	s.head_dim_v = 72;
	ck_assert(!same_source(&base, &s));
	spec_fill(&s, "base");
	s.keep_256 = 230;
	ck_assert(!same_source(&base, &s));
	spec_fill(&s, "base");
	s.softmax_scale = 0.1250001;
	ck_assert(!same_source(&base, &s));
	spec_fill(&s, "base");
	s.kv_group = 3;
	ck_assert(!same_source(&base, &s));
	spec_fill(&s, "base");
	s.outputs = OUTPUT_OUT;
	ck_assert(!same_source(&base, &s));
}
END_TEST

/* The prologue has the constants of the contract, all of them, in its order, and the value that was decided. */
START_TEST(prologue)
{
	static const char *const values[] = {
		"int HEAD_DIM_QK = 64;",
		"int HEAD_DIM_V = 72;",
		"int TILE_M = 128;",
		"int TILE_N = 64;",
		"int WARPS = 4;",
		"int THREADS = 128;",
		"int WALK_WARPS = 4;",
		"int STAGES = 2;",
		"int LOAD_BYTES = 16;",
		"int KV_GROUP = 3;",
		"int KEEP_256 = 230;",
		"float SOFTMAX_SCALE = 0.1f;",
		"float LOGIT_SCALE = 1.442695f;",
		"bool SPECULATE = false;",
		"bool ALIKE = false;",
		"bool QUEUE = false;",
		"int ORDER = 0;",
		"int SPLITS = 5;",
		"bool CUT = false;",
		"int CTAS_SM = 1;",
		"int TILE_HEADS = 3;",
		"bool OUT_STAGED = false;",
		"bool OUT_WHOLE = false;",
		"bool WRITE_LSE = true;",
		"int RED_WIDTH = 4;",
		"int SMEM_BYTES = 49152;",
		"int RUNS = 2;",
		"int SCAN = 1;",
		"int BLOCK_Q = 64;",
		"int BLOCK_K = 32;",
		"int SINK = 1;",
		"int SCORE_IDENTITY = 0;",
		"int SCORE_SHORT = 0;",
		"float SHORT_LOGIT = 0.0f;",
		"int SCORE_LIFT = 0;",
		"int HEAD_INPUTS = 1;",
		"int ROW_INPUTS = 1;",
		"int COL_INPUTS = 1;",
		"int CELL_INPUTS = 1;",
		"int BOUNDS_ROWS = 1;",
		"int BOUNDS_COLS = 1;",
		"int LAYOUT = 1;",
		"int SUMS = 0;", /* forward, whatever the spec says */
		"using Element = Fp16;",
	};
	struct spec s;
	spec_of(&s,
	        "head_dim: {qk: 64, v: 72}\ndtype: fp16\nlayout: padded\noutputs: [out, lse]\nkv_group: 3\nsoftmax_scale: 0.1\nsink: true\n"
	        "mask: {all: [document, \"k <= q || k < 16\"]}\nscore: bias\nblocks: {size: {q: 64, k: 32}, keep: {local: {left: 1}}}\n");
	s.keep_256 = 230;
	s.deterministic = true;
	struct text out = emit(&s);
	const char *at = strstr(text_str(&out), "#define DEVICE");
	ck_assert_ptr_nonnull(at);
	for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
		const char *found = strstr(at, values[i]);
		ck_assert_msg(found != NULL, "%s is missing or out of order", values[i]);
		at = found;
	}
	/* The first column of the contract's table has the same names in the same order; THREADS stands with WARPS. */
	FILE *file = fopen("templates/README.md", "r");
	ck_assert_ptr_nonnull(file);
	char line[512];
	at = strstr(text_str(&out), "#define DEVICE");
	int names = 0;
	while (fgets(line, sizeof line, file)) {
		if (strncmp(line, "| `", 3) != 0)
			continue;
		char *column = line + 2;
		column[strcspn(column, "|")] = 0;
		for (char *name = strtok(column, "` ,\n"); name; name = strtok(NULL, "` ,\n")) {
			char wanted[64];
			snprintf(wanted, sizeof wanted, " %s = ", name);
			at = strstr(at, wanted);
			ck_assert_msg(at != NULL, "%s is missing or out of order", name);
			names++;
		}
	}
	fclose(file);
	ck_assert_int_eq(names, (int)(sizeof values / sizeof *values) - 1);
	text_free(&out);
}
END_TEST

/* Parts in the contract's order, each under its own #line, and the recipe as the store will hold it. */
START_TEST(parts)
{
	static const char *const order[] = {"//   mask ",
	                                    "//   recipe ",
	                                    "//   kernel fagen_forward ",
	                                    "#define DEVICE",
	                                    "#line 1 \"templates/abi.h\"",
	                                    "#line 1 \"templates/contract.h\"",
	                                    "#line 1 \"program\"",
	                                    "struct Range key_range(",
	                                    "bool mask_keep(",
	                                    "#line 1 \"templates/ptx.h\"",
	                                    "#line 1 \"templates/tile.h\"",
	                                    "#line 1 \"templates/dropout.h\"",
	                                    "#line 1 \"templates/sequence.h\"",
	                                    "#line 1 \"templates/stream.h\"",
	                                    "#line 1 \"templates/inputs.h\"",
	                                    "#line 1 \"templates/walk.h\"",
	                                    "#line 1 \"templates/sm80/fwd.cu\"",
	                                    "extern \"C\" __global__"};
	struct spec s;
	spec_fill(&s, "p");
	struct text out = emit(&s);
	const char *at = text_str(&out);
	for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
		const char *found = strstr(at, order[i]);
		ck_assert_msg(found != NULL, "%s is missing or out of order", order[i]);
		at = found + 1;
	}
	ck_assert_ptr_null(strstr(text_str(&out), "#include"));
	ck_assert_ptr_null(strstr(text_str(&out), "#line 1 \"templates/blocks.cu"));
	ck_assert_ptr_null(strstr(text_str(&out), "#line 1 \"templates/bounds.cu"));
	ck_assert_ptr_null(strstr(text_str(&out), "#line 1 \"templates/sm80/input_grad.cu"));
	ck_assert_ptr_null(strstr(text_str(&out), "templates/sm90/"));
	ck_assert_ptr_null(strstr(text_str(&out), "wgmma"));
	text_free(&out);
}
END_TEST

/* Kernels of the recipe bring the template that has them. */
START_TEST(more_parts)
{
	static const struct {
		const char *entry, *part;
	} rows[] = {{"fagen_blocks", "blocks.cu"},
	            {"fagen_bounds", "bounds.cu"},
	            {"fagen_input_grad", "sm80/input_grad.cu"},
	            {"fagen_forward_merge", "sm90/fwd_merge.cu"},
	            {"fagen_backward_merge", "sm90/bwd_merge.cu"}};
	struct spec s;
	char line[64];
	spec_fill(&s, "p");
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct plan *plan = plan_fill();
		plan->recipe.kernel_count = 2;
		snprintf(plan->recipe.kernel[1].entry, RECIPE_NAME_MAX, "%s", rows[i].entry);
		struct text out = emit_plan(&s, plan);
		snprintf(line, sizeof line, "#line 1 \"templates/%s\"\n", rows[i].part);
		ck_assert_ptr_nonnull(strstr(text_str(&out), line));
		ck_assert_ptr_null(strstr(strstr(text_str(&out), line) + 1, line));
		text_free(&out);
		free(plan);
	}
}
END_TEST

/* What a score costs is seen in its text: constants are gathered, parts that a row or a column alone decides are not in the
 * cell, and nothing there turns an int into a float or reads memory but what is staged. */
START_TEST(scores)
{
	static const struct {
		const char *score, *inputs, *text;
		double logit_scale;
	} rows[] = {
		{"none", "", "return s;", 0.125},
		{"\"2 * s\"", "", "return s;", 0.25},
		{"\"-s\"", "", "return -0.125f * s;", 1},
		{"\"s / 4 * 8 - 1\"", "", "return 0.25f * s - 1.0f;", 1},
		{"{softcap: {cap: 20}}", "", "return float_tanh(0.00625f * s);", 20},
		{"alibi", "", "return SOFTMAX_SCALE * s - row.r0 * fabsf(row.r1 - (float)col.offset);", 1},
		{"bias", "", "return SOFTMAX_SCALE * s + in->cells->bias_0[row.cell_8 + col.offset];", 1},
		{"\"s + x[q - k]\"", "x: {dtype: f32, shape: [9]}",
	         "return SOFTMAX_SCALE * s + in->cells->x_0[row.diagonal - col.offset];", 1},
		{"\"s * x[h, q] + exp(x[h, k])\"", "x: {dtype: f32, shape: [heads, 99]}",
	         "return SOFTMAX_SCALE * s * row.r0 + col.c0;", 1},
		{"\"s + (q - 3 * k)\"", "", "return SOFTMAX_SCALE * s + (row.r0 - 3.0f * (float)col.offset);", 1},
		{"\"k * 2 < q + 5 ? s : 0.5 * s\"", "",
	         "return row.r0 > 2 * col.offset ? SOFTMAX_SCALE * s : 0.0625f * s;", 1},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		char yaml[512];
		struct spec s;
		snprintf(yaml, sizeof yaml, "{head_dim: 64, softmax_scale: 0.125, score: %s%s%s%s}", rows[i].score,
		         *rows[i].inputs ? ", inputs: {" : "", rows[i].inputs, *rows[i].inputs ? "}" : "");
		spec_of(&s, yaml);
		struct text out = emit(&s);
		const char *at = strstr(text_str(&out), "DEVICE float score(");
		ck_assert_ptr_nonnull(at);
		at = strstr(at, "\treturn") + 1;
		ck_assert_msg(strncmp(at, rows[i].text, strlen(rows[i].text)) == 0, "%s: %.120s", rows[i].score, at);
		at = strstr(text_str(&out), "float LOGIT_SCALE = ") + 20;
		ck_assert_msg(fabs(strtod(at, NULL) / (rows[i].logit_scale * 1.4426950408889634) - 1) < 1e-6,
		              "%s: %.20s", rows[i].score, at);
		text_free(&out);
	}
}
END_TEST

/* Shortest decimals that read back as the same float. */
START_TEST(scales)
{
	static const struct {
		double scale;
		const char *text;
	} rows[] = {
		{1, "= 1.0f;"},       {0.125, "= 0.125f;"},
		{1e-20, "= 1e-20f;"}, {0.08838834764831845, "= 0.088388346f;"},
		{3e10, "= 3e+10f;"},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct spec s;
		spec_fill(&s, "p");
		s.softmax_scale = rows[i].scale;
		struct text out = emit(&s);
		const char *at = strstr(text_str(&out), "float SOFTMAX_SCALE ");
		ck_assert_ptr_nonnull(at);
		at += strlen("float SOFTMAX_SCALE ");
		ck_assert_msg(strncmp(at, rows[i].text, strlen(rows[i].text)) == 0, "%.40s", at);
		ck_assert(strtof(at + 2, NULL) == (float)rows[i].scale);
		text_free(&out);
	}
}
END_TEST

/* ---- templates ---- */

static int embedded_files;

static int is_embedded(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	const char *suffix = strrchr(path, '.');
	if (kind != FTW_F || !suffix || (strcmp(suffix, ".h") && strcmp(suffix, ".cu")))
		return 0;
	size_t len;
	const char *bytes = embed_find(&len, path + strlen("templates/"));
	ck_assert_msg(bytes != NULL, "%s is not embedded", path);
	char *file = malloc((size_t)st->st_size + 1);
	FILE *in = fopen(path, "rb");
	ck_assert_ptr_nonnull(in);
	ck_assert_uint_eq(fread(file, 1, (size_t)st->st_size, in), (size_t)st->st_size);
	fclose(in);
	ck_assert_msg(len == (size_t)st->st_size && memcmp(file, bytes, len) == 0, "%s differs from what is embedded",
	              path);
	ck_assert_int_eq(bytes[len], 0);
	free(file);
	embedded_files++;
	return 0;
}

START_TEST(embedded)
{
	size_t len;
	ck_assert_int_eq(nftw("templates", is_embedded, 8, FTW_PHYS), 0);
	ck_assert_int_ge(embedded_files, 6);
	ck_assert_ptr_null(embed_find(&len, "abi"));
	ck_assert_ptr_null(embed_find(&len, ""));
	ck_assert_ptr_null(embed_find(&len, "../gen/gen.h"));
}
END_TEST

START_TEST(folder_instead)
{
	char dir[] = "/tmp/fagen-test-XXXXXX", path[64];
	struct spec s;
	struct program program;
	struct plan *plan = plan_fill();
	struct text out = {0}, inside = {0};
	struct diag diag = {0};
	spec_fill(&s, "p");
	ck_assert_int_eq(program_lower(&program, &s, &diag), 0);
	ck_assert_int_eq(source_emit(&inside, &s, &program, plan, NULL, &diag), 0);
	ck_assert_int_eq(source_emit(&out, &s, &program, plan, "templates", &diag), 0);
	ck_assert_str_eq(text_str(&out), text_str(&inside));
	ck_assert_ptr_nonnull(mkdtemp(dir));
	const size_t before = out.len;
	ck_assert_int_eq(source_emit(&out, &s, &program, plan, dir, &diag), -1);
	ck_assert_ptr_nonnull(strstr(text_str(&diag.text), dir));
	ck_assert_ptr_nonnull(strstr(text_str(&diag.text), "No such file"));
	ck_assert_uint_eq(out.len, before); /* a failure leaves the output alone */
	snprintf(path, sizeof path, "%s/abi.h", dir);
	fclose(fopen(path, "w"));
	diag_free(&diag);
	diag = (struct diag){0};
	ck_assert_int_eq(source_emit(&out, &s, &program, plan, dir, &diag), -1);
	ck_assert_ptr_nonnull(strstr(text_str(&diag.text), "is empty"));
	unlink(path);
	rmdir(dir);
	diag_free(&diag);
	diag = (struct diag){0};
	strcpy(plan->templ, "sm99/fwd");
	ck_assert_int_eq(source_emit(&out, &s, &program, plan, NULL, &diag), -1);
	ck_assert_ptr_nonnull(strstr(text_str(&diag.text), "no template templates/sm99/fwd.cu"));
	diag_free(&diag);
	text_free(&out);
	text_free(&inside);
	free(plan);
}
END_TEST

/* A mask reaches planner, emitter and templates as a program, never by its name. */
static int names_no_mask(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	if (kind != FTW_F)
		return 0;
	char *file = calloc(1, (size_t)st->st_size + 1);
	FILE *in = fopen(path, "rb");
	ck_assert_ptr_nonnull(in);
	ck_assert_uint_eq(fread(file, 1, (size_t)st->st_size, in), (size_t)st->st_size);
	fclose(in);
	ck_assert_msg(strlen(file) == (size_t)st->st_size, "%s holds a zero byte", path);
	ck_assert_msg(!strstr(file, "causal") && !strstr(file, "window") && !strstr(file, "alibi"), "%s names a mask",
	              path);
	free(file);
	return 0;
}

START_TEST(no_names)
{
	ck_assert_int_eq(nftw("templates", names_no_mask, 8, FTW_PHYS), 0);
	ck_assert_int_eq(nftw("gen/plan.c", names_no_mask, 8, FTW_PHYS), 0);
	ck_assert_int_eq(nftw("gen/emit.c", names_no_mask, 8, FTW_PHYS), 0);
	ck_assert_int_eq(nftw("gen/emit_program.c", names_no_mask, 8, FTW_PHYS), 0);
	ck_assert_int_eq(nftw("gen/emit_expr.c", names_no_mask, 8, FTW_PHYS), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("emit");
	TCase *t = tcase_create("emit");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, canonical_masks, 0, sizeof spellings / sizeof *spellings);
	tcase_add_test(t, deterministic);
	tcase_add_test(t, not_in_the_source);
	tcase_add_test(t, in_the_source);
	tcase_add_test(t, prologue);
	tcase_add_test(t, parts);
	tcase_add_test(t, more_parts);
	tcase_add_test(t, scores);
	tcase_add_test(t, scales);
	tcase_add_test(t, embedded);
	tcase_add_test(t, folder_instead);
	tcase_add_test(t, no_names);
	suite_add_tcase(s, t);
	return s;
}
