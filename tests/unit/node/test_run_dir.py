"""The folder of an agent, and its state file."""

import json
import os
import socket
import stat

import pytest

from yarn_accel.errors import StartupError
from yarn_accel.node.agent import read_last_response, write_state
from yarn_accel.node.heartbeat_response import parse_response, response_document
from yarn_accel.node.paths import make_run_dir, remove_abandoned


@pytest.fixture(autouse=True)
def strict_umask():
    """That of containers under LinuxContainerExecutor."""
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_is_made_for_everybody_to_enter_and_one_of_the_site_stays_as_it_is(tmp_path):
    ours, of_the_site = tmp_path / "yarn-accel-1" / "w1", tmp_path / "yarn-accel" / "w1"
    of_the_site.mkdir(parents=True)
    for folder in (ours, of_the_site, ours, of_the_site):
        make_run_dir(folder)
    assert (mode(ours), mode(ours.parent), mode(of_the_site)) == (0o755, 0o755, 0o750)


def test_the_folder_of_an_application_goes_when_nobody_listens_there_any_more(tmp_path):
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


def test_other_folders_are_never_removed(tmp_path):
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


def test_the_masters_last_word_outlives_the_agent_and_everybody_may_read_it(tmp_path):
    assert written(tmp_path / "state.json") == (ANSWER, 17.5)
    assert [(each.name, mode(each)) for each in tmp_path.iterdir()] == [("state.json", 0o644)]
    assert json.loads((tmp_path / "state.json").read_text())["version"] == 1


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


@pytest.mark.parametrize(
    ("open_to_all", "complaint"),
    [
        ("yarn-accel-1/w1/17_0001", "others could put their own socket there"),
        ("yarn-accel-1/w1", "w1 belongs to"),
        ("yarn-accel-1", "yarn-accel-1 belongs to"),
    ],
)
def test_a_folder_others_may_write_in_is_refused_and_so_is_one_above_it(tmp_path, open_to_all, complaint):
    """Anybody could have made it."""
    folder = tmp_path / "yarn-accel-1" / "w1" / "17_0001"
    make_run_dir(folder)
    (tmp_path / open_to_all).chmod(0o777)
    with pytest.raises(StartupError, match=complaint):
        make_run_dir(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_so_is_the_folder_of_another_user(tmp_path):
    (tmp_path / "w1").mkdir()
    os.chown(tmp_path / "w1", 4242, 4242)
    with pytest.raises(StartupError, match="belongs to user 4242"):
        make_run_dir(tmp_path / "w1")


@pytest.mark.parametrize(
    ("name", "complaint"), [("link", "is not a folder"), ("file", "is not a folder"), ("file/w1", "run_dir")]
)
def test_links_and_files_are_refused(tmp_path, name, complaint):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match=complaint):
        make_run_dir(tmp_path / name)
