/* The language from text to emitted code, without a GPU: random programs are lowered, emitted, compiled for the host and
 * tried on every cell of small problems against trees of their own. Run from the root of the repository. */
#include "gen/emit.h"
#include "tests/expr_help.h"
#include "tests/random_program.h"

Suite *suite(void);

enum { UNIT = 325, UNITS = 32, PARTS = 4, SIDE_MAX = 44, ELEMENTS_MAX = 1 << 16 };

static const struct emitted_shape shapes[] = {
	{16, 16, 16, 16, 0.25, LAYOUT_DENSE}, {16, 32, 32, 16, 0.5, LAYOUT_DENSE},
	{32, 16, 16, 32, 0.25, LAYOUT_DENSE}, {48, 32, 32, 32, 2.0, LAYOUT_DENSE},
	{16, 16, 48, 32, 0.25, LAYOUT_DENSE}, {16, 16, 16, 32, 0.25, LAYOUT_PADDED},
	{32, 16, 32, 16, 0.5, LAYOUT_PACKED}, {16, 32, 16, 16, 0.25, LAYOUT_PACKED}};

/* ---- a small problem with its inputs in memory ---- */

static struct problem_data {
	struct fagen_abi p;
	unsigned char data[TREE_INPUTS][4 * ELEMENTS_MAX];
	float grad[TREE_INPUTS][ELEMENTS_MAX];
	int bounds[2][ACCESSES_MAX * 2 * SIDE_MAX * 8];
	int cu[2][8], used[2][8]; /* of queries, of keys */
} * problem;

static unsigned short half_bits(double v, bool bf16)
{
	const float f = (float)v;
	unsigned bits;
	memcpy(&bits, &f, 4);
	if (bf16 || v == 0)
		return (unsigned short)(bits >> 16);
	return (unsigned short)((bits >> 16 & 0x8000) | ((((bits >> 23 & 255) - 112) << 10) | (bits >> 13 & 1023)));
}

static void element_set(unsigned char *at, enum input_dtype dtype, double v)
{
	const float f = (float)v;
	const int i = (int)v;
	const unsigned short half = half_bits(v, dtype == INPUT_BF16);
	switch (dtype) {
	case INPUT_F32: memcpy(at, &f, 4); break;
	case INPUT_I32: memcpy(at, &i, 4); break;
	case INPUT_U8: *at = (unsigned char)i; break;
	default: memcpy(at, &half, 2);
	}
}

static int dtype_size(enum input_dtype dtype)
{
	return dtype == INPUT_U8 ? 1 : dtype == INPUT_F32 || dtype == INPUT_I32 ? 4 : 2;
}

static bool is_keys(enum dim_kind kind) { return kind == DIM_SEQ_K; }
static bool is_positions(enum dim_kind kind) { return kind == DIM_SEQ_Q || kind == DIM_SEQ_K; }

/* Of a dimension in the tensor, and where the entry's part of it begins. */
static int64_t tensor_size(const struct tree_point *point, const struct input *in, int d)
{
	const struct fagen_abi *p = &problem->p;
	const enum dim_kind kind = in->dim[d].kind;
	if (!is_positions(kind))
		return tree_dim(point, in, d);
	if (point->packed)
		return is_keys(kind) ? p->total_k : p->total_q;
	return is_keys(kind) ? p->seqlen_k : p->seqlen_q;
}
static int64_t tensor_first(const struct tree_point *point, const struct input *in, int d)
{
	const enum dim_kind kind = in->dim[d].kind;
	return point->packed && is_positions(kind) ? problem->cu[is_keys(kind)][point->name[0]] : 0;
}

/* The entry among others, with lengths of their own. */
static void lengths_fill(struct grove *g, struct tree_point *point, enum batch_layout layout)
{
	struct fagen_abi *p = &problem->p;
	point->packed = layout == LAYOUT_PACKED;
	if (layout == LAYOUT_DENSE)
		return;
	for (int keys = 0; keys < 2; keys++) {
		const int own = keys ? p->seqlen_k : p->seqlen_q, gap = (int)grove_random(g, 3);
		int *cu = problem->cu[keys], *used = problem->used[keys];
		cu[0] = (int)grove_random(g, 3);
		for (int b = 0; b < p->batch; b++) {
			used[b] = b == point->name[0] ? own : (int)grove_random(g, 20);
			cu[b + 1] = cu[b] + used[b] + gap;
		}
		*(keys ? &p->seqlen_k : &p->seqlen_q) += 20 + gap;
		*(keys ? &p->seqlens_k : &p->seqlens_q) = point->packed && !gap ? 0 : (uintptr_t)used;
		if (point->packed) {
			*(keys ? &p->cu_seqlens_k : &p->cu_seqlens_q) = (uintptr_t)cu;
			*(keys ? &p->total_k : &p->total_q) = cu[p->batch] + (int)grove_random(g, 2);
		}
	}
}

/* Rows a little apart from each other, the outermost dimension stored innermost in odd problems. */
static void problem_fill(struct grove *g, struct tree_point *point, enum batch_layout layout)
{
	struct fagen_abi *p = &problem->p;
	memset(p, 0, sizeof *p);
	p->batch = (int)point->batch;
	p->heads_q = p->heads_kv = (int)point->heads;
	p->kv_group = 1;
	p->seqlen_q = (int)point->name[4];
	p->seqlen_k = (int)point->name[5];
	p->bounds_rows = (unsigned long long)(uintptr_t)problem->bounds[0];
	p->bounds_cols = (unsigned long long)(uintptr_t)problem->bounds[1];
	const bool odd = grove_random(g, 2);
	lengths_fill(g, point, layout);
	for (int i = 0; i < TREE_INPUTS; i++) {
		const struct input *in = &tree_inputs[i];
		struct fagen_abi_input *t = &p->input[i];
		int64_t size[4] = {1, 1, 1, 1}, stride = 1, index[4];
		t->data = (unsigned long long)(uintptr_t)problem->data[i];
		t->grad = (unsigned long long)(uintptr_t)problem->grad[i];
		for (int n = 0; n < in->dims; n++) {
			const int d = odd ? n : in->dims - 1 - n;
			size[d] = tree_dim(point, in, d);
			t->stride[d] = t->grad_stride[d] = stride;
			stride *= tensor_size(point, in, d) + (n == 1);
		}
		ck_assert_int_le(stride, ELEMENTS_MAX);
		for (index[0] = 0; index[0] < size[0]; index[0]++)
			for (index[1] = 0; index[1] < size[1]; index[1]++)
				for (index[2] = 0; index[2] < size[2]; index[2]++)
					for (index[3] = 0; index[3] < size[3]; index[3]++) {
						int64_t at = 0;
						for (int d = 0; d < in->dims; d++)
							at += (index[d] + tensor_first(point, in, d)) * t->stride[d];
						element_set(problem->data[i] + at * dtype_size(in->dtype), in->dtype,
						            tree_input_value(i, index));
					}
	}
}

/* As templates/bounds.cu fills the workspace. */
static void bounds_fill(const struct emitted *e, const struct program *program, const struct emitted_shape *shape,
                        const struct tree_point *point)
{
	const struct fagen_abi *p = &problem->p;
	const int b = (int)point->name[0];
	for (int cols = 0; cols < 2; cols++) {
		const int len = (int)point->name[4 + cols], size = cols ? shape->tile_n : shape->tile_m;
		const int most = cols ? p->seqlen_k : p->seqlen_q, total = cols ? p->total_k : p->total_q;
		const int slots = cols ? program->bounds_cols : program->bounds_rows;
		const int *cu = problem->cu[cols];
		for (int slot = 0; slot < slots; slot++)
			for (int h = 0; h < p->heads_q; h++)
				for (int tile = 0; tile * size < len; tile++) {
					int at = ((slot * p->batch + b) * p->heads_q + h) * ((most + size - 1) / size) +
					         tile;
					if (point->packed) {
						const int begin = cu[b] / size + b,
							  room = cu[b + 1] / size + b + 1 - begin;
						at = (slot * (total / size + p->batch) + begin) * p->heads_q +
						     h * room + tile;
					}
					int *out = problem->bounds[cols] + 2 * at;
					out[0] = INT32_MAX, out[1] = INT32_MIN;
					for (int i = tile * size; i < len && i < (tile + 1) * size; i++) {
						const int v = e->bound(cols, slot, p, b, h, i);
						out[0] = v < out[0] ? v : out[0];
						out[1] = v > out[1] ? v : out[1];
					}
				}
	}
}

/* ---- what must hold ---- */

/* Truth of a cell; undecided where float32 may decide otherwise. */
enum seen { HIDDEN, VISIBLE, UNDECIDED };

struct trial {
	const struct sample *m;
	const struct emitted *e;
	const struct emitted_shape *shape;
	struct tree_point at; /* b, h and lengths */
	int sq, sk, b, h;
	enum seen seen[SIDE_MAX][SIDE_MAX]; /* by the mask, without the layout, */
	enum seen kept[SIDE_MAX][SIDE_MAX]; /* and with it */
};

static enum seen block_truth(const struct trial *t, int block_q, int block_k)
{
	struct tree_point at = t->at;
	at.name[2] = block_q, at.name[3] = block_k;
	at.name[4] = (t->sq + t->shape->block_q - 1) / t->shape->block_q;
	at.name[5] = (t->sk + t->shape->block_k - 1) / t->shape->block_k;
	const bool kept = !t->m->keep || tree_at(t->m->keep, &at).i != 0;
	return at.close ? UNDECIDED : kept ? VISIBLE : HIDDEN;
}

static void truth_fill(struct trial *t)
{
	for (int q = 0; q < t->sq; q++)
		for (int k = 0; k < t->sk; k++) {
			struct tree_point at = t->at;
			at.name[2] = q, at.name[3] = k;
			const bool visible = !t->m->mask || tree_at(t->m->mask, &at).i != 0;
			const enum seen block = block_truth(t, q / t->shape->block_q, k / t->shape->block_k);
			t->seen[q][k] = at.close ? UNDECIDED : visible ? VISIBLE : HIDDEN;
			t->kept[q][k] = t->seen[q][k] == HIDDEN || block == HIDDEN ? HIDDEN
			                : block == UNDECIDED                       ? UNDECIDED
			                                                           : t->seen[q][k];
		}
}

#define MUST(condition, ...)                                                                                          \
	do                                                                                                            \
		if (!(condition)) {                                                                                   \
			char what[256];                                                                               \
			snprintf(what, sizeof what, __VA_ARGS__);                                                     \
			ck_abort_msg("%s\n%dx%d b %d h %d of %d, %d, tile %dx%d: %s", t->m->text, t->sq, t->sk, t->b, \
			             t->h, problem->p.batch, problem->p.heads_q, t->shape->tile_m, t->shape->tile_n,  \
			             what);                                                                           \
		}                                                                                                     \
	while (0)

/* Bits of a tile's blocks as templates/walk.h gathers them. */
static unsigned long long bits_of(const struct trial *t, int q0, int k0)
{
	const int bq = t->shape->block_q, bk = t->shape->block_k, m = t->shape->tile_m, n = t->shape->tile_n;
	const int across = n % bk == 0 ? n / bk : bk % n == 0 ? 1 : (n - 2) / bk + 2;
	const int down = m % bq == 0 ? m / bq : bq % m == 0 ? 1 : (m - 2) / bq + 2;
	unsigned long long bits = 0;
	if (!t->m->keep)
		return 0;
	for (int i = 0; i < down * across; i++) {
		const int q = q0 / bq + i / across, k = k0 / bk + i % across;
		if (q * bq < t->sq && k * bk < t->sk && t->e->block_keep(&problem->p, t->b, t->h, q, k))
			bits |= 1ULL << i;
	}
	return bits;
}

static bool blocks_are_split(const struct emitted_shape *s) { return s->block_q % s->tile_m || s->block_k % s->tile_n; }

/* The layout may be left to the class of the tile, unless a tile has several blocks. */
static void mask_holds(const struct trial *t, int q, int k, bool keep, bool plain)
{
	const bool inside = q < t->sq && k < t->sk, all = plain || blocks_are_split(t->shape);
	const enum seen least = inside ? t->kept[q][k] : HIDDEN, most = !inside || all ? least : t->seen[q][k];
	MUST(keep ? most != HIDDEN : least != VISIBLE, "%s at q=%d k=%d is %d", plain ? "mask_plain" : "mask_keep", q,
	     k, keep);
}

/* ---- scores ---- */

static bool is_close(double got, double want, double size)
{
	return !isfinite(want) || fabs(got - want) <= 2e-4 * (1 + fabs(want) + size);
}

struct reading {
	struct tree_point *at;
	int input;
	int64_t index[INPUT_DIMS_MAX];
	double shift;
};

/* Elements, one of them shifted. */
static struct expr_value read_shifted(void *context, int input, const int64_t *index)
{
	const struct reading *r = context;
	struct expr_value v = read_element(r->at, input, index);
	bool same = input == r->input;
	for (int d = 0; same && d < tree_inputs[input].dims; d++) {
		const int64_t last = tree_dim(r->at, &tree_inputs[input], d) - 1;
		same = (index[d] < 0 ? 0 : index[d] > last ? last : index[d]) == r->index[d];
	}
	v.f += same ? r->shift : 0;
	return v;
}

static double score_at(const struct trial *t, struct tree_point *at, struct reading *r)
{
	const struct program *p = &t->m->program;
	const int64_t name[NAME_COUNT] = {t->b, t->h, at->name[2], at->name[3], t->sq, t->sk, at->heads, at->heads};
	r->at = at;
	return expr_eval(&p->pool, p->score, name, at->s, read_shifted, r).f;
}

/* The slope from both sides, if they agree: not at a kink, nor where the function jumps. */
static bool slope_find(double *slope, const double value[3], double step)
{
	const double left = (value[1] - value[0]) / step, right = (value[2] - value[1]) / step;
	*slope = (left + right) / 2;
	return isfinite(*slope) && fabs(left - right) <= 1e-3 * (1 + fabs(*slope));
}

static const double step = 1e-5;

static void derivative_holds(const struct trial *t, const struct emitted_cell *c, const struct tree_point *at)
{
	double value[3], slope;
	bool close = false;
	for (int i = 0; i < 3; i++) {
		struct tree_point near = *at;
		near.s += step * (i - 1);
		value[i] = tree_at(t->m->score, &near).f;
		close = close || near.close;
	}
	if (!close && slope_find(&slope, value, step))
		MUST(is_close(c->grad, slope, 1), "derivative at q=%d k=%d s=%g is %g, not %g", (int)at->name[2],
		     (int)at->name[3], at->s, c->grad, slope);
}

/* Where an access with a gradient reads, by its index expressions; the number of its input. */
static int element_of(int64_t index[INPUT_DIMS_MAX], const struct trial *t, int grad, struct tree_point *at)
{
	const struct program *p = &t->m->program;
	int a = 0;
	for (; p->access[a].grad < 0 || grad > 0; a++)
		grad -= p->access[a].grad >= 0;
	const struct input *input = &tree_inputs[p->access[a].input];
	for (int d = 0; d < input->dims; d++) {
		const int64_t last = tree_dim(at, input, d) - 1;
		index[d] = eval_at(&p->pool, p->pool.node[p->access[a].node].arg[d], at).i;
		index[d] = index[d] < 0 ? 0 : index[d] > last ? last : index[d];
	}
	return p->access[a].input;
}

/* An element may be read in several places: its gradients, found by their address, are the slope together. */
static void input_gradients_hold(const struct trial *t, const struct emitted_cell *c, struct tree_point *at)
{
	const int q = (int)at->name[2], k = (int)at->name[3];
	for (int a = 0; a < t->e->grads; a++) {
		float *address, *other;
		int entries;
		const int entry = t->e->grad(&address, &entries, a, &problem->p, t->b, t->h, q, k);
		MUST(entry >= 0 && entry < entries, "entry %d of gradient %d", entry, a);
		struct reading r = {.at = at};
		double value[3], slope, sum = 0;
		int64_t place = 0;
		r.input = element_of(r.index, t, a, at);
		for (int d = 0; d < tree_inputs[r.input].dims; d++)
			place += (r.index[d] + tensor_first(at, &tree_inputs[r.input], d)) *
			         problem->p.input[r.input].grad_stride[d];
		MUST(address == problem->grad[r.input] + place, "gradient %d at q=%d k=%d has another address", a, q,
		     k);
		for (int i = 0; i < 3; i++) {
			r.shift = step * (i - 1);
			value[i] = score_at(t, at, &r);
		}
		for (int i = 0; i < t->e->grads; i++) {
			(void)t->e->grad(&other, &entries, i, &problem->p, t->b, t->h, q, k);
			sum += other == address ? c->input_grad[i] : 0;
		}
		if (slope_find(&slope, value, step))
			MUST(is_close(sum, slope, 1), "gradient of %s at q=%d k=%d s=%g is %g, not %g",
			     tree_inputs[r.input].name, q, k, at->s, sum, slope);
		int64_t row_major = 0, elements = 1;
		for (int d = 0; d < tree_inputs[r.input].dims; d++) {
			const int64_t size = tensor_size(at, &tree_inputs[r.input], d);
			row_major = row_major * size + r.index[d] + tensor_first(at, &tree_inputs[r.input], d);
			elements *= size;
		}
		MUST(t->e->grad_elements(a, &problem->p) == elements &&
		             t->e->grad_element(a, &problem->p, row_major) == address,
		     "element %d of gradient %d", (int)row_major, a);
	}
}

static void score_holds(const struct trial *t, const struct emitted_cell *c, int q, int k, double s, bool plain)
{
	const double factor = program_logit_scale(&t->m->spec, &t->m->program) / 1.4426950408889634;
	struct tree_point at = t->at;
	at.name[2] = q, at.name[3] = k, at.s = s;
	const double want = t->m->score ? tree_at(t->m->score, &at).f : s, got = c->score * factor;
	MUST(factor > 0, "factor %g", factor);
	if (at.close)
		return;
	MUST(is_close(got, want, 0), "score%s at q=%d k=%d s=%g is %g, not %g", plain ? "_plain" : "", q, k, s, got,
	     want);
	MUST(c->score == c->score_again || isnan(c->score), "score and score_grad differ at q=%d k=%d", q, k);
	if (!t->m->score)
		MUST(c->grad == 1, "derivative %g", c->grad);
	else
		derivative_holds(t, c, &at);
	if (!plain && !at.close)
		input_gradients_hold(t, c, &at);
}

/* ---- tiles ---- */

/* The class of a tile as a walk finds it, from tiles of rows or of keys. */
static int class_of(const struct trial *t, bool keys, int q0, int k0)
{
	const int m = t->shape->tile_m, n = t->shape->tile_n;
	const int q1 = q0 + m < t->sq ? q0 + m : t->sq, k1 = k0 + n < t->sk ? k0 + n : t->sk;
	const int runs = keys ? t->e->class_by_runs(1, q0, q1, t->sq, t->sk, k0 / n)
	                      : t->e->class_by_runs(0, k0, k0 + n, t->sq, t->sk, q0 / m);
	const int rest = t->m->program.scan ? t->e->class_by_rest(&problem->p, t->b, t->h, q0, q1, k0, k1) : TILE_FULL;
	return runs == TILE_EMPTY || rest == TILE_EMPTY ? TILE_EMPTY : runs < rest ? runs : rest;
}

/* A stream is what a look at every tile finds, from the last to the first. */
static void stream_holds(const struct trial *t, bool keys, int from)
{
	int tile[SIDE_MAX], class_[SIDE_MAX], step_ = 0;
	const int own = keys ? t->shape->tile_m : t->shape->tile_n, other = keys ? t->shape->tile_n : t->shape->tile_m;
	const int len = keys ? t->sk : t->sq, to = keys && from + own > t->sq ? t->sq : from + own;
	const int count = t->e->walk(tile, class_, keys, from, to, t->sq, t->sk);
	for (int i = (len + other - 1) / other - 1; i >= 0; i--) {
		const int want = t->e->class_by_runs(keys, from, to, t->sq, t->sk, i);
		if (want == TILE_EMPTY)
			continue;
		MUST(step_ < count && tile[step_] == i && class_[step_] == want, "stream of %s from %d, step %d",
		     keys ? "keys" : "queries", from, step_);
		step_++;
	}
	MUST(step_ == count, "stream of %s from %d has %d steps, not %d", keys ? "keys" : "queries", from, count,
	     step_);
	for (int run = 0; run < t->m->program.run_count; run++) {
		int r[4];
		const struct range want =
			keys ? program_key_range(&t->m->program, run, t->sq, t->sk, from, from + own)
			     : program_query_range(&t->m->program, run, t->sq, t->sk, from, from + own);
		t->e->range(r, keys, run, from, from + own, t->sq, t->sk);
		MUST(r[0] == want.begin && r[1] == want.end, "run %d of %s from %d is %d..%d, planned %d..%d", run,
		     keys ? "keys" : "queries", from, r[0], r[1], (int)want.begin, (int)want.end);
	}
}

/* Of one run the key tiles whose walks pass a query tile are neighbours: ordered sums of dQ wait for the next one (templates/sm90/bwd.cu). */
static void neighbours_hold(const struct trial *t, int q0)
{
	const int m = t->shape->tile_m, n = t->shape->tile_n;
	int last = -1;
	for (int k0 = 0; k0 < t->sk; k0 += n) {
		if (t->e->class_by_runs(0, k0, k0 + n, t->sq, t->sk, q0 / m) == TILE_EMPTY)
			continue;
		MUST(last < 0 || last == k0 / n - 1, "query tile at %d is passed by key tiles %d and %d, and by none between", q0, last, k0 / n);
		last = k0 / n;
	}
}

static void tile_holds(const struct trial *t, struct emitted_tile *tile)
{
	const int m = t->shape->tile_m, n = t->shape->tile_n, q0 = tile->q0, k0 = tile->k0;
	const int lane = 2 * (int)((unsigned)(q0 * 7 + k0 * 5 + t->sq) % 4);
	const int class_keys = class_of(t, true, q0, k0), class_queries = class_of(t, false, q0, k0);
	tile->bits = bits_of(t, q0, k0);
	t->e->load(tile, &problem->p, t->b, t->h);
	for (int q = q0; q < q0 + m; q++)
		for (int k = k0; k < k0 + n; k++) {
			struct emitted_cell c;
			const int k_lane = k - k0 < lane ? k0 : k0 + lane;
			const double s = (q * 31 + k * 17) % 64 / 8.0 - 4;
			const bool inside = q < t->sq && k < t->sk;
			t->e->cell(&c, tile, &problem->p, t->b, t->h, q, k_lane, k - k_lane,
			           (float)(s / t->shape->softmax_scale));
			mask_holds(t, q, k, c.keep, false);
			if (inside && (q * 13 + k * 5) % 37 == 0)
				score_holds(t, &c, q, k, s, false);
			if (inside) {
				MUST(t->kept[q][k] != VISIBLE ||
				             (class_keys != TILE_EMPTY && class_queries != TILE_EMPTY),
				     "tile %d, %d is not empty", q0, k0);
				MUST(t->seen[q][k] != HIDDEN || (class_keys != TILE_FULL && class_queries != TILE_FULL),
				     "tile %d, %d is not full", q0, k0);
				t->e->plain(&c, &problem->p, t->b, t->h, q, k, (float)(s / t->shape->softmax_scale));
				mask_holds(t, q, k, c.keep, true);
				if ((q * 11 + k * 3) % 41 == 0)
					score_holds(t, &c, q, k, s, true);
			} else {
				MUST(k < t->sk || class_keys != TILE_FULL, "tile %d, %d reaches past the keys", q0, k0);
				MUST(k < t->sk || class_queries != TILE_FULL, "tile %d, %d reaches past the keys", q0,
				     k0);
			}
		}
}

static void program_holds(const struct sample *m, const struct emitted *e, const struct emitted_shape *shape,
                          uint64_t seed)
{
	static struct trial trial;
	struct trial *t = &trial;
	struct grove random = {.state = seed * 13 + 5};
	const int tile_m = shape->tile_m, tile_n = shape->tile_n;
	const uint64_t side = seed % 8 ? 20 : SIDE_MAX - 4;
	*t = (struct trial){.m = m, .e = e, .shape = shape};
	t->at.batch = 1 + (int64_t)grove_random(&random, 2), t->at.heads = 1 + (int64_t)grove_random(&random, 3);
	t->b = (int)(t->at.name[0] = (int64_t)grove_random(&random, (uint64_t)t->at.batch));
	t->h = (int)(t->at.name[1] = (int64_t)grove_random(&random, (uint64_t)t->at.heads));
	t->sq = (int)(t->at.name[4] = 1 + (int64_t)grove_random(&random, side));
	t->sk = (int)(t->at.name[5] = 1 + (int64_t)grove_random(&random, side));
	problem_fill(&random, &t->at, shape->layout);
	bounds_fill(e, &m->program, shape, &t->at);
	truth_fill(t);

	const struct staging bytes = program_staging(&m->program, &m->spec, tile_m, tile_n);
	const int planned[4] = {bytes.head, bytes.row, bytes.col, bytes.cell};
	struct emitted_tile tile = {.q0 = 0};
	void **const buffer[4] = {&tile.head, &tile.rows, &tile.cols, &tile.cells};
	for (int i = 0; i < 4; i++) {
		MUST(e->bytes[i] == (planned[i] ? planned[i] : 16), "struct %d has %d bytes, planned %d", i,
		     e->bytes[i], planned[i]);
		*buffer[i] = malloc((size_t)e->bytes[i]);
		memset(*buffer[i], 0xff, (size_t)e->bytes[i]);
	}
	for (int q0 = 0; q0 < t->sq; q0 += tile_m) {
		stream_holds(t, true, q0);
		if (m->program.run_count == 1)
			neighbours_hold(t, q0);
		for (int k0 = 0; k0 < t->sk; k0 += tile_n) {
			tile.q0 = q0, tile.k0 = k0;
			tile_holds(t, &tile);
		}
	}
	for (int k0 = 0; k0 < t->sk; k0 += tile_n)
		stream_holds(t, false, k0);
	for (int i = 0; i < 4; i++)
		free(*buffer[i]);
}

/* ---- suites ---- */

struct unit {
	struct sample *sample[UNIT];
	uint64_t seed[UNIT];
	const struct emitted_shape *shape;
	struct emitted_build build;
};

static void unit_start(struct unit *u, uint64_t *seed)
{
	const struct spec *spec[UNIT];
	const struct program *program[UNIT];
	struct text source = {0};
	for (int i = 0; i < UNIT; i++) {
		u->sample[i] = malloc(sizeof *u->sample[i]);
		while (!sample_make(u->sample[i], ++*seed, u->shape))
			;
		u->seed[i] = *seed;
		spec[i] = &u->sample[i]->spec;
		program[i] = &u->sample[i]->program;
	}
	emitted_source(&source, spec, program, UNIT, u->shape);
	emitted_start(&u->build, &source);
	text_free(&source);
}

static void unit_finish(struct unit *u)
{
	void *so = emitted_wait(&u->build);
	for (int i = 0; i < UNIT; i++) {
		program_holds(u->sample[i], emitted_find(so, i), u->shape, u->seed[i]);
		free(u->sample[i]);
	}
	dlclose(so);
}

/* Two units are compiled while one is tried. */
START_TEST(random_programs)
{
	const char *first = getenv("SEED"), *few = getenv("UNITS");
	const int count = few ? atoi(few) : UNITS / PARTS;
	uint64_t seed = first ? strtoull(first, NULL, 0) : UINT64_C(1000000) * (uint64_t)_i;
	struct unit *units = calloc(3, sizeof *units);
	problem = calloc(1, sizeof *problem);
	for (int i = 0; i < count + 2; i++) {
		units[i % 3].shape = &shapes[(_i + i) % (int)(sizeof shapes / sizeof *shapes)];
		if (i < count)
			unit_start(&units[i % 3], &seed);
		if (i >= 2)
			unit_finish(&units[(i - 2) % 3]);
	}
	free(problem);
	free(units);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("language");
	TCase *t = tcase_create("random programs");
	tcase_set_timeout(t, 900);
	tcase_add_loop_test(t, random_programs, 0, PARTS);
	suite_add_tcase(s, t);
	return s;
}
