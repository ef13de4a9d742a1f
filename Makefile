# A newcomer needs `make demo` and `make test`. `make check` is what CI runs, no more and no less.

PYTHON ?= python3
SECONDS ?= 60
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock" pyproject.toml requirements/build.in

.DEFAULT_GOAL := help
.PHONY: help demo test slow check static fmt lint types imports docs docs-check cov fuzz bench lock

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

demo: .venv/demo ## the proxy's main job on real traffic, in about a minute
	$(BIN)/reauth-proxy demo

test: .venv/test ## the tests, without those that take long
	$(BIN)/pytest -m "not slow"

slow: .venv/test ## the tests that take long
	$(BIN)/pytest -m slow

check: static test slow ## everything that CI runs

static: lint types imports docs-check ## what can be judged without running the tests

fmt: .venv/test ## format, and mend what ruff can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lint: .venv/test ## format and house rules
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: .venv/test ## mypy, strict
	$(BIN)/mypy

imports: .venv/test ## who may import whom
	$(BIN)/lint-imports

docs: .venv/test ## write the generated pages and tables anew
	for page in proxy.config_docs metrics.docs proxy.reference_docs; do $(BIN)/python -m $$page; done

docs-check: .venv/test ## whether they are as they would be written
	set -e; for page in proxy.config_docs metrics.docs proxy.reference_docs; do $(BIN)/python -m $$page --check; done

cov: .venv/test ## coverage by module
	$(BIN)/coverage run -m pytest -m "not slow and not kafka"
	$(BIN)/coverage report

fuzz: .venv/test ## each fuzzer for SECONDS
	set -e; for target in $(wildcard tests/fuzz/fuzz_*.py); do echo $$target; $(BIN)/python -m $$(echo $${target%.py} | tr / .) --seconds $(SECONDS); done

bench: .venv/test ## CPU per request, latency and memory, beside HAProxy and Kafka
	$(BIN)/python -m benchmarks.bench

lock: ## pin the dependencies anew; needs uv
	$(COMPILE) --upgrade --extra demo --extra test --output-file requirements/test.lock
	$(COMPILE) --constraint requirements/test.lock --extra demo --output-file requirements/demo.lock
	$(COMPILE) --constraint requirements/test.lock --output-file requirements/runtime.lock

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/%: requirements/%.lock pyproject.toml | .venv/bin/python
	$(PIP) --require-hashes -r $<
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@
