# bdlm - block-diffusion language models in C.
#
#   make            the program, the static and the shared library, in $(BUILD)
#   make test       every test program          make test-room ROOM=attention   one room
#   make demo       train, draft, compare       make bench                       measured ratios
#   make help       all targets

BUILD   ?= build
PREFIX  ?= /usr/local
ifeq ($(origin CC),default)
CC      := cc
endif
VERSION := 0.1.0

# The floors of the house, top first. A room includes only rooms named before it.
FLOORS  := base tensor parallel attention autograd format model diffusion draft train distill serve cli
# ROOM=x builds the library up to that room only; useful while working on one room.
ROOM    ?= cli
ROOMS   := $(shell for r in $(FLOORS); do echo $$r; [ $$r = $(ROOM) ] && break; done)

LIBS     := jansson yaml-0.1 libpcre2-8 libutf8proc libcrypto zlib libzmq
PKG_CFLAGS := $(shell pkg-config --cflags $(LIBS) 2>/dev/null)
PKG_LIBS   := $(shell pkg-config --libs $(LIBS) 2>/dev/null)

WARN    := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes \
           -Wmissing-prototypes -Wpointer-arith -Wvla -Werror
OPT     ?= -O3 -g -fno-math-errno -fno-trapping-math
ALL_CFLAGS = -std=c17 -D_GNU_SOURCE -fPIC -Iinclude -Isrc -DBD_VERSION='"$(VERSION)"' \
           $(WARN) $(OPT) $(SANITIZE_FLAGS) $(COVERAGE_FLAGS) $(PKG_CFLAGS) $(CFLAGS)
ALL_LIBS   = $(PKG_LIBS) -lm -lpthread

ifneq ($(SANITIZE),)
SANITIZE_FLAGS := -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer
OPT            := -O1 -g -fno-math-errno -fno-trapping-math
override BUILD := $(BUILD)-sanitize
endif

# --- sources -----------------------------------------------------------------------------------
# src/ROOM/isa/NAME.c is compiled once per instruction set; BD_ISA names the level in its symbols.
LIB_ROOMS := $(filter-out cli,$(ROOMS))
SRC       := $(foreach r,$(LIB_ROOMS),$(wildcard src/$(r)/*.c))
ISA_SRC   := $(foreach r,$(LIB_ROOMS),$(wildcard src/$(r)/isa/*.c))
ISAS      := portable avx2 avx512 avx512bf16
ISA_FLAGS_portable   :=
ISA_FLAGS_avx2       := -mavx2 -mfma -mf16c
ISA_FLAGS_avx512     := -march=x86-64-v4 -mprefer-vector-width=512
ISA_FLAGS_avx512bf16 := -march=x86-64-v4 -mavx512bf16 -mavx512vnni -mprefer-vector-width=512

OBJ     := $(SRC:%.c=$(BUILD)/%.o) \
           $(foreach isa,$(ISAS),$(ISA_SRC:%.c=$(BUILD)/%.$(isa).o))
CLI_SRC := $(if $(filter cli,$(ROOMS)),$(wildcard src/cli/*.c))
CLI_OBJ := $(CLI_SRC:%.c=$(BUILD)/%.o)

LIB     := $(BUILD)/libbdlm.a
SHARED  := $(BUILD)/libbdlm.so
PROGRAM := $(BUILD)/bdlm

TEST_SRC := $(foreach r,$(ROOMS),$(wildcard tests/$(r)/test_*.c))
ifeq ($(ROOM),cli)
TEST_SRC += $(wildcard tests/field/test_*.c)
endif
TESTS    := $(TEST_SRC:%.c=$(BUILD)/%)
BENCHES  := $(patsubst %.c,$(BUILD)/%,$(wildcard bench/bench_*.c))
EXAMPLES := $(patsubst %.c,$(BUILD)/%,$(wildcard examples/*.c))

.PHONY: all lib test run-tests test-room test-long demo bench run-bench bench-check bench-store install deps deps-tools format lint \
        coverage clean help
.DEFAULT_GOAL := all

all: $(if $(filter cli,$(ROOMS)),$(PROGRAM) $(SHARED)) $(LIB)
lib: $(LIB)

$(LIB): $(OBJ)
	@rm -f $@ && ar rcs $@ $^
$(SHARED): $(OBJ)
	@$(CC) -shared -Wl,-soname,libbdlm.so.0 $(SANITIZE_FLAGS) $(COVERAGE_FLAGS) -o $@ $^ $(ALL_LIBS)
$(PROGRAM): $(CLI_OBJ) $(LIB)
	@$(CC) $(SANITIZE_FLAGS) $(COVERAGE_FLAGS) $(LDFLAGS) -o $@ $^ $(ALL_LIBS)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC $<"; $(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<
define isa_rule
$(BUILD)/%.$(1).o: %.c
	@mkdir -p $$(@D)
	@echo "  CC $$< [$(1)]"; $(CC) $(ALL_CFLAGS) $(ISA_FLAGS_$(1)) -DBD_ISA=$(1) -DBD_ISA_$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach isa,$(ISAS),$(eval $(call isa_rule,$(isa))))

# --- tests: every tests/ROOM/test_NAME.c is one program -------------------------------------------
$(BUILD)/tests/%: tests/%.c $(LIB)
	@mkdir -p $(@D)
	@echo "  LINK $@"; $(CC) $(ALL_CFLAGS) -Itests -MMD -MP -o $@ $< $(LIB) $(ALL_LIBS) -lcmocka
$(BUILD)/bench/%: bench/%.c $(LIB)
	@mkdir -p $(@D)
	@$(CC) $(ALL_CFLAGS) -MMD -MP -o $@ $< $(LIB) $(ALL_LIBS)
# Programs of others: the public headers are all they see.
$(BUILD)/examples/%: examples/%.c $(LIB)
	@mkdir -p $(@D)
	@$(CC) -std=c17 -Iinclude $(WARN) $(OPT) $(SANITIZE_FLAGS) $(COVERAGE_FLAGS) -MMD -MP -o $@ $< $(LIB) $(ALL_LIBS)

# The program without distillation, and without rollouts to learn from: other training has the same
# bytes (tests/cli/test_linked.sh).
$(PROGRAM)-without-distill: tests/link/without_distill.c $(CLI_OBJ) $(OBJ)
	@echo "  LINK $@"; $(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $< $(filter-out %/distill.o %/probe_distill.o, \
	    $(CLI_OBJ)) $(filter-out $(BUILD)/src/distill/%,$(OBJ)) $(ALL_LIBS)
$(PROGRAM)-without-rollout: tests/link/without_rollout.c $(CLI_OBJ) $(LIB)
	@echo "  LINK $@"; $(CC) $(ALL_CFLAGS) $(LDFLAGS) -Wl,--wrap=bd_prepare_rollout -o $@ $< $(CLI_OBJ) $(LIB) $(ALL_LIBS)
LINKED := $(PROGRAM)-without-distill $(PROGRAM)-without-rollout

ROOM_TESTS := $(filter $(BUILD)/tests/$(ROOM)/%,$(TESTS))
test-room: $(ROOM_TESTS)
	@tools/run-tests $(ROOM_TESTS)

run-tests: $(TESTS) $(PROGRAM) $(LINKED) $(EXAMPLES)
	@BDLM=$(PROGRAM) tools/run-tests $(TESTS) $(wildcard tests/cli/test_*.sh)

# Packages are looked at first and pkg-config asked again afterwards, hence the second make; on all
# cores, unless the first one was told how many.
AGAIN = $(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))
test: deps
	@$(AGAIN) run-tests
test-long: deps
	@$(AGAIN) run-tests
	@BDLM=$(PROGRAM) tools/run-tests $(wildcard tests/long/test_*.sh)
demo: deps
	@$(AGAIN) $(PROGRAM)
	@$(PROGRAM) demo --out demo
bench: deps
	@$(AGAIN) run-bench
# Figures go to $(BUILD)/bench/results.jsonl and, as a table beside the stored ones, results.md.
RESULTS := $(BUILD)/bench/results.jsonl
run-bench: $(BENCHES) $(BUILD)/bench/check
	@rm -f $(RESULTS)
	@for b in $(BENCHES); do echo "== $$b"; BDLM_BENCH_OUT=$(RESULTS) $$b || exit 1; done
	@$(BUILD)/bench/check $(RESULTS) bench/baseline.json >$(BUILD)/bench/results.md
	@echo; tail -n 1 $(BUILD)/bench/results.md; echo "$(BUILD)/bench/results.md"
bench-check: $(BUILD)/bench/check
	@$(BUILD)/bench/check $(RESULTS) bench/baseline.json | grep -e HIGHER -e LOWER -e moved -e '^| figure'
bench-store: $(BUILD)/bench/check
	@$(BUILD)/bench/check $(RESULTS) --store bench/baseline.json

deps:
	@tools/deps need
deps-tools:
	@tools/deps need tool

# --- installation --------------------------------------------------------------------------------------
install: all $(BUILD)/bdlm.pc
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig \
	    $(DESTDIR)$(PREFIX)/include/bdlm $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bdlm/recipes
	install -m 755 $(PROGRAM) $(DESTDIR)$(PREFIX)/bin/bdlm
	install -m 644 $(LIB) $(DESTDIR)$(PREFIX)/lib/libbdlm.a
	install -m 755 $(SHARED) $(DESTDIR)$(PREFIX)/lib/libbdlm.so.0
	ln -sf libbdlm.so.0 $(DESTDIR)$(PREFIX)/lib/libbdlm.so
	install -m 644 include/bdlm/*.h $(DESTDIR)$(PREFIX)/include/bdlm
	install -m 644 $(BUILD)/bdlm.pc $(DESTDIR)$(PREFIX)/lib/pkgconfig/bdlm.pc
	install -m 644 docs/bdlm.1 $(DESTDIR)$(PREFIX)/share/man/man1/bdlm.1
	install -m 644 $(wildcard recipes/*.yaml) $(DESTDIR)$(PREFIX)/share/bdlm/recipes

$(BUILD)/bdlm.pc: Makefile
	@mkdir -p $(@D)
	@printf '%s\n' 'prefix=$(PREFIX)' 'Name: bdlm' 'Description: block-diffusion language models' \
	    'Version: $(VERSION)' 'Requires.private: $(LIBS)' 'Libs: -L$${prefix}/lib -lbdlm' \
	    'Libs.private: -lm -lpthread' 'Cflags: -I$${prefix}/include' > $@

# --- upkeep --------------------------------------------------------------------------------------------
C_FILES = $(shell git ls-files '*.c' '*.h' 2>/dev/null || find src include tests bench fuzz examples -name '*.[ch]')
format:
	@clang-format -i $(C_FILES)
lint:
	@clang-format --dry-run --Werror $(C_FILES)
	@cppcheck --quiet -j2 --std=c11 --library=tools/cppcheck.cfg --enable=warning,portability \
	    --inline-suppr --error-exitcode=1 --suppress=missingIncludeSystem \
	    --suppress=arrayIndexThenCheck -Iinclude -Isrc $(filter-out $(wildcard src/*/isa/*.c),$(filter src/%.c,$(C_FILES)))
	@if [ -x ../shared/tools/rooms ]; then ../shared/tools/rooms; fi
coverage:
	@$(MAKE) --no-print-directory BUILD=build-coverage COVERAGE_FLAGS=--coverage OPT='-O1 -g' run-tests
	@gcovr --root . --object-directory build-coverage --filter src/ --print-summary \
	    --html-details build-coverage/coverage.html
	@echo "build-coverage/coverage.html"

help:
	@sed -n 's/^#  *//p' Makefile | head -4
	@echo "make bench-check, test-long, install PREFIX=, format, lint, coverage, deps, clean; SANITIZE=address,undefined test"

clean:
	rm -rf build build-*

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
