"""For every test: hypothesis judges behaviour, not speed or luck; what is required is not skipped unseen."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import examples
from tests.fixtures import fake_nvml
from tests.fixtures.cluster_mode import MODE_VARIABLE
from tests.fixtures.kdc import NO_KERBEROS

# The same tree gets the same examples each time; `make explore` looks for new ones.
COMMON = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],  # It fails what draws slowly where others work, too.
    "print_blob": True,
    "max_examples": examples(100),
}
settings.register_profile("steady", **COMMON, derandomize=True)
settings.register_profile("explore", **COMMON, derandomize=False)
settings.load_profile("steady")

# Threads of OpenBLAS wait for each other in a loop, which costs most of the CPU where others work, too. Read
# when numpy is loaded, here and in what tests start; servers set it for their workers themselves.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_OWN_STATE = "cluster-accel-tests"


def _state_of_this_checkout() -> Path:
    """Where the clusters of these tests are known: their names are no user's, and no other checkout's."""
    given = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    if given.parent.name == _OWN_STATE:  # A test's own pytest.
        return given
    checkout = str(Path(__file__).resolve().parents[1])
    return given / _OWN_STATE / hashlib.sha256(checkout.encode()).hexdigest()[:8]


os.environ["XDG_STATE_HOME"] = str(_state_of_this_checkout())

NEEDS_ROOT = "needs root"
"""Stays a skip: an ordinary user runs all that needs no root."""
NO_BROWSER = "there is no Chromium on this machine"
"""Stays a skip: nobody needs a browser to have his cluster tested."""


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that every user of the machine may enter.

    `tmp_path` lies below a folder that every pytest closes to other users when it starts.
    """
    with tempfile.TemporaryDirectory(prefix="tests-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        action="append",
        default=[],
        metavar="MARKER",
        help="A test with this marker that is skipped, because what it needs is absent, fails instead.",
    )
    parser.addoption(
        "--cluster-mode",
        choices=("auto", "netns", "docker", "loopback"),
        default="auto",
        help="How the nodes of Hadoop clusters are made; auto: network namespaces as root, else loopback.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let fixtures know how clusters are made."""
    os.environ[MODE_VARIABLE] = config.getoption("--cluster-mode")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
    """Turn "skipped because absent" into a failure for the markers given with --require."""
    report = yield
    required = set(item.config.getoption("--require"))
    markers = {mark.name for mark in item.iter_markers()}
    is_allowed = any(reason in str(report.longrepr) for reason in (NEEDS_ROOT, NO_BROWSER, NO_KERBEROS))
    if report.skipped and required & markers and not is_allowed:
        report.outcome = "failed"
        report.longrepr = f"required, yet skipped: {report.longrepr}"
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine in the test's fixture ``loop``, else in an event loop of its own, in bounded time."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    ended = asyncio.wait_for(pyfuncitem.obj(**arguments), 600)
    loop = pyfuncitem.funcargs.get("loop")
    if loop is not None:
        loop.run_until_complete(ended)
    else:
        asyncio.run(ended)
    gc.collect()  # An unclosed socket would warn, and a warning is an error.
    return True


def pytest_collection_finish() -> None:
    """Leave the thousands of tests out of every later search for garbage; each took half a second."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say each reason for a skip once, with how many tests it kept from running."""
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, n in sorted(reasons.items()):
        terminalreporter.write_line(f"SKIPPED {n}: {reason}")


@pytest.fixture(autouse=True, scope="module")
def small_heap() -> Iterator[None]:
    """Leave what outlives a module, such as reports of its tests, out of later searches for garbage."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def table_of_operations() -> Iterator[None]:
    """Operations that a module loads into the table are gone after it."""
    from yarn_accel.operations import registry

    before = dict(registry._table)
    yield
    registry._table.clear()
    registry._table.update(before)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``cert.pem``, self-signed for 127.0.0.1, and its ``key.pem``."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on this machine")
    folder = tmp_path_factory.mktemp("tls")
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=127.0.0.1"
    words += " -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    subprocess.run([openssl, *words.split()], cwd=folder, check=True, capture_output=True, timeout=300)
    return folder


@pytest.fixture(scope="session")
def find_python() -> Callable[[str], str]:
    """From a version to an interpreter, on PATH or beside the one that runs this test; else skips."""

    def find(version: str) -> str:
        found = shutil.which(f"python{version}")
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
        beside = sorted(Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python"))
        if not beside:
            pytest.skip(f"no Python {version} on this machine")
        return str(beside[-1])

    return find


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The emulated NVML; processes started with `Node.environment` find it."""
    library = fake_nvml.build(tmp_path_factory.mktemp("nvml"))
    if library is None:
        pytest.skip(fake_nvml.NO_COMPILER)
    return library


@pytest.fixture
def eight_gpus(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fake_nvml.Node:
    """This process sees eight emulated GPUs, and a test changes them; see `fake_nvml.eight_gpus`."""
    import pynvml

    from yarn_accel.adapters import nvml

    node = fake_nvml.eight_gpus(tmp_path / "nvml-state")
    # Where this machine has a driver, pynvml may have loaded that.
    monkeypatch.setattr(pynvml, "nvmlLib", fake_nvml.preload(nvml_library))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setenv(fake_nvml.STATE_VARIABLE, str(node.path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvml, "_library", nvml._Library())
    return node
