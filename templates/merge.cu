// Two partial results of the same queries, over keys that have nothing in common, become one:
//   LSE = log(e^LSE_a + e^LSE_b),   O = w_a O_a + w_b O_b,   w = e^(LSE_part - LSE),   w_a + w_b = 1.
// LSE -inf says that a part saw no key: its O is not read. Derivatives:
//   dO_a = w_a dO,   dLSE_a = w_a dLSE + w_a w_b dO . (O_a - O_b),   and with a and b exchanged.
// Memory is all that counts: half a warp for a row. Sums are taken in a fixed order.

constexpr int MERGE_LANES = FAGEN_MERGE_THREADS / FAGEN_MERGE_ROWS; // of a row
constexpr int MERGE_STEP = 4 * MERGE_LANES;                         // columns that they take at a time
static_assert(MERGE_LANES == 16, "the sum of a row stays inside a warp");

DEVICE float merge_infinity() { return __int_as_float(0x7f800000); }
DEVICE long long merge_row(const fagen_abi_tensor &t, int b, int h, int q)
{
	return b * t.stride_batch + h * t.stride_head + q * t.stride_seq;
}
DEVICE float *merge_float(const fagen_abi_tensor &t, int b, int h, int q)
{
	return reinterpret_cast<float *>(t.data) + merge_row(t, b, h, q);
}

// Up to four elements of a row, from column d on; zero behind the last column.
DEVICE void merge_load(float (&x)[4], const fagen_merge_abi &p, const fagen_abi_tensor &t, int type, long long row,
                       int d)
{
	if (type == FAGEN_MERGE_FLOAT32) {
		const float *from = reinterpret_cast<const float *>(t.data) + row + d;
		if (p.vector) {
			const float4 all = *reinterpret_cast<const float4 *>(from);
			x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
		} else {
#pragma unroll
			for (int e = 0; e < 4; e++)
				x[e] = d + e < p.head_dim ? from[e] : 0;
		}
		return;
	}
	const unsigned short *from = reinterpret_cast<const unsigned short *>(t.data) + row + d;
	unsigned short half[4];
	if (p.vector) {
		const unsigned long long all = *reinterpret_cast<const unsigned long long *>(from);
#pragma unroll
		for (int e = 0; e < 4; e++)
			half[e] = all >> (16 * e);
	} else {
#pragma unroll
		for (int e = 0; e < 4; e++)
			half[e] = d + e < p.head_dim ? from[e] : 0;
	}
#pragma unroll
	for (int e = 0; e < 4; e++)
		x[e] = type == FAGEN_MERGE_BF16 ? cvt_f32(half[e], Bf16{}) : cvt_f32(half[e], Fp16{});
}

DEVICE void merge_store(const float (&x)[4], const fagen_merge_abi &p, const fagen_abi_tensor &t, int type,
                        long long row, int d)
{
	if (type == FAGEN_MERGE_FLOAT32) {
		float *to = reinterpret_cast<float *>(t.data) + row + d;
		if (p.vector) {
			*reinterpret_cast<float4 *>(to) = make_float4(x[0], x[1], x[2], x[3]);
		} else {
#pragma unroll
			for (int e = 0; e < 4; e++)
				if (d + e < p.head_dim)
					to[e] = x[e];
		}
		return;
	}
	unsigned short *to = reinterpret_cast<unsigned short *>(t.data) + row + d;
	unsigned pair[2];
#pragma unroll
	for (int i = 0; i < 2; i++)
		pair[i] = type == FAGEN_MERGE_BF16 ? cvt_rn_x2(x[2 * i], x[2 * i + 1], Bf16{})
		                                   : cvt_rn_x2(x[2 * i], x[2 * i + 1], Fp16{});
	if (p.vector) {
		*reinterpret_cast<unsigned long long *>(to) = pair[0] | (unsigned long long)pair[1] << 32;
	} else {
#pragma unroll
		for (int e = 0; e < 4; e++)
			if (d + e < p.head_dim)
				to[e] = pair[e / 2] >> (e % 2 * 16);
	}
}

// This lane's row, and the shares of the two parts in it: exactly 0 of a part without keys, both 0 where there is no key.
struct MergeRow {
	int b, h, q, d; // d: this lane's first column
	bool inside;
	float lse, share_a, share_b;
};

DEVICE MergeRow merge_begin(const fagen_merge_abi &p)
{
	const int tiles = (p.seqlen + FAGEN_MERGE_ROWS - 1) / FAGEN_MERGE_ROWS, head = blockIdx.x / tiles;
	MergeRow at;
	at.b = head / p.heads, at.h = head % p.heads;
	at.q = blockIdx.x % tiles * FAGEN_MERGE_ROWS + mov_tid_x() / MERGE_LANES;
	at.d = mov_tid_x() % MERGE_LANES * 4;
	at.inside = at.q < p.seqlen;
	at.lse = -merge_infinity(), at.share_a = at.share_b = 0;
	if (at.inside) {
		constexpr float LOG2_E_ = 1.44269504088896341f, LN_2_ = 0.693147180559945309f;
		const float a = *merge_float(p.lse_a, at.b, at.h, at.q), b = *merge_float(p.lse_b, at.b, at.h, at.q);
		const float high = fmaxf(a, b);
		if (high != -merge_infinity()) {
			const float weight_a = ex2((a - high) * LOG2_E_), weight_b = ex2((b - high) * LOG2_E_);
			const float sum = weight_a + weight_b; // 1 to 2
			at.lse = high + LN_2_ * lg2(sum);
			at.share_a = weight_a / sum, at.share_b = weight_b / sum;
		}
	}
	__syncwarp(); // readers of LSE before its writers: a result may take the place of a part
	return at;
}

extern "C" __global__ void __launch_bounds__(FAGEN_MERGE_THREADS) fagen_merge(const __grid_constant__ fagen_merge_abi p)
{
	const MergeRow at = merge_begin(p);
	if (!at.inside)
		return;
	if (p.lse.data && at.d == 0)
		*merge_float(p.lse, at.b, at.h, at.q) = at.lse;
	const long long row = merge_row(p.out, at.b, at.h, at.q), row_a = merge_row(p.out_a, at.b, at.h, at.q),
			row_b = merge_row(p.out_b, at.b, at.h, at.q);
	for (int d = at.d; d < p.head_dim; d += MERGE_STEP) {
		float a[4] = {}, b[4] = {};
		if (at.share_a != 0)
			merge_load(a, p, p.out_a, p.type_a, row_a, d);
		if (at.share_b != 0)
			merge_load(b, p, p.out_b, p.type_b, row_b, d);
#pragma unroll
		for (int e = 0; e < 4; e++)
			a[e] = at.share_a * a[e] + at.share_b * b[e];
		merge_store(a, p, p.out, p.type, row, d);
	}
}

extern "C" __global__ void __launch_bounds__(FAGEN_MERGE_THREADS)
	fagen_merge_backward(const __grid_constant__ fagen_merge_abi p)
{
	const MergeRow at = merge_begin(p);
	const bool both = at.share_a != 0 && at.share_b != 0; // else LSE follows one part alone
	const long long row = merge_row(p.dout, at.b, at.h, at.q);
	float sum = 0; // dO . (O_a - O_b)
	if (both) {
		const long long row_a = merge_row(p.out_a, at.b, at.h, at.q),
				row_b = merge_row(p.out_b, at.b, at.h, at.q);
		for (int d = at.d; d < p.head_dim; d += MERGE_STEP) {
			float g[4], a[4], b[4];
			merge_load(g, p, p.dout, p.type, row, d);
			merge_load(a, p, p.out_a, p.type_a, row_a, d);
			merge_load(b, p, p.out_b, p.type_b, row_b, d);
#pragma unroll
			for (int e = 0; e < 4; e++)
				sum += g[e] * (a[e] - b[e]);
		}
	}
#pragma unroll
	for (int i = MERGE_LANES / 2; i > 0; i /= 2)
		sum += __shfl_xor_sync(~0u, sum, i);
	if (!at.inside)
		return;
	if (at.d == 0) {
		const float dlse = p.dlse.data ? *merge_float(p.dlse, at.b, at.h, at.q) : 0;
		const float cross = at.share_a * at.share_b * sum;
		*merge_float(p.dlse_a, at.b, at.h, at.q) = at.share_a != 0 ? at.share_a * dlse + cross : 0;
		*merge_float(p.dlse_b, at.b, at.h, at.q) = at.share_b != 0 ? at.share_b * dlse - cross : 0;
	}
	const long long to_a = merge_row(p.dout_a, at.b, at.h, at.q), to_b = merge_row(p.dout_b, at.b, at.h, at.q);
	for (int d = at.d; d < p.head_dim; d += MERGE_STEP) {
		float g[4] = {}, x[4];
		if (at.lse != -merge_infinity())
			merge_load(g, p, p.dout, p.type, row, d);
#pragma unroll
		for (int e = 0; e < 4; e++)
			x[e] = at.share_a * g[e];
		merge_store(x, p, p.dout_a, p.type_a, to_a, d);
#pragma unroll
		for (int e = 0; e < 4; e++)
			x[e] = at.share_b * g[e];
		merge_store(x, p, p.dout_b, p.type_b, to_b, d);
	}
}
