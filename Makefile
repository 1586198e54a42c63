# Two commands do everything: `make compare` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One link named kvtwin that points at the repository: mypy, editors and PYTHONPATH find kvtwin.sim through it.
LINK := $(VENV)/src/kvtwin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: compare test test-long bench mutants clean

compare: $(VENV)/.base
	$(BIN)/kvtwin compare --out out/paper --force

# Tests that share what a compiler made go to one process (loadgroup).
test: $(VENV)/.extras
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist loadgroup

# The properties of `make test` with ten times the examples; all other tests would only do the same again. The log is
# committed.
test-long: $(VENV)/.extras
	HYPOTHESIS_PROFILE=long $(BIN)/pytest -m hypothesis -n 2 --dist loadgroup --durations=15 2>&1 | tee reports/test-long.log; exit $${PIPESTATUS[0]}
test-long: SHELL := /bin/bash

bench: $(VENV)/.base
	$(BIN)/python benchmarks/bench.py

# Faults planted in the kernels, and the test that notices each.
mutants: $(VENV)/.extras
	$(BIN)/python tests/gpu/mutants/run_mutants.py --out reports/kernels-mutants.md

$(VENV)/.base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt --editable .
	mkdir -p $(VENV)/src && ln -sfn ../.. $(LINK)
	touch $@

$(VENV)/.extras: $(VENV)/.base constraints-cpu.txt
	$(PIP) -c constraints.txt -c constraints-cpu.txt --editable '.[gpu,dev]'
	touch $@

clean:
	rm -rf $(VENV) out
