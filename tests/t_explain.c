/* `fagen explain` as its user meets it: exit statuses, messages, text and JSON. The command is $FAGEN. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "gen/gen.h"

static char output[1 << 20];

/* Runs `fagen explain ARGUMENTS`, both streams into output; the exit status. */
static int explain(const char *arguments)
{
	struct text command = {0};
	const char *fagen = getenv("FAGEN");
	text_addf(&command, "%s explain %s 2>&1", fagen ? fagen : "build/release/fagen", arguments);
	FILE *pipe = popen(text_str(&command), "r");
	ck_assert_ptr_nonnull(pipe);
	const size_t len = fread(output, 1, sizeof output - 1, pipe);
	output[len] = '\0';
	const int status = pclose(pipe);
	text_free(&command);
	ck_assert_msg(WIFEXITED(status), "'%s' died: %s", arguments, output);
	return WEXITSTATUS(status);
}

static void says(const char *arguments, int status, const char *const words[], int count)
{
	const int got = explain(arguments);
	ck_assert_msg(got == status, "'%s' exits with %d, not %d:\n%.3000s", arguments, got, status, output);
	for (int i = 0; i < count; i++)
		ck_assert_msg(strstr(output, words[i]) != NULL, "'%s' does not say '%s':\n%.3000s", arguments, words[i],
		              output);
}
#define SAYS(arguments, status, ...)                                \
	says(arguments, status, (const char *const[]){__VA_ARGS__}, \
	     sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

START_TEST(tells_the_plan)
{
	SAYS("specs/gpt2_train.yaml --gpu H200", 0, "gpt2_train", "k - sk <= q - sq", "230/256",
	     "forward: sm90/fwd for sm_90a on H200", "other        sm80/fwd: ", "tensor maps  query in boxes of ",
	     "backward: sm", "TFLOP/s", "bound by", "standard attention",
	     "of 232448 bytes", "workspace", "candidates", "b8 hq12 hkv12 sq1024 sk1024");
	SAYS("specs/causal_d128.yaml --pass forward --gpu 'rtx 3090' --batch 2 --heads 6 --seq-q 100 --seq-k 300 "
	     "--align 2",
	     0, "for sm_86 on RTX 3090", "b2 hq6 hkv6 sq100 sk300 align2", "rejected", "registers: ");
	ck_assert_ptr_null(strstr(output, "backward"));
	ck_assert_ptr_null(strstr(output, "tensor maps"));
	SAYS("specs/causal_d128.yaml --pass forward --gpu H200 --align 2", 0, "forward: sm80/fwd for sm_90a on H200",
	     "other        sm90/fwd: rows are not 16-byte aligned");
	SAYS("specs/llama_gqa.yaml --pass forward --heads 12", 0, "hq12 hkv3");
	SAYS("specs/llama_gqa.yaml --pass forward --heads-kv 2", 0, "hq8 hkv2");
	SAYS("specs/mistral_window.yaml --pass forward --seq 0", 0, "sq0 sk0", "left = ");
	SAYS("specs/causal_d64.yaml --target sm_80 --gpu L40S --pass forward", 0, "for sm_80 on L40S");
	SAYS("--help", 0, "usage: fagen explain", "RTX 5090");
}
END_TEST

START_TEST(tells_the_program)
{
	SAYS("specs/padded_bert.yaml --pass forward", 0, "batch        padded: seqlens_q");
	SAYS("specs/packed_causal.yaml --pass forward", 0, "batch        packed: cu_seqlens_q");
	SAYS("specs/longformer.yaml --pass forward", 0, "any of", "left = 256",
	     "by closed form, several runs of tiles: ", "k <= 15 || ");
	SAYS("specs/packed_documents.yaml --pass forward", 0, "by closed form: k + sq <= q + sk",
	     "by each tile: doc[b, k] == doc[b, ",
	     "one for each key of a tile, and the least and greatest of each tile", "the index is clamped",
	     "fagen_bounds");
	SAYS("specs/gemma2.yaml --pass forward", 0, "tanh(s / 50.0) * 50.0", "d score/d s", "never beyond 50");
	SAYS("specs/bigbird.yaml --pass forward", 0, "64 queries x 64 keys, kept where ",
	     "random(h + 458759, q, k) < 3276.8");
	SAYS("specs/block_lists.yaml --pass forward", 0, "list at launch", "fagen_blocks");
	SAYS("specs/gpt_oss.yaml --pass forward", 0, "sink[h]", "one value for a head");
	SAYS("specs/t5_encoder.yaml --pass forward", 0, "one for each diagonal of a tile");
	SAYS("specs/swin.yaml --pass forward", 0, "the table of a head");
}
END_TEST

START_TEST(plans_with_rows_of_a_file)
{
	static const char yaml[] =
		"- {name: My GPU, target: sm_80, sms: 10, clock_ghz: 1.5, hbm_gbs: 900, l2_gbs: 2000, "
		"l2_mib: 6, mma_flop_clk: 512, exp_clk: 16, alu_clk: 64, launch_us: 3}\n";
	FILE *file = fopen("/tmp/fagen_t_explain_rows.yaml", "w");
	ck_assert(file && fputs(yaml, file) >= 0 && fclose(file) == 0);
	setenv("FAGEN_DEVICES", "/tmp/fagen_t_explain_rows.yaml", 1);
	SAYS("specs/causal_d64.yaml --gpu 'my gpu' --pass forward", 0, "for sm_80 on My GPU", "on each of 10 SMs");
	SAYS("specs/causal_d64.yaml --gpu 'My GUP'", 1, "No GPU is called 'My GUP'. Did you mean 'My GPU'?");
	SAYS("specs/causal_d64.yaml --pass forward", 0, "for sm_90a on H200"); /* the default is what it was */
	setenv("FAGEN_DEVICES", "specs/nothing.yaml", 1);
	SAYS("specs/causal_d64.yaml", 1, "error: cannot open specs/nothing.yaml: No such file or directory");
	unsetenv("FAGEN_DEVICES");
	remove("/tmp/fagen_t_explain_rows.yaml");
}
END_TEST

/* The conjunct that no class of tiles follows from, and why. */
START_TEST(tells_what_is_undecided)
{
	static const char yaml[] = "head_dim: 64\nmask: k <= q && random(5, q, k) < 40000\npasses: [forward]\n";
	FILE *file = fopen("/tmp/fagen_t_explain.yaml", "w");
	ck_assert_ptr_nonnull(file);
	ck_assert_uint_eq(fwrite(yaml, 1, sizeof yaml - 1, file), sizeof yaml - 1);
	ck_assert_int_eq(fclose(file), 0);
	SAYS("/tmp/fagen_t_explain.yaml", 0, "by closed form: k <= q",
	     "by each cell: random(5, q, k) < 40000, because random(5, q, k) may be anything in a tile");
	SAYS("/tmp/fagen_t_explain.yaml --json", 0, "\"decided\": \"each cell\", \"because\": \"random(5, q, k)\"");
	remove("/tmp/fagen_t_explain.yaml");
}
END_TEST

START_TEST(refuses)
{
	static const struct {
		const char *arguments;
		int status;
		const char *says;
	} table[] = {
		{"", 2, "which spec"},
		{"specs/causal_d64.yaml specs/causal_d128.yaml", 2, "one spec at a time"},
		{"specs/causal_d64.yaml --seq -1", 2, "--seq takes a number"},
		{"specs/causal_d64.yaml --seq 1e3", 2, "'1e3'"},
		{"specs/causal_d64.yaml --seq 99999999999999999999", 2, "1073741824"},
		{"specs/causal_d64.yaml --heads 0", 2, "--heads takes a number from 1"},
		{"specs/causal_d64.yaml --align 8", 2, "16 or 2"},
		{"specs/causal_d64.yaml --pass both", 2, "forward or backward"},
		{"specs/causal_d64.yaml --window", 2, "--help"},
		{"specs/nothing.yaml", 1, "specs/nothing.yaml"},
		{"specs/causal_d64.yaml --gpu 'RTX 4091'", 1, "Did you mean 'RTX 4090'?"},
		{"specs/causal_d64.yaml --target sm_90", 1, "sm_90a"},
		{"specs/causal_d64.yaml --target sm_90a --gpu A100", 1, "does not run on A100"},
		{"specs/causal_d64.yaml --heads 3 --heads-kv 2", 1, "needs heads_kv 3, not 2"},
		{"specs/llama_gqa.yaml --heads 33", 1, "32 and 36"},
		{"specs/causal_d64.yaml --batch 1073741824 --seq 100000", 1, "2147483647 CTAs"},
		{"specs/full_d64.yaml --pass forward --json --gpu nothing", 1, "No GPU is called 'nothing'"},
	};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		SAYS(table[i].arguments, table[i].status, table[i].says);
}
END_TEST

/* Enough of a JSON reader to tell that the text is one value: balanced, strings closed, no nan or inf. */
static const char *json_skip(const char *at)
{
	at += strspn(at, " \n");
	if (*at == '"') {
		for (at++; *at && *at != '"'; at++)
			at += *at == '\\' && at[1];
		return *at ? at + 1 : NULL;
	}
	if (*at == '{' || *at == '[') {
		const char close = *at == '{' ? '}' : ']';
		const bool object = close == '}';
		at++;
		at += strspn(at, " \n");
		if (*at == close)
			return at + 1;
		for (;;) {
			if (object) {
				at += strspn(at, " \n");
				if (*at != '"' || (at = json_skip(at)) == NULL || *at++ != ':')
					return NULL;
			}
			if ((at = json_skip(at)) == NULL)
				return NULL;
			at += strspn(at, " \n");
			if (*at == close)
				return at + 1;
			if (*at++ != ',')
				return NULL;
		}
	}
	static const char *const literals[] = {"true", "false", "null"};
	for (int i = 0; i < 3; i++)
		if (strncmp(at, literals[i], strlen(literals[i])) == 0)
			return at + strlen(literals[i]);
	const size_t digits = strspn(at, "-+.0123456789e");
	return digits ? at + digits : NULL;
}

START_TEST(json_is_json)
{
	static const char *const arguments[] = {
		"specs/gpt2_train.yaml --json",
		"specs/d256.yaml --pass forward --json --gpu L40S",
		"specs/causal_d64.yaml --json --seq 0 --pass forward",
		"specs/mistral_window.yaml --json --pass forward --batch 0",
		"specs/packed_documents.yaml --json --pass forward",
		"specs/alibi.yaml --json",
	};
	for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++) {
		ck_assert_msg(explain(arguments[i]) == 0, "%s", output);
		const char *end = json_skip(output);
		ck_assert_msg(end != NULL, "%s: not JSON", arguments[i]);
		ck_assert_str_eq(end, "\n");
		ck_assert_ptr_nonnull(strstr(output, "\"bound_by\""));
	}
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("explain");
	TCase *c = tcase_create("explain");
	tcase_set_timeout(c, 60);
	tcase_add_test(c, tells_the_plan);
	tcase_add_test(c, tells_the_program);
	tcase_add_test(c, plans_with_rows_of_a_file);
	tcase_add_test(c, tells_what_is_undecided);
	tcase_add_test(c, refuses);
	tcase_add_test(c, json_is_json);
	suite_add_tcase(s, c);
	return s;
}
