"""HEFT: upward ranks, and the schedule of one DAG alone (Topcuoglu, Hariri, Wu 2002).

rank_u(i) = mean_w(i) + max over children j of (c_ij + rank_u(j)); c_ij is the transfer between two machines.
Tasks are placed by falling rank, each where it finishes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from yarn_accel.core.dags.model import Dag, Machine
from yarn_accel.core.dags.timeline import Row, Timeline

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HeftSchedule:
    """The schedule of one DAG alone, by numbers of tasks and machines; seconds from its start.

    Attributes:
        ranks: upward rank of each task, in seconds.
        order: numbers of the tasks in the order in which they were placed.
        machines: number of the machine of each task.
        start_s: of each task.
        end_s: of each task.
    """

    ranks: tuple[float, ...]
    order: tuple[int, ...]
    machines: tuple[int, ...]
    start_s: Row
    end_s: Row

    @cached_property
    def makespan_s(self) -> float:
        """M_own (S_org in the paper): the end of the last task."""
        return float(self.end_s.max())


def seconds_matrix(dag: Dag, machines: Sequence[Machine]) -> Matrix:
    """w: row per task, column per machine."""
    if any(each.times_s for each in dag.tasks):
        return np.array([[task.seconds_on(machine) for machine in machines] for task in dag.tasks])
    runtimes = np.array([task.runtime_s for task in dag.tasks], dtype=np.float64)
    speeds = np.array([machine.speed for machine in machines])
    return np.asarray(np.divide.outer(runtimes, speeds))


def upward_ranks(dag: Dag, seconds: Matrix, bandwidth_bytes_per_s: float) -> tuple[float, ...]:
    """rank_u of each task, in seconds.

    Rounded to 12 digits, so that equal ranks are equal whatever was added first.
    """
    means = [sum(row) / len(row) for row in seconds.tolist()]
    ranks = [0.0] * len(dag.tasks)
    for number in reversed(dag.topological):
        below = (n_bytes / bandwidth_bytes_per_s + ranks[child] for child, n_bytes in dag.children[number])
        ranks[number] = means[number] + max(below, default=0.0)
    return tuple(float(f"{rank:.12g}") for rank in ranks)


def rank_order(dag: Dag, ranks: Sequence[float]) -> tuple[int, ...]:
    """Tasks by falling rank, lower number first on ties; parents always before their children.

    A task of no length and no transfer has its child's rank, so the rank alone may put a child first.
    """
    by_rank = sorted(range(len(ranks)), key=lambda number: (-ranks[number], number))
    if all(ranks[parent] > ranks[n] for n, each in enumerate(dag.parents) for parent, _ in each):
        return tuple(by_rank)
    return tuple(sorted(by_rank, key=lambda number: (-ranks[number], dag.depths[number], number)))


def ready_row(
    arrivals: Sequence[tuple[float, int, float]], n_machines: int, bandwidth_bytes_per_s: float, from_s: float
) -> Row:
    """When a task's inputs are on each machine.

    Args:
        arrivals: of each parent its end, the number of its machine (-1: none of these) and the bytes.
        n_machines: length of the row.
        bandwidth_bytes_per_s: between any two machines.
        from_s: no earlier than this.
    """
    if not arrivals:
        return np.full(n_machines, from_s)
    if len(arrivals) == 1:
        end_s, machine, n_bytes = arrivals[0]
        row = np.full(n_machines, max(from_s, end_s + n_bytes / bandwidth_bytes_per_s))
        if machine >= 0:
            row[machine] = max(from_s, end_s)
        return row
    remote = [end_s + n_bytes / bandwidth_bytes_per_s for end_s, _, n_bytes in arrivals]
    row = np.full(n_machines, max(from_s, *remote))
    for here in {machine for _, machine, _ in arrivals if machine >= 0}:
        there = (
            end_s if machine == here else far_s
            for (end_s, machine, _), far_s in zip(arrivals, remote, strict=True)
        )
        row[here] = max(from_s, *there)
    return row


def heft(
    dag: Dag,
    machines: Sequence[Machine],
    bandwidth_bytes_per_s: float,
    *,
    inserting: bool = True,
    seconds: Matrix | None = None,
) -> HeftSchedule:
    """Schedule a DAG alone on idle machines.

    Args:
        dag: what to schedule.
        machines: at least one.
        bandwidth_bytes_per_s: between any two machines.
        inserting: also use idle time between tasks that were placed before.
        seconds: w, where it is not `seconds_matrix`.
    """
    seconds = seconds_matrix(dag, machines) if seconds is None else seconds
    ranks = upward_ranks(dag, seconds, bandwidth_bytes_per_s)
    order = rank_order(dag, ranks)
    timeline: Timeline[_Interval] = Timeline(np.zeros(len(machines)))
    finish_s = np.empty(len(machines))
    least_s = seconds.min(axis=1).tolist()
    placed = [_Interval() for _ in ranks]
    for number in order:
        each, row = placed[number], seconds[number]
        arrivals = [
            (placed[parent].end_s, placed[parent].machine, n_bytes) for parent, n_bytes in dag.parents[number]
        ]
        ready_s = ready_row(arrivals, len(machines), bandwidth_bytes_per_s, 0.0)
        if inserting:
            each.machine = timeline.insert_or_append(each, ready_s, row, least_s[number], finish_s)
        else:
            each.machine = timeline.append(each, ready_s, row, finish_s)
    return HeftSchedule(
        ranks,
        order,
        tuple(each.machine for each in placed),
        np.array([each.start_s for each in placed]),
        np.array([each.end_s for each in placed]),
    )


class _Interval:
    __slots__ = ("end_s", "machine", "seconds", "start_s")

    def __init__(self) -> None:
        self.start_s = self.end_s = self.seconds = 0.0
        self.machine = 0
