/* pack: many kernels in one immutable file, found by name, target and pass. libc and libnettle only.
 *
 *   0    magic "FGPACK1\0"       8   byte order 0x0a0b0c0d u32    12  format u32         16  file size u64
 *   24   header size u32         28  record size u32              32  records u32        36  launch ABI u32
 *   40   strings length u32      44  zero                         48  texts offset u64   56  texts length u64
 *   64   version of the writer [32]                               96  SHA-256 of the texts
 *   128  SHA-256 of header (without this), records and strings    160 zero
 *   192  records, 128 bytes each, ascending by name, target, pass
 *        strings, NUL-terminated; texts; entries, each at a multiple of 64
 *   record: name u32, target u32, template u32 (offsets in strings), revision u16, pass u16, tile u16 x u16, zero u32,
 *        entry offset u64, length u64, four texts of offset u32 and length u32, zero to 96, digest of the entry
 *
 * Little endian. An entry is the file that the store keeps for a kernel, byte for byte, so both have one reader. The digest
 * of the header reaches everything: entries through the records, texts through theirs. Opening checks what it takes to find a
 * kernel, a few hundred bytes for each; an entry is checked when it is used. Nothing in the file depends on time, place
 * or order of making: equal contents are equal bytes. */
#ifndef FAGEN_CACHE_PACK_H
#define FAGEN_CACHE_PACK_H

#include "cache/store.h"

/* ---- entry.c: what the store keeps for a kernel, as bytes ---- */

struct entry_view {            /* places inside them */
	const char *meta;      /* not NUL-terminated */
	size_t meta_len;
	const void *cubin;     /* at a multiple of 64 of the bytes */
	size_t cubin_len;
	const uint8_t *digest; /* SHA-256 of all else */
	struct store_key key;
};
/* Checks every byte. key NULL: any. false: damaged, or not that entry. */
bool entry_view(struct entry_view *, const uint8_t *bytes, size_t len, const struct store_key *key);
/* malloc'd; NULL when out of memory or too large (errno). */
uint8_t *entry_encode(size_t *len, const struct store_key *, const struct store_entry *);

/* ---- packs ---- */

enum { PACK_FORMAT = 1, PACK_HEADER_SIZE = 192, PACK_RECORD_SIZE = 128, PACK_RECORDS_MAX = 1 << 20, PACK_WHY_MAX = 256 };

enum pack_text {
	PACK_SPEC,      /* the spec as it was written */
	PACK_CANONICAL, /* as spec_print prints it */
	PACK_ABOUT,     /* who made it of what, "key: value" lines */
	PACK_SOURCE,    /* the emitted source; may be left out */
	PACK_TEXTS
};

struct pack_item { /* one kernel: borrowed pointers, into a pack or from elsewhere */
	const char *name, *target, *templ;
	unsigned revision, pass, tile_m, tile_n;
	const void *entry;
	size_t entry_len;
	struct { const char *text; size_t len; } text[PACK_TEXTS];
};

struct pack { /* an opened one: a view of bytes that the caller keeps */
	const uint8_t *bytes;
	size_t len;
	int count;
	char version[32]; /* of the fagen that wrote it */
};

/* Checks header, records and strings. `abi`: the launch ABI of this program, `version` its version. -1: why not, as the rest of a
 * sentence about the file. */
int pack_read(struct pack *, const void *bytes, size_t len, unsigned abi, const char *version, char why[PACK_WHY_MAX]);
void pack_get(struct pack_item *, const struct pack *, int i);
/* The first record behind those of record i's name. */
int pack_next(const struct pack *, int i);
/* Checks the entry of a record, every byte of it. */
bool pack_entry(struct entry_view *, const struct pack *, int i);
/* Checks the texts, every byte of them. */
bool pack_texts_good(const struct pack *);
const uint8_t *pack_digest(const struct pack *); /* 32 bytes: two packs with the same are the same */

/* Makes a pack of items, which it sorts. Of items with equal name, target and pass all but one are dropped if they are the same
 * throughout; else -1. malloc'd bytes. -1: why not, a sentence. */
int pack_write(uint8_t **bytes, size_t *len, struct pack_item *, size_t count, unsigned abi, const char *version,
               char why[PACK_WHY_MAX]);

#endif
