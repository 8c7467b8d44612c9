// Which tile of which head and entry a CTA owns, where an entry's rows lie, and a head's key of dropout. contract.h says what entries are.

// Rows of a query tile: of TILE_Q positions those of TILE_HEADS heads, a position's together, in as many slots as the next power of two;
// rows of the slots to spare are nobody's. Of a sum of rows that have no bit in common row_position and row_head are the sums of theirs.
constexpr int TILE_SLOTS = TILE_HEADS > 8 ? 16 : TILE_HEADS > 4 ? 8 : TILE_HEADS > 2 ? 4 : TILE_HEADS;
constexpr int TILE_Q = TILE_M / TILE_SLOTS;
static_assert(TILE_HEADS >= 1 && TILE_HEADS <= 16, "16 rows are whole positions");
static_assert(TILE_HEADS == 1 || (KV_GROUP > 0 && KV_GROUP % TILE_HEADS == 0), "heads of a tile read the same keys");
DEVICE int row_position(int row) { return row / TILE_SLOTS; }
DEVICE int row_head(int row) { return row % TILE_SLOTS; }
DEVICE bool row_spare(int head) { return TILE_SLOTS != TILE_HEADS && head >= TILE_HEADS; } // of the row_head of a row

// tile: -1 when the number is not used by any tile of the entry's slot. tiles: numbers that the head has, one a CTA.
struct Owned { int b, h, tile, tiles; };

// The entry whose tiles have number i / heads among them: the last one that begins at or before it, else the first. All lanes of a
// warp call it.
template <int SIZE> DEVICE int packed_entry(unsigned long long cu, int batch, int number)
{
	int first = 0, end = batch; // it is one of these
	while (end - first > 1) {
		const int step = ceil_div(end - first, 32), at = first + (int)(mov_tid_x() % 32) * step;
		const unsigned before = __ballot_sync(~0u, at < end && tile_begin(cu, at, SIZE) <= number);
		first += (31 - __clz(before | 1)) * step;
		end = int_min(first + step, end);
	}
	return first;
}

// Number i of the tiles of SIZE rows each of `heads` heads, entry by entry. All lanes of a warp call it.
// LAST_FIRST: each head's tiles backwards.
template <int SIZE, bool LAST_FIRST>
DEVICE Owned tile_owned(unsigned long long cu, int batch, int heads, int rows, unsigned number)
{
	if constexpr (LAYOUT == LAYOUT_PACKED) {
		const int b = warp_uniform(packed_entry<SIZE>(cu, batch, number / heads));
		const int tiles = tile_room(cu, rows, b, SIZE), i = number - tile_begin(cu, b, SIZE) * heads;
		const int h = i / tiles, tile = LAST_FIRST ? tiles - 1 - i % tiles : i % tiles;
		const bool used = i >= 0 && h < heads && tile * SIZE < sequence_slot(cu, rows, b); // i: entries may begin late
		return {b, h, used ? tile : -1, tiles};
	} else {
		const int tiles = ceil_div(rows, SIZE);
		const int tile = LAST_FIRST ? tiles - 1 - number % tiles : number % tiles;
		return {(int)(number / tiles / heads), (int)(number / tiles % heads), tile, tiles};
	}
}
// That of a CTA: in the order of their numbers, for kernels whose tiles are alike.
template <int SIZE> DEVICE Owned rows_owned(const fagen_abi &p)
{
	return tile_owned<SIZE, false>(p.cu_seqlens_q, p.batch, p.heads_q, p.seqlen_q, blockIdx.x);
}
template <int SIZE> DEVICE Owned keys_owned(const fagen_abi &p, int heads)
{
	return tile_owned<SIZE, false>(p.cu_seqlens_k, p.batch, heads, p.seqlen_k, blockIdx.x);
}

// Numbers that tiles have of one head of all entries.
template <int SIZE> DEVICE unsigned query_numbers(const fagen_abi &p)
{
	return LAYOUT == LAYOUT_PACKED ? p.total_q / SIZE + p.batch : ceil_div(p.seqlen_q, SIZE) * p.batch;
}
template <int SIZE> DEVICE unsigned key_numbers(const fagen_abi &p)
{
	return LAYOUT == LAYOUT_PACKED ? p.total_k / SIZE + p.batch : ceil_div(p.seqlen_k, SIZE) * p.batch;
}

// The item whose turn is `turn`, of all items of the launch: where fagen_order has run, the longest come first.
DEVICE unsigned item_at(const fagen_abi &p, unsigned turn)
{
	if constexpr (ORDER != ORDER_NONE)
		if (p.order != 0)
			return reinterpret_cast<const unsigned *>(p.order)[turn];
	return turn;
}

// Elements from a tensor's start to the first row of head 0 of an entry.
DEVICE long long entry_offset(const fagen_abi_tensor &t, int b, int first)
{
	return LAYOUT == LAYOUT_PACKED ? first * t.stride_seq : b * t.stride_batch;
}

constexpr bool DROPOUT = KEEP_256 < 256;

// Dropout's key of a query head. Some 300 clocks: kernels whose loops are short of them make it once for a head.
DEVICE DropoutKey dropout_key(const fagen_abi &p, int b, int h)
{
	if (!DROPOUT)
		return {};
	const auto *state = reinterpret_cast<const unsigned long long *>(p.rng_state);
	return dropout_head(state ? state[0] : p.seed, state ? state[1] : p.offset, b * p.heads_q + h);
}

// It beside what else is known of a head, where there is dropout.
template <bool> struct HeadKey {
	DropoutKey dropout;
	__device__ __forceinline__ void dropout_make(const fagen_abi &p, int b, int h) { dropout = dropout_key(p, b, h); }
	// That of `before`, whose head is the same, or made anew.
	__device__ __forceinline__ void dropout_follow(const HeadKey &before, bool same, const fagen_abi &p, int b, int h)
	{
		if (same)
			*this = before;
		else
			dropout_make(p, b, h);
	}
};
template <> struct HeadKey<false> {
	static constexpr DropoutKey dropout = {};
	__device__ __forceinline__ void dropout_make(const fagen_abi &, int, int) {}
	__device__ __forceinline__ void dropout_follow(const HeadKey &, bool, const fagen_abi &, int, int) {}
};
