/* Fuzzes the small text forms: problem, recipe, signature, expression, wisdom. The first byte says which. Whatever the rest, there is an
 * error, or a value that prints itself and reads back the same. */
#include "tests/fuzz.h"

#include <string.h>

#include "gen/expr.h"
#include "gen/signature.h"

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
	"signature dtype bf16 layout dense head_dim 64 value_dim 64 outputs 1 keep 256 block_q 64 block_k 0\n",
	"input doc dtype i32 grad 0 dims 1 dim seq_k size 0\n",
	"dim const size 7",
	"dim blocks_q size 0",
	"key_tiles",
	"persistent_pairs",
	"persistent_keys",
	"persistent_2",
	"kernel f grid key_tails tile 64 threads 128 smem_bytes 0 visit 64 resident 2 alike 1 ends 2 join 8\n",
	"kernel f grid tails_join tile 64 threads 128 smem_bytes 0 parts 16 visit 64 resident 2 alike 1 ends 2 join 8\n",
	"persistent_tails",
	"persistent_key_tails",
	"piece parts size tails_kv tile 64 unit 64 zeroed 0 visit 64 resident 2 alike 0 ends 2 join 8\n",
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
	"floor(",
	"float(",
	"exp(",
	"log(",
	"tanh(",
	"sqrt(",
	"sigmoid(",
	"random(",
	"[",
	"]",
	"doc[b, k]",
	"slope[h]",
	"one",
	"causal",
	"window(4, 0)",
	"prefix(",
	"dilated(2, unbounded, 3)",
	"softcap(20)",
	"alibi",
	"local(1, 0)",
	"strided(4)",
	"0.5",
	"1e-3",
	"1e38",
	"1.5",
	"1e9",
	"fagen-wisdom 1\n",
	"forward gpu=\"H200\" sms=132",
	"backward gpu=\"A\" sms=1",
	" problem=\"b4 hq16 hkv16 sq4096 sk4096 align16\"",
	" tile=\"sm90/fwd 128x128 w12 s2\"",
	" us=301.250 noise=0.4% rounds=7",
	" planner=\"sm80/bwd 64x64 w4 s1\"",
	" planner_us=0.001",
	" spec={head_dim: 64}\n",
	"\"",
	"=",
	"#",
	"k - sk <= q - sq",
	"(q - sq) - (k - sk) <= left",
	NULL,
};

static const struct input inputs[] = {
	{.name = "doc", .dtype = INPUT_I32, .dims = 2, .dim = {{.kind = DIM_BATCH}, {.kind = DIM_SEQ_K}}},
	{.name = "slope", .dtype = INPUT_F32, .dims = 1, .dim = {{.kind = DIM_HEADS}}},
	{.name = "one", .dtype = INPUT_FP16},
};

static void demand_same_text(const struct expr_pool *pool, int root, struct expr_scope scope)
{
	static struct expr_pool again;
	struct text printed = {0}, twice = {0};
	struct diag d = {0};
	memset(&again, 0, sizeof again);
	scope.bindings = 0;
	expr_print(&printed, pool, root, inputs);
	const int root2 = expr_parse(&again, text_str(&printed), &scope, (struct place){0}, &d);
	fuzz_demand(root2 >= 0, text_str(&printed));
	expr_print(&twice, &again, root2, inputs);
	fuzz_demand(!strcmp(text_str(&printed), text_str(&twice)), text_str(&printed));
	text_free(&printed);
	text_free(&twice);
	diag_free(&d);
}

static struct expr_value element(void *context, int input, const int64_t *index)
{
	return (struct expr_value){index[0] & 15, (double)(index[0] & 15) / 4 + input};
}

/* A mask, a score or a layout, by the length of the text. */
static void expression(const char *text)
{
	static struct expr_pool pool;
	static const int64_t name[NAME_COUNT] = {1, 2, 300, 200, 400, 500, 8, 4};
	bool used[64] = {false}, overflow = false;
	struct diag d = {0};
	memset(&pool, 0, sizeof pool);
	const struct expr_binding binding = {"left", expr_const_int(&pool, 5)};
	const struct expr_scope scope = {(enum preset_kind)(strlen(text) % 3), inputs, 3, &binding, 1, -1};
	const int root = expr_parse(&pool, text, &scope, (struct place){1, 1}, &d);
	fuzz_demand((root >= 0) == (d.errors == 0), "expr: result and errors disagree");
	expr_presets(used, text);
	diag_free(&d);
	if (root < 0)
		return;
	demand_same_text(&pool, root, scope);
	const struct expr_value v = expr_eval(&pool, root, name, 0.75, element, NULL);
	const struct interval i = expr_interval(&pool, root, expr_everywhere, inputs, NULL, &overflow);
	const struct float_interval f = expr_float_interval(&pool, root, expr_everywhere, inputs, NULL);
	if (pool.node[root].type != TYPE_FLOAT)
		fuzz_demand(overflow || (i.lo <= v.i && v.i <= i.hi), "expr: outside its interval");
	else if (!overflow)
		fuzz_demand(v.f == v.f ? f.lo <= v.f && v.f <= f.hi : f.nan, "expr: outside its interval");
	const int s = expr_variable(&pool, NAME_S);
	const int derived = pool.node[root].type == TYPE_FLOAT && s >= 0 ? expr_derive(&pool, root, s) : -1;
	if (derived >= 0 && expr_tree_size(&pool, derived) < EXPR_TREE_MAX / 64 && scope.kind == PRESET_SCORE)
		demand_same_text(&pool, derived, scope);
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
		const struct recipe_shape shape = {1 << 20, 1 << 16, 1 << 16, INT32_MAX, INT32_MAX, 0, 0, false, 132};
		for (int i = 0; i < r.kernel_count; i++)
			fuzz_demand(recipe_grid_size(&r.kernel[i], &shape) >= -1, "recipe: grid");
		for (int i = 0; i < r.piece_count; i++)
			fuzz_demand(recipe_piece_bytes(&r.piece[i], &shape) >= -1, "recipe: piece");
	}
	text_free(&printed);
	text_free(&twice);
	diag_free(&d);
}

static void signature(const char *text)
{
	static struct signature s, again;
	struct text printed = {0}, twice = {0};
	struct diag d = {0};
	const int result = signature_parse(&s, text, &d);
	fuzz_demand((result == 0) == (d.errors == 0), "signature: result and errors disagree");
	diag_free(&d);
	if (!result) {
		signature_print(&printed, &s);
		fuzz_demand(signature_parse(&again, text_str(&printed), &d) == 0, text_str(&printed));
		signature_print(&twice, &again);
		fuzz_demand(!strcmp(text_str(&printed), text_str(&twice)), text_str(&printed));
		/* What a launch divides by. */
		for (int i = 0; i < s.input_count; i++)
			for (int n = 0; n < s.input[i].dims; n++)
				fuzz_demand((s.input[i].dim[n].kind != DIM_BLOCKS_Q || s.block_q) &&
				                    (s.input[i].dim[n].kind != DIM_BLOCKS_K || s.block_k),
				            "signature: blocks of no size");
	}
	text_free(&printed);
	text_free(&twice);
	diag_free(&d);
}

static void wisdom(const char *text)
{
	struct wisdom w = {0}, again = {0};
	struct text printed = {0}, twice = {0};
	struct diag d = {0};
	const int result = wisdom_parse(&w, text, strlen(text), "w", &d);
	fuzz_demand((result == 0) == (d.errors == 0), "wisdom: result and errors disagree");
	fuzz_demand(result == 0 || w.count == 0, "wisdom: lines of a bad file were taken");
	diag_free(&d);
	wisdom_print(&printed, &w);
	fuzz_demand(wisdom_parse(&again, text_str(&printed), printed.len, "w", &d) == 0, text_str(&printed));
	fuzz_demand(wisdom_merge(&again, &w) == 0, "wisdom: merge");
	wisdom_print(&twice, &again);
	fuzz_demand(!strcmp(text_str(&printed), text_str(&twice)), text_str(&printed));
	text_free(&printed);
	text_free(&twice);
	wisdom_free(&w);
	wisdom_free(&again);
	diag_free(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* of s, e, p, l (lines of wisdom), r */
	static void (*const parsers[])(const char *) = {signature, expression, problem, wisdom, recipe};
	if (!size)
		return 0;
	/* Exactly as many bytes as a string has, so that a sanitizer sees one more. */
	char *text = calloc(size, 1);
	fuzz_demand(text != NULL, "out of memory");
	memcpy(text, data + 1, size - 1);
	parsers[data[0] % 5](text);
	free(text);
	return 0;
}
