// O and LSE of query rows from those over parts of their keys, which fwd.cu has left in the workspace: LSE = log(sum e^LSE_i), O = sum w_i O_i,
// w_i = e^(LSE_i - LSE). The sink is a part whose O is 0. A warp has a row, and takes the parts in their order. With CUT rows are those of tiles that are cut.

constexpr int MERGE_ROWS = 4; // of a CTA

extern "C" __global__ void __launch_bounds__(32 * MERGE_ROWS) fagen_forward_merge(const __grid_constant__ fagen_abi p)
{
	constexpr unsigned CTAS = TILE_M / MERGE_ROWS; // of a tile that is cut
	const unsigned parts = part_count(p);
	const Owned own = CUT ? item_owned(p, p.cut_first + blockIdx.x / CTAS * parts) : rows_owned<MERGE_ROWS>(p);
	const int b = own.b, h = own.h, lane = mov_tid_x() % 32;
	const int q = (CUT ? own.tile * TILE_M + blockIdx.x % CTAS * MERGE_ROWS : own.tile * MERGE_ROWS) + mov_tid_x() / 32;
	if (own.tile < 0 || q >= slot_q(&p, b))
		return;
	const bool used = q < sequence_q(&p, b); // else it is padding, of which no part has written
	const Part *const part = CUT ? parts_cut(p, blockIdx.x / CTAS) : parts_of(p, b, h, q / TILE_Q);
	const int row = q % TILE_Q * TILE_SLOTS + h % TILE_HEADS;
	const auto lse2 = [&](int i) { return used ? part[i].lse2[row] : minus_infinity(); };
	const float sink2 = SINK && used ? sink_plain(&p, b, h) * LOG2_E : minus_infinity();
	float high = sink2;
#pragma unroll
	for (unsigned i = 0; i < parts; i++)
		high = fmaxf(high, lse2(i));
	high = high == minus_infinity() ? 0 : high; // no key and no sink
	float sum = SINK ? ex2(sink2 - high) : 0;
#pragma unroll
	for (unsigned i = 0; i < parts; i++)
		sum += ex2(lse2(i) - high);
	const float scale = sum == 0 ? 0 : rcp(sum);
	const int first = first_q(&p, b);
	unsigned short *const out =
		reinterpret_cast<unsigned short *>(p.out.data) + entry_offset(p.out, b, first) + h * p.out.stride_head + q * p.out.stride_seq;
#pragma unroll
	for (int d = 4 * lane; d < HEAD_DIM_V; d += 128) {
		float o[4] = {};
#pragma unroll
		for (unsigned i = 0; i < parts; i++) {
			const float weight = ex2(lse2(i) - high) * scale; // before what it weighs: sums of that may be too large
			if (weight != 0) { // else there may be none
				const float4 x = *reinterpret_cast<const float4 *>(&part[i].out[row][d]);
				o[0] += weight * x.x, o[1] += weight * x.y, o[2] += weight * x.z, o[3] += weight * x.w;
			}
		}
		*reinterpret_cast<uint2 *>(out + d) =
			make_uint2(cvt_rn_x2(o[0], o[1], Element{}), cvt_rn_x2(o[2], o[3], Element{}));
	}
	if (WRITE_LSE && lane == 0)
		(reinterpret_cast<float *>(p.lse.data) + entry_offset(p.lse, b, first) + h * p.lse.stride_head)[q * p.lse.stride_seq] =
			sum == 0 ? minus_infinity() : LN_2 * (high + lg2(sum));
}
