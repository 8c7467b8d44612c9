// Dropout's definition: Philox 4x32 with 7 rounds (Salmon et al., SC11), bit-sliced to 32 decisions per word, on
// absolute coordinates only, so that it never depends on tiles. Key = seed; counter =
//   (2*((k>>6)*4 + ((k>>1)&3)) + call, (q>>4)*8 + (q&7), b*heads_q + h, low 32 bits of offset).
// Calls 0 and 1 give eight words for the query rows {q, q+8} of a group of 16 and the keys of a block of 64 that share
// (k>>1)&3: one thread's part of an m16n8 accumulator row pair over eight n8 tiles. KEEP_256 of 256 is the chance to keep.

struct DropoutKey { unsigned key0, key1, head, offset; }; // head = b*heads_q + h

DEVICE void philox_7(unsigned x[4], unsigned key0, unsigned key1)
{
#pragma unroll
	for (int round = 0; round < 7; round++) {
		const unsigned long long p0 = mul_wide(0xD2511F53u, x[0]);
		const unsigned long long p1 = mul_wide(0xCD9E8D57u, x[2]);
		const unsigned y1 = x[1], y3 = x[3];
		x[0] = (unsigned)(p1 >> 32) ^ y1 ^ key0;
		x[1] = (unsigned)p1;
		x[2] = (unsigned)(p0 >> 32) ^ y3 ^ key1;
		x[3] = (unsigned)p0;
		key0 += 0x9E3779B9u;
		key1 += 0xBB67AE85u;
	}
}

// Decisions of rows q, q+8 (q & 8 is ignored) and of the keys of k's block of 64 with k's (k>>1)&3.
// Bit 8*(2*((q>>3)&1) + (k&1)) + 7 - ((k>>3)&7) is 1 when (q, k) is kept.
DEVICE unsigned dropout_bits(struct DropoutKey d, int q, int k)
{
	const unsigned group_k = (unsigned)(k >> 6) * 4 + ((unsigned)(k >> 1) & 3);
	const unsigned group_q = (unsigned)(q >> 4) * 8 + ((unsigned)q & 7);
	unsigned kept = 0;
#pragma unroll
	for (int call = 0; call < 2; call++) {
		unsigned x[4] = {2 * group_k + call, group_q, d.head, d.offset};
		philox_7(x, d.key0, d.key1);
#pragma unroll
		for (int i = 0; i < 4; i++) // majority(kept, word, threshold bit): an 8-bit compare, lowest bit first
			kept = (KEEP_256 >> (4 * call + i)) & 1 ? kept | x[i] : kept & x[i];
	}
	return kept;
}

DEVICE int dropout_bit(int q, int k) { return 8 * (2 * ((q >> 3) & 1) + (k & 1)) + 7 - ((k >> 3) & 7); }

// One decision, for kernels that visit cells one at a time. KEEP_256 = 256 keeps all.
DEVICE bool dropout_keep(struct DropoutKey d, int q, int k)
{
	return KEEP_256 >= 256 || (dropout_bits(d, q, k) >> dropout_bit(q, k) & 1);
}
