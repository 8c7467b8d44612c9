/* runtime_core: what libfagen and libfagen_rt open and close alike. */
#include "runtime/kernel.h"

#include <stdlib.h>

const char *fagen_version(void) { return FAGEN_VERSION; }

static int parts_begin(fagen_runtime *rt)
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

int runtime_begin(fagen_runtime **out, fagen_config *config, const fagen_config *given, struct fault *f)
{
	*config = (fagen_config){0};
	if (given && struct_take(config, sizeof *config, given))
		return fault_fail(
			f, FAGEN_ERROR_INVALID, "struct_size",
			"config.struct_size is not set: it says which version of struct fagen_config the caller has.");
	fagen_runtime *rt = calloc(1, sizeof *rt);
	if (!rt || parts_begin(rt)) {
		free(rt);
		return fault_fail(f, FAGEN_ERROR_MEMORY, NULL, "Out of memory.");
	}
	*out = rt;
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
