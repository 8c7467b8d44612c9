/* docs/language.md says what the tables say: every preset as it is defined, specs that exist, examples that parse. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/case.h"

static char *page_read(void)
{
	FILE *f = fopen("docs/language.md", "r");
	ck_assert_ptr_nonnull(f);
	char *page = calloc(1, 1 << 17);
	ck_assert_ptr_nonnull(page);
	ck_assert_uint_gt(fread(page, 1, (1 << 17) - 1, f), 1000);
	fclose(f);
	return page;
}

START_TEST(test_page_presets) /* every preset: its parameters, its definition, what it means and what it reads */
{
	const struct preset *p = &preset_table[_i];
	char *page = page_read();
	struct text want = {0};
	text_addf(&want, "#### `%s", p->name);
	for (int i = 0; i < preset_params(p); i++)
		text_addf(&want, "%s%s%s%s", i ? ", " : " {", p->param[i].name, p->param[i].fallback ? ": " : "",
		          p->param[i].fallback ? p->param[i].fallback : "");
	text_addf(&want, "%s`\n\n    %s\n\n%c%s.", p->param[0].name ? "}" : "", p->definition, p->doc[0] - 'a' + 'A',
	          p->doc + 1);
	if (*p->input.name)
		text_addf(&want, " Reads `%s`: %s [", p->input.name, input_dtype_names[p->input.dtype]);
	for (int d = 0; d < p->input.dims; d++) {
		text_addf(&want, "%s%s", d ? ", " : "", dim_names[p->input.dim[d].kind]);
		if (p->input.dim[d].kind == DIM_CONST)
			text_addf(&want, "%d", (int)p->input.dim[d].size);
	}
	text_puts(&want, *p->input.name ? "].\n" : "\n");
	ck_assert_msg(strstr(page, text_str(&want)) != NULL, "docs/language.md lacks:\n%s", text_str(&want));
	text_free(&want);
	free(page);
}
END_TEST

START_TEST(test_page_specs) /* the specs that it names exist */
{
	char *page = page_read(), path[128];
	int named = 0;
	for (const char *at = page; (at = strstr(at, "specs/")); at++, named++) {
		const size_t len = strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789_/.");
		if (len < 12 || strncmp(at + len - 5, ".yaml", 5))
			continue;
		snprintf(path, sizeof path, "%.*s", (int)len, at);
		FILE *f = fopen(path, "r");
		ck_assert_msg(f != NULL, "docs/language.md names %s, which does not exist", path);
		fclose(f);
	}
	ck_assert_int_gt(named, 20);
	free(page);
}
END_TEST

START_TEST(test_page_examples) /* lines that are a key of a spec, with a comment, parse and have a meaning */
{
	static const char *const keys[] = {"\n    mask: ", "\n    score: ", "\n    blocks: "};
	char *page = page_read();
	struct spec *spec = malloc(sizeof *spec);
	int parsed = 0;
	ck_assert_ptr_nonnull(spec);
	for (int i = 0; i < 3; i++)
		for (const char *at = page; (at = strstr(at, keys[i]));) {
			at += 5;
			char yaml[512];
			struct diag diag = {0};
			struct ref_program *program = NULL;
			const int len = (int)strcspn(at, "\n");
			if (!memchr(at, '#', (size_t)len) || strncmp(at, "blocks: {size: 64, file", 23) == 0)
				continue;
			snprintf(yaml, sizeof yaml, "head_dim: 16\n%.*s\n", len, at);
			ck_assert_msg(spec_parse(spec, yaml, strlen(yaml), "page", &diag) == 0 &&
			                      ref_program_make(&program, spec, &diag) == 0,
			              "%s", text_str(&diag.text));
			ref_program_free(program);
			diag_free(&diag);
			parsed++;
		}
	ck_assert_int_ge(parsed, 11);
	free(spec);
	free(page);
}
END_TEST

Suite *suite(void);
Suite *suite(void)
{
	Suite *s = suite_create("page");
	TCase *t = tcase_create("language.md");
	tcase_add_loop_test(t, test_page_presets, 0, preset_count);
	tcase_add_test(t, test_page_specs);
	tcase_add_test(t, test_page_examples);
	suite_add_tcase(s, t);
	return s;
}
