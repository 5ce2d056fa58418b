# What a contributor runs. `make` alone lists the targets; CONTRIBUTING.md says when to use which.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.setup-done

.PHONY: help setup demo test check bench fuzz upstream matrix lock clean
.DEFAULT_GOAL := help

help:
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## create .venv with the pinned environment and an editable Markstep

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { echo \
		"Markstep needs Python 3.11, 3.12 or 3.13, and '$(PYTHON)' is not one of them." \
		"Name the interpreter: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Creating .venv with $$($(PYTHON) --version)."
	@$(PYTHON) -m venv .venv

# `python -m pip` instead of `pip`: it also works when the repository was moved after .venv was made.
$(STAMP): requirements.lock pyproject.toml | $(BIN)/pip
	@echo "Installing requirements.lock into .venv (minutes the first time)."
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
	@echo "The environment is ready."

demo: setup ## train a small model with and without Markstep and compare
	@$(BIN)/python examples/demo.py

test: setup ## run all tests
	@$(BIN)/python -m pytest

check: setup ## lint, format, types and the tests that do not compile (under a minute)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check --output-format concise . || { echo \
		"Not formatted: run '$(BIN)/ruff format .'" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/python -m pytest -q -m "not compile and not slow and not fuzz and not opinfo"

bench: setup ## run a benchmark suite: make bench SUITE=quick
	@$(BIN)/markstep bench --suite $(or $(SUITE),quick)

fuzz: setup ## compare generated training steps with eager PyTorch: make fuzz N=10000
	@FUZZ_EXAMPLES=$(or $(N),10000) $(BIN)/python -m pytest tests/fuzz -q

upstream: setup ## run torch_xla's own tests from a checkout: make upstream TORCH_XLA=path/to/xla
	@$(BIN)/python tools/upstream.py $(if $(TORCH_XLA),"$(TORCH_XLA)")

matrix: setup ## run the tests with the oldest, the locked and the newest PyTorch (downloads gigabytes)
	@PYTHON=$(PYTHON) tools/matrix.sh

lock: | $(BIN)/pip ## write requirements.lock anew: make lock TORCH=2.13.0
	@$(BIN)/python tools/lock.py $(TORCH)

clean: ## remove build outputs and caches, keep .venv
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -path ./.venv -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -type d -prune -exec rm -rf {} +
