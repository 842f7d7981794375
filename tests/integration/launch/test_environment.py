"""The real environment: packed from this interpreter, unpacked by several at once, run by a bare one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from yarn_accel import __version__
from yarn_accel.launch import bootstrap
from yarn_accel.launch.packing import Environment, pack

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
def packed() -> Environment:
    """As `yarn-accel start` packs it, and leaves it for the next."""
    return pack()


@pytest.fixture(scope="module")
def container(packed: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A container's folder: links to the two files, as a NodeManager makes them."""
    folder = tmp_path_factory.mktemp("container")
    (folder / packed.path.name).symlink_to(packed.path)
    (folder / "accel-start.py").symlink_to(bootstrap.__file__)
    yield folder
    shutil.rmtree(folder / "cache", ignore_errors=True)


def start(container: Path, packed: Environment, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [BARE_PYTHON, "-I", "-S", "accel-start.py", packed.path.name, *words],
        cwd=container,
        env={"PATH": os.defpath, "HOME": "/nonexistent", "ACCEL_CACHE_DIR": str(container / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_eight_containers_unpack_it_once_though_the_first_is_killed(packed, container) -> None:
    processes = [start(container, packed, "--help") for _ in range(8)]
    lock = container / "cache" / f"{packed.digest}.lock"
    deadline = time.monotonic() + DEADLINE_S
    while not list(lock.parent.glob("*.tmp/numpy*")) or not lock.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    victim = next(process for process in processes if process.pid == int(lock.read_text()))
    victim.send_signal(signal.SIGKILL)
    for process in processes:
        out, err = process.communicate(timeout=DEADLINE_S)
        if process is victim:
            assert process.returncode == -signal.SIGKILL
        else:
            assert process.returncode == 0, err
            assert "pipeline" in out
    assert sorted(path.name for path in lock.parent.iterdir()) == [packed.digest, lock.name]
    n_files = sum(
        path.suffix != ".pyc" and path.is_file() for path in (lock.parent / packed.digest).rglob("*")
    )
    assert n_files == packed.n_files + 1, "the mark is added"


def test_a_bare_interpreter_runs_the_command(packed, container) -> None:
    out, err = start(container, packed, "--version").communicate(timeout=DEADLINE_S)
    assert out == f"yarn-accel, version {__version__}\n", err


def test_all_that_our_containers_import_is_there(packed, container) -> None:
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


def test_nothing_of_this_machine_and_no_tool_of_developers_is_in_it(packed, container) -> None:
    folder, lock = bootstrap.provide(str(packed.path), [container / "cache"])
    os.close(lock)
    names = {path.name for path in folder.iterdir()}
    assert {"yarn_accel", "numpy", "scipy", "numba", "hdfs_native", "aiohttp"} <= names
    assert not names & {"pytest", "mypy", "ruff", "hypothesis", "ray", "pip", "setuptools", "matplotlib"}
    assert not list(folder.rglob("direct_url.json"))
