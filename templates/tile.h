// Tiles in shared memory: rows of CHUNKS 16-byte chunks (8 elements each), packed without padding. The chunk index is
// XORed with row bits so that any 8 consecutive rows of one chunk column lie in 8 different bank groups, for every
// even CHUNKS: with CHUNKS = 2^z * odd (z at most 3) the row stride itself spreads 2^(3-z) rows, and the XOR on the low
// z bits of the chunk spreads the rest. ldmatrix (8 rows x 16 bytes) and 16-byte stores along rows are then free of
// bank conflicts. Only the low 3 bits of the row enter the XOR, so rows 8 apart share it.

template <int CHUNKS> DEVICE constexpr int swizzle_bits()
{
	return CHUNKS % 8 == 0 ? 3 : CHUNKS % 4 == 0 ? 2 : CHUNKS % 2 == 0 ? 1 : 0;
}
template <int CHUNKS> DEVICE int swizzle(int row)
{
	constexpr int z = swizzle_bits<CHUNKS>();
	return (row >> (3 - z)) & ((1 << z) - 1);
}

// Byte offset of a chunk.
template <int CHUNKS> DEVICE int tile_offset(int row, int chunk)
{
	return (row * CHUNKS + (chunk ^ swizzle<CHUNKS>(row))) * 16;
}

// The part of a chunk address that depends on the lane or warp: its row, and its own bits of the chunk index. The rest, a
// chunk that has none of those bits and whole groups of 8 rows, both constants, mostly becomes immediates.
template <int CHUNKS> struct TileLane {
	static constexpr int LOW = (1 << swizzle_bits<CHUNKS>()) - 1;
	unsigned row, x;
	__device__ __forceinline__ TileLane(unsigned tile, int row_, int own)
	    : row(tile + (row_ * CHUNKS + (own & ~LOW)) * 16), x(((own & LOW) ^ swizzle<CHUNKS>(row_)) * 16)
	{
	}
	__device__ __forceinline__ unsigned at(int row8, int chunk) const
	{
		return row + (row8 * CHUNKS + (chunk & ~LOW)) * 16 + (x ^ ((chunk & LOW) * 16));
	}
};

// Copies rows [row0, row0 + ROWS) of a row-major matrix [rows][WIDTH] of 16-bit elements into a tile; rows at or past
// `rows` and columns at or past WIDTH become zero. `src` is the address of row 0, `stride` in elements. Chunks travel
// by cp.async when rows are 16-byte aligned (LOAD_BYTES 16: the caller commits and waits), else element by element
// through registers (done when the call returns). Either way visible to other threads only after a barrier.
//
// 2^z neighbouring threads copy 2^z neighbouring chunks; a thread keeps its low chunk bits and its row modulo 8, so that
// its shared addresses differ by constants only.
template <int ROWS, int WIDTH, int CHUNKS, int THREADS_>
DEVICE void tile_load(unsigned tile, const unsigned short *src, long long stride, int row0, int rows)
{
	constexpr int ACROSS = 1 << swizzle_bits<CHUNKS>(); // threads along a row
	constexpr int DOWN = THREADS_ / ACROSS;             // rows of one pass
	static_assert(DOWN % 8 == 0, "a pass must keep the row modulo 8");
	constexpr int FILLED = WIDTH / 8; // chunks of a row that come from memory
	const unsigned thread = mov_tid_x();
	const int row = thread / ACROSS, chunk = thread % ACROSS;
	const unsigned dst = anew(tile + tile_offset<CHUNKS>(row, chunk)); // so that what is added to it become immediates
	const unsigned short *p = src + (row0 + row) * stride + chunk * 8;
	const int left = rows - row0 - row; // rows of the matrix from this thread's first one on
#pragma unroll(LOAD_BYTES == 16 ? ROWS : 1)
	for (int r = 0; r < ROWS; r += DOWN) {
		if (ROWS % DOWN != 0 && row + r >= ROWS)
			break;
#pragma unroll
		for (int c = 0; c < CHUNKS; c += ACROSS) {
			const bool inside = r < left && (c + ACROSS <= FILLED || c + chunk < FILLED);
			const unsigned to = dst + (r * CHUNKS + c) * 16;
			if constexpr (LOAD_BYTES == 16) {
				cp_async_16_zfill(to, p + c * 8, inside);
			} else {
				uint4 v = make_uint4(0, 0, 0, 0);
				if (inside) {
					const unsigned short *e = p + c * 8;
					v.x = e[0] | (unsigned)e[1] << 16;
					v.y = e[2] | (unsigned)e[3] << 16;
					v.z = e[4] | (unsigned)e[5] << 16;
					v.w = e[6] | (unsigned)e[7] << 16;
				}
				st_shared_16(to, v);
			}
		}
		p += DOWN * stride;
	}
}

// A chunk to global memory.
DEVICE void chunk_store(unsigned short *e, uint4 v)
{
	if constexpr (LOAD_BYTES == 16) {
		st_global_16(e, v);
	} else {
		e[0] = v.x, e[1] = v.x >> 16, e[2] = v.y, e[3] = v.y >> 16;
		e[4] = v.z, e[5] = v.z >> 16, e[6] = v.w, e[7] = v.w >> 16;
	}
}

// Four words in each lane of a quad, transposed: lane t gets word t of lanes 0 .. 3.
DEVICE void quad_transpose(unsigned (&w)[4], int t)
{
#pragma unroll
	for (int step = 1; step <= 2; step *= 2)
#pragma unroll
		for (int k = 0; k < 2; k++) {
			unsigned &a = w[step == 1 ? 2 * k : k], &b = w[step == 1 ? 2 * k + 1 : k + 2];
			const unsigned got = __shfl_xor_sync(~0u, t & step ? a : b, step);
			(t & step ? a : b) = got;
		}
}

// That if `here`, which is a predicate and no branch: 1.01 to 1.03 in the forward, 0.96 to 0.99 in the backward, where it costs the loop registers.
DEVICE void chunk_store_if(unsigned short *e, uint4 v, bool here)
{
	if constexpr (LOAD_BYTES == 16)
		st_global_16_if(e, v, here);
	else if (here)
		chunk_store(e, v);
}

// A row's part of so many 8-column blocks of accumulators, straight from registers to global memory: the quad of lanes that holds it writes four
// chunks at a time, zeros unless `used`, nothing unless `written`. pair(block): this lane's two columns of a block, packed. chunk(block): where
// the block lies in the row; none below 0. t: the lane in the quad. PREDICATED: by chunk_store_if.
template <int BLOCKS, bool PREDICATED = false, class Pair, class Chunk>
DEVICE void row_store(unsigned short *row, Pair pair, Chunk chunk, int t, bool used, bool written)
{
#pragma unroll
	for (int j = 0; j < BLOCKS; j += 4) {
		unsigned word[4];
#pragma unroll
		for (int k = 0; k < 4; k++)
			word[k] = pair(j + k < BLOCKS ? j + k : BLOCKS - 1);
		quad_transpose(word, t);
		const int at = BLOCKS % 4 == 0 || j + t < BLOCKS ? chunk(j + t) : -1;
		const uint4 cells = used ? make_uint4(word[0], word[1], word[2], word[3]) : make_uint4(0, 0, 0, 0);
		if constexpr (PREDICATED)
			chunk_store_if(row + 8 * at, cells, written && at >= 0);
		else if (written && at >= 0)
			chunk_store(row + 8 * at, cells);
	}
}

// The reverse: writes the tile's rows that lie inside the matrix, columns < WIDTH. Call after a barrier that orders the
// tile's writers before.
template <int ROWS, int WIDTH, int CHUNKS, int THREADS_>
DEVICE void tile_store(unsigned tile, unsigned short *dst, long long stride, int row0, int rows)
{
	constexpr int ACROSS = 1 << swizzle_bits<CHUNKS>();
	constexpr int DOWN = THREADS_ / ACROSS;
	constexpr int FILLED = WIDTH / 8;
	const int row = threadIdx.x / ACROSS, chunk = threadIdx.x % ACROSS;
	const unsigned from = tile + tile_offset<CHUNKS>(row, chunk);
	unsigned short *p = dst + (row0 + row) * stride + chunk * 8;
	const int left = rows - row0 - row;
#pragma unroll
	for (int r = 0; r < ROWS; r += DOWN) {
		if (ROWS % DOWN != 0 && row + r >= ROWS)
			break;
#pragma unroll
		for (int c = 0; c < CHUNKS; c += ACROSS) {
			if (r < left && (c + ACROSS <= FILLED || c + chunk < FILLED))
				chunk_store(p + c * 8, ld_shared_16(from + (r * CHUNKS + c) * 16));
		}
		p += DOWN * stride;
	}
}
