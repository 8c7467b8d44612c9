/* The launch ABI: compiled as C by runtime/ and as CUDA by NVRTC. Addresses are device addresses. Strides count
 * elements; the last dimension is contiguous and a dimension of size 1 may carry any stride. Fields that a kernel does
 * not use are zero. */
#ifndef FAGEN_ABI_H
#define FAGEN_ABI_H

struct fagen_abi_tensor {
	unsigned long long data;
	long long stride_batch, stride_head, stride_seq;
};

struct fagen_abi {
	struct fagen_abi_tensor query;   /* [batch][heads_q][seqlen_q][HEAD_DIM_QK], 16-bit */
	struct fagen_abi_tensor key;     /* [batch][heads_kv][seqlen_k][HEAD_DIM_QK] */
	struct fagen_abi_tensor value;   /* [batch][heads_kv][seqlen_k][HEAD_DIM_V] */
	struct fagen_abi_tensor out;     /* [batch][heads_q][seqlen_q][HEAD_DIM_V] */
	struct fagen_abi_tensor dout;    /* as out */
	struct fagen_abi_tensor dquery;  /* as query */
	struct fagen_abi_tensor dkey;    /* as key */
	struct fagen_abi_tensor dvalue;  /* as value */
	struct fagen_abi_tensor lse;     /* [batch][heads_q][seqlen_q], float32 */
	struct fagen_abi_tensor dlse;    /* as lse; data 0: no gradient of LSE */
	unsigned long long delta;        /* workspace: rowsum(dout * out) - dlse, [batch][heads_q][rows], float32 */
	unsigned long long dquery_accum; /* workspace: float32 sums of dquery, in the layout of the template that owns them */
	unsigned long long scores;       /* workspace of the naive kernels: [batch][heads_q][seqlen_q][seqlen_k], float32 */
	unsigned long long dscores;      /* as scores */
	unsigned long long rng_state;    /* 0, or the address of {seed, offset}, two 64-bit words, read on the device */
	unsigned long long seed, offset; /* dropout, when rng_state is 0 */
	int batch, heads_q, heads_kv, seqlen_q, seqlen_k;
	int kv_group;                    /* heads_q / heads_kv */
};

#ifdef __cplusplus
static_assert(sizeof(struct fagen_abi) == 400, "host and device disagree on struct fagen_abi");
#else
_Static_assert(sizeof(struct fagen_abi) == 400, "host and device disagree on struct fagen_abi");
#endif

#endif
