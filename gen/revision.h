/* revision: which state of a template a kernel was made from, and which states must not run any more. A revision is raised when a
 * kernel computed something wrong; what was wrong stays wrong in packs, so those made before are refused. */
#ifndef FAGEN_GEN_REVISION_H
#define FAGEN_GEN_REVISION_H

struct revision {
	const char *templ;  /* as struct plan names it */
	int revision;       /* of what is emitted now, from 1 */
	int oldest;         /* the oldest that may run */
	const char *why;    /* what is wrong with those before; NULL: there is none */
};
extern const struct revision revision_table[];
extern const int revision_count;

int template_revision(const char *templ); /* 0: no such template */
/* Why kernels of that revision must not run; NULL: they may. Templates and revisions of later versions may. */
const char *revision_refused(const struct revision *table, int count, const char *templ, int revision);

#endif
