# Everything runs in .venv, which these commands build themselves.
PYTHON ?= python3
BIN := .venv/bin
# Small models gain nothing from many threads; parallel work is done by processes.
export OMP_NUM_THREADS ?= 1

.PHONY: setup demo test test-long gallery docs bench clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[files,cluster,neuro,rivals,video,explorer,docs,dev]"
	touch .venv/.ready

demo: setup
	$(BIN)/cst run spirals --preset demo --out runs/demo
	@echo "Open runs/demo/report.html in a browser."

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not long"

test-long: setup
	$(BIN)/python -m pytest -m long -v -rP --timeout 0

gallery: setup
	$(BIN)/python docs/run_gallery.py

docs: setup gallery
	$(BIN)/mkdocs build --strict
	@echo "Open site/index.html in a browser."

bench: setup
	$(BIN)/cst bench

clean:
	rm -rf .venv runs build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
