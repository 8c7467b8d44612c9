/* store: verified kernels on disk, one file each. libc and libnettle only.
 *
 * A store never fails a launch: whatever goes wrong (no home, read-only, full, damaged, foreign) is a miss on read and
 * "not kept" on write, noted once in store_note. Every byte read is verified before it is returned. Entries are
 * written aside and linked or renamed into place, never changed in place. Any number of processes and threads may share one
 * directory; one struct store may be used from any thread. */
#ifndef FAGEN_CACHE_STORE_H
#define FAGEN_CACHE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct store_key { uint8_t bytes[32]; };

/* A key is SHA-256 over tagged, length-prefixed records. */
struct key_builder;
struct key_builder *key_begin(void);
void key_record(struct key_builder *, uint32_t tag, const void *bytes, size_t len);
struct key_builder *key_copy(const struct key_builder *);  /* goes on from where this one is */
void key_finish(struct store_key *, struct key_builder *); /* frees the builder */
void key_drop(struct key_builder *);                       /* frees it alone; NULL is ignored */
void key_hex(char hex[65], const struct store_key *);

struct store_entry {      /* what is kept for one kernel; owns its bytes */
	char *meta;           /* text: recipe, compiler report; NUL-terminated */
	size_t meta_len;
	void *cubin;
	size_t cubin_len;
};
void store_entry_free(struct store_entry *);

struct store;

struct store_config {
	const char *dir;      /* NULL: $FAGEN_CACHE_DIR, $XDG_CACHE_HOME/fagen, $HOME/.cache/fagen, passwd home; "": memory only */
	uint64_t max_bytes;   /* 0: $FAGEN_CACHE_MAX_SIZE, else 1 GiB */
	int lock_timeout_ms;  /* 0: $FAGEN_LOCK_TIMEOUT seconds, else 60 s */
	bool ignore_env;
};

/* Never fails for outside reasons: without a usable directory the store is open and every read misses.
 * NULL only when out of memory. Touches the disk on first use, not here. */
struct store *store_open(const struct store_config *);
void store_close(struct store *);

const char *store_dir(const struct store *);  /* absolute, or "" when memory only */
/* The first trouble met, one sentence with path and errno text; "" if none. Stays valid until store_close. */
const char *store_note(const struct store *);

/* true: *entry is filled, verified, owned by the caller. */
bool store_get(struct store_entry *entry, struct store *, const struct store_key *);
/* Publishes an entry. true: it is on disk (now, or somebody else's identical one already was). */
bool store_put(struct store *, const struct store_key *, const struct store_entry *);
/* Puts an entry in the place of the one that is there; a reader gets the one or the other. false: what was there stays. */
bool store_replace(struct store *, const struct store_key *, const struct store_entry *);
/* Forgets one entry: for a reader who finds that a verified one is of no use to him. */
void store_remove(struct store *, const struct store_key *);

/* Advisory lock of a key's shard, to avoid doing the same work twice. Waits at most lock_timeout. A negative token
 * means "no lock, go on". store_unlock takes any token. */
int store_lock(struct store *, const struct store_key *);
void store_unlock(struct store *, int token);

struct store_stats { uint64_t entries, bytes, damaged, stray; };
/* Walks the directory, verifying every entry when `verify`. 0 or -1 (no directory). */
int store_stats(struct store_stats *, struct store *, bool verify);
struct store_item { struct store_key key; struct store_entry entry; uint64_t bytes; int64_t used; /* seconds since 1970 */ };
/* Calls `each` for every entry that can be read and is not damaged; the item is the callee's for the time of the call. 0 or -1. */
int store_each(struct store *, void (*each)(void *context, const struct store_item *), void *context);
/* Removes oldest entries above the size cap, and stray temporary files. Returns bytes freed. */
uint64_t store_collect(struct store *);
/* Removes every entry. Returns entries removed. */
uint64_t store_clear(struct store *);

#endif
