# make book: the whole book at _build/html, from nothing but Python 3.11 and make.
# REPOSITORY=ADDRESS gives this build buttons that lead to that repository on GitHub, and to Colab.
# TORCH_INDEX=ADDRESS takes torch from another index, such as one of CPU-only builds.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PROFILE ?= course
NAME ?= 01_phase_curves
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip install --quiet --no-deps --no-compile --require-hashes
.DEFAULT_GOAL := book
.PHONY: book test notebook lint bench peers peers-things lock clean distclean
.DELETE_ON_ERROR:

book: $(STAMP)
	@$(BIN)/vitscope build --profile $(PROFILE) $(if $(REPOSITORY),--repository $(REPOSITORY))

test: $(STAMP)
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal

notebook: $(STAMP)
	@$(BIN)/vitscope run $(NAME) --profile $(PROFILE)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# common.py is what the scripts share; gpu_check.py needs a GPU and is run by itself, with the gpu_ files it is made of
bench: $(STAMP)
	@set -e; for script in $$(ls benchmarks/*.py | grep -v -e common.py -e gpu_ -e _peers.py); do \
		echo "== $$script"; $(BIN)/python $$script; done

# What the benchmarks compare with and .venv lacks. The environment sees .venv's packages: there is one torch.
PEERS := .venv-peers
THINGS := .venv-things
peers: $(STAMP)
	@test -x $(PEERS)/bin/python || $(BIN)/python -m venv --without-pip $(PEERS)
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> $$($(PEERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth
	$(BIN)/python -m pip --python $(PEERS)/bin/python install --quiet --no-deps --require-hashes -r benchmarks/peers.lock

# thingsvision wants an old torchvision, so it has a torch of its own: 7 GB, Linux x86_64 with Python 3.11.
peers-things:
	@test -x $(THINGS)/bin/python || $(PYTHON) -m venv $(THINGS)
	$(THINGS)/bin/python -m pip install --quiet --no-deps --require-hashes -r benchmarks/things.lock

# --no-deps: the lock file is complete, so nothing is resolved and nothing unlisted is installed. From another
# index torch brings other files, which the listed hashes do not cover, and needs none of the CUDA libraries.
# torch, which is most of the bytes, is unpacked beside the rest; Python compiles what it imports when it does.
$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed (PYTHON=/path/to/python3.11)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv (a few minutes the first time)"
ifdef TORCH_INDEX
	@sed -E -e '/^(nvidia|cuda|triton)/d' -e '/^ +--hash/d' -e 's/ *\\$$//' requirements.lock > .venv/requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --extra-index-url $(TORCH_INDEX) -r .venv/requirements.txt
else
	@awk 'BEGIN { part = "rest" } /^[^ #]/ { part = /^(torch|nvidia|cuda|triton)/ ? "torch" : /^pip==/ ? "pip" : "rest" } \
		{ print > ".venv/" part ".lock" }' requirements.lock
	$(PIP) -r .venv/pip.lock
	$(PIP) -r .venv/torch.lock & torch=$$!; $(PIP) -r .venv/rest.lock && wait $$torch
endif
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# The lock file again, from what .venv holds: install, try, test, then lock. CUDA libraries exist for Linux only;
# appnope is what ipykernel needs on macOS, and cannot be found by looking at a Linux environment.
lock: $(STAMP)
	@$(BIN)/pip freeze --all --exclude pip --exclude-editable > .venv/pins.txt
	@grep -q '^appnope' .venv/pins.txt || sed -nE 's/^(appnope==[^ ]+).*/\1/p' requirements.lock >> .venv/pins.txt
	$(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --no-header --no-annotate --no-strip-extras \
		--no-emit-index-url --no-emit-find-links --pip-args=--no-deps --output-file=.venv/pins.lock .venv/pins.txt
	@sed -n '/^#/p' requirements.lock > .venv/new.lock
	@sed -E -e '/^#/d' -e 's/^((nvidia|cuda)-[^=]+|triton)(==[^ ]+)/\1\3 ; sys_platform == "linux"/' \
		-e 's/^(appnope==[^ ]+)/\1 ; sys_platform == "darwin"/' .venv/pins.lock >> .venv/new.lock
	@mv .venv/new.lock requirements.lock

clean:
	rm -rf _build .vitscope dist

distclean: clean
	rm -rf .venv $(PEERS) $(THINGS)
