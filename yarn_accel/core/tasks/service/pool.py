"""How many workers there should be: as many as the tasks that could run now need, within limits.

A size grows at once. It shrinks by workers that have had nothing to do for a while, one after the other, so
nobody's attempts end for it.
"""

from __future__ import annotations

import math

from yarn_accel.core.tasks.records import TaskState, TaskWorker
from yarn_accel.core.tasks.service.commands import ReleaseWorker, WorkersWanted
from yarn_accel.core.tasks.service.events import WorkersAtRisk
from yarn_accel.core.tasks.service.journaled_table import JournaledTable
from yarn_accel.core.tasks.service.outbox import Outbox
from yarn_accel.core.tasks.service.settings import ServiceSettings, WorkerSize
from yarn_accel.core.tasks.values import AppSpec, FormDemand

#: Counting visits all applications and workers.
_INTERVAL_S = 0.25
_RUNNABLE = (TaskState.READY, TaskState.QUEUED, TaskState.RUNNING)


def slots(size: WorkerSize, spec: AppSpec, server_gpus: int = 0) -> int:
    """Tasks of an application that such a worker runs at once: on GPUs, and on the cores that are left.

    >>> from yarn_accel.core.tasks.values import AppId, Form
    >>> demands = {Form.CPU: FormDemand(), Form.GPU: FormDemand(gpus=1)}
    >>> slots(WorkerSize("large", cores=6, gpus=4, memory_bytes=0), AppSpec(AppId("a"), "a", 0, 1, demands))
    6

    Args:
        server_gpus: of a pipeline server that it may use.
    """
    left = [size.cores, size.gpus, server_gpus, size.memory_bytes]
    n_slots = 0
    for need in sorted(spec.demands.values(), key=_most_gpus_first):
        gpus = (0, need.gpus) if need.is_served else (need.gpus, 0)
        wants = (need.cores, *gpus, need.memory_bytes)
        n = min((have // want for have, want in zip(left, wants, strict=True) if want), default=0)
        n_slots += n
        left = [have - n * want for have, want in zip(left, wants, strict=True)]
    return n_slots


def _most_gpus_first(need: FormDemand) -> int:
    return -need.gpus


class Pool:
    """Orders and releases workers."""

    def __init__(self, settings: ServiceSettings, table: JournaledTable, outbox: Outbox) -> None:
        self._settings = settings
        self._table = table
        self._outbox = outbox
        self._next_s = 0.0
        self._ordered: tuple[tuple[str, int], ...] | None = None

    def give_back(self, event: WorkersAtRisk) -> None:
        """Release idle workers before YARN takes any: as many as it names, and those that it names first."""
        named = set(event.workers)
        workers = sorted(self._usable(), key=lambda worker: worker.id not in named)
        self._release_idle(workers, len(named), self._table.now_s)

    def adjust(self) -> None:
        """Order what is missing, release what is idle; some times a second at most."""
        now_s, sizes = self._table.now_s, self._settings.sizes
        if now_s < self._next_s:
            return
        self._next_s = now_s + _INTERVAL_S
        wanted = self._wanted()
        workers: dict[str, list[TaskWorker]] = {size.name: [] for size in sizes}
        for worker in self._usable():
            size = self._size_of(worker)
            if size is not None:
                workers[size.name].append(worker)
        counts = []
        for size in sizes:
            here = workers[size.name]
            n_spare = len(here) - wanted[size.name]
            limit_s = now_s - self._settings.idle_s
            n_released = self._release_idle(here, n_spare, limit_s) if n_spare > 0 else 0
            counts.append((size.name, max(wanted[size.name], len(here) - n_released)))
        if tuple(counts) != self._ordered:
            self._ordered = tuple(counts)
            self._outbox.put(WorkersWanted(self._ordered))

    def _usable(self) -> list[TaskWorker]:
        return [worker for worker in self._table.workers.values() if worker.is_usable]

    def _wanted(self) -> dict[str, int]:
        """Workers of each size for all tasks that could run now; each goes to the first size it fits."""
        sizes = self._settings.sizes
        workers = dict.fromkeys((size.name for size in sizes), 0.0)
        for app in self._table.apps.values():
            n_tasks = float(sum(app.counts[state] for state in _RUNNABLE))
            for size in sizes:
                n_slots = slots(size, app.spec, self._table.servers.most_gpus)
                if n_slots and n_tasks > 0:
                    taken = min(n_tasks / n_slots, size.max_workers - workers[size.name])
                    workers[size.name] += taken
                    n_tasks -= taken * n_slots
        return {
            # Of what rounding left over no worker is made.
            size.name: min(max(math.ceil(workers[size.name] - 1e-9), size.min_workers), size.max_workers)
            for size in sizes
        }

    def _size_of(self, worker: TaskWorker) -> WorkerSize | None:
        spec = worker.spec
        sizes = [each for each in self._settings.sizes if (each.cores, each.gpus) == (spec.cores, spec.gpus)]
        return min(sizes, key=lambda size: abs(size.memory_bytes - spec.memory_bytes), default=None)

    def _release_idle(self, workers: list[TaskWorker], n_most: int, limit_s: float) -> int:
        idle = [worker for worker in workers if worker.is_idle and worker.busy_s <= limit_s][:n_most]
        for worker in idle:
            worker.is_leaving = True
            self._table.retire(worker)
            self._table.are_servers_due = True
            self._outbox.put(ReleaseWorker(worker.id))
        return len(idle)
