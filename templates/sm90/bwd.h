// What Hopper's backward skeletons share. Warpgroup 0 loads: its first warp walks and writes the notes, its last warps prepare visits.
// Visits are numbered through: visit n has the buffers n % STAGES, whose phases count n / STAGES, and the note n % NOTES.

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

// The last COUNT threads of warpgroup 0 load inputs of visits. Those of rows are free with the note, those of cells with Q; the head's and the
// keys' have STAGES buffers, which take turns. keys_of(note): whose they are.
template <int COUNT, class Smem, class Buffers, class KeysOf>
DEVICE void visits_prepare(Smem &smem, const Buffers &staged, const fagen_abi &p, KeysOf keys_of)
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
		const Keys own = keys_of(smem.note[visit % NOTES]);
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
