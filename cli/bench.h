/* bench: what is timed, for the files of the command. */
#ifndef FAGEN_CLI_BENCH_H
#define FAGEN_CLI_BENCH_H

#include "check/gpu.h"
#include "cli/problem_flags.h"
#include "runtime/runtime.h"

enum { SETS_MAX = 16 };

struct bench_options {
	struct problem_flags problem;
	int device;
	const char *wisdom; /* NULL: none */
	bool naive, json, sweep, overhead;
};

/* Inputs and outputs of one problem, several times over: launches take turns, so that none finds its data in L2. */
enum tensor { QUERY, KEY, VALUE, OUT, LSE, DOUT, DQUERY, DKEY, DVALUE, TENSORS };
struct data {
	int sets;
	struct gpu_buffer tensor[SETS_MAX][TENSORS];
	struct gpu_buffer workspace;
	struct gpu_buffer first[2]; /* packed: first rows of the sequences of queries, of keys */
	struct gpu_buffer input[SPEC_INPUTS_MAX], grad[SPEC_INPUTS_MAX]; /* one set of them */
	fagen_input inputs[SPEC_INPUTS_MAX];
};

struct bench {
	fagen_runtime *rt;
	const struct bench_options *options;
	struct gpu gpu;
	struct problem problem;
	const struct spec *spec;
	const struct program *program;
	struct data data;
	struct text json;
};

/* ---- bench_data.c ---- */

/* Loads a spec: b->spec, b->program, and b->problem as the flags ask. */
int MUST_USE spec_open(fagen_spec **, struct bench *, const char *path, struct program *, struct diag *, int *status);
fagen_problem problem_wish(const struct problem *);
/* Tensors and inputs of b->problem and b->spec. data_free also after a failure. */
int MUST_USE data_make(struct bench *, struct diag *);
void data_free(struct bench *);
/* At least what this kernel needs. */
int MUST_USE workspace_make(struct bench *, const fagen_kernel *, struct diag *, int *status);
fagen_args args_make(const struct bench *, int set, enum pass);

/* ---- bench_time.c ---- */

/* fagen_forward or fagen_backward. */
typedef int launch_call(const fagen_kernel *, const fagen_args *, fagen_stream, fagen_error *);
launch_call *launch_of(enum pass);
/* Median of single launches in microseconds, measured for `seconds`, at least seven launches. */
int MUST_USE pass_time(double *us, const struct bench *, const fagen_kernel *, enum pass, double seconds, struct diag *,
                       int *status);
/* Appends the error and sets the exit status it stands for. -1. */
int error_give(struct diag *, const fagen_error *, int *status);
void tile_name(char name[32], const struct candidate *);

/* ---- bench_sweep.c ---- */

/* The spec with this tile, and no pass behind this one: what a user would write to ask for it. A backward pass comes with a
 * forward one, always the same, which is compiled once. */
void tile_spec(struct text *yaml, const struct spec *, enum pass, const struct candidate *);
/* Times every legal tile of every pass of the specs. An exit status. */
int sweep_run(struct bench *, char **paths, int count, struct diag *);

/* ---- bench_overhead.c ---- */

/* What a warm start, finding a kernel and launching it cost the CPU. */
int MUST_USE overhead_print(struct bench *, const char *path, struct program *, struct diag *, int *status);

/* ---- bench_summary.c: pure ---- */

struct sweep_row { /* one pass of one problem */
	double us, predicted_us; /* of the planner's choice */
	double best_us;          /* of the fastest tile */
};
struct sweep_summary {
	double ratio_median, ratio_least, ratio_most; /* predicted over measured */
	double error_median;                          /* of |ratio - 1| */
	double regret_median, regret_worst;           /* choice over fastest */
	int worst;                                    /* row of the worst regret; -1: there is no row */
};
void sweep_sum(struct sweep_summary *, const struct sweep_row *, int count);

#endif
