#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "check/check.h"

enum { THREADS_MAX = 32 };

struct pool {
	void (*work)(void *, int64_t);
	void *context;
	int64_t items;
	_Atomic int64_t next;
};

static void *pool_run(void *argument)
{
	struct pool *p = argument;
	for (int64_t i; (i = atomic_fetch_add(&p->next, 1)) < p->items;)
		p->work(p->context, i);
	return NULL;
}

void parallel_for(int64_t items, void (*work)(void *, int64_t), void *context)
{
	struct pool p = {.work = work, .context = context, .items = items};
	const long cores = sysconf(_SC_NPROCESSORS_ONLN);
	int64_t wanted = cores < 1 ? 1 : cores > THREADS_MAX ? THREADS_MAX : cores;
	if (wanted > items)
		wanted = items;
	pthread_t thread[THREADS_MAX];
	int started = 0;
	while (started < wanted - 1 && !pthread_create(&thread[started], NULL, pool_run, &p))
		started++;
	pool_run(&p);
	for (int i = 0; i < started; i++)
		pthread_join(thread[i], NULL);
}
