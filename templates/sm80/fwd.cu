// Forward, portable schedule (FlashAttention-2, Dao 2023, section 3): one CTA per query tile of one head; every warp owns
// 16 * BLOCKS_M query rows and all keys of a tile, so that softmax stays inside quads of lanes. K and V tiles stream
// through STAGES buffers by cp.async; S, P and O live in registers; P is used as a matrix operand where it was made.
//
// A thread has no room for 32 rows of more than 128 columns of O, and with 16 rows a warp shared memory is what bounds: so there two warps
// own the same rows, each half of the keys of S and half of the columns of O, and show each other P.
//
// With one stage V of a tile loads beside its S, and the next K beside what follows. With more, both load AHEAD = STAGES - 1 visits in front, and a
// visit has one barrier. Groups are committed in the order K, V, K, V, ... (empty ones past the end), so that waits can count them.
//
// The walk is AHEAD + 1 visits in front: visit n takes seat n % SEATS, and its K and V the buffers n % STAGES. Everything about
// a visit is read from its seat where it is needed; the loop keeps a seat and a stage, for its registers are full.

constexpr int ACROSS = HEAD_DIM_V > 128 && WARPS % 2 == 0 && TILE_N % 32 == 0 ? 2 : 1; // warps that own the same rows
constexpr int BLOCKS_M = TILE_M / (16 * WARPS) * ACROSS; // 16-row blocks of a warp
constexpr int KEYS = TILE_N / ACROSS;                    // of a warp's S
constexpr int BLOCKS_N = KEYS / 8;                       // 8-key blocks of it
constexpr int SHOWN = KEYS >= 64 ? KEYS / 32 : KEYS / 16; // k16 steps of P that a warp shows the other at a time: all, or the half for which there is room
constexpr int STEPS_QK = (HEAD_DIM_QK + 15) / 16;        // k16 steps of Q K^T
constexpr int STEPS_V = (HEAD_DIM_V + 15) / 16;          // 16-column steps of a V row
constexpr int STEPS_O = (STEPS_V + ACROSS - 1) / ACROSS; // of them a warp's, neighbours; the last of the last warp may lie past the end
constexpr int CHUNKS_QK = 2 * STEPS_QK;                  // 16-byte chunks of a shared Q or K row, zero past HEAD_DIM_QK
constexpr int CHUNKS_V = 2 * STEPS_V;
constexpr int AHEAD = STAGES - 1;
constexpr int SEATS = STAGES + 1;
static_assert(TILE_M % (16 * WARPS) == 0 && TILE_N % 16 == 0, "tiles are made of 16x8x16 matrix products");
static_assert(!DROPOUT || TILE_N % 64 == 0 || 64 % TILE_N == 0, "dropout words cover blocks of 64 keys");

// What warps that own the same rows show each other: P as the matrix operands of their lanes, and maxima of rows.
template <bool> struct Shown {
	uint4 prob[BLOCKS_M][SHOWN][THREADS];
	float maxima[2 * BLOCKS_M][THREADS];
};
template <> struct Shown<false> {};

struct alignas(16) Smem : Shown<(ACROSS > 1)> {
	unsigned short query[TILE_M * CHUNKS_QK * 8];        // [TILE_M][CHUNKS_QK], swizzled chunks
	unsigned short key[STAGES][TILE_N * CHUNKS_QK * 8];  // [TILE_N][CHUNKS_QK]
	unsigned short value[STAGES][TILE_N * CHUNKS_V * 8]; // [TILE_N][CHUNKS_V]

	// What is used once a tile stays here and not in registers, which are full.
	// Of each lane's rows g, g + 8 of every 16-row block; read and written by their lane alone, but that sums meet at the end:
	float row_max[2 * BLOCKS_M][THREADS]; // the reference that P is taken against
	float row_sum[2 * BLOCKS_M][THREADS]; // the lane's part of the sum of P
	unsigned char settled[THREADS];       // 1: all rows of its warp have the references that they keep
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

// Which of the warps that own the same rows this one is; the thread that has this one's place in the other.
DEVICE int across() { return ACROSS > 1 ? mov_tid_x() / 32 % ACROSS : 0; }
DEVICE int other() { return mov_tid_x() ^ 32; }
// Those warps: what they have written to shared memory, before what they read of it next.
DEVICE void pair_sync() { barrier_sync(1 + mov_tid_x() / 64, 64); }

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

// The maxima of the rows over the keys of both warps.
template <bool TWO> DEVICE void maxima_share(Shown<TWO> &shown, float (&max)[BLOCKS_M][2])
{
#pragma unroll
	for (int i = 0; i < 2 * BLOCKS_M; i++)
		shown.maxima[i][mov_tid_x()] = max[i / 2][i % 2];
	pair_sync(); // maxima of each of the two warps before the other reads them; a barrier of all comes before the next are written
#pragma unroll
	for (int i = 0; i < 2 * BLOCKS_M; i++)
		max[i / 2][i % 2] = fmaxf(max[i / 2][i % 2], shown.maxima[i][other()]);
}

// Steps [first, first + SHOWN) of P to the other warp, and from it.
template <bool TWO> DEVICE void prob_show(Shown<TWO> &shown, const unsigned (&prob)[BLOCKS_M][BLOCKS_N][2], int first)
{
#pragma unroll
	for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
		for (int step = 0; step < SHOWN; step++) {
			const auto &p = prob[i];
			const int block = 2 * (first + step);
			st_shared_16(cvta_shared(&shown.prob[i][step][mov_tid_x()]), make_uint4(p[block][0], p[block][1], p[block + 1][0], p[block + 1][1]));
		}
}
template <bool TWO> DEVICE void prob_look(unsigned (&prob)[BLOCKS_M][BLOCKS_N][2], const Shown<TWO> &shown, int first)
{
#pragma unroll
	for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
		for (int step = 0; step < SHOWN; step++) {
			const uint4 v = ld_shared_16(cvta_shared(&shown.prob[i][step][other()]));
			auto &p = prob[i];
			const int block = 2 * (first + step);
			p[block][0] = v.x, p[block][1] = v.y, p[block + 1][0] = v.z, p[block + 1][1] = v.w;
		}
}

// What item number i of the launch is.
DEVICE Owned item_owned(const fagen_abi &p, unsigned i) { return query_item(p, i, query_sections(p)); }

// The sum of P of a row, once all is visited.
DEVICE float row_total(const Smem &smem, int row)
{
	float sum = smem.row_sum[row][mov_tid_x()];
	if constexpr (ACROSS > 1)
		sum += smem.row_sum[row][other()];
	return quad_sum(sum);
}

// Is a row of a thread what it would be with references that rise, up to rounding?
DEVICE bool row_trusted(const float (&acc)[BLOCKS_M][2 * STEPS_O][4], int i, int r, float max, float sum)
{
	float finite[2] = {}; // NaN as soon as something is infinite or NaN
#pragma unroll
	for (int j = 0; j < 2 * STEPS_O; j++)
		finite[0] = fmaf(acc[i][j][2 * r], 0, finite[0]), finite[1] = fmaf(acc[i][j][2 * r + 1], 0, finite[1]);
	const bool good = fabsf(max * LOGIT_SCALE) <= TRUSTED_LOGIT && sum_trusted(sum, finite[0] + finite[1]);
	return good || max == minus_infinity();
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS_SM) fagen_forward(const __grid_constant__ fagen_abi p)
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

	// In an accumulator this lane holds rows g, g + 8 and columns 2t, 2t + 1 of each block; row_g is g's query position, lane_2t
	// the first of the columns in the tile.
	// Everything derived from the thread index is computed anew where it is used: the loop has no register to spare.
	const auto lane_row_g = [&] {
		return smem.q0 + (int)(mov_tid_x() / 32 / ACROSS * (16 * BLOCKS_M) + mov_tid_x() % 32 / 4);
	};
	const auto lane_2t = [] { return (int)(across() * KEYS + mov_tid_x() % 4 * 2); };

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

	float acc[BLOCKS_M][2 * STEPS_O][4]; // O, unnormalised
#pragma unroll 1
	for (;;) { // once; or again, with references that rise
		int first = advance(smem.walk.stream.next + 1, 0);
		if constexpr (STAGES == 1)
			load_key(first, 0);
#pragma unroll
		for (int i = 0; i < AHEAD; i++) {
			load_key(first, i);
			load_value(first, i);
			first = advance(first, i + 1);
		}
#pragma unroll
		for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
			for (int j = 0; j < 2 * STEPS_O; j++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					acc[i][j][e] = 0;
#pragma unroll
		for (int i = 0; i < 2 * BLOCKS_M; i++)
			smem.row_max[i][mov_tid_x()] = minus_infinity(), smem.row_sum[i][mov_tid_x()] = 0;

		int stage = 0; // of the buffers in use
		if constexpr (SPECULATE)
			smem.settled[mov_tid_x()] = 0;
		for (unsigned seat = 0;; seat = (seat + 1) % SEATS) {
			const auto seat_before = [&](int n) { return (seat + SEATS - n) % SEATS; };
			cp_async_wait<STAGES == 1 ? 0 : 2 * (AHEAD - 1)>();
			__syncthreads(); // K(tile), and V(tile) of many stages, of all threads before their readers; readers of the last visit before its buffers are overwritten
			const Visit &visit = smem.visit[seat];
			if (visit.tile < 0)
				break;
			const int newest = smem.visit[seat_before(2)].tile;
			if constexpr (STAGES > 1)
				load_key(newest, stage == 0 ? STAGES - 1 : stage - 1);
			load_value(newest, stage == 0 ? STAGES - 1 : stage - 1);
			advance(newest, seat_before(1)); // its readers are past the barrier

			// ldmatrix, A operand: rows lane%16, chunk lane/16; B operand, two 8-key blocks: keys lane%8 + 8*(lane/16), chunk lane/8%2.
			const int l = mov_tid_x() % 32;
			const TileLane<CHUNKS_QK> query_lane(cvta_shared(smem.query), mov_tid_x() / 32 / ACROSS * 16 * BLOCKS_M + l % 16,
			                                     l / 16);
			const TileLane<CHUNKS_QK> key_lane(cvta_shared(smem.key[stage]), across() * KEYS + l % 8 + 8 * (l / 16), l / 8 % 2);
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
			if constexpr (STAGES == 1) {
				cp_async_wait<0>();
				__syncthreads(); // V(tile) of all threads before its readers; readers of K(tile) before it is overwritten
				load_key(smem.visit[seat_before(1)].tile, stage);
			}

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

			// P = 2^(LOGIT_SCALE * s - shift), in one FMA and one EX2 a cell; shift is LOGIT_SCALE times the row's reference.
			float shift[BLOCKS_M][2];
#pragma unroll
			for (int i = 0; i < 2 * BLOCKS_M; i++)
				shift[i / 2][i % 2] = smem.row_max[i][mov_tid_x()] * LOGIT_SCALE;
			if (!SPECULATE || smem.settled[mov_tid_x()] == 0) {
				float row_max[BLOCKS_M][2], m[BLOCKS_M][2];
#pragma unroll
				for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
					for (int r = 0; r < 2; r++) {
						m[i][r] = fmaxf(s[i][0][2 * r], s[i][0][2 * r + 1]);
#pragma unroll
						for (int j = 1; j < BLOCKS_N; j++)
							m[i][r] = fmaxf(m[i][r], fmaxf(s[i][j][2 * r], s[i][j][2 * r + 1]));
						m[i][r] = quad_max(m[i][r]);
					}
				if constexpr (ACROSS > 1)
					maxima_share(smem, m);
				bool rise = false;
#pragma unroll
				for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
					for (int r = 0; r < 2; r++) {
						const float before = smem.row_max[2 * i + r][mov_tid_x()];
						if constexpr (SPECULATE && SCORE_LIFT)
							if (smem.running == 0 && before == minus_infinity() && m[i][r] != minus_infinity())
								m[i][r] += row_lift(p, cells.in, smem.b, smem.h, lane_row_g() + 16 * i + 8 * r, 0, 0x7fffffff);
						const bool up = (m[i][r] - before) * LOGIT_SCALE > LAZY_LOG2; // false when both are -inf
						row_max[i][r] = up ? m[i][r] : before;
						rise |= up;
					}
				if (__any_sync(~0u, rise)) {
					bool begun = false; // else O is 0
#pragma unroll
					for (int i = 0; i < 2 * BLOCKS_M; i++)
						begun |= smem.row_max[i][mov_tid_x()] != minus_infinity();
					begun = __any_sync(~0u, begun);
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
							if (begun) {
#pragma unroll
								for (int j = 0; j < 2 * STEPS_O; j++)
									acc[i][j][2 * r] *= factor, acc[i][j][2 * r + 1] *= factor;
							}
						}
				}
				bool unknown = false, large = false;
#pragma unroll
				for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
					for (int r = 0; r < 2; r++) {
						unknown |= row_max[i][r] == minus_infinity();
						row_max[i][r] = row_max[i][r] == minus_infinity() ? 0 : row_max[i][r];
						shift[i][r] = row_max[i][r] * LOGIT_SCALE;
						large |= fabsf(shift[i][r]) > LARGE_LOGIT;
					}
				if constexpr (SPECULATE)
					smem.settled[mov_tid_x()] = smem.running == 0 && !__any_sync(~0u, unknown);
				if (smem.running && __any_sync(~0u, large)) {
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
			}
			unsigned prob[BLOCKS_M][BLOCKS_N][2]; // packed pairs: rows g, g+8 of each 8-key block
#pragma unroll
			for (int i = 0; i < BLOCKS_M; i++) {
				float sum[2];
#pragma unroll
				for (int j = 0; j < BLOCKS_N; j++) {
#pragma unroll
					for (int e = 0; e < 4; e++) {
						s[i][j][e] = ex2(s[i][j][e] * LOGIT_SCALE - shift[i][e / 2]);
						sum[e / 2] = j == 0 && e % 2 == 0 ? s[i][j][e] : sum[e / 2] + s[i][j][e];
					}
					prob[i][j][0] = cvt_rn_x2(s[i][j][0], s[i][j][1], Element{});
					prob[i][j][1] = cvt_rn_x2(s[i][j][2], s[i][j][3], Element{});
				}
				smem.row_sum[2 * i][mov_tid_x()] += sum[0];
				smem.row_sum[2 * i + 1][mov_tid_x()] += sum[1];
			}
			if constexpr (DROPOUT) {
				constexpr int BLOCKS_WORD = KEYS < 64 ? BLOCKS_N : 8; // 8-key blocks of one word in the warp's keys
				const int row_g = lane_row_g(), col_2t = k0 + lane_2t();
				const int first = KEYS < 64 ? col_2t / 8 % 8 : 0;
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

			// acc += P V over steps [first, last) of the keys of one warp, which begin at key0. B operand from V, transposed: keys lane%16, chunk lane/16.
			const auto product_v = [&](int key0, int first, int last) {
				const TileLane<CHUNKS_V> value_lane(cvta_shared(smem.value[stage]), key0 + mov_tid_x() % 16,
				                                    mov_tid_x() / 16 % 2);
				const int chunk0 = across() * 2 * STEPS_O;
#pragma unroll
				for (int step = first; step < last; step++) {
#pragma unroll
					for (int c = 0; c < STEPS_O; c++) {
						if (STEPS_V % ACROSS != 0 && chunk0 + 2 * c >= CHUNKS_V)
							continue;
						unsigned v[4];
						ldmatrix_x4_trans(v, value_lane.at(16 * step, chunk0 + 2 * c));
#pragma unroll
						for (int i = 0; i < BLOCKS_M; i++) {
							const unsigned a[4] = {prob[i][2 * step][0], prob[i][2 * step][1],
							                       prob[i][2 * step + 1][0], prob[i][2 * step + 1][1]};
							mma_m16n8k16(acc[i][2 * c], a, v[0], v[1], Element{});
							if (ACROSS > 1 || 2 * c + 1 < HEAD_DIM_V / 8)
								mma_m16n8k16(acc[i][2 * c + 1], a, v[2], v[3], Element{});
						}
					}
				}
			};
			if constexpr (ACROSS > 1)
				prob_show(smem, prob, 0);
			product_v(across() * KEYS, 0, KEYS / 16);
			if constexpr (ACROSS > 1) {
#pragma unroll
				for (int first = 0; first < KEYS / 16; first += SHOWN) {
					if (first > 0) {
						pair_sync(); // readers of the first half before it is overwritten
						prob_show(smem, prob, first);
					}
					pair_sync(); // P of each of the two warps before the other reads it
					prob_look(prob, smem, first);
					product_v((1 - across()) * KEYS, first, first + SHOWN);
				}
			}
			stage = stage + 1 == STAGES ? 0 : stage + 1;
		}
		const int out_q0 = smem.q0, out_h = smem.h, out_b = smem.b; // read again: the loop kept none of them
		const int row_g = lane_row_g(), lane = mov_tid_x() % 4, slot = slot_q(&p, out_b);
		auto *const out = reinterpret_cast<unsigned short *>(p.out.data) + entry_offset(p.out, out_b, first_q(&p, out_b)) +
		                  out_h * p.out.stride_head + row_g * p.out.stride_seq;
		auto *const lse = reinterpret_cast<float *>(p.lse.data) + entry_offset(p.lse, out_b, first_q(&p, out_b)) + out_h * p.lse.stride_head +
		                  row_g * p.lse.stride_seq;
		bool trusted = true; // results are stored before it is known
		float sink2 = 0; // base 2
		if constexpr (SINK) {
			const Inputs in = {staged.head(0), staged.rows(0), staged.cols(0), staged.cells(0), out_q0, 0, 0};
			sink2 = sink_logit(&in) * LOG2_E;
		}
#pragma unroll
		for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
			for (int r = 0; r < 2; r++) {
				const float sum = row_total(smem, 2 * i + r), max = smem.row_max[2 * i + r][threadIdx.x];
				if constexpr (SPECULATE)
					trusted &= row_trusted(acc, i, r, max, sum);
				// A row without visible keys: O = 0, and the sink, if any, is all of LSE.
				float lse2 = sum == 0 ? minus_infinity()
				                      : max * LOGIT_SCALE + lg2(sum);
				float inverse = sum == 0 ? 0 : 256.0f / KEEP_256 * rcp(sum);
				if constexpr (SINK) {
					const float keys2 = lse2, high = fmaxf(keys2, sink2);
					if (high != minus_infinity()) {
						lse2 = high + lg2(ex2(keys2 - high) + ex2(sink2 - high));
						inverse *= ex2(keys2 - lse2);
					}
				}
				const int q = row_g + 16 * i + 8 * r;
				const bool used = LAYOUT == LAYOUT_DENSE || q < walk_sq(smem.walk, p); // full tiles do not hide others
				if (!used)
					lse2 = minus_infinity();
				if constexpr (WRITE_LSE) {
					if (lane == 0 && across() == 0 && q < slot)
						lse[(16 * i + 8 * r) * p.lse.stride_seq] = LN_2 * lse2;
				}
				row_store<ACROSS == 1 ? HEAD_DIM_V / 8 : 2 * STEPS_O, true>( // infinite keys and values have made rows NaN that saw nothing
					out + (16 * i + 8 * r) * p.out.stride_seq,
					[&](int j) {
						return cvt_rn_x2(acc[i][j][2 * r] * inverse, acc[i][j][2 * r + 1] * inverse, Element{});
					},
					[](int j) {
						const int chunk = across() * 2 * STEPS_O + j;
						return ACROSS == 1 || chunk < HEAD_DIM_V / 8 ? chunk : -1;
					},
					lane, used && sum != 0, q < slot);
			}
		if (!SPECULATE || smem.running || !__syncthreads_or(!trusted))
			break;
		smem.running = 1;
	}
}
