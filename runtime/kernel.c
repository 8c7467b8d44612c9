#include "runtime/kernel.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* ---- which device row, target and problem ---- */

/* Does `name` occur in the driver's name as whole words: "A100" in "NVIDIA A100-SXM4-80GB", but "RTX 509" in none. */
static bool name_has(const char *driver_name, const char *name)
{
	const size_t len = strlen(name);
	for (const char *p = driver_name; (p = strcasestr(p, name)); p++)
		if ((p == driver_name || !isalnum((unsigned char)p[-1])) && !isalnum((unsigned char)p[len]))
			return true;
	return false;
}

/* The row with the longest name that fits, else the default of the target; always with the SM count the driver gives,
 * which differs in partitions (MIG) and cut-down models. */
static void device_fill(struct runtime_device *d, const struct device_list *rows)
{
	const struct device *row = NULL;
	for (int i = 0; i < rows->count; i++)
		if (!strcmp(rows->row[i].target, d->target->name) && name_has(d->gpu.name, rows->row[i].name) &&
		    (!row || strlen(rows->row[i].name) > strlen(row->name)))
			row = &rows->row[i];
	d->device = row ? *row : *device_list_for_target(rows, d->target);
	if (!row)
		d->device.name = d->gpu.name;
	if (d->gpu.sms > 0)
		d->device.sms = d->gpu.sms;
}

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
			if (d->target)
				device_fill(d, &rt->rows);
			d->next = rt->devices;
			rt->devices = d;
		}
	}
	pthread_mutex_unlock(&rt->mutex);
	*out = d;
	return rc;
}

static int target_check(const struct spec *spec, const struct runtime_device *d, struct fault *f)
{
	struct text names = {0};
	for (int i = 0; i < TARGET_COUNT; i++)
		if (spec->targets[i]) {
			if (d->target == &target_table[i]) {
				text_free(&names);
				return 0;
			}
			text_addf(&names, "%s%s", names.len ? ", " : "", target_table[i].name);
		}
	if (!d->target)
		fault_fail(f, FAGEN_ERROR_SPEC, "targets",
		           "Device %d, %s, has compute capability %d.%d, which no target of fagen runs on; the spec's "
		           "targets are "
		           "[%s].",
		           d->ordinal, d->gpu.name, d->gpu.cc / 10, d->gpu.cc % 10, text_str(&names));
	else
		fault_fail(f, FAGEN_ERROR_SPEC, "targets",
		           "Device %d, %s, has compute capability %d.%d and needs target %s; the spec's targets are "
		           "[%s]. Add %s "
		           "to them.",
		           d->ordinal, d->gpu.name, d->gpu.cc / 10, d->gpu.cc % 10, d->target->name, text_str(&names),
		           d->target->name);
	text_free(&names);
	return -1;
}

static int problem_fill(struct problem *p, const struct spec *spec, const fagen_problem *given, struct fault *f)
{
	*p = spec->assume;
	if (!given)
		return 0;
	fagen_problem g;
	if (struct_take(&g, sizeof g, given))
		return fault_fail(
			f, FAGEN_ERROR_INVALID, "struct_size",
			"problem.struct_size is not set: it says which version of struct fagen_problem the caller has.");
	const struct {
		const char *name;
		int64_t value;
		int64_t *to;
	} size[] = {
		{"problem.batch", g.batch, &p->batch},          {"problem.heads_q", g.heads_q, &p->heads_q},
		{"problem.heads_kv", g.heads_kv, &p->heads_kv}, {"problem.seqlen_q", g.seqlen_q, &p->seqlen_q},
		{"problem.seqlen_k", g.seqlen_k, &p->seqlen_k},
	};
	for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
		if (size[i].value < 0 || size[i].value > LENGTH_MAX)
			return fault_fail(f, FAGEN_ERROR_INVALID, size[i].name,
			                  "%s is %lld; it must be 0 (as the spec assumes) to %d (2^30).", size[i].name,
			                  (long long)size[i].value, LENGTH_MAX);
		if (size[i].value)
			*size[i].to = size[i].value;
	}
	if (g.align != 0 && g.align != 2 && g.align != 16)
		return fault_fail(
			f, FAGEN_ERROR_INVALID, "problem.align",
			"problem.align is %d; it must be 16 (data and strides are multiples of 16 bytes), 2 (any), or 0 "
			"(as the spec assumes).",
			(int)g.align);
	if (g.align)
		p->align = g.align;
	if (spec->kv_group && g.heads_q && !g.heads_kv && g.heads_q % spec->kv_group == 0)
		p->heads_kv = g.heads_q / spec->kv_group;
	if (spec->kv_group && g.heads_kv && !g.heads_q)
		p->heads_q = g.heads_kv * spec->kv_group;
	if (p->heads_kv < 1 || p->heads_q > INT32_MAX || p->heads_q % p->heads_kv ||
	    (spec->kv_group && p->heads_q != p->heads_kv * spec->kv_group))
		return fault_fail(f, FAGEN_ERROR_INVALID, "problem.heads_kv",
		                  "problem.heads_q %lld and problem.heads_kv %lld do not fit: %s.",
		                  (long long)p->heads_q, (long long)p->heads_kv,
		                  spec->kv_group ? "the spec's kv_group is another number"
		                                 : "every key head serves the same number of query heads");
	return 0;
}

static bool problem_equal(const struct problem *a, const struct problem *b)
{
	return a->batch == b->batch && a->heads_q == b->heads_q && a->heads_kv == b->heads_kv &&
	       a->seqlen_q == b->seqlen_q && a->seqlen_k == b->seqlen_k && a->align == b->align;
}

/* ---- making one ---- */

/* Offset in struct fagen_abi of the field that a workspace piece is named after; 0, where no piece can be, if none. */
static size_t piece_field(const char *name)
{
	static const struct {
		const char *name;
		size_t offset;
	} field[] = {
		{"delta", offsetof(struct fagen_abi, delta)},
		{"dquery_accum", offsetof(struct fagen_abi, dquery_accum)},
		{"scores", offsetof(struct fagen_abi, scores)},
		{"dscores", offsetof(struct fagen_abi, dscores)},
		{"bounds_rows", offsetof(struct fagen_abi, bounds_rows)},
		{"bounds_cols", offsetof(struct fagen_abi, bounds_cols)},
		{"blocks", offsetof(struct fagen_abi, blocks)},
		{"grad_partial", offsetof(struct fagen_abi, grad_partial)},
		{"grad_partial_cols", offsetof(struct fagen_abi, grad_partial_cols)},
		{"queue", offsetof(struct fagen_abi, queue)},
	};
	for (size_t i = 0; i < sizeof field / sizeof *field; i++)
		if (!strcmp(name, field[i].name))
			return field[i].offset;
	return 0;
}

/* Plans and emits both passes, without touching compiler or driver, and computes the kernel's identity. */
static int kernel_plan(struct fagen_kernel *k, struct text source[PASS_COUNT], const struct device *device,
                       struct fault *f)
{
	const struct spec *spec = &k->spec->spec;
	const struct program *program = &k->spec->program;
	struct key_builder *key = key_begin();
	key_record(key, 'd', &k->ordinal, sizeof k->ordinal);
	key_record(key, 'n', &k->naive, sizeof k->naive);
	f->diag->file = k->spec->name;
	int rc = 0;
	for (int i = 0; i < PASS_COUNT && !rc; i++) {
		struct kernel_pass *pass = &k->pass[i];
		if (!spec->passes[i])
			continue;
		if (!(pass->plan = calloc(1, sizeof *pass->plan))) {
			rc = fault_fail(f, FAGEN_ERROR_MEMORY, NULL, "Out of memory.");
			break;
		}
		if ((k->naive ? plan_naive : plan_make)(pass->plan, spec, program, k->target, device, &k->problem[0],
		                                        (enum pass)i, f->diag) ||
		    source_emit(&source[i], spec, program, pass->plan, k->runtime->templates_dir, f->diag)) {
			rc = fault_stage(f, FAGEN_ERROR_SPEC);
			break;
		}
		pass->recipe = pass->plan->recipe;
		struct text recipe = {0};
		recipe_print(&recipe, &pass->recipe);
		key_record(key, 'p', &i, sizeof i);
		key_record(key, 's', text_str(&source[i]), source[i].len);
		key_record(key, 'r', text_str(&recipe), recipe.len);
		text_free(&recipe);
		for (int p = 0; p < pass->recipe.piece_count && !rc; p++)
			if (!(pass->piece_field[p] = piece_field(pass->recipe.piece[p].name)))
				rc = fault_fail(f, FAGEN_ERROR_SPEC, NULL,
				                "The plan of template %s has a workspace piece \"%s\", which "
				                "struct fagen_abi does not have.",
				                pass->plan->templ, pass->recipe.piece[p].name);
	}
	key_finish(&k->identity, key);
	return rc;
}

static int load_fail(const struct fagen_kernel *k, struct fault *f, cu_result r, const char *what)
{
	driver_fail(k->runtime->driver, f, r, what);
	const int version = driver_version(k->runtime->driver);
	if (r == CU_NO_BINARY_FOR_GPU || r == CU_INVALID_IMAGE || r == CU_INVALID_PTX ||
	    r == CU_UNSUPPORTED_PTX_VERSION || r == CU_INVALID_SOURCE)
		return fault_fail(
			f, FAGEN_ERROR_DRIVER, NULL,
			"The driver (of CUDA %d.%d) does not take code that the compiler %s made for %s. A driver runs "
			"the code of compilers up to its own CUDA version: update the driver, or name an older NVRTC in "
			"FAGEN_NVRTC.",
			version / 1000, version % 1000 / 10, compiler_path(k->runtime->compiler), k->target->name);
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
	return 0;
}

static int kernel_load(struct fagen_kernel *k, const struct cubin cubin[PASS_COUNT], struct fault *f)
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
				rc = pass_load(k, &k->pass[i], cubin[i].code, f);
		if (driver_pop(d, f))
			rc = -1;
	}
	if ((r = cu->cuThreadExchangeStreamCaptureMode(&mode)))
		rc = driver_fail(d, f, r, "Restoring capture mode (cuThreadExchangeStreamCaptureMode)");
	return rc;
}

void kernel_free(struct fagen_kernel *k)
{
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	const bool ours = !driver_check_fork(k->runtime->driver, &f);
	for (int i = 0; i < PASS_COUNT; i++) {
		if (k->pass[i].library && ours)
			driver_calls(k->runtime->driver)->cuLibraryUnload(k->pass[i].library);
		free(k->pass[i].plan);
	}
	diag_free(&diag);
	free(k);
}

/* The other half of making: compiles what the plan emitted and loads it. */
static int kernel_build(struct fagen_kernel *k, const struct text source[PASS_COUNT], struct fault *f)
{
	struct cubin cubin[PASS_COUNT] = {{0}};
	int rc = 0;
	for (int i = 0; i < PASS_COUNT && !rc; i++) {
		struct kernel_pass *pass = &k->pass[i];
		if (!pass->recipe.kernel_count)
			continue;
		if (cubin_get(&cubin[i], k->runtime->store, k->runtime->compiler, &source[i], k->target, &pass->recipe,
		              f->diag)) {
			f->nvrtc_result = cubin[i].nvrtc_result;
			rc = fault_stage(f, FAGEN_ERROR_COMPILER);
			break;
		}
		pass->registers = cubin[i].registers;
		pass->spill_bytes = cubin[i].spill_bytes;
		pass->smem_bytes = cubin[i].smem_bytes;
		pass->from_store = cubin[i].from_store;
	}
	if (!rc)
		rc = kernel_load(k, cubin, f);
	for (int i = 0; i < PASS_COUNT; i++)
		cubin_free(&cubin[i]);
	return rc;
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

/* Waits while the kernel found is being made by another thread; a maker that failed has removed it, so looks again. */
static struct fagen_kernel *registry_find(fagen_runtime *rt, const struct fagen_kernel *like, bool by_identity)
{
again:
	for (struct fagen_kernel *k = rt->kernels; k; k = k->next) {
		bool same = false;
		if (by_identity) {
			same = !memcmp(&k->identity, &like->identity, sizeof k->identity);
		} else if (k->spec == like->spec && k->ordinal == like->ordinal && k->naive == like->naive) {
			const int n = k->problem_count < KERNEL_PROBLEMS_MAX ? k->problem_count : KERNEL_PROBLEMS_MAX;
			for (int i = 0; i < n; i++)
				same = same || problem_equal(&k->problem[i], &like->problem[0]);
		}
		if (same && !k->ready) {
			pthread_cond_wait(&rt->made, &rt->mutex);
			goto again;
		}
		if (same)
			return k;
	}
	return NULL;
}

int kernel_settle(struct fagen_kernel **out, struct fagen_kernel *k, const struct text source[PASS_COUNT],
                  struct fault *f)
{
	fagen_runtime *rt = k->runtime;
	int rc = 0;
	pthread_mutex_lock(&rt->mutex);
	struct fagen_kernel *found = registry_find(rt, k, true);
	if (!found) {
		k->next = rt->kernels;
		rt->kernels = k;
	} else if (found->spec == k->spec) {
		found->problem[found->problem_count++ % KERNEL_PROBLEMS_MAX] = k->problem[0];
	}
	pthread_mutex_unlock(&rt->mutex);
	if (!found) {
		rc = kernel_build(k, source, f);
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

/* Finds or makes. `k` is the request: spec, device, naive, problem[0]; it is consumed. */
static int kernel_make(struct fagen_kernel **out, struct fagen_kernel *k, const struct device *device, struct fault *f)
{
	fagen_runtime *rt = k->runtime;
	pthread_mutex_lock(&rt->mutex);
	struct fagen_kernel *found = registry_find(rt, k, false);
	pthread_mutex_unlock(&rt->mutex);
	if (found) {
		free(k);
		*out = found;
		return 0;
	}
	struct text source[PASS_COUNT] = {{0}};
	int rc = kernel_plan(k, source, device, f);
	if (rc)
		kernel_free(k);
	else
		rc = kernel_settle(out, k, source, f);
	for (int i = 0; i < PASS_COUNT; i++)
		text_free(&source[i]);
	return rc;
}

static int kernel_request(fagen_kernel **out, fagen_runtime *rt, const fagen_spec *spec, const fagen_problem *problem,
                          int ordinal, bool naive, struct fault *f)
{
	struct problem p;
	if (problem_fill(&p, &spec->spec, problem, f) || driver_start(rt->driver, f))
		return -1;
	struct runtime_device *device;
	if (device_of(&device, rt, ordinal, f) || target_check(&spec->spec, device, f))
		return -1;
	struct fagen_kernel *k = calloc(1, sizeof *k);
	if (!k)
		return fault_fail(f, FAGEN_ERROR_MEMORY, NULL, "Out of memory.");
	k->runtime = rt;
	k->spec = spec;
	k->naive = naive;
	k->ordinal = ordinal;
	k->target = device->target;
	k->sms = device->device.sms;
	k->problem[0] = p;
	k->problem_count = 1;
	return kernel_make(out, k, &device->device, f);
}

static int kernel_call(fagen_kernel **out, fagen_runtime *rt, const fagen_spec *spec, const fagen_problem *problem,
                       int ordinal, bool naive, fagen_error *error)
{
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	fault_clear(error);
	if (kernel_request(out, rt, spec, problem, ordinal, naive, &f))
		return fault_report(error, &f);
	diag_free(&diag); /* warnings */
	return FAGEN_OK;
}

int fagen_kernel_get(fagen_kernel **out, fagen_runtime *rt, const fagen_spec *spec, const fagen_problem *problem,
                     int device, fagen_error *error)
{
	return kernel_call(out, rt, spec, problem, device, false, error);
}

int fagen_kernel_get_naive(fagen_kernel **out, fagen_runtime *rt, const fagen_spec *spec, const fagen_problem *problem,
                           int device, fagen_error *error)
{
	return kernel_call(out, rt, spec, problem, device, true, error);
}

int fagen_kernel_describe(fagen_kernel_info *out, const fagen_kernel *k, fagen_error *error)
{
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	fault_clear(error);
	fagen_kernel_info info = {.forward = k->pass[PASS_FORWARD].plan != NULL,
	                          .backward = k->pass[PASS_BACKWARD].plan != NULL};
	memcpy(info.target, k->target->name, strnlen(k->target->name, sizeof info.target - 1));
	for (int i = 0; i < PASS_COUNT; i++) {
		const struct kernel_pass *pass = &k->pass[i];
		if (!pass->plan)
			continue;
		strcpy(info.source[i], pass->from_store ? "cache" : "compiled");
		info.registers[i] = pass->registers;
		info.spill_bytes[i] = pass->spill_bytes;
		info.smem_bytes[i] = pass->smem_bytes;
		info.tile_m[i] = pass->plan->candidate[pass->plan->chosen].tile_m;
		info.tile_n[i] = pass->plan->candidate[pass->plan->chosen].tile_n;
	}
	if (!struct_give(out, &info, sizeof info))
		return FAGEN_OK;
	fault_fail(&f, FAGEN_ERROR_INVALID, "struct_size",
	           "info.struct_size is not set: it says which version of struct fagen_kernel_info the caller has.");
	return fault_report(error, &f);
}
