/* Several templates for one pass: which serves, what is told of the others, and what a native one asks of a launch. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/plan_help.h"
#include "tests/spec_help.h"

static const struct problem usual = {4, 16, 16, 4096, 4096, 16}, shared = {4, 16, 8, 4096, 4096, 16};

static const struct other_template *other_find(const struct plan *p, const char *templ)
{
	for (int i = 0; i < p->other_count; i++)
		if (strcmp(p->other[i].templ, templ) == 0)
			return &p->other[i];
	return NULL;
}

/* The time of a template that was not tried among others; negative: it has none. */
static double time_alone(const struct template_model *model, const struct spec *spec, const char *gpu,
                         const struct problem *problem)
{
	static struct program program;
	struct diag diag = {0};
	lower(&program, spec);
	const int rc = problem->align < model->align_min ||
	               plan_with(&other, model, spec, &program, target_find(device_find(gpu)->target), device_find(gpu), problem,
	                         PASS_FORWARD, &diag);
	diag_free(&diag);
	return rc ? -1 : best(&other)->time_us;
}

/* Of the templates that can, the fastest serves; each other is told with its time, or with a reason. */
START_TEST(the_fastest_serves)
{
	int native = 0, portable = 0;
	for (int i = 0; i < 200; i++) {
		const struct spec spec = spec_random();
		const int64_t kv = rng_in(1, 8);
		const struct problem problem = {rng_in(1, 9),    kv * rng_in(1, 9), kv,
		                                rng_in(1, 3000), rng_in(1, 3000),   rng() % 4 ? 16 : 2};
		const double sm90 = time_alone(&model_sm90_fwd, &spec, "H200", &problem),
			     sm80 = time_alone(&model_sm80_fwd, &spec, "H200", &problem);
		ck_assert_double_gt(sm80, 0);
		must_make(&plan, &spec, "H200", &problem, PASS_FORWARD);
		const bool first = sm90 > 0 && sm90 <= sm80;
		ck_assert_str_eq(plan.templ, first ? "sm90/fwd" : "sm80/fwd");
		ck_assert_double_eq(best(&plan)->time_us, first ? sm90 : sm80);
		ck_assert_int_eq(plan.other_count, 1);
		const struct other_template *o = other_find(&plan, first ? "sm80/fwd" : "sm90/fwd");
		ck_assert_ptr_nonnull(o);
		ck_assert_int_eq(o->reason[0] != '\0', !first && sm90 < 0);
		ck_assert_double_eq(o->time_us, first ? sm80 : sm90 < 0 ? 0 : sm90);
		native += first;
		portable += !first;
	}
	ck_assert(native > 20 && portable > 20); /* both happen */
}
END_TEST

/* Native templates are of one target, which has two of them for the backward pass. */
START_TEST(one_template_has_no_others)
{
	const struct spec spec = spec_plain(64, 64);
	for (int g = 0; g < GPUS; g++)
		for (int pass = 0; pass < PASS_COUNT; pass++) {
			must_make(&plan, &spec, gpus[g], &usual, (enum pass)pass);
			const bool native = strcmp(gpus[g], "H200") == 0;
			ck_assert_int_eq(plan.other_count, native ? pass == PASS_BACKWARD ? 2 : 1 : 0);
			ck_assert(native || strncmp(plan.templ, "sm80/", 5) == 0);
		}
}
END_TEST

/* Which backward serves, and what it says of another. */
START_TEST(native_backwards_refuse)
{
	static const struct {
		const char *yaml, *templ, *other, *reason;
	} rows[] = {
		{"head_dim: 64, deterministic: true", "sm90/bwd", "sm90/bwd_pair", "to 128 both have the kernels of sm90/bwd"},
		{"head_dim: 64, deterministic: true, tile: {backward: {m: 32, n: 128, warps: 8}}", "sm80/bwd", "sm90/bwd", "want 12"},
		{"head_dim: 64, deterministic: true, score: alibi, inputs: {slope: {dtype: f32, shape: [heads], grad: true}}", "sm80/bwd", "sm90/bwd",
	         "gradients of inputs"},
		{"head_dim: 64, score: alibi, inputs: {slope: {dtype: f32, shape: [heads], grad: true}}", "sm80/bwd", "sm90/bwd", "gradients of inputs"},
		{"head_dim: 192", "sm90/bwd_pair", "sm90/bwd", "want at most 128"},
		{"head_dim: {qk: 72, v: 136}", "sm90/bwd_pair", "sm90/bwd", "want at most 128"},
		{"head_dim: 128", "sm90/bwd", "sm90/bwd_pair", "to 128 both have the kernels of sm90/bwd"},
		{"head_dim: {qk: 64, v: 136}", "sm80/bwd", "sm90/bwd_pair", "want qk above 64"},
		{"head_dim: 256, deterministic: true", "sm90/bwd_pair", "sm90/bwd", "want at most 128"},
		{"head_dim: 192, deterministic: true, score: bias", "sm80/bwd", "sm90/bwd_pair", "fagen_backward_query needs"},
		{"head_dim: 192, score: alibi, inputs: {slope: {dtype: f32, shape: [heads], grad: true}}", "sm80/bwd", "sm90/bwd_pair",
	         "gradients of inputs"},
		{"head_dim: 256, score: bias", "sm80/bwd", "sm90/bwd_pair", "shared memory"},
		{"head_dim: {qk: 192, v: 128}, mask: {all: [causal, document, padding]}, score: \"s + t[h, q - k + 40]\", " /* inputs of all kinds: most terms */
	         "inputs: {t: {dtype: f32, shape: [heads, 81]}}, dropout: 0.2",
	         "sm90/bwd_pair", "sm90/bwd", "want at most 128"},
	};
	static struct program program;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct spec spec;
		struct diag diag = {0};
		char yaml[256];
		const int len = snprintf(yaml, sizeof yaml, "{%s, passes: [forward, backward]}", rows[i].yaml);
		ck_assert_int_eq(spec_parse(&spec, yaml, (size_t)len, "t", &diag), 0);
		ck_assert_int_eq(program_lower(&program, &spec, &diag), 0);
		const int rc = plan_make(&plan, &spec, &program, target_find("sm_90a"), device_find("H200"), &usual, PASS_BACKWARD, &diag);
		ck_assert_int_eq(rc, 0);
		const struct other_template *o = other_find(&plan, rows[i].other);
		ck_assert_str_eq(plan.templ, rows[i].templ);
		ck_assert_int_le(best(&plan)->smem_term_count, SMEM_TERMS_MAX);
		ck_assert_ptr_nonnull(o);
		ck_assert_msg(strstr(o->reason, rows[i].reason), "%s: \"%s\"", rows[i].yaml, o->reason);
		diag_free(&diag);
	}
}
END_TEST

/* A native deterministic backward of these keys, to `plan`; heads share keys where kv_group says two. */
static void deterministic_plan(struct spec *spec, const char *keys)
{
	static struct program program;
	struct diag diag = {0};
	char yaml[256];
	const int len = snprintf(yaml, sizeof yaml, "{%s, deterministic: true, passes: [forward, backward]}", keys);
	ck_assert_int_eq(spec_parse(spec, yaml, (size_t)len, "t", &diag), 0);
	ck_assert_int_eq(program_lower(&program, spec, &diag), 0);
	const bool wide = spec->head_dim_qk > 128 || spec->head_dim_v > 128;
	ck_assert_msg(plan_with(&plan, wide ? &model_sm90_bwd_pair : &model_sm90_bwd, spec, &program, target_find("sm_90a"), device_find("H200"),
	                        spec->kv_group == 2 ? &shared : &usual, PASS_BACKWARD, &diag) == 0,
	              "%s: %s", keys, text_str(&diag.text));
	check_plan(&plan, spec);
	diag_free(&diag);
}

/* dQ as sums in the order of the key tiles, where closed forms say who comes before, and items are not long; with any tile, and memory for whose turn
 * it is. Else a kernel of its own has it. */
START_TEST(native_ordered)
{
	static const struct {
		const char *yaml;
		bool ordered;
	} rows[] = {
		{"head_dim: 64", true},
		{"head_dim: 128, mask: causal", true},
		{"head_dim: 96, mask: {window: {left: 100, right: 7}}, layout: packed, kv_group: any", true},
		{"head_dim: 128, score: bias", true},
		{"head_dim: 64, tile: {backward: {m: 32, n: 128, warps: 12}}", true},
		{"head_dim: 64, tile: {backward: {m: 64, n: 128, warps: 12, splits: 3}}", true},
		{"head_dim: 64, mask: causal, tile: {backward: {m: 64, n: 128, warps: 12, splits: 3}}", false},
		{"head_dim: 128, mask: causal, kv_group: 2", false},
		{"head_dim: 128, mask: document", false},
		{"head_dim: 64, mask: {prefix: {n: 300}}", false},
		{"head_dim: 64, blocks: {size: 128, from: bitmap}", false},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct spec spec;
		deterministic_plan(&spec, rows[i].yaml);
		ck_assert_msg((best(&plan)->sums == DQUERY_ORDERED) == rows[i].ordered, "%s", rows[i].yaml);
		ck_assert_int_eq(recipe_kernel_find(&plan.recipe, "fagen_dquery") != NULL, rows[i].ordered);
		ck_assert_int_eq(recipe_kernel_find(&plan.recipe, "fagen_backward_query") != NULL, !rows[i].ordered);
		ck_assert(best(&plan)->queue || !rows[i].ordered); /* CTAs that have not begun hold nobody up */
		int pieces = 0;
		for (int k = 0; k < plan.recipe.piece_count; k++)
			pieces += strcmp(plan.recipe.piece[k].name, "dquery_accum") == 0 || strcmp(plan.recipe.piece[k].name, "turns") == 0;
		ck_assert_int_eq(pieces, rows[i].ordered ? 2 : 0);
	}
}
END_TEST

/* dQ by a kernel whose CTAs own 128 rows, in tiles of 64 or 128; no other tile, no sums in memory. One buffer of K and V where two do not fit;
 * above head dim 128 a tile is two steps, and K always has two buffers. */
START_TEST(native_deterministic)
{
	static const struct {
		const char *yaml;
		int m; /* 0: either */
		int buffers; /* of V */
	} rows[] = {
		{"head_dim: 64, mask: document", 0, 2},
		{"head_dim: 128, mask: causal, kv_group: 2", 64, 2},
		{"head_dim: 128, tile: {backward: {m: 64, n: 128, warps: 12}}, layout: packed, mask: document, dropout: 0.1", 64, 2},
		{"head_dim: 64, mask: causal, kv_group: 2, tile: {backward: {m: 128, n: 128, warps: 12}}", 128, 2},
		{"head_dim: 128, mask: document, score: bias", 64, 1},
		{"head_dim: 144, mask: causal", 64, 2},
		{"head_dim: {qk: 192, v: 128}, layout: packed, dropout: 0.1", 64, 2},
		{"head_dim: {qk: 72, v: 136}", 64, 2},
		{"head_dim: 192, mask: causal", 64, 2},
		{"head_dim: 256, mask: causal, score: alibi", 64, 1},
		{"head_dim: {qk: 128, v: 192}, score: bias", 64, 1},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct spec spec;
		deterministic_plan(&spec, rows[i].yaml);
		const bool wide = spec.head_dim_qk > 128 || spec.head_dim_v > 128;
		const struct recipe_kernel *query = recipe_kernel_find(&plan.recipe, "fagen_backward_query");
		ck_assert_ptr_nonnull(query);
		ck_assert_ptr_null(recipe_kernel_find(&plan.recipe, "fagen_dquery"));
		ck_assert(query->grid == GRID_QUERY_TILES && query->tile == 128 && query->threads == 384);
		for (int k = 0; k < plan.candidate_count; k++)
			ck_assert(plan.candidate[k].reason[0] || plan.candidate[k].tile_m == 64 || plan.candidate[k].tile_m == 128);
		ck_assert_int_eq(rows[i].m ? rows[i].m : best(&plan)->tile_m, best(&plan)->tile_m);
		ck_assert_ptr_null(piece_find(&plan.recipe, "dquery_accum"));
		const int panel_qk = (spec.head_dim_qk + 63) / 64 * 128, panel_v = (spec.head_dim_v + 63) / 64 * 128; /* bytes of a row */
		const int step = wide ? 64 : 128, more = step * (panel_v + (wide ? 0 : panel_qk)); /* keys; bytes of a buffer more */
		ck_assert_int_ge(query->smem_bytes, 128 * (panel_qk + panel_v) + (wide ? 2 : rows[i].buffers) * step * panel_qk +
		                                            rows[i].buffers * step * panel_v);
		ck_assert_int_le(query->smem_bytes, plan.target->smem_block);
		if (rows[i].buffers == 1)
			ck_assert_int_gt(query->smem_bytes + more, plan.target->smem_block);
	}
}
END_TEST

/* Clusters of two CTAs: an even number, twice that of the key tiles; boxes of the 64 keys and rows that a CTA has. */
START_TEST(pair_recipe)
{
	for (int dim = 136; dim <= HEAD_DIM_MAX; dim += 24) {
		const struct spec spec = spec_plain(dim, dim);
		const struct problem odd = {1, 3, 1, 1000, 129, 16};
		must_make_with(&plan, &model_sm90_bwd_pair, &spec, "H200", &odd);
		check_plan(&plan, &spec);
		const struct recipe_kernel *main = recipe_kernel_find(&plan.recipe, "fagen_backward");
		ck_assert_ptr_nonnull(main);
		const struct recipe_shape shape = {1, 3, 1, 1000, 129, 0, 0, false, 132};
		ck_assert_int_eq(recipe_grid_size(main, &shape), 2 * 2);
		ck_assert_int_eq(best(&plan)->ctas, 2 * 2);
		ck_assert_int_eq(plan.recipe.map_count, 4);
		for (int i = 0; i < 4; i++)
			ck_assert_int_eq(plan.recipe.map[i].rows, 64);
		ck_assert_int_eq(best(&plan)->stages, 2);
	}
}
END_TEST

static const struct {
	const char *what;
	int qk, v;
	struct tile_request tile;
	int align;
	const char *templ, *reason; /* that serves; why the other cannot, "" when it can */
} served[] = {
	{"usual", 128, 128, {0}, 16, "sm90/fwd", ""},
	{"any alignment", 128, 128, {0}, 2, "sm80/fwd", "rows are not 16-byte aligned"},
	{"a native tile", 128, 128, {128, 128, 12, 2, 0, 0}, 16, "sm90/fwd", "12 warps"},
	{"a portable tile", 64, 64, {64, 64, 4, 2, 0, 0}, 16, "sm80/fwd", "m 64; want 128 or 192"},
	{"warps of a portable tile", 64, 64, {128, 64, 4, 2, 0, 0}, 16, "sm80/fwd", "4 warps; m 128 wants 12"},
	{"rows alone", 64, 64, {.m = 64}, 16, "sm80/fwd", "none of its own"},
	{"parts", 128, 128, {128, 128, 12, 2, 3, 0}, 16, "sm90/fwd", "3 splits; sm80/fwd"},
	{"parts of a tile of both", 64, 64, {128, 64, 0, 0, 3, 0}, 16, "sm90/fwd", "3 splits; sm80/fwd leaves the keys of a tile together"},
};

START_TEST(others_have_reasons)
{
	struct spec spec = spec_plain(served[_i].qk, served[_i].v);
	struct problem problem = usual;
	problem.align = served[_i].align;
	spec.tile[PASS_FORWARD] = served[_i].tile;
	must_make(&plan, &spec, "H200", &problem, PASS_FORWARD);
	check_plan(&plan, &spec);
	ck_assert_str_eq(plan.templ, served[_i].templ);
	ck_assert_int_eq(plan.other_count, 1);
	ck_assert_str_ne(plan.other[0].templ, plan.templ);
	ck_assert_msg(strstr(plan.other[0].reason, served[_i].reason) &&
	                      !*plan.other[0].reason == !*served[_i].reason,
	              "%s: \"%s\"", served[_i].what, plan.other[0].reason);
	ck_assert_int_eq(plan.other[0].time_us > 0, !*served[_i].reason);
	struct text text = {0};
	plan_print(&text, &plan);
	char line[160];
	snprintf(line, sizeof line, "  other        %s: ", plan.other[0].templ);
	const char *at = strstr(text_str(&text), line);
	ck_assert_ptr_nonnull(at);
	ck_assert_ptr_nonnull(strstr(at, *served[_i].reason ? served[_i].reason : " predicted\n"));
	text_free(&text);
}
END_TEST

/* What neither can do is refused in the words of the portable one, which has the wider choice. */
START_TEST(what_none_can_do)
{
	struct spec spec = spec_plain(64, 64);
	struct diag diag = {0};
	spec.tile[PASS_FORWARD] = (struct tile_request){100, 64, 4, 2, 0, 0};
	ck_assert_int_eq(make(&plan, &spec, "H200", &usual, PASS_FORWARD, &diag), -1);
	ck_assert_int_eq(diag.errors, 1);
	ck_assert_ptr_nonnull(strstr(text_str(&diag.text), "The nearest legal choice is {m "));
	ck_assert_ptr_null(strstr(text_str(&diag.text), "want 128 or 192"));
	diag_free(&diag);
}
END_TEST

/* ---- the native kernels of persistent CTAs ---- */

static const struct {
	const char *mask; /* yaml */
	enum batch_layout layout;
	bool forward, backward; /* have a queue */
} queued[] = {
	{"none", LAYOUT_DENSE, false, false}, /* every item takes as long */
	{"causal", LAYOUT_DENSE, true, true},
	{"\"k < 1000\"", LAYOUT_DENSE, false, true}, /* all rows see the same keys, but some keys see none */
	{"\"q >= 1000\"", LAYOUT_DENSE, true, false},
	{"none", LAYOUT_PADDED, true, true},
	{"none", LAYOUT_PACKED, true, true},
};

/* The recipe says what the kernel reads: maps with the tiles as boxes, and a queue where items differ in length. */
START_TEST(native_recipe)
{
	const bool backward = _i % 2;
	const bool queue = backward ? queued[_i / 2].backward : queued[_i / 2].forward;
	struct spec spec;
	struct text yaml = {0}, text = {0};
	struct diag diag = {0};
	char line[128];
	text_addf(&yaml, "head_dim: 128\nmask: %s\n", queued[_i / 2].mask);
	ck_assert_msg(spec_parse(&spec, text_str(&yaml), yaml.len, "inline", &diag) == 0, "%s", text_str(&diag.text));
	spec.layout = queued[_i / 2].layout;
	must_make_with(&plan, backward ? &model_sm90_bwd : &model_sm90_fwd, &spec, "H200", &usual);
	check_plan(&plan, &spec);
	const struct candidate *c = best(&plan);
	ck_assert_int_eq(c->walk_warps, 1);
	ck_assert_int_eq(c->queue, queue);
	ck_assert_int_eq(c->ctas_sm, 1);
	recipe_print(&text, &plan.recipe);
	if (backward)
		snprintf(line, sizeof line, "kernel fagen_backward grid %s tile %d threads %d ", c->cut ? "persistent_key_tails" : "persistent_keys", c->tile_n,
		         32 * c->warps);
	else
		snprintf(line, sizeof line, "kernel fagen_forward grid %s tile %d threads %d ", c->cut ? "persistent_tails" : "persistent", c->tile_m, 32 * c->warps);
	ck_assert_ptr_nonnull(strstr(text_str(&text), line));
	ck_assert_int_eq(strstr(text_str(&text), "piece queue size launch tile 0 unit 1 zeroed 1\n") != NULL, queue);
	const char *const end = text_str(&text) + text.len;
	int len = snprintf(line, sizeof line, "map query rows %d\nmap key rows %d\nmap value rows %d\n", backward ? c->tile_m : 64, c->tile_n,
	                   c->tile_n); /* forward Q comes for each warpgroup alone */
	if (backward)
		len += snprintf(line + len, sizeof line - (size_t)len, "map dout rows %d\n", c->tile_m);
	ck_assert_str_eq(end - len, line);
	struct recipe back;
	ck_assert_int_eq(recipe_parse(&back, text_str(&text), &diag), 0);
	ck_assert_mem_eq(&back, &plan.recipe, sizeof back);
	text_free(&yaml);
	text_free(&text);
	diag_free(&diag);
}
END_TEST

/* ---- the order of items ---- */

static const struct {
	const char *keys; /* yaml */
	int head_dim;
	bool forward, backward, native_forward, native_backward; /* are sorted */
} sorted[] = {
	{"mask: none", 64, false, false, false, false},
	{"mask: causal", 192, false, false, false, false}, /* runs say which are long, and their numbers go by it */
	{"mask: causal, layout: packed", 64, true, true, true, true},
	{"layout: padded", 192, true, true, true, true},
	{"mask: document", 128, true, true, false, false}, /* a short tail, which would cost more to avoid */
	{"mask: document, deterministic: true", 128, true, true, false, false},
	{"blocks: {size: 64, from: bitmap}", 192, true, true, false, false},
	{"mask: document, layout: padded", 128, true, true, true, true},
	{"layout: packed, deterministic: true", 64, true, true, true, false}, /* items wait for one another in an order of their own */
	{"layout: packed, tile: {forward: {m: 128, n: 64, splits: 3}, backward: {m: 64, n: 128, splits: 3}}", 64, false, false, false, false},
	{"layout: padded, kv_group: 8, tile: {forward: {m: 128, n: 64, heads: 8}}", 64, true, true, true, true},
};
static const struct template_model *const sorters[] = {&model_sm80_fwd, &model_sm80_bwd, &model_sm90_fwd, &model_sm90_bwd, &model_sm90_bwd_pair};
enum { SORTERS = sizeof sorters / sizeof *sorters };

/* Items are sorted where data rule their lengths and nothing rules their order: by a kernel before the main one, of the tiles that it owns, into a
 * piece that is cleared with the queue; and whoever is free takes the next. */
START_TEST(items_are_sorted)
{
	const struct template_model *const model = sorters[_i % SORTERS];
	const int row = _i / SORTERS;
	const bool native = model->cc_max == 90, backward = model->pass == PASS_BACKWARD;
	const bool want = native ? (backward ? sorted[row].native_backward : sorted[row].native_forward)
	                         : (backward ? sorted[row].backward : sorted[row].forward);
	struct spec spec;
	struct text yaml = {0};
	struct diag diag = {0};
	text_addf(&yaml, "{head_dim: %d, passes: [forward, backward], %s}", sorted[row].head_dim, sorted[row].keys);
	ck_assert_msg(spec_parse(&spec, text_str(&yaml), yaml.len, "inline", &diag) == 0, "%s", text_str(&diag.text));
	const int group = spec.kv_group ? spec.kv_group : 1;
	const struct problem problem = {8, 16, 16 / group, 4096, 4096, 16};
	static struct program program;
	lower(&program, &spec);
	if (plan_with(&plan, model, &spec, &program, target_find("sm_90a"), device_find("H200"), &problem, model->pass, &diag)) {
		ck_assert(native || strstr(sorted[row].keys, "tile") != NULL); /* head dims, splits and heads that the template has not got */
		diag_free(&diag);
		text_free(&yaml);
		return;
	}
	const struct candidate *c = best(&plan);
	const struct recipe *r = &plan.recipe;
	const struct recipe_kernel *order = recipe_kernel_find(r, "fagen_order"), *main = recipe_kernel_find(r, model->main);
	ck_assert_msg(c->order == want, "%s, %s", sorted[row].keys, model->templ);
	ck_assert_int_eq(order != NULL, want);
	const struct recipe_piece *piece = piece_find(r, "order");
	ck_assert_int_eq(piece != NULL, want);
	if (want) {
		ck_assert(order < main);
		ck_assert_int_eq(order->grid, backward ? GRID_ORDER_KEYS : GRID_ORDER_QUERIES);
		ck_assert_int_eq(order->tile, main->tile);
		ck_assert_int_eq(order->heads, main->heads);
		ck_assert_int_eq(order->beyond, c->ctas_sm);
		ck_assert_int_eq(piece->tile, main->tile);
		ck_assert_int_eq(piece->zeroed, 1);
		ck_assert(!native || (c->queue && piece - 1 == piece_find(r, "queue")));
	}
	text_free(&yaml);
	diag_free(&diag);
}
END_TEST

/* Where half of an SM's registers do, two CTAs share it: the grid has both, and S and O of a warpgroup fit what a thread has. */
START_TEST(two_ctas_share_an_sm)
{
	static const struct {
		const char *text;
		int keys;
		bool shared;
	} rows[] = {
		{"{head_dim: 64, mask: causal}", 64, true},
		{"{head_dim: 64, layout: packed}", 80, true},
		{"{head_dim: 64, layout: packed}", 96, false},
		{"{head_dim: 32, mask: {window: {left: 100}}}", 64, true},
		{"{head_dim: 32}", 96, true},
		{"{head_dim: 32}", 112, false}, /* ptxas wants more registers for the product than a thread has at launch */
		{"{head_dim: 16, mask: causal}", 128, false},
		{"{head_dim: 64, mask: causal, layout: padded}", 64, false},
		{"{head_dim: 64, mask: causal, score: {softcap: {cap: 20}}}", 64, false},
		{"{head_dim: 64, mask: causal, dropout: 0.1}", 64, true},
		{"{head_dim: 64, mask: document}", 64, false},
		{"{head_dim: 64, mask: causal, sink: true}", 64, false},
		{"{head_dim: 72, mask: causal}", 64, false},
	};
	struct spec spec;
	struct diag diag = {0};
	ck_assert_msg(spec_parse(&spec, rows[_i].text, strlen(rows[_i].text), "inline", &diag) == 0, "%s", text_str(&diag.text));
	spec.tile[PASS_FORWARD] = (struct tile_request){.m = 128, .n = rows[_i].keys, .warps = 12, .stages = 3};
	must_make_with(&plan, &model_sm90_fwd, &spec, "H200", &usual);
	const struct candidate *c = best(&plan);
	const struct recipe_kernel *k = recipe_kernel_find(&plan.recipe, "fagen_forward");
	ck_assert_int_eq(c->ctas_wanted, rows[_i].shared ? 2 : 1);
	ck_assert_int_eq(c->ctas_sm, c->ctas_wanted);
	ck_assert_int_eq(k->grid, rows[_i].shared ? GRID_PERSISTENT_2 : GRID_PERSISTENT);
	if (rows[_i].shared)
		ck_assert_int_eq(c->regs, 80);
	diag_free(&diag);
}
END_TEST

/* Where there is room for a tile's O, warps that have nothing to prepare store it; else there is room for some rows of each warp, or O leaves
 * from registers. */
START_TEST(rows_wait_in_shared_memory)
{
	static const struct {
		const char *text;
		struct tile_request tile;
		int bytes; /* of O */
	} rows[] = {
		{"{head_dim: 128, mask: causal}", {128, 128, 12, 2, 0, 0}, 2 * (64 * 17 * 16 + 32)},
		{"{head_dim: 128, layout: packed, outputs: [out]}", {192, 80, 16, 2, 0, 0}, 3 * (64 * 17 * 16 + 32)},
		{"{head_dim: 72}", {128, 96, 12, 2, 0, 0}, 2 * (64 * 11 * 16 + 32)},
		{"{head_dim: 128}", {128, 176, 12, 2, 0, 0}, 2 * 64 * 128}, /* no room */
		{"{head_dim: 128, score: bias}", {128, 64, 12, 2, 0, 0}, 2 * 64 * 128},
		{"{head_dim: 128, mask: causal, sink: true}", {128, 96, 12, 2, 0, 0}, 2 * 64 * 128},
		{"{head_dim: 128, dropout: 0.1}", {128, 64, 12, 2, 0, 0}, 2 * (64 * 17 * 16 + 32)},
		{"{head_dim: 128, kv_group: 4}", {128, 96, 12, 2, 1, 4}, 2 * 64 * 128},
		{"{head_dim: 64, mask: causal}", {128, 64, 12, 3, 0, 0}, 2 * 64 * 128}, /* of each of two CTAs */
		{"{head_dim: 128}", {128, 96, 12, 2, 4, 1}, 0},
		{"{head_dim: 256}", {128, 80, 12, 2, 0, 0}, 0}, /* no room at all */
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct spec spec;
		struct diag diag = {0};
		ck_assert_msg(spec_parse(&spec, rows[i].text, strlen(rows[i].text), "inline", &diag) == 0, "%s", text_str(&diag.text));
		spec.tile[PASS_FORWARD] = rows[i].tile;
		const struct problem problem = {4, 16, spec.kv_group > 1 ? 4 : 16, 4096, 4096, 16};
		must_make_with(&plan, &model_sm90_fwd, &spec, "H200", &problem);
		const struct candidate *c = best(&plan);
		int bytes = 0;
		for (int t = 0; t < c->smem_term_count; t++)
			if (strcmp(c->smem_term[t].name, "O") == 0)
				bytes = c->smem_term[t].bytes;
		ck_assert_msg(bytes == rows[i].bytes, "%s: %d bytes", rows[i].text, bytes);
		ck_assert_msg(c->out_whole == (bytes > 0 && bytes != 2 * 64 * 128) && c->out_staged == (bytes == 2 * 64 * 128), "%s", rows[i].text);
		diag_free(&diag);
	}
}
END_TEST

/* Keys of a head that has one tile are read once, however many heads there are: a new token costs what it does without a mask. */
START_TEST(what_nobody_shares_is_read_once)
{
	const struct problem token = {64, 32, 32, 1, 8192, 16};
	struct spec spec = spec_plain(128, 128);
	must_make_with(&plan, &model_sm90_fwd, &spec, "H200", &token);
	const double all = best(&plan)->hbm_bytes;
	spec_mask(&spec, "causal", 0, 0);
	must_make_with(&plan, &model_sm90_fwd, &spec, "H200", &token);
	ck_assert_double_eq_tol(best(&plan)->hbm_bytes, all, 1e-6 * all);
}
END_TEST

START_TEST(maps_and_others_are_printed)
{
	struct spec spec = spec_plain(128, 128);
	struct text text = {0}, json = {0};
	char line[160];
	spec_mask(&spec, "causal", 0, 0);
	must_make(&plan, &spec, "H200", &usual, PASS_FORWARD);
	ck_assert_str_eq(plan.templ, "sm90/fwd");
	plan_print(&text, &plan);
	plan_json(&json, &plan);
	const int m = 64, n = best(&plan)->tile_n; /* Q comes for each warpgroup alone */
	snprintf(line, sizeof line, "  tensor maps  query in boxes of %d rows, key in boxes of %d rows, value in boxes of %d rows\n", m, n, n);
	ck_assert_ptr_nonnull(strstr(text_str(&text), line));
	ck_assert_ptr_nonnull(strstr(text_str(&text), "queue: 256 bytes, cleared first\n"));
	snprintf(line, sizeof line,
	         "\"maps\": [{\"name\": \"query\", \"rows\": %d}, {\"name\": \"key\", \"rows\": %d}, {\"name\": \"value\", \"rows\": %d}]",
	         m, n, n);
	ck_assert_ptr_nonnull(strstr(text_str(&json), line));
	const char *at = strstr(text_str(&json), "\"others\": [{\"template\": \"sm80/fwd\", \"time_us\": ");
	ck_assert_ptr_nonnull(at);
	ck_assert_double_eq_tol(strtod(strstr(at, "us\": ") + 5, NULL) / plan.other[0].time_us, 1, 1e-9);
	text_free(&json);
	struct problem any = usual;
	any.align = 2;
	must_make(&plan, &spec, "H200", &any, PASS_FORWARD);
	plan_json(&json, &plan);
	ck_assert_ptr_nonnull(strstr(text_str(&json), "\"maps\": [], \"others\": [{\"template\": \"sm90/fwd\", \"rejected\": \"rows are not 16-byte aligned\"}]"));
	text_free(&text);
	text_free(&json);
}
END_TEST

/* A score that may grow along a row leaves every reference behind: such kernels have running maxima at once, unless it is known how
 * positions lift it, of keys that are surely seen, and the type has exponents for references that are not maxima. */
START_TEST(speculation)
{
	static const struct {
		const char *score; /* and other keys */
		bool native, portable;
	} rows[] = {{"none", true, true},
	            {"none\ndtype: fp16", true, true},
	            {"none\nrunning_maximum: true", false, false},
	            {"none\nmask: document", true, true},
	            {"{softcap: {cap: 30}}", true, true},
	            {"\"2 * s + h\"", true, true},
	            {"alibi", true, true},
	            {"alibi\ndtype: fp16", false, false},
	            {"alibi\nmask: causal\nlayout: packed", true, true},
	            {"alibi\nmask: {window: {left: 1000, right: 1000}}", true, true},
	            {"alibi\nmask: document", false, false},
	            {"alibi\nblocks: {size: 64, keep: \"q >= k\"}", false, false},
	            {"t5", true, true},
	            {"t5\nmask: document", true, true},
	            {"t5\ndtype: fp16", false, false},
	            {"bias", false, false},
	            {"\"s + (q - k)\"", true, true},
	            {"\"k < 4 ? s : 0.5 * s\"", false, false}};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct text yaml = {0};
		struct diag diag = {0};
		struct spec spec;
		text_addf(&yaml, "head_dim: 64\nscore: %s\n", rows[i].score);
		ck_assert_msg(spec_parse(&spec, text_str(&yaml), yaml.len, "inline", &diag) == 0, "%s", text_str(&diag.text));
		must_make_with(&plan, &model_sm90_fwd, &spec, "H200", &usual);
		ck_assert_msg(best(&plan)->speculate == rows[i].native, "%s", rows[i].score);
		must_make_with(&plan, &model_sm80_fwd, &spec, "A100", &usual);
		ck_assert_msg(best(&plan)->speculate == rows[i].portable, "%s, portable", rows[i].score);
		must_make_with(&plan, &model_sm80_fwd, &spec, "B200", &usual); /* never timed */
		ck_assert_msg(!best(&plan)->speculate, "%s, portable, of a later target", rows[i].score);
		text_free(&yaml);
		diag_free(&diag);
	}
}
END_TEST

/* TFLOP/s of templates/sm90 as measured on an H200, bf16, with the planner's tile: predicted within a fifth. */
START_TEST(native_anchors)
{
	static const struct {
		int dim;
		struct problem problem;
		const char *mask;
		double forward, backward; /* 0: not measured */
	} anchors[] = {
		{64, {4, 32, 32, 4096, 4096, 16}, NULL, 528, 589},    {64, {4, 32, 32, 4096, 4096, 16}, "causal", 474, 540},
		{64, {16, 32, 32, 1024, 1024, 16}, NULL, 427, 458},   {64, {1, 32, 32, 16384, 16384, 16}, "causal", 527, 622},
		{128, {4, 16, 16, 4096, 4096, 16}, NULL, 720, 645},   {128, {4, 16, 16, 4096, 4096, 16}, "causal", 621, 585},
		{128, {16, 16, 16, 1024, 1024, 16}, NULL, 597, 520},  {128, {1, 16, 16, 16384, 16384, 16}, "causal", 675, 689},
		{128, {32, 16, 16, 512, 512, 16}, NULL, 478, 0},      {128, {32, 16, 16, 512, 512, 16}, "causal", 306, 0},
		{96, {16, 20, 20, 1024, 1024, 16}, NULL, 525, 0},     {96, {16, 20, 20, 1024, 1024, 16}, "causal", 377, 0},
		{96, {2, 21, 21, 8192, 8192, 16}, NULL, 622, 0},      {96, {2, 21, 21, 8192, 8192, 16}, "causal", 648, 0},
		{192, {2, 8, 8, 8192, 8192, 16}, NULL, 802, 0},       {192, {2, 8, 8, 8192, 8192, 16}, "causal", 661, 0},
		{192, {16, 8, 8, 1024, 1024, 16}, NULL, 611, 0},      {256, {16, 8, 8, 1024, 1024, 16}, NULL, 630, 0},
		{256, {2, 8, 8, 8192, 8192, 16}, NULL, 644, 0},       {256, {2, 8, 8, 8192, 8192, 16}, "causal", 580, 0},
	};
	for (size_t i = 0; i < sizeof anchors / sizeof *anchors; i++) {
		struct spec spec = spec_plain(anchors[i].dim, anchors[i].dim);
		if (anchors[i].mask)
			spec_mask(&spec, anchors[i].mask, 0, 0);
		for (int pass = 0; pass < PASS_COUNT; pass++) {
			const double measured = pass == PASS_FORWARD ? anchors[i].forward : anchors[i].backward;
			if (measured == 0)
				continue;
			must_make_with(&plan, pass == PASS_FORWARD ? &model_sm90_fwd : &model_sm90_bwd, &spec, "H200",
			               &anchors[i].problem);
			const double tflops = plan.useful_flop / best(&plan)->time_us * 1e-6;
			ck_assert_msg(fabs(tflops / measured - 1) < 0.2, "d %d, %s, %s: predicted %.0f, measured %.0f",
			              anchors[i].dim, anchors[i].mask ? anchors[i].mask : "full", pass_names[pass], tflops,
			              measured);
		}
	}
}
END_TEST

/* 16,384 tokens of width 2,048 or near it, bf16: the forward tiles that were the fastest on an H200, or as fast. */
START_TEST(native_choices)
{
	static const struct {
		int dim, seq, m, keys[2];
		const char *mask;
	} rows[] = {
		{128, 512, 128, {128}, NULL},      {128, 512, 128, {128}, "causal"},   {128, 1024, 128, {128}, NULL}, {128, 1024, 128, {128}, "causal"},
		{128, 4096, 192, {80}, NULL},      {128, 4096, 128, {128}, "causal"},   {128, 16384, 192, {80}, NULL}, {128, 16384, 192, {80}, "causal"},
		{96, 512, 128, {128}, NULL},       {96, 512, 128, {128}, "causal"},    {96, 1024, 128, {128}, NULL},  {96, 1024, 128, {128}, "causal"},
		{96, 4096, 192, {96}, NULL},       {96, 4096, 192, {96}, "causal"},    {64, 512, 192, {128}, NULL},   {64, 512, 128, {64, 80}, "causal"},
		{64, 1024, 192, {128}, NULL},      {64, 1024, 128, {64, 80}, "causal"}, {64, 2048, 128, {64, 80}, "causal"}, {64, 4096, 192, {128}, NULL}, {64, 8192, 192, {128}, "causal"},
		{192, 1024, 128, {80}, NULL},      {256, 512, 128, {64}, NULL},        {256, 512, 128, {64}, "causal"}, {256, 1024, 128, {64, 80}, NULL},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct spec spec = spec_plain(rows[i].dim, rows[i].dim);
		const int heads = rows[i].dim > 128 ? 8 : rows[i].dim == 96 ? 20 : 2048 / rows[i].dim;
		const struct problem problem = {16384 / rows[i].seq, heads, heads, rows[i].seq, rows[i].seq, 16};
		if (rows[i].mask)
			spec_mask(&spec, rows[i].mask, 0, 0);
		must_make(&plan, &spec, "H200", &problem, PASS_FORWARD);
		const struct candidate *c = best(&plan);
		ck_assert_str_eq(plan.templ, "sm90/fwd");
		ck_assert_msg(c->tile_m == rows[i].m && (c->tile_n == rows[i].keys[0] || c->tile_n == rows[i].keys[1]), "d %d, %s, %d: %dx%d", rows[i].dim,
		              rows[i].mask ? rows[i].mask : "full", rows[i].seq, c->tile_m, c->tile_n);
		ck_assert_int_eq(c->ctas_wanted, rows[i].dim == 64 && rows[i].m == 128 ? 2 : 1);
	}
}
END_TEST

/* What an H200 has timed as the fastest tile of the portable kernels; docs/performance.md, "Versions". Elsewhere three stages are for shared memory and
 * registers that can hold them. */
START_TEST(portable_choices)
{
	static const struct {
		const char *keys;
		const struct template_model *model;
		int seq, m, n, warps, stages;
	} rows[] = {
		{"head_dim: 256", &model_sm80_fwd, 512, 128, 128, 8, 1},
		{"head_dim: 256", &model_sm80_fwd, 1024, 128, 128, 8, 1},
		{"head_dim: 256", &model_sm80_fwd, 4096, 128, 128, 8, 1},
		{"head_dim: 256\nmask: causal", &model_sm80_fwd, 512, 64, 64, 4, 1},
		{"head_dim: 256\nmask: causal", &model_sm80_fwd, 4096, 128, 128, 8, 1},
		{"head_dim: 128", &model_sm80_fwd, 4096, 128, 64, 4, 1},
		{"head_dim: 64", &model_sm80_fwd, 4096, 128, 64, 4, 1},
		{"head_dim: 128", &model_sm80_bwd, 512, 64, 128, 8, 3},
		{"head_dim: 128", &model_sm80_bwd, 16384, 64, 128, 8, 3},
		{"head_dim: 128\nmask: document", &model_sm80_bwd, 4096, 64, 128, 8, 3},
		{"head_dim: 64", &model_sm80_bwd, 4096, 64, 128, 4, 2},
		{"head_dim: 256", &model_sm80_bwd, 4096, 128, 64, 8, 1},
		{"head_dim: 192", &model_sm80_bwd, 4096, 128, 64, 8, 1},
		{"head_dim: 96", &model_sm80_bwd, 4096, 128, 128, 8, 2},
		{"head_dim: 64\nmask: causal", &model_sm80_bwd, 1024, 64, 128, 4, 2},
		{"head_dim: 128\nmask: causal\nscore: t5_causal", &model_sm80_bwd, 4096, 64, 128, 8, 3},
		{"head_dim: 128\nscore: bias", &model_sm80_bwd, 4096, 64, 128, 8, 2},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		const struct spec spec = parse(rows[i].keys);
		const int heads = 2048 / spec.head_dim_qk;
		const struct problem problem = {16384 / rows[i].seq, heads, heads, rows[i].seq, rows[i].seq, 16};
		must_make_with(&plan, rows[i].model, &spec, "H200", &problem);
		const struct candidate *c = best(&plan);
		ck_assert_msg(c->tile_m == rows[i].m && c->tile_n == rows[i].n && c->warps == rows[i].warps && c->stages == rows[i].stages, "%s, %d: %dx%d w%d s%d",
		              rows[i].keys, rows[i].seq, c->tile_m, c->tile_n, c->warps, c->stages);
	}
	static const char *const without[] = {"A100", "B200"};
	for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
		const struct spec spec = spec_plain(128, 128);
		must_make_with(&plan, &model_sm80_bwd, &spec, without[i], &usual);
		ck_assert_msg(best(&plan)->stages < 3, "%s", without[i]);
	}
	struct spec dropout = spec_plain(128, 128);
	dropout.keep_256 = 230;
	must_make_with(&plan, &model_sm80_bwd, &dropout, "H200", &usual);
	ck_assert_int_lt(best(&plan)->stages, 3);
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("plan_templates");
	TCase *t = tcase_create("plan_templates");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, the_fastest_serves);
	tcase_add_test(t, one_template_has_no_others);
	tcase_add_test(t, native_backwards_refuse);
	tcase_add_test(t, native_ordered);
	tcase_add_test(t, native_deterministic);
	tcase_add_test(t, pair_recipe);
	tcase_add_loop_test(t, others_have_reasons, 0, sizeof served / sizeof *served);
	tcase_add_test(t, what_none_can_do);
	tcase_add_loop_test(t, two_ctas_share_an_sm, 0, 13);
	tcase_add_loop_test(t, items_are_sorted, 0, SORTERS * (int)(sizeof sorted / sizeof *sorted));
	tcase_add_loop_test(t, native_recipe, 0, 2 * sizeof queued / sizeof *queued);
	tcase_add_test(t, rows_wait_in_shared_memory);
	tcase_add_test(t, what_nobody_shares_is_read_once);
	tcase_add_test(t, maps_and_others_are_printed);
	tcase_add_test(t, speculation);
	tcase_add_test(t, native_anchors);
	tcase_add_test(t, native_choices);
	tcase_add_test(t, portable_choices);
	suite_add_tcase(s, t);
	return s;
}
