/* DET-03 to DET-06: the bits of a batch entry do not depend on how many others there are or how long they are. The same
 * tensors are launched whole and over fewer and fewer entries; forward and backward of each entry must come out the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/suite.h"

#define DET "head_dim: 64, kv_group: 2, mask: causal, deterministic: true, passes: [forward, backward]}"
enum { HEADS = 4, HEADS_KV = 2, DIM = 64, ENTRIES_MAX = 33 };
enum { QUERY, KEY, VALUE, DOUT, OUT, DQUERY, DKEY, DVALUE, LSE, TENSORS };
static const char *const names[TENSORS] = {"query", "key", "value", "dout", "out", "dquery", "dkey", "dvalue", "lse"};

static const struct batch {
	const char *id, *spec;
	int entries;
	int first_q, first_k;   /* lengths of entry 0 */
	int others_q, others_k; /* of the others */
	int step;               /* by which those differ from one another */
	int counts[3];          /* launches of that many entries, from entry 0 on */
} batches[] = {
	{"DET-03 a decode of 3000 keys alone and with 7 others",
         "{layout: packed, " DET,
         8,
         1,
         3000,
         1,
         2900,
         411,
         {8, 1}},
	{"DET-04 a decode alone and among 32", "{" DET, 32, 1, 500, 1, 500, 0, {32, 1}},
	{"DET-05 a prefill of 4096 alone and with 31 of 8", "{layout: packed, " DET, 32, 4096, 4096, 8, 8, 0, {32, 1}},
	{"DET-06 a decode among 33 and 32", "{" DET, 33, 1, 700, 1, 700, 0, {33, 32, 1}},
};

struct launch {
	struct suite *s;
	const struct batch *b;
	bool packed;
	int32_t first[2][ENTRIES_MAX + 1]; /* rows of queries, of keys */
	struct gpu_buffer buffer[TENSORS], cu[2], workspace;
	unsigned char *bits[TENSORS]; /* of the whole batch */
	struct diag diag;
	char text[2200];
};

static bool key_side(int t) { return t == KEY || t == VALUE || t == DKEY || t == DVALUE; }
static size_t row_bytes(int t)
{
	return t == LSE ? HEADS * sizeof(float) : (size_t)(key_side(t) ? HEADS_KV : HEADS) * DIM * 2;
}

static bool data_make(struct launch *l)
{
	const struct batch *b = l->b;
	const int device = l->s->options.device;
	for (int i = 0; i < b->entries; i++) {
		const int other_k = b->others_k - i * b->step;
		l->first[0][i + 1] = l->first[0][i] + (i ? b->others_q : b->first_q);
		l->first[1][i + 1] = l->first[1][i] + (i ? (other_k > 0 ? other_k : 0) : b->first_k);
	}
	for (int axis = 0; axis < 2; axis++)
		if (gpu_alloc(&l->cu[axis], l->s->rt, device, sizeof l->first[axis], &l->diag) ||
		    gpu_upload(&l->cu[axis], 0, l->first[axis], sizeof l->first[axis], l->s->rt, device, &l->diag))
			return false;
	for (int t = 0; t < TENSORS; t++) {
		const size_t bytes = (size_t)l->first[key_side(t)][b->entries] * row_bytes(t);
		struct random random;
		l->bits[t] = malloc(bytes);
		if (!l->bits[t])
			abort();
		random_begin(&random, 3, (uint64_t)t);
		for (size_t i = 0; i < bytes / 2; i++) {
			const uint16_t x = number_encode(random_normal(&random), true);
			memcpy(l->bits[t] + 2 * i, &x, 2);
		}
		if (gpu_alloc(&l->buffer[t], l->s->rt, device, bytes, &l->diag) ||
		    gpu_upload(&l->buffer[t], 0, l->bits[t], bytes, l->s->rt, device, &l->diag))
			return false;
	}
	return true;
}

/* Entries first .. first + count - 1, all outputs poisoned before. */
static bool launch_run(struct launch *l, const fagen_kernel *kernel, int first, int count)
{
	const struct batch *b = l->b;
	const int device = l->s->options.device;
	fagen_error error = {.struct_size = sizeof error};
	fagen_args a = {.struct_size = sizeof a,
	                .batch = count,
	                .heads_q = HEADS,
	                .heads_kv = HEADS_KV,
	                .seqlen_q = b->others_q > b->first_q ? b->others_q : b->first_q,
	                .seqlen_k = b->others_k > b->first_k ? b->others_k : b->first_k};
	fagen_tensor *const to[TENSORS] = {&a.query,  &a.key,  &a.value,  &a.dout, &a.out,
	                                   &a.dquery, &a.dkey, &a.dvalue, &a.lse};
	for (int t = 0; t < TENSORS; t++) {
		const int64_t dim = t == LSE ? 1 : DIM, row = dim * (key_side(t) ? HEADS_KV : HEADS);
		const int64_t skip = l->packed ? 0 : l->first[key_side(t)][first];
		*to[t] = (fagen_tensor){(void *)(uintptr_t)(l->buffer[t].data + (uint64_t)skip * row_bytes(t)),
		                        row * (key_side(t) ? a.seqlen_k : a.seqlen_q), dim, row};
		if (t >= OUT && gpu_poison(&l->buffer[t], l->s->rt, device, &l->diag))
			return false;
	}
	if (l->packed) {
		a.cu_seqlens_q = (const int32_t *)(uintptr_t)l->cu[0].data + first;
		a.cu_seqlens_k = (const int32_t *)(uintptr_t)l->cu[1].data + first;
		a.total_q = l->first[0][b->entries];
		a.total_k = l->first[1][b->entries];
	}
	if (!l->workspace.data) { /* the first launch is the largest */
		size_t bytes = 0;
		if (fagen_workspace_size(&bytes, kernel, &a, &error))
			return snprintf(l->text, sizeof l->text, "%s", error.message), false;
		if (gpu_alloc(&l->workspace, l->s->rt, device, bytes, &l->diag))
			return false;
	}
	a.workspace = (void *)(uintptr_t)l->workspace.data;
	a.workspace_size = l->workspace.bytes;
	if (gpu_poison(&l->workspace, l->s->rt, device, &l->diag))
		return false;
	if (fagen_forward(kernel, &a, NULL, &error) || fagen_backward(kernel, &a, NULL, &error))
		return snprintf(l->text, sizeof l->text, "%s", error.message), false;
	return !gpu_synchronize(l->s->rt, device, &l->diag);
}

/* Poison in a bf16 tensor: it was not written. */
static bool holds_poison(const unsigned char *bits, size_t bytes)
{
	for (size_t i = 0; i + 1 < bytes; i += 2)
		if (bits[i] == GPU_POISON && bits[i + 1] == GPU_POISON)
			return true;
	return false;
}

static bool entries_same(struct launch *l, int first, int count, bool keep)
{
	for (int t = OUT; t < TENSORS; t++) {
		const int32_t *rows = l->first[key_side(t)];
		const size_t at = (size_t)rows[first] * row_bytes(t),
			     bytes = (size_t)rows[first + count] * row_bytes(t) - at;
		unsigned char *got = malloc(bytes + 1);
		if (!got)
			abort();
		const int rc = gpu_download(got, &l->buffer[t], at, bytes, l->s->rt, l->s->options.device, &l->diag);
		const bool same = keep || !memcmp(got, l->bits[t] + at, bytes);
		if (keep)
			memcpy(l->bits[t] + at, got, bytes);
		const bool empty = keep && t != LSE && holds_poison(got, bytes);
		free(got);
		if (!rc && !same)
			snprintf(l->text, sizeof l->text,
			         "%s of entries %d to %d has other bits in a launch of these alone", names[t], first,
			         first + count - 1);
		if (empty)
			snprintf(l->text, sizeof l->text, "%s was not written", names[t]);
		if (rc || !same || empty)
			return false;
	}
	return true;
}

static void batch_case(struct suite *s, const struct batch *b)
{
	fagen_error error = {.struct_size = sizeof error};
	fagen_kernel *kernel;
	const fagen_problem wish = {.struct_size = sizeof wish, .align = 16};
	const fagen_spec *spec = suite_mine(s) ? suite_spec(s, CLASS_DET, b->spec) : NULL;
	struct launch *l = spec ? calloc(1, sizeof *l) : NULL;
	if (!l)
		return;
	*l = (struct launch){.s = s, .b = b, .packed = runtime_spec(spec)->layout == LAYOUT_PACKED};
	bool ok = false;
	if (fagen_kernel_get(&kernel, s->rt, spec, &wish, s->options.device, &error))
		snprintf(l->text, sizeof l->text, "%s", error.message);
	else
		ok = data_make(l);
	for (int i = 0; i < 3 && b->counts[i] && ok; i++)
		ok = launch_run(l, kernel, 0, b->counts[i]) && entries_same(l, 0, b->counts[i], i == 0);
	ok = ok && launch_run(l, kernel, b->entries - 1, 1) && entries_same(l, b->entries - 1, 1, false);
	/* Packed, the first of several entries then begins tiles behind row 0. */
	ok = ok && launch_run(l, kernel, 1, b->entries - 1) && entries_same(l, 1, b->entries - 1, false);
	suite_result(s, CLASS_DET, ok, b->id, l->diag.errors ? text_str(&l->diag.text) : l->text);
	for (int t = 0; t < TENSORS; t++) {
		gpu_free(&l->buffer[t], s->rt, s->options.device);
		free(l->bits[t]);
	}
	gpu_free(&l->cu[0], s->rt, s->options.device);
	gpu_free(&l->cu[1], s->rt, s->options.device);
	gpu_free(&l->workspace, s->rt, s->options.device);
	diag_free(&l->diag);
	free(l);
}

void suite_invariance(struct suite *s)
{
	for (size_t i = 0; i < 2; i++) /* the two specs of all, by the reference */
		suite_case(s, CLASS_DET, batches[i].spec, "b3,h4/2,q90,k150");
	if (s->warming || (s->only_class && strcmp(s->only_class, class_names[CLASS_DET])))
		return;
	for (size_t i = 0; i < sizeof batches / sizeof *batches; i++)
		batch_case(s, &batches[i]);
}
