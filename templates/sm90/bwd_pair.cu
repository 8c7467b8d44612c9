// Backward for sm_90a and head dims above 128: persistent clusters of two CTAs take tiles of 128 keys of one key/value head, 64 for each, and the query
// tiles that see any of them stream past both, one query head of the group after the other. In each CTA warpgroup 0 loads, warpgroup 1 has
//   S^T = K Q^T, dP^T = V dO^T, dS = P (dP - delta), dV += P^T dO
// of its 64 keys, warpgroup 2
//   dK += dS^T Q of these keys, and dQ = dS K of all 128, but of dQ's columns one half only.
// dS goes to the other CTA as a copy from shared memory to shared memory, so that half as many sums of dQ leave an SM as if each CTA had
// all columns of its own keys. Both CTAs need the same Q and dO: each loads a half for both. dQ is summed over the key tiles in float32
// global memory, in the order of the accumulators; only this file knows that order, and fagen_dquery rounds what it finds there.
// With QUERY_APART there are no sums: dQ is left to fagen_backward_query, bwd_query.cu, warpgroup 2 has dK alone, and dS stays in its CTA.
//
// Both CTAs of a pair take the same items and walk alike, so that visit n is the same for both. A CTA whose keys are all past the length computes zeros
// and sends them. Q and dO of the next item are loaded while this one's last visits are computed, V as soon as its last dP has read it, K of both CTAs
// behind its last dQ: while dK and dV are stored. Inputs of the head and of the keys are loaded when the query head or the item changes; they have STAGES
// buffers, which take turns.

constexpr int KEYS = TILE_N / 2; // of a CTA
// Of dQ a CTA has so many whole panels of columns, the first or the next ones, and half of the last panel where their number is odd.
constexpr int WHOLE_PANELS = PANELS_QK / 2;
constexpr bool HALF_PANEL = PANELS_QK % 2 != 0;
constexpr int DQUERY_BLOCKS = 8 * WHOLE_PANELS + 4 * HALF_PANEL; // 8-column blocks of that
constexpr int INPUT_THREADS = INPUTS ? 64 : 0;
// Registers of a thread that loads, of warpgroup 1 and of warpgroup 2: together three times the 168 that each has at launch, or who asks
// for more waits forever. Those who load have what the sums of warpgroup 2 leave.
constexpr bool SUMS_FULL = PANELS_QK == 4 && !QUERY_APART;
constexpr int LOAD_REGISTERS = !SUMS_FULL ? 56 : SCAN || ROW_INPUTS || COL_INPUTS || CELL_INPUTS ? 40 : 32;
constexpr int VALUE_REGISTERS = SUMS_FULL && LOAD_REGISTERS > 32 ? 240 : 248;
constexpr int KEY_REGISTERS = 3 * 168 - VALUE_REGISTERS - LOAD_REGISTERS;
static_assert(LOAD_REGISTERS + VALUE_REGISTERS + KEY_REGISTERS <= 3 * (65536 / THREADS / 8 * 8), "registers of a CTA");
static_assert(THREADS == 3 * GROUP_THREADS && WALK_WARPS == 1, "one warp walks");
static_assert(TILE_N == 128 && TILE_M == 64, "64 keys of each CTA, and 64 rows of dQ");
static_assert(PANELS_QK >= 2, "each CTA has a panel of dQ");

// Dropout of a CTA's keys, as kept_make lays it.
template <bool> struct Words { unsigned kept[2 * TILE_M]; };
template <> struct Words<false> {};
struct Rows : Words<DROPOUT> { Statistics of[STAGES]; };

struct KeyTiles {
	unsigned short key[PANELS_QK][KEYS][64]; // swizzled rows of 128 bytes: tensor maps write, wgmma reads
	unsigned short value[PANELS_V][KEYS][64];
};
// For dQ: the other CTA's keys, the panels with this CTA's columns of it. Without dQ nothing has their bytes.
template <bool> struct PeerTiles : KeyTiles { unsigned short peer_key[WHOLE_PANELS + HALF_PANEL][KEYS][64]; };
template <> struct PeerTiles<false> : KeyTiles {};

using ItemKept = WholeItem<KEYS>;
using ItemNote = NoteOf<ItemKept>;

struct alignas(16) Smem : PeerTiles<!QUERY_APART> {
	unsigned short query[STAGES][PANELS_QK][TILE_M][64];
	unsigned short dout[STAGES][PANELS_V][TILE_M][64];
	unsigned short dscore[QUERY_APART ? 1 : 2][TILE_M][64]; // rows, and for columns this CTA's keys, the other's keys
	Rows rows;
	uint4 taken; // the number that the queue gave, of which one CTA tells the other: 16 bytes are a copy
	// full: data are there, loaders before readers. empty: readers before loaders; where both CTAs get the same data, the readers of both.
	unsigned long long taken_full, taken_empty; // where the second CTA reads, and where the first one writes
	unsigned long long key_full, value_full, peer_key_full; // of items in turn; of peers nobody uses with QUERY_APART
	unsigned long long key_empty, value_empty;              // likewise; with this CTA's K that of the other is free
	unsigned long long dscore_full, dscore_empty, peer_dscore_full;
	unsigned long long query_full[STAGES], query_empty[STAGES]; // Q, the statistics and the note; free with them inputs of cells
	unsigned long long dout_full[STAGES], dout_empty[STAGES];
	unsigned long long inputs_full[NOTES];
	unsigned long long note_full[NOTES]; // for the warps that load dO and stage inputs
	ItemNote note[NOTES];
	TakenOf<ItemKept> own; // the loading warp's: whose query tiles are walked
	Sections sections;     // likewise
	WalkShared walk;       // over them
};
using Buffers = Staged<STAGES, NOTES, STAGES, STAGES>;
static_assert((sizeof(Smem) + 15) / 16 * 16 + Buffers::BYTES == SMEM_BYTES,
              "shared memory and gen/model_sm90_bwd_pair.c disagree");

enum { BARRIER_DQUERY = 1, BARRIER_GROUP }; // ids of named barriers; of the last one for each warpgroup that computes

// The sums of a query tile lie in blocks of 8 columns, in the order of the columns; inside a block as the warpgroup's threads hold them, 4
// floats each: of rows g, g + 8 of its warp's 16 columns 2t, 2t + 1.
constexpr int SUM_BLOCK = 4 * GROUP_THREADS;

DEVICE unsigned peer_rank() { return cluster_ctarank() ^ 1; }
// Arrives at a barrier of both CTAs.
DEVICE void pair_arrive(unsigned long long &barrier)
{
	mbarrier_arrive(barrier);
	mbarrier_arrive_cluster(mapa(cvta_shared(&barrier), peer_rank()));
}

// ---- loading: warpgroup 0 ----

// This CTA's part of a tile that both have; `full` gets an arrival, the bytes of the whole, and as many `more` as the caller has on the way.
template <int PANELS, int ROWS>
DEVICE void panels_share(unsigned short (&to)[PANELS][ROWS][64], const fagen_abi_map &map, unsigned long long &full, int row, int head,
                         int batch, unsigned more = 0)
{
	const bool second = cluster_ctarank() == 1;
	mbarrier_arrive_expect_tx(full, sizeof to + more);
#pragma unroll
	for (int i = 0; i < PANELS; i++)
		if (second == (i >= (PANELS + 1) / 2))
			cp_async_bulk_tensor_4d_multicast(cvta_shared(to[i]), map, full, 64 * i, row, head, batch, 3);
}

// K of this CTA and, for dQ, panels of the other's. `row`: the pair's first key.
template <class Shared> DEVICE void keys_load(Shared &smem, const fagen_abi_maps &maps, int row, int head, int batch)
{
	const int rank = cluster_ctarank();
	panels_load(smem.key, maps.key, smem.key_full, row + KEYS * rank, head, batch);
	if constexpr (!QUERY_APART) {
		mbarrier_arrive_expect_tx(smem.peer_key_full, sizeof smem.peer_key);
#pragma unroll
		for (int i = 0; i < WHOLE_PANELS + HALF_PANEL; i++) {
			const int panel = i < WHOLE_PANELS ? WHOLE_PANELS * rank + i : PANELS_QK - 1;
			cp_async_bulk_tensor_4d(cvta_shared(smem.peer_key[i]), maps.key, smem.peer_key_full, 64 * panel, row + KEYS * (rank ^ 1),
			                        head, batch);
		}
	}
}

// item_number, for both CTAs: of what the queue gives the first one tells the other. Each number is read before the next one is sent, or a pair that
// nothing makes wait, as nobody sees its keys, would lose some.
DEVICE unsigned pair_number(Smem &smem, const fagen_abi &p, unsigned round, bool leader)
{
	const unsigned pairs = gridDim.x / 2;
	if (!QUEUE || round == 0)
		return round_number(round, blockIdx.x / 2, pairs);
	unsigned number = 0;
	if (leader && cluster_ctarank() == 0) {
		number = pairs + atomicAdd(reinterpret_cast<unsigned *>(p.queue), 1u);
		mbarrier_wait(smem.taken_empty, round & 1); // the number before has been read, and sent
		smem.taken.x = number;
		fence_proxy_async();
		cp_async_bulk_cluster(mapa(cvta_shared(&smem.taken), 1), cvta_shared(&smem.taken), sizeof smem.taken, mapa(cvta_shared(&smem.taken_full), 1));
	} else if (leader) {
		mbarrier_arrive_expect_tx(smem.taken_full, sizeof smem.taken);
		mbarrier_wait(smem.taken_full, (round & 1) ^ 1);
		number = smem.taken.x;
		mbarrier_arrive_cluster(mapa(cvta_shared(&smem.taken_empty), 0));
	}
	return __reduce_max_sync(~0u, number);
}

// Q of a visit whose note is written, and in an item's first one K. By one thread.
DEVICE void queries_load(Smem &smem, const fagen_abi &p, const fagen_abi_maps &maps, unsigned visit)
{
	const ItemNote &note = smem.note[visit % NOTES];
	const Keys &own = note.own;
	const int stage = visit % STAGES, batch = LAYOUT == LAYOUT_PACKED ? 0 : own.b, row_k = first_k(&p, own.b) + own.k0;
	const auto key_load = [&] {
		mbarrier_wait(smem.key_empty, (note.item & 1) ^ 1); // S and dQ of the item before have read it
		keys_load(smem, maps, row_k, own.h, batch);
	};
	mbarrier_arrive(smem.note_full[visit % NOTES]);
	if (visit == 0)
		key_load();
	else if (note.before < 0) // from memory to L2 while the item before is computed
		panels_prefetch(smem.key, maps.key, row_k + KEYS * (int)cluster_ctarank(), own.h, batch);
	mbarrier_wait(smem.query_empty[stage], (visit / STAGES & 1) ^ 1);
	panels_share(smem.query[stage], maps.query, smem.query_full[stage], first_q(&p, own.b) + note.tile * TILE_M, note.head, batch, sizeof(Statistics));
	cp_async_bulk(cvta_shared(&smem.rows.of[stage]), tile_statistics(p, note.index), sizeof(Statistics), smem.query_full[stage]);
	if (visit != 0 && note.before < 0)
		key_load();
}

// One thread of the second warp: V and dO, as they become free.
DEVICE void douts_load(Smem &smem, const fagen_abi &p, const fagen_abi_maps &maps)
{
#pragma unroll 1
	for (unsigned visit = 0;; visit++) {
		const int stage = visit % STAGES;
		const ItemNote &note = smem.note[visit % NOTES];
		mbarrier_wait(smem.note_full[visit % NOTES], visit / NOTES & 1);
		if (note.tile < 0)
			return;
		const Keys &own = note.own;
		const int batch = LAYOUT == LAYOUT_PACKED ? 0 : own.b, row_k = first_k(&p, own.b) + own.k0 + KEYS * (int)cluster_ctarank();
		const auto value_load = [&] {
			mbarrier_wait(smem.value_empty, (note.item & 1) ^ 1); // dP of the item before has read it
			panels_load(smem.value, maps.value, smem.value_full, row_k, own.h, batch);
		};
		if (visit == 0)
			value_load();
		else if (note.before < 0)
			panels_prefetch(smem.value, maps.value, row_k, own.h, batch);
		mbarrier_wait(smem.dout_empty[stage], (visit / STAGES & 1) ^ 1);
		panels_share(smem.dout[stage], maps.dout, smem.dout_full[stage], first_q(&p, own.b) + note.tile * TILE_M, note.head, batch);
		if (visit != 0 && note.before < 0)
			value_load();
	}
}

// ---- what both warpgroups that compute do ----

DEVICE int lane_key() // key g, of the pair's tile
{
	return KEYS * (int)cluster_ctarank() + mov_tid_x() % GROUP_THREADS / 32 * 16 + mov_tid_x() % 32 / 4;
}

// dK or dV of a CTA's keys, of which a thread has g and g + 8 of its warp's 16.
template <int COLUMNS>
DEVICE void sums_store(const fagen_abi_tensor &t, const float (&acc)[COLUMNS / 2], float scale, const fagen_abi &p, const Keys &own)
{
	const int k = own.k0 + lane_key(), quad_lane = lane_row() / 2;
	unsigned short *const row0 = head_address(t, own.b, own.h, first_k(&p, own.b));
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const int row = k + 8 * r;
		const bool used = LAYOUT == LAYOUT_DENSE || row < sequence_k(&p, own.b), written = row < slot_k(&p, own.b);
		accumulators_store<COLUMNS>(row0 + row * t.stride_seq, acc, r, scale, quad_lane, used, written);
	}
}

// ---- warpgroup 1: S, dP, dS, dV ----

DEVICE unsigned *words_of(Words<true> &words) { return words.kept; }
DEVICE unsigned *words_of(Words<false> &) { return 0; }

// Of 16 rows, for a pair of rows and those 8 below them: the decision of rows in the upper or lower half becomes the sign of byte 0 or 2,
// that of key g + 8 is the bit below.
DEVICE uint2 kept_read(const unsigned *words, int step)
{
	const int key = lane_key(), g = key % 8, left = key / 8 % 8, right = g % 2 * 8;
	const uint2 kept = *reinterpret_cast<const uint2 *>(words + 32 * step + lane_row() * 4 + g / 2 * 2);
	return {kept.x << left >> right, kept.y << left >> right};
}

// P of 16 rows without what dropout drops.
DEVICE void probabilities_drop(unsigned (&prob)[4], uint2 kept)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		prob[i] &= prmt(kept.x << i % 2, kept.y << i % 2, i < 2 ? 0xCC88 : 0xEEAA);
}

// Of 16 rows, in place of S P times the derivative of the score, and P, packed.
DEVICE void probabilities(float (&s)[TILE_M / 2], unsigned (&prob)[4], int step, const fagen_abi &p, const Inputs &in, int b, int h,
                          int key, int row_2t, const float (&lse2)[TILE_M])
{
	const int k_lane = in.k0 + key;
	const ColState col[2] = {col_state(&p, &in, b, h, k_lane, 0), col_state(&p, &in, b, h, k_lane, 8)};
#pragma unroll
	for (int j = 2 * step; j < 2 * step + 2; j++) {
		const float2 shift = *reinterpret_cast<const float2 *>(&lse2[8 * j + row_2t]);
		float first[2];
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const RowState row = row_state(&p, &in, b, h, in.q0 + 8 * j + row_2t + e, k_lane);
#pragma unroll
			for (int r = 0; r < 2; r++) {
				float &x = s[4 * j + 2 * r + e];
				const Scored scored = score_grad(x, row, col[r], &in);
				const float probability = ex2(scored.score * LOGIT_SCALE - (e == 0 ? shift.x : shift.y));
				x = probability * scored.grad;
				if (e == 0)
					first[r] = probability;
				else
					prob[j % 2 * 2 + r] = cvt_rn_x2(first[r], probability, Element{});
			}
		}
	}
}

// Takes the hidden cells of a partial tile out of 16 rows, whatever is in their place, NaN too. After the probabilities, so that
// there is one code for both kinds of tiles.
DEVICE void probabilities_hide(float (&s)[TILE_M / 2], unsigned (&prob)[4], int step, const fagen_abi &p, const Inputs &in, int b, int h)
{
	const int k_lane = in.k0 + lane_key(), row_2t = lane_row();
	const ColState col[2] = {col_state(&p, &in, b, h, k_lane, 0), col_state(&p, &in, b, h, k_lane, 8)};
#pragma unroll
	for (int j = 2 * step; j < 2 * step + 2; j++) {
		unsigned kept[2] = {0, 0};
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const RowState row = row_state(&p, &in, b, h, in.q0 + 8 * j + row_2t + e, k_lane);
#pragma unroll
			for (int r = 0; r < 2; r++) {
				float &x = s[4 * j + 2 * r + e];
				const bool keep = mask_keep(row, col[r], &in);
				x = keep ? x : 0;
				kept[r] |= keep ? 0xffffu << 16 * e : 0;
			}
		}
#pragma unroll
		for (int r = 0; r < 2; r++)
			prob[j % 2 * 2 + r] &= kept[r];
	}
}

// dS of 16 rows, packed.
DEVICE void dscore_make(unsigned (&ds)[TILE_M / 4], int step, const float (&s)[TILE_M / 2], const float (&dp)[TILE_M / 2], int row_2t,
                        const float (&delta)[TILE_M], uint2 kept)
{
#pragma unroll
	for (int j = 2 * step; j < 2 * step + 2; j++) {
		const float2 shift = *reinterpret_cast<const float2 *>(&delta[8 * j + row_2t]);
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const int i = 4 * j + 2 * r;
			float x = dp[i], y = dp[i + 1];
			if constexpr (DROPOUT) {
				const unsigned bytes = j % 2 == 0 ? 0x8888 : 0xAAAA;
				x = __uint_as_float(__float_as_uint(x) & prmt(kept.x << r, 0, bytes)) * KEEP_SCALE;
				y = __uint_as_float(__float_as_uint(y) & prmt(kept.y << r, 0, bytes)) * KEEP_SCALE;
			}
			ds[2 * j + r] = cvt_rn_x2(s[i] * (x - shift.x), s[i + 1] * (y - shift.y), Element{});
		}
	}
}

// One visit; is there another one of its item? When it ends its four groups of dV may be under way; the next one's S follows them.
DEVICE bool visit_attend(float (&dvalue)[HEAD_DIM_V / 2], unsigned visit, Smem &smem, const Buffers &staged, const fagen_abi &p)
{
	const ItemNote &note = smem.note[visit % NOTES]; // read at each use: registers are full
	const int stage = visit % STAGES;
	const unsigned parity = visit / STAGES & 1;
	if constexpr (LAYOUT != LAYOUT_DENSE) {
		const int rows = walk_sq(note, p) - note.tile * TILE_M;
		if (rows < TILE_M) {
			mbarrier_wait(smem.dout_full[stage], parity);
			rows_clear(smem.query[stage], rows);
			rows_clear(smem.dout[stage], rows);
			barrier_sync(BARRIER_GROUP, GROUP_THREADS); // writers of zeros before the products that read them
		}
	}
	float s[TILE_M / 2], dp[TILE_M / 2];
	unsigned ds[TILE_M / 4];
	product_ss<STEPS_QK, KEYS, TILE_M>(s, wgmma_desc(smem.key, 0), wgmma_desc(smem.query[stage], 0));
	wgmma_wait_group<1>(); // dV of the visit before
	registers_pin(dvalue);
	const bool follows = note.before >= 0; // another one of the item
	if (follows && first_thread())
		pair_arrive(smem.dout_empty[(visit - 1) % STAGES]);
	mbarrier_wait(smem.dout_full[stage], parity);
	product_ss<STEPS_V, KEYS, TILE_M>(dp, wgmma_desc(smem.value, 0), wgmma_desc(smem.dout[stage], 0));
	if (!QUERY_APART && follows) // dQ of the visit before shall run under the exponentials of this one
		barrier_arrive(BARRIER_DQUERY, 2 * GROUP_THREADS);
	if constexpr (DROPOUT) { // readers of the words of the visit before are past its last barrier
		kept_make(words_of(smem.rows), note.dropout, note.tile * TILE_M,
		          note.own.k0 + KEYS * (int)cluster_ctarank());
		barrier_sync(BARRIER_GROUP, GROUP_THREADS); // writers of the words before their readers
	}
	wgmma_wait_group<1>(); // S
	registers_pin(s);
	registers_pin(dvalue);
	if constexpr (INPUTS)
		mbarrier_wait(smem.inputs_full[visit % NOTES], visit / NOTES & 1);
	const Inputs in = {staged.head(note.turn), staged.rows(visit % NOTES), staged.cols(note.turn), staged.cells(stage), note.tile * TILE_M,
	                   note.own.k0,              note.bits};
	const bool partial = note.tile_class != TILE_FULL;
	const int key = lane_key(), row_2t = lane_row();
#pragma unroll
	for (int i = 0; i < TILE_M / 16; i++) {
		unsigned prob[4];
		const uint2 kept = DROPOUT ? kept_read(words_of(smem.rows), i) : make_uint2(0, 0);
		probabilities(s, prob, i, p, in, note.own.b, note.head, key, row_2t, smem.rows.of[stage].lse2);
		if constexpr (DROPOUT)
			probabilities_drop(prob, kept);
		if (partial) // last: ptxas serialises products whose operands are made in the same block
			probabilities_hide(s, prob, i, p, in, note.own.b, note.head);
		// A group of its own, so that it runs under the exponentials of the next 16 rows.
		product_rs(dvalue, prob, wgmma_desc(smem.dout[stage], TILE_M * 128) + i * (2048 / 16));
		if (i == 0) {
			wgmma_wait_group<1>(); // dP
			registers_pin(dp);
		}
		dscore_make(ds, i, s, dp, row_2t, smem.rows.of[stage].delta, kept);
	}
	mbarrier_wait(smem.dscore_empty, (visit & 1) ^ 1); // who reads it has read the dS of the visit before
	dscore_store(smem.dscore[0], ds);
	fence_proxy_async();
	barrier_sync(BARRIER_GROUP, GROUP_THREADS); // writers of dS before its readers
	if (first_thread()) {
		mbarrier_arrive(smem.dscore_full);
		if constexpr (!QUERY_APART)
			cp_async_bulk_cluster(mapa(cvta_shared(smem.dscore + 1), peer_rank()), cvta_shared(smem.dscore[0]), sizeof smem.dscore[0],
			                      mapa(cvta_shared(&smem.peer_dscore_full), peer_rank()));
	}
	return !note.last;
}

DEVICE void values_attend(Smem &smem, const Buffers &staged, const fagen_abi &p)
{
	unsigned visit = 0;
#pragma unroll 1
	while (visit_wait(smem, visit)) {
		const ItemNote &first = smem.note[visit % NOTES];
		float dvalue[HEAD_DIM_V / 2];
#pragma unroll
		for (int i = 0; i < HEAD_DIM_V / 2; i++)
			dvalue[i] = 0;
		mbarrier_wait(smem.key_full, first.item & 1);
		mbarrier_wait(smem.value_full, first.item & 1);
		if constexpr (LAYOUT != LAYOUT_DENSE) {
			const int rows = walk_sk(first, p) - first.own.k0 - KEYS * (int)cluster_ctarank();
			if (rows < KEYS) {
				rows_clear(smem.key, int_max(rows, 0));
				rows_clear(smem.value, int_max(rows, 0));
				barrier_sync(BARRIER_GROUP, GROUP_THREADS); // writers of zeros before the products that read them
			}
		}
#pragma unroll 1
		while (visit_attend(dvalue, visit, smem, staged, p)) {
			visit++;
			mbarrier_wait(smem.query_full[visit % STAGES], visit / STAGES & 1);
		}
		unsigned last[] = {visit++};
		registers_pin(last); // what is made of it is made here: registers hold none of it during the visits
		mbarrier_arrive(smem.value_empty, first_thread()); // the item's products have read V, and S has read K
		mbarrier_arrive(smem.key_empty, first_thread());
		if constexpr (!QUERY_APART)
			barrier_arrive(BARRIER_DQUERY, 2 * GROUP_THREADS);
		wgmma_wait_group<0>(); // dV
		registers_pin(dvalue);
		if (first_thread())
			pair_arrive(smem.dout_empty[last[0] % STAGES]);
		sums_store<HEAD_DIM_V>(p.dvalue, dvalue, KEEP_SCALE, p, smem.note[last[0] % NOTES].own);
	}
}

// ---- warpgroup 2: dK, dQ ----

// dK += dS^T Q.
DEVICE void dkey_issue(float (&acc)[HEAD_DIM_QK / 2], unsigned long long dscore, unsigned long long query)
{
	registers_pin(acc);
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < TILE_M / 16; i++)
		wgmma_mm<true>(acc, dscore + i * (2048 / 16), query + i * (2048 / 16));
	wgmma_commit_group();
	registers_pin(acc);
}

// This CTA's columns of dQ: whole panels, and half of one.
constexpr int HALF_FLOATS = HALF_PANEL ? 16 : 1;

// dQ = dS K or dQ += dS K of one CTA's keys.
template <bool ACCUMULATE, int HALF>
DEVICE void dquery_issue(float (&whole)[32 * WHOLE_PANELS], float (&half)[HALF], const unsigned short (&dscore)[TILE_M][64],
                         const unsigned short *key, const unsigned short *key_half)
{
	const unsigned long long a = wgmma_desc(dscore, 0), b = wgmma_desc(key, KEYS * 128), b_half = wgmma_desc(key_half, KEYS * 128);
	registers_pin(whole);
	if constexpr (HALF == 16)
		registers_pin(half);
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < KEYS / 16; i++) {
		if (!ACCUMULATE && i == 0)
			wgmma_sm<false>(whole, a, b);
		else
			wgmma_sm<true>(whole, a + 2 * i, b + i * (2048 / 16));
		if constexpr (HALF == 16) {
			if (!ACCUMULATE && i == 0)
				wgmma_sm<false>(half, a, b_half);
			else
				wgmma_sm<true>(half, a + 2 * i, b_half + i * (2048 / 16));
		}
	}
	wgmma_commit_group();
	registers_pin(whole);
	if constexpr (HALF == 16)
		registers_pin(half);
}

// Adds blocks [from, to) of this CTA's columns to the tile's sums.
template <int HALF>
DEVICE void dquery_add(float *sums, const float (&whole)[32 * WHOLE_PANELS], const float (&half)[HALF], int from, int to)
{
	const int rank = cluster_ctarank();
	float *const first = sums + mov_tid_x() % GROUP_THREADS * 4;
#pragma unroll
	for (int i = 0; i < DQUERY_BLOCKS; i++) {
		const bool is_whole = i < 8 * WHOLE_PANELS;
		const int block = is_whole ? 8 * WHOLE_PANELS * rank + i : 8 * (PANELS_QK - 1) + 4 * rank + i - 8 * WHOLE_PANELS;
		if (i < from || i >= to || (HEAD_DIM_QK % 64 != 0 && block >= HEAD_DIM_QK / 8))
			continue;
		const int k = is_whole ? 4 * i : 4 * (i - 8 * WHOLE_PANELS);
		const float four[4] = {is_whole ? whole[k] : half[k % HALF], is_whole ? whole[k + 1] : half[(k + 1) % HALF],
		                       is_whole ? whole[k + 2] : half[(k + 2) % HALF], is_whole ? whole[k + 3] : half[(k + 3) % HALF]};
		red_add_4(first + block * SUM_BLOCK, four, Width<4>{});
	}
}

// Rows past the entry's length become zeros of a visit's Q, for this warpgroup.
DEVICE void rows_prepare(Smem &smem, unsigned visit, const fagen_abi &p)
{
	if constexpr (LAYOUT != LAYOUT_DENSE) {
		const ItemNote &note = smem.note[visit % NOTES];
		const int rows = walk_sq(note, p) - note.tile * TILE_M;
		if (rows < TILE_M) {
			rows_clear(smem.query[visit % STAGES], rows);
			barrier_sync(BARRIER_GROUP + 1, GROUP_THREADS); // writers of zeros before the products that read them
		}
	}
}
DEVICE void dkey_start(float (&dkey)[HEAD_DIM_QK / 2], unsigned visit, Smem &smem, const fagen_abi &p)
{
	rows_prepare(smem, visit, p);
	mbarrier_wait(smem.dscore_full, visit & 1);
	dkey_issue(dkey, wgmma_desc(smem.dscore[0], TILE_M * 128), wgmma_desc(smem.query[visit % STAGES], TILE_M * 128));
}
DEVICE void dkey_end(float (&dkey)[HEAD_DIM_QK / 2], unsigned visit, Smem &smem)
{
	wgmma_wait_group<0>();
	registers_pin(dkey);
	if (first_thread())
		pair_arrive(smem.query_empty[visit % STAGES]);
}

// An item's visits, of which this is the first: dK alone. The last one, whose note is still there.
DEVICE unsigned dkey_attend(float (&dkey)[HEAD_DIM_QK / 2], unsigned visit, Smem &smem, const fagen_abi &p)
{
#pragma unroll 1
	for (;;) {
		dkey_start(dkey, visit, smem, p);
		const bool last = smem.note[visit % NOTES].last;
		dkey_end(dkey, visit, smem);
		if (first_thread())
			mbarrier_arrive(smem.dscore_empty); // dK alone has read it
		if (last)
			return visit;
		visit_wait(smem, ++visit);
	}
}

// dK and dQ.
template <class Shared> DEVICE unsigned dkey_dquery_attend(float (&dkey)[HEAD_DIM_QK / 2], unsigned visit, Shared &smem, const fagen_abi &p)
{
	const int rank = cluster_ctarank();
	const ItemNote &first = smem.note[visit % NOTES];
	float whole[32 * WHOLE_PANELS], half[HALF_FLOATS];
	const auto sums_add = [&](int index, int from, int to) { dquery_add(tile_sums(p, index), whole, half, from, to); };
	mbarrier_wait(smem.key_full, first.item & 1);
	mbarrier_wait(smem.peer_key_full, first.item & 1);
	if constexpr (LAYOUT != LAYOUT_DENSE) {
		const int rows = walk_sk(first, p) - first.own.k0; // of the pair
		if (rows < TILE_N) {
			rows_clear(smem.key, int_max(rows - KEYS * rank, 0));
			rows_clear(smem.peer_key, int_max(rows - KEYS * (rank ^ 1), 0));
			barrier_sync(BARRIER_GROUP + 1, GROUP_THREADS); // writers of zeros before the products that read them
		}
	}
	int index = first.index; // kept: the note may be overwritten once dK of the next visit is there
	dkey_start(dkey, visit, smem, p);
	dkey_end(dkey, visit, smem);
#pragma unroll 1
	for (;;) {
		if (first_thread())
			mbarrier_arrive_expect_tx(smem.peer_dscore_full, sizeof smem.dscore[1]);
		barrier_sync(BARRIER_DQUERY, 2 * GROUP_THREADS);
		dquery_issue<false>(whole, half, smem.dscore[0], smem.key[WHOLE_PANELS * rank][0], &smem.key[PANELS_QK - 1][0][32 * rank]);
		mbarrier_wait(smem.peer_dscore_full, visit & 1);
		dquery_issue<true>(whole, half, smem.dscore[1], smem.peer_key[0][0],
		                   &smem.peer_key[WHOLE_PANELS + HALF_PANEL - 1][0][32 * rank]);
		const bool last = smem.note[visit % NOTES].last;
		wgmma_wait_group<0>();
		registers_pin(whole);
		if constexpr (HALF_PANEL)
			registers_pin(half);
		if (first_thread())
			pair_arrive(smem.dscore_empty);
		mbarrier_arrive(smem.key_empty, last && first_thread()); // the item's products have read K of both CTAs
		// Sums leave slowly: one half of them while the next dS is made, the other behind the products of dK.
		sums_add(index, 0, DQUERY_BLOCKS / 2);
		if (last)
			break;
		visit_wait(smem, ++visit);
		dkey_start(dkey, visit, smem, p);
		sums_add(index, DQUERY_BLOCKS / 2, DQUERY_BLOCKS);
		index = smem.note[visit % NOTES].index;
		dkey_end(dkey, visit, smem);
	}
	sums_add(index, DQUERY_BLOCKS / 2, DQUERY_BLOCKS);
	return visit;
}

template <class Shared> DEVICE void keys_attend(Shared &smem, const fagen_abi &p)
{
#pragma unroll 1
	for (unsigned visit = 0; visit_wait(smem, visit); visit++) {
		float dkey[HEAD_DIM_QK / 2];
#pragma unroll
		for (int i = 0; i < HEAD_DIM_QK / 2; i++)
			dkey[i] = 0;
		if constexpr (QUERY_APART)
			visit = dkey_attend(dkey, visit, smem, p);
		else
			visit = dkey_dquery_attend(dkey, visit, smem, p);
		sums_store<HEAD_DIM_QK>(p.dkey, dkey, SOFTMAX_SCALE, p, smem.note[visit % NOTES].own);
	}
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1)
	fagen_backward(const __grid_constant__ fagen_abi p, const __grid_constant__ fagen_abi_maps maps)
{
	extern __shared__ __align__(1024) unsigned char smem_bytes[];
	Smem &smem = *reinterpret_cast<Smem *>(smem_bytes);
	const Buffers staged(smem_bytes + (sizeof(Smem) + 15) / 16 * 16);
	if (threadIdx.x == 0) {
		mbarrier_init(smem.taken_full, 1);
		mbarrier_init(smem.taken_empty, 1);
		mbarrier_init(smem.key_full, 1);
		mbarrier_init(smem.key_empty, QUERY_APART ? 1 : 2);
		mbarrier_init(smem.value_full, 1);
		mbarrier_init(smem.value_empty, 1);
		mbarrier_init(smem.peer_key_full, 1);
		mbarrier_init(smem.dscore_full, 1);
		mbarrier_init(smem.dscore_empty, QUERY_APART ? 1 : 2);
		mbarrier_init(smem.peer_dscore_full, 1);
		for (int i = 0; i < STAGES; i++) {
			mbarrier_init(smem.query_full[i], 1);
			mbarrier_init(smem.query_empty[i], 2);
			mbarrier_init(smem.dout_full[i], 1);
			mbarrier_init(smem.dout_empty[i], 2);
		}
		for (int i = 0; i < NOTES; i++) {
			mbarrier_init(smem.note_full[i], 1);
			mbarrier_init(smem.inputs_full[i], INPUTS ? INPUT_THREADS : 1);
		}
		fence_mbarrier_init();
	}
	barrier_cluster_arrive();
	barrier_cluster_wait(); // barriers before their users, those of the other CTA too
	const int group = warp_uniform(threadIdx.x / GROUP_THREADS), warp = warp_uniform(threadIdx.x / 32);
	if (group == 0) {
		setmaxnreg_dec<LOAD_REGISTERS>();
		if (warp == 0) {
			items_walk<ItemKept>(
				smem, p, [&](unsigned round, bool leader) { return pair_number(smem, p, round, leader); },
				[&](unsigned visit) { queries_load(smem, p, maps, visit); });
		} else if (warp == 1) {
			if (elect_sync())
				douts_load(smem, p, maps);
		} else if constexpr (INPUTS) {
			visits_prepare<INPUT_THREADS>(smem, staged, p);
		}
	} else if (group == 1) {
		setmaxnreg_inc<VALUE_REGISTERS>();
		values_attend(smem, staged, p);
	} else {
		setmaxnreg_inc<KEY_REGISTERS>();
		keys_attend(smem, p);
	}
	__syncwarp();
	barrier_cluster_arrive();
	barrier_cluster_wait(); // a CTA ends when nothing of the other comes any more
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
	const float *const sums = tile_sums(p, tile_index(p, own.b, own.h, own.tile));
	const int lane = threadIdx.x % 32;
	for (int i = threadIdx.x / 32; i < HEAD_DIM_QK / 8 * 4; i += WARPS) { // 16 rows of a block
		const float4 v = *reinterpret_cast<const float4 *>(sums + i * (SUM_BLOCK / 4) + 4 * lane);
		const int row = i % 4 * 16 + lane / 4, block = i / 4;
		st_shared_4(rounded + tile_offset<CHUNKS>(row, block) + lane % 4 * 4,
		            cvt_rn_x2(v.x * SOFTMAX_SCALE, v.y * SOFTMAX_SCALE, Element{}));
		st_shared_4(rounded + tile_offset<CHUNKS>(row + 8, block) + lane % 4 * 4,
		            cvt_rn_x2(v.z * SOFTMAX_SCALE, v.w * SOFTMAX_SCALE, Element{}));
	}
	__syncthreads(); // writers of the tile before its readers
	tile_store<TILE_M, HEAD_DIM_QK, CHUNKS, THREADS>(rounded, head_address(p.dquery, own.b, own.h, first_q(&p, own.b)),
	                                                 p.dquery.stride_seq, own.tile * TILE_M, slot_q(&p, own.b));
}
