# `make demo` and `make test` do all set-up by themselves.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
SUDO := $(shell [ "$$(id -u)" = 0 ] || command -v sudo)
BIN := .venv/bin

.PHONY: demo test check docs lint types tests fast fuzz release setup clean

demo: .venv/core  ## watch HCFL+ find the groups in a federation that one model cannot serve
	$(BIN)/hcfl demo

test: setup lint types tests  ## lint, strict types, tests

check: setup lint types fast  ## lint, strict types, and the fast tests: below two minutes

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo

types: setup
	$(BIN)/mypy

tests: setup  # one worker more than cores: Flower's tests mostly wait
	$(BIN)/pytest -n $$(($$(nproc) + 1)) --dist worksteal

# Folders whose tests need no other process, without the files that train for longer.
FAST := $(addprefix tests/,config core data methods models privacy theory tiers report/test_report_page.py test_imports.py)
LONG := $(addprefix tests/,core/test_rounds.py data/test_real_images.py models/test_image_networks.py)

fast: setup
	$(BIN)/pytest -n $$(nproc) --dist worksteal -m "not slow" $(FAST) $(addprefix --ignore=,$(LONG))

fuzz: setup  ## 20,000 mutated messages and more than 5,000 mutated files against the server and the readers: half an hour
	HYPOTHESIS_PROFILE=full $(BIN)/pytest -n $$(nproc) --dist worksteal $(addprefix tests/fuzz/,test_wire_fuzz.py test_files_fuzz.py)

release: setup  ## sdist and wheel in dist/, checked; the demo runs from the wheel in an empty environment
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python .ci/try_release.py

docs: setup  ## the documentation as a site, in build/site; a warning is an error
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/site

setup: .venv/ready  ## the environment in .venv, with hcfl in it

# Debian ships python3 without venv; where it is missing, install it.
.venv/made:
	$(PYTHON) -m venv .venv || { rm -rf .venv; \
	  $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq python3-venv && $(PYTHON) -m venv .venv; }
	touch $@

.venv/core: pyproject.toml constraints.txt | .venv/made  # hcfl alone: all that the demo needs
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/ready: pyproject.toml constraints.txt | .venv/made
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[dev,flower]'
	touch $@

clean:
	rm -rf .venv
