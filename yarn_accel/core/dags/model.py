"""Workflows as directed acyclic graphs, their priority classes, and the machines that run their tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple, NewType

from yarn_accel.core.tasks.durations import DurationKind
from yarn_accel.core.tasks.values import ResourceId, TaskId
from yarn_accel.core.units import MAX_BYTES, MAX_SECONDS
from yarn_accel.errors import ConfigError

DagId = NewType("DagId", str)

#: Limits of one DAG; larger ones are refused when they are read.
MOST_TASKS = 100_000
MOST_EDGES = 1_000_000
_SHOWN = 8


class PriorityClass(IntEnum):
    """The paper's three classes, the highest first."""

    PREEMPTIVE = 0
    HIGH = 1
    BASIC = 2

    @property
    def word(self) -> str:
        """As users write it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Machine:
    """What runs one task at a time.

    Attributes:
        speed: a task with a run time of r seconds takes r / speed here.
    """

    machine: ResourceId
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.speed < math.inf:
            raise ConfigError(
                f"machine {self.machine}: speed: expected a number above 0, found {self.speed!r}"
            )


@dataclass(frozen=True, slots=True)
class DagTask:
    """One task of a DAG.

    Attributes:
        task: unique in its DAG.
        runtime_s: seconds on a machine of speed 1; None where `times_s` has every machine.
        times_s: machine -> seconds there, instead of runtime_s / speed (the paper's Table 1).
    """

    task: str
    runtime_s: float | None
    times_s: Mapping[ResourceId, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = [*self.times_s.values(), *([] if self.runtime_s is None else [self.runtime_s])]
        if not given:
            raise ConfigError(f"task {self.task}: has no time; give runtime_s")
        for seconds in given:
            if not 0 <= seconds <= MAX_SECONDS:
                raise ConfigError(
                    f"task {self.task}: expected seconds from 0 to {MAX_SECONDS:g}, found {seconds!r}"
                )

    def seconds_on(self, machine: Machine) -> float:
        """w of equation (HEFT): how long the task takes on this machine.

        Raises:
            ConfigError: nothing says how long it takes there.
        """
        if machine.machine in self.times_s:
            return self.times_s[machine.machine]
        if self.runtime_s is None:
            raise ConfigError(
                f"task {self.task}: has no time for machine {machine.machine}",
                cure="give the machine's in times_s, or runtime_s for all that have none",
            )
        return self.runtime_s / machine.speed


@dataclass(frozen=True, slots=True)
class DagEdge:
    """`child` starts when `parent` has ended and its bytes have arrived; they are 0 s away on one machine."""

    parent: str
    child: str
    n_bytes: float = 0.0


@dataclass(frozen=True)
class Dag:
    """A workflow. Ties between tasks are broken by their order here, the "lower id" of HEFT.

    Raises:
        ConfigError: no tasks, a doubled id or edge, an edge to a task that is missing, a cycle, negative
            bytes, or more than the limits of this module; names the tasks.
    """

    name: str
    tasks: tuple[DagTask, ...]
    edges: tuple[DagEdge, ...] = ()

    def __post_init__(self) -> None:
        place = f"DAG {self.name}"
        if not self.tasks:
            raise ConfigError(f"{place}: has no tasks")
        if len(self.tasks) > MOST_TASKS or len(self.edges) > MOST_EDGES:
            raise ConfigError(f"{place}: more than {MOST_TASKS} tasks or {MOST_EDGES} edges")
        if len(self.index) < len(self.tasks):
            seen: set[str] = set()
            twice = next(each.task for each in self.tasks if each.task in seen or seen.add(each.task))  # type: ignore[func-returns-value]
            raise ConfigError(f"{place}: task {twice} is given twice")
        self._check_edges(place)
        if len(self.topological) < len(self.tasks):
            raise ConfigError(f"{place}: has a cycle: {' -> '.join(self._cycle())}")

    def _check_edges(self, place: str) -> None:
        known: set[tuple[str, str]] = set()
        for edge in self.edges:
            for end, other in ((edge.parent, edge.child), (edge.child, edge.parent)):
                if end not in self.index:
                    raise ConfigError(f"{place}: task {other} names {end}, which is no task of it")
            if (edge.parent, edge.child) in known:
                raise ConfigError(f"{place}: the edge {edge.parent} -> {edge.child} is given twice")
            known.add((edge.parent, edge.child))
            if not 0 <= edge.n_bytes <= MAX_BYTES:
                raise ConfigError(
                    f"{place}: edge {edge.parent} -> {edge.child}: expected bytes from 0 to {MAX_BYTES}, "
                    f"found {edge.n_bytes!r}"
                )

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Task -> its number."""
        return {each.task: number for number, each in enumerate(self.tasks)}

    @cached_property
    def parents(self) -> tuple[tuple[tuple[int, float], ...], ...]:
        """Of each task by number: (parent, bytes), in the order of the parents."""
        found: list[list[tuple[int, float]]] = [[] for _ in self.tasks]
        for edge in self.edges:
            found[self.index[edge.child]].append((self.index[edge.parent], edge.n_bytes))
        return tuple(tuple(sorted(each)) for each in found)

    @cached_property
    def children(self) -> tuple[tuple[tuple[int, float], ...], ...]:
        """Of each task by number: (child, bytes), in the order of the children."""
        found: list[list[tuple[int, float]]] = [[] for _ in self.tasks]
        for edge in self.edges:
            found[self.index[edge.parent]].append((self.index[edge.child], edge.n_bytes))
        return tuple(tuple(sorted(each)) for each in found)

    @cached_property
    def topological(self) -> tuple[int, ...]:
        """Numbers of the tasks, parents first; without those behind a cycle."""
        waits = [len(each) for each in self.parents]
        order = [number for number, n in enumerate(waits) if not n]
        for number in order:
            for child, _ in self.children[number]:
                waits[child] -= 1
                if not waits[child]:
                    order.append(child)
        return tuple(order)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Of each task the edges of the longest way to it from a task without parents."""
        depths = [0] * len(self.tasks)
        for number in self.topological:
            depths[number] = max((depths[parent] + 1 for parent, _ in self.parents[number]), default=0)
        return tuple(depths)

    def _cycle(self) -> list[str]:
        left = set(range(len(self.tasks))) - set(self.topological)
        path = [min(left)]
        while path.count(path[-1]) < 2:
            path.append(min(parent for parent, _ in self.parents[path[-1]] if parent in left))
        names = [self.tasks[number].task for number in reversed(path[path.index(path[-1]) :])]
        return names if len(names) <= _SHOWN else [*names[:_SHOWN], "..."]


@dataclass(frozen=True, slots=True)
class DagTerms:
    """How a DAG wants to be treated among others.

    Attributes:
        may_interrupt: its running attempts may be ended for DAGs of higher classes; they run again later.
        is_paused: it starts with nothing until its owner resumes it.
    """

    priority_class: PriorityClass = PriorityClass.BASIC
    may_interrupt: bool = False
    is_paused: bool = False


class DoneTask(NamedTuple):
    """A task that had ended before a policy heard of its DAG."""

    machine: ResourceId
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, eq=False)
class SubmittedDag:
    """A DAG as a service tells a policy of it.

    Attributes:
        dag: called like its application, so no two have one name; tasks whose seconds nobody knows have 1.
        kinds: of each task: those of one kind are learned together, under the application's name.
        arrival_s: in the time of events; may be long ago.
    """

    dag: Dag
    terms: DagTerms
    kinds: tuple[DurationKind, ...]
    arrival_s: float = 0.0


class DagFacts(NamedTuple):
    """What a policy knows of a DAG that it plans.

    Attributes:
        own_makespan_s: M_own, on the most machines that were there at once since its arrival.
        slowdown: SD by equation (3) now.
        predicted_end_s: at the earliest, by the plan; None where there is none.
        n_moved: how often its tasks were taken back from a worker's queue before they had started.
    """

    own_makespan_s: float
    slowdown: float
    predicted_end_s: float | None
    n_moved: int


def task_id_of(dag: DagId, task: str) -> TaskId:
    """The id of a DAG's task among all tasks."""
    return TaskId(f"{dag}/{task}")
