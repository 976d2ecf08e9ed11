.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# Each target installs everything in one run of pip, because a second run would resolve and build it all again. pip compiles
# on one core, so compileall does it on all of them. It skips large packages that few tests import, and it may fail: some
# packages contain files that this version of Python cannot parse.
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

demo: .venv/.installed  ## run the main job: a grid on the digits data, with shared steps trained once
	@$(BIN)/stagetree demo
	@echo
	@echo "Next: source .venv/bin/activate, and docs/first-hour.md."

up: .venv/.installed  ## start the embedded stack (API, scheduler, one worker per slot) until Ctrl-C
	@$(BIN)/stagetree up

# The folders with the longest tests come first.
WAITING := tests/e2e tests/ranks tests/docker tests/cli tests/examples tests/page tests/workers tests/runtime tests/processes

test: .venv/.installed-dev  ## all tests; those that start processes mostly wait, so the others run beside them
	@$(MAKE) --no-print-directory --jobs=2 test-processes test-others

# These tests start no process or server and open no database.
QUICK := tests/domain tests/scheduling tests/simulation tests/tuners tests/curves tests/samplers tests/test_structure.py

quick: .venv/.installed-dev  ## the tests of the core, the tuners and the simulator, to run while you edit
	@$(BIN)/python -m pytest -q -n auto --dist loadfile $(QUICK)

test-processes: .venv/.installed-dev
	@$(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder $(WAITING)

# Folders with a few long tests come first, so that no core idles at the end.
LONG := tests/world tests/exactness
OTHERS := $(LONG) $(filter-out $(WAITING) $(LONG) tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/))) $(wildcard tests/test_*.py)

# The output is printed at the end, so that the two runs are not interleaved.
test-others: .venv/.installed-dev
	@said=$$(nice $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(OTHERS) 2>&1); code=$$?; \
	echo "$$said"; exit $$code

test-gpu: .venv/.installed-dev  ## the tests that need a GPU, with the installed torch; skipped without a GPU
	@$(BIN)/python -m pytest -m gpu tests/gpu

gpu-figures: .venv/.installed-dev  ## test-gpu, and measure steps and packs on a GPU: one JSON, and which claims held
	@$(BIN)/python benchmarks/gpu_figures.py

TORCH ?= 2.6.*
TRAINS := tests/runtime tests/packing tests/stagetree tests/examples tests/gpu tests/workers/test_slot_exactness.py \
	tests/e2e/test_laws.py tests/e2e/test_weight_export.py
OTHER := .venv-torch

test-torch:  ## the tests that train, with another torch in .venv-torch: make test-torch TORCH='2.6.*'
	@test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	@$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check 'torch==$(TORCH)' -e '.[all,examples,integrations]' --group dev
	@$(OTHER)/bin/python -m pytest -n 2 --dist loadfile $(TRAINS)

night: .venv/.installed-dev  ## all slow tests, a hundred times the examples of each property, and 24 hours of histories
	@STAGETREE_TEST_MORE=1 $(BIN)/python -m pytest -n 3 --dist loadfile -m "night or slow" tests
	@STAGETREE_TEST_MORE=100 $(BIN)/python -m pytest tests/properties tests/tuners tests/scheduling tests/packing \
		tests/exactness
	@$(BIN)/python benchmarks/soak.py --seeds 0:20000
	@$(BIN)/python benchmarks/soak.py --hours 24
	@STAGETREE_TEST_CHAOS=0:200 $(BIN)/python -m pytest tests/e2e/test_chaos.py
	@$(BIN)/python benchmarks/soak_stack.py --minutes 60

figures: .venv/.installed-dev  ## recompute the papers' figures on virtual slots, and docs/figures.md (ten minutes)
	@for figure in single_study several_studies scheduling stragglers page; do $(BIN)/python -m benchmarks.figures.$$figure || exit 1; done

mutants: .venv/.installed-dev  ## remove each guard of the workers in turn: a test must fail (an hour)
	@nice $(BIN)/python -m tools.mutants

docs: .venv/.installed-dev  ## build the guide as web pages in site/
	@$(BIN)/sphinx-build -W --keep-going -q -b html docs site
	@echo "Open site/index.html"

page: .venv/.installed-dev  ## build the page if its sources changed
	@$(BIN)/python hatch_build.py

pictures: page  ## take pictures of every view of the page: pictures/, and docs/pictures for the README
	@$(BIN)/python -m tools.pictures

page-check: page  ## check the page's types against the OpenAPI document, and test what it draws
	@$(BIN)/python -m tools.page_types
	@$(BIN)/python hatch_build.py run check
	@$(BIN)/python hatch_build.py run test

check: ruff types prose page-check  ## ruff, mypy, import-linter, the prose check, tsc

ruff: .venv/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

prose: .venv/.installed-dev
	@$(BIN)/python -m tools.prose

types: .venv/.installed-dev
	@$(BIN)/mypy
	@$(BIN)/lint-imports

wheel: .venv/.installed-dev  ## build and check wheel and sdist, and install them with base, [server] and [all] into fresh environments
	@$(BIN)/python -m tools.wheel base server all

# The tools that inspect packages have an environment of their own, because installing them would change the result.
SUPPLY := .venv-supply
$(SUPPLY)/.installed: pyproject.toml
	@test -x $(SUPPLY)/bin/python || $(PYTHON) -m venv $(SUPPLY)
	@$(SUPPLY)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(SUPPLY)/bin/python -m pip install --quiet --disable-pip-version-check --group supply
	@touch $@

lock: .venv/.installed-dev $(SUPPLY)/.installed  ## lock what the images install by version and hash, and write docs/licences.md
	@PATH="$(CURDIR)/$(SUPPLY)/bin:$$PATH" $(BIN)/python -m tools.lock
	@$(BIN)/python -m tools.licences

sbom: .venv/.installed-dev $(SUPPLY)/.installed  ## list the images' packages in CycloneDX format: sbom/python.json, sbom/page.json
	@PATH="$(CURDIR)/$(SUPPLY)/bin:$$PATH" $(BIN)/python -m tools.sbom

audit: $(SUPPLY)/.installed  ## look up known vulnerabilities of the images' packages; needs a network
	@$(SUPPLY)/bin/pip-audit --strict --disable-pip --require-hashes -r docker/requirements.txt -r docker/torch-cpu.txt

format: .venv/.installed-dev  ## let ruff fix and format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: help demo up test quick test-processes test-others test-gpu gpu-figures test-torch night figures mutants docs page pictures page-check wheel check ruff types prose lock sbom audit format
