/* The spec: what is accepted means what it says, what is refused is refused with these words at this place. */
#include <check.h>
#include <dirent.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "gen/gen.h"
#include "tests/spec_help.h"

Suite *suite(void);

/* ---- helpers ---- */

/* FAGEN_UPDATE=1 writes the expected files instead of comparing with them. */
static bool updating(void) { return getenv("FAGEN_UPDATE") != NULL; }

static struct text file_read(const char *path)
{
	struct text t = {0};
	char piece[4096];
	size_t n;
	FILE *f = fopen(path, "rb");
	if (!f)
		return t;
	while ((n = fread(piece, 1, sizeof piece, f)) > 0)
		text_add(&t, piece, n);
	fclose(f);
	return t;
}

static void file_compare(const char *path, const char *text)
{
	if (updating()) {
		FILE *f = fopen(path, "wb");
		ck_assert_ptr_nonnull(f);
		fputs(text, f);
		ck_assert_int_eq(fclose(f), 0);
		return;
	}
	struct text expected = file_read(path);
	ck_assert_msg(!strcmp(text_str(&expected), text), "%s should be\n%s", path, text);
	text_free(&expected);
}

enum { PATH_BYTES = 320 };

/* Sorted paths of the .yaml files of a folder. */
static int paths_list(char paths[][PATH_BYTES], int max, const char *folder)
{
	struct dirent **entries;
	const int count = scandir(folder, &entries, NULL, alphasort);
	int used = 0;
	ck_assert_msg(count > 0, "no folder %s: run from the root of the project", folder);
	for (int i = 0; i < count; i++) {
		const char *suffix = strrchr(entries[i]->d_name, '.');
		if (suffix && !strcmp(suffix, ".yaml")) {
			ck_assert_int_lt(used, max);
			snprintf(paths[used++], PATH_BYTES, "%s/%s", folder, entries[i]->d_name);
		}
		free(entries[i]);
	}
	free(entries);
	return used;
}

static bool accepted(const char *yaml)
{
	struct spec s;
	struct diag d = {0};
	const bool good = spec_parse(&s, yaml, strlen(yaml), "t.yaml", &d) == 0;
	ck_assert_int_eq(good, d.errors == 0);
	ck_assert_int_eq(good, d.text.len == 0);
	diag_free(&d);
	return good;
}

/* Refused, with `words` in the message. */
static void refused(const char *yaml, size_t len, const char *words)
{
	struct spec s, before;
	struct diag d = {0};
	memset(&s, 0x5A, sizeof s);
	before = s;
	ck_assert_int_eq(spec_parse(&s, yaml, len, "t.yaml", &d), -1);
	ck_assert_int_gt(d.errors, 0);
	ck_assert_msg(strstr(text_str(&d.text), words), "no '%s' in %s", words, text_str(&d.text));
	ck_assert_msg(!memcmp(&s, &before, sizeof s), "the output was touched");
	diag_free(&d);
}

/* ---- files ---- */

START_TEST(bad_files)
{
	static char paths[400][PATH_BYTES];
	const int count = paths_list(paths, 400, "tests/bad");
	ck_assert_int_gt(count, 200);
	for (int i = 0; i < count; i++) {
		struct spec s;
		struct diag d = {0};
		char expected[PATH_BYTES + 8];
		static struct program program;
		ck_assert_msg(spec_load(&s, paths[i], &d) == -1 || program_lower(&program, &s, &d) == -1,
		              "%s was accepted", paths[i]);
		ck_assert_int_gt(d.errors, 0);
		ck_assert_msg(!strncmp(text_str(&d.text), paths[i], strlen(paths[i])), "%s is not named first",
		              paths[i]);
		snprintf(expected, sizeof expected, "%.*serr", (int)strlen(paths[i]) - 4, paths[i]);
		file_compare(expected, text_str(&d.text));
		diag_free(&d);
	}
}
END_TEST

START_TEST(library)
{
	static char paths[128][PATH_BYTES];
	const int count = paths_list(paths, 128, "specs");
	ck_assert_int_ge(count, 18);
	for (int i = 0; i < count; i++) {
		struct spec s;
		struct diag d = {0};
		struct text source = file_read(paths[i]);
		const int result = spec_load(&s, paths[i], &d);
		ck_assert_msg(!result, "%s", text_str(&d.text));
		const char *base = strrchr(paths[i], '/') + 1;
		ck_assert_msg(!strncmp(s.name, base, strlen(s.name)) && !strcmp(base + strlen(s.name), ".yaml"),
		              "%s is named %s", base, s.name);
		ck_assert_msg(!strncmp(text_str(&source), "# ", 2), "%s does not say what it is", paths[i]);
		round_trip(&s);
		text_free(&source);
		diag_free(&d);
	}
}
END_TEST

START_TEST(schema_file)
{
	struct text schema = {0};
	spec_schema(&schema);
	file_compare("docs/spec.schema.json", text_str(&schema));
	/* Well-formed, by a reader that is not ours: JSON is YAML. */
	yaml_parser_t parser;
	yaml_document_t document;
	ck_assert(yaml_parser_initialize(&parser));
	yaml_parser_set_input_string(&parser, (const unsigned char *)text_str(&schema), schema.len);
	ck_assert_msg(yaml_parser_load(&parser, &document), "%s at line %d", parser.problem,
	              (int)parser.problem_mark.line);
	yaml_document_delete(&document);
	yaml_parser_delete(&parser);
	text_free(&schema);
}
END_TEST

/* Do the words stand in the text, wherever its lines break? */
static bool says(const char *text, const char *words)
{
	for (; *text; text++) {
		const char *t = text, *w = words;
		while (*w && (*w == ' ' ? strspn(t, " \n") > 0 : *t == *w)) {
			t += *w == ' ' ? strspn(t, " \n") : 1;
			w++;
		}
		if (!*w)
			return true;
	}
	return false;
}

START_TEST(reference_names_everything)
{
	struct text t = {0};
	spec_reference(&t);
#define SPEC_KEY(id, name, shape, fallback, doc)                       \
	ck_assert_ptr_nonnull(strstr(text_str(&t), "\n  " name "\n")); \
	ck_assert(says(text_str(&t), doc));
#include "gen/spec.def"
#undef SPEC_KEY
	for (int i = 0; i < preset_count; i++)
		ck_assert_msg(says(text_str(&t), preset_table[i].definition) && says(text_str(&t), preset_table[i].doc),
		              "%s", preset_table[i].name);
	static const char *const rules[] = {"anchors", "0128",           "0o10",   "128:32",   "1_000",
	                                    "+5",      ".inf",           "1e-3",   "booleans", "byte order mark",
	                                    "1 MiB",   "tabs",           "quoted", "repeated", "toward minus",
	                                    "random(", "nearest element"};
	for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
		ck_assert_msg(strstr(text_str(&t), rules[i]), "the reference does not speak of %s", rules[i]);
	text_free(&t);
}
END_TEST

START_TEST(starter_parses)
{
	struct text t = {0};
	struct spec s;
	struct diag d = {0};
	spec_starter(&t);
	const int result = spec_parse(&s, text_str(&t), t.len, "starter.yaml", &d);
	ck_assert_msg(!result, "%s", text_str(&d.text));
	for (int k = 0; k < KEY_COUNT; k++)
		ck_assert_int_gt(s.place[k].line, 0);
	round_trip(&s);
	text_free(&t);
	diag_free(&d);
}
END_TEST

START_TEST(load_failures)
{
	struct spec s;
	struct diag d = {0};
	ck_assert_int_eq(spec_load(&s, "tests/bad/no such file", &d), -1);
	ck_assert_ptr_nonnull(strstr(text_str(&d.text), "cannot open tests/bad/no such file: No such file"));
	ck_assert_int_eq(spec_load(&s, "tests", &d), -1);
	ck_assert_ptr_nonnull(strstr(text_str(&d.text), "tests: Is a directory"));
	ck_assert_int_eq(spec_load(&s, "/dev/zero", &d), -1);
	ck_assert_ptr_nonnull(strstr(text_str(&d.text), "more than 1048576 bytes"));
	ck_assert_int_eq(d.errors, 3);
	diag_free(&d);
}
END_TEST

/* ---- values ---- */

START_TEST(defaults)
{
	const struct spec s = parse("head_dim: 64\n");
	ck_assert_str_eq(s.name, "t");
	ck_assert_int_eq(s.head_dim_qk, 64);
	ck_assert_int_eq(s.head_dim_v, 64);
	ck_assert_int_eq(s.dtype, DTYPE_BF16);
	ck_assert_int_eq(s.layout, LAYOUT_DENSE);
	ck_assert(s.mask == -1 && s.score == -1 && s.blocks.source == BLOCKS_NONE && !s.sink);
	ck_assert(s.term_count == 0 && s.text_len == 0 && s.input_count == 0);
	ck_assert(s.dropout == 0);
	ck_assert_int_eq(s.keep_256, 256);
	ck_assert(s.softmax_scale == 0.125);
	ck_assert_int_eq(s.kv_group, 1);
	ck_assert_uint_eq(s.outputs, OUTPUT_OUT);
	ck_assert(s.passes[PASS_FORWARD] && !s.passes[PASS_BACKWARD]);
	ck_assert(!s.deterministic && !s.running_maximum);
	ck_assert_int_eq(s.assume.batch, 4);
	ck_assert_int_eq(s.assume.heads_q, 16);
	ck_assert_int_eq(s.assume.heads_kv, 16);
	ck_assert_int_eq(s.assume.seqlen_q, 4096);
	ck_assert_int_eq(s.assume.seqlen_k, 4096);
	ck_assert_int_eq(s.assume.align, 16);
	ck_assert_int_eq(s.tile[PASS_FORWARD].m, 0);
	for (int i = 0; i < TARGET_COUNT; i++)
		ck_assert(s.targets[i]);
	for (int k = 0; k < KEY_COUNT; k++)
		ck_assert_int_eq(s.place[k].line, k == KEY_head_dim);
}
END_TEST

START_TEST(every_key)
{
	const struct spec s = parse(
		"fagen: 1\nname: 25921e05\nhead_dim: {v: 72, qk: 40}\ndtype: 'fp16'\n"
		"layout: packed\nmask: {all: [causal_top_left, {window: {right: 0, left: unbounded}}, {window: {left: 7}}]}\n"
		"score: [{softcap: {cap: 30.5}}, \"s + rel[h, q - k] * c\"]\nsink: true\n"
		"blocks: {size: {q: 32, k: 128}, keep: {any: [{local: {left: h + 1}}, k == 0]}}\n"
		"inputs: {rel: {shape: [heads, 257], grad: true, dtype: bf16}, c: {dtype: f32, shape: []}}\n"
		"dropout: 0.1\nsoftmax_scale: .5\nkv_group: any\npasses: [backward, forward]\noutputs: [lse, out]\n"
		"deterministic: true\nrunning_maximum: true\n"
		"assume: {batch: 2, heads: 12, heads_kv: 3, seqlen_q: 5, seqlen_k: 6, align: 2}\n"
		"tile: {backward: {m: 64, n: 32, stages: 2}, forward: {m: 128, n: 96, warps: 8}}\n"
		"targets: [sm_90a, sm_80]\n");
	ck_assert_str_eq(s.name, "25921e05");
	ck_assert_int_eq(s.head_dim_qk, 40);
	ck_assert_int_eq(s.head_dim_v, 72);
	ck_assert_int_eq(s.dtype, DTYPE_FP16);
	ck_assert_int_eq(s.layout, LAYOUT_PACKED);
	ck_assert_int_eq(s.term_count, 10);
	const struct term *all = &s.term[s.mask], *top = &s.term[all->child], *right = &s.term[top->next],
			  *left = &s.term[right->next];
	ck_assert_int_eq(all->kind, TERM_ALL);
	ck_assert_str_eq(preset_table[top->preset].name, "causal_top_left");
	ck_assert_str_eq(preset_table[right->preset].name, "window");
	ck_assert(right->arg[0].kind == ARG_UNBOUNDED && right->arg[1].kind == ARG_INT && right->arg[1].i == 0);
	ck_assert(left->arg[0].kind == ARG_INT && left->arg[0].i == 7 && left->arg[1].kind == ARG_UNBOUNDED);
	ck_assert_int_eq(left->next, -1);
	const struct term *chain = &s.term[s.score], *cap = &s.term[chain->child], *text = &s.term[cap->next];
	ck_assert(chain->kind == TERM_CHAIN && cap->kind == TERM_PRESET && text->kind == TERM_TEXT && text->next == -1);
	ck_assert(cap->arg[0].kind == ARG_REAL && cap->arg[0].f == 30.5);
	ck_assert_str_eq(s.text + text->text, "s + rel[h, q - k] * c");
	ck_assert(text->place.line == 7 && text->place.column == 34);
	ck_assert_int_eq(s.blocks.source, BLOCKS_KEEP);
	ck_assert(s.blocks.size_q == 32 && s.blocks.size_k == 128);
	const struct term *any = &s.term[s.blocks.keep], *local = &s.term[any->child];
	ck_assert_int_eq(any->kind, TERM_ANY);
	ck_assert_str_eq(preset_table[local->preset].name, "local");
	ck_assert(local->arg[0].kind == ARG_TEXT && local->arg[1].kind == ARG_UNBOUNDED);
	ck_assert_str_eq(s.text + local->arg[0].text, "h + 1");
	ck_assert_str_eq(s.text + s.term[local->next].text, "k == 0");
	ck_assert_int_eq(s.input_count, 3);
	ck_assert_int_eq(spec_input_find(&s, "rel"), 0);
	ck_assert_int_eq(spec_input_find(&s, "rels"), -1);
	ck_assert(s.input[0].dtype == INPUT_BF16 && s.input[0].grad && s.input[0].dims == 2);
	ck_assert(s.input[0].dim[0].kind == DIM_HEADS && s.input[0].dim[1].kind == DIM_CONST);
	ck_assert_int_eq(s.input[0].dim[1].size, 257);
	ck_assert(s.input[1].dims == 0 && !s.input[1].grad && s.input[1].dtype == INPUT_F32);
	ck_assert(s.sink && s.input[2].grad && s.input[2].dims == 1 && s.input[2].dim[0].kind == DIM_HEADS);
	ck_assert_str_eq(s.input[2].name, "sink");
	ck_assert(s.dropout == 0.1);
	ck_assert_int_eq(s.keep_256, 230); /* 256 * 0.9 = 230.4 */
	ck_assert(s.softmax_scale == 0.5);
	ck_assert_int_eq(s.kv_group, 0);
	ck_assert_uint_eq(s.outputs, OUTPUT_OUT | OUTPUT_LSE);
	ck_assert(s.passes[PASS_FORWARD] && s.passes[PASS_BACKWARD] && s.deterministic && s.running_maximum);
	ck_assert(s.assume.batch == 2 && s.assume.heads_q == 12 && s.assume.heads_kv == 3);
	ck_assert(s.assume.seqlen_q == 5 && s.assume.seqlen_k == 6 && s.assume.align == 2);
	ck_assert(s.tile[PASS_FORWARD].m == 128 && s.tile[PASS_FORWARD].n == 96);
	ck_assert(s.tile[PASS_FORWARD].warps == 8 && s.tile[PASS_FORWARD].stages == 0);
	ck_assert(s.tile[PASS_BACKWARD].m == 64 && s.tile[PASS_BACKWARD].n == 32);
	ck_assert(s.tile[PASS_BACKWARD].warps == 0 && s.tile[PASS_BACKWARD].stages == 2);
	for (int i = 0; i < TARGET_COUNT; i++)
		ck_assert_int_eq(s.targets[i],
		                 !strcmp(target_table[i].name, "sm_80") || !strcmp(target_table[i].name, "sm_90a"));
	for (int k = 0; k < KEY_COUNT; k++)
		ck_assert_int_gt(s.place[k].line, 0);
	ck_assert_int_eq(s.place[KEY_dropout].line, 11);
	ck_assert_int_eq(s.place[KEY_dropout].column, 10);
}
END_TEST

/* Every integer near the range: accepted exactly when it is a multiple of 8 from 16 to 256. */
START_TEST(head_dim_range)
{
	for (int n = -300; n <= 600; n++) {
		char yaml[64];
		snprintf(yaml, sizeof yaml, "head_dim: %d\n", n);
		ck_assert_msg(accepted(yaml) == (n >= 16 && n <= 256 && n % 8 == 0), "%s", yaml);
	}
}
END_TEST

START_TEST(dropout_steps)
{
	for (int i = 0; i <= 4096; i++) {
		const double p = i / 4096.0;
		const int keep = (int)floor(256 * (1 - p) + 0.5);
		char yaml[80];
		snprintf(yaml, sizeof yaml, "head_dim: 64\ndropout: %.17g\n", p);
		const bool good = p == 0 || (keep >= 1 && keep <= 255);
		ck_assert_msg(accepted(yaml) == good, "%s", yaml);
		if (good)
			ck_assert_int_eq(parse(yaml).keep_256, keep);
	}
	ck_assert(!signbit(parse("{head_dim: 64, dropout: -0}").dropout));
}
END_TEST

static const struct {
	const char *text;
	double value;
} reals[] = {
	{"1e-3", 0.001}, {"1E-3", 0.001},    {".5", 0.5},        {"5.", 5},
	{"0.1", 0.1},    {"1", 1},           {"10", 10},         {"1e+10", 1e10},
	{"1e10", 1e10},  {"0.0625", 0.0625}, {"2.5e-3", 0.0025}, {".5e1", 5},
	{"5.e1", 50},    {"0.10", 0.1},      {"1e-30", 1e-30},   {"0.088388347648318447", 0.088388347648318447},
};
START_TEST(real_accepted)
{
	char yaml[96];
	snprintf(yaml, sizeof yaml, "head_dim: 64\nsoftmax_scale: %s\n", reals[_i].text);
	ck_assert_msg(parse(yaml).softmax_scale == reals[_i].value, "%s", yaml);
}
END_TEST

static const char *const not_reals[] = {
	".inf", "-.inf", ".nan",    ".NaN",  "inf",      "nan",  "1_000",    "0x10",   "0o10",  "0b1",  "+5",
	"+.5",  "1e",    "1e+",     ".",     "-.",       "e5",   "1.2.3",    "1:30",   "0128",  "00.5", "1 000",
	"1,5",  "0x1p3", "1e5f",    "1d3",   "--1",      "1-",   "infinity", "1e-400", "1e400", "-1",   "0",
	"0.0",  "'0.5'", "\"0.5\"", "[0.5]", "{a: 0.5}", "true", "~",        "",
};
START_TEST(real_refused)
{
	char yaml[96];
	snprintf(yaml, sizeof yaml, "head_dim: 64\nsoftmax_scale: %s\n", not_reals[_i]);
	refused(yaml, strlen(yaml), "error: softmax_scale");
}
END_TEST

static const char *const not_wholes[] = {
	"0128",
	"010",
	"0o10",
	"0x10",
	"0b10",
	"128:32",
	"1_000",
	"+5",
	"64.0",
	"64.",
	"6.4e1",
	"1e99",
	"99999999999999999999",
	"18446744073709551680",
	"4294967360",
	"-9223372036854775809",
	"9223372036854775807",
	"-64",
	"'64'",
	"\"64\"",
	"|\n  64",
	"no",
	"off",
	"y",
	"true",
	"~",
	"null",
	".inf",
	"64 64",
	"6 4",
	"64k",
	"00",
	"-0",
	"- 64",
	"[64]",
	"\"6\\04\"",
};
START_TEST(whole_refused)
{
	char yaml[96];
	snprintf(yaml, sizeof yaml, "head_dim: %s\n", not_wholes[_i]);
	struct diag d = {0};
	struct spec s;
	ck_assert_msg(spec_parse(&s, yaml, strlen(yaml), "t.yaml", &d) == -1, "%s", yaml);
	diag_free(&d);
}
END_TEST

/* Words that YAML 1.1 makes booleans or null stay words: right for a name, wrong elsewhere. */
static const char *const boolean_words[] = {"no", "No", "NO",   "yes",  "on",    "off",  "Off",
                                            "y",  "n",  "true", "TRUE", "false", "null", "1"};
START_TEST(words_stay_words)
{
	static const char *const keys[] = {"mask",   "score",   "blocks", "inputs", "dtype",
	                                   "passes", "outputs", "assume", "tile",   "targets"};
	char yaml[96];
	snprintf(yaml, sizeof yaml, "head_dim: 64\nname: %s\n", boolean_words[_i]);
	ck_assert_str_eq(parse(yaml).name, boolean_words[_i]);
	for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
		snprintf(yaml, sizeof yaml, "head_dim: 64\n%s: %s\n", keys[k], boolean_words[_i]);
		refused(yaml, strlen(yaml), keys[k]);
	}
}
END_TEST

static const struct {
	const char *yaml;
	int heads_q, heads_kv;
} head_cases[] = {
	{"{head_dim: 64, kv_group: 3}", 18, 6},
	{"{head_dim: 64, kv_group: 4}", 16, 4},
	{"{head_dim: 64, kv_group: 1024}", 1024, 1},
	{"{head_dim: 64, kv_group: any}", 16, 16},
	{"{head_dim: 64, kv_group: any, assume: {heads_kv: 2}}", 2, 2},
	{"{head_dim: 64, kv_group: any, assume: {heads: 33, heads_kv: 11}}", 33, 11},
	{"{head_dim: 64, kv_group: 5, assume: {heads: 40}}", 40, 8},
	{"{head_dim: 64, kv_group: 5, assume: {heads_kv: 8}}", 40, 8},
	{"{head_dim: 64, assume: {heads: 7}}", 7, 7},
	{"{head_dim: 64, kv_group: 1024, assume: {heads_kv: 64, seqlen: 1}}", 65536, 64},
};
START_TEST(head_counts)
{
	const struct spec s = parse(head_cases[_i].yaml);
	ck_assert_int_eq(s.assume.heads_q, head_cases[_i].heads_q);
	ck_assert_int_eq(s.assume.heads_kv, head_cases[_i].heads_kv);
	round_trip(&s);
}
END_TEST

static const struct {
	const char *file, *name;
} name_cases[] = {
	{"specs/causal_d64.yaml", "causal_d64"},
	{"a.b.yml", "a_b"},
	{"no_suffix", "no_suffix"},
	{"-", "_"},
	{"", "spec"},
	{NULL, "spec"},
	{"dir/", "spec"},
	{".hidden", "_hidden"},
	{"-x.yaml", "_x"},
	{"<memory>", "_memory_"},
	{"\xC3\xBC.yaml", "__"},
	{"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.yaml",
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
};
START_TEST(name_from_file)
{
	struct spec s;
	struct diag d = {0};
	ck_assert_int_eq(spec_parse(&s, "head_dim: 64", 12, name_cases[_i].file, &d), 0);
	ck_assert_str_eq(s.name, name_cases[_i].name);
	round_trip(&s);
	diag_free(&d);
}
END_TEST

/* Forms of one file that mean the same. */
static const char *const same_files[] = {
	"head_dim: 64\nmask: causal\n",
	"\xEF\xBB\xBFhead_dim: 64\nmask: causal\n",
	"head_dim: 64\r\nmask: causal\r\n",
	"head_dim: 64\rmask: causal\r",
	"{\"head_dim\": 64, \"mask\": \"causal\"}",
	"---\nhead_dim: 64\nmask: causal\n...\n",
	"%YAML 1.2\n---\nhead_dim: 64\nmask: causal\n",
	"# c\n\nmask:\n  'causal'\nhead_dim:   64   # d",
	"head_dim: 64\nmask: {all: [causal]}",
	"head_dim: {qk: 64, v: 64}\nmask:\n  all:\n  - causal\n",
	"\xEF\xBB\xBF# only a comment first\r\nhead_dim: 64\r\nmask: causal",
	"? head_dim\n: 64\n? mask\n: causal\n",
	"head_dim:\t64\nmask:\tcausal\t# tabs between tokens\n",
	"head_dim: 64\nmask: {any: [{all: [causal]}]}\nscore: none\nsink: false\nblocks: none\ninputs: none\n",
	"head_dim: 64\nmask: causal\ndeterministic: false\n",
};
START_TEST(same_meaning)
{
	const struct spec first = parse(same_files[0]), s = parse(same_files[_i]);
	ck_assert(specs_equal(&first, &s));
}
END_TEST

/* ---- limits ---- */

static const char *const nested[] = {"[", "{a: ", "- ", "? ", "[{a: ", "{? "};
START_TEST(nesting_bounded)
{
	struct text yaml = {0};
	text_puts(&yaml, _i % 2 ? "head_dim: " : "");
	for (int i = 0; i < 100000; i++)
		text_puts(&yaml, nested[_i / 2]);
	refused(text_str(&yaml), yaml.len, "error: ");
	ck_assert_int_eq(strncmp(text_str(&yaml), "head_dim", 8) == 0, _i % 2);
	text_free(&yaml);
}
END_TEST

START_TEST(size_bounded)
{
	struct text yaml = {0};
	text_puts(&yaml, "head_dim: 64\n#");
	while (yaml.len < 1 << 20)
		text_add(&yaml, " ", 1);
	struct spec s;
	struct diag d = {0};
	ck_assert_int_eq(spec_parse(&s, text_str(&yaml), yaml.len, "t.yaml", &d), 0);
	text_add(&yaml, " ", 1);
	refused(text_str(&yaml), yaml.len, "more than 1048576 bytes");
	yaml.len = 0;
	text_puts(&yaml, "head_dim: [");
	for (int i = 0; i < 300000; i++)
		text_puts(&yaml, "1, ");
	text_puts(&yaml, "]");
	refused(text_str(&yaml), yaml.len, "more than 4096 values");
	text_free(&yaml);
	diag_free(&d);
}
END_TEST

START_TEST(errors_bounded)
{
	struct text yaml = {0};
	struct spec s;
	struct diag d = {0};
	for (int i = 0; i < 500; i++)
		text_addf(&yaml, "k%d: 1\n", i);
	ck_assert_int_eq(spec_parse(&s, text_str(&yaml), yaml.len, "t.yaml", &d), -1);
	ck_assert_int_eq(d.errors, 501);
	ck_assert_int_eq(d.first.line, 1);
	int shown = 0;
	for (const char *at = text_str(&d.text); (at = strstr(at, "unknown key")); at++)
		shown++;
	ck_assert_int_eq(shown, DIAG_SHOWN_MAX);
	ck_assert_ptr_nonnull(strstr(text_str(&d.text), "more than 50 errors"));
	ck_assert_uint_lt(d.text.len, 20000);
	text_free(&yaml);
	diag_free(&d);
}
END_TEST

/* NUL bytes, and every way to cut a valid file short: no crash, and an error or a spec. */
START_TEST(cut_and_dirty)
{
	static const char yaml[] = "# c\nhead_dim: {qk: 64, v: 128}\nmask: {all: [causal, {window: {left: 5}}]}\n"
				   "score: [\"s + w[h]\", alibi]\ninputs: {w: {dtype: f32, shape: [heads]}}\n"
				   "blocks: {size: 64, rows: [[0], '#']}\nassume: {\"batch\": 4}\n";
	for (size_t len = 0; len < sizeof yaml; len++) {
		struct spec s;
		struct diag d = {0};
		char *exact = malloc(len ? len : 1);
		memcpy(exact, yaml, len);
		ck_assert_int_eq(spec_parse(&s, exact, len, "t.yaml", &d) == 0, d.errors == 0);
		diag_free(&d);
		for (size_t at = 0; at < len; at++) {
			static const char dirt[] = {'\0', '\x01', '\xFF', '\xC3', '\t', '\x7F'};
			memcpy(exact, yaml, len);
			exact[at] = dirt[at % sizeof dirt];
			ck_assert_int_eq(spec_parse(&s, exact, len, "t.yaml", &d) == 0, d.errors == 0);
			diag_free(&d);
		}
		free(exact);
	}
	refused("head_dim: 64\0", 13, "1:13: error: found a NUL byte");
}
END_TEST

/* The decimal point of the program around us changes nothing. Where no such locale is installed one is compiled; where
 * that cannot be either, the C locale is all there is to test. */
START_TEST(locale_independent)
{
	char folder[] = "/tmp/fagen_locale_XXXXXX", command[160];
	if (!setlocale(LC_ALL, "de_DE.UTF-8")) {
		ck_assert_ptr_nonnull(mkdtemp(folder));
		snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >%s/log 2>&1", folder,
		         folder);
		const int made = system(command);
		setenv("LOCPATH", folder, 1);
		ck_assert(setlocale(LC_ALL, "de_DE.UTF-8") || made != 0);
		snprintf(command, sizeof command, "rm -rf %s", folder);
		ck_assert_int_eq(system(command), 0);
	}
	const struct spec s = parse("{head_dim: 64, dropout: 0.25, softmax_scale: 1.5}");
	ck_assert(s.dropout == 0.25 && s.softmax_scale == 1.5);
	round_trip(&s);
	struct text t = {0};
	text_addf(&t, "%.2f", 1.5);
	ck_assert_str_eq(text_str(&t), "1.50");
	text_free(&t);
	setlocale(LC_ALL, "C");
}
END_TEST

/* ---- text and diag ---- */

START_TEST(text_grows)
{
	struct text t = {0};
	ck_assert_str_eq(text_str(&t), "");
	for (int i = 0; i < 10000; i++) {
		text_add(&t, "a\0b", 3);
		ck_assert_int_eq(t.data[t.len], 0);
	}
	ck_assert_uint_eq(t.len, 30000);
	text_addf(&t, "%s%d", "x", 12);
	ck_assert(!memcmp(t.data + 29997, "a\0bx12", 7));
	text_free(&t);
	ck_assert_str_eq(text_str(&t), "");
	text_json(&t, "a\"\\\n\t\x01\x7F\xC3\xBC\xFF");
	ck_assert_str_eq(text_str(&t), "\"a\\\"\\\\\\n\\u0009\\u0001\\u007f\xC3\xBC\\ufffd\"");
	text_free(&t);
	text_quote(&t, "a\033\0\n\xC2\x9B\xC3\xBC\xFF", 9);
	ck_assert_str_eq(text_str(&t), "'a\\x1b\\x00\\n\\xc2\\x9b\xC3\xBC\\xff'");
	text_free(&t);
}
END_TEST

static const struct {
	const char *bytes;
	size_t length;
} characters[] = {
	{"a", 1},
	{"\xC3\xBC", 2},
	{"\xE2\x82\xAC", 3},
	{"\xF0\x9F\x98\x80", 4},
	{"\x80", 0},
	{"\xC0\x80", 0},
	{"\xC1\xBF", 0},
	{"\xE0\x80\x80", 0},
	{"\xED\xA0\x80", 0},
	{"\xF0\x80\x80\x80", 0},
	{"\xF4\x90\x80\x80", 0},
	{"\xF5\x80\x80\x80", 0},
	{"\xC3", 0},
	{"\xE2\x82", 0},
	{"\xF0\x9F\x98", 0},
	{"\xC3\x28", 0},
	{"\xFF", 0},
	{"\xF4\x8F\xBF\xBF", 4},
	{"\xED\x9F\xBF", 3},
};
START_TEST(utf8_lengths)
{
	ck_assert_uint_eq(text_utf8(characters[_i].bytes, strlen(characters[_i].bytes)), characters[_i].length);
}
END_TEST

static const struct {
	const char *word, *nearest;
} near_cases[] = {
	{"casual", "causal"},
	{"Causal", "causal"},
	{"causl", "causal"},
	{"wndow", "window"},
	{"sm_90", "sm_90a"},
	{"sm_9", "sm_90a"},
	{"sm_8", "sm_80"},
	{"bias", NULL},
	{"", NULL},
	{"x", NULL},
	{"windows", "window"},
	{"a_word_that_is_far_longer_than_any_name_of_the_language_could_ever_be", NULL},
};
START_TEST(nearest_names)
{
	static const char *const names[] = {"causal", "window", "sm_80", "sm_90a", "none"};
	const char *nearest = diag_nearest(near_cases[_i].word, names, 5);
	if (near_cases[_i].nearest)
		ck_assert_pstr_eq(nearest, near_cases[_i].nearest);
	else
		ck_assert_ptr_null(nearest);
}
END_TEST

START_TEST(messages)
{
	struct diag d = {.file = "f.yaml"};
	text_puts(&d.source, "ab: c\r\n\td\xC3\xBC: e");
	ck_assert_int_eq(diag_at(&d, (struct place){2, 6}, "bad %d", 7), -1);
	ck_assert_str_eq(text_str(&d.text), "f.yaml:2:6: error: bad 7\n    \td\xC3\xBC: e\n    \t   ^\n");
	ck_assert(d.first.line == 2 && d.first.column == 6 && d.errors == 1);
	d.text.len = 0;
	diag_at(&d, (struct place){9, 1}, "past the end");
	ck_assert_str_eq(text_str(&d.text), "f.yaml:9:1: error: past the end\n");
	d.text.len = 0;
	diag_in(&d, (struct place){2, 3}, "a line of its own\nand another", 2, "elsewhere");
	ck_assert_str_eq(text_str(&d.text), "f.yaml:2:3: error: elsewhere\n    a line of its own\n      ^\n");
	ck_assert(diag_has(&d, (struct place){2, 2}, "d\xC3\xBC: e") && diag_has(&d, (struct place){1, 1}, "ab: c"));
	ck_assert(!diag_has(&d, (struct place){2, 2}, "ab") && !diag_has(&d, (struct place){2, 4}, ": ef"));
	ck_assert(!diag_has(&d, (struct place){3, 1}, "a") && !diag_has(&d, (struct place){0, 0}, "ab"));
	d.text.len = 0;
	d.file = NULL;
	diag_at(&d, (struct place){0}, "nowhere");
	diag_fail(&d, "plain");
	diag_warn(&d, "careful");
	ck_assert_str_eq(text_str(&d.text), "error: nowhere\nerror: plain\nwarning: careful\n");
	ck_assert(d.errors == 5 && d.warnings == 1 && d.first.line == 2);
	diag_free(&d);
}
END_TEST

#define ROWS(table) (int)(sizeof(table) / sizeof *(table))

static TCase *tests(Suite *s, const char *name)
{
	TCase *t = tcase_create(name);
	tcase_set_timeout(t, 60);
	suite_add_tcase(s, t);
	return t;
}

Suite *suite(void)
{
	Suite *s = suite_create("spec");
	TCase *t = tests(s, "files");
	tcase_add_test(t, bad_files);
	tcase_add_test(t, library);
	tcase_add_test(t, schema_file);
	tcase_add_test(t, reference_names_everything);
	tcase_add_test(t, starter_parses);
	tcase_add_test(t, load_failures);
	t = tests(s, "values");
	tcase_add_test(t, defaults);
	tcase_add_test(t, every_key);
	tcase_add_test(t, head_dim_range);
	tcase_add_test(t, dropout_steps);
	tcase_add_loop_test(t, real_accepted, 0, ROWS(reals));
	tcase_add_loop_test(t, real_refused, 0, ROWS(not_reals));
	tcase_add_loop_test(t, whole_refused, 0, ROWS(not_wholes));
	tcase_add_loop_test(t, words_stay_words, 0, ROWS(boolean_words));
	tcase_add_loop_test(t, head_counts, 0, ROWS(head_cases));
	tcase_add_loop_test(t, name_from_file, 0, ROWS(name_cases));
	tcase_add_loop_test(t, same_meaning, 0, ROWS(same_files));
	tcase_add_test(t, locale_independent);
	t = tests(s, "limits");
	tcase_add_loop_test(t, nesting_bounded, 0, 2 * ROWS(nested));
	tcase_add_test(t, size_bounded);
	tcase_add_test(t, errors_bounded);
	tcase_add_test(t, cut_and_dirty);
	t = tests(s, "text and diag");
	tcase_add_test(t, text_grows);
	tcase_add_loop_test(t, utf8_lengths, 0, ROWS(characters));
	tcase_add_loop_test(t, nearest_names, 0, ROWS(near_cases));
	tcase_add_test(t, messages);
	return s;
}
