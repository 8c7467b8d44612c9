/* Dropout's words as streams of 32-bit numbers, in the orders in which neighbours matter. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { STREAM_WORDS = 1 << 16 };

struct stream {
	const char *name, *about;
	void (*fill)(struct stream *); /* the next `size` words */
	unsigned key[4], at;           /* what has been given so far, in fill's own unit */
	unsigned size, used;
	unsigned long long seed;
	uint32_t word[STREAM_WORDS];
};

extern const char *stream_generator;

/* NULL when there is no stream of that name; stream_name lists them, NULL at the end. */
struct stream *stream_open(const char *name, unsigned long long seed);
const char *stream_name(size_t i), *stream_about(size_t i);
void stream_close(struct stream *s);

static inline uint32_t stream_next(struct stream *s)
{
	if (s->used == s->size) {
		s->fill(s);
		s->used = 0;
	}
	return s->word[s->used++];
}
