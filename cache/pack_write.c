/* pack_write: items to the bytes of a pack. Equal items give equal bytes, in whatever order they come: they are sorted, equal
 * strings, texts and entries are stored once, and what is not written is zero. */
#include "cache/digest.h"
#include "cache/pack_layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRY_DIGEST_AT = 96, STRINGS_MAX = 1 << 26 };

struct bytes { uint8_t *data; size_t len, cap; bool failed; };

/* Appends; `from` NULL: zeros. */
static void bytes_add(struct bytes *b, const void *from, size_t len)
{
	if (b->failed || len > SIZE_MAX / 4 - b->len) {
		b->failed = true;
		return;
	}
	if (b->len + len > b->cap) {
		const size_t cap = 2 * (b->len + len);
		uint8_t *data = realloc(b->data, cap);
		if (!data) {
			b->failed = true;
			return;
		}
		b->data = data;
		b->cap = cap;
	}
	if (from && len)
		memcpy(b->data + b->len, from, len);
	else if (len)
		memset(b->data + b->len, 0, len);
	b->len += len;
}

static int item_compare(const void *a, const void *b)
{
	const struct pack_item *x = a, *y = b;
	const int by_name = strcmp(x->name, y->name), by_target = by_name ? by_name : strcmp(x->target, y->target);
	return by_target ? by_target : (x->pass > y->pass) - (x->pass < y->pass);
}

static bool item_equal(const struct pack_item *a, const struct pack_item *b)
{
	bool equal = a->revision == b->revision && a->tile_m == b->tile_m && a->tile_n == b->tile_n && !strcmp(a->templ, b->templ) &&
	             a->entry_len == b->entry_len && !memcmp(a->entry, b->entry, a->entry_len);
	for (int t = 0; t < PACK_TEXTS; t++)
		equal = equal && a->text[t].len == b->text[t].len &&
		        (!a->text[t].len || !memcmp(a->text[t].text, b->text[t].text, a->text[t].len));
	return equal;
}

/* Sorts and drops what is there twice. */
static int items_settle(struct pack_item *item, size_t *count, char why[PACK_WHY_MAX])
{
	size_t kept = 0;
	qsort(item, *count, sizeof *item, item_compare);
	for (size_t i = 0; i < *count; i++) {
		if (kept && !item_compare(&item[kept - 1], &item[i])) {
			if (item_equal(&item[kept - 1], &item[i]))
				continue;
			return pack_fail(why,
			            "There are two different kernels called %s for %s, pass %u: give one of the specs another name, "
			            "or leave one out.",
			            item[i].name, item[i].target, item[i].pass);
		}
		item[kept++] = item[i];
	}
	*count = kept;
	return 0;
}

/* Where `len` bytes like these lie in `pool`, which holds such pieces only; added if they do not. */
struct piece { size_t at, len; };
struct pieces { struct bytes pool; struct piece *piece; size_t count, align; };

static size_t piece_at(struct pieces *p, const void *from, size_t len)
{
	for (size_t i = p->count; i-- > 0;) /* the newest is the likeliest */
		if (p->piece[i].len == len && !memcmp(p->pool.data + p->piece[i].at, from, len))
			return p->piece[i].at;
	if (!len || p->pool.failed)
		return 0;
	bytes_add(&p->pool, NULL, (p->align - p->pool.len % p->align) % p->align);
	const size_t at = p->pool.len;
	bytes_add(&p->pool, from, len);
	p->piece[p->count++] = (struct piece){at, len};
	return at;
}

static size_t string_add(struct pieces *p, const char *string) { return piece_at(p, string, strlen(string) + 1); }

struct parts { struct bytes records; struct pieces strings, texts, entries; };

static void record_add(struct parts *p, const struct pack_item *item)
{
	uint8_t r[PACK_RECORD_SIZE] = {0};
	put_le(r + NAME_AT, string_add(&p->strings, item->name), 4);
	put_le(r + TARGET_AT, string_add(&p->strings, item->target), 4);
	put_le(r + TEMPLATE_AT, string_add(&p->strings, item->templ), 4);
	put_le(r + REVISION_AT, item->revision, 2);
	put_le(r + PASS_AT, item->pass, 2);
	put_le(r + TILE_M_AT, item->tile_m, 2);
	put_le(r + TILE_N_AT, item->tile_n, 2);
	put_le(r + ENTRY_AT, piece_at(&p->entries, item->entry, item->entry_len), 8);
	put_le(r + ENTRY_LEN_AT, item->entry_len, 8);
	for (int t = 0; t < PACK_TEXTS; t++) {
		put_le(r + TEXT_AT + 8 * t, piece_at(&p->texts, item->text[t].text, item->text[t].len), 4);
		put_le(r + TEXT_LEN_AT + 8 * t, item->text[t].len, 4);
	}
	memcpy(r + RECORD_DIGEST_AT, (const uint8_t *)item->entry + ENTRY_DIGEST_AT, 32);
	bytes_add(&p->records, r, sizeof r);
}

static void sha256(uint8_t digest[32], const void *a, size_t a_len, const void *b, size_t b_len)
{
	struct sha256_ctx hash;
	sha256_init(&hash);
	if (a_len)
		sha256_update(&hash, a_len, a);
	if (b_len)
		sha256_update(&hash, b_len, b);
	digest_end(digest, &hash);
}

/* Header, records, strings, texts, entries; offsets of entries become those in the file. */
static void parts_join(struct bytes *out, struct parts *p, size_t count, unsigned abi, const char *version)
{
	uint8_t head[PACK_HEADER_SIZE] = {0};
	const size_t index_end = PACK_HEADER_SIZE + p->records.len + p->strings.pool.len;
	const size_t entries_at = (index_end + p->texts.pool.len + ENTRY_ALIGN - 1) / ENTRY_ALIGN * ENTRY_ALIGN;
	for (size_t i = 0; i < count; i++) {
		uint8_t *at = p->records.data + i * PACK_RECORD_SIZE + ENTRY_AT;
		put_le(at, entries_at + get_le(at, 8), 8);
	}
	memcpy(head, PACK_MAGIC, sizeof PACK_MAGIC);
	put_le(head + BYTE_ORDER_AT, BYTE_ORDER_TAG, 4);
	put_le(head + FORMAT_AT, PACK_FORMAT, 4);
	put_le(head + SIZE_AT, entries_at + p->entries.pool.len, 8);
	put_le(head + HEADER_SIZE_AT, PACK_HEADER_SIZE, 4);
	put_le(head + RECORD_SIZE_AT, PACK_RECORD_SIZE, 4);
	put_le(head + COUNT_AT, count, 4);
	put_le(head + ABI_AT, abi, 4);
	put_le(head + STRINGS_AT, p->strings.pool.len, 4);
	put_le(head + TEXTS_AT, index_end, 8);
	put_le(head + TEXTS_LEN_AT, p->texts.pool.len, 8);
	memcpy(head + VERSION_AT, version, strnlen(version, 31));
	sha256(head + TEXTS_DIGEST_AT, p->texts.pool.data, p->texts.pool.len, NULL, 0);
	bytes_add(out, head, sizeof head);
	bytes_add(out, p->records.data, p->records.len);
	bytes_add(out, p->strings.pool.data, p->strings.pool.len);
	if (!out->failed)
		sha256(out->data + DIGEST_AT, out->data, DIGEST_AT, out->data + DIGEST_AT + 32, out->len - DIGEST_AT - 32);
	bytes_add(out, p->texts.pool.data, p->texts.pool.len);
	bytes_add(out, NULL, entries_at - index_end - p->texts.pool.len);
	bytes_add(out, p->entries.pool.data, p->entries.pool.len);
}

int pack_write(uint8_t **bytes, size_t *len, struct pack_item *item, size_t count, unsigned abi, const char *version,
               char why[PACK_WHY_MAX])
{
	struct bytes out = {0};
	if (count > PACK_RECORDS_MAX)
		return pack_fail(why, "A pack has at most %d kernels; these are %zu.", (int)PACK_RECORDS_MAX, count);
	if (items_settle(item, &count, why))
		return -1;
	struct parts p = {.strings.align = 1, .texts.align = 1, .entries.align = ENTRY_ALIGN};
	p.strings.piece = calloc(3 * count + 1, sizeof(struct piece));
	p.texts.piece = calloc(PACK_TEXTS * count + 1, sizeof(struct piece));
	p.entries.piece = calloc(count + 1, sizeof(struct piece));
	out.failed = !p.strings.piece || !p.texts.piece || !p.entries.piece;
	for (size_t i = 0; i < count && !out.failed; i++)
		record_add(&p, &item[i]);
	const bool large = p.texts.pool.len > UINT32_MAX || p.strings.pool.len > STRINGS_MAX;
	out.failed = out.failed || p.records.failed || p.strings.pool.failed || p.texts.pool.failed || p.entries.pool.failed;
	if (!out.failed && !large)
		parts_join(&out, &p, count, abi, version);
	free(p.records.data);
	free(p.strings.pool.data), free(p.texts.pool.data), free(p.entries.pool.data);
	free(p.strings.piece), free(p.texts.piece), free(p.entries.piece);
	if (out.failed || large) {
		free(out.data);
		return pack_fail(why, "%s", large ? "The texts of the pack have more than 4 GiB: leave the sources out." : "Out of memory.");
	}
	*bytes = out.data;
	*len = out.len;
	return 0;
}
