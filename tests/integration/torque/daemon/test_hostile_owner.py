"""Root works in a ``sched_priv`` whose owner, an ordinary account, put traps where root's files would be.

Each trap leads to a folder that is root's alone. Whatever root runs, nothing in there changes or is shown,
nothing waits for the other end of a FIFO, and one line says what is wrong.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import free_port
from .stranger import NEEDS, USER, Stranger, stranger_beside

pytestmark = NEEDS
SECRET = "root-alone: may-read-this"


@pytest.fixture(scope="module")
def stranger() -> Iterator[Stranger]:
    with stranger_beside(free_port()) as found:
        yield found


@pytest.fixture
def vault(stranger: Stranger) -> Iterator[Path]:
    """A folder of root's alone, which is as it was when the test is over; ``sched_priv`` is emptied."""
    made = stranger.place / "vault"
    made.mkdir(mode=0o700)
    (made / "secret").write_text(f"{SECRET}\n")
    (made / "secret").chmod(0o600)
    before = _seen(made)
    yield made
    assert _seen(made) == before
    shutil.rmtree(made)
    place = stranger.torque.home / "sched_priv"
    place.unlink() if place.is_symlink() else shutil.rmtree(place)
    place.mkdir(mode=0o755)
    shutil.chown(place, USER)


def _seen(folder: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """All files of a folder: rights, owner, text."""
    return {
        str(each.relative_to(folder)): (status.st_mode, status.st_uid, status.st_gid, each.read_bytes())
        for each in sorted(folder.rglob("*"))
        if (status := each.lstat()) and each.is_file()
    }


TRAPS: dict[str, Callable[[Path, Path], object]] = {
    "dangling": lambda path, vault: path.symlink_to(vault / "new"),
    "symlink": lambda path, vault: path.symlink_to(vault / "secret"),
    "hard link": lambda path, vault: path.hardlink_to(vault / "secret"),
    "fifo": lambda path, vault: os.mkfifo(path, 0o666),
    "folder": lambda path, vault: path.mkdir(),
    "replaced": lambda path, vault: path.write_text("{}\n[of his own\n"),
}


def slow(*values: object) -> Any:
    """Values of a test that `make test-all` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)


def _set(stranger: Stranger, vault: Path, name: str, trap: str) -> None:
    path = stranger.torque.home / "sched_priv" / name
    TRAPS[trap](path, vault)
    if trap != "hard link":
        owner = pwd.getpwnam(USER)
        os.chown(path, owner.pw_uid, owner.pw_gid, follow_symlinks=False)


def _refused(done: subprocess.CompletedProcess[str], command: str) -> None:
    said = done.stderr.strip()
    assert done.returncode in (1, 2, 3), (done.returncode, said)
    assert said.count(f"{command}: ") == 1, said
    assert "Traceback" not in said, said
    assert SECRET not in done.stdout + said, said


RESERVE = ("reserve", "--start", "+60", "--length", "60", "--nodes", "node1")


def reserve(stranger: Stranger) -> subprocess.CompletedProcess[str]:
    return stranger.run(RESERVE[0], "-d", str(stranger.torque.home), *RESERVE[1:], as_root=True)


@pytest.mark.slow
def test_what_reserve_makes_is_the_owners(stranger: Stranger, vault: Path) -> None:
    done = reserve(stranger)
    assert done.returncode == 0, done.stderr
    uid = pwd.getpwnam(USER).pw_uid
    made = {each.name: each.stat().st_uid for each in (stranger.torque.home / "sched_priv").iterdir()}
    assert made["history.sqlite"] == uid
    assert set(made.values()) == {uid}


@pytest.mark.parametrize(
    ("name", "trap"),
    [
        ("history.sqlite-journal", "fifo"),
        ("torque_sched.yaml", "symlink"),
        *(slow(name, trap) for name in ("history.sqlite", "torque_sched.yaml") for trap in TRAPS),
        slow("history.sqlite-wal", "fifo"),
        slow("history.sqlite-shm", "folder"),
    ],
)
def test_reserve_is_not_trapped(stranger: Stranger, vault: Path, name: str, trap: str) -> None:
    if name.startswith("history.sqlite-"):
        assert reserve(stranger).returncode == 0
        (stranger.torque.home / "sched_priv" / name).unlink(missing_ok=True)
    _set(stranger, vault, name, trap)
    _refused(reserve(stranger), "torque-sched reserve")


def test_a_link_for_the_folder_itself_leads_root_nowhere(stranger: Stranger, vault: Path) -> None:
    """Whose home it is may have made a link to root's own folder; root then is that owner, not root."""
    place = stranger.torque.home / "sched_priv"
    place.rmdir()
    place.symlink_to(vault)
    owner = pwd.getpwnam(USER)
    os.chown(place, owner.pw_uid, owner.pw_gid, follow_symlinks=False)
    _refused(reserve(stranger), "torque-sched reserve")
    done = stranger.run("serve", "-d", str(stranger.torque.home), "-S", str(free_port()), as_root=True)
    _refused(done, "pbs_sched")
    assert f"Security violation: {place} belongs to uid {owner.pw_uid}" in done.stderr


def test_a_folder_that_others_write_to_is_not_used_by_root(stranger: Stranger, vault: Path) -> None:
    place = stranger.torque.home / "sched_priv"
    shutil.chown(place, "root")
    place.chmod(0o777)
    done = reserve(stranger)
    _refused(done, "torque-sched reserve")
    assert "writable for group or others" in done.stderr
    assert list(place.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("name", ["sched.lock", "cycle.lock", "sched_config", "usage"])
def test_a_cycle_of_roots_is_not_trapped(stranger: Stranger, vault: Path, name: str, trap: str) -> None:
    """What the trap does not keep it from, it does with the owner's rights."""
    _set(stranger, vault, name, trap)
    done = stranger.run("cycle", "-d", str(stranger.torque.home), as_root=True)
    assert done.returncode in (0, 1, 2, 3), done.stderr
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sched.lock", "torque_sched_state.json"])
def test_status_of_roots_waits_for_no_fifo(stranger: Stranger, vault: Path, name: str) -> None:
    _set(stranger, vault, name, "fifo")
    done = stranger.run("status", "-d", str(stranger.torque.home), as_root=True)
    assert done.returncode in (1, 2, 3), done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("trap", ["hard link", slow("dangling"), slow("fifo"), slow("folder")])
def test_the_daemon_writes_through_nothing_in_a_log_folder_of_somebody_else(
    stranger: Stranger, vault: Path, trap: str
) -> None:
    place = stranger.torque.home / "sched_priv"
    shutil.chown(place, "root")
    logs = stranger.torque.home / "sched_logs"
    shutil.rmtree(logs)
    logs.mkdir(mode=0o755)
    shutil.chown(logs, USER)
    for day in _days():
        TRAPS[trap](logs / day, vault)
    words = ("serve", "-d", str(stranger.torque.home), "-S", str(free_port()))
    done = stranger.run(*words, as_root=True)
    _refused(done, "pbs_sched")
    assert str(logs) in done.stderr


def _days() -> set[str]:
    """Today's name of a log, and tomorrow's, should midnight come."""
    return {time.strftime("%Y%m%d", time.localtime(time.time() + each)) for each in (0, 86_400)}


@pytest.mark.slow
def test_the_daemon_of_root_refuses_the_folder_of_an_account(stranger: Stranger, vault: Path) -> None:
    home = stranger.torque.home
    done = stranger.run("serve", "-d", str(home), "-S", str(free_port()), as_root=True)
    _refused(done, "pbs_sched")
    assert f"Security violation: {home / 'sched_priv'} belongs to uid" in done.stderr
    assert list((home / "sched_priv").iterdir()) == []


@pytest.mark.parametrize("trap", ["replaced", slow("dangling"), slow("fifo")])
def test_undoing_an_installation_believes_no_record_of_the_owners(
    stranger: Stranger, vault: Path, trap: str
) -> None:
    """The owner's record would have root move the secret over the shim; root's own record is used."""
    home, place = stranger.torque.home, stranger.place / "installed"
    for name in ("sbin", "records"):
        (place / name).mkdir(parents=True)
    try:
        (place / "sbin" / "pbs_sched").write_text("of Torque")
        words = ("install", "-d", str(home), "--sbin", str(place / "sbin"), "--no-unit", "--records")
        done = stranger.run(*words, str(place / "records"), "--apply", as_root=True)
        assert done.returncode == 0, done.stderr
        (record,) = (place / "records").iterdir()
        shim = place / "sbin" / "pbs_sched"
        lie = f'[{{"path": "{shim}", "text": "", "mode": 420, "kept": "{vault / "secret"}"}}]'
        _set(stranger, vault, record.name, trap)
        if trap == "replaced":
            (home / "sched_priv" / record.name).write_text(lie)
        refused = stranger.run(*words, str(home / "sched_priv"), "--undo", as_root=True)
        _refused(refused, "torque-sched install")
        assert b"in pbs_sched's place" in shim.read_bytes()
        done = stranger.run(*words, str(place / "records"), "--undo", as_root=True)
        assert done.returncode == 0, done.stderr
        assert shim.read_text() == "of Torque"
    finally:
        shutil.rmtree(place)
