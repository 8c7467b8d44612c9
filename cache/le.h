/* le: numbers as little-endian bytes, on every machine. */
#ifndef FAGEN_CACHE_LE_H
#define FAGEN_CACHE_LE_H

#include <stdint.h>

static inline void put_le(uint8_t *out, uint64_t value, int bytes)
{
	for (int i = 0; i < bytes; i++)
		out[i] = (uint8_t)(value >> (8 * i));
}

static inline uint64_t get_le(const uint8_t *in, int bytes)
{
	uint64_t value = 0;
	for (int i = bytes - 1; i >= 0; i--)
		value = value << 8 | in[i];
	return value;
}

#endif
