// Backward, portable schedule (FlashAttention-2, Dao 2023, section 3): one CTA per key tile of one key/value head. K and V
// stay in shared memory, dK and dV in registers; the query tiles that see the keys stream past, one query head of the
// group after the other, so that dK and dV need neither atomics nor workspace. A tile costs five products:
//   S = Q K^T, dP = dO V^T, dV += P^T dO, dK += dS^T Q, dQ = dS K,   dS = P (dP - delta).
// P and dS pass through shared memory, because each product shares its work among the warps in its own way. dQ is summed
// over the key tiles in float32 global memory, in the order of the accumulators; only this file knows that order.
//
// With one or two stages all warps make P and dS of a tile and then the products that follow from them, with a barrier between. With three (BESIDE) there is
// one barrier a tile: between two of them half of the warps make P and dS of one tile and then the products of the tile before, the others the
// products first, so that a scheduler has lane operations of one warp beside products of another.
//
// Inputs of query rows and of cells travel with Q and dO; but with two stages those of cells, which have one buffer, as soon as P and dS of the tile
// before are made. Those of the head and of the keys are loaded when the query head changes; they have two buffers, which take turns, or one where a key
// head has one query head.
//
// fagen_delta (delta.cu) runs before: it prepares the statistics of the rows and clears the sums. fagen_dquery runs after and
// rounds them. With QUERY_APART there are no sums: dQ is left to fagen_backward_query, bwd_query.cu.

constexpr int STEPS_QK = (HEAD_DIM_QK + 15) / 16; // 16-column steps of a row of Q, K, dQ or dK
constexpr int STEPS_V = (HEAD_DIM_V + 15) / 16;   // of V, dO or dV
constexpr int CHUNKS_QK = 2 * STEPS_QK;           // 16-byte chunks of a shared row, zero past the head dimension
constexpr int CHUNKS_V = 2 * STEPS_V;
constexpr int CHUNKS_N = TILE_N / 8; // of a row of P or dS
constexpr int ACCUMULATORS = 192; // that a thread has registers for
constexpr float KEEP_SCALE = 256.0f / KEEP_256;

DEVICE constexpr bool is_power_of_2(int x) { return x > 0 && (x & (x - 1)) == 0; }
static_assert(is_power_of_2(TILE_M) && is_power_of_2(TILE_N) && is_power_of_2(WARPS), "warps split tiles evenly");
static_assert(STAGES >= 1 && STAGES <= 3, "buffers of Q and dO");

// Visit n takes seat n % SEATS: which buffers are its own.
constexpr bool BESIDE = STAGES == 3;
constexpr int SEATS = BESIDE ? 6 : 2;
constexpr int NOTES = BESIDE ? 3 : 2;
constexpr int LINES = STAGES == 1 ? 1 : 2;  // buffers of what P and dS alone read of rows: statistics and inputs
constexpr int CELLS = BESIDE ? 2 : 1;       // buffers of P, of dS, and of the inputs of cells
constexpr int TURNS = KV_GROUP == 1 ? 1 : 2; // buffers of the inputs of a head and of its keys: of one query head and the next
DEVICE unsigned stage_of(unsigned seat) { return BESIDE ? seat % 3 : STAGES == 2 ? seat : 0; }
DEVICE unsigned note_of(unsigned seat) { return BESIDE ? seat % 3 : seat; }
DEVICE unsigned lines_of(unsigned seat) { return LINES == 1 ? 0 : seat % 2; }
DEVICE unsigned cells_of(unsigned seat) { return BESIDE ? seat % 2 : 0; }
DEVICE unsigned seat_after(unsigned seat) { return BESIDE ? (seat + 1) % SEATS : seat ^ 1; }

// How many 16-column steps a warp takes at once, of so many with `each` accumulators a thread, when it has `room` for them.
DEVICE constexpr int steps_at_once(int steps, int each, int room)
{
	while (steps % 2 == 0 && steps * each > room)
		steps /= 2;
	return steps;
}

// How many of `warps` share the rows of a product of `blocks` 16-row blocks and `steps` 16-column steps, the others sharing
// its columns: the split with the least matrix work; of those one that gives a warp `wish` steps or more; of those the one
// that reads the fewest operands from shared memory. A 16x16 product has `each` accumulators.
DEVICE constexpr int warps_down(int warps, int blocks, int steps, int wish, int each, int room)
{
	int best = 0, best_cost = 0;
	for (int down = 1; down <= warps; down *= 2) {
		const int rows = blocks / down, columns = (steps * down + warps - 1) / warps;
		const int parts = columns / steps_at_once(columns, each * rows, room);
		const int cost = rows * columns * 256 + (columns < wish ? 128 : 0) + parts * rows + columns;
		if (blocks % down == 0 && (best == 0 || cost < best_cost)) {
			best = down;
			best_cost = cost;
		}
	}
	return best;
}

// EACH accumulators of a 16x16 product in a thread that has ROOM for so many at once; COUNT: warps, of several products if not all.
template <int ALL_BLOCKS, int ALL_STEPS, int WISH, int EACH, int ROOM, int COUNT = WARPS> struct Share {
	static constexpr int DOWN = warps_down(COUNT, ALL_BLOCKS, ALL_STEPS, WISH, EACH, ROOM);
	static constexpr int ACROSS = COUNT / DOWN;
	static constexpr int BLOCKS = ALL_BLOCKS / DOWN;                // 16-row blocks of a warp, neighbours
	static constexpr int STEPS = (ALL_STEPS + ACROSS - 1) / ACROSS; // 16-column steps of a warp, ACROSS apart
	static constexpr int AT_ONCE = steps_at_once(STEPS, EACH * BLOCKS, ROOM); // of these
	static constexpr int PARTS = STEPS / AT_ONCE;
	static constexpr bool EVEN = ALL_STEPS % ACROSS == 0;
	static __device__ __forceinline__ int down() { return mov_tid_x() / 32 % DOWN; }
	static __device__ __forceinline__ int across() { return mov_tid_x() / 32 % COUNT / DOWN; }
	// The last step of some warps may lie past the end.
	static __device__ __forceinline__ bool has(int step) { return EVEN || across() + step * ACROSS < ALL_STEPS; }
};

// Where dK and dV are alike half of the warps have dV and half dK, in parts twice as large, which read a third less of their operands.
template <int STEPS> using ShareKeys = Share<TILE_N / 16, STEPS, 0, 8, ACCUMULATORS>;
using ShareHalf = Share<TILE_N / 16, STEPS_QK, 0, 8, ACCUMULATORS, WARPS / 2>;
constexpr bool HALVES = STEPS_QK == STEPS_V && ShareHalf::BLOCKS * ShareHalf::STEPS == 2 * ShareKeys<STEPS_QK>::BLOCKS * ShareKeys<STEPS_QK>::STEPS;
template <bool> struct SharesOf { using Key = ShareKeys<STEPS_QK>; using Value = ShareKeys<STEPS_V>; };
template <> struct SharesOf<true> { using Key = ShareHalf; using Value = ShareHalf; };
using ShareDk = SharesOf<HALVES>::Key;
using ShareDv = SharesOf<HALVES>::Value;
DEVICE bool warp_has_value() { return mov_tid_x() < THREADS / 2; } // with HALVES: dV, and no dK
// Accumulators of dK and dV, 4 floats each.
constexpr int GRADS_K = ShareDk::BLOCKS * 2 * ShareDk::STEPS, GRADS_V = HALVES ? 0 : ShareDv::BLOCKS * 2 * ShareDv::STEPS;
// Beside them, which stay, there is room for parts of S and dP, and of dQ after them, which has more addresses.
constexpr int ROOM = ACCUMULATORS - 4 * (GRADS_K + GRADS_V);
// A dropout word serves 64 keys of a thread's rows: its warp had better own them all.
using ShareS = Share<TILE_M / 16, TILE_N / 16, DROPOUT ? (TILE_N < 64 ? TILE_N : 64) / 16 : 0, 16, ROOM>;
using ShareDq = Share<TILE_M / 16, STEPS_QK, 0, 8, ROOM < 64 ? ROOM : 64>;
static_assert(ShareS::EVEN, "fewer warps or a larger tile: this one leaves warps without cells");
constexpr int BLOCKS_S = ShareS::BLOCKS, STEPS_S = ShareS::AT_ONCE; // here a warp's columns are neighbours

constexpr int KEPT_WORDS = (2 * ShareS::STEPS + 7) / 8; // of dropout, for all of a warp's columns

// A step of the walk over query heads and their tiles; tile -1: its end.
struct Step {
	int tile, tile_class, head;
};
// What is noted of a tile: beside the visit its query head, and which buffers hold the inputs of that head.
struct Note : Visit, HeadKey<DROPOUT> {
	int head, turn;
};

struct alignas(16) Smem {
	unsigned short key[TILE_N * CHUNKS_QK * 8];           // [TILE_N][CHUNKS_QK], swizzled chunks
	unsigned short value[TILE_N * CHUNKS_V * 8];          // [TILE_N][CHUNKS_V]
	unsigned short query[STAGES][TILE_M * CHUNKS_QK * 8]; // [TILE_M][CHUNKS_QK]
	unsigned short dout[STAGES][TILE_M * CHUNKS_V * 8];   // [TILE_M][CHUNKS_V]
	unsigned short prob[CELLS][TILE_M * TILE_N];          // [TILE_M][CHUNKS_N]
	unsigned short dscore[CELLS][TILE_M * TILE_N];        // [TILE_M][CHUNKS_N]
	Statistics rows[LINES];
	// Of the CTA; here and not in registers, which are full:
	const unsigned short *batch_query, *batch_dout;
	Note note[NOTES];       // written when the loads of their tiles are issued
	int b, head_end, k0;    // head_end: behind the query heads of its group
	int batch_index, tiles; // tile_index of the batch entry's first tile; query tiles of a head
	WalkShared walk;        // over the query tiles
};
using Buffers = Staged<TURNS, LINES, TURNS, CELLS>;
static_assert(sizeof(Smem) + Buffers::BYTES == SMEM_BYTES, "shared memory and gen/model_sm80_bwd.c disagree");

// The sums of dQ lie in 16x8 blocks in the order [16-row block][8-column block], and inside a block as the lanes hold them:
// element e of a lane at sum_place(lane) + SUM_APART * e.
constexpr int SUM_BLOCK = 128;
constexpr int SUM_APART = RED_WIDTH == 1 ? 32 : 1;
DEVICE int sum_place(int lane) { return RED_WIDTH == 1 ? lane : 4 * lane; }
// acc += A B over DEPTH steps of 16: a(i, step) and b(step, j) are the lane's ldmatrix addresses.
template <int DEPTH, bool A_TRANS, bool B_TRANS, int BLOCKS, int COLUMNS, class A, class B, class Has>
DEVICE void product(float (&acc)[BLOCKS][COLUMNS][4], A a, B b, Has has)
{
#pragma unroll
	for (int step = 0; step < DEPTH; step++) {
		unsigned left[BLOCKS][4];
#pragma unroll
		for (int i = 0; i < BLOCKS; i++) {
			if constexpr (A_TRANS)
				ldmatrix_x4_trans(left[i], a(i, step));
			else
				ldmatrix_x4(left[i], a(i, step));
		}
#pragma unroll
		for (int j = 0; j < COLUMNS / 2; j++) {
			if (!has(j))
				continue;
			unsigned right[4];
			if constexpr (B_TRANS)
				ldmatrix_x4_trans(right, b(step, j));
			else
				ldmatrix_x4(right, b(step, j));
#pragma unroll
			for (int i = 0; i < BLOCKS; i++) {
				mma_m16n8k16(acc[i][2 * j], left[i], right[0], right[1], Element{});
				mma_m16n8k16(acc[i][2 * j + 1], left[i], right[2], right[3], Element{});
			}
		}
	}
}

// Lanes' rows and chunks of an operand that is a shared tile of rows. Plain: A rows lane%16, chunk lane/16; B, whose rows
// are the columns of the product, rows lane%8 + 8*(lane/16), chunk lane/8%2. Transposed, so that the tile's rows run along
// the depth: A as B and B as A.
DEVICE int lane_row_a() { return mov_tid_x() % 16; }
DEVICE int lane_chunk_a() { return mov_tid_x() / 16 % 2; }
DEVICE int lane_row_b() { return mov_tid_x() % 8 + mov_tid_x() / 16 % 2 * 8; }
DEVICE int lane_chunk_b() { return mov_tid_x() / 8 % 2; }

// acc = rows of `left` from row0 on times rows of `right` from col0 on, a warp's part of TILE_M x TILE_N, over DEPTH steps of columns.
template <int DEPTH, int BLOCKS, int COLUMNS>
DEVICE void product_s(float (&acc)[BLOCKS][COLUMNS][4], unsigned left, unsigned right, int row0, int col0)
{
	constexpr int CHUNKS = 2 * DEPTH;
	const TileLane<CHUNKS> a(left, row0 + lane_row_a(), lane_chunk_a());
	const TileLane<CHUNKS> b(right, col0 + lane_row_b(), lane_chunk_b());
#pragma unroll
	for (int i = 0; i < BLOCKS; i++)
#pragma unroll
		for (int j = 0; j < COLUMNS; j++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				acc[i][j][e] = 0;
	product<DEPTH, false, false>(
		acc, [&](int i, int step) { return a.at(16 * i, 2 * step); },
		[&](int step, int j) { return b.at(16 * j, 2 * step); }, [](int) { return true; });
}

// acc += cells^T rows: cells [TILE_M][TILE_N] is P or dS, rows [TILE_M][CHUNKS] is dO or Q.
template <class Share_, int CHUNKS>
DEVICE void product_keys(float (&acc)[Share_::BLOCKS][2 * Share_::STEPS][4], unsigned cells, unsigned rows)
{
	// Blocks of a warp are neighbours and a power of two of them, so its own chunk bits and those of i are apart.
	const TileLane<CHUNKS_N> a(cells, lane_row_b(), Share_::down() * 2 * Share_::BLOCKS + lane_chunk_b());
	const TileLane<CHUNKS> b(rows, lane_row_a(), 2 * Share_::across() + lane_chunk_a());
	product<TILE_M / 16, true, true>(
		acc, [&](int i, int step) { return a.at(16 * step, 2 * i); },
		[&](int step, int j) { return b.at(16 * step, 2 * Share_::ACROSS * j); },
		[](int j) { return Share_::has(j); });
}

// Where a lane's pair of cells begins in a chunk of P or dS, added to the address of the tile or to that of the chunk: d 64 and two stages is 0.987 with
// the first, d 128 and three 1.005.
DEVICE int lane_early() { return BESIDE ? mov_tid_x() % 4 * 4 : 0; }
DEVICE int lane_late() { return BESIDE ? 0 : mov_tid_x() % 4 * 4; }

// Is delta read before P is made, and not behind it? d 64 is 1.01, a float32 bias 1.02, d 96 1.00; but d 256 with one stage 0.99, d 128 with three 0.99.
constexpr bool DELTA_EARLY = STAGES == 2;

// May cells of a warp's rows be hidden, or have logits so large that their rounding could make P more than 1? row: the lane's first in the tile.
template <int BLOCKS> DEVICE bool tile_careful(const Statistics &rows, int row, int tile_class)
{
	bool careful = tile_class != TILE_FULL;
#pragma unroll
	for (int i = 0; i < 2 * BLOCKS; i++)
		careful |= fabsf(rows.lse2[row + 8 * i]) > LARGE_LOGIT; // infinite in a row without keys
	return __any_sync(~0u, careful);
}

// A warp's part of dK or dV of an entry's keys from k0 on, times scale. head: of the entry's first key.
template <class Share_, int COLUMNS>
DEVICE void keys_store(unsigned short *head, long long stride, const float (&acc)[Share_::BLOCKS][2 * Share_::STEPS][4], float scale, int k0,
                       int slot)
{
	const int lane = mov_tid_x() % 32, k = k0 + Share_::down() * 16 * Share_::BLOCKS + lane / 4;
#pragma unroll
	for (int i = 0; i < Share_::BLOCKS; i++)
#pragma unroll
		for (int r = 0; r < 2; r++)
			row_store<2 * Share_::STEPS>(
				head + (k + 16 * i + 8 * r) * stride,
				[&](int j) {
					return cvt_rn_x2(acc[i][j][2 * r] * scale, acc[i][j][2 * r + 1] * scale, Element{});
				},
				[](int j) {
					const int chunk = 2 * (Share_::across() + j / 2 * Share_::ACROSS) + j % 2;
					return chunk < COLUMNS / 8 ? chunk : -1;
				},
				lane % 4, true, k + 16 * i + 8 * r < slot);
}

// What a warp has of dK and of dV; with HALVES `key` is of one of them.
struct Grads {
	float key[ShareDk::BLOCKS][2 * ShareDk::STEPS][4];
	float value[ShareDv::BLOCKS][2 * ShareDv::STEPS][4];
};

DEVICE void grads_store(const fagen_abi &p, const Grads &grads, int b, int h, int k0)
{
	const int first = first_k(&p, b), slot = slot_k(&p, b);
	if constexpr (HALVES) {
		const bool value = warp_has_value();
		keys_store<ShareDk, HEAD_DIM_QK>(head_address(value ? p.dvalue : p.dkey, b, h, first), value ? p.dvalue.stride_seq : p.dkey.stride_seq,
		                                 grads.key, value ? KEEP_SCALE : SOFTMAX_SCALE, k0, slot);
	} else {
		keys_store<ShareDk, HEAD_DIM_QK>(head_address(p.dkey, b, h, first), p.dkey.stride_seq, grads.key, SOFTMAX_SCALE, k0, slot);
		keys_store<ShareDv, HEAD_DIM_V>(head_address(p.dvalue, b, h, first), p.dvalue.stride_seq, grads.value, KEEP_SCALE, k0, slot);
	}
}

// What a part of an item leaves for bwd_join.cu: the accumulators of its threads, in the order [dK, then dV][THREADS].
DEVICE float4 *part_at(const fagen_abi &p, unsigned part)
{
	return reinterpret_cast<float4 *>(p.parts) + part * (long long)((GRADS_K + GRADS_V) * THREADS) + threadIdx.x;
}
template <int BLOCKS, int COLUMNS> DEVICE void part_store(float4 *to, const float (&acc)[BLOCKS][COLUMNS][4])
{
#pragma unroll
	for (int i = 0; i < BLOCKS; i++)
#pragma unroll
		for (int j = 0; j < COLUMNS; j++)
			to[(i * COLUMNS + j) * THREADS] = make_float4(acc[i][j][0], acc[i][j][1], acc[i][j][2], acc[i][j][3]);
}

// What item number i of the launch is.
DEVICE Owned item_owned(const fagen_abi &p, unsigned i) { return key_item(p, i, key_sections(p)); }

extern "C" __global__ void __launch_bounds__(THREADS) fagen_backward(const __grid_constant__ fagen_abi p)
{
	extern __shared__ __align__(128) unsigned char smem_bytes[];
	Smem &smem = *reinterpret_cast<Smem *>(smem_bytes);
	const Buffers staged(smem_bytes + sizeof(Smem));

	const Owned own = item_owned(p, item_at(p, item_tile(p, blockIdx.x)));
	if (own.tile < 0)
		return;
	const int k0 = own.tile * TILE_N;
	const int h_kv = own.h;
	const int b = own.b;
	const int group = KV_GROUP > 0 ? KV_GROUP : p.kv_group;

	if (threadIdx.x == 0) {
		walk_begin<false>(smem.walk, p, b, k0);
		if (CUT && item_part(p, blockIdx.x) >= 0)
			stream_part(&smem.walk.stream, item_part(p, blockIdx.x) % p.cut_parts, p.cut_parts);
		smem.batch_query = head_address(p.query, b, 0, first_q(&p, b));
		smem.batch_dout = head_address(p.dout, b, 0, first_q(&p, b));
		smem.b = b, smem.head_end = (h_kv + 1) * group, smem.k0 = k0;
		smem.batch_index = tile_index(p, b, 0, 0),
		smem.tiles = tile_room(p.cu_seqlens_q, p.seqlen_q, b, TILE_M);
	}
	__syncthreads(); // writer of these before their readers

	// The first tile at or before `next` of the heads from `head` on.
	const auto step = [&](int head, int next) {
		Step to = {-1, TILE_EMPTY, head};
		while (!walk_next<false>(smem.walk, p, smem.b, to.head, smem.k0, next, to.tile, to.tile_class)) {
			to.tile = -1;
			if (KV_GROUP > 0 ? (to.head + 1) % group == 0 : to.head + 1 == smem.head_end)
				break;
			to.head++;
			next = smem.walk.stream.next;
		}
		return to;
	};
	const auto load_cells = [&](unsigned seat, int tile, int head) {
		if (tile >= 0)
			cells_load(staged.cells(cells_of(seat)), &p, smem.b, head, tile * TILE_M, smem.k0, mov_tid_x(), THREADS);
	};
	// Issue its load, behind the tile of `last_head` in seat `last`: Q and what travels with it, which the note is of; and dO.
	const auto load_query = [&](unsigned seat, const Step &to, unsigned last, int last_head, int last_turn) {
		const int tile = to.tile, head = to.head, stage = stage_of(seat);
		const int turn = head == last_head ? last_turn : last_turn ^ 1;
		if (tile >= 0) {
			const int q0 = tile * TILE_M;
			tile_load<TILE_M, HEAD_DIM_QK, CHUNKS_QK, THREADS>(
				cvta_shared(smem.query[stage]), smem.batch_query + head * p.query.stride_head,
				p.query.stride_seq, q0, walk_sq(smem.walk, p));
			const int chunk = mov_tid_x();
			const auto *rows = reinterpret_cast<const char *>(
				tile_statistics(p, smem.batch_index + head * smem.tiles + tile));
			if (chunk < (int)sizeof(Statistics) / 16)
				cp_async_16_zfill(cvta_shared(&smem.rows[lines_of(seat)]) + 16 * chunk, rows + 16 * chunk, true);
			if constexpr (ROW_INPUTS)
				rows_load(staged.rows(lines_of(seat)), &p, smem.b, head, q0, mov_tid_x(), THREADS);
			if constexpr (CELL_INPUTS && STAGES != 2)
				load_cells(seat, tile, head);
			if (head != last_head) {
				if constexpr (HEAD_INPUTS)
					head_load(staged.head(turn), &p, smem.b, head, mov_tid_x(), THREADS);
				if constexpr (COL_INPUTS)
					cols_load(staged.cols(turn), &p, smem.b, head, smem.k0, mov_tid_x(), THREADS);
			}
		}
		visit_note<false>(smem.note[note_of(seat)], p, smem.b, head, smem.k0, tile, to.tile_class);
		if (mov_tid_x() == 0) {
			Note &note = smem.note[note_of(seat)];
			note.head = head, note.turn = turn;
			note.dropout_follow(smem.note[note_of(last)], head == last_head, p, smem.b, head);
		}
		cp_async_commit();
	};
	const auto load_dout = [&](unsigned seat, int tile, int head) {
		if (tile >= 0)
			tile_load<TILE_M, HEAD_DIM_V, CHUNKS_V, THREADS>(cvta_shared(smem.dout[stage_of(seat)]),
			                                                 smem.batch_dout + head * p.dout.stride_head,
			                                                 p.dout.stride_seq, tile * TILE_M, walk_sq(smem.walk, p));
		cp_async_commit();
	};

	Grads grads = {};
	tile_load<TILE_N, HEAD_DIM_QK, CHUNKS_QK, THREADS>(cvta_shared(smem.key),
	                                                   head_address(p.key, b, h_kv, first_k(&p, b)),
	                                                   p.key.stride_seq, k0, sequence_k(&p, b));
	tile_load<TILE_N, HEAD_DIM_V, CHUNKS_V, THREADS>(cvta_shared(smem.value),
	                                                 head_address(p.value, b, h_kv, first_k(&p, b)),
	                                                 p.value.stride_seq, k0, sequence_k(&p, b));
	{
		const Step to = step(h_kv * group, smem.walk.stream.next);
		load_query(0, to, 1, -1, 1);
		load_dout(0, to.tile, to.head);
		if constexpr (CELL_INPUTS && STAGES == 2) {
			load_cells(0, to.tile, to.head);
			cp_async_commit();
		}
	}

	const auto load_next = [&](unsigned seat) { // what comes behind the tile of a seat
		const Note &now = smem.note[note_of(seat)];
		const Step to = step(now.head, now.tile - 1);
		load_query(seat_after(seat), to, seat, now.head, now.turn);
		load_dout(seat_after(seat), to.tile, to.head);
	};

	// P and dS of a seat's tile.
	const auto scores = [&](unsigned seat) {
		const int stage = stage_of(seat);
		const Note &now = smem.note[note_of(seat)]; // read at each use: registers are full
		const Statistics &rows = smem.rows[lines_of(seat)];
		unsigned kept[BLOCKS_S][KEPT_WORDS]; // block j of the warp's columns is in word j / 8, at 7 - j % 8
		if constexpr (DROPOUT) {
			const int row_g = ShareS::down() * 16 * BLOCKS_S + mov_tid_x() % 32 / 4;
#pragma unroll
			for (int i = 0; i < BLOCKS_S; i++)
#pragma unroll
				for (int w = 0; w < KEPT_WORDS; w++) {
					const int k = smem.k0 + ShareS::across() * 16 * ShareS::STEPS + mov_tid_x() % 4 * 2 + 64 * w;
					kept[i][w] = dropout_bits(now.dropout, now.tile * TILE_M + row_g + 16 * i, k) << (k / 8 % 8);
				}
		}
#pragma unroll 1
		for (int part = 0; part < ShareS::PARTS; part++) {
			// This lane's first row and first column in the tile.
			const int row0 = ShareS::down() * 16 * BLOCKS_S, col0 = 16 * (ShareS::across() * ShareS::STEPS + part * STEPS_S);
			const int row_g = row0 + mov_tid_x() % 32 / 4, col_2t = col0 + mov_tid_x() % 4 * 2;
			// The word with block j of the part at its top.
			const auto kept_from = [&](int i, int j) {
				const int block = part * 2 * STEPS_S + j;
				return kept[i][KEPT_WORDS == 1 ? 0 : block / 8] << (block % 8);
			};

			const bool careful = tile_careful<BLOCKS_S>(rows, row_g, now.tile_class);

			float s[BLOCKS_S][2 * STEPS_S][4];
			product_s<STEPS_QK>(s, cvta_shared(smem.query[stage]), cvta_shared(smem.key), row0, col0);

			const int h = now.head, tile = now.tile, k0 = smem.k0;
			const Inputs in = {staged.head(now.turn),
			                   staged.rows(lines_of(seat)),
			                   staged.cols(now.turn),
			                   staged.cells(cells_of(seat)),
			                   tile * TILE_M,
			                   k0,
			                   now.bits};

			// P, written for dV; s becomes the derivative P * score_grad. Loads from shared memory do not pass stores to it: all are issued first, or each
			// store would be followed by some 30 clocks of waiting.
			float lse2[BLOCKS_S][2], delta[BLOCKS_S][2];
			unsigned prob[BLOCKS_S][2][2 * STEPS_S]; // packed
			const auto delta_read = [&] {
#pragma unroll
				for (int i = 0; i < BLOCKS_S; i++)
#pragma unroll
					for (int r = 0; r < 2; r++)
						delta[i][r] = rows.delta[row_g + 16 * i + 8 * r];
			};
#pragma unroll
			for (int i = 0; i < BLOCKS_S; i++)
#pragma unroll
				for (int r = 0; r < 2; r++)
					lse2[i][r] = rows.lse2[row_g + 16 * i + 8 * r];
			if constexpr (DELTA_EARLY)
				delta_read();
			const TileLane<CHUNKS_N> prob_lane(cvta_shared(smem.prob[cells_of(seat)]) + lane_early(), row_g, col_2t / 8);
			const TileLane<CHUNKS_N> dscore_lane(cvta_shared(smem.dscore[cells_of(seat)]) + lane_early(), row_g, col_2t / 8);
			const auto probabilities = [&](bool checked) {
#pragma unroll
				for (int i = 0; i < BLOCKS_S; i++)
#pragma unroll
					for (int r = 0; r < 2; r++) {
						const RowState row = row_state(&p, &in, smem.b, h, tile * TILE_M + row_g + 16 * i + 8 * r, k0 + col_2t);
#pragma unroll
						for (int j = 0; j < 2 * STEPS_S; j++) {
							float pair[2];
#pragma unroll
							for (int e = 0; e < 2; e++) {
								const ColState col =
									col_state(&p, &in, smem.b, h, k0 + col_2t, 8 * j + e);
								float &x = s[i][j][2 * r + e];
								const Scored scored = score_grad(x, row, col, &in);
								const float log2 = scored.score * LOGIT_SCALE - lse2[i][r];
								pair[e] = ex2(checked ? fminf(log2, 0) : log2);
								x = pair[e] * scored.grad;
								// A hidden cell may have any derivative, NaN too.
								if (checked && !mask_keep(row, col, &in))
									pair[e] = x = 0;
							}
							prob[i][r][j] = cvt_rn_x2(pair[0], pair[1], Element{});
							if constexpr (DROPOUT)
								prob[i][r][j] &= prmt(kept_from(i, j), 0, r == 0 ? 0x9988 : 0xBBAA); // signs of bytes 2r, 2r + 1
						}
					}
#pragma unroll
				for (int i = 0; i < BLOCKS_S; i++)
#pragma unroll
					for (int r = 0; r < 2; r++)
#pragma unroll
						for (int j = 0; j < 2 * STEPS_S; j++)
							st_shared_4(prob_lane.at(16 * i + 8 * r, j) + lane_late(), prob[i][r][j]);
			};
			if (careful)
				probabilities(true);
			else
				probabilities(false);

			if constexpr (STAGES == 1)
				if (part == 0) {
					cp_async_wait<0>();
					__syncthreads(); // dO of all threads before its readers
				}
			if constexpr (!DELTA_EARLY)
				delta_read();
			float dp[BLOCKS_S][2 * STEPS_S][4];
			product_s<STEPS_V>(dp, cvta_shared(smem.dout[stage]), cvta_shared(smem.value), row0, col0);
#pragma unroll
			for (int i = 0; i < BLOCKS_S; i++)
#pragma unroll
				for (int r = 0; r < 2; r++)
#pragma unroll
					for (int j = 0; j < 2 * STEPS_S; j++) {
						float ds[2];
#pragma unroll
						for (int e = 0; e < 2; e++) {
							float x = dp[i][j][2 * r + e];
							if constexpr (DROPOUT) {
								const unsigned sign = prmt(kept_from(i, j), 0, 0x8888 + 0x1111 * (2 * r + e));
								x = __uint_as_float(__float_as_uint(x) & sign) * KEEP_SCALE;
							}
							ds[e] = s[i][j][2 * r + e] * (x - delta[i][r]);
						}
						st_shared_4(dscore_lane.at(16 * i + 8 * r, j) + lane_late(), cvt_rn_x2(ds[0], ds[1], Element{}));
					}
		}
	};

	// What they add to dK, dV and dQ.
	const auto gradients = [&](unsigned seat) {
		const int stage = stage_of(seat);
		const Note &now = smem.note[note_of(seat)];
		const auto key_product = [&] {
			const bool value = HALVES && warp_has_value();
			product_keys<ShareDk, CHUNKS_QK>(grads.key, cvta_shared(value ? smem.prob[cells_of(seat)] : smem.dscore[cells_of(seat)]),
			                                 cvta_shared(value ? smem.dout[stage] : smem.query[stage]));
		};
		const auto value_product = [&] {
			if constexpr (!HALVES)
				product_keys<ShareDv, CHUNKS_V>(grads.value, cvta_shared(smem.prob[cells_of(seat)]), cvta_shared(smem.dout[stage]));
		};
		const auto query_product = [&] {
			if constexpr (QUERY_APART) // it is the other kernel's
				return;
			const int sums = smem.batch_index + now.head * smem.tiles + now.tile;
			float *const own = tile_sums(p, sums) +
			                   (ShareDq::down() * ShareDq::BLOCKS * CHUNKS_QK + 2 * ShareDq::across()) * SUM_BLOCK +
			                   sum_place(mov_tid_x() % 32);
#pragma unroll 1
			for (int part = 0; part < ShareDq::PARTS; part++) {
				const auto has = [&](int j) { return ShareDq::has(part * ShareDq::AT_ONCE + j); };
				const auto chunk = [&](int j) { return 2 * ShareDq::ACROSS * (part * ShareDq::AT_ONCE + j); }; // from the warp's first on
				float dquery[ShareDq::BLOCKS][2 * ShareDq::AT_ONCE][4] = {};
				const TileLane<CHUNKS_N> a(cvta_shared(smem.dscore[cells_of(seat)]),
				                           ShareDq::down() * 16 * ShareDq::BLOCKS + lane_row_a(),
				                           lane_chunk_a());
				const TileLane<CHUNKS_QK> keys(cvta_shared(smem.key), lane_row_a(),
				                               2 * ShareDq::across() + lane_chunk_a());
				product<TILE_N / 16, false, true>(
					dquery, [&](int i, int step) { return a.at(16 * i, 2 * step); },
					[&](int step, int j) { return keys.at(16 * step, chunk(j)); }, has);
#pragma unroll
				for (int i = 0; i < ShareDq::BLOCKS; i++)
#pragma unroll
					for (int j = 0; j < 2 * ShareDq::AT_ONCE; j++)
						if (has(j / 2))
							red_add_4(own + (i * CHUNKS_QK + chunk(j / 2) + j % 2) * SUM_BLOCK, dquery[i][j],
							          Width<RED_WIDTH>{});
			}
		};
		if constexpr (BESIDE) {
			query_product(), key_product(), value_product();
		} else {
			key_product();
			if constexpr (STAGES == 1) { // each is on its way as soon as it has a place
				const Step to = step(now.head, now.tile - 1);
				__syncthreads(); // readers of Q, the statistics and inputs, with HALVES of dO too, before they are overwritten
				load_query(seat ^ 1, to, seat, now.head, now.turn);
				if constexpr (HALVES)
					load_dout(seat ^ 1, to.tile, to.head);
			}
			value_product();
			if constexpr (STAGES == 1 && !HALVES) {
				__syncthreads(); // readers of dO before it is overwritten
				load_dout(seat ^ 1, smem.note[seat ^ 1].tile, smem.note[seat ^ 1].head);
			}
			query_product();
		}
	};

	if constexpr (!BESIDE) {
#pragma unroll 1
		for (unsigned seat = 0;; seat ^= 1) {
			cp_async_wait<STAGES == 1 ? 1 : 0>();
			__syncthreads(); // this tile, its dO later, of all threads before its readers; readers of the last P, dS, Q and dO before their writers
			if (smem.note[seat].tile < 0)
				break;
			if constexpr (STAGES == 2)
				load_next(seat);
			scores(seat);
			__syncthreads(); // writers of P and dS before their readers; readers of inputs of cells before they are overwritten
			if constexpr (CELL_INPUTS && STAGES == 2) {
				load_cells(seat ^ 1, smem.note[seat ^ 1].tile, smem.note[seat ^ 1].head);
				cp_async_commit();
			}
			gradients(seat);
		}
	} else {
		const bool late = mov_tid_x() / 32 >= WARPS / 2; // products first
		const auto turn = [&](unsigned seat) {
			cp_async_wait<0>();
			__syncthreads(); // this tile, and P and dS of the last, of all threads before their readers; readers of the one before that before its buffers are overwritten
			if (smem.note[note_of(seat)].tile >= 0)
				load_next(seat);
		};
		turn(0);
#pragma unroll 1
		for (unsigned seat = 0, last = SEATS;; last = seat, seat = seat_after(seat)) { // last: SEATS if there is none
			const bool more = smem.note[note_of(seat)].tile >= 0;
			if (more)
				scores(seat);
			else if (late)
				break;
			if (late)
				turn(seat_after(seat));
			if (late || last < SEATS)
				gradients(late ? seat : last);
			if (!more)
				break;
			if (!late)
				turn(seat_after(seat));
		}
	}

	if (CUT && item_part(p, blockIdx.x) >= 0) {
		float4 *const to = part_at(p, item_part(p, blockIdx.x));
		part_store(to, grads.key);
		if constexpr (!HALVES)
			part_store(to + GRADS_K * THREADS, grads.value);
		return;
	}
	grads_store(p, grads, smem.b, smem.head_end / group - 1, smem.k0); // read again: the loop kept none
}

// TILE_M rows of one query head: their sums, scaled and rounded.
extern "C" __global__ void __launch_bounds__(THREADS) fagen_dquery(const __grid_constant__ fagen_abi p)
{
	extern __shared__ __align__(128) unsigned char smem_bytes[]; // [TILE_M][CHUNKS_QK], swizzled chunks
	const unsigned rounded = cvta_shared(smem_bytes);
	const Owned own = rows_owned_back(p);
	const int tile = own.tile, h = own.h, b = own.b;
	if (tile < 0)
		return;
	const float *sums = tile_sums(p, tile_index(p, b, h, tile));

	const int lane = threadIdx.x % 32;
	for (int block = threadIdx.x / 32; block < SUM_TILE / SUM_BLOCK; block += WARPS) {
		const float *from = sums + block * SUM_BLOCK + sum_place(lane);
		float v[4];
		if constexpr (SUM_APART == 1) {
			const float4 all = *reinterpret_cast<const float4 *>(from);
			v[0] = all.x, v[1] = all.y, v[2] = all.z, v[3] = all.w;
		} else {
#pragma unroll
			for (int e = 0; e < 4; e++)
				v[e] = from[SUM_APART * e];
		}
		const int row = block / CHUNKS_QK * 16 + lane / 4;
#pragma unroll
		for (int r = 0; r < 2; r++)
			st_shared_4(rounded + tile_offset<CHUNKS_QK>(row + 8 * r, block % CHUNKS_QK) + lane % 4 * 4,
			            cvt_rn_x2(v[2 * r] * SOFTMAX_SCALE, v[2 * r + 1] * SOFTMAX_SCALE, Element{}));
	}
	__syncthreads(); // writers of the tile before its readers
	tile_store<TILE_M, HEAD_DIM_QK, CHUNKS_QK, THREADS>(rounded, head_address(p.dquery, b, h, first_q(&p, b)),
	                                                    p.dquery.stride_seq, tile * TILE_M, slot_q(&p, b));
}
