/* SYN: the instructions of templates/sm90/ptx.h and the emitted products, one kernel for each, on a Hopper GPU. Data are small
 * integers, so that results are exact and are compared exactly. */
#include "tests/gpu/ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/kernel.h"
#include "tests/gpu/suite.h"

enum { HEADS = 3, BATCH = 2, BUFFERS = 6, BOX_ROWS = 50, RING_BOXES = 5, RING_ROUNDS = 1000, ROUNDS = 64 };

/* A shape's kernels on the GPU, and what they work on. */
struct bench {
	struct suite *s;
	const struct ptx_shape *shape;
	const fagen_spec *spec; /* of the shape's head dims, for the maps */
	cu_library library;
	struct gpu_buffer buffer[BUFFERS];
	struct diag diag;
	char text[512];
};

static bool wrong(struct bench *b, const char *what, int64_t row, int64_t col, double got, double want)
{
	snprintf(b->text, sizeof b->text, "%s[%lld][%lld] is %g, not %g", what, (long long)row, (long long)col, got, want);
	return false;
}

/* ---- kernels and memory -------------------------------------------------------------------------------------------- */

static bool bench_open(struct bench *b, struct suite *s, const struct ptx_shape *shape)
{
	const struct cuda_calls *cu = driver_calls(runtime_driver(s->rt));
	struct fault f = {.diag = &b->diag};
	struct text source = {0};
	struct cubin cubin = {0};
	char yaml[128];
	*b = (struct bench){.s = s, .shape = shape};
	snprintf(yaml, sizeof yaml, "{head_dim: {qk: %d, v: %d}}", shape->dim_qk, shape->dim_v);
	b->spec = suite_spec(s, CLASS_SYN, yaml);
	bool ok = b->spec && !ptx_source(&source, shape, &b->diag) &&
	          !compiler_run(&cubin, runtime_compiler(s->rt), &source, target_find("sm_90a"), &b->diag) &&
	          !driver_push(runtime_driver(s->rt), s->options.device, &f);
	if (ok) {
		const cu_result r = cu->cuLibraryLoadData(&b->library, cubin.code, NULL, NULL, 0, NULL, NULL, 0);
		ok = !driver_pop(runtime_driver(s->rt), &f) && !r;
		if (r)
			driver_fail(runtime_driver(s->rt), &f, r, "Loading the kernels");
	}
	text_free(&source);
	cubin_free(&cubin);
	return ok;
}

static void bench_close(struct bench *b)
{
	struct fault f = {.diag = &b->diag};
	for (int i = 0; i < BUFFERS; i++)
		gpu_free(&b->buffer[i], b->s->rt, b->s->options.device);
	if (b->library && !driver_push(runtime_driver(b->s->rt), b->s->options.device, &f)) {
		driver_calls(runtime_driver(b->s->rt))->cuLibraryUnload(b->library);
		(void)driver_pop(runtime_driver(b->s->rt), &f);
	}
	diag_free(&b->diag);
}

/* A new buffer; `from` NULL: full of NaN. */
static bool buffer_make(struct bench *b, int i, const void *from, size_t bytes)
{
	fagen_runtime *const rt = b->s->rt;
	const int device = b->s->options.device;
	gpu_free(&b->buffer[i], rt, device);
	return !gpu_alloc(&b->buffer[i], rt, device, bytes, &b->diag) &&
	       !(from ? gpu_upload(&b->buffer[i], 0, from, bytes, rt, device, &b->diag)
	              : gpu_poison(&b->buffer[i], rt, device, &b->diag));
}

static bool buffer_read(struct bench *b, int i, void *to)
{
	return !gpu_download(to, &b->buffer[i], 0, b->buffer[i].bytes, b->s->rt, b->s->options.device, &b->diag);
}

static bool bench_launch_all(struct bench *b, const char *name, unsigned ctas, int threads, size_t smem, void **params)
{
	const struct driver *d = runtime_driver(b->s->rt);
	const struct cuda_calls *cu = driver_calls(d);
	struct fault f = {.diag = &b->diag};
	cu_kernel kernel = NULL;
	cu_device device = 0;
	if (driver_push(runtime_driver(b->s->rt), b->s->options.device, &f))
		return false;
	cu_result r = cu->cuDeviceGet(&device, b->s->options.device);
	if (!r)
		r = cu->cuLibraryGetKernel(&kernel, b->library, name);
	if (!r)
		r = cu->cuKernelSetAttribute(CU_KERNEL_MAX_DYNAMIC_SMEM, (int)smem, kernel, device);
	if (!r)
		r = cu->cuLaunchKernel((cu_function)(void *)kernel, ctas, 1, 1, (unsigned int)threads, 1, 1, (unsigned int)smem, NULL, params,
		                       NULL);
	if (!r)
		r = cu->cuCtxSynchronize();
	if (r)
		driver_fail(d, &f, r, name);
	return !driver_pop(runtime_driver(b->s->rt), &f) && !r;
}

static bool bench_launch(struct bench *b, const char *name, int threads, size_t smem, void **params)
{
	return bench_launch_all(b, name, 1, threads, smem, params);
}

/* Maps of query, key and value as the library makes them for a launch, `count` of them; rows 0: the tensor has none, and no map. */
static bool maps_make(struct bench *b, struct fagen_abi_maps *maps, const struct fagen_abi *abi, int count, int64_t rows_q,
                      int64_t rows_k)
{
	struct fagen_kernel kernel = {.runtime = b->s->rt, .spec = b->spec};
	signature_make(&kernel.signature, &b->spec->spec);
	const struct recipe_shape shape = {
		.batch = BATCH, .heads_q = HEADS, .heads_kv = HEADS, .seqlen_q = rows_q, .seqlen_k = rows_k, .sms = 1};
	const struct kernel_pass pass = {.recipe = {.kernel_count = 1,
	                                            .map_count = count,
	                                            .map = {{"query", 64}, {"key", b->shape->keys}, {"value", b->shape->keys}}}};
	struct mapped mapped[RECIPE_MAPS_MAX];
	struct fault f = {.diag = &b->diag};
	memset(maps, 0, sizeof *maps);
	if (maps_fill(mapped, &pass.recipe, abi, &shape, &kernel, &f) || driver_push(runtime_driver(b->s->rt), b->s->options.device, &f))
		return false;
	const unsigned lacking = maps_take(maps, mapped, (1u << count) - 1, &pass);
	const int rc = maps_encode(maps, mapped, lacking, &pass, &kernel, &f);
	return !driver_pop(runtime_driver(b->s->rt), &f) && !rc;
}

static struct fagen_abi_tensor dense(const struct gpu_buffer *buffer, int64_t rows, int dim)
{
	return (struct fagen_abi_tensor){buffer->data, HEADS * rows * dim, rows * dim, dim};
}

/* -4 .. 4 */
static int *integers(int64_t count, int stream)
{
	int *x = malloc((size_t)count * sizeof *x);
	struct random random;
	if (!x)
		abort();
	random_begin(&random, 3, (uint64_t)stream);
	for (int64_t i = 0; i < count; i++)
		x[i] = (int)(random_next(&random) % 9) - 4;
	return x;
}

static uint16_t *encoded(const int *x, int64_t count, bool bf16)
{
	uint16_t *to = malloc((size_t)count * sizeof *to);
	if (!to)
		abort();
	for (int64_t i = 0; i < count; i++)
		to[i] = number_encode(x[i], bf16);
	return to;
}

/* ---- products ---------------------------------------------------------------------------------------------------------- */

enum { AT_QUERY, AT_KEY, AT_VALUE, AT_PROB, AT_SCORES, AT_OUT };

/* rows: of V that count; those behind them are cleared on the device. */
static bool products_right(struct bench *b, int rows)
{
	const int keys = b->shape->keys, dqk = b->shape->dim_qk, dv = b->shape->dim_v;
	const bool bf16 = b->shape->dtype == DTYPE_BF16;
	const int64_t count[] = {BATCH * HEADS * 64 * dqk, BATCH * HEADS * keys * dqk, BATCH * HEADS * keys * dv, 64 * keys};
	int *x[4];
	float *const scores = malloc(64 * (size_t)keys * 4), *const out = malloc(64 * (size_t)dv * 4);
	bool ok = scores && out;
	for (int i = 0; i < 4; i++) {
		x[i] = integers(count[i], i);
		uint16_t *bits = encoded(x[i], count[i], bf16);
		ok = ok && buffer_make(b, i, bits, (size_t)count[i] * 2);
		free(bits);
	}
	ok = ok && buffer_make(b, AT_SCORES, NULL, 64 * (size_t)keys * 4) && buffer_make(b, AT_OUT, NULL, 64 * (size_t)dv * 4);
	const struct fagen_abi abi = {.query = dense(&b->buffer[AT_QUERY], 64, dqk),
	                              .key = dense(&b->buffer[AT_KEY], keys, dqk),
	                              .value = dense(&b->buffer[AT_VALUE], keys, dv)};
	struct fagen_abi_maps maps;
	void *params[] = {&maps, &b->buffer[AT_PROB].data, &rows, &b->buffer[AT_SCORES].data, &b->buffer[AT_OUT].data};
	const size_t panels = (size_t)((dqk + 63) / 64 * (64 + keys) + (dv + 63) / 64 * keys) * 128;
	ok = ok && maps_make(b, &maps, &abi, 3, 64, keys) && bench_launch(b, "products", 128, panels + 64, params) &&
	     buffer_read(b, AT_SCORES, scores) && buffer_read(b, AT_OUT, out);
	const int *query = x[0] + (HEADS + 1) * 64 * dqk, *key = x[1] + (HEADS + 1) * keys * dqk, *value = x[2] + (HEADS + 1) * keys * dv;
	for (int i = 0; ok && i < 64; i++)
		for (int k = 0; ok && k < keys; k++) {
			int sum = 0;
			for (int d = 0; d < dqk; d++)
				sum += query[i * dqk + d] * key[k * dqk + d];
			if (scores[i * keys + k] != (float)sum)
				ok = wrong(b, "S", i, k, scores[i * keys + k], sum);
		}
	for (int i = 0; ok && i < 64; i++)
		for (int d = 0; ok && d < dv; d++) {
			int sum = 3;
			for (int k = 0; k < rows; k++)
				sum += x[3][i * keys + k] * value[k * dv + d];
			if (out[i * dv + d] != (float)sum)
				ok = wrong(b, "O", i, d, out[i * dv + d], sum);
		}
	for (int i = 0; i < 4; i++)
		free(x[i]);
	free(scores);
	free(out);
	return ok;
}

/* The first operand MN-major: columns of Q over rows of Q. */
static bool transposed_right(struct bench *b)
{
	const int keys = b->shape->keys, dim = b->shape->dim_qk, rows = dim > 64 ? keys : keys / 2;
	const bool bf16 = b->shape->dtype == DTYPE_BF16;
	const int64_t count[] = {BATCH * HEADS * 64 * dim, BATCH * HEADS * keys * dim};
	int *x[2];
	float *const out = malloc(64 * (size_t)rows * 4);
	bool ok = out && buffer_make(b, AT_OUT, NULL, 64 * (size_t)rows * 4);
	for (int i = 0; i < 2; i++) {
		x[i] = integers(count[i], i);
		uint16_t *bits = encoded(x[i], count[i], bf16);
		ok = ok && buffer_make(b, i, bits, (size_t)count[i] * 2);
		free(bits);
	}
	const struct fagen_abi abi = {.query = dense(&b->buffer[AT_QUERY], 64, dim), .key = dense(&b->buffer[AT_KEY], keys, dim)};
	struct fagen_abi_maps maps;
	void *params[] = {&maps, &b->buffer[AT_OUT].data};
	ok = ok && maps_make(b, &maps, &abi, 2, 64, keys) && bench_launch(b, "transposed", 128, (size_t)(64 + keys) * 128 + 64, params) &&
	     buffer_read(b, AT_OUT, out);
	const int *query = x[0] + (HEADS + 1) * 64 * dim, *key = x[1] + (HEADS + 1) * keys * dim;
	for (int c = 0; ok && c < 64; c++)
		for (int r = 0; ok && r < rows; r++) {
			int sum = 0;
			for (int j = 0; j < 64 && j < dim; j++)
				sum += c < dim ? query[j * dim + c] * key[r * dim + j] : 0;
			if (out[c * rows + r] != (float)sum)
				ok = wrong(b, "Q^T K^T", c, r, out[c * rows + r], sum);
		}
	free(x[0]);
	free(x[1]);
	free(out);
	return ok;
}

/* Two CTAs: P^T Q and P K of 64 rows and 128 keys. */
static bool pair_right(struct bench *b)
{
	const int dim = b->shape->dim_qk, panels = (dim + 63) / 64, columns = 64 * panels;
	const int64_t count[] = {BATCH * HEADS * 64 * dim, BATCH * HEADS * 128 * dim, [AT_PROB] = 64 * 128};
	int *x[AT_PROB + 1] = {NULL};
	float *const keys = malloc(128 * (size_t)dim * 4), *const rows = malloc(64 * (size_t)columns * 4);
	bool ok = keys && rows && buffer_make(b, AT_SCORES, NULL, 128 * (size_t)dim * 4) &&
	          buffer_make(b, AT_OUT, NULL, 64 * (size_t)columns * 4);
	for (int i = 0; i <= AT_PROB; i++) {
		if (i == AT_VALUE)
			continue;
		x[i] = integers(count[i], i);
		uint16_t *bits = encoded(x[i], count[i], b->shape->dtype == DTYPE_BF16);
		ok = ok && buffer_make(b, i, bits, (size_t)count[i] * 2);
		free(bits);
	}
	const struct fagen_abi abi = {.query = dense(&b->buffer[AT_QUERY], 64, dim), .key = dense(&b->buffer[AT_KEY], 128, dim)};
	struct fagen_abi_maps maps;
	void *params[] = {&maps, &b->buffer[AT_PROB].data, &b->buffer[AT_SCORES].data, &b->buffer[AT_OUT].data};
	ok = ok && maps_make(b, &maps, &abi, 2, 64, 128) &&
	     bench_launch_all(b, "pair", 2, 128, (size_t)(3 * panels + 2) * 8192 + 64, params) && buffer_read(b, AT_SCORES, keys) &&
	     buffer_read(b, AT_OUT, rows);
	const int *query = x[AT_QUERY] + (HEADS + 1) * 64 * dim, *key = x[AT_KEY] + (HEADS + 1) * 128 * dim, *prob = x[AT_PROB];
	for (int k = 0; ok && k < 128; k++)
		for (int d = 0; ok && d < dim; d++) {
			int sum = 0;
			for (int q = 0; q < 64; q++)
				sum += prob[q * 128 + k] * query[q * dim + d];
			if (keys[k * dim + d] != (float)sum)
				ok = wrong(b, "P^T Q", k, d, keys[k * dim + d], sum);
		}
	for (int q = 0; ok && q < 64; q++)
		for (int d = 0; ok && d < columns; d++) {
			int sum = 0;
			for (int k = 0; k < 128 && d < dim; k++)
				sum += prob[q * 128 + k] * key[k * dim + d];
			if (rows[q * columns + d] != (float)sum)
				ok = wrong(b, "P K", q, d, rows[q * columns + d], sum);
		}
	for (int i = 0; i <= AT_PROB; i++)
		free(x[i]);
	free(keys);
	free(rows);
	return ok;
}

/* stmatrix, and bulk copies of bytes. */
static bool bulk_right(struct bench *b, unsigned bytes)
{
	unsigned words[128];
	unsigned char from[4096], copied[4096];
	uint16_t got[2 * 32 * 8];
	for (int i = 0; i < 128; i++) /* elements number 2i and 2i + 1 of the four matrices, as lanes hold them */
		words[i] = (unsigned)(2 * i) | (unsigned)(2 * i + 1) << 16;
	for (int i = 0; i < 4096; i++)
		from[i] = (unsigned char)(i * 7 % 251);
	if (!buffer_make(b, AT_PROB, words, sizeof words) || !buffer_make(b, AT_VALUE, from, sizeof from) ||
	    !buffer_make(b, AT_OUT, NULL, sizeof got) || !buffer_make(b, AT_SCORES, NULL, sizeof copied))
		return false;
	void *params[] = {&b->buffer[AT_PROB].data, &b->buffer[AT_VALUE].data, &bytes, &b->buffer[AT_OUT].data,
	                  &b->buffer[AT_SCORES].data};
	if (!bench_launch(b, "bulk", 32, 2 * 512 + 16 + 4096, params) || !buffer_read(b, AT_OUT, got) ||
	    !buffer_read(b, AT_SCORES, copied))
		return false;
	for (int m = 0; m < 4; m++)
		for (int r = 0; r < 8; r++)
			for (int c = 0; c < 8; c++) /* held at row c, column r */
				if (got[(8 * m + r) * 8 + c] != 64 * m + 8 * c + r)
					return wrong(b, "matrices", 8 * m + r, c, got[(8 * m + r) * 8 + c], 64 * m + 8 * c + r);
	for (int i = 0; i < 32 * 8; i++)
		if (got[32 * 8 + i] != i)
			return wrong(b, "rows of matrices", i / 8, i % 8, got[32 * 8 + i], i);
	for (unsigned i = 0; i < sizeof copied; i++)
		if (copied[i] != (i < bytes ? from[i] : 0xff))
			return wrong(b, "bytes", i, 0, copied[i], i < bytes ? from[i] : 0xff);
	return true;
}

/* Bulk copies that add, of four warps into the same place, one round after the other in the same shared memory. */
static bool reduction_right(struct bench *b, unsigned bytes)
{
	float sums[1024];
	int rounds = 50;
	for (int i = 0; i < 1024; i++)
		sums[i] = (float)(3 * i);
	if (!buffer_make(b, AT_OUT, sums, sizeof sums))
		return false;
	void *params[] = {&b->buffer[AT_OUT].data, &bytes, &rounds};
	if (!bench_launch(b, "reduction", 128, 4 * 4096, params) || !buffer_read(b, AT_OUT, sums))
		return false;
	for (int i = 0; i < 1024; i++) {
		const int added = 4 * i * rounds + rounds * (rounds - 1) / 2 * (0 + 1 + 2 + 3);
		const int want = 3 * i + (i < (int)bytes / 4 ? added : 0);
		if (sums[i] != (float)want)
			return wrong(b, "sums", i, 0, sums[i], want);
	}
	return true;
}

/* Sums in the order of the CTAs, whose every bit is that of the same additions here; and sums of which whoever comes first stores. */
static bool handed_right(struct bench *b, int ctas)
{
	float ordered[1024], claimed[1024];
	const unsigned words[2] = {(unsigned)ctas - 1, 1};
	memset(ordered, 0xff, sizeof ordered);
	if (!buffer_make(b, AT_OUT, ordered, sizeof ordered) || !buffer_make(b, AT_SCORES, ordered, sizeof ordered) ||
	    !buffer_make(b, AT_PROB, words, sizeof words))
		return false;
	void *params[] = {&b->buffer[AT_OUT].data, &b->buffer[AT_SCORES].data, &b->buffer[AT_PROB].data};
	if (!bench_launch_all(b, "handed", (unsigned)ctas, 32, 2 * 4096, params) || !buffer_read(b, AT_OUT, ordered) ||
	    !buffer_read(b, AT_SCORES, claimed))
		return false;
	for (int i = 0; i < 1024; i++) {
		float sum = 0;
		for (int cta = ctas - 1; cta >= 0; cta--) {
			const float eighths = (float)((cta * 37 + i * 11) % 101) * 0.125f; /* exact, fused or not */
			sum += eighths + (cta % 3 == 1 ? 1e7f : 0);
		}
		if (ordered[i] != sum)
			return wrong(b, "ordered sums", i, 0, ordered[i], sum);
		const int want = i * ctas + ctas * (ctas - 1) / 2;
		if (claimed[i] != (float)want)
			return wrong(b, "claimed sums", i, 0, claimed[i], want);
	}
	return true;
}

/* ---- boxes ---------------------------------------------------------------------------------------------------------------- */

/* Strides of keys [BATCH][HEADS][BOX_ROWS][dim] in rows; 0: all the same. */
static const struct {
	const char *name;
	int batch, head, row;
} box_layouts[] = {{"dense", HEADS * BOX_ROWS, BOX_ROWS, 1},
                   {"heads inside rows", BOX_ROWS * HEADS, 1, HEADS},
                   {"one entry for all", 0, BOX_ROWS, 1},
                   {"one head for all", BOX_ROWS, 0, 1}};
static const struct {
	int column, row, head, batch;
} box_places[] = {{0, 0, 0, 0}, {0, 16, 2, 1}, {0, BOX_ROWS - 3, 1, 1}, {0, BOX_ROWS, 1, 0}, {64, 8, 1, 1}, {0, -5, 1, 1}};

/* The element of a box that lies at row and column of it: chunks of 16 bytes are exchanged within a row by its number. */
static int swizzled(int row, int column) { return row * 64 + ((column / 8 ^ row % 8) * 8 | column % 8); }

static bool boxes_right(struct bench *b, int layout)
{
	const int keys = b->shape->keys, dim = b->shape->dim_qk;
	const int64_t count = BATCH * HEADS * BOX_ROWS * dim;
	int *x = integers(count, 9);
	uint16_t *bits = encoded(x, count, true), *got = malloc((size_t)keys * 128);
	bool ok = got && buffer_make(b, AT_KEY, bits, (size_t)count * 2);
	const struct fagen_abi abi = {.key = {b->buffer[AT_KEY].data, box_layouts[layout].batch * (long long)dim,
	                                      box_layouts[layout].head * (long long)dim, box_layouts[layout].row * (long long)dim}};
	struct fagen_abi_maps maps;
	ok = ok && maps_make(b, &maps, &abi, 2, 0, BOX_ROWS);
	for (size_t i = 0; ok && i < sizeof box_places / sizeof *box_places; i++) {
		int column = box_places[i].column, row = box_places[i].row, head = box_places[i].head, batch = box_places[i].batch;
		ok = buffer_make(b, AT_OUT, NULL, (size_t)keys * 128);
		void *params[] = {&maps, &column, &row, &head, &batch, &b->buffer[AT_OUT].data};
		ok = ok && bench_launch(b, "box", 128, (size_t)keys * 128 + 64, params) && buffer_read(b, AT_OUT, got);
		const int64_t first = batch * box_layouts[layout].batch + head * box_layouts[layout].head;
		for (int r = 0; ok && r < keys; r++)
			for (int c = 0; ok && c < 64; c++) {
				const bool inside = row + r >= 0 && row + r < BOX_ROWS && column + c < dim;
				const uint16_t want =
					inside ? bits[(first + (row + r) * box_layouts[layout].row) * dim + column + c] : 0;
				if (got[swizzled(r, c)] != want)
					ok = wrong(b, box_layouts[layout].name, row + r, column + c,
					           number_decode(got[swizzled(r, c)], true), number_decode(want, true));
			}
	}
	free(x);
	free(bits);
	free(got);
	return ok;
}

/* ---- barriers --------------------------------------------------------------------------------------------------------------- */

static bool ring_right(struct bench *b)
{
	const int dim = b->shape->dim_qk;
	const int64_t rows = RING_BOXES * 64, count = BATCH * HEADS * rows * dim;
	int *x = integers(count, 5);
	uint16_t *bits = encoded(x, count, true);
	unsigned hashes[256] = {0}, rounds = RING_ROUNDS, boxes = RING_BOXES;
	bool ok = buffer_make(b, AT_QUERY, bits, (size_t)count * 2) && buffer_make(b, AT_OUT, NULL, sizeof hashes);
	const struct fagen_abi abi = {.query = dense(&b->buffer[AT_QUERY], rows, dim)};
	struct fagen_abi_maps maps;
	void *params[] = {&maps, &rounds, &boxes, &b->buffer[AT_OUT].data};
	ok = ok && maps_make(b, &maps, &abi, 1, rows, 0) && bench_launch(b, "ring", 384, 3 * 8192 + 64, params) &&
	     buffer_read(b, AT_OUT, hashes);
	for (int t = 0; ok && t < 256; t++) {
		unsigned hash = 0;
		for (unsigned n = 0; n < rounds; n++)
			for (int i = t % 128; i < 64 * 32; i += 128) { /* word i of the box, as it lies there */
				const int r = i / 32, at = i % 32 * 2, c = (at / 8 ^ r % 8) * 8 | at % 8;
				const uint16_t *row = bits + ((int64_t)(n % boxes) * 64 + r) * dim;
				hash = hash * 31 + ((c < dim ? row[c] : 0u) | (unsigned)(c + 1 < dim ? row[c + 1] : 0) << 16);
			}
		if (hash != hashes[t])
			ok = wrong(b, "hash", t, 0, hashes[t], hash);
	}
	free(x);
	free(bits);
	return ok;
}

/* In turns: nobody says yes, one does, all do, by chance. */
static bool votes_right(struct bench *b)
{
	unsigned char yes[ROUNDS * 256], any[ROUNDS * 256];
	int rounds = ROUNDS;
	struct random random;
	random_begin(&random, 6, 0);
	for (int i = 0; i < ROUNDS; i++)
		for (int t = 0; t < 256; t++)
			yes[i * 256 + t] = i % 4 == 0   ? 0
			                   : i % 4 == 1 ? t == i * 37 % 256
			                   : i % 4 == 2 ? 1
			                                : random_next(&random) % 100 == 0;
	void *params[] = {&b->buffer[AT_PROB].data, &rounds, &b->buffer[AT_OUT].data};
	if (!buffer_make(b, AT_PROB, yes, sizeof yes) || !buffer_make(b, AT_OUT, NULL, sizeof any))
		return false;
	if (!bench_launch(b, "votes", 256, 64, params) || !buffer_read(b, AT_OUT, any))
		return false;
	for (int i = 0; i < ROUNDS; i++)
		for (int t = 0; t < 256; t++) {
			int want = 0;
			for (int k = 0; k < 128; k++)
				want |= yes[i * 256 + t / 128 * 128 + k];
			if (any[i * 256 + t] != want)
				return wrong(b, "any", i, t, any[i * 256 + t], want);
		}
	return true;
}

static bool turns_right(struct bench *b, int groups)
{
	unsigned char log[3 * ROUNDS];
	int rounds = ROUNDS;
	if (!buffer_make(b, AT_OUT, NULL, (size_t)(groups * ROUNDS)))
		return false;
	void *params[] = {&rounds, &b->buffer[AT_OUT].data};
	if (!bench_launch(b, "turns", 128 * groups, 64, params) || !buffer_read(b, AT_OUT, log))
		return false;
	for (int i = 0; i < groups * ROUNDS; i++)
		if (log[i] != i % groups)
			return wrong(b, "turn", i, 0, log[i], i % groups);
	return true;
}

/* ---- all ---------------------------------------------------------------------------------------------------------------------- */

static void bench_result(struct bench *b, bool ok, const char *what, const char *variant)
{
	char name[160];
	snprintf(name, sizeof name, "%s, %s, %d keys, head dims %d and %d%s%s", what, b->shape->dtype == DTYPE_BF16 ? "bf16" : "fp16", b->shape->keys,
	         b->shape->dim_qk, b->shape->dim_v, *variant ? ": " : "", variant);
	if (b->diag.errors)
		snprintf(b->text, sizeof b->text, "%.500s", text_str(&b->diag.text));
	suite_result(b->s, CLASS_SYN, ok, name, b->text);
	diag_free(&b->diag);
	b->diag = (struct diag){0};
	b->text[0] = '\0';
	suite_watch(b->s);
}

void suite_ptx(struct suite *s)
{
	if (s->gpu.cc != 90)
		return;
	for (int i = 0; i < ptx_shape_count; i++) {
		struct bench b;
		if (!suite_mine(s))
			continue;
		if (!bench_open(&b, s, &ptx_shapes[i])) {
			bench_result(&b, false, "compiling", "");
			continue;
		}
		const int keys = ptx_shapes[i].keys;
		if (ptx_shapes[i].pair) {
			bench_result(&b, pair_right(&b), "a pair of CTAs", "");
			bench_close(&b);
			continue;
		}
		bench_result(&b, products_right(&b, keys), "products", "");
		bench_result(&b, products_right(&b, keys - 5), "products", "five rows of V cleared");
		bench_result(&b, transposed_right(&b), "products", "the first operand transposed");
		bench_result(&b, bulk_right(&b, 16), "bulk copy, stmatrix", "16 bytes");
		bench_result(&b, bulk_right(&b, 4096 - 48), "bulk copy, stmatrix", "4048 bytes");
		bench_result(&b, reduction_right(&b, 16), "bulk sums", "16 bytes");
		bench_result(&b, reduction_right(&b, 4096), "bulk sums", "4096 bytes");
		for (int ctas = 1; ctas <= 64; ctas *= 8)
			bench_result(&b, handed_right(&b, ctas), "sums that nobody has cleared", ctas == 1 ? "1 CTA" : ctas == 8 ? "8 CTAs" : "64 CTAs");
		for (int layout = 0; layout < (int)(sizeof box_layouts / sizeof *box_layouts); layout++)
			bench_result(&b, boxes_right(&b, layout), "boxes", box_layouts[layout].name);
		bench_result(&b, ring_right(&b), "ring", "");
		bench_result(&b, votes_right(&b), "votes", "");
		bench_result(&b, turns_right(&b, 2), "turns", "2");
		bench_result(&b, turns_right(&b, 3), "turns", "3");
		bench_close(&b);
	}
}
