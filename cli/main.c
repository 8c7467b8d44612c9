/* fagen: the command. `fagen SPEC...` runs the pipeline for every target and pass of every spec and prints what was
 * decided and made; the other commands have a file each. Only cli/ prints, and only main exits. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench.h"
#include "cli/build.h"
#include "cli/cli.h"

struct options {
	const char *target; /* NULL: those of the spec */
	int pass;           /* -1: those of the spec */
	const char *dump;   /* stage letters */
	const char *emit;   /* NULL: the table; else cu, ptx, cubin */
	const char *output;
	const char *wisdom; /* NULL: none */
	int jobs;
	bool json;
};

static const struct {
	char letter;
	const char *what;
} dumps[] = {
	{'s', "the spec, defaults filled in (valid YAML)"},
	{'g', "the program: mask, score, and what was derived from them"},
	{'p', "the plan, with every candidate"},
	{'r', "the recipe: kernels, grids, workspace"},
	{'e', "the emitted source"},
	{'k', "the cache key, record by record"},
	{'n', "the compiler's report"},
};

static void usage(FILE *f)
{
	fputs("usage: fagen [options] SPEC...          compile a spec for its targets; print what was decided and made\n"
	      "       fagen explain SPEC [...]         the plan: candidates, costs, traffic, what bounds it\n"
	      "       fagen check SPEC... [...]        run on the GPU and compare with the reference\n"
	      "       fagen bench SPEC... [...]        time on the GPU, predicted beside measured\n"
	      "       fagen calibrate [...]            measure the GPU, for the planner\n"
	      "       fagen tune SPEC... -o FILE [...] measure which tiles are the fastest, for --wisdom FILE\n"
	      "       fagen wisdom FILE... [...]       check, merge and export such files\n"
	      "       fagen cache [stats|path|verify|gc|clear|show]\n"
	      "       fagen pack build|ls|verify|merge|export   kernels for programs without a compiler, in one file\n"
	      "       fagen env                        driver, compiler, GPUs, folders: what was found and where\n"
	      "       fagen init [FILE]                a commented spec to start from\n"
	      "       fagen -h spec                    the spec language: keys, masks, scores, block layouts, inputs\n\n"
	      "  --target NAME    only this target (sm_80, sm_86, sm_89, sm_90a, sm_100f, sm_120f)\n"
	      "  --pass NAME      only this pass (forward, backward)\n"
	      "  --emit KIND      write cu, ptx or cubin of one target and pass instead of the table\n"
	      "  -o FILE          where --emit writes; - is the standard output (default)\n"
	      "  --wisdom FILE    measured tiles, as fagen tune writes them, before the planner's choice\n"
	      "  -j N             compile N at a time (default: one for each CPU)\n"
	      "  -d LETTERS       dump stages to the standard error:\n",
	      f);
	for (size_t i = 0; i < sizeof dumps / sizeof *dumps; i++)
		fprintf(f, "                     %c  %s\n", dumps[i].letter, dumps[i].what);
	fputs("  --json           the table as JSON\n"
	      "  --version, -h, --help\n\n"
	      "exit status: 0 done, 1 the spec or request is wrong, 2 usage, 3 the machine lacks something, 4 a check failed\n",
	      f);
}

static void dump_input(const struct request *in, const char *letters)
{
	struct text t = {0};
	for (; *letters; letters++) {
		if (*letters == 's')
			spec_print(&t, &in->spec);
		else if (*letters == 'g')
			program_print(&t, &in->program, &in->spec);
	}
	fputs(text_str(&t), stderr);
	text_free(&t);
}

static void dump_build(struct build *b, fagen_runtime *rt, const char *letters)
{
	struct text t = {0};
	for (; *letters; letters++)
		switch (*letters) {
		case 'p': plan_print(&t, &b->plan); break;
		case 'r': recipe_print(&t, &b->plan.recipe); break;
		case 'e': text_puts(&t, text_str(&b->source)); break;
		case 'n': text_puts(&t, b->cubin.report ? b->cubin.report : ""); break;
		case 'k': {
			struct store_key key;
			char hex[65];
			if (cubin_key(&key, &t, runtime_compiler(rt), &b->source, b->target, &b->diag) != 0) {
				b->failed = true;
				break;
			}
			key_hex(hex, &key);
			text_addf(&t, "key %s\n", hex);
			break;
		}
		}
	fputs(text_str(&t), stderr);
	text_free(&t);
}

/* ---- the table ---- */

static void table_print(const struct build *build, int count)
{
	int name = 4;
	for (int i = 0; i < count; i++) {
		const int len = (int)strlen(build[i].input->spec.name);
		name = len > name ? len : name;
	}
	printf("%-*s  %-7s  %-8s  %-8s  %-14s  %6s  %4s  %6s  %8s  %8s  %-8s  %s\n", name, "spec", "target", "pass",
	       "template", "tile", "smem", "regs", "spills", "pred. us", "TFLOP/s", "bound by", "cubin");
	int compiled = 0, cached = 0, failed = 0;
	for (int i = 0; i < count; i++) {
		const struct build *b = &build[i];
		if (b->failed) {
			failed++;
			continue;
		}
		const struct candidate *c = &b->plan.candidate[b->plan.chosen];
		char tile[32], made[48];
		tile_name(tile, c);
		if (b->cubin.from_store)
			snprintf(made, sizeof made, "%zu B, cached", b->cubin.code_len);
		else
			snprintf(made, sizeof made, "%zu B, compiled in %.0f ms", b->cubin.code_len,
			         b->cubin.compile_ms);
		printf("%-*s  %-7s  %-8s  %-8s  %-14s  %5.1fK  %4d  %6d  %8.1f  %8.1f  %-8s  %s\n", name,
		       b->input->spec.name, b->target->name, pass_names[b->pass], b->plan.templ, tile,
		       b->cubin.smem_bytes / 1024.0, b->cubin.registers, b->cubin.spill_bytes, c->time_us,
		       b->plan.useful_flop / c->time_us * 1e-6, cost_names[c->bound_by], made);
		b->cubin.from_store ? cached++ : compiled++;
	}
	printf("%d kernels: %d compiled, %d from the cache", count - failed, compiled, cached);
	if (failed)
		printf(", %d failed", failed);
	putchar('\n');
}

/* What the numbers of the table were planned for; once per spec. */
static void assumptions_print(const struct request *input, int count)
{
	for (int i = 0; i < count; i++) {
		const struct spec *spec = &input[i].spec;
		struct text t = {0};
		problem_print(&t, &spec->assume);
		printf("%s: planned for %s", spec->name, text_str(&t));
		if (spec->keep_256 < DROPOUT_LEVELS)
			printf("; dropout keeps %d/256", spec->keep_256);
		printf("\n");
		text_free(&t);
	}
}

static void table_json(const struct build *build, int count)
{
	struct text t = {0};
	text_puts(&t, "[");
	for (int i = 0, first = 1; i < count; i++) {
		const struct build *b = &build[i];
		if (b->failed)
			continue;
		const struct candidate *c = &b->plan.candidate[b->plan.chosen];
		text_puts(&t, first ? "\n  {\"spec\": " : ",\n  {\"spec\": ");
		text_json(&t, b->input->spec.name);
		text_addf(
			&t,
			", \"target\": \"%s\", \"pass\": \"%s\", \"template\": \"%s\", \"tile_m\": %d, \"tile_n\": %d, \"warps\": %d"
			", \"stages\": %d, \"splits\": %d, \"heads\": %d",
			b->target->name, pass_names[b->pass], b->plan.templ, c->tile_m, c->tile_n, c->warps, c->stages,
			c->splits, c->heads);
		text_addf(
			&t,
			", \"smem_bytes\": %d, \"registers\": %d, \"spill_bytes\": %d, \"predicted_us\": %.3f, \"bound_by\": \"%s\"",
			b->cubin.smem_bytes, b->cubin.registers, b->cubin.spill_bytes, c->time_us,
			cost_names[c->bound_by]);
		text_addf(&t, ", \"cubin_bytes\": %zu, \"cached\": %s, \"compile_ms\": %.1f}", b->cubin.code_len,
		          b->cubin.from_store ? "true" : "false", b->cubin.compile_ms);
		first = 0;
	}
	text_puts(&t, "\n]\n");
	fputs(text_str(&t), stdout);
	text_free(&t);
}

/* ---- --emit ---- */

static int emit_one(struct build *b, fagen_runtime *rt, const struct options *opt)
{
	struct text ptx = {0};
	int status = EXIT_MACHINE;
	if (build_source(b, rt) != 0) {
		status = EXIT_REQUEST;
	} else if (strcmp(opt->emit, "cu") == 0) {
		status = file_write(opt->output, b->source.data, b->source.len) == 0 ? 0 : EXIT_MACHINE;
	} else if (strcmp(opt->emit, "ptx") == 0) {
		if (compiler_ptx(&ptx, runtime_compiler(rt), &b->source, b->target, &b->diag) == 0 &&
		    file_write(opt->output, ptx.data, ptx.len) == 0)
			status = 0;
	} else if (build_cubin(b, rt) == 0 && file_write(opt->output, b->cubin.code, b->cubin.code_len) == 0) {
		status = 0;
	}
	if (opt->dump)
		dump_build(b, rt, opt->dump);
	fputs(text_str(&b->diag.text), stderr);
	text_free(&ptx);
	return status;
}

/* ---- fagen SPEC... ---- */

/* One build for each (spec, target, pass) that the options leave. NULL and a message when there is none. */
static struct build *builds_list(int *count, const struct request *input, int inputs, const struct options *opt)
{
	struct build *build = calloc((unsigned)inputs * TARGET_COUNT * PASS_COUNT, sizeof *build);
	*count = 0;
	for (int i = 0; build && i < inputs; i++)
		for (int t = 0; t < TARGET_COUNT; t++)
			for (int pass = 0; pass < PASS_COUNT; pass++) {
				const bool asked = opt->target ? strcmp(opt->target, target_table[t].name) == 0
				                               : input[i].spec.targets[t];
				if (asked && input[i].spec.passes[pass] && (opt->pass < 0 || opt->pass == pass))
					build[(*count)++] = (struct build){
						.input = &input[i], .target = &target_table[t], .pass = pass};
			}
	return build;
}

static int run(const struct options *opt, char **paths, int path_count) /* path_count > 0 */
{
	struct request *input = calloc((unsigned)path_count, sizeof *input);
	struct build *build = NULL;
	fagen_runtime *rt = NULL;
	int status = EXIT_REQUEST, count = 0;
	fagen_error error = {.struct_size = sizeof error};

	bool bad = false;
	for (int i = 0; i < path_count; i++) {
		struct diag diag = {0};
		input[i].path = paths[i];
		bad |= request_load(&input[i], &diag) != 0;
		fputs(text_str(&diag.text), stderr);
		diag_free(&diag);
		if (!bad && opt->dump)
			dump_input(&input[i], opt->dump);
	}
	if (bad)
		goto out;
	const fagen_config config = {.struct_size = sizeof config, .wisdom_path = opt->wisdom};
	if (fagen_open(&rt, &config, &error) != FAGEN_OK) {
		fprintf(stderr, "fagen: %s\n", error.message);
		status = EXIT_MACHINE;
		goto out;
	}
	build = builds_list(&count, input, path_count, opt);
	if (count == 0) {
		fputs("fagen: error: no spec has the pass that --pass names\n", stderr);
		goto out;
	}
	if (opt->emit) {
		if (count > 1) {
			fprintf(stderr,
			        "fagen: error: --emit writes one kernel, but %d are asked for; name one with --target and --pass\n",
			        count);
			goto out;
		}
		status = emit_one(&build[0], rt, opt);
		goto out;
	}

	builds_run(build, count, rt, opt->jobs, isatty(2) && !opt->json);
	status = 0;
	for (int i = 0; i < count; i++) {
		if (build[i].failed) /* a plan that does not exist is the spec's fault, a compiler that does not is the machine's */
			status = build[i].source.len == 0 ? EXIT_REQUEST : status == 0 ? EXIT_MACHINE : status;
		if (opt->dump)
			dump_build(&build[i], rt, opt->dump);
		bool repeated = false; /* a missing compiler is said once */
		for (int j = 0; j < i && !repeated; j++)
			repeated = strcmp(text_str(&build[i].diag.text), text_str(&build[j].diag.text)) == 0;
		if (!repeated)
			fputs(text_str(&build[i].diag.text), stderr);
	}
	if (opt->json) {
		table_json(build, count);
	} else {
		assumptions_print(input, path_count);
		table_print(build, count);
		const char *note = store_note(runtime_store(rt));
		if (*note)
			fprintf(stderr, "warning: %s\n", note);
		else
			printf("cache: %s\n",
			       *store_dir(runtime_store(rt)) ? store_dir(runtime_store(rt)) : "memory only");
	}
out:
	builds_free(build, count);
	free(input);
	fagen_close(rt);
	return status;
}

static int cmd_build(int argc, char **argv)
{
	enum { OPT_TARGET = 256, OPT_PASS, OPT_EMIT, OPT_JSON, OPT_VERSION, OPT_WISDOM };
	static const struct option longs[] = {
		{"target", required_argument, NULL, OPT_TARGET},
		{"pass", required_argument, NULL, OPT_PASS},
		{"emit", required_argument, NULL, OPT_EMIT},
		{"json", no_argument, NULL, OPT_JSON},
		{"version", no_argument, NULL, OPT_VERSION},
		{"wisdom", required_argument, NULL, OPT_WISDOM},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	struct options opt = {.pass = -1, .jobs = (int)sysconf(_SC_NPROCESSORS_ONLN)};
	for (int c; (c = getopt_long(argc, argv, "o:j:d:h", longs, NULL)) != -1;)
		switch (c) {
		case OPT_TARGET:
			if (!target_find(opt.target = optarg)) {
				fprintf(stderr, "fagen: error: no target '%s'; want one of", optarg);
				for (int i = 0; i < TARGET_COUNT; i++)
					fprintf(stderr, " %s", target_table[i].name);
				fputc('\n', stderr);
				return EXIT_USAGE;
			}
			break;
		case OPT_PASS:
			if ((opt.pass = pass_find(optarg)) < 0) {
				fprintf(stderr, "fagen: error: no pass '%s'; want forward or backward\n", optarg);
				return EXIT_USAGE;
			}
			break;
		case OPT_EMIT:
			if (strcmp(optarg, "cu") != 0 && strcmp(optarg, "ptx") != 0 && strcmp(optarg, "cubin") != 0) {
				fprintf(stderr, "fagen: error: --emit %s; want cu, ptx or cubin\n", optarg);
				return EXIT_USAGE;
			}
			opt.emit = optarg;
			break;
		case OPT_WISDOM: opt.wisdom = optarg; break;
		case OPT_JSON: opt.json = true; break;
		case OPT_VERSION: puts("fagen " FAGEN_VERSION); return 0;
		case 'o': opt.output = optarg; break;
		case 'd': {
			char known[sizeof dumps / sizeof *dumps + 1] = "";
			for (size_t i = 0; i < sizeof dumps / sizeof *dumps; i++)
				known[i] = dumps[i].letter;
			if (optarg[strspn(optarg, known)]) {
				fprintf(stderr, "fagen: error: -d %s: no stage '%c'; want letters of %s\n", optarg,
				        optarg[strspn(optarg, known)], known);
				return EXIT_USAGE;
			}
			opt.dump = optarg;
			break;
		}
		case 'j':
			if ((opt.jobs = jobs_read(optarg)) < 0)
				return EXIT_USAGE;
			break;
		case 'h':
			if (optind < argc && strcmp(argv[optind], "spec") == 0) {
				struct text t = {0};
				spec_reference(&t);
				fputs(text_str(&t), stdout);
				text_free(&t);
			} else {
				usage(stdout);
			}
			return 0;
		default: usage(stderr); return EXIT_USAGE;
		}
	if (optind == argc || (opt.output && !opt.emit)) {
		fputs(optind == argc ? "fagen: error: no spec given\n" : "fagen: error: -o needs --emit\n", stderr);
		usage(stderr);
		return EXIT_USAGE;
	}
	return run(&opt, argv + optind, argc - optind);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(int, char **);
	} commands[] = {
		{"explain", cmd_explain}, {"check", cmd_check}, {"bench", cmd_bench}, {"calibrate", cmd_calibrate},
		{"tune", cmd_tune},       {"wisdom", cmd_wisdom}, {"cache", cmd_cache}, {"pack", cmd_pack},
		{"env", cmd_env},         {"init", cmd_init},
	};
	for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof *commands; i++)
		if (strcmp(argv[1], commands[i].name) == 0)
			return commands[i].run(argc - 1, argv + 1);
	return cmd_build(argc, argv);
}
