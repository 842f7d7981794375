"""What a simulation of DAGs is given: machines over time, and DAGs with their arrivals and classes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from yarn_accel.core.dags.model import Dag, DagId, Machine, PriorityClass
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

    Raises:
        ConfigError: nothing to do, nobody to do it, a name given twice, or a task without a time somewhere.
    """

    bandwidth_bytes_per_s: float
    machines: tuple[MachineStay, ...]
    dags: tuple[DagArrival, ...]

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
            if not 0 <= each.arrival_s < math.inf:
                raise ConfigError(
                    f"DAG {each.dag_id}: expected an arrival from 0 s, found {each.arrival_s!r}"
                )
            for task in each.dag.tasks:
                if task.times_s:
                    for stay in self.machines:
                        task.seconds_on(stay.machine)
