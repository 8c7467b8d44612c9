// Dropout's definition, on absolute coordinates only, so that it never depends on tiles. A head's key is Philox 4x32 with 10 rounds (Salmon et al.,
// SC11) of the counter (b*heads_q + h, offset low, offset high, 0) under the seed. From it and the coordinates
//   group_k = (k>>6)*4 + ((k>>1)&3), group_q = (q>>4)*8 + (q&7)
// come eight words for the query rows {q, q+8} of a group of 16 and the keys of a block of 64 that share (k>>1)&3: one thread's part of an
// m16n8 accumulator row pair over eight n8 tiles. A bit of each word, word 7 the highest, makes the 8-bit number of a cell, which is kept when that
// and KEEP_256 carry out of 8 bits: KEEP_256 of 256 is the chance to keep.

struct DropoutKey { unsigned word[4]; };

DEVICE struct DropoutKey dropout_head(unsigned long long seed, unsigned long long offset, unsigned head)
{
	struct DropoutKey x = {{head, (unsigned)offset, (unsigned)(offset >> 32), 0}};
	unsigned key0 = (unsigned)seed, key1 = (unsigned)(seed >> 32);
#pragma unroll 1
	for (int round = 0; round < 10; round++) {
		const unsigned long long p0 = mul_wide(0xD2511F53u, x.word[0]), p1 = mul_wide(0xCD9E8D57u, x.word[2]);
		x.word[0] = (unsigned)(p1 >> 32) ^ x.word[1] ^ key0;
		x.word[1] = (unsigned)p1;
		x.word[2] = (unsigned)(p0 >> 32) ^ x.word[3] ^ key1;
		x.word[3] = (unsigned)p0;
		key0 += 0x9E3779B9u;
		key1 += 0xBB67AE85u;
	}
	return x;
}

// The low halves of products, no more: beside the tensor core a product of 32 by 32 bits to 64 takes four times as long, and holds that up.
// A bit of a low product depends on the bits below it, so each is folded, its upper bits into its lower ones.
// - By different widths where it makes a word. A cell and the one whose bit is a width further give the product's low bits together, of which the lowest are
//   polynomials of the lowest bits of a, b, c and d: a width is that of two words whose polynomials have a balanced sum.
// - a, b, c and d are four, and no two words have the same product: the lowest bits of eight products of three would be sums of each other.
// - Squares, because chains that are linear in a row's factor repeat in those few rows where it and what follows cancel. For the same reason no word is linear
//   in b and c.
// `make battery` tests them.
DEVICE void dropout_words(unsigned word[8], struct DropoutKey key, unsigned group_q, unsigned group_k)
{
	const unsigned row = group_q * 0x85EBCA77u + key.word[1], column = group_k * 0x9E3779B1u + key.word[0];
	const unsigned r = (row ^ row >> 16) * 0x2C1B3C6Du + key.word[2], odd = r | 1;
	unsigned a = column * odd + (row * 0x297A2D39u + (key.word[3] ^ key.word[2] >> 15));
	a ^= a >> 16;
	unsigned b = a * a + r;
	b ^= b >> 16;
	unsigned c = b * odd + a;
	c ^= c >> 16;
	unsigned d = c * c + b;
	d = d >> 16 | d << 16;
	const unsigned product[8] = {d * 0xCC9E2D51u + a, c * 0x1B873593u + a, a * d + c, b * d + c, c * d + a, a * b + d, b * c + d, a * c + b};
	const int width[8] = {16, 16, 15, 14, 14, 15, 13, 13};
#pragma unroll
	for (int i = 0; i < 8; i++)
		word[i] = product[i] ^ product[i] >> width[i];
}

// Decisions of rows q, q+8 (q & 8 is ignored) and of the keys of k's block of 64 with k's (k>>1)&3.
// Bit 8*(2*((q>>3)&1) + (k&1)) + 7 - ((k>>3)&7) is 1 when (q, k) is kept.
DEVICE unsigned dropout_bits(struct DropoutKey key, int q, int k)
{
	unsigned word[8], kept = 0;
	dropout_words(word, key, (unsigned)(q >> 4) * 8 + ((unsigned)q & 7), (unsigned)(k >> 6) * 4 + ((unsigned)(k >> 1) & 3));
#pragma unroll
	for (int i = 0; i < 8; i++) // majority(kept, word, threshold bit): an 8-bit addition's carry, lowest bit first
		kept = KEEP_256 >> i & 1 ? kept | word[i] : kept & word[i];
	return kept;
}

DEVICE int dropout_bit(int q, int k) { return 8 * (2 * ((q >> 3) & 1) + (k & 1)) + 7 - ((k >> 3) & 7); }

// One decision, for kernels that visit cells one at a time. KEEP_256 = 256 keeps all.
DEVICE bool dropout_keep(struct DropoutKey key, int q, int k)
{
	return KEEP_256 >= 256 || (dropout_bits(key, q, k) >> dropout_bit(q, k) & 1);
}
