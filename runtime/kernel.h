/* kernel: the objects behind the handles of fagen.h, for runtime.c, kernel.c and launch.c. */
#ifndef FAGEN_KERNEL_H
#define FAGEN_KERNEL_H

#include <pthread.h>
#include <stdatomic.h>

#include "cache/pack.h"
#include "gen/signature.h"
#include "runtime/driver.h"
#include "templates/abi.h"

struct fagen_spec {
	struct fagen_spec *next;
	char *name;                /* what messages call the text */
	struct spec spec;
	struct program program;
};

struct kernel_pass { /* one pass, loaded on one device; without kernels in its recipe: there is none */
	struct plan *plan;         /* NULL: no such pass, or not planned here */
	cu_library library;
	cu_kernel entry[RECIPE_KERNELS_MAX];
	size_t piece_field[RECIPE_PIECES_MAX]; /* offset in struct fagen_abi of the address of a workspace piece */
	struct recipe recipe;
	struct kept_maps *kept;    /* tensor maps of earlier launches, one for each of the recipe; may be NULL */
	struct kept_launches *launches; /* what earlier launches filled in; may be NULL */
	struct key_builder *key;   /* of its cubin up to the source, which is hashed once; NULL when used or not made here */
	int registers, spill_bytes, smem_bytes;
	int tile_m, tile_n;
	const char *source;        /* "cache", "compiled", "pack" */
	struct store_key stored;   /* of its cubin; zeros when it is of a pack */
};

enum { KERNEL_PROBLEMS_MAX = 16 };

/* Immutable from the moment it is found in the registry with `ready`, but for `problem` and `verdict`, which the runtime's
 * mutex guards, and for what passes keep of launches, which launches share without a lock. */
struct fagen_kernel {
	struct fagen_kernel *next;
	bool ready;                /* false: some thread is still making it */
	fagen_runtime *runtime;
	const struct fagen_spec *spec; /* NULL: of a pack, or a merger */
	struct signature signature;
	const char *maker;         /* path of the compiler, or name of the pack: for messages; lives as long as the runtime */
	const struct fagen_pack *pack;  /* NULL: it was planned here */
	struct fagen_kernel *pack_next; /* the next of the same name, on another device */
	bool naive;
	int ordinal;
	cu_device device;
	cu_context primary;
	const struct target *target;
	int sms;                   /* multiprocessors of the device */
	struct store_key identity; /* digest of device, sources and recipes: equal ones are one kernel */
	int verdict;               /* of checks: 0 none, 1 right, -1 wrong; guarded by the runtime's mutex */
	struct problem problem[KERNEL_PROBLEMS_MAX]; /* the last ones that led here, so that asking again is cheap */
	int problem_count;         /* may exceed the maximum: the oldest is overwritten */
	struct kernel_pass pass[PASS_COUNT];
};

struct fagen_pack {
	struct fagen_pack *next;
	fagen_runtime *runtime;
	char *name;                /* what messages call it: its path */
	void *map;                 /* NULL: the bytes are the caller's */
	size_t map_len;
	struct pack pack;
	/* Names, and for each its first record, and the kernels got of it, one for each device. Read without a lock, added to
	 * under the runtime's mutex. */
	int name_count;
	const char **names;        /* ascending, in the pack */
	int *first;
	_Atomic(struct fagen_kernel *) *got;
};

struct runtime_device { /* a GPU as the planner sees it */
	struct runtime_device *next;
	int ordinal;
	struct gpu gpu;
	const struct target *target;
	struct device device;      /* as the planner sees it; name NULL: nobody asked yet */
};

struct fagen_runtime {
	struct driver *driver;
	pthread_mutex_t mutex;     /* the lists below */
	pthread_cond_t made;       /* a kernel became ready or was given up */
	struct fagen_kernel *kernels;
	struct runtime_device *devices;
	struct fagen_pack *packs;
	/* Of libfagen alone. */
	char *templates_dir;       /* NULL: built in */
	struct store *store;
	struct compiler *compiler;
	struct fagen_spec *specs;
	bool has_wisdom;           /* measured tiles were given: */
	struct wisdom wisdom;
	struct device_list rows;   /* what the planner knows of GPUs: the table, and $FAGEN_DEVICES */
};

/* The spec's inputs as the launch names them, checked: inputs.c. */
int inputs_fill(struct fagen_abi *, const struct fagen_kernel *, enum pass, const fagen_args *, struct fault *);

/* The tensor maps of a recipe over the operands of a launch: tensor_map.c. Sets of maps are bits by their number in the recipe. */
enum { MAPPED_RANK = 4 };
struct mapped { /* all that a map depends on beside its recipe; without rows, heads or batch it has none */
	uint64_t address, size[MAPPED_RANK], stride[MAPPED_RANK - 1]; /* columns, rows, heads, batch; bytes of rows, heads, batch */
};
/* Finds all that fagen can say of them. */
int maps_fill(struct mapped[RECIPE_MAPS_MAX], const struct recipe *, const struct fagen_abi *, const struct recipe_shape *,
              const struct fagen_kernel *, struct fault *);
/* For operands that differ from those of maps_fill in nothing but their addresses: which have others now? */
unsigned maps_move(struct mapped[RECIPE_MAPS_MAX], const struct recipe *, const struct fagen_abi *);
/* Takes the wanted maps that were kept. Which are lacking? Those of operands without elements are not, and stay as they are. */
unsigned maps_take(struct fagen_abi_maps *, const struct mapped[RECIPE_MAPS_MAX], unsigned wanted, const struct kernel_pass *);
/* Has the driver make those that are lacking, for which it wants a current context, and keeps them. */
int maps_encode(struct fagen_abi_maps *, const struct mapped[RECIPE_MAPS_MAX], unsigned lacking, const struct kernel_pass *,
                const struct fagen_kernel *, struct fault *);
/* Where maps_encode keeps the maps of a pass for the next launches; free() takes it. NULL: there is nothing to keep, or no memory,
 * and every launch encodes. */
struct kept_maps *maps_keep(const struct recipe *);

/* ---- runtime_core.c: what libfagen and libfagen_rt open and close alike ---- */

/* Takes what the caller configured, which may be NULL, and makes a runtime of what both have. */
int MUST_USE runtime_begin(fagen_runtime **, fagen_config *, const fagen_config *given, struct fault *);
void runtime_end(fagen_runtime *); /* all but what is of libfagen alone */

/* ---- load.c: kernels that are made, by whoever made them ---- */

static inline bool kernel_has(const struct fagen_kernel *k, enum pass pass) { return k->pass[pass].recipe.kernel_count > 0; }
/* A GPU and its target. Its row for the planner is kernel.c's to fill in. */
int device_of(struct runtime_device **, fagen_runtime *, int ordinal, struct fault *);
/* Finds the places of a recipe's workspace pieces in the launch ABI. */
int pieces_find(struct kernel_pass *, struct fault *);
/* Loads one library for each pass that the kernel has. */
int kernel_load(struct fagen_kernel *, const void *const code[PASS_COUNT], struct fault *);
/* The kernel of this request, if somebody asked for it before; waits for who is making it. The runtime's mutex is held. */
struct kernel_request {
	const struct store_key *identity; /* NULL: what follows says which */
	const struct fagen_spec *spec;
	const struct problem *problem;
	int ordinal;
	bool naive;
};
struct fagen_kernel *kernel_find(fagen_runtime *, const struct kernel_request *);
/* Finds the kernel of the same identity, else completes `k`, which is consumed, with `build`, which loads it. */
typedef int kernel_builder(struct fagen_kernel *, const void *from, struct fault *);
int kernel_settle(struct fagen_kernel **, struct fagen_kernel *k, kernel_builder *build, const void *from, struct fault *);
/* Unloads and frees; the driver is left alone when this is a fork of the process that loaded it. */
void kernel_free(struct fagen_kernel *);

/* ---- pack.c ---- */

void pack_free(struct fagen_pack *);

/* ---- kernel.c ---- */

/* A builder: compiles an array of sources, one for each pass, or takes the code from the store. */
int kernel_compile(struct fagen_kernel *, const void *sources, struct fault *);

/* ---- launch.c ---- */

/* Is a batch, a number of heads or a length from 0 to LENGTH_MAX? The fault names it. */
int count_check(const char *name, int64_t value, struct fault *);

/* Where a pass keeps what its launches fill in, for the next of the same shapes and strides; free() takes it. NULL: no memory, and
 * every launch is checked and filled in anew. */
struct kept_launches *launches_keep(void);

/* The context that calls on this stream need, pushed if it is not there. A stream object brings its own context to a
 * launch, but not to a memset or the encoding of a tensor map, which want it `current`; a stream name (NULL, legacy,
 * per-thread) means the stream of the current context. */
int context_enter(bool *pushed, const struct fagen_kernel *, cu_stream, bool current, struct fault *);

#endif
