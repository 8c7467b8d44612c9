// The least and the greatest value of each bounds slot over every query and every key tile, for tile_class. It runs before the kernels that walk.

constexpr int BOUNDS_WARPS = 4; // as gen/model_parts.c has them

// For SLOTS slots, value(slot, position) over the tile's positions before `length`, to pair at(slot). By a warp.
template <int SLOTS, int SIZE, class At, class Value>
DEVICE void bounds_tile(unsigned long long bounds, int tile, int length, At at, Value value)
{
	const int first = tile * SIZE, last = int_min(first + SIZE, length);
#pragma unroll
	for (int slot = 0; slot < SLOTS; slot++) {
		int low = 0x7fffffff, high = -low - 1;
		for (int i = first + (int)(mov_tid_x() % 32); i < last; i += 32) {
			const int x = value(slot, i);
			low = int_min(low, x);
			high = int_max(high, x);
		}
		low = __reduce_min_sync(~0u, low);
		high = __reduce_max_sync(~0u, high);
		if (mov_tid_x() % 32 == 0)
			reinterpret_cast<int2 *>(bounds)[at(slot)] = make_int2(low, high);
	}
}

// A warp for a tile of one head: query tiles first.
extern "C" __global__ void __launch_bounds__(32 * BOUNDS_WARPS) fagen_bounds(const __grid_constant__ fagen_abi p)
{
	const unsigned queries = query_numbers<TILE_M>(p) * p.heads_q, keys = key_numbers<TILE_N>(p) * p.heads_q;
	const unsigned number = blockIdx.x * BOUNDS_WARPS + mov_tid_x() / 32;
	if (BOUNDS_ROWS > 0 && number < queries) {
		const Owned own = tile_owned<TILE_M, false>(p.cu_seqlens_q, p.batch, p.heads_q, p.seqlen_q, number);
		if (own.tile >= 0)
			bounds_tile<BOUNDS_ROWS, TILE_M>(
				p.bounds_rows, own.tile, sequence_q(&p, own.b),
				[&](int slot) { return bounds_rows_at(&p, slot, own.b, own.h, own.tile); },
				[&](int slot, int q) { return bounds_row(slot, &p, own.b, own.h, q); });
	}
	if (BOUNDS_COLS > 0 && number >= queries && number - queries < keys) {
		const Owned own = tile_owned<TILE_N, false>(p.cu_seqlens_k, p.batch, p.heads_q, p.seqlen_k, number - queries);
		if (own.tile >= 0)
			bounds_tile<BOUNDS_COLS, TILE_N>(
				p.bounds_cols, own.tile, sequence_k(&p, own.b),
				[&](int slot) { return bounds_cols_at(&p, slot, own.b, own.h, own.tile); },
				[&](int slot, int k) { return bounds_col(slot, &p, own.b, own.h, k); });
	}
}
