"""What one task costs at a worker of the task service, beside its own work: functions in processes that stay.

A real worker, and a master that only lists the next attempt when one has ended: what the real master decides
and writes to its journal is not in it. All stamps are of one machine's monotonic clock.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import ROOT
from benchmarks.result import Report, Row, measured, observed
from tests.integration.worker.task_master import TaskMaster, start_worker
from yarn_accel.core.tasks.attempt_orders import AttemptId, AttemptOrder, FunctionCall, attempt_id
from yarn_accel.core.tasks.values import AppId, Form, FormDemand, TaskId

NAME = "w1"
WARM_UP = 20


def stamps(work_s: float = 0.0) -> list[float]:
    """The function: when it began, and when it ended."""
    began_s = time.monotonic()
    if work_s:
        time.sleep(work_s)
    return [began_s, time.monotonic()]


class _ChainMaster(TaskMaster):
    """Lists the next attempt of a chain with the reply to the first report of the last one's end."""

    def __init__(self, n_tasks: int, n_chains: int, work_s: float) -> None:
        self._left = n_tasks
        self._n_chains = n_chains
        self._arguments = json.dumps([work_s])
        self._n_listed = 0
        #: When an attempt was listed, when its end was there, and which attempt it followed.
        self.listed_s: dict[AttemptId, float] = {}
        self.ended_s: dict[AttemptId, float] = {}
        self.after: dict[AttemptId, AttemptId] = {}
        super().__init__()

    def begin(self) -> None:
        """List the first of each chain."""
        orders = [self._next() for _ in range(self._n_chains)]
        now_s = time.monotonic()
        self.listed_s.update((each.attempt, now_s) for each in orders)
        self.list(*orders)

    def ended(self, attempt: AttemptId, received_s: float) -> None:
        """List what follows."""
        self.ended_s[attempt] = received_s
        if self._left > 0:
            order = self._next()
            self._listed[order.attempt] = order
            self.after[order.attempt] = attempt
            self.listed_s[order.attempt] = time.monotonic()

    def _next(self) -> AttemptOrder:
        self._left -= 1
        self._n_listed += 1
        return AttemptOrder(
            attempt_id(1, 1, self._n_listed, 0),
            AppId("overhead"),
            TaskId(f"overhead/{self._n_listed}"),
            Form.CPU,
            (),
            FormDemand(1),
            environment=(("PYTHONPATH", str(ROOT)),),
            function=FunctionCall("benchmarks.task_overhead:stamps", self._arguments),
        )

    def rows(self, what: str) -> list[Row]:
        """The figures of a run, without its first attempts."""
        times = {each: json.loads(end.result) for each, end in self.ends.items()}
        kept = sorted(self.listed_s)[WARM_UP * self._n_chains :]
        starts = [1e3 * (times[each][0] - self.listed_s[each]) for each in kept]
        ends = [1e3 * (self.ended_s[each] - times[each][1]) for each in kept]
        gaps = [1e3 * (times[each][0] - times[self.after[each]][1]) for each in kept]
        whole_s = max(times[each][1] for each in kept) - min(times[each][0] for each in kept)
        return [
            _row(f"{what}: end of a function to its report at the master", ends),
            _row(f"{what}: an order's reply to the function's start", starts),
            _row(f"{what}: end of a function to its successor's start", gaps, goal="<= 10"),
            observed(f"{what}: calls through one worker", len(kept) / whole_s, "1/s", note=_load()),
        ]


def _load() -> str:
    return f"load {os.getloadavg()[0]:.1f}"


def _row(what: str, values: list[float], goal: str = "") -> Row:
    p99 = statistics.quantiles(values, n=100)[98]
    return measured(what, values, "ms", goal=goal, note=f"p99 {p99:.2f} ms; {_load()}")


def _measure(folder: Path, n_tasks: int, n_slots: int, work_s: float, what: str) -> list[Row]:
    master = _ChainMaster(n_tasks, n_slots, work_s)
    worker = start_worker(folder, NAME, master.port, cwd=ROOT, cores=n_slots)
    try:
        master.until(lambda: NAME in master.reports)
        master.worker = NAME
        master.begin()
        master.until(lambda: len(master.ends) >= n_tasks)
        return master.rows(what)
    finally:
        worker.terminate()
        worker.wait()
        master.close()


def run(quick: bool, report: Callable[[str], None], record: Report) -> None:
    """One slot with short tasks, two slots with short tasks, and with tasks of 50 ms."""
    n_tasks = 300 if quick else 2000
    with tempfile.TemporaryDirectory(prefix="task-overhead-") as folder:
        for n_slots, work_s in ((1, 0.0), (2, 0.0), (2, 0.05)):
            what = f"{n_slots} slot{'s' * (n_slots > 1)}, functions of {work_s * 1e3:.0f} ms"
            report(what)
            record.add(_measure(Path(folder, f"{n_slots}-{work_s}"), n_tasks, n_slots, work_s, what))
