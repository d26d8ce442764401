# Few recipes; each installs what it needs and may be run again at any time.
SHELL := /bin/bash
PY := .venv/bin/python

.PHONY: demo test test-slow check fmt bench docs lock setup clean

demo: setup        ## start Fairlead on this machine, run the articles' pod, print its trace, stop everything
	@tools/demo.sh

test: setup        ## house, unit, contract and system rings
	@$(PY) -m pytest -m "not slow and not cluster"

test-slow: setup   ## the long proofs: kill points, 500 containers
	@$(PY) -m pytest -m "slow and not cluster" --timeout 1200

check: setup       ## the house ring alone: lint, types, import law, limits, docs
	@$(PY) -m pytest tests/house

fmt: setup
	@.venv/bin/ruff format . && .venv/bin/ruff check --fix .

bench: setup       ## every benchmark; rewrites docs/benchmarks.md
	@$(PY) -m benchmarks --write docs/benchmarks.md

docs: setup        ## generate the reference pages and build the site
	@$(PY) tools/generate_docs.py && .venv/bin/mkdocs build --strict

lock:              ## resolve dependencies anew
	@tools/setup.sh lock

setup:
	@tools/setup.sh

clean:
	rm -rf .venv .cache site dist .mypy_cache .ruff_cache .pytest_cache
