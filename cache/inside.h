/* The inside of cache/: what its files share. Nothing outside cache/ and its tests includes this. */
#ifndef FAGEN_CACHE_INSIDE_H
#define FAGEN_CACHE_INSIDE_H

#include <stdatomic.h>
#include <sys/stat.h>

#include "cache/pack.h"

enum {
	STORE_DIR_MAX = 4096,
	STORE_NOTE_MAX = STORE_DIR_MAX + 512,
	SHARD_COUNT = 256,
	ENTRY_NAME_MAX = 62 + sizeof ".fgk", /* 31 bytes of the key in hex; its first byte is the shard */
	ENTRY_HEADER_SIZE = 128
};
#define ENTRY_SIZE_MAX ((uint64_t)64 << 20)

/* Below dir: v1/CACHEDIR.TAG, v1/k/XX/ENTRY.fgk, v1/lock/XX, v1/tmp/, v1/gc. */
struct store {
	char dir[STORE_DIR_MAX];     /* absolute; "": memory only */
	uint64_t max_bytes;
	int lock_timeout_ms;
	atomic_bool note_claimed, note_ready;
	char note[STORE_NOTE_MAX];
};

/* Keeps the first note, drops the others. */
void store_remark(struct store *, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- place.c: where the cache is, and whether it can be trusted ----------------------------------------------- */

/* Fills dir by the configuration, the environment and the passwd file; "" (with a note) if nothing is usable. */
void place_find(struct store *, const struct store_config *);
/* Opens v1/<sub> ("" for v1 itself, "k/ab", "lock", "tmp"); `create` makes what is missing, 0700. Every folder on the
 * way below dir must belong to this user or root and be writable by nobody else. -1 with errno; a note is left unless
 * the folder is merely absent. */
int place_open(struct store *, const char *sub, bool create);
/* Belongs to this user or root, writable by nobody else. */
bool place_trusted(const struct stat *);

/* ---- entry.c: the bytes of one file; pack.h has more of it ------------------------------------------------------- */

enum entry_state { ENTRY_GOOD, ENTRY_ABSENT, ENTRY_DAMAGED, ENTRY_UNREADABLE };

void entry_name(char name[ENTRY_NAME_MAX], const struct store_key *);
/* The key that belongs to a file name in a shard; false: not the name of an entry. */
bool entry_name_parse(struct store_key *, int shard, const char *name);
/* Checks every byte. `entry` may be NULL: verify only. Otherwise it is filled on ENTRY_GOOD. */
enum entry_state entry_decode(struct store_entry *entry, const uint8_t *bytes, size_t len, const struct store_key *);

/* ---- entry_file.c: as a file of a shard ------------------------------------------------------------------------- */

/* Reads and checks a file. `seen` describes the file that was judged (for ENTRY_GOOD and ENTRY_DAMAGED);
 * errno is set for ENTRY_UNREADABLE. `touch`: renew the modification time of a good one that is older than an hour. */
enum entry_state entry_read(struct store_entry *entry, struct stat *seen, int shard_fd, const char *name,
                            const struct store_key *, bool touch);
/* Removes a file or folder if it still is the one in `seen`, so that a newer good one survives. 0 or -1. */
int entry_remove(int dir_fd, const char *name, const struct stat *seen);

/* ---- publish.c: write aside, then link -------------------------------------------------------------------------- */

enum publish_state { PUBLISH_DONE, PUBLISH_EXISTS, PUBLISH_FAILED };

/* Makes `name` in dir_fd appear whole or not at all. Never replaces a file. PUBLISH_FAILED: errno, and *step says
 * what failed; nothing is left behind. */
enum publish_state publish(struct store *, int dir_fd, const char *name, const void *bytes, size_t len, const char **step);
/* The same in the place of a file that has the name: readers see the one or the other. */
enum publish_state publish_over(struct store *, int dir_fd, const char *name, const void *bytes, size_t len, const char **step);

/* ---- evict.c ----------------------------------------------------------------------------------------------------- */

/* Collects if the last collection is over a day old, or `chance` says it is this one's turn. */
void evict_maybe(struct store *, bool chance);

#endif
