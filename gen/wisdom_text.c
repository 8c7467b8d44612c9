/* wisdom_text: lines of measured tiles as text. A file is the line "fagen-wisdom 1" and then, in any order, lines of
 *
 *   forward gpu="H200" sms=132 problem="b4 hq16 hkv16 sq4096 sk4096 align16" tile="sm90/fwd 128x128 w12 s2" us=301.250
 *   noise=0.4% rounds=7 planner="sm90/fwd 192x128 w16 s2" planner_us=310.125 spec={head_dim: 64, mask: causal, outputs: [out]}
 *
 * each in one piece, with one blank between fields. Empty lines and those that begin with # do not count. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/gen.h"
#include "gen/text_file.h"

static const char header[] = "fagen-wisdom ";
enum { VERSION = 1, NUMBER_MAX = 1 << 12, ROUNDS_MAX = 1 << 20, PER_MILLE = 1000, FILE_MAX = 1 << 26 };
static const int64_t us_max = 1000000000; /* a quarter of an hour */

/* ---- writing ---- */

void tile_choice_print(char to[WISDOM_TILE_MAX], const struct tile_choice *c)
{
	const int len = snprintf(to, WISDOM_TILE_MAX, "%s %dx%d w%d s%d", c->templ, c->tile.m, c->tile.n, c->tile.warps, c->tile.stages);
	if (c->tile.heads)
		snprintf(to + len, WISDOM_TILE_MAX - (size_t)len, " h%d", c->tile.heads);
}

static void us_print(struct text *out, int64_t ns) { text_addf(out, "%" PRId64 ".%03d", ns / 1000, (int)(ns % 1000)); }

static void entry_print(struct text *out, const struct wisdom_entry *e)
{
	char tile[WISDOM_TILE_MAX];
	tile_choice_print(tile, &e->tuned.tile);
	text_addf(out, "%s gpu=\"%s\" sms=%d problem=\"", pass_names[e->pass], e->gpu, e->sms);
	problem_print(out, &e->problem);
	text_addf(out, "\" tile=\"%s\" us=", tile);
	us_print(out, e->tuned.ns);
	tile_choice_print(tile, &e->tuned.planner);
	text_addf(out, " noise=%d.%d%% rounds=%d planner=\"%s\" planner_us=", e->tuned.noise / 10, e->tuned.noise % 10,
	          e->tuned.rounds, tile);
	us_print(out, e->tuned.planner_ns);
	text_addf(out, " spec=%s\n", e->spec);
}

void wisdom_print(struct text *out, const struct wisdom *w)
{
	text_addf(out, "%s%d\n", header, VERSION);
	for (int i = 0; i < w->count; i++)
		entry_print(out, &w->entry[i]);
}

/* ---- reading ---- */

struct reader {
	const char *line, *at; /* one line, ended by NUL */
	int number;
	struct diag *diag;
};

static struct place here(const struct reader *r) { return (struct place){r->number, (int)(r->at - r->line) + 1}; }

static int found_fail(const struct reader *r, const char *want)
{
	struct text found = {0};
	const size_t len = strcspn(r->at, " ");
	if (*r->at)
		text_quote(&found, r->at, len ? len : 1);
	diag_at(r->diag, here(r), "wisdom: found %s; want %s", *r->at ? text_str(&found) : "the end of the line", want);
	text_free(&found);
	return -1;
}

static int literal_take(struct reader *r, const char *literal)
{
	const size_t len = strlen(literal);
	if (strncmp(r->at, literal, len) != 0) {
		char want[64];
		const int blank = literal[0] == ' ' && r->at[0] == ' '; /* between fields: what follows is at fault */
		snprintf(want, sizeof want, "'%s'", literal + blank);
		r->at += blank;
		return found_fail(r, want);
	}
	r->at += len;
	return 0;
}

/* Digits alone, without zeros in front. */
static int number_take(int64_t *value, struct reader *r, int64_t least, int64_t most)
{
	const size_t digits = strspn(r->at, "0123456789");
	*value = 0;
	for (size_t i = 0; i < digits && *value <= most; i++)
		*value = 10 * *value + (r->at[i] - '0');
	if (digits == 0 || *value < least || *value > most || (digits > 1 && r->at[0] == '0')) {
		char want[96];
		snprintf(want, sizeof want, "a number from %" PRId64 " to %" PRId64, least, most);
		return found_fail(r, want);
	}
	r->at += digits;
	return 0;
}

static int int_take(int *value, struct reader *r, int least, int most)
{
	int64_t wide;
	if (number_take(&wide, r, least, most))
		return -1;
	*value = (int)wide;
	return 0;
}

static int us_take(int64_t *ns, struct reader *r, const char *name)
{
	int64_t whole;
	if (literal_take(r, name) || number_take(&whole, r, 0, us_max))
		return -1;
	if (r->at[0] != '.' || strspn(r->at + 1, "0123456789") != 3)
		return found_fail(r, "a point and three digits: microseconds have that many");
	*ns = whole * 1000 + (r->at[1] - '0') * 100 + (r->at[2] - '0') * 10 + (r->at[3] - '0');
	if (*ns == 0)
		return found_fail(r, "a time above 0");
	r->at += 4;
	return 0;
}

/* Up to the next quote. */
static int name_take(char *to, size_t room, struct reader *r, const char *what)
{
	const size_t len = strcspn(r->at, "\"");
	if (len == 0 || len >= room || r->at[len] == '\0') {
		char want[96];
		snprintf(want, sizeof want, "%s of 1 to %zu bytes, and a quote behind it", what, room - 1);
		return found_fail(r, want);
	}
	memcpy(to, r->at, len);
	to[len] = '\0';
	r->at += len;
	return literal_take(r, "\"");
}

static int tile_take(struct tile_choice *c, struct reader *r, const char *name)
{
	const char *letters = "abcdefghijklmnopqrstuvwxyz0123456789_/";
	if (literal_take(r, name) || literal_take(r, "\""))
		return -1;
	const size_t len = strspn(r->at, letters);
	if (len == 0 || len >= sizeof c->templ || r->at[len] != ' ')
		return found_fail(r, "a tile like 'sm90/fwd 128x128 w12 s2': template, query rows x keys, warps, stages");
	memcpy(c->templ, r->at, len);
	c->templ[len] = '\0';
	r->at += len + 1;
	struct tile_request *tile = &c->tile;
	return int_take(&tile->m, r, 1, NUMBER_MAX) || literal_take(r, "x") || int_take(&tile->n, r, 1, NUMBER_MAX) ||
	                       literal_take(r, " w") || int_take(&tile->warps, r, 1, NUMBER_MAX) || literal_take(r, " s") ||
	                       int_take(&tile->stages, r, 1, NUMBER_MAX) ||
	                       (r->at[0] == ' ' && (literal_take(r, " h") || int_take(&tile->heads, r, 2, NUMBER_MAX))) || literal_take(r, "\"")
	               ? -1
	               : 0;
}

static int problem_take(struct problem *p, struct reader *r)
{
	char spelled[128];
	struct problem rounded;
	struct diag why = {0};
	struct reader before = *r;
	if (name_take(spelled, sizeof spelled, r, "a problem"))
		return -1;
	const int rc = problem_parse(p, spelled, &why);
	if (rc) {
		char *end = why.text.data + strcspn(text_str(&why.text), "\n");
		*end = '\0';
		diag_at(r->diag, here(&before), "wisdom: %s", text_str(&why.text) + strlen("error: "));
	}
	diag_free(&why);
	if (rc)
		return -1;
	problem_class(&rounded, p);
	if (rounded.batch != p->batch || rounded.seqlen_q != p->seqlen_q || rounded.seqlen_k != p->seqlen_k) {
		struct text nearest = {0};
		problem_print(&nearest, &rounded);
		diag_at(r->diag, here(&before),
		        "wisdom: '%s' is not a class of problems: batch and lengths must be powers of two, as in '%s'", spelled,
		        text_str(&nearest));
		text_free(&nearest);
		return -1;
	}
	return 0;
}

static int spec_take(struct wisdom_entry *e, struct reader *r)
{
	if (literal_take(r, "spec="))
		return -1;
	const size_t len = strlen(r->at);
	if (len < 2 || r->at[0] != '{' || r->at[len - 1] != '}')
		return found_fail(r, "a spec in braces up to the end of the line");
	e->spec = strdup(r->at);
	return e->spec ? 0 : diag_fail(r->diag, "out of memory");
}

static int entry_take(struct wisdom_entry *e, struct reader *r)
{
	struct tuned *t = &e->tuned;
	int whole, tenth;
	const size_t word = strcspn(r->at, " ");
	int pass = 0;
	while (pass < PASS_COUNT && (strlen(pass_names[pass]) != word || memcmp(r->at, pass_names[pass], word) != 0))
		pass++;
	if (pass == PASS_COUNT)
		return found_fail(r, "'forward' or 'backward'");
	e->pass = (enum pass)pass;
	r->at += word;
	if (literal_take(r, " gpu=\"") || name_take(e->gpu, sizeof e->gpu, r, "the name of a GPU") ||
	    literal_take(r, " sms=") || int_take(&e->sms, r, 1, NUMBER_MAX) || literal_take(r, " problem=\"") ||
	    problem_take(&e->problem, r) || tile_take(&t->tile, r, " tile=") || us_take(&t->ns, r, " us=") ||
	    literal_take(r, " noise=") || int_take(&whole, r, 0, PER_MILLE / 10) || literal_take(r, ".") ||
	    int_take(&tenth, r, 0, 9) || literal_take(r, "% rounds=") || int_take(&t->rounds, r, 1, ROUNDS_MAX) ||
	    tile_take(&t->planner, r, " planner=") || us_take(&t->planner_ns, r, " planner_us=") || literal_take(r, " "))
		return -1;
	t->noise = 10 * whole + tenth;
	return spec_take(e, r);
}

/* One line, ended by NUL, that is neither empty nor a comment. */
static int line_read(struct wisdom *w, struct reader *r)
{
	struct wisdom_entry e = {0};
	int rc = entry_take(&e, r);
	if (!rc && wisdom_add(w, &e))
		rc = diag_fail(r->diag, "out of memory");
	free(e.spec);
	return rc;
}

static int header_read(struct reader *r)
{
	int version;
	if (literal_take(r, header) || int_take(&version, r, 1, NUMBER_MAX))
		return -1;
	if (*r->at)
		return found_fail(r, "the end of the line");
	if (version != VERSION)
		return diag_at(r->diag, here(r), "wisdom: version %d; this fagen reads version %d", version, VERSION);
	return 0;
}

/* What no line may have: the rest of the readers work on strings. */
static int plain_check(struct reader *r, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)r->line[i] < ' ' || r->line[i] == 127) {
			r->at = r->line + i;
			return diag_at(r->diag, here(r), "wisdom: a control character (byte %d)", r->line[i]);
		}
	return 0;
}

int wisdom_parse(struct wisdom *w, const char *text, size_t len, const char *file, struct diag *diag)
{
	struct wisdom all = {0};
	bool begun = false, bad = false;
	int number = 0;
	diag->file = file;
	diag->source.len = 0;
	text_add(&diag->source, text, len);
	for (size_t at = 0; at < len;) {
		const char *newline = memchr(text + at, '\n', len - at);
		const size_t n = newline ? (size_t)(newline - text) - at : len - at;
		struct text line = {0};
		text_add(&line, text + at, n);
		struct reader r = {text_str(&line), text_str(&line), ++number, diag};
		at += n + (newline != NULL);
		if (plain_check(&r, n)) {
			bad = true;
		} else if (n > 0 && *r.at != '#') {
			if ((begun ? line_read(&all, &r) : header_read(&r)) != 0) {
				bad = true;
				at = begun ? at : len; /* without its header it is another file altogether */
			}
			begun = true;
		}
		text_free(&line);
	}
	if (!begun && !bad) {
		diag_fail(diag, "%s: a file of wisdom begins with the line '%s%d'; this one is empty", file, header, VERSION);
		bad = true;
	}
	if (!bad && wisdom_merge(&all, w) != 0) {
		diag_fail(diag, "out of memory");
		bad = true;
	}
	if (!bad) {
		wisdom_free(w);
		*w = all;
	} else {
		wisdom_free(&all);
	}
	return bad ? -1 : 0;
}

int wisdom_load(struct wisdom *w, const char *path, struct diag *diag)
{
	struct text text = {0};
	int rc = text_file_load(&text, path, FILE_MAX, diag);
	if (rc == 0 && text.len > FILE_MAX)
		rc = diag_fail(diag, "%s has more than %d MiB; that is no file of wisdom", path, FILE_MAX >> 20);
	else if (rc == 0)
		rc = wisdom_parse(w, text_str(&text), text.len, path, diag);
	text_free(&text);
	return rc;
}
