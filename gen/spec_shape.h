/* spec_shape: what a value of a spec looks like, as data. One description serves the check of a file, the messages, the
 * reference text and the JSON schema, so they cannot disagree. */
#ifndef FAGEN_GEN_SPEC_SHAPE_H
#define FAGEN_GEN_SPEC_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "gen/gen.h"
#include "gen/yaml_tree.h"

enum shape_kind {
	SHAPE_WHOLE,      /* an integer of [min, max], a multiple of step */
	SHAPE_REAL,       /* a number of [low, high], or [low, high) */
	SHAPE_WORD,       /* one of the words word(0), word(1), ... NULL */
	SHAPE_NAME,       /* letters, digits, _ and -, not beginning with - */
	SHAPE_TEXT,       /* at most max printable characters, of those in `only` if that is set */
	SHAPE_LIST,       /* `of`; at least one if not `empty`; none twice if `of` is a word, and `must` among them */
	SHAPE_MAP,        /* the fields, in any order, each at most once */
	SHAPE_INPUTS,     /* {name: of}, the names free for an expression to use */
	SHAPE_TERM,       /* a mask, score or layout: spec_term.h */
	SHAPE_EXPRESSION, /* the argument of a preset, as an expression */
	SHAPE_EITHER      /* first or second */
};

struct shape;
struct shape_field {
	const char *name;
	const struct shape *shape;
	bool required;
	const char *doc;
};

struct shape {
	enum shape_kind kind;
	int64_t min, max, step;
	double low, high;
	bool below_high; /* high itself is not accepted */
	const char *(*word)(int i);
	const char *only;
	const struct shape *of; /* list items; what an input is; members of a term */
	int items_max;
	bool empty;
	enum preset_kind terms;
	bool root; /* of SHAPE_TERM: may be none, and a list if it is a score */
	const char *must;
	const struct shape_field *field;
	int field_count;
	const struct shape *first, *second;
};

/* Is the node of this shape? Appends every fault below it, with `path` ("assume.heads") in the message. */
bool shape_check(const struct shape *, const struct yaml_tree *, const struct yaml_node *, const char *path,
                 struct diag *);
void shape_describe(struct text *, const struct shape *); /* "a multiple of 8 from 16 to 256, or {qk: ..., v: ...}" */
/* The words of a text on lines of limited width. */
void lines_add(struct text *, const char *indent, const char *text);
/* JSON schema of the value, on one line. `doc`: its description; may be NULL. */
void shape_schema(struct text *, const struct shape *, const char *doc);
/* Does a map of this shape have such a field? For hints where a key belongs. */
bool shape_has_field(const struct shape *, const char *name);

/* How a scalar reads as a number. */
enum number_kind { NUMBER_NONE, NUMBER_WHOLE, NUMBER_REAL };
struct number {
	enum number_kind kind;
	int64_t whole;     /* of NUMBER_WHOLE; the nearest int64_t when it is larger */
	double real;       /* of both; may be infinite */
	const char *fault; /* of NUMBER_NONE: why, to be read after the text; "" if it does not look like one */
	char plain[24];    /* of NUMBER_NONE: the number that was probably meant, "" if unclear */
};
void number_read(struct number *, const char *text);

#endif
