// What softmaxes share.

// The running maximum is raised only when it would grow by more than this (base 2): P then stays below 2^8, which both
// operand types hold as exactly as 1, and O is rescaled rarely instead of at every tile (FlashAttention-4's rule).
constexpr float LAZY_LOG2 = 8.0f;
// Beyond this |max|, max * LOGIT_SCALE rounds too coarsely to be subtracted after scaling; subtract before.
constexpr float LARGE_LOGIT = 4096.0f;

// Sums against a reference that is not the maximum are trusted in this range. bf16 has float32's exponents: what became zero is below
// 2^-66 of the sum. fp16 has few: the greatest P must not be small, and one that overflows makes O infinite or NaN.
DEVICE constexpr float sum_least(Bf16) { return 0x1p-60f; }
DEVICE constexpr float sum_least(Fp16) { return 0.5f; }
constexpr float SUM_MOST = 0x1p120f;
// finite: 0, or NaN where something of the row's O is not.
DEVICE bool sum_trusted(float sum, float finite) { return sum >= sum_least(Element{}) && sum <= SUM_MOST && finite == 0; }
// A row of few keys is often ruled by one, whose P had better be exact: such items have running maxima at once.
constexpr int SHORT_KEYS = 256;

DEVICE float minus_infinity() { return __int_as_float(0xff800000); }

// Over the lanes that hold a row of accumulators.
DEVICE float quad_max(float x)
{
	x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
	return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
DEVICE float quad_sum(float x)
{
	x += __shfl_xor_sync(~0u, x, 1);
	return x + __shfl_xor_sync(~0u, x, 2);
}
