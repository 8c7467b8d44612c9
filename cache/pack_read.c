/* pack_read: packs from outside. Whatever the bytes, nothing outside them is read: every offset is checked when the pack is
 * opened, so that the rest need not. */
#include "cache/digest.h"
#include "cache/pack_layout.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NAME_MAX_LEN = 255 };

static uint32_t get32(const uint8_t *in) { return (uint32_t)get_le(in, 4); }

int pack_fail(char why[PACK_WHY_MAX], const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(why, PACK_WHY_MAX, format, args);
	va_end(args);
	return -1;
}

static const uint8_t *record_at(const struct pack *p, int i)
{
	return p->bytes + PACK_HEADER_SIZE + (size_t)i * PACK_RECORD_SIZE;
}

static const char *strings_of(const struct pack *p) { return (const char *)record_at(p, p->count); }

static const char *string_at(const struct pack *p, int record, int field)
{
	return strings_of(p) + get32(record_at(p, record) + field);
}

/* Of names, then targets, then passes. */
static int record_compare(const struct pack *p, int i, int j)
{
	const int by_name = strcmp(string_at(p, i, NAME_AT), string_at(p, j, NAME_AT));
	const int by_target = by_name ? by_name : strcmp(string_at(p, i, TARGET_AT), string_at(p, j, TARGET_AT));
	return by_target ? by_target : (int)get_le(record_at(p, i) + PASS_AT, 2) - (int)get_le(record_at(p, j) + PASS_AT, 2);
}

/* The writer's version, made printable. */
static void version_read(struct pack *p)
{
	memcpy(p->version, p->bytes + VERSION_AT, sizeof p->version - 1);
	p->version[sizeof p->version - 1] = '\0';
	for (char *c = p->version; *c; c++)
		if (*c <= ' ' || *c > '~')
			*c = '?';
	if (!p->version[0])
		strcpy(p->version, "?");
}

static int header_check(struct pack *p, unsigned abi, const char *version, char why[PACK_WHY_MAX])
{
	const uint8_t *b = p->bytes;
	if (p->len < sizeof PACK_MAGIC || memcmp(b, PACK_MAGIC, sizeof PACK_MAGIC) != 0)
		return pack_fail(why, "it does not begin as a pack does (FGPACK1)");
	if (p->len < PACK_HEADER_SIZE)
		return pack_fail(why, "it is cut short: it has %zu bytes, and the head of a pack alone has %d", p->len,
		            (int)PACK_HEADER_SIZE);
	version_read(p);
	const uint32_t order = get32(b + BYTE_ORDER_AT), format = get32(b + FORMAT_AT), its_abi = get32(b + ABI_AT);
	if (order == __builtin_bswap32(BYTE_ORDER_TAG))
		return pack_fail(why, "it was written with the bytes of numbers in the other order (big endian)");
	if (order != BYTE_ORDER_TAG)
		return pack_fail(why, "its head is damaged");
	if (format != PACK_FORMAT)
		return pack_fail(why, "it is of pack format %u, written by fagen %s; this is fagen %s, which reads format %d: %s",
		            format, p->version, version, (int)PACK_FORMAT,
		            format > PACK_FORMAT ? "update fagen" : "build the pack anew");
	if (get_le(b + SIZE_AT, 8) != p->len)
		return pack_fail(why, "it has %zu bytes, but was written with %llu: it is cut short, or something was appended", p->len,
		            (unsigned long long)get_le(b + SIZE_AT, 8));
	if (its_abi != abi)
		return pack_fail(why,
		            "its kernels were made by fagen %s for launch ABI %u; this is fagen %s with launch ABI %u: build the "
		            "pack anew with it",
		            p->version, its_abi, version, abi);
	return 0;
}

static void header_digest(uint8_t digest[32], const struct pack *p, size_t index_end)
{
	struct sha256_ctx hash;
	sha256_init(&hash);
	sha256_update(&hash, DIGEST_AT, p->bytes);
	sha256_update(&hash, index_end - DIGEST_AT - 32, p->bytes + DIGEST_AT + 32);
	digest_end(digest, &hash);
}

/* [at, at + len) lies between `from` and the end, counted from `base`. */
static bool within(uint64_t at, uint64_t len, uint64_t from, uint64_t end) { return at >= from && at <= end && len <= end - at; }

static bool record_good(const struct pack *p, int i, uint64_t strings_len, uint64_t texts_at, uint64_t texts_len)
{
	const uint8_t *r = record_at(p, i);
	for (int field = NAME_AT; field <= TEMPLATE_AT; field += 4) {
		const uint32_t at = get32(r + field);
		if (at >= strings_len || strnlen(strings_of(p) + at, NAME_MAX_LEN + 1) > NAME_MAX_LEN)
			return false;
	}
	const uint64_t entry_at = get_le(r + ENTRY_AT, 8), entry_len = get_le(r + ENTRY_LEN_AT, 8);
	if (entry_at % ENTRY_ALIGN || entry_len < RECORD_DIGEST_AT + 32 || !within(entry_at, entry_len, texts_at + texts_len, p->len))
		return false;
	for (int t = 0; t < PACK_TEXTS; t++)
		if (!within(get32(r + TEXT_AT + 8 * t), get32(r + TEXT_LEN_AT + 8 * t), 0, texts_len))
			return false;
	return i == 0 || record_compare(p, i - 1, i) < 0;
}

int pack_read(struct pack *p, const void *bytes, size_t len, unsigned abi, const char *version, char why[PACK_WHY_MAX])
{
	*p = (struct pack){.bytes = bytes, .len = len};
	if (header_check(p, abi, version, why))
		return -1;
	const uint64_t count = get32(p->bytes + COUNT_AT), strings_len = get32(p->bytes + STRINGS_AT);
	const uint64_t texts_at = get_le(p->bytes + TEXTS_AT, 8), texts_len = get_le(p->bytes + TEXTS_LEN_AT, 8);
	const uint64_t index_end = PACK_HEADER_SIZE + count * PACK_RECORD_SIZE + strings_len;
	bool good = get32(p->bytes + HEADER_SIZE_AT) == PACK_HEADER_SIZE &&
	            get32(p->bytes + RECORD_SIZE_AT) == PACK_RECORD_SIZE && count <= PACK_RECORDS_MAX && index_end <= len &&
	            within(texts_at, texts_len, index_end, len);
	if (good) {
		uint8_t digest[32];
		header_digest(digest, p, (size_t)index_end);
		good = !memcmp(digest, p->bytes + DIGEST_AT, sizeof digest);
	}
	if (!good)
		return pack_fail(why, "its head is damaged");
	/* The digest matches, so these are what some writer put there; they still must fit before they are used. */
	p->count = (int)count;
	good = !strings_len || !strings_of(p)[strings_len - 1];
	for (int i = 0; i < p->count && good; i++)
		good = record_good(p, i, strings_len, texts_at, texts_len);
	return good ? 0 : pack_fail(why, "its index is none that fagen writes");
}

void pack_get(struct pack_item *item, const struct pack *p, int i)
{
	const uint8_t *r = record_at(p, i);
	const char *texts = (const char *)p->bytes + get_le(p->bytes + TEXTS_AT, 8);
	*item = (struct pack_item){.name = string_at(p, i, NAME_AT),
	                           .target = string_at(p, i, TARGET_AT),
	                           .templ = string_at(p, i, TEMPLATE_AT),
	                           .revision = (unsigned)get_le(r + REVISION_AT, 2),
	                           .pass = (unsigned)get_le(r + PASS_AT, 2),
	                           .tile_m = (unsigned)get_le(r + TILE_M_AT, 2),
	                           .tile_n = (unsigned)get_le(r + TILE_N_AT, 2),
	                           .entry = p->bytes + get_le(r + ENTRY_AT, 8),
	                           .entry_len = (size_t)get_le(r + ENTRY_LEN_AT, 8)};
	for (int t = 0; t < PACK_TEXTS; t++) {
		item->text[t].text = texts + get32(r + TEXT_AT + 8 * t);
		item->text[t].len = get32(r + TEXT_LEN_AT + 8 * t);
	}
}

int pack_next(const struct pack *p, int i)
{
	const char *name = string_at(p, i, NAME_AT);
	while (i < p->count && !strcmp(string_at(p, i, NAME_AT), name))
		i++;
	return i;
}

bool pack_entry(struct entry_view *view, const struct pack *p, int i)
{
	const uint8_t *r = record_at(p, i);
	return entry_view(view, p->bytes + get_le(r + ENTRY_AT, 8), (size_t)get_le(r + ENTRY_LEN_AT, 8), NULL) &&
	       !memcmp(view->digest, r + RECORD_DIGEST_AT, 32);
}

bool pack_texts_good(const struct pack *p)
{
	struct sha256_ctx hash;
	uint8_t digest[32];
	sha256_init(&hash);
	sha256_update(&hash, (size_t)get_le(p->bytes + TEXTS_LEN_AT, 8), p->bytes + get_le(p->bytes + TEXTS_AT, 8));
	digest_end(digest, &hash);
	return !memcmp(digest, p->bytes + TEXTS_DIGEST_AT, sizeof digest);
}

const uint8_t *pack_digest(const struct pack *p) { return p->bytes + DIGEST_AT; }
