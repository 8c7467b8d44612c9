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
const char *device_board(const char *name);                    /* what the driver says, without the maker in front */
const struct device *device_for_target(const struct target *); /* the device a target is planned for by default */
/* The best target of the table whose code runs on compute capability `cc` (times ten). NULL: none. */
const struct target *target_for_cc(int cc);
bool target_runs_on(const struct target *, int cc); /* does code of this target run on that compute capability? */

/* ---- device.c: rows of devices in a file, as `fagen calibrate` writes them ---------------------------------------- */

enum { DEVICE_ROWS_MAX = 64, DEVICE_NAME_MAX = 64 };

/* The table with the rows of a file: a row of a name that the table has stands in its place, others come behind. Not to
 * be copied: rows point into it, and plans point to rows. */
struct device_list {
	int count;
	struct device row[DEVICE_ROWS_MAX];
	char name[DEVICE_ROWS_MAX][DEVICE_NAME_MAX];
};
/* Of YAML text, a list of maps with every field of struct device. On failure the list is the table alone. */
int MUST_USE device_list_parse(struct device_list *, const char *yaml, size_t len, const char *file, struct diag *);
/* The same, from a file. path NULL or "": the table alone. */
int MUST_USE device_list_load(struct device_list *, const char *path, struct diag *);
/* As device_find and device_for_target. */
const struct device *device_list_find(const struct device_list *, const char *name);
const struct device *device_list_for_target(const struct device_list *, const struct target *);
void device_print(struct text *, const struct device *); /* one row of such a file */

/* ---- problem.c: a class of shapes ------------------------------------------------------------------------------ */

/* Batch, heads and lengths: what is decided for all positions is decided up to here, and kernels may add tiles to positions
 * in 32 bits. */
enum { LENGTH_MAX = 1 << 30 };

struct problem {
	int64_t batch, heads_q, heads_kv, seqlen_q, seqlen_k;
	int align; /* every pointer and stride is a multiple of this many bytes: 16, or 2 for any */
};

void problem_print(struct text *, const struct problem *); /* "b4 hq32 hkv8 sq4096 sk4096 align16" */
int MUST_USE problem_parse(struct problem *, const char *text, struct diag *); /* the same spelling */
/* Counts in range, heads_q a multiple of heads_kv, their ratio the spec's kv_group (0: any). */
int MUST_USE problem_check(const struct problem *, int kv_group, struct diag *);
/* As a dense launch of it on so many multiprocessors. */
struct recipe_shape problem_shape(const struct problem *, int sms);

/* The class whose measured tile serves the problem: batch and lengths rounded up to powers of two. */
void problem_class(struct problem *, const struct problem *);

/* ---- spec.c: what the user asked ------------------------------------------------------------------------------- */

enum dtype { DTYPE_FP16, DTYPE_BF16 };
/* How the entries of a batch lie: all of one length; each with a length of its own, in as much room; one behind the other. */
enum batch_layout { LAYOUT_DENSE, LAYOUT_PADDED, LAYOUT_PACKED };
enum pass { PASS_FORWARD, PASS_BACKWARD, PASS_COUNT };
extern const char *const pass_names[PASS_COUNT + 1]; /* as a spec writes them; NULL after the last */
int pass_find(const char *name);                       /* -1: no such pass */
enum output { OUTPUT_OUT = 1, OUTPUT_LSE = 2 };

enum {
	SPEC_NAME_MAX = 64,
	SPEC_ARGS_MAX = 3,
	SPEC_TERMS_MAX = 32,       /* of mask, score and blocks together */
	SPEC_TEXT_MAX = 4096,      /* bytes of all expressions together */
	SPEC_INPUTS_MAX = 12,
	INPUT_NAME_MAX = 32,
	INPUT_DIMS_MAX = 4,
	BLOCK_ROWS_MAX = 256,      /* rows, and columns, of a block layout that is written out */
	HEAD_DIM_MIN = 16,
	HEAD_DIM_MAX = 256,
	HEAD_DIM_STEP = 8,
	DROPOUT_LEVELS = 256 /* the keep probability is a multiple of 1/256 */
};

/* ---- named inputs: tensors that masks and scores read, given at launch with strides ---- */

enum input_dtype { INPUT_F32, INPUT_FP16, INPUT_BF16, INPUT_I32, INPUT_U8, INPUT_DTYPE_COUNT };
extern const char *const input_dtype_names[INPUT_DTYPE_COUNT + 1];
enum dim_kind { DIM_CONST, DIM_BATCH, DIM_HEADS, DIM_HEADS_KV, DIM_SEQ_Q, DIM_SEQ_K, DIM_BLOCKS_Q, DIM_BLOCKS_K, DIM_KIND_COUNT };
extern const char *const dim_names[DIM_KIND_COUNT]; /* "batch", "heads", ...; "" for DIM_CONST */
struct input_dim { enum dim_kind kind; int64_t size; /* of DIM_CONST */ };

struct input {
	char name[INPUT_NAME_MAX];
	enum input_dtype dtype;
	int dims;                            /* 0: one value for the launch */
	struct input_dim dim[INPUT_DIMS_MAX];
	bool grad;                           /* the backward pass writes its gradient, float32 */
	struct place place;
};

/* ---- masks, scores and block layouts: trees of terms in one flat table ---- */

enum arg_kind { ARG_INT, ARG_REAL, ARG_UNBOUNDED, ARG_TEXT };
struct term_arg {
	enum arg_kind kind;
	int64_t i;
	double f;
	int text;                            /* ARG_TEXT: offset in spec.text of an expression */
	struct place place;
};

enum term_kind {
	TERM_PRESET, /* a row of preset_table with its arguments */
	TERM_TEXT,   /* an expression */
	TERM_ALL,    /* every member must hold */
	TERM_ANY,    /* some member must hold */
	TERM_CHAIN   /* scores, applied one after the other: `s` of a member is the result of the one before */
};
struct term {
	enum term_kind kind;
	int preset;
	struct term_arg arg[SPEC_ARGS_MAX];  /* in the preset's parameter order */
	int text;                            /* TERM_TEXT: offset in spec.text */
	int child, next;                     /* first member, and next member of the same parent; -1: none */
	struct place place;                  /* of the first byte of the expression, or of the word */
};

/* ---- block-sparse layouts: a second source of tile classes, combined with the mask ---- */

enum blocks_source {
	BLOCKS_NONE,
	BLOCKS_KEEP,   /* a term over block coordinates: q, k count blocks, sq, sk are the numbers of blocks */
	BLOCKS_ROWS,   /* written out: block_rows; what lies outside is hidden */
	BLOCKS_BITMAP, /* at launch: input "blocks", u8 [batch, heads, blocks_q, blocks_k], not 0: kept */
	BLOCKS_LISTS   /* at launch: "block_count" i32 [batch, heads, blocks_q], "block_index" i32 [.., blocks_k]: ids of kept key
	                  blocks; ids outside are ignored */
};
struct blocks {
	enum blocks_source source;
	int size_q, size_k;                  /* positions of a block: multiples of 16 */
	int keep;                            /* BLOCKS_KEEP: term */
	int rows, columns;                   /* BLOCKS_ROWS */
};

struct tile_request { /* all zero: auto */
	int m, n;      /* query rows, keys */
	int warps;     /* 0: planner's choice */
	int stages;    /* 0: planner's choice */
	int splits;    /* parts of a query tile's keys, backward of a key tile's queries; 0: planner's choice */
	int heads;     /* query heads that share a tile; 0: planner's choice */
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
	enum batch_layout layout;
	int mask;                                  /* term; -1: every key is visible */
	int score;                                 /* term; -1: the scaled dot product as it is */
	struct blocks blocks;
	uint64_t block_rows[BLOCK_ROWS_MAX][BLOCK_ROWS_MAX / 64]; /* BLOCKS_ROWS: bit k of row q */
	bool sink;                                 /* a learned logit for each head, input "sink", joins the softmax */
	int term_count, text_len, input_count;
	struct term term[SPEC_TERMS_MAX];
	char text[SPEC_TEXT_MAX];                  /* NUL-terminated expressions, one after the other */
	struct input input[SPEC_INPUTS_MAX];       /* those written under `inputs`, then those that presets bring */
	double dropout;                            /* as asked, 0 <= p < 1 */
	int keep_256;                              /* round(256 (1-p)), 1..256; 256: no dropout */
	double softmax_scale;                      /* > 0; 1/sqrt(head_dim_qk) by default */
	int kv_group;                              /* query heads per key/value head; 0: any, taken at launch */
	unsigned outputs;                          /* set of enum output */
	bool passes[PASS_COUNT];
	bool deterministic;                        /* the backward pass adds no floats in an order of chance */
	bool running_maximum;                      /* the forward pass does not speculate */
	struct problem assume;                     /* the problem to plan for */
	struct tile_request tile[PASS_COUNT];
	bool targets[TARGET_COUNT];                /* rows of target_table */
	struct place place[KEY_COUNT];             /* where each key was written */
};
int spec_input_find(const struct spec *, const char *name); /* -1: none */
bool dim_is_sequence(enum dim_kind);
/* Packed, a dimension of batch entries beside one of positions: those are numbered over all entries, so it has one entry. */
bool dim_is_joined(enum batch_layout, const struct input *, int dim);

/* Parses `len` bytes of YAML. All errors of the file are reported in one go, *spec is untouched then.
 * `file` is the name used in messages; diag->file and diag->source stay set for later stages. */
int MUST_USE spec_parse(struct spec *, const char *yaml, size_t len, const char *file, struct diag *);
/* The same, from a file of at most 1 MiB. */
int MUST_USE spec_load(struct spec *, const char *path, struct diag *);
void spec_print(struct text *, const struct spec *);      /* valid YAML, every key written out: parses back to the same spec */
/* One line of YAML: the keys that decide how fast kernels of a pass can be and are not as by default. Equal for equal attention. */
void spec_canonical(struct text *, const struct spec *, enum pass);
void spec_reference(struct text *);                       /* `fagen -h spec`, from the table */
void spec_schema(struct text *);                          /* JSON schema, from the table */
void spec_starter(struct text *);                         /* `fagen init`: a commented spec that parses */

/* ---- preset.c: the named masks, scores and layouts, each one definition in the expression language ------------- */

enum preset_kind { PRESET_MASK, PRESET_SCORE, PRESET_BLOCKS };
extern const char *const preset_kind_names[]; /* "mask", "score", "layout" */
struct preset_param {
	const char *name;
	bool real;
	double low, high;     /* an argument that is a number lies between, both included */
	const char *fallback; /* NULL: must be given */
	const char *doc;
};
struct preset {
	const char *name;
	enum preset_kind kind;
	struct preset_param param[SPEC_ARGS_MAX]; /* name NULL after the last */
	const char *definition;            /* expression over b h q k sq sk hq hk (s), the parameters and the preset's input */
	struct input input;                /* name "": reads none; declared unless the spec declares that name itself */
	const char *doc;
};
extern const struct preset preset_table[];
extern const int preset_count;
int preset_find(const char *name); /* -1: none */
int preset_params(const struct preset *);

/* ---- expr.c: typed expressions in a flat pool ------------------------------------------------------------------- */

enum expr_type { TYPE_BOOL, TYPE_INT, TYPE_FLOAT };

enum expr_op {
	EXPR_CONST,                                            /* value in i (bool, int) or f (float) */
	EXPR_NAME,                                             /* i is an enum expr_name */
	EXPR_INPUT,                                            /* element of input i; arg: one int index for each dimension. int or float */
	EXPR_NEG, EXPR_ABS, EXPR_NOT,
	EXPR_ADD, EXPR_SUB, EXPR_MUL, EXPR_DIV, EXPR_MOD,      /* int division and remainder round toward minus infinity */
	EXPR_MIN, EXPR_MAX,
	EXPR_LT, EXPR_LE, EXPR_EQ, EXPR_NE,                    /* > and >= are LT and LE with the sides exchanged */
	EXPR_AND, EXPR_OR,
	EXPR_SELECT,                                           /* a ? b : c */
	EXPR_FLOAT,                                            /* int to float; written by the parser where the two kinds meet */
	EXPR_FLOOR,                                            /* float to int, toward minus infinity */
	EXPR_EXP, EXPR_LOG, EXPR_TANH, EXPR_SQRT, EXPR_SIGMOID,/* float to float */
	EXPR_RANDOM                                            /* random(seed, x, y): 0..65535, a fixed hash of three ints */
};

enum expr_name { NAME_B, NAME_H, NAME_Q, NAME_K, NAME_SQ, NAME_SK, NAME_HQ, NAME_HK, NAME_S, NAME_COUNT };
extern const char *const expr_names[NAME_COUNT];

enum { EXPR_ARGS_MAX = 4, EXPR_NODES_MAX = 512, EXPR_PARSED_MAX = 256, EXPR_DEPTH_MAX = 64 };

struct expr_node {
	enum expr_op op;
	enum expr_type type;
	int arg[EXPR_ARGS_MAX]; /* indexes into the pool, -1 unused */
	int64_t i;
	double f;
};

struct expr_pool {
	int count;
	struct expr_node node[EXPR_NODES_MAX]; /* arguments come before their users; equal nodes are shared */
};

/* What an expression may speak of beside the built-in names. Names of presets stand for their definitions, with arguments
 * in parentheses when they have parameters: `causal || k < 4`, `window(4095, 0) && document`. */
struct expr_binding { const char *name; int node; };
struct expr_scope {
	enum preset_kind kind;              /* s is a name only in scores */
	const struct input *input;
	int inputs;
	const struct expr_binding *binding; /* a preset's parameters */
	int bindings;
	int s;                              /* node that `s` stands for; -1: the variable itself */
};

/* Each adds a folded, shared node and returns its index, or -1 when an argument is -1, the pool is full or the types are
 * wrong. Int and float meet in EXPR_FLOAT, which expr_make adds. The right side of an int DIV or MOD must be above zero for
 * every position: a positive constant, or what expr_interval proves. */
int expr_const_int(struct expr_pool *, int64_t);
int expr_const_bool(struct expr_pool *, bool);
int expr_const_float(struct expr_pool *, double);
int expr_variable(struct expr_pool *, enum expr_name);
int expr_input(struct expr_pool *, int input, enum expr_type, const int *index, int dims);
int expr_make(struct expr_pool *, enum expr_op, int a, int b, int c);
/* Parses one expression; returns its root or -1. Precedence as in C. `at` is where the text stands in the spec. */
int expr_parse(struct expr_pool *, const char *text, const struct expr_scope *, struct place at, struct diag *);
/* Which presets a text names; says nothing about whether it parses. used[] has preset_count entries. */
void expr_presets(bool *used, const char *text);
/* d root / d at, for a float root; `at` is any float node (the variable s, an input's element). Shares subexpressions with
 * root. At ties abs takes 0, min and max the first operand in canonical order; floor and conditions have derivative 0. -1:
 * the pool is full. */
int expr_derive(struct expr_pool *, int root, int at);
void expr_print(struct text *, const struct expr_pool *, int root, const struct input *);  /* canonical text: parses to the same node */

/* Exact value at one point, where no step leaves 64 bits: value[] is indexed by enum expr_name; inputs are asked for their
 * elements. For tests, static layouts and small tables. Floats in double. */
struct expr_value { int64_t i; double f; };
typedef struct expr_value expr_input_reader(void *context, int input, const int64_t *index);
struct expr_value expr_eval(const struct expr_pool *, int root, const int64_t value[NAME_COUNT], double s,
                            expr_input_reader *, void *context);
/* The same of a pool that expr_copy filled with this expression alone, which reads neither s nor inputs. */
struct expr_value expr_eval_all(const struct expr_pool *, int root, const int64_t value[NAME_COUNT]);

/* ---- lower.c: what was derived from the expressions ------------------------------------------------------------ */

/* q*Q + k*K + sq*SQ + sk*SK + constant >= 0, with q and k in {-1, 0, 1} */
struct bound { int q, k, sq, sk; int64_t constant; };

enum { BOUNDS_MAX = 16, RUNS_MAX = 4, ACCESSES_MAX = 16, CONJUNCTS_MAX = 16 };

struct run { int count; struct bound bound[BOUNDS_MAX]; }; /* all hold */

/* Where the element that an access reads is the same for many cells, and so where a kernel keeps it. */
enum access_place {
	AT_HEAD,   /* depends on b, h alone: one value for a head */
	AT_ROW,    /* and on q: TILE_M values for a tile */
	AT_COL,    /* and on k: TILE_N values */
	AT_DIAG,   /* on q and k through q - k alone: TILE_M + TILE_N values */
	AT_TABLE,  /* on q and k in other ways, but the whole table of a head fits: constant dimensions, TABLE_MAX elements */
	AT_CELL,   /* anything else: a dense tile, gathered */
	ACCESS_PLACE_COUNT
};
extern const char *const access_place_names[ACCESS_PLACE_COUNT];
enum { TABLE_MAX = 2048 };

struct access {
	int input;                  /* of the spec */
	int node;                   /* its EXPR_INPUT node */
	enum access_place place;
	bool in_mask, in_score, in_sink;
	bool proven[INPUT_DIMS_MAX];/* the index is inside the dimension for every shape; else the emitted code clamps it */
	int bounds;                 /* AT_ROW, AT_COL ints that classes of tiles depend on: slot of minima and maxima in the
	                               workspace, counted for rows and columns apart; -1: none */
	int grad;                   /* float node d score / d element; -1: not asked for */
};

/* How a conjunct of the mask is decided for a tile. */
enum decided { DECIDED_CLOSED, DECIDED_SCAN, DECIDED_NEVER };
struct conjunct { int node; enum decided how; int because; /* DECIDED_NEVER: the node that cannot be bounded */ };

struct program {
	struct expr_pool pool;
	int mask;                        /* boolean root; the constant true when nothing is hidden */
	int run_count;                   /* 1..RUNS_MAX; a cell is visible exactly when all bounds of some run hold, */
	struct run run[RUNS_MAX];
	int residual;                    /* and this: boolean; constant true if none */
	int conjunct_count;
	struct conjunct conjunct[CONJUNCTS_MAX];
	int score;                       /* float root over s, the scaled dot product; natural logit */
	int score_ds;                    /* d score / d s */
	bool score_identity;             /* the score is s itself */
	double logit_bound;              /* |score| never exceeds it; INFINITY: unknown */
	int sink;                        /* float root over b, h (input "sink"); -1: none */
	enum blocks_source blocks;
	int block_q, block_k;            /* 0: no layout */
	int block_keep;                  /* BLOCKS_KEEP: boolean root over block coordinates */
	bool scan;                       /* classes come from tile_class, not from the runs alone */
	int access_count;
	struct access access[ACCESSES_MAX];
	int bounds_rows, bounds_cols;    /* slots of minima and maxima */
	bool grads;                      /* some access has a gradient, or the sink has */
};

int MUST_USE program_lower(struct program *, const struct spec *, struct diag *);
/* The same for any mask over b h q k sq sk hq hk, without inputs. Refused: what may leave 64 bits at some position. */
int MUST_USE program_lower_mask(struct program *, const struct expr_pool *, int mask, struct diag *);
void program_print(struct text *, const struct program *, const struct spec *);

/* Some scores have a form for multiply-adds only, score_short of the emitted source. How far from 0 the base-2 logits may be for which it
 * is right, to 2^-19.5 of them; 0: this score has none. */
double program_short_logit(const struct spec *, const struct program *);

/* What positions add to a score beside what s and small tables of elements do. */
enum lift {
	LIFT_NONE,   /* nothing: the logits of a row differ as s and the tables do */
	LIFT_KNOWN,  /* over any interval of keys it is greatest at the first, at the last, or at score_turn of the emitted source */
	LIFT_UNKNOWN /* something else: of a form that is not known, or whatever an input has for a key */
};
enum lift program_lift(const struct spec *, const struct program *);

enum tile_class { TILE_EMPTY, TILE_PARTIAL, TILE_FULL };
/* Class of the cells [q0,q1) x [k0,k1) by interval analysis, inputs unknown. Sound: never calls a tile with a visible cell
 * empty, never calls a tile with a hidden cell full; cells past the lengths are hidden. */
enum tile_class program_tile_class(const struct program *, const struct spec *, int64_t sq, int64_t sk, int64_t q0, int64_t q1, int64_t k0, int64_t k1);

/* Of one run: the range [begin, end) of positions that a tile can see, and [full_begin, full_end) inside it where the
 * bounds need no test. The keys of rows [q0, q1): rows past sq do not count. The rows of keys [k0, k1): none is full when
 * a key is past sk. */
struct range { int64_t begin, end, full_begin, full_end; };
struct range program_key_range(const struct program *, int run, int64_t sq, int64_t sk, int64_t q0, int64_t q1);
struct range program_query_range(const struct program *, int run, int64_t sq, int64_t sk, int64_t k0, int64_t k1);

/* Bytes of shared memory that one buffer of each kind of staged input takes (structs HeadInputs, RowInputs, ColInputs,
 * CellInputs of the emitted source); 0: nothing of that kind. */
struct staging { int head, row, col, cell; };
struct staging program_staging(const struct program *, const struct spec *, int tile_m, int tile_n);

/* ---- wisdom.c, wisdom_text.c: which tile was measured to be the fastest ------------------------------------------- */

enum { WISDOM_TILE_MAX = RECIPE_NAME_MAX + 48 };

struct tile_choice { char templ[RECIPE_NAME_MAX]; struct tile_request tile; }; /* "sm90/fwd 128x128 w12 s2" */

struct tuned { /* what a measurement found */
	struct tile_choice tile, planner; /* the fastest, and what the planner chose by itself */
	int64_t ns, planner_ns;           /* of a launch of either, nanoseconds */
	int noise;                        /* a thousandth of ns each: how far rounds were from ns, in the median */
	int rounds;                       /* in which all were timed by turns */
};

struct wisdom_entry { /* one line of a file */
	enum pass pass;
	char gpu[DEVICE_NAME_MAX];        /* as the planner calls it, and its SMs: the GPU class */
	int sms;
	struct problem problem;           /* a problem_class */
	char *spec;                       /* spec_canonical; owned */
	struct tuned tuned;
};

/* Lines in the order of their keys: all but `tuned`, each once. All zero: none. Given to the planner, never looked for. */
struct wisdom { int count, room; struct wisdom_entry *entry; };

void wisdom_free(struct wisdom *);
/* Adds a line; entry->spec is copied. Of two with one key the one of more rounds stays, then the faster: in whatever order lines
 * come, and however often, the result is the same. -1: out of memory. */
int MUST_USE wisdom_add(struct wisdom *, const struct wisdom_entry *);
int MUST_USE wisdom_merge(struct wisdom *, const struct wisdom *from);
/* The key of an entry: all but `tuned`. entry->spec is the caller's to free. */
void wisdom_key(struct wisdom_entry *, const struct spec *, const struct device *, const struct problem *, enum pass);
/* NULL: none. */
const struct wisdom_entry *wisdom_find(const struct wisdom *, const struct wisdom_entry *key);
/* Merges the lines of a text or a file into what is there: all of them, or none and an error. */
int MUST_USE wisdom_parse(struct wisdom *, const char *text, size_t len, const char *file, struct diag *);
int MUST_USE wisdom_load(struct wisdom *, const char *path, struct diag *);
void wisdom_print(struct text *, const struct wisdom *); /* reads back as it was */
void tile_choice_print(char to[WISDOM_TILE_MAX], const struct tile_choice *);

/* ---- plan.c: what was decided, for one pass on one device ------------------------------------------------------- */

enum {
	CANDIDATES_MAX = 96,
	OTHERS_MAX = 2,
	SMEM_TERMS_MAX = 16,
	REASON_MAX = 120
};

struct smem_term { char name[16]; int bytes; };

/* Time of each overlapping resource, microseconds. Those of the SM hide only partly behind each other: together they may
 * take longer than the slowest memory, and then the slowest of them bounds the kernel. */
enum cost_term { COST_MMA, COST_EXP, COST_ALU, COST_SMEM, COST_L2, COST_HBM, COST_COUNT };
extern const char *const cost_names[COST_COUNT];

struct candidate {
	int tile_m, tile_n, warps, stages;
	int splits;               /* parts of an owned tile's visits, each an item of its own, which another kernel joins; 1: none */
	bool may_cut;             /* false: where cutting costs something and the plan's problem would not be cut */
	bool cut;                 /* the last tiles of a launch are cut into parts, where its shape wants it */
	int heads;                /* query heads of a group that share a query tile; 1: a tile has one */
	int positions;            /* of each of them: tile_m over the power of two that has room for them */
	int walk_warps;           /* those of them that walk the tiles */
	bool speculate;           /* softmax of long rows against references that never rise, checked at the end */
	enum dquery_sums {        /* backward: how dQ comes about, as templates/contract.h has it */
		DQUERY_APART, DQUERY_CLEARED, DQUERY_CLAIMED, DQUERY_ORDERED
	} sums;
	bool alike;               /* all items visit as many tiles, whatever the data say */
	bool queue;               /* persistent CTAs take work from a queue, for who knows how long it takes */
	bool order;               /* another kernel sorts the items of the main one, longest first, where there are more than run at a time */
	int ctas_wanted;          /* CTAs that an SM is to hold, each with that part of its registers; 1: as many as there is room for; 0: likewise, and ptxas
	                           * may save registers for more of them */
	bool out_staged;          /* there is shared memory for O on its way out: for a few rows of each warp */
	bool out_whole;           /* instead for all of a tile's, which other warps store */
	double overlap;           /* exponent of the norm that joins the on-chip terms: 1, nothing overlaps; 0: by warps and CTAs, .. */
	double hides_more;        /* .. and by so much more */
	double visit_clocks, item_clocks; /* of an SM, that nothing overlaps: of a visited tile, of one that a CTA owns */
	double wait_clocks;       /* that bringing a visit's inputs takes whoever does it: the warps that compute, or others beside them */
	bool input_grads;         /* another kernel visits the tiles once more, for gradients of inputs; beside its products a visit is */
	double grad_clocks, grad_wait; /* so many clocks of an SM, and so many that only other CTAs of the SM fill */
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
	int heads_most;                /* query heads of a group that may share a tile; 0: the template knows nothing of it */
	char heads_apart[REASON_MAX];  /* why no more than 1 */
	int other_count;               /* templates that would serve too, or cannot */
	struct other_template {
		char templ[RECIPE_NAME_MAX];
		double time_us;            /* predicted for its best tile */
		char reason[REASON_MAX];   /* why it cannot; empty: it can */
	} other[OTHERS_MAX];
	enum tuning {
		TUNING_OFF,            /* no wisdom was given, or the spec names a tile */
		TUNING_MISSING,        /* it has no line for this */
		TUNING_STALE,          /* its tile is none of today's candidates: the planner chose */
		TUNING_USED
	} tuning;
	struct tuned tuned;            /* of TUNING_STALE and TUNING_USED */
	double standard_bytes;         /* HBM bytes of standard attention, scores in memory (the naive kernels) */
	double useful_flop;            /* of the visible cells alone: what TFLOP/s are counted from */
	struct recipe recipe;
};

int MUST_USE plan_make(struct plan *, const struct spec *, const struct program *, const struct target *,
                       const struct device *, const struct problem *, enum pass, struct diag *);
/* The same with the tile that was measured to be the fastest where the wisdom, which may be NULL, has one. */
int MUST_USE plan_tuned(struct plan *, const struct wisdom *, const struct spec *, const struct program *,
                        const struct target *, const struct device *, const struct problem *, enum pass, struct diag *);
/* The plan of the naive kernels: the same recipe shape, no search. */
int MUST_USE plan_naive(struct plan *, const struct spec *, const struct program *, const struct target *,
                        const struct device *, const struct problem *, enum pass, struct diag *);
/* What a spec writes to get this candidate again. */
struct tile_request candidate_request(const struct candidate *);
/* Of admissible candidates whose tiles several heads share, or of the others, the fastest; of equals the first enumerated. Rounding must
 * not decide, so a later one has to be clearly faster. -1: none. */
int candidate_fastest(const struct plan *, bool shared);
void plan_print(struct text *, const struct plan *);      /* `fagen explain` and -d p */
void plan_json(struct text *, const struct plan *);

/* ---- emit.c: one flat, self-contained, deterministic .cu text -------------------------------------------------- */

/* Appends the source. `templates_dir` NULL: the templates embedded at build time; else files of that folder. */
int MUST_USE source_emit(struct text *, const struct spec *, const struct program *, const struct plan *,
                         const char *templates_dir, struct diag *);
/* The part of the source that is derived from the program (ranges, classes, staged inputs, mask, score), alone: what
 * tests compile for the host. */
void source_program(struct text *, const struct spec *, const struct program *);

#endif
