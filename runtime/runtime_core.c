/* runtime_core: what libfagen and libfagen_rt open and close alike. */
#include "runtime/kernel.h"

#include <stdlib.h>

const char *fagen_version(void) { return FAGEN_VERSION; }

int runtime_begin(fagen_runtime *rt)
{
	if (!(rt->driver = driver_open()))
		return -1;
	if (pthread_mutex_init(&rt->mutex, NULL)) {
		driver_close(rt->driver);
		return -1;
	}
	if (pthread_cond_init(&rt->made, NULL)) {
		pthread_mutex_destroy(&rt->mutex);
		driver_close(rt->driver);
		return -1;
	}
	return 0;
}

void runtime_end(fagen_runtime *rt)
{
	while (rt->kernels) {
		struct fagen_kernel *k = rt->kernels;
		rt->kernels = k->next;
		kernel_free(k);
	}
	while (rt->packs) {
		struct fagen_pack *p = rt->packs;
		rt->packs = p->next;
		pack_free(p);
	}
	while (rt->devices) {
		struct runtime_device *d = rt->devices;
		rt->devices = d->next;
		free(d);
	}
	driver_close(rt->driver);
	pthread_cond_destroy(&rt->made);
	pthread_mutex_destroy(&rt->mutex);
}
