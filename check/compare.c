#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check/check.h"

static int64_t element_count(const struct compare *c)
{
	int64_t n = 1;
	for (int i = 0; i < COMPARE_DIMS; i++)
		n *= c->dim[i];
	return n;
}

static void place_print(char to[96], const struct compare *c, int64_t index)
{
	int64_t at[COMPARE_DIMS];
	for (int i = COMPARE_DIMS - 1; i >= 0; i--) {
		at[i] = index % c->dim[i];
		index /= c->dim[i];
	}
	snprintf(to, 96, "%s[b %" PRId64 "][h %" PRId64 "][row %" PRId64 "][%" PRId64 "]", c->name, at[0], at[1], at[2],
	         at[3]);
}

/* Numbers that are not finite must be the same on both sides. */
static bool special_equal(double got, double want)
{
	if (isnan(want) || isnan(got))
		return isnan(want) && isnan(got);
	return !(isinf(want) || isinf(got)) || want == got;
}

static bool special_check(struct compare_result *r, const struct compare *c, const double *got, const double *want)
{
	const int64_t n = element_count(c);
	int64_t wrong = 0, first = -1;
	for (int64_t i = 0; i < n; i++)
		if (!special_equal(got[i], want[i]) && wrong++ == 0)
			first = i;
	if (!wrong)
		return true;
	char place[96];
	place_print(place, c, first);
	r->ok = false;
	r->worst = INFINITY;
	snprintf(r->text, sizeof r->text,
	         "%s is %g, the reference is %g (%" PRId64 " of %" PRId64 " elements differ in being NaN or infinite)",
	         place, got[first], want[first], wrong, n);
	return false;
}

/* The element `worst` is off by r->worst, and so are `over` of them. */
static void wrong_print(struct compare_result *r, const struct compare *c, const double *got, const double *want,
                        int64_t worst, int64_t over)
{
	char place[96];
	place_print(place, c, worst);
	r->ok = false;
	snprintf(r->text, sizeof r->text,
	         "%s is %.9g, the reference is %.9g: off by %.3g, allowed %.3g (%" PRId64 " of %" PRId64
	         " elements are off)",
	         place, got[worst], want[worst], r->worst, r->bound, over, element_count(c));
}

struct bound {
	double absolute, relative;
	const double *spread; /* what `relative` multiplies; NULL: the reference's magnitude, or of rows nothing */
	bool rows;            /* 2 ulp of the largest of a row are allowed beside the larger of the two */
};

/* Worst element against a bound: the one that exceeds it by most, or comes nearest. */
static void elements_check(struct compare_result *r, const struct compare *c, const double *got, const double *want,
                           const struct bound *bound)
{
	const int64_t n = element_count(c), width = c->dim[COMPARE_DIMS - 1];
	int64_t worst = -1, over = 0;
	double excess = -INFINITY, allowed = 0, ulps = 0;
	for (int64_t i = 0; i < n; i++) {
		if (bound->rows && i % width == 0) {
			double magnitude = 0;
			for (int64_t k = i; k < i + width; k++)
				if (isfinite(want[k]) && fabs(want[k]) > magnitude)
					magnitude = fabs(want[k]);
			ulps = 2 * number_ulp(magnitude, c->bf16);
		}
		if (!isfinite(want[i]))
			continue;
		if (bound->rows)
			allowed = fmax(bound->absolute, bound->spread ? bound->relative * bound->spread[i] : 0) + ulps;
		else
			allowed =
				bound->absolute + bound->relative * (bound->spread ? bound->spread[i] : fabs(want[i]));
		const double error = fabs(got[i] - want[i]);
		over += error > allowed;
		if (error - allowed > excess) {
			excess = error - allowed;
			worst = i;
			r->worst = error;
			r->bound = allowed;
		}
	}
	if (worst >= 0 && excess > 0)
		wrong_print(r, c, got, want, worst, over);
}

static void result_begin(struct compare_result *r)
{
	memset(r, 0, sizeof *r);
	r->ok = true;
}

void compare_close(struct compare_result *r, const struct compare *c, const double *got, const double *want,
                   double absolute, double relative)
{
	result_begin(r);
	if (special_check(r, c, got, want))
		elements_check(r, c, got, want, &(struct bound){.absolute = absolute, .relative = relative});
}

void compare_tensor(struct compare_result *r, const struct compare *c, const double *got, const double *want,
                    const double *plain, const double *spread)
{
	result_begin(r);
	if (!special_check(r, c, got, want))
		return;
	const int64_t n = element_count(c);
	double largest = 0, got_square = 0, plain_square = 0, want_square = 0;
	int64_t finite = 0;
	for (int64_t i = 0; i < n; i++) {
		if (!isfinite(want[i]))
			continue;
		finite++;
		const double e = got[i] - want[i];
		got_square += e * e;
		want_square += want[i] * want[i];
		if (!isfinite(plain[i]))
			continue;
		const double p = plain[i] - want[i];
		plain_square += p * p;
		largest = fmax(largest, fabs(p));
	}
	if (!finite)
		return;
	const struct bound bound = {.absolute = 1.5 * largest + c->floor,
	                            .relative = 3 * number_ulp(1, c->bf16) / 2,
	                            .spread = spread,
	                            .rows = true};
	elements_check(r, c, got, want, &bound);
	if (!r->ok)
		return;
	const double rms = sqrt(got_square / (double)finite), plain_rms = sqrt(plain_square / (double)finite);
	const double allowed = 2 * plain_rms + 0.5 * number_ulp(sqrt(want_square / (double)finite), c->bf16) + c->floor;
	if (rms <= allowed)
		return;
	r->ok = false;
	r->worst = rms;
	r->bound = allowed;
	snprintf(r->text, sizeof r->text,
	         "%s: the root mean square error is %.3g, that of a plain computation %.3g, allowed %.3g", c->name, rms,
	         plain_rms, allowed);
}

void compare_sum(struct compare_result *r, const struct compare *c, const double *got, const double *want,
                 const double *plain, const double *spread)
{
	result_begin(r);
	if (!special_check(r, c, got, want))
		return;
	const int64_t n = element_count(c);
	double largest = 0;
	for (int64_t i = 0; i < n; i++)
		if (isfinite(want[i]) && isfinite(plain[i]))
			largest = fmax(largest, fabs(plain[i] - want[i]));
	const struct bound bound = {
		.absolute = 1.5 * largest, .relative = number_ulp(1, c->bf16) + c->floor, .spread = spread};
	elements_check(r, c, got, want, &bound);
}
