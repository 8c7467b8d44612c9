/* Opening the fake driver from a test, before the library under test looks for libcuda.so.1: the loader then finds this
 * one by its SONAME. Each test runs in a process of its own (Check forks), so the choice binds nobody else. */
#ifndef FAGEN_FAKE_USE_H
#define FAGEN_FAKE_USE_H

#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fake_cuda.h"

struct fake {
	struct fake_cuda *state;
	fake_cuda_depth *depth;
	fake_cuda_mode *mode;
	fake_cuda_context *context;
	fake_cuda_stream *stream;
	struct cuda_calls cu;
};

/* The folder of the running test program; "" when it cannot be told. */
static inline void test_folder(char folder[512])
{
	const ssize_t n = readlink("/proc/self/exe", folder, 511);
	folder[n > 0 ? n : 0] = '\0';
	char *slash = strrchr(folder, '/');
	if (slash)
		*slash = '\0';
}

static inline void *fake_library(const char *variant)
{
	char folder[512], path[640];
	test_folder(folder);
	snprintf(path, sizeof path, "%s/%s/libcuda.so.1", folder, variant);
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	ck_assert_msg(library != NULL, "%s", dlerror());
	return library;
}

static inline void fake_symbol(void *to, void *library, const char *name)
{
	void *address = dlsym(library, name);
	memcpy(to, &address, sizeof address);
}

static inline struct fake fake_open(void)
{
	struct fake f = {0};
	void *library = fake_library("fake");
	fake_cuda_state *state;
	fake_symbol(&state, library, "fake_state");
	fake_symbol(&f.depth, library, "fake_depth");
	fake_symbol(&f.mode, library, "fake_mode");
	fake_symbol(&f.context, library, "fake_context");
	fake_symbol(&f.stream, library, "fake_stream");
#define CUDA_CALL(symbol, parameters) fake_symbol(&f.cu.symbol, library, #symbol);
	CUDA_CALLS(CUDA_CALL)
	CUDA_CALLS_OPTIONAL(CUDA_CALL)
#undef CUDA_CALL
	f.state = state();
	return f;
}

/* How often a call was made since number `from`. */
static inline int fake_count(const struct fake *f, enum fake_call call, int from)
{
	int n = 0;
	for (int i = from; i < f->state->calls && i < FAKE_LOG_MAX; i++)
		n += f->state->log[i] == call;
	return n;
}

/* Contexts as before, nothing left loaded, no dead handle used. */
static inline void fake_ck_left(const struct fake *f)
{
	ck_assert_int_eq(f->depth(), 0);
	ck_assert_int_eq(f->state->pushes, f->state->pops);
	ck_assert_int_eq(f->state->libraries, 0);
	ck_assert_int_eq(f->state->retained, 0);
	ck_assert_int_eq(f->state->broken, 0);
}

#endif
