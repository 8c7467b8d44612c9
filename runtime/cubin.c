/* cubin: from source to machine code through the store. What a cubin is launched with, and what the compiler said of
 * it, is kept beside it as text:
 *
 *   fagen-cubin 1
 *   target sm_90a
 *   registers 168            one line for each number
 *   ...
 *   recipe 412               then so many bytes as recipe_print wrote them
 *   log 1200                 then so many bytes of the compiler's own words */
#include "runtime/nvrtc.h"

#include <sha2.h>
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

static void record(struct recorder *recorder, enum key_tag tag, const char *bytes, size_t len)
{
	key_record(recorder->builder, tag, bytes, len);
	if (!recorder->explain)
		return;
	SHA2_CTX hash;
	uint8_t digest[32];
	SHA256Init(&hash);
	SHA256Update(&hash, (const uint8_t *)bytes, len);
	SHA256Final(digest, &hash);
	text_addf(recorder->explain, "%-12s %8zu bytes  ", key_tag_names[tag], len);
	for (int i = 0; i < DIGEST_SHOWN; i++)
		text_addf(recorder->explain, "%02x", digest[i]);
	if (tag != KEY_SOURCE)
		text_addf(recorder->explain, "  %.*s", (int)len, bytes);
	text_puts(recorder->explain, "\n");
}

static void record_string(struct recorder *recorder, enum key_tag tag, const char *string)
{
	record(recorder, tag, string, strlen(string));
}

int cubin_key(struct store_key *key, struct text *explain, struct compiler *compiler, const struct text *source,
              const struct target *target, struct diag *diag)
{
	struct text identity = {0};
	if (compiler_identity(&identity, compiler, diag) != 0)
		return -1;
	struct recorder recorder = {key_begin(), explain};
	char schema[16];
	snprintf(schema, sizeof schema, "%d", KEY_SCHEMA_VERSION);
	record_string(&recorder, KEY_SCHEMA, schema);
	record(&recorder, KEY_SOURCE, text_str(source), source->len);
	record_string(&recorder, KEY_PROGRAM, NVRTC_PROGRAM_NAME);
	struct nvrtc_options options;
	nvrtc_options_make(&options, target);
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

/* ---- the text kept with a cubin ---- */

static void meta_print(struct text *out, const struct cubin *cubin, const struct target *target)
{
	struct text recipe = {0};
	recipe_print(&recipe, &cubin->recipe);
	const char *log = cubin->report ? cubin->report : "";
	text_addf(out,
	          "fagen-cubin 1\ntarget %s\nregisters %d\nspill %d\nstack %d\nsmem %d\nserialized %d\n"
	          "compile_us %lld\nrecipe %zu\n%slog %zu\n%s",
	          target->name, cubin->registers, cubin->spill_bytes, cubin->stack_bytes, cubin->smem_bytes,
	          cubin->serialized, (long long)(cubin->compile_ms * 1000), recipe.len, text_str(&recipe), strlen(log),
	          log);
	text_free(&recipe);
}

/* Takes "name number\n" at *at. */
static int take_number(int64_t *value, const char **at, const char *name)
{
	const size_t len = strlen(name);
	if (strncmp(*at, name, len) != 0 || (*at)[len] != ' ')
		return -1;
	const char *digit = *at + len + 1;
	*value = 0;
	for (int digits = 0; *digit >= '0' && *digit <= '9'; digit++, digits++) {
		if (digits == 18)
			return -1;
		*value = *value * 10 + (*digit - '0');
	}
	if (*digit != '\n' || digit == *at + len + 1)
		return -1;
	*at = digit + 1;
	return 0;
}

/* As take_number, for what is an int. */
static int take_int(int *value, const char **at, const char *name)
{
	int64_t wide;
	if (take_number(&wide, at, name) != 0 || wide > INT32_MAX)
		return -1;
	*value = (int)wide;
	return 0;
}

/* Takes "name length\n" and so many bytes, as a new string. */
static char *take_block(const char **at, const char *end, const char *name)
{
	int64_t len;
	if (take_number(&len, at, name) != 0 || len > end - *at)
		return NULL;
	char *block = strndup(*at, (size_t)len);
	*at += len;
	return block;
}

static int meta_parse(struct cubin *cubin, const struct store_entry *entry, const struct target *target)
{
	struct text head = {0};
	text_addf(&head, "fagen-cubin 1\ntarget %s\n", target->name);
	const char *at = entry->meta, *end = entry->meta + entry->meta_len;
	int result = strncmp(at, head.data, head.len) == 0 ? 0 : -1;
	at += result == 0 ? head.len : 0;
	text_free(&head);
	int serialized;
	int64_t compile_us;
	if (result != 0 || take_int(&cubin->registers, &at, "registers") != 0 ||
	    take_int(&cubin->spill_bytes, &at, "spill") != 0 || take_int(&cubin->stack_bytes, &at, "stack") != 0 ||
	    take_int(&cubin->smem_bytes, &at, "smem") != 0 || take_int(&serialized, &at, "serialized") != 0 ||
	    take_number(&compile_us, &at, "compile_us") != 0)
		return -1;
	cubin->serialized = serialized != 0;
	struct diag ignored = {0};
	char *recipe = take_block(&at, end, "recipe");
	result = recipe ? recipe_parse(&cubin->recipe, recipe, &ignored) : -1;
	diag_free(&ignored);
	free(recipe);
	if (result == 0 && !(cubin->report = take_block(&at, end, "log")))
		result = -1;
	return result;
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
	const bool good = entry.cubin_len > 0 && meta_parse(&found, &entry, target) == 0;
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
	struct store_key key;
	*cubin = (struct cubin){0};
	if (cubin_key(&key, NULL, compiler, source, target, diag) != 0)
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
			meta_print(&meta, cubin, target);
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
	return 0;
}
