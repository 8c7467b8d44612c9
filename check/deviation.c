#include "check/deviation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/trial.h"

void deviation_measure(struct deviation *d, const double *got, const double *want, int64_t count)
{
	double max = 0, square = 0;
	int64_t finite = 0;
	for (int64_t i = 0; i < count; i++) {
		if (!isfinite(want[i]))
			continue;
		const double e = isfinite(got[i]) ? fabs(got[i] - want[i]) : INFINITY;
		max = fmax(max, e);
		square += e * e;
		finite++;
	}
	*d = (struct deviation){.max = max, .rms = finite ? sqrt(square / (double)finite) : 0};
}

double root_mean_square(const double *x, int64_t count)
{
	double square = 0;
	int64_t finite = 0;
	for (int64_t i = 0; i < count; i++)
		if (isfinite(x[i])) {
			square += x[i] * x[i];
			finite++;
		}
	return finite ? sqrt(square / (double)finite) : 0;
}

static double over(double x, double unit) { return x == 0 ? 0 : x / unit; }

struct deviation deviation_relative(const struct deviation *d, double exact)
{
	return (struct deviation){.max = over(d->max, exact), .rms = over(d->rms, exact)};
}

void baseline_free(struct baseline *b)
{
	for (int id = 0; id < TENSOR_COUNT; id++) {
		free(b->exact[id]);
		free(b->plain[id]);
	}
	memset(b, 0, sizeof *b);
}

static int64_t tensor_elements(const struct trial *r, int id)
{
	const struct ref_case *c = &r->ref;
	const int64_t rows = tensor_is_key_side(id) ? c->heads_kv * c->seqlen_k : c->heads_q * c->seqlen_q;
	return c->batch * rows * r->t[id].layout.dim;
}

/* -1: out of memory. LSE takes part even where the spec has no such output. */
static int results_alloc(double *to[TENSOR_COUNT], const struct trial *r)
{
	for (int id = 0; id < TENSOR_COUNT; id++) {
		const int64_t count =
			id == TENSOR_LSE ? r->ref.batch * r->ref.heads_q * r->ref.seqlen_q : tensor_elements(r, id);
		if ((r->t[id].used || id == TENSOR_LSE) && !tensor_is_input(id) &&
		    !(to[id] = malloc((size_t)(count + 1) * sizeof **to)))
			return -1;
	}
	return 0;
}

typedef void forward_run(struct ref_forward *, const struct ref_case *, const double *, const double *, const double *);
typedef void backward_run(struct ref_backward *, const struct ref_case *, const double *, const double *,
                          const double *, const double *, const double *);

static void results_compute(double *to[TENSOR_COUNT], const struct trial *r, double *const from[TENSOR_COUNT],
                            forward_run *forward, backward_run *backward)
{
	const double *q = from[TENSOR_QUERY], *k = from[TENSOR_KEY], *v = from[TENSOR_VALUE];
	struct ref_forward f = {to[TENSOR_OUT], to[TENSOR_LSE]};
	struct ref_backward b = {.dquery = to[TENSOR_DQUERY],
	                         .dkey = to[TENSOR_DKEY],
	                         .dvalue = to[TENSOR_DVALUE],
	                         .out = to[TENSOR_OUT],
	                         .lse = to[TENSOR_LSE]};
	if (r->backward)
		backward(&b, &r->ref, q, k, v, from[TENSOR_DOUT], from[TENSOR_DLSE]);
	else
		forward(&f, &r->ref, q, k, v);
}

static int baseline_make(struct baseline *b, struct trial *r)
{
	double *from[TENSOR_COUNT] = {NULL};
	if (results_alloc(b->exact, r) || results_alloc(b->plain, r))
		return trial_fail(r, CHECK_MACHINE, "Out of host memory for the exact results.");
	for (int id = 0; id < TENSOR_COUNT; id++)
		if (r->t[id].used && tensor_is_input(id))
			from[id] = tensor_gather(r, id);
	results_compute(b->exact, r, from, ref_attention_forward, ref_attention_backward);
	results_compute(b->plain, r, from, ref_plain_forward, ref_plain_backward);
	for (int id = 0; id < TENSOR_COUNT; id++)
		free(from[id]);
	return 0;
}

struct taken {
	struct deviations *d;
	struct baseline *b;
};

static int results_take(struct trial *r, void *context)
{
	static const int results[] = {TENSOR_OUT, TENSOR_LSE, TENSOR_DQUERY, TENSOR_DKEY, TENSOR_DVALUE};
	const struct taken *to = context;
	if (!to->b->exact[TENSOR_OUT] && baseline_make(to->b, r))
		return -1;
	for (int i = 0; i < 5; i++) {
		const int id = results[i];
		if (!r->t[id].used)
			continue;
		const int64_t count = tensor_elements(r, id);
		const double *exact = to->b->exact[id];
		struct deviation_row *row = &to->d->row[to->d->count++];
		*row = (struct deviation_row){.tensor = id, .exact = root_mean_square(exact, count)};
		double *got = tensor_gather(r, id);
		deviation_measure(&row->fagen, got, exact, count);
		deviation_measure(&row->plain, to->b->plain[id], exact, count);
		free(got);
	}
	return 0;
}

void deviation_run(struct deviations *d, struct baseline *b, const struct check_case *c, fagen_runtime *rt,
                   const fagen_spec *spec, int device)
{
	struct taken to = {d, b};
	const struct check_options options = {
		.device = device, .cpu_budget = INFINITY, .take = results_take, .take_context = &to};
	d->count = 0;
	check_run(&d->outcome, c, rt, spec, &options);
}
