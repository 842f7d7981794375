# The two commands of this project: `make demo` and `make test`. The rest are their parts.
PY = .venv/bin/python
SYSTEM_PYTHON = $(or $(PYTHON),python3)
BIN = .venv/bin
PACKAGES = yarn_accel torque_sched jobs benchmarks

SLOWEST = --durations=20 --durations-min=5
QUICK := $(empty) and not slow
comma := ,
LANE = $(MAKE) --no-print-directory --keep-going
# The tests that start the application; the two lanes on Hadoop take about as long as each other.
APPLICATION = tests/integration/master tests/integration/launch/test_start.py \
	tests/integration/launch/test_two_applications.py tests/integration/tasks

OF_TORQUE = tests/integration/torque
# Unit tests that start hardly anything: a lane of their own, as all of them would take as long as two others.
OF_DECISIONS = tests/unit/core tests/unit/torque

# The images of docker/: from what they are built, and how they are called.
BASE = debian:bookworm-slim
IMAGES = hadoop node torque
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' yarn_accel/__init__.py)
ON_DOCKER = $(addprefix tests/integration/,compose testbed jobs master/test_faults.py)

# What is once compiled is not compiled again by each of the processes that tests start.
unexport PYTHONDONTWRITEBYTECODE

# A virtual environment of its own for PySpark, which is not part of `make test`.
SPARK = .venv-spark
SPARK_PACKAGES = 'pyspark>=3.5,<3.6' 'numpy>=1.26' 'pandas>=2.0' 'pyarrow>=15.0' 'scipy>=1.11'
# What of NVIDIA's and CuPy's wheels works without a GPU, and the emulated CUDA built there; not part of `make test`.
CUDA = .venv-cuda
ON_A_GPU = tests/unit/operations tests/unit/pipeline/workers/test_cuda.py tests/integration/pipeline/test_on_a_gpu.py
# All that a GPU's node needs beside its driver; not part of `make test`.
GPU = .venv-gpu

.PHONY: help demo test test-all test-unit test-decisions test-properties test-services test-torque test-hadoop test-application \
	test-spark test-cuda-emulated gpu-test docker-base docker-images test-docker dist test-wheel check unit explore integration bench docs clean install install-dev

help:
	@echo "make demo         install what is missing, start a real 4-node Hadoop, run both jobs, write out/demo/report.html"
	@echo "                  (DOCKER=1: its nodes are containers; SECURE=1: with Kerberos, the job without reducers)"
	@echo "make test         install what is missing, run the checks and the tests (what CI runs), in seven lanes:"
	@echo "make test-unit    the checks, and the tests inside one process"
	@echo "make test-properties what holds for all that hypothesis draws, inside one process"
	@echo "make test-services the tests of the processes of yarn_accel, and of the documentation"
	@echo "make test-torque  the tests of the processes of torque_sched"
	@echo "make test-hadoop  the tests of the cluster, of Hadoop's protocols and of jobs on the real Hadoop"
	@echo "make test-application the tests of the YARN application on the real Hadoop"
	@echo "make test-spark   PySpark on the real Hadoop; installs PySpark into $(SPARK) first (870 MB)"
	@echo "make test-cuda-emulated the CUDA forms with the real CuPy on an emulated CUDA; installs into $(CUDA) first (250 MB)"
	@echo "make gpu-test     the tests of a machine with a GPU, on it; installs into $(GPU) first (1.6 GB)"
	@echo "make docker-base  the base of the images out of Debian's packages, where no registry is at hand (root; CA=FOLDER)"
	@echo "make docker-images the images of docker/, from BASE (debian:bookworm-slim)"
	@echo "make test-docker  builds these images and runs what needs a Docker engine: they, and the cluster, jobs and faults in containers"
	@echo "make dist         the wheel and the source archive into dist/, built twice and compared"
	@echo "make test-wheel   installs that wheel for each Python and extra in a fresh environment and uses it (4 GB, an hour)"
	@echo "make test-all     the same with all examples and the tests that take long (up to an hour)"
	@echo "make check        style, types, import contracts, old-Python check"
	@echo "make unit         tests that need no Hadoop (seconds)"
	@echo "make explore      random examples for the property tests, other ones each time (minutes)"
	@echo "make integration  tests against the real Hadoop (minutes)"
	@echo "make bench        every benchmark, quick form (python -m benchmarks lists them)"
	@echo "make docs         the site of docs/, with the pages made from the code: out/docs/index.html"
	@echo "make clean        remove what was built here; the Hadoop jars stay in the cache"

install:
	@./bootstrap.sh yarn,bench$(if $(DOCKER),$(comma)docker)

install-dev:
	@./bootstrap.sh yarn,bench,torque,dev,docker,docs

# What DOCKER=1 lacks is told before anything is installed.
demo:
	@$(if $(DOCKER),docker/engine.sh 0 image yarn-accel/node:$(VERSION))
	@$(LANE) install
	@$(PY) -m jobs demo$(if $(DOCKER), --mode docker)$(if $(SECURE), --secure)

# Many tests wait, for daemons to start and for heartbeats, so the lanes run beside each other. The lanes on Hadoop
# wait most: the others take what these leave.
test: install-dev
	@$(PY) -m tests.lanes --again '$(PY) -m pytest --require hadoop' unit='nice -n 5 $(LANE) test-unit' decisions='nice -n 5 $(LANE) test-decisions' properties='nice -n 5 $(LANE) test-properties' \
		services='nice -n 5 $(LANE) test-services' torque='nice -n 5 $(LANE) test-torque' hadoop='$(LANE) test-hadoop' application='$(LANE) test-application'

test-all:
	@TEST_EXAMPLES=all $(MAKE) --no-print-directory test QUICK=

test-unit: check
	@$(PY) -m pytest $(SLOWEST) -m "not hadoop$(QUICK)" tests/test_architecture.py tests/unit $(OF_DECISIONS:%=--ignore=%)

test-decisions: install-dev
	@$(PY) -m pytest $(SLOWEST) -m "not hadoop$(QUICK)" $(OF_DECISIONS)

test-properties: install-dev
	@$(PY) -m pytest $(SLOWEST) -m "not hadoop$(QUICK)" tests/property

test-services: install-dev
	@$(PY) -m pytest $(SLOWEST) -m "not hadoop$(QUICK)" tests/integration --ignore=$(OF_TORQUE)

test-torque: install-dev
	@$(PY) -m pytest $(SLOWEST) -m "not hadoop$(QUICK)" $(OF_TORQUE)

test-hadoop: install-dev
	@$(PY) -m pytest $(SLOWEST) --require hadoop -m "hadoop$(QUICK)" tests/integration \
		$(APPLICATION:%=--ignore=%)

test-application: install-dev
	@$(PY) -m pytest $(SLOWEST) --require hadoop -m "hadoop$(QUICK)" $(APPLICATION)

check: install-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --config setup.cfg --no-logo
	@$(PY) -m tests.old_python

unit: install-dev
	@$(PY) -m pytest tests/unit tests/property tests/test_architecture.py

explore: install-dev
	@TEST_EXAMPLES=all $(PY) -m pytest --hypothesis-profile explore -m "hypothesis and not hadoop" tests

integration: install-dev
	@$(PY) -m pytest --require hadoop tests/integration

$(SPARK)/.installed: Makefile
	@test -x $(SPARK)/bin/python || $(PY) -m venv $(SPARK)
	@$(SPARK)/bin/python -m pip --disable-pip-version-check install --quiet $(SPARK_PACKAGES)
	@touch $@

test-spark: install-dev $(SPARK)/.installed
	@SPARK_TEST_PYTHON=$(CURDIR)/$(SPARK)/bin/python $(PY) -m pytest $(SLOWEST) --require spark -m spark \
		tests/integration/spark tests/integration/secure

test-cuda-emulated: install-dev
	@$(PY) -m tests.emulated_cuda -m pytest $(SLOWEST) --require gpu tests/emulated_cuda
	@$(PY) -m tests.emulated_cuda -m pytest $(SLOWEST) --require gpu -m gpu $(ON_A_GPU)

$(GPU)/.installed: setup.cfg
	@echo "installing into $(GPU): 1.6 GB to download, 3.3 GB of disk"
	@test -x $(GPU)/bin/python || $(SYSTEM_PYTHON) -m venv $(GPU)
	@$(GPU)/bin/python -m pip --disable-pip-version-check install --quiet '.[yarn,bench,dev,gpu]'
	@rm -rf build && touch $@

# Without a driver or a GPU it says so at once, before anything is installed.
gpu-test:
	@$(SYSTEM_PYTHON) -m benchmarks.gpu.driver
	@$(LANE) $(GPU)/.installed
	@$(GPU)/bin/python -m benchmarks.gpu.machine
	@$(GPU)/bin/python -m pytest $(SLOWEST) --require gpu -m gpu $(ON_A_GPU)

docker-base:
	@docker/base.sh $(BASE)

docker-images:
	@docker/engine.sh 6000 build
	@for image in $(IMAGES); do \
		echo "building yarn-accel/$$image:$(VERSION)"; \
		DOCKER_BUILDKIT=1 docker build --quiet --file docker/Dockerfile --target $$image --build-arg BASE=$(BASE) \
			--build-arg VERSION=$(VERSION) --tag yarn-accel/$$image:$(VERSION) . || exit; \
	done

# One session, so that what all tests share is started once; images of another code would be tested in vain.
test-docker: install-dev docker-images
	@$(PY) -m pytest $(SLOWEST) --require docker --require hadoop --cluster-mode docker \
		-m "docker or hadoop and not loopback" $(ON_DOCKER)

dist: install-dev
	@$(PY) -m tests.release.dist

test-wheel: dist
	@$(PY) -m tests.release.wheel dist/*-$(VERSION)-*.whl

bench:
	@./bootstrap.sh yarn,bench,peers
	@$(PY) -m benchmarks all --quick

docs: install-dev
	@$(PY) -m mkdocs --quiet build --strict
	@echo "out/docs/index.html"

clean:
	rm -rf .venv $(SPARK) $(CUDA) $(GPU) build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
