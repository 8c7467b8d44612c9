// Gradients of inputs, whatever the skeleton: which heads share elements, where partial sums of tiles lie, what clears the gradients before,
// and what adds up the partial sums. templates/sm80/input_grad.cu says how elements lie to tiles.

constexpr int GRAD_PARTIAL = GRAD_TABLE_FLOATS + TILE_M * GRAD_ROW_FLOATS; // floats of partial sums of a query tile
constexpr int GRAD_PARTIAL_COLS = TILE_N * GRAD_COLS; // floats of partial sums of a key tile

DEVICE bool grad_wanted(const fagen_abi &p)
{
	bool wanted = false;
#pragma unroll
	for (int slot = 0; slot < GRADS; slot++)
		wanted |= grad_elements(slot, &p) != 0;
	return wanted;
}

// ---- heads that share elements: numbered b * heads_q + h ----

// 0: not wanted, or an entry without cells: it has no part in elements of positions, and may begin where another does.
DEVICE float *grad_home(int slot, const fagen_abi &p, int head)
{
	const int b = head / p.heads_q;
	if (LAYOUT != LAYOUT_DENSE && grad_kind(slot) != GRAD_TABLE &&
	    (sequence_q(&p, b) == 0 || sequence_k(&p, b) == 0))
		return 0;
	return grad_address(slot, &p, b, head % p.heads_q, 0, 0, 0);
}
// The first sharer of `home` from head `from` on; batch * heads_q if there is none. All lanes of a warp call it.
DEVICE int grad_sharer(int slot, const fagen_abi &p, const float *home, int from)
{
	const int heads = p.batch * p.heads_q;
	for (; from < heads; from += 32) {
		const int head = from + threadIdx.x % 32;
		const unsigned found = __ballot_sync(~0u, head < heads && grad_home(slot, p, head) == home);
		if (found)
			return from + __ffs(found) - 1;
	}
	return heads;
}

// ---- partial sums ----

DEVICE float *grad_partial(const fagen_abi &p, int head, int tile)
{
	return reinterpret_cast<float *>(p.grad_partial) +
	       (long long)tile_index(p, head / p.heads_q, head % p.heads_q, tile) * GRAD_PARTIAL;
}
DEVICE float *grad_partial_cols(const fagen_abi &p, int head, int tile)
{
	return reinterpret_cast<float *>(p.grad_partial_cols) + (long long)tile_number(p.cu_seqlens_k, p.seqlen_k,
	                                                                               p.heads_q, head / p.heads_q,
	                                                                               head % p.heads_q, tile, TILE_N) *
	                                                                GRAD_PARTIAL_COLS;
}

// Zeros everywhere: elements that no visible cell reads keep them.
extern "C" __global__ void __launch_bounds__(THREADS) fagen_input_grad_clear(const __grid_constant__ fagen_abi p)
{
	for (int slot = 0; slot < GRADS; slot++) {
		const long long elements = grad_elements(slot, &p);
		for (long long i = (long long)blockIdx.x * THREADS + threadIdx.x; i < elements;
		     i += (long long)gridDim.x * THREADS)
			*grad_element(slot, &p, i) = 0;
	}
}

// Tiles of a head that left partial sums.
DEVICE int grad_tiles_q(const fagen_abi &p, int head) { return ceil_div(sequence_q(&p, head / p.heads_q), TILE_M); }
DEVICE int grad_tiles_k(const fagen_abi &p, int head) { return ceil_div(sequence_k(&p, head / p.heads_q), TILE_N); }

// The heads that share `home`: how many of them come before `head`, how many there are, and the first and what is behind the last. When
// `enough` come before it nothing more is counted. All lanes of a warp call it.
struct Sharers { int before, all, first, end; };
DEVICE Sharers grad_sharers(int slot, const fagen_abi &p, const float *home, int head, int enough)
{
	Sharers of = {0, 0, head, head + 1};
	for (int first = 0; first < p.batch * p.heads_q && of.before < enough; first += 32) {
		const int other = first + threadIdx.x % 32;
		const bool shares = other < p.batch * p.heads_q && grad_home(slot, p, other) == home;
		const unsigned found = __ballot_sync(~0u, shares);
		of.before += __popc(__ballot_sync(~0u, shares && other < head));
		if (found && of.all == 0)
			of.first = first + __ffs(found) - 1;
		if (found)
			of.end = first + 32 - __clz(found);
		of.all += __popc(found);
	}
	return of;
}

// This lane's part of an entry of a table, over all tiles of all sharers. A lane has a head, or of heads with many tiles a tile.
// All lanes of a warp call it.
DEVICE float grad_table_sum(int slot, const fagen_abi &p, const float *home, const Sharers &of, int entry)
{
	const int lane = threadIdx.x % 32, at = grad_base(slot) + entry;
	float sum = 0;
	for (int first = of.first; first < of.end; first += 32) {
		const bool shares = first + lane < of.end && grad_home(slot, p, first + lane) == home;
		const int tiles = shares ? grad_tiles_q(p, first + lane) : 0;
		if (__any_sync(~0u, tiles > 8)) {
			for (unsigned left = __ballot_sync(~0u, shares); left; left &= left - 1) {
				const int head = first + __ffs(left) - 1;
				for (int tile = lane; tile < grad_tiles_q(p, head); tile += 32)
					sum += grad_partial(p, head, tile)[at];
			}
		} else {
			for (int tile = 0; tile < tiles; tile++)
				sum += grad_partial(p, first + lane, tile)[at];
		}
	}
	return sum;
}

// The same of an element of a row or a key; a warp has `each` of them. A lane reads from GRAD_TOGETHER heads before it adds any: their loads
// do not wait for each other.
constexpr int GRAD_TOGETHER = 8;
template <bool ROWS>
DEVICE float grad_position_sum(int slot, const fagen_abi &p, const float *home, const Sharers &of, int each, int position,
                               int entry)
{
	constexpr int SIZE = ROWS ? TILE_M : TILE_N;
	const int tile = position / SIZE, base = SIZE * grad_base(slot), in = position % SIZE;
	const int at = ROWS ? GRAD_TABLE_FLOATS + base + in * grad_entries(slot) + entry : base + in;
	const int lane = threadIdx.x % 32, step = 32 / each * GRAD_TOGETHER;
	float sum = 0;
	for (int first = of.first + lane / each * GRAD_TOGETHER; first < of.end; first += step) {
		float value[GRAD_TOGETHER];
#pragma unroll
		for (int i = 0; i < GRAD_TOGETHER; i++) {
			const int head = first + i;
			value[i] = 0;
			if (head < of.end && grad_home(slot, p, head) == home &&
			    tile < (ROWS ? grad_tiles_q(p, head) : grad_tiles_k(p, head)))
				value[i] = (ROWS ? grad_partial(p, head, tile) : grad_partial_cols(p, head, tile))[at];
		}
#pragma unroll
		for (int i = 0; i < GRAD_TOGETHER; i++)
			sum += value[i];
	}
	return sum;
}

// Adds up the partial sums of the heads that share elements: all their CTAs do, each warp some of the elements.
extern "C" __global__ void __launch_bounds__(THREADS) fagen_input_grad_sum(const __grid_constant__ fagen_abi p)
{
	const Owned own = rows_owned<TILE_M>(p);
	const int b = own.b, h = own.h, head = b * p.heads_q + h, lane = threadIdx.x % 32;
	const int own_tile = (int)blockIdx.x - tile_index(p, b, h, 0);
	if (h >= p.heads_q || own_tile < 0)
		return;
	for (int slot = 0; slot < GRADS; slot++) {
		const int kind = grad_kind(slot), entries = grad_entries(slot);
		if (kind == GRAD_NONE || kind == GRAD_CELL || grad_elements(slot, &p) == 0)
			continue;
		// CTAs of a sharer: of rows and keys all have equally many; of a table, packed, one at least.
		const int ctas = LAYOUT == LAYOUT_PACKED && kind == GRAD_TABLE ? 1 : own.tiles;
		const float *const home = grad_home(slot, p, head);
		if (own_tile >= ctas || !home)
			continue;
		const int positions = kind == GRAD_TABLE ? 1 : kind == GRAD_ROW ? slot_q(&p, b) : slot_k(&p, b);
		const int elements = positions * entries;
		const Sharers of = grad_sharers(slot, p, home, head, ceil_div(elements, ctas * WARPS));
		// A warp has one element of a table, of rows or keys as many as leave a lane no more heads than it reads at once.
		int each = kind == GRAD_TABLE ? 1 : 32;
		while (each > 1 && 32 / each * GRAD_TOGETHER < of.end - of.first)
			each /= 2;
		for (int turn = (of.before * ctas + own_tile) * WARPS + threadIdx.x / 32;
		     turn < ceil_div(elements, each); turn += of.all * ctas * WARPS) {
			const int element = turn * each + lane % each;
			const int position = element / entries, entry = element % entries;
			float sum;
			if (kind == GRAD_TABLE)
				sum = grad_table_sum(slot, p, home, of, entry);
			else if (kind == GRAD_ROW)
				sum = grad_position_sum<true>(slot, p, home, of, each, position, entry);
			else
				sum = grad_position_sum<false>(slot, p, home, of, each, position, entry);
			for (int i = 16; i >= each; i /= 2)
				sum += __shfl_xor_sync(~0u, sum, i);
			if (lane < each && element < elements)
				*grad_address(slot, &p, b, h, entry, position, position) = sum;
		}
	}
}
