/* Attention by its definition, in double. Each query row (and each key, for dkey and dvalue) is computed on its own;
 * nothing is carried from one to the next, and nothing is skipped but cells that are not visible. */
#include <math.h>
#include <stdlib.h>

#include "check/check.h"

bool ref_visible(const struct ref_case *c, int64_t q, int64_t k)
{
	const int64_t distance = (q - c->seqlen_q) - (k - c->seqlen_k); /* how far the key lies back, ends aligned */
	for (int i = 0; i < c->mask_count; i++) {
		const struct ref_mask *m = &c->mask[i];
		if (m->causal && distance < 0)
			return false;
		if (m->causal_top_left && k > q)
			return false;
		if (m->window && (distance > m->left || -distance > m->right))
			return false;
	}
	return true;
}

/* Philox 4x32 (Salmon et al., SC11), 7 rounds. */
static void philox(uint32_t out[4], const uint32_t counter[4], uint64_t seed)
{
	uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
	for (int round = 0; round < 7; round++) {
		const uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
		const uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n1 = (uint32_t)b;
		const uint32_t n2 = (uint32_t)(a >> 32) ^ c3 ^ k1, n3 = (uint32_t)a;
		c0 = n0, c1 = n1, c2 = n2, c3 = n3;
		k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
	}
	out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* Each cell owns one bit position of eight random words; word i gives bit i of its 8-bit random number. The frozen rule
 * takes, from the lowest bit up, the majority of the random bit, the same bit of keep_256 and the result so far: that is
 * the carry of an addition, so a cell is kept when random + keep_256 reaches 256. */
bool ref_dropout_keep(const struct ref_case *c, int64_t b, int64_t h, int64_t q, int64_t k)
{
	if (c->keep_256 >= 256)
		return true;
	const int64_t head = (c->first_head ? c->first_head[b] : b * c->heads_q) + h;
	const int bit = (int)(8 * (2 * ((q >> 3) & 1) + (k & 1)) + 7 - ((k >> 3) & 7));
	uint32_t words[8];
	for (int call = 0; call < 2; call++) {
		const uint32_t counter[4] = {(uint32_t)(2 * ((k >> 6) * 4 + ((k >> 1) & 3)) + call),
		                             (uint32_t)((q >> 4) * 8 + (q & 7)), (uint32_t)head, (uint32_t)c->offset};
		philox(words + 4 * call, counter, c->seed);
	}
	int random = 0;
	for (int i = 0; i < 8; i++)
		random |= (int)((words[i] >> bit) & 1) << i;
	return random + c->keep_256 >= 256;
}

/* Eight partial sums: the compiler may then keep them in vector registers without changing the order of additions. */
static double dot(const double *a, const double *b, int n)
{
	double sum[8] = {0};
	int i = 0;
	for (; i + 8 <= n; i += 8)
		for (int j = 0; j < 8; j++)
			sum[j] += a[i + j] * b[i + j];
	for (; i < n; i++)
		sum[0] += a[i] * b[i];
	return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

static void add_scaled(double *to, double factor, const double *from, int n)
{
	for (int i = 0; i < n; i++)
		to[i] += factor * from[i];
}

struct job {
	const struct ref_case *c;
	const double *query, *key, *value, *dout, *dlse;
	double *out, *lse, *delta; /* per query row; delta = dout.out - dlse */
	double *dquery, *dkey, *dvalue, *score_max;
};

static int64_t key_row(const struct ref_case *c, int64_t b, int64_t h, int64_t k)
{
	return (b * c->heads_kv + h / (c->heads_q / c->heads_kv)) * c->seqlen_k + k;
}

/* Item: a query row (b, h, q). */
static void forward_row(void *context, int64_t row)
{
	const struct job *j = context;
	const struct ref_case *c = j->c;
	const int64_t q = row % c->seqlen_q, h = row / c->seqlen_q % c->heads_q, b = row / c->seqlen_q / c->heads_q;
	const double *query = j->query + row * c->head_dim_qk;
	double *out = j->out + row * c->head_dim_v;
	double *score = malloc((size_t)(c->seqlen_k > 0 ? c->seqlen_k : 1) * sizeof *score);
	if (!score)
		abort();
	double max = -INFINITY;
	for (int64_t k = 0; k < c->seqlen_k; k++) {
		if (!ref_visible(c, q, k))
			continue;
		score[k] = c->softmax_scale * dot(query, j->key + key_row(c, b, h, k) * c->head_dim_qk, c->head_dim_qk);
		if (score[k] > max)
			max = score[k];
	}
	if (max == -INFINITY)
		max = 0; /* nothing visible, or nothing above -inf */
	double sum = 0;
	for (int i = 0; i < c->head_dim_v; i++)
		out[i] = 0;
	for (int64_t k = 0; k < c->seqlen_k; k++) {
		if (!ref_visible(c, q, k))
			continue;
		const double p = exp(score[k] - max);
		sum += p;
		if (ref_dropout_keep(c, b, h, q, k))
			add_scaled(out, p * 256 / c->keep_256, j->value + key_row(c, b, h, k) * c->head_dim_v,
			           c->head_dim_v);
	}
	for (int i = 0; i < c->head_dim_v; i++)
		out[i] = sum == 0 ? 0 : out[i] / sum;
	j->lse[row] = sum == 0 ? -INFINITY : max + log(sum);
	free(score);
}

void ref_attention_forward(struct ref_forward *f, const struct ref_case *c, const double *query, const double *key,
                           const double *value)
{
	struct job j = {.c = c, .query = query, .key = key, .value = value, .out = f->out, .lse = f->lse};
	parallel_for(c->batch * c->heads_q * c->seqlen_q, forward_row, &j);
}

/* P and dS of one visible cell, from the row's LSE and delta. */
static void cell(double *p_dropped, double *ds, const struct job *j, int64_t b, int64_t h, int64_t q, int64_t k)
{
	const struct ref_case *c = j->c;
	const int64_t row = (b * c->heads_q + h) * c->seqlen_q + q, col = key_row(c, b, h, k);
	const double s =
		c->softmax_scale * dot(j->query + row * c->head_dim_qk, j->key + col * c->head_dim_qk, c->head_dim_qk);
	const double p = exp(s - j->lse[row]);
	const double keep = ref_dropout_keep(c, b, h, q, k) ? 256.0 / c->keep_256 : 0;
	const double dp = keep * dot(j->dout + row * c->head_dim_v, j->value + col * c->head_dim_v, c->head_dim_v);
	*p_dropped = keep * p;
	*ds = p * (dp - j->delta[row]);
}

static void dquery_row(void *context, int64_t row)
{
	const struct job *j = context;
	const struct ref_case *c = j->c;
	const int64_t q = row % c->seqlen_q, h = row / c->seqlen_q % c->heads_q, b = row / c->seqlen_q / c->heads_q;
	double *dquery = j->dquery + row * c->head_dim_qk;
	for (int i = 0; i < c->head_dim_qk; i++)
		dquery[i] = 0;
	j->delta[row] = dot(j->dout + row * c->head_dim_v, j->out + row * c->head_dim_v, c->head_dim_v) -
	                (j->dlse ? j->dlse[row] : 0);
	if (j->lse[row] == -INFINITY)
		return;
	for (int64_t k = 0; k < c->seqlen_k; k++) {
		if (!ref_visible(c, q, k))
			continue;
		double p, ds;
		cell(&p, &ds, j, b, h, q, k);
		add_scaled(dquery, c->softmax_scale * ds, j->key + key_row(c, b, h, k) * c->head_dim_qk,
		           c->head_dim_qk);
	}
}

/* Item: a key row (b, h_kv, k). Runs after every dquery_row, which leave delta. */
static void dkey_row(void *context, int64_t col)
{
	const struct job *j = context;
	const struct ref_case *c = j->c;
	const int64_t k = col % c->seqlen_k, h_kv = col / c->seqlen_k % c->heads_kv,
		      b = col / c->seqlen_k / c->heads_kv;
	const int64_t group = c->heads_q / c->heads_kv;
	double *dkey = j->dkey + col * c->head_dim_qk, *dvalue = j->dvalue + col * c->head_dim_v;
	for (int i = 0; i < c->head_dim_qk; i++)
		dkey[i] = 0;
	for (int i = 0; i < c->head_dim_v; i++)
		dvalue[i] = 0;
	for (int64_t h = h_kv * group; h < (h_kv + 1) * group; h++)
		for (int64_t q = 0; q < c->seqlen_q; q++) {
			const int64_t row = (b * c->heads_q + h) * c->seqlen_q + q;
			if (!ref_visible(c, q, k) || j->lse[row] == -INFINITY)
				continue;
			double p, ds;
			cell(&p, &ds, j, b, h, q, k);
			add_scaled(dvalue, p, j->dout + row * c->head_dim_v, c->head_dim_v);
			add_scaled(dkey, c->softmax_scale * ds, j->query + row * c->head_dim_qk, c->head_dim_qk);
		}
}

static double *doubles(int64_t count)
{
	double *p = malloc((size_t)(count > 0 ? count : 1) * sizeof *p);
	if (!p)
		abort();
	return p;
}

void ref_attention_backward(struct ref_backward *g, const struct ref_case *c, const double *query, const double *key,
                            const double *value, const double *dout, const double *dlse)
{
	const int64_t rows = c->batch * c->heads_q * c->seqlen_q;
	struct ref_forward f = {.out = doubles(rows * c->head_dim_v), .lse = doubles(rows)};
	ref_attention_forward(&f, c, query, key, value);
	struct job j = {.c = c,
	                .query = query,
	                .key = key,
	                .value = value,
	                .dout = dout,
	                .dlse = dlse,
	                .out = f.out,
	                .lse = f.lse,
	                .delta = doubles(rows),
	                .dquery = g->dquery,
	                .dkey = g->dkey,
	                .dvalue = g->dvalue};
	parallel_for(rows, dquery_row, &j);
	parallel_for(c->batch * c->heads_kv * c->seqlen_k, dkey_row, &j);
	free(j.delta);
	free(f.out);
	free(f.lse);
}

static void score_row(void *context, int64_t row)
{
	const struct job *j = context;
	const struct ref_case *c = j->c;
	const int64_t q = row % c->seqlen_q, h = row / c->seqlen_q % c->heads_q, b = row / c->seqlen_q / c->heads_q;
	double max = 0;
	for (int64_t k = 0; k < c->seqlen_k; k++) {
		if (!ref_visible(c, q, k))
			continue;
		const double s =
			fabs(c->softmax_scale * dot(j->query + row * c->head_dim_qk,
		                                    j->key + key_row(c, b, h, k) * c->head_dim_qk, c->head_dim_qk));
		if (isfinite(s) && s > max)
			max = s;
	}
	j->score_max[row] = max;
}

double ref_score_max(const struct ref_case *c, const double *query, const double *key)
{
	const int64_t rows = c->batch * c->heads_q * c->seqlen_q;
	struct job j = {.c = c, .query = query, .key = key, .score_max = doubles(rows)};
	parallel_for(rows, score_row, &j);
	double max = 0;
	for (int64_t i = 0; i < rows; i++)
		if (j.score_max[i] > max)
			max = j.score_max[i];
	free(j.score_max);
	return max;
}
