/* expr_token: the words, numbers and signs of an expression, and messages that point at them. */
#ifndef FAGEN_GEN_EXPR_TOKEN_H
#define FAGEN_GEN_EXPR_TOKEN_H

#include "gen/expr.h"

enum token_kind { TOKEN_END, TOKEN_INT, TOKEN_FLOAT, TOKEN_WORD, TOKEN_SIGN, TOKEN_BAD };

struct token {
	enum token_kind kind;
	int at, len;     /* bytes of the text */
	uint64_t number; /* of TOKEN_INT, at most 2^63 */
	double real;     /* of TOKEN_FLOAT */
};

struct lexer {
	const char *text;
	struct token token; /* the one not yet consumed */
	struct place at;    /* of the text in the spec; of the preset's name while its definition is read */
	const char *preset; /* whose definition the text is; NULL: none's */
	struct diag *diag;
};

/* Moves to the next token. 0, or -1 with a message. */
int token_next(struct lexer *);
bool token_is(const struct lexer *, const char *spelling);
/* The token must be this sign and is consumed. */
int token_expect(struct lexer *, const char *sign);
/* Says that something else should stand where the token is. Returns -1. */
int token_unexpected(struct lexer *, const char *wanted);
/* A message at byte `offset` of the text. Returns -1. */
int token_fail(struct lexer *, int offset, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Length of the word (letters, digits, `_`) that begins there. */
int token_word_len(const char *);

#endif
