"""Short words for the tests of the grid."""

from __future__ import annotations

from torque_sched.grid.search import Place
from torque_sched.model.availability import Availability
from torque_sched.simulate.workload import TraceJob


def job(number: int, submit_s: float, procs: int, run_s: float) -> TraceJob:
    return TraceJob(number, submit_s, procs, run_s, run_s, 1, 1, 1, 1)


def table(capacity: int, *taken: tuple[int, float, float]) -> Availability:
    """A cluster from time 0 on, with (processors, start, end) in use."""
    free = Availability(capacity)
    for procs, start_s, end_s in taken:
        free.take(procs, start_s, end_s)
    return free


def place(*tables: Availability, site: int = 0) -> Place:
    return Place([(site, cluster) for cluster in range(len(tables))], tables)


def grid(*sites: Place) -> Place:
    """All clusters of these sites."""
    return Place(
        [cluster for each in sites for cluster in each.clusters],
        [table for each in sites for table in each.tables],
    )
