/* fagen init [FILE]: a commented spec to start from. Never overwrites. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "gen/gen.h"

int cmd_init(int argc, char **argv)
{
	if (argc > 2 || (argc == 2 && argv[1][0] == '-' && argv[1][1])) {
		fputs("usage: fagen init [FILE]    writes a commented spec to FILE, or to the standard output\n",
		      stderr);
		return argc == 2 && (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0) ? 0 : EXIT_USAGE;
	}
	const char *path = argc == 2 && strcmp(argv[1], "-") != 0 ? argv[1] : NULL;
	FILE *f = path ? fopen(path, "wx") : stdout;
	if (!f) {
		fprintf(stderr, "fagen: error: cannot write %s: %s\n", path, strerror(errno));
		return EXIT_REQUEST;
	}
	struct text t = {0};
	spec_starter(&t);
	bool ok = fwrite(text_str(&t), 1, t.len, f) == t.len;
	ok = (path ? fclose(f) : fflush(f)) == 0 && ok;
	if (!ok) {
		fprintf(stderr, "fagen: error: cannot write %s: %s\n", path ? path : "the standard output",
		        strerror(errno));
		if (path)
			remove(path);
	} else if (path) {
		printf("wrote %s; next: fagen %s\n", path, path);
	}
	text_free(&t);
	return ok ? 0 : EXIT_MACHINE;
}
