/* Philox 4x32 with 7 rounds per four words: what the battery is held against. */
#define group_words group_words_default
#include "tests/battery/dropout.h"
#undef group_words

DEVICE void group_words(unsigned w[8], const unsigned key[4], unsigned group_q, unsigned group_k)
{
	for (unsigned call = 0; call < 2; call++) {
		unsigned x[4] = {2 * group_k + call, group_q, key[2], key[3]}, key0 = key[0], key1 = key[1];
		for (int round = 0; round < 7; round++) {
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
			w[4 * call + (unsigned)i] = x[i];
	}
}
