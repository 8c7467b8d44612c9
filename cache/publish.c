/* publish: a file appears whole or not at all.
 *
 * The bytes go into a file without a name (O_TMPFILE), so a killed writer leaves nothing; linkat then names it, and
 * fails if the name is taken. File systems without O_TMPFILE, and processes without /proc, get a named file in tmp/. */
#include "cache/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { NAME_TRIES = 16, TMP_NAME_MAX = 17 };

static int write_all(int fd, const uint8_t *bytes, size_t len, const char **step)
{
	while (len) {
		const ssize_t put = write(fd, bytes, len);
		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0) {
			if (put == 0)
				errno = ENOSPC;
			*step = "write";
			return -1;
		}
		bytes += put;
		len -= (size_t)put;
	}
	/* Readers over NFS then see the whole file, and a power cut leaves no file of zeros. */
	if (fdatasync(fd) != 0) {
		*step = "fdatasync";
		return -1;
	}
	return 0;
}

/* A named temporary file. Returns its descriptor, or -1. */
static int open_named(char name[TMP_NAME_MAX], int tmp_fd)
{
	for (int i = 0; i < NAME_TRIES; i++) {
		uint64_t random;
		if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
			return -1;
		snprintf(name, TMP_NAME_MAX, "%016llx", (unsigned long long)random);
		const int fd = openat(tmp_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
		if (fd >= 0 || errno != EEXIST)
			return fd;
	}
	return -1;
}

/* `over`: takes the place of what has the name, if anything has. */
static enum publish_state publish_named(struct store *store, int dir_fd, const char *name, const void *bytes,
                                        size_t len, bool over, const char **step)
{
	char tmp[TMP_NAME_MAX];
	*step = "open";
	const int tmp_fd = place_open(store, "tmp", true);
	if (tmp_fd < 0)
		return PUBLISH_FAILED;
	enum publish_state state = PUBLISH_FAILED;
	int why = 0;
	const int fd = open_named(tmp, tmp_fd);
	if (fd < 0) {
		why = errno;
		close(tmp_fd);
		errno = why;
		return PUBLISH_FAILED;
	}
	bool named = true;
	if (write_all(fd, bytes, len, step) != 0) {
		why = errno;
	} else if (over) {
		named = renameat(tmp_fd, tmp, dir_fd, name) != 0;
		why = errno;
		state = named ? PUBLISH_FAILED : PUBLISH_DONE;
		*step = "rename";
	} else if (linkat(tmp_fd, tmp, dir_fd, name, 0) == 0) {
		state = PUBLISH_DONE;
	} else if (errno == EEXIST) {
		state = PUBLISH_EXISTS;
	} else if ((errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS || errno == EMLINK) &&
	           renameat(tmp_fd, tmp, dir_fd, name) == 0) {
		/* No hard links here. Renaming may replace somebody's entry, by an equally good one and at once. */
		state = PUBLISH_DONE;
		named = false;
	} else {
		why = errno;
		*step = "link";
	}
	if (named)
		(void)unlinkat(tmp_fd, tmp, 0);
	close(fd);
	close(tmp_fd);
	errno = why;
	return state;
}

static enum publish_state publish_unnamed(struct store *store, int dir_fd, const char *name, const void *bytes,
                                          size_t len, const char **step)
{
	*step = "open";
	const int fd = openat(dir_fd, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
	if (fd < 0) {
		if (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT || errno == EINVAL)
			return publish_named(store, dir_fd, name, bytes, len, false, step);
		return PUBLISH_FAILED;
	}
	enum publish_state state = PUBLISH_FAILED;
	int why = 0;
	if (write_all(fd, bytes, len, step) != 0) {
		why = errno;
	} else {
		char self[40];
		snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
		if (linkat(AT_FDCWD, self, dir_fd, name, AT_SYMLINK_FOLLOW) == 0) {
			state = PUBLISH_DONE;
		} else if (errno == EEXIST) {
			state = PUBLISH_EXISTS;
		} else if (errno == ENOENT || errno == EXDEV || errno == EOPNOTSUPP || errno == EPERM ||
		           errno == ENOSYS) {
			close(fd);
			return publish_named(store, dir_fd, name, bytes, len, false, step);
		} else {
			why = errno;
			*step = "link";
		}
	}
	close(fd);
	errno = why;
	return state;
}

static enum publish_state publish_masked(struct store *store, int dir_fd, const char *name, const void *bytes,
                                         size_t len, bool over, const char **step)
{
	/* Past RLIMIT_FSIZE a write raises SIGXFSZ, which kills. Blocked, the write fails with EFBIG and the signal,
	 * which is this thread's own, is taken off the queue before the mask is put back. */
	sigset_t limit, before, pending;
	sigemptyset(&limit);
	sigaddset(&limit, SIGXFSZ);
	sigpending(&pending);
	const bool masked = pthread_sigmask(SIG_BLOCK, &limit, &before) == 0;
	const enum publish_state state = over ? publish_named(store, dir_fd, name, bytes, len, true, step)
	                                      : publish_unnamed(store, dir_fd, name, bytes, len, step);
	const int why = errno;
	if (masked) {
		if (!sigismember(&pending, SIGXFSZ))
			while (sigtimedwait(&limit, NULL, &(struct timespec){0}) < 0 && errno == EINTR)
				continue;
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	errno = why;
	return state;
}

enum publish_state publish(struct store *store, int dir_fd, const char *name, const void *bytes, size_t len,
                           const char **step)
{
	return publish_masked(store, dir_fd, name, bytes, len, false, step);
}

enum publish_state publish_over(struct store *store, int dir_fd, const char *name, const void *bytes, size_t len,
                                const char **step)
{
	return publish_masked(store, dir_fd, name, bytes, len, true, step);
}
