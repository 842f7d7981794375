"""Log lines in both forms, the lock, the checks of folders, the journal's files, figures."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.unit.torque.ports import held_port
from torque_sched.adapters.home import LockFile, check_folder, holder_of, pid_in
from torque_sched.adapters.journal import Journal, read_journal
from torque_sched.adapters.log_file import Event, LogFile, dialect_of
from torque_sched.adapters.metrics import Figures, serve_figures
from torque_sched.errors import RecordError, StartupError

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
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
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
