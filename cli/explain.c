/* fagen explain: what would be run, why, and at what cost. Needs no GPU and no compiler. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/explain_program.h"
#include "cli/problem_flags.h"
#include "gen/gen.h"

struct request { /* 0 or NULL: as the spec assumes */
	const char *spec, *gpu, *target, *wisdom;
	struct problem_flags problem;
	int align;
	int pass; /* -1: those of the spec */
	bool json;
};

static void usage(FILE *out)
{
	fputs("usage: fagen explain SPEC [options]\n"
	      "Prints how mask and block layout are decided, where inputs are kept, and the plan of each pass: candidates with\n"
	      "every cost, the rejected with reasons, memory traffic beside standard attention, predicted time and what bounds it.\n"
	      "  --gpu NAME        plan for this GPU (default: the first listed below whose target the spec names)\n"
	      "  --target NAME     plan code for this target (default: the GPU's best; with no --gpu, for the target's "
	      "usual GPU)\n" PROBLEM_FLAGS_USAGE "  --align 16|2      multiple of bytes of every pointer and stride\n"
	      "  --pass NAME       forward or backward\n"
	      "  --wisdom FILE     measured tiles, as fagen tune writes them, before the planner's choice\n"
	      "  --json            for programs\n"
	      "  -h, --help\n"
	      "GPUs, and those of the file that FAGEN_DEVICES names:",
	      out);
	for (int i = 0; i < device_count; i++)
		fprintf(out, "%s %s", i ? "," : "", device_table[i].name);
	fputs("\n", out);
}

/* 0: go on; else an exit status, of which EXIT_SUCCESS is -1. */
static int request_read(struct request *r, int argc, char **argv)
{
	enum { ALIGN = 256, GPU, TARGET, PASS, WISDOM, JSON };
	static const struct option options[] = {
		PROBLEM_FLAGS,
		{"align", required_argument, NULL, ALIGN},
		{"gpu", required_argument, NULL, GPU},
		{"target", required_argument, NULL, TARGET},
		{"pass", required_argument, NULL, PASS},
		{"wisdom", required_argument, NULL, WISDOM},
		{"json", no_argument, NULL, JSON},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	int option, index = 0, bad = 0;
	int64_t align = 0;
	*r = (struct request){.pass = -1};
	problem_flags_clear(&r->problem);
	optind = 0; /* starts getopt anew, whoever used it before */
	while ((option = getopt_long(argc, argv, "h", options, &index)) != -1) {
		const int taken = problem_flags_read(&r->problem, "explain", option, optarg);
		bad |= taken < 0;
		if (taken)
			continue;
		switch (option) {
		case ALIGN:
			bad |= number_flag_read(&align, "explain", "align", optarg, 2);
			if (!bad && align != 2 && align != 16) {
				fprintf(stderr, "fagen explain: --align takes 16 or 2 (any), not '%s'.\n", optarg);
				bad = -1;
			}
			r->align = (int)align;
			break;
		case GPU: r->gpu = optarg; break;
		case TARGET: r->target = optarg; break;
		case PASS:
			if ((r->pass = pass_find(optarg)) < 0) {
				fprintf(stderr, "fagen explain: --pass takes forward or backward, not '%s'.\n", optarg);
				bad = -1;
			}
			break;
		case WISDOM: r->wisdom = optarg; break;
		case JSON: r->json = true; break;
		case 'h': usage(stdout); return -1;
		default: bad = -1;
		}
	}
	if (!bad && optind + 1 != argc) {
		fprintf(stderr, optind == argc ? "fagen explain: which spec? One YAML file is needed.\n"
		                               : "fagen explain: one spec at a time, please.\n");
		bad = -1;
	}
	if (bad) {
		fputs("`fagen explain --help` lists the options.\n", stderr);
		return EXIT_USAGE;
	}
	r->spec = argv[optind];
	return 0;
}

/* The first device whose target the spec names. */
static const struct device *device_default(const struct spec *spec, const struct device_list *devices)
{
	for (int i = 0; i < devices->count; i++)
		if (spec->targets[target_find(devices->row[i].target) - target_table])
			return &devices->row[i];
	return &devices->row[0];
}

static int machine_choose(const struct device **device, const struct target **target, const struct request *r,
                          const struct spec *spec, const struct device_list *devices, struct diag *diag)
{
	const char *names[DEVICE_ROWS_MAX];
	*target = NULL;
	*device = NULL;
	if (r->target) {
		for (int i = 0; i < TARGET_COUNT; i++)
			names[i] = target_table[i].name;
		const char *nearest = diag_nearest(r->target, names, TARGET_COUNT);
		if ((*target = target_find(r->target)) == NULL)
			return diag_fail(diag,
			                 "No target is called '%s'. Targets are sm_80, sm_86, sm_89, sm_90a, sm_100f, "
			                 "sm_120f.%s%s%s",
			                 r->target, nearest ? " Did you mean '" : "", nearest ? nearest : "",
			                 nearest ? "'?" : "");
	}
	if (r->gpu) {
		for (int i = 0; i < devices->count; i++)
			names[i] = devices->row[i].name;
		const char *nearest = diag_nearest(r->gpu, names, devices->count);
		if ((*device = device_list_find(devices, r->gpu)) == NULL)
			return diag_fail(diag, "No GPU is called '%s'.%s%s%s `fagen explain --help` lists those known.",
			                 r->gpu, nearest ? " Did you mean '" : "", nearest ? nearest : "",
			                 nearest ? "'?" : "");
	}
	if (!*device)
		*device = *target ? device_list_for_target(devices, *target) : device_default(spec, devices);
	const struct target *own = target_find((*device)->target);
	if (!*target)
		*target = own;
	if (!target_runs_on(*target, own->cc))
		return diag_fail(diag, "Code for %s does not run on %s; its best target is %s.", (*target)->name,
		                 (*device)->name, own->name);
	return 0;
}

static void spec_summary(struct text *text, const struct spec *spec, const struct program *program)
{
	text_addf(text, "%s: head_dim %d", spec->name, spec->head_dim_qk);
	if (spec->head_dim_v != spec->head_dim_qk)
		text_addf(text, " (v %d)", spec->head_dim_v);
	text_addf(text, ", %s, softmax_scale %.9g, ", spec->dtype == DTYPE_BF16 ? "bf16" : "fp16", spec->softmax_scale);
	if (spec->kv_group)
		text_addf(text, "%d query head%s per key/value head\n", spec->kv_group, spec->kv_group == 1 ? "" : "s");
	else
		text_puts(text, "any number of query heads per key/value head\n");
	static const char *const batches[] = {
		[LAYOUT_PADDED] =
			"padded: seqlens_q and seqlens_k say at launch how much of an entry is used; planned as full",
		[LAYOUT_PACKED] =
			"packed: cu_seqlens_q and cu_seqlens_k say at launch where a sequence begins; planned as dense"};
	if (spec->layout != LAYOUT_DENSE)
		text_addf(text, "  batch        %s\n", batches[spec->layout]);
	program_explain(text, program, spec);
	if (spec->keep_256 == DROPOUT_LEVELS)
		text_puts(text, "  dropout      none\n");
	else
		text_addf(text, "  dropout      %g asked, %d/%d of the cells kept\n", spec->dropout, spec->keep_256,
		          DROPOUT_LEVELS);
	if (spec->deterministic)
		text_puts(text, "  gradients    bitwise equal from run to run: dQ has a kernel of its own\n");
}

static void summary_json(struct text *text, const struct spec *spec, const struct program *program)
{
	text_puts(text, "{\"spec\": ");
	text_json(text, spec->name);
	text_addf(text, ", \"keep_256\": %d, ", spec->keep_256);
	program_json(text, program, spec);
	text_puts(text, ", \"plans\": [\n");
}

static int explain(struct text *text, struct diag *diag, const struct request *r)
{
	struct spec *spec = malloc(sizeof *spec);
	struct program *program = malloc(sizeof *program);
	struct plan *plan = malloc(sizeof *plan);
	struct device_list *devices = malloc(sizeof *devices);
	struct wisdom wisdom = {0};
	struct problem problem;
	int result = -1;
	if (!spec || !program || !plan || !devices) {
		diag_fail(diag, "Out of memory.");
		goto out;
	}
	if (device_list_load(devices, getenv("FAGEN_DEVICES"), diag) != 0 ||
	    (r->wisdom && wisdom_load(&wisdom, r->wisdom, diag) != 0) || spec_load(spec, r->spec, diag) != 0 ||
	    program_lower(program, spec, diag) != 0)
		goto out;
	diag->file = r->spec;
	const struct device *device;
	const struct target *target;
	if (machine_choose(&device, &target, r, spec, devices, diag) != 0)
		goto out;
	problem_flags_apply(&problem, &r->problem, spec);
	problem.align = r->align ? r->align : problem.align;
	if (problem_check(&problem, spec->kv_group, diag) != 0)
		goto out;
	if (r->pass >= 0 && !spec->passes[r->pass]) {
		diag_fail(diag, "The spec has no %s pass; its `passes` must name it.", pass_names[r->pass]);
		goto out;
	}
	r->json ? summary_json(text, spec, program) : spec_summary(text, spec, program);
	if (!r->json && !spec->targets[target - target_table])
		text_addf(text, "  note         the spec's targets do not include %s\n", target->name);
	result = 0;
	bool first = true;
	for (int pass = 0; pass < PASS_COUNT; pass++) {
		if (!spec->passes[pass] || (r->pass >= 0 && r->pass != pass))
			continue;
		if (plan_tuned(plan, r->wisdom ? &wisdom : NULL, spec, program, target, device, &problem, pass, diag) != 0) {
			result = -1;
			continue;
		}
		if (r->json) {
			text_puts(text, first ? "" : ",\n");
			plan_json(text, plan);
		} else {
			text_puts(text, "\n");
			plan_print(text, plan);
		}
		first = false;
	}
	if (r->json)
		text_puts(text, "\n]}\n");
out:
	wisdom_free(&wisdom);
	free(spec);
	free(program);
	free(plan);
	free(devices);
	return result;
}

int cmd_explain(int argc, char **argv)
{
	struct request request;
	const int status = request_read(&request, argc, argv);
	if (status != 0)
		return status < 0 ? EXIT_SUCCESS : status;
	struct text text = {0};
	struct diag diag = {0};
	const int result = explain(&text, &diag, &request);
	if (result == 0 || !request.json)
		fputs(text_str(&text), stdout);
	fputs(text_str(&diag.text), stderr);
	text_free(&text);
	diag_free(&diag);
	return result == 0 ? EXIT_SUCCESS : EXIT_REQUEST;
}
