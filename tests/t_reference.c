/* The judge is judged: the reference against hand-computed cases, finite differences and known answers; the comparison
 * against planted errors. What specs mean to it is in t_meaning. */
#include "tests/world.h"

/* The device's definition of dropout is also C, but for one instruction. */
#define DEVICE static __attribute__((unused))
DEVICE unsigned long long mul_wide(unsigned a, unsigned b) { return (unsigned long long)a * b; }
static int device_keep_256;
#define KEEP_256 device_keep_256
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#include "templates/dropout.h"
#pragma GCC diagnostic pop

/* ---- hand-computed cases ------------------------------------------------------------------------------------------- */

START_TEST(test_zero_scores) /* NUM-08: the natural logarithm, and the mean */
{
	const struct ref_case c = shape(1, 1, 1, 3, 8, 16, 16);
	struct world w;
	world_make(&w, &c, INPUT_ZERO, 1);
	world_forward(&w);
	for (int q = 0; q < 3; q++) {
		ck_assert_double_eq_tol(w.f.lse[q], 2.0794415416798357, 1e-15);
		for (int d = 0; d < 16; d++) {
			double mean = 0;
			for (int k = 0; k < 8; k++)
				mean += w.v[k * 16 + d] / 8;
			ck_assert_double_eq_tol(w.f.out[q * 16 + d], mean, 1e-15);
		}
	}
	world_free(&w);
}
END_TEST

START_TEST(test_one_key) /* TAIL-01 */
{
	const struct ref_case c = shape(1, 1, 1, 1, 1, 16, 16);
	struct world w;
	world_make(&w, &c, INPUT_GAUSS, 2);
	w.dlse[0] = 0;
	world_forward(&w);
	world_backward(&w);
	ck_assert_double_eq(difference_max(w.f.out, w.v, 16), 0);
	ck_assert_double_eq_tol(difference_max(w.g.dvalue, w.dout, 16), 0, 1e-15);
	ck_assert_double_eq_tol(tensor_max(w.g.dquery, 16), 0, 1e-14);
	ck_assert_double_eq_tol(tensor_max(w.g.dkey, 16), 0, 1e-14);
	world_free(&w);
}
END_TEST

START_TEST(test_two_keys) /* scores ln 3 apart: weights 3/4 and 1/4 */
{
	struct ref_case c = shape(1, 1, 1, 1, 2, 1, 1);
	struct world w;
	world_make(&w, &c, INPUT_GAUSS, 3);
	w.c.softmax_scale = 2;
	w.q[0] = 1, w.k[0] = log(3) / 2, w.k[1] = 0, w.v[0] = 8, w.v[1] = 4, w.dout[0] = 1, w.dlse[0] = 0;
	world_forward(&w);
	world_backward(&w);
	ck_assert_double_eq_tol(w.f.out[0], 7, 1e-14);
	ck_assert_double_eq_tol(w.f.lse[0], log(4), 1e-15);
	/* dS = P (dP - O) = {3/4 * (8-7), 1/4 * (4-7)} */
	ck_assert_double_eq_tol(w.g.dkey[0], 1.5, 1e-14);
	ck_assert_double_eq_tol(w.g.dkey[1], -1.5, 1e-14);
	ck_assert_double_eq_tol(w.g.dquery[0], 1.5 * log(3) / 2, 1e-14);
	ck_assert_double_eq_tol(w.g.dvalue[0], 0.75, 1e-14);
	ck_assert_double_eq_tol(w.g.dvalue[1], 0.25, 1e-14);
	w.dlse[0] = 10; /* d LSE / d s = P */
	world_backward(&w);
	ck_assert_double_eq_tol(w.g.dkey[0], 1.5 + 2 * 10 * 0.75, 1e-13);
	world_free(&w);
}
END_TEST

START_TEST(test_empty_rows) /* MSK-01: rows that see nothing give zeros, and nothing of them reaches a gradient */
{
	const struct ref_case c = shape(1, 2, 1, 8, 4, 16, 8);
	struct world w;
	world_make(&w, &c, INPUT_GAUSS, 4);
	world_mean(&w, CAUSAL, 1);
	world_forward(&w);
	world_backward(&w);
	for (int row = 0; row < 16; row++)
		if (row % 8 < 4) {
			ck_assert(w.f.lse[row] == -INFINITY);
			ck_assert_double_eq(tensor_max(w.f.out + row * 8, 8), 0);
			ck_assert_double_eq(tensor_max(w.g.dquery + row * 16, 16), 0);
		} else {
			ck_assert(isfinite(w.f.lse[row]));
		}
	double *dkey = doubles(w.n_k), *dvalue = doubles(w.n_v);
	memcpy(dkey, w.g.dkey, (size_t)w.n_k * sizeof *dkey);
	memcpy(dvalue, w.g.dvalue, (size_t)w.n_v * sizeof *dvalue);
	for (int row = 0; row < 4; row++)
		w.dout[row * 8] = 1e6, w.q[row * 16] = 1e6, w.dlse[row] = 1e6;
	world_backward(&w);
	ck_assert_double_eq(difference_max(dkey, w.g.dkey, w.n_k), 0);
	ck_assert_double_eq(difference_max(dvalue, w.g.dvalue, w.n_v), 0);
	free(dkey), free(dvalue);
	world_free(&w);
}
END_TEST

START_TEST(test_no_keys)
{
	const struct ref_case c = shape(1, 1, 1, 3, 0, 16, 16);
	struct world w;
	world_make(&w, &c, INPUT_GAUSS, 4);
	world_forward(&w);
	world_backward(&w);
	ck_assert_double_eq(tensor_max(w.f.out, w.n_o), 0);
	ck_assert_double_eq(tensor_max(w.g.dquery, w.n_q), 0);
	for (int q = 0; q < 3; q++)
		ck_assert(w.f.lse[q] == -INFINITY);
	world_free(&w);
}
END_TEST

START_TEST(test_nan_stays_in_its_row) /* NUM-11 */
{
	const struct ref_case c = shape(1, 2, 2, 8, 8, 16, 16);
	struct world w;
	world_make(&w, &c, INPUT_INF, 4);
	world_mean(&w, CAUSAL, 1);
	ck_assert(isinf(w.k[3 * 16 + 5]) && isinf(w.k[3 * 16 + 6]));
	world_forward(&w);
	for (int row = 0; row < 16; row++) {
		ck_assert_int_eq(isnan(w.f.lse[row]) != 0, row >= 3 && row < 8);
		for (int d = 0; d < 16; d++)
			ck_assert_int_eq(isnan(w.f.out[row * 16 + d]) != 0, row >= 3 && row < 8);
	}
	world_free(&w);
}
END_TEST

/* ---- properties ------------------------------------------------------------------------------------------------------ */

static struct ref_case rich_case(int i)
{
	struct ref_case c = shape(2, 4, 2, 7, 9, 16, 8);
	if (i & 2)
		c.keep_256 = 150;
	if (i & 4)
		c.seqlen_k = 5;
	c.softmax_scale = 0.3;
	return c;
}

START_TEST(test_weights_sum_to_one) /* NUM-10: the weights recomputed from LSE */
{
	const struct ref_case c = rich_case(_i);
	struct world w;
	world_make(&w, &c, INPUT_GAUSS, 5);
	if (_i & 1)
		world_mean(&w, CAUSAL, 1);
	world_forward(&w);
	for (int64_t row = 0; row < w.rows; row++) {
		const int64_t q = row % c.seqlen_q, h = row / c.seqlen_q % c.heads_q, b = row / c.seqlen_q / c.heads_q;
		double sum = 0;
		for (int64_t k = 0; k < c.seqlen_k; k++) {
			if ((_i & 1) && k - c.seqlen_k > q - c.seqlen_q)
				continue;
			double s = 0;
			for (int d = 0; d < c.head_dim_qk; d++)
				s += w.q[row * c.head_dim_qk + d] *
				     w.k[((b * 2 + h / 2) * c.seqlen_k + k) * c.head_dim_qk + d];
			sum += exp(0.3 * s - w.f.lse[row]);
		}
		if (w.f.lse[row] != -INFINITY)
			ck_assert_double_eq_tol(sum, 1, 1e-13);
	}
	world_free(&w);
}
END_TEST

START_TEST(test_gradients) /* against central differences: GQA, masks, dropout, dlse, both length orders */
{
	const struct ref_case c = rich_case(_i);
	struct world w;
	world_make(&w, &c, INPUT_GAUSS, 6);
	if (_i & 1)
		world_mean(&w, CAUSAL, 1);
	world_backward(&w);
	slope_check(&w, "query", w.q, w.n_q, w.g.dquery);
	slope_check(&w, "key", w.k, w.n_k, w.g.dkey);
	slope_check(&w, "value", w.v, w.n_v, w.g.dvalue);
	world_free(&w);
}
END_TEST

START_TEST(test_first_head) /* heads computed alone equal the same heads of the whole, dropout included */
{
	struct ref_case c = shape(2, 6, 3, 20, 33, 16, 16);
	c.keep_256 = 128;
	struct world w;
	world_make(&w, &c, INPUT_GAUSS, 7);
	world_forward(&w);
	struct ref_case one = c;
	const int64_t first = 1 * 6 + 2 * 2;
	one.batch = 1, one.heads_q = 2, one.heads_kv = 1, one.first_head = &first;
	struct ref_forward f = {doubles(2 * 20 * 16), doubles(2 * 20)};
	ref_attention_forward(&f, &one, w.q + first * 20 * 16, w.k + 5 * 33 * 16, w.v + 5 * 33 * 16);
	ck_assert_double_eq(difference_max(f.out, w.f.out + first * 20 * 16, 2 * 20 * 16), 0);
	free(f.out), free(f.lse);
	world_free(&w);
}
END_TEST

/* Entries of a padded batch are what they would be alone, and rows past their lengths are nothing, whatever is there; under a mask that
 * hides keys past the length by itself, and under none. */
START_TEST(test_lengths)
{
	static const int64_t used_q[] = {20, 7, 0, 12}, used_k[] = {33, 12, 9, 0};
	struct ref_case c = shape(4, 4, 2, 20, 33, 16, 16);
	c.keep_256 = 128;
	c.used_q = used_q, c.used_k = used_k;
	struct world w;
	world_make(&w, &c, INPUT_GAUSS, 7);
	if (_i)
		world_mean(&w, CAUSAL, 1);
	for (int b = 0; b < 4; b++)
		for (int h = 0; h < 4; h++)
			for (int64_t q = used_q[b]; q < 20; q++)
				w.q[((b * 4 + h) * 20 + q) * 16] = w.dout[((b * 4 + h) * 20 + q) * 16] = NAN;
	for (int b = 0; b < 4; b++)
		for (int h = 0; h < 2; h++)
			for (int64_t k = used_k[b]; k < 33; k++)
				w.k[((b * 2 + h) * 33 + k) * 16] = w.v[((b * 2 + h) * 33 + k) * 16] = NAN;
	world_forward(&w);
	world_backward(&w);
	for (int64_t row = 0; row < 4 * 4 * 20; row++)
		if (row % 20 >= used_q[row / 80] || !used_k[row / 80]) {
			ck_assert(w.f.lse[row] == -INFINITY);
			for (int d = 0; d < 16; d++)
				ck_assert(w.f.out[row * 16 + d] == 0 && w.g.dquery[row * 16 + d] == 0);
		}
	for (int64_t row = 0; row < 4 * 2 * 33; row++)
		if (row % 33 >= used_k[row / 66] || !used_q[row / 66])
			for (int d = 0; d < 16; d++)
				ck_assert(w.g.dkey[row * 16 + d] == 0 && w.g.dvalue[row * 16 + d] == 0);
	/* Head 2 of entry 1, alone and cut to its lengths. */
	struct ref_case one = shape(1, 1, 1, used_q[1], used_k[1], 16, 16);
	const int64_t first = 1 * 4 + 2;
	one.keep_256 = 128, one.seed = c.seed, one.offset = c.offset, one.program = w.c.program;
	one.first_head = &first, one.all_heads_q = 4, one.all_heads_kv = 2;
	struct ref_forward f = {doubles(7 * 16), doubles(7)};
	ref_attention_forward(&f, &one, w.q + first * 20 * 16, w.k + 3 * 33 * 16, w.v + 3 * 33 * 16);
	ck_assert_double_eq(difference_max(f.out, w.f.out + first * 20 * 16, 7 * 16), 0);
	ck_assert_double_eq(difference_max(f.lse, w.f.lse + first * 20, 7), 0);
	free(f.out), free(f.lse);
	world_free(&w);
}
END_TEST

START_TEST(test_plain) /* the yardstick errs by the type's rounding: neither nothing nor much */
{
	struct ref_case c = shape(1, 4, 2, 70, 90, 64, 32);
	c.keep_256 = _i & 1 ? 200 : 256;
	c.bf16 = _i < 2;
	struct world w;
	world_make(&w, &c, INPUT_GAUSS, 8);
	world_mean(&w, CAUSAL, 1);
	world_forward(&w);
	world_backward(&w);
	struct ref_forward f = {doubles(w.n_o), doubles(w.rows)};
	struct ref_backward g = {.dquery = doubles(w.n_q), .dkey = doubles(w.n_k), .dvalue = doubles(w.n_v)};
	ref_plain_forward(&f, &w.c, w.q, w.k, w.v);
	ref_plain_backward(&g, &w.c, w.q, w.k, w.v, w.dout, w.dlse);
	const double unit = number_ulp(1, c.bf16);
	const struct {
		const double *plain, *want;
		int64_t n;
	} row[] = {{f.out, w.f.out, w.n_o},
	           {g.dquery, w.g.dquery, w.n_q},
	           {g.dkey, w.g.dkey, w.n_k},
	           {g.dvalue, w.g.dvalue, w.n_v}};
	for (int i = 0; i < 4; i++) {
		const double error =
			difference_max(row[i].plain, row[i].want, row[i].n) / tensor_max(row[i].want, row[i].n);
		ck_assert_msg(error > unit / 8 && error < 2 * unit, "tensor %d: %g of its largest element, unit %g", i,
		              error, unit);
		for (int64_t k = 0; k < row[i].n; k++)
			ck_assert_double_eq(row[i].plain[k], number_round(row[i].plain[k], c.bf16));
	}
	ck_assert_double_lt(difference_max(f.lse, w.f.lse, w.rows), 1e-5);
	free(f.out), free(f.lse), free(g.dquery), free(g.dkey), free(g.dvalue);
	world_free(&w);
}
END_TEST

/* ---- dropout ----------------------------------------------------------------------------------------------------------- */

/* Philox 4x32-10 of the paper's own test vectors (Random123, kat_vectors). */
static const struct {
	uint32_t counter[4], key[2], out[4];
} philox_answers[] = {
	{{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
	{{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
	{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

static uint32_t high(uint32_t a, uint32_t b) { return (uint32_t)(((uint64_t)a * b) >> 32); }

static void philox_again(uint32_t x[4], uint32_t k0, uint32_t k1)
{
	for (uint32_t round = 0; round < 10; round++) {
		const uint32_t key[2] = {k0 + round * 0x9E3779B9u, k1 + round * 0xBB67AE85u};
		const uint32_t next[4] = {high(0xCD9E8D57u, x[2]) ^ x[1] ^ key[0], 0xCD9E8D57u * x[2],
		                          high(0xD2511F53u, x[0]) ^ x[3] ^ key[1], 0xD2511F53u * x[0]};
		memcpy(x, next, sizeof next);
	}
}

/* The definition word for word: eight words, the majority from the lowest bit of T up, one bit of the result. Words are 64 bits wide here: what
 * passes 32 bits is thrown away at the end of each step, and a fold is a division. */
static bool keep_again(uint64_t seed, uint64_t offset, uint32_t head, int threshold, uint32_t q, uint32_t k)
{
	const uint64_t all = UINT64_C(0xFFFFFFFF), gq = (q >> 4) * 8 + (q & 7), gk = (k >> 6) * 4 + ((k >> 1) & 3);
	uint32_t key[4] = {head, (uint32_t)offset, (uint32_t)(offset >> 32), 0}, r = 0;
	philox_again(key, (uint32_t)seed, (uint32_t)(seed >> 32));
	const uint64_t y = (gq * 0x85EBCA77 + key[1]) & all, x = (gk * 0x9E3779B1 + key[0]) & all;
	const uint64_t row = ((y ^ y / 65536) * 0x2C1B3C6D + key[2]) & all, factor = row - row % 2 + 1;
	uint64_t a = (x * factor + y * 0x297A2D39 + (key[3] ^ key[2] / 32768)) & all;
	a ^= a / 65536;
	uint64_t b = (a * a + row) & all;
	b ^= b / 65536;
	uint64_t c = (b * factor + a) & all;
	c ^= c / 65536;
	const uint64_t e = (c * c + b) & all, d = e / 65536 + e % 65536 * 65536;
	const uint64_t product[8] = {d * 0xCC9E2D51 + a, c * 0x1B873593 + a, a * d + c, b * d + c, c * d + a, a * b + d, b * c + d, a * c + b};
	static const int divisor[8] = {65536, 65536, 32768, 16384, 16384, 32768, 8192, 8192};
	uint32_t word[8];
	for (int i = 0; i < 8; i++)
		word[i] = (uint32_t)(product[i] & all) ^ (uint32_t)((product[i] & all) / (uint64_t)divisor[i]);
	for (int i = 0; i < 8; i++) {
		const uint32_t t = threshold >> i & 1 ? ~0u : 0;
		r = (r & word[i]) | (r & t) | (word[i] & t);
	}
	return r >> (8 * (2 * ((q >> 3) & 1) + (k & 1)) + 7 - ((k >> 3) & 7)) & 1;
}

START_TEST(test_philox)
{
	uint32_t x[4];
	memcpy(x, philox_answers[_i].counter, sizeof x);
	philox_again(x, philox_answers[_i].key[0], philox_answers[_i].key[1]);
	ck_assert_mem_eq(x, philox_answers[_i].out, sizeof x);
	memcpy(x, philox_answers[_i].counter, sizeof x);
	if (philox_answers[_i].counter[3] == 0) {
		const struct DropoutKey key = dropout_head((uint64_t)philox_answers[_i].key[1] << 32 | philox_answers[_i].key[0],
		                                           (uint64_t)x[2] << 32 | x[1], x[0]);
		ck_assert_mem_eq(key.word, philox_answers[_i].out, sizeof x);
	}
}
END_TEST

START_TEST(test_dropout_three_ways) /* the reference, the device's code and the definition agree on every cell */
{
	static const int thresholds[] = {1, 26, 128, 230, 255, 256};
	struct ref_case c = shape(2, 3, 3, 40, 150, 16, 16);
	c.keep_256 = device_keep_256 = thresholds[_i];
	c.offset = UINT64_C(0x500000007); /* both halves count */
	for (int64_t b = 0; b < 2; b++)
		for (int64_t h = 0; h < 3; h++)
			for (int64_t q = 0; q < 40; q++)
				for (int64_t k = 0; k < 150; k++) {
					const struct DropoutKey key = dropout_head(c.seed, c.offset, (unsigned)(b * 3 + h));
					const bool keep = ref_dropout_keep(&c, b, h, q, k);
					const bool again =
						c.keep_256 == 256 || keep_again(c.seed, c.offset, (uint32_t)(b * 3 + h),
					                                        c.keep_256, (uint32_t)q, (uint32_t)k);
					ck_assert_int_eq(keep, again);
					ck_assert_int_eq(keep, dropout_keep(key, (int)q, (int)k));
				}
}
END_TEST

/* Frozen: rows of 64 decisions, key 0 in the lowest bit. A change here changes every user's training run. */
static const struct {
	uint64_t seed, offset;
	int64_t b, h, q, k0;
	int keep;
	uint64_t bits;
} golden[] = {
#include "tests/dropout.golden"
};

START_TEST(test_dropout_golden)
{
	struct ref_case c = shape(4, 8, 8, 1, 1, 16, 16);
	c.seed = golden[_i].seed, c.offset = golden[_i].offset, c.keep_256 = golden[_i].keep;
	uint64_t bits = 0;
	for (int k = 0; k < 64; k++)
		bits |= (uint64_t)ref_dropout_keep(&c, golden[_i].b, golden[_i].h, golden[_i].q, golden[_i].k0 + k)
		        << k;
	ck_assert_msg(bits == golden[_i].bits, "row %d: 0x%016" PRIx64 ", frozen as 0x%016" PRIx64, _i, bits,
	              golden[_i].bits);
}
END_TEST

START_TEST(test_dropout_fraction)
{
	static const int thresholds[] = {26, 128, 213, 230};
	struct ref_case c = shape(1, 2, 2, 512, 512, 16, 16);
	c.keep_256 = thresholds[_i];
	const double p = c.keep_256 / 256.0;
	int64_t total = 0, both = 0;
	int column[512] = {0};
	for (int q = 0; q < 512; q++) {
		int row = 0;
		bool last = false;
		for (int k = 0; k < 512; k++) {
			const bool keep = ref_dropout_keep(&c, 0, 1, q, k);
			row += keep;
			column[k] += keep;
			both += keep && last;
			last = keep;
		}
		total += row;
		ck_assert_double_lt(fabs(row - 512 * p), 5.5 * sqrt(512 * p * (1 - p)));
	}
	for (int k = 0; k < 512; k++)
		ck_assert_double_lt(fabs(column[k] - 512 * p), 5.5 * sqrt(512 * p * (1 - p)));
	ck_assert_double_lt(fabs((double)total - 262144 * p), 5 * sqrt(262144 * p * (1 - p)));
	ck_assert_double_lt(fabs((double)both - 512 * 511 * p * p),
	                    6 * sqrt(512 * 511 * p * p)); /* neighbours are independent */
}
END_TEST

START_TEST(test_dropout_offset) /* RNG-03: another offset, seed or head is another mask */
{
	struct ref_case c = shape(2, 2, 2, 64, 64, 16, 16), other = c;
	c.keep_256 = other.keep_256 = 128;
	int differs[3] = {0};
	for (int i = 0; i < 3; i++) {
		other = c;
		other.offset += i == 0;
		other.seed += i == 1;
		for (int q = 0; q < 64; q++)
			for (int k = 0; k < 64; k++)
				differs[i] +=
					ref_dropout_keep(&c, 0, 0, q, k) != ref_dropout_keep(&other, i == 2, 0, q, k);
		ck_assert_int_gt(differs[i], 1800);
		ck_assert_int_lt(differs[i], 2300);
	}
}
END_TEST

START_TEST(test_dropout_after_sum) /* RNG-09: a row whose kept keys are none gives O = 0 and the LSE of all its keys */
{
	struct ref_case c = shape(1, 1, 1, 64, 64, 16, 16), undropped = c;
	c.keep_256 = 26;
	struct world w, u;
	world_make(&w, &c, INPUT_GAUSS, 9);
	world_make(&u, &undropped, INPUT_GAUSS, 9);
	world_mean(&w, CAUSAL, 1);
	world_mean(&u, CAUSAL, 1);
	world_forward(&w);
	world_forward(&u);
	ck_assert_double_eq(difference_max(w.f.lse, u.f.lse, 64), 0);
	int empty = 0;
	for (int q = 0; q < 64; q++) {
		int kept = 0;
		for (int k = 0; k <= q; k++)
			kept += ref_dropout_keep(&c, 0, 0, q, k);
		empty += !kept;
		ck_assert_int_eq(tensor_max(w.f.out + q * 16, 16) == 0, kept == 0);
	}
	ck_assert_int_gt(empty, 3);
	world_free(&w);
	world_free(&u);
}
END_TEST

/* ---- numbers, inputs --------------------------------------------------------------------------------------------------- */

START_TEST(test_number_round_trip)
{
	const bool bf16 = _i;
	for (uint32_t bits = 0; bits < 65536; bits++) {
		const double x = number_decode((uint16_t)bits, bf16);
		if (isnan(x))
			ck_assert(isnan(number_decode(number_encode(x, bf16), bf16)));
		else
			ck_assert_msg(number_encode(x, bf16) == bits && number_round(x, bf16) == x,
			              "%04x is %g and back %04x", bits, x, number_encode(x, bf16));
	}
}
END_TEST

START_TEST(test_number_nearest)
{
	ck_assert_double_eq(number_round(1 + 1 / 256.0, true), 1); /* tie to even */
	ck_assert_double_eq(number_round(1 + 3 / 256.0, true), 1 + 4 / 256.0);
	ck_assert_double_eq(number_round(1 + 1.001 / 256, true), 1 + 2 / 256.0);
	ck_assert_double_eq(number_round(1 + 1 / 2048.0, false), 1);
	ck_assert_double_eq(number_round(65519.99, false), 65504);
	ck_assert(isinf(number_round(65520, false)));
	ck_assert_double_eq(number_round(ldexp(1, -25), false), 0);
	ck_assert_double_eq(number_round(ldexp(1.01, -25), false), ldexp(1, -24));
	ck_assert_double_eq(number_round(133120, true), 133120);
	ck_assert_double_eq(number_decode(0x3f80, true), 1);
	ck_assert_double_eq(number_decode(0x3c00, false), 1);
	ck_assert_double_eq(number_ulp(1, true), 1 / 128.0);
	ck_assert_double_eq(number_ulp(1.99, false), 1 / 1024.0);
	ck_assert_double_eq(number_ulp(0, false), ldexp(1, -24));
}
END_TEST

START_TEST(test_inputs)
{
	const enum input_kind kind = (enum input_kind)_i;
	for (int bf16 = 0; bf16 < 2; bf16++) {
		struct ref_case c = shape(1, 1, 1, 50, 60, 64, 64);
		c.bf16 = bf16;
		struct world w, again;
		world_make(&w, &c, kind, 11);
		world_make(&again, &c, kind, 11);
		ck_assert_mem_eq(w.k, again.k, (size_t)w.n_k * sizeof *w.k);
		for (int64_t i = 0; i < w.n_k; i++)
			ck_assert(w.k[i] == number_round(w.k[i], bf16) && (isfinite(w.k[i]) || kind == INPUT_INF));
		const double score = ref_score_max(&c, w.q, w.k);
		if (kind == INPUT_HUGE)
			ck_assert_msg(score > 1500 && score < 6000, "%g", score);
		else if (kind == INPUT_ZERO)
			ck_assert_double_eq(score, 0);
		else if (kind == INPUT_CONST)
			for (int64_t i = 0; i < w.n_k; i++)
				ck_assert_double_eq(w.k[i], w.k[i / 64 * 64]);
		else
			ck_assert_double_gt(score, kind >= INPUT_HARD && kind != INPUT_LARGEST ? 300 : 1);
		world_free(&w);
		world_free(&again);
	}
}
END_TEST

static double logit(const struct world *w, int64_t q, int64_t k)
{
	double sum = 0;
	for (int i = 0; i < w->c.head_dim_qk; i++)
		sum += w->q[q * w->c.head_dim_qk + i] * w->k[k * w->c.head_dim_qk + i];
	return w->c.softmax_scale * sum;
}

/* What the hard kinds promise to whoever does not follow the running maximum. */
START_TEST(test_hard_inputs)
{
	for (int bf16 = 0; bf16 < 2; bf16++)
		for (int kind = INPUT_HARD; kind < INPUT_COUNT; kind++) {
			struct ref_case c = shape(1, 1, 1, 200, 256, 64, 64);
			c.bf16 = bf16;
			struct world w;
			world_make(&w, &c, (enum input_kind)kind, 5);
			for (int64_t q = 0; q < 200; q += 7) {
				const double first = logit(&w, q, 0), last = logit(&w, q, 255), next = logit(&w, q, 64);
				if (kind == INPUT_RISING || kind == INPUT_OPPOSED)
					ck_assert_msg(first > next + 80 && next > last + 200, "%g %g %g", first, next, last);
				else if (kind == INPUT_FALLING)
					ck_assert_msg(first < next - 80 && next < last - 200, "%g %g %g", first, next, last);
				else if (kind == INPUT_TURNS)
					ck_assert_msg(first < -400 && next > 400 && last > 400, "%g %g %g", first, next, last);
				else if (kind == INPUT_LOW)
					ck_assert_msg(first < -400 && next < -400 && last < -400, "%g %g %g", first, next, last);
			}
			double most = 0;
			for (int64_t i = 0; i < w.n_v; i++) {
				ck_assert(isfinite(w.v[i]));
				ck_assert(kind != INPUT_OPPOSED || i < 64 || w.v[i] == -w.v[i - 64]);
				most = fmax(most, fabs(w.v[i]));
			}
			ck_assert(kind != INPUT_LARGEST || most > (bf16 ? 0x1.fp107 : 65000));
			ck_assert_int_eq(input_forward_only((enum input_kind)kind), kind == INPUT_LARGEST);
			world_free(&w);
		}
}
END_TEST

START_TEST(test_dquery_spread) /* dQ moves with delta as with -dlse; rounding moves delta by parts of dO * O and of P (dO * V) */
{
	struct ref_case c = shape(2, 2, 1, 5, 7, 16, 24);
	struct world w;
	c.keep_256 = 200;
	world_make(&w, &c, INPUT_GAUSS, 4);
	world_forward(&w);
	world_backward(&w);
	double *const before = doubles(w.n_q);
	memcpy(before, w.g.dquery, (size_t)w.n_q * sizeof *before);
	for (int64_t row = 0; row < w.rows; row++)
		w.dlse[row] -= 1;
	world_backward(&w);
	for (int64_t row = 0; row < w.rows; row++) {
		const int64_t b = row / 10, h = row / 5 % 2, q = row % 5;
		double squares = 0, product = 0;
		for (int d = 0; d < 24; d++)
			product += w.dout[row * 24 + d] * w.f.out[row * 24 + d];
		squares += product * product;
		for (int k = 0; k < 7; k++) {
			double s = 0, dp = 0;
			for (int d = 0; d < 16; d++)
				s += w.q[row * 16 + d] * w.k[(b * 7 + k) * 16 + d];
			for (int d = 0; d < 24; d++)
				dp += w.dout[row * 24 + d] * w.v[(b * 7 + k) * 24 + d];
			const double keep = ref_dropout_keep(&w.c, b, h, q, k) ? 256.0 / 200 : 0;
			dp *= keep * exp(s / 4 - w.f.lse[row]);
			squares += dp * dp;
		}
		for (int d = 0; d < 16; d++) {
			const double want = fabs(w.g.dquery[row * 16 + d] - before[row * 16 + d]) * sqrt(squares);
			ck_assert_double_eq_tol(w.g.dquery_spread[row * 16 + d], want, 1e-12 * (1 + want));
		}
	}
	free(before);
	world_free(&w);
}
END_TEST

/* ---- comparison --------------------------------------------------------------------------------------------------------- */

enum { CELLS = 2 * 3 * 5 * 8 };

struct pair {
	double want[CELLS], plain[CELLS], got[CELLS];
	const double *spread;
	struct compare c;
};

static void pair_make(struct pair *p)
{
	struct random r;
	random_begin(&r, 1, 2);
	p->c = (struct compare){.name = "out", .dim = {2, 3, 5, 8}, .bf16 = true};
	p->spread = NULL;
	for (int i = 0; i < CELLS; i++) {
		p->want[i] = random_normal(&r);
		p->plain[i] = number_round(p->want[i] + 0.002 * random_normal(&r), true);
		p->got[i] = number_round(p->want[i] + 0.002 * random_normal(&r), true);
	}
}

static struct compare_result pair_judge(const struct pair *p)
{
	struct compare_result r;
	compare_tensor(&r, &p->c, p->got, p->want, p->plain, p->spread);
	ck_assert_int_eq(r.ok, r.text[0] == '\0');
	return r;
}

START_TEST(test_compare_accepts)
{
	struct pair p;
	pair_make(&p);
	ck_assert(pair_judge(&p).ok);
	p.want[3] = p.plain[3] = p.got[3] = -INFINITY;
	p.want[4] = p.plain[4] = p.got[4] = NAN;
	ck_assert(pair_judge(&p).ok);
}
END_TEST

static const struct {
	const char *name;
	int at;
	double put;
	const char *says;
} planted[] = {
	{"an error", 2 * 40 + 3 * 8 + 5, 4.5, "out[b 0][h 2][row 3][5]"},
	{"NaN", CELLS - 1, NAN, "out[b 1][h 2][row 4][7]"},
	{"inf", 0, INFINITY, "out[b 0][h 0][row 0][0]"},
};

START_TEST(test_compare_catches)
{
	struct pair p;
	pair_make(&p);
	p.got[planted[_i].at] = planted[_i].put;
	const struct compare_result r = pair_judge(&p);
	ck_assert_msg(!r.ok && strstr(r.text, planted[_i].says), "%s: %s", planted[_i].name, r.text);
}
END_TEST

START_TEST(test_compare_specials) /* wrong kinds of not-finite, and finite where it should not be */
{
	struct compare_result r;
	struct pair p;
	static const double wrong[][2] = {
		{NAN, 0}, {INFINITY, -INFINITY}, {NAN, INFINITY}, {-INFINITY, NAN}, {-INFINITY, -1e30}};
	pair_make(&p);
	for (int i = 0; i < 5; i++) {
		p.want[7] = p.plain[7] = wrong[i][0];
		p.got[7] = wrong[i][1];
		ck_assert(!pair_judge(&p).ok);
		compare_close(&r, &p.c, p.got, p.want, 1e9, 1);
		ck_assert(!r.ok && strstr(r.text, "row 0][7]"));
	}
}
END_TEST

START_TEST(test_compare_bound) /* the bound is 1.5 of the yardstick's largest error plus 2 ulp of the row */
{
	struct pair p;
	pair_make(&p);
	double largest = 0, magnitude = 0;
	for (int i = 0; i < CELLS; i++)
		largest = fmax(largest, fabs(p.plain[i] - p.want[i]));
	for (int d = 0; d < 8; d++)
		magnitude = fmax(magnitude, fabs(p.want[8 + d]));
	const double bound = 1.5 * largest + 2 * number_ulp(magnitude, true);
	p.got[9] = p.want[9] + 0.99 * bound;
	ck_assert(pair_judge(&p).ok);
	p.got[9] = p.want[9] + 1.01 * bound;
	const struct compare_result r = pair_judge(&p);
	ck_assert(!r.ok);
	ck_assert_double_eq_tol(r.bound, bound, 1e-12);
}
END_TEST

START_TEST(test_compare_spread) /* an element whose own rounding may do more than the yardstick's largest error */
{
	struct pair p;
	pair_make(&p);
	double spread[CELLS] = {0}, magnitude = 0;
	for (int d = 0; d < 8; d++)
		magnitude = fmax(magnitude, fabs(p.want[8 + d]));
	spread[9] = 3;
	p.spread = spread;
	const double bound = 3 * 3 * 0x1p-8 + 2 * number_ulp(magnitude, true);
	p.got[9] = p.want[9] + 0.99 * bound;
	ck_assert(pair_judge(&p).ok);
	p.got[9] = p.want[9] + 1.01 * bound;
	ck_assert(!pair_judge(&p).ok);
	p.got[9] = p.want[9];
	p.got[10] = p.want[10] + 0.99 * bound; /* of another element */
	ck_assert(!pair_judge(&p).ok);
}
END_TEST

START_TEST(test_compare_mean_square) /* an error too small for any element, but everywhere */
{
	struct pair p;
	pair_make(&p);
	for (int i = 0; i < CELLS; i++)
		p.got[i] = p.want[i] + (i % 2 ? 0.012 : -0.012);
	const struct compare_result r = pair_judge(&p);
	ck_assert_msg(!r.ok && strstr(r.text, "root mean square"), "%s", r.text);
}
END_TEST

START_TEST(test_compare_sum) /* each element may be off by its own spread, and by the yardstick's largest error */
{
	double want[4] = {100, 0.5, -3, 8}, plain[4] = {100.01, 0.5, -3, 8}, spread[4] = {10, 0.1, 0, 1}, got[4];
	const struct compare c = {.name = "dslope", .dim = {1, 1, 1, 4}, .bf16 = true, .floor = 0.001};
	for (int i = 0; i < 4; i++) {
		const double bound = 1.5 * (plain[0] - want[0]) + (1 / 128.0 + 0.001) * spread[i];
		struct compare_result r;
		memcpy(got, want, sizeof got);
		got[i] += 0.99 * bound;
		compare_sum(&r, &c, got, want, plain, spread);
		ck_assert_msg(r.ok, "%s", r.text);
		got[i] = want[i] - 1.01 * bound;
		compare_sum(&r, &c, got, want, plain, spread);
		ck_assert(!r.ok && strstr(r.text, "1 of 4"));
		got[i] = NAN;
		compare_sum(&r, &c, got, want, plain, spread);
		ck_assert(!r.ok);
	}
}
END_TEST

/* ---- layouts and the spelling of a case ---------------------------------------------------------------------------------- */

START_TEST(test_layout) /* every element has its own place inside the buffer, aligned as promised */
{
	static const int64_t sizes[][3] = {{2, 3, 5}, {1, 1, 1}, {1, 4, 1}, {3, 1, 7}, {2, 2, 0}};
	const enum layout_kind kind = (enum layout_kind)_i;
	for (int s = 0; s < 5; s++)
		for (int t = 0; t < TENSOR_COUNT; t++) {
			struct layout l = {
				.batch = sizes[s][0], .heads = sizes[s][1], .seq = sizes[s][2], .dim = 16, .bytes = 2};
			layout_make(&l, kind, (enum tensor_id)t);
			char *seen = calloc((size_t)l.elements + 1, 1);
			ck_assert_ptr_nonnull(seen);
			const bool shared = kind == LAYOUT_SHARED && (t == TENSOR_KEY || t == TENSOR_VALUE);
			for (int64_t b = 0; b < (shared && l.batch ? 1 : l.batch); b++)
				for (int64_t h = 0; h < l.heads; h++)
					for (int64_t q = 0; q < l.seq; q++) {
						const int64_t at = layout_index(&l, b, h, q);
						ck_assert_int_eq(layout_align(kind) == 16 ? at * 2 % 16 : 0, 0);
						for (int d = 0; d < 16; d++) {
							ck_assert_msg(at + d >= 0 && at + d < l.elements, "%s %s",
							              layout_names[kind], tensor_names[t]);
							ck_assert_int_eq(seen[at + d]++, 0);
						}
					}
			free(seen);
		}
}
END_TEST

START_TEST(test_case_spelling)
{
	struct check_case c = {.batch = 1, .heads_q = 2, .heads_kv = 2, .seqlen_q = 3, .seqlen_k = 4}, again = {0};
	struct diag d = {0};
	char text[CASE_TEXT_MAX], twice[CASE_TEXT_MAX];
	ck_assert_int_eq(case_parse(&c, "causal_d64:b2,h16/4,q4096,k0,huge,odd,seed7,planned", &d), 0);
	ck_assert_str_eq(c.spec, "causal_d64");
	ck_assert(c.batch == 2 && c.heads_q == 16 && c.heads_kv == 4 && c.seqlen_q == 4096 && c.seqlen_k == 0 &&
	          c.seed == 7 && c.planned);
	ck_assert(c.input == INPUT_HUGE && c.layout == LAYOUT_ODD);
	case_print(text, &c);
	ck_assert_str_eq(text, "causal_d64:b2,h16/4,q4096,k0,huge,odd,seed7,planned");
	ck_assert_int_eq(case_parse(&again, text, &d), 0);
	case_print(twice, &again);
	ck_assert_str_eq(text, twice);
	ck_assert_int_eq(case_parse(&c, "h8", &d), 0);
	ck_assert(c.heads_q == 8 && c.heads_kv == 8 && c.batch == 2);
	ck_assert_int_eq(case_parse(&c, "b3,lq16-0-33,lk8,whole", &d), 0);
	ck_assert(c.lengths[0] == 3 && c.length[0][1] == 0 && c.seqlen_q == 33 && c.lengths[1] == 1 && c.seqlen_k == 8);
	case_print(text, &c);
	ck_assert_str_eq(text, "causal_d64:b3,h8/8,q33,k8,huge,odd,seed7,planned,lq16-0-33,lk8,whole");
	ck_assert_int_eq(d.errors, 0);
	diag_free(&d);
}
END_TEST

START_TEST(test_case_refused)
{
	static const char *const bad[] = {"b",    "b-1",   "bx",   "h4/",    "q99999999999999999999",
	                                  "gaus", "b2;h3", "seed", "h4/2/1", "lq",
	                                  "lk3-", "lv3"};
	struct check_case c = {0};
	struct diag d = {0};
	ck_assert_int_eq(case_parse(&c, bad[_i], &d), -1);
	ck_assert_int_eq(d.errors, 1);
	ck_assert_ptr_nonnull(strstr(text_str(&d.text), "Parts are"));
	diag_free(&d);
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("reference");
	TCase *t = tcase_create("reference");
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_zero_scores);
	tcase_add_test(t, test_one_key);
	tcase_add_test(t, test_two_keys);
	tcase_add_test(t, test_empty_rows);
	tcase_add_test(t, test_no_keys);
	tcase_add_test(t, test_nan_stays_in_its_row);
	tcase_add_loop_test(t, test_weights_sum_to_one, 0, 8);
	tcase_add_loop_test(t, test_gradients, 0, 8);
	tcase_add_test(t, test_first_head);
	tcase_add_loop_test(t, test_lengths, 0, 2);
	tcase_add_loop_test(t, test_plain, 0, 4);
	suite_add_tcase(s, t);
	t = tcase_create("dropout");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, test_philox, 0, 3);
	tcase_add_loop_test(t, test_dropout_three_ways, 0, 6);
	tcase_add_loop_test(t, test_dropout_golden, 0, (int)(sizeof golden / sizeof *golden));
	tcase_add_loop_test(t, test_dropout_fraction, 0, 4);
	tcase_add_test(t, test_dropout_offset);
	tcase_add_test(t, test_dropout_after_sum);
	suite_add_tcase(s, t);
	t = tcase_create("numbers");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, test_number_round_trip, 0, 2);
	tcase_add_test(t, test_number_nearest);
	tcase_add_loop_test(t, test_inputs, 0, INPUT_COUNT);
	tcase_add_test(t, test_hard_inputs);
	suite_add_tcase(s, t);
	t = tcase_create("compare");
	tcase_add_test(t, test_compare_accepts);
	tcase_add_loop_test(t, test_compare_catches, 0, 3);
	tcase_add_test(t, test_compare_specials);
	tcase_add_test(t, test_dquery_spread);
	tcase_add_test(t, test_compare_bound);
	tcase_add_test(t, test_compare_spread);
	tcase_add_test(t, test_compare_mean_square);
	tcase_add_test(t, test_compare_sum);
	suite_add_tcase(s, t);
	t = tcase_create("case");
	tcase_add_loop_test(t, test_layout, 0, LAYOUT_COUNT);
	tcase_add_test(t, test_case_spelling);
	tcase_add_loop_test(t, test_case_refused, 0, 12);
	suite_add_tcase(s, t);
	return s;
}
