/* fagen pack: many kernels in one file, for programs that have neither compiler nor spec. */
#include "cli/pack.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "gen/revision.h"
#include "runtime/cubin_meta.h"

static void usage(FILE *out)
{
	fputs("usage: fagen pack build SPEC... -o FILE    compile specs for their targets and put the kernels in one file\n"
	      "       fagen pack ls FILE                  what is in it\n"
	      "       fagen pack verify FILE...           read and check every byte; exit status 4 if something is wrong\n"
	      "       fagen pack merge FILE... -o FILE    one pack of several\n"
	      "       fagen pack export FILE              as C source, or one kernel as a fatbin\n\n"
	      "  build:   --targets A,B   these instead of the targets of the specs (sm_80, sm_86, sm_89, sm_90a, sm_100f, sm_120f)\n"
	      "           -j N            compile N at a time (default: one for each CPU)\n"
	      "           --licence TEXT  what the pack is to say of the licence of its kernels, as an SPDX expression\n"
	      "           --sources       keep the emitted CUDA source of every kernel too\n"
	      "  ls:      --manifest      everything the pack says of its kernels, as YAML: recipes, specs, compiler, sources\n"
	      "           --json          the list as JSON\n"
	      "  export:  --c-array       a C array of the whole pack, for fagen_pack_open_memory (default)\n"
	      "           --symbol NAME   its name; NAME_size is its length (default: fagen_kernels)\n"
	      "           --fatbin NAME   the kernels of that name for all their targets, by fatbinary of the CUDA toolkit\n"
	      "           --pass PASS     of --fatbin: forward (default) or backward\n"
	      "           -o FILE         where to; - is the standard output (default)\n\n"
	      "The name of a kernel is that of its spec. docs/packs.md has the rest.\n",
	      out);
}

/* ---- reading ---- */

int pack_file_read(struct pack_file *file, const char *path)
{
	char why[PACK_WHY_MAX];
	*file = (struct pack_file){.path = path};
	FILE *f = fopen(path, "rb");
	size_t len = 0, cap = 1 << 20, got = 1;
	file->bytes = f ? malloc(cap) : NULL;
	while (file->bytes && got) {
		got = fread(file->bytes + len, 1, cap - len, f);
		len += got;
		if (len == cap) {
			uint8_t *more = realloc(file->bytes, cap *= 2);
			if (!more)
				break;
			file->bytes = more;
		}
	}
	const bool failed = !f || !file->bytes || ferror(f) || got;
	const int error = errno;
	if (f)
		fclose(f);
	if (failed)
		fprintf(stderr, "fagen: error: %s cannot be read: %s\n", path, strerror(error));
	else if (!pack_read(&file->pack, file->bytes, len, PACK_LAUNCH_ABI, FAGEN_VERSION, why))
		return 0;
	else
		fprintf(stderr, "fagen: error: the pack %s cannot be used: %s\n", path, why);
	pack_file_free(file);
	return -1;
}

void pack_file_free(struct pack_file *file)
{
	free(file->bytes);
	file->bytes = NULL;
}

/* More than the target has would fail at the first launch. */
static int limits_check(const struct pack_kernel *k, char why[PACK_WHY_MAX])
{
	for (int i = 0; i < k->cubin.recipe.kernel_count; i++) {
		const struct recipe_kernel *r = &k->cubin.recipe.kernel[i];
		if (r->smem_bytes > k->target->smem_block)
			return snprintf(why, PACK_WHY_MAX, "asks for %d bytes of shared memory; %s has %d", r->smem_bytes,
			                k->target->name, k->target->smem_block), -1;
	}
	return 0;
}

int pack_kernel_read(struct pack_kernel *k, const struct pack *pack, int i, char why[PACK_WHY_MAX])
{
	*k = (struct pack_kernel){0};
	pack_get(&k->item, pack, i);
	const char *refused = revision_refused(revision_table, revision_count, k->item.templ, (int)k->item.revision);
	if (!pack_entry(&k->entry, pack, i))
		snprintf(why, PACK_WHY_MAX, "is damaged: its digest does not fit");
	else if (!(k->target = target_find(k->item.target)) || k->item.pass >= PASS_COUNT)
		snprintf(why, PACK_WHY_MAX, "is of a target or pass that this fagen %s does not know", FAGEN_VERSION);
	else if (cubin_meta_parse(&k->cubin, &k->signature, k->entry.meta, k->entry.meta_len, k->target))
		snprintf(why, PACK_WHY_MAX, "says things that this fagen %s does not know", FAGEN_VERSION);
	else if (refused)
		snprintf(why, PACK_WHY_MAX, "must not run: it was made from revision %u of template %s, and %s", k->item.revision,
		         k->item.templ, refused);
	else if (!limits_check(k, why))
		return 0;
	return -1;
}

/* ---- writing ---- */

int pack_items_write(const char *path, struct pack_item *item, size_t count)
{
	char why[PACK_WHY_MAX], hex[65];
	uint8_t *bytes;
	size_t len;
	struct pack pack;
	if (pack_write(&bytes, &len, item, count, PACK_LAUNCH_ABI, FAGEN_VERSION, why)) {
		fprintf(stderr, "fagen: error: %s\n", why);
		return EXIT_REQUEST;
	}
	int status = EXIT_MACHINE;
	if (pack_read(&pack, bytes, len, PACK_LAUNCH_ABI, FAGEN_VERSION, why)) {
		fprintf(stderr, "fagen: error: the pack does not read back: %s\n", why);
	} else if (file_write(path, bytes, len) == 0) {
		struct store_key digest;
		memcpy(digest.bytes, pack_digest(&pack), sizeof digest.bytes);
		key_hex(hex, &digest);
		if (strcmp(path, "-"))
			printf("%s: %d kernels, %.1f KiB, sha256 %s\n", path, pack.count, (double)len / 1024, hex);
		status = 0;
	}
	free(bytes);
	return status;
}

static int merge(char **paths, int count, const char *output)
{
	struct pack_file *file = calloc((unsigned)count, sizeof *file);
	struct pack_item *item = NULL;
	size_t items = 0;
	int status = 0, read = 0;
	for (; file && read < count && !status; read++) {
		status = pack_file_read(&file[read], paths[read]) ? EXIT_REQUEST : 0;
		if (!status && !pack_texts_good(&file[read].pack)) {
			fprintf(stderr, "fagen: error: the texts of the pack %s are damaged\n", paths[read]);
			status = EXIT_CHECK;
		}
		for (int i = 0; !status && i < file[read].pack.count; i++) {
			struct entry_view view;
			struct pack_item *more = realloc(item, (items + 1) * sizeof *item);
			if (!more) {
				status = EXIT_MACHINE;
				break;
			}
			item = more;
			pack_get(&item[items++], &file[read].pack, i);
			if (!pack_entry(&view, &file[read].pack, i)) {
				fprintf(stderr, "fagen: error: %s: %s for %s is damaged\n", paths[read], item[items - 1].name,
				        item[items - 1].target);
				status = EXIT_CHECK;
			}
		}
	}
	if (!status)
		status = file ? pack_items_write(output, item, items) : EXIT_MACHINE;
	for (int i = 0; file && i < read; i++)
		pack_file_free(&file[i]);
	free(file);
	free(item);
	return status;
}

/* ---- verify ---- */

static int verify(const char *path)
{
	struct pack_file file;
	char why[PACK_WHY_MAX];
	int bad = 0;
	if (pack_file_read(&file, path))
		return EXIT_CHECK;
	if (!pack_texts_good(&file.pack)) {
		fprintf(stderr, "fagen: error: the texts of the pack %s are damaged\n", path);
		bad++;
	}
	for (int i = 0; i < file.pack.count; i++) {
		struct pack_kernel k;
		if (pack_kernel_read(&k, &file.pack, i, why)) {
			fprintf(stderr, "fagen: error: %s: %s, pass %u, for %s %s\n", path, k.item.name, k.item.pass, k.item.target, why);
			bad++;
		}
		cubin_free(&k.cubin);
	}
	if (!bad)
		printf("%s: %d kernels, all good\n", path, file.pack.count);
	pack_file_free(&file);
	return bad ? EXIT_CHECK : 0;
}

/* ---- ls ---- */

static const char *pass_word(unsigned pass) { return pass < PASS_COUNT ? pass_names[pass] : "?"; }

static void table_print(const struct pack *pack)
{
	int name = 4, bad = 0;
	struct pack_item item;
	for (int i = 0; i < pack->count; i++) {
		pack_get(&item, pack, i);
		name = (int)strlen(item.name) > name ? (int)strlen(item.name) : name;
	}
	printf("%-*s  %-7s  %-8s  %-15s  %3s  %8s  %4s  %6s  %8s  %s\n", name, "name", "target", "pass", "template", "rev", "tile",
	       "regs", "spills", "smem", "bytes");
	for (int i = 0; i < pack->count; i++) {
		struct pack_kernel k;
		char why[PACK_WHY_MAX], tile[32];
		const int failed = pack_kernel_read(&k, pack, i, why);
		snprintf(tile, sizeof tile, "%ux%u", k.item.tile_m, k.item.tile_n);
		printf("%-*s  %-7s  %-8s  %-15s  %3u  %8s  ", name, k.item.name, k.item.target, pass_word(k.item.pass), k.item.templ,
		       k.item.revision, tile);
		if (failed)
			printf("%s\n", why);
		else
			printf("%4d  %6d  %7.1fK  %zu\n", k.cubin.registers, k.cubin.spill_bytes, k.cubin.smem_bytes / 1024.0,
			       k.entry.cubin_len);
		bad += failed != 0;
		cubin_free(&k.cubin);
	}
	if (bad)
		printf("%d of %d cannot be used\n", bad, pack->count);
}

static void table_json(const struct pack *pack)
{
	struct text t = {0};
	text_puts(&t, "[");
	for (int i = 0; i < pack->count; i++) {
		struct pack_kernel k;
		char why[PACK_WHY_MAX];
		const int failed = pack_kernel_read(&k, pack, i, why);
		text_puts(&t, i ? ",\n  {\"name\": " : "\n  {\"name\": ");
		text_json(&t, k.item.name);
		text_puts(&t, ", \"target\": ");
		text_json(&t, k.item.target);
		text_addf(&t, ", \"pass\": \"%s\", \"template\": ", pass_word(k.item.pass));
		text_json(&t, k.item.templ);
		text_addf(&t, ", \"revision\": %u, \"tile_m\": %u, \"tile_n\": %u, ", k.item.revision, k.item.tile_m, k.item.tile_n);
		if (failed) {
			text_puts(&t, "\"fault\": ");
			text_json(&t, why);
		} else {
			text_addf(&t, "\"registers\": %d, \"spill_bytes\": %d, \"smem_bytes\": %d, \"cubin_bytes\": %zu",
			          k.cubin.registers, k.cubin.spill_bytes, k.cubin.smem_bytes, k.entry.cubin_len);
		}
		text_puts(&t, "}");
		cubin_free(&k.cubin);
	}
	text_puts(&t, "\n]\n");
	fputs(text_str(&t), stdout);
	text_free(&t);
}

/* A literal block of YAML. */
static void block_add(struct text *t, const char *key, const char *text, size_t len)
{
	if (!len)
		return;
	text_addf(t, "    %s: |2\n", key);
	for (size_t at = 0; at < len;) {
		const char *newline = memchr(text + at, '\n', len - at);
		const size_t line = newline ? (size_t)(newline - text) - at : len - at;
		if (line)
			text_puts(t, "      ");
		text_add(t, text + at, line);
		text_puts(t, "\n");
		at += line + 1;
	}
}

static void manifest_print(const struct pack *pack)
{
	struct text t = {0};
	char hex[65];
	struct store_key digest;
	memcpy(digest.bytes, pack_digest(pack), sizeof digest.bytes);
	key_hex(hex, &digest);
	text_addf(&t, "format: %d\nfagen: \"%s\"\nlaunch_abi: %d\nsha256: %s\nkernels:%s\n", (int)PACK_FORMAT, pack->version,
	          (int)PACK_LAUNCH_ABI, hex, pack->count ? "" : " []");
	for (int i = 0; i < pack->count; i++) {
		struct pack_kernel k;
		char why[PACK_WHY_MAX];
		const int failed = pack_kernel_read(&k, pack, i, why);
		text_addf(&t, "  - name: \"%s\"\n    target: %s\n    pass: %s\n    template: %s\n    revision: %u\n    tile: [%u, %u]\n",
		          k.item.name, k.item.target, pass_word(k.item.pass), k.item.templ, k.item.revision, k.item.tile_m, k.item.tile_n);
		if (failed) {
			text_puts(&t, "    fault: ");
			text_json(&t, why);
			text_puts(&t, "\n");
		} else {
			struct text recipe = {0};
			key_hex(hex, &k.entry.key);
			text_addf(&t, "    registers: %d\n    spill_bytes: %d\n    smem_bytes: %d\n    cubin_bytes: %zu\n    key: \"%s\"\n",
			          k.cubin.registers, k.cubin.spill_bytes, k.cubin.smem_bytes, k.entry.cubin_len, hex);
			recipe_print(&recipe, &k.cubin.recipe);
			signature_print(&recipe, &k.signature);
			block_add(&t, "recipe", text_str(&recipe), recipe.len);
			text_free(&recipe);
		}
		static const char *const names[PACK_TEXTS] = {"spec", "canonical", "about", "source"};
		static const enum pack_text order[PACK_TEXTS] = {PACK_ABOUT, PACK_SPEC, PACK_CANONICAL, PACK_SOURCE};
		for (int n = 0; n < PACK_TEXTS; n++)
			block_add(&t, names[order[n]], k.item.text[order[n]].text, k.item.text[order[n]].len);
		cubin_free(&k.cubin);
	}
	fputs(text_str(&t), stdout);
	text_free(&t);
}

/* ---- which ---- */

static int list(const char *path, bool json, bool manifest)
{
	struct pack_file file;
	int status = 0;
	if (pack_file_read(&file, path))
		return EXIT_REQUEST;
	if (manifest && !pack_texts_good(&file.pack)) {
		fprintf(stderr, "fagen: error: the texts of the pack %s are damaged\n", path);
		status = EXIT_CHECK;
	} else if (manifest) {
		manifest_print(&file.pack);
	} else if (json) {
		table_json(&file.pack);
	} else {
		table_print(&file.pack);
	}
	pack_file_free(&file);
	return status;
}

/* ls, verify and merge: their options, then their files. */
static int files_run(const char *what, int argc, char **argv)
{
	static const struct option longs[] = {
		{"manifest", no_argument, NULL, 'M'}, {"json", no_argument, NULL, 'J'}, {"help", no_argument, NULL, 'h'}, {0}};
	const char *output = NULL;
	bool json = false, manifest = false;
	const bool is_ls = !strcmp(what, "ls"), is_merge = !strcmp(what, "merge");
	for (int c; (c = getopt_long(argc, argv, "ho:", longs, NULL)) != -1;) {
		const bool good = (c == 'o' && is_merge) || ((c == 'M' || c == 'J') && is_ls);
		if (!good) {
			if (c != 'h' && c != '?')
				fprintf(stderr, "fagen: error: fagen pack %s has no such option\n", what);
			usage(c == 'h' ? stdout : stderr);
			return c == 'h' ? 0 : EXIT_USAGE;
		}
		output = c == 'o' ? optarg : output;
		json |= c == 'J';
		manifest |= c == 'M';
	}
	if (optind == argc || (is_ls && optind + 1 < argc) || (is_merge && !output)) {
		fprintf(stderr, "fagen: error: fagen pack %s takes %s\n", what,
		        is_ls ? "one pack" : is_merge ? "packs, and -o FILE" : "one or more packs");
		return EXIT_USAGE;
	}
	if (is_ls)
		return list(argv[optind], json, manifest);
	if (is_merge)
		return merge(argv + optind, argc - optind, output);
	int status = 0;
	for (int i = optind; i < argc; i++)
		status = verify(argv[i]) ? EXIT_CHECK : status;
	return status;
}

int cmd_pack(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	if (!strcmp(what, "build"))
		return pack_build_run(argc - 1, argv + 1);
	if (!strcmp(what, "export"))
		return pack_export_run(argc - 1, argv + 1);
	if (!strcmp(what, "ls") || !strcmp(what, "verify") || !strcmp(what, "merge"))
		return files_run(what, argc - 1, argv + 1);
	const bool help = !strcmp(what, "-h") || !strcmp(what, "--help");
	if (!help)
		fprintf(stderr, "fagen: error: fagen pack knows no '%s'\n", what);
	usage(help ? stdout : stderr);
	return help ? 0 : EXIT_USAGE;
}
