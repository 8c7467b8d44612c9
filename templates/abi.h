/* The launch ABI: compiled as C by runtime/ and as CUDA by NVRTC. Addresses are device addresses. Strides count
 * elements; the last dimension is contiguous and a dimension of size 1 may carry any stride. Fields that a kernel does
 * not use are zero. */
#ifndef FAGEN_ABI_H
#define FAGEN_ABI_H

struct fagen_abi_tensor {
	unsigned long long data;
	long long stride_batch, stride_head, stride_seq;
};

/* One named input of the spec. Strides count elements, one for each dimension in the spec's order; 0 repeats. */
struct fagen_abi_input {
	unsigned long long data;
	long long stride[4];
	unsigned long long grad;         /* float32, dimensions as the input's; 0: not wanted */
	long long grad_stride[4];
};
enum { FAGEN_ABI_INPUTS = 12 };

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
	unsigned long long delta;        /* workspace: LSE and rowsum(dout * out) - dlse of query rows, float32, in the layout of the template */
	unsigned long long dquery_accum; /* workspace: float32 sums of dquery, in the layout of the template that owns them */
	unsigned long long scores;       /* workspace of the naive kernels: [batch][heads_q][seqlen_q][seqlen_k], float32 */
	unsigned long long dscores;      /* as scores */
	unsigned long long bounds_rows;  /* workspace: {least, greatest} of inputs over query tiles, int [slot][batch][heads_q][tiles][2] */
	unsigned long long bounds_cols;  /* over key tiles, the same */
	unsigned long long blocks;       /* workspace: the block layout that lists give, u8 [batch][heads_q][blocks_q][blocks_k] */
	unsigned long long grad_partial; /* workspace: partial sums of input gradients over query tiles, float32, in the layout of sm80/input_grad.cu */
	unsigned long long grad_partial_cols; /* over key tiles */
	unsigned long long rng_state;    /* 0, or the address of {seed, offset}, two 64-bit words, read on the device */
	unsigned long long seed, offset; /* dropout, when rng_state is 0 */
	int batch, heads_q, heads_kv, seqlen_q, seqlen_k;
	int kv_group;                    /* heads_q / heads_kv */
	struct fagen_abi_input input[FAGEN_ABI_INPUTS]; /* in the order of the spec */
	/* Padded and packed layouts: int for each batch entry, positions used of those it has; 0: all of them. */
	unsigned long long seqlens_q, seqlens_k;
	/* Packed: int [batch + 1], first row of each entry. Tensors are [total][heads][dim], seqlens above are at most the
	 * lengths that kernels are launched for; stride_batch is not used. */
	unsigned long long cu_seqlens_q, cu_seqlens_k;
	int total_q, total_k;
	unsigned long long queue;        /* workspace: next work item of a persistent kernel, one 32-bit word, cleared before the launch */
	unsigned long long turns;        /* workspace: who adds next to the sums of dquery, two 32-bit words for each query tile, of sm90/bwd.cu */
	unsigned long long order;        /* workspace: numbers of the main kernel's items as they are to begin, 32-bit words; 0: as they are numbered */
	unsigned long long parts;        /* workspace: O and LSE over parts of the keys, in the layout of sm90/fwd.cu; dK and dV over parts of the queries, of sm90/bwd.cu or sm80/bwd.cu */
	unsigned cut_first, cut_parts;   /* of the main kernel's tiles, those from cut_first on are cut into so many parts; 0: none are */
};

#ifdef __cplusplus
#define FAGEN_ABI_ALIGN(bytes) alignas(bytes)
#define FAGEN_ABI_ASSERT(holds) static_assert(holds, "host and device disagree on the launch ABI")
#else
#define FAGEN_ABI_ALIGN(bytes) _Alignas(bytes)
#define FAGEN_ABI_ASSERT(holds) _Static_assert(holds, "host and device disagree on the launch ABI")
#endif

/* The second parameter of kernels whose recipe has maps: each is a CUtensorMap over the 16-bit tensor of the same name, of
 * rank 4, {dim, row, head, batch} (packed: {dim, row of the total, head, 1}), or {dim, head, row, batch} where boxes have several
 * heads. Those that the recipe does not name, and those of tensors without elements, are zero. */
struct fagen_abi_map {
	FAGEN_ABI_ALIGN(64) unsigned long long opaque[16];
};
struct fagen_abi_maps {
	struct fagen_abi_map query, key, value, dout;
};

FAGEN_ABI_ASSERT(sizeof(struct fagen_abi) == 1480);
FAGEN_ABI_ASSERT(sizeof(struct fagen_abi_maps) == 512);

#endif
