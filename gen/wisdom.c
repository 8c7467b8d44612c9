/* wisdom: lines of measured tiles, in the order of their keys. */
#include <stdlib.h>
#include <string.h>

#include "gen/gen.h"

static int by_number(int64_t a, int64_t b) { return (a > b) - (a < b); }

static int by_problem(const struct problem *a, const struct problem *b)
{
	const int64_t x[] = {a->batch, a->heads_q, a->heads_kv, a->seqlen_q, a->seqlen_k, a->align};
	const int64_t y[] = {b->batch, b->heads_q, b->heads_kv, b->seqlen_q, b->seqlen_k, b->align};
	int order = 0;
	for (int i = 0; i < 6 && !order; i++)
		order = by_number(x[i], y[i]);
	return order;
}

static int by_key(const struct wisdom_entry *a, const struct wisdom_entry *b)
{
	int order = strcmp(a->gpu, b->gpu);
	order = order ? order : by_number(a->sms, b->sms);
	order = order ? order : strcmp(a->spec, b->spec);
	order = order ? order : by_number(a->pass, b->pass);
	return order ? order : by_problem(&a->problem, &b->problem);
}

static int by_tile(const struct tile_choice *a, const struct tile_choice *b)
{
	char x[WISDOM_TILE_MAX], y[WISDOM_TILE_MAX];
	tile_choice_print(x, a);
	tile_choice_print(y, b);
	return strcmp(x, y);
}

/* A total order, so that merging does not depend on who comes first. Below 0: a is to be preferred. */
static int by_merit(const struct tuned *a, const struct tuned *b)
{
	int order = by_number(b->rounds, a->rounds);
	order = order ? order : by_number(a->ns, b->ns);
	order = order ? order : by_number(a->noise, b->noise);
	order = order ? order : by_tile(&a->tile, &b->tile);
	order = order ? order : by_tile(&a->planner, &b->planner);
	return order ? order : by_number(a->planner_ns, b->planner_ns);
}

void wisdom_free(struct wisdom *w)
{
	for (int i = 0; i < w->count; i++)
		free(w->entry[i].spec);
	free(w->entry);
	*w = (struct wisdom){0};
}

/* Where the key is or belongs. */
static int place_of(bool *found, const struct wisdom *w, const struct wisdom_entry *key)
{
	int low = 0, high = w->count;
	*found = false;
	while (low < high) {
		const int middle = low + (high - low) / 2, order = by_key(&w->entry[middle], key);
		if (order == 0) {
			*found = true;
			return middle;
		}
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

int wisdom_add(struct wisdom *w, const struct wisdom_entry *entry)
{
	bool found;
	const int at = place_of(&found, w, entry);
	if (found) {
		if (by_merit(&entry->tuned, &w->entry[at].tuned) < 0)
			w->entry[at].tuned = entry->tuned;
		return 0;
	}
	if (w->count == w->room) {
		const int room = w->room ? 2 * w->room : 16;
		struct wisdom_entry *more = realloc(w->entry, (size_t)room * sizeof *more);
		if (!more)
			return -1;
		w->entry = more;
		w->room = room;
	}
	char *spec = strdup(entry->spec);
	if (!spec)
		return -1;
	memmove(&w->entry[at + 1], &w->entry[at], (size_t)(w->count - at) * sizeof *w->entry);
	w->entry[at] = *entry;
	w->entry[at].spec = spec;
	w->count++;
	return 0;
}

int wisdom_merge(struct wisdom *w, const struct wisdom *from)
{
	int rc = 0;
	for (int i = 0; i < from->count && !rc; i++)
		rc = wisdom_add(w, &from->entry[i]);
	return rc;
}

/* A name as a line can hold it between quotes. */
static void name_plain(char to[DEVICE_NAME_MAX], const char *name)
{
	size_t i = 0;
	for (; name[i] && i < DEVICE_NAME_MAX - 1; i++)
		to[i] = (unsigned char)name[i] < ' ' || name[i] == '"' || name[i] == 127 ? '_' : name[i];
	to[i] = '\0';
}

void wisdom_key(struct wisdom_entry *key, const struct spec *spec, const struct device *device,
                const struct problem *problem, enum pass pass)
{
	struct text canonical = {0};
	memset(key, 0, sizeof *key);
	key->pass = pass;
	name_plain(key->gpu, device->name);
	key->sms = device->sms;
	problem_class(&key->problem, problem);
	spec_canonical(&canonical, spec, pass);
	key->spec = canonical.data;
}

const struct wisdom_entry *wisdom_find(const struct wisdom *w, const struct wisdom_entry *key)
{
	bool found;
	const int at = place_of(&found, w, key);
	return found ? &w->entry[at] : NULL;
}
