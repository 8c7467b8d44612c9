/* spec_check: what the checks of values share. Private to gen/spec*.c. */
#ifndef FAGEN_GEN_SPEC_CHECK_H
#define FAGEN_GEN_SPEC_CHECK_H

#include "gen/spec_shape.h"

enum { NAMES_MAX = 64, PATH_MAX_BYTES = 160 };

struct check {
	const struct yaml_tree *tree;
	struct diag *diag;
	const char *path;
	const struct shape *whole; /* what messages say is accepted: the outermost alternative */
	int depth;                 /* of terms inside terms */
};

bool check_node(const struct check *, const struct shape *, const struct yaml_node *);
/* The pairs of a map. */
bool check_pairs(const struct check *, const struct shape_field *, int fields, const struct yaml_node *);

/* Each reports "path: <found>; want <shape>" with a hint behind, and returns false. */
bool refuse(const struct check *, const struct yaml_node *, const char *found, const char *hint);
bool refuse_kind(const struct check *, const struct yaml_node *);
bool refuse_word(const struct check *, const struct yaml_node *);   /* a scalar that is none of the words */
bool refuse_key(const struct check *, const struct yaml_node *key); /* a key that a map of c->whole does not have */

/* Every word, field or preset that a value of the shape may begin with: what a misspelt word is compared with. */
int names_of(const char *names[NAMES_MAX], int count, const struct shape *, enum yaml_kind as);

#endif
