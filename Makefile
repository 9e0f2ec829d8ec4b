# Each goal makes what it needs: `make demo` and `make test` work on a fresh clone with Python 3.11 or 3.12 and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Compiled Python is kept, also where the caller's environment forbids it: pytest rewrites each test file, which takes a good part of
# a run. It is kept where Python looks for it by itself: in a folder of its own, all of torch would be compiled anew.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 -q

.PHONY: demo test lint gate unit programs compile models check compat bench table clean

demo: $(READY)
	$(BIN)/treeplay demo

test: $(READY)
	$(MAKE) --no-print-directory -j 2 lint gate

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

gate: $(READY)
	$(PYTEST)

# A test may have the mark of a lower tier too, of its file for example.
programs: LATER := or compile
programs compile: HIGHER := models or
unit programs compile: $(READY)
	$(PYTEST) -m "$@ and not ($(HIGHER) gpu or soak $(LATER))"

models: $(READY)
	$(PYTEST) -m "not gpu" tests/models

check: test

compat: $(READY)
	$(BIN)/python -m benchmarks.compat --out benchmarks/results/compat/releases.json

bench: $(READY)
	$(BIN)/python -m benchmarks.run

table: $(READY)
	$(BIN)/python -m benchmarks.table
	$(BIN)/python -m benchmarks.plot

# Of what is installed, a run imports a part, which it compiles then: to compile all takes longer than to run the examples.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade --no-compile -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build
