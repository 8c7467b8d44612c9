/* shared: shared memory as its two proxies see it, barriers, and instructions of whole warps. */
#include "tests/emulate/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- addresses ---- */

unsigned emulate_address(const void *p)
{
	const struct cta *cta = thread_now()->cta;
	const unsigned char *at = p;
	if (at < cta->shared || at >= cta->shared + cta->shared_bytes)
		emulate_fail("an address that is not of the CTA's %u bytes of shared memory", cta->shared_bytes);
	return (unsigned)(at - cta->shared);
}

struct cta *address_cta(unsigned *address, struct cta *own)
{
	const unsigned rank = *address >> EMULATE_PEER_SHIFT;
	*address &= (1u << EMULATE_PEER_SHIFT) - 1;
	if (!rank)
		return own;
	if (rank > own->cluster->ctas)
		emulate_fail("an address of CTA %u of a cluster of %u", rank - 1, own->cluster->ctas);
	return own->cluster->cta[rank - 1];
}

unsigned char *address_bytes(struct cta *cta, unsigned at, unsigned bytes)
{
	if (at > cta->shared_bytes || bytes > cta->shared_bytes - at)
		emulate_fail("%u bytes at %u, past the CTA's %u bytes of shared memory", bytes, at, cta->shared_bytes);
	if (!cta->live)
		emulate_fail("shared memory of CTA %u, which has ended", cta->thread->view.cta);
	return cta->shared + at;
}

unsigned char *address_async(struct cta *cta, unsigned at, unsigned bytes)
{
	unsigned char *const to = address_bytes(cta, at, bytes);
	for (unsigned i = at / CHUNK; i <= (at + bytes - 1) / CHUNK; i++)
		if (cta->unfenced[i].count)
			emulate_fail("a copy or product meets what thread %u of CTA %u wrote to shared memory at %u without a fence_proxy_async "
			             "behind it",
			             cta->unfenced[i].owner, cta->thread->view.cta, i * CHUNK);
	return to;
}

void *emulate_static(size_t bytes)
{
	struct thread *const t = thread_now();
	const size_t at = (t->statics + CHUNK - 1) / CHUNK * CHUNK;
	if (bytes > STATIC_MAX - at)
		emulate_fail("static variables of more than %d bytes", STATIC_MAX);
	t->statics = at + bytes;
	return t->cta->shared + SHARED_MAX + at;
}

/* ---- the generic proxy ---- */

static void unfenced_add(struct thread *t, unsigned chunk)
{
	struct cta *cta = t->cta;
	if (t->unfenced_count && t->unfenced[t->unfenced_count - 1] == chunk)
		return;
	if (t->unfenced_count == t->unfenced_room) {
		t->unfenced_room = 2 * t->unfenced_room + 64;
		t->unfenced = realloc(t->unfenced, (size_t)t->unfenced_room * sizeof *t->unfenced);
		if (!t->unfenced)
			abort();
	}
	t->unfenced[t->unfenced_count++] = chunk;
	cta->unfenced[chunk].count++;
	cta->unfenced[chunk].owner = (uint16_t)t->view.thread;
}

static void thread_store(struct thread *t, unsigned to, const void *from, unsigned bytes)
{
	memcpy(address_bytes(t->cta, to, bytes), from, bytes);
	unfenced_add(t, to / CHUNK);
}

void emulate_store(unsigned to, const void *from, unsigned bytes)
{
	if (to % bytes)
		emulate_fail("%u bytes are stored at %u", bytes, to);
	thread_store(thread_now(), to, from, bytes);
}

void emulate_load(void *to, unsigned from, unsigned bytes)
{
	if (from % bytes)
		emulate_fail("%u bytes are read at %u", bytes, from);
	memcpy(to, address_bytes(thread_now()->cta, from, bytes), bytes);
}

void emulate_fence(void)
{
	struct thread *t = thread_now();
	for (int i = 0; i < t->unfenced_count; i++)
		t->cta->unfenced[t->unfenced[i]].count--;
	t->unfenced_count = 0;
}

static void copy_store(struct thread *t, const struct copy *c)
{
	unsigned char all[16] = {0};
	if (c->inside)
		memcpy(all, c->from, c->inside);
	thread_store(t, c->to, all, c->bytes);
}

/* cp.async, at once or as late as may be. */
void emulate_copy(unsigned to, const void *from, unsigned bytes, unsigned inside)
{
	struct thread *t = thread_now();
	const struct copy copy = {to, bytes, t->copy_groups, inside, from};
	if (to % bytes || inside > bytes || (inside && (uintptr_t)from % bytes))
		emulate_fail("cp.async of %u bytes from %p to %u", bytes, from, to);
	if (chance(2)) {
		copy_store(t, &copy);
		return;
	}
	if (t->copies == t->copies_room) {
		t->copies_room = 2 * t->copies_room + 64;
		t->copy = realloc(t->copy, (size_t)t->copies_room * sizeof *t->copy);
		if (!t->copy)
			abort();
	}
	t->copy[t->copies++] = copy;
}

void emulate_copy_commit(void) { thread_now()->copy_groups++; }

void emulate_copy_wait(int pending)
{
	struct thread *t = thread_now();
	int kept = 0;
	for (int i = 0; i < t->copies; i++) {
		const struct copy *c = &t->copy[i];
		if (c->group + (unsigned)pending < t->copy_groups)
			copy_store(t, c);
		else
			t->copy[kept++] = *c;
	}
	t->copies = kept;
}

/* ---- mbarriers: their eight bytes are in shared memory ---- */

enum { VALID = 0x3ba, ARRIVALS_MOST = 1023 };
struct mbarrier {
	uint64_t valid : 10, arrivals : 10, parity : 1;
	int64_t pending : 12, bytes : 31;
};
_Static_assert(sizeof(struct mbarrier) == 8, "an mbarrier has eight bytes");

static struct mbarrier mbarrier_read(struct cta *cta, unsigned at)
{
	struct mbarrier b;
	memcpy(&b, address_bytes(cta, at, sizeof b), sizeof b);
	if (at % 8 || b.valid != VALID)
		emulate_fail("at %u of shared memory there is no mbarrier", at);
	return b;
}

static void mbarrier_write(struct cta *cta, unsigned at, struct mbarrier b)
{
	if (b.pending < 0)
		emulate_fail("an arrival too many at the mbarrier at %u, which takes %u", at, (unsigned)b.arrivals);
	if (b.pending == 0 && b.bytes == 0) {
		b.parity ^= 1;
		b.pending = b.arrivals;
	}
	memcpy(address_bytes(cta, at, sizeof b), &b, sizeof b);
}

void emulate_mbarrier_init(unsigned at, unsigned arrivals)
{
	if (!arrivals || arrivals > ARRIVALS_MOST)
		emulate_fail("an mbarrier of %u arrivals", arrivals);
	const struct mbarrier b = {.valid = VALID, .arrivals = arrivals, .parity = 0, .pending = (int64_t)arrivals};
	memcpy(address_bytes(thread_now()->cta, at, sizeof b), &b, sizeof b);
}

void emulate_mbarrier_arrive(unsigned at, unsigned bytes)
{
	struct cta *cta = address_cta(&at, thread_now()->cta);
	struct mbarrier b = mbarrier_read(cta, at);
	b.pending--;
	b.bytes += bytes;
	mbarrier_write(cta, at, b);
	thread_pause();
}

void mbarrier_complete(struct cta *cta, unsigned at, unsigned bytes)
{
	struct mbarrier b = mbarrier_read(cta, at);
	b.bytes -= bytes;
	mbarrier_write(cta, at, b);
}

bool mbarrier_ended(struct cta *cta, unsigned at, unsigned parity)
{
	struct mbarrier b;
	memcpy(&b, cta->shared + at, sizeof b);
	return b.parity != parity;
}

void emulate_mbarrier_wait(unsigned at, unsigned parity)
{
	mbarrier_read(thread_now()->cta, at);
	thread_wait((struct wait){WAIT_MBARRIER, at, parity, NULL});
}

void mbarrier_print(char *to, size_t size, struct cta *cta, unsigned at)
{
	struct mbarrier b;
	memcpy(&b, cta->shared + at, sizeof b);
	snprintf(to, size, "the mbarrier at %u, where %d of %u arrivals and %d bytes are missing", at, (int)b.pending, (unsigned)b.arrivals,
	         (int)b.bytes);
}

/* ---- barriers of the CTA and of the cluster ---- */

int emulate_barrier(int id, int threads, enum emulate_barrier kind, int yes)
{
	struct cta *cta = thread_now()->cta;
	if (id < 0 || id >= BARRIERS || threads <= 0 || threads % WARP || (unsigned)threads > cta->threads)
		emulate_fail("barrier %d of %d threads", id, threads);
	struct barrier *b = &cta->barrier[id];
	if (b->count && b->threads != threads)
		emulate_fail("barrier %d of %d threads, at which others wait as one of %d", id, threads, b->threads);
	const unsigned generation = b->generation;
	b->threads = threads;
	b->yes |= yes != 0;
	if (++b->count == threads) {
		b->result = b->yes;
		b->count = 0, b->yes = false;
		b->generation++;
	}
	if (kind == EMULATE_SYNC)
		thread_wait((struct wait){WAIT_BARRIER, (unsigned)id, generation, NULL});
	else
		thread_pause();
	return b->result;
}

void emulate_cluster_arrive(void)
{
	struct cluster *c = thread_now()->cta->cluster;
	unsigned threads = 0;
	for (unsigned i = 0; i < c->ctas; i++)
		threads += c->cta[i]->live; /* those that have ended count as there */
	thread_now()->cluster_generation = c->generation;
	if (++c->arrived >= threads) {
		c->arrived = 0;
		c->generation++;
	}
	thread_pause();
}

void emulate_word_wait(const unsigned *at, unsigned bits, unsigned value) { thread_wait((struct wait){WAIT_WORD, bits, value, at}); }
void emulate_cluster_wait(void) { thread_wait((struct wait){WAIT_CLUSTER, 0, thread_now()->cluster_generation, NULL}); }

/* ---- warps ---- */

const uint64_t *emulate_warp(enum emulate_warp kind, unsigned mask, uint64_t value)
{
	static const char *const name[] = {"syncwarp", "a shuffle", "a vote", "a reduction", "a matrix load or store", "mma"};
	struct thread *t = thread_now();
	const unsigned number = t->view.thread / WARP;
	struct warp *w = &t->cta->warp[number];
	if (mask != ~0u)
		emulate_fail("a warp's instruction of some lanes, which tests/emulate has not");
	if (w->count && (w->kind != kind || w->line != t->view.line || w->file != t->view.file))
		emulate_fail("a lane is at %s, others of its warp at %s of %s:%d", name[kind], name[w->kind], w->file, w->line);
	w->kind = kind, w->file = t->view.file, w->line = t->view.line;
	w->in[t->view.thread % WARP] = value;
	const unsigned generation = w->generation;
	if (++w->count == WARP) {
		memcpy(w->out, w->in, sizeof w->out);
		w->count = 0;
		w->generation++;
	} else {
		thread_wait((struct wait){WAIT_WARP, number, generation, NULL});
	}
	return w->out;
}
