# Few recipes; each installs what it needs and may be run again at any time.
SHELL := /bin/bash
PY := .venv/bin/python
# several workers share tests as tests/conftest.py says, long rings first
IN_ORDER := --no-loadscope-reorder
# each worker collects all tests: seconds of a processor for those that are not wanted
QUICK := -m "not slow and not cluster" --ignore tests/cluster
# each with mounts, pids and a network of its own where this may be root's
MACHINES := --machines

# compiled modules are kept: each process of a test would compile its imports anew, and the rings start thousands
unexport PYTHONDONTWRITEBYTECODE

PREFIX ?= /usr/local

.PHONY: install uninstall wheel deb demo test test-slow test-cluster smoke coverage cluster cluster-down image check fmt bench docs pictures lock setup setup-tests setup-bench clean

install: setup     ## the program on PATH, with man pages and completion; PREFIX=/usr/local
	@$(PY) -m tools.package install --prefix $(PREFIX)

uninstall: setup   ## take it away again
	@$(PY) -m tools.package uninstall --prefix $(PREFIX)

wheel: setup       ## the wheels of both distributions in dist/
	@$(PY) -m tools.package wheels

deb: setup         ## a Debian package for this release of Debian, in dist/
	@$(PY) -m tools.package deb

demo: setup        ## start Fairlead on this machine, run the articles' pod, print its trace, stop everything
	@tools/demo.sh

test: setup-tests  ## the quick ring: house, unit, contract and system tests
	@$(PY) -m pytest $(QUICK) -n 4 $(MACHINES) $(IN_ORDER)

smoke: setup-tests ## the steady few of the slow and cluster rings that .ci/run adds
	@tests/cluster/setup.sh
	@$(PY) -m pytest -m "smoke and not cluster" --timeout 1200
	@$(PY) -m pytest tests/cluster -m smoke

coverage: setup-tests ## branches that unit and contract tests take, room by room; fails below the floors of the house
	@$(PY) -m tools.coverage

test-slow: setup-tests  ## the long proofs: kill points, 500 containers, a virtual machine
	@tests/system/setup.sh
	@$(PY) -m pytest -m "slow and not cluster" --timeout 1200

cluster: setup     ## a real Kubernetes on this machine, left running (the first time some 8 minutes); prints how to use it
	@tests/cluster/setup.sh --play && $(PY) -m tools.cluster up

cluster-down:      ## end it, without a trace
	@$(PY) -m tools.cluster down

image: setup       ## the container image, without any registry: build/fairlead-VERSION.tar, and what is in it
	@$(PY) -m tools.image build && $(PY) -m tools.image contents

VERSIONS ?= 1.36
CLUSTERS ?= 3
test-cluster: setup  ## the cluster ring; VERSIONS="1.36 1.34" for both; CLUSTERS side by side, 1 GiB each
	@tests/cluster/setup.sh $(VERSIONS)
	@$(PY) -m pytest tests/cluster -n $(CLUSTERS) $(IN_ORDER) $(foreach v,$(VERSIONS),--kubernetes-version $(v))

check: setup       ## the house ring alone: lint, types, import law, limits, docs
	@$(PY) -m pytest tests/house

fmt: setup
	@.venv/bin/ruff format . && .venv/bin/ruff check --fix .

bench: setup-bench ## every benchmark; rewrites docs/benchmarks.md
	@$(PY) -m benchmarks --write docs/benchmarks.md

docs: setup        ## generate the reference pages and build the site
	@$(PY) tools/generate_docs.py && .venv/bin/mkdocs build --strict

pictures: setup    ## draw the pictures of the pages, and record the terminal anew (needs root and podman)
	@$(PY) tools/pictures.py --record

lock:              ## resolve dependencies anew
	@tools/setup.sh lock

setup:
	@tools/setup.sh

setup-tests:
	@tools/setup.sh tests

setup-bench:
	@tools/setup.sh bench

clean:
	rm -rf .venv .cache build site dist .mypy_cache .ruff_cache .pytest_cache
