#include "check/trial.h"

#include <stdlib.h>
#include <string.h>

static size_t grad_bytes(const struct named *n) { return (size_t)n->grad_at.elements * 4; }

int inputs_make(struct trial *r)
{
	const int device = r->options->device;
	if (named_make(r->named, r->c, r->spec)) {
		diag_fail(&r->diag, "Out of host memory for the inputs of the spec.");
		return trial_machine(r);
	}
	for (int i = 0; i < r->spec->input_count; i++) {
		const struct named *n = &r->named[i];
		struct named_device *d = &r->named_device[i];
		const size_t bytes = (size_t)(n->at.elements * n->bytes);
		fagen_input *in = &r->inputs[i];
		if (gpu_alloc(&d->data, r->rt, device, bytes, &r->diag) ||
		    gpu_upload(&d->data, 0, n->image, bytes, r->rt, device, &r->diag))
			return trial_machine(r);
		*in = (fagen_input){.name = n->input->name,
		                    .data = (void *)(uintptr_t)(d->data.data + (uint64_t)(n->at.offset * n->bytes))};
		memcpy(in->stride, n->at.stride, sizeof in->stride);
		r->ref_input[i] = (struct ref_input){.name = n->input->name, .dims = n->input->dims, .data = n->values};
		memcpy(r->ref_input[i].dim, n->size, sizeof n->size);
		for (int at = 0; at < n->input->dims; at++)
			r->ref_input[i].axis[at] = n->input->dim[at].kind == DIM_SEQ_Q   ? 'q'
			                           : n->input->dim[at].kind == DIM_SEQ_K ? 'k'
			                                                                 : 0;
		if (!n->input->grad || !r->backward || r->options->naive)
			continue;
		d->got = malloc(grad_bytes(n) + 1);
		if (!d->got)
			abort();
		if (gpu_alloc(&d->grad, r->rt, device, grad_bytes(n), &r->diag))
			return trial_machine(r);
		in->grad = (void *)(uintptr_t)(d->grad.data + (uint64_t)(n->grad_at.offset * 4));
		memcpy(in->grad_stride, n->grad_at.stride, sizeof in->grad_stride);
		r->ref_input[i].grad = r->grads = true;
	}
	return 0;
}

int grads_poison(struct trial *r)
{
	for (int i = 0; i < r->spec->input_count && !r->options->no_poison; i++)
		if (r->named_device[i].got && gpu_poison(&r->named_device[i].grad, r->rt, r->options->device, &r->diag))
			return trial_machine(r);
	return 0;
}

int grads_fetch(struct trial *r, bool again)
{
	for (int i = 0; i < r->spec->input_count; i++) {
		struct named_device *d = &r->named_device[i];
		const size_t bytes = grad_bytes(&r->named[i]);
		if (!d->got)
			continue;
		unsigned char *now = malloc(bytes + 1);
		if (!now)
			abort();
		if (gpu_download(now, &d->grad, 0, bytes, r->rt, r->options->device, &r->diag)) {
			free(now);
			return trial_machine(r);
		}
		const bool changed = again && memcmp(now, d->got, bytes) != 0;
		free(d->got);
		d->got = now;
		if (changed) {
			diag_fail(&r->diag,
			          "Two runs of the backward pass gave different bits in the gradient of input %s.",
			          r->named[i].input->name);
			return trial_fail(r, CHECK_WRONG, text_str(&r->diag.text));
		}
	}
	return 0;
}

double *grad_gather(const struct trial *r, int i)
{
	const struct named *n = &r->named[i];
	double *to = malloc((size_t)(n->elements + 1) * sizeof *to);
	if (!to)
		abort();
	for (int64_t e = 0; e < n->elements; e++) {
		float f;
		memcpy(&f, r->named_device[i].got + placed_index(&n->grad_at, n, e) * 4, sizeof f);
		to[e] = f;
	}
	return to;
}

int inputs_check(struct trial *r)
{
	const int device = r->options->device;
	for (int i = 0; i < r->spec->input_count; i++) {
		const struct named *n = &r->named[i];
		struct named_device *d = &r->named_device[i];
		const char *name = n->input->name;
		const size_t bytes = (size_t)(n->at.elements * n->bytes);
		unsigned char *now = malloc(bytes + 1);
		if (!now)
			abort();
		const int fetched = gpu_download(now, &d->data, 0, bytes, r->rt, device, &r->diag),
			  changed = !fetched && memcmp(now, n->image, bytes);
		free(now);
		if (fetched)
			return trial_machine(r);
		if (changed) {
			diag_fail(&r->diag, "Input %s was changed by a kernel.", name);
			return trial_fail(r, CHECK_WRONG, text_str(&r->diag.text));
		}
		if (gpu_guards(&d->data, name, r->rt, device, &r->diag) ||
		    (d->got && gpu_guards(&d->grad, name, r->rt, device, &r->diag)))
			return trial_fail(r, CHECK_WRONG, text_str(&r->diag.text));
		if (!d->got || r->options->no_poison)
			continue;
		for (int64_t e = 0; e < n->elements; e++)
			memset(d->got + placed_index(&n->grad_at, n, e) * 4, GPU_POISON, 4);
		for (size_t at = 0; at < grad_bytes(n); at++)
			if (d->got[at] != GPU_POISON) {
				diag_fail(
					&r->diag,
					"Byte %zu of the gradient of input %s lies between its elements and was written.",
					at, name);
				return trial_fail(r, CHECK_WRONG, text_str(&r->diag.text));
			}
	}
	return 0;
}

void inputs_free(struct trial *r)
{
	for (int i = 0; i < SPEC_INPUTS_MAX; i++) {
		gpu_free(&r->named_device[i].data, r->rt, r->options->device);
		gpu_free(&r->named_device[i].grad, r->rt, r->options->device);
		free(r->named_device[i].got);
	}
	named_free(r->named);
}
