/* fagen env: what was found on this machine and where: driver, GPUs, compiler, folders, variables. Finding nothing is an
 * answer, not a failure. */
#include <dlfcn.h>
#include <getopt.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "runtime/runtime.h"

/* Every variable that fagen reads. */
static const char *const variables[] = {
	"FAGEN_CACHE_DIR", "FAGEN_CACHE_MAX_SIZE", "FAGEN_LOCK_TIMEOUT", "FAGEN_NVRTC",
	"FAGEN_NVRTC_OPTIONS", "FAGEN_TEMPLATES",  "FAGEN_DEVICES",      "XDG_CACHE_HOME",
	"CUDA_HOME",       "CUDA_PATH",            "NV_NVVM_VERSION",    "NVRTC_APPEND_FLAGS",
};
enum { VARIABLE_COUNT = sizeof variables / sizeof *variables, GPUS_MAX = 64 };

struct findings {
	int driver_version; /* 0: none usable */
	char driver_path[1024];
	struct diag driver_error;
	int gpu_count;
	struct gpu gpu[GPUS_MAX];
	int nvrtc_major, nvrtc_minor; /* 0: none usable */
	const char *nvrtc_path;
	struct text nvrtc_identity;
	struct diag nvrtc_error;
	const char *cache_dir, *cache_note, *templates;
	struct store_stats cache;
};

static void find_driver(struct findings *f, struct driver *driver)
{
	if (driver_init(driver, &f->driver_error) != 0)
		return;
	f->driver_version = driver_version(driver);
	void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	struct link_map *map = NULL;
	if (library && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map->l_name)
		snprintf(f->driver_path, sizeof f->driver_path, "%s", map->l_name);
	if (library)
		dlclose(library);
	int count = 0;
	if (driver_device_count(&count, driver, &f->driver_error) != 0)
		return;
	for (int i = 0; i < count && i < GPUS_MAX; i++)
		if (driver_device(&f->gpu[f->gpu_count], driver, i, &f->driver_error) == 0)
			f->gpu_count++;
}

static void find_all(struct findings *f, fagen_runtime *rt)
{
	find_driver(f, runtime_driver(rt));
	struct compiler *compiler = runtime_compiler(rt);
	if (compiler_version(&f->nvrtc_major, &f->nvrtc_minor, compiler, &f->nvrtc_error) != 0)
		f->nvrtc_major = f->nvrtc_minor = 0;
	f->nvrtc_path = compiler_path(compiler);
	struct diag ignored = {0}; /* the same words as above */
	if (compiler_identity(&f->nvrtc_identity, compiler, &ignored) != 0)
		diag_free(&ignored);
	(void)store_stats(&f->cache, runtime_store(rt), false);
	f->cache_dir = store_dir(runtime_store(rt));
	f->cache_note = store_note(runtime_store(rt));
	f->templates = runtime_templates(rt);
}

static void print_indented(const char *text)
{
	for (const char *line = text; *line;) {
		const int len = (int)strcspn(line, "\n");
		printf("             %.*s\n", len, line);
		line += len + (line[len] == '\n');
	}
}

static void print_text(const struct findings *f)
{
	printf("fagen        %s\n", FAGEN_VERSION);
	if (f->driver_version)
		printf("driver       CUDA %d.%d, %s\n", f->driver_version / 1000, f->driver_version % 1000 / 10,
		       f->driver_path);
	else
		printf("driver       none usable\n");
	print_indented(text_str(&f->driver_error.text));
	for (int i = 0; i < f->gpu_count; i++) {
		const struct gpu *gpu = &f->gpu[i];
		const struct target *target = target_for_cc(gpu->cc);
		printf("GPU %-8d %s: compute capability %d.%d, %d SMs, %.1f GiB, %d KiB shared memory a CTA, kernels for %s\n",
		       i, gpu->name, gpu->cc / 10, gpu->cc % 10, gpu->sms, (double)gpu->memory_bytes / (1 << 30),
		       gpu->smem_block / 1024, target ? target->name : "no target of fagen");
	}
	if (f->driver_version && f->gpu_count == 0)
		printf("GPU          none\n");
	if (f->nvrtc_major) {
		printf("NVRTC        %d.%d, %s\n", f->nvrtc_major, f->nvrtc_minor, f->nvrtc_path);
		print_indented(text_str(&f->nvrtc_identity));
	} else {
		printf("NVRTC        none usable\n");
	}
	print_indented(text_str(&f->nvrtc_error.text));
	printf("cache        %s", *f->cache_dir ? f->cache_dir : "memory only");
	if (f->cache.entries)
		printf(" (%llu kernels, %.1f MiB)", (unsigned long long)f->cache.entries,
		       (double)f->cache.bytes / (1 << 20));
	putchar('\n');
	print_indented(f->cache_note);
	printf("templates    %s\n", f->templates ? f->templates : "built in");
	for (int i = 0; i < VARIABLE_COUNT; i++)
		if (getenv(variables[i]))
			printf("variable     %s=%s\n", variables[i], getenv(variables[i]));
}

static void json_field(struct text *out, const char *name, const char *value)
{
	text_json(out, name);
	text_puts(out, ": ");
	text_json(out, value);
}

static void print_json(const struct findings *f)
{
	struct text out = {0};
	text_puts(&out, "{");
	json_field(&out, "fagen", FAGEN_VERSION);
	text_addf(&out, ",\n \"driver\": {\"version\": %d, ", f->driver_version);
	json_field(&out, "path", f->driver_path);
	text_puts(&out, ", ");
	json_field(&out, "error", text_str(&f->driver_error.text));
	text_puts(&out, "},\n \"gpus\": [");
	for (int i = 0; i < f->gpu_count; i++) {
		const struct gpu *gpu = &f->gpu[i];
		const struct target *target = target_for_cc(gpu->cc);
		text_puts(&out, i ? ",\n  {" : "\n  {");
		json_field(&out, "name", gpu->name);
		text_addf(&out, ", \"cc\": %d, \"sms\": %d, \"memory_bytes\": %llu, \"smem_block\": %d, ", gpu->cc,
		          gpu->sms, (unsigned long long)gpu->memory_bytes, gpu->smem_block);
		json_field(&out, "target", target ? target->name : "");
		text_puts(&out, "}");
	}
	text_addf(&out, "],\n \"nvrtc\": {\"major\": %d, \"minor\": %d, ", f->nvrtc_major, f->nvrtc_minor);
	json_field(&out, "path", f->nvrtc_path);
	text_puts(&out, ", ");
	json_field(&out, "identity", text_str(&f->nvrtc_identity));
	text_puts(&out, ", ");
	json_field(&out, "error", text_str(&f->nvrtc_error.text));
	text_puts(&out, "},\n \"cache\": {");
	json_field(&out, "path", f->cache_dir);
	text_puts(&out, ", ");
	json_field(&out, "note", f->cache_note);
	text_addf(&out, ", \"entries\": %llu, \"bytes\": %llu},\n ", (unsigned long long)f->cache.entries,
	          (unsigned long long)f->cache.bytes);
	json_field(&out, "templates", f->templates ? f->templates : "");
	text_puts(&out, ",\n \"variables\": {");
	for (int i = 0, first = 1; i < VARIABLE_COUNT; i++)
		if (getenv(variables[i])) {
			text_puts(&out, first ? "" : ", ");
			json_field(&out, variables[i], getenv(variables[i]));
			first = 0;
		}
	text_puts(&out, "}}\n");
	fputs(text_str(&out), stdout);
	text_free(&out);
}

int cmd_env(int argc, char **argv)
{
	static const struct option longs[] = {{"json", no_argument, NULL, 'J'}, {"help", no_argument, NULL, 'h'}, {0}};
	bool json = false;
	int c;
	while ((c = getopt_long(argc, argv, "h", longs, NULL)) == 'J')
		json = true;
	if (c != -1 || optind < argc) {
		fputs("usage: fagen env [--json]\n"
		      "What was found on this machine and where: driver, GPUs, NVRTC, cache, templates, variables.\n",
		      c == 'h' ? stdout : stderr);
		return c == 'h' ? 0 : EXIT_USAGE;
	}
	fagen_runtime *rt = NULL;
	fagen_error error = {.struct_size = sizeof error};
	if (fagen_open(&rt, NULL, &error) != FAGEN_OK) {
		fprintf(stderr, "fagen: error: %s\n", error.message);
		return EXIT_MACHINE;
	}
	struct findings *f = calloc(1, sizeof *f);
	if (f) {
		find_all(f, rt);
		json ? print_json(f) : print_text(f);
		diag_free(&f->driver_error);
		diag_free(&f->nvrtc_error);
		text_free(&f->nvrtc_identity);
		free(f);
	}
	fagen_close(rt);
	return f ? 0 : EXIT_MACHINE;
}
