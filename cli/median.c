#include <math.h>
#include <stdlib.h>

#include "cli/cli.h"

static int by_size(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

double median_of(const double *value, int count)
{
	double *sorted = malloc((size_t)count * sizeof *sorted);
	if (!sorted)
		return NAN;
	for (int i = 0; i < count; i++)
		sorted[i] = value[i];
	qsort(sorted, (size_t)count, sizeof *sorted, by_size);
	const double median = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
	free(sorted);
	return median;
}
