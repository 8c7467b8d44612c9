/* emit_wgmma: the warpgroup matrix instructions of a plan. PTX wants every accumulator named, so a wrapper is written for each
 * shape in use. Operands lie as templates/sm90/ptx.h says. */
#include "gen/emit.h"

enum { OPERANDS_LINE = 16 };

/* "%0, %1, ..." as string literals, a few to a line. */
static void operands_print(struct text *out, int count)
{
	for (int i = 0; i < count; i += OPERANDS_LINE) {
		text_puts(out, "\n\t             \"");
		for (int k = i; k < count && k < i + OPERANDS_LINE; k++)
			text_addf(out, "%%%d%s", k, k + 1 < count ? ", " : "");
		text_puts(out, "\"");
	}
}

static void accumulators_print(struct text *out, int count)
{
	for (int i = 0; i < count; i++) {
		const bool first = i % 8 == 0;
		text_addf(out, "%s\"+f\"(d[%d])", i == 0 ? "\n\t             : " : first ? ",\n\t               " : ", ", i);
	}
}

static void wgmma_ss_print(struct text *out, int n, const char *type)
{
	const int d = n / 2;
	text_addf(out,
	          "// d = a b^T, or d += a b^T: a 64x16, b %dx16, both K-major in shared memory.\n"
	          "template <bool ACCUMULATE>\n"
	          "DEVICE void wgmma_ss(float (&d)[%d], unsigned long long a, unsigned long long b)\n{\n"
	          "\tasm volatile(\"{\\n\\t.reg .pred p;\\n\\tsetp.ne.b32 p, %%%d, 0;\\n\\t\"\n"
	          "\t             \"wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s {\"",
	          n, d, d + 2, n, type, type);
	operands_print(out, d);
	text_addf(out, "\n\t             \"}, %%%d, %%%d, p, 1, 1, 0, 0;\\n\\t}\"", d, d + 1);
	accumulators_print(out, d);
	text_puts(out, "\n\t             : \"l\"(a), \"l\"(b), \"n\"((int)ACCUMULATE));\n}\n");
}

static void wgmma_rs_print(struct text *out, int n, const char *type)
{
	const int d = n / 2;
	text_addf(out,
	          "// d += a b: a 64x16 in registers, b 16x%d, MN-major in shared memory.\n"
	          "DEVICE void wgmma_rs(float (&d)[%d], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned long long b)\n{\n"
	          "\tasm volatile(\"wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s {\"",
	          n, d, n, type, type);
	operands_print(out, d);
	text_addf(out, "\n\t             \"}, {%%%d, %%%d, %%%d, %%%d}, %%%d, 1, 1, 1, 1;\"", d, d + 1, d + 2, d + 3, d + 4);
	accumulators_print(out, d);
	text_puts(out, "\n\t             : \"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3), \"l\"(b));\n}\n");
}

void wgmma_print(struct text *out, const struct spec *spec, const struct candidate *tile)
{
	const char *const type = spec->dtype == DTYPE_BF16 ? "bf16" : "f16";
	wgmma_ss_print(out, tile->tile_n, type);
	wgmma_rs_print(out, spec->head_dim_v, type);
}
