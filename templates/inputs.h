// What programs call: one copy of an input's element, and the functions of the expression language. And where a skeleton
// keeps staged inputs.

// One element of 4 bytes, global to shared: under way until the caller's group has landed.
DEVICE void input_copy(void *to, const void *from) { cp_async_4(cvta_shared(to), from); }

// Rows of a tile, global to shared: `width` bytes of each of TILE_M, row i from `from` + i * stride to `to` + i * pitch, by copies of UNIT bytes, of which
// all of these are multiples. Rows past the `last` that there is are as that one is; bytes past the row's `bytes` are zeros.
template <int UNIT, bool WHOLE>
DEVICE void input_rows_copy(unsigned to, int pitch, int width, const char *from, long long stride, int last, int bytes, int thread, int threads)
{
	const int units = width / UNIT, lanes = int_min(units & -units, 32); // that share a row, each with as many units of it
	const int first = (unsigned)thread / lanes, at = (unsigned)thread % lanes * UNIT, down = threads / lanes;
	to += first * pitch + at;
	from += at;
	const char *row = from + first * stride;
#pragma unroll(WHOLE ? 4 : 1)
	for (int i = 0; i < TILE_M; i += down) {
		if (TILE_M % down != 0 && first + i >= TILE_M)
			break;
		if (!WHOLE)
			row = from + int_min(first + i, last) * stride;
#pragma unroll
		for (int c = 0; c < width; c += lanes * UNIT)
			cp_async_part<UNIT>(to + i * pitch + c, row + c, WHOLE ? UNIT : int_max(int_min(bytes - at - c, UNIT), 0));
		row += down * stride;
	}
}
DEVICE void input_rows(void *to, int pitch, int width, int unit, const void *from, long long stride, int last, int bytes, int thread, int threads)
{
	const unsigned shared = cvta_shared(to);
	thread = anew(thread); // loaders of their own have few registers
	const auto *rows = reinterpret_cast<const char *>(from);
	const bool whole = last >= TILE_M - 1 && bytes >= width;
	if (unit == 16 && whole)
		input_rows_copy<16, true>(shared, pitch, width, rows, stride, last, bytes, thread, threads);
	else if (unit == 16)
		input_rows_copy<16, false>(shared, pitch, width, rows, stride, last, bytes, thread, threads);
	else
		input_rows_copy<4, false>(shared, pitch, width, rows, stride, last, bytes, thread, threads);
}

constexpr float LOG2_E = 1.44269504088896341f, LN_2 = 0.693147180559945309f;

DEVICE float float_exp(float x) { return ex2(x * LOG2_E); }
DEVICE float float_log(float x) { return lg2(x) * LN_2; }
DEVICE float float_sqrt(float x) { return sqrt_approx(x); }
DEVICE float float_div(float a, float b) { return a * rcp(b); }
DEVICE float float_sigmoid(float x) { return rcp(1 + ex2(x * -LOG2_E)); }
// Its absolute error is that of float32 at 1; tanh.approx has 2^-11 of the result.
DEVICE float float_tanh(float x) { return 1 - 2 * rcp(1 + ex2(x * (2 * LOG2_E))); }

DEVICE float float_fp16(unsigned short x) { return cvt_f32(x, Fp16{}); }
DEVICE float float_bf16(unsigned short x) { return mov_upper(x); }

// Staged inputs, behind Smem in dynamic shared memory: so many buffers of each kind, none where the program has no such
// inputs. Every struct is a multiple of 16 bytes, and so is Smem.
template <int HEADS, int ROWS, int COLS, int CELLS> struct Staged {
	static constexpr int HEAD_BYTES = HEAD_INPUTS ? (int)sizeof(HeadInputs) : 0;
	static constexpr int ROW_BYTES = ROW_INPUTS ? (int)sizeof(RowInputs) : 0;
	static constexpr int COL_BYTES = COL_INPUTS ? (int)sizeof(ColInputs) : 0;
	static constexpr int CELL_BYTES = CELL_INPUTS ? (int)sizeof(CellInputs) : 0;
	static constexpr int ROWS_AT = HEADS * HEAD_BYTES;
	static constexpr int COLS_AT = ROWS_AT + ROWS * ROW_BYTES;
	static constexpr int CELLS_AT = COLS_AT + COLS * COL_BYTES;
	static constexpr int BYTES = CELLS_AT + CELLS * CELL_BYTES;
	static_assert(BYTES % 16 == 0, "structs of staged inputs are multiples of 16 bytes");

	unsigned char *base;
	__device__ __forceinline__ explicit Staged(unsigned char *base_) : base(base_) {}
	__device__ __forceinline__ HeadInputs *head(int i) const
	{
		return reinterpret_cast<HeadInputs *>(base + i * HEAD_BYTES);
	}
	__device__ __forceinline__ RowInputs *rows(int i) const
	{
		return reinterpret_cast<RowInputs *>(base + ROWS_AT + i * ROW_BYTES);
	}
	__device__ __forceinline__ ColInputs *cols(int i) const
	{
		return reinterpret_cast<ColInputs *>(base + COLS_AT + i * COL_BYTES);
	}
	__device__ __forceinline__ CellInputs *cells(int i) const
	{
		return reinterpret_cast<CellInputs *>(base + CELLS_AT + i * CELL_BYTES);
	}
};
