#include "cache/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOCK_TIMEOUT_MS = 60000, LOCK_TIMEOUT_MAX_S = 86400, COLLECT_ONE_IN = 32 };
static const uint64_t default_max_bytes = (uint64_t)1 << 30;

void store_remark(struct store *store, const char *format, ...)
{
	if (atomic_exchange(&store->note_claimed, true))
		return;
	va_list args;
	va_start(args, format);
	vsnprintf(store->note, sizeof store->note, format, args);
	va_end(args);
	atomic_store(&store->note_ready, true);
}

/* Digits, then K, M or G for a power of 1024 when `suffix`. */
static bool parse_amount(uint64_t *amount, const char *text, bool suffix, uint64_t limit)
{
	uint64_t value = 0;
	const char *at = text;
	for (; *at >= '0' && *at <= '9'; at++) {
		if (value > (limit - (uint64_t)(*at - '0')) / 10)
			return false;
		value = value * 10 + (uint64_t)(*at - '0');
	}
	if (at == text)
		return false;
	if (suffix && *at) {
		const char *unit = strchr("KMG", *at);
		if (!unit)
			unit = strchr("kmg", *at);
		if (!unit)
			return false;
		const int shift = *unit == 'K' || *unit == 'k' ? 10 : *unit == 'M' || *unit == 'm' ? 20 : 30;
		if (value > limit >> shift)
			return false;
		value <<= shift;
		at++;
	}
	*amount = value;
	return *at == '\0' && value > 0;
}

struct store *store_open(const struct store_config *given)
{
	const struct store_config config = given ? *given : (struct store_config){0};
	struct store *store = calloc(1, sizeof *store);
	if (!store)
		return NULL;
	store->max_bytes = config.max_bytes ? config.max_bytes : default_max_bytes;
	store->lock_timeout_ms = config.lock_timeout_ms > 0 ? config.lock_timeout_ms : LOCK_TIMEOUT_MS;
	place_find(store, &config);

	const char *size = config.ignore_env || config.max_bytes ? NULL : secure_getenv("FAGEN_CACHE_MAX_SIZE");
	const char *wait = config.ignore_env || config.lock_timeout_ms > 0 ? NULL : secure_getenv("FAGEN_LOCK_TIMEOUT");
	uint64_t amount;
	if (size && size[0]) {
		if (parse_amount(&amount, size, true, INT64_MAX))
			store->max_bytes = amount;
		else
			store_remark(
				store,
				"FAGEN_CACHE_MAX_SIZE='%s' is not a number of bytes, with or without K, M or G; 1G is used",
				size);
	}
	if (wait && wait[0]) {
		if (parse_amount(&amount, wait, false, LOCK_TIMEOUT_MAX_S))
			store->lock_timeout_ms = (int)amount * 1000;
		else
			store_remark(store,
			             "FAGEN_LOCK_TIMEOUT='%s' is not a number of seconds from 1 to %d; 60 is used",
			             wait, LOCK_TIMEOUT_MAX_S);
	}
	return store;
}

void store_close(struct store *store) { free(store); }

const char *store_dir(const struct store *store) { return store->dir; }

const char *store_note(const struct store *store) { return atomic_load(&store->note_ready) ? store->note : ""; }

static int shard_open(struct store *store, const struct store_key *key, bool create)
{
	char sub[8];
	snprintf(sub, sizeof sub, "k/%02x", key->bytes[0]);
	return place_open(store, sub, create);
}

static enum entry_state shard_read(struct store_entry *entry, struct store *store, int shard,
                                   const struct store_key *key)
{
	char name[ENTRY_NAME_MAX];
	struct stat seen;
	entry_name(name, key);
	const enum entry_state state = entry_read(entry, &seen, shard, name, key, entry != NULL);
	if (state == ENTRY_DAMAGED) {
		const bool removed = entry_remove(shard, name, &seen) == 0;
		store_remark(store, "cache entry %s/v1/k/%02x/%s was damaged%s", store->dir, key->bytes[0], name,
		             removed ? "; it was removed and will be made again" : " and could not be removed");
	} else if (state == ENTRY_UNREADABLE) {
		store_remark(store, "cache entry %s/v1/k/%02x/%s cannot be read: %s", store->dir, key->bytes[0], name,
		             strerror(errno));
	}
	return state;
}

bool store_get(struct store_entry *entry, struct store *store, const struct store_key *key)
{
	const int shard = shard_open(store, key, false);
	if (shard < 0)
		return false;
	const enum entry_state state = shard_read(entry, store, shard, key);
	close(shard);
	return state == ENTRY_GOOD;
}

static bool shard_write(struct store *store, int shard, const struct store_key *key, const uint8_t *bytes, size_t len)
{
	char name[ENTRY_NAME_MAX];
	entry_name(name, key);
	for (int i = 0; i < 2; i++) {
		const char *step = "";
		switch (publish(store, shard, name, bytes, len, &step)) {
		case PUBLISH_DONE: return true;
		case PUBLISH_FAILED:
			store_remark(store, "cache entry %s/v1/k/%02x/%s could not be kept: %s: %s", store->dir,
			             key->bytes[0], name, step, strerror(errno));
			return false;
		case PUBLISH_EXISTS: /* somebody was first; if theirs is damaged it is gone now, and ours is next */
			if (shard_read(NULL, store, shard, key) == ENTRY_GOOD)
				return true;
		}
	}
	return false;
}

bool store_put(struct store *store, const struct store_key *key, const struct store_entry *entry)
{
	if (!store->dir[0])
		return false;
	size_t len = 0;
	uint8_t *bytes = entry_encode(&len, key, entry);
	if (!bytes) {
		store_remark(store, "a kernel of %zu bytes could not be kept: %s", entry->cubin_len, strerror(errno));
		return false;
	}
	const int shard = shard_open(store, key, true);
	const bool kept = shard >= 0 && shard_write(store, shard, key, bytes, len);
	if (shard >= 0)
		close(shard);
	free(bytes);
	if (kept)
		evict_maybe(store, key->bytes[31] % COLLECT_ONE_IN == 0);
	return kept;
}

bool store_replace(struct store *store, const struct store_key *key, const struct store_entry *entry)
{
	char name[ENTRY_NAME_MAX];
	const char *step = "encode";
	size_t len = 0;
	const int shard = store->dir[0] ? shard_open(store, key, true) : -1;
	if (shard < 0)
		return false;
	entry_name(name, key);
	uint8_t *bytes = entry_encode(&len, key, entry);
	const bool done = bytes && publish_over(store, shard, name, bytes, len, &step) == PUBLISH_DONE;
	if (!done)
		store_remark(store, "cache entry %s/v1/k/%02x/%s could not be replaced: %s: %s", store->dir, key->bytes[0],
		             name, step, strerror(errno));
	free(bytes);
	close(shard);
	return done;
}

void store_remove(struct store *store, const struct store_key *key)
{
	char name[ENTRY_NAME_MAX];
	struct stat seen;
	entry_name(name, key);
	const int shard = shard_open(store, key, false);
	if (shard < 0)
		return;
	if (fstatat(shard, name, &seen, AT_SYMLINK_NOFOLLOW) == 0)
		(void)entry_remove(shard, name, &seen);
	close(shard);
}
