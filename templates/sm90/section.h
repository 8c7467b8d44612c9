// Which tile of which head comes when, in the common part of C and CUDA: tests simulate it.
//
// Heads are worked on a section at a time, so that what a section's tiles share stays in L2; in a section the first tile of each head
// comes before the second of any. Masks make the first tiles the longest (whoever calls may count from the end). If the longest tiles of
// the last section began when all else is nearly done, a few SMs would work on alone: up to a quarter of the time. So the last section
// is one and what is left, and has tiles for two rounds of a large GPU. Where all tiles are alike, it is what is left alone, and callers have
// sections as small as can be, the heads that share keys and values: the fewer are under way, the less power their bytes take.

enum { SECTION_TILES_LAST = 2 * 132 };

struct Placed {
	int head, tile;
};

// The number-th of all tiles; `tiles` of each of `heads`.
DEVICE struct Placed section_placed(unsigned number, int tiles, int section, int heads, int alike)
{
	const int rounds = (SECTION_TILES_LAST + tiles - 1) / tiles;                                // heads of so many tiles
	const int whole = alike ? heads / section : int_max(int_min(heads / section - 1, (heads - rounds) / section), 0); // sections before the last
	const int before = int_min((int)(number / (unsigned)(section * tiles)), whole) * section;
	const int here = before == whole * section ? heads - before : section, rest = (int)number - before * tiles;
	struct Placed at;
	at.head = before + rest % here;
	at.tile = rest / here;
	return at;
}
