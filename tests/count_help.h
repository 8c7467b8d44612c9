/* Allocations and locks of the library, counted: the linker sends its calls here (-Wl,--wrap). */
#ifndef FAGEN_COUNT_HELP_H
#define FAGEN_COUNT_HELP_H

#include <pthread.h>
#include <stddef.h>

static int allocations, fail_allocation, locks; /* fail_allocation: the number of the one that gives NULL; 0: none */
static inline int allocation_turn(void) { return __atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED); }
void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_malloc(size_t n) { return allocation_turn() == fail_allocation ? NULL : __real_malloc(n); }
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size) { return allocation_turn() == fail_allocation ? NULL : __real_calloc(n, size); }
int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
	__atomic_add_fetch(&locks, 1, __ATOMIC_RELAXED);
	return __real_pthread_mutex_lock(m);
}

#endif
