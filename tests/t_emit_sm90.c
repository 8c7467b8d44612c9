/* What the source of a native Hopper kernel has beside that of a portable one: warpgroup products written for its shapes,
 * sm90/ptx.h, and the constants of its walk and its queue. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/emit.h"
#include "tests/spec_help.h"

Suite *suite(void);

static const struct {
	int n, v;
	const char *dtype, *type;
} shapes[] = {{16, 16, "bf16", "bf16"},   {64, 72, "bf16", "bf16"},   {80, 128, "fp16", "f16"},
              {128, 96, "fp16", "f16"},   {176, 128, "bf16", "bf16"}, {192, 192, "bf16", "bf16"},
              {256, 256, "fp16", "f16"},  {32, 16, "fp16", "f16"}};

/* The text of one function: from its name to the line that closes it. */
static char *function_of(const struct text *source, const char *name)
{
	char begin[64];
	snprintf(begin, sizeof begin, "DEVICE void %s(", name);
	const char *at = strstr(text_str(source), begin);
	ck_assert_msg(at != NULL, "%s is missing", name);
	ck_assert_ptr_null(strstr(at + 1, begin)); /* once */
	const char *end = strstr(at, "\n}\n");
	ck_assert_ptr_nonnull(end);
	return strndup(at, (size_t)(end - at));
}

/* A string literal after another is one: what the assembler will read. */
static char *literals_join(const char *code)
{
	char *out = calloc(1, strlen(code) + 1);
	size_t len = 0;
	for (const char *p = strchr(code, '"'); p && *p == '"';) {
		for (p++; *p != '"'; p++)
			if (p[0] == '\\' && (p[1] == 'n' || p[1] == 't')) {
				out[len++] = ' ';
				p++;
			} else {
				out[len++] = *p;
			}
		p++;
		p += strspn(p, " \t\n");
	}
	return out;
}

static int count_of(const char *text, const char *word)
{
	int count = 0;
	for (; (text = strstr(text, word)); text += strlen(word))
		count++;
	return count;
}

/* After `at` come %first, %first+1, .. %last, each once and in order, between braces. */
static const char *list_check(const char *at, int first, int last)
{
	ck_assert_msg(*at == '{', "no list at: %.40s", at);
	at++;
	for (int i = first; i <= last; i++) {
		char operand[16];
		const int len = snprintf(operand, sizeof operand, "%%%d%s", i, i < last ? ", " : "}");
		ck_assert_msg(strncmp(at, operand, (size_t)len) == 0, "want %s at: %.40s", operand, at);
		at += len;
	}
	return at;
}

/* d[0] .. d[count - 1] are the outputs, in this order, and no more. */
static void outputs_check(const char *code, int count)
{
	char output[32];
	const char *at = code;
	for (int i = 0; i < count; i++) {
		snprintf(output, sizeof output, "\"+f\"(d[%d])", i);
		at = strstr(at, output);
		ck_assert_msg(at != NULL, "%s is missing or out of order", output);
	}
	ck_assert_int_eq(count_of(code, "\"+f\""), count);
}

static struct program program;
static struct plan plan;

/* Of a forward pass with n keys in a tile, or a backward one with n rows, and head dim qk. */
static struct text wrappers(int row, enum pass pass, int qk)
{
	char yaml[128];
	struct text out = {0};
	snprintf(yaml, sizeof yaml, "{head_dim: {qk: %d, v: %d}, dtype: %s}", qk, shapes[row].v, shapes[row].dtype);
	const struct spec s = parse(yaml);
	plan = (struct plan){.pass = pass, .chosen = 1};
	plan.candidate[1].tile_m = plan.candidate[1].tile_n = 128;
	plan.candidate[1].sums = DQUERY_CLAIMED;
	*(pass == PASS_FORWARD ? &plan.candidate[1].tile_n : &plan.candidate[1].tile_m) = shapes[row].n;
	wgmma_print(&out, &s, &plan);
	return out;
}

/* Accumulators of n columns, two descriptors, a predicate that says whether to add, and which operands are transposed. */
static void shared_check(const struct text *out, const char *name, int n, const char *type, const char *transposed)
{
	char *code = function_of(out, name), *ptx = literals_join(strchr(code, '"')), line[160];
	const int d = n / 2;
	snprintf(line, sizeof line, "%s(float (&d)[%d], unsigned long long a, unsigned long long b)", name, d);
	ck_assert_ptr_nonnull(strstr(code, line));
	snprintf(line, sizeof line, "setp.ne.b32 p, %%%d, 0;", d + 2);
	ck_assert_ptr_nonnull(strstr(ptx, line));
	snprintf(line, sizeof line, "wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s ", n, type, type);
	const char *at = strstr(ptx, line);
	ck_assert_msg(at != NULL, "%.200s", ptx);
	at = list_check(at + strlen(line), 0, d - 1);
	snprintf(line, sizeof line, ", %%%d, %%%d, p, 1, 1, %s;  }", d, d + 1, transposed);
	ck_assert_msg(strcmp(at, line) == 0, "\"%s\"", at);
	outputs_check(code, d);
	ck_assert_ptr_nonnull(strstr(code, ": \"l\"(a), \"l\"(b), \"n\"((int)ACCUMULATE));"));
	free(ptx);
	free(code);
}

/* S. */
START_TEST(both_operands_in_shared_memory)
{
	struct text out = wrappers(_i, PASS_FORWARD, 64);
	shared_check(&out, "wgmma_ss", shapes[_i].n, shapes[_i].type, "0, 0");
	ck_assert_ptr_null(strstr(text_str(&out), "wgmma_ms"));
	text_free(&out);
}
END_TEST

/* S^T and dP^T; dQ^T, of which a warpgroup has all rows of one panel of columns, or half the rows of the only one. */
START_TEST(backward_products)
{
	for (int qk = 64; qk <= 128; qk += 64) {
		struct text out = wrappers(_i, PASS_BACKWARD, qk);
		shared_check(&out, "wgmma_ss", shapes[_i].n, shapes[_i].type, "0, 0");
		shared_check(&out, "wgmma_ms", qk > 64 ? shapes[_i].n : shapes[_i].n / 2, shapes[_i].type, "1, 0");
		int rs = 0;
		for (const char *at = text_str(&out); (at = strstr(at, "DEVICE void wgmma_rs(")); at++)
			rs++;
		ck_assert_int_eq(rs, shapes[_i].v == qk ? 1 : 2); /* dV and dK */
		text_free(&out);
	}
}
END_TEST

/* Of a pair of CTAs: dK, both operands MN-major; dQ, the second one, half the panels of columns and half of an odd one. */
START_TEST(pair_products)
{
	for (int qk = 72; qk <= 256; qk += 8) {
		char yaml[128];
		struct text out = {0};
		snprintf(yaml, sizeof yaml, "{head_dim: {qk: %d, v: %d}, dtype: %s}", qk, shapes[_i].v, shapes[_i].dtype);
		const struct spec s = parse(yaml);
		plan = (struct plan){.pass = PASS_BACKWARD, .templ = "sm90/bwd_pair"};
		plan.candidate[0].tile_m = 64;
		plan.candidate[0].sums = DQUERY_CLEARED;
		wgmma_print(&out, &s, &plan);
		const int panels = (qk + 63) / 64;
		shared_check(&out, "wgmma_ss", 64, shapes[_i].type, "0, 0");
		shared_check(&out, "wgmma_mm", qk, shapes[_i].type, "1, 1");
		ck_assert_int_eq(count_of(text_str(&out), "DEVICE void wgmma_sm("), 1 + panels % 2);
		if (panels % 2 == 0)
			shared_check(&out, "wgmma_sm", 32 * panels, shapes[_i].type, "0, 1");
		ck_assert_int_eq(count_of(text_str(&out), "DEVICE void wgmma_rs("), 1);
		ck_assert_ptr_null(strstr(text_str(&out), "wgmma_ms"));
		text_free(&out);
	}
}
END_TEST

/* O: accumulators of head_dim v columns, four registers of P, a descriptor, always added; V is MN-major. */
START_TEST(first_operand_in_registers)
{
	struct text out = wrappers(_i, PASS_FORWARD, 64);
	char *code = function_of(&out, "wgmma_rs"), *ptx = literals_join(strchr(code, '"')), line[160];
	const int d = shapes[_i].v / 2;
	snprintf(line, sizeof line,
	         "wgmma_rs(float (&d)[%d], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned long long b)", d);
	ck_assert_ptr_nonnull(strstr(code, line));
	snprintf(line, sizeof line, "wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s ", shapes[_i].v, shapes[_i].type,
	         shapes[_i].type);
	const char *at = strstr(ptx, line);
	ck_assert_msg(at == ptx, "%.200s", ptx);
	at = list_check(at + strlen(line), 0, d - 1);
	ck_assert_msg(strncmp(at, ", ", 2) == 0, "%.20s", at);
	at = list_check(at + 2, d, d + 3);
	snprintf(line, sizeof line, ", %%%d, 1, 1, 1, 1;", d + 4); /* accumulate, signs, the second operand transposed */
	ck_assert_msg(strcmp(at, line) == 0, "\"%s\"", at);
	outputs_check(code, d);
	ck_assert_ptr_nonnull(strstr(code, ": \"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3), \"l\"(b));"));
	free(ptx);
	free(code);
	text_free(&out);
}
END_TEST

/* ---- whole sources ---- */

static struct text source_of(const char *yaml, const char *gpu, enum pass pass, int align)
{
	const struct spec s = parse(yaml);
	struct text out = {0};
	struct diag diag = {0};
	const struct device *device = device_find(gpu);
	struct problem problem = s.assume;
	problem.align = align;
	ck_assert_msg(!program_lower(&program, &s, &diag) &&
	                      !plan_make(&plan, &s, &program, target_find(device->target), device, &problem, pass, &diag) &&
	                      !source_emit(&out, &s, &program, &plan, NULL, &diag),
	              "%s", text_str(&diag.text));
	diag_free(&diag);
	return out;
}

#define BOTH "passes: [forward, backward]}"
static const struct {
	const char *yaml, *gpu;
	enum pass pass;
	int align;
	bool native;
	int queue, maps, rs;
} sources[] = {
	{"{head_dim: 128, " BOTH, "H200", PASS_FORWARD, 16, true, 0, 3, 1},
	{"{head_dim: 128, mask: causal, " BOTH, "H200", PASS_FORWARD, 16, true, 1, 3, 1},
	{"{head_dim: 64, layout: packed, mask: causal, " BOTH, "H200", PASS_FORWARD, 16, true, 1, 3, 1},
	{"{head_dim: 128, mask: causal, tile: {backward: {m: 64, n: 128, warps: 12}}, " BOTH, "H200", PASS_BACKWARD, 16, true, 1, 4, 1},
	{"{head_dim: {qk: 128, v: 64}, tile: {backward: {m: 64, n: 128, warps: 12}}, " BOTH, "H200", PASS_BACKWARD, 16, true, 0, 4, 2},
	{"{head_dim: {qk: 192, v: 128}, mask: causal, " BOTH, "H200", PASS_BACKWARD, 16, true, 1, 4, 1},
	{"{head_dim: 128, mask: causal, " BOTH, "H200", PASS_FORWARD, 2, false, 0, 0, 0},
	{"{head_dim: 128, deterministic: true, " BOTH, "H200", PASS_BACKWARD, 16, true, 1, 4, 1},
	{"{head_dim: 128, mask: document, deterministic: true, " BOTH, "H200", PASS_BACKWARD, 16, true, 1, 4, 1},
	{"{head_dim: 256, mask: causal, deterministic: true, " BOTH, "H200", PASS_BACKWARD, 16, true, 1, 4, 1},
	{"{head_dim: {qk: 192, v: 128}, mask: causal, deterministic: true, " BOTH, "H200", PASS_BACKWARD, 16, true, 1, 4, 2},
	{"{head_dim: 192, " BOTH, "H200", PASS_BACKWARD, 16, true, 0, 4, 1},
	{"{head_dim: 128, mask: causal, " BOTH, "A100", PASS_FORWARD, 16, false, 0, 0, 0},
	{"{head_dim: 128, mask: causal, " BOTH, "B200", PASS_FORWARD, 16, false, 0, 0, 0},
};

/* What only Hopper's own kernels need stands in their source alone: the others' kernels, and their names in the store, are
 * what they would be without it. */
START_TEST(only_native_sources_have_it)
{
	struct text out = source_of(sources[_i].yaml, sources[_i].gpu, sources[_i].pass, sources[_i].align);
	const char *const text = text_str(&out);
	char line[64];
	ck_assert_int_eq(strncmp(plan.templ, "sm90/", 5) == 0, sources[_i].native);
	ck_assert_int_eq(count_of(text, "#line 1 \"templates/sm90/ptx.h\""), sources[_i].native);
	ck_assert_int_eq(count_of(text, "#line 1 \"templates/sm90/tile.h\""), sources[_i].native);
	const bool pair = strcmp(plan.templ, "sm90/bwd_pair") == 0;
	ck_assert_int_eq(count_of(text, "DEVICE void wgmma_ms("), sources[_i].maps == 4 && !pair);
	ck_assert_int_eq(count_of(text, "DEVICE void wgmma_mm("), pair);
	ck_assert_int_eq(count_of(text, "__cluster_dims__(2, 1, 1)"), pair);
	/* Deterministic without sums in order, another kernel owns query rows: to head dim 128 its S has, with tiles of 64, another shape. */
	const bool query = count_of(text, "#line 1 \"templates/sm90/bwd_query.cu\"") == 1;
	ck_assert_int_eq(query, sources[_i].native && strstr(sources[_i].yaml, "deterministic") && plan.candidate[plan.chosen].sums == DQUERY_APART);
	ck_assert_int_eq(count_of(text, "DEVICE void wgmma_ss("), sources[_i].native + (query && !pair && plan.candidate[plan.chosen].tile_m != 128));
	ck_assert_int_eq(count_of(text, "DEVICE void wgmma_sm(") > 0, pair && !query);
	ck_assert_int_eq(count_of(text, "DEVICE void wgmma_rs("), sources[_i].rs);
	ck_assert_int_eq(count_of(text, "setmaxnreg") > 0, sources[_i].native);
	snprintf(line, sizeof line, "constexpr int WALK_WARPS = %d;",
	         sources[_i].native ? 1 : plan.candidate[plan.chosen].warps);
	ck_assert_int_eq(count_of(text, line), 1);
	snprintf(line, sizeof line, "constexpr bool QUEUE = %s;", sources[_i].queue ? "true" : "false");
	ck_assert_int_eq(count_of(text, line), 1);
	ck_assert_int_eq(count_of(text, "//   piece queue size launch tile 0 unit 1 zeroed 1\n"), sources[_i].queue);
	ck_assert_int_eq(count_of(text, "//   map "), sources[_i].maps);
	text_free(&out);
}
END_TEST

/* Products before the wrappers of other instructions, which come before the skeleton, under the contract's names. */
START_TEST(native_parts)
{
	static const char *const order[] = {"#line 1 \"program\"",
	                                    "DEVICE void wgmma_ss(",
	                                    "DEVICE void wgmma_rs(",
	                                    "#line 1 \"templates/ptx.h\"",
	                                    "#line 1 \"templates/walk.h\"",
	                                    "#line 1 \"templates/sm90/ptx.h\"",
	                                    "#line 1 \"templates/sm90/tile.h\"",
	                                    "#line 1 \"templates/sm90/fwd.h\"",
	                                    "#line 1 \"templates/sm90/fwd_load.h\"",
	                                    "#line 1 \"templates/sm90/fwd.cu\"",
	                                    "fagen_forward(const __grid_constant__ fagen_abi p, const __grid_constant__ fagen_abi_maps maps)"};
	struct text out = source_of("{head_dim: 128, mask: causal}", "H200", PASS_FORWARD, 16);
	const char *at = text_str(&out);
	for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
		at = strstr(at, order[i]);
		ck_assert_msg(at != NULL, "%s is missing or out of order", order[i]);
	}
	text_free(&out);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("emit_sm90");
	TCase *t = tcase_create("emit_sm90");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, both_operands_in_shared_memory, 0, sizeof shapes / sizeof *shapes);
	tcase_add_loop_test(t, backward_products, 0, sizeof shapes / sizeof *shapes);
	tcase_add_loop_test(t, pair_products, 0, sizeof shapes / sizeof *shapes);
	tcase_add_loop_test(t, first_operand_in_registers, 0, sizeof shapes / sizeof *shapes);
	tcase_add_loop_test(t, only_native_sources_have_it, 0, sizeof sources / sizeof *sources);
	tcase_add_test(t, native_parts);
	suite_add_tcase(s, t);
	return s;
}
