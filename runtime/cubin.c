/* cubin: from source to machine code through the store, which keeps the text of cubin_meta.c beside the code. */
#include "cache/digest.h"
#include "runtime/cubin_meta.h"
#include "runtime/nvrtc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum key_tag {
	KEY_SCHEMA = 1,
	KEY_SOURCE,
	KEY_PROGRAM,
	KEY_OPTION,
	KEY_TARGET,
	KEY_COMPILER,
	KEY_ENVIRONMENT,
	KEY_KIND
};
static const char *const key_tag_names[] = {"",       "schema",   "source",      "program", "option",
                                            "target", "compiler", "environment", "kind"};
enum { KEY_SCHEMA_VERSION = 1, DIGEST_SHOWN = 8 };

/* Variables of NVRTC's own that change the code it makes. */
static const char *const code_variables[] = {"NV_NVVM_VERSION", "NVRTC_APPEND_FLAGS"};

struct recorder {
	struct key_builder *builder;
	struct text *explain;
};

static void explain_record(struct text *explain, enum key_tag tag, const char *bytes, size_t len)
{
	struct sha256_ctx hash;
	uint8_t digest[32];
	sha256_init(&hash);
	sha256_update(&hash, len, (const uint8_t *)bytes);
	digest_end(digest, &hash);
	text_addf(explain, "%-12s %8zu bytes  ", key_tag_names[tag], len);
	for (int i = 0; i < DIGEST_SHOWN; i++)
		text_addf(explain, "%02x", digest[i]);
	if (tag != KEY_SOURCE)
		text_addf(explain, "  %.*s", (int)len, bytes);
	text_puts(explain, "\n");
}

static void record(struct recorder *recorder, enum key_tag tag, const char *bytes, size_t len)
{
	key_record(recorder->builder, tag, bytes, len);
	if (recorder->explain)
		explain_record(recorder->explain, tag, bytes, len);
}

static void record_string(struct recorder *recorder, enum key_tag tag, const char *string)
{
	record(recorder, tag, string, strlen(string));
}

static void record_source(struct recorder *recorder, const struct text *source)
{
	char schema[16];
	snprintf(schema, sizeof schema, "%d", KEY_SCHEMA_VERSION);
	record_string(recorder, KEY_SCHEMA, schema);
	record(recorder, KEY_SOURCE, text_str(source), source->len);
}

struct key_builder *cubin_key_begin(const struct text *source)
{
	struct recorder recorder = {key_begin(), NULL};
	record_source(&recorder, source);
	return recorder.builder;
}

/* All that follows the source. The builder is consumed. */
static int key_complete(struct store_key *key, struct recorder recorder, struct compiler *compiler,
                        const struct target *target, struct diag *diag)
{
	struct text identity = {0};
	if (compiler_identity(&identity, compiler, diag) != 0) {
		key_drop(recorder.builder);
		return -1;
	}
	record_string(&recorder, KEY_PROGRAM, NVRTC_PROGRAM_NAME);
	struct nvrtc_options options;
	nvrtc_options_make(&options, compiler, target);
	for (int i = 0; i < options.count; i++)
		record_string(&recorder, KEY_OPTION, options.option[i]);
	record_string(&recorder, KEY_TARGET, target->name);
	record(&recorder, KEY_COMPILER, text_str(&identity), identity.len);
	for (size_t i = 0; i < sizeof code_variables / sizeof *code_variables; i++) {
		const char *value = getenv(code_variables[i]); /* as NVRTC reads it: whoever runs this */
		if (value) {
			struct text variable = {0};
			text_addf(&variable, "%s=%s", code_variables[i], value);
			record(&recorder, KEY_ENVIRONMENT, variable.data, variable.len);
			text_free(&variable);
		}
	}
	record_string(&recorder, KEY_KIND, "cubin");
	key_finish(key, recorder.builder);
	text_free(&identity);
	return 0;
}

int cubin_key(struct store_key *key, struct text *explain, struct compiler *compiler, const struct text *source,
              const struct target *target, struct diag *diag)
{
	struct recorder recorder = {key_begin(), explain};
	record_source(&recorder, source);
	return key_complete(key, recorder, compiler, target, diag);
}

/* ---- get ---- */

static int most_smem(const struct recipe *recipe)
{
	int most = 0;
	for (int i = 0; i < recipe->kernel_count; i++)
		if (recipe->kernel[i].smem_bytes > most)
			most = recipe->kernel[i].smem_bytes;
	return most;
}

static bool from_store(struct cubin *cubin, struct store *store, const struct store_key *key,
                       const struct target *target)
{
	struct store_entry entry = {0};
	struct cubin found = {.from_store = true};
	if (!store_get(&entry, store, key))
		return false;
	const bool good = entry.cubin_len > 0 && cubin_meta_parse(&found, NULL, entry.meta, entry.meta_len, target) == 0;
	if (good) {
		found.code = entry.cubin;
		found.code_len = entry.cubin_len;
		entry.cubin = NULL;
		*cubin = found;
	} else {
		cubin_free(&found);
		store_remove(store, key);
	}
	store_entry_free(&entry);
	return good;
}

int cubin_get(struct cubin *cubin, struct store *store, struct compiler *compiler, const struct text *source,
              const struct target *target, const struct recipe *recipe, struct diag *diag)
{
	return cubin_get_begun(cubin, cubin_key_begin(source), store, compiler, source, target, recipe, diag);
}

int cubin_get_begun(struct cubin *cubin, struct key_builder *begun, struct store *store, struct compiler *compiler,
                    const struct text *source, const struct target *target, const struct recipe *recipe,
                    struct diag *diag)
{
	struct store_key key;
	*cubin = (struct cubin){0};
	if (key_complete(&key, (struct recorder){begun, NULL}, compiler, target, diag) != 0)
		return -1;
	bool hit = from_store(cubin, store, &key, target);
	if (!hit) {
		const int lock = store_lock(store, &key);
		hit = lock >= 0 && from_store(cubin, store, &key, target); /* somebody may have made it meanwhile */
		if (!hit) {
			if (compiler_run(cubin, compiler, source, target, diag) != 0) {
				store_unlock(store, lock);
				return -1;
			}
			cubin->recipe = *recipe;
			cubin->smem_bytes = most_smem(recipe);
			struct text meta = {0};
			cubin_meta_print(&meta, cubin, NULL, target);
			const struct store_entry entry = {.meta = meta.data,
			                                  .meta_len = meta.len,
			                                  .cubin = cubin->code,
			                                  .cubin_len = cubin->code_len};
			(void)store_put(store, &key, &entry); /* a kernel that is not kept still runs */
			text_free(&meta);
		}
		store_unlock(store, lock);
	}
	/* The caller's recipe was made for this very source; a stored one may be of a planner that spelled it otherwise. */
	cubin->recipe = *recipe;
	cubin->smem_bytes = most_smem(recipe);
	cubin->key = key;
	return 0;
}
