/* check: attention computed plainly, in double, and the comparison of a kernel's results with it.
 * Independent of gen/: it shares no code and no formula with the compiler it judges. */
#ifndef FAGEN_CHECK_H
#define FAGEN_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is visible: all of the stated limits hold. Positions are absolute. */
struct ref_mask {
	bool causal;           /* k - sk <= q - sq */
	bool causal_top_left;  /* k <= q */
	bool window;           /* (q - sq) - (k - sk) <= left and (k - sk) - (q - sq) <= right */
	int64_t left, right;   /* INT64_MAX: unbounded */
};

struct ref_case {
	int64_t batch, heads_q, heads_kv, seqlen_q, seqlen_k;
	int head_dim_qk, head_dim_v;
	double softmax_scale;
	int mask_count;
	struct ref_mask mask[8];
	int keep_256;          /* of 256; 256: no dropout */
	uint64_t seed, offset;
	bool bf16;             /* else fp16 */
};

/* All tensors are dense [batch][head][seq][dim] here, in double. lse [batch][head][seq]. */
struct ref_forward { double *out, *lse; };
struct ref_backward { double *dquery, *dkey, *dvalue; };

bool ref_visible(const struct ref_case *, int64_t q, int64_t k);
bool ref_dropout_keep(const struct ref_case *, int64_t b, int64_t h, int64_t q, int64_t k);
void ref_attention_forward(struct ref_forward *, const struct ref_case *, const double *query, const double *key, const double *value);
void ref_attention_backward(struct ref_backward *, const struct ref_case *, const double *query, const double *key,
                            const double *value, const double *dout, const double *dlse /* may be NULL */);
/* The yardstick of tolerance: float32 scores and softmax, P (and dS) and results rounded to the dtype. */
void ref_plain_forward(struct ref_forward *, const struct ref_case *, const double *query, const double *key, const double *value);
void ref_plain_backward(struct ref_backward *, const struct ref_case *, const double *query, const double *key,
                        const double *value, const double *dout, const double *dlse);

#endif
