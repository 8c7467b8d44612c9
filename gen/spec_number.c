/* The numbers of the language: a subset that YAML 1.1, YAML 1.2 and JSON readers agree on, plus 5. .5 and 1e-3.
 *   whole  -?(0|[1-9][0-9]*)
 *   real   -?(0|[1-9][0-9]*)?(.[0-9]*)?([eE][+-]?[0-9]+)?  with a digit before the exponent
 * What some readers take for another number (0128, 0x10, 1_000, 128:32, +5) is refused. */
#include "gen/spec_shape.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static const char *digits_skip(const char *s)
{
	while (is_digit(*s))
		s++;
	return s;
}

/* The number that remains when signs, separators and leading zeros go: a suggestion, "" if unclear. */
static void plain_guess(char plain[24], const char *s)
{
	size_t n = 0;
	s += *s == '+';
	if (*s == '-')
		plain[n++] = *s++;
	while (*s == '_' || (*s == '0' && (is_digit(s[1]) || s[1] == '_')))
		s++;
	for (; is_digit(*s) || *s == '_' || *s == '.'; s++)
		if (*s != '_' && n < 22)
			plain[n++] = *s;
	plain[*s || n == 22 ? 0 : n] = '\0';
}

static void fault_find(struct number *n, const char *text)
{
	const char *s = text + (*text == '-' || *text == '+');
	const size_t figures = strspn(s, "0123456789");
	n->kind = NUMBER_NONE;
	n->fault = "";
	if (!strcmp(s, ".inf") || !strcmp(s, ".Inf") || !strcmp(s, ".INF") || !strcmp(s, ".nan") ||
	    !strcmp(s, ".NaN") || !strcmp(s, ".NAN")) {
		n->fault = "is not a finite number";
		return;
	}
	if (!is_digit(*s) && !(*s == '.' && is_digit(s[1])))
		return;
	if (*s == '0' && s[1] && strchr("xXoObB", s[1]))
		n->fault = "is not decimal";
	else if (s[strspn(s, "0123456789:.")] == '\0' && strchr(s, ':'))
		n->fault = "reads as base 60 in some YAML readers";
	else if (s[strspn(s, "0123456789_.")] == '\0') {
		plain_guess(n->plain, text);
		if (strchr(s, '_'))
			n->fault = "has an underscore, which some YAML readers skip and others do not";
		else if (*s == '0' && figures > 1)
			n->fault = "has a leading zero, which some YAML readers take for octal";
		else if (*text == '+')
			n->fault = "has a plus sign, which is left out here";
		else
			n->fault = "is not a number";
	} else
		n->fault = "is not a number";
}

void number_read(struct number *n, const char *text)
{
	*n = (struct number){0};
	const char *s = text + (*text == '-');
	const char *whole_end = digits_skip(s);
	const bool zero_first = *s == '0' && whole_end > s + 1;
	size_t digits = (size_t)(whole_end - s);
	const char *end = whole_end;
	if (*end == '.') {
		const char *fraction = end + 1;
		end = digits_skip(fraction);
		digits += (size_t)(end - fraction);
	}
	if (digits && (*end == 'e' || *end == 'E')) {
		const char *exponent = end + 1 + (end[1] == '+' || end[1] == '-');
		end = digits_skip(exponent) > exponent ? digits_skip(exponent) : end;
	}
	if (!digits || *end || zero_first) {
		fault_find(n, text);
		return;
	}
	n->kind = end == whole_end ? NUMBER_WHOLE : NUMBER_REAL;
	/* The C locale is a constant of libc; without it the caller's decimal point would decide. */
	const locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
	n->real = c ? strtod_l(text, NULL, c) : strtod(text, NULL);
	if (c)
		freelocale(c);
	for (s = text + (*text == '-'); n->kind == NUMBER_WHOLE && s < end; s++) {
		const int digit = *s - '0';
		if (n->whole > (INT64_MAX - digit) / 10) {
			n->whole = INT64_MAX;
			break;
		}
		n->whole = 10 * n->whole + digit;
	}
	if (*text == '-')
		n->whole = -n->whole;
}
