// The items of the main kernel, the longest first, to p.order: their numbers as they are to begin. An item is as long as the tiles that it
// visits are many, and where data rule that, long ones may begin last, and everybody else waits for them. A warp measures an item; the CTA that
// ends last sorts them all, by counting, in two buckets for every doubling of the length. In a bucket items keep the order that they had, in
// which neighbours share what L2 holds: sorted by their very lengths the long tiles of all heads would come together, and share nothing; by a
// simulation it would gain less than 0.01 of perfect balance.

constexpr int ORDER_WARPS = 16, ORDER_THREADS = 32 * ORDER_WARPS; // as gen/model_parts.c has them
constexpr int ORDER_BUCKETS = 64;
constexpr int ORDER_COUNTS = ORDER_BUCKETS * ORDER_WARPS;
constexpr int ORDER_AHEAD = 4; // loads of a lane that are under way together
constexpr bool ORDER_OF_QUERIES = ORDER == ORDER_QUERIES;

// The longest have the first: of lengths that begin 10.. and 11.. in base 2 each.
DEVICE int length_bucket(int length)
{
	const int doublings = 31 - __clz(length | 1);
	return ORDER_BUCKETS - 1 - (length < 2 ? length : 2 * doublings + (length >> (doublings - 1) & 1));
}

// Tiles that an item visits; backward, where classes are asked for each query head of the group, those of all. All lanes of a warp call it.
DEVICE int item_length(const fagen_abi &p, const Owned &item)
{
	if (item.tile < 0)
		return 0;
	const int own = item.tile * (ORDER_OF_QUERIES ? TILE_Q : TILE_N), heads = ORDER_OF_QUERIES ? 1 : KV_GROUP > 0 ? KV_GROUP : p.kv_group;
	int length = 0;
	WalkShared walk;
	walk_begin<ORDER_OF_QUERIES>(walk, p, item.b, own);
	if constexpr (!SCAN) {
		stream_ranked(&walk.stream, 0, &length);
	} else {
#pragma unroll 1
		for (int head = 0; head < heads; head++) {
			Stream at = walk.stream;
			int tile, class_;
#pragma unroll 1
			while (stream_next(&at, &tile, &class_)) { // the last of up to 32 that lanes take one each
				const int first = tile / 32 * 32;
				class_ = walk_class<ORDER_OF_QUERIES>(walk, p, item.b, item.h * heads + head, own, first + (int)(mov_tid_x() % 32));
				length += __popc(__ballot_sync(~0u, class_ != TILE_EMPTY));
				at.next = first - 1;
			}
		}
	}
	return length;
}

// Of the items [begin, end), in order, each takes the next number of its bucket: take(i, number), and next[bucket * ORDER_WARPS] is one more.
// By a warp.
template <class Take> DEVICE void numbers_take(unsigned *next, const unsigned char *bucket, unsigned begin, unsigned end, Take take)
{
	const unsigned lane = mov_tid_x() % 32;
#pragma unroll 1
	for (unsigned first = begin; first < end; first += 32 * ORDER_AHEAD) {
		int own[ORDER_AHEAD];
#pragma unroll
		for (int k = 0; k < ORDER_AHEAD; k++) {
			const unsigned i = first + 32 * k + lane;
			own[k] = i < end ? bucket[i] : ORDER_BUCKETS; // which is none
		}
#pragma unroll
		for (int k = 0; k < ORDER_AHEAD; k++) {
			const unsigned alike = __match_any_sync(~0u, own[k]);
			const bool some = own[k] < ORDER_BUCKETS;
			const unsigned number = some ? next[own[k] * ORDER_WARPS] : 0;
			__syncwarp(); // readers of the numbers before their writers
			if (some)
				take(first + 32 * k + lane, number + __popc(alike & ~(~0u << lane)));
			if (some && lane == __ffs(alike) - 1)
				next[own[k] * ORDER_WARPS] = number + __popc(alike);
			__syncwarp(); // writers of the numbers before the next readers
		}
	}
}

// p.order: numbers of all items, then how many CTAs have ended, 0 at launch, then a byte for each item, its bucket. One CTA of an SM is asked for,
// lest ptxas spill to make room for more.
extern "C" __global__ void __launch_bounds__(ORDER_THREADS, 1) fagen_order(const __grid_constant__ fagen_abi p)
{
	__shared__ unsigned count[ORDER_COUNTS]; // [bucket][warp]: the items of a warp's part; then where in the order its next one stands
	__shared__ unsigned part[ORDER_WARPS];
	__shared__ unsigned before; // CTAs that have ended before this one
	const unsigned items = ORDER_OF_QUERIES ? query_numbers<TILE_Q>(p) * (p.heads_q / TILE_HEADS) : key_numbers<TILE_N>(p) * p.heads_kv;
	const unsigned warp = mov_tid_x() / 32, lane = mov_tid_x() % 32, number = blockIdx.x * ORDER_WARPS + warp;
	unsigned *const order = reinterpret_cast<unsigned *>(p.order), *const ended = order + items;
	unsigned char *const bucket = reinterpret_cast<unsigned char *>(ended + 1);
	if (number < items) {
		const int length = item_length(p, item_owned(p, number));
		if (lane == 0)
			bucket[number] = length_bucket(length);
	}
	__threadfence();
	__syncthreads(); // all buckets of the CTA, which everybody sees, before its arrival
	if (mov_tid_x() == 0)
		before = atomicAdd(ended, 1u);
	__syncthreads(); // the writer of the count before its readers
	if (before != gridDim.x - 1)
		return;
	__threadfence(); // the arrivals of all CTAs before their buckets are read

	const unsigned each = ceil_div(items, ORDER_THREADS) * 32, begin = warp * each, end = begin + each < items ? begin + each : items;
	for (int i = mov_tid_x(); i < ORDER_COUNTS; i += ORDER_THREADS)
		count[i] = 0;
	__syncthreads(); // zeros before what is added to them
	numbers_take(count + warp, bucket, begin, end, [](unsigned, unsigned) {});
	__syncthreads(); // counts of all warps before their sums

	// Each count becomes the sum of those before it.
	constexpr int OWN = ORDER_COUNTS / ORDER_THREADS;
	unsigned *const own_count = count + OWN * mov_tid_x();
	unsigned sum = 0;
	for (int k = 0; k < OWN; k++)
		sum += own_count[k];
	unsigned up_to = sum; // and with it those of the lanes before
	for (unsigned step = 1; step < 32; step *= 2) {
		const unsigned other = __shfl_sync(~0u, up_to, (int)(lane - step));
		up_to += lane >= step ? other : 0;
	}
	if (lane == 31)
		part[warp] = up_to;
	__syncthreads(); // writers of the parts before their readers
	unsigned place = up_to - sum;
	for (int i = 0; i < ORDER_WARPS; i++)
		place += i < warp ? part[i] : 0;
	for (int k = 0; k < OWN; k++) {
		const unsigned here = own_count[k];
		own_count[k] = place;
		place += here;
	}
	__syncthreads(); // places before who takes them

	numbers_take(count + warp, bucket, begin, end, [&](unsigned i, unsigned at) { order[at] = i; });
}
