#include "tests/gpu/ptx.h"

#include <stdio.h>
#include <stdlib.h>

#include "gen/embed.h"
#include "gen/emit.h"

/* Products of every width from the smallest to the largest; head dims of one panel and of many, some cut off in a step of 16
 * or in a panel. */
const struct ptx_shape ptx_shapes[] = {
	{DTYPE_BF16, 16, 16, 16, false},    {DTYPE_BF16, 64, 64, 64, false},    {DTYPE_BF16, 80, 40, 72, false},
	{DTYPE_BF16, 128, 72, 96, false},   {DTYPE_BF16, 192, 128, 128, false}, {DTYPE_BF16, 64, 256, 256, false},
	{DTYPE_FP16, 16, 72, 256, false},   {DTYPE_FP16, 80, 128, 64, false},   {DTYPE_FP16, 192, 40, 72, false},
	{DTYPE_FP16, 176, 192, 16, false},  {DTYPE_BF16, 64, 256, 256, true},   {DTYPE_BF16, 64, 192, 128, true},
	{DTYPE_FP16, 64, 136, 64, true},    {DTYPE_FP16, 64, 72, 200, true},
};
const int ptx_shape_count = sizeof ptx_shapes / sizeof *ptx_shapes;

static int file_add(struct text *out, const char *path, struct diag *diag)
{
	FILE *f = fopen(path, "rb");
	char block[4096];
	if (!f)
		return diag_fail(diag, "%s cannot be read; run this in the root of the repository.", path);
	for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;)
		text_add(out, block, n);
	fclose(f);
	return 0;
}

int ptx_source(struct text *out, const struct ptx_shape *shape, struct diag *diag)
{
	struct spec *spec = calloc(1, sizeof *spec);
	struct plan *plan = calloc(1, sizeof *plan);
	if (!spec || !plan)
		abort();
	plan->pass = PASS_BACKWARD; /* which has every form of product */
	snprintf(plan->templ, sizeof plan->templ, "sm90/%s", shape->pair ? "bwd_pair" : "bwd");
	plan->candidate[0].sums = DQUERY_CLAIMED;
	plan->candidate[0].tile_m = shape->keys;
	spec->head_dim_qk = shape->dim_qk;
	spec->dtype = shape->dtype;
	spec->head_dim_v = shape->dim_v;
	text_addf(out,
	          "#define DEVICE static __device__ __forceinline__\n#pragma nv_diag_suppress 177\n"
	          "constexpr int KEYS = %d, DIM_QK = %d, DIM_V = %d;\n#line 1 \"templates/abi.h\"\n",
	          shape->keys, shape->dim_qk, shape->dim_v);
	int rc = embed_read(out, "abi.h", NULL, diag);
	wgmma_print(out, spec, plan);
	static const char *const parts[] = {"ptx.h", "sm90/ptx.h"};
	for (int i = 0; i < 2 && !rc; i++) {
		text_addf(out, "#line 1 \"templates/%s\"\n", parts[i]);
		rc = embed_read(out, parts[i], NULL, diag);
	}
	const char *const tests = shape->pair ? "tests/gpu/pair.cu" : "tests/gpu/ptx.cu";
	text_addf(out, "#line 1 \"%s\"\n", tests);
	free(plan);
	free(spec);
	return rc ? rc : file_add(out, tests, diag);
}
