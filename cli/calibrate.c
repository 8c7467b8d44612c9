/* fagen calibrate: measures this machine's GPU and writes the device row that the planner works with. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cli/calibrate.h"
#include "cli/cli.h"
#include "cli/problem_flags.h"

static void usage(FILE *out)
{
	fputs("usage: fagen calibrate [options]\n"
	      "Measures a GPU for the planner: matrix products, exponentials, multiply-adds and shared memory per clock and SM, L2\n"
	      "and DRAM bandwidth, the clock under matrix load, the cost of a launch. Writes a device row; with its file in\n"
	      "FAGEN_DEVICES, fagen plans with it. The GPU should have nothing else to do. Takes some seconds.\n"
	      "  -o FILE           where to write; - is the standard output (default)\n"
	      "  --device-index N  which GPU (default 0)\n"
	      "  -h, --help\n",
	      out);
}

/* Measures and appends the file. */
static int calibrate(struct text *out, fagen_runtime *rt, int ordinal, struct diag *diag)
{
	struct measured measured[MEASURE_COUNT] = {{{0}, {0}}};
	struct gpu gpu;
	struct device row;
	double rate[MEASURE_COUNT];
	char date[16] = "";
	if (calibrate_run(measured, &gpu, rt, ordinal, diag) || rates_make(rate, measured, diag))
		return -1;
	device_make(&row, rate, &gpu, target_for_cc(gpu.cc));
	const time_t now = time(NULL);
	struct tm day;
	if (gmtime_r(&now, &day))
		strftime(date, sizeof date, "%Y-%m-%d", &day);
	device_write(out, &row, rate, &gpu, driver_version(runtime_driver(rt)), date, diag);
	return 0;
}

int cmd_calibrate(int argc, char **argv)
{
	enum { DEVICE = 256 };
	static const struct option longs[] = {
		{"device-index", required_argument, NULL, DEVICE}, {"help", no_argument, NULL, 'h'}, {0}};
	const char *path = NULL;
	int64_t device = 0;
	int bad = 0;
	optind = 0; /* starts getopt anew, whoever used it before */
	for (int c; (c = getopt_long(argc, argv, "o:h", longs, NULL)) != -1;)
		switch (c) {
		case 'o': path = optarg; break;
		case DEVICE: bad |= number_flag_read(&device, "calibrate", "device-index", optarg, 0); break;
		case 'h': usage(stdout); return EXIT_SUCCESS;
		default: bad = -1;
		}
	if (!bad && optind < argc) {
		fprintf(stderr, "fagen calibrate: '%s' is not an option; it takes no spec.\n", argv[optind]);
		bad = -1;
	}
	if (bad) {
		fputs("`fagen calibrate --help` lists the options.\n", stderr);
		return EXIT_USAGE;
	}
	fagen_runtime *rt = NULL;
	fagen_error error = {.struct_size = sizeof error};
	if (fagen_open(&rt, NULL, &error) != FAGEN_OK) {
		fprintf(stderr, "fagen: error: %s\n", error.message);
		return EXIT_MACHINE;
	}
	struct text out = {0};
	struct diag diag = {0};
	int rc = calibrate(&out, rt, (int)device, &diag);
	fputs(text_str(&diag.text), stderr);
	if (!rc)
		rc = file_write(path, out.data, out.len);
	text_free(&out);
	diag_free(&diag);
	fagen_close(rt);
	return rc ? EXIT_MACHINE : EXIT_SUCCESS;
}
