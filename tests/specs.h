/* Every spec of specs/, through the whole pipeline, for every target and pass it names (those of tests/language.h for sm_80
 * and sm_90a alone), and the naive kernels for sm_90a: it plans, compiles, spills nothing, is not serialised, and its
 * shared memory is what the plan said. With the reference compiler (NVRTC 13.0) registers are compared with
 * tests/golden/registers.txt; FAGEN_GOLDEN_UPDATE=1 rewrites the lines of what runs.
 *
 * Nothing takes longer, so that two suites share the targets: t_specs_native.c and t_specs_portable.c. */
#ifndef FAGEN_TESTS_SPECS_H
#define FAGEN_TESTS_SPECS_H

#include <check.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gen/model.h"
#include "runtime/runtime.h"
#include "tests/cubin_text.h"
#include "tests/language.h"

#define GOLDEN "tests/golden/registers.txt"

static bool target_ours(const struct target *); /* the suite's */

static glob_t specs;
static fagen_runtime *rt;
static struct text golden; /* the file as it was */

static void open_all(void)
{
	char dir[4096];
	ck_assert_ptr_nonnull(getcwd(dir, sizeof dir - 32));
	strcat(dir, "/build/cache"); /* kept between runs: the store verifies what it gives */
	const fagen_config config = {.struct_size = sizeof config, .cache_dir = dir};
	fagen_error error = {.struct_size = sizeof error};
	ck_assert_msg(fagen_open(&rt, &config, &error) == FAGEN_OK, "%s", error.message);
	FILE *f = fopen(GOLDEN, "r");
	char line[256];
	while (f && fgets(line, sizeof line, f))
		text_puts(&golden, line);
	if (f)
		fclose(f);
}

static void close_all(void)
{
	fagen_close(rt);
	text_free(&golden);
}

/* Lines are "spec target pass registers smem_bytes"; replaces the one that starts with `head`, or appends. */
static void golden_write(const char *head, const char *line)
{
	struct text next = {0};
	bool written = false;
	for (const char *p = text_str(&golden); *p;) {
		const char *end = strchr(p, '\n') + 1;
		const bool same = strncmp(p, head, strlen(head)) == 0;
		text_add(&next, same ? line : p, same ? strlen(line) : (size_t)(end - p));
		written |= same;
		p = end;
	}
	if (!written)
		text_puts(&next, line);
	text_free(&golden);
	golden = next;
	FILE *f = fopen(GOLDEN, "w");
	ck_assert_ptr_nonnull(f);
	fputs(text_str(&golden), f);
	fclose(f);
}

/* Dynamic shared memory of one kernel; -1: there is none of that name. */
static int main_smem(const struct recipe *recipe, const char *entry)
{
	const struct recipe_kernel *kernel = recipe_kernel_find(recipe, entry);
	return kernel ? kernel->smem_bytes : -1;
}

/* The entry that a plan's template has its shared memory for. */
static const char *template_main(const struct plan *plan)
{
	for (int i = 0; i < template_count; i++)
		if (strcmp(template_table[i]->templ, plan->templ) == 0 && template_table[i]->pass == plan->pass)
			return template_table[i]->main;
	ck_abort_msg("no template is named %s", plan->templ);
}

/* Does each warpgroup product of a kernel wait for the one before? ptxas may serialise them without a word, for instance where a branch writes what they
 * add to: one backward so had 0.65 of its speed. A group of products begins with one WARPGROUP.ARRIVE. */
static bool products_serialized(const struct cubin *cubin, const char *entry)
{
	enum { HGMMA = 0x9f0, HGMMA_A_IN_REGISTERS = 0xdf0, WARPGROUP = 0x9c5, WAIT_BIT = 47 };
	const struct cubin_text text = cubin_text(cubin, entry);
	int products = 0, groups = 0;
	for (int i = 0; i < text.count; i++) {
		const uint64_t word = instruction_at(text, i);
		const int opcode = (int)(word & OPCODE);
		products += opcode == HGMMA || opcode == HGMMA_A_IN_REGISTERS;
		groups += opcode == WARPGROUP && (word >> WAIT_BIT & 1) == 0;
	}
	return products > 0 && groups >= products;
}

static void check_build(const struct spec *spec, const struct program *program, const struct target *target,
                        enum pass pass, bool naive, bool reference)
{
	struct diag diag = {0};
	struct text source = {0};
	struct cubin cubin = {0};
	struct plan *plan = malloc(sizeof *plan);
	const bool made =
		(naive ? plan_naive : plan_make)(plan, spec, program, target, device_for_target(target), &spec->assume,
	                                         pass, &diag) == 0 &&
		source_emit(&source, spec, program, plan, NULL, &diag) == 0 &&
		cubin_get(&cubin, runtime_store(rt), runtime_compiler(rt), &source, target, &plan->recipe, &diag) == 0;
	ck_assert_msg(made, "%s %s pass %d: %s", spec->name, target->name, pass, text_str(&diag.text));

	const struct candidate *c = &plan->candidate[plan->chosen];
	char head[128], line[192];
	snprintf(head, sizeof head, "%s %s %s%s ", spec->name, target->name, pass_names[pass], naive ? "-naive" : "");
	snprintf(line, sizeof line, "%s%d %d\n", head, cubin.registers, cubin.smem_bytes);
	ck_assert_msg(cubin.spill_bytes == 0, "%sspills %d bytes at tile %dx%d w%d s%d", head, cubin.spill_bytes,
	              c->tile_m, c->tile_n, c->warps, c->stages);
	ck_assert_msg(!cubin.serialized && !products_serialized(&cubin, template_main(plan)), "%swas serialised by ptxas", head);
	ck_assert_msg(main_smem(&plan->recipe, template_main(plan)) == c->smem_bytes,
	              "%sis not launched with the %d bytes of shared memory that were planned", head, c->smem_bytes);
	ck_assert_msg(cubin.registers * 32 * c->warps <= target->regs_sm, "%s%d registers do not fit the register file",
	              head, cubin.registers);
	if (getenv("FAGEN_GOLDEN_UPDATE"))
		golden_write(head, line);
	else if (reference)
		ck_assert_msg(strstr(text_str(&golden), line) != NULL,
		              "not in " GOLDEN ": %s(make golden-update SPEC=%s)", line, spec->name);

	free(plan);
	text_free(&source);
	cubin_free(&cubin);
	diag_free(&diag);
}

START_TEST(test_spec)
{
	struct diag diag = {0};
	static struct spec spec;
	struct program *program = malloc(sizeof *program);
	const char *only = getenv("SPEC");
	int major = 0, minor = 0;
	ck_assert_msg(spec_load(&spec, specs.gl_pathv[_i], &diag) == 0, "%s", text_str(&diag.text));
	ck_assert_msg(program_lower(program, &spec, &diag) == 0, "%s", text_str(&diag.text));
	ck_assert_msg(compiler_version(&major, &minor, runtime_compiler(rt), &diag) == 0, "%s", text_str(&diag.text));
	if (!only || strcmp(only, spec.name) == 0)
		for (int t = 0; t < TARGET_COUNT; t++) {
			if (!target_ours(&target_table[t]) || (spec_is_language(&spec) && target_table[t].cc != 80 && target_table[t].cc != 90))
				continue;
			for (int pass = 0; pass < PASS_COUNT; pass++)
				for (int naive = 0; naive <= (target_table[t].cc == 90); naive++)
					if (spec.targets[t] && spec.passes[pass])
						check_build(&spec, program, &target_table[t], pass, naive,
						            major == 13 && minor == 0);
		}
	free(program);
	diag_free(&diag);
}
END_TEST

static Suite *specs_suite(const char *name)
{
	Suite *s = suite_create(name);
	TCase *tc = tcase_create("compile");
	glob("specs/*.yaml", 0, NULL, &specs);
	tcase_add_checked_fixture(tc, open_all, close_all);
	tcase_set_timeout(tc, 300);
	tcase_add_loop_test(tc, test_spec, 0, (int)specs.gl_pathc);
	suite_add_tcase(s, tc);
	return s;
}

#endif
