/* Fuzzes the small text forms: problem, recipe, expression. The first byte says which. Whatever the rest, there is an
 * error, or a value that prints itself and reads back the same. */
#include "tests/fuzz.h"

#include <string.h>

#include "gen/gen.h"

const char *const fuzz_words[] = {
	"b4",
	"hq32",
	"hkv8",
	"sq4096",
	"sk4096",
	"align16",
	"align2",
	"b0",
	"sq0",
	" ",
	"\n",
	"0",
	"1",
	"-",
	"2147483647",
	"2147483648",
	"9223372036854775807",
	"9223372036854775808",
	"99999999999999999999",
	"recipe load_bytes 16 kv_group 1\n",
	"kernel f grid query_tiles tile 64 threads 128 smem_bytes 100\n",
	"piece delta size rows tile 64 unit 0 zeroed 1\n",
	"key_tiles",
	"scores",
	"rows_qk",
	"256",
	"16",
	"q",
	"k",
	"sq",
	"sk",
	"b",
	"h",
	"s",
	"(",
	")",
	"+",
	"*",
	"/",
	"%",
	"<",
	"<=",
	">",
	">=",
	"==",
	"!=",
	"!",
	"&&",
	"||",
	"?",
	":",
	"min(",
	"max(",
	"abs(",
	",",
	"true",
	"false",
	"left",
	"1.5",
	"1e9",
	"k - sk <= q - sq",
	"(q - sq) - (k - sk) <= left",
	NULL,
};

static void expression(const char *text)
{
	static struct expr_pool pool, again;
	const struct expr_binding binding = {"left", 5};
	struct text printed = {0}, twice = {0};
	struct diag d = {0};
	memset(&pool, 0, sizeof pool);
	memset(&again, 0, sizeof again);
	const int root = expr_parse(&pool, text, &binding, 1, (struct place){0}, &d);
	fuzz_demand((root >= 0) == (d.errors == 0), "expr: result and errors disagree");
	diag_free(&d);
	if (root >= 0) {
		expr_print(&printed, &pool, root);
		const int root2 = expr_parse(&again, text_str(&printed), NULL, 0, (struct place){0}, &d);
		fuzz_demand(root2 >= 0, text_str(&printed));
		expr_print(&twice, &again, root2);
		fuzz_demand(!strcmp(text_str(&printed), text_str(&twice)), text_str(&printed));
	}
	text_free(&printed);
	text_free(&twice);
	diag_free(&d);
}

static void problem(const char *text)
{
	struct problem p, again;
	struct text printed = {0};
	struct diag d = {0};
	memset(&p, 0, sizeof p);
	memset(&again, 0, sizeof again);
	const int result = problem_parse(&p, text, &d);
	fuzz_demand((result == 0) == (d.errors == 0), "problem: result and errors disagree");
	diag_free(&d);
	if (!result) {
		problem_print(&printed, &p);
		fuzz_demand(problem_parse(&again, text_str(&printed), &d) == 0, text_str(&printed));
		fuzz_demand(p.batch == again.batch && p.heads_q == again.heads_q && p.heads_kv == again.heads_kv &&
		                    p.seqlen_q == again.seqlen_q && p.seqlen_k == again.seqlen_k &&
		                    p.align == again.align,
		            text_str(&printed));
	}
	text_free(&printed);
	diag_free(&d);
}

static void recipe(const char *text)
{
	struct recipe r, again;
	struct text printed = {0}, twice = {0};
	struct diag d = {0};
	const int result = recipe_parse(&r, text, &d);
	fuzz_demand((result == 0) == (d.errors == 0), "recipe: result and errors disagree");
	diag_free(&d);
	if (!result) {
		recipe_print(&printed, &r);
		fuzz_demand(recipe_parse(&again, text_str(&printed), &d) == 0, text_str(&printed));
		recipe_print(&twice, &again);
		fuzz_demand(!strcmp(text_str(&printed), text_str(&twice)), text_str(&printed));
		/* Sizes of any recipe and shape: -1 at worst. */
		const struct recipe_shape shape = {1 << 20, 1 << 16, 1 << 16, INT32_MAX, INT32_MAX};
		for (int i = 0; i < r.kernel_count; i++)
			fuzz_demand(recipe_grid_size(&r.kernel[i], &shape) >= -1, "recipe: grid");
		for (int i = 0; i < r.piece_count; i++)
			fuzz_demand(recipe_piece_bytes(&r.piece[i], &shape) >= -1, "recipe: piece");
	}
	text_free(&printed);
	text_free(&twice);
	diag_free(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const parsers[])(const char *) = {recipe, problem, expression}; /* of r, p, e */
	if (!size)
		return 0;
	/* Exactly as many bytes as a string has, so that a sanitizer sees one more. */
	char *text = calloc(size, 1);
	fuzz_demand(text != NULL, "out of memory");
	memcpy(text, data + 1, size - 1);
	parsers[data[0] % 3](text);
	free(text);
	return 0;
}
