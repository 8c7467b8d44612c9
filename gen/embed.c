/* embed: one blob in read-only data, a sequence of {path, NUL, 64-bit length, bytes, NUL}, ended by an empty path. It
 * holds no address, so a shared library needs no relocation for it. The build writes the list of files, gen/embed.def,
 * one EMBED(templates/...) a line. */
#include "gen/embed.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define EMBED(path) ".asciz \"" #path "\"\n.quad 2f - 1f\n1: .incbin \"" #path "\"\n2: .byte 0\n"
__asm__(".pushsection .rodata\n"
        ".globl fagen_templates\n"
        ".hidden fagen_templates\n"
        "fagen_templates:\n"
#include "gen/embed.def"
        ".byte 0\n"
        ".popsection\n");
#undef EMBED

extern const char fagen_templates[] __attribute__((visibility("hidden")));

static const char folder[] = "templates/";

const char *embed_find(size_t *len, const char *name)
{
	const char *entry = fagen_templates;
	while (*entry) {
		const char *bytes = entry + strlen(entry) + 1 + sizeof(uint64_t);
		uint64_t size;
		memcpy(&size, bytes - sizeof size, sizeof size);
		if (strcmp(entry + sizeof folder - 1, name) == 0) {
			*len = (size_t)size;
			return bytes;
		}
		entry = bytes + size + 1;
	}
	return NULL;
}

static int file_read(struct text *out, const char *name, const char *dir, struct diag *diag)
{
	struct text path = {0};
	text_addf(&path, "%s/%s", dir, name);
	FILE *file = fopen(text_str(&path), "rb");
	if (!file) {
		diag_fail(diag, "cannot read the template %s: %s", text_str(&path), strerror(errno));
		text_free(&path);
		return -1;
	}
	const size_t before = out->len;
	char buffer[4096];
	size_t n;
	while ((n = fread(buffer, 1, sizeof buffer, file)) > 0)
		text_add(out, buffer, n);
	int rc = 0;
	if (ferror(file))
		rc = diag_fail(diag, "cannot read the template %s: it is a folder or the disk failed", text_str(&path));
	else if (out->len == before || memchr(out->data + before, 0, out->len - before))
		rc = diag_fail(diag, "the template %s is empty or holds a zero byte: it must be CUDA source text",
		               text_str(&path));
	fclose(file);
	text_free(&path);
	return rc;
}

int embed_read(struct text *out, const char *name, const char *dir, struct diag *diag)
{
	size_t len;
	if (dir)
		return file_read(out, name, dir, diag);
	const char *bytes = embed_find(&len, name);
	if (!bytes)
		return diag_fail(diag, "there is no template %s%s in this build", folder, name);
	text_add(out, bytes, len);
	return 0;
}
