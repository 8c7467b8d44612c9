/* fagen cache: what the kernel store holds, and how to empty it. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"
#include "runtime/runtime.h"

static void usage(FILE *out)
{
	fputs("usage: fagen cache [stats|path|verify|gc|clear|show [KEY]] [--json]\n"
	      "  stats    the folder, number of kernels, bytes (default)\n"
	      "  path     the folder alone\n"
	      "  verify   read and check every entry; exit status 4 if one is damaged\n"
	      "  gc       remove what was not used for longest, above FAGEN_CACHE_MAX_SIZE, and lost temporary files\n"
	      "  clear    remove every kernel\n"
	      "  show     one line for each kernel: key, target, bytes, when last used, on which GPUs fagen check found it right;\n"
	      "           with a key, or the first digits of one, all that is kept of it but the code (`fagen -d k` prints keys)\n",
	      out);
}

/* "3.4 MiB" */
static void print_size(struct text *out, uint64_t bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	double size = (double)bytes;
	int unit = 0;
	for (; size >= 1024 && unit < 4; unit++)
		size /= 1024;
	text_addf(out, unit ? "%.1f %s" : "%.0f %s", size, units[unit]);
}

/* "NAME": NUMBER, for each; the folder and the note first. */
static void print_json(const struct store *store, const char *const *names, const uint64_t *values, int count)
{
	struct text out = {0};
	text_puts(&out, "{\"path\": ");
	text_json(&out, store_dir(store));
	text_puts(&out, ", \"note\": ");
	text_json(&out, store_note(store));
	for (int i = 0; i < count; i++)
		text_addf(&out, ", \"%s\": %" PRIu64, names[i], values[i]);
	text_puts(&out, "}\n");
	fputs(text_str(&out), stdout);
	text_free(&out);
}

static int show_stats(struct store *store, bool verify, bool json)
{
	struct store_stats stats;
	const bool exists = store_stats(&stats, store, verify) == 0;
	if (json) {
		static const char *const names[] = {"entries", "bytes", "stray", "damaged"};
		print_json(store, names, (const uint64_t[]){stats.entries, stats.bytes, stats.stray, stats.damaged},
		           verify ? 4 : 3);
	} else if (!exists) {
		printf("%s: nothing kept yet\n", *store_dir(store) ? store_dir(store) : "memory only");
	} else {
		struct text size = {0};
		print_size(&size, stats.bytes);
		printf("%s\n%" PRIu64 " kernels, %s", store_dir(store), stats.entries, text_str(&size));
		if (verify)
			printf("; %" PRIu64 " damaged%s", stats.damaged,
			       stats.damaged ? " (each is made again at its next use)" : "");
		if (stats.stray)
			printf("; %" PRIu64 " stray files (`fagen cache gc` removes them once they are an hour old)",
			       stats.stray);
		putchar('\n');
		text_free(&size);
	}
	return verify && stats.damaged ? EXIT_CHECK : 0;
}

static void show_freed(struct store *store, const char *name, uint64_t value, bool json)
{
	if (json) {
		print_json(store, &name, &value, 1);
	} else if (strcmp(name, "freed_bytes") == 0) {
		struct text size = {0};
		print_size(&size, value);
		printf("%s: freed %s\n", *store_dir(store) ? store_dir(store) : "memory only", text_str(&size));
		text_free(&size);
	} else {
		printf("%s: removed %" PRIu64 " kernels\n", *store_dir(store) ? store_dir(store) : "memory only",
		       value);
	}
}

/* ---- show ---- */

struct showing {
	const char *key; /* the first digits; NULL: a line for each */
	struct text out;
	int shown;
	bool json;
};

/* The value of "name value\n" in the meta; "" if there is none. */
static void value_find(char *to, size_t room, const char *meta, const char *name)
{
	const char *at = strstr(meta, name);
	const size_t len = at ? strcspn(at + strlen(name), "\n") : 0;
	snprintf(to, room, "%.*s", (int)len, at ? at + strlen(name) : "");
}

static void show_line(struct showing *s, const struct store_item *item, const char *hex)
{
	char target[32], regs[32], used[32] = "", checks[256] = "";
	const time_t seconds = (time_t)item->used;
	struct tm day;
	struct text about = {0}, size = {0};
	cubin_describe(&about, &item->entry);
	value_find(target, sizeof target, text_str(&about), "\ntarget ");
	value_find(regs, sizeof regs, text_str(&about), "\nregisters ");
	if (localtime_r(&seconds, &day))
		strftime(used, sizeof used, "%Y-%m-%d %H:%M", &day);
	const char *line = cubin_checks(&item->entry);
	for (size_t n = 0; *line; line += n + (line[n] == '\n')) {
		n = strcspn(line, "\n");
		const size_t at = strlen(checks);
		if (n > strlen("check "))
			snprintf(checks + at, sizeof checks - at, "%s%.*s", at ? ", " : "", (int)(n - strlen("check ")), line + strlen("check "));
	}
	if (s->json) {
		text_addf(&s->out, "%s  {\"key\": \"%s\", \"target\": ", s->shown ? ",\n" : "", hex);
		text_json(&s->out, target);
		text_addf(&s->out, ", \"registers\": %d, \"bytes\": %" PRIu64 ", \"used\": %" PRId64 ", \"checks\": ", atoi(regs), item->bytes, item->used);
		text_json(&s->out, checks);
		text_puts(&s->out, "}");
	} else {
		print_size(&size, item->bytes);
		text_addf(&s->out, "%.16s  %-8s  %4s registers  %10s  %s  %s\n", hex, target, regs, text_str(&size), used,
		          *checks ? checks : "not checked");
	}
	text_free(&about);
	text_free(&size);
}

static void show_item(void *context, const struct store_item *item)
{
	struct showing *s = context;
	char hex[65];
	key_hex(hex, &item->key);
	if (s->key && strncmp(hex, s->key, strlen(s->key)) != 0)
		return;
	if (!s->key || s->json) {
		show_line(s, item, hex);
	} else {
		text_addf(&s->out, "%skey %s\n", s->shown ? "\n" : "", hex);
		cubin_describe(&s->out, &item->entry);
	}
	s->shown++;
}

static int show(struct store *store, const char *key, bool json)
{
	struct showing s = {.key = key, .json = json};
	(void)store_each(store, show_item, &s); /* a folder that is not there has no kernels */
	printf(json ? "[\n%s\n]\n" : "%s", text_str(&s.out));
	text_free(&s.out);
	if (key && !s.shown)
		fprintf(stderr, "fagen: error: no kernel has a key that begins with '%s'\n", key);
	return key && !s.shown ? EXIT_REQUEST : 0;
}

int cmd_cache(int argc, char **argv)
{
	static const struct option longs[] = {{"json", no_argument, NULL, 'J'}, {"help", no_argument, NULL, 'h'}, {0}};
	bool json = false;
	for (int c; (c = getopt_long(argc, argv, "h", longs, NULL)) != -1;) {
		if (c != 'J') {
			usage(c == 'h' ? stdout : stderr);
			return c == 'h' ? 0 : EXIT_USAGE;
		}
		json = true;
	}
	const char *what = optind < argc ? argv[optind] : "stats";
	static const char *const known[] = {"stats", "path", "verify", "gc", "clear", "show"};
	bool found = false;
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		found |= strcmp(what, known[i]) == 0;
	const char *key = found && strcmp(what, "show") == 0 && optind + 1 < argc ? argv[optind + 1] : NULL;
	if (!found || optind + 1 + (key != NULL) < argc) {
		fprintf(stderr, "fagen: error: %s '%s'\n", found ? "unexpected argument" : "fagen cache knows no",
		        found ? argv[optind + 1 + (key != NULL)] : what);
		usage(stderr);
		return EXIT_USAGE;
	}
	struct store *store = store_open(NULL);
	if (!store) {
		fputs("fagen: error: out of memory\n", stderr);
		return EXIT_MACHINE;
	}
	int status = 0;
	if (strcmp(what, "path") == 0) {
		if (json)
			print_json(store, NULL, NULL, 0);
		else if (*store_dir(store))
			puts(store_dir(store));
		status = *store_dir(store) ? 0 : EXIT_MACHINE;
	} else if (strcmp(what, "show") == 0) {
		status = show(store, key, json);
	} else if (strcmp(what, "gc") == 0) {
		show_freed(store, "freed_bytes", store_collect(store), json);
	} else if (strcmp(what, "clear") == 0) {
		show_freed(store, "removed", store_clear(store), json);
	} else {
		status = show_stats(store, strcmp(what, "verify") == 0, json);
	}
	if (!json && *store_note(store))
		fprintf(stderr, "warning: %s\n", store_note(store));
	store_close(store);
	return status;
}
