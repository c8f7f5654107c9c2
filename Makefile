# Every target makes the environment that it needs; nothing has to be set up before.
#
#   make demo                    a gateway that misroutes approvals, and what otelctx does about it
#   make test [PYTHON=python3.X] the test suite      (ARGS="-k pool" goes to pytest)
#   make cpython [PYTHON=…]      CPython's own tests of what is patched, with otelctx and without (ARGS="--quick")
#   make soak [PYTHON=…]         a million hops of 64 threads with everything that goes wrong (ARGS="--seconds 60")
#   make beside [PYTHON=…]       other instrumentations and green threads in one process with otelctx
#   make lint | hosts | http | backends | runners | fuzz | bench | clean

PYTHON ?= python3
ARGS ?=

# One environment for the default interpreter, one more for each that is named: `make test PYTHON=python3.13` uses .venv-3.13.
ifeq ($(origin PYTHON),file)
  VENV := .venv
else
  VENV := .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d%s" % (*sys.version_info[:2], sys.abiflags))')
endif
DEMO_VENV := .venv-demo
BESIDE_VENV := $(patsubst .venv%,.venv-beside%,$(VENV))
BIN := $(VENV)/bin

# $(call environment,DIRECTORY,EXTRA): an environment of $(PYTHON) with this project, editable, and one of its extras.
# uv is used where it is there. An interpreter without ensurepip (a distribution's, often) needs it, and then gets it from pip.
define environment
	@set -eu; dir='$(1)'; project='.[$(2)]'; \
	uv=$$(command -v uv || true); \
	if [ -z "$$uv" ] && ! $(PYTHON) -c 'import ensurepip' 2>/dev/null; then \
		[ -x .venv-uv/bin/uv ] || { python3 -m venv .venv-uv && .venv-uv/bin/python -m pip install --quiet uv; }; \
		uv=.venv-uv/bin/uv; \
	fi; \
	echo "$$dir: $$($(PYTHON) --version), with otelctx$${project#.}"; \
	if ! "$$dir/bin/python" -c '' 2>/dev/null; then \
		rm -rf "$$dir"; \
		if [ -n "$$uv" ]; then "$$uv" venv --quiet --python "$$(command -v $(PYTHON))" "$$dir"; else $(PYTHON) -m venv "$$dir"; fi; \
	fi; \
	if [ -n "$$uv" ] && "$$uv" pip install --quiet --python "$$dir/bin/python" --editable "$$project"; then :; \
	else \
		"$$dir/bin/python" -m pip --version >/dev/null 2>&1 || "$$dir/bin/python" -m ensurepip >/dev/null; \
		"$$dir/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$$project"; \
	fi; \
	touch $@
endef

.PHONY: help demo test beside cpython lint hosts http backends runners runner-suites runners-table fuzz soak bench clean

help:
	@sed -n 's/^#   //p' Makefile

$(VENV)/.ready: pyproject.toml otelctx/otelctx.pth
	$(call environment,$(VENV),dev)

$(DEMO_VENV)/.ready: pyproject.toml otelctx/otelctx.pth
	$(call environment,$(DEMO_VENV),demo)

$(BESIDE_VENV)/.ready: pyproject.toml otelctx/otelctx.pth
	$(call environment,$(BESIDE_VENV),beside)

demo: $(DEMO_VENV)/.ready
	@$(DEMO_VENV)/bin/otelctx demo $(ARGS)

test: $(VENV)/.ready
	$(BIN)/python -m pytest -m "not runners and not hosts and not beside and not http and not backends" $(ARGS)

cpython: $(VENV)/.ready
	$(BIN)/python -m tests.cpython $(ARGS)

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Real applications, each in an environment of its own.
hosts: $(VENV)/.ready
	$(BIN)/python -m pytest tests/hosts $(ARGS)

# Without the pytest plugins of what is tested.
beside: $(BESIDE_VENV)/.ready
	PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BESIDE_VENV)/bin/python -m pytest -p pytest_timeout -p randomly tests/beside $(ARGS)

# The border over real HTTP and gRPC, in an environment of its own.
http: $(VENV)/.ready
	$(BIN)/python -m pytest tests/http $(ARGS)

# Prometheus, Alertmanager and Phoenix, started by the tests.
backends: $(VENV)/.ready
	$(BIN)/python -m pytest tests/backends $(ARGS)

# Task queues and schedulers with their servers, each in an environment of its own.
runners: $(VENV)/.ready
	$(BIN)/python -m pytest tests/runners $(ARGS)

# Runners' own tests, from their source distributions, with otelctx and without (ARGS="schedule").
runner-suites: $(VENV)/.ready
	$(BIN)/python -m tests.runners.suites $(ARGS)

# What is in docs/runners.md, measured anew.
runners-table: $(VENV)/.ready
	$(BIN)/python -m tests.runners.table

# The suite runs a few hundred of these trees and messages; this is the whole claim. SECONDS is for the messages.
# (Of Celery's tasks too: OTELCTX_CELERY_TASKS=10000 make runners ARGS="-k of_many_tasks".)
SECONDS ?= 600
fuzz: $(VENV)/.ready
	OTELCTX_FUZZ_TREES=10000 $(BIN)/python -m pytest tests/test_fuzz.py --timeout=3600 $(ARGS)
	OTELCTX_FUZZ_SECONDS=$(SECONDS) $(BIN)/python -m pytest tests/test_border_fuzz.py -s $(ARGS)

soak: $(VENV)/.ready
	$(BIN)/python -m tests.soak $(ARGS)

bench: $(VENV)/.ready
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf .venv .venv-* .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
