#include "cli/problem_flags.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int number_flag_read(int64_t *value, const char *command, const char *flag, const char *text, int64_t least)
{
	char *end;
	errno = 0;
	const long long n = strtoll(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || n < least || n > LENGTH_MAX) {
		fprintf(stderr, "fagen %s: --%s takes a number from %" PRId64 " to %d, not '%s'.\n", command, flag,
		        least, LENGTH_MAX, text);
		return -1;
	}
	*value = n;
	return 0;
}

void problem_flags_clear(struct problem_flags *f) { *f = (struct problem_flags){-1, -1, -1, -1, -1}; }

int problem_flags_read(struct problem_flags *f, const char *command, int code, const char *value)
{
	int bad;
	switch (code) {
	case FLAG_BATCH: bad = number_flag_read(&f->batch, command, "batch", value, 0); break;
	case FLAG_HEADS: bad = number_flag_read(&f->heads, command, "heads", value, 1); break;
	case FLAG_HEADS_KV: bad = number_flag_read(&f->heads_kv, command, "heads-kv", value, 1); break;
	case FLAG_SEQ:
		bad = number_flag_read(&f->seq_q, command, "seq", value, 0);
		f->seq_k = f->seq_q;
		break;
	case FLAG_SEQ_Q: bad = number_flag_read(&f->seq_q, command, "seq-q", value, 0); break;
	case FLAG_SEQ_K: bad = number_flag_read(&f->seq_k, command, "seq-k", value, 0); break;
	default: return 0;
	}
	return bad ? -1 : 1;
}

void problem_flags_apply(struct problem *p, const struct problem_flags *f, const struct spec *spec)
{
	*p = spec->assume;
	const int64_t shared = p->heads_kv > 0 ? p->heads_q / p->heads_kv : 1;
	const int64_t group = spec->kv_group ? spec->kv_group : shared > 0 ? shared : 1;
	p->batch = f->batch >= 0 ? f->batch : p->batch;
	p->seqlen_q = f->seq_q >= 0 ? f->seq_q : p->seqlen_q;
	p->seqlen_k = f->seq_k >= 0 ? f->seq_k : p->seqlen_k;
	if (f->heads >= 0) {
		p->heads_q = f->heads;
		p->heads_kv = f->heads >= group ? f->heads / group : 1;
	}
	if (f->heads_kv >= 0) {
		p->heads_kv = f->heads_kv;
		p->heads_q = f->heads >= 0 ? f->heads : f->heads_kv * group;
	}
}
