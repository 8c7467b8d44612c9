/* nvrtc_find: where NVRTC is, without loading it: what a file is called and where it lies is enough to know whether a
 * cached kernel still is what it would make. */
#include "runtime/nvrtc.h"

#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Never plain libnvrtc.so: that is for linking, and may be any version. */
static const char *const sonames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
/* A toolkit's folders, and those of the wheels of CUDA 13 and 12. */
static const char *const subfolders[] = {"", "/lib64", "/lib", "/nvidia/cu13/lib", "/nvidia/cuda_nvrtc/lib"};
enum { SONAME_COUNT = sizeof sonames / sizeof *sonames, SUBFOLDER_COUNT = sizeof subfolders / sizeof *subfolders };

static bool is_library(const char *path)
{
	unsigned char ident[EI_NIDENT];
	struct stat st;
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return false;
	const bool is = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	                read(fd, ident, sizeof ident) == (ssize_t)sizeof ident && memcmp(ident, ELFMAG, SELFMAG) == 0 &&
	                ident[EI_CLASS] == (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32);
	close(fd);
	return is;
}

static bool try_file(struct nvrtc_place *place, const char *path)
{
	const size_t len = strlen(path);
	if (len < sizeof place->path && is_library(path)) {
		memcpy(place->path, path, len + 1);
		return true;
	}
	text_addf(&place->tried, "  %s\n", path);
	return false;
}

static bool try_folder(struct nvrtc_place *place, const char *folder, size_t len, const char *soname)
{
	struct text path = {0};
	text_add(&path, folder, len);
	text_addf(&path, "/%s", soname);
	const bool found = try_file(place, text_str(&path));
	text_free(&path);
	return found;
}

/* A toolkit or an unpacked wheel. */
static bool try_tree(struct nvrtc_place *place, const char *root)
{
	if (!root || !root[0])
		return false;
	for (int i = 0; i < SONAME_COUNT; i++)
		for (int j = 0; j < SUBFOLDER_COUNT; j++) {
			struct text folder = {0};
			text_addf(&folder, "%s%s", root, subfolders[j]);
			const bool found = try_folder(place, folder.data, folder.len, sonames[i]);
			text_free(&folder);
			if (found)
				return true;
		}
	return false;
}

static bool try_named(struct nvrtc_place *place, const char *asked)
{
	struct stat st;
	return stat(asked, &st) == 0 && S_ISDIR(st.st_mode) ? try_tree(place, asked) : try_file(place, asked);
}

static int is_nvrtc(struct dl_phdr_info *object, size_t size, void *unused)
{
	const char *slash = strrchr(object->dlpi_name, '/');
	return strstr(slash ? slash : object->dlpi_name, "libnvrtc") != NULL;
}

/* A copy that the program has loaded already (PyTorch's, for one) is shared, not doubled. */
static bool try_mapped(struct nvrtc_place *place, const char *soname)
{
	void *library = dlopen(soname, RTLD_LAZY | RTLD_NOLOAD);
	if (!library)
		return false;
	struct link_map *map = NULL;
	const bool found = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map->l_name && try_file(place, map->l_name);
	dlclose(library);
	return found;
}

/* LD_LIBRARY_PATH and the loader's own folders. */
static bool try_loader_folders(struct nvrtc_place *place, const char *soname)
{
	Dl_serinfo size, *folders = NULL;
	bool found = false;
	void *self = dlopen(NULL, RTLD_LAZY);
	if (self && dlinfo(self, RTLD_DI_SERINFOSIZE, &size) == 0 && (folders = malloc(size.dls_size))) {
		*folders = size;
		if (dlinfo(self, RTLD_DI_SERINFOSIZE, folders) == 0 && dlinfo(self, RTLD_DI_SERINFO, folders) == 0)
			for (unsigned i = 0; i < folders->dls_cnt && !found; i++) {
				const char *name = folders->dls_serpath[i].dls_name;
				found = try_folder(place, name, strlen(name), soname);
			}
	}
	free(folders);
	if (self)
		dlclose(self);
	return found;
}

/* The loader's cache holds the full path of every library it knows as a string; only strings are looked for, so its
 * format does not matter. */
static bool try_loader_cache(struct nvrtc_place *place, const char *soname)
{
	enum { CACHE_MAX = 16 << 20 };
	struct stat st;
	char *bytes = NULL;
	bool found = false;
	const int fd = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	if (fstat(fd, &st) == 0 && st.st_size > 0 && st.st_size < CACHE_MAX && (bytes = malloc((size_t)st.st_size)) &&
	    read(fd, bytes, (size_t)st.st_size) == st.st_size) {
		char name[32];
		const size_t len = (size_t)snprintf(name, sizeof name, "/%s", soname) + 1; /* with its NUL */
		const char *end = bytes + st.st_size;
		for (const char *at = bytes; !found && (at = memmem(at, (size_t)(end - at), name, len)); at += len) {
			const char *start = at;
			while (start > bytes && start[-1])
				start--;
			found = start[0] == '/' && try_file(place, start);
		}
	}
	free(bytes);
	close(fd);
	return found;
}

static bool is_builtins(const char *name)
{
	static const char prefix[] = "libnvrtc-builtins.so.";
	int major, minor, end = 0;
	return strncmp(name, prefix, sizeof prefix - 1) == 0 &&
	       sscanf(name + sizeof prefix - 1, "%d.%d%n", &major, &minor, &end) == 2 &&
	       !name[sizeof prefix - 1 + (size_t)end];
}

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

static void find_builtins_in(struct nvrtc_place *place, const char *library)
{
	const char *slash = strrchr(library, '/');
	const int len = slash ? (int)(slash - library) : 0;
	char folder[NVRTC_PATH_MAX];
	if (!slash || snprintf(folder, sizeof folder, "%.*s/", len, library) >= (int)sizeof folder)
		return;
	DIR *listing = opendir(folder);
	if (!listing)
		return;
	for (struct dirent *item; (item = readdir(listing)) && place->builtins_count < NVRTC_BUILTINS_MAX;) {
		char *path = place->builtins[place->builtins_count];
		if (is_builtins(item->d_name) &&
		    snprintf(path, NVRTC_PATH_MAX, "%s%s", folder, item->d_name) < NVRTC_PATH_MAX && is_library(path))
			place->builtins_count++;
	}
	closedir(listing);
	qsort(place->builtins, (size_t)place->builtins_count, sizeof place->builtins[0], by_name);
}

static bool search(struct nvrtc_place *place)
{
	/* Asking the loader for what it has not loaded makes it look through all its folders. */
	for (int i = 0; i < SONAME_COUNT && dl_iterate_phdr(is_nvrtc, NULL); i++)
		if (try_mapped(place, sonames[i]))
			return true;
	if (try_tree(place, secure_getenv("CUDA_HOME")) || try_tree(place, secure_getenv("CUDA_PATH")))
		return true;
	for (int i = 0; i < SONAME_COUNT; i++)
		if (try_loader_folders(place, sonames[i]) || try_loader_cache(place, sonames[i]))
			return true;
	return try_tree(place, "/usr/local/cuda");
}

void nvrtc_find(struct nvrtc_place *place, const char *asked, bool ignore_env)
{
	*place = (struct nvrtc_place){0};
	const char *named = asked;
	if (!named && !ignore_env)
		named = secure_getenv("FAGEN_NVRTC");
	if (asked && !asked[0])
		place->disabled = true;
	else if (named && named[0] ? !try_named(place, named) : !search(place))
		place->path[0] = '\0';
	if (!place->path[0])
		return;
	find_builtins_in(place, place->path);
	char *real = place->builtins_count ? NULL : realpath(place->path, NULL);
	if (real)
		find_builtins_in(place, real);
	free(real);
}
