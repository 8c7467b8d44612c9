/* open_rt: the runtime of libfagen_rt, which has packs and nothing that compiles. libfagen's is in runtime.c. */
#include <stdlib.h>

#include "runtime/kernel.h"

int fagen_open(fagen_runtime **out, const fagen_config *given, fagen_error *error)
{
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	fagen_config config;
	fault_clear(error);
	return runtime_begin(out, &config, given, &f) ? fault_report(error, &f) : FAGEN_OK;
}

void fagen_close(fagen_runtime *rt)
{
	if (!rt)
		return;
	runtime_end(rt);
	free(rt);
}
