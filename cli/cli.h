/* cli: the commands. Each has a file; argv[0] is the command's name. They return the exit status. */
#ifndef FAGEN_CLI_H
#define FAGEN_CLI_H

#include <stddef.h>

enum {
	EXIT_REQUEST = 1, /* the spec or the request is wrong */
	EXIT_USAGE = 2,
	EXIT_MACHINE = 3, /* the machine lacks something */
	EXIT_CHECK = 4    /* a check failed */
};

int cmd_explain(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_deviation(int argc, char **argv); /* fagen check --deviation */
int cmd_bench(int argc, char **argv);
int cmd_calibrate(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_wisdom(int argc, char **argv);
int cmd_cache(int argc, char **argv);
int cmd_pack(int argc, char **argv);
int cmd_env(int argc, char **argv);
int cmd_init(int argc, char **argv);

/* Writes aside and renames, so that a failure, which is complained about, leaves the old file. NULL and "-": the standard
 * output. */
int file_write(const char *path, const void *bytes, size_t len);
/* The middle one, or the mean of the middle two. */
double median_of(const double *, int count);

#endif
