// O and LSE of query rows from those over parts of their keys, which fwd.cu has left in the workspace: LSE = log(sum e^LSE_i), O = sum w_i O_i,
// w_i = e^(LSE_i - LSE). The sink is a part whose O is 0. A warp has a row, and takes the parts in their order.

constexpr int MERGE_ROWS = 4; // of a CTA

extern "C" __global__ void __launch_bounds__(32 * MERGE_ROWS) fagen_forward_merge(const __grid_constant__ fagen_abi p)
{
	const Owned own = rows_owned<MERGE_ROWS>(p);
	const int b = own.b, h = own.h, q = own.tile * MERGE_ROWS + mov_tid_x() / 32, lane = mov_tid_x() % 32;
	if (own.tile < 0 || q >= slot_q(&p, b))
		return;
	const bool used = q < sequence_q(&p, b); // else it is padding, of which no part has written
	const Part *const part = parts_of(p, b, h, q / TILE_Q);
	const int row = q % TILE_Q * TILE_SLOTS + h % TILE_HEADS;
	float weight[SPLITS], high = minus_infinity(), sum = 0;
#pragma unroll
	for (int i = 0; i < SPLITS; i++)
		weight[i] = used ? part[i].lse2[row] : minus_infinity();
#pragma unroll
	for (int i = 0; i < SPLITS; i++)
		high = fmaxf(high, weight[i]);
	const float sink2 = SINK && used ? sink_plain(&p, b, h) * LOG2_E : minus_infinity();
	high = fmaxf(high, sink2);
	high = high == minus_infinity() ? 0 : high; // no key and no sink
#pragma unroll
	for (int i = 0; i < SPLITS; i++) {
		weight[i] = ex2(weight[i] - high);
		sum += weight[i];
	}
	sum += SINK ? ex2(sink2 - high) : 0;
	const float scale = sum == 0 ? 0 : rcp(sum);
#pragma unroll
	for (int i = 0; i < SPLITS; i++)
		weight[i] *= scale; // before what it weighs: sums of that may be too large
	const int first = first_q(&p, b);
	if (WRITE_LSE && lane == 0)
		(reinterpret_cast<float *>(p.lse.data) + entry_offset(p.lse, b, first) + h * p.lse.stride_head)[q * p.lse.stride_seq] =
			sum == 0 ? minus_infinity() : LN_2 * (high + lg2(sum));
	unsigned short *const out =
		reinterpret_cast<unsigned short *>(p.out.data) + entry_offset(p.out, b, first) + h * p.out.stride_head + q * p.out.stride_seq;
#pragma unroll
	for (int d = 4 * lane; d < HEAD_DIM_V; d += 128) {
		float o[4] = {};
#pragma unroll
		for (int i = 0; i < SPLITS; i++)
			if (weight[i] != 0) { // else there may be none
				const float4 x = *reinterpret_cast<const float4 *>(&part[i].out[row][d]);
				o[0] += weight[i] * x.x, o[1] += weight[i] * x.y, o[2] += weight[i] * x.z, o[3] += weight[i] * x.w;
			}
		*reinterpret_cast<uint2 *>(out + d) =
			make_uint2(cvt_rn_x2(o[0], o[1], Element{}), cvt_rn_x2(o[2], o[3], Element{}));
	}
}
