/* fagen check: runs specs on a GPU and compares the results with the reference. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/case.h"
#include "cli/cli.h"

enum { CASES_MAX = 64 };

struct options {
	int device;
	const char *wisdom; /* NULL: none */
	bool json, naive;
	const char *cases[CASES_MAX];
	int case_count;
};

static const char *const status_words[] = {"right", "WRONG", "refused", "not run"};
static const int status_exits[] = {EXIT_SUCCESS, EXIT_CHECK, EXIT_REQUEST, EXIT_MACHINE};

/* What is run when no case is given: each input and layout once, lengths on both sides of equal. */
static const char *const default_cases[] = {
	"gauss,bhsd",
	"outlier,bshd,q257,k257,seed2",
	"lowrank,fat,q129,k384,seed3",
	"huge,mixed,q384,k129,seed4",
	"const,odd,q65,k65,seed5",
	"gauss,size1,b1,q1,k1000,seed6",
	"gauss,flip,q1000,k1000,seed7",
};

static void usage(FILE *f)
{
	fputs("usage: fagen check SPEC... [--case CASE]... [--device N] [--naive] [--json]\n"
	      "       fagen check --deviation ...   a study of numeric deviation: fagen check --deviation --help\n\n"
	      "Runs each spec's kernels on a GPU, with NaN in all memory that is not an input, and compares every result with\n"
	      "attention computed in double on the CPU. Inputs that the spec names are made up from the seed: floats are normal, ints\n"
	      "along a sequence are document numbers in order (even seeds) or anything (odd seeds), other ints are lengths.\n\n"
	      "  --case CASE   b2,h16/4,q4096,k4096,outlier,fat,seed7: what is left out keeps its default; may be repeated\n"
	      "                inputs: gauss outlier lowrank huge const zero inf row rising falling turns low opposed\n"
	      "                largest; layouts: bhsd bshd fat odd mixed size1 flip shared;\n"
	      "                shifted: tensors begin one element late, whatever their layout;\n"
	      "                lq16-0-33, lk9: lengths of the entries of a padded or packed batch, else by the seed; whole: all full\n"
	      "                planned: plan the kernel for these shapes and not for what the spec assumes\n"
	      "  --device N    CUDA device (default 0)\n"
	      "  --wisdom FILE check with measured tiles, as fagen tune writes them\n"
	      "  --naive       check the naive kernels\n"
	      "  --json        one object per case\n\n"
	      "SPEC:CASE, as printed for every case, runs that case alone.\n"
	      "exit status: 0 all right, 1 the spec or request is wrong, 2 usage, 3 no GPU, driver or compiler, 4 a check failed\n",
	      f);
}

static void outcome_print(const struct check_outcome *o, const struct check_case *c, const struct options *options)
{
	char name[CASE_TEXT_MAX];
	case_print(name, c);
	if (!options->json) {
		printf("%-8s %s", status_words[o->status], name);
		for (int i = 0; i < o->tensor_count; i++)
			printf("  %s %.2g/%.2g", o->tensor[i].name, o->tensor[i].worst, o->tensor[i].bound);
		printf("%s\n", o->by_naive  ? "  (against the naive kernels)"
		               : o->sampled ? "  (a sample of heads)"
		                            : "");
		if (*o->text)
			printf("         %s\n", o->text);
		return;
	}
	struct text t = {0};
	text_puts(&t, "{\"case\": ");
	text_json(&t, name);
	text_puts(&t, ", \"status\": ");
	text_json(&t, status_words[o->status]);
	text_puts(&t, ", \"message\": ");
	text_json(&t, o->text);
	text_puts(&t, ", \"judge\": ");
	text_json(&t, o->by_naive ? "naive" : o->sampled ? "reference, sampled" : "reference");
	text_puts(&t, ", \"tensors\": {");
	for (int i = 0; i < o->tensor_count; i++)
		text_addf(&t, "%s\"%s\": {\"error\": %.6g, \"bound\": %.6g}", i ? ", " : "", o->tensor[i].name,
		          o->tensor[i].worst < 1e300 ? o->tensor[i].worst : 1e300, o->tensor[i].bound);
	text_puts(&t, "}}");
	puts(text_str(&t));
	text_free(&t);
}

/* The kernels that the cases of a spec ran, and whether all of them found each right. */
struct verdicts {
	int count;
	struct { fagen_kernel *kernel; bool right; } of[CASES_MAX];
};

static void verdict_add(struct verdicts *v, const struct check_outcome *o)
{
	int i = 0;
	if (!o->kernel || (o->status != CHECK_PASSED && o->status != CHECK_WRONG))
		return;
	while (i < v->count && v->of[i].kernel != o->kernel)
		i++;
	if (i == v->count) { /* there are no more cases than places */
		v->of[i].kernel = o->kernel;
		v->of[i].right = true;
		v->count++;
	}
	v->of[i].right &= o->status == CHECK_PASSED;
}

static int case_run(struct verdicts *verdicts, const struct check_case *c, fagen_runtime *rt, const fagen_spec *spec,
                    const struct options *options)
{
	struct check_outcome outcome;
	check_run(&outcome, c, rt, spec, &(struct check_options){.device = options->device, .naive = options->naive});
	outcome_print(&outcome, c, options);
	verdict_add(verdicts, &outcome);
	fflush(stdout);
	return status_exits[outcome.status];
}

static int request_fail(struct diag *diag)
{
	fprintf(stderr, "%s\n", text_str(&diag->text));
	diag_free(diag);
	return EXIT_REQUEST;
}

/* A spec, or a case in full. The exit status is the first that is not 0; a missing machine ends it all. */
static int argument_run(const char *argument, fagen_runtime *rt, const struct options *options)
{
	struct check_case c = {0}, probe = {0};
	struct diag diag = {0};
	fagen_error error = {.struct_size = sizeof error};
	fagen_spec *spec;
	const char *parts = case_parts(argument);
	snprintf(probe.spec, sizeof probe.spec, "%s", argument);
	if (parts && case_parse(&probe, argument, &diag))
		return request_fail(&diag);
	const int code = check_spec(&spec, rt, probe.spec, &error);
	if (code) {
		fprintf(stderr, "%s\n", error.message);
		return code == FAGEN_ERROR_SPEC || code == FAGEN_ERROR_INVALID ? EXIT_REQUEST : EXIT_MACHINE;
	}
	const char *const *cases = options->cases;
	struct verdicts verdicts = {0};
	int count = options->case_count, status = 0;
	if (parts) {
		cases = &argument;
		count = 1;
	} else if (!count) {
		cases = default_cases;
		count = sizeof default_cases / sizeof *default_cases;
	}
	for (int i = 0; i < count; i++) {
		case_default(&c, probe.spec, runtime_spec(spec));
		if (case_parse(&c, cases[i], &diag))
			return request_fail(&diag);
		const int rc = case_run(&verdicts, &c, rt, spec, options);
		status = status ? status : rc;
		if (rc == EXIT_MACHINE)
			return rc;
	}
	for (int i = 0; i < verdicts.count; i++) /* the cache remembers */
		runtime_checked(verdicts.of[i].kernel, verdicts.of[i].right);
	return status;
}

int cmd_check(int argc, char **argv)
{
	static const struct option longs[] = {
		{"case", required_argument, NULL, 'c'}, {"device", required_argument, NULL, 'D'},
		{"naive", no_argument, NULL, 'n'},      {"json", no_argument, NULL, 'j'},
		{"wisdom", required_argument, NULL, 'w'},
		{"help", no_argument, NULL, 'h'},       {NULL, 0, NULL, 0}};
	struct options options = {0};
	char *end;
	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], "--deviation"))
			return cmd_deviation(argc, argv);
	for (int o; (o = getopt_long(argc, argv, "h", longs, NULL)) >= 0;)
		switch (o) {
		case 'c':
			if (options.case_count == CASES_MAX) {
				fprintf(stderr, "error: more than %d cases.\n", CASES_MAX);
				return EXIT_USAGE;
			}
			options.cases[options.case_count++] = optarg;
			break;
		case 'D':
			options.device = (int)strtol(optarg, &end, 10);
			if (end == optarg || *end || options.device < 0) {
				fprintf(stderr,
				        "error: --device %s: expected the number of a CUDA device, 0 or more.\n",
				        optarg);
				return EXIT_USAGE;
			}
			break;
		case 'w': options.wisdom = optarg; break;
		case 'n': options.naive = true; break;
		case 'j': options.json = true; break;
		case 'h': usage(stdout); return 0;
		default: usage(stderr); return EXIT_USAGE;
		}
	if (optind == argc) {
		usage(stderr);
		return EXIT_USAGE;
	}
	fagen_runtime *rt;
	fagen_error error = {.struct_size = sizeof error};
	const fagen_config config = {.struct_size = sizeof config, .wisdom_path = options.wisdom};
	if (fagen_open(&rt, &config, &error)) {
		fprintf(stderr, "%s\n", error.message);
		return EXIT_MACHINE;
	}
	int status = 0;
	for (int i = optind; i < argc && status != EXIT_MACHINE; i++) {
		const int rc = argument_run(argv[i], rt, &options);
		status = rc == EXIT_MACHINE || !status ? rc : status;
	}
	fagen_close(rt);
	return status;
}
