/* emit: one flat text for one pass: provenance, prologue, abi.h, contract.h, the program, the other templates that every
 * kernel may use, those of the kernels that the recipe names. It is the cache key, so nothing is in it that the kernel
 * does not depend on: no name of the spec, date, path or host, no device or problem, and of mask and score only their
 * canonical form. Equal kernels have equal text. */
#include "gen/embed.h"
#include "gen/emit.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- prologue ---- */

static void constant_print(struct text *out, const struct constant *c)
{
	struct text line = {0};
	text_addf(&line, "constexpr %s %s = ", c->type, c->name);
	if (strcmp(c->type, "float") == 0)
		float_print(&line, c->f);
	else if (strcmp(c->type, "bool") == 0)
		text_puts(&line, c->i ? "true" : "false");
	else
		text_addf(&line, "%" PRId64, c->i);
	text_addf(out, "%s;%*s// %s\n", text_str(&line), line.len < 44 ? (int)(44 - line.len) : 1, "", c->doc);
	text_free(&line);
}

static bool has_kernel(const struct plan *plan, const char *entry) { return recipe_kernel_find(&plan->recipe, entry) != NULL; }

/* One row for each constant of templates/README.md, in its order. */
static void prologue_print(struct text *out, const struct spec *spec, const struct program *program,
                           const struct plan *plan)
{
	const struct candidate *tile = &plan->candidate[plan->chosen];
	const struct constant constants[] = {
		{"HEAD_DIM_QK", "int", spec->head_dim_qk, 0, "columns of Q and K"},
		{"HEAD_DIM_V", "int", spec->head_dim_v, 0, "columns of V and O"},
		{"TILE_M", "int", tile->tile_m, 0, "query rows of a tile"},
		{"TILE_N", "int", tile->tile_n, 0, "keys of a tile"},
		{"WARPS", "int", tile->warps, 0, "warps of a CTA"},
		{"THREADS", "int", 32 * tile->warps, 0, "threads of a CTA"},
		{"WALK_WARPS", "int", tile->walk_warps, 0, "warps that walk the tiles together"},
		{"STAGES", "int", tile->stages, 0, "buffers of the streamed tiles"},
		{"LOAD_BYTES", "int", plan->recipe.load_bytes, 0, "alignment of every row: 16, or 2 for any"},
		{"KV_GROUP", "int", spec->kv_group, 0, "query heads per key/value head; 0: taken at launch"},
		{"KEEP_256", "int", spec->keep_256, 0, "of 256, the chance to keep; 256: no dropout"},
		{"SOFTMAX_SCALE", "float", 0, spec->softmax_scale, "multiplies q.k"},
		{"LOGIT_SCALE", "float", 0, program_logit_scale(spec, program),
	         "logit in base 2 = LOGIT_SCALE * score(q.k)"},
		{"SPECULATE", "bool", tile->speculate, 0, "references of the softmax need not rise"},
		{"ALIKE", "bool", tile->alike, 0, "all items visit as many tiles"},
		{"QUEUE", "bool", tile->queue, 0, "persistent CTAs take items from p.queue"},
		{"ORDER", "int", !tile->order ? 0 : plan->pass == PASS_FORWARD ? 1 : 2, 0, "what fagen_order sorts: ORDER_NONE and the others"},
		{"SPLITS", "int", tile->splits, 0, "parts of an owned tile's visits, items of their own"},
		{"CUT", "bool", tile->cut, 0, "tiles from p.cut_first on alone are in parts"},
		{"CTAS_SM", "int", tile->ctas_wanted, 0, "CTAs that an SM holds at least, each with that part of its registers"},
		{"TILE_HEADS", "int", tile->heads, 0, "query heads that share a query tile; 1: each has its own"},
		{"OUT_STAGED", "bool", tile->out_staged, 0, "O passes through shared memory on its way out, a few rows at a time"},
		{"OUT_WHOLE", "bool", tile->out_whole, 0, "or as a whole, and other warps store it"},
		{"WRITE_LSE", "bool", (spec->outputs & OUTPUT_LSE) != 0, 0, "forward writes lse"},
		{"RED_WIDTH", "int", plan->target->red_width, 0, "floats of one global reduction"},
		{"SMEM_BYTES", "int", tile->smem_bytes, 0, "dynamic shared memory"},
		{"RUNS", "int", program->run_count, 0, "runs of the mask"},
		{"SCAN", "int", program->scan, 0, "1: tile_class and the layout decide too"},
		{"BLOCK_Q", "int", program->block_q, 0, "rows of a block of the layout; 0: none"},
		{"BLOCK_K", "int", program->block_k, 0, "keys of one"},
		{"SINK", "int", program->sink >= 0, 0, "1: sink_logit joins the softmax"},
		{"SCORE_IDENTITY", "int", program->score_identity, 0, "1: the score is s"},
		{"SCORE_SHORT", "int", program_short_logit(spec, program) > 0, 0, "1: score_short may stand for score"},
		{"SHORT_LOGIT", "float", 0, program_short_logit(spec, program),
	         "where the logit in base 2 is this near 0"},
		{"SCORE_LIFT", "int", program_lift(spec, program) == LIFT_KNOWN, 0,
	         "1: score_turn says where positions lift scores"},
		{"HEAD_INPUTS", "int", staging_has(program, AT_HEAD, AT_TABLE), 0, "1: HeadInputs holds something"},
		{"ROW_INPUTS", "int", staging_has(program, AT_ROW, AT_ROW), 0, "1: RowInputs does"},
		{"COL_INPUTS", "int", staging_has(program, AT_COL, AT_COL), 0, "1: ColInputs does"},
		{"CELL_INPUTS", "int", staging_has(program, AT_DIAG, AT_CELL), 0, "1: CellInputs does"},
		{"BOUNDS_ROWS", "int", program->bounds_rows, 0, "slots of bounds_row"},
		{"BOUNDS_COLS", "int", program->bounds_cols, 0, "slots of bounds_col"},
		{"LAYOUT", "int", (int64_t)spec->layout, 0, "of the batch: 0 dense, 1 padded, 2 packed"},
		{"SUMS", "int", tile->sums, 0, "how dQ comes about: SUMS_NONE and the others"},
	};
	text_puts(out,
	          "#define DEVICE static __device__ __forceinline__\n"
	          "#pragma nv_diag_suppress 177 // the constants are always all here; no kernel uses every one\n\n");
	for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
		constant_print(out, &constants[i]);
	const struct recipe_kernel *const query = recipe_kernel_find(&plan->recipe, "fagen_backward_query");
	if (query)
		constant_print(out, &(struct constant){"QUERY_SMEM_BYTES", "int", query->smem_bytes, 0,
		                                       "of fagen_backward_query"});
	const struct recipe_kernel *const rows = recipe_kernel_find(&plan->recipe, "fagen_input_grad"),
					  *const cols = recipe_kernel_find(&plan->recipe, "fagen_input_grad_cols");
	if (rows) { /* only these kernels' text has them */
		const int bytes[] = {rows->smem_bytes, cols ? cols->smem_bytes : 0};
		constant_print(out, &(struct constant){"GRAD_SMEM_BYTES", "int", bytes[0], 0, "of fagen_input_grad"});
		constant_print(out, &(struct constant){"GRAD_COLS_SMEM_BYTES", "int", bytes[1], 0,
		                                       "of fagen_input_grad_cols"});
	}
	text_addf(out, "\nstruct Fp16;\nstruct Bf16;\nusing Element = %s; // of Q, K, V, O and their gradients\n\n",
	          spec->dtype == DTYPE_BF16 ? "Bf16" : "Fp16");
}

/* ---- provenance ---- */

/* Appends a text as comment lines. */
static void comment_print(struct text *out, const char *title, const struct text *body)
{
	const char *line = text_str(body);
	text_addf(out, "//\n// %s\n", title);
	while (*line) {
		const size_t len = strcspn(line, "\n");
		text_puts(out, len ? "//   " : "//");
		text_add(out, line, len);
		text_puts(out, "\n");
		line += len + (line[len] == '\n');
	}
}

static void provenance_print(struct text *out, const struct spec *spec, const struct program *program,
                             const struct plan *plan)
{
	const struct candidate *tile = &plan->candidate[plan->chosen];
	struct text body = {0};
	text_addf(
		out,
		"// Exact attention, %s pass, %s for %s. Written by fagen %s; this text belongs to whoever had it written.\n"
		"// Alone it is all that is compiled.\n",
		pass_names[plan->pass], plan->templ, plan->target->name, FAGEN_VERSION);
	program_print(&body, program, spec);
	comment_print(out, "Program", &body);
	text_free(&body);
	text_addf(&body, "tile      %d x %d\nwarps     %d\nstages    %d\nsmem      %d bytes\n", tile->tile_m,
	          tile->tile_n, tile->warps, tile->stages, tile->smem_bytes);
	comment_print(out, "Plan", &body);
	text_free(&body);
	recipe_print(&body, &plan->recipe);
	comment_print(out, "Recipe", &body);
	text_free(&body);
	text_puts(out, "\n");
}

/* ---- the whole ---- */

static int template_add(struct text *out, const char *name, const char *templates_dir, struct diag *diag)
{
	text_addf(out, "#line 1 \"templates/%s\"\n", name);
	if (embed_read(out, name, templates_dir, diag))
		return -1;
	if (out->data[out->len - 1] != '\n')
		text_puts(out, "\n");
	return 0;
}

int source_emit(struct text *out, const struct spec *spec, const struct program *program, const struct plan *plan,
                const char *templates_dir, struct diag *diag)
{
	char skeleton[RECIPE_NAME_MAX + 4];
	snprintf(skeleton, sizeof skeleton, "%s.cu", plan->templ);
	const bool naive = strncmp(plan->templ, "naive/", 6) == 0, hopper = strncmp(plan->templ, "sm90/", 5) == 0, native_forward = hopper && plan->pass == PASS_FORWARD;
	const struct {
		const char *name;
		bool wanted;
	} before[] = {{"abi.h", true}, {"contract.h", true}},
	  after[] = {{"ptx.h", true},
	             {"tile.h", true},
	             {"softmax.h", true},
	             {"dropout.h", true},
	             {"sequence.h", true},
	             {"stream.h", true},
	             {"inputs.h", true},
	             {"walk.h", true},
	             {"section.h", true},
	             {"items.h", true},
	             {"lift.h", plan->pass == PASS_FORWARD && !naive},
	             {"sm90/ptx.h", hopper},
	             {"sm90/tile.h", hopper},
	             {"blocks.cu", has_kernel(plan, "fagen_blocks")},
	             {"bounds.cu", has_kernel(plan, "fagen_bounds")},
	             {"delta.cu", has_kernel(plan, "fagen_delta")},
	             {"sm90/bwd.h", hopper && plan->pass == PASS_BACKWARD},
	             {"sm90/fwd.h", native_forward},
	             {"sm90/fwd_load.h", native_forward},
	             {skeleton, true},
	             {"order.cu", has_kernel(plan, "fagen_order")},
	             {hopper ? "sm90/bwd_query.cu" : "sm80/bwd_query.cu", has_kernel(plan, "fagen_backward_query")},
	             {"sm90/fwd_merge.cu", has_kernel(plan, "fagen_forward_merge")},
	             {"sm90/bwd_merge.cu", has_kernel(plan, "fagen_backward_merge")},
	             {"sm80/bwd_join.cu", has_kernel(plan, "fagen_backward_join")},
	             {"grad_sum.cu", has_kernel(plan, "fagen_input_grad_sum")},
	             {"sm80/input_grad.cu", has_kernel(plan, "fagen_input_grad")},
	             {"sm80/input_grad_cols.cu", has_kernel(plan, "fagen_input_grad")},
	             {"sm90/sink_grad.cu", has_kernel(plan, "fagen_sink_grad")}};
	struct text source = {0};
	int rc = -1;
	provenance_print(&source, spec, program, plan);
	prologue_print(&source, spec, program, plan);
	for (size_t i = 0; i < sizeof before / sizeof *before; i++)
		if (template_add(&source, before[i].name, templates_dir, diag))
			goto out;
	text_puts(&source, "#line 1 \"program\"\n");
	source_program(&source, spec, program);
	if (hopper)
		wgmma_print(&source, spec, plan);
	for (size_t i = 0; i < sizeof after / sizeof *after; i++)
		if (after[i].wanted && template_add(&source, after[i].name, templates_dir, diag))
			goto out;
	text_add(out, source.data, source.len);
	rc = 0;
out:
	text_free(&source);
	return rc;
}
