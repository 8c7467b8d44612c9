/* Must be caught: the words as the products left them; with FOLD_ALIKE all of them folded by 16. */
#define group_words group_words_default
#include "tests/battery/dropout.h"
#undef group_words

DEVICE void group_words(unsigned w[8], const unsigned key[4], unsigned group_q, unsigned group_k)
{
	group_words_default(w, key, group_q, group_k);
	static const int width[8] = {16, 16, 15, 14, 14, 15, 13, 13};
	for (int i = 0; i < 8; i++) {
		const int by = width[i]; /* three times that is more than a word has */
		w[i] ^= w[i] >> by ^ (2 * by < 32 ? w[i] >> 2 * by : 0);
#ifdef FOLD_ALIKE
		w[i] ^= w[i] >> 16;
#endif
	}
}
