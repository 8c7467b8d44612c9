#include "gen/model.h"

const struct template_model *const template_table[] = {
	&model_sm80_fwd,
	&model_sm80_bwd,
	&model_naive_fwd,
	&model_naive_bwd,
};
const int template_count = sizeof template_table / sizeof *template_table;

const struct template_model *template_find(enum pass pass, const struct target *target, bool naive)
{
	const struct template_model *best = NULL;
	for (int i = 0; i < template_count; i++) {
		const struct template_model *row = template_table[i];
		if (row->pass == pass && row->naive == naive && row->cc_min <= target->cc &&
		    (row->cc_max == 0 || target->cc <= row->cc_max) && (best == NULL || row->cc_min > best->cc_min))
			best = row;
	}
	return best;
}
