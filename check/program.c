/* The value of an expression at one cell, and its slopes by one sweep back over the nodes. Presets are what they mean,
 * written in C: no definition of gen/ is looked at. */
#include "check/program.h"

#include <math.h>
#include <string.h>

struct value {
	int64_t i;
	double f;
};

/* Where an expression is evaluated: numbers of the larger problem, and lengths, of positions or of blocks. */
struct at {
	const struct ref_case *c;
	int64_t name[REF_NAME_COUNT];
	double s;
	bool single;
};

static int64_t whole_entry(const struct ref_case *c, int64_t b)
{
	return c->first_head && c->all_heads_q ? c->first_head[b] / c->all_heads_q : b;
}
int64_t ref_used_q(const struct ref_case *c, int64_t b)
{
	return c->used_q ? c->used_q[whole_entry(c, b)] : c->seqlen_q;
}
int64_t ref_used_k(const struct ref_case *c, int64_t b)
{
	return c->used_k ? c->used_k[whole_entry(c, b)] : c->seqlen_k;
}

static struct at at_cell(const struct ref_case *c, const struct ref_cell *cell)
{
	const int64_t hq = c->first_head ? c->all_heads_q : c->heads_q,
		      hk = c->first_head ? c->all_heads_kv : c->heads_kv;
	const int64_t head = c->first_head ? c->first_head[cell->b] + cell->h : cell->b * hq + cell->h;
	return (struct at){.c = c,
	                   .name = {hq ? head / hq : 0, hq ? head % hq : 0, cell->q, cell->k, ref_used_q(c, cell->b),
	                            ref_used_k(c, cell->b), hq, hk}};
}

static int64_t floor_div(int64_t a, int64_t b) { return b == 0 ? 0 : a / b - ((a % b != 0) && ((a < 0) != (b < 0))); }
static int64_t floor_mod(int64_t a, int64_t b) { return a - b * floor_div(a, b); }
static int64_t int_floor(double x) { return x > 9e18 ? INT64_MAX : x > -9e18 ? (int64_t)floor(x) : INT64_MIN; }

static int64_t random_hash(int64_t seed, int64_t x, int64_t y)
{
	uint32_t z = (uint32_t)seed * 0x9E3779B1u;
	z = (z ^ (uint32_t)x) * 0x85EBCA6Bu;
	z = ((z ^ z >> 15) ^ (uint32_t)y) * 0xC2B2AE35u;
	z = (z ^ z >> 13) * 0x27D4EB2Fu;
	return (z ^ z >> 16) & 0xFFFF;
}

static int64_t element_index(const struct at *where, const struct ref_input *in, const int64_t *index)
{
	const struct ref_case *c = where->c;
	const int64_t b = where->name[REF_B];
	int64_t at = 0;
	for (int d = 0; d < in->dims; d++) {
		const int64_t *used = in->axis[d] == 'q' ? c->used_q : in->axis[d] == 'k' ? c->used_k : NULL;
		const int64_t *first = in->axis[d] == 'q' ? c->first_q : in->axis[d] == 'k' ? c->first_k : NULL;
		const int64_t dim = used ? used[b] : in->dim[d];
		const int64_t i = index[d] < dim ? index[d] : dim - 1;
		at = at * in->dim[d] + (i < 0 ? 0 : i) + (first ? first[b] : 0);
	}
	return at;
}

static double element(const struct at *at, int input, int64_t a, int64_t b, int64_t d, int64_t e)
{
	return at->c->input[input].data[element_index(at, &at->c->input[input], (int64_t[4]){a, b, d, e})];
}

/* ---- presets --------------------------------------------------------------------------------------------------------- */

__extension__ typedef unsigned __int128 wide;

/* Relative positions in buckets: half of them hold one distance each, the others grow by equal factors up to 128. The
 * m-th of those begins at exact * (128 / exact) ^ (m / exact), compared exactly through powers. */
static int64_t t5_bucket(int64_t distance, int exact)
{
	if (distance < exact)
		return distance;
	const int64_t n = distance < 128 ? distance : 128;
	wide power = 1, bound = 1;
	for (int i = 0; i < exact; i++)
		power *= (unsigned)n, bound *= (unsigned)exact;
	int m = 0; /* exact = 8: 16 ^ m = (128 / 8) ^ m; exact = 16: 8 ^ m */
	while (m + 1 < exact && power >= bound * (unsigned)(128 / exact))
		m++, bound *= (unsigned)(128 / exact);
	return exact + m;
}

static int64_t preset_index(const struct ref_node *n, const struct at *at)
{
	const int64_t b = at->name[REF_B], h = at->name[REF_H], q = at->name[REF_Q], k = at->name[REF_K];
	const int64_t ahead = (k - at->name[REF_SK]) - (q - at->name[REF_SQ]);
	const struct ref_input *in = &at->c->input[n->input];
	switch (n->i) {
	case REF_ALIBI: return element_index(at, in, (int64_t[4]){h});
	case REF_BIAS: return element_index(at, in, (int64_t[4]){b, h, q, k});
	case REF_T5:
		return element_index(at, in,
		                     (int64_t[4]){h, (ahead > 0 ? 16 : 0) + t5_bucket(ahead < 0 ? -ahead : ahead, 8)});
	default: return element_index(at, in, (int64_t[4]){h, t5_bucket(ahead < 0 ? -ahead : 0, 16)});
	}
}

static int64_t bounded(const struct ref_node *n, int arg, const struct value *v)
{
	return n->arg[arg] < 0 ? INT64_MAX : v[n->arg[arg]].i;
}

static bool preset_holds(const struct ref_node *n, const struct value *v, const struct at *at)
{
	const int64_t b = at->name[REF_B], h = at->name[REF_H], q = at->name[REF_Q], k = at->name[REF_K];
	const int64_t back =
		(q - at->name[REF_SQ]) - (k - at->name[REF_SK]); /* how far the key lies back, ends aligned */
	switch ((enum ref_preset)n->i) {
	case REF_CAUSAL: return back >= 0;
	case REF_CAUSAL_TOP_LEFT: return k <= q;
	case REF_WINDOW:
	case REF_LOCAL: return back <= bounded(n, 0, v) && -back <= bounded(n, 1, v);
	case REF_PREFIX: return k < v[n->arg[0]].i || back >= 0;
	case REF_DOCUMENT:
		return element(at, n->input, b, q - at->name[REF_SQ] + at->name[REF_SK], 0, 0) ==
		       element(at, n->input, b, k, 0, 0);
	case REF_PADDING: return (double)k < element(at, n->input, b, 0, 0, 0);
	case REF_DILATED:
		return floor_mod(back, v[n->arg[0]].i) == 0 && back <= bounded(n, 1, v) && -back <= bounded(n, 2, v);
	case REF_GLOBAL: return q < v[n->arg[0]].i || k < v[n->arg[0]].i;
	case REF_STRIDED: return floor_mod(k, v[n->arg[0]].i) == v[n->arg[0]].i - 1;
	case REF_RANDOM_BLOCKS: return (double)random_hash(v[n->arg[0]].i * 65537 + h, q, k) < v[n->arg[1]].f * 65536;
	default: return false;
	}
}

static double preset_score(const struct ref_node *n, const struct value *v, const struct at *at)
{
	const double s = v[n->arg[3]].f;
	if (n->i == REF_SOFTCAP)
		return v[n->arg[0]].f * tanh(s / v[n->arg[0]].f);
	const double x = at->c->input[n->input].data[preset_index(n, at)];
	const int64_t ahead = (at->name[REF_K] - at->name[REF_SK]) - (at->name[REF_Q] - at->name[REF_SQ]);
	return n->i == REF_ALIBI ? s - x * (double)(ahead < 0 ? -ahead : ahead) : s + x;
}

/* ---- values ---------------------------------------------------------------------------------------------------------- */

static int64_t read_index(const struct ref_node *n, const struct value *v, const struct at *at)
{
	const struct ref_input *in = &at->c->input[n->input];
	int64_t index[4] = {0};
	for (int d = 0; d < in->dims; d++)
		index[d] = v[n->arg[d]].i;
	return element_index(at, in, index);
}

static struct value node_value(const struct ref_node *n, const struct value *v, const struct at *at)
{
	static const struct value none;
	const struct value a = n->arg[0] < 0 ? none : v[n->arg[0]], b = n->arg[1] < 0 ? none : v[n->arg[1]];
	const bool real = n->type == REF_FLOAT;
	struct value r = {0, 0};
	switch (n->op) {
	case REF_NUMBER: return (struct value){n->i, n->f};
	case REF_NAME: return (struct value){at->name[n->i], 0};
	case REF_S: return (struct value){0, at->s};
	case REF_INPUT:
		if (real)
			r.f = at->c->input[n->input].data[read_index(n, v, at)];
		else
			r.i = (int64_t)at->c->input[n->input].data[read_index(n, v, at)];
		break;
	case REF_NEG: r.i = (int64_t)(0 - (uint64_t)a.i), r.f = -a.f; break;
	case REF_ABS: r.i = a.i < 0 ? (int64_t)(0 - (uint64_t)a.i) : a.i, r.f = fabs(a.f); break;
	case REF_NOT: r.i = !a.i; break;
	case REF_ADD: r.i = (int64_t)((uint64_t)a.i + (uint64_t)b.i), r.f = a.f + b.f; break;
	case REF_SUB: r.i = (int64_t)((uint64_t)a.i - (uint64_t)b.i), r.f = a.f - b.f; break;
	case REF_MUL: r.i = (int64_t)((uint64_t)a.i * (uint64_t)b.i), r.f = a.f * b.f; break;
	case REF_DIV: r.i = real ? 0 : floor_div(a.i, b.i), r.f = real ? a.f / b.f : 0; break;
	case REF_MOD: r.i = floor_mod(a.i, b.i); break;
	case REF_MIN: r = real ? a.f <= b.f ? a : b : a.i <= b.i ? a : b; break;
	case REF_MAX: r = real ? a.f >= b.f ? a : b : a.i >= b.i ? a : b; break;
	/* The side that is of no use in the type at hand is zero, and equal on both. */
	case REF_LT: r.i = a.i != b.i ? a.i < b.i : a.f < b.f; break;
	case REF_LE: r.i = a.i != b.i ? a.i < b.i : a.f <= b.f; break;
	case REF_EQ: r.i = a.i == b.i && a.f == b.f; break;
	case REF_NE: r.i = a.i != b.i || a.f != b.f; break;
	case REF_AND: r.i = a.i && b.i; break;
	case REF_OR: r.i = a.i || b.i; break;
	case REF_SELECT: r = a.i ? b : v[n->arg[2]]; break;
	case REF_TO_FLOAT: r.f = (double)a.i; break;
	case REF_FLOOR: r.i = int_floor(a.f); break;
	case REF_EXP: r.f = exp(a.f); break;
	case REF_LOG: r.f = log(a.f); break;
	case REF_TANH: r.f = tanh(a.f); break;
	case REF_SQRT: r.f = sqrt(a.f); break;
	case REF_SIGMOID: r.f = 1 / (1 + exp(-a.f)); break;
	case REF_RANDOM: r.i = random_hash(a.i, b.i, v[n->arg[2]].i); break;
	case REF_PRESET:
		if (real)
			r.f = preset_score(n, v, at);
		else
			r.i = preset_holds(n, v, at);
		break;
	}
	if (at->single)
		r.f = (float)r.f;
	return r;
}

static struct value part_value(struct value *v, const struct ref_part *part, const struct at *at)
{
	for (int i = part->begin; i < part->end; i++)
		v[i] = node_value(&at->c->program->node[i], v, at);
	return v[part->end - 1];
}

static bool blocks_keep(const struct at *at)
{
	const struct ref_program *p = at->c->program;
	if (p->blocks == REF_BLOCKS_NONE)
		return true;
	const int64_t q = at->name[REF_Q] / p->block_q, k = at->name[REF_K] / p->block_k, b = at->name[REF_B],
		      h = at->name[REF_H];
	struct value v[REF_NODES_MAX];
	struct at block = *at;
	switch (p->blocks) {
	case REF_BLOCKS_ROWS: return q < p->rows && k < p->columns && p->row[q * p->columns + k];
	case REF_BLOCKS_BITMAP: return element(at, p->block_input[0], b, h, q, k) != 0;
	case REF_BLOCKS_LISTS:
		for (int64_t i = 0, n = (int64_t)element(at, p->block_input[0], b, h, q, 0); i < n; i++)
			if (i < at->c->input[p->block_input[1]].dim[3] &&
			    (int64_t)element(at, p->block_input[1], b, h, q, i) == k)
				return true;
		return false;
	case REF_BLOCKS_KEEP:
		block.name[REF_Q] = q, block.name[REF_K] = k;
		block.name[REF_SQ] = (at->name[REF_SQ] + p->block_q - 1) / p->block_q;
		block.name[REF_SK] = (at->name[REF_SK] + p->block_k - 1) / p->block_k;
		return part_value(v, &p->keep, &block).i;
	default: return true;
	}
}

bool ref_visible(const struct ref_case *c, int64_t b, int64_t h, int64_t q, int64_t k)
{
	const struct ref_program *p = c->program;
	if (q >= ref_used_q(c, b) || k >= ref_used_k(c, b))
		return false;
	if (!p)
		return true;
	struct value v[REF_NODES_MAX];
	const struct at at = at_cell(c, &(struct ref_cell){b, h, q, k});
	return (p->mask.begin == p->mask.end || part_value(v, &p->mask, &at).i) && blocks_keep(&at);
}

double ref_logit(const struct ref_case *c, const struct ref_cell *cell, double s, bool single)
{
	if (!c->program || c->program->score.begin == c->program->score.end)
		return s;
	struct value v[REF_NODES_MAX];
	struct at at = at_cell(c, cell);
	at.s = s;
	at.single = single;
	return part_value(v, &c->program->score, &at).f;
}

/* ---- slopes ---------------------------------------------------------------------------------------------------------- */

static void read_add(struct ref_slopes *to, const struct at *at, int input, int64_t index, double slope)
{
	if (at->c->input[input].grad && to->reads < PROGRAM_READS_MAX)
		to->read[to->reads++] = (struct ref_read){input, index, slope};
}

/* Hands the slope of a node on to what it was made of. */
static void node_back(struct ref_slopes *to, double *slope, const struct ref_node *n, double d, const struct value *v,
                      double result, const struct at *at)
{
	const int a = n->arg[0], b = n->arg[1];
	switch (n->op) {
	case REF_S: to->s += d; break;
	case REF_INPUT: read_add(to, at, n->input, read_index(n, v, at), d); break;
	case REF_NEG: slope[a] -= d; break;
	case REF_ABS: slope[a] += v[a].f > 0 ? d : v[a].f < 0 ? -d : 0; break;
	case REF_ADD: slope[a] += d, slope[b] += d; break;
	case REF_SUB: slope[a] += d, slope[b] -= d; break;
	case REF_MUL: slope[a] += d * v[b].f, slope[b] += d * v[a].f; break;
	case REF_DIV: slope[a] += d / v[b].f, slope[b] -= d * v[a].f / (v[b].f * v[b].f); break;
	case REF_MIN: slope[v[a].f <= v[b].f ? a : b] += d; break;
	case REF_MAX: slope[v[a].f >= v[b].f ? a : b] += d; break;
	case REF_SELECT: slope[v[a].i ? b : n->arg[2]] += d; break;
	case REF_EXP: slope[a] += d * result; break;
	case REF_LOG: slope[a] += d / v[a].f; break;
	case REF_TANH: slope[a] += d * (1 - result * result); break;
	case REF_SQRT: slope[a] += d / (2 * result); break;
	case REF_SIGMOID: slope[a] += d * result * (1 - result); break;
	case REF_PRESET:
		if (n->i == REF_SOFTCAP) {
			const double u = v[n->arg[3]].f / v[a].f, t = tanh(u);
			slope[n->arg[3]] += d * (1 - t * t);
			slope[a] += d * (t - u * (1 - t * t));
			break;
		}
		const int64_t ahead = (at->name[REF_K] - at->name[REF_SK]) - (at->name[REF_Q] - at->name[REF_SQ]);
		slope[n->arg[3]] += d;
		read_add(to, at, n->input, preset_index(n, at),
		         n->i == REF_ALIBI ? -d * (double)(ahead < 0 ? -ahead : ahead) : d);
		break;
	default: break; /* conditions, integers and constants do not move */
	}
}

/* How large the numbers are that float32 works with while it computes a node. */
static double magnitude(const struct ref_node *n, const struct value *v, double result)
{
	const bool about_one = n->op == REF_TANH || n->op == REF_SIGMOID || n->op == REF_LOG;
	if (n->op == REF_PRESET && n->i == REF_SOFTCAP)
		return fabs(v[n->arg[0]].f);
	return about_one && !(fabs(result) > 1) ? 1 : fabs(result);
}

double ref_logit_slopes(struct ref_slopes *to, const struct ref_case *c, const struct ref_cell *cell, double s,
                        bool single)
{
	*to = (struct ref_slopes){.s = 1, .largest = fabs(s)};
	if (!c->program || c->program->score.begin == c->program->score.end)
		return s;
	const struct ref_part *part = &c->program->score;
	struct value v[REF_NODES_MAX];
	double slope[REF_NODES_MAX];
	struct at at = at_cell(c, cell);
	at.s = s;
	at.single = single;
	to->s = 0;
	to->largest = 0;
	part_value(v, part, &at);
	for (int i = part->begin; i < part->end; i++)
		slope[i] = 0;
	slope[part->end - 1] = 1;
	for (int i = part->end - 1; i >= part->begin; i--) {
		const struct ref_node *n = &c->program->node[i];
		if (n->type != REF_FLOAT || slope[i] == 0)
			continue;
		const double share = magnitude(n, v, v[i].f) * fabs(slope[i]);
		if (isfinite(share) && share > to->largest)
			to->largest = share;
		node_back(to, slope, n, slope[i], v, v[i].f, &at);
	}
	return v[part->end - 1].f;
}

double ref_sink(struct ref_read *read, const struct ref_case *c, const struct ref_cell *cell)
{
	if (!c->program || c->program->sink < 0 || cell->q >= ref_used_q(c, cell->b))
		return -INFINITY;
	const struct at at = at_cell(c, cell);
	const struct ref_input *in = &c->input[c->program->sink];
	*read = (struct ref_read){c->program->sink, element_index(&at, in, (int64_t[4]){at.name[REF_H]}), 1};
	return in->data[read->index];
}
