/* deviation: the kernels of a study of numeric deviation. */
#ifndef FAGEN_CLI_DEVIATION_H
#define FAGEN_CLI_DEVIATION_H

#include "check/deviation.h"

enum { STUDY_SPECS_MAX = 16, DTYPES = 2, STUDY_LINES_MAX = STUDY_SPECS_MAX * DTYPES, TILES_MAX = 3 };

/* One spec in one dtype, compiled with several tiles; the first is the planner's. */
struct line {
	const char *label;
	enum dtype dtype;
	int tiles;
	fagen_spec *spec[TILES_MAX];
	const fagen_kernel *kernel[TILES_MAX];
	char tile[TILES_MAX][48]; /* "128x128 64x128": rows x keys, forward and backward */
};

/* The lines of `count` specs, or without any of the built-in ones. Prints what is wrong; the exit status. */
int lines_make(struct line[STUDY_LINES_MAX], int *lines, char *const *specs, int count, fagen_runtime *, int device);

#endif
