#include "runtime/kernel.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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

/* With its row, which plans point into, so that it is filled in once. */
static int machine_of(struct runtime_device **out, fagen_runtime *rt, int ordinal, struct fault *f)
{
	if (device_of(out, rt, ordinal, f))
		return -1;
	pthread_mutex_lock(&rt->mutex);
	if ((*out)->target && !(*out)->device.name)
		device_fill(*out, &rt->rows);
	pthread_mutex_unlock(&rt->mutex);
	return 0;
}

int runtime_machine(const struct target **target, const struct device **device, fagen_runtime *rt, int ordinal,
                    struct diag *diag)
{
	struct fault f = {.diag = diag};
	struct runtime_device *d;
	if (driver_start(rt->driver, &f) || machine_of(&d, rt, ordinal, &f))
		return -1;
	if (!d->target)
		return diag_fail(diag, "Device %d, %s, has compute capability %d.%d, which no target of fagen runs on.",
		                 ordinal, d->gpu.name, d->gpu.cc / 10, d->gpu.cc % 10);
	*target = d->target;
	*device = &d->device;
	return 0;
}

static int target_check(const struct spec *spec, const struct runtime_device *d, struct fault *f)
{
	if (d->target && spec->targets[d->target - target_table])
		return 0;
	struct text names = {0};
	for (int i = 0; i < TARGET_COUNT; i++)
		if (spec->targets[i])
			text_addf(&names, "%s%s", names.len ? ", " : "", target_table[i].name);
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

/* ---- making one ---- */

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
		const struct problem *problem = &k->problem[0];
		if ((k->naive ? plan_naive(pass->plan, spec, program, k->target, device, problem, (enum pass)i, f->diag)
		              : plan_tuned(pass->plan, runtime_wisdom(k->runtime), spec, program, k->target, device, problem,
		                           (enum pass)i, f->diag)) ||
		    source_emit(&source[i], spec, program, pass->plan, k->runtime->templates_dir, f->diag)) {
			rc = fault_stage(f, FAGEN_ERROR_SPEC);
			break;
		}
		pass->recipe = pass->plan->recipe;
		pass->tile_m = pass->plan->candidate[pass->plan->chosen].tile_m;
		pass->tile_n = pass->plan->candidate[pass->plan->chosen].tile_n;
		struct text recipe = {0};
		recipe_print(&recipe, &pass->recipe);
		key_record(key, 'p', &i, sizeof i);
		struct store_key digest;
		pass->key = cubin_key_begin(&source[i]);
		key_finish(&digest, key_copy(pass->key));
		key_record(key, 's', digest.bytes, sizeof digest.bytes);
		key_record(key, 'r', text_str(&recipe), recipe.len);
		text_free(&recipe);
		rc = pieces_find(pass, f);
	}
	key_finish(&k->identity, key);
	return rc;
}

int kernel_compile(struct fagen_kernel *k, const void *sources, struct fault *f)
{
	const struct text *source = sources;
	const void *code[PASS_COUNT] = {NULL};
	struct cubin cubin[PASS_COUNT] = {{0}};
	int rc = 0;
	for (int i = 0; i < PASS_COUNT && !rc; i++) {
		struct kernel_pass *pass = &k->pass[i];
		if (!pass->recipe.kernel_count)
			continue;
		struct key_builder *begun = pass->key ? pass->key : cubin_key_begin(&source[i]);
		pass->key = NULL;
		if (cubin_get_begun(&cubin[i], begun, k->runtime->store, k->runtime->compiler, &source[i], k->target,
		                    &pass->recipe, f->diag)) {
			f->nvrtc_result = cubin[i].nvrtc_result;
			rc = fault_stage(f, FAGEN_ERROR_COMPILER);
			break;
		}
		pass->registers = cubin[i].registers;
		pass->spill_bytes = cubin[i].spill_bytes;
		pass->smem_bytes = cubin[i].smem_bytes;
		pass->source = cubin[i].from_store ? "cache" : "compiled";
		code[i] = cubin[i].code;
		pass->stored = cubin[i].key;
	}
	k->maker = compiler_path(k->runtime->compiler);
	if (!rc)
		rc = kernel_load(k, code, f);
	for (int i = 0; i < PASS_COUNT; i++)
		cubin_free(&cubin[i]);
	return rc;
}

/* `k` is the request: spec, device, naive, problem[0]; it is consumed. */
static int kernel_make(struct fagen_kernel **out, struct fagen_kernel *k, const struct device *device, struct fault *f)
{
	struct text source[PASS_COUNT] = {{0}};
	int rc = kernel_plan(k, source, device, f);
	if (rc)
		kernel_free(k);
	else
		rc = kernel_settle(out, k, kernel_compile, source, f);
	for (int i = 0; i < PASS_COUNT; i++)
		text_free(&source[i]);
	return rc;
}

/* The kernel that was got for this before, else a new one. */
static int kernel_get(fagen_kernel **out, fagen_runtime *rt, const fagen_spec *spec, const fagen_problem *problem,
                      int ordinal, bool naive, struct fault *f)
{
	struct problem p;
	if (problem_fill(&p, &spec->spec, problem, f) || driver_start(rt->driver, f))
		return -1;
	const struct kernel_request request = {.spec = spec, .problem = &p, .ordinal = ordinal, .naive = naive};
	pthread_mutex_lock(&rt->mutex);
	struct fagen_kernel *found = kernel_find(rt, &request);
	pthread_mutex_unlock(&rt->mutex);
	if (found) {
		*out = found;
		return 0;
	}
	struct runtime_device *device;
	if (machine_of(&device, rt, ordinal, f) || target_check(&spec->spec, device, f))
		return -1;
	struct fagen_kernel *k = calloc(1, sizeof *k);
	if (!k)
		return fault_fail(f, FAGEN_ERROR_MEMORY, NULL, "Out of memory.");
	k->runtime = rt;
	k->spec = spec;
	signature_make(&k->signature, &spec->spec);
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
	struct diag diag;
	struct fault f = {.diag = &diag};
	diag_begin(&diag);
	fault_clear(error);
	if (kernel_get(out, rt, spec, problem, ordinal, naive, &f))
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
