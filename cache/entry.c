/* entry: one kernel in one file, in which every byte is covered by a digest.
 *
 *   0  magic "FGKERN1\0"      8  format u32      12  header size u32    16  file size u64
 *   24 meta length u64        32 cubin offset u64 (a multiple of 64)    40  cubin length u64
 *   48 zero                   64 key             96  SHA-256 of all other bytes
 *   128 meta, zeros, cubin
 *
 * Little endian. The digest guards against damage, the key against a file under a wrong name; neither guards against
 * an attacker, which is why owner and mode are checked as well. */
#include "cache/digest.h"
#include "cache/inside.h"
#include "cache/le.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t magic[8] = "FGKERN1";
enum { FORMAT = 1, KEY_AT = 64, DIGEST_AT = 96, CUBIN_ALIGN = 64 };

static void digest_of(uint8_t digest[32], const uint8_t *bytes, size_t len)
{
	struct sha256_ctx hash;
	sha256_init(&hash);
	sha256_update(&hash, DIGEST_AT, bytes);
	sha256_update(&hash, len - ENTRY_HEADER_SIZE, bytes + ENTRY_HEADER_SIZE);
	digest_end(digest, &hash);
}

void store_entry_free(struct store_entry *entry)
{
	free(entry->meta);
	free(entry->cubin);
	*entry = (struct store_entry){0};
}

void entry_name(char name[ENTRY_NAME_MAX], const struct store_key *key)
{
	char hex[65];
	key_hex(hex, key);
	memcpy(name, hex + 2, 62);
	memcpy(name + 62, ".fgk", sizeof ".fgk");
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool entry_name_parse(struct store_key *key, int shard, const char *name)
{
	if (strlen(name) != ENTRY_NAME_MAX - 1 || strcmp(name + 62, ".fgk") != 0)
		return false;
	key->bytes[0] = (uint8_t)shard;
	for (int i = 0; i < 31; i++) {
		const int high = hex_digit(name[2 * i]), low = hex_digit(name[2 * i + 1]);
		if (high < 0 || low < 0)
			return false;
		key->bytes[i + 1] = (uint8_t)(high << 4 | low);
	}
	return true;
}

uint8_t *entry_encode(size_t *len, const struct store_key *key, const struct store_entry *entry)
{
	if (entry->meta_len > ENTRY_SIZE_MAX || entry->cubin_len > ENTRY_SIZE_MAX) {
		errno = EFBIG;
		return NULL;
	}
	const size_t meta_end = ENTRY_HEADER_SIZE + entry->meta_len;
	const size_t cubin_at = (meta_end + CUBIN_ALIGN - 1) / CUBIN_ALIGN * CUBIN_ALIGN;
	const size_t total = cubin_at + entry->cubin_len;
	if (total > ENTRY_SIZE_MAX) {
		errno = EFBIG;
		return NULL;
	}
	uint8_t *bytes = calloc(1, total);
	if (!bytes)
		return NULL;
	memcpy(bytes, magic, sizeof magic);
	put_le(bytes + 8, FORMAT, 4);
	put_le(bytes + 12, ENTRY_HEADER_SIZE, 4);
	put_le(bytes + 16, total, 8);
	put_le(bytes + 24, entry->meta_len, 8);
	put_le(bytes + 32, cubin_at, 8);
	put_le(bytes + 40, entry->cubin_len, 8);
	memcpy(bytes + KEY_AT, key->bytes, sizeof key->bytes);
	if (entry->meta_len)
		memcpy(bytes + ENTRY_HEADER_SIZE, entry->meta, entry->meta_len);
	if (entry->cubin_len)
		memcpy(bytes + cubin_at, entry->cubin, entry->cubin_len);
	digest_of(bytes + DIGEST_AT, bytes, total);
	*len = total;
	return bytes;
}

bool entry_view(struct entry_view *view, const uint8_t *bytes, size_t len, const struct store_key *key)
{
	if (len < ENTRY_HEADER_SIZE || memcmp(bytes, magic, sizeof magic) != 0 || get_le(bytes + 8, 4) != FORMAT ||
	    get_le(bytes + 12, 4) != ENTRY_HEADER_SIZE || get_le(bytes + 16, 8) != len ||
	    (key && memcmp(bytes + KEY_AT, key->bytes, sizeof key->bytes) != 0))
		return false;
	uint8_t digest[32];
	digest_of(digest, bytes, len);
	if (memcmp(bytes + DIGEST_AT, digest, sizeof digest) != 0)
		return false;
	/* The digest matches, so these are what some writer put there; they still must fit before they are used. */
	const uint64_t meta_len = get_le(bytes + 24, 8), cubin_at = get_le(bytes + 32, 8),
		       cubin_len = get_le(bytes + 40, 8);
	if (cubin_at > len || cubin_at < ENTRY_HEADER_SIZE || meta_len > cubin_at - ENTRY_HEADER_SIZE ||
	    cubin_len != len - cubin_at)
		return false;
	*view = (struct entry_view){.meta = (const char *)bytes + ENTRY_HEADER_SIZE,
	                            .meta_len = (size_t)meta_len,
	                            .cubin = bytes + cubin_at,
	                            .cubin_len = (size_t)cubin_len,
	                            .digest = bytes + DIGEST_AT};
	memcpy(view->key.bytes, bytes + KEY_AT, sizeof view->key.bytes);
	return true;
}

enum entry_state entry_decode(struct store_entry *entry, const uint8_t *bytes, size_t len, const struct store_key *key)
{
	struct entry_view view;
	if (!entry_view(&view, bytes, len, key))
		return ENTRY_DAMAGED;
	if (!entry)
		return ENTRY_GOOD;
	char *meta = malloc(view.meta_len + 1);
	void *cubin = malloc(view.cubin_len ? view.cubin_len : 1);
	if (!meta || !cubin) {
		free(meta);
		free(cubin);
		errno = ENOMEM;
		return ENTRY_UNREADABLE;
	}
	memcpy(meta, view.meta, view.meta_len);
	meta[view.meta_len] = '\0';
	memcpy(cubin, view.cubin, view.cubin_len);
	*entry = (struct store_entry){
		.meta = meta, .meta_len = view.meta_len, .cubin = cubin, .cubin_len = view.cubin_len};
	return ENTRY_GOOD;
}
