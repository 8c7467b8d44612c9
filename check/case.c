#include "check/case.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void case_default(struct check_case *c, const char *name, const struct spec *spec)
{
	*c = (struct check_case){.batch = 2, .heads_kv = 2, .seqlen_q = 333, .seqlen_k = 333, .seed = 1};
	c->heads_q = 2 * (spec->kv_group ? spec->kv_group : 2);
	snprintf(c->spec, sizeof c->spec, "%s", name);
}

void case_print(char to[CASE_TEXT_MAX], const struct check_case *c)
{
	snprintf(to, CASE_TEXT_MAX,
	         "%s:b%" PRId64 ",h%" PRId64 "/%" PRId64 ",q%" PRId64 ",k%" PRId64 ",%s,%s,seed%" PRIu64 "%s", c->spec,
	         c->batch, c->heads_q, c->heads_kv, c->seqlen_q, c->seqlen_k, input_names[c->input],
	         layout_names[c->layout], c->seed, c->planned ? ",planned" : "");
	for (int axis = 0; axis < 2; axis++)
		for (int i = 0; i < c->lengths[axis]; i++) {
			const size_t len = strlen(to);
			char part[8];
			snprintf(part, sizeof part, i ? "-" : ",l%c", "qk"[axis]);
			snprintf(to + len, CASE_TEXT_MAX - len, "%s%" PRId64, part, c->length[axis][i]);
		}
	if (c->whole && strlen(to) + 7 < CASE_TEXT_MAX)
		strcat(to, ",whole");
	if (c->shifted && strlen(to) + 9 < CASE_TEXT_MAX)
		strcat(to, ",shifted");
}

int case_align(const struct check_case *c) { return c->shifted ? 2 : layout_align(c->layout); }

/* A count up to the end or a stop character; -1 if there is none. */
static int64_t count_parse(const char **at)
{
	char *end;
	if (**at < '0' || **at > '9')
		return -1;
	errno = 0;
	const long long n = strtoll(*at, &end, 10);
	*at = end;
	return errno ? -1 : n;
}

static int name_find(const char *word, const char *const *names, int count)
{
	for (int i = 0; i < count; i++)
		if (!strcmp(word, names[i]))
			return i;
	return -1;
}

static bool number_part(int64_t *to, const char *text)
{
	const int64_t n = count_parse(&text);
	if (n < 0 || *text)
		return false;
	*to = n;
	return true;
}

/* "16-0-33": lengths of the entries, in turns; the longest is the most that the case has. */
static bool lengths_part(struct check_case *c, int axis, const char *text)
{
	int64_t *most = axis ? &c->seqlen_k : &c->seqlen_q;
	c->lengths[axis] = 0;
	*most = 0;
	for (;; text++) {
		const int64_t n = count_parse(&text);
		if (n < 0 || c->lengths[axis] == CASE_LENGTHS_MAX)
			return false;
		c->length[axis][c->lengths[axis]++] = n;
		*most = n > *most ? n : *most;
		if (*text != '-')
			return !*text;
	}
}

static bool part_parse(struct check_case *c, const char *part)
{
	int i;
	int64_t n;
	if ((i = name_find(part, input_names, INPUT_COUNT)) >= 0) {
		c->input = (enum input_kind)i;
		return true;
	}
	if ((i = name_find(part, layout_names, LAYOUT_COUNT)) >= 0) {
		c->layout = (enum layout_kind)i;
		return true;
	}
	if (!strcmp(part, "planned"))
		return c->planned = true;
	if (!strcmp(part, "whole"))
		return c->whole = true;
	if (!strcmp(part, "shifted"))
		return c->shifted = true;
	if (part[0] == 'l' && (part[1] == 'q' || part[1] == 'k'))
		return lengths_part(c, part[1] == 'k', part + 2);
	if (!strncmp(part, "seed", 4) && number_part(&n, part + 4)) {
		c->seed = (uint64_t)n;
		return true;
	}
	switch (*part) {
	case 'b': return number_part(&c->batch, part + 1);
	case 'q': return number_part(&c->seqlen_q, part + 1);
	case 'k': return number_part(&c->seqlen_k, part + 1);
	case 'h':
		part++;
		if ((n = count_parse(&part)) < 0)
			return false;
		c->heads_q = c->heads_kv = n;
		return !*part || (*part == '/' && number_part(&c->heads_kv, part + 1));
	default: return false;
	}
}

const char *case_parts(const char *text)
{
	const char *end = *text == '{' ? strrchr(text, '}') : text;
	const char *colon = end ? strchr(end, ':') : NULL;
	return colon ? colon + 1 : NULL;
}

int case_parse(struct check_case *c, const char *text, struct diag *diag)
{
	char copy[CASE_TEXT_MAX], *save = NULL;
	const char *parts = case_parts(text);
	if (parts) {
		const int len = (int)(parts - 1 - text);
		if (len >= CASE_NAME_MAX)
			return diag_fail(diag, "The spec's name in case \"%.40s...\" is longer than %d bytes.", text,
			                 CASE_NAME_MAX - 1);
		snprintf(c->spec, sizeof c->spec, "%.*s", len, text);
		text = parts;
	}
	if (strlen(text) >= sizeof copy)
		return diag_fail(diag, "Case \"%.40s...\" is longer than %d bytes.", text, CASE_TEXT_MAX - 1);
	strcpy(copy, text);
	for (char *part = strtok_r(copy, ",", &save); part; part = strtok_r(NULL, ",", &save)) {
		if (part_parse(c, part))
			continue;
		diag_fail(
			diag,
			"\"%s\" is no part of a case. Parts are b2 (batch), h16/4 (query/key heads), q4096, k4096 (lengths), seed7, "
			"planned, lq16-0-33, lk8-9-7 (lengths of the entries of a padded or packed batch), whole, shifted (tensors begin one element late), an input (gauss, outlier, lowrank, huge, const, zero, inf, row, rising, falling, turns, low, opposed, largest) and a layout (bhsd, bshd, fat, odd, mixed, "
			"size1, flip, shared), separated by commas.",
			part);
		return -1;
	}
	return 0;
}
