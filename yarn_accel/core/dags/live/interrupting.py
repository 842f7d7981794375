"""Which running attempts end for tasks of a higher class: where their DAG allows it, each a few times."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from yarn_accel.core.dags.live.slots import WorkerSlot
from yarn_accel.core.dags.model import PriorityClass
from yarn_accel.core.dags.state import DagTaskRecord

#: One task is ended so often at most; then it runs to its end.
MOST_INTERRUPTS = 3
#: A wait that is shorter is not worth what is lost.
_LEAST_WAIT_S = 1.0


def choose_interrupted(
    waiting: Sequence[DagTaskRecord],
    running: Sequence[tuple[WorkerSlot, DagTaskRecord]],
    allowed: Collection[str],
    now_s: float,
) -> Iterator[tuple[WorkerSlot, DagTaskRecord, DagTaskRecord]]:
    """Attempts to end, and for which task: the lowest class first, in it what has run least.

    Args:
        waiting: preemptive tasks that are ready, and do not run.
        running: all that runs.
        allowed: DAGs whose attempts may be ended.
    """
    late = [task for task in waiting if task.start_s > now_s + _LEAST_WAIT_S]
    # What should have ended is believed to run on as long as it is late, as in the plan.
    n_ending = sum(slot.is_ending for slot, _ in running)
    victims = [
        (slot, task)
        for slot, task in running
        if not slot.is_ending
        and task.dag.priority_class is not PriorityClass.PREEMPTIVE
        and task.dag.dag_id in allowed
        and task.n_interrupts < MOST_INTERRUPTS
        and abs(task.end_s - now_s) > _LEAST_WAIT_S
    ]
    victims.sort(key=lambda each: (-each[1].dag.priority_class, now_s - each[0].started_s, each[1].task))
    for (slot, task), for_task in zip(victims, late[n_ending:], strict=False):
        task.n_interrupts += 1
        yield slot, task, for_task
