"""One grid of four sites for all tests here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.conftest import NEEDS_ROOT
from tests.integration.torque.site.grid import Grid


@pytest.fixture(scope="package")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    """Four sites in network namespaces, linked."""
    if os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)
    for program in ("ip", "openssl"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on PATH")
    folder = tmp_path_factory.mktemp("grid")
    for path in (folder, *folder.parents):  # a block's user reads its script below it
        if path.owner() == "root" and path.name.startswith(("pytest", "grid")):
            path.chmod(0o711)
    with Grid(folder) as made:
        yield made


@pytest.fixture(autouse=True)
def quiet(grid: Grid) -> Iterator[None]:
    """Every test leaves the grid as it found it."""
    yield
    grid.quiet()
