# Every target sets up what it needs and is safe to run twice. `make run` and `make test` are all that a
# fresh machine with Python >= 3.11 needs. CI runs these same targets (.ci/run).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# Tests wait for sockets and timers for a third of their time: two workers more than cores.
TEST_WORKERS := $(shell echo $$(( $$(nproc 2>/dev/null || echo 2) + 2 )))
# Arguments for the command that a target runs: make run ARGS='--workers 2', make test ARGS='-k trims'.
ARGS ?=
# The interpreter that .venv is made from; tried in this order unless PYTHON=... is given.
PYTHON_CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11
UV := uv==0.13.8
# Named after this folder: a .venv that was copied along with its folder points elsewhere and is made anew.
STAMP := $(VENV)/.installed-$(shell printf '%s' '$(CURDIR)' | cksum | cut -d' ' -f1)

# A machine may forbid to keep byte code. Tests start hundreds of processes: each would compile Weir anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup run test real real-setup real-codex check format schema golden bench bench-lanes bench-batch soak soak-jobs savings lock clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Put Weir and everything that it needs into .venv

$(STAMP): requirements/dev.lock pyproject.toml scripts/make_venv
	@scripts/make_venv '$(VENV)' '$(STAMP)' $(or $(PYTHON),$(PYTHON_CANDIDATES))
	@echo 'setup: installing the pinned requirements'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		-r requirements/dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		--editable .
	@touch '$(STAMP)'

run: setup ## Serve: upstream from WEIR_UPSTREAM or OPENAI_API_KEY, else the simulated provider
	@exec $(BIN)/weir serve --demo --policies policies $(ARGS)

# Each worker begins in another place: tests that wait for sockets run beside tests that compute.
test: setup ## Run the tests, in parallel
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist worksteal $(ARGS)

# Bounded: what other people's programs do is not in our hands.
REAL_PYTEST := timeout --kill-after=10 900 scripts/offline $(BIN)/python -m pytest -o timeout=120

real-setup: setup ## Put other people's clients and servers into .cache/real
	@$(BIN)/python -m tests.real.install

real: real-setup ## Run other people's clients and servers with Weir, see docs/clients.md
	@$(REAL_PYTEST) -n auto --dist loadgroup --ignore tests/real/codex tests/real $(ARGS)

real-codex: setup ## A coding agent's command line, too (400 MB)
	@$(BIN)/python -m tests.real.install --codex
	@$(REAL_PYTEST) tests/real/codex $(ARGS)

check: setup ## Lint, formatting, types, import rules, generated files
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/weir schema | diff -u policies/policy.schema.json - \
		|| { echo 'policies/policy.schema.json is stale: make schema' >&2; exit 1; }

format: setup ## Format the code and sort its imports
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

schema: setup ## Write policies/policy.schema.json anew
	@$(BIN)/weir schema > policies/policy.schema.json.new
	@mv policies/policy.schema.json.new policies/policy.schema.json

golden: setup ## Write what tests/golden expects anew (ARGS='cap_*' for some); read the diff
	@$(BIN)/python -m tests.golden.rewrite $(ARGS)

bench: setup ## Measure Weir beside nginx on one core (ARGS='--quick' for a short run)
	@$(BIN)/python -m tests.perf.bench $(ARGS)

bench-lanes: setup ## Measure the coalesce lane against the simulated provider (ARGS='--only inputs')
	@$(BIN)/python -m tests.perf.lanes $(ARGS)

bench-batch: setup ## Measure what callers feel of a batch worked off beside them (ARGS='--llama' for llama.cpp)
	@$(BIN)/python -m tests.perf.batch $(ARGS)

soak: setup ## The long forms of the chaos and accumulation tests: some minutes (WEIR_CHAOS_SEED=… repeats a run)
	@WEIR_CHAOS_SEED="$${WEIR_CHAOS_SEED:-$$RANDOM}" WEIR_CHAOS_CALLERS=6000 WEIR_ACCUMULATION_STREAMS=50000 \
		timeout --kill-after=10 1200 $(BIN)/python -m pytest -q -s \
		tests/functional/test_chaos.py tests/functional/test_accumulation.py $(ARGS)

soak-jobs: setup ## 10,000 jobs through killed workers and a restarted store: none lost, none double (ARGS='--jobs 500')
	@timeout --kill-after=10 1800 $(BIN)/python -m tests.perf.soak_jobs $(ARGS)

savings: setup ## Measure what each step brings, against the simulated provider (ARGS=--json)
	@$(BIN)/python -m tests.perf.savings $(ARGS)

lock: setup ## Pin requirements/*.lock anew from pyproject.toml (ARGS='--upgrade' for newer releases)
	@test -x .cache/lock/bin/uv || $(BIN)/python -m venv .cache/lock
	@.cache/lock/bin/python -m pip install --quiet --disable-pip-version-check '$(UV)'
	@compile=(.cache/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-header $(ARGS)); \
	"$${compile[@]}" pyproject.toml --output-file requirements/runtime.lock; \
	"$${compile[@]}" pyproject.toml --group dev --constraint requirements/runtime.lock \
		--output-file requirements/dev.lock; \
	"$${compile[@]}" --group build --constraint requirements/dev.lock \
		--output-file requirements/build.lock

clean: ## Remove everything that the other targets made
	@rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
