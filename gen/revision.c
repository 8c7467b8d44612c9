#include "gen/revision.h"

#include <stddef.h>
#include <string.h>

const struct revision revision_table[] = {
	{"naive/attention", 1, 1, NULL}, {"sm80/fwd", 1, 1, NULL}, {"sm80/bwd", 1, 1, NULL},
	{"sm90/fwd", 1, 1, NULL},        {"sm90/bwd", 1, 1, NULL}, {"sm90/bwd_pair", 1, 1, NULL},
};
const int revision_count = sizeof revision_table / sizeof *revision_table;

static const struct revision *revision_find(const struct revision *table, int count, const char *templ)
{
	for (int i = 0; i < count; i++)
		if (!strcmp(table[i].templ, templ))
			return &table[i];
	return NULL;
}

int template_revision(const char *templ)
{
	const struct revision *row = revision_find(revision_table, revision_count, templ);
	return row ? row->revision : 0;
}

const char *revision_refused(const struct revision *table, int count, const char *templ, int revision)
{
	const struct revision *row = revision_find(table, count, templ);
	if (!row || revision >= row->oldest)
		return NULL;
	return row->why ? row->why : "there never was such a revision";
}
