/* bench_time: how long a pass takes. */
#include <stdio.h>

#include "cli/bench.h"

#include "cli/cli.h"
#include "runtime/driver.h"

enum { WARM_UP = 3, TIMES_MIN = 7, TIMES_MAX = 101 };

int error_give(struct diag *diag, const fagen_error *error, int *status)
{
	*status = error->code == FAGEN_ERROR_SPEC || error->code == FAGEN_ERROR_INVALID ? EXIT_REQUEST : EXIT_MACHINE;
	return diag_fail(diag, "%s", error->message);
}

launch_call *launch_of(enum pass pass) { return pass == PASS_FORWARD ? fagen_forward : fagen_backward; }

/* The stream is never empty between two: launches are queued ahead. */
int pass_time(double *us, const struct bench *b, const fagen_kernel *kernel, enum pass pass, double seconds,
              struct diag *diag, int *status)
{
	struct driver *driver = runtime_driver(b->rt);
	struct fault fault = {.diag = diag};
	fagen_error error = {.struct_size = sizeof error};
	cu_event begin[TIMES_MAX] = {NULL}, end[TIMES_MAX] = {NULL};
	double each[TIMES_MAX];
	int runs = WARM_UP, made = 0, rc = -1;
	cu_result r = CU_OK;
	*status = EXIT_MACHINE;
	if (driver_push(driver, b->options->device, &fault))
		return -1;
	const struct cuda_calls *cu = driver_calls(driver);
	if (!cu->cuEventCreate || !cu->cuEventRecord || !cu->cuEventSynchronize || !cu->cuEventElapsedTime ||
	    !cu->cuEventDestroy_v2) {
		diag_fail(diag,
		          "The NVIDIA driver lacks the event calls that timing needs (cuEventCreate and its kin).");
		goto out;
	}
	for (int round = 0; round < 2 && !r; round++) { /* the first warms up and tells how many are worth it */
		for (; made < runs && !r; made++)
			if (!(r = cu->cuEventCreate(&begin[made], 0)))
				r = cu->cuEventCreate(&end[made], 0);
		for (int i = 0; i < runs && !r; i++) {
			const fagen_args args = args_make(b, i % b->data.sets, pass);
			if ((r = cu->cuEventRecord(begin[i], NULL)))
				break;
			if (launch_of(pass)(kernel, &args, NULL, &error) != FAGEN_OK) {
				error_give(diag, &error, status);
				goto out;
			}
			r = cu->cuEventRecord(end[i], NULL);
		}
		if (!r)
			r = cu->cuEventSynchronize(end[runs - 1]);
		for (int i = 0; i < runs && !r; i++) {
			float ms = 0;
			r = cu->cuEventElapsedTime(&ms, begin[i], end[i]);
			each[i] = (double)ms * 1e3;
		}
		if (round == 0 && !r) {
			const double wanted = seconds * 1e6 / (each[runs - 1] > 1 ? each[runs - 1] : 1);
			runs = wanted < TIMES_MIN ? TIMES_MIN : wanted > TIMES_MAX ? TIMES_MAX : (int)wanted;
		}
	}
	if (r) {
		driver_fail(driver, &fault, r, "Timing a kernel");
		goto out;
	}
	*us = median_of(each, runs);
	rc = 0;
out:
	for (int i = 0; i < TIMES_MAX; i++) {
		if (begin[i])
			cu->cuEventDestroy_v2(begin[i]);
		if (end[i])
			cu->cuEventDestroy_v2(end[i]);
	}
	return driver_pop(driver, &fault) ? -1 : rc;
}

void tile_name(char name[32], const struct candidate *c)
{
	int len = snprintf(name, 32, "%dx%d w%d s%d", c->tile_m, c->tile_n, c->warps, c->stages);
	if (c->splits > 1)
		len += snprintf(name + len, 32 - (size_t)len, " /%d", c->splits);
	if (c->heads > 1)
		snprintf(name + len, 32 - (size_t)len, " h%d", c->heads);
}
