#include <math.h>
#include <string.h>

#include "check/check.h"

/* Significant bits and least exponent of a normal number. */
static int type_bits(bool bf16) { return bf16 ? 8 : 11; }
static int type_least(bool bf16) { return bf16 ? -126 : -14; }
static double type_max(bool bf16) { return bf16 ? ldexp(255, 120) : 65504; }

double number_ulp(double magnitude, bool bf16)
{
	int exponent = type_least(bf16) + 1; /* frexp counts from [0.5, 1) */
	if (magnitude != 0 && isfinite(magnitude)) {
		int e;
		frexp(magnitude, &e);
		if (e > exponent)
			exponent = e;
	}
	return ldexp(1, exponent - type_bits(bf16));
}

double number_round(double x, bool bf16)
{
	if (!isfinite(x) || x == 0)
		return x;
	const double ulp = number_ulp(x, bf16);
	const double r = nearbyint(x / ulp) * ulp;
	return fabs(r) > type_max(bf16) ? copysign(INFINITY, x) : r;
}

uint16_t number_encode(double x, bool bf16)
{
	const int fraction_bits = type_bits(bf16) - 1;
	const uint16_t exponent_mask = bf16 ? 0x7f80 : 0x7c00;
	const uint16_t sign = signbit(x) ? 0x8000 : 0;
	if (isnan(x))
		return sign | exponent_mask | (uint16_t)(1u << (fraction_bits - 1));
	const double r = fabs(number_round(x, bf16));
	if (isinf(r))
		return sign | exponent_mask;
	if (r == 0)
		return sign;
	int e;
	frexp(r, &e);
	const int least = type_least(bf16);
	if (e - 1 < least) /* subnormal */
		return sign | (uint16_t)ldexp(r, fraction_bits - least);
	const uint32_t fraction = (uint32_t)ldexp(r, fraction_bits + 1 - e) - (1u << fraction_bits);
	return sign | (uint16_t)((uint32_t)(e - least) << fraction_bits) | (uint16_t)fraction;
}

static double decode_slowly(uint16_t bits, bool bf16)
{
	const int fraction_bits = type_bits(bf16) - 1;
	const int exponent = (bits & 0x7fff) >> fraction_bits, top = bf16 ? 255 : 31;
	const double fraction = bits & ((1u << fraction_bits) - 1);
	double x;
	if (exponent == top)
		x = fraction != 0 ? NAN : INFINITY;
	else if (exponent == 0)
		x = ldexp(fraction, type_least(bf16) - fraction_bits);
	else
		x = ldexp(fraction + (1u << fraction_bits), exponent - 1 + type_least(bf16) - fraction_bits);
	return bits & 0x8000 ? -x : x;
}

double number_decode(uint16_t bits, bool bf16)
{
	if (!bf16)
		return decode_slowly(bits, bf16);
	const uint32_t word = (uint32_t)bits << 16; /* a bfloat16 is the upper half of a float */
	float f;
	memcpy(&f, &word, sizeof f);
	return f;
}
