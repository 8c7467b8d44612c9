# fagen: one Makefile, no recursion. `make help` is the index.

VARIANT := $(if $(SAN),san,release)
B       := build/$(VARIANT)
CC      ?= cc
STD     := -std=c11 -D_GNU_SOURCE -I.
WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-unused-parameter
OPT     := $(if $(SAN),-O1 -g -fno-omit-frame-pointer -fsanitize=address$(comma)undefined -fno-sanitize-recover=undefined,-O2 -g)
comma   := ,
CFLAGS  += $(STD) $(WARN) $(OPT) -fPIC -fvisibility=hidden -MMD -MP
LDFLAGS += $(if $(SAN),-fsanitize=address$(comma)undefined)
LIBS    := -lyaml -lmd -ldl -lpthread -lm

FOLDERS   := gen cache runtime check cli
SRC       := $(foreach d,$(FOLDERS),$(wildcard $(d)/*.c))
TEMPLATES := $(shell find templates -type f \( -name '*.h' -o -name '*.cu' \) | sort)
obj        = $(patsubst %.c,$(B)/%.o,$(wildcard $(1)/*.c))
ARCHIVES  := $(B)/libruntime.a $(B)/libcache.a $(B)/libgen.a
SUITES    := $(patsubst tests/t_%.c,$(B)/tests/t_%,$(wildcard tests/t_*.c))

.PHONY: all
all: $(B)/fagen $(B)/libfagen.so ## build the command and the library

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<

# The templates are assembled into this object.
$(B)/gen/embed.o: $(TEMPLATES)

$(B)/lib%.a:
	@rm -f $@
	ar rcs $@ $^
$(B)/libgen.a: $(call obj,gen)
$(B)/libcache.a: $(call obj,cache)
$(B)/libruntime.a: $(call obj,runtime)
$(B)/libcheck.a: $(call obj,check)

$(B)/libfagen.so: $(call obj,gen) $(call obj,cache) $(call obj,runtime)
	$(CC) $(LDFLAGS) -shared -Wl,-soname,libfagen.so.0 -o $@ $^ $(LIBS)

$(B)/fagen: $(call obj,cli) $(B)/libcheck.a $(ARCHIVES)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

# One Check runner for each tests/t_NAME.c, which defines `Suite *suite(void)`.
$(B)/tests/t_%: $(B)/tests/t_%.o $(B)/tests/run_suite.o $(B)/libcheck.a $(ARCHIVES)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS) -lcheck -lsubunit -lrt

-include $(shell find build -name '*.d' 2>/dev/null)

# gen/embed.c: the list of templates to assemble.
$(B)/gen/embed.def: $(TEMPLATES)
	@mkdir -p $(@D)
	printf 'EMBED(%s)\n' $^ > $@
$(B)/gen/embed.o: $(B)/gen/embed.def
$(B)/gen/embed.o: CFLAGS += -I$(B)
