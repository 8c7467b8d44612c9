// Where positions lift scores (SCORE_LIFT), a slope say: how far above what a visit shows of a row its reference must lie, if it is not to rise.

// Where positions have lifted scores so far, these are as coarse themselves. A reference that does not rise is rounded for its row once,
// which divides out of O.
constexpr float TRUSTED_LOGIT = SCORE_LIFT ? 0x1p17f : LARGE_LOGIT;
// A lifted reference is this much lower: of the few keys that positions leave to a row, none need be as near as the best of a tile.
constexpr float LIFT_SLACK = 32;

// The most that positions add to the score of row q of head h among keys [begin, end) of entry b.
DEVICE float lift_most(const fagen_abi &p, const Inputs &in, int b, int h, int q, int begin, int end)
{
	if (begin >= end)
		return minus_infinity();
	const int turn = score_turn(q, sequence_q(&p, b), sequence_k(&p, b));
	const int key[3] = {begin, end - 1, int_max(begin, int_min(turn, end - 1))};
	float most = minus_infinity();
#pragma unroll
	for (int i = 0; i < 3; i++)
		most = fmaxf(most, score(0, row_state(&p, &in, b, h, q, key[i]), col_state(&p, &in, b, h, key[i], 0), &in));
	return most;
}

// What the maximum of row q in the visit at hand, which sees some key there, lacks to a reference for its keys in [begin, end).
DEVICE float row_lift(const fagen_abi &p, const Inputs &in, int b, int h, int q, int begin, int end)
{
	const int sq = sequence_q(&p, b), sk = sequence_k(&p, b), row = int_min(q, sq - 1);
	float all = minus_infinity(), here = minus_infinity();
#pragma unroll
	for (int run = 0; run < RUNS; run++) {
		const Range keys = key_range(run, row, row + 1, sq, sk);
		const int first = int_max(keys.begin, begin), last = int_min(keys.end, end);
		all = fmaxf(all, lift_most(p, in, b, h, row, first, last));
		here = fmaxf(here, lift_most(p, in, b, h, row, int_max(first, in.k0), int_min(last, in.k0 + TILE_N)));
	}
	return all > here ? all - here - LIFT_SLACK / LOGIT_SCALE : 0;
}
