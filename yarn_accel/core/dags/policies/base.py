"""What all policies for DAGs share: a plan over queues of machines, and the orders that make it so.

A policy plans in `plan_tasks`. The first tasks of each planned queue lie at the machine's worker, so the rest
can be planned anew without an order. `EnqueueTask` and `TakeBackTask` are the differences between what lies
there and what should.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from yarn_accel.core.dags.events import DagCancelled, DagEvent, DagPaused, DagSubmitted, MachineJoined
from yarn_accel.core.dags.model import Machine
from yarn_accel.core.dags.policies.options import DagPolicyOptions
from yarn_accel.core.dags.state import DagState, DagTaskRecord, DagTaskState, MachineRecord
from yarn_accel.core.dags.timeline import Timeline
from yarn_accel.core.tasks.commands import EnqueueTask, TakeBackTask, TaskCommand
from yarn_accel.core.tasks.events import Decide, ResourceLeft, TaskEnded, TaskStarted
from yarn_accel.core.tasks.values import Form

_MOST_SHOWN = 6
_TO_START = (DagTaskState.IN_POOL, DagTaskState.WAITS)


class DagPolicy:
    """Plans each task of the pool onto a machine; equal events give equal plans."""

    name: ClassVar[str]
    #: The settings that it takes: fields of `DagPolicyOptions`.
    settings: ClassVar[tuple[str, ...]] = ("queue_depth",)

    def __init__(self, bandwidth_bytes_per_s: float, options: DagPolicyOptions | None = None) -> None:
        self.options = options or DagPolicyOptions()
        self.state = DagState(bandwidth_bytes_per_s)
        self.timeline: Timeline[DagTaskRecord] = Timeline(self.state.free_s(0.0))
        self._hosts: tuple[MachineRecord, ...] = ()
        #: How often a task went from one machine's queue to another's.
        self.n_moved = 0
        #: False where plans do not lie at machines: who drives this counts what leaves their queues.
        self.counts_moves = True

    def apply(self, event: DagEvent) -> tuple[TaskCommand, ...]:
        """Take one fact in; commands come from `Decide` alone, those that take back first."""
        if isinstance(event, Decide):
            return tuple(self._decide(event.now_s))
        if isinstance(event, DagSubmitted):
            self.state.submit(event)
        elif isinstance(event, DagCancelled):
            self.state.cancel(event)
        elif isinstance(event, DagPaused):
            self.state.pause(event)
        elif isinstance(event, MachineJoined):
            self.state.join(event)
        elif isinstance(event, ResourceLeft):
            self.state.leave(event)
        elif isinstance(event, TaskStarted):
            self.state.start(event)
        elif isinstance(event, TaskEnded):
            self.state.end(event)
        return ()

    def plan_tasks(self, now_s: float) -> None:
        """Make `timeline` what is planned from now on."""
        raise NotImplementedError

    def reason(self, task: DagTaskRecord, from_s: float = 0.0) -> str:
        """One line for a task's owner: why it is planned where it is; seconds are those after `from_s`."""
        dag = task.dag
        finish_s = task.finish_s - from_s
        n_known = len(finish_s) - int(np.isnan(finish_s).sum())
        best = finish_s.argsort(kind="stable")[: min(_MOST_SHOWN, n_known)].tolist()
        machines = self.state.machines
        shown = ", ".join(f"{machines[at].name} {finish_s.item(at):.6g}" for at in best)
        if len(best) < n_known:
            shown += f" and {n_known - len(best)} later"
        parts = [
            f"rank {task.rank:.6g}",
            f"class {dag.priority_class.word}",
            f"SD {dag.slowdown:.3f}",
            f"finish by machine: {shown}",
        ]
        return "; ".join([*parts, task.note] if task.note else parts)

    def validate(self) -> None:
        """Raise AssertionError where the state or the plan contradicts itself; for tests."""
        self.state.validate()
        planned = [task for queue in self.timeline.queues for task in queue]
        assert len(planned) == len(set(map(id, planned)))
        assert {task.task for task in self.state.pool()} <= {task.task for task in planned} or (
            not self.state.machines
        )

    # One decision

    def _decide(self, now_s: float) -> list[TaskCommand]:
        self.admit(now_s)
        if not self.state.machines:
            return []
        self.plan_tasks(now_s)
        self.state.store_plan()
        return self._publish()

    def admit(self, now_s: float) -> None:
        """Take in what arrived: the first part of a decision, and all of one that is replayed."""
        self.state.admit(now_s)
        self.note_entered()

    def note_entered(self) -> None:
        """Note what is new in the pool."""
        self.state.entered.clear()

    def _publish(self) -> list[TaskCommand]:
        """Orders by which the workers' queues become the beginnings of the planned ones."""
        depth = self.options.queue_depth
        taken: list[TaskCommand] = []
        put: list[TaskCommand] = []
        for host, queue in zip(self.state.machines, self.timeline.queues, strict=True):
            wanted = queue[:depth]
            if wanted == host.published:
                continue
            n_same = 0
            for old, new in zip(host.published, wanted, strict=False):
                if old is not new:
                    break
                n_same += 1
            taken += (TakeBackTask(task.task, host.name, "planned anew") for task in host.published[n_same:])
            for position, task in enumerate(wanted[n_same:], n_same):
                if task.last_queue is not host:
                    if task.last_queue is not None and self.counts_moves:
                        task.n_moves += 1
                        self.n_moved += 1
                        task.note = "; ".join(
                            filter(None, (task.note, f"taken back from {task.last_queue.name}"))
                        )
                    task.last_queue = host
                put.append(EnqueueTask(task.task, host.name, Form.CPU, position, self.reason(task)))
            host.published = wanted
        return taken + put

    def machine_plans(self) -> Iterator[tuple[MachineRecord, list[DagTaskRecord]]]:
        """The machines that are there, and what is planned on each; some of it may have started."""
        for host, queue in zip(self._hosts, self.timeline.queues, strict=True):
            if host.column >= 0:
                yield host, queue

    # A plan that is kept

    def plan_document(self) -> dict[str, Any]:
        """The plan as JSON: after the same facts, `restore_plan` makes a new policy go on from there."""
        return {
            "n_moved": self.n_moved,
            "queues": {
                host.name: [[task.task, task.start_s, task.end_s] for task in queue]
                for host, queue in self.planned()
            },
            "published": {host.name: [task.task for task in host.published] for host in self.state.machines},
            # Tasks that wait for parents may have been in queues, too, and of machines that have left since.
            "moves": {
                task.task: [task.n_moves, last and last.name, last in self.state.machines, task.is_overdue]
                for dag in self.state.dags.values()
                for task in dag.tasks
                if (last := task.last_queue) or task.is_overdue
            },
        }

    def restore_plan(self, document: Mapping[str, Any]) -> None:
        """Go on from a plan of `plan_document`."""
        self.n_moved = document["n_moved"]
        self._hosts = tuple(self.state.machines)
        self.timeline = Timeline(self.state.free_s(0.0))
        by_name = {host.name: host for host in self.state.machines}
        for name, queue in document["queues"].items():
            host = by_name[name]
            tasks = [self.state.task(task) for task, _, _ in queue]
            for task, (_, start_s, end_s) in zip(tasks, queue, strict=True):
                task.host, task.start_s, task.end_s = host, start_s, end_s
                task.seconds = task.dag.seconds.item(task.number, host.column)
                task.finish_s = np.full(len(self._hosts), np.nan)
                task.finish_s[host.column] = end_s
            self.timeline.queues[host.column] = tasks
        for name, names in document["published"].items():
            by_name[name].published = [self.state.task(task) for task in names]
        for name, (n_moves, last, is_there, is_overdue) in document["moves"].items():
            task = self.state.task(name)
            task.n_moves, task.is_overdue = n_moves, is_overdue
            if last is not None:
                task.last_queue = by_name[last] if is_there else MachineRecord(Machine(last))
        self.state.store_plan()

    # For policies

    def open_timeline(self, now_s: float, overrun: float = 0.0) -> Timeline[DagTaskRecord]:
        """A timeline with what runs, and nothing planned."""
        self.timeline = Timeline(self.state.free_s(now_s), overrun)
        self._hosts = tuple(self.state.machines)
        return self.timeline

    def planned(self) -> list[tuple[MachineRecord, list[DagTaskRecord]]]:
        """What the last plan has that is still to start, of each machine that is still there."""
        return [
            (host, [each for each in queue if each.host is host and each.state in _TO_START])
            for host, queue in zip(self._hosts, self.timeline.queues, strict=True)
            if host.column >= 0
        ]

    def keep(self, queues: Iterable[tuple[MachineRecord, list[DagTaskRecord]]]) -> None:
        """Keep planned tasks where they are, in their order; later where what is before them takes longer."""
        for host, kept in queues:
            self.timeline.add_fixed(host.column, kept)

    def append(self, task: DagTaskRecord, only: int | None = None) -> None:
        """HEFT without insertion."""
        column = self.timeline.append(task, task.ready_s, task.row, task.finish_s, only)
        task.host = self._hosts[column]
        task.note = ""

    def backfill(self, task: DagTaskRecord, only: int | None = None) -> bool:
        """Plan a task into a gap; says whether there is one."""
        column = self.timeline.insert(task, task.ready_s, task.row, task.least_s, only)
        if column is None:
            return False
        task.host = self._hosts[column]
        task.finish_s.fill(np.nan)
        task.finish_s[column] = task.end_s
        task.note = "backfilled"
        return True


class PoolPolicy(DagPolicy):
    """Places what is new in the pool, behind the queues, where it finishes first; never takes back."""

    needs_slowdowns: ClassVar[bool] = False

    def order(self, tasks: list[DagTaskRecord]) -> Iterable[DagTaskRecord]:
        """The order in which new tasks are placed."""
        raise NotImplementedError

    def place_one(self, task: DagTaskRecord) -> None:
        """HEFT without insertion."""
        self.append(task)

    def plan_tasks(self, now_s: float) -> None:
        """Keep what was planned, and place what was not."""
        if self.needs_slowdowns:
            self.state.update_slowdowns(now_s)
        queues = self.planned()
        self.open_timeline(now_s)
        self.keep(queues)
        for task in self.order([task for task in self.state.pool() if task.host is None]):
            self.place_one(task)
