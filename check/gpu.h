/* gpu: device memory for checks. Every call makes the device's primary context current for its own duration. */
#ifndef FAGEN_CHECK_GPU_H
#define FAGEN_CHECK_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/runtime.h"

/* Guards stand before and after every buffer, of bytes 0xFF: NaN in every type. */
enum { GPU_GUARD = 4096, GPU_POISON = 0xFF };

struct gpu_buffer {
	uint64_t base;     /* of the allocation */
	uint64_t data;     /* first byte between the guards, 256-byte aligned */
	size_t bytes;      /* between the guards */
};

int gpu_open(struct gpu *, fagen_runtime *, int device, struct diag *);
/* Contents undefined but for the guards. */
int gpu_alloc(struct gpu_buffer *, fagen_runtime *, int device, size_t bytes, struct diag *);
void gpu_free(struct gpu_buffer *, fagen_runtime *, int device);
/* Fills it with NaN. */
int gpu_poison(const struct gpu_buffer *, fagen_runtime *, int device, struct diag *);
int gpu_upload(const struct gpu_buffer *, size_t offset, const void *, size_t, fagen_runtime *, int device, struct diag *);
int gpu_download(void *, const struct gpu_buffer *, size_t offset, size_t, fagen_runtime *, int device, struct diag *);
/* 0 when both guards are as they were. */
int gpu_guards(const struct gpu_buffer *, const char *name, fagen_runtime *, int device, struct diag *);
int gpu_synchronize(fagen_runtime *, int device, struct diag *);
/* Fills the shared memory of every SM with NaN. */
int gpu_poison_shared(fagen_runtime *, int device, struct diag *);
int gpu_memory_free(size_t *bytes, fagen_runtime *, int device, struct diag *);

#endif
