/* checked: the last lines of what is kept beside a cubin: "check right NVIDIA H200", one for each GPU on which it was checked. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/kernel.h"
#include "runtime/nvrtc.h"

static const char word[] = "check ";

/* Behind "name LENGTH\n" and so many bytes; NULL: that is not what is there. */
static const char *block_skip(const char *at, const char *end, const char *name)
{
	char *behind;
	const size_t len = strlen(name);
	if (strncmp(at, name, len) != 0)
		return NULL;
	const unsigned long long bytes = strtoull(at + len, &behind, 10);
	return *behind == '\n' && bytes <= (unsigned long long)(end - behind - 1) ? behind + 1 + bytes : NULL;
}

/* Behind the compiler's own words, in which anything may stand, and a signature, if there is one. */
const char *cubin_checks(const struct store_entry *entry)
{
	const char *end = entry->meta + entry->meta_len, *at = strstr(entry->meta, "\nrecipe ");
	at = at ? block_skip(at + 1, end, "recipe ") : NULL;
	at = at ? block_skip(at, end, "log ") : NULL;
	const char *behind = at ? block_skip(at, end, "signature ") : NULL;
	return behind ? behind : at ? at : end;
}

/* Does this line, which begins with `word`, speak of the GPU? */
static bool line_is_of(const char *line, size_t len, const char *gpu)
{
	const char *blank = memchr(line + strlen(word), ' ', len > strlen(word) ? len - strlen(word) : 0);
	const size_t name = strlen(gpu);
	return blank && len - (size_t)(blank + 1 - line) == name && memcmp(blank + 1, gpu, name) == 0;
}

void cubin_checked(struct store *store, const struct store_key *key, const char *gpu, bool right)
{
	struct store_entry entry = {0};
	struct text meta = {0}, line = {0};
	const int lock = store_lock(store, key); /* or a check on another GPU may be forgotten: no more */
	if (!store_get(&entry, store, key))
		goto out;
	const char *checks = cubin_checks(&entry), *end = entry.meta + entry.meta_len;
	text_addf(&line, "%s%s %s\n", word, right ? "right" : "wrong", gpu);
	text_add(&meta, entry.meta, (size_t)(checks - entry.meta));
	if (meta.len && meta.data[meta.len - 1] != '\n')
		text_puts(&meta, "\n");
	for (const char *at = checks; at < end;) {
		const char *newline = memchr(at, '\n', (size_t)(end - at));
		const size_t len = newline ? (size_t)(newline - at) : (size_t)(end - at);
		if (len > strlen(word) && strncmp(at, word, strlen(word)) == 0 && !line_is_of(at, len, gpu)) {
			text_add(&meta, at, len);
			text_puts(&meta, "\n");
		}
		at += len + (newline != NULL);
	}
	text_add(&meta, line.data, line.len);
	if (meta.len != entry.meta_len || memcmp(meta.data, entry.meta, meta.len) != 0)
		(void)store_replace(store, key,
		                    &(struct store_entry){.meta = meta.data,
		                                          .meta_len = meta.len,
		                                          .cubin = entry.cubin,
		                                          .cubin_len = entry.cubin_len});
out:
	store_unlock(store, lock);
	store_entry_free(&entry);
	text_free(&meta);
	text_free(&line);
}

void cubin_describe(struct text *out, const struct store_entry *entry)
{
	text_add(out, entry->meta, entry->meta_len);
	if (out->len && out->data[out->len - 1] != '\n')
		text_puts(out, "\n");
	if (cubin_checks(entry)[strspn(cubin_checks(entry), "\n")] == '\0')
		text_puts(out, "not checked on any GPU\n");
}

void runtime_checked(fagen_kernel *k, bool right)
{
	fagen_runtime *rt = k->runtime;
	struct runtime_device *d;
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	pthread_mutex_lock(&rt->mutex);
	const bool known = k->verdict == (right ? 1 : -1);
	k->verdict = right ? 1 : -1;
	pthread_mutex_unlock(&rt->mutex);
	if (!known && !k->pack && device_of(&d, rt, k->ordinal, &f) == 0)
		for (int i = 0; i < PASS_COUNT; i++)
			if (k->pass[i].library)
				cubin_checked(rt->store, &k->pass[i].stored, d->gpu.name, right);
	diag_free(&diag);
}
