// Hopper's own instructions, one per wrapper, named after the instruction. wgmma itself is written for the shapes of the plan and
// stands before this file (gen/emit_wgmma.c). Shared addresses are 32-bit addresses of the shared state space.

// ---- mbarrier: phases of arrivals and bytes ----

// Of `arrivals` for each phase. fence_mbarrier_init and a barrier of the CTA come before anybody else uses it.
DEVICE void mbarrier_init(unsigned long long &barrier, unsigned arrivals)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(cvta_shared(&barrier)), "r"(arrivals) : "memory");
}
DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Orders what this thread did before for whoever sees the phase end. Nothing unless `here`, the instruction's own predicate: under a branch, which
// ptxas predicates, the address is computed behind a vote on it.
DEVICE void mbarrier_arrive(unsigned long long &barrier, bool here = true)
{
	asm volatile("{\n\t.reg .pred here;\n\tsetp.ne.s32 here, %1, 0;\n\t"
	             "@here mbarrier.arrive.shared::cta.b64 _, [%0];\n\t}" ::"r"(cvta_shared(&barrier)),
	             "r"((int)here)
	             : "memory");
}
// Arrives, and makes the phase wait for so many bytes of bulk copies too.
DEVICE void mbarrier_arrive_expect_tx(unsigned long long &barrier, unsigned bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(cvta_shared(&barrier)), "r"(bytes) : "memory");
}
// Returns when the phase of that parity has ended. Parity 1 of a fresh barrier counts as ended.
DEVICE void mbarrier_wait(unsigned long long &barrier, unsigned parity)
{
	asm volatile("{\n\t.reg .pred ended;\nagain_%=:\n\t"
	             "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n\t"
	             "@ended bra done_%=;\n\tbra again_%=;\ndone_%=:\n\t}" ::"r"(cvta_shared(&barrier)),
	             "r"(parity)
	             : "memory");
}

// ---- clusters: CTAs that run together and reach each other's shared memory ----

DEVICE unsigned cluster_ctarank()
{
	unsigned rank;
	asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
	return rank;
}
// Where CTA `rank` of the cluster has what this one has at a shared address.
DEVICE unsigned mapa(unsigned address, unsigned rank)
{
	unsigned there;
	asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
	return there;
}
// mbarrier_arrive at a barrier of another CTA, an address of mapa.
DEVICE void mbarrier_arrive_cluster(unsigned barrier)
{
	asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// All threads of all CTAs of the cluster that have not ended; all lanes of a warp together. What came before an arrival is seen behind the wait.
DEVICE void barrier_cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void barrier_cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// ---- named barriers: 0 is __syncthreads ----

DEVICE void barrier_arrive(int id, int threads)
{
	asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// barrier_sync, and whether any of the threads says yes.
DEVICE bool barrier_red_or(int id, int threads, bool yes)
{
	int any;
	asm volatile("{\n\t.reg .pred mine, all;\n\tsetp.ne.s32 mine, %3, 0;\n\t"
	             "barrier.red.or.pred.aligned all, %1, %2, mine;\n\tselp.s32 %0, 1, 0, all;\n\t}"
	             : "=r"(any)
	             : "r"(id), "r"(threads), "r"((int)yes)
	             : "memory");
	return any;
}

// ---- copies ----

// What L2 gives up first and last of all: policies, as createpolicy makes them for whole tensors.
constexpr unsigned long long L2_EVICT_NORMAL = 0x1000000000000000, L2_EVICT_FIRST = 0x12F0000000000000, L2_EVICT_LAST = 0x14F0000000000000;

// A box of a tensor map, global to shared; `barrier` receives its bytes. What lies outside the tensor arrives as zeros. KEEP: such a policy.
template <unsigned long long KEEP = L2_EVICT_NORMAL>
DEVICE void cp_async_bulk_tensor_4d(unsigned dst, const fagen_abi_map &map, unsigned long long &barrier, int column, int row, int head,
                                    int batch)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
	             "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(dst),
	             "l"(&map), "r"(cvta_shared(&barrier)), "r"(column), "r"(row), "r"(head), "r"(batch), "l"(KEEP)
	             : "memory");
}
// The same box to L2 alone.
DEVICE void cp_async_bulk_prefetch_tensor_4d(const fagen_abi_map &map, int column, int row, int head, int batch)
{
	asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(column), "r"(row), "r"(head), "r"(batch)
	             : "memory");
}
// `bytes` from global to shared, all multiples of 16; `barrier` receives them.
DEVICE void cp_async_bulk(unsigned dst, const void *src, unsigned bytes, unsigned long long &barrier)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "l"(src),
	             "r"(bytes), "r"(cvta_shared(&barrier))
	             : "memory");
}
// The same box for every CTA of the cluster whose bit is set in `ctas`: to `dst` of each, and each one's own `barrier` receives its bytes.
DEVICE void cp_async_bulk_tensor_4d_multicast(unsigned dst, const fagen_abi_map &map, unsigned long long &barrier, int column, int row,
                                              int head, int batch, unsigned short ctas)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
	             "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(dst),
	             "l"(&map), "r"(cvta_shared(&barrier)), "r"(column), "r"(row), "r"(head), "r"(batch), "h"(ctas)
	             : "memory");
}
// `bytes` of this CTA's shared memory to a CTA of the cluster, all multiples of 16; `dst` and `barrier`, which receives them, are its.
DEVICE void cp_async_bulk_cluster(unsigned dst, unsigned src, unsigned bytes, unsigned barrier)
{
	asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "r"(src),
	             "r"(bytes), "r"(barrier)
	             : "memory");
}
// Adds float32 values in shared memory to those in global memory, where others soon add to them again: `bytes`, a multiple of 16. Of this thread's
// group of copies.
DEVICE void cp_reduce_async_bulk_add(float *dst, unsigned src, unsigned bytes)
{
	asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.f32 [%0], [%1], %2, %3;" ::"l"(dst), "r"(src),
	             "r"(bytes), "l"(L2_EVICT_LAST)
	             : "memory");
}
// Stores them.
DEVICE void cp_async_bulk_store(float *dst, unsigned src, unsigned bytes)
{
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(dst), "r"(src), "r"(bytes),
	             "l"(L2_EVICT_LAST)
	             : "memory");
}
DEVICE void cp_async_bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Of this thread's groups the shared memory has been read; or all is done.
DEVICE void cp_async_bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
DEVICE void cp_async_bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Orders this thread's writes to shared memory before reads of the async proxy (wgmma, bulk copies) that follow a barrier.
DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The same for global memory, and for what bulk copies that have been waited for wrote before what this thread does next.
DEVICE void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// ---- words in global memory by which CTAs wait for each other ----

// The word, as soon as those of its bits are `value`; what its writer did before it released that has been done.
DEVICE unsigned word_wait(const unsigned *at, unsigned bits, unsigned value)
{
	unsigned word;
	asm volatile("{\n\t.reg .pred other;\n\t.reg .b32 part;\nagain_%=:\n\t"
	             "ld.acquire.gpu.global.u32 %0, [%1];\n\tand.b32 part, %0, %2;\n\t"
	             "setp.ne.u32 other, part, %3;\n\t@other bra again_%=;\n\t}"
	             : "=&r"(word)
	             : "l"(at), "r"(bits), "r"(value)
	             : "memory");
	return word;
}
DEVICE void st_release(unsigned *at, unsigned value) { asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory"); }
// What was there; `value` is there now if that was `expected`.
DEVICE unsigned atom_cas_acquire(unsigned *at, unsigned expected, unsigned value)
{
	unsigned before;
	asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], %2, %3;" : "=r"(before) : "l"(at), "r"(expected), "r"(value) : "memory");
	return before;
}

// Four 8x8 matrices of 16-bit elements: a lane holds two neighbours of a row; lanes 8i..8i+7 give the row addresses of matrix i.
DEVICE void stmatrix_x4(unsigned dst, unsigned a, unsigned b, unsigned c, unsigned d)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(dst), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
// Each written transposed: a lane holds two neighbours of a column of what lies in memory;
// lanes 8i..8i+7 give the row addresses of matrix i.
DEVICE void stmatrix_x4_trans(unsigned dst, unsigned a, unsigned b, unsigned c, unsigned d)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(dst), "r"(a), "r"(b), "r"(c), "r"(d)
	             : "memory");
}

// ---- warpgroups ----

DEVICE bool elect_sync() // true in one lane of the warp
{
	int elected;
	asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.s32 %0, 1, 0, p;\n\t}" : "=r"(elected));
	return elected;
}
template <int REGISTERS> DEVICE void setmaxnreg_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }
template <int REGISTERS> DEVICE void setmaxnreg_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }

// Before the first wgmma, and whenever registers that one reads or adds to were touched.
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> DEVICE void wgmma_wait_group() // all groups but the newest PENDING are done
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Keeps the compiler from moving what touches these registers past this point: wgmma reads and writes them later than it seems.
template <int N> DEVICE void registers_pin(float (&r)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+f"(r[i])::"memory");
}
template <int N> DEVICE void registers_pin(unsigned (&r)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+r"(r[i])::"memory");
}

// A point of the program before which x, which is never below 0, and all that it is made of must have been computed. ptxas moves waits for
// wgmma up past arithmetic that does not depend on them, and then nothing overlaps the products.
DEVICE void known_here(float x)
{
	if (x < 0)
		asm volatile("nanosleep.u32 1;" ::: "memory");
}
// The same of random bits, of which one value in 2^32 takes a nanosecond.
DEVICE void known_here(unsigned bits)
{
	if (bits == 0x9E3779B9)
		asm volatile("nanosleep.u32 1;" ::: "memory");
}

// ---- operands in shared memory: panels of 64 columns, 128 bytes a row, 128-byte swizzle, as tensor maps write them ----

// Descriptor of a K-major operand, or of an MN-major one whose panels lie `panel_bytes` apart. The address is that of a panel's row,
// a multiple of 8; a step of 16 columns is 32 bytes in a K-major panel, one of 16 rows 2,048 in an MN-major one.
DEVICE unsigned long long wgmma_desc(const void *at, int panel_bytes)
{
	return (unsigned long long)((cvta_shared(at) & 0x3ffff) >> 4) | (unsigned long long)(panel_bytes >> 4) << 16 |
	       (unsigned long long)(1024 >> 4) << 32 | 1ull << 62;
}
