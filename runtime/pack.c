/* pack: kernels of a pack, for libfagen and libfagen_rt. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gen/revision.h"
#include "runtime/cubin_meta.h"
#include "runtime/kernel.h"

void pack_free(struct fagen_pack *p)
{
	if (p->map)
		munmap(p->map, p->map_len);
	free(p->name);
	free(p->names);
	free(p->first);
	free(p->got);
	free(p);
}

/* ---- opening ---- */

static int names_find(struct fagen_pack *p)
{
	const struct pack *pack = &p->pack;
	p->names = calloc((size_t)pack->count + 1, sizeof *p->names);
	p->first = calloc((size_t)pack->count + 1, sizeof *p->first);
	if (!p->names || !p->first)
		return -1;
	for (int i = 0; i < pack->count; i = pack_next(pack, i)) {
		struct pack_item item;
		pack_get(&item, pack, i);
		p->names[p->name_count] = item.name;
		p->first[p->name_count++] = i;
	}
	return (p->got = calloc((size_t)p->name_count + 1, sizeof *p->got)) ? 0 : -1;
}

/* Takes the mapping, if there is one, whatever comes of it. */
static int pack_keep(fagen_pack **out, fagen_runtime *rt, const void *bytes, size_t len, void *map, const char *name,
                     struct fault *f)
{
	char why[PACK_WHY_MAX];
	struct fagen_pack *p = calloc(1, sizeof *p);
	if (!p) {
		if (map)
			munmap(map, len);
		return fault_fail(f, FAGEN_ERROR_MEMORY, NULL, "Out of memory.");
	}
	p->runtime = rt;
	p->map = map;
	p->map_len = len;
	if (pack_read(&p->pack, bytes, len, PACK_LAUNCH_ABI, FAGEN_VERSION, why)) {
		fault_fail(f, FAGEN_ERROR_PACK, "path", "The pack %s cannot be used: %s.", name, why);
		pack_free(p);
		return -1;
	}
	if (!(p->name = strdup(name)) || names_find(p)) {
		pack_free(p);
		return fault_fail(f, FAGEN_ERROR_MEMORY, NULL, "Out of memory.");
	}
	pthread_mutex_lock(&rt->mutex);
	p->next = rt->packs;
	rt->packs = p;
	pthread_mutex_unlock(&rt->mutex);
	*out = p;
	return 0;
}

static int file_map(void **map, size_t *len, const char *path, struct fault *f)
{
	struct stat st;
	/* NONBLOCK: a FIFO must not hang the reader. */
	const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return fault_fail(f, FAGEN_ERROR_PACK, "path", "The pack %s cannot be opened: %s.", path, strerror(errno));
	int why = fstat(fd, &st) ? errno : 0;
	if (!why && (!S_ISREG(st.st_mode) || st.st_size < 1)) {
		close(fd);
		return fault_fail(f, FAGEN_ERROR_PACK, "path", "The pack %s cannot be used: it is %s.", path,
		                  S_ISREG(st.st_mode) ? "empty" : "no regular file");
	}
	*len = why ? 0 : (size_t)st.st_size;
	*map = why ? MAP_FAILED : mmap(NULL, *len, PROT_READ, MAP_PRIVATE, fd, 0);
	if (*map == MAP_FAILED) {
		why = why ? why : errno;
		fault_fail(f, FAGEN_ERROR_PACK, "path", "The pack %s cannot be read: %s.", path, strerror(why));
	}
	close(fd);
	return *map == MAP_FAILED ? -1 : 0;
}

int fagen_pack_open(fagen_pack **out, fagen_runtime *rt, const char *path, fagen_error *error)
{
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	void *map = NULL;
	size_t len = 0;
	fault_clear(error);
	if (!path)
		fault_fail(&f, FAGEN_ERROR_INVALID, "path", "path is NULL: it is the file of a pack.");
	else if (!file_map(&map, &len, path, &f) && !pack_keep(out, rt, map, len, map, path, &f))
		return FAGEN_OK;
	return fault_report(error, &f);
}

int fagen_pack_open_memory(fagen_pack **out, fagen_runtime *rt, const void *bytes, size_t len, const char *name,
                           fagen_error *error)
{
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	fault_clear(error);
	if (!bytes || (uintptr_t)bytes % 8)
		fault_fail(&f, FAGEN_ERROR_INVALID, "bytes", "bytes is %p: a pack in memory begins at a multiple of 8.", bytes);
	else if (!pack_keep(out, rt, bytes, len, NULL, name ? name : "in memory", &f))
		return FAGEN_OK;
	return fault_report(error, &f);
}

int fagen_pack_describe(fagen_pack_info *out, const fagen_pack *p, fagen_error *error)
{
	struct diag diag = {0};
	struct fault f = {.diag = &diag};
	struct store_key digest;
	fagen_pack_info info = {.names = p->name_count};
	fault_clear(error);
	memcpy(info.version, p->pack.version, sizeof info.version);
	memcpy(digest.bytes, pack_digest(&p->pack), sizeof digest.bytes);
	key_hex(info.sha256, &digest);
	if (!struct_give(out, &info, sizeof info))
		return FAGEN_OK;
	fault_fail(&f, FAGEN_ERROR_INVALID, "struct_size",
	           "info.struct_size is not set: it says which version of struct fagen_pack_info the caller has.");
	return fault_report(error, &f);
}

/* ---- finding ---- */

const char *fagen_pack_name(const fagen_pack *p, int32_t i) { return i >= 0 && i < p->name_count ? p->names[i] : NULL; }

static int name_find(const struct fagen_pack *p, const char *name)
{
	int low = 0, high = p->name_count;
	while (low < high) {
		const int middle = low + (high - low) / 2, order = strcmp(p->names[middle], name);
		if (!order)
			return middle;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return -1;
}

static int name_fail(const struct fagen_pack *p, const char *name, struct fault *f)
{
	enum { SHOWN = 20 };
	struct text all = {0};
	for (int i = 0; i < p->name_count && i < SHOWN; i++)
		text_addf(&all, "%s%s", i ? ", " : "", p->names[i]);
	const char *near = diag_nearest(name, p->names, p->name_count);
	if (near)
		fault_fail(f, FAGEN_ERROR_PACK, "name", "The pack %s has no kernel '%.64s': did you mean '%s'?", p->name, name, near);
	else
		fault_fail(f, FAGEN_ERROR_PACK, "name", "The pack %s has no kernel '%.64s'; it has %s%s.", p->name, name,
		           p->name_count ? text_str(&all) : "none", p->name_count > SHOWN ? ", ..." : "");
	text_free(&all);
	return -1;
}

/* The best target of a name that runs on the device, and its first record. */
static int target_choose(const struct target **target, int *record, const struct fagen_pack *p, int name,
                         const struct runtime_device *d, struct fault *f)
{
	struct text had = {0};
	const char *last = "";
	const int end = pack_next(&p->pack, p->first[name]);
	*target = NULL;
	for (int i = p->first[name]; i < end; i++) {
		struct pack_item item;
		pack_get(&item, &p->pack, i);
		const struct target *t = target_find(item.target);
		if (strcmp(item.target, last))
			text_addf(&had, "%s%s", had.len ? ", " : "", item.target);
		last = item.target;
		if (t && target_runs_on(t, d->gpu.cc) && (!*target || t->cc > (*target)->cc)) {
			*target = t;
			*record = i;
		}
	}
	if (!*target)
		fault_fail(f, FAGEN_ERROR_PACK, "device",
		           "The pack %s has '%s' for %s, but device %d, %s, has compute capability %d.%d, which none of them runs "
		           "on%s%s.",
		           p->name, p->names[name], text_str(&had), d->ordinal, d->gpu.name, d->gpu.cc / 10, d->gpu.cc % 10,
		           d->target ? ": build the pack for " : " (nor does any target of this fagen)",
		           d->target ? d->target->name : "");
	text_free(&had);
	return *target ? 0 : -1;
}

/* ---- loading ---- */

/* What the record of one pass says of it. */
static int pass_take(const void **code, struct fagen_kernel *k, const struct fagen_pack *p, int record, struct fault *f)
{
	struct pack_item item;
	struct entry_view entry;
	pack_get(&item, &p->pack, record);
	struct kernel_pass *pass = &k->pass[item.pass];
	const char *refused = revision_refused(revision_table, revision_count, item.templ, (int)item.revision);
	if (refused)
		return fault_fail(f, FAGEN_ERROR_PACK, "name",
		                  "The %s pass of '%s' in the pack %s was made from revision %u of template %s, which must not run: %s. "
		                  "Build the pack anew.",
		                  pass_names[item.pass], item.name, p->name, item.revision, item.templ, refused);
	if (!pack_entry(&entry, &p->pack, record))
		return fault_fail(f, FAGEN_ERROR_PACK, "name",
		                  "The %s pass of '%s' for %s in the pack %s is damaged: its digest does not fit. Get the pack anew.",
		                  pass_names[item.pass], item.name, item.target, p->name);
	struct cubin cubin = {0};
	const int rc = cubin_meta_parse(&cubin, &k->signature, entry.meta, entry.meta_len, k->target);
	pass->recipe = cubin.recipe;
	pass->registers = cubin.registers;
	pass->spill_bytes = cubin.spill_bytes;
	pass->smem_bytes = cubin.smem_bytes;
	pass->tile_m = (int)item.tile_m;
	pass->tile_n = (int)item.tile_n;
	pass->source = "pack";
	cubin_free(&cubin);
	if (rc || !kernel_has(k, (enum pass)item.pass) || !entry.cubin_len)
		return fault_fail(f, FAGEN_ERROR_PACK, "name",
		                  "What the pack %s, written by fagen %s, says of the %s pass of '%s' is more than this fagen %s knows: "
		                  "update fagen, or build the pack anew.",
		                  p->name, p->pack.version, pass_names[item.pass], item.name, FAGEN_VERSION);
	*code = entry.cubin;
	return pieces_find(pass, f);
}

/* A builder: all passes of the name and target of a record, the first of them. */
static int pack_build(struct fagen_kernel *k, const void *record, struct fault *f)
{
	const struct fagen_pack *p = k->pack;
	const void *code[PASS_COUNT] = {NULL};
	struct pack_item first, item;
	int i = *(const int *)record;
	pack_get(&first, &p->pack, i);
	for (; i < p->pack.count; i++) {
		pack_get(&item, &p->pack, i);
		if (strcmp(item.name, first.name) || strcmp(item.target, first.target))
			break;
		if (item.pass < PASS_COUNT && pass_take(&code[item.pass], k, p, i, f))
			return -1;
	}
	return kernel_load(k, code, f);
}

static struct fagen_kernel *got_find(const struct fagen_pack *p, int name, int ordinal)
{
	struct fagen_kernel *k = atomic_load_explicit(&p->got[name], memory_order_acquire);
	while (k && k->ordinal != ordinal)
		k = k->pack_next;
	return k;
}

static int kernel_request(fagen_kernel **out, fagen_pack *p, int name, int ordinal, struct fault *f)
{
	fagen_runtime *rt = p->runtime;
	struct runtime_device *device;
	const struct target *target;
	int record = 0;
	if (driver_start(rt->driver, f) || device_of(&device, rt, ordinal, f) ||
	    target_choose(&target, &record, p, name, device, f))
		return -1;
	struct fagen_kernel *k = calloc(1, sizeof *k);
	if (!k)
		return fault_fail(f, FAGEN_ERROR_MEMORY, NULL, "Out of memory.");
	k->runtime = rt;
	k->pack = p;
	k->maker = p->name;
	k->ordinal = ordinal;
	k->target = target;
	k->sms = device->gpu.sms > 0 ? device->gpu.sms : 1;
	struct key_builder *key = key_begin();
	key_record(key, 'k', &ordinal, sizeof ordinal);
	key_record(key, 'a', &p, sizeof p);
	key_record(key, 'r', &record, sizeof record);
	key_finish(&k->identity, key);
	if (kernel_settle(out, k, pack_build, &record, f))
		return -1;
	pthread_mutex_lock(&rt->mutex);
	if (!got_find(p, name, ordinal)) {
		(*out)->pack_next = atomic_load_explicit(&p->got[name], memory_order_relaxed);
		atomic_store_explicit(&p->got[name], *out, memory_order_release);
	}
	pthread_mutex_unlock(&rt->mutex);
	return 0;
}

int fagen_pack_kernel(fagen_kernel **out, fagen_pack *p, const char *name, int device, fagen_error *error)
{
	struct diag diag;
	struct fault f;
	fagen_kernel *made;
	fault_clear(error);
	const int at = name ? name_find(p, name) : -1;
	struct fagen_kernel *found = at >= 0 ? got_find(p, at, device) : NULL;
	if (found) {
		*out = found;
		return FAGEN_OK;
	}
	memset(&diag, 0, sizeof diag);
	memset(&f, 0, sizeof f);
	f.diag = &diag;
	if (at < 0 ? name_fail(p, name ? name : "", &f) : kernel_request(&made, p, at, device, &f))
		return fault_report(error, &f);
	diag_free(&diag);
	*out = made;
	return FAGEN_OK;
}
