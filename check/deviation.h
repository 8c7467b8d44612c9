/* deviation: how far a kernel's results are from exact ones, and how far those of a plain computation are. */
#ifndef FAGEN_CHECK_DEVIATION_H
#define FAGEN_CHECK_DEVIATION_H

#include "check/case.h"

/* Of got - want over the elements where want is finite. Infinite when one of those is NaN or infinite in got. */
struct deviation { double max, rms; };
void deviation_measure(struct deviation *, const double *got, const double *want, int64_t count);
double root_mean_square(const double *, int64_t count); /* of the finite ones; 0 when there are none */
/* In units of `exact`; 0 over 0 is 0. */
struct deviation deviation_relative(const struct deviation *, double exact);

/* What is the same for every kernel of a case: its results exactly (in double) and by the plain computation. Zeroed, it is
 * made by the first run. */
struct baseline { double *exact[TENSOR_COUNT], *plain[TENSOR_COUNT]; };
void baseline_free(struct baseline *);

struct deviation_row {
	int tensor;               /* an enum tensor_id */
	double exact;             /* root mean square of the exact result */
	struct deviation plain, fagen;
};
struct deviations {
	int count;                /* forward only: out and lse */
	struct deviation_row row[5];
	struct check_outcome outcome;
};

/* Runs the kernels of `spec` as check_run does, and measures instead of judging. */
void deviation_run(struct deviations *, struct baseline *, const struct check_case *, fagen_runtime *, const fagen_spec *,
                   int device);

#endif
