// What emitted kernels are compiled against: CUDA's built-ins, and the wrappers of templates/ptx.h and templates/sm90/ptx.h by what their
// instructions do. translate.awk takes the functions with asm out of the source, and refuses one that has no counterpart below.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/emulate/emulate.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __grid_constant__
#define __align__(n) alignas(n)

// Where the template stands: the last parameters of every wrapper that may fail or wait.
#define AT const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define HERE (emulate_now->file = file, emulate_now->line = line)
#define WRAP static inline

struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct int2 { int x, y; };
struct uint2 { unsigned x, y; };
struct uint3 { unsigned x, y, z; };
struct uint4 { unsigned x, y, z, w; };
WRAP int2 make_int2(int x, int y) { return {x, y}; }
WRAP uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
WRAP uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
WRAP float2 make_float2(float x, float y) { return {x, y}; }
WRAP float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

#define threadIdx (uint3{emulate_now->thread, 0, 0})
#define blockDim (uint3{emulate_now->threads, 1, 1})
#define blockIdx (uint3{emulate_now->cta, 0, 0})
#define gridDim (uint3{emulate_now->ctas, 1, 1})

template <class To, class From> WRAP To bits_as(From from)
{
	static_assert(sizeof(To) >= sizeof(From), "bits");
	To to{};
	memcpy(&to, &from, sizeof from);
	return to;
}
WRAP unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }
WRAP float __uint_as_float(unsigned x) { return bits_as<float>(x); }
WRAP float __int_as_float(int x) { return bits_as<float>(x); }
WRAP int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
WRAP int __ffs(unsigned x) { return __builtin_ffs((int)x); }
WRAP int __popc(unsigned x) { return __builtin_popcount(x); }
WRAP unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
WRAP unsigned __funnelshift_l(unsigned low, unsigned high, int n) { return (unsigned)((((uint64_t)high << 32 | low) << (n & 31)) >> 32); }
WRAP float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
WRAP int __float2int_rd(float x) { return (int)floorf(x); }
WRAP unsigned atomicAdd(unsigned *at, unsigned x) { return std::exchange(*at, *at + x); }

WRAP void __threadfence() {} // CTAs run in one thread

WRAP void __syncthreads(AT) { HERE, emulate_barrier(0, (int)emulate_now->threads, EMULATE_SYNC, 0); }
WRAP int __syncthreads_or(int yes, AT) { return HERE, emulate_barrier(0, (int)emulate_now->threads, EMULATE_SYNC, yes != 0); }
WRAP void __syncwarp(unsigned mask = ~0u, AT) { HERE, emulate_warp(EMULATE_SYNCWARP, mask, 0); }
template <class T> WRAP T lane_value(const uint64_t *all, unsigned lane)
{
	T value;
	memcpy(&value, &all[lane & 31], sizeof value);
	return value;
}
template <class T> WRAP T __shfl_sync(unsigned mask, T x, int lane, AT)
{
	return HERE, lane_value<T>(emulate_warp(EMULATE_SHUFFLE, mask, bits_as<uint64_t>(x)), lane);
}
template <class T> WRAP T __shfl_xor_sync(unsigned mask, T x, int with, AT)
{
	return HERE, lane_value<T>(emulate_warp(EMULATE_SHUFFLE, mask, bits_as<uint64_t>(x)), emulate_now->thread ^ with);
}
WRAP unsigned __ballot_sync(unsigned mask, bool x, AT)
{
	const uint64_t *all = (HERE, emulate_warp(EMULATE_VOTE, mask, x));
	unsigned votes = 0;
	for (int i = 0; i < 32; i++)
		votes |= (unsigned)all[i] << i;
	return votes;
}
WRAP bool __any_sync(unsigned mask, bool x, AT) { return __ballot_sync(mask, x, file, line) != 0; }
template <class T> WRAP unsigned __match_any_sync(unsigned mask, T x, AT)
{
	const uint64_t *all = (HERE, emulate_warp(EMULATE_VOTE, mask, bits_as<uint64_t>(x)));
	unsigned same = 0;
	for (int i = 0; i < 32; i++)
		same |= (unsigned)(all[i] == bits_as<uint64_t>(x)) << i;
	return same;
}
template <class T> WRAP T __reduce_max_sync(unsigned mask, T x, AT)
{
	const uint64_t *all = (HERE, emulate_warp(EMULATE_REDUCE, mask, bits_as<uint64_t>(x)));
	for (int i = 0; i < 32; i++)
		x = lane_value<T>(all, i) > x ? lane_value<T>(all, i) : x;
	return x;
}
template <class T> WRAP T __reduce_min_sync(unsigned mask, T x, AT)
{
	const uint64_t *all = (HERE, emulate_warp(EMULATE_REDUCE, mask, bits_as<uint64_t>(x)));
	for (int i = 0; i < 32; i++)
		x = lane_value<T>(all, i) < x ? lane_value<T>(all, i) : x;
	return x;
}

// A kernel by the launch's list of pointers to parameters.
template <class... A, size_t... I> WRAP void kernel_call(void (*kernel)(A...), void **params, std::index_sequence<I...>)
{
	kernel(*static_cast<std::remove_const_t<A> *>(params[I])...);
}
template <class... A> WRAP void kernel_run(void (*kernel)(A...), void **params)
{
	kernel_call(kernel, params, std::index_sequence_for<A...>{});
}

// ---- templates/ptx.h ----

struct Fp16 {};
struct Bf16 {};
struct fagen_abi_map;

template <class E> constexpr int is_bf16(E) { return std::is_same<E, Bf16>::value; }
WRAP unsigned short encode(float x, Bf16)
{
	const unsigned u = __float_as_uint(x);
	return (u & 0x7fffffff) > 0x7f800000 ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
WRAP unsigned short encode(float x, Fp16) { return bits_as<unsigned short>((_Float16)x); }

WRAP unsigned cvta_shared(const void *p, AT) { return HERE, emulate_address(p); }
WRAP void cp_async_16_zfill(unsigned dst, const void *src, bool inside, AT) { HERE, emulate_copy(dst, src, 16, inside ? 16 : 0); }
WRAP void cp_async_4(unsigned dst, const void *src, AT) { HERE, emulate_copy(dst, src, 4, 4); }
template <int UNIT> WRAP void cp_async_part(unsigned dst, const void *src, int bytes, AT) { HERE, emulate_copy(dst, src, UNIT, (unsigned)bytes); }
WRAP void cp_async_commit() { emulate_copy_commit(); }
template <int PENDING> WRAP void cp_async_wait(AT) { HERE, emulate_copy_wait(PENDING); }
WRAP void st_shared_16(unsigned dst, uint4 v, AT) { HERE, emulate_store(dst, &v, 16); }
WRAP void st_shared_4(unsigned dst, unsigned v, AT) { HERE, emulate_store(dst, &v, 4); }
WRAP void st_global_16(void *dst, uint4 v, AT)
{
	if ((uintptr_t)dst % 16)
		HERE, emulate_fail("16 bytes are stored at %p", dst);
	memcpy(dst, &v, sizeof v);
}
WRAP void st_global_16_if(void *dst, uint4 v, bool here, AT)
{
	if (here)
		st_global_16(dst, v, file, line);
}
WRAP uint4 ld_shared_16(unsigned src, AT)
{
	uint4 v;
	return HERE, emulate_load(&v, src, 16), v;
}
// Lane l has of matrix i the elements 2 (l % 4) and the next of row l / 4; transposed: of column l / 4 and rows.
WRAP void ldmatrix_x4(unsigned (&r)[4], unsigned src, AT)
{
	const uint64_t *rows = (HERE, emulate_warp(EMULATE_MATRIX, ~0u, src));
	const unsigned lane = emulate_now->thread % 32;
	for (int i = 0; i < 4; i++)
		emulate_load(&r[i], (unsigned)rows[8 * i + lane / 4] + lane % 4 * 4, 4);
}
WRAP void ldmatrix_x4_trans(unsigned (&r)[4], unsigned src, AT)
{
	const uint64_t *rows = (HERE, emulate_warp(EMULATE_MATRIX, ~0u, src));
	const unsigned lane = emulate_now->thread % 32;
	for (int i = 0; i < 4; i++) {
		unsigned short e[2];
		for (int k = 0; k < 2; k++)
			emulate_load(&e[k], (unsigned)rows[8 * i + lane % 4 * 2 + k] + lane / 4 * 2, 2);
		r[i] = e[0] | (unsigned)e[1] << 16;
	}
}
template <class E> WRAP void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, E, AT)
{
	const unsigned b[2] = {b0, b1};
	HERE, emulate_mma(d, a, b, is_bf16(E{}));
}
template <class E> WRAP unsigned cvt_rn_x2(float low, float high, E) { return encode(low, E{}) | (unsigned)encode(high, E{}) << 16; }
WRAP float cvt_f32(unsigned short v, Fp16) { return (float)bits_as<_Float16>(v); }
WRAP float mov_upper(unsigned short v) { return bits_as<float>((unsigned)v << 16); }
WRAP int anew(int x) { return x; }
WRAP unsigned mov_tid_x() { return emulate_now->thread; }
WRAP unsigned long long mul_wide(unsigned a, unsigned b) { return (unsigned long long)a * b; }
WRAP unsigned prmt(unsigned a, unsigned b, unsigned selector)
{
	const uint64_t bytes = (uint64_t)b << 32 | a;
	unsigned r = 0;
	for (int i = 0; i < 4; i++) {
		const unsigned s = selector >> 4 * i & 15, byte = bytes >> 8 * (s & 7) & 255;
		r |= (s & 8 ? byte & 128 ? 255u : 0u : byte) << 8 * i;
	}
	return r;
}
WRAP float flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
WRAP float ex2(float x) { return flush(exp2f(flush(x))); }
WRAP float lg2(float x) { return log2f(flush(x)); }
WRAP float rcp(float x) { return flush(1 / flush(x)); }
WRAP float sqrt_approx(float x) { return sqrtf(flush(x)); }
template <int N> struct Width;
template <int N> WRAP void red_add_4(float *p, const float (&v)[4], Width<N>)
{
	for (int i = 0; i < 4; i++)
		p[N == 1 ? 32 * i : i] += v[i];
}

// ---- templates/sm90/ptx.h ----

WRAP void mbarrier_init(unsigned long long &b, unsigned arrivals, AT) { HERE, emulate_mbarrier_init(emulate_address(&b), arrivals); }
WRAP void fence_mbarrier_init() {}
WRAP void mbarrier_arrive(unsigned long long &b, bool here = true, AT)
{
	if (here)
		HERE, emulate_mbarrier_arrive(emulate_address(&b), 0);
}
WRAP void mbarrier_arrive_expect_tx(unsigned long long &b, unsigned bytes, AT) { HERE, emulate_mbarrier_arrive(emulate_address(&b), bytes); }
WRAP void mbarrier_wait(unsigned long long &b, unsigned parity, AT) { HERE, emulate_mbarrier_wait(emulate_address(&b), parity); }
WRAP unsigned cluster_ctarank() { return emulate_now->rank; }
WRAP unsigned mapa(unsigned address, unsigned rank) { return address | (rank + 1) << EMULATE_PEER_SHIFT; }
WRAP void mbarrier_arrive_cluster(unsigned barrier, AT) { HERE, emulate_mbarrier_arrive(barrier, 0); }
WRAP void barrier_cluster_arrive(AT) { HERE, emulate_cluster_arrive(); }
WRAP void barrier_cluster_wait(AT) { HERE, emulate_cluster_wait(); }
WRAP void barrier_sync(int id, int threads, AT) { HERE, emulate_barrier(id, threads, EMULATE_SYNC, 0); }
WRAP void barrier_arrive(int id, int threads, AT) { HERE, emulate_barrier(id, threads, EMULATE_ARRIVE, 0); }
WRAP bool barrier_red_or(int id, int threads, bool yes, AT) { return HERE, emulate_barrier(id, threads, EMULATE_SYNC, yes); }
WRAP void cp_async_bulk_tensor_4d_multicast(unsigned dst, const fagen_abi_map &map, unsigned long long &barrier, int column, int row, int head,
                                            int batch, unsigned short ctas, AT)
{
	const int at[4] = {column, row, head, batch};
	HERE, emulate_box_load(dst, &map, emulate_address(&barrier), at, ctas);
}
template <unsigned long long = 0> WRAP void cp_async_bulk_tensor_4d(unsigned dst, const fagen_abi_map &map, unsigned long long &barrier, int column, int row, int head, int batch, AT)
{
	cp_async_bulk_tensor_4d_multicast(dst, map, barrier, column, row, head, batch, 0, file, line);
}
WRAP void cp_async_bulk_prefetch_tensor_4d(const fagen_abi_map &, int, int, int, int) {}
WRAP void cp_async_bulk_tensor_4d_store(const fagen_abi_map &map, unsigned src, int column, int row, int head, int batch, AT)
{
	const int at[4] = {column, row, head, batch};
	HERE, emulate_box_store(&map, src, at);
}
WRAP void cp_async_bulk(unsigned dst, const void *src, unsigned bytes, unsigned long long &barrier, AT)
{
	HERE, emulate_bulk_load(dst, src, bytes, emulate_address(&barrier));
}
WRAP void cp_async_bulk_cluster(unsigned dst, unsigned src, unsigned bytes, unsigned barrier, AT)
{
	HERE, emulate_bulk_send(dst, src, bytes, barrier);
}
WRAP void cp_reduce_async_bulk_add(float *dst, unsigned src, unsigned bytes, AT) { HERE, emulate_bulk_store(dst, src, bytes, 1); }
WRAP void cp_async_bulk_store(void *dst, unsigned src, unsigned bytes, AT) { HERE, emulate_bulk_store(dst, src, bytes, 0); }
WRAP void cp_async_bulk_commit_group() { emulate_bulk_commit(); }
WRAP void cp_async_bulk_wait_read(AT) { HERE, emulate_bulk_wait(0, 1); }
WRAP void cp_async_bulk_wait(AT) { HERE, emulate_bulk_wait(0, 0); }
template <int PENDING> WRAP void cp_async_bulk_wait_read(AT) { HERE, emulate_bulk_wait(PENDING, 1); }
template <int PENDING> WRAP void cp_async_bulk_wait(AT) { HERE, emulate_bulk_wait(PENDING, 0); }
WRAP void fence_proxy_async() { emulate_fence(); }
WRAP void fence_proxy_async_global() {}
WRAP unsigned word_wait(const unsigned *at, unsigned bits, unsigned value, AT) { return HERE, emulate_word_wait(at, bits, value), *at; }
WRAP void st_release(unsigned *at, unsigned value) { *at = value; }
WRAP unsigned atom_cas_acquire(unsigned *at, unsigned expected, unsigned value)
{
	const unsigned before = *at;
	if (before == expected)
		*at = value;
	return before;
}
WRAP void stmatrix_x4(unsigned dst, unsigned a, unsigned b, unsigned c, unsigned d, AT)
{
	const uint64_t *rows = (HERE, emulate_warp(EMULATE_MATRIX, ~0u, dst));
	const unsigned lane = emulate_now->thread % 32, word[4] = {a, b, c, d};
	for (int i = 0; i < 4; i++)
		emulate_store((unsigned)rows[8 * i + lane / 4] + lane % 4 * 4, &word[i], 4);
}
WRAP void stmatrix_x4_trans(unsigned dst, unsigned a, unsigned b, unsigned c, unsigned d, AT)
{
	const uint64_t *rows = (HERE, emulate_warp(EMULATE_MATRIX, ~0u, dst));
	const unsigned lane = emulate_now->thread % 32, word[4] = {a, b, c, d};
	for (int i = 0; i < 4; i++)
		for (int k = 0; k < 2; k++) {
			const unsigned short e = word[i] >> 16 * k;
			emulate_store((unsigned)rows[8 * i + lane % 4 * 2 + k] + lane / 4 * 2, &e, 2);
		}
}
WRAP bool elect_sync(AT) { return HERE, emulate_warp(EMULATE_VOTE, ~0u, 0), emulate_now->thread % 32 == 7; }
template <int REGISTERS> WRAP void setmaxnreg_dec() {}
template <int REGISTERS> WRAP void setmaxnreg_inc() {}
WRAP void wgmma_fence() { emulate_wgmma_fence(); }
WRAP void wgmma_commit_group(AT) { HERE, emulate_wgmma_commit(); }
template <int PENDING> WRAP void wgmma_wait_group(AT) { HERE, emulate_wgmma_wait(PENDING); }
template <class T, int N> WRAP void registers_pin(T (&)[N]) {}
WRAP void known_here(float) {}
WRAP void known_here(unsigned) {}

// ---- gen/emit_wgmma.c; ELEMENT_BF16 is of the source ----

template <int N> WRAP void wgmma_issue(emulate_form form, bool accumulate, float (&d)[N], const unsigned *a, uint64_t left, uint64_t right)
{
	const emulate_product product = {form, 2 * N, accumulate, ELEMENT_BF16, left, right};
	emulate_wgmma(&product, d, a);
}
template <bool ACCUMULATE, int N> WRAP void wgmma_ss(float (&d)[N], uint64_t a, uint64_t b, AT) { HERE, wgmma_issue(EMULATE_SS, ACCUMULATE, d, nullptr, a, b); }
template <bool ACCUMULATE, int N> WRAP void wgmma_ms(float (&d)[N], uint64_t a, uint64_t b, AT) { HERE, wgmma_issue(EMULATE_MS, ACCUMULATE, d, nullptr, a, b); }
template <bool ACCUMULATE, int N> WRAP void wgmma_sm(float (&d)[N], uint64_t a, uint64_t b, AT) { HERE, wgmma_issue(EMULATE_SM, ACCUMULATE, d, nullptr, a, b); }
template <bool ACCUMULATE, int N> WRAP void wgmma_mm(float (&d)[N], uint64_t a, uint64_t b, AT) { HERE, wgmma_issue(EMULATE_MM, ACCUMULATE, d, nullptr, a, b); }
template <int N> WRAP void wgmma_rs(float (&d)[N], unsigned a0, unsigned a1, unsigned a2, unsigned a3, uint64_t b, AT)
{
	const unsigned a[4] = {a0, a1, a2, a3};
	HERE, wgmma_issue(EMULATE_RS, true, d, a, 0, b);
}
