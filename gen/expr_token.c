#include "gen/expr_token.h"

#include <ctype.h>
#include <float.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

int token_fail(struct lexer *l, int offset, const char *format, ...)
{
	struct place place = l->at;
	struct text message = {0};
	va_list args;
	va_start(args, format);
	text_vaddf(&message, format, args);
	va_end(args);
	if (l->preset) {
		diag_at(l->diag, place, "in preset '%s': %s", l->preset, text_str(&message));
	} else {
		const bool in_file = diag_has(l->diag, place, l->text);
		place.column += place.line > 0 ? offset : 0;
		if (in_file)
			diag_at(l->diag, place, "%s", text_str(&message));
		else /* folded lines, escapes, text that is in no file */
			diag_in(l->diag, place, l->text, offset, "%s", text_str(&message));
	}
	text_free(&message);
	return -1;
}

int token_word_len(const char *s)
{
	return (int)strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
}

double expr_read_float(const char *text)
{
	/* The C locale is a constant of libc; without it the caller's decimal point would decide. */
	const locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
	const double value = c ? strtod_l(text, NULL, c) : strtod(text, NULL);
	if (c)
		freelocale(c);
	return value;
}

static int digits(const char *s)
{
	int n = 0;
	while (isdigit((unsigned char)s[n]))
		n++;
	return n;
}

/* (0|[1-9][0-9]*)(.[0-9]+)?([eE][+-]?[0-9]+)?; what has a point or an exponent is a float. */
static int read_number(struct lexer *l, struct token *t)
{
	const char *s = l->text + t->at;
	const int whole = digits(s);
	int n = whole;
	if (s[n] == '.' && isdigit((unsigned char)s[n + 1]))
		n += 1 + digits(s + n + 1);
	if (n && (s[n] == 'e' || s[n] == 'E')) {
		const int sign = s[n + 1] == '+' || s[n + 1] == '-';
		n += digits(s + n + 1 + sign) ? 1 + sign + digits(s + n + 1 + sign) : 0;
	}
	t->kind = n > whole ? TOKEN_FLOAT : TOKEN_INT;
	t->len = n;
	if (isalnum((unsigned char)s[n]) || s[n] == '_' || s[n] == '.' || !whole || (whole > 1 && s[0] == '0')) {
		while (isalnum((unsigned char)s[n]) || s[n] == '_' || s[n] == '.')
			n++;
		return token_fail(l, t->at,
		                  "'%.*s' is not a number here: write decimal digits without a leading zero, as in 12, "
		                  "0.5 or 1e-3",
		                  n, s);
	}
	if (t->kind == TOKEN_FLOAT) {
		t->real = expr_read_float(s);
		if (t->real > FLT_MAX)
			return token_fail(l, t->at, "%.*s does not fit: real numbers go up to 3.4e38", n, s);
		return 0;
	}
	t->number = 0;
	for (int i = 0; i < n; i++) {
		const unsigned digit = (unsigned)(s[i] - '0');
		if (t->number > ((UINT64_C(1) << 63) - digit) / 10)
			return token_fail(l, t->at, "%.*s does not fit: whole numbers go up to 9223372036854775807", n,
			                  s);
		t->number = 10 * t->number + digit;
	}
	return 0;
}

static const char *const signs[] = {"<=", ">=", "==", "!=", "&&", "||", "<", ">", "+", "-", "*",
                                    "/",  "%",  "!",  "(",  ")",  "[",  "]", ",", "?", ":"};

int token_next(struct lexer *l)
{
	struct token *t = &l->token;
	t->at += t->len;
	while (isspace((unsigned char)l->text[t->at]))
		t->at++;
	const char *s = l->text + t->at;
	t->len = 0;
	t->kind = TOKEN_END;
	if (!*s)
		return 0;
	if (isdigit((unsigned char)*s) || (*s == '.' && isdigit((unsigned char)s[1])))
		return read_number(l, t);
	t->len = token_word_len(s);
	if (t->len) {
		t->kind = TOKEN_WORD;
		return 0;
	}
	for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
		if (strncmp(s, signs[i], strlen(signs[i])) == 0) {
			t->kind = TOKEN_SIGN;
			t->len = (int)strlen(signs[i]);
			return 0;
		}
	}
	t->kind = TOKEN_BAD;
	if (*s == '=' || *s == '&' || *s == '|')
		return token_fail(l, t->at, "'%c' has no meaning in an expression: did you mean '%c%c'?", *s, *s, *s);
	if (*s > ' ' && *s <= '~')
		return token_fail(l, t->at, "'%c' has no meaning in an expression", *s);
	return token_fail(l, t->at, "byte 0x%02x has no meaning in an expression", (unsigned char)*s);
}

bool token_is(const struct lexer *l, const char *spelling)
{
	const struct token *t = &l->token;
	return (t->kind == TOKEN_SIGN || t->kind == TOKEN_WORD) && (size_t)t->len == strlen(spelling) &&
	       memcmp(l->text + t->at, spelling, strlen(spelling)) == 0;
}

int token_unexpected(struct lexer *l, const char *wanted)
{
	const struct token *t = &l->token;
	const char *near = token_is(l, "and") ? "&&" : token_is(l, "or") ? "||" : token_is(l, "not") ? "!" : NULL;
	struct text found = {0};
	if (t->kind == TOKEN_END)
		return token_fail(l, t->at, "the expression ends here, but %s is missing", wanted);
	text_quote(&found, l->text + t->at, (size_t)t->len);
	if (near)
		token_fail(l, t->at, "%s where %s should stand: did you mean '%s'?", text_str(&found), wanted, near);
	else
		token_fail(l, t->at, "%s where %s should stand", text_str(&found), wanted);
	text_free(&found);
	return -1;
}

int token_expect(struct lexer *l, const char *sign)
{
	char wanted[16] = "'";
	if (token_is(l, sign))
		return token_next(l);
	strcat(strcat(wanted, sign), "'");
	return token_unexpected(l, wanted);
}
