/* All specs over lengths, heads, layouts and inputs; and the field cases that are a case of their own. */
#include <stdio.h>
#include <string.h>

#include "tests/gpu/suite.h"
#include "tests/language.h"

/* Specs that are more than a plain mask: fewer shapes, what they are about is in suite_language. */
static void language_shapes(struct suite *s, const char *name, int index, int group)
{
	static const int lengths[][2] = {{1, 1}, {1, 300}, {333, 333}, {129, 500}, {500, 129}, {0, 64}};
	for (int i = 0; i < 6; i++)
		suite_case(s, CLASS_SHAPES, name, "b2,h%d/2,q%d,k%d,seed%d", 2 * group, lengths[i][0], lengths[i][1], i + 1);
	suite_case(s, CLASS_HEADS, name, "b3,h%d/3,q65,k100,seed5", 3 * group);
	suite_case(s, CLASS_LAYOUTS, name, "b2,h%d/2,q150,k170,%s,seed%d", 2 * group, layout_names[index % LAYOUT_COUNT], index);
	suite_case(s, CLASS_INPUTS, name, "b2,h%d/2,q200,k200,%s,seed%d", 2 * group, input_names[index % INPUT_HARD], index);
}

static void spec_shapes(struct suite *s, const char *name, int index)
{
	const fagen_spec *loaded = suite_spec(s, CLASS_SHAPES, name);
	if (!loaded)
		return;
	const struct spec *spec = runtime_spec(loaded);
	if (spec_is_language(spec)) {
		language_shapes(s, name, index, spec->kv_group ? spec->kv_group : 2);
		return;
	}
	fagen_kernel *kernel = NULL;
	fagen_kernel_info info = {.struct_size = sizeof info};
	fagen_error error = {.struct_size = sizeof error};
	int m = 128, n = 64;
	if (!s->warming && (!s->only_class || !strcmp(s->only_class, class_names[CLASS_SHAPES]))) {
		if (fagen_kernel_get(&kernel, s->rt, loaded,
		                     &(fagen_problem){.struct_size = sizeof(fagen_problem), .align = 16},
		                     s->options.device, &error) ||
		    fagen_kernel_describe(&info, kernel, &error)) {
			suite_result(s, CLASS_SHAPES, false, name, error.message);
			return;
		}
		m = info.tile_m[0];
		n = info.tile_n[0];
	}
	const int back_m = info.backward && info.tile_m[1] > 0 ? info.tile_m[1] : m,
		  back_n = info.backward && info.tile_n[1] > 0 ? info.tile_n[1] : n;
	const int64_t group = spec->kv_group ? spec->kv_group : 2;
	const int64_t lengths[][2] = {
		{1, 1},
		{m - 1, n - 1},
		{m, n},
		{m + 1, n + 1},
		{back_m - 1, back_n + 1},
		{back_m + 1, back_n - 1},
		{1, 3 * n + 5},
		{m + 1, 3 * n + 7},
		{3 * m + 7, n + 1},
		{0, n},
		{m, 0},
		{9, 9},
		{333, 333},
		{1001, 503},
		{198, 198},
		{2 * n + 3, 2 * n + 3},
		{129, 64},
		{503, 1001},
	};
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
		suite_case(s, CLASS_SHAPES, name, "b2,h%d/2,q%d,k%d,%s,%s,seed%d", (int)(2 * group), (int)lengths[i][0],
		           (int)lengths[i][1], input_names[i % 3], layout_names[(i + (size_t)index) % 4], (int)i + 1);

	const int ratios[] = {1, 3, 5, 7, 8};
	suite_case(s, CLASS_HEADS, name, "b1,h%d/1,q130,k130,seed3", (int)group);
	suite_case(s, CLASS_HEADS, name, "b3,h%d/11,q65,k100,seed5", (int)(11 * group));
	for (int i = 0; i < 5 && !spec->kv_group; i++)
		suite_case(s, CLASS_HEADS, name, "b2,h%d/3,q77,k150,bshd,seed%d", 3 * ratios[i], i + 1);
	for (int l = 0; l < LAYOUT_COUNT; l++) {
		suite_case(s, CLASS_LAYOUTS, name, "b2,h%d/2,q150,k170,%s,seed%d", (int)(2 * group), layout_names[l],
		           l + 1);
		suite_case(s, CLASS_LAYOUTS, name, "b1,h%d/1,q1,k67,%s,seed%d", (int)group, layout_names[l], l + 2);
	}
	for (int k = 0; k < INPUT_HARD; k++)
		suite_case(s, CLASS_INPUTS, name, "b2,h%d/2,q200,k200,%s,seed%d", (int)(2 * group), input_names[k],
		           k + 1);
	suite_case(s, CLASS_INPUTS, name, "b1,h%d/1,q513,k600,outlier,seed9", (int)group);
	suite_case(s, CLASS_INPUTS, name, "b1,h%d/1,q300,k257,huge,fat,seed9", (int)group);
	suite_case(s, CLASS_INPUTS, name, "b1,h%d/1,q257,k300,lowrank,odd,seed8", (int)group);
}

void suite_shapes(struct suite *s, const char *const *specs, int count)
{
	for (int i = 0; i < count; i++)
		spec_shapes(s, specs[i], i);
	for (int i = 0; i < count && !s->warming; i++) {
		const fagen_spec *loaded = suite_spec(s, CLASS_LARGE, specs[i]);
		if (!loaded)
			continue;
		const int group = runtime_spec(loaded)->kv_group ? runtime_spec(loaded)->kv_group : 2;
		const int length = spec_is_language(runtime_spec(loaded)) ? 2100 : 4300;
		suite_case(s, CLASS_LARGE, specs[i], "b1,h%d/2,q%d,k%d,bshd,seed%d", 2 * group, length, length, i + 1);
		s->options.naive = true;
		suite_case(s, CLASS_NAIVE, specs[i], "b2,h%d/2,q%d,k%d,%s,%s,seed%d", 2 * group, 65 + i, 130 - i,
		           input_names[i % 4], layout_names[i % LAYOUT_COUNT], i + 1);
		suite_case(s, CLASS_NAIVE, specs[i], "b1,h%d/1,q%d,k%d,seed%d", group, i % 2 ? 0 : 40, i % 2 ? 40 : 0,
		           i + 1);
		s->options.naive = false;
	}
	for (int i = 0; i < count && !s->warming; i += 4) {
		const fagen_spec *loaded = suite_spec(s, CLASS_PLANNED, specs[i]);
		if (!loaded)
			continue;
		const int group = runtime_spec(loaded)->kv_group ? runtime_spec(loaded)->kv_group : 2;
		suite_case(s, CLASS_PLANNED, specs[i], "b1,h%d/1,q1,k1000,planned,seed1", group);
		suite_case(s, CLASS_PLANNED, specs[i], "b4,h%d/4,q100,k100,planned,seed2", 4 * group);
		suite_case(s, CLASS_PLANNED, specs[i], "b1,h%d/2,q900,k70,planned,seed3", 2 * group);
	}
}

#define BOTH "passes: [forward, backward]"
#define CAUSAL64 "{head_dim: 64, mask: causal, " BOTH "}"
#define FULL64 "{head_dim: 64, " BOTH "}"
#define CAUSAL128 "{head_dim: 128, mask: causal, " BOTH "}"
#define HALF_CAUSAL64 "{head_dim: 64, dtype: fp16, mask: causal, " BOTH "}"
#define HALF_FULL64 "{head_dim: 64, dtype: fp16, " BOTH "}"

static const struct {
	enum class class;
	const char *id, *spec, *parts;
} field_cases[] = {
	{CLASS_MSK, "MSK-01", "{head_dim: 16, dtype: fp16, mask: causal, " BOTH "}", "b1,h1,q8,k4"},
	{CLASS_MSK, "MSK-04", CAUSAL64, "b1,h2,q1,k5"},
	{CLASS_MSK, "MSK-04", CAUSAL64, "b1,h2,q2,k7"},
	{CLASS_MSK, "MSK-05", CAUSAL64, "b1,h1,q2,k5"},
	{CLASS_MSK, "MSK-05", "{head_dim: 64, mask: causal_top_left, " BOTH "}", "b1,h1,q2,k5"},
	{CLASS_MSK, "MSK-06", HALF_CAUSAL64, "b1,h2,q16,k80"},
	{CLASS_MSK, "MSK-06", HALF_CAUSAL64, "b1,h2,q80,k16"},
	{CLASS_MSK, "MSK-08", HALF_FULL64, "b1,h2,q100,k300"},
	{CLASS_MSK, "MSK-09", HALF_CAUSAL64, "b1,h2,q1,k2048"},
	{CLASS_MSK, "MSK-09", HALF_CAUSAL64, "b1,h2,q16,k2048"},
	{CLASS_MSK, "MSK-09", HALF_CAUSAL64, "b1,h2,q127,k2048"},
	{CLASS_MSK, "MSK-09", HALF_FULL64, "b1,h2,q1,k2048"},
	{CLASS_MSK, "MSK-09", HALF_FULL64, "b1,h2,q16,k2048"},
	{CLASS_MSK, "MSK-09", HALF_FULL64, "b1,h2,q127,k2048"},
	{CLASS_MSK, "MSK-10", HALF_FULL64, "b2,h2,q64,k192"},
	{CLASS_MSK, "MSK-10", HALF_FULL64, "b2,h2,q192,k64"},
	{CLASS_MSK, "WIN-05", "{head_dim: 64, mask: {all: [causal, {window: {left: 4096, right: 0}}]}, " BOTH "}",
         "b1,h2,q32,k32"},
	{CLASS_MSK, "WIN-09", "{head_dim: 64, mask: {window: {left: 32, right: 64}}, " BOTH "}", "b1,h2,q129,k64"},
	{CLASS_MSK, "WIN-10", "{head_dim: 64, mask: {window: {left: 512, right: 0}}, " BOTH "}", "b1,h2,q1,k16384"},
	{CLASS_MSK, "WIN-04", "{head_dim: 128, mask: {window: {left: 299, right: 0}}, " BOTH "}", "b1,h2,q300,k300"},
	{CLASS_MSK, "WIN", "{head_dim: 64, mask: {window: {left: 3, right: 5}}, " BOTH "}", "b1,h2,q301,k277"},
	{CLASS_TAIL, "TAIL-01", "{head_dim: 16, dtype: fp16, " BOTH "}", "b1,h1,q1,k1"},
	{CLASS_TAIL, "TAIL-04", CAUSAL128, "b2,h4,q65,k65"},
	{CLASS_TAIL, "TAIL-04", CAUSAL128, "b2,h4,q97,k97"},
	{CLASS_TAIL, "TAIL-04", CAUSAL128, "b2,h4,q130,k130"},
	{CLASS_TAIL, "TAIL-04", CAUSAL128, "b2,h4,q1000,k1000"},
	{CLASS_TAIL, "TAIL-05",
         "{head_dim: 64, mask: {all: [causal, {window: {left: 700, right: 0}}]}, dropout: 0.1, " BOTH "}",
         "b1,h1,q1025,k1025"},
	{CLASS_TAIL, "TAIL-10", CAUSAL128, "b1,h2,q198,k198"},
	{CLASS_TAIL, "TAIL-10", "{head_dim: 128, " BOTH "}", "b1,h2,q5,k198"},
	{CLASS_TAIL, "TAIL-11", "{head_dim: 64, mask: causal, kv_group: 4, " BOTH "}", "b1,h8/2,q100,k100"},
	{CLASS_TAIL, "TAIL-11", "{head_dim: 64, mask: causal, kv_group: 4, " BOTH "}", "b1,h8/2,q37,k37"},
	{CLASS_LAY, "LAY-03", FULL64, "b1,h1,q2,k3,size1"},
	{CLASS_LAY, "LAY-03", FULL64, "b1,h4,q1,k1,size1"},
	{CLASS_LAY, "LAY-03", FULL64, "b4,h1,q70,k70,size1"},
	{CLASS_LAY, "LAY-05", "{head_dim: 128, " BOTH "}", "b1,h16,q62,k62,mixed"},
	{CLASS_LAY, "LAY-06", HALF_FULL64, "b2,h3,q128,k128,mixed"},
	{CLASS_LAY, "LAY-09", FULL64, "b1,h2,q3,k5,odd"},
	{CLASS_HD, "HD-07", "{head_dim: {qk: 128, v: 96}, mask: causal, " BOTH "}", "b1,h4,q200,k200"},
	{CLASS_HD, "HD-07", "{head_dim: {qk: 128, v: 72}, mask: causal, " BOTH "}", "b1,h4,q200,k200"},
	{CLASS_HD, "HD-07", "{head_dim: {qk: 128, v: 40}, mask: causal, " BOTH "}", "b1,h4,q200,k200"},
	{CLASS_HD, "HD-07", "{head_dim: {qk: 192, v: 128}, mask: causal, " BOTH "}", "b1,h4,q200,k200"},
	{CLASS_HD, "HD-08", "{head_dim: {qk: 64, v: 128}, kv_group: any, " BOTH "}", "b1,h12/2,q150,k150"},
	{CLASS_HD, "HD-08", "{head_dim: {qk: 64, v: 128}, kv_group: any, " BOTH "}", "b1,h4/2,q150,k150"},
	{CLASS_HD, "HD-11", "{head_dim: 160, " BOTH "}", "b1,h2,q150,k150"},
	{CLASS_HD, "HD-12", "{head_dim: 256, mask: causal, kv_group: 8, " BOTH "}", "b2,h16/2,q512,k512,outlier"},
	{CLASS_HD, "HD-12", "{head_dim: 256, mask: causal, kv_group: 8, " BOTH "}", "b2,h16/2,q512,k512,lowrank,seed2"},
	{CLASS_HD, "HD", "{head_dim: 256, " BOTH "}", "b1,h2,q200,k64"}, /* pairs of CTAs, one of which has no key */
	{CLASS_HD, "HD", "{head_dim: 256, " BOTH "}", "b1,h2,q64,k1"},
	{CLASS_HD, "HD", "{head_dim: 256, mask: \"k + 200 <= q\", " BOTH "}", "b1,h2,q300,k300"}, /* and of which neither has a query */
	{CLASS_HD, "HD", "{head_dim: 192, layout: packed, mask: causal, kv_group: 2, dropout: 0.2, " BOTH "}", "b4,h4/2,q300,k300"},
	{CLASS_HD, "HD", "{head_dim: {qk: 256, v: 64}, layout: padded, sink: true, " BOTH "}", "b3,h3,q200,k330"},
	{CLASS_HD, "HD", "{head_dim: {qk: 72, v: 200}, score: alibi, kv_group: 3, " BOTH "}", "b2,h6/2,q200,k300"},
	{CLASS_HD, "HD", "{head_dim: 136, mask: {all: [causal, document]}, score: {softcap: {cap: 8}}, " BOTH "}", "b2,h2,q500,k500"},
	{CLASS_HD, "HD", "{head_dim: {qk: 248, v: 136}, dtype: fp16, blocks: {size: 32, keep: {random: {seed: 3, chance: 0.5}}}, " BOTH "}",
         "b1,h3,q400,k400"},
	{CLASS_HD, "HD-13", "{head_dim: 16, kv_group: any, " BOTH "}", "b1,h12/2,q1,k4096"},
	{CLASS_HD, "HD-14", "{head_dim: 128, kv_group: any, " BOTH "}", "b1,h40/8,q1,k100"},
	{CLASS_HD, "HD-14", "{head_dim: 128, kv_group: any, " BOTH "}", "b1,h40/8,q64,k100"},
	{CLASS_HD, "HD-14", "{head_dim: 128, kv_group: any, " BOTH "}", "b2,h3/1,q64,k100"},
	{CLASS_HD, "HD-14", "{head_dim: 128, kv_group: 7, " BOTH "}", "b2,h7/1,q64,k100"},
	{CLASS_HD, "HD-16", "{head_dim: 256, kv_group: any, mask: causal, " BOTH "}", "b1,h4/2,q130,k130"},
	{CLASS_HD, "HD-16", "{head_dim: 256, kv_group: any, mask: causal, " BOTH "}", "b1,h6/2,q130,k130"},
	{CLASS_HD, "HD-16", "{head_dim: 256, kv_group: any, mask: causal, " BOTH "}", "b1,h16/1,q130,k130"},
	{CLASS_NUM, "NUM-04", FULL64, "b1,h2,q130,k130,huge"},
	{CLASS_NUM, "NUM-04", HALF_CAUSAL64, "b1,h2,q130,k130,huge,seed2"},
	{CLASS_NUM, "NUM-08", FULL64, "b1,h1,q3,k8,zero"},
	{CLASS_NUM, "NUM-11", HALF_CAUSAL64, "b2,h2,q90,k90,inf"},
	{CLASS_NUM, "NUM-11", HALF_FULL64, "b2,h2,q8,k8,inf"},
	{CLASS_RNG, "RNG-09", "{head_dim: 64, mask: causal, dropout: 0.9, " BOTH "}", "b2,h2,q64,k64"},
	{CLASS_RNG, "RNG-08", "{head_dim: 64, dropout: 0.5, " BOTH "}", "b2,h3,q130,k200,seed2"},
	{CLASS_RNG, "RNG-04", "{head_dim: 128, dropout: 0.17, mask: causal, " BOTH "}", "b2,h2,q300,k300,seed3"},
	{CLASS_RNG, "RNG", "{head_dim: 64, dtype: fp16, dropout: 0.996, " BOTH "}", "b2,h2,q100,k100,seed4"},
};

/* Forms that the portable kernels take for long sequences alone: two warps for the same rows, parts of S, one buffer of Q and dO, or three. */
static const struct {
	const char *head_dim, *tile;
} portable_tiles[] = {
	{"head_dim: 64", "forward: {m: 128, n: 64, warps: 4, stages: 2}, backward: {m: 64, n: 128, warps: 4, stages: 2}"},
	{"head_dim: 64, dtype: fp16", "forward: {m: 128, n: 32, warps: 4, stages: 3}, backward: {m: 64, n: 128, warps: 4, stages: 1}"},
	{"head_dim: 128", "forward: {m: 128, n: 64, warps: 4, stages: 1}, backward: {m: 128, n: 128, warps: 8, stages: 1}"},
	{"head_dim: 96", "forward: {m: 128, n: 64, warps: 4, stages: 1}, backward: {m: 64, n: 128, warps: 8, stages: 3}"},
	{"head_dim: {qk: 72, v: 136}", "forward: {m: 64, n: 64, warps: 4, stages: 2}, backward: {m: 64, n: 64, warps: 8, stages: 1}"},
	{"head_dim: {qk: 160, v: 192}", "forward: {m: 128, n: 128, warps: 8, stages: 1}, backward: {m: 128, n: 64, warps: 8, stages: 1}"},
	{"head_dim: 256", "forward: {m: 128, n: 96, warps: 8, stages: 1}, backward: {m: 128, n: 64, warps: 8, stages: 1}"},
	{"head_dim: 256, dtype: fp16", "forward: {m: 64, n: 64, warps: 4, stages: 1}, backward: {m: 64, n: 64, warps: 8, stages: 1}"},
};
static const struct {
	const char *keys, *parts;
} portable_keys[] = {
	{"", "b1,h2,q300,k900"},
	{"", "b1,h2,q200,k700,rising"},
	{"", "b1,h2,q130,k300,huge"},
	{"mask: causal, sink: true, ", "b1,h2,q333,k444,bshd"},
	{"mask: {all: [causal, document]}, score: alibi, kv_group: 2, ", "b1,h4/2,q400,k400"},
	{"blocks: {size: 32, from: bitmap}, ", "b1,h2,q300,k400,huge"},
	{"layout: packed, mask: {window: {left: 90, right: 20}}, ", "b4,h2,lq130-0-7-300,lk90-9-0-300"},
	{"score: {softcap: {cap: 8}}, ", "b1,h2,q300,k500,odd"},
};

/* Those of them that fill shared memory or registers, with what still fits. */
static const char *const full_keys[] = {
	"head_dim: 256, tile: {forward: {m: 128, n: 128, warps: 8, stages: 1}}",
	"head_dim: 256, mask: causal, score: alibi, tile: {forward: {m: 128, n: 128, warps: 8, stages: 1}}",
	"head_dim: 128, mask: document, tile: {backward: {m: 64, n: 128, warps: 8, stages: 3}}",
	"head_dim: 128, deterministic: true, tile: {backward: {m: 64, n: 128, warps: 8, stages: 3}}",
};
static const char *const full_parts[] = {"b1,h2,q300,k900", "b1,h2,q200,k700,rising", "b1,h2,q130,k300,huge", "b1,h2,q333,k300,odd"};

/* Few tiles, or a few more than run at once: they are cut into parts, backward by the portable kernels, forward by Hopper's. */
static const struct {
	const char *keys, *parts;
} cut_cases[] = {
	{"head_dim: 128, tile: {backward: {m: 64, n: 128, warps: 8, stages: 3}}", "b1,h8,q1024,k2170"},
	{"head_dim: 64, kv_group: 4, dropout: 0.17, tile: {backward: {m: 64, n: 128, warps: 4, stages: 2}}", "b1,h8/2,q1000,k700"},
	{"head_dim: {qk: 192, v: 128}, tile: {backward: {m: 64, n: 64, warps: 8, stages: 1}}", "b1,h2,q2100,k300"},
	{"head_dim: 256, mask: causal, tile: {backward: {m: 128, n: 64, warps: 8, stages: 1}}", "b1,h2,q3000,k400,bshd"},
	{"head_dim: 96, layout: packed, tile: {backward: {m: 64, n: 128, warps: 8, stages: 3}}", "b3,h2,lq1700-0-900,lk300-9-400"},
	{"head_dim: 80, layout: padded, mask: causal, kv_group: 2, tile: {backward: {m: 64, n: 64, warps: 4, stages: 2}}", "b2,h4/2,lq1700-90,lk300-200,q1800,k300"},
};

static const struct {
	const char *keys, *parts;
} cut_forward[] = {
	{"head_dim: 128", "b1,h24,q1000,k1700"},
	{"head_dim: 96, score: alibi, dropout: 0.17, sink: true", "b1,h20,q900,k2500,bshd"},
	{"head_dim: {qk: 192, v: 128}, kv_group: 4", "b2,h16/4,q600,k1900,rising"},
};

void suite_fields(struct suite *s)
{
	for (size_t i = 0; i < sizeof field_cases / sizeof *field_cases; i++)
		suite_case(s, field_cases[i].class, field_cases[i].spec, "%s", field_cases[i].parts);
	for (int n = 1; n <= 300; n++) /* TAIL-04: every length */
		suite_case(s, CLASS_TAIL, n % 2 ? CAUSAL128 : CAUSAL64, "b1,h1,q%d,k%d,seed%d", n, n, n);
	for (int n = 1; n <= 130; n += 3)
		suite_case(s, CLASS_TAIL, FULL64, "b1,h1,q%d,k%d,seed%d", 131 - n, n, n);
	s->options.poison_shared = true; /* TAIL-06 */
	suite_case(s, CLASS_TAIL, CAUSAL64, "b1,h2,q9,k9");
	suite_case(s, CLASS_TAIL, FULL64, "b1,h2,q1001,k503");
	suite_case(s, CLASS_TAIL, "{head_dim: 72, " BOTH "}", "b1,h2,q67,k93,odd");
	suite_case(s, CLASS_TAIL, CAUSAL128, "b1,h2,q67,k93");
	s->options.poison_shared = false;
	char spec[CASE_NAME_MAX];
	for (int d = HEAD_DIM_MIN; d <= HEAD_DIM_MAX; d += HEAD_DIM_STEP) { /* HD-15: whatever is accepted works */
		snprintf(spec, sizeof spec, "{head_dim: %d, dtype: %s, mask: causal, kv_group: any, " BOTH "}", d,
		         d % 16 ? "fp16" : "bf16");
		suite_case(s, CLASS_HD, spec, "b1,h6/2,q100,k140,seed%d", d);
		if (d % 40 == 0)
			suite_case(s, CLASS_HD, spec, "b1,h6/2,q100,k140,odd,seed%d", d);
	}
	static const int tiles[][2] = {{64, 32}, {64, 64}, {64, 128}, {128, 32}, {128, 64}, {128, 128}, {32, 16}};
	for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
		snprintf(spec, sizeof spec, "{head_dim: 64, mask: causal, tile: {forward: {m: %d, n: %d}}, " BOTH "}",
		         tiles[i][0], tiles[i][1]);
		suite_case(s, CLASS_TILES, spec, "b1,h2,q333,k300,seed%d", (int)i + 1);
		snprintf(spec, sizeof spec, "{head_dim: 64, dropout: 0.17, tile: {forward: {m: %d, n: %d}}, " BOTH "}",
		         tiles[i][0], tiles[i][1]);
		suite_case(s, CLASS_TILES, spec, "b1,h2,q150,k333,seed%d", (int)i + 1);
	}
	for (size_t i = 0; i < sizeof full_parts / sizeof *full_parts; i++)
		for (size_t k = 0; k < sizeof full_keys / sizeof *full_keys; k++) {
			snprintf(spec, sizeof spec, "{%s, " BOTH "}", full_keys[k]);
			suite_case(s, CLASS_TILES, spec, "%s", full_parts[i]);
		}
	for (size_t i = 0; i < sizeof cut_cases / sizeof *cut_cases; i++) {
		snprintf(spec, sizeof spec, "{%s, " BOTH "}", cut_cases[i].keys);
		suite_case(s, CLASS_TILES, spec, "%s", cut_cases[i].parts);
	}
	for (size_t i = 0; i < sizeof cut_forward / sizeof *cut_forward; i++) {
		snprintf(spec, sizeof spec, "{%s, outputs: [out, lse]}", cut_forward[i].keys);
		suite_case(s, CLASS_TILES, spec, "%s", cut_forward[i].parts);
	}
	static const int backward[][2] = {{64, 64}, {128, 64}, {64, 128}, {32, 64}};
	for (size_t i = 0; i < 2 * sizeof backward / sizeof *backward; i++) {
		snprintf(spec, sizeof spec,
		         "{head_dim: 64, dropout: 0.17, deterministic: %s, tile: {backward: {m: %d, n: %d}}, " BOTH "}",
		         i % 2 ? "true" : "false", backward[i / 2][0], backward[i / 2][1]);
		suite_case(s, CLASS_TILES, spec, "b1,h2,q150,k333,seed%d", (int)i + 1);
	}
	for (size_t i = 0; i < sizeof portable_tiles / sizeof *portable_tiles; i++)
		for (size_t k = 0; k < sizeof portable_keys / sizeof *portable_keys; k++) {
			snprintf(spec, sizeof spec, "{%s, %stile: {%s}, " BOTH "}", portable_tiles[i].head_dim, portable_keys[k].keys,
			         portable_tiles[i].tile);
			suite_case(s, CLASS_TILES, spec, "%s,seed%d", portable_keys[k].parts, (int)(i + k) + 1);
		}
}

/* A few cases that touch every path of the kernels: for compute-sanitizer, and for `make mutate`, where each broken
 * kernel must fail one of them. Each runs as planned, and by a tile that only the portable kernels have. */
void suite_small(struct suite *s)
{
	static const char portable[] = "tile: {forward: {m: 64, n: 64}, backward: {m: 64, n: 64}}, ";
	static const struct {
		const char *spec, *parts;
	} cases[] = {
		{CAUSAL64, "b1,h2,q150,k200"},
		{CAUSAL64, "b1,h2,q200,k150,fat,seed2"},
		{HALF_FULL64, "b2,h2,q64,k192"},
		{HALF_FULL64, "b2,h2,q192,k64"},
		{"{head_dim: 128, mask: causal, kv_group: 2, dropout: 0.2, " BOTH "}", "b1,h4/2,q130,k130,seed3"},
		{"{head_dim: 64, mask: {window: {left: 40, right: 9}}, " BOTH "}", "b1,h2,q200,k190,mixed"},
		{"{head_dim: {qk: 72, v: 40}, kv_group: any, " BOTH "}", "b1,h3/1,q67,k99,odd,seed5"},
		{"{head_dim: 256, mask: causal, " BOTH "}", "b1,h1,q70,k130"},
		{CAUSAL64, "b1,h1,q1,k1"},
		{"{head_dim: 64, mask: causal, score: {softcap: {cap: 5}}, kv_group: 2, dropout: 0.2, deterministic: true, " BOTH "}", "b1,h4/2,q130,k200,seed3"},
		{"{head_dim: 64, layout: packed, kv_group: 2, mask: {window: {left: 40, right: 9}}, deterministic: true, " BOTH "}",
                 "b5,h4/2,lq130-0-7-200-1,lk90-9-0-300-1,q210,k310,seed2"},
		{"{head_dim: 64, layout: padded, mask: {all: [causal, document]}, score: \"s + m[h, q, k]\", inputs: {m: {dtype: f32, shape: "
                 "[heads, seq_q, seq_k]}}, deterministic: true, " BOTH "}",
                 "b4,h2,lq130-0-7-90,lk90-9-0-150,seed3"},
		{FULL64, "b1,h1,q129,k257"}, /* one row and one key past a tile of any size */
		{CAUSAL64, "b1,h1,q130,k0"},
		{FULL64, "b1,h1,q200,k300,huge"},
		{FULL64, "b1,h1,q130,k1100"}, /* long enough to speculate, and to lose */
		{FULL64, "b1,h1,q130,k1100,rising"},
		{"{head_dim: 64, kv_group: 2, mask: {all: [causal, document]}, score: alibi, sink: true, inputs: {slope: {dtype: f32, "
                 "shape: [heads], grad: true}}, " BOTH "}",
                 "b2,h4/2,q200,k300,seed2"},
		{"{head_dim: 64, mask: \"k <= q && q - k < 60 || k < 16\", score: \"s * sigmoid(g[b, h, k]) + r[b, h, q]\", "
                 "inputs: {g: {dtype: f32, shape: [batch, heads, seq_k], grad: true}, r: {dtype: fp16, shape: [batch, heads, "
                 "seq_q], grad: true}}, " BOTH "}",
                 "b1,h2,q333,k300"},
		{"{head_dim: 64, score: bias, blocks: {size: 32, from: lists}, inputs: {bias: {dtype: f32, shape: [batch, heads, "
                 "seq_q, seq_k], grad: true}}, " BOTH "}",
                 "b1,h2,q222,k200,odd,seed3"},
		{"{head_dim: 64, kv_group: any, mask: \"k < n[b, q] && keep[b, k] != 0\", score: t5, blocks: {size: 128, from: bitmap}, inputs: "
                 "{n: {dtype: i32, shape: [batch, seq_q]}, keep: {dtype: u8, shape: [batch, seq_k]}, rel: {dtype: f32, shape: "
                 "[heads, 32], grad: true}}, " BOTH "}",
                 "b2,h4/2,q222,k300,seed3"},
		{"{head_dim: 64, score: \"s + pair[h, q, k]\", inputs: {pair: {dtype: f32, shape: [heads, seq_q, seq_k], grad: true}}, "
                 BOTH "}",
                 "b2,h2,q130,k150"},
		{"{head_dim: 64, layout: packed, mask: causal, kv_group: 2, " BOTH "}", "b5,h4/2,lq130-0-7-200-1,lk90-9-0-300-1,q210,k310,seed2"},
		{"{head_dim: 64, layout: padded, sink: true, " BOTH "}", "b2,h2,lq40-70,lk200-130,q90"}, /* full tiles with rows of padding */
		{"{head_dim: 64, kv_group: 2, score: \"s + r[b, h, k]\", inputs: {r: {dtype: f32, shape: [batch, heads, seq_k]}}, " BOTH "}",
                 "b1,h4/2,q130,k150,seed2"}, /* inputs of keys change with the head that a CTA turns to */
		{"{head_dim: 64, layout: padded, mask: {all: [causal, document]}, score: \"s + m[h, q, k]\", inputs: {m: {dtype: f32, shape: "
                 "[heads, seq_q, seq_k], grad: true}}, " BOTH "}",
                 "b4,h2,lq130-0-7-90,lk90-9-0-150,seed3"},
		{"{head_dim: 64, mask: \"(q - k) % 3 != 0\", score: [\"s + d[h, q - k + 64]\", {softcap: {cap: 8}}], inputs: {d: "
                 "{dtype: f32, shape: [heads, 129], grad: true}}, " BOTH "}",
                 "b1,h2,q200,k150"},
	};
	s->options.poison_shared = !s->options.no_poison;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char pinned[CASE_NAME_MAX];
		snprintf(pinned, sizeof pinned, "{%s%s", portable, cases[i].spec + 1);
		suite_case(s, CLASS_SHAPES, cases[i].spec, "%s", cases[i].parts);
		suite_case(s, CLASS_SHAPES, pinned, "%s", cases[i].parts);
	}
	suite_split(s);
	suite_shared(s);
	s->options.poison_shared = false;
}
