// The order in which the items of a launch begin: one for each tile that the pass owns, of query rows forward and of keys backward. Entries that
// are packed come one after the other. Else heads are worked on a section at a time (section.h), unless items are ALIKE.

// Heads whose keys and values, or queries, dO and sums of dQ, fill this much of L2, KiB.
constexpr int KEYS_SECTION = 24 << 10, QUERIES_SECTION = 8 << 10;

// How many heads of `rows` rows do.
DEVICE int section_heads(int section, long long rows, int row_bytes)
{
	return (unsigned)section / ((unsigned)(rows * row_bytes >> 10) + 1);
}

// Of tiles of SIZE query positions. Of several heads that share tiles the first counts, and those that read the same keys are in one section.
template <int SIZE = TILE_Q> DEVICE Sections query_sections(const fagen_abi &p)
{
	if constexpr (LAYOUT == LAYOUT_PACKED)
		return {};
	const int tiles = ceil_div(p.seqlen_q, SIZE), heads = p.batch * (p.heads_q / TILE_HEADS), group = (KV_GROUP > 0 ? KV_GROUP : p.kv_group) / TILE_HEADS;
	if constexpr (ALIKE)
		return sections_make(tiles, heads, group, true);
	const int fit = int_min(section_heads(KEYS_SECTION, p.seqlen_k, (HEAD_DIM_QK + HEAD_DIM_V) * 2), heads) * group;
	return sections_make(tiles, heads, int_min(int_max(fit, group), heads), false);
}

// Number i: the last tiles, which see most under a lower-triangular mask, come first. All lanes of a warp call it.
template <int SIZE = TILE_Q> DEVICE Owned query_item(const fagen_abi &p, unsigned i, const Sections &sections)
{
	const int heads = p.heads_q / TILE_HEADS;
	if constexpr (LAYOUT == LAYOUT_PACKED) {
		const Owned own = tile_owned<SIZE, true>(p.cu_seqlens_q, p.batch, heads, p.seqlen_q, i);
		return {own.b, own.h * TILE_HEADS, own.tile, own.tiles};
	} else {
		const Placed at = section_placed(i, sections);
		return {(int)((unsigned)at.head / heads), (int)((unsigned)at.head % heads) * TILE_HEADS, sections.tiles - 1 - at.tile, sections.tiles};
	}
}

// Of key tiles. Ordered sums want the last keys first, and so many heads together that tiles beside each other begin at different times, by as much
// as the sum of one has to wait for the other's: by a simulation 0.95 to 1.0 of the speed in any order, and with one head at a time 0.7 to 0.95.
DEVICE Sections key_sections(const fagen_abi &p)
{
	if constexpr (LAYOUT == LAYOUT_PACKED)
		return {};
	constexpr bool SAME = ALIKE && SUMS != SUMS_ORDERED;
	const int tiles = ceil_div(p.seqlen_k, TILE_N), heads = p.batch * p.heads_kv;
	if constexpr (SAME)
		return sections_make(tiles, heads, 1, true);
	const int least = SUMS == SUMS_ORDERED ? ceil_div(SECTION_TILES_LAST / 2, tiles) : 1;
	const int fit = section_heads(QUERIES_SECTION, (long long)p.seqlen_q * p.kv_group, HEAD_DIM_QK * 6 + HEAD_DIM_V * 2);
	return sections_make(tiles, heads, int_min(int_max(fit, least), heads), false);
}

// Number i: the first keys, which most rows see under such a mask, come first, but for ordered sums. All lanes of a warp call it.
DEVICE Owned key_item(const fagen_abi &p, unsigned i, const Sections &sections)
{
	constexpr bool LAST_FIRST = SUMS == SUMS_ORDERED;
	if constexpr (LAYOUT == LAYOUT_PACKED) {
		return tile_owned<TILE_N, LAST_FIRST>(p.cu_seqlens_k, p.batch, p.heads_kv, p.seqlen_k, i);
	} else {
		const Placed at = section_placed(i, sections);
		return {(int)((unsigned)at.head / p.heads_kv), (int)((unsigned)at.head % p.heads_kv), LAST_FIRST ? sections.tiles - 1 - at.tile : at.tile, sections.tiles};
	}
}

// ---- items that are parts of tiles: with SPLITS all, with CUT the last, behind those that are whole tiles ----

// Parts of a tile that is cut.
DEVICE unsigned part_count(const fagen_abi &p) { return CUT ? p.cut_parts : SPLITS; }
// The tile of item number i, as tiles are numbered.
DEVICE unsigned item_tile(const fagen_abi &p, unsigned i)
{
	if constexpr (CUT) // a quotient of numbers to some thousands, which is no half: without a division, behind which the next item's loads wait
		return i < p.cut_first ? i : p.cut_first + (unsigned)(((int)(i - p.cut_first) + 0.5f) * rcp((float)p.cut_parts));
	return i / SPLITS;
}
// Its number among the parts of its tile, with CUT among all parts; -1: it is a whole tile.
DEVICE int item_part(const fagen_abi &p, unsigned i) { return !CUT ? i % SPLITS : i < p.cut_first ? -1 : i - p.cut_first; }
// Of so many tiles.
DEVICE unsigned items_of(const fagen_abi &p, unsigned tiles) { return CUT ? p.cut_first + (tiles - p.cut_first) * part_count(p) : tiles * SPLITS; }
