"""The real environment: packed from this interpreter, unpacked by several at once, run by a bare one."""

import os
import shutil
import subprocess
import sys

import pytest

from yarn_accel import __version__
from yarn_accel.launch import bootstrap
from yarn_accel.launch.packing import pack

DEADLINE_S = 240.0
#: The same minor version, without the packages the tests run with.
BARE_PYTHON = getattr(sys, "_base_executable", sys.executable)
#: The packages that our containers import, and one function compiled by numba.
WORK = """\
import os, sys
import aiohttp, hdfs_native, numpy, PIL.Image, prometheus_client, pydantic, pynvml, scipy.linalg, yaml
import numba, numpy.testing
import yarn_accel.pipeline.server, yarn_accel.operations, yarn_accel.master.page
root = os.environ["ACCEL_ENVIRONMENT"]
for name in ("aiohttp", "hdfs_native", "numpy", "scipy", "numba", "yarn_accel", "pydantic"):
    assert sys.modules[name].__file__.startswith(root), (name, sys.modules[name].__file__)
assert "pytest" not in sys.modules
a = numpy.diag([1.0, 2.0])
assert scipy.linalg.lu(a)[2].sum() == 3.0
assert numba.njit(lambda x: x + 1)(1) == 2
from yarn_accel.report import pages
assert pages.table(("a",), [("<",)]).count("&lt;") == 1
assert "jinja2" in sys.modules and "matplotlib" not in sys.modules
print("worked")
"""


@pytest.fixture(scope="module")
def packed():
    """As `yarn-accel start` packs it, and leaves it for the next."""
    return pack()


@pytest.fixture(scope="module")
def container(packed, tmp_path_factory):
    """A container's folder: links to the two files, as a NodeManager makes them."""
    folder = tmp_path_factory.mktemp("container")
    (folder / packed.path.name).symlink_to(packed.path)
    (folder / "accel-start.py").symlink_to(bootstrap.__file__)
    yield folder
    shutil.rmtree(folder / "cache", ignore_errors=True)


def start(container, packed, *words):
    return subprocess.Popen(
        [BARE_PYTHON, "-I", "-S", "accel-start.py", packed.path.name, *words],
        cwd=container,
        env={"PATH": os.defpath, "HOME": "/nonexistent", "ACCEL_CACHE_DIR": str(container / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_bare_interpreter_runs_the_command(packed, container):
    out, err = start(container, packed, "--version").communicate(timeout=DEADLINE_S)
    assert out == f"yarn-accel, version {__version__}\n", err


def test_all_that_our_containers_import_is_there(packed, container):
    folder, lock = bootstrap.provide(str(packed.path), [container / "cache"])
    try:
        completed = subprocess.run(
            [BARE_PYTHON, "-s", "-c", WORK],
            cwd=container,
            env={"PATH": os.defpath, "PYTHONPATH": str(folder), "ACCEL_ENVIRONMENT": str(folder)},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(lock)
    assert completed.stdout == "worked\n", completed.stderr


def test_nothing_of_this_machine_and_no_tool_of_developers_is_in_it(packed, container):
    folder, lock = bootstrap.provide(str(packed.path), [container / "cache"])
    os.close(lock)
    names = {path.name for path in folder.iterdir()}
    assert {"yarn_accel", "numpy", "scipy", "numba", "hdfs_native", "aiohttp"} <= names
    assert not names & {"pytest", "mypy", "ruff", "hypothesis", "ray", "pip", "setuptools", "matplotlib"}
    assert not list(folder.rglob("direct_url.json"))
