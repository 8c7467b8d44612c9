/* wisdom_file: files of wisdom that are added to. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/tune.h"

enum { LOCK_TRIES = 200, LOCK_PAUSE_MS = 50 };

/* The folder's lock: there is no file to leave behind, and it dies with its holder. Whoever stops while he has it holds others up
 * for ten seconds, no more. -1: no lock. */
static int folder_lock(const char *path)
{
	char *copy = strdup(path);
	const int fd = copy ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	free(copy);
	for (int i = 0; fd >= 0 && i < LOCK_TRIES; i++) {
		if (flock(fd, LOCK_EX | LOCK_NB) == 0 || (errno != EWOULDBLOCK && errno != EINTR))
			return fd;
		nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_MS * 1000000L}, NULL);
	}
	return fd;
}

int wisdom_open(struct wisdom *w, const char *path, struct diag *diag)
{
	return access(path, F_OK) != 0 && errno == ENOENT ? 0 : wisdom_load(w, path, diag);
}

int wisdom_save(const char *path, struct wisdom *w, struct diag *diag)
{
	struct text text = {0};
	const int lock = folder_lock(path);
	int rc = wisdom_open(w, path, diag);
	if (!rc) {
		wisdom_print(&text, w);
		rc = file_write(path, text.data, text.len);
		if (rc)
			diag_fail(diag, "%s could not be written.", path);
	}
	text_free(&text);
	if (lock >= 0)
		close(lock);
	return rc;
}
