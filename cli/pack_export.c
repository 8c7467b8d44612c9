/* fagen pack export: for programs that carry their kernels in themselves. */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/pack.h"

extern char **environ;

struct options {
	const char *output, *symbol, *fatbin; /* fatbin: a name; NULL: a C array */
	int pass;
};

/* ---- --c-array ---- */

static int array_write(const struct pack *pack, const struct options *opt)
{
	enum { PER_LINE = 24 };
	struct text t = {0};
	text_addf(&t,
	          "/* A pack of %d kernels by fagen %s, for fagen_pack_open_memory. */\n"
	          "#include <stddef.h>\n\n"
	          "extern const unsigned char %s[];\n"
	          "extern const size_t %s_size;\n"
	          "const size_t %s_size = %zu;\n"
	          "_Alignas(64) const unsigned char %s[] = {",
	          pack->count, pack->version, opt->symbol, opt->symbol, opt->symbol, pack->len, opt->symbol);
	for (size_t i = 0; i < pack->len; i++) {
		char number[8];
		const int len = snprintf(number, sizeof number, "%s%d,", i % PER_LINE ? "" : "\n", pack->bytes[i]);
		text_add(&t, number, (size_t)len);
	}
	text_puts(&t, "\n};\n");
	const int status = file_write(opt->output, t.data, t.len) ? EXIT_MACHINE : 0;
	text_free(&t);
	return status;
}

/* ---- --fatbin ---- */

enum { TOOL_ARGS_MAX = TARGET_COUNT + 4 };

/* The tool of the toolkit that makes fatbins, whose format is nobody else's. */
static void tool_find(struct text *path)
{
	static const char *const variables[] = {"CUDA_HOME", "CUDA_PATH"};
	for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
		const char *folder = getenv(variables[i]);
		if (folder && *folder) {
			text_addf(path, "%s/bin/fatbinary", folder);
			return;
		}
	}
	text_puts(path, access("/usr/local/cuda/bin/fatbinary", X_OK) ? "fatbinary" : "/usr/local/cuda/bin/fatbinary");
}

static int tool_run(char *const args[])
{
	pid_t child;
	int status;
	const int why = posix_spawnp(&child, args[0], NULL, NULL, args, environ);
	if (why) {
		fprintf(stderr, "fagen: error: %s, which makes fatbins, cannot be run: %s; it comes with the CUDA toolkit (CUDA_HOME)\n",
		        args[0], strerror(why));
		return -1;
	}
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	fprintf(stderr, "fagen: error: %s failed\n", args[0]);
	return -1;
}

/* Writes the cubins of a name and pass into the folder, and adds an argument for each. -1: complained; 0: there is none. */
static int images_write(struct text args[TARGET_COUNT], const struct pack *pack, const struct options *opt, const char *folder)
{
	int count = 0;
	for (int i = 0; i < pack->count && count < TARGET_COUNT; i++) {
		struct pack_kernel k;
		struct text path = {0};
		char why[PACK_WHY_MAX];
		const int bad = pack_kernel_read(&k, pack, i, why), wanted = !strcmp(k.item.name, opt->fatbin) && (int)k.item.pass == opt->pass;
		cubin_free(&k.cubin);
		if (!wanted)
			continue;
		if (bad) {
			fprintf(stderr, "fagen: error: %s for %s %s\n", k.item.name, k.item.target, why);
			return -1;
		}
		text_addf(&path, "%s/%s.cubin", folder, k.item.target);
		text_addf(&args[count++], "--image3=kind=elf,sm=%s,file=%s", k.item.target + strlen("sm_"), text_str(&path));
		const int failed = file_write(text_str(&path), k.entry.cubin, k.entry.cubin_len);
		text_free(&path);
		if (failed)
			return -1;
	}
	return count;
}

static int file_copy(const char *to, const char *from)
{
	struct text bytes = {0};
	char part[1 << 14];
	size_t got;
	FILE *f = fopen(from, "rb");
	while (f && (got = fread(part, 1, sizeof part, f)))
		text_add(&bytes, part, got);
	const int failed = !f || ferror(f) || file_write(to, bytes.data, bytes.len);
	if (f)
		fclose(f);
	text_free(&bytes);
	return failed ? -1 : 0;
}

static void folder_remove(const char *folder)
{
	struct text path = {0};
	for (int i = 0; i <= TARGET_COUNT; i++) {
		text_addf(&path, "%s/%s.%s", folder, i < TARGET_COUNT ? target_table[i].name : "all", i < TARGET_COUNT ? "cubin" : "fatbin");
		unlink(text_str(&path));
		text_free(&path);
	}
	rmdir(folder);
}

static int fatbin_write(const struct pack *pack, const struct options *opt)
{
	const char *tmp = getenv("TMPDIR");
	struct text folder = {0}, tool = {0}, made = {0}, create = {0}, image[TARGET_COUNT] = {{0}};
	char *args[TOOL_ARGS_MAX];
	int count = 0, status = EXIT_MACHINE;
	text_addf(&folder, "%s/fagen-export-XXXXXX", tmp && *tmp ? tmp : "/tmp");
	if (!mkdtemp(folder.data)) {
		fprintf(stderr, "fagen: error: no folder %s can be made: %s\n", folder.data, strerror(errno));
		text_free(&folder);
		return EXIT_MACHINE;
	}
	tool_find(&tool);
	text_addf(&made, "%s/all.fatbin", folder.data);
	text_addf(&create, "--create=%s", made.data);
	args[count++] = tool.data;
	args[count++] = (char[]){"--64"};
	args[count++] = create.data;
	const int images = images_write(image, pack, opt, folder.data);
	for (int i = 0; i < images; i++)
		args[count++] = image[i].data;
	args[count] = NULL;
	if (images == 0) {
		fprintf(stderr, "fagen: error: the pack has no %s pass of '%s'; fagen pack ls shows what it has\n", pass_names[opt->pass],
		        opt->fatbin);
		status = EXIT_REQUEST;
	} else if (images > 0 && !tool_run(args) && !file_copy(opt->output, made.data)) {
		status = 0;
	}
	folder_remove(folder.data);
	for (int i = 0; i < TARGET_COUNT; i++)
		text_free(&image[i]);
	text_free(&folder);
	text_free(&tool);
	text_free(&made);
	text_free(&create);
	return status;
}

/* ---- which ---- */

static bool is_identifier(const char *name)
{
	bool good = isalpha((unsigned char)*name) || *name == '_';
	for (const char *c = name; *c; c++)
		good = good && (isalnum((unsigned char)*c) || *c == '_');
	return good;
}

int pack_export_run(int argc, char **argv)
{
	enum { OPT_ARRAY = 256, OPT_FATBIN, OPT_SYMBOL, OPT_PASS };
	static const struct option longs[] = {{"c-array", no_argument, NULL, OPT_ARRAY},
	                                      {"fatbin", required_argument, NULL, OPT_FATBIN},
	                                      {"symbol", required_argument, NULL, OPT_SYMBOL},
	                                      {"pass", required_argument, NULL, OPT_PASS},
	                                      {0}};
	struct options opt = {.symbol = "fagen_kernels"};
	bool array = false;
	for (int c; (c = getopt_long(argc, argv, "o:", longs, NULL)) != -1;)
		switch (c) {
		case OPT_ARRAY: array = true; break;
		case OPT_FATBIN: opt.fatbin = optarg; break;
		case OPT_SYMBOL: opt.symbol = optarg; break;
		case OPT_PASS:
			if ((opt.pass = pass_find(optarg)) < 0) {
				fprintf(stderr, "fagen: error: no pass '%s'; want forward or backward\n", optarg);
				return EXIT_USAGE;
			}
			break;
		case 'o': opt.output = optarg; break;
		default: fputs("fagen pack -h has the options\n", stderr); return EXIT_USAGE;
		}
	if (optind + 1 != argc || (array && opt.fatbin) || !is_identifier(opt.symbol)) {
		if (!is_identifier(opt.symbol))
			fprintf(stderr, "fagen: error: --symbol '%s' is no name in C\n", opt.symbol);
		else
			fputs("fagen: error: fagen pack export takes one pack, and --c-array or --fatbin NAME\n", stderr);
		return EXIT_USAGE;
	}
	struct pack_file file;
	if (pack_file_read(&file, argv[optind]))
		return EXIT_REQUEST;
	const int status = opt.fatbin ? fatbin_write(&file.pack, &opt) : array_write(&file.pack, &opt);
	pack_file_free(&file);
	return status;
}
