/* fagen wisdom: files of measured tiles, checked, merged and exported. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "gen/gen.h"

static void usage(FILE *out)
{
	fputs("usage: fagen wisdom FILE... [options]\n"
	      "Reads files of measured tiles, as fagen tune writes them, and writes all their lines as one file, each key once and in\n"
	      "order: of two lines with one key that of more rounds, then the faster. The order of the files does not matter.\n"
	      "  -o FILE      where to write, one of those read if you like (default: the standard output)\n"
	      "  --gpu NAME   only the lines of this GPU, as they call it\n"
	      "  -h, --help\n",
	      out);
}

/* Removes the lines of other GPUs. -1: there are no others. */
static int gpu_keep(struct wisdom *w, const char *gpu, struct diag *diag)
{
	struct wisdom kept = {0};
	const char *names[64];
	int count = 0;
	for (int i = 0; i < w->count; i++) {
		const char *name = w->entry[i].gpu;
		if (strcmp(name, gpu) == 0 && wisdom_add(&kept, &w->entry[i])) {
			wisdom_free(&kept);
			return diag_fail(diag, "Out of memory.");
		}
		if (count < 64 && (count == 0 || strcmp(names[count - 1], name) != 0)) /* lines are in order of their GPUs */
			names[count++] = name;
	}
	if (kept.count == 0) {
		struct text known = {0};
		for (int i = 0; i < count; i++)
			text_addf(&known, "%s%s", i ? ", " : "", names[i]);
		diag_fail(diag, "No line is of a GPU called '%s'; there are %s.", gpu, count ? text_str(&known) : "no lines at all");
		text_free(&known);
		return -1;
	}
	wisdom_free(w);
	*w = kept;
	return 0;
}

int cmd_wisdom(int argc, char **argv)
{
	static const struct option longs[] = {{"gpu", required_argument, NULL, 'g'}, {"help", no_argument, NULL, 'h'}, {0}};
	const char *path = NULL, *gpu = NULL;
	struct wisdom w = {0};
	struct text out = {0};
	int rc = 0, status = EXIT_SUCCESS;
	optind = 0; /* starts getopt anew, whoever used it before */
	for (int c; (c = getopt_long(argc, argv, "o:h", longs, NULL)) != -1;)
		switch (c) {
		case 'o': path = optarg; break;
		case 'g': gpu = optarg; break;
		case 'h': usage(stdout); return EXIT_SUCCESS;
		default: rc = -1;
		}
	if (!rc && optind == argc) {
		fputs("fagen wisdom: which file? At least one is needed.\n", stderr);
		rc = -1;
	}
	if (rc) {
		fputs("`fagen wisdom --help` lists the options.\n", stderr);
		return EXIT_USAGE;
	}
	for (int i = optind; i < argc; i++) { /* the faults of all files in one go */
		struct diag diag = {0};
		if (wisdom_load(&w, argv[i], &diag))
			status = EXIT_REQUEST;
		fputs(text_str(&diag.text), stderr);
		diag_free(&diag);
	}
	struct diag diag = {0};
	if (!status && gpu && gpu_keep(&w, gpu, &diag))
		status = EXIT_REQUEST;
	fputs(text_str(&diag.text), stderr);
	diag_free(&diag);
	if (!status) {
		wisdom_print(&out, &w);
		status = file_write(path, out.data, out.len) ? EXIT_MACHINE : EXIT_SUCCESS;
	}
	text_free(&out);
	wisdom_free(&w);
	return status;
}
