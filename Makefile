# Everything a contributor runs. `make` alone lists it.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.complete
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command 'make requirements'

.DEFAULT_GOAL := help
.PHONY: help setup torch mindspore demo tour test campaigns lint format bench proving rollouts chaos damage simulate mutants clocks incidents pictures servers generated chart requirements audit docs dist clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv with the pinned dependencies and the project in it

demo: setup ## Ingest a real dump in which a NaN is born, and find it
	@$(BIN)/python -m tests.demo

tour: setup ## All of it on loopback, to click through; Ctrl-C ends it
	@$(BIN)/python -m tests.tour

# Not among the pinned dependencies: hundreds of megabytes, for the tests of the recorders alone. pip takes the
# build for CPUs if an index or directory that it is configured for has one.
torch: setup ## Install PyTorch, dump systems for it, JAX and trackers into .venv, for tests of recorders, real dumps and exports
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements/torch.txt \
		--requirement requirements/jax.txt --requirement requirements/trackers.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		--requirement requirements/torch-tools.txt

# A venv of its own, 2.8 GB: its dependencies are not those of the project.
mindspore: ## Install MindSpore for CPUs into .venv-mindspore, for the loop of `next` with the real thing
	@$(PYTHON) -m venv .venv-mindspore
	@.venv-mindspore/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements/mindspore.txt

# With TMPDIR=/dev/shm, if there is room, no disk is waited for: stores are written with fsync.
test: lint ## Lint, then run the tests in three processes; those whose servers are missing are skipped
	@tests/servers/install.sh --check || test -z "$(CI)"
	@$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

campaigns: setup ## Run the tests that take minutes: image, pods and tour, alerts, hosts of a network, tokens, a short chaos
	@tests/servers/install.sh --check || test -z "$(CI)"
	@$(BIN)/pytest -m campaign

lint: setup ## Check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup ## Put the code into the expected style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup ## Measure against cp -r, zarr-python, TensorStore, s3fs and others; QUICK=1 in two minutes
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/bench.txt
	@$(BIN)/python -m bench $(if $(QUICK),--quick)

proving: setup ## Run real PyTorch programs with known faults, ask, and score the answers; ONLY='moe*' SEED=1 HTML=FILE
	@$(BIN)/python -m proving $(if $(ONLY),--only '$(ONLY)') $(if $(SEED),--seed $(SEED)) $(if $(HTML),--html $(HTML))

rollouts: setup ## Run models of transformers (pip install transformers) as trainer and rollout, with known mistakes; ONLY='rope*'
	@$(BIN)/python -m proving.rollouts $(if $(ONLY),'$(ONLY)')

chaos: setup ## Kill, stop, starve and confuse all of it, and compare store and dump; SEED=8 MINUTES=10
	@$(BIN)/python -m tests.faults $(if $(SEED),--seed $(SEED)) --minutes $(or $(MINUTES),10)

damage: setup ## Damage each kind of object of a store in each way, and ask everything; SEED=1 FLIPS=6 KINDS=index
	@$(BIN)/python -m tests.damage --seed $(or $(SEED),0) --flips $(or $(FLIPS),1) $(if $(KINDS),--kinds '$(KINDS)')

simulate: setup ## Play schedules of the decisions on a virtual clock and store; SEED=1 SCHEDULES=100000
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) --schedules $(or $(SCHEDULES),100000)
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) --schedules $(or $(SCHEDULES),10000) --cast pool
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) --schedules $(or $(SCHEDULES),10000) --cast recompress
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) --schedules $(or $(SCHEDULES),10000) --cast copies

mutants: setup ## Break central modules on purpose, and count which breaks their tests notice; ONLY='*/commit.py' COUNT=40
	@$(BIN)/python -m tests.mutants $(if $(ONLY),--only '$(ONLY)') --count $(or $(COUNT),15) --seed $(or $(SEED),0)

clocks: setup ## Move the clock under a watcher, run after run: all of its dump must be in the store; RUNS=50
	@$(BIN)/python -m tests.faults.clocks --runs $(or $(RUNS),50)

incidents: setup ## Train with a black box: a planted NaN, kills, a disk that hangs, one that is full (needs make torch); KILLS=40 STEPS=300 HANG=300 SEED=1
	@$(BIN)/python -m tests.incidents nan --steps $(or $(STEPS),300) --seed $(or $(SEED),0)
	@$(BIN)/python -m tests.incidents nan --steps $(or $(STEPS),300) --seed $(or $(SEED),0) --ranks 4
	@$(BIN)/python -m tests.incidents kills --count $(or $(KILLS),40) --seed $(or $(SEED),0)
	@$(BIN)/python -m tests.incidents hang --seconds $(or $(HANG),300)
	@$(BIN)/python -m tests.incidents full

pictures: setup ## Take the pictures of the page for the documentation again; ALL=DIRECTORY takes every view in every look
	@$(BIN)/python -m tests.pictures $(ALL)

servers: ## Install what tests run: Ceph with its S3 gateway, Prometheus, Alertmanager, Podman, Chromium (Debian, root)
	@tests/servers/install.sh

# An old protoc on purpose: its code runs with the protobuf runtime of the same and of the next major version.
# The chart comes after the dashboard, of which it has a copy.
generated: setup ## Update all generated files: decoder of DumpData, dashboard, Helm chart, tables in docs
	$(BIN)/uv run --quiet --no-project --with grpcio-tools==1.74.0 python -m grpc_tools.protoc \
		--proto_path . --python_out . --pyi_out . workers/dump/formats/dump_data.proto
	@$(BIN)/python deploy/grafana/make_dashboard.py
	@$(BIN)/python helm/generate.py
	@$(BIN)/python docs/tables.py --write
	@$(BIN)/python deploy/sizing.py --write

chart: setup ## Update the generated parts of the Helm chart: schema, README, alerts, dashboards
	@$(BIN)/python helm/generate.py

requirements: setup ## Pin the newest dependencies that pyproject.toml allows
	$(COMPILE) --upgrade pyproject.toml --output-file requirements/runtime.txt
	$(COMPILE) --upgrade --constraint requirements/runtime.txt pyproject.toml --group dev \
		--output-file requirements/dev.txt
	$(COMPILE) --upgrade --constraint requirements/dev.txt --group bench --output-file requirements/bench.txt
	$(COMPILE) --constraint requirements/dev.txt --group docs --output-file requirements/docs.txt
	$(COMPILE) --constraint requirements/dev.txt --group build --output-file requirements/build.txt
	$(COMPILE) --no-deps --group torch-tools --output-file requirements/torch-tools.txt

audit: setup ## Compare the pinned dependencies with known vulnerabilities; needs the network
	$(BIN)/uv tool run --quiet pip-audit --requirement requirements/dev.txt --require-hashes --disable-pip

# Needs no `setup`: it reads the source, and imports nothing of it. To write and look: .venv/bin/mkdocs serve
docs: | $(BIN)/uv ## Build the documentation site into build/site
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/docs.txt
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: | $(BIN)/uv ## Build the wheel and the source distribution into dist
	@rm -rf dist
	@$(BIN)/python -m hatchling build -d dist

clean: ## Remove what the other targets made
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Python 3.11 or newer is needed: make setup PYTHON=/path/to/python3' >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.txt

$(STAMP): pyproject.toml requirements/build.txt requirements/dev.txt | $(BIN)/uv
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements/dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q ingest workers
	@$(BIN)/python -c 'from workers.arrays.compiled.kernels import warm_up; warm_up()'
	@touch $@
