# `make` lists what there is. ARGS goes to the program: make test ARGS="tests/unit -x"

SHELL := /bin/sh
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(VENV)/bin/pip
RUNTIME := $(VENV)/.runtime-installed
DEV := $(VENV)/.dev-installed
KERNELS := $(VENV)/.kernels-compiled
REPLAY := $(VENV)/replay/.installed
WATCHERS := $(VENV)/watchers/.installed
PIP_INSTALL := $(PY) deploy/install.py
PIP_COMPILE := $(PY) -m piptools compile --quiet --generate-hashes --strip-extras --allow-unsafe \
	--no-header --no-emit-options --no-emit-index-url --no-emit-trusted-host --no-emit-find-links
# A module's tests run in one process, and the longest modules start first: see tests/conftest.py.
PYTEST := $(PY) -m pytest -n auto --dist loadfile --no-loadscope-reorder
TYPED := crawler spiders pipelines schedules tests/site
ARGS :=
# With it set, as in many containers, each of a thousand processes would compile the same modules again.
unexport PYTHONDONTWRITEBYTECODE
# The demo prints how long it took, installation included.
BEGAN := $(shell date +%s)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test soak lint docs bench clean venv venv-dev lock

demo: $(KERNELS) ## Crawl the local demo site and show what changed; WEB=1 opens it in the web app
	@DEMO_BEGAN=$(BEGAN) exec $(PY) -m tests.site.demo $(if $(WEB),--web) $(ARGS)

.PHONY: site
site: $(RUNTIME) ## Serve the practice shop of the tutorials at http://127.0.0.1:8028
	@exec $(PY) -m tests.site.tutorial $(ARGS)

venv: $(KERNELS) ## Install what it takes to run

test: $(DEV) $(KERNELS) ## Run the tests; ALL=1 also runs the long ones
	@$(PYTEST) $(if $(ALL),,-m "not soak") $(ARGS)

soak: $(DEV) $(KERNELS) ## Run the long tests: kills, outages, races, backups, hostile input, a browser, the demo
	@$(PYTEST) -m soak $(ARGS)

lint: $(DEV) ## Check style, format, types and import directions; all four always run
	@failed=0; \
	$(PY) -m ruff check . || failed=1; \
	$(PY) -m ruff format --check . || failed=1; \
	$(PY) -m mypy --strict $(TYPED) || failed=1; \
	$(PY) -c 'from importlinter.cli import lint_imports_command as run; run()' --no-logo || failed=1; \
	exit $$failed

docs: $(DEV) ## Build the documentation into build/docs; a warning is an error
	@$(PY) -m sphinx -W --keep-going -q -b html docs build/docs $(ARGS) && echo "Built build/docs/index.html"

.PHONY: reference
reference: $(DEV) ## Write the parts of docs/reference that come from the code
	@PYTHONPATH=. $(PY) docs/reference_pages.py

bench: $(DEV) $(KERNELS) ## Run the benchmarks
	@$(PY) -m tests.bench $(ARGS)

.PHONY: pictures
pictures: $(DEV) $(KERNELS) ## Draw the pictures of README and the tutorials
	@$(PY) docs/make_pictures.py

.PHONY: screenshots
screenshots: $(DEV) $(KERNELS) ## Take the screenshots of the web app; needs chromium
	@$(PY) docs/make_screenshots.py

venv-dev: $(DEV) $(KERNELS) ## Install what it takes to work on it

.PHONY: venv-replay
venv-replay: $(REPLAY) ## Install the replay tool that one test uses

.PHONY: venv-watchers
venv-watchers: $(WATCHERS) ## Install the watcher of pages that one benchmark uses

lock: $(DEV) ## Write the lock files again, on Python 3.11.2; ARGS=--upgrade takes the newest versions
	@$(PY) -c 'import sys; sys.version_info[:3] <= (3, 11, 2) or sys.exit("make lock: needs Python 3.11.2, as its packages fit later versions too. Run: make clean, then make lock PYTHON=/usr/bin/python3 (Debian 12).")'
	$(PIP_COMPILE) $(ARGS) --output-file requirements.lock requirements.txt
	$(PIP_COMPILE) $(ARGS) --output-file requirements-dev.lock requirements-dev.txt
	$(PIP_COMPILE) $(ARGS) --output-file tests/replay-requirements.lock tests/replay-requirements.txt
	$(PIP_COMPILE) $(ARGS) --output-file tests/bench/watchers-requirements.lock tests/bench/watchers-requirements.txt

clean: ## Remove the virtual environment and all caches; the data in .freshet stays
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks
	find crawler spiders pipelines schedules tests -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

# A stamp is written when its installation has succeeded, so a broken one is done again.
# The second builds on the first: `make -j demo test` never runs two installations at once.
# bin/pip is the last file of a new environment. One whose Python has gone is made anew.
$(shell test -x $(PY) || rm -f $(PIP) $(RUNTIME) $(DEV) $(KERNELS))

$(PIP):
	@python=$$(sh deploy/preflight.sh) && echo "Making a virtual environment in $(VENV) ..." && "$$python" -m venv --clear $(VENV)

$(RUNTIME): requirements.lock | $(PIP)
	@echo "Installing the packages of requirements.lock into $(VENV) ..."
	@$(PIP_INSTALL) requirements.lock
	@$(PY) deploy/outside.py
	@touch $@

$(KERNELS): $(RUNTIME)
	@echo "Compiling the planner's kernels (about half a minute) ..."
	@$(PY) -m crawler.ops.kernels
	@touch $@

$(DEV): requirements-dev.lock $(RUNTIME)
	@echo "Installing the packages of requirements-dev.lock into $(VENV) ..."
	@$(PIP_INSTALL) requirements-dev.lock
	@touch $@

$(REPLAY): tests/replay-requirements.lock | $(PIP)
	@echo "Installing the packages of tests/replay-requirements.lock into $(VENV)/replay ..."
	@$(PY) -m venv --clear $(VENV)/replay
	@$(VENV)/replay/bin/python deploy/install.py tests/replay-requirements.lock
	@touch $@

$(WATCHERS): tests/bench/watchers-requirements.lock | $(PIP)
	@echo "Installing the packages of tests/bench/watchers-requirements.lock into $(VENV)/watchers ..."
	@$(PY) -m venv --clear $(VENV)/watchers
	@$(VENV)/watchers/bin/python deploy/install.py tests/bench/watchers-requirements.lock
	@touch $@
