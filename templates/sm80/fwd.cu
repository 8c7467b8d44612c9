// Forward, portable schedule (FlashAttention-2, Dao 2023, section 3): one CTA per query tile of one head; every warp owns
// 16 * BLOCKS_M query rows and all keys of a tile, so that softmax stays inside quads of lanes. K and V tiles stream
// through STAGES buffers by cp.async; S, P and O live in registers; P is used as a matrix operand where it was made.
//
// Loads run AHEAD = STAGES - 1 tiles in front of their use. Groups are committed in the order K, V, K, V, ... (empty ones
// past the end), so a wait that leaves 2 * AHEAD groups pending always means "the tile about to be used has landed".
//
// The walk is AHEAD + 1 visits in front: visit n takes seat n % SEATS, and its K and V the buffers n % STAGES. Everything about
// a visit is read from its seat where it is needed; the loop keeps a seat and a stage, for its registers are full.

constexpr int BLOCKS_M = TILE_M / (16 * WARPS);   // 16-row blocks of a warp
constexpr int BLOCKS_N = TILE_N / 8;              // 8-key blocks of S
constexpr int BLOCKS_V = HEAD_DIM_V / 8;          // 8-column blocks of O
constexpr int STEPS_QK = (HEAD_DIM_QK + 15) / 16; // k16 steps of Q K^T
constexpr int STEPS_V = (HEAD_DIM_V + 15) / 16;   // 16-column steps of a V row
constexpr int CHUNKS_QK = 2 * STEPS_QK;           // 16-byte chunks of a shared Q or K row, zero past HEAD_DIM_QK
constexpr int CHUNKS_V = 2 * STEPS_V;
constexpr int AHEAD = STAGES - 1;
constexpr int SEATS = STAGES + 1;
static_assert(TILE_M % (16 * WARPS) == 0 && TILE_N % 16 == 0, "tiles are made of 16x8x16 matrix products");
static_assert(!DROPOUT || TILE_N % 64 == 0 || 64 % TILE_N == 0, "dropout words cover blocks of 64 keys");

struct alignas(16) Smem {
	unsigned short query[TILE_M * CHUNKS_QK * 8];        // [TILE_M][CHUNKS_QK], swizzled chunks
	unsigned short key[STAGES][TILE_N * CHUNKS_QK * 8];  // [TILE_N][CHUNKS_QK]
	unsigned short value[STAGES][TILE_N * CHUNKS_V * 8]; // [TILE_N][CHUNKS_V]

	// What is used once a tile stays here and not in registers, which are full.
	// Of each lane's rows g, g + 8 of every 16-row block; read and written by their lane alone:
	float row_max[2 * BLOCKS_M][THREADS]; // the reference that P is taken against
	float row_sum[2 * BLOCKS_M][THREADS]; // the lane's part of the sum of P
	// Of the CTA:
	const unsigned short *head_key, *head_value; // row 0 of its head
	DropoutKey dropout;
	Visit visit[SEATS];
	WalkShared walk; // over the key tiles
	int q0, h, b;
	int running; // 1: references rise
};
// Inputs of the head and of the query rows are loaded once, with the first K; those of a key tile travel with its V.
using Buffers = Staged<1, 1, STAGES, STAGES>;
static_assert(sizeof(Smem) + Buffers::BYTES == SMEM_BYTES, "shared memory and gen/model_sm80_fwd.c disagree");

// Clears the halves of packed P pairs whose dropout bit is 0. After `word << n8 block`, the decision of row half r and
// column parity e is the sign of byte 2r + e, and prmt in sign mode spreads it over a 16-bit half.
DEVICE void dropout_pairs(unsigned &row_low, unsigned &row_high, unsigned word)
{
	row_low &= prmt(word, word, 0x9988);
	row_high &= prmt(word, word, 0xBBAA);
}

// Where the S accumulators of a lane lie: its first row and first column, of batch b and query head h.
struct Cells {
	const fagen_abi *p;
	Inputs in;
	int b, h, row, col;
};

// change(cell, row state, column state) for every accumulator of S. Columns are many and rows few: the states of all rows
// are held, those of the columns pass by.
template <class Change> DEVICE void each_cell(float (&s)[BLOCKS_M][BLOCKS_N][4], const Cells &at, Change change)
{
	RowState row[BLOCKS_M][2];
#pragma unroll
	for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
		for (int r = 0; r < 2; r++)
			row[i][r] = row_state(at.p, &at.in, at.b, at.h, at.row + 16 * i + 8 * r, at.col);
#pragma unroll
	for (int j = 0; j < BLOCKS_N; j++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const ColState col = col_state(at.p, &at.in, at.b, at.h, at.col, 8 * j + e);
#pragma unroll
			for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
				for (int r = 0; r < 2; r++)
					change(s[i][j][2 * r + e], row[i][r], col);
		}
}

// What item number i of the launch is.
DEVICE Owned item_owned(const fagen_abi &p, unsigned i) { return query_item(p, i, query_sections(p)); }

// Are a thread's rows what they would be with references that rise, up to rounding?
DEVICE bool rows_trusted(const Smem &smem, const float (&acc)[BLOCKS_M][BLOCKS_V][4])
{
	bool trusted = true;
#pragma unroll
	for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
		for (int r = 0; r < 2; r++) {
			float finite = 0; // NaN as soon as something is infinite or NaN
#pragma unroll
			for (int j = 0; j < BLOCKS_V; j++)
				finite += acc[i][j][2 * r] * 0.0f + acc[i][j][2 * r + 1] * 0.0f;
			const float max = smem.row_max[2 * i + r][mov_tid_x()], sum = quad_sum(smem.row_sum[2 * i + r][mov_tid_x()]);
			const bool good = fabsf(max * LOGIT_SCALE) <= LARGE_LOGIT && sum >= sum_least(Element{}) && sum <= SUM_MOST && finite == 0;
			trusted &= good || max == minus_infinity();
		}
	return trusted;
}

extern "C" __global__ void __launch_bounds__(THREADS) fagen_forward(const __grid_constant__ fagen_abi p)
{
	extern __shared__ __align__(128) unsigned char smem_bytes[];
	Smem &smem = *reinterpret_cast<Smem *>(smem_bytes);
	const Buffers staged(smem_bytes + sizeof(Smem));

	const Owned own = item_owned(p, item_at(p, blockIdx.x));
	if (own.tile < 0)
		return;
	const int q0 = own.tile * TILE_M;
	const int h = warp_uniform(own.h);
	const int b = warp_uniform(own.b);
	const int h_kv = warp_uniform(h / (KV_GROUP > 0 ? KV_GROUP : p.kv_group));

	// In an accumulator this lane holds rows g, g + 8 and columns 2t, 2t + 1 of each block; row_g is g's query position.
	// Everything derived from the thread index is computed anew where it is used: the loop has no register to spare.
	const auto lane_row_g = [&] {
		return smem.q0 + (int)(mov_tid_x() / 32 * (16 * BLOCKS_M) + mov_tid_x() % 32 / 4);
	};
	const auto lane_2t = [] { return (int)(mov_tid_x() % 4 * 2); };

	const auto *query = reinterpret_cast<const unsigned short *>(p.query.data) +
	                    entry_offset(p.query, b, first_q(&p, b)) + h * p.query.stride_head;
	if (threadIdx.x == 0) {
		smem.head_key = reinterpret_cast<const unsigned short *>(p.key.data) +
		                entry_offset(p.key, b, first_k(&p, b)) + h_kv * p.key.stride_head;
		smem.head_value = reinterpret_cast<const unsigned short *>(p.value.data) +
		                  entry_offset(p.value, b, first_k(&p, b)) + h_kv * p.value.stride_head;
		walk_begin<true>(smem.walk, p, b, q0);
		smem.q0 = q0, smem.h = h, smem.b = b;
		smem.running = !SPECULATE || stream_tiles_most(&smem.walk.stream) <= SHORT_KEYS / TILE_N;
	}
	if (DROPOUT && threadIdx.x == THREADS - 1) // beside the walk's beginning
		smem.dropout = dropout_key(p, b, h);
	__syncthreads(); // writer of these before their readers

	// Seats the visit that comes after a tile (-1: none is left) and returns its tile.
	const auto advance = [&](int after, int seat) {
		int next = after - 1, tile, tile_class = TILE_EMPTY;
		if (!walk_next<true>(smem.walk, p, smem.b, smem.h, smem.q0, next, tile, tile_class))
			tile = -1;
		visit_note<true>(smem.visit[seat], p, smem.b, smem.h, smem.q0, tile, tile_class);
		return tile;
	};
	const auto load_key = [&](int tile, int stage) {
		if (tile >= 0)
			tile_load<TILE_N, HEAD_DIM_QK, CHUNKS_QK, THREADS>(cvta_shared(smem.key[stage]), smem.head_key,
			                                                   p.key.stride_seq, tile * TILE_N,
			                                                   walk_sk(smem.walk, p));
		cp_async_commit();
	};
	const auto load_value = [&](int tile, int stage) {
		if (tile >= 0) {
			tile_load<TILE_N, HEAD_DIM_V, CHUNKS_V, THREADS>(cvta_shared(smem.value[stage]),
			                                                 smem.head_value, p.value.stride_seq,
			                                                 tile * TILE_N, walk_sk(smem.walk, p));
			if constexpr (COL_INPUTS)
				cols_load(staged.cols(stage), &p, smem.b, smem.h, tile * TILE_N, mov_tid_x(), THREADS);
			if constexpr (CELL_INPUTS)
				cells_load(staged.cells(stage), &p, smem.b, smem.h, smem.q0, tile * TILE_N, mov_tid_x(),
				           THREADS);
		}
		cp_async_commit();
	};

	// These join the group of the first K.
	tile_load<TILE_M, HEAD_DIM_QK, CHUNKS_QK, THREADS>(cvta_shared(smem.query), query, p.query.stride_seq, q0,
	                                                   sequence_q(&p, b));
	if constexpr (HEAD_INPUTS)
		head_load(staged.head(0), &p, b, h, threadIdx.x, THREADS);
	if constexpr (ROW_INPUTS)
		if (LAYOUT == LAYOUT_DENSE || q0 < sequence_q(&p, b))
			rows_load(staged.rows(0), &p, b, h, q0, threadIdx.x, THREADS);

	float acc[BLOCKS_M][BLOCKS_V][4]; // O, unnormalised
#pragma unroll 1
	do { // once; or again, with references that rise
		int first = advance(smem.walk.stream.next + 1, 0);
		load_key(first, 0);
#pragma unroll
		for (int i = 1; i <= AHEAD; i++) {
			load_value(first, i - 1);
			first = advance(first, i);
			load_key(first, i);
		}
#pragma unroll
		for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
			for (int j = 0; j < BLOCKS_V; j++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					acc[i][j][e] = 0;
#pragma unroll
		for (int i = 0; i < 2 * BLOCKS_M; i++)
			smem.row_max[i][mov_tid_x()] = minus_infinity(), smem.row_sum[i][mov_tid_x()] = 0;

		int stage = 0; // of the buffers in use
		for (unsigned seat = 0;; seat = (seat + 1) % SEATS) {
			const auto seat_before = [&](int n) { return (seat + SEATS - n) % SEATS; };
			cp_async_wait<2 * AHEAD>();
			__syncthreads(); // K(tile) of all threads before its readers; readers of the previous V before it is overwritten
			const Visit &visit = smem.visit[seat];
			if (visit.tile < 0)
				break;
			const int newest = smem.visit[seat_before(2)].tile;
			load_value(newest, stage == 0 ? STAGES - 1 : stage - 1);
			advance(newest, seat_before(1)); // its readers are past the barrier

			// ldmatrix, A operand: rows lane%16, chunk lane/16; B operand, two 8-key blocks: keys lane%8 + 8*(lane/16), chunk lane/8%2.
			const int l = mov_tid_x() % 32;
			const TileLane<CHUNKS_QK> query_lane(cvta_shared(smem.query), mov_tid_x() / 32 * 16 * BLOCKS_M + l % 16,
			                                     l / 16);
			const TileLane<CHUNKS_QK> key_lane(cvta_shared(smem.key[stage]), l % 8 + 8 * (l / 16), l / 8 % 2);
			float s[BLOCKS_M][BLOCKS_N][4] = {};
#pragma unroll
			for (int step = 0; step < STEPS_QK; step++) {
				unsigned a[BLOCKS_M][4];
#pragma unroll
				for (int i = 0; i < BLOCKS_M; i++)
					ldmatrix_x4(a[i], query_lane.at(16 * i, 2 * step));
#pragma unroll
				for (int j = 0; j < BLOCKS_N; j += 2) {
					unsigned k[4];
					ldmatrix_x4(k, key_lane.at(8 * j, 2 * step));
#pragma unroll
					for (int i = 0; i < BLOCKS_M; i++) {
						mma_m16n8k16(s[i][j], a[i], k[0], k[1], Element{});
						mma_m16n8k16(s[i][j + 1], a[i], k[2], k[3], Element{});
					}
				}
			}
			cp_async_wait<2 * AHEAD>();
			__syncthreads(); // V(tile) of all threads before its readers; readers of K(tile) before it is overwritten
			load_key(smem.visit[seat_before(1)].tile, stage);

			const int k0 = visit.tile * TILE_N;
			const Cells cells = {
				&p,
				{staged.head(0), staged.rows(0), staged.cols(stage), staged.cells(stage), smem.q0, k0, visit.bits},
				smem.b,
				smem.h,
				lane_row_g(),
				k0 + lane_2t()};
			if constexpr (!SCORE_IDENTITY) {
				bool exact = true;
				if constexpr (SCORE_SHORT) { // it rises with s: what holds for the largest holds for all
					float largest = 0;
#pragma unroll
					for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
						for (int j = 0; j < BLOCKS_N; j++)
#pragma unroll
							for (int e = 0; e < 4; e++)
								largest = fmaxf(largest, fabsf(s[i][j][e]));
					exact = __any_sync(~0u, score_short(largest, 0) > SHORT_LOGIT);
				}
				if (exact)
					each_cell(s, cells, [&](float &x, RowState row, ColState col) {
						x = score(x, row, col, &cells.in);
					});
				else
					each_cell(s, cells, [&](float &x, RowState, ColState) {
						x = score_short(x, 0) * (1 / LOGIT_SCALE);
					});
			}
			if (visit.tile_class != TILE_FULL)
				each_cell(s, cells, [&](float &x, RowState row, ColState col) {
					x = mask_keep(row, col, &cells.in) ? x : minus_infinity();
				});

			// The reference of each row, and whether one must rise.
			float row_max[BLOCKS_M][2];
			bool unknown = false;
#pragma unroll
			for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
				for (int r = 0; r < 2; r++) {
					row_max[i][r] = smem.row_max[2 * i + r][mov_tid_x()];
					unknown |= row_max[i][r] == minus_infinity();
				}
			if (!SPECULATE || smem.running || __any_sync(~0u, unknown)) {
				bool rise = false;
#pragma unroll
				for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
					for (int r = 0; r < 2; r++) {
						float m = fmaxf(s[i][0][2 * r], s[i][0][2 * r + 1]);
#pragma unroll
						for (int j = 1; j < BLOCKS_N; j++)
							m = fmaxf(m, fmaxf(s[i][j][2 * r], s[i][j][2 * r + 1]));
						m = quad_max(m);
						const float before = row_max[i][r];
						const bool up = (m - before) * LOGIT_SCALE > LAZY_LOG2; // false when both are -inf
						row_max[i][r] = up ? m : before;
						rise |= up;
					}
				if (__any_sync(~0u, rise)) {
#pragma unroll
					for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
						for (int r = 0; r < 2; r++) {
							float &before = smem.row_max[2 * i + r][mov_tid_x()];
							// 0 when there was no reference yet; a row that has none still, has nothing to scale.
							const float factor = row_max[i][r] == minus_infinity()
							                             ? 0
							                             : ex2((before - row_max[i][r]) * LOGIT_SCALE);
							before = row_max[i][r];
							smem.row_sum[2 * i + r][mov_tid_x()] *= factor;
#pragma unroll
							for (int j = 0; j < BLOCKS_V; j++)
								acc[i][j][2 * r] *= factor, acc[i][j][2 * r + 1] *= factor;
						}
				}
			}

			// P = 2^(LOGIT_SCALE * (s - max)), in one FMA and one EX2 a cell.
			float shift[BLOCKS_M][2]; // LOGIT_SCALE * max
			bool large = false;
#pragma unroll
			for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
				for (int r = 0; r < 2; r++) {
					row_max[i][r] = row_max[i][r] == minus_infinity() ? 0 : row_max[i][r];
					shift[i][r] = row_max[i][r] * LOGIT_SCALE;
					large |= fabsf(shift[i][r]) > LARGE_LOGIT;
				}
			if ((!SPECULATE || smem.running) && __any_sync(~0u, large)) {
#pragma unroll
				for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
					for (int r = 0; r < 2; r++) {
						shift[i][r] = 0;
#pragma unroll
						for (int j = 0; j < BLOCKS_N; j++)
							s[i][j][2 * r] -= row_max[i][r], s[i][j][2 * r + 1] -= row_max[i][r];
					}
			}
			unsigned prob[BLOCKS_M][BLOCKS_N][2]; // packed pairs: rows g, g+8 of each 8-key block
#pragma unroll
			for (int i = 0; i < BLOCKS_M; i++) {
				float sum[2] = {};
#pragma unroll
				for (int j = 0; j < BLOCKS_N; j++) {
#pragma unroll
					for (int e = 0; e < 4; e++) {
						s[i][j][e] = ex2(s[i][j][e] * LOGIT_SCALE - shift[i][e / 2]);
						sum[e / 2] += s[i][j][e];
					}
					prob[i][j][0] = cvt_rn_x2(s[i][j][0], s[i][j][1], Element{});
					prob[i][j][1] = cvt_rn_x2(s[i][j][2], s[i][j][3], Element{});
				}
				smem.row_sum[2 * i][mov_tid_x()] += sum[0];
				smem.row_sum[2 * i + 1][mov_tid_x()] += sum[1];
			}
			if constexpr (DROPOUT) {
				constexpr int BLOCKS_WORD = TILE_N < 64 ? BLOCKS_N : 8; // 8-key blocks of one word in this tile
				const int first = TILE_N < 64 ? k0 / 8 % 8 : 0;
				const int row_g = lane_row_g(), col_2t = k0 + lane_2t();
#pragma unroll
				for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
					for (int w = 0; w < BLOCKS_N; w += BLOCKS_WORD) {
						const unsigned word =
							dropout_bits(smem.dropout, row_g + 16 * i, col_2t + 8 * w);
#pragma unroll
						for (int j = 0; j < BLOCKS_WORD; j++)
							dropout_pairs(prob[i][w + j][0], prob[i][w + j][1],
							              word << (first + j));
					}
			}

			// B operand from V, transposed: keys lane%16, chunk lane/16.
			const TileLane<CHUNKS_V> value_lane(cvta_shared(smem.value[stage]), mov_tid_x() % 16,
			                                    mov_tid_x() / 16 % 2);
#pragma unroll
			for (int step = 0; step < TILE_N / 16; step++) {
#pragma unroll
				for (int c = 0; c < STEPS_V; c++) {
					unsigned v[4];
					ldmatrix_x4_trans(v, value_lane.at(16 * step, 2 * c));
#pragma unroll
					for (int i = 0; i < BLOCKS_M; i++) {
						const unsigned a[4] = {prob[i][2 * step][0], prob[i][2 * step][1],
						                       prob[i][2 * step + 1][0], prob[i][2 * step + 1][1]};
						mma_m16n8k16(acc[i][2 * c], a, v[0], v[1], Element{});
						if (2 * c + 1 < BLOCKS_V)
							mma_m16n8k16(acc[i][2 * c + 1], a, v[2], v[3], Element{});
					}
				}
			}
			stage = stage + 1 == STAGES ? 0 : stage + 1;
		}
	} while (SPECULATE && smem.running == 0 && __syncthreads_or(!rows_trusted(smem, acc)) && (smem.running = 1));

	const int out_q0 = smem.q0, out_h = smem.h, out_b = smem.b; // read again: the loop kept none of them
	const int row = mov_tid_x() / 32 * (16 * BLOCKS_M) + mov_tid_x() % 32 / 4, lane = mov_tid_x() % 4;
	auto *const out = reinterpret_cast<unsigned short *>(p.out.data) + entry_offset(p.out, out_b, first_q(&p, out_b)) +
	                  out_h * p.out.stride_head;
	float sink2 = 0; // base 2
	if constexpr (SINK) {
		const Inputs in = {staged.head(0), staged.rows(0), staged.cols(0), staged.cells(0), out_q0, 0, 0};
		sink2 = sink_logit(&in) * LOG2_E;
	}
#pragma unroll
	for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const float sum = quad_sum(smem.row_sum[2 * i + r][threadIdx.x]);
			// A row without visible keys: O = 0, and the sink, if any, is all of LSE.
			float lse2 = sum == 0 ? minus_infinity()
			                      : smem.row_max[2 * i + r][threadIdx.x] * LOGIT_SCALE + lg2(sum);
			float inverse = sum == 0 ? 0 : 256.0f / KEEP_256 / sum;
			if constexpr (SINK) {
				const float keys2 = lse2, high = fmaxf(keys2, sink2);
				if (high != minus_infinity()) {
					lse2 = high + lg2(ex2(keys2 - high) + ex2(sink2 - high));
					inverse *= ex2(keys2 - lse2);
				}
			}
			const int q = out_q0 + row + 16 * i + 8 * r;
			const bool used = LAYOUT == LAYOUT_DENSE || q < walk_sq(smem.walk, p); // full tiles do not hide others
			if (!used)
				lse2 = minus_infinity();
			if constexpr (WRITE_LSE) {
				if (lane == 0 && q < slot_q(&p, out_b)) {
					float *lse = reinterpret_cast<float *>(p.lse.data) +
					             entry_offset(p.lse, out_b, first_q(&p, out_b)) +
					             out_h * p.lse.stride_head + q * p.lse.stride_seq;
					*lse = LN_2 * lse2;
				}
			}
			row_store<BLOCKS_V>( // infinite keys and values have made rows NaN that saw nothing
				out + q * p.out.stride_seq,
				[&](int j) {
					return cvt_rn_x2(acc[i][j][2 * r] * inverse, acc[i][j][2 * r + 1] * inverse, Element{});
				},
				[](int j) { return j; }, lane, used && sum != 0, q < slot_q(&p, out_b));
		}
}
