/* load: kernels that are made, by whoever made them: onto a device, into the registry, out again. */
#include "runtime/kernel.h"

#include <stdlib.h>
#include <string.h>

int device_of(struct runtime_device **out, fagen_runtime *rt, int ordinal, struct fault *f)
{
	pthread_mutex_lock(&rt->mutex);
	struct runtime_device *d = rt->devices;
	while (d && d->ordinal != ordinal)
		d = d->next;
	int rc = 0;
	if (!d) {
		struct gpu gpu;
		if (driver_gpu(&gpu, rt->driver, ordinal, f)) {
			rc = -1;
		} else if (!(d = calloc(1, sizeof *d))) {
			rc = fault_fail(f, FAGEN_ERROR_MEMORY, NULL, "Out of memory.");
		} else {
			d->ordinal = ordinal;
			d->gpu = gpu;
			d->target = target_for_cc(gpu.cc);
			d->next = rt->devices;
			rt->devices = d;
		}
	}
	pthread_mutex_unlock(&rt->mutex);
	*out = d;
	return rc;
}

/* ---- loading ---- */

/* Offset in struct fagen_abi of the field that a workspace piece is named after; 0, where no piece can be, if none. */
static size_t piece_field(const char *name)
{
	static const struct {
		const char *name;
		size_t offset;
	} field[] = {
		{"delta", offsetof(struct fagen_abi, delta)},
		{"dquery_accum", offsetof(struct fagen_abi, dquery_accum)},
		{"turns", offsetof(struct fagen_abi, turns)},
		{"scores", offsetof(struct fagen_abi, scores)},
		{"dscores", offsetof(struct fagen_abi, dscores)},
		{"bounds_rows", offsetof(struct fagen_abi, bounds_rows)},
		{"bounds_cols", offsetof(struct fagen_abi, bounds_cols)},
		{"blocks", offsetof(struct fagen_abi, blocks)},
		{"grad_partial", offsetof(struct fagen_abi, grad_partial)},
		{"grad_partial_cols", offsetof(struct fagen_abi, grad_partial_cols)},
		{"queue", offsetof(struct fagen_abi, queue)},
		{"order", offsetof(struct fagen_abi, order)},
		{"parts", offsetof(struct fagen_abi, parts)},
	};
	for (size_t i = 0; i < sizeof field / sizeof *field; i++)
		if (!strcmp(name, field[i].name))
			return field[i].offset;
	return 0;
}

int pieces_find(struct kernel_pass *pass, struct fault *f)
{
	for (int p = 0; p < pass->recipe.piece_count; p++)
		if (!(pass->piece_field[p] = piece_field(pass->recipe.piece[p].name)))
			return fault_fail(f, FAGEN_ERROR_SPEC, NULL,
			                  "The recipe of kernel %s has a workspace piece \"%s\", which struct fagen_abi does not "
			                  "have.",
			                  pass->recipe.kernel[0].entry, pass->recipe.piece[p].name);
	return 0;
}

static int load_fail(const struct fagen_kernel *k, struct fault *f, cu_result r, const char *what)
{
	driver_fail(k->runtime->driver, f, r, what);
	const int version = driver_version(k->runtime->driver);
	if (r == CU_NO_BINARY_FOR_GPU || r == CU_INVALID_IMAGE || r == CU_INVALID_PTX ||
	    r == CU_UNSUPPORTED_PTX_VERSION || r == CU_INVALID_SOURCE)
		return fault_fail(
			f, FAGEN_ERROR_DRIVER, NULL,
			"The driver (of CUDA %d.%d) does not take code that %s%s made for %s. A driver runs the code of "
			"compilers up to its own CUDA version: update the driver, or %s.",
			version / 1000, version % 1000 / 10, k->pack ? "the compiler of " : "the compiler ", k->maker,
			k->target->name,
			k->pack ? "build the pack with an older NVRTC" : "name an older NVRTC in FAGEN_NVRTC");
	if (r >= CU_CAPTURE_UNSUPPORTED && r <= CU_CAPTURE_WRONG_THREAD)
		return fault_fail(f, FAGEN_ERROR_DRIVER, NULL,
		                  "A stream is being captured into a graph: get kernels before the capture begins.");
	return -1;
}

/* With the primary context current. Everything that a launch needs is set before anybody else sees the kernel. */
static int pass_load(struct fagen_kernel *k, struct kernel_pass *pass, const void *code, struct fault *f)
{
	const struct cuda_calls *cu = driver_calls(k->runtime->driver);
	cu_result r = cu->cuLibraryLoadData(&pass->library, code, NULL, NULL, 0, NULL, NULL, 0);
	if (r) {
		pass->library = NULL;
		return load_fail(k, f, r, "Loading a kernel (cuLibraryLoadData)");
	}
	for (int i = 0; i < pass->recipe.kernel_count; i++) {
		const struct recipe_kernel *rk = &pass->recipe.kernel[i];
		if ((r = cu->cuLibraryGetKernel(&pass->entry[i], pass->library, rk->entry)))
			return load_fail(k, f, r, "Looking up a kernel (cuLibraryGetKernel)");
		if (rk->smem_bytes > 0 && (r = cu->cuKernelSetAttribute(CU_KERNEL_MAX_DYNAMIC_SMEM, rk->smem_bytes,
		                                                        pass->entry[i], k->device)))
			return load_fail(k, f, r, "Asking for shared memory (cuKernelSetAttribute)");
		/* Lazy loading would otherwise put the copy to the device into the first launch, where a capture
		 * forbids it. */
		cu_function function;
		if ((r = cu->cuKernelGetFunction(&function, pass->entry[i])))
			return load_fail(k, f, r, "Loading a kernel (cuKernelGetFunction)");
		if (cu->cuFuncLoad && (r = cu->cuFuncLoad(function)))
			return load_fail(k, f, r, "Loading a kernel (cuFuncLoad)");
	}
	pass->kept = maps_keep(&pass->recipe);
	pass->launches = launches_keep();
	return 0;
}

int kernel_load(struct fagen_kernel *k, const void *const code[PASS_COUNT], struct fault *f)
{
	struct driver *d = k->runtime->driver;
	const struct cuda_calls *cu = driver_calls(d);
	if (driver_primary(&k->primary, d, k->ordinal, f))
		return -1;
	cu_result r = cu->cuDeviceGet(&k->device, k->ordinal);
	if (r)
		return driver_fail(d, f, r, "Opening the GPU (cuDeviceGet)");
	/* Loading allocates, which a capture in another mode would count against this thread. */
	unsigned int mode = CU_CAPTURE_RELAXED;
	if ((r = cu->cuThreadExchangeStreamCaptureMode(&mode)))
		return driver_fail(d, f, r, "Leaving capture mode (cuThreadExchangeStreamCaptureMode)");
	int rc = driver_push(d, k->ordinal, f);
	if (!rc) {
		for (int i = 0; i < PASS_COUNT && !rc; i++)
			if (k->pass[i].recipe.kernel_count)
				rc = pass_load(k, &k->pass[i], code[i], f);
		if (driver_pop(d, f))
			rc = -1;
	}
	if ((r = cu->cuThreadExchangeStreamCaptureMode(&mode)))
		rc = driver_fail(d, f, r, "Restoring capture mode (cuThreadExchangeStreamCaptureMode)");
	return rc;
}

/* Like loading, in no capture mode of this thread: a capture somewhere in the process would be broken by it. */
static void library_unload(const struct cuda_calls *cu, cu_library library)
{
	unsigned int mode = CU_CAPTURE_RELAXED;
	const cu_result r = cu->cuThreadExchangeStreamCaptureMode(&mode);
	cu->cuLibraryUnload(library);
	if (!r)
		cu->cuThreadExchangeStreamCaptureMode(&mode);
}

void kernel_free(struct fagen_kernel *k)
{
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	const bool ours = !driver_check_fork(k->runtime->driver, &f);
	for (int i = 0; i < PASS_COUNT; i++) {
		if (k->pass[i].library && ours)
			library_unload(driver_calls(k->runtime->driver), k->pass[i].library);
		free(k->pass[i].plan);
		free(k->pass[i].kept);
		free(k->pass[i].launches);
		key_drop(k->pass[i].key);
	}
	diag_free(&diag);
	free(k);
}

/* ---- the registry ---- */

static void registry_remove(fagen_runtime *rt, struct fagen_kernel *k)
{
	for (struct fagen_kernel **at = &rt->kernels; *at; at = &(*at)->next)
		if (*at == k) {
			*at = k->next;
			return;
		}
}

static bool problem_equal(const struct problem *a, const struct problem *b)
{
	return a->batch == b->batch && a->heads_q == b->heads_q && a->heads_kv == b->heads_kv &&
	       a->seqlen_q == b->seqlen_q && a->seqlen_k == b->seqlen_k && a->align == b->align;
}

static bool was_asked(const struct fagen_kernel *k, const struct kernel_request *request)
{
	if (k->spec != request->spec || k->ordinal != request->ordinal || k->naive != request->naive)
		return false;
	const int n = k->problem_count < KERNEL_PROBLEMS_MAX ? k->problem_count : KERNEL_PROBLEMS_MAX;
	for (int i = 0; i < n; i++)
		if (problem_equal(&k->problem[i], request->problem))
			return true;
	return false;
}

/* Waits while the kernel found is being made by another thread; a maker that failed has removed it, so looks again. */
struct fagen_kernel *kernel_find(fagen_runtime *rt, const struct kernel_request *request)
{
again:
	for (struct fagen_kernel *k = rt->kernels; k; k = k->next) {
		if (request->identity ? memcmp(&k->identity, request->identity, sizeof k->identity) != 0 : !was_asked(k, request))
			continue;
		if (k->ready)
			return k;
		pthread_cond_wait(&rt->made, &rt->mutex);
		goto again;
	}
	return NULL;
}

int kernel_settle(struct fagen_kernel **out, struct fagen_kernel *k, kernel_builder *build, const void *from, struct fault *f)
{
	fagen_runtime *rt = k->runtime;
	int rc = 0;
	pthread_mutex_lock(&rt->mutex);
	struct fagen_kernel *found = kernel_find(rt, &(struct kernel_request){.identity = &k->identity});
	if (!found) {
		k->next = rt->kernels;
		rt->kernels = k;
	} else if (found->spec == k->spec) {
		found->problem[found->problem_count++ % KERNEL_PROBLEMS_MAX] = k->problem[0];
	}
	pthread_mutex_unlock(&rt->mutex);
	if (!found) {
		rc = build(k, from, f);
		pthread_mutex_lock(&rt->mutex);
		if (rc)
			registry_remove(rt, k);
		k->ready = !rc;
		pthread_cond_broadcast(&rt->made);
		pthread_mutex_unlock(&rt->mutex);
		if (!rc)
			found = k;
	}
	if (found != k)
		kernel_free(k);
	if (!rc)
		*out = found;
	return rc;
}

int fagen_kernel_describe(fagen_kernel_info *out, const fagen_kernel *k, fagen_error *error)
{
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	fault_clear(error);
	fagen_kernel_info info = {.forward = kernel_has(k, PASS_FORWARD), .backward = kernel_has(k, PASS_BACKWARD)};
	memcpy(info.target, k->target->name, strnlen(k->target->name, sizeof info.target - 1));
	for (int i = 0; i < PASS_COUNT; i++) {
		const struct kernel_pass *pass = &k->pass[i];
		if (!kernel_has(k, (enum pass)i))
			continue;
		strcpy(info.source[i], pass->source);
		info.registers[i] = pass->registers;
		info.spill_bytes[i] = pass->spill_bytes;
		info.smem_bytes[i] = pass->smem_bytes;
		info.tile_m[i] = pass->tile_m;
		info.tile_n[i] = pass->tile_n;
	}
	if (!struct_give(out, &info, sizeof info))
		return FAGEN_OK;
	fault_fail(&f, FAGEN_ERROR_INVALID, "struct_size",
	           "info.struct_size is not set: it says which version of struct fagen_kernel_info the caller has.");
	return fault_report(error, &f);
}
