/* The store: keys, entries, damage, places, permissions, full disks, eviction. Processes, kills and failing system calls
 * are in t_store_stress.c. */
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "tests/store_help.h"

Suite *suite(void);

/* ---- keys ---- */

static void check_key(const struct store_key *key, const char *hex)
{
	char got[65];
	key_hex(got, key);
	ck_assert_str_eq(got, hex);
}

/* Computed with Python's hashlib over the layout that the notes define. */
START_TEST(key_golden)
{
	struct store_key key;
	key_finish(&key, key_begin());
	check_key(&key, "4f62b855add5118aa885a827052985fd8965abda977f9ea5fd5b219130d44624");

	struct key_builder *b = key_begin();
	key_record(b, 1, "1", 1);
	key_record(b, 2, "__global__ void f() {}\n", 23);
	key_record(b, 5, "sm_90a", 6);
	key_finish(&key, b);
	check_key(&key, "ac96edc390851692e75c572d0bdeaa17755c781f77756c00b55ca81ec25b4b9a");

	b = key_begin();
	key_record(b, 1, "1", 1);
	key_record(b, 2, "__global__ void f() {}\n", 23);
	struct key_builder *copy = key_copy(b); /* goes its own way from here */
	key_record(b, 5, "sm_80", 5);
	key_drop(b);
	key_record(copy, 5, "sm_90a", 6);
	key_finish(&key, copy);
	check_key(&key, "ac96edc390851692e75c572d0bdeaa17755c781f77756c00b55ca81ec25b4b9a");

	uint8_t bytes[256 * 300];
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)i;
	b = key_begin();
	key_record(b, 2, bytes, sizeof bytes);
	key_finish(&key, b);
	check_key(&key, "c69092adb70a10bf4bbf2b2f05ca9e1bc9eb0090e47b07e1b7d30e8fc307f6bf");
}
END_TEST

struct record {
	uint32_t tag;
	const char *text;
};

static struct store_key key_from(const struct record *records)
{
	struct store_key key;
	struct key_builder *b = key_begin();
	for (; records->text; records++)
		key_record(b, records->tag, records->text, strlen(records->text));
	key_finish(&key, b);
	return key;
}

START_TEST(key_sensitive)
{
	static const struct record lists[][5] = {
		{{2, "ab"}, {4, "c"}},
		{{2, "a"}, {4, "bc"}},
		{{2, "abc"}},
		{{2, "abc"}, {4, ""}},
		{{4, ""}, {2, "abc"}},
		{{4, "abc"}},
		{{4, "x"}, {4, "y"}},
		{{4, "y"}, {4, "x"}},
		{{4, "xy"}},
		{{2, "ab"}, {5, "c"}},
		{{2, "ab"}, {4, "c"}, {4, "c"}},
		{{258, "abc"}},
	};
	enum { COUNT = sizeof lists / sizeof *lists };
	for (int i = 0; i < COUNT; i++)
		for (int j = 0; j < i; j++) {
			const struct store_key a = key_from(lists[i]), b = key_from(lists[j]);
			ck_assert_msg(memcmp(&a, &b, sizeof a) != 0, "lists %d and %d have one key", i, j);
		}
}
END_TEST

/* ---- an entry ---- */

static void check_mode(const char *dir, const char *sub, mode_t want)
{
	char path[512];
	struct stat st;
	snprintf(path, sizeof path, "%s%s", dir, sub);
	ck_assert_msg(stat(path, &st) == 0, "%s: %s", path, strerror(errno));
	ck_assert_msg((st.st_mode & 07777) == want, "%s has mode %03o", path, st.st_mode & 07777);
}

START_TEST(publish_and_read)
{
	char dir[128], path[512];
	umask(0); /* the modes are the store's own */
	snprintf(dir, sizeof dir, "%s/made/on/demand", test_dir);
	struct store *store = store_at(dir);
	ck_assert_int_eq(access(dir, F_OK), -1); /* opening writes nothing */
	ck_assert_int_eq(get_n(store, 1), GOT_MISS);
	ck_assert_int_eq(access(dir, F_OK), -1); /* nor does a miss */
	for (unsigned n = 0; n < 20; n++)
		ck_assert(put_n(store, n));
	for (unsigned n = 0; n < 20; n++)
		ck_assert_int_eq(get_n(store, n), GOT_RIGHT);
	ck_assert_int_eq(get_n(store, 20), GOT_MISS);
	ck_assert(put_n(store, 3)); /* is there already: success */
	check_mode(dir, "", 0700);
	check_mode(dir, "/v1", 0700);
	check_mode(dir, "/v1/k", 0700);
	path_n(path, sizeof path, dir, 3);
	check_mode(path, "", 0600);
	check_mode(dir, "/v1/CACHEDIR.TAG", 0600);
	ck_assert_str_eq(store_note(store), "");
	ck_assert_str_eq(store_dir(store), dir);
	ck_assert_int_eq(leftovers(dir), 0);
	store_close(store);

	store = store_at(dir); /* another process would see the same */
	ck_assert_int_eq(get_n(store, 19), GOT_RIGHT);
	const struct store_key key = key_of(19);
	store_remove(store, &key);
	ck_assert_int_eq(get_n(store, 19), GOT_MISS);
	store_close(store);
}
END_TEST

START_TEST(replaced_by_another)
{
	struct store *store = store_at(test_dir);
	const struct store_key key = key_of(1);
	struct store_entry entry = {.meta = (char *)"other", .meta_len = 5, .cubin = (char *)"code", .cubin_len = 4}, got = {0};
	char path[512];
	ck_assert(store_replace(store, &key, &entry)); /* where there is none, too */
	ck_assert(put_n(store, 2));
	ck_assert(store_get(&got, store, &key));
	ck_assert_str_eq(got.meta, "other");
	store_entry_free(&got);
	ck_assert(put_n(store, 1)); /* publishing replaces nothing */
	entry.meta = (char *)"third";
	ck_assert(store_replace(store, &key, &entry));
	ck_assert(store_get(&got, store, &key));
	ck_assert_str_eq(got.meta, "third");
	ck_assert(got.cubin_len == 4 && memcmp(got.cubin, "code", 4) == 0);
	store_entry_free(&got);
	path_n(path, sizeof path, test_dir, 1);
	struct stat st;
	ck_assert(stat(path, &st) == 0 && (st.st_mode & 07777) == 0600);
	ck_assert_int_eq(get_n(store, 2), GOT_RIGHT);
	ck_assert_int_eq(leftovers(test_dir), 0);
	ck_assert_str_eq(store_note(store), "");
	store_close(store);
	store = store_open(&(struct store_config){.dir = "", .ignore_env = true});
	ck_assert(!store_replace(store, &key, &entry));
	store_close(store);
}
END_TEST

static void item_count(void *context, const struct store_item *item)
{
	for (unsigned n = 0; n < 5; n++) {
		const struct store_key key = key_of(n);
		if (memcmp(&key, &item->key, sizeof key) == 0) {
			ck_assert_uint_eq(item->entry.cubin_len, size_of(n));
			ck_assert(item->bytes > size_of(n) && item->used >= time(NULL) - 100);
			*(unsigned *)context += 1u << 4 * n;
		}
	}
}

START_TEST(each_good_entry_once)
{
	unsigned seen = 0;
	char path[512];
	struct store *store = store_at(test_dir);
	ck_assert_int_eq(store_each(store, item_count, &seen), -1); /* no folder yet */
	for (unsigned n = 0; n < 5; n++)
		ck_assert(put_n(store, n));
	path_n(path, sizeof path, test_dir, 3);
	ck_assert_int_eq(truncate(path, 200), 0);
	ck_assert_int_eq(store_each(store, item_count, &seen), 0);
	ck_assert_uint_eq(seen, 0x10111);
	ck_assert_int_eq(access(path, F_OK), 0); /* looking removes nothing */
	store_close(store);
}
END_TEST

START_TEST(empty_and_large)
{
	struct store *store = store_at(test_dir);
	struct store_key key = key_of(1);
	struct store_entry got;
	ck_assert(store_put(store, &key, &(struct store_entry){.meta = (char *)"", .cubin = (char *)""}));
	ck_assert(store_get(&got, store, &key));
	ck_assert(got.meta_len == 0 && got.cubin_len == 0 && got.meta[0] == '\0');
	store_entry_free(&got);

	const size_t len = ENTRY_SIZE_MAX + 1; /* never touched, so it costs no memory */
	char *large = calloc(1, len);
	key = key_of(2);
	ck_assert(!store_put(
		store, &key,
		&(struct store_entry){.meta = (char *)"m", .meta_len = 1, .cubin = large, .cubin_len = len}));
	ck_assert_ptr_nonnull(strstr(store_note(store), "could not be kept"));
	free(large);
	store_close(store);
}
END_TEST

START_TEST(folder_vanishes)
{
	char gone[128];
	snprintf(gone, sizeof gone, "%s/c", test_dir);
	struct store *store = store_at(gone);
	ck_assert(put_n(store, 1));
	nftw(gone, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	ck_assert_int_eq(get_n(store, 1), GOT_MISS);
	ck_assert(put_n(store, 1));
	ck_assert_int_eq(get_n(store, 1), GOT_RIGHT);
	ck_assert_str_eq(store_note(store), "");
	store_close(store);
}
END_TEST

/* ---- damage ---- */

static uint8_t *read_file(const char *path, size_t *len)
{
	struct stat st;
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fstat(fd, &st), 0);
	uint8_t *bytes = malloc((size_t)st.st_size + 1);
	*len = (size_t)st.st_size;
	ck_assert_int_eq(read(fd, bytes, *len), st.st_size);
	close(fd);
	return bytes;
}

static void write_file(const char *path, const void *bytes, size_t len)
{
	unlink(path);
	const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, bytes, len), (ssize_t)len);
	close(fd);
}

static void damage(const char *path, int how)
{
	size_t len;
	char other[512];
	uint8_t *bytes = read_file(path, &len);
	switch (how) {
	case 0: write_file(path, bytes, 0); break;
	case 1: write_file(path, bytes, 1); break;
	case 2: write_file(path, bytes, len / 2); break;
	case 3: write_file(path, bytes, len - 1); break;
	case 4:
		bytes[len] = 0;
		write_file(path, bytes, len + 1);
		break;
	case 5:
		bytes[len - 1] ^= 1;
		write_file(path, bytes, len);
		break;
	case 6:
		bytes[8] = 2;
		write_file(path, bytes, len);
		break; /* a format of the future */
	case 7:
		memset(bytes, 0xa5, len);
		write_file(path, bytes, len);
		break;
	case 8:
		unlink(path);
		ck_assert_int_eq(mkdir(path, 0700), 0);
		break;
	case 9:
		unlink(path);
		ck_assert_int_eq(mkdir(path, 0700), 0);
		snprintf(other, sizeof other, "%s/sub", path);
		ck_assert_int_eq(mkdir(other, 0700), 0);
		snprintf(other, sizeof other, "%s/file", path);
		write_file(other, "x", 1);
		break;
	case 10: /* somewhere else, whole and right, but not a file here */
		snprintf(other, sizeof other, "%s/elsewhere", test_dir);
		ck_assert_int_eq(rename(path, other), 0);
		ck_assert_int_eq(symlink(other, path), 0);
		break;
	case 11:
		unlink(path);
		ck_assert_int_eq(mkfifo(path, 0600), 0);
		break;
	case 12:
		path_n(other, sizeof other, test_dir, 2);
		unlink(path);
		ck_assert_int_eq(link(other, path), 0);
		break; /* another's */
	case 13: ck_assert_int_eq(chmod(path, 0660), 0); break;
	case 14:
		if (geteuid() == 0)
			ck_assert_int_eq(chown(path, UNUSED_UID, (gid_t)-1), 0);
		else
			write_file(path, "", 0);
		break;
	}
	free(bytes);
}

START_TEST(damaged_is_a_miss_and_heals)
{
	char path[512];
	struct store *store = store_at(test_dir);
	ck_assert(put_n(store, 1) && put_n(store, 2));
	path_n(path, sizeof path, test_dir, 1);
	damage(path, _i);
	ck_assert_int_eq(get_n(store, 1), GOT_MISS);
	ck_assert_msg(strstr(store_note(store), path) && strstr(store_note(store), "damaged"), "note: %s",
	              store_note(store));
	ck_assert(put_n(store, 1));
	ck_assert_int_eq(get_n(store, 1), GOT_RIGHT);
	ck_assert_int_eq(get_n(store, 2), GOT_RIGHT);
	store_close(store);

	/* Without a look before: publishing replaces it too. */
	store = store_at(test_dir);
	damage(path, _i);
	ck_assert(put_n(store, 1));
	ck_assert_int_eq(get_n(store, 1), GOT_RIGHT);
	store_close(store);
}
END_TEST

START_TEST(every_flipped_byte_is_seen)
{
	const struct store_key key = key_of(7);
	const struct store_entry entry = {
		.meta = (char *)"meta\n", .meta_len = 5, .cubin = (char *)"code", .cubin_len = 4};
	size_t len;
	uint8_t *bytes = entry_encode(&len, &key, &entry);
	ck_assert_ptr_nonnull(bytes);
	ck_assert_int_eq(entry_decode(NULL, bytes, len, &key), ENTRY_GOOD);
	for (size_t i = 0; i < len * 8; i++) {
		bytes[i / 8] ^= (uint8_t)(1 << i % 8);
		ck_assert_msg(entry_decode(NULL, bytes, len, &key) == ENTRY_DAMAGED, "bit %zu", i);
		bytes[i / 8] ^= (uint8_t)(1 << i % 8);
	}
	for (size_t shorter = 0; shorter < len; shorter++)
		ck_assert_int_eq(entry_decode(NULL, bytes, shorter, &key), ENTRY_DAMAGED);
	free(bytes);
}
END_TEST

/* ---- places ---- */

struct place {
	const char *fagen, *xdg, *home;
	const char *want; /* NULL: the passwd home */
};

static void set_or_unset(const char *name, const char *value, const char *dir)
{
	char full[256];
	if (!value) {
		unsetenv(name);
		return;
	}
	snprintf(full, sizeof full, "%s%s", value[0] == '@' ? dir : "", value + (value[0] == '@'));
	setenv(name, full, 1);
}

static const struct place places[] = {
	/* @ is the test's folder, which exists and is private */
	{"@/a", "@/b", "@", "@/a"},
	{"@/a/", "@/b", "@", "@/a"},
	{"", "@/b", "@", "@/b/fagen"},
	{NULL, "@/b", "@", "@/b/fagen"},
	{NULL, "", "@", "@/.cache/fagen"},
	{NULL, "b", "@", "@/.cache/fagen"},
	{NULL, NULL, "@", "@/.cache/fagen"},
	{"a", "@/b", "@", ""},
	{NULL, NULL, NULL, NULL},
	{NULL, NULL, "", NULL},
	{NULL, NULL, "/", NULL},
	{NULL, NULL, "//", NULL},
	{NULL, NULL, "a", NULL},
	{NULL, NULL, "@/missing", NULL},
	{NULL, NULL, "/tmp", NULL},
	{NULL, NULL, "/dev/null", NULL},
};

START_TEST(place_of_environment)
{
	const struct place *p = &places[_i];
	set_or_unset("FAGEN_CACHE_DIR", p->fagen, test_dir);
	set_or_unset("XDG_CACHE_HOME", p->xdg, test_dir);
	set_or_unset("HOME", p->home, test_dir);
	struct store *store = store_open(NULL);
	char want[256] = "";
	if (p->want && p->want[0] == '@')
		snprintf(want, sizeof want, "%s%s", test_dir, p->want + 1);
	if (p->want) {
		ck_assert_str_eq(store_dir(store), want);
		ck_assert_int_eq(put_n(store, 1), want[0] != '\0');
		ck_assert_int_eq(store_note(store)[0] == '\0', want[0] != '\0');
	} else { /* where the passwd file says, or nowhere; never below the HOME that was refused */
		ck_assert(store_dir(store)[0] == '\0' || strstr(store_dir(store), "/.cache/fagen"));
		ck_assert_int_ne(strncmp(store_dir(store), "/.cache", 7), 0);
		ck_assert_int_ne(strncmp(store_dir(store), "/tmp", 4), 0);
	}
	store_close(store);
}
END_TEST

START_TEST(ignore_env)
{
	setenv("FAGEN_CACHE_DIR", test_dir, 1);
	setenv("XDG_CACHE_HOME", "/nowhere", 1);
	struct store *store = store_open(&(struct store_config){.ignore_env = true});
	ck_assert_str_eq(store_dir(store), "/nowhere/fagen");
	store_close(store);
	store = store_open(&(struct store_config){.dir = ""});
	ck_assert_str_eq(store_dir(store), "");
	ck_assert_str_eq(store_note(store), ""); /* asked for, so not worth a word */
	ck_assert(!put_n(store, 1));
	ck_assert_int_eq(get_n(store, 1), GOT_MISS);
	const struct store_key key = key_of(1);
	store_unlock(store, store_lock(store, &key));
	struct store_stats stats;
	ck_assert_int_eq(store_stats(&stats, store, true), -1);
	ck_assert_uint_eq(store_collect(store) + store_clear(store), 0);
	store_close(store);
	store = store_open(&(struct store_config){.dir = "relative"});
	ck_assert_ptr_nonnull(strstr(store_note(store), "not an absolute path"));
	store_close(store);
}
END_TEST

START_TEST(variables_are_checked)
{
	static const struct {
		const char *size, *wait;
		uint64_t bytes;
		int ms;
		bool note;
	} rows[] = {
		{NULL, NULL, 1 << 30, 60000, false},
		{"5000", "2", 5000, 2000, false},
		{"3K", "1", 3072, 1000, false},
		{"2m", NULL, 2 << 20, 60000, false},
		{"4G", NULL, (uint64_t)4 << 30, 60000, false},
		{"0", NULL, 1 << 30, 60000, true},
		{"-1", NULL, 1 << 30, 60000, true},
		{"1T", NULL, 1 << 30, 60000, true},
		{"1GB", NULL, 1 << 30, 60000, true},
		{NULL, "0", 1 << 30, 60000, true},
		{NULL, "soon", 1 << 30, 60000, true},
		{"99999999999999999999", NULL, 1 << 30, 60000, true},
		{"9999999999G", NULL, 1 << 30, 60000, true},
		{NULL, "1e3", 1 << 30, 60000, true},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		set_or_unset("FAGEN_CACHE_MAX_SIZE", rows[i].size, "");
		set_or_unset("FAGEN_LOCK_TIMEOUT", rows[i].wait, "");
		struct store *store = store_open(&(struct store_config){.dir = test_dir});
		ck_assert_msg(store->max_bytes == rows[i].bytes && store->lock_timeout_ms == rows[i].ms, "row %zu", i);
		ck_assert_msg((store_note(store)[0] != '\0') == rows[i].note, "row %zu: %s", i, store_note(store));
		store_close(store);
	}
}
END_TEST

/* A store that cannot be used: every call returns, nothing is kept, and there is one note that says `word`. */
static void check_unusable(const char *dir, const char *word)
{
	struct store *store = store_at(dir);
	ck_assert(!put_n(store, 1));
	ck_assert_int_eq(get_n(store, 1), GOT_MISS);
	const struct store_key key = key_of(1);
	store_unlock(store, store_lock(store, &key));
	ck_assert_msg(strstr(store_note(store), word) != NULL, "note '%s' lacks '%s'", store_note(store), word);
	store_close(store);
}

START_TEST(unusable_folders)
{
	char path[256];
	char *huge = calloc(1, 6000);
	memset(huge, 'd', 5999);
	huge[0] = '/';
	check_unusable(huge, "too long");
	huge[1000] = '\0';
	check_unusable(huge, strerror(ENAMETOOLONG));
	free(huge);
	snprintf(path, sizeof path, "%s/file", test_dir);
	write_file(path, "", 0);
	check_unusable(path, strerror(ENOTDIR));
	strcat(path, "/below");
	check_unusable(path, strerror(ENOTDIR));
	check_unusable("/proc/fagen", strerror(ENOENT));
	chmod(test_dir, 0777);
	check_unusable(test_dir, "written by others");
	chmod(test_dir, 0770);
	check_unusable(test_dir, "written by others");
	chmod(test_dir, 0700);
	snprintf(path, sizeof path, "%s/v1", test_dir); /* v1 swapped for a link to a folder of one's own */
	ck_assert_int_eq(symlink("/tmp", path), 0);
	check_unusable(test_dir, "v1");
}
END_TEST

static void become(uid_t uid)
{
	if (setgroups(0, NULL) != 0 || setgid(uid) != 0 || setuid(uid) != 0)
		_exit(90);
}

/* Runs `body` as a user without a passwd entry. Needs root; the caller's row is not run otherwise. */
#define AS_STRANGER(body)                    \
	do {                                 \
		const pid_t child_ = fork(); \
		if (child_ == 0) {           \
			become(UNUSED_UID);  \
			body;                \
			_exit(0);            \
		}                            \
		child_passed(child_);        \
	} while (0)
#define MUST(condition)                                         \
	do {                                                    \
		if (!(condition)) {                             \
			fprintf(stderr, "line %d\n", __LINE__); \
			_exit(91);                              \
		}                                               \
	} while (0)

START_TEST(stranger_without_passwd)
{
	static const char *const homes[] = {NULL, "", "/", "relative", "/root"};
	unsetenv("XDG_CACHE_HOME");
	unsetenv("FAGEN_CACHE_DIR");
	for (size_t i = 0; i < sizeof homes / sizeof *homes; i++)
		AS_STRANGER({
			set_or_unset("HOME", homes[i], "");
			struct store *store = store_open(NULL);
			MUST(!put_n(store, 1) && get_n(store, 1) == GOT_MISS);
			MUST(store_note(store)[0]);
			MUST(homes[i] && strcmp(homes[i], "/root") == 0 ? 1 : store_dir(store)[0] == '\0');
			store_close(store);
		});
	ck_assert_int_eq(chown(test_dir, UNUSED_UID, UNUSED_UID), 0);
	AS_STRANGER({
		setenv("XDG_CACHE_HOME", test_dir, 1);
		struct store *store = store_open(NULL);
		MUST(put_n(store, 1) && get_n(store, 1) == GOT_RIGHT && !store_note(store)[0]);
		store_close(store);
	});
}
END_TEST

START_TEST(two_users)
{
	struct store *mine = store_at(test_dir);
	ck_assert(put_n(mine, 1));
	chmod(test_dir, 0755); /* the stranger can look, and finds root's entries unreadable */
	AS_STRANGER({
		struct store *store = store_at(test_dir);
		MUST(get_n(store, 1) == GOT_MISS && !put_n(store, 2) && store_note(store)[0]);
		store_close(store);
	});
	ck_assert_int_eq(get_n(mine, 1), GOT_RIGHT);
	ck_assert_str_eq(store_note(mine), "");
	store_close(mine);

	/* A folder prepared by somebody else, with an entry in it, is not even looked at. */
	char theirs[128], path[512];
	snprintf(theirs, sizeof theirs, "%s/theirs", test_dir);
	mkdir(theirs, 0755);
	ck_assert_int_eq(chown(theirs, UNUSED_UID, UNUSED_UID), 0);
	AS_STRANGER({
		struct store *store = store_at(theirs);
		MUST(put_n(store, 1));
		store_close(store);
	});
	check_unusable(theirs, "belongs to user 54321");
	path_n(path, sizeof path, theirs, 1);
	ck_assert_int_eq(access(path, F_OK), 0); /* nor touched */
}
END_TEST

/* A file system of one's own for the rest of this test; false where that is not allowed. */
static bool mount_tmpfs(const char *options)
{
	return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	       mount("tmpfs", test_dir, "tmpfs", 0, options) == 0;
}

START_TEST(read_only_disk)
{
	if (!mount_tmpfs("mode=0700,size=1m"))
		return; /* not root, or in a closed container */
	struct store *store = store_at(test_dir);
	ck_assert(put_n(store, 1));
	store_close(store);
	ck_assert_int_eq(mount(NULL, test_dir, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
	store = store_at(test_dir);
	ck_assert_int_eq(get_n(store, 1), GOT_RIGHT); /* hits go on */
	ck_assert_str_eq(store_note(store), "");
	ck_assert(!put_n(store, 2));
	ck_assert_ptr_nonnull(strstr(store_note(store), strerror(EROFS)));
	store_close(store);
	umount2(test_dir, MNT_DETACH);
}
END_TEST

START_TEST(full_disk)
{
	if (!mount_tmpfs("mode=0700,size=128k"))
		return;
	struct store *store = store_at(test_dir);
	unsigned kept = 0;
	for (unsigned n = 0; n < 60; n++)
		kept += put_n(store, n);
	ck_assert(kept > 0 && kept < 60);
	ck_assert_ptr_nonnull(strstr(store_note(store), strerror(ENOSPC)));
	ck_assert_int_eq(leftovers(test_dir), 0);
	unsigned right = 0;
	for (unsigned n = 0; n < 60; n++) {
		const enum got got = get_n(store, n);
		ck_assert_int_ne(got, GOT_WRONG);
		right += got == GOT_RIGHT;
	}
	ck_assert_uint_eq(right, kept);
	ck_assert_uint_eq(store_clear(store), kept);
	ck_assert(put_n(store, 6)); /* and goes on when there is room again */
	store_close(store);
	umount2(test_dir, MNT_DETACH);
}
END_TEST

START_TEST(file_size_limit)
{
	struct store *store = store_at(test_dir);
	ck_assert(put_n(store, 1));
	struct rlimit limit;
	getrlimit(RLIMIT_FSIZE, &limit);
	const rlim_t before = limit.rlim_cur;
	limit.rlim_cur = 0;
	setrlimit(RLIMIT_FSIZE, &limit);
	const bool kept = put_n(store, 2); /* SIGXFSZ would kill this process */
	limit.rlim_cur = before;
	setrlimit(RLIMIT_FSIZE, &limit);
	sigset_t pending, mask;
	sigpending(&pending);
	sigprocmask(SIG_BLOCK, NULL, &mask);
	ck_assert(!sigismember(&pending, SIGXFSZ) && !sigismember(&mask, SIGXFSZ));
	ck_assert(!kept);
	ck_assert_ptr_nonnull(strstr(store_note(store), strerror(EFBIG)));
	ck_assert_int_eq(leftovers(test_dir), 0);
	ck_assert_int_eq(get_n(store, 1), GOT_RIGHT);
	ck_assert(put_n(store, 2));
	store_close(store);
}
END_TEST

/* ---- eviction ---- */

static uint64_t fill(struct store *store, unsigned count)
{
	char path[512];
	uint64_t bytes = 0;
	for (unsigned n = 0; n < count; n++) { /* 0 is the oldest */
		struct stat st;
		ck_assert(put_n(store, n));
		path_n(path, sizeof path, test_dir, n);
		age(path, 100000 - (long)n * 100);
		stat(path, &st);
		bytes += (uint64_t)st.st_size;
	}
	return bytes;
}

START_TEST(collect_oldest_down_to_the_cap)
{
	struct store *store = store_at(test_dir);
	const uint64_t bytes = fill(store, 40);
	ck_assert_uint_eq(store_collect(store), 0); /* under the cap */
	store->max_bytes = bytes / 2;
	const uint64_t freed = store_collect(store);
	struct store_stats stats;
	ck_assert_int_eq(store_stats(&stats, store, true), 0);
	ck_assert_uint_eq(stats.bytes + freed, bytes);
	ck_assert_uint_le(stats.bytes, bytes / 2 / 100 * 80);
	ck_assert_uint_gt(stats.bytes, bytes / 4); /* and not much more than needed */
	ck_assert_uint_eq(stats.damaged + stats.stray, 0);
	bool alive = false;
	for (unsigned n = 0; n < 40; n++) { /* gone from the old end only */
		const bool here = get_n(store, n) == GOT_RIGHT;
		ck_assert(here || !alive);
		alive |= here;
	}
	ck_assert(alive);
	store_close(store);
}
END_TEST

START_TEST(young_and_used_entries_stay)
{
	char path[512];
	struct stat st;
	struct store *store = store_at(test_dir);
	fill(store, 20);
	ck_assert_int_eq(get_n(store, 0), GOT_RIGHT); /* a hit makes the oldest the youngest */
	path_n(path, sizeof path, test_dir, 0);
	stat(path, &st);
	ck_assert_int_le(labs((long)(time(NULL) - st.st_mtime)), 60);
	path_n(path, sizeof path, test_dir, 1);
	age(path, -100000); /* from the future: a wrong clock protects nothing for ever */
	store->max_bytes = 100;
	ck_assert_uint_gt(store_collect(store), 0);
	for (unsigned n = 0; n < 20; n++)
		ck_assert_int_eq(get_n(store, n), n == 0 ? GOT_RIGHT : GOT_MISS);
	store_close(store);
}
END_TEST

START_TEST(collection_comes_by_itself)
{
	char gc[128];
	struct store *store = store_at(test_dir);
	fill(store, 20);
	store->max_bytes = 1;
	snprintf(gc, sizeof gc, "%s/v1/gc", test_dir);
	age(gc, 90000);
	unsigned n = 100;
	while (key_of(n).bytes[31] % 32 == 0) /* not by chance */
		n++;
	ck_assert(put_n(store, n));
	struct store_stats stats;
	store_stats(&stats, store, false);
	ck_assert_uint_eq(stats.entries, 1);
	fill(store, 20);
	while (key_of(n).bytes[31] % 32 != 0)
		n++;
	ck_assert(put_n(store, n));
	store_stats(&stats, store, false);
	ck_assert_uint_eq(stats.entries, 2);
	store_close(store);
}
END_TEST

START_TEST(stray_files)
{
	char path[256];
	struct store *store = store_at(test_dir);
	ck_assert(put_n(store, 1));
	snprintf(path, sizeof path, "%s/v1/tmp", test_dir);
	mkdir(path, 0700);
	strcat(path, "/0123456789abcdef");
	write_file(path, "half", 4);
	struct store_stats stats;
	store_stats(&stats, store, true);
	ck_assert(stats.entries == 1 && stats.stray == 1 && stats.damaged == 0);
	ck_assert_uint_eq(store_collect(store), 0); /* its writer may live */
	age(path, 7200);
	ck_assert_uint_eq(store_collect(store), 4);
	ck_assert_int_eq(access(path, F_OK), -1);
	path_n(path, sizeof path, test_dir, 1);
	write_file(path, "half", 4);
	store_stats(&stats, store, true);
	ck_assert_uint_eq(stats.damaged, 1);
	ck_assert_uint_eq(store_clear(store), 1);
	store_stats(&stats, store, true);
	ck_assert_uint_eq(stats.entries + stats.stray + stats.damaged + stats.bytes, 0);
	store_close(store);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("store");
	TCase *c = tcase_create("key");
	tcase_add_test(c, key_golden);
	tcase_add_test(c, key_sensitive);
	suite_add_tcase(s, c);

	c = tcase_create("entry");
	tcase_add_checked_fixture(c, dir_setup, dir_teardown);
	tcase_set_timeout(c, 30);
	tcase_add_test(c, publish_and_read);
	tcase_add_test(c, replaced_by_another);
	tcase_add_test(c, each_good_entry_once);
	tcase_add_test(c, empty_and_large);
	tcase_add_test(c, folder_vanishes);
	tcase_add_loop_test(c, damaged_is_a_miss_and_heals, 0, 15);
	tcase_add_test(c, every_flipped_byte_is_seen);
	suite_add_tcase(s, c);

	c = tcase_create("place");
	tcase_add_checked_fixture(c, dir_setup, dir_teardown);
	tcase_set_timeout(c, 30);
	tcase_add_loop_test(c, place_of_environment, 0, sizeof places / sizeof *places);
	tcase_add_test(c, ignore_env);
	tcase_add_test(c, variables_are_checked);
	tcase_add_test(c, unusable_folders);
	if (geteuid() == 0) {
		tcase_add_test(c, stranger_without_passwd);
		tcase_add_test(c, two_users);
	}
	tcase_add_test(c, read_only_disk);
	tcase_add_test(c, full_disk);
	tcase_add_test(c, file_size_limit);
	suite_add_tcase(s, c);

	c = tcase_create("evict");
	tcase_add_checked_fixture(c, dir_setup, dir_teardown);
	tcase_set_timeout(c, 30);
	tcase_add_test(c, collect_oldest_down_to_the_cap);
	tcase_add_test(c, young_and_used_entries_stay);
	tcase_add_test(c, collection_comes_by_itself);
	tcase_add_test(c, stray_files);
	suite_add_tcase(s, c);
	return s;
}
