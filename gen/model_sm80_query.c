/* What the planner must know of templates/sm80/bwd_query.cu. Names and formulas mirror its constants. */
#include "gen/model_sm80_query.h"

static int steps(int columns) { return (columns + 15) / 16; }
static int int_min(int a, int b) { return a < b ? a : b; }
static int int_max(int a, int b) { return a > b ? a : b; }

/* CTAs that an SM holds at once. */
static int residents(int smem_bytes, int regs, int warps, const struct target *target)
{
	return int_min(target->smem_sm / (smem_bytes + 1024), target->regs_sm / ((regs + 7) / 8 * 8 * 32 * warps));
}

struct query_kernel query_kernel_make(const struct candidate *c, const struct spec *spec, const struct program *program,
                                      const struct target *target)
{
	const int m = c->tile_m, n = c->tile_n, warps = c->warps;
	const int steps_qk = steps(spec->head_dim_qk), steps_v = steps(spec->head_dim_v);
	const int row = 32 * (steps_qk + steps_v); /* bytes of a row of Q and dO, or of K and V */
	int down = int_min(m / 16 / (steps_qk <= 8 ? 2 : 1), warps);
	down = warps / down > n / 16 ? 2 * down : down;
	const int across = warps / down;
	const int blocks = m / 16 / down, own_steps = n / 16 / across;
	const struct staging s = program_staging(program, spec, m, n);
	int chunk = int_min(own_steps, 4);
	while (chunk > 1 && blocks * (16 * chunk + 8 * steps_qk) > 192)
		chunk /= 2;

	struct query_kernel k = {0};
	/* Accumulators of dQ stay, those of a chunk of S and dP pass by. */
	k.regs = blocks * (16 * chunk + 8 * steps_qk) + 56;
	const int part = across > 1 ? m * steps_qk * 64 : 0;
	/* Statistics; two visits; two addresses, the head's key and three indices; the walk. */
	const int notes = 8 * m + visit_bytes(program, c, 2) + 2 * 8 + head_key_bytes(spec) + 3 * 4 + walk_bytes(spec, program, warps);
	int bytes[3];
	for (int stages = 1; stages <= 2; stages++)
		bytes[stages] = int_max(m * row + stages * n * row + (notes + 15) / 16 * 16 + s.head + s.row +
		                                stages * (s.col + s.cell),
		                        part);
	const bool room = bytes[2] <= target->smem_block &&
	                  residents(bytes[2], k.regs, warps, target) >= residents(bytes[1], k.regs, warps, target);
	k.smem_bytes = bytes[room ? 2 : 1];

	k.mma_flop = 2.0 * m * n * 16 * (2 * steps_qk + steps_v);
	k.smem_traffic = 512.0 * warps * (own_steps / chunk) *
	                         ((double)(steps_qk + steps_v) * (blocks + chunk) + (double)steps_qk * chunk) +
	                 (double)n * row /* arriving K and V */;
	return k;
}
