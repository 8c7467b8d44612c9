/* emit_helper: small functions that an emitted program calls, each written only where it is called. */
#include "gen/emit.h"

static const char *const texts[HELPER_COUNT] = {
	/* Defined after the program, by templates/inputs.h. */
	[HELPER_INPUT_COPY] = "DEVICE void input_copy(void *to, const void *from);\n",
	[HELPER_INPUT_ROWS] = "DEVICE void input_rows(void *to, int pitch, int width, int unit, const void *from, long long stride, int last, int bytes, "
			      "int thread, int threads);\n",
	[HELPER_FP16] = "DEVICE float float_fp16(unsigned short bits);\n",
	[HELPER_BF16] = "DEVICE float float_bf16(unsigned short bits);\n",
	[HELPER_FLOOR] = "DEVICE int float_floor(float x);\n",
	[HELPER_EXP] = "DEVICE float float_exp(float x);\n",
	[HELPER_LOG] = "DEVICE float float_log(float x);\n",
	[HELPER_TANH] = "DEVICE float float_tanh(float x);\n",
	[HELPER_SQRT] = "DEVICE float float_sqrt(float x);\n",
	[HELPER_SIGMOID] = "DEVICE float float_sigmoid(float x);\n",
	[HELPER_FLOAT_DIV] = "DEVICE float float_div(float a, float b);\n",

	[HELPER_INT_ABS] = "DEVICE int int_abs(int a) { return a < 0 ? -a : a; }\n",
	[HELPER_INT_SELECT] = "// Both are worked out: compilers make a branch of what ?: may leave out.\n"
			      "DEVICE int int_select(bool c, int a, int b) { return c ? a : b; }\n",
	[HELPER_INT_DIV] = "// Toward minus infinity; b > 0.\n"
			   "DEVICE int int_div(int a, int b) { return a / b - (a % b < 0); }\n",
	[HELPER_INT_MOD] = "DEVICE int int_mod(int a, int b) { return a % b + (a % b < 0 ? b : 0); }\n",
	[HELPER_INDEX_CLAMP] = "// The index of the nearest of `size` elements.\n"
			       "DEVICE int index_clamp(int i, int size) { return int_min(int_max(i, 0), size - 1); }\n",
	[HELPER_WIDE_MIN] = "DEVICE long long wide_min(long long a, long long b) { return a < b ? a : b; }\n",
	[HELPER_WIDE_MAX] = "DEVICE long long wide_max(long long a, long long b) { return a > b ? a : b; }\n",
	[HELPER_WIDE_ABS] = "DEVICE long long wide_abs(long long a) { return a < 0 ? -a : a; }\n",
	[HELPER_WIDE_DIV] = "// Toward minus infinity; b > 0.\n"
			    "DEVICE long long wide_div(long long a, long long b) { return a / b - (a % b < 0); }\n",
	[HELPER_WIDE_MOD] =
		"DEVICE long long wide_mod(long long a, long long b) { return a % b + (a % b < 0 ? b : 0); }\n",
	[HELPER_SATURATE] =
		"// A difference that is compared with offsets inside a tile.\n"
		"DEVICE int saturate(long long a) { return a < -(1 << 30) ? -(1 << 30) : a > 1 << 30 ? 1 << 30 : "
		"(int)a; }\n",
	[HELPER_RANDOM] = "DEVICE int random_bits(unsigned seed, unsigned x, unsigned y)\n"
			  "{\n"
			  "\tunsigned z = seed * 0x9E3779B1u;\n"
			  "\tz = (z ^ x) * 0x85EBCA6Bu;\n"
			  "\tz ^= z >> 15;\n"
			  "\tz = (z ^ y) * 0xC2B2AE35u;\n"
			  "\tz ^= z >> 13;\n"
			  "\tz *= 0x27D4EB2Fu;\n"
			  "\tz ^= z >> 16;\n"
			  "\treturn (int)(z & 0xFFFF);\n"
			  "}\n",

	[HELPER_POINT] = "DEVICE bool is_point(struct Interval a) { return a.lo == a.hi; }\n",
	[HELPER_NEAR] = "DEVICE long long near_min(long long a, long long b) { return a < b ? a : b; }\n"
			"DEVICE long long near_max(long long a, long long b) { return a > b ? a : b; }\n"
			"DEVICE long long near_div(long long a, long long b) { return a / b - (a % b < 0); }\n",
	[HELPER_INTERVAL] = "DEVICE struct Interval interval(long long lo, long long hi)\n"
			    "{\n"
			    "\tconst struct Interval r = {lo, hi};\n"
			    "\treturn r;\n"
			    "}\n",
	[HELPER_BOUNDS] = "// Least and greatest of an input over a tile.\n"
			  "DEVICE struct Interval interval_bounds(unsigned long long bounds, long long tile)\n"
			  "{\n"
			  "\treturn interval(((const int *)bounds)[2 * tile], ((const int *)bounds)[2 * tile + 1]);\n"
			  "}\n",
	[HELPER_NEG] = "DEVICE struct Interval interval_neg(struct Interval a) { return interval(-a.hi, -a.lo); }\n",
	[HELPER_ABS] = "DEVICE struct Interval interval_abs(struct Interval a)\n"
		       "{\n"
		       "\treturn a.lo >= 0 ? a : interval(a.hi < 0 ? -a.hi : 0, near_max(-a.lo, a.hi));\n"
		       "}\n",
	[HELPER_NOT] = "DEVICE struct Interval interval_not(struct Interval a) { return interval(!a.hi, !a.lo); }\n",
	[HELPER_ADD] = "DEVICE struct Interval interval_add(struct Interval a, struct Interval b)\n"
		       "{\n"
		       "\treturn interval(a.lo + b.lo, a.hi + b.hi);\n"
		       "}\n",
	[HELPER_SUB] = "DEVICE struct Interval interval_sub(struct Interval a, struct Interval b)\n"
		       "{\n"
		       "\treturn interval(a.lo - b.hi, a.hi - b.lo);\n"
		       "}\n",
	[HELPER_MUL] = "DEVICE struct Interval interval_mul(struct Interval a, struct Interval b)\n"
		       "{\n"
		       "\tconst long long ll = a.lo * b.lo, lh = a.lo * b.hi, hl = a.hi * b.lo, hh = a.hi * b.hi;\n"
		       "\treturn interval(near_min(near_min(ll, lh), near_min(hl, hh)),\n"
		       "\t                near_max(near_max(ll, lh), near_max(hl, hh)));\n"
		       "}\n",
	[HELPER_DIV] =
		"// b > 0.\n"
		"DEVICE struct Interval interval_div(struct Interval a, struct Interval b)\n"
		"{\n"
		"\treturn interval(near_div(a.lo, a.lo < 0 ? b.lo : b.hi), near_div(a.hi, a.hi < 0 ? b.hi : b.lo));\n"
		"}\n",
	[HELPER_MOD] = "// b > 0. Exact when no multiple of one b lies between.\n"
		       "DEVICE struct Interval interval_mod(struct Interval a, struct Interval b)\n"
		       "{\n"
		       "\tconst long long multiple = near_div(a.lo, b.lo) * b.lo;\n"
		       "\tif (is_point(b) && a.hi - multiple < b.lo)\n"
		       "\t\treturn interval(a.lo - multiple, a.hi - multiple);\n"
		       "\treturn a.lo >= 0 && a.hi < b.lo ? a : interval(0, b.hi - 1);\n"
		       "}\n",
	[HELPER_MIN] = "DEVICE struct Interval interval_min(struct Interval a, struct Interval b)\n"
		       "{\n"
		       "\treturn interval(near_min(a.lo, b.lo), near_min(a.hi, b.hi));\n"
		       "}\n",
	[HELPER_MAX] = "DEVICE struct Interval interval_max(struct Interval a, struct Interval b)\n"
		       "{\n"
		       "\treturn interval(near_max(a.lo, b.lo), near_max(a.hi, b.hi));\n"
		       "}\n",
	[HELPER_LT] = "DEVICE struct Interval interval_lt(struct Interval a, struct Interval b)\n"
		      "{\n"
		      "\treturn interval(a.hi < b.lo, a.lo < b.hi);\n"
		      "}\n",
	[HELPER_LE] = "DEVICE struct Interval interval_le(struct Interval a, struct Interval b)\n"
		      "{\n"
		      "\treturn interval(a.hi <= b.lo, a.lo <= b.hi);\n"
		      "}\n",
	[HELPER_EQ] = "DEVICE struct Interval interval_eq(struct Interval a, struct Interval b)\n"
		      "{\n"
		      "\treturn interval(is_point(a) && is_point(b) && a.lo == b.lo, a.lo <= b.hi && b.lo <= a.hi);\n"
		      "}\n",
	[HELPER_NE] = "DEVICE struct Interval interval_ne(struct Interval a, struct Interval b)\n"
		      "{\n"
		      "\treturn interval(a.hi < b.lo || b.hi < a.lo, !is_point(a) || !is_point(b) || a.lo != b.lo);\n"
		      "}\n",
	[HELPER_AND] = "DEVICE struct Interval interval_and(struct Interval a, struct Interval b)\n"
		       "{\n"
		       "\treturn interval(a.lo && b.lo, a.hi && b.hi);\n"
		       "}\n",
	[HELPER_OR] = "DEVICE struct Interval interval_or(struct Interval a, struct Interval b)\n"
		      "{\n"
		      "\treturn interval(a.lo || b.lo, a.hi || b.hi);\n"
		      "}\n",
	[HELPER_SELECT] =
		"DEVICE struct Interval interval_select(struct Interval c, struct Interval a, struct Interval b)\n"
		"{\n"
		"\treturn c.lo ? a : !c.hi ? b : interval(near_min(a.lo, b.lo), near_max(a.hi, b.hi));\n"
		"}\n",
	[HELPER_INTERVAL_RANDOM] =
		"DEVICE struct Interval interval_random(struct Interval seed, struct Interval x, struct Interval y)\n"
		"{\n"
		"\tconst bool known = is_point(seed) && is_point(x) && is_point(y);\n"
		"\tconst int bits = random_bits((unsigned)seed.lo, (unsigned)x.lo, (unsigned)y.lo);\n"
		"\treturn interval(known ? bits : 0, known ? bits : 65535);\n"
		"}\n",
};

/* What a helper calls itself. */
static const enum helper calls[][2] = {
	{HELPER_INTERVAL_RANDOM, HELPER_RANDOM},
	{HELPER_INTERVAL_RANDOM, HELPER_POINT},
	{HELPER_ABS, HELPER_NEAR},
	{HELPER_MUL, HELPER_NEAR},
	{HELPER_DIV, HELPER_NEAR},
	{HELPER_MOD, HELPER_NEAR},
	{HELPER_MIN, HELPER_NEAR},
	{HELPER_MAX, HELPER_NEAR},
	{HELPER_SELECT, HELPER_NEAR},
	{HELPER_MOD, HELPER_POINT},
	{HELPER_EQ, HELPER_POINT},
	{HELPER_NE, HELPER_POINT},
};

void helpers_print(struct text *out, const bool used[HELPER_COUNT])
{
	bool all[HELPER_COUNT];
	for (int i = 0; i < HELPER_COUNT; i++)
		all[i] = used[i];
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
		all[calls[i][1]] = all[calls[i][1]] || used[calls[i][0]];
	for (int i = 0; i < HELPER_COUNT; i++)
		if (all[i])
			text_puts(out, texts[i]);
}
