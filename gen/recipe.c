/* recipe: text form, and the arithmetic of launch grids and workspace. Numbers come from outside: every product is
 * checked. */
#include <stdbool.h>
#include <string.h>

#include "gen/line.h"
#include "gen/recipe.h"

static const char *const grid_names[GRID_COUNT] = {"query_tiles", "query_tiles_1", "key_tiles", "key_tails", "key_tails_join", "key_tiles_q", "bounds",
                                                   "scores",      "persistent",    "persistent_tails", "persistent_key_tails", "tails_join", "persistent_keys", "persistent_pairs",
                                                   "persistent_2", "order_queries", "order_keys"};
static const char *const size_names[SIZE_COUNT] = {"rows",    "rows_qk", "scores", "tiles_q",
                                                   "tiles_k", "tiles_kv", "tails_q", "tails_kv", "blocks", "launch"};
static const char *const map_names[RECIPE_MAPS_MAX] = {"query", "key", "value", "dout"};

bool grid_is_order(enum recipe_grid grid) { return grid == GRID_ORDER_QUERIES || grid == GRID_ORDER_KEYS; }

const struct recipe_kernel *recipe_kernel_find(const struct recipe *recipe, const char *entry)
{
	for (int i = 0; i < recipe->kernel_count; i++)
		if (strcmp(recipe->kernel[i].entry, entry) == 0)
			return &recipe->kernel[i];
	return NULL;
}

static bool grid_has_tail(enum recipe_grid grid)
{
	return grid == GRID_KEY_TAILS || grid == GRID_KEY_TAILS_JOIN || grid == GRID_PERSISTENT_TAILS || grid == GRID_PERSISTENT_KEY_TAILS || grid == GRID_TAILS_JOIN;
}
static bool tail_of_keys(enum recipe_grid grid) { return grid == GRID_KEY_TAILS || grid == GRID_KEY_TAILS_JOIN || grid == GRID_PERSISTENT_KEY_TAILS; }
static bool grid_is_join(enum recipe_grid grid) { return grid == GRID_KEY_TAILS_JOIN || grid == GRID_TAILS_JOIN; }
static bool size_has_tail(enum recipe_size size) { return size == SIZE_TAILS_Q || size == SIZE_TAILS_KV; }

static void tail_print(struct text *text, const struct recipe_tail *tail)
{
	text_addf(text, " visit %d resident %d alike %d ends %d join %d", tail->visit, tail->resident, tail->alike, tail->ends, tail->join);
}

void recipe_print(struct text *text, const struct recipe *recipe)
{
	text_addf(text, "recipe load_bytes %d kv_group %d\n", recipe->load_bytes, recipe->kv_group);
	for (int i = 0; i < recipe->kernel_count; i++) {
		const struct recipe_kernel *k = &recipe->kernel[i];
		text_addf(text, "kernel %s grid %s tile %d threads %d smem_bytes %d", k->entry, grid_names[k->grid],
		          k->tile, k->threads, k->smem_bytes);
		if (k->parts)
			text_addf(text, " parts %d", k->parts);
		if (k->keys)
			text_addf(text, " keys %d", k->keys);
		if (k->beyond)
			text_addf(text, " beyond %d", k->beyond);
		if (k->heads)
			text_addf(text, " heads %d", k->heads);
		if (grid_has_tail(k->grid))
			tail_print(text, &k->tail);
		text_puts(text, "\n");
	}
	for (int i = 0; i < recipe->piece_count; i++) {
		const struct recipe_piece *p = &recipe->piece[i];
		text_addf(text, "piece %s size %s tile %d unit %d zeroed %d", p->name, size_names[p->size], p->tile, p->unit, p->zeroed);
		if (size_has_tail(p->size))
			tail_print(text, &p->tail);
		text_puts(text, "\n");
	}
	for (int i = 0; i < recipe->map_count; i++) {
		text_addf(text, "map %s rows %d", recipe->map[i].name, recipe->map[i].rows);
		if (recipe->map[i].heads)
			text_addf(text, " heads %d", recipe->map[i].heads);
		text_puts(text, "\n");
	}
}

/* The next word begins an optional number. */
static bool follows(const struct line *line, const char *name)
{
	struct line ahead = *line;
	return !line->wrong && line_take(&ahead, name);
}

/* Heads that share tiles or boxes, where the line says so. */
static int heads_parse(struct line *line)
{
	return follows(line, "heads") ? line_number(line, "heads", 2, RECIPE_HEADS_MAX) : 0;
}

static struct recipe_tail tail_parse(struct line *line)
{
	struct recipe_tail tail;
	tail.visit = line_number(line, "visit", 1, INT32_MAX);
	tail.resident = line_number(line, "resident", 1, 32);
	tail.alike = line_number(line, "alike", 0, 1);
	tail.ends = line_number(line, "ends", 0, 1000);
	tail.join = line_number(line, "join", 0, 1000);
	return tail;
}

static void kernel_parse(struct recipe *recipe, struct line *line)
{
	struct recipe_kernel k = {0};
	line_name(line, k.entry, sizeof k.entry);
	k.grid = line_rule(line, "grid", grid_names, GRID_COUNT);
	k.tile = line_number(line, "tile", 1, INT32_MAX);
	k.threads = line_number(line, "threads", 1, 1024);
	k.smem_bytes = line_number(line, "smem_bytes", 0, INT32_MAX);
	if ((k.grid == GRID_PERSISTENT || k.grid == GRID_PERSISTENT_KEYS) && follows(line, "parts"))
		k.parts = line_number(line, "parts", 2, RECIPE_PARTS_MAX);
	if (grid_is_join(k.grid))
		k.parts = line_number(line, "parts", 1, INT32_MAX);
	if (k.grid == GRID_BOUNDS)
		k.keys = line_number(line, "keys", 1, INT32_MAX);
	if (grid_is_order(k.grid))
		k.beyond = line_number(line, "beyond", 1, INT32_MAX);
	if (k.grid == GRID_PERSISTENT || k.grid == GRID_ORDER_QUERIES)
		k.heads = heads_parse(line);
	if (grid_has_tail(k.grid))
		k.tail = tail_parse(line);
	if (!line->wrong && k.heads && (recipe->kv_group == 0 || recipe->kv_group % k.heads != 0))
		line->wrong = "heads that divide kv_group"; /* they read the same keys */
	if (recipe->kernel_count == RECIPE_KERNELS_MAX)
		line->wrong = "at most 12 kernels";
	else
		recipe->kernel[recipe->kernel_count++] = k;
}

static void piece_parse(struct recipe *recipe, struct line *line)
{
	struct recipe_piece p = {0};
	line_name(line, p.name, sizeof p.name);
	p.size = line_rule(line, "size", size_names, SIZE_COUNT);
	p.tile = line_number(line, "tile", 0, INT32_MAX);
	p.unit = line_number(line, "unit", 0, INT32_MAX);
	p.zeroed = line_number(line, "zeroed", 0, 1);
	if (size_has_tail(p.size))
		p.tail = tail_parse(line);
	_Static_assert(RECIPE_PIECES_MAX == 10, "as the message says");
	if (recipe->piece_count == RECIPE_PIECES_MAX)
		line->wrong = "at most 10 pieces";
	else
		recipe->piece[recipe->piece_count++] = p;
}

static void map_parse(struct recipe *recipe, struct line *line)
{
	struct recipe_map m = {0};
	strcpy(m.name, map_names[line_choice(line, map_names, RECIPE_MAPS_MAX, "query, key, value or dout")]);
	m.rows = line_number(line, "rows", 1, 256);
	m.heads = heads_parse(line);
	for (int i = 0; i < recipe->map_count; i++)
		if (!line->wrong && strcmp(recipe->map[i].name, m.name) == 0)
			line->wrong = "one map of each name";
	if (!line->wrong) /* four names, each once: there is room */
		recipe->map[recipe->map_count++] = m;
}

static void head_parse(struct recipe *recipe, struct line *line)
{
	line_expect(line, "recipe");
	recipe->load_bytes = line_number(line, "load_bytes", 2, 16);
	recipe->kv_group = line_number(line, "kv_group", 0, INT32_MAX);
	if (!line->wrong && recipe->load_bytes != 2 && recipe->load_bytes != 16)
		line->wrong = "load_bytes 2 or 16";
}

static void line_parse(void *into, struct line *line, int number)
{
	struct recipe *recipe = into;
	if (number == 1)
		head_parse(recipe, line);
	else if (line_take(line, "kernel"))
		kernel_parse(recipe, line);
	else if (line_take(line, "piece"))
		piece_parse(recipe, line);
	else if (line_take(line, "map"))
		map_parse(recipe, line);
	else
		line->wrong = "kernel, piece or map";
}

int recipe_parse(struct recipe *recipe, const char *text, struct diag *diag)
{
	struct recipe made = {0};
	if (!*text)
		return diag_fail(diag, "The recipe is empty; its first line is 'recipe load_bytes 16 kv_group 1'.");
	if (lines_read("recipe", text, line_parse, &made, diag))
		return -1;
	*recipe = made;
	return 0;
}

static bool shape_negative(const struct recipe_shape *s)
{
	return s->batch < 0 || s->heads_q < 0 || s->heads_kv < 0 || s->seqlen_q < 0 || s->seqlen_k < 0 ||
	       s->total_q < 0 || s->total_k < 0;
}

static int64_t tiles_of(int64_t length, int64_t tile) { return length / tile + (length % tile != 0); }

/* Tiles of one head of each entry; -1: too many. */
static int64_t tiles_all(const struct recipe_shape *s, bool keys, int tile)
{
	const int64_t total = keys ? s->total_k : s->total_q;
	int64_t tiles;
	if (s->packed ? __builtin_add_overflow(total / tile, total ? s->batch : 0, &tiles)
	              : __builtin_mul_overflow(tiles_of(keys ? s->seqlen_k : s->seqlen_q, tile), s->batch, &tiles))
		return -1;
	return tiles;
}

/* Does a launch have items that wait for others, and long ones among them? */
static bool order_pays(const struct recipe_kernel *kernel, const struct recipe_shape *s, int64_t items)
{
	int64_t length = s->seqlen_k;
	if (kernel->grid == GRID_ORDER_KEYS && __builtin_mul_overflow(s->seqlen_q, s->heads_q / s->heads_kv, &length))
		length = INT64_MAX;
	return items > s->sms * kernel->beyond && length > ORDER_LENGTH;
}

/* The fewest visits of a part; and in how many rounds parts may run, for each has bytes of workspace. */
enum { PART_VISITS_LEAST = 4, ROUNDS_MOST = 4 };

struct recipe_cut recipe_cut(bool keys, int tile, const struct recipe_tail *tail, const struct recipe_shape *s)
{
	struct recipe_cut cut = {0, 0, 0};
	const int64_t heads = keys ? s->heads_kv : s->heads_q, group = keys && s->heads_kv > 0 ? s->heads_q / s->heads_kv : 1;
	int64_t items = tile < 1 || shape_negative(s) ? -1 : tiles_all(s, keys, tile), visits;
	if (items < 0 || __builtin_mul_overflow(items, heads, &items) || items < 1 || items > INT32_MAX)
		return cut;
	cut.first = items;
	if (tail->visit < 1 || tail->resident < 1 || s->sms < 1 || s->sms > INT32_MAX ||
	    __builtin_mul_overflow(tiles_of(keys ? s->seqlen_q : s->seqlen_k, tail->visit), group, &visits) || visits > INT32_MAX)
		return cut;
	const int64_t at_once = s->sms * tail->resident, rest = items % at_once;
	if (rest == 0 || (!tail->alike && rest < items))
		return cut;
	int64_t least = visits + tail->ends;
	for (int64_t parts = 2; parts <= RECIPE_PARTS_MAX && parts * PART_VISITS_LEAST <= visits; parts++) {
		const int64_t rounds = tiles_of(rest * parts, at_once), time = rounds * (tiles_of(visits, parts) + tail->ends) + tail->join;
		if (rounds > ROUNDS_MOST)
			break;
		if (time < least) {
			least = time;
			cut = (struct recipe_cut){items - rest, rest, parts};
		}
	}
	return cut;
}

struct recipe_cut recipe_kernel_cut(const struct recipe_kernel *kernel, const struct recipe_shape *shape)
{
	if (!grid_has_tail(kernel->grid))
		return (struct recipe_cut){0, 0, 0};
	return recipe_cut(tail_of_keys(kernel->grid), kernel->tile, &kernel->tail, shape);
}

int64_t recipe_grid_size(const struct recipe_kernel *kernel, const struct recipe_shape *shape)
{
	const bool order = grid_is_order(kernel->grid), pairs = kernel->grid == GRID_PERSISTENT_PAIRS;
	const bool one = kernel->grid == GRID_PERSISTENT || kernel->grid == GRID_PERSISTENT_TAILS || kernel->grid == GRID_PERSISTENT_KEYS || kernel->grid == GRID_PERSISTENT_KEY_TAILS;
	const int each = kernel->grid == GRID_PERSISTENT_2 ? 2 : pairs || one; /* SM */
	const bool bounds = kernel->grid == GRID_BOUNDS;
	if (kernel->tile < 1 || shape_negative(shape) || ((each > 0 || order) && shape->sms < 1) || ((order || bounds) && kernel->threads < 32) ||
	    (bounds && kernel->keys < 1))
		return -1;
	const int64_t tiles_q = tiles_all(shape, false, kernel->tile), tiles_k = tiles_all(shape, true, bounds ? kernel->keys : kernel->tile);
	const int64_t parts = kernel->parts > 0 ? kernel->parts : 1;
	int64_t tiles = 0, heads = shape->heads_q / (kernel->heads > 1 ? kernel->heads : 1), size;
	switch (kernel->grid) {
	case GRID_QUERY_TILES:
	case GRID_PERSISTENT_2:
	case GRID_PERSISTENT_TAILS:
	case GRID_TAILS_JOIN:
	case GRID_ORDER_QUERIES:
	case GRID_QUERY_TILES_1: tiles = tiles_q; break;
	case GRID_PERSISTENT:
		if (tiles_q < 0 || __builtin_mul_overflow(tiles_q, parts, &tiles))
			tiles = -1;
		break;
	case GRID_KEY_TILES:
	case GRID_KEY_TAILS:
	case GRID_KEY_TAILS_JOIN:
	case GRID_PERSISTENT_KEY_TAILS:
	case GRID_ORDER_KEYS:
		tiles = tiles_k;
		heads = shape->heads_kv;
		break;
	case GRID_PERSISTENT_KEYS:
		if (tiles_k < 0 || __builtin_mul_overflow(tiles_k, parts, &tiles))
			tiles = -1;
		heads = shape->heads_kv;
		break;
	case GRID_KEY_TILES_Q: tiles = tiles_k; break;
	case GRID_BOUNDS:
		if (tiles_q < 0 || tiles_k < 0 || __builtin_add_overflow(tiles_q, tiles_k, &tiles))
			tiles = -1;
		break;
	case GRID_PERSISTENT_PAIRS:
		tiles = tiles_k < 0 || tiles_k > INT32_MAX ? -1 : 2 * tiles_k;
		heads = shape->heads_kv;
		break;
	case GRID_SCORES:
		if (__builtin_mul_overflow(tiles_of(shape->seqlen_q, kernel->tile),
		                           tiles_of(shape->seqlen_k, kernel->tile), &tiles) ||
		    __builtin_mul_overflow(tiles, shape->batch, &tiles))
			tiles = -1;
		break;
	case GRID_COUNT:
	default: return -1;
	}
	if (tiles == 0 || heads == 0 || shape->batch == 0)
		return kernel->grid == GRID_QUERY_TILES_1;
	if (tiles < 0 || __builtin_mul_overflow(tiles, heads, &size) || size > INT32_MAX)
		return -1;
	if (grid_has_tail(kernel->grid)) {
		const struct recipe_cut cut = recipe_kernel_cut(kernel, shape);
		if (grid_is_join(kernel->grid))
			return cut.tiles * kernel->parts;
		size = cut.first + cut.tiles * cut.parts;
	}
	if (order && !order_pays(kernel, shape, size))
		return 0;
	if (order || bounds) /* a warp for each */
		return tiles_of(size, kernel->threads / 32);
	const int64_t most = pairs ? 2 * (shape->sms > 1 ? shape->sms / 2 : 1) : (int64_t)each * shape->sms;
	return each > 0 && size > most ? most : size;
}

bool recipe_unordered(const struct recipe *recipe, const struct recipe_shape *shape)
{
	for (int i = 0; i < recipe->kernel_count; i++)
		if (grid_is_order(recipe->kernel[i].grid))
			return recipe_grid_size(&recipe->kernel[i], shape) == 0;
	return false;
}

bool recipe_piece_cleared(const struct recipe *recipe, int piece, const struct recipe_shape *shape)
{
	const struct recipe_piece *p = &recipe->piece[piece];
	return p->zeroed && !(strcmp(p->name, "order") == 0 && recipe_unordered(recipe, shape));
}

int64_t recipe_piece_bytes(const struct recipe_piece *piece, const struct recipe_shape *shape)
{
	if (shape_negative(shape) || piece->tile < 0 || piece->unit < 0)
		return -1;
	int64_t rows = shape->seqlen_q, per_row = piece->unit, bytes = 4, batch = shape->batch, heads = shape->heads_q;
	switch (piece->size) {
	case SIZE_ROWS:
		if (piece->tile > 1 && __builtin_mul_overflow(tiles_of(rows, piece->tile), (int64_t)piece->tile, &rows))
			return -1;
		per_row = 1;
		break;
	case SIZE_ROWS_QK:
		rows = tiles_all(shape, false, piece->tile > 1 ? piece->tile : 1);
		batch = 1;
		if (piece->tile > 1 && __builtin_mul_overflow(per_row, (int64_t)piece->tile, &per_row))
			return -1;
		break;
	case SIZE_SCORES: per_row = shape->seqlen_k; break;
	case SIZE_TILES_Q:
	case SIZE_TILES_K:
	case SIZE_TILES_KV:
		if (piece->tile < 1)
			return -1;
		rows = tiles_all(shape, piece->size != SIZE_TILES_Q, piece->tile);
		heads = piece->size == SIZE_TILES_KV ? shape->heads_kv : heads;
		batch = 1;
		break;
	case SIZE_TAILS_Q:
	case SIZE_TAILS_KV: {
		if (piece->tile < 1)
			return -1;
		const struct recipe_cut cut = recipe_cut(piece->size == SIZE_TAILS_KV, piece->tile, &piece->tail, shape);
		rows = cut.tiles * cut.parts;
		batch = heads = 1;
		break;
	}
	case SIZE_BLOCKS:
		if (piece->tile < 1 || piece->unit < 1)
			return -1;
		rows = tiles_of(shape->seqlen_q, piece->tile);
		per_row = tiles_of(shape->seqlen_k, piece->unit);
		bytes = 1;
		break;
	case SIZE_LAUNCH: rows = batch = heads = 1; break;
	case SIZE_COUNT:
	default: return -1;
	}
	const int64_t factors[] = {rows, per_row, batch, heads};
	for (int i = 0; i < 4; i++)
		if (factors[i] == 0)
			return 0;
	if (rows < 0)
		return -1;
	for (int i = 0; i < 4; i++)
		if (__builtin_mul_overflow(bytes, factors[i], &bytes))
			return -1;
	if (__builtin_add_overflow(bytes, (int64_t)255, &bytes))
		return -1;
	return bytes / 256 * 256;
}
