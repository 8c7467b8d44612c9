/* Packs made up for tests: kernels of any name, target and pass, whose code is a few bytes. */
#ifndef FAGEN_PACK_HELP_H
#define FAGEN_PACK_HELP_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/pack.h"
#include "runtime/cubin_meta.h"

#define MADE_RECIPE \
	"recipe load_bytes 16 kv_group 0\n" \
	"kernel made_main grid query_tiles tile 64 threads 128 smem_bytes 50000\n" \
	"piece delta size rows_qk tile 64 unit 2 zeroed 1\n"
#define MADE_SIGNATURE \
	"signature dtype bf16 layout padded head_dim 64 value_dim 128 outputs 3 keep 230 block_q 64 block_k 128\n" \
	"input doc dtype i32 grad 0 dims 2 dim batch size 0 dim seq_k size 0\n" \
	"input table dtype f32 grad 1 dims 2 dim heads size 0 dim const size 257\n"

static inline void made_parse(struct recipe *recipe, struct signature *signature)
{
	struct diag diag = {0};
	ck_assert_msg(!recipe_parse(recipe, MADE_RECIPE, &diag), "%s", text_str(&diag.text));
	ck_assert_msg(!signature_parse(signature, MADE_SIGNATURE, &diag), "%s", text_str(&diag.text));
}

/* Its entry is the caller's to free. */
static inline struct pack_item made_item(const char *name, const char *target, unsigned pass, const char *code)
{
	struct cubin cubin = {.registers = 111, .spill_bytes = 2, .smem_bytes = 50000};
	struct signature signature;
	struct text meta = {0};
	struct store_key key;
	size_t len;
	made_parse(&cubin.recipe, &signature);
	cubin_meta_print(&meta, &cubin, &signature, target_find(target));
	struct key_builder *builder = key_begin();
	key_record(builder, 'c', code, strlen(code));
	key_record(builder, 't', target, strlen(target));
	key_finish(&key, builder);
	const struct store_entry entry = {meta.data, meta.len, (void *)code, strlen(code)};
	struct pack_item item = {.name = name, .target = target, .templ = "sm80/fwd", .revision = 1, .pass = pass, .tile_m = 64, .tile_n = 128};
	ck_assert_ptr_nonnull(item.entry = entry_encode(&len, &key, &entry));
	item.entry_len = len;
	item.text[PACK_SPEC].text = "head_dim: 64\n";
	item.text[PACK_SPEC].len = 13;
	item.text[PACK_ABOUT].text = name;
	item.text[PACK_ABOUT].len = strlen(name);
	text_free(&meta);
	return item;
}

static inline uint8_t *made_pack(size_t *len, const struct pack_item *items, size_t count)
{
	char why[PACK_WHY_MAX];
	uint8_t *bytes;
	struct pack_item *item = calloc(count + 1, sizeof *item); /* which get sorted */
	memcpy(item, items, count * sizeof *item);
	ck_assert_msg(!pack_write(&bytes, len, item, count, PACK_LAUNCH_ABI, "1.2.3", why), "%s", why);
	free(item);
	return bytes;
}

static inline int made_run(char *output, size_t size, const char *command)
{
	FILE *pipe = popen(command, "r");
	ck_assert_ptr_nonnull(pipe);
	const size_t n = fread(output, 1, size - 1, pipe);
	output[n] = '\0';
	return pclose(pipe);
}

#endif
