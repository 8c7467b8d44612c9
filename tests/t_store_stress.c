/* The store under fire: system calls that fail, writers that are killed, many processes at once, locks in bad hands.
 * Linked with --wrap for every call below, so that cache/ alone sees the faults. */
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>

#include <pthread.h>

#include "tests/store_help.h"

Suite *suite(void);

/* ---- faults ---- */

static struct {
	int fail_at; /* the n-th call fails; 0: none */
	int error;
	int calls, fired;
	bool no_tmpfile; /* a file system without O_TMPFILE */
	bool no_link;    /* nor hard links */
	bool no_flock;
	int no_memory; /* the n-th allocation fails, and all after it; 0: none */
	int allocations;
	bool dribble; /* reads and writes stop short, and are interrupted every other time */
} fault;

static bool fails(void)
{
	if (__atomic_add_fetch(&fault.calls, 1, __ATOMIC_RELAXED) != fault.fail_at) /* of threads, too */
		return false;
	fault.fired++;
	errno = fault.error;
	return true;
}

#define WRAP(type, name, parameters, arguments) \
	type __real_##name parameters;          \
	type __wrap_##name parameters;          \
	type __wrap_##name parameters { return fails() ? (type)-1 : __real_##name arguments; }

WRAP(int, fstat, (int fd, struct stat *st), (fd, st))
WRAP(int, fstatat, (int dir, const char *name, struct stat *st, int flags), (dir, name, st, flags))
WRAP(int, mkdirat, (int dir, const char *name, mode_t mode), (dir, name, mode))
WRAP(int, unlinkat, (int dir, const char *name, int flags), (dir, name, flags))
WRAP(int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
WRAP(int, futimens, (int fd, const struct timespec *times), (fd, times))
WRAP(ssize_t, getrandom, (void *bytes, size_t len, unsigned flags), (bytes, len, flags))

static bool no_memory(void)
{
	if (!fault.no_memory || ++fault.allocations < fault.no_memory)
		return false;
	fault.fired++;
	errno = ENOMEM;
	return true;
}

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes) { return no_memory() ? NULL : __real_malloc(bytes); }
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) { return no_memory() ? NULL : __real_calloc(count, bytes); }
void *__real_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes) { return no_memory() ? NULL : __real_realloc(old, bytes); }

/* Not done: what a power cut leaves is not seen here, and a busy disk would take minutes for it. */
int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd) { return fails() ? -1 : 0; }

int __real_openat(int dir, const char *name, int flags, ...);
int __wrap_openat(int dir, const char *name, int flags, mode_t mode);
int __wrap_openat(int dir, const char *name, int flags, mode_t mode)
{
	if (fails())
		return -1;
	if (fault.no_tmpfile && (flags & O_TMPFILE) == O_TMPFILE) {
		errno = EOPNOTSUPP;
		return -1;
	}
	return __real_openat(dir, name, flags, mode);
}

int __real_linkat(int a, const char *from, int b, const char *to, int flags);
int __wrap_linkat(int a, const char *from, int b, const char *to, int flags);
int __wrap_linkat(int a, const char *from, int b, const char *to, int flags)
{
	if (fails())
		return -1;
	if (fault.no_link) {
		errno = EPERM;
		return -1;
	}
	return __real_linkat(a, from, b, to, flags);
}

int __real_flock(int fd, int how);
int __wrap_flock(int fd, int how);
int __wrap_flock(int fd, int how)
{
	if (fails())
		return -1;
	if (fault.no_flock) {
		errno = ENOLCK;
		return -1;
	}
	return __real_flock(fd, how);
}

static size_t dribbled(size_t len) { return fault.dribble && len > 1000 ? 1000 : len; }

static bool interrupted(void)
{
	static int turn;
	if (!fault.dribble || __atomic_fetch_add(&turn, 1, __ATOMIC_RELAXED) % 2)
		return false;
	errno = EINTR;
	return true;
}

ssize_t __real_write(int fd, const void *bytes, size_t len);
ssize_t __wrap_write(int fd, const void *bytes, size_t len);
ssize_t __wrap_write(int fd, const void *bytes, size_t len)
{
	return fails() || interrupted() ? -1 : __real_write(fd, bytes, dribbled(len));
}

ssize_t __real_read(int fd, void *bytes, size_t len);
ssize_t __wrap_read(int fd, void *bytes, size_t len);
ssize_t __wrap_read(int fd, void *bytes, size_t len)
{
	return fails() || interrupted() ? -1 : __real_read(fd, bytes, dribbled(len));
}

static int open_files(void)
{
	int count = 0;
	DIR *listing = opendir("/proc/self/fd");
	ck_assert_ptr_nonnull(listing);
	while (readdir(listing))
		count++;
	closedir(listing);
	return count;
}

/* Those that cache/ treats in some way of their own; all others go the way of EIO and ENOSPC. */
static const int errors[] = {EIO, ENOSPC, EACCES, EINTR, EOPNOTSUPP, EEXIST, ENOENT};
enum { ERRORS = sizeof errors / sizeof *errors, MODES = 3 };

static void set_mode(int mode)
{
	memset(&fault, 0, sizeof fault);
	fault.no_tmpfile = mode > 0;
	fault.no_link = mode > 1;
}

/* Everything a process does for one kernel, with the n-th call failing, for every n until none is left to fail. `where`
 * says what the folder holds before: nothing, a good entry, a damaged one. */
static void fail_each_call(int error, int mode, int where)
{
	char path[512], dir[128];
	bool through = false;
	for (int n = 1; !through; n++) {
		ck_assert_int_lt(n, 500);
		set_mode(mode);
		snprintf(dir, sizeof dir, "%s/%d", test_dir, n);
		path_n(path, sizeof path, dir, 1);
		struct store *store = store_at(dir);
		if (where > 0)
			ck_assert(put_n(store, 1));
		if (where > 1)
			ck_assert_int_eq(truncate(path, 200), 0);
		const int files = open_files();
		fault.calls = 0;
		fault.fail_at = n;
		fault.error = error;
		const struct store_key key = key_of(1);
		const enum got first = get_n(store, 1);
		const int lock = store_lock(store, &key);
		const enum got second = get_n(store, 1);
		const bool kept = put_n(store, 1);
		store_unlock(store, lock);
		const bool replaced = replace_n(store, 1);
		const enum got third = get_n(store, 1);
		through = fault.fired == 0;
		fault.fail_at = 0;

		ck_assert_msg(first != GOT_WRONG && second != GOT_WRONG && third != GOT_WRONG, "wrong bytes, call %d",
		              n);
		ck_assert_msg(where != 1 || !through || first == GOT_RIGHT, "good entry not found");
		ck_assert_msg(open_files() == files, "call %d, %s: %d files left open", n, strerror(error),
		              open_files() - files);
		ck_assert_msg(kept || store_note(store)[0], "call %d, %s: not kept and no word of it", n,
		              strerror(error));
		ck_assert_msg(!through || (kept && replaced && third == GOT_RIGHT), "no fault, yet not kept");
		ck_assert_msg(replaced || store_note(store)[0], "call %d, %s: not replaced and no word of it", n, strerror(error));
		/* A failing unlink of the temporary name is the one thing that can leave a file. */
		ck_assert_msg(leftovers(dir) <= 1, "call %d, %s: %d files left over", n, strerror(error),
		              leftovers(dir));
		/* And once the trouble is over, the store is as new. */
		ck_assert_msg(put_n(store, 1) && get_n(store, 1) == GOT_RIGHT, "call %d, %s: broken for good", n,
		              strerror(error));
		store_close(store);
		nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	}
}

START_TEST(failing_calls)
{
	for (int where = 0; where < 3; where++)
		fail_each_call(errors[_i / MODES], _i % MODES, where);
}
END_TEST

START_TEST(failing_calls_of_eviction)
{
	char path[512];
	struct store_stats stats;
	bool through = false;
	for (int n = 1; !through; n++) {
		set_mode(0);
		struct store *store = store_at(test_dir);
		for (unsigned k = 0; k < 4; k++) {
			ck_assert(put_n(store, k));
			path_n(path, sizeof path, test_dir, k);
			age(path, 10000);
		}
		store->max_bytes = 100;
		fault.calls = 0;
		fault.fail_at = n;
		fault.error = EIO;
		(void)store_stats(&stats, store, true);
		(void)store_collect(store);
		(void)store_clear(store);
		through = fault.fired == 0;
		fault.fail_at = 0;
		(void)store_clear(store);
		ck_assert_int_eq(store_stats(&stats, store, true), 0);
		ck_assert_uint_eq(stats.entries + stats.stray, 0);
		store_close(store);
		if (n > 40) /* the walk opens 256 shards; past the first ones a sample is enough */
			n += 150;
	}
}
END_TEST

START_TEST(short_and_interrupted)
{
	set_mode(_i);
	fault.dribble = true;
	struct store *store = store_at(test_dir);
	for (unsigned n = 0; n < 14; n++)
		ck_assert(put_n(store, n) && get_n(store, n) == GOT_RIGHT);
	ck_assert_str_eq(store_note(store), "");
	ck_assert_int_eq(leftovers(test_dir), 0);
	store_close(store);
}
END_TEST

/* ---- locks ---- */

START_TEST(lock_without_owner)
{
	char path[128];
	struct store *store = store_at(test_dir);
	const struct store_key key = key_of(1);
	const int token = store_lock(store, &key);
	ck_assert_int_ge(token, 0);
	store_unlock(store, token);
	snprintf(path, sizeof path, "%s/v1/lock/%02x", test_dir, key.bytes[0]);
	ck_assert_int_eq(access(path, F_OK), 0); /* the file stays, and says nothing */
	const double start = seconds_now();
	const int again = store_lock(store, &key);
	ck_assert_int_ge(again, 0);
	ck_assert(seconds_now() - start < 1);
	store_unlock(store, again);
	store_unlock(store, -1);
	store_close(store);
}
END_TEST

/* A child that holds the lock of key 1 and then sleeps for ever. */
static pid_t fork_holder(struct store *store)
{
	int ready[2];
	char byte;
	const struct store_key key = key_of(1);
	ck_assert_int_eq(pipe(ready), 0);
	const pid_t child = fork();
	if (child == 0) {
		if (store_lock(store, &key) < 0 || __real_write(ready[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	ck_assert_int_eq(__real_read(ready[0], &byte, 1), 1);
	close(ready[0]);
	close(ready[1]);
	return child;
}

START_TEST(lock_of_the_stopped_and_the_dead)
{
	struct store *store =
		store_open(&(struct store_config){.dir = test_dir, .ignore_env = true, .lock_timeout_ms = 400});
	const struct store_key key = key_of(1);
	const pid_t child = fork_holder(store);
	kill(child, SIGSTOP);
	double start = seconds_now();
	ck_assert_int_lt(store_lock(store, &key), 0); /* waits, then goes on */
	const double waited = seconds_now() - start;
	ck_assert_msg(waited > 0.35 && waited < 5, "waited %.2f s", waited);
	ck_assert_ptr_nonnull(strstr(store_note(store), "went on without it"));
	ck_assert(put_n(store, 1) && get_n(store, 1) == GOT_RIGHT);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	start = seconds_now();
	const int token = store_lock(store, &key);
	ck_assert_int_ge(token, 0);
	ck_assert(seconds_now() - start < 0.3);
	store_unlock(store, token);
	store_close(store);
}
END_TEST

START_TEST(lock_inherited_by_a_child)
{
	struct store *store =
		store_open(&(struct store_config){.dir = test_dir, .ignore_env = true, .lock_timeout_ms = 2000});
	const struct store_key key = key_of(1);
	const int token = store_lock(store, &key);
	const pid_t child = fork(); /* keeps the descriptor open */
	if (child == 0)
		for (;;)
			pause();
	store_unlock(store, token);
	const int again = store_lock(store, &key);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	ck_assert_int_ge(again, 0);
	store_unlock(store, again);
	store_close(store);
}
END_TEST

START_TEST(no_locks_here)
{
	struct store *store = store_at(test_dir);
	fault.no_flock = true;
	const struct store_key key = key_of(1);
	const double start = seconds_now();
	ck_assert_int_lt(store_lock(store, &key), 0);
	ck_assert(seconds_now() - start < 1);
	ck_assert(put_n(store, 1) && get_n(store, 1) == GOT_RIGHT);
	fault.no_flock = false;
	store_close(store);
}
END_TEST

/* ---- many at once ---- */

struct shared {
	int compiled[64];
	int wrong, failed, damaged_notes;
};

static struct shared *shared_new(void)
{
	struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert(shared != MAP_FAILED);
	return shared;
}

/* What cubin_get does, with a counter for a compiler. */
static void make(struct shared *shared, struct store *store, unsigned n)
{
	enum got got = get_n(store, n);
	if (got == GOT_MISS) {
		const struct store_key key = key_of(n);
		const int lock = store_lock(store, &key);
		got = get_n(store, n);
		if (got == GOT_MISS) {
			__atomic_fetch_add(&shared->compiled[n], 1, __ATOMIC_SEQ_CST);
			sleep_ms(20);
			if (!put_n(store, n))
				__atomic_fetch_add(&shared->failed, 1, __ATOMIC_SEQ_CST);
		}
		store_unlock(store, lock);
	}
	if (got == GOT_WRONG)
		__atomic_fetch_add(&shared->wrong, 1, __ATOMIC_SEQ_CST);
}

START_TEST(cold_together)
{
	enum { PROCESSES = 24 };
	const unsigned keys = _i ? 16 : 1;
	struct shared *shared = shared_new();
	pid_t child[PROCESSES];
	for (int i = 0; i < PROCESSES; i++) {
		child[i] = fork();
		if (child[i] == 0) {
			struct store *store = store_at(test_dir);
			for (unsigned n = 0; n < keys; n++)
				make(shared, store, (n + (unsigned)i) % keys);
			_exit(store_note(store)[0] ? 1 : 0);
		}
	}
	for (int i = 0; i < PROCESSES; i++)
		child_passed(child[i]);
	ck_assert_int_eq(shared->wrong + shared->failed, 0);
	for (unsigned n = 0; n < keys; n++)
		ck_assert_int_eq(shared->compiled[n], 1);
	ck_assert_int_eq(leftovers(test_dir), 0);
}
END_TEST

static void *thread_work(void *argument)
{
	void **both = argument;
	for (unsigned n = 0; n < 16; n++)
		make(both[0], both[1], n);
	return NULL;
}

START_TEST(one_store_many_threads)
{
	enum { THREADS = 8 };
	struct shared *shared = shared_new();
	struct store *store = store_at(test_dir);
	pthread_t thread[THREADS];
	void *both[] = {shared, store};
	for (int i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&thread[i], NULL, thread_work, both), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	ck_assert_int_eq(shared->wrong + shared->failed, 0);
	for (unsigned n = 0; n < 16; n++)
		ck_assert_int_eq(shared->compiled[n], 1);
	ck_assert_str_eq(store_note(store), "");
	store_close(store);
}
END_TEST

/* Writers that are killed at any moment, while others read. */
START_TEST(killed_writers)
{
	enum { WRITERS = 6, KEYS = 48, SECONDS = 3 };
	set_mode(_i);
	struct shared *shared = shared_new();
	struct store *store = store_at(test_dir);
	ck_assert(put_n(store, 1000)); /* the folder itself is there */
	unsigned killed = 0, read = 0;
	srand(7);
	for (const double end = seconds_now() + SECONDS; seconds_now() < end;) {
		pid_t child[WRITERS];
		for (int i = 0; i < WRITERS; i++) {
			child[i] = fork();
			if (child[i] == 0)
				for (unsigned n = (unsigned)(rand() + i);; n++) {
					if (n % 5 == 0) {
						const struct store_key key = key_of(n % KEYS);
						store_remove(store, &key);
					}
					(void)put_n(store, n % KEYS);
				}
		}
		for (int i = 0; i < WRITERS; i++) {
			sleep_ms(rand() % 8);
			for (unsigned n = 0; n < 4; n++, read++)
				shared->wrong += get_n(store, (unsigned)rand() % KEYS) == GOT_WRONG;
			kill(child[i], SIGKILL);
			waitpid(child[i], NULL, 0);
			killed++;
		}
	}
	struct store_stats stats;
	ck_assert_int_eq(store_stats(&stats, store, true), 0);
	ck_assert_uint_eq(stats.damaged, 0);
	ck_assert_int_eq(shared->wrong, 0);
	ck_assert_str_eq(store_note(store), "");
	ck_assert_msg(killed >= WRITERS && stats.entries > 1, "%u killed, %u read", killed, read);
	if (_i == 0) {
		ck_assert_uint_eq(stats.stray, 0);
		ck_assert_int_eq(leftovers(test_dir), 0);
	} else { /* named temporary files may stay behind a kill, until a collection an hour later */
		char tmp[128];
		snprintf(tmp, sizeof tmp, "%s/v1/tmp", test_dir);
		DIR *listing = opendir(tmp);
		ck_assert_ptr_nonnull(listing);
		for (struct dirent *item; (item = readdir(listing));)
			if (item->d_name[0] != '.') {
				char path[512];
				snprintf(path, sizeof path, "%s/%s", tmp, item->d_name);
				age(path, 7200);
			}
		closedir(listing);
		(void)store_collect(store);
		ck_assert_int_eq(leftovers(test_dir), 0);
	}
	store_close(store);
}
END_TEST

/* Replacers that are killed, and readers: what was there, or what replaced it. */
START_TEST(replaced_while_in_use)
{
	enum { WRITERS = 4, KEYS = 3 };
	struct shared *shared = shared_new();
	struct store *store = store_at(test_dir);
	set_mode(0);
	for (unsigned n = 0; n < KEYS; n++)
		ck_assert(put_n(store, n));
	srand(5);
	for (const double end = seconds_now() + 1.5; seconds_now() < end;) {
		pid_t child[WRITERS];
		for (int i = 0; i < WRITERS; i++) {
			child[i] = fork();
			if (child[i] == 0)
				for (unsigned n = (unsigned)i;; n++)
					(void)replace_n(store, n % KEYS);
		}
		for (int i = 0; i < WRITERS; i++) {
			sleep_ms(rand() % 6);
			for (unsigned n = 0; n < 20; n++)
				shared->wrong += get_n(store, n % KEYS) != GOT_RIGHT; /* never a miss */
			kill(child[i], SIGKILL);
			waitpid(child[i], NULL, 0);
		}
	}
	struct store_stats stats;
	ck_assert_int_eq(store_stats(&stats, store, true), 0);
	ck_assert_uint_eq(stats.entries, KEYS);
	ck_assert_uint_eq(stats.damaged, 0);
	ck_assert_int_eq(shared->wrong, 0);
	ck_assert_str_eq(store_note(store), "");
	store_close(store);
}
END_TEST

/* Without memory a store keeps nothing, finds nothing and says so; with memory again it is as before. */
START_TEST(failing_allocations)
{
	bool through = false;
	ck_assert_int_ge(open_files(), 0); /* what the C library keeps is made before */
	struct store *first = store_at(test_dir);
	ck_assert(put_n(first, 2));
	store_close(first);
	for (int n = 1; !through; n++) {
		ck_assert_int_lt(n, 200);
		set_mode(0);
		const struct store_key key = key_of(1);
		const int files = open_files();
		struct store_stats stats;
		uint8_t bytes[32768];
		bytes_of(bytes, 1);
		const struct store_entry entry = {.meta = (char *)"entry 1\n", .meta_len = 8, .cubin = bytes, .cubin_len = size_of(1)};
		struct store_entry got = {0};
		fault.calls = 0;
		fault.no_memory = n;
		struct store *store = store_open(&(struct store_config){.dir = test_dir, .ignore_env = true});
		const bool put = store && store_put(store, &key, &entry);
		const bool replaced = store && store_replace(store, &key, &entry);
		const bool found = store && store_get(&got, store, &key);
		if (store) {
			(void)store_stats(&stats, store, true);
			(void)store_collect(store);
		}
		through = fault.fired == 0;
		fault.no_memory = 0;
		ck_assert(!found || (got.cubin_len == size_of(1) && memcmp(got.cubin, bytes, size_of(1)) == 0));
		ck_assert(!through || (put && replaced && found));
		store_entry_free(&got);
		ck_assert_int_eq(open_files(), files);
		if (store) {
			ck_assert(put_n(store, 1) && get_n(store, 1) == GOT_RIGHT && get_n(store, 2) == GOT_RIGHT);
			ck_assert_int_eq(leftovers(test_dir), 0);
			store_remove(store, &key);
			store_close(store);
		}
	}
}
END_TEST

/* Collections, writers and readers together: a reader sees an entry whole or not at all. */
START_TEST(collected_while_in_use)
{
	enum { PROCESSES = 6, KEYS = 32 };
	struct shared *shared = shared_new();
	pid_t child[PROCESSES];
	for (int i = 0; i < PROCESSES; i++) {
		child[i] = fork();
		if (child[i] == 0) {
			char path[512];
			struct store *store = store_at(test_dir);
			store->max_bytes = 50000;
			const double end = seconds_now() + 1.5;
			for (unsigned n = (unsigned)i * 7; seconds_now() < end; n++) {
				if (i == 0) {
					(void)store_collect(store);
				} else if (i < 3) {
					if (!put_n(store, n % KEYS))
						shared->failed++;
					const struct timespec old = {.tv_sec = time(NULL) - 1000 - n % 100};
					path_n(path, sizeof path, test_dir, n % KEYS);
					utimensat(AT_FDCWD, path, (const struct timespec[]){old, old}, 0);
				} else if (get_n(store, n % KEYS) == GOT_WRONG) {
					shared->wrong++;
				}
			}
			_exit(store_note(store)[0] ? 1 : 0);
		}
	}
	for (int i = 0; i < PROCESSES; i++)
		child_passed(child[i]);
	ck_assert_int_eq(shared->wrong + shared->failed, 0);
	ck_assert_int_eq(leftovers(test_dir), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("store_stress");
	TCase *c = tcase_create("faults");
	tcase_add_checked_fixture(c, dir_setup, dir_teardown);
	tcase_set_timeout(c, 60);
	tcase_add_loop_test(c, failing_calls, 0, ERRORS * MODES);
	tcase_add_test(c, failing_calls_of_eviction);
	tcase_add_loop_test(c, short_and_interrupted, 0, MODES);
	tcase_add_test(c, failing_allocations);
	suite_add_tcase(s, c);

	c = tcase_create("locks");
	tcase_add_checked_fixture(c, dir_setup, dir_teardown);
	tcase_set_timeout(c, 30);
	tcase_add_test(c, lock_without_owner);
	tcase_add_test(c, lock_of_the_stopped_and_the_dead);
	tcase_add_test(c, lock_inherited_by_a_child);
	tcase_add_test(c, no_locks_here);
	suite_add_tcase(s, c);

	c = tcase_create("crowd");
	tcase_add_checked_fixture(c, dir_setup, dir_teardown);
	tcase_set_timeout(c, 60);
	tcase_add_loop_test(c, cold_together, 0, 2);
	tcase_add_test(c, one_store_many_threads);
	tcase_add_loop_test(c, killed_writers, 0, 2);
	tcase_add_test(c, replaced_while_in_use);
	tcase_add_test(c, collected_while_in_use);
	suite_add_tcase(s, c);
	return s;
}
