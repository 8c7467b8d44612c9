/* Must be caught: every word folded by the same width. */
#define FOLD_ALIKE
#include "tests/battery/bad_no_folds.h"
