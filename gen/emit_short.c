/* emit_short: a score that costs multiply-adds only, for kernels that can do again what it got wrong.
 *
 * Of a score factor * tanh(slope * s), both constants above 0, tanh(x) is x times a polynomial in x * x. It is close to tanh up to
 * SHORT_REACH, and beyond it keeps rising without end: so whatever lies beyond in a row is at least as large as at the reach, and who
 * knows the sum of the row's exponentials knows that nothing lies there. No cell has to be looked at for that. */
#include "gen/emit.h"

#include <math.h>

enum { SHORT_TERMS = 5 };

/* Of polynomials with as many terms, the one whose greatest error relative to tanh on 0 < x <= SHORT_REACH is the smallest, 2^-19.9:
 * Remez' exchange on tanh(sqrt u) / sqrt u, 0 <= u <= SHORT_REACH^2. The error of a logit is below what float32 has beside it, so LSE
 * stays as exact as it is. An odd number of terms ends in one above 0, and the derivative, at least 0.37, has no zero. */
static const double short_reach = 0.8;
static const double short_term[SHORT_TERMS] = {0.9999989943, -0.3332537196, 0.1323056553, -0.04918014151, 0.0121001384};

/* With less reach in base 2 ordinary rows would leave it: those of small logits sum to their number of keys. */
static const double short_logit_least = 20;

static bool is_s(const struct expr_pool *pool, int node)
{
	return pool->node[node].op == EXPR_NAME && pool->node[node].i == NAME_S;
}

/* Coefficients of s, s^3, s^5 .. of the base-2 logit; false: the score has no such form, or floats cannot hold it. */
static bool coefficients_find(double coef[SHORT_TERMS], double *logit, const struct spec *spec, const struct program *p)
{
	const double log2_e = 1.4426950408889634, least = ldexp(1, -120), most = ldexp(1, 120);
	int rest, inner;
	const double height = log2_e * factor_split(&rest, &p->pool, p->score);
	if (p->pool.node[rest].op != EXPR_TANH)
		return false;
	const double slope = spec->softmax_scale * factor_split(&inner, &p->pool, p->pool.node[rest].arg[0]);
	if (!is_s(&p->pool, inner) || !(height > 0) || !(slope > 0))
		return false;
	for (int i = 0; i < SHORT_TERMS; i++) {
		coef[i] = height * pow(slope, 2 * i + 1) * short_term[i];
		if (!(fabs(coef[i]) >= least && fabs(coef[i]) <= most))
			return false;
	}
	*logit = height * tanh(short_reach) * (1 - ldexp(1, -14)); /* what rounding may take, and more */
	return *logit >= short_logit_least;
}

double program_short_logit(const struct spec *spec, const struct program *p)
{
	double coef[SHORT_TERMS], logit;
	return coefficients_find(coef, &logit, spec, p) ? logit : 0;
}

void short_print(struct text *out, const struct spec *spec, const struct program *p)
{
	double coef[SHORT_TERMS], logit;
	text_puts(out, "\nDEVICE float score_short(float s, float shift)\n{\n");
	if (!coefficients_find(coef, &logit, spec, p)) {
		text_puts(out, "\treturn 0;\n}\n\n");
		return;
	}
	text_puts(out, "\tconst float u = s * s;\n\treturn s * (");
	for (int i = 0; i < SHORT_TERMS; i++) {
		float_print(out, coef[i]);
		text_puts(out, i < SHORT_TERMS - 2 ? " + u * (" : i == SHORT_TERMS - 2 ? " + " : " * u");
	}
	for (int i = 0; i < SHORT_TERMS - 1; i++)
		text_puts(out, ")");
	text_puts(out, " - shift;\n}\n\n");
}
