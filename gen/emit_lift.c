/* emit_lift: what positions alone add to a score, for kernels that take exponentials of a row against one reference.
 *
 * Where a score is s and something of positions, each row's greatest logit is known but for s as soon as the greatest of that
 * something is. If it rises or falls all along the row, or on either side of one key, its greatest value over an interval of keys
 * is at one of three: the first, the last, the one where it turns. */
#include "gen/access.h"
#include "gen/emit.h"
#include "gen/lower_affine.h"

struct lifting {
	const struct expr_pool *pool;
	struct affine_table affine;
	bool q[EXPR_NODES_MAX], k[EXPR_NODES_MAX], s[EXPR_NODES_MAX]; /* a node follows them, not through an input's index */
	bool turns;
	struct affine turn; /* is 0 at the key where what the score adds turns */
};

static void names_find(struct lifting *l, int root)
{
	for (int i = 0; i <= root; i++) {
		const struct expr_node *n = &l->pool->node[i];
		l->q[i] = n->op == EXPR_NAME && n->i == NAME_Q;
		l->k[i] = n->op == EXPR_NAME && n->i == NAME_K;
		l->s[i] = n->op == EXPR_NAME && n->i == NAME_S;
		for (int j = 0; n->op != EXPR_INPUT && j < expr_args(n); j++) {
			l->q[i] |= l->q[n->arg[j]];
			l->k[i] |= l->k[n->arg[j]];
			l->s[i] |= l->s[n->arg[j]];
		}
	}
}

/* A value of the same sign everywhere but where this form of a key is 0. One for the whole score. */
static bool turn_set(struct lifting *l, const struct affine *form)
{
	if (!affine_is_bound(form) || !affine_is_safe(form) || l->turns)
		return false;
	l->turn = *form;
	l->turns = form->coef[NAME_K] != 0;
	return true;
}

/* Of a node without s: does it rise or fall with k, never both on one side of the turn? Where k stands once and every operation on
 * the way is monotone or abs. */
static bool is_sided(struct lifting *l, int node)
{
	const struct expr_node *n = &l->pool->node[node];
	const int a = n->arg[0], b = n->arg[1];
	if (!l->k[node] || l->affine.is[node])
		return true;
	switch (n->op) {
	case EXPR_NEG:
	case EXPR_FLOAT:
	case EXPR_FLOOR:
	case EXPR_EXP:
	case EXPR_LOG:
	case EXPR_TANH:
	case EXPR_SQRT:
	case EXPR_SIGMOID: return is_sided(l, a);
	case EXPR_ABS: {
		const int inner = l->pool->node[a].op == EXPR_FLOAT ? l->pool->node[a].arg[0] : a;
		return l->affine.is[inner] && turn_set(l, &l->affine.form[inner]);
	}
	case EXPR_ADD:
	case EXPR_SUB:
	case EXPR_MUL:
	case EXPR_MIN:
	case EXPR_MAX: return !(l->k[a] && l->k[b]) && is_sided(l, a) && is_sided(l, b);
	case EXPR_DIV: return !l->k[b] && is_sided(l, a);
	default: return false;
	}
}

/* Is the node, times what its row alone decides, a function of s and the row plus one of positions that is sided? */
static bool is_lifted(struct lifting *l, int node)
{
	const struct expr_node *n = &l->pool->node[node];
	const int a = n->arg[0], b = n->arg[1];
	if (!l->k[node] || !l->s[node]) /* and so no atom */
		return is_sided(l, node);
	switch (n->op) {
	case EXPR_NEG: return is_lifted(l, a);
	case EXPR_ADD:
	case EXPR_SUB: return !(l->k[a] && l->k[b]) && is_lifted(l, a) && is_lifted(l, b);
	case EXPR_MUL:
		return !(l->k[a] && (l->k[b] || l->s[b])) && !(l->k[b] && l->s[a]) && is_lifted(l, a) && is_lifted(l, b);
	case EXPR_DIV: return !l->k[b] && !l->s[b] && is_lifted(l, a);
	default: return false;
	}
}

/* Of the inputs that the score reads: does some element follow the key, and is one of those of a dimension of positions, which
 * may say anything of a key, even hide it? */
static void inputs_follow(bool *keys, bool *positions, const struct spec *spec, const struct program *p)
{
	*keys = *positions = false;
	for (int i = 0; i < p->access_count; i++) {
		const struct access *a = &p->access[i];
		const struct input *input = &spec->input[a->input];
		for (int d = 0; a->in_score && d < input->dims; d++) {
			bool used[NAME_COUNT];
			node_names(used, &p->pool, p->pool.node[a->node].arg[d]);
			*keys |= used[NAME_K];
			*positions |= used[NAME_K] && dim_is_sequence(input->dim[d].kind);
		}
	}
}

static enum lift lift_find(struct lifting *l, const struct spec *spec, const struct program *p)
{
	bool keys, positions;
	l->pool = &p->pool;
	l->turns = false;
	names_find(l, p->score);
	inputs_follow(&keys, &positions, spec, p);
	if (positions)
		return LIFT_UNKNOWN;
	if (!l->q[p->score] && !l->k[p->score])
		return LIFT_NONE;
	affine_find(&l->affine, l->pool, p->score);
	return !keys && is_lifted(l, p->score) ? LIFT_KNOWN : LIFT_UNKNOWN;
}

enum lift program_lift(const struct spec *spec, const struct program *p)
{
	struct lifting l;
	return lift_find(&l, spec, p);
}

void lift_print(struct text *out, const struct spec *spec, const struct program *p)
{
	struct lifting l;
	text_puts(out, "DEVICE int score_turn(int q, int sq, int sk) { return ");
	if (lift_find(&l, spec, p) == LIFT_KNOWN && l.turns) {
		const int sign = l.turn.coef[NAME_K] > 0 ? -1 : 1;
		const struct summand term[] = {{sign * l.turn.coef[NAME_Q], "q", false},
		                               {sign * l.turn.coef[NAME_SQ], "sq", false},
		                               {sign * l.turn.coef[NAME_SK], "sk", false}};
		text_puts(out, "clamp_position(");
		sum_print(out, term, 3, sign * l.turn.constant);
		text_puts(out, ", sk - 1)");
	} else {
		text_puts(out, "0");
	}
	text_puts(out, "; }\n\n");
}
