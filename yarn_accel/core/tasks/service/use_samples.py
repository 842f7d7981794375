"""What workers and their nodes did over time, from their reports: the last hour, in steps of five seconds.

Cores and GPUs in use count from one report to the next; bytes per second are those of the time before a
report. A step in which a worker did not report for long is a gap.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterator
from typing import Any

from yarn_accel.core.tasks.values import ResourceId, ResourceSpec

STEP_S = 5.0
N_STEPS = 720
#: Of which samples are kept: those that reported last.
MAX_WORKERS = 1000
_MAX_GAP_S = 15.0
_COLUMNS = ("cores", "gpus", "bytes_per_s")


class _Column:
    """One value over time: in each step the sum of value times seconds, and these seconds."""

    def __init__(self) -> None:
        self._sums = array("f", bytes(4 * N_STEPS))
        self._seconds = array("f", bytes(4 * N_STEPS))

    def clear(self, step: int) -> None:
        self._sums[step % N_STEPS] = self._seconds[step % N_STEPS] = 0.0

    def add(self, step: int, seconds: float, value: float) -> None:
        self._sums[step % N_STEPS] += seconds * value
        self._seconds[step % N_STEPS] += seconds

    def mean(self, step: int) -> float | None:
        seconds = self._seconds[step % N_STEPS]
        return self._sums[step % N_STEPS] / seconds if seconds else None

    def sum_per_s(self, step: int) -> float:
        return self._sums[step % N_STEPS] / STEP_S


class _Series:
    """Cores, GPUs and bytes per second over time."""

    def __init__(self) -> None:
        self.columns = {name: _Column() for name in _COLUMNS}
        self.first = self.last = -1

    def open(self, step: int) -> bool:
        """Make this step one of those that are kept; False: it is too old."""
        if self.last < 0:
            self.first = self.last = step
            return True
        for new in range(max(self.last + 1, step - N_STEPS + 1), step + 1):
            for column in self.columns.values():
                column.clear(new)
        self.last = max(self.last, step)
        return step > self.last - N_STEPS

    def steps(self, n_steps: int) -> range:
        """The last steps, without the one that is not over."""
        return range(max(self.first, self.last - min(n_steps, N_STEPS - 1)), self.last)


class _WorkerUse:
    """The series of one worker, and what it had at its last report."""

    def __init__(self, spec: ResourceSpec) -> None:
        self.spec = spec
        self.series = _Series()
        self.at = -math.inf
        self.cores = 0
        self.gpus = 0


class UseSamples:
    """The series of all workers, and of all together."""

    def __init__(self) -> None:
        #: Those that reported last are the last.
        self._workers: dict[ResourceId, _WorkerUse] = {}
        self._all = _Series()

    def note(self, spec: ResourceSpec, at: float, cores: int, gpus: int, bytes_per_s: float | None) -> None:
        """A worker reported.

        Args:
            at: Unix time in seconds.
            cores: that its attempts occupy.
            gpus: the same.
            bytes_per_s: of its node; None: not measured.
        """
        worker = self._workers.pop(spec.resource, None) or _WorkerUse(spec)
        self._workers[spec.resource] = worker
        if len(self._workers) > MAX_WORKERS:
            del self._workers[next(iter(self._workers))]
        if 0 < at - worker.at <= _MAX_GAP_S:
            values = {"cores": worker.cores, "gpus": worker.gpus, "bytes_per_s": bytes_per_s}
            for step, seconds in _parts(worker.at, at):
                for series in (worker.series, self._all):
                    if series.open(step):
                        for name, value in values.items():
                            if value is not None:
                                series.columns[name].add(step, seconds, value)
        worker.spec, worker.at, worker.cores, worker.gpus = spec, at, cores, gpus

    def document(
        self, n_steps: int, max_workers: int, nodes: Collection[str] | None = None
    ) -> dict[str, Any]:
        """The last steps as JSON values; proportional to both numbers.

        ``all`` is the sum over all workers; ``workers`` are some of them: those that use most now. Each has
        ``from_at``, the Unix time of its first step, and a list of each column, None in gaps.

        Args:
            nodes: workers of others are left out; None: of none.
        """
        workers = [each for each in self._workers.values() if nodes is None or each.spec.node in nodes]
        if len(workers) > max_workers:
            workers.sort(key=lambda each: (-each.gpus, -each.cores, each.spec.resource))
        return {
            "step_s": STEP_S,
            "n_workers": len(workers),
            "all": _all_document(self._all, n_steps),
            "workers": {
                each.spec.resource: {**_about(each.spec), **_document(each.series, n_steps)}
                for each in sorted(workers[:max_workers], key=lambda each: each.spec.resource)
            },
        }


def _parts(start: float, end: float) -> Iterator[tuple[int, float]]:
    """The steps of a time, and the seconds in each."""
    step = int(start // STEP_S)
    while start < end:
        until = min(end, (step + 1) * STEP_S)
        yield step, until - start
        start, step = until, step + 1


def _about(spec: ResourceSpec) -> dict[str, Any]:
    bandwidth = spec.bandwidth_bytes_per_s
    return {
        "node": spec.node,
        "n_cores": spec.cores,
        "n_gpus": spec.gpus,
        "bandwidth_bytes_per_s": bandwidth,
    }


def _document(series: _Series, n_steps: int) -> dict[str, Any]:
    steps = series.steps(n_steps)
    columns = {
        name: [_rounded(column.mean(step)) for step in steps] for name, column in series.columns.items()
    }
    return {"from_at": steps.start * STEP_S, **columns}


def _all_document(series: _Series, n_steps: int) -> dict[str, Any]:
    steps = series.steps(n_steps)
    columns = {
        name: [_rounded(column.sum_per_s(step)) for step in steps] for name, column in series.columns.items()
    }
    return {"from_at": steps.start * STEP_S, **columns}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


class CoreSeconds:
    """Adds up cores times seconds, from worker to worker and from master to master."""

    def __init__(self) -> None:
        self._cores: dict[ResourceId, int] = {}
        self._sum = self._until_s = 0.0

    def resume(self, core_s: float, now_s: float) -> None:
        """Go on from what an earlier master had noted."""
        self._sum, self._until_s = core_s, now_s

    def at(self, now_s: float) -> float:
        """All until now, to the millisecond."""
        seconds = max(0.0, now_s - self._until_s)
        self._sum += seconds * sum(self._cores.values())
        self._until_s += seconds
        return round(self._sum, 3)

    def joined(self, worker: ResourceId, n_cores: int, now_s: float) -> None:
        """A worker is there from now on."""
        self.at(now_s)
        self._cores[worker] = n_cores

    def left(self, worker: ResourceId, now_s: float) -> None:
        """A worker that may have been there is gone."""
        self.at(now_s)
        self._cores.pop(worker, None)
