/* key: SHA-256 over a domain string and tagged, length-prefixed records, so that no two record lists spell the same
 * bytes. Numbers are little endian on every machine. */
#include "cache/digest.h"
#include "cache/le.h"
#include "cache/store.h"

#include <stdlib.h>

struct key_builder {
	struct sha256_ctx hash;
};

static const char domain[] = "fagen-kernel-key"; /* hashed with its NUL */

struct key_builder *key_begin(void)
{
	struct key_builder *builder = malloc(sizeof *builder);
	if (!builder)
		abort(); /* a few hundred bytes; a key that lacks records would be worse than no process */
	sha256_init(&builder->hash);
	sha256_update(&builder->hash, sizeof domain, (const uint8_t *)domain);
	return builder;
}

void key_record(struct key_builder *builder, uint32_t tag, const void *bytes, size_t len)
{
	uint8_t prefix[12];
	put_le(prefix, tag, 4);
	put_le(prefix + 4, len, 8);
	sha256_update(&builder->hash, sizeof prefix, prefix);
	if (len)
		sha256_update(&builder->hash, len, bytes);
}

struct key_builder *key_copy(const struct key_builder *from)
{
	struct key_builder *builder = key_begin();
	*builder = *from;
	return builder;
}

void key_finish(struct store_key *key, struct key_builder *builder)
{
	digest_end(key->bytes, &builder->hash);
	free(builder);
}

void key_drop(struct key_builder *builder) { free(builder); }

void key_hex(char hex[65], const struct store_key *key)
{
	for (int i = 0; i < 32; i++) {
		hex[2 * i] = "0123456789abcdef"[key->bytes[i] >> 4];
		hex[2 * i + 1] = "0123456789abcdef"[key->bytes[i] & 15];
	}
	hex[64] = '\0';
}
