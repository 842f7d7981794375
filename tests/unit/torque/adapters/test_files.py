"""Log lines in both forms, the lock, the checks of folders, the journal's files, figures."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fixtures.ports import held_port
from torque_sched.adapters.home import LockFile, check_folder, holder_of, path_elements, pid_in
from torque_sched.adapters.journal import Journal, read_journal
from torque_sched.adapters.log_file import Event, LogFile, dialect_of
from torque_sched.adapters.metrics import Figures, serve_figures
from torque_sched.adapters.settings_file import read_settings
from torque_sched.adapters.state_file import read_plain, read_trusted, write_atomic
from torque_sched.errors import ConfigError, RecordError, StartupError
from torque_sched.learn.schema import open_file
from torque_sched.learn.store import Store

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


@pytest.mark.parametrize("is_named", [False, True], ids=["at midnight", "by its name"])
def test_a_log_that_could_not_be_opened_again_is_opened_later(tmp_path: Path, is_named: bool) -> None:
    now, folder = [AT_S], tmp_path / "sched_logs"
    log = LogFile(
        tmp_path if is_named else folder, folder / "sched" if is_named else None, clock=lambda: now[0]
    )
    folder.rename(tmp_path / "gone")
    folder.touch()
    now[0] += 86400
    if is_named:
        with pytest.raises(StartupError):
            log.reopen()
    log.record(Event.SCHED, "Job", "1.head", "lost")
    folder.unlink()
    log.record(Event.SCHED, "Job", "2.head", "told")
    assert lines_of(folder)[-1].endswith("2.head;told")


HOLD = """
import sys
from pathlib import Path
from torque_sched.adapters.home import LockFile, holder_of
LockFile(Path(sys.argv[1])).take()
print("taken", flush=True)
sys.stdin.read()
"""


def elsewhere(path: Path) -> subprocess.Popen[str]:
    """Another process that takes a lock and has it until its standard input ends."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-c", HOLD, str(path)], text=True, **pipes)


def test_the_kernel_tells_who_has_the_lock_of_which_there_is_one(tmp_path: Path) -> None:
    """Whatever the file says, which may be of a process long gone, or empty on a full disk."""
    path = tmp_path / "sched.lock"
    assert holder_of(path) == 0
    path.write_text("1\n\0")
    assert holder_of(path) == 0
    with elsewhere(path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "taken\n"
        assert path.read_bytes() == f"{holder.pid}\n\0".encode()
        assert pid_in(path) == holder.pid
        path.write_text("")
        assert holder_of(path) == holder.pid
        with pytest.raises(StartupError, match=f"another scheduler running .process {holder.pid}"):
            LockFile(path).take()
        holder.communicate("")
    assert holder_of(path) == 0
    assert holder_of(path / "below") is None


def test_a_full_disk_does_not_keep_it_from_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    lock = LockFile(tmp_path / "sched.lock")
    lock.take()
    assert "another scheduler running" in elsewhere(tmp_path / "sched.lock").communicate("")[1]
    lock.release()
    assert elsewhere(tmp_path / "sched.lock").communicate("")[0] == "taken\n"


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
    read = list(read_journal(tmp_path))
    assert [line["number"] for line in read if isinstance(line, dict)] == numbers
    (damaged,) = (line for line in read if isinstance(line, RecordError))
    assert f"{newest}, line 1" in str(damaged)


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


def test_figures_are_what_prometheus_reads() -> None:
    """On a port that is held for it, so that nobody else is given it."""
    figures = Figures()
    figures.cycle(0.3, 0.1, {"started": 2, "not-now": 1}, {"start": 3}, {"no-free-slots": 5})
    figures.phases({"look": 0.004})
    figures.failure()
    figures.promised(7, {"made": 3, "node-failed": 1}, [(100.0, -20.0), (0.0, 0.0)])
    figures.promised(6, {"made": 1}, [])
    figures.prediction_errors = {"cpu": (0.1, 0.3, True)}
    with ExitStack() as stack:
        port = held_port(stack)
        stack.callback(serve_figures(figures, "127.0.0.1", port))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
    told = {
        (sample.name.removeprefix("torque_sched_"), *sorted(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }
    wanted = {
        ("cycles_total",): 1, ("snapshot_failures_total",): 1, ("starts_total", "not-now"): 1,
        ("waiting_jobs", "no-free-slots"): 5, ("cycle_seconds_bucket", "0.2"): 0,
        ("cycle_seconds_bucket", "0.5"): 1, ("guaranteed_starts",): 6,
        ("cycle_phase_seconds_bucket", "0.002", "look"): 0,
        ("cycle_phase_seconds_bucket", "0.005", "look"): 1,
        ("guaranteed_start_changes_total", "made"): 4, ("guaranteed_start_changes_total", "node-failed"): 1,
        ("guaranteed_start_late_seconds_bucket", "60.0", "first"): 1,
        ("guaranteed_start_late_seconds_bucket", "300.0", "first"): 2,
        ("guaranteed_start_late_seconds_sum", "last"): 0, ("guaranteed_start_early_seconds_sum", "last"): 20,
        ("prediction_error", "cpu", "last"): 0.3, ("prediction_drift", "cpu"): 1,
    }  # fmt: skip
    assert {name: told[name] for name in wanted} == wanted


# Root works in folders of other accounts: nothing that such an owner put there is followed or believed.


NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as somebody else")


def test_what_is_written_replaces_a_link_and_follows_none(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (tmp_path / "symlink").symlink_to(victim)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "hard link").hardlink_to(victim)
    for lure in ("symlink", "dangling", "hard link"):
        target = tmp_path / lure
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


@pytest.mark.parametrize("end", ["", "-journal", "-wal", "-shm"])
def test_a_history_that_is_a_fifo_is_refused_at_once(tmp_path: Path, end: str) -> None:
    path = tmp_path / "history.sqlite"
    if end:
        open_file(path).close()
    os.mkfifo(f"{path}{end}")
    (tmp_path / "link").symlink_to(tmp_path / "new")
    for refused in (path, tmp_path / "link"):
        for opened in (open_file, Store.read_only):
            with pytest.raises(StartupError, match="is no file"):
                opened(refused)
    assert not (tmp_path / "new").exists(), "nothing is made where a link leads"


def test_a_long_file_is_not_read_and_no_fifo_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    assert read_trusted(path) == "text"
    path.write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(OSError, match="longer than"):
        read_trusted(path)
    path.unlink()
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


ACT = "from torque_sched.adapters.home import act_as_owner; act_as_owner(Path(sys.argv[1]))"


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
