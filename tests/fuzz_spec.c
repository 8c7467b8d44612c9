/* Fuzzes the spec parser: whatever the bytes, there are errors, or a spec that prints itself and reads back the same.
 *
 * Two ways to run it. With clang: -fsanitize=fuzzer,address,undefined -DFUZZ_LIBFUZZER, corpus specs/ and tests/bad/.
 * Alone: fuzz_spec SECONDS FILE... mutates the files at random from a fixed seed, so that a failure can be repeated. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gen/gen.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(int holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "fuzz_spec: %s\n", what);
	abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct spec spec, again;
	struct diag d = {0};
	/* Exactly as many bytes as the parser may read, so that a sanitizer sees one more. */
	char *yaml = malloc(size ? size : 1);
	demand(yaml != NULL, "out of memory");
	if (size)
		memcpy(yaml, data, size);
	const int result = spec_parse(&spec, yaml, size, "fuzz", &d);
	free(yaml);
	demand((result == 0) == (d.errors == 0), "result and errors disagree");
	demand((result == 0) == (d.text.len == 0), "an error without a message, or a message without an error");
	demand(d.text.len < 64 * 1024, "messages without bound");
	demand(text_str(&d.text)[strspn(text_str(&d.text), "\n")] || !d.text.len, "an empty message");
	for (size_t i = 0; i < d.text.len; i++)
		demand((unsigned char)d.text.data[i] >= 0x20 || d.text.data[i] == '\n' ||
		    d.text.data[i] == '\t', "a raw control character");
	diag_free(&d);
	if (!result) {
		struct text printed = {0};
		spec_print(&printed, &spec);
		demand(spec_parse(&again, text_str(&printed), printed.len, "again", &d) == 0, text_str(&printed));
		memset(spec.place, 0, sizeof spec.place);
		memset(again.place, 0, sizeof again.place);
		demand(!memcmp(&spec, &again, sizeof spec), "reads back as another spec");
		text_free(&printed);
		diag_free(&d);
	}
	return 0;
}

#ifndef FUZZ_LIBFUZZER
static uint64_t random_state = 88172645463325252u;
static size_t random_below(size_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (size_t)(random_state % n);
}

static const char *const pieces[] = {
#define SPEC_KEY(id, name, shape, fallback, doc) name ": ",
#include "gen/spec.def"
#undef SPEC_KEY
	"causal", "causal_top_left", "none", "{window: {left: 3, right: unbounded}}",
	"{all: [causal, {window: {left: 1}}]}", "auto",
	"any", "all", "[forward, backward]", "[out, lse]", "{m: 64, n: 64}",
	"{forward: auto, backward: {m: 16, n: 16}}",
	"{batch: 1, heads: 8, heads_kv: 2, seqlen: 7}", "[sm_80]", "64", "128", "0.1", "1e-3", "-1", "0",
	"99999999999999999999",
	"\n", "\n  ", "\n- ", "\t", ": ", ", ", "{", "}", "[", "]", "'", "\"", "#", "&a ", "*a", "!!int ", "<<: ",
	"---\n", "...\n",
	"|\n ", ">\n ", "? ", "%YAML 1.2\n", "\r", "\r\n", "\xEF\xBB\xBF", "\xC2\x85", "\xE2\x80\xA8", "\xFF",
	"\xC3\xBC", "\\x00",
	"\"\\0\"", "\"\\e\"", "_", "00", "+", ".", "e", ":",
};

enum { BYTES_MAX = 1 << 12 };

static size_t insert(uint8_t *data, size_t size, size_t at, const char *bytes, size_t len)
{
	if (size + len > BYTES_MAX)
		return size;
	memmove(data + at + len, data + at, size - at);
	memcpy(data + at, bytes, len);
	return size + len;
}

static size_t mutate(uint8_t *data, size_t size)
{
	const size_t at = random_below(size + 1);
	const size_t span = random_below(size - at < 24 ? size - at + 1 : 24);
	char copied[24];
	const char one = (char)random_below(256);
	const char *piece = pieces[random_below(sizeof pieces / sizeof *pieces)];
	switch (random_below(6)) {
	case 0: /* remove */
		memmove(data + at, data + at + span, size - at - span);
		return size - span;
	case 1: /* repeat */
		memcpy(copied, data + at, span);
		return insert(data, size, random_below(size + 1), copied, span);
	case 2:
		if (at < size)
			data[at] = (uint8_t)one;
		return size;
	case 3:
		return insert(data, size, at, &one, 1);
	default:
		return insert(data, size, at, piece, strlen(piece));
	}
}

int main(int argc, char **argv)
{
	const double seconds = argc > 1 ? atof(argv[1]) : 0;
	const time_t begin = time(NULL);
	static uint8_t data[BYTES_MAX];
	long runs = 0;
	if (argc < 3) {
		fprintf(stderr, "usage: fuzz_spec SECONDS FILE...\n");
		return 2;
	}
	do {
		FILE *file = fopen(argv[2 + random_below((size_t)argc - 2)], "rb");
		size_t size = file ? fread(data, 1, BYTES_MAX, file) : 0;
		if (file)
			fclose(file);
		for (int i = 0; i < 40; i++, runs++) {
			size = mutate(data, size);
			LLVMFuzzerTestOneInput(data, size);
		}
	} while (difftime(time(NULL), begin) < seconds);
	printf("fuzz_spec: %ld inputs, no fault\n", runs);
	return 0;
}
#endif
