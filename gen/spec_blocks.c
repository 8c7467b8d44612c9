/* The key `blocks`: block-sparse layouts, from the spec, from a file beside it, or given at launch. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gen/spec_term.h"

static void block_set(struct spec *s, int row, int column)
{
	s->block_rows[row][column / 64] |= (uint64_t)1 << column % 64;
	if (column >= s->blocks.columns)
		s->blocks.columns = column + 1;
}

static bool block_get(const struct spec *s, int row, int column)
{
	return s->block_rows[row][column / 64] >> column % 64 & 1;
}

static bool kept(char c) { return c == '#' || c == '1'; }

static void rows_read(struct spec *s, const struct yaml_tree *t, const struct yaml_node *rows)
{
	for (const struct yaml_node *row = yaml_child(t, rows); row; row = yaml_next(t, row), s->blocks.rows++) {
		for (size_t i = 0; row->kind == YAML_SCALAR && i < row->len; i++)
			if (kept(yaml_text(t, row)[i]))
				block_set(s, s->blocks.rows, (int)i);
		for (const struct yaml_node *id = row->kind == YAML_LIST ? yaml_child(t, row) : NULL; id;
		     id = yaml_next(t, id))
			block_set(s, s->blocks.rows, (int)whole_of(t, id));
	}
}

/* Appends the whole file, if it is a regular one of at most `max` bytes. Otherwise returns why not. */
static const char *picture_load(struct text *t, const char *path, size_t max)
{
	char piece[4096];
	struct stat st;
	ssize_t n = 0;
	const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	const char *fault = fd < 0 || fstat(fd, &st) ? strerror(errno) : NULL;
	if (!fault && !S_ISREG(st.st_mode))
		fault = "not a regular file";
	while (!fault && t->len <= max && (n = read(fd, piece, sizeof piece)) > 0)
		text_add(t, piece, (size_t)n);
	if (!fault && n < 0)
		fault = strerror(errno);
	if (fd >= 0)
		close(fd);
	return !fault && t->len > max ? "too large for a layout" : fault;
}

static int picture_read(struct reading *r, const struct text *picture, const char *path, struct place place)
{
	struct spec *s = r->spec;
	int column = 0;
	for (size_t i = 0; i < picture->len; i++) {
		const char c = picture->data[i];
		if (c == '\r' && i + 1 < picture->len && picture->data[i + 1] == '\n')
			continue;
		if (s->blocks.rows == BLOCK_ROWS_MAX)
			return diag_at(r->diag, place, "blocks.file: %s has more than %d rows", path, BLOCK_ROWS_MAX);
		if (c == '\n') {
			s->blocks.rows++;
			column = 0;
			continue;
		}
		if (!strchr("#1.0", c) || !c) {
			struct text found = {0};
			text_quote(&found, &c, 1);
			diag_at(r->diag, place,
			        "blocks.file: %s:%d:%d: found %s; want # or 1 for a kept block, . or 0 for another",
			        path, s->blocks.rows + 1, column + 1, text_str(&found));
			text_free(&found);
			return -1;
		}
		if (column == BLOCK_ROWS_MAX)
			return diag_at(r->diag, place, "blocks.file: row %d of %s has more than %d blocks",
			               s->blocks.rows + 1, path, BLOCK_ROWS_MAX);
		if (kept(c))
			block_set(s, s->blocks.rows, column);
		column++;
	}
	s->blocks.rows += column > 0;
	return s->blocks.rows ? 0
	                      : diag_at(r->diag, place,
	                                "blocks.file: %s is empty; want one line for each row of blocks", path);
}

static int file_read(struct reading *r, const struct yaml_tree *t, const struct yaml_node *n)
{
	const char *slash = r->file ? strrchr(r->file, '/') : NULL;
	struct text path = {0}, picture = {0};
	if (slash && yaml_text(t, n)[0] != '/')
		text_add(&path, r->file, (size_t)(slash - r->file) + 1);
	text_puts(&path, yaml_text(t, n));
	const char *fault = picture_load(&picture, text_str(&path), (size_t)BLOCK_ROWS_MAX * (BLOCK_ROWS_MAX + 2));
	const int result = fault ? diag_at(r->diag, n->place, "blocks.file: cannot read %s: %s", text_str(&path), fault)
	                         : picture_read(r, &picture, text_str(&path), n->place);
	text_free(&path);
	text_free(&picture);
	return result;
}

int read_blocks(struct reading *r)
{
	static const char *const ways[] = {"keep", "rows", "file", "from"};
	const struct yaml_tree *t = r->tree[KEY_blocks];
	const struct yaml_node *n = r->node[KEY_blocks], *way[4];
	struct spec *s = r->spec;
	int first = -1;
	s->blocks.keep = -1;
	if (n->kind != YAML_MAP)
		return 0;
	for (int i = 0; i < 4; i++) {
		way[i] = yaml_get(t, n, ways[i]);
		if (way[i] && first >= 0)
			return diag_at(r->diag, way[i]->place,
			               "blocks: '%s' and '%s' both say which blocks are kept; write one of them",
			               ways[first], ways[i]);
		first = way[i] ? i : first;
	}
	if (first < 0)
		return diag_at(r->diag, n->place,
		               "blocks: nothing says which blocks are kept; want keep, rows, file or from");
	const struct yaml_node *size = yaml_get(t, n, "size");
	s->blocks.size_q = (int)whole_of(t, size->kind == YAML_MAP ? yaml_get(t, size, "q") : size);
	s->blocks.size_k = (int)whole_of(t, size->kind == YAML_MAP ? yaml_get(t, size, "k") : size);
	if (way[0]) {
		s->blocks.source = BLOCKS_KEEP;
		s->blocks.keep = term_read(r, t, way[0]);
		return s->blocks.keep < 0 ? -1 : 0;
	}
	if (way[3]) {
		s->blocks.source = yaml_is(t, way[3], block_source_words[0]) ? BLOCKS_BITMAP : BLOCKS_LISTS;
		return 0;
	}
	s->blocks.source = BLOCKS_ROWS;
	if (way[1])
		rows_read(s, t, way[1]);
	return way[2] ? file_read(r, t, way[2]) : 0;
}

void print_blocks(struct text *t, const struct spec *s)
{
	const struct blocks *b = &s->blocks;
	if (b->source == BLOCKS_NONE) {
		text_puts(t, "none");
		return;
	}
	if (b->size_q == b->size_k)
		text_addf(t, "{size: %d, ", b->size_q);
	else
		text_addf(t, "{size: {q: %d, k: %d}, ", b->size_q, b->size_k);
	switch (b->source) {
	case BLOCKS_NONE: break;
	case BLOCKS_KEEP:
		text_puts(t, "keep: ");
		term_print(t, s, b->keep);
		break;
	case BLOCKS_ROWS:
		text_puts(t, "rows: [");
		for (int row = 0; row < b->rows; row++) {
			text_puts(t, row ? ",\n  \"" : "\n  \"");
			for (int column = 0; column < b->columns; column++)
				text_puts(t, block_get(s, row, column) ? "#" : ".");
			text_puts(t, "\"");
		}
		text_puts(t, "]");
		break;
	case BLOCKS_BITMAP: text_addf(t, "from: %s", block_source_words[0]); break;
	case BLOCKS_LISTS: text_addf(t, "from: %s", block_source_words[1]); break;
	}
	text_puts(t, "}");
}
