// What Hopper's backward skeletons share. Warpgroup 0 loads: its first warp walks and writes the notes, its last warps prepare visits.
// An item is a tile of keys that some query tile sees; those that none sees get their zeros from the loading warp, and nobody else hears of
// them. Visits of all items are numbered through: visit n has the buffers n % STAGES, whose phases count n / STAGES, and the note n % NOTES, which
// says all of its item.

constexpr int BLOCKS_M = TILE_M / 8;              // 8-row blocks of a query tile
constexpr int STEPS_QK = (HEAD_DIM_QK + 15) / 16; // k16 steps of a row, zero past the head dimension
constexpr int STEPS_V = (HEAD_DIM_V + 15) / 16;
constexpr int PANELS_QK = (HEAD_DIM_QK + 63) / 64; // 64-column panels of a shared row
constexpr int PANELS_V = (HEAD_DIM_V + 63) / 64;
constexpr int NOTES = 2 * STAGES;
constexpr float KEEP_SCALE = 256.0f / KEEP_256;
constexpr bool INPUTS = HEAD_INPUTS || ROW_INPUTS || COL_INPUTS || CELL_INPUTS;
// Classifying tiles takes many registers of those who load, and so does staging cells.
constexpr bool LONG_LOAD = SCAN || RUNS > 1 || CELL_INPUTS;
constexpr bool FROM_DIAGONAL = SUMS != SUMS_CLEARED && !QUERY_APART && RUNS == 1 && !SCAN; // key tiles begin apart from each other
static_assert(LOAD_BYTES == 16, "tensor maps want rows of 16-byte multiples");

// index: of the query tile in the workspaces. turn: buffers of the inputs of this query head.
struct Note : Visit, HeadKey<DROPOUT> { int head, turn, index; };

// A tile of keys of a key/value head.
struct Keys { int b, h, k0; }; // k0 below 0: nothing

// What tile number i of the launch is. All lanes of a warp call it.
DEVICE Keys keys_placed(const fagen_abi &p, unsigned i, const Sections &sections)
{
	const Owned own = key_item(p, i, sections);
	return {own.b, own.h, own.tile * TILE_N};
}

// Item number i as fagen_order knows it: a tile, whole.
DEVICE Owned item_owned(const fagen_abi &p, unsigned i) { return key_item(p, i, key_sections(p)); }

DEVICE unsigned item_count(const fagen_abi &p) { return items_of(p, key_numbers<TILE_N>(p) * p.heads_kv); }

// dK = dV = 0 of `keys` keys from k on, which nothing sees; by one warp.
template <int COLUMNS> DEVICE void rows_zero(const fagen_abi_tensor &t, const fagen_abi &p, const Keys &own, int k, int keys)
{
	unsigned short *const row0 = head_address(t, own.b, own.h, first_k(&p, own.b));
	const int rows = int_min(slot_k(&p, own.b) - k, keys);
#pragma unroll 1
	for (int i = mov_tid_x() % 32; i < rows * (COLUMNS / 8); i += 32)
		*reinterpret_cast<uint4 *>(row0 + (k + i / (COLUMNS / 8)) * t.stride_seq + i % (COLUMNS / 8) * 8) = make_uint4(0, 0, 0, 0);
}

// Which visits of its key tile an item has, of one query head's tiles from last to first and then of the next head's, and what is written when
// there is none. All of them: nothing is kept of that. Of the tile's keys KEYS are this CTA's, those of its rank in the cluster. All lanes of the
// loading warp call what asks for the leader.
template <int KEYS> struct WholeItem : Keys {
	struct Noted { enum { part = 0 }; };
	__device__ __forceinline__ void part_set(int part) {}
	__device__ __forceinline__ void visits_take(const Stream &whole, const fagen_abi &p, int group, bool leader) {}
	__device__ __forceinline__ int head_begin(int group) const { return h * group; }
	__device__ __forceinline__ int head_end(int group) const { return (h + 1) * group; }
	__device__ __forceinline__ int next_begin(const Stream &whole) const { return whole.next; }
	__device__ __forceinline__ bool ended(int head, int tile) const { return false; }
	__device__ __forceinline__ void seen_note(const fagen_abi &p, bool leader) const {}
	__device__ __forceinline__ void unseen_note(const fagen_abi &p, bool leader) const
	{
		const int k = KEYS == TILE_N ? k0 : k0 + KEYS * (int)cluster_ctarank();
		rows_zero<HEAD_DIM_QK>(p.dkey, p, *this, k, KEYS);
		rows_zero<HEAD_DIM_V>(p.dvalue, p, *this, k, KEYS);
	}
	__device__ __forceinline__ Noted noted() const { return {}; }
};

// What is said of a visit and of its item. item: its number among those of this CTA. before: index of the item's visit before, -1 in its
// first one. last: 1 in its last one. Lengths are the entry's.
using Lengths = WalkLengths<LAYOUT != LAYOUT_DENSE>;
template <class Item> struct NoteOf : Note, Lengths, Item::Noted {
	Keys own;
	int item, before, last;
};

// What the loading warp keeps of its item here and not in registers, which are few. turn: of the query head that it is at. round: of the next item.
template <class Item> struct TakenOf : Item {
	int item, turn;
	unsigned round;
};

// The first warp: items and notes. number_take(round, leader) is item_number, for all lanes; visit_load(visit), for the leader, publishes the note of a visit
// and loads its tiles, and waits for their buffers. A note is written when the visit before it has been loaded: when those of all visits but the last
// NOTES - 1 are done with.
//
// What the next item is takes some thousands of clocks to find out: it is done before the buffers of this one's last visit are waited for, so
// that Q of the next is not late.
template <class Item, class Smem, class NumberTake, class VisitLoad>
DEVICE void items_walk(Smem &smem, const fagen_abi &p, NumberTake number_take, VisitLoad visit_load)
{
	static_assert(ORDER == ORDER_NONE || (QUEUE && SPLITS == 1 && SUMS != SUMS_ORDERED), "whoever is free takes the longest that is left");
	const bool leader = elect_sync();
	const int group = KV_GROUP > 0 ? KV_GROUP : p.kv_group;
	TakenOf<Item> &own = smem.own;
	unsigned visit = 0;
	if (leader) {
		own = {};
		own.h = -1, own.item = -1, own.turn = STAGES - 1;
		smem.sections = key_sections(p);
	}
	__syncwarp(); // their writer before their readers
	int head = 0, next = -1, tile = -1, class_ = TILE_EMPTY;
	const auto advance = [&] { // to the item's next tile, of this query head or a later one of the group
		for (; head < own.head_end(group); head++, next = smem.walk.stream.next)
			if (walk_next<false>(smem.walk, p, own.b, head, own.k0, next, tile, class_) && !own.ended(head, tile))
				return true;
		return false;
	};
	// The tile that is visited in its place. Key tiles beside each other visit the same one at different times, each from its own diagonal on: who is first
	// has long stored its dQ when the next one comes. Ordered sums are begun by the last key tile.
	const auto visited = [&] {
		if constexpr (!FROM_DIAGONAL)
			return tile;
		const StreamRun &run = smem.walk.stream.run[0];
		const int begin = SUMS == SUMS_ORDERED ? run.first : int_max(run.first, int_min(own.k0 / TILE_M, run.last));
		const int at = begin + run.last - tile;
		return at <= run.last ? at : run.first + at - run.last - 1;
	};
	const auto item_take = [&] { // the next item; false: there is none
		Keys placed = {0, 0, -1};
		unsigned number;
		do {
			number = number_take(own.round, leader);
			if (number >= item_count(p))
				return false;
			placed = keys_placed(p, item_at(p, item_tile(p, number)), smem.sections);
			__syncwarp(); // readers of the round, and of the walk and the item before, before their writer
			if (leader)
				own.round++;
			__syncwarp(); // and the other way round
		} while (placed.k0 < 0);
		if (leader) {
			static_cast<Keys &>(own) = placed;
			own.part_set(item_part(p, number));
			walk_begin<false>(smem.walk, p, placed.b, placed.k0);
		}
		own.visits_take(smem.walk.stream, p, group, leader);
		__syncwarp(); // the item's writer before its readers
		head = own.head_begin(group), next = own.next_begin(smem.walk.stream);
		return true;
	};
	bool seen = true; // has the item had a visit?
#pragma unroll 1
	for (;;) {
		bool more;
		while (!(more = advance())) {
			if (!seen)
				own.unseen_note(p, leader);
			seen = false;
			if (!item_take())
				break;
		}
		if (visit > 0) {
			if (leader) {
				smem.note[(visit - 1) % NOTES].last = !more || !seen;
				visit_load(visit - 1);
			}
			__syncwarp();
		}
		if (!more)
			break;
		if (!seen)
			own.seen_note(p, leader);
		NoteOf<Item> &note = smem.note[visit % NOTES];
		const int at = visited();
		visit_note<false>(note, p, own.b, head, own.k0, at, FROM_DIAGONAL ? stream_class(&smem.walk.stream, at) : class_);
		if (leader) {
			const NoteOf<Item> &before = smem.note[(visit - 1) % NOTES];
			const bool same = seen && head == before.head;
			own.item += !seen;
			if (!same)
				own.turn = own.turn == STAGES - 1 ? 0 : own.turn + 1;
			note.head = head, note.turn = own.turn, note.index = tile_index(p, own.b, head, at);
			note.own = own, note.item = own.item;
			note.before = seen ? before.index : -1;
			note.dropout_follow(before, same, p, own.b, head);
			static_cast<Lengths &>(note) = smem.walk;
			static_cast<typename Item::Noted &>(note) = own.noted();
		}
		__syncwarp(); // the note's writers before the leader's arrivals
		seen = true;
		visit++;
	}
	visit_note<false>(smem.note[visit % NOTES], p, 0, 0, 0, -1, TILE_EMPTY);
	__syncwarp(); // the note's writer before the leader's arrivals
	if (leader) {
		mbarrier_arrive(smem.note_full[visit % NOTES]);
		mbarrier_wait(smem.query_empty[visit % STAGES], (visit / STAGES & 1) ^ 1);
		mbarrier_arrive(smem.query_full[visit % STAGES]);
	}
	__syncwarp();
}

// The last COUNT threads of warpgroup 0 load inputs of visits. Those of rows are free with the note, those of cells with Q; the head's and the
// keys' have STAGES buffers, which take turns.
template <int COUNT, class Smem, class Buffers>
DEVICE void visits_prepare(Smem &smem, const Buffers &staged, const fagen_abi &p)
{
	const int thread = mov_tid_x() - (GROUP_THREADS - COUNT);
	int turn_before = -1;
#pragma unroll 1
	for (unsigned visit = 0;; visit++) {
		const int stage = visit % STAGES;
		mbarrier_wait(smem.note_full[visit % NOTES], visit / NOTES & 1);
		const int tile = smem.note[visit % NOTES].tile, head = smem.note[visit % NOTES].head, turn = smem.note[visit % NOTES].turn;
		if (tile < 0)
			return;
		const Keys own = smem.note[visit % NOTES].own;
		if constexpr (ROW_INPUTS)
			rows_load(staged.rows(visit % NOTES), &p, own.b, head, tile * TILE_M, thread, COUNT);
		if (CELL_INPUTS || turn != turn_before)
			mbarrier_wait(smem.query_empty[stage], (visit / STAGES & 1) ^ 1);
		if constexpr (CELL_INPUTS)
			cells_load(staged.cells(stage), &p, own.b, head, tile * TILE_M, own.k0, thread, COUNT);
		if (turn != turn_before) { // another head: the one STAGES before it has been computed
			if constexpr (HEAD_INPUTS)
				head_load(staged.head(turn), &p, own.b, head, thread, COUNT);
			if constexpr (COL_INPUTS)
				cols_load(staged.cols(turn), &p, own.b, head, own.k0, thread, COUNT);
			turn_before = turn;
		}
		cp_async_commit();
		cp_async_wait<0>();
		mbarrier_arrive(smem.inputs_full[visit % NOTES]);
	}
}

// Waits for a visit's Q; false: there is no such visit.
template <class Smem> DEVICE bool visit_wait(Smem &smem, unsigned visit)
{
	mbarrier_wait(smem.query_full[visit % STAGES], visit / STAGES & 1);
	return smem.note[visit % NOTES].tile >= 0;
}

// Of a thread: the accumulators of S^T hold keys g, g + 8 of its warp's 16 and rows 2t, 2t + 1 of every 8-row block, as
// s[4 * block + 2 * (key half) + row]; those of dP^T likewise, and those of dK and dV with columns for rows. What is derived from the
// thread index is computed anew where it is used: registers are full.
DEVICE int lane_row() { return mov_tid_x() % 4 * 2; } // 2t

// Dropout of 64 keys, from k on: [16-row block][t][(key >> 1) & 3][row of the pair]. A word decides for 32 cells, of which a
// thread of S^T has 4: its warpgroup makes and shares them, while products are under way.
DEVICE void kept_make(unsigned *kept, const DropoutKey &key, int q0, int k)
{
#pragma unroll
	for (int i = mov_tid_x() % GROUP_THREADS; i < 2 * TILE_M; i += GROUP_THREADS)
		kept[i] = dropout_bits(key, q0 + i / 32 * 16 + i / 8 % 4 * 2 + i % 2, k + i / 2 % 4 * 2);
}

// dS^T becomes dS: a panel of this warpgroup's 64 keys.
DEVICE void dscore_store(unsigned short (&to)[TILE_M][64], const unsigned (&ds)[TILE_M / 4])
{
	const int lane = mov_tid_x() % 32, warp = mov_tid_x() / 32 % 4;
	const int row = lane % 8 + lane / 16 * 8, chunk = 2 * warp + lane / 8 % 2;
	const unsigned at = cvta_shared(to) + row * 128 + (chunk ^ row % 8) * 16;
#pragma unroll
	for (int i = 0; i < TILE_M / 16; i++)
		stmatrix_x4_trans(at + i * 2048, ds[4 * i], ds[4 * i + 1], ds[4 * i + 2], ds[4 * i + 3]);
}
