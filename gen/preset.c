/* preset: the named masks. A row is all there is to a mask: its parser, lowering, planning and code follow from the
 * definition. A parameter that is SPEC_UNBOUNDED is the largest integer, so the comparison with it folds to true. */
#include "gen/gen.h"

const struct preset preset_table[] = {
	{"causal",
         {NULL},
         "k - sk <= q - sq",
         "keys up to the query's position, the last query aligned with the last key"},
	{"causal_top_left",
         {NULL},
         "k <= q",
         "keys up to the query's position, the first query aligned with the first key"},
	{"window",
         {"left", "right"},
         "(q - sq) - (k - sk) <= left && (k - sk) - (q - sq) <= right",
         "keys at most left before and right after the query, the last query aligned with the last key"},
};
const int preset_count = sizeof preset_table / sizeof *preset_table;
