// Gradients of inputs, after bwd.cu and grad_sum.cu in the same text; input_grad_cols.cu follows. The gradient of an element is the sum of G
// over the cells whose score reads it, G = dS * d score / d element. Sums are taken in an order that only the shape decides:
// results are bitwise equal from run to run. There are no atomics; what several CTAs share passes through partial sums in
// the workspace.
//
// A slot is the gradient of one input; GradKind says how its elements lie to tiles:
//   table   a table of a head: each CTA sums its tiles into tables in shared memory, one for each of GRAD_TABLES warps
//   row     one or several elements of a query row: the CTA of the query tile has all its cells
//   col     one of a key: the same in fagen_input_grad_cols, whose CTAs own key tiles
//   cell    one of a cell: written as it is computed
// Which heads and batch entries share an element is what grad_address says: heads are sharers when their addresses agree.
// Partial sums are added over the sharers by the CTAs of all of them. The cells of an input that n heads share are split among
// their CTAs by key tile: sharer i of n takes every n-th tile, and adds the G of all n heads, one after the other.

constexpr bool GRAD_SPREAD = GRAD_CELL_SPREAD || GRAD_DIAG_SPREAD; // G of a tile passes through shared memory
constexpr int GRAD_STRIDE = TILE_N + 8;                            // floats of a row of it: free of bank conflicts
constexpr int GRAD_SUMS = GRAD_ACCESSES > 0 ? GRAD_ACCESSES : 1;           // sums of a lane

// How warps share S and dP; here neither dK nor dV waits beside them.
using ShareG = Share<TILE_M / 16, TILE_N / 16, DROPOUT ? (TILE_N < 64 ? TILE_N : 64) / 16 : 0, 16, ACCUMULATORS>;
constexpr int BLOCKS_G = ShareG::BLOCKS, STEPS_G = ShareG::STEPS;

// Warps that add to tables, each to its own.
DEVICE constexpr int grad_tables()
{
	int tables = GRAD_SPREAD ? WARPS : 1;
	while (tables > 1 && tables * GRAD_TABLE_FLOATS * 4 > 16384)
		tables /= 2;
	return tables;
}
constexpr int GRAD_TABLES = grad_tables();

// One side stays, the other streams through one buffer (two of the statistics). The next tile loads while G is summed.
struct alignas(16) GradSmem {
	unsigned short query[TILE_M * CHUNKS_QK * 8];
	unsigned short dout[TILE_M * CHUNKS_V * 8];
	unsigned short key[TILE_N * CHUNKS_QK * 8];
	unsigned short value[TILE_N * CHUNKS_V * 8];
	Statistics rows[2];
	WalkShared walk;
};
// Behind the staged inputs of fagen_input_grad: G [TILE_M][GRAD_STRIDE], the tables [GRAD_TABLES][GRAD_TABLE_FLOATS], and
// the sums of rows, for each row slot [TILE_M][entries].
using GradBuffers = Staged<1, 1, 2, 2>;
constexpr int GRAD_CELLS_AT = sizeof(GradSmem) + GradBuffers::BYTES;
constexpr int GRAD_TABLES_AT = GRAD_CELLS_AT + (GRAD_SPREAD ? 4 * TILE_M * GRAD_STRIDE : 0);
constexpr int GRAD_ROWS_AT = GRAD_TABLES_AT + 4 * GRAD_TABLES * GRAD_TABLE_FLOATS;
static_assert((GRAD_ROWS_AT + 4 * TILE_M * GRAD_ROW_FLOATS + 15) / 16 * 16 == GRAD_SMEM_BYTES,
              "shared memory of fagen_input_grad and gen/model_sm80_grad.c disagree");

// ---- the cells of one tile ----

// This lane's first row and first column in a tile.
DEVICE int grad_row() { return ShareG::down() * 16 * BLOCKS_G + mov_tid_x() % 32 / 4; }
DEVICE int grad_col() { return ShareG::across() * 16 * STEPS_G + mov_tid_x() % 4 * 2; }

struct GradTile {
	const fagen_abi *p;
	Inputs in;
	int b, h;
	bool partial;
};

// visit(i, j, e): the cell's accumulator; its row and column in the tile; their states.
template <class Visit_> DEVICE void grad_each(const GradTile &at, Visit_ visit)
{
	const int row_g = grad_row(), col_2t = grad_col();
#pragma unroll
	for (int i = 0; i < BLOCKS_G; i++)
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const int row_in = row_g + 16 * i + 8 * r;
			const RowState row = row_state(at.p, &at.in, at.b, at.h, at.in.q0 + row_in, at.in.k0 + col_2t);
#pragma unroll
			for (int j = 0; j < 2 * STEPS_G; j++)
#pragma unroll
				for (int e = 0; e < 2; e++)
					visit(i, j, 2 * r + e, row_in, col_2t + 8 * j + e, row,
					      col_state(at.p, &at.in, at.b, at.h, at.in.k0 + col_2t, 8 * j + e));
		}
}

// From S and dP, in place: dP becomes dS by the natural logit, 0 where the cell is hidden.
DEVICE void grad_dscores(const float (&s)[BLOCKS_G][2 * STEPS_G][4], float (&dp)[BLOCKS_G][2 * STEPS_G][4],
                         const Statistics &rows, const GradTile &at)
{
	unsigned kept[BLOCKS_G][(2 * STEPS_G + 7) / 8];
	if constexpr (DROPOUT) {
		const DropoutKey key = dropout_key(*at.p, at.b, at.h);
#pragma unroll
		for (int i = 0; i < BLOCKS_G; i++)
#pragma unroll
			for (int w = 0; w < (2 * STEPS_G + 7) / 8; w++) {
				const int k = at.in.k0 + grad_col() + 64 * w;
				kept[i][w] = dropout_bits(key, at.in.q0 + grad_row() + 16 * i, k) << (k / 8 % 8);
			}
	}
	grad_each(at, [&](int i, int j, int e, int row_in, int col_in, RowState row, ColState col) {
		float x = dp[i][j][e];
		if constexpr (DROPOUT) {
			const unsigned sign = prmt(kept[i][j / 8] << (j % 8), 0, 0x8888 + 0x1111 * e);
			x = __uint_as_float(__float_as_uint(x) & sign) * KEEP_SCALE;
		}
		const float logit2 = score(s[i][j][e], row, col, &at.in) * LOGIT_SCALE;
		x = ex2(fminf(logit2 - rows.lse2[row_in], 0)) * (x - rows.delta[row_in]);
		if (at.partial && !mask_keep(row, col, &at.in))
			x = 0;
		dp[i][j][e] = x;
	});
}

// G of one access at one cell. The derivative of a hidden cell may be anything, NaN too.
DEVICE float grad_cell(int access, float s, float ds, RowState row, ColState col, const GradTile &at)
{
	return ds == 0 ? 0 : ds * input_grad(access, s, row, col, &at.in);
}

// table[index] += value for each lane whose index is not negative; equal indexes are added up first, as a tree over their
// lanes. All lanes of the warp call it, and nobody else adds to the table.
DEVICE void table_add(float *table, int index, float value)
{
	const unsigned lane = threadIdx.x % 32;
	const unsigned equal = __match_any_sync(~0u, index);
	unsigned rank = __popc(equal & ((1u << lane) - 1));
	const bool first = rank == 0;
	unsigned after = index < 0 ? 0 : equal & ~(~0u >> (31 - lane)); // lanes still to be added to this one
	while (__any_sync(~0u, after != 0)) {
		const int next = __ffs(after);
		const float other = __shfl_sync(~0u, value, next > 0 ? next - 1 : lane);
		if (next > 0)
			value += other;
		after &= __ballot_sync(~0u, (rank & 1) == 0); // odd ranks have been added to the rank before
		rank /= 2;
	}
	if (first && index >= 0)
		table[index] += value;
	__syncwarp();
}

// The cells at `in`; rows past the end make a full tile partial.
DEVICE GradTile grad_tile(const fagen_abi &p, const Inputs &in, int b, int h, int tile_class)
{
	GradTile at = {&p, in, b, h, tile_class != TILE_FULL || in.q0 + TILE_M > sequence_q(&p, b)};
	if (at.partial)
		at.in.bits = tile_class == TILE_FULL ? ~0ull : block_bits(p, b, h, in.q0, in.k0);
	return at;
}

// Q, dO and statistics of a query tile, by cp.async.
DEVICE void grad_load_rows(GradSmem &smem, int buffer, const fagen_abi &p, int b, int h, int tile)
{
	tile_load<TILE_M, HEAD_DIM_QK, CHUNKS_QK, THREADS>(cvta_shared(smem.query),
	                                                   head_address(p.query, b, h, first_q(&p, b)),
	                                                   p.query.stride_seq, tile * TILE_M, sequence_q(&p, b));
	tile_load<TILE_M, HEAD_DIM_V, CHUNKS_V, THREADS>(cvta_shared(smem.dout),
	                                                 head_address(p.dout, b, h, first_q(&p, b)), p.dout.stride_seq,
	                                                 tile * TILE_M, sequence_q(&p, b));
	const auto *from = reinterpret_cast<const char *>(tile_statistics(p, tile_index(p, b, h, tile)));
	for (int chunk = threadIdx.x; chunk < (int)sizeof(Statistics) / 16; chunk += THREADS)
		cp_async_16_zfill(cvta_shared(&smem.rows[buffer]) + 16 * chunk, from + 16 * chunk, true);
}

// What the CTA of a query tile sums.
struct GradSums {
	float *cells, *tables, *rows; // in shared memory
};

// Adds G of a tile, in shared memory, to this warp's table: along diagonals, or cell by cell.
DEVICE void grad_add_diagonals(int access, const GradSums &sums, const GradTile &at)
{
	const int slot = grad_slot(access), warp = threadIdx.x / 32;
	if (warp >= GRAD_TABLES)
		return;
	float *const table = sums.tables + warp * GRAD_TABLE_FLOATS + grad_base(slot);
#pragma unroll 1
	for (int first = warp * 32; first < TILE_M + TILE_N - 1; first += GRAD_TABLES * 32) {
		const int diagonal = first + threadIdx.x % 32 - (TILE_N - 1); // row - column
		const int row0 = int_max(diagonal, 0), row1 = int_min(TILE_M, TILE_N + diagonal);
		float value = 0;
#pragma unroll 8
		for (int row = row0; row < row1; row++)
			value += sums.cells[row * GRAD_STRIDE + row - diagonal];
		const int q = at.in.q0 + row0, k = at.in.k0 + row0 - diagonal;
		const bool inside =
			row0 < row1 && q < sequence_q(at.p, at.b) && k < sequence_k(at.p, at.b) && value != 0;
		table_add(table, inside ? grad_index(access, at.p, at.b, at.h, q, k) : -1, value);
	}
}
DEVICE void grad_add_cells(int access, const GradSums &sums, const GradTile &at)
{
	const int slot = grad_slot(access), warp = threadIdx.x / 32;
	const bool of_row = grad_kind(slot) == GRAD_ROW; // the rows of a warp have their own tables
	const int warps = of_row ? WARPS : GRAD_TABLES;
	if (warp >= warps)
		return;
#pragma unroll 1
	for (int row = warp; row < TILE_M; row += warps) {
		float *const table = of_row ? sums.rows + TILE_M * grad_base(slot) + row * grad_entries(slot)
		                            : sums.tables + warp * GRAD_TABLE_FLOATS + grad_base(slot);
#pragma unroll 1
		for (int col = threadIdx.x % 32; col < TILE_N; col += 32) {
			const float value = sums.cells[row * GRAD_STRIDE + col];
			const int q = at.in.q0 + row, k = at.in.k0 + col;
			const bool inside = q < sequence_q(at.p, at.b) && k < sequence_k(at.p, at.b) && value != 0;
			table_add(table, inside ? grad_index(access, at.p, at.b, at.h, q, k) : -1, value);
		}
	}
}

// ---- the kernel of a query tile ----

// What this lane sums in registers: elements of the head, and of its rows.
struct GradLane {
	float head[GRAD_SUMS], row[GRAD_SUMS][BLOCKS_G][2];
};

// Adds G of a tile for the accesses of the set `active`. `alone`: nobody else adds to the cells.
DEVICE void grad_add(unsigned active, bool alone, const float (&s)[BLOCKS_G][2 * STEPS_G][4],
                     const float (&ds)[BLOCKS_G][2 * STEPS_G][4], const GradTile &at, const GradSums &sums,
                     GradLane &lane)
{
#pragma unroll
	for (int a = 0; a < GRAD_ACCESSES; a++) {
		if (!(active >> a & 1))
			continue;
		const int slot = grad_slot(a), kind = grad_kind(slot);
		const bool spread =
			kind == GRAD_TABLE ? grad_spread(a) != SPREAD_HEAD : kind == GRAD_ROW && grad_entries(slot) > 1;
		grad_each(at, [&](int i, int j, int e, int row_in, int col_in, RowState row, ColState col) {
			const float g = grad_cell(a, s[i][j][e], ds[i][j][e], row, col, at);
			if (spread) {
				sums.cells[row_in * GRAD_STRIDE + col_in] = g;
			} else if (kind == GRAD_TABLE) {
				lane.head[a] += g;
			} else if (kind == GRAD_ROW) {
				lane.row[a][i][e / 2] += g;
			} else if (g != 0) { // not hidden, not past the lengths
				float *const to =
					grad_address(slot, at.p, at.b, at.h, 0, at.in.q0 + row_in, at.in.k0 + col_in);
				*to = alone ? g : *to + g;
			}
		});
		if (spread) {
			__syncthreads(); // writers of G before its readers
			if (kind == GRAD_TABLE && grad_spread(a) == SPREAD_DIAG)
				grad_add_diagonals(a, sums, at);
			else
				grad_add_cells(a, sums, at);
			__syncthreads(); // its readers before the writers of the next
		}
	}
}

// One walk over key tiles is for a set of accesses and for one head after the other.
struct GradPass {
	unsigned active;
	int head, turn, turns; // its first head; of the key tiles every one that is `turn` modulo `turns`
	const float *home;
};

// Pass -1: the CTA's own head, for all but shared cells. Pass a: all heads that share the cells of access a.
DEVICE GradPass grad_pass(const fagen_abi &p, int pass, int own_head)
{
	GradPass to = {0, own_head, 0, 1, 0};
	for (int a = 0; a < GRAD_ACCESSES; a++) {
		const int slot = grad_slot(a), kind = grad_kind(slot), heads = p.batch * p.heads_q;
		if (grad_elements(slot, &p) == 0 || (pass >= 0 && pass != a))
			continue;
		if (pass < 0 && (kind == GRAD_TABLE || kind == GRAD_ROW))
			to.active |= 1u << a;
		if (kind != GRAD_CELL)
			continue;
		const float *const home = grad_home(slot, p, own_head);
		const int first = grad_sharer(slot, p, home, 0);
		const bool alone = first == own_head && grad_sharer(slot, p, home, own_head + 1) == heads;
		if (alone != (pass < 0))
			continue;
		to.active |= 1u << a;
		if (alone)
			continue;
		to.head = first, to.turns = 0, to.home = home;
		for (int head = first; head < heads; head = grad_sharer(slot, p, home, head + 1)) {
			to.turn += head < own_head;
			to.turns++;
		}
	}
	return to;
}

// Adds what the lanes have in registers to the sums in shared memory, one warp after the other, and writes them.
DEVICE void grad_finish(const fagen_abi &p, int head, int tile, const HeadInputs *head_inputs, const GradSums &sums,
                        GradLane &lane)
{
	const int b = head / p.heads_q, h = head % p.heads_q, warp = threadIdx.x / 32;
	float sink = 0;
	if constexpr (GRAD_SINK >= 0) { // of a row: -share of the sink * delta
		const Inputs in = {head_inputs, 0, 0, 0, 0, 0, 0};
		const float sink2 = sink_logit(&in) * LOG2_E;
		const Statistics *const rows = tile_statistics(p, tile_index(p, b, h, tile));
		for (int row = threadIdx.x; row < TILE_M; row += THREADS)
			sink -= ex2(fminf(sink2 - rows->lse2[row], 0)) * rows->delta[row];
		for (int i = 16; i > 0; i /= 2)
			sink += __shfl_xor_sync(~0u, sink, i);
	}
#pragma unroll
	for (int a = 0; a < GRAD_ACCESSES; a++) {
		for (int i = 16; i > 0; i /= 2)
			lane.head[a] += __shfl_xor_sync(~0u, lane.head[a], i);
#pragma unroll
		for (int i = 0; i < BLOCKS_G; i++)
#pragma unroll
			for (int r = 0; r < 2; r++) {
				lane.row[a][i][r] += __shfl_xor_sync(~0u, lane.row[a][i][r], 1);
				lane.row[a][i][r] += __shfl_xor_sync(~0u, lane.row[a][i][r], 2);
			}
	}
	for (int turn = 0; turn < WARPS; turn++) {
		__syncthreads(); // one warp after the other
		if (warp != turn)
			continue;
		if (GRAD_SINK >= 0 && threadIdx.x % 32 == 0)
			sums.tables[grad_base(GRAD_SINK)] += sink;
#pragma unroll
		for (int a = 0; a < GRAD_ACCESSES; a++) {
			const int slot = grad_slot(a), kind = grad_kind(slot);
			if (kind == GRAD_TABLE && grad_spread(a) == SPREAD_HEAD && threadIdx.x % 32 == 0)
				sums.tables[grad_base(slot) + grad_index(a, &p, b, h, 0, 0)] += lane.head[a];
			if (kind == GRAD_ROW && grad_entries(slot) == 1 && threadIdx.x % 4 == 0)
#pragma unroll
				for (int i = 0; i < BLOCKS_G; i++)
#pragma unroll
					for (int r = 0; r < 2; r++)
						sums.rows[TILE_M * grad_base(slot) + grad_row() + 16 * i + 8 * r] +=
							lane.row[a][i][r];
		}
	}
	__syncthreads(); // writers of the sums before their readers
	float *const to = grad_partial(p, head, tile);
	for (int i = threadIdx.x; i < GRAD_TABLE_FLOATS; i += THREADS) {
		float sum = 0;
		for (int table = 0; table < GRAD_TABLES; table++)
			sum += sums.tables[table * GRAD_TABLE_FLOATS + i];
		to[i] = sum;
	}
	for (int i = threadIdx.x; i < TILE_M * GRAD_ROW_FLOATS; i += THREADS)
		to[GRAD_TABLE_FLOATS + i] = sums.rows[i];
}

// One query tile of one head: its partial sums, and its part of the gradients of cells.
extern "C" __global__ void __launch_bounds__(THREADS, 1) fagen_input_grad(const __grid_constant__ fagen_abi p)
{
	extern __shared__ __align__(128) unsigned char smem_bytes[];
	GradSmem &smem = *reinterpret_cast<GradSmem *>(smem_bytes);
	const GradBuffers staged(smem_bytes + sizeof(GradSmem));
	const GradSums sums = {reinterpret_cast<float *>(smem_bytes + GRAD_CELLS_AT),
	                       reinterpret_cast<float *>(smem_bytes + GRAD_TABLES_AT),
	                       reinterpret_cast<float *>(smem_bytes + GRAD_ROWS_AT)};
	if (!grad_wanted(p))
		return;
	const Owned own = query_item(p, blockIdx.x, query_sections(p));
	const int heads = p.batch * p.heads_q;
	const int own_tile = own.tile, own_head = own.b * p.heads_q + own.h, q0 = own_tile * TILE_M;
	if (own_tile < 0)
		return;

	for (int i = threadIdx.x; i < GRAD_TABLES * GRAD_TABLE_FLOATS; i += THREADS)
		sums.tables[i] = 0;
	for (int i = threadIdx.x; i < TILE_M * GRAD_ROW_FLOATS; i += THREADS)
		sums.rows[i] = 0;
	GradLane lane = {};

#pragma unroll 1
	for (int pass = -1; pass < GRAD_ACCESSES; pass++) {
		const GradPass of = grad_pass(p, pass, own_head);
#pragma unroll 1
		for (int head = of.active ? of.head : heads; head < heads;
		     head = pass < 0 ? heads : grad_sharer(grad_slot(pass), p, of.home, head + 1)) {
			const int b = warp_uniform(head / p.heads_q), h = warp_uniform(head % p.heads_q);
			const int h_kv = h / (KV_GROUP > 0 ? KV_GROUP : p.kv_group);
			__syncthreads(); // readers of the last head before its writers
			if (threadIdx.x == 0)
				walk_begin<true>(smem.walk, p, b, q0);
			__syncthreads(); // writer of the walk before its readers

			int next = smem.walk.stream.next, tile = -1, tile_class = TILE_EMPTY, buffer = 0;
			const auto load_next = [&] {
				bool more;
				do
					more = walk_next<true>(smem.walk, p, b, h, q0, next, tile, tile_class);
				while (more && tile % of.turns != of.turn);
				if (!more)
					tile = -1;
				if (tile >= 0) {
					const int k0 = tile * TILE_N;
					tile_load<TILE_N, HEAD_DIM_QK, CHUNKS_QK, THREADS>(
						cvta_shared(smem.key), head_address(p.key, b, h_kv, first_k(&p, b)),
						p.key.stride_seq, k0, sequence_k(&p, b));
					tile_load<TILE_N, HEAD_DIM_V, CHUNKS_V, THREADS>(
						cvta_shared(smem.value), head_address(p.value, b, h_kv, first_k(&p, b)),
						p.value.stride_seq, k0, sequence_k(&p, b));
					if constexpr (COL_INPUTS)
						cols_load(staged.cols(buffer), &p, b, h, k0, threadIdx.x, THREADS);
					if constexpr (CELL_INPUTS)
						cells_load(staged.cells(buffer), &p, b, h, q0, k0, threadIdx.x,
						           THREADS);
				}
				cp_async_commit();
			};
			if (LAYOUT != LAYOUT_DENSE && q0 >= sequence_q(&p, b))
				continue; // a head that shares cells may be shorter, or longer, than the CTA's own
			grad_load_rows(smem, 0, p, b, h, own_tile);
			if constexpr (HEAD_INPUTS)
				head_load(staged.head(0), &p, b, h, threadIdx.x, THREADS);
			if constexpr (ROW_INPUTS)
				rows_load(staged.rows(0), &p, b, h, q0, threadIdx.x, THREADS);
			load_next();

#pragma unroll 1
			while (tile >= 0) {
				const Inputs in = {staged.head(0),
				                   staged.rows(0),
				                   staged.cols(buffer),
				                   staged.cells(buffer),
				                   q0,
				                   tile * TILE_N,
				                   0};
				const GradTile at = grad_tile(p, in, b, h, tile_class);
				float s[BLOCKS_G][2 * STEPS_G][4], dp[BLOCKS_G][2 * STEPS_G][4];
				cp_async_wait<0>();
				__syncthreads(); // the tile of all threads before its readers
				product_s<STEPS_QK>(s, cvta_shared(smem.query), cvta_shared(smem.key), ShareG::down() * 16 * BLOCKS_G, ShareG::across() * 16 * STEPS_G);
				product_s<STEPS_V>(dp, cvta_shared(smem.dout), cvta_shared(smem.value), ShareG::down() * 16 * BLOCKS_G, ShareG::across() * 16 * STEPS_G);
				__syncthreads(); // readers of K and V before their writers
				buffer ^= 1;
				load_next();
				grad_dscores(s, dp, smem.rows[0], at);
				grad_add(of.active, of.turns == 1, s, dp, at, sums, lane);
			}
			cp_async_wait<0>();
		}
	}
	if (GRAD_PARTIAL > 0 && (LAYOUT == LAYOUT_DENSE || q0 < sequence_q(&p, own.b))) {
		if constexpr (GRAD_SINK >= 0 && HEAD_INPUTS) {
			__syncthreads(); // readers of the inputs of the last head before their writers
			head_load(staged.head(0), &p, own_head / p.heads_q, own_head % p.heads_q, threadIdx.x, THREADS);
			cp_async_commit();
			cp_async_wait<0>();
		}
		__syncthreads(); // writers of the tables and inputs before their readers
		grad_finish(p, own_head, own_tile, staged.head(0), sums, lane);
	}
}
