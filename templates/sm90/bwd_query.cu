// Gradient of the queries when sums must not depend on the order in which CTAs run (QUERY_APART), after bwd.cu or bwd_pair.cu in the same
// text: a CTA owns 128 rows of a query head, two query tiles of 64 or one of 128, and the key tiles that any of them sees stream past, from
// last to first. Warpgroup 0 loads, the other two own 64 rows each, whose dQ stays in their registers. Products of a step:
//   S = Q K^T, dP = dO V^T, dQ += dS K,   dS = P (dP - delta).
// Rows and not keys lie across the warps, so dS is an operand from the registers that it was made in: nothing passes through shared
// memory, and the warpgroups have nothing to say to each other.
//
// A visit is a key tile. To head dim 128 it is one step. Above, sums of dQ leave registers for S and dP of 64 keys, and it is two, the first
// keys first: Q and dO leave room for two buffers of K, which are those of the two steps, and one or two of V; dQ of a step runs under S of
// the next, which needs another K.
//
// Visits and steps are numbered through: visit n has the note n % QUERY_NOTES and the inputs n % QUERY_INPUTS, step n of the
// visit n / QUERY_STEPS the buffers n % KEY_STAGES and n % VALUE_STAGES, whose phases count n / KEY_STAGES and n / VALUE_STAGES.

constexpr int QUERY_GROUPS = 2; // warpgroups that compute
constexpr int QUERY_ROWS = 64 * QUERY_GROUPS;
constexpr int QUERY_TILES = QUERY_ROWS / TILE_M; // query tiles of a CTA: each walks, has its classes and its inputs
constexpr bool QUERY_WIDE = HEAD_DIM_QK > 128 || HEAD_DIM_V > 128;
constexpr int QUERY_KEYS = QUERY_WIDE ? 64 : TILE_N; // of a step: the box of the maps of K and V
constexpr int QUERY_STEPS = TILE_N / QUERY_KEYS;
constexpr int BLOCKS_N = QUERY_KEYS / 8; // 8-key blocks of S
constexpr int QUERY_HELPERS = INPUTS ? 96 : 0; // threads that stage inputs: the other warps of warpgroup 0
// Registers of a thread that loads and of one that computes: together three times the 168 that each has at launch. Of wide head dims who
// computes leaves some to three panels of dQ; to four, where a layout of blocks is walked, unless entries have lengths of their own.
constexpr bool LOAD_MORE = QUERY_WIDE && (PANELS_QK < 4 || (BLOCK_Q > 0 && LAYOUT == LAYOUT_DENSE));
constexpr int QUERY_LOAD_REGISTERS = LOAD_MORE ? 56 : LONG_LOAD || (QUERY_WIDE && INPUTS) ? 40 : 24;
constexpr int QUERY_REGISTERS = (3 * 168 - QUERY_LOAD_REGISTERS) / QUERY_GROUPS;
static_assert(QUERY_LOAD_REGISTERS + QUERY_GROUPS * QUERY_REGISTERS <= 3 * (65536 / THREADS / 8 * 8), "registers of a CTA");
static_assert(THREADS == GROUP_THREADS * (QUERY_GROUPS + 1), "a warpgroup loads");
static_assert(QUERY_APART && QUERY_TILES * TILE_M == QUERY_ROWS && TILE_M % 64 == 0, "a warpgroup's rows are of one query tile");

struct QueryOwn { int b, h, q0; };
struct QueryOwnShared : QueryOwn, HeadKey<DROPOUT> {};
struct QueryNote { Visit of[QUERY_TILES]; }; // of one key tile: empty for who does not see it
// How far a query tile's walk is: the key tile that it sees next, -1 at the end. At first it has seen WALK_START.
enum { WALK_START = -2 };
struct QueryCursor { int next, tile, tile_class; };
// How far the walk of all is: the visit, and its key tile, the last one that any query tile sees next.
struct QueryWalk { unsigned visit; int tile; };

// What a quad of lanes has of its rows g, g + 8; of wide head dims in shared memory, read where it is used.
struct alignas(16) QueryStatistics { float lse2[2], delta[2]; };
template <bool> struct QueryRows { QueryStatistics of[QUERY_ROWS / 2]; }; // 1,024 bytes: panels follow
template <> struct QueryRows<false> {};

template <int KEY_STAGES_, int VALUE_STAGES_> struct alignas(16) QueryShared : QueryRows<QUERY_WIDE> {
	static constexpr int INPUT_STAGES = KEY_STAGES_ / QUERY_STEPS;
	unsigned short query[QUERY_TILES][PANELS_QK][TILE_M][64]; // swizzled rows of 128 bytes: tensor maps write, wgmma reads
	unsigned short dout[QUERY_TILES][PANELS_V][TILE_M][64];
	unsigned short key[KEY_STAGES_][PANELS_QK][QUERY_KEYS][64];
	unsigned short value[VALUE_STAGES_][PANELS_V][QUERY_KEYS][64];
	// full: data are there, loaders before readers. empty: readers before loaders.
	unsigned long long query_full, dout_full;
	unsigned long long key_full[KEY_STAGES_], key_empty[KEY_STAGES_]; // K and the note; where a visit is one step, free with them its inputs
	unsigned long long value_full[VALUE_STAGES_], value_empty[VALUE_STAGES_];
	unsigned long long inputs_full[INPUT_STAGES], inputs_empty[INPUT_STAGES]; // empty: where a visit is several steps
	unsigned long long note_full[2 * KEY_STAGES_]; // for the warps that stage inputs
	QueryNote note[2 * KEY_STAGES_];
	QueryOwnShared own; // here and not in registers, which are full
	QueryWalk at;                    // of the warp that walks, as registers are few
	QueryCursor cursor[QUERY_TILES];
	WalkShared walk[QUERY_TILES];    // over the key tiles
};
template <int INPUT_STAGES_> using QueryStaged = Staged<1, QUERY_TILES, INPUT_STAGES_, INPUT_STAGES_ * QUERY_TILES>;
template <int KEY_STAGES_, int VALUE_STAGES_> DEVICE constexpr int query_bytes()
{
	using Shared = QueryShared<KEY_STAGES_, VALUE_STAGES_>;
	return sizeof(Shared) + QueryStaged<Shared::INPUT_STAGES>::BYTES;
}
// Two buffers of K and V where they fit; else one of V, and where a visit is one step of K.
constexpr int VALUE_STAGES = query_bytes<2, 2>() == QUERY_SMEM_BYTES ? 2 : 1;
constexpr int KEY_STAGES = QUERY_WIDE ? 2 : VALUE_STAGES;
static_assert(query_bytes<KEY_STAGES, VALUE_STAGES>() == QUERY_SMEM_BYTES,
              "shared memory of fagen_backward_query and gen/model_sm90_query.c disagree");
using QuerySmem = QueryShared<KEY_STAGES, VALUE_STAGES>;
constexpr int QUERY_NOTES = 2 * KEY_STAGES, QUERY_INPUTS = QuerySmem::INPUT_STAGES;
using QueryBuffers = QueryStaged<QUERY_INPUTS>;

// ---- loading: warpgroup 0 ----

// K and V of a step of a key tile; before them Q and dO, if it is the first of all. By one thread.
DEVICE void query_step_load(QuerySmem &smem, const fagen_abi &p, const fagen_abi_maps &maps, const QueryOwn &own, int tile, unsigned step)
{
	const int h_kv = own.h / (KV_GROUP > 0 ? KV_GROUP : p.kv_group), batch = LAYOUT == LAYOUT_PACKED ? 0 : own.b;
	const int row_q = first_q(&p, own.b) + own.q0, row_k = first_k(&p, own.b) + tile * TILE_N + (int)(step % QUERY_STEPS) * QUERY_KEYS;
	const int key = step % KEY_STAGES, value = step % VALUE_STAGES;
	mbarrier_wait(smem.key_empty[key], (step / KEY_STAGES & 1) ^ 1);
	if (step == 0)
#pragma unroll
		for (int i = 0; i < QUERY_TILES; i++)
			panels_load(smem.query[i], maps.query, smem.query_full, row_q + i * TILE_M, own.h, batch);
	panels_load(smem.key[key], maps.key, smem.key_full[key], row_k, h_kv, batch);
	if (step == 0)
#pragma unroll
		for (int i = 0; i < QUERY_TILES; i++)
			panels_load(smem.dout[i], maps.dout, smem.dout_full, row_q + i * TILE_M, own.h, batch);
	mbarrier_wait(smem.value_empty[value], (step / VALUE_STAGES & 1) ^ 1);
	panels_load(smem.value[value], maps.value, smem.value_full[value], row_k, h_kv, batch);
}

// The first warp: notes, and the tiles of Q, K, dO and V.
DEVICE void query_tiles_load(QuerySmem &smem, const fagen_abi &p, const fagen_abi_maps &maps, const QueryOwn &own)
{
	const bool leader = elect_sync();
	if (leader) {
		smem.at = {0, WALK_START};
#pragma unroll 1
		for (int i = 0; i < QUERY_TILES; i++) {
			walk_begin<true>(smem.walk[i], p, own.b, own.q0 + i * TILE_M);
			smem.cursor[i] = {smem.walk[i].stream.next, WALK_START, TILE_EMPTY};
		}
	}
	__syncwarp(); // writer of the walks before their readers
#pragma unroll 1
	for (;;) {
#pragma unroll
		for (int i = 0; i < QUERY_TILES; i++) {
			QueryCursor cursor = smem.cursor[i];
			if (cursor.tile == smem.at.tile) {
				if (!walk_next<true>(smem.walk[i], p, own.b, own.h, own.q0 + i * TILE_M, cursor.next, cursor.tile, cursor.tile_class))
					cursor.tile = -1;
				__syncwarp(); // readers of the cursor before its writer
				if (leader)
					smem.cursor[i] = cursor;
				__syncwarp(); // and the other way round
			}
		}
		int now = -1;
#pragma unroll
		for (int i = 0; i < QUERY_TILES; i++)
			now = int_max(now, smem.cursor[i].tile);
		QueryNote &note = smem.note[smem.at.visit % QUERY_NOTES];
#pragma unroll
		for (int i = 0; i < QUERY_TILES; i++)
			visit_note<true>(note.of[i], p, own.b, own.h, own.q0 + i * TILE_M, now,
			                 smem.cursor[i].tile == now ? smem.cursor[i].tile_class : TILE_EMPTY);
		__syncwarp(); // the note's writers before the leader's arrivals, and readers of the walk before its writer
		if (leader) {
			const unsigned visit = smem.at.visit, step = visit * QUERY_STEPS;
			if (INPUTS)
				mbarrier_arrive(smem.note_full[visit % QUERY_NOTES]);
			if (now >= 0) {
#pragma unroll 1
				for (int i = 0; i < QUERY_STEPS; i++)
					query_step_load(smem, p, maps, own, now, step + i);
			} else {
				mbarrier_wait(smem.key_empty[step % KEY_STAGES], (step / KEY_STAGES & 1) ^ 1);
				mbarrier_arrive(smem.key_full[step % KEY_STAGES]);
			}
			smem.at = {visit + 1, now};
		}
		__syncwarp(); // and the other way round: the walk
		if (now < 0)
			return;
	}
}

// Its last QUERY_HELPERS threads: inputs, those of the head and the rows with the first visit.
DEVICE void query_inputs_load(QuerySmem &smem, const QueryBuffers &staged, const fagen_abi &p, const QueryOwn &own)
{
	const int thread = mov_tid_x() - (GROUP_THREADS - QUERY_HELPERS);
#pragma unroll 1
	for (unsigned visit = 0;; visit++) {
		const int stage = visit % QUERY_INPUTS;
		mbarrier_wait(smem.note_full[visit % QUERY_NOTES], visit / QUERY_NOTES & 1);
		const QueryNote &note = smem.note[visit % QUERY_NOTES];
		const int tile = note.of[0].tile;
		if (tile < 0)
			return;
		if (HEAD_INPUTS && visit == 0)
			head_load(staged.head(0), &p, own.b, own.h, thread, QUERY_HELPERS);
		if (ROW_INPUTS && visit == 0)
#pragma unroll
			for (int i = 0; i < QUERY_TILES; i++)
				rows_load(staged.rows(i), &p, own.b, own.h, own.q0 + i * TILE_M, thread, QUERY_HELPERS);
		mbarrier_wait(QUERY_WIDE ? smem.inputs_empty[stage] : smem.key_empty[stage], (visit / QUERY_INPUTS & 1) ^ 1);
		if constexpr (COL_INPUTS)
			cols_load(staged.cols(stage), &p, own.b, own.h, tile * TILE_N, thread, QUERY_HELPERS);
		if constexpr (CELL_INPUTS)
#pragma unroll
			for (int i = 0; i < QUERY_TILES; i++)
				if (note.of[i].tile_class != TILE_EMPTY)
					cells_load(staged.cells(stage * QUERY_TILES + i), &p, own.b, own.h, own.q0 + i * TILE_M, tile * TILE_N,
					           thread, QUERY_HELPERS);
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

// change(cell, row half, row state, column state) for every accumulator of S, of keys from k on.
template <class Change>
DEVICE void query_cells(float (&s)[QUERY_KEYS / 2], const fagen_abi &p, const Inputs &in, const QueryOwn &own, int k, Change change)
{
	const int q = own.q0 + lane_query(), col = k + lane_col();
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

template <bool> struct QueryWords { unsigned kept[QUERY_KEYS / 64]; }; // of rows g, g + 8: one for each 64 keys
template <> struct QueryWords<false> {};
DEVICE void words_make(QueryWords<true> &words, const QueryOwnShared &own, int k0)
{
#pragma unroll
	for (int i = 0; i < QUERY_KEYS / 64; i++)
		words.kept[i] = dropout_bits(own.dropout, own.q0 + lane_query(), k0 + 64 * i + lane_col());
}
DEVICE void words_make(QueryWords<false> &, const QueryOwnShared &, int) {}
// They are known here, and not made among the cells, where there are no registers for that.
DEVICE void words_hold(const QueryWords<true> &words) { known_here(words.kept[0]); }
DEVICE void words_hold(const QueryWords<false> &) {}
// dP of key parity e and row half r in block j, without what dropout drops: the decision becomes the sign of byte 2r + e.
DEVICE float dropped(const QueryWords<true> &words, float dp, int j, int r, int e)
{
	return __uint_as_float(__float_as_uint(dp) & prmt(words.kept[j / 8] << j % 8, 0, 0x8888 + 0x1111 * (2 * r + e))) * KEEP_SCALE;
}
DEVICE float dropped(const QueryWords<false> &, float dp, int, int, int) { return dp; }

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

// Where a thread finds them from now on.
DEVICE const QueryStatistics &query_rows_keep(QueryRows<true> &rows, const QueryStatistics &own)
{
	QueryStatistics &kept = rows.of[(mov_tid_x() - GROUP_THREADS) / 4];
	kept = own; // as the other lanes of the quad do
	return kept;
}
DEVICE const QueryStatistics &query_rows_keep(QueryRows<false> &, const QueryStatistics &own) { return own; }

// dS, packed; s is P times the derivative of the score.
DEVICE void query_dscore(unsigned (&ds)[QUERY_KEYS / 4], const float (&s)[QUERY_KEYS / 2], const float (&dp)[QUERY_KEYS / 2],
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

// Waits for a step's K; false: there is no such step.
DEVICE bool query_step_wait(QuerySmem &smem, unsigned step)
{
	mbarrier_wait(smem.key_full[step % KEY_STAGES], step / KEY_STAGES & 1);
	return smem.note[step / QUERY_STEPS % QUERY_NOTES].of[0].tile >= 0;
}
DEVICE int query_tile(int group) { return 64 * group / TILE_M; } // of a warpgroup
// Does a warpgroup see the key tile of a step that there is?
DEVICE bool query_step_seen(const QuerySmem &smem, unsigned step, int group)
{
	return QUERY_TILES == 1 || smem.note[step / QUERY_STEPS % QUERY_NOTES].of[query_tile(group)].tile_class != TILE_EMPTY;
}

// This warp has read a visit's inputs for the last time, if the step is the last: sooner than its K is free, which dQ reads under the next step.
DEVICE void query_inputs_leave(unsigned step, QuerySmem &smem)
{
	if (QUERY_WIDE && INPUTS && step % QUERY_STEPS == QUERY_STEPS - 1) {
		__syncwarp(); // readers of the inputs before the arrival
		if (mov_tid_x() % 32 == 0)
			mbarrier_arrive(smem.inputs_empty[step / QUERY_STEPS % QUERY_INPUTS]);
	}
}

// A step that another query tile alone sees.
DEVICE void query_step_pass(unsigned step, int group, QuerySmem &smem)
{
	mbarrier_wait(smem.value_full[step % VALUE_STAGES], step / VALUE_STAGES & 1);
	if constexpr (INPUTS)
		mbarrier_wait(smem.inputs_full[step / QUERY_STEPS % QUERY_INPUTS], step / QUERY_STEPS / QUERY_INPUTS & 1);
	// No product keeps the warps of this group together: all of them have read the note, and have seen these phases end, before the
	// next ones may.
	barrier_sync(BARRIER_GROUP + group, GROUP_THREADS);
	query_inputs_leave(step, smem);
	if (first_thread()) {
		mbarrier_arrive(smem.value_empty[step % VALUE_STAGES]);
		mbarrier_arrive(smem.key_empty[step % KEY_STAGES]);
	}
}

// dQ of a step is done.
DEVICE void query_step_end(float (&dquery)[HEAD_DIM_QK / 2], unsigned step, QuerySmem &smem)
{
	registers_pin(dquery);
	if (first_thread())
		mbarrier_arrive(smem.key_empty[step % KEY_STAGES]);
}

// One step. Its dQ is under way when it ends. `held`: so is that of the step before when it begins, of a wide head dim.
DEVICE void query_step_attend(float (&dquery)[HEAD_DIM_QK / 2], unsigned step, bool held, int group,
                              const QueryStatistics &rows, QuerySmem &smem, const QueryBuffers &staged, const fagen_abi &p)
{
	const int tile = query_tile(group), row = 64 * group % TILE_M; // in that query tile
	const int key = step % KEY_STAGES, value = step % VALUE_STAGES, inputs = step / QUERY_STEPS % QUERY_INPUTS;
	const int first = step % QUERY_STEPS * QUERY_KEYS; // key of the tile
	const unsigned value_parity = step / VALUE_STAGES & 1;
	const Visit &note = smem.note[step / QUERY_STEPS % QUERY_NOTES].of[tile]; // read at each use: registers are full
	const QueryOwnShared &own = smem.own;
	if constexpr (LAYOUT != LAYOUT_DENSE) {
		const int keys = walk_sk(smem.walk[tile], p) - note.tile * TILE_N - first;
		if (keys < QUERY_KEYS) {
			mbarrier_wait(smem.value_full[value], value_parity);
			rows_clear(smem.key[key], int_max(keys, 0));
			rows_clear(smem.value[value], int_max(keys, 0));
			barrier_sync(BARRIER_GROUP + group, GROUP_THREADS); // writers of zeros before the products that read them
		}
	}
	float s[QUERY_KEYS / 2], dp[QUERY_KEYS / 2];
	unsigned ds[QUERY_KEYS / 4];
	QueryWords<DROPOUT> words;
	if constexpr (QUERY_WIDE) { // under dQ of the step before
		words_make(words, own, note.tile * TILE_N + first);
		words_hold(words);
	}
	product_ss<STEPS_QK, TILE_M, QUERY_KEYS>(s, wgmma_desc(smem.query[tile][0][row], 0), wgmma_desc(smem.key[key], 0));
	if constexpr (QUERY_WIDE) {
		wgmma_wait_group<1>(); // dQ of the step before
		if (held)
			query_step_end(dquery, step - 1, smem);
		registers_pin(dquery);
	}
	mbarrier_wait(smem.value_full[value], value_parity);
	product_ss<STEPS_V, TILE_M, QUERY_KEYS>(dp, wgmma_desc(smem.dout[tile][0][row], 0), wgmma_desc(smem.value[value], 0));
	if constexpr (!QUERY_WIDE)
		words_make(words, own, note.tile * TILE_N + first);
	wgmma_wait_group<1>(); // S
	registers_pin(s);
	if constexpr (INPUTS)
		mbarrier_wait(smem.inputs_full[inputs], step / QUERY_STEPS / QUERY_INPUTS & 1);
	const Inputs in = {staged.head(0), staged.rows(tile), staged.cols(inputs), staged.cells(inputs * QUERY_TILES + tile),
	                   own.q0 + tile * TILE_M, note.tile * TILE_N, note.bits};
	const bool partial = note.tile_class != TILE_FULL;
	const auto hide = [&](float hidden) {
		query_cells(s, p, in, own, in.k0 + first,
		            [&](float &x, int, const RowState &row, const ColState &col) { x = mask_keep(row, col, &in) ? x : hidden; });
	};
	if (SCORE_IDENTITY && partial) // first, while fewer values are about
		hide(-infinity());
	query_cells(s, p, in, own, in.k0 + first, [&](float &x, int r, const RowState &row, const ColState &col) {
		const Scored scored = score_grad(x, row, col, &in);
		x = ex2(scored.score * LOGIT_SCALE - rows.lse2[r]) * scored.grad;
	});
	if (!SCORE_IDENTITY && partial) // whose derivative may be anything, NaN too
		hide(0);
	query_inputs_leave(step, smem);
	if constexpr (QUERY_WIDE) { // exponentials, which hide behind dP
		unsigned bits = 0;
#pragma unroll
		for (int i = 0; i < QUERY_KEYS / 2; i++)
			bits ^= __float_as_uint(s[i]);
		known_here(bits);
	}
	wgmma_wait_group<0>(); // dP
	registers_pin(dp);
	if (first_thread())
		mbarrier_arrive(smem.value_empty[value]);
	query_dscore(ds, s, dp, rows, words);
	product_rs(dquery, ds, wgmma_desc(smem.key[key], QUERY_KEYS * 128));
}

// All steps of a warpgroup, of which there is one.
DEVICE void query_steps_attend(float (&dquery)[HEAD_DIM_QK / 2], int group, const QueryStatistics &rows, QuerySmem &smem,
                               const QueryBuffers &staged, const fagen_abi &p)
{
	unsigned step = 0;
	if constexpr (!QUERY_WIDE) {
#pragma unroll 1
		do {
			if (!query_step_seen(smem, step, group)) {
				query_step_pass(step, group, smem);
			} else {
				query_step_attend(dquery, step, false, group, rows, smem, staged, p);
				wgmma_wait_group<0>(); // dQ
				query_step_end(dquery, step, smem);
			}
			step++;
		} while (query_step_wait(smem, step));
	} else {
		bool more;
#pragma unroll 1
		do {
			if (query_step_seen(smem, step, group)) {
				bool held = false;
#pragma unroll 1
				do { // steps that follow each other
					query_step_attend(dquery, step, held, group, rows, smem, staged, p);
					held = true;
					step++;
					more = query_step_wait(smem, step);
				} while (more && query_step_seen(smem, step, group));
				wgmma_wait_group<0>(); // dQ
				query_step_end(dquery, step - 1, smem); // of the last
			} else {
				query_step_pass(step, group, smem);
				step++;
				more = query_step_wait(smem, step);
			}
		} while (more);
	}
}

DEVICE void queries_attend(QuerySmem &smem, const QueryBuffers &staged, const fagen_abi &p)
{
	const int group = warp_uniform((mov_tid_x() - GROUP_THREADS) / GROUP_THREADS);
	const QueryStatistics rows = query_statistics(p, smem.own);
	float dquery[HEAD_DIM_QK / 2];
#pragma unroll
	for (int i = 0; i < HEAD_DIM_QK / 2; i++)
		dquery[i] = 0;
	if (query_step_wait(smem, 0)) {
		mbarrier_wait(smem.query_full, 0);
		mbarrier_wait(smem.dout_full, 0);
		query_steps_attend(dquery, group, query_rows_keep(smem, rows), smem, staged, p);
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
	const Owned owned = query_item<QUERY_ROWS>(p, blockIdx.x, query_sections<QUERY_ROWS>(p));
	if (owned.tile < 0)
		return;
	const QueryOwn own = {owned.b, owned.h, owned.tile * QUERY_ROWS};
	if (threadIdx.x == 0) {
		static_cast<QueryOwn &>(smem.own) = own;
		smem.own.dropout_make(p, own.b, own.h);
		// K of a visit is expected in one piece, Q and dO in one for each query tile.
		mbarrier_init(smem.query_full, QUERY_TILES);
		mbarrier_init(smem.dout_full, QUERY_TILES);
		for (int i = 0; i < KEY_STAGES; i++) {
			mbarrier_init(smem.key_full[i], 1);
			mbarrier_init(smem.key_empty[i], QUERY_GROUPS);
		}
		for (int i = 0; i < VALUE_STAGES; i++) {
			mbarrier_init(smem.value_full[i], 1);
			mbarrier_init(smem.value_empty[i], QUERY_GROUPS);
		}
		for (int i = 0; i < QUERY_INPUTS; i++)
			mbarrier_init(smem.inputs_full[i], INPUTS ? QUERY_HELPERS : 1), mbarrier_init(smem.inputs_empty[i], 4 * QUERY_GROUPS);
		for (int i = 0; i < QUERY_NOTES; i++)
			mbarrier_init(smem.note_full[i], 1);
		fence_mbarrier_init();
	}
	__syncthreads(); // barriers before their users
	const int group = warp_uniform(threadIdx.x / GROUP_THREADS), warp = warp_uniform(threadIdx.x / 32);
	if (group == 0) {
		setmaxnreg_dec<QUERY_LOAD_REGISTERS>();
		if (warp == 0)
			query_tiles_load(smem, p, maps, smem.own);
		else if (INPUTS)
			query_inputs_load(smem, staged, p, own);
	} else {
		setmaxnreg_inc<QUERY_REGISTERS>();
		queries_attend(smem, staged, p);
	}
}
