// The contract between a program (what the spec asks) and a skeleton (how it is scheduled). README.md beside this file
// states it in full. This file is compiled for the device by NVRTC and for the host by the tests.
//
// The emitted source defines, before this file, the constants of the prologue, and after it:
//   Range key_range(q0, q1, sq, sk)      keys that rows [q0, q1) can see, and those that all of them see
//   Range query_range(k0, k1, sq, sk)    rows that can see keys [k0, k1), and those that see all of them
//   RowState row_state(b, h, q, sq, sk)  what the predicate and the score need of one query row
//   ColState col_state(b, h, k, sq, sk)  what they need of one key
//   bool mask_keep(row, col)             is the cell visible
//   SCORE_IDENTITY                       1: score returns s, and need not be called
//   float score(s, row, col)             the modified score; LOGIT_SCALE times it is the logit in base 2
//   float score_grad(s, row, col)        its derivative by s
// None of them touches memory; b is the batch, h the query head.

enum TileClass { TILE_EMPTY, TILE_PARTIAL, TILE_FULL };

// Positions [begin, end) that a tile can see; in [full_begin, full_end) no cell needs a test.
struct Range { int begin, end, full_begin, full_end; };

DEVICE int int_min(int a, int b) { return a < b ? a : b; }
DEVICE int int_max(int a, int b) { return a > b ? a : b; }
DEVICE int ceil_div(int a, int b) { return (a + b - 1) / b; }
// A 64-bit position brought into [0, limit].
DEVICE int clamp_position(long long p, int limit) { return p < 0 ? 0 : p > limit ? limit : (int)p; }

// The tiles of `size` positions that a range visits, from last to first: where the range is cut on both sides the
// tile that needs tests comes first, and the plain ones follow in one run.
struct Stream { int next, begin, full_begin, full_end; };

DEVICE struct Stream stream_begin(struct Range r, int size)
{
	struct Stream s;
	const bool empty = r.begin >= r.end;
	s.begin = empty ? 0 : r.begin / size;
	s.next = empty ? -1 : (r.end - 1) / size;
	s.full_begin = ceil_div(r.full_begin, size);
	s.full_end = r.full_end / size;
	return s;
}

DEVICE int stream_count(const struct Stream *s) { return s->next - s->begin + 1 > 0 ? s->next - s->begin + 1 : 0; }

// The next tile and its class; false when the stream is at its end.
DEVICE bool stream_next(struct Stream *s, int *tile, int *tile_class)
{
	if (s->next < s->begin)
		return false;
	*tile = s->next--;
	*tile_class = *tile >= s->full_begin && *tile < s->full_end ? TILE_FULL : TILE_PARTIAL;
	return true;
}
