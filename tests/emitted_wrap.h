/* Behind each emitted program and its stream.h: the table of its functions. Read by tests/emitted.h. */
static void w_range(int out[4], int keys, int run, long long from, long long to, int sq, int sk)
{
	const struct Range r = keys ? key_range(run, from, to, sq, sk) : query_range(run, from, to, sq, sk);
	out[0] = r.begin, out[1] = r.end, out[2] = r.full_begin, out[3] = r.full_end;
}

static struct Stream w_stream(int keys, int from, int to, int sq, int sk)
{
	return keys ? stream_keys(from, to, sq, sk, TILE_N) : stream_queries(from, to, sq, sk, TILE_M);
}

static int w_walk(int *tile, int *class_, int keys, int from, int to, int sq, int sk)
{
	struct Stream s = w_stream(keys, from, to, sq, sk);
	int n = 0;
	while (stream_next(&s, &tile[n], &class_[n]))
		n++;
	return n;
}

static int w_class_by_runs(int keys, int from, int to, int sq, int sk, int tile)
{
	const struct Stream s = w_stream(keys, from, to, sq, sk);
	return stream_class(&s, tile);
}

static int w_block_keep(EMITTED_AT, int block_q, int block_k) { return block_keep(p, b, h, block_q, block_k); }

/* With 64 threads, one after the other. */
static void w_load(struct emitted_tile *t, EMITTED_AT)
{
	for (int i = 0; i < 64; i++) {
		head_load((struct HeadInputs *)t->head, p, b, h, i, 64);
		rows_load((struct RowInputs *)t->rows, p, b, h, t->q0, i, 64);
		cols_load((struct ColInputs *)t->cols, p, b, h, t->k0, i, 64);
		cells_load((struct CellInputs *)t->cells, p, b, h, t->q0, t->k0, i, 64);
	}
}

static struct Inputs w_inputs(const struct emitted_tile *t)
{
	const struct Inputs in = {(const struct HeadInputs *)t->head,
	                          (const struct RowInputs *)t->rows,
	                          (const struct ColInputs *)t->cols,
	                          (const struct CellInputs *)t->cells,
	                          t->q0,
	                          t->k0,
	                          t->bits};
	return in;
}

#if PROGRAM_GRADS
static int w_grad(float **address, int *entries, int access, EMITTED_AT, int q, int k)
{
	const int slot = grad_slot(access), entry = grad_index(access, p, b, h, q, k);
	*address = grad_address(slot, p, b, h, entry, q, k);
	*entries = grad_entries(slot);
	return entry;
}

static long long w_grad_elements(int access, const struct fagen_abi *p) { return grad_elements(grad_slot(access), p); }
static float *w_grad_element(int access, const struct fagen_abi *p, long long i)
{
	return grad_element(grad_slot(access), p, i);
}
#else
enum { GRAD_ACCESSES = 0 };
static int w_grad(float **address, int *entries, int access, EMITTED_AT, int q, int k)
{
	*address = (float *)0, *entries = 0;
	return 0;
}

static long long w_grad_elements(int access, const struct fagen_abi *p) { return 0; }
static float *w_grad_element(int access, const struct fagen_abi *p, long long i) { return (float *)0; }
#endif

static void w_cell(struct emitted_cell *c, const struct emitted_tile *t, EMITTED_AT, int q, int k_lane, int offset,
                   float s)
{
	const struct Inputs in = w_inputs(t);
	const struct RowState row = row_state(p, &in, b, h, q, k_lane);
	const struct ColState col = col_state(p, &in, b, h, k_lane, offset);
	const struct Scored both = score_grad(s, row, col, &in);
	c->keep = mask_keep(row, col, &in);
	c->score = both.score;
	c->grad = both.grad;
	c->score_again = score(s, row, col, &in);
	for (int a = 0; a < GRAD_ACCESSES; a++)
		c->input_grad[a] = input_grad(a, s, row, col, &in);
}

static float w_score_short(float s, float shift) { return score_short(s, shift); }
static int w_score_turn(int q, int sq, int sk) { return score_turn(q, sq, sk); }

static void w_plain(struct emitted_cell *c, EMITTED_AT, int q, int k, float s)
{
	const struct Scored both = score_plain(p, b, h, q, k, s);
	c->keep = mask_plain(p, b, h, q, k);
	c->score = c->score_again = both.score;
	c->grad = both.grad;
}

static float w_sink(const struct emitted_tile *t)
{
	const struct Inputs in = w_inputs(t);
	return sink_logit(&in);
}

static int w_tile_class(EMITTED_AT, int q0, int q1, int k0, int k1) { return tile_class(p, b, h, q0, q1, k0, k1); }
static float w_sink_plain(EMITTED_AT) { return sink_plain(p, b, h); }
static int w_bound(int cols, int slot, EMITTED_AT, int position)
{
	return cols ? bounds_col(slot, p, b, h, position) : bounds_row(slot, p, b, h, position);
}

const struct emitted PROGRAM_TABLE = {
	{sizeof(struct HeadInputs), sizeof(struct RowInputs), sizeof(struct ColInputs), sizeof(struct CellInputs)},
	GRAD_ACCESSES,
	w_range,
	w_walk,
	w_class_by_runs,
	w_tile_class,
	w_block_keep,
	w_load,
	w_cell,
	w_score_short,
	w_score_turn,
	w_plain,
	w_sink,
	w_sink_plain,
	w_bound,
	w_grad,
	w_grad_elements,
	w_grad_element,
};
