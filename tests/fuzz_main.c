/* A fuzzer's main without libFuzzer: bounded, deterministic random mutation. */
#include "tests/fuzz.h"

#include <string.h>
#include <time.h>

static uint64_t random_state = 88172645463325252u;
static size_t random_below(size_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (size_t)(random_state % n);
}

enum { BYTES_MAX = 1 << 12 };

static size_t insert(uint8_t *data, size_t size, size_t at, const char *bytes, size_t len)
{
	if (size + len > BYTES_MAX)
		return size;
	memmove(data + at + len, data + at, size - at);
	memcpy(data + at, bytes, len);
	return size + len;
}

static const char *word_random(void)
{
	size_t count = 0;
	while (fuzz_words[count])
		count++;
	return fuzz_words[random_below(count)];
}

static size_t mutate(uint8_t *data, size_t size)
{
	const size_t at = random_below(size + 1);
	const size_t span = random_below(size - at < 24 ? size - at + 1 : 24);
	char copied[24];
	const char one = (char)random_below(256);
	const char *word = word_random();
	switch (random_below(6)) {
	case 0: /* remove */ memmove(data + at, data + at + span, size - at - span); return size - span;
	case 1: /* repeat */
		memcpy(copied, data + at, span);
		return insert(data, size, random_below(size + 1), copied, span);
	case 2:
		if (at < size)
			data[at] = (uint8_t)one;
		return size;
	case 3: return insert(data, size, at, &one, 1);
	default: return insert(data, size, at, word, strlen(word));
	}
}

int main(int argc, char **argv)
{
	const double seconds = argc > 1 ? strtod(argv[1], NULL) : 0;
	const time_t begin = time(NULL);
	static uint8_t data[BYTES_MAX];
	long runs = 0;
	if (argc < 2) {
		fprintf(stderr, "usage: %s SECONDS [FILE...]\n", argv[0]);
		return 2;
	}
	do {
		FILE *file = argc > 2 ? fopen(argv[2 + random_below((size_t)argc - 2)], "rb") : NULL;
		size_t size = file ? fread(data, 1, BYTES_MAX, file) : 0;
		if (file)
			fclose(file);
		for (int i = 0; i < 40; i++, runs++) {
			size = mutate(data, size);
			LLVMFuzzerTestOneInput(data, size);
		}
	} while (difftime(time(NULL), begin) < seconds);
	printf("%s: %ld inputs, no fault\n", argv[0], runs);
	return 0;
}
