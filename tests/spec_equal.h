/* Are two specs the same, places aside? */
#ifndef FAGEN_TESTS_SPEC_EQUAL_H
#define FAGEN_TESTS_SPEC_EQUAL_H

#include <string.h>

#include "gen/gen.h"

static inline void spec_places_clear(struct spec *s)
{
	memset(s->place, 0, sizeof s->place);
	for (int i = 0; i < SPEC_INPUTS_MAX; i++)
		memset(&s->input[i].place, 0, sizeof s->input[i].place);
	for (int i = 0; i < SPEC_TERMS_MAX; i++) {
		memset(&s->term[i].place, 0, sizeof s->term[i].place);
		for (int a = 0; a < SPEC_ARGS_MAX; a++)
			memset(&s->term[i].arg[a].place, 0, sizeof s->term[i].arg[a].place);
	}
}

static inline bool specs_equal(const struct spec *a, const struct spec *b)
{
	struct spec x, y;
	memcpy(&x, a, sizeof x);
	memcpy(&y, b, sizeof y);
	spec_places_clear(&x);
	spec_places_clear(&y);
	return !memcmp(&x, &y, sizeof x);
}

#endif
