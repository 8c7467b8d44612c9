/* fagen calibrate without a GPU: device rows and their file, the arithmetic from timings to rates, the microbenchmarks as
 * compiled code, and the command where there is nothing to measure. */
#include <check.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/calibrate.h"
#include "cli/cli.h"
#include "tests/fake_use.h"

Suite *suite(void);

static const struct device made_up = {.name = "H200",
                                      .target = "sm_90a",
                                      .sms = 131,
                                      .clock_ghz = 1.7125,
                                      .hbm_gbs = 4711,
                                      .l2_gbs = 5432.1,
                                      .l2_mib = 50,
                                      .mma_flop_clk = 2541,
                                      .exp_clk = 15,
                                      .alu_clk = 127,
                                      .launch_us = 2.25};

static const char row[] =
	"- name: My GPU\n  target: sm_80\n  sms: 10\n  clock_ghz: 1.5\n  hbm_gbs: 900\n"
	"  l2_gbs: 2000\n  l2_mib: 6\n  mma_flop_clk: 512\n  exp_clk: 16\n  alu_clk: 64\n  launch_us: 3\n";

static void rows_equal(const struct device *a, const struct device *b)
{
	ck_assert_str_eq(a->name, b->name);
	ck_assert_str_eq(a->target, b->target);
	ck_assert(a->sms == b->sms && a->mma_flop_clk == b->mma_flop_clk && a->exp_clk == b->exp_clk &&
	          a->alu_clk == b->alu_clk);
	ck_assert(a->clock_ghz == b->clock_ghz && a->hbm_gbs == b->hbm_gbs && a->l2_gbs == b->l2_gbs &&
	          a->l2_mib == b->l2_mib && a->launch_us == b->launch_us);
}

static struct device_list list;

static void good(const char *yaml)
{
	struct diag diag = {0};
	ck_assert_msg(!device_list_parse(&list, yaml, strlen(yaml), "d.yaml", &diag), "%s", text_str(&diag.text));
	ck_assert_int_eq(diag.errors, 0);
	diag_free(&diag);
}

static void bad(const char *yaml, const char *message)
{
	struct diag diag = {0};
	ck_assert_int_eq(device_list_parse(&list, yaml, strlen(yaml), "d.yaml", &diag), -1);
	ck_assert_msg(!strncmp(text_str(&diag.text), message, strlen(message)), "said:\n%swant:\n%s",
	              text_str(&diag.text), message);
	ck_assert_int_eq(list.count, device_count); /* the table alone */
	rows_equal(&list.row[0], &device_table[0]);
	diag_free(&diag);
}

/* The good row with one piece exchanged. */
static const char *with(const char *from, const char *to)
{
	static char text[1024];
	const char *at = strstr(row, from);
	ck_assert_ptr_nonnull(at);
	snprintf(text, sizeof text, "%.*s%s%s", (int)(at - row), row, to, at + strlen(from));
	return text;
}

START_TEST(rows_read_back)
{
	struct text yaml = {0};
	for (int i = 0; i < device_count; i++)
		device_print(&yaml, &device_table[i]);
	good(text_str(&yaml));
	ck_assert_int_eq(list.count, device_count);
	for (int i = 0; i < device_count; i++) {
		rows_equal(&list.row[i], &device_table[i]);
		ck_assert_ptr_ne(list.row[i].name, device_table[i].name);
	}
	struct device odd = made_up;
	odd.name = "A \"quoted\" \\ name: # of 63 letters, no more, 012345678901234567";
	ck_assert_uint_eq(strlen(odd.name), DEVICE_NAME_MAX - 1);
	odd.clock_ghz = 1.0 / 3;
	text_free(&yaml);
	device_print(&yaml, &odd);
	good(text_str(&yaml));
	rows_equal(&list.row[device_count], &odd);
	text_free(&yaml);
}
END_TEST

START_TEST(rows_replace_and_add)
{
	struct text yaml = {0};
	device_print(&yaml, &made_up);
	text_puts(&yaml, row);
	good(text_str(&yaml));
	text_free(&yaml);
	ck_assert_int_eq(list.count, device_count + 1);
	rows_equal(device_list_find(&list, "NVIDIA H200"), &made_up);
	ck_assert_int_eq(device_find("H200")->sms, 132); /* the table is as it was */
	ck_assert_int_eq(device_list_find(&list, "nvidia my gpu-80GB")->mma_flop_clk, 512);
	ck_assert_ptr_null(device_find("My GPU"));
	ck_assert_str_eq(device_list_find(&list, "H100")->name, "H100");
	ck_assert_int_eq(device_list_for_target(&list, target_find("sm_90a"))->sms, 131);
	ck_assert_str_eq(device_list_for_target(&list, target_find("sm_80"))->name, "A100");
	/* A name in another case is the same name. */
	good(with("My GPU", "h200"));
	ck_assert_int_eq(list.count, device_count);
	ck_assert_int_eq(device_list_find(&list, "H200")->sms, 10);
}
END_TEST

START_TEST(bad_rows_are_refused)
{
	bad(with("launch_us: 3", "lunch_us: 3"),
	    "d.yaml:1:3: error: devices: 'launch_us' is missing\n    - name: My GPU\n      ^\n"
	    "d.yaml:11:3: error: devices: unknown key 'lunch_us'; want name, target, sms, clock_ghz, hbm_gbs, l2_gbs, l2_mib, "
	    "mma_flop_clk, exp_clk, alu_clk or launch_us; did you mean 'launch_us'?\n");
	bad(with("sm_80", "sm_81"),
	    "d.yaml:2:11: error: devices.target: found 'sm_81'; want sm_80, sm_86, sm_89, sm_90a, "
	    "sm_100f or sm_120f; did you mean 'sm_80'?\n");
	bad(with("sms: 10", "sms: 0"),
	    "d.yaml:3:8: error: devices.sms: '0' is out of range; want an integer from 1 to 4096; the nearest is 1\n");
	bad(with("1.5", "fast"),
	    "d.yaml:4:14: error: devices.clock_ghz: 'fast' is not a number; want a number from 0.1 to 10\n");
	bad(with("l2_mib: 6", "sms: 10"), "d.yaml:1:3: error: devices: 'l2_mib' is missing\n");
	bad(with("exp_clk: 16", "exp_clk: 16.5"),
	    "d.yaml:9:12: error: devices.exp_clk: '16.5' is not a whole number; want an integer from 1 to 4096\n");
	bad("head_dim: 64\n",
	    "d.yaml:1:1: error: a file of devices is a list, as `fagen calibrate` writes it: '- name: ...' and "
	    "the other fields below\n");
	bad("", "d.yaml: error: a file of devices is a list");
	bad("[1", "d.yaml:2:1: error: not valid YAML: ");
	char twice[2048];
	snprintf(twice, sizeof twice, "%s%s", row, row);
	bad(twice, "d.yaml:12:9: error: devices.name: 'My GPU' is in line 1 already; one row for each GPU\n");
	char many[65536] = "";
	size_t at = 0;
	for (int i = 0; i <= DEVICE_ROWS_MAX - device_count; i++) {
		char name[16];
		snprintf(name, sizeof name, "GPU %d", i);
		at += (size_t)snprintf(many + at, sizeof many - at, "%s", with("My GPU", name));
	}
	char message[128];
	snprintf(message, sizeof message, "d.yaml:%d:3: error: devices: more than 64, with the %d that are built in\n",
	         11 * (DEVICE_ROWS_MAX - device_count) + 1, device_count);
	bad(many, message);
}
END_TEST

/* ---- from timings to a row ---- */

/* Every repetition at the rates of a GPU that one could have. */
static void timings(struct measured m[MEASURE_COUNT])
{
	static const double amount[MEASURE_COUNT] = {
		[MEASURE_MMA] = 2540e3,   [MEASURE_EXP] = 16e3,  [MEASURE_ALU] = 127.6e3, [MEASURE_SMEM] = 126e3,
		[MEASURE_CLOCK] = 1712.3, [MEASURE_L2] = 5500e3, [MEASURE_HBM] = 4320e3,  [MEASURE_LAUNCH] = 2341};
	for (int i = 0; i < MEASURE_COUNT; i++)
		for (int r = 0; r < REPETITIONS; r++) {
			m[i].amount[r] = amount[i] * (r + 1);
			m[i].over[r] = 1000 * (r + 1);
		}
}

static const struct gpu gpu = {.name = "NVIDIA GeForce Test 1", .cc = 90, .sms = 132, .l2_bytes = 50 << 20};

START_TEST(timings_become_a_row)
{
	struct measured m[MEASURE_COUNT];
	struct diag diag = {0};
	double rate[MEASURE_COUNT];
	struct device device;
	timings(m);
	/* Four outliers of nine do not move a median. */
	m[MEASURE_HBM].over[0] = 1e9;
	m[MEASURE_HBM].over[3] = 1e9;
	m[MEASURE_HBM].over[5] = 1;
	m[MEASURE_HBM].over[8] = 1;
	ck_assert_msg(!rates_make(rate, m, &diag), "%s", text_str(&diag.text));
	device_make(&device, rate, &gpu, target_find("sm_90a"));
	const struct device want = {.name = "Test 1",
	                            .target = "sm_90a",
	                            .sms = 132,
	                            .clock_ghz = 1.712,
	                            .hbm_gbs = 4800,
	                            .l2_gbs = 5500,
	                            .l2_mib = 50,
	                            .mma_flop_clk = 2540,
	                            .exp_clk = 16,
	                            .alu_clk = 128,
	                            .launch_us = 2.34};
	rows_equal(&device, &want);
	ck_assert_int_eq(diag.warnings, 0);
	const double even[] = {4, 1, 3, 2};
	ck_assert(median_of(even, 4) == 2.5 && median_of(even, 1) == 4);
}
END_TEST

/* hbm_gbs of a row is more than a copy reaches: the planner must come to what was measured. */
START_TEST(the_planner_reaches_the_measured_bandwidth)
{
	static const char yaml[] = "head_dim: 64\npasses: [forward]\n";
	struct measured m[MEASURE_COUNT];
	struct diag diag = {0};
	double rate[MEASURE_COUNT];
	struct device device;
	struct spec *spec = malloc(sizeof *spec);
	struct program *program = malloc(sizeof *program);
	struct plan *plan = malloc(sizeof *plan);
	timings(m);
	ck_assert(!rates_make(rate, m, &diag));
	device_make(&device, rate, &gpu, target_find("sm_90a"));
	ck_assert(!spec_parse(spec, yaml, strlen(yaml), "t", &diag) && !program_lower(program, spec, &diag) &&
	          !plan_make(plan, spec, program, target_find("sm_90a"), &device, &spec->assume, PASS_FORWARD, &diag));
	const struct candidate *c = &plan->candidate[plan->chosen];
	const double gbs = c->hbm_bytes / (c->cost_us[COST_HBM] * 1e3);
	ck_assert_msg(fabs(gbs - 4320) < 1, "%g GB/s", gbs);
	diag_free(&diag);
	free(spec);
	free(program);
	free(plan);
}
END_TEST

START_TEST(implausible_timings_are_named)
{
	struct measured m[MEASURE_COUNT];
	struct diag diag = {0};
	double rate[MEASURE_COUNT];
	timings(m);
	for (int r = 0; r < REPETITIONS; r++)
		m[MEASURE_EXP].amount[r] /= 10;
	m[MEASURE_L2].over[4] = 0;
	ck_assert_int_eq(rates_make(rate, m, &diag), -1);
	ck_assert_str_eq(
		text_str(&diag.text),
		"error: Measuring exponentials (ex2) gave 1.6 results per clock and SM; between 4 and 128 is plausible. "
		"Is the GPU used by another program?\n"
		"error: Measuring L2 bandwidth took no time: the GPU's clocks or events do not count.\n");
	diag_free(&diag);
	timings(m);
	m[MEASURE_CLOCK].over[2] = NAN;
	ck_assert_int_eq(rates_make(rate, m, &diag), -1);
	ck_assert_ptr_nonnull(strstr(text_str(&diag.text), "the clock under matrix load took no time"));
	diag_free(&diag);
}
END_TEST

START_TEST(the_file_tells_where_it_is_from)
{
	struct text out = {0};
	struct diag diag = {0};
	double rate[MEASURE_COUNT] = {2540, 16, 128, 116, 1.7, 5500, 4300, 2.5};
	device_write(&out, &made_up, rate, &gpu, 12080, "2030-01-02", &diag);
	ck_assert_ptr_nonnull(strstr(text_str(&out), "on 2030-01-02: NVIDIA GeForce Test 1, driver of CUDA 12.8.\n"));
	ck_assert_ptr_nonnull(strstr(text_str(&out), "#   shared memory (ldmatrix): 116 bytes per clock and SM\n"));
	ck_assert_int_eq(diag.warnings, 0); /* within a tenth of 128 */
	good(text_str(&out));
	rows_equal(device_list_find(&list, "H200"), &made_up);
	rate[MEASURE_SMEM] = 64;
	device_write(&out, &made_up, rate, &gpu, 12080, "2030-01-02", &diag);
	ck_assert_str_eq(
		text_str(&diag.text),
		"warning: Shared memory gives 64 bytes per clock and SM; the model counts on 128, so its predictions for "
		"this GPU are off where shared memory bounds a kernel.\n");
	diag_free(&diag);
	text_free(&out);
}
END_TEST

/* ---- the microbenchmarks, and the command ---- */

START_TEST(every_target_compiles)
{
	struct compiler *compiler = compiler_open(NULL, false);
	for (int t = 0; t < TARGET_COUNT; t++) {
		struct diag diag = {0};
		struct text source = {0}, ptx = {0};
		struct cubin cubin = {0};
		ck_assert_int_eq(calibrate_emit(&source, NULL, &diag), 0);
		ck_assert_msg(!compiler_run(&cubin, compiler, &source, &target_table[t], &diag), "%s",
		              text_str(&diag.text));
		ck_assert_int_eq(cubin.spill_bytes, 0);
		ck_assert_int_eq(cubin.stack_bytes, 0);
		ck_assert_int_le(cubin.registers, 128); /* 512 threads of them fit an SM */
		/* The front end has left nothing out: four rounds unrolled, and a tail. */
		ck_assert(!compiler_ptx(&ptx, compiler, &source, &target_table[t], &diag));
		static const struct {
			const char *instruction;
			int least;
		} kept[] = {{"mma.sync.aligned.m16n8k16", 32},
		            {"ex2.approx", 32},
		            {"fma.rn.f32", 32},
		            {"ldmatrix.sync", 8},
		            {"ld.global.cg", 8}};
		for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
			int found = 0;
			for (const char *at = text_str(&ptx); (at = strstr(at, kept[i].instruction)); at++)
				found++;
			ck_assert_msg(found >= kept[i].least, "%s: %d times", kept[i].instruction, found);
		}
		cubin_free(&cubin);
		text_free(&source);
		text_free(&ptx);
		diag_free(&diag);
	}
	compiler_close(compiler);
}
END_TEST

/* Runs the command in this process; what it says on either stream. */
static int command(char said[4096], char *const *argv, int argc)
{
	char arguments[8][64], *copy[9] = {NULL};
	for (int i = 0; i < argc; i++) {
		snprintf(arguments[i], sizeof arguments[i], "%s", argv[i]);
		copy[i] = arguments[i];
	}
	fflush(stdout);
	FILE *file = tmpfile();
	ck_assert_ptr_nonnull(file);
	const int out = dup(1), err = dup(2);
	dup2(fileno(file), 1);
	dup2(fileno(file), 2);
	const int status = cmd_calibrate(argc, copy);
	fflush(stdout);
	dup2(out, 1);
	dup2(err, 2);
	close(out);
	close(err);
	rewind(file);
	said[fread(said, 1, 4095, file)] = '\0';
	fclose(file);
	return status;
}
#define COMMAND(said, ...)                                             \
	command(said, (char *const[]){"calibrate", __VA_ARGS__, NULL}, \
	        (int)(sizeof((char *const[]){"calibrate", __VA_ARGS__}) / sizeof(char *)))

START_TEST(the_command_fails_cleanly)
{
	char said[4096];
	struct fake fake = fake_open();
	fake.state->device_count = 0;
	unsetenv("FAGEN_DEVICES");
	ck_assert_int_eq(COMMAND(said, "-o", "/tmp/fagen_t_calibrate.yaml"), EXIT_MACHINE);
	ck_assert_str_eq(
		said, "error: Device 0 was asked for, but the driver sees no GPU (is CUDA_VISIBLE_DEVICES empty?).\n");
	ck_assert_int_ne(access("/tmp/fagen_t_calibrate.yaml", F_OK), 0);
	fake.state->device_count = 2;
	ck_assert_int_eq(COMMAND(said, "--device-index", "7"), EXIT_MACHINE);
	ck_assert_str_eq(said, "error: Device 7 was asked for, but the driver sees 2 GPUs: use 0 to 1.\n");
	fake.state->device_count = 4;
	ck_assert_int_eq(COMMAND(said, "--device-index", "3"), EXIT_MACHINE);
	ck_assert_str_eq(
		said, "error: Device 3, NVIDIA Tesla V100, has compute capability 7.0, which no target of fagen runs "
		      "on.\n");
	fake.state->memory_free = 300 << 20;
	ck_assert_int_eq(COMMAND(said, "-o", "-"), EXIT_MACHINE);
	ck_assert_str_eq(
		said,
		"error: Measuring DRAM bandwidth needs 800 MiB of free memory on the GPU, 16 times its L2; 300 MiB "
		"are free.\n");
	/* The fake runs no kernel: no CTA writes what it took. A launch of 512 threads takes 512 us there. */
	fake.state->memory_free = 800 << 20;
	const int before = fake.state->calls;
	ck_assert_int_eq(COMMAND(said, "-o", "/tmp/fagen_t_calibrate.yaml"), EXIT_MACHINE);
	ck_assert_str_eq(
		said,
		"error: Measuring matrix products (mma.sync m16n8k16, bf16) took no time: the GPU's clocks or events do "
		"not count.\n"
		"error: Measuring exponentials (ex2) took no time: the GPU's clocks or events do not count.\n"
		"error: Measuring float32 multiply-adds took no time: the GPU's clocks or events do not count.\n"
		"error: Measuring shared memory (ldmatrix) took no time: the GPU's clocks or events do not count.\n"
		"error: Measuring the clock under matrix load took no time: the GPU's clocks or events do not count.\n"
		"error: Measuring launches of an empty kernel gave 512 us; between 0.1 and 100 is plausible. Is the GPU "
		"used by another program?\n");
	ck_assert_int_ne(access("/tmp/fagen_t_calibrate.yaml", F_OK), 0);
	ck_assert_int_eq(fake_count(&fake, FAKE_cuMemAlloc_v2, before), 4);
	ck_assert_int_eq(fake_count(&fake, FAKE_cuMemFree_v2, before), 4);
	ck_assert_int_eq(fake_count(&fake, FAKE_cuEventCreate, before),
	                 fake_count(&fake, FAKE_cuEventDestroy_v2, before));
	ck_assert_int_eq(fake.state->libraries, 0);
	/* Whatever call fails, it is said, and everything is given back. */
	for (int at = 1; at < 60; at += 3) {
		fake.state->fail_at = fake.state->calls + at;
		fake.state->fail_result = 2;
		fake.state->failed_call = -1;
		ck_assert_int_eq(COMMAND(said, "-o", "-"), EXIT_MACHINE);
		const int call = fake.state->failed_call;
		ck_assert_msg(strstr(said, "failed: CUDA_ERROR_OUT_OF_MEMORY (2)") != NULL, "call %d: %s", call, said);
		ck_assert_int_eq(fake.state->libraries, 0);
	}
	fake.state->fail_at = 0;
	ck_assert_int_eq(fake.state->pushes, fake.state->pops);
	ck_assert_int_eq(fake.state->broken, 0);
	ck_assert_int_eq(COMMAND(said, "--device-index", "-1"), EXIT_USAGE);
	ck_assert_int_eq(COMMAND(said, "spec.yaml"), EXIT_USAGE);
	ck_assert_ptr_nonnull(strstr(said, "fagen calibrate: 'spec.yaml' is not an option; it takes no spec.\n"));
}
END_TEST

/* A written file has the permissions of any other that this process makes. */
START_TEST(a_file_is_for_everybody)
{
	static const char path[] = "/tmp/fagen_t_calibrate_mode";
	struct stat status;
	const mode_t mask = umask(027);
	ck_assert_int_eq(file_write(path, "x", 1), 0);
	umask(mask);
	ck_assert_int_eq(stat(path, &status), 0);
	ck_assert_uint_eq(status.st_mode & 0777, 0640);
	unlink(path);
}
END_TEST

/* A runtime plans with the rows of FAGEN_DEVICES, unless told to read no variable; and says what is wrong with them. */
START_TEST(a_runtime_reads_the_file)
{
	static const char path[] = "/tmp/fagen_t_calibrate_rows.yaml";
	fagen_runtime *rt = NULL;
	fagen_error error = {.struct_size = sizeof error};
	const fagen_config deaf = {.struct_size = sizeof deaf, .ignore_env = 1, .cache_dir = ""};
	struct text yaml = {0};
	device_print(&yaml, &made_up);
	ck_assert_int_eq(file_write(path, yaml.data, yaml.len), 0);
	setenv("FAGEN_DEVICES", path, 1);
	ck_assert_msg(!fagen_open(&rt, NULL, &error), "%s", error.message);
	rows_equal(device_list_find(runtime_devices(rt), "H200"), &made_up);
	fagen_close(rt);
	ck_assert_int_eq(file_write(path, "- 7\n", 4), 0);
	ck_assert_int_eq(fagen_open(&rt, NULL, &error), FAGEN_ERROR_INVALID);
	ck_assert_str_eq(error.field, "FAGEN_DEVICES");
	ck_assert_int_eq(error.line, 1);
	ck_assert_int_eq(error.column, 3);
	ck_assert_ptr_nonnull(strstr(error.message, "rows.yaml:1:3: error: devices: found '7'"));
	ck_assert_msg(!fagen_open(&rt, &deaf, &error), "%s", error.message);
	rows_equal(device_list_find(runtime_devices(rt), "H200"), device_find("H200"));
	fagen_close(rt);
	remove(path);
	ck_assert_int_eq(fagen_open(&rt, NULL, &error), FAGEN_ERROR_INVALID);
	ck_assert_ptr_nonnull(strstr(error.message, "cannot open /tmp/fagen_t_calibrate_rows.yaml: No such file"));
	setenv("FAGEN_DEVICES", "", 1);
	ck_assert_int_eq(fagen_open(&rt, NULL, &error), FAGEN_OK);
	fagen_close(rt);
	text_free(&yaml);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("calibrate");
	TCase *c = tcase_create("calibrate");
	tcase_set_timeout(c, 120);
	tcase_add_test(c, rows_read_back);
	tcase_add_test(c, rows_replace_and_add);
	tcase_add_test(c, bad_rows_are_refused);
	tcase_add_test(c, timings_become_a_row);
	tcase_add_test(c, the_planner_reaches_the_measured_bandwidth);
	tcase_add_test(c, implausible_timings_are_named);
	tcase_add_test(c, the_file_tells_where_it_is_from);
	tcase_add_test(c, every_target_compiles);
	tcase_add_test(c, the_command_fails_cleanly);
	tcase_add_test(c, a_file_is_for_everybody);
	tcase_add_test(c, a_runtime_reads_the_file);
	suite_add_tcase(s, c);
	return s;
}
