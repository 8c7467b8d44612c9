/* check: attention computed plainly, in double, and the comparison of a kernel's results with it.
 * The reference is independent of gen/: it shares no code and no formula with the compiler it judges. */
#ifndef FAGEN_CHECK_H
#define FAGEN_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- reference.c: the definition, in double ------------------------------------------------------------------------ */

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
	/* In the dropout counter, head h of batch entry b counts as first_head[b] + h. NULL: b * heads_q + h. Lets some heads
	 * of a larger problem be computed alone. */
	const int64_t *first_head;
};

/* All tensors are dense [batch][head][seq][dim] here, in double. lse [batch][head][seq]. */
struct ref_forward { double *out, *lse; };
struct ref_backward { double *dquery, *dkey, *dvalue; };

bool ref_visible(const struct ref_case *, int64_t q, int64_t k);
bool ref_dropout_keep(const struct ref_case *, int64_t b, int64_t h, int64_t q, int64_t k);
/* A row without a visible key: O = 0, LSE = -inf, and it adds nothing to any gradient. */
void ref_attention_forward(struct ref_forward *, const struct ref_case *, const double *query, const double *key, const double *value);
/* dkey and dvalue are summed over the query heads that share a key/value head. */
void ref_attention_backward(struct ref_backward *, const struct ref_case *, const double *query, const double *key,
                            const double *value, const double *dout, const double *dlse /* may be NULL */);
/* Largest finite |softmax_scale * q.k| of a visible cell: float32 cannot know a logit better than 2^-24 of it. */
double ref_score_max(const struct ref_case *, const double *query, const double *key);

/* ---- plain.c: the yardstick of tolerance: float32 scores and softmax, P (and dS) and results rounded to the dtype -- */

void ref_plain_forward(struct ref_forward *, const struct ref_case *, const double *query, const double *key, const double *value);
void ref_plain_backward(struct ref_backward *, const struct ref_case *, const double *query, const double *key,
                        const double *value, const double *dout, const double *dlse);

/* ---- parallel.c: work(context, item) for every item below `items`, on all cores ------------------------------------ */

void parallel_for(int64_t items, void (*work)(void *context, int64_t item), void *context);

/* ---- number.c: the two 16-bit types -------------------------------------------------------------------------------- */

double number_round(double, bool bf16);         /* nearest value of the type, ties to even; overflow is infinite */
uint16_t number_encode(double, bool bf16);      /* rounds, then its bits */
double number_decode(uint16_t, bool bf16);
double number_ulp(double magnitude, bool bf16); /* spacing of the type's values at a magnitude */

/* ---- inputs.c: seeded data ------------------------------------------------------------------------------------------ */

enum input_kind {
	INPUT_GAUSS,    /* independent normal */
	INPUT_OUTLIER,  /* normal; a few channels are 20 times larger, as real activations are */
	INPUT_LOWRANK,  /* combinations of three vectors, plus a little noise */
	INPUT_HUGE,     /* scaled scores up to some thousands */
	INPUT_CONST,    /* each row repeats one value */
	INPUT_ZERO,     /* query and key are zero; value and dout normal */
	INPUT_INF,      /* normal, but one key of the first key/value head has +inf and -inf */
	INPUT_COUNT
};
extern const char *const input_names[INPUT_COUNT];
enum input_role { ROLE_QUERY, ROLE_KEY, ROLE_VALUE, ROLE_DOUT, ROLE_DLSE };

/* A number generator: equal seeds and streams give equal numbers on every machine. */
struct random { uint64_t state; };
void random_begin(struct random *, uint64_t seed, uint64_t stream);
uint64_t random_next(struct random *);
double random_normal(struct random *);

/* rows x dim values of one head of one tensor, rounded to the type. `scale` is the softmax scale they will meet. */
void input_fill(double *to, int64_t rows, int dim, enum input_kind, enum input_role, double scale, bool bf16,
                uint64_t seed, uint64_t head);

/* ---- compare.c ---------------------------------------------------------------------------------------------------- */

enum { COMPARE_DIMS = 4, COMPARE_TEXT = 384 };

struct compare {               /* one tensor */
	const char *name;
	int64_t dim[COMPARE_DIMS]; /* dense; the last one is a row */
	bool bf16;                 /* type of the result, for its ulp; unused for float32 */
	double floor;              /* what float32 arithmetic may add to any element */
};

struct compare_result {
	bool ok;
	double worst, bound;       /* error of the worst element, and what it may be */
	char text[COMPARE_TEXT];   /* what is wrong and where, "" when ok */
};

/* got against want, NaN and infinite positions exactly. Elsewhere |got - want| is at most 1.5 times the largest error
 * of `plain` in the tensor, plus 2 ulp of the row's magnitude, plus the floor; and in the mean square at most twice that
 * of `plain`, plus half an ulp and the floor. */
void compare_tensor(struct compare_result *, const struct compare *, const double *got, const double *want, const double *plain);
/* NaN and infinite positions exactly; elsewhere |got - want| <= absolute + relative * |want|. */
void compare_close(struct compare_result *, const struct compare *, const double *got, const double *want, double absolute, double relative);

#endif
