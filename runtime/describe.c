/* describe: what a caller must know of a spec to launch its kernels. */
#include <string.h>

#include "runtime/kernel.h"

static const int32_t input_dtypes[INPUT_DTYPE_COUNT] = {[INPUT_F32] = FAGEN_FLOAT32,
                                                        [INPUT_FP16] = FAGEN_FP16,
                                                        [INPUT_BF16] = FAGEN_BF16,
                                                        [INPUT_I32] = FAGEN_INT32,
                                                        [INPUT_U8] = FAGEN_UINT8};
static const int32_t layouts[] = {
	[LAYOUT_DENSE] = FAGEN_DENSE, [LAYOUT_PADDED] = FAGEN_PADDED, [LAYOUT_PACKED] = FAGEN_PACKED};
static const int32_t dims[DIM_KIND_COUNT] = {
	[DIM_CONST] = FAGEN_DIM_NUMBER,      [DIM_BATCH] = FAGEN_DIM_BATCH,      [DIM_HEADS] = FAGEN_DIM_HEADS,
	[DIM_HEADS_KV] = FAGEN_DIM_HEADS_KV, [DIM_SEQ_Q] = FAGEN_DIM_SEQ_Q,      [DIM_SEQ_K] = FAGEN_DIM_SEQ_K,
	[DIM_BLOCKS_Q] = FAGEN_DIM_BLOCKS_Q, [DIM_BLOCKS_K] = FAGEN_DIM_BLOCKS_K};
_Static_assert(sizeof((fagen_input_info *)0)->name == INPUT_NAME_MAX, "a name fits");
_Static_assert(sizeof((fagen_input_info *)0)->dim / sizeof(int32_t) == INPUT_DIMS_MAX, "dimensions fit");

static int info_give(void *out, const void *info, size_t size, const char *name, fagen_error *error)
{
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	if (!struct_give(out, info, size))
		return FAGEN_OK;
	fault_fail(&f, FAGEN_ERROR_INVALID, "struct_size",
	           "info.struct_size is not set: it says which version of struct %s the caller has.", name);
	return fault_report(error, &f);
}

int fagen_spec_describe(fagen_spec_info *out, const fagen_spec *given, fagen_error *error)
{
	const struct spec *spec = &given->spec;
	const bool blocks = spec->blocks.source != BLOCKS_NONE;
	const fagen_spec_info info = {.head_dim_qk = spec->head_dim_qk,
	                              .head_dim_v = spec->head_dim_v,
	                              .dtype = spec->dtype == DTYPE_BF16 ? FAGEN_BF16 : FAGEN_FP16,
	                              .layout = layouts[spec->layout],
	                              .kv_group = spec->kv_group,
	                              .backward = spec->passes[PASS_BACKWARD],
	                              .lse = (spec->outputs & OUTPUT_LSE) != 0,
	                              .block_q = blocks ? spec->blocks.size_q : 0,
	                              .block_k = blocks ? spec->blocks.size_k : 0,
	                              .dropout = 1 - spec->keep_256 / (double)DROPOUT_LEVELS,
	                              .input_count = (size_t)spec->input_count};
	fault_clear(error);
	return info_give(out, &info, sizeof info, "fagen_spec_info", error);
}

int fagen_spec_input(fagen_input_info *out, const fagen_spec *given, size_t index, fagen_error *error)
{
	const struct spec *spec = &given->spec;
	fault_clear(error);
	if (index >= (size_t)spec->input_count) {
		struct diag diag = {0};
		struct fault f = {.diag = &diag};
		fault_fail(&f, FAGEN_ERROR_INVALID, "index",
		           "index is %zu, but the spec has %d input%s, counted from 0.", index, spec->input_count,
		           spec->input_count == 1 ? "" : "s");
		return fault_report(error, &f);
	}
	const struct input *input = &spec->input[index];
	fagen_input_info info = {.dtype = input_dtypes[input->dtype], .grad = input->grad, .dims = input->dims};
	memcpy(info.name, input->name, sizeof info.name);
	for (int d = 0; d < input->dims; d++) {
		info.dim[d] = dims[input->dim[d].kind];
		info.size[d] = input->dim[d].kind == DIM_CONST ? input->dim[d].size : 0;
	}
	return info_give(out, &info, sizeof info, "fagen_input_info", error);
}
