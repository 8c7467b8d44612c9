#include "cli/build.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { JOBS_MAX = 64 };

int request_load(struct request *in, struct diag *diag)
{
	return spec_load(&in->spec, in->path, diag) || program_lower(&in->program, &in->spec, diag) ? -1 : 0;
}

int build_source(struct build *b, fagen_runtime *rt)
{
	const struct spec *spec = &b->input->spec;
	const struct program *program = &b->input->program;
	return plan_tuned(&b->plan, runtime_wisdom(rt), spec, program, b->target,
	                  device_list_for_target(runtime_devices(rt), b->target), &spec->assume, b->pass, &b->diag) ||
	                       source_emit(&b->source, spec, program, &b->plan, runtime_templates(rt), &b->diag)
	               ? -1
	               : 0;
}

int build_cubin(struct build *b, fagen_runtime *rt)
{
	return cubin_get(&b->cubin, runtime_store(rt), runtime_compiler(rt), &b->source, b->target, &b->plan.recipe,
	                 &b->diag);
}

/* ---- many builds at a time ---- */

struct pool {
	struct build *build;
	int count;
	atomic_int next, done;
	fagen_runtime *rt;
	bool progress;
};

/* "[=====>              ] 12/48 causal_d64 sm_80 forward", over the line before it. */
static void progress_show(int done, int count, const struct build *b)
{
	enum { WIDTH = 24 };
	static const char bar[WIDTH + 1] = "========================";
	const int full = (int)((int64_t)done * WIDTH / count);
	fprintf(stderr, "\r\033[K[%.*s%*s] %d/%d %s %s %s", full, bar, WIDTH - full, "", done, count, b->input->spec.name,
	        b->target->name, pass_names[b->pass]);
}

static void *pool_work(void *arg)
{
	struct pool *pool = arg;
	for (int i; (i = atomic_fetch_add(&pool->next, 1)) < pool->count;) {
		struct build *b = &pool->build[i];
		b->failed = build_source(b, pool->rt) || build_cubin(b, pool->rt);
		const int done = atomic_fetch_add(&pool->done, 1) + 1;
		if (pool->progress)
			progress_show(done, pool->count, b);
	}
	return NULL;
}

void builds_run(struct build *build, int count, fagen_runtime *rt, int jobs, bool progress)
{
	struct pool pool = {.build = build, .count = count, .rt = rt, .progress = progress};
	pthread_t thread[JOBS_MAX];
	int started = 0;
	jobs = jobs > JOBS_MAX ? JOBS_MAX : jobs;
	for (; started < jobs - 1 && started < count - 1; started++)
		if (pthread_create(&thread[started], NULL, pool_work, &pool) != 0)
			break;
	pool_work(&pool);
	while (started > 0)
		pthread_join(thread[--started], NULL);
	if (progress)
		fputs("\r\033[K", stderr);
}

void builds_free(struct build *build, int count)
{
	for (int i = 0; i < count; i++) {
		text_free(&build[i].source);
		cubin_free(&build[i].cubin);
		diag_free(&build[i].diag);
	}
	free(build);
}

int jobs_read(const char *text)
{
	char *end;
	const long jobs = strtol(text, &end, 10);
	if (!*end && end != text && jobs >= 1 && jobs <= JOBS_MAX)
		return (int)jobs;
	fprintf(stderr, "fagen: error: -j %s; want a number from 1 to %d\n", text, (int)JOBS_MAX);
	return -1;
}
