"""Where agent, server and mappers of a node meet."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from yarn_accel.node.paths import make_run_dir
from yarn_accel.node.state_file import write_state


@pytest.fixture(autouse=True)
def strict_umask() -> Iterator[None]:
    """That of containers under LinuxContainerExecutor."""
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_users_other_than_ours_come_in(tmp_path: Path) -> None:
    folder = tmp_path / "yarn-accel-1" / "w1"
    make_run_dir(folder)
    assert (mode(folder), mode(folder.parent)) == (0o755, 0o755)
    write_state(folder / "state.json", {"node": "w1"})
    assert mode(folder / "state.json") == 0o644


def test_a_folder_that_the_site_made_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "yarn-accel" / "w1"
    folder.mkdir(parents=True)
    make_run_dir(folder)
    make_run_dir(folder)
    assert mode(folder) == 0o750
