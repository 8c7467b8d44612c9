/* spec: the keys of a file, one by one: which it has, which stand at their default, which it does not know. */
#include "gen/spec_input.h"
#include "gen/spec_term.h"

#include <string.h>

const struct key key_table[KEY_COUNT] = {
#define SPEC_KEY(id, name, shape, fallback, doc) \
	[KEY_##id] = {name, &shape_##shape, fallback, doc, read_##id, print_##id},
#include "gen/spec.def"
#undef SPEC_KEY
};

/* Appends where an unknown key of the root may have been meant to go. */
static void key_hint(struct text *t, const char *word)
{
	const char *names[KEY_COUNT];
	for (int i = 0; i < preset_count; i++) {
		const struct preset *p = &preset_table[i];
		if (strcmp(word, p->name))
			continue;
		text_addf(t, "; a %s is written '%s", preset_kind_names[p->kind],
		          p->kind == PRESET_MASK    ? "mask: "
		          : p->kind == PRESET_SCORE ? "score: "
		                                    : "blocks: {size: 64, keep: ");
		if (preset_is_word(p))
			text_puts(t, p->name);
		else
			text_addf(t, "{%s: {%s: ...}}", p->name, p->param[0].name);
		text_puts(t, p->kind == PRESET_BLOCKS ? "}'" : "'");
		return;
	}
	for (int i = 0; i < KEY_COUNT; i++) {
		if (shape_has_field(key_table[i].shape, word)) {
			text_addf(t, "; it belongs under '%s'", key_table[i].name);
			return;
		}
	}
	for (int i = 0; i < KEY_COUNT; i++)
		names[i] = key_table[i].name;
	const char *nearest = diag_nearest(word, names, KEY_COUNT);
	if (nearest) {
		text_addf(t, "; did you mean '%s'?", nearest);
		return;
	}
	text_puts(t, "; the keys are ");
	for (int i = 0; i < KEY_COUNT; i++)
		text_addf(t, "%s%s", i == 0 ? "" : i + 1 == KEY_COUNT ? " and " : ", ", names[i]);
}

/* Finds the value of each key in the file's tree. */
static void keys_find(struct reading *r, const struct yaml_tree *t, const struct yaml_node *root)
{
	const struct yaml_node *written[KEY_COUNT] = {0};
	for (const struct yaml_node *key = yaml_child(t, root), *value; key; key = yaml_next(t, value)) {
		value = yaml_next(t, key);
		int k = 0;
		if (key->kind != YAML_SCALAR)
			continue;
		while (k < KEY_COUNT && !yaml_is(t, key, key_table[k].name))
			k++;
		if (k == KEY_COUNT) {
			struct text quoted = {0}, hint = {0};
			text_quote(&quoted, yaml_text(t, key), key->len);
			key_hint(&hint, yaml_text(t, key));
			diag_at(r->diag, key->place, "unknown key %s%s", text_str(&quoted), text_str(&hint));
			text_free(&quoted);
			text_free(&hint);
		} else if (written[k]) {
			diag_at(r->diag, key->place, "%s: written twice; it is at %d:%d already", key_table[k].name,
			        written[k]->place.line, written[k]->place.column);
		} else {
			written[k] = key;
			r->node[k] = value;
			r->tree[k] = t;
			r->spec->place[k] = value->place;
		}
	}
}

/* The values of keys left out, as if they were written in a file of their own. */
static void keys_default(struct reading *r, struct yaml_tree *defaults)
{
	struct text yaml = {0};
	struct diag d = {0};
	text_puts(&yaml, "{");
	for (int k = 0; k < KEY_COUNT; k++)
		if (key_table[k].fallback && key_table[k].fallback[0] != '(')
			text_addf(&yaml, "%s: %s, ", key_table[k].name, key_table[k].fallback);
	text_puts(&yaml, "}");
	if (yaml_tree_read(defaults, text_str(&yaml), yaml.len, &d))
		diag_fail(r->diag, "the defaults of the language: %s", text_str(&d.text));
	diag_free(&d);
	text_free(&yaml);
	for (int k = 0; k < KEY_COUNT; k++) {
		if (r->node[k])
			continue;
		r->tree[k] = defaults;
		r->node[k] = yaml_get(defaults, yaml_at(defaults, defaults->root), key_table[k].name);
	}
}

static void keys_read(struct reading *r)
{
	for (int k = 0; k < KEY_COUNT; k++) {
		const struct key *key = &key_table[k];
		if (!r->node[k] && !key->fallback) {
			struct text want = {0};
			shape_describe(&want, key->shape);
			diag_at(r->diag, (struct place){0}, "'%s' is missing; it is %s", key->name, text_str(&want));
			text_free(&want);
		} else
			r->good[k] =
				(!r->node[k] || shape_check(key->shape, r->tree[k], r->node[k], key->name, r->diag)) &&
				key->read(r) == 0;
	}
}

static int root_check(const struct yaml_tree *t, struct diag *d)
{
	const struct yaml_node *root = yaml_at(t, t->root);
	const struct place start = {0};
	if (!root || (root->kind == YAML_SCALAR && !root->quoted && !root->len))
		return diag_at(d, start, "the file is empty; a spec is at least one line, 'head_dim: 64'");
	if (root->kind == YAML_LIST)
		return diag_at(d, root->place,
		               "the file is a list; a spec is keys with values, such as 'head_dim: 64'");
	if (root->kind == YAML_SCALAR)
		return diag_at(d, root->place,
		               "the file is one text; a spec is keys with values, such as 'head_dim: 64'");
	return root->kind == YAML_MAP ? 0 : -1;
}

int spec_parse(struct spec *spec, const char *yaml, size_t len, const char *file, struct diag *d)
{
	const int errors = d->errors;
	struct yaml_tree tree = {0}, defaults = {0};
	struct spec made;
	memset(&made, 0, sizeof made); /* padding too: equal specs are equal bytes */
	struct reading r = {.spec = &made, .file = file, .diag = d};
	yaml_skip_mark(&yaml, &len);
	d->file = file;
	d->source.len = 0;
	text_add(&d->source, yaml, len);
	if (!yaml_tree_read(&tree, yaml, len, d) && !root_check(&tree, d)) {
		keys_find(&r, &tree, yaml_at(&tree, tree.root));
		keys_default(&r, &defaults);
		keys_read(&r);
		inputs_finish(&r);
	}
	yaml_tree_free(&tree);
	yaml_tree_free(&defaults);
	if (d->errors > errors)
		return -1;
	memcpy(spec, &made, sizeof made);
	return 0;
}

int spec_load(struct spec *spec, const char *path, struct diag *d)
{
	struct text yaml = {0};
	const int result = yaml_load(&yaml, path, d) || spec_parse(spec, text_str(&yaml), yaml.len, path, d) ? -1 : 0;
	text_free(&yaml);
	return result;
}
