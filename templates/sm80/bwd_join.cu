// dK and dV of the key tiles that are cut: the sums of those over parts of a tile's visits, which bwd.cu has left in the workspace, in the order of
// the parts. A CTA has a tile, with threads and accumulators as in fagen_backward.

template <int BLOCKS, int COLUMNS> DEVICE void part_add(float (&acc)[BLOCKS][COLUMNS][4], const float4 *from)
{
#pragma unroll
	for (int i = 0; i < BLOCKS; i++)
#pragma unroll
		for (int j = 0; j < COLUMNS; j++) {
			const float4 x = from[(i * COLUMNS + j) * THREADS];
			acc[i][j][0] += x.x, acc[i][j][1] += x.y, acc[i][j][2] += x.z, acc[i][j][3] += x.w;
		}
}

extern "C" __global__ void __launch_bounds__(THREADS) fagen_backward_join(const __grid_constant__ fagen_abi p)
{
	const Owned own = item_owned(p, item_at(p, p.cut_first + blockIdx.x));
	if (own.tile < 0)
		return;
	Grads grads = {};
#pragma unroll 1
	for (unsigned part = 0; part < p.cut_parts; part++) {
		const float4 *const from = part_at(p, blockIdx.x * p.cut_parts + part);
		part_add(grads.key, from);
		if constexpr (!HALVES)
			part_add(grads.value, from + GRADS_K * THREADS);
	}
	grads_store(p, grads, own.b, own.h, own.tile * TILE_N);
}
