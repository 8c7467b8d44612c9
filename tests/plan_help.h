/* Specs, plans of them, and what must hold of every plan. */
#ifndef FAGEN_TESTS_PLAN_HELP_H
#define FAGEN_TESTS_PLAN_HELP_H

#include <check.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "gen/model.h"

static uint64_t rng_state = 0x2545F4914F6CDD1Du;
static inline uint64_t rng(void)
{
	rng_state ^= rng_state << 13;
	rng_state ^= rng_state >> 7;
	return rng_state ^= rng_state << 17;
}
static inline int64_t rng_in(int64_t least, int64_t most) { return least + (int64_t)(rng() % (uint64_t)(most - least + 1)); }

static inline struct spec spec_plain(int qk, int v)
{
	struct spec spec = {.name = "t",
	                    .mask = -1,
	                    .score = -1,
	                    .head_dim_qk = qk,
	                    .head_dim_v = v,
	                    .dtype = DTYPE_BF16,
	                    .keep_256 = DROPOUT_LEVELS,
	                    .kv_group = 0,
	                    .softmax_scale = 0.125,
	                    .outputs = OUTPUT_OUT | OUTPUT_LSE,
	                    .passes = {true, true},
	                    .assume = {4, 16, 16, 4096, 4096, 16}};
	for (int i = 0; i < TARGET_COUNT; i++)
		spec.targets[i] = true;
	return spec;
}

enum { UNBOUNDED = -1 };
static inline struct term_arg argument(int64_t value)
{
	return (struct term_arg){.kind = value == UNBOUNDED ? ARG_UNBOUNDED : ARG_INT, .i = value};
}

/* The piece of that name; NULL: there is none. */
static inline const struct recipe_piece *piece_find(const struct recipe *recipe, const char *name)
{
	for (int i = 0; i < recipe->piece_count; i++)
		if (strcmp(recipe->piece[i].name, name) == 0)
			return &recipe->piece[i];
	return NULL;
}

/* One more member of the mask, all of which must hold. */
static inline void spec_mask(struct spec *spec, const char *preset, int64_t left, int64_t right)
{
	if (spec->mask < 0) {
		spec->mask = spec->term_count++;
		spec->term[spec->mask] = (struct term){.kind = TERM_ALL, .child = -1, .next = -1};
	}
	const int made = spec->term_count++;
	spec->term[made] = (struct term){.kind = TERM_PRESET,
	                                 .preset = preset_find(preset),
	                                 .arg = {argument(left), argument(right)},
	                                 .child = -1,
	                                 .next = spec->term[spec->mask].child};
	spec->term[spec->mask].child = made;
}

/* What the masks mean, written out once more. */
static inline bool visible(const struct spec *spec, int64_t sq, int64_t sk, int64_t q, int64_t k)
{
	for (int i = spec->mask < 0 ? -1 : spec->term[spec->mask].child; i >= 0; i = spec->term[i].next) {
		const struct term *t = &spec->term[i];
		const char *name = preset_table[t->preset].name;
		const int64_t left = t->arg[0].i, right = t->arg[1].i, behind = (q - sq) - (k - sk);
		if (strcmp(name, "causal") == 0            ? behind < 0
		    : strcmp(name, "causal_top_left") == 0 ? k > q
		    : strcmp(name, "prefix") == 0          ? behind < 0 && k >= left
		                                           : (left != UNBOUNDED && behind > left) ||
		                                                     (right != UNBOUNDED && -behind > right))
			return false;
	}
	return true;
}

static inline struct spec spec_random(void)
{
	struct spec spec = spec_plain((int)rng_in(2, 32) * 8, (int)rng_in(2, 32) * 8);
	static const char *const names[] = {"causal", "causal_top_left", "prefix", "window"};
	for (int i = (int)rng_in(0, 2); i > 0; i--) {
		const int which = (int)rng_in(0, 3);
		const int64_t left = which == 3 && rng() & 1 ? UNBOUNDED : rng_in(0, 400),
			      right = rng() & 1 ? UNBOUNDED : rng_in(0, 400);
		spec_mask(&spec, names[which], which >= 2 ? left : 0, which == 3 ? right : 0);
	}
	if (rng() % 4 == 0)
		spec.keep_256 = (int)rng_in(1, 255);
	spec.dtype = rng() & 1 ? DTYPE_BF16 : DTYPE_FP16;
	spec.deterministic = rng() % 4 == 0;
	return spec;
}

static inline void lower(struct program *program, const struct spec *spec)
{
	struct diag diag = {0};
	ck_assert_msg(program_lower(program, spec, &diag) == 0, "%s", text_str(&diag.text));
	diag_free(&diag);
}

/* Plans or returns -1 with the message. */
static inline int make(struct plan *plan, const struct spec *spec, const char *gpu, const struct problem *problem,
                enum pass pass, struct diag *diag)
{
	static struct program program;
	const struct device *device = device_find(gpu);
	ck_assert_ptr_nonnull(device);
	lower(&program, spec);
	return plan_make(plan, spec, &program, target_find(device->target), device, problem, pass, diag);
}

static inline void must_make(struct plan *plan, const struct spec *spec, const char *gpu, const struct problem *problem,
                      enum pass pass)
{
	struct diag diag = {0};
	ck_assert_msg(make(plan, spec, gpu, problem, pass, &diag) == 0, "%s", text_str(&diag.text));
	ck_assert_int_eq(diag.errors, 0);
	diag_free(&diag);
}

/* The same by one template, whatever else would serve. */
static inline void must_make_with(struct plan *plan, const struct template_model *model, const struct spec *spec,
                                  const char *gpu, const struct problem *problem)
{
	static struct program program;
	const struct device *device = device_find(gpu);
	struct diag diag = {0};
	lower(&program, spec);
	ck_assert_msg(plan_with(plan, model, spec, &program, target_find(device->target), device, problem, model->pass,
	                        &diag) == 0,
	              "%s", text_str(&diag.text));
	diag_free(&diag);
}

static const struct candidate *best(const struct plan *plan) { return &plan->candidate[plan->chosen]; }

static const char *const gpus[] = {"A100", "RTX 3090", "L40S", "H200", "B200", "RTX 5090"};
enum { GPUS = sizeof gpus / sizeof *gpus };

static struct plan plan, other;

/* ---- properties ---- */

static inline void check_candidate(const struct plan *p, const struct candidate *c)
{
	const struct target *t = p->target;
	if (c->reason[0] != '\0')
		return;
	int sum = 0;
	for (int i = 0; i < c->smem_term_count; i++) {
		ck_assert(c->smem_term[i].name[0] != '\0' && c->smem_term[i].bytes > 0);
		sum += c->smem_term[i].bytes;
	}
	ck_assert_int_eq(sum, c->smem_bytes);
	ck_assert_int_le(c->smem_bytes, t->smem_block);
	ck_assert_int_le(c->regs, t->regs_thread);
	ck_assert_int_ge(c->ctas_sm, 1);
	ck_assert_int_le(c->ctas_sm * c->regs * 32 * c->warps, t->regs_sm);
	ck_assert_int_le(c->ctas_sm * (c->smem_bytes + 1024), t->smem_sm);
	ck_assert_int_le(c->ctas_sm * 32 * c->warps, t->threads_sm);
	ck_assert(c->visited >= 0 && c->visited <= 1);
	ck_assert(isfinite(c->time_us) && c->time_us > 0);
	double largest = 0;
	for (int i = 0; i < COST_COUNT; i++) {
		ck_assert(isfinite(c->cost_us[i]) && c->cost_us[i] >= 0);
		largest = fmax(largest, c->cost_us[i]);
	}
	for (int i = COST_MMA; i <= COST_SMEM && c->bound_by <= COST_SMEM; i++)
		ck_assert(c->cost_us[c->bound_by] >= c->cost_us[i]);
	ck_assert(c->time_us >= largest);
}

static inline void check_plan(const struct plan *p, const struct spec *spec)
{
	ck_assert(p->candidate_count > 0 && p->candidate_count <= CANDIDATES_MAX);
	ck_assert(p->chosen >= 0 && p->chosen < p->candidate_count);
	ck_assert_str_eq(best(p)->reason, "");
	for (int i = 0; i < p->candidate_count; i++) {
		check_candidate(p, &p->candidate[i]);
		if (p->candidate[i].reason[0] == '\0')
			ck_assert(best(p)->time_us <= p->candidate[i].time_us || best(p)->heads != p->candidate[i].heads);
	}
	ck_assert(p->useful_flop <= best(p)->mma_flop * (1 + 1e-9) || p->pass == PASS_BACKWARD);
	ck_assert_int_gt(p->recipe.kernel_count, 0);
	ck_assert_int_eq(p->recipe.load_bytes, p->problem.align);
	ck_assert_int_eq(p->recipe.kv_group, spec->kv_group);
	bool main_found = false;
	for (int i = 0; i < p->recipe.kernel_count; i++) {
		const struct recipe_kernel *k = &p->recipe.kernel[i];
		ck_assert(k->tile > 0 && k->threads > 0 && k->threads <= 1024 &&
		          k->smem_bytes <= p->target->smem_block);
		main_found |= k->smem_bytes == best(p)->smem_bytes && k->threads == 32 * best(p)->warps;
	}
	ck_assert(main_found);
	struct text text = {0};
	struct diag diag = {0};
	struct recipe back;
	recipe_print(&text, &p->recipe);
	ck_assert_msg(recipe_parse(&back, text_str(&text), &diag) == 0, "%s", text_str(&diag.text));
	ck_assert_int_eq(memcmp(&back, &p->recipe, sizeof back), 0);
	text_free(&text);
	diag_free(&diag);
}

#endif
