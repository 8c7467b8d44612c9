/* evict: walking the cache: counting, verifying, and removing what is old. Readers hold complete copies, so removing a
 * file is always safe; an entry that is touched or replaced between the look and the removal is left alone. */
#include "cache/inside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum {
	YOUNG_S = 600,  /* entries younger than this are in use: never collected */
	STRAY_S = 3600, /* a temporary file this old has lost its writer */
	COLLECT_EVERY_S = 86400,
	FILL_PERCENT = 80 /* a collection goes down to this share of the cap */
};

struct file { /* one file of a shard or of tmp/ */
	int dir_fd;
	const char *name;
	struct stat st;
	bool is_entry;
	struct store_key key;
};

typedef void (*visit)(void *context, const struct file *);

static void walk_folder(int fd, int shard, visit each, void *context)
{
	DIR *listing = fdopendir(fd);
	if (!listing) {
		close(fd);
		return;
	}
	for (struct dirent *item; (item = readdir(listing));) {
		struct file file = {.dir_fd = fd, .name = item->d_name};
		if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0 ||
		    fstatat(fd, item->d_name, &file.st, AT_SYMLINK_NOFOLLOW) != 0)
			continue;
		file.is_entry = shard >= 0 && entry_name_parse(&file.key, shard, item->d_name);
		each(context, &file);
	}
	closedir(listing);
}

/* Every file of k/00..ff and of tmp/. -1 when there is no cache. */
static int walk(struct store *store, visit each, void *context)
{
	const int root = place_open(store, "", false);
	if (root < 0)
		return -1;
	close(root);
	for (int shard = 0; shard < SHARD_COUNT; shard++) {
		char sub[8];
		snprintf(sub, sizeof sub, "k/%02x", shard);
		const int fd = place_open(store, sub, false);
		if (fd >= 0)
			walk_folder(fd, shard, each, context);
	}
	const int tmp = place_open(store, "tmp", false);
	if (tmp >= 0)
		walk_folder(tmp, -1, each, context);
	return 0;
}

static bool is_stray(const struct file *file) { return !file->is_entry; }

static bool is_old(const struct file *file, time_t seconds)
{
	const time_t now = time(NULL); /* a time in the future is a wrong clock, not youth */
	return file->st.st_mtime < now - seconds || file->st.st_mtime > now + seconds;
}

/* ---- statistics ---- */

struct counting {
	struct store_stats *stats;
	bool verify;
};

static void count_file(void *context, const struct file *file)
{
	struct counting *counting = context;
	if (is_stray(file)) {
		counting->stats->stray++;
		return;
	}
	counting->stats->entries++;
	counting->stats->bytes += (uint64_t)file->st.st_size;
	struct stat seen;
	if (counting->verify) {
		const enum entry_state state = entry_read(NULL, &seen, file->dir_fd, file->name, &file->key, false);
		counting->stats->damaged += state == ENTRY_DAMAGED || state == ENTRY_UNREADABLE;
	}
}

int store_stats(struct store_stats *stats, struct store *store, bool verify)
{
	*stats = (struct store_stats){0};
	return walk(store, count_file, &(struct counting){stats, verify});
}

struct visiting {
	void (*each)(void *context, const struct store_item *);
	void *context;
};

static void visit_file(void *context, const struct file *file)
{
	struct visiting *visiting = context;
	struct stat seen;
	struct store_item item = {.key = file->key, .bytes = (uint64_t)file->st.st_size, .used = file->st.st_mtime};
	if (is_stray(file) || entry_read(&item.entry, &seen, file->dir_fd, file->name, &file->key, false) != ENTRY_GOOD)
		return;
	visiting->each(visiting->context, &item);
	store_entry_free(&item.entry);
}

int store_each(struct store *store, void (*each)(void *context, const struct store_item *), void *context)
{
	return walk(store, visit_file, &(struct visiting){each, context});
}

/* ---- collection ---- */

struct old {
	uint8_t shard;
	char name[ENTRY_NAME_MAX];
	struct stat st;
};
struct collection {
	struct old *list;
	size_t count, room;
	uint64_t bytes, freed;
};

static void collect_file(void *context, const struct file *file)
{
	struct collection *all = context;
	if (is_stray(file)) {
		if (is_old(file, STRAY_S) && entry_remove(file->dir_fd, file->name, &file->st) == 0)
			all->freed += (uint64_t)file->st.st_size;
		return;
	}
	all->bytes += (uint64_t)file->st.st_size;
	if (!is_old(file, YOUNG_S))
		return;
	if (all->count == all->room) {
		const size_t room = all->room ? 2 * all->room : 256;
		struct old *list = realloc(all->list, room * sizeof *list);
		if (!list)
			return; /* collect from what is known so far */
		all->list = list;
		all->room = room;
	}
	struct old *old = &all->list[all->count++];
	*old = (struct old){.shard = file->key.bytes[0], .st = file->st};
	memcpy(old->name, file->name, ENTRY_NAME_MAX);
}

static int by_age(const void *a, const void *b)
{
	const struct timespec *x = &((const struct old *)a)->st.st_mtim, *y = &((const struct old *)b)->st.st_mtim;
	if (x->tv_sec != y->tv_sec)
		return x->tv_sec < y->tv_sec ? -1 : 1;
	return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

static uint64_t collect(struct store *store)
{
	struct collection all = {0};
	if (walk(store, collect_file, &all) == 0 && all.bytes > store->max_bytes) {
		const uint64_t goal = store->max_bytes / 100 * FILL_PERCENT;
		if (all.count)
			qsort(all.list, all.count, sizeof *all.list, by_age);
		for (size_t i = 0; i < all.count && all.bytes > goal; i++) {
			char sub[8];
			snprintf(sub, sizeof sub, "k/%02x", all.list[i].shard);
			const int fd = place_open(store, sub, false);
			if (fd < 0)
				continue;
			if (entry_remove(fd, all.list[i].name, &all.list[i].st) == 0) {
				all.bytes -= (uint64_t)all.list[i].st.st_size;
				all.freed += (uint64_t)all.list[i].st.st_size;
			}
			close(fd);
		}
	}
	free(all.list);
	return all.freed;
}

/* Opens v1/gc, whose lock keeps collections apart and whose modification time says when the last one was. */
static int gc_open(struct store *store)
{
	const int v1 = place_open(store, "", false);
	if (v1 < 0)
		return -1;
	const int fd = openat(v1, "gc", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
	close(v1);
	return fd;
}

static uint64_t collect_locked(struct store *store, int fd)
{
	uint64_t freed = 0;
	if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) {
		(void)futimens(fd, NULL);
		freed = collect(store);
		(void)flock(fd, LOCK_UN);
	}
	close(fd);
	return freed;
}

uint64_t store_collect(struct store *store)
{
	const int fd = gc_open(store);
	return fd < 0 ? 0 : collect_locked(store, fd);
}

void evict_maybe(struct store *store, bool chance)
{
	const int fd = gc_open(store);
	if (fd < 0)
		return;
	struct stat st;
	const time_t now = time(NULL);
	if (chance ||
	    (fstat(fd, &st) == 0 && (st.st_mtime < now - COLLECT_EVERY_S || st.st_mtime > now + COLLECT_EVERY_S)))
		(void)collect_locked(store, fd);
	else
		close(fd);
}

static void clear_file(void *context, const struct file *file)
{
	if (entry_remove(file->dir_fd, file->name, &file->st) == 0 && file->is_entry)
		++*(uint64_t *)context;
}

uint64_t store_clear(struct store *store)
{
	uint64_t removed = 0;
	(void)walk(store, clear_file, &removed);
	return removed;
}
