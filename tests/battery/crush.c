/* TestU01's batteries on streams: crush small|crush|big [--seed N] STREAM...; prints p-values that stand out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/battery/streams.h"

#include "bbattery.h"
#include "swrite.h"
#include "unif01.h"

static struct stream *open_stream;
static unsigned int next(void) { return stream_next(open_stream); }

int main(int argc, char **argv)
{
	unsigned long long seed = 42;
	int at = 2, failed = 0;
	const char *size = argc > 1 ? argv[1] : "";
	if (argc > at + 1 && !strcmp(argv[at], "--seed")) {
		seed = strtoull(argv[at + 1], NULL, 0);
		at += 2;
	}
	void (*battery)(unif01_Gen *) = !strcmp(size, "small")   ? bbattery_SmallCrush
	                                : !strcmp(size, "crush") ? bbattery_Crush
	                                : !strcmp(size, "big")   ? bbattery_BigCrush
	                                                         : NULL;
	if (!battery || at >= argc) {
		fputs("usage: crush small|crush|big [--seed N] STREAM...\n", stderr);
		return 2;
	}
	/* TestU01 prints as it goes; what is kept of that are the p-values. */
	FILE *out = fdopen(dup(STDOUT_FILENO), "w");
	if (!out || !freopen("/dev/null", "w", stdout))
		return 3;
	swrite_Basic = FALSE;
	for (; at < argc; at++) {
		open_stream = stream_open(argv[at], seed);
		if (!open_stream) {
			fprintf(stderr, "error: there is no stream '%s'\n", argv[at]);
			return 2;
		}
		const time_t begin = time(NULL);
		unif01_Gen *gen = unif01_CreateExternGenBits(argv[at], next);
		battery(gen);
		unif01_DeleteExternGenBits(gen);
		int bad = 0, odd = 0;
		for (int i = 0; i < bbattery_NTests; i++) {
			const double p = bbattery_pVal[i] < 0.5 ? bbattery_pVal[i] : 1 - bbattery_pVal[i];
			if (bbattery_pVal[i] < 0)
				continue;
			if (p < 1e-3)
				fprintf(out, "  %-8s %-28s p %.2e%s\n", argv[at], bbattery_TestNames[i],
				        bbattery_pVal[i], p < 1e-8 ? " FAIL" : "");
			odd += p < 1e-3;
			bad += p < 1e-8;
		}
		fprintf(out, "%s, %s, %-8s seed %llu: %d statistics, %d beyond 1e-3, %d beyond 1e-8, %ld s\n",
		        stream_generator, size, argv[at], seed, bbattery_NTests, odd, bad, (long)(time(NULL) - begin));
		fflush(out);
		failed += bad;
		stream_close(open_stream);
	}
	return failed != 0;
}
