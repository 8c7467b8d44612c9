/* check: attention computed plainly, in double, and the comparison of a kernel's results with it.
 * The reference is independent of gen/: it shares no code and no formula with the compiler it judges. */
#ifndef FAGEN_CHECK_H
#define FAGEN_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- program.c: what masks, scores and block layouts mean ---------------------------------------------------------- */

/* A named input, dense, in double. An index outside a dimension reads the nearest element. */
struct ref_input {
	const char *name;
	int dims;
	int64_t dim[4];
	const double *data;
	bool grad;
	char axis[4];          /* 'q', 'k': a dimension of positions */
};

/* The attention of a spec: a parser and an evaluator of their own, presets by their meaning. Made from a struct spec by
 * ref_program_make (case.h). NULL stands for plain attention: every key visible, scores as they are. */
struct ref_program;

/* ---- reference.c: the definition, in double ------------------------------------------------------------------------ */

struct ref_case {
	int64_t batch, heads_q, heads_kv, seqlen_q, seqlen_k;
	int head_dim_qk, head_dim_v;
	double softmax_scale;
	const struct ref_program *program;
	const struct ref_input *input; /* in the order of the spec */
	int inputs;
	int keep_256;          /* of 256; 256: no dropout */
	uint64_t seed, offset;
	bool bf16;             /* else fp16 */
	/* Some heads of a larger problem computed alone: head h of batch entry b is number first_head[b] + h of the larger
	 * problem, counted over its batch entries with all_heads_q heads each. Dropout, masks, scores and inputs see that
	 * number and the counts all_heads_q, all_heads_kv. NULL: the problem is whole, the two counts are not looked at. */
	const int64_t *first_head;
	int64_t all_heads_q, all_heads_kv;
	/* Positions that the entries of the whole batch use; rows past them have no part in anything. NULL: all. */
	const int64_t *used_q, *used_k;
	/* Where their positions begin in dimensions of inputs. NULL: at 0. */
	const int64_t *first_q, *first_k;
};

/* All tensors are dense [batch][head][seq][dim] here, in double. lse [batch][head][seq]. */
struct ref_forward { double *out, *lse; };
struct ref_backward {
	double *dquery, *dkey, *dvalue;
	/* One entry for each input, dense as the input; NULL: not wanted. Of the heads computed alone. */
	double **input_grad;
	/* The same shape: root of the sum of the squares of what the cells (rows, for the sink) added to each element, the
	 * scale of what rounding may do to the sum. NULL, or NULL entries: not wanted. The yardstick leaves it alone. */
	double **input_spread;
	/* The shape of dquery: what one unit of rounding of the dtype in P and O, as a forward pass has it, may do to an element
	 * through delta = rowsum(dO * O): root of the sum of squares over the keys. NULL: not wanted. The yardstick leaves it alone. */
	double *dquery_spread;
	/* Results of the forward pass, which are needed on the way. NULL: not wanted. */
	double *out, *lse;
};

bool ref_visible(const struct ref_case *, int64_t b, int64_t h, int64_t q, int64_t k);
bool ref_dropout_keep(const struct ref_case *, int64_t b, int64_t h, int64_t q, int64_t k);
/* A row without a visible key: O = 0, LSE = -inf (the sink's logit, if there is a sink), and it adds nothing to any
 * gradient but the sink's. */
void ref_attention_forward(struct ref_forward *, const struct ref_case *, const double *query, const double *key, const double *value);
/* dkey and dvalue are summed over the query heads that share a key/value head. */
void ref_attention_backward(struct ref_backward *, const struct ref_case *, const double *query, const double *key,
                            const double *value, const double *dout, const double *dlse /* may be NULL */);
/* What float32 cannot know a logit better than, in units of 2^-24: the largest finite |x * d logit / d x| of a visible
 * cell, over every number x on the way from q.k to the logit. */
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
	/* Against a softmax that does not follow the running maximum. Logits along a common direction, some hundreds. */
	INPUT_HARD,
	INPUT_ROW = INPUT_HARD, /* normal, but one query row's logits are huge */
	INPUT_RISING,   /* logits rise from the last key to the first, in every tile */
	INPUT_FALLING,  /* and fall */
	INPUT_TURNS,    /* high for 64 keys, low for 64 */
	INPUT_LOW,      /* all far below 0 */
	INPUT_OPPOSED,  /* rising, and neighbours of V are each other's negatives */
	INPUT_LARGEST,  /* value near the largest number whose sums float32 holds; forward alone */
	INPUT_COUNT
};
extern const char *const input_names[INPUT_COUNT];
enum input_role { ROLE_QUERY, ROLE_KEY, ROLE_VALUE, ROLE_DOUT, ROLE_DLSE };

bool input_forward_only(enum input_kind); /* its gradients are beyond the types */

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
 * of `plain` in the tensor, or 3 units of rounding of `spread` (NULL: there is none), plus 2 ulp of the row's magnitude, plus the
 * floor; and in the mean square at most twice that of `plain`, plus half an ulp and the floor. Errors of rows differ in scale where
 * one key or one channel rules them, so the largest of one computation need not come near that of another. */
void compare_tensor(struct compare_result *, const struct compare *, const double *got, const double *want, const double *plain,
                    const double *spread);
/* NaN and infinite positions exactly; elsewhere |got - want| <= absolute + relative * |want|. */
void compare_close(struct compare_result *, const struct compare *, const double *got, const double *want, double absolute, double relative);
/* float32 sums over many cells, as gradients of inputs are: |got - want| is at most 1.5 times the largest error of
 * `plain`, plus the element's spread times (the 16-bit type's ulp at 1 + the floor, which is relative here). */
void compare_sum(struct compare_result *, const struct compare *, const double *got, const double *want, const double *plain,
                 const double *spread);

#endif
