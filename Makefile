# Two commands do everything on a fresh machine with Python >= 3.11, make, git and a network:
#   make demo   set up, run the main job on a bundled model, say where the figures are
#   make test   set up, install what tests need, run them
# `make help` lists the rest. Torch comes from the default index; a machine without a GPU saves the CUDA
# download with PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu in front of the command.

PYTHON ?= python3
MODEL ?= w8s8-2kv
OUT ?= reports/demo
VENV := .venv
BIN := $(VENV)/bin
# pip before 25.1 cannot install dependency groups, so set-up renews it inside the venv first.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
INPUTS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint format screenshots browser clean

help:
	@echo "make demo         set up and run: phaselens report $(MODEL) -o $(OUT)"
	@echo "make test         set up and run ruff and the fast tests"
	@echo "make test-slow    the longer statistics, training and browser runs"
	@echo "make lint         ruff and pyright"
	@echo "make format       ruff format and the safe ruff fixes"
	@echo "make screenshots  pictures of the explorer at both widths, in screenshots/"
	@echo "make clean        remove .venv and caches, nothing else"

demo: $(VENV)/installed browser
	@$(BIN)/phaselens report $(MODEL) -o $(OUT)
	@echo "Figures, tables and results: $(OUT)/index.html (open it in a browser)"

test: $(VENV)/installed-dev browser
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(VENV)/installed-dev browser
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

lint: $(VENV)/installed-dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright

format: $(VENV)/installed-dev
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

screenshots: $(VENV)/installed-dev browser
	@$(BIN)/python -m tests.apps.screenshots screenshots

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis

$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$$($(PYTHON) --version) is too old: phaselens needs 3.11 or later; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade "pip>=25.1"
	@touch $@

$(VENV)/installed: $(VENV)/created $(INPUTS)
	@echo "Installing phaselens (torch is large: minutes on a slow line) ..."
	@$(PIP) install --constraint constraints.txt --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/created $(INPUTS)
	@echo "Installing phaselens and what its tests need (torch is large: minutes on a slow line) ..."
	@$(PIP) install --constraint constraints.txt --editable . --group dev
	@touch $@ $(VENV)/installed

# Only figure export to PDF, SVG and PNG and the browser tests need it; nothing here fails without it.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] \
	       && echo "Installing chromium for figure export ..." \
	       && DEBIAN_FRONTEND=noninteractive sh -c 'apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium fonts-liberation' >/dev/null 2>&1; } \
	  || echo "No PDF, SVG or PNG figures: install chromium (Debian: sudo apt-get install chromium). HTML, CSV and netCDF need nothing."
