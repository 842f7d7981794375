"""Invariants every schedule must keep, whoever made it (facts 4.3), checked on the starts alone.

Intervals are half open: a job that starts in the instant in which another ends does not overlap it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from torque_sched.simulate.schedule import Schedule, time_text

_MOST = 20


def problems(
    schedule: Schedule, *, is_fcfs: bool = False, is_firm: bool = False, late_s: float = 0.0
) -> list[str]:
    """What is wrong with a schedule, the first twenty of each kind; empty: nothing.

    Args:
        schedule: to be checked.
        is_fcfs: nobody may overtake, and the first who waits must not fit.
        is_firm: no promise may be broken: nothing runs past its limit, and nobody is outranked.
        late_s: a start that is late by no more is the guaranteed one.
    """
    checks = [_started(schedule), within_capacity(schedule), kept_promises(schedule, late_s)]
    if is_firm:
        checks.append(_unbroken(schedule))
    if is_fcfs:
        checks.append(in_order(schedule))
    found: list[str] = []
    for check in checks:
        found.extend(text for _, text in zip(range(_MOST), check, strict=False))
    return found


def _started(schedule: Schedule) -> Iterator[str]:
    """Each job has a start, and none before it came."""
    jobs = schedule.workload.jobs
    if len(schedule.starts) != len(jobs):
        yield f"{len(schedule.starts)} starts for {len(jobs)} jobs"
    for job, start_s in zip(jobs, schedule.starts, strict=False):
        if not job.submit_s <= start_s < float("inf"):
            yield f"job {job.number} starts at {start_s}, submitted at {time_text(job.submit_s)}"


def within_capacity(schedule: Schedule) -> Iterator[str]:
    """At no instant more processors in use than there are."""
    changes: list[tuple[float, int]] = []
    for job, start_s in zip(schedule.workload.jobs, schedule.starts, strict=False):
        changes.append((start_s, job.procs))
        changes.append((start_s + job.run_s, -job.procs))
    changes.sort()  # ends of an instant first: they are negative
    used, capacity = 0, schedule.workload.procs
    for at_s, change in changes:
        used += change
        if used > capacity and change > 0:
            yield f"{used} of {capacity} processors in use at {time_text(at_s)}"


def kept_promises(schedule: Schedule, late_s: float = 0.0) -> Iterator[str]:
    """Nobody starts later than first guaranteed, except where a broken reservation was reported."""
    excused = {each.place for each in schedule.broken}
    for place, (first_s, start_s) in enumerate(zip(schedule.first_promises, schedule.starts, strict=True)):
        if first_s is not None and start_s > first_s + late_s and place not in excused:
            job = schedule.workload.jobs[place]
            yield (
                f"job {job.number} starts at {time_text(start_s)}, guaranteed was {time_text(first_s)}, "
                "and no broken reservation was reported"
            )


def _unbroken(schedule: Schedule) -> Iterator[str]:
    for each in schedule.broken:
        job = schedule.workload.jobs[each.place]
        yield (
            f"job {job.number} was guaranteed {time_text(each.before_s)} and at {time_text(each.at_s)} "
            f"moved to {each.after_s}, as if there were a reason ({each.why})"
        )


def in_order(schedule: Schedule) -> Iterator[str]:
    """First come, first served: each job starts as soon as it can, none before the one before it."""
    running: list[tuple[float, int]] = []
    free = schedule.workload.procs
    now_s = float("-inf")
    for job, start_s in zip(schedule.workload.jobs, schedule.starts, strict=False):
        now_s = max(now_s, job.submit_s)
        while running and (running[0][0] <= now_s or free < job.procs):
            end_s, procs = heapq.heappop(running)
            free += procs
            now_s = max(now_s, end_s)
        if start_s != now_s:
            yield f"job {job.number} starts at {time_text(start_s)}, FCFS starts it at {time_text(now_s)}"
            return
        free -= job.procs
        heapq.heappush(running, (now_s + job.run_s, job.procs))
