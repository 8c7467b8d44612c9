/* The watchdog of the GPU suite: what takes too long ends the process with the name of the test, and nothing else does. */
#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/gpu/watch.h"

Suite *suite(void);

static void wait_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

/* In a process of its own, whose output is returned: a test that hangs after others that did not. */
static int hang(char *output, size_t size, bool hangs)
{
	int ends[2];
	ck_assert_int_eq(pipe(ends), 0);
	const pid_t child = fork();
	if (child == 0) {
		dup2(ends[1], STDOUT_FILENO);
		if (watch_open())
			_exit(99);
		for (int i = 0; i < 4; i++) { /* more together than one may take */
			watch_begin("a test that ends", 1);
			wait_ms(300);
			if (i % 2)
				watch_end();
		}
		if (hangs)
			watch_begin("the test that hangs", 1);
		wait_ms(hangs ? 20000 : 1300);
		_exit(0);
	}
	close(ends[1]);
	size_t len = 0;
	for (ssize_t n; len < size - 1 && (n = read(ends[0], output + len, size - 1 - len)) > 0;)
		len += (size_t)n;
	output[len] = '\0';
	close(ends[0]);
	int status;
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert(WIFEXITED(status));
	return WEXITSTATUS(status);
}

START_TEST(what_hangs_is_named)
{
	char output[1024];
	ck_assert_int_eq(hang(output, sizeof output, true), WATCH_EXIT);
	ck_assert_ptr_nonnull(strstr(output, "FAILED  the test that hangs\n"));
	ck_assert_ptr_nonnull(strstr(output, "within 1 s"));
	ck_assert_ptr_null(strstr(output, "a test that ends"));
}
END_TEST

START_TEST(what_ends_in_time_is_left_alone)
{
	char output[1024];
	ck_assert_int_eq(hang(output, sizeof output, false), 0);
	ck_assert_str_eq(output, "");
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("watch");
	TCase *t = tcase_create("watch");
	tcase_set_timeout(t, 60);
	tcase_add_test(t, what_hangs_is_named);
	tcase_add_test(t, what_ends_in_time_is_left_alone);
	suite_add_tcase(s, t);
	return s;
}
