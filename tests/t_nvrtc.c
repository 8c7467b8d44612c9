/* The compiler: which NVRTC, what it is, what it makes, what it says; and cubins through the store. Needs the real one:
 * where it is absent the suite fails. No GPU and no driver. */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sys/resource.h>

#include "runtime/nvrtc.h"
#include "tests/store_help.h"

Suite *suite(void);

static const char kernel_source[] =
	"struct args { float *data; int count; };\n"
	"__device__ static float twice(float x) { return 2 * x; }\n"
	"extern \"C\" __global__ void __launch_bounds__(128) scale(const __grid_constant__ args a)\n"
	"{\n"
	"	const int i = blockIdx.x * 128 + threadIdx.x;\n"
	"	if (i < a.count)\n"
	"		a.data[i] = twice(a.data[i]);\n"
	"}\n";

static struct text source_of(const char *string)
{
	struct text text = {0};
	text_puts(&text, string);
	return text;
}

static const struct recipe a_recipe = {
	.kernel_count = 1,
	.kernel = {{.entry = "scale", .grid = GRID_QUERY_TILES, .tile = 128, .threads = 128, .smem_bytes = 4096}},
	.load_bytes = 16,
};

static void setup(void)
{
	dir_setup();
	unsetenv("NV_NVVM_VERSION");
	unsetenv("NVRTC_APPEND_FLAGS");
	unsetenv("FAGEN_NVRTC_OPTIONS");
}

static struct compiler *real_compiler(void)
{
	struct compiler *compiler = compiler_open(NULL, false);
	ck_assert_ptr_nonnull(compiler);
	ck_assert_msg(compiler_path(compiler)[0] != '\0', "NVRTC is not on this machine: these tests need it");
	return compiler;
}

static bool is_mapped(const char *part)
{
	char line[4096];
	bool found = false;
	FILE *maps = fopen("/proc/self/maps", "r");
	ck_assert_ptr_nonnull(maps);
	while (fgets(line, sizeof line, maps))
		found |= strstr(line, part) != NULL;
	fclose(maps);
	return found;
}

/* ---- the real compiler ---- */

static void compile(struct cubin *cubin, struct compiler *compiler, const char *string, const struct target *target)
{
	struct diag diag = {0};
	struct text source = source_of(string);
	*cubin = (struct cubin){0};
	ck_assert_msg(compiler_run(cubin, compiler, &source, target, &diag) == 0, "%s", text_str(&diag.text));
	ck_assert_int_eq(diag.errors, 0);
	text_free(&source);
}

START_TEST(every_target_twice)
{
	struct compiler *compiler = real_compiler();
	const struct target *target = &target_table[_i];
	struct cubin a, b;
	compile(&a, compiler, kernel_source, target);
	ck_assert_int_eq(chdir("/"), 0); /* nor does the folder matter */
	compile(&b, compiler, kernel_source, target);
	ck_assert_int_eq(memcmp(a.code, "\177ELF", 4), 0);
	ck_assert_msg(a.code_len == b.code_len && memcmp(a.code, b.code, a.code_len) == 0,
	              "%s: two cubins of one source", target->name);
	ck_assert(a.registers > 0 && a.registers <= 64);
	ck_assert_int_eq(a.spill_bytes + a.stack_bytes + a.serialized, 0);
	ck_assert(a.compile_ms > 0 && !a.from_store);
	ck_assert_ptr_nonnull(strstr(a.report, "'scale'"));
	ck_assert_ptr_nonnull(strstr(a.report, target->name));
	cubin_free(&a);
	cubin_free(&b);
	compiler_close(compiler);
}
END_TEST

struct work {
	struct compiler *compiler;
	struct cubin cubin;
	int result;
};

static void *compile_work(void *argument)
{
	struct work *work = argument;
	struct diag diag = {0};
	struct text source = source_of(kernel_source);
	work->result = compiler_run(&work->cubin, work->compiler, &source, target_find("sm_90a"), &diag);
	text_free(&source);
	diag_free(&diag);
	return NULL;
}

START_TEST(threads_of_small_stacks)
{
	enum { THREADS = 4 };
	struct work work[THREADS];
	pthread_t thread[THREADS];
	pthread_attr_t small;
	struct compiler *compiler = real_compiler();
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 128 << 10); /* ptxas needs more than that: it runs on a stack of its own */
	for (int i = 0; i < THREADS; i++) {
		work[i] = (struct work){.compiler = compiler};
		ck_assert_int_eq(pthread_create(&thread[i], &small, compile_work, &work[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	for (int i = 0; i < THREADS; i++) {
		ck_assert_int_eq(work[i].result, 0);
		ck_assert_uint_eq(work[i].cubin.code_len, work[0].cubin.code_len);
		ck_assert_int_eq(memcmp(work[i].cubin.code, work[0].cubin.code, work[0].cubin.code_len), 0);
	}
	for (int i = 0; i < THREADS; i++)
		cubin_free(&work[i].cubin);
	compiler_close(compiler);
}
END_TEST

static int limit_changes;
static bool watching;

static void *watch_limit(void *before)
{
	struct rlimit now;
	while (__atomic_load_n(&watching, __ATOMIC_SEQ_CST)) {
		getrlimit(RLIMIT_STACK, &now);
		limit_changes += now.rlim_cur != ((struct rlimit *)before)->rlim_cur;
		sleep_ms(1);
	}
	return NULL;
}

START_TEST(the_process_is_left_alone)
{
	char empty[128];
	struct rlimit before, after;
	struct cubin cubin;
	pthread_t watcher;
	snprintf(empty, sizeof empty, "%s/scratch", test_dir);
	ck_assert_int_eq(mkdir(empty, 0700), 0);
	setenv("TMPDIR", empty, 1);
	struct compiler *compiler = real_compiler();
	getrlimit(RLIMIT_STACK, &before);
	watching = true;
	ck_assert_int_eq(pthread_create(&watcher, NULL, watch_limit, &before), 0);
	for (int i = 0; i < 3; i++) {
		compile(&cubin, compiler, kernel_source, target_find("sm_80"));
		cubin_free(&cubin);
	}
	__atomic_store_n(&watching, false, __ATOMIC_SEQ_CST);
	pthread_join(watcher, NULL);
	getrlimit(RLIMIT_STACK, &after);
	ck_assert_int_eq(limit_changes, 0);
	ck_assert(before.rlim_cur == after.rlim_cur && before.rlim_max == after.rlim_max);
	ck_assert(is_mapped("libnvrtc"));
	ck_assert(!is_mapped("libcuda.so")); /* the driver is none of its business */
	ck_assert_int_eq(rmdir(empty), 0);   /* nothing was put there */
	compiler_close(compiler);
}
END_TEST

START_TEST(spills_are_seen)
{
	static const char source[] =
		"extern \"C\" __global__ void __launch_bounds__(1024) crowded(float *x)\n"
		"{\n"
		"	float a[80];\n"
		"	for (int i = 0; i < 80; i++) a[i] = x[i * threadIdx.x];\n"
		"	for (int k = 0; k < 9; k++)\n"
		"		for (int i = 0; i < 80; i++) a[i] = a[i] * a[(i + 1) % 80] + x[k];\n"
		"	for (int i = 0; i < 80; i++) x[i * threadIdx.x] = a[i];\n"
		"}\n"
		"extern \"C\" __global__ void easy(float *x) { *x = 1; }\n";
	struct cubin cubin;
	struct compiler *compiler = real_compiler();
	compile(&cubin, compiler, source, target_find("sm_90a"));
	ck_assert_int_eq(cubin.registers, 64); /* 65536 / 1024: of `crowded`, not of `easy` */
	ck_assert(cubin.spill_bytes > 0 && cubin.stack_bytes > 0);
	ck_assert_ptr_nonnull(strstr(cubin.report, "spilled"));
	cubin_free(&cubin);
	compiler_close(compiler);
}
END_TEST

START_TEST(refused_source)
{
	struct diag diag = {0};
	struct cubin cubin = {0};
	struct store_stats stats;
	struct text source = source_of(
		"#line 7 \"sm80/fwd.cu\"\nextern \"C\" __global__ void f(float *x) { *x = __no_such_intrinsic(1); }\n");
	struct compiler *compiler = real_compiler();
	struct store *store = store_at(test_dir);
	ck_assert_int_eq(cubin_get(&cubin, store, compiler, &source, target_find("sm_80"), &a_recipe, &diag), -1);
	ck_assert_int_eq(diag.errors, 1);
	ck_assert_msg(strstr(text_str(&diag.text), "sm80/fwd.cu(7): error") &&
	                      strstr(text_str(&diag.text), "__no_such_intrinsic") &&
	                      strstr(text_str(&diag.text), compiler_path(compiler)),
	              "%s", text_str(&diag.text));
	ck_assert_ptr_null(cubin.code);
	(void)store_stats(&stats, store, true);
	ck_assert_uint_eq(stats.entries, 0);
	diag_free(&diag);
	text_free(&source);

	struct cubin fine; /* and the next one is not affected */
	compile(&fine, compiler, kernel_source, target_find("sm_80"));
	cubin_free(&fine);
	store_close(store);
	compiler_close(compiler);
}
END_TEST

START_TEST(no_headers)
{
	struct diag diag = {0};
	struct cubin cubin = {0};
	struct text source = source_of("#include <cuda_fp16.h>\n");
	struct compiler *compiler = real_compiler();
	ck_assert_int_eq(compiler_run(&cubin, compiler, &source, target_find("sm_80"), &diag), -1);
	diag_free(&diag);
	text_free(&source);
	compiler_close(compiler);
}
END_TEST

START_TEST(ptx_text)
{
	struct diag diag = {0};
	struct text source = source_of(kernel_source), ptx = {0};
	struct compiler *compiler = real_compiler();
	ck_assert_msg(compiler_ptx(&ptx, compiler, &source, target_find("sm_90a"), &diag) == 0, "%s",
	              text_str(&diag.text));
	ck_assert_ptr_nonnull(strstr(text_str(&ptx), ".target sm_90a"));
	ck_assert_ptr_nonnull(strstr(text_str(&ptx), ".entry scale"));
	ck_assert_uint_eq(strlen(text_str(&ptx)), ptx.len);
	text_free(&source);
	text_free(&ptx);
	compiler_close(compiler);
}
END_TEST

/* ---- through the store ---- */

static void get(struct cubin *cubin, struct store *store, struct compiler *compiler)
{
	struct diag diag = {0};
	struct text source = source_of(kernel_source);
	*cubin = (struct cubin){0};
	ck_assert_msg(cubin_get(cubin, store, compiler, &source, target_find("sm_90a"), &a_recipe, &diag) == 0, "%s",
	              text_str(&diag.text));
	text_free(&source);
}

static void check_same(const struct cubin *a, const struct cubin *b)
{
	ck_assert(a->code_len == b->code_len && memcmp(a->code, b->code, a->code_len) == 0);
	ck_assert_int_eq(a->registers, b->registers);
	ck_assert_int_eq(a->spill_bytes, b->spill_bytes);
	ck_assert_int_eq(a->stack_bytes, b->stack_bytes);
	ck_assert_int_eq(a->serialized, b->serialized);
	ck_assert_int_eq(a->smem_bytes, b->smem_bytes);
	ck_assert_int_eq(memcmp(&a->recipe, &b->recipe, sizeof a->recipe), 0);
	ck_assert_str_eq(a->report, b->report);
}

START_TEST(second_get_is_a_hit)
{
	struct cubin first, second;
	struct compiler *compiler = real_compiler();
	struct store *store = store_at(test_dir);
	get(&first, store, compiler);
	ck_assert(!first.from_store && first.compile_ms > 0);
	ck_assert_int_eq(first.smem_bytes, 4096);
	get(&second, store, compiler);
	ck_assert(second.from_store);
	ck_assert(second.compile_ms == 0);
	check_same(&first, &second);
	ck_assert_str_eq(store_note(store), "");
	cubin_free(&first);
	cubin_free(&second);
	store_close(store);

	store = store_open(&(struct store_config){.dir = ""}); /* no store: still a kernel */
	get(&first, store, compiler);
	ck_assert(!first.from_store);
	cubin_free(&first);
	store_close(store);
	compiler_close(compiler);
}
END_TEST

START_TEST(warm_start_loads_no_compiler)
{
	struct cubin cubin;
	const pid_t cold = fork(); /* another process fills the store */
	if (cold == 0) {
		struct compiler *compiler = real_compiler();
		struct store *store = store_at(test_dir);
		get(&cubin, store, compiler);
		_exit(cubin.from_store || !is_mapped("libnvrtc"));
	}
	child_passed(cold);
	const pid_t warm = fork();
	if (warm == 0) {
		struct compiler *compiler = real_compiler();
		struct store *store = store_at(test_dir);
		const double start = seconds_now();
		get(&cubin, store, compiler);
		const double took = seconds_now() - start;
		_exit(!cubin.from_store       ? 1
		      : is_mapped("libnvrtc") ? 2
		      : took > 0.05           ? 3
		                              : 0); /* 5 ms are promised; a busy machine has more */
	}
	child_passed(warm);
}
END_TEST

/* The lines of checks in an entry. */
static void checks_are(struct store *store, const struct store_key *key, const char *want)
{
	struct store_entry entry = {0};
	struct text about = {0};
	ck_assert(store_get(&entry, store, key));
	const char *got = cubin_checks(&entry);
	ck_assert_str_eq(got + strspn(got, "\n"), want);
	cubin_describe(&about, &entry);
	ck_assert_int_eq(strstr(text_str(&about), "not checked on any GPU\n") != NULL, *want == '\0');
	text_free(&about);
	store_entry_free(&entry);
}

START_TEST(checks_are_remembered)
{
	struct cubin first, again;
	struct compiler *compiler = real_compiler();
	struct store *store = store_at(test_dir);
	get(&first, store, compiler);
	checks_are(store, &first.key, "");
	cubin_checked(store, &first.key, "NVIDIA H200", true);
	checks_are(store, &first.key, "check right NVIDIA H200\n");
	cubin_checked(store, &first.key, "NVIDIA H200 NVL", false);
	cubin_checked(store, &first.key, "NVIDIA H200", true);
	checks_are(store, &first.key, "check wrong NVIDIA H200 NVL\ncheck right NVIDIA H200\n");
	cubin_checked(store, &first.key, "NVIDIA H200", false); /* the last word stands */
	checks_are(store, &first.key, "check wrong NVIDIA H200 NVL\ncheck wrong NVIDIA H200\n");
	get(&again, store, compiler); /* the kernel is what it was */
	ck_assert(again.from_store);
	check_same(&first, &again);
	ck_assert_int_eq(memcmp(&first.key, &again.key, sizeof first.key), 0);
	cubin_free(&again);
	store_remove(store, &first.key);
	cubin_checked(store, &first.key, "NVIDIA H200", true); /* nothing to note it in */
	get(&again, store, compiler);
	ck_assert(!again.from_store);
	checks_are(store, &again.key, "");
	ck_assert_str_eq(store_note(store), "");
	cubin_free(&again);
	cubin_free(&first);
	store_close(store);
	compiler_close(compiler);
}
END_TEST

/* What the compiler said is no check, whatever it looks like; nor is what no one here wrote. */
START_TEST(checks_of_odd_metas)
{
	static const struct { const char *meta, *checks; } odd[] = {
		{"", ""},
		{"fagen-cubin 1\nrecipe 3\nabclog 20\ncheck right A GPU!!\n", ""},
		{"fagen-cubin 1\nrecipe 3\nabclog 4\nlog\ncheck right A\nbogus\ncheck\n", "check right A\n"},
		{"fagen-cubin 1\nrecipe 300\nabclog 4\nlog\n", ""},
		{"fagen-cubin 1\nrecipe 3\nabclog 400\ncheck right A\n", ""},
		{"fagen-cubin 1\nrecipe 3\nabc", ""},
		{"fagen-cubin 1\nrecipe 3\nabclog 4\nlog\nsignature 14\ncheck right A\ncheck right C\n", "check right C\n"},
	};
	struct store *store = store_at(test_dir);
	const struct store_key key = key_of(1);
	char want[128];
	ck_assert(store_replace(store, &key,
	                        &(struct store_entry){.meta = (char *)(uintptr_t)odd[_i].meta,
	                                              .meta_len = strlen(odd[_i].meta),
	                                              .cubin = (char *)"code",
	                                              .cubin_len = 4}));
	cubin_checked(store, &key, "B", true);
	struct store_entry entry = {0};
	ck_assert(store_get(&entry, store, &key));
	snprintf(want, sizeof want, "%scheck right B\n", odd[_i].checks);
	ck_assert_msg(entry.meta_len >= strlen(want) && strcmp(entry.meta + entry.meta_len - strlen(want), want) == 0, "%s", entry.meta);
	ck_assert_int_eq(strncmp(entry.meta, odd[_i].meta, strcspn(odd[_i].meta, "B")) == 0 || _i == 2, 1);
	store_entry_free(&entry);
	store_close(store);
}
END_TEST

static const char *const bad_metas[] = {
	"",
	"fagen-cubin 2\n",
	"fagen-cubin 1\ntarget sm_80\n",
	"fagen-cubin 1\ntarget sm_90a\nregisters 1\nspill 0\nstack 0\nsmem 0\nserialized 0\ncompile_us 1\nrecipe 900\nx",
	"fagen-cubin 1\ntarget sm_90a\nregisters -1\nspill 0\nstack 0\nsmem 0\nserialized 0\ncompile_us 1\nrecipe 0\nlog 0\n",
	"fagen-cubin 1\ntarget sm_90a\nregisters 99999999999\nspill 0\nstack 0\nsmem 0\nserialized 0\ncompile_us 1\nrecipe 0\nlog 0\n",
	"fagen-cubin 1\ntarget sm_90a\nregisters 1\nspill 0\nstack 0\nsmem 0\nserialized 0\ncompile_us 1\nrecipe 5\njunk\nlog 0\n",
};

START_TEST(unreadable_meta_is_a_miss)
{
	struct diag diag = {0};
	struct cubin cubin;
	struct store_key key;
	struct text source = source_of(kernel_source);
	struct compiler *compiler = real_compiler();
	struct store *store = store_at(test_dir);
	ck_assert_int_eq(cubin_key(&key, NULL, compiler, &source, target_find("sm_90a"), &diag), 0);
	ck_assert(store_put(store, &key,
	                    &(struct store_entry){.meta = (char *)bad_metas[_i],
	                                          .meta_len = strlen(bad_metas[_i]),
	                                          .cubin = (char *)"junk",
	                                          .cubin_len = 4}));
	get(&cubin, store, compiler);
	ck_assert(!cubin.from_store);
	cubin_free(&cubin);
	get(&cubin, store, compiler); /* it was replaced */
	ck_assert(cubin.from_store && memcmp(cubin.code, "\177ELF", 4) == 0);
	cubin_free(&cubin);
	text_free(&source);
	store_close(store);
	compiler_close(compiler);
}
END_TEST

static struct store_key key_for(const char *string, const char *target, const char *library)
{
	struct diag diag = {0};
	struct store_key key;
	struct text source = source_of(string);
	struct compiler *compiler = compiler_open(library, false);
	ck_assert_msg(cubin_key(&key, NULL, compiler, &source, target_find(target), &diag) == 0, "%s",
	              text_str(&diag.text));
	text_free(&source);
	compiler_close(compiler);
	return key;
}

/* ---- the stand-in ---- */

static char fake_path[512], fake_no_id_path[512];

static void fake_setup(void)
{
	char exe[400];
	setup();
	const ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
	ck_assert_int_gt(len, 0);
	exe[len] = '\0';
	*strrchr(exe, '/') = '\0';
	snprintf(fake_path, sizeof fake_path, "%s/fake_nvrtc/libnvrtc.so.13", exe);
	snprintf(fake_no_id_path, sizeof fake_no_id_path, "%s/fake_nvrtc_no_id/libnvrtc.so.13", exe);
	ck_assert_int_eq(access(fake_path, R_OK) + access(fake_no_id_path, R_OK), 0);
}

/* Computed with Python's hashlib: what is kept today must be found tomorrow. */
START_TEST(key_of_a_cubin_is_golden)
{
	char hex[65];
	const struct store_key key = key_for(kernel_source, "sm_90a", fake_path);
	key_hex(hex, &key);
	ck_assert_str_eq(hex, "d623379bf4758b64407ab2db5063fb64b3c6fad3818581c40f1dd531b206a329");
}
END_TEST

/* Processes that all want the kernels of one spec, which nobody has: one compiles each. */
START_TEST(cold_processes_compile_once)
{
	enum { PROCESSES = 32 };
	char log[128], cache[128], spec[128], line[512];
	pid_t child[PROCESSES];
	snprintf(log, sizeof log, "%s/log", test_dir);
	snprintf(cache, sizeof cache, "%s/cache", test_dir);
	snprintf(spec, sizeof spec, "%s/spec.yaml", test_dir);
	FILE *f = fopen(spec, "w");
	ck_assert(f && fputs("head_dim: 64\nmask: causal\npasses: [forward, backward]\n", f) >= 0 && fclose(f) == 0);
	setenv("FAGEN_NVRTC", fake_path, 1);
	setenv("FAGEN_CACHE_DIR", cache, 1);
	setenv("FAKE_NVRTC_LOG", log, 1);
	setenv("FAKE_NVRTC_MS", "300", 1);
	const char *fagen = getenv("FAGEN") ? getenv("FAGEN") : "build/release/fagen";
	for (int i = 0; i < PROCESSES; i++) {
		child[i] = fork();
		if (child[i] == 0) {
			ck_assert_ptr_nonnull(freopen("/dev/null", "w", stdout));
			execl(fagen, fagen, "--target", "sm_90a", spec, (char *)NULL);
			_exit(127);
		}
	}
	for (int i = 0; i < PROCESSES; i++)
		child_passed(child[i]);
	int compiled = 0;
	f = fopen(log, "r");
	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof line, f))
		compiled++;
	fclose(f);
	ck_assert_int_eq(compiled, 2); /* forward and backward */
	struct store *store = store_at(cache);
	struct store_stats stats;
	ck_assert_int_eq(store_stats(&stats, store, true), 0);
	ck_assert(stats.entries == 2 && stats.damaged == 0 && stats.stray == 0);
	store_close(store);
	unsetenv("FAKE_NVRTC_LOG");
	unsetenv("FAKE_NVRTC_MS");
}
END_TEST

/* `fagen cache show` of what they left. */
static int fagen_says(char *output, size_t room, const char *arguments)
{
	char command[256];
	snprintf(command, sizeof command, "ASAN_OPTIONS=detect_leaks=0 %s %s 2>&1", getenv("FAGEN") ? getenv("FAGEN") : "build/release/fagen", arguments);
	FILE *pipe = popen(command, "r");
	ck_assert_ptr_nonnull(pipe);
	output[fread(output, 1, room - 1, pipe)] = '\0';
	return WEXITSTATUS(pclose(pipe));
}

START_TEST(cache_show)
{
	char output[8192], hex[65], ask[96];
	struct cubin cubin;
	struct compiler *compiler = compiler_open(fake_path, false);
	struct store *store = store_at(test_dir);
	setenv("FAGEN_CACHE_DIR", test_dir, 1);
	ck_assert_int_eq(fagen_says(output, sizeof output, "cache show"), 0);
	ck_assert_str_eq(output, "");
	get(&cubin, store, compiler);
	key_hex(hex, &cubin.key);
	ck_assert_int_eq(fagen_says(output, sizeof output, "cache show"), 0);
	ck_assert_msg(strncmp(output, hex, 16) == 0 && strstr(output, "  sm_90a ") && strstr(output, "  not checked\n"), "%s", output);
	cubin_checked(store, &cubin.key, "NVIDIA H200", true);
	cubin_checked(store, &cubin.key, "NVIDIA H100 PCIe", true);
	ck_assert_int_eq(fagen_says(output, sizeof output, "cache show"), 0);
	ck_assert_msg(strstr(output, "  right NVIDIA H200, right NVIDIA H100 PCIe\n") != NULL, "%s", output);
	snprintf(ask, sizeof ask, "cache show %.10s", hex);
	ck_assert_int_eq(fagen_says(output, sizeof output, ask), 0);
	ck_assert_msg(strncmp(output, "key ", 4) == 0 && strncmp(output + 4, hex, 64) == 0 && strstr(output, "\ntarget sm_90a\n") &&
	                      strstr(output, "\ncheck right NVIDIA H200\n"),
	              "%s", output);
	ck_assert_int_eq(fagen_says(output, sizeof output, "cache show --json"), 0);
	ck_assert_msg(strstr(output, "\"target\": \"sm_90a\"") && strstr(output, "\"checks\": \"right NVIDIA H200, right NVIDIA H100 PCIe\""), "%s",
	              output);
	ck_assert_int_eq(fagen_says(output, sizeof output, "cache show x"), 1);
	ck_assert_ptr_nonnull(strstr(output, "no kernel has a key that begins with 'x'"));
	ck_assert_int_eq(fagen_says(output, sizeof output, "cache show x y"), 2);
	ck_assert_int_eq(fagen_says(output, sizeof output, "cache stats x"), 2);
	cubin_free(&cubin);
	store_close(store);
	compiler_close(compiler);
}
END_TEST

/* The other subcommands, with a kernel, with that one damaged, and without. */
START_TEST(cache_is_looked_after)
{
	char output[8192], hex[65], path[256];
	struct cubin cubin;
	struct compiler *compiler = compiler_open(fake_path, false);
	struct store *store = store_at(test_dir);
	setenv("FAGEN_CACHE_DIR", test_dir, 1);
	get(&cubin, store, compiler);
	key_hex(hex, &cubin.key);
	cubin_free(&cubin);
	static const struct {
		const char *arguments, *says;
		int status;
		bool damage; /* before */
	} rows[] = {
		{"cache", "1 kernels, ", 0, false},
		{"cache path", NULL, 0, false}, /* the folder */
		{"cache verify", "; 0 damaged\n", 0, false},
		{"cache gc", "freed 0 ", 0, false},
		{"cache verify", "; 1 damaged (each is made again at its next use)", 4, true},
		{"cache stats --json", "\"entries\": 1", 0, false},
		{"cache clear", "removed 1 kernels", 0, false},
		{"cache stats --json", "\"entries\": 0", 0, false},
		{"cache clear", "removed 0 kernels", 0, false},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		snprintf(path, sizeof path, "%s/v1/k/%.2s/%s.fgk", test_dir, hex, hex + 2);
		if (rows[i].damage)
			ck_assert_int_eq(truncate(path, 100), 0);
		ck_assert_int_eq(fagen_says(output, sizeof output, rows[i].arguments), rows[i].status);
		const char *want = rows[i].says ? rows[i].says : test_dir;
		ck_assert_msg(strstr(output, want) != NULL, "row %zu: '%s' is not in: %s", i, want, output);
	}
	store_close(store);
	compiler_close(compiler);
}
END_TEST

START_TEST(key_covers_what_decides_the_code)
{
	struct store_key key[16];
	int count = 0;
	key[count++] = key_for("a", "sm_80", fake_path);
	key[count++] = key_for("b", "sm_80", fake_path);
	key[count++] = key_for("a", "sm_86", fake_path);
	key[count++] = key_for("a", "sm_80", fake_no_id_path);
	setenv("NV_NVVM_VERSION", "nvvm70", 1);
	key[count++] = key_for("a", "sm_80", fake_path);
	setenv("NV_NVVM_VERSION", "", 1);
	key[count++] = key_for("a", "sm_80", fake_path);
	unsetenv("NV_NVVM_VERSION");
	setenv("NVRTC_APPEND_FLAGS", "-G", 1);
	key[count++] = key_for("a", "sm_80", fake_path);
	unsetenv("NVRTC_APPEND_FLAGS");
	setenv("FAGEN_NVRTC_OPTIONS", "--ptxas-options=-O1", 1);
	key[count++] = key_for("a", "sm_80", fake_path);
	setenv("FAGEN_NVRTC_OPTIONS", "--ptxas-options=-O1 -G", 1);
	key[count++] = key_for("a", "sm_80", fake_path);
	setenv("FAGEN_NVRTC_OPTIONS", " ", 1); /* none */
	const struct store_key none = key_for("a", "sm_80", fake_path);
	ck_assert_int_eq(memcmp(&none, &key[0], sizeof none), 0);
	unsetenv("FAGEN_NVRTC_OPTIONS");
	for (int i = 0; i < count; i++)
		for (int j = 0; j < i; j++)
			ck_assert_msg(memcmp(&key[i], &key[j], sizeof key[i]) != 0, "keys %d and %d are equal", i, j);
	char copied[512], command[2048]; /* a copy elsewhere is the same compiler, and a folder names what is in it */
	snprintf(command, sizeof command, "mkdir %s/lib && cp %s %s/lib/libnvrtc.so.12", test_dir, fake_path, test_dir);
	ck_assert_int_eq(system(command), 0);
	snprintf(copied, sizeof copied, "%s", test_dir);
	const struct store_key again = key_for("a", "sm_80", copied);
	ck_assert_int_eq(memcmp(&again, &key[0], sizeof again), 0);
}
END_TEST

START_TEST(key_explains_itself)
{
	struct diag diag = {0};
	struct store_key key;
	struct text explain = {0}, source = source_of("abc"); /* SHA-256("abc") is FIPS 180's first example */
	struct compiler *compiler = compiler_open(fake_path, false);
	ck_assert_int_eq(cubin_key(&key, &explain, compiler, &source, target_find("sm_100f"), &diag), 0);
	static const char *const parts[] = {
		"ba7816bf8f01cfea",         "--gpu-architecture=sm_100f", "--std=c++17", "fagen.cu", "cubin",
		"libnvrtc 0123456789abcdef"};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		ck_assert_msg(strstr(text_str(&explain), parts[i]) != NULL, "'%s' is not in\n%s", parts[i],
		              text_str(&explain));
	text_free(&explain);
	text_free(&source);
	compiler_close(compiler);
}
END_TEST

START_TEST(build_ids)
{
	char command[1024], want[96] = "sha256:";
	struct text id = {0};
	ck_assert_int_eq(build_id_read(&id, fake_path), 0);
	ck_assert_str_eq(text_str(&id), "0123456789abcdef");
	text_free(&id);
	snprintf(command, sizeof command, "sha256sum %s", fake_no_id_path);
	FILE *sum = popen(command, "r");
	ck_assert(sum && fread(want + 7, 1, 64, sum) == 64);
	pclose(sum);
	ck_assert_int_eq(build_id_read(&id, fake_no_id_path), 0);
	ck_assert_str_eq(text_str(&id), want);
	text_free(&id);
	ck_assert_int_eq(build_id_read(&id, test_dir), -1);
	ck_assert_int_eq(build_id_read(&id, "/nowhere/libnvrtc.so.13"), -1);
	text_free(&id);
}
END_TEST

/* Compiles with the library and returns what it was told, until the next call; "" if it went well. */
static const char *complaint(const char *library, const char *target)
{
	static char said[8192];
	struct diag diag = {0};
	struct cubin cubin = {0};
	struct text source = source_of(kernel_source);
	struct compiler *compiler = compiler_open(library, false);
	const int result = compiler_run(&cubin, compiler, &source, target_find(target), &diag);
	ck_assert_int_eq(result, diag.errors ? -1 : 0);
	snprintf(said, sizeof said, "%s", text_str(&diag.text));
	cubin_free(&cubin);
	diag_free(&diag);
	text_free(&source);
	compiler_close(compiler);
	return said;
}

static void check_says(const char *said, const char *a, const char *b, const char *c)
{
	const char *const parts[] = {a, b, c};
	for (int i = 0; i < 3; i++)
		ck_assert_msg(strstr(said, parts[i]) != NULL, "'%s' is not in: %s", parts[i], said);
}

START_TEST(too_old)
{
	setenv("FAKE_NVRTC_VERSION", "11.0", 1);
	check_says(complaint(fake_path, "sm_80"), fake_path, "11.0", "12.0 or newer");
	setenv("FAKE_NVRTC_VERSION", "12.8", 1);
	ck_assert_str_eq(complaint(fake_path, "sm_80"), "");
	ck_assert_str_eq(complaint(fake_path, "sm_90a"), "");
	const char *said = complaint(fake_path, "sm_120f");
	check_says(said, fake_path, "12.8", "12.9 or newer");
	check_says(said, "sm_120f", "FAGEN_NVRTC", "too old");
	setenv("FAKE_NVRTC_VERSION", "12.9", 1);
	ck_assert_str_eq(complaint(fake_path, "sm_120f"), "");
	setenv("FAKE_NVRTC_VERSION", "99.0", 1); /* one that has dropped the target */
	setenv("FAKE_NVRTC_REFUSES", "--gpu-architecture=sm_80", 1);
	said = complaint(fake_path, "sm_80");
	check_says(said, fake_path, "99.0", "sm_50 sm_61");
}
END_TEST

START_TEST(other_failures)
{
	setenv("FAKE_NVRTC_RESULT", "7", 1);
	check_says(complaint(fake_path, "sm_80"), fake_path, "libnvrtc-builtins.so.13.0", "beside it");
	setenv("FAKE_NVRTC_RESULT", "11", 1);
	check_says(complaint(fake_path, "sm_80"), "nvrtcCompileProgram", "FAKE_ERROR", "the fake says no");
	setenv("FAKE_NVRTC_RESULT", "6", 1);
	check_says(complaint(fake_path, "sm_80"), "refused the source", "sm_80", "the fake says no");
	char missing[256];
	snprintf(missing, sizeof missing, "%s/libnvrtc.so.13", test_dir);
	check_says(complaint(missing, "sm_80"), missing, "was not found", "FAGEN_NVRTC");
	check_says(complaint("", "sm_80"), "turned off", "not in the cache", "nvrtc_path");
	void *other = dlopen("libyaml-0.so.2", RTLD_LAZY); /* a library, but not this one */
	struct link_map *map;
	if (other && dlinfo(other, RTLD_DI_LINKMAP, &map) == 0)
		check_says(complaint(map->l_name, "sm_80"), map->l_name, "not a usable NVRTC", "nvrtcVersion");
}
END_TEST

static int lines_of(const char *path, char *last, size_t size)
{
	int lines = 0;
	FILE *f = fopen(path, "r");
	ck_assert_ptr_nonnull(f);
	while (fgets(last, (int)size, f))
		lines++;
	fclose(f);
	return lines;
}

START_TEST(options_an_old_one_does_not_know)
{
	char log[256], last[512];
	struct diag diag = {0};
	struct cubin cubin = {0};
	struct text source = source_of(kernel_source);
	snprintf(log, sizeof log, "%s/log", test_dir);
	setenv("FAKE_NVRTC_LOG", log, 1);
	setenv("FAKE_NVRTC_REFUSES", "-modify-stack-limit=false", 1);
	struct compiler *compiler = compiler_open(fake_path, false);
	ck_assert_int_eq(compiler_run(&cubin, compiler, &source, target_find("sm_80"), &diag), 0);
	cubin_free(&cubin);
	ck_assert_int_eq(lines_of(log, last, sizeof last), 2);
	ck_assert(strstr(last, "--no-cache") && !strstr(last, "-modify-stack-limit"));
	ck_assert_int_eq(compiler_run(&cubin, compiler, &source, target_find("sm_80"), &diag), 0);
	cubin_free(&cubin);
	ck_assert_int_eq(lines_of(log, last, sizeof last), 3); /* learned */
	setenv("FAKE_NVRTC_REFUSES", "-modify-stack-limit=false --no-cache", 1);
	ck_assert_int_eq(compiler_run(&cubin, compiler, &source, target_find("sm_80"), &diag), 0);
	ck_assert_int_eq(lines_of(log, last, sizeof last), 5);
	ck_assert(!strstr(last, "--no-cache") && strstr(last, "--std=c++17"));
	cubin_free(&cubin);
	text_free(&source);
	compiler_close(compiler);
}
END_TEST

START_TEST(options_of_the_variable)
{
	static const struct {
		const char *variable;
		bool ignore_env;
		const char *end; /* of what NVRTC is told before what leaves the code alone */
	} rows[] = {
		{"  --ptxas-options=-O1\t-lineinfo ", false, "--warn-on-spills --ptxas-options=-O1 -lineinfo --no-cache"},
		{"--ptxas-options=-O1", true, "--warn-on-spills --no-cache"},
		{"", false, "--warn-on-spills --no-cache"},
		{"1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 ", false, " 27 28 --no-cache"},
		{"1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34", false, " 33 34 --no-cache"},
	};
	char log[256], last[512];
	struct text source = source_of(kernel_source);
	snprintf(log, sizeof log, "%s/log", test_dir);
	setenv("FAKE_NVRTC_LOG", log, 1);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct diag diag = {0};
		struct cubin cubin = {0};
		setenv("FAGEN_NVRTC_OPTIONS", rows[i].variable, 1);
		struct compiler *compiler = compiler_open(fake_path, rows[i].ignore_env);
		ck_assert_int_eq(compiler_run(&cubin, compiler, &source, target_find("sm_80"), &diag), 0);
		ck_assert_int_eq(lines_of(log, last, sizeof last), (int)i + 1);
		ck_assert_msg(strstr(last, rows[i].end) != NULL, "'%s' is not in %s", rows[i].end, last);
		cubin_free(&cubin);
		compiler_close(compiler);
	}
	setenv("FAGEN_NVRTC_OPTIONS", "--no-such", 1);
	setenv("FAKE_NVRTC_REFUSES", "--no-such", 1);
	check_says(complaint(fake_path, "sm_80"), fake_path, "refused an option", "FAGEN_NVRTC_OPTIONS");
	text_free(&source);
}
END_TEST

static void check_found(const char *want)
{
	struct compiler *compiler = compiler_open(NULL, false);
	ck_assert_str_eq(compiler_path(compiler), want);
	compiler_close(compiler);
}

START_TEST(search_order)
{
	char path[512], command[2048];
	snprintf(command, sizeof command, "mkdir -p %s/lib64 && cp %s %s/lib64/", test_dir, fake_path, test_dir);
	ck_assert_int_eq(system(command), 0);
	unsetenv("FAGEN_NVRTC");
	unsetenv("CUDA_PATH");
	setenv("CUDA_HOME", test_dir, 1);
	snprintf(path, sizeof path, "%s/lib64/libnvrtc.so.13", test_dir);
	check_found(path);
	void *mapped = dlopen(fake_no_id_path, RTLD_LAZY | RTLD_LOCAL); /* before that: the copy the program has */
	ck_assert_ptr_nonnull(mapped);
	check_found(fake_no_id_path);
	setenv("FAGEN_NVRTC", fake_path, 1);
	check_found(fake_path);
	setenv("FAGEN_NVRTC", "/nowhere", 1); /* what is named is used, or nothing */
	check_found("");
	struct compiler *compiler = compiler_open(NULL, true);
	ck_assert_str_eq(compiler_path(compiler), fake_no_id_path);
	compiler_close(compiler);
}
END_TEST

START_TEST(log_of_ptxas)
{
	static const char log[] =
		"ptxas warning : Registers are spilled to local memory in function 'f', 384 bytes spill stores, 380 bytes spill loads\n"
		"ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ...\n"
		"ptxas info    : 0 bytes gmem\n"
		"ptxas info    : Compiling entry function 'g' for 'sm_90a'\n"
		"ptxas info    : Function properties for g\n"
		"ptxas         .     8 bytes stack frame, 4 bytes spill stores, 2 bytes spill loads\n"
		"ptxas info    : Used 168 registers, used 0 barriers\n"
		"ptxas info    : Compiling entry function 'f' for 'sm_90a'\n"
		"ptxas info    : Function properties for f\n"
		"ptxas         .     176 bytes stack frame, 384 bytes spill stores, 380 bytes spill loads\n"
		"ptxas info    : Used 64 registers, used 0 barriers, 176 bytes cumulative stack size\n";
	struct cubin cubin = {0};
	nvrtc_log_parse(&cubin, log);
	ck_assert_int_eq(cubin.registers, 168);
	ck_assert_int_eq(cubin.spill_bytes, 770);
	ck_assert_int_eq(cubin.stack_bytes, 176);
	ck_assert(cubin.serialized);
	nvrtc_log_parse(&cubin, "");
	ck_assert_int_eq(cubin.registers + cubin.spill_bytes + cubin.stack_bytes + cubin.serialized, 0);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("nvrtc");
	TCase *c = tcase_create("compile");
	tcase_add_checked_fixture(c, setup, dir_teardown);
	tcase_set_timeout(c, 60);
	tcase_add_loop_test(c, every_target_twice, 0, TARGET_COUNT);
	tcase_add_test(c, threads_of_small_stacks);
	tcase_add_test(c, the_process_is_left_alone);
	tcase_add_test(c, spills_are_seen);
	tcase_add_test(c, refused_source);
	tcase_add_test(c, no_headers);
	tcase_add_test(c, ptx_text);
	suite_add_tcase(s, c);

	c = tcase_create("through the store");
	tcase_add_checked_fixture(c, setup, dir_teardown);
	tcase_set_timeout(c, 60);
	tcase_add_test(c, second_get_is_a_hit);
	tcase_add_test(c, checks_are_remembered);
	tcase_add_loop_test(c, checks_of_odd_metas, 0, 7);
	tcase_add_test(c, warm_start_loads_no_compiler);
	tcase_add_loop_test(c, unreadable_meta_is_a_miss, 0, sizeof bad_metas / sizeof *bad_metas);
	suite_add_tcase(s, c);

	c = tcase_create("stand-in");
	tcase_add_checked_fixture(c, fake_setup, dir_teardown);
	tcase_set_timeout(c, 60);
	tcase_add_test(c, key_of_a_cubin_is_golden);
	tcase_add_test(c, cold_processes_compile_once);
	tcase_add_test(c, cache_show);
	tcase_add_test(c, cache_is_looked_after);
	tcase_add_test(c, key_covers_what_decides_the_code);
	tcase_add_test(c, key_explains_itself);
	tcase_add_test(c, build_ids);
	tcase_add_test(c, too_old);
	tcase_add_test(c, other_failures);
	tcase_add_test(c, options_an_old_one_does_not_know);
	tcase_add_test(c, options_of_the_variable);
	tcase_add_test(c, search_order);
	tcase_add_test(c, log_of_ptxas);
	suite_add_tcase(s, c);
	return s;
}
