/* recipe: how a cubin is launched. Written by the planner, stored with the cubin, read by the runtime, which needs
 * nothing else of gen/ to launch. A flat value; its text form is one line per kernel, workspace piece or tensor map. */
#ifndef FAGEN_GEN_RECIPE_H
#define FAGEN_GEN_RECIPE_H

#include <stdbool.h>
#include <stdint.h>

#include "gen/diag.h"
#include "gen/text.h"

enum { RECIPE_KERNELS_MAX = 12, RECIPE_PIECES_MAX = 10, RECIPE_MAPS_MAX = 4, RECIPE_PARTS_MAX = 64, RECIPE_HEADS_MAX = 16, RECIPE_NAME_MAX = 32 };

/* Packed, batch * ceil(seqlen / tile) in the rules below is total / tile + batch, room for the tiles of all entries, each begun
 * anew, and 0 when the total is 0; but not where it says "not packed". */
enum recipe_grid { /* number of CTAs, always launched as a one-dimensional grid */
	GRID_QUERY_TILES,    /* ceil(seqlen_q / tile) * heads_q * batch */
	GRID_QUERY_TILES_1,  /* the same, but at least 1: there is work without a query too */
	GRID_KEY_TILES,      /* ceil(seqlen_k / tile) * heads_kv * batch */
	GRID_KEY_TAILS,      /* the same, but one for each part of a tile that is cut: recipe_cut */
	GRID_KEY_TAILS_JOIN, /* `parts` for each key tile that is cut */
	GRID_KEY_TILES_Q,    /* ceil(seqlen_k / tile) * heads_q * batch */
	GRID_BOUNDS,         /* a warp for each query tile and for each key tile, of `keys`, of each query head */
	GRID_SCORES,         /* ceil(seqlen_q / tile) * ceil(seqlen_k / tile) * heads_q * batch; not packed */
	GRID_PERSISTENT,     /* as GRID_QUERY_TILES, for each part of a tile, but at most one CTA for each multiprocessor: they take turns */
	GRID_PERSISTENT_TAILS, /* likewise as GRID_QUERY_TILES, but for each part of a tile that is cut */
	GRID_PERSISTENT_KEY_TAILS, /* likewise of key tiles */
	GRID_TAILS_JOIN,      /* `parts` for each query tile that is cut */
	GRID_PERSISTENT_KEYS, /* likewise as GRID_KEY_TILES, for each part of a tile */
	GRID_PERSISTENT_PAIRS, /* twice GRID_KEY_TILES, clusters of two CTAs, which have a tile together; but at most one CTA for each multiprocessor,
	                        * and at least one cluster */
	GRID_PERSISTENT_2,    /* as GRID_PERSISTENT, but at most two CTAs for each multiprocessor, whose tiles are whole */
	GRID_ORDER_QUERIES,   /* of a kernel that sorts the items of another, the query tiles: a warp for each; 0 where no more than `beyond` are there for
	                       * each multiprocessor, which run at once, or where the longest see no more than ORDER_LENGTH keys: then the piece
	                       * "order" is nobody's, and its address 0 */
	GRID_ORDER_KEYS,      /* likewise for those of GRID_KEY_TILES, and query rows of all heads of a group */
	GRID_COUNT
};

/* Waiting for the longest of items that are no longer costs less than to sort them: 5 us, or 10 visits of a tile. */
enum { ORDER_LENGTH = 512 };

/* The last tiles of a launch are cut into parts, which have some of a tile's visits each, where that many more CTAs end sooner. */
struct recipe_tail {
	int visit;    /* keys, of key tiles query rows, of a visit; 0: nothing is cut */
	int resident; /* CTAs that run at once on a multiprocessor */
	int alike;    /* 1: all tiles have as many visits; 0: then they are cut only where they leave multiprocessors idle */
	int ends;     /* what beginning and ending a tile or a part takes, in visits */
	int join;     /* what joining the parts of a launch takes, in visits */
};

struct recipe_kernel {
	char entry[RECIPE_NAME_MAX]; /* extern "C" name in the cubin */
	enum recipe_grid grid;
	int tile;                    /* rows or keys of one CTA, the divisor of the grid rule */
	int threads;                 /* per CTA */
	int smem_bytes;              /* dynamic shared memory */
	int parts;                   /* GRID_PERSISTENT, GRID_PERSISTENT_KEYS: of a tile, which CTAs take one by one; 0: tiles are whole. GRID_TAILS_JOIN,
	                              * GRID_KEY_TAILS_JOIN: CTAs of a tile, at least 1 */
	int heads;                   /* GRID_PERSISTENT, GRID_ORDER_QUERIES: query heads of a group that share tiles, where heads_q counts above;
	                              * 0: each has its own */
	int beyond;                  /* GRID_ORDER_QUERIES, GRID_ORDER_KEYS: at least 1 */
	struct recipe_tail tail;     /* of the rules with tails in their names */
	int keys;                    /* GRID_BOUNDS: of a key tile */
};

enum recipe_size { /* bytes of a workspace piece */
	SIZE_ROWS,        /* 4 * batch * heads_q * round_up(seqlen_q, tile): one float per query row; not packed */
	SIZE_ROWS_QK,     /* 4 * batch * heads_q * ceil(seqlen_q / tile) * tile * unit: `unit` floats per query row */
	SIZE_SCORES,      /* 4 * batch * heads_q * seqlen_q * seqlen_k; not packed */
	SIZE_TILES_Q,     /* 4 * batch * heads_q * ceil(seqlen_q / tile) * unit: `unit` words per query tile */
	SIZE_TILES_K,     /* the same per key tile */
	SIZE_TILES_KV,    /* 4 * batch * heads_kv * ceil(seqlen_k / tile) * unit: the same per key tile of a key/value head */
	SIZE_TAILS_Q,     /* `unit` words for each part of a query tile that is cut */
	SIZE_TAILS_KV,    /* the same of a key tile */
	SIZE_BLOCKS,      /* batch * heads_q * ceil(seqlen_q / tile) * ceil(seqlen_k / unit): a byte per block; not packed */
	SIZE_LAUNCH,      /* 4 * unit: `unit` words, whatever the shape */
	SIZE_COUNT
};

struct recipe_piece {
	char name[RECIPE_NAME_MAX];  /* field of struct fagen_abi that receives its address */
	enum recipe_size size;
	int tile;                    /* rows are rounded up to a multiple of this, or of a tile or block */
	int unit;                    /* floats per row, words per tile or per launch, or keys of a block */
	int zeroed;                  /* 1: the runtime clears it on the stream before the first kernel */
	struct recipe_tail tail;     /* SIZE_TAILS_Q, SIZE_TAILS_KV */
};

/* A tensor map that the kernels take, of the operand of that name, whose boxes are `rows` rows of 64 elements; or those of so many
 * heads, a position's together. */
struct recipe_map {
	char name[RECIPE_NAME_MAX];  /* query, key, value or dout, each once */
	int rows;                    /* 1 to 256 */
	int heads;                   /* 2 to 16; 0: of one head, whose rows are the map's second dimension */
};

struct recipe {
	int kernel_count, piece_count, map_count;
	struct recipe_kernel kernel[RECIPE_KERNELS_MAX]; /* in launch order */
	struct recipe_piece piece[RECIPE_PIECES_MAX];    /* each starts at a multiple of 256 bytes */
	struct recipe_map map[RECIPE_MAPS_MAX];
	int load_bytes;  /* alignment the kernels rely on for every row: 16, or 2 (any) */
	int kv_group;    /* query heads per key/value head that was compiled in; 0: taken at launch */
};

/* Packed: entries have total_q and total_k rows together, and at most seqlen_q and seqlen_k each. */
struct recipe_shape {
	int64_t batch, heads_q, heads_kv, seqlen_q, seqlen_k, total_q, total_k;
	bool packed;
	int64_t sms; /* multiprocessors of the device, at least 1 */
};

/* Of a launch's tiles, in the order of its items, those from `first` on, `tiles` of them, are cut into `parts` each. None: 0, and first is all. */
struct recipe_cut {
	int64_t first, tiles, parts;
};

/* Does it sort the items of another? */
bool grid_is_order(enum recipe_grid);
/* The kernel of that name; NULL: there is none. */
const struct recipe_kernel *recipe_kernel_find(const struct recipe *, const char *entry);
void recipe_print(struct text *, const struct recipe *);
int recipe_parse(struct recipe *, const char *text, struct diag *);
/* Which tiles of so many rows, or keys, are cut; none too where there are too many of them to launch. */
struct recipe_cut recipe_cut(bool keys, int tile, const struct recipe_tail *, const struct recipe_shape *);
/* Of a kernel whose rule has tails, else none. */
struct recipe_cut recipe_kernel_cut(const struct recipe_kernel *, const struct recipe_shape *);
/* CTAs of one kernel; 0 when there is nothing to do. -1 when it exceeds 2^31-1. */
int64_t recipe_grid_size(const struct recipe_kernel *, const struct recipe_shape *);
/* Is the kernel that sorts items left out of a launch of the shape? Not if there is none. */
bool recipe_unordered(const struct recipe *, const struct recipe_shape *);
/* Is that piece cleared before such a launch? Not the order of items that nobody sorts. */
bool recipe_piece_cleared(const struct recipe *, int piece, const struct recipe_shape *);
/* Bytes of one piece, rounded up to 256. -1 on overflow. */
int64_t recipe_piece_bytes(const struct recipe_piece *, const struct recipe_shape *);

#endif
