// The words of dropout: of the low 32 bits of products, no more, so that 36 instructions make the eight words of a group
// and decide by them (13 multiply-adds, 12 shifts, 11 of logic), beside what belongs to a row alone.
//
// Why so. A low product's bit depends on the bits below it only, so every product is folded: its upper half is XORed into
// its lower one. A word and what was folded into it give the product's low bits back, and these come from few bits:
// - the words fold by different widths, else the eight bits of one cell and those of the one 16 further are not independent;
// - A, B, C, D are four, and no two words have the same product: lowest bits of eight words are eight polynomials of four
//   bits, none an XOR of others (of three bits they would be, and matrices of the words' bits were short of rank).
// The squares break chains that are linear in a row: with a row's multipliers only, one row in some thousands would have
// multipliers that cancel. No word is linear in B and C for the same reason.

// A head's key: Philox 4x32 with 10 rounds (Salmon et al., SC11) under the seed, once per head.
DEVICE void dropout_head_key(unsigned key[4], unsigned long long seed, unsigned long long offset, unsigned head)
{
	unsigned x[4] = {head, (unsigned)offset, (unsigned)(offset >> 32), 0};
	unsigned key0 = (unsigned)seed, key1 = (unsigned)(seed >> 32);
	for (int round = 0; round < 10; round++) {
		const unsigned long long p0 = 0xD2511F53ull * x[0], p1 = 0xCD9E8D57ull * x[2];
		const unsigned y1 = x[1], y3 = x[3];
		x[0] = (unsigned)(p1 >> 32) ^ y1 ^ key0;
		x[1] = (unsigned)p1;
		x[2] = (unsigned)(p0 >> 32) ^ y3 ^ key1;
		x[3] = (unsigned)p0;
		key0 += 0x9E3779B9u;
		key1 += 0xBB67AE85u;
	}
	for (int i = 0; i < 4; i++)
		key[i] = x[i];
}

// What eight query rows' groups share along the keys. row[1] is odd.
DEVICE void dropout_row(unsigned row[3], const unsigned key[4], unsigned group_q)
{
	const unsigned y = group_q * 0x85EBCA77u + key[1];
	row[0] = (y ^ y >> 16) * 0x2C1B3C6Du + key[2];
	row[1] = row[0] | 1;
	row[2] = y * 0x297A2D39u + (key[3] ^ key[2] >> 15);
}

DEVICE unsigned dropout_column(const unsigned key[4], unsigned group_k) { return group_k * 0x9E3779B1u + key[0]; }

DEVICE void dropout_mix(unsigned w[8], const unsigned row[3], unsigned column)
{
	const unsigned a = column * row[1] + row[2], A = a ^ a >> 16;
	const unsigned b = A * A + row[0], B = b ^ b >> 16;
	const unsigned c = B * row[1] + A, C = c ^ c >> 16;
	const unsigned d = C * C + B, D = d >> 16 | d << 16;
	w[0] = D * 0xCC9E2D51u + A;
	w[1] = C * 0x1B873593u + A;
	w[2] = A * D + C;
	w[3] = B * D + C;
	w[4] = C * D + A;
	w[5] = A * B + D;
	w[6] = B * C + D;
	w[7] = A * C + B;
	for (int i = 0; i < 8; i++)
		w[i] ^= w[i] >> (16 - i % 4);
}

// Word 7 is the most significant.
DEVICE void dropout_words(unsigned w[8], const unsigned key[4], unsigned group_q, unsigned group_k)
{
	unsigned row[3];
	dropout_row(row, key, group_q);
	dropout_mix(w, row, dropout_column(key, group_k));
}
