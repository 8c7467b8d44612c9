#include "gen/text_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int text_file_load(struct text *text, const char *path, size_t most, struct diag *diag)
{
	char piece[4096];
	size_t n;
	FILE *file = fopen(path, "rb");
	if (!file)
		return diag_fail(diag, "cannot open %s: %s", path, strerror(errno));
	while (text->len <= most && (n = fread(piece, 1, sizeof piece, file)) > 0)
		text_add(text, piece, n);
	const int fault = ferror(file) ? errno : 0;
	fclose(file);
	return fault ? diag_fail(diag, "cannot read %s: %s", path, strerror(fault)) : 0;
}
