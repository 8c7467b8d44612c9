// Standard attention (Algorithms 0 and 3 of Dao et al. 2022), both passes: kernels that meet in p.scores and p.dscores,
// float32 in device memory. Every cell is computed and tested, nothing is skipped, the arithmetic is float32: the
// reference that other kernels are measured against. Forward runs naive_scores, naive_softmax, naive_out; backward
// naive_probs, naive_delta, naive_dscores, naive_dquery, naive_dkey_dvalue.

constexpr int DEPTH = 16;         // steps of the inner dimension held in shared memory
constexpr int ROWS = TILE_M / 16; // of a thread: threads form a 16 x 16 grid over a tile
constexpr int COLS = TILE_N / 16;
static_assert(WARPS == 8 && TILE_M % 64 == 0 && TILE_N % 64 == 0, "16 x 16 threads own groups of 4 x 4 cells");

struct Smem {
	float a[DEPTH][TILE_M + 4]; // 4 floats of padding: fewer bank conflicts, rows stay aligned to 16 bytes
	float b[DEPTH][TILE_N + 4];
};
static_assert(sizeof(Smem) == SMEM_BYTES, "struct Smem and gen/model_naive.c disagree");

constexpr float KEEP_SCALE = 256.0f / KEEP_256;

// acc += A B over `depth` steps; a(row, step) and b(step, col) give the elements of the tile, 0 outside the matrices.
// *_BY_STEP: neighbouring steps are neighbours in memory, else neighbouring rows (columns) are.
template <bool A_BY_STEP, bool B_BY_STEP, class A, class B>
DEVICE void tile_product(float (&acc)[ROWS][COLS], Smem &smem, int depth, A a, B b)
{
	const int row0 = threadIdx.x / 16 * ROWS, col0 = threadIdx.x % 16 * COLS;
	for (int step0 = 0; step0 < depth; step0 += DEPTH) {
		for (int i = threadIdx.x; i < TILE_M * DEPTH; i += 32 * WARPS) {
			const int step = A_BY_STEP ? i % DEPTH : i / TILE_M, row = A_BY_STEP ? i / DEPTH : i % TILE_M;
			smem.a[step][row] = step0 + step < depth ? a(row, step0 + step) : 0;
		}
		for (int i = threadIdx.x; i < TILE_N * DEPTH; i += 32 * WARPS) {
			const int step = B_BY_STEP ? i % DEPTH : i / TILE_N, col = B_BY_STEP ? i / DEPTH : i % TILE_N;
			smem.b[step][col] = step0 + step < depth ? b(step0 + step, col) : 0;
		}
		__syncthreads(); // writers of the tiles before their readers
#pragma unroll
		for (int step = 0; step < DEPTH; step++)
#pragma unroll
			for (int i = 0; i < ROWS; i++)
#pragma unroll
				for (int j = 0; j < COLS; j++)
					acc[i][j] += smem.a[step][row0 + i] * smem.b[step][col0 + j];
		__syncthreads(); // readers before the next step overwrites the tiles
	}
}

// visit(row, col, value) for the cells of this thread, counted from the tile's corner.
template <class Visit> DEVICE void each_cell(const float (&acc)[ROWS][COLS], Visit visit)
{
#pragma unroll
	for (int i = 0; i < ROWS; i++)
#pragma unroll
		for (int j = 0; j < COLS; j++)
			visit((int)threadIdx.x / 16 * ROWS + i, (int)threadIdx.x % 16 * COLS + j, acc[i][j]);
}

// One head of a 16-bit tensor as a matrix, from the entry's first row on.
struct Matrix {
	unsigned short *data;
	long long stride;
	__device__ __forceinline__ Matrix(const fagen_abi_tensor &t, int b, int h, int first)
	    : data(reinterpret_cast<unsigned short *>(t.data) + entry_offset(t, b, first) + h * t.stride_head),
	      stride(t.stride_seq)
	{
	}
	__device__ __forceinline__ float load(int row, int col) const
	{
		return cvt_f32(data[row * stride + col], Element{});
	}
	__device__ __forceinline__ void store(int row, int col, float v) const
	{
		data[row * stride + col] = (unsigned short)cvt_rn_x2(v, 0, Element{});
	}
};

DEVICE int head_kv(const fagen_abi &p, int h) { return h / (KV_GROUP > 0 ? KV_GROUP : p.kv_group); }

// A row's float of lse or dlse.
DEVICE float *row_float(const fagen_abi &p, const fagen_abi_tensor &t, int b, int h, int q)
{
	return reinterpret_cast<float *>(t.data) + entry_offset(t, b, first_q(&p, b)) + h * t.stride_head +
	       q * t.stride_seq;
}

DEVICE float *delta_row(const fagen_abi &p, int b, int h, int q)
{
	return reinterpret_cast<float *>(p.delta) + ((long long)b * p.heads_q + h) * p.seqlen_q + q;
}

// Row q of the scores of (b, h).
DEVICE float *score_row(const fagen_abi &p, unsigned long long scores, int b, int h, int q)
{
	return reinterpret_cast<float *>(scores) + (((long long)b * p.heads_q + h) * p.seqlen_q + q) * p.seqlen_k;
}

// The tile of scores that a CTA owns.
struct Tile {
	int q0, k0, h, b, sq, sk;
	__device__ __forceinline__ explicit Tile(const fagen_abi &p)
	{
		const int tiles_q = ceil_div(p.seqlen_q, TILE_M), tiles_k = ceil_div(p.seqlen_k, TILE_N);
		k0 = blockIdx.x % tiles_k * TILE_N;
		q0 = blockIdx.x / tiles_k % tiles_q * TILE_M;
		h = blockIdx.x / tiles_k / tiles_q % p.heads_q;
		b = blockIdx.x / tiles_k / tiles_q / p.heads_q;
		sq = sequence_q(&p, b);
		sk = sequence_k(&p, b);
	}
};

// visit(q, k, dot product) for the cells of a tile of Q K^T that exist.
template <class Visit> DEVICE void each_score(const fagen_abi &p, const Tile &t, Smem &smem, Visit visit)
{
	const Matrix query(p.query, t.b, t.h, first_q(&p, t.b)), key(p.key, t.b, head_kv(p, t.h), first_k(&p, t.b));
	float acc[ROWS][COLS] = {};
	tile_product<true, true>(
		acc, smem, HEAD_DIM_QK,
		[&](int row, int d) { return t.q0 + row < t.sq ? query.load(t.q0 + row, d) : 0; },
		[&](int d, int col) { return t.k0 + col < t.sk ? key.load(t.k0 + col, d) : 0; });
	each_cell(acc, [&](int row, int col, float s) {
		const int q = t.q0 + row, k = t.k0 + col;
		if (q < t.sq && k < t.sk)
			visit(q, k, s);
	});
}

// to = scores from, for TILE_M rows: out from P and V, dquery from dscores and K.
template <int WIDTH>
DEVICE void rows_times_keys(const fagen_abi &p, Smem &smem, unsigned long long scores, const Matrix &from,
                            const Matrix &to, int b, int h, int q0)
{
	const float *cells = score_row(p, scores, b, h, q0);
	const int sq = sequence_q(&p, b), sk = sequence_k(&p, b), slot = slot_q(&p, b);
#pragma unroll 1
	for (int d0 = 0; d0 < WIDTH; d0 += TILE_N) {
		float acc[ROWS][COLS] = {};
		tile_product<true, false>(
			acc, smem, sk,
			[&](int row, int k) { return q0 + row < sq ? cells[(long long)row * p.seqlen_k + k] : 0; },
			[&](int k, int col) { return d0 + col < WIDTH ? from.load(k, d0 + col) : 0; });
		each_cell(acc, [&](int row, int col, float v) {
			if (q0 + row < slot && d0 + col < WIDTH)
				to.store(q0 + row, d0 + col, q0 + row < sq ? v : 0);
		});
	}
}

// scores = logit in base 2, -inf where hidden. One tile of one head.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) naive_scores(const __grid_constant__ fagen_abi p)
{
	extern __shared__ __align__(16) unsigned char smem_bytes[];
	const Tile t(p);
	each_score(p, t, *reinterpret_cast<Smem *>(smem_bytes), [&](int q, int k, float s) {
		const bool visible = mask_plain(&p, t.b, t.h, q, k);
		const float logit = score_plain(&p, t.b, t.h, q, k, s).score * LOGIT_SCALE;
		score_row(p, p.scores, t.b, t.h, q)[k] = visible ? logit : minus_infinity();
	});
}

// scores = softmax(scores) after dropout, and lse; the sink is a key without a value. One warp a row, WARPS rows of one head.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) naive_softmax(const __grid_constant__ fagen_abi p)
{
	const Owned own = rows_owned<WARPS>(p);
	const int q = own.tile * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, h = own.h, b = own.b;
	if (own.tile < 0 || q >= slot_q(&p, b))
		return;
	if (q >= sequence_q(&p, b)) {
		if (WRITE_LSE && lane == 0)
			*row_float(p, p.lse, b, h, q) = minus_infinity();
		return;
	}
	const int sk = sequence_k(&p, b);
	float *row = score_row(p, p.scores, b, h, q);

	float max = minus_infinity();
	for (int k = lane; k < sk; k += 32)
		max = fmaxf(max, row[k]);
	for (int i = 16; i > 0; i /= 2)
		max = fmaxf(max, __shfl_xor_sync(~0u, max, i));
	const float sink2 = SINK ? sink_plain(&p, b, h) * LOG2_E : minus_infinity();
	max = fmaxf(max, sink2);
	const bool empty = max == minus_infinity();
	float sum = 0;
	for (int k = lane; !empty && k < sk; k += 32)
		sum += ex2(row[k] - max);
	for (int i = 16; i > 0; i /= 2)
		sum += __shfl_xor_sync(~0u, sum, i);
	if (SINK && !empty)
		sum += ex2(sink2 - max);
	const DropoutKey dropout = dropout_key(p, b, h);
	for (int k = lane; k < sk; k += 32)
		row[k] = empty || !dropout_keep(dropout, q, k) ? 0 : ex2(row[k] - max) / sum * KEEP_SCALE;
	if (WRITE_LSE && lane == 0)
		*row_float(p, p.lse, b, h, q) = empty ? minus_infinity() : (max + lg2(sum)) * LN_2;
}

// out = scores V. TILE_M rows of one head.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) naive_out(const __grid_constant__ fagen_abi p)
{
	extern __shared__ __align__(16) unsigned char smem_bytes[];
	const Owned own = rows_owned<TILE_M>(p);
	const int q0 = own.tile * TILE_M, h = own.h, b = own.b;
	if (own.tile < 0)
		return;
	rows_times_keys<HEAD_DIM_V>(p, *reinterpret_cast<Smem *>(smem_bytes), p.scores,
	                            Matrix(p.value, b, head_kv(p, h), first_k(&p, b)),
	                            Matrix(p.out, b, h, first_q(&p, b)), b, h, q0);
}

// scores = P before dropout, from the lse given, and dscores = derivative of the natural logit by the dot product; both
// 0 where hidden. One tile of one head.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) naive_probs(const __grid_constant__ fagen_abi p)
{
	extern __shared__ __align__(16) unsigned char smem_bytes[];
	const Tile t(p);
	each_score(p, t, *reinterpret_cast<Smem *>(smem_bytes), [&](int q, int k, float s) {
		const float lse = *row_float(p, p.lse, t.b, t.h, q);
		const bool visible = lse != minus_infinity() && mask_plain(&p, t.b, t.h, q, k);
		const Scored x = score_plain(&p, t.b, t.h, q, k, s);
		score_row(p, p.scores, t.b, t.h, q)[k] = visible ? ex2(x.score * LOGIT_SCALE - lse / LN_2) : 0;
		score_row(p, p.dscores, t.b, t.h, q)[k] = visible ? x.grad * SOFTMAX_SCALE : 0;
	});
}

// delta = rowsum(dout * out) - dlse. One warp a row, WARPS rows of one head.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) naive_delta(const __grid_constant__ fagen_abi p)
{
	const Owned own = rows_owned<WARPS>(p);
	const int q = own.tile * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, h = own.h, b = own.b;
	if (own.tile < 0 || q >= sequence_q(&p, b))
		return;
	const Matrix out(p.out, b, h, first_q(&p, b)), dout(p.dout, b, h, first_q(&p, b));
	float sum = 0;
	for (int d = lane; d < HEAD_DIM_V; d += 32)
		sum += out.load(q, d) * dout.load(q, d);
	for (int i = 16; i > 0; i /= 2)
		sum += __shfl_xor_sync(~0u, sum, i);
	if (lane == 0)
		*delta_row(p, b, h, q) = sum - (p.dlse.data ? *row_float(p, p.dlse, b, h, q) : 0);
}

// scores = P after dropout; dscores = gradient of the raw dot products. One tile of one head.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) naive_dscores(const __grid_constant__ fagen_abi p)
{
	extern __shared__ __align__(16) unsigned char smem_bytes[];
	const Tile t(p);
	const Matrix dout(p.dout, t.b, t.h, first_q(&p, t.b)), value(p.value, t.b, head_kv(p, t.h), first_k(&p, t.b));
	const DropoutKey dropout = dropout_key(p, t.b, t.h);

	float acc[ROWS][COLS] = {}; // gradient of P after dropout
	tile_product<true, true>(
		acc, *reinterpret_cast<Smem *>(smem_bytes), HEAD_DIM_V,
		[&](int row, int d) { return t.q0 + row < t.sq ? dout.load(t.q0 + row, d) : 0; },
		[&](int d, int col) { return t.k0 + col < t.sk ? value.load(t.k0 + col, d) : 0; });
	each_cell(acc, [&](int row, int col, float dp) {
		const int q = t.q0 + row, k = t.k0 + col;
		if (q >= t.sq || k >= t.sk)
			return;
		float *prob = score_row(p, p.scores, t.b, t.h, q) + k, *grad = score_row(p, p.dscores, t.b, t.h, q) + k;
		const float keep = dropout_keep(dropout, q, k) ? KEEP_SCALE : 0;
		*grad *= *prob * (dp * keep - *delta_row(p, t.b, t.h, q));
		*prob *= keep;
	});
}

// dquery = dscores K. TILE_M rows of one head.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) naive_dquery(const __grid_constant__ fagen_abi p)
{
	extern __shared__ __align__(16) unsigned char smem_bytes[];
	const Owned own = rows_owned<TILE_M>(p);
	const int q0 = own.tile * TILE_M, h = own.h, b = own.b;
	if (own.tile < 0)
		return;
	rows_times_keys<HEAD_DIM_QK>(p, *reinterpret_cast<Smem *>(smem_bytes), p.dscores,
	                             Matrix(p.key, b, head_kv(p, h), first_k(&p, b)),
	                             Matrix(p.dquery, b, h, first_q(&p, b)), b, h, q0);
}

// grad = sum over the group's query heads of scores^T rows, for TILE_M keys: dvalue from P and dout, dkey from dscores
// and query.
template <int WIDTH>
DEVICE void keys_times_rows(const fagen_abi &p, Smem &smem, unsigned long long scores, const fagen_abi_tensor &rows,
                            const Matrix &grad, int b, int h_kv, int k0)
{
	const int group = KV_GROUP > 0 ? KV_GROUP : p.kv_group;
	const int sq = sequence_q(&p, b), sk = sequence_k(&p, b), slot = slot_k(&p, b);
#pragma unroll 1
	for (int d0 = 0; d0 < WIDTH; d0 += TILE_N) {
		float acc[ROWS][COLS] = {};
		for (int h = h_kv * group; h < (h_kv + 1) * group; h++) {
			const Matrix row_of(rows, b, h, first_q(&p, b));
			tile_product<false, false>(
				acc, smem, sq,
				[&](int key, int q) {
					return k0 + key < sk ? score_row(p, scores, b, h, q)[k0 + key] : 0;
				},
				[&](int q, int col) { return d0 + col < WIDTH ? row_of.load(q, d0 + col) : 0; });
		}
		each_cell(acc, [&](int key, int col, float g) {
			if (k0 + key < slot && d0 + col < WIDTH)
				grad.store(k0 + key, d0 + col, k0 + key < sk ? g : 0);
		});
	}
}

// TILE_M keys of one key/value head.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) naive_dkey_dvalue(const __grid_constant__ fagen_abi p)
{
	extern __shared__ __align__(16) unsigned char smem_bytes[];
	Smem &smem = *reinterpret_cast<Smem *>(smem_bytes);
	const Owned own = keys_owned<TILE_M>(p, p.heads_kv);
	const int k0 = own.tile * TILE_M, h_kv = own.h, b = own.b;
	if (own.tile < 0)
		return;
	keys_times_rows<HEAD_DIM_QK>(p, smem, p.dscores, p.query, Matrix(p.dkey, b, h_kv, first_k(&p, b)), b, h_kv, k0);
	keys_times_rows<HEAD_DIM_V>(p, smem, p.scores, p.dout, Matrix(p.dvalue, b, h_kv, first_k(&p, b)), b, h_kv, k0);
}
