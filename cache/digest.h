/* digest: SHA-256 by libnettle, which uses the processor's own instructions for it where there are any: half of a warm start is
 * hashing otherwise. */
#ifndef FAGEN_DIGEST_H
#define FAGEN_DIGEST_H

#include <nettle/sha2.h>
#include <nettle/version.h>

static inline void digest_end(uint8_t digest[SHA256_DIGEST_SIZE], struct sha256_ctx *hash)
{
#if NETTLE_VERSION_MAJOR < 4
	sha256_digest(hash, SHA256_DIGEST_SIZE, digest);
#else
	sha256_digest(hash, digest);
#endif
}

#endif
