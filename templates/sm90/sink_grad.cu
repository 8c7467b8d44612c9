// Gradient of the sink, the only one of an input that this target's backward pass has. Of a row it is -share of the sink * delta.

// One query tile of one head: its partial sum. One warp.
extern "C" __global__ void __launch_bounds__(32) fagen_sink_grad(const __grid_constant__ fagen_abi p)
{
	const Owned own = rows_owned<TILE_M>(p);
	if (!grad_wanted(p) || own.tile < 0 || own.tile * TILE_M >= sequence_q(&p, own.b))
		return;
	const float sink2 = sink_plain(&p, own.b, own.h) * LOG2_E;
	const Statistics *const rows = tile_statistics(p, tile_index(p, own.b, own.h, own.tile));
	float sum = 0;
#pragma unroll
	for (int i = 0; i < TILE_M; i += 32)
		if (i + threadIdx.x < TILE_M)
			sum -= ex2(fminf(sink2 - rows->lse2[i + threadIdx.x], 0)) * rows->delta[i + threadIdx.x];
	for (int i = 16; i > 0; i /= 2)
		sum += __shfl_xor_sync(~0u, sum, i);
	if (threadIdx.x == 0)
		grad_partial(p, own.b * p.heads_q + own.h, own.tile)[grad_base(GRAD_SINK)] = sum;
}
