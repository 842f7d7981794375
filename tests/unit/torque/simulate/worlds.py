"""Small sites to simulate, in one line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.fixtures.torque_builders import NOW_S, job
from torque_sched.decide.settings import Settings, new_backfill
from torque_sched.model.cluster import Node, Queue, Server
from torque_sched.model.states import JobState
from torque_sched.simulate.live import run_live
from torque_sched.simulate.memory import Rules
from torque_sched.simulate.schedule import Schedule
from torque_sched.simulate.site import Outage, SimulatedJob, Site, equal_nodes, with_status
from torque_sched.simulate.workload import TraceJob, Workload


def coming(
    number: int | str, at_s: float, run_s: float, spec: str = "1", *, limit_s: float | None = None,
    cput_s: float | None = None, used_bytes: int | None = None, **changes: Any,
) -> SimulatedJob:  # fmt: skip
    """A job submitted so long after the begin; its limit is its run time unless it is given."""
    came_s = NOW_S + at_s
    changes = {"walltime_s": run_s if limit_s is None else limit_s, **changes}
    made = job(number, spec, qtime_s=came_s, ctime_s=came_s, etime_s=came_s, **changes)
    number = made.sequence if made.array_index is None else 100 * made.sequence + made.array_index
    return SimulatedJob(replace(made, state=JobState.QUEUED), number, run_s, cput_s, used_bytes)


def site(
    nodes: Sequence[Node] | int, jobs: Sequence[SimulatedJob], *, queues: Sequence[Queue] = (),
    server: Server | None = None, outages: Sequence[Outage] = (),
) -> Site:  # fmt: skip
    """A number of nodes makes so many with one slot."""
    chosen = equal_nodes(nodes, 1) if isinstance(nodes, int) else tuple(with_status(node) for node in nodes)
    plain = tuple(
        TraceJob(
            each.number, each.submit_s - NOW_S, each.job.request.n_procs, each.length_s,
            each.job.walltime_s or each.length_s, 1, 1, 1, 1,
        )
        for each in jobs
    )  # fmt: skip
    names = dict.fromkeys(each.job.queue for each in jobs)
    return Site(
        "world", server or Server(name="head"), tuple(queues) or tuple(Queue(name=name) for name in names),
        chosen, tuple(jobs), Workload(sum(node.slots for node in chosen), plain, len(jobs)), NOW_S,
        tuple(outages),
    )  # fmt: skip


def rules(backfill: str = "aged", settings: Settings | None = None, **values: Any) -> Rules:
    """Rules of one backfill, with its settings, over other settings."""
    made = replace(settings or Settings(), backfill=new_backfill(backfill, **values))
    return Rules(backfill, lambda now_s: made)


def starts(world: Site, how: Rules | None = None) -> dict[int, float]:
    """When each job that ran started, in seconds from the begin, by its number."""
    schedule = simulated(world, how)
    numbers = (each.number for each in schedule.workload.jobs)
    return dict(zip(numbers, schedule.starts, strict=True))


def simulated(world: Site, how: Rules | None = None) -> Schedule:
    return run_live(world, how or rules())
