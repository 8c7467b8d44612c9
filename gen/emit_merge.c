#include "gen/emit_merge.h"
#include "gen/embed.h"
#include "templates/abi.h"
#include "templates/merge_abi.h"

#include <stdio.h>

int merge_emit(struct text *out, const char *templates_dir, struct diag *diag)
{
	static const char *const parts[] = {"abi.h", "merge_abi.h", "ptx.h", "merge.cu"};
	struct text source = {0};
	int rc = 0;
	text_addf(
		&source,
		"// Merging of partial attention results. Written by fagen %s; this text belongs to whoever had it written.\n"
		"// Alone it is all that is compiled.\n\n"
		"#define DEVICE static __device__ __forceinline__\n"
		"#pragma nv_diag_suppress 177 // these kernels use little of ptx.h\n\n",
		FAGEN_VERSION);
	for (size_t i = 0; i < sizeof parts / sizeof *parts && !rc; i++) {
		text_addf(&source, "#line 1 \"templates/%s\"\n", parts[i]);
		rc = embed_read(&source, parts[i], templates_dir, diag);
		if (!rc && source.data[source.len - 1] != '\n')
			text_puts(&source, "\n");
	}
	if (!rc)
		text_add(out, source.data, source.len);
	text_free(&source);
	return rc;
}

void merge_recipe(struct recipe *recipe)
{
	static const char *const entries[] = {"fagen_merge", "fagen_merge_backward"};
	*recipe = (struct recipe){.kernel_count = 2, .load_bytes = 2, .kv_group = 1};
	for (int i = 0; i < 2; i++) {
		struct recipe_kernel *k = &recipe->kernel[i];
		*k = (struct recipe_kernel){
			.grid = GRID_QUERY_TILES, .tile = FAGEN_MERGE_ROWS, .threads = FAGEN_MERGE_THREADS};
		snprintf(k->entry, sizeof k->entry, "%s", entries[i]);
	}
}
