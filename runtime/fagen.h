/* fagen: exact attention, compiled for your GPU from a YAML spec. The public interface of libfagen.
 *
 *   fagen_open -> fagen_spec_load -> fagen_kernel_get -> fagen_forward / fagen_backward
 *
 * Contracts
 *   Results     Every call returns FAGEN_OK or an error code, and explains itself in the caller's fagen_error (which may
 *               be NULL). On error, outputs are untouched. The library never prints, exits, aborts on outside input,
 *               installs handlers or changes the environment.
 *   Threads     Every function may be called from any thread. fagen_kernel_get locks; fagen_forward and fagen_backward
 *               take no lock, allocate nothing, and may be captured into a CUDA graph.
 *   CUDA        libcuda.so.1 and NVRTC are opened with dlopen on first need. The library works in the context that is
 *               current, or in the device's primary context when none is, and leaves the current context as it was.
 *   Structs     Set struct_size to sizeof the struct as you compiled it; fields you do not know of are zero. Zero is
 *               the default of every field.
 *               An fagen_error without struct_size is left as it is.
 *   fork        A CUDA context does not survive fork: fork before the first fagen_kernel_get, or start the child as a
 *               new program. A child that uses a started runtime gets FAGEN_ERROR_DRIVER; it may close it. */
#ifndef FAGEN_H
#define FAGEN_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define FAGEN_API __attribute__((visibility("default")))
#else
#define FAGEN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fagen_runtime fagen_runtime; /* caches, compiler, driver; owns its specs and kernels */
typedef struct fagen_spec fagen_spec;       /* immutable once loaded; lives until fagen_close */
typedef struct fagen_kernel fagen_kernel;   /* immutable once returned; lives until fagen_close */
typedef struct fagen_merger fagen_merger;   /* immutable once returned; lives until fagen_close */
typedef struct fagen_pack fagen_pack;       /* immutable once opened; lives until fagen_close */
typedef void *fagen_stream;                 /* a CUstream or cudaStream_t; NULL is the default stream */

enum {
	FAGEN_OK = 0,
	FAGEN_ERROR_SPEC = 1,        /* the spec or the request is wrong: line, column, field say where */
	FAGEN_ERROR_INVALID = 2,     /* an argument is wrong: field names it */
	FAGEN_ERROR_COMPILER = 3,    /* NVRTC is missing, or refused the source: nvrtc_result */
	FAGEN_ERROR_DRIVER = 4,      /* no driver, no such device, or a driver call failed: cuda_result */
	FAGEN_ERROR_MEMORY = 5,      /* out of host memory */
	FAGEN_ERROR_PACK = 6         /* a pack is none, is damaged, or lacks what was asked for */
};

typedef struct fagen_error {
	uint32_t struct_size;
	int32_t code;                /* FAGEN_ERROR_* */
	int32_t cuda_result;         /* CUresult of the failing driver call, or 0 */
	int32_t nvrtc_result;        /* nvrtcResult of the failing compilation, or 0 */
	int32_t line, column;        /* in the spec, from 1; 0 if not about a place */
	char field[64];              /* the spec key or struct member at fault, "" if none */
	char message[2048];          /* complete sentences: what was found, what is accepted */
} fagen_error;

typedef struct fagen_config {
	uint32_t struct_size;
	int32_t ignore_env;          /* nonzero: no FAGEN_* variable is read */
	const char *cache_dir;       /* NULL: $FAGEN_CACHE_DIR, $XDG_CACHE_HOME/fagen, ~/.cache/fagen; "": no disk */
	const char *nvrtc_path;      /* NULL: $FAGEN_NVRTC, already loaded, CUDA_HOME, CUDA_PATH, loader path; "": never compile */
	const char *templates_dir;   /* NULL: $FAGEN_TEMPLATES, else the templates built in */
	const char *wisdom_path;     /* file of measured tiles, as `fagen tune` writes it, which the planner then prefers to its own
	                                choice. Read by fagen_open alone. NULL or "": none; no variable names one */
} fagen_config;

/* A class of shapes. A kernel got for one problem runs every shape of the class: lengths, batch and head counts are
 * taken at launch; only `align` (and a kv_group written in the spec) are compiled in. The numbers steer the planner. */
typedef struct fagen_problem {
	uint32_t struct_size;
	int32_t align;               /* 16: data and strides are multiples of 16 bytes; 2: any. 0: as the spec assumes */
	int64_t batch, heads_q, heads_kv, seqlen_q, seqlen_k; /* 0: as the spec assumes */
} fagen_problem;

/* A tensor [batch][head][seq][dim] on the device. Strides count elements and may be anything, negative and zero
 * included for inputs (with align 16 a kernel may refuse negative ones, and say so); dim has stride 1. Strides of
 * dimensions of size 1 are ignored. In a packed layout it is [total][head][dim]: stride_seq leads from one row of the
 * total to the next, stride_batch is ignored. */
typedef struct fagen_tensor {
	void *data;
	int64_t stride_batch, stride_head, stride_seq;
} fagen_tensor;

/* One named input of the spec, on the device: of the dtype and the dimensions that the spec says, named as there. Strides
 * count elements, one for each dimension in the spec's order; they may be anything, 0 and negative included. That of a
 * dimension of size 1 is ignored. */
typedef struct fagen_input {
	const char *name;
	const void *data;            /* aligned to its element */
	int64_t stride[4];
	void *grad;                  /* backward only, written: float32 of the same dimensions, for inputs with grad: true;
	                                NULL: not computed (as it must be for the naive kernels) */
	int64_t grad_stride[4];      /* entries may not overlap */
} fagen_input;

typedef struct fagen_args {
	uint32_t struct_size;
	uint32_t reserved;
	int64_t batch, heads_q, heads_kv, seqlen_q, seqlen_k;
	fagen_tensor query;          /* [batch][heads_q][seqlen_q][head_dim qk] */
	fagen_tensor key;            /* [batch][heads_kv][seqlen_k][head_dim qk] */
	fagen_tensor value;          /* [batch][heads_kv][seqlen_k][head_dim v] */
	fagen_tensor out;            /* [batch][heads_q][seqlen_q][head_dim v]; written by forward, read by backward */
	fagen_tensor lse;            /* float32 [batch][head][seq], natural log; written by forward if asked, read by backward */
	fagen_tensor dout;           /* backward only, as out */
	fagen_tensor dlse;           /* backward only, as lse; data NULL: no gradient of lse */
	fagen_tensor dquery, dkey, dvalue; /* backward only, written */
	uint64_t seed;               /* dropout: the Philox key */
	uint64_t offset;             /* dropout: part of the counter; use a new one for each call */
	const uint64_t *rng_state;   /* device memory {seed, offset} instead, for CUDA graphs; NULL: the two above */
	void *workspace;             /* device memory, 256-byte aligned; contents undefined before and after */
	size_t workspace_size;       /* at least fagen_workspace_size */
	const fagen_input *inputs;   /* every input that the spec declares, each once, in any order; host memory */
	size_t input_count;
	/* Layouts padded and packed (the spec's `layout`): int32 in device memory, one for each batch entry: how many of the
	 * positions it has are used, from the first on; brought into range. NULL: all of them. In rows past that out is
	 * written 0, lse -inf and gradients 0; inputs are not read there. */
	const int32_t *seqlens_q, *seqlens_k;
	/* Packed only: int32 [batch + 1] in device memory, ascending from 0 or more to at most the total: entry b has the
	 * rows cu_seqlens[b] .. cu_seqlens[b + 1] - 1. Rows behind the last entry are not written and reach no result. seqlen_q and
	 * seqlen_k above are the lengths of the longest entries, or more. */
	const int32_t *cu_seqlens_q, *cu_seqlens_k;
	int64_t total_q, total_k;    /* packed only: rows of the tensors of queries, of keys */
} fagen_args;

typedef struct fagen_kernel_info {
	uint32_t struct_size;
	int32_t forward, backward;   /* nonzero: has this pass */
	char target[16];             /* "sm_90a" */
	char source[2][16];          /* where the cubin of forward, backward came from: "cache", "compiled", "pack" */
	int32_t registers[2];        /* most of any kernel of the pass */
	int32_t spill_bytes[2];
	int32_t smem_bytes[2];
	int32_t tile_m[2], tile_n[2];
} fagen_kernel_info;

enum { FAGEN_BF16 = 0, FAGEN_FP16 = 1, FAGEN_FLOAT32 = 2, FAGEN_INT32 = 3, FAGEN_UINT8 = 4 };
enum { FAGEN_DENSE = 0, FAGEN_PADDED = 1, FAGEN_PACKED = 2 };
enum {
	FAGEN_DIM_NUMBER = 0,        /* of the size that the spec says */
	FAGEN_DIM_BATCH = 1,
	FAGEN_DIM_HEADS = 2,
	FAGEN_DIM_HEADS_KV = 3,
	FAGEN_DIM_SEQ_Q = 4,
	FAGEN_DIM_SEQ_K = 5,
	FAGEN_DIM_BLOCKS_Q = 6,
	FAGEN_DIM_BLOCKS_K = 7
};

typedef struct fagen_spec_info {
	uint32_t struct_size;
	int32_t head_dim_qk, head_dim_v;
	int32_t dtype;               /* FAGEN_BF16, FAGEN_FP16 */
	int32_t layout;              /* FAGEN_DENSE ... */
	int32_t kv_group;            /* query heads per key/value head; 0: any */
	int32_t backward;            /* nonzero: has this pass */
	int32_t lse;                 /* nonzero: forward writes it */
	int32_t block_q, block_k;    /* positions of a block of the layout; 0: the spec has none */
	double dropout;              /* as it is done: in steps of 1/256 */
	size_t input_count;
} fagen_spec_info;

typedef struct fagen_input_info { /* what a fagen_input must be */
	uint32_t struct_size;
	int32_t dtype;               /* FAGEN_BF16 ... */
	int32_t grad;                /* nonzero: backward writes its gradient when asked */
	int32_t dims;
	char name[32];
	int32_t dim[4];              /* FAGEN_DIM_* */
	int64_t size[4];             /* of FAGEN_DIM_NUMBER */
} fagen_input_info;

FAGEN_API const char *fagen_version(void);

/* Makes no CUDA call and writes nothing. config NULL: all defaults. A file that $FAGEN_DEVICES names and that is none of
 * device rows is FAGEN_ERROR_INVALID, and so is a wisdom_path that is no file of wisdom. */
FAGEN_API int fagen_open(fagen_runtime **, const fagen_config *, fagen_error *);
/* Frees everything the runtime gave out. Kernels must not be running. NULL is ignored. */
FAGEN_API void fagen_close(fagen_runtime *);

FAGEN_API int fagen_spec_load(fagen_spec **, fagen_runtime *, const char *path, fagen_error *);
/* `name` is what messages call the text. */
FAGEN_API int fagen_spec_parse(fagen_spec **, fagen_runtime *, const char *yaml, size_t len, const char *name, fagen_error *);
/* What a spec says that its caller must know, and its inputs one by one: those that it declares, then those of its presets. */
FAGEN_API int fagen_spec_describe(fagen_spec_info *, const fagen_spec *, fagen_error *);
FAGEN_API int fagen_spec_input(fagen_input_info *, const fagen_spec *, size_t index, fagen_error *);

/* Plans, compiles or fetches from the cache, and loads every kernel of the spec's passes for a CUDA device ordinal.
 * A second call for the same class returns the same kernel. problem NULL: as the spec assumes.
 * Not for use while a stream of this thread is being captured: get kernels first. */
FAGEN_API int fagen_kernel_get(fagen_kernel **, fagen_runtime *, const fagen_spec *, const fagen_problem *, int device, fagen_error *);
/* The naive three-kernel attention of the same spec: float32 scores in device memory. The comparator and reference. */
FAGEN_API int fagen_kernel_get_naive(fagen_kernel **, fagen_runtime *, const fagen_spec *, const fagen_problem *, int device, fagen_error *);
FAGEN_API int fagen_kernel_describe(fagen_kernel_info *, const fagen_kernel *, fagen_error *);

/* Bytes of workspace that a launch with these shapes needs (forward and backward: the larger). Pure. */
FAGEN_API int fagen_workspace_size(size_t *, const fagen_kernel *, const fagen_args *, fagen_error *);

/* out (and lse) from query, key, value. Asynchronous on the stream. */
FAGEN_API int fagen_forward(const fagen_kernel *, const fagen_args *, fagen_stream, fagen_error *);
/* dquery, dkey, dvalue (and gradients of inputs) from query, key, value, out, lse, dout (and dlse). Asynchronous on the
 * stream.
 * Needs the seed and offset of the forward pass. */
FAGEN_API int fagen_backward(const fagen_kernel *, const fagen_args *, fagen_stream, fagen_error *);

/* ---- merging: what ring attention and split keys need ----
 *
 * Two results (O_a, LSE_a) and (O_b, LSE_b) of the same queries over keys that have nothing in common become the result
 * over all of them:
 *   LSE = log(e^LSE_a + e^LSE_b),   O = e^(LSE_a - LSE) O_a + e^(LSE_b - LSE) O_b.
 * LSE is what a kernel with outputs: [out, lse] writes. Where it is -inf a part saw no key: its O is not looked at, and where
 * both are -inf, O = 0 and LSE = -inf. More parts are merged one after the other. No spec is involved: one merger serves
 * every type and shape. */

typedef struct fagen_merge_args {
	uint32_t struct_size;
	int32_t dtype, dtype_a, dtype_b; /* FAGEN_BF16 ...: of out, out_a, out_b and their gradients; float32 loses nothing
	                                    between merges */
	int64_t batch, heads, seqlen, head_dim;
	fagen_tensor out_a, out_b;       /* [batch][heads][seqlen][head_dim] */
	fagen_tensor lse_a, lse_b;       /* float32 [batch][heads][seqlen], natural log */
	fagen_tensor out;                /* forward only, written; may be out_a or out_b, of the same type and strides */
	fagen_tensor lse;                /* forward only, written; data NULL: not wanted. May be lse_a or lse_b */
	fagen_tensor dout;               /* backward only, as out */
	fagen_tensor dlse;               /* backward only, as lse; data NULL: no gradient of lse */
	fagen_tensor dout_a, dout_b;     /* backward only, written: as out_a, out_b */
	fagen_tensor dlse_a, dlse_b;     /* backward only, written: the dlse of the parts' own fagen_backward */
} fagen_merge_args;

/* Compiles or fetches from the cache, and loads the merger for a CUDA device ordinal. A second call returns the same one.
 * Not for use while a stream of this thread is being captured. */
FAGEN_API int fagen_merger_get(fagen_merger **, fagen_runtime *, int device, fagen_error *);
/* out (and lse) from out_a, lse_a, out_b, lse_b. Asynchronous on the stream; takes no lock, allocates nothing, may be
 * captured. Bitwise deterministic, and a row depends on nothing but its own two parts. */
FAGEN_API int fagen_merge(const fagen_merger *, const fagen_merge_args *, fagen_stream, fagen_error *);
/* dout_a, dlse_a, dout_b, dlse_b from out_a, lse_a, out_b, lse_b as they were before merging, and dout (and dlse):
 *   dO_a = w_a dO,   dLSE_a = w_a dLSE + w_a w_b dO . (O_a - O_b),   w = e^(LSE_part - LSE),   and with a and b exchanged.
 * Gradients of a part with LSE -inf are 0. */
FAGEN_API int fagen_merge_backward(const fagen_merger *, const fagen_merge_args *, fagen_stream, fagen_error *);

/* ---- packs: kernels built beforehand by `fagen pack build`, for programs without compiler and spec ----
 *
 * libfagen has them, and libfagen_rt has nothing else: fagen_version, fagen_open (the fields of its config mean nothing there),
 * fagen_close, the five below, fagen_kernel_describe, fagen_workspace_size, fagen_forward and fagen_backward.
 *
 * A pack finds kernels by the names of their specs. There is no search path: a program names its packs and asks each itself. */

typedef struct fagen_pack_info {
	uint32_t struct_size;
	int32_t names;               /* how many kernels it has, each for one or more targets */
	char version[32];            /* of the fagen that wrote it */
	char sha256[65];             /* of the whole pack, in hex: compare it to be sure which one it is */
} fagen_pack_info;

/* Maps the file, which must not change while it is open: put a new one in its place by renaming. Checks its head and index; each
 * kernel is checked when it is got. Makes no CUDA call. */
FAGEN_API int fagen_pack_open(fagen_pack **, fagen_runtime *, const char *path, fagen_error *);
/* The same, of bytes at a multiple of 8 that stay until fagen_close, as `fagen pack export --c-array` writes them. `name` is
 * what messages call it. */
FAGEN_API int fagen_pack_open_memory(fagen_pack **, fagen_runtime *, const void *bytes, size_t len, const char *name, fagen_error *);
FAGEN_API int fagen_pack_describe(fagen_pack_info *, const fagen_pack *, fagen_error *);
/* The i-th name in ascending order; NULL where there is none. Lives as long as the pack. */
FAGEN_API const char *fagen_pack_name(const fagen_pack *, int32_t i);
/* Loads the kernel of that name for a CUDA device ordinal: the best of its targets that runs there. A second call returns the
 * same kernel, and takes no lock. A launch takes what the spec that it was built from says.
 * Not for use while a stream of this thread is being captured. */
FAGEN_API int fagen_pack_kernel(fagen_kernel **, fagen_pack *, const char *name, int device, fagen_error *);

#ifdef __cplusplus
}
#endif

#endif
