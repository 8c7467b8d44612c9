/* words: those of the language that a launch speaks of too. gen.h has the rest of them. */
#ifndef FAGEN_GEN_WORDS_H
#define FAGEN_GEN_WORDS_H

#include "gen/gen.h"

extern const char *const dtype_words[], *const layout_words[], *const output_words[]; /* NULL after the last */

#endif
