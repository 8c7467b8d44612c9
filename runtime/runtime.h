/* The inside of libfagen: source -> cubin -> kernel -> launch. Used by cli/, check/ and tests/; not installed. */
#ifndef FAGEN_RUNTIME_H
#define FAGEN_RUNTIME_H

#include "cache/store.h"
#include "gen/gen.h"
#include "runtime/fagen.h"

/* ---- nvrtc.c: the compiler, opened with dlopen on the first miss ------------------------------------------------- */

struct cubin { /* machine code and what is needed to launch it; owns its bytes */
	void *code;
	size_t code_len;
	struct recipe recipe;
	int registers;        /* most of any entry */
	int spill_bytes;      /* spill stores + loads, summed over entries */
	int stack_bytes;      /* most of any entry */
	int smem_bytes;       /* dynamic, most of any entry */
	bool serialized;      /* ptxas warned that asynchronous matrix instructions were serialised */
	bool from_store;      /* a cache hit */
	double compile_ms;    /* 0 for a hit */
	char *report;         /* compiler log, "" if empty */
	struct store_key key; /* under which the store has it, if it could be kept */
	int nvrtc_result;     /* of a compilation that failed: nvrtcResult; there is nothing else then */
};
void cubin_free(struct cubin *); /* cubin_meta.c */

struct compiler;
/* path NULL: search ($FAGEN_NVRTC, already mapped, CUDA_HOME, CUDA_PATH, loader path; the folder a build fetched).
 * Options of $FAGEN_NVRTC_OPTIONS are taken now. */
struct compiler *compiler_open(const char *path, bool ignore_env); /* loads nothing yet */
void compiler_close(struct compiler *);
/* Identity without loading: ELF build ids of libnvrtc and its builtins. -1: there is none, with every path tried. */
int MUST_USE compiler_identity(struct text *, struct compiler *, struct diag *);
const char *compiler_path(struct compiler *);                      /* "" when none was found */
int MUST_USE compiler_version(int *major, int *minor, struct compiler *, struct diag *); /* loads it */
/* Compiles; no cache involved. Fills code, registers, spills, report. Any thread; runs on an 8 MiB stack of its own. */
int MUST_USE compiler_run(struct cubin *, struct compiler *, const struct text *source, const struct target *, struct diag *);
/* The same to PTX text, for `--emit ptx`. */
int MUST_USE compiler_ptx(struct text *, struct compiler *, const struct text *source, const struct target *, struct diag *);

/* ---- cubin.c: source -> cubin through the store ------------------------------------------------------------------- */

/* Looks in the store, else compiles under the shard's lock and publishes. */
int MUST_USE cubin_get(struct cubin *, struct store *, struct compiler *, const struct text *source,
                       const struct target *, const struct recipe *, struct diag *);
/* The same for whoever has hashed the source already: `begun` is what cubin_key_begin gave for it, and is consumed. */
struct key_builder *cubin_key_begin(const struct text *source);
int MUST_USE cubin_get_begun(struct cubin *, struct key_builder *begun, struct store *, struct compiler *,
                             const struct text *source, const struct target *, const struct recipe *, struct diag *);
/* The key of that cubin, for `cache show` and -d k: appends the digest of every record. */
int MUST_USE cubin_key(struct store_key *, struct text *explain, struct compiler *, const struct text *source,
                       const struct target *, struct diag *);

/* ---- checked.c: what checks of a stored cubin found ----------------------------------------------------------------------- */

/* Notes in the entry of a cubin that `fagen check` found it right, or wrong, on a GPU; of one GPU the last word stands. Like all
 * of the store it fails quietly: the check was done. */
void cubin_checked(struct store *, const struct store_key *, const char *gpu, bool right);
/* The lines of checks, "check right NVIDIA H200\n" each, "" when there are none; part of the entry. */
const char *cubin_checks(const struct store_entry *);
/* For people: what is kept of a cubin beside its code, with the checks. */
void cubin_describe(struct text *, const struct store_entry *);
/* The same for all passes of a kernel, by the name of the GPU it is loaded on. Once a verdict: asking again is cheap. */
void runtime_checked(fagen_kernel *, bool right);

/* ---- pack.c -------------------------------------------------------------------------------------------------------- */

/* Of struct fagen_abi and struct fagen_abi_maps as kernels of packs take them: raise it when either changes (t_pack remembers what
 * they were). */
enum { PACK_LAUNCH_ABI = 5 };

/* ---- driver.c: libcuda.so.1 by dlopen -------------------------------------------------------------------------------- */

struct driver;
struct driver *driver_open(void);                 /* loads nothing yet; NULL only when out of memory */
void driver_close(struct driver *);
int MUST_USE driver_init(struct driver *, struct diag *);   /* dlopen, cuInit; idempotent, thread-safe */
int driver_version(const struct driver *);        /* 13000 for 13.0; 0 before driver_init */
int MUST_USE driver_device_count(int *, struct driver *, struct diag *);
struct gpu { char name[64]; int cc; int sms; int smem_block; uint64_t memory_bytes; int clock_khz; int l2_bytes; };
int MUST_USE driver_device(struct gpu *, struct driver *, int ordinal, struct diag *);

/* ---- the parts of a runtime, for cli/ and tests/ ---------------------------------------------------------------------- */

struct store *runtime_store(fagen_runtime *);
struct compiler *runtime_compiler(fagen_runtime *);
struct driver *runtime_driver(fagen_runtime *);
const char *runtime_templates(const fagen_runtime *);        /* NULL: built in */
/* What a GPU is planned for. -1 also when no target runs on it. */
int MUST_USE runtime_machine(const struct target **, const struct device **, fagen_runtime *, int ordinal, struct diag *);
const struct device_list *runtime_devices(const fagen_runtime *);
const struct wisdom *runtime_wisdom(const fagen_runtime *);  /* NULL: none was given */
const struct spec *runtime_spec(const fagen_spec *);
/* Made for the first problem that led to this kernel. NULL: the kernel has no such pass. */
const struct plan *runtime_plan(const fagen_kernel *, enum pass);

#endif
