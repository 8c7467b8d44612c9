#include "tests/gpu/watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static struct {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	char name[WATCH_NAME_MAX];
	bool running;
	int seconds;
	struct timespec end;
} watch = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void *watch_run(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&watch.mutex);
	for (;;) {
		if (!watch.running) {
			pthread_cond_wait(&watch.changed, &watch.mutex);
			continue;
		}
		const struct timespec end = watch.end;
		const int rc = pthread_cond_timedwait(&watch.changed, &watch.mutex, &end);
		struct timespec now;
		clock_gettime(CLOCK_MONOTONIC, &now);
		const bool over = now.tv_sec > watch.end.tv_sec ||
		                  (now.tv_sec == watch.end.tv_sec && now.tv_nsec >= watch.end.tv_nsec);
		if (rc == ETIMEDOUT && watch.running && over) {
			printf("FAILED  %s\n        did not end within %d s: a kernel hangs. Nothing more can be run.\n", watch.name,
			       watch.seconds);
			fflush(stdout);
			_exit(WATCH_EXIT); /* exit would wait for the kernel */
		}
	}
	return NULL;
}

int watch_open(void)
{
	pthread_t thread;
	pthread_condattr_t clock;
	if (pthread_condattr_init(&clock) || pthread_condattr_setclock(&clock, CLOCK_MONOTONIC) ||
	    pthread_cond_init(&watch.changed, &clock) || pthread_create(&thread, NULL, watch_run, NULL))
		return -1;
	pthread_detach(thread);
	return 0;
}

static void watch_set(bool running, const char *name, int seconds)
{
	pthread_mutex_lock(&watch.mutex);
	watch.running = running;
	watch.seconds = seconds;
	snprintf(watch.name, sizeof watch.name, "%s", name);
	clock_gettime(CLOCK_MONOTONIC, &watch.end);
	watch.end.tv_sec += seconds;
	pthread_cond_signal(&watch.changed);
	pthread_mutex_unlock(&watch.mutex);
}

void watch_begin(const char *name, int seconds) { watch_set(true, name, seconds); }

void watch_end(void) { watch_set(false, "", 0); }
