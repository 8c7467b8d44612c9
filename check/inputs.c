#include <math.h>

#include "check/check.h"

const char *const input_names[INPUT_COUNT] = {"gauss", "outlier", "lowrank", "huge", "const", "zero", "inf",
                                              "row",   "rising",  "falling", "turns", "low",  "opposed", "largest"};

bool input_forward_only(enum input_kind kind) { return kind == INPUT_INF || kind == INPUT_LARGEST; }

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

enum { RANK = 3, DIM_MAX = 1024, OUTLIER_EVERY = 24, TURN = 64 };
#define SLOPE_LOGIT 600.0

/* How high the logits of a key stand, from -1 to 1, for the kinds that have a common direction; 0: not of them. */
static double key_height(enum input_kind kind, int64_t row, int64_t rows)
{
	switch (kind) {
	case INPUT_RISING:
	case INPUT_OPPOSED: return (double)(rows - row) / (double)rows;
	case INPUT_FALLING: return (double)(row + 1) / (double)rows;
	case INPUT_TURNS: return row / TURN % 2 ? 1 : -1;
	case INPUT_LOW: return -1;
	default: return 0;
	}
}

/* Float32 sums of these, each up to 2^8 times as much, over 2^10 keys are finite. */
static double value_largest(bool bf16) { return bf16 ? 0x1p108 : 65504; }

void input_fill(double *to, int64_t rows, int dim, enum input_kind kind, enum input_role role, double scale, bool bf16,
                uint64_t seed, uint64_t head)
{
	struct random r, shared;
	random_begin(&r, seed, head * 8 + role);
	random_begin(&shared, seed, role); /* what all heads have in common: which channels, which directions */
	const bool scored = role == ROLE_QUERY || role == ROLE_KEY;
	/* Scores of two vectors of N(0, a^2) have a deviation of scale a^2 sqrt(dim); 700 of it reaches some thousands. */
	const double amplitude = kind == INPUT_HUGE && scored ? sqrt(700 / (scale * sqrt(dim))) : 1;
	const bool sloped = key_height(kind, 0, 1) != 0;
	const double along = sqrt(SLOPE_LOGIT / (scale * dim)); /* of the direction, in query and key */
	double basis[RANK][DIM_MAX], direction[DIM_MAX];
	struct random common;
	random_begin(&common, seed, ROLE_DLSE + 1); /* the same for both */
	bool outlier[DIM_MAX];
	for (int i = 0; i < dim && i < DIM_MAX; i++) {
		for (int j = 0; j < RANK; j++)
			basis[j][i] = random_normal(&shared);
		outlier[i] = random_next(&shared) % OUTLIER_EVERY == 0 || i == 3;
		direction[i] = random_next(&common) % 2 ? 1 : -1;
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
			else if (kind == INPUT_ROW && role == ROLE_QUERY && row == 3 % rows)
				x *= 200;
			else if (sloped && scored)
				x = 0.3 * x + along * direction[i] * (role == ROLE_KEY ? key_height(kind, row, rows) : 1);
			else if (kind == INPUT_OPPOSED && role == ROLE_VALUE)
				x = (row % 2 ? -1 : 1) * (1 + fabs(basis[0][i]));
			else if (kind == INPUT_LARGEST && role == ROLE_VALUE)
				x = value_largest(bf16) * (x < 0 ? -1 : 1) * (1 - fabs(x) / 64);
			to[row * dim + i] = role == ROLE_DLSE ? (double)(float)x : number_round(x, bf16);
		}
	}
}
