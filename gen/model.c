#include "gen/model.h"

const struct template_model *const template_table[] = {
	&model_sm90_fwd,
	&model_sm90_bwd,
	&model_sm90_bwd_pair,
	&model_sm80_fwd,
	&model_sm80_bwd,
	&model_naive_fwd,
	&model_naive_bwd,
};
const int template_count = sizeof template_table / sizeof *template_table;

int templates_find(const struct template_model *row[TEMPLATES_MAX], enum pass pass, const struct target *target, bool naive)
{
	int count = 0;
	for (int i = 0; i < template_count; i++) {
		const struct template_model *t = template_table[i];
		if (t->pass == pass && t->naive == naive && t->cc_min <= target->cc &&
		    (t->cc_max == 0 || target->cc <= t->cc_max) && count < TEMPLATES_MAX)
			row[count++] = t;
	}
	return count;
}
