/* problem_flags: the flags that name a problem, the same for every command that has them. */
#ifndef FAGEN_CLI_PROBLEM_FLAGS_H
#define FAGEN_CLI_PROBLEM_FLAGS_H

#include <getopt.h>

#include "gen/gen.h"

struct problem_flags { /* -1: as the spec assumes */
	int64_t batch, heads, heads_kv, seq_q, seq_k;
};

enum { /* codes that getopt_long returns; a command's own are smaller */
	FLAG_BATCH = 1000,
	FLAG_HEADS,
	FLAG_HEADS_KV,
	FLAG_SEQ,
	FLAG_SEQ_Q,
	FLAG_SEQ_K
};

/* Rows of a getopt_long table. */
#define PROBLEM_FLAGS \
	{"batch", required_argument, NULL, FLAG_BATCH}, {"heads", required_argument, NULL, FLAG_HEADS}, \
	{"heads-kv", required_argument, NULL, FLAG_HEADS_KV}, {"seq", required_argument, NULL, FLAG_SEQ}, \
	{"seq-q", required_argument, NULL, FLAG_SEQ_Q}, {"seq-k", required_argument, NULL, FLAG_SEQ_K}

/* What usage texts say of them. */
#define PROBLEM_FLAGS_USAGE \
	"  --batch N --heads N --heads-kv N --seq N --seq-q N --seq-k N\n" \
	"                    the problem (default: as the spec assumes)\n"

void problem_flags_clear(struct problem_flags *);
/* Reads the value of a flag. 1: it was one of these; 0: it was not; -1: its value is wrong, and was complained about in
 * the name of `command`. */
int problem_flags_read(struct problem_flags *, const char *command, int code, const char *value);
/* The assumed problem with what was asked put in. A new number of query heads keeps the sharing of key/value heads: the
 * spec's, else that of the assumed problem. */
void problem_flags_apply(struct problem *, const struct problem_flags *, const struct spec *);

/* A number from `least` to 2^31 - 1, all of `text`; else complains and returns -1. */
int number_flag_read(int64_t *, const char *command, const char *flag, const char *text, int64_t least);

#endif
