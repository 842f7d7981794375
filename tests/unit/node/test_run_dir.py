"""The folder of an agent, and its state file."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from yarn_accel.errors import StartupError
from yarn_accel.node.agent import read_last_response, write_state
from yarn_accel.node.heartbeat_response import parse_response, response_document
from yarn_accel.node.paths import make_run_dir, remove_abandoned


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


ANSWER = parse_response(
    {"version": 1, "servers": [{"name": "w9", "host": "h", "port": 1}], "bound": ["w9"], "attempt": 3}, "w1"
)


def written(path, **changes):
    write_state(
        path, {"node": "w1", "answer": response_document(ANSWER, "w1"), "answered_at": 17.5, **changes}
    )
    return read_last_response(path, "w1")


def test_the_masters_last_word_outlives_the_agent(tmp_path):
    assert written(tmp_path / "state.json") == (ANSWER, 17.5)


@pytest.mark.parametrize(
    "changes", [{"answer": None}, {"node": "w2"}, {"answered_at": "x"}, {"answer": {"version": 9}}]
)
def test_what_is_not_usable_is_nothing(tmp_path, changes):
    assert written(tmp_path / "state.json", **changes) is None


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"version": 2}', b"\xff", b"[" * 100_000])
def test_a_damaged_file_is_nothing(tmp_path, raw):
    (tmp_path / "state.json").write_bytes(raw)
    assert read_last_response(tmp_path / "state.json", "w1") is None
    assert read_last_response(tmp_path / "none.json", "w1") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_file_of_another_user_is_not_believed(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    written(path)
    os.chown(path, 4242, 4242)
    assert read_last_response(path, "w1") is None


def test_everybody_may_read_it_and_nothing_else_is_left(tmp_path):
    written(tmp_path / "state.json")
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]
    assert (tmp_path / "state.json").stat().st_mode & 0o777 == 0o644
    assert json.loads((tmp_path / "state.json").read_text())["version"] == 1


def test_the_folder_is_made(tmp_path):
    path = tmp_path / "yarn-accel-1000" / "w1"
    make_run_dir(path)
    make_run_dir(path)
    assert path.stat().st_mode & 0o777 == 0o755


def test_a_folder_others_may_write_in_is_refused(tmp_path):
    path = tmp_path / "w1"
    path.mkdir()
    path.chmod(0o777)
    with pytest.raises(StartupError, match="others could put their own socket there"):
        make_run_dir(path)


def test_so_is_one_above_it_that_anybody_could_have_made(tmp_path):
    above = tmp_path / "yarn-accel-1000"
    above.mkdir()
    above.chmod(0o777)
    with pytest.raises(StartupError, match="yarn-accel-1000 belongs to"):
        make_run_dir(above / "w1")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_so_is_the_folder_of_another_user(tmp_path):
    (tmp_path / "w1").mkdir()
    os.chown(tmp_path / "w1", 4242, 4242)
    with pytest.raises(StartupError, match="belongs to user 4242"):
        make_run_dir(tmp_path / "w1")


def test_links_and_files_are_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StartupError, match="is not a folder"):
        make_run_dir(tmp_path / "link")
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="is not a folder"):
        make_run_dir(tmp_path / "file")
    with pytest.raises(StartupError, match="run_dir"):
        make_run_dir(tmp_path / "file" / "w1")
