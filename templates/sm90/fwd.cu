// Computing, the other warpgroups, of 64 rows each, and the kernel. fwd.h says how all of it goes together.

enum { BARRIER_TURN = 1, BARRIER_GROUP = BARRIER_TURN + 3 }; // ids of named barriers; one of each kind for each warpgroup

// Of a thread: the accumulators of S hold rows g, g + 8 of its warp's 16 and columns 2t, 2t + 1 of every 8-key block, as
// s[4 * block + 2 * (row half) + column]; those of O likewise. What is derived from the thread index is computed anew where it is used,
// and the item is read from shared memory: registers are full.
DEVICE int lane_row() { return (mov_tid_x() - GROUP_THREADS) / 32 * 16 + mov_tid_x() % 32 / 4; } // row g of the tile
DEVICE int lane_col() { return mov_tid_x() % 4 * 2; }                                             // 2t
// Of row g: its position in the tile and its head. Row g + 8 is so much further.
constexpr int HALF_POSITION = 8 / TILE_SLOTS, HALF_HEAD = 8 % TILE_SLOTS;
DEVICE int lane_position() { return row_position(lane_row()); }
DEVICE int lane_head() { return TILE_HEADS == 1 ? 0 : row_head(lane_row()); }

// What a warpgroup has of the item that it works on.
struct Attended {
	const int group, seat;
	const int keys; // length of the entry, where it has its own
	Note note;      // of the visit at hand
	unsigned visit; // its number
};

// A turn at the tensor core: after the products of the group before, and before those of the next.
DEVICE void turn_begin(int group)
{
	if constexpr (TAKE_TURNS)
		barrier_sync(BARRIER_TURN + group, 2 * GROUP_THREADS);
}
DEVICE void turn_end(int group)
{
	if constexpr (TAKE_TURNS)
		barrier_arrive(BARRIER_TURN + (group + 1) % WARPGROUPS, 2 * GROUP_THREADS);
}

// S = Q K^T of this warpgroup's rows.
DEVICE void scores_issue(float (&s)[TILE_N / 2], const Smem &smem, int group, int stage)
{
	product_ss<STEPS_QK, TILE_M, TILE_N>(s, wgmma_desc(smem.query[0][64 * group], 0), wgmma_desc(smem.key[stage], 0));
}

// O += P V.
DEVICE void values_issue(float (&acc)[HEAD_DIM_V / 2], unsigned (&prob)[TILE_N / 4], const Smem &smem, int stage)
{
	product_rs(acc, prob, wgmma_desc(smem.value[stage], TILE_N * 128));
}

// change(cell, row state, column state) for every accumulator of S.
template <class Change>
DEVICE void each_cell(float (&s)[TILE_N / 2], const fagen_abi &p, const Inputs &in, const Item &item, Change change)
{
	const int q = item.q0 + lane_position(), col = in.k0 + lane_col();
	const RowState low = row_state(&p, &in, item.b, item.h, q, col), high = row_state(&p, &in, item.b, item.h, q + HALF_POSITION, col);
#pragma unroll
	for (int j = 0; j < BLOCKS_N; j++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const ColState state = col_state(&p, &in, item.b, item.h, col, 8 * j + e);
			change(s[4 * j + e], low, state);
			change(s[4 * j + 2 + e], high, state);
		}
}

// What scores and masks of the visit that has this number, whose note is at hand, are computed from.
DEVICE Inputs visit_inputs(const Smem &smem, const Buffers &staged, const Attended &at, unsigned visit)
{
	return {staged.head(at.seat),           staged.rows(at.seat),    staged.cols(visit % NOTES),
	        staged.cells(visit % STAGES), smem.item[at.seat].q0, at.note.tile * TILE_N, at.note.bits};
}

// Score and mask of a visit. SHORT: the mask alone; the score, which rises with s, comes with the softmax.
template <bool SHORT>
DEVICE void scores_change(float (&s)[TILE_N / 2], Smem &smem, const Buffers &staged, const fagen_abi &p, const Attended &at, unsigned visit)
{
	if constexpr (VISIT_INPUTS)
		mbarrier_wait(smem.inputs_full[visit % NOTES], visit / NOTES & 1);
	const Item &item = smem.item[at.seat];
	const Inputs in = visit_inputs(smem, staged, at, visit);
	if constexpr (!SCORE_IDENTITY && !SHORT)
		each_cell(s, p, in, item,
		          [&](float &x, const RowState &row, const ColState &col) { x = score(x, row, col, &in); });
	if (at.note.tile_class != TILE_FULL)
		each_cell(s, p, in, item, [&](float &x, const RowState &row, const ColState &col) {
			x = mask_keep(row, col, &in) ? x : minus_infinity();
		});
}

// What is kept of the softmax of rows g, g + 8: the reference that P is taken against, and this thread's part of the sum of P.
struct Rows { float max[2], sum[2]; };

// Of a row that saw no key yet there is no maximum; it is taken against 0.
DEVICE float rows_reference(const Rows &rows, int r) { return rows.max[r] == minus_infinity() ? 0 : rows.max[r]; }

// Of the rows, in chains short enough that their latency hides.
DEVICE void rows_maximum(float (&most)[2], const float (&s)[TILE_N / 2])
{
	float part[2][4];
#pragma unroll
	for (int j = 0; j < BLOCKS_N; j++)
#pragma unroll
		for (int r = 0; r < 2; r++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				float &m = part[r][2 * (j % 2) + e];
				m = j < 2 ? s[4 * j + 2 * r + e] : fmaxf(m, s[4 * j + 2 * r + e]);
			}
#pragma unroll
	for (int r = 0; r < 2; r++)
		most[r] = quad_max(fmaxf(fmaxf(part[r][0], part[r][1]), fmaxf(part[r][2], part[r][3])));
}

// Those of the keys [begin, end) that the item has.
template <class Item> DEVICE void part_keys(int &begin, int &end, const Item &item)
{
	if (CUT && item.part < 0)
		return;
	begin = int_max(begin, item.first * TILE_N), end = int_min(end, (item.last + 1) * TILE_N);
}

// References of rows that have none yet and see something in the visit at hand, for a softmax that is not running: its maximum, and by
// how much positions may lift the others above it.
DEVICE void references_lift(const float (&s)[TILE_N / 2], Rows &rows, const fagen_abi &p, const Inputs &in, const Item &item)
{
	if (__any_sync(~0u, rows.max[0] == minus_infinity() || rows.max[1] == minus_infinity())) {
		float most[2];
		rows_maximum(most, s);
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const float m = most[r];
			if (rows.max[r] == minus_infinity() && m != minus_infinity()) {
				int begin = 0, end = 0x7fffffff;
				if constexpr (SPLITS > 1 || CUT)
					part_keys(begin, end, item);
				rows.max[r] = m + row_lift(p, in, item.b, item.h, item.q0 + lane_position() + HALF_POSITION * r, begin, end);
			}
		}
	}
}

// P in place of S. FIRST: the tile's maxima become the references. Running: references rise when they must, and `factor` is what
// older sums shrink by; returns whether one rose. Neither: they stay, but rows that have seen nothing yet get the tile's maximum, so that
// P of a row's only key is 1. SHORT: S is raw.
template <bool FIRST, bool SHORT> DEVICE bool softmax(float (&s)[TILE_N / 2], Rows &rows, float (&factor)[2], bool running)
{
	float shift[2];
	bool rise = false, large[2];
	if (FIRST || running || __any_sync(~0u, rows.max[0] == minus_infinity() || rows.max[1] == minus_infinity())) {
		float most[2];
		rows_maximum(most, s);
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const float highest = most[r], m = SHORT ? score_short(highest, 0) * (1 / LOGIT_SCALE) : highest;
			if constexpr (FIRST) {
				rows.max[r] = m, rows.sum[r] = 0;
			} else if (running) {
				const bool up = (m - rows.max[r]) * LOGIT_SCALE > LAZY_LOG2; // false when both are -inf
				factor[r] = up ? ex2((rows.max[r] - m) * LOGIT_SCALE) : 1;
				rows.max[r] = up ? m : rows.max[r];
				rows.sum[r] *= factor[r];
				rise |= up;
			} else {
				rows.max[r] = rows.max[r] == minus_infinity() ? m : rows.max[r];
			}
		}
	}
#pragma unroll
	for (int r = 0; r < 2; r++) {
		shift[r] = rows_reference(rows, r) * LOGIT_SCALE;
		large[r] = fabsf(shift[r]) > LARGE_LOGIT;
	}
	if ((FIRST || running) && __any_sync(~0u, large[0] || large[1])) { // of other rows nothing changes
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const float before = large[r] ? rows_reference(rows, r) : 0;
			shift[r] = large[r] ? 0 : shift[r];
#pragma unroll
			for (int j = 0; j < BLOCKS_N; j++)
				s[4 * j + 2 * r] -= before, s[4 * j + 2 * r + 1] -= before;
		}
	}
#pragma unroll
	for (int r = 0; r < 2; r++) {
		float even = 0, odd = 0;
#pragma unroll
		for (int j = 0; j < BLOCKS_N; j++) {
			float &a = s[4 * j + 2 * r], &b = s[4 * j + 2 * r + 1];
			a = ex2(SHORT ? score_short(a, shift[r]) : a * LOGIT_SCALE - shift[r]);
			b = ex2(SHORT ? score_short(b, shift[r]) : b * LOGIT_SCALE - shift[r]);
			even += a, odd += b;
		}
		rows.sum[r] += even + odd;
	}
	return rise;
}

// Dropout's words of the visit whose note is at hand, for the rows and keys of this thread's S; products are under way meanwhile. Made by other warps
// they cost as much.
DEVICE void words_make(unsigned (&word)[BLOCKS_64], const ItemShared &item, int tile)
{
	if constexpr (DROPOUT) {
#pragma unroll
		for (int block = 0; block < BLOCKS_64; block++)
			word[block] = dropout_bits(item.dropout, item.q0 + lane_row(), tile * TILE_N + 64 * block + lane_col());
	}
}

// P of the visit whose note is at hand as an operand: packed pairs, dropped ones cleared.
DEVICE void prob_pack(unsigned (&prob)[TILE_N / 4], const float (&s)[TILE_N / 2], const unsigned (&word)[BLOCKS_64], const Attended &at)
{
#pragma unroll
	for (int i = 0; i < TILE_N / 4; i++)
		prob[i] = cvt_rn_x2(s[2 * i], s[2 * i + 1], Element{});
	if constexpr (DROPOUT) {
		const int first = TILE_N < 64 ? at.note.tile * BLOCKS_N % 8 : 0; // of the block of 64 keys
#pragma unroll
		for (int j = 0; j < BLOCKS_N; j++) {
			// The decision of row half r and column parity e becomes the sign of byte 2r + e.
			const unsigned bits = word[j / 8] << (first + j % 8);
			prob[2 * j] &= prmt(bits, bits, 0x9988);
			prob[2 * j + 1] &= prmt(bits, bits, 0xBBAA);
		}
	}
}

// V of the visit at hand, before it is read.
DEVICE void value_wait(Smem &smem, const Attended &at)
{
	mbarrier_wait(smem.value_full[at.visit % STAGES], at.visit / STAGES & 1);
	if constexpr (LAYOUT != LAYOUT_DENSE) {
		const int rows = at.keys - at.note.tile * TILE_N;
		if (rows < TILE_N) {
			rows_clear(smem.value[at.visit % STAGES], rows);
			barrier_sync(BARRIER_GROUP + at.group, GROUP_THREADS); // writers of zeros before the products that read them
		}
	}
}

// S of a visit, whose note is at hand, is there: its keys are free, and after an item's last one its queries.
DEVICE void scores_done(Smem &smem, const Attended &at, unsigned visit)
{
	if (first_thread()) {
		mbarrier_arrive(smem.key_empty[visit % STAGES]);
		if (at.note.last)
			mbarrier_arrive(smem.query_empty[at.group]);
	}
}

// O of the visit at hand, when it is there: its values are free. LATER: products issued behind it, which are not waited for.
template <int LATER = 0> DEVICE void values_done(float (&acc)[HEAD_DIM_V / 2], Smem &smem, const Attended &at)
{
	wgmma_wait_group<LATER>();
	registers_pin(acc);
	if (first_thread())
		mbarrier_arrive(smem.value_empty[at.visit % STAGES]);
}

// All visits but the first: S of the next one and O of this one are under way together, and the softmax of the next under O's.
// Not TOGETHER: S follows O, whose P it takes the registers of.
// SHORT: with the short score, not running.
template <bool SHORT>
DEVICE void visits_attend(float (&acc)[HEAD_DIM_V / 2], unsigned (&prob)[TILE_N / 4], Rows &rows, Attended &at, Smem &smem,
                          const Buffers &staged, const fagen_abi &p, bool running)
{
#pragma unroll 1
	while (!at.note.last) {
		float s[TILE_N / 2], factor[2] = {1, 1};
		const unsigned next = at.visit + 1;
		if constexpr (TOGETHER)
			mbarrier_wait(smem.key_full[next % STAGES], next / STAGES & 1);
		else
			value_wait(smem, at);
		turn_begin(at.group);
		if constexpr (TOGETHER) {
			scores_issue(s, smem, at.group, next % STAGES);
			value_wait(smem, at);
			values_issue(acc, prob, smem, at.visit % STAGES);
		} else {
			values_issue(acc, prob, smem, at.visit % STAGES);
			values_done(acc, smem, at);
			mbarrier_wait(smem.key_full[next % STAGES], next / STAGES & 1);
			scores_issue(s, smem, at.group, next % STAGES);
		}
		turn_end(at.group);
		at.note = smem.note[next % NOTES];
		unsigned word[BLOCKS_64];
		words_make(word, smem.item[at.seat], at.note.tile);
		wgmma_wait_group<TOGETHER ? 1 : 0>(); // S
		registers_pin(s);
		scores_done(smem, at, next);
		scores_change<SHORT>(s, smem, staged, p, at, next);
		if constexpr (SCORE_LIFT != 0)
			if (!running)
				references_lift(s, rows, p, visit_inputs(smem, staged, at, next), smem.item[at.seat]);
		const bool rise = softmax<false, SHORT>(s, rows, factor, running);
		// Without turns O's products hide the softmax of their own group; with them, that of the others, and are long done.
		if (!TAKE_TURNS)
			known_here(rows.sum[0] + rows.sum[1]);
		if constexpr (TOGETHER)
			values_done(acc, smem, at);
		prob_pack(prob, s, word, at);
		if (running && __any_sync(~0u, rise)) {
#pragma unroll
			for (int j = 0; j < BLOCKS_V; j++)
#pragma unroll
				for (int r = 0; r < 2; r++)
					acc[4 * j + 2 * r] *= factor[r], acc[4 * j + 2 * r + 1] *= factor[r];
		}
		at.visit = next;
	}
}

// Elements from the first row of an entry to the row that is `row` behind that of position q and the first head of a tile.
struct Strides { long long seq, head; };
DEVICE long long row_at(Strides stride, int q, int row)
{
	return (q + row_position(row)) * stride.seq + row_head(row) * stride.head;
}

// OUT_WHOLE. Every item, of whatever kind, is a phase of its group's barriers: what the item before left of O may be overwritten; O of this one
// is there, or, with a kind to ITEM_PAUSE, is not.
DEVICE void out_wait(Smem &smem, int group, unsigned item)
{
	if constexpr (OUT_WHOLE)
		mbarrier_wait(out_shared(smem).empty[group], (item & 1) ^ 1);
}
// Is it a part of a tile, which leaves its results in the workspace?
template <class Item> DEVICE bool item_is_part(const Item &item)
{
	if constexpr (CUT)
		return item.part >= 0;
	return SPLITS > 1;
}

DEVICE void out_hand(Smem &smem, int group, int seat, int kind)
{
	if constexpr (OUT_WHOLE) {
		OutShared &out = out_shared(smem);
		if (first_thread())
			out.item[group] = {item_is_part(smem.item[seat]) && kind > ITEM_PAUSE ? ITEM_PAUSE : kind, smem.item[seat].b, smem.item[seat].h, smem.item[seat].q0};
		__syncwarp(); // writers of O and its item before their arrival
		if (mov_tid_x() % 32 == 0)
			mbarrier_arrive(out.full[group]);
	}
}

// O of this warp's rows, P's sums divided out by `scale`, to their place in OutShared.
DEVICE void out_stage(const float (&acc)[HEAD_DIM_V / 2], const float (&scale)[2], Smem &smem)
{
	const int lane = mov_tid_x() % 32;
	const unsigned to = cvta_shared(out_shared(smem).rows[(mov_tid_x() - GROUP_THREADS) / 32 * 16 + lane % 16]) + lane / 16 * 16;
#pragma unroll
	for (int j = 0; j < BLOCKS_V; j += 2) { // of an odd number the last is written twice, once to the chunk to spare
		const float *const o = &acc[4 * j], *const n = &acc[4 * (j + 1 < BLOCKS_V ? j + 1 : j)];
		stmatrix_x4(to + j * 16, cvt_rn_x2(o[0] * scale[0], o[1] * scale[0], Element{}), cvt_rn_x2(o[2] * scale[1], o[3] * scale[1], Element{}),
		            cvt_rn_x2(n[0] * scale[0], n[1] * scale[0], Element{}), cvt_rn_x2(n[2] * scale[1], n[3] * scale[1], Element{}));
	}
}

// O of this warp's rows, P's sums divided out by `scale`. The positions of an entry that are `written` begin at `out`, those of the warp at q.
// Staged, a warp writes whole lines: 128 bytes of four rows at a time.
DEVICE void out_store(const float (&acc)[HEAD_DIM_V / 2], const float (&scale)[2], unsigned short *out, Strides stride, int q, int written,
                      const Smem &smem)
{
	const int lane = mov_tid_x() % 32;
	if constexpr (!OUT_STAGED) {
#pragma unroll
		for (int r = 0; r < 2; r++)
			accumulators_store<HEAD_DIM_V>(out + (q + row_position(lane / 4) + HALF_POSITION * r) * stride.seq +
			                                       (row_head(lane / 4) + HALF_HEAD * r) * stride.head,
			                               acc, r, scale[r], lane % 4, true,
			                               q + row_position(lane / 4) + HALF_POSITION * r < written &&
			                                       !row_spare(row_head(lane / 4) + HALF_HEAD * r));
	} else {
		const unsigned staged = cvta_shared(&smem + 1) + (mov_tid_x() - GROUP_THREADS) / 32 * OUT_WARP_BYTES;
		// Of a lane: the row that it gives for stmatrix; row and 16-byte chunk of what it copies, whose swizzle repeats after 8 rows.
		const unsigned to = staged + lane % 16 * 128, from = staged + lane / 8 * 128;
		const unsigned chunk[2] = {((lane / 8 ^ lane) & 7) * 16u, ((lane / 8 ^ lane ^ 4) & 7) * 16u};
		unsigned short *row = out + row_at(stride, q, lane / 8) + lane % 8 * 8;
#pragma unroll
		for (int panel = 0; panel < PANELS_V; panel++) {
			const int blocks = panel + 1 < PANELS_V ? 8 : BLOCKS_V - 8 * panel;
#pragma unroll
			for (int j = 0; j < blocks; j += 2) {
				const float *const o = &acc[4 * (8 * panel + j)];
				stmatrix_x4(to + ((j + lane / 16) ^ lane % 8) * 16, cvt_rn_x2(o[0] * scale[0], o[1] * scale[0], Element{}),
				            cvt_rn_x2(o[2] * scale[1], o[3] * scale[1], Element{}), cvt_rn_x2(o[4] * scale[0], o[5] * scale[0], Element{}),
				            cvt_rn_x2(o[6] * scale[1], o[7] * scale[1], Element{}));
			}
			__syncwarp(); // writers of the rows before their readers
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const uint4 cells = ld_shared_16(from + i * 512 + chunk[i % 2]);
				if (q + row_position(lane / 8) + row_position(4 * i) < written && (blocks == 8 || lane % 8 < blocks) &&
				    !row_spare(row_head(lane / 8) + row_head(4 * i)))
					st_global_16(row + row_at(stride, 0, 4 * i) + 64 * panel, cells);
			}
			__syncwarp(); // and their readers before the writers of the next
		}
	}
}

// What a part leaves for fwd_merge.cu: of rows inside the length LSE, and where that is not -inf O. A tile's parts lie together, and h is
// any of its heads.
struct Part {
	float out[TILE_M][HEAD_DIM_V];
	float lse2[TILE_M]; // of the logits in base 2, without the sink
};
DEVICE Part *parts_of(const fagen_abi &p, int b, int h, int tile)
{
	return reinterpret_cast<Part *>(p.parts) +
	       (long long)tile_number(p.cu_seqlens_q, p.seqlen_q, p.heads_q / TILE_HEADS, b, h / TILE_HEADS, tile, TILE_Q) * SPLITS;
}
// With CUT, of the number-th tile that is cut.
DEVICE Part *parts_cut(const fagen_abi &p, unsigned number) { return reinterpret_cast<Part *>(p.parts) + (long long)number * p.cut_parts; }
template <class Item> DEVICE void part_store(const float (&acc)[HEAD_DIM_V / 2], const Rows &rows, const fagen_abi &p, const Item &item)
{
	Part &part = CUT ? parts_cut(p, 0)[item.part] : parts_of(p, item.b, item.h, item.q0 / TILE_Q)[item.part];
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const int row = lane_row() + 8 * r;
		const float sum = rows.sum[r], scale = 256.0f / KEEP_256 * rcp(sum);
		if (item.q0 + row_position(row) >= sequence_q(&p, item.b))
			continue;
		if (mov_tid_x() % 4 == 0)
			part.lse2[row] = sum == 0 ? minus_infinity() : rows_reference(rows, r) * LOGIT_SCALE + lg2(sum);
		if (sum == 0)
			continue;
#pragma unroll
		for (int j = 0; j < BLOCKS_V; j++)
			*reinterpret_cast<float2 *>(&part.out[row][8 * j + lane_col()]) =
				make_float2(acc[4 * j + 2 * r] * scale, acc[4 * j + 2 * r + 1] * scale);
	}
}

// O and LSE of this warpgroup's rows.
DEVICE void rows_store(float (&acc)[HEAD_DIM_V / 2], const Rows &rows, const Buffers &staged, const fagen_abi &p, Smem &smem, int seat)
{
	const Item item = smem.item[seat];
	if constexpr (SPLITS > 1 || CUT)
		if (item_is_part(item)) {
			part_store(acc, rows, p, item);
			return;
		}
	const int first = first_q(&p, item.b), written = slot_q(&p, item.b), q = item.q0 + lane_position(), head = lane_head();
	float sink2[2] = {0, 0}; // base 2
	if constexpr (SINK) {
		const Inputs in = {staged.head(seat), staged.rows(seat), staged.cols(0), staged.cells(0), item.q0, 0, 0};
#pragma unroll
		for (int r = 0; r < 2; r++)
			sink2[r] = (TILE_HEADS == 1 ? sink_logit(&in) : sink_plain(&p, item.b, item.h + int_min(head + HALF_HEAD * r, TILE_HEADS - 1))) * LOG2_E;
	}
	float scale[2], lse2[2];
	bool nothing = false;
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const float sum = rows.sum[r];
		// A row without visible keys: O = 0, and the sink, if any, is all of LSE.
		lse2[r] = sum == 0 ? minus_infinity() : rows_reference(rows, r) * LOGIT_SCALE + lg2(sum);
		scale[r] = 256.0f / KEEP_256 * rcp(sum);
		if constexpr (SINK) {
			const float keys2 = lse2[r], high = fmaxf(keys2, sink2[r]);
			if (high != minus_infinity()) {
				lse2[r] = high + lg2(ex2(keys2 - high) + ex2(sink2[r] - high));
				scale[r] *= ex2(keys2 - lse2[r]);
			}
		}
		const bool used = LAYOUT == LAYOUT_DENSE || q + HALF_POSITION * r < sequence_q(&p, item.b); // full tiles do not hide other rows
		lse2[r] = used ? lse2[r] : minus_infinity();
		scale[r] = used && sum != 0 ? scale[r] : 0;
		nothing |= scale[r] == 0;
	}
	if (__any_sync(~0u, nothing)) // O of such rows may be infinite or NaN where V is
#pragma unroll
		for (int i = 0; i < HEAD_DIM_V / 2; i++)
			acc[i] = scale[i / 2 % 2] == 0 ? 0 : acc[i];
	if constexpr (OUT_WHOLE) {
		out_stage(acc, scale, smem);
	} else {
		unsigned short *const out =
			reinterpret_cast<unsigned short *>(p.out.data) + entry_offset(p.out, item.b, first) + item.h * p.out.stride_head;
		out_store(acc, scale, out, {p.out.stride_seq, p.out.stride_head}, item.q0 + (mov_tid_x() - GROUP_THREADS) / 32 * 16 / TILE_SLOTS,
		          written, smem);
	}
	if constexpr (WRITE_LSE) {
		float *const lse = reinterpret_cast<float *>(p.lse.data) + entry_offset(p.lse, item.b, first) + (item.h + head) * p.lse.stride_head;
#pragma unroll
		for (int r = 0; r < 2; r++)
			if (mov_tid_x() % 4 == 0 && q + HALF_POSITION * r < written && !row_spare(head + HALF_HEAD * r))
				lse[(q + HALF_POSITION * r) * p.lse.stride_seq + HALF_HEAD * r * p.lse.stride_head] = LN_2 * lse2[r];
	}
}

// Did the short score do for row half r, by its logits' sum? A logit above the range would alone make the sum as large. Those below it are
// wrong, but so small that all keys of the entry together would not matter, 2^-REACH_BITS of the sum.
constexpr float REACH_BITS = 16;
DEVICE bool row_in_reach(const Rows &rows, int r, const Item &item, const fagen_abi &p)
{
	const float lse2 = rows_reference(rows, r) * LOGIT_SCALE + lg2(rows.sum[r]);
	return lse2 < SHORT_LOGIT && lse2 > lg2(sequence_k(&p, item.b)) + (REACH_BITS - SHORT_LOGIT);
}

// Are these rows what they would be with a running maximum, up to rounding?
DEVICE bool rows_trusted(const float (&acc)[HEAD_DIM_V / 2], const Rows &rows, const Item &item, const fagen_abi &p)
{
	bool trusted = true;
#pragma unroll
	for (int r = 0; r < 2; r++) {
		if constexpr (TILE_SLOTS != TILE_HEADS)
			if (row_spare(lane_head() + HALF_HEAD * r))
				continue;
		float finite[4] = {}; // NaN as soon as something is infinite or NaN
#pragma unroll
		for (int j = 0; j < BLOCKS_V; j++)
#pragma unroll
			for (int e = 0; e < 2; e++)
				finite[2 * (j % 2) + e] += acc[4 * j + 2 * r + e] * 0.0f;
		const bool nothing = !SCORE_SHORT && rows.max[r] == minus_infinity(); // seen: exact. A short score may have sunk that far
		const bool good = fabsf(rows.max[r] * LOGIT_SCALE) <= TRUSTED_LOGIT && sum_trusted(rows.sum[r], finite[0] + finite[1] + finite[2] + finite[3]) &&
		                  (!SCORE_SHORT || row_in_reach(rows, r, item, p));
		trusted &= nothing || good || item.q0 + lane_position() + HALF_POSITION * r >= sequence_q(&p, item.b);
	}
	return trusted;
}

// S of the first visit of an item. Returns whether there is one; if not S is of anything, and nobody looks at it.
DEVICE bool first_scores_issue(float (&s)[TILE_N / 2], Smem &smem, int group, unsigned item, unsigned visit)
{
	mbarrier_wait(smem.query_full[group], item & 1);
	if constexpr (INPUTS)
		mbarrier_wait(smem.item_inputs_full[item % 2], item / 2 & 1);
	const bool some = smem.item[item % 2].kind >= ITEM_SPECULATIVE;
	if (some)
		mbarrier_wait(smem.key_full[visit % STAGES], visit / STAGES & 1);
	scores_issue(s, smem, group, visit % STAGES);
	return some;
}

// One item that sees something; s holds S of its first visit, and at the end that of the next item's. Returns whether it must be done again.
DEVICE bool item_attend(float (&s)[TILE_N / 2], bool &some, Smem &smem, const Buffers &staged, const fagen_abi &p, Attended &at, unsigned i)
{
	float acc[HEAD_DIM_V / 2]; // O, unnormalised
	unsigned prob[TILE_N / 4];
	Rows rows;
	{
		float factor[2];
		at.note = smem.note[at.visit % NOTES];
		unsigned word[BLOCKS_64];
		words_make(word, smem.item[at.seat], at.note.tile);
		scores_done(smem, at, at.visit);
		scores_change<false>(s, smem, staged, p, at, at.visit);
		if constexpr (SPECULATE && SCORE_LIFT != 0) { // as later visits, with rows that have seen nothing
			const Item &item = smem.item[at.seat];
			rows = {{minus_infinity(), minus_infinity()}, {0, 0}};
			if (item.kind == ITEM_SPECULATIVE)
				references_lift(s, rows, p, visit_inputs(smem, staged, at, at.visit), item);
			softmax<false, false>(s, rows, factor, item.kind != ITEM_SPECULATIVE);
		} else {
			softmax<true, false>(s, rows, factor, true);
		}
		prob_pack(prob, s, word, at);
	}
#pragma unroll
	for (int i = 0; i < HEAD_DIM_V / 2; i++)
		acc[i] = 0;
	const bool speculative = SPECULATE && smem.item[at.seat].kind == ITEM_SPECULATIVE;
	if (SCORE_SHORT && speculative)
		visits_attend<SCORE_SHORT>(acc, prob, rows, at, smem, staged, p, false);
	else
		visits_attend<false>(acc, prob, rows, at, smem, staged, p, SCORE_SHORT || !speculative);
	value_wait(smem, at);
	turn_begin(at.group); // as for every other visit: so groups stay apart across items
	values_issue(acc, prob, smem, at.visit % STAGES);
	if constexpr (TOGETHER)
		some = first_scores_issue(s, smem, at.group, i + 1, at.visit + 1); // under the end of this item
	turn_end(at.group);
#pragma unroll
	for (int r = 0; r < 2; r++)
		rows.sum[r] = quad_sum(rows.sum[r]);
	values_done<TOGETHER ? 1 : 0>(acc, smem, at);
	at.visit++;
	if constexpr (!TOGETHER)
		some = first_scores_issue(s, smem, at.group, i + 1, at.visit);
	const bool again = speculative &&
	                   barrier_red_or(BARRIER_GROUP + at.group, GROUP_THREADS, !rows_trusted(acc, rows, smem.item[at.seat], p));
	out_wait(smem, at.group, i);
	if (!again)
		rows_store(acc, rows, staged, p, smem, at.seat);
	out_hand(smem, at.group, at.seat, again ? ITEM_PAUSE : ITEM_RUNNING);
	wgmma_wait_group<0>(); // S
	registers_pin(s);
	return again;
}

DEVICE void items_attend(Smem &smem, const Buffers &staged, const fagen_abi &p)
{
	const int group = warp_uniform((mov_tid_x() - GROUP_THREADS) / GROUP_THREADS);
	if (TAKE_TURNS && group == WARPGROUPS - 1)
		barrier_arrive(BARRIER_TURN, 2 * GROUP_THREADS); // group 0 begins
	unsigned visit = 0;
	float s[TILE_N / 2];
	bool some = first_scores_issue(s, smem, group, 0, 0);
	wgmma_wait_group<0>();
	registers_pin(s);
#pragma unroll 1
	for (unsigned i = 0;; i++) {
		const int seat = i % 2;
		const int kind = smem.item[seat].kind, b = smem.item[seat].b;
		if (kind == ITEM_END) {
			out_wait(smem, group, i);
			out_hand(smem, group, seat, ITEM_END);
			break;
		}
		bool again = false;
		if (some) {
			Attended at = {group, seat, LAYOUT == LAYOUT_DENSE ? 0 : sequence_k(&p, b), {}, visit};
			again = item_attend(s, some, smem, staged, p, at, i);
			visit = at.visit;
		} else {
			if (first_thread())
				mbarrier_arrive(smem.query_empty[group]);
			out_wait(smem, group, i);
			if (kind == ITEM_EMPTY) {
				float acc[HEAD_DIM_V / 2] = {};
				rows_store(acc, {{0, 0}, {0, 0}}, staged, p, smem, seat);
			}
			out_hand(smem, group, seat, kind);
			some = first_scores_issue(s, smem, group, i + 1, visit);
			wgmma_wait_group<0>();
			registers_pin(s);
		}
		if (again && first_thread())
			smem.failed[seat] = 1;
		__syncwarp(); // the warp's readers of the seat, and the verdict, before its arrival
		if (mov_tid_x() % 32 == 0)
			mbarrier_arrive(smem.item_done[seat]);
	}
	if (TAKE_TURNS && group == 0)
		barrier_sync(BARRIER_TURN, 2 * GROUP_THREADS); // the arrival that group 0 has not used
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS_SM)
	fagen_forward(const __grid_constant__ fagen_abi p, const __grid_constant__ fagen_abi_maps maps)
{
	extern __shared__ __align__(1024) unsigned char smem_bytes[];
	Smem &smem = *reinterpret_cast<Smem *>(smem_bytes);
	const Buffers staged(smem_bytes + sizeof(Smem) + OUT_BYTES);
	if (threadIdx.x == 0) {
		for (int i = 0; i < STAGES; i++) {
			mbarrier_init(smem.key_full[i], 1);
			mbarrier_init(smem.key_empty[i], WARPGROUPS);
			mbarrier_init(smem.value_full[i], 1);
			mbarrier_init(smem.value_empty[i], WARPGROUPS);
		}
		for (int i = 0; i < NOTES; i++) {
			mbarrier_init(smem.note_full[i], 1);
			mbarrier_init(smem.inputs_full[i], VISIT_INPUTS ? HELPER_THREADS : 1);
		}
		for (int i = 0; i < 2; i++) {
			mbarrier_init(smem.item_full[i], 1);
			mbarrier_init(smem.item_inputs_full[i], INPUTS ? HELPER_THREADS : 1);
			mbarrier_init(smem.item_done[i], 4 * WARPGROUPS);
			smem.failed[i] = 0;
		}
		smem.round = 0;
		for (int i = 0; i < WARPGROUPS; i++) {
			mbarrier_init(smem.query_full[i], 1);
			mbarrier_init(smem.query_empty[i], 1);
			if constexpr (OUT_WHOLE) {
				mbarrier_init(out_shared(smem).full[i], 4);
				mbarrier_init(out_shared(smem).empty[i], 1);
			}
		}
		fence_mbarrier_init();
	}
	__syncthreads(); // barriers before their users
	const int group = warp_uniform(threadIdx.x / GROUP_THREADS), warp = warp_uniform(threadIdx.x / 32);
	if (group == 0) {
		setmaxnreg_dec<LOAD_REGISTERS>();
		if (warp == 0)
			tiles_load(smem, p, maps);
		else if (HELPER_THREADS)
			helpers_prepare(smem, staged, p);
		else if (OUT_WHOLE && warp <= WARPGROUPS)
			rows_send(out_shared(smem), p, warp - 1);
	} else {
		setmaxnreg_inc<COMPUTE_REGISTERS>();
		items_attend(smem, staged, p);
	}
}
