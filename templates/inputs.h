// What programs call: one copy of an input's element, and the functions of the expression language. And where a skeleton
// keeps staged inputs.

// One element of 4 bytes, global to shared: under way until the caller's group has landed.
DEVICE void input_copy(void *to, const void *from) { cp_async_4(cvta_shared(to), from); }

constexpr float LOG2_E = 1.44269504088896341f, LN_2 = 0.693147180559945309f;

DEVICE float float_exp(float x) { return ex2(x * LOG2_E); }
DEVICE float float_log(float x) { return lg2(x) * LN_2; }
DEVICE float float_sqrt(float x) { return sqrt_approx(x); }
DEVICE float float_div(float a, float b) { return a * rcp(b); }
DEVICE float float_sigmoid(float x) { return rcp(1 + ex2(x * -LOG2_E)); }
// Its absolute error is that of float32 at 1; tanh.approx has 2^-11 of the result.
DEVICE float float_tanh(float x) { return 1 - 2 * rcp(1 + ex2(x * (2 * LOG2_E))); }

DEVICE float float_fp16(unsigned short x) { return cvt_f32(x, Fp16{}); }
DEVICE float float_bf16(unsigned short x) { return cvt_f32(x, Bf16{}); }

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
