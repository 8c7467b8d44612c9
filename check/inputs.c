#include <math.h>

#include "check/check.h"

const char *const input_names[INPUT_COUNT] = {"gauss", "outlier", "lowrank", "huge", "const", "zero", "inf"};

/* splitmix64 (Steele, Lea, Flood 2014). */
uint64_t random_next(struct random *r)
{
	uint64_t z = r->state += 0x9E3779B97F4A7C15u;
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
	return z ^ (z >> 31);
}

void random_begin(struct random *r, uint64_t seed, uint64_t stream)
{
	r->state = seed;
	r->state = random_next(r) ^ stream * 0xD1342543DE82EF95u;
	random_next(r);
}

static double random_unit(struct random *r) { return ((double)(random_next(r) >> 11) + 0.5) / 9007199254740992.0; }

double random_normal(struct random *r)
{
	const double radius = sqrt(-2 * log(random_unit(r)));
	return radius * cos(6.283185307179586 * random_unit(r));
}

enum { RANK = 3, DIM_MAX = 1024, OUTLIER_EVERY = 24 };

void input_fill(double *to, int64_t rows, int dim, enum input_kind kind, enum input_role role, double scale, bool bf16,
                uint64_t seed, uint64_t head)
{
	struct random r, shared;
	random_begin(&r, seed, head * 8 + role);
	random_begin(&shared, seed, role); /* what all heads have in common: which channels, which directions */
	const bool scored = role == ROLE_QUERY || role == ROLE_KEY;
	/* Scores of two vectors of N(0, a^2) have a deviation of scale a^2 sqrt(dim); 700 of it reaches some thousands. */
	const double amplitude = kind == INPUT_HUGE && scored ? sqrt(700 / (scale * sqrt(dim))) : 1;
	double basis[RANK][DIM_MAX];
	bool outlier[DIM_MAX];
	for (int i = 0; i < dim && i < DIM_MAX; i++) {
		for (int j = 0; j < RANK; j++)
			basis[j][i] = random_normal(&shared);
		outlier[i] = random_next(&shared) % OUTLIER_EVERY == 0 || i == 3;
	}
	for (int64_t row = 0; row < rows; row++) {
		double mix[RANK];
		for (int j = 0; j < RANK; j++)
			mix[j] = random_normal(&r) / sqrt(RANK);
		for (int i = 0; i < dim; i++) {
			double x = amplitude * random_normal(&r);
			if (kind == INPUT_OUTLIER && outlier[i])
				x *= role == ROLE_QUERY || role == ROLE_KEY ? 8 : 20;
			else if (kind == INPUT_LOWRANK)
				x = mix[0] * basis[0][i] + mix[1] * basis[1][i] + mix[2] * basis[2][i] + 0.01 * x;
			else if (kind == INPUT_CONST)
				x = mix[0];
			else if (kind == INPUT_ZERO && scored)
				x = 0;
			else if (kind == INPUT_INF && role == ROLE_KEY && head == 0 && row == 3 % rows &&
			         (i == 5 || i == 6))
				x = i == 5 ? INFINITY : -INFINITY;
			to[row * dim + i] = role == ROLE_DLSE ? (double)(float)x : number_round(x, bf16);
		}
	}
}
