# Everything a contributor types. Needs Python 3.11 or later, make and git; the rest comes
# from PyPI into .venv, at the versions and hashes of requirements/dev.txt. Only test-sdk, which
# is a part of ci, needs npm as well: what it installs is locked in tests/sdk.

PYTHON ?= python3
WORKERS ?= 5
SEED ?= 2
FLOWS ?= examples/fan_out.py

# The tests start hundreds of Python processes: each would compile all of layby anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCK := requirements/dev.txt
IMAGE_LOCK := requirements/server.txt
LOCK_TOOL := .cache/lock
LOCK_TOOL_VERSION := 0.13.7

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast chaos topology test-shared test-postgres test-slow sdk-setup test-sdk cover lint format types bench walk api-snapshot lock-tool lock sdk-lock ci-tools ci clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## Make .venv from the lock; the other verbs do it by themselves

$(READY): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "layby needs Python 3.11 or later; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)"; \
	  echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@echo "Everything is installed into $(VENV) first, at locked versions: this takes a minute or two."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(LOCK)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY) ## Show what layby does, in a minute, on this machine
	@$(BIN)/layby demo

test: $(READY) ## Run the tests (WORKERS=5 processes; WORKERS=0 for one, to debug)
	$(BIN)/pytest -n $(WORKERS) $(ARGS)

test-fast: $(READY) ## Run the tests of the rules alone: core, model, store, workflow; under 40 seconds
	$(BIN)/pytest -n $(WORKERS) tests/core tests/model tests/store tests/workflow $(ARGS)

chaos: $(READY) ## Kill, cut and restart everything during 2,000 runs on PostgreSQL (SEED=2, 3 or 4)
	$(BIN)/pytest -s -m slow tests/deploy/test_chaos.py -k seed$(SEED) $(ARGS)

topology: $(READY) ## Servers, workers, a balancer and PostgreSQL on this machine (FLOWS=a file with workflows)
	@$(BIN)/python -m deploy.topology $(FLOWS) $(ARGS)

test-slow: $(READY) ## Run the tests marked slow
	$(BIN)/pytest -n $(WORKERS) -m slow --hypothesis-profile=deep $(ARGS)

test-shared: $(READY) ## Run the tests of several servers, or of many kills, that take a while
	$(BIN)/pytest -n $(WORKERS) -m shared tests/deploy tests/server tests/cli tests/runner $(ARGS)

# Every test here runs on PostgreSQL instead of files and memory (tests/helpers/places.py), but for
# those that need no store at all.
ON_POSTGRES := tests/model/test_engine.py tests/runner tests/worker tests/examples \
  tests/server/test_histories.py \
  --ignore-glob 'tests/worker/test_credit_*' --ignore tests/worker/test_wheel.py

test-postgres: $(READY) ## Run the tests of workflows, crashes, examples and servers on PostgreSQL
	LAYBY_TEST_STORE=postgres $(BIN)/pytest -n $(WORKERS) -m "not slow and not sdk and not shared and not files_only" $(ON_POSTGRES) $(ARGS)

sdk-setup: $(READY) ## Install the Resonate SDKs we test against; needs npm (test-sdk does it by itself)
	@$(BIN)/python -m tests.sdk.install

test-sdk: sdk-setup ## Run real SDKs, unmodified, against a real server: the newest of them on PostgreSQL too
	$(BIN)/pytest -n $(WORKERS) -m sdk tests/sdk $(ARGS)
	LAYBY_TEST_STORE=postgres $(BIN)/pytest -n $(WORKERS) -m sdk tests/sdk $(ARGS)

cover: $(READY) ## Show the branches of core that no test reaches
	$(BIN)/coverage run -m pytest $(ARGS)
	$(BIN)/coverage report --include 'src/layby/core/*'

lint: $(READY) ## Check style, format and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo

format: $(READY) ## Format the code and mend what ruff can mend by itself
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(READY) ## Check the types: strict in src/layby, in examples and on the pages, basic elsewhere
	@$(BIN)/python -m tests.static_types.pages
	$(BIN)/basedpyright
	$(BIN)/mypy tests/static_types examples

bench: $(READY) ## Measure, beside bare reference loops of the same run
	$(BIN)/python benchmarks/run.py $(ARGS)
	$(if $(ARGS),,$(BIN)/python benchmarks/bench_executors.py)

walk: $(READY) ## Count the files and functions that one request goes through (ARGS=--files lists them)
	@$(BIN)/python tools/walk.py $(ARGS)

api-snapshot: $(READY) ## Regenerate tests/public_api.txt after an intended API change
	@$(BIN)/python -m tests.public_api
	@git diff --stat -- tests/public_api.txt

lock-tool:
	@test -x $(LOCK_TOOL)/bin/uv || $(PYTHON) -m venv $(LOCK_TOOL)
	@$(LOCK_TOOL)/bin/python -m pip install --quiet --disable-pip-version-check uv==$(LOCK_TOOL_VERSION)

lock: lock-tool ## Renew the lock, and that of the container image (ARGS=--upgrade for the newest versions)
	$(LOCK_TOOL)/bin/uv pip compile pyproject.toml --extra server --extra graph --extra postgres --extra watch --group dev --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --no-config \
	  --custom-compile-command "make lock" --output-file $(LOCK) --quiet $(ARGS)
	$(LOCK_TOOL)/bin/uv pip compile pyproject.toml --extra server --extra postgres --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --no-config --no-annotate --constraint $(LOCK) \
	  --custom-compile-command "make lock" --output-file $(IMAGE_LOCK) --quiet

SDK_LOCKS := $(wildcard tests/sdk/python/requirements-*.txt)

sdk-lock: lock-tool ## Renew the locks of the SDKs (package.json and the names of the requirements say which)
	npm install --prefix tests/sdk/js --package-lock-only --ignore-scripts --no-audit --no-fund --loglevel=error
	for file in $(SDK_LOCKS); do \
	  version=$${file##*-}; echo "resonate-sdk==$${version%.txt}" | \
	  $(LOCK_TOOL)/bin/uv pip compile - --universal --python-version 3.12 --generate-hashes \
	    --no-emit-index-url --no-emit-find-links --no-config --no-annotate \
	    --custom-compile-command "make sdk-lock" --output-file $$file --quiet $(ARGS) || exit 1; \
	done

# What the tests use if it is there, and ci insists on: LAYBY_REQUIRE_TOOLS turns skips into failures.
FAKETIME := libfaketimeMT.so.1
APT_GET := DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Dpkg::Use-Pty=0

ci-tools: ## Install what ci needs beyond PyPI and npm (libfaketime), if we may
	@find /usr/lib /usr/lib64 /usr/local/lib -name $(FAKETIME) 2>/dev/null | grep -q . || { \
	  test "$$(id -u)" = 0 && command -v apt-get >/dev/null && { \
	    $(APT_GET) install libfaketime >/dev/null 2>&1 || \
	    { $(APT_GET) update && $(APT_GET) install libfaketime; } >/dev/null; }; } || { \
	  echo "libfaketime is missing and could not be installed: apt install libfaketime"; exit 1; }

# Every phase runs, so one push shows everything that is wrong; the tests come last so that
# their closing lines are the last words. One that hangs ends, so that the others are heard.
PHASE_LIMIT := 1500
ci: $(READY) ## All checks, as CI runs them
	@failed=; for phase in ci-tools lint types test-sdk test-shared test-postgres test; do \
	  printf '\n== %s\n' $$phase; \
	  LAYBY_REQUIRE_TOOLS=1 timeout --kill-after=30 $(PHASE_LIMIT) \
	    $(MAKE) --no-print-directory $$phase || failed="$$failed $$phase"; \
	done; \
	if [ -n "$$failed" ]; then printf '\nfailed:%s\n' "$$failed"; exit 1; fi

clean: ## Remove everything made here, .venv included
	rm -rf $(VENV) .cache tests/sdk/js/node_modules dist htmlcov .coverage .coverage.* .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
