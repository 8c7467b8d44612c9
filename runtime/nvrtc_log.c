#include "runtime/nvrtc.h"

#include <stdio.h>
#include <string.h>

void nvrtc_log_parse(struct cubin *cubin, const char *log)
{
	cubin->registers = cubin->spill_bytes = cubin->stack_bytes = 0;
	cubin->serialized = strstr(log, "(C75") != NULL; /* C7510 and on: wgmma was serialised, with the reason */
	for (const char *line = log; line && *line; line = strchr(line, '\n')) {
		line += strspn(line, "\n");
		int stack, stores, loads, registers;
		const char *bytes =
			line + strcspn(line, ":.\n"); /* "ptxas info    : ..." or "ptxas         .     ..." */
		if (*bytes != ':' && *bytes != '.')
			continue;
		bytes++;
		if (sscanf(bytes, " %d bytes stack frame, %d bytes spill stores, %d bytes spill loads", &stack, &stores,
		           &loads) == 3) {
			cubin->spill_bytes += stores + loads;
			if (stack > cubin->stack_bytes)
				cubin->stack_bytes = stack;
		} else if (sscanf(bytes, " Used %d registers", &registers) == 1 && registers > cubin->registers) {
			cubin->registers = registers;
		}
	}
}
