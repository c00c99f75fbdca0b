# Each target sets up what it needs in .venv when that is missing or older than the files that define it.
PYTHON ?= python3
BIN := .venv/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests run in two processes; one thread each keeps them off each other's core.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
ARGS ?=
APT := timeout 300 apt-get install -yq --no-install-recommends chromium-headless-shell

.PHONY: run test test-all check format bench docs clean

run: .venv/.run  ## the whole pipeline on the embedded data; ARGS="--seed 1" passes flags on
	$(BIN)/goldiprox run $(ARGS)

test: .venv/.browser  ## the default suite: minutes on two cores
	$(PYTEST) -m "not slow and not gpu" $(ARGS)

test-all: .venv/.browser  ## everything this machine can run
	$(PYTEST) $(ARGS)

check: .venv/.dev  ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/.dev  ## ratios measured side by side; fails where one is over its budget
	$(BIN)/goldiprox bench cpu --check $(ARGS)

# Not --quiet: that also silences the warnings which --strict counts. Material says at every build until when it is kept up.
docs: .venv/.dev  ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html, or serve it: $(BIN)/mkdocs serve"

# A folder without a finished stamp is a set-up that was broken off: start it anew.
.venv/.run: pyproject.toml constraints.txt
	@echo "Setting up .venv: a minute or two, mostly torch"
	test -f .venv/.made || $(PYTHON) -m venv --clear .venv
	touch .venv/.made
	$(BIN)/pip install -q -e ".[demo,report]"
	touch $@

.venv/.dev: .venv/.run
	$(BIN)/pip install -q -e ".[demo,report,ray,dev]"
	touch $@

# Tests of the report need a browser, and say so where there is none.
.venv/.browser: .venv/.dev
	@{ command -v chromium-headless-shell || command -v chromium || { test "$$(id -u)" = 0 && command -v apt-get && \
	  { $(APT) || { timeout 60 apt-get update -q && $(APT); }; }; }; } >/dev/null 2>&1 || true
	@touch $@

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis dist site
