// What Hopper's skeletons share beside single instructions.

constexpr int GROUP_THREADS = 128; // of a warpgroup

DEVICE bool first_thread() { return mov_tid_x() % GROUP_THREADS == 0; } // of its warpgroup

// The item that number i of those who take items by turns takes in a round, of all items in their order: there and back again, so that everybody gets
// the same when lengths fall evenly.
DEVICE unsigned round_number(unsigned round, unsigned i, unsigned count) { return round * count + (round % 2 ? count - 1 - i : i); }

// The item that a persistent CTA takes in its round-th turn. With QUEUE lengths do not fall evenly, and whoever is free takes the next one. All lanes
// of a warp call it, one of them as its leader.
DEVICE unsigned item_number(const fagen_abi &p, unsigned round, bool leader)
{
	constexpr unsigned FIRST = SUMS == SUMS_ORDERED ? 0 : 1; // rounds without the queue: where an item waits for earlier ones it must not be taken before they are
	static_assert(SUMS != SUMS_ORDERED || QUEUE, "a fixed order counts on CTAs that have not begun");
	if (!QUEUE || round < FIRST)
		return round_number(round, blockIdx.x, gridDim.x);
	unsigned taken = 0;
	if (leader)
		taken = atomicAdd(reinterpret_cast<unsigned *>(p.queue), 1u);
	return FIRST * gridDim.x + __reduce_max_sync(~0u, taken);
}

// Row g + 8 * half of a warpgroup's accumulators, scaled and rounded.
template <int COLUMNS>
DEVICE void accumulators_store(unsigned short *row, const float (&acc)[COLUMNS / 2], int half, float scale, int t, bool used, bool written)
{
	row_store<COLUMNS / 8>(
		row,
		[&](int block) { return cvt_rn_x2(acc[4 * block + 2 * half] * scale, acc[4 * block + 2 * half + 1] * scale, Element{}); },
		[](int block) { return block; }, t, used, written);
}

// A tile of a tensor as panels of 64 columns, past the tensor's end zeros; `full` gets an arrival, the bytes, and as many `more` as
// the caller has on the way.
template <unsigned long long KEEP = L2_EVICT_NORMAL, int PANELS, int ROWS>
DEVICE void panels_load(unsigned short (&to)[PANELS][ROWS][64], const fagen_abi_map &map, unsigned long long &full, int row, int head,
                        int batch, unsigned more = 0)
{
	mbarrier_arrive_expect_tx(full, sizeof to + more);
#pragma unroll
	for (int i = 0; i < PANELS; i++)
		cp_async_bulk_tensor_4d<KEEP>(cvta_shared(to[i]), map, full, 64 * i, row, head, batch);
}

// The same tile on its way to L2, for a panels_load that comes later.
template <int PANELS, int ROWS>
DEVICE void panels_prefetch(const unsigned short (&)[PANELS][ROWS][64], const fagen_abi_map &map, int row, int head, int batch)
{
#pragma unroll
	for (int i = 0; i < PANELS; i++)
		cp_async_bulk_prefetch_tensor_4d(map, 64 * i, row, head, batch);
}

// Zeros in place of all rows but the first `rows`. Those past an entry's length belong to somebody else or to nobody, and a zero does
// not hide what is infinite there. Every warpgroup clears them for itself; others may be reading the zeros that it writes once more. A
// barrier of the group comes before the products.
template <int PANELS, int ROWS> DEVICE void rows_clear(unsigned short (&tile)[PANELS][ROWS][64], int rows)
{
	for (int i = rows * 8 + mov_tid_x() % GROUP_THREADS; i < ROWS * 8; i += GROUP_THREADS)
#pragma unroll
		for (int panel = 0; panel < PANELS; panel++)
			st_shared_16(cvta_shared(tile[panel]) + i * 16, make_uint4(0, 0, 0, 0));
	fence_proxy_async();
}

// ---- products of a warpgroup, each one group: under way when the call returns ----

// acc = left right^T: 64 rows of a K-major operand whose panels have LEFT_ROWS rows, times all N of one whose panels have RIGHT_ROWS;
// STEPS steps of 16 columns. ADD: to what is there.
template <int STEPS, int LEFT_ROWS, int RIGHT_ROWS, bool ADD = false, int HALF_N>
DEVICE void product_ss(float (&acc)[HALF_N], unsigned long long left, unsigned long long right)
{
	registers_pin(acc);
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < STEPS; i++) {
		const int a = i / 4 * (LEFT_ROWS * 128 / 16) + i % 4 * 2, b = i / 4 * (RIGHT_ROWS * 128 / 16) + i % 4 * 2;
		if (i == 0 && !ADD)
			wgmma_ss<false>(acc, left + a, right + b);
		else
			wgmma_ss<true>(acc, left + a, right + b);
	}
	wgmma_commit_group();
	registers_pin(acc);
}

// acc += cells right: cells as accumulators of another product lie, packed, and as many rows of an MN-major operand as they have columns.
template <int HALF_N, int CELLS>
DEVICE void product_rs(float (&acc)[HALF_N], unsigned (&cells)[CELLS], unsigned long long right)
{
	registers_pin(cells);
	registers_pin(acc);
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < CELLS / 4; i++)
		wgmma_rs(acc, cells[4 * i], cells[4 * i + 1], cells[4 * i + 2], cells[4 * i + 3], right + i * (2048 / 16));
	wgmma_commit_group();
	registers_pin(acc);
	registers_pin(cells);
}
