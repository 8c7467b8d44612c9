// Gradient of the queries when sums must not depend on the order in which CTAs run (QUERY_APART), after bwd.cu in the same
// text: one CTA per query tile of one query head, past which the key tiles that it sees stream, from last to first. S and dP
// are computed a second time, dQ stays in registers: seven products in all instead of five, but no float32 sums in memory.
//
// As in the forward pass a warp owns rows, so that dS goes from accumulators to operands without shared memory: two 16-row
// blocks where registers allow it, which share what they read of K and V. Warps beyond that split the keys of a tile, and
// their parts of dQ are added at the end, in the order of the warps. A warp takes its keys in chunks, as many as leave the
// accumulators in registers.

// How many warps share the rows of a tile; the others split its keys.
DEVICE constexpr int query_down()
{
	int down = TILE_M / 16 / (STEPS_QK <= 8 ? 2 : 1);
	down = down < WARPS ? down : WARPS;
	return WARPS / down > TILE_N / 16 ? 2 * down : down;
}
constexpr int QUERY_DOWN = query_down(), QUERY_ACROSS = WARPS / QUERY_DOWN;
constexpr int QUERY_BLOCKS = TILE_M / 16 / QUERY_DOWN;  // 16-row blocks of a warp, neighbours
constexpr int QUERY_STEPS = TILE_N / 16 / QUERY_ACROSS; // 16-key steps of a warp, neighbours
static_assert(QUERY_STEPS > 0, "fewer warps or a larger tile: this one leaves warps without keys");

// Steps of a chunk: 64 keys at most, those of one dropout word.
DEVICE constexpr int query_chunk()
{
	int chunk = QUERY_STEPS < 4 ? QUERY_STEPS : 4;
	while (chunk > 1 && QUERY_BLOCKS * (16 * chunk + 8 * STEPS_QK) > 192)
		chunk /= 2;
	return chunk;
}
constexpr int QUERY_CHUNK = query_chunk();

struct QueryOwn : HeadKey<DROPOUT> { int b, h, q0; };
template <int STAGES_> struct alignas(16) QueryTiles {
	unsigned short query[TILE_M * CHUNKS_QK * 8]; // at the end dQ
	unsigned short dout[TILE_M * CHUNKS_V * 8];
	unsigned short key[STAGES_][TILE_N * CHUNKS_QK * 8];
	unsigned short value[STAGES_][TILE_N * CHUNKS_V * 8];
	Statistics rows;
	Visit visit[2]; // of this tile and the next, in turns; written when their loads are issued
	// Of the CTA; here and not in registers, which are full:
	const unsigned short *head_key, *head_value;
	QueryOwn own;
	WalkShared walk;
};
// Parts of dQ on their way to the warp that adds them lie over the tiles.
constexpr int QUERY_PART_BYTES = QUERY_ACROSS == 1 ? 0 : 64 * TILE_M * STEPS_QK;
template <int STAGES_> DEVICE constexpr int query_bytes()
{
	constexpr int bytes = sizeof(QueryTiles<STAGES_>) + Staged<1, 1, STAGES_, STAGES_>::BYTES;
	return bytes < QUERY_PART_BYTES ? QUERY_PART_BYTES : bytes;
}
// Two buffers of K and V where they were planned: where they cost no resident CTA.
constexpr int QUERY_STAGES = query_bytes<2>() == QUERY_SMEM_BYTES ? 2 : 1;
static_assert(query_bytes<QUERY_STAGES>() == QUERY_SMEM_BYTES,
              "shared memory of fagen_backward_query and gen/model_sm80_query.c disagree");
using QuerySmem = QueryTiles<QUERY_STAGES>;
using QueryBuffers = Staged<1, 1, QUERY_STAGES, QUERY_STAGES>;

extern "C" __global__ void __launch_bounds__(THREADS) fagen_backward_query(const __grid_constant__ fagen_abi p)
{
	extern __shared__ __align__(128) unsigned char smem_bytes[];
	QuerySmem &smem = *reinterpret_cast<QuerySmem *>(smem_bytes);
	const QueryBuffers staged(smem_bytes + sizeof(QuerySmem));

	const Owned owned = query_item(p, blockIdx.x, query_sections(p));
	if (owned.tile < 0)
		return;
	const int own = owned.tile, h = warp_uniform(owned.h), b = warp_uniform(owned.b);
	// Of this lane's warp; computed anew where it is used.
	const auto down = [] { return (int)(mov_tid_x() / 32 % QUERY_DOWN); };
	const auto across = [] { return (int)(mov_tid_x() / 32 / QUERY_DOWN); };

	if (threadIdx.x == 0) {
		const int h_kv = h / (KV_GROUP > 0 ? KV_GROUP : p.kv_group);
		walk_begin<true>(smem.walk, p, b, own * TILE_M);
		smem.head_key = head_address(p.key, b, h_kv, first_k(&p, b));
		smem.head_value = head_address(p.value, b, h_kv, first_k(&p, b));
		smem.own.b = b, smem.own.h = h, smem.own.q0 = own * TILE_M;
	}
	if (threadIdx.x == THREADS - 1) // beside the walk's beginning
		smem.own.dropout_make(p, b, h);
	__syncthreads(); // writers of these before their readers

	// Issues the load of the tile that comes after `next`, or notes that there is none.
	const auto step = [&](int next, int &tile, int &tile_class) {
		if (!walk_next<true>(smem.walk, p, smem.own.b, smem.own.h, smem.own.q0, next, tile, tile_class))
			tile = -1;
	};
	const auto load = [&](int seat, int tile, int tile_class) {
		const int stage = QUERY_STAGES == 2 ? seat : 0;
		if (tile >= 0) {
			const int k0 = tile * TILE_N;
			tile_load<TILE_N, HEAD_DIM_QK, CHUNKS_QK, THREADS>(cvta_shared(smem.key[stage]), smem.head_key,
			                                                   p.key.stride_seq, k0, walk_sk(smem.walk, p));
			tile_load<TILE_N, HEAD_DIM_V, CHUNKS_V, THREADS>(
				cvta_shared(smem.value[stage]), smem.head_value, p.value.stride_seq, k0, walk_sk(smem.walk, p));
			if constexpr (COL_INPUTS)
				cols_load(staged.cols(stage), &p, smem.own.b, smem.own.h, k0, mov_tid_x(), THREADS);
			if constexpr (CELL_INPUTS)
				cells_load(staged.cells(stage), &p, smem.own.b, smem.own.h, smem.own.q0, k0, mov_tid_x(), THREADS);
		}
		visit_note<true>(smem.visit[seat], p, smem.own.b, smem.own.h, smem.own.q0, tile, tile_class);
		cp_async_commit();
	};

	const int first_row = first_q(&p, b), sq = sequence_q(&p, b);
	tile_load<TILE_M, HEAD_DIM_QK, CHUNKS_QK, THREADS>(cvta_shared(smem.query),
	                                                   head_address(p.query, b, h, first_row),
	                                                   p.query.stride_seq, own * TILE_M, sq);
	tile_load<TILE_M, HEAD_DIM_V, CHUNKS_V, THREADS>(cvta_shared(smem.dout), head_address(p.dout, b, h, first_row),
	                                                 p.dout.stride_seq, own * TILE_M, sq);
	const auto *const rows = reinterpret_cast<const char *>(tile_statistics(p, tile_index(p, b, h, own)));
	for (int chunk = threadIdx.x; chunk < (int)sizeof(Statistics) / 16; chunk += THREADS)
		cp_async_16_zfill(cvta_shared(&smem.rows) + 16 * chunk, rows + 16 * chunk, true);
	if constexpr (HEAD_INPUTS)
		head_load(staged.head(0), &p, b, h, threadIdx.x, THREADS);
	if constexpr (ROW_INPUTS)
		rows_load(staged.rows(0), &p, b, h, own * TILE_M, threadIdx.x, THREADS);
	int first = -1, first_class = TILE_EMPTY;
	step(smem.walk.stream.next, first, first_class);
	load(0, first, first_class);

	float dquery[QUERY_BLOCKS][2 * STEPS_QK][4] = {};
	int seat = 0; // of the tile's note
#pragma unroll 1
	for (;;) {
		cp_async_wait<0>();
		__syncthreads(); // this tile of all threads before its readers; readers of the last one before its writers
		const Visit &now = smem.visit[seat];
		if (now.tile < 0)
			break;
		const int stage = QUERY_STAGES == 2 ? seat : 0;
		int next = -1, next_class = TILE_EMPTY;
		if constexpr (QUERY_STAGES == 2) {
			step(now.tile - 1, next, next_class);
			load(seat ^ 1, next, next_class);
		}

		const int k0 = now.tile * TILE_N;
		const Inputs in = {staged.head(0), staged.rows(0), staged.cols(stage), staged.cells(stage), smem.own.q0, k0,
		                   now.bits};
		const TileLane<CHUNKS_QK> query_lane(cvta_shared(smem.query), down() * 16 * QUERY_BLOCKS + lane_row_a(),
		                                     lane_chunk_a());
		const TileLane<CHUNKS_V> dout_lane(cvta_shared(smem.dout), down() * 16 * QUERY_BLOCKS + lane_row_a(),
		                                   lane_chunk_a());
#pragma unroll 1
		for (int chunk = 0; chunk < QUERY_STEPS / QUERY_CHUNK; chunk++) {
			// Its first key in the tile.
			const int chunk0 = 16 * (across() * QUERY_STEPS + chunk * QUERY_CHUNK);
			const int row_g = down() * 16 * QUERY_BLOCKS + mov_tid_x() % 32 / 4;
			const int b = smem.own.b, h = smem.own.h, q0 = smem.own.q0;
			const int k_lane = k0 + chunk0 + mov_tid_x() % 4 * 2;
			const bool careful = tile_careful<QUERY_BLOCKS>(smem.rows, row_g, now.tile_class);

			float s[QUERY_BLOCKS][2 * QUERY_CHUNK][4] = {};
			const TileLane<CHUNKS_QK> key_lane(cvta_shared(smem.key[stage]), chunk0 + lane_row_b(),
			                                   lane_chunk_b());
			product<STEPS_QK, false, false>(
				s, [&](int i, int depth) { return query_lane.at(16 * i, 2 * depth); },
				[&](int depth, int j) { return key_lane.at(16 * j, 2 * depth); },
				[](int) { return true; });

			// s becomes P * score_grad.
			const auto probabilities = [&](bool checked) {
#pragma unroll
				for (int i = 0; i < QUERY_BLOCKS; i++)
#pragma unroll
					for (int r = 0; r < 2; r++) {
						const int row_in = row_g + 16 * i + 8 * r;
						const RowState row = row_state(&p, &in, b, h, q0 + row_in, k_lane);
						const float lse2 = smem.rows.lse2[row_in];
#pragma unroll
						for (int j = 0; j < 2 * QUERY_CHUNK; j++)
#pragma unroll
							for (int e = 0; e < 2; e++) {
								const ColState col =
									col_state(&p, &in, b, h, k_lane, 8 * j + e);
								float &x = s[i][j][2 * r + e];
								const Scored scored = score_grad(x, row, col, &in);
								const float log2 = scored.score * LOGIT_SCALE - lse2;
								x = ex2(checked ? fminf(log2, 0) : log2) * scored.grad;
								// A hidden cell may have any derivative, NaN too.
								if (checked && !mask_keep(row, col, &in))
									x = 0;
							}
					}
			};
			if (careful)
				probabilities(true);
			else
				probabilities(false);

			float dp[QUERY_BLOCKS][2 * QUERY_CHUNK][4] = {};
			const TileLane<CHUNKS_V> value_lane(cvta_shared(smem.value[stage]), chunk0 + lane_row_b(),
			                                    lane_chunk_b());
			product<STEPS_V, false, false>(
				dp, [&](int i, int depth) { return dout_lane.at(16 * i, 2 * depth); },
				[&](int depth, int j) { return value_lane.at(16 * j, 2 * depth); },
				[](int) { return true; });

			// Packed pairs: rows g, g + 8 of each 8-key block.
			unsigned dscore[QUERY_BLOCKS][2 * QUERY_CHUNK][2];
#pragma unroll
			for (int i = 0; i < QUERY_BLOCKS; i++) {
				unsigned kept = 0;
				if constexpr (DROPOUT)
					kept = dropout_bits(smem.own.dropout, q0 + row_g + 16 * i, k_lane)
					       << (k_lane / 8 % 8);
#pragma unroll
				for (int r = 0; r < 2; r++) {
					const float delta = smem.rows.delta[row_g + 16 * i + 8 * r];
#pragma unroll
					for (int j = 0; j < 2 * QUERY_CHUNK; j++) {
						float ds[2];
#pragma unroll
						for (int e = 0; e < 2; e++) {
							float x = dp[i][j][2 * r + e];
							if constexpr (DROPOUT) {
								const unsigned sign = prmt(
									kept << j, 0, 0x8888 + 0x1111 * (2 * r + e));
								x = __uint_as_float(__float_as_uint(x) & sign) *
								    KEEP_SCALE;
							}
							ds[e] = s[i][j][2 * r + e] * (x - delta);
						}
						dscore[i][j][r] = cvt_rn_x2(ds[0], ds[1], Element{});
					}
				}
			}

			// B operand from K, transposed.
			const TileLane<CHUNKS_QK> depth_lane(cvta_shared(smem.key[stage]), chunk0 + lane_row_a(),
			                                     lane_chunk_a());
#pragma unroll
			for (int depth = 0; depth < QUERY_CHUNK; depth++)
#pragma unroll
				for (int c = 0; c < STEPS_QK; c++) {
					unsigned k[4];
					ldmatrix_x4_trans(k, depth_lane.at(16 * depth, 2 * c));
#pragma unroll
					for (int i = 0; i < QUERY_BLOCKS; i++) {
						const unsigned a[4] = {dscore[i][2 * depth][0], dscore[i][2 * depth][1],
						                       dscore[i][2 * depth + 1][0],
						                       dscore[i][2 * depth + 1][1]};
						mma_m16n8k16(dquery[i][2 * c], a, k[0], k[1], Element{});
						mma_m16n8k16(dquery[i][2 * c + 1], a, k[2], k[3], Element{});
					}
				}
		}
		if constexpr (QUERY_STAGES == 1) {
			step(now.tile - 1, next, next_class);
			__syncthreads(); // readers of K and V before they are overwritten
			load(seat ^ 1, next, next_class);
		}
		seat ^= 1;
	}

	// All readers of the tiles are past the barrier. What is read here parts may overwrite.
	const int lane = mov_tid_x() % 32, out_b = smem.own.b, out_h = smem.own.h, out_q0 = smem.own.q0;
	if constexpr (QUERY_ACROSS > 1)
		__syncthreads(); // readers of these, and of the last note, before the writers of the parts
	float4 *const parts = reinterpret_cast<float4 *>(smem_bytes) + down() * QUERY_BLOCKS * 2 * STEPS_QK * 32 + lane;
#pragma unroll 1
	for (int turn = 1; turn < QUERY_ACROSS; turn++) {
		if (across() == turn)
#pragma unroll
			for (int i = 0; i < QUERY_BLOCKS; i++)
#pragma unroll
				for (int j = 0; j < 2 * STEPS_QK; j++) {
					const float(&x)[4] = dquery[i][j];
					parts[(i * 2 * STEPS_QK + j) * 32] = make_float4(x[0], x[1], x[2], x[3]);
				}
		__syncthreads(); // writers of the parts before their readers
		if (across() == 0)
#pragma unroll
			for (int i = 0; i < QUERY_BLOCKS; i++)
#pragma unroll
				for (int j = 0; j < 2 * STEPS_QK; j++) {
					const float4 x = parts[(i * 2 * STEPS_QK + j) * 32];
					float(&sum)[4] = dquery[i][j];
					sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
				}
		__syncthreads(); // readers of the parts before their writers
	}
	if (across() != 0)
		return;
	const int q = out_q0 + down() * 16 * QUERY_BLOCKS + lane / 4, slot = slot_q(&p, out_b);
	unsigned short *const to = head_address(p.dquery, out_b, out_h, first_q(&p, out_b)) + q * p.dquery.stride_seq;
#pragma unroll
	for (int i = 0; i < QUERY_BLOCKS; i++)
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const int apart = 16 * i + 8 * r;
			row_store<HEAD_DIM_QK / 8>(
				to + apart * p.dquery.stride_seq,
				[&](int j) {
					return cvt_rn_x2(dquery[i][j][2 * r] * SOFTMAX_SCALE, dquery[i][j][2 * r + 1] * SOFTMAX_SCALE, Element{});
				},
				[](int j) { return j; }, lane % 4, true, q + apart < slot);
		}
}
