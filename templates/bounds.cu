// The least and the greatest value of each bounds slot over every query or key tile, for tile_class. They run before the
// kernels that walk; one CTA of 128 threads for a tile of one head.

// For SLOTS slots, value(slot, position) over the tile's positions before `length`, to pair at(slot).
template <int SLOTS, int SIZE, class At, class Value>
DEVICE void bounds_tile(unsigned long long bounds, int tile, int length, At at, Value value)
{
	__shared__ int2 part[4]; // of each warp
	const int first = tile * SIZE, last = int_min(first + SIZE, length);
#pragma unroll
	for (int slot = 0; slot < SLOTS; slot++) {
		int low = 0x7fffffff, high = -low - 1;
		for (int i = first + threadIdx.x; i < last; i += 128) {
			const int x = value(slot, i);
			low = int_min(low, x);
			high = int_max(high, x);
		}
		low = __reduce_min_sync(~0u, low);
		high = __reduce_max_sync(~0u, high);
		if (threadIdx.x % 32 == 0)
			part[threadIdx.x / 32] = make_int2(low, high);
		__syncthreads(); // writers of the parts before their reader
		if (threadIdx.x == 0) {
#pragma unroll
			for (int i = 1; i < 4; i++)
				low = int_min(low, part[i].x), high = int_max(high, part[i].y);
			reinterpret_cast<int2 *>(bounds)[at(slot)] = make_int2(low, high);
		}
		__syncthreads(); // reader of the parts before the next slot's writers
	}
}

extern "C" __global__ void __launch_bounds__(128) fagen_bounds_rows(const __grid_constant__ fagen_abi p)
{
	const Owned own = rows_owned<TILE_M>(p);
	const int b = own.b, h = own.h;
	if (own.tile < 0)
		return;
	bounds_tile<BOUNDS_ROWS, TILE_M>(
		p.bounds_rows, own.tile, sequence_q(&p, b),
		[&](int slot) { return bounds_rows_at(&p, slot, b, h, own.tile); },
		[&](int slot, int q) { return bounds_row(slot, &p, b, h, q); });
}

extern "C" __global__ void __launch_bounds__(128) fagen_bounds_cols(const __grid_constant__ fagen_abi p)
{
	const Owned own = keys_owned<TILE_N>(p, p.heads_q);
	const int b = own.b, h = own.h;
	if (own.tile < 0)
		return;
	bounds_tile<BOUNDS_COLS, TILE_N>(
		p.bounds_cols, own.tile, sequence_k(&p, b),
		[&](int slot) { return bounds_cols_at(&p, slot, b, h, own.tile); },
		[&](int slot, int k) { return bounds_col(slot, &p, b, h, k); });
}
