.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# Each of the two installs all that it needs at once: a second run of pip would resolve and build everything again. Python
# compiles on all cores what pip would compile on one, but for large packages that few tests import; some packages bring
# files that are no Python of this version.
SELDOM := databricks|debugpy|keras|mlflow|moto|pip|plotly|transformers
.venv/.installed: WHAT := -e '.[all,examples]'
.venv/.installed-dev: WHAT := -e '.[all,examples,integrations]' --group dev
.venv/.installed .venv/.installed-dev: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing into .venv (about a minute the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt $(WHAT)
	@$(BIN)/python -m compileall -qq -j 0 -x 'site-packages/($(SELDOM))/' .venv/lib || true
	@touch .venv/.installed $@

demo: .venv/.installed  ## run the main job: a grid on the digits data, shared beginnings trained once
	@$(BIN)/stagetree demo
	@echo
	@echo "First: source .venv/bin/activate. docs/first-hour.md goes on from here."

up: .venv/.installed  ## the embedded stack (API, scheduler, one worker a slot), stays up
	@$(BIN)/stagetree up

# The files that take longest come first, and the shortest last.
WAITING := tests/docs tests/e2e tests/docker tests/cli tests/examples tests/page tests/workers tests/runtime tests/processes

test: .venv/.installed-dev  ## all tests: those of processes and clusters, which mostly wait, and in the time they leave the others
	@$(MAKE) --no-print-directory --jobs=2 test-processes test-others

# They start no process and no server, and open no database.
QUICK := tests/domain tests/scheduling tests/simulation tests/tuners tests/curves tests/samplers tests/test_structure.py

quick: .venv/.installed-dev  ## the tests of the core, the tuners and the simulator: what to run while you write
	@$(BIN)/python -m pytest -q -n auto --dist loadfile $(QUICK)

test-processes: .venv/.installed-dev
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(WAITING)

# Folders of few long tests come first, so that no core waits for the last of them.
LONG := tests/world tests/exactness tests/ranks
OTHERS := $(LONG) $(filter-out $(WAITING) $(LONG) tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/))) $(wildcard tests/test_*.py)

# What it says comes when it is done, so that the two are not mixed.
test-others: .venv/.installed-dev
	@said=$$(nice $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(OTHERS) 2>&1); code=$$?; \
	echo "$$said"; exit $$code

test-gpu: .venv/.installed-dev  ## what needs a GPU, on the torch that is installed; skipped without one
	@$(BIN)/python -m pytest -m gpu tests/gpu

gpu-figures: .venv/.installed-dev  ## test-gpu, and what steps and packs cost on a GPU: one JSON, and what of the claims held
	@$(BIN)/python benchmarks/gpu_figures.py

TORCH ?= 2.6.*
TRAINS := tests/runtime tests/packing tests/stagetree tests/examples tests/gpu tests/workers/test_slot_exactness.py \
	tests/e2e/test_laws.py tests/e2e/test_weight_export.py
OTHER := .venv-torch

test-torch:  ## what trains, on another torch: make test-torch TORCH='2.6.*', in .venv-torch
	@test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	@$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check 'torch==$(TORCH)' -e '.[all,examples,integrations]' --group dev
	@$(OTHER)/bin/python -m pytest -n 2 --dist loadfile $(TRAINS)

night: .venv/.installed-dev  ## a hundred times more examples of the properties, more histories, and one of a day; all slow tests
	@STAGETREE_TEST_MORE=1 $(BIN)/python -m pytest -n 3 --dist loadfile -m "night or slow" tests
	@STAGETREE_TEST_MORE=100 $(BIN)/python -m pytest tests/properties tests/tuners tests/scheduling tests/packing \
		tests/exactness
	@$(BIN)/python benchmarks/soak.py --seeds 0:20000
	@$(BIN)/python benchmarks/soak.py --hours 24
	@STAGETREE_TEST_CHAOS=0:200 $(BIN)/python -m pytest tests/e2e/test_chaos.py
	@$(BIN)/python benchmarks/soak_stack.py --minutes 60

figures: .venv/.installed-dev  ## the papers' figures on virtual slots, and docs/figures.md of them (ten minutes)
	@for figure in single_study several_studies scheduling stragglers page; do $(BIN)/python -m benchmarks.figures.$$figure || exit 1; done

mutants: .venv/.installed-dev  ## the workers without one of their guards each: a test must notice (an hour)
	@nice $(BIN)/python -m tools.mutants

docs: .venv/.installed-dev  ## the guide as web pages, in site/
	@$(BIN)/sphinx-build -W --keep-going -q -b html docs site
	@echo "Open site/index.html"

page: .venv/.installed-dev  ## the page, built anew where its sources changed
	@$(BIN)/python hatch_build.py

pictures: page  ## every view of the page, in pictures/; the README's two in docs/pictures
	@$(BIN)/python -m tools.pictures

page-check: page  ## types of the page against the API's own description, and the tests of what it draws
	@$(BIN)/python -m tools.page_types
	@$(BIN)/python hatch_build.py run check
	@$(BIN)/python hatch_build.py run test

check: ruff types prose page-check  ## ruff, mypy, import-linter, how sentences are written, tsc

ruff: .venv/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

prose: .venv/.installed-dev
	@$(BIN)/python -m tools.prose

types: .venv/.installed-dev
	@$(BIN)/mypy
	@$(BIN)/lint-imports

wheel: .venv/.installed-dev  ## wheel and sdist: built, checked, and installed with base, [server], [all] into fresh environments
	@$(BIN)/python -m tools.wheel base server all

# What looks at packages has an environment of its own: it must not change what is looked at.
SUPPLY := .venv-supply
$(SUPPLY)/.installed: pyproject.toml
	@test -x $(SUPPLY)/bin/python || $(PYTHON) -m venv $(SUPPLY)
	@$(SUPPLY)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(SUPPLY)/bin/python -m pip install --quiet --disable-pip-version-check --group supply
	@touch $@

lock: .venv/.installed-dev $(SUPPLY)/.installed  ## what the images install, by version and hash; and docs/licences.md
	@PATH="$(CURDIR)/$(SUPPLY)/bin:$$PATH" $(BIN)/python -m tools.lock
	@$(BIN)/python -m tools.licences

sbom: .venv/.installed-dev $(SUPPLY)/.installed  ## what the images hold, in the format CycloneDX: sbom/python.json, sbom/page.json
	@PATH="$(CURDIR)/$(SUPPLY)/bin:$$PATH" $(BIN)/python -m tools.sbom

audit: $(SUPPLY)/.installed  ## known vulnerabilities of what the images hold; needs a network
	@$(SUPPLY)/bin/pip-audit --strict --disable-pip --require-hashes -r docker/requirements.txt -r docker/torch-cpu.txt

format: .venv/.installed-dev  ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: help demo up test quick test-processes test-others test-gpu gpu-figures test-torch night figures mutants docs page pictures page-check wheel check ruff types prose lock sbom audit format
