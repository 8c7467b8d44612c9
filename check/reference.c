/* Attention by its definition, in double. Each query row (and each key, for dkey and dvalue) is computed on its own;
 * nothing is carried from one to the next, and nothing is skipped but cells that are not visible. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "check/program.h"

/* Philox 4x32 (Salmon et al., SC11), 10 rounds. */
static void philox(uint32_t out[4], const uint32_t counter[4], uint64_t seed)
{
	uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
	for (int round = 0; round < 10; round++) {
		const uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
		const uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n1 = (uint32_t)b;
		const uint32_t n2 = (uint32_t)(a >> 32) ^ c3 ^ k1, n3 = (uint32_t)a;
		c0 = n0, c1 = n1, c2 = n2, c3 = n3;
		k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
	}
	out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

static uint32_t fold(uint32_t x, int width) { return x ^ x >> width; }

/* The eight words of a group of cells, from the key of its head. */
static void group_words(uint32_t out[8], const uint32_t key[4], uint32_t group_q, uint32_t group_k)
{
	const uint32_t y = group_q * 0x85EBCA77u + key[1], x = group_k * 0x9E3779B1u + key[0];
	const uint32_t row = fold(y, 16) * 0x2C1B3C6Du + key[2], factor = row | 1;
	const uint32_t a = fold(x * factor + y * 0x297A2D39u + (key[3] ^ key[2] >> 15), 16);
	const uint32_t b = fold(a * a + row, 16), c = fold(b * factor + a, 16);
	const uint32_t product = c * c + b, d = product << 16 | product >> 16;
	out[0] = fold(d * 0xCC9E2D51u + a, 16);
	out[1] = fold(c * 0x1B873593u + a, 16);
	out[2] = fold(a * d + c, 15);
	out[3] = fold(b * d + c, 14);
	out[4] = fold(c * d + a, 14);
	out[5] = fold(a * b + d, 15);
	out[6] = fold(b * c + d, 13);
	out[7] = fold(a * c + b, 13);
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
	const uint32_t counter[4] = {(uint32_t)head, (uint32_t)c->offset, (uint32_t)(c->offset >> 32), 0};
	uint32_t key[4], words[8];
	philox(key, counter, c->seed);
	group_words(words, key, (uint32_t)((q >> 4) * 8 + (q & 7)), (uint32_t)((k >> 6) * 4 + ((k >> 1) & 3)));
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
	unsigned char *visible;    /* per cell */
	double *score_max;         /* per query row */
	const struct ref_backward *to;
	pthread_mutex_t *sums; /* of input_grad and input_spread */
};

struct ref_cell ref_row_cell(const struct ref_case *c, int64_t row)
{
	return (struct ref_cell){row / c->seqlen_q / c->heads_q, row / c->seqlen_q % c->heads_q, row % c->seqlen_q, 0};
}

int64_t ref_key_row(const struct ref_case *c, int64_t b, int64_t h, int64_t k)
{
	return (b * c->heads_kv + h / (c->heads_q / c->heads_kv)) * c->seqlen_k + k;
}

/* The scaled dot product of a cell. */
static double cell_s(const struct job *j, const struct ref_cell *at)
{
	const struct ref_case *c = j->c;
	const int64_t row = (at->b * c->heads_q + at->h) * c->seqlen_q + at->q,
		      col = ref_key_row(c, at->b, at->h, at->k);
	return c->softmax_scale * dot(j->query + row * c->head_dim_qk, j->key + col * c->head_dim_qk, c->head_dim_qk);
}

static void *room(int64_t count, size_t bytes)
{
	void *p = malloc((size_t)(count > 0 ? count : 1) * bytes);
	if (!p)
		abort();
	return p;
}

static double *doubles(int64_t count) { return room(count, sizeof(double)); }

/* Item: a query row. */
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
	double *out = j->out + row * c->head_dim_v, *score = doubles(c->seqlen_k);
	const unsigned char *visible = j->visible + row * c->seqlen_k;
	const double sink = ref_sink(&read, c, &at);
	double max = sink;
	for (at.k = 0; at.k < c->seqlen_k; at.k++) {
		if (!visible[at.k])
			continue;
		score[at.k] = ref_logit(c, &at, cell_s(j, &at), false);
		if (score[at.k] > max)
			max = score[at.k];
	}
	if (max == -INFINITY)
		max = 0; /* nothing visible, or nothing above -inf */
	double sum = exp(sink - max);
	for (int i = 0; i < c->head_dim_v; i++)
		out[i] = 0;
	for (int64_t k = 0; k < c->seqlen_k; k++) {
		if (!visible[k])
			continue;
		const double p = exp(score[k] - max);
		sum += p;
		if (ref_dropout_keep(c, at.b, at.h, at.q, k))
			add_scaled(out, p * 256 / c->keep_256, j->value + ref_key_row(c, at.b, at.h, k) * c->head_dim_v,
			           c->head_dim_v);
	}
	for (int i = 0; i < c->head_dim_v; i++)
		out[i] = sum == 0 ? 0 : out[i] / sum;
	j->lse[row] = sum == 0 ? -INFINITY : max + log(sum);
	free(score);
}

static int64_t query_rows(const struct ref_case *c) { return c->batch * c->heads_q * c->seqlen_q; }

static void visible_make(struct job *j)
{
	j->visible = room(query_rows(j->c) * j->c->seqlen_k, 1);
	parallel_for(query_rows(j->c), visible_row, j);
}

void ref_attention_forward(struct ref_forward *f, const struct ref_case *c, const double *query, const double *key,
                           const double *value)
{
	struct job j = {.c = c, .query = query, .key = key, .value = value, .out = f->out, .lse = f->lse};
	visible_make(&j);
	parallel_for(query_rows(c), forward_row, &j);
	free(j.visible);
}

/* P with dropout, and the derivative by the logit, of one visible cell, from the row's LSE and delta. */
static void cell(double *p_dropped, double *ds, const struct job *j, const struct ref_cell *at, double logit)
{
	const struct ref_case *c = j->c;
	const int64_t row = (at->b * c->heads_q + at->h) * c->seqlen_q + at->q,
		      col = ref_key_row(c, at->b, at->h, at->k);
	const double p = exp(logit - j->lse[row]);
	const double keep = ref_dropout_keep(c, at->b, at->h, at->q, at->k) ? 256.0 / c->keep_256 : 0;
	const double dp = keep * dot(j->dout + row * c->head_dim_v, j->value + col * c->head_dim_v, c->head_dim_v);
	*p_dropped = keep * p;
	*ds = p * (dp - j->delta[row]);
}

static void input_add(const struct job *j, const struct ref_read *read, double ds)
{
	double **grad = j->to->input_grad, **spread = j->to->input_spread;
	if (grad && grad[read->input])
		grad[read->input][read->index] += ds * read->slope;
	if (spread && spread[read->input])
		spread[read->input][read->index] += ds * read->slope * ds * read->slope;
}

static void dquery_row(void *context, int64_t row)
{
	const struct job *j = context;
	const struct ref_case *c = j->c;
	struct ref_cell at = ref_row_cell(c, row);
	struct ref_slopes slopes;
	struct ref_read sink_at;
	struct moved {
		struct ref_read read;
		double ds;
	} *moved = NULL;
	int64_t moves = 0, space = 0;
	double *dquery = j->to->dquery + row * c->head_dim_qk,
	       *spread = j->to->dquery_spread ? j->to->dquery_spread + row * c->head_dim_qk : NULL;
	for (int i = 0; i < c->head_dim_qk; i++) {
		dquery[i] = 0;
		if (spread)
			spread[i] = 0;
	}
	const double product = dot(j->dout + row * c->head_dim_v, j->out + row * c->head_dim_v, c->head_dim_v);
	double squares = product * product; /* of what rounding moves delta by: of O, and below of P */
	j->delta[row] = product - (j->dlse ? j->dlse[row] : 0);
	const double sink = ref_sink(&sink_at, c, &at);
	if (j->lse[row] == -INFINITY)
		return;
	for (at.k = 0; at.k < c->seqlen_k; at.k++) {
		if (!j->visible[row * c->seqlen_k + at.k])
			continue;
		double p, ds;
		const double logit = ref_logit_slopes(&slopes, c, &at, cell_s(j, &at), false);
		cell(&p, &ds, j, &at, logit);
		const double *const key = j->key + ref_key_row(c, at.b, at.h, at.k) * c->head_dim_qk;
		add_scaled(dquery, c->softmax_scale * ds * slopes.s, key, c->head_dim_qk);
		if (spread) { /* d dquery / d delta, so far */
			const double prob = exp(logit - j->lse[row]), moved_by = ds + prob * j->delta[row];
			squares += moved_by * moved_by;
			add_scaled(spread, c->softmax_scale * prob * slopes.s, key, c->head_dim_qk);
		}
		if (moves + slopes.reads > space) {
			space = 2 * space + slopes.reads + 64;
			moved = realloc(moved, (size_t)space * sizeof *moved);
			if (!moved)
				abort();
		}
		for (int i = 0; i < slopes.reads; i++)
			moved[moves++] = (struct moved){slopes.read[i], ds};
	}
	for (int i = 0; spread && i < c->head_dim_qk; i++)
		spread[i] = fabs(spread[i]) * sqrt(squares);
	pthread_mutex_lock(j->sums);
	for (int64_t i = 0; i < moves; i++)
		input_add(j, &moved[i].read, moved[i].ds);
	if (sink != -INFINITY && c->input[sink_at.input].grad) /* its value is zero: dP = 0 */
		input_add(j, &sink_at, -exp(sink - j->lse[row]) * j->delta[row]);
	pthread_mutex_unlock(j->sums);
	free(moved);
}

/* Item: a key row (b, h_kv, k). Runs after every dquery_row, which leave delta. */
static void dkey_row(void *context, int64_t col)
{
	const struct job *j = context;
	const struct ref_case *c = j->c;
	const int64_t h_kv = col / c->seqlen_k % c->heads_kv, group = c->heads_q / c->heads_kv;
	struct ref_cell at = {.b = col / c->seqlen_k / c->heads_kv, .k = col % c->seqlen_k};
	struct ref_slopes slopes;
	double *dkey = j->to->dkey + col * c->head_dim_qk, *dvalue = j->to->dvalue + col * c->head_dim_v;
	for (int i = 0; i < c->head_dim_qk; i++)
		dkey[i] = 0;
	for (int i = 0; i < c->head_dim_v; i++)
		dvalue[i] = 0;
	for (at.h = h_kv * group; at.h < (h_kv + 1) * group; at.h++)
		for (at.q = 0; at.q < c->seqlen_q; at.q++) {
			const int64_t row = (at.b * c->heads_q + at.h) * c->seqlen_q + at.q;
			if (!j->visible[row * c->seqlen_k + at.k] || j->lse[row] == -INFINITY)
				continue;
			double p, ds;
			cell(&p, &ds, j, &at, ref_logit_slopes(&slopes, c, &at, cell_s(j, &at), false));
			add_scaled(dvalue, p, j->dout + row * c->head_dim_v, c->head_dim_v);
			add_scaled(dkey, c->softmax_scale * ds * slopes.s, j->query + row * c->head_dim_qk,
			           c->head_dim_qk);
		}
}

static int64_t elements(const struct ref_input *in)
{
	int64_t n = 1;
	for (int d = 0; d < in->dims; d++)
		n *= in->dim[d];
	return n;
}

void ref_attention_backward(struct ref_backward *g, const struct ref_case *c, const double *query, const double *key,
                            const double *value, const double *dout, const double *dlse)
{
	const int64_t rows = query_rows(c);
	pthread_mutex_t sums = PTHREAD_MUTEX_INITIALIZER;
	struct job j = {.c = c,
	                .query = query,
	                .key = key,
	                .value = value,
	                .dout = dout,
	                .dlse = dlse,
	                .out = doubles(rows * c->head_dim_v),
	                .lse = doubles(rows),
	                .delta = doubles(rows),
	                .to = g,
	                .sums = &sums};
	visible_make(&j);
	parallel_for(rows, forward_row, &j);
	for (int i = 0; i < c->inputs; i++) {
		if (g->input_grad && g->input_grad[i])
			memset(g->input_grad[i], 0, (size_t)elements(&c->input[i]) * sizeof(double));
		if (g->input_spread && g->input_spread[i])
			memset(g->input_spread[i], 0, (size_t)elements(&c->input[i]) * sizeof(double));
	}
	parallel_for(rows, dquery_row, &j);
	parallel_for(c->batch * c->heads_kv * c->seqlen_k, dkey_row, &j);
	if (g->out)
		memcpy(g->out, j.out, (size_t)(rows * c->head_dim_v) * sizeof *g->out);
	if (g->lse)
		memcpy(g->lse, j.lse, (size_t)rows * sizeof *g->lse);
	for (int i = 0; i < c->inputs && g->input_spread; i++)
		for (int64_t e = 0; g->input_spread[i] && e < elements(&c->input[i]); e++)
			g->input_spread[i][e] = sqrt(g->input_spread[i][e]);
	pthread_mutex_destroy(&sums);
	free(j.visible);
	free(j.delta);
	free(j.out);
	free(j.lse);
}

static void score_row(void *context, int64_t row)
{
	const struct job *j = context;
	struct ref_cell at = ref_row_cell(j->c, row);
	struct ref_slopes slopes;
	double max = 0, product = 0; /* the terms of a small dot product are as large as those of the row's largest */
	for (at.k = 0; at.k < j->c->seqlen_k; at.k++) {
		const double s = fabs(cell_s(j, &at));
		product = isfinite(s) && s > product ? s : product;
	}
	for (at.k = 0; at.k < j->c->seqlen_k; at.k++) {
		if (!ref_visible(j->c, at.b, at.h, at.q, at.k))
			continue;
		ref_logit_slopes(&slopes, j->c, &at, cell_s(j, &at), false);
		const double share = fmax(slopes.largest, fabs(slopes.s) * product);
		if (isfinite(share) && share > max)
			max = share;
	}
	j->score_max[row] = max;
}

double ref_score_max(const struct ref_case *c, const double *query, const double *key)
{
	const int64_t rows = query_rows(c);
	struct job j = {.c = c, .query = query, .key = key, .score_max = doubles(rows)};
	parallel_for(rows, score_row, &j);
	double max = 0;
	for (int64_t i = 0; i < rows; i++)
		if (j.score_max[i] > max)
			max = j.score_max[i];
	free(j.score_max);
	return max;
}
