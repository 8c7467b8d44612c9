// dK and dV of keys: the sums of those over parts of a key tile's visits, which bwd.cu has left in the workspace, in the order of the parts.
// A CTA has 16 keys, with CUT of a tile that is cut, a warp 32 columns of dK or dV.

constexpr int MERGE_KEYS = 16, MERGE_BLOCKS = 4; // of 8 columns
constexpr int MERGE_WARPS_QK = (HEAD_DIM_QK + 31) / 32, MERGE_WARPS = MERGE_WARPS_QK + (HEAD_DIM_V + 31) / 32;
static_assert(TILE_N % MERGE_KEYS == 0 && sizeof(Part) % 16 == 0, "a CTA has keys of one tile");

// Columns of blocks `block` and on, of COLUMNS. part, sums: of the tile's first part, and of these keys in it.
template <int COLUMNS>
DEVICE void columns_merge(const fagen_abi_tensor &t, const fagen_abi &p, const Keys &own, const Part *part, const float *sums, int block, float scale)
{
	const int lane = mov_tid_x() % 32;
	float acc[4 * MERGE_BLOCKS] = {};
#pragma unroll 4
	for (int i = 0; i < (int)part_count(p); i++)
#pragma unroll
		for (int j = 0; j < MERGE_BLOCKS; j++)
			if (part[i].seen && block + j < COLUMNS / 8) {
				const float4 x = *reinterpret_cast<const float4 *>(sums + i * (sizeof(Part) / 4) + (block + j) * 128 + 4 * lane);
				acc[4 * j] += x.x, acc[4 * j + 1] += x.y, acc[4 * j + 2] += x.z, acc[4 * j + 3] += x.w;
			}
	unsigned short *const row0 = head_address(t, own.b, own.h, first_k(&p, own.b)) + 8 * block;
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const int k = own.k0 + lane / 4 + 8 * r;
		accumulators_store<8 * MERGE_BLOCKS>(row0 + k * t.stride_seq, acc, r, scale, lane % 4, k < sequence_k(&p, own.b),
		                                     k < slot_k(&p, own.b) && block + lane % 4 < COLUMNS / 8);
	}
}

extern "C" __global__ void __launch_bounds__(32 * MERGE_WARPS) fagen_backward_merge(const __grid_constant__ fagen_abi p)
{
	constexpr unsigned CTAS = TILE_N / MERGE_KEYS; // of a tile that is cut
	const Owned owned = CUT ? item_owned(p, p.cut_first + blockIdx.x / CTAS) : keys_owned<MERGE_KEYS>(p, p.heads_kv);
	if (owned.tile < 0)
		return;
	const Keys own = {owned.b, owned.h, CUT ? owned.tile * TILE_N + (int)(blockIdx.x % CTAS) * MERGE_KEYS : owned.tile * MERGE_KEYS};
	const Part *const part = part_at(p, CUT ? blockIdx.x / CTAS * part_count(p) : part_first(p, own.b, own.h, own.k0));
	const int warp = warp_uniform(mov_tid_x() / 32), sixteen = own.k0 % TILE_N / MERGE_KEYS;
	if (warp < MERGE_WARPS_QK)
		columns_merge<HEAD_DIM_QK>(p.dkey, p, own, part, part->key[sixteen][0], warp * MERGE_BLOCKS, SOFTMAX_SCALE);
	else
		columns_merge<HEAD_DIM_V>(p.dvalue, p, own, part, part->value[sixteen][0], (warp - MERGE_WARPS_QK) * MERGE_BLOCKS, KEEP_SCALE);
}
