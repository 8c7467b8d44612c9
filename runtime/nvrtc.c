/* compiler: NVRTC behind dlopen. Nothing is loaded before the first compilation: loading costs 30 to 100 ms, which a
 * program whose kernels are cached does not pay. */
#include "runtime/nvrtc.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct nvrtc_program *nvrtc_program;
enum { NVRTC_OK = 0, NVRTC_COMPILATION = 6, NVRTC_INVALID_OPTION = 5, NVRTC_BUILTINS = 7 };

struct nvrtc_calls {
	int (*version)(int *major, int *minor);
	const char *(*error_string)(int);
	int (*create)(nvrtc_program *, const char *source, const char *name, int headers, const char *const *header,
	              const char *const *include_name);
	int (*destroy)(nvrtc_program *);
	int (*compile)(nvrtc_program, int options, const char *const *option);
	int (*cubin_size)(nvrtc_program, size_t *);
	int (*cubin)(nvrtc_program, char *);
	int (*ptx_size)(nvrtc_program, size_t *);
	int (*ptx)(nvrtc_program, char *);
	int (*log_size)(nvrtc_program, size_t *);
	int (*log)(nvrtc_program, char *);
	int (*arch_count)(int *); /* may be NULL */
	int (*archs)(int *);      /* may be NULL */
};

/* Options that leave the code alone, so that the key leaves them out. Without the first NVRTC looks for the driver to
 * use its cache; without the second it lifts RLIMIT_STACK of the whole process while it compiles. Older versions refuse
 * them, the later ones first. */
static const char *const quiet[] = {"--no-cache", "-modify-stack-limit=false"};
enum { QUIET_COUNT = sizeof quiet / sizeof *quiet };

enum { COMPILE_STACK = 8 << 20, OLDEST_MAJOR = 12, NVRTC_MORE_MAX = NVRTC_OPTIONS_MAX - 4 };

struct compiler {
	char *asked;
	bool ignore_env;
	char *more_text; /* of $FAGEN_NVRTC_OPTIONS: the words of `more` */
	const char *more[NVRTC_MORE_MAX];
	int more_count;
	pthread_mutex_t mutex; /* of everything below */
	bool searched;
	struct nvrtc_place place;
	struct text identity; /* "" until known */
	void *library;        /* never closed: NVRTC does not survive it */
	int major, minor;
	int quiet_count; /* how many of `quiet` this version takes */
	struct nvrtc_calls calls;
};

/* The last takes all that is left, if there are too many: NVRTC then refuses it. */
static void more_split(struct compiler *compiler)
{
	char *rest = compiler->more_text + strspn(compiler->more_text, " \t");
	while (*rest && compiler->more_count < NVRTC_MORE_MAX) {
		compiler->more[compiler->more_count++] = rest;
		rest += strcspn(rest, " \t");
		const size_t blanks = strspn(rest, " \t");
		if (compiler->more_count < NVRTC_MORE_MAX || !rest[blanks])
			*rest = '\0';
		rest += blanks;
	}
}

struct compiler *compiler_open(const char *path, bool ignore_env)
{
	struct compiler *compiler = calloc(1, sizeof *compiler);
	if (!compiler)
		return NULL;
	const char *more = ignore_env ? NULL : secure_getenv("FAGEN_NVRTC_OPTIONS");
	if ((path && !(compiler->asked = strdup(path))) || (more && !(compiler->more_text = strdup(more)))) {
		free(compiler->asked);
		free(compiler);
		return NULL;
	}
	if (more)
		more_split(compiler);
	compiler->ignore_env = ignore_env;
	pthread_mutex_init(&compiler->mutex, NULL);
	return compiler;
}

void compiler_close(struct compiler *compiler)
{
	if (!compiler)
		return;
	pthread_mutex_destroy(&compiler->mutex);
	text_free(&compiler->place.tried);
	text_free(&compiler->identity);
	free(compiler->asked);
	free(compiler->more_text);
	free(compiler);
}

/* ---- which compiler: no loading; the mutex is held ---- */

static int find_locked(struct compiler *compiler, struct diag *diag)
{
	if (!compiler->searched) {
		nvrtc_find(&compiler->place, compiler->asked, compiler->ignore_env);
		compiler->searched = true;
	}
	if (compiler->place.path[0])
		return 0;
	if (compiler->place.disabled)
		return diag_fail(diag,
		                 "this kernel is not in the cache, and compiling is turned off (nvrtc_path is \"\")");
	return diag_fail(
		diag,
		"NVRTC, NVIDIA's run-time compiler, was not found. Looked for:\n%s"
		"It comes with the CUDA toolkit (12.0 or newer) and with the PyPI package nvidia-cuda-nvrtc; FAGEN_NVRTC "
		"names the library or its folder.",
		text_str(&compiler->place.tried));
}

static int identify_locked(struct compiler *compiler, struct diag *diag)
{
	if (find_locked(compiler, diag) != 0)
		return -1;
	if (compiler->identity.len)
		return 0;
	struct text identity = {0};
	text_puts(&identity, "libnvrtc ");
	int failed = build_id_read(&identity, compiler->place.path);
	const char *at = compiler->place.path;
	for (int i = 0; i < compiler->place.builtins_count && !failed; i++) {
		text_puts(&identity, i ? "," : " builtins ");
		at = compiler->place.builtins[i];
		failed = build_id_read(&identity, at);
	}
	if (failed) {
		const int why = errno;
		text_free(&identity);
		return diag_fail(diag, "%s cannot be read: %s", at, strerror(why));
	}
	compiler->identity = identity;
	return 0;
}

int compiler_identity(struct text *out, struct compiler *compiler, struct diag *diag)
{
	pthread_mutex_lock(&compiler->mutex);
	const int result = identify_locked(compiler, diag);
	if (result == 0)
		text_add(out, compiler->identity.data, compiler->identity.len);
	pthread_mutex_unlock(&compiler->mutex);
	return result;
}

const char *compiler_path(struct compiler *compiler)
{
	struct diag ignored = {0};
	pthread_mutex_lock(&compiler->mutex);
	(void)find_locked(compiler, &ignored);
	pthread_mutex_unlock(&compiler->mutex);
	diag_free(&ignored);
	return compiler->place.path;
}

/* ---- loading ---- */

static int take_symbol(struct compiler *compiler, void *library, const char *name, void *pointer, struct diag *diag)
{
	void *symbol = dlsym(library, name);
	if (!symbol)
		return diag_fail(diag, "%s is not a usable NVRTC: it lacks %s", compiler->place.path, name);
	memcpy(pointer, &symbol, sizeof symbol); /* ISO C has no conversion from an object to a function pointer */
	return 0;
}

static void load_builtins(const struct compiler *compiler)
{
	char suffix[32];
	const int len = snprintf(suffix, sizeof suffix, ".so.%d.%d", compiler->major, compiler->minor);
	for (int i = 0; i < compiler->place.builtins_count; i++) {
		const char *path = compiler->place.builtins[i];
		if (strlen(path) > (size_t)len && strcmp(path + strlen(path) - (size_t)len, suffix) == 0)
			(void)dlopen(path, RTLD_NOW | RTLD_LOCAL); /* if it fails, the compilation says so */
	}
}

static int load_locked(struct compiler *compiler, struct diag *diag)
{
	if (find_locked(compiler, diag) != 0)
		return -1;
	if (compiler->library)
		return 0;
	void *library = dlopen(compiler->place.path, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return diag_fail(diag, "NVRTC cannot be loaded: %s", dlerror());
	struct nvrtc_calls *calls = &compiler->calls;
	int rc;
	if (take_symbol(compiler, library, "nvrtcVersion", &calls->version, diag) != 0)
		return -1;
	if ((rc = calls->version(&compiler->major, &compiler->minor)) != NVRTC_OK)
		return diag_fail(diag, "%s does not tell its version (nvrtcVersion: %d)", compiler->place.path, rc);
	if (compiler->major < OLDEST_MAJOR)
		return diag_fail(
			diag,
			"NVRTC %d.%d (%s) is too old: CUDA %d.0 or newer is needed. FAGEN_NVRTC names another one.",
			compiler->major, compiler->minor, compiler->place.path, OLDEST_MAJOR);
	const struct {
		const char *name;
		void *pointer;
	} symbols[] = {
		{"nvrtcGetErrorString", &calls->error_string}, {"nvrtcCreateProgram", &calls->create},
		{"nvrtcDestroyProgram", &calls->destroy},      {"nvrtcCompileProgram", &calls->compile},
		{"nvrtcGetCUBINSize", &calls->cubin_size},     {"nvrtcGetCUBIN", &calls->cubin},
		{"nvrtcGetPTXSize", &calls->ptx_size},         {"nvrtcGetPTX", &calls->ptx},
		{"nvrtcGetProgramLogSize", &calls->log_size},  {"nvrtcGetProgramLog", &calls->log},
	};
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
		if (take_symbol(compiler, library, symbols[i].name, symbols[i].pointer, diag) != 0)
			return -1;
	struct diag optional = {0};
	if (take_symbol(compiler, library, "nvrtcGetNumSupportedArchs", &calls->arch_count, &optional) != 0 ||
	    take_symbol(compiler, library, "nvrtcGetSupportedArchs", &calls->archs, &optional) != 0)
		calls->arch_count = calls->archs = NULL;
	diag_free(&optional);
	load_builtins(compiler);
	compiler->quiet_count = QUIET_COUNT;
	compiler->library = library;
	return 0;
}

/* The CUDA version, times ten, that first compiles for a target. */
static int needed_version(const struct target *target)
{
	if (target->name[strlen(target->name) - 1] == 'f')
		return 129;
	return target->cc >= 100 ? 128 : OLDEST_MAJOR * 10;
}

static int load(struct compiler *compiler, const struct target *target, struct diag *diag)
{
	pthread_mutex_lock(&compiler->mutex);
	int result = load_locked(compiler, diag);
	if (result == 0 && target && compiler->major * 10 + compiler->minor < needed_version(target))
		result = diag_fail(
			diag,
			"NVRTC %d.%d (%s) is too old for %s: CUDA %d.%d or newer is needed. FAGEN_NVRTC names "
			"another one.",
			compiler->major, compiler->minor, compiler->place.path, target->name,
			needed_version(target) / 10, needed_version(target) % 10);
	pthread_mutex_unlock(&compiler->mutex);
	return result;
}

int compiler_version(int *major, int *minor, struct compiler *compiler, struct diag *diag)
{
	if (load(compiler, NULL, diag) != 0)
		return -1;
	*major = compiler->major;
	*minor = compiler->minor;
	return 0;
}

/* ---- compiling ---- */

static void more_add(struct nvrtc_options *options, const struct compiler *compiler)
{
	for (int i = 0; i < compiler->more_count; i++)
		options->option[options->count++] = compiler->more[i];
}

void nvrtc_options_make(struct nvrtc_options *options, const struct compiler *compiler, const struct target *target)
{
	*options = (struct nvrtc_options){0};
	snprintf(options->arch, sizeof options->arch, "--gpu-architecture=%s", target->name);
	options->option[options->count++] = options->arch;
	options->option[options->count++] = "--std=c++17";
	options->option[options->count++] = "--ptxas-options=-v";
	options->option[options->count++] = "--ptxas-options=--warn-on-spills";
	more_add(options, compiler);
}

struct job { /* one compilation, handed to a thread of its own */
	struct compiler *compiler;
	const char *source;
	struct nvrtc_options options;
	bool ptx;
	int result;
	const char *step;
	char *code;
	size_t code_len;
	char *log;
	double ms;
};

static double now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static char *take_log(const struct nvrtc_calls *calls, nvrtc_program program)
{
	size_t len = 0;
	if (calls->log_size(program, &len) != NVRTC_OK || len == 0)
		return NULL;
	char *log = malloc(len);
	if (log && calls->log(program, log) != NVRTC_OK) {
		free(log);
		return NULL;
	}
	return log;
}

static void compile_once(struct job *job, int quiet_count)
{
	const struct nvrtc_calls *calls = &job->compiler->calls;
	nvrtc_program program = NULL;
	free(job->log);
	job->log = NULL;
	job->step = "nvrtcCreateProgram";
	job->result = calls->create(&program, job->source, NVRTC_PROGRAM_NAME, 0, NULL, NULL);
	if (job->result != NVRTC_OK)
		return;
	const char *option[NVRTC_OPTIONS_MAX + QUIET_COUNT];
	int count = 0;
	for (; count < job->options.count; count++)
		option[count] = job->options.option[count];
	for (int i = 0; i < quiet_count; i++)
		option[count++] = quiet[i];
	job->step = "nvrtcCompileProgram";
	job->result = calls->compile(program, count, option);
	job->log = take_log(calls, program);
	if (job->result == NVRTC_OK) {
		job->step = job->ptx ? "nvrtcGetPTX" : "nvrtcGetCUBIN";
		job->result = (job->ptx ? calls->ptx_size : calls->cubin_size)(program, &job->code_len);
		if (job->result == NVRTC_OK && job->code_len && (job->code = malloc(job->code_len)))
			job->result = (job->ptx ? calls->ptx : calls->cubin)(program, job->code);
	}
	calls->destroy(&program);
}

static void *compile_thread(void *argument)
{
	struct job *job = argument;
	const double start = now_ms();
	pthread_mutex_lock(&job->compiler->mutex);
	int quiet_count = job->compiler->quiet_count;
	pthread_mutex_unlock(&job->compiler->mutex);
	compile_once(job, quiet_count);
	while (job->result == NVRTC_INVALID_OPTION && quiet_count > 0) {
		compile_once(job, --quiet_count);
		if (job->result != NVRTC_INVALID_OPTION) { /* that was the one: not again */
			pthread_mutex_lock(&job->compiler->mutex);
			job->compiler->quiet_count = quiet_count;
			pthread_mutex_unlock(&job->compiler->mutex);
		}
	}
	job->ms = now_ms() - start;
	return NULL;
}

/* A program's threads may have small stacks; NVRTC's needs are its own. Signals stay with the program's threads. */
static int run_thread(struct job *job, struct diag *diag)
{
	pthread_t thread;
	pthread_attr_t attributes;
	sigset_t all, before;
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, COMPILE_STACK);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	const int rc = pthread_create(&thread, &attributes, compile_thread, job);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	if (rc != 0)
		return diag_fail(diag, "no thread for the compiler: %s", strerror(rc));
	pthread_join(thread, NULL);
	return 0;
}

static int explain(const struct job *job, const struct target *target, struct diag *diag)
{
	const struct compiler *compiler = job->compiler;
	const char *log = job->log ? job->log : "", *path = compiler->place.path;
	int count = 0;
	if (job->result == NVRTC_COMPILATION)
		return diag_fail(diag, "NVRTC %d.%d (%s) refused the source for %s:\n%s", compiler->major,
		                 compiler->minor, path, target->name, log);
	if (job->result == NVRTC_BUILTINS)
		return diag_fail(
			diag, "NVRTC %d.%d (%s) did not find libnvrtc-builtins.so.%d.%d, which must lie beside it.\n%s",
			compiler->major, compiler->minor, path, compiler->major, compiler->minor, log);
	if (job->result == NVRTC_INVALID_OPTION && compiler->more_count)
		return diag_fail(diag, "NVRTC %d.%d (%s) refused an option for %s, perhaps of FAGEN_NVRTC_OPTIONS:\n%s", compiler->major,
		                 compiler->minor, path, target->name, log);
	if (job->result == NVRTC_INVALID_OPTION && compiler->calls.archs &&
	    compiler->calls.arch_count(&count) == NVRTC_OK && count > 0 && count < 256) {
		int list[256];
		struct text known = {0};
		if (compiler->calls.archs(list) == NVRTC_OK)
			for (int i = 0; i < count; i++)
				text_addf(&known, " sm_%d", list[i]);
		diag_fail(
			diag,
			"NVRTC %d.%d (%s) does not compile for %s; it knows%s and their variants. FAGEN_NVRTC names another "
			"one.\n%s",
			compiler->major, compiler->minor, path, target->name, text_str(&known), log);
		text_free(&known);
		return -1;
	}
	if (job->result == NVRTC_OK)
		return diag_fail(diag, "out of memory for the compiled kernel");
	return diag_fail(diag, "NVRTC %d.%d (%s) failed for %s: %s: %s\n%s", compiler->major, compiler->minor, path,
	                 target->name, job->step, compiler->calls.error_string(job->result), log);
}

static int run_job(struct job *job, const struct target *target, struct diag *diag)
{
	if (load(job->compiler, target, diag) != 0 || run_thread(job, diag) != 0)
		return -1;
	if (job->result != NVRTC_OK || !job->code) {
		explain(job, target, diag);
		free(job->code);
		free(job->log);
		return -1;
	}
	if (!job->log)
		job->log = strdup("");
	return 0;
}

int compiler_run(struct cubin *cubin, struct compiler *compiler, const struct text *source, const struct target *target,
                 struct diag *diag)
{
	struct job job = {.compiler = compiler, .source = text_str(source)};
	nvrtc_options_make(&job.options, compiler, target);
	if (run_job(&job, target, diag) != 0) {
		*cubin = (struct cubin){.nvrtc_result = job.result};
		return -1;
	}
	*cubin = (struct cubin){.code = job.code, .code_len = job.code_len, .report = job.log, .compile_ms = job.ms};
	nvrtc_log_parse(cubin, cubin->report ? cubin->report : "");
	return 0;
}

int compiler_ptx(struct text *out, struct compiler *compiler, const struct text *source, const struct target *target,
                 struct diag *diag)
{
	struct job job = {.compiler = compiler, .source = text_str(source), .ptx = true};
	snprintf(job.options.arch, sizeof job.options.arch, "--gpu-architecture=compute_%s",
	         target->name + strlen("sm_"));
	job.options.option[job.options.count++] = job.options.arch;
	job.options.option[job.options.count++] = "--std=c++17";
	more_add(&job.options, compiler);
	if (run_job(&job, target, diag) != 0)
		return -1;
	text_add(out, job.code, strnlen(job.code, job.code_len)); /* NVRTC counts the NUL */
	free(job.code);
	free(job.log);
	return 0;
}
