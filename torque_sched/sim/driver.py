"""The clock: SimPy's time, the log's jobs, and the live scheduler's policy that decides at each instant.

One SimPy process walks from instant to instant. All that happens in one is told at once, terminations first,
then submissions; then the policy makes one pass. Between them the policy is asked again when it wants to be:
at a promised start, or where a job outlives its estimate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol

import simpy

from torque_sched.errors import TorqueSchedError
from torque_sched.policies.backfilling.events import BatchJob, Ended, Event, Outcome, Submitted
from torque_sched.sim.schedule import Broken, Schedule
from torque_sched.sim.workload import Workload

_SAY_EVERY = 1000


class Decides(Protocol):
    """What the driver asks of a policy."""

    def apply(self, events: Sequence[Event[int]], now_s: float) -> Outcome[Any]:
        """All events of one instant, then one pass."""
        ...


def simulate(
    name: str,
    workload: Workload,
    policy: Decides,
    *,
    priorities: Mapping[int, float] | None = None,
    say: Callable[[int], None] | None = None,
) -> Schedule:
    """Run a workload to its end.

    Args:
        name: of the policy, for the schedule.
        workload: jobs in order of arrival.
        policy: fresh; a job's key is its place in the workload.
        priorities: of the log's queues.
        say: is told now and then how many jobs have ended.

    Raises:
        TorqueSchedError: the policy started a job that does not wait, or left jobs waiting for ever.
    """
    began_s = time.perf_counter()
    run = _Run(workload, policy, priorities or {}, say)
    environment = simpy.Environment(workload.jobs[0].submit_s if workload.jobs else 0)
    environment.process(run.walk(environment))
    environment.run()
    run.refuse_leftovers()
    return Schedule(
        name, workload, run.starts, run.first_promises, run.promises, tuple(run.broken),
        run.n_events, run.n_passes, time.perf_counter() - began_s,
    )  # fmt: skip


class _Run:
    """What is known while the clock runs; lists go by the place of a job."""

    def __init__(
        self,
        workload: Workload,
        policy: Decides,
        priorities: Mapping[int, float],
        say: Callable[[int], None] | None,
    ) -> None:
        n = len(workload.jobs)
        self._jobs = workload.jobs
        self._policy = policy
        self._priorities = priorities
        self._say = say
        self.starts: list[float] = [inf] * n
        self.first_promises: list[float | None] = [None] * n
        self.promises: list[float | None] = [None] * n
        self.broken: list[Broken] = []
        self.n_events = self.n_passes = 0

    def walk(self, environment: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        """From instant to instant, until nothing more can happen."""
        jobs, apply, submitted, n = self._jobs, self._policy.apply, self._submitted, len(self._jobs)
        ends: list[tuple[float, int]] = []
        next_job, wake_s = 0, inf
        next_s = jobs[0].submit_s if n else inf
        while True:
            now_s = next_s if next_s < wake_s else wake_s
            if ends and ends[0][0] < now_s:
                now_s = ends[0][0]
            if now_s == inf:
                return
            # Not below 0: with fractions, the clock may be ahead by its last bit.
            yield environment.timeout(max(0, now_s - environment.now))
            events: list[Event[int]] = []
            while ends and ends[0][0] <= now_s:
                events.append(Ended(heappop(ends)[1]))
            while next_s <= now_s:
                events.append(submitted(next_job))
                next_job += 1
                next_s = jobs[next_job].submit_s if next_job < n else inf
            outcome = apply(events, now_s)
            for started in outcome.starts:
                place = int(started.key)
                heappush(ends, (self._started(place, now_s), place))
            if outcome.promises or outcome.broken:
                self._note(outcome, now_s)
            wake_s = outcome.wake_s
            if wake_s <= now_s:
                raise TorqueSchedError(f"the policy wants to be asked again at {wake_s}, and it is {now_s}")
            self.n_events += len(events)
            self.n_passes += 1
            if self._say is not None and self.n_passes % _SAY_EVERY == 0:
                self._say(self.n_events - next_job)

    def _submitted(self, place: int) -> Submitted[int]:
        job = self._jobs[place]
        procs, priority = job.procs, self._priorities.get(job.queue, 0.0)
        return Submitted(BatchJob(place, procs, job.limit_s, job.submit_s, str(job.user), priority, procs))

    def _started(self, place: int, now_s: float) -> float:
        """When the job that starts now will end."""
        job = self._jobs[place]
        if self.starts[place] != inf or job.submit_s > now_s:
            raise TorqueSchedError(f"the policy starts job {job.number} at {now_s}, which does not wait")
        self.starts[place] = now_s
        return now_s + job.run_s

    def _note(self, outcome: Outcome[Any], now_s: float) -> None:
        for promise in outcome.promises:
            place = int(promise.key)
            if self.first_promises[place] is None:
                self.first_promises[place] = promise.start_s
            self.promises[place] = promise.start_s
        for each in outcome.broken:
            self.broken.append(Broken(int(each.key), now_s, each.old_s, each.new_s, each.reason.value))

    def refuse_leftovers(self) -> None:
        """Every job must have run."""
        left = [job.number for job, start_s in zip(self._jobs, self.starts, strict=True) if start_s == inf]
        if left:
            raise TorqueSchedError(f"the policy left {len(left)} jobs waiting for ever, first {left[0]}")
