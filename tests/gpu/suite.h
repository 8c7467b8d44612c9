/* suite: what is run on a GPU, counted by class. Never forks: a CUDA context does not survive it. */
#ifndef FAGEN_TESTS_GPU_SUITE_H
#define FAGEN_TESTS_GPU_SUITE_H

#include "check/case.h"
#include "check/gpu.h"

/* Every class must have run at least once for a record to count. */
#define CLASSES(x) \
	x(SHAPES, "shapes", "all specs, lengths around the tiles") \
	x(HEADS, "heads", "one and many heads, every grouping") \
	x(LAYOUTS, "layouts", "strides, gaps, alignment") \
	x(INPUTS, "inputs", "structured and extreme data") \
	x(PLANNED, "planned", "kernels planned for the shape at hand") \
	x(NAIVE, "naive", "the naive kernels") \
	x(LARGE, "large", "beyond the CPU's reach, sampled or against the naive kernels") \
	x(MSK, "MSK", "field cases: masks, alignment, lengths") \
	x(TAIL, "TAIL", "field cases: tails, short lengths, stale memory") \
	x(LAY, "LAY", "field cases: strides and shapes") \
	x(HD, "HD", "field cases: head dims, grouping") \
	x(NUM, "NUM", "field cases: range and LSE") \
	x(RNG, "RNG", "field cases: dropout masks") \
	x(TILES, "tiles", "explicit tiles") \
	x(PRESETS, "presets", "every mask, score and layout with a name") \
	x(EXPRESSIONS, "expressions", "masks and scores written out, inputs of every place") \
	x(GRADS, "grads", "gradients of inputs and sinks") \
	x(PAIRS, "pairs", "all pairs of thirteen axes: pairs.h") \
	x(NATIVE, "native", "all pairs of sixteen axes by the native forward: pairs.h") \
	x(MOD, "MOD", "field cases: softcap, ALiBi") \
	x(BSP, "BSP", "block layouts, field cases among them") \
	x(VAR, "VAR", "padded and packed batches, field cases among them") \
	x(DET, "DET", "deterministic: all kinds of specs twice, a thousand runs, alone and in a batch") \
	x(SYN, "SYN", "the instructions of the native kernels one by one; field cases: hangs, races") \
	x(MERGE, "MERGE", "partial results merged, and the derivative") \
	x(SPLIT, "split", "visits of a tile in parts, which another kernel joins") \
	x(PERF, "PERF", "field cases: performance cliffs, as ratios") \
	x(START, "start", "warm start: from nothing to the first launch") \
	x(BIG, "big", "field cases I32: offsets past 32 bits, long lengths, large grids")

enum class {
#define CLASS(id, name, doc) CLASS_##id,
	CLASSES(CLASS)
#undef CLASS
	CLASS_COUNT
};
extern const char *const class_names[CLASS_COUNT];

struct suite {
	fagen_runtime *rt;
	struct gpu gpu;
	struct check_options options;
	int shard, shards;
	const char *only_spec;    /* NULL: all */
	const char *only_class;   /* NULL: all */
	bool small;               /* the list for compute-sanitizer and mutation */
	int limit;                /* seconds of a case, after which the suite ends; 0: none */
	bool verbose;
	bool warming;             /* collect the kernels, run nothing */
	bool lost;                /* the context is dead: nothing more can be run */
	int64_t item;
	int passed[CLASS_COUNT], failed[CLASS_COUNT];
	int not_run;              /* of the failed: refused, or the compiler or the machine would not */
	char **warm;              /* "spec\n2" or "spec\n16", each once */
	int warm_count;
};

/* Runs a case; parts as in a case's spelling. */
void suite_case(struct suite *, enum class, const char *spec, const char *parts, ...) __attribute__((format(printf, 4, 5)));
/* Cases that ask for tiles of native kernels; where those do not run the planner chooses. */
struct tile_row { const char *spec, *parts; };
void suite_tiles(struct suite *, enum class, const struct tile_row *, size_t count);
/* For tests of another form: false when another shard has it. */
bool suite_mine(struct suite *);
/* The time of the next result begins: suite_mine has seen to the first one. */
void suite_watch(struct suite *);
void suite_result(struct suite *, enum class, bool ok, const char *name, const char *text);
/* NULL, after counting a failure, when it cannot be had. */
const fagen_spec *suite_spec(struct suite *, enum class, const char *name);

void suite_shapes(struct suite *, const char *const *specs, int count);
void suite_fields(struct suite *);
void suite_language(struct suite *);
void suite_lengths(struct suite *);
void suite_direct(struct suite *);
void suite_start(struct suite *); /* keeps time: to be run alone on the machine */
void suite_deterministic(struct suite *);
void suite_repeat(struct suite *);
void suite_speed(struct suite *); /* keeps time too */
void suite_graph(struct suite *);
void suite_invariance(struct suite *);
void suite_ptx(struct suite *);   /* nothing but on a Hopper GPU */
void suite_merge(struct suite *);
void suite_split(struct suite *);
void suite_shared(struct suite *);
void suite_big(struct suite *);   /* takes tens of GiB: to be run alone on the machine */
void suite_small(struct suite *);

/* The digest of everything a record speaks for: sources of all specs, launch code, templates. No GPU needed. */
int digest_make(char hex[65], const char *const *specs, int count, struct diag *);

#endif
