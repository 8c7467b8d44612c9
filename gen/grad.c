/* grad: gradients of inputs, sorted by how their elements lie to tiles. */
#include "gen/grad.h"

#include "gen/access.h"
#include "gen/expr.h"

#include <string.h>

enum {
	TABLE_FLOATS_MAX = 4096, /* of all tables together: they wait in shared memory */
	ROW_FLOATS_MAX = 128     /* of one query row */
};

static const char *index_why(const struct expr_pool *pool, int index, enum dim_kind kind)
{
	switch (kind) {
	case DIM_CONST: return NULL;
	case DIM_BATCH: return expr_is_name(pool, index, NAME_B) ? NULL : "its batch index is not b";
	case DIM_HEADS: return expr_is_name(pool, index, NAME_H) ? NULL : "its heads index is not h";
	case DIM_HEADS_KV: return expr_is_head_kv(pool, index) ? NULL : "its heads_kv index is not h / (hq / hk)";
	case DIM_SEQ_Q: return expr_is_name(pool, index, NAME_Q) ? NULL : "its seq_q index is not q";
	case DIM_SEQ_K: return expr_is_name(pool, index, NAME_K) ? NULL : "its seq_k index is not k";
	default: return "it has a dimension of blocks";
	}
}

static enum grad_kind kind_of(const struct input *input, int64_t *entries)
{
	bool q = false, k = false;
	*entries = 1;
	for (int d = 0; d < input->dims; d++) {
		q = q || input->dim[d].kind == DIM_SEQ_Q;
		k = k || input->dim[d].kind == DIM_SEQ_K;
		if (input->dim[d].kind == DIM_CONST && *entries <= TABLE_FLOATS_MAX)
			*entries *= input->dim[d].size;
	}
	return q && k ? GRAD_CELL : q ? GRAD_ROW : k ? GRAD_COL : GRAD_TABLE;
}

bool grad_supported(const struct program *p, const struct spec *spec, int access, const char **why)
{
	const struct access *a = &p->access[access];
	const struct input *input = &spec->input[a->input];
	int64_t entries;
	const enum grad_kind kind = kind_of(input, &entries);
	*why = NULL;
	if (p->pool.node[a->node].type != TYPE_FLOAT)
		*why = "it holds ints";
	for (int d = 0; d < input->dims && !*why; d++)
		*why = index_why(&p->pool, p->pool.node[a->node].arg[d], input->dim[d].kind);
	if (!*why && kind == GRAD_TABLE && entries > TABLE_FLOATS_MAX)
		*why = "a head has more than 4096 elements of it";
	if (!*why && kind == GRAD_ROW && entries > ROW_FLOATS_MAX)
		*why = "a query row has more than 128 elements of it";
	if (!*why && (kind == GRAD_COL || kind == GRAD_CELL) && entries > 1)
		*why = "it has a constant dimension beside seq_k";
	return !*why;
}

/* The input's slot, made when it has none. */
static int slot_find(struct grad_plan *g, const struct spec *spec, int input)
{
	for (int i = 0; i < g->slots; i++)
		if (g->slot[i].input == input)
			return i;
	struct grad_slot *s = &g->slot[g->slots];
	int64_t entries;
	s->input = input;
	s->kind = kind_of(&spec->input[input], &entries);
	s->entries = (int)entries;
	switch (s->kind) {
	case GRAD_TABLE:
		s->base = g->table_floats;
		g->table_floats += s->entries;
		break;
	case GRAD_ROW:
		s->base = g->row_floats;
		g->row_floats += s->entries;
		break;
	case GRAD_COL: s->base = g->cols++; break;
	default: break;
	}
	return g->slots++;
}

static enum grad_spread spread_of(const struct access *a)
{
	switch (a->place) {
	case AT_HEAD: return SPREAD_HEAD;
	case AT_DIAG: return SPREAD_DIAG;
	default: return SPREAD_CELL;
	}
}

void grad_plan_make(struct grad_plan *g, const struct program *p, const struct spec *spec)
{
	const int sink = spec->sink ? spec_input_find(spec, "sink") : -1;
	memset(g, 0, sizeof *g);
	g->sink = -1;
	for (int i = 0; i < p->access_count; i++) {
		const struct access *a = &p->access[i];
		if (a->grad < 0)
			continue;
		struct grad_access *made = &g->access[g->accesses++];
		*made = (struct grad_access){i, slot_find(g, spec, a->input), spread_of(a)};
		const struct grad_slot *slot = &g->slot[made->slot];
		if (slot->kind == GRAD_TABLE) {
			g->diag_spread = g->diag_spread || made->spread == SPREAD_DIAG;
			g->cell_spread = g->cell_spread || made->spread == SPREAD_CELL;
		}
		g->cell_spread = g->cell_spread || (slot->kind == GRAD_ROW && slot->entries > 1);
	}
	if (sink >= 0 && spec->input[sink].grad)
		g->sink = slot_find(g, spec, sink);
}
