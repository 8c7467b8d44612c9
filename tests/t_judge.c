/* check/judge.c without a GPU: results that are the reference's own, rounded, pass; one wrong element in any of them is
 * noticed and named. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/trial.h"

Suite *suite(void);

static const char yaml[] = "head_dim: 16\nmask: {all: [causal, document]}\nscore: \"s + bias[h, q % 5]\"\nsink: true\n"
			   "inputs: {bias: {dtype: f32, shape: [heads, 5], grad: true}}\noutputs: [out, lse]\n"
			   "passes: [forward, backward]\nkv_group: any\n";

static struct spec spec;
static const struct check_case shape = {
	.batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 20, .seqlen_k = 30, .seed = 2, .layout = LAYOUT_FAT};
static const struct check_options options;
static struct check_outcome outcome;
static struct trial trial;

static double *random_rows(int64_t count, uint64_t stream)
{
	struct random r;
	double *x = malloc((size_t)count * sizeof *x);
	random_begin(&r, 1, stream);
	for (int64_t i = 0; i < count; i++)
		x[i] = number_round(random_normal(&r), spec.dtype == DTYPE_BF16);
	return x;
}

/* A dense tensor becomes the image of a buffer. */
static void tensor_put(int id, const double *from)
{
	struct tensor *t = &trial.t[id];
	t->used = true;
	t->layout = (struct layout){.batch = shape.batch,
	                            .heads = tensor_is_key_side(id) ? shape.heads_kv : shape.heads_q,
	                            .seq = tensor_is_key_side(id) ? shape.seqlen_k : shape.seqlen_q,
	                            .dim = tensor_is_float(id) ? 1 : 16,
	                            .bytes = tensor_is_float(id) ? 4 : 2};
	layout_make(&t->layout, shape.layout, (enum tensor_id)id);
	t->host = malloc((size_t)(t->layout.elements * t->layout.bytes));
	for (int64_t b = 0; b < t->layout.batch; b++)
		for (int64_t h = 0; h < t->layout.heads; h++)
			for (int64_t s = 0; s < t->layout.seq; s++)
				for (int d = 0; d < t->layout.dim; d++, from++) {
					const int64_t at = layout_index(&t->layout, b, h, s) + d;
					const float f = (float)*from;
					const uint16_t bits = number_encode(*from, spec.dtype == DTYPE_BF16);
					memcpy(t->host + at * t->layout.bytes,
					       t->layout.bytes == 4 ? (const void *)&f : &bits,
					       (size_t)t->layout.bytes);
				}
}

static void setup(void)
{
	struct diag diag = {0};
	const int64_t n_q = 2 * 4 * 20 * 16, n_k = 2 * 2 * 30 * 16, rows = 2 * 4 * 20;
	ck_assert_msg(!spec_parse(&spec, yaml, strlen(yaml), "t.yaml", &diag), "%s", text_str(&diag.text));
	diag_free(&diag);
	memset(&outcome, 0, sizeof outcome);
	trial = (struct trial){.c = &shape,
	                       .options = &options,
	                       .spec = &spec,
	                       .out = &outcome,
	                       .has_lse = true,
	                       .backward = true,
	                       .grads = true};
	trial.sample.all = true;
	ck_assert_int_eq(ref_program_make(&trial.program, &spec, &diag), 0);
	ck_assert_int_eq(named_make(trial.named, &shape, &spec), 0);
	case_reference(&trial.ref, &shape, &spec, trial.program);
	trial.ref.input = trial.ref_input;
	trial.ref.inputs = spec.input_count;
	double *q = random_rows(n_q, 1), *k = random_rows(n_k, 2), *v = random_rows(n_k, 3),
	       *dout = random_rows(n_q, 4);
	double *grads[SPEC_INPUTS_MAX] = {NULL};
	for (int i = 0; i < spec.input_count; i++) {
		const struct named *n = &trial.named[i];
		trial.ref_input[i] = (struct ref_input){
			.name = n->input->name, .dims = n->input->dims, .data = n->values, .grad = n->input->grad};
		memcpy(trial.ref_input[i].dim, n->size, sizeof n->size);
		if (n->input->grad)
			grads[i] = calloc((size_t)n->elements, sizeof(double));
	}
	struct ref_forward f = {calloc((size_t)n_q, 8), calloc((size_t)rows, 8)};
	struct ref_backward g = {.dquery = calloc((size_t)n_q, 8),
	                         .dkey = calloc((size_t)n_k, 8),
	                         .dvalue = calloc((size_t)n_k, 8),
	                         .input_grad = grads};
	ref_attention_forward(&f, &trial.ref, q, k, v);
	ref_attention_backward(&g, &trial.ref, q, k, v, dout, NULL);
	tensor_put(TENSOR_QUERY, q), tensor_put(TENSOR_KEY, k), tensor_put(TENSOR_VALUE, v),
		tensor_put(TENSOR_DOUT, dout);
	tensor_put(TENSOR_OUT, f.out), tensor_put(TENSOR_LSE, f.lse);
	tensor_put(TENSOR_DQUERY, g.dquery), tensor_put(TENSOR_DKEY, g.dkey), tensor_put(TENSOR_DVALUE, g.dvalue);
	for (int i = 0; i < spec.input_count; i++) {
		const struct named *n = &trial.named[i];
		if (!grads[i])
			continue;
		trial.named_device[i].got = calloc((size_t)n->grad_at.elements, 4);
		for (int64_t e = 0; e < n->elements; e++) {
			const float x = (float)grads[i][e];
			memcpy(trial.named_device[i].got + placed_index(&n->grad_at, n, e) * 4, &x, 4);
		}
		free(grads[i]);
	}
	free(q), free(k), free(v), free(dout), free(f.out), free(f.lse), free(g.dquery), free(g.dkey), free(g.dvalue);
}

static void teardown(void)
{
	for (int id = 0; id < TENSOR_COUNT; id++)
		free(trial.t[id].host);
	for (int i = 0; i < SPEC_INPUTS_MAX; i++)
		free(trial.named_device[i].got);
	named_free(trial.named);
	ref_program_free(trial.program);
	diag_free(&trial.diag);
}

START_TEST(the_reference_passes)
{
	ck_assert_msg(!judge_cpu(&trial), "%s", outcome.text);
	ck_assert_int_eq(outcome.tensor_count, 7); /* out, lse, three gradients, dbias, dsink */
	ck_assert_str_eq(outcome.tensor[5].name, "dbias");
	ck_assert_str_eq(outcome.tensor[6].name, "dsink");
	for (int i = 0; i < 7; i++)
		ck_assert(outcome.tensor[i].worst <= outcome.tensor[i].bound && outcome.tensor[i].bound < 0.2);
}
END_TEST

static const struct {
	int tensor;
	const char *name;
} spoilt[] = {
	{TENSOR_OUT, "out"},   {TENSOR_LSE, "lse"},       {TENSOR_DQUERY, "dquery"},
	{TENSOR_DKEY, "dkey"}, {TENSOR_DVALUE, "dvalue"},
};

START_TEST(a_wrong_element_is_named)
{
	const struct tensor *t = &trial.t[spoilt[_i].tensor];
	unsigned char *element = t->host + layout_index(&t->layout, 1, 1, 13) * t->layout.bytes;
	element[t->layout.bytes - 1] ^= 0x40; /* an exponent bit */
	ck_assert_int_eq(judge_cpu(&trial), -1);
	ck_assert_int_eq(outcome.status, CHECK_WRONG);
	ck_assert_msg(!strncmp(outcome.text, spoilt[_i].name, strlen(spoilt[_i].name)), "%s", outcome.text);
}
END_TEST

START_TEST(a_wrong_gradient_of_an_input_is_named)
{
	const char *name = _i ? "sink" : "bias";
	const int i = spec_input_find(&spec, name);
	ck_assert_int_ge(i, 0);
	float *got = (float *)(void *)(trial.named_device[i].got +
	                               placed_index(&trial.named[i].grad_at, &trial.named[i], 2) * 4);
	*got += 0.3f;
	ck_assert_int_eq(judge_cpu(&trial), -1);
	ck_assert_msg(outcome.text[0] == 'd' && !strncmp(outcome.text + 1, name, 4), "%s", outcome.text);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("judge");
	TCase *t = tcase_create("judge");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, the_reference_passes);
	tcase_add_loop_test(t, a_wrong_element_is_named, 0, sizeof spoilt / sizeof *spoilt);
	tcase_add_loop_test(t, a_wrong_gradient_of_an_input_is_named, 0, 2);
	suite_add_tcase(s, t);
	return s;
}
