# make demo   record the example training in a fresh environment and write its report
# make test   check style and types, build the wheel and run every test against it
# make lint   only the checks; make wheel: only the environment the tests run in
# make entrances   an error in every statement of ours that runs in a recorded program, one after the other
# make coverage   the tests and the lines they reach
# make corpus   every program of tests/corpus in fresh processes, bare and recorded; takes an hour on two cores
# make docs   the generated pages; make pages: measured figures in the pages; make site: all pages as a site
# make mutants   single-line defects in the core, and which of them the tests find; make clean: back to a fresh clone
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.ONESHELL:
.PHONY: demo test tested entrances coverage corpus checked compiled wheel lint docs pages mutants site clean

# Some containers set it. Without bytecode each worker and each process that a test starts compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE

# The first of these that runs and is new enough; `make PYTHON=… demo` chooses another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && exit; done; echo python3)
BIN := .venv/bin
TESTED := build/tested/bin

demo:
	@$(PYTHON) tools/prepare.py run
	echo "$$ gpuledger run --out demo examples/gpt_text.py"
	$(BIN)/gpuledger run --out demo --force examples/gpt_text.py
	printf '\n$$ %s\n' "gpuledger show demo.ledger --by module --fold"
	$(BIN)/gpuledger show demo.ledger --by module --fold
	printf '\n$$ %s\n' "gpuledger report demo.ledger -o demo.html"
	$(BIN)/gpuledger report demo.ledger -o demo.html --force > /dev/null

lint:
	@$(PYTHON) tools/prepare.py test
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy --no-error-summary
	contracts=$$($(BIN)/lint-imports --no-logo --no-cache) || { echo "$$contracts"; exit 1; }
	echo "lint: ruff, mypy and import-linter find nothing"

wheel:
	@$(PYTHON) tools/prepare.py test
	$(PYTHON) tools/prepare.py wheel

# Both workers of the tests would compile what they import, at the same time: done once, while the types are checked.
compiled: wheel
	@collected=$$($(TESTED)/python -m pytest --collect-only -q) || { echo "$$collected"; exit 1; }

# The checks and the wheel side by side, each with what it prints in one piece; both must hold.
checked:
	@$(PYTHON) tools/prepare.py test
	$(MAKE) --jobs=2 --output-sync=target lint compiled

# The checks run beside the tests, so that two cores have work to the end; both must hold.
test:
	@$(PYTHON) tools/prepare.py test
	$(MAKE) --jobs=2 lint tested

# The tests run from an environment that holds the wheel, so what is tested is what is installed. Two cores have four
# workers, as some tests wait for signals, samples or browsers. A worker gets whole files: what the tests of a file
# share is made once. In the order of their folders, which end with quick ones, no worker is left with a long file.
tested: compiled
	@$(TESTED)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

# Not part of the tests, which plant an error in every eighth function only: ten minutes on two cores.
entrances: wheel
	@$(TESTED)/python bench/harm/entrances.py

# Not part of the tests: following every line makes them take half as long again.
coverage: checked
	@$(TESTED)/python -m pytest -n 2 --dist loadfile --cov --cov-report=term:skip-covered

# Ends with 1 where a program differs; the outcome is written either way.
corpus: wheel
	@$(TESTED)/python tests/corpus/run.py --out bench/harm/results/cpu/corpus.json

docs:
	@$(PYTHON) tools/prepare.py run
	$(BIN)/python tools/make_format_doc.py

# The measured figures of README.md and docs, from the files in bench/*/results.
pages:
	@$(PYTHON) tools/prepare.py test
	$(BIN)/python tools/make_pages.py

# Not part of the tests: single-line defects in the core, one after the other, half an hour on one core.
mutants:
	@$(PYTHON) tools/prepare.py test
	nice -n 10 $(BIN)/python bench/house/mutants.py

# Also one of the tests; a link that leads nowhere is an error.
site:
	@$(PYTHON) tools/prepare.py docs
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build
	echo "The site: $$PWD/docs/_build/index.html"

clean:
	@rm -rf .venv build dist htmlcov .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -rf demo.ledger demo.html docs/_build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
