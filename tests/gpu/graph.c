/* RNG-01, RNG-02: dropout in a CUDA graph. Forward and backward are captured once and replayed; V = I and dO = I show which
 * cells each replay kept. With the state in device memory every replay draws the mask of the state it finds, the same one
 * in both passes; with seed and offset by value the captured mask comes back every time. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/driver.h"
#include "tests/gpu/suite.h"

enum { DIM = 64, HEADS = 2, REPLAYS = 3, CELLS = HEADS * DIM * DIM };
enum { QUERY, KEY, VALUE, DOUT, OUT, DQUERY, DKEY, DVALUE, LSE, TENSORS };
static const char text[] = "{head_dim: 64, dropout: 0.1, passes: [forward, backward]}";
static const uint64_t seed = 0x123456789abcdefu, offset = 40;

typedef struct CUgraph_st *graph;
typedef struct CUgraphExec_st *graph_exec;
struct graph_calls {
	cu_result (*begin)(cu_stream, unsigned int mode);
	cu_result (*end)(cu_stream, graph *);
	cu_result (*instantiate)(graph_exec *, graph, unsigned long long flags);
	cu_result (*launch)(graph_exec, cu_stream);
	cu_result (*exec_destroy)(graph_exec);
	cu_result (*destroy)(graph);
};

struct replay {
	struct suite *s;
	bool by_value;
	struct graph_calls call;
	cu_stream stream;
	graph graph;
	graph_exec exec;
	struct gpu_buffer buffer[TENSORS], workspace, state;
	uint16_t out[REPLAYS][CELLS], dvalue[REPLAYS][CELLS];
	struct diag diag;
	char text[2200];
};

static bool calls_find(struct graph_calls *c)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	static const char *const names[] = {"cuStreamBeginCapture_v2",     "cuStreamEndCapture",
	                                    "cuGraphInstantiateWithFlags", "cuGraphLaunch",
	                                    "cuGraphExecDestroy",          "cuGraphDestroy"};
	for (int i = 0; i < 6; i++) {
		void *at = library ? dlsym(library, names[i]) : NULL;
		if (!at)
			return false;
		memcpy((char *)c + (size_t)i * sizeof at, &at, sizeof at);
	}
	return true;
}

static bool data_make(struct replay *r)
{
	static uint16_t eye[CELLS];
	const uint64_t first[2] = {seed, offset};
	const int device = r->s->options.device;
	for (int i = 0; i < CELLS; i++)
		eye[i] = number_encode(i / DIM % DIM == i % DIM, true);
	for (int t = 0; t < TENSORS; t++) {
		const size_t bytes = t == LSE ? HEADS * DIM * sizeof(float) : sizeof eye;
		static const uint16_t zero[CELLS];
		if (gpu_alloc(&r->buffer[t], r->s->rt, device, bytes, &r->diag) ||
		    (t <= DOUT && gpu_upload(&r->buffer[t], 0, t == VALUE || t == DOUT ? eye : zero, bytes, r->s->rt,
		                             device, &r->diag)))
			return false;
	}
	return !gpu_alloc(&r->state, r->s->rt, device, sizeof first, &r->diag) &&
	       !gpu_upload(&r->state, 0, first, sizeof first, r->s->rt, device, &r->diag);
}

static bool args_make(fagen_args *a, struct replay *r, const fagen_kernel *kernel)
{
	fagen_error error = {.struct_size = sizeof error};
	size_t bytes = 0;
	*a = (fagen_args){.struct_size = sizeof *a,
	                  .batch = 1,
	                  .heads_q = HEADS,
	                  .heads_kv = HEADS,
	                  .seqlen_q = DIM,
	                  .seqlen_k = DIM,
	                  .seed = seed,
	                  .offset = offset};
	fagen_tensor *const to[TENSORS] = {&a->query,  &a->key,  &a->value,  &a->dout, &a->out,
	                                   &a->dquery, &a->dkey, &a->dvalue, &a->lse};
	for (int t = 0; t < TENSORS; t++) {
		const int64_t row = t == LSE ? 1 : DIM;
		*to[t] = (fagen_tensor){(void *)(uintptr_t)r->buffer[t].data, HEADS * DIM * row, DIM * row, row};
	}
	if (!r->by_value)
		a->rng_state = (const uint64_t *)(uintptr_t)r->state.data;
	if (fagen_workspace_size(&bytes, kernel, a, &error)) {
		snprintf(r->text, sizeof r->text, "%s", error.message);
		return false;
	}
	if (gpu_alloc(&r->workspace, r->s->rt, r->s->options.device, bytes, &r->diag))
		return false;
	a->workspace = (void *)(uintptr_t)r->workspace.data;
	a->workspace_size = bytes;
	return true;
}

/* Capture, then three replays with the offset moved on in device memory before each. */
static bool replays_run(struct replay *r, const fagen_kernel *kernel)
{
	const struct cuda_calls *cu = driver_calls(runtime_driver(r->s->rt));
	const int device = r->s->options.device;
	fagen_error error = {.struct_size = sizeof error};
	fagen_args a;
	if (!data_make(r) || !args_make(&a, r, kernel))
		return false;
	cu_result result = cu->cuStreamCreate(&r->stream, 1);
	if (!result)
		result = r->call.begin(r->stream, 0);
	if (!result && (fagen_forward(kernel, &a, r->stream, &error) || fagen_backward(kernel, &a, r->stream, &error)))
		return snprintf(r->text, sizeof r->text, "%s", error.message), false;
	if (!result)
		result = r->call.end(r->stream, &r->graph);
	if (!result)
		result = r->call.instantiate(&r->exec, r->graph, 0);
	for (int i = 0; i < REPLAYS && !result; i++) {
		const uint64_t state[2] = {seed, offset + (uint64_t)i};
		if (gpu_upload(&r->state, 0, state, sizeof state, r->s->rt, device, &r->diag) ||
		    gpu_poison(&r->buffer[OUT], r->s->rt, device, &r->diag) ||
		    gpu_poison(&r->buffer[DVALUE], r->s->rt, device, &r->diag))
			return false;
		result = r->call.launch(r->exec, r->stream);
		if (!result)
			result = cu->cuStreamSynchronize(r->stream);
		if (!result &&
		    (gpu_download(r->out[i], &r->buffer[OUT], 0, sizeof r->out[i], r->s->rt, device, &r->diag) ||
		     gpu_download(r->dvalue[i], &r->buffer[DVALUE], 0, sizeof r->dvalue[i], r->s->rt, device,
		                  &r->diag)))
			return false;
	}
	if (result)
		snprintf(r->text, sizeof r->text, "the driver's code %u while capturing or replaying", result);
	return !result;
}

static bool masks_right(struct replay *r, const struct spec *spec)
{
	const struct check_case shape = {
		.batch = 1, .heads_q = HEADS, .heads_kv = HEADS, .seqlen_q = DIM, .seqlen_k = DIM};
	struct ref_program *program;
	struct ref_case ref;
	int changed = 0;
	if (ref_program_make(&program, spec, &r->diag))
		return false;
	case_reference(&ref, &shape, spec, program);
	ref.seed = seed;
	bool ok = true;
	for (int i = 0; i < REPLAYS && ok; i++) {
		ref.offset = offset + (uint64_t)(r->by_value ? 0 : i);
		for (int at = 0; at < CELLS && ok; at++) {
			const int h = at / DIM / DIM, q = at / DIM % DIM, k = at % DIM;
			const bool keep = ref_dropout_keep(&ref, 0, h, q, k), forward = (r->out[i][at] & 0x7fff) != 0,
				   backward = (r->dvalue[i][(h * DIM + k) * DIM + q] & 0x7fff) != 0;
			changed += i > 0 && forward != ((r->out[0][at] & 0x7fff) != 0);
			if (forward != keep || backward != keep) {
				snprintf(r->text, sizeof r->text,
				         "replay %d, head %d, q %d, k %d: should be %s, wrong in the %s pass", i, h, q,
				         k, keep ? "kept" : "dropped", forward != keep ? "forward" : "backward");
				ok = false;
			}
		}
	}
	ref_program_free(program);
	if (ok && (changed > 0) == r->by_value) {
		snprintf(r->text, sizeof r->text, "%d cells changed between replays", changed);
		ok = false;
	}
	return ok;
}

static void graph_case(struct suite *s, const char *name, bool by_value)
{
	struct fault fault = {0};
	fagen_error error = {.struct_size = sizeof error};
	fagen_kernel *kernel;
	const fagen_problem wish = {.struct_size = sizeof wish, .align = 16};
	const fagen_spec *spec = suite_mine(s) ? suite_spec(s, CLASS_RNG, text) : NULL;
	struct replay *r = spec ? calloc(1, sizeof *r) : NULL;
	if (!r)
		return;
	*r = (struct replay){.s = s, .by_value = by_value};
	fault.diag = &r->diag;
	bool ok = false;
	if (fagen_kernel_get(&kernel, s->rt, spec, &wish, s->options.device, &error))
		snprintf(r->text, sizeof r->text, "%s", error.message);
	else if (!calls_find(&r->call))
		snprintf(r->text, sizeof r->text, "the driver has no graphs");
	else if (!driver_push(runtime_driver(s->rt), s->options.device, &fault)) {
		ok = replays_run(r, kernel) && masks_right(r, runtime_spec(spec));
		if (r->exec)
			r->call.exec_destroy(r->exec);
		if (r->graph)
			r->call.destroy(r->graph);
		if (r->stream)
			driver_calls(runtime_driver(s->rt))->cuStreamDestroy_v2(r->stream);
		ok = !driver_pop(runtime_driver(s->rt), &fault) && ok;
	}
	suite_result(s, CLASS_RNG, ok, name, r->diag.errors ? text_str(&r->diag.text) : r->text);
	for (int t = 0; t < TENSORS; t++)
		gpu_free(&r->buffer[t], s->rt, s->options.device);
	gpu_free(&r->workspace, s->rt, s->options.device);
	gpu_free(&r->state, s->rt, s->options.device);
	diag_free(&r->diag);
	free(r);
}

void suite_graph(struct suite *s)
{
	suite_case(s, CLASS_RNG, text, "b1,h2,q64,k64");
	if (s->warming || (s->only_class && strcmp(s->only_class, class_names[CLASS_RNG])))
		return;
	graph_case(s, "RNG-01 a replayed graph with the state in device memory", false);
	graph_case(s, "RNG-02 a replayed graph with seed and offset by value", true);
}
