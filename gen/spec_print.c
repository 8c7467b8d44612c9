/* A spec as YAML with every key written out, and the starter made of it. */
#include "gen/spec_term.h"

#include <math.h>
#include <string.h>

void real_print(struct text *t, double value)
{
	for (int digits = 6; digits <= 17; digits++) {
		struct text attempt = {0};
		struct number number;
		text_addf(&attempt, "%.*g", digits, value);
		number_read(&number, text_str(&attempt));
		const bool same = number.real == value;
		if (same || digits == 17)
			text_puts(t, text_str(&attempt));
		text_free(&attempt);
		if (same)
			return;
	}
}

/* [a, b] of the words whose bit is set. */
static void set_print(struct text *t, const char *const *words, unsigned set)
{
	const char *comma = "[";
	for (int i = 0; words[i]; i++) {
		if (set >> i & 1) {
			text_addf(t, "%s%s", comma, words[i]);
			comma = ", ";
		}
	}
	text_puts(t, "]");
}

void print_fagen(struct text *t, const struct spec *s) { text_addf(t, "%lld", (long long)shape_version.max); }

void print_name(struct text *t, const struct spec *s) { text_puts(t, s->name); }

void print_head_dim(struct text *t, const struct spec *s)
{
	if (s->head_dim_qk == s->head_dim_v)
		text_addf(t, "%d", s->head_dim_qk);
	else
		text_addf(t, "{qk: %d, v: %d}", s->head_dim_qk, s->head_dim_v);
}

void print_dtype(struct text *t, const struct spec *s) { text_puts(t, dtype_words[s->dtype]); }

void print_layout(struct text *t, const struct spec *s) { text_puts(t, layout_words[s->layout]); }

static void term_or_none_print(struct text *t, const struct spec *s, int term)
{
	if (term < 0)
		text_puts(t, "none");
	else
		term_print(t, s, term);
}

void print_mask(struct text *t, const struct spec *s) { term_or_none_print(t, s, s->mask); }

void print_score(struct text *t, const struct spec *s) { term_or_none_print(t, s, s->score); }

static void truth_print(struct text *t, bool truth) { text_puts(t, truth ? "true" : "false"); }

void print_sink(struct text *t, const struct spec *s) { truth_print(t, s->sink); }

void print_deterministic(struct text *t, const struct spec *s) { truth_print(t, s->deterministic); }

void print_running_maximum(struct text *t, const struct spec *s) { truth_print(t, s->running_maximum); }

void print_dropout(struct text *t, const struct spec *s) { real_print(t, s->dropout); }

void print_softmax_scale(struct text *t, const struct spec *s)
{
	if (s->softmax_scale == 1 / sqrt(s->head_dim_qk))
		text_puts(t, "auto");
	else
		real_print(t, s->softmax_scale);
}

void print_kv_group(struct text *t, const struct spec *s)
{
	if (s->kv_group)
		text_addf(t, "%d", s->kv_group);
	else
		text_puts(t, "any");
}

void print_passes(struct text *t, const struct spec *s)
{
	set_print(t, pass_names,
	          (unsigned)s->passes[PASS_FORWARD] | (unsigned)s->passes[PASS_BACKWARD] << PASS_BACKWARD);
}

void print_outputs(struct text *t, const struct spec *s) { set_print(t, output_words, s->outputs); }

void print_assume(struct text *t, const struct spec *s)
{
	const struct problem *p = &s->assume;
	text_addf(t, "{batch: %lld, heads: %lld, heads_kv: %lld, ", (long long)p->batch, (long long)p->heads_q,
	          (long long)p->heads_kv);
	if (p->seqlen_q == p->seqlen_k)
		text_addf(t, "seqlen: %lld, ", (long long)p->seqlen_q);
	else
		text_addf(t, "seqlen_q: %lld, seqlen_k: %lld, ", (long long)p->seqlen_q, (long long)p->seqlen_k);
	text_addf(t, "align: %d}", p->align);
}

static void tile_request_print(struct text *t, const struct tile_request *tile)
{
	if (!tile->m) {
		text_puts(t, "auto");
		return;
	}
	text_addf(t, "{m: %d, n: %d", tile->m, tile->n);
	if (tile->warps)
		text_addf(t, ", warps: %d", tile->warps);
	if (tile->stages)
		text_addf(t, ", stages: %d", tile->stages);
	if (tile->splits)
		text_addf(t, ", splits: %d", tile->splits);
	if (tile->heads)
		text_addf(t, ", heads: %d", tile->heads);
	text_puts(t, "}");
}

void print_tile(struct text *t, const struct spec *s)
{
	if (!s->tile[PASS_BACKWARD].m) {
		tile_request_print(t, &s->tile[PASS_FORWARD]);
		return;
	}
	text_puts(t, "{forward: ");
	tile_request_print(t, &s->tile[PASS_FORWARD]);
	text_puts(t, ", backward: ");
	tile_request_print(t, &s->tile[PASS_BACKWARD]);
	text_puts(t, "}");
}

void print_targets(struct text *t, const struct spec *s)
{
	const char *comma = "[";
	int count = 0;
	for (int i = 0; i < TARGET_COUNT; i++)
		count += s->targets[i];
	if (count == TARGET_COUNT) {
		text_puts(t, "all");
		return;
	}
	for (int i = 0; i < TARGET_COUNT; i++) {
		if (s->targets[i]) {
			text_addf(t, "%s%s", comma, target_table[i].name);
			comma = ", ";
		}
	}
	text_puts(t, "]");
}

void spec_print(struct text *t, const struct spec *s)
{
	for (int k = 0; k < KEY_COUNT; k++) {
		text_addf(t, "%s: ", key_table[k].name);
		key_table[k].print(t, s);
		text_puts(t, "\n");
	}
}

/* Newlines and the blanks behind them become one blank. */
static void joined_add(struct text *t, const char *s)
{
	while (*s) {
		const size_t plain = strcspn(s, "\n");
		text_add(t, s, plain);
		s += plain;
		text_puts(t, *s ? " " : "");
		s += strspn(s, "\n");
		s += s[-1] == '\n' ? strspn(s, " ") : 0;
	}
}

void spec_canonical(struct text *t, const struct spec *spec, enum pass pass)
{
	static const enum spec_key left_out[] = {KEY_fagen, KEY_name, KEY_passes, KEY_assume, KEY_tile, KEY_targets};
	struct spec s = *spec;
	s.deterministic &= pass == PASS_BACKWARD;
	s.running_maximum &= pass == PASS_FORWARD;
	for (int i = 0; i < s.input_count; i++)
		s.input[i].grad &= pass == PASS_BACKWARD;
	const char *comma = "{";
	for (int k = 0; k < KEY_COUNT; k++) {
		struct text value = {0};
		bool out = false;
		for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
			out |= k == (int)left_out[i];
		key_table[k].print(&value, &s);
		if (!out && !(key_table[k].fallback && strcmp(text_str(&value), key_table[k].fallback) == 0)) {
			text_addf(t, "%s%s: ", comma, key_table[k].name);
			joined_add(t, text_str(&value));
			comma = ", ";
		}
		text_free(&value);
	}
	text_puts(t, "}");
}

void spec_starter(struct text *t)
{
	static const char yaml[] = "{name: attention, head_dim: 128, mask: causal, passes: [forward, backward], "
				   "assume: {batch: 4, heads: 32, seqlen: 4096}}";
	struct spec s;
	struct diag d = {0};
	text_puts(t, "# A spec of fagen: what the attention is. Every key is written out here; all but head_dim have a "
	             "default.\n"
	             "# `fagen -h spec` is the reference.\n");
	if (spec_parse(&s, yaml, sizeof yaml - 1, "starter", &d) == 0) {
		for (int k = 0; k < KEY_COUNT; k++) {
			struct text want = {0};
			shape_describe(&want, key_table[k].shape);
			text_puts(t, "\n");
			lines_add(t, "# ", key_table[k].doc);
			lines_add(t, "# ", text_str(&want));
			text_addf(t, "%s: ", key_table[k].name);
			key_table[k].print(t, &s);
			text_puts(t, "\n");
			text_free(&want);
		}
	}
	diag_free(&d);
}
