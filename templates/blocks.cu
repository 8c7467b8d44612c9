// The block layout that lists give, spread out before the kernels that ask block_keep: one byte for each block. One CTA
// of 128 threads for a block row of one head. Ids outside the layout are ignored, counts are brought into it.
extern "C" __global__ void __launch_bounds__(128) fagen_blocks(const __grid_constant__ fagen_abi p)
{
	const int blocks_q = ceil_div(p.seqlen_q, BLOCK_Q), blocks_k = ceil_div(p.seqlen_k, BLOCK_K);
	const Owned own = rows_owned<BLOCK_Q>(p);
	const int block_q = own.tile, h = own.h, b = own.b;
	if (block_q < 0)
		return;
	unsigned char *row = reinterpret_cast<unsigned char *>(p.blocks) +
	                     (((long long)b * p.heads_q + h) * blocks_q + block_q) * blocks_k;

	for (int k = threadIdx.x; k < blocks_k; k += 128)
		row[k] = 0;
	__syncthreads(); // writers of zeros before those of ones
	const int count = int_min(block_list_count(&p, b, h, block_q), blocks_k);
	for (int i = threadIdx.x; i < count; i += 128) {
		const int k = block_list_id(&p, b, h, block_q, i);
		if (k >= 0 && k < blocks_k)
			row[k] = 1;
	}
}
