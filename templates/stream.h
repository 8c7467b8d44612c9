// The tiles of `size` positions that a tile may see by the runs of the mask: closed form, no memory, host and device. They
// are visited from last to first: where a range is cut on both sides the tile that needs tests comes first, and the plain
// ones follow in one row.

// Of one run: its tiles first .. last (none: last < first) and those of them that it leaves whole, [full_first, full_end).
struct StreamRun { int first, last, full_first, full_end; };

// Tiles after `next` are done with.
struct Stream { int next; struct StreamRun run[RUNS]; };

DEVICE struct StreamRun stream_run(struct Range r, int size)
{
	const bool none = r.begin >= r.end;
	struct StreamRun run;
	run.first = none ? 0 : r.begin / size;
	run.last = none ? -1 : (r.end - 1) / size;
	run.full_first = ceil_div(r.full_begin, size);
	run.full_end = r.full_end / size;
	return run;
}

// Key tiles that rows [q0, q1) see.
DEVICE struct Stream stream_keys(int q0, int q1, int sq, int sk, int size)
{
	struct Stream s;
	s.next = -1;
#pragma unroll
	for (int i = 0; i < RUNS; i++) {
		s.run[i] = stream_run(key_range(i, q0, q1, sq, sk), size);
		s.next = int_max(s.next, s.run[i].last);
	}
	return s;
}

// Query tiles that see keys [k0, k1).
DEVICE struct Stream stream_queries(int k0, int k1, int sq, int sk, int size)
{
	struct Stream s;
	s.next = -1;
#pragma unroll
	for (int i = 0; i < RUNS; i++) {
		s.run[i] = stream_run(query_range(i, k0, k1, sq, sk), size);
		s.next = int_max(s.next, s.run[i].last);
	}
	return s;
}

// Class of any tile by the runs alone.
DEVICE int stream_class(const struct Stream *s, int tile)
{
	bool seen = false, full = false;
#pragma unroll
	for (int i = 0; i < RUNS; i++) {
		seen |= tile >= s->run[i].first && tile <= s->run[i].last;
		full |= tile >= s->run[i].full_first && tile < s->run[i].full_end;
	}
	return full ? TILE_FULL : seen ? TILE_PARTIAL : TILE_EMPTY;
}

// The next tile and its class; false when the stream is at its end.
DEVICE bool stream_next(struct Stream *s, int *tile, int *tile_class)
{
	int found = -1;
	bool full = false;
#pragma unroll
	for (int i = 0; i < RUNS; i++) {
		const int last = RUNS == 1 ? s->next : int_min(s->next, s->run[i].last);
		if (last >= s->run[i].first)
			found = int_max(found, last);
	}
	if (found < 0)
		return false;
#pragma unroll
	for (int i = 0; i < RUNS; i++)
		full |= found >= s->run[i].full_first && found < s->run[i].full_end;
	*tile = found;
	*tile_class = full ? TILE_FULL : TILE_PARTIAL;
	s->next = found - 1;
	return true;
}
