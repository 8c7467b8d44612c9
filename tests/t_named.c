/* check/named.c: what is made up for the inputs of a spec is of its type, stands where its strides say, and is worth reading:
 * documents in order, lists that agree with their counts, rows of a block layout that are empty, full and in between. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/gpu.h"
#include "check/named.h"

Suite *suite(void);

static struct spec spec;
static struct check_case shape;
static struct named named[SPEC_INPUTS_MAX];

static void declare(const char *name, enum input_dtype dtype, int dims, const enum dim_kind *kind)
{
	struct input *in = &spec.input[spec.input_count++];
	*in = (struct input){.dtype = dtype, .dims = dims};
	strcpy(in->name, name);
	for (int d = 0; d < dims; d++)
		in->dim[d] = (struct input_dim){kind[d], kind[d] == DIM_CONST ? 5 : 0};
}

enum { BIAS, DOC, COORDINATES, LENGTHS, FLAGS, HALF, SINGLE, COUNT, INDEX, BLOCKS };

static void setup(void)
{
	memset(&spec, 0, sizeof spec);
	shape = (struct check_case){
		.batch = 3, .heads_q = 4, .heads_kv = 2, .seqlen_q = 70, .seqlen_k = 333, .seed = 2};
	spec.blocks = (struct blocks){.source = BLOCKS_LISTS, .size_q = 16, .size_k = 32};
	declare("bias", INPUT_F32, 4, (enum dim_kind[]){DIM_BATCH, DIM_HEADS, DIM_SEQ_Q, DIM_SEQ_K});
	declare("doc", INPUT_I32, 2, (enum dim_kind[]){DIM_BATCH, DIM_SEQ_K});
	declare("coordinates", INPUT_I32, 2, (enum dim_kind[]){DIM_SEQ_K, DIM_CONST});
	declare("lengths", INPUT_I32, 1, (enum dim_kind[]){DIM_BATCH});
	declare("flags", INPUT_U8, 2, (enum dim_kind[]){DIM_HEADS_KV, DIM_SEQ_Q});
	declare("half", INPUT_BF16, 2, (enum dim_kind[]){DIM_HEADS, DIM_CONST});
	declare("single", INPUT_FP16, 0, NULL);
	declare("block_count", INPUT_I32, 3, (enum dim_kind[]){DIM_BATCH, DIM_HEADS, DIM_BLOCKS_Q});
	declare("block_index", INPUT_I32, 4, (enum dim_kind[]){DIM_BATCH, DIM_HEADS, DIM_BLOCKS_Q, DIM_BLOCKS_K});
	declare("blocks", INPUT_U8, 4, (enum dim_kind[]){DIM_BATCH, DIM_HEADS, DIM_BLOCKS_Q, DIM_BLOCKS_K});
}

static void teardown(void) { named_free(named); }
static void make(void) { ck_assert_int_eq(named_make(named, &shape, &spec), 0); }

static double image_get(const struct named *n, int64_t at)
{
	const unsigned char *from = n->image + at * n->bytes;
	float f;
	int32_t i;
	uint16_t h;
	switch (n->input->dtype) {
	case INPUT_F32: memcpy(&f, from, sizeof f); return f;
	case INPUT_I32: memcpy(&i, from, sizeof i); return i;
	case INPUT_U8: return *from;
	default: memcpy(&h, from, sizeof h); return number_decode(h, n->input->dtype == INPUT_BF16);
	}
}

START_TEST(every_element_stands_where_its_strides_say)
{
	shape.layout = (enum layout_kind)_i;
	make();
	for (int i = 0; i < spec.input_count; i++) {
		const struct named *n = &named[i];
		int64_t index[INPUT_DIMS_MAX] = {0}, elements = 1;
		unsigned char *seen = calloc((size_t)n->grad_at.elements + 1, 1);
		for (int d = 0; d < n->input->dims; d++)
			elements *= n->size[d];
		ck_assert_int_eq(n->elements, elements);
		int wrong = 0;
		for (int64_t e = 0; e < elements; e++) {
			int64_t at = n->at.offset, grad_at = n->grad_at.offset;
			for (int d = 0; d < n->input->dims; d++) {
				at += index[d] * n->at.stride[d];
				grad_at += index[d] * n->grad_at.stride[d];
			}
			wrong += at < 0 || at >= n->at.elements || grad_at < 0 || grad_at >= n->grad_at.elements;
			if (wrong)
				break;
			wrong += image_get(n, at) != n->values[e] || !isfinite(n->values[e]);
			wrong += placed_index(&n->at, n, e) != at || placed_index(&n->grad_at, n, e) != grad_at;
			wrong += seen[grad_at]++ != 0; /* gradients of different elements in different places */
			for (int d = n->input->dims - 1; d >= 0 && ++index[d] == n->size[d]; d--)
				index[d] = 0;
		}
		free(seen);
		ck_assert_msg(!wrong, "input %s", n->input->name);
	}
	ck_assert_int_eq(named[DOC].at.stride[0] == 0, shape.layout == LAYOUT_SHARED);
	ck_assert_int_eq(named[COUNT].size[2], 5);  /* ceil(70 / 16) */
	ck_assert_int_eq(named[INDEX].size[3], 11); /* ceil(333 / 32) */
}
END_TEST

START_TEST(documents_are_in_order_at_even_seeds)
{
	make();
	const double *doc = named[DOC].values;
	for (int64_t b = 0; b < 3; b++) {
		ck_assert(doc[b * 333] == 0 && doc[b * 333 + 332] > 1);
		for (int64_t k = 1; k < 333; k++)
			ck_assert(doc[b * 333 + k] == doc[b * 333 + k - 1] ||
			          doc[b * 333 + k] == doc[b * 333 + k - 1] + 1);
	}
	for (int64_t k = 1; k < 333; k++)
		ck_assert(named[COORDINATES].values[k * 5] >= named[COORDINATES].values[(k - 1) * 5]);
	for (int64_t b = 0; b < 3; b++)
		ck_assert(named[LENGTHS].values[b] >= 0 && named[LENGTHS].values[b] <= 333);
	for (int64_t i = 0; i < named[FLAGS].elements; i++)
		ck_assert(named[FLAGS].values[i] == 0 || named[FLAGS].values[i] == 1);
}
END_TEST

START_TEST(odd_seeds_are_out_of_order)
{
	shape.seed = 1;
	make();
	int down = 0;
	for (int64_t k = 1; k < 333; k++)
		down += named[DOC].values[k] < named[DOC].values[k - 1];
	ck_assert_int_gt(down, 60);
}
END_TEST

/* Kept blocks of block row `row`; -1: a list names a block twice. */
static int kept(int64_t row)
{
	const int64_t across = named[INDEX].size[3];
	bool seen[16] = {false};
	int n = 0;
	for (int64_t i = 0; i < across && i < (int64_t)named[COUNT].values[row]; i++) {
		const double id = named[INDEX].values[row * across + i];
		if (id < 0 || id >= (double)across)
			continue;
		if (seen[(int)id])
			return -1;
		seen[(int)id] = true;
		n++;
	}
	return n;
}

START_TEST(block_layouts_have_rows_of_all_kinds)
{
	int none = 0, all = 0, one = 0, some = 0, past = 0;
	make();
	for (int64_t row = 0; row < named[COUNT].elements; row++) {
		const int n = kept(row);
		ck_assert_int_ge(n, 0);
		none += n == 0, all += n == 11, one += n == 1, some += n > 1 && n < 11;
		past += named[COUNT].values[row] < 0 || named[COUNT].values[row] > 11;
	}
	ck_assert_msg(none > 3 && all > 3 && one > 3 && some > 10 && past > 3, "%d %d %d %d %d", none, all, one, some,
	              past);
	teardown();
	spec.blocks.source = BLOCKS_BITMAP;
	make();
	none = all = some = 0;
	for (int64_t row = 0; row < named[COUNT].elements; row++) {
		int n = 0;
		for (int i = 0; i < 11; i++)
			n += named[BLOCKS].values[row * 11 + i] != 0;
		none += n == 0, all += n == 11, some += n > 1 && n < 11;
	}
	ck_assert_msg(none > 3 && all > 3 && some > 10, "%d %d %d", none, all, some);
}
END_TEST

START_TEST(seeds_repeat_and_differ)
{
	static struct named other[SPEC_INPUTS_MAX];
	make();
	ck_assert_int_eq(named_make(other, &shape, &spec), 0);
	const size_t bytes = (size_t)named[BIAS].elements * sizeof(double);
	ck_assert_int_eq(memcmp(named[BIAS].values, other[BIAS].values, bytes), 0);
	named_free(other);
	shape.seed = 4;
	ck_assert_int_eq(named_make(other, &shape, &spec), 0);
	ck_assert_int_ne(memcmp(named[BIAS].values, other[BIAS].values, bytes), 0);
	named_free(other);
	double square = 0;
	for (int64_t i = 0; i < named[BIAS].elements; i++)
		square += named[BIAS].values[i] * named[BIAS].values[i];
	ck_assert_double_eq_tol(square / (double)named[BIAS].elements, 0.25, 0.01);
}
END_TEST

START_TEST(shapes_with_a_zero)
{
	shape.seqlen_k = 0;
	make();
	ck_assert_int_eq(named[DOC].elements, 0);
	ck_assert_int_eq(named[INDEX].elements, 0);
	ck_assert_int_eq(named[LENGTHS].elements, 3);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("named");
	TCase *t = tcase_create("named");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, every_element_stands_where_its_strides_say, 0, LAYOUT_COUNT);
	tcase_add_test(t, documents_are_in_order_at_even_seeds);
	tcase_add_test(t, odd_seeds_are_out_of_order);
	tcase_add_test(t, block_layouts_have_rows_of_all_kinds);
	tcase_add_test(t, seeds_repeat_and_differ);
	tcase_add_test(t, shapes_with_a_zero);
	suite_add_tcase(s, t);
	return s;
}
