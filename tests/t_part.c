/* Parts of a stream of tiles (templates/stream.h): together they are the stream, none has two tiles more than another. */
#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define DEVICE static inline
#define RUNS 4
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
enum { TILE_EMPTY, TILE_PARTIAL, TILE_FULL };
enum { TILES_MAX = 60, PARTS_MAX = 64 };
struct Range { int begin, end, full_begin, full_end; };
DEVICE int int_min(int a, int b) { return a < b ? a : b; }
DEVICE int int_max(int a, int b) { return a > b ? a : b; }
DEVICE int ceil_div(int a, int b) { return (a + b - 1) / b; }

static struct Range runs[RUNS]; /* of the streams at hand */
DEVICE struct Range key_range(int run, int q0, int q1, int sq, int sk) { return runs[run]; }
DEVICE struct Range query_range(int run, int k0, int k1, int sq, int sk) { return runs[run]; }
#include "templates/stream.h"

static uint64_t state = 1;
static int random_to(int most)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (int)(state >> 33) % (most + 1);
}

static void runs_fill(int size)
{
	for (int i = 0; i < RUNS; i++) {
		const int begin = random_to(TILES_MAX * size), end = random_to(3) ? begin + random_to(TILES_MAX * size - begin) : begin;
		runs[i] = (struct Range){begin, end, begin + random_to(size), end - random_to(size)};
	}
}

/* What a stream visits, by tile: its class; TILE_EMPTY: not visited. Returns how many, -1: not from last to first. */
static int walk(int class_of[TILES_MAX], struct Stream s)
{
	int count = 0, tile, class_, before = TILES_MAX;
	memset(class_of, 0, TILES_MAX * sizeof *class_of);
	for (; stream_next(&s, &tile, &class_); count++) {
		if (tile < 0 || tile >= before)
			return -1;
		class_of[tile] = class_;
		before = tile;
	}
	return count;
}

START_TEST(parts_are_the_stream)
{
	for (int turn = 0; turn < 5000; turn++) {
		const int size = 1 + random_to(40), parts = 1 + random_to(turn % 2 ? PARTS_MAX - 1 : 7);
		int whole[TILES_MAX], seen[TILES_MAX] = {0}, least = TILES_MAX, most = 0, sum = 0, begin = 0;
		runs_fill(size);
		const struct Stream stream = stream_keys(0, 1, 1, 1, size);
		const int tiles = walk(whole, stream);
		ck_assert_int_ge(tiles, 0);
		for (int part = 0; part < parts; part++) {
			struct Stream s = stream;
			int here[TILES_MAX];
			stream_part(&s, part, parts);
			const int count = walk(here, s);
			bool right = count >= 0;
			for (int t = 0; t < TILES_MAX; t++) {
				right &= stream_class(&s, t) == here[t]; /* as those see it who classify tiles */
				right &= here[t] == TILE_EMPTY || (here[t] == whole[t] && t >= begin && !seen[t]);
				seen[t] |= here[t];
			}
			ck_assert_msg(right, "part %d of %d", part, parts);
			for (int t = 0; t < TILES_MAX; t++)
				begin = here[t] ? t + 1 : begin;
			least = count < least ? count : least, most = count > most ? count : most, sum += count;
		}
		ck_assert_mem_eq(seen, whole, sizeof seen);
		ck_assert_int_eq(sum, tiles);
		ck_assert_int_le(most - least, 1);
	}
}
END_TEST

/* Lengths are up to 2^30. */
START_TEST(long_streams)
{
	for (int i = 0; i < RUNS; i++)
		runs[i] = (struct Range){0, i == 2 ? 1 << 30 : 0, 0, i == 2 ? 1 << 30 : 0};
	struct Stream s = stream_keys(0, 1, 1, 1, 16);
	stream_part(&s, PARTS_MAX - 1, PARTS_MAX);
	ck_assert_int_eq(s.next, (1 << 26) - 1);
	ck_assert_int_eq(s.run[2].first, (1 << 26) - (1 << 20));
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("part");
	TCase *t = tcase_create("part");
	tcase_add_test(t, parts_are_the_stream);
	tcase_add_test(t, long_streams);
	suite_add_tcase(s, t);
	return s;
}
