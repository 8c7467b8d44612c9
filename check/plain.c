/* The yardstick: what a plain implementation loses. Scores, softmax and sums in float32; P, dS and the results rounded
 * to the 16-bit type where a matrix unit would take or a tensor would store them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/check.h"

struct job {
	const struct ref_case *c;
	const float *query, *key, *value, *dout;
	const double *dlse;
	float *out, *lse, *delta; /* per query row */
	struct ref_backward *backward;
};

static float round_16(float x, bool bf16)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	const uint32_t exponent = bits >> 23 & 255;
	if (exponent == 255)
		return x;
	if (!bf16 && (exponent < 127 - 14 || exponent > 127 + 14)) /* subnormal, zero or near the limit */
		return (float)number_round(x, false);
	const int drop = bf16 ? 16 : 13;
	bits += ((1u << (drop - 1)) - 1) + (bits >> drop & 1);
	bits &= ~((1u << drop) - 1);
	memcpy(&x, &bits, sizeof x);
	return x;
}

static float dot(const float *a, const float *b, int n)
{
	float sum[8] = {0};
	int i = 0;
	for (; i + 8 <= n; i += 8)
		for (int j = 0; j < 8; j++)
			sum[j] += a[i + j] * b[i + j];
	for (; i < n; i++)
		sum[0] += a[i] * b[i];
	return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

static void add_scaled(float *to, float factor, const float *from, int n)
{
	for (int i = 0; i < n; i++)
		to[i] += factor * from[i];
}

static int64_t key_row(const struct ref_case *c, int64_t b, int64_t h, int64_t k)
{
	return (b * c->heads_kv + h / (c->heads_q / c->heads_kv)) * c->seqlen_k + k;
}

static float score(const struct job *j, int64_t row, int64_t col)
{
	const int d = j->c->head_dim_qk;
	return (float)j->c->softmax_scale * dot(j->query + row * d, j->key + col * d, d);
}

static void forward_row(void *context, int64_t row)
{
	const struct job *j = context;
	const struct ref_case *c = j->c;
	const int64_t q = row % c->seqlen_q, h = row / c->seqlen_q % c->heads_q, b = row / c->seqlen_q / c->heads_q;
	float *out = j->out + row * c->head_dim_v, *s = malloc((size_t)(c->seqlen_k > 0 ? c->seqlen_k : 1) * sizeof *s);
	if (!s)
		abort();
	float max = -INFINITY, sum = 0;
	for (int64_t k = 0; k < c->seqlen_k; k++) {
		if (!ref_visible(c, q, k))
			continue;
		s[k] = score(j, row, key_row(c, b, h, k));
		max = fmaxf(max, s[k]);
	}
	if (max == -INFINITY)
		max = 0;
	for (int64_t k = 0; k < c->seqlen_k; k++)
		if (ref_visible(c, q, k))
			sum += s[k] = expf(s[k] - max);
	for (int i = 0; i < c->head_dim_v; i++)
		out[i] = 0;
	for (int64_t k = 0; k < c->seqlen_k; k++)
		if (ref_visible(c, q, k) && ref_dropout_keep(c, b, h, q, k))
			add_scaled(out, round_16(s[k] / sum, c->bf16), j->value + key_row(c, b, h, k) * c->head_dim_v,
			           c->head_dim_v);
	for (int i = 0; i < c->head_dim_v; i++)
		out[i] = round_16(sum == 0 ? 0 : out[i] * (256.0f / (float)c->keep_256), c->bf16);
	j->lse[row] = sum == 0 ? -INFINITY : max + logf(sum);
	free(s);
}

static void cell(float *p_dropped, float *ds, const struct job *j, int64_t b, int64_t h, int64_t q, int64_t k)
{
	const struct ref_case *c = j->c;
	const int64_t row = (b * c->heads_q + h) * c->seqlen_q + q, col = key_row(c, b, h, k);
	const bool keep = ref_dropout_keep(c, b, h, q, k);
	const float p = expf(score(j, row, col) - j->lse[row]), up = 256.0f / (float)c->keep_256;
	const float dp =
		keep ? up * dot(j->dout + row * c->head_dim_v, j->value + col * c->head_dim_v, c->head_dim_v) : 0;
	*p_dropped = keep ? up * round_16(p, c->bf16) : 0;
	*ds = round_16(p * (dp - j->delta[row]), c->bf16);
}

static void store(double *to, const float *sum, double factor, int n, bool bf16)
{
	for (int i = 0; i < n; i++)
		to[i] = round_16((float)factor * sum[i], bf16);
}

enum { DIM_MAX = 1024 };

static void dquery_row(void *context, int64_t row)
{
	const struct job *j = context;
	const struct ref_case *c = j->c;
	const int64_t q = row % c->seqlen_q, h = row / c->seqlen_q % c->heads_q, b = row / c->seqlen_q / c->heads_q;
	float sum[DIM_MAX] = {0};
	j->delta[row] = dot(j->dout + row * c->head_dim_v, j->out + row * c->head_dim_v, c->head_dim_v) -
	                (j->dlse ? (float)j->dlse[row] : 0);
	for (int64_t k = 0; k < c->seqlen_k && j->lse[row] != -INFINITY; k++) {
		if (!ref_visible(c, q, k))
			continue;
		float p, ds;
		cell(&p, &ds, j, b, h, q, k);
		add_scaled(sum, ds, j->key + key_row(c, b, h, k) * c->head_dim_qk, c->head_dim_qk);
	}
	store(j->backward->dquery + row * c->head_dim_qk, sum, c->softmax_scale, c->head_dim_qk, c->bf16);
}

static void dkey_row(void *context, int64_t col)
{
	const struct job *j = context;
	const struct ref_case *c = j->c;
	const int64_t k = col % c->seqlen_k, h_kv = col / c->seqlen_k % c->heads_kv,
		      b = col / c->seqlen_k / c->heads_kv;
	const int64_t group = c->heads_q / c->heads_kv;
	float sum_k[DIM_MAX] = {0}, sum_v[DIM_MAX] = {0};
	for (int64_t h = h_kv * group; h < (h_kv + 1) * group; h++)
		for (int64_t q = 0; q < c->seqlen_q; q++) {
			const int64_t row = (b * c->heads_q + h) * c->seqlen_q + q;
			if (!ref_visible(c, q, k) || j->lse[row] == -INFINITY)
				continue;
			float p, ds;
			cell(&p, &ds, j, b, h, q, k);
			add_scaled(sum_v, p, j->dout + row * c->head_dim_v, c->head_dim_v);
			add_scaled(sum_k, ds, j->query + row * c->head_dim_qk, c->head_dim_qk);
		}
	store(j->backward->dkey + col * c->head_dim_qk, sum_k, c->softmax_scale, c->head_dim_qk, c->bf16);
	store(j->backward->dvalue + col * c->head_dim_v, sum_v, 1, c->head_dim_v, c->bf16);
}

static float *floats(int64_t count)
{
	float *p = malloc((size_t)(count > 0 ? count : 1) * sizeof *p);
	if (!p)
		abort();
	return p;
}

static float *narrow(const double *from, int64_t count)
{
	float *to = floats(count);
	for (int64_t i = 0; i < count; i++)
		to[i] = (float)from[i];
	return to;
}

static void job_begin(struct job *j, const struct ref_case *c, const double *query, const double *key,
                      const double *value)
{
	const int64_t rows = c->batch * c->heads_q * c->seqlen_q, cols = c->batch * c->heads_kv * c->seqlen_k;
	*j = (struct job){.c = c,
	                  .query = narrow(query, rows * c->head_dim_qk),
	                  .key = narrow(key, cols * c->head_dim_qk),
	                  .value = narrow(value, cols * c->head_dim_v),
	                  .out = floats(rows * c->head_dim_v),
	                  .lse = floats(rows)};
	parallel_for(rows, forward_row, j);
}

static void job_end(struct job *j)
{
	free((void *)j->query);
	free((void *)j->key);
	free((void *)j->value);
	free(j->out);
	free(j->lse);
}

void ref_plain_forward(struct ref_forward *f, const struct ref_case *c, const double *query, const double *key,
                       const double *value)
{
	struct job j;
	job_begin(&j, c, query, key, value);
	const int64_t rows = c->batch * c->heads_q * c->seqlen_q;
	for (int64_t i = 0; i < rows * c->head_dim_v; i++)
		f->out[i] = j.out[i];
	for (int64_t i = 0; i < rows; i++)
		f->lse[i] = j.lse[i];
	job_end(&j);
}

void ref_plain_backward(struct ref_backward *g, const struct ref_case *c, const double *query, const double *key,
                        const double *value, const double *dout, const double *dlse)
{
	struct job j;
	job_begin(&j, c, query, key, value);
	const int64_t rows = c->batch * c->heads_q * c->seqlen_q;
	j.backward = g;
	j.dlse = dlse;
	j.dout = narrow(dout, rows * c->head_dim_v);
	j.delta = floats(rows);
	parallel_for(rows, dquery_row, &j);
	parallel_for(c->batch * c->heads_kv * c->seqlen_k, dkey_row, &j);
	free((void *)j.dout);
	free(j.delta);
	job_end(&j);
}
