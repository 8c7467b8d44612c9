/* fagen pack, the command: the same bytes from every folder, order and number of workers; what is wrong is said, with the exit status. */
#include <sys/stat.h>
#include <sys/wait.h>

#include "gen/yaml_tree.h"
#include "tests/fake_use.h"
#include "tests/folder_help.h"
#include "tests/pack_help.h"

Suite *suite(void);

static char work[FOLDER_MAX], folder[512], output[1 << 16];
static const char other_spec[] = "head_dim: 32\nname: other\nlayout: packed\nmask: {all: [causal, document]}\n"
				 "kv_group: 2\nassume: {batch: 2, heads: 4, seqlen: 512}\n";

static void work_make(void)
{
	char command[256];
	folder_make(work, "t_pack_cli");
	test_folder(folder);
	snprintf(command, sizeof command, "mkdir %s/elsewhere", work);
	ck_assert_int_eq(system(command), 0);
	snprintf(command, sizeof command, "%s/other.yaml", work);
	FILE *f = fopen(command, "w");
	ck_assert_ptr_nonnull(f);
	fputs(other_spec, f);
	fclose(f);
}

static void work_remove(void) { folder_remove(work); }

/* `fagen pack ARGUMENTS` in a folder below the work folder; its exit status, and all it says in `output`. */
static int pack_in(const char *sub, const char *arguments)
{
	char command[4096];
	snprintf(command, sizeof command,
	         "export FAGEN='%s/../fagen'; case $FAGEN in /*) ;; *) FAGEN=$PWD/$FAGEN;; esac; S=$PWD/specs; cd %s/%s && "
	         "LSAN_OPTIONS=detect_leaks=0 ASAN_OPTIONS=detect_leaks=0 FAGEN_CACHE_DIR=%s/cache \"$FAGEN\" pack %s 2>&1",
	         folder, work, sub, work, arguments);
	const int status = made_run(output, sizeof output, command);
	ck_assert(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void ck_said(int status, int expected, const char *says)
{
	ck_assert_msg(status == expected && strstr(output, says), "exit %d, and not \"%s\": %.3000s", status, says, output);
}

static void ck_same(const char *a, const char *b)
{
	char command[512];
	snprintf(command, sizeof command, "cmp %s/%s %s/%s", work, a, work, b);
	ck_assert_msg(system(command) == 0, "%s and %s differ", a, b);
}

START_TEST(a_pack_is_the_same_however_it_was_made)
{
	ck_said(pack_in(".", "build $S/causal_d64.yaml other.yaml --targets sm_80,sm_90a -j1 -o all.fgpk"), 0, "all.fgpk: 6 kernels");
	ck_assert_ptr_null(strstr(output, "\033")); /* a progress bar is for terminals */
	ck_said(pack_in("elsewhere", "build ../other.yaml $S/causal_d64.yaml --targets sm_90a,sm_80 -j2 -o ../again.fgpk"), 0, "6 kernels");
	ck_same("all.fgpk", "again.fgpk");
	/* Parts, merged in either order. */
	ck_said(pack_in(".", "build other.yaml --targets sm_80,sm_90a -o one.fgpk"), 0, "one.fgpk: 2 kernels");
	ck_said(pack_in(".", "build $S/causal_d64.yaml --targets sm_80 -o two.fgpk"), 0, "two.fgpk: 2 kernels");
	ck_said(pack_in(".", "build $S/causal_d64.yaml --targets sm_90a -o three.fgpk"), 0, "three.fgpk: 2 kernels");
	ck_said(pack_in(".", "merge one.fgpk two.fgpk three.fgpk -o merged.fgpk"), 0, "6 kernels");
	ck_same("all.fgpk", "merged.fgpk");
	ck_said(pack_in(".", "merge three.fgpk merged.fgpk one.fgpk -o merged.fgpk"), 0, "6 kernels");
	ck_same("all.fgpk", "merged.fgpk");
	/* Compiled anew. */
	ck_assert_int_eq(pack_in(".", "ls all.fgpk && rm -r cache"), 0);
	ck_said(pack_in(".", "build other.yaml --targets sm_80,sm_90a -o fresh.fgpk"), 0, "2 kernels");
	ck_same("one.fgpk", "fresh.fgpk");

	ck_said(pack_in(".", "verify all.fgpk one.fgpk"), 0, "6 kernels, all good");
	ck_said(pack_in(".", "ls all.fgpk"), 0, "causal_d64  sm_90a   backward  sm90/bwd");
	ck_said(pack_in(".", "ls --json all.fgpk"), 0, "{\"name\": \"other\", \"target\": \"sm_80\", \"pass\": \"forward\"");
	/* The manifest is YAML, and has the spec as it was written and as it was read. */
	ck_said(pack_in(".", "ls --manifest one.fgpk"), 0, "      head_dim: 32\n      name: other\n      layout: packed\n");
	ck_assert_ptr_nonnull(strstr(output, "      licence: not stated\n"));
	ck_assert_ptr_nonnull(strstr(output, "      compiler: NVRTC "));
	ck_assert_ptr_nonnull(strstr(output, "      deterministic: false\n"));
	ck_assert_ptr_nonnull(strstr(output, "input doc dtype i32 grad 0 dims 2 dim batch size 0 dim seq_k size 0"));
	ck_assert_ptr_null(strstr(output, "__global__"));
	struct yaml_tree tree;
	struct diag diag = {0};
	ck_assert_msg(!yaml_tree_read(&tree, output, strlen(output), &diag), "%s", text_str(&diag.text));
	yaml_tree_free(&tree);
	ck_said(pack_in(".", "build other.yaml --targets sm_80 --sources --licence MIT -o sources.fgpk"), 0, "1 kernels");
	ck_said(pack_in(".", "ls --manifest sources.fgpk | grep -E '__global__|licence'"), 0, "__global__");
	ck_assert_ptr_nonnull(strstr(output, "      licence: MIT\n"));

	/* As C, and as a fatbin where there is a toolkit. */
	ck_assert_int_eq(pack_in(".", "export one.fgpk --symbol mine -o mine.c && cc -std=c11 -Wall -Werror -c mine.c -o mine.o && nm mine.o"), 0);
	ck_assert(strstr(output, "R mine\n") && strstr(output, "R mine_size\n"));
	if (access("/usr/local/cuda/bin/fatbinary", X_OK) == 0)
		ck_said(pack_in(".", "export one.fgpk --fatbin other | od -An -tx4 -N4"), 0, "ba55ed50");
}
END_TEST

static const struct {
	const char *arguments;
	int status;
	const char *says;
} bad[] = {
	{"", 2, "fagen pack knows no ''"},
	{"make", 2, "fagen pack knows no 'make'"},
	{"build $S/causal_d64.yaml", 2, "takes -o FILE"},
	{"build -o x.fgpk", 2, "takes one or more specs"},
	{"build $S/causal_d64.yaml --targets sm_80,sm_81 -o x", 2, "no target 'sm_81'; want some of sm_80 sm_86"},
	{"build $S/causal_d64.yaml --targets '' -o x", 2, "names none"},
	{"build $S/causal_d64.yaml -j 0 -o x", 2, "want a number from 1 to 64"},
	{"build $S/causal_d64.yaml $S/causal_d64.yaml --targets sm_80 -o x", 1, "are both called causal_d64"},
	{"build nothing.yaml -o x", 1, "nothing.yaml"},
	{"ls", 2, "takes one pack"},
	{"ls $S/causal_d64.yaml", 1, "causal_d64.yaml cannot be used: it does not begin as a pack does"},
	{"ls nothing", 1, "nothing cannot be read: No such file"},
	{"verify nothing", 4, "cannot be read"},
	{"merge made.fgpk", 2, "and -o FILE"},
	{"merge made.fgpk other.fgpk -o x", 1, "two different kernels called a for sm_80"},
	{"merge made.fgpk damaged.fgpk -o x", 4, "damaged.fgpk: b for sm_90a is damaged"},
	{"verify made.fgpk damaged.fgpk", 4, "damaged.fgpk: b, pass 1, for sm_90a is damaged"},
	{"verify revoked.fgpk", 4, "must not run: it was made from revision 0 of template sm80/fwd"},
	{"ls damaged.fgpk", 0, "1 of 2 cannot be used"},
	{"export made.fgpk --symbol 2x", 2, "no name in C"},
	{"export made.fgpk --fatbin nobody", 1, "has no forward pass of 'nobody'"},
	{"export made.fgpk --fatbin a --pass sideways", 2, "no pass 'sideways'"},
	{"ls made.fgpk --symbol x", 2, "usage"},
	{"verify made.fgpk -o x", 2, "has no such option"},
};

static void put(const char *name, const uint8_t *bytes, size_t len)
{
	char path[160];
	snprintf(path, sizeof path, "%s/%s", work, name);
	FILE *f = fopen(path, "wb");
	ck_assert(f && fwrite(bytes, 1, len, f) == len);
	fclose(f);
}

START_TEST(what_is_wrong_is_said)
{
	struct pack_item item[] = {made_item("a", "sm_80", 0, "a"), made_item("b", "sm_90a", 1, "the code of b"), made_item("a", "sm_80", 0, "another a")};
	size_t len;
	uint8_t *bytes = made_pack(&len, item, 2), *other;
	put("made.fgpk", bytes, len);
	for (size_t i = 0; i + 13 <= len; i++)
		if (!memcmp(bytes + i, "the code of b", 13))
			bytes[i] ^= 1;
	put("damaged.fgpk", bytes, len);
	other = made_pack(&len, item + 2, 1);
	put("other.fgpk", other, len);
	free(other);
	item[0].revision = 0;
	other = made_pack(&len, item, 1);
	put("revoked.fgpk", other, len);
	free(other);
	free(bytes);
	for (int i = 0; i < 3; i++)
		free((void *)item[i].entry);
	ck_said(pack_in(".", bad[_i].arguments), bad[_i].status, bad[_i].says);
	char path[160];
	snprintf(path, sizeof path, "%s/x", work);
	ck_assert_int_ne(access(path, F_OK), 0); /* nothing half done is left */
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("pack_cli");
	TCase *t = tcase_create("pack");
	tcase_add_unchecked_fixture(t, work_make, work_remove);
	tcase_set_timeout(t, 300);
	tcase_add_test(t, a_pack_is_the_same_however_it_was_made);
	tcase_add_loop_test(t, what_is_wrong_is_said, 0, sizeof bad / sizeof *bad);
	suite_add_tcase(s, t);
	return s;
}
