// One PTX instruction per wrapper, named after the instruction. Shared addresses are 32-bit addresses of the shared state space.
// Element is Fp16 or Bf16: an empty tag that selects the operand type.

struct Fp16 {};
struct Bf16 {};

DEVICE unsigned cvta_shared(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

// 16 bytes, global to shared, past L1; zeros are written and nothing is read when `inside` is false.
DEVICE void cp_async_16_zfill(unsigned dst, const void *src, bool inside)
{
	asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(inside ? 16 : 0) : "memory");
}
// 4 bytes, through L1.
DEVICE void cp_async_4(unsigned dst, const void *src)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(src) : "memory");
}
// UNIT bytes, 4 or 16: `bytes` of them, 0 .. UNIT, are read, and zeros follow.
template <int UNIT> DEVICE void cp_async_part(unsigned dst, const void *src, int bytes)
{
	static_assert(UNIT == 4 || UNIT == 16, "units of rows");
	if constexpr (UNIT == 16)
		asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
	else
		asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}
DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> DEVICE void cp_async_wait() // this thread's groups but the newest PENDING have landed
{
	asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Named barriers of some warps of a CTA; 0 is __syncthreads.
DEVICE void barrier_sync(int id, int threads) { asm volatile("barrier.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

DEVICE void st_shared_16(unsigned dst, uint4 v)
{
	asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(dst), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEVICE void st_global_16(void *dst, uint4 v) // written as a uint4 it may come out as four stores
{
	asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(dst), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEVICE void st_global_16_if(void *dst, uint4 v, bool here)
{
	asm volatile("{\n\t.reg .pred here;\n\tsetp.ne.b32 here, %5, 0;\n\t@here st.global.v4.b32 [%0], {%1, %2, %3, %4};\n\t}" ::"l"(dst), "r"(v.x),
	             "r"(v.y), "r"(v.z), "r"(v.w), "r"((int)here)
	             : "memory");
}
DEVICE void st_shared_4(unsigned dst, unsigned v) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(dst), "r"(v) : "memory"); }
DEVICE uint4 ld_shared_16(unsigned src)
{
	uint4 v;
	asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(src) : "memory");
	return v;
}

// Four (two) 8x8 matrices of 16-bit elements; lanes 8i..8i+7 give the row addresses of matrix i.
DEVICE void ldmatrix_x4(unsigned (&r)[4], unsigned src)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(src) : "memory");
}
DEVICE void ldmatrix_x4_trans(unsigned (&r)[4], unsigned src)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(src) : "memory");
}

// d += a b, a 16x16 row-major, b 16x8 column-major, d float32 16x8. Thread (g = lane/4, t = lane%4) holds of d the rows
// g, g+8 and columns 2t, 2t+1: {d[g][2t], d[g][2t+1], d[g+8][2t], d[g+8][2t+1]}.
DEVICE void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, Bf16)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, Fp16)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two floats to a packed pair, round to nearest even; lo in the low half.
DEVICE unsigned cvt_rn_x2(float lo, float hi, Bf16)
{
	unsigned r;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}
DEVICE unsigned cvt_rn_x2(float lo, float hi, Fp16)
{
	unsigned r;
	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}
// One 16-bit element to float.
DEVICE float cvt_f32(unsigned short v, Bf16) { return __uint_as_float((unsigned)v << 16); }
DEVICE float cvt_f32(unsigned short v, Fp16)
{
	float f;
	asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v));
	return f;
}

// The float with this upper half. As a shift, what is the upper of a loaded pair takes two instructions.
DEVICE float mov_upper(unsigned short v)
{
	float f;
	asm("mov.b32 %0, {%1, %2};" : "=f"(f) : "h"((unsigned short)0), "h"(v));
	return f;
}

// threadIdx.x, read anew at every call: what a loop derives from it is not kept in registers between iterations.
DEVICE unsigned mov_tid_x()
{
	unsigned t;
	asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
	return t;
}

// The same value, of which the compiler knows nothing: what a loop derives from it is not kept in registers between iterations.
DEVICE int anew(int x)
{
	asm volatile("" : "+r"(x));
	return x;
}

// Tells the compiler that a value is the same in all lanes, so that it and what follows from it may use uniform registers.
DEVICE int warp_uniform(int x) { return __shfl_sync(~0u, x, 0); }

// In C the compiler may widen what becomes of the halves to 64 bits, and then no longer knows that their product needs one instruction.
DEVICE unsigned long long mul_wide(unsigned a, unsigned b)
{
	unsigned long long r;
	asm("mul.wide.u32 %0, %1, %2;" : "=l"(r) : "r"(a), "r"(b));
	return r;
}

DEVICE unsigned prmt(unsigned a, unsigned b, unsigned selector)
{
	unsigned r;
	asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
	return r;
}

DEVICE float ex2(float x) // 2^x; -inf gives 0, subnormal results give 0
{
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}
DEVICE float lg2(float x)
{
	float y;
	asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

DEVICE float rcp(float x)
{
	float y;
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}
DEVICE float sqrt_approx(float x)
{
	float y;
	asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

// Adds a lane's 4 floats to global memory; no result. A warp's instruction covers whole 128-byte lines when p is
// 4 * lane (vector form: needs sm_90 and a 16-byte aligned address) or lane (the floats then lie 32 apart) on a line.
template <int N> struct Width {};
DEVICE void red_add_4(float *p, const float (&v)[4], Width<1>)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		asm volatile("red.global.add.f32 [%0], %1;" ::"l"(p + 32 * i), "f"(v[i]) : "memory");
}
template <int N> DEVICE void red_add_4(float *p, const float (&v)[4], Width<N>)
{
	static_assert(N == 4, "RED_WIDTH is 1 or 4");
	asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}
