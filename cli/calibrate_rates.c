/* calibrate_rates: from raw timings to a device row. */
#include "cli/calibrate.h"

#include <math.h>

#include "cli/cli.h"

/* What gen/plan_cost.c multiplies DRAM bandwidth with, since the table has the makers' figures, which no copy reaches. */
static const double hbm_reached = 0.9;
/* Bytes of shared memory per clock and SM that gen/plan_cost.c and gen/model_*.c count on, of every GPU. */
static const double smem_clk = 128;

static const struct {
	const char *what, *unit;
	double low,
		high; /* half of the slowest and twice the fastest that any GPU of the targets is known to do, or wider */
} about[MEASURE_COUNT] = {
	[MEASURE_MMA] = {"matrix products (mma.sync m16n8k16, bf16)", "FLOP per clock and SM", 128, 16384},
	[MEASURE_EXP] = {"exponentials (ex2)", "results per clock and SM", 4, 128},
	[MEASURE_ALU] = {"float32 multiply-adds", "lane operations per clock and SM", 32, 512},
	[MEASURE_SMEM] = {"shared memory (ldmatrix)", "bytes per clock and SM", 32, 512},
	[MEASURE_CLOCK] = {"the clock under matrix load", "GHz", 0.2, 5},
	[MEASURE_L2] = {"L2 bandwidth", "GB/s", 100, 100000},
	[MEASURE_HBM] = {"DRAM bandwidth (a copy)", "GB/s", 20, 50000},
	[MEASURE_LAUNCH] = {"launches of an empty kernel", "us", 0.1, 100},
};

int rates_make(double rate[MEASURE_COUNT], const struct measured measured[MEASURE_COUNT], struct diag *diag)
{
	int rc = 0;
	for (int m = 0; m < MEASURE_COUNT; m++) {
		double each[REPETITIONS];
		bool good = true;
		for (int i = 0; i < REPETITIONS; i++) {
			good = good && measured[m].over[i] > 0;
			each[i] = good ? measured[m].amount[i] / measured[m].over[i] : 0;
		}
		rate[m] = median_of(each, REPETITIONS);
		if (!good)
			rc = diag_fail(diag, "Measuring %s took no time: the GPU's clocks or events do not count.",
			               about[m].what);
		else if (!(rate[m] >= about[m].low && rate[m] <= about[m].high))
			rc = diag_fail(diag,
			               "Measuring %s gave %.4g %s; between %g and %g is plausible. Is the GPU used by "
			               "another program?",
			               about[m].what, rate[m], about[m].unit, about[m].low, about[m].high);
	}
	return rc;
}

/* To so many significant digits: what a repetition may change is not worth printing. */
static double rounded(double x, int digits)
{
	const double unit = pow(10, floor(log10(x)) + 1 - digits);
	return unit < 1 ? round(x / unit) / round(1 / unit) : round(x / unit) * unit;
}

void device_make(struct device *row, const double rate[MEASURE_COUNT], const struct gpu *gpu,
                 const struct target *target)
{
	*row = (struct device){.name = device_board(gpu->name),
	                       .target = target->name,
	                       .sms = gpu->sms,
	                       .clock_ghz = rounded(rate[MEASURE_CLOCK], 4),
	                       .hbm_gbs = rounded(rate[MEASURE_HBM] / hbm_reached, 4),
	                       .l2_gbs = rounded(rate[MEASURE_L2], 4),
	                       .l2_mib = gpu->l2_bytes / 1048576.0,
	                       .mma_flop_clk = (int)round(rate[MEASURE_MMA]),
	                       .exp_clk = (int)round(rate[MEASURE_EXP]),
	                       .alu_clk = (int)round(rate[MEASURE_ALU]),
	                       .launch_us = rounded(rate[MEASURE_LAUNCH], 3)};
}

void device_write(struct text *out, const struct device *row, const double rate[MEASURE_COUNT], const struct gpu *gpu,
                  int driver_version, const char *date, struct diag *diag)
{
	text_addf(out, "# Measured by `fagen calibrate` (fagen %s) on %s: %s, driver of CUDA %d.%d.\n", FAGEN_VERSION,
	          date, gpu->name, driver_version / 1000, driver_version % 1000 / 10);
	text_puts(out, "# FAGEN_DEVICES=<this file> makes fagen plan with it.\n");
	for (int m = 0; m < MEASURE_COUNT; m++)
		text_addf(out, "#   %s: %.4g %s\n", about[m].what, rate[m], about[m].unit);
	device_print(out, row);
	if (fabs(rate[MEASURE_SMEM] - smem_clk) > 0.1 * smem_clk)
		diag_warn(
			diag,
			"Shared memory gives %.4g bytes per clock and SM; the model counts on %g, so its predictions for "
			"this GPU are off where shared memory bounds a kernel.",
			rate[MEASURE_SMEM], smem_clk);
}
