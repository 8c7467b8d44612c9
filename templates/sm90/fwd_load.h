// Loading, warpgroup 0 of fwd.cu: items, the walk over their key tiles, bulk copies; and what helpers prepare.

// What item number i of the launch is; tile -1: nothing.
DEVICE Owned item_owned(const fagen_abi &p, unsigned i, const Sections &sections) { return query_item(p, item_tile(p, i), sections); }
DEVICE Owned item_owned(const fagen_abi &p, unsigned i) { return item_owned(p, i, query_sections(p)); }
DEVICE unsigned item_count(const fagen_abi &p)
{
	return items_of(p, query_numbers<TILE_Q>(p) * (p.heads_q / TILE_HEADS));
}

template <class Item> DEVICE void part_set(Item &item, const fagen_abi &p, unsigned number)
{
	item.part = item_part(p, number);
}
template <class Item> DEVICE void part_copy(Item &to, const Item &from) { to.part = from.part; }
// Leaves the stream of an item's query tile what its part sees.
template <class Item> DEVICE void part_take(Item &item, const fagen_abi &p, Stream &stream)
{
	if (CUT && item.part < 0)
		return;
	stream_part(&stream, item.part % part_count(p), part_count(p));
	item.first = item.last = stream.next;
#pragma unroll
	for (int i = 0; i < RUNS; i++)
		if (stream.run[i].last >= stream.run[i].first)
			item.first = int_min(item.first, stream.run[i].first);
}

// The rows of Q of warpgroup `group`, of the tile whose first position has row `row` of the tensor.
DEVICE void query_load(Smem &smem, const fagen_abi_maps &maps, int group, int row, int head, int batch)
{
	mbarrier_arrive_expect_tx(smem.query_full[group], PANELS_QK * 64 * 128);
#pragma unroll
	for (int i = 0; i < PANELS_QK; i++)
		cp_async_bulk_tensor_4d<L2_EVICT_FIRST>(cvta_shared(smem.query[i][64 * group]), maps.query, smem.query_full[group], 64 * i,
		                                        TILE_HEADS == 1 ? row + row_position(64 * group) : head,
		                                        TILE_HEADS == 1 ? head : row + row_position(64 * group), batch);
}

// Rows of Q are on their way to L2 an item ahead: nobody has read them, and from memory they come late. One panel wide 1.03 at d 64; of two, d 128, 512
// and 1k without a mask 1.015 and 1.01, but a triangle of 512 0.985; of four 0.99.
constexpr bool QUERY_AHEAD = PANELS_QK == 1 || (PANELS_QK == 2 && !QUEUE);

DEVICE void query_prefetch(const fagen_abi_maps &maps, int row, int head, int batch)
{
#pragma unroll
	for (int i = 0; i < PANELS_QK; i++)
		cp_async_bulk_prefetch_tensor_4d(maps.query, 64 * i, TILE_HEADS == 1 ? row : head, TILE_HEADS == 1 ? head : row, batch);
}

// smem.next: the next item number that is a tile, or ITEM_END.
DEVICE void next_take(Smem &smem, const fagen_abi &p, const fagen_abi_maps &maps, bool leader)
{
	static_assert(ORDER == ORDER_NONE || (QUEUE && SPLITS == 1), "whoever is free takes the longest that is left");
	unsigned number;
	Owned own = {0, 0, -1, 0};
	do {
		number = item_number(p, smem.round, leader);
		if (number < item_count(p))
			own = item_owned(p, item_at(p, number), smem.sections);
		__syncwarp(); // readers of the round, and of the item before, before their writer
		if (leader)
			smem.round++;
		__syncwarp(); // and the other way round
	} while (own.tile < 0 && number < item_count(p));
	if (leader) {
		static_cast<ItemPlace &>(smem.next) = {own.tile < 0 ? ITEM_END : ITEM_SPECULATIVE, own.b, own.h, own.tile * TILE_Q};
		smem.next.dropout_make(p, own.b, own.h);
		if constexpr (SPLITS > 1 || CUT)
			part_set(smem.next, p, number);
		if (QUERY_AHEAD && own.tile >= 0)
#pragma unroll 1
			for (int group = 0; group < WARPGROUPS; group++)
				query_prefetch(maps, first_q(&p, own.b) + own.tile * TILE_Q + row_position(group * 64), own.h,
				               LAYOUT == LAYOUT_PACKED ? 0 : own.b);
	}
	__syncwarp(); // the next item's writer before its readers
}

// Where two calls of next_take do not spill.
constexpr bool TAKE_EARLY = LOAD_REGISTERS >= 40 && SPLITS == 1;

// The first warp: items, notes, and the tiles of Q, K and V. V follows K one visit behind, as it is used. L2 keeps K and V, which other CTAs want
// too, at the cost of Q, which nobody does.
//
// What the next item is and sees first takes 3,000 clocks to find out, or 5,000 where classes are asked for: it is done before the last V of this one is
// waited for, and with TAKE_EARLY its number before the last K, so that K and Q of the next are not late. A V that is the only one comes first.
DEVICE void tiles_load(Smem &smem, const fagen_abi &p, const fagen_abi_maps &maps)
{
	const bool leader = elect_sync();
	unsigned visit = 0;
	if (leader)
		smem.sections = query_sections(p);
	__syncwarp(); // the sections' writer before their readers
	// If item n, whose tiles are all under way, left the range, it comes again.
	const auto again = [&](unsigned n, ItemPlace &item) {
		mbarrier_wait(smem.item_done[n % 2], n / 2 & 1);
		const bool failed = smem.failed[n % 2];
		__syncwarp(); // readers of the verdict before it is cleared
		if (failed) {
			item = smem.item[n % 2];
			item.kind = ITEM_RUNNING;
			smem.failed[n % 2] = 0;
		}
	};
	// V of visit n, of an item that is published.
	const auto value_load = [&](unsigned n, const ItemPlace &item) {
		if (leader) {
			mbarrier_wait(smem.value_empty[n % STAGES], (n / STAGES & 1) ^ 1);
			panels_load<L2_EVICT_LAST>(smem.value[n % STAGES], maps.value, smem.value_full[n % STAGES],
			                           first_k(&p, item.b) + smem.note[n % NOTES].tile * TILE_N,
			                           item.h / (KV_GROUP > 0 ? KV_GROUP : p.kv_group), LAYOUT == LAYOUT_PACKED ? 0 : item.b);
		}
		__syncwarp();
	};
	bool taken = false, paused = false, value_due = false; // taken: smem.next is known. value_due: the last one of the item before
	for (unsigned i = 0;; i++) {
		const int seat = i % 2;
		ItemPlace item = {ITEM_END, 0, 0, 0}; // of the seat; its part is there alone
		if (i >= 2)
			again(i - 2, item);
		if (item.kind == ITEM_END) {
			if (!taken)
				next_take(smem, p, maps, leader);
			taken = false;
			item = smem.next;
			if (leader) { // who publishes the item
				static_cast<HeadKey<DROPOUT> &>(smem.item[seat]) = smem.next;
				if constexpr (SPLITS > 1 || CUT)
					part_copy(smem.item[seat], smem.next);
			}
		}
		if (item.kind == ITEM_END && i >= 1 && !paused)
			item.kind = ITEM_PAUSE; // the verdict on the item before is not awaited here: those who compute look at this one first
		paused = item.kind == ITEM_PAUSE;

		int next = -1, tile = -1, class_ = TILE_EMPTY;
		bool more = false;
		if (item.kind > ITEM_PAUSE) {
			if (leader) { // who publishes the item
				walk_begin<true>(smem.walk, p, item.b, item.q0);
				if constexpr (SPLITS > 1 || CUT)
					part_take(smem.item[seat], p, smem.walk.stream);
			}
			__syncwarp();
			if (!SPECULATE || stream_tiles_most(&smem.walk.stream) <= SHORT_KEYS / TILE_N)
				item.kind = ITEM_RUNNING;
			next = smem.walk.stream.next;
			more = walk_next<true>(smem.walk, p, item.b, item.h, item.q0, next, tile, class_);
			if (!more)
				item.kind = ITEM_EMPTY;
		}
		const auto item_publish = [&] { // with Q
			if (leader) {
				static_cast<ItemPlace &>(smem.item[seat]) = item;
				if constexpr (HELPER_THREADS)
					mbarrier_arrive(smem.item_full[seat]);
#pragma unroll 1
				for (int group = 0; group < WARPGROUPS; group++) {
					mbarrier_wait(smem.query_empty[group], (i & 1) ^ 1); // the item before: the group's last S is done
					if (item.kind >= ITEM_SPECULATIVE)
						query_load(smem, maps, group, first_q(&p, item.b) + item.q0, item.h, LAYOUT == LAYOUT_PACKED ? 0 : item.b);
					else
						mbarrier_arrive(smem.query_full[group]);
				}
			}
			__syncwarp();
		};
		if (!more) {
			if (value_due)
				value_load(visit - 1, smem.item[seat ^ 1]);
			value_due = false;
			item_publish();
			if (item.kind == ITEM_END)
				return;
			continue;
		}
		const unsigned first = visit;
		while (more) {
			int next_tile = -1, next_class = TILE_EMPTY;
			more = walk_next<true>(smem.walk, p, item.b, item.h, item.q0, next, next_tile, next_class);
			Note &note = smem.note[visit % NOTES];
			visit_note<true>(note, p, item.b, item.h, item.q0, tile, class_);
			__syncwarp(); // the note's writers before the leader's arrivals
			if (leader) {
				note.last = !more;
				if constexpr (VISIT_INPUTS)
					mbarrier_arrive(smem.note_full[visit % NOTES]);
			}
			if constexpr (TAKE_EARLY)
				if (!more && visit != first && !taken) {
					next_take(smem, p, maps, leader);
					taken = true;
				}
			if (leader) {
				mbarrier_wait(smem.key_empty[visit % STAGES], (visit / STAGES & 1) ^ 1);
				panels_load<L2_EVICT_LAST>(smem.key[visit % STAGES], maps.key, smem.key_full[visit % STAGES],
				                           first_k(&p, item.b) + tile * TILE_N, item.h / (KV_GROUP > 0 ? KV_GROUP : p.kv_group),
				                           LAYOUT == LAYOUT_PACKED ? 0 : item.b);
			}
			__syncwarp();
			if (visit != first || value_due)
				value_load(visit - 1, smem.item[visit != first ? seat : seat ^ 1]);
			value_due = false;
			if (visit == first)
				item_publish();
			tile = next_tile, class_ = next_class;
			visit++;
		}
		value_due = visit - first > 1;
		if (!value_due)
			value_load(visit - 1, smem.item[seat]);
	}
}

// The other warps: inputs of items and visits.
DEVICE void helpers_prepare(Smem &smem, const Buffers &staged, const fagen_abi &p)
{
	const int thread = mov_tid_x() - 32;
	unsigned visit = 0;
	for (unsigned i = 0;; i++) {
		const int seat = i % 2;
		mbarrier_wait(smem.item_full[seat], i / 2 & 1);
		const Item item = smem.item[seat];
		if constexpr (HEAD_INPUTS)
			if (item.kind > ITEM_PAUSE)
				head_load(staged.head(seat), &p, item.b, item.h, thread, HELPER_THREADS);
		if constexpr (ROW_INPUTS)
			if (item.kind >= ITEM_SPECULATIVE)
				rows_load(staged.rows(seat), &p, item.b, item.h, item.q0, thread, HELPER_THREADS);
		cp_async_commit();
		cp_async_wait<0>();
		mbarrier_arrive(smem.item_inputs_full[seat]); // and the item is read: nobody frees the seat of one, be it empty, before all helpers have
		if (item.kind == ITEM_END)
			return;
		if constexpr (VISIT_INPUTS) {
			bool last = item.kind <= ITEM_EMPTY;
			while (!last) {
				mbarrier_wait(smem.note_full[visit % NOTES], visit / NOTES & 1);
				const int k0 = smem.note[visit % NOTES].tile * TILE_N;
				last = smem.note[visit % NOTES].last;
				if constexpr (COL_INPUTS)
					cols_load(staged.cols(visit % NOTES), &p, item.b, item.h, k0, thread, HELPER_THREADS);
				if constexpr (CELL_INPUTS) {
					mbarrier_wait(smem.value_empty[visit % STAGES], (visit / STAGES & 1) ^ 1);
					cells_load(staged.cells(visit % STAGES), &p, item.b, item.h, item.q0, k0, thread, HELPER_THREADS);
				}
				cp_async_commit();
				cp_async_wait<0>();
				mbarrier_arrive(smem.inputs_full[visit % NOTES]);
				visit++;
			}
		}
	}
}

// OUT_WHOLE: O of the rows of computing warpgroup `group`, item after item, to where it belongs: 128 bytes of four rows at a time.
DEVICE void rows_send(OutShared &out, const fagen_abi &p, int group)
{
	constexpr int AT_ONCE = PANELS_V <= 2 ? 2 : 1, ROW_BYTES = sizeof *out.rows; // such fours of rows: registers are few
	const int lane = mov_tid_x() % 32;
	const unsigned from = cvta_shared(out.rows[64 * group + lane / 8]) + lane % 8 * 16;
#pragma unroll 1
	for (unsigned i = 0;; i++) {
		mbarrier_wait(out.full[group], i & 1);
		const int kind = out.item[group].kind, b = out.item[group].b, q = out.item[group].q0 + 64 * group;
		if (kind == ITEM_END)
			return;
		const int written = int_min(slot_q(&p, b) - q, 64);
		if (kind > ITEM_PAUSE && written > 0) {
			const long long four = 4 * p.out.stride_seq;
			unsigned short *to = reinterpret_cast<unsigned short *>(p.out.data) + entry_offset(p.out, b, first_q(&p, b)) +
			                     out.item[group].h * p.out.stride_head + (q + lane / 8) * p.out.stride_seq + lane % 8 * 8;
#pragma unroll 1
			for (int row = 0; row < written; row += 4 * AT_ONCE) {
				uint4 cells[AT_ONCE][PANELS_V];
#pragma unroll
				for (int k = 0; k < AT_ONCE; k++)
#pragma unroll
					for (int panel = 0; panel < PANELS_V; panel++)
						if (BLOCKS_V % 8 == 0 || lane % 8 + 8 * panel < BLOCKS_V)
							cells[k][panel] = ld_shared_16(from + (row + 4 * k) * ROW_BYTES + panel * 128);
#pragma unroll
				for (int k = 0; k < AT_ONCE; k++, to += four)
#pragma unroll
					for (int panel = 0; panel < PANELS_V; panel++)
						if (row + 4 * k + lane / 8 < written && (BLOCKS_V % 8 == 0 || lane % 8 + 8 * panel < BLOCKS_V))
							st_global_16(to + panel * 64, cells[k][panel]);
			}
		}
		__syncwarp(); // readers of O before their arrival
		if (lane == 0)
			mbarrier_arrive(out.empty[group]);
	}
}
