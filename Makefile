# The two commands of this project: `make demo` and `make test`. The rest are their parts.
PY = .venv/bin/python
BIN = .venv/bin
PACKAGES = yarn_accel torque_sched jobs benchmarks

.PHONY: help demo test check unit integration bench clean install install-dev

help:
	@echo "make demo         install what is missing, start a real 4-node Hadoop, run both jobs, write out/demo/report.html"
	@echo "make test         install what is missing, run every check and every test (what CI runs)"
	@echo "make check        style, types, import contracts, old-Python check"
	@echo "make unit         tests that need no Hadoop (seconds)"
	@echo "make integration  tests against the real Hadoop (minutes)"
	@echo "make bench        every benchmark, quick form (python -m benchmarks lists them)"
	@echo "make clean        remove what was built here; the Hadoop jars stay in the cache"

install:
	@./bootstrap.sh yarn,bench

install-dev:
	@./bootstrap.sh yarn,bench,torque,dev

demo: install
	@$(PY) -m jobs demo

test: install-dev check
	@$(PY) -m pytest --require hadoop

check: install-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --config setup.cfg --no-logo
	@$(PY) -m tests.old_python

unit: install-dev
	@$(PY) -m pytest tests/unit tests/property tests/test_architecture.py

integration: install-dev
	@$(PY) -m pytest --require hadoop tests/integration

bench:
	@./bootstrap.sh yarn,bench,peers
	@$(PY) -m benchmarks all --quick

clean:
	rm -rf .venv build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
