# Two Views. `make lab` opens the course, `make test` runs every test; `make help` names the rest.

# The first Python that runs (a version manager's stand-in may not); course_utils/environment.py judges it.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.10; do \
	$$p -c "" 2> /dev/null && echo $$p && break; done)
SETUP = @$(or $(PYTHON),$(error No Python runs here; install Python 3.10 to 3.13)) -m course_utils.environment
BIN := .venv/bin

# Where there is a display a browser opens; elsewhere JupyterLab prints the address to open.
LAB_OPTIONS := $(if $(or $(DISPLAY),$(WAYLAND_DISPLAY),$(filter Darwin,$(shell uname))),,--no-browser) \
	$(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: help lab test notebooks labs badges records bench bench-gpu lint format \
	environment grading-environment test-environment bench-environment chromium
.NOTPARALLEL:
.DEFAULT_GOAL := help

help: ## Name the targets.
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

lab: environment ## Install what is missing and open the first notebook in JupyterLab.
	@$(BIN)/python -m jupyterlab --ServerApp.ip=127.0.0.1 --ServerApp.root_dir="$(CURDIR)" \
		--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb --log-level=WARN $(LAB_OPTIONS)

# Two processes share the work; notebooks that need both cores to keep their time limit go alone.
test: lint chromium ## Install what is missing and run every test.
	@status=0; for part in "-n 2 --dist loadfile tests/unit tests/labs" \
			"-n 2 -m not(alone) tests/browser tests/notebooks" "-m alone tests/notebooks"; do \
		COURSE_BUDGET=quick OMP_WAIT_POLICY=passive $(BIN)/python -m pytest $$part || status=1; \
	done; exit $$status

notebooks: environment ## Execute the notebooks and keep their outputs (NOTEBOOK=02_infonce: one).
	@$(BIN)/python -m course_utils.notebooks build $(NOTEBOOK)

labs: grading-environment ## Make nbgrader's source and the students' release of the labs (LAB=lab06: one).
	@$(BIN)/python -m course_utils.labs.build $(LAB)

badges: environment ## Write the course's address wherever it stands (REPO=owner/name; REPO= removes it).
	@$(BIN)/python -m course_utils.notebooks badges "$(REPO)"

records: environment ## Run the experiments again and write data/records (EXPERIMENT=simclr_cifar: one).
	@$(BIN)/python -m course_utils.experiments $(EXPERIMENT)

bench: bench-environment ## Time losses, views and training against other libraries (leave the machine alone meanwhile).
	@$(BIN)/python tests/benchmarks/bench_losses.py
	@$(BIN)/python tests/benchmarks/bench_views.py
	@$(BIN)/python tests/benchmarks/bench_training.py
	@$(BIN)/python tests/benchmarks/bench_shapes.py

bench-gpu: $(if $(filter .venv/bin,$(BIN)),bench-environment) ## Test and time the Triton kernels on this machine's GPU (BIN=FOLDER: with the Python there).
	@$(BIN)/python tests/benchmarks/bench_gpu.py

lint: test-environment ## Look for mistakes, unformatted code and stale notebooks.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m course_utils.notebooks check

format: test-environment ## Mend what `make lint` can mend.
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

environment:
	$(SETUP) --extras lab

grading-environment:
	$(SETUP) --extras lab,grade

test-environment:
	$(SETUP) --extras lab,test,grade,clip

bench-environment:
	$(SETUP) --extras lab,test,grade,clip,bench

# Debian's chromium, for the browser tests: installed where that takes no password.
chromium:
	@for browser in chromium chromium-browser google-chrome; do \
		command -v $$browser > /dev/null && exit; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		echo "Installing chromium for the browser tests."; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y chromium > /dev/null && exit; \
	fi; \
	echo "The browser tests will be skipped: chromium is missing and could not be installed."
