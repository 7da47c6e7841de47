# Everything that a person does here is one word. Each target sets up what it needs, and says what it is doing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PACKAGES := shared outbox_publisher outbox_consumer
WORKERS ?= 2
# the machine's own certificates, for those behind a proxy with one of theirs
export UV_SYSTEM_CERTS := true

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-lowest lint format bench services-up services-down lock wheels clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

demo: $(READY) ## watch an event's whole way: commits, rollbacks, a killed relay, duplicates, a ledger
	@$(BIN)/outbox-publisher demo

test: $(READY) ## the whole suite on real servers, with a small twin of every proof (under 15 minutes)
	@$(BIN)/python -m pytest -n $(WORKERS) -m "not full"

test-all: $(READY) ## the same and every proof at its full size
	@$(BIN)/python -m pytest -n $(WORKERS) -m "not full"
	@$(BIN)/python -m pytest -m full

test-lowest: $(READY) ## unit and contract suites at the lowest versions that the distributions declare
	@sh scripts/test-lowest.sh

lint: $(READY) ## style, types, architecture
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(READY) ## let the formatter and the linter mend what they can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(READY) ## measure, against hand-written loops on the same servers
	@$(BIN)/python -m benchmarks

services-up: $(READY) ## start the five servers and leave them running; prints their addresses
	@$(BIN)/python -m tests.services up

services-down: $(READY) ## stop what services-up started
	@$(BIN)/python -m tests.services down

wheels: $(READY) ## build the three distributions into dist/
	@for package in $(PACKAGES); do $(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist $$package || exit 1; done
	@ls dist

lock: $(READY) ## compile requirements/*.in anew
	@sh scripts/lock.sh

clean: ## remove the environment and everything that was built
	@rm -rf .venv .venv-lowest dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(READY): requirements/bootstrap.txt requirements/dev.txt $(PACKAGES:%=%/pyproject.toml)
	@command -v $(PYTHON) >/dev/null || { echo "python3 is not installed (3.11 or newer, with venv and pip)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 …"; exit 1; }
	@echo "setting up $(VENV) (once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "the venv module is missing: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements/dev.txt
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --no-deps --no-build-isolation $(PACKAGES:%=-e %)
	@touch $@
