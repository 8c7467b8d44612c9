/* A problem with all its tensors, and the meaning of a spec for it. */
#ifndef FAGEN_TESTS_WORLD_H
#define FAGEN_TESTS_WORLD_H

#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/case.h"

#define UNUSED __attribute__((unused))

struct world {
	struct ref_case c;
	int64_t n_q, n_k, n_v, n_o, rows; /* elements of query, key, value, out; query rows */
	double *q, *k, *v, *dout, *dlse;
	struct ref_forward f;
	struct ref_backward g;
	struct spec *spec;
	struct ref_program *program;
	struct ref_input input[SPEC_INPUTS_MAX];
	int64_t n_input[SPEC_INPUTS_MAX];
	double *data[SPEC_INPUTS_MAX], *grad[SPEC_INPUTS_MAX], *spread[SPEC_INPUTS_MAX];
};

static double *doubles(int64_t n)
{
	double *p = calloc((size_t)n + 1, sizeof *p);
	ck_assert_ptr_nonnull(p);
	return p;
}

static UNUSED struct ref_case shape(int64_t b, int64_t hq, int64_t hk, int64_t sq, int64_t sk, int d, int dv)
{
	return (struct ref_case){.batch = b,
	                         .heads_q = hq,
	                         .heads_kv = hk,
	                         .seqlen_q = sq,
	                         .seqlen_k = sk,
	                         .head_dim_qk = d,
	                         .head_dim_v = dv,
	                         .softmax_scale = 1 / sqrt(d),
	                         .keep_256 = 256,
	                         .seed = 0x123456789abcdef0u,
	                         .offset = 5,
	                         .bf16 = true};
}

static UNUSED void world_make(struct world *w, const struct ref_case *c, enum input_kind kind, uint64_t seed)
{
	memset(w, 0, sizeof *w);
	w->c = *c;
	w->rows = c->batch * c->heads_q * c->seqlen_q;
	const int64_t cols = c->batch * c->heads_kv * c->seqlen_k;
	w->n_q = w->rows * c->head_dim_qk;
	w->n_k = cols * c->head_dim_qk;
	w->n_v = cols * c->head_dim_v;
	w->n_o = w->rows * c->head_dim_v;
	w->q = doubles(w->n_q), w->k = doubles(w->n_k), w->v = doubles(w->n_v);
	w->dout = doubles(w->n_o), w->dlse = doubles(w->rows);
	w->f = (struct ref_forward){doubles(w->n_o), doubles(w->rows)};
	w->g = (struct ref_backward){
		.dquery = doubles(w->n_q), .dkey = doubles(w->n_k), .dvalue = doubles(w->n_v), .dquery_spread = doubles(w->n_q)};
	input_fill(w->q, w->rows, c->head_dim_qk, kind, ROLE_QUERY, c->softmax_scale, c->bf16, seed, 0);
	input_fill(w->k, cols, c->head_dim_qk, kind, ROLE_KEY, c->softmax_scale, c->bf16, seed, 0);
	input_fill(w->v, cols, c->head_dim_v, kind, ROLE_VALUE, c->softmax_scale, c->bf16, seed, 0);
	input_fill(w->dout, w->rows, c->head_dim_v, kind, ROLE_DOUT, c->softmax_scale, c->bf16, seed, 0);
	input_fill(w->dlse, w->rows, 1, kind, ROLE_DLSE, c->softmax_scale, c->bf16, seed, 0);
}

static int64_t dim_size(const struct ref_case *c, const struct spec *spec, struct input_dim dim)
{
	const int block_q = spec->blocks.size_q ? spec->blocks.size_q : 1, block_k = spec->blocks.size_k ? spec->blocks.size_k : 1;
	const int64_t size[DIM_KIND_COUNT] = {[DIM_CONST] = dim.size,
	                                      [DIM_BATCH] = c->batch,
	                                      [DIM_HEADS] = c->heads_q,
	                                      [DIM_HEADS_KV] = c->heads_kv,
	                                      [DIM_SEQ_Q] = c->seqlen_q,
	                                      [DIM_SEQ_K] = c->seqlen_k,
	                                      [DIM_BLOCKS_Q] = (c->seqlen_q + block_q - 1) / block_q,
	                                      [DIM_BLOCKS_K] = (c->seqlen_k + block_k - 1) / block_k};
	return size[dim.kind];
}

#define CAUSAL "{head_dim: 16, mask: causal}"

/* Gives the problem the attention of a spec. Its inputs hold small numbers: whole ones where the spec says int. */
static UNUSED void world_mean(struct world *w, const char *yaml, uint64_t seed)
{
	struct spec *spec = w->spec = malloc(sizeof *spec);
	struct diag diag = {0};
	struct random random;
	ck_assert_ptr_nonnull(spec);
	ck_assert_msg(spec_parse(spec, yaml, strlen(yaml), "inline", &diag) == 0, "%s: %s", yaml, text_str(&diag.text));
	ck_assert_msg(ref_program_make(&w->program, spec, &diag) == 0, "%s: %s", yaml, text_str(&diag.text));
	diag_free(&diag);
	w->c.program = w->program;
	w->c.inputs = spec->input_count;
	w->c.input = w->input;
	for (int i = 0; i < spec->input_count; i++) {
		const struct input *in = &spec->input[i];
		struct ref_input *r = &w->input[i];
		*r = (struct ref_input){.name = in->name, .dims = in->dims, .grad = in->grad};
		w->n_input[i] = 1;
		for (int d = 0; d < in->dims; d++)
			w->n_input[i] *= r->dim[d] = dim_size(&w->c, spec, in->dim[d]);
		r->data = w->data[i] = doubles(w->n_input[i]);
		random_begin(&random, seed, (uint64_t)i);
		const bool whole = in->dtype == INPUT_I32 || in->dtype == INPUT_U8;
		for (int64_t e = 0; e < w->n_input[i]; e++)
			w->data[i][e] = whole ? (double)(random_next(&random) % 3) : 0.5 * random_normal(&random);
		w->grad[i] = in->grad ? doubles(w->n_input[i]) : NULL;
		w->spread[i] = in->grad ? doubles(w->n_input[i]) : NULL;
	}
	w->g.input_grad = w->grad;
	w->g.input_spread = w->spread;
	diag_free(&diag);
}

static UNUSED void world_forward(struct world *w) { ref_attention_forward(&w->f, &w->c, w->q, w->k, w->v); }
static UNUSED void world_backward(struct world *w)
{
	ref_attention_backward(&w->g, &w->c, w->q, w->k, w->v, w->dout, w->dlse);
}

static UNUSED void world_free(struct world *w)
{
	free(w->q), free(w->k), free(w->v), free(w->dout), free(w->dlse);
	free(w->f.out), free(w->f.lse);
	free(w->g.dquery), free(w->g.dquery_spread), free(w->g.dkey), free(w->g.dvalue);
	for (int i = 0; i < SPEC_INPUTS_MAX; i++)
		free(w->data[i]), free(w->grad[i]), free(w->spread[i]);
	ref_program_free(w->program);
	free(w->spec);
}

static UNUSED double tensor_max(const double *x, int64_t n)
{
	double max = 0;
	for (int64_t i = 0; i < n; i++)
		max = fmax(max, fabs(x[i]));
	return max;
}

static UNUSED double difference_max(const double *a, const double *b, int64_t n)
{
	double max = 0;
	for (int64_t i = 0; i < n; i++)
		max = fmax(max, fabs(a[i] - b[i]));
	return max;
}

static UNUSED double loss(struct world *w)
{
	double sum = 0;
	world_forward(w);
	for (int64_t i = 0; i < w->n_o; i++)
		sum += w->f.out[i] * w->dout[i];
	for (int64_t i = 0; i < w->rows; i++)
		if (isfinite(w->f.lse[i]))
			sum += w->f.lse[i] * w->dlse[i];
	return sum;
}

static UNUSED void slope_check(struct world *w, const char *name, double *x, int64_t n, const double *gradient)
{
	const double step = 1e-5;
	for (int64_t i = 0; i < n; i += 3) {
		const double at = x[i];
		x[i] = at + step;
		const double above = loss(w);
		x[i] = at - step;
		const double below = loss(w);
		x[i] = at;
		const double slope = (above - below) / (2 * step);
		ck_assert_msg(fabs(slope - gradient[i]) < 2e-8 * (1 + fabs(slope)),
		              "%s[%" PRId64 "]: slope %.12g, gradient %.12g", name, i, slope, gradient[i]);
	}
}

#endif
