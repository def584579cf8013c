# `make demo` and `make test` do all set-up on a fresh machine; what is done once is not done twice.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
BUILD := build
LIBRARY := $(BUILD)/library
INSTALLED := python/retape/include python/retape/lib python/retape/*.so
RANK_TESTS := dist* gradcheck* ranks_page limits_ranks
WORKERS ?= 2
SWEEP_SHARE ?= 4
N ?= 100000
SEED ?= 0

export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_SLOPPINESS := pch_defines,time_macros
export CCACHE_DEPEND := 1
export CMAKE_GENERATOR := Ninja

.PHONY: demo check test test-all test-cpp test-python test-ranks setup build build-tests fuzz sanitize bench
.PHONY: lint tidy format proofs proofs-hf mutants clean

demo: build
	$(PY) -m retape demo

# Everything that CI runs. Of sweeps over every op and seed one case in SWEEP_SHARE, the same ones each time; how
# many is printed at the end.
test: build lint test-cpp test-python

# Every case of every sweep, and what takes too long for each change.
test-all:
	$(MAKE) test SWEEP_SHARE=1
	$(MAKE) tidy

setup: $(BUILD)/.system $(VENV)/.ready

$(BUILD)/.system: tools/system_packages.sh
	tools/system_packages.sh
	@mkdir -p $(BUILD) && touch $@

$(VENV)/.ready: tools/python_packages.sh pyproject.toml | $(BUILD)/.system
	PYTHON=$(PYTHON) VENV=$(VENV) tools/python_packages.sh
	@touch $@

# The package is installed once and is python/ itself. CMake puts the libraries there, and Ninja decides what to
# compile: a changed .py costs nothing. A developer's build has faults that can be injected (retape verify
# --inject); `pip install .` alone has none.
$(VENV)/.editable: tools/install_editable.py pyproject.toml include/retape/api.h | $(VENV)/.ready
	$(PY) tools/install_editable.py
	@touch $@

$(LIBRARY)/build.ninja: | $(VENV)/.ready
	cmake -S . -B $(LIBRARY) -DPython_EXECUTABLE=$(CURDIR)/$(PY) -DRETAPE_EDITABLE=ON -DRETAPE_FAULTS=ON \
	  -DCMAKE_INSTALL_PREFIX=$(CURDIR)/python/retape -DCMAKE_INSTALL_MESSAGE=NEVER

# The headers are the sources' own: one that was removed is not found any more.
build: $(VENV)/.editable $(LIBRARY)/build.ninja
	cmake --build $(LIBRARY)
	@ln -sfn ../../include python/retape/include
	@cmake --install $(LIBRARY) > $(LIBRARY)/install.log

# The C++ tests are a C++ user's project: they find the installed package.
$(BUILD)/tests/build.ninja: $(VENV)/.editable | build
	cmake -S tests/cpp -B $(BUILD)/tests -DRetape_DIR="$$($(PY) -m retape --cmake-dir)" \
	  -DPython_EXECUTABLE=$(CURDIR)/$(PY) -DRETAPE_BUILD_EXAMPLES=ON
	@touch $@

build-tests: build $(BUILD)/tests/build.ninja
	cmake --build $(BUILD)/tests

test-cpp: build-tests
	OMP_NUM_THREADS=1 ctest --test-dir $(BUILD)/tests --output-on-failure -j $(WORKERS)

test-python: build-tests
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) --sweep-share $(SWEEP_SHARE) tests/python tests/conformance

# What breaks first, in less than three minutes on two cores besides what has to be compiled. The choice: the C++
# tests, which kill nine mutants of ten (docs/mutants.md); of the tests in Python those that go through record,
# replay and the front ends and take less than 20 s of CPU time a file, measured by test; a twentieth of the sweeps.
# Left to `make test`: memory limits, ranks, benches, reports, trainings, Hugging Face, what runs in fresh processes.
CHECKED := includes sources aliases batched_backward bits check custom_ops dispatch_handlers eager enable_rows \
  every_op faults flops higher_order_ops layer_choice layers layers_off lean limits limits_kept opaque_updates \
  output_discard output_discard_api policies precision_settings random_programs rows saved_identity \
  saved_tensor_tools scope_misuse silent_wrong surface tables verify verify_state

check: build-tests lint
	OMP_NUM_THREADS=1 ctest --test-dir $(BUILD)/tests --output-on-failure -R '^(retape_tests|no_faults)$$'
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) --sweep-share 20 --ignore tests/conformance/test_ddp.py \
	  $(CHECKED:%=tests/python/test_%.py) tests/conformance

# Of these, what ranks do: three to four minutes on two cores.
test-ranks: build-tests
	OMP_NUM_THREADS=1 ctest --test-dir $(BUILD)/tests --output-on-failure -j $(WORKERS) -R '^dist'
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) $(wildcard $(RANK_TESTS:%=tests/python/test_%.py))

# Random programs without end: N of them, from SEED on. A failing one is shrunk and printed; what was
# counted, if none failed, is there for `make proofs`.
fuzz: build
	OMP_NUM_THREADS=1 $(PY) -m tests.python.programs --count $(N) --seed $(SEED) \
	  --json $(BUILD)/fuzz/seeds_$(SEED).json

# C++ tests under AddressSanitizer with UBSan, then under ThreadSanitizer.
sanitize: | $(VENV)/.ready
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
	@$(VENV)/bin/clang-format --dry-run --Werror $(CPP_SOURCES)

# Each folder is read as one source (cmake/Unity.cmake), in which torch's headers are parsed once.
tidy: | $(VENV)/.ready
	cmake -S . -B $(BUILD)/tidy -DPython_EXECUTABLE=$(CURDIR)/$(PY) -DRETAPE_FAULTS=ON \
	  -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON > $(BUILD)/tidy.configure.log
	$(PY) $(VENV)/bin/run-clang-tidy.py -clang-tidy-binary $(VENV)/bin/clang-tidy -p $(BUILD)/tidy -quiet \
	  -j $(WORKERS) '^(?!$(CURDIR)/$(BUILD)/tidy/models/)'

format: | $(VENV)/.ready
	$(VENV)/bin/ruff format --quiet $(PYTHON_SOURCES)
	@$(VENV)/bin/clang-format -i $(CPP_SOURCES)

clean:
	rm -rf $(BUILD) $(VENV) $(INSTALLED)
