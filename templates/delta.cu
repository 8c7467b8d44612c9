// Before every backward skeleton: how they reach tensors, what they keep of query rows in the workspace, and the kernel that writes it. The sums of dQ,
// which it clears or says nothing is in, have a layout that only the skeleton knows.

struct Statistics {
	float lse2[TILE_M], delta[TILE_M];
}; // base 2 and +inf where no key is seen; rowsum(dO * O) - dlse

constexpr bool QUERY_APART = SUMS == SUMS_NONE;

DEVICE float infinity() { return __int_as_float(0x7f800000); }

// Which rows of the workspaces belong to a query tile. fagen_delta has as many CTAs, so it fits.
DEVICE int tile_index(const fagen_abi &p, int b, int h, int tile)
{
	return tile_number(p.cu_seqlens_q, p.seqlen_q, p.heads_q, b, h, tile, TILE_M);
}
DEVICE Statistics *tile_statistics(const fagen_abi &p, int index)
{
	return reinterpret_cast<Statistics *>(p.delta) + index;
}
// Who adds next to the sums: a word for each of two parts of them.
constexpr int TURN_PARTS = 2;
DEVICE unsigned *tile_turns(const fagen_abi &p, int index) { return reinterpret_cast<unsigned *>(p.turns) + TURN_PARTS * index; }
// FRESH: nothing has been stored. CLAIMED: somebody is about to. ORDERED, the rest: the key tile whose turn it is.
constexpr unsigned TURN_FRESH = 1u << 31, TURN_CLAIMED = 1u << 30;
constexpr int SUM_TILE = TILE_M * ((HEAD_DIM_QK + 15) / 16 * 16);
DEVICE float *tile_sums(const fagen_abi &p, int index)
{
	return reinterpret_cast<float *>(p.dquery_accum) + (long long)index * SUM_TILE;
}

// Position 0 of a head; `first` is the entry's first row, of queries or of keys.
DEVICE unsigned short *head_address(const fagen_abi_tensor &t, int b, int h, int first)
{
	return reinterpret_cast<unsigned short *>(t.data) + entry_offset(t, b, first) + h * t.stride_head;
}
DEVICE const float *row_address(const fagen_abi_tensor &t, int b, int h, int first, int q)
{
	return reinterpret_cast<const float *>(t.data) + entry_offset(t, b, first) + h * t.stride_head +
	       q * t.stride_seq;
}

// The last of the key tiles whose items visit a query tile, where the mask is one run: they are neighbours, for its bounds are affine. All lanes of a
// warp call it.
DEVICE int key_tile_last(const fagen_abi &p, int b, int tile)
{
	const int sq = sequence_q(&p, b), sk = sequence_k(&p, b);
#pragma unroll 1
	for (int last = ceil_div(sk, TILE_N) - 1; last >= 0; last -= 32) {
		const int k0 = (last - (int)(mov_tid_x() % 32)) * TILE_N;
		const Stream stream = stream_queries(k0, k0 + TILE_N, sq, sk, TILE_M);
		const unsigned seen = __ballot_sync(~0u, k0 >= 0 && stream_class(&stream, tile) != TILE_EMPTY);
		if (seen != 0)
			return last - (31 - __clz(seen & -seen));
	}
	return 0;
}

// The query tile of a CTA of fagen_delta or fagen_dquery, the last ones first: so the former leaves in L2 the sums that the main kernel begins with, and the
// latter begins with those that this leaves there.
DEVICE Owned rows_owned_back(const fagen_abi &p)
{
	return tile_owned<TILE_M, false>(p.cu_seqlens_q, p.batch, p.heads_q, p.seqlen_q, gridDim.x - 1 - blockIdx.x);
}

// TILE_M rows of one query head: their statistics, and what their sums begin with. Eight lanes a row.
extern "C" __global__ void __launch_bounds__(THREADS) fagen_delta(const __grid_constant__ fagen_abi p)
{
	const Owned own = rows_owned_back(p);
	const int tile = own.tile, h = own.h, b = own.b;
	if (tile < 0)
		return;
	const int index = tile_index(p, b, h, tile), sq = sequence_q(&p, b), first = first_q(&p, b);
	const unsigned short *out = head_address(p.out, b, h, first), *dout = head_address(p.dout, b, h, first);

	if constexpr (SUMS == SUMS_CLEARED) {
		float4 *sums = reinterpret_cast<float4 *>(tile_sums(p, index));
		for (int i = threadIdx.x; i < SUM_TILE / 4; i += THREADS)
			sums[i] = make_float4(0, 0, 0, 0);
	} else if (!QUERY_APART && threadIdx.x < 32) {
		const int whose = SUMS == SUMS_ORDERED ? key_tile_last(p, b, tile) : 0;
		if (threadIdx.x < TURN_PARTS)
			tile_turns(p, index)[threadIdx.x] = TURN_FRESH | whose;
	}

	for (int row = threadIdx.x / 8; row < TILE_M; row += THREADS / 8) {
		const int q = tile * TILE_M + row;
		float sum = 0;
		if (q < sq)
#pragma unroll SUMS == SUMS_CLEARED && LAYOUT == LAYOUT_DENSE ? 4 : 2 // else ptxas has few registers in mind, or needs more, and would spill
			for (int d = threadIdx.x % 8 * 8; d < HEAD_DIM_V; d += 64) {
				const unsigned short *o = out + q * p.out.stride_seq + d,
						     *g = dout + q * p.dout.stride_seq + d;
				union {
					uint4 all;
					unsigned short each[8];
				} x, y;
				if constexpr (LOAD_BYTES == 16) {
					x.all = *reinterpret_cast<const uint4 *>(o);
					y.all = *reinterpret_cast<const uint4 *>(g);
				} else {
#pragma unroll
					for (int e = 0; e < 8; e++)
						x.each[e] = o[e], y.each[e] = g[e];
				}
#pragma unroll
				for (int e = 0; e < 8; e++)
					sum += cvt_f32(x.each[e], Element{}) * cvt_f32(y.each[e], Element{});
			}
		for (int i = 4; i > 0; i /= 2)
			sum += __shfl_xor_sync(~0u, sum, i);
		if (threadIdx.x % 8 == 0) {
			float lse2 = infinity(), delta = 0; // of rows past the end too: P = 2^-inf = 0, and dS = 0
			if (q < sq) {
				const float lse = *row_address(p.lse, b, h, first, q);
				if (lse != -infinity()) {
					lse2 = lse * 1.44269504088896341f;
					if (fabsf(lse2) > 0x1p18f) // what rounding does to such logits must not make P of the largest exceed 1
						lse2 += fabsf(lse2) * 0x1p-21f;
					delta = sum - (p.dlse.data ? *row_address(p.dlse, b, h, first, q) : 0);
				}
			}
			tile_statistics(p, index)->lse2[row] = lse2;
			tile_statistics(p, index)->delta[row] = delta;
		}
	}
}
