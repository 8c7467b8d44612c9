/* The digest of a record: the emitted source of every spec, target and pass, and the code that launches them. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/store.h"
#include "tests/gpu/suite.h"

enum { FILES_MAX = 128 };

static int name_order(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int file_add(struct key_builder *k, const char *path, struct diag *diag)
{
	FILE *f = fopen(path, "rb");
	if (!f)
		return diag_fail(diag, "%s cannot be read; run this in the root of the repository.", path);
	struct text t = {0};
	char block[16384];
	for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;)
		text_add(&t, block, n);
	fclose(f);
	key_record(k, 1, path, strlen(path));
	key_record(k, 2, text_str(&t), t.len);
	text_free(&t);
	return 0;
}

/* Files of a folder that end in one of the suffixes, in order of their names. */
static int folder_add(struct key_builder *k, const char *folder, const char *const *suffixes, struct diag *diag)
{
	DIR *dir = opendir(folder);
	char *name[FILES_MAX];
	int count = 0, rc = 0;
	if (!dir)
		return diag_fail(diag, "There is no folder %s; run this in the root of the repository.", folder);
	for (struct dirent *e; (e = readdir(dir));)
		for (const char *const *s = suffixes; *s; s++) {
			const size_t len = strlen(e->d_name), end = strlen(*s);
			if (len > end && !strcmp(e->d_name + len - end, *s) && e->d_name[0] != '.' &&
			    count < FILES_MAX) {
				name[count] = malloc(strlen(folder) + len + 2);
				if (!name[count])
					abort();
				sprintf(name[count++], "%s/%s", folder, e->d_name);
			}
		}
	closedir(dir);
	qsort(name, (size_t)count, sizeof *name, name_order);
	for (int i = 0; i < count; i++) {
		if (!rc)
			rc = file_add(k, name[i], diag);
		free(name[i]);
	}
	return rc;
}

static int spec_add(struct key_builder *k, const char *path, struct diag *diag)
{
	struct spec *spec = malloc(sizeof *spec);
	struct program *program = malloc(sizeof *program);
	struct plan *plan = malloc(sizeof *plan);
	int rc = -1;
	if (!spec || !program || !plan)
		abort();
	if (spec_load(spec, path, diag) || program_lower(program, spec, diag))
		goto out;
	for (int t = 0; t < TARGET_COUNT; t++)
		for (int p = 0; p < PASS_COUNT; p++) {
			const struct target *target = &target_table[t];
			struct text source = {0};
			if (!spec->targets[t] || !spec->passes[p])
				continue;
			if (plan_make(plan, spec, program, target, device_for_target(target), &spec->assume,
			              (enum pass)p, diag) ||
			    source_emit(&source, spec, program, plan, NULL, diag)) {
				text_free(&source);
				goto out;
			}
			key_record(k, 3, target->name, strlen(target->name));
			key_record(k, 4, source.data, source.len);
			text_free(&source);
		}
	rc = 0;
out:
	free(spec);
	free(program);
	free(plan);
	return rc;
}

int digest_make(char hex[65], const char *const *specs, int count, struct diag *diag)
{
	static const char *const code[] = {".c", NULL}, *const device_code[] = {".h", ".cu", NULL};
	static const char *const folders[] = {"templates", "templates/naive", "templates/sm80", "templates/sm90"};
	struct key_builder *k = key_begin();
	struct store_key key;
	int rc = folder_add(k, "runtime", code, diag);
	for (size_t i = 0; i < sizeof folders / sizeof *folders && !rc; i++)
		rc = folder_add(k, folders[i], device_code, diag);
	for (int i = 0; i < count && !rc; i++) {
		char path[CASE_NAME_MAX + 16];
		snprintf(path, sizeof path, "specs/%s.yaml", specs[i]);
		key_record(k, 5, path, strlen(path));
		rc = spec_add(k, path, diag);
	}
	key_finish(&key, k);
	key_hex(hex, &key);
	return rc;
}
