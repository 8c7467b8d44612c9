/* What fagen_spec_describe and fagen_spec_input tell of specs. No driver is needed. */
#include <check.h>
#include <stddef.h>
#include <string.h>

#include "runtime/fagen.h"

Suite *suite(void);

static fagen_runtime *rt;
static fagen_error error;

static void setup(void)
{
	const fagen_config config = {.struct_size = sizeof config, .ignore_env = 1, .cache_dir = ""};
	error = (fagen_error){.struct_size = sizeof error};
	ck_assert_msg(!fagen_open(&rt, &config, &error), "%s", error.message);
}

static void teardown(void) { fagen_close(rt); }

static const fagen_spec *parse(const char *yaml)
{
	fagen_spec *spec;
	ck_assert_msg(!fagen_spec_parse(&spec, rt, yaml, strlen(yaml), "t.yaml", &error), "%s", error.message);
	return spec;
}

static fagen_spec_info describe(const fagen_spec *spec)
{
	fagen_spec_info info = {.struct_size = sizeof info};
	ck_assert_int_eq(fagen_spec_describe(&info, spec, &error), FAGEN_OK);
	return info;
}

static fagen_input_info input(const fagen_spec *spec, size_t i)
{
	fagen_input_info info = {.struct_size = sizeof info};
	ck_assert_msg(!fagen_spec_input(&info, spec, i, &error), "%s", error.message);
	return info;
}

START_TEST(a_plain_spec)
{
	const fagen_spec_info info = describe(parse("head_dim: 64"));
	ck_assert(info.head_dim_qk == 64 && info.head_dim_v == 64 && info.dtype == FAGEN_BF16);
	ck_assert(info.layout == FAGEN_DENSE && info.kv_group == 1 && !info.backward && !info.lse);
	ck_assert(!info.block_q && !info.block_k && info.dropout <= 0 && info.input_count == 0);
}
END_TEST

START_TEST(a_spec_with_everything)
{
	const fagen_spec *spec =
		parse("head_dim: {qk: 192, v: 128}\ndtype: fp16\nlayout: packed\nkv_group: any\ndropout: 0.1\n"
	              "mask: document\nblocks: {size: {q: 64, k: 128}, from: lists}\n"
	              "score: \"s + rel[h, (q - k) % 9] * gate[b, h / (hq / hk), k]\"\n"
	              "inputs: {rel: {dtype: f32, shape: [heads, 9], grad: true},\n"
	              "         gate: {dtype: bf16, shape: [batch, heads_kv, seq_k]}}\n"
	              "passes: [forward, backward]");
	const fagen_spec_info info = describe(spec);
	ck_assert(info.head_dim_qk == 192 && info.head_dim_v == 128 && info.dtype == FAGEN_FP16);
	ck_assert(info.layout == FAGEN_PACKED && info.kv_group == 0 && info.backward && info.lse);
	ck_assert(info.block_q == 64 && info.block_k == 128);
	ck_assert_double_eq_tol(info.dropout, 26.0 / 256, 1e-12); /* 0.1 in steps of 1/256 */
	ck_assert_uint_eq(info.input_count, 5);

	const fagen_input_info rel = input(spec, 0), gate = input(spec, 1);
	ck_assert_str_eq(rel.name, "rel");
	ck_assert(rel.dtype == FAGEN_FLOAT32 && rel.grad && rel.dims == 2);
	ck_assert(rel.dim[0] == FAGEN_DIM_HEADS && rel.dim[1] == FAGEN_DIM_NUMBER && rel.size[1] == 9);
	ck_assert_str_eq(gate.name, "gate");
	ck_assert(gate.dtype == FAGEN_BF16 && !gate.grad && gate.dims == 3);
	ck_assert(gate.dim[0] == FAGEN_DIM_BATCH && gate.dim[1] == FAGEN_DIM_HEADS_KV &&
	          gate.dim[2] == FAGEN_DIM_SEQ_K);
	int seen = 0;
	for (size_t i = 2; i < info.input_count; i++) {
		const fagen_input_info in = input(spec, i);
		ck_assert_int_eq(in.dtype, FAGEN_INT32);
		seen += !strcmp(in.name, "doc") && in.dims == 2;
		seen += !strcmp(in.name, "block_count") && in.dims == 3 && in.dim[2] == FAGEN_DIM_BLOCKS_Q;
		seen += !strcmp(in.name, "block_index") && in.dims == 4 && in.dim[3] == FAGEN_DIM_BLOCKS_K;
	}
	ck_assert_int_eq(seen, 3);
}
END_TEST

START_TEST(bytes_of_inputs)
{
	const fagen_spec *spec = parse(
		"head_dim: 64\nlayout: padded\nblocks: {size: 64, from: bitmap}\nsink: true\npasses: [forward, backward]");
	ck_assert_int_eq(describe(spec).layout, FAGEN_PADDED);
	for (size_t i = 0; i < 2; i++) {
		const fagen_input_info in = input(spec, i);
		const int sink = !strcmp(in.name, "sink");
		ck_assert_int_eq(in.dtype, sink ? FAGEN_FLOAT32 : FAGEN_UINT8);
		ck_assert_int_eq(in.grad != 0, sink);
	}
}
END_TEST

START_TEST(what_is_refused)
{
	const fagen_spec *spec = parse("head_dim: 64\nmask: document");
	fagen_input_info in = {.struct_size = sizeof in};
	ck_assert_int_eq(fagen_spec_input(&in, spec, 1, &error), FAGEN_ERROR_INVALID);
	ck_assert_str_eq(error.field, "index");
	ck_assert_ptr_nonnull(strstr(error.message, "the spec has 1 input"));
	in.struct_size = 0;
	ck_assert_int_eq(fagen_spec_input(&in, spec, 0, &error), FAGEN_ERROR_INVALID);
	ck_assert_ptr_nonnull(strstr(error.message, "fagen_input_info"));
	fagen_spec_info info;
	memset(&info, 0xAB, sizeof info);
	info.struct_size = offsetof(fagen_spec_info, dtype); /* an older caller */
	ck_assert_int_eq(fagen_spec_describe(&info, spec, NULL), FAGEN_OK);
	ck_assert_int_eq(info.head_dim_v, 64);
	ck_assert_int_eq(info.dtype, (int)0xABABABABu);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("describe");
	TCase *t = tcase_create("describe");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_plain_spec);
	tcase_add_test(t, a_spec_with_everything);
	tcase_add_test(t, bytes_of_inputs);
	tcase_add_test(t, what_is_refused);
	suite_add_tcase(s, t);
	return s;
}
