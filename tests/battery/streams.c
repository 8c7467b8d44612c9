/* The streams: which cell comes after which. */
#include "tests/battery/streams.h"

#include <stdlib.h>
#include <string.h>

#include "tests/battery/bytes.h"
#include "tests/battery/generator.h"

const char *stream_generator = GENERATOR;

/* The 32 numbers u of a group, by bit position. */
static inline void group_bytes(uint8_t u[32], const unsigned key[4], unsigned group_q, unsigned group_k)
{
	unsigned w[8];
	group_words(w, key, group_q, group_k);
	words_bytes(u, w);
}

/* Cells of 16 rows of 4096 keys, k fastest. */
static void cells_by_row(uint8_t *cell, const unsigned key[4], unsigned rows_16)
{
	enum { KEYS = 4096 };
	for (unsigned q = 0; q < 8; q++)
		for (unsigned group_k = 0; group_k < KEYS / 16; group_k++) {
			uint8_t u[32];
			group_bytes(u, key, rows_16 * 8 + q, group_k);
			uint8_t *to = cell + q * KEYS + group_k / 4 * 64 + group_k % 4 * 2;
			for (unsigned i = 0; i < 32; i++)
				to[(i >> 4) * 8 * KEYS + (i >> 3 & 1) + 8 * (7 - (i & 7))] = u[i];
		}
}

static void fill_rows(struct stream *s)
{
	s->size = 16 * 4096 / 4;
	cells_by_row((uint8_t *)s->word, s->key, s->at++);
}

/* Keys of a block of 64, each down 4096 rows: q fastest. */
static void fill_columns(struct stream *s)
{
	enum { ROWS = 4096 };
	s->size = 64 * ROWS / 4;
	uint8_t *cell = (uint8_t *)s->word;
	for (unsigned group_q = 0; group_q < ROWS / 2; group_q++)
		for (unsigned k = 0; k < 4; k++) {
			uint8_t u[32];
			group_bytes(u, s->key, group_q, s->at * 4 + k);
			uint8_t *to = cell + k * 2 * ROWS + group_q / 8 * 16 + group_q % 8;
			for (unsigned i = 0; i < 32; i++)
				to[((i >> 3 & 1) + 8 * (7 - (i & 7))) * ROWS + (i >> 4) * 8] = u[i];
		}
	s->at++;
}

/* One query group per fill, 8192 key groups. */
static void fill_tiles(struct stream *s)
{
	s->size = STREAM_WORDS;
	for (unsigned k = 0; k < STREAM_WORDS / 8; k++) {
		unsigned w[8];
		group_words(w, s->key, s->at, k);
		for (unsigned j = 0; j < 8; j++)
			s->word[8 * k + j] = w[j];
	}
	s->at++;
}

/* One word of each group. */
static void fill_word(struct stream *s, int which)
{
	s->size = 4096;
	for (unsigned k = 0; k < s->size; k++) {
		unsigned w[8];
		group_words(w, s->key, s->at, k);
		s->word[k] = w[which];
	}
	s->at++;
}

static void fill_high(struct stream *s)
{
	fill_word(s, 7);
	for (unsigned k = 0; k < s->size; k++) {
		uint32_t x = s->word[k];
		x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
		x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
		x = (x >> 4 & 0x0F0F0F0Fu) | (x & 0x0F0F0F0Fu) << 4;
		s->word[k] = __builtin_bswap32(x);
	}
}

static void fill_low(struct stream *s) { fill_word(s, 0); }

/* Decisions of 128 of 256: the cells' topmost bits, by row. */
static void fill_kept(struct stream *s)
{
	uint8_t *cell = malloc(16 * 4096);
	if (!cell)
		abort();
	s->size = 16 * 4096 / 32;
	cells_by_row(cell, s->key, s->at++);
	for (unsigned i = 0; i < s->size; i++) {
		s->word[i] = 0;
		for (unsigned b = 0; b < 32; b++)
			s->word[i] |= (uint32_t)(cell[32 * i + b] >> 7) << b;
	}
	free(cell);
}

/* One cell of successive keys: s->key[3] says what is counted. */
static void fill_keys(struct stream *s)
{
	s->size = 1024;
	uint8_t *cell = (uint8_t *)s->word;
	for (unsigned i = 0; i < 4 * s->size; i++, s->at++) {
		unsigned key[4], what = s->key[3];
		uint8_t u[32];
		head_key(key, s->seed + (what == 1 ? s->at : 0), what == 2 ? s->at : 7, what == 0 ? s->at : 3);
		group_bytes(u, key, 40, 9);
		cell[i] = u[13];
	}
}

static const struct stream streams[] = {
	{"rows", "u of cells, k fastest", fill_rows, {0}, 0, 0, 0, 0, {0}},
	{"columns", "u of cells, q fastest", fill_columns, {0}, 0, 0, 0, 0, {0}},
	{"tiles", "the eight words of groups, k fastest", fill_tiles, {0}, 0, 0, 0, 0, {0}},
	{"high", "word 7 of groups, its bits reversed", fill_high, {0}, 0, 0, 0, 0, {0}},
	{"low", "word 0 of groups", fill_low, {0}, 0, 0, 0, 0, {0}},
	{"kept", "decisions of 128 of 256, k fastest", fill_kept, {0}, 0, 0, 0, 0, {0}},
	{"heads", "u of one cell in successive heads", fill_keys, {0, 0, 0, 0}, 0, 0, 0, 0, {0}},
	{"seeds", "u of one cell under successive seeds", fill_keys, {0, 0, 0, 1}, 0, 0, 0, 0, {0}},
	{"offsets", "u of one cell at successive offsets", fill_keys, {0, 0, 0, 2}, 0, 0, 0, 0, {0}},
};
enum { STREAMS = sizeof streams / sizeof *streams };

const char *stream_name(size_t i) { return i < STREAMS ? streams[i].name : NULL; }
const char *stream_about(size_t i) { return i < STREAMS ? streams[i].about : NULL; }

struct stream *stream_open(const char *name, unsigned long long seed)
{
	for (size_t i = 0; i < STREAMS; i++)
		if (!strcmp(streams[i].name, name)) {
			struct stream *s = malloc(sizeof *s);
			if (!s)
				abort();
			*s = streams[i];
			s->seed = seed;
			if (s->fill != fill_keys)
				head_key(s->key, seed, 7, 3);
			return s;
		}
	return NULL;
}

void stream_close(struct stream *s) { free(s); }
