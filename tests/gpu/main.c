/* check_gpu: the GPU suite. `make check-gpu` runs it; without a GPU it can print the digest and judge the record. */
#include <dirent.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/gpu/suite.h"
#include "tests/gpu/watch.h"

/* NOT_RUN: every failure is a kernel that could not be had; none gave a wrong result. */
enum { EXIT_BAD_USE = 2, EXIT_NO_MACHINE = 3, EXIT_FAILED = WATCH_EXIT, EXIT_NOT_RUN = 5, SPECS_MAX = 256 };

const char *const class_names[CLASS_COUNT] = {
#define CLASS(id, name, doc) name,
	CLASSES(CLASS)
#undef CLASS
};

/* ---- running ------------------------------------------------------------------------------------------------------------- */

enum { CASE_SECONDS = 120, TEST_CASES = 5 }; /* a test of another form may take as long as so many cases */

bool suite_mine(struct suite *s)
{
	if (s->warming || s->lost || s->item++ % s->shards != s->shard)
		return false;
	suite_watch(s);
	return true;
}

void suite_watch(struct suite *s)
{
	if (s->limit)
		watch_begin("the test whose result comes next", TEST_CASES * s->limit);
}

void suite_result(struct suite *s, enum class class, bool ok, const char *name, const char *text)
{
	watch_end();
	(ok ? s->passed : s->failed)[class]++;
	if (!ok)
		printf("FAILED  %-11s %s\n        %s\n", class_names[class], name, text);
	else if (s->verbose)
		printf("ok      %-11s %s\n", class_names[class], name);
	fflush(stdout);
}

struct loaded {
	const char *name;
	fagen_spec *spec;
};

const fagen_spec *suite_spec(struct suite *s, enum class class, const char *name)
{
	static struct loaded table[1024]; /* names of inline specs live in `warm`, those of files in main's list */
	static int count;
	fagen_error error = {.struct_size = sizeof error};
	for (int i = 0; i < count; i++)
		if (!strcmp(table[i].name, name))
			return table[i].spec;
	fagen_spec *spec = NULL;
	if (check_spec(&spec, s->rt, name, &error)) {
		if (!s->warming)
			suite_result(s, class, false, name, error.message);
		return NULL;
	}
	if (count < (int)(sizeof table / sizeof *table)) {
		table[count].name = strdup(name);
		table[count++].spec = spec;
	}
	return spec;
}

static void warm_add(struct suite *s, const char *spec, int align)
{
	char key[CASE_NAME_MAX + 8];
	snprintf(key, sizeof key, "%s\n%d", spec, align);
	for (int i = 0; i < s->warm_count; i++)
		if (!strcmp(s->warm[i], key))
			return;
	s->warm = realloc(s->warm, (size_t)(s->warm_count + 1) * sizeof *s->warm);
	if (!s->warm || !(s->warm[s->warm_count++] = strdup(key)))
		abort();
}

static void warm_one(void *context, int64_t item)
{
	struct suite *s = context;
	char spec[CASE_NAME_MAX + 8];
	fagen_error error = {.struct_size = sizeof error};
	fagen_spec *loaded;
	fagen_kernel *kernel;
	snprintf(spec, sizeof spec, "%s", s->warm[item]);
	char *end = strchr(spec, '\n');
	*end = '\0';
	const fagen_problem problem = {.struct_size = sizeof problem, .align = atoi(end + 1)};
	if (!check_spec(&loaded, s->rt, spec,
	                &error)) /* the compiled code goes to the cache; what fails here fails again in its case */
		(void)fagen_kernel_get(&kernel, s->rt, loaded, &problem, s->options.device, &error);
}

void suite_case(struct suite *s, enum class class, const char *spec_name, const char *format, ...)
{
	char parts[CASE_TEXT_MAX], name[CASE_TEXT_MAX];
	struct check_case c;
	struct check_outcome outcome;
	struct diag diag = {0};
	va_list list;
	if (s->lost || (s->only_spec && strcmp(s->only_spec, spec_name)) ||
	    (s->only_class && strcmp(s->only_class, class_names[class])))
		return;
	const int64_t item = s->warming ? 0 : s->item++;
	if (item % s->shards != s->shard && !s->warming)
		return;
	va_start(list, format);
	vsnprintf(parts, sizeof parts, format, list);
	va_end(list);
	const fagen_spec *spec = suite_spec(s, class, spec_name);
	if (!spec)
		return;
	case_default(&c, spec_name, runtime_spec(spec));
	if (case_parse(&c, parts, &diag)) {
		suite_result(s, class, false, parts, text_str(&diag.text));
		diag_free(&diag);
		return;
	}
	if (s->warming) {
		warm_add(s, spec_name, case_align(&c));
		return;
	}
	case_print(name, &c);
	if (s->limit)
		watch_begin(name, s->limit);
	check_run(&outcome, &c, s->rt, spec, &s->options);
	suite_result(s, class, outcome.status == CHECK_PASSED, name, outcome.text);
	if (outcome.status == CHECK_PASSED)
		return;
	s->not_run += outcome.status != CHECK_WRONG;
	struct gpu_buffer probe;
	if (gpu_alloc(&probe, s->rt, s->options.device, 256, &diag)) {
		s->lost = true;
		printf("The GPU's context is lost; the remaining cases cannot run.\n");
	}
	gpu_free(&probe, s->rt, s->options.device);
	diag_free(&diag);
}

void suite_tiles(struct suite *s, enum class class, const struct tile_row *row, size_t count)
{
	char spec[CASE_NAME_MAX];
	for (size_t i = 0; i < count; i++) {
		snprintf(spec, sizeof spec, "%s", row[i].spec);
		char *const tile = strstr(spec, ", tile: {");
		if (tile && s->gpu.cc != 90)
			strcpy(tile, "}");
		suite_case(s, class, spec, "%s", row[i].parts);
	}
}

/* ---- the record ------------------------------------------------------------------------------------------------------------ */

static void record_print(FILE *f, const struct suite *s, const char *digest, int driver, int major, int minor,
                         double seconds)
{
	fprintf(f,
	        "# What `make check-gpu` last ran in full. `make gpu-record` compares the digest with the present sources.\n");
	fprintf(f, "gpu: %s\ndriver: CUDA %d.%d\nnvrtc: %d.%d\ndigest: %s\nseconds: %.0f\n", s->gpu.name, driver / 1000,
	        driver % 1000 / 10, major, minor, digest, seconds);
	for (int i = 0; i < CLASS_COUNT; i++)
		fprintf(f, "%s: %d passed, %d failed\n", class_names[i], s->passed[i], s->failed[i]);
}

/* 0 when the record is of these sources and names every class with a count and no failure. */
static int record_judge(const char *path, const char *digest)
{
	char line[512];
	bool seen[CLASS_COUNT] = {false}, digest_seen = false, tool_seen = false;
	int wrong = 0;
	FILE *f = fopen(path, "r");
	if (!f) {
		printf("There is no record %s: run `make check-gpu` on a machine with a GPU.\n", path);
		return EXIT_FAILED;
	}
	while (fgets(line, sizeof line, f)) {
		char name[64], hex[65];
		int passed, failed;
		if (sscanf(line, "digest: %64s", hex) == 1) {
			digest_seen = true;
			if (strcmp(hex, digest)) {
				printf("The record is of other sources: digest %.16s..., now %.16s...: run `make check-gpu` again.\n",
				       hex, digest);
				wrong = 1;
			}
		} else if (sscanf(line, "%63[A-Za-z]: %d passed, %d failed", name, &passed, &failed) == 3) {
			for (int i = 0; i < CLASS_COUNT; i++)
				seen[i] = seen[i] || !strcmp(name, class_names[i]);
			tool_seen = tool_seen || !strcmp(name, "memcheck");
			if (passed <= 0 || failed) {
				printf("%s: %d passed, %d failed.\n", name, passed, failed);
				wrong = 1;
			}
		}
	}
	fclose(f);
	for (int i = 0; i < CLASS_COUNT; i++)
		if (!seen[i]) {
			printf("The record has no count for %s.\n", class_names[i]);
			wrong = 1;
		}
	if (!digest_seen || !tool_seen) {
		printf("The record has no %s.\n", digest_seen ? "count for memcheck" : "digest");
		wrong = 1;
	}
	if (!wrong)
		printf("%s is of the present sources, and every class in it passed.\n", path);
	return wrong ? EXIT_FAILED : 0;
}

/* ---- main -------------------------------------------------------------------------------------------------------------------- */

static int name_order(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int specs_list(char **names)
{
	DIR *dir = opendir("specs");
	int count = 0;
	if (!dir)
		return 0;
	for (struct dirent *e; (e = readdir(dir));) {
		const size_t len = strlen(e->d_name);
		if (len > 5 && !strcmp(e->d_name + len - 5, ".yaml") && count < SPECS_MAX)
			names[count++] = strndup(e->d_name, len - 5);
	}
	closedir(dir);
	qsort(names, (size_t)count, sizeof *names, name_order);
	return count;
}

static void suite_all(struct suite *s, const char *const *specs, int count)
{
	if (s->small) {
		suite_small(s);
		return;
	}
	suite_shapes(s, specs, count);
	if (!s->only_spec) {
		suite_fields(s);
		suite_language(s);
		suite_lengths(s);
		suite_deterministic(s);
		suite_repeat(s);
		suite_graph(s);
		suite_invariance(s);
		if (!s->warming && (!s->only_class || !strcmp(s->only_class, class_names[CLASS_SYN])))
			suite_ptx(s);
		suite_merge(s);
		suite_split(s);
		suite_shared(s);
		if (!s->warming && !s->only_class)
			suite_direct(s);
		if (!s->warming && s->shards == 1 &&
		    (!s->only_class || !strcmp(s->only_class, class_names[CLASS_START])))
			suite_start(s);
		if (!s->warming && s->shards == 1 && (!s->only_class || !strcmp(s->only_class, class_names[CLASS_PERF])))
			suite_speed(s);
		if (s->shards == 1 && (!s->only_class || !strcmp(s->only_class, class_names[CLASS_BIG])))
			suite_big(s);
	}
}

static int usage(void)
{
	fputs("usage: check_gpu [--shard I/N] [--spec NAME] [--class NAME] [--small] [--no-poison] [--no-warm] [--device N] [--limit SECONDS] [--verbose] [--record FILE]\n"
	      "       check_gpu --digest | --judge FILE\n",
	      stderr);
	return EXIT_BAD_USE;
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{"shard", required_argument, NULL, 's'},  {"spec", required_argument, NULL, 'S'},
		{"small", no_argument, NULL, 'm'},
		{"no-poison", no_argument, NULL, 'p'},    {"no-warm", no_argument, NULL, 'w'},
		{"device", required_argument, NULL, 'd'}, {"verbose", no_argument, NULL, 'v'},
		{"class", required_argument, NULL, 'c'},
		{"record", required_argument, NULL, 'r'}, {"digest", no_argument, NULL, 'D'},
		{"judge", required_argument, NULL, 'j'},  {"limit", required_argument, NULL, 'l'},
		{NULL, 0, NULL, 0}};
	struct suite s = {.shards = 1, .options.cpu_budget = 2e9, .limit = CASE_SECONDS};
	const char *record = NULL, *judge = NULL;
	bool only_digest = false, warm = true;
	for (int o; (o = getopt_long(argc, argv, "", longs, NULL)) >= 0;)
		switch (o) {
		case 's':
			if (sscanf(optarg, "%d/%d", &s.shard, &s.shards) != 2 || s.shards < 1 || s.shard < 0 ||
			    s.shard >= s.shards)
				return usage();
			break;
		case 'S': s.only_spec = optarg; break;
		case 'c': s.only_class = optarg; break;
		case 'm': s.small = true; break;
		case 'p': s.options.no_poison = true; break;
		case 'w': warm = false; break;
		case 'd': s.options.device = atoi(optarg); break;
		case 'v': s.verbose = true; break;
		case 'r': record = optarg; break;
		case 'D': only_digest = true; break;
		case 'j': judge = optarg; break;
		case 'l': s.limit = atoi(optarg); break;
		default: return usage();
		}
	char *names[SPECS_MAX], digest[65] = "";
	struct diag diag = {0};
	const int count = specs_list(names);
	if (!count) {
		fputs("There are no specs here; run this in the root of the repository.\n", stderr);
		return EXIT_BAD_USE;
	}
	if ((record || judge || only_digest) && digest_make(digest, (const char *const *)names, count, &diag)) {
		fputs(text_str(&diag.text), stderr);
		return EXIT_FAILED;
	}
	if (only_digest) {
		puts(digest);
		return 0;
	}
	if (judge)
		return record_judge(judge, digest);

	struct timespec begin, end;
	fagen_error error = {.struct_size = sizeof error};
	int major = 0, minor = 0;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	if (s.limit < 0)
		return usage();
	if (watch_open()) {
		fputs("There is no thread to watch over the tests.\n", stderr);
		return EXIT_NO_MACHINE;
	}
	if (fagen_open(&s.rt, NULL, &error)) {
		fprintf(stderr, "%s\n", error.message);
		return EXIT_NO_MACHINE;
	}
	if (gpu_open(&s.gpu, s.rt, s.options.device, &diag) ||
	    compiler_version(&major, &minor, runtime_compiler(s.rt), &diag)) {
		fputs(text_str(&diag.text), stderr);
		return EXIT_NO_MACHINE;
	}
	if (warm) { /* compile everything on all cores before the first case */
		s.warming = true;
		suite_all(&s, (const char *const *)names, count);
		s.warming = false;
		parallel_for(s.warm_count, warm_one, &s);
		clock_gettime(CLOCK_MONOTONIC, &end);
		printf("%d kernels ready after %.1f s\n", s.warm_count,
		       (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec));
		fflush(stdout);
	}
	suite_all(&s, (const char *const *)names, count);
	watch_end();
	clock_gettime(CLOCK_MONOTONIC, &end);
	const double seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
	int failed = s.lost, ran = 0;
	for (int i = 0; i < CLASS_COUNT; i++) {
		if (s.passed[i] + s.failed[i])
			printf("%-11s %5d passed, %d failed\n", class_names[i], s.passed[i], s.failed[i]);
		failed += s.failed[i];
		ran += s.passed[i];
	}
	printf("%d passed, %d failed in %.0f s\n", ran, failed, seconds);
	if (record) {
		FILE *f = fopen(record, "w");
		if (!f) {
			perror(record);
			return EXIT_FAILED;
		}
		record_print(f, &s, digest, driver_version(runtime_driver(s.rt)), major, minor, seconds);
		fclose(f);
	}
	fagen_close(s.rt);
	if (failed && failed == s.not_run)
		return EXIT_NOT_RUN;
	return failed || !ran ? EXIT_FAILED : 0;
}
