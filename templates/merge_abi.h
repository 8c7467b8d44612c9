/* The launch ABI of templates/merge.cu: compiled as C by runtime/ and as CUDA by NVRTC, after abi.h. */
#ifndef FAGEN_MERGE_ABI_H
#define FAGEN_MERGE_ABI_H

enum { FAGEN_MERGE_ROWS = 8, FAGEN_MERGE_THREADS = 128 };              /* query rows, threads of a CTA */
enum { FAGEN_MERGE_BF16, FAGEN_MERGE_FP16, FAGEN_MERGE_FLOAT32 };       /* types of O; LSE is float32 */

struct fagen_merge_abi {
	struct fagen_abi_tensor out, out_a, out_b;    /* [batch][heads][seqlen][head_dim] */
	struct fagen_abi_tensor lse, lse_a, lse_b;    /* [batch][heads][seqlen]; data 0 of lse: not wanted */
	struct fagen_abi_tensor dout, dout_a, dout_b; /* backward: gradients, of the types of what they are gradients of */
	struct fagen_abi_tensor dlse, dlse_a, dlse_b; /* data 0 of dlse: no gradient of LSE */
	int type, type_a, type_b;                     /* of out, out_a, out_b */
	int heads, seqlen, head_dim;
	int vector;                                   /* 1: four elements of a row may be loaded and stored at a time */
	int reserved;
};

#ifdef __cplusplus
static_assert(sizeof(struct fagen_merge_abi) == 416, "host and device disagree on struct fagen_merge_abi");
#else
_Static_assert(sizeof(struct fagen_merge_abi) == 416, "host and device disagree on struct fagen_merge_abi");
#endif

#endif
