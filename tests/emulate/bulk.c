/* bulk: copies of the async proxy. Each is done at a random time after it was issued; what goes to global memory is read from shared memory
 * at one time and written at another. */
#include "tests/emulate/engine.h"

#include <stdlib.h>
#include <string.h>

enum { BOX_COLUMNS = 64, BOX_ROW = 2 * BOX_COLUMNS };

enum kind { BOX_LOAD, LOAD, SEND, BOX_STORE, STORE, ADD };
struct bulk {
	enum kind kind;
	struct cta *cta, *to_cta;  /* whose thread issued it; whose shared memory receives it */
	unsigned thread, group;
	unsigned shared, barrier, bytes; /* shared: the address at the other end than global memory; of SEND the source */
	unsigned to;
	void *global;
	struct map map;
	int at[4];
	unsigned char *held;       /* read, not yet written */
};

static struct bulk *list;
static int count, room;

static struct bulk *bulk_add(enum kind kind, unsigned bytes)
{
	struct thread *t = thread_now();
	if (count == room) {
		room = 2 * room + 64;
		list = realloc(list, (size_t)room * sizeof *list);
		if (!list)
			abort();
	}
	struct bulk *b = &list[count++];
	*b = (struct bulk){.kind = kind, .cta = t->cta, .to_cta = t->cta, .thread = t->view.thread, .group = t->bulk_groups, .bytes = bytes};
	return b;
}

static bool bulk_loads(const struct bulk *b) { return b->kind <= SEND; } /* to shared memory */
int bulk_count(void) { return count; }
void bulk_forget(void)
{
	for (int i = 0; i < count; i++)
		free(list[i].held);
	count = 0;
}

/* ---- issuing ---- */

static struct map map_read(const void *map)
{
	struct map m;
	memcpy(&m, map, sizeof m);
	if (m.magic != MAP_MAGIC)
		emulate_fail("a copy through what is no tensor map");
	return m;
}

static unsigned box_bytes(const struct map *m) { return m->box[1] * m->box[2] * BOX_ROW; }

static void aligned_check(unsigned address, unsigned bytes, unsigned alignment)
{
	if (address % alignment || bytes % CHUNK || !bytes)
		emulate_fail("a bulk copy of %u bytes at %u of shared memory, not at a multiple of %u", bytes, address, alignment);
}

void emulate_box_load(unsigned to, const void *map, unsigned barrier, const int at[4], unsigned ctas)
{
	struct cta *own = thread_now()->cta;
	const struct map m = map_read(map);
	aligned_check(to, box_bytes(&m), SHARED_ALIGN);
	for (unsigned rank = 0; rank < own->cluster->ctas; rank++) {
		if (ctas ? !(ctas >> rank & 1) : rank != own->thread->view.rank)
			continue;
		struct bulk *b = bulk_add(BOX_LOAD, box_bytes(&m));
		b->map = m, b->to = to, b->barrier = barrier, b->to_cta = own->cluster->cta[rank];
		memcpy(b->at, at, sizeof b->at);
	}
	thread_pause();
}

void emulate_bulk_load(unsigned to, const void *from, unsigned bytes, unsigned barrier)
{
	aligned_check(to, bytes, CHUNK);
	struct bulk *b = bulk_add(LOAD, bytes);
	b->to = to, b->global = (void *)(uintptr_t)from, b->barrier = barrier;
	if ((uintptr_t)from % CHUNK)
		emulate_fail("a bulk copy from %p of global memory", from);
	thread_pause();
}

void emulate_bulk_send(unsigned to, unsigned from, unsigned bytes, unsigned barrier)
{
	struct cta *own = thread_now()->cta, *there = address_cta(&to, own);
	if (address_cta(&barrier, own) != there)
		emulate_fail("a bulk copy to one CTA whose barrier is another's");
	aligned_check(to, bytes, CHUNK);
	aligned_check(from, bytes, CHUNK);
	struct bulk *b = bulk_add(SEND, bytes);
	b->to = to, b->shared = from, b->barrier = barrier, b->to_cta = there;
	thread_pause();
}

void emulate_box_store(const void *map, unsigned from, const int at[4])
{
	const struct map m = map_read(map);
	aligned_check(from, box_bytes(&m), SHARED_ALIGN);
	struct bulk *b = bulk_add(BOX_STORE, box_bytes(&m));
	b->map = m, b->shared = from;
	memcpy(b->at, at, sizeof b->at);
	thread_now()->bulk_open++;
	thread_pause();
}

void emulate_bulk_store(void *to, unsigned from, unsigned bytes, int add)
{
	aligned_check(from, bytes, CHUNK);
	struct bulk *b = bulk_add(add ? ADD : STORE, bytes);
	b->global = to, b->shared = from;
	if ((uintptr_t)to % CHUNK)
		emulate_fail("a bulk copy to %p of global memory", to);
	thread_now()->bulk_open++;
	thread_pause();
}

void emulate_bulk_commit(void)
{
	struct thread *t = thread_now();
	t->bulk_groups++;
	t->bulk_open = 0;
}

bool bulk_over(const struct thread *t, unsigned pending, bool read)
{
	for (int i = 0; i < count; i++) {
		const struct bulk *b = &list[i];
		if (!bulk_loads(b) && b->cta == t->cta && b->thread == t->view.thread &&
		    b->group + pending < t->bulk_groups && !(read && b->held))
			return false;
	}
	return true;
}

void emulate_bulk_wait(int pending, int read)
{
	struct thread *t = thread_now();
	thread_wait((struct wait){WAIT_BULK, (unsigned)pending, read != 0, NULL});
	if (t->bulk_groups >= (unsigned)pending && t->bulk_groups - (unsigned)pending > t->bulk_read)
		t->bulk_read = t->bulk_groups - (unsigned)pending;
}

void bulk_thread_end(const struct thread *t)
{
	if (t->bulk_open || t->bulk_read < t->bulk_groups)
		emulate_fail("the thread ends, and copies that it has not waited for may still read shared memory");
}

void bulk_cta_end(struct cta *cta)
{
	for (int i = 0; i < count; i++) {
		if (bulk_loads(&list[i]) && list[i].to_cta == cta)
			emulate_fail("CTA %u ends while %u bytes are under way to its shared memory", cta->thread->view.cta, list[i].bytes);
		if (list[i].cta == cta) /* read; another CTA may get this address */
			list[i].cta = NULL;
	}
}

/* ---- doing ---- */

/* A box lies in shared memory as rows of 128 bytes whose 16-byte chunks are exchanged by the row's number. */
static unsigned box_at(unsigned row, unsigned column)
{
	const unsigned at = row * BOX_ROW + column * 2;
	return at ^ (at >> 7 & 7) << 4;
}

static unsigned char *box_element(const struct map *m, const int at[4], unsigned row, unsigned column)
{
	const int64_t index[4] = {at[0] + (int64_t)column, at[1] + (int64_t)(row % m->box[1]), at[2] + (int64_t)(row / m->box[1]), at[3]};
	uint64_t offset = 0;
	for (int i = 0; i < 4; i++) {
		if (index[i] < 0 || (uint64_t)index[i] >= m->size[i])
			return NULL;
		offset += (uint64_t)index[i] * (i ? m->stride[i - 1] : 2);
	}
	return (unsigned char *)(uintptr_t)m->address + offset;
}

static void box_move(const struct bulk *b, unsigned char *box, bool load)
{
	for (unsigned r = 0; r < b->map.box[1] * b->map.box[2]; r++)
		for (unsigned c = 0; c < BOX_COLUMNS; c++) {
			unsigned char *const element = box_element(&b->map, b->at, r, c), *const there = box + box_at(r, c);
			if (element)
				memcpy(load ? there : element, load ? element : there, 2);
			else if (load)
				memset(there, 0, 2);
		}
}

static void bulk_write(struct bulk *b)
{
	if (b->kind == BOX_STORE)
		box_move(b, b->held, false);
	else if (b->kind == STORE)
		memcpy(b->global, b->held, b->bytes);
	else
		for (unsigned i = 0; i < b->bytes; i += sizeof(float)) {
			float sum, add;
			memcpy(&sum, (char *)b->global + i, sizeof sum);
			memcpy(&add, b->held + i, sizeof add);
			sum += add;
			memcpy((char *)b->global + i, &sum, sizeof sum);
		}
}

/* Whether it is over. */
static bool bulk_do(struct bulk *b)
{
	switch (b->kind) {
	case BOX_LOAD: box_move(b, address_async(b->to_cta, b->to, b->bytes), true); break;
	case LOAD: memcpy(address_async(b->to_cta, b->to, b->bytes), b->global, b->bytes); break;
	case SEND: memcpy(address_async(b->to_cta, b->to, b->bytes), address_async(b->cta, b->shared, b->bytes), b->bytes); break;
	default:
		if (!b->held) {
			const unsigned char *from = address_async(b->cta, b->shared, b->bytes);
			b->held = malloc(b->bytes);
			if (!b->held)
				abort();
			memcpy(b->held, from, b->bytes);
			return false;
		}
		bulk_write(b);
		return true;
	}
	mbarrier_complete(b->to_cta, b->barrier, b->bytes);
	return true;
}

bool bulk_step(void)
{
	if (!count)
		return false;
	const int i = (int)chance((uint64_t)count);
	if (bulk_do(&list[i])) {
		free(list[i].held);
		list[i] = list[--count];
	}
	return true;
}
