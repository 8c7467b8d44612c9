/* entry_file: an entry as a file of a shard, read and removed. */
#include "cache/inside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TOUCH_AFTER_S = 3600, REMOVE_DEPTH = 8 };

static void touch_if_old(int fd, const struct stat *seen)
{
	const time_t now = time(NULL);
	if (seen->st_mtime < now - TOUCH_AFTER_S || seen->st_mtime > now + TOUCH_AFTER_S)
		(void)futimens(fd, NULL); /* refused on a read-only file system: then nothing is evicted there either */
}

enum entry_state entry_read(struct store_entry *entry, struct stat *seen, int shard_fd, const char *name,
                            const struct store_key *key, bool touch)
{
	/* NONBLOCK: a FIFO in the entry's place must not hang the reader. */
	const int fd = openat(shard_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0) {
		if (errno == ENOENT)
			return ENTRY_ABSENT;
		const int why = errno;
		if ((why == ELOOP || why == ENXIO) && fstatat(shard_fd, name, seen, AT_SYMLINK_NOFOLLOW) == 0)
			return ENTRY_DAMAGED; /* a symbolic link or a socket: never an entry */
		errno = why;
		return ENTRY_UNREADABLE;
	}
	enum entry_state state = ENTRY_UNREADABLE;
	uint8_t *bytes = NULL;
	size_t len = 0;
	int why = 0;
	if (fstat(fd, seen) != 0) {
		why = errno;
		goto done;
	}
	if (!S_ISREG(seen->st_mode) || !place_trusted(seen) || seen->st_size < ENTRY_HEADER_SIZE ||
	    (uint64_t)seen->st_size > ENTRY_SIZE_MAX) {
		state = ENTRY_DAMAGED;
		goto done;
	}
	bytes = malloc((size_t)seen->st_size);
	if (!bytes) {
		why = ENOMEM;
		goto done;
	}
	while (len < (size_t)seen->st_size) {
		const ssize_t got = read(fd, bytes + len, (size_t)seen->st_size - len);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0) {
			why = errno;
			goto done;
		}
		if (got == 0)
			break;
		len += (size_t)got;
	}
	state = entry_decode(entry, bytes, len, key);
	if (state == ENTRY_UNREADABLE)
		why = errno;
	if (state == ENTRY_GOOD && touch)
		touch_if_old(fd, seen);
done:
	free(bytes);
	close(fd);
	errno = why;
	return state;
}

/* Removes a folder that stands where a file belongs. */
static int remove_tree(int dir_fd, const char *name, int depth)
{
	if (unlinkat(dir_fd, name, 0) == 0)
		return 0;
	if ((errno != EISDIR && errno != EPERM) || depth == 0)
		return -1;
	const int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -1;
	DIR *listing = fdopendir(fd);
	if (!listing) {
		close(fd);
		return -1;
	}
	for (struct dirent *item; (item = readdir(listing));)
		if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0)
			(void)remove_tree(fd, item->d_name, depth - 1);
	closedir(listing);
	return unlinkat(dir_fd, name, AT_REMOVEDIR);
}

int entry_remove(int dir_fd, const char *name, const struct stat *seen)
{
	struct stat now;
	if (fstatat(dir_fd, name, &now, AT_SYMLINK_NOFOLLOW) != 0)
		return -1;
	if (now.st_ino != seen->st_ino || now.st_dev != seen->st_dev || now.st_size != seen->st_size ||
	    now.st_mtim.tv_sec != seen->st_mtim.tv_sec || now.st_mtim.tv_nsec != seen->st_mtim.tv_nsec)
		return -1;
	return remove_tree(dir_fd, name, REMOVE_DEPTH);
}
