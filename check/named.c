#include "check/named.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/gpu.h"
#include "check/lengths.h"

static const int dtype_bytes[INPUT_DTYPE_COUNT] = {
	[INPUT_F32] = 4, [INPUT_FP16] = 2, [INPUT_BF16] = 2, [INPUT_I32] = 4, [INPUT_U8] = 1};

static bool is_sequence(enum dim_kind kind) { return kind == DIM_SEQ_Q || kind == DIM_SEQ_K; }
static int64_t blocks(int64_t seqlen, int size) { return seqlen / size + (seqlen % size > 0); }

static int64_t dim_size(const struct input *in, int d, const struct check_case *c, const struct spec *spec,
                        const struct lengths *lengths)
{
	const struct input_dim *dim = &in->dim[d];
	switch (dim->kind) {
	case DIM_BATCH: /* of a packed input with positions there is one entry */
		for (int i = 0; i < in->dims; i++)
			if (lengths->packed && c->batch && is_sequence(in->dim[i].kind))
				return 1;
		return c->batch;
	case DIM_HEADS: return c->heads_q;
	case DIM_HEADS_KV: return c->heads_kv;
	case DIM_SEQ_Q: return lengths->packed ? lengths->total[0] : c->seqlen_q;
	case DIM_SEQ_K: return lengths->packed ? lengths->total[1] : c->seqlen_k;
	case DIM_BLOCKS_Q: return blocks(c->seqlen_q, spec->blocks.size_q);
	case DIM_BLOCKS_K: return blocks(c->seqlen_k, spec->blocks.size_k);
	default: return dim->size;
	}
}

/* ---- layouts ---- */

static void placed_make(struct placed *p, const struct named *n, enum layout_kind kind, bool output)
{
	const int dims = n->input->dims, gap = kind == LAYOUT_FAT ? 8 : kind == LAYOUT_ODD ? 1 : 0;
	int64_t step = 1;
	*p = (struct placed){.offset = gap};
	/* The order of the other tensors' dimensions means nothing here: it is turned around. */
	for (int i = 0; i < dims; i++) {
		const int d = kind == LAYOUT_BSHD ? i : dims - 1 - i;
		const int64_t size = n->size[d] > 1 ? n->size[d] : 1;
		p->stride[d] = step;
		if (kind == LAYOUT_SHARED && !output && n->input->dim[d].kind == DIM_BATCH)
			p->stride[d] = 0;
		else
			step = step * size + gap;
		if (kind == LAYOUT_FLIP && !output) {
			p->offset += p->stride[d] * (size - 1);
			p->stride[d] = -p->stride[d];
		}
		if (kind == LAYOUT_SIZE1 && size == 1)
			p->stride[d] = INT64_C(0x6fffffffffffff1);
	}
	p->elements = (n->elements > 0 ? step : 0) + gap;
}

int64_t placed_index(const struct placed *p, const struct named *n, int64_t dense)
{
	int64_t at = p->offset;
	for (int d = n->input->dims - 1; d >= 0; d--) {
		const int64_t i = dense % n->size[d];
		dense /= n->size[d];
		if (n->size[d] > 1)
			at += i * p->stride[d];
	}
	return at;
}

/* ---- values ---- */

enum pattern {
	PATTERN_NORMAL,
	PATTERN_BITS,
	PATTERN_SEGMENTS,
	PATTERN_SMALL,
	PATTERN_POSITIONS,
	PATTERN_BITMAP,
	PATTERN_COUNT,
	PATTERN_LIST
};

struct fill {
	struct named *n;
	const struct check_case *c;
	const struct spec *spec;
	enum pattern pattern;
	uint64_t stream;
	int sequence;  /* last dimension that is a sequence; -1: none */
	int64_t width; /* of the last dimension */
};

static enum pattern pattern_of(const struct input *in, const struct check_case *c, const struct spec *spec,
                               int sequence)
{
	if (spec->blocks.source == BLOCKS_BITMAP && !strcmp(in->name, "blocks"))
		return PATTERN_BITMAP;
	if (spec->blocks.source == BLOCKS_LISTS && !strcmp(in->name, "block_count"))
		return PATTERN_COUNT;
	if (spec->blocks.source == BLOCKS_LISTS && !strcmp(in->name, "block_index"))
		return PATTERN_LIST;
	if (in->dtype == INPUT_U8)
		return PATTERN_BITS;
	if (in->dtype != INPUT_I32)
		return PATTERN_NORMAL;
	if (sequence < 0)
		return PATTERN_POSITIONS;
	return c->seed % 2 == 0 ? PATTERN_SEGMENTS : c->seed % 4 == 1 ? PATTERN_SMALL : PATTERN_POSITIONS;
}

/* How many of a block row's key blocks are kept: in turn none, all, one, and about two in five. */
static int64_t row_kept(struct random *r, int64_t row, int64_t width)
{
	switch ((row + (int64_t)(random_next(r) % 3)) % 5) {
	case 0: return 0;
	case 1: return width;
	case 2: return width > 0;
	default: return width * 2 / 5;
	}
}

/* Block ids in random order. */
static void shuffle(double *to, int64_t width, struct random *r)
{
	for (int64_t i = 0; i < width; i++) {
		const int64_t j = (int64_t)(random_next(r) % (uint64_t)(i + 1));
		if (j < i)
			to[i] = to[j];
		to[j] = (double)i;
	}
}

/* The tail that is not counted, and now and then an entry that is, name no block. */
static void list_spoil(double *to, int64_t width, struct random *r, int64_t kept)
{
	for (int64_t i = kept; i < width; i++)
		to[i] = (double)(i % 2 ? width + 5 : -1);
	if (kept > 2 && random_next(r) % 4 == 0)
		to[1] = random_next(r) % 2 ? -7 : (double)width;
}

/* One row: the elements along the last dimension. */
static void fill_row(void *context, int64_t row)
{
	const struct fill *f = context;
	const struct named *n = f->n;
	double *to = n->values + row * f->width;
	struct random r, kept_random;
	random_begin(&r, f->c->seed, f->stream + ((uint64_t)row << 8));
	random_begin(&kept_random, f->c->seed, 77 + ((uint64_t)row << 8)); /* counts and lists agree */
	const int64_t kept = row_kept(&kept_random, row, f->width);
	const int64_t length = f->sequence >= 0 ? n->size[f->sequence] : 0;
	const uint64_t mean = (uint64_t)length / 5 + 1; /* of a segment */
	int64_t after = 1, segment = 0;                 /* entries of the dimensions behind the sequence */
	for (int d = f->sequence + 1; f->sequence >= 0 && d < n->input->dims; d++)
		after *= n->size[d];
	if (f->pattern == PATTERN_BITMAP) { /* a list, marked */
		double *list = malloc((size_t)(f->width + 1) * sizeof *list);
		if (!list)
			abort();
		shuffle(list, f->width, &r);
		memset(to, 0, (size_t)f->width * sizeof *to);
		for (int64_t i = 0; i < kept; i++)
			to[(int64_t)list[i]] = (double)(1 + i % 3);
		free(list);
		return;
	}
	if (f->pattern == PATTERN_LIST) {
		shuffle(to, f->width, &r);
		list_spoil(to, f->width, &r, kept);
		return;
	}
	for (int64_t i = 0; i < f->width; i++) {
		switch (f->pattern) {
		case PATTERN_BITS: to[i] = (double)(random_next(&r) % 2); break;
		case PATTERN_SMALL: to[i] = (double)(random_next(&r) % 4); break;
		case PATTERN_POSITIONS: to[i] = (double)(random_next(&r) % (uint64_t)(f->c->seqlen_k + 1)); break;
		case PATTERN_COUNT: {
			/* This row of counts is a column of lists. */
			const int64_t list = row * f->width + i;
			random_begin(&kept_random, f->c->seed, 77 + ((uint64_t)list << 8));
			const int64_t across = blocks(f->c->seqlen_k, f->spec->blocks.size_k);
			const int64_t count = row_kept(&kept_random, list, across);
			/* Counts past both ends mean the ends. */
			to[i] = (double)(count == across ? across + list % 3 : count ? count : -(list % 2));
			break;
		}
		case PATTERN_SEGMENTS:
			if (f->sequence == n->input->dims - 1)
				segment += i > 0 && random_next(&r) % mean == 0;
			else
				segment = (row * f->width + i) / after % length / (int64_t)mean + i;
			to[i] = (double)segment;
			break;
		default: to[i] = 0.5 * random_normal(&r); break;
		}
		if (n->input->dtype == INPUT_F32)
			to[i] = (double)(float)to[i];
		else if (n->input->dtype == INPUT_FP16 || n->input->dtype == INPUT_BF16)
			to[i] = number_round(to[i], n->input->dtype == INPUT_BF16);
	}
}

static void element_put(unsigned char *to, double x, enum input_dtype dtype)
{
	const float f = (float)x;
	const int32_t i = (int32_t)x;
	const uint16_t h = dtype == INPUT_FP16 || dtype == INPUT_BF16 ? number_encode(x, dtype == INPUT_BF16) : 0;
	switch (dtype) {
	case INPUT_F32: memcpy(to, &f, sizeof f); break;
	case INPUT_I32: memcpy(to, &i, sizeof i); break;
	case INPUT_U8: *to = (unsigned char)i; break;
	default: memcpy(to, &h, sizeof h); break;
	}
}

/* All batch entries are the first. */
static void batch_share(struct named *n)
{
	for (int d = 0; d < n->input->dims; d++) {
		int64_t after = 1;
		if (n->input->dim[d].kind != DIM_BATCH)
			continue;
		for (int i = d + 1; i < n->input->dims; i++)
			after *= n->size[i];
		for (int64_t e = 0; e < n->elements; e++)
			n->values[e] = n->values[e - e / after % n->size[d] * after];
	}
}

static int input_make(struct named *n, int number, const struct check_case *c, const struct spec *spec,
                      const struct lengths *lengths)
{
	const struct input *in = &spec->input[number];
	struct fill f = {.n = n, .c = c, .spec = spec, .stream = 2000 + (uint64_t)number, .sequence = -1, .width = 1};
	*n = (struct named){.input = in, .elements = 1, .bytes = dtype_bytes[in->dtype]};
	for (int d = 0; d < in->dims; d++) {
		n->size[d] = dim_size(in, d, c, spec, lengths);
		n->elements *= n->size[d];
		f.width = n->size[d];
		if (is_sequence(in->dim[d].kind))
			f.sequence = d;
	}
	f.pattern = pattern_of(in, c, spec, f.sequence);
	const enum layout_kind kind = c->layout != LAYOUT_MIXED ? c->layout : number % 2 ? LAYOUT_FLIP : LAYOUT_BSHD;
	placed_make(&n->at, n, kind, false);
	placed_make(&n->grad_at, n, kind, true);
	n->values = calloc((size_t)(n->elements + 1), sizeof *n->values);
	n->image = malloc((size_t)((n->at.elements + 1) * n->bytes));
	if (!n->values || !n->image)
		return -1;
	memset(n->image, GPU_POISON, (size_t)(n->at.elements * n->bytes));
	if (n->elements)
		parallel_for(n->elements / f.width, fill_row, &f);
	if (kind == LAYOUT_SHARED)
		batch_share(n);
	for (int64_t e = 0; e < n->elements; e++)
		element_put(n->image + placed_index(&n->at, n, e) * n->bytes, n->values[e], in->dtype);
	return 0;
}

int named_make(struct named to[SPEC_INPUTS_MAX], const struct check_case *c, const struct spec *spec)
{
	struct lengths lengths;
	memset(to, 0, SPEC_INPUTS_MAX * sizeof *to);
	int rc = lengths_make(&lengths, c, spec->layout);
	for (int i = 0; i < spec->input_count && !rc; i++)
		rc = input_make(&to[i], i, c, spec, &lengths);
	lengths_free(&lengths);
	return rc;
}

void named_free(struct named n[SPEC_INPUTS_MAX])
{
	for (int i = 0; i < SPEC_INPUTS_MAX; i++) {
		free(n[i].values);
		free(n[i].image);
	}
}
