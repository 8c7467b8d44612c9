/* tensor_map: the operands of a launch as tensor maps of the driver. Encoding is arithmetic on the host, without memory of
 * a device, but the driver wants a current context for it, and takes longer than all else that a launch costs here: maps are
 * kept for launches with the same addresses, shapes and strides. */
#include "runtime/kernel.h"

#include <stdlib.h>
#include <string.h>

enum { RANK = MAPPED_RANK, BOX_COLUMNS = 64, ELEMENT = 2 };
enum { KEY_WORDS = sizeof(struct mapped) / 8, MAP_WORDS = sizeof(struct fagen_abi_map) / 8 };
#define STRIDE_LIMIT (INT64_C(1) << 40) /* bytes; strides of a map are below */

_Static_assert(sizeof(struct fagen_abi_map) == 128, "a CUtensorMap has 128 bytes");
_Static_assert(sizeof(struct mapped) == 8 * (1 + RANK + RANK - 1), "a key has no padding");

/* ---- maps of earlier launches ---- */

/* Read and replaced by many threads without a lock: `turn` is 0 before the first and odd while somebody writes; who finds it so,
 * or another one after reading, has read nothing. Words are loaded with acquire and stored with release, so that whoever sees a
 * new one sees the turn that came before it. */
struct kept_map {
	_Atomic uint32_t turn;
	_Atomic uint64_t key[KEY_WORDS], map[MAP_WORDS];
};
enum { SETS = 32, WAYS = 4 }; /* layers of a model differ in their addresses: each map has a choice of places */
struct kept_maps { /* of one map of the recipe */
	struct kept_map place[SETS][WAYS];
};

struct kept_maps *maps_keep(const struct recipe *recipe)
{
	return recipe->map_count ? calloc((size_t)recipe->map_count, sizeof(struct kept_maps)) : NULL;
}

/* The places that a map may have. */
static struct kept_map *kept_set(struct kept_maps *kept, int i, const struct mapped *m)
{
	const uint64_t hash = (m->address ^ m->size[1] << 48) * UINT64_C(0x9E3779B97F4A7C15);
	return kept[i].place[hash >> 59];
}
_Static_assert(SETS == 1 << (64 - 59), "sets by the first bits of a hash");

static bool place_read(struct fagen_abi_map *map, struct kept_map *kept, const uint64_t key[KEY_WORDS])
{
	const uint32_t turn = atomic_load_explicit(&kept->turn, memory_order_acquire);
	if (!turn || turn % 2)
		return false;
	for (int i = 0; i < KEY_WORDS; i++)
		if (atomic_load_explicit(&kept->key[i], memory_order_acquire) != key[i])
			return false;
	for (int i = 0; i < MAP_WORDS; i++)
		map->opaque[i] = atomic_load_explicit(&kept->map[i], memory_order_acquire);
	return atomic_load_explicit(&kept->turn, memory_order_acquire) == turn;
}

static bool kept_take(struct fagen_abi_map *map, struct kept_map set[WAYS], const uint64_t key[KEY_WORDS])
{
	for (int way = 0; way < WAYS; way++)
		if (place_read(map, &set[way], key))
			return true;
	return false;
}

/* In the place that was written least often: so they take turns. */
static void kept_put(struct kept_map set[WAYS], const struct fagen_abi_map *map, const uint64_t key[KEY_WORDS])
{
	struct kept_map *kept = set;
	for (int way = 1; way < WAYS; way++)
		if (atomic_load_explicit(&set[way].turn, memory_order_relaxed) <
		    atomic_load_explicit(&kept->turn, memory_order_relaxed))
			kept = &set[way];
	uint32_t turn = atomic_load_explicit(&kept->turn, memory_order_relaxed);
	if (turn % 2 || !atomic_compare_exchange_strong_explicit(&kept->turn, &turn, turn + 1, memory_order_acq_rel, memory_order_relaxed))
		return; /* another thread is at it */
	for (int i = 0; i < KEY_WORDS; i++)
		atomic_store_explicit(&kept->key[i], key[i], memory_order_release);
	for (int i = 0; i < MAP_WORDS; i++)
		atomic_store_explicit(&kept->map[i], map->opaque[i], memory_order_release);
	atomic_store_explicit(&kept->turn, turn + 2, memory_order_release);
}

/* ---- operands ---- */

/* Of query, key, value, dout: the names that a recipe's maps have. */
static int operand_of(const struct recipe_map *map)
{
	const char first = map->name[0];
	return first == 'q' ? 0 : first == 'k' ? 1 : first == 'v' ? 2 : 3;
}

static bool is_empty(const struct mapped *m) { return !m->size[1] || !m->size[2] || !m->size[3]; }

static int strides_fill(struct mapped *m, const char *name, const struct fagen_abi_tensor *tensor, struct fault *f)
{
	const struct {
		const char *name;
		int64_t elements;
	} row[RANK - 1] = {{"stride_seq", tensor->stride_seq},
	                   {"stride_head", tensor->stride_head},
	                   {"stride_batch", tensor->stride_batch}};
	for (int i = 0; i < RANK - 1; i++) {
		const int64_t elements = row[i].elements;
		if (m->size[i + 1] == 1) { /* never used, but it must be one that the driver takes */
			m->stride[i] = (m->size[0] * ELEMENT + 15) / 16 * 16;
			continue;
		}
		if (elements >= 0 && elements < STRIDE_LIMIT / ELEMENT) {
			m->stride[i] = (uint64_t)elements * ELEMENT;
			continue;
		}
		return fault_member(f, name, row[i].name,
		                    "is %lld elements; this kernel loads %s through a tensor map, which takes strides from 0 to "
		                    "below 2^39 elements: get a kernel with problem.align = 2.",
		                    (long long)elements, name);
	}
	return 0;
}

int maps_fill(struct mapped mapped[RECIPE_MAPS_MAX], const struct recipe *recipe, const struct fagen_abi *abi,
              const struct recipe_shape *shape, const struct fagen_kernel *k, struct fault *f)
{
	const struct driver *d = k->runtime->driver;
	const int version = driver_version(d);
	if (recipe->map_count && !driver_calls(d)->cuTensorMapEncodeTiled)
		return fault_fail(
			f, FAGEN_ERROR_DRIVER, NULL,
			"The NVIDIA driver is of CUDA %d.%d and lacks cuTensorMapEncodeTiled, which kernel %s needs: update to "
			"a driver of CUDA 12.0 or later (r525), or get a kernel with problem.align = 2.",
			version / 1000, version % 1000 / 10, recipe->kernel[0].entry);
	const int64_t rows_q = shape->packed ? shape->total_q : shape->seqlen_q,
		      rows_k = shape->packed ? shape->total_k : shape->seqlen_k;
	const int64_t batch = shape->packed && shape->batch ? 1 : shape->batch;
	const struct {
		const struct fagen_abi_tensor *tensor;
		int64_t columns, rows, heads;
	} operand[] = {
		{&abi->query, k->signature.head_dim_qk, rows_q, shape->heads_q},
		{&abi->key, k->signature.head_dim_qk, rows_k, shape->heads_kv},
		{&abi->value, k->signature.head_dim_v, rows_k, shape->heads_kv},
		{&abi->dout, k->signature.head_dim_v, rows_q, shape->heads_q},
	};
	for (int i = 0; i < recipe->map_count; i++) {
		const int o = operand_of(&recipe->map[i]);
		mapped[i] = (struct mapped){operand[o].tensor->data,
		                            {(uint64_t)operand[o].columns, (uint64_t)operand[o].rows, (uint64_t)operand[o].heads, (uint64_t)batch},
		                            {0}};
		if (!is_empty(&mapped[i]) && strides_fill(&mapped[i], recipe->map[i].name, operand[o].tensor, f))
			return -1;
	}
	return 0;
}

/* Boxes of several heads have a position's together: heads are the map's second dimension, rows the third. */
static int map_encode(struct fagen_abi_map *map, const struct mapped *m, const struct recipe_map *of, const struct driver *d,
                      struct fault *f)
{
	const int second = of->heads ? 2 : 1, third = 3 - second; /* of rows, 1, and heads, 2 */
	const uint64_t size[RANK] = {m->size[0], m->size[second], m->size[third], m->size[3]};
	const uint64_t stride[RANK - 1] = {m->stride[second - 1], m->stride[third - 1], m->stride[2]};
	const uint32_t rows = (uint32_t)of->rows, heads = of->heads ? (uint32_t)of->heads : 1, steps[RANK] = {1, 1, 1, 1};
	const uint32_t box[RANK] = {BOX_COLUMNS, second == 1 ? rows : heads, second == 1 ? heads : rows, 1};
	const cu_result r = driver_calls(d)->cuTensorMapEncodeTiled(
		(cu_tensor_map *)map, CU_TENSOR_UINT16, RANK, (void *)(uintptr_t)m->address, size, stride, box, steps,
		CU_TENSOR_INTERLEAVE_NONE, CU_TENSOR_SWIZZLE_128B, CU_TENSOR_L2_256B, CU_TENSOR_FILL_ZEROS);
	if (!r)
		return 0;
	driver_fail(d, f, r, "Encoding a tensor map (cuTensorMapEncodeTiled)");
	return fault_fail(
		f, FAGEN_ERROR_DRIVER, of->name,
		"It was that of %s: %llu columns, %llu rows, %llu heads, batch %llu, with strides of %llu, %llu "
		"and %llu bytes, in boxes of %u rows and %u heads. A kernel got with problem.align = 2 needs none.",
		of->name, (unsigned long long)m->size[0], (unsigned long long)m->size[1], (unsigned long long)m->size[2],
		(unsigned long long)m->size[3], (unsigned long long)m->stride[0], (unsigned long long)m->stride[1],
		(unsigned long long)m->stride[2], rows, heads);
}

static struct fagen_abi_map *map_at(struct fagen_abi_maps *maps, int operand)
{
	struct fagen_abi_map *const at[] = {&maps->query, &maps->key, &maps->value, &maps->dout};
	return at[operand];
}

unsigned maps_move(struct mapped mapped[RECIPE_MAPS_MAX], const struct recipe *recipe, const struct fagen_abi *abi)
{
	const struct fagen_abi_tensor *const operand[] = {&abi->query, &abi->key, &abi->value, &abi->dout};
	unsigned moved = 0;
	for (int i = 0; i < recipe->map_count; i++) {
		const uint64_t address = operand[operand_of(&recipe->map[i])]->data;
		if (mapped[i].address != address)
			moved |= 1u << i;
		mapped[i].address = address;
	}
	return moved;
}

unsigned maps_take(struct fagen_abi_maps *maps, const struct mapped mapped[RECIPE_MAPS_MAX], unsigned wanted,
                   const struct kernel_pass *pass)
{
	unsigned lacking = 0;
	for (int i = 0; wanted >> i; i++) {
		uint64_t key[KEY_WORDS];
		if (!(wanted >> i & 1) || is_empty(&mapped[i]))
			continue;
		memcpy(key, &mapped[i], sizeof key);
		if (!pass->kept || !kept_take(map_at(maps, operand_of(&pass->recipe.map[i])),
		                              kept_set(pass->kept, i, &mapped[i]), key))
			lacking |= 1u << i;
	}
	return lacking;
}

int maps_encode(struct fagen_abi_maps *maps, const struct mapped mapped[RECIPE_MAPS_MAX], unsigned lacking,
                const struct kernel_pass *pass, const struct fagen_kernel *k, struct fault *f)
{
	for (int i = 0; lacking >> i; i++) {
		const struct recipe_map *of = &pass->recipe.map[i];
		struct fagen_abi_map *map = map_at(maps, operand_of(of));
		uint64_t key[KEY_WORDS];
		if (!(lacking >> i & 1))
			continue;
		if (map_encode(map, &mapped[i], of, k->runtime->driver, f))
			return -1;
		memcpy(key, &mapped[i], sizeof key);
		if (pass->kept)
			kept_put(kept_set(pass->kept, i, &mapped[i]), map, key);
	}
	return 0;
}
