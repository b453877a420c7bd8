# Every target sets itself up: a fresh clone, python3 with venv, and nothing else.
PYTHON ?= python3
VENV   ?= .venv
PY      = $(VENV)/bin/python
PIP     = $(PY) -m pip install --quiet --disable-pip-version-check

FRAMEWORKS_PY  = .venv-frameworks/bin/python
FRAMEWORKS_PIP = $(FRAMEWORKS_PY) -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-all test-azure test-pythons bench check clean
.DELETE_ON_ERROR:

$(PY):
	$(PYTHON) -m venv $(VENV)

# One stamp per set of extras: what is installed is remembered until pyproject.toml changes.
$(VENV)/.installed-%: pyproject.toml | $(PY)
	$(PIP) -e '.[$*]'
	@touch $@

# In two halves side by side, since many tests wait for processes of their own; the second is shown at the end.
FIRST  = tests/cli tests/compilers tests/faults tests/keys tests/scenarios tests/store tests/testing tests/test_*.py
SECOND = tests/frameworks tests/insight tests/launch tests/remote tests/stress tests/torch tests/trust
SHOWN  = $(VENV)/second-half.log

test: $(VENV)/.installed-test
	@$(PY) -m pytest $(SECOND) > $(SHOWN) 2>&1 & second=$$!; \
	$(PY) -m pytest $(FIRST); first=$$?; \
	wait $$second; status=$$?; cat $(SHOWN); \
	exit $$((first | status))

# The proofs with the remaining frameworks: some gigabytes of packages, some minutes. torch is named each
# time and first, so that none of them brings another one.
test-all: test .venv-frameworks/.installed
	$(FRAMEWORKS_PY) -m pytest tests/frameworks -k "not torch_compile and not torch_extension and not triton_kernel"

.venv-frameworks/.installed: tests/frameworks/requirements.txt tests/frameworks/requirements-nodeps.txt pyproject.toml
	test -x $(FRAMEWORKS_PY) || $(PYTHON) -m venv .venv-frameworks
	$(FRAMEWORKS_PIP) torch==2.13.0
	$(FRAMEWORKS_PIP) torch==2.13.0 -r tests/frameworks/requirements.txt -e .
	$(FRAMEWORKS_PIP) --no-deps -r tests/frameworks/requirements-nodeps.txt
	@touch $@

# Azure Blob, against Azurite, which wants Node.
AZURITE = .node/node_modules/.bin/azurite-blob

test-azure: $(VENV)/.installed-test
	test -x $(AZURITE) || npm install --no-fund --no-audit --prefix .node azurite
	HOTSTART_AZURITE=$(AZURITE) $(PY) -m pytest tests/remote/test_clouds.py

# The core on other Pythons: make test-pythons PYTHONS="python3.12 python3.13"
PYTHONS ?= python3.12 python3.13
test-pythons:
	@for python in $(PYTHONS); do \
	  venv=.venv-$$(basename $$python); \
	  test -x $$venv/bin/python || $$python -m venv $$venv || exit 1; \
	  $$venv/bin/python -m pip install --quiet --disable-pip-version-check pytest hypothesis numpy -e . || exit 1; \
	  $$venv/bin/python -m pytest tests/keys tests/store tests/scenarios tests/testing tests/stress \
	    tests/cli tests/insight/test_doctor.py tests/insight/test_why_runs.py tests/launch/test_records.py \
	    tests/launch/test_context.py tests/launch/test_tidy.py tests/test_public.py tests/test_config.py || exit 1; \
	done

check: $(VENV)/.installed-check $(VENV)/.installed-test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

demo: $(VENV)/.installed-demo
	$(PY) examples/demo.py

bench: $(VENV)/.installed-test $(VENV)/.installed-bench
	$(PY) -m benchmarks

clean:
	rm -rf $(VENV) .node .mypy_cache .ruff_cache .pytest_cache
