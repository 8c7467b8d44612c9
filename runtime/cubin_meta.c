/* cubin_meta: what is kept with a cubin, in the store and in packs: what it is launched with, and what the compiler said.
 *
 *   fagen-cubin 1
 *   target sm_90a
 *   registers 168            one line for each number
 *   ...
 *   recipe 412               then so many bytes as recipe_print wrote them
 *   log 1200                 then so many bytes of the compiler's own words; none in a pack
 *   signature 90             in packs only: then so many bytes as signature_print wrote them
 *   check right NVIDIA H200  in the store only: none, or one line for each GPU on which it was checked: checked.c */
#include "runtime/cubin_meta.h"

#include <stdlib.h>
#include <string.h>

void cubin_free(struct cubin *cubin)
{
	free(cubin->code);
	free(cubin->report);
	*cubin = (struct cubin){0};
}

void cubin_meta_print(struct text *out, const struct cubin *cubin, const struct signature *signature,
                      const struct target *target)
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
	if (signature) {
		struct text spec = {0};
		signature_print(&spec, signature);
		text_addf(out, "signature %zu\n%s", spec.len, text_str(&spec));
		text_free(&spec);
	}
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

/* The block `name`, read by a parser of gen/. */
static int take_parsed(void *to, int (*parse)(void *to, const char *text, struct diag *), const char **at, const char *end,
                       const char *name)
{
	struct diag ignored = {0};
	char *block = take_block(at, end, name);
	const int result = block ? parse(to, block, &ignored) : -1;
	diag_free(&ignored);
	free(block);
	return result;
}

static int recipe_read(void *to, const char *text, struct diag *diag) { return recipe_parse(to, text, diag); }
static int signature_read(void *to, const char *text, struct diag *diag) { return signature_parse(to, text, diag); }

static int meta_parse(struct cubin *cubin, struct signature *signature, const char *meta, size_t len,
                      const struct target *target)
{
	struct text head = {0};
	text_addf(&head, "fagen-cubin 1\ntarget %s\n", target->name);
	const char *at = meta, *end = meta + len;
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
	if (take_parsed(&cubin->recipe, recipe_read, &at, end, "recipe") != 0 ||
	    !(cubin->report = take_block(&at, end, "log")))
		return -1;
	return signature ? take_parsed(signature, signature_read, &at, end, "signature") : 0;
}

int cubin_meta_parse(struct cubin *cubin, struct signature *signature, const char *meta, size_t len,
                     const struct target *target)
{
	char *copy = malloc(len + 1); /* what is read ends with a NUL */
	if (!copy)
		return -1;
	memcpy(copy, meta, len);
	copy[len] = '\0';
	const int result = meta_parse(cubin, signature, copy, len, target);
	free(copy);
	return result;
}
