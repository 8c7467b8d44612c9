/* pack_layout: where things are in a pack (pack.h draws it), for those who read and write packs. */
#ifndef FAGEN_CACHE_PACK_LAYOUT_H
#define FAGEN_CACHE_PACK_LAYOUT_H

#include "cache/le.h"
#include "cache/pack.h"

#define PACK_MAGIC "FGPACK1" /* with its NUL */
#define BYTE_ORDER_TAG 0x0a0b0c0du
enum { /* in the header */
	BYTE_ORDER_AT = 8, FORMAT_AT = 12, SIZE_AT = 16, HEADER_SIZE_AT = 24, RECORD_SIZE_AT = 28, COUNT_AT = 32, ABI_AT = 36,
	STRINGS_AT = 40, TEXTS_AT = 48, TEXTS_LEN_AT = 56, VERSION_AT = 64, TEXTS_DIGEST_AT = 96, DIGEST_AT = 128
};
enum { /* in a record; of text t eight bytes on each */
	NAME_AT = 0, TARGET_AT = 4, TEMPLATE_AT = 8, REVISION_AT = 12, PASS_AT = 14, TILE_M_AT = 16, TILE_N_AT = 18, ENTRY_AT = 24,
	ENTRY_LEN_AT = 32, TEXT_AT = 40, TEXT_LEN_AT = 44, RECORD_DIGEST_AT = 96
};
enum { ENTRY_ALIGN = 64 };

/* -1, and why. */
int pack_fail(char why[PACK_WHY_MAX], const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
