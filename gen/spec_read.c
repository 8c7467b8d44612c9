/* From a node of the right shape to the field of struct spec, and the rules between keys. A rule is checked by the
 * later of its keys, and only when the others are good. */
#include "gen/spec_term.h"

#include <math.h>
#include <string.h>

int64_t whole_of(const struct yaml_tree *t, const struct yaml_node *n)
{
	struct number number;
	number_read(&number, yaml_text(t, n));
	return number.whole;
}

static double real_of(const struct yaml_tree *t, const struct yaml_node *n)
{
	struct number number;
	number_read(&number, yaml_text(t, n));
	return number.real == 0 ? 0 : number.real; /* not -0 */
}

static bool list_has(const struct reading *r, enum spec_key k, const char *word)
{
	for (const struct yaml_node *n = yaml_child(r->tree[k], r->node[k]); n; n = yaml_next(r->tree[k], n))
		if (yaml_is(r->tree[k], n, word))
			return true;
	return false;
}

/* The integer of a field of a key's map; `fallback` when it was left out. */
static int64_t field_whole(const struct reading *r, enum spec_key k, const char *field, int64_t fallback)
{
	const struct yaml_node *n = r->node[k] ? yaml_get(r->tree[k], r->node[k], field) : NULL;
	return n ? whole_of(r->tree[k], n) : fallback;
}

static struct place field_place(const struct reading *r, enum spec_key k, const char *field)
{
	const struct yaml_node *n = r->node[k] ? yaml_get(r->tree[k], r->node[k], field) : NULL;
	return n ? n->place : r->spec->place[k];
}

int read_fagen(struct reading *r) { return 0; }

/* The file's name without folders and suffix, what a name cannot hold replaced by _. */
static void name_from_file(char name[SPEC_NAME_MAX], const char *file)
{
	const char *slash = file ? strrchr(file, '/') : NULL;
	const char *base = slash ? slash + 1 : file && *file ? file : "spec";
	const char *dot = strrchr(base, '.');
	size_t len = dot && dot > base ? (size_t)(dot - base) : strlen(base);
	len = len < SPEC_NAME_MAX ? len : SPEC_NAME_MAX - 1;
	for (size_t i = 0; i < len; i++) {
		const char c = base[i];
		const bool kept =
			(c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c == '-' && i);
		name[i] = kept ? c : '_';
	}
	if (!len)
		strcpy(name, "spec");
}

int read_name(struct reading *r)
{
	const struct yaml_node *n = r->node[KEY_name];
	if (n)
		memcpy(r->spec->name, yaml_text(r->tree[KEY_name], n), n->len);
	else
		name_from_file(r->spec->name, r->file);
	return 0;
}

int read_head_dim(struct reading *r)
{
	const struct yaml_node *n = r->node[KEY_head_dim];
	if (n->kind == YAML_SCALAR) {
		r->spec->head_dim_qk = r->spec->head_dim_v = (int)whole_of(r->tree[KEY_head_dim], n);
	} else {
		r->spec->head_dim_qk = (int)field_whole(r, KEY_head_dim, "qk", 0);
		r->spec->head_dim_v = (int)field_whole(r, KEY_head_dim, "v", 0);
	}
	return 0;
}

int read_layout(struct reading *r)
{
	int i = 0;
	while (!yaml_is(r->tree[KEY_layout], r->node[KEY_layout], layout_words[i]))
		i++;
	r->spec->layout = (enum batch_layout)i;
	return 0;
}

int read_dtype(struct reading *r)
{
	r->spec->dtype =
		yaml_is(r->tree[KEY_dtype], r->node[KEY_dtype], dtype_words[DTYPE_FP16]) ? DTYPE_FP16 : DTYPE_BF16;
	return 0;
}

static int key_term_read(int *term, struct reading *r, enum spec_key k)
{
	*term = -1;
	if (yaml_is(r->tree[k], r->node[k], "none"))
		return 0;
	*term = term_read(r, r->tree[k], r->node[k]);
	return *term < 0 ? -1 : 0;
}

int read_mask(struct reading *r) { return key_term_read(&r->spec->mask, r, KEY_mask); }

int read_score(struct reading *r) { return key_term_read(&r->spec->score, r, KEY_score); }

static bool truth_of(const struct reading *r, enum spec_key key) { return yaml_is(r->tree[key], r->node[key], "true"); }

int read_sink(struct reading *r)
{
	r->spec->sink = truth_of(r, KEY_sink);
	return 0;
}

int read_deterministic(struct reading *r)
{
	r->spec->deterministic = truth_of(r, KEY_deterministic);
	return 0;
}

int read_running_maximum(struct reading *r)
{
	r->spec->running_maximum = truth_of(r, KEY_running_maximum);
	return 0;
}

int read_dropout(struct reading *r)
{
	const double p = real_of(r->tree[KEY_dropout], r->node[KEY_dropout]);
	const int keep = (int)round(DROPOUT_LEVELS * (1 - p));
	const struct place place = r->node[KEY_dropout]->place;
	if (p > 0 && keep == DROPOUT_LEVELS)
		return diag_at(r->diag, place,
		               "dropout: %g rounds to no dropout in steps of 1/256; want 0, or at least 0.002", p);
	if (keep < 1)
		return diag_at(r->diag, place,
		               "dropout: %g rounds to dropping everything in steps of 1/256; want at most 0.998", p);
	r->spec->dropout = p;
	r->spec->keep_256 = keep;
	return 0;
}

int read_softmax_scale(struct reading *r)
{
	const struct yaml_tree *t = r->tree[KEY_softmax_scale];
	const struct yaml_node *n = r->node[KEY_softmax_scale];
	if (!yaml_is(t, n, "auto"))
		r->spec->softmax_scale = real_of(t, n);
	else if (r->good[KEY_head_dim])
		r->spec->softmax_scale = 1 / sqrt(r->spec->head_dim_qk);
	return 0;
}

int read_kv_group(struct reading *r)
{
	const struct yaml_tree *t = r->tree[KEY_kv_group];
	const struct yaml_node *n = r->node[KEY_kv_group];
	r->spec->kv_group = yaml_is(t, n, "any") ? 0 : (int)whole_of(t, n);
	return 0;
}

int read_passes(struct reading *r)
{
	for (int i = 0; i < PASS_COUNT; i++)
		r->spec->passes[i] = list_has(r, KEY_passes, pass_names[i]);
	return 0;
}

int read_outputs(struct reading *r)
{
	struct spec *s = r->spec;
	if (!r->node[KEY_outputs]) {
		s->outputs = s->passes[PASS_BACKWARD] ? OUTPUT_OUT | OUTPUT_LSE : OUTPUT_OUT;
		return 0;
	}
	for (int i = 0; output_words[i]; i++)
		s->outputs |= list_has(r, KEY_outputs, output_words[i]) ? 1u << i : 0;
	if (s->passes[PASS_BACKWARD] && !(s->outputs & OUTPUT_LSE))
		return diag_at(r->diag, r->node[KEY_outputs]->place,
		               "outputs: the backward pass needs lse; want [out, lse], or passes: [forward]");
	return 0;
}

static int assume_lengths(struct reading *r)
{
	struct problem *p = &r->spec->assume;
	const struct yaml_node *both = yaml_get(r->tree[KEY_assume], r->node[KEY_assume], "seqlen");
	const char *const sides[] = {"seqlen_q", "seqlen_k"};
	for (int i = 0; both && i < 2; i++)
		if (yaml_get(r->tree[KEY_assume], r->node[KEY_assume], sides[i]))
			return diag_at(r->diag, field_place(r, KEY_assume, sides[i]),
			               "assume.%s: seqlen stands for both lengths already; want seqlen alone, or "
			               "seqlen_q and seqlen_k",
			               sides[i]);
	const int64_t length = field_whole(r, KEY_assume, "seqlen", 4096);
	p->seqlen_q = field_whole(r, KEY_assume, "seqlen_q", length);
	p->seqlen_k = field_whole(r, KEY_assume, "seqlen_k", length);
	return 0;
}

/* Head counts left out follow from the others, so that kv_group alone is enough. */
static int assume_heads(struct reading *r)
{
	enum { HEADS_TYPICAL = 16 };
	struct problem *p = &r->spec->assume;
	const int64_t heads = field_whole(r, KEY_assume, "heads", 0),
		      heads_kv = field_whole(r, KEY_assume, "heads_kv", 0);
	const int64_t group = r->spec->kv_group ? r->spec->kv_group : 1;
	p->heads_q = heads ? heads : heads_kv ? heads_kv * group : (HEADS_TYPICAL + group - 1) / group * group;
	p->heads_kv = heads_kv ? heads_kv : p->heads_q / group;
	if (p->heads_q > HEADS_MAX)
		return diag_at(r->diag, field_place(r, KEY_assume, "heads_kv"),
		               "assume.heads_kv: %lld in groups of %lld are %lld query heads; want at most %d",
		               (long long)heads_kv, (long long)group, (long long)p->heads_q, HEADS_MAX);
	const struct place place = field_place(r, KEY_assume, heads ? "heads" : "heads_kv");
	if (heads && !heads_kv && heads % group)
		return diag_at(r->diag, place, "assume.heads: %lld is not a multiple of kv_group, %lld",
		               (long long)heads, (long long)group);
	if (p->heads_q % p->heads_kv)
		return diag_at(
			r->diag, place,
			"assume.heads: %lld query heads do not divide into %lld key/value heads; want a multiple of %lld",
			(long long)p->heads_q, (long long)p->heads_kv, (long long)p->heads_kv);
	if (r->spec->kv_group && p->heads_q / p->heads_kv != group)
		return diag_at(
			r->diag, place,
			"assume.heads: %lld query over %lld key/value heads is a group of %lld, but kv_group is %d%s; "
			"change one of them",
			(long long)p->heads_q, (long long)p->heads_kv, (long long)(p->heads_q / p->heads_kv),
			r->spec->kv_group, r->spec->place[KEY_kv_group].line ? "" : " when left out");
	return 0;
}

int read_assume(struct reading *r)
{
	/* Everything a planner multiplies stays far inside 64 bits. */
	const double rows_max = 1099511627776.0;
	struct problem *p = &r->spec->assume;
	p->batch = field_whole(r, KEY_assume, "batch", 4);
	p->align = (int)field_whole(r, KEY_assume, "align", 16);
	int result = assume_lengths(r);
	if (r->good[KEY_kv_group])
		result |= assume_heads(r);
	if (result)
		return -1;
	const int64_t length = p->seqlen_q > p->seqlen_k ? p->seqlen_q : p->seqlen_k;
	if ((double)p->batch * (double)p->heads_q * (double)length > rows_max)
		return diag_at(
			r->diag, r->spec->place[KEY_assume],
			"assume: batch x heads x length is above 2^40 rows, more than any GPU holds; want smaller numbers");
	return 0;
}

static void tile_read(struct tile_request *tile, const struct yaml_tree *t, const struct yaml_node *n)
{
	const char *const names[] = {"m", "n", "warps", "stages", "splits", "heads"};
	int *const fields[] = {&tile->m, &tile->n, &tile->warps, &tile->stages, &tile->splits, &tile->heads};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const struct yaml_node *value = yaml_get(t, n, names[i]);
		*fields[i] = value ? (int)whole_of(t, value) : 0;
	}
}

int read_tile(struct reading *r)
{
	const struct yaml_tree *t = r->tree[KEY_tile];
	const struct yaml_node *n = r->node[KEY_tile];
	if (yaml_get(t, n, "m")) {
		tile_read(&r->spec->tile[PASS_FORWARD], t, n);
		return 0;
	}
	for (int i = 0; i < PASS_COUNT; i++) {
		const struct yaml_node *one = yaml_get(t, n, pass_names[i]);
		if (one && one->kind == YAML_MAP && r->good[KEY_passes] && !r->spec->passes[i])
			return diag_at(r->diag, one->place,
			               "tile.%s: the spec has no %s pass; add it to passes, or leave the tile out",
			               pass_names[i], pass_names[i]);
		if (one)
			tile_read(&r->spec->tile[i], t, one);
	}
	return 0;
}

int read_targets(struct reading *r)
{
	const bool all = yaml_is(r->tree[KEY_targets], r->node[KEY_targets], "all");
	for (int i = 0; i < TARGET_COUNT; i++)
		r->spec->targets[i] = all || list_has(r, KEY_targets, target_table[i].name);
	return 0;
}
