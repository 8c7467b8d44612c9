/* tune_shapes: problems as a list that fits a command line. */
#include <string.h>

#include "cli/tune.h"

static int number_take(int64_t *to, const char **at)
{
	const size_t digits = strspn(*at, "0123456789");
	int64_t n = 0;
	for (size_t i = 0; i < digits && n <= LENGTH_MAX; i++)
		n = 10 * n + ((*at)[i] - '0');
	if (digits == 0 || n < 1 || n > LENGTH_MAX)
		return -1;
	*at += digits;
	*to = n;
	return 0;
}

/* "h32/8", moving *at behind it. */
static int part_take(struct problem_flags *f, const char **at)
{
	const char letter = **at;
	int64_t n;
	(*at) += letter != '\0';
	if (!letter || !strchr("bhsqk", letter) || number_take(&n, at))
		return -1;
	switch (letter) {
	case 'b': f->batch = n; return 0;
	case 'q': f->seq_q = n; return 0;
	case 'k': f->seq_k = n; return 0;
	case 's': f->seq_q = f->seq_k = n; return 0;
	default: f->heads = n;
	}
	if (**at != '/')
		return 0;
	(*at)++;
	return number_take(&f->heads_kv, at);
}

int shapes_parse(struct problem_flags to[SHAPES_MAX], int *count, const char *text, struct diag *diag)
{
	const char *at = text + strspn(text, " ");
	while (*at) {
		struct problem_flags f;
		problem_flags_clear(&f);
		const char *part = at;
		for (;;) {
			part = at;
			if (part_take(&f, &at) || (*at && *at != ',' && *at != ' '))
				return diag_fail(diag,
				                 "--shapes: '%.*s' is no part of a shape; want b4 (batch), h32/8 (heads of queries and of keys), "
				                 "s4096 (lengths), q1 or k8192 (one of them), numbers from 1 to %d, with a comma between parts "
				                 "and a blank between shapes, as in 'b4,s4096 b1,q1,k8192'.",
				                 (int)strcspn(part, ", "), part, LENGTH_MAX);
			if (*at != ',')
				break;
			at++;
		}
		if (*count == SHAPES_MAX)
			return diag_fail(diag, "--shapes: more than %d shapes.", SHAPES_MAX);
		to[(*count)++] = f;
		at += strspn(at, " ");
	}
	return 0;
}
