/* fagen pack build: specs to a pack. No GPU is needed, and nothing of the machine, the time or the order of work gets into the file. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/build.h"
#include "cli/cli.h"
#include "cli/pack.h"
#include "gen/revision.h"
#include "runtime/cubin_meta.h"
#include "runtime/nvrtc.h"

struct options {
	bool targets[TARGET_COUNT], some_targets;
	const char *output, *licence;
	int jobs;
	bool sources;
};

struct spec_text { struct text written, canonical; }; /* one for each spec */

static int targets_read(struct options *opt, const char *text)
{
	while (*text) {
		const size_t len = strcspn(text, ",");
		int found = -1;
		for (int i = 0; i < TARGET_COUNT; i++)
			if (strlen(target_table[i].name) == len && !memcmp(target_table[i].name, text, len))
				found = i;
		if (found < 0) {
			fprintf(stderr, "fagen: error: --targets: no target '%.*s'; want some of", (int)len, text);
			for (int i = 0; i < TARGET_COUNT; i++)
				fprintf(stderr, " %s", target_table[i].name);
			fputs(", with commas between\n", stderr);
			return -1;
		}
		opt->targets[found] = opt->some_targets = true;
		text += len + (text[len] == ',');
	}
	return opt->some_targets ? 0 : (fputs("fagen: error: --targets names none\n", stderr), -1);
}

/* Loads all, complains about all; names must differ, for kernels are found by them. */
static int specs_load(struct request *request, struct spec_text *text, char **paths, int count)
{
	int bad = 0;
	for (int i = 0; i < count; i++) {
		struct diag diag = {0};
		request[i].path = paths[i];
		const int failed = request_load(&request[i], &diag);
		fputs(text_str(&diag.text), stderr);
		text_add(&text[i].written, text_str(&diag.source), diag.source.len);
		diag_free(&diag);
		bad += failed != 0;
		if (failed)
			continue;
		spec_print(&text[i].canonical, &request[i].spec);
		for (int j = 0; j < i; j++)
			if (!strcmp(request[j].spec.name, request[i].spec.name)) {
				fprintf(stderr, "fagen: error: %s and %s are both called %s: a pack finds kernels by name\n", paths[j], paths[i],
				        request[i].spec.name);
				bad++;
			}
	}
	return bad ? -1 : 0;
}

static struct build *builds_make(int *count, const struct request *request, int requests, const struct options *opt)
{
	struct build *build = calloc((unsigned)requests * TARGET_COUNT * PASS_COUNT, sizeof *build);
	*count = 0;
	for (int i = 0; build && i < requests; i++)
		for (int t = 0; t < TARGET_COUNT; t++)
			for (int pass = 0; pass < PASS_COUNT; pass++)
				if ((opt->some_targets ? opt->targets : request[i].spec.targets)[t] && request[i].spec.passes[pass])
					build[(*count)++] = (struct build){
						.input = &request[i], .target = &target_table[t], .pass = (enum pass)pass};
	return build;
}

/* ---- one kernel ---- */

static void about_print(struct text *out, const struct build *b, const struct options *opt, const char *described,
                        const struct compiler *compiler)
{
	struct nvrtc_options options;
	struct text problem = {0};
	problem_print(&problem, &b->plan.problem);
	nvrtc_options_make(&options, compiler, b->target);
	text_addf(out, "fagen: %s\ncompiler: %s\noptions:", FAGEN_VERSION, described);
	for (int i = 0; i < options.count; i++)
		text_addf(out, " %s", options.option[i]);
	text_addf(out, "\nplanned for: %s on %s\nlicence: %s\n", text_str(&problem), b->plan.device->name,
	          opt->licence ? opt->licence : "not stated");
	text_free(&problem);
}

/* The entry as the store has it, but without what differs from one compilation to the next, and with the signature. */
static uint8_t *entry_make(size_t *len, struct build *b, fagen_runtime *rt)
{
	struct store_key key;
	struct signature signature;
	struct text meta = {0};
	struct cubin bare = b->cubin;
	if (cubin_key(&key, NULL, runtime_compiler(rt), &b->source, b->target, &b->diag))
		return NULL;
	bare.report = NULL;
	bare.compile_ms = 0;
	signature_make(&signature, &b->input->spec);
	cubin_meta_print(&meta, &bare, &signature, b->target);
	const struct store_entry entry = {
		.meta = meta.data, .meta_len = meta.len, .cubin = b->cubin.code, .cubin_len = b->cubin.code_len};
	uint8_t *bytes = entry_encode(len, &key, &entry);
	text_free(&meta);
	return bytes;
}

static int item_make(struct pack_item *item, struct text *about, struct build *b, const struct spec_text *spec,
                     const struct options *opt, const char *described, fagen_runtime *rt)
{
	const struct candidate *c = &b->plan.candidate[b->plan.chosen];
	size_t len;
	if (!template_revision(b->plan.templ))
		return diag_fail(&b->diag, "Template %s has no revision in gen/revision.c.", b->plan.templ);
	const uint8_t *entry = entry_make(&len, b, rt);
	if (!entry)
		return -1;
	about_print(about, b, opt, described, runtime_compiler(rt));
	*item = (struct pack_item){
		.name = b->input->spec.name,
		.target = b->target->name,
		.templ = b->plan.templ,
		.revision = (unsigned)template_revision(b->plan.templ),
		.pass = b->pass,
		.tile_m = (unsigned)c->tile_m,
		.tile_n = (unsigned)c->tile_n,
		.entry = entry,
		.entry_len = len,
		.text = {[PACK_SPEC] = {text_str(&spec->written), spec->written.len},
	                 [PACK_CANONICAL] = {text_str(&spec->canonical), spec->canonical.len},
	                 [PACK_ABOUT] = {text_str(about), about->len},
	                 [PACK_SOURCE] = {opt->sources ? text_str(&b->source) : "", opt->sources ? b->source.len : 0}},
	};
	return 0;
}

/* ---- all of them ---- */

/* "NVRTC 13.0, libnvrtc <build id> builtins <build id>" */
static int compiler_print(struct text *out, struct compiler *compiler, struct diag *diag)
{
	int major, minor;
	if (compiler_version(&major, &minor, compiler, diag))
		return -1;
	text_addf(out, "NVRTC %d.%d, ", major, minor);
	return compiler_identity(out, compiler, diag);
}

/* Says each fault once. */
static int builds_judge(const struct build *build, int count)
{
	int status = 0;
	for (int i = 0; i < count; i++) {
		bool repeated = false;
		if (build[i].failed)
			status = build[i].source.len == 0 ? EXIT_REQUEST : status == 0 ? EXIT_MACHINE : status;
		for (int j = 0; j < i && !repeated; j++)
			repeated = !strcmp(text_str(&build[i].diag.text), text_str(&build[j].diag.text));
		if (!repeated)
			fputs(text_str(&build[i].diag.text), stderr);
	}
	return status;
}

static int pack_make(struct build *build, int count, const struct request *request, const struct spec_text *text,
                     const struct options *opt, fagen_runtime *rt)
{
	struct pack_item *item = calloc((unsigned)count, sizeof *item);
	struct text *about = calloc((unsigned)count, sizeof *about), compiler = {0};
	struct diag diag = {0};
	int status = EXIT_MACHINE;
	if (!item || !about || compiler_print(&compiler, runtime_compiler(rt), &diag))
		goto out;
	for (int i = 0; i < count; i++)
		build[i].failed = item_make(&item[i], &about[i], &build[i], &text[build[i].input - request], opt,
		                            text_str(&compiler), rt) != 0;
	status = builds_judge(build, count);
	if (!status)
		status = pack_items_write(opt->output, item, (size_t)count);
out:
	fputs(text_str(&diag.text), stderr);
	diag_free(&diag);
	text_free(&compiler);
	for (int i = 0; i < count; i++) {
		if (item)
			free((void *)item[i].entry);
		if (about)
			text_free(&about[i]);
	}
	free(item);
	free(about);
	return status;
}

static int run(const struct options *opt, char **paths, int count)
{
	struct request *request = calloc((unsigned)count, sizeof *request);
	struct spec_text *text = calloc((unsigned)count, sizeof *text);
	struct build *build = NULL;
	fagen_runtime *rt = NULL;
	fagen_error error = {.struct_size = sizeof error};
	int status = EXIT_MACHINE, builds = 0;
	if (!request || !text)
		fputs("fagen: error: out of memory\n", stderr);
	else if (specs_load(request, text, paths, count))
		status = EXIT_REQUEST;
	else if (fagen_open(&rt, NULL, &error))
		fprintf(stderr, "fagen: error: %s\n", error.message);
	else if (!(build = builds_make(&builds, request, count, opt)))
		fputs("fagen: error: out of memory\n", stderr);
	else {
		builds_run(build, builds, rt, opt->jobs, isatty(2));
		status = builds_judge(build, builds);
		if (!status)
			status = pack_make(build, builds, request, text, opt, rt);
	}
	builds_free(build, builds);
	for (int i = 0; text && i < count; i++) {
		text_free(&text[i].written);
		text_free(&text[i].canonical);
	}
	free(text);
	free(request);
	fagen_close(rt);
	return status;
}

int pack_build_run(int argc, char **argv)
{
	enum { OPT_TARGETS = 256, OPT_LICENCE, OPT_SOURCES };
	static const struct option longs[] = {{"targets", required_argument, NULL, OPT_TARGETS},
	                                      {"licence", required_argument, NULL, OPT_LICENCE},
	                                      {"sources", no_argument, NULL, OPT_SOURCES},
	                                      {0}};
	struct options opt = {.jobs = (int)sysconf(_SC_NPROCESSORS_ONLN)};
	for (int c; (c = getopt_long(argc, argv, "o:j:", longs, NULL)) != -1;)
		switch (c) {
		case OPT_TARGETS:
			if (targets_read(&opt, optarg))
				return EXIT_USAGE;
			break;
		case OPT_LICENCE:
			if (strpbrk(optarg, "\r\n")) {
				fputs("fagen: error: --licence takes one line\n", stderr);
				return EXIT_USAGE;
			}
			opt.licence = optarg;
			break;
		case OPT_SOURCES: opt.sources = true; break;
		case 'o': opt.output = optarg; break;
		case 'j':
			if ((opt.jobs = jobs_read(optarg)) < 0)
				return EXIT_USAGE;
			break;
		default: fputs("fagen pack -h has the options\n", stderr); return EXIT_USAGE;
		}
	if (optind == argc || !opt.output) {
		fprintf(stderr, "fagen: error: fagen pack build takes %s\n", opt.output ? "one or more specs" : "-o FILE");
		return EXIT_USAGE;
	}
	return run(&opt, argv + optind, argc - optind);
}
