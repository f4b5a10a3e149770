# make train: install, train an agent and record its video.   make test: install and run the tests.
# The first installs the requirements of training, the second also those of development.
PYTHON ?= python3
BIN = .venv/bin
INSTALLED = .venv/installed
DEV = .venv/dev

# Bytecode is written at the first import, whatever the environment says: uv leaves it out, and without it each of
# the tests' processes would compile torch's sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train test test-fast check docs format bench gpu-check install-all clean

# The agent of the video in the README.
train: $(INSTALLED)
	$(BIN)/rmc-train --config minipacman-rmc --learners auto
	@echo "before you type one of these: source $(BIN)/activate"

# Two idle Zen 5 cores took 2:39 (3:07 in a fresh clone, with `make check docs` beside it); two idle Zen 3 cores, in a fresh clone
# with `make check docs`, 6:43 to 7:52. A third worker computes while tests wait for processes of their own.
test: $(DEV) .venv/triton
	$(BIN)/python -m pytest -n 3 --dist worksteal

# For quick iterations: without tests that take half a second or more (the marker `slow`).
test-fast: $(DEV)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not gpu"

# The folders' import names differ from their paths (see pyproject.toml), so mypy checks an installed copy.
check: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	rm -rf build/typed && $(BIN)/pip install --quiet --no-deps --no-build-isolation --target build/typed .
	ln -s ../../benchmarks build/typed
	cd build/typed && ../../$(BIN)/mypy --config-file ../../pyproject.toml -p rmc_agents -p benchmarks

# The documentation as a site, in build/site. A dead link or a missing page is an error; --quiet would hide both.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(DEV)
	$(BIN)/python -m benchmarks.speed.envs
	$(BIN)/python -m benchmarks.speed.scans
	$(BIN)/rmc-bench --algo a2c --optimizer adam --core rmc --num-heads 4 --backends reference
	$(BIN)/rmc-bench --algo a2c --optimizer adam --core lstm --backends reference

# On a machine with a GPU: tests, speed, a short training, exact resuming; writes benchmarks/results/gpu-check/check.md.
gpu-check: $(DEV) .venv/triton
	$(BIN)/python -m benchmarks.gpu.check

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(DEV): $(INSTALLED)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# Large, and only for GPUs; the tests run its kernels in an interpreter.
.venv/triton: $(DEV)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[triton]'
	touch $@

.venv/docs: $(INSTALLED)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

# All of the above at once, for continuous integration. uv takes less than a third of pip's time, but does not read its settings.
install-all:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt uv
	UV_FIND_LINKS="$$($(BIN)/pip config get global.find-links 2>/dev/null)" \
	  $(BIN)/uv pip install --quiet --system-certs --python $(BIN)/python -c constraints.txt -e '.[dev,triton,docs]'
	touch $(INSTALLED) $(DEV) .venv/triton .venv/docs

clean:
	rm -rf .venv build
	find rmc_agents envs -name __pycache__ -prune -exec rm -r {} +
