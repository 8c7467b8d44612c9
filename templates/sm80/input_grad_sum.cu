// Gradients of inputs, after input_grad.cu in the same text: what comes before the kernel of query tiles, what does the same
// for key tiles, and what adds up the partial sums.

using GradColBuffers = Staged<1, 2, 1, 2>;
static_assert(GRAD_COLS == 0 || sizeof(GradSmem) + GradColBuffers::BYTES == GRAD_COLS_SMEM_BYTES,
              "shared memory of fagen_input_grad_cols and gen/model_sm80_grad.c disagree");
constexpr int GRAD_PARTIAL_COLS = TILE_N * GRAD_COLS; // floats of partial sums of a key tile

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

DEVICE float *grad_partial_cols(const fagen_abi &p, int head, int tile)
{
	return reinterpret_cast<float *>(p.grad_partial_cols) + (long long)tile_number(p.cu_seqlens_k, p.seqlen_k,
	                                                                               p.heads_q, head / p.heads_q,
	                                                                               head % p.heads_q, tile, TILE_N) *
	                                                                GRAD_PARTIAL_COLS;
}

// One key tile of one query head: sums over its rows.
extern "C" __global__ void __launch_bounds__(THREADS, 1) fagen_input_grad_cols(const __grid_constant__ fagen_abi p)
{
	extern __shared__ __align__(128) unsigned char smem_bytes[];
	GradSmem &smem = *reinterpret_cast<GradSmem *>(smem_bytes);
	const GradColBuffers staged(smem_bytes + sizeof(GradSmem));
	if (GRAD_COLS == 0 || !grad_wanted(p))
		return;
	const Owned own = keys_owned<TILE_N>(p, p.heads_q);
	if (own.tile < 0)
		return;
	const int own_tile = own.tile, head = own.b * p.heads_q + own.h, k0 = own_tile * TILE_N;
	const int b = warp_uniform(own.b), h = warp_uniform(own.h);
	const int h_kv = h / (KV_GROUP > 0 ? KV_GROUP : p.kv_group);
	if (threadIdx.x == 0)
		walk_begin<false>(smem.walk, p, b, k0);
	__syncthreads(); // writer of the walk before its readers

	int next = smem.walk.stream.next, tile = -1, tile_class = TILE_EMPTY, buffer = 0;
	const auto load_next = [&] {
		if (!walk_next<false>(smem.walk, p, b, h, k0, next, tile, tile_class))
			tile = -1;
		if (tile >= 0) {
			const int q0 = tile * TILE_M;
			grad_load_rows(smem, buffer, p, b, h, tile);
			if constexpr (ROW_INPUTS)
				rows_load(staged.rows(buffer), &p, b, h, q0, threadIdx.x, THREADS);
			if constexpr (CELL_INPUTS)
				cells_load(staged.cells(buffer), &p, b, h, q0, k0, threadIdx.x, THREADS);
		}
		cp_async_commit();
	};
	tile_load<TILE_N, HEAD_DIM_QK, CHUNKS_QK, THREADS>(cvta_shared(smem.key),
	                                                   head_address(p.key, b, h_kv, first_k(&p, b)),
	                                                   p.key.stride_seq, k0, sequence_k(&p, b));
	tile_load<TILE_N, HEAD_DIM_V, CHUNKS_V, THREADS>(cvta_shared(smem.value),
	                                                 head_address(p.value, b, h_kv, first_k(&p, b)),
	                                                 p.value.stride_seq, k0, sequence_k(&p, b));
	if constexpr (HEAD_INPUTS)
		head_load(staged.head(0), &p, b, h, threadIdx.x, THREADS);
	if constexpr (COL_INPUTS)
		if (LAYOUT == LAYOUT_DENSE || k0 < sequence_k(&p, b))
			cols_load(staged.cols(0), &p, b, h, k0, threadIdx.x, THREADS);
	load_next();

	float col_sum[GRAD_COLS > 0 ? GRAD_COLS : 1][2 * STEPS_S][2] = {};
#pragma unroll 1
	while (tile >= 0) {
		const Inputs in = {staged.head(0),
		                   staged.rows(buffer),
		                   staged.cols(0),
		                   staged.cells(buffer),
		                   tile * TILE_M,
		                   k0,
		                   0};
		const GradTile at = grad_tile(p, in, b, h, tile_class);
		const Statistics &rows = smem.rows[buffer];
		cp_async_wait<0>();
		__syncthreads(); // the tile of all threads before its readers
		float s[BLOCKS_S][2 * STEPS_S][4], dp[BLOCKS_S][2 * STEPS_S][4];
		product_s<STEPS_QK>(s, cvta_shared(smem.query), cvta_shared(smem.key));
		product_s<STEPS_V>(dp, cvta_shared(smem.dout), cvta_shared(smem.value));
		__syncthreads(); // readers of Q and dO before their writers
		buffer ^= 1;
		load_next();
		grad_dscores(s, dp, rows, at);
#pragma unroll
		for (int a = 0; a < GRAD_ACCESSES; a++) {
			const int slot = grad_slot(a);
			if (grad_kind(slot) == GRAD_COL)
				grad_each(at,
				          [&](int i, int j, int e, int row_in, int col_in, RowState row, ColState col) {
						  col_sum[grad_base(slot)][j][e % 2] +=
							  grad_cell(a, s[i][j][e], dp[i][j][e], row, col, at);
					  });
		}
	}
	cp_async_wait<0>();
	float *const part = reinterpret_cast<float *>(smem_bytes); // [ShareS::DOWN][GRAD_COLS][TILE_N]
	static_assert(4 * ShareS::DOWN * GRAD_COLS * TILE_N <= (int)sizeof(GradSmem), "sums of keys fit where Q was");
	__syncthreads(); // readers of the tiles before the sums overwrite them
#pragma unroll
	for (int c = 0; c < GRAD_COLS; c++)
#pragma unroll
		for (int j = 0; j < 2 * STEPS_S; j++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				float sum = col_sum[c][j][e];
				for (int i = 4; i < 32; i *= 2)
					sum += __shfl_xor_sync(~0u, sum, i);
				if (threadIdx.x % 32 < 4)
					part[(ShareS::down() * GRAD_COLS + c) * TILE_N + grad_col() + 8 * j + e] = sum;
			}
	__syncthreads(); // writers of the sums before their readers
	for (int i = threadIdx.x; i < GRAD_PARTIAL_COLS; i += THREADS) {
		float sum = 0;
		for (int down = 0; down < ShareS::DOWN; down++)
			sum += part[down * GRAD_PARTIAL_COLS + i];
		grad_partial_cols(p, head, own_tile)[i] = sum;
	}
}

// Tiles of a head that left partial sums.
DEVICE int grad_tiles_q(const fagen_abi &p, int head) { return ceil_div(sequence_q(&p, head / p.heads_q), TILE_M); }
DEVICE int grad_tiles_k(const fagen_abi &p, int head) { return ceil_div(sequence_k(&p, head / p.heads_q), TILE_N); }

// Adds up the partial sums of the heads that share elements: the CTAs of the first of them do it.
extern "C" __global__ void __launch_bounds__(THREADS) fagen_input_grad_sum(const __grid_constant__ fagen_abi p)
{
	// Sharers may be longer than the first of them: its CTAs go through all tiles that any may have.
	const Owned own = rows_owned<TILE_M>(p);
	const int b = own.b, h = own.h, heads = p.batch * p.heads_q, head = b * p.heads_q + h, tiles = own.tiles;
	const int own_tile = (int)blockIdx.x - tile_index(p, b, h, 0);
	if (h >= p.heads_q)
		return;
	for (int slot = 0; slot < GRADS; slot++) {
		const int kind = grad_kind(slot), entries = grad_entries(slot), base = grad_base(slot);
		if (kind == GRAD_NONE || kind == GRAD_CELL || grad_elements(slot, &p) == 0)
			continue;
		const float *const home = grad_home(slot, p, head);
		if ((LAYOUT != LAYOUT_DENSE && !home) || grad_sharer(slot, p, home, 0) != head)
			continue;
		if (kind == GRAD_TABLE) // an entry for a warp, a tile for a lane
			for (int entry = own_tile * WARPS + threadIdx.x / 32; entry < entries; entry += tiles * WARPS) {
				float sum = 0;
				for (int other = head; other < heads; other = grad_sharer(slot, p, home, other + 1))
					for (int tile = threadIdx.x % 32; tile < grad_tiles_q(p, other); tile += 32)
						sum += grad_partial(p, other, tile)[base + entry];
				for (int i = 16; i > 0; i /= 2)
					sum += __shfl_xor_sync(~0u, sum, i);
				if (threadIdx.x % 32 == 0)
					*grad_address(slot, &p, b, h, entry, 0, 0) = sum;
			}
		else if (kind == GRAD_ROW)
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
