/* open_rt: the runtime of libfagen_rt, which has packs and nothing that compiles. libfagen's is in runtime.c. */
#include <stdlib.h>

#include "runtime/kernel.h"

int fagen_open(fagen_runtime **out, const fagen_config *given, fagen_error *error)
{
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	fagen_config config;
	fault_clear(error);
	if (given && struct_take(&config, sizeof config, given)) {
		fault_fail(
			&f, FAGEN_ERROR_INVALID, "struct_size",
			"config.struct_size is not set: it says which version of struct fagen_config the caller has.");
		return fault_report(error, &f);
	}
	fagen_runtime *rt = calloc(1, sizeof *rt);
	if (rt && !runtime_begin(rt)) {
		*out = rt;
		return FAGEN_OK;
	}
	free(rt);
	fault_fail(&f, FAGEN_ERROR_MEMORY, NULL, "Out of memory.");
	return fault_report(error, &f);
}

void fagen_close(fagen_runtime *rt)
{
	if (!rt)
		return;
	runtime_end(rt);
	free(rt);
}
