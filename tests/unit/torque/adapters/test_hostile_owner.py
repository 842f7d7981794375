"""Root works in folders of other accounts: nothing that such an owner put there is followed or believed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torque_sched.adapters.home import check_folder, holder_of, path_elements, pid_in
from torque_sched.adapters.journal import read_journal
from torque_sched.adapters.log_file import LogFile
from torque_sched.adapters.settings_file import read_settings
from torque_sched.adapters.state_file import read_plain, read_trusted, write_atomic
from torque_sched.errors import ConfigError, StartupError
from torque_sched.learning.schema import open_file
from torque_sched.learning.store import Store

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as somebody else")


def test_what_is_written_replaces_a_link_and_follows_none(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    for lure in ("symlink", "dangling", "hard link"):
        target = tmp_path / lure
        if lure == "hard link":
            target.hardlink_to(victim)
        else:
            target.symlink_to(victim if lure == "symlink" else tmp_path / "nowhere")
        write_atomic(target, "ours", 0o600)
        assert (target.is_symlink(), target.read_text()) == (False, "ours")
    assert victim.read_text() == "untouched"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["dangling", "hard link", "symlink", "victim"]


def test_the_temporary_name_cannot_be_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where it is there all the same, it is not written through."""
    victim = tmp_path / "victim"
    monkeypatch.setattr("secrets.token_hex", lambda _n: "known")
    (tmp_path / ".state.known.new").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_atomic(tmp_path / "state", "ours")
    assert not victim.exists()


def test_a_file_of_ours_is_read_and_a_long_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    assert read_trusted(path) == "text"
    path.write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(OSError, match="longer than"):
        read_trusted(path)


@pytest.mark.parametrize("end", ["", "-journal", "-wal", "-shm"])
def test_a_history_that_is_a_fifo_is_refused_at_once(tmp_path: Path, end: str) -> None:
    path = tmp_path / "history.sqlite"
    if end:
        open_file(path).close()
    os.mkfifo(f"{path}{end}")
    with pytest.raises(StartupError, match="is no file"):
        open_file(path)
    with pytest.raises(StartupError, match="is no file"):
        Store.read_only(path)


def test_a_history_is_not_made_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "history.sqlite").symlink_to(tmp_path / "new")
    with pytest.raises(StartupError, match="is no file"):
        open_file(tmp_path / "history.sqlite")
    assert [each.name for each in tmp_path.iterdir()] == ["history.sqlite"]


def test_no_fifo_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    os.mkfifo(path)
    with pytest.raises(OSError, match="is no plain file"):
        read_plain(path)
    with pytest.raises(ConfigError, match="is no plain file"):
        read_settings(path, {})
    with pytest.raises(OSError, match="is no plain file"):
        list(read_journal(path))
    assert (holder_of(path), pid_in(path)) == (None, 0)
    for days in (0, 1):
        os.mkfifo(tmp_path / time.strftime("%Y%m%d", time.localtime(time.time() + days * 86_400)))
    with pytest.raises(StartupError, match="No such device"):
        LogFile(tmp_path)


def test_every_link_on_the_way_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "second").symlink_to("real")
    (tmp_path / "first").symlink_to(tmp_path / "second")
    seen = [path for path, _ in path_elements(tmp_path / "first" / ".." / "second")]
    assert seen[0] == Path("/")
    assert seen[-4:] == [tmp_path / "second", tmp_path / "real", tmp_path / "second", tmp_path / "real"]
    check_folder(tmp_path / "first")
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(StartupError, match="Too many levels"):
        check_folder(tmp_path / "circle")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_a_link_of_somebody_else_is_refused_wherever_it_leads(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    os.chown(tmp_path / "link", NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(StartupError, match=f"link belongs to uid {NOBODY}"):
        check_folder(tmp_path / "link")


def _as_root(code: str, folder: Path) -> str:
    words = [sys.executable, "-c", f"import os, sys; from pathlib import Path\n{code}", str(folder)]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


ACT = "from torque_sched.adapters.account import act_as_owner; act_as_owner(Path(sys.argv[1]))"


@needs_root
def test_root_becomes_the_owner_of_an_ordinary_accounts_folder_for_good(tmp_path: Path) -> None:
    code = f"{ACT}; print(os.getresuid(), os.getresgid(), 0 in os.getgroups())"
    assert _as_root(code, tmp_path).startswith("(0, 0, 0) (0, 0, 0)")
    assert _as_root(code, tmp_path / "missing").startswith("(0, 0, 0) (0, 0, 0)")
    (tmp_path / "link").symlink_to("/etc")
    os.chown(tmp_path / "link", NOBODY, NOBODY, follow_symlinks=False)
    assert _as_root(code, tmp_path / "link").startswith(f"({NOBODY}, ")
    os.chown(tmp_path, NOBODY, NOBODY)
    assert _as_root(code, tmp_path) == f"{(NOBODY,) * 3} {(NOBODY,) * 3} False"
