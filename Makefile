# Everything a clone needs, from nothing: `make demo` and `make test` call the rest.
# PYTHON is any 3.11 or newer; the engine's torch is several GB from the default index on Linux x86 unless
# PIP_EXTRA_INDEX_URL points at PyTorch's CPU index (see hosts/practice/engine/requirements-torch.txt).

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && exit; done; echo python3)
BIN := .venv/bin
# A file at a time, in the order given: the longest files begin first. The laptop's tests wait more than they compute.
SHARED := --dist loadfile --no-loadscope-reorder
FAST := not ssh and not engine and not wheels and not reader and not namespaces and not processes

.DEFAULT_GOAL := help
# The two venvs side by side, and lint while the engine's is still being built.
MAKEFLAGS += --jobs=2
.PHONY: help system slurm venv engine readers demo demo-answers demo-slurm ray demo-ray practice-up practice-down test test-fast test-long faults faults-slurm faults-ray attacks docs locks audit sbom lint clean

help: ## what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

system: ## check for sshd, rsync and venv; install them when root on a Debian-like system
	@$(PYTHON) hosts/practice/system.py

venv: .venv/roost.stamp ## the laptop's side: .venv with Roost itself

.venv/roost.stamp: pyproject.toml requirements/venv.txt | system
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/venv.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

engine: | system ## the practice hosts' Python: .engine with SGLang on CPU
	@$(PYTHON) hosts/practice/engine/install.py .engine

readers: venv engine ## the trainers' own packages that open what Roost writes, each in a small venv
	@$(BIN)/python -m hosts.practice.readers

demo: venv engine ## the whole product on this machine: real SSH, real SGLang, real hidden states
	@$(BIN)/python -m hosts.practice.demo

demo-answers: venv engine ## the model answers prompts itself, then states of its answers
	@$(BIN)/python -m hosts.practice.answers_demo

slurm: venv
	@$(PYTHON) hosts/practice/system.py slurm

demo-slurm: venv engine slurm ## one extraction on three nodes of a real Slurm in namespaces, one of which dies (root on Linux)
	@$(BIN)/python -m hosts.practice.slurm.demo

ray: venv ## Ray for the practice cluster and its tests, in a venv of its own: .ray
	@$(BIN)/python -m hosts.practice.ray.install .ray

demo-ray: venv engine ray ## one extraction on three nodes of a real Ray in namespaces, one of which dies (root on Linux)
	@$(BIN)/python -m hosts.practice.ray.demo

practice-up: venv engine ## two practice hosts on loopback; then: export ROOST_INVENTORY=.practice/inventory.yaml
	@$(BIN)/inv practice up

practice-down: venv ## end the practice hosts and everything they run
	@$(BIN)/inv practice down

lint: venv ## ruff, mypy and the walls between rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-fast: venv engine ## the tests that start no server and open no connection
	$(BIN)/python -m pytest -n 2 -m "$(FAST)" tests/hosts tests/fleet tests/faults
	.engine/bin/python -m pytest -n 2 -m "$(FAST)" tests/remote

test: lint readers ## lint, types and the tests, with real sshd, rsync, SGLang and, if it can be had, Ray
	-@$(BIN)/python -m hosts.practice.ray.install .ray
	$(BIN)/python -m pytest -n 3 $(SHARED) -m "not long" tests/fleet tests/faults tests/slurm tests/ray tests/hosts
	.engine/bin/python -m pytest -n 2 $(SHARED) -m "not long" tests/remote/servers tests/remote

test-long: venv engine ray ## what `make test` leaves out: every family of models, the wheel alone, Ray's refusals, Slurm's jobs
	$(BIN)/python -m pytest -n 3 $(SHARED) -m long tests/fleet tests/faults tests/slurm tests/hosts tests/ray
	.engine/bin/python -m pytest -n 2 $(SHARED) -m long tests/remote

faults: venv engine ## break a fleet in every way (root on Linux for all of it): FAULTS='--seed 7 --only reboot --minutes 30'
	$(BIN)/python -m tests.faults $(FAULTS)

faults-slurm: venv engine ## break a run on a real Slurm in namespaces (root on Linux; apt-get install slurm-wlm munge): SLURM='--only preempted'
	$(BIN)/python -m tests.slurm $(SLURM)

faults-ray: venv engine ray ## break a run on a real Ray in namespaces (root on Linux): RAY='--only raylet-killed --rounds 3'
	$(BIN)/python -m tests.ray $(RAY)

attacks: venv engine ## what other users of a host and hostile hosts may try (root for all of it); prints the table
	@$(BIN)/python -m tests.attacks

docs: venv ## the docs as a site: build/site/index.html; a dead link or a page without a place fails
	@$(BIN)/python -m hosts.tasks.reference build/pages
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/mkdocs.yml

locks: venv ## resolve the requirements of .venv and .engine again: every package by version and digest
	$(BIN)/python -m hosts.practice.locks

audit: venv ## look the locked packages up in PyPI's database of known faults, which needs the internet
	$(BIN)/python -m uv tool run pip-audit --disable-pip --no-deps -r requirements/venv.txt -r hosts/practice/engine/locked.txt

sbom: venv engine ## what both venvs consist of, as CycloneDX: build/sbom-venv.json, build/sbom-engine.json
	@mkdir -p build
	$(BIN)/cyclonedx-py environment $(BIN)/python --of JSON -o build/sbom-venv.json
	$(BIN)/cyclonedx-py environment .engine/bin/python --of JSON -o build/sbom-engine.json

clean: ## remove what was built or practised here; ends the practice fleet first
	@if test -x $(BIN)/inv; then $(BIN)/inv practice down; fi
	rm -rf .venv .engine .ray .readers .practice build dist *.egg-info
