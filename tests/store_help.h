/* store_help: folders to keep stores in, entries that can be told apart, and looking at what lies on disk. */
#ifndef FAGEN_TESTS_STORE_HELP_H
#define FAGEN_TESTS_STORE_HELP_H

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cache/inside.h"

enum { UNUSED_UID = 54321 }; /* no passwd entry */

static char test_dir[64]; /* a fresh folder for each test */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) { return remove(path); }

/* In memory where there is a place for it: these tests make and remove many thousand files. */
static void dir_setup(void)
{
	strcpy(test_dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/fagen-test-XXXXXX" : "/tmp/fagen-test-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(test_dir));
}

static void dir_teardown(void) { nftw(test_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

static inline struct store *store_at(const char *dir)
{
	struct store *store = store_open(&(struct store_config){.dir = dir, .ignore_env = true});
	ck_assert_ptr_nonnull(store);
	return store;
}

/* The n-th key: spread over shards, always the same. */
static inline struct store_key key_of(unsigned n)
{
	struct store_key key;
	struct key_builder *builder = key_begin();
	key_record(builder, 1, &n, sizeof n);
	key_finish(&key, builder);
	return key;
}

static inline size_t size_of(unsigned n) { return 300 + n % 7 * 4099; }

/* The bytes that belong to the n-th key. */
static inline void bytes_of(uint8_t *bytes, unsigned n)
{
	uint32_t state = n * 2654435761u + 1;
	for (size_t i = 0; i < size_of(n); i++) {
		state = state * 1664525u + 1013904223u;
		bytes[i] = (uint8_t)(state >> 24);
	}
}

/* The n-th entry, by store_put or store_replace. */
static inline bool keep_n(struct store *store, unsigned n, bool (*keep)(struct store *, const struct store_key *, const struct store_entry *))
{
	uint8_t bytes[32768];
	char meta[64];
	bytes_of(bytes, n);
	snprintf(meta, sizeof meta, "entry %u\n", n);
	const struct store_key key = key_of(n);
	return keep(store, &key, &(struct store_entry){.meta = meta, .meta_len = strlen(meta), .cubin = bytes, .cubin_len = size_of(n)});
}

static inline bool put_n(struct store *store, unsigned n) { return keep_n(store, n, store_put); }
static inline bool replace_n(struct store *store, unsigned n) { return keep_n(store, n, store_replace); }

enum got { GOT_MISS, GOT_RIGHT, GOT_WRONG };

static inline enum got get_n(struct store *store, unsigned n)
{
	struct store_entry entry = {0};
	const struct store_key key = key_of(n);
	if (!store_get(&entry, store, &key))
		return GOT_MISS;
	uint8_t bytes[32768];
	char meta[64];
	bytes_of(bytes, n);
	snprintf(meta, sizeof meta, "entry %u\n", n);
	const bool right = entry.cubin_len == size_of(n) && memcmp(entry.cubin, bytes, size_of(n)) == 0 &&
	                   entry.meta_len == strlen(meta) && strcmp(entry.meta, meta) == 0;
	store_entry_free(&entry);
	return right ? GOT_RIGHT : GOT_WRONG;
}

static inline void path_n(char *path, size_t size, const char *dir, unsigned n)
{
	char hex[65];
	const struct store_key key = key_of(n);
	key_hex(hex, &key);
	snprintf(path, size, "%s/v1/k/%.2s/%s.fgk", dir, hex, hex + 2);
}

/* Files below the folder that are neither entries, lock files, gc nor the tag. */
static int foreign_files;
static inline int count_foreign(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	const char *name = path + ftw->base;
	if (type == FTW_D || strstr(path, "/v1/lock/") || strcmp(name, "gc") == 0 || strcmp(name, "CACHEDIR.TAG") == 0)
		return 0;
	foreign_files += strstr(path, "/v1/k/") == NULL || strlen(name) != 66 || strcmp(name + 62, ".fgk") != 0;
	return 0;
}

static inline int leftovers(const char *dir)
{
	foreign_files = 0;
	nftw(dir, count_foreign, 16, FTW_PHYS);
	return foreign_files;
}

static inline void age(const char *path, long seconds)
{
	const struct timespec when = {.tv_sec = time(NULL) - seconds};
	ck_assert_int_eq(utimensat(AT_FDCWD, path, (const struct timespec[]){when, when}, AT_SYMLINK_NOFOLLOW), 0);
}

static inline void sleep_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

static inline double seconds_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Waits for a child that must have exited by itself with status 0. */
static inline void child_passed(pid_t child)
{
	int status = 0;
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child: %s %d", WIFEXITED(status) ? "status" : "signal",
	              WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

#endif
