/* spec_input: the named inputs of a spec, written and brought by presets. Private to gen/spec*.c. */
#ifndef FAGEN_GEN_SPEC_INPUT_H
#define FAGEN_GEN_SPEC_INPUT_H

#include "gen/spec_check.h"
#include "gen/spec_key.h"

/* May an input have this name? */
bool check_input_name(const struct check *, const struct yaml_node *key);
/* The rules between inputs and what reads them: adds those of presets, the sink and the block layout. All keys were
 * read; those that are not good are left alone. */
void inputs_finish(struct reading *);
/* "f32 [batch, seq_k]" */
void input_describe(struct text *, const struct input *);

#endif
