/* plan_heads: query heads of a group that share tiles: how many may, and when that is taken. */
#include <stdio.h>

#include "gen/model.h"

int heads_slots(int heads)
{
	int slots = 1;
	while (slots < heads)
		slots *= 2;
	return slots;
}

bool heads_fit(struct candidate *c, const struct template_model *model, const struct spec *spec,
               const struct program *program)
{
	if (c->heads == 1)
		return true;
	char why[REASON_MAX] = "";
	const int most = model->heads_most ? model->heads_most(why, spec, program) : 1;
	if (most % c->heads == 0)
		return true;
	if (model->heads_most == NULL)
		snprintf(c->reason, sizeof c->reason, "%d heads; %s has those of one in a tile", c->heads, model->templ);
	else if (most == 1)
		snprintf(c->reason, sizeof c->reason, "%d heads; %.80s", c->heads, why);
	else
		snprintf(c->reason, sizeof c->reason, "%d heads; want 1 or a divisor of %d", c->heads, most);
	return false;
}

int candidate_fastest(const struct plan *plan, bool shared)
{
	int best = -1;
	for (int i = 0; i < plan->candidate_count; i++) {
		const struct candidate *c = &plan->candidate[i];
		if (c->reason[0] == '\0' && (c->heads > 1) == shared &&
		    (best < 0 || c->time_us < plan->candidate[best].time_us * (1 - 1e-9)))
			best = i;
	}
	return best;
}

/* Heads share tiles where that is clearly faster: where queries are few, and where a narrow mask leaves out more of tiles of fewer positions
 * (specs/gpt_oss, windows of 128 keys over 8k: 121 us of an H200 where tiles of one head take 152). */
int candidate_choose(const struct plan *plan)
{
	static const double clearly = 0.9;
	const int apart = candidate_fastest(plan, false), shared = candidate_fastest(plan, true);
	if (apart < 0 || shared < 0)
		return apart < 0 ? shared : apart;
	return plan->candidate[shared].time_us < clearly * plan->candidate[apart].time_us ? shared : apart;
}
