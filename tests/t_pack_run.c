/* Packs in use: opened, searched and launched through the public interface over tests/fake_cuda.c; libfagen_rt and the example as they
 * are linked; the command. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "runtime/kernel.h"
#include "tests/count_help.h"
#include "tests/fake_use.h"
#include "tests/folder_help.h"
#include "tests/pack_help.h"

Suite *suite(void);

static char work[FOLDER_MAX]; /* folder of this run: packs, and the cache of kernels */
static struct fake fake;
static fagen_runtime *rt;
static fagen_error error;
static char path[160];

static void work_make(void) { folder_make(work, "t_pack_run"); }
static void work_remove(void) { folder_remove(work); }

static void runtime_open(void)
{
	const fagen_config config = {.struct_size = sizeof config, .cache_dir = work};
	memset(&error, 0, sizeof error);
	error.struct_size = sizeof error;
	ck_assert_msg(!fagen_open(&rt, &config, &error), "%s", error.message);
}

static void setup(void)
{
	fake = fake_open();
	runtime_open();
}

static void teardown(void)
{
	fagen_close(rt);
	fake_ck_left(&fake);
}

static void ck_says(int code, const char *field, const char *says)
{
	ck_assert_msg(error.code == code, "code %d: %s", error.code, error.message);
	ck_assert_str_eq(error.field, field);
	ck_assert_msg(strstr(error.message, says) != NULL, "\"%s\" is not in: %s", says, error.message);
}

static void file_put(const char *name, const void *bytes, size_t len)
{
	snprintf(path, sizeof path, "%s/%s", work, name);
	FILE *f = fopen(path, "wb");
	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(fwrite(bytes, 1, len, f), len);
	fclose(f);
}

/* "one" with both passes for sm_80 and forward for sm_90a, "two" for sm_120f; its path in `path`. */
static uint8_t *some_pack(size_t *len)
{
	struct pack_item item[] = {made_item("one", "sm_80", 0, "1f"), made_item("one", "sm_80", 1, "1b"), made_item("one", "sm_90a", 0, "1h"),
	                           made_item("two", "sm_120f", 0, "2")};
	uint8_t *bytes = made_pack(len, item, 4);
	for (int i = 0; i < 4; i++)
		free((void *)item[i].entry);
	file_put("some.fgpk", bytes, *len);
	return bytes;
}

static fagen_pack *open_some(void)
{
	fagen_pack *p = NULL;
	size_t len;
	free(some_pack(&len));
	ck_assert_msg(!fagen_pack_open(&p, rt, path, &error), "%s", error.message);
	return p;
}

static fagen_kernel *get(fagen_pack *p, const char *name, int device)
{
	fagen_kernel *k = NULL;
	ck_assert_msg(!fagen_pack_kernel(&k, p, name, device, &error), "%s", error.message);
	return k;
}

static void device_set(int ordinal, const char *name, int major, int minor)
{
	struct fake_device *d = &fake.state->device[ordinal];
	snprintf(d->name, sizeof d->name, "%s", name);
	d->major = major;
	d->minor = minor;
	fake.state->device_count = ordinal + 1 > fake.state->device_count ? ordinal + 1 : fake.state->device_count;
}

/* ---- opening ---- */

START_TEST(opening_makes_no_cuda_call)
{
	fagen_pack *p = open_some();
	fagen_pack_info info = {.struct_size = sizeof info};
	ck_assert_int_eq(fagen_pack_describe(&info, p, &error), FAGEN_OK);
	ck_assert_int_eq(info.names, 2);
	ck_assert_str_eq(info.version, "1.2.3");
	ck_assert_uint_eq(strlen(info.sha256), 64);
	ck_assert_str_eq(fagen_pack_name(p, 0), "one");
	ck_assert_str_eq(fagen_pack_name(p, 1), "two");
	ck_assert_ptr_null(fagen_pack_name(p, 2));
	ck_assert_ptr_null(fagen_pack_name(p, -1));
	fagen_pack_info older = {.struct_size = 8, .version = "untouched"};
	ck_assert_int_eq(fagen_pack_describe(&older, p, &error), FAGEN_OK);
	ck_assert(older.names == 2 && !strcmp(older.version, "untouched"));
	older.struct_size = 0;
	ck_assert_int_eq(fagen_pack_describe(&older, p, &error), FAGEN_ERROR_INVALID);
	ck_assert_int_eq(fake.state->calls, 0);
}
END_TEST

START_TEST(what_is_no_pack_is_refused)
{
	fagen_pack *p = NULL;
	size_t len;
	uint8_t *bytes = some_pack(&len);
	file_put("short.fgpk", bytes, len - 1);
	ck_assert_int_eq(fagen_pack_open(&p, rt, path, &error), FAGEN_ERROR_PACK);
	ck_says(FAGEN_ERROR_PACK, "path", "short.fgpk cannot be used: it has");
	file_put("empty.fgpk", bytes, 0);
	ck_assert_int_eq(fagen_pack_open(&p, rt, path, &error), FAGEN_ERROR_PACK);
	ck_says(FAGEN_ERROR_PACK, "path", "it is empty");
	ck_assert_int_eq(fagen_pack_open(&p, rt, work, &error), FAGEN_ERROR_PACK);
	ck_says(FAGEN_ERROR_PACK, "path", "no regular file");
	snprintf(path, sizeof path, "%s/fifo", work);
	ck_assert_int_eq(mkfifo(path, 0600), 0);
	ck_assert_int_eq(fagen_pack_open(&p, rt, path, &error), FAGEN_ERROR_PACK);
	ck_assert_int_eq(fagen_pack_open(&p, rt, "/no/such/file", &error), FAGEN_ERROR_PACK);
	ck_says(FAGEN_ERROR_PACK, "path", "No such file or directory");
	ck_assert_int_eq(fagen_pack_open(&p, rt, NULL, &error), FAGEN_ERROR_INVALID);
	_Alignas(8) static uint8_t copy[1 << 14];
	ck_assert_uint_lt(len, sizeof copy);
	memcpy(copy + 4, bytes, len);
	ck_assert_int_eq(fagen_pack_open_memory(&p, rt, copy + 4, len, NULL, &error), FAGEN_ERROR_INVALID);
	ck_says(FAGEN_ERROR_INVALID, "bytes", "multiple of 8");
	ck_assert_int_eq(fagen_pack_open_memory(&p, rt, bytes, len - 64, "mine", &error), FAGEN_ERROR_PACK);
	ck_says(FAGEN_ERROR_PACK, "path", "The pack mine cannot be used");
	ck_assert_ptr_null(p);
	free(bytes);
}
END_TEST

/* ---- finding ---- */

START_TEST(the_best_target_of_the_device_is_taken)
{
	static const struct {
		const char *gpu;
		int major, minor;
		const char *target;
	} row[] = {{"NVIDIA A100", 8, 0, "sm_80"}, {"NVIDIA L4", 8, 9, "sm_80"}, {"NVIDIA H200", 9, 0, "sm_90a"}};
	for (int i = 0; i < 3; i++)
		device_set(i, row[i].gpu, row[i].major, row[i].minor);
	device_set(3, "Tesla T4", 7, 5);
	fagen_pack *p = open_some();
	for (int i = 0; i < 3; i++) {
		fagen_kernel *k = get(p, "one", i);
		fagen_kernel_info info = {.struct_size = sizeof info};
		ck_assert_int_eq(fagen_kernel_describe(&info, k, &error), FAGEN_OK);
		ck_assert_str_eq(info.target, row[i].target);
		ck_assert(info.forward && info.backward == (i < 2));
		ck_assert_str_eq(info.source[0], "pack");
		ck_assert(info.registers[0] == 111 && info.spill_bytes[0] == 2 && info.smem_bytes[0] == 50000);
		ck_assert(info.tile_m[0] == 64 && info.tile_n[0] == 128);
		const int calls = fake.state->calls;
		ck_assert_ptr_eq(get(p, "one", i), k);
		ck_assert_int_eq(fake.state->calls, calls); /* again: without the driver */
	}
	/* AOT-06, AOT-05: what runs on none is said when the kernel is got, and leaves the handle of another alone. */
	fagen_kernel *k = get(p, "one", 0), *before = k;
	ck_assert_int_eq(fagen_pack_kernel(&k, p, "one", 3, &error), FAGEN_ERROR_PACK);
	ck_says(FAGEN_ERROR_PACK, "device", "has 'one' for sm_80, sm_90a, but device 3, Tesla T4, has compute capability 7.5");
	ck_assert_int_eq(fagen_pack_kernel(&k, p, "two", 2, &error), FAGEN_ERROR_PACK);
	ck_says(FAGEN_ERROR_PACK, "device", "build the pack for sm_90a");
	ck_assert_ptr_eq(k, before);
}
END_TEST

START_TEST(names_are_suggested)
{
	fagen_pack *p = open_some();
	fagen_kernel *k = NULL;
	ck_assert_int_eq(fagen_pack_kernel(&k, p, "ome", 0, &error), FAGEN_ERROR_PACK);
	ck_says(FAGEN_ERROR_PACK, "name", "has no kernel 'ome': did you mean 'one'?");
	ck_assert_int_eq(fagen_pack_kernel(&k, p, "something else", 0, &error), FAGEN_ERROR_PACK);
	ck_says(FAGEN_ERROR_PACK, "name", "it has one, two.");
	ck_assert_int_eq(fagen_pack_kernel(&k, p, NULL, 0, &error), FAGEN_ERROR_PACK);
	ck_assert_int_eq(fagen_pack_kernel(&k, p, "one", 9, &error), FAGEN_ERROR_DRIVER);
	ck_assert_ptr_null(k);
}
END_TEST

/* ---- launching ---- */

START_TEST(a_launch_is_checked_by_the_signature_in_the_pack)
{
	device_set(0, "NVIDIA H200", 9, 0);
	fagen_pack *p = open_some();
	fagen_kernel *k = get(p, "one", 0);
	uint64_t words[1 << 10] = {0};
	void *at = (void *)(((uintptr_t)words + 255) & ~(uintptr_t)255);
	const fagen_tensor t = {at, 2560, 320, 128};
	fagen_input input[] = {{.name = "table", .data = at, .stride = {257, 1}}, {.name = "doc", .data = at, .stride = {0, 1}}};
	fagen_args a = {.struct_size = sizeof a, .batch = 1, .heads_q = 2, .heads_kv = 1, .seqlen_q = 100, .seqlen_k = 3, .query = t, .key = t,
	                .value = t, .out = t, .lse = {at, 0, 100, 1}, .seqlens_k = at, .inputs = input, .input_count = 1};
	a.out.stride_head = 12800;
	ck_assert_int_eq(fagen_forward(k, &a, NULL, &error), FAGEN_ERROR_INVALID);
	ck_says(FAGEN_ERROR_INVALID, "inputs", "reads an input 'doc' (i32, 2 dimensions)");
	a.input_count = 2;
	a.cu_seqlens_q = at;
	ck_assert_int_eq(fagen_forward(k, &a, NULL, &error), FAGEN_ERROR_INVALID);
	ck_says(FAGEN_ERROR_INVALID, "cu_seqlens_q", "the spec's layout is padded");
	a.cu_seqlens_q = NULL;
	ck_assert_int_eq(fagen_workspace_size(&a.workspace_size, k, &a, &error), FAGEN_OK);
	ck_assert_uint_eq(a.workspace_size, 4 * 2 * 128 * 2); /* two floats for each row of whole tiles */
	ck_assert_int_eq(fagen_forward(k, &a, NULL, &error), FAGEN_ERROR_INVALID);
	ck_says(FAGEN_ERROR_INVALID, "workspace", "need 2048 bytes");
	a.workspace = at;
	ck_assert_msg(!fagen_forward(k, &a, NULL, &error), "%s", error.message);
	ck_assert_int_eq(fake.state->launches, 1);
	ck_assert_int_eq(fake.state->memsets, 1);
	const struct fake_launch *l = &fake.state->launch[0];
	struct fagen_abi abi;
	memcpy(&abi, l->params, sizeof abi);
	ck_assert_str_eq(l->entry, "made_main");
	ck_assert(l->grid == 2 * 2 && l->threads == 128 && l->smem == 50000);
	ck_assert(abi.input[1].data == (uintptr_t)at && abi.input[1].stride[0] == 257); /* in the order of the spec */
	ck_assert(abi.delta == (uintptr_t)at && abi.seqlens_k == (uintptr_t)at);
	ck_assert_int_eq(fagen_backward(k, &a, NULL, &error), FAGEN_ERROR_INVALID);
	ck_says(FAGEN_ERROR_INVALID, "kernel", "has no backward pass");
}
END_TEST

/* The same launch, once of the pack that the command built and once of the spec, reaches the driver alike. */
START_TEST(a_kernel_of_a_pack_is_launched_as_that_of_its_spec)
{
	char folder[512], file[640];
	fagen_pack *p;
	fagen_spec *spec;
	fagen_kernel *k[2];
	test_folder(folder);
	snprintf(file, sizeof file, "%s/../examples/kernels.fgpk", folder);
	ck_assert_msg(!fagen_pack_open(&p, rt, file, &error), "%s", error.message);
	ck_assert_msg(!fagen_spec_load(&spec, rt, "specs/causal_d64.yaml", &error), "%s", error.message);
	k[0] = get(p, "causal_d64", 0);
	ck_assert_msg(!fagen_kernel_get(&k[1], rt, spec, NULL, 0, &error), "%s", error.message);
	uint8_t *mem = aligned_alloc(256, 1 << 20);
	int launches[3] = {0}, maps[3] = {0};
	for (int i = 0; i < 2; i++) {
		const fagen_tensor t = {mem, 2 * 40 * 64, 40 * 64, 64};
		fagen_args a = {.struct_size = sizeof a, .batch = 1, .heads_q = 2, .heads_kv = 2, .seqlen_q = 40, .seqlen_k = 40, .query = t,
		                .key = t, .value = t, .out = t, .lse = {mem, 80, 40, 1}, .dout = t, .dquery = t, .dkey = t, .dvalue = t};
		ck_assert_int_eq(fagen_workspace_size(&a.workspace_size, k[i], &a, &error), FAGEN_OK);
		a.workspace = mem + (1 << 19);
		ck_assert_msg(!fagen_forward(k[i], &a, NULL, &error), "%s", error.message);
		ck_assert_msg(!fagen_backward(k[i], &a, NULL, &error), "%s", error.message);
		launches[i + 1] = fake.state->launches;
		maps[i + 1] = fake.state->maps;
	}
	const int n = launches[1];
	ck_assert(n > 2 && launches[2] == 2 * n && maps[2] == 2 * maps[1]);
	for (int i = 0; i < n; i++) {
		const struct fake_launch *x = &fake.state->launch[i], *y = &fake.state->launch[n + i];
		ck_assert_str_eq(x->entry, y->entry);
		ck_assert(x->grid == y->grid && x->threads == y->threads && x->smem == y->smem);
		ck_assert(!memcmp(x->params, y->params, sizeof x->params));
	}
	fagen_kernel_info info[2] = {{.struct_size = sizeof info[0]}, {.struct_size = sizeof info[0]}};
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(fagen_kernel_describe(&info[i], k[i], &error), FAGEN_OK);
	memset(info[0].source, 0, sizeof info[0].source);
	memset(info[1].source, 0, sizeof info[1].source);
	ck_assert(!memcmp(&info[0], &info[1], sizeof info[0]));
	free(mem);
}
END_TEST

/* ---- trouble ---- */

START_TEST(a_damaged_kernel_is_refused_and_others_serve)
{
	device_set(0, "NVIDIA A100", 8, 0);
	device_set(1, "NVIDIA H200", 9, 0);
	size_t len;
	uint8_t *bytes = some_pack(&len);
	for (size_t i = 0; i + 2 <= len; i++)
		if (!memcmp(bytes + i, "1h", 2))
			bytes[i]++;
	fagen_pack *p;
	ck_assert_msg(!fagen_pack_open_memory(&p, rt, bytes, len, NULL, &error), "%s", error.message);
	fagen_kernel *good = get(p, "one", 0), *k = good;
	ck_assert_int_eq(fagen_pack_kernel(&k, p, "one", 1, &error), FAGEN_ERROR_PACK);
	ck_says(FAGEN_ERROR_PACK, "name", "forward pass of 'one' for sm_90a in the pack in memory is damaged");
	ck_assert_ptr_eq(k, good); /* as it was: nothing of the failed one */
	ck_assert_int_eq(fake.state->libraries, 2);
	fagen_close(rt);
	free(bytes);
	runtime_open();
}
END_TEST

START_TEST(a_revoked_revision_is_refused_with_the_reason)
{
	struct pack_item item = made_item("old", "sm_80", 0, "x");
	size_t len;
	item.revision = 0;
	uint8_t *bytes = made_pack(&len, &item, 1);
	fagen_pack *p;
	fagen_kernel *k;
	device_set(0, "NVIDIA A100", 8, 0);
	file_put("old.fgpk", bytes, len);
	ck_assert_msg(!fagen_pack_open(&p, rt, path, &error), "%s", error.message);
	ck_assert_int_eq(fagen_pack_kernel(&k, p, "old", 0, &error), FAGEN_ERROR_PACK);
	ck_says(FAGEN_ERROR_PACK, "name", "was made from revision 0 of template sm80/fwd, which must not run: ");
	free((void *)item.entry);
	free(bytes);
}
END_TEST

START_TEST(code_that_the_driver_refuses_is_explained)
{
	fagen_pack *p = open_some();
	fagen_kernel *k = NULL;
	fake.state->load_result = CU_NO_BINARY_FOR_GPU;
	ck_assert_int_eq(fagen_pack_kernel(&k, p, "one", 0, &error), FAGEN_ERROR_DRIVER);
	ck_assert_ptr_nonnull(strstr(error.message, "build the pack with an older NVRTC"));
	ck_assert_ptr_nonnull(strstr(error.message, "the compiler of "));
	fake.state->load_result = 0;
	ck_assert_ptr_null(k);
	get(p, "one", 0);
}
END_TEST

START_TEST(every_failing_call_leaves_no_half_object)
{
	int n = 0;
	for (;;) {
		fagen_close(rt);
		ck_assert_int_eq(fake.state->libraries, 0);
		runtime_open();
		fagen_pack *p = open_some();
		fake.state->fail_at = fake.state->calls + ++n;
		fake.state->fail_result = 2;
		fake.state->failed_call = -1;
		fagen_kernel *k = NULL;
		const int rc = fagen_pack_kernel(&k, p, "one", 0, &error);
		fake.state->fail_at = 0;
		ck_assert_int_eq(fake.depth(), 0);
		if (fake.state->failed_call < 0) {
			ck_assert_int_eq(rc, FAGEN_OK);
			break;
		}
		ck_assert_int_eq(rc, FAGEN_ERROR_DRIVER);
		ck_assert_ptr_null(k);
		ck_assert_int_eq(fake.state->libraries, 0);
		unsigned int mode = 0;
		fake.cu.cuThreadExchangeStreamCaptureMode(&mode);
		get(p, "one", 0);
	}
	ck_assert_int_gt(n, 15);
}
END_TEST

struct getter { pthread_t thread; fagen_pack *pack; int device, rc; fagen_kernel *kernel; };
static void *getter_run(void *arg)
{
	struct getter *g = arg;
	for (int i = 0; i < 100; i++)
		g->rc |= fagen_pack_kernel(&g->kernel, g->pack, "one", g->device, NULL);
	return NULL;
}

START_TEST(threads_share_a_kernel)
{
	device_set(0, "NVIDIA H200", 9, 0);
	device_set(1, "NVIDIA H200", 9, 0);
	struct getter g[8] = {{0}};
	fagen_pack *p = open_some();
	for (int i = 0; i < 8; i++) {
		g[i].pack = p;
		g[i].device = i % 2;
		ck_assert_int_eq(pthread_create(&g[i].thread, NULL, getter_run, &g[i]), 0);
	}
	for (int i = 0; i < 8; i++) {
		pthread_join(g[i].thread, NULL);
		ck_assert_int_eq(g[i].rc, FAGEN_OK);
		ck_assert_ptr_eq(g[i].kernel, g[i % 2].kernel);
	}
	ck_assert_ptr_ne(g[0].kernel, g[1].kernel);
	ck_assert_int_eq(fake_count(&fake, FAKE_cuLibraryLoadData, 0), 2);
}
END_TEST

START_TEST(asking_again_takes_no_lock_and_allocates_nothing)
{
	fagen_pack *p = open_some();
	fagen_kernel *k = get(p, "one", 0), *again = NULL;
	allocations = locks = 0;
	int failed = 0;
	for (int i = 0; i < 100; i++)
		failed += fagen_pack_kernel(&again, p, "one", 0, &error) != FAGEN_OK;
	const int seen = allocations, locked = locks; /* Check allocates too */
	ck_assert(failed == 0 && seen == 0 && locked == 0 && again == k);
	fagen_pack_kernel(&again, p, "none", 0, &error);
	ck_assert_int_gt(allocations, 0); /* the counter counts: a message is allocated */
}
END_TEST

START_TEST(opening_without_memory)
{
	size_t len;
	free(some_pack(&len));
	for (int n = 1;; n++) {
		fagen_pack *p = NULL;
		allocations = 0;
		fail_allocation = n;
		const int rc = fagen_pack_open(&p, rt, path, &error);
		fail_allocation = 0;
		if (rc == FAGEN_OK) {
			ck_assert_int_gt(n, 3);
			break;
		}
		ck_says(FAGEN_ERROR_MEMORY, "", "Out of memory");
		ck_assert_ptr_null(p);
		ck_assert_ptr_null(rt->packs);
	}
}
END_TEST

static double now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

START_TEST(opening_and_finding_are_fast)
{
	enum { COUNT = 500, LOOKUPS = 200000 };
	static struct pack_item many[COUNT];
	static char name[COUNT][32];
	size_t len;
	device_set(0, "NVIDIA A100", 8, 0);
	for (int i = 0; i < COUNT; i++) {
		snprintf(name[i], sizeof name[i], "attention_kernel_%03d", i);
		many[i] = made_item(name[i], "sm_80", 0, name[i]);
	}
	uint8_t *bytes = made_pack(&len, many, COUNT);
	file_put("many.fgpk", bytes, len);
	double open_us = 1e9, best = 1e9;
	fagen_pack *p = NULL;
	for (int i = 0; i < 10; i++) {
		const double begin = now_ns();
		ck_assert_int_eq(fagen_pack_open(&p, rt, path, &error), FAGEN_OK);
		const double us = (now_ns() - begin) / 1000;
		open_us = us < open_us ? us : open_us;
	}
	for (int i = 0; i < COUNT; i++)
		get(p, name[i], 0);
	for (int round = 0; round < 5; round++) {
		fagen_kernel *k;
		int bad = 0;
		const double begin = now_ns();
		for (int i = 0; i < LOOKUPS; i++)
			bad |= fagen_pack_kernel(&k, p, name[(i * 7919) % COUNT], 0, &error);
		const double ns = (now_ns() - begin) / LOOKUPS;
		best = ns < best ? ns : best;
		ck_assert_int_eq(bad, 0);
	}
	printf("fagen_pack_open of %d kernels: %.0f us; fagen_pack_kernel of one that is loaded: %.0f ns\n", COUNT, open_us, best);
	ck_assert_double_lt(open_us, 20000); /* the aims are 1000 us and 200 ns; sanitizers and busy machines take more */
	ck_assert_double_lt(best, 10000);
	for (int i = 0; i < COUNT; i++)
		free((void *)many[i].entry);
	free(bytes);
}
END_TEST

/* ---- what is linked ---- */

START_TEST(libfagen_rt_has_packs_and_nothing_that_compiles)
{
	char folder[512], command[2048], output[8192];
	test_folder(folder);
	snprintf(command, sizeof command,
	         "nm -D --defined-only '%s/../libfagen_rt.so' | awk '$2 == \"T\" {print $3}' | sed 's,@.*,,' | "
	         "grep -vE 'san|^_(init|fini)$' | tr '\\n' ' '",
	         folder);
	made_run(output, sizeof output, command);
	ck_assert_str_eq(output, "fagen_backward fagen_close fagen_forward fagen_kernel_describe fagen_open fagen_pack_describe "
	                         "fagen_pack_kernel fagen_pack_name fagen_pack_open fagen_pack_open_memory fagen_version "
	                         "fagen_workspace_size ");
	snprintf(command, sizeof command,
	         "nm '%s/../libfagen_rt.so' | grep -E 'yaml|nvrtc|compiler_|spec_parse|spec_load|program_|plan_make|"
	         "source_emit|store_open|store_get|embed_'; "
	         "readelf -d '%s/../libfagen_rt.so' | grep NEEDED | grep -E 'yaml|cuda|nvrtc'",
	         folder, folder);
	made_run(output, sizeof output, command);
	ck_assert_str_eq(output, "");
	snprintf(command, sizeof command, "ldd '%s/../libfagen_rt.so' | grep -E 'yaml|cuda|nvrtc|not found'", folder);
	made_run(output, sizeof output, command);
	ck_assert_str_eq(output, "");
	snprintf(command, sizeof command, "objdump -T '%s/../libfagen_rt.so' | grep -c 'FAGEN_0 .*fagen_'", folder);
	made_run(output, sizeof output, command);
	ck_assert_int_eq(atoi(output), 12);
}
END_TEST

START_TEST(the_example_runs_without_a_compiler)
{
	char folder[512], command[2048], output[4096];
	test_folder(folder);
	snprintf(command, sizeof command,
	         "cd / && ASAN_OPTIONS=detect_leaks=0 FAGEN_NVRTC=/nowhere HOME=/nowhere LD_LIBRARY_PATH='%s/fake:%s/..' "
	         "'%s/../examples/pack' 2>&1",
	         folder, folder, folder);
	const int status = made_run(output, sizeof output, command);
	ck_assert_msg(!status, "%s", output);
	ck_assert_ptr_nonnull(strstr(output, "out[0] = "));
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("pack_run");
	TCase *t = tcase_create("packs");
	tcase_add_unchecked_fixture(t, work_make, work_remove);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, opening_makes_no_cuda_call);
	tcase_add_test(t, what_is_no_pack_is_refused);
	tcase_add_test(t, the_best_target_of_the_device_is_taken);
	tcase_add_test(t, names_are_suggested);
	tcase_add_test(t, a_launch_is_checked_by_the_signature_in_the_pack);
	tcase_add_test(t, a_kernel_of_a_pack_is_launched_as_that_of_its_spec);
	tcase_add_test(t, a_damaged_kernel_is_refused_and_others_serve);
	tcase_add_test(t, a_revoked_revision_is_refused_with_the_reason);
	tcase_add_test(t, code_that_the_driver_refuses_is_explained);
	tcase_add_test(t, every_failing_call_leaves_no_half_object);
	tcase_add_test(t, threads_share_a_kernel);
	tcase_add_test(t, asking_again_takes_no_lock_and_allocates_nothing);
	tcase_add_test(t, opening_without_memory);
	tcase_add_test(t, opening_and_finding_are_fast);
	suite_add_tcase(s, t);
	TCase *l = tcase_create("linked");
	tcase_set_timeout(l, 60);
	tcase_add_test(l, libfagen_rt_has_packs_and_nothing_that_compiles);
	tcase_add_test(l, the_example_runs_without_a_compiler);
	suite_add_tcase(s, l);
	return s;
}
