/* arch: the two tables of machines. Numbers are the makers' datasheets and programming guide; what was measured or is
 * an estimate says so. Nothing else in gen/ knows an architecture. */
#include <string.h>
#include <strings.h>

#include "gen/gen.h"

#define KIB 1024

/* Rows with a smaller compute capability come first. A CTA may use all of an SM's shared memory but 1 KiB. */
const struct target target_table[TARGET_COUNT] = {
	/* name       cc   smem_block  smem_sm    regs_sm regs threads red */
	{"sm_80",     80,  163 * KIB,  164 * KIB, 65536,  255, 2048,   1},
	{"sm_86",     86,  99 * KIB,   100 * KIB, 65536,  255, 1536,   1},
	{"sm_89",     89,  99 * KIB,   100 * KIB, 65536,  255, 1536,   1},
	{"sm_90a",    90,  227 * KIB,  228 * KIB, 65536,  255, 2048,   4},
	{"sm_100f",   100, 227 * KIB,  228 * KIB, 65536,  255, 2048,   4},
	{"sm_120f",   120, 99 * KIB,   100 * KIB, 65536,  255, 1536,   4},
};

/* mma_flop_clk is the dense 16-bit rate with float32 accumulation through mma.sync. The GeForce parts run it at half
 * the rate of the professional parts of the same target. 1925 of wgmma.s 4096 fits Hopper. For
 * sm_100 the rate of mma.sync is not published: 2048 is an estimate. L2 bandwidths are measured figures of public
 * microbenchmarks, rounded, and for Hopper the least that its native forward must have drawn. H200 clock and launch cost fit measurements. The first row is the default. */
const struct device device_table[] = {
	/* name             target     SMs  GHz    HBM   L2     MiB   mma   exp alu  launch */
	{"H200",            "sm_90a",  132, 1.755, 4800, 6400,  50,   1925, 16, 128, 2.5},
	{"H100",            "sm_90a",  132, 1.755, 3350, 6400,  50,   1925, 16, 128, 2.5},
	{"H100 PCIe",       "sm_90a",  114, 1.620, 2039, 4500,  50,   1925, 16, 128, 2.5},
	{"GH200",           "sm_90a",  132, 1.755, 4000, 6400,  50,   1925, 16, 128, 2.5},
	{"A100",            "sm_80",   108, 1.410, 2039, 4400,  40,   2048, 16, 64,  3.0},
	{"B200",            "sm_100f", 148, 1.850, 8000, 10000, 126,  2048, 16, 128, 2.5},
	{"B300",            "sm_100f", 148, 1.850, 8000, 10000, 126,  2048, 32, 128, 2.5},
	{"L40S",            "sm_89",   142, 2.520, 864,  4500,  96,   1024, 16, 128, 3.0},
	{"L40",             "sm_89",   142, 2.490, 864,  4500,  96,   512,  16, 128, 3.0},
	{"L4",              "sm_89",   58,  2.040, 300,  1800,  48,   1024, 16, 128, 3.0},
	{"RTX 4090",        "sm_89",   128, 2.520, 1008, 5000,  72,   512,  16, 128, 3.0},
	{"RTX 3090",        "sm_86",   82,  1.695, 936,  2200,  6,    512,  16, 128, 3.0},
	{"A40",             "sm_86",   84,  1.740, 696,  2200,  6,    1024, 16, 128, 3.0},
	{"A10",             "sm_86",   72,  1.695, 600,  1900,  6,    1024, 16, 128, 3.0},
	{"RTX A6000",       "sm_86",   84,  1.800, 768,  2200,  6,    1024, 16, 128, 3.0},
	{"RTX 5090",        "sm_120f", 170, 2.407, 1792, 7000,  96,   512,  16, 128, 3.0},
	{"RTX 5080",        "sm_120f", 84,  2.617, 960,  4500,  64,   512,  16, 128, 3.0},
	{"RTX PRO 6000",    "sm_120f", 188, 2.600, 1792, 7000,  128,  1024, 16, 128, 3.0},
};
const int device_count = sizeof device_table / sizeof *device_table;

const struct target *target_find(const char *name)
{
	for (int i = 0; i < TARGET_COUNT; i++)
		if (strcmp(target_table[i].name, name) == 0)
			return &target_table[i];
	return NULL;
}

/* The driver says "NVIDIA GeForce RTX 4090", "NVIDIA A100-SXM4-80GB": the maker in front, the board behind. */
const char *device_board(const char *name)
{
	static const char *const makers[] = {"NVIDIA ", "GeForce "};
	for (int i = 0; i < 2; i++)
		if (strncasecmp(name, makers[i], strlen(makers[i])) == 0)
			name += strlen(makers[i]);
	return name;
}

static const struct device *row_find(const struct device *row, int count, const char *name)
{
	name = device_board(name);
	const struct device *best = NULL;
	size_t best_len = 0;
	for (int i = 0; i < count; i++) {
		const size_t len = strlen(row[i].name);
		if (strncasecmp(name, row[i].name, len) != 0)
			continue;
		if (name[len] == '\0')
			return &row[i];
		/* A laptop part shares only the name. */
		if ((name[len] == ' ' || name[len] == '-') && len > best_len && !strcasestr(name + len, "laptop")) {
			best = &row[i];
			best_len = len;
		}
	}
	return best;
}

static const struct device *row_for_target(const struct device *row, int count, const struct target *target)
{
	for (int i = 0; i < count; i++)
		if (strcmp(row[i].target, target->name) == 0)
			return &row[i];
	return NULL;
}

const struct device *device_find(const char *name) { return row_find(device_table, device_count, name); }

const struct device *device_list_find(const struct device_list *list, const char *name)
{
	return row_find(list->row, list->count, name);
}

const struct device *device_for_target(const struct target *target)
{
	return row_for_target(device_table, device_count, target);
}

const struct device *device_list_for_target(const struct device_list *list, const struct target *target)
{
	return row_for_target(list->row, list->count, target);
}

/* The last letter of a target's name is its kind: `a` runs on exactly its own capability; `f` on its family: the same
 * major and at least its minor, where 10.1 counts as 11.0, as NVRTC 13 names it; a plain one on the same major and at
 * least its minor. */
bool target_runs_on(const struct target *target, int cc)
{
	if (cc == 101)
		cc = 110;
	if (target->name[strlen(target->name) - 1] == 'a')
		return cc == target->cc;
	return cc / 10 == target->cc / 10 && cc % 10 >= target->cc % 10;
}

const struct target *target_for_cc(int cc)
{
	const struct target *best = NULL;
	for (int i = 0; i < TARGET_COUNT; i++)
		if (target_runs_on(&target_table[i], cc) && (best == NULL || target_table[i].cc > best->cc))
			best = &target_table[i];
	return best;
}
