"""Log lines in both forms, the lock, the checks of folders, the journal's files, figures."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.unit.torque.ports import held_port
from torque_sched.adapters.cycle_lock import CycleLock
from torque_sched.adapters.home import LockFile, check_folder, holder_of, path_elements, pid_in
from torque_sched.adapters.journal import Journal, read_journal
from torque_sched.adapters.log_file import Event, LogFile, dialect_of
from torque_sched.adapters.metrics import Figures, serve_figures
from torque_sched.adapters.settings_file import read_settings
from torque_sched.adapters.state_file import read_plain, read_trusted, write_atomic
from torque_sched.errors import ConfigError, RecordError, SnapshotError, StartupError
from torque_sched.learning.schema import open_file
from torque_sched.learning.store import Store

AT_S = 1795195600.25


def lines_of(folder: Path) -> list[str]:
    return [line for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]


def test_lines_have_the_form_of_both_generations(tmp_path: Path) -> None:
    log = LogFile(tmp_path, clock=lambda: AT_S)
    log.record(Event.SCHED, "Job", "72.head", "Job Run")
    log.dialect = 4
    log.record(Event.SCHED, "Job", "72.head", "Job\nRun")
    _, new, old = lines_of(tmp_path)
    assert re.fullmatch(r"11/\d\d/2026 \d\d:\d\d:40\.250;64; pbs_sched\.\d+;Job;72\.head;Job Run", new)
    assert re.fullmatch(r"11/\d\d/2026 \d\d:\d\d:40;0040; pbs_sched\.\d+;Job;72\.head;Job Run", old)


def test_the_form_of_the_scheduler_before_is_found_in_its_newest_lines(tmp_path: Path) -> None:
    assert dialect_of(tmp_path / "none") == dialect_of(tmp_path) == 6
    new, old = "11/20/2026 18:26:40.250;64;", "11/20/2026 18:26:40;0040;"
    rest = " pbs_sched.72;Job;72.head;Job Run\n"
    (tmp_path / "20261119").write_text((new + rest) * 500)
    (tmp_path / "20261120").write_text((old + rest) * 500)
    (tmp_path / "20261121").touch()
    assert dialect_of(tmp_path) == 4
    assert dialect_of(tmp_path, tmp_path / "20261119") == 6
    assert dialect_of(tmp_path, Path("/dev/null")) == 6


def test_filtered_events_are_left_out_and_a_day_has_its_file(tmp_path: Path) -> None:
    now = [AT_S]
    log = LogFile(tmp_path, filter_mask=256, clock=lambda: now[0])
    log.record(Event.DEBUG2, "Req", "", "Entering Schedule")
    now[0] += 86400
    log.record(Event.DEBUG, "Svr", "cycle", "next day")
    log.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert not any("Entering" in line for line in lines_of(tmp_path))
    assert lines_of(tmp_path)[-1].endswith("Log closed")


def elsewhere(expression: str, path: Path) -> subprocess.CompletedProcess[str]:
    """What another process says of a lock; its path is ``path`` there."""
    program = (
        "import sys; from pathlib import Path; from torque_sched.adapters.home import LockFile, holder_of\n"
        f"path = Path(sys.argv[1]); {expression}"
    )
    argv = [sys.executable, "-c", program, str(path)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_a_file_that_could_not_be_begun_at_midnight_is_begun_later(tmp_path: Path) -> None:
    now, folder = [AT_S], tmp_path / "sched_logs"
    log = LogFile(folder, clock=lambda: now[0])
    folder.rename(tmp_path / "gone")
    folder.touch()
    now[0] += 86400
    log.record(Event.SCHED, "Job", "1.head", "lost")
    folder.unlink()
    log.record(Event.SCHED, "Job", "2.head", "told")
    assert lines_of(folder)[-1].endswith("2.head;told")


def test_a_named_file_that_could_not_be_opened_again_is_opened_later(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    log = LogFile(tmp_path, folder / "sched")
    folder.rename(tmp_path / "gone")
    folder.touch()
    with pytest.raises(StartupError):
        log.reopen()
    log.record(Event.SCHED, "Job", "1.head", "lost")
    folder.unlink()
    log.record(Event.SCHED, "Job", "2.head", "told")
    assert lines_of(folder)[-1].endswith("2.head;told")


def test_only_one_has_the_lock(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "sched.lock")
    lock.take()
    done = elsewhere("LockFile(path).take()", tmp_path / "sched.lock")
    assert "another scheduler running" in done.stderr
    content = (tmp_path / "sched.lock").read_bytes()
    assert re.fullmatch(rb"\d+\n\0", content)
    lock.release()
    done = elsewhere("LockFile(path).take()", tmp_path / "sched.lock")
    assert (done.returncode, pid_in(tmp_path / "sched.lock") > 0) == (0, True)


HOLD = (
    "import sys; from pathlib import Path; from torque_sched.adapters.home import LockFile\n"
    "LockFile(Path(sys.argv[1])).take(); print('taken', flush=True); sys.stdin.read()"
)


def test_the_kernel_tells_who_has_the_lock(tmp_path: Path) -> None:
    """Whatever the file says, which may be of a process long gone, or empty on a full disk."""
    path = tmp_path / "sched.lock"
    assert holder_of(path) == 0
    path.write_text("1\n\0")
    assert holder_of(path) == 0
    argv = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        assert path.read_bytes() == f"{holder.pid}\n\0".encode()
        path.write_text("")
        assert holder_of(path) == holder.pid
        with pytest.raises(StartupError, match=f"another scheduler running .process {holder.pid}"):
            LockFile(path).take()
        assert holder.stdin is not None
        holder.stdin.close()
    assert holder_of(path) == 0
    assert holder_of(path / "below") is None


def test_a_full_disk_does_not_keep_it_from_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    lock = LockFile(tmp_path / "sched.lock")
    lock.take()
    done = elsewhere("print(holder_of(path))", tmp_path / "sched.lock")
    done.check_returncode()
    assert int(done.stdout) == os.getpid()
    lock.release()


def test_folders_others_can_change_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "sched_priv"
    folder.mkdir(parents=True)
    check_folder(folder)
    for place, mode in ((folder, 0o775), (folder, 0o757), (folder.parent, 0o777)):
        place.chmod(mode)
        with pytest.raises(StartupError, match=f"Security violation: {place}"):
            check_folder(folder)
        place.chmod(0o755)
    folder.parent.chmod(0o1777)  # as /tmp: nobody can put another folder in its place
    check_folder(folder)


def test_the_journal_is_bounded_and_survives_a_torn_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path, file_bytes=1000, n_files=3)
    for number in range(100):
        journal.append({"number": number, "text": "x" * 90})
    journal.close()
    assert len(list(tmp_path.iterdir())) == 3
    numbers = [line["number"] for line in read_journal(tmp_path)]
    assert numbers == list(range(numbers[0], 100))
    newest = sorted(tmp_path.iterdir())[-1]
    newest.write_bytes(newest.read_bytes() + b'{"number": 100, "te')
    assert [line["number"] for line in read_journal(tmp_path)] == numbers
    newest.write_bytes(b"{]\n" + newest.read_bytes())
    with pytest.raises(RecordError, match="line 1"):
        list(read_journal(tmp_path))


def test_a_file_that_the_daemon_removes_while_the_journal_is_read_is_passed_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path, file_bytes=50, n_files=3)
    for number in range(3):
        journal.append({"number": number, "text": "x" * 30})
    read = read_journal(tmp_path)
    assert next(read)["number"] == 0
    journal.append({"number": 3, "text": "x" * 30})
    journal.append({"number": 4, "text": "x" * 30})
    journal.close()
    assert [line["number"] for line in read] == [2]
    with pytest.raises(FileNotFoundError):
        list(read_journal(tmp_path / "cycles-19700101-000000-0000.jsonl"))


def test_a_clock_put_back_takes_no_line_of_the_journal_and_its_order_stays(tmp_path: Path) -> None:
    now = [AT_S]
    for number in range(6):
        journal = Journal(tmp_path, file_bytes=1000, n_files=3, clock=lambda: now[0])
        journal.append({"number": number})
        journal.close()
        now[0] -= 86400
    assert [line["number"] for line in read_journal(tmp_path)] == [3, 4, 5]


def figures_text(figures: Figures) -> str:
    """What is answered on a port that is held for it, so that nobody else is given it."""
    with ExitStack() as stack:
        port = held_port(stack)
        stop = serve_figures(figures, "127.0.0.1", port)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as answer:
                return str(answer.read().decode())
        finally:
            stop()


def test_figures_are_what_prometheus_reads() -> None:
    figures = Figures()
    figures.cycle(0.3, 0.1, {"started": 2, "not-now": 1}, {"start": 3}, {"no-free-slots": 5})
    figures.failure()
    from prometheus_client.parser import text_string_to_metric_families

    text = figures_text(figures)
    samples = {
        (sample.name, json.dumps(sample.labels, sort_keys=True)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["torque_sched_cycles_total", "{}"] == 1
    assert samples["torque_sched_snapshot_failures_total", "{}"] == 1
    assert samples["torque_sched_starts_total", '{"answer": "not-now"}'] == 1
    assert samples["torque_sched_waiting_jobs", '{"reason": "no-free-slots"}'] == 5
    assert samples["torque_sched_cycle_seconds_bucket", '{"le": "0.5"}'] == 1


# Root works in folders of other accounts: nothing that such an owner put there is followed or believed.


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
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=300).stdout.strip()


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


# The cycle's lock: one at a time, however the other ends; waiting ends with an error and a cure.


HOLDER = """
import sys
from pathlib import Path
from torque_sched.adapters.cycle_lock import CycleLock
with CycleLock(Path(sys.argv[1])).taken(5.0):
    print("held", flush=True)
    sys.stdin.readline()
"""


ORDERING = """
import asyncio, sys
from pathlib import Path
from torque_sched.adapters.commands import Commands
from torque_sched.adapters.cycle_lock import CycleLock

async def main() -> None:
    async with CycleLock(Path(sys.argv[1])).taken_async(5.0) as held:
        orders = Commands().run(("sh", "-c", f"read line < {sys.argv[2]}; exit 0"), 60.0, keeps=held)
        order = asyncio.ensure_future(orders)
        await asyncio.sleep(0)
        print("held", flush=True)
        if sys.argv[3] == "lets go":
            await asyncio.sleep(0)
        else:
            await order
    print("let go", flush=True)
    await order

asyncio.run(main())
"""


def ordering(path: Path, pipe: Path, does: str) -> subprocess.Popen[str]:
    """Somebody who holds the lock and runs a command that ends when it can read a line from the pipe."""
    os.mkfifo(pipe)
    argv = [sys.executable, "-c", ORDERING, str(path), str(pipe), does]
    made = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    assert made.stdout.readline() == "held\n"
    return made


def test_an_order_that_outlives_its_daemon_keeps_the_lock(tmp_path: Path) -> None:
    path, pipe = tmp_path / "cycle.lock", tmp_path / "pipe"
    daemon = ordering(path, pipe, "waits")
    try:
        daemon.send_signal(signal.SIGKILL)
        daemon.wait(300)
        assert not asyncio.run(_is_free(path))
    finally:
        # It opens once the command reads from it.
        pipe.write_text("go on\n")
    assert asyncio.run(taken(path, 60.0)), "the order is over"
    assert daemon.stdout is not None
    daemon.stdout.close()


def test_whoever_lives_lets_go_whatever_its_orders_do(tmp_path: Path) -> None:
    path, pipe = tmp_path / "cycle.lock", tmp_path / "pipe"
    daemon = ordering(path, pipe, "lets go")
    assert daemon.stdout is not None
    try:
        assert daemon.stdout.readline() == "let go\n"
        assert asyncio.run(_is_free(path)), "though the order has not ended"
        assert daemon.poll() is None
    finally:
        pipe.write_text("go on\n")
        daemon.communicate(timeout=300)


def holder(path: Path) -> subprocess.Popen[str]:
    made = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert made.stdout is not None
    assert made.stdout.readline() == "held\n"
    return made


async def taken(path: Path, wait_s: float) -> bool:
    async with CycleLock(path).taken_async(wait_s):
        return True


def test_only_one_has_it_and_death_gives_it_back(tmp_path: Path) -> None:
    path = tmp_path / "cycle.lock"
    other = holder(path)
    try:
        with pytest.raises(SnapshotError, match=r"another process has held .*cycle\.lock for 0 s") as caught:
            asyncio.run(taken(path, 0.0))
        assert "fuser" in caught.value.cure
        with pytest.raises(SnapshotError, match="another process"), CycleLock(path).taken(0.0):
            pass
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate(timeout=300)
    assert asyncio.run(taken(path, 60.0))
    with CycleLock(path).taken(0.0):
        assert not asyncio.run(_is_free(path)), "also within one process"
    assert asyncio.run(_is_free(path))


async def _is_free(path: Path) -> bool:
    try:
        return await taken(path, 0.0)
    except SnapshotError:
        return False


def test_a_folder_that_is_not_ours_is_told(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="No such file"), CycleLock(tmp_path / "no" / "lock").taken(0.0):
        pass


def test_a_disk_that_can_no_longer_be_written_keeps_nobody_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel mounts a bad disk again for reading only."""
    path = tmp_path / "cycle.lock"
    path.touch()
    real = os.open

    def read_only(name: Path, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, "Read-only file system")
        return real(name, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    with CycleLock(path).taken(0.0), pytest.raises(SnapshotError), CycleLock(path).taken(0.0):
        pass
