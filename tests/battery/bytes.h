/* The numbers u of cells, of which each word has a bit. */
#pragma once

#include <stdint.h>
#include <string.h>

/* Of the 32 cells of a group, by bit position: four 8x8 transposes of bits. */
static inline void words_bytes(uint8_t u[32], const unsigned word[8])
{
	for (int part = 0; part < 4; part++) {
		uint64_t x = 0;
		for (int j = 0; j < 8; j++)
			x |= (uint64_t)(word[j] >> 8 * part & 255) << 8 * j;
		uint64_t t = (x ^ x >> 7) & 0x00AA00AA00AA00AAu;
		x ^= t ^ t << 7;
		t = (x ^ x >> 14) & 0x0000CCCC0000CCCCu;
		x ^= t ^ t << 14;
		t = (x ^ x >> 28) & 0x00000000F0F0F0F0u;
		x ^= t ^ t << 28;
		memcpy(u + 8 * part, &x, 8);
	}
}
