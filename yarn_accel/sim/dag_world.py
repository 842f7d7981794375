"""What a simulation of DAGs is given: machines over time, and DAGs with their arrivals and classes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from yarn_accel.core.dags.model import Dag, DagId, Machine, PriorityClass
from yarn_accel.core.units import MAX_SECONDS
from yarn_accel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MachineStay:
    """A machine from when it joins until it leaves."""

    machine: Machine
    joins_s: float = 0.0
    leaves_s: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.joins_s < self.leaves_s:
            raise ConfigError(
                f"machine {self.machine.machine}: expected 0 <= joins_s < leaves_s, "
                f"found {self.joins_s} and {self.leaves_s}"
            )


@dataclass(frozen=True, slots=True)
class DagArrival:
    """A DAG, when it arrives and in which class."""

    dag_id: DagId
    dag: Dag
    arrival_s: float = 0.0
    priority_class: PriorityClass = PriorityClass.BASIC


@dataclass(frozen=True, slots=True)
class DagWorld:
    """One simulation. Ties go by the names of machines and DAGs, and by the order of tasks in a DAG.

    Attributes:
        moves_when_placed: files begin to move to a machine when a task that takes them is queued there, as
            live, and not before; else when they are made, as HEFT and the paper count.

    Raises:
        ConfigError: nothing to do, nobody to do it, a name given twice, or a task without a time somewhere.
    """

    bandwidth_bytes_per_s: float
    machines: tuple[MachineStay, ...]
    dags: tuple[DagArrival, ...]
    moves_when_placed: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth_bytes_per_s < math.inf:
            raise ConfigError(
                f"bandwidth_bytes_per_s: expected a number above 0, found {self.bandwidth_bytes_per_s!r}"
            )
        names = [str(each.machine.machine) for each in self.machines]
        for what, given in (("machine", names), ("DAG", [str(each.dag_id) for each in self.dags])):
            if not given:
                raise ConfigError(f"there is no {what}; give at least one")
            twice = (
                sorted({name for name in given if given.count(name) > 1})
                if len(set(given)) < len(given)
                else []
            )
            if twice:
                raise ConfigError(f"{what} {twice[0]} is given twice; names tell them apart")
        for each in self.dags:
            if not 0 <= each.arrival_s <= MAX_SECONDS:
                raise ConfigError(
                    f"DAG {each.dag_id}: expected an arrival from 0 to {MAX_SECONDS:g} s, "
                    f"found {each.arrival_s!r}"
                )
            for task in each.dag.tasks:
                if task.times_s:
                    for stay in self.machines:
                        task.seconds_on(stay.machine)
            self._check_times(each.dag)

    def _check_times(self, dag: Dag) -> None:
        """A run time over a speed, and bytes over the bandwidth, are times that the clock can add up."""
        slowest = min((stay.machine for stay in self.machines), key=lambda machine: machine.speed)
        longest = max(dag.tasks, key=lambda task: task.runtime_s or 0.0)
        if (longest.runtime_s or 0.0) / slowest.speed > MAX_SECONDS:
            raise ConfigError(
                f"DAG {dag.name}: task {longest.task}: its runtime_s {longest.runtime_s:g} is more than "
                f"{MAX_SECONDS:g} s on machine {slowest.machine} of speed {slowest.speed:g}",
                cure="give it a shorter runtime_s, or the machine a higher speed",
            )
        edge = max(dag.edges, key=lambda each: each.n_bytes, default=None)
        if edge is not None and edge.n_bytes / self.bandwidth_bytes_per_s > MAX_SECONDS:
            raise ConfigError(
                f"DAG {dag.name}: {edge.n_bytes:g} bytes from task {edge.parent} to {edge.child} take more "
                f"than {MAX_SECONDS:g} s at bandwidth_bytes_per_s {self.bandwidth_bytes_per_s:g}",
                cure="give fewer bytes, or a higher bandwidth",
            )
