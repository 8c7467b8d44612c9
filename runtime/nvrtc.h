/* nvrtc: the inside of the compiler part: where NVRTC is, what exactly it is, what it said. */
#ifndef FAGEN_NVRTC_H
#define FAGEN_NVRTC_H

#include "runtime/runtime.h"

enum { NVRTC_BUILTINS_MAX = 4, NVRTC_PATH_MAX = 4096, NVRTC_OPTIONS_MAX = 32 };

#define NVRTC_PROGRAM_NAME "fagen.cu" /* fixed: it enters the names of internal symbols, and so the cubin */

/* ---- nvrtc_find.c: files, nothing is loaded -------------------------------------------------------------------- */

struct nvrtc_place {
	char path[NVRTC_PATH_MAX];    /* "" when there is none */
	/* libnvrtc-builtins.so.MAJOR.MINOR beside it; NVRTC has no run path, so it does not find them by itself. */
	int builtins_count;
	char builtins[NVRTC_BUILTINS_MAX][NVRTC_PATH_MAX];
	struct text tried;            /* what was looked at, one a line, when there is none */
	bool disabled;                /* asked for no compiler at all */
};

/* asked: a library or a folder; NULL: search; "": none. */
void nvrtc_find(struct nvrtc_place *, const char *asked, bool ignore_env);

/* ---- build_id.c ---------------------------------------------------------------------------------------------------- */

/* Appends the GNU build id of an ELF file in hex, or "sha256:" and the digest of the file if it has none.
 * 0, or -1 with errno when it cannot be read. */
int build_id_read(struct text *, const char *path);

/* ---- nvrtc_log.c --------------------------------------------------------------------------------------------------- */

/* Takes registers, spill_bytes, stack_bytes and serialized from what ptxas -v said. */
void nvrtc_log_parse(struct cubin *, const char *log);

/* ---- nvrtc.c ------------------------------------------------------------------------------------------------------- */

struct nvrtc_options {
	int count;                            /* those that decide the code, in order: part of the key */
	const char *option[NVRTC_OPTIONS_MAX];
	char arch[48];
};
/* Ours, then those of $FAGEN_NVRTC_OPTIONS, which belong to the compiler. */
void nvrtc_options_make(struct nvrtc_options *, const struct compiler *, const struct target *);

#endif
