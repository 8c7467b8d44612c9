/* fuzz: random inputs for one parser. A fuzzer is a file fuzz_NAME.c with the two below. Two ways to run it.
 *   With clang: fuzz_NAME.c alone, -fsanitize=fuzzer,address,undefined.
 *   With any compiler: with fuzz_main.c; fuzz_NAME SECONDS [FILE...] mutates the files, or nothing, at random from a
 *   fixed seed, so that a failure can be repeated. */
#ifndef FAGEN_TESTS_FUZZ_H
#define FAGEN_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

extern const char *const fuzz_words[]; /* what its inputs are made of; NULL after the last */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void fuzz_demand(int holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "fuzz: %s\n", what);
	abort();
}

#endif
