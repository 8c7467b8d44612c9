/* Fuzzes the reader of packs. What was mutated gets digests that fit again, or no mutation would get past them. Whatever the rest, the
 * pack is refused with a reason, or all that it speaks of can be read, lies inside it, and is found by its order. A written pack of
 * what was read is read the same. */
#include "tests/fuzz.h"

#include <string.h>

#include "cache/digest.h"
#include "cache/pack.h"
#include "runtime/cubin_meta.h"

const char *const fuzz_words[] = {
	"FGPACK1", "FGKERN1", "sm_80", "sm_90a", "sm80/fwd", "\xff\xff\xff\xff", "\x80", "\x01", "\x40", "\xc0", "signature dtype bf16 layout dense",
	"recipe load_bytes 16 kv_group 1\n", "\n", "0", "18446744073709551615", NULL,
};

enum { HEADER = PACK_HEADER_SIZE, DIGEST = 128, TEXTS_DIGEST = 96, ENTRY_HEADER = 128, ENTRY_DIGEST = 96 };

static uint64_t get(const uint8_t *at, int bytes)
{
	uint64_t value = 0;
	for (int i = bytes - 1; i >= 0; i--)
		value = value << 8 | at[i];
	return value;
}

static void put(uint8_t *at, uint64_t value, int bytes)
{
	for (int i = 0; i < bytes; i++)
		at[i] = (uint8_t)(value >> (8 * i));
}

static void digest(uint8_t *to, const uint8_t *a, size_t a_len, const uint8_t *b, size_t b_len)
{
	struct sha256_ctx hash;
	sha256_init(&hash);
	sha256_update(&hash, a_len, a);
	sha256_update(&hash, b_len, b);
	digest_end(to, &hash);
}

/* From the inside out, as far as the offsets allow. */
static void repair(uint8_t *b, size_t len)
{
	if (len < HEADER)
		return;
	memcpy(b, "FGPACK1", 8);
	put(b + 8, 0x0a0b0c0d, 4), put(b + 12, PACK_FORMAT, 4), put(b + 16, len, 8);
	put(b + 24, HEADER, 4), put(b + 28, PACK_RECORD_SIZE, 4), put(b + 36, PACK_LAUNCH_ABI, 4);
	const uint64_t count = get(b + 32, 4) % 8, strings = get(b + 40, 4), end = HEADER + count * PACK_RECORD_SIZE + strings;
	put(b + 32, count, 4);
	if (end > len)
		return;
	for (uint64_t i = 0; i < count; i++) {
		uint8_t *r = b + HEADER + i * PACK_RECORD_SIZE;
		const uint64_t at = get(r + 24, 8), n = get(r + 32, 8);
		if (at < end || at > len || n > len - at || n < ENTRY_HEADER)
			continue;
		put(b + at + 16, n, 8);
		digest(b + at + ENTRY_DIGEST, b + at, ENTRY_DIGEST, b + at + ENTRY_HEADER, n - ENTRY_HEADER);
		memcpy(r + 96, b + at + ENTRY_DIGEST, 32);
	}
	const uint64_t texts = get(b + 48, 8), texts_len = get(b + 56, 8);
	if (texts >= end && texts <= len && texts_len <= len - texts)
		digest(b + TEXTS_DIGEST, b + texts, texts_len, b, 0);
	digest(b + DIGEST, b, DIGEST, b + DIGEST + 32, end - DIGEST - 32);
}

static unsigned touch(const void *bytes, size_t len) /* so that a sanitizer sees what lies outside */
{
	unsigned sum = 0;
	for (size_t i = 0; i < len; i++)
		sum += ((const uint8_t *)bytes)[i];
	return sum;
}

static void kernel_read(const struct pack *p, int i)
{
	struct entry_view view;
	struct cubin cubin = {0};
	struct signature signature;
	struct pack_item item;
	pack_get(&item, p, i);
	const struct target *target = target_find(item.target);
	if (!pack_entry(&view, p, i))
		return;
	touch(view.meta, view.meta_len), touch(view.cubin, view.cubin_len);
	if (target && !cubin_meta_parse(&cubin, &signature, view.meta, view.meta_len, target)) {
		struct text once = {0}, twice = {0};
		struct signature again;
		struct diag diag = {0};
		signature_print(&once, &signature);
		fuzz_demand(!signature_parse(&again, text_str(&once), &diag), text_str(&once));
		signature_print(&twice, &again);
		fuzz_demand(!strcmp(text_str(&once), text_str(&twice)), text_str(&once));
		text_free(&once), text_free(&twice);
		diag_free(&diag);
	}
	cubin_free(&cubin);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char why[PACK_WHY_MAX] = "";
	struct pack p, again;
	uint8_t *bytes = malloc(size + 1);
	fuzz_demand(bytes != NULL, "out of memory");
	memcpy(bytes, data, size);
	bytes = realloc(bytes, size ? size : 1);
	for (int repaired = 0; repaired < 2; repaired++) {
		if (repaired)
			repair(bytes, size);
		if (pack_read(&p, bytes, size, PACK_LAUNCH_ABI, "0", why)) {
			fuzz_demand(why[0] && strlen(why) < sizeof why, "a refusal without a reason");
			continue;
		}
		struct pack_item item[8];
		fuzz_demand(p.count <= 8, "more records than were written");
		bool whole = true;
		for (int i = 0; i < p.count; i++) {
			pack_get(&item[i], &p, i);
			touch(item[i].name, strlen(item[i].name)), touch(item[i].templ, strlen(item[i].templ));
			for (int t = 0; t < PACK_TEXTS; t++)
				touch(item[i].text[t].text, item[i].text[t].len);
			touch(item[i].entry, item[i].entry_len);
			kernel_read(&p, i);
			fuzz_demand(pack_next(&p, i) > i, "no next name");
			struct entry_view view;
			whole = whole && pack_entry(&view, &p, i);
		}
		pack_texts_good(&p);
		uint8_t *written;
		size_t len;
		if (!whole)
			continue;
		fuzz_demand(!pack_write(&written, &len, item, (size_t)p.count, PACK_LAUNCH_ABI, "0", why), why);
		fuzz_demand(!pack_read(&again, written, len, PACK_LAUNCH_ABI, "0", why), why);
		fuzz_demand(again.count == p.count && pack_texts_good(&again), "it reads back otherwise");
		for (int i = 0; i < again.count; i++) {
			struct entry_view view;
			struct pack_item back;
			pack_get(&back, &again, i);
			fuzz_demand(pack_entry(&view, &again, i) && !strcmp(back.name, item[i].name) && back.pass == item[i].pass, "another kernel");
		}
		free(written);
	}
	free(bytes);
	return 0;
}
