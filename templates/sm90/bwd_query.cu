// Gradient of the queries when sums must not depend on the order in which CTAs run (DETERMINISTIC), after bwd.cu in the same text: a
// CTA owns 128 rows of a query head, two query tiles of 64 or one of 128, and the key tiles that any of them sees stream past, from
// last to first. Warpgroup 0 loads, the other two own 64 rows each, whose dQ stays in their registers. Products of a visit:
//   S = Q K^T, dP = dO V^T, dQ += dS K,   dS = P (dP - delta).
// Rows and not keys lie across the warps, so dS is an operand from the registers that it was made in: nothing passes through shared
// memory, and the warpgroups have nothing to say to each other.
//
// Visits are numbered through: visit n has the buffers n % QUERY_STAGES, whose phases count n / QUERY_STAGES, and the note n % QUERY_NOTES.

constexpr int QUERY_ROWS = 64 * WARPGROUPS;
constexpr int QUERY_TILES = QUERY_ROWS / TILE_M; // query tiles of a CTA: each walks, has its classes and its inputs
constexpr int BLOCKS_N = TILE_N / 8;             // 8-key blocks of S
static_assert(DETERMINISTIC && QUERY_TILES * TILE_M == QUERY_ROWS && TILE_M % 64 == 0, "a warpgroup's rows are of one query tile");

struct QueryOwn { int b, h, q0; };
struct QueryOwnShared : QueryOwn, HeadKey<DROPOUT> {};
struct QueryNote { Visit of[QUERY_TILES]; }; // of one key tile: empty for who does not see it
// How far a query tile's walk is: the key tile that it sees next, -1 at the end. At first it has seen WALK_START.
enum { WALK_START = -2 };
struct QueryCursor { int next, tile, tile_class; };

template <int STAGES_> struct alignas(16) QueryShared {
	unsigned short query[QUERY_TILES][PANELS_QK][TILE_M][64]; // swizzled rows of 128 bytes: tensor maps write, wgmma reads
	unsigned short dout[QUERY_TILES][PANELS_V][TILE_M][64];
	unsigned short key[STAGES_][PANELS_QK][TILE_N][64];
	unsigned short value[STAGES_][PANELS_V][TILE_N][64];
	// full: data are there, loaders before readers. empty: readers before loaders.
	unsigned long long query_full, dout_full;
	unsigned long long key_full[STAGES_], key_empty[STAGES_]; // K and the note; free with them the inputs
	unsigned long long value_full[STAGES_], value_empty[STAGES_];
	unsigned long long inputs_full[STAGES_];
	unsigned long long note_full[2 * STAGES_]; // for the warps that stage inputs
	QueryNote note[2 * STAGES_];
	QueryOwnShared own; // here and not in registers, which are full
	QueryCursor cursor[QUERY_TILES]; // of the warp that walks
	WalkShared walk[QUERY_TILES];    // over the key tiles
};
template <int STAGES_> using QueryStaged = Staged<1, QUERY_TILES, STAGES_, STAGES_ * QUERY_TILES>;
template <int STAGES_> DEVICE constexpr int query_bytes() { return sizeof(QueryShared<STAGES_>) + QueryStaged<STAGES_>::BYTES; }
// Two buffers of K and V where they fit.
constexpr int QUERY_STAGES = query_bytes<2>() == QUERY_SMEM_BYTES ? 2 : 1;
constexpr int QUERY_NOTES = 2 * QUERY_STAGES;
static_assert(query_bytes<QUERY_STAGES>() == QUERY_SMEM_BYTES, "shared memory of fagen_backward_query and gen/model_sm90_bwd.c disagree");
using QuerySmem = QueryShared<QUERY_STAGES>;
using QueryBuffers = QueryStaged<QUERY_STAGES>;

// ---- loading: warpgroup 0 ----

// The first warp: notes, and the tiles of Q, K, dO and V.
DEVICE void query_tiles_load(QuerySmem &smem, const fagen_abi &p, const fagen_abi_maps &maps, const QueryOwn &own)
{
	const bool leader = elect_sync();
	const int b = own.b, h = own.h, h_kv = h / (KV_GROUP > 0 ? KV_GROUP : p.kv_group);
	const int batch = LAYOUT == LAYOUT_PACKED ? 0 : b, row_q = first_q(&p, b) + own.q0, row_k = first_k(&p, b);
	if (leader)
#pragma unroll 1
		for (int i = 0; i < QUERY_TILES; i++) {
			walk_begin<true>(smem.walk[i], p, b, own.q0 + i * TILE_M);
			smem.cursor[i] = {smem.walk[i].stream.next, WALK_START, TILE_EMPTY};
		}
	__syncwarp(); // writer of the walks before their readers
	int now = WALK_START; // the key tile visited: the last one that any query tile sees next
#pragma unroll 1
	for (unsigned visit = 0;; visit++) {
		const int stage = visit % QUERY_STAGES;
		const unsigned parity = (visit / QUERY_STAGES & 1) ^ 1;
		int last = -1;
#pragma unroll 1
		for (int i = 0; i < QUERY_TILES; i++) {
			QueryCursor cursor = smem.cursor[i];
			if (cursor.tile == now) {
				if (!walk_next<true>(smem.walk[i], p, b, h, own.q0 + i * TILE_M, cursor.next, cursor.tile, cursor.tile_class))
					cursor.tile = -1;
				__syncwarp(); // readers of the cursor before its writer
				if (leader)
					smem.cursor[i] = cursor;
				__syncwarp(); // and the other way round
			}
			last = int_max(last, cursor.tile);
		}
		now = last;
		QueryNote &note = smem.note[visit % QUERY_NOTES];
#pragma unroll 1
		for (int i = 0; i < QUERY_TILES; i++)
			visit_note<true>(note.of[i], p, b, h, own.q0 + i * TILE_M, now,
			                 smem.cursor[i].tile == now ? smem.cursor[i].tile_class : TILE_EMPTY);
		__syncwarp(); // the note's writers before the leader's arrivals
		if (leader) {
			if (INPUTS)
				mbarrier_arrive(smem.note_full[visit % QUERY_NOTES]);
			mbarrier_wait(smem.key_empty[stage], parity);
			if (now < 0)
				mbarrier_arrive(smem.key_full[stage]);
		}
		__syncwarp();
		if (now < 0)
			return;
		if (leader) {
			if (visit == 0)
#pragma unroll
				for (int i = 0; i < QUERY_TILES; i++)
					panels_load(smem.query[i], maps.query, smem.query_full, row_q + i * TILE_M, h, batch);
			panels_load(smem.key[stage], maps.key, smem.key_full[stage], row_k + now * TILE_N, h_kv, batch);
			if (visit == 0)
#pragma unroll
				for (int i = 0; i < QUERY_TILES; i++)
					panels_load(smem.dout[i], maps.dout, smem.dout_full, row_q + i * TILE_M, h, batch);
			mbarrier_wait(smem.value_empty[stage], parity);
			panels_load(smem.value[stage], maps.value, smem.value_full[stage], row_k + now * TILE_N, h_kv, batch);
		}
		__syncwarp();
	}
}

// Its last HELPER_THREADS threads: inputs, those of the head and the rows with the first visit.
DEVICE void query_inputs_load(QuerySmem &smem, const QueryBuffers &staged, const fagen_abi &p, const QueryOwn &own)
{
	const int thread = mov_tid_x() - (GROUP_THREADS - HELPER_THREADS);
#pragma unroll 1
	for (unsigned visit = 0;; visit++) {
		const int stage = visit % QUERY_STAGES;
		mbarrier_wait(smem.note_full[visit % QUERY_NOTES], visit / QUERY_NOTES & 1);
		const QueryNote &note = smem.note[visit % QUERY_NOTES];
		const int tile = note.of[0].tile;
		if (tile < 0)
			return;
		if (HEAD_INPUTS && visit == 0)
			head_load(staged.head(0), &p, own.b, own.h, thread, HELPER_THREADS);
		if (ROW_INPUTS && visit == 0)
#pragma unroll
			for (int i = 0; i < QUERY_TILES; i++)
				rows_load(staged.rows(i), &p, own.b, own.h, own.q0 + i * TILE_M, thread, HELPER_THREADS);
		mbarrier_wait(smem.key_empty[stage], (visit / QUERY_STAGES & 1) ^ 1);
		if constexpr (COL_INPUTS)
			cols_load(staged.cols(stage), &p, own.b, own.h, tile * TILE_N, thread, HELPER_THREADS);
		if constexpr (CELL_INPUTS)
#pragma unroll
			for (int i = 0; i < QUERY_TILES; i++)
				if (note.of[i].tile_class != TILE_EMPTY)
					cells_load(staged.cells(stage * QUERY_TILES + i), &p, own.b, own.h, own.q0 + i * TILE_M, tile * TILE_N,
					           thread, HELPER_THREADS);
		cp_async_commit();
		cp_async_wait<0>();
		mbarrier_arrive(smem.inputs_full[stage]);
	}
}

// ---- computing: a warpgroup and its 64 rows ----

// Of a thread: the accumulators of S hold rows g, g + 8 of its warp's 16 and keys 2t, 2t + 1 of every 8-key block, as
// s[4 * block + 2 * (row half) + key]; those of dP likewise, and those of dQ with columns for keys.
DEVICE int lane_query() { return (mov_tid_x() - GROUP_THREADS) / 32 * 16 + mov_tid_x() % 32 / 4; } // row g, of the CTA's
DEVICE int lane_col() { return mov_tid_x() % 4 * 2; }                                               // 2t

// change(cell, row half, row state, column state) for every accumulator of S.
template <class Change>
DEVICE void query_cells(float (&s)[TILE_N / 2], const fagen_abi &p, const Inputs &in, const QueryOwn &own, Change change)
{
	const int q = own.q0 + lane_query(), col = in.k0 + lane_col();
	const RowState row[2] = {row_state(&p, &in, own.b, own.h, q, col), row_state(&p, &in, own.b, own.h, q + 8, col)};
#pragma unroll
	for (int j = 0; j < BLOCKS_N; j++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const ColState state = col_state(&p, &in, own.b, own.h, col, 8 * j + e);
#pragma unroll
			for (int r = 0; r < 2; r++)
				change(s[4 * j + 2 * r + e], r, row[r], state);
		}
}

template <bool> struct QueryWords { unsigned kept[TILE_N / 64]; }; // of rows g, g + 8: one for each 64 keys
template <> struct QueryWords<false> {};
DEVICE void words_make(QueryWords<true> &words, const DropoutKey &key, const QueryOwn &own, int k0)
{
#pragma unroll
	for (int i = 0; i < TILE_N / 64; i++)
		words.kept[i] = dropout_bits(key, own.q0 + lane_query(), k0 + 64 * i + lane_col());
}
DEVICE void words_make(QueryWords<false> &, const DropoutKey &, const QueryOwn &, int) {}
// dP of key parity e and row half r in block j, without what dropout drops: the decision becomes the sign of byte 2r + e.
DEVICE float dropped(const QueryWords<true> &words, float dp, int j, int r, int e)
{
	return __uint_as_float(__float_as_uint(dp) & prmt(words.kept[j / 8] << j % 8, 0, 0x8888 + 0x1111 * (2 * r + e))) * KEEP_SCALE;
}
DEVICE float dropped(const QueryWords<false> &, float dp, int, int, int) { return dp; }

// What a thread has of its rows g, g + 8.
struct QueryStatistics { float lse2[2], delta[2]; };

DEVICE QueryStatistics query_statistics(const fagen_abi &p, const QueryOwn &own)
{
	QueryStatistics rows = {{infinity(), infinity()}, {0, 0}};
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const int q = own.q0 + lane_query() + 8 * r;
		if (q < slot_q(&p, own.b)) { // the CTA's last tile may begin past it, and then has none
			const Statistics *const of = tile_statistics(p, tile_index(p, own.b, own.h, q / TILE_M));
			rows.lse2[r] = of->lse2[q % TILE_M];
			rows.delta[r] = of->delta[q % TILE_M];
		}
	}
	return rows;
}

// dS, packed; s is P times the derivative of the score.
DEVICE void query_dscore(unsigned (&ds)[TILE_N / 4], const float (&s)[TILE_N / 2], const float (&dp)[TILE_N / 2],
                         const QueryStatistics &rows, const QueryWords<DROPOUT> &words)
{
#pragma unroll
	for (int j = 0; j < BLOCKS_N; j++)
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const int i = 4 * j + 2 * r;
			const float x = dropped(words, dp[i], j, r, 0) - rows.delta[r], y = dropped(words, dp[i + 1], j, r, 1) - rows.delta[r];
			ds[2 * j + r] = cvt_rn_x2(s[i] * x, s[i + 1] * y, Element{});
		}
}

// Waits for a visit's K; false: there is no such visit.
DEVICE bool query_visit_wait(QuerySmem &smem, unsigned visit)
{
	mbarrier_wait(smem.key_full[visit % QUERY_STAGES], visit / QUERY_STAGES & 1);
	return smem.note[visit % QUERY_NOTES].of[0].tile >= 0;
}

// One visit. Nothing is under way when it begins or ends.
DEVICE void query_visit_attend(float (&dquery)[HEAD_DIM_QK / 2], unsigned visit, int group, const QueryStatistics &rows,
                               QuerySmem &smem, const QueryBuffers &staged, const fagen_abi &p)
{
	const int stage = visit % QUERY_STAGES, tile = 64 * group / TILE_M, row = 64 * group % TILE_M; // in that query tile
	const unsigned parity = visit / QUERY_STAGES & 1;
	const Visit &note = smem.note[visit % QUERY_NOTES].of[tile]; // read at each use: registers are full
	const QueryOwnShared &own = smem.own;
	if (QUERY_TILES > 1 && note.tile_class == TILE_EMPTY) { // another query tile's alone
		mbarrier_wait(smem.value_full[stage], parity);
		if constexpr (INPUTS)
			mbarrier_wait(smem.inputs_full[stage], parity);
		// No product keeps the warps of this group together: all of them have read the note, and have seen these phases end, before the
		// next ones may.
		barrier_sync(BARRIER_GROUP + group, GROUP_THREADS);
		if (first_thread()) {
			mbarrier_arrive(smem.value_empty[stage]);
			mbarrier_arrive(smem.key_empty[stage]);
		}
		return;
	}
	if constexpr (LAYOUT != LAYOUT_DENSE) {
		const int keys = walk_sk(smem.walk[tile], p) - note.tile * TILE_N;
		if (keys < TILE_N) {
			mbarrier_wait(smem.value_full[stage], parity);
			rows_clear(smem.key[stage], keys);
			rows_clear(smem.value[stage], keys);
			barrier_sync(BARRIER_GROUP + group, GROUP_THREADS); // writers of zeros before the products that read them
		}
	}
	float s[TILE_N / 2], dp[TILE_N / 2];
	unsigned ds[TILE_N / 4];
	QueryWords<DROPOUT> words;
	product_ss<STEPS_QK, TILE_M, TILE_N>(s, wgmma_desc(smem.query[tile][0][row], 0), wgmma_desc(smem.key[stage], 0));
	mbarrier_wait(smem.value_full[stage], parity);
	product_ss<STEPS_V, TILE_M, TILE_N>(dp, wgmma_desc(smem.dout[tile][0][row], 0), wgmma_desc(smem.value[stage], 0));
	words_make(words, own.dropout, own, note.tile * TILE_N);
	wgmma_wait_group<1>(); // S
	registers_pin(s);
	if constexpr (INPUTS)
		mbarrier_wait(smem.inputs_full[stage], parity);
	const Inputs in = {staged.head(0), staged.rows(tile), staged.cols(stage), staged.cells(stage * QUERY_TILES + tile),
	                   own.q0 + tile * TILE_M, note.tile * TILE_N, note.bits};
	const bool partial = note.tile_class != TILE_FULL;
	const auto hide = [&](float hidden) {
		query_cells(s, p, in, own, [&](float &x, int, const RowState &row, const ColState &col) { x = mask_keep(row, col, &in) ? x : hidden; });
	};
	if (SCORE_IDENTITY && partial) // first, while fewer values are about
		hide(-infinity());
	query_cells(s, p, in, own, [&](float &x, int r, const RowState &row, const ColState &col) {
		const Scored scored = score_grad(x, row, col, &in);
		x = ex2(scored.score * LOGIT_SCALE - rows.lse2[r]) * scored.grad;
	});
	if (!SCORE_IDENTITY && partial) // whose derivative may be anything, NaN too
		hide(0);
	wgmma_wait_group<0>(); // dP
	registers_pin(dp);
	if (first_thread())
		mbarrier_arrive(smem.value_empty[stage]);
	query_dscore(ds, s, dp, rows, words);
	product_rs(dquery, ds, wgmma_desc(smem.key[stage], TILE_N * 128));
	wgmma_wait_group<0>(); // dQ
	registers_pin(dquery);
	if (first_thread())
		mbarrier_arrive(smem.key_empty[stage]);
}

DEVICE void queries_attend(QuerySmem &smem, const QueryBuffers &staged, const fagen_abi &p)
{
	const int group = warp_uniform((mov_tid_x() - GROUP_THREADS) / GROUP_THREADS);
	const QueryStatistics rows = query_statistics(p, smem.own);
	float dquery[HEAD_DIM_QK / 2];
#pragma unroll
	for (int i = 0; i < HEAD_DIM_QK / 2; i++)
		dquery[i] = 0;
	if (query_visit_wait(smem, 0)) {
		mbarrier_wait(smem.query_full, 0);
		mbarrier_wait(smem.dout_full, 0);
		unsigned visit = 0;
#pragma unroll 1
		do {
			query_visit_attend(dquery, visit, group, rows, smem, staged, p);
			visit++;
		} while (query_visit_wait(smem, visit));
	}

	const QueryOwn own = smem.own;
	unsigned short *const head = head_address(p.dquery, own.b, own.h, first_q(&p, own.b));
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const int q = own.q0 + lane_query() + 8 * r;
		const bool used = LAYOUT == LAYOUT_DENSE || q < sequence_q(&p, own.b), written = q < slot_q(&p, own.b);
		accumulators_store<HEAD_DIM_QK>(head + q * p.dquery.stride_seq, dquery, r, SOFTMAX_SCALE, lane_col() / 2, used, written);
	}
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
	fagen_backward_query(const __grid_constant__ fagen_abi p, const __grid_constant__ fagen_abi_maps maps)
{
	extern __shared__ __align__(1024) unsigned char smem_bytes[];
	QuerySmem &smem = *reinterpret_cast<QuerySmem *>(smem_bytes);
	const QueryBuffers staged(smem_bytes + sizeof(QuerySmem));
	// Tiles of one head are neighbours in the grid and share its keys in L2; the last rows, which see most, go first.
	const Owned owned = rows_owned<QUERY_ROWS, true>(p);
	if (owned.tile < 0)
		return;
	const QueryOwn own = {owned.b, owned.h, owned.tile * QUERY_ROWS};
	if (threadIdx.x == 0) {
		static_cast<QueryOwn &>(smem.own) = own;
		smem.own.dropout_make(p, own.b, own.h);
		// K of a visit is expected in one piece, Q and dO in one for each query tile.
		mbarrier_init(smem.query_full, QUERY_TILES);
		mbarrier_init(smem.dout_full, QUERY_TILES);
		for (int i = 0; i < QUERY_STAGES; i++) {
			mbarrier_init(smem.key_full[i], 1);
			mbarrier_init(smem.key_empty[i], WARPGROUPS);
			mbarrier_init(smem.value_full[i], 1);
			mbarrier_init(smem.value_empty[i], WARPGROUPS);
			mbarrier_init(smem.inputs_full[i], INPUTS ? HELPER_THREADS : 1);
		}
		for (int i = 0; i < QUERY_NOTES; i++)
			mbarrier_init(smem.note_full[i], 1);
		fence_mbarrier_init();
	}
	__syncthreads(); // barriers before their users
	const int group = warp_uniform(threadIdx.x / GROUP_THREADS), warp = warp_uniform(threadIdx.x / 32);
	if (group == 0) {
		setmaxnreg_dec<LOAD_REGISTERS>();
		if (warp == 0)
			query_tiles_load(smem, p, maps, own);
		else if (INPUTS)
			query_inputs_load(smem, staged, p, own);
	} else {
		setmaxnreg_inc<COMPUTE_REGISTERS>();
		queries_attend(smem, staged, p);
	}
}
