"""Attempts on a real worker: real processes, a real channel."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.worker.conftest import WorkerSite
from yarn_accel.core.tasks.attempt_orders import InputSplit, attempt_id
from yarn_accel.core.tasks.values import FormDemand
from yarn_accel.core.tasks.worker_messages import AttemptOutcome, AttemptPhase, Counter

pytestmark = pytest.mark.usefixtures("w1")

MAPPER = """
import os, sys
sys.stderr.write("reporter:counter:g,read,2\\nreporter:counter:g,read,3\\nreporter:counter:bad,line\\n")
sys.stderr.write("reporter:status:at\\x1b work\\njust a word")
for line in sys.stdin:
    print("[" + line.rstrip("\\n") + "]")
print(os.environ["mapreduce_task_id"], os.environ["map_input_start"], end="")
"""


def python(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program)


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    return False


def pid_in(path: Path) -> int:
    """The number that a command writes there."""
    while not path.exists() or not path.read_text().endswith("\n"):
        time.sleep(0.01)
    return int(path.read_text())


def until_gone(*pids: int) -> None:
    while any(map(is_running, pids)):
        time.sleep(0.01)


def test_a_streaming_mapper_runs_unchanged(site: WorkerSite) -> None:
    order = site.task(*python(MAPPER), text="one\ntwo\r\nthree")
    end = site.master.run(order)
    names = order.attempt.split("_")
    assert end.outcome is AttemptOutcome.DONE, end
    task = f"task_1_{names[2]}_m_000003"
    assert site.outputs(order) == {"part-m-00003": f"[one]\n[two]\n[three]\n{task} 0\n"}
    assert end.counters == (Counter("g", "read", 5),)
    assert site.log(order) == "reporter:counter:bad,line\njust a word\n"
    assert end.measured is not None
    assert end.measured.read_bytes == len("one\ntwo\nthree\n")
    assert end.measured.read_s + end.measured.compute_s <= end.wall_s + 1e-6
    assert not Path(order.output.folder[7:], "_temporary", order.attempt).exists()


def test_a_mapper_sees_the_environment_of_streaming_and_no_secret(site: WorkerSite) -> None:
    program = "import os\nfor each in sorted(os.environ.items()): print(*each, sep='=')"
    order = site.task(*python(program), text="", environment=(("MINE", "a b"),), demand=FormDemand(1, 1))
    assert site.master.run(order).outcome is AttemptOutcome.DONE
    found = dict(line.split("=", 1) for line in site.outputs(order)["part-m-00003"].splitlines())
    assert found["mapreduce_task_attempt_id"] == found["mapred_task_id"] == order.attempt
    assert found["mapreduce_map_input_file"] == order.input.uri
    assert found["mapreduce_task_output_dir"].endswith(f"/out/_temporary/{order.attempt}")
    assert found["MINE"] == "a b"
    assert found["CUDA_VISIBLE_DEVICES"] == "0"
    assert found["PWD"].endswith(order.attempt)
    assert not [name for name in found if "TOKEN" in name or "KEY" in name or name == "PYTHONPATH"]


def test_each_task_has_its_own_gpu_and_a_task_without_sees_none(site: WorkerSite, tmp_path: Path) -> None:
    program = f"import os, time\nopen({str(tmp_path / 'up')!r} + os.environ['CUDA_VISIBLE_DEVICES'], 'w')\n"
    program += f"while len(os.listdir({str(tmp_path)!r})) < 3: time.sleep(0.01)\n"
    orders = [site.task(*python(program), demand=FormDemand(1, gpus)) for gpus in (1, 1, 0)]
    site.master.list(*orders)
    assert {site.master.end_of(each.attempt).outcome for each in orders} == {AttemptOutcome.DONE}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["up", "up0", "up1"]


def test_what_fails_says_why(site: WorkerSite) -> None:
    order = site.task(*python("import sys; print(1); sys.exit('no such model')"), text="x\n")
    end = site.master.run(order)
    assert (end.outcome, end.exit_status) == (AttemptOutcome.FAILED, 1)
    assert end.error == "exit status 1: no such model"
    assert site.outputs(order) == {}
    end = site.master.run(site.task("./mapper.py"))
    assert end.error.startswith("./mapper.py: there is no such program")
    missing = site.task("cat", input=InputSplit(f"file://{site.folder}/missing", 0, 9))
    assert "missing: there is no such file" in site.master.run(missing).error
    end = site.master.run(site.task(*python("import os; os.kill(os.getpid(), 11)")))
    assert (end.exit_status, end.error) == (-11, "signal 11 ended it")
    assert site.outputs(missing) == {}


def test_a_mapper_need_not_read_everything(site: WorkerSite) -> None:
    order = site.task("head", "-n1", text="a\n" * 2_000_000)
    assert site.master.run(order).outcome is AttemptOutcome.DONE
    assert site.outputs(order) == {"part-m-00003": "a\n"}


def test_side_files_and_files_of_the_job(site: WorkerSite, tmp_path: Path) -> None:
    script = tmp_path / "mapper.sh"
    script.write_text('#!/bin/sh\ncat > "${mapreduce_task_output_dir#file://}/side"; pwd >&2\n')
    order = site.task("./mapper.sh", text="x\n", files=(("mapper.sh", f"file://{script}"),))
    assert site.master.run(order).outcome is AttemptOutcome.DONE
    assert site.outputs(order) == {"part-m-00003": "", "side": "x\n"}
    while (Path(site.log(order).strip()) / "mapper.sh").exists():  # its end is reported first
        time.sleep(0.01)


def test_a_log_is_bounded_and_has_its_begin_and_its_end(site: WorkerSite) -> None:
    program = "import sys\nfor i in range(100000): print(i, file=sys.stderr)"
    order = site.task(*python(program), output=False)
    assert site.master.run(order).outcome is AttemptOutcome.DONE
    log = site.log(order)
    assert len(log) < 4200
    assert log.startswith("0\n1\n")
    assert log.endswith("\n99998\n99999\n")
    assert "bytes are left out here" in log


def test_of_two_attempts_one_commits(site: WorkerSite, tmp_path: Path) -> None:
    first = site.task("sh")
    pids = site.run_two_attempts(first, tmp_path)
    (output,) = site.outputs(first).values()
    assert output.strip() in pids
    job = int(first.attempt.split("_")[2])
    third = replace(first, attempt=attempt_id(1, job, 3, 2), argv=("false",))
    end = site.master.run(third)
    assert (end.outcome, end.was_done_before) == (AttemptOutcome.DONE, True)


def test_what_a_command_leaves_is_ended_with_it(site: WorkerSite, tmp_path: Path) -> None:
    same, other = tmp_path / "same", tmp_path / "other"
    script = f"(sleep 600 & echo $! > {same}); setsid sh -c 'echo $$ > {other}; exec sleep 600' & sleep 0.2"
    assert site.master.run(site.task("sh", "-c", script)).outcome is AttemptOutcome.DONE
    assert not is_running(pid_in(same))
    assert not is_running(pid_in(other))


def test_what_a_command_reads_by_itself_is_measured(site: WorkerSite, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(3_000_000))
    order = site.task("sh", "-c", f"cat {tmp_path}/data > /dev/null; cat {tmp_path}/data | wc -c")
    end = site.master.run(order)
    assert end.measured is not None
    assert 6_000_000 <= end.measured.read_bytes < 9_100_000
    assert end.measured.read_s + end.measured.compute_s == pytest.approx(end.wall_s)


def test_a_daemon_lives_as_long_as_its_own_attempt(site: WorkerSite, tmp_path: Path) -> None:
    daemon = tmp_path / "daemon"
    script = f"(setsid sh -c 'echo $$ > {daemon}; exec sleep 600' &)"
    order = site.task("sh", "-c", f"{script}; while [ ! -e {tmp_path}/end ]; do sleep 0.05; done", text="x\n")
    site.master.list(order)
    pid = pid_in(daemon)
    assert site.master.run(site.task("true")).outcome is AttemptOutcome.DONE
    assert is_running(pid)
    (tmp_path / "end").touch()
    assert site.master.end_of(order.attempt).outcome is AttemptOutcome.DONE
    assert not is_running(pid)


def test_a_stopped_child_ends_by_its_limit(site: WorkerSite, tmp_path: Path) -> None:
    script = f"trap 'exit 0' TERM; echo $$ > {tmp_path}/pid; kill -STOP $$; sleep 600"
    order = site.task("sh", "-c", script, time_limit_s=0.5)
    end = site.master.run(order)
    assert (end.outcome, end.error) == (AttemptOutcome.TIMED_OUT, "it did not end within its 0.5 s")
    assert not is_running(pid_in(tmp_path / "pid"))
    assert site.outputs(order) == {}


def test_a_silent_child_ends_by_its_limit(site: WorkerSite) -> None:
    end = site.master.run(site.task("sleep", "600", silence_limit_s=0.5))
    assert (end.outcome, end.error) == (
        AttemptOutcome.TIMED_OUT,
        "it read, wrote and reported nothing for 0.5 s",
    )


def test_memory_of_all_processes_is_watched(site: WorkerSite) -> None:
    script = f"sleep 600 | {sys.executable} -c 'x = b\"x\" * 200000000; input()'"
    end = site.master.run(site.task("sh", "-c", script, demand=FormDemand(1, 0, 100_000_000)))
    assert end.outcome is AttemptOutcome.OUT_OF_MEMORY
    assert "100000000 are its limit" in end.error


def test_what_is_dropped_is_ended_and_commits_nothing(site: WorkerSite, tmp_path: Path) -> None:
    script = f"trap 'echo late; exit 0' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.05; done"
    order = site.task("sh", "-c", script)
    site.master.list(order)
    pid = pid_in(tmp_path / "pid")
    site.master.drop(order.attempt)
    end = site.master.end_of(order.attempt)
    # It says "late" and ends with 0; on a busy machine SIGKILL may come before it does.
    assert (end.outcome, end.exit_status in (None, -signal.SIGKILL)) == (AttemptOutcome.CANCELLED, True)
    assert not is_running(pid)
    assert site.outputs(order) == {}
    site.master.until(lambda: site.master.phase(order.attempt) is None)


def test_a_full_worker_queues_and_gives_back(site: WorkerSite) -> None:
    wide = [site.task("sleep", "600", demand=FormDemand(4)) for _ in range(2)]
    site.master.list(*wide)
    site.master.until(lambda: site.master.phase(wide[1].attempt) is AttemptPhase.QUEUED)
    site.master.drop(wide[1].attempt)
    assert site.master.end_of(wide[1].attempt).outcome is AttemptOutcome.TAKEN_BACK
    site.master.drop(wide[0].attempt)
    assert site.master.end_of(wide[0].attempt).outcome is AttemptOutcome.CANCELLED


def test_a_reply_that_is_no_order_changes_nothing(site: WorkerSite) -> None:
    order = site.task("sh", "-c", "read x; echo $x", text="fine\n")
    site.master.bad_reply = {"version": 1, "number": [1, 10**30]}
    try:
        site.master.list(order)
        site.master.until(lambda: "number" in site.master.reports["w1"].problem)
    finally:
        site.master.bad_reply = None
    assert site.master.end_of(order.attempt).outcome is AttemptOutcome.DONE
    site.master.until(lambda: not site.master.reports["w1"].problem)


def test_a_stopped_worker_goes_on_and_doubles_nothing(site: WorkerSite, w1: subprocess.Popen[bytes]) -> None:
    order = site.task("sh", "-c", "cat; echo ran >> ../../../ran; sleep 0.3", text="x\n")
    ran = site.folder / "ran"
    site.master.list(order)
    while not ran.exists():
        time.sleep(0.01)
    w1.send_signal(signal.SIGSTOP)
    time.sleep(0.5)
    w1.send_signal(signal.SIGCONT)
    assert site.master.end_of(order.attempt).outcome is AttemptOutcome.DONE
    assert ran.read_text() == "ran\n"
    assert site.outputs(order) == {"part-m-00003": "x\n"}


def test_the_node_and_its_io_are_reported(site: WorkerSite) -> None:
    report = site.master.until(lambda: (r := site.master.reports["w1"]).io is not None and r)
    assert (report.node, report.cores, report.gpus) == ("w1", 4, 2)
    assert report.io.bytes_per_s >= 0
