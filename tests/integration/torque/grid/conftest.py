"""One grid of four sites for all tests here."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import NEEDS_ROOT
from tests.integration.torque.grid.grid import Grid


def needs_namespaces() -> None:
    """Skip, with the reason, where no network namespace can be made."""
    if os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)
    for program in ("ip", "openssl"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on PATH")


@pytest.fixture(scope="package")
def grid() -> Iterator[Grid]:
    """Four sites in network namespaces, linked."""
    needs_namespaces()
    # Not below tmp_path, which every pytest closes to other users when it starts: they read scripts here.
    with tempfile.TemporaryDirectory(prefix="grid-") as folder:
        Path(folder).chmod(0o711)
        with Grid(Path(folder)) as made:
            yield made


@pytest.fixture(autouse=True)
def quiet(grid: Grid) -> Iterator[None]:
    """Every test leaves the grid as it found it."""
    yield
    grid.quiet()
