/* yaml_tree: YAML text as a bounded tree of scalars, lists and maps, each with its place. The subset: one document, no
 * anchors, aliases, tags or merge keys, scalar keys. Everything is text: what a scalar means, its reader says. */
#ifndef FAGEN_GEN_YAML_TREE_H
#define FAGEN_GEN_YAML_TREE_H

#include <stdbool.h>

#include "gen/diag.h"

enum { YAML_BYTES_MAX = 1 << 20, YAML_DEPTH_MAX = 32, YAML_NODES_MAX = 4096 };

enum yaml_kind {
	YAML_SCALAR,
	YAML_LIST,   /* children: the items */
	YAML_MAP,    /* children: key, value, key, value ... */
	YAML_REFUSED /* was reported while reading; to be skipped in silence */
};

struct yaml_node {
	enum yaml_kind kind;
	bool quoted; /* scalar: '', "", | or > */
	struct place place;
	struct place inner; /* scalar: behind its quote; of | and > the first character on the lines below */
	int child, next;    /* first child, next sibling; -1: none */
	size_t text, len;   /* scalar: bytes in yaml_tree.text, NUL-terminated */
};

struct yaml_tree {         /* empty when zero */
	struct text nodes; /* array of struct yaml_node */
	struct text text;
	int count, root; /* root -1: nothing was written */
};

/* Appends the bytes of a file, no more than a reader needs to see that it is too long. */
int yaml_load(struct text *, const char *path, struct diag *);
/* Skips a byte order mark at the start. */
void yaml_skip_mark(const char **yaml, size_t *len);
/* Reads UTF-8 text without byte order mark. -1: it is not text or not YAML. 0: the tree can be walked, even when errors
 * were appended for nodes that are YAML_REFUSED now. */
int yaml_tree_read(struct yaml_tree *, const char *yaml, size_t len, struct diag *);
void yaml_tree_free(struct yaml_tree *);

const struct yaml_node *yaml_at(const struct yaml_tree *, int node); /* NULL for -1 */
const struct yaml_node *yaml_child(const struct yaml_tree *, const struct yaml_node *);
const struct yaml_node *yaml_next(const struct yaml_tree *, const struct yaml_node *);
const char *yaml_text(const struct yaml_tree *, const struct yaml_node *);          /* of a scalar */
bool yaml_is(const struct yaml_tree *, const struct yaml_node *, const char *word); /* is it this scalar */
/* The value of a key of a map; NULL if it is not there or `map` is not a map. */
const struct yaml_node *yaml_get(const struct yaml_tree *, const struct yaml_node *map, const char *key);

#endif
