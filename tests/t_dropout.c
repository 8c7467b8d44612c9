/* Dropout: templates/dropout.h compiled for the host, against the definition and against words that are frozen. */
#include <check.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gen/embed.h"
#include "tests/random_expr.h"

/* Check notes every assertion that is passed; the loops over grids pass millions. */
#define must(condition, ...)                       \
	do {                                       \
		if (!(condition))                  \
			ck_abort_msg(__VA_ARGS__); \
	} while (0)

static void add_template(struct text *out, const char *name)
{
	size_t len;
	const char *bytes = embed_find(&len, name);
	ck_assert_ptr_nonnull(bytes);
	text_add(out, bytes, len);
}

/* Compiles C text with the host's compiler so that signed overflow traps, and loads it. */
static void *host_load(const struct text *source)
{
	const char *tmp = getenv("TMPDIR"), *cc = getenv("CC");
	char dir[512], path[600], command[2048];
	snprintf(dir, sizeof dir, "%s/fagen-test-XXXXXX", tmp ? tmp : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/p.c", dir);
	FILE *file = fopen(path, "w");
	ck_assert_ptr_nonnull(file);
	ck_assert_uint_eq(fwrite(source->data, 1, source->len, file), source->len);
	ck_assert_int_eq(fclose(file), 0);
	snprintf(
		command, sizeof command,
		"%s -std=c11 -O1 -Wall -Wextra -Werror -Wfatal-errors -Wno-unused-parameter -Wno-unknown-pragmas -DDEVICE='static inline' "
		"-fsanitize=undefined -fsanitize-undefined-trap-on-error -fno-sanitize=vptr -fPIC -shared -o %s/p.so -x c %s",
		cc ? cc : "cc", dir, path);
	const int rc = system(command);
	unlink(path);
	snprintf(path, sizeof path, "%s/p.so", dir);
	void *so = rc == 0 ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
	unlink(path);
	rmdir(dir);
	ck_assert_int_eq(rc, 0);
	ck_assert_ptr_nonnull(so);
	return so;
}

static void find(void *function, void *so, const char *format, int i)
{
	char name[64];
	snprintf(name, sizeof name, "t%d_%s", i, format);
	void *symbol = dlsym(so, name);
	ck_assert_ptr_nonnull(symbol);
	memcpy(function, &symbol, sizeof symbol);
}

/* Philox 4x32, from its paper: two 32x32 products, halves exchanged, the key bumped between rounds. */
static void philox_plain(uint32_t out[4], const uint32_t in[4], uint64_t seed)
{
	uint32_t c[4] = {in[0], in[1], in[2], in[3]}, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
	for (int i = 0; i < 10; i++) {
		const uint64_t a = (uint64_t)c[0] * 3528531795u, b = (uint64_t)c[2] * 3449720151u;
		const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1,
		                          (uint32_t)a};
		memcpy(c, next, sizeof c);
		k0 += 2654435769u;
		k1 += 3144134277u;
	}
	memcpy(out, c, sizeof c);
}

/* x with its upper bits added, without carries, to those `width` below. */
static uint32_t fold_plain(uint32_t x, int width) { return x ^ (x >> width); }

/* The eight words that cells share, from their head's key and their groups of rows and of keys. */
static void words_plain(uint32_t word[8], const uint32_t key[4], uint32_t group_q, uint32_t group_k)
{
	/* Two words of which each needs a row or a column only, and four that have both. */
	const uint32_t row = UINT32_C(2246822519) * group_q + key[1], column = UINT32_C(2654435761) * group_k + key[0];
	const uint32_t strong = fold_plain(row, 16) * UINT32_C(739982445) + key[2], weak = row * UINT32_C(695872825) + (key[3] ^ (key[2] >> 15));
	uint32_t x[4];
	x[0] = fold_plain(column * (strong | 1) + weak, 16);
	x[1] = fold_plain(x[0] * x[0] + strong, 16);
	x[2] = fold_plain(x[1] * (strong | 1) + x[0], 16);
	x[3] = x[2] * x[2] + x[1];
	x[3] = x[3] % 65536 * 65536 + x[3] / 65536;
	/* product of: which two, or which one and a constant; and what is added */
	static const struct {
		int left, right, more;
		uint32_t constant;
	} of[8] = {{3, -1, 0, 3432918353}, {2, -1, 0, 461845907}, {0, 3, 2, 0}, {1, 3, 2, 0}, {2, 3, 0, 0}, {0, 1, 3, 0}, {1, 2, 3, 0}, {0, 2, 1, 0}};
	static const int width[8] = {16, 16, 15, 14, 14, 15, 13, 13};
	for (int i = 0; i < 8; i++) {
		const uint32_t factor = of[i].right < 0 ? of[i].constant : x[of[i].right];
		word[i] = fold_plain(x[of[i].left] * factor + x[of[i].more], width[i]);
	}
}

/* The eight bits of a cell, one from each word, are a number X; the cell is kept when X + T carries out of eight bits. */
static bool keep_plain(int keep_256, uint64_t seed, uint64_t offset, uint32_t head, int q, int k)
{
	unsigned x = 0;
	const int bit = 8 * (q % 16 / 8 * 2 + k % 2) + 7 - k / 8 % 8;
	const uint32_t counter[4] = {head, (uint32_t)offset, (uint32_t)(offset >> 32), 0};
	uint32_t key[4], word[8];
	philox_plain(key, counter, seed);
	words_plain(word, key, (uint32_t)(q / 16 * 8 + q % 8), (uint32_t)(k / 64 * 4 + k / 2 % 4));
	for (int i = 0; i < 8; i++)
		x |= (word[i] >> bit & 1) << i;
	return keep_256 == 256 || x + (unsigned)keep_256 >= 256;
}

struct dropout {
	int *keep_256;
	unsigned (*bits)(uint64_t seed, uint64_t offset, unsigned head, int q, int k);
	int (*keep)(uint64_t seed, uint64_t offset, unsigned head, int q, int k);
};

static void *dropout_load(struct dropout *d)
{
	struct text source = {0};
	text_puts(&source, "#include <stdbool.h>\nint t0_keep_256;\n#define KEEP_256 t0_keep_256\n"
	                   "DEVICE unsigned long long mul_wide(unsigned a, unsigned b) { return (unsigned long long)a * b; }\n");
	add_template(&source, "dropout.h");
	text_puts(&source, "unsigned t0_bits(unsigned long s, unsigned long o, unsigned h, int q, int k)\n"
	                   "{ return dropout_bits(dropout_head(s, o, h), q, k); }\n"
	                   "int t0_keep(unsigned long s, unsigned long o, unsigned h, int q, int k)\n"
	                   "{ return dropout_keep(dropout_head(s, o, h), q, k); }\n");
	void *so = host_load(&source);
	text_free(&source);
	find(&d->keep_256, so, "keep_256", 0);
	find(&d->bits, so, "bits", 0);
	find(&d->keep, so, "keep", 0);
	return so;
}

START_TEST(philox_known_answers) /* of the generator's authors, 10 rounds (Random123, kat_vectors) */
{
	static const struct {
		uint32_t in[4];
		uint64_t seed;
		uint32_t out[4];
	} known[] = {
		{{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{{~0u, ~0u, ~0u, ~0u}, ~UINT64_C(0), {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
	};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		uint32_t out[4];
		philox_plain(out, known[i].in, known[i].seed);
		ck_assert_mem_eq(out, known[i].out, sizeof out);
	}
}
END_TEST

START_TEST(dropout_definition)
{
	static const int keeps[] = {1, 2, 77, 128, 230, 255, 256};
	struct dropout d;
	struct grove g = {.state = 5};
	void *so = dropout_load(&d);
	for (size_t i = 0; i < sizeof keeps / sizeof *keeps; i++) {
		long kept = 0;
		*d.keep_256 = keeps[i];
		for (int n = 0; n < 20000; n++) {
			const uint64_t seed =
				grove_random(&g, UINT64_C(1) << 31) << 33 | grove_random(&g, UINT64_C(1) << 31);
			const uint64_t offset = grove_random(&g, UINT64_C(1) << 40);
			const uint32_t head = (uint32_t)grove_random(&g, 1000);
			const int shift = (int)grove_random(&g, 24);
			const int q = (int)(grove_random(&g, UINT64_C(1) << 31) >> shift),
				  k = (int)(grove_random(&g, UINT64_C(1) << 31) >> shift);
			const bool want = keep_plain(keeps[i], seed, offset, head, q, k);
			must(d.keep(seed, offset, head, q, k) == want,
			     "keep %d, cell %d %d", keeps[i], q, k);
			kept += want;
		}
		ck_assert_int_lt(labs(kept - 20000L * keeps[i] / 256), 400); /* more than five standard deviations */
	}
	dlclose(so);
}
END_TEST

/* Frozen: these words are part of the language. */
static const struct {
	int keep_256;
	uint64_t seed, offset;
	uint32_t head;
	int q, k;
	uint32_t bits;
} golden[] = {
#include "tests/dropout_golden.def"
};

START_TEST(dropout_golden)
{
	struct dropout d;
	void *so = dropout_load(&d);
	for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
		*d.keep_256 = golden[i].keep_256;
		const uint32_t bits = d.bits(golden[i].seed, golden[i].offset, golden[i].head, golden[i].q, golden[i].k);
		must(bits == golden[i].bits, "row %zu: got 0x%08x", i, bits);
		const int q0 = golden[i].q / 16 * 16 + golden[i].q % 8,
			  k0 = golden[i].k / 64 * 64 + golden[i].k % 8 / 2 * 2;
		for (int n = 0; n < 32; n++) { /* each bit belongs to the cell that the definition says */
			const int q = q0 + 8 * (n / 16), k = k0 + n % 2 + 8 * (n / 2 % 8);
			const int bit = 8 * (2 * (n / 16) + n % 2) + 7 - n / 2 % 8;
			ck_assert_int_eq(golden[i].bits >> bit & 1, keep_plain(golden[i].keep_256, golden[i].seed,
			                                                       golden[i].offset, golden[i].head, q, k));
		}
	}
	dlclose(so);
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("dropout");
	TCase *t = tcase_create("dropout");
	tcase_set_timeout(t, 180);
	tcase_add_test(t, philox_known_answers);
	tcase_add_test(t, dropout_definition);
	tcase_add_test(t, dropout_golden);
	suite_add_tcase(s, t);
	return s;
}
