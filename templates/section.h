// Which tile of which head comes when, in the common part of C and CUDA: tests simulate it.
//
// Heads are worked on a section at a time, so that what a section's tiles share stays in L2; in a section the first tile of each head
// comes before the second of any. Masks make the first tiles the longest (whoever calls may count from the end). If the longest tiles of
// the last section began when all else is nearly done, a few SMs would work on alone: up to a quarter of the time. So the last section
// is one and what is left, and has tiles for two rounds of a large GPU. Where all tiles are alike, callers have sections as small as can be, the heads
// that share keys and values, of which nothing is left: the fewer are under way, the less power their bytes take.

enum { SECTION_TILES_LAST = 2 * 132 };

// What is the same for all tiles of a launch: divisions, which a persistent CTA has behind it once. section: heads of one.
// whole: sections before the last; -1: the last is as all others.
struct Sections {
	int tiles, heads, section, whole;
};
struct Placed {
	int head, tile;
};

// `tiles` of each of `heads`; alike: sections divide heads. What callers know when they are compiled saves divisions, of some 150 clocks each, behind which
// a CTA's first load waits.
DEVICE struct Sections sections_make(int tiles, int heads, int section, int alike)
{
	const int rounds = (SECTION_TILES_LAST + tiles - 1) / tiles; // heads of so many tiles
	struct Sections s;
	s.tiles = tiles, s.heads = heads, s.section = section;
	s.whole = alike ? -1 : int_max(heads - int_max(section, rounds), 0) / section;
	return s;
}

// The number-th of all tiles.
DEVICE struct Placed section_placed(unsigned number, struct Sections s)
{
	const int which = (int)(number / (unsigned)(s.section * s.tiles));
	const int before = (s.whole < 0 ? which : int_min(which, s.whole)) * s.section;
	const unsigned here = s.whole >= 0 && which >= s.whole ? s.heads - before : s.section, rest = number - before * s.tiles;
	struct Placed at;
	at.head = (int)(before + rest % here);
	at.tile = (int)(rest / here);
	return at;
}
