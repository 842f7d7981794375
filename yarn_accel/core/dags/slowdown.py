"""Slowdown while DAGs run: equation (3) of the MPS paper; (1) and (2) are in `core.tasks.outcome`.

SD(a) = M_own / M_multi once a DAG has ended (2); 1 is undisturbed, less is delayed. While it runs,
SD(a) = 1 - DelayTime / ct (3), where ct is the time since its arrival. DelayTime compares the DAG's own HEFT
schedule at ct with the shared plan:

- Tasks run there: each is done to a share f, one that ends just now to 1; one that starts just now does not
  count. The delay is when the shared plan brings the same task to f, less now; of several tasks the largest.
  A task that is not planned yet could start on its fastest machine when its parents have ended: planned ones
  by the plan, others when they themselves could. The paper does not say so; were it now for each, a deep DAG
  would look undelayed while it starves.
- None runs there: the same for the tasks that ended last, from their ends in the own schedule.
- The own schedule is over, or the DAG has ended: M_multi is the last planned end, and the delay M_multi -
  M_own; so at the end (3) is (2).

The time that this takes grows with the tasks that are ready or run, not with all tasks of the DAG.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain

import numpy as np

from yarn_accel.core.dags.state import DagRecord, DagState


class Slowdowns:
    """Equation (3) of all DAGs that have not ended."""

    def __init__(self, state: DagState) -> None:
        self._state = state
        self._at_s = -math.inf

    def update(self, now_s: float) -> None:
        """Compute all."""
        self._at_s = now_s
        for dag in self._state.dags.values():
            dag.delay_s = delay_s(dag, now_s)
            dag.slowdown = _slowdown(dag, dag.delay_s, now_s)

    def keep(self, now_s: float) -> None:
        """Decide by those that were computed last."""
        self._at_s = now_s

    def at(self, now_s: float) -> dict[str, float]:
        """All: what a policy that goes by them decided by just now, else by its plan."""
        dags = self._state.dags.values()
        if self._at_s == now_s:
            return {dag.dag_id: dag.slowdown for dag in dags}
        return {dag.dag_id: _slowdown(dag, delay_s(dag, now_s), now_s) for dag in dags}


def _slowdown(dag: DagRecord, delay_s: float, now_s: float) -> float:
    local_s = now_s - dag.arrival_s
    return 1.0 - delay_s / local_s if local_s > 0 else 1.0


def delay_s(dag: DagRecord, now_s: float) -> float:
    """DelayTime of a DAG that has not ended."""
    own, local_s = dag.own, now_s - dag.arrival_s
    if local_s >= own.makespan_s:
        return _last_end_s(dag, now_s) - (dag.arrival_s + own.makespan_s)
    if running := dag.running_alone(local_s):
        reached_s, waiting = -math.inf, []
        for each in running:
            task, own_start_s, own_end_s = each
            if task.host is None:
                waiting.append(each)
                continue
            at_s = task.start_s + (local_s - own_start_s) / (own_end_s - own_start_s) * task.seconds
            if at_s > reached_s:
                reached_s = at_s
        if waiting:
            expected = _expected(dag, [task.number for task, _, _ in waiting], now_s)
            for (_, own_start_s, own_end_s), (start_s, seconds) in zip(waiting, expected, strict=True):
                share = (local_s - own_start_s) / (own_end_s - own_start_s)
                reached_s = max(reached_s, start_s + share * seconds)
        return reached_s - now_s
    ends_s = own.end_s
    ended = ends_s[ends_s <= local_s]
    if not len(ended):
        return 0.0
    last_s = float(ended.max())
    numbers = np.flatnonzero(ends_s == last_s).tolist()
    return max(map(sum, _expected(dag, numbers, now_s))) - (dag.arrival_s + last_s)


def _last_end_s(dag: DagRecord, now_s: float) -> float:
    """The last end by the plan; what waits for parents comes behind them, by the longest way below each."""
    if dag.plans_waiting:
        return max(map(sum, _expected(dag, range(len(dag.tasks)), now_s)))
    last_s, below_s, children = dag.last_end_s, dag.below_s, dag.dag.children
    pool = dag.pool
    if dag.n_unplanned and pool:
        last_s = max(last_s, dag.last_unplanned_end_s(now_s))
        pool = pool[: max(0, len(pool) - dag.n_unplanned)]
    for task in chain(dag.running, pool):
        if task.host is None:
            end_s = dag.unplanned_start_s(task, now_s) + dag.least_s[task.number]
        else:
            end_s = task.start_s + task.seconds
        number = task.number
        if children[number]:
            end_s = max(end_s, now_s) + below_s[number]
        last_s = max(last_s, end_s)
    if dag.is_paused:
        waits = (task for task in dag.tasks if task.may_enter())
        last_s = max([last_s, *(now_s + dag.least_s[each.number] + below_s[each.number] for each in waits)])
    return last_s


def _expected(dag: DagRecord, numbers: Iterable[int], now_s: float) -> list[tuple[float, float]]:
    """Start and seconds of these tasks by the plan, or as early as their parents allow."""
    tasks, least_s = dag.tasks, dag.least_s
    starts_s: dict[int, float] = {}
    found = []
    for number in numbers:
        task = tasks[number]
        if task.host is not None:
            found.append((task.start_s, task.seconds))
        else:
            if number not in starts_s:
                _find_start(dag, number, now_s, starts_s)
            found.append((starts_s[number], least_s[number]))
    return found


def _find_start(dag: DagRecord, number: int, now_s: float, starts_s: dict[int, float]) -> None:
    """Add the start of a task that is not planned to `starts_s`, and those of its ancestors that are not."""
    tasks, parents, least_s = dag.tasks, dag.dag.parents, dag.least_s
    to_do = [number]
    while to_do:
        number = to_do[-1]
        task = tasks[number]
        if not task.n_parents_left:
            starts_s[number] = dag.unplanned_start_s(task, now_s)
        elif number not in starts_s:
            start_s, n_to_do = now_s, len(to_do)
            for parent, _ in parents[number]:
                before = tasks[parent]
                if before.host is not None:
                    end_s = before.start_s + before.seconds
                elif parent in starts_s:
                    end_s = starts_s[parent] + least_s[parent]
                else:
                    to_do.append(parent)
                    continue
                if end_s > start_s:
                    start_s = end_s
            if len(to_do) > n_to_do:
                continue
            starts_s[number] = start_s
        to_do.pop()
