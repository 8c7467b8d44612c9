/* The tables of machines, problems as text, recipes as text, and the arithmetic of grids and workspace. */
#include <check.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gen/model.h"

static uint64_t rng_state = 0x9E3779B97F4A7C15u;
static uint64_t rng(void)
{
	rng_state ^= rng_state << 13;
	rng_state ^= rng_state >> 7;
	return rng_state ^= rng_state << 17;
}
static int64_t rng_in(int64_t least, int64_t most) { return least + (int64_t)(rng() % (uint64_t)(most - least + 1)); }

/* ---- arch ---- */

START_TEST(binary_compatibility)
{
	/* NVIDIA's compatibility guides: what each of our targets runs on, all else not. */
	static const struct {
		const char *target;
		int runs[8];
	} table[] = {
		{"sm_80", {80, 86, 87, 89}}, {"sm_86", {86, 87, 89}}, {"sm_89", {89}}, {"sm_90a", {90}},
		{"sm_100f", {100, 103}},     {"sm_120f", {120, 121}},
	};
	static const int capabilities[] = {50, 61, 70, 75, 80, 86, 87, 89, 90, 100, 101, 103, 110, 120, 121, 130};
	ck_assert_int_eq(sizeof table / sizeof *table, TARGET_COUNT);
	for (size_t t = 0; t < sizeof table / sizeof *table; t++) {
		const struct target *target = target_find(table[t].target);
		ck_assert_ptr_nonnull(target);
		for (size_t c = 0; c < sizeof capabilities / sizeof *capabilities; c++) {
			bool expected = false;
			for (int i = 0; i < 8; i++)
				expected |= table[t].runs[i] == capabilities[c];
			ck_assert_msg(target_runs_on(target, capabilities[c]) == expected, "%s on %d", table[t].target,
			              capabilities[c]);
		}
	}
}
END_TEST

START_TEST(best_target)
{
	static const struct {
		int cc;
		const char *target;
	} table[] = {
		{70, NULL},       {75, NULL},       {80, "sm_80"},    {86, "sm_86"}, {87, "sm_86"},    {89, "sm_89"},
		{90, "sm_90a"},   {91, NULL},       {100, "sm_100f"}, {101, NULL},   {103, "sm_100f"}, {110, NULL},
		{120, "sm_120f"}, {121, "sm_120f"}, {130, NULL},      {0, NULL},     {-1, NULL},
	};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		const struct target *target = target_for_cc(table[i].cc);
		ck_assert_msg((target == NULL) == (table[i].target == NULL) &&
		                      (!target || strcmp(target->name, table[i].target) == 0),
		              "%d: %s", table[i].cc, target ? target->name : "none");
	}
}
END_TEST

START_TEST(tables_agree)
{
	for (int i = 0; i < TARGET_COUNT; i++) {
		const struct target *t = &target_table[i];
		ck_assert_ptr_eq(target_find(t->name), t);
		ck_assert_ptr_nonnull(device_for_target(t));
		ck_assert_str_eq(device_for_target(t)->target, t->name);
		ck_assert_int_eq(t->smem_block, t->smem_sm - 1024);
		ck_assert(t->red_width == 1 || t->red_width == 4);
		for (int pass = 0; pass < PASS_COUNT; pass++)
			for (int naive = 0; naive < 2; naive++) {
				const struct template_model *row[TEMPLATES_MAX];
				const int rows = templates_find(row, pass, t, naive);
				const int native = naive || t->cc != 90 ? 0 : pass == PASS_FORWARD ? 1 : 2;
				ck_assert_int_eq(rows, native + 1);
				ck_assert_int_eq(row[rows - 1]->align_min, 0); /* the portable one takes everything */
				for (int r = 0; r < rows; r++) {
					ck_assert_int_eq(row[r]->pass, pass);
					ck_assert_int_eq(row[r]->naive, naive);
				}
			}
	}
	for (int i = 0; i < device_count; i++) {
		const struct device *d = &device_table[i];
		ck_assert_ptr_nonnull(target_find(d->target));
		ck_assert_ptr_eq(device_find(d->name), d);
		ck_assert(d->sms > 0 && d->clock_ghz > 0.5 && d->clock_ghz < 3.5 && d->hbm_gbs > 0 &&
		          d->l2_gbs > d->hbm_gbs);
		/* Nothing reaches the advertised peak of the newest part. */
		ck_assert(d->sms * d->clock_ghz * d->mma_flop_clk < 1e6);
	}
	ck_assert_ptr_null(target_find("sm_90"));
	ck_assert_ptr_null(target_find(""));
}
END_TEST

START_TEST(device_names)
{
	static const struct {
		const char *said, *found;
	} table[] = {
		{"h200", "H200"},
		{"NVIDIA H200", "H200"},
		{"NVIDIA H100 80GB HBM3", "H100"},
		{"NVIDIA H100 PCIe", "H100 PCIe"},
		{"NVIDIA A100-SXM4-80GB", "A100"},
		{"NVIDIA GeForce RTX 4090", "RTX 4090"},
		{"rtx 5090", "RTX 5090"},
		{"NVIDIA L40S", "L40S"},
		{"NVIDIA L4", "L4"},
		{"NVIDIA GeForce RTX 4090 Laptop GPU", NULL},
		{"NVIDIA H20", NULL},
		{"NVIDIA A1000", NULL},
		{"Tesla V100", NULL},
		{"", NULL},
	};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		const struct device *d = device_find(table[i].said);
		ck_assert_msg((d == NULL) == (table[i].found == NULL) && (!d || strcmp(d->name, table[i].found) == 0),
		              "'%s' gives %s", table[i].said, d ? d->name : "none");
	}
}
END_TEST

/* ---- problem ---- */

START_TEST(problem_text)
{
	struct problem p = {4, 32, 8, 4096, 0, 16}, q;
	struct text text = {0};
	struct diag diag = {0};
	problem_print(&text, &p);
	ck_assert_str_eq(text_str(&text), "b4 hq32 hkv8 sq4096 sk0 align16");
	for (int i = 0; i < 2000; i++) {
		p = (struct problem){rng_in(0, LENGTH_MAX), 0,
		                     rng_in(1, 40000),      rng_in(0, LENGTH_MAX),
		                     rng_in(0, LENGTH_MAX), rng() & 1 ? 16 : 2};
		p.heads_q = p.heads_kv * rng_in(1, 20000);
		text.len = 0;
		problem_print(&text, &p);
		ck_assert_int_eq(problem_parse(&q, text_str(&text), &diag), 0);
		ck_assert(q.batch == p.batch && q.heads_q == p.heads_q && q.heads_kv == p.heads_kv &&
		          q.seqlen_q == p.seqlen_q && q.seqlen_k == p.seqlen_k && q.align == p.align);
	}
	ck_assert_int_eq(diag.errors, 0);
	static const char *const bad[] = {
		"",
		"b4",
		"b4 hq32 hkv8 sq4096 sk4096",
		"b4 hq32 hkv8 sq4096 sk4096 align8",
		"b4 hq32 hkv8 sq4096 sk4096 align16 ",
		"b4  hq32 hkv8 sq1 sk1 align16",
		"b-1 hq1 hkv1 sq1 sk1 align16",
		"b1 hq0 hkv1 sq1 sk1 align16",
		"b1 hq1 hkv0 sq1 sk1 align16",
		"b1 hq33 hkv2 sq1 sk1 align16",
		"b1 hq3 hkv2 sq1 sk1 align2",
		"b1 hq1 hkv2 sq1 sk1 align2",
		"b1073741825 hq1 hkv1 sq1 sk1 align2",
		"b1 hq1 hkv1 sq99999999999999999999 sk1 align2",
		"b1 hq1 hkv1 sq1 sk1073741825 align2",
		"hq1 b1 hkv1 sq1 sk1 align2",
		"b1 hq1 hkv1 sq0x10 sk1 align2",
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		const int before = diag.errors;
		q.batch = 77;
		ck_assert_msg(problem_parse(&q, bad[i], &diag) == -1, "accepted '%s'", bad[i]);
		ck_assert_int_gt(diag.errors, before);
		ck_assert_int_eq(q.batch, 77);
	}
	text_free(&text);
	diag_free(&diag);
}
END_TEST

START_TEST(problem_groups) /* HD-17: refused before anything is made, with the numbers */
{
	static const struct {
		int64_t q, kv;
		int group;
		bool good;
	} table[] = {
		{12, 2, 6, true},  {40, 8, 5, true}, {9, 3, 3, true},  {7, 1, 7, true},  {12, 2, 0, true},
		{33, 2, 0, false}, {3, 2, 0, false}, {4, 0, 0, false}, {2, 4, 0, false}, {12, 2, 4, false},
	};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		const struct problem p = {1, table[i].q, table[i].kv, 8, 8, 16};
		struct diag diag = {0};
		ck_assert_int_eq(problem_check(&p, table[i].group, &diag), table[i].good ? 0 : -1);
		ck_assert_int_eq(diag.errors > 0, !table[i].good);
		diag_free(&diag);
	}
	struct diag diag = {0};
	const struct problem p = {1, 33, 2, 8, 8, 16};
	ck_assert_int_eq(problem_check(&p, 0, &diag), -1);
	ck_assert_ptr_nonnull(strstr(text_str(&diag.text), "heads_q is 33 and heads_kv 2"));
	ck_assert_ptr_nonnull(strstr(text_str(&diag.text), "32 and 34"));
	diag_free(&diag);
}
END_TEST

/* ---- recipe ---- */

/* Heads that share tiles, where kv_group has such a divisor. */
static int heads_random(const struct recipe *r)
{
	const int heads = (int)rng_in(2, RECIPE_HEADS_MAX);
	return r->kv_group > 0 && r->kv_group % heads == 0 ? heads : 0;
}

static struct recipe_tail tail_random(void)
{
	return (struct recipe_tail){.visit = (int)rng_in(1, 300), .resident = (int)rng_in(1, 4), .alike = (int)rng_in(0, 1), .ends = (int)rng_in(0, 9), .join = (int)rng_in(0, 20)};
}

static struct recipe recipe_random(void)
{
	struct recipe r = {0};
	r.load_bytes = rng() & 1 ? 16 : 2;
	r.kv_group = (int)rng_in(0, 64);
	r.kernel_count = (int)rng_in(0, RECIPE_KERNELS_MAX);
	r.piece_count = (int)rng_in(0, RECIPE_PIECES_MAX);
	r.map_count = (int)rng_in(0, 4);
	for (int i = 0, first = (int)rng_in(0, 3); i < r.map_count; i++) {
		static const char *const names[] = {"query", "key", "value", "dout"};
		strcpy(r.map[i].name, names[(first + i) % 4]);
		r.map[i].rows = (int)rng_in(1, 256);
		r.map[i].heads = rng() & 1 ? (int)rng_in(2, RECIPE_HEADS_MAX) : 0;
	}
	for (int i = 0; i < r.kernel_count; i++) {
		struct recipe_kernel *k = &r.kernel[i];
		const int len = (int)rng_in(1, RECIPE_NAME_MAX - 1);
		for (int c = 0; c < len; c++)
			k->entry[c] = "abcdefghijklmnopqrstuvwxyz_0123456789"[rng_in(0, c ? 36 : 26)];
		k->grid = (enum recipe_grid)rng_in(0, GRID_COUNT - 1);
		k->tile = (int)rng_in(1, 512);
		k->threads = (int)rng_in(1, 1024);
		k->smem_bytes = (int)rng_in(0, INT32_MAX);
		const bool cut = k->grid == GRID_PERSISTENT || k->grid == GRID_PERSISTENT_KEYS;
		k->parts = cut && rng() & 1 ? (int)rng_in(2, RECIPE_PARTS_MAX) : 0;
		k->heads = k->grid == GRID_PERSISTENT || k->grid == GRID_ORDER_QUERIES ? heads_random(&r) : 0;
		k->beyond = grid_is_order(k->grid) ? (int)rng_in(1, INT32_MAX) : 0;
		if (k->grid == GRID_KEY_TAILS || k->grid == GRID_KEY_TAILS_JOIN || k->grid == GRID_PERSISTENT_TAILS || k->grid == GRID_PERSISTENT_KEY_TAILS ||
		    k->grid == GRID_TAILS_JOIN)
			k->tail = tail_random();
		if (k->grid == GRID_KEY_TAILS_JOIN || k->grid == GRID_TAILS_JOIN)
			k->parts = (int)rng_in(1, 300);
		k->keys = k->grid == GRID_BOUNDS ? (int)rng_in(1, 512) : 0;
	}
	for (int i = 0; i < r.piece_count; i++) {
		struct recipe_piece *p = &r.piece[i];
		strcpy(p->name, rng() & 1 ? "delta" : "dquery_accum");
		p->size = (enum recipe_size)rng_in(0, SIZE_COUNT - 1);
		p->tile = (int)rng_in(0, 512);
		p->unit = (int)rng_in(0, 256);
		p->zeroed = (int)rng_in(0, 1);
		if (p->size == SIZE_TAILS_Q || p->size == SIZE_TAILS_KV)
			p->tail = tail_random();
	}
	return r;
}

START_TEST(recipe_round_trip)
{
	struct text text = {0}, again = {0};
	struct diag diag = {0};
	for (int i = 0; i < 2000; i++) {
		const struct recipe r = recipe_random();
		struct recipe back;
		text.len = again.len = 0;
		recipe_print(&text, &r);
		ck_assert_msg(recipe_parse(&back, text_str(&text), &diag) == 0, "%s", text_str(&diag.text));
		recipe_print(&again, &back);
		ck_assert_str_eq(text_str(&text), text_str(&again));
		ck_assert_int_eq(memcmp(&r, &back, sizeof r), 0);
	}
	text_free(&text);
	text_free(&again);
	diag_free(&diag);
}
END_TEST

START_TEST(recipe_refuses)
{
	const char *const head = "recipe load_bytes 16 kv_group 1\n";
	static const char *const bad[] = {
		"kernel x grid rows tile 64 threads 128 smem_bytes 0\n",
		"kernel 1x grid scores tile 64 threads 128 smem_bytes 0\n",
		"kernel x grid scores tile 0 threads 128 smem_bytes 0\n",
		"kernel x grid scores tile 64 threads 2048 smem_bytes 0\n",
		"kernel x grid scores tile 64 threads 128 smem_bytes -1\n",
		"kernel x grid scores tile 064 threads 128 smem_bytes 1\n",
		"kernel x grid scores tile 64 threads 128 smem_bytes 99999999999\n",
		"kernel x grid scores tile 64 threads 128 smem_bytes 1 more\n",
		"kernel x grid scores tile 64 threads 128\n",
		"kernel x grid scores tile 64 threads 128 smem_bytes 1",
		"kernel ../x grid scores tile 64 threads 128 smem_bytes 1\n",
		"kernel aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa grid scores tile 64 threads 128 smem_bytes 1\n",
		"piece delta size rows tile 64 unit 0 zeroed 2\n",
		"piece delta size columns tile 64 unit 0 zeroed 1\n",
		"map out rows 64\n",
		"map quer rows 64\n",
		"map querys rows 64\n",
		"map  rows 64\n",
		"map query 64\n",
		"map query rows 0\n",
		"map query rows 257\n",
		"map query rows 064\n",
		"map query rows 64 more\n",
		"map query rows 64 heads\n",
		"map query rows 64 heads 1\n",
		"map query rows 64 heads 17\n",
		"map query rows 64",
		"map key rows 64\nmap query rows 64\nmap key rows 128\n",
		"map key rows 1\nmap query rows 1\nmap dout rows 1\nmap value rows 1\nmap value rows 1\n",
		"maps key rows 64\n",
		"kernel x grid persistent tile 64 threads 128 smem_bytes 0 parts\n",
		"kernel x grid persistent tile 64 threads 128 smem_bytes 0 parts 1\n",
		"kernel x grid persistent tile 64 threads 128 smem_bytes 0 parts 65\n",
		"kernel x grid persistent tile 64 threads 128 smem_bytes 0 pieces 2\n",
		"kernel x grid persistent tile 64 threads 128 smem_bytes 0 parts 2 more\n",
		"kernel x grid query_tiles tile 64 threads 128 smem_bytes 0 parts 2\n",
		"kernel x grid key_tiles tile 64 threads 128 smem_bytes 0 parts 2\n",
		"kernel x grid persistent_2 tile 64 threads 128 smem_bytes 0 parts 2\n",
		"kernel x grid persistent_keys tile 64 threads 128 smem_bytes 0 parts 65\n",
		"kernel x grid query_tiles tile 64 threads 128 smem_bytes 0 heads 2\n",
		"kernel x grid persistent tile 64 threads 128 smem_bytes 0 heads 2\n",
		"kernel x grid persistent tile 64 threads 128 smem_bytes 0 heads 2 parts 2\n",
		"kernel x grid persistant tile 64 threads 128 smem_bytes 0\n",
		"kernel x grid order_queries tile 64 threads 512 smem_bytes 0\n",
		"kernel x grid order_keys tile 64 threads 512 smem_bytes 0 beyond 0\n",
		"kernel x grid order_keys tile 64 threads 512 smem_bytes 0 beyond 2 heads 2\n",
		"kernel x grid order_queries tile 64 threads 512 smem_bytes 0 beyond 2 parts 2\n",
		"kernel x grid key_tiles tile 64 threads 512 smem_bytes 0 beyond 2\n",
		"recipe load_bytes 16 kv_group 1\n",
		"nonsense\n",
		"\n",
	};
	struct recipe r;
	struct text text = {0};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct diag diag = {0};
		text.len = 0;
		text_addf(&text, "%s%s", head, bad[i]);
		ck_assert_msg(recipe_parse(&r, text_str(&text), &diag) == -1 && diag.errors == 1, "accepted %s",
		              bad[i]);
		diag_free(&diag);
	}
	struct diag diag = {0};
	ck_assert_int_eq(recipe_parse(&r, "", &diag), -1);
	ck_assert_int_eq(recipe_parse(&r, "kernel x grid scores tile 64 threads 128 smem_bytes 1\n", &diag), -1);
	ck_assert_int_eq(recipe_parse(&r, "recipe load_bytes 8 kv_group 1\n", &diag), -1);
	text.len = 0;
	text_puts(&text, head);
	for (int i = 0; i <= RECIPE_KERNELS_MAX; i++)
		text_puts(&text, "kernel x grid scores tile 64 threads 128 smem_bytes 1\n");
	ck_assert_int_eq(recipe_parse(&r, text_str(&text), &diag), -1);
	/* Every prefix and every one-byte damage either parses or is refused; the sanitizers watch. */
	for (int i = 0; i < 20000; i++) {
		const struct recipe good = recipe_random();
		text.len = 0;
		recipe_print(&text, &good);
		text.data[rng() % text.len] = (char)rng_in(1, 255);
		text.data[rng() % text.len] = '\0';
		if (recipe_parse(&r, text.data, &diag) == 0)
			ck_assert(r.kernel_count <= RECIPE_KERNELS_MAX && r.piece_count <= RECIPE_PIECES_MAX &&
			          r.map_count <= RECIPE_MAPS_MAX);
	}
	text_free(&text);
	diag_free(&diag);
}
END_TEST

#define SHAPE(b, hq, hk, sq, sk) \
	(struct recipe_shape) { b, hq, hk, sq, sk, 0, 0, false, 132 }

START_TEST(grid_counts)
{
	for (int i = 0; i < 3000; i++) {
		const struct recipe_shape s = {.batch = rng_in(0, 4),
		                               .heads_q = rng_in(0, 9),
		                               .heads_kv = rng_in(0, 3),
		                               .seqlen_q = rng_in(0, 700),
		                               .seqlen_k = rng_in(0, 700),
		                               .total_q = rng_in(0, 700), /* says nothing here */
		                               .total_k = rng_in(0, 700),
		                               .sms = rng_in(1, 200)};
		const struct recipe_kernel k = {.tile = (int)rng_in(1, 200),
		                                .threads = 32 * (int)rng_in(1, 32),
		                                .beyond = (int)rng_in(1, 3),
		                                .grid = (enum recipe_grid)rng_in(0, GRID_COUNT - 1),
		                                .parts = (int)rng_in(0, 1) * (int)rng_in(2, RECIPE_PARTS_MAX),
		                                .tail = tail_random(),
		                                .keys = (int)rng_in(1, 200)};
		const struct recipe_cut cut = recipe_cut(true, k.tile, &k.tail, &s), cut_q = recipe_cut(false, k.tile, &k.tail, &s);
		int64_t tiles_q = 0, tiles_k = 0;
		for (int64_t q = 0; q < s.seqlen_q; q += k.tile)
			tiles_q++;
		for (int64_t n = 0; n < s.seqlen_k; n += k.tile)
			tiles_k++;
		int64_t bounds = 0; /* warps, then CTAs of them */
		for (int64_t n = 0; n < s.seqlen_k; n += k.keys)
			bounds += s.batch * s.heads_q;
		bounds = (bounds + tiles_q * s.batch * s.heads_q + k.threads / 32 - 1) / (k.threads / 32);
		const int64_t parts = k.parts ? k.parts : 1, heads = s.batch * s.heads_q, items = tiles_q * heads * parts;
		const int64_t items_k = tiles_k * s.heads_kv * s.batch * parts;
		const int64_t owned = k.grid == GRID_ORDER_KEYS ? tiles_k * s.heads_kv * s.batch : tiles_q * heads;
		const int64_t pairs = s.sms > 1 ? s.sms / 2 : 1;
		const int64_t joined = cut.parts ? tiles_k * s.heads_kv * s.batch - cut.first : 0, tails_q = tiles_q * heads + cut_q.tiles * (cut_q.parts - 1);
		const int64_t tails_k = tiles_k * s.heads_kv * s.batch + joined * (cut.parts - 1);
		int64_t sorters = 0; /* CTAs with a warp for each item */
		const int64_t other = k.grid == GRID_ORDER_KEYS && s.heads_kv ? s.seqlen_q * (s.heads_q / s.heads_kv) : s.seqlen_k;
		while (owned > k.beyond * s.sms && other > ORDER_LENGTH && sorters * (k.threads / 32) < owned)
			sorters++;
		const int64_t expected[GRID_COUNT] = {tiles_q * heads,
		                                      tiles_q * heads > 0 ? tiles_q * heads : 1,
		                                      tiles_k * s.heads_kv * s.batch,
		                                      tails_k,
		                                      joined * k.parts,
		                                      tiles_k * heads,
		                                      bounds,
		                                      tiles_q * tiles_k * heads,
		                                      items < s.sms ? items : s.sms,
		                                      tails_q < s.sms ? tails_q : s.sms,
		                                      tails_k < s.sms ? tails_k : s.sms,
		                                      cut_q.tiles * k.parts,
		                                      items_k < s.sms ? items_k : s.sms,
		                                      2 * (pairs < tiles_k * s.heads_kv * s.batch ? pairs : tiles_k * s.heads_kv * s.batch),
		                                      tiles_q * heads < 2 * s.sms ? tiles_q * heads : 2 * s.sms,
		                                      sorters,
		                                      sorters};
		ck_assert_int_eq(recipe_grid_size(&k, &s), expected[k.grid]);

		const struct recipe_piece p = {.tile = (int)rng_in(0, 200),
		                               .unit = (int)rng_in(0, 256),
		                               .size = (enum recipe_size)rng_in(0, SIZE_COUNT - 1),
		                               .tail = k.tail};
		int64_t rows = s.seqlen_q;
		while (p.tile > 0 && rows % p.tile != 0)
			rows++;
		if (p.size >= SIZE_TILES_Q && p.size <= SIZE_BLOCKS &&
		    (p.tile == 0 || (p.size == SIZE_BLOCKS && p.unit == 0))) {
			ck_assert_int_eq(recipe_piece_bytes(&p, &s), -1);
			continue;
		}
		int64_t down = 0, across = 0, blocks = 0; /* tiles of queries, tiles of keys, blocks of keys */
		for (int64_t n = 0; p.tile > 0 && n < s.seqlen_q; n += p.tile)
			down++;
		for (int64_t n = 0; p.tile > 0 && n < s.seqlen_k; n += p.tile)
			across++;
		for (int64_t n = 0; p.unit > 0 && n < s.seqlen_k; n += p.unit)
			blocks++;
		const struct recipe_cut own = recipe_cut(true, p.tile, &p.tail, &s), own_q = recipe_cut(false, p.tile, &p.tail, &s);
		int64_t bytes[SIZE_COUNT] = {4 * heads * rows,
		                             4 * heads * rows * p.unit,
		                             4 * heads * s.seqlen_q * s.seqlen_k,
		                             4 * heads * down * p.unit,
		                             4 * heads * across * p.unit,
		                             4 * s.batch * s.heads_kv * across * p.unit,
		                             4 * own_q.tiles * own_q.parts * p.unit,
		                             4 * own.tiles * own.parts * p.unit,
		                             heads * down * blocks,
		                             4 * p.unit};
		while (bytes[p.size] % 256 != 0)
			bytes[p.size]++;
		ck_assert_int_eq(recipe_piece_bytes(&p, &s), bytes[p.size]);
	}
}
END_TEST

/* When the last of CTAs ends that begin in their order, as soon as one of `at_once` is free: `whole` of so many visits, then `cut` in so many parts. */
static int64_t schedule_end(int64_t whole, int64_t cut, int64_t parts, int64_t visits, int64_t ends, int64_t at_once)
{
	int64_t *const free_at = calloc((size_t)at_once, sizeof *free_at), last = 0;
	ck_assert_ptr_nonnull(free_at);
	for (int64_t i = 0; i < whole + cut * parts; i++) {
		int64_t first = 0;
		for (int64_t slot = 1; slot < at_once; slot++)
			if (free_at[slot] < free_at[first])
				first = slot;
		const int64_t part = i < whole ? 0 : (i - whole) % parts;
		free_at[first] += ends + (i < whole ? visits : visits / parts + (part < visits % parts));
		last = free_at[first] > last ? free_at[first] : last;
	}
	free(free_at);
	return last;
}

/* Tiles are cut only where that ends sooner, by what it costs to join them at least; those that are not alike only if all run at once. */
START_TEST(cut_tiles_end_sooner)
{
	int cuts = 0;
	for (int i = 0; i < 3000; i++) {
		const struct recipe_tail tail = {
			.visit = 64, .resident = (int)rng_in(1, 2), .alike = (int)rng_in(0, 1), .ends = (int)rng_in(0, 6), .join = (int)rng_in(0, 12)};
		const bool keys = rng_in(0, 1);
		const struct recipe_shape s = {.batch = rng_in(1, 2),
		                               .heads_q = 6,
		                               .heads_kv = rng_in(0, 1) ? 6 : 2,
		                               .seqlen_q = keys ? rng_in(0, 9000) : rng_in(1, 3000),
		                               .seqlen_k = keys ? rng_in(1, 3000) : rng_in(0, 9000),
		                               .sms = rng_in(1, 40)};
		const int64_t owned = keys ? s.seqlen_k : s.seqlen_q, seen = keys ? s.seqlen_q : s.seqlen_k;
		const int64_t items = (owned + 127) / 128 * (keys ? s.heads_kv : s.heads_q) * s.batch, at_once = s.sms * tail.resident;
		const int64_t visits = (seen + 63) / 64 * (keys ? s.heads_q / s.heads_kv : 1);
		const struct recipe_cut cut = recipe_cut(keys, 128, &tail, &s);
		ck_assert_int_eq(cut.first + cut.tiles, items);
		if (cut.parts == 0) {
			ck_assert_int_eq(cut.tiles, 0);
			continue;
		}
		cuts++;
		ck_assert(cut.parts >= 2 && cut.parts <= RECIPE_PARTS_MAX && cut.first >= 0 && cut.first % at_once == 0);
		ck_assert(tail.alike || cut.first == 0);
		ck_assert_int_lt(schedule_end(cut.first, cut.tiles, cut.parts, visits, tail.ends, at_once) + tail.join,
		                 schedule_end(items, 0, 1, visits, tail.ends, at_once));
	}
	ck_assert_int_gt(cuts, 500);
	/* 2,048 tiles of 256 visits: 15.5 rounds of an H200's, that took the time of 16. */
	const struct recipe_tail tail = {.visit = 64, .resident = 1, .alike = 1, .ends = 2, .join = 8};
	const struct recipe_cut cut = recipe_cut(true, 128, &tail, &SHAPE(1, 16, 16, 16384, 16384));
	ck_assert_int_eq(cut.first, 15 * 132);
	ck_assert_int_lt(schedule_end(cut.first, 68, cut.parts, 256, 2, 132) + 8, 258 * 31 / 2 + 258 / 5);
}
END_TEST

/* Packed: the numbers that sequences take, each from where its first row falls on, never meet, and what is counted holds all. */
START_TEST(packed_room)
{
	for (int i = 0; i < 3000; i++) {
		const int64_t batch = rng_in(1, 40), tile = rng_in(1, 200), most = rng_in(0, 1) ? 3 : 900;
		int64_t first = 0, next = 0, longest = 0;
		for (int64_t b = 0; b < batch; b++) {
			const int64_t length = rng_in(0, 4) ? rng_in(0, most) : 0, begin = first / tile + b;
			ck_assert_int_ge(begin, next);
			next = begin + (length + tile - 1) / tile;
			first += length;
			longest = length > longest ? length : longest;
		}
		const struct recipe_shape s = {.batch = batch,
		                               .heads_q = 6,
		                               .heads_kv = 2,
		                               .seqlen_q = longest,
		                               .seqlen_k = longest,
		                               .total_q = first,
		                               .total_k = first,
		                               .packed = true,
		                               .sms = rng_in(1, 400)};
		struct recipe_kernel k = {.tile = (int)tile, .grid = GRID_QUERY_TILES};
		const int64_t room = first ? first / tile + batch : 0;
		ck_assert_int_ge(first ? room : next, next);
		ck_assert_int_eq(recipe_grid_size(&k, &s), 6 * room);
		k.grid = GRID_PERSISTENT;
		ck_assert_int_eq(recipe_grid_size(&k, &s), 6 * room < s.sms ? 6 * room : s.sms);
		k.grid = GRID_PERSISTENT_2;
		ck_assert_int_eq(recipe_grid_size(&k, &s), 6 * room < 2 * s.sms ? 6 * room : 2 * s.sms);
		k.grid = GRID_KEY_TILES;
		ck_assert_int_eq(recipe_grid_size(&k, &s), 2 * room);
		k.grid = GRID_PERSISTENT_KEYS;
		ck_assert_int_eq(recipe_grid_size(&k, &s), 2 * room < s.sms ? 2 * room : s.sms);
		k.grid = GRID_KEY_TILES_Q;
		ck_assert_int_eq(recipe_grid_size(&k, &s), 6 * room);
		k.grid = GRID_BOUNDS; /* a warp for each */
		k.threads = 96, k.keys = (int)tile;
		ck_assert_int_eq(recipe_grid_size(&k, &s), 4 * room);
		k.grid = GRID_ORDER_QUERIES; /* with the numbers to spare */
		k.threads = 64, k.beyond = 1;
		ck_assert_int_eq(recipe_grid_size(&k, &s), 6 * room > s.sms && longest > ORDER_LENGTH ? 3 * room : 0);
		k.grid = GRID_ORDER_KEYS;
		ck_assert_int_eq(recipe_grid_size(&k, &s), 2 * room > s.sms && 3 * longest > ORDER_LENGTH ? room : 0);
		k.grid = GRID_PERSISTENT_PAIRS; /* even, whatever the shape and the device */
		const int64_t fit = s.sms < 2 ? 2 : s.sms - s.sms % 2;
		ck_assert_int_eq(recipe_grid_size(&k, &s), 2 * 2 * room < fit ? 2 * 2 * room : fit);
		struct recipe_piece p = {.tile = (int)tile, .unit = 64, .size = SIZE_ROWS_QK};
		ck_assert_int_eq(recipe_piece_bytes(&p, &s), 4 * 6 * room * tile * 64);
		p.size = SIZE_TILES_K;
		ck_assert_int_eq(recipe_piece_bytes(&p, &s), 4 * 6 * room * 64);
		p.size = SIZE_TILES_KV;
		ck_assert_int_eq(recipe_piece_bytes(&p, &s), 4 * 2 * room * 64);
	}
}
END_TEST

START_TEST(grid_limits) /* I32-01, I32-02: past 2^31 elements, and past what fits */
{
	const int64_t big = INT64_MAX;
	struct recipe_kernel k = {.tile = 1, .threads = 32, .keys = 1, .beyond = 1, .grid = GRID_QUERY_TILES};
	ck_assert_int_eq(recipe_grid_size(&k, &SHAPE(1, 1, 1, INT32_MAX, 1)), INT32_MAX);
	ck_assert_int_eq(recipe_grid_size(&k, &SHAPE(1, 2, 1, INT32_MAX, 1)), -1);
	for (int grid = 0; grid < GRID_COUNT; grid++) {
		k.grid = (enum recipe_grid)grid;
		ck_assert_int_eq(recipe_grid_size(&k, &SHAPE(big, big, big, big, big)), -1);
		ck_assert_int_eq(recipe_grid_size(&k, &SHAPE(0, big, big, big, big)), grid == GRID_QUERY_TILES_1);
		ck_assert_int_eq(recipe_grid_size(&k, &SHAPE(1, 1, 1, -1, -1)), -1);
	}
	k.grid = GRID_PERSISTENT; /* refused where the tiles could not be counted in 31 bits, however few CTAs */
	ck_assert_int_eq(recipe_grid_size(&k, &SHAPE(1, 1, 1, INT32_MAX, 1)), 132);
	ck_assert_int_eq(recipe_grid_size(&k, &SHAPE(1, 2, 1, INT32_MAX, 1)), -1);
	k.parts = 2;
	ck_assert_int_eq(recipe_grid_size(&k, &SHAPE(1, 1, 1, INT32_MAX / 2, 1)), 132);
	ck_assert_int_eq(recipe_grid_size(&k, &SHAPE(1, 1, 1, INT32_MAX, 1)), -1);
	/* Heads that share tiles count as one. */
	const struct recipe_kernel shared = {.grid = GRID_PERSISTENT, .tile = 16, .heads = 8},
				   parts = {.grid = GRID_PERSISTENT, .tile = 16, .heads = 8, .parts = 3};
	ck_assert_int_eq(recipe_grid_size(&shared, &SHAPE(2, 64, 8, 20, 100)), 2 * 8 * 2);
	/* None where all run at once, or none is long. */
	const struct recipe_kernel order = {.grid = GRID_ORDER_QUERIES, .tile = 16, .threads = 512, .heads = 8, .beyond = 2};
	ck_assert_int_eq(recipe_grid_size(&order, &SHAPE(132, 16, 2, 16, 1000)), 0);
	ck_assert_int_eq(recipe_grid_size(&order, &SHAPE(133, 16, 2, 16, 1000)), 17);
	ck_assert_int_eq(recipe_grid_size(&order, &SHAPE(133, 16, 2, 16, ORDER_LENGTH + 1)), 17);
	ck_assert_int_eq(recipe_grid_size(&order, &SHAPE(133, 16, 2, 16, ORDER_LENGTH)), 0);
	const struct recipe_kernel order_keys = {.grid = GRID_ORDER_KEYS, .tile = 16, .threads = 512, .beyond = 1};
	ck_assert_int_eq(recipe_grid_size(&order_keys, &SHAPE(133, 8, 1, ORDER_LENGTH / 8 + 1, 16)), 9);
	ck_assert_int_eq(recipe_grid_size(&order_keys, &SHAPE(133, 8, 1, ORDER_LENGTH / 8, 16)), 0);
	ck_assert_int_eq(recipe_grid_size(&parts, &SHAPE(2, 64, 8, 20, 100)), 3 * 2 * 8 * 2);
	struct recipe_shape none = SHAPE(1, 1, 1, 1, 1);
	none.sms = 0;
	ck_assert_int_eq(recipe_grid_size(&k, &none), -1);
	k.grid = GRID_PERSISTENT_2;
	k.parts = 0;
	ck_assert_int_eq(recipe_grid_size(&k, &none), -1);
	ck_assert_int_eq(recipe_grid_size(&k, &SHAPE(1, 1, 1, INT32_MAX, 1)), 264);
	ck_assert_int_eq(recipe_grid_size(&k, &SHAPE(1, 2, 1, INT32_MAX, 1)), -1);
	k.grid = GRID_PERSISTENT_KEYS; /* likewise, by key tiles and their heads */
	ck_assert_int_eq(recipe_grid_size(&k, &none), -1);
	ck_assert_int_eq(recipe_grid_size(&k, &SHAPE(1, 4, 1, 1, INT32_MAX)), 132);
	ck_assert_int_eq(recipe_grid_size(&k, &SHAPE(1, 4, 2, 1, INT32_MAX)), -1);
	ck_assert_int_eq(recipe_grid_size(&k, &SHAPE(1, 4, 2, 0, 3)), 6);
	k.parts = 5;
	ck_assert_int_eq(recipe_grid_size(&k, &SHAPE(1, 4, 2, 0, 3)), 5 * 6);
	ck_assert_int_eq(recipe_grid_size(&k, &SHAPE(1, 4, 1, 1, INT32_MAX / 5)), 132);
	ck_assert_int_eq(recipe_grid_size(&k, &SHAPE(1, 4, 1, 1, INT32_MAX / 5 + 1)), -1);
	k.tile = 0;
	ck_assert_int_eq(recipe_grid_size(&k, &SHAPE(1, 1, 1, 1, 1)), -1);
	struct recipe_piece p = {.tile = 128, .unit = 128, .size = SIZE_ROWS_QK};
	ck_assert_int_eq(recipe_piece_bytes(&p, &SHAPE(15000, 10, 10, 128, 128)), 15000LL * 10 * 128 * 128 * 4);
	ck_assert_int_eq(recipe_piece_bytes(&p, &SHAPE(8300, 16, 16, 1, 1)), 8300LL * 16 * 128 * 128 * 4);
	for (int size = 0; size < SIZE_COUNT; size++) {
		p.size = (enum recipe_size)size;
		const bool fixed = size == SIZE_LAUNCH, uncut = size == SIZE_TAILS_Q || size == SIZE_TAILS_KV; /* nothing is cut of what cannot be launched */
		ck_assert_int_eq(recipe_piece_bytes(&p, &SHAPE(big, big, big, big, big)), fixed ? 512 : uncut ? 0 : -1);
		ck_assert_int_eq(recipe_piece_bytes(&p, &SHAPE(big, 0, 0, big - 1000, big)), fixed ? 512 : 0);
		ck_assert_int_eq(recipe_piece_bytes(&p, &SHAPE(1, 1, 1, INT64_MIN, 1)), -1);
	}
	p = (struct recipe_piece){.unit = 1, .size = SIZE_LAUNCH};
	ck_assert_int_eq(recipe_piece_bytes(&p, &SHAPE(0, 0, 0, 0, 0)), 256);
	p.unit = INT32_MAX;
	ck_assert_int_eq(recipe_piece_bytes(&p, &SHAPE(1, 1, 1, 1, 1)), INT64_C(4) << 31);
	p.unit = 0;
	ck_assert_int_eq(recipe_piece_bytes(&p, &SHAPE(1, 1, 1, 1, 1)), 0);
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("recipe");
	TCase *arch = tcase_create("arch"), *problem = tcase_create("problem"), *recipe = tcase_create("recipe");
	tcase_add_test(arch, binary_compatibility);
	tcase_add_test(arch, best_target);
	tcase_add_test(arch, tables_agree);
	tcase_add_test(arch, device_names);
	tcase_add_test(problem, problem_text);
	tcase_add_test(problem, problem_groups);
	tcase_add_test(recipe, recipe_round_trip);
	tcase_add_test(recipe, recipe_refuses);
	tcase_add_test(recipe, grid_counts);
	tcase_add_test(recipe, cut_tiles_end_sooner);
	tcase_add_test(recipe, packed_room);
	tcase_add_test(recipe, grid_limits);
	tcase_set_timeout(recipe, 30);
	suite_add_tcase(s, arch);
	suite_add_tcase(s, problem);
	suite_add_tcase(s, recipe);
	return s;
}
