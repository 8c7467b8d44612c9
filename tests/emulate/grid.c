/* grid: the CTAs of a launch and their threads, each on a stack of its own, in an order of chance. */
#include "tests/emulate/engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { STACK = 256 << 10, PAGE = 4096, SLOWEST = 11, DELAY_MOST = 9, EPOCH = 300 };

struct emulate_view *emulate_now;
static struct thread *running;
static jmp_buf scheduler, failed;
static const struct launch *launch;
static struct cluster **resident;
static unsigned residents;
static uint64_t state;
static unsigned delay;          /* what is under way is done in one of 2^delay rounds */
static char error[ERROR_MAX];

bool grid_strict(void) { return launch->strict; }
struct thread *thread_now(void) { return running; }

uint64_t chance(uint64_t below) /* splitmix64 */
{
	uint64_t x = state += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return (x ^ x >> 31) % below;
}

void emulate_fail(const char *format, ...)
{
	int len = snprintf(error, sizeof error, "%s, seed %llu", launch->name, (unsigned long long)launch->seed);
	if (running)
		len += snprintf(error + len, sizeof error - (size_t)len, ", %s:%d, CTA %u, thread %u", running->view.file,
		                running->view.line, running->view.cta, running->view.thread);
	len += snprintf(error + len, sizeof error - (size_t)len, ": ");
	va_list list;
	va_start(list, format);
	vsnprintf(error + len, sizeof error - (size_t)len, format, list);
	va_end(list);
	_longjmp(failed, 1);
}

/* ---- threads ---- */

static void __attribute__((noinline)) thread_leave(void)
{
	if (!_setjmp(running->at))
		_longjmp(scheduler, 1);
}

static bool thread_ready(const struct thread *t)
{
	const struct wait *w = &t->wait;
	struct cta *cta = t->cta;
	switch (w->kind) {
	case WAIT_NONE: return true;
	case WAIT_MBARRIER: return mbarrier_ended(cta, w->object, (unsigned)w->value);
	case WAIT_BARRIER: return cta->barrier[w->object].generation != w->value;
	case WAIT_WARP: return cta->warp[w->object].generation != w->value;
	case WAIT_CLUSTER: return cta->cluster->generation != w->value;
	case WAIT_PRODUCTS: return cta->group[t->view.thread / GROUP]->done >= w->value;
	case WAIT_BULK: return bulk_over(t, w->object, w->value != 0);
	case WAIT_WORD: return (*w->word & w->object) == w->value;
	}
	return false;
}

void thread_wait(struct wait wait)
{
	running->wait = wait;
	if (!thread_ready(running))
		thread_leave();
	running->wait.kind = WAIT_NONE;
	thread_pause();
}

void thread_pause(void)
{
	if (chance(8) == 0)
		thread_leave();
}

static void thread_main(void)
{
	launch->kernel->run(launch->params);
	struct thread *t = running;
	bulk_thread_end(t);
	products_thread_end(t);
	t->ended = true;
	_longjmp(scheduler, 1);
}

static void thread_start(struct thread *t)
{
	static ucontext_t context;
	getcontext(&context);
	context.uc_stack.ss_sp = (char *)t->stack + PAGE;
	context.uc_stack.ss_size = STACK - PAGE;
	context.uc_link = NULL;
	t->started = true;
	makecontext(&context, thread_main, 0);
	setcontext(&context);
}

static void __attribute__((noinline)) thread_run(struct thread *t)
{
	running = t;
	emulate_now = &t->view;
	if (!_setjmp(scheduler)) {
		if (t->started)
			_longjmp(t->at, 1);
		thread_start(t);
	}
	running = NULL;
}

/* Stacks are kept from launch to launch. */
static void *stack_get(unsigned index)
{
	static void **stack;
	static unsigned count;
	while (count <= index) {
		stack = realloc(stack, (count + 1) * sizeof *stack);
		void *at = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (!stack || at == MAP_FAILED || mprotect(at, PAGE, PROT_NONE))
			abort();
		stack[count++] = at;
	}
	return stack[index];
}

/* ---- CTAs ---- */

static void *zeroed(size_t bytes)
{
	void *at = calloc(1, bytes);
	if (!at)
		abort();
	return at;
}

static void slowness_choose(struct cta *cta)
{
	for (unsigned w = 0; w < (cta->threads + WARP - 1) / WARP; w++)
		cta->warp[w].slow = chance(2) ? 0 : (unsigned)chance(SLOWEST);
}

static struct cta *cta_begin(struct cluster *cluster, unsigned rank, unsigned number, unsigned stacks)
{
	struct cta *cta = zeroed(sizeof *cta);
	cta->cluster = cluster;
	cta->threads = cta->live = launch->threads;
	cta->shared_bytes = launch->shared_bytes;
	cta->shared = aligned_alloc(SHARED_ALIGN, SHARED_MAX + STATIC_MAX);
	if (!cta->shared)
		abort();
	for (unsigned i = 0; i < SHARED_MAX / 2; i++)
		((uint16_t *)(void *)cta->shared)[i] = 0x7fff; /* NaN of both types, and of float32 */
	memset(cta->shared + SHARED_MAX, 0x7f, STATIC_MAX);
	cta->thread = zeroed(launch->threads * sizeof *cta->thread);
	for (unsigned i = 0; i < launch->threads; i++) {
		struct thread *t = &cta->thread[i];
		t->view = (struct emulate_view){i, launch->threads, number, launch->grid, rank, cta->shared, launch->name, 0};
		t->cta = cta;
		t->stack = stack_get(stacks + i);
	}
	slowness_choose(cta);
	return cta;
}

static void cta_free(struct cta *cta)
{
	for (unsigned i = 0; i < cta->threads; i++) {
		free(cta->thread[i].copy);
		free(cta->thread[i].unfenced);
	}
	products_forget(cta);
	free(cta->thread);
	free(cta->shared);
	free(cta);
}

static struct cluster *cluster_begin(unsigned first, unsigned slot)
{
	struct cluster *cluster = zeroed(sizeof *cluster);
	cluster->ctas = cluster->live = (unsigned)launch->kernel->cluster;
	for (unsigned i = 0; i < cluster->ctas; i++)
		cluster->cta[i] = cta_begin(cluster, i, first + i, (slot * CLUSTER_MAX + i) * THREADS_MAX);
	return cluster;
}

static void cluster_free(struct cluster *cluster)
{
	for (unsigned i = 0; i < cluster->ctas; i++)
		cta_free(cluster->cta[i]);
	free(cluster);
}

/* ---- the scheduler ---- */

/* Every thread of the CTA that can go on does. Whether one did. */
static bool cta_turn(struct cta *cta, bool all)
{
	const unsigned warps = (cta->threads + WARP - 1) / WARP, first = (unsigned)chance(warps);
	bool some = false;
	for (unsigned i = 0; i < warps; i++) {
		const unsigned w = (first + i) % warps, lane = (unsigned)chance(WARP);
		if (!all && chance(1u << cta->warp[w].slow))
			continue;
		for (unsigned k = 0; k < WARP; k++) {
			const unsigned index = w * WARP + (lane + k) % WARP;
			struct thread *t = index < cta->threads ? &cta->thread[index] : NULL;
			if (!t || t->ended || !thread_ready(t))
				continue;
			thread_run(t);
			some = true;
			cta->live -= t->ended;
		}
	}
	return some;
}

/* What is under way goes on. Whether something did. */
static bool async_turn(struct cta *cta, unsigned slow)
{
	bool some = false;
	for (unsigned g = 0; g < cta->threads / GROUP; g++)
		while (cta->group[g] && chance(1u << slow) == 0 && products_step(cta, (int)g))
			some = true;
	for (int i = bulk_count(); i > 0; i--)
		if (chance(1u << slow) == 0)
			some |= bulk_step();
	return some;
}

static bool round_run(bool all)
{
	bool some = false;
	const unsigned first = (unsigned)chance(residents);
	for (unsigned i = 0; i < residents; i++) {
		struct cluster *cluster = resident[(first + i) % residents];
		for (unsigned c = 0; cluster && c < cluster->ctas; c++) {
			struct cta *cta = cluster->cta[c];
			if (!cta->live)
				continue;
			some |= cta_turn(cta, all);
			some |= async_turn(cta, all ? 0 : delay);
			if (!cta->live) {
				bulk_cta_end(cta);
				cluster->live--;
			}
			if (chance(EPOCH) == 0)
				slowness_choose(cta);
		}
	}
	if (chance(EPOCH) == 0)
		delay = (unsigned)chance(DELAY_MOST);
	return some;
}

/* ---- who waits ---- */

static int wait_print(char *to, size_t size, const struct thread *t)
{
	const struct wait *w = &t->wait;
	char text[120];
	switch (w->kind) {
	case WAIT_MBARRIER:
		mbarrier_print(text, sizeof text, t->cta, w->object);
		return snprintf(to, size, "for parity %u of %s", (unsigned)w->value, text);
	case WAIT_BARRIER:
		return snprintf(to, size, "for barrier %u, where %d of %d threads are", w->object, t->cta->barrier[w->object].count,
		                t->cta->barrier[w->object].threads);
	case WAIT_WARP: return snprintf(to, size, "for their warp, of which %d lanes are there", t->cta->warp[w->object].count);
	case WAIT_CLUSTER: return snprintf(to, size, "for the cluster, of which %u threads are there", t->cta->cluster->arrived);
	case WAIT_PRODUCTS: return snprintf(to, size, "for products that not all of the warpgroup have issued");
	case WAIT_WORD: return snprintf(to, size, "for bits %x of word %x to be %x", w->object, *w->word, (unsigned)w->value);
	default: return snprintf(to, size, "for what cannot come");
	}
}

static bool wait_same(const struct thread *a, const struct thread *b)
{
	return !a->ended && !b->ended && a->view.line == b->view.line && a->view.file == b->view.file && a->wait.kind == b->wait.kind &&
	       a->wait.object == b->wait.object && a->wait.value == b->wait.value;
}

static void __attribute__((noreturn)) hang_fail(void)
{
	char text[ERROR_MAX - 100];
	int len = snprintf(text, sizeof text, "no thread can go on. They wait");
	for (unsigned i = 0; i < residents; i++)
		for (unsigned c = 0; resident[i] && c < resident[i]->ctas; c++) {
			struct cta *cta = resident[i]->cta[c];
			for (unsigned first = 0, next; first < cta->threads; first = next) {
				const struct thread *t = &cta->thread[first];
				for (next = first + 1; next < cta->threads && wait_same(t, &cta->thread[next]); next++)
					;
				if (t->ended || (size_t)len > sizeof text - 300)
					continue;
				len += snprintf(text + len, sizeof text - (size_t)len, "\n  CTA %u, threads %u..%u, at %s:%d ", t->view.cta, first,
				                next - 1, t->view.file, t->view.line);
				len += wait_print(text + len, sizeof text - (size_t)len, t);
			}
		}
	emulate_fail("%s", text);
}

static void launch_run(void)
{
	const unsigned step = (unsigned)launch->kernel->cluster;
	unsigned next = 0, live = 0;
	do {
		for (unsigned i = 0; i < residents; i++) {
			if (resident[i] && !resident[i]->live) {
				cluster_free(resident[i]);
				resident[i] = NULL;
				live--;
			}
			if (!resident[i] && next < launch->grid) {
				resident[i] = cluster_begin(next, i);
				next += step;
				live++;
			}
		}
		if (live && !round_run(false) && !round_run(true))
			hang_fail();
	} while (live);
	while (bulk_step()) /* writes that the end of the grid waits for */
		;
}

const char *grid_run(const struct launch *l)
{
	launch = l;
	state = l->seed << 32 ^ l->number;
	delay = (unsigned)chance(DELAY_MOST);
	const unsigned step = (unsigned)l->kernel->cluster;
	residents = (l->sms + step - 1) / step;
	resident = zeroed(residents * sizeof *resident);
	const char *result = NULL;
	if (_setjmp(failed))
		result = error;
	else if (step > CLUSTER_MAX || l->grid % step || l->threads > THREADS_MAX || l->shared_bytes > SHARED_MAX)
		result = "a launch beyond what tests/emulate can run";
	else
		launch_run();
	running = NULL;
	bulk_forget();
	for (unsigned i = 0; i < residents; i++)
		if (resident[i])
			cluster_free(resident[i]);
	free(resident);
	return result;
}
