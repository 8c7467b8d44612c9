// Backward for sm_90a (FlashAttention-3, Shah et al. 2024): persistent CTAs take tiles of 128 keys of one key/value head, and the query
// tiles that see them stream past, one query head of the group after the other. Warpgroup 0 loads: its first warp walks and issues
// bulk copies, others add dQ to its sums and stage inputs. The other two warpgroups own 64 keys each, whose dK and dV stay in their
// registers. Products of a visit:
//   S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dK += dS^T Q, dQ^T += K^T dS^T,   dS = P (dP - delta).
// Transposed, P and dS are operands from the registers that they were made in. dV starts as soon as P is there and runs under dS. dQ alone
// needs dS of both warpgroups: it passes through shared memory, each of them computes half of dQ, and a visit has the dQ of the one
// before, so that neither waits for the other's dS of this one. dQ is summed over the key tiles in float32 global memory, by bulk copies
// in the order of the accumulators; only this file knows that order, and fagen_dquery rounds what it finds there. Nobody clears the sums: who is
// first to have some of a query tile stores it, and others add. With SUMS_ORDERED that is the last key tile that sees it, and the one before it comes next.
// With QUERY_APART there are no sums: dQ is left to fagen_backward_query, bwd_query.cu.
//
// Q and dO of the next item are loaded while this one's last visits are computed, V and K, of which there is one each, as soon as its last products
// have read them: while dK and dV are stored.
//
// Inputs of the head and of the keys are loaded when the query head or the item changes; they have two buffers, which take turns.
//
// SPLITS: of few key tiles each is so many items, which have a part of its visits each, and leave dK and dV over them in the workspace.
// bwd_merge.cu adds them. dQ does not know of parts. CUT: so are the last tiles alone, where whole items would leave SMs idle at the end of a launch.

constexpr int WARPGROUPS = 2; // that compute
// Of dQ a warpgroup has a panel of columns; if there is but one, its half of the rows.
constexpr int DQUERY_ROWS = PANELS_QK == 2 ? TILE_M : TILE_M / 2;
// Of warpgroup 0 a warp for each that computes adds its dQ to the sums, and the others prepare visits; inputs of cells want two, and one is for both.
constexpr int SUM_WARPS = QUERY_APART ? 0 : CELL_INPUTS ? 1 : WARPGROUPS, HELPER_THREADS = INPUTS ? 32 * (3 - SUM_WARPS) : 0;
// Does dP start at -delta? Where dK, dV, S and dP leave registers for it before S is issued; dropout is between dP and delta. d 96 1.01 to 1.06, d 32 1.03,
// d 80 and 112 1.00; with more accumulators than this d 128 and 64 0.97 to 0.99, d 48 0.92.
constexpr bool DELTA_FIRST = !DROPOUT && (HEAD_DIM_QK + HEAD_DIM_V) / 2 + TILE_M <= (TILE_M <= 80 ? 176 : 160);
// Registers of a thread that loads and of one that computes: together three times the 168 that each has at launch, or who asks for more
// waits forever.
constexpr int LOAD_REGISTERS = LONG_LOAD ? 40 : 24, COMPUTE_REGISTERS = LONG_LOAD ? 232 : 240;
static_assert(LOAD_REGISTERS + WARPGROUPS * COMPUTE_REGISTERS <= 3 * (65536 / THREADS / 8 * 8), "registers of a CTA");
static_assert(THREADS == GROUP_THREADS * (WARPGROUPS + 1) && WALK_WARPS == 1, "one warp walks");
static_assert(TILE_N == 64 * WARPGROUPS && TILE_M % 16 == 0 && TILE_M <= 128, "tiles are made of wgmma m64nNk16");
static_assert(SUMS != SUMS_CLEARED && (SUMS != SUMS_ORDERED || FROM_DIAGONAL), "closed forms say who comes first");
static_assert(STAGES == 2, "inputs of a head have two buffers");
static_assert(PANELS_QK <= 2 && PANELS_V <= 2, "gen/model_sm90_bwd.c refuses them");

// Dropout of each warpgroup's 64 keys, of a visit and of the one before, as kept_make lays it.
template <bool> struct Words { unsigned kept[2][WARPGROUPS][2 * TILE_M]; };
template <> struct Words<false> {};
struct Rows : Words<DROPOUT> { Statistics of[STAGES]; };

// The sums of a query tile lie in blocks of 16 columns and 8 rows, in the order [16-column block][8-row block]; inside a block as the lanes
// hold them, 4 floats each: of columns g, g + 8 rows 2t, 2t + 1.
constexpr int SUM_BLOCK = 128;
constexpr int DQUERY_PART = PANELS_QK == 2 ? 64 * TILE_M : SUM_TILE / 2; // floats of a warpgroup

// What an item leaves for bwd_merge.cu, as the accumulators lie: of 16 keys and 8 columns, 4 floats of each lane. A tile's parts lie together.
struct alignas(16) Part {
	float key[TILE_N / 16][HEAD_DIM_QK / 8][128];
	float value[TILE_N / 16][HEAD_DIM_V / 8][128];
	int seen; // 0: the part has no visit, and the rest is not written
};
DEVICE Part *part_at(const fagen_abi &p, int part) { return reinterpret_cast<Part *>(p.parts) + part; }
DEVICE int part_first(const fagen_abi &p, int b, int h, int k)
{
	return tile_number(p.cu_seqlens_k, p.seqlen_k, p.heads_kv, b, h, k / TILE_N, TILE_N) * SPLITS;
}

// The visits of a tile, or
template <bool PARTS> struct Item : WholeItem<TILE_N> {};
// a part of them, equally many up to one: from tile `next` of query head `head` to tile `tile_last` of the head before `heads_end`. With CUT also all of
// them.
template <> struct Item<true> : Keys {
	struct Noted { int part; };
	int part; // its place in the workspace, -1: none, it is whole; until its visits are taken as item_part numbers it
	int head, next, heads_end, tile_last;
	__device__ __forceinline__ void part_set(int part_) { part = part_; }
	// `whole`: the tiles that each head has.
	__device__ __forceinline__ void visits_take(const Stream &whole, const fagen_abi &p, int group, bool leader)
	{
		__syncwarp(); // so that registers hold nothing of the walk's beginning
		if (!leader)
			return;
		if (is_whole()) {
			head = h * group, heads_end = (h + 1) * group, next = whole.next, tile_last = 0;
			return;
		}
		const int parts = part_count(p), number = CUT ? part % parts : part;
		int tiles;
		stream_ranked(&whole, 0, &tiles);
		const int each = tiles * group / parts, more = tiles * group % parts; // the first `more` parts have one more
		const int begin = number * each + int_min(number, more), last = begin + each + (number < more) - 1;
		const bool some = begin <= last;
		const int first_head = some ? begin / tiles : 0, last_head = some ? last / tiles : 0;
		part = CUT ? part : part_first(p, b, h, k0) + number;
		head = h * group + first_head, heads_end = h * group + last_head + 1;
		next = some ? stream_ranked(&whole, tiles - 1 - (begin - first_head * tiles), &tiles) : -1;
		tile_last = some ? stream_ranked(&whole, tiles - 1 - (last - last_head * tiles), &tiles) : 0;
	}
	__device__ __forceinline__ int head_begin(int) const { return head; }
	__device__ __forceinline__ int head_end(int) const { return heads_end; }
	__device__ __forceinline__ int next_begin(const Stream &) const { return next; }
	__device__ __forceinline__ bool ended(int at, int tile) const { return at + 1 == heads_end && tile < tile_last; }
	__device__ __forceinline__ void seen_note(const fagen_abi &p, bool leader) const
	{
		if (leader && !is_whole())
			part_at(p, part)->seen = 1;
	}
	__device__ __forceinline__ void unseen_note(const fagen_abi &p, bool leader) const
	{
		if (is_whole())
			WholeItem<TILE_N>{{b, h, k0}}.unseen_note(p, leader);
		else if (leader)
			part_at(p, part)->seen = 0;
	}
	__device__ __forceinline__ bool is_whole() const { return CUT && part < 0; }
	__device__ __forceinline__ Noted noted() const { return {part}; }
};
using ItemKept = Item<(SPLITS > 1 || CUT)>;
using ItemNote = NoteOf<ItemKept>;


// With SUMMED there is what dQ passes through; functions that name it are templates over Smem, compiled where it is.
template <bool SUMMED> struct Tiles {
	unsigned short key[PANELS_QK][TILE_N][64]; // swizzled rows of 128 bytes: tensor maps write, wgmma reads
	unsigned short value[PANELS_V][TILE_N][64];
	unsigned short query[STAGES][PANELS_QK][TILE_M][64];
	unsigned short dout[STAGES][PANELS_V][TILE_M][64];
	unsigned short dscore[2][WARPGROUPS][TILE_M][64]; // of visits in turns: rows, a panel of keys from each warpgroup
	float dquery[4 * WARPGROUPS][DQUERY_ROWS / 8][SUM_BLOCK]; // in the order of the sums, on its way to them
};
template <> struct Tiles<false> {
	unsigned short key[PANELS_QK][TILE_N][64];
	unsigned short value[PANELS_V][TILE_N][64];
	unsigned short query[STAGES][PANELS_QK][TILE_M][64];
	unsigned short dout[STAGES][PANELS_V][TILE_M][64];
};
struct alignas(16) Smem : Tiles<!QUERY_APART> {
	Rows rows;
	// full: data are there, loaders before readers. empty: readers before loaders.
	unsigned long long key_full, key_empty, value_full, value_empty; // of items in turn
	unsigned long long query_full[STAGES], query_empty[STAGES]; // Q, the statistics and the note; free with them inputs of cells
	unsigned long long dout_full[STAGES], dout_empty[STAGES];
	unsigned long long inputs_full[NOTES];
	unsigned long long note_full[NOTES]; // for the helpers
	// Writers of dS, each warp, before both warpgroups' dQ, and the other way round. Nobody uses them with QUERY_APART.
	unsigned long long dscore_full[2], dscore_empty[2];
	// dQ of a warpgroup, its writers, each warp, before the one that sums it, and the other way round. Nor these.
	unsigned long long dquery_full[WARPGROUPS], dquery_empty[WARPGROUPS];
	struct {
		int index, k0;
	} summed[WARPGROUPS]; // which dQ that is: of the query tile that the workspace has there, over keys from k0 on. index -1: there is no more
	ItemNote note[NOTES];
	TakenOf<ItemKept> own;       // the loading warp's: whose query tiles are walked
	Sections sections; // likewise
	WalkShared walk; // over them
};
using Buffers = Staged<2, NOTES, 2, STAGES>;
static_assert((sizeof(Smem) + 15) / 16 * 16 + Buffers::BYTES == SMEM_BYTES, "shared memory and gen/model_sm90_bwd.c disagree");

enum { BARRIER_GROUP = 1 }; // id of a named barrier for each warpgroup

// ---- loading: warpgroup 0 ----

// The tiles of a visit whose note is written, and in an item's first one those of K and V. By one thread.
DEVICE void visit_load(Smem &smem, const fagen_abi &p, const fagen_abi_maps &maps, unsigned visit)
{
	const ItemNote &note = smem.note[visit % NOTES];
	const Keys &own = note.own;
	const int stage = visit % STAGES, batch = LAYOUT == LAYOUT_PACKED ? 0 : own.b;
	const int row_q = first_q(&p, own.b) + note.tile * TILE_M, row_k = first_k(&p, own.b) + own.k0;
	const unsigned parity = (visit / STAGES & 1) ^ 1;
	if constexpr (HELPER_THREADS > 0)
		mbarrier_arrive(smem.note_full[visit % NOTES]);
	const auto query_load = [&] {
		mbarrier_wait(smem.query_empty[stage], parity);
		panels_load(smem.query[stage], maps.query, smem.query_full[stage], row_q, note.head, batch, sizeof(Statistics));
		cp_async_bulk(cvta_shared(&smem.rows.of[stage]), tile_statistics(p, note.index), sizeof(Statistics), smem.query_full[stage]);
	};
	const auto dout_load = [&] {
		mbarrier_wait(smem.dout_empty[stage], parity);
		panels_load(smem.dout[stage], maps.dout, smem.dout_full[stage], row_q, note.head, batch);
	};
	const auto key_load = [&] { // the item before: its last dQ is done
		mbarrier_wait(smem.key_empty, (note.item & 1) ^ 1);
		panels_load(smem.key, maps.key, smem.key_full, row_k, own.h, batch);
	};
	const auto value_load = [&] { // the item before: its last dP is done
		mbarrier_wait(smem.value_empty, (note.item & 1) ^ 1);
		panels_load(smem.value, maps.value, smem.value_full, row_k, own.h, batch);
	};
	if (visit == 0) { // all buffers are free: in the order in which they are used
		key_load();
		query_load();
		value_load();
		dout_load();
	} else { // in that in which they become free
		const bool first = note.before < 0;
		if (first) { // from memory to L2 while the item before is computed
			panels_prefetch(smem.key, maps.key, row_k, own.h, batch);
			panels_prefetch(smem.value, maps.value, row_k, own.h, batch);
		}
		dout_load();
		query_load();
		if (first) {
			value_load();
			key_load();
		}
	}
}

// ---- summing dQ: one thread each of SUM_WARPS warps of warpgroup 0 ----

// Whether a key tile stores its dQ or adds it, once it may. A warpgroup's part of a query tile's sums has a word that says whose turn it is (delta.cu): CLAIMED,
// who comes first claims them, stores, and lets the others add; ORDERED, the key tile's of that number. Who stores has something to store: nobody waits long.
DEVICE bool turn_take(unsigned *turn, unsigned key_tile)
{
	if constexpr (SUMS == SUMS_ORDERED)
		return word_wait(turn, ~TURN_FRESH, key_tile) & TURN_FRESH;
	const unsigned before = atom_cas_acquire(turn, TURN_FRESH, TURN_CLAIMED);
	if (before == TURN_CLAIMED)
		word_wait(turn, TURN_CLAIMED, 0);
	return before == TURN_FRESH;
}

// dQ of a warpgroup, as soon as it is there; false: there is none any more.
template <class Shared> DEVICE bool dquery_sum(Shared &smem, const fagen_abi &p, int group, unsigned parity)
{
	mbarrier_wait(smem.dquery_full[group], parity);
	const int index = smem.summed[group].index;
	const unsigned key_tile = smem.summed[group].k0 / TILE_N;
	if (index < 0)
		return false;
	const int at = group * DQUERY_PART, bytes = (PANELS_QK == 2 && group == 1 ? SUM_TILE - DQUERY_PART : DQUERY_PART) * 4;
	const unsigned from = cvta_shared(smem.dquery) + 4 * at;
	unsigned *const turn = tile_turns(p, index) + group;
	const bool first = turn_take(turn, key_tile);
	fence_proxy_async_global(); // what others have stored before what is added now
	if (first)
		cp_async_bulk_store(tile_sums(p, index) + at, from, bytes);
	else
		cp_reduce_async_bulk_add(tile_sums(p, index) + at, from, bytes);
	cp_async_bulk_commit_group();
	cp_async_bulk_wait_read();
	mbarrier_arrive(smem.dquery_empty[group]);
	if (SUMS == SUMS_ORDERED || first) {
		cp_async_bulk_wait();       // it is written
		fence_proxy_async_global(); // before whoever is next
		st_release(turn, SUMS == SUMS_ORDERED ? (key_tile - 1) & ~TURN_FRESH : 0);
	}
	return true;
}

// That of this warpgroup and of those that have no warp, visit after visit. They end together, and the end of the grid waits for what is not written yet.
template <class Shared> DEVICE void dquery_sums(Shared &smem, const fagen_abi &p, int group)
{
	bool more = true;
#pragma unroll 1
	for (unsigned number = 0; more; number++)
#pragma unroll 1
		for (int i = group; i < WARPGROUPS; i += SUM_WARPS)
			more = dquery_sum(smem, p, i, number & 1);
}

// ---- computing: a warpgroup and its 64 keys ----

DEVICE int lane_key() { return (mov_tid_x() - GROUP_THREADS) / 32 * 16 + mov_tid_x() % 32 / 4; } // key g, of the tile

// This warpgroup's part of dQ^T = K^T dS^T, of the visit whose dS is in this buffer.
template <class Shared> DEVICE void dquery_issue(float (&acc)[DQUERY_ROWS / 2], const Shared &smem, int group, int buffer)
{
	const unsigned long long key = wgmma_desc(smem.key[PANELS_QK == 2 ? group : 0], TILE_N * 128);
	const unsigned long long dscore = wgmma_desc(smem.dscore[buffer][0][PANELS_QK == 2 ? 0 : DQUERY_ROWS * group], 0);
	registers_pin(acc);
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < TILE_N / 16; i++) {
		const int a = i * (2048 / 16), b = i / 4 * (TILE_M * 128 / 16) + i % 4 * 2;
		if (i == 0)
			wgmma_ms<false>(acc, key + a, dscore + b);
		else
			wgmma_ms<true>(acc, key + a, dscore + b);
	}
	wgmma_commit_group();
	registers_pin(acc);
}

// In place of S P times the derivative of the score, and P, packed, if that is another. PARTIAL: cells may be hidden.
template <bool PARTIAL>
DEVICE void probabilities(float (&s)[TILE_M / 2], unsigned (&prob)[TILE_M / 4], const fagen_abi &p, const Inputs &in, int b, int h,
                          const float (&lse2)[TILE_M])
{
	const int k_lane = in.k0 + lane_key(), row_2t = lane_row();
	const ColState col[2] = {col_state(&p, &in, b, h, k_lane, 0), col_state(&p, &in, b, h, k_lane, 8)};
#pragma unroll
	for (int j = 0; j < BLOCKS_M; j++) {
		const float2 shift = *reinterpret_cast<const float2 *>(&lse2[8 * j + row_2t]);
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const RowState row = row_state(&p, &in, b, h, in.q0 + 8 * j + row_2t + e, k_lane);
#pragma unroll
			for (int r = 0; r < 2; r++) {
				float &x = s[4 * j + 2 * r + e];
				const Scored scored = score_grad(x, row, col[r], &in);
				float probability = ex2(scored.score * LOGIT_SCALE - (e == 0 ? shift.x : shift.y));
				float derivative = probability * scored.grad;
				if (PARTIAL && !mask_keep(row, col[r], &in)) // whose derivative may be anything, NaN too
					probability = derivative = 0;
				x = derivative;
				if constexpr (!SCORE_IDENTITY) // the first row of a pair waits in its place
					prob[2 * j + r] = e == 0 ? __float_as_uint(probability)
					                         : cvt_rn_x2(__uint_as_float(prob[2 * j + r]), probability, Element{});
			}
		}
	}
}

// Hides cells of a partial tile, where the score is S itself.
DEVICE void scores_hide(float (&s)[TILE_M / 2], const fagen_abi &p, const Inputs &in, int b, int h)
{
	const int k_lane = in.k0 + lane_key(), row_2t = lane_row();
	const ColState col[2] = {col_state(&p, &in, b, h, k_lane, 0), col_state(&p, &in, b, h, k_lane, 8)};
#pragma unroll
	for (int j = 0; j < BLOCKS_M; j++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const RowState row = row_state(&p, &in, b, h, in.q0 + 8 * j + row_2t + e, k_lane);
#pragma unroll
			for (int r = 0; r < 2; r++) {
				float &x = s[4 * j + 2 * r + e];
				x = mask_keep(row, col[r], &in) ? x : -infinity();
			}
		}
}

DEVICE unsigned *words_of(Words<true> &words, unsigned visit, int group) { return words.kept[visit % 2][group]; }
DEVICE unsigned *words_of(Words<false> &, unsigned, int) { return 0; }

// Where a lane's decisions are: in which words, and how far these turn left for kept_pair.
struct WordsLane {
	const unsigned *words;
	int turn;
};
DEVICE WordsLane words_lane(const unsigned *words)
{
	const int key = lane_key(), g = key % 8;
	return {words + lane_row() * 4 + g / 2 * 2, key / 8 % 8 - g % 2 * 8};
}
// Dropout of a pair of rows, and of those 8 below them. The decision of rows in the upper or lower half becomes the sign of byte 0 or 2;
// that of key g + 8 is the bit below.
DEVICE uint2 kept_pair(const WordsLane &at, int j)
{
	const uint2 kept = *reinterpret_cast<const uint2 *>(at.words + 16 * j);
	return make_uint2(__funnelshift_l(kept.x, kept.x, at.turn), __funnelshift_l(kept.y, kept.y, at.turn));
}

// P, packed: if it is not yet, and without what dropout drops.
DEVICE void prob_make(unsigned (&prob)[TILE_M / 4], const float (&s)[TILE_M / 2], const unsigned *words)
{
	if constexpr (SCORE_IDENTITY)
#pragma unroll
		for (int i = 0; i < TILE_M / 4; i++)
			prob[i] = cvt_rn_x2(s[2 * i], s[2 * i + 1], Element{});
	if constexpr (DROPOUT) {
		const WordsLane lane = words_lane(words);
		uint2 kept = {0, 0};
#pragma unroll
		for (int j = 0; j < BLOCKS_M; j++) {
			if (j % 2 == 0)
				kept = kept_pair(lane, j);
#pragma unroll
			for (int r = 0; r < 2; r++)
				prob[2 * j + r] &= prmt(kept.x << r, kept.y << r, j % 2 == 0 ? 0xCC88 : 0xEEAA);
		}
	}
}

// dP starts at -delta: what it comes to is all that dS waits for.
DEVICE void delta_subtract(float (&dp)[TILE_M / 2], const float (&delta)[TILE_M])
{
	const int row_2t = lane_row();
#pragma unroll
	for (int j = 0; j < BLOCKS_M; j++) {
		const float2 shift = *reinterpret_cast<const float2 *>(&delta[8 * j + row_2t]);
		dp[4 * j] = dp[4 * j + 2] = -shift.x;
		dp[4 * j + 1] = dp[4 * j + 3] = -shift.y;
	}
}

// dS, packed.
DEVICE void dscore_make(unsigned (&ds)[TILE_M / 4], const float (&s)[TILE_M / 2], const float (&dp)[TILE_M / 2],
                        const float (&delta)[TILE_M], const unsigned *words)
{
	const int row_2t = lane_row();
	const WordsLane lane = DROPOUT ? words_lane(words) : WordsLane{};
	uint2 kept = {0, 0};
#pragma unroll
	for (int j = 0; j < BLOCKS_M; j++) {
		const float2 shift = DELTA_FIRST ? float2{0, 0} : *reinterpret_cast<const float2 *>(&delta[8 * j + row_2t]);
		if constexpr (DROPOUT)
			if (j % 2 == 0)
				kept = kept_pair(lane, j);
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const int i = 4 * j + 2 * r;
			float x = dp[i], y = dp[i + 1];
			if constexpr (DROPOUT) {
				x = __uint_as_float(__float_as_uint(x) & prmt(kept.x << r, 0, j % 2 == 0 ? 0x8888 : 0xAAAA)) * KEEP_SCALE;
				y = __uint_as_float(__float_as_uint(y) & prmt(kept.y << r, 0, j % 2 == 0 ? 0x8888 : 0xAAAA)) * KEEP_SCALE;
			}
			ds[2 * j + r] = cvt_rn_x2(s[i] * (x - shift.x), s[i + 1] * (y - shift.y), Element{});
		}
	}
}

// dQ^T of a visit, the number-th, goes to the tile's sums through shared memory. A warp has a block of 16 columns of it, and with one panel half of the
// rows; columns that are not HEAD_DIM_QK's any more stay. warp: of those that compute; as it is known to be uniform, nothing here parts the lanes of a
// warp. A fence and a barrier of the warp come before it arrives at dquery_full.
template <class Shared>
DEVICE void dquery_put(Shared &smem, const float (&acc)[DQUERY_ROWS / 2], unsigned number, int index, int k0, int warp)
{
	mbarrier_wait(smem.dquery_empty[warp / 4], (number & 1) ^ 1); // dQ of the visit before has been read; who has no columns keeps in step
	if (HEAD_DIM_QK % 64 != 0 && (PANELS_QK == 2 ? warp : warp % 4) >= STEPS_QK)
		return;
	const unsigned to = cvta_shared(smem.dquery[PANELS_QK == 2 ? warp : warp / 4 * STEPS_QK + warp % 4]) + mov_tid_x() % 32 * 16;
	smem.summed[warp / 4] = {index, k0}; // everybody the same: a branch would take registers
#pragma unroll
	for (int j = 0; j < DQUERY_ROWS / 8; j++)
		st_shared_16(to + j * SUM_BLOCK * 4, make_uint4(__float_as_uint(acc[4 * j]), __float_as_uint(acc[4 * j + 1]),
		                                                __float_as_uint(acc[4 * j + 2]), __float_as_uint(acc[4 * j + 3])));
}

// One visit: four products of its own, and dQ of the visit before; in an item's first one that product is of nothing, and nobody looks at it.
// Nothing is under way when it begins or ends, Q of the visit is there, and in the end that of the next; `query` describes it. Is that of the same
// item?
//
// dS is published behind the last product, with dQ of the visit before: nobody wants it sooner, and one fence serves both. It holds the warp
// up until what it wrote is in shared memory.
template <class Shared>
DEVICE bool visit_attend(float (&dkey)[HEAD_DIM_QK / 2], float (&dvalue)[HEAD_DIM_V / 2], unsigned long long &query, unsigned visit, int warp,
                         Shared &smem, const Buffers &staged, const fagen_abi &p)
{
	const int group = warp / 4;
	const ItemNote &note = smem.note[visit % NOTES]; // read at each use: registers are full
	const int stage = visit % STAGES;
	const unsigned parity = visit / STAGES & 1;
	const bool first = first_thread(); // kept only where that costs no spill
	const auto leads = [&] { return QUERY_APART || LAYOUT != LAYOUT_DENSE ? first_thread() : first; };
	if constexpr (LAYOUT != LAYOUT_DENSE) {
		const int rows = walk_sq(note, p) - note.tile * TILE_M;
		if (rows < TILE_M) {
			mbarrier_wait(smem.dout_full[stage], parity);
			rows_clear(smem.query[stage], rows);
			rows_clear(smem.dout[stage], rows);
			barrier_sync(BARRIER_GROUP + group, GROUP_THREADS); // writers of zeros before the products that read them
		}
	}
	float s[TILE_M / 2], dp[TILE_M / 2];
	unsigned prob[TILE_M / 4], ds[TILE_M / 4];
	if constexpr (DELTA_FIRST) {
		delta_subtract(dp, smem.rows.of[stage].delta);
		registers_pin(dp);
	}
	product_ss<STEPS_QK, TILE_N, TILE_M>(s, wgmma_desc(smem.key[0][64 * group], 0), query);
	mbarrier_wait(smem.dout_full[stage], parity);
	product_ss<STEPS_V, TILE_N, TILE_M, DELTA_FIRST>(dp, wgmma_desc(smem.value[0][64 * group], 0), wgmma_desc(smem.dout[stage], 0));
	if constexpr (DROPOUT) {
		kept_make(words_of(smem.rows, visit, group), note.dropout, note.tile * TILE_M,
		          note.own.k0 + 64 * group);
		barrier_sync(BARRIER_GROUP + group, GROUP_THREADS); // writers of the words before their readers, and these before the writers of the next visit but one
	}
	const bool partial = note.tile_class != TILE_FULL; // known when S is
	wgmma_wait_group<1>(); // S
	registers_pin(s);
	if constexpr (INPUTS)
		mbarrier_wait(smem.inputs_full[visit % NOTES], visit / NOTES & 1);
	const Inputs in = {staged.head(note.turn), staged.rows(visit % NOTES), staged.cols(note.turn), staged.cells(stage), note.tile * TILE_M,
	                   note.own.k0,              note.bits};
	if constexpr (SCORE_IDENTITY)
		if (partial) {
			scores_hide(s, p, in, note.own.b, note.head);
			__syncwarp(); // so that the statistics are not read before it: registers are full
		}
	if (SCORE_IDENTITY || !partial)
		probabilities<false>(s, prob, p, in, note.own.b, note.head, smem.rows.of[stage].lse2);
	else
		probabilities<true>(s, prob, p, in, note.own.b, note.head, smem.rows.of[stage].lse2);
	prob_make(prob, s, words_of(smem.rows, visit, group));
	product_rs(dvalue, prob, wgmma_desc(smem.dout[stage], TILE_M * 128));
	wgmma_wait_group<1>(); // dP, while dV is under way
	registers_pin(dp);
	dscore_make(ds, s, dp, smem.rows.of[stage].delta, words_of(smem.rows, visit, group));
	const int buffer = visit % 2, before = buffer ^ 1;
	float dquery[DQUERY_ROWS / 2];
	if constexpr (!QUERY_APART) {
		mbarrier_wait(smem.dscore_empty[buffer], (visit / 2 & 1) ^ 1); // dQ of the visit before the last has read it
		dscore_store(smem.dscore[buffer][group], ds);
		mbarrier_wait(smem.dscore_full[before], ((visit + 1) / 2 & 1) ^ 1); // before visit 0 there is none: ended
		dquery_issue(dquery, smem, group, before);
	}
	wgmma_wait_group<QUERY_APART ? 0 : 1>(); // dV
	registers_pin(dvalue);
	mbarrier_arrive(smem.dout_empty[stage], leads());
	const int index_before = note.before; // known when dQ is
	product_rs(dkey, ds, wgmma_desc(smem.query[stage], TILE_M * 128));
	query = wgmma_desc(smem.query[stage ^ 1], 0); // so that nothing is computed between dK and the next S
	if constexpr (!QUERY_APART) {
		wgmma_wait_group<1>(); // dQ
		registers_pin(dquery);
		if (index_before >= 0) {
			mbarrier_arrive(smem.dscore_empty[before], leads());
			dquery_put(smem, dquery, visit - 1, index_before, note.own.k0, warp);
		}
		fence_proxy_async(); // dS and dQ
		__syncwarp();        // their writers before the arrivals of the warp
		mbarrier_arrive(smem.dscore_full[buffer], mov_tid_x() % 32 == 0);
		mbarrier_arrive(smem.dquery_full[group], index_before >= 0 && mov_tid_x() % 32 == 0);
	}
	const bool more = !note.last;
	mbarrier_wait(smem.query_full[stage ^ 1], (visit + 1) / STAGES & 1); // of the next visit
	wgmma_wait_group<0>(); // dK
	registers_pin(dkey);
	mbarrier_arrive(smem.query_empty[stage], leads());
	return more;
}

// dK and dV of this warpgroup's keys.
DEVICE void keys_store(const float (&dkey)[HEAD_DIM_QK / 2], const float (&dvalue)[HEAD_DIM_V / 2], const fagen_abi &p, const Keys &own)
{
	const int first = first_k(&p, own.b), k = own.k0 + lane_key(), t = lane_row() / 2;
	unsigned short *const dkey_row = head_address(p.dkey, own.b, own.h, first), *const dvalue_row = head_address(p.dvalue, own.b, own.h, first);
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const int row = k + 8 * r;
		const bool used = LAYOUT == LAYOUT_DENSE || row < sequence_k(&p, own.b), written = row < slot_k(&p, own.b);
		accumulators_store<HEAD_DIM_QK>(dkey_row + row * p.dkey.stride_seq, dkey, r, SOFTMAX_SCALE, t, used, written);
		accumulators_store<HEAD_DIM_V>(dvalue_row + row * p.dvalue.stride_seq, dvalue, r, KEEP_SCALE, t, used, written);
	}
}

// The same for bwd_merge.cu.
DEVICE void part_store(const float (&dkey)[HEAD_DIM_QK / 2], const float (&dvalue)[HEAD_DIM_V / 2], Part *part)
{
	const int lane = mov_tid_x() % 32, sixteen = (mov_tid_x() - GROUP_THREADS) / 32;
#pragma unroll
	for (int j = 0; j < HEAD_DIM_QK / 8; j++)
		reinterpret_cast<float4 *>(part->key[sixteen][j])[lane] = make_float4(dkey[4 * j], dkey[4 * j + 1], dkey[4 * j + 2], dkey[4 * j + 3]);
#pragma unroll
	for (int j = 0; j < HEAD_DIM_V / 8; j++)
		reinterpret_cast<float4 *>(part->value[sixteen][j])[lane] =
			make_float4(dvalue[4 * j], dvalue[4 * j + 1], dvalue[4 * j + 2], dvalue[4 * j + 3]);
}

template <class Shared> DEVICE void items_attend(Shared &smem, const Buffers &staged, const fagen_abi &p)
{
	const int warp = warp_uniform((mov_tid_x() - GROUP_THREADS) / 32), group = warp / 4;
	unsigned visit = 0;
	unsigned long long query = wgmma_desc(smem.query[0], 0);
#pragma unroll 1
	while (visit_wait(smem, visit)) {
		const ItemNote &first = smem.note[visit % NOTES];
		float dkey[HEAD_DIM_QK / 2], dvalue[HEAD_DIM_V / 2];
#pragma unroll
		for (int i = 0; i < HEAD_DIM_QK / 2; i++)
			dkey[i] = 0;
#pragma unroll
		for (int i = 0; i < HEAD_DIM_V / 2; i++)
			dvalue[i] = 0;
		mbarrier_wait(smem.key_full, first.item & 1);
		mbarrier_wait(smem.value_full, first.item & 1);
		if constexpr (LAYOUT != LAYOUT_DENSE) {
			const int rows = walk_sk(first, p) - first.own.k0;
			if (rows < TILE_N) {
				rows_clear(smem.key, rows);
				rows_clear(smem.value, rows);
				barrier_sync(BARRIER_GROUP + group, GROUP_THREADS); // writers of zeros before the products that read them
			}
		}
#pragma unroll 1
		while (visit_attend(dkey, dvalue, query, visit, warp, smem, staged, p))
			visit++;

		const unsigned last = visit++;
		const ItemNote &note = smem.note[last % NOTES];
		float dquery[DQUERY_ROWS / 2];
		mbarrier_arrive(smem.value_empty, first_thread()); // the item's products have read V; dQ reads K once more
		if constexpr (!QUERY_APART) {
			// Written as the first, ptxas keeps the parity of the last visit in a register, of which dropout has none to spare.
			const unsigned parity = !DROPOUT ? last / 2 & 1 : ((visit + 1) / 2 & 1) ^ 1;
			mbarrier_wait(smem.dscore_full[last % 2], parity);
			dquery_issue(dquery, smem, group, last % 2);
			mbarrier_wait(smem.dscore_full[last % 2], parity); // long over: a block of code ends, or ptxas makes what is stored between the products
			wgmma_wait_group<0>();
			registers_pin(dquery);
			mbarrier_arrive(smem.dscore_empty[last % 2], first_thread());
		}
		mbarrier_arrive(smem.key_empty, first_thread());
		if constexpr (!QUERY_APART) {
			dquery_put(smem, dquery, last, note.index, note.own.k0, warp);
			fence_proxy_async();
			__syncwarp(); // writers of dQ before the arrival of the warp
			mbarrier_arrive(smem.dquery_full[group], mov_tid_x() % 32 == 0);
		}
		registers_pin(dkey); // of what is stored nothing is made before
		registers_pin(dvalue);
		if (SPLITS > 1 || (CUT && note.part >= 0))
			part_store(dkey, dvalue, part_at(p, note.part));
		else
			keys_store(dkey, dvalue, p, note.own);
	}
	if constexpr (!QUERY_APART) {
		mbarrier_wait(smem.dquery_empty[group], (visit & 1) ^ 1); // the last dQ has been read
		if (first_thread())
			smem.summed[group].index = -1;
		__syncwarp(); // its writer before the arrival of the warp
		mbarrier_arrive(smem.dquery_full[group], mov_tid_x() % 32 == 0);
	}
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
	fagen_backward(const __grid_constant__ fagen_abi p, const __grid_constant__ fagen_abi_maps maps)
{
	extern __shared__ __align__(1024) unsigned char smem_bytes[];
	Smem &smem = *reinterpret_cast<Smem *>(smem_bytes);
	const Buffers staged(smem_bytes + (sizeof(Smem) + 15) / 16 * 16);
	if (threadIdx.x == 0) {
		mbarrier_init(smem.key_full, 1);
		mbarrier_init(smem.key_empty, WARPGROUPS);
		mbarrier_init(smem.value_full, 1);
		mbarrier_init(smem.value_empty, WARPGROUPS);
		for (int i = 0; i < STAGES; i++) {
			mbarrier_init(smem.query_full[i], 1);
			mbarrier_init(smem.query_empty[i], WARPGROUPS);
			mbarrier_init(smem.dout_full[i], 1);
			mbarrier_init(smem.dout_empty[i], WARPGROUPS);
		}
		for (int i = 0; i < NOTES; i++) {
			mbarrier_init(smem.note_full[i], 1);
			mbarrier_init(smem.inputs_full[i], INPUTS ? HELPER_THREADS : 1);
		}
		for (int i = 0; i < 2; i++) {
			mbarrier_init(smem.dscore_full[i], 4 * WARPGROUPS);
			mbarrier_init(smem.dscore_empty[i], WARPGROUPS);
		}
		for (int i = 0; i < WARPGROUPS; i++) {
			mbarrier_init(smem.dquery_full[i], 4);
			mbarrier_init(smem.dquery_empty[i], 1);
		}
		fence_mbarrier_init();
	}
	__syncthreads(); // barriers before their users
	const int group = warp_uniform(threadIdx.x / GROUP_THREADS), warp = warp_uniform(threadIdx.x / 32);
	if (group == 0) {
		setmaxnreg_dec<LOAD_REGISTERS>();
		if (warp == 0)
			items_walk<ItemKept>(
				smem, p, [&](unsigned round, bool leader) { return item_number(p, round, leader); },
				[&](unsigned visit) { visit_load(smem, p, maps, visit); });
		else if (warp <= SUM_WARPS) {
			if constexpr (!QUERY_APART)
				if (elect_sync())
					dquery_sums(smem, p, warp - 1);
		} else if constexpr (INPUTS)
			visits_prepare<HELPER_THREADS>(smem, staged, p);
	} else {
		setmaxnreg_inc<COMPUTE_REGISTERS>();
		items_attend(smem, staged, p);
	}
}

// Where a block is, of 16 columns and 8 rows.
DEVICE int sum_block(int column, int block)
{
	return PANELS_QK == 2 ? column * BLOCKS_M + block : (block / (BLOCKS_M / 2) * STEPS_QK + column) * (BLOCKS_M / 2) + block % (BLOCKS_M / 2);
}

// TILE_M rows of one query head: their sums, scaled and rounded.
extern "C" __global__ void __launch_bounds__(THREADS) fagen_dquery(const __grid_constant__ fagen_abi p)
{
	constexpr int CHUNKS = 2 * STEPS_QK;
	extern __shared__ __align__(128) unsigned char smem_bytes[]; // [TILE_M][CHUNKS], swizzled chunks
	const unsigned rounded = cvta_shared(smem_bytes);
	const Owned own = rows_owned_back(p);
	if (own.tile < 0)
		return;
	const int index = tile_index(p, own.b, own.h, own.tile), lane = threadIdx.x % 32;
	const float *const sums = tile_sums(p, index);
	const bool none = *tile_turns(p, index) & TURN_FRESH; // no visit
	for (int i = threadIdx.x / 32; i < STEPS_QK * BLOCKS_M / 2; i += WARPS) { // two blocks, of 16 rows
		unsigned word[4];
#pragma unroll
		for (int k = 0; k < 2; k++) {
			const float4 sum = *reinterpret_cast<const float4 *>(sums + sum_block(i / (BLOCKS_M / 2), i % (BLOCKS_M / 2) * 2 + k) * SUM_BLOCK + 4 * lane);
			const float4 v = none ? float4{0, 0, 0, 0} : sum; // the load does not wait for that
			word[2 * k] = cvt_rn_x2(v.x * SOFTMAX_SCALE, v.y * SOFTMAX_SCALE, Element{});
			word[2 * k + 1] = cvt_rn_x2(v.z * SOFTMAX_SCALE, v.w * SOFTMAX_SCALE, Element{});
		}
		const int column = i / (BLOCKS_M / 2), row = i % (BLOCKS_M / 2) * 16 + lane / 16 * 8 + lane % 8;
		stmatrix_x4_trans(rounded + tile_offset<CHUNKS>(row, 2 * column + lane / 8 % 2), word[0], word[1], word[2], word[3]);
	}
	__syncthreads(); // writers of the tile before its readers
	tile_store<TILE_M, HEAD_DIM_QK, CHUNKS, THREADS>(rounded, head_address(p.dquery, own.b, own.h, first_q(&p, own.b)),
	                                                 p.dquery.stride_seq, own.tile * TILE_M, slot_q(&p, own.b));
}
