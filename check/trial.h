/* trial: one case being run, between run_case.c, the inputs of its spec and those who judge its results. */
#ifndef FAGEN_CHECK_TRIAL_H
#define FAGEN_CHECK_TRIAL_H

#include "check/gpu.h"
#include "check/lengths.h"
#include "check/named.h"

struct tensor {
	bool used;
	struct layout layout;
	struct gpu_buffer device;
	unsigned char *host; /* image of the whole buffer */
};

/* One input of the spec on the device, and its gradient. */
struct named_device {
	struct gpu_buffer data, grad;
	unsigned char *got; /* image of the gradient's buffer; NULL: not asked for */
};

/* Which heads are compared: all, or some (batch entry, key/value head) pairs that are laid out as batch entries. */
struct sample {
	bool all;
	int64_t pairs;
	int64_t *b, *h_kv, *first_head;
};

struct trial {
	const struct check_case *c;
	const struct check_options *options;
	const struct spec *spec;
	fagen_runtime *rt;
	const fagen_kernel *kernel, *naive;
	struct tensor t[TENSOR_COUNT];
	struct named named[SPEC_INPUTS_MAX];
	struct named_device named_device[SPEC_INPUTS_MAX];
	struct ref_program *program;
	struct ref_input ref_input[SPEC_INPUTS_MAX];
	struct gpu_buffer workspace, rng;
	struct lengths lengths;
	struct gpu_buffer lengths_device[4]; /* used and first of queries, of keys */
	fagen_args args;
	fagen_input inputs[SPEC_INPUTS_MAX];
	bool has_lse, backward, grads; /* of inputs */
	struct ref_case ref; /* of the sample */
	struct sample sample;
	struct check_outcome *out;
	struct diag diag;
};

/* ---- run_case.c ---- */

int trial_fail(struct trial *, enum check_status, const char *text);
int trial_machine(struct trial *);                               /* what its diag says is about the machine */
int trial_called(struct trial *, int code, const fagen_error *); /* 0, or -1 for a call that failed */
bool tensor_is_input(int tensor);
bool tensor_is_float(int tensor);
bool tensor_is_key_side(int tensor);
int tensor_fetch(struct trial *, int tensor);             /* device to host image */
double *tensor_gather(const struct trial *, int tensor);  /* the sampled heads as a dense tensor */

/* ---- trial_inputs.c: the inputs of the spec on the device ---- */

int inputs_make(struct trial *);
void inputs_free(struct trial *);
int inputs_check(struct trial *);                /* unchanged; nothing written between the elements of gradients */
int grads_poison(struct trial *);
int grads_fetch(struct trial *, bool again);     /* again: they must be the bits that were fetched before */
double *grad_gather(const struct trial *, int input); /* as a dense tensor */

/* ---- judge.c ---- */

int judge_cpu(struct trial *);   /* by the reference, for the heads of the sample */
int judge_naive(struct trial *); /* by the naive kernels: coarse, but of every element */

#endif
