/* What the suites about specs share: a spec from YAML that must be good, and that it prints itself. */
#ifndef FAGEN_TESTS_SPEC_HELP_H
#define FAGEN_TESTS_SPEC_HELP_H

#include <check.h>

#include "tests/spec_equal.h"

static inline struct spec parse(const char *yaml)
{
	struct spec s = {0};
	struct diag d = {0};
	const int result = spec_parse(&s, yaml, strlen(yaml), "t.yaml", &d);
	ck_assert_msg(!result, "%s\n%s", yaml, text_str(&d.text));
	ck_assert_int_eq(d.errors, 0);
	diag_free(&d);
	return s;
}

static inline void round_trip(const struct spec *s)
{
	struct text yaml = {0};
	struct spec again;
	struct diag d = {0};
	spec_print(&yaml, s);
	const int result = spec_parse(&again, text_str(&yaml), yaml.len, "other.yaml", &d);
	ck_assert_msg(!result, "%s\n%s", text_str(&yaml), text_str(&d.text));
	ck_assert_msg(specs_equal(s, &again), "reads back as another spec:\n%s", text_str(&yaml));
	diag_free(&d);
	text_free(&yaml);
}

#endif
