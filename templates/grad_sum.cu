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

// An entry of a table, over all tiles of all heads that share it: the same in all lanes. A lane has a head, or of heads with many
// tiles a tile.
DEVICE float grad_table_sum(int slot, const fagen_abi &p, const float *home, int entry)
{
	const int heads = p.batch * p.heads_q, lane = threadIdx.x % 32, at = grad_base(slot) + entry;
	float sum = 0;
	for (int first = 0; first < heads; first += 32) {
		const bool shares = first + lane < heads && grad_home(slot, p, first + lane) == home;
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
	for (int i = 16; i > 0; i /= 2)
		sum += __shfl_xor_sync(~0u, sum, i);
	return sum;
}

// How many heads share `home`, and how many of them come before `head`.
struct Sharers { int before, all; };
DEVICE Sharers grad_sharers(int slot, const fagen_abi &p, const float *home, int head)
{
	Sharers of = {0, 0};
	for (int first = 0; first < p.batch * p.heads_q; first += 32) {
		const int other = first + threadIdx.x % 32;
		const bool shares = other < p.batch * p.heads_q && grad_home(slot, p, other) == home;
		of.before += __popc(__ballot_sync(~0u, shares && other < head));
		of.all += __popc(__ballot_sync(~0u, shares));
	}
	return of;
}

// Adds up the partial sums of the heads that share elements: of a table all their CTAs, of rows and columns those of the first head.
extern "C" __global__ void __launch_bounds__(THREADS) fagen_input_grad_sum(const __grid_constant__ fagen_abi p)
{
	// Sharers may be longer than the first of them: its CTAs go through all tiles that any may have.
	const Owned own = rows_owned<TILE_M>(p);
	const int b = own.b, h = own.h, heads = p.batch * p.heads_q, head = b * p.heads_q + h, tiles = own.tiles;
	const int own_tile = (int)blockIdx.x - tile_index(p, b, h, 0);
	if (h >= p.heads_q || own_tile < 0)
		return;
	for (int slot = 0; slot < GRADS; slot++) {
		const int kind = grad_kind(slot), entries = grad_entries(slot), base = grad_base(slot);
		if (kind == GRAD_NONE || kind == GRAD_CELL || grad_elements(slot, &p) == 0)
			continue;
		const float *const home = grad_home(slot, p, head);
		if (kind == GRAD_TABLE) { // an entry for a warp; packed, each head has one CTA at least
			const Sharers sharers = grad_sharers(slot, p, home, head);
			const int ctas = LAYOUT == LAYOUT_PACKED ? 1 : tiles;
			if (own_tile < ctas)
				for (int entry = (sharers.before * ctas + own_tile) * WARPS + threadIdx.x / 32; entry < entries;
				     entry += sharers.all * ctas * WARPS) {
					const float sum = grad_table_sum(slot, p, home, entry);
					if (threadIdx.x % 32 == 0)
						*grad_address(slot, &p, b, h, entry, 0, 0) = sum;
				}
			continue;
		}
		if ((LAYOUT != LAYOUT_DENSE && !home) || grad_sharer(slot, p, home, 0) != head)
			continue;
		if (kind == GRAD_ROW)
			for (int first = 0; first < TILE_M * entries;
			     first += THREADS) { // all lanes take part in grad_sharer
				const int i = first + threadIdx.x, q = own_tile * TILE_M + i / entries;
				const bool inside = i < TILE_M * entries && q < slot_q(&p, b);
				float sum = 0;
				for (int other = head; other < heads; other = grad_sharer(slot, p, home, other + 1))
					if (inside && own_tile < grad_tiles_q(p, other))
						sum += grad_partial(p, other,
						                    own_tile)[GRAD_TABLE_FLOATS + TILE_M * base + i];
				if (inside)
					*grad_address(slot, &p, b, h, i % entries, q, 0) = sum;
			}
		else
			for (int tile = own_tile; tile < ceil_div(slot_k(&p, b), TILE_N); tile += tiles)
				for (int first = 0; first < TILE_N; first += THREADS) {
					const int i = first + threadIdx.x, k = tile * TILE_N + i;
					const bool inside = i < TILE_N && k < slot_k(&p, b);
					float sum = 0;
					for (int other = head; other < heads;
					     other = grad_sharer(slot, p, home, other + 1))
						if (inside && tile < grad_tiles_k(p, other))
							sum += grad_partial_cols(p, other, tile)[TILE_N * base + i];
					if (inside)
						*grad_address(slot, &p, b, h, 0, 0, k) = sum;
				}
	}
}
