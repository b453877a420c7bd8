# Every target sets itself up: a fresh clone, python3 with venv, and nothing else.
PYTHON ?= python3
VENV   ?= .venv
PY      = $(VENV)/bin/python
PIP     = $(PY) -m pip install --quiet --disable-pip-version-check

.PHONY: demo test bench check clean
.DELETE_ON_ERROR:

$(PY):
	$(PYTHON) -m venv $(VENV)

# One stamp per set of extras: what is installed is remembered until pyproject.toml changes.
$(VENV)/.installed-%: pyproject.toml | $(PY)
	$(PIP) -e '.[$*]'
	@touch $@

test: $(VENV)/.installed-test
	$(PY) -m pytest

check: $(VENV)/.installed-check $(VENV)/.installed-test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

demo: $(VENV)/.installed-demo
	$(PY) examples/demo.py

bench: $(VENV)/.installed-test $(VENV)/.installed-bench
	$(PY) -m benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
