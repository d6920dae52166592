# `make quickstart` and `make test` are the two commands of the README; both install first, once.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2
ABSENT ?= skip
CONSTRAINTS ?= constraints.txt
DIST ?= dist
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' palaestra/__init__.py)
APART := openenv,pddl
COMPILED := textworld reasoning-gym
EXTRAS ?= dev,envs,web,tools,serve,adapters,lora,quantize,models,data,bench

CORE := $(VENV)/.core-installed
DEV := $(VENV)/.dev-installed
PIP := $(BIN)/python -m pip --disable-pip-version-check
STRICT := $(wildcard palaestra/errors.py palaestra/api.py palaestra/registry palaestra/process palaestra/http palaestra/endpoints palaestra/recipe palaestra/catalogue \
	palaestra/data palaestra/boundary palaestra/algebra palaestra/parts palaestra/replay palaestra/systems palaestra/teams palaestra/rollout \
	palaestra/training palaestra/evaluation palaestra/store palaestra/engines palaestra/models \
	palaestra/chat palaestra/policies palaestra/gateway palaestra/commands)
CODE := $(wildcard palaestra tests benchmarks conftest.py build_index.py docs/*.py docs/site_pages)

# Parts that studies import, and benchmarks that have to be told of what.
NOT_ALONE := recipe_runs machine arrivals credit_probe reading exported self_play spikes transfer worlds two_trees gpu
BENCHMARKS := $(filter-out $(NOT_ALONE:%=benchmarks/%.py),$(wildcard benchmarks/*.py))

.PHONY: help install develop quickstart model test smoke test-all test-newest test-gpu test-vllm test-agents attack pins lint format docs bench audit sbom release clean

help:
	@echo "install     the package into $(VENV)            quickstart  train a language policy, with success before and after"
	@echo "develop     … with test tools and environments  test        fast tests          test-all   all tests"
	@echo "attack      tries what Palaestra promises to survive, for ten to twenty minutes, and writes a table"
	@echo "smoke       the longer tests, and benchmarks, recipes and examples, each for a moment"
	@echo "lint        style, types, layers               format      rewrite style       docs       the site"
	@echo "model       a pretrained model for the examples     pins        short runs whose every number is pinned"
	@echo "test-newest the fast tests in $(NEWEST) with the newest version of each package; torch keeps its version"
	@echo "test-vllm   with a real vLLM on the CPU: what engines must keep, a run, and a kill of the server in its middle"
	@echo "test-agents agents of ten libraries, such as LangChain, play through the gateway with a model on this machine"
	@echo "test-gpu    on a CUDA device: its tests, then tokens/s and MFU of generation, updates and training"
	@echo "bench       the benchmarks that need no arguments, one after another"
	@echo "audit       known vulnerabilities of the pinned packages, from the network"
	@echo "sbom        the packages with their licenses   release     the wheel with this list, in dist/"

# The packages of COMPILED, or what they need, are compiled by pip, which needs a C compiler and the headers of Python.
# Without a compiler they are left out, and pytest's last lines say so. `make -B develop` tries again.
# The extras of APART come last, each in its own way: openenv asks for mcp below 2, and works with the mcp 2 of the others;
# Fast Downward is built, which needs cmake and a C++ compiler. cyclonedx-bom (`make sbom`) comes without the packages by
# which it would check its own list: jsonschema loads one of them, a grammar of addresses, whenever it is imported, and each
# command would begin seconds later.
# torch comes first and by itself: the constraints name its version, pip's own settings name the build (CPU or CUDA).
$(CORE): pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import sys; sys.exit(0 if sys.version_info >= (3, 11) else 'Palaestra needs Python 3.11 or newer; call: make PYTHON=python3.11 …')"
	$(PIP) install --quiet -c $(CONSTRAINTS) torch
	$(PIP) install --quiet -c $(CONSTRAINTS) -e .
	touch $@

$(DEV): $(CORE)
	$(PIP) install --quiet -c $(CONSTRAINTS) $$($(BIN)/python tests/requirements.py $(EXTRAS) $(COMPILED))
	-command -v cc > /dev/null && $(PIP) install --quiet -c $(CONSTRAINTS) $(COMPILED)
	$(PIP) install --quiet -c $(CONSTRAINTS) fastmcp fastapi uvicorn websockets requests tomli tomli-w
	$(PIP) install --quiet -c $(CONSTRAINTS) --no-deps openenv
	$(PIP) install --quiet -c $(CONSTRAINTS) --no-deps cyclonedx-bom chardet
	-$(PIP) install --quiet -c $(CONSTRAINTS) --no-deps alfworld
	-command -v cmake > /dev/null && command -v c++ > /dev/null && \
	$(PIP) install --quiet -c $(CONSTRAINTS) fast-downward-textworld
	touch $@

install: $(CORE)

develop: $(DEV)

quickstart: $(CORE)
	@$(BIN)/palaestra train quickstart.yaml --overwrite

# SmolLM2-135M-Instruct, in the folder where recipes find it by name. It is fetched once.
model: $(DEV)
	@$(BIN)/palaestra model

# A test that needs an absent package or program is skipped, and the last lines name it; with ABSENT=fail it fails.
test: model
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --absent $(ABSENT) -m "not slow and not smoke and not long"

# The rest of what every change must pass: benchmarks, recipes and examples of the documentation from end to end, at a
# size that measures nothing, and the tests that take half a second or more.
smoke: model
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --absent $(ABSENT) -m "(smoke or long) and not slow"

test-all: model
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --absent $(ABSENT)

# The fast tests with the newest version of each package that the extras allow, in an environment made anew. torch keeps its
# version, because a newer one may have no build for the CPU. verifiers asks for exactly one version of mcp; here it gets a
# newer one, like all others.
NEWEST := .venv-newest
test-newest:
	rm -rf $(NEWEST)
	mkdir -p build
	grep '^torch==' constraints.txt > build/torch.txt
	$(MAKE) VENV=$(NEWEST) CONSTRAINTS=build/torch.txt model
	$(NEWEST)/bin/python -m pip install --quiet --upgrade --no-deps mcp mcp-types
	$(NEWEST)/bin/python -m pip freeze --exclude-editable
	OMP_NUM_THREADS=1 $(NEWEST)/bin/python -m pytest -q -n $(WORKERS) --absent $(ABSENT) \
		-m "not slow and not smoke and not long" --ignore tests/house/test_constraints.py

# On a machine with a CUDA device: the tests that need one, then speed and the share of the peak that is used.
test-gpu: model
	$(BIN)/python -m pytest -q -m gpu
	$(BIN)/python benchmarks/gpu.py

# vLLM computes on the CPU, in an environment of its own, which takes 4 GB and is installed once. Needs the network.
VLLM ?= .venv-vllm
$(VLLM)/.installed: tests/real/install_vllm.py
	$(BIN)/python tests/real/install_vllm.py $(VLLM)
	touch $@

test-vllm: model $(VLLM)/.installed
	PYTHONPATH=$(CURDIR) $(BIN)/python tests/real/vllm.py $(VLLM)/bin/vllm

# Agents of other libraries, in two environments of their own, which take 2 GB and are installed once. Needs the network.
AGENTS ?= .venv-agents
$(AGENTS)/.installed: tests/real/agents.py $(DEV)
	PYTHONPATH=$(CURDIR) $(BIN)/python tests/real/agents.py install $(AGENTS)
	touch $@

test-agents: model $(AGENTS)/.installed
	PYTHONPATH=$(CURDIR) $(BIN)/python tests/real/agents.py run $(AGENTS)

# Every promise of docs/reliability.md, tried often. `KILLS=200 MESSAGES=10000` tries more, `SEED=…` the same again.
KILLS ?= 40
MESSAGES ?= 4000
SEED ?= 0
PROMISES ?= runs/attack
attack: model
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR) $(BIN)/python -m pytest -q -n $(WORKERS) -m "promise" -p tests.attack.table \
		--promises $(PROMISES) --kills $(KILLS) --messages $(MESSAGES) --seed $(SEED) \
		$$(PYTHONPATH=$(CURDIR) $(BIN)/python -m tests.attack.table paths)

pins: $(DEV)
	PYTHONPATH=$(CURDIR) $(BIN)/python tests/pins/record.py

lint: $(DEV)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy --follow-imports=silent $(STRICT)
	$(BIN)/lint-imports

format: $(DEV)
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

bench: $(DEV)
	@for file in $(BENCHMARKS); do echo "== $$file"; $(BIN)/python $$file || exit 1; done

# Asks the database of PyPI about each line of constraints.txt. pip-audit ends with status 1 if it finds something, or if
# PyPI does not know a package.
audit: $(DEV)
	@$(BIN)/python -c "from urllib.request import urlopen; urlopen('https://pypi.org/pypi/pip/json', timeout=20)" 2> /dev/null \
	|| { echo "make audit needs the network: https://pypi.org does not answer, so nothing was checked."; exit 1; }
	$(BIN)/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip --progress-spinner off

# All packages that are installed here, with versions, licenses, and which package requires which, as CycloneDX. The list is
# not compared with the schema of CycloneDX, which takes minutes; a test reads it. The tool cannot read a dynamic version,
# so it gets a copy of pyproject.toml in which the version is written.
sbom: $(DEV)
	mkdir -p $(DIST)
	sed 's/^dynamic = \["version"\]/version = "$(VERSION)"/' pyproject.toml > $(DIST)/pyproject.toml
	$(BIN)/cyclonedx-py environment $(BIN)/python --pyproject $(DIST)/pyproject.toml --mc-type library --gather-license-texts \
	--output-reproducible --no-validate --of JSON --output-file $(DIST)/palaestra-$(VERSION).cdx.json
	rm $(DIST)/pyproject.toml

release: sbom
	$(PIP) wheel --quiet --no-deps --wheel-dir $(DIST) .

clean:
	rm -rf site build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
