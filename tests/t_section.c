/* The order in which kernels take tiles (templates/section.h): every tile once, heads a section at a time, and SMs that
 * take the next tile as they become free all done at about the same time. */
#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define DEVICE static
DEVICE int int_min(int a, int b) { return a < b ? a : b; }
DEVICE int int_max(int a, int b) { return a > b ? a : b; }
#include "templates/section.h"

enum { SMS = 132 };

START_TEST(every_tile_once)
{
	uint64_t random = 1;
	for (int turn = 0; turn < 100; turn++) {
		int n[3];
		for (int i = 0; i < 3; i++) {
			random = random * 6364136223846793005u + 1442695040888963407u;
			n[i] = 1 + (int)(random >> 33) % (i == 0 ? 300 : 90);
		}
		const bool alike = turn % 2 != 0;
		const int tiles = n[0], section = n[2] < n[1] ? n[2] : n[1], heads = alike ? n[1] / section * section : n[1];
		unsigned char *const seen = calloc((size_t)(tiles * heads), 1);
		bool inside = true, once = true, in_order = true;
		int least = 0; /* head of the section at hand */
		struct Placed before = {0, 0};
		for (int number = 0; number < tiles * heads && inside; number++) {
			const struct Placed at = section_placed((unsigned)number, sections_make(tiles, heads, section, alike));
			inside = at.head >= 0 && at.head < heads && at.tile >= 0 && at.tile < tiles;
			once = once && inside && !seen[at.head * tiles + at.tile]++;
			if (at.tile < before.tile) { /* another section, behind the one before */
				in_order = in_order && before.tile == tiles - 1 && at.tile == 0 && at.head > least;
				least = at.head;
			}
			in_order = in_order && at.head >= least;
			before = at;
		}
		ck_assert_msg(inside && once && in_order, "%d tiles, %d heads, sections of %d, alike %d", tiles, heads, section, alike);
		free(seen);
	}
}
END_TEST

/* Causal problems of 16k tokens, width 2048, as the forward and the backward cut them: rows or keys of a tile, those of a visit, heads
 * of a section; `inside` query heads of a group by one CTA. */
static const struct {
	int seq, heads, tile, visit, section, inside;
} causal[] = {
	{16384, 16, 128, 176, 2, 1}, {8192, 32, 128, 176, 5, 1},   {4096, 64, 128, 176, 11, 1}, {2048, 128, 128, 128, 23, 1},
	{1024, 256, 128, 128, 47, 1}, {512, 512, 128, 128, 95, 1}, {4096, 32, 128, 80, 5, 1},   {2048, 64, 192, 96, 31, 1},
	{16384, 32, 192, 128, 5, 1}, {8192, 40, 128, 64, 1, 1},    {8192, 16, 128, 64, 1, 4},   {1024, 256, 128, 64, 7, 1},
	{2048, 128, 128, 64, 3, 1},  {4096, 64, 128, 64, 1, 1},    {512, 512, 128, 64, 15, 1},
};

START_TEST(all_end_together)
{
	const int seq = causal[_i].seq, heads = causal[_i].heads, size = causal[_i].tile, tiles = (seq + size - 1) / size;
	double busy[SMS] = {0}, all = 0, last = 0;
	for (int number = 0; number < tiles * heads; number++) {
		const struct Placed at = section_placed((unsigned)number, sections_make(tiles, heads, causal[_i].section, 0));
		const int rest = seq - at.tile * size;
		const double takes = causal[_i].inside * ((rest + causal[_i].visit - 1) / causal[_i].visit) + 1.3;
		int next = 0;
		for (int i = 1; i < SMS; i++)
			next = busy[i] < busy[next] ? i : next;
		busy[next] += takes;
		all += takes;
	}
	for (int i = 0; i < SMS; i++)
		last = busy[i] > last ? busy[i] : last;
	ck_assert_msg(last <= 1.04 * all / SMS, "%g of the mean", last * SMS / all);
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("section");
	TCase *t = tcase_create("order");
	tcase_add_test(t, every_tile_once);
	tcase_add_loop_test(t, all_end_together, 0, sizeof causal / sizeof *causal);
	suite_add_tcase(s, t);
	return s;
}
