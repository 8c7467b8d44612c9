#include "runtime/kernel.h"

#include <stdlib.h>
#include <string.h>

/* Copies a string that may be NULL. false: out of memory. */
static bool copy_string(char **to, const char *from)
{
	*to = from ? strdup(from) : NULL;
	return !from || *to;
}

static void runtime_free(fagen_runtime *rt)
{
	runtime_end(rt);
	while (rt->specs) {
		struct fagen_spec *s = rt->specs;
		rt->specs = s->next;
		free(s->name);
		free(s);
	}
	if (rt->compiler)
		compiler_close(rt->compiler);
	if (rt->store)
		store_close(rt->store);
	wisdom_free(&rt->wisdom);
	free(rt->templates_dir);
	free(rt);
}

/* What is of libfagen alone. A fault leaves parts, which runtime_free takes. */
static int compiling_begin(fagen_runtime *rt, const fagen_config *config, struct fault *f)
{
	const char *templates = config->templates_dir;
	if (!templates && !config->ignore_env)
		templates = getenv("FAGEN_TEMPLATES");
	if (templates && !*templates)
		templates = NULL;
	const struct store_config store = {.dir = config->cache_dir, .ignore_env = config->ignore_env != 0};
	if (!copy_string(&rt->templates_dir, templates) || !(rt->store = store_open(&store)) ||
	    !(rt->compiler = compiler_open(config->nvrtc_path, config->ignore_env != 0)))
		return fault_fail(f, FAGEN_ERROR_MEMORY, NULL, "Out of memory.");
	if (device_list_load(&rt->rows, config->ignore_env ? NULL : getenv("FAGEN_DEVICES"), f->diag))
		return fault_fail(f, FAGEN_ERROR_INVALID, "FAGEN_DEVICES",
		                  "FAGEN_DEVICES must name a file of device rows, as `fagen calibrate` writes it.");
	if (config->wisdom_path && *config->wisdom_path) {
		if (wisdom_load(&rt->wisdom, config->wisdom_path, f->diag))
			return fault_fail(f, FAGEN_ERROR_INVALID, "wisdom_path",
			                  "config.wisdom_path must name a file of measured tiles, as `fagen tune` writes it.");
		rt->has_wisdom = true;
	}
	return 0;
}

int fagen_open(fagen_runtime **out, const fagen_config *given, fagen_error *error)
{
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	fagen_config config;
	fagen_runtime *rt;
	fault_clear(error);
	if (runtime_begin(&rt, &config, given, &f))
		return fault_report(error, &f);
	if (compiling_begin(rt, &config, &f)) {
		runtime_free(rt);
		return fault_report(error, &f);
	}
	diag_free(&diag);
	*out = rt;
	return FAGEN_OK;
}

void fagen_close(fagen_runtime *rt)
{
	if (rt)
		runtime_free(rt);
}

/* Parses text, or a file when there is none, lowers it and keeps both in the runtime. */
static int spec_keep(fagen_spec **out, fagen_runtime *rt, const char *yaml, size_t len, const char *name,
                     struct fault *f)
{
	struct fagen_spec *s = calloc(1, sizeof *s);
	if (!s || !copy_string(&s->name, name)) {
		free(s);
		return fault_fail(f, FAGEN_ERROR_MEMORY, NULL, "Out of memory.");
	}
	if ((yaml ? spec_parse(&s->spec, yaml, len, s->name, f->diag) : spec_load(&s->spec, s->name, f->diag)) ||
	    program_lower(&s->program, &s->spec, f->diag)) {
		fault_stage(f, FAGEN_ERROR_SPEC);
		free(s->name);
		free(s);
		return -1;
	}
	pthread_mutex_lock(&rt->mutex);
	s->next = rt->specs;
	rt->specs = s;
	pthread_mutex_unlock(&rt->mutex);
	*out = s;
	return 0;
}

static int spec_call(fagen_spec **out, fagen_runtime *rt, const char *yaml, size_t len, const char *name,
                     fagen_error *error)
{
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	fault_clear(error);
	if (spec_keep(out, rt, yaml, len, name, &f))
		return fault_report(error, &f);
	diag_free(&diag); /* warnings */
	return FAGEN_OK;
}

int fagen_spec_load(fagen_spec **out, fagen_runtime *rt, const char *path, fagen_error *error)
{
	return spec_call(out, rt, NULL, 0, path, error);
}

int fagen_spec_parse(fagen_spec **out, fagen_runtime *rt, const char *yaml, size_t len, const char *name,
                     fagen_error *error)
{
	return spec_call(out, rt, yaml ? yaml : "", yaml ? len : 0, name ? name : "spec", error);
}

struct store *runtime_store(fagen_runtime *rt) { return rt->store; }
struct compiler *runtime_compiler(fagen_runtime *rt) { return rt->compiler; }
struct driver *runtime_driver(fagen_runtime *rt) { return rt->driver; }
const char *runtime_templates(const fagen_runtime *rt) { return rt->templates_dir; }
const struct device_list *runtime_devices(const fagen_runtime *rt) { return &rt->rows; }
const struct wisdom *runtime_wisdom(const fagen_runtime *rt) { return rt->has_wisdom ? &rt->wisdom : NULL; }
const struct spec *runtime_spec(const fagen_spec *s) { return &s->spec; }
const struct plan *runtime_plan(const fagen_kernel *k, enum pass pass) { return k->pass[pass].plan; }
