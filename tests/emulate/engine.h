/* engine: a launch under way. One launch runs at a time, on the thread that asked for it. */
#ifndef FAGEN_TESTS_EMULATE_ENGINE_H
#define FAGEN_TESTS_EMULATE_ENGINE_H

#include <setjmp.h>
#include <stdbool.h>

#include "tests/emulate/emulate.h"

enum {
	WARP = 32,
	GROUP = 128,               /* threads of a warpgroup */
	THREADS_MAX = 1024,
	WARPS_MAX = THREADS_MAX / WARP,
	GROUPS_MAX = THREADS_MAX / GROUP,
	CLUSTER_MAX = 2,
	SHARED_MAX = 232448,
	SHARED_ALIGN = 1024,
	STATIC_MAX = 32768,
	CHUNK = 16,                /* bytes of shared memory that are known together to be fenced or not */
	BARRIERS = 16,
	PRODUCTS_MAX = 512,        /* of a warpgroup, from the oldest that is not done to the newest that a thread has issued */
	PRODUCT_GROUPS = 64,
	PRODUCT_N = 256,
	ERROR_MAX = 1800
};

enum wait_kind { WAIT_NONE, WAIT_MBARRIER, WAIT_BARRIER, WAIT_WARP, WAIT_CLUSTER, WAIT_PRODUCTS, WAIT_BULK, WAIT_WORD };

struct wait {
	enum wait_kind kind;
	unsigned object;           /* address, id, groups that may be left */
	uint64_t value;            /* parity, generation, product; of WAIT_BULK: 1, until it has been read */
	const unsigned *word;      /* of global memory, whose bits `object` shall be `value` */
};

struct copy { /* cp.async */
	unsigned to, bytes, group, inside;
	const void *from;
};

struct thread {
	struct emulate_view view;
	struct cta *cta;
	bool started, ended;
	struct wait wait;
	unsigned cluster_generation; /* when it arrived */
	jmp_buf at;
	void *stack;
	size_t statics;            /* bytes of the static variables that it has met, which all threads meet in one order */
	struct copy *copy;
	int copies, copies_room;
	unsigned copy_groups;      /* committed */
	unsigned bulk_groups, bulk_open, bulk_read; /* committed; of the next group; groups known to have been read */
	uint64_t issued;           /* products */
	uint64_t group_end[PRODUCT_GROUPS];
	unsigned groups;
	bool fenced;               /* products may follow */
	unsigned *unfenced;        /* chunks of shared memory that this thread wrote */
	int unfenced_count, unfenced_room;
};

struct barrier { int count, threads; unsigned generation; bool yes, result; };
struct warp {
	int count;
	enum emulate_warp kind;
	const char *file;
	int line;
	unsigned generation;
	uint64_t in[WARP], out[WARP];
	unsigned slow;             /* takes one turn in 2^slow */
};

struct issued { /* a product of a warpgroup */
	struct emulate_product product;
	int threads;               /* that have issued it */
	float *d[GROUP];
	unsigned a[GROUP][4];
};
struct group { uint64_t done; struct issued product[PRODUCTS_MAX]; };

struct cta {
	struct cluster *cluster;
	struct thread *thread;
	unsigned threads, live;
	unsigned char *shared;     /* SHARED_MAX, poisoned, then STATIC_MAX */
	unsigned shared_bytes;
	struct { uint16_t count, owner; } unfenced[SHARED_MAX / CHUNK]; /* writes that no fence has followed, and the last writer */
	struct barrier barrier[BARRIERS];
	struct warp warp[WARPS_MAX];
	struct group *group[GROUPS_MAX]; /* NULL: no product yet */
};

struct cluster {
	struct cta *cta[CLUSTER_MAX];
	unsigned ctas, live;       /* CTAs that have not ended */
	unsigned arrived, generation;
};

/* ---- grid.c ---- */

struct launch {
	const char *name;
	const struct emulate_kernel *kernel;
	unsigned grid, threads, shared_bytes;
	void **params;
	uint64_t seed, number;     /* number: of the process's launches */
	unsigned sms;              /* CTAs that run together */
	bool strict;               /* a product of unfenced writes is an error, and not NaN */
};
/* NULL, or what went wrong: valid until the next launch. */
const char *grid_run(const struct launch *);

bool grid_strict(void);
struct thread *thread_now(void);        /* NULL: a copy or product is being done */
void thread_wait(struct wait);          /* returns when it is over */
void thread_pause(void);                /* others may go on, now and then */
uint64_t chance(uint64_t below);        /* 0 .. below - 1 */

/* ---- shared.c ---- */

struct cta *address_cta(unsigned *address, struct cta *own); /* takes the rank out of an address */
unsigned char *address_bytes(struct cta *, unsigned at, unsigned bytes);
/* The same, as the async proxy reads or writes it. */
unsigned char *address_async(struct cta *, unsigned at, unsigned bytes);
bool mbarrier_ended(struct cta *, unsigned at, unsigned parity);
void mbarrier_complete(struct cta *, unsigned at, unsigned bytes);
void mbarrier_print(char *to, size_t size, struct cta *, unsigned at);

/* ---- bulk.c ---- */

bool bulk_over(const struct thread *, unsigned pending, bool read);
bool bulk_step(void);                   /* does one that is under way; false: there is none */
int bulk_count(void);
void bulk_thread_end(const struct thread *);
void bulk_cta_end(struct cta *);
void bulk_forget(void);

/* ---- wgmma.c ---- */

bool products_step(struct cta *, int group); /* does the next product, if all threads have issued it */
void products_thread_end(const struct thread *);
void products_forget(struct cta *);

/* ---- driver.c ---- */

/* What cuTensorMapEncodeTiled writes; strides in bytes of rows, heads, batch. */
struct map {
	uint64_t magic, address, size[4], stride[3];
	uint32_t box[4];
};
enum { MAP_MAGIC = 0x6d617000 };

#endif
