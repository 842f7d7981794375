"""Which processors a job is drawn on: the lowest that are free, in as many pieces as it takes.

Traces are simulated by counts, so this is a picture of the schedule, not part of it.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import heappop, heappush

from torque_sched.sim.schedule import Schedule

Lane = tuple[int, int]
"""Processors [low, high)."""


def lanes_of(schedule: Schedule) -> list[tuple[Lane, ...]]:
    """The lanes of every job, by its place; no two jobs share one at the same time.

    Raises:
        ValueError: the schedule uses more processors than there are.
    """
    jobs = schedule.workload.jobs
    free: list[Lane] = [(0, schedule.workload.procs)]
    found: list[tuple[Lane, ...]] = [()] * len(jobs)
    running: list[tuple[float, int]] = []
    for place in sorted(range(len(jobs)), key=lambda at: (schedule.starts[at], at)):
        start_s = schedule.starts[place]
        while running and running[0][0] <= start_s:
            for lane in found[heappop(running)[1]]:
                _give_back(free, lane)
        found[place] = _take(free, jobs[place].procs)
        heappush(running, (start_s + jobs[place].run_s, place))
    return found


def _take(free: list[Lane], n: int) -> tuple[Lane, ...]:
    taken: list[Lane] = []
    while n > 0:
        if not free:
            raise ValueError("more processors in use than there are")
        low, high = free[0]
        size = min(n, high - low)
        taken.append((low, low + size))
        n -= size
        if size == high - low:
            del free[0]
        else:
            free[0] = (low + size, high)
    return tuple(taken)


def _give_back(free: list[Lane], lane: Lane) -> None:
    low, high = lane
    at = bisect_left(free, lane)
    if at < len(free) and free[at][0] == high:
        high = free.pop(at)[1]
    if at and free[at - 1][1] == low:
        at -= 1
        low = free.pop(at)[0]
    free.insert(at, (low, high))
