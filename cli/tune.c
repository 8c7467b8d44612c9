/* fagen tune: measures which tiles are the fastest, and keeps that as lines of wisdom. What was measured is in the file at once, so
 * that a run that is killed begins where it ended. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/tune.h"

static const double round_seconds = 0.004; /* of measurement for each tile */
enum { ROUNDS = 7, WRONG_MAX = 3 /* tiles of one pass; then the fault is none of the tiles' */ };

struct options {
	struct bench_options bench;
	struct problem_flags shape[SHAPES_MAX];
	int shapes, rounds;
	int pass;         /* -1: those of the spec */
	const char *path; /* of the file */
};

struct tune {
	struct bench *bench;
	const struct options *options;
	const struct target *target;
	const struct device *device;
	struct wisdom wisdom;
	struct tune_job *job;
	struct diag *diag;
	bool progress, over; /* over: this machine measures, judges or writes no more */
	int status, done, jobs; /* jobs: of the whole run */
};

static void usage(FILE *out)
{
	fputs("usage: fagen tune SPEC... -o FILE [options]\n"
	      "Times the tiles of each pass of each spec by turns on the GPU, compares the fastest with the reference, and adds a line\n"
	      "to FILE. Classes of problems that FILE has already are left alone: a run that was stopped goes on where it was.\n"
	      "`--wisdom FILE` of the other commands, and fagen_config.wisdom_path, make the planner use it.\n"
	      "  --shapes 'b4,s4096 b1,h32/8,q1,k8192'\n"
	      "                    the problems: b batch, h heads (of queries/of keys), s lengths, q and k one of them; what is left out\n"
	      "                    is as the spec assumes, which is also the default. May be repeated\n"
	      "  -o FILE           where the lines go\n"
	      "  --pass NAME       only this pass (forward, backward)\n"
	      "  --rounds N        how often each tile has its turn (default 7)\n"
	      "  --device N        which GPU (default 0)\n"
	      "  -h, --help\n",
	      out);
}

/* ---- one pass of one problem ---- */

/* The first status that is not 0 is that of the command. */
static int fail(struct tune *t, int status)
{
	t->status = t->status ? t->status : status ? status : EXIT_MACHINE;
	return -1;
}

/* The messages so far, each once. */
static void messages_give(struct tune *t)
{
	if (t->diag->text.len && t->progress)
		fputs("\r\033[K", stderr);
	fputs(text_str(&t->diag->text), stderr);
	diag_free(t->diag);
	*t->diag = (struct diag){0};
}

static int give_up(struct tune *t, int status)
{
	t->over = status == EXIT_MACHINE;
	return fail(t, status);
}

static void progress_print(const struct tune *t, const char *what, int round)
{
	if (!t->progress)
		return;
	static const char bar[] = "####################";
	struct text problem = {0};
	const int width = (int)sizeof bar - 1, full = t->jobs ? width * t->done / t->jobs : 0;
	problem_print(&problem, &t->bench->problem);
	fprintf(stderr, "\r\033[K[%-*.*s] %d/%d %s %s %s: ", width, full, bar, t->done, t->jobs, t->bench->spec->name,
	        pass_names[t->job->pass], text_str(&problem));
	if (round < 0)
		fputs(what, stderr);
	else
		fprintf(stderr, "%s %d/%d", what, round + 1, t->options->rounds);
	text_free(&problem);
}

static int round_time(struct tune *t, int round)
{
	struct tune_job *job = t->job;
	struct bench *b = t->bench;
	bool alive[TUNE_TILES_MAX];
	for (int i = 0; i < job->count; i++)
		alive[i] = tile_alive(job, i);
	for (int k = 0; k < job->count; k++) { /* to and fro, so that a GPU that becomes warm favours nobody */
		const int i = round % 2 ? job->count - 1 - k : k;
		struct tune_tile *tile = &job->tile[i];
		int status;
		if (!alive[i])
			continue;
		if (workspace_make(b, tile->kernel, t->diag, &status) ||
		    pass_time(&tile->us[tile->rounds], b, tile->kernel, job->pass, round_seconds, t->diag, &status)) {
			char name[WISDOM_TILE_MAX];
			tile_choice_print(name, &tile->choice);
			diag_fail(t->diag, "That was the tile %s.", name);
			return give_up(t, status);
		}
		tile->rounds++;
	}
	return 0;
}

/* The fastest tile that is right. -1: there is none, or nothing can be judged. */
static int fastest_right(struct tune *t)
{
	for (int wrong = 0; wrong < WRONG_MAX; wrong++) {
		const int best = tiles_fastest(t->job);
		if (best < 0)
			return -1;
		struct tune_tile *tile = &t->job->tile[best];
		int status = 0;
		if (tile->verdict == RIGHT)
			return best;
		if (tile_judge(tile, t->bench, t->diag, &status))
			return give_up(t, status);
		if (tile->verdict == WRONG) {
			messages_give(t);
			fail(t, EXIT_CHECK);
		} else {
			return best;
		}
	}
	return diag_fail(t->diag, "%s: that many tiles of the %s pass are wrong that no more are tried.", t->bench->spec->name,
	                 pass_names[t->job->pass]);
}

static int line_save(struct tune *t, struct wisdom_entry *key, int fastest)
{
	tuned_make(&key->tuned, t->job, fastest);
	if (wisdom_add(&t->wisdom, key)) {
		diag_fail(t->diag, "Out of memory.");
		return give_up(t, EXIT_MACHINE);
	}
	return wisdom_save(t->options->path, &t->wisdom, t->diag) ? give_up(t, EXIT_MACHINE) : 0;
}

static void result_print(struct tune *t, const struct tuned *tuned, const char *how)
{
	struct text problem = {0};
	char tile[WISDOM_TILE_MAX], planner[WISDOM_TILE_MAX];
	tile_choice_print(tile, &tuned->tile);
	tile_choice_print(planner, &tuned->planner);
	problem_print(&problem, &t->bench->problem);
	if (t->progress)
		fputs("\r\033[K", stderr);
	printf("%-20s  %-8s  %-38s  %-26s  %9.3f  %5.1f%%  %-26s  %9.3f  %6.3f  %s\n", t->bench->spec->name, pass_names[t->job->pass],
	       text_str(&problem), tile, (double)tuned->ns * 1e-6, tuned->noise / 10.0, planner,
	       (double)tuned->planner_ns * 1e-6, (double)tuned->planner_ns / (double)tuned->ns, how);
	fflush(stdout);
	text_free(&problem);
}

static int job_measure(struct tune *t, struct wisdom_entry *key)
{
	struct tune_job *job = t->job;
	int status, fastest = -1;
	char how[32];
	progress_print(t, "compiling", -1);
	if (tiles_collect(job, t->bench, t->target, t->device, t->diag))
		return fail(t, EXIT_REQUEST);
	if (tiles_compile(job, t->bench, t->diag, &status))
		return fail(t, status);
	messages_give(t);
	for (int round = 0; round < t->options->rounds; round++) {
		progress_print(t, "round", round);
		if (round_time(t, round) || (fastest = fastest_right(t)) < 0 || line_save(t, key, fastest))
			break;
	}
	if (fastest < 0) {
		diag_fail(t->diag, "%s: no tile of the %s pass could be measured and found right.", t->bench->spec->name,
		          pass_names[job->pass]);
		return fail(t, EXIT_CHECK);
	}
	snprintf(how, sizeof how, "of %d tiles", job->count);
	result_print(t, &key->tuned, how);
	return 0;
}

static void job_run(struct tune *t, const char *path, enum pass pass)
{
	struct wisdom_entry key;
	memset(t->job, 0, sizeof *t->job);
	t->job->path = path;
	t->job->pass = pass;
	wisdom_key(&key, t->bench->spec, t->device, &t->bench->problem, pass);
	const struct wisdom_entry *old = wisdom_find(&t->wisdom, &key);
	if (old && old->tuned.rounds >= t->options->rounds)
		result_print(t, &old->tuned, "measured before");
	else if (t->bench->data.sets == 0 && data_make(t->bench, t->diag)) /* both passes have the same */
		fail(t, EXIT_MACHINE);
	else
		(void)job_measure(t, &key);
	messages_give(t);
	tiles_free(t->job);
	free(key.spec);
	t->done++;
}

/* ---- all of them ---- */

static void spec_tune(struct tune *t, const char *path, struct program *program)
{
	const struct options *o = t->options;
	struct bench *b = t->bench;
	struct bench_options options = o->bench;
	b->options = &options;
	for (int i = 0; i < (o->shapes ? o->shapes : 1) && !t->over; i++) {
		fagen_spec *spec;
		int status;
		problem_flags_clear(&options.problem);
		if (o->shapes)
			options.problem = o->shape[i];
		if (spec_open(&spec, b, path, program, t->diag, &status)) {
			fail(t, status);
			messages_give(t);
			continue;
		}
		for (int pass = 0; pass < PASS_COUNT && !t->over; pass++)
			if (b->spec->passes[pass] && (o->pass < 0 || o->pass == pass))
				job_run(t, path, (enum pass)pass);
		data_free(b);
	}
	b->options = &o->bench;
}

/* For the progress alone: specs that cannot be read are told of when their turn comes. */
static int jobs_count(const struct options *o, char **paths, int count)
{
	struct spec *spec = malloc(sizeof *spec);
	int jobs = 0;
	for (int i = 0; spec && i < count; i++) {
		struct diag ignored = {0};
		if (spec_load(spec, paths[i], &ignored) == 0)
			for (int pass = 0; pass < PASS_COUNT; pass++)
				jobs += spec->passes[pass] && (o->pass < 0 || o->pass == pass) ? o->shapes ? o->shapes : 1 : 0;
		diag_free(&ignored);
	}
	free(spec);
	return jobs;
}

static int tune_run(const struct options *o, char **paths, int count)
{
	struct bench *b = calloc(1, sizeof *b);
	struct tune_job *job = malloc(sizeof *job);
	struct program *program = malloc(sizeof *program);
	struct diag diag = {0};
	fagen_error error = {.struct_size = sizeof error};
	struct tune t = {.bench = b, .options = o, .job = job, .diag = &diag, .progress = isatty(STDERR_FILENO)};
	if (!b || !job || !program) {
		diag_fail(&diag, "Out of memory.");
		fail(&t, EXIT_MACHINE);
		goto out;
	}
	b->options = &o->bench;
	if (wisdom_open(&t.wisdom, o->path, &diag)) {
		fail(&t, EXIT_REQUEST);
	} else if (fagen_open(&b->rt, NULL, &error) != FAGEN_OK) {
		int status;
		error_give(&diag, &error, &status);
		fail(&t, status);
	} else if (gpu_open(&b->gpu, b->rt, o->bench.device, &diag) ||
	           runtime_machine(&t.target, &t.device, b->rt, o->bench.device, &diag)) {
		fail(&t, EXIT_MACHINE);
	} else {
		t.jobs = jobs_count(o, paths, count);
		printf("%s\n%-20s  %-8s  %-38s  %-26s  %9s  %6s  %-26s  %9s  %6s\n", b->gpu.name, "spec", "pass", "problem", "fastest",
		       "ms", "noise", "planner's", "ms", "regret");
		for (int i = 0; i < count && !t.over; i++)
			spec_tune(&t, paths[i], program);
	}
out:
	messages_give(&t);
	wisdom_free(&t.wisdom);
	if (b)
		fagen_close(b->rt);
	free(b);
	free(job);
	free(program);
	return t.status;
}

int cmd_tune(int argc, char **argv)
{
	enum { SHAPES = 256, PASS, ROUNDS_FLAG, DEVICE };
	static const struct option longs[] = {
		{"shapes", required_argument, NULL, SHAPES},      {"pass", required_argument, NULL, PASS},
		{"rounds", required_argument, NULL, ROUNDS_FLAG}, {"device", required_argument, NULL, DEVICE},
		{"help", no_argument, NULL, 'h'},                 {0},
	};
	struct options o = {.rounds = ROUNDS, .pass = -1};
	struct diag diag = {0};
	int64_t number = 0;
	int bad = 0;
	problem_flags_clear(&o.bench.problem);
	optind = 0; /* starts getopt anew, whoever used it before */
	for (int c; (c = getopt_long(argc, argv, "o:h", longs, NULL)) != -1;)
		switch (c) {
		case SHAPES: bad |= shapes_parse(o.shape, &o.shapes, optarg, &diag); break;
		case PASS:
			if ((o.pass = pass_find(optarg)) < 0)
				bad = diag_fail(&diag, "--pass takes forward or backward, not '%s'.", optarg);
			break;
		case ROUNDS_FLAG:
			bad |= number_flag_read(&number, "tune", "rounds", optarg, 1);
			if (!bad && number > TUNE_ROUNDS_MAX)
				bad = diag_fail(&diag, "--rounds takes at most %d.", TUNE_ROUNDS_MAX);
			o.rounds = bad ? ROUNDS : (int)number;
			break;
		case DEVICE:
			bad |= number_flag_read(&number, "tune", "device", optarg, 0);
			o.bench.device = (int)number;
			break;
		case 'o': o.path = optarg; break;
		case 'h': usage(stdout); return EXIT_SUCCESS;
		default: bad = -1;
		}
	if (!bad && optind == argc)
		bad = diag_fail(&diag, "Which spec? At least one YAML file is needed.");
	if (!bad && !o.path)
		bad = diag_fail(&diag, "Where do the lines go? -o FILE names the file, which is made or added to.");
	fputs(text_str(&diag.text), stderr);
	diag_free(&diag);
	if (bad) {
		fputs("`fagen tune --help` lists the options.\n", stderr);
		return EXIT_USAGE;
	}
	return tune_run(&o, argv + optind, argc - optind);
}
