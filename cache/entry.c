/* entry: one kernel in one file, in which every byte is covered by a digest.
 *
 *   0  magic "FGKERN1\0"      8  format u32      12  header size u32    16  file size u64
 *   24 meta length u64        32 cubin offset u64 (a multiple of 64)    40  cubin length u64
 *   48 zero                   64 key             96  SHA-256 of all other bytes
 *   128 meta, zeros, cubin
 *
 * Little endian. The digest guards against damage, the key against a file under a wrong name; neither guards against
 * an attacker, which is why owner and mode are checked as well. */
#include "cache/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <sha2.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const uint8_t magic[8] = "FGKERN1";
enum { FORMAT = 1, KEY_AT = 64, DIGEST_AT = 96, CUBIN_ALIGN = 64, TOUCH_AFTER_S = 3600, REMOVE_DEPTH = 8 };

static void put_le(uint8_t *out, uint64_t value, int bytes)
{
	for (int i = 0; i < bytes; i++)
		out[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get_le(const uint8_t *in, int bytes)
{
	uint64_t value = 0;
	for (int i = bytes - 1; i >= 0; i--)
		value = value << 8 | in[i];
	return value;
}

static void digest_of(uint8_t digest[32], const uint8_t *bytes, size_t len)
{
	SHA2_CTX hash;
	SHA256Init(&hash);
	SHA256Update(&hash, bytes, DIGEST_AT);
	SHA256Update(&hash, bytes + ENTRY_HEADER_SIZE, len - ENTRY_HEADER_SIZE);
	SHA256Final(digest, &hash);
}

void store_entry_free(struct store_entry *entry)
{
	free(entry->meta);
	free(entry->cubin);
	*entry = (struct store_entry){0};
}

void entry_name(char name[ENTRY_NAME_MAX], const struct store_key *key)
{
	char hex[65];
	key_hex(hex, key);
	memcpy(name, hex + 2, 62);
	memcpy(name + 62, ".fgk", sizeof ".fgk");
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool entry_name_parse(struct store_key *key, int shard, const char *name)
{
	if (strlen(name) != ENTRY_NAME_MAX - 1 || strcmp(name + 62, ".fgk") != 0)
		return false;
	key->bytes[0] = (uint8_t)shard;
	for (int i = 0; i < 31; i++) {
		const int high = hex_digit(name[2 * i]), low = hex_digit(name[2 * i + 1]);
		if (high < 0 || low < 0)
			return false;
		key->bytes[i + 1] = (uint8_t)(high << 4 | low);
	}
	return true;
}

uint8_t *entry_encode(size_t *len, const struct store_key *key, const struct store_entry *entry)
{
	if (entry->meta_len > ENTRY_SIZE_MAX || entry->cubin_len > ENTRY_SIZE_MAX) {
		errno = EFBIG;
		return NULL;
	}
	const size_t meta_end = ENTRY_HEADER_SIZE + entry->meta_len;
	const size_t cubin_at = (meta_end + CUBIN_ALIGN - 1) / CUBIN_ALIGN * CUBIN_ALIGN;
	const size_t total = cubin_at + entry->cubin_len;
	if (total > ENTRY_SIZE_MAX) {
		errno = EFBIG;
		return NULL;
	}
	uint8_t *bytes = calloc(1, total);
	if (!bytes)
		return NULL;
	memcpy(bytes, magic, sizeof magic);
	put_le(bytes + 8, FORMAT, 4);
	put_le(bytes + 12, ENTRY_HEADER_SIZE, 4);
	put_le(bytes + 16, total, 8);
	put_le(bytes + 24, entry->meta_len, 8);
	put_le(bytes + 32, cubin_at, 8);
	put_le(bytes + 40, entry->cubin_len, 8);
	memcpy(bytes + KEY_AT, key->bytes, sizeof key->bytes);
	if (entry->meta_len)
		memcpy(bytes + ENTRY_HEADER_SIZE, entry->meta, entry->meta_len);
	if (entry->cubin_len)
		memcpy(bytes + cubin_at, entry->cubin, entry->cubin_len);
	digest_of(bytes + DIGEST_AT, bytes, total);
	*len = total;
	return bytes;
}

enum entry_state entry_decode(struct store_entry *entry, const uint8_t *bytes, size_t len, const struct store_key *key)
{
	if (len < ENTRY_HEADER_SIZE || memcmp(bytes, magic, sizeof magic) != 0 || get_le(bytes + 8, 4) != FORMAT ||
	    get_le(bytes + 12, 4) != ENTRY_HEADER_SIZE || get_le(bytes + 16, 8) != len ||
	    memcmp(bytes + KEY_AT, key->bytes, sizeof key->bytes) != 0)
		return ENTRY_DAMAGED;
	uint8_t digest[32];
	digest_of(digest, bytes, len);
	if (memcmp(bytes + DIGEST_AT, digest, sizeof digest) != 0)
		return ENTRY_DAMAGED;
	/* The digest matches, so these are what some writer put there; they still must fit before they are used. */
	const uint64_t meta_len = get_le(bytes + 24, 8), cubin_at = get_le(bytes + 32, 8),
		       cubin_len = get_le(bytes + 40, 8);
	if (cubin_at > len || cubin_at < ENTRY_HEADER_SIZE || meta_len > cubin_at - ENTRY_HEADER_SIZE ||
	    cubin_len != len - cubin_at)
		return ENTRY_DAMAGED;
	if (!entry)
		return ENTRY_GOOD;
	char *meta = malloc(meta_len + 1);
	void *cubin = malloc(cubin_len ? cubin_len : 1);
	if (!meta || !cubin) {
		free(meta);
		free(cubin);
		errno = ENOMEM;
		return ENTRY_UNREADABLE;
	}
	memcpy(meta, bytes + ENTRY_HEADER_SIZE, meta_len);
	meta[meta_len] = '\0';
	memcpy(cubin, bytes + cubin_at, cubin_len);
	*entry = (struct store_entry){.meta = meta, .meta_len = meta_len, .cubin = cubin, .cubin_len = cubin_len};
	return ENTRY_GOOD;
}

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
