# What is installed goes into .venv, which is made when there is none. `make` alone lists the targets.
#
#   make demo ARGS="--device cpu --json out.json"
#   make test ARGS="-k gemm -x"
#   make test PYTHON=/path/to/python3.12        (where .venv does not exist yet)

VENV := .venv
PY := $(VENV)/bin/python
comma := ,

# The CUDA extra that the driver takes: cu12, cu13, or nothing where there is no driver.
EXTRA = $(shell $(PY) -P aicf/probes.py extra)
# Tests compile every kernel, with or without a GPU: `dev` brings CUDA 13, which a driver of CUDA 12 could not run.
TEST_EXTRAS = $(if $(filter cu12,$(EXTRA)),test-cu12,dev)
INSTALL = $(MAKE) --no-print-directory --silent $(VENV)/.installed-
# Tests start a hundred processes: each would compile aicf anew where the environment forbids Python to keep bytecode.
PYTEST_ARGS = -m pytest --quiet --numprocesses auto --maxprocesses 4 --dist worksteal
PYTEST = PYTHONDONTWRITEBYTECODE= $(PY) $(PYTEST_ARGS)
# PyTorch has an environment of its own, so that it changes nothing of what `make test` does. That sees what .venv has.
TORCH := $(VENV)/torch

SPEC_REPORT := $(VENV)/spec-report.jsonl

.PHONY: help demo test test-all test-torch dry-run spec docs lint check-ruff check-format check-types check-imports check-spelling fmt dev
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  \1  /p' $(MAKEFILE_LIST) | awk '{name = $$1; $$1 = ""; printf "  %-10s%s\n", name, $$0}'

demo: $(PY) ## install what it needs, then train a model and say which kernels were chosen and why
	+@$(INSTALL)$(or $(EXTRA),base)
	@$(VENV)/bin/aicf demo $(ARGS)

test: dev ## run the tests
	AICF_TEST_CACHE=$${AICF_TEST_CACHE-$(abspath $(VENV))/test-cache} $(PYTEST) $(ARGS)

test-all: dev ## run the tests, with those that install aicf into fresh environments, and all tilings of the large kernels
	AICF_TEST_ALL=1 AICF_TEST_INSTALL=1 $(PYTEST) $(ARGS)

test-torch: $(TORCH)/.installed ## install PyTorch and transformers beside .venv, and run the tests of that front end
	AICF_TEST_CACHE=$${AICF_TEST_CACHE-$(abspath $(VENV))/test-cache} \
	    PYTHONDONTWRITEBYTECODE= $(TORCH)/bin/python $(PYTEST_ARGS) tests/frontends/torch $(ARGS)

dry-run: dev ## without a GPU: do kernels take what the tests for one ask them to?
	PYTHONPATH=tests:tests/cuda $(PYTEST) -p dry_run -m gpu $(ARGS) tests/cuda

spec: dev ## run the tests that carry rows of docs/spec.md, and list every row with its tests' outcomes
	@rm -f $(SPEC_REPORT)
	-@AICF_SPEC_REPORT=$(abspath $(SPEC_REPORT)) $(PYTEST) -m spec $(ARGS)
	@$(PY) tools/spec_report.py $(SPEC_REPORT) $(filter -v,$(ARGS))

docs: dev ## build the documentation site into site/ and check it; needs no network once it is installed
	+@$(INSTALL)docs
	$(PY) -m tools.docs_site $(ARGS)

lint: check-ruff check-format check-types check-imports check-spelling ## ruff, mypy, import-linter and codespell

check-ruff: dev
	$(PY) -m ruff check --output-format concise .

check-format: dev
	$(PY) -m ruff format --check --output-format concise .

check-types: dev
	$(PY) -m mypy

check-imports: dev
	$(VENV)/bin/lint-imports --no-logo

check-spelling: dev
	$(VENV)/bin/codespell

fmt: dev ## format, and mend what ruff can
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

dev: $(PY) ## make .venv and install aicf with everything that development needs
	+@$(INSTALL)$(TEST_EXTRAS)

# .installed-test-cu12 stands for `pip install -e .[test,cu12]`, .installed-base for aicf without extras.
$(VENV)/.installed-%: WHAT = aicf$(if $(filter-out base,$*),[$(subst -,$(comma),$*)])
$(VENV)/.installed-%: pyproject.toml
	@echo "installing $(WHAT) into $(VENV): minutes, the first time"
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable '$(WHAT:aicf%=.%)'
	@touch $@

$(TORCH)/.installed: pyproject.toml | dev
	@echo "installing aicf[torch-test] into $(TORCH): a minute, the first time"
	@rm -rf $(TORCH)
	@$(PY) -m venv --without-pip $(TORCH)
	@$(PY) -c 'import sysconfig; print("import site; site.addsitedir(" + repr(sysconfig.get_path("purelib")) + ")")' \
	    > $$($(TORCH)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/of-dev.pth
	@$(PY) -m pip --python $(TORCH)/bin/python install --quiet --disable-pip-version-check --editable '.[torch-test]'
	@touch $@

# The first of these Pythons that runs (a pyenv shim need not) and can make an environment.
$(PY):
	@usable='import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'; \
	for python in $(or $(PYTHON),python3.13 python3.12 python3.11 python3.14 python3); do \
	    $$python -c "$$usable" >/dev/null 2>&1 || continue; \
	    echo "making $(VENV) with $$($$python --version)"; \
	    $$python -m venv $(VENV) && exit 0; \
	    rm -rf $(VENV); exit 1; \
	done; \
	echo "No usable Python from 3.11 to 3.14 was found. On Debian and Ubuntu: sudo apt-get install python3-venv" >&2; \
	echo "Elsewhere name one: make $(or $(MAKECMDGOALS),test) PYTHON=/path/to/python3.12" >&2; exit 1
