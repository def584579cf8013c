# `make demo` and `make test` do all set-up on a fresh machine; what is done once is not done twice.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
BUILD := build
SOURCES := CMakeLists.txt pyproject.toml $(shell find cmake include src bindings python -type f -not -name '*.pyc')
CPP_TESTS := $(shell find tests/cpp examples/cpp models bench -type f)
RANK_TESTS := dist* gradcheck* ranks_page limits_ranks
WORKERS ?= 2
N ?= 100000
SEED ?= 0

export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_SLOPPINESS := pch_defines,time_macros
export CCACHE_DEPEND := 1
export CMAKE_GENERATOR := Ninja

.PHONY: demo test test-cpp test-python test-ranks setup build fuzz sanitize bench lint format proofs proofs-hf mutants clean

demo: build
	$(PY) -m retape demo

test: build lint test-cpp test-python

setup: $(BUILD)/.system $(VENV)/.ready
build: $(BUILD)/.installed

$(BUILD)/.system: tools/system_packages.sh
	tools/system_packages.sh
	@mkdir -p $(BUILD) && touch $@

$(VENV)/.ready: tools/python_packages.sh pyproject.toml | $(BUILD)/.system
	PYTHON=$(PYTHON) VENV=$(VENV) tools/python_packages.sh
	@touch $@

# --no-build-isolation: built against the torch that it will run with. A developer's build has faults
# that can be injected (retape verify --inject); `pip install .` alone has none.
$(BUILD)/.installed: $(SOURCES) | $(VENV)/.ready
	$(PY) -m pip install --quiet --no-build-isolation --no-deps --force-reinstall \
	  -C cmake.define.RETAPE_FAULTS=ON .
	@touch $@

# The C++ tests are a C++ user's project: they find the installed package.
$(BUILD)/tests/.built: $(BUILD)/.installed $(CPP_TESTS)
	cmake -S tests/cpp -B $(BUILD)/tests -DRetape_DIR="$$($(PY) -m retape --cmake-dir)" \
	  -DPython_EXECUTABLE=$(CURDIR)/$(PY) -DRETAPE_BUILD_EXAMPLES=ON > $(BUILD)/tests.configure.log \
	  || (cat $(BUILD)/tests.configure.log; false)
	cmake --build $(BUILD)/tests
	@touch $@

test-cpp: $(BUILD)/tests/.built
	OMP_NUM_THREADS=1 ctest --test-dir $(BUILD)/tests --output-on-failure -j $(WORKERS)

test-python: build $(BUILD)/tests/.built
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) tests/python tests/conformance

# Of these, what ranks do: three to four minutes on two cores.
test-ranks: build $(BUILD)/tests/.built
	OMP_NUM_THREADS=1 ctest --test-dir $(BUILD)/tests --output-on-failure -j $(WORKERS) -R '^dist'
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) $(wildcard $(RANK_TESTS:%=tests/python/test_%.py))

# Random programs without end: N of them, from SEED on. A failing one is shrunk and printed; what was
# counted, if none failed, is there for `make proofs`.
fuzz: build
	OMP_NUM_THREADS=1 $(PY) -m tests.python.programs --count $(N) --seed $(SEED) \
	  --json $(BUILD)/fuzz/seeds_$(SEED).json

# C++ tests under AddressSanitizer with UBSan, then under ThreadSanitizer.
sanitize: $(BUILD)/.installed
	PY=$(PY) tools/sanitize.sh address
	PY=$(PY) tools/sanitize.sh thread

# Everything beside everything: minutes, on a machine with nothing else to do (docs/bench.md).
bench: build
	$(PY) -m retape bench overhead
	$(PY) -m retape bench --frontier --html $(BUILD)/bench.html --markdown $(BUILD)/bench.md

# The tables of docs/proofs.md, and the page with the hazards.
proofs: build
	OMP_NUM_THREADS=1 $(PY) -m tests.python.audit --json $(BUILD)/audit.json
	OMP_NUM_THREADS=1 $(PY) tools/proofs_page.py
	OMP_NUM_THREADS=1 $(PY) -m retape verify --hazards --html $(BUILD)/hazards.html

# The table of Hugging Face there: every architecture, up to half an hour. 1 and 6 are verdicts too.
proofs-hf: build
	OMP_NUM_THREADS=1 $(PY) -m retape verify --all-hf --json $(BUILD)/hf.json; \
	  case $$? in 0|1|6) ;; *) exit 1 ;; esac
	$(PY) tools/proofs_page.py --hf $(BUILD)/hf.json

# Small changes to record, replay and recompute, each of which a C++ test must notice (docs/mutants.md).
mutants: | $(VENV)/.ready
	$(PY) -m tools.mutants --build $(BUILD) --jobs $(WORKERS) $(MUTANTS)

PYTHON_SOURCES := python tests examples tools
CPP_SOURCES := $(shell git ls-files '*.cpp' '*.h')

lint: | $(VENV)/.ready
	$(VENV)/bin/ruff check --quiet $(PYTHON_SOURCES)
	$(VENV)/bin/ruff format --quiet --check $(PYTHON_SOURCES)
	$(VENV)/bin/clang-format --dry-run --Werror $(CPP_SOURCES)

format: | $(VENV)/.ready
	$(VENV)/bin/ruff format --quiet $(PYTHON_SOURCES)
	$(VENV)/bin/clang-format -i $(CPP_SOURCES)

clean:
	rm -rf $(BUILD) $(VENV)
