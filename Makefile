# Two commands do all the set-up: `make demo` and `make test`. Both make .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS := --numprocesses logical --dist worksteal
# Python and pytest keep what they compiled, so that a second run starts sooner.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick test uses contract test-processes test-all test-faults test-servers lint types
.PHONY: unit docs clean

demo: $(VENV)/installed
	$(BIN)/flbench compare hfcd fedavg fedproto local --seeds 1 --config configs/demo.yaml

# Mypy uses one core, so the tests begin as soon as the lint is through.
test: $(VENV)/installed
	+$(MAKE) --no-print-directory --jobs=2 lint types unit

# What users do, from the command to the numbers, and the commands of the README.
uses: $(VENV)/installed
	$(BIN)/pytest --numprocesses 2 --dist loadfile -m "not docs" tests/uses

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell .
	$(BIN)/lint-imports --no-logo

types: $(VENV)/installed
	$(BIN)/mypy

# Their own targets run these; a test process need not import them to leave them out.
LATER := --ignore tests/faults --ignore tests/servers

# The loop of a developer: no test that trains for more than a few steps or starts a process.
quick: $(VENV)/installed
	$(BIN)/pytest $(WORKERS) $(LATER) -m "not slow and not full and not docs"

# The examples in the docstrings of public names are tests too.
unit: $(VENV)/installed
	$(BIN)/pytest $(WORKERS) $(LATER) --doctest-modules \
		-m "not processes and not full and not docs" tests flbench

# Clusters of Ray, other interpreters, and processes that are killed.
test-processes: $(VENV)/installed
	$(BIN)/pytest -n0 $(LATER) -m "processes and not full" tests

# The contract of twelve methods that use all hooks, and of eight that the date draws
# (FLBENCH_CONTRACT_SEED=20261129 draws those of a day again); with `ATEN_CPU_CAPABILITY=avx2` or
# `default`, on other kernels of PyTorch.
contract: $(VENV)/installed
	$(BIN)/pytest $(WORKERS) -m "not full" tests/algorithms/test_contract.py

# Every method under the contract, the full products of engines and policies, and all tutorials.
test-all: lint types $(VENV)/installed
	$(BIN)/pytest $(WORKERS) $(LATER) --doctest-modules -m "not docs or full" tests flbench

# Malformed inputs, kills and lost servers, drawn from a seed: FLBENCH_FAULTS_SEED=7 make test-faults
# draws others.
test-faults: $(VENV)/installed
	$(BIN)/pytest -n0 -m faults tests/faults

# MLflow, S3 and two nodes of Ray, killed and cut off; as root. See tests/servers.
test-servers: $(VENV)/installed
	PYTHONPATH=$(CURDIR) $(BIN)/python -m tests.servers

# The site, in site/, after the commands and examples that its pages print. Nothing is downloaded;
# the variable silences an advertisement of the theme.
docs: $(VENV)/installed
	$(BIN)/pytest -n0 -m "docs and not full" tests/uses tests/api/test_notebook.py tests/test_csv_page.py \
		tests/test_docs.py tests/test_guide.py tests/test_tutorials.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html, or: $(BIN)/python -m http.server --directory site"

# Made again when what to install changes. pip compiles bytecode, which keeps `flbench --help` fast.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("flbench needs Python 3.11.4 or newer" if sys.version_info < (3, 11, 4) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m compileall -q flbench
	touch $@

clean:
	rm -rf $(VENV) .servers site build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
