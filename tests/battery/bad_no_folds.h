/* Must be caught: the words as the products left them; with FOLD_ALIKE all of them folded by 16. */
#define dropout_words dropout_words_default
#include "tests/battery/candidate.h"
#undef dropout_words

DEVICE void dropout_words(unsigned w[8], const unsigned key[4], unsigned group_q, unsigned group_k)
{
	dropout_words_default(w, key, group_q, group_k);
	for (int i = 0; i < 8; i++) {
		const int by = 16 - i % 4; /* three times the width is more than a word has */
		w[i] ^= w[i] >> by ^ (2 * by < 32 ? w[i] >> 2 * by : 0);
#ifdef FOLD_ALIKE
		w[i] ^= w[i] >> 16;
#endif
	}
}
