/* What a suite calls of an emitted program that is compiled for the host. Included by the suite and by the compiled text. */
#ifndef FAGEN_TESTS_EMITTED_TABLE_H
#define FAGEN_TESTS_EMITTED_TABLE_H

#include "templates/abi.h"

enum { EMITTED_GRADS = 16 };

/* The buffers of staged inputs, a tile's corner, and its block bits. */
struct emitted_tile { void *head, *rows, *cols, *cells; int q0, k0; unsigned long long bits; };
struct emitted_cell { int keep; float score, score_again, grad, input_grad[EMITTED_GRADS]; };

#define EMITTED_AT const struct fagen_abi *p, int b, int h
struct emitted {
	int bytes[4];  /* of the structs of staged inputs: head, rows, columns, cells */
	int grads;
	void (*range)(int out[4], int keys, int run, long long from, long long to, int sq, int sk);
	/* Walks a stream; writes tile and class of each step, returns how many there were. */
	int (*walk)(int *tile, int *class_, int keys, int from, int to, int sq, int sk);
	int (*class_by_runs)(int keys, int from, int to, int sq, int sk, int tile);
	int (*class_by_rest)(EMITTED_AT, int q0, int q1, int k0, int k1);
	int (*block_keep)(EMITTED_AT, int block_q, int block_k);
	void (*load)(struct emitted_tile *, EMITTED_AT);
	void (*cell)(struct emitted_cell *, const struct emitted_tile *, EMITTED_AT, int q, int k_lane, int offset, float s);
	float (*score_short)(float s, float shift);
	int (*score_turn)(int q, int sq, int sk);
	void (*plain)(struct emitted_cell *, EMITTED_AT, int q, int k, float s);
	float (*sink)(const struct emitted_tile *);
	float (*sink_plain)(EMITTED_AT);
	int (*bound)(int cols, int slot, EMITTED_AT, int position);
	/* The element that an access with a gradient reads: returns its entry, writes the address and how many entries there are. */
	int (*grad)(float **address, int *entries, int access, EMITTED_AT, int q, int k);
	/* Of the input that it belongs to: the elements, and the address of one of them. */
	long long (*grad_elements)(int access, const struct fagen_abi *p);
	float *(*grad_element)(int access, const struct fagen_abi *p, long long i);
};

#endif
