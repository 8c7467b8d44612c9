/* access: which elements of inputs a program reads, and where a kernel keeps them. */
#include "gen/access.h"

#include "gen/expr.h"
#include "gen/grad.h"
#include "gen/lower_affine.h"

#include <string.h>

const char *const access_place_names[ACCESS_PLACE_COUNT] = {
	[AT_HEAD] = "head",     [AT_ROW] = "row",     [AT_COL] = "column",
	[AT_DIAG] = "diagonal", [AT_TABLE] = "table", [AT_CELL] = "cell",
};

void node_names(bool used[NAME_COUNT], const struct expr_pool *pool, int node)
{
	bool part[EXPR_NODES_MAX] = {false};
	memset(used, 0, NAME_COUNT * sizeof *used);
	expr_used(part, pool, node);
	for (int i = 0; i <= node; i++)
		if (part[i] && pool->node[i].op == EXPR_NAME)
			used[pool->node[i].i] = true;
}

/* ---- places ---- */

/* How a node's value changes when q and k both grow by one: by `step` always, or in some other way. */
struct drift {
	bool steady;
	int64_t step;
};

static struct drift drift_sum(struct drift a, struct drift b, int64_t sign)
{
	struct drift sum = {a.steady && b.steady, 0};
	sum.steady = sum.steady && !__builtin_mul_overflow(b.step, sign, &sum.step) &&
	             !__builtin_add_overflow(a.step, sum.step, &sum.step);
	return sum;
}

static struct drift node_drift(const struct drift *of, const struct expr_pool *pool, const struct expr_node *n)
{
	const int a = n->arg[0], b = n->arg[1], c = n->arg[2];
	const struct drift none = {true, 0}, unknown = {false, 0};
	bool still = true;
	if (n->op == EXPR_NAME)
		return (struct drift){true, n->i == NAME_Q || n->i == NAME_K};
	for (int j = 0; j < expr_args(n); j++)
		still = still && of[n->arg[j]].steady && of[n->arg[j]].step == 0;
	if (still)
		return none;
	switch (n->op) {
	case EXPR_NEG: return drift_sum(none, of[a], -1);
	case EXPR_ADD: return drift_sum(of[a], of[b], 1);
	case EXPR_SUB: return drift_sum(of[a], of[b], -1);
	case EXPR_MUL:
		return n->type == TYPE_INT && pool->node[b].op == EXPR_CONST ? drift_sum(none, of[a], pool->node[b].i)
		                                                             : unknown;
	case EXPR_MIN:
	case EXPR_MAX: return of[a].steady && of[b].steady && of[a].step == of[b].step ? of[a] : unknown;
	case EXPR_SELECT:
		return of[a].steady && of[a].step == 0 && of[b].steady && of[c].steady && of[b].step == of[c].step
		               ? of[b]
		               : unknown;
	case EXPR_LT: /* the difference of the sides is what counts */
	case EXPR_LE:
	case EXPR_EQ:
	case EXPR_NE: return of[a].steady && of[b].steady && of[a].step == of[b].step ? none : unknown;
	default: return unknown;
	}
}

static bool depends_on_cell(const struct expr_pool *pool, int node)
{
	bool used[NAME_COUNT];
	node_names(used, pool, node);
	return used[NAME_Q] || used[NAME_K];
}

int64_t access_table_size(const struct program *p, const struct access *a, const struct input *input)
{
	int64_t size = 1;
	for (int d = 0; d < input->dims; d++)
		if (depends_on_cell(&p->pool, p->pool.node[a->node].arg[d]))
			size *= input->dim[d].size;
	return size;
}

static bool fits_table(const struct expr_pool *pool, int node, const struct input *input)
{
	int64_t size = 1;
	for (int d = 0; d < input->dims; d++) {
		if (!depends_on_cell(pool, pool->node[node].arg[d]))
			continue;
		if (input->dim[d].kind != DIM_CONST || input->dim[d].size > TABLE_MAX / size)
			return false;
		size *= input->dim[d].size;
	}
	return true;
}

static enum access_place place_find(const struct drift *drift, const struct expr_pool *pool, int node,
                                    const struct input *input)
{
	bool used[NAME_COUNT], steady = true;
	node_names(used, pool, node);
	if (!used[NAME_Q] && !used[NAME_K])
		return AT_HEAD;
	if (!used[NAME_K])
		return AT_ROW;
	if (!used[NAME_Q])
		return AT_COL;
	for (int d = 0; d < input->dims; d++) {
		const struct drift of = drift[pool->node[node].arg[d]];
		steady = steady && of.steady && of.step == 0;
	}
	return steady ? AT_DIAG : fits_table(pool, node, input) ? AT_TABLE : AT_CELL;
}

/* ---- indexes ---- */

/* A dimension's size as an affine form; false: it is no expression. */
static bool dim_form(struct affine *size, const struct input_dim *dim)
{
	static const enum expr_name names[DIM_KIND_COUNT] = {
		[DIM_HEADS] = NAME_HQ, [DIM_HEADS_KV] = NAME_HK, [DIM_SEQ_Q] = NAME_SQ, [DIM_SEQ_K] = NAME_SK};
	memset(size, 0, sizeof *size);
	switch (dim->kind) {
	case DIM_CONST: size->constant = dim->size; return true;
	case DIM_HEADS:
	case DIM_HEADS_KV:
	case DIM_SEQ_Q:
	case DIM_SEQ_K: size->coef[names[dim->kind]] = 1; return true;
	default: return false;
	}
}

struct proof {
	const struct expr_pool *pool;
	struct affine_table affine;
	struct expr_range range[EXPR_NODES_MAX];
	const struct input_dim *dim;
	struct affine size; /* of the dimension */
	bool sized;
};

static bool at_least_zero(const struct proof *p, int node)
{
	const struct expr_node *n = &p->pool->node[node];
	const int a = n->arg[0], b = n->arg[1];
	if (p->range[node].i.lo >= 0 || (p->affine.is[node] && affine_decide(&p->affine.form[node]) == 1))
		return true;
	switch (n->op) {
	case EXPR_MAX: return at_least_zero(p, a) || at_least_zero(p, b);
	case EXPR_MIN: return at_least_zero(p, a) && at_least_zero(p, b);
	case EXPR_SELECT: return at_least_zero(p, b) && at_least_zero(p, n->arg[2]);
	default: return false;
	}
}

/* Is node <= the dimension's size - gap? */
static bool below_size(const struct proof *p, int node, int gap)
{
	const struct expr_node *n = &p->pool->node[node];
	const int a = n->arg[0], b = n->arg[1];
	struct affine left;
	if (p->sized && p->affine.is[node] && affine_add(&left, &p->size, &p->affine.form[node], -1) &&
	    affine_shift(&left, -gap) && affine_decide(&left) == 1)
		return true;
	if (p->dim->kind == DIM_CONST ? p->range[node].i.hi <= p->dim->size - gap : p->range[node].i.hi <= 1 - gap)
		return true;
	if (p->dim->kind == DIM_BATCH && expr_is_name(p->pool, node, NAME_B))
		return gap <= 1;
	switch (n->op) {
	case EXPR_DIV: /* hk divides hq */
		return p->dim->kind == DIM_HEADS_KV && gap <= 1 && expr_is_head_kv(p->pool, node);
	case EXPR_MIN: return below_size(p, a, gap) || below_size(p, b, gap);
	case EXPR_MAX: return below_size(p, a, gap) && below_size(p, b, gap);
	case EXPR_SELECT: return below_size(p, b, gap) && below_size(p, n->arg[2], gap);
	case EXPR_MOD: return gap <= 1 && below_size(p, b, 0); /* less than the divisor */
	default: return false;
	}
}

bool access_proven(const struct expr_pool *pool, int node, int dim, const struct input *input)
{
	struct proof p = {.pool = pool, .dim = &input[pool->node[node].i].dim[dim]};
	const int index = pool->node[node].arg[dim];
	affine_find(&p.affine, pool, index);
	expr_ranges(p.range, pool, index, expr_everywhere, input, NULL);
	p.sized = dim_form(&p.size, p.dim);
	return at_least_zero(&p, index) && below_size(&p, index, 1);
}

bool access_matrix(int *dim_q, int *dim_k, const struct expr_pool *pool, int node, const struct input *input)
{
	const struct expr_node *n = &pool->node[node];
	*dim_q = *dim_k = -1;
	for (int d = 0; d < input[n->i].dims; d++) {
		if (!depends_on_cell(pool, n->arg[d]))
			continue;
		const bool is_q = expr_is_name(pool, n->arg[d], NAME_Q);
		int *dim = is_q ? dim_q : dim_k;
		if (*dim >= 0 || !(is_q || expr_is_name(pool, n->arg[d], NAME_K)) || !access_proven(pool, node, d, input))
			return false;
		*dim = d;
	}
	return *dim_q >= 0 && *dim_k >= 0;
}

/* ---- the table ---- */

/* Marks the elements that code for one cell reads. What the index of a staged element reads is needed only where it is
 * loaded; a table alone is indexed in the cell. */
static void elements_mark(bool *used, const struct program *p, const struct drift *drift, int root,
                          const struct input *input)
{
	bool part[EXPR_NODES_MAX] = {false};
	part[root] = true;
	for (int i = root; i >= 0; i--) {
		const struct expr_node *n = &p->pool.node[i];
		if (!part[i])
			continue;
		used[i] = used[i] || n->op == EXPR_INPUT;
		if (n->op == EXPR_INPUT && place_find(drift, &p->pool, i, &input[n->i]) != AT_TABLE)
			continue;
		for (int j = 0; j < expr_args(n); j++)
			part[n->arg[j]] = true;
	}
}

static int grads_find(struct program *p, const struct spec *spec, struct diag *diag)
{
	int result = 0;
	const int count = p->access_count;
	for (int i = 0; i < spec->input_count; i++) {
		const struct input *input = &spec->input[i];
		bool found = spec->sink && strcmp(input->name, "sink") == 0;
		if (!input->grad)
			continue;
		p->grads = true;
		for (int a = 0; a < count; a++) {
			struct access *access = &p->access[a];
			const char *why;
			if (access->input != i || !access->in_score)
				continue;
			found = true;
			if (!grad_supported(p, spec, a, &why))
				result = diag_at(diag, input->place, "inputs.%s.grad: cannot be computed, because %s",
				                 input->name, why);
			else if ((access->grad = expr_derive(&p->pool, p->score, access->node)) < 0)
				return diag_at(
					diag, input->place,
					"inputs.%s.grad: the derivative of the score is too large: more than %d parts",
					input->name, EXPR_NODES_MAX);
		}
		if (!found)
			result = diag_at(diag, input->place, "inputs.%s.grad: no score reads the input; leave grad out",
			                 input->name);
	}
	return result;
}

int accesses_find(struct program *p, const struct spec *spec, struct diag *diag)
{
	bool mask[EXPR_NODES_MAX] = {false}, score[EXPR_NODES_MAX] = {false}, sink[EXPR_NODES_MAX] = {false};
	struct drift drift[EXPR_NODES_MAX] = {{false, 0}};
	const int count = p->pool.count;
	for (int i = 0; i < count; i++)
		drift[i] = node_drift(drift, &p->pool, &p->pool.node[i]);
	elements_mark(mask, p, drift, p->residual, spec->input);
	elements_mark(score, p, drift, p->score, spec->input);
	if (p->sink >= 0)
		elements_mark(sink, p, drift, p->sink, spec->input);
	for (int i = 0; i < count; i++) {
		const struct expr_node *n = &p->pool.node[i];
		if (!mask[i] && !score[i] && !sink[i])
			continue;
		bool names[NAME_COUNT];
		node_names(names, &p->pool, i);
		if (names[NAME_S])
			return diag_at(diag, spec->place[KEY_score],
			               "score: an index of '%s' depends on s; an element is chosen by position alone",
			               spec->input[n->i].name);
		if (p->access_count == ACCESSES_MAX)
			return diag_at(diag, spec->place[score[i] ? KEY_score : KEY_mask],
			               "%s: more than %d different elements of inputs are read",
			               score[i] ? "score" : "mask", ACCESSES_MAX);
		const struct input *input = &spec->input[n->i];
		struct access *a = &p->access[p->access_count++];
		*a = (struct access){.input = (int)n->i,
		                     .node = i,
		                     .place = place_find(drift, &p->pool, i, input),
		                     .in_mask = mask[i],
		                     .in_score = score[i],
		                     .in_sink = sink[i],
		                     .bounds = -1,
		                     .grad = -1};
		for (int d = 0; d < input->dims; d++)
			a->proven[d] = access_proven(&p->pool, i, d, spec->input);
		if (mask[i] && n->type == TYPE_INT && a->place == AT_ROW)
			a->bounds = p->bounds_rows++;
		if (mask[i] && n->type == TYPE_INT && a->place == AT_COL)
			a->bounds = p->bounds_cols++;
	}
	return grads_find(p, spec, diag);
}

/* ---- shared memory ---- */

const int input_bytes[INPUT_DTYPE_COUNT] = {
	[INPUT_F32] = 4, [INPUT_FP16] = 2, [INPUT_BF16] = 2, [INPUT_I32] = 4, [INPUT_U8] = 1};

const int access_cell_pads[ACCESS_CELL_PADS] = {8, 16};
int access_cell_pad(const struct input *input) { return access_cell_pads[input_bytes[input->dtype] == 1]; }

struct staging program_staging(const struct program *p, const struct spec *spec, int tile_m, int tile_n)
{
	enum { BYTES = 4, UNIT = 16 };
	int64_t head = 0, row = 0, col = 0, cell = 0;
	for (int i = 0; i < p->access_count; i++) {
		const struct access *a = &p->access[i];
		const struct input *input = &spec->input[a->input];
		switch (a->place) {
		case AT_HEAD: head += BYTES; break;
		case AT_TABLE: head += BYTES * access_table_size(p, a, input); break;
		case AT_ROW: row += BYTES * tile_m; break;
		case AT_COL: col += BYTES * tile_n; break;
		case AT_DIAG: cell += BYTES * (tile_m + tile_n); break;
		case AT_CELL: cell += (int64_t)input_bytes[input->dtype] * tile_m * (tile_n + access_cell_pad(input)); break;
		default: break;
		}
	}
	return (struct staging){(int)((head + UNIT - 1) / UNIT * UNIT), (int)((row + UNIT - 1) / UNIT * UNIT),
	                        (int)((col + UNIT - 1) / UNIT * UNIT), (int)((cell + UNIT - 1) / UNIT * UNIT)};
}
