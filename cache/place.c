/* place: which folder the cache is, and whether it may be used. Code found there will run, so a folder that somebody
 * else could have filled is not used at all. */
#include "cache/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

bool place_trusted(const struct stat *st)
{
	return (st->st_uid == geteuid() || st->st_uid == 0) && !(st->st_mode & (S_IWGRP | S_IWOTH));
}

static bool set_dir(struct store *store, const char *base, const char *rest)
{
	size_t len = strlen(base);
	while (len > 1 && base[len - 1] == '/')
		len--;
	const int got = snprintf(store->dir, sizeof store->dir, "%.*s%s", (int)len, base, rest);
	if (got > 0 && (size_t)got < sizeof store->dir)
		return true;
	store->dir[0] = '\0';
	store_remark(store, "the name of the cache folder is too long (%zu bytes); nothing is kept on disk",
	             strlen(base));
	return false;
}

/* A home that is shared, foreign or not there is no place for a cache: root under `sudo` would leave files that the
 * user cannot replace, and /tmp as a home would be a path that anybody can prepare. */
static bool home_usable(const char *home)
{
	struct stat st;
	char caches[STORE_DIR_MAX];
	if (!home || home[0] != '/' || home[strspn(home, "/")] == '\0' || stat(home, &st) != 0 || !S_ISDIR(st.st_mode))
		return false;
	if ((st.st_uid != geteuid() && st.st_uid != 0) || (st.st_mode & S_IWOTH))
		return false;
	if (snprintf(caches, sizeof caches, "%s/.cache", home) >= (int)sizeof caches)
		return false;
	if (stat(caches, &st) != 0)
		return errno == ENOENT;
	return S_ISDIR(st.st_mode) && (st.st_uid == geteuid() || st.st_uid == 0) && !(st.st_mode & S_IWOTH);
}

static bool passwd_home(char *home, size_t size)
{
	enum { PASSWD_MAX = 16384 };
	struct passwd entry, *found = NULL;
	bool usable = false;
	char *buffer = malloc(PASSWD_MAX);
	if (buffer && getpwuid_r(geteuid(), &entry, buffer, PASSWD_MAX, &found) == 0 && found &&
	    home_usable(found->pw_dir))
		usable = snprintf(home, size, "%s", found->pw_dir) < (int)size;
	free(buffer);
	return usable;
}

void place_find(struct store *store, const struct store_config *config)
{
	if (config->dir) {
		if (config->dir[0] == '/')
			set_dir(store, config->dir, "");
		else if (config->dir[0])
			store_remark(store, "the cache folder '%s' is not an absolute path; nothing is kept on disk",
			             config->dir);
		return;
	}
	if (getauxval(AT_SECURE)) {
		store_remark(store, "this program runs with another user's rights; no cache folder is used");
		return;
	}
	const char *chosen = config->ignore_env ? NULL : secure_getenv("FAGEN_CACHE_DIR");
	if (chosen && chosen[0]) {
		if (chosen[0] == '/')
			set_dir(store, chosen, "");
		else
			store_remark(store, "FAGEN_CACHE_DIR='%s' is not an absolute path; nothing is kept on disk",
			             chosen);
		return;
	}
	const char *xdg = secure_getenv("XDG_CACHE_HOME"), *home = secure_getenv("HOME");
	char passwd[STORE_DIR_MAX];
	if (xdg && xdg[0] == '/')
		set_dir(store, xdg, "/fagen");
	else if (home_usable(home))
		set_dir(store, home, "/.cache/fagen");
	else if (passwd_home(passwd, sizeof passwd))
		set_dir(store, passwd, "/.cache/fagen");
	else
		store_remark(store,
		             "no cache folder: HOME is %s%s%s and user %ld has no usable home; nothing is kept on disk "
		             "(FAGEN_CACHE_DIR names a folder)",
		             home ? "'" : "", home ? home : "not set", home ? "'" : "", (long)geteuid());
}

/* As `mkdir -p`, 0700. The folders on the way may exist, whoever owns them. */
static int make_path(const char *dir)
{
	char path[STORE_DIR_MAX];
	int refused =
		0; /* a folder that exists may answer EROFS or EACCES as well; if it does not, that was the reason */
	snprintf(path, sizeof path, "%s", dir);
	for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		if (mkdirat(AT_FDCWD, path, 0700) != 0 && errno != EEXIST && !refused)
			refused = errno;
		*slash = '/';
	}
	if (mkdirat(AT_FDCWD, path, 0700) == 0 || errno == EEXIST)
		return 0;
	errno = errno == ENOENT && refused ? refused : errno;
	return -1;
}

static int check_folder(struct store *store, int fd, const char *path)
{
	struct stat st;
	if (fstat(fd, &st) != 0)
		return -1;
	if (place_trusted(&st))
		return 0;
	if (st.st_uid != geteuid() && st.st_uid != 0)
		store_remark(store, "cache folder %s%s%s belongs to user %ld and not to this one (%ld); it is not used",
		             store->dir, path[0] ? "/" : "", path, (long)st.st_uid, (long)geteuid());
	else
		store_remark(
			store,
			"cache folder %s%s%s can be written by others (mode %03o); it is not used until `chmod go-w` "
			"closes it",
			store->dir, path[0] ? "/" : "", path, (unsigned)(st.st_mode & 0777));
	errno = EPERM;
	return -1;
}

static void write_tag(struct store *store, int v1)
{
	static const char tag[] = "Signature: 8a477f597d28d172789f06886806bc55\n"
				  "# Kernels compiled by fagen. They are made again when they are gone.\n";
	const char *step;
	(void)publish(store, v1, "CACHEDIR.TAG", tag, sizeof tag - 1, &step);
}

int place_open(struct store *store, const char *sub, bool create)
{
	if (!store->dir[0]) {
		errno = ENOENT;
		return -1;
	}
	char path[32] = "";
	int at = openat(AT_FDCWD, store->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (at < 0 && errno == ENOENT && create && make_path(store->dir) == 0)
		at = openat(AT_FDCWD, store->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (at >= 0 && check_folder(store, at, "") != 0) {
		const int why = errno;
		close(at);
		at = -1;
		errno = why;
	}
	char names[32];
	snprintf(names, sizeof names, sub[0] ? "v1/%s" : "v1%s", sub);
	for (char *rest = names, *name; at >= 0 && (name = strsep(&rest, "/"));) {
		snprintf(path + strlen(path), sizeof path - strlen(path), "%s%s", path[0] ? "/" : "", name);
		const bool made = create && mkdirat(at, name, 0700) == 0;
		const int refused = create && !made ? errno : 0;
		int next = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		int why = next < 0 && errno == ENOENT && refused ? refused : errno;
		if (next >= 0 && check_folder(store, next, path) != 0) {
			why = errno;
			close(next);
			next = -1;
		}
		close(at);
		at = next;
		errno = why;
		if (at >= 0 && made && strcmp(path, "v1") == 0)
			write_tag(store, at);
	}
	if (at < 0 && (errno != ENOENT || create)) {
		const int why = errno;
		store_remark(store, "cache folder %s%s%s: %s; nothing is kept there", store->dir, path[0] ? "/" : "",
		             path, strerror(why));
		errno = why;
	}
	return at;
}
