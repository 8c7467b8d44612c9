/* tests/specs.h for the targets that have, or will have, templates of their own. */
#include "tests/specs.h"

static bool target_ours(const struct target *target) { return target->cc == 90 || target->cc == 100; }

Suite *suite(void);
Suite *suite(void) { return specs_suite("specs_native"); }
