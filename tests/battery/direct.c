/* Direct tests of dropout's words: what the decisions of cells must satisfy, over many keys, degenerate ones too.
   direct [--quick|--deep] [--only WORDS]: some keys in seconds, all in a minute, all in larger grids in hours. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/battery/bytes.h"
#include "tests/battery/generator.h"

/* A family's verdict comes from its greatest |z| under Bonferroni's bound and from the sum of its z squared.
   All is deterministic; with some 10^4 verdicts a sound generator would fail one with a chance of 1%. */
static const double P_LEAST = 1e-6, SUM_Z_MOST = 6.5;

enum { WORDS = 8, BITS = 32, LANES = 16, PLANES = 20 };
typedef uint32_t lanes __attribute__((vector_size(4 * LANES)));

/* ---- verdicts ---- */

struct family {
	const char *name;
	double count, z_max, z2, z4;
	char where[64];
};
static struct {
	const char *key, *only;
	int verdicts, failed, listed, keys_failed;
	double worst_p, worst_sum;
	char worst[200], worst_squares[128];
} report = {.worst_p = 1};

static struct family family_new(const char *name) { return (struct family){.name = name}; }

static void family_add(struct family *f, double z, const char *what, int i, int j)
{
	f->count++;
	f->z2 += z * z;
	if (fabs(z) > fabs(f->z_max)) {
		f->z_max = z;
		snprintf(f->where, sizeof f->where, "%s %d,%d", what, i, j);
	}
}

static void family_judge(const struct family *f)
{
	if (f->count == 0)
		return;
	const double p = fmin(1, f->count * erfc(fabs(f->z_max) / sqrt(2)));
	/* Wilson and Hilferty's cube root makes a chi-square nearly normal. */
	const double n = f->count, spread = 2 / (9 * n);
	const double sum = (cbrt(f->z2 / n) - (1 - spread)) / sqrt(spread);
	report.verdicts++;
	if (p < report.worst_p) {
		report.worst_p = p;
		snprintf(report.worst, sizeof report.worst, "%s, %s (%s)", report.key, f->name, f->where);
	}
	if (fabs(sum) > fabs(report.worst_sum)) {
		report.worst_sum = sum;
		snprintf(report.worst_squares, sizeof report.worst_squares, "%s, %s", report.key, f->name);
	}
	if (p >= P_LEAST && fabs(sum) <= SUM_Z_MOST)
		return;
	report.failed++;
	if (report.listed++ < 3)
		printf("FAIL %-26s %-14s p %.1e at %s (z %.1f), sum of squares z %.1f of %.0f\n", report.key, f->name,
		       p, f->where, f->z_max, sum, n);
}

/* ---- ones per bit position ---- */

static inline void add_carry(lanes *sum, lanes *carry, lanes a, lanes b)
{
	const lanes s = *sum, u = s ^ a;
	*carry = (s & a) | (u & b);
	*sum = u ^ b;
}

/* XOR of up to four arrays, the second turned left. */
struct terms {
	const uint32_t *at[4];
	int turn;
};

static inline lanes terms_load(const struct terms *t, size_t i)
{
	lanes sum = {0}, v;
	for (int j = 0; j < 4 && t->at[j]; j++) {
		memcpy(&v, t->at[j] + i, sizeof v);
		if (j == 1 && t->turn)
			v = v << t->turn | v >> (32 - t->turn);
		sum ^= v;
	}
	return sum;
}

/* Adds to ones[b] how often bit b is set in n words; n is a multiple of 8*LANES and at most LANES << PLANES. */
static void ones_count(uint32_t ones[BITS], struct terms t, size_t n)
{
	lanes plane[PLANES] = {{0}};
	for (size_t i = 0; i < n; i += (size_t)8 * LANES) {
		lanes twos[4], fours[2], carry;
		for (int j = 0; j < 4; j++)
			add_carry(&plane[0], &twos[j], terms_load(&t, i + (size_t)2 * j * LANES),
			          terms_load(&t, i + (size_t)(2 * j + 1) * LANES));
		add_carry(&plane[1], &fours[0], twos[0], twos[1]);
		add_carry(&plane[1], &fours[1], twos[2], twos[3]);
		add_carry(&plane[2], &carry, fours[0], fours[1]);
		for (int p = 3; p < PLANES; p++) {
			const lanes old = plane[p];
			plane[p] ^= carry;
			carry &= old;
			if (p & 1) {
				uint32_t any = 0;
				for (int l = 0; l < LANES; l++)
					any |= carry[l];
				if (!any)
					break;
			}
		}
	}
	for (int p = 0; p < PLANES && n >> p; p++)
		for (int l = 0; l < LANES; l++)
			for (int b = 0; b < BITS; b++)
				ones[b] += (plane[p][l] >> b & 1) << p;
}

static void family_ones(struct family *f, struct terms t, size_t n, double p, const char *what, int i, int j)
{
	uint32_t ones[BITS] = {0};
	ones_count(ones, t, n);
	const int half = t.turn == 16 && t.at[0] == t.at[1]; /* each pair once */
	for (int b = 0; b < (half ? 16 : BITS); b++)
		family_add(f, (ones[b] - n * p) / sqrt(n * p * (1 - p)), what, i, j * 100 + b);
}

/* ---- grids of groups ---- */

/* Words of major x minor groups; a margin of majors after them, so that lags stay inside. */
struct grid {
	unsigned key[4];
	uint32_t first_q, first_k, step_q, step_k;
	int major, minor, q_is_minor;
	uint32_t *word[WORDS];
};

static void grid_fill(struct grid *g)
{
	const unsigned key[4] = {g->key[0], g->key[1], g->key[2], g->key[3]};
	for (int a = 0; a < g->major; a++)
		for (int b = 0; b < g->minor; b++) {
			unsigned w[WORDS];
			const uint32_t q = g->first_q + (uint32_t)(g->q_is_minor ? b : a) * g->step_q;
			const uint32_t k = g->first_k + (uint32_t)(g->q_is_minor ? a : b) * g->step_k;
			group_words(w, key, q, k);
			for (int i = 0; i < WORDS; i++)
				g->word[i][(size_t)a * (size_t)g->minor + (size_t)b] = w[i];
		}
}

static size_t grid_size(const struct grid *g) { return (size_t)g->major * (size_t)g->minor; }

static void *alloc(size_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
	if (!p) {
		fputs("error: out of memory\n", stderr);
		exit(3);
	}
	return p;
}

/* How often each u was seen at each bit position. */
typedef uint32_t byte_counts[BITS][256];

static void bytes_count(byte_counts seen, const unsigned word[WORDS])
{
	uint8_t u[BITS];
	words_bytes(u, word);
	for (int b = 0; b < BITS; b++)
		seen[b][u[b]]++;
}

/* n numbers at each position: chi-square of 256 values, made normal. */
static void bytes_add(struct family *f, byte_counts seen, double n, int row)
{
	for (int b = 0; b < BITS; b++) {
		double chi = 0;
		for (int v = 0; v < 256; v++)
			chi += (seen[b][v] - n / 256) * (seen[b][v] - n / 256) / (n / 256);
		const double spread = 2 / (9 * 255.0);
		family_add(f, (cbrt(chi / 255) - (1 - spread)) / sqrt(spread), "row,position", row, b);
	}
}

/* u of the cells at each bit position is uniform in each row by itself: a row whose factor repeats would not show among others. */
static void judge_rows(int rows, int log_n)
{
	struct family f = family_new("every row");
	static byte_counts seen;
	unsigned key[4], word[WORDS];
	head_key(key, 99, 1, 0);
	for (int row = 0; row < rows; row++) {
		memset(seen, 0, sizeof seen);
		for (unsigned column = 0; column < 1u << log_n; column++) {
			group_words(word, key, (unsigned)row, column);
			bytes_count(seen, word);
		}
		bytes_add(&f, seen, 1 << log_n, row);
	}
	report.key = "one head";
	family_judge(&f);
}

/* u of the cells at each bit position is uniform. */
static void judge_bytes(const struct grid *g)
{
	struct family f = family_new("bytes"), bits = family_new("bits");
	static byte_counts seen;
	memset(seen, 0, sizeof seen);
	const size_t n = grid_size(g);
	for (size_t i = 0; i < n; i++) {
		unsigned word[WORDS];
		for (int j = 0; j < WORDS; j++)
			word[j] = g->word[j][i];
		bytes_count(seen, word);
	}
	bytes_add(&f, seen, (double)n, 0);
	for (int i = 0; i < WORDS; i++)
		family_ones(&bits, (struct terms){{g->word[i]}, 0}, n, 0.5, "word", i, 0);
	family_judge(&f);
	family_judge(&bits);
}

/* Decisions of T of 256, as the kernels make them. */
static void keep_make(uint32_t *kept, const struct grid *g, int t)
{
	const size_t n = grid_size(g);
	memset(kept, 0, n * sizeof *kept);
	for (int j = 0; j < WORDS; j++)
		for (size_t i = 0; i < n; i++)
			kept[i] = t >> j & 1 ? kept[i] | g->word[j][i] : kept[i] & g->word[j][i];
}

/* Decisions x and y of chance p: the covariance, from the ones of each and of their XOR. */
static void family_covariance(struct family *f, const uint32_t *x, const uint32_t *y, int turn, size_t n, double p,
                              int i, int j)
{
	uint32_t in_x[BITS] = {0}, in_y[BITS] = {0}, in_one[BITS] = {0};
	ones_count(in_x, (struct terms){{x}, 0}, n);
	ones_count(in_y, (struct terms){{y}, 0}, n);
	ones_count(in_one, (struct terms){{x, y}, turn}, n);
	for (int b = 0; b < (turn == 16 ? 16 : BITS); b++) {
		const double both = in_x[b] + (double)in_y[(b + BITS - turn) % BITS];
		family_add(f, ((both - in_one[b]) / 2 - p * both + n * p * p) / (sqrt((double)n) * p * (1 - p)),
		           "T,lag", i, j * 100 + b);
	}
}

/* The fraction kept at every bit position, and every two positions of a group decide independently. */
static void judge_keep(const struct grid *g)
{
	static const int chances[] = {13, 26, 51, 128, 179, 205, 230, 243};
	uint32_t *kept = alloc(grid_size(g) * 4);
	for (size_t c = 0; c < sizeof chances / sizeof *chances; c++) {
		struct family fraction = family_new("keep fraction"), pairs = family_new("keep pairs"),
			      lag = family_new("keep lags");
		const int t = chances[c];
		const double p = t / 256.0;
		keep_make(kept, g, t);
		family_ones(&fraction, (struct terms){{kept}, 0}, grid_size(g), p, "T", t, 0);
		for (int turn = 1; turn <= 16; turn++)
			family_covariance(&pairs, kept, kept, turn, grid_size(g), p, t, turn);
		for (int by = 1; by <= g->major / 2; by *= 2) {
			const size_t shift = (size_t)by * (size_t)g->minor;
			family_covariance(&lag, kept, kept + shift, 0, grid_size(g) - shift, p, t, by);
		}
		family_judge(&fraction);
		family_judge(&pairs);
		family_judge(&lag);
	}
	free(kept);
}

/* Every two of the 256 bits of a group agree in half of the groups. */
static void judge_within(const struct grid *g)
{
	struct family f = family_new("within");
	for (int i = 0; i < WORDS; i++)
		for (int j = i; j < WORDS; j++)
			for (int turn = i == j; turn < (i == j ? 17 : 32); turn++)
				family_ones(&f, (struct terms){{g->word[i], g->word[j]}, turn}, grid_size(g), 0.5,
				            "words", 10 * i + j, turn);
	family_judge(&f);
}

/* A group and another one some majors away: every two words at the same position, each word at every turn. */
static void judge_lags(const struct grid *g, int all)
{
	struct family f = family_new(g->q_is_minor ? "lags in k" : "lags in q");
	for (int by = 1; by <= g->major / 2; by *= 2)
		for (int i = 0; i < WORDS; i++)
			for (int j = 0; j < WORDS; j++)
				for (int turn = 0; turn < (all || i == j ? 32 : 1); turn++) {
					const size_t shift = (size_t)by * (size_t)g->minor;
					family_ones(&f, (struct terms){{g->word[i], g->word[j] + shift}, turn},
					            grid_size(g) - shift, 0.5, "lag,word", by, 100 * i + j);
				}
	family_judge(&f);
}

/* The four corners of a rectangle: their XOR is balanced. */
static void judge_rectangles(const struct grid *g)
{
	struct family f = family_new("rectangles");
	const size_t half = (size_t)g->minor / 2;
	for (int i = 1; i <= g->major / 2; i *= 2)
		for (size_t j = 1; j <= half; j *= 2)
			for (int w = 0; w < WORDS; w++) {
				uint32_t ones[BITS] = {0};
				double n = 0;
				for (int a = 0; a + i < g->major; a += 4, n += (double)half) {
					const uint32_t *r0 = g->word[w] + (size_t)a * (size_t)g->minor,
						       *r1 = r0 + (size_t)i * (size_t)g->minor;
					ones_count(ones, (struct terms){{r0, r1, r0 + j, r1 + j}, 0}, half);
				}
				for (int b = 0; b < BITS; b++)
					family_add(&f, (ones[b] - n / 2) / sqrt(n / 4), "lags,word", i * 10000 + (int)j,
					           100 * w + b);
			}
	family_judge(&f);
}

/* No single major is weak, nor alike to one nearby: ones per major, word and bit; only the squares' sum is sharp. */
static void judge_majors(const struct grid *g)
{
	static const int lags[] = {0, 1, 2, 3, 4, 8, 64};
	for (size_t l = 0; l < sizeof lags / sizeof *lags; l++) {
		char name[32];
		snprintf(name, sizeof name, "%s, lag %d", g->q_is_minor ? "columns" : "rows", lags[l]);
		struct family f = family_new(name);
		for (int a = 0; a + lags[l] < g->major; a++)
			for (int w = 0; w < WORDS; w++) {
				const uint32_t *row = g->word[w] + (size_t)a * (size_t)g->minor;
				family_ones(
					&f,
					(struct terms){{row, lags[l] ? row + (size_t)lags[l] * (size_t)g->minor : NULL},
				                       0},
					(size_t)g->minor, 0.5, "major,word", a, 100 * w);
			}
		family_judge(&f);
		/* The same along the minor: shifted by a lag within each major. */
		if (!lags[l])
			continue;
		snprintf(name, sizeof name, "%s, along %d", g->q_is_minor ? "columns" : "rows", lags[l]);
		f = family_new(name);
		for (int a = 0; a + 1 < g->major; a++)
			for (int w = 0; w < WORDS; w++) {
				const uint32_t *row = g->word[w] + (size_t)a * (size_t)g->minor;
				family_ones(&f, (struct terms){{row, row + lags[l]}, 0}, (size_t)g->minor - 128, 0.5,
				            "major,word", a, 100 * w);
			}
		family_judge(&f);
	}
}

/* All lags of a small window of q and k, the words' bits taken together. */
static void judge_window(const struct grid *g)
{
	struct family f = family_new("window");
	const int rows = g->major / 2 < 64 ? g->major / 2 : 64;
	for (int w = 4; w < WORDS; w++)
		for (int a = 0; a < 32; a++)
			for (int b = a ? -32 : 1; b <= 32; b++) {
				double ones = 0;
				const size_t n = (size_t)g->minor * (size_t)rows;
				const uint64_t far = (uint64_t)((int64_t)a * g->minor + b);
				const uint32_t *x = g->word[w], *y = x + far;
				uint64_t sum = 0;
				for (size_t i = 0; i < n; i++)
					sum += (unsigned)__builtin_popcount(x[i] ^ y[i]);
				ones = (double)sum;
				family_add(&f, (ones - n * 16.0) / sqrt(n * 8.0), "lags", a, b);
			}
	family_judge(&f);
}

/* No bits of a group, of the next one in k and of the next one in q have an XOR that is always the same: the rank of
   as many groups' bits, and of a column of ones, over GF(2). */
static void judge_rank(const struct grid *g)
{
	enum { COLUMNS = 3 * WORDS * BITS + 1, ROWS = COLUMNS + 40, WIDE = (COLUMNS + 63) / 64 };
	static uint64_t m[ROWS][WIDE];
	struct family f = family_new("rank");
	for (int apart = 1; apart <= 64; apart *= 8) { /* the groups that are taken: along a row, and across */
		memset(m, 0, sizeof m);
		for (int r = 0; r < ROWS; r++) {
			const size_t near =
				apart == 64 ? (size_t)r % 100 * (size_t)g->minor + (size_t)r / 100 * 2
					    : (size_t)(r * apart / 900) * (size_t)g->minor + (size_t)(r * apart % 900);
			const size_t at[3] = {near, near + 1, near + (size_t)g->minor};
			for (int i = 0; i < 3 * WORDS; i++)
				m[r][i / 2] |= (uint64_t)g->word[i % WORDS][at[i / WORDS]] << 32 * (i & 1);
			m[r][WIDE - 1] |= 1;
		}
		int rank = 0;
		for (int c = 0; c < COLUMNS; c++) {
			int r = rank;
			while (r < ROWS && !(m[r][c / 64] >> c % 64 & 1))
				r++;
			if (r == ROWS)
				continue;
			for (int i = 0; i < WIDE; i++) {
				const uint64_t x = m[r][i];
				m[r][i] = m[rank][i];
				m[rank][i] = x;
			}
			for (r = rank + 1; r < ROWS; r++)
				if (m[r][c / 64] >> c % 64 & 1)
					for (int i = c / 64; i < WIDE; i++)
						m[r][i] ^= m[rank][i];
			rank++;
		}
		family_add(&f, rank < COLUMNS ? 20 : 0, "rank, of", rank, COLUMNS);
	}
	report.verdicts++;
	if (f.z_max > 0) {
		f.z2 = f.count;
		family_judge(&f);
	}
}

static int compare_words(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

/* Equal words are as many as chance makes them; equal pairs of words are none. */
static void judge_collisions(const struct grid *g)
{
	struct family f = family_new("collisions");
	const size_t n = grid_size(g);
	uint64_t *sorted = alloc(n * sizeof *sorted);
	for (int w = 0; w < WORDS; w += 2) {
		for (int both = 0; both < 2; both++) {
			for (size_t i = 0; i < n; i++)
				sorted[i] = g->word[w][i] | (both ? (uint64_t)g->word[w + 1][i] << 32 : 0);
			qsort(sorted, n, sizeof *sorted, compare_words);
			double equal = 0;
			for (size_t i = 1; i < n; i++)
				equal += sorted[i] == sorted[i - 1];
			const double expected = ldexp((double)n * (double)(n - 1) / 2, both ? -64 : -32);
			/* The square root makes a Poisson number nearly normal; where hardly any are expected only many count. */
			if (expected > 20)
				family_add(&f, 2 * (sqrt(equal + 0.375) - sqrt(expected)), "word", w, both);
			else if (equal > expected + 7)
				family_add(&f, 20, "word", w, both);
		}
	}
	free(sorted);
	family_judge(&f);
}

/* One bit of q, k, or the key flipped: each of the 256 bits flips half of the time. */
static void judge_avalanche(const unsigned key[4], int log_n, int key_random)
{
	struct family f = family_new("avalanche");
	const size_t n = (size_t)1 << log_n;
	uint32_t *diff[WORDS];
	for (int w = 0; w < WORDS; w++)
		diff[w] = alloc(n * 4);
	for (int in = 0; in < 2 * 25 + (key_random ? 128 : 0); in++) {
		uint64_t state = 0x9E3779B97F4A7C15u * (uint64_t)(in + 1);
		for (size_t i = 0; i < n; i++) {
			state = state * 6364136223846793005u + 1442695040888963407u;
			const uint32_t q = (uint32_t)(state >> 39), k = (uint32_t)(state >> 14) & 0x1FFFFFF;
			unsigned x[WORDS], y[WORDS], one[4], other[4];
			for (int j = 0; j < 4; j++)
				one[j] = other[j] =
					key[j] ^ (key_random ? (uint32_t)(state >> 7 * j) * 0x9E3779B1u : 0);
			if (in >= 50)
				other[(in - 50) / 32] ^= 1u << (in - 50) % 32;
			group_words(x, one, q, k);
			group_words(y, other, in < 25 ? q ^ 1u << in : q,
			              in >= 25 && in < 50 ? k ^ 1u << (in - 25) : k);
			for (int w = 0; w < WORDS; w++)
				diff[w][i] = x[w] ^ y[w];
		}
		for (int w = 0; w < WORDS; w++)
			family_ones(&f, (struct terms){{diff[w]}, 0}, n, 0.5, "input bit,output", in, 100 * w);
	}
	for (int w = 0; w < WORDS; w++)
		free(diff[w]);
	family_judge(&f);
}

/* Heads, seeds and offsets that differ by one bit or by one: the same groups are unrelated. */
static void judge_relatives(int log_n)
{
	struct family f = family_new("relatives");
	const int side = 1 << log_n / 2;
	struct grid g = {.major = side, .minor = side, .step_q = 1, .step_k = 1}, h = g;
	for (int w = 0; w < WORDS; w++) {
		g.word[w] = alloc(grid_size(&g) * 4);
		h.word[w] = alloc(grid_size(&g) * 4);
	}
	for (int bit = 0; bit < 160; bit++) {
		const unsigned long long seed = 42, offset = 1000;
		head_key(g.key, seed, offset, 5);
		grid_fill(&g);
		head_key(h.key, seed ^ (bit < 64 ? 1ull << bit : 0), offset ^ (bit >= 64 && bit < 128 ? 1ull << (bit - 64) : 0),
		         5 ^ (bit >= 128 ? 1u << (bit - 128) : 0));
		grid_fill(&h);
		for (int w = 0; w < WORDS; w++)
			family_ones(&f, (struct terms){{g.word[w], h.word[w]}, 0}, grid_size(&g), 0.5, "input bit,word",
			            bit, 100 * w);
	}
	for (int w = 0; w < WORDS; w++) {
		free(g.word[w]);
		free(h.word[w]);
	}
	report.key = "heads, seeds, offsets";
	family_judge(&f);
}

static int wanted(const char *name) { return !report.only || strstr(report.only, name); }

static void judge_grid(struct grid *g, int deep)
{
	for (int w = 0; w < WORDS; w++) {
		g->word[w] = alloc(grid_size(g) * 4 + (size_t)64 * (size_t)g->minor * 4);
		memset(g->word[w] + grid_size(g), 0, (size_t)64 * (size_t)g->minor * 4);
	}
	for (g->q_is_minor = 0; g->q_is_minor < 2; g->q_is_minor++) {
		grid_fill(g);
		if (wanted("lags"))
			judge_lags(g, deep);
		if (wanted("majors"))
			judge_majors(g);
		if (wanted("window"))
			judge_window(g);
		if (g->q_is_minor && !deep)
			break;
		if (wanted("bytes"))
			judge_bytes(g);
		if (wanted("keep"))
			judge_keep(g);
		if (wanted("within"))
			judge_within(g);
		if (wanted("rectangles"))
			judge_rectangles(g);
		if (wanted("rank"))
			judge_rank(g);
		if (wanted("collisions"))
			judge_collisions(g);
	}
	for (int w = 0; w < WORDS; w++)
		free(g->word[w]);
}

int main(int argc, char **argv)
{
	int deep = 0, quick = 0;
	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], "--deep"))
			deep = 1;
		else if (!strcmp(argv[i], "--quick"))
			quick = 1;
		else if (!strcmp(argv[i], "--only") && i + 1 < argc)
			report.only = argv[++i];
		else {
			fputs("usage: direct [--quick|--deep] [--only 'lags majors window bytes keep within rectangles rank collisions avalanche relatives every row']\n",
			      stderr);
			return 2;
		}
	static const uint32_t plain[][4] = {
		{0, 0, 0, 0},
		{~0u, ~0u, ~0u, ~0u},
		{1, 1, 1, 1},
		{2, 4, 8, 16},
		{1u << 31, 1u << 31, 1u << 31, 1u << 31},
		{1u << 16, 1u << 16, 1u << 16, 1u << 16},
		{0, 0, 0, ~0u},
		{0, 0, ~0u, 0},
		{0, ~0u, 0, 0},
		{~0u, 0, 0, 0},
		{0xAAAAAAAAu, 0x55555555u, 0xAAAAAAAAu, 0x55555555u},
		{0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF},
		{0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u},
		{12345, 678, 0, 1},
		{0, 1, 0x9E3779B9u, 0x61C88647u},
	};
	/* Where a grid begins and in what steps it goes: q, k, q, k. */
	static const uint32_t origins[][4] = {{0, 0, 1, 1},   {1000000, 3000000, 1, 1}, {0, 0, 8, 4},
	                                      {0, 5, 256, 1}, {7, 0, 1, 1024},          {0, 0, 32768, 32768}};
	enum { ORIGINS = sizeof origins / sizeof *origins };
	const int degenerate = sizeof plain / sizeof *plain, keys = degenerate + (deep ? 16 : quick ? 1 : 5);
	char name[64];
	report.key = name;
	/* Of the key of zeros the first rows are nearly zero, which shows where a grid has few rows more. */
	for (int i = quick; i < keys; i += quick ? 3 : 1)
		for (int o = 0; o < (deep ? ORIGINS : 1); o++) {
			const int at = deep ? o : (i + i / ORIGINS) % ORIGINS;
			struct grid g = {.first_q = origins[at][0],
			                 .first_k = origins[at][1],
			                 .step_q = origins[at][2],
			                 .step_k = origins[at][3],
			                 .major = deep    ? 1024
			                          : quick ? 256
			                                  : 512,
			                 .minor = deep ? 2048 : 1024};
			if (i < degenerate) {
				memcpy(g.key, plain[i], sizeof g.key);
				snprintf(name, sizeof name, "plain key %d, grid %d", i, at);
			} else {
				head_key(g.key, (unsigned long long)(i - degenerate) * 77777, (unsigned)i, (unsigned)i & 3);
				snprintf(name, sizeof name, "key %d, grid %d", i - degenerate, at);
			}
			judge_grid(&g, deep);
			if (wanted("avalanche") && o == 0) {
				const int log_n = deep ? 18 : quick ? 12 : 14;
				judge_avalanche(g.key, log_n, 0);
				judge_avalanche(g.key, log_n, 1);
			}
			if (report.listed > 3)
				printf("     %-26s %d failed in all\n", name, report.listed);
			report.keys_failed += report.listed > 0;
			report.listed = 0;
			if (report.keys_failed >= 4)
				goto end;
		}
	if (wanted("relatives"))
		judge_relatives(deep ? 18 : quick ? 12 : 14);
	if (wanted("every row"))
		judge_rows(deep ? 1 << 20 : quick ? 1 << 10 : 1 << 14, deep ? 14 : 12);
end:
	printf("%s: %d verdicts, %d failed; least p %.1e: %s; squares' sum farthest off by z %.1f: %s\n", GENERATOR,
	       report.verdicts, report.failed, report.worst_p, report.worst, report.worst_sum, report.worst_squares);
	return report.failed != 0;
}
