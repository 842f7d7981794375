"""Whatever is killed, nothing of an attempt survives that was not committed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.integration.worker.conftest import WorkerSite
from tests.integration.worker.test_attempts import is_running, pid_in, until_gone
from tests.integration.worker.test_functions import run
from yarn_accel.core.tasks.attempt_orders import AttemptOrder

DAEMONIZED = (
    "trap '' TERM; sleep 600 & echo $! > {0}/same; (setsid sh -c 'echo $$ > {0}/other; exec sleep 600' &) ; "
    "echo $PPID > {0}/guard; echo output; cat; while :; do sleep 1; done"
)


def started(site: WorkerSite, folder: Path) -> tuple[AttemptOrder, list[int]]:
    """An attempt that runs, and the processes it has started."""
    order = site.task("sh", "-c", DAEMONIZED.format(folder), text="x\n")
    site.master.list(order)
    return order, [pid_in(folder / "same"), pid_in(folder / "other")]


def test_kill_9_of_the_worker_leaves_no_process_and_no_output(site: WorkerSite, tmp_path: Path) -> None:
    worker = site.start("killed")
    order, pids = started(site, tmp_path)
    guard = pid_in(tmp_path / "guard")
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    until_gone(*pids, guard)
    assert site.outputs(order) == {}
    site.master.drop(order.attempt)


def test_sigterm_ends_the_worker_and_all_it_runs(site: WorkerSite, tmp_path: Path) -> None:
    worker = site.start("ended")
    order, pids = started(site, tmp_path)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    until_gone(*pids)
    assert site.outputs(order) == {}
    site.master.drop(order.attempt)


def test_kill_9_of_the_guard_ends_the_worker_and_all_it_runs(site: WorkerSite, tmp_path: Path) -> None:
    worker = site.start("unguarded")
    order, pids = started(site, tmp_path)
    os.kill(pid_in(tmp_path / "guard"), signal.SIGKILL)
    assert worker.wait() == 1
    until_gone(*pids)
    assert site.outputs(order) == {}
    site.master.drop(order.attempt)


def test_kill_9_of_the_worker_ends_processes_that_wait_for_calls(site: WorkerSite) -> None:
    worker = site.start("killed-idle")
    pid = run(site, "pid", app="killed-idle")
    assert is_running(pid)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    until_gone(pid)
