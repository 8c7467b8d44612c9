// Tiles in shared memory: ROWS rows of CHUNKS 16-byte chunks (8 elements each), rows packed without padding. The chunk
// index is XORed with row bits so that any 8 consecutive rows of one chunk column lie in 8 different bank groups, for
// every width: with CHUNKS = 2^z * odd the row stride itself spreads 2^(3-z) rows, and the XOR on the low z bits of
// the chunk spreads the rest. ldmatrix (8 rows x 16 bytes) and row-wise 16-byte stores are then free of conflicts.

template <int CHUNKS> DEVICE constexpr int swizzle_bits() { return CHUNKS % 8 == 0 ? 3 : CHUNKS % 4 == 0 ? 2 : CHUNKS % 2 == 0 ? 1 : 0; }

// Byte offset of chunk `chunk` of row `row`.
template <int CHUNKS> DEVICE int tile_offset(int row, int chunk)
{
	constexpr int z = swizzle_bits<CHUNKS>();
	return (row * CHUNKS + (chunk ^ ((row >> (3 - z)) & ((1 << z) - 1)))) * 16;
}

// Copies rows [row0, row0 + ROWS) of a row-major matrix [rows][WIDTH] of 16-bit elements into a tile; rows at or past
// `rows` and columns at or past WIDTH become zero. `src` is the address of row 0, `stride` in elements. Chunks travel
// by cp.async when rows are 16-byte aligned (LOAD_BYTES 16: the caller commits and waits), else element by element
// through registers (done when the call returns). Either way visible to others only after a barrier.
template <int ROWS, int WIDTH, int CHUNKS, int THREADS>
DEVICE void tile_load(unsigned tile, const unsigned short *src, long long stride, int row0, int rows)
{
	constexpr int FILLED = WIDTH / 8; // chunks of a row that come from memory
	for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
		const int row = i / CHUNKS, chunk = i % CHUNKS;
		const unsigned dst = tile + tile_offset<CHUNKS>(row, chunk);
		const unsigned short *p = src + (row0 + row) * stride + chunk * 8;
		if (row0 + row >= rows || chunk >= FILLED) {
			st_shared_16(dst, make_uint4(0, 0, 0, 0));
		} else if constexpr (LOAD_BYTES == 16) {
			cp_async_16(dst, p);
		} else {
			uint4 v;
			v.x = p[0] | (unsigned)p[1] << 16;
			v.y = p[2] | (unsigned)p[3] << 16;
			v.z = p[4] | (unsigned)p[5] << 16;
			v.w = p[6] | (unsigned)p[7] << 16;
			st_shared_16(dst, v);
		}
	}
}

// The reverse: writes the tile's rows inside the matrix, columns < WIDTH. After a barrier that orders the tile's writers before.
template <int ROWS, int WIDTH, int CHUNKS, int THREADS>
DEVICE void tile_store(unsigned tile, unsigned short *dst, long long stride, int row0, int rows)
{
	constexpr int FILLED = WIDTH / 8;
	for (int i = threadIdx.x; i < ROWS * FILLED; i += THREADS) {
		const int row = i / FILLED, chunk = i % FILLED;
		if (row0 + row >= rows)
			continue;
		const uint4 v = ld_shared_16(tile + tile_offset<CHUNKS>(row, chunk));
		unsigned short *p = dst + (row0 + row) * stride + chunk * 8;
		if constexpr (LOAD_BYTES == 16) {
			*reinterpret_cast<uint4 *>(p) = v;
		} else {
			p[0] = v.x, p[1] = v.x >> 16, p[2] = v.y, p[3] = v.y >> 16;
			p[4] = v.z, p[5] = v.z >> 16, p[6] = v.w, p[7] = v.w >> 16;
		}
	}
}
