// What templates/sm90/bwd_pair.cu relies on beside the instructions of ptx.cu: two CTAs that load boxes for each other, send each other a
// panel, and products whose second operand is MN-major. tests/gpu/ptx_source.c puts the same text before this one.

constexpr int PANELS = (DIM_QK + 63) / 64, WHOLE = PANELS / 2, HALF = PANELS % 2;

extern __shared__ __align__(1024) unsigned char smem_bytes[];

struct Pair {
	unsigned short query[PANELS][64][64], key[2][PANELS][64][64], prob[2][64][64]; // of this CTA, of the other
	unsigned long long query_full, key_full, prob_full, done;
};

// A warpgroup's 64 rows of accumulators, into rows of `stride` floats.
template <int N> DEVICE void product_store(float *to, const float (&acc)[N], int stride)
{
	const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
#pragma unroll
	for (int i = 0; i < N; i++)
		to[(row + i / 2 % 2 * 8) * stride + i / 4 * 8 + col + i % 2] = acc[i];
}

// P times columns of the keys of this CTA and of the other.
template <int N>
DEVICE void rows_issue(float (&acc)[N], const unsigned short (&prob)[2][64][64], const unsigned short *own, const unsigned short *other)
{
#pragma unroll
	for (int i = 0; i < N; i++)
		acc[i] = __int_as_float(0x7fffffff); // the first product does not read it
	registers_pin(acc);
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < 8; i++) {
		const unsigned long long a = wgmma_desc(prob[i / 4], 0) + i % 4 * 2,
					 b = wgmma_desc(i < 4 ? own : other, 64 * 128) + i % 4 * (2048 / 16);
		if (i == 0)
			wgmma_sm<false>(acc, a, b);
		else
			wgmma_sm<true>(acc, a, b);
	}
	wgmma_commit_group();
	registers_pin(acc);
}

// Half a panel, where their number is odd.
template <int COUNT> DEVICE void half_store(const Pair &smem, float *rows, int rank)
{
	if constexpr (COUNT == 1) {
		float half[16 * COUNT];
		rows_issue(half, smem.prob, &smem.key[0][PANELS - 1][0][32 * rank], &smem.key[1][PANELS - 1][0][32 * rank]);
		wgmma_wait_group<0>();
		registers_pin(half);
		product_store(rows + 64 * (PANELS - 1) + 32 * rank, half, 64 * PANELS);
	}
}

// P is [64 rows][128 keys], the first 64 of CTA 0. keys [128][DIM_QK] = P^T Q, of each CTA its own 64; rows [64][64 * PANELS] = P K, of each
// CTA its half of the columns. Q and K are those of head 1 of entry 1.
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(128)
	pair(const __grid_constant__ fagen_abi_maps maps, const unsigned short *prob, float *keys, float *rows)
{
	Pair &smem = *reinterpret_cast<Pair *>(smem_bytes);
	const int thread = threadIdx.x, rank = cluster_ctarank(), peer = rank ^ 1;
	if (thread == 0) {
		mbarrier_init(smem.query_full, 1);
		mbarrier_init(smem.key_full, 1);
		mbarrier_init(smem.prob_full, 1);
		mbarrier_init(smem.done, 1);
		fence_mbarrier_init();
	}
	barrier_cluster_arrive();
	barrier_cluster_wait();
	if (thread == 0) {
		mbarrier_arrive_expect_tx(smem.query_full, sizeof smem.query);
		mbarrier_arrive_expect_tx(smem.key_full, sizeof smem.key);
		mbarrier_arrive_expect_tx(smem.prob_full, sizeof smem.prob[1]);
		for (int i = 0; i < PANELS; i++) {
			if (i % 2 == rank)
				cp_async_bulk_tensor_4d_multicast(cvta_shared(smem.query[i]), maps.query, smem.query_full, 64 * i, 0, 1, 1, 3);
			cp_async_bulk_tensor_4d(cvta_shared(smem.key[0][i]), maps.key, smem.key_full, 64 * i, 64 * rank, 1, 1);
			cp_async_bulk_tensor_4d(cvta_shared(smem.key[1][i]), maps.key, smem.key_full, 64 * i, 64 * peer, 1, 1);
		}
	}
	for (int i = thread; i < 64 * 64; i += 128)
		smem.prob[0][i / 64][(i % 64 / 8 ^ i / 64 % 8) * 8 + i % 8] = prob[i / 64 * 128 + 64 * rank + i % 64];
	fence_proxy_async();
	barrier_sync(1, 128);
	if (thread == 0)
		cp_async_bulk_cluster(mapa(cvta_shared(smem.prob[1]), peer), cvta_shared(smem.prob[0]), sizeof smem.prob[0],
		                      mapa(cvta_shared(&smem.prob_full), peer));
	mbarrier_wait(smem.query_full, 0);
	mbarrier_wait(smem.key_full, 0);
	mbarrier_wait(smem.prob_full, 0);

	float acc[DIM_QK / 2], whole[32 * WHOLE];
#pragma unroll
	for (int i = 0; i < DIM_QK / 2; i++)
		acc[i] = __int_as_float(0x7fffffff);
	registers_pin(acc);
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const unsigned long long a = wgmma_desc(smem.prob[0], 64 * 128) + i * (2048 / 16),
					 b = wgmma_desc(smem.query, 64 * 128) + i * (2048 / 16);
		if (i == 0)
			wgmma_mm<false>(acc, a, b);
		else
			wgmma_mm<true>(acc, a, b);
	}
	wgmma_commit_group();
	registers_pin(acc);
	rows_issue(whole, smem.prob, smem.key[0][WHOLE * rank][0], smem.key[1][WHOLE * rank][0]);
	wgmma_wait_group<0>();
	registers_pin(acc);
	registers_pin(whole);
	product_store(keys + 64 * rank * DIM_QK, acc, DIM_QK);
	product_store(rows + 64 * WHOLE * rank, whole, 64 * PANELS);
	half_store<HALF>(smem, rows, rank);
	barrier_sync(1, 128);
	if (thread == 0)
		mbarrier_arrive_cluster(mapa(cvta_shared(&smem.done), peer));
	mbarrier_wait(smem.done, 0); // nobody ends while the other still sends
	barrier_cluster_arrive();
	barrier_cluster_wait();
}
