/* problem: a class of shapes, and its one-line spelling. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "gen/gen.h"

static const struct field {
	const char *tag, *what;
	size_t offset;
	int64_t least;
} fields[] = {
	{"b", "batch", offsetof(struct problem, batch), 0},
	{"hq", "heads_q", offsetof(struct problem, heads_q), 1},
	{"hkv", "heads_kv", offsetof(struct problem, heads_kv), 1},
	{"sq", "seqlen_q", offsetof(struct problem, seqlen_q), 0},
	{"sk", "seqlen_k", offsetof(struct problem, seqlen_k), 0},
};
enum { FIELDS = sizeof fields / sizeof *fields };

static int64_t field_get(const struct problem *problem, int i)
{
	int64_t value;
	memcpy(&value, (const char *)problem + fields[i].offset, sizeof value);
	return value;
}

static void field_set(struct problem *problem, int i, int64_t value)
{
	memcpy((char *)problem + fields[i].offset, &value, sizeof value);
}

struct recipe_shape problem_shape(const struct problem *p, int sms)
{
	return (struct recipe_shape){.batch = p->batch,
	                             .heads_q = p->heads_q,
	                             .heads_kv = p->heads_kv,
	                             .seqlen_q = p->seqlen_q,
	                             .seqlen_k = p->seqlen_k,
	                             .sms = sms};
}

int problem_check(const struct problem *problem, int kv_group, struct diag *diag)
{
	int errors = 0;
	for (int i = 0; i < FIELDS; i++) {
		const int64_t value = field_get(problem, i);
		if (value < fields[i].least || value > LENGTH_MAX) {
			diag_fail(diag, "%s is %" PRId64 "; it must lie between %" PRId64 " and %d (2^30).",
			          fields[i].what, value, fields[i].least, LENGTH_MAX);
			errors++;
		}
	}
	if (problem->align != 16 && problem->align != 2) {
		diag_fail(diag,
		          "align is %d; it must be 16 (every pointer and stride is a multiple of 16 bytes) or 2 (any).",
		          problem->align);
		errors++;
	}
	if (errors)
		return -1;
	const int64_t unit = kv_group > 0 ? kv_group : problem->heads_kv;
	if (problem->heads_q % unit != 0 || problem->heads_q < problem->heads_kv) {
		const int64_t below = problem->heads_q / unit * unit;
		const int64_t least = unit > problem->heads_kv ? unit : problem->heads_kv;
		char group[48] = "";
		if (kv_group > 0)
			snprintf(group, sizeof group, " (kv_group %d in the spec)", kv_group);
		return diag_fail(diag,
		                 "heads_q is %" PRId64 " and heads_kv %" PRId64
		                 "%s: every key/value head must serve the same number of query "
		                 "heads. The nearest legal heads_q are %" PRId64 " and %" PRId64 ".",
		                 problem->heads_q, problem->heads_kv, group, below > least ? below : least,
		                 below + unit > least ? below + unit : least + unit);
	}
	if (kv_group != 0 && problem->heads_kv != problem->heads_q / kv_group)
		return diag_fail(diag,
		                 "heads_q %" PRId64 " with kv_group %d of the spec needs heads_kv %" PRId64
		                 ", not %" PRId64 ". Make them agree, "
		                 "or write `kv_group: any`.",
		                 problem->heads_q, kv_group, problem->heads_q / kv_group, problem->heads_kv);
	return 0;
}

void problem_print(struct text *text, const struct problem *problem)
{
	for (int i = 0; i < FIELDS; i++)
		text_addf(text, "%s%" PRId64 " ", fields[i].tag, field_get(problem, i));
	text_addf(text, "align%d", problem->align);
}

static int64_t power_up(int64_t n)
{
	int64_t power = n > 0;
	while (power < n && power < LENGTH_MAX)
		power *= 2;
	return power;
}

void problem_class(struct problem *to, const struct problem *from)
{
	*to = *from;
	to->batch = power_up(from->batch);
	to->seqlen_q = power_up(from->seqlen_q);
	to->seqlen_k = power_up(from->seqlen_k);
}

/* Reads `tag` and a decimal number without sign; moves *at behind it. */
static int number_parse(int64_t *value, const char **at, const char *tag)
{
	const char *p = *at;
	const size_t len = strlen(tag);
	if (strncmp(p, tag, len) != 0 || p[len] < '0' || p[len] > '9')
		return -1;
	int64_t n = 0;
	for (p += len; *p >= '0' && *p <= '9'; p++) {
		if (n > LENGTH_MAX)
			return -1;
		n = 10 * n + (*p - '0');
	}
	*at = p;
	*value = n;
	return 0;
}

int problem_parse(struct problem *problem, const char *text, struct diag *diag)
{
	struct problem made = {0};
	const char *at = text;
	int64_t value;
	for (int i = 0; i < FIELDS; i++) {
		if (number_parse(&value, &at, fields[i].tag) != 0 || *at != ' ')
			goto wrong;
		field_set(&made, i, value);
		at++;
	}
	if (number_parse(&value, &at, "align") != 0 || *at != '\0')
		goto wrong;
	made.align = value == 16 ? 16 : value == 2 ? 2 : -1;
	if (problem_check(&made, 0, diag) != 0)
		return -1;
	*problem = made;
	return 0;
wrong:
	return diag_fail(diag,
	                 "'%.80s' is not a problem: at '%.20s'. A problem is spelled like 'b4 hq32 hkv8 sq4096 sk4096 "
	                 "align16', numbers "
	                 "up to %d (2^30).",
	                 text, at, LENGTH_MAX);
}
