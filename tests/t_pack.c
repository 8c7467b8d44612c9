/* Packs as bytes: written the same whatever the order, refused with the reason whatever the damage, opened and searched fast; and the
 * small tables and texts they rest on. */
#include <ctype.h>
#include <time.h>

#include "gen/embed.h"
#include "gen/model.h"
#include "gen/revision.h"
#include "tests/pack_help.h"

Suite *suite(void);

enum { ITEMS = 6 };
static struct pack_item item[ITEMS];
static uint8_t *bytes;
static size_t len;
static struct pack pack;
static char why[PACK_WHY_MAX];

static void setup(void)
{
	item[0] = made_item("b", "sm_80", 0, "the code of b");
	item[1] = made_item("b", "sm_80", 1, "b backward");
	item[2] = made_item("b", "sm_90a", 0, "b on sm_90a");
	item[3] = made_item("a", "sm_80", 0, "the code of a");
	item[4] = made_item("same", "sm_80", 0, "the code of b"); /* as item 0 */
	item[5] = made_item("c", "sm_120f", 0, "c");
	bytes = made_pack(&len, item, ITEMS);
}

static void teardown(void)
{
	for (int i = 0; i < ITEMS; i++)
		free((void *)item[i].entry);
	free(bytes);
}

static int read_it(const void *at, size_t n) { return pack_read(&pack, at, n, PACK_LAUNCH_ABI, "9.9", why); }

static void ck_refused(const uint8_t *at, size_t n, const char *says)
{
	ck_assert_int_eq(read_it(at, n), -1);
	ck_assert_msg(strstr(why, says) != NULL, "\"%s\" is not in: %s", says, why);
}

/* ---- writing ---- */

START_TEST(what_is_written_is_read)
{
	static const char *const order[] = {"a sm_80 0", "b sm_80 0", "b sm_80 1", "b sm_90a 0", "c sm_120f 0", "same sm_80 0"};
	ck_assert_msg(!read_it(bytes, len), "%s", why);
	ck_assert_int_eq(pack.count, ITEMS);
	ck_assert_str_eq(pack.version, "1.2.3");
	ck_assert(pack_texts_good(&pack));
	for (int i = 0; i < ITEMS; i++) {
		struct pack_item got;
		struct entry_view view;
		char line[64];
		pack_get(&got, &pack, i);
		snprintf(line, sizeof line, "%s %s %u", got.name, got.target, got.pass);
		ck_assert_str_eq(line, order[i]);
		ck_assert_uint_eq(got.tile_m, 64);
		ck_assert_uint_eq(got.tile_n, 128);
		ck_assert_str_eq(got.templ, "sm80/fwd");
		ck_assert(got.text[PACK_ABOUT].len == strlen(got.name) && !memcmp(got.text[PACK_ABOUT].text, got.name, strlen(got.name)));
		ck_assert_uint_eq(got.text[PACK_SOURCE].len, 0);
		ck_assert(pack_entry(&view, &pack, i));
		ck_assert_uint_eq((uintptr_t)((const uint8_t *)view.cubin - bytes) % 64, 0);
		struct cubin cubin = {0};
		struct signature signature;
		struct text text = {0};
		ck_assert(!cubin_meta_parse(&cubin, &signature, view.meta, view.meta_len, target_find(got.target)));
		ck_assert_int_eq(cubin.registers, 111);
		recipe_print(&text, &cubin.recipe);
		signature_print(&text, &signature);
		ck_assert_str_eq(text_str(&text), MADE_RECIPE MADE_SIGNATURE);
		text_free(&text);
		cubin_free(&cubin);
	}
	ck_assert_int_eq(pack_next(&pack, 1), 4);
	ck_assert_int_eq(pack_next(&pack, 5), ITEMS);
}
END_TEST

/* In what is kept with a cubin a signature stands before the lines of checks, and each is found beside the other. */
START_TEST(a_signature_stands_before_checks)
{
	static const char *const checks[] = {"", "check right NVIDIA H200\n", "check wrong NVIDIA H200 NVL\ncheck right NVIDIA H200\n"};
	for (int i = 0; i < 2 * (int)(sizeof checks / sizeof *checks); i++) {
		const bool with = i % 2;
		struct cubin cubin = {.report = strdup("check right A\nsignature 9\n")}, got = {0};
		struct signature signature, read;
		struct text meta = {0}, text = {0};
		made_parse(&cubin.recipe, &signature);
		cubin_meta_print(&meta, &cubin, with ? &signature : NULL, target_find("sm_80"));
		text_puts(&meta, checks[i / 2]);
		ck_assert_str_eq(cubin_checks(&(struct store_entry){.meta = meta.data, .meta_len = meta.len}), checks[i / 2]);
		ck_assert_int_eq(cubin_meta_parse(&got, NULL, meta.data, meta.len, target_find("sm_80")), 0);
		ck_assert_str_eq(got.report, cubin.report);
		cubin_free(&got);
		ck_assert_int_eq(cubin_meta_parse(&got, &read, meta.data, meta.len, target_find("sm_80")), with ? 0 : -1);
		if (with) {
			signature_print(&text, &read);
			ck_assert_str_eq(text_str(&text), MADE_SIGNATURE);
		}
		cubin_free(&got);
		cubin_free(&cubin);
		text_free(&meta);
		text_free(&text);
	}
}
END_TEST

START_TEST(order_does_not_matter_and_equal_kernels_are_kept_once)
{
	struct pack_item twice[2 * ITEMS];
	size_t n;
	for (int i = 0; i < ITEMS; i++)
		twice[2 * i] = twice[2 * i + 1] = item[(5 * i + 2) % ITEMS];
	uint8_t *again = made_pack(&n, twice, 2 * ITEMS);
	ck_assert_uint_eq(n, len);
	ck_assert(!memcmp(again, bytes, len));
	free(again);
	int found = 0; /* the code that two names share */
	for (size_t i = 0; i + 13 <= len; i++)
		found += !memcmp(bytes + i, "the code of b", 13);
	ck_assert_int_eq(found, 1);
}
END_TEST

START_TEST(different_kernels_of_one_name_are_refused)
{
	struct pack_item two[2] = {item[0], made_item("b", "sm_80", 0, "other code")};
	uint8_t *made;
	size_t n;
	ck_assert_int_eq(pack_write(&made, &n, two, 2, 1, "1", why), -1);
	ck_assert_ptr_nonnull(strstr(why, "two different kernels called b for sm_80"));
	for (int i = 0; i < 2; i++)
		if (two[i].entry != item[0].entry)
			free((void *)two[i].entry);
}
END_TEST

START_TEST(an_empty_pack_is_one)
{
	size_t n;
	uint8_t *none = made_pack(&n, item, 0);
	ck_assert_msg(!read_it(none, n), "%s", why);
	ck_assert_int_eq(pack.count, 0);
	free(none);
}
END_TEST

/* ---- refusing ---- */

START_TEST(cut_short_is_said)
{
	for (size_t n = 0; n < len; n++) {
		uint8_t *cut = malloc(n ? n : 1); /* so that a sanitizer sees one byte more */
		memcpy(cut, bytes, n);
		ck_refused(cut, n, n < 8 ? "does not begin as a pack" : "cut short");
		free(cut);
	}
	uint8_t *more = calloc(1, len + 1);
	memcpy(more, bytes, len);
	ck_refused(more, len + 1, "something was appended");
	free(more);
}
END_TEST

/* Between texts and entries there are zeros that nobody reads. */
static bool unread(size_t at)
{
	ck_assert_int_eq(read_it(bytes, len), 0);
	size_t end_of_texts = 0;
	bool inside = false;
	for (int i = 0; i < pack.count; i++) {
		struct pack_item got;
		pack_get(&got, &pack, i);
		const size_t entry = (size_t)((const uint8_t *)got.entry - bytes);
		inside = inside || (at >= entry && at < entry + got.entry_len);
		for (int t = 0; t < PACK_TEXTS; t++) {
			const size_t end = (size_t)((const uint8_t *)got.text[t].text - bytes) + got.text[t].len;
			end_of_texts = end > end_of_texts ? end : end_of_texts;
		}
	}
	return !inside && at >= end_of_texts;
}

START_TEST(a_flipped_bit_is_noticed_wherever_it_is)
{
	int refused = 0, found_later = 0;
	for (size_t at = 0; at < len; at++) {
		const bool nobody = unread(at);
		for (int bit = 0; bit < 8; bit += 1 + (at > 192)) {
			bytes[at] ^= (uint8_t)(1 << bit);
			bool noticed = read_it(bytes, len) != 0;
			refused += noticed;
			if (!noticed) {
				struct entry_view view;
				noticed = !pack_texts_good(&pack);
				for (int i = 0; i < pack.count; i++)
					noticed = !pack_entry(&view, &pack, i) || noticed;
				found_later += noticed;
			}
			ck_assert_msg(noticed != nobody, "byte %zu, bit %d", at, bit);
			bytes[at] ^= (uint8_t)(1 << bit);
		}
	}
	ck_assert_int_gt(refused, 1000);
	ck_assert_int_gt(found_later, 1000);
}
END_TEST

START_TEST(foreign_packs_are_named)
{
	memcpy(bytes + 8, "\x0a\x0b\x0c\x0d", 4);
	ck_refused(bytes, len, "big endian");
	memcpy(bytes + 8, "\x0d\x0c\x0b\x0a\x02", 5);
	ck_refused(bytes, len, "pack format 2, written by fagen 1.2.3; this is fagen 9.9, which reads format 1: update fagen");
	bytes[12] = 0;
	ck_refused(bytes, len, "format 0, written by fagen 1.2.3; this is fagen 9.9, which reads format 1: build the pack anew");
	bytes[12] = 1;
	bytes[36]++;
	ck_refused(bytes, len, "made by fagen 1.2.3 for launch ABI 6; this is fagen 9.9 with launch ABI 5");
	memcpy(bytes, "\x7f" "ELF", 4);
	ck_refused(bytes, len, "does not begin as a pack");
}
END_TEST

/* AOT-03, AOT-04. Versions are told, not compared: the format and the launch ABI decide. */
START_TEST(a_build_suffix_is_no_difference)
{
	static const char *const versions[] = {"1.2.3", "1.2.3+cu130", "99", "", "a-version-that-is-longer-than-there-is-room-for-it"};
	for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
		uint8_t *made;
		size_t n;
		ck_assert_int_eq(pack_write(&made, &n, item, ITEMS, PACK_LAUNCH_ABI, versions[i], why), 0);
		ck_assert_msg(!read_it(made, n), "%s", why);
		ck_assert(!strncmp(pack.version, *versions[i] ? versions[i] : "?", 31));
		free(made);
	}
}
END_TEST

/* ---- speed ---- */

static double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

START_TEST(five_hundred_kernels_open_in_a_millisecond)
{
	enum { COUNT = 500, ROUNDS = 20 };
	static struct pack_item many[COUNT];
	static char name[COUNT][32];
	for (int i = 0; i < COUNT; i++) {
		snprintf(name[i], sizeof name[i], "attention_kernel_%03d", i / 2);
		many[i] = made_item(name[i], "sm_80", (unsigned)i % 2, name[i]);
	}
	uint8_t *made;
	size_t n;
	made = made_pack(&n, many, COUNT);
	double best = 1e9;
	for (int round = 0; round < ROUNDS; round++) {
		const double begin = now_us();
		ck_assert_int_eq(read_it(made, n), 0);
		const double us = now_us() - begin;
		best = us < best ? us : best;
	}
	printf("open a pack of %d kernels: %.0f us\n", COUNT, best);
	ck_assert_double_lt(best, 10000); /* the aim is 1000; sanitizers and busy machines take more */
	for (int i = 0; i < COUNT; i++)
		free((void *)many[i].entry);
	free(made);
}
END_TEST

/* ---- signatures ---- */

static const char *const bad_signatures[] = {
	"",
	"signature",
	"signature dtype bf16 layout dense head_dim 64 value_dim 64 outputs 1 keep 256 block_q 0 block_k 0",
	"signature dtype bf17 layout dense head_dim 64 value_dim 64 outputs 1 keep 256 block_q 0 block_k 0\n",
	"signature dtype bf16 layout dense head_dim 0 value_dim 64 outputs 1 keep 256 block_q 0 block_k 0\n",
	"signature dtype bf16 layout dense head_dim 64 value_dim 257 outputs 1 keep 256 block_q 0 block_k 0\n",
	"signature dtype bf16 layout dense head_dim 64 value_dim 64 outputs 4 keep 256 block_q 0 block_k 0\n",
	"signature dtype bf16 layout dense head_dim 64 value_dim 64 outputs 1 keep 257 block_q 0 block_k 0\n",
	"signature dtype bf16 layout dense head_dim 64 value_dim 64 outputs 1 keep 256 block_q 0 block_k 0 more\n",
	MADE_SIGNATURE "input doc dtype i32 grad 0 dims 0\n",
	MADE_SIGNATURE "input new dtype i64 grad 0 dims 0\n",
	MADE_SIGNATURE "input new dtype i32 grad 0 dims 5\n",
	MADE_SIGNATURE "input new dtype i32 grad 0 dims 1 dim const size 0\n",
	MADE_SIGNATURE "input new dtype i32 grad 0 dims 1 dim batch size 3\n",
	MADE_SIGNATURE "kernel\n",
	"signature dtype bf16 layout dense head_dim 64 value_dim 64 outputs 1 keep 256 block_q 0 block_k 0\n"
	"input x dtype u8 grad 0 dims 1 dim blocks_q size 0\n",
};

START_TEST(bad_signatures_are_refused)
{
	struct signature signature;
	struct diag diag = {0};
	ck_assert_int_eq(signature_parse(&signature, bad_signatures[_i], &diag), -1);
	ck_assert_int_eq(diag.errors, 1);
	diag_free(&diag);
}
END_TEST

/* What a launch reads of a spec survives the text. */
START_TEST(signatures_of_specs)
{
	static const char *const specs[] = {
		"{head_dim: {qk: 192, v: 128}, dtype: fp16, dropout: 0.1, outputs: [out, lse]}",
		"{head_dim: 64, layout: packed, mask: {all: [causal, document]}}",
		"{head_dim: 64, blocks: {size: {q: 64, k: 128}, from: bitmap}, sink: true}",
		"{head_dim: 64, score: 's + table[h, q - k + 128]', inputs: {table: {dtype: f32, shape: [heads, 257], grad: true}}, passes: [forward, backward]}",
	};
	static struct spec spec;
	for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
		struct diag diag = {0};
		struct text text = {0};
		struct signature made, read;
		ck_assert_msg(!spec_parse(&spec, specs[i], strlen(specs[i]), "t", &diag), "%s", text_str(&diag.text));
		signature_make(&made, &spec);
		signature_print(&text, &made);
		ck_assert_msg(!signature_parse(&read, text_str(&text), &diag), "%s", text_str(&diag.text));
		ck_assert_int_eq(read.dtype, spec.dtype);
		ck_assert_int_eq(read.layout, spec.layout);
		ck_assert_int_eq(read.head_dim_qk, spec.head_dim_qk);
		ck_assert_int_eq(read.head_dim_v, spec.head_dim_v);
		ck_assert_uint_eq(read.outputs, spec.outputs);
		ck_assert_int_eq(read.keep_256, spec.keep_256);
		ck_assert_int_eq(read.block_q, spec.blocks.size_q);
		ck_assert_int_eq(read.block_k, spec.blocks.size_k);
		ck_assert_int_eq(read.input_count, spec.input_count);
		for (int n = 0; n < spec.input_count; n++) {
			const struct input *a = &spec.input[n], *b = &read.input[n];
			ck_assert_str_eq(a->name, b->name);
			ck_assert_int_eq(signature_input(&read, a->name), n);
			ck_assert(a->dtype == b->dtype && a->dims == b->dims && a->grad == b->grad);
			for (int d = 0; d < a->dims; d++) {
				ck_assert_int_eq(a->dim[d].kind, b->dim[d].kind);
				if (a->dim[d].kind == DIM_CONST)
					ck_assert_int_eq(a->dim[d].size, b->dim[d].size);
			}
		}
		ck_assert_int_eq(signature_input(&read, "no such"), -1);
		text_free(&text);
		diag_free(&diag);
	}
}
END_TEST

/* ---- revisions, launch ABI ---- */

START_TEST(old_revisions_are_refused_with_the_reason)
{
	static const struct revision table[] = {{"x/fwd", 5, 3, "rows past 4096 were wrong"}, {"x/bwd", 1, 1, NULL}};
	ck_assert_str_eq(revision_refused(table, 2, "x/fwd", 2), "rows past 4096 were wrong");
	ck_assert_ptr_null(revision_refused(table, 2, "x/fwd", 3));
	ck_assert_ptr_null(revision_refused(table, 2, "x/fwd", 9)); /* of a later fagen */
	ck_assert_ptr_nonnull(revision_refused(table, 2, "x/bwd", 0));
	ck_assert_ptr_null(revision_refused(table, 2, "x/new", 1));
	for (int i = 0; i < revision_count; i++) {
		ck_assert_int_ge(revision_table[i].revision, revision_table[i].oldest);
		ck_assert_int_ge(revision_table[i].oldest, 1);
		ck_assert((revision_table[i].oldest > 1) == (revision_table[i].why != NULL));
	}
}
END_TEST

START_TEST(every_template_has_a_revision)
{
	for (int i = 0; i < template_count; i++)
		ck_assert_msg(template_revision(template_table[i]->templ) > 0, "%s has no row in gen/revision.c", template_table[i]->templ);
	ck_assert_int_gt(template_revision("naive/attention"), 0);
	ck_assert_int_eq(template_revision("none"), 0);
}
END_TEST

/* FNV-1a over templates/abi.h without comments and spaces. */
START_TEST(the_launch_abi_has_not_changed)
{
	struct text abi = {0};
	struct diag diag = {0};
	uint64_t hash = 14695981039346656037u;
	ck_assert_int_eq(embed_read(&abi, "abi.h", NULL, &diag), 0);
	for (const char *c = text_str(&abi); *c; c++) {
		if (c[0] == '/' && c[1] == '*')
			c = strstr(c + 2, "*/") + 1;
		else if (!isspace((unsigned char)*c))
			hash = (hash ^ (unsigned char)*c) * 1099511628211u;
	}
	ck_assert_msg(hash == 0x3c162e2387ced010u && PACK_LAUNCH_ABI == 5,
	              "templates/abi.h changed (%#llx): kernels in packs take their arguments as they were when they were built. Raise "
	              "PACK_LAUNCH_ABI and write its new value and this number here.",
	              (unsigned long long)hash);
	text_free(&abi);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("pack");
	TCase *t = tcase_create("bytes");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 120);
	tcase_add_test(t, what_is_written_is_read);
	tcase_add_test(t, a_signature_stands_before_checks);
	tcase_add_test(t, order_does_not_matter_and_equal_kernels_are_kept_once);
	tcase_add_test(t, different_kernels_of_one_name_are_refused);
	tcase_add_test(t, an_empty_pack_is_one);
	tcase_add_test(t, cut_short_is_said);
	tcase_add_test(t, a_flipped_bit_is_noticed_wherever_it_is);
	tcase_add_test(t, foreign_packs_are_named);
	tcase_add_test(t, a_build_suffix_is_no_difference);
	tcase_add_test(t, five_hundred_kernels_open_in_a_millisecond);
	suite_add_tcase(s, t);
	TCase *u = tcase_create("tables");
	tcase_add_loop_test(u, bad_signatures_are_refused, 0, sizeof bad_signatures / sizeof *bad_signatures);
	tcase_add_test(u, signatures_of_specs);
	tcase_add_test(u, old_revisions_are_refused_with_the_reason);
	tcase_add_test(u, every_template_has_a_revision);
	tcase_add_test(u, the_launch_abi_has_not_changed);
	suite_add_tcase(s, u);
	return s;
}
