/* pack: what the parts of `fagen pack` share. */
#ifndef FAGEN_CLI_PACK_H
#define FAGEN_CLI_PACK_H

#include "cache/pack.h"
#include "gen/signature.h"
#include "runtime/runtime.h"

int pack_build_run(int argc, char **argv);  /* fagen pack build: argv[0] is "build" */
int pack_export_run(int argc, char **argv);

struct pack_file { /* a pack read into memory */
	const char *path;
	uint8_t *bytes;
	struct pack pack;
};
/* -1, and a complaint: it cannot be read, or is none. */
int pack_file_read(struct pack_file *, const char *path);
void pack_file_free(struct pack_file *);

/* What the i-th kernel of a pack is, checked throughout. */
struct pack_kernel {
	struct pack_item item;
	struct entry_view entry;
	const struct target *target;
	struct cubin cubin;          /* without code */
	struct signature signature;
};
/* -1: why not, as the rest of a sentence that begins with the kernel. */
int pack_kernel_read(struct pack_kernel *, const struct pack *, int i, char why[PACK_WHY_MAX]);

/* Writes a pack of items to `path`; says what it did. Exit status. */
int pack_items_write(const char *path, struct pack_item *, size_t count);

#endif
