/* tensor_map: the operands of a launch as tensor maps of the driver. Encoding is arithmetic on the host, without memory of
 * a device, but the driver wants a current context for it. */
#include "runtime/kernel.h"

#include <stdio.h>
#include <string.h>

enum { RANK = 4, BOX_COLUMNS = 64, ELEMENT = 2 };
#define STRIDE_LIMIT (INT64_C(1) << 40) /* bytes; strides of a map are below */

_Static_assert(sizeof(struct fagen_abi_map) == 128, "a CUtensorMap has 128 bytes");

struct mapped {
	const char *name;
	const struct fagen_abi_tensor *tensor;
	struct fagen_abi_map *map;
	uint64_t size[RANK];       /* columns, rows, heads, batch */
	uint64_t stride[RANK - 1]; /* bytes, of rows, heads, batch */
};

static void mapped_find(struct mapped *m, struct fagen_abi_maps *maps, const char *name, const struct fagen_abi *abi,
                        const struct recipe_shape *shape, const struct signature *signature)
{
	const int64_t rows_q = shape->packed ? shape->total_q : shape->seqlen_q,
		      rows_k = shape->packed ? shape->total_k : shape->seqlen_k;
	const struct {
		const char *name;
		const struct fagen_abi_tensor *tensor;
		struct fagen_abi_map *map;
		int64_t columns, rows, heads;
	} row[] = {
		{"query", &abi->query, &maps->query, signature->head_dim_qk, rows_q, shape->heads_q},
		{"key", &abi->key, &maps->key, signature->head_dim_qk, rows_k, shape->heads_kv},
		{"value", &abi->value, &maps->value, signature->head_dim_v, rows_k, shape->heads_kv},
		{"dout", &abi->dout, &maps->dout, signature->head_dim_v, rows_q, shape->heads_q},
	};
	const int64_t batch = shape->packed && shape->batch ? 1 : shape->batch;
	for (size_t i = 0; i < sizeof row / sizeof *row; i++)
		if (!strcmp(row[i].name, name))
			*m = (struct mapped){row[i].name,
			                     row[i].tensor,
			                     row[i].map,
			                     {(uint64_t)row[i].columns, (uint64_t)row[i].rows, (uint64_t)row[i].heads,
			                      (uint64_t)batch},
			                     {0}};
}

static int strides_fill(struct mapped *m, struct fault *f)
{
	const struct {
		const char *name;
		int64_t elements;
	} row[RANK - 1] = {{"stride_seq", m->tensor->stride_seq},
	                   {"stride_head", m->tensor->stride_head},
	                   {"stride_batch", m->tensor->stride_batch}};
	for (int i = 0; i < RANK - 1; i++) {
		const int64_t elements = row[i].elements;
		char field[64];
		if (m->size[i + 1] == 1) { /* never used, but it must be one that the driver takes */
			m->stride[i] = (m->size[0] * ELEMENT + 15) / 16 * 16;
			continue;
		}
		if (elements >= 0 && elements < STRIDE_LIMIT / ELEMENT) {
			m->stride[i] = (uint64_t)elements * ELEMENT;
			continue;
		}
		snprintf(field, sizeof field, "%s.%s", m->name, row[i].name);
		return fault_fail(f, FAGEN_ERROR_INVALID, field,
		                  "%s is %lld elements; this kernel loads %s through a tensor map, which takes strides "
		                  "from 0 to below 2^39 elements: get a kernel with problem.align = 2.",
		                  field, (long long)elements, m->name);
	}
	return 0;
}

static int map_encode(struct mapped *m, int rows, const struct driver *d, struct fault *f)
{
	const uint32_t box[RANK] = {BOX_COLUMNS, (uint32_t)rows, 1, 1}, steps[RANK] = {1, 1, 1, 1};
	const cu_result r = driver_calls(d)->cuTensorMapEncodeTiled(
		(cu_tensor_map *)m->map, CU_TENSOR_UINT16, RANK, (void *)(uintptr_t)m->tensor->data, m->size, m->stride,
		box, steps, CU_TENSOR_INTERLEAVE_NONE, CU_TENSOR_SWIZZLE_128B, CU_TENSOR_L2_256B, CU_TENSOR_FILL_ZEROS);
	if (!r)
		return 0;
	driver_fail(d, f, r, "Encoding a tensor map (cuTensorMapEncodeTiled)");
	return fault_fail(
		f, FAGEN_ERROR_DRIVER, m->name,
		"It was that of %s: %llu columns, %llu rows, %llu heads, batch %llu, with strides of %llu, %llu "
		"and %llu bytes, in boxes of %d rows. A kernel got with problem.align = 2 needs none.",
		m->name, (unsigned long long)m->size[0], (unsigned long long)m->size[1], (unsigned long long)m->size[2],
		(unsigned long long)m->size[3], (unsigned long long)m->stride[0], (unsigned long long)m->stride[1],
		(unsigned long long)m->stride[2], rows);
}

/* The operand of the i-th map of a recipe; false: it has no element, and so no map. */
static bool operand_find(struct mapped *m, struct fagen_abi_maps *maps, const struct recipe *recipe, int i,
                         const struct fagen_abi *abi, const struct recipe_shape *shape, const struct fagen_kernel *k)
{
	mapped_find(m, maps, recipe->map[i].name, abi, shape, &k->signature);
	return m->size[1] && m->size[2] && m->size[3];
}

int maps_check(const struct recipe *recipe, const struct fagen_abi *abi, const struct recipe_shape *shape,
               const struct fagen_kernel *k, struct fault *f)
{
	const struct driver *d = k->runtime->driver;
	const int version = driver_version(d);
	if (recipe->map_count && !driver_calls(d)->cuTensorMapEncodeTiled)
		return fault_fail(
			f, FAGEN_ERROR_DRIVER, NULL,
			"The NVIDIA driver is of CUDA %d.%d and lacks cuTensorMapEncodeTiled, which kernel %s needs: update to "
			"a driver of CUDA 12.0 or later (r525), or get a kernel with problem.align = 2.",
			version / 1000, version % 1000 / 10, recipe->kernel[0].entry);
	for (int i = 0; i < recipe->map_count; i++) {
		struct fagen_abi_maps unused;
		struct mapped m = {0};
		if (operand_find(&m, &unused, recipe, i, abi, shape, k) && strides_fill(&m, f))
			return -1;
	}
	return 0;
}

int maps_encode(struct fagen_abi_maps *maps, const struct recipe *recipe, const struct fagen_abi *abi,
                const struct recipe_shape *shape, const struct fagen_kernel *k, struct fault *f)
{
	for (int i = 0; i < recipe->map_count; i++) {
		struct mapped m = {0};
		if (operand_find(&m, maps, recipe, i, abi, shape, k) &&
		    (strides_fill(&m, f) || map_encode(&m, recipe->map[i].rows, k->runtime->driver, f)))
			return -1;
	}
	return 0;
}
