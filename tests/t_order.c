/* fagen_order (templates/order.cu), run on the CPU by the driver and the compiler of tests/emulate: its order beside one that is made cell by
 * cell and by sorting. Run from the root of the repository. */
#include <check.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "gen/emit.h"
#include "runtime/dl.h"
#include "templates/abi.h"
#include "tests/plan_help.h"
#include "tests/spec_help.h"

#define DEVICE static
DEVICE int int_min(int a, int b) { return a < b ? a : b; }
DEVICE int int_max(int a, int b) { return a > b ? a : b; }
#include "templates/section.h"

enum { ENTRIES_MAX = 700, GUARD = 64 };

Suite *suite(void);

/* ---- cases ---- */

#define BOTH "passes: [forward, backward]"
#define WHOLE "tile: {forward: {m: 128, n: 64, splits: 1}, backward: {m: 64, n: 128, splits: 1}}, "
#define DOCUMENTS "mask: {all: [causal, \"doc[h, q] == doc[h, k]\"]}, " WHOLE "inputs: {doc: {dtype: i32, shape: [heads, seq_k]}}, " BOTH "}"
static const char packed[] = "{head_dim: 64, kv_group: 2, layout: packed, mask: causal, " BOTH "}",
		  packed_wide[] = "{head_dim: 192, kv_group: 2, layout: packed, mask: causal, " BOTH "}",
		  packed_heads[] = "{head_dim: 64, kv_group: 4, layout: packed, mask: causal, tile: {forward: {m: 128, n: 64, heads: 4}}}",
		  packed_one[] = "{head_dim: 64, kv_group: 1, layout: packed, mask: causal, " WHOLE BOTH "}",
		  padded[] = "{head_dim: 64, kv_group: 1, layout: padded, " BOTH "}",
		  documents[] = "{head_dim: 64, kv_group: 2, " DOCUMENTS,
		  documents_padded[] = "{head_dim: 64, kv_group: 2, layout: padded, " DOCUMENTS;

static const struct order_case {
	const char *yaml;
	const struct template_model *model;
	int batch, heads_q;
	int length;  /* of every entry, at the most; documents are about a sixth of it */
	int last;    /* packed: of the last entry */
	int declared; /* longest entry that a launch is made for */
} cases[] = {
	{packed, &model_sm80_fwd, 9, 4, 150, 2000, 2000},
	{packed, &model_sm80_bwd, 9, 4, 150, 2000, 2000},
	{packed, &model_sm90_fwd, 9, 4, 150, 2000, 2000},
	{packed, &model_sm90_bwd, 9, 4, 150, 2000, 2000},
	{packed_wide, &model_sm90_bwd_pair, 9, 4, 150, 2000, 2000},
	{packed_heads, &model_sm90_fwd, 9, 8, 150, 1000, 1000},
	{packed, &model_sm80_fwd, ENTRIES_MAX, 4, 20, 1500, 1500}, /* a warp of the sorting CTA has more than one load of a lane brings */
	{packed_one, &model_sm90_fwd, 1, 1, 0, 100, 100},
	{packed_one, &model_sm80_bwd, 1, 1, 0, 1, 100},
	{padded, &model_sm80_fwd, 7, 3, 900, 0, 900},
	{padded, &model_sm80_bwd, 7, 3, 900, 0, 900},
	{padded, &model_sm90_fwd, 7, 3, 900, 0, 900},
	{padded, &model_sm90_bwd, 7, 3, 900, 0, 900},
	{documents, &model_sm80_fwd, 1, 4, 3000, 0, 3000},
	{documents, &model_sm80_bwd, 1, 4, 3000, 0, 3000},
	{documents_padded, &model_sm90_fwd, 2, 4, 3000, 0, 3000},
	{documents_padded, &model_sm90_bwd, 2, 4, 3000, 0, 3000},
	{documents, &model_sm80_fwd, 1, 2, 6000, 0, 6000}, /* tiles for more than one round of a warp */
};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- the truth ---- */

struct world {
	const struct order_case *c;
	struct spec spec;
	const struct candidate *tile;
	bool keys;                                       /* items are key tiles */
	int heads;                                       /* that items are of */
	int group;                                       /* query heads whose visits an item has, where each has its own */
	int length[ENTRIES_MAX], cu[ENTRIES_MAX + 1];    /* used; packed: first rows */
	int *doc;                                        /* [heads_q][length] */
	unsigned items;
	int *visits;                                     /* of the item of each number */
};

static int ceil_of(int a, int b) { return (a + b - 1) / b; }
static int own_size(const struct world *w) { return w->keys ? w->tile->tile_n : w->tile->positions; }

static bool cell_seen(const struct world *w, int b, int h, int q, int k)
{
	if (w->spec.layout == LAYOUT_PADDED && !w->doc)
		return q < w->length[b] && k < w->length[b];
	return k <= q && (!w->doc || w->doc[h * w->c->length + q] == w->doc[h * w->c->length + k]);
}

static int visits_of(const struct world *w, int b, int h, int own)
{
	const int size = own_size(w), inner = w->keys ? w->tile->tile_m : w->tile->tile_n, length = w->length[b];
	int count = 0;
	for (int head = h * w->group; head < (h + 1) * w->group; head++)
		for (int first = 0; first < length; first += inner) {
			bool seen = false;
			for (int x = own * size; x < length && x < (own + 1) * size && !seen; x++)
				for (int y = first; y < length && y < first + inner && !seen; y++)
					seen = w->keys ? cell_seen(w, b, head, y, x) : cell_seen(w, b, head, x, y);
			count += seen;
		}
	return count;
}

/* Lengths are about the same from one of 0, 1, 2, 3, 4, 6, 8, 12, 16, .. to before the next. */
static int bucket_of(int visits)
{
	int bucket = 0;
	for (int twice = 2; twice <= 2 * visits; bucket++)
		twice += twice < 4 ? 2 : (twice & (twice - 1)) == 0 ? twice / 2 : twice / 3;
	return bucket;
}

/* The tiles in the order that they have without a longer one to come first. */
static void items_number(struct world *w)
{
	const struct order_case *c = w->c;
	const int size = own_size(w), total = w->cu[c->batch];
	if (w->spec.layout == LAYOUT_PACKED) {
		w->items = (unsigned)((total / size + c->batch) * w->heads);
		w->visits = calloc(w->items + 1, sizeof *w->visits);
		for (int b = 0; b < c->batch; b++) {
			const int begin = w->cu[b] / size + b, room = w->cu[b + 1] / size + b + 1 - begin, tiles = ceil_of(w->length[b], size);
			for (int h = 0; h < w->heads; h++)
				for (int tile = 0; tile < tiles; tile++) /* numbers to spare are last forward's first */
					w->visits[begin * w->heads + h * room + (w->keys ? tile : room - 1 - tile)] = visits_of(w, b, h, tile);
		}
		return;
	}
	const int tiles = ceil_of(c->length, size), all = w->heads * c->batch;
	w->items = (unsigned)(tiles * all);
	w->visits = calloc(w->items + 1, sizeof *w->visits);
	const struct spec *s = &w->spec;
	const int64_t kib = ((int64_t)c->length * s->head_dim_qk * (w->keys ? 8 * s->kv_group : 4) >> 10) + 1; /* of a head, which a section shares */
	const int fit = (int)(w->keys ? (8 << 10) / kib : (24 << 10) / kib * s->kv_group), least = w->keys ? 1 : s->kv_group;
	const int section = int_min(int_max(fit, least), all);
	for (unsigned n = 0; n < w->items; n++) {
		const struct Placed at = section_placed(n, sections_make(tiles, all, section, 0));
		w->visits[n] = visits_of(w, at.head / w->heads, at.head % w->heads, w->keys ? at.tile : tiles - 1 - at.tile);
	}
}

/* ---- the kernel ---- */

static void *symbol(void *library, const char *name)
{
	void *at = dlsym(library, name);
	ck_assert_msg(at != NULL, "%s", name);
	return at;
}
#define CALL(library, name, ...) (*(int (**)(__VA_ARGS__))&(void *[]){symbol(library, #name)}[0])

static cu_library load(void *cuda, const char *source)
{
	void *const nvrtc = dlopen("build/emulate/libnvrtc.so.13", RTLD_NOW);
	ck_assert_msg(nvrtc != NULL, "%s", dlerror());
	void *program;
	size_t len;
	ck_assert_int_eq(CALL(nvrtc, nvrtcCreateProgram, void **, const char *, const char *, int, const char *const *, const char *const *)(
				 &program, source, "order", 0, NULL, NULL), 0);
	ck_assert_int_eq(CALL(nvrtc, nvrtcCompileProgram, void *, int, const char *const *)(program, 0, NULL), 0);
	ck_assert_int_eq(CALL(nvrtc, nvrtcGetCUBINSize, void *, size_t *)(program, &len), 0);
	char *const code = malloc(len);
	cu_library library;
	ck_assert_int_eq(CALL(nvrtc, nvrtcGetCUBIN, void *, char *)(program, code), 0);
	ck_assert_int_eq(CALL(cuda, cuLibraryLoadData, cu_library *, const void *, void *, void *, unsigned, void *, void *, unsigned)(
				 &library, code, NULL, NULL, 0, NULL, NULL, 0), 0);
	free(code);
	return library;
}

static void run(void *cuda, cu_library library, const struct recipe_kernel *kernel, int64_t grid, struct fagen_abi *abi)
{
	cu_kernel found;
	void *params[] = {abi, NULL};
	ck_assert_int_eq(CALL(cuda, cuLibraryGetKernel, cu_kernel *, cu_library, const char *)(&found, library, kernel->entry), 0);
	ck_assert_int_eq(CALL(cuda, cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cu_stream,
			      void **, void **)(found, (unsigned)grid, 1, 1, (unsigned)kernel->threads, 1, 1, 0, NULL, params, NULL), 0);
	ck_assert_int_eq(CALL(cuda, cuCtxSynchronize, void)(), 0);
}

/* ---- the test ---- */

static struct world world;

static void world_fill(struct world *w, const struct order_case *c)
{
	w->c = c;
	w->spec = parse(c->yaml);
	const struct problem problem = {.batch = c->batch, .heads_q = c->heads_q, .heads_kv = c->heads_q / w->spec.kv_group,
	                                .seqlen_q = c->declared, .seqlen_k = c->declared, .align = 16};
	must_make_with(&plan, c->model, &w->spec, "H200", &problem);
	w->tile = &plan.candidate[plan.chosen];
	w->keys = c->model->pass == PASS_BACKWARD;
	w->heads = w->keys ? (int)problem.heads_kv : c->heads_q / w->tile->heads;
	w->group = w->keys && w->spec.input_count > 0 ? w->spec.kv_group : 1;
	for (int b = 0; b < c->batch; b++) {
		w->length[b] = w->spec.layout == LAYOUT_DENSE ? c->length : rng_in(0, 3) ? (int)rng_in(0, c->length) : 0;
		if (w->spec.layout == LAYOUT_PACKED && b == c->batch - 1)
			w->length[b] = c->last;
		w->cu[b + 1] = w->cu[b] + w->length[b];
	}
	if (w->spec.input_count > 0) { /* documents */
		w->doc = malloc((size_t)(c->heads_q * c->length) * sizeof *w->doc);
		for (int h = 0; h < c->heads_q; h++)
			for (int k = 0, number = 0; k < c->length; k++)
				w->doc[h * c->length + k] = number += rng_in(0, c->length / 6) == 0;
	}
	items_number(w);
}

START_TEST(the_longest_come_first)
{
	const struct order_case *c = &cases[_i];
	struct world *const w = &world;
	struct program program;
	(void)other; /* of plan_help.h */
	struct text source = {0};
	struct diag diag = {0};
	world_fill(w, c);
	lower(&program, &w->spec);
	ck_assert_msg(!source_emit(&source, &w->spec, &program, &plan, NULL, &diag), "%s", text_str(&diag.text));
	void *const cuda = dlopen("build/emulate/libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	ck_assert_msg(cuda != NULL, "%s", dlerror());
	const cu_library library = load(cuda, text_str(&source));

	struct fagen_abi abi = {.batch = c->batch, .heads_q = c->heads_q, .heads_kv = c->heads_q / w->spec.kv_group, .kv_group = w->spec.kv_group,
	                        .seqlen_q = c->declared, .seqlen_k = c->declared};
	struct recipe_shape shape = {.batch = c->batch, .heads_q = abi.heads_q, .heads_kv = abi.heads_kv, .seqlen_q = c->declared,
	                             .seqlen_k = c->declared, .sms = 3};
	if (w->spec.layout == LAYOUT_PACKED) {
		abi.cu_seqlens_q = abi.cu_seqlens_k = (uintptr_t)w->cu;
		abi.total_q = abi.total_k = w->cu[c->batch];
		shape.packed = true, shape.total_q = shape.total_k = abi.total_q;
	} else if (w->spec.layout == LAYOUT_PADDED) {
		abi.seqlens_q = abi.seqlens_k = (uintptr_t)w->length;
	}
	if (w->doc) {
		abi.input[0].data = (uintptr_t)w->doc;
		abi.input[0].stride[0] = c->length, abi.input[0].stride[1] = 1;
	}
	unsigned char *order = NULL;
	size_t bytes = 0;
	for (int i = 0; i < plan.recipe.piece_count; i++) {
		const struct recipe_piece *piece = &plan.recipe.piece[i];
		const int64_t size = recipe_piece_bytes(piece, &shape);
		unsigned char *const at = aligned_alloc(256, (size_t)size + 256);
		if (strcmp(piece->name, "bounds_rows") == 0)
			abi.bounds_rows = (uintptr_t)at;
		else if (strcmp(piece->name, "bounds_cols") == 0)
			abi.bounds_cols = (uintptr_t)at;
		else if (strcmp(piece->name, "order") == 0)
			order = at, bytes = piece->zeroed ? (size_t)size : 0;
	}
	ck_assert_int_gt(bytes, 0);
	abi.order = (uintptr_t)order;
	memset(order, 0, bytes);
	memset(order + bytes, 0x5a, GUARD);
	for (int i = 0; i < plan.recipe.kernel_count; i++) {
		const struct recipe_kernel *kernel = &plan.recipe.kernel[i];
		if (!grid_is_order(kernel->grid)) {
			run(cuda, library, kernel, recipe_grid_size(kernel, &shape), &abi);
			continue;
		}
		const int64_t warps = kernel->threads / 32, ctas = (w->items + warps - 1) / warps;
		const bool pays = (int64_t)w->items > 3 * kernel->beyond && c->declared * (w->keys ? w->spec.kv_group : 1) > ORDER_LENGTH;
		ck_assert_int_eq(recipe_grid_size(kernel, &shape), pays ? ctas : 0);
		run(cuda, library, kernel, ctas, &abi);
		break;
	}
	for (int i = 0; i < GUARD; i++)
		ck_assert_int_eq(order[bytes + (size_t)i], 0x5a);

	/* Every number once; no later item is of longer ones; of those that are about as long the first numbers come first. */
	const unsigned *const number = (const unsigned *)(const void *)order;
	unsigned char *const seen = calloc(w->items + 1, 1);
	for (unsigned i = 0; i < w->items; i++) {
		ck_assert_msg(number[i] < w->items && !seen[number[i]]++, "place %u of %u has item %u", i, w->items, number[i]);
		if (i == 0)
			continue;
		const int before = bucket_of(w->visits[number[i - 1]]), here = bucket_of(w->visits[number[i]]);
		ck_assert_msg(before > here || (before == here && number[i - 1] < number[i]), "item %u with %d visits before item %u with %d",
		              number[i - 1], w->visits[number[i - 1]], number[i], w->visits[number[i]]);
	}
	int longest = 0;
	for (unsigned i = 0; i < w->items; i++)
		longest = int_max(longest, w->visits[i]);
	ck_assert_int_gt(longest, 0);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("order");
	TCase *t = tcase_create("emulated");
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, the_longest_come_first, 0, CASES);
	suite_add_tcase(s, t);
	return s;
}
