/* fagen tune without a GPU: over a driver that is not one, where a launch takes as many microseconds as a CTA has threads, and with a
 * judge of its own in place of check/run_case.c. The compiler is the fake of t_nvrtc. */
#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "check/case.h"
#include "cli/cli.h"
#include "cli/tune.h"
#include "tests/fake_use.h"
#include "tests/store_help.h"

Suite *suite(void);

/* ---- the judge ---- */

static struct {
	enum check_status status;
	int wrong_n;      /* a tile of so many keys is WRONG, whatever else */
	int kill_at;      /* the judgement of this number ends the process */
	int *judged;      /* counted here, for all processes */
} judge;

void check_run(struct check_outcome *out, const struct check_case *c, fagen_runtime *rt, const fagen_spec *spec,
               const struct check_options *options)
{
	const struct spec *s = runtime_spec(spec);
	const int pass = s->tile[PASS_BACKWARD].m ? PASS_BACKWARD : PASS_FORWARD;
	*out = (struct check_outcome){.status = judge.status};
	ck_assert(s->tile[pass].m && s->tile[pass].warps && s->tile[pass].stages); /* one tile, in full */
	ck_assert(s->passes[PASS_BACKWARD] == (pass == PASS_BACKWARD));
	ck_assert_int_le(c->seqlen_q, 1000);
	if (judge.wrong_n && s->tile[pass].n == judge.wrong_n)
		out->status = CHECK_WRONG;
	if (out->status)
		strcpy(out->text, "so says the judge");
	if (__atomic_add_fetch(judge.judged, 1, __ATOMIC_SEQ_CST) == judge.kill_at)
		kill(getpid(), SIGKILL);
}

/* ---- the machine ---- */

static struct fake fake;
static char spec_path[128], file[128], output[1 << 16], errors[1 << 16];

static void machine_setup(void)
{
	char folder[512], path[640];
	dir_setup();
	fake = fake_open();
	test_folder(folder);
	snprintf(path, sizeof path, "%s/fake_nvrtc/libnvrtc.so.13", folder);
	setenv("FAGEN_NVRTC", path, 1);
	snprintf(path, sizeof path, "%s/cache", test_dir);
	setenv("FAGEN_CACHE_DIR", path, 1);
	unsetenv("FAGEN_DEVICES");
	unsetenv("FAGEN_TEMPLATES");
	snprintf(spec_path, sizeof spec_path, "%s/tiles.yaml", test_dir);
	snprintf(file, sizeof file, "%s/gpu.wisdom", test_dir);
	memset(&judge, 0, sizeof judge);
	judge.judged = mmap(NULL, sizeof *judge.judged, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert(judge.judged != MAP_FAILED);
}

static void spec_write(const char *yaml)
{
	FILE *f = fopen(spec_path, "w");
	ck_assert(f && fputs(yaml, f) >= 0 && fclose(f) == 0);
}

static void read_back(char *to, size_t room, const char *path)
{
	FILE *f = fopen(path, "r");
	ck_assert_ptr_nonnull(f);
	to[fread(to, 1, room - 1, f)] = '\0';
	fclose(f);
}

/* Runs a command in this process, with what it prints caught. */
static int command(int (*run)(int, char **), const char *const *argument)
{
	char *argv[32], out[160], err[160];
	int argc = 0;
	for (; argument[argc]; argc++)
		argv[argc] = (char *)(uintptr_t)argument[argc];
	argv[argc] = NULL;
	snprintf(out, sizeof out, "%s/out", test_dir);
	snprintf(err, sizeof err, "%s/err", test_dir);
	fflush(NULL);
	const int keep[2] = {dup(1), dup(2)};
	ck_assert(freopen(out, "w", stdout) && freopen(err, "w", stderr));
	const int status = run(argc, argv);
	fflush(NULL);
	dup2(keep[0], 1);
	dup2(keep[1], 2);
	close(keep[0]);
	close(keep[1]);
	read_back(output, sizeof output, out);
	read_back(errors, sizeof errors, err);
	return status;
}
#define TUNE(...) command(cmd_tune, (const char *const[]){"tune", __VA_ARGS__, NULL})
#define WISDOM(...) command(cmd_wisdom, (const char *const[]){"wisdom", __VA_ARGS__, NULL})

static void wisdom_read(struct wisdom *w)
{
	struct diag diag = {0};
	*w = (struct wisdom){0};
	ck_assert_msg(wisdom_load(w, file, &diag) == 0, "%s", text_str(&diag.text));
	diag_free(&diag);
}

static const char both[] = "head_dim: 64\nmask: causal\npasses: [forward, backward]\nassume: {batch: 2, heads: 16, seqlen: 4096}\n";

/* The threads of the kernels of a pass, by which the fake driver measures, with a tile forced by the spec. */
static int64_t threads_of(const struct tile_choice *choice, const struct problem *problem, enum pass pass)
{
	struct diag diag = {0};
	struct spec *spec = malloc(sizeof *spec);
	struct program *program = malloc(sizeof *program);
	struct plan *plan = malloc(sizeof *plan);
	ck_assert(spec && program && plan && !spec_load(spec, spec_path, &diag) && !program_lower(program, spec, &diag));
	spec->tile[pass] = choice->tile;
	ck_assert_msg(!plan_make(plan, spec, program, target_find("sm_90a"), device_find("H200"), problem, pass, &diag), "%s",
	              text_str(&diag.text));
	ck_assert_str_eq(plan->templ, choice->templ);
	int64_t threads = 0; /* of kernels that are launched */
	const struct recipe_shape shape = problem_shape(problem, 132);
	for (int i = 0; i < plan->recipe.kernel_count; i++)
		if (recipe_grid_size(&plan->recipe.kernel[i], &shape) > 0)
			threads += plan->recipe.kernel[i].threads;
	diag_free(&diag);
	free(spec), free(program), free(plan);
	return threads;
}

/* ---- what it finds ---- */

START_TEST(the_fastest_tile_is_found_and_kept)
{
	struct wisdom w;
	spec_write(both);
	ck_assert_msg(TUNE(spec_path, "-o", file) == 0, "%s", errors);
	ck_assert_str_eq(errors, ""); /* no progress where there is no terminal */
	wisdom_read(&w);
	ck_assert_int_eq(w.count, 2);
	for (int i = 0; i < 2; i++) {
		const struct wisdom_entry *e = &w.entry[i];
		const struct tuned *t = &e->tuned;
		ck_assert_str_eq(e->gpu, "H200");
		ck_assert(e->sms == 132 && e->pass == (enum pass)i && t->rounds == 7 && t->noise == 0);
		ck_assert_int_eq(e->problem.seqlen_q, 4096);
		ck_assert_int_eq(t->ns, 1000 * threads_of(&t->tile, &e->problem, e->pass));
		ck_assert_int_eq(t->planner_ns, 1000 * threads_of(&t->planner, &e->problem, e->pass));
		ck_assert_int_lt(t->ns, t->planner_ns);
		/* Nothing is faster than four warps. */
		ck_assert_int_eq(t->tile.tile.warps, 4);
	}
	ck_assert_ptr_nonnull(strstr(output, "NVIDIA H200\n"));
	ck_assert_ptr_nonnull(strstr(output, "  of "));
	ck_assert_int_le(*judge.judged, 4); /* two cases for each winner */
	wisdom_free(&w);
}
END_TEST

START_TEST(the_planner_takes_it_when_it_is_given)
{
	spec_write(both);
	ck_assert_msg(TUNE(spec_path, "-o", file) == 0, "%s", errors);
	struct wisdom w;
	wisdom_read(&w);
	for (int given = 0; given < 2; given++) {
		fagen_runtime *rt;
		fagen_spec *spec;
		fagen_kernel *kernel;
		fagen_error error = {.struct_size = sizeof error};
		fagen_kernel_info info = {.struct_size = sizeof info};
		const fagen_config config = {.struct_size = sizeof config, .wisdom_path = given ? file : ""};
		ck_assert_int_eq(fagen_open(&rt, &config, &error), 0);
		ck_assert_int_eq(fagen_spec_load(&spec, rt, spec_path, &error), 0);
		ck_assert_msg(fagen_kernel_get(&kernel, rt, spec, NULL, 0, &error) == 0, "%s", error.message);
		ck_assert_int_eq(fagen_kernel_describe(&info, kernel, &error), 0);
		for (int pass = 0; pass < PASS_COUNT; pass++) {
			const struct tuned *t = &w.entry[pass].tuned;
			const struct tile_choice *want = given ? &t->tile : &t->planner;
			ck_assert_int_eq(info.tile_m[pass], want->tile.m);
			ck_assert_int_eq(info.tile_n[pass], want->tile.n);
			ck_assert_str_eq(runtime_plan(kernel, pass)->templ, want->templ);
			/* A kernel that was tuned is in the cache: naming a tile and finding it give the same source. */
			ck_assert_str_eq(info.source[pass], "cache");
		}
		fagen_close(rt);
	}
	wisdom_free(&w);
	const fagen_config bad = {.struct_size = sizeof bad, .wisdom_path = spec_path};
	fagen_error error = {.struct_size = sizeof error};
	fagen_runtime *rt;
	ck_assert_int_eq(fagen_open(&rt, &bad, &error), FAGEN_ERROR_INVALID);
	ck_assert_str_eq(error.field, "wisdom_path");
	ck_assert_ptr_nonnull(strstr(error.message, "want 'fagen-wisdom '"));
}
END_TEST

START_TEST(what_was_measured_is_not_measured_again)
{
	char before[1 << 14], after[1 << 14];
	spec_write(both);
	ck_assert_int_eq(TUNE(spec_path, "-o", file, "--pass", "forward", "--rounds", "3"), 0);
	read_back(before, sizeof before, file);
	const int launches = fake.state->launches, judged = *judge.judged;
	ck_assert_int_eq(TUNE(spec_path, "-o", file, "--pass", "forward", "--rounds", "3"), 0);
	ck_assert_int_eq(fake.state->launches, launches);
	ck_assert_int_eq(*judge.judged, judged);
	ck_assert_ptr_nonnull(strstr(output, "measured before"));
	read_back(after, sizeof after, file);
	ck_assert_str_eq(before, after);
	/* The class is, whatever its problem; other rounds, passes and classes are not. */
	ck_assert_int_eq(TUNE(spec_path, "-o", file, "--pass", "forward", "--rounds", "3", "--shapes", "s4000 s2049"), 0);
	ck_assert_int_eq(fake.state->launches, launches);
	ck_assert_int_eq(TUNE(spec_path, "-o", file, "--pass", "forward", "--rounds", "4"), 0);
	ck_assert_int_gt(fake.state->launches, launches);
	ck_assert_int_eq(TUNE(spec_path, "-o", file, "--rounds", "2", "--shapes", "s512 b2,h8,q256,k512"), 0);
	struct wisdom w;
	wisdom_read(&w);
	ck_assert_int_eq(w.count, 5);
	for (int i = 0; i < w.count; i++)
		ck_assert_int_eq(w.entry[i].tuned.rounds, w.entry[i].problem.seqlen_q == 4096 ? 4 : 2);
	wisdom_free(&w);
}
END_TEST

START_TEST(a_wrong_tile_is_named_and_does_not_win)
{
	struct wisdom w;
	spec_write("head_dim: 64\nassume: {batch: 1, heads: 4, seqlen: 1024}\n");
	ck_assert_int_eq(TUNE(spec_path, "-o", file, "--rounds", "1"), 0);
	wisdom_read(&w);
	judge.wrong_n = w.entry[0].tuned.tile.tile.n;
	wisdom_free(&w);
	ck_assert_int_eq(unlink(file), 0);
	ck_assert_int_eq(TUNE(spec_path, "-o", file, "--rounds", "2"), EXIT_CHECK);
	ck_assert_ptr_nonnull(strstr(errors, "is WRONG for tiles:"));
	ck_assert_ptr_nonnull(strstr(errors, "so says the judge"));
	wisdom_read(&w);
	ck_assert_int_eq(w.count, 1);
	ck_assert_int_ne(w.entry[0].tuned.tile.tile.n, judge.wrong_n);
	wisdom_free(&w);
	ck_assert_int_eq(unlink(file), 0);
	/* All wrong: three are tried, nothing is written. */
	judge.wrong_n = 0;
	judge.status = CHECK_WRONG;
	*judge.judged = 0;
	ck_assert_int_eq(TUNE(spec_path, "-o", file), EXIT_CHECK);
	ck_assert_int_eq(*judge.judged, 3);
	ck_assert_int_ne(access(file, F_OK), 0);
	ck_assert_ptr_nonnull(strstr(errors, "no tile of the forward pass could be measured and found right"));
	/* A machine that cannot judge ends the run. */
	judge.status = CHECK_MACHINE;
	*judge.judged = 0;
	ck_assert_int_eq(TUNE(spec_path, spec_path, "-o", file), EXIT_MACHINE);
	ck_assert_int_eq(*judge.judged, 1);
	ck_assert_int_ne(access(file, F_OK), 0);
}
END_TEST

/* What the head of the source says of a tile. */
static void deny(const struct tile_choice *c)
{
	char head[160];
	snprintf(head, sizeof head, "//   tile      %d x %d\n//   warps     %d\n//   stages    %d\n", c->tile.m, c->tile.n, c->tile.warps, c->tile.stages);
	setenv("FAKE_NVRTC_DENIES", head, 1);
}

START_TEST(a_tile_that_does_not_compile_is_named_and_left_out)
{
	struct wisdom w;
	spec_write("head_dim: 64\nassume: {batch: 2, heads: 16, seqlen: 4096}\n");
	ck_assert_int_eq(TUNE(spec_path, "-o", file, "--rounds", "1"), 0);
	ck_assert_str_eq(errors, "");
	wisdom_read(&w);
	const struct tuned before = w.entry[0].tuned;
	char name[WISDOM_TILE_MAX], winner[WISDOM_TILE_MAX];
	tile_choice_print(name, &before.tile);
	wisdom_free(&w);
	ck_assert_int_eq(unlink(file), 0);
	deny(&before.tile);
	char place[160]; /* what was compiled before would do */
	snprintf(place, sizeof place, "%s/cold", test_dir);
	setenv("FAGEN_CACHE_DIR", place, 1);
	ck_assert_int_eq(TUNE(spec_path, "-o", file, "--rounds", "1"), 0);
	ck_assert_msg(strstr(errors, "warning: ") && strstr(errors, name) && strstr(errors, "is left out: "), "%s", errors);
	wisdom_read(&w);
	tile_choice_print(winner, &w.entry[0].tuned.tile);
	ck_assert_str_ne(winner, name);
	wisdom_free(&w);
	/* The planner's own is needed. */
	ck_assert_int_eq(unlink(file), 0);
	deny(&before.planner);
	snprintf(place, sizeof place, "%s/colder", test_dir);
	setenv("FAGEN_CACHE_DIR", place, 1);
	ck_assert_int_eq(TUNE(spec_path, "-o", file, "--rounds", "1"), EXIT_MACHINE);
	ck_assert_ptr_nonnull(strstr(errors, "that tile is the planner's choice"));
	ck_assert_int_ne(access(file, F_OK), 0);
	unsetenv("FAKE_NVRTC_DENIES");
}
END_TEST

/* Every driver call fails once: the command ends with a status and a message, and what the file has is whole. */
START_TEST(failing_driver_calls)
{
	spec_write("head_dim: 64\nassume: {batch: 1, heads: 1, seqlen: 64}\ntile: {m: 64, n: 64}\n");
	ck_assert_int_eq(TUNE(spec_path, "-o", file, "--rounds", "1"), 0);
	const int calls = fake.state->calls;
	int failed = 0;
	for (int n = 1; n <= calls; n += n < 40 ? 1 : calls / 20) { /* the launches in between are all alike */
		struct wisdom w = {0};
		unlink(file);
		fake.state->calls = 0;
		fake.state->fail_at = n;
		fake.state->fail_result = 719;
		fake.state->failed_call = -1;
		const int status = TUNE(spec_path, "-o", file, "--rounds", "1");
		const bool fired = fake.state->failed_call >= 0;
		fake.state->fail_at = 0;
		ck_assert_int_eq(fake.state->broken, 0);
		ck_assert_int_eq(fake.depth(), 0);
		if (status)
			ck_assert_msg(errors[0] != '\0', "call %d", n);
		else
			ck_assert_int_eq(access(file, F_OK), 0);
		if (access(file, F_OK) == 0) {
			wisdom_read(&w);
			ck_assert_int_eq(w.count, 1);
			wisdom_free(&w);
		}
		failed += fired && status == EXIT_MACHINE;
	}
	ck_assert_int_gt(failed, 30);
}
END_TEST

/* A fault at each call of a run: the later it comes the more is in the file, up to the last round that ended before it, beside what
 * the file had; the error names what the driver said; and a run after it goes on from there. */
START_TEST(no_fault_loses_what_was_measured)
{
	enum { ROUNDS = 2 };
	static char had[1 << 12];
	int before = 0, seen[ROUNDS + 1] = {0};
	/* Few tiles fit, there is room for one set of tensors, and seven launches take longer than a round: few calls. */
	fake.state->device[0] = (struct fake_device){"NVIDIA GeForce RTX 3090", 8, 6, 82, 101376};
	fake.state->memory_free = 800000;
	fake.state->us_of_thread = 10;
	spec_write("head_dim: 224\nassume: {batch: 1, heads: 1}\n");
	ck_assert_int_eq(TUNE(spec_path, "-o", file, "--shapes", "q64,k128", "--rounds", "2"), 0);
	read_back(had, sizeof had, file);
	int calls = 1;
	for (int n = 0; n <= calls; n++) { /* the first without a fault */
		struct wisdom w;
		ck_assert_int_eq(file_write(file, had, strlen(had)), 0);
		fake.state->calls = 0;
		fake.state->fail_at = n;
		fake.state->fail_result = 719;
		fake.state->failed_call = -1;
		const int status = TUNE(spec_path, "-o", file, "--shapes", "q128,k64", "--rounds", "2");
		const int failed = fake.state->failed_call;
		fake.state->fail_at = 0;
		/* What fails to give something back has not. */
		fake.state->libraries -= failed == FAKE_cuLibraryUnload;
		fake.state->retained -= failed == FAKE_cuDevicePrimaryCtxRelease_v2;
		fake_ck_left(&fake);
		calls = n ? calls : fake.state->calls;
		ck_assert_msg(status == 0 || (status == EXIT_MACHINE && strstr(errors, "719")), "call %d (%d): %d, %s", n, failed, status, errors);
		wisdom_read(&w);
		int kept = 0, others = 0;
		for (int i = 0; i < w.count; i++)
			*(w.entry[i].problem.seqlen_q == 128 ? &kept : &others) += w.entry[i].tuned.rounds;
		wisdom_free(&w);
		ck_assert_int_eq(others, ROUNDS);
		if (!status) { /* what ends a measurement may fail, and a tile of several */
			ck_assert_int_eq(kept, ROUNDS);
			continue;
		}
		ck_assert_msg(kept >= before, "call %d (%d): %d rounds, there were %d", n, failed, kept, before);
		seen[kept]++;
		before = kept;
		if (n % 16)
			continue;
		ck_assert_int_eq(TUNE(spec_path, "-o", file, "--shapes", "q128,k64 q64,k128", "--rounds", "2"), 0);
		ck_assert_ptr_nonnull(strstr(output, "measured before"));
	}
	printf("a fault at each of %d calls of a run\n", calls);
	for (int i = 0; i < ROUNDS; i++)
		ck_assert_msg(seen[i] > 100, "%d faults after %d rounds", seen[i], i);
}
END_TEST

/* ---- kills ---- */

/* A child that tunes many shapes, is killed at a judgement or at any time, and then one that goes on. */
START_TEST(a_killed_run_loses_nothing)
{
	enum { SHAPES = 6 };
	static const char shapes[] = "s64 s128 s256 s512 s1024 s2048";
	spec_write("head_dim: 64\nassume: {batch: 1, heads: 1, seqlen: 64}\n");
	int finished = 0, kept = 0;
	srand(11);
	for (int turn = 0; turn < 40 && !finished; turn++) {
		judge.kill_at = turn % 2 ? 2 * turn : 0; /* every other is killed from outside */
		const pid_t child = fork();
		if (child == 0) {
			ck_assert(freopen("/dev/null", "w", stdout) && freopen("/dev/null", "w", stderr));
			const char *argv[] = {"tune", spec_path, "-o", file, "--shapes", shapes, "--rounds", "2", NULL};
			_exit(cmd_tune(8, (char **)(uintptr_t)argv));
		}
		int status;
		if (turn % 2 == 0) {
			sleep_ms(20 + rand() % 150);
			kill(child, SIGKILL);
		}
		ck_assert_int_eq(waitpid(child, &status, 0), child);
		finished = WIFEXITED(status);
		ck_assert(!finished || WEXITSTATUS(status) == 0);
		struct wisdom w = {0};
		if (access(file, F_OK) == 0)
			wisdom_read(&w);
		ck_assert_msg(w.count >= kept, "turn %d: %d lines, there were %d", turn, w.count, kept);
		kept = w.count;
		wisdom_free(&w);
	}
	judge.kill_at = 0;
	ck_assert_int_eq(TUNE(spec_path, "-o", file, "--shapes", shapes, "--rounds", "2"), 0);
	struct wisdom w;
	wisdom_read(&w);
	ck_assert_int_eq(w.count, SHAPES);
	wisdom_free(&w);
}
END_TEST

START_TEST(many_save_into_one_file)
{
	enum { PROCESSES = 8, LINES = 12 };
	pid_t child[PROCESSES];
	for (int i = 0; i < PROCESSES; i++) {
		child[i] = fork();
		if (child[i])
			continue;
		struct wisdom mine = {0};
		struct diag diag = {0};
		int rc = 0;
		for (int k = 0; k < LINES && !rc; k++) {
			struct wisdom_entry e = {.sms = 1 + i, .problem = {1, 1, 1, 1 << k, 1, 16}, .spec = (char[]){"{}"}};
			strcpy(e.gpu, "G");
			e.tuned = (struct tuned){.tile = {"a", {1, 1, 1, 1}}, .planner = {"a", {1, 1, 1, 1}}, .ns = 1, .planner_ns = 1, .rounds = 1};
			rc = wisdom_add(&mine, &e) || wisdom_save(file, &mine, &diag);
		}
		_exit(rc ? 1 : 0);
	}
	for (int i = 0; i < PROCESSES; i++)
		child_passed(child[i]);
	struct wisdom w;
	wisdom_read(&w);
	ck_assert_int_eq(w.count, PROCESSES * LINES);
	wisdom_free(&w);
}
END_TEST

/* ---- the parts ---- */

START_TEST(shapes_of_the_command_line)
{
	struct problem_flags f[SHAPES_MAX];
	struct diag diag = {0};
	int count = 0;
	ck_assert_int_eq(shapes_parse(f, &count, " b4,s4096  h32/8,q1,k8192 h3 ", &diag), 0);
	ck_assert_int_eq(count, 3);
	ck_assert(f[0].batch == 4 && f[0].seq_q == 4096 && f[0].seq_k == 4096 && f[0].heads == -1 && f[0].heads_kv == -1);
	ck_assert(f[1].batch == -1 && f[1].heads == 32 && f[1].heads_kv == 8 && f[1].seq_q == 1 && f[1].seq_k == 8192);
	ck_assert(f[2].heads == 3 && f[2].heads_kv == -1 && f[2].seq_q == -1);
	static const struct { const char *text, *part; } bad[] = {
		{"x4", "'x4'"}, {"b", "'b'"}, {"b0", "'b0'"}, {"b4;", "'b4;'"}, {"b4,", "''"}, {"s4096,,b2", "''"}, {"h4/", "'h4/'"},
		{"b1 b99999999999999999999", "'b99999999999999999999'"}, {"b-1", "'b-1'"}, {"s2147483648", "'s2147483648'"},
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		count = 0;
		ck_assert_int_eq(shapes_parse(f, &count, bad[i].text, &diag), -1);
		ck_assert_msg(strstr(text_str(&diag.text), bad[i].part) != NULL, "%s: %s", bad[i].text, text_str(&diag.text));
		diag_free(&diag);
		diag = (struct diag){0};
	}
	count = SHAPES_MAX;
	ck_assert_int_eq(shapes_parse(f, &count, "b1", &diag), -1);
	diag_free(&diag);
}
END_TEST

START_TEST(rounds_become_one_tile)
{
	static struct tune_job job;
	fagen_kernel *const some = (fagen_kernel *)&job; /* only looked at for NULL */
	job.count = 4;
	job.planner = 1;
	const double us[4][3] = {{103, 100, 99}, {102, 101, 100.5}, {90, 120, 121}, {150, 149, 151}};
	for (int i = 0; i < 4; i++) {
		job.tile[i].kernel = some;
		memcpy(job.tile[i].us, us[i], sizeof us[i]);
		job.tile[i].rounds = 3;
	}
	struct tuned t;
	ck_assert_int_eq(tiles_fastest(&job), 1); /* 100 is the median of 0; the planner's 101 is not clearly slower */
	job.tile[1].us[0] = job.tile[1].us[1] = 101.5;
	ck_assert_int_eq(tiles_fastest(&job), 0);
	tuned_make(&t, &job, 0);
	ck_assert_int_eq(t.ns, 100000);
	ck_assert_int_eq(t.planner_ns, 101500);
	ck_assert_int_eq(t.noise, 10); /* of 3, 0 and 1 hundredths the middle one */
	ck_assert_int_eq(t.rounds, 3);
	ck_assert(tile_alive(&job, 0) && tile_alive(&job, 1) && tile_alive(&job, 2) && !tile_alive(&job, 3));
	job.tile[3].rounds = 1; /* too early to say, and not compared with those of more rounds */
	job.tile[3].us[0] = 10;
	ck_assert(tile_alive(&job, 3));
	ck_assert_int_eq(tiles_fastest(&job), 0);
	job.tile[0].verdict = WRONG;
	ck_assert(!tile_alive(&job, 0));
	ck_assert_int_eq(tiles_fastest(&job), 1);
	job.tile[1].us[0] = job.tile[1].us[1] = 400; /* the planner's is timed to the end all the same */
	ck_assert(tile_alive(&job, 1));
	ck_assert_int_eq(tiles_fastest(&job), 2);
	for (int i = 0; i < 4; i++)
		job.tile[i].kernel = NULL;
	ck_assert_int_eq(tiles_fastest(&job), -1);
}
END_TEST

/* ---- requests ---- */

START_TEST(requests_are_refused_by_name)
{
	spec_write(both);
	ck_assert_int_eq(TUNE(spec_path), EXIT_USAGE);
	ck_assert_ptr_nonnull(strstr(errors, "-o FILE names the file"));
	ck_assert_int_eq(TUNE("-o", file), EXIT_USAGE);
	ck_assert_int_eq(TUNE(spec_path, "-o", file, "--rounds", "0"), EXIT_USAGE);
	ck_assert_int_eq(TUNE(spec_path, "-o", file, "--rounds", "100"), EXIT_USAGE);
	ck_assert_int_eq(TUNE(spec_path, "-o", file, "--pass", "sideways"), EXIT_USAGE);
	ck_assert_int_eq(TUNE(spec_path, "-o", file, "--shapes", "s0"), EXIT_USAGE);
	ck_assert_int_eq(TUNE("--help"), 0);
	ck_assert_int_eq(TUNE("/nonexistent.yaml", "-o", file), EXIT_REQUEST);
	ck_assert_ptr_nonnull(strstr(errors, "/nonexistent.yaml"));
	/* A file that is none of wisdom is left as it is. */
	ck_assert_int_eq(TUNE(spec_path, "-o", spec_path), EXIT_REQUEST);
	ck_assert_ptr_nonnull(strstr(errors, "want 'fagen-wisdom '"));
	read_back(output, sizeof output, spec_path);
	ck_assert_str_eq(output, both);
	/* A place that cannot be written ends the run at the first line. */
	ck_assert_int_eq(TUNE(spec_path, "-o", "/nonexistent/x"), EXIT_MACHINE);
	ck_assert_ptr_nonnull(strstr(errors, "/nonexistent/x could not be written"));
}
END_TEST

START_TEST(files_are_merged_and_exported)
{
	char other[160], merged[160];
	snprintf(other, sizeof other, "%s/other", test_dir);
	snprintf(merged, sizeof merged, "%s/merged", test_dir);
	spec_write(both);
	ck_assert_int_eq(TUNE(spec_path, "-o", file, "--rounds", "1"), 0);
	strcpy(fake.state->device[0].name, "NVIDIA H100 PCIe");
	ck_assert_int_eq(TUNE(spec_path, "-o", other, "--rounds", "1"), 0);
	ck_assert_int_eq(WISDOM(file, other), 0);
	char both_ways[1 << 14];
	strcpy(both_ways, output);
	ck_assert_int_eq(WISDOM(other, file, other, "-o", merged), 0);
	read_back(output, sizeof output, merged);
	ck_assert_str_eq(output, both_ways);
	ck_assert_int_eq(WISDOM(merged, file, "-o", merged), 0); /* into one of them */
	read_back(output, sizeof output, merged);
	ck_assert_str_eq(output, both_ways);
	ck_assert_int_eq(WISDOM(merged, "--gpu", "H200"), 0);
	read_back(both_ways, sizeof both_ways, file);
	ck_assert_str_eq(output, both_ways);
	ck_assert_int_eq(WISDOM(merged, "--gpu", "A100"), EXIT_REQUEST);
	ck_assert_msg(strstr(errors, "No line is of a GPU called 'A100'; there are H100 PCIe, H200.") != NULL, "%s", errors);
	ck_assert_int_eq(WISDOM(merged, spec_path), EXIT_REQUEST);
	ck_assert_str_eq(output, "");
	ck_assert_int_eq(WISDOM("-o", merged), EXIT_USAGE);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("tune");
	TCase *c = tcase_create("tune");
	tcase_add_checked_fixture(c, machine_setup, dir_teardown);
	tcase_set_timeout(c, 120);
	tcase_add_test(c, the_fastest_tile_is_found_and_kept);
	tcase_add_test(c, the_planner_takes_it_when_it_is_given);
	tcase_add_test(c, what_was_measured_is_not_measured_again);
	tcase_add_test(c, a_wrong_tile_is_named_and_does_not_win);
	tcase_add_test(c, a_tile_that_does_not_compile_is_named_and_left_out);
	suite_add_tcase(s, c);
	c = tcase_create("faults");
	tcase_add_checked_fixture(c, machine_setup, dir_teardown);
	tcase_set_timeout(c, 120);
	tcase_add_test(c, failing_driver_calls);
	tcase_add_test(c, no_fault_loses_what_was_measured);
	suite_add_tcase(s, c);
	c = tcase_create("kills");
	tcase_add_checked_fixture(c, machine_setup, dir_teardown);
	tcase_set_timeout(c, 120);
	tcase_add_test(c, a_killed_run_loses_nothing);
	tcase_add_test(c, many_save_into_one_file);
	suite_add_tcase(s, c);
	c = tcase_create("parts");
	tcase_add_checked_fixture(c, machine_setup, dir_teardown);
	tcase_set_timeout(c, 60);
	tcase_add_test(c, shapes_of_the_command_line);
	tcase_add_test(c, rounds_become_one_tile);
	tcase_add_test(c, requests_are_refused_by_name);
	tcase_add_test(c, files_are_merged_and_exported);
	suite_add_tcase(s, c);
	return s;
}
