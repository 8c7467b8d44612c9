/* gen: from a YAML spec to CUDA source. libc and libyaml only; never a CUDA header, never runtime/.
 *
 *   spec.yaml --spec_load--> spec --program_lower--> program --plan_make--> plan --source_emit--> source
 *
 * Every stage has the same shape: output first, inputs const, diag last, 0 or -1. A stage reads the ones before it
 * and never writes them. Every noun is a flat value without pointers (only struct text owns memory), and prints
 * itself. This header is the map: every type and every public function of gen/, in pipeline order. */
#ifndef FAGEN_GEN_H
#define FAGEN_GEN_H

#include <stdbool.h>
#include <stdint.h>

#include "gen/diag.h"
#include "gen/recipe.h"
#include "gen/text.h"

#define FAGEN_VERSION "0.1.0"
#define MUST_USE __attribute__((warn_unused_result))

/* ---- arch.c: what code is compiled for, and what it runs on. Two tables. ------------------------------------- */

struct target {
	const char *name;      /* "sm_90a", as NVRTC spells it */
	int cc;                /* compute capability times ten: 90 */
	int smem_block;        /* shared memory a CTA may opt in to, bytes */
	int smem_sm;           /* shared memory of an SM, bytes */
	int regs_sm;           /* 32-bit registers of an SM */
	int regs_thread;       /* most registers of one thread */
	int threads_sm;        /* most resident threads of an SM */
	int red_width;         /* floats one global reduction instruction adds: 1, or 4 from sm_90 on */
};

struct device {
	const char *name;      /* "H200" */
	const char *target;    /* its best target */
	int sms;
	double clock_ghz;      /* sustained, under matrix load */
	double hbm_gbs;        /* DRAM bandwidth, GB/s */
	double l2_gbs;         /* L2 to SM bandwidth, GB/s */
	double l2_mib;
	int mma_flop_clk;      /* dense 16-bit FLOP per clock and SM through mma.sync (a multiply-add is two) */
	int exp_clk;           /* ex2 results per clock and SM */
	int alu_clk;           /* float32 lane operations per clock and SM */
	double launch_us;      /* fixed cost of one kernel launch on a stream */
};

enum { TARGET_COUNT = 6 };
extern const struct target target_table[TARGET_COUNT];
extern const struct device device_table[];
extern const int device_count;

const struct target *target_find(const char *name);            /* NULL: no such target */
/* By its name in any case, or as the driver says it ("NVIDIA A100-SXM4-80GB"). NULL: none. */
const struct device *device_find(const char *name);
const struct device *device_for_target(const struct target *); /* the device a target is planned for by default */
/* The best target of the table whose code runs on compute capability `cc` (times ten). NULL: none. */
const struct target *target_for_cc(int cc);
bool target_runs_on(const struct target *, int cc); /* does code of this target run on that compute capability? */

/* ---- problem.c: a class of shapes ------------------------------------------------------------------------------ */

struct problem {
	int64_t batch, heads_q, heads_kv, seqlen_q, seqlen_k;
	int align; /* every pointer and stride is a multiple of this many bytes: 16, or 2 for any */
};

void problem_print(struct text *, const struct problem *); /* "b4 hq32 hkv8 sq4096 sk4096 align16" */
int MUST_USE problem_parse(struct problem *, const char *text, struct diag *); /* the same spelling */
/* Counts in range, heads_q a multiple of heads_kv, their ratio the spec's kv_group (0: any). */
int MUST_USE problem_check(const struct problem *, int kv_group, struct diag *);

/* ---- spec.c: what the user asked ------------------------------------------------------------------------------- */

enum dtype { DTYPE_FP16, DTYPE_BF16 };
enum pass { PASS_FORWARD, PASS_BACKWARD, PASS_COUNT };
extern const char *const pass_names[PASS_COUNT + 1]; /* as a spec writes them; NULL after the last */
int pass_find(const char *name);                       /* -1: no such pass */
enum output { OUTPUT_OUT = 1, OUTPUT_LSE = 2 };

enum {
	SPEC_NAME_MAX = 64,
	SPEC_MASKS_MAX = 8,
	SPEC_ARGS_MAX = 2,
	HEAD_DIM_MIN = 16,
	HEAD_DIM_MAX = 256,
	HEAD_DIM_STEP = 8,
	DROPOUT_LEVELS = 256 /* the keep probability is a multiple of 1/256 */
};
#define SPEC_UNBOUNDED INT64_MAX /* a window side that reaches everything */

struct mask_term {
	int preset;                   /* row of preset_table */
	int64_t arg[SPEC_ARGS_MAX];   /* in the row's parameter order */
};

struct tile_request { /* all zero: auto */
	int m, n;      /* query rows, keys */
	int warps;     /* 0: planner's choice */
	int stages;    /* 0: planner's choice */
};

/* Keys of the language, in canonical order. spec.def has one row for each: name, type, default, documentation. */
enum spec_key {
#define SPEC_KEY(id, name, type, fallback, doc) KEY_##id,
#include "gen/spec.def"
#undef SPEC_KEY
	KEY_COUNT
};

struct spec {
	char name[SPEC_NAME_MAX];
	int head_dim_qk, head_dim_v;
	enum dtype dtype;
	int mask_count;                            /* all must hold; 0: every key is visible */
	struct mask_term mask[SPEC_MASKS_MAX];
	double dropout;                            /* as asked, 0 <= p < 1 */
	int keep_256;                              /* round(256 (1-p)), 1..256; 256: no dropout */
	double softmax_scale;                      /* > 0; 1/sqrt(head_dim_qk) by default */
	int kv_group;                              /* query heads per key/value head; 0: any, taken at launch */
	unsigned outputs;                          /* set of enum output */
	bool passes[PASS_COUNT];
	struct problem assume;                     /* the problem to plan for */
	struct tile_request tile[PASS_COUNT];
	bool targets[TARGET_COUNT];                /* rows of target_table */
	struct place place[KEY_COUNT];             /* where each key was written */
};

/* Parses `len` bytes of YAML. All errors of the file are reported in one go, *spec is untouched then.
 * `file` is the name used in messages; diag->file stays set to it for later stages. */
int MUST_USE spec_parse(struct spec *, const char *yaml, size_t len, const char *file, struct diag *);
/* The same, from a file of at most 1 MiB. */
int MUST_USE spec_load(struct spec *, const char *path, struct diag *);
void spec_print(struct text *, const struct spec *);      /* valid YAML, every key written out: parses back to the same spec */
void spec_reference(struct text *);                       /* `fagen -h spec`, from the table */
void spec_schema(struct text *);                          /* JSON schema, from the table */
void spec_starter(struct text *);                         /* `fagen init`: a commented spec that parses */

/* ---- preset.c: the named masks, each one definition in the expression language --------------------------------- */

struct preset {
	const char *name;
	const char *params[SPEC_ARGS_MAX]; /* parameter names, NULL after the last */
	const char *definition;            /* boolean expression over q k sq sk and the parameters */
	const char *doc;
};
extern const struct preset preset_table[];
extern const int preset_count;

/* ---- expr.c: typed expressions in a flat pool ------------------------------------------------------------------- */

enum expr_type { TYPE_BOOL, TYPE_INT, TYPE_FLOAT };

enum expr_op {
	EXPR_CONST,                                            /* value in i (bool, int) or f (float) */
	EXPR_NAME,                                             /* i is an enum expr_name */
	EXPR_NEG, EXPR_ABS, EXPR_NOT,
	EXPR_ADD, EXPR_SUB, EXPR_MUL, EXPR_DIV, EXPR_MOD,      /* int division and remainder round toward minus infinity */
	EXPR_MIN, EXPR_MAX,
	EXPR_LT, EXPR_LE, EXPR_EQ, EXPR_NE,                    /* > and >= are LT and LE with the sides exchanged */
	EXPR_AND, EXPR_OR,
	EXPR_SELECT                                            /* a ? b : c */
};

enum expr_name { NAME_B, NAME_H, NAME_Q, NAME_K, NAME_SQ, NAME_SK, NAME_HQ, NAME_HK, NAME_S, NAME_COUNT };
extern const char *const expr_names[NAME_COUNT];

enum { EXPR_NODES_MAX = 256, EXPR_DEPTH_MAX = 64 };

struct expr_node {
	enum expr_op op;
	enum expr_type type;
	int arg[3];      /* indexes into the pool, -1 unused */
	int64_t i;
	double f;
};

struct expr_pool {
	int count;
	struct expr_node node[EXPR_NODES_MAX]; /* arguments come before their users; equal nodes are shared */
};

/* A named constant an expression may use, e.g. a preset's parameter. */
struct expr_binding { const char *name; int64_t value; };

/* Each adds a folded, shared node and returns its index, or -1 when an argument is -1, the pool is full or the types are
 * wrong. The right side of DIV and MOD is a positive constant. */
int expr_const_int(struct expr_pool *, int64_t);
int expr_const_bool(struct expr_pool *, bool);
int expr_variable(struct expr_pool *, enum expr_name);
int expr_make(struct expr_pool *, enum expr_op, int a, int b, int c);
/* Parses one expression; returns its root or -1. Precedence as in C. `at` is where the text stands in the spec. */
int expr_parse(struct expr_pool *, const char *text, const struct expr_binding *, int bindings, struct place at, struct diag *);
void expr_print(struct text *, const struct expr_pool *, int root);      /* canonical text */
void expr_print_c(struct text *, const struct expr_pool *, int root);    /* C and CUDA, names as in expr_names */
/* Exact value at one point, where no step leaves 64 bits: value[] is indexed by enum expr_name. For tests and small tables. */
int64_t expr_eval_int(const struct expr_pool *, int root, const int64_t value[NAME_COUNT]);

/* ---- lower.c: what was derived from the expressions ------------------------------------------------------------ */

/* q*Q + k*K + sq*SQ + sk*SK + constant >= 0, with q and k in {-1, 0, 1} */
struct bound { int q, k, sq, sk; int64_t constant; };

enum { BOUNDS_MAX = 16 };

struct program {
	struct expr_pool pool;
	int mask;                        /* boolean root; the constant true when nothing is hidden */
	int score;                       /* float root over s */
	bool score_identity;             /* the score is s itself */
	int bound_count;                 /* conjuncts of the mask with a closed form in both directions */
	struct bound bound[BOUNDS_MAX];
	int residual;                    /* the other conjuncts: tested per element on every tile; constant true if none */
};

int MUST_USE program_lower(struct program *, const struct spec *, struct diag *);
/* The same for any mask over b h q k sq sk. Refused: other names, and what may leave 64 bits at some position. */
int MUST_USE program_lower_mask(struct program *, const struct expr_pool *, int mask, struct diag *);
void program_print(struct text *, const struct program *);

enum tile_class { TILE_EMPTY, TILE_PARTIAL, TILE_FULL };
/* Class of the cells [q0,q1) x [k0,k1) by interval analysis. Sound: never calls a tile with a visible cell empty,
 * never calls a tile with a hidden cell full; cells past the lengths are hidden. Lengths are below 2^31. */
enum tile_class program_tile_class(const struct program *, int64_t sq, int64_t sk, int64_t q0, int64_t q1, int64_t k0, int64_t k1);

/* The range [begin, end) of positions that a tile can see, and [full_begin, full_end) inside it where no test is needed.
 * The keys of rows [q0, q1): rows past sq do not count. The rows of keys [k0, k1): none is full when a key is past sk.
 * Exact when nothing is residual; with a residual never too narrow, and nothing is full. */
struct range { int64_t begin, end, full_begin, full_end; };
struct range program_key_range(const struct program *, int64_t sq, int64_t sk, int64_t q0, int64_t q1);
struct range program_query_range(const struct program *, int64_t sq, int64_t sk, int64_t k0, int64_t k1);

/* ---- plan.c: what was decided, for one pass on one device ------------------------------------------------------- */

enum {
	CANDIDATES_MAX = 96,
	SMEM_TERMS_MAX = 8,
	REASON_MAX = 120
};

struct smem_term { char name[16]; int bytes; };

/* Time of each overlapping resource, microseconds. Those of the SM hide only partly behind each other: together they may
 * take longer than the slowest memory, and then the slowest of them bounds the kernel. */
enum cost_term { COST_MMA, COST_EXP, COST_ALU, COST_SMEM, COST_L2, COST_HBM, COST_COUNT };
extern const char *const cost_names[COST_COUNT];

struct candidate {
	int tile_m, tile_n, warps, stages;
	int smem_term_count;
	struct smem_term smem_term[SMEM_TERMS_MAX];
	int smem_bytes;
	int regs;                 /* estimated registers per thread */
	int ctas_sm;              /* resident CTAs per SM */
	int64_t ctas;             /* of the whole problem */
	double waves;             /* ctas / (ctas_sm * sms) */
	double visited;           /* share of the seqlen_q x seqlen_k cells inside visited tiles */
	double hbm_bytes, l2_bytes, mma_flop, exps;
	double cost_us[COST_COUNT];
	double time_us;           /* predicted: what bounds it, stretched by the tail, plus fixed overheads */
	enum cost_term bound_by;
	char reason[REASON_MAX];  /* why it was rejected; empty: admissible */
};

struct constant { const char *name; const char *type; int64_t i; double f; const char *doc; };

struct plan {
	enum pass pass;
	const struct target *target;   /* rows of the static tables */
	const struct device *device;
	struct problem problem;
	char templ[RECIPE_NAME_MAX];   /* template folder/file without suffix: "sm80/fwd" */
	int candidate_count, chosen;
	struct candidate candidate[CANDIDATES_MAX]; /* in the order enumerated */
	double standard_bytes;         /* HBM bytes of standard attention, scores in memory (the naive kernels) */
	double useful_flop;            /* of the visible cells alone: what TFLOP/s are counted from */
	struct recipe recipe;
};

int MUST_USE plan_make(struct plan *, const struct spec *, const struct program *, const struct target *,
                       const struct device *, const struct problem *, enum pass, struct diag *);
/* The plan of the naive kernels: the same recipe shape, no search. */
int MUST_USE plan_naive(struct plan *, const struct spec *, const struct program *, const struct target *,
                        const struct device *, const struct problem *, enum pass, struct diag *);
void plan_print(struct text *, const struct plan *);      /* `fagen explain` and -d p */
void plan_json(struct text *, const struct plan *);

/* ---- emit.c: one flat, self-contained, deterministic .cu text -------------------------------------------------- */

/* Appends the source. `templates_dir` NULL: the templates embedded at build time; else files of that folder. */
int MUST_USE source_emit(struct text *, const struct spec *, const struct program *, const struct plan *,
                         const char *templates_dir, struct diag *);
/* The part of the source that is derived from the program (stream bounds, row state, mask, score), alone:
 * what tests compile for the host. */
void source_program(struct text *, const struct spec *, const struct program *);

#endif
