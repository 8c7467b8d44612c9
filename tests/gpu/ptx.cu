// What templates/sm90 relies on, in kernels that do little else. tests/gpu/ptx_source.c puts before this text the constants KEYS,
// DIM_QK, DIM_V, the launch ABI, the products of that shape, and templates/sm90/ptx.h; tests/gpu/ptx.c computes the same on the host.

constexpr int PANELS_QK = (DIM_QK + 63) / 64, PANELS_V = (DIM_V + 63) / 64, STEPS_QK = (DIM_QK + 15) / 16;

extern __shared__ __align__(1024) unsigned char smem_bytes[];

template <int PANELS, int ROWS>
DEVICE void panels_load(unsigned short (&to)[PANELS][ROWS][64], const fagen_abi_map &map, unsigned long long &full, int head, int batch)
{
	for (int i = 0; i < PANELS; i++)
		cp_async_bulk_tensor_4d(cvta_shared(to[i]), map, full, 64 * i, 0, head, batch);
}

struct Operands {
	unsigned short query[PANELS_QK][64][64], key[PANELS_QK][KEYS][64], value[PANELS_V][KEYS][64];
	unsigned long long full;
};

// scores = Q K^T [64][KEYS] and out = 3 + P V [64][DIM_V], of head 1 of entry 1, under way together. `prob` is P [64][KEYS], packed.
// Rows of V from `rows` on are cleared after they have arrived.
extern "C" __global__ void __launch_bounds__(128)
	products(const __grid_constant__ fagen_abi_maps maps, const unsigned *prob, int rows, float *scores, float *out)
{
	Operands &smem = *reinterpret_cast<Operands *>(smem_bytes);
	const int thread = threadIdx.x, row = thread / 32 * 16 + thread % 32 / 4, col = thread % 4 * 2;
	if (thread == 0) {
		mbarrier_init(smem.full, 1);
		fence_mbarrier_init();
	}
	__syncthreads();
	if (thread == 0) {
		mbarrier_arrive_expect_tx(smem.full, sizeof smem.query + sizeof smem.key + sizeof smem.value);
		panels_load(smem.query, maps.query, smem.full, 1, 1);
		panels_load(smem.key, maps.key, smem.full, 1, 1);
		panels_load(smem.value, maps.value, smem.full, 1, 1);
	}
	mbarrier_wait(smem.full, 0);
	for (int i = rows * 8 + thread; i < KEYS * 8; i += 128)
		for (int panel = 0; panel < PANELS_V; panel++)
			st_shared_16(cvta_shared(smem.value[panel]) + i * 16, make_uint4(0, 0, 0, 0));
	fence_proxy_async();
	barrier_sync(1, 128);

	float s[KEYS / 2], acc[DIM_V / 2];
	unsigned p[KEYS / 4];
#pragma unroll
	for (int i = 0; i < KEYS / 2; i++)
		s[i] = __int_as_float(0x7fffffff); // wgmma_ss<false> does not read it
#pragma unroll
	for (int i = 0; i < DIM_V / 2; i++)
		acc[i] = 3;
#pragma unroll
	for (int i = 0; i < KEYS / 4; i++)
		p[i] = prob[((row + i % 2 * 8) * KEYS + i / 2 * 8 + col) / 2];

	const unsigned long long query = wgmma_desc(smem.query[0], 0), key = wgmma_desc(smem.key[0], 0),
				 value = wgmma_desc(smem.value[0], KEYS * 128);
	registers_pin(s);
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < STEPS_QK; i++) {
		const int a = i / 4 * (64 * 128 / 16) + i % 4 * 2, b = i / 4 * (KEYS * 128 / 16) + i % 4 * 2;
		if (i == 0)
			wgmma_ss<false>(s, query + a, key + b);
		else
			wgmma_ss<true>(s, query + a, key + b);
	}
	wgmma_commit_group();
	registers_pin(s);
	registers_pin(p);
	registers_pin(acc);
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < KEYS / 16; i++)
		wgmma_rs(acc, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], value + i * (2048 / 16));
	wgmma_commit_group();
	registers_pin(acc);
	registers_pin(p);
	wgmma_wait_group<1>();
	registers_pin(s);
#pragma unroll
	for (int i = 0; i < KEYS / 2; i++)
		scores[(row + i / 2 % 2 * 8) * KEYS + i / 4 * 8 + col + i % 2] = s[i];
	wgmma_wait_group<0>();
	registers_pin(acc);
#pragma unroll
	for (int i = 0; i < DIM_V / 2; i++)
		out[(row + i / 2 % 2 * 8) * DIM_V + i / 4 * 8 + col + i % 2] = acc[i];
}

// out [64][ROWS] = the first 64 columns of Q, transposed, times the first ROWS keys: sum over j < 64 of Q[j][c] K[r][j], of head 1 of
// entry 1.
constexpr int ROWS = DIM_QK > 64 ? KEYS : KEYS / 2;
struct Transposed {
	unsigned short query[64][64], key[KEYS][64];
	unsigned long long full;
};
extern "C" __global__ void __launch_bounds__(128) transposed(const __grid_constant__ fagen_abi_maps maps, float *out)
{
	Transposed &smem = *reinterpret_cast<Transposed *>(smem_bytes);
	const int thread = threadIdx.x, row = thread / 32 * 16 + thread % 32 / 4, col = thread % 4 * 2;
	if (thread == 0) {
		mbarrier_init(smem.full, 1);
		fence_mbarrier_init();
	}
	__syncthreads();
	if (thread == 0) {
		mbarrier_arrive_expect_tx(smem.full, sizeof smem.query + sizeof smem.key);
		cp_async_bulk_tensor_4d(cvta_shared(smem.query), maps.query, smem.full, 0, 0, 1, 1);
		cp_async_bulk_tensor_4d(cvta_shared(smem.key), maps.key, smem.full, 0, 0, 1, 1);
	}
	mbarrier_wait(smem.full, 0);
	float acc[ROWS / 2];
#pragma unroll
	for (int i = 0; i < ROWS / 2; i++)
		acc[i] = __int_as_float(0x7fffffff);
	const unsigned long long query = wgmma_desc(smem.query, 64 * 128), key = wgmma_desc(smem.key, 0);
	registers_pin(acc);
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < 4; i++) {
		if (i == 0)
			wgmma_ms<false>(acc, query, key);
		else
			wgmma_ms<true>(acc, query + i * (2048 / 16), key + i * 2);
	}
	wgmma_commit_group();
	registers_pin(acc);
	wgmma_wait_group<0>();
	registers_pin(acc);
	known_here(fabsf(acc[0]));
#pragma unroll
	for (int i = 0; i < ROWS / 2; i++)
		out[(row + i / 2 % 2 * 8) * ROWS + i / 4 * 8 + col + i % 2] = acc[i];
}

// Matrices of 8x8 elements, matrix i in rows 8i .. 8i+7, transposed on the way to shared memory; and a bulk copy of so many bytes.
struct Bulk {
	unsigned short matrix[32][8], rows[32][8];
	unsigned long long full, pad;
	unsigned char copied[4096];
};
extern "C" __global__ void __launch_bounds__(32)
	bulk(const unsigned *words, const unsigned char *from, unsigned bytes, unsigned short *matrices, unsigned char *copied)
{
	Bulk &smem = *reinterpret_cast<Bulk *>(smem_bytes);
	const int lane = threadIdx.x;
	for (int i = lane; i < 4096; i += 32)
		smem.copied[i] = 0xff;
	fence_proxy_async();
	if (lane == 0) {
		mbarrier_init(smem.full, 1);
		fence_mbarrier_init();
	}
	__syncwarp();
	if (lane == 0) {
		mbarrier_arrive_expect_tx(smem.full, bytes);
		cp_async_bulk(cvta_shared(smem.copied), from, bytes, smem.full);
	}
	stmatrix_x4_trans(cvta_shared(smem.matrix[lane]), words[lane], words[32 + lane], words[64 + lane], words[96 + lane]);
	stmatrix_x4(cvta_shared(smem.rows[lane]), words[lane], words[32 + lane], words[64 + lane], words[96 + lane]);
	__syncwarp();
	mbarrier_wait(smem.full, 0);
	for (int i = lane; i < 32 * 8; i += 32)
		matrices[i] = smem.matrix[i / 8][i % 8];
	st_global_16(matrices + 32 * 8 + lane * 8, ld_shared_16(cvta_shared(smem.rows[lane])));
	for (int i = lane; i < 4096; i += 32)
		copied[i] = smem.copied[i];
}

// Adds to sums[0 .. bytes / 4) what each warp makes anew in every round, in the same shared memory: in round r value i + r * warp.
extern "C" __global__ void __launch_bounds__(128) reduction(float *sums, unsigned bytes, int rounds)
{
	float(&made)[4][1024] = *reinterpret_cast<float(*)[4][1024]>(smem_bytes);
	const int lane = threadIdx.x % 32, warp = warp_uniform(threadIdx.x / 32);
	for (int round = 0; round < rounds; round++) {
		cp_async_bulk_wait_read();
		__syncwarp();
		for (int i = lane; i < 1024; i += 32)
			made[warp][i] = i + round * warp;
		fence_proxy_async();
		__syncwarp();
		if (elect_sync()) {
			cp_reduce_async_bulk_add(sums, cvta_shared(made[warp]), bytes);
			cp_async_bulk_commit_group();
		}
		__syncwarp();
	}
	cp_async_bulk_wait();
}

// Sums of 1,024 floats over CTAs that nobody has cleared: in one order, from the last CTA to the first (handed_value), and in any (i + CTA), where who comes
// first stores. words: the CTA whose turn it is, and 1, which is 2 while somebody stores and 0 after it.
DEVICE float handed_value(int i, int cta) { return (cta * 37 + i * 11) % 101 * 0.125f + (cta % 3 == 1 ? 1e7f : 0); }
// Stores or adds, and returns when that is done.
DEVICE void sums_send(float *to, const float (&made)[1024], bool store)
{
	fence_proxy_async_global();
	if (store)
		cp_async_bulk_store(to, cvta_shared(made), 4096);
	else
		cp_reduce_async_bulk_add(to, cvta_shared(made), 4096);
	cp_async_bulk_commit_group();
	cp_async_bulk_wait();
	fence_proxy_async_global();
}
extern "C" __global__ void __launch_bounds__(32) handed(float *ordered, float *claimed, unsigned *words)
{
	float(&made)[2][1024] = *reinterpret_cast<float(*)[2][1024]>(smem_bytes);
	const unsigned cta = blockIdx.x;
	for (int i = threadIdx.x; i < 1024; i += 32)
		made[0][i] = handed_value(i, cta), made[1][i] = i + (int)cta;
	fence_proxy_async();
	__syncwarp();
	if (threadIdx.x != 0)
		return;
	sums_send(ordered, made[0], word_wait(words, ~0u, cta) == gridDim.x - 1); // from the last CTA down
	st_release(words, cta - 1);

	const unsigned before = atom_cas_acquire(words + 1, 1, 2); // as they come: the first stores
	if (before == 2)
		word_wait(words + 1, 3, 0);
	sums_send(claimed, made[1], before == 1);
	if (before == 1)
		st_release(words + 1, 0);
}

// One box of the keys as it lies in shared memory, over NaN.
struct Box {
	unsigned short cells[KEYS][64];
	unsigned long long full;
};
extern "C" __global__ void __launch_bounds__(128)
	box(const __grid_constant__ fagen_abi_maps maps, int column, int row, int head, int batch, unsigned short *out)
{
	Box &smem = *reinterpret_cast<Box *>(smem_bytes);
	for (int i = threadIdx.x; i < KEYS * 64; i += 128)
		smem.cells[i / 64][i % 64] = 0x7fff;
	fence_proxy_async();
	if (threadIdx.x == 0) {
		mbarrier_init(smem.full, 1);
		fence_mbarrier_init();
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		mbarrier_arrive_expect_tx(smem.full, sizeof smem.cells);
		cp_async_bulk_prefetch_tensor_4d(maps.key, column, row, head, batch); // changes nothing, outside the tensor too
		cp_async_bulk_tensor_4d(cvta_shared(smem.cells), maps.key, smem.full, column, row, head, batch);
	}
	mbarrier_wait(smem.full, 0);
	for (int i = threadIdx.x; i < KEYS * 64; i += 128)
		out[i] = smem.cells[i / 64][i % 64];
}

// A warp loads boxes of queries into three buffers, two warpgroups read each of them, `rounds` times round; every thread hashes what it
// reads, in order. Registers move from the first warpgroup to the others.
constexpr int RING = 3;
struct Ring {
	unsigned tile[RING][64][32];
	unsigned long long full[RING], empty[RING];
};
extern "C" __global__ void __launch_bounds__(384, 1)
	ring(const __grid_constant__ fagen_abi_maps maps, unsigned rounds, unsigned boxes, unsigned *hashes)
{
	Ring &smem = *reinterpret_cast<Ring *>(smem_bytes);
	if (threadIdx.x == 0) {
		for (int i = 0; i < RING; i++) {
			mbarrier_init(smem.full[i], 1);
			mbarrier_init(smem.empty[i], 2);
		}
		fence_mbarrier_init();
	}
	__syncthreads();
	const int group = warp_uniform(threadIdx.x / 128), warp = warp_uniform(threadIdx.x / 32), thread = threadIdx.x % 128;
	if (group == 0) {
		setmaxnreg_dec<40>();
		const bool leader = elect_sync();
		for (unsigned n = 0; warp == 0 && n < rounds; n++) {
			if (leader) {
				mbarrier_wait(smem.empty[n % RING], (n / RING & 1) ^ 1);
				mbarrier_arrive_expect_tx(smem.full[n % RING], sizeof smem.tile[0]);
				cp_async_bulk_tensor_4d(cvta_shared(smem.tile[n % RING]), maps.query, smem.full[n % RING], 0, n % boxes * 64, 0, 0);
			}
			__syncwarp();
		}
	} else {
		setmaxnreg_inc<232>();
		unsigned hash = 0;
		for (unsigned n = 0; n < rounds; n++) {
			mbarrier_wait(smem.full[n % RING], n / RING & 1);
			for (int i = thread; i < 64 * 32; i += 128)
				hash = hash * 31 + smem.tile[n % RING][i / 32][i % 32];
			barrier_sync(group, 128);
			mbarrier_arrive(smem.empty[n % RING], thread == 0);
		}
		hashes[threadIdx.x - 128] = hash;
	}
}

// Each warpgroup votes by itself, round after round.
extern "C" __global__ void __launch_bounds__(256) votes(const unsigned char *yes, int rounds, unsigned char *any)
{
	const int group = threadIdx.x / 128;
	for (int i = 0; i < rounds; i++)
		any[i * 256 + threadIdx.x] = barrier_red_or(4 + group, 128, yes[i * 256 + threadIdx.x] != 0);
}

// Warpgroups take turns; the log says in which order.
extern "C" __global__ void __launch_bounds__(384) turns(int rounds, unsigned char *log)
{
	volatile int &position = *reinterpret_cast<int *>(smem_bytes);
	const int groups = blockDim.x / 128, group = warp_uniform(threadIdx.x / 128);
	if (threadIdx.x == 0)
		position = 0;
	__syncthreads();
	if (group == groups - 1)
		barrier_arrive(1, 256);
	for (int i = 0; i < rounds; i++) {
		barrier_sync(1 + group, 256);
		if (threadIdx.x % 128 == 0) {
			log[position] = group;
			position = position + 1;
		}
		barrier_arrive(1 + (group + 1) % groups, 256);
	}
	if (group == 0)
		barrier_sync(1, 256);
}
