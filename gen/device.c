/* device: rows of struct device in a YAML file. One list of fields serves the reader, its messages and the printer. */
#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "gen/spec_key.h"

static const char *target_word(int i) { return i < TARGET_COUNT ? target_table[i].name : NULL; }

/* What no GPU falls outside of. */
static const struct shape name_shape = {.kind = SHAPE_TEXT, .min = 1, .max = DEVICE_NAME_MAX - 1};
static const struct shape target_shape = {.kind = SHAPE_WORD, .word = target_word};
static const struct shape count_shape = {.kind = SHAPE_WHOLE, .min = 1, .max = 4096, .step = 1};
static const struct shape flop_shape = {.kind = SHAPE_WHOLE, .min = 16, .max = 1 << 20, .step = 1};
static const struct shape ghz_shape = {.kind = SHAPE_REAL, .low = 0.1, .high = 10};
static const struct shape gbs_shape = {.kind = SHAPE_REAL, .low = 1, .high = 1e6};
static const struct shape mib_shape = {.kind = SHAPE_REAL, .low = 0.1, .high = 65536};
static const struct shape us_shape = {.kind = SHAPE_REAL, .low = 0.01, .high = 1000};

#define FIELDS(field)                                                                                                  \
	field(name, name_shape, "as the driver says it, without its maker") field(target, target_shape,                \
	                                                                          "its best target")                   \
		field(sms, count_shape, "SMs") field(clock_ghz, ghz_shape, "GHz, sustained under matrix load")         \
			field(hbm_gbs, gbs_shape, "GB/s of DRAM, of which a copy reaches nine tenths") field(          \
				l2_gbs, gbs_shape, "GB/s from L2 to the SMs") field(l2_mib, mib_shape, "MiB of L2")    \
				field(mma_flop_clk, flop_shape, "16-bit FLOP of mma.sync per clock and SM") field(     \
					exp_clk, count_shape, "ex2 results per clock and SM")                          \
					field(alu_clk, count_shape, "float32 lane operations per clock and SM") field( \
						launch_us, us_shape, "microseconds of one kernel launch on a stream")

static const struct shape_field fields[] = {
#define FIELD(id, shape, doc) {#id, &shape, true, doc},
	FIELDS(FIELD)
#undef FIELD
};
static const size_t offsets[] = {
#define FIELD(id, shape, doc) offsetof(struct device, id),
	FIELDS(FIELD)
#undef FIELD
};
enum { FIELD_COUNT = sizeof fields / sizeof *fields };

static const struct shape row_shape = {.kind = SHAPE_MAP, .field = fields, .field_count = FIELD_COUNT};
static const struct shape rows_shape = {.kind = SHAPE_LIST, .of = &row_shape, .items_max = DEVICE_ROWS_MAX};

static void list_begin(struct device_list *list)
{
	list->count = device_count;
	memcpy(list->row, device_table, (size_t)device_count * sizeof *device_table);
}

static int name_at(const struct device_list *list, const char *name)
{
	int i = 0;
	while (i < list->count && strcasecmp(list->row[i].name, name) != 0)
		i++;
	return i;
}

/* A node that row_shape accepts. `at`: its place in the list. */
static void row_read(struct device_list *list, int at, const struct yaml_tree *t, const struct yaml_node *n)
{
	struct device *row = &list->row[at];
	for (int i = 0; i < FIELD_COUNT; i++) {
		const char *text = yaml_text(t, yaml_get(t, n, fields[i].name));
		void *to = (char *)row + offsets[i];
		struct number number = {0};
		number_read(&number, text);
		switch (fields[i].shape->kind) {
		case SHAPE_WHOLE: *(int *)to = (int)number.whole; break;
		case SHAPE_REAL: *(double *)to = number.real; break;
		case SHAPE_WORD: *(const char **)to = target_find(text)->name; break;
		default: strcpy(list->name[at], text); *(const char **)to = list->name[at];
		}
	}
}

static int rows_read(struct device_list *list, const struct yaml_tree *t, const struct yaml_node *rows, struct diag *d)
{
	int line[DEVICE_ROWS_MAX] = {0}; /* where the file has this row; 0: it is the table's */
	for (const struct yaml_node *n = yaml_child(t, rows); n; n = yaml_next(t, n)) {
		const struct yaml_node *name = yaml_get(t, n, "name");
		const int at = name_at(list, yaml_text(t, name));
		if (at == DEVICE_ROWS_MAX)
			return diag_at(d, n->place, "devices: more than %d, with the %d that are built in",
			               DEVICE_ROWS_MAX, device_count);
		if (line[at])
			return diag_at(d, name->place, "devices.name: '%s' is in line %d already; one row for each GPU",
			               yaml_text(t, name), line[at]);
		line[at] = name->place.line;
		list->count += at == list->count;
		row_read(list, at, t, n);
	}
	return 0;
}

int device_list_parse(struct device_list *list, const char *yaml, size_t len, const char *file, struct diag *d)
{
	struct yaml_tree tree = {0};
	int rc = -1;
	list_begin(list);
	yaml_skip_mark(&yaml, &len);
	d->file = file;
	d->source.len = 0;
	text_add(&d->source, yaml, len);
	const int errors = d->errors;
	if (yaml_tree_read(&tree, yaml, len, d) == 0) {
		const struct yaml_node *root = yaml_at(&tree, tree.root);
		if (!root || root->kind != YAML_LIST)
			diag_at(d, root ? root->place : (struct place){0},
			        "a file of devices is a list, as `fagen calibrate` writes it: '- name: ...' and the other "
			        "fields below");
		else if (shape_check(&rows_shape, &tree, root, "devices", d) && d->errors == errors)
			rc = rows_read(list, &tree, root, d);
	}
	yaml_tree_free(&tree);
	if (rc)
		list_begin(list);
	return rc;
}

int device_list_load(struct device_list *list, const char *path, struct diag *d)
{
	struct text yaml = {0};
	list_begin(list);
	if (!path || !*path)
		return 0;
	const int rc =
		yaml_load(&yaml, path, d) || device_list_parse(list, text_str(&yaml), yaml.len, path, d) ? -1 : 0;
	text_free(&yaml);
	return rc;
}

void device_print(struct text *out, const struct device *row)
{
	for (int i = 0; i < FIELD_COUNT; i++) {
		const void *from = (const char *)row + offsets[i];
		struct text value = {0};
		switch (fields[i].shape->kind) {
		case SHAPE_WHOLE: text_addf(&value, "%d", *(const int *)from); break;
		case SHAPE_REAL: real_print(&value, *(const double *)from); break;
		case SHAPE_WORD: text_puts(&value, *(const char *const *)from); break;
		default: text_json(&value, *(const char *const *)from);
		}
		text_addf(out, "%s %s: %-*s # %s\n", i ? " " : "-", fields[i].name, 24 - (int)strlen(fields[i].name),
		          text_str(&value), fields[i].doc);
		text_free(&value);
	}
}
