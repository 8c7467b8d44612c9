// The contract between a program (what the spec asks) and a skeleton (how it is scheduled). README.md beside this file
// states it in full. This file and the program are compiled for the device by NVRTC and for the host by the tests.
//
// The emitted program defines, after this file; p is the launch, b the batch entry, h the query head:
//   Range key_range(run, q0, q1, sq, sk)      keys that rows [q0, q1) can see by one run's bounds, and those that all see
//   Range query_range(run, k0, k1, sq, sk)    rows that can see keys [k0, k1) by it, and those that see all of them
//   int tile_class(p, b, h, q0, q1, k0, k1)   class by the rest of the mask, for tiles that are not empty; q0 and k0 are multiples of TILE_M, TILE_N
//   bool block_keep(p, b, h, block_q, block_k)  is a block of the layout kept
//   HeadInputs, RowInputs, ColInputs, CellInputs  elements of inputs, staged in shared memory: of a head, of the rows and
//                                             columns of a tile, of its diagonals and cells
//   head_load(to, p, b, h, thread, threads)   each fills its struct; thread 0 .. threads - 1 do a part each. Elements may still
//   rows_load(to, p, b, h, q0, ...)           be under way as cp.async: commit, wait, and a barrier before they are read.
//   cols_load(to, p, b, h, k0, ...)           Positions past the lengths read the last element, or of cells' keys 0
//   cells_load(to, p, b, h, q0, k0, ...)
//   Inputs                                    the four as a tile sees them, its first row and key, and its block bits
//   RowState row_state(p, in, b, h, q, k_lane)       what predicate and score need of one query row
//   ColState col_state(p, in, b, h, k_lane, offset)  what they need of the key k_lane + offset; k_lane is the first of the
//                                             caller's columns, offset a constant after unrolling
//   bool mask_keep(row, col, in)              is the cell visible, lengths and block bits included
//   float score(s, row, col, in)              s is the raw dot product; LOGIT_SCALE times the result is the logit in base 2
//   float score_short(s, shift)               with SCORE_SHORT: LOGIT_SCALE * score - shift, for multiply-adds only. Right to 2^-19.5 of
//                                             a logit that is within SHORT_LOGIT of 0; rises with s everywhere, -inf to inf
//   int score_turn(q, sq, sk)                 with SCORE_LIFT: score(0, ..) of a row rises or falls with the key, and turns at most at
//                                             this one; the score is that and a part that no key's position enters
//   Scored score_grad(s, row, col, in)        {that result, derivative of the natural logit by SOFTMAX_SCALE * s}
//   float input_grad(access, s, row, col, in) derivative of the natural logit by the element that an access reads
//   float sink_logit(in)                      natural logit that joins the softmax of every row of the head
//   int bounds_row(slot, p, b, h, q)          value of which the workspace keeps minima and maxima over query tiles
//   int bounds_col(slot, p, b, h, k)          over key tiles
//   bool mask_plain(p, b, h, q, k)            the same mask, score and sink for one cell, straight from memory: for kernels
//   Scored score_plain(p, b, h, q, k, s)      that visit cells one at a time. The mask includes the layout
//   float sink_plain(p, b, h)
// and, when gradients of inputs are asked for, what templates/sm80/input_grad.cu needs. A slot is an input with a gradient; an
// access, which input_grad takes too, is one place where the score reads such an input:
//   GRADS, GRAD_ACCESSES, GRAD_SINK           slots, accesses, slot of the sink or -1
//   GRAD_TABLE_FLOATS, GRAD_ROW_FLOATS        entries of all table slots, of all row slots
//   GRAD_COLS, GRAD_CELLS                     slots of these kinds
//   GRAD_CELL_SPREAD, GRAD_DIAG_SPREAD        1: some access is summed cell by cell, along diagonals
//   int grad_kind(slot), grad_entries(slot)   GradKind; entries of its table, or of one of its rows; else 1
//   int grad_base(slot)                       entries, or slots, of its kind before it
//   int grad_slot(access), grad_spread(access)
//   int grad_index(access, p, b, h, q, k)     the entry that a cell reads; q and k inside the lengths
//   float *grad_address(slot, p, b, h, entry, q, k)  of an element's gradient; 0: not wanted
//   long long grad_elements(slot, p)          of the whole gradient; 0: not wanted
//   float *grad_element(slot, p, i)           address of the i-th, row-major

enum TileClass { TILE_EMPTY, TILE_PARTIAL, TILE_FULL };

// How dQ comes about, the constant SUMS. NONE: in a kernel of its own. Else as float32 sums over key tiles in the workspace. CLEARED: everybody adds to what
// fagen_delta has cleared. CLAIMED: who comes first stores, and everybody else adds. ORDERED: one key tile after the other, so that bits are always the same.
enum { SUMS_NONE, SUMS_CLEARED, SUMS_CLAIMED, SUMS_ORDERED };

// What fagen_order sorts, the constant ORDER: nothing; the items of a launch that own query tiles; those that own key tiles.
enum { ORDER_NONE, ORDER_QUERIES, ORDER_KEYS };

// Positions [begin, end) that a tile can see; in [full_begin, full_end) no cell needs a test.
struct Range { int begin, end, full_begin, full_end; };

struct Scored { float score, grad; };

// How the elements of an input with a gradient lie to tiles: a table of a head, with all constant dimensions; one or several
// of a query row; one of a key; one of a cell.
enum GradKind { GRAD_NONE, GRAD_TABLE, GRAD_ROW, GRAD_COL, GRAD_CELL };
// The cells that read one entry of a table: all of a head, those of a diagonal, any.
enum GradSpread { SPREAD_HEAD, SPREAD_DIAG, SPREAD_CELL };

DEVICE int int_min(int a, int b) { return a < b ? a : b; }
DEVICE int int_max(int a, int b) { return a > b ? a : b; }
DEVICE int ceil_div(int a, int b) { return (a + b - 1) / b; }
// Entries of the batch. Positions, masks, scores and inputs count from an entry's first row, and sq and sk are its own
// lengths. Dense: all are whole. Padded: of the rows that each has in the tensors, slot_q, only the first sequence_q are used.
// Packed: slots lie behind one another, from row first_q on.
enum { LAYOUT_DENSE, LAYOUT_PADDED, LAYOUT_PACKED };

DEVICE int sequence_first(unsigned long long cu, int b)
{
	return LAYOUT == LAYOUT_PACKED ? ((const int *)cu)[b] : 0;
}
DEVICE int sequence_slot(unsigned long long cu, int rows, int b)
{
	return LAYOUT == LAYOUT_PACKED ? int_min(((const int *)cu)[b + 1] - ((const int *)cu)[b], rows) : rows;
}
DEVICE int sequence_used(unsigned long long lengths, int slot, int b)
{
	return LAYOUT == LAYOUT_DENSE || lengths == 0 ? slot : int_max(int_min(((const int *)lengths)[b], slot), 0);
}
DEVICE int first_q(const struct fagen_abi *p, int b) { return sequence_first(p->cu_seqlens_q, b); }
DEVICE int first_k(const struct fagen_abi *p, int b) { return sequence_first(p->cu_seqlens_k, b); }
DEVICE int slot_q(const struct fagen_abi *p, int b) { return sequence_slot(p->cu_seqlens_q, p->seqlen_q, b); }
DEVICE int slot_k(const struct fagen_abi *p, int b) { return sequence_slot(p->cu_seqlens_k, p->seqlen_k, b); }
DEVICE int sequence_q(const struct fagen_abi *p, int b) { return sequence_used(p->seqlens_q, slot_q(p, b), b); }
DEVICE int sequence_k(const struct fagen_abi *p, int b) { return sequence_used(p->seqlens_k, slot_k(p, b), b); }

// Row of a packed tensor that a position of an entry has: inside the tensor, whatever the entry's length.
DEVICE int packed_row(int first, int position, int total) { return int_max(int_min(first + position, total - 1), 0); }

// Tiles of `size` rows of all entries and heads are numbered without gaps but for one at most behind an entry's last: a packed
// entry begins at tile cu / size + b, which leaves room for its own and is linear in the total.
DEVICE int tile_begin(unsigned long long cu, int b, int size) { return ((const int *)cu)[b] / size + b; }
// Numbers that a head of the entry has.
DEVICE int tile_room(unsigned long long cu, int rows, int b, int size)
{
	return LAYOUT == LAYOUT_PACKED ? tile_begin(cu, b + 1, size) - tile_begin(cu, b, size) : ceil_div(rows, size);
}
DEVICE int tile_number(unsigned long long cu, int rows, int heads, int b, int h, int tile, int size)
{
	return LAYOUT == LAYOUT_PACKED ? tile_begin(cu, b, size) * heads + h * tile_room(cu, rows, b, size) + tile
	                               : (b * heads + h) * ceil_div(rows, size) + tile;
}
// Where the minima and maxima of a slot over a tile are kept: [slot][number of the tile].
DEVICE long long bounds_rows_at(const struct fagen_abi *p, int slot, int b, int h, int tile)
{
	if (LAYOUT == LAYOUT_PACKED)
		return (long long)slot * (p->total_q / TILE_M + p->batch) * p->heads_q +
		       tile_number(p->cu_seqlens_q, p->seqlen_q, p->heads_q, b, h, tile, TILE_M);
	return (((long long)slot * p->batch + b) * p->heads_q + h) * ceil_div(p->seqlen_q, TILE_M) + tile;
}
DEVICE long long bounds_cols_at(const struct fagen_abi *p, int slot, int b, int h, int tile)
{
	if (LAYOUT == LAYOUT_PACKED)
		return (long long)slot * (p->total_k / TILE_N + p->batch) * p->heads_q +
		       tile_number(p->cu_seqlens_k, p->seqlen_k, p->heads_q, b, h, tile, TILE_N);
	return (((long long)slot * p->batch + b) * p->heads_q + h) * ceil_div(p->seqlen_k, TILE_N) + tile;
}

// A 64-bit position brought into [0, limit].
DEVICE int clamp_position(long long p, int limit) { return p < 0 ? 0 : p > limit ? limit : (int)p; }

// Blocks of the layout that a tile may touch, down and across. When it lies in one block always, the class says all;
// otherwise a partial tile has a bit for each: bit down * BLOCKS_ACROSS + across.
enum {
	BLOCKS_DOWN = BLOCK_Q == 0 ? 1 : TILE_M % (BLOCK_Q + (BLOCK_Q == 0)) == 0 ? TILE_M / (BLOCK_Q + (BLOCK_Q == 0))
	              : BLOCK_Q % TILE_M == 0 ? 1 : (TILE_M - 2) / (BLOCK_Q + (BLOCK_Q == 0)) + 2,
	BLOCKS_ACROSS = BLOCK_K == 0 ? 1 : TILE_N % (BLOCK_K + (BLOCK_K == 0)) == 0 ? TILE_N / (BLOCK_K + (BLOCK_K == 0))
	                : BLOCK_K % TILE_N == 0 ? 1 : (TILE_N - 2) / (BLOCK_K + (BLOCK_K == 0)) + 2,
	BLOCKS_SPLIT = BLOCKS_DOWN * BLOCKS_ACROSS > 1
};

// Interval arithmetic for tile_class: all values from lo to hi. Nothing leaves 64 bits: the compiler has proved it.
struct Interval { long long lo, hi; };
