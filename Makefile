# A newcomer needs `make demo` and `make test`. `make check` is what CI runs, no more and no less.

PYTHON ?= python3
SECONDS ?= 60
# A Python that is named has an environment of its own: make PYTHON=python3.13 test
VENV := .venv$(if $(filter command,$(firstword $(origin PYTHON))),-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock"
PROJECT := pyproject.toml requirements/build.in

# A file's tests share what they started. Three processes on two cores, as most tests wait for Kafka,
# Spark or another process; in the order of the folders, which begins with those that wait longest:
# xdist would end with them. A process that died is not replaced: xdist may then wait without end.
THREE := --numprocesses 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# The prose linter, and the texts that it checks.
VALE := github.com/vale-cli/vale/v3/cmd/vale@v3.22.0
PROSE := README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md deploy/README.md docs/generate proxy sasl metrics \
	$(wildcard docs/*.md) tests benchmarks $(wildcard deploy/*.py)

.DEFAULT_GOAL := help
.PHONY: help demo test fast pythons slow cluster check static fmt lint types imports prose docs site pictures docs-check cov fuzz bench kafka-drift record schemas lock

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

demo: $(VENV)/demo ## the proxy's main job on real traffic, in about a minute
	$(BIN)/reauth-proxy demo

test: $(VENV)/test ## the tests, without those that take long
	$(BIN)/pytest $(THREE) -m "not slow and not cluster"

slow: $(VENV)/test ## the tests that take long
	$(BIN)/pytest $(THREE) --durations 30 -m "slow and not cluster"

cluster: $(VENV)/test ## the image, and the manifests on a real Kubernetes, before a release; needs root
	$(BIN)/pytest -m cluster --log-cli-level INFO

fast: $(VENV)/test ## the tests that need neither Kafka nor Spark
	$(BIN)/pytest $(THREE) -m "not slow and not kafka and not cluster" \
		--ignore tests/kafka --ignore tests/cluster --ignore tests/metrics/spark --ignore tests/deploy

pythons: ## those, and the demo, on the oldest and the newest Python that is supported
	.ci/pythons

check: static test pythons slow ## everything that CI runs

static: lint types imports prose docs-check site ## what can be judged without running the tests

fmt: $(VENV)/test ## format, and mend what ruff can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lint: $(VENV)/test ## format and house rules
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: $(VENV)/test ## mypy, strict
	$(BIN)/mypy

imports: $(VENV)/test ## who may import whom
	$(BIN)/lint-imports

prose: ## plain English in docs, docstrings and comments; needs Vale
	@command -v vale >/dev/null || { echo "Vale is missing: go install $(VALE)" >&2; exit 1; }
	vale --output=line $(PROSE)

docs: $(VENV)/test ## write the generated pages and tables anew
	$(BIN)/python -m docs.generate

site: $(VENV)/docs ## the docs as a site with search, in build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pictures: $(VENV)/test ## take the README's screenshots anew; needs Chromium
	$(BIN)/python docs/screenshots.py

docs-check: $(VENV)/test ## whether they are as they would be written
	$(BIN)/python -m docs.generate --check

cov: $(VENV)/test ## coverage by module
	$(BIN)/coverage run -m pytest -m "not slow and not kafka and not cluster"
	$(BIN)/coverage report

fuzz: $(VENV)/test ## each fuzzer for SECONDS
	set -e; for target in $(wildcard tests/fuzz/fuzz_*.py); do echo $$target; $(BIN)/python -m $$(echo $${target%.py} | tr / .) --seconds $(SECONDS); done

bench: $(VENV)/test ## CPU per request, latency and memory, beside HAProxy and Kafka
	$(BIN)/python -m benchmarks.bench

kafka-drift: $(VENV)/test ## what a release of Kafka has that is unknown here: KAFKA=4.4.0, or the newest
	$(BIN)/python -m tests.drift $(KAFKA)

record: $(VENV)/test ## what Kafka's authorizer answers, for the tests of the guards; needs Java
	$(BIN)/python -m tests.support.kafka.acl_differential.recording

schemas: $(VENV)/test ## generate the message definitions of a release: KAFKA=4.4.0; needs Java and Maven
	$(BIN)/python -m tests.drift.generate $(KAFKA)
	$(BIN)/python -m tests.drift.generate --stubs

lock: ## pin the dependencies anew; needs uv
	$(COMPILE) --upgrade $(PROJECT) requirements/compile.in --extra demo --extra test --output-file requirements/test.lock
	$(COMPILE) --constraint requirements/test.lock $(PROJECT) --extra demo --output-file requirements/demo.lock
	$(COMPILE) --constraint requirements/test.lock $(PROJECT) --extra docs --output-file requirements/docs.lock
	$(COMPILE) --constraint requirements/test.lock $(PROJECT) --extra aws --extra azure --extra gcp --extra htpasswd --extra kafka --output-file requirements/runtime.lock
	$(COMPILE) --constraint requirements/test.lock pyproject.toml --extra kafka --extra report --extra spark --output-file requirements/report.lock
	$(COMPILE) --constraint requirements/test.lock requirements/compile.in --output-file requirements/compile.lock

$(VENV)/bin/python:
	@$(PYTHON) requirements/supported.py
	$(PYTHON) -m venv $(VENV)

$(VENV)/%: requirements/%.lock pyproject.toml | $(VENV)/bin/python
	$(PIP) --require-hashes -r $<
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@
