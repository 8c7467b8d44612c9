/* A stream to stdout, for PractRand: stream NAME [SEED]; ends when nobody reads on. */
#include "tests/battery/streams.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	struct stream *s =
		argc == 2 || argc == 3 ? stream_open(argv[1], argc == 3 ? strtoull(argv[2], NULL, 0) : 42) : NULL;
	if (!s) {
		fputs("usage: stream NAME [SEED]; names:\n", stderr);
		for (size_t i = 0; stream_name(i); i++)
			fprintf(stderr, "  %-8s %s\n", stream_name(i), stream_about(i));
		return 2;
	}
	do
		s->fill(s);
	while (fwrite(s->word, sizeof *s->word, s->size, stdout) == s->size);
	stream_close(s);
	return 0;
}
