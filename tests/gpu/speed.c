/* PERF: cliffs, as ratios of two times on the same GPU. To be run alone on the machine. */
#include <stdio.h>
#include <string.h>

#include "check/trial.h"
#include "runtime/driver.h"
#include "tests/gpu/suite.h"

enum { ROUNDS = 7, LAUNCHES = 10 };

struct timing {
	enum pass pass;
	double ms; /* of a launch, the least of the rounds */
};

static int time_take(struct trial *r, void *context)
{
	struct timing *t = context;
	const struct cuda_calls *cu = driver_calls(runtime_driver(r->rt));
	struct fault f = {.diag = &r->diag};
	fagen_error error = {.struct_size = sizeof error};
	cu_event at[2] = {NULL, NULL};
	int code = 0;
	if (driver_push(runtime_driver(r->rt), r->options->device, &f))
		return trial_machine(r);
	cu_result result = cu->cuEventCreate(&at[0], 0);
	if (!result)
		result = cu->cuEventCreate(&at[1], 0);
	for (int round = 0; round < ROUNDS && !result && !code; round++) {
		float ms = 0;
		result = cu->cuEventRecord(at[0], NULL);
		for (int i = 0; i < LAUNCHES && !code; i++)
			code = t->pass == PASS_FORWARD ? fagen_forward(r->kernel, &r->args, NULL, &error)
			                               : fagen_backward(r->kernel, &r->args, NULL, &error);
		if (!result)
			result = cu->cuEventRecord(at[1], NULL);
		if (!result)
			result = cu->cuEventSynchronize(at[1]);
		if (!result)
			result = cu->cuEventElapsedTime(&ms, at[0], at[1]);
		if (round == 0 || ms / LAUNCHES < t->ms)
			t->ms = ms / LAUNCHES;
	}
	for (int i = 0; i < 2; i++)
		if (at[i])
			cu->cuEventDestroy_v2(at[i]);
	if (result)
		driver_fail(runtime_driver(r->rt), &f, result, "Taking the time");
	if (driver_pop(runtime_driver(r->rt), &f) || result)
		return trial_machine(r);
	return trial_called(r, code, &error);
}

/* false: the reason is in `text`. */
static bool time_case(double *ms, struct suite *s, const char *spec, const char *parts, enum pass pass, bool naive, char text[2304])
{
	struct timing t = {.pass = pass};
	struct check_options options = s->options;
	struct check_case c;
	struct check_outcome outcome;
	struct diag diag = {0};
	const fagen_spec *loaded = suite_spec(s, CLASS_PERF, spec);
	if (!loaded) {
		snprintf(text, 2304, "There is no such spec.");
		return false;
	}
	case_default(&c, spec, runtime_spec(loaded));
	options.take = time_take;
	options.take_context = &t;
	options.naive = naive;
	options.no_poison = true;
	if (case_parse(&c, parts, &diag)) {
		snprintf(text, 2304, "%s", text_str(&diag.text));
		diag_free(&diag);
		return false;
	}
	check_run(&outcome, &c, s->rt, loaded, &options);
	snprintf(text, 2304, "%s", outcome.text);
	*ms = t.ms;
	return outcome.status == CHECK_PASSED;
}

#define BOTH "passes: [forward, backward]}"
#define PACKED256 "{head_dim: 256, layout: packed, outputs: [out, lse]}"
#define PACKED64 "{head_dim: 64, layout: packed, mask: causal, outputs: [out, lse]}"
#define HALF64 "{head_dim: 64, dtype: fp16, outputs: [out, lse]}"

/* The first takes at most so many times as long as the second. */
static const struct {
	const char *id, *spec, *parts, *other_spec, *other_parts;
	enum pass pass;
	bool other_naive;
	double most;
} rows[] = {
	{"PERF-01 few heads, not slower than standard attention", HALF64, "b1,h12,q4096,k4096", HALF64, "b1,h12,q4096,k4096",
         PASS_FORWARD, true, 1},
	{"PERF-06 two thousand short sequences, packed beside dense", PACKED256, "b2048,h8,lq34,lk34",
         "{head_dim: 256, outputs: [out, lse]}", "b2048,h8,q34,k34", PASS_FORWARD, false, 1.5},
	{"PERF-07 a longest length of 1600 said for 120", PACKED64, "b8,h8,lq120,lk120,q1600,k1600", PACKED64, "b8,h8,lq120,lk120",
         PASS_FORWARD, false, 1.5},
	{"PERF-09 backward of head dim 128 beside 64", "{head_dim: 128, " BOTH, "b2,h16,q2048,k2048", "{head_dim: 64, " BOTH,
         "b2,h16,q2048,k2048", PASS_BACKWARD, false, 2.3},
};

void suite_speed(struct suite *s)
{
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		char text[2304];
		double ms = 0, other = 0;
		if (!suite_mine(s))
			continue;
		bool ok = time_case(&ms, s, rows[i].spec, rows[i].parts, rows[i].pass, false, text) &&
		          time_case(&other, s, rows[i].other_spec, rows[i].other_parts, rows[i].pass, rows[i].other_naive, text);
		if (ok)
			printf("%s: %.4f and %.4f ms\n", rows[i].id, ms, other);
		if (ok && ms > rows[i].most * other) {
			snprintf(text, sizeof text, "%.4f ms and %.4f ms; want at most %g times as long", ms, other, rows[i].most);
			ok = false;
		}
		suite_result(s, CLASS_PERF, ok, rows[i].id, text);
	}
}
