// A CTA's walk over the tiles that its own tile sees, from last to first, empty ones left out. Where the runs of the mask
// say all, it is the stream. Else (SCAN) the WALKERS threads that walk classify as many tiles at a time, one each, and keep two bits of
// each. Walkers are the CTA's first WALK_WARPS warps: all of them, or one.

constexpr int WALKERS = 32 * WALK_WARPS;

DEVICE void walkers_sync()
{
	if constexpr (WALK_WARPS == 1)
		__syncwarp();
	else
		__syncthreads();
}

template <bool> struct WalkScan {
	int chunk, head; // what the bits are of: tiles [chunk * WALKERS, (chunk + 1) * WALKERS); head -1: nothing
	unsigned seen[WALK_WARPS], full[WALK_WARPS]; // bit tile % 32 of word tile / 32 % WALK_WARPS
};
template <> struct WalkScan<false> {};
template <bool> struct WalkLengths {
	int sq, sk;
}; // of the entry, where it has its own
template <> struct WalkLengths<false> {
};
struct WalkShared : WalkScan<SCAN != 0>, WalkLengths<LAYOUT != LAYOUT_DENSE> {
	Stream stream;
};

template <class Walk> DEVICE int walk_sq(const Walk &walk, const fagen_abi &p)
{
	if constexpr (LAYOUT == LAYOUT_DENSE)
		return p.seqlen_q;
	else
		return walk.sq;
}
template <class Walk> DEVICE int walk_sk(const Walk &walk, const fagen_abi &p)
{
	if constexpr (LAYOUT == LAYOUT_DENSE)
		return p.seqlen_k;
	else
		return walk.sk;
}

// One thread begins a walk; it starts at walk.stream.next. KEYS: of key tiles, for the query tile whose first row is `own`;
// else of query tiles, for the key tile whose first key is `own`.
template <bool KEYS, class Walk> DEVICE void walk_begin(Walk &walk, const fagen_abi &p, int b, int own)
{
	const int sq = sequence_q(&p, b), sk = sequence_k(&p, b);
	if constexpr (LAYOUT != LAYOUT_DENSE)
		walk.sq = sq, walk.sk = sk;
	if constexpr (KEYS)
		walk.stream = stream_keys(own, int_min(own + TILE_Q, sq), sq, sk, TILE_N);
	else
		walk.stream = stream_queries(own, own + TILE_N, sq, sk, TILE_M);
	if constexpr (SCAN)
		walk.head = -1;
}

constexpr int WALK_BLOCK_Q = BLOCK_Q > 0 ? BLOCK_Q : 1, WALK_BLOCK_K = BLOCK_K > 0 ? BLOCK_K : 1;

// Class of a tile by the block layout. Blocks past the lengths do not count.
DEVICE int blocks_class(const fagen_abi &p, int b, int h, int q0, int q1, int k0, int k1)
{
	if (BLOCK_Q == 0)
		return TILE_FULL;
	bool any = false, all = true;
#pragma unroll 1
	for (int q = q0 / WALK_BLOCK_Q; q * WALK_BLOCK_Q < q1; q++)
#pragma unroll 1
		for (int k = k0 / WALK_BLOCK_K; k * WALK_BLOCK_K < k1; k++) {
			const bool kept = block_keep(&p, b, h, q, k);
			any |= kept;
			all &= kept;
		}
	return all ? TILE_FULL : any ? TILE_PARTIAL : TILE_EMPTY;
}

// The bits of the tile at (q0, k0) that mask_keep wants of a partial tile; all lanes of a warp call it and get them.
DEVICE unsigned long long block_bits(const fagen_abi &p, int b, int h, int q0, int k0)
{
	unsigned long long bits = 0;
	if constexpr (BLOCKS_SPLIT) {
#pragma unroll
		for (int first = 0; first < BLOCKS_DOWN * BLOCKS_ACROSS; first += 32) {
			const int i = first + mov_tid_x() % 32;
			const int q = q0 / WALK_BLOCK_Q + i / BLOCKS_ACROSS, k = k0 / WALK_BLOCK_K + i % BLOCKS_ACROSS;
			const bool kept = i < BLOCKS_DOWN * BLOCKS_ACROSS && q * WALK_BLOCK_Q < sequence_q(&p, b) &&
			                  k * WALK_BLOCK_K < sequence_k(&p, b) && block_keep(&p, b, h, q, k);
			bits |= (unsigned long long)__ballot_sync(~0u, kept) << first;
		}
	}
	return bits;
}

// Class of a tile by everything.
template <bool KEYS> DEVICE int walk_class(const WalkShared &walk, const fagen_abi &p, int b, int h, int own, int tile)
{
	const int runs = stream_class(&walk.stream, tile);
	if (runs == TILE_EMPTY)
		return TILE_EMPTY;
	const int q0 = KEYS ? own : tile * TILE_M, k0 = KEYS ? tile * TILE_N : own;
	const int q1 = int_min(q0 + TILE_M, sequence_q(&p, b)), k1 = int_min(k0 + TILE_N, sequence_k(&p, b));
	const int rest = tile_class(&p, b, h, q0, q1, k0, k1);
	if (rest == TILE_EMPTY)
		return TILE_EMPTY;
	const int blocks = blocks_class(p, b, h, q0, q1, k0, k1);
	return blocks == TILE_EMPTY ? TILE_EMPTY : int_min(runs, int_min(rest, blocks));
}

// The next tile at or before `next`, which moves past it, and its class; false when there is none. Called by all walkers in
// uniform flow with equal arguments: with SCAN it may pass barriers.
template <bool KEYS, class Walk>
DEVICE bool walk_next(Walk &walk, const fagen_abi &p, int b, int h, int own, int &next, int &tile, int &class_)
{
	Stream at = walk.stream;
	at.next = next;
	if constexpr (!SCAN) {
		const bool more = stream_next(&at, &tile, &class_);
		next = at.next;
		return more;
	} else {
#pragma unroll 1
		while (stream_next(&at, &tile, &class_)) {
			const int chunk = tile / WALKERS;
			if (walk.chunk != chunk || walk.head != h) {
				const int thread = mov_tid_x();
				const int own_class = walk_class<KEYS>(walk, p, b, h, own, chunk * WALKERS + thread);
				const unsigned seen = __ballot_sync(~0u, own_class != TILE_EMPTY);
				const unsigned full = __ballot_sync(~0u, own_class == TILE_FULL);
				walkers_sync(); // readers of the old bits and of what they are of before their writers
				if (thread % 32 == 0)
					walk.seen[thread / 32] = seen, walk.full[thread / 32] = full;
				if (thread == 0)
					walk.chunk = chunk, walk.head = h;
				walkers_sync(); // writers of the bits before their readers
			}
			int word = tile % WALKERS / 32;
			unsigned seen = walk.seen[word] & ~0u >> (31 - tile % 32);
			while (seen == 0 && word > 0)
				seen = walk.seen[--word];
			if (seen != 0) {
				const int bit = 31 - __clz(seen);
				tile = chunk * WALKERS + 32 * word + bit;
				class_ = walk.full[word] >> bit & 1 ? TILE_FULL : TILE_PARTIAL;
				next = tile - 1;
				return true;
			}
			at.next = chunk * WALKERS - 1;
		}
		next = -1;
		return false;
	}
}

// What is noted of a tile when its load is issued, for those who compute it: one cursor serves both.
template <bool> struct VisitBits { unsigned long long bits; }; // block_bits; of a full tile all
template <> struct VisitBits<false> { static constexpr unsigned long long bits = 0; };
struct Visit : VisitBits<BLOCKS_SPLIT != 0> { int tile, tile_class; }; // tile -1: the walk has ended

// Called by all walkers, after the readers of the old note; a barrier comes before the readers of the new one.
template <bool KEYS, class Note>
DEVICE void visit_note(Note &to, const fagen_abi &p, int b, int h, int own, int tile, int class_)
{
	if constexpr (BLOCKS_SPLIT) {
		if (mov_tid_x() < 32 && tile >= 0) {
			const unsigned long long bits =
				class_ == TILE_PARTIAL ? block_bits(p, b, h, KEYS ? own : tile * TILE_M, KEYS ? tile * TILE_N : own) : ~0ull;
			if (mov_tid_x() == 0)
				to.bits = bits;
		}
	}
	if (mov_tid_x() == 0)
		to.tile = tile, to.tile_class = class_;
}
