"""Small logs, and EASY written slowly and apart from ours, to compare with."""

from __future__ import annotations

from collections.abc import Sequence

from torque_sched.simulate.schedule import Schedule
from torque_sched.simulate.swf import parse_swf
from torque_sched.simulate.workload import LogSelection, TraceJob, Workload, workload_of


def line(number: int, submit: float, run: float, procs: int, limit: float = -1, *, requested: int = -1,
         user: int = 1, queue: int = 1) -> str:  # fmt: skip
    return f"{number} {submit} -1 {run} {procs} -1 -1 {requested} {limit} -1 1 {user} 1 7 {queue} -1 -1 -1"


def log(lines: Sequence[str], procs: int = 10, **choice: object) -> Workload:
    return workload_of(parse_swf(lines), LogSelection(procs, **choice))  # type: ignore[arg-type]


def job(number: int, submit: float, run: float, procs: int, limit: float | None = None) -> TraceJob:
    return TraceJob(number, submit, procs, run, run if limit is None else limit, 1, 1, 7, 1)


def scheduled(jobs: Sequence[TraceJob], starts: Sequence[float], procs: int = 10) -> Schedule:
    n = len(jobs)
    return Schedule("given", Workload(procs, tuple(jobs), n), list(starts), [None] * n, [None] * n)


def reference_easy(workload: Workload) -> list[float]:
    """EASY from its definition: at each instant start heads, then what cannot delay the first waiting job."""
    jobs = workload.jobs
    starts: dict[int, float] = {}
    pending = {job.submit_s for job in jobs}
    while pending:
        now = min(pending)
        pending.discard(now)
        _easy_pass(workload, starts, now)
        pending.update(end for i in starts if (end := starts[i] + jobs[i].run_s) > now)
    return [starts[i] for i in range(len(jobs))]


def _easy_pass(workload: Workload, starts: dict[int, float], now: float) -> None:
    jobs = workload.jobs
    running = [i for i in starts if starts[i] + jobs[i].run_s > now]
    free = workload.procs - sum(jobs[i].procs for i in running)
    waiting = [i for i in range(len(jobs)) if i not in starts and jobs[i].submit_s <= now]
    while waiting and jobs[waiting[0]].procs <= free:
        i = waiting.pop(0)
        starts[i] = now
        running.append(i)
        free -= jobs[i].procs
    if not waiting:
        return
    head, left = waiting[0], free
    shadow = now
    for end, i in sorted((starts[i] + jobs[i].limit_s, i) for i in running):
        left += jobs[i].procs
        shadow = end
        if left >= jobs[head].procs:
            break
    left = workload.procs - sum(jobs[i].procs for i in running if starts[i] + jobs[i].limit_s > shadow)
    spare = left - jobs[head].procs
    for i in waiting[1:]:
        is_short = now + jobs[i].limit_s <= shadow
        if jobs[i].procs <= free and (is_short or jobs[i].procs <= spare):
            starts[i] = now
            free -= jobs[i].procs
            if not is_short:
                spare -= jobs[i].procs
