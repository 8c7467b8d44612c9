// Forward for sm_90a (FlashAttention-3, Shah et al. 2024, section 3, and beyond it): persistent CTAs take query tiles, of a section of
// heads the last first, which under a lower-triangular mask are the longest. Warpgroup 0 loads: its first warp walks the key tiles and
// issues bulk copies, the others stage inputs, or store O. Every further warpgroup owns 64 query rows: S = Q K^T and
// O += P V are wgmma, P is an operand from the registers it was made in.
// O's product of a visit runs under the softmax of the next inside a warpgroup, warpgroups take turns at the tensor core, and the first S
// of an item runs under the end of the item before.
//
// Visits of all items are numbered through: visit n has the buffers n % STAGES, whose phases count n / STAGES, and the note
// n % NOTES. Items are numbered too: item i has the seat i % 2.
//
// The softmax of long rows speculates: P is taken against the maxima of the first visited tile, which never rise. That is exact while sums
// stay in range, which the end of an item checks; one that left it is done again with running maxima. Only the item's own data
// decide, so bits do not change from run to run. Where positions lift scores (SCORE_LIFT: a slope, say) references are higher by what
// they lift other keys above the tile's; SPECULATE: not for scores of which that is not known, which leave the range always.
//
// CTAS_SM: two CTAs may share an SM, each with half of its registers; what one waits for, at the ends of items above all, hides behind the other.
//
// SPLITS: of few query tiles each is so many items, which see a part of its key tiles each and leave O and LSE over them in the
// workspace. fwd_merge.cu joins them. CUT: so are the last tiles alone, where whole items would leave SMs idle at the end of a launch.
//
// TILE_HEADS: query heads of a group share a tile, so that few rows of each fill it, and their keys are loaded once.

constexpr int WARPGROUPS = TILE_M / 64; // that compute
constexpr int BLOCKS_N = TILE_N / 8;                 // 8-key blocks of S
constexpr int BLOCKS_V = HEAD_DIM_V / 8;             // 8-column blocks of O
constexpr int STEPS_QK = (HEAD_DIM_QK + 15) / 16;    // k16 steps of Q K^T, zero past HEAD_DIM_QK
constexpr int PANELS_QK = (HEAD_DIM_QK + 63) / 64;   // 64-column panels of a shared row
constexpr int PANELS_V = (HEAD_DIM_V + 63) / 64;
constexpr int NOTES = 2 * STAGES;
constexpr bool TAKE_TURNS = WARPGROUPS > 1 && HEAD_DIM_V <= 128;
// S of a visit and O of the one before are under way together, where there are registers for both. CTAs that share an SM do without: what one
// of them waits for hides behind the other.
constexpr bool TOGETHER = CTAS_SM == 1;
constexpr bool VISIT_INPUTS = COL_INPUTS || CELL_INPUTS, INPUTS = VISIT_INPUTS || HEAD_INPUTS || ROW_INPUTS;
constexpr int BLOCKS_64 = (TILE_N + 63) / 64; // blocks of 64 keys, each of which has a word of dropout for a thread
// Threads that prepare items and visits for those who compute: the other warps of warpgroup 0.
constexpr int HELPER_THREADS = INPUTS ? 96 : 0;
// Registers of a thread that loads and of one that computes: of an SM's 65,536. Classifying tiles and staging inputs take many.
constexpr bool LONG_LOAD = SCAN || RUNS > 1 || INPUTS;
constexpr int LOAD_REGISTERS = CTAS_SM == 2 ? 32 : WARPGROUPS == 3 ? (LONG_LOAD ? 56 : 32) : LONG_LOAD ? 56 : 40;
constexpr int COMPUTE_REGISTERS = CTAS_SM == 2 ? 104 : WARPGROUPS == 3 ? (LONG_LOAD ? 152 : 160) : LONG_LOAD ? 224 : 232;
// What each thread has at launch, shared out again; who asked for more would wait forever.
static_assert(LOAD_REGISTERS + WARPGROUPS * COMPUTE_REGISTERS <= (WARPGROUPS + 1) * (65536 / CTAS_SM / THREADS / 8 * 8), "registers of a CTA");
static_assert(CTAS_SM == 1 || (CTAS_SM == 2 && WARPGROUPS == 2 && !LONG_LOAD && SPLITS == 1 && !CUT && TILE_HEADS == 1),
              "half of an SM's registers are enough for this");
static_assert(WARPGROUPS == 2 || WARPGROUPS == 3, "registers are shared out among 3 or 4 warpgroups");
static_assert(THREADS == GROUP_THREADS * (WARPGROUPS + 1) && WALK_WARPS == 1, "one warp walks");
static_assert(TILE_M % 64 == 0 && TILE_N % 16 == 0 && TILE_N <= 256 && STAGES >= 2, "tiles are made of wgmma m64nNk16");
static_assert(!DROPOUT || TILE_N % 64 == 0 || 64 % TILE_N == 0, "dropout words cover blocks of 64 keys");
static_assert(TILE_HEADS == 1 || (!SCAN && !DROPOUT), "classes and words are of one head");
static_assert(LOAD_BYTES == 16, "tensor maps want rows of 16-byte multiples");

enum ItemKind { ITEM_END, ITEM_PAUSE, ITEM_EMPTY, ITEM_SPECULATIVE, ITEM_RUNNING };
// h: the first head of the tile. part: its number among those of the tile, with CUT among all parts of the launch; -1: the item is a whole tile.
// first, last: the key tiles that a part lies in.
struct ItemPlace { int kind, b, h, q0; };
template <bool> struct ItemPart { int part, first, last; };
template <> struct ItemPart<false> {};
struct Item : ItemPlace, ItemPart<(SPLITS > 1 || CUT)> {};
struct ItemShared : Item, HeadKey<DROPOUT> {};
struct Note : Visit { int last; }; // 1: the item's last visit

struct alignas(16) Smem {
	unsigned short query[PANELS_QK][TILE_M][64]; // swizzled rows of 128 bytes: tensor maps write, wgmma reads
	unsigned short key[STAGES][PANELS_QK][TILE_N][64];
	unsigned short value[STAGES][PANELS_V][TILE_N][64];
	// full: data are there, loaders before readers. empty: readers before loaders.
	unsigned long long key_full[STAGES], key_empty[STAGES], value_full[STAGES], value_empty[STAGES];
	unsigned long long inputs_full[NOTES];  // of a visit
	unsigned long long note_full[NOTES];    // for the helpers
	unsigned long long item_full[2];        // likewise
	unsigned long long item_inputs_full[2]; // of an item, by its seat, which the helpers know
	unsigned long long query_full[WARPGROUPS], query_empty[WARPGROUPS]; // a warpgroup's rows of Q, and the item
	unsigned long long item_done[2]; // each warp has left the item of this seat, and the verdict on a speculative one is there
	Note note[NOTES];
	ItemShared item[2], next; // next, round, sections: of the loading warp
	unsigned round;
	Sections sections;
	int failed[2]; // 1: the item of this seat must be done again
	WalkShared walk;
};
using Buffers = Staged<2, 2, NOTES, STAGES>; // of items by seat; of keys, free with the note; of cells, free with V
// Behind Smem, with OUT_STAGED: for each warp that computes 16 rows of O, 64 columns of them at a time, swizzled.
constexpr int OUT_WARP_BYTES = 16 * 128;
// Behind Smem, with OUT_WHOLE: O of a tile. A warp of warpgroup 0 for each of the others stores it, under the next item. Rows are an odd number of
// 16-byte chunks, so that eight of them lie in different banks.
struct alignas(16) OutShared {
	unsigned char rows[TILE_M][(BLOCKS_V + 1 | 1) * 16];
	unsigned long long full[WARPGROUPS], empty[WARPGROUPS]; // the warps that compute before the one that stores, and the other way round
	ItemPlace item[WARPGROUPS];                             // whose rows they are
};
constexpr int OUT_BYTES = OUT_WHOLE ? sizeof(OutShared) : OUT_STAGED ? 4 * WARPGROUPS * OUT_WARP_BYTES : 0;
static_assert(!OUT_WHOLE || (SPLITS == 1 && TILE_HEADS == 1 && HELPER_THREADS == 0), "warps that would idle store rows of one head");
static_assert(sizeof(Smem) + OUT_BYTES + Buffers::BYTES == SMEM_BYTES, "shared memory and gen/model_sm90_fwd.c disagree");
DEVICE OutShared &out_shared(Smem &smem) { return *reinterpret_cast<OutShared *>(&smem + 1); }
