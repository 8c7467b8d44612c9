/* calibrate: what a GPU is measured to do, and the device row made of it. */
#ifndef FAGEN_CLI_CALIBRATE_H
#define FAGEN_CLI_CALIBRATE_H

#include "runtime/runtime.h"

enum measure {
	MEASURE_MMA,    /* FLOP over clocks of an SM */
	MEASURE_EXP,    /* results over clocks */
	MEASURE_ALU,    /* lane operations over clocks */
	MEASURE_SMEM,   /* bytes over clocks */
	MEASURE_CLOCK,  /* clocks over nanoseconds */
	MEASURE_L2,     /* bytes over nanoseconds */
	MEASURE_HBM,    /* bytes read and written over nanoseconds */
	MEASURE_LAUNCH, /* microseconds over launches */
	MEASURE_COUNT
};

enum { REPETITIONS = 9 };
/* What was done and what it took, in the units above, in each repetition. */
struct measured { double amount[REPETITIONS], over[REPETITIONS]; };

/* ---- calibrate_rates.c: pure ---- */

/* The medians of amount / over. An implausible one is an error that names the measurement. */
int MUST_USE rates_make(double rate[MEASURE_COUNT], const struct measured measured[MEASURE_COUNT], struct diag *);
/* The row of a GPU with these rates. Its name points into `gpu`. */
void device_make(struct device *, const double rate[MEASURE_COUNT], const struct gpu *, const struct target *);
/* The file: where it comes from, what the row does not hold, the row. A warning when the rate of shared memory is not what
 * the model counts on. */
void device_write(struct text *, const struct device *, const double rate[MEASURE_COUNT], const struct gpu *,
                  int driver_version, const char *date, struct diag *);

/* ---- calibrate_run.c: on the GPU ---- */

/* The source of the microbenchmarks. `templates_dir` as for source_emit. */
int MUST_USE calibrate_emit(struct text *, const char *templates_dir, struct diag *);
int MUST_USE calibrate_run(struct measured measured[MEASURE_COUNT], struct gpu *, fagen_runtime *, int ordinal,
                           struct diag *);

#endif
