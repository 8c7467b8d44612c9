/* layout: where the elements of a tensor [batch][head][seq][dim] stand in a buffer. */
#ifndef FAGEN_CHECK_LAYOUT_H
#define FAGEN_CHECK_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

enum layout_kind {
	LAYOUT_BHSD,   /* dense in that order */
	LAYOUT_BSHD,   /* dense [batch][seq][head][dim], seen as a view */
	LAYOUT_FAT,    /* gaps after every row, head and batch entry; 16-byte aligned */
	LAYOUT_ODD,    /* one element off in base and strides: 2-byte aligned */
	LAYOUT_MIXED,  /* each tensor another one of the aligned kinds */
	LAYOUT_SIZE1,  /* dense, but dimensions of size 1 carry senseless strides */
	LAYOUT_FLIP,   /* inputs run backwards along seq and head: negative strides */
	LAYOUT_SHARED, /* one key and value for all batch entries: stride 0 */
	LAYOUT_COUNT
};
extern const char *const layout_names[LAYOUT_COUNT];

/* Tensors of a call, in the order of struct fagen_args. */
enum tensor_id {
	TENSOR_QUERY, TENSOR_KEY, TENSOR_VALUE, TENSOR_OUT, TENSOR_LSE, TENSOR_DOUT, TENSOR_DLSE, TENSOR_DQUERY, TENSOR_DKEY,
	TENSOR_DVALUE, TENSOR_COUNT
};
extern const char *const tensor_names[TENSOR_COUNT];

struct layout {
	int64_t batch, heads, seq;
	int dim, bytes;        /* bytes of an element */
	int64_t offset;        /* of element [0][0][0][0], in elements */
	int64_t stride_batch, stride_head, stride_seq;
	int64_t elements;      /* of the buffer, gaps included */
};

/* Fills everything but the sizes, which are set. */
void layout_make(struct layout *, enum layout_kind, enum tensor_id);
/* Begins one element later, in a buffer that is one longer. */
void layout_shift(struct layout *);
/* What a kernel must be got for: the smallest alignment of pointer and strides, 16 or 2; 2 also for negative strides, which no
 * tensor map takes. */
int layout_align(enum layout_kind);
int64_t layout_index(const struct layout *, int64_t b, int64_t h, int64_t s);

#endif
