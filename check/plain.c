/* The yardstick: what a plain implementation loses. Scores, softmax and sums in float32; P, dS and the results rounded
 * to the 16-bit type where a matrix unit would take or a tensor would store them. Forward P is rounded before it is divided
 * by its sum, as by whoever has not seen the whole row: else the two would round a row of few keys differently, and a bound of one
 * and a half times the one's error would now and then fall short of the other's. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "check/program.h"

struct job {
	const struct ref_case *c;
	const float *query, *key, *value, *dout;
	const double *dlse;
	float *out, *lse, *delta; /* per query row */
	unsigned char *visible;   /* per cell */
	struct ref_backward *backward;
	pthread_mutex_t *sums; /* of input_grad */
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

static float score(const struct job *j, int64_t row, int64_t col)
{
	const int d = j->c->head_dim_qk;
	return (float)j->c->softmax_scale * dot(j->query + row * d, j->key + col * d, d);
}

static void visible_row(void *context, int64_t row)
{
	const struct job *j = context;
	const struct ref_cell at = ref_row_cell(j->c, row);
	for (int64_t k = 0; k < j->c->seqlen_k; k++)
		j->visible[row * j->c->seqlen_k + k] = ref_visible(j->c, at.b, at.h, at.q, k);
}

static void forward_row(void *context, int64_t row)
{
	const struct job *j = context;
	const struct ref_case *c = j->c;
	struct ref_cell at = ref_row_cell(c, row);
	struct ref_read read;
	const unsigned char *visible = j->visible + row * c->seqlen_k;
	const float sink = (float)ref_sink(&read, c, &at);
	float *out = j->out + row * c->head_dim_v, *s = malloc((size_t)(c->seqlen_k > 0 ? c->seqlen_k : 1) * sizeof *s);
	if (!s)
		abort();
	float max = sink;
	for (at.k = 0; at.k < c->seqlen_k; at.k++) {
		if (!visible[at.k])
			continue;
		s[at.k] = (float)ref_logit(c, &at, score(j, row, ref_key_row(c, at.b, at.h, at.k)), true);
		max = fmaxf(max, s[at.k]);
	}
	if (max == -INFINITY)
		max = 0;
	float sum = expf(sink - max);
	for (int64_t k = 0; k < c->seqlen_k; k++)
		if (visible[k])
			sum += s[k] = expf(s[k] - max);
	for (int i = 0; i < c->head_dim_v; i++)
		out[i] = 0;
	for (int64_t k = 0; k < c->seqlen_k; k++)
		if (visible[k] && ref_dropout_keep(c, at.b, at.h, at.q, k))
			add_scaled(out, round_16(s[k], c->bf16),
			           j->value + ref_key_row(c, at.b, at.h, k) * c->head_dim_v, c->head_dim_v);
	for (int i = 0; i < c->head_dim_v; i++)
		out[i] = round_16(sum == 0 ? 0 : out[i] * (256.0f / (float)c->keep_256) / sum, c->bf16);
	j->lse[row] = sum == 0 ? -INFINITY : max + logf(sum);
	free(s);
}

/* P with dropout, and dS before and after the score, of one visible cell. Sums over inputs take dS as it is in float32. */
static void cell(float *p_dropped, float *ds, float *dlogit, struct ref_slopes *slopes, const struct job *j,
                 const struct ref_cell *at)
{
	const struct ref_case *c = j->c;
	const int64_t row = (at->b * c->heads_q + at->h) * c->seqlen_q + at->q,
		      col = ref_key_row(c, at->b, at->h, at->k);
	const bool keep = ref_dropout_keep(c, at->b, at->h, at->q, at->k);
	const float logit = (float)ref_logit_slopes(slopes, c, at, score(j, row, col), true);
	const float p = expf(logit - j->lse[row]), up = 256.0f / (float)c->keep_256;
	const float dp =
		keep ? up * dot(j->dout + row * c->head_dim_v, j->value + col * c->head_dim_v, c->head_dim_v) : 0;
	*p_dropped = keep ? up * round_16(p, c->bf16) : 0;
	*dlogit = p * (dp - j->delta[row]);
	*ds = round_16(*dlogit * (float)slopes->s, c->bf16);
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
	struct ref_cell at = ref_row_cell(c, row);
	struct ref_slopes slopes;
	struct ref_read sink_at;
	double **grad = j->backward->input_grad;
	float sum[DIM_MAX] = {0};
	j->delta[row] = dot(j->dout + row * c->head_dim_v, j->out + row * c->head_dim_v, c->head_dim_v) -
	                (j->dlse ? (float)j->dlse[row] : 0);
	for (at.k = 0; at.k < c->seqlen_k && j->lse[row] != -INFINITY; at.k++) {
		if (!j->visible[row * c->seqlen_k + at.k])
			continue;
		float p, ds, dlogit;
		cell(&p, &ds, &dlogit, &slopes, j, &at);
		add_scaled(sum, ds, j->key + ref_key_row(c, at.b, at.h, at.k) * c->head_dim_qk, c->head_dim_qk);
		if (!grad || !slopes.reads)
			continue;
		pthread_mutex_lock(j->sums);
		for (int i = 0; i < slopes.reads; i++)
			if (grad[slopes.read[i].input])
				grad[slopes.read[i].input][slopes.read[i].index] +=
					dlogit * (float)slopes.read[i].slope;
		pthread_mutex_unlock(j->sums);
	}
	const double sink = ref_sink(&sink_at, c, &at);
	if (grad && sink != -INFINITY && grad[sink_at.input]) {
		pthread_mutex_lock(j->sums);
		grad[sink_at.input][sink_at.index] -= expf((float)sink - j->lse[row]) * j->delta[row];
		pthread_mutex_unlock(j->sums);
	}
	store(j->backward->dquery + row * c->head_dim_qk, sum, c->softmax_scale, c->head_dim_qk, c->bf16);
}

static void dkey_row(void *context, int64_t col)
{
	const struct job *j = context;
	const struct ref_case *c = j->c;
	const int64_t h_kv = col / c->seqlen_k % c->heads_kv, group = c->heads_q / c->heads_kv;
	struct ref_cell at = {.b = col / c->seqlen_k / c->heads_kv, .k = col % c->seqlen_k};
	struct ref_slopes slopes;
	float sum_k[DIM_MAX] = {0}, sum_v[DIM_MAX] = {0};
	for (at.h = h_kv * group; at.h < (h_kv + 1) * group; at.h++)
		for (at.q = 0; at.q < c->seqlen_q; at.q++) {
			const int64_t row = (at.b * c->heads_q + at.h) * c->seqlen_q + at.q;
			if (!j->visible[row * c->seqlen_k + at.k] || j->lse[row] == -INFINITY)
				continue;
			float p, ds, dlogit;
			cell(&p, &ds, &dlogit, &slopes, j, &at);
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
	                  .lse = floats(rows),
	                  .visible = malloc((size_t)(rows * c->seqlen_k + 1))};
	if (!j->visible)
		abort();
	parallel_for(rows, visible_row, j);
	parallel_for(rows, forward_row, j);
}

static void job_end(struct job *j)
{
	free((void *)j->query);
	free((void *)j->key);
	free((void *)j->value);
	free(j->out);
	free(j->lse);
	free(j->visible);
}

static void widen(double *to, const float *from, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		to[i] = from[i];
}

void ref_plain_forward(struct ref_forward *f, const struct ref_case *c, const double *query, const double *key,
                       const double *value)
{
	struct job j;
	job_begin(&j, c, query, key, value);
	const int64_t rows = c->batch * c->heads_q * c->seqlen_q;
	widen(f->out, j.out, rows * c->head_dim_v);
	widen(f->lse, j.lse, rows);
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
	pthread_mutex_t sums = PTHREAD_MUTEX_INITIALIZER;
	j.sums = &sums;
	for (int i = 0; i < c->inputs && g->input_grad; i++) {
		int64_t elements = 1;
		for (int d = 0; d < c->input[i].dims; d++)
			elements *= c->input[i].dim[d];
		if (g->input_grad[i])
			memset(g->input_grad[i], 0, (size_t)elements * sizeof(double));
	}
	parallel_for(rows, dquery_row, &j);
	parallel_for(c->batch * c->heads_kv * c->seqlen_k, dkey_row, &j);
	if (g->out)
		widen(g->out, j.out, rows * c->head_dim_v);
	if (g->lse)
		widen(g->lse, j.lse, rows);
	pthread_mutex_destroy(&sums);
	free((void *)j.dout);
	free(j.delta);
	job_end(&j);
}
