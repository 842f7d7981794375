"""For every test: hypothesis judges behaviour, not speed or luck; what is required is not skipped unseen."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import examples
from tests.fixtures import fake_nvml
from tests.fixtures.cluster_mode import MODE_VARIABLE

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
    is_allowed = any(reason in str(report.longrepr) for reason in (NEEDS_ROOT, NO_BROWSER))
    if report.skipped and required & markers and not is_allowed:
        report.outcome = "failed"
        report.longrepr = f"required, yet skipped: {report.longrepr}"
    return report


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
def table_of_operations() -> Iterator[None]:
    """Operations that a module loads into the table are gone after it."""
    from yarn_accel.operations import registry

    before = dict(registry._table)
    yield
    registry._table.clear()
    registry._table.update(before)


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
