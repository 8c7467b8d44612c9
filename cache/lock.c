/* lock: one flock per shard. It dies with its process, so a killed holder blocks nobody, and the lock files, which are
 * never removed, mean nothing by existing. */
#include "cache/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int shard_file(struct store *store, int shard)
{
	char name[4];
	snprintf(name, sizeof name, "%02x", shard);
	const int dir = place_open(store, "lock", true);
	if (dir < 0)
		return -1;
	const int fd = openat(dir, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
	const int why = errno;
	close(dir);
	errno = why;
	return fd;
}

int store_lock(struct store *store, const struct store_key *key)
{
	if (!store->dir[0])
		return -1;
	const int fd = shard_file(store, key->bytes[0]);
	if (fd < 0)
		return -1;
	const int64_t start = now_ms();
	for (unsigned turn = (unsigned)getpid();; turn = turn * 1103515245u + 12345u) {
		if (flock(fd, LOCK_EX | LOCK_NB) == 0)
			return fd;
		if (errno != EWOULDBLOCK && errno != EINTR)
			break; /* this file system has no locks: the work may be done twice, no more */
		const int64_t left = store->lock_timeout_ms - (now_ms() - start);
		if (left <= 0) {
			store_remark(
				store,
				"the lock %s/v1/lock/%02x was held by another process for %d ms; went on without it",
				store->dir, key->bytes[0], store->lock_timeout_ms);
			break;
		}
		const int64_t pause = 10 + (turn >> 16) % 40; /* jitter, so that waiters do not come in step */
		nanosleep(&(struct timespec){.tv_nsec = (long)(pause < left ? pause : left) * 1000000}, NULL);
	}
	close(fd);
	return -1;
}

void store_unlock(struct store *store, int token)
{
	if (token < 0)
		return;
	(void)flock(token, LOCK_UN); /* close alone would leave it held by a child forked meanwhile */
	close(token);
}
