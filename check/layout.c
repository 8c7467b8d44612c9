#include "check/layout.h"

const char *const layout_names[LAYOUT_COUNT] = {"bhsd", "bshd", "fat", "odd", "mixed", "size1", "flip", "shared"};
const char *const tensor_names[TENSOR_COUNT] = {"query", "key",  "value",  "out",  "lse",
                                                "dout",  "dlse", "dquery", "dkey", "dvalue"};

static const enum layout_kind mixed[TENSOR_COUNT] = {
	[TENSOR_QUERY] = LAYOUT_BHSD,  [TENSOR_KEY] = LAYOUT_FAT,    [TENSOR_VALUE] = LAYOUT_BSHD,
	[TENSOR_OUT] = LAYOUT_BSHD,    [TENSOR_LSE] = LAYOUT_BSHD,   [TENSOR_DOUT] = LAYOUT_FAT,
	[TENSOR_DLSE] = LAYOUT_BHSD,   [TENSOR_DQUERY] = LAYOUT_FAT, [TENSOR_DKEY] = LAYOUT_BSHD,
	[TENSOR_DVALUE] = LAYOUT_BHSD,
};

static bool is_input(enum tensor_id t)
{
	return t == TENSOR_QUERY || t == TENSOR_KEY || t == TENSOR_VALUE || t == TENSOR_DOUT || t == TENSOR_DLSE;
}

static void dense(struct layout *l, int64_t row, int64_t gap_head, int64_t gap_batch)
{
	l->stride_seq = row;
	l->stride_head = l->seq * row + gap_head;
	l->stride_batch = l->heads * l->stride_head + gap_batch;
	l->elements = l->offset + l->batch * l->stride_batch;
}

void layout_make(struct layout *l, enum layout_kind kind, enum tensor_id tensor)
{
	const enum layout_kind own = kind == LAYOUT_MIXED ? mixed[tensor] : kind;
	l->offset = 0;
	switch (own) {
	case LAYOUT_BSHD:
		l->stride_head = l->dim;
		l->stride_seq = l->heads * l->dim;
		l->stride_batch = l->seq * l->stride_seq;
		l->elements = l->batch * l->stride_batch;
		return;
	case LAYOUT_FAT:
		l->offset = 64;
		dense(l, l->dim + 24, 40, 128);
		return;
	case LAYOUT_ODD:
		l->offset = 1;
		dense(l, l->dim + 1, 3, 5);
		return;
	case LAYOUT_SIZE1:
		dense(l, l->dim, 0, 0);
		if (l->seq == 1)
			l->stride_seq = INT64_C(0x7fffffffffff3);
		if (l->heads == 1)
			l->stride_head = INT64_C(-0x123456789);
		if (l->batch == 1)
			l->stride_batch = INT64_C(0x6fffffffffffff1);
		return;
	case LAYOUT_FLIP:
		dense(l, l->dim, 0, 0);
		if (is_input(tensor) && l->seq > 0 && l->heads > 0) {
			l->offset = (l->seq - 1) * l->stride_seq + (l->heads - 1) * l->stride_head;
			l->stride_seq = -l->stride_seq;
			l->stride_head = -l->stride_head;
		}
		return;
	case LAYOUT_SHARED:
		dense(l, l->dim, 0, 0);
		if (tensor == TENSOR_KEY || tensor == TENSOR_VALUE)
			l->stride_batch = 0;
		return;
	default: dense(l, l->dim, 0, 0);
	}
}

void layout_shift(struct layout *l)
{
	l->offset++;
	l->elements++;
}

int layout_align(enum layout_kind kind) { return kind == LAYOUT_ODD || kind == LAYOUT_FLIP ? 2 : 16; }

int64_t layout_index(const struct layout *l, int64_t b, int64_t h, int64_t s)
{
	return l->offset + (l->batch > 1 ? b * l->stride_batch : 0) + (l->heads > 1 ? h * l->stride_head : 0) +
	       (l->seq > 1 ? s * l->stride_seq : 0);
}
