/* Measured tiles: their lines and file, merging, what is one spec and one class of problems, and the planner's use of them. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gen/gen.h"

Suite *suite(void);

static const char line[] = "forward gpu=\"H200\" sms=132 problem=\"b4 hq16 hkv16 sq4096 sk4096 align16\" "
			   "tile=\"sm90/fwd 128x128 w12 s2\" us=301.250 noise=0.4% rounds=7 "
			   "planner=\"sm90/fwd 192x128 w16 s2\" planner_us=310.125 spec={head_dim: 64, mask: causal, outputs: [out]}";

/* A file of one line, with one piece of it exchanged. */
static const char *with(const char *from, const char *to)
{
	static char text[2048];
	const char *at = strstr(line, from);
	ck_assert_ptr_nonnull(at);
	snprintf(text, sizeof text, "fagen-wisdom 1\n%.*s%s%s\n", (int)(at - line), line, to, at + strlen(from));
	return text;
}

static void good(struct wisdom *w, const char *text)
{
	struct diag diag = {0};
	ck_assert_msg(wisdom_parse(w, text, strlen(text), "w", &diag) == 0, "%s", text_str(&diag.text));
	ck_assert_int_eq(diag.errors, 0);
	diag_free(&diag);
}

static void bad(const char *given, size_t len, const char *message)
{
	struct wisdom w = {0};
	struct diag diag = {0};
	char text[2048];
	memcpy(text, given, len); /* `with` has one place for all */
	good(&w, with("rounds=7", "rounds=3"));
	ck_assert_int_eq(wisdom_parse(&w, text, len, "w", &diag), -1);
	ck_assert_int_gt(diag.errors, 0);
	ck_assert_msg(!strncmp(text_str(&diag.text), message, strlen(message)), "said:\n%swant:\n%s", text_str(&diag.text), message);
	ck_assert_int_eq(w.count, 1); /* as it was */
	ck_assert_int_eq(w.entry[0].tuned.rounds, 3);
	wisdom_free(&w);
	diag_free(&diag);
}

START_TEST(a_line_is_what_it_says)
{
	struct wisdom w = {0};
	struct text printed = {0};
	good(&w, with("forward", "# a comment\n\nforward"));
	ck_assert_int_eq(w.count, 1);
	const struct wisdom_entry *e = &w.entry[0];
	ck_assert(e->pass == PASS_FORWARD && e->sms == 132 && e->tuned.rounds == 7 && e->tuned.noise == 4);
	ck_assert_str_eq(e->gpu, "H200");
	ck_assert_str_eq(e->spec, "{head_dim: 64, mask: causal, outputs: [out]}");
	ck_assert(e->problem.batch == 4 && e->problem.heads_kv == 16 && e->problem.seqlen_k == 4096 && e->problem.align == 16);
	ck_assert_str_eq(e->tuned.tile.templ, "sm90/fwd");
	ck_assert(e->tuned.tile.tile.m == 128 && e->tuned.tile.tile.n == 128 && e->tuned.tile.tile.warps == 12 &&
	          e->tuned.tile.tile.stages == 2);
	ck_assert(e->tuned.planner.tile.m == 192 && e->tuned.planner.tile.warps == 16);
	ck_assert(e->tuned.ns == 301250 && e->tuned.planner_ns == 310125);
	wisdom_print(&printed, &w);
	ck_assert_str_eq(text_str(&printed), with("H200", "H200"));
	text_free(&printed);
	wisdom_free(&w);
	/* Tiles that heads share are others than those of one. */
	w = (struct wisdom){0};
	printed = (struct text){0};
	good(&w, with("w12 s2\" us", "w12 s2 h8\" us"));
	ck_assert(w.entry[0].tuned.tile.tile.heads == 8 && w.entry[0].tuned.tile.tile.stages == 2 && w.entry[0].tuned.planner.tile.heads == 0);
	wisdom_print(&printed, &w);
	ck_assert_ptr_nonnull(strstr(text_str(&printed), "tile=\"sm90/fwd 128x128 w12 s2 h8\" us="));
	text_free(&printed);
	wisdom_free(&w);
	good(&w, "fagen-wisdom 1\n");
	good(&w, "# only this\nfagen-wisdom 1");
	ck_assert_int_eq(w.count, 0);
}
END_TEST

/* One piece of the line exchanged, and where the error is. */
static const struct {
	const char *from, *to, *message;
} faults[] = {
	{"forward", "sideways", "w:2:1: error: wisdom: found 'sideways'; want 'forward' or 'backward'"},
	{"forward", "", "w:2:1: error: wisdom: found ' '; want 'forward' or 'backward'"},
	{" gpu=", "  gpu=", "w:2:9: error: wisdom: found ' '; want 'gpu=\"'"},
	{"\"H200\"", "H200", "w:2:9: error: wisdom: found 'gpu=H200'; want 'gpu=\"'"},
	{"H200", "", "w:2:14: error: wisdom: found '\"'; want the name of a GPU of 1 to 63 bytes, and a quote behind it"},
	{"H200", "0123456789012345678901234567890123456789012345678901234567890123", "w:2:14: error: wisdom: found"},
	{"132", "0", "w:2:24: error: wisdom: found '0'; want a number from 1 to 4096"},
	{"132", "4097", "w:2:24: error: wisdom: found '4097'; want a number from 1 to 4096"},
	{"132", "0132", "w:2:24: error: wisdom: found '0132'; want a number from 1 to 4096"},
	{"132", "-1", "w:2:24: error: wisdom: found '-1'; want a number from 1 to 4096"},
	{"132", "99999999999999999999999", "w:2:24: error: wisdom: found"},
	{"b4 ", "b4x ", "w:2:37: error: wisdom: 'b4x hq16 hkv16 sq4096 sk4096 align16' is not a problem: at 'x hq16 "},
	{"b4 ", "b3 ",
	 "w:2:37: error: wisdom: 'b3 hq16 hkv16 sq4096 sk4096 align16' is not a class of problems: batch and lengths must be powers of "
	 "two, as in 'b4 hq16 hkv16 sq4096 sk4096 align16'"},
	{"sk4096", "sk5000", "w:2:37: error: wisdom: 'b4 hq16 hkv16 sq4096 sk5000 align16' is not a class"},
	{"hkv16", "hkv5", "w:2:37: error: wisdom: heads_q is 16 and heads_kv 5: "},
	{"\" tile=", " tile=", "w:2:37: error: wisdom: '"},
	{"sm90/fwd 128x128", "SM90 128x128", "w:2:80: error: wisdom: found 'SM90'; want a tile like 'sm90/fwd 128x128 w12 s2'"},
	{"sm90/fwd 128x128", "0123456789012345678901234567890123 128x128", "w:2:80: error: wisdom: found"},
	{"128x128", "128*128", "w:2:92: error: wisdom: found '*128'; want 'x'"},
	{"w12 s2\" us", "w12 s2 h1\" us", "w:2:105: error: wisdom: found '1\"'; want a number from 2 to 4096"},
	{"w12 s2\" us", "w12 s2 x8\" us", "w:2:104: error: wisdom: found 'x8\"'; want 'h'"},
	{"w12 s2\" us", "w12 s\" us", "w:2:102: error: wisdom: found '\"'; want a number from 1 to 4096"},
	{"us=301.250", "us=301.25", "w:2:111: error: wisdom: found '.25'; want a point and three digits"},
	{"us=301.250", "us=301", "w:2:111: error: wisdom: found ' '; want a point and three digits"},
	{"us=301.250", "us=0.000", "w:2:109: error: wisdom: found '.000'; want a time above 0"},
	{"us=301.250", "us=1000000001.000", "w:2:108: error: wisdom: found '1000000001.000'; want a number from 0 to 1000000000"},
	{"us=301.250", "us=nan", "w:2:108: error: wisdom: found 'nan'; want a number"},
	{"0.4%", "0.44%", "w:2:124: error: wisdom: found '44%'; want a number from 0 to 9"},
	{"0.4%", "101.0%", "w:2:122: error: wisdom: found '101.0%'; want a number from 0 to 100"},
	{"rounds=7", "rounds=0", "w:2:134: error: wisdom: found '0'; want a number from 1 to 1048576"},
	{"planner=", "plan=", "w:2:136: error: wisdom: found 'plan=\"sm90/fwd'; want 'planner='"},
	{"{head_dim", "head_dim", "w:2:194: error: wisdom: found 'head_dim:'; want a spec in braces up to the end of the line"},
	{"[out]}", "[out]} ", "w:2:194: error: wisdom: found '{head_dim:'; want a spec in braces up to the end of the line"},
	{"{head_dim: 64, mask: causal, outputs: [out]}", "", "w:2:194: error: wisdom: found the end of the line; want a spec"},
	{"mask: causal", "mask:\tcausal", "w:2:214: error: wisdom: a control character (byte 9)"},
};

START_TEST(bad_lines_are_refused)
{
	const char *text = with(faults[_i].from, faults[_i].to);
	bad(text, strlen(text), faults[_i].message);
}
END_TEST

START_TEST(bad_files_are_refused)
{
	static const struct { const char *text; size_t len; const char *message; } files[] = {
		{"", 0, "error: w: a file of wisdom begins with the line 'fagen-wisdom 1'; this one is empty"},
		{"# nothing\n", 10, "error: w: a file of wisdom begins"},
		{"head_dim: 64\n", 13, "w:1:1: error: wisdom: found 'head_dim:'; want 'fagen-wisdom '"},
		{"fagen-wisdom 2\n", 15, "w:1:15: error: wisdom: version 2; this fagen reads version 1"},
		{"fagen-wisdom 1x\n", 16, "w:1:15: error: wisdom: found 'x'; want the end of the line"},
		{"fagen-wisdom 1\0\n", 16, "w:1:15: error: wisdom: a control character (byte 0)"},
		{"fagen-wisdom 1\r\n", 16, "w:1:15: error: wisdom: a control character (byte 13)"},
	};
	bad(files[_i].text, files[_i].len, files[_i].message);
}
END_TEST

START_TEST(all_faults_are_told_and_nothing_is_taken)
{
	char text[4096];
	struct wisdom w = {0};
	struct diag diag = {0};
	snprintf(text, sizeof text, "fagen-wisdom 1\n%s\nx\n%s\nforward y\n", line, line);
	ck_assert_int_eq(wisdom_parse(&w, text, strlen(text), "w", &diag), -1);
	ck_assert_int_eq(diag.errors, 2);
	ck_assert_int_eq(w.count, 0);
	ck_assert_ptr_nonnull(strstr(text_str(&diag.text), "w:3:1: "));
	ck_assert_ptr_nonnull(strstr(text_str(&diag.text), "w:5:9: "));
	diag_free(&diag);
	ck_assert_int_eq(wisdom_load(&w, "/nonexistent/w", &diag), -1);
	ck_assert_ptr_nonnull(strstr(text_str(&diag.text), "cannot open /nonexistent/w: No such file"));
	diag_free(&diag);
	ck_assert_int_eq(wisdom_load(&w, "/", &diag), -1);
	ck_assert_ptr_nonnull(strstr(text_str(&diag.text), "cannot read /: "));
	diag_free(&diag);
}
END_TEST

START_TEST(the_page_shows_a_file)
{
	static char page[1 << 14];
	struct wisdom w = {0};
	struct text text = {0};
	FILE *f = fopen("docs/tuning.md", "r");
	ck_assert_ptr_nonnull(f);
	page[fread(page, 1, sizeof page - 1, f)] = '\0';
	fclose(f);
	const char *at = strstr(page, "    fagen-wisdom 1\n");
	ck_assert_ptr_nonnull(at);
	for (; strncmp(at, "    ", 4) == 0; at += strcspn(at, "\n") + 1)
		text_add(&text, at + 4, strcspn(at, "\n") + 1 - 4);
	good(&w, text_str(&text));
	ck_assert_int_eq(w.count, 1);
	wisdom_free(&w);
	text_free(&text);
}
END_TEST

/* ---- merging ---- */

static unsigned random_below(unsigned n)
{
	static uint64_t x = 88172645463325252u;
	x ^= x << 13, x ^= x >> 7, x ^= x << 17;
	return (unsigned)(x % n);
}

/* Few keys and few values, so that all kinds of ties occur. */
static void random_wisdom(struct wisdom *w, int lines)
{
	static char *const specs[] = {"{head_dim: 64}", "{head_dim: 128}"};
	static const char *const gpus[] = {"H100", "H200"};
	for (int i = 0; i < lines; i++) {
		struct wisdom_entry e = {.pass = (enum pass)random_below(2),
		                         .sms = 131 + (int)random_below(2),
		                         .problem = {1 + random_below(2), 8, 8, 1024, 1024, 16},
		                         .spec = specs[random_below(2)]};
		strcpy(e.gpu, gpus[random_below(2)]);
		e.tuned = (struct tuned){.tile = {"a", {64, 64, 4, 1 + (int)random_below(2)}},
		                         .planner = {"b", {64, 64, 4, 1 + (int)random_below(2)}},
		                         .ns = 1000 + random_below(2),
		                         .planner_ns = 1001 + random_below(2),
		                         .noise = (int)random_below(2),
		                         .rounds = 1 + (int)random_below(2)};
		ck_assert_int_eq(wisdom_add(w, &e), 0);
	}
}

static char *printed(const struct wisdom *w)
{
	struct text text = {0};
	wisdom_print(&text, w);
	return text.data;
}

/* The merge of parts in an order, each as often as it is named. */
static char *merged(const struct wisdom *const *part, int count)
{
	struct wisdom w = {0};
	for (int i = 0; i < count; i++)
		ck_assert_int_eq(wisdom_merge(&w, part[i]), 0);
	char *text = printed(&w);
	wisdom_free(&w);
	return text;
}

START_TEST(merging_is_commutative_associative_and_idempotent)
{
	for (int turn = 0; turn < 300; turn++) {
		struct wisdom a = {0}, b = {0}, c = {0}, bc = {0}, again = {0};
		random_wisdom(&a, 20);
		random_wisdom(&b, 20);
		random_wisdom(&c, (int)random_below(20));
		char *const one = merged((const struct wisdom *const[]){&a, &b, &c}, 3);
		char *const other = merged((const struct wisdom *const[]){&c, &a, &b, &a, &c}, 5);
		ck_assert_int_eq(wisdom_merge(&bc, &c), 0);
		ck_assert_int_eq(wisdom_merge(&bc, &b), 0);
		char *const third = merged((const struct wisdom *const[]){&bc, &a}, 2);
		ck_assert_str_eq(one, other);
		ck_assert_str_eq(one, third);
		good(&again, one); /* and through text */
		char *const fourth = printed(&again);
		ck_assert_str_eq(one, fourth);
		for (int i = 1; i < again.count; i++)
			ck_assert(again.entry[i - 1].sms != again.entry[i].sms || strcmp(again.entry[i - 1].gpu, again.entry[i].gpu) ||
			          strcmp(again.entry[i - 1].spec, again.entry[i].spec) ||
			          again.entry[i - 1].pass != again.entry[i].pass ||
			          memcmp(&again.entry[i - 1].problem, &again.entry[i].problem, sizeof again.entry[i].problem));
		free(one), free(other), free(third), free(fourth);
		wisdom_free(&a), wisdom_free(&b), wisdom_free(&c), wisdom_free(&bc), wisdom_free(&again);
	}
}
END_TEST

START_TEST(more_rounds_then_less_time)
{
	struct wisdom w = {0};
	good(&w, with("us=301.250", "us=305.000"));
	good(&w, with("us=301.250", "us=304.000"));
	ck_assert_int_eq(w.entry[0].tuned.ns, 304000);
	good(&w, with("rounds=7", "rounds=6"));
	ck_assert_int_eq(w.entry[0].tuned.ns, 304000);
	good(&w, with("us=301.250 noise=0.4% rounds=7", "us=400.000 noise=0.4% rounds=8"));
	ck_assert_int_eq(w.entry[0].tuned.ns, 400000);
	ck_assert_int_eq(w.count, 1);
	good(&w, with("sms=132", "sms=114"));
	good(&w, with("forward", "backward"));
	good(&w, with("b4 ", "b8 "));
	good(&w, with("H200", "H100"));
	good(&w, with("head_dim: 64", "head_dim: 72"));
	ck_assert_int_eq(w.count, 6);
	wisdom_free(&w);
}
END_TEST

/* ---- keys ---- */

static struct spec *spec_of(const char *yaml)
{
	struct diag diag = {0};
	struct spec *spec = malloc(sizeof *spec);
	ck_assert_ptr_nonnull(spec);
	ck_assert_msg(spec_parse(spec, yaml, strlen(yaml), "s", &diag) == 0, "%s", text_str(&diag.text));
	diag_free(&diag);
	return spec;
}

static void canonical_is(const char *yaml, enum pass pass, const char *want)
{
	struct spec *spec = spec_of(yaml);
	struct text text = {0};
	spec_canonical(&text, spec, pass);
	ck_assert_str_eq(text_str(&text), want);
	if (want[0] && !strchr(want, '#')) { /* and it is a spec that says the same */
		struct spec *again = spec_of(want);
		struct text twice = {0};
		spec_canonical(&twice, again, pass);
		ck_assert_str_eq(text_str(&twice), want);
		text_free(&twice);
		free(again);
	}
	text_free(&text);
	free(spec);
}

START_TEST(one_attention_has_one_spelling)
{
	canonical_is("head_dim: 64", PASS_FORWARD, "{head_dim: 64, outputs: [out]}");
	canonical_is("{name: x, dtype: bf16, head_dim: {qk: 64, v: 64}, targets: [sm_90a], assume: {batch: 9}, mask: none, dropout: 0.0}",
	             PASS_FORWARD, "{head_dim: 64, outputs: [out]}");
	canonical_is("{head_dim: 64, passes: [forward, backward], deterministic: true}", PASS_FORWARD, "{head_dim: 64, outputs: [out, lse]}");
	canonical_is("{head_dim: 64, passes: [forward, backward], running_maximum: true}", PASS_FORWARD,
	             "{head_dim: 64, outputs: [out, lse], running_maximum: true}");
	canonical_is("{head_dim: 64, passes: [forward, backward], running_maximum: true}", PASS_BACKWARD, "{head_dim: 64, outputs: [out, lse]}");
	canonical_is("{head_dim: 64, passes: [forward, backward], deterministic: true}", PASS_BACKWARD,
	             "{head_dim: 64, outputs: [out, lse], deterministic: true}");
	canonical_is("{head_dim: 64, tile: {m: 64, n: 64}, kv_group: any, dropout: 0.1, softmax_scale: 2}", PASS_FORWARD,
	             "{head_dim: 64, dropout: 0.1, softmax_scale: 2, kv_group: any, outputs: [out]}");
	canonical_is("head_dim: 64\nmask: \"k <= q ||\n  k < 4\"\n", PASS_FORWARD, "{head_dim: 64, mask: \"k <= q || k < 4\", outputs: [out]}");
	canonical_is("{head_dim: 64, passes: [forward, backward], score: \"s + t[h]\", inputs: {t: {dtype: f32, shape: [heads], grad: true}}}",
	             PASS_FORWARD,
	             "{head_dim: 64, score: \"s + t[h]\", inputs: {t: {dtype: f32, shape: [heads], grad: false}}, outputs: [out, lse]}");
	canonical_is("{head_dim: 64, blocks: {size: 128, rows: [\"#.\", \"##\"]}}", PASS_FORWARD,
	             "{head_dim: 64, blocks: {size: 128, rows: [ \"#.\", \"##\"]}, outputs: [out]}");
}
END_TEST

START_TEST(classes_of_problems)
{
	static const int64_t pairs[][2] = {{0, 0}, {1, 1}, {2, 2}, {3, 4}, {4096, 4096}, {4097, 8192}, {LENGTH_MAX - 1, LENGTH_MAX}, {LENGTH_MAX, LENGTH_MAX}};
	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
		const struct problem p = {pairs[i][0], 12, 3, pairs[i][0], 1, 2};
		struct problem c, twice;
		problem_class(&c, &p);
		problem_class(&twice, &c);
		ck_assert(c.batch == pairs[i][1] && c.seqlen_q == pairs[i][1] && c.seqlen_k == 1);
		ck_assert(c.heads_q == 12 && c.heads_kv == 3 && c.align == 2);
		ck_assert_int_eq(memcmp(&c, &twice, sizeof c), 0);
	}
}
END_TEST

START_TEST(names_of_gpus_fit_a_line)
{
	struct spec *spec = spec_of("head_dim: 64");
	struct device device = *device_find("H200");
	struct wisdom_entry key;
	struct wisdom w = {0}, again = {0};
	device.name = "My \"GPU\"\n 2";
	wisdom_key(&key, spec, &device, &spec->assume, PASS_FORWARD);
	ck_assert_str_eq(key.gpu, "My _GPU__ 2");
	key.tuned = (struct tuned){.tile = {"a", {1, 1, 1, 1}}, .planner = {"a", {1, 1, 1, 1}}, .ns = 1, .planner_ns = 1, .rounds = 1};
	ck_assert_int_eq(wisdom_add(&w, &key), 0);
	char *text = printed(&w);
	good(&again, text);
	ck_assert_ptr_nonnull(wisdom_find(&again, &key));
	key.sms++;
	ck_assert_ptr_null(wisdom_find(&again, &key));
	free(text);
	free(key.spec);
	free(spec);
	wisdom_free(&w);
	wisdom_free(&again);
}
END_TEST

/* ---- the planner ---- */

static struct plan plan, alone;

/* Plans with a wisdom of one line for exactly this, that names candidate `tile`. */
static void plan_by(const char *yaml, enum pass pass, const struct tile_choice *tile, bool other_class)
{
	struct spec *spec = spec_of(yaml);
	struct program *program = malloc(sizeof *program);
	struct diag diag = {0};
	struct wisdom w = {0};
	struct wisdom_entry key;
	const struct device *device = device_find("H200");
	struct problem problem = spec->assume;
	ck_assert_ptr_nonnull(program);
	ck_assert_int_eq(program_lower(program, spec, &diag), 0);
	wisdom_key(&key, spec, device, &problem, pass);
	key.tuned = (struct tuned){.tile = *tile, .planner = {"x", {1, 1, 1, 1}}, .ns = 5000, .planner_ns = 6000, .noise = 3, .rounds = 7};
	ck_assert_int_eq(wisdom_add(&w, &key), 0);
	problem.seqlen_k *= other_class ? 2 : 1;
	const struct target *target = target_find("sm_90a");
	ck_assert_msg(plan_tuned(&plan, &w, spec, program, target, device, &problem, pass, &diag) == 0 &&
	                      plan_make(&alone, spec, program, target, device, &problem, pass, &diag) == 0,
	              "%s", text_str(&diag.text));
	free(key.spec);
	free(program);
	free(spec);
	wisdom_free(&w);
}

static struct tile_choice choice_of(const struct plan *p, int candidate)
{
	const struct candidate *c = &p->candidate[candidate];
	struct tile_choice choice = {.tile = {c->tile_m, c->tile_n, c->warps, c->stages}};
	strcpy(choice.templ, p->templ);
	return choice;
}

static void plans_agree(void)
{
	struct text one = {0}, other = {0};
	ck_assert_str_eq(plan.templ, alone.templ);
	ck_assert_int_eq(plan.chosen, alone.chosen);
	recipe_print(&one, &plan.recipe);
	recipe_print(&other, &alone.recipe);
	ck_assert_str_eq(text_str(&one), text_str(&other));
	text_free(&one);
	text_free(&other);
}

static void explained(const char *want)
{
	struct text text = {0};
	plan_print(&text, &plan);
	ck_assert_msg(strstr(text_str(&text), want) != NULL, "no '%s' in\n%s", want, text_str(&text));
	text_free(&text);
}

#define CAUSAL "{head_dim: 64, mask: causal, passes: [forward, backward]}"

START_TEST(the_measured_tile_is_planned)
{
	const enum pass pass = (enum pass)_i;
	const struct tile_choice nothing = {"sm90/fwd", {.m = 1, .n = 2, .warps = 3, .stages = 4}};
	plan_by(CAUSAL, pass, &nothing, false);
	ck_assert_int_eq(plan.tuning, TUNING_STALE);
	plans_agree();
	explained("  tuning       the measured tile sm90/fwd 1x2 w3 s4 is none of the candidates below: the planner chose\n");
	/* Every candidate of the template that serves, and one of another. */
	static struct plan first;
	first = alone;
	ck_assert_int_eq(first.tuning, TUNING_OFF);
	int used = 0;
	for (int i = 0; i < first.candidate_count; i++) {
		const struct tile_choice tile = choice_of(&first, i);
		plan_by(CAUSAL, pass, &tile, false);
		if (first.candidate[i].reason[0]) {
			ck_assert_int_eq(plan.tuning, TUNING_STALE);
			plans_agree();
			continue;
		}
		ck_assert_int_eq(plan.tuning, TUNING_USED);
		ck_assert_str_eq(plan.templ, first.templ);
		ck_assert_int_eq(plan.chosen, i);
		ck_assert_int_eq(plan.tuned.ns, 5000);
		bool has = false; /* the recipe is the tile's */
		for (int k = 0; k < plan.recipe.kernel_count; k++)
			has |= plan.recipe.kernel[k].threads == 32 * tile.tile.warps && plan.recipe.kernel[k].smem_bytes == first.candidate[i].smem_bytes;
		ck_assert(has);
		explained("  tuning       the tile is from tuning: 5.0 us measured, noise 0.3%, 7 rounds; the planner's x 1x1 w1 s1 took 6.0 us\n");
		used++;
	}
	ck_assert_int_gt(used, 3);
	const struct tile_choice portable = pass == PASS_FORWARD ? (struct tile_choice){"sm80/fwd", {.m = 128, .n = 64, .warps = 4, .stages = 1}}
	                                                         : (struct tile_choice){"sm80/bwd", {.m = 64, .n = 64, .warps = 4, .stages = 1}};
	plan_by(CAUSAL, pass, &portable, false);
	ck_assert_int_eq(plan.tuning, TUNING_USED);
	ck_assert_str_eq(plan.templ, portable.templ);
	ck_assert_int_eq(plan.other_count, alone.other_count);
	bool told = false; /* the one that the planner would take is told of */
	for (int i = 0; i < plan.other_count; i++)
		told |= strcmp(plan.other[i].templ, first.templ) == 0 && plan.other[i].reason[0] == '\0';
	ck_assert(told);
}
END_TEST

START_TEST(what_no_line_is_for_is_planned)
{
	const struct tile_choice tile = {"sm80/fwd", {.m = 128, .n = 64, .warps = 4, .stages = 1}};
	plan_by(CAUSAL, PASS_FORWARD, &tile, true);
	ck_assert_int_eq(plan.tuning, TUNING_MISSING);
	plans_agree();
	explained("  tuning       the wisdom has no line for this spec, GPU and class of problem: the planner chose\n");
	/* A tile in the spec is not discussed. */
	plan_by("{head_dim: 64, mask: causal, tile: {m: 64, n: 64}}", PASS_FORWARD, &tile, false);
	ck_assert_int_eq(plan.tuning, TUNING_OFF);
	plans_agree();
}
END_TEST

START_TEST(json_tells_of_tuning)
{
	const struct tile_choice tile = {"sm80/fwd", {.m = 128, .n = 64, .warps = 4, .stages = 1}};
	struct text text = {0};
	plan_by(CAUSAL, PASS_FORWARD, &tile, false);
	plan_json(&text, &plan);
	ck_assert_ptr_nonnull(strstr(text_str(&text), ", \"tuning\": {\"state\": \"used\", \"tile\": \"sm80/fwd 128x64 w4 s1\", \"us\": 5.000, "
	                                              "\"noise\": 0.003, \"rounds\": 7, \"planner\": \"x 1x1 w1 s1\", \"planner_us\": 6.000}"));
	text_free(&text);
	plan_json(&text, &alone);
	ck_assert_ptr_null(strstr(text_str(&text), "tuning"));
	text_free(&text);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("wisdom");
	TCase *c = tcase_create("text");
	tcase_add_test(c, a_line_is_what_it_says);
	tcase_add_loop_test(c, bad_lines_are_refused, 0, sizeof faults / sizeof *faults);
	tcase_add_loop_test(c, bad_files_are_refused, 0, 7);
	tcase_add_test(c, all_faults_are_told_and_nothing_is_taken);
	tcase_add_test(c, the_page_shows_a_file);
	suite_add_tcase(s, c);
	c = tcase_create("merge");
	tcase_add_test(c, merging_is_commutative_associative_and_idempotent);
	tcase_add_test(c, more_rounds_then_less_time);
	suite_add_tcase(s, c);
	c = tcase_create("keys");
	tcase_add_test(c, one_attention_has_one_spelling);
	tcase_add_test(c, classes_of_problems);
	tcase_add_test(c, names_of_gpus_fit_a_line);
	suite_add_tcase(s, c);
	c = tcase_create("planner");
	tcase_set_timeout(c, 60);
	tcase_add_loop_test(c, the_measured_tile_is_planned, 0, PASS_COUNT);
	tcase_add_test(c, what_no_line_is_for_is_planned);
	tcase_add_test(c, json_tells_of_tuning);
	suite_add_tcase(s, c);
	return s;
}
