# Every target that needs Python first makes sure that the environment exists and is up to date (scripts/env.py).
# `make VENV=/some/where test` uses another folder than .venv; EVSYS_PYTHON chooses the interpreter.

VENV ?= $(or $(EVSYS_VENV),.venv)
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal -q

export EVSYS_VENV := $(VENV)
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# Without bytecode every `evsys` that a test starts would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help page screenshots quickstart test test-slow test-local test-harbor test-ray test-tinker test-dashboard test-fireworks test-cookbook test-skyrl test-clients test-agents test-mlflow unit lint format types docs site bench constraints clean core dev

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: core ## Install the SDK and run the first experiment
	$(BIN)/evsys validate examples/01_quickstart/compare.yaml --deep
	$(BIN)/evsys run examples/01_quickstart/compare.yaml

test: lint types ## Lint, check types and run the everyday tests
	$(PYTEST) -m "not slow"

test-slow: dev ## Run what takes longer: attacks, faults, kills, simulations, learning
	$(PYTEST) -m slow

unit: dev ## Run the fast tests only
	$(PYTEST) -m "not slow and not docs and not e2e"

test-harbor: ## Run the tests of the Harbor engine, in an environment of their own
	$$(bash scripts/env.sh harbor dev harbor)/bin/python -m pytest -q -m harbor tests/harbor

test-ray: ## Run the tests of the Ray launcher, in an environment of their own
	$$(bash scripts/env.sh ray dev ray)/bin/python -m pytest -q -m ray tests/experiment

page: dev ## Build the dashboard's page for this checkout (a wheel builds its own)
	$(BIN)/python hatch_build.py

test-dashboard: ## Run the tests of the dashboard: server on SQLite and PostgreSQL, page in Chromium; in an environment of their own
	python=$$(bash scripts/env.sh dashboard dev dashboard postgres)/bin/python && $$python hatch_build.py && \
		$$python -m pytest -n auto --dist loadfile -q -m dashboard tests/dashboard

screenshots: ## Take the pictures of the documentation anew, after the page has changed
	python=$$(bash scripts/env.sh dashboard dev dashboard postgres)/bin/python && $$python hatch_build.py && \
		$$python -m tests.dashboard.page.screenshots docs/images/dashboard

test-tinker: ## Run the tests against the tinker package, in an environment of their own
	$$(bash scripts/env.sh tinker dev tinker server)/bin/python -m pytest -n auto --dist loadfile -q -m tinker tests/server tests/backends/tinker

test-fireworks: ## Run the tests with Fireworks' client against a stand-in, in an environment of their own
	$$(bash scripts/env.sh fireworks dev fireworks)/bin/python -m pytest -n auto --dist loadfile -q tests/backends/fireworks

test-cookbook: ## Run the loops of tinker-cookbook against our server (torch, some GB), in an environment of their own
	$$(bash scripts/env.sh cookbook dev tinker server)/bin/python -m pytest -q tests/server/test_cookbook.py

test-clients: ## Run Inspect, lm-eval, vf-eval, openai 2 and 3, OpenTelemetry and the hub's client against us, in two environments
	python=$$(bash scripts/env.sh clients dev tinker server)/bin/python && \
		verifiers=$$(bash scripts/env.sh verifiers)/bin/python && \
		EVSYS_VERIFIERS_PYTHON=$$verifiers EVSYS_OPENAI_PYTHON=$$python:$$verifiers \
		$$python -m pytest -q tests/server/test_clients.py tests/server/test_openai_client.py \
		tests/deploy/test_hf_hub.py tests/deploy/test_shadow.py tests/loop/test_receiver.py

test-skyrl: ## Run the tests against SkyRL's server on the CPU, in two environments of their own (about 1 GB)
	skyrl=$$(bash scripts/env.sh skyrl) && client=$$(bash scripts/env.sh tinker dev tinker server) && \
		EVSYS_SKYRL_PYTHON=$$skyrl/bin/python $$client/bin/python -m pytest -q -m skyrl tests/skyrl

# Claude Code and Codex are fetched once, with npm; where that is not possible, the tests that need them say so.
test-agents: ## Run whole sessions of real coding agents against a stand-in model, in an environment of their own
	python=$$(bash scripts/env.sh agents dev)/bin/python && { $$python scripts/fetch_agents.py || true; } && \
		EVSYS_TEST_AGENTS=1 $$python -m pytest -q -m agents tests/agents

test-mlflow: dev ## Run the MLflow observer against a real MLflow server, in an environment of its own
	mlflow=$$(bash scripts/env.sh mlflow) && \
		EVSYS_MLFLOW_PYTHON=$$mlflow/bin/python $(BIN)/python -m pytest -q -m slow tests/observers/test_mlflow_server.py

# SmolLM2 is fetched and converted once; where that is not possible, the tests that need it say so and are skipped.
test-local: ## Run the tests of the local backend with torch and SmolLM2, in an environment of their own
	python=$$(bash scripts/env.sh local dev local)/bin/python && \
		{ $$python examples/17_local_sft/prepare.py --cached || true; } && \
		OMP_NUM_THREADS=1 $$python -m pytest -n auto --dist loadfile -q -m local tests/backends/local

lint: dev ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: dev ## Repair style and formatting where that can be done safely
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: dev ## Check types
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: dev ## Generate the reference pages from the code
	$(BIN)/python scripts/generate_docs.py

# Also writes a Markdown twin of every page, llms.txt and llms-full.txt, and fails if any link or anchor leads nowhere.
site: ## Build the documentation site into build/site, in an environment of its own
	$$(bash scripts/env.sh site)/bin/python -m scripts.build_site

bench: dev ## Measure against peers and update benchmarks/RESULTS.md
	$(BIN)/python benchmarks/run.py

constraints: ## Pin the newest versions of what `make test` installs (needs uv)
	uv pip compile -q pyproject.toml --extra dev --universal --python-version 3.12 --upgrade \
		--no-annotate --custom-compile-command "make constraints" --output-file constraints.txt
	echo certifi | uv pip compile -q pyproject.toml --extra dev --extra harbor --override - --universal \
		--python-version 3.12 --upgrade --no-annotate --custom-compile-command "make constraints" \
		--output-file constraints-harbor.txt
	echo certifi | uv pip compile -q pyproject.toml --extra dev --extra fireworks --override - --universal \
		--python-version 3.12 --upgrade --no-annotate --custom-compile-command "make constraints" \
		--output-file constraints-fireworks.txt
	uv pip compile -q pyproject.toml --extra dev --extra tinker --extra server --universal --python-version 3.12 \
		--upgrade --no-annotate --custom-compile-command "make constraints" --output-file constraints-tinker.txt
	uv pip compile -q pyproject.toml --extra dev --extra local --universal --python-version 3.12 --upgrade \
		--no-annotate --custom-compile-command "make constraints" --output-file constraints-local.txt
	echo 'tinker-cookbook>=0.5,<0.6' | uv pip compile -q pyproject.toml - --extra dev --extra tinker --extra server \
		--universal --python-version 3.12 --upgrade --no-annotate --custom-compile-command "make constraints" \
		--output-file constraints-cookbook.txt
	echo 'mcp>=2.3,<3' | uv pip compile -q pyproject.toml - --extra dev --universal --python-version 3.12 --upgrade \
		--no-annotate --custom-compile-command "make constraints" --output-file constraints-agents.txt
	echo 'zensical==0.0.73' | uv pip compile -q pyproject.toml - --universal --python-version 3.12 --upgrade \
		--no-annotate --custom-compile-command "make constraints" --output-file constraints-site.txt
	uv pip compile -q pyproject.toml tests/dashboard/requirements.in --extra dev --extra dashboard --extra postgres \
		--universal --python-version 3.12 --upgrade --no-annotate --custom-compile-command "make constraints" \
		--output-file constraints-dashboard.txt
	uv pip compile -q pyproject.toml tests/server/clients/requirements.in --extra dev --extra tinker --extra server \
		--universal --python-version 3.12 --upgrade --no-annotate --custom-compile-command "make constraints" \
		--output-file constraints-clients.txt
	uv pip compile -q pyproject.toml tests/server/clients/requirements-verifiers.in --universal --python-version 3.12 \
		--upgrade --no-annotate --custom-compile-command "make constraints" --output-file constraints-verifiers.txt
	echo 'mlflow>=3.17,<4' | uv pip compile -q - --universal --python-version 3.12 --upgrade \
		--no-annotate --custom-compile-command "make constraints" --output-file constraints-mlflow.txt
	{ printf "%s; sys_platform == 'never'\n" asyncpg datasets hf-transfer peft psycopg2-binary torch; echo fastapi; } \
		| uv pip compile -q tests/skyrl/requirements.in --override - --universal --python-version 3.12 --upgrade \
		--no-annotate --custom-compile-command "make constraints" | grep -v "'never'" > constraints-skyrl.txt

clean: ## Remove the environments in this folder, caches and build results
	rm -rf .venv .venv.lock .venvs build dist .hypothesis .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

core:
	@bash scripts/env.sh main >/dev/null

dev:
	@bash scripts/env.sh main dev >/dev/null
