/* emit_wgmma: the warpgroup matrix instructions of a plan. PTX wants every accumulator named, so a wrapper is written for each
 * shape in use. Operands lie as templates/sm90/ptx.h says. */
#include "gen/emit.h"

#include <string.h>

enum { OPERANDS_LINE = 16, PRODUCTS_MAX = 5 };

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

/* Where a product's first operand lies, or how: the second is in shared memory. */
enum form {
	FORM_SS, /* d = a b^T or d += a b^T, both K-major */
	FORM_MS, /* the same, a MN-major */
	FORM_SM, /* d = a b or d += a b, a K-major, b MN-major */
	FORM_MM, /* the same, both MN-major */
	FORM_RS, /* d += a b, a in registers, b MN-major */
};

static void shared_print(struct text *out, enum form form, int n, const char *type)
{
	const bool a_across = form == FORM_MS || form == FORM_MM, b_across = form == FORM_SM || form == FORM_MM;
	const int d = n / 2;
	const char *const power = b_across ? "" : "^T";
	text_addf(out, "// d = a b%s, or d += a b%s: a 64x16, %s-major, b ", power, power, a_across ? "MN" : "K");
	text_addf(out, b_across ? "16x%d, MN-major, in shared memory.\n" : "%dx16, K-major, in shared memory.\n", n);
	text_addf(out,
	          "template <bool ACCUMULATE>\n"
	          "DEVICE void wgmma_%c%c(float (&d)[%d], unsigned long long a, unsigned long long b)\n{\n"
	          "\tasm volatile(\"{\\n\\t.reg .pred p;\\n\\tsetp.ne.b32 p, %%%d, 0;\\n\\t\"\n"
	          "\t             \"wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s {\"",
	          a_across ? 'm' : 's', b_across ? 'm' : 's', d, d + 2, n, type, type);
	operands_print(out, d);
	text_addf(out, "\n\t             \"}, %%%d, %%%d, p, 1, 1, %d, %d;\\n\\t}\"", d, d + 1, a_across, b_across);
	accumulators_print(out, d);
	text_puts(out, "\n\t             : \"l\"(a), \"l\"(b), \"n\"((int)ACCUMULATE));\n}\n");
}

static void registers_print(struct text *out, int n, const char *type)
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

struct product {
	enum form form;
	int n;
};

static int products_forward(struct product *product, const struct spec *spec, const struct candidate *tile)
{
	product[0] = (struct product){FORM_SS, tile->tile_n};
	product[1] = (struct product){FORM_RS, spec->head_dim_v};
	return 2;
}

/* S^T and dP^T; dQ^T, of which a warpgroup has half the columns or half the rows; dV and dK. Where another kernel has dQ, it has S and dP too, and dQ
 * of the shape of dK; nobody uses dQ^T. */
static int products_backward(struct product *product, const struct spec *spec, const struct candidate *tile)
{
	int count = 0;
	product[count++] = (struct product){FORM_SS, tile->tile_m};
	if (tile->sums == DQUERY_APART && tile->tile_n != tile->tile_m)
		product[count++] = (struct product){FORM_SS, tile->tile_n};
	product[count++] = (struct product){FORM_MS, spec->head_dim_qk > 64 ? tile->tile_m : tile->tile_m / 2};
	product[count++] = (struct product){FORM_RS, spec->head_dim_v};
	if (spec->head_dim_qk != spec->head_dim_v)
		product[count++] = (struct product){FORM_RS, spec->head_dim_qk};
	return count;
}

/* S^T and dP^T; dV; dK; and of dQ half the panels, and half of the last one if their number is odd. Where another kernel has dQ, it has S and
 * dP too, of the same shape. */
static int products_backward_pair(struct product *product, const struct spec *spec, const struct candidate *tile)
{
	const int panels = (spec->head_dim_qk + 63) / 64;
	int count = 0;
	product[count++] = (struct product){FORM_SS, tile->tile_m};
	product[count++] = (struct product){FORM_RS, spec->head_dim_v};
	product[count++] = (struct product){FORM_MM, spec->head_dim_qk};
	if (tile->sums == DQUERY_APART) {
		if (spec->head_dim_qk != spec->head_dim_v)
			product[count++] = (struct product){FORM_RS, spec->head_dim_qk};
		return count;
	}
	product[count++] = (struct product){FORM_SM, panels / 2 * 64};
	if (panels % 2)
		product[count++] = (struct product){FORM_SM, 32};
	return count;
}

static int products_find(struct product *product, const struct spec *spec, const struct plan *plan)
{
	const struct candidate *tile = &plan->candidate[plan->chosen];
	if (plan->pass == PASS_FORWARD)
		return products_forward(product, spec, tile);
	return strcmp(plan->templ, "sm90/bwd_pair") == 0 ? products_backward_pair(product, spec, tile)
	                                                 : products_backward(product, spec, tile);
}

void wgmma_print(struct text *out, const struct spec *spec, const struct plan *plan)
{
	const char *const type = spec->dtype == DTYPE_BF16 ? "bf16" : "f16";
	struct product product[PRODUCTS_MAX];
	const int count = products_find(product, spec, plan);
	for (int i = 0; i < count; i++)
		if (product[i].form == FORM_RS)
			registers_print(out, product[i].n, type);
		else
			shared_print(out, product[i].form, product[i].n, type);
}
