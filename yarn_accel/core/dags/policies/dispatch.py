"""Policies that plan nothing ahead: a machine that is free takes a task of the DAG whose turn it is.

They are honest baselines: simple rules that anybody would try first. The policies of `pool` place a task when
it enters the pool, where tasks of several DAGs seldom meet; here DAGs compete for each machine.

`round_robin_at_dispatch`: each DAG in turn, on from the one that was served last. `least_progress`: the DAG
of whose tasks the smallest share has ended or runs. Both take a DAG's tasks by rank, each to the free machine
on which it finishes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from yarn_accel.core.dags.policies.base import DagPolicy, DagPolicyOptions
from yarn_accel.core.dags.state import DagRecord, DagTaskRecord

#: DAGs by arrival, and what they could start, the first last.
Ready = Mapping[DagRecord, list[DagTaskRecord]]


class DispatchPolicy(DagPolicy):
    """Gives each machine that is free one task; what waits there for its inputs stays."""

    settings = ()
    plans_all: ClassVar[bool] = False

    def next_dag(self, ready: Ready) -> DagRecord:
        """Whose turn it is."""
        raise NotImplementedError

    def plan_tasks(self, now_s: float) -> None:
        """Fill the machines that have nothing."""
        queues = self.planned()
        timeline = self.open_timeline(now_s)
        self.keep(queues)
        free = [host.running is None and not timeline.queues[host.column] for host in self._hosts]
        by_arrival = sorted(self.state.active(), key=lambda dag: (dag.arrival_s, dag.dag_id))
        ready = {dag: [task for task in reversed(dag.pool) if task.host is None] for dag in by_arrival}
        for _ in range(sum(free)):
            ready = {dag: tasks for dag, tasks in ready.items() if tasks}
            if not ready:
                return
            task = ready[self.next_dag(ready)].pop()
            end_s = np.where(free, np.maximum(timeline.tail_s, task.ready_s) + task.row, np.inf)
            column = int(end_s.argmin())
            free[column] = False
            self.append(task, column)


class RoundRobinAtDispatchPolicy(DispatchPolicy):
    """Turns go in the order of arrival."""

    name = "round_robin_at_dispatch"

    def __init__(self, bandwidth_bytes_per_s: float, options: DagPolicyOptions | None = None) -> None:
        super().__init__(bandwidth_bytes_per_s, options)
        #: Arrival and name of the DAG that was served last.
        self._last = (0.0, "")

    def next_dag(self, ready: Ready) -> DagRecord:
        """The first that comes behind the last one, or the first of all."""
        found = next((dag for dag in ready if (dag.arrival_s, dag.dag_id) > self._last), next(iter(ready)))
        self._last = (found.arrival_s, found.dag_id)
        return found

    def plan_document(self) -> dict[str, Any]:
        """The plan, with who was served last."""
        return {**super().plan_document(), "last": list(self._last)}

    def restore_plan(self, document: Mapping[str, Any]) -> None:
        """As the base; turns go on."""
        super().restore_plan(document)
        arrival_s, name = document["last"]
        self._last = (arrival_s, name)


class LeastProgressPolicy(DispatchPolicy):
    """The least share of tasks that were given out; by arrival on ties."""

    name = "least_progress"

    def next_dag(self, ready: Ready) -> DagRecord:
        """The least share."""

        def progress(dag: DagRecord) -> float:
            n_given = len(dag.pool) - len(ready[dag]) + len(dag.running)
            return (len(dag.tasks) - dag.n_left + n_given) / len(dag.tasks)

        return min(ready, key=progress)
