// Microbenchmarks of `fagen calibrate`, each of one resource. CTAs of the first four have an SM to themselves and take the
// time of their own work in clocks of that SM, so that neither its frequency nor the launch matters.

struct Stopwatch {
	long long clocks, ns;
};
DEVICE long long global_ns()
{
	long long t;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
	return t;
}
DEVICE Stopwatch watch_start()
{
	__syncthreads();
	return {clock64(), global_ns()};
}
// Until the last warp is done.
DEVICE void watch_stop(const Stopwatch &s, const fagen_calibrate &p)
{
	__syncthreads();
	const long long clocks = clock64() - s.clocks, ns = global_ns() - s.ns;
	if (threadIdx.x == 0)
		reinterpret_cast<fagen_calibrate_time *>(p.times)[blockIdx.x] = {clocks, ns};
}
DEVICE void result_write(const fagen_calibrate &p, float x)
{
	reinterpret_cast<float *>(p.sink)[blockIdx.x * CALIBRATE_THREADS + threadIdx.x] = x;
}

// A pair of bf16 in +-[0.125, 2): random signs and mantissas, so that as many bits change as in real data, which is what
// power, and so the clock, depends on.
DEVICE unsigned random_pair(unsigned seed)
{
	seed = (seed ^ 61) ^ (seed >> 16);
	seed *= 9;
	seed ^= seed >> 4;
	seed *= 0x27d4eb2du;
	seed ^= seed >> 15;
	return (seed & 0x81ff81ffu) | 0x3e003e00u;
}

extern "C" __global__ void __launch_bounds__(CALIBRATE_THREADS) calibrate_mma(const __grid_constant__ fagen_calibrate p)
{
	unsigned a[2][4], b[CALIBRATE_PRODUCTS / 2][2];
	float d[2][CALIBRATE_PRODUCTS / 2][4] = {};
	for (int i = 0; i < 8; i++)
		a[i / 4][i % 4] = random_pair(threadIdx.x * 32 + i);
	for (int i = 0; i < CALIBRATE_PRODUCTS; i++)
		b[i / 2][i % 2] = random_pair(threadIdx.x * 32 + 8 + i);
	const Stopwatch watch = watch_start();
#pragma unroll 4
	for (int r = 0; r < p.rounds; r++)
#pragma unroll
		for (int i = 0; i < CALIBRATE_PRODUCTS; i++)
			mma_m16n8k16(d[i & 1][i / 2], a[i & 1], b[i / 2][0], b[i / 2][1], Bf16());
	watch_stop(watch, p);
	float sum = 0;
	for (int i = 0; i < CALIBRATE_PRODUCTS * 4; i++)
		sum += d[i & 1][i / 8][i / 2 % 4];
	result_write(p, sum);
}

extern "C" __global__ void __launch_bounds__(CALIBRATE_THREADS) calibrate_exp(const __grid_constant__ fagen_calibrate p)
{
	float x[CALIBRATE_LANE_OPS], sum = 0;
	for (int i = 0; i < CALIBRATE_LANE_OPS; i++)
		x[i] = -1e-3f * (threadIdx.x + i);
	const Stopwatch watch = watch_start();
#pragma unroll 4
	for (int r = 0; r < p.rounds; r++)
#pragma unroll
		for (int i = 0; i < CALIBRATE_LANE_OPS; i++)
			x[i] = ex2(x[i]);
	watch_stop(watch, p);
	for (int i = 0; i < CALIBRATE_LANE_OPS; i++)
		sum += x[i];
	result_write(p, sum);
}

extern "C" __global__ void __launch_bounds__(CALIBRATE_THREADS) calibrate_alu(const __grid_constant__ fagen_calibrate p)
{
	float x[CALIBRATE_LANE_OPS], sum = 0;
	const float scale = 1 - 1e-6f * threadIdx.x, shift = 1e-3f * threadIdx.x;
	for (int i = 0; i < CALIBRATE_LANE_OPS; i++)
		x[i] = i;
	const Stopwatch watch = watch_start();
#pragma unroll 4
	for (int r = 0; r < p.rounds; r++)
#pragma unroll
		for (int i = 0; i < CALIBRATE_LANE_OPS; i++)
			x[i] = __fmaf_rn(x[i], scale, shift);
	watch_stop(watch, p);
	for (int i = 0; i < CALIBRATE_LANE_OPS; i++)
		sum += x[i];
	result_write(p, sum);
}

extern "C" __global__ void __launch_bounds__(CALIBRATE_THREADS) calibrate_shared(const __grid_constant__ fagen_calibrate p)
{
	extern __shared__ __align__(128) unsigned char smem[];
	for (int i = 16 * threadIdx.x; i < CALIBRATE_SHARED; i += 16 * CALIBRATE_THREADS)
		*reinterpret_cast<uint4 *>(smem + i) = make_uint4(i, i, i, i);
	unsigned at = cvta_shared(smem) + threadIdx.x / 32 * (CALIBRATE_READS * 512) + threadIdx.x % 32 * 16;
	unsigned bits = 0;
	const Stopwatch watch = watch_start();
	for (int r = 0; r < p.rounds; r++) {
#pragma unroll
		for (int i = 0; i < CALIBRATE_READS; i++) {
			unsigned m[4];
			ldmatrix_x4(m, at + 512 * i);
			bits ^= m[0] ^ m[1] ^ m[2] ^ m[3];
		}
		at += p.chunks; // 0, which ptxas does not know: it would read each address once for several rounds
	}
	watch_stop(watch, p);
	result_write(p, bits);
}

// Past L1. All threads of the grid read on in step, and begin anew behind the last chunk.
extern "C" __global__ void __launch_bounds__(CALIBRATE_THREADS) calibrate_l2(const __grid_constant__ fagen_calibrate p)
{
	const unsigned step = gridDim.x * CALIBRATE_THREADS % p.chunks;
	unsigned at = (blockIdx.x * CALIBRATE_THREADS + threadIdx.x) % p.chunks, bits = 0;
	for (int r = 0; r < p.rounds; r++) {
		uint4 v[CALIBRATE_READS];
#pragma unroll
		for (int i = 0; i < CALIBRATE_READS; i++) {
			asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
			             : "=r"(v[i].x), "=r"(v[i].y), "=r"(v[i].z), "=r"(v[i].w)
			             : "l"(p.from + 16ull * at) : "memory");
			at += step;
			at -= at >= p.chunks ? p.chunks : 0;
		}
#pragma unroll
		for (int i = 0; i < CALIBRATE_READS; i++)
			bits ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
	}
	result_write(p, bits);
}

extern "C" __global__ void __launch_bounds__(CALIBRATE_THREADS) calibrate_copy(const __grid_constant__ fagen_calibrate p)
{
	const uint4 *const from = reinterpret_cast<const uint4 *>(p.from);
	uint4 *const to = reinterpret_cast<uint4 *>(p.to);
	const unsigned step = gridDim.x * CALIBRATE_THREADS;
	for (unsigned at = blockIdx.x * CALIBRATE_THREADS + threadIdx.x; at < p.chunks; at += 4 * step) {
		uint4 v[4];
#pragma unroll
		for (int i = 0; i < 4; i++)
			if (at + i * step < p.chunks)
				v[i] = from[at + i * step];
#pragma unroll
		for (int i = 0; i < 4; i++)
			if (at + i * step < p.chunks)
				to[at + i * step] = v[i];
	}
}

extern "C" __global__ void __launch_bounds__(CALIBRATE_THREADS) calibrate_nothing(const __grid_constant__ fagen_calibrate p) {}
