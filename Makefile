# hbc: `make demo` and `make test` do everything on a fresh machine with Python >= 3.11.
PYTHON ?= $(shell for v in python3.11 python3.12 python3.13 python3; do command -v $$v >/dev/null 2>&1 && $$v -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$v && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DOCS := $(VENV)/.docs
BENCH ?= all
OF_ONE_RELEASE := tests/test_golden.py tests/test_figures.py tests/test_installation.py

# pip compiles nothing (--no-compile), since it compiles all, on one core. The large packages are compiled on all cores. The processes of
# pytest, which start together, would each compile them: 24 of 43 CPU seconds before their first test. What else a process imports it
# compiles and keeps for all others, also where the environment says otherwise.
unexport PYTHONDONTWRITEBYTECODE
LARGE := numpy scipy sklearn pandas polars torch tvm dask distributed mlflow

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-bare test-latest test-least wheel golden golden-diff lint format docs docs-serve bench clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "hbc needs Python >= 3.11; none was found. Set PYTHON=/path/to/python3."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade --constraint constraints.txt pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[test]"
	@# It fails at templates that are no Python yet, and the others are compiled.
	@cd $(VENV)/lib/python3.*/site-packages && $(CURDIR)/$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(LARGE) || true
	@touch $@

demo: $(INSTALLED)  ## install, compile real pipelines with every backend, print agreement and speed
	$(BIN)/python -m benchmarks.demo

test: $(INSTALLED)  ## install, then run the test suite (a fixed sample of the large tables) on all cores
	$(BIN)/python -m pytest -n auto --dist worksteal

test-slow: $(INSTALLED)  ## all of the tests: every case of the tables, and the slow sweeps
	$(BIN)/python -m pytest -n auto --dist worksteal -m "slow or not slow"

test-bare:  ## the tests that need no optional library, in an environment without any
	@test -n "$(PYTHON)" || { echo "hbc needs Python >= 3.11; none was found. Set PYTHON=/path/to/python3."; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)-bare
	$(VENV)-bare/bin/python -m pip install --quiet --no-compile --constraint constraints.txt --editable . "pytest>=8.2"
	$(VENV)-bare/bin/python -m pytest

# Left out, here and below, is what compares with files that were made with the versions of constraints.txt.
test-latest:  ## the test suite with the newest of every library, in an environment of its own (.venv-latest)
	@test -n "$(PYTHON)" || { echo "hbc needs Python >= 3.11; none was found. Set PYTHON=/path/to/python3."; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)-latest
	$(VENV)-latest/bin/python -m pip install --quiet --no-compile --upgrade pip
	$(VENV)-latest/bin/python -m pip install --quiet --no-compile --upgrade --upgrade-strategy eager --editable ".[test]"
	$(VENV)-latest/bin/python -m pip freeze
	$(VENV)-latest/bin/python -m pytest -n auto --dist worksteal $(OF_ONE_RELEASE:%=--ignore=%)

# torch brings CUDA's libraries (3 GB).
test-least:  ## the test suite with the least versions that hbc's extras take, in an environment of its own (.venv-least)
	@test -n "$(PYTHON)" || { echo "hbc needs Python >= 3.11; none was found. Set PYTHON=/path/to/python3."; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)-least
	$(VENV)-least/bin/python -m pip install --quiet --no-compile uv
	$(VENV)-least/bin/uv pip install --quiet --python $(VENV)-least/bin/python --resolution lowest-direct --editable ".[test]"
	$(VENV)-least/bin/uv pip list --python $(VENV)-least/bin/python
	HBC_OLD_LIBRARIES=1 $(VENV)-least/bin/python -m pytest -m "slow or not slow" -k "agrees_with_its_source and numpy" tests/test_estimators.py
	HBC_OLD_LIBRARIES=1 $(VENV)-least/bin/python -m pytest -n auto --dist worksteal $(OF_ONE_RELEASE:%=--ignore=%)

wheel: $(INSTALLED)  ## build the wheel and the source archive into dist/, then install the wheel into an empty environment and use it
	rm -rf build dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m pytest -m "slow or not slow" tests/test_installation.py

golden: $(INSTALLED)  ## render the golden programs anew (tests/golden) and keep them; `git diff --stat` lists what changed
	cd tests && $(CURDIR)/$(BIN)/python -m golden --write

golden-diff: $(INSTALLED)  ## print how the generated graphs and code differ from the golden programs
	cd tests && $(CURDIR)/$(BIN)/python -m golden --diff

lint: $(INSTALLED)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(DOCS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[docs]"
	@touch $@

docs: $(DOCS)  ## build the documentation into docs/_build/html; a broken link or anchor is an error
	$(BIN)/python -m sphinx -q -W --keep-going docs docs/_build/html

docs-serve: $(DOCS)  ## show the documentation at http://127.0.0.1:8000, and build it anew at every change
	$(BIN)/sphinx-autobuild --watch hbc --watch CONTRIBUTING.md --watch CHANGELOG.md docs docs/_build/html

bench: $(INSTALLED)  ## every benchmark, with its peers, on a quiet machine: hours; `make bench BENCH="all --quick"` takes ten minutes
	-$(BIN)/python -m benchmarks.peers.install --missing
	$(BIN)/python -m benchmarks $(BENCH); status=$$?; $(BIN)/python -m benchmarks render && exit $$status

clean:  ## remove the environment and what was built
	rm -rf $(VENV) $(VENV)-bare $(VENV)-latest $(VENV)-least build dist docs/_build demo-out *.egg-info .pytest_cache .mypy_cache .ruff_cache
