/* Emitted programs, compiled for the host in one translation unit and loaded. Run from the root of the repository. */
#ifndef FAGEN_TESTS_EMITTED_H
#define FAGEN_TESTS_EMITTED_H

#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gen/embed.h"
#include "gen/gen.h"
#include "tests/emitted_table.h"

/* What the prologue would say, the same for all programs of a unit. */
struct emitted_shape {
	int tile_m, tile_n, block_q, block_k;
	double softmax_scale;
	enum batch_layout layout;
};

static const char emitted_host[] =
	"#include <math.h>\n"
	"#include <stdbool.h>\n"
	"#include <string.h>\n"
	"#include \"tests/emitted_table.h\"\n"
	"#define DEVICE static inline\n"
	"static inline void input_copy(void *to, const void *from) { memcpy(to, from, 4); }\n"
	"static inline float float_exp(float x) { return expf(x); }\n"
	"static inline float float_log(float x) { return logf(x); }\n"
	"static inline float float_tanh(float x) { return tanhf(x); }\n"
	"static inline float float_sqrt(float x) { return sqrtf(x); }\n"
	"static inline float float_sigmoid(float x) { return 1 / (1 + expf(-x)); }\n"
	"static inline float float_div(float a, float b) { return a / b; }\n"
	"static inline int float_floor(float x)\n"
	"{ return x != x ? 0 : x <= -2147483648.0f ? -2147483647 - 1 : x >= 2147483648.0f ? 2147483647 : (int)floorf(x); }\n"
	"static inline float float_bf16(unsigned short bits)\n"
	"{ const unsigned all = (unsigned)bits << 16; float f; memcpy(&f, &all, 4); return f; }\n"
	"static inline float float_fp16(unsigned short bits) /* no infinities */\n"
	"{ const int e = bits >> 10 & 31, m = bits & 1023; const float f = e ? ldexpf((float)(1024 + m), e - 25) : ldexpf((float)m, -24);\n"
	"  return bits >> 15 ? -f : f; }\n";

static const char emitted_rows[] =
	"static inline void input_rows(void *to, int pitch, int width, int unit, const void *from, long long stride, int last, int bytes,\n"
	"	int thread, int threads)\n"
	"{\n"
	"	for (int i = thread; i < TILE_M; i += threads)\n"
	"		for (int at = 0; at < width; at++)\n"
	"			((char *)to)[i * pitch + at] = at < bytes ? ((const char *)from)[(i < last ? i : last) * stride + at] : 0;\n"
	"}\n";

static inline void emitted_template(struct text *out, const char *name)
{
	size_t len;
	const char *bytes = embed_find(&len, name);
	ck_assert_ptr_nonnull(bytes);
	text_add(out, bytes, len);
}

/* ---- one text from many programs ----
 *
 * Every definition gets a name of its own: the written one and the number of its content, in which the names that it uses
 * have their numbers already. What programs have in common is so compiled once. */

struct emitted_definition {
	uint64_t hash;
	int number;
};
struct emitted_unit {
	struct text out;
	struct emitted_definition *known; /* open addressing */
	int definitions;
};
enum { EMITTED_KNOWN = 1 << 17, EMITTED_NAMES = 512 };

struct emitted_names {
	int count;
	struct {
		const char *at;
		size_t len;
		int number;
	} name[EMITTED_NAMES];
};

static const char emitted_letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";

static inline int emitted_name_find(const struct emitted_names *n, const char *at, size_t len)
{
	for (int i = n->count - 1; i >= 0; i--)
		if (n->name[i].len == len && memcmp(n->name[i].at, at, len) == 0)
			return i;
	return -1;
}

static inline void emitted_name_add(struct emitted_names *n, const char *at, size_t len)
{
	ck_assert_int_lt(n->count, EMITTED_NAMES);
	n->name[n->count].at = at;
	n->name[n->count].len = len;
	n->name[n->count++].number = -1;
}

/* The names that a definition gives: of a function, of a struct, of an enum and its constants. */
static inline void emitted_defined(struct emitted_names *n, const char *at, const char *end)
{
	if (strncmp(at, "struct ", 7) == 0) {
		emitted_name_add(n, at + 7, strspn(at + 7, emitted_letters));
	} else if (strncmp(at, "enum ", 5) == 0) {
		for (at += 5; at < end; at += strcspn(at, emitted_letters)) {
			const size_t len = strspn(at, emitted_letters);
			if (len && !(*at >= '0' && *at <= '9'))
				emitted_name_add(n, at, len);
			at += len;
		}
	} else {
		const char *paren = strchr(at, '('), *name = paren;
		while (strchr(emitted_letters, name[-1]))
			name--;
		emitted_name_add(n, name, (size_t)(paren - name));
	}
}

/* The definition with numbers behind names; those that it defines itself get `own`. */
static inline void emitted_rewrite(struct text *out, const struct emitted_names *n, const char *at, const char *end,
                                   int runs, int program, int own)
{
	while (at < end) {
		const size_t gap = strcspn(at, emitted_letters);
		const bool field =
			gap > 0 && (at[gap - 1] == '.' || (gap > 1 && at[gap - 1] == '>' && at[gap - 2] == '-'));
		text_add(out, at, gap < (size_t)(end - at) ? gap : (size_t)(end - at));
		at += gap;
		if (at >= end)
			break;
		const size_t len = strspn(at, emitted_letters);
		const int name = field ? -1 : emitted_name_find(n, at, len);
		if (len == 4 && memcmp(at, "RUNS", 4) == 0)
			text_addf(out, "%d", runs);
		else if (len == 13 && memcmp(at, "PROGRAM_TABLE", 13) == 0)
			text_addf(out, "program_%d", program);
		else
			text_add(out, at, len);
		if (name >= 0)
			text_addf(out, "__%d", n->name[name].number < 0 ? own : n->name[name].number);
		at += len;
	}
}

static inline uint64_t emitted_hash(const struct text *t)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);
	for (size_t i = 0; i < t->len; i++)
		h = (h ^ (unsigned char)t->data[i]) * UINT64_C(0x100000001b3);
	return h;
}

static inline void emitted_define(struct emitted_unit *unit, struct emitted_names *n, const char *at, const char *end,
                                  int runs, int program)
{
	struct text content = {0};
	const int first = n->count;
	const bool table = strncmp(at, "const struct", 12) == 0;
	if (!table)
		emitted_defined(n, at, end);
	emitted_rewrite(&content, n, at, end, runs, program, 0);
	const uint64_t hash = emitted_hash(&content);
	struct emitted_definition *known = &unit->known[hash % EMITTED_KNOWN];
	while (known->number && known->hash != hash)
		known = known == &unit->known[EMITTED_KNOWN - 1] ? unit->known : known + 1;
	if (!known->number || table) {
		*known = (struct emitted_definition){hash, ++unit->definitions};
		ck_assert_int_lt(unit->definitions, EMITTED_KNOWN / 2);
		emitted_rewrite(&unit->out, n, at, end, runs, program, known->number);
		text_puts(&unit->out, "\n");
	}
	for (int i = first; i < n->count; i++)
		n->name[i].number = known->number;
	text_free(&content);
}

/* Definitions stand at the left margin, on one line or up to the next line that begins with a brace. */
static inline void emitted_add(struct emitted_unit *unit, const char *text, int runs, int program)
{
	struct emitted_names names = {0};
	for (const char *line = text, *end; *line; line = *end ? end + 1 : end) {
		end = line + strcspn(line, "\n");
		if (strncmp(line, "DEVICE ", 7) && strncmp(line, "static ", 7) && strncmp(line, "struct ", 7) &&
		    strncmp(line, "enum ", 5) && strncmp(line, "const struct ", 13))
			continue;
		if (end[-1] == ';' && end[-2] == ')')
			continue; /* what is only declared is common to all programs */
		const char *start = line;
		while (*end && memchr(start, '}', (size_t)(end - start)) == NULL)
			for (line = end + 1, end = line + strcspn(line, "\n"); *line != '}';
			     line = end + 1, end = line + strcspn(line, "\n"))
				;
		emitted_define(unit, &names, start, end, runs, program);
	}
}

/* tests/emitted_wrap.h, the side of its condition that fits. */
static inline void emitted_wrapper(struct text *out, bool grads)
{
	char line[512];
	bool wanted = true;
	FILE *f = fopen("tests/emitted_wrap.h", "r");
	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof line, f)) {
		if (line[0] == '#')
			wanted = line[1] == 'i' ? grads : line[3] == 's' ? !grads : true; /* if, else, endif */
		else if (wanted)
			text_puts(out, line);
	}
	fclose(f);
}

static inline void emitted_source(struct text *out, const struct spec *const *spec,
                                  const struct program *const *program, int count, const struct emitted_shape *shape)
{
	struct emitted_unit unit = {.known = calloc(EMITTED_KNOWN, sizeof *unit.known)};
	text_puts(&unit.out, emitted_host);
	text_addf(&unit.out, "enum { TILE_M = %d, TILE_N = %d, BLOCK_Q = %d, BLOCK_K = %d, LAYOUT = %d };\n",
	          shape->tile_m, shape->tile_n, shape->block_q, shape->block_k, (int)shape->layout);
	text_puts(&unit.out, emitted_rows);
	text_addf(&unit.out, "static const float SOFTMAX_SCALE = %#.9gf;\n", shape->softmax_scale);
	emitted_template(&unit.out, "contract.h");
	for (int i = 0; i < count; i++) {
		struct text body = {0};
		source_program(&body, spec[i], program[i]);
		emitted_template(&body, "stream.h");
		emitted_wrapper(&body, program[i]->grads);
		emitted_add(&unit, text_str(&body), program[i]->run_count, i);
		text_free(&body);
	}
	free(unit.known);
	*out = unit.out;
}

/* A compiler that runs beside the suite. Signed overflow and what else is undefined traps in what it makes. */
struct emitted_build {
	pid_t pid;
	char dir[256];
};

static inline void emitted_start(struct emitted_build *build, const struct text *source)
{
	const char *tmp = getenv("TMPDIR"), *cc = getenv("CC");
	char path[300], so[300];
	snprintf(build->dir, sizeof build->dir, "%.200s/fagen-test-XXXXXX", tmp ? tmp : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(build->dir));
	snprintf(path, sizeof path, "%s/p.c", build->dir);
	snprintf(so, sizeof so, "%s/p.so", build->dir);
	FILE *file = fopen(path, "w");
	ck_assert_ptr_nonnull(file);
	ck_assert_uint_eq(fwrite(source->data, 1, source->len, file), source->len);
	ck_assert_int_eq(fclose(file), 0);
	build->pid = fork();
	ck_assert_int_ge(build->pid, 0);
	if (build->pid == 0) {
		static char *const flags[] = {
			"cc",
			"-std=c11",
			"-O0",
			"-I.",
			"-Wall",
			"-Wextra",
			"-Werror",
			"-Wfatal-errors",
			"-Wno-unused-function",
			"-Wno-unused-parameter",
			"-Wno-unknown-pragmas",
			"-Wno-misleading-indentation",
			"-Wno-bitwise-instead-of-logical",
			"-Wno-tautological-compare",
			"-Wno-tautological-overlap-compare",
			"-fno-asynchronous-unwind-tables",
			"-fno-stack-protector",
			"-fsanitize=signed-integer-overflow,shift-exponent,bounds,integer-divide-by-zero",
			"-fsanitize-undefined-trap-on-error",
			"-fPIC",
			"-shared",
			"-o"};
		char *argv[sizeof flags / sizeof *flags + 4] = {NULL};
		memcpy(argv, flags, sizeof flags);
		argv[sizeof flags / sizeof *flags] = so;
		argv[sizeof flags / sizeof *flags + 1] = path;
		argv[sizeof flags / sizeof *flags + 2] = "-lm";
		if (!cc)
			execvp("clang", argv); /* half the time, where there is one */
		execvp(cc ? cc : "cc", argv);
		_exit(127);
	}
}

static inline void *emitted_wait(struct emitted_build *build)
{
	char path[300];
	int status;
	ck_assert_int_eq(waitpid(build->pid, &status, 0), build->pid);
	snprintf(path, sizeof path, "%s/p.so", build->dir);
	void *so = status == 0 ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
	ck_assert_msg(so != NULL, "the emitted text does not compile: see %s/p.c", build->dir);
	unlink(path);
	snprintf(path, sizeof path, "%s/p.c", build->dir);
	unlink(path);
	rmdir(build->dir);
	return so;
}

static inline const struct emitted *emitted_find(void *so, int i)
{
	char name[32];
	snprintf(name, sizeof name, "program_%d", i);
	const struct emitted *found = dlsym(so, name);
	ck_assert_ptr_nonnull(found);
	return found;
}

#endif
