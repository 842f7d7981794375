"""Where agent, server and mappers of a node meet."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from yarn_accel.errors import StartupError
from yarn_accel.node.paths import make_run_dir, remove_abandoned
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


def test_every_folder_up_to_ours_is_checked(tmp_path: Path) -> None:
    folder = tmp_path / "yarn-accel-1" / "w1" / "17_0001"
    make_run_dir(folder)
    folder.parent.chmod(0o777)
    with pytest.raises(StartupError, match="w1 belongs to"):
        make_run_dir(folder)


def test_the_folder_of_an_application_goes_when_nobody_listens_there_any_more(tmp_path: Path) -> None:
    folder = tmp_path / "17_0001"
    make_run_dir(folder)
    (folder / "state.json").write_text("{}")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "server.sock"))
        server.listen()
        remove_abandoned(folder, 0.0)
        assert folder.exists(), "a server of it runs"
    remove_abandoned(folder, 3600.0)
    assert folder.exists(), "something was written there a moment ago"
    remove_abandoned(folder, 0.0)
    assert not folder.exists()


def test_other_folders_are_never_removed(tmp_path: Path) -> None:
    """Those of the site's own agents, and what only looks like one of ours."""
    (tmp_path / "w1").mkdir()
    (tmp_path / "17_0002").write_text("")
    (tmp_path / "17_0003").symlink_to(tmp_path / "w1")
    for name in ("w1", "17_0002", "17_0003", "17_0004"):
        remove_abandoned(tmp_path / name, 0.0)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["17_0002", "17_0003", "w1"]
