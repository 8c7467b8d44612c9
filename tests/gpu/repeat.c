/* The same launch many times: hangs and races that depend on timing, and bits that must not. Each case is judged against the
 * reference first, then launched again and again with its outputs poisoned in between. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/trial.h"
#include "tests/gpu/suite.h"

#define BOTH "passes: [forward, backward]}"
#define FORWARD "outputs: [out, lse]}"

struct repeat {
	int runs;
	bool backward; /* too: the spec says deterministic */
};

static bool result_repeats(const struct trial *r, const struct repeat *p, int id)
{
	return r->t[id].used && (id == TENSOR_OUT || id == TENSOR_LSE || (p->backward && id >= TENSOR_DQUERY));
}

static int launches_run(struct trial *r, const struct repeat *p)
{
	fagen_error error = {.struct_size = sizeof error};
	for (int id = 0; id < TENSOR_COUNT; id++)
		if (result_repeats(r, p, id) && gpu_poison(&r->t[id].device, r->rt, r->options->device, &r->diag))
			return trial_machine(r);
	int code = fagen_forward(r->kernel, &r->args, NULL, &error);
	if (!code && p->backward)
		code = fagen_backward(r->kernel, &r->args, NULL, &error);
	return trial_called(r, code, &error);
}

static int results_compare(struct trial *r, const struct repeat *p, unsigned char *got, int run)
{
	for (int id = 0; id < TENSOR_COUNT; id++) {
		const size_t bytes = (size_t)(r->t[id].layout.elements * r->t[id].layout.bytes);
		if (!result_repeats(r, p, id))
			continue;
		if (gpu_download(got, &r->t[id].device, 0, bytes, r->rt, r->options->device, &r->diag))
			return trial_fail(r, CHECK_WRONG, text_str(&r->diag.text));
		if (memcmp(got, r->t[id].host, bytes)) {
			diag_fail(&r->diag, "Launch %d gave other bits in %s.", run, tensor_names[id]);
			return trial_fail(r, CHECK_WRONG, text_str(&r->diag.text));
		}
	}
	return 0;
}

static int repeat_take(struct trial *r, void *context)
{
	struct repeat *p = context;
	size_t most = 1;
	p->backward = r->backward && r->spec->deterministic;
	for (int id = 0; id < TENSOR_COUNT; id++) {
		const size_t bytes = (size_t)(r->t[id].layout.elements * r->t[id].layout.bytes);
		most = bytes > most ? bytes : most;
	}
	unsigned char *got = malloc(most);
	if (!got)
		abort();
	int rc = 0;
	for (int run = 2; run < p->runs && !rc; run++)
		rc = launches_run(r, p) || results_compare(r, p, got, run) ? -1 : 0;
	free(got);
	return rc;
}

static void repeat_case(struct suite *s, enum class class, const char *spec, const char *parts, int runs)
{
	struct repeat p = {.runs = runs};
	struct check_options options = s->options;
	struct check_case c;
	struct check_outcome outcome;
	struct diag diag = {0};
	char name[CASE_TEXT_MAX], times[CASE_TEXT_MAX + 16];
	suite_case(s, class, spec, "%s", parts);
	if (s->only_spec || (s->only_class && strcmp(s->only_class, class_names[class])) || !suite_mine(s))
		return;
	const fagen_spec *loaded = suite_spec(s, class, spec);
	if (!loaded)
		return;
	case_default(&c, spec, runtime_spec(loaded));
	if (case_parse(&c, parts, &diag))
		abort();
	options.take = repeat_take;
	options.take_context = &p;
	check_run(&outcome, &c, s->rt, loaded, &options);
	case_print(name, &c);
	snprintf(times, sizeof times, "%s, %d times", name, runs);
	suite_result(s, class, outcome.status == CHECK_PASSED, times, outcome.text);
}

/* Data that a softmax must notice when it does not follow the running maximum; what it then does must give the same bits. */
static void hard_data(struct suite *s, int runs)
{
	static const char *const specs[] = {
		"{head_dim: 64, mask: causal, " FORWARD,
		"{head_dim: 128, dtype: fp16, " FORWARD,
		"{head_dim: 128, mask: \"k + 40 <= q\", " FORWARD, /* rows that see nothing among others */
		"{head_dim: {qk: 192, v: 128}, dtype: fp16, mask: causal, kv_group: 2, layout: packed, sink: true, " FORWARD,
	};
	char parts[64];
	for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
		for (int kind = INPUT_HUGE; kind < INPUT_COUNT; kind++) {
			if (kind == INPUT_CONST || kind == INPUT_ZERO || kind == INPUT_INF)
				continue;
			snprintf(parts, sizeof parts, "b2,h4/2,q500,k700,%s,seed%d", input_names[kind], kind);
			if (i < 3)
				snprintf(parts, sizeof parts, "b2,h4,q500,k700,%s,seed%d", input_names[kind], kind);
			repeat_case(s, CLASS_DET, specs[i], parts, runs);
		}
}

/* SYN-02: deterministic or not, window or not, softcap or not, dropout or not, in both passes. */
static void option_pairs(struct suite *s)
{
	char spec[CASE_NAME_MAX];
	for (int i = 0; i < 16; i++) {
		snprintf(spec, sizeof spec, "{head_dim: 128, mask: %s, %s%sdeterministic: %s, " BOTH,
		         i & 1 ? "{window: {left: 64, right: 0}}" : "causal", i & 2 ? "score: {softcap: {cap: 10}}, " : "",
		         i & 4 ? "dropout: 0.1, " : "", i & 8 ? "true" : "false");
		suite_case(s, CLASS_SYN, spec, "b1,h2,q256,k256,seed%d", i);
	}
}

void suite_repeat(struct suite *s)
{
	const char *const asked = getenv("FAGEN_DET_RUNS"); /* fewer, for a slow machine */
	const int runs = asked ? atoi(asked) : 1000, some = runs / 10 + 1;
	hard_data(s, runs);
	suite_case(s, CLASS_SYN, "{head_dim: 128, mask: causal, score: {softcap: {cap: 10}}, " BOTH, "b2,h32,q1024,k1024"); /* SYN-01 */
	option_pairs(s);
	for (int n = 241; n <= 256; n++) /* SYN-03 */
		suite_case(s, CLASS_SYN, "{head_dim: 128, sink: true, " BOTH, "b1,h2,q%d,k%d", n, n);
	/* SYN-04 */
	repeat_case(s, CLASS_SYN, "{head_dim: 64, layout: packed, " FORWARD, "b4,h2,lq64,lk0-512-0-7", runs);
	repeat_case(s, CLASS_SYN, "{head_dim: 64, layout: padded, mask: causal, " FORWARD, "b4,h2,lq64,lk0-512-0-7", runs);
	/* SYN-05 */
	repeat_case(s, CLASS_SYN, "{head_dim: 128, layout: packed, mask: causal, sink: true, " FORWARD,
	            "b7,h4,lq1200-1190-1207-1200-1180-1203-519,lk1200-1190-1207-1200-1180-1203-519", some);
	/* SYN-09 */
	repeat_case(s, CLASS_SYN, "{head_dim: 128, deterministic: true, " BOTH, "b300,h1,q2048,k128", some / 2);
}
