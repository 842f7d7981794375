"""Root works in folders of other accounts: nothing that such an owner put there is followed or believed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torque_sched.adapters.state_file import read_trusted, write_atomic
from torque_sched.errors import StartupError
from torque_sched.learning.schema import open_file

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


def test_a_history_that_is_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "history.sqlite")
    with pytest.raises(StartupError, match="is no file"):
        open_file(tmp_path / "history.sqlite")


def _as_root(code: str, folder: Path) -> str:
    words = [sys.executable, "-c", f"import os, sys; from pathlib import Path\n{code}", str(folder)]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


ACT = "from torque_sched.adapters.account import act_as_owner; act_as_owner(Path(sys.argv[1]))"


@needs_root
def test_root_becomes_the_owner_of_an_ordinary_accounts_folder_for_good(tmp_path: Path) -> None:
    code = f"{ACT}; print(os.getresuid(), os.getresgid(), 0 in os.getgroups())"
    assert _as_root(code, tmp_path).startswith("(0, 0, 0) (0, 0, 0)")
    assert _as_root(code, tmp_path / "missing").startswith("(0, 0, 0) (0, 0, 0)")
    os.chown(tmp_path, NOBODY, NOBODY)
    assert _as_root(code, tmp_path) == f"{(NOBODY,) * 3} {(NOBODY,) * 3} False"
