/* wgmma: products of a warpgroup and of a warp. Those of a warpgroup are done in their order, at a random time after all its threads have
 * issued one. */
#include "tests/emulate/engine.h"

#include <stdlib.h>
#include <string.h>

enum { M = 64, K = 16, CHUNK_ELEMENTS = CHUNK / 2 };

static float half_decode(uint16_t bits)
{
	__extension__ _Float16 x;
	memcpy(&x, &bits, sizeof x);
	return (float)x;
}

/* Floats of all 16-bit patterns. */
static const float *decoded(bool bf16)
{
	static float table[2][65536];
	static bool made;
	for (unsigned i = 0; !made && i < 65536; i++) {
		const uint32_t bits = i << 16;
		memcpy(&table[1][i], &bits, sizeof bits);
		table[0][i] = half_decode((uint16_t)i);
	}
	made = true;
	return table[bf16];
}

/* ---- issuing ---- */

void emulate_wgmma(const struct emulate_product *p, float *d, const unsigned *a)
{
	struct thread *t = thread_now();
	const unsigned g = t->view.thread / GROUP;
	if (!t->fenced)
		emulate_fail("a product without a wgmma_fence since the group before");
	if (!t->cta->group[g] && !(t->cta->group[g] = calloc(1, sizeof *t->cta->group[g])))
		abort();
	struct group *group = t->cta->group[g];
	if (t->issued - group->done >= PRODUCTS_MAX)
		emulate_fail("more products at a time than tests/emulate has room for");
	struct issued *i = &group->product[t->issued++ % PRODUCTS_MAX];
	if (!i->threads)
		i->product = *p;
	else if (i->product.form != p->form || i->product.n != p->n || i->product.accumulate != p->accumulate || i->product.left != p->left ||
	         i->product.right != p->right)
		emulate_fail("threads of a warpgroup issue different products");
	i->threads++;
	i->d[t->view.thread % GROUP] = d;
	if (a)
		memcpy(i->a[t->view.thread % GROUP], a, sizeof i->a[0]);
}

void emulate_wgmma_fence(void) { thread_now()->fenced = true; }

void emulate_wgmma_commit(void)
{
	struct thread *t = thread_now();
	t->group_end[t->groups++ % PRODUCT_GROUPS] = t->issued;
	t->fenced = false;
	thread_pause();
}

void emulate_wgmma_wait(int pending)
{
	struct thread *t = thread_now();
	if (t->groups > (unsigned)pending && t->issued)
		thread_wait((struct wait){WAIT_PRODUCTS, 0, t->group_end[(t->groups - 1 - (unsigned)pending) % PRODUCT_GROUPS], NULL});
}

void products_thread_end(const struct thread *t)
{
	if (t->issued && t->cta->group[t->view.thread / GROUP]->done < t->issued)
		emulate_fail("the thread ends before its products");
}

void products_forget(struct cta *cta)
{
	for (int g = 0; g < GROUPS_MAX; g++)
		free(cta->group[g]);
}

/* ---- doing ---- */

/* Eight neighbours in shared memory, of an operand in panels of 128-byte rows with exchanged chunks. NaN where a write is not fenced: that is
 * no error by itself, because some products are of nothing that anybody looks at. */
static const uint16_t *chunk_read(struct cta *cta, unsigned at)
{
	static const uint16_t unknown[CHUNK_ELEMENTS] = {0x7fff, 0x7fff, 0x7fff, 0x7fff, 0x7fff, 0x7fff, 0x7fff, 0x7fff};
	at ^= (at >> 7 & 7) << 4;
	const unsigned char *from = grid_strict() ? address_async(cta, at, CHUNK) : address_bytes(cta, at, CHUNK);
	if (cta->unfenced[at / CHUNK].count)
		return unknown;
	return (const uint16_t *)(const void *)from;
}

/* to[k][r]: an operand's rows (or columns) r, and the depth k that is summed over. Across: MN-major. */
static void operand_read(float to[K][PRODUCT_N], struct cta *cta, uint64_t descriptor, bool across, int rows, const float *number)
{
	const unsigned base = (unsigned)(descriptor & 0x3fff) << 4, panel = (unsigned)(descriptor >> 16 & 0x3fff) << 4,
		       eight = (unsigned)(descriptor >> 32 & 0x3fff) << 4;
	if (across)
		for (int k = 0; k < K; k++)
			for (int r = 0; r < rows; r += CHUNK_ELEMENTS) {
				const uint16_t *from = chunk_read(cta, base + (unsigned)r / 64 * panel + (unsigned)k / 8 * eight + (unsigned)k % 8 * 128 +
				                                               (unsigned)r % 64 * 2);
				for (int e = 0; e < CHUNK_ELEMENTS; e++)
					to[k][r + e] = number[from[e]];
			}
	else
		for (int r = 0; r < rows; r++)
			for (int k = 0; k < K; k += CHUNK_ELEMENTS) {
				const uint16_t *from = chunk_read(cta, base + (unsigned)r / 8 * eight + (unsigned)r % 8 * 128 + (unsigned)k * 2);
				for (int e = 0; e < CHUNK_ELEMENTS; e++)
					to[k + e][r] = number[from[e]];
			}
}

/* Thread t holds of a 64x16 operand, register i: row 16 (t / 32) + t % 32 / 4 + 8 (i % 2), columns 2 (t % 4) + 8 (i / 2) and the next. */
static void registers_read(float to[K][PRODUCT_N], const struct issued *p, const float *number)
{
	for (int t = 0; t < GROUP; t++)
		for (int i = 0; i < 4; i++)
			for (int e = 0; e < 2; e++)
				to[t % 4 * 2 + i / 2 * 8 + e][t / 32 * 16 + t % 32 / 4 + i % 2 * 8] = number[p->a[t][i] >> 16 * e & 0xffff];
}

static void product_do(struct cta *cta, const struct issued *p)
{
	static float left[K][PRODUCT_N], right[K][PRODUCT_N], sum[M][PRODUCT_N];
	const enum emulate_form form = p->product.form;
	const float *number = decoded(p->product.bf16);
	const int n = p->product.n;
	if (form == EMULATE_RS)
		registers_read(left, p, number);
	else
		operand_read(left, cta, p->product.left, form == EMULATE_MS || form == EMULATE_MM, M, number);
	operand_read(right, cta, p->product.right, form == EMULATE_RS || form == EMULATE_SM || form == EMULATE_MM, n, number);
	for (int r = 0; r < M; r++) {
		memset(sum[r], 0, (size_t)n * sizeof(float));
		for (int k = 0; k < K; k++)
			for (int c = 0; c < n; c++)
				sum[r][c] += left[k][r] * right[k][c];
	}
	for (int t = 0; t < GROUP; t++) /* of every 8 columns: row t % 32 / 4 of the warp's 16 and the 8th below it, two columns of each */
		for (int i = 0; i < n / 2; i++) {
			const float x = sum[t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8][i / 4 * 8 + t % 4 * 2 + i % 2];
			p->d[t][i] = p->product.accumulate ? p->d[t][i] + x : x;
		}
}

bool products_step(struct cta *cta, int g)
{
	struct group *group = cta->group[g];
	struct issued *p = &group->product[group->done % PRODUCTS_MAX];
	if (p->threads < GROUP)
		return false;
	product_do(cta, p);
	p->threads = 0;
	group->done++;
	return true;
}

/* ---- of a warp: d += a b, a 16x16, b 16x8 ---- */

struct fragments { float *d; const unsigned *a, *b; };

void emulate_mma(float *d, const unsigned *a, const unsigned *b, int bf16)
{
	struct fragments own = {d, a, b};
	const uint64_t *all = emulate_warp(EMULATE_MMA, ~0u, (uint64_t)(uintptr_t)&own);
	const float *number = decoded(bf16 != 0);
	const int lane = (int)thread_now()->view.thread % WARP;
	float result[4];
	for (int i = 0; i < 4; i++) {
		const int row = lane / 4, half = i / 2, column = lane % 4 * 2 + i % 2;
		result[i] = d[i];
		for (int k = 0; k < K; k++) {
			const struct fragments *left = (const struct fragments *)(uintptr_t)all[row * 4 + k % 8 / 2],
					       *right = (const struct fragments *)(uintptr_t)all[column * 4 + k % 8 / 2];
			result[i] += number[left->a[half + k / 8 * 2] >> 16 * (k % 2) & 0xffff] * number[right->b[k / 8] >> 16 * (k % 2) & 0xffff];
		}
	}
	emulate_warp(EMULATE_MMA, ~0u, 0); /* all have read what others gave */
	memcpy(d, result, sizeof result);
}
