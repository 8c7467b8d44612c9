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

// The tile that has `rank` of the stream's tiles before it, and in *tiles how many those are in all: what several runs see counts once.
DEVICE int stream_ranked(const struct Stream *s, int rank, int *tiles)
{
	int ranked = 0, counted = 0, next = 0; // tiles before `next` are counted
#pragma unroll
	for (int turn = 0; turn < RUNS; turn++) { // the run that goes on first, to its end
		int first = s->next + 1, last = s->next;
#pragma unroll
		for (int i = 0; i < RUNS; i++) {
			const int begin = int_max(s->run[i].first, next);
			if (s->run[i].last >= begin && begin < first)
				first = begin, last = s->run[i].last;
		}
		const int here = last - first + 1;
		if (rank >= counted && rank < counted + here)
			ranked = first + rank - counted;
		counted += here;
		next = last + 1;
	}
	*tiles = counted;
	return ranked;
}

// Leaves a stream that nobody has walked yet one of `parts` parts of its tiles, which are equally many up to one: part 0 has the first.
DEVICE void stream_part(struct Stream *s, int part, int parts)
{
	int tiles;
	stream_ranked(s, 0, &tiles);
	const int each = tiles / parts, more = tiles % parts; // the first `more` parts have one more
	const int begin = part * each + int_min(part, more), end = begin + each + (part < more);
	const int first = begin < end ? stream_ranked(s, begin, &tiles) : 0;
	const int last = begin < end ? stream_ranked(s, end - 1, &tiles) : -1;
#pragma unroll
	for (int i = 0; i < RUNS; i++) {
		struct StreamRun *const run = &s->run[i];
		run->first = int_max(run->first, first), run->last = int_min(run->last, last);
		run->full_first = int_max(run->full_first, first), run->full_end = int_min(run->full_end, last + 1);
	}
	s->next = last;
}

// Its tiles, at most: runs may overlap.
DEVICE int stream_tiles_most(const struct Stream *s)
{
	int count = 0;
#pragma unroll
	for (int i = 0; i < RUNS; i++)
		count += int_max(s->run[i].last - s->run[i].first + 1, 0);
	return count;
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
