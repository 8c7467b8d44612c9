#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "gen/text.h"

int file_write(const char *path, const void *bytes, size_t len)
{
	if (!path || strcmp(path, "-") == 0)
		return fwrite(bytes, 1, len, stdout) == len && fflush(stdout) == 0 ? 0 : -1;
	struct text aside = {0};
	text_addf(&aside, "%s.XXXXXX", path);
	const int fd = mkstemp(aside.data);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
	const mode_t mask = umask(0);
	umask(mask);
	bool ok = f && fchmod(fd, 0666 & ~mask) == 0 && fwrite(bytes, 1, len, f) == len; /* mkstemp's file is its owner's alone */
	if (f)
		ok = fclose(f) == 0 && ok;
	ok = ok && rename(aside.data, path) == 0;
	if (!ok) {
		fprintf(stderr, "fagen: cannot write %s: %s\n", path, strerror(errno));
		if (fd >= 0)
			unlink(aside.data);
	}
	text_free(&aside);
	return ok ? 0 : -1;
}
