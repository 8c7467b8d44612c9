/* What templates/dropout.h defines. */
#include <stdbool.h>

DEVICE unsigned long long mul_wide(unsigned a, unsigned b) { return (unsigned long long)a * b; }
#define KEEP_256 256
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#include "templates/dropout.h"
#pragma GCC diagnostic pop

DEVICE void head_key(unsigned key[4], unsigned long long seed, unsigned long long offset, unsigned head)
{
	const struct DropoutKey drawn = dropout_head(seed, offset, head);
	for (int i = 0; i < 4; i++)
		key[i] = drawn.word[i];
}

DEVICE void group_words(unsigned w[8], const unsigned key[4], unsigned group_q, unsigned group_k)
{
	const struct DropoutKey drawn = {{key[0], key[1], key[2], key[3]}};
	dropout_words(w, drawn, group_q, group_k);
}
