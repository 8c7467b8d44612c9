/* Does a spec use more of the language than the first presets of masks? Those that do are compiled and run over shorter
 * lists: what a kernel is made of is the same for all of them. */
#ifndef FAGEN_TESTS_LANGUAGE_H
#define FAGEN_TESTS_LANGUAGE_H

#include "gen/gen.h"

static inline bool spec_is_language(const struct spec *spec)
{
	bool text = false;
	for (int i = 0; i < spec->term_count; i++)
		text = text || spec->term[i].kind == TERM_TEXT || spec->term[i].kind == TERM_ANY;
	return text || spec->score >= 0 || spec->input_count > 0 || spec->blocks.source != BLOCKS_NONE;
}

#endif
