/* bench_summary: what a sweep says of the model. */
#include <math.h>
#include <stdlib.h>

#include "cli/bench.h"
#include "cli/cli.h"

void sweep_sum(struct sweep_summary *sum, const struct sweep_row *row, int count)
{
	double *ratio = calloc((size_t)count * 3 + 1, sizeof *ratio), *error = ratio + count, *regret = error + count;
	*sum = (struct sweep_summary){.worst = -1};
	for (int i = 0; ratio && i < count; i++) {
		ratio[i] = row[i].predicted_us / row[i].us;
		error[i] = fabs(ratio[i] - 1);
		regret[i] = row[i].us / row[i].best_us;
		sum->ratio_least = i && sum->ratio_least < ratio[i] ? sum->ratio_least : ratio[i];
		sum->ratio_most = sum->ratio_most > ratio[i] ? sum->ratio_most : ratio[i];
		if (regret[i] > sum->regret_worst) {
			sum->regret_worst = regret[i];
			sum->worst = i;
		}
	}
	if (ratio && count) {
		sum->ratio_median = median_of(ratio, count);
		sum->error_median = median_of(error, count);
		sum->regret_median = median_of(regret, count);
	}
	free(ratio);
}
