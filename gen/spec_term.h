/* spec_term: masks, scores and layouts: a word, {preset: {parameter: value}}, an expression, or several of them.
 * Private to gen/spec*.c. */
#ifndef FAGEN_GEN_SPEC_TERM_H
#define FAGEN_GEN_SPEC_TERM_H

#include "gen/spec_check.h"
#include "gen/spec_key.h"

enum { TERM_DEPTH_MAX = 8 }; /* of all and any inside each other */

/* Is the preset written as a word alone, with every parameter at its default? */
bool preset_is_word(const struct preset *);
/* Does the parameter take `unbounded`? */
bool param_unbounded(const struct preset_param *);
/* The shape of a parameter's argument, and what it is made of. */
struct param_shape { struct shape number, written, unbounded; };
const struct shape *param_shape(struct param_shape *, const struct preset_param *);

/* Is the scalar meant as an expression? Else it is a word, perhaps misspelt, or a number. */
bool scalar_is_expression(const struct yaml_tree *, const struct yaml_node *);
/* The same where a lone word in quotes is one too: the argument of a preset. */
bool argument_is_expression(const struct yaml_tree *, const struct yaml_node *);
int term_names(const char *names[NAMES_MAX], int count, const struct shape *, enum yaml_kind as); /* see names_of */
bool check_expression(const struct check *, const struct yaml_node *);
bool check_term(const struct check *, const struct shape *, const struct yaml_node *);

/* Appends the term to r->spec; returns its index, or -1. The node has its shape. */
int term_read(struct reading *, const struct yaml_tree *, const struct yaml_node *);
void term_print(struct text *, const struct spec *, int term);

#endif
