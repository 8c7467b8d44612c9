// Gradients of inputs, after input_grad.cu in the same text: what does the same for key tiles.

using GradColBuffers = Staged<1, 2, 1, 2>;
static_assert(GRAD_COLS == 0 || sizeof(GradSmem) + GradColBuffers::BYTES == GRAD_COLS_SMEM_BYTES,
              "shared memory of fagen_input_grad_cols and gen/model_sm80_grad.c disagree");
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

	float col_sum[GRAD_COLS > 0 ? GRAD_COLS : 1][2 * STEPS_G][2] = {};
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
		float s[BLOCKS_G][2 * STEPS_G][4], dp[BLOCKS_G][2 * STEPS_G][4];
		product_s<STEPS_QK>(s, cvta_shared(smem.query), cvta_shared(smem.key), ShareG::down() * 16 * BLOCKS_G, ShareG::across() * 16 * STEPS_G);
		product_s<STEPS_V>(dp, cvta_shared(smem.dout), cvta_shared(smem.value), ShareG::down() * 16 * BLOCKS_G, ShareG::across() * 16 * STEPS_G);
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
	float *const part = reinterpret_cast<float *>(smem_bytes); // [ShareG::DOWN][GRAD_COLS][TILE_N]
	static_assert(4 * ShareG::DOWN * GRAD_COLS * TILE_N <= (int)sizeof(GradSmem), "sums of keys fit where Q was");
	__syncthreads(); // readers of the tiles before the sums overwrite them
#pragma unroll
	for (int c = 0; c < GRAD_COLS; c++)
#pragma unroll
		for (int j = 0; j < 2 * STEPS_G; j++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				float sum = col_sum[c][j][e];
				for (int i = 4; i < 32; i *= 2)
					sum += __shfl_xor_sync(~0u, sum, i);
				if (threadIdx.x % 32 < 4)
					part[(ShareG::down() * GRAD_COLS + c) * TILE_N + grad_col() + 8 * j + e] = sum;
			}
	__syncthreads(); // writers of the sums before their readers
	for (int i = threadIdx.x; i < GRAD_PARTIAL_COLS; i += THREADS) {
		float sum = 0;
		for (int down = 0; down < ShareG::DOWN; down++)
			sum += part[down * GRAD_PARTIAL_COLS + i];
		grad_partial_cols(p, head, own_tile)[i] = sum;
	}
}
