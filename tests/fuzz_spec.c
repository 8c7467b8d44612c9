/* Fuzzes the spec parser: whatever the bytes, there are errors, or a spec that prints itself and reads back the
 * same. Its files are those of specs/, tests/bad/ and tests/fuzz_spec/. */
#include "tests/fuzz.h"

#include <string.h>

#include "gen/gen.h"
#include "tests/spec_equal.h"

const char *const fuzz_words[] = {
#define SPEC_KEY(id, name, shape, fallback, doc) name ": ",
#include "gen/spec.def"
#undef SPEC_KEY
	"causal",
	"causal_top_left",
	"none",
	"{window: {left: 3, right: unbounded}}",
	"{all: [causal, {window: {left: 1}}]}",
	"{any: [causal, document, padding]}",
	"{any: [",
	"{all: [",
	"\"k <= q && q - k < 300 || k < 16\"",
	"{prefix: {n: \"w[b]\"}}",
	"prefix(4)",
	"document",
	"[{softcap: {cap: 20}}, alibi]",
	"s + rel[h, q - k]",
	"{rel: {dtype: f32, shape: [heads, 257], grad: true}}",
	"{w: {dtype: i32, shape: []}}",
	"shape: [batch, seq_q, blocks_k]",
	"{size: 64, from: lists}",
	"{size: {q: 16, k: 32}, rows: [[0, 1], \"#.\"]}",
	"{size: 64, keep: {random: {seed: 1, chance: 0.5}}}",
	"file: /dev/zero",
	"true",
	"false",
	" - ",
	" + ",
	"(",
	")",
	"?",
	"auto",
	"any",
	"all",
	"[forward, backward]",
	"[out, lse]",
	"{m: 64, n: 64}",
	"{forward: auto, backward: {m: 16, n: 16}}",
	"{batch: 1, heads: 8, heads_kv: 2, seqlen: 7}",
	"[sm_80]",
	"64",
	"128",
	"0.1",
	"1e-3",
	"-1",
	"0",
	"99999999999999999999",
	"\n",
	"\n  ",
	"\n- ",
	"\t",
	": ",
	", ",
	"{",
	"}",
	"[",
	"]",
	"'",
	"\"",
	"#",
	"&a ",
	"*a",
	"!!int ",
	"<<: ",
	"---\n",
	"...\n",
	"|\n ",
	">\n ",
	"? ",
	"%YAML 1.2\n",
	"\r",
	"\r\n",
	"\xEF\xBB\xBF",
	"\xC2\x85",
	"\xE2\x80\xA8",
	"\xFF",
	"\xC3\xBC",
	"\\x00",
	"\"\\0\"",
	"\"\\e\"",
	"_",
	"00",
	"+",
	".",
	"e",
	":",
	NULL,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct spec spec, again;
	struct diag d = {0};
	/* Exactly as many bytes as the parser may read, so that a sanitizer sees one more. */
	char *yaml = malloc(size ? size : 1);
	fuzz_demand(yaml != NULL, "out of memory");
	if (size)
		memcpy(yaml, data, size);
	const int result = spec_parse(&spec, yaml, size, "fuzz", &d);
	free(yaml);
	fuzz_demand((result == 0) == (d.errors == 0), "result and errors disagree");
	fuzz_demand((result == 0) == (d.text.len == 0), "an error without a message, or a message without an error");
	fuzz_demand(d.text.len < 64 * 1024, "messages without bound");
	fuzz_demand(text_str(&d.text)[strspn(text_str(&d.text), "\n")] || !d.text.len, "an empty message");
	for (size_t i = 0; i < d.text.len; i++)
		fuzz_demand((unsigned char)d.text.data[i] >= 0x20 || strchr("\n\t", d.text.data[i]),
		            "a raw control character");
	diag_free(&d);
	if (!result) {
		struct text printed = {0};
		spec_print(&printed, &spec);
		fuzz_demand(spec_parse(&again, text_str(&printed), printed.len, "again", &d) == 0, text_str(&printed));
		fuzz_demand(specs_equal(&spec, &again), "reads back as another spec");
		text_free(&printed);
		diag_free(&d);
	}
	return 0;
}
