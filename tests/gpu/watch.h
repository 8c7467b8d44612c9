/* watch: a kernel that never ends must not keep the suite. A thread of its own counts the seconds of the test at hand; when
 * they are over it says which test it was and ends the process, for nothing else ends a call that waits for the GPU. */
#ifndef FAGEN_TESTS_GPU_WATCH_H
#define FAGEN_TESTS_GPU_WATCH_H

enum { WATCH_EXIT = 4, WATCH_NAME_MAX = 768 };

/* 0, or -1 when there is no thread to be had. */
int watch_open(void);
/* From now on; the test before is over. */
void watch_begin(const char *name, int seconds);
void watch_end(void);

#endif
