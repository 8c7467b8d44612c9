#include "check/trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double largest(const double *x, int64_t n)
{
	double max = 0;
	for (int64_t i = 0; i < n; i++)
		if (isfinite(x[i]) && fabs(x[i]) > max)
			max = fabs(x[i]);
	return max;
}

static double largest_row_sum(const double *x, int64_t rows, int dim)
{
	double max = 0;
	for (int64_t i = 0; i < rows; i++) {
		double sum = 0;
		for (int d = 0; d < dim; d++)
			sum += fabs(x[i * dim + d]);
		if (isfinite(sum) && sum > max)
			max = sum;
	}
	return max;
}

static double *doubles(int64_t count)
{
	double *p = malloc((size_t)(count > 0 ? count : 1) * sizeof *p);
	if (!p)
		abort();
	return p;
}

static struct compare compare_of(const struct trial *r, int id, double floor)
{
	const struct ref_case *c = &r->ref;
	return (struct compare){.name = tensor_names[id],
	                        .dim = {c->batch, tensor_is_key_side(id) ? c->heads_kv : c->heads_q,
	                                tensor_is_key_side(id) ? c->seqlen_k : c->seqlen_q, r->t[id].layout.dim},
	                        .bf16 = c->bf16,
	                        .floor = floor};
}

static int judged(struct trial *r, const char *name, const struct compare_result *result)
{
	struct check_tensor *t = &r->out->tensor[r->out->tensor_count++];
	snprintf(t->name, sizeof t->name, "%s", name);
	t->worst = result->worst;
	t->bound = result->bound;
	if (result->ok)
		return 0;
	snprintf(r->out->text, sizeof r->out->text, "%s%s", result->text,
	         r->sample.all ? "" : " [of a sample of heads: b counts the sample]");
	r->out->status = CHECK_WRONG;
	return -1;
}

/* float32 rounding that the yardstick has too, but with other signs and orders of addition. */
struct floors {
	double out, lse, dquery, dkey, dvalue;
	double relative; /* of a logit's own rounding */
};

static void floors_make(struct floors *f, const struct ref_case *c, const double *q, const double *k, const double *v,
                        const double *dout, const double *dlse)
{
	const int64_t rows = c->batch * c->heads_q * c->seqlen_q, cols = c->batch * c->heads_kv * c->seqlen_k;
	const double score = fmin(ref_score_max(c, q, k), 8192), eps = ldexp(1 + 4 * score, -22),
		     up = 256.0 / c->keep_256;
	const double many = sqrt((double)(c->seqlen_q > 0 ? c->seqlen_q : 1) *
	                         (double)(c->heads_kv ? c->heads_q / c->heads_kv : 1));
	const double max_v = largest(v, cols * c->head_dim_v);
	*f = (struct floors){.out = eps * max_v * up, .lse = ldexp(4 + score, -19), .relative = eps};
	if (!dout)
		return;
	const double dp = largest_row_sum(dout, rows, c->head_dim_v) * max_v * up + (dlse ? largest(dlse, rows) : 0);
	f->dquery = eps * c->softmax_scale * dp * largest(k, cols * c->head_dim_qk);
	f->dkey = eps * c->softmax_scale * dp * largest(q, rows * c->head_dim_qk) * many;
	f->dvalue = eps * largest(dout, rows * c->head_dim_v) * many * up;
}

/* Gradients of inputs sum over heads: of a sample of heads there is nothing to compare. */
static int judge_grads(struct trial *r, const struct floors *floor, const struct ref_backward *want,
                       const struct ref_backward *plain)
{
	for (int i = 0; i < r->spec->input_count; i++) {
		const struct named *n = &r->named[i];
		char name[INPUT_NAME_MAX + 1];
		if (!want->input_grad[i])
			continue;
		snprintf(name, sizeof name, "d%.*s", INPUT_NAME_MAX - 1, n->input->name);
		struct compare compare = {
			.name = name, .dim = {1, 1, 1, 1}, .bf16 = r->ref.bf16, .floor = floor->relative};
		for (int d = 0; d < n->input->dims; d++)
			compare.dim[COMPARE_DIMS - n->input->dims + d] = n->size[d];
		struct compare_result result;
		double *got = grad_gather(r, i);
		compare_sum(&result, &compare, got, want->input_grad[i], plain->input_grad[i], want->input_spread[i]);
		free(got);
		if (judged(r, name, &result))
			return -1;
	}
	return 0;
}

static int judge_backward(struct trial *r, const struct floors *floor, const double *q, const double *k,
                          const double *v, const double *dout, const double *dlse)
{
	const struct ref_case *c = &r->ref;
	const int64_t rows = c->batch * c->heads_q * c->seqlen_q, cols = c->batch * c->heads_kv * c->seqlen_k;
	double *want_grad[SPEC_INPUTS_MAX] = {NULL}, *plain_grad[SPEC_INPUTS_MAX] = {NULL},
	       *spread[SPEC_INPUTS_MAX] = {NULL};
	struct ref_backward g = {.dquery = doubles(rows * c->head_dim_qk),
	                         .dquery_spread = doubles(rows * c->head_dim_qk),
	                         .dkey = doubles(cols * c->head_dim_qk),
	                         .dvalue = doubles(cols * c->head_dim_v),
	                         .input_grad = want_grad,
	                         .input_spread = spread};
	struct ref_backward p = {.dquery = doubles(rows * c->head_dim_qk),
	                         .dkey = doubles(cols * c->head_dim_qk),
	                         .dvalue = doubles(cols * c->head_dim_v),
	                         .input_grad = plain_grad};
	for (int i = 0; i < r->spec->input_count; i++)
		if (r->sample.all && r->named_device[i].got) {
			want_grad[i] = doubles(r->named[i].elements);
			plain_grad[i] = doubles(r->named[i].elements);
			spread[i] = doubles(r->named[i].elements);
		}
	ref_attention_backward(&g, c, q, k, v, dout, dlse);
	ref_plain_backward(&p, c, q, k, v, dout, dlse);
	const struct {
		int id;
		const double *want, *plain, *spread;
		double floor;
	} row[] = {
		{TENSOR_DQUERY, g.dquery, p.dquery, g.dquery_spread, floor->dquery},
		{TENSOR_DKEY, g.dkey, p.dkey, NULL, floor->dkey},
		{TENSOR_DVALUE, g.dvalue, p.dvalue, NULL, floor->dvalue},
	};
	int rc = 0;
	for (int i = 0; i < 3 && !rc; i++) {
		struct compare_result result;
		const struct compare compare = compare_of(r, row[i].id, row[i].floor);
		double *got = tensor_gather(r, row[i].id);
		compare_tensor(&result, &compare, got, row[i].want, row[i].plain, row[i].spread);
		free(got);
		rc = judged(r, tensor_names[row[i].id], &result);
	}
	if (!rc)
		rc = judge_grads(r, floor, &g, &p);
	free(g.dquery), free(g.dquery_spread), free(g.dkey), free(g.dvalue);
	free(p.dquery), free(p.dkey), free(p.dvalue);
	for (int i = 0; i < SPEC_INPUTS_MAX; i++)
		free(want_grad[i]), free(plain_grad[i]), free(spread[i]);
	return rc;
}

int judge_cpu(struct trial *r)
{
	const struct ref_case *c = &r->ref;
	const int64_t rows = c->batch * c->heads_q * c->seqlen_q;
	double *q = tensor_gather(r, TENSOR_QUERY), *k = tensor_gather(r, TENSOR_KEY),
	       *v = tensor_gather(r, TENSOR_VALUE);
	double *dout = r->backward ? tensor_gather(r, TENSOR_DOUT) : NULL,
	       *dlse = r->t[TENSOR_DLSE].used ? tensor_gather(r, TENSOR_DLSE) : NULL;
	struct ref_forward want = {doubles(rows * c->head_dim_v), doubles(rows)},
			   plain = {doubles(rows * c->head_dim_v), doubles(rows)};
	struct floors floor;
	struct compare_result result;
	double *got = tensor_gather(r, TENSOR_OUT);
	int rc = -1;
	floors_make(&floor, c, q, k, v, dout, dlse);
	ref_attention_forward(&want, c, q, k, v);
	ref_plain_forward(&plain, c, q, k, v);
	struct compare compare = compare_of(r, TENSOR_OUT, floor.out);
	compare_tensor(&result, &compare, got, want.out, plain.out, NULL);
	free(got);
	if (judged(r, tensor_names[TENSOR_OUT], &result))
		goto out;
	if (r->has_lse) {
		got = tensor_gather(r, TENSOR_LSE);
		compare = compare_of(r, TENSOR_LSE, 0);
		compare_close(&result, &compare, got, want.lse, floor.lse, ldexp(1, -21));
		free(got);
		if (judged(r, tensor_names[TENSOR_LSE], &result))
			goto out;
	}
	rc = 0;
	if (r->backward)
		rc = judge_backward(r, &floor, q, k, v, dout, dlse);
out:
	free(q), free(k), free(v), free(dout), free(dlse);
	free(want.out), free(want.lse), free(plain.out), free(plain.lse);
	return rc;
}

int judge_naive(struct trial *r)
{
	struct gpu_buffer workspace = {0};
	fagen_args args = r->args;
	fagen_input inputs[SPEC_INPUTS_MAX];
	fagen_error error = {.struct_size = sizeof error};
	size_t bytes = 0;
	double *got[TENSOR_COUNT] = {NULL};
	int rc = -1;
	r->out->by_naive = true;
	for (int id = 0; id < TENSOR_COUNT; id++)
		if (r->t[id].used && !tensor_is_input(id))
			got[id] = tensor_gather(r, id);
	if (trial_called(r, fagen_workspace_size(&bytes, r->naive, &args, &error), &error))
		goto out;
	if (gpu_alloc(&workspace, r->rt, r->options->device, bytes, &r->diag)) {
		trial_machine(r);
		goto out;
	}
	args.workspace = (void *)(uintptr_t)workspace.data;
	args.workspace_size = bytes;
	memcpy(inputs, r->inputs, sizeof inputs);
	for (int i = 0; i < r->spec->input_count; i++)
		inputs[i].grad = NULL; /* the naive kernels compute none */
	args.inputs = inputs;
	if (trial_called(r, fagen_forward(r->naive, &args, NULL, &error), &error) ||
	    (r->backward && trial_called(r, fagen_backward(r->naive, &args, NULL, &error), &error)))
		goto out;
	if (gpu_synchronize(r->rt, r->options->device, &r->diag)) {
		trial_fail(r, CHECK_WRONG, text_str(&r->diag.text));
		goto out;
	}
	const double ulp = number_ulp(1, r->ref.bf16); /* 2^-7 or 2^-10 */
	for (int id = 0; id < TENSOR_COUNT; id++) {
		struct compare_result result;
		if (!got[id])
			continue;
		if (tensor_fetch(r, id))
			goto out;
		double *want = tensor_gather(r, id);
		const struct compare compare = compare_of(r, id, 0);
		const int64_t n = compare.dim[0] * compare.dim[1] * compare.dim[2] * compare.dim[3];
		compare_close(&result, &compare, got[id], want, tensor_is_float(id) ? 1e-3 : 2 * ulp * largest(want, n),
		              tensor_is_float(id) ? 1e-5 : 2 * ulp);
		free(want);
		if (judged(r, tensor_names[id], &result))
			goto out;
	}
	rc = 0;
out:
	gpu_free(&workspace, r->rt, r->options->device);
	for (int id = 0; id < TENSOR_COUNT; id++)
		free(got[id]);
	return rc;
}
