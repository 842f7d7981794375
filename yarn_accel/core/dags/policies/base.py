"""What all policies for DAGs share: a plan over queues of machines, and the orders that make it so.

A policy plans in `plan_tasks`. The first tasks of each planned queue lie at the machine's worker, so the rest
can be planned anew without an order. `EnqueueTask` and `TakeBackTask` are the differences between what lies
there and what should.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from yarn_accel.core.dags.events import (
    DagEvent,
    DagSubmitted,
    Decide,
    MachineJoined,
    ResourceLeft,
    TaskStarted,
)
from yarn_accel.core.dags.model import Machine, PriorityClass
from yarn_accel.core.dags.slowdown import Slowdowns
from yarn_accel.core.dags.state import TO_START, DagState, DagTaskRecord, DagTaskState, MachineRecord
from yarn_accel.core.dags.timeline import Timeline
from yarn_accel.core.tasks.commands import EnqueueTask, TakeBackTask, TaskCommand
from yarn_accel.core.tasks.events import EndReason
from yarn_accel.core.tasks.values import Form, ResourceId
from yarn_accel.errors import ConfigError

_MOST_SHOWN = 6


@dataclass(frozen=True, slots=True)
class DagPolicyOptions:
    """What a policy may be set to; a policy takes those that mean something to it.

    Attributes:
        most_moves: so often a task may go from one machine's queue to another's; then it keeps its machine.
        overdue_after: a task that has waited in the pool for so many times its DAG's own makespan is overdue.
        overdue_share: share of the machines' time that overdue tasks may take, whatever their class.
        backfill: `threshold` lets a backfilled task overrun its gap by C (equation 4), `exact` does not,
            `none` has no backfilling.
        take_back: False leaves planned tasks where they are.
        queue_depth: planned tasks that lie at each worker.
    """

    most_moves: int = 8
    overdue_after: float = 10.0
    overdue_share: float = 0.1
    backfill: str = "threshold"
    take_back: bool = True
    queue_depth: int = 1

    def __post_init__(self) -> None:
        for key, least in (("most_moves", 0), ("queue_depth", 1)):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"policy.{key}: expected a whole number from {least}, found {value!r}")
        for key, most in (("overdue_after", math.inf), ("overdue_share", 1.0)):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
                raise ConfigError(
                    f"policy.{key}: expected a number above 0 and up to {most}, found {value!r}"
                )
        if self.backfill not in ("threshold", "exact", "none"):
            raise ConfigError(f"policy.backfill: expected threshold, exact or none, found {self.backfill!r}")
        if not isinstance(self.take_back, bool):
            raise ConfigError(f"policy.take_back: expected true or false, found {self.take_back!r}")


class PlannedReason(NamedTuple):
    """Why a task is planned where it is, as numbers; a call writes the line for its owner.

    Attributes:
        machines: by column.
        column: of the machine where it is planned; None: it is planned nowhere.
        end_s: when it ends there.
        finish_s: row of float64, as bytes: its finish on each machine, NaN where that was not looked at.
        from_s: times are shown as seconds after this.
    """

    rank: float
    priority_class: PriorityClass
    slowdown: float
    machines: tuple[ResourceId, ...]
    column: int | None
    end_s: float
    finish_s: bytes
    from_s: float
    note: str

    def __call__(self) -> str:
        """The line."""
        finish_s, machines, from_s = np.frombuffer(self.finish_s), self.machines, self.from_s
        if (at := self.column) is not None and finish_s[at] != self.end_s:
            # The finish on all machines is noted for the first tasks of a queue alone, and goes out of date.
            shown = f"{machines[at]} {self.end_s - from_s:.6g}"
        else:
            finish_s = finish_s - from_s
            n_known = len(finish_s) - int(np.isnan(finish_s).sum())
            best = finish_s.argsort(kind="stable")[: min(_MOST_SHOWN, n_known)].tolist()
            shown = ", ".join(f"{machines[at]} {finish_s.item(at):.6g}" for at in best)
            if len(best) < n_known:
                shown += f" and {n_known - len(best)} later"
        parts = [
            f"rank {self.rank:.6g}",
            f"class {self.priority_class.word}",
            f"SD {self.slowdown:.3f}",
            f"finish by machine: {shown}",
        ]
        return "; ".join([*parts, self.note] if self.note else parts)


def _reason_of(
    task: DagTaskRecord, machines: tuple[ResourceId, ...], from_s: float = 0.0
) -> Callable[[], str]:
    dag, host = task.dag, task.host
    why = PlannedReason(
        task.rank,
        dag.priority_class,
        dag.slowdown,
        machines,
        None if host is None else host.column,
        task.end_s,
        task.finish_s.tobytes(),
        from_s,
        task.note,
    )
    return cast("Callable[[], str]", why)  # which mypy does not believe of a tuple


class DagPolicy:
    """Plans each task of the pool onto a machine; equal events give equal plans."""

    name: ClassVar[str]
    #: The settings that it takes: fields of `DagPolicyOptions`.
    settings: ClassVar[tuple[str, ...]] = ("queue_depth",)
    #: Each task of the pool is planned.
    plans_all: ClassVar[bool] = True

    def __init__(self, bandwidth_bytes_per_s: float, options: DagPolicyOptions | None = None) -> None:
        self.options = options or DagPolicyOptions()
        self.state = DagState(bandwidth_bytes_per_s)
        self.slowdowns = Slowdowns(self.state)
        self.timeline: Timeline[DagTaskRecord] = Timeline(self.state.free_s(0.0))
        self._hosts: tuple[MachineRecord, ...] = ()
        #: How often a task went from one machine's queue to another's.
        self.n_moved = 0
        #: False where who drives this orders what is in queues, and counts what leaves them.
        self.orders_queues = True
        #: Tasks that are planned for each machine, by policies that plan so far alone.
        self.horizon = 16

    def apply(self, event: DagEvent) -> tuple[TaskCommand, ...]:
        """Take one fact of a simulation in; commands come from `Decide` alone, those that take back first."""
        state = self.state
        if isinstance(event, Decide):
            return tuple(self.decide(event.now_s))
        if isinstance(event, DagSubmitted):
            state.submit(event)
        elif isinstance(event, MachineJoined):
            state.join(event.machine, event.now_s)
        elif isinstance(event, ResourceLeft):
            state.leave(event.resource, event.now_s)
        elif isinstance(event, TaskStarted):
            host = state.machine(event.resource)
            assert host is not None, f"{event.resource}: is not there"
            state.run(state.task(event.task), host, event.now_s)
        elif (task := state.task(event.task)).state is DagTaskState.RUNS:  # its machine may have left first
            end = state.finish if event.reason is EndReason.DONE else state.give_up
            end(task, event.now_s)
        return ()

    def plan_tasks(self, now_s: float) -> None:
        """Make `timeline` what is planned from now on."""
        raise NotImplementedError

    def reason(self, task: DagTaskRecord, from_s: float = 0.0) -> str:
        """One line for a task's owner: why it is planned where it is; seconds are those after `from_s`."""
        return _reason_of(task, self.state.names, from_s)()

    def validate(self) -> None:
        """Raise AssertionError where the state or the plan contradicts itself; for tests."""
        self.state.validate()
        planned = [task for queue in self.timeline.queues for task in queue]
        assert len(planned) == len(set(map(id, planned)))
        to_plan = {
            task.task
            for task in self.state.pool()
            if task.host is not None or (self.plans_all and not task.dag.n_unplanned)
        }
        assert to_plan <= {task.task for task in planned} or not self.state.machines

    # One decision

    def decide(self, now_s: float) -> list[TaskCommand]:
        """Plan, and say what is to change at the workers."""
        self.admit(now_s)
        if not self.state.machines:
            return []
        self.plan_tasks(now_s)
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
        names = self.state.names
        taken: list[TaskCommand] = []
        put: list[TaskCommand] = []
        for host, queue in zip(self.state.machines, self.timeline.queues, strict=True):
            wanted = queue[:depth]
            if wanted == host.published:
                continue
            if not self.orders_queues:
                for task in wanted:
                    task.last_queue = host
                host.published = wanted
                continue
            n_same = 0
            for old, new in zip(host.published, wanted, strict=False):
                if old is not new:
                    break
                n_same += 1
            taken += (TakeBackTask(task.task, host.name, "planned anew") for task in host.published[n_same:])
            for position, task in enumerate(wanted[n_same:], n_same):
                if task.last_queue is not host:
                    if task.last_queue is not None:
                        task.n_moves += 1
                        self.n_moved += 1
                        task.note = "; ".join(
                            filter(None, (task.note, f"taken back from {task.last_queue.name}"))
                        )
                    task.last_queue = host
                put.append(EnqueueTask(task.task, host.name, Form.CPU, position, _reason_of(task, names)))
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

    # For policies

    def open_timeline(self, now_s: float, overrun: float = 0.0) -> Timeline[DagTaskRecord]:
        """A timeline with what runs, and nothing planned."""
        self.timeline = Timeline(self.state.free_s(now_s), overrun)
        self._hosts = tuple(self.state.machines)
        return self.timeline

    def planned(self) -> list[tuple[MachineRecord, list[DagTaskRecord]]]:
        """What the last plan has that is still to start, of each machine that is still there."""
        return [
            (host, [each for each in queue if each.host is host and each.state in TO_START])
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
