/* build: the pipeline from specs to cubins, for every command that makes them. */
#ifndef FAGEN_CLI_BUILD_H
#define FAGEN_CLI_BUILD_H

#include "runtime/runtime.h"

/* One spec, loaded and lowered once for all its targets and passes. */
struct request {
	const char *path;
	struct spec spec;
	struct program program;
};

/* One cubin of the table. */
struct build {
	const struct request *input;
	const struct target *target;
	enum pass pass;
	struct plan plan;
	struct text source;
	struct cubin cubin;
	struct diag diag;
	bool failed;
};

/* The pipeline: spec_load and program_lower once for a spec, the rest for each of its targets and passes. */
int request_load(struct request *, struct diag *);
int build_source(struct build *, fagen_runtime *);
int build_cubin(struct build *, fagen_runtime *);
/* Source and cubin of all of them, `jobs` at a time; progress: on one line of the standard error. */
void builds_run(struct build *, int count, fagen_runtime *, int jobs, bool progress);
void builds_free(struct build *, int count);
/* The value of -j; -1, and a complaint, when it is none. */
int jobs_read(const char *text);

#endif
