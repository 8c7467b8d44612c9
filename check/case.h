/* case: one thing to check, with one spelling: "causal_d64:b2,h16/4,q4096,k4096,gauss,bhsd,seed7". After the spec come
 * parts in any order; what is not written is the default. Printed when a check fails, accepted by `fagen check`. */
#ifndef FAGEN_CHECK_CASE_H
#define FAGEN_CHECK_CASE_H

#include <stdint.h>

#include "check/check.h"
#include "check/layout.h"
#include "runtime/fagen.h"
#include "runtime/runtime.h"

enum { CASE_NAME_MAX = 512, CASE_TEXT_MAX = 768, CASE_LENGTHS_MAX = 16 };

struct check_case {
	char spec[CASE_NAME_MAX];  /* a file, the name of one in specs/, or the spec itself: "{head_dim: 64, mask: causal}" */
	int64_t batch, heads_q, heads_kv, seqlen_q, seqlen_k;
	enum input_kind input;
	enum layout_kind layout;
	uint64_t seed;
	int lengths[2];            /* lengths of entries that are written out, of queries and keys; 0: by the seed */
	int64_t length[2][CASE_LENGTHS_MAX];
	bool whole;                /* all entries have all positions */
	bool shifted;              /* every tensor begins one element late, whatever its strides: aligned to its elements */
	bool planned;              /* the kernel is planned for exactly these shapes, not for what the spec assumes */
};

/* Shapes that suit the spec: small, not a multiple of any tile. */
void case_default(struct check_case *, const char *spec_name, const struct spec *);
/* Parts of a case ("b2,h16/4" or "spec:b2,h16/4") over what the case already says. */
int case_parse(struct check_case *, const char *text, struct diag *);
void case_print(char to[CASE_TEXT_MAX], const struct check_case *);
/* Smallest alignment of its pointers and strides: 16 or 2. */
int case_align(const struct check_case *);
/* Where the parts begin in a case that starts with its spec; NULL when the text is a spec alone. */
const char *case_parts(const char *text);

/* ---- program.c: what a spec means, for the reference --------------------------------------------------------------- */

int ref_program_make(struct ref_program **, const struct spec *, struct diag *);
void ref_program_free(struct ref_program *);

/* ---- run_case.c ----------------------------------------------------------------------------------------------------- */

enum check_status {
	CHECK_PASSED,
	CHECK_WRONG,    /* a result is not what it should be */
	CHECK_REFUSED,  /* the spec or the request is wrong */
	CHECK_MACHINE,  /* no driver, GPU, compiler or memory */
};

struct trial;
struct check_options {
	int device;
	bool no_poison;       /* leave outputs and workspace as allocated, for tools that look for uninitialised reads */
	bool naive;           /* check the naive kernels themselves */
	bool poison_shared;   /* fill shared memory with NaN first */
	double cpu_budget;    /* multiply-adds of the reference; 0: 4e9. Beyond it a sample of heads is checked, and above 20
	                         times it only the naive GPU kernels judge */
	/* Takes the results instead of their being judged: 0, or -1 with the outcome filled in. NULL: they are judged. */
	int (*take)(struct trial *, void *context);
	void *take_context;
};

struct check_tensor { char name[INPUT_NAME_MAX + 1]; double worst, bound; }; /* the gradient of input bias is "dbias" */

struct check_outcome {
	enum check_status status;
	char text[2304];             /* what is wrong, "" when passed */
	int tensor_count;
	struct check_tensor tensor[TENSOR_COUNT + SPEC_INPUTS_MAX];
	bool backward, sampled, by_naive;
	fagen_kernel *kernel;        /* that was run; NULL: it did not come to that */
};

/* Loads what a case calls its spec. Returns FAGEN_OK or what fagen_spec_load does. */
int check_spec(fagen_spec **, fagen_runtime *, const char *name, fagen_error *);
/* A case as the reference takes it, without the values of inputs. */
void case_reference(struct ref_case *, const struct check_case *, const struct spec *, const struct ref_program *);
/* Runs forward twice and backward once (twice where inputs have gradients), with NaN everywhere that is not an input, and
 * judges the results. */
void check_run(struct check_outcome *, const struct check_case *, fagen_runtime *, const fagen_spec *, const struct check_options *);

#endif
