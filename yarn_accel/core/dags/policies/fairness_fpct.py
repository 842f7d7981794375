"""`fairness-fpct`: Zhao and Sakellariou (2006), slowdown by current time.

As `fairness-fpft`, but the slowdowns of all DAGs are those at the finish of the task that was placed. Of each
DAG the placed task counts that is furthest by then: the time to which it is as far in the own schedule, over
the shared time.
"""

from __future__ import annotations

from collections.abc import Iterable

from yarn_accel.core.dags.model import DagId
from yarn_accel.core.dags.policies.fairness_fpft import FpftPolicy
from yarn_accel.core.dags.state import DagRecord, DagTaskRecord


class FpctPolicy(FpftPolicy):
    """Slowdown by current time."""

    name = "fairness-fpct"

    def update(self, slowdowns: dict[DagId, float], task: DagTaskRecord, dags: Iterable[DagRecord]) -> None:
        """After a task was placed."""
        for dag in dags:
            slowdowns[dag.dag_id] = _slowdown_at(dag, task.end_s)


def _slowdown_at(dag: DagRecord, now_s: float) -> float:
    """Progress in the own schedule over the shared time; 0 where nothing of a DAG was placed by then."""
    best = (0.0, 0.0)
    for task in dag.tasks:
        if task.host is not None and task.start_s < now_s:
            share = min(1.0, (now_s - task.start_s) / task.seconds) if task.seconds else 1.0
            own_start_s = float(dag.own.start_s[task.number])
            own_s = own_start_s + share * (float(dag.own.end_s[task.number]) - own_start_s)
            best = max(best, (min(now_s, task.end_s) - dag.arrival_s, own_s))
    return best[1] / best[0] if best[0] > 0 else 0.0
