/* fagen_open to fagen_close over the real planner, compiler and store, with tests/fake_cuda.c for the driver. */
#if defined(__has_include)
#if __has_include(<cuda.h>)
#include <cuda.h>
#define HAVE_CUDA_H 1
#endif
#endif

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "runtime/kernel.h"
#include "tests/fake_use.h"
#include "tests/folder_help.h"

Suite *suite(void);

/* ---- runtime/dl.h against the toolkit ---- */

#ifdef HAVE_CUDA_H
#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is not " #theirs)
SAME(CU_OK, CUDA_SUCCESS);
SAME(CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(CU_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
SAME(CU_STUB_LIBRARY, CUDA_ERROR_STUB_LIBRARY);
SAME(CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(CU_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME(CU_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE);
SAME(CU_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(CU_INVALID_PTX, CUDA_ERROR_INVALID_PTX);
SAME(CU_UNSUPPORTED_PTX_VERSION, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
SAME(CU_INVALID_SOURCE, CUDA_ERROR_INVALID_SOURCE);
SAME(CU_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(CU_CAPTURE_WRONG_THREAD, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
SAME(CU_ATTRIBUTE_CLOCK_KHZ, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
SAME(CU_ATTRIBUTE_SM_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(CU_ATTRIBUTE_L2_BYTES, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME(CU_ATTRIBUTE_CC_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(CU_ATTRIBUTE_CC_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(CU_ATTRIBUTE_SMEM_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME(CU_KERNEL_MAX_DYNAMIC_SMEM, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(CU_TENSOR_UINT16, CU_TENSOR_MAP_DATA_TYPE_UINT16);
SAME(CU_TENSOR_INTERLEAVE_NONE, CU_TENSOR_MAP_INTERLEAVE_NONE);
SAME(CU_TENSOR_SWIZZLE_128B, CU_TENSOR_MAP_SWIZZLE_128B);
SAME(CU_TENSOR_L2_256B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
SAME(CU_TENSOR_FILL_ZEROS, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
SAME(sizeof(struct fagen_abi_map), sizeof(CUtensorMap));
/* Equal names of the handles' tags and equal widths make each pointer of the table the toolkit's own prototype. */
#define CUDA_CALL(symbol, parameters)                                                                            \
	_Static_assert(                                                                                          \
		__builtin_types_compatible_p(__typeof__(&symbol), __typeof__(((struct cuda_calls *)0)->symbol)), \
		#symbol " has another prototype in cuda.h");
CUDA_CALLS(CUDA_CALL)
CUDA_CALLS_OPTIONAL(CUDA_CALL)
#undef CUDA_CALL
#endif

START_TEST(toolkit_header_agrees)
{
#ifndef HAVE_CUDA_H
	printf("no cuda.h here: runtime/dl.h is not compared with it\n");
#endif
}
END_TEST

/* ---- fixtures ---- */

#define SPEC                                                                          \
	"fagen: 1\nname: t\nhead_dim: 64\ndtype: bf16\nmask: causal\nkv_group: any\n" \
	"assume: {batch: 2, heads: 8, heads_kv: 2, seqlen: 1024}\n"

static char cache[FOLDER_MAX]; /* shared by all tests of the run: each kernel is compiled once */
static struct fake fake;
static fagen_runtime *rt;
static fagen_spec *spec;
static fagen_error error;

static void cache_make(void) { folder_make(cache, "t_runtime"); }
static void cache_remove(void) { folder_remove(cache); }

static fagen_runtime *open_runtime(void)
{
	fagen_runtime *opened = NULL;
	const fagen_config config = {.struct_size = sizeof config, .cache_dir = cache};
	ck_assert_msg(!fagen_open(&opened, &config, &error), "%s", error.message);
	return opened;
}

static fagen_spec *parse(fagen_runtime *runtime, const char *yaml)
{
	fagen_spec *s = NULL;
	ck_assert_msg(!fagen_spec_parse(&s, runtime, yaml, strlen(yaml), "t.yaml", &error), "%s", error.message);
	return s;
}

static fagen_kernel *get(int device)
{
	fagen_kernel *k = NULL;
	ck_assert_msg(!fagen_kernel_get(&k, rt, spec, NULL, device, &error), "%s", error.message);
	ck_assert_ptr_nonnull(k);
	return k;
}

static void open_all(void)
{
	memset(&error, 0, sizeof error);
	error.struct_size = sizeof error;
	rt = open_runtime();
	spec = parse(rt, SPEC);
}

static void setup(void)
{
	fake = fake_open();
	open_all();
}

/* Whatever a test did. */
static void teardown(void)
{
	fagen_close(rt);
	fake_ck_left(&fake);
}

static void ck_says(int code, const char *field, const char *says)
{
	ck_assert_msg(error.code == code, "code %d: %s", error.code, error.message);
	if (field)
		ck_assert_str_eq(error.field, field);
	ck_assert_msg(strstr(error.message, says) != NULL, "\"%s\" is not in: %s", says, error.message);
}

/* ---- without a driver ---- */

START_TEST(opening_and_parsing_load_no_driver)
{
	open_all();
	ck_assert_ptr_null(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
	fagen_close(rt);
	fagen_close(NULL);
}
END_TEST

START_TEST(a_missing_driver_is_said_and_does_no_harm)
{
	void *real = dlopen("libcuda.so.1", RTLD_NOW);
	if (real) {
		printf("this machine has a driver: its absence is not tested\n");
		return;
	}
	open_all();
	fagen_kernel *k = NULL;
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(fagen_kernel_get(&k, rt, spec, NULL, 0, &error), FAGEN_ERROR_DRIVER);
		ck_says(FAGEN_ERROR_DRIVER, "", "There is no NVIDIA driver");
		ck_assert_ptr_null(k);
	}
	fake = fake_open(); /* it appears */
	get(0);
	teardown();
}
END_TEST

START_TEST(an_old_driver_is_named_with_its_version)
{
	fake_library("fake_old");
	open_all();
	fagen_kernel *k = NULL;
	ck_assert_int_eq(fagen_kernel_get(&k, rt, spec, NULL, 0, &error), FAGEN_ERROR_DRIVER);
	ck_says(FAGEN_ERROR_DRIVER, "", "CUDA 11.4");
	ck_says(FAGEN_ERROR_DRIVER, "", "12.0");
	fagen_close(rt);
}
END_TEST

/* ---- getting kernels ---- */

START_TEST(the_first_driver_call_is_in_kernel_get)
{
	ck_assert_int_eq(fake.state->calls, 0);
	get(0);
	ck_assert_int_eq(fake.state->log[0], FAKE_cuInit);
	ck_assert_int_eq(fake_count(&fake, FAKE_cuInit, 0), 1);
}
END_TEST

START_TEST(a_kernel_is_complete_when_it_is_handed_out)
{
	fagen_kernel *k = get(0);
	const struct kernel_pass *pass = &k->pass[PASS_FORWARD];
	int attributes = 0;
	for (int i = 0; i < pass->recipe.kernel_count; i++)
		attributes += pass->recipe.kernel[i].smem_bytes > 0;
	ck_assert_int_eq(fake_count(&fake, FAKE_cuKernelSetAttribute, 0), attributes);
	ck_assert_int_eq(fake_count(&fake, FAKE_cuFuncLoad, 0), pass->recipe.kernel_count);
	ck_assert_int_eq(fake.depth(), 0);
	ck_assert_int_eq(fake.state->pushes, fake.state->pops);
	const int calls = fake.state->calls;
	ck_assert_ptr_eq(get(0), k);
	ck_assert_int_eq(fake.state->calls, calls); /* again: without the driver */

	fagen_kernel_info info = {.struct_size = sizeof info};
	ck_assert_int_eq(fagen_kernel_describe(&info, k, &error), FAGEN_OK);
	ck_assert_str_eq(info.target, "sm_90a");
	ck_assert(info.forward && !info.backward);
	ck_assert(info.registers[0] > 0 && info.tile_m[0] > 0 && info.tile_n[0] > 0 && info.smem_bytes[0] > 0);
	ck_assert(!strcmp(info.source[0], "cache") || !strcmp(info.source[0], "compiled"));
	ck_assert_ptr_nonnull(runtime_plan(k, PASS_FORWARD));
	ck_assert_ptr_null(runtime_plan(k, PASS_BACKWARD));

	uint64_t words[1 << 8] = {0};
	static _Alignas(256) char workspace[1 << 12];
	fagen_args a = {.struct_size = sizeof a, .batch = 1, .heads_q = 4, .heads_kv = 2, .seqlen_q = 1, .seqlen_k = 0};
	a.workspace = workspace, a.workspace_size = sizeof workspace;
	a.query.data = a.out.data = (void *)(((uintptr_t)words + 15) & ~(uintptr_t)15);
	a.query.stride_head = a.out.stride_head = 64;
	ck_assert_msg(!fagen_forward(k, &a, NULL, &error), "%s", error.message);
	ck_assert_int_eq(fake.state->launches, pass->recipe.kernel_count);
}
END_TEST

START_TEST(both_passes_load)
{
	spec = parse(rt, SPEC "passes: [forward, backward]\n");
	fagen_kernel *k = get(0);
	fagen_kernel_info info = {.struct_size = sizeof info};
	ck_assert_int_eq(fagen_kernel_describe(&info, k, NULL), FAGEN_OK);
	ck_assert(info.forward && info.backward && info.registers[1] > 0);
	ck_assert_int_eq(fake.state->libraries, 2);
	size_t bytes = 0;
	const fagen_args a = {
		.struct_size = sizeof a, .batch = 2, .heads_q = 8, .heads_kv = 2, .seqlen_q = 100, .seqlen_k = 100};
	ck_assert_int_eq(fagen_workspace_size(&bytes, k, &a, &error), FAGEN_OK);
	ck_assert_uint_ge(bytes, (size_t)2 * 8 * 100 * 4); /* at least delta */
}
END_TEST

/* Masks that read inputs, a block layout given as lists and a sink with a gradient: every piece of workspace reaches the
 * kernels, in a place of its own. */
START_TEST(inputs_get_their_workspace)
{
	spec = parse(rt, "fagen: 1\nname: t\nhead_dim: 64\nmask: {all: [causal, document]}\nsink: true\n"
	                 "blocks: {size: 64, from: lists}\npasses: [forward, backward]\nkv_group: any\n");
	fagen_kernel *k = get(0);
	enum { BATCH = 2, HEADS = 400, SEQ = 640, BLOCKS = SEQ / 64 }; /* more items than run at a time, which are sorted */
	const fagen_input inputs[] = {
		{.name = "doc", .data = (void *)(uintptr_t)0x1000, .stride = {SEQ, 1}},
		{.name = "sink",
	         .data = (void *)(uintptr_t)0x2000,
	         .stride = {1},
	         .grad = (void *)(uintptr_t)0x3000,
	         .grad_stride = {1}},
		{.name = "block_index", .data = (void *)(uintptr_t)0x4000, .stride = {0, 0, BLOCKS, 1}},
		{.name = "block_count", .data = (void *)(uintptr_t)0x5000, .stride = {0, 0, 1}},
	};
	const fagen_tensor tensor = {(void *)(uintptr_t)0x100000, HEADS * SEQ * 64, SEQ * 64, 64},
			   row = {(void *)(uintptr_t)0x200000, HEADS * SEQ, SEQ, 1};
	fagen_args a = {.struct_size = sizeof a,
	                .batch = BATCH,
	                .heads_q = HEADS,
	                .heads_kv = HEADS,
	                .seqlen_q = SEQ,
	                .seqlen_k = SEQ,
	                .query = tensor,
	                .key = tensor,
	                .value = tensor,
	                .out = tensor,
	                .dout = tensor,
	                .dquery = tensor,
	                .dkey = tensor,
	                .dvalue = tensor,
	                .lse = row,
	                .inputs = inputs,
	                .input_count = 4};
	size_t bytes = 0;
	ck_assert_int_eq(fagen_workspace_size(&bytes, k, &a, &error), FAGEN_OK);
	a.workspace = (void *)(uintptr_t)0x10000000;
	a.workspace_size = bytes;
	for (int pass = 0; pass < PASS_COUNT; pass++) {
		const struct kernel_pass *p = &k->pass[pass];
		const int first = fake.state->launches;
		ck_assert_msg(!(pass ? fagen_backward : fagen_forward)(k, &a, NULL, &error), "%s", error.message);
		ck_assert_int_eq(fake.state->launches - first, p->recipe.kernel_count);
		ck_assert_str_eq(fake.state->launch[first].entry, "fagen_blocks");
		struct fagen_abi abi;
		memcpy(&abi, fake.state->launch[first].params, sizeof abi);
		const struct {
			unsigned long long at;
			bool used;
		} piece[] = {{abi.blocks, true}, {abi.bounds_rows, true},  {abi.bounds_cols, true},  {abi.order, recipe_kernel_find(&p->recipe, "fagen_order")},
		             {abi.delta, pass},  {abi.dquery_accum, pass}, {abi.grad_partial, pass}};
		for (size_t i = 0; i < sizeof piece / sizeof *piece; i++) {
			ck_assert_msg((piece[i].at != 0) == piece[i].used, "piece %zu", i);
			ck_assert(!piece[i].used || (piece[i].at >= 0x10000000 && piece[i].at < 0x10000000 + bytes));
			for (size_t j = 0; j < i; j++)
				ck_assert(!piece[i].used || piece[i].at != piece[j].at);
		}
		const int sink = spec_input_find(&spec->spec, "sink"),
			  lists = spec_input_find(&spec->spec, "block_index");
		ck_assert_uint_eq(abi.input[sink].data, 0x2000);
		ck_assert_uint_eq(abi.input[sink].grad, pass ? 0x3000 : 0);
		ck_assert_uint_eq(abi.input[lists].data, 0x4000);
		ck_assert_int_eq(abi.input[lists].stride[2], BLOCKS);
	}
}
END_TEST

START_TEST(a_class_has_one_kernel)
{
	fagen_kernel *k = get(0), *other = NULL;
	fagen_problem p = {.struct_size = sizeof p, .align = 2};
	ck_assert_msg(!fagen_kernel_get(&other, rt, spec, &p, 0, &error), "%s", error.message);
	ck_assert_ptr_ne(other, k);
	ck_assert_msg(!fagen_kernel_get_naive(&other, rt, spec, NULL, 0, &error), "%s", error.message);
	ck_assert_ptr_ne(other, k);
	/* RT-18: each new length is planned, but what gives the same code is the same kernel. */
	fagen_kernel *naive = other;
	p.align = 16;
	for (p.seqlen_k = 1; p.seqlen_k <= 4000; p.seqlen_k += 123) {
		ck_assert_msg(!fagen_kernel_get_naive(&other, rt, spec, &p, 0, &error), "%s", error.message);
		ck_assert_ptr_eq(other, naive);
	}
	ck_assert_int_eq(fake.state->libraries, 3);
	const int calls = fake.state->calls;
	fagen_spec *twin = parse(rt, SPEC "# the same, once more\n");
	ck_assert_msg(!fagen_kernel_get(&other, rt, twin, NULL, 0, &error), "%s", error.message);
	ck_assert_ptr_eq(other, k);
	ck_assert_int_eq(fake.state->calls, calls);
}
END_TEST

/* How the planner sees a GPU: by the driver's name where the table has it, else by target; SMs always as counted. */
START_TEST(devices_are_recognised)
{
	static const struct {
		struct fake_device gpu;
		const char *name, *target;
	} row[] = {
		{{"NVIDIA H200", 9, 0, 132, 232448}, "H200", "sm_90a"},
		{{"NVIDIA A100-SXM4-80GB", 8, 0, 108, 166912}, "A100", "sm_80"},
		{{"NVIDIA H200 MIG 1g.18gb", 9, 0, 16, 232448}, "H200", "sm_90a"},
		{{"NVIDIA Unheard-of 4070", 8, 9, 46, 101376}, "NVIDIA Unheard-of 4070", "sm_89"},
		{{"NVIDIA H2000", 9, 0, 140, 232448}, "NVIDIA H2000", "sm_90a"},
	};
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		fagen_close(rt);
		fake.state->device[0] = row[i].gpu;
		open_all();
		const struct plan *plan = runtime_plan(get(0), PASS_FORWARD);
		ck_assert_str_eq(plan->device->name, row[i].name);
		ck_assert_int_eq(plan->device->sms, row[i].gpu.sms);
		ck_assert_str_eq(plan->target->name, row[i].target);
	}
}
END_TEST

START_TEST(requests_are_refused_by_name)
{
	static const struct {
		fagen_problem p;
		const char *field, *says;
	} row[] = {
		{{.align = 3}, "problem.align", "16"},
		{{.align = -16}, "problem.align", "16"},
		{{.batch = -1}, "problem.batch", "-1"},
		{{.heads_q = INT64_C(1) << 40}, "problem.heads_q", "1073741824 (2^30)"},
		{{.heads_kv = -2}, "problem.heads_kv", "-2"},
		{{.seqlen_q = INT64_MIN}, "problem.seqlen_q", "0 (as the spec assumes)"},
		{{.seqlen_k = -5}, "problem.seqlen_k", "-5"},
		{{.seqlen_k = LENGTH_MAX + 1LL}, "problem.seqlen_k", "1073741824 (2^30)"},
		{{.heads_q = 7, .heads_kv = 2}, "problem.heads_kv", "same number of query heads"},
	};
	fagen_kernel *k = NULL;
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		fagen_problem p = row[i].p;
		p.struct_size = sizeof p;
		ck_assert_int_eq(fagen_kernel_get(&k, rt, spec, &p, 0, &error), FAGEN_ERROR_INVALID);
		ck_says(FAGEN_ERROR_INVALID, row[i].field, row[i].says);
	}
	fagen_problem p = {0};
	ck_assert_int_eq(fagen_kernel_get(&k, rt, spec, &p, 0, &error), FAGEN_ERROR_INVALID);
	ck_says(FAGEN_ERROR_INVALID, "struct_size", "problem.struct_size");
	ck_assert_int_eq(fake.state->calls, 0);
	static const int ordinals[] = {-1, 2, INT32_MAX};
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(fagen_kernel_get(&k, rt, spec, NULL, ordinals[i], &error), FAGEN_ERROR_DRIVER);
		ck_says(FAGEN_ERROR_DRIVER, "device", "use 0 to 1");
	}
	fagen_spec *grouped = parse(rt, "fagen: 1\nhead_dim: 64\nkv_group: 4\n");
	p = (fagen_problem){.struct_size = sizeof p, .heads_q = 16, .heads_kv = 8};
	ck_assert_int_eq(fagen_kernel_get(&k, rt, grouped, &p, 0, &error), FAGEN_ERROR_INVALID);
	ck_says(FAGEN_ERROR_INVALID, "problem.heads_kv", "kv_group");
	p.heads_kv = 0; /* follows from kv_group */
	ck_assert_msg(!fagen_kernel_get(&k, rt, grouped, &p, 0, &error), "%s", error.message);
	ck_assert_int_eq(runtime_plan(k, PASS_FORWARD)->problem.heads_kv, 4);
}
END_TEST

START_TEST(a_machine_without_gpus_is_said)
{
	fake.state->device_count = 0;
	fagen_kernel *k = NULL;
	ck_assert_int_eq(fagen_kernel_get(&k, rt, spec, NULL, 0, &error), FAGEN_ERROR_DRIVER);
	ck_says(FAGEN_ERROR_DRIVER, "device", "no GPU");
}
END_TEST

START_TEST(targets_of_spec_and_device_must_meet)
{
	fagen_kernel *k = NULL;
	spec = parse(rt, SPEC "targets: [sm_80, sm_86]\n");
	ck_assert_int_eq(fagen_kernel_get(&k, rt, spec, NULL, 0, &error), FAGEN_ERROR_SPEC);
	ck_says(FAGEN_ERROR_SPEC, "targets", "needs target sm_90a; the spec's targets are [sm_80, sm_86]");
	ck_assert_msg(!fagen_kernel_get(&k, rt, spec, NULL, 1, &error), "%s", error.message);
	fake.state->device[0] = (struct fake_device){"NVIDIA Tesla V100", 7, 0, 80, 98304};
	fagen_runtime *second = open_runtime();
	ck_assert_int_eq(fagen_kernel_get(&k, second, parse(second, SPEC), NULL, 0, &error), FAGEN_ERROR_SPEC);
	ck_says(FAGEN_ERROR_SPEC, "targets", "compute capability 7.0");
	fagen_close(second);
}
END_TEST

START_TEST(spec_errors_carry_place_and_key)
{
	static const struct {
		const char *yaml;
		int line, column;
		const char *field;
	} row[] = {
		{"fagen: 1\nhead_dim: 64\nmask: casual\n", 3, 7, "mask"},
		{"fagen: 1\nhead_dim: 64\nheaddim: 64\n", 3, 1, "headdim"},
		{"fagen: 1\nhead_dim: 65\n", 2, 11, "head_dim"},
		{"fagen: 1\nhead_dim: 64\nassume: {batch: 2, heads: x}\n", 3, 27, "heads"},
	};
	fagen_spec *s = NULL;
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		ck_assert_int_eq(fagen_spec_parse(&s, rt, row[i].yaml, strlen(row[i].yaml), "my.yaml", &error),
		                 FAGEN_ERROR_SPEC);
		ck_says(FAGEN_ERROR_SPEC, row[i].field, "my.yaml:");
		ck_assert_int_eq(error.line, row[i].line);
		ck_assert_int_eq(error.column, row[i].column);
	}
	ck_assert_int_eq(fagen_spec_load(&s, rt, "/nonexistent/spec.yaml", &error), FAGEN_ERROR_SPEC);
	ck_says(FAGEN_ERROR_SPEC, "", "/nonexistent/spec.yaml");
	ck_assert_int_eq(fagen_spec_parse(&s, rt, NULL, 0, NULL, &error), FAGEN_ERROR_SPEC);
	ck_assert_ptr_null(s);
}
END_TEST

START_TEST(config_and_describe_follow_struct_size)
{
	fagen_runtime *second = NULL;
	fagen_config config = {0};
	ck_assert_int_eq(fagen_open(&second, &config, &error), FAGEN_ERROR_INVALID);
	ck_says(FAGEN_ERROR_INVALID, "struct_size", "config.struct_size");
	ck_assert_ptr_null(second);
	/* A caller whose version of the struct ends before cache_dir: the rest is default, whatever lies there. */
	config = (fagen_config){.struct_size = offsetof(fagen_config, cache_dir),
	                        .cache_dir = (const char *)(uintptr_t)1};
	ck_assert_int_eq(fagen_open(&second, &config, &error), FAGEN_OK);
	fagen_close(second);
	fagen_kernel_info info;
	memset(&info, 0xAB, sizeof info);
	info.struct_size = offsetof(fagen_kernel_info, target);
	ck_assert_int_eq(fagen_kernel_describe(&info, get(0), &error), FAGEN_OK);
	ck_assert_int_eq(info.forward, 1);
	ck_assert_int_eq((unsigned char)info.target[0], 0xAB);
	info.struct_size = 0;
	ck_assert_int_eq(fagen_kernel_describe(&info, get(0), &error), FAGEN_ERROR_INVALID);
}
END_TEST

/* ---- trouble ---- */

/* Each driver call of a first fagen_kernel_get fails in turn: the code is right, the thread is as before, nothing stays
 * loaded but what the runtime owns, and the next attempt works. */
START_TEST(every_failing_call_leaves_no_half_object)
{
	get(0); /* into the cache */
	int n = 0;
	for (;;) {
		fagen_close(rt);
		ck_assert_int_eq(fake.state->libraries, 0);
		ck_assert_int_eq(fake.state->retained, 0);
		open_all();
		fake.state->fail_at = fake.state->calls + ++n;
		fake.state->fail_result = 2;
		fake.state->failed_call = -1;
		fagen_kernel *k = NULL;
		const int rc = fagen_kernel_get(&k, rt, spec, NULL, 0, &error);
		fake.state->fail_at = 0;
		ck_assert_int_eq(fake.depth(), 0);
		ck_assert_int_eq(fake.state->pushes, fake.state->pops);
		if (fake.state->failed_call < 0) {
			ck_assert_int_eq(rc, FAGEN_OK);
			break;
		}
		ck_assert_int_eq(rc, FAGEN_ERROR_DRIVER);
		ck_assert_int_eq(error.cuda_result, 2);
		ck_says(FAGEN_ERROR_DRIVER, NULL, "CUDA_ERROR_OUT_OF_MEMORY (2)");
		ck_assert_ptr_null(k);
		ck_assert_ptr_null(rt->kernels);
		ck_assert_int_eq(fake.state->libraries, 0);
		/* A capture mode that cannot be given back stays; all else is as before. */
		if (fake.state->failed_call != FAKE_cuThreadExchangeStreamCaptureMode)
			ck_assert_int_eq((int)fake.mode(), 0);
		unsigned int mode = 0;
		fake.cu.cuThreadExchangeStreamCaptureMode(&mode);
		get(0);
	}
	ck_assert_int_gt(n, 15);
}
END_TEST

START_TEST(code_that_the_driver_refuses_is_explained)
{
	static const int refusals[] = {CU_INVALID_IMAGE, CU_NO_BINARY_FOR_GPU, CU_INVALID_PTX,
	                               CU_UNSUPPORTED_PTX_VERSION};
	fagen_kernel *k = NULL;
	fake.state->version = 12020;
	for (int i = 0; i < 4; i++) {
		fake.state->load_result = refusals[i];
		ck_assert_int_eq(fagen_kernel_get(&k, rt, spec, NULL, 0, &error), FAGEN_ERROR_DRIVER);
		ck_assert_int_eq(error.cuda_result, refusals[i]);
		ck_says(FAGEN_ERROR_DRIVER, "", "driver (of CUDA 12.2)");
		ck_says(FAGEN_ERROR_DRIVER, "", "sm_90a");
		ck_says(FAGEN_ERROR_DRIVER, "", "update the driver");
	}
	fake.state->load_result = 0;
	get(0);
}
END_TEST

START_TEST(loading_during_a_capture)
{
	fake.state->capturing = 1;
	unsigned int mode = 1;
	fake.cu.cuInit(0);
	ck_assert_int_eq(fake.cu.cuThreadExchangeStreamCaptureMode(&mode), 0);
	get(0);
	ck_assert_int_eq((int)fake.mode(), 1); /* given back */
	fake.state->load_result = CU_CAPTURE_UNSUPPORTED;
	fagen_kernel *k = NULL;
	ck_assert_int_eq(fagen_kernel_get(&k, rt, spec, NULL, 1, &error), FAGEN_ERROR_DRIVER);
	ck_says(FAGEN_ERROR_DRIVER, "", "before the capture begins");
	ck_assert_int_eq((int)fake.mode(), 1);
}
END_TEST

START_TEST(closing_during_a_capture)
{
	fagen_kernel *k = NULL;
	fagen_runtime *second = open_runtime();
	ck_assert_msg(!fagen_kernel_get(&k, second, parse(second, SPEC), NULL, 0, &error), "%s", error.message);
	const int libraries = fake.state->libraries;
	unsigned int mode = 1;
	fake.state->capturing = 1;
	ck_assert_int_eq(fake.cu.cuThreadExchangeStreamCaptureMode(&mode), 0);
	fagen_close(second);
	ck_assert_int_eq(fake.state->libraries, libraries - 1);
	ck_assert_int_eq((int)fake.mode(), 1);
}
END_TEST

START_TEST(the_stub_library_is_recognised)
{
	fake.state->init_result = CU_STUB_LIBRARY;
	fagen_kernel *k = NULL;
	ck_assert_int_eq(fagen_kernel_get(&k, rt, spec, NULL, 0, &error), FAGEN_ERROR_DRIVER);
	ck_assert_int_eq(error.cuda_result, CU_STUB_LIBRARY);
	ck_says(FAGEN_ERROR_DRIVER, "", "/fake/libcuda.so.1 is the stub");
	fake.state->init_result = CU_NO_DEVICE;
	ck_assert_int_eq(fagen_kernel_get(&k, rt, spec, NULL, 0, &error), FAGEN_ERROR_DRIVER);
	ck_assert_int_eq(error.cuda_result, CU_NO_DEVICE);
	fake.state->init_result = 0;
	get(0);
}
END_TEST

/* The toolkit's own stub, where there is one: whoever loaded it first, the loader gives it out as libcuda.so.1. */
START_TEST(the_stub_of_the_toolkit_is_recognised)
{
	static const char *const paths[] = {"/usr/local/cuda/lib64/stubs/libcuda.so",
	                                    "/usr/local/cuda/lib/stubs/libcuda.so"};
	void *stub = NULL;
	for (size_t i = 0; !stub && i < sizeof paths / sizeof *paths; i++)
		stub = dlopen(paths[i], RTLD_NOW);
	if (!stub) {
		printf("no stub library here: it is not tried\n");
		return;
	}
	open_all();
	fagen_kernel *k = NULL;
	ck_assert_int_eq(fagen_kernel_get(&k, rt, spec, NULL, 0, &error), FAGEN_ERROR_DRIVER);
	ck_assert_int_eq(error.cuda_result, CU_STUB_LIBRARY);
	ck_says(FAGEN_ERROR_DRIVER, "", "stubs/libcuda.so is the stub");
	fagen_close(rt);
}
END_TEST

START_TEST(another_context_stays_current)
{
	cu_context after = NULL;
	fake.cu.cuInit(0);
	ck_assert_int_eq(fake.cu.cuCtxPushCurrent_v2(fake.context(1)), 0);
	get(0);
	ck_assert_int_eq(fake.depth(), 1);
	ck_assert_int_eq(fake.cu.cuCtxPopCurrent_v2(&after), 0);
	ck_assert_ptr_eq(after, fake.context(1));
}
END_TEST

START_TEST(no_compiler_is_a_compiler_error)
{
	fagen_runtime *second = NULL;
	fagen_kernel *k = NULL;
	const fagen_config config = {.struct_size = sizeof config, .cache_dir = "", .nvrtc_path = ""};
	ck_assert_int_eq(fagen_open(&second, &config, &error), FAGEN_OK);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(fagen_kernel_get(&k, second, parse(second, SPEC), NULL, 0, &error),
		                 FAGEN_ERROR_COMPILER);
		ck_assert(error.message[0] && !k);
		ck_assert_int_eq(error.nvrtc_result, 0);
	}
	fagen_close(second);
}
END_TEST

START_TEST(what_the_compiler_answered_is_handed_on)
{
	char folder[512], path[640];
	fagen_runtime *second = NULL;
	fagen_kernel *k = NULL;
	test_folder(folder);
	snprintf(path, sizeof path, "%s/fake_nvrtc/libnvrtc.so.13", folder);
	setenv("FAKE_NVRTC_RESULT", "6", 1);
	const fagen_config config = {.struct_size = sizeof config, .cache_dir = "", .nvrtc_path = path};
	ck_assert_int_eq(fagen_open(&second, &config, &error), FAGEN_OK);
	ck_assert_int_eq(fagen_kernel_get(&k, second, parse(second, SPEC), NULL, 0, &error), FAGEN_ERROR_COMPILER);
	ck_assert_int_eq(error.nvrtc_result, 6);
	ck_assert_ptr_nonnull(strstr(error.message, "refused the source"));
	fagen_spec *wrong = NULL;
	ck_assert_int_eq(fagen_spec_parse(&wrong, second, "", 0, "t.yaml", &error), FAGEN_ERROR_SPEC);
	ck_assert_int_eq(error.nvrtc_result, 0);
	fagen_close(second);
}
END_TEST

/* ---- threads and fork ---- */

struct getter {
	int device;
	fagen_kernel *kernel;
	int rc;
};

static void *getter_run(void *arg)
{
	struct getter *g = arg;
	fagen_error own = {.struct_size = sizeof own};
	g->rc = fagen_kernel_get(&g->kernel, rt, spec, NULL, g->device, &own);
	return NULL;
}

START_TEST(threads_share_the_work)
{
	for (int round = 0; round < 10; round++) {
		fagen_close(rt);
		open_all();
		const int from = fake.state->calls;
		pthread_t thread[8];
		struct getter g[8];
		for (int i = 0; i < 8; i++) {
			g[i] = (struct getter){.device = i % 2};
			ck_assert_int_eq(pthread_create(&thread[i], NULL, getter_run, &g[i]), 0);
		}
		for (int i = 0; i < 8; i++) {
			pthread_join(thread[i], NULL);
			ck_assert_int_eq(g[i].rc, FAGEN_OK);
			ck_assert_ptr_eq(g[i].kernel, g[i % 2].kernel);
		}
		ck_assert_ptr_ne(g[0].kernel, g[1].kernel);
		ck_assert_int_eq(fake_count(&fake, FAKE_cuLibraryLoadData, from), 2);
		ck_assert_int_eq(fake_count(&fake, FAKE_cuDevicePrimaryCtxRetain, from), 2);
		ck_assert_int_eq(fake_count(&fake, FAKE_cuInit, from), 1);
	}
}
END_TEST

static int child_status(pid_t child)
{
	int status = 0;
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

START_TEST(a_fork_after_the_driver_started_is_refused)
{
	fagen_kernel *k = get(0);
	const pid_t child = fork();
	if (!child) {
		fagen_kernel *mine = NULL;
		uint64_t words[64] = {0};
		fagen_args a = {.struct_size = sizeof a, .batch = 1, .heads_q = 1, .heads_kv = 1, .seqlen_q = 1};
		a.query.data = a.out.data = (void *)(((uintptr_t)words + 15) & ~(uintptr_t)15);
		const int calls = fake.state->calls;
		int wrong = fagen_kernel_get(&mine, rt, spec, NULL, 1, &error) != FAGEN_ERROR_DRIVER ||
		            !strstr(error.message, "fork");
		wrong |= (fagen_forward(k, &a, NULL, &error) != FAGEN_ERROR_DRIVER || !strstr(error.message, "fork"))
		         << 1;
		fagen_close(rt);
		wrong |= (fake.state->calls != calls) << 2; /* the parent's driver is not touched */
		_exit(wrong);
	}
	ck_assert_int_eq(child_status(child), 0);
	ck_assert_ptr_eq(get(0), k);
}
END_TEST

START_TEST(a_fork_before_the_driver_started_works)
{
	const pid_t child = fork();
	if (!child) {
		fagen_kernel *k = NULL;
		const int rc = fagen_kernel_get(&k, rt, spec, NULL, 0, &error);
		fagen_close(rt);
		_exit(rc || fake.state->libraries || fake.state->retained);
	}
	ck_assert_int_eq(child_status(child), 0);
	get(0);
}
END_TEST

/* ---- what is shipped ---- */

static int run_shell(char *output, size_t size, const char *command)
{
	FILE *pipe = popen(command, "r");
	ck_assert_ptr_nonnull(pipe);
	const size_t n = fread(output, 1, size - 1, pipe);
	output[n] = '\0';
	return pclose(pipe);
}

START_TEST(the_library_exports_its_interface_only)
{
	char folder[512], command[1024], output[4096];
	test_folder(folder);
	snprintf(command, sizeof command,
	         "nm -D --defined-only '%s/../libfagen.so' | awk '{print $3}' | sed 's,@.*,,' | grep -v '^fagen_' | "
	         "grep -vE '^(FAGEN_0|_init|_fini|__bss_start|_edata|_end|__odr_asan.*|.*san.*)$'",
	         folder);
	run_shell(output, sizeof output, command);
	ck_assert_str_eq(output, "");
	snprintf(command, sizeof command, "readelf -d '%s/../libfagen.so' | grep NEEDED | grep -E 'cuda|nvrtc'",
	         folder);
	run_shell(output, sizeof output, command);
	ck_assert_str_eq(output, "");
}
END_TEST

START_TEST(the_example_runs)
{
	char folder[512], command[2048], output[4096];
	test_folder(folder);
	/* It leaves its device memory to the end of the process, which the fake has from malloc. */
	snprintf(command, sizeof command,
	         "cd / && ASAN_OPTIONS=detect_leaks=0 LD_LIBRARY_PATH='%s/fake:%s/..' FAGEN_CACHE_DIR='%s' "
	         "'%s/../examples/embed' 2>&1",
	         folder, folder, cache, folder);
	const int status = run_shell(output, sizeof output, command);
	ck_assert_msg(!status, "%s", output);
	ck_assert_ptr_nonnull(strstr(output, "sm_90a"));
	/* Without a driver it says so and fails. */
	void *real = dlopen("libcuda.so.1", RTLD_NOW);
	if (real)
		return;
	snprintf(command, sizeof command, "cd / && LD_LIBRARY_PATH='%s/..' '%s/../examples/embed' 2>&1", folder,
	         folder);
	ck_assert_int_ne(run_shell(output, sizeof output, command), 0);
	ck_assert_ptr_nonnull(strstr(output, "driver"));
}
END_TEST

START_TEST(the_header_is_c99_and_cpp)
{
	static const char *const compilers[] = {"cc -std=c99 -x c", "cc -std=c11 -x c", "c++ -std=c++11 -x c++",
	                                        "c++ -std=c++20 -x c++"};
	char output[4096];
	if (run_shell(output, sizeof output, "command -v c++ >/dev/null && test -f runtime/fagen.h")) {
		printf("no C++ compiler, or not run from the source folder: fagen.h is not compiled alone\n");
		return;
	}
	for (size_t i = 0; i < sizeof compilers / sizeof *compilers; i++) {
		char command[256];
		snprintf(command, sizeof command,
		         "%s -Wall -Wextra -Wpedantic -Werror -fsyntax-only runtime/fagen.h 2>&1", compilers[i]);
		const int status = run_shell(output, sizeof output, command);
		ck_assert_msg(!status && !output[0], "%s: %s", compilers[i], output);
	}
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("runtime");
	TCase *bare = tcase_create("no driver");
	tcase_add_unchecked_fixture(bare, cache_make, cache_remove);
	tcase_set_timeout(bare, 60);
	tcase_add_test(bare, toolkit_header_agrees);
	tcase_add_test(bare, opening_and_parsing_load_no_driver);
	tcase_add_test(bare, a_missing_driver_is_said_and_does_no_harm);
	tcase_add_test(bare, an_old_driver_is_named_with_its_version);
	tcase_add_test(bare, the_stub_of_the_toolkit_is_recognised);
	tcase_add_test(bare, the_library_exports_its_interface_only);
	tcase_add_test(bare, the_example_runs);
	tcase_add_test(bare, the_header_is_c99_and_cpp);
	suite_add_tcase(s, bare);
	TCase *t = tcase_create("kernels");
	tcase_add_unchecked_fixture(t, cache_make, cache_remove);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, the_first_driver_call_is_in_kernel_get);
	tcase_add_test(t, a_kernel_is_complete_when_it_is_handed_out);
	tcase_add_test(t, both_passes_load);
	tcase_add_test(t, inputs_get_their_workspace);
	tcase_add_test(t, a_class_has_one_kernel);
	tcase_add_test(t, devices_are_recognised);
	tcase_add_test(t, requests_are_refused_by_name);
	tcase_add_test(t, a_machine_without_gpus_is_said);
	tcase_add_test(t, targets_of_spec_and_device_must_meet);
	tcase_add_test(t, spec_errors_carry_place_and_key);
	tcase_add_test(t, config_and_describe_follow_struct_size);
	tcase_add_test(t, every_failing_call_leaves_no_half_object);
	tcase_add_test(t, code_that_the_driver_refuses_is_explained);
	tcase_add_test(t, loading_during_a_capture);
	tcase_add_test(t, closing_during_a_capture);
	tcase_add_test(t, the_stub_library_is_recognised);
	tcase_add_test(t, another_context_stays_current);
	tcase_add_test(t, no_compiler_is_a_compiler_error);
	tcase_add_test(t, what_the_compiler_answered_is_handed_on);
	tcase_add_test(t, threads_share_the_work);
	tcase_add_test(t, a_fork_after_the_driver_started_is_refused);
	tcase_add_test(t, a_fork_before_the_driver_started_works);
	suite_add_tcase(s, t);
	return s;
}
